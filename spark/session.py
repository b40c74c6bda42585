"""The one place that builds a Spark session, and what a streaming job does with one: its checkpoint, its end.

A batch is never interrupted: `stop()` in the middle of one may break in Spark's own threads. A job that is
asked to end refuses the next batch at its first line (`Ending.check`) and stops the query between batches.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

ROOT = Path(__file__).parent.parent

DONE, LOSS, USAGE, UNREADABLE = range(4)  # exit codes of every job

MASTER = "local[2]"
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # The default, INT96, makes readers of Delta tables refuse the file.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.python.filterPushdown.enabled": "true",
}
# Where the executors are on this machine too. On a cluster they must find the driver by its name.
LOCAL: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class Refused(Exception):
    """A job cannot go on: what is wrong, the way out, and the exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


def build(app: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session, or the one that this process has. *conf*, then spark-defaults.conf, win over SETTINGS.

    Takes 3 to 20 s: it starts a JVM. Raises Refused where there is no Java.
    """
    needs_java()
    prepare_workers()
    builder = SparkSession.builder.appName(app)
    for key, value in settings(master, conf or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def settings(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """What a session is made with, besides what stands in spark-defaults.conf."""
    theirs = defaults()
    where = master or conf.get("spark.master") or theirs.get("spark.master", MASTER)
    ours = {**SETTINGS, **(LOCAL if where.startswith("local") else {})}
    return (
        {key: value for key, value in ours.items() if key not in theirs}
        | dict(conf)
        | {"spark.master": where}
    )


def needs_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not shutil.which(f"{home}/bin/java" if home else "java"):
        raise Refused(
            "Spark needs Java 17 or later and finds none: install it (Debian: openjdk-17-jre-headless), "
            "or set JAVA_HOME",
            UNREADABLE,
        )


def prepare_workers() -> None:
    """Workers run this Python and find our modules, whatever the folder. Before the JVM starts, or never."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, paths)])


def defaults() -> dict[str, str]:
    """What the user's spark-defaults.conf says, where Spark looks for it."""
    home, folder = os.environ.get("SPARK_HOME"), os.environ.get("SPARK_CONF_DIR")
    file = Path(folder or Path(home or "", "conf"), "spark-defaults.conf")
    if not (home or folder) or not file.is_file():
        return {}
    lines = (re.split(r"[\s=]+", line.strip(), maxsplit=1) for line in file.read_text().splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2 and not line[0].startswith("#")}


def pairs(texts: list[str]) -> dict[str, str]:
    """`KEY=VALUE` of --conf, as a dictionary. Raises Refused."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise Refused(f"--conf wants KEY=VALUE, not {wrong[0]!r}")
    return dict(text.split("=", 1) for text in texts)


@contextmanager
def alone(checkpoint: Path) -> Iterator[None]:
    """Two jobs on one checkpoint would undo each other's batches. Raises Refused."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    with open(checkpoint.with_suffix(".lock"), "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refused(f"another job is at work on {checkpoint}") from error
        yield


def announce(said: Mapping[str, Any], *more: str) -> None:
    """One batch: JSON on stdout for machines, a line on stderr for a person with *more* at its end.

    *said* has `batch`, `rows` and `seconds`; `kind`, `age` and `bad` are told where it has them.
    """
    print(json.dumps(said), flush=True)
    rows, seconds = said["rows"], said["seconds"]
    name = f"{said['kind']} batch" if "kind" in said else "batch"
    rate = f" ({rows / seconds:,.0f}/s)" if seconds else ""
    words = [f"{name} {said['batch']}: {rows:,} rows in {seconds:.1f} s{rate}"]
    words += [f"newest {said['age']:.1f} s old"] if said.get("age") is not None else []
    words += [f"{said['bad']:,} bad"] if said.get("bad") else []
    print(", ".join([*words, *more]), file=sys.stderr, flush=True)


def age_of(newest: int | None) -> float | None:
    """Seconds since *newest*, microseconds since 1970."""
    return None if newest is None else round(time.time() - newest / 1e6, 3)


def carried_out(name: str, job: Callable[[], int]) -> int:
    """The exit code of *job*; why it could not go on is said in one line."""
    try:
        return job()
    except Refused as refused:
        print(f"{name}: {refused}", file=sys.stderr)
        return refused.code
    except (PySparkException, Py4JError, ConnectionError) as error:  # ConnectionError: the JVM is gone
        print(f"{name}: {why(error)}", file=sys.stderr)
        return UNREADABLE


def why(error: Exception) -> str:
    """What Spark failed with: the first line of it, or what to do where that is known."""
    text = str(error) or type(error).__name__
    if isinstance(error, ConnectionError | Py4JNetworkError) or "OutOfMemoryError" in text:
        return f"{TOO_LITTLE_MEMORY} ({text.splitlines()[0]})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return " ".join([*lines[:1], *causes[-1:]])


class Ending:
    """Set by SIGTERM and SIGINT: the running batch is finished, then the job ends."""

    def __init__(self) -> None:
        self.asked = False  # no Event: to set one in a handler can wait for the lock of who waits for it
        self.heard = False  # a signal; whoever sent it may have sent it to the JVM as well

    def ask(self) -> None:
        self.asked = True

    def hear(self, *_: object) -> None:
        self.asked = self.heard = True

    def listen(self) -> Ending:
        """In the main thread, after the session was built: PySpark has a handler of its own for SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.hear)
        return self

    def wait(self, seconds: float) -> bool:
        """Until it is asked for, but at most *seconds*; whether it was."""
        ends = time.monotonic() + seconds
        while not self.asked and (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return self.asked

    def __bool__(self) -> bool:
        return self.asked

    def check(self, session: SparkSession) -> None:
        """The first thing a batch does. Raises Asked: the batch is planned, and the next run does it."""
        if self:
            session.sparkContext.setLogLevel("OFF")  # no stack trace for what we wanted
            raise Asked


class Asked(Exception):
    """The job was asked to end; the query fails with it, and that is no failure."""


class Checkpoint:
    """What Spark keeps of one streaming query, read from its files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether a batch was ever planned. Spark writes `metadata` before: a job may be killed there."""
        return self.newest() is not None

    @property
    def query(self) -> str:
        """The query's id: the same as long as the checkpoint is; empty before Spark made it."""
        file = self.path / "metadata"
        return str(json.loads(file.read_text())["id"]) if file.is_file() else ""

    def newest(self) -> int | None:
        """The newest batch that was planned."""
        return self._newest("offsets")

    def done(self) -> int | None:
        """The newest batch that is done."""
        return self._newest("commits")

    def _newest(self, folder: str) -> int | None:
        found = self.path.glob(f"{folder}/*")
        return max((int(path.name) for path in found if path.name.isdecimal()), default=None)

    def planned_at(self, number: int) -> dt.datetime:
        """When batch *number* was planned; the same if it is done again."""
        stamp = json.loads(self._lines(number)[1])["batchTimestampMs"]
        return dt.datetime.fromtimestamp(stamp / 1000, dt.UTC)

    def end(self, number: int) -> dict[str, Any] | None:
        """The offset of the first source at the end of batch *number*; None if that is not known any more."""
        try:
            return dict(json.loads(self._lines(number)[2]))
        except FileNotFoundError:
            return None

    def _lines(self, number: int) -> list[str]:
        return (self.path / "offsets" / str(number)).read_text().splitlines()


TOO_LITTLE_MEMORY = (
    "the JVM ran out of memory: give it more, --conf spark.driver.memory=4g. While it is written, a row "
    "takes some ten times the size of its payload"
)
ENDED_TOO = "the JVM was ended before the batch was: the next run does it again"


def watch(queries: Sequence[StreamingQuery], ending: Ending) -> list[str]:
    """Waits until all *queries* ended; what they failed with, in Spark's words. The first ends all."""
    try:
        failed = _watch(queries, ending)
    except (Py4JError, OSError) as error:  # it died: that is what a JVM does when it has no memory left
        if ending.heard:
            return [ENDED_TOO]
        return [f"{TOO_LITTLE_MEMORY} ({error})"]
    return [TOO_LITTLE_MEMORY if "OutOfMemoryError" in text else text for text in failed]


def _watch(queries: Sequence[StreamingQuery], ending: Ending) -> list[str]:
    failed: list[str] = []
    while active := [query for query in queries if query.isActive]:
        for query in active:
            try:
                query.awaitTermination(0.2)
            except StreamingQueryException:
                pass  # asked for below
        if any(query.exception() for query in queries):
            ending.ask()
        if ending:
            for query in active:
                if query.isActive and not query.status["isTriggerActive"]:
                    query.stop()
    for query in queries:
        error = query.exception()
        if error is not None and f"{Asked.__module__}.{Asked.__name__}" not in str(error):
            failed.append(str(error))
    return failed


def crash_point(name: str) -> None:
    """For tests of what a kill leaves behind: PYBROKER_CRASH=name ends this process, under pytest only."""
    if "PYTEST_CURRENT_TEST" in os.environ and os.environ.get("PYBROKER_CRASH") == name:
        os.kill(os.getpid(), signal.SIGKILL)
