"""`spark.ingest` and a writer of a log as programs, each in a process group that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.spark import jvm

ROOT = Path(__file__).parents[2]
PATIENCE = 180  # seconds that anything may take: a JVM starts in three, or in thirty on a busy machine


class Program:
    """`python -m ...`; its output goes to files. Killed as a group at the end of the `with`, JVM and all."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{len(list(folder.iterdir())):03}"
        self.out, self.errors = folder / f"{name}.out", folder / f"{name}.err"
        given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        with open(self.out, "wb") as out, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=given,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def lines(self) -> list[dict[str, Any]]:
        whole = self.out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, count: int) -> None:
        """Until it has printed *count* lines."""
        end = time.monotonic() + PATIENCE
        while len(self.lines()) < count:
            assert self.process.poll() is None, self.errors.read_text()[-3000:]
            assert time.monotonic() < end, self.errors.read_text()[-3000:]
            time.sleep(0.02)

    def kill(self) -> None:
        """Every process of the group, at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE)

    def terminate(self) -> int:
        """Ask it alone to end; gives its exit code."""
        self.process.terminate()
        return self.end()

    def end(self) -> int:
        """Wait until it ends; gives its exit code."""
        return self.process.wait(PATIENCE)


def ingest(folder: Path, *more: str, crash: str = "") -> Program:
    """The log in *folder*/log into *folder*/out; *crash* is the point where it kills itself."""
    where = ["--log", str(folder / "log"), "--out", str(folder / "out"), "--kind", "messages"]
    small = ["--conf", "spark.driver.memory=512m", "--conf", f"spark.driver.extraJavaOptions={jvm.options()}"]
    return Program(folder / "jobs", "-m", "spark.ingest", *where, *small, *more, PYBROKER_CRASH=crash)


def writer(folder: Path, count: int) -> Program:
    """Writes *count* messages to *folder*/log at 2000 a second, and a line for each hundred."""
    return Program(folder / "writers", "-m", "tests.spark.writer", str(folder / "log"), str(count))
