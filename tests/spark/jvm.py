"""The JVMs of tests live for seconds: they compile once and quickly, and find their classes in an archive.

Two thirds of the time of a short job is the start of its JVM, and half of that is to load classes of Spark
from its jars. An archive of them (180 MB, class data sharing) is made once by `python -m tests.spark.jvm`,
for this Java and this Spark, and stays in the folder for temporary files. Without it all goes on, slower.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ENOUGH = 240  # seconds to make an archive
KEPT = 7 * 86_400  # seconds that one stays unused


# Queries over a few rows are planned once and interpreted: to compile one takes longer than all of its rows.
INTERPRETED = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def compiled(session: SparkSession) -> Iterator[None]:
    """Queries as jobs run them: planned again as they go, and compiled."""
    for name, value in INTERPRETED.items():
        session.conf.set(name, "FALLBACK" if value == "NO_CODEGEN" else "true")
    try:
        yield
    finally:
        for name, value in INTERPRETED.items():
            session.conf.set(name, value)


def options() -> str:
    """For `spark.driver.extraJavaOptions`."""
    file = archive()
    return f"{FLAGS} -XX:SharedArchiveFile={file} -Xlog:disable" if file else FLAGS  # it warns on stdout


def environment() -> dict[str, str]:
    """For a program that takes no --conf. Not by SPARK_CONF_DIR, which is in the class path of an archive."""
    return {"PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{options()}' pyspark-shell"}


def archive() -> Path | None:
    """Made by the first who asks; the others wait. None: there is none, and none is made."""
    folder = Path(tempfile.gettempdir()) / f"pybroker-jvm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if shutil.which("java") is None or folder.stat().st_uid != os.getuid():
        return None
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    spark = Path(found.origin)
    key = f"{java.stderr}{spark}{spark.stat().st_mtime_ns}{FLAGS}"
    file = folder / f"{sha256(key.encode()).hexdigest()[:16]}.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            made(file)
            remove_old(folder, time.time())
        os.utime(file)  # it is in use
    return file if file.stat().st_size else None


def remove_old(folder: Path, now: float) -> None:
    """Archives that nobody asked for in a week: of an older Java, or a Spark of another environment."""
    for file in folder.glob("*.jsa"):
        if now - file.stat().st_mtime > KEPT:
            file.unlink()


def made(file: Path) -> None:
    """An empty *file* says that it did not work: nobody tries again."""
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "tests.spark.jvm", str(part), out]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        try:
            subprocess.run(command, env=environ, capture_output=True, timeout=ENOUGH, check=False)
        except subprocess.TimeoutExpired:
            part.unlink(missing_ok=True)
    if not part.exists():
        part.touch()
    part.replace(file)


def train(part: str, out: str) -> None:
    """What the jobs do, on a few records: the classes that they take are in the archive *part*."""
    from pyspark import SparkContext

    from spark import decode, ingest, report

    options_ = f"spark.driver.extraJavaOptions={FLAGS} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    log = str(ROOT / "tests" / "hook" / "golden_log")
    ingest.main(["--log", log, "--out", out, "--once", "--kind", "both", "--conf", options_])
    decode.main(["--out", out, "--once"])
    report.main(["--out", out, "--format", "json", "--output", f"{out}/report.json"])
    process = SparkContext._gateway.proc
    process.stdin.close()
    process.wait(ENOUGH)


if __name__ == "__main__":
    train(*sys.argv[1:])
