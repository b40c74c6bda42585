"""The one place that builds a Spark session; exit codes of the jobs, and how a job is asked to end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent

DONE, DATA_LOSS, USAGE, UNREADABLE = range(4)  # exit codes of every job

MASTER = "local[2]"
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # The default, INT96, makes readers of Delta tables refuse the file.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.python.filterPushdown.enabled": "true",
}


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
    chosen = {key: value for key, value in SETTINGS.items() if key not in defaults()} | dict(conf or {})
    builder = SparkSession.builder.appName(app)
    if master or "spark.master" not in {*chosen, *defaults()}:
        builder = builder.master(master or MASTER)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


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
    """What the user's spark-defaults.conf says; nothing where SPARK_CONF_DIR is not set."""
    folder = os.environ.get("SPARK_CONF_DIR")
    file = Path(folder, "spark-defaults.conf") if folder else None
    if file is None or not file.is_file():
        return {}
    lines = (re.split(r"[\s=]+", line.strip(), maxsplit=1) for line in file.read_text().splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2 and not line[0].startswith("#")}


def pairs(texts: list[str]) -> dict[str, str]:
    """`KEY=VALUE` of --conf, as a dictionary. Raises Refused."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise Refused(f"--conf wants KEY=VALUE, not {wrong[0]!r}")
    return dict(text.split("=", 1) for text in texts)


class Ending:
    """Set by SIGTERM and SIGINT: the running batch is finished, then the job ends."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def listen(self) -> Ending:
        """In the main thread, after the session was built: PySpark has a handler of its own for SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.asked.set())
        return self

    def __bool__(self) -> bool:
        return self.asked.is_set()
