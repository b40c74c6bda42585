"""The session: what it is made with, who wins, and what it says where there is no Java."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from spark import JOBS, session
from spark.session import Ending, Refused, announce, carried_out

ROOT = Path(__file__).parent.parent.parent


def test_a_session_has_our_settings(spark: SparkSession) -> None:
    wanted = {**session.SETTINGS, **session.LOCAL}
    assert {key: spark.conf.get(key) for key in wanted} == wanted
    assert spark.sparkContext.master == "local[2]"


def test_no_java_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Refused, match=r"openjdk-17-jre-headless.*JAVA_HOME"):
        session.build("none")


def test_the_users_own_defaults_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# a comment\nspark.driver.memory   3g\nspark.x=1 2\n\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session.defaults() == {"spark.driver.memory": "3g", "spark.x": "1 2"}


def test_on_a_cluster_the_driver_has_a_name_that_others_find(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    here, there = session.settings(None, {}), session.settings("spark://host:7077", {})
    assert (here["spark.master"], here["spark.driver.host"]) == ("local[2]", "127.0.0.1")
    assert there["spark.master"] == "spark://host:7077" and "spark.driver.host" not in there
    yarn = session.settings(None, {"spark.master": "yarn", "spark.driver.memory": "4g"})
    assert yarn["spark.master"] == "yarn" and "spark.driver.bindAddress" not in yarn
    assert yarn["spark.driver.memory"] == "4g"


def test_the_defaults_below_spark_home_win_over_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 3g\nspark.master yarn\n")
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "spark.driver.memory" not in session.settings(None, {})
    assert "spark.driver.host" not in session.settings(None, {})


def test_workers_find_this_python_and_our_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/other")
    session.prepare_workers()
    session.prepare_workers()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(session.ROOT), "/other"]


def test_a_conf_without_a_value_is_refused() -> None:
    assert session.pairs(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(Refused, match="KEY=VALUE"):
        session.pairs(["a"])


def test_sigterm_asks_for_the_end() -> None:
    code = (
        "import os, signal; from spark.session import Ending; ending = Ending().listen(); "
        "print(bool(ending)); os.kill(os.getpid(), signal.SIGTERM); print(bool(ending))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["False", "True"], run.stderr
    assert not Ending()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class Query:
    """A streaming query whose JVM says *what*."""

    def __init__(self, what: Exception | str) -> None:
        self.what = what

    @property
    def isActive(self) -> bool:
        if isinstance(self.what, Exception):
            raise self.what
        return False

    def exception(self) -> str:
        return str(self.what)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (ConnectionRefusedError("refused"), "the JVM ran out of memory"),
        (Py4JError("the JVM is gone"), "the JVM ran out of memory"),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", "the JVM ran out of memory"),
        ("data loss: node n", "data loss: node n"),
        ("java.io.FileNotFoundException: /lake/Asked/x", "java.io.FileNotFoundException"),
    ],
)
def test_what_a_query_failed_with(what: Exception | str, said: str) -> None:
    (failed,) = session.watch([Query(what)], Ending())
    assert failed.startswith(said)
    assert session.watch([Query("... spark.session.Asked ...")], Ending()) == []


@pytest.mark.parametrize("job", JOBS)
def test_a_job_without_pyspark_says_what_to_install(job: str) -> None:
    command = [sys.executable, "-S", "-m", f"spark.{job}", "--out", "somewhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"spark.{job} needs PySpark and pyarrow: pip install 'pybroker[spark]'\n"


def test_a_batch_is_told_to_machines_and_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"kind": "messages", "batch": 7, "rows": 3_000, "bad": 2, "seconds": 1.5, "age": 4.25}
    announce(said, "1 gap in the log")
    announce({"batch": 0, "rows": 0, "seconds": 0.0, "age": None})
    out, errors = capsys.readouterr()
    assert json.loads(out.splitlines()[0]) == said
    assert errors.splitlines() == [
        "messages batch 7: 3,000 rows in 1.5 s (2,000/s), newest 4.2 s old, 2 bad, 1 gap in the log",
        "batch 0: 0 rows in 0.0 s",
    ]


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (Refused("no such folder"), 2, "job: no such folder\n"),
        (Py4JError("broke\n\tat here\nCaused by: full\n\tat there"), 3, "job: broke Caused by: full\n"),
        (Py4JError("java.lang.OutOfMemoryError: heap\n\tat here"), 3, "job: the JVM ran out of memory: "),
        (ConnectionRefusedError("gone"), 3, "job: the JVM ran out of memory: "),
    ],
)
def test_what_ends_a_job_is_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, told: str
) -> None:
    def job() -> int:
        raise error

    assert carried_out("job", job) == code
    errors = capsys.readouterr().err
    assert errors.startswith(told) and errors.count("\n") == 1


def test_a_signal_that_ended_the_jvm_too_is_no_lack_of_memory() -> None:
    ending = Ending()
    ending.hear()
    (failed,) = session.watch([Query(ConnectionRefusedError("refused"))], ending)
    assert failed == session.ENDED_TOO and ending
