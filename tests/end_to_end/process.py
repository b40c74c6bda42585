"""`pybroker` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent.parent
WAIT = 30.0  # seconds, for what takes a moment: the start of an interpreter on a busy machine
FREE = ("--listen", "tcp://127.0.0.1:0")


class Daemon:
    """One process of `pybroker`; its lines arrive in queues, so that no pipe fills up.

    Its store is memory unless *environ* or a flag says otherwise.
    """

    def __init__(self, *flags: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker", *flags],
            cwd=ROOT,
            env=os.environ | {"PYBROKER_STORE_PATH": ":memory:"} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: Queue[str] = Queue()
        self.err: Queue[str] = Queue()
        self.readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(pipe, lines: Queue[str]) -> None:
        for line in pipe:
            lines.put(line)

    def until(self, lines: Queue[str], pattern: str) -> re.Match[str]:
        """The first line that matches; fails when there is none in time."""
        while True:
            if match := re.search(pattern, lines.get(timeout=WAIT)):
                return match

    def port(self) -> int:
        return int(self.until(self.out, r"^listening on \w+://[^ ]+?:(\d+)")[1])

    def end(self) -> tuple[int, str, str]:
        """Exit status and the rest of what it wrote, once it has ended by itself."""
        status = self.process.wait(WAIT)
        for reader in self.readers:
            reader.join(WAIT)
        return status, "".join(self.out.queue), "".join(self.err.queue)


@contextlib.contextmanager
def daemon(*flags: str, **environ: str) -> Iterator[Daemon]:
    running = Daemon(*flags, **environ)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        for reader in running.readers:
            reader.join(WAIT)
        for pipe in (running.process.stdout, running.process.stderr):
            pipe.close()
