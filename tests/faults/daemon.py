"""`pybroker` on one loopback port and one store, killed and started again as often as a test likes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WAIT = 30.0  # seconds, for what takes a moment: the start of an interpreter on a busy machine
MEMORY = ":memory:"  # no store: everything is lost with the process
FAILED = re.compile(r" (ERROR|CRITICAL) |^Traceback|^\w+(Error|Exception)\b|^pybroker: ")


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has, below those that clients are given: it can be bound again and again."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((host, port))
            return port


class Restartable:
    """One broker over several processes. *store* is a path, or MEMORY.

    `start` and `kill` as often as needed; both block for a moment. `complaints` has every line of its
    log that tells of an error: a broker that is killed has no reason to write one.
    """

    def __init__(
        self,
        store: str | Path = MEMORY,
        settings: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: Sequence[str] = (),
    ) -> None:
        """*settings* are `section.key=value`; *prefix*: what the command begins with, such as `nsenter`."""
        self.store, self.settings = str(store), tuple(settings)
        self.host, self.port = host, port or free_port(host)
        self.prefix = tuple(prefix)
        self.kills = 0
        self.complaints: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)

    def command(self, module: str, settings: Sequence[str]) -> list[str]:
        sets = [f"store.path={self.store}", "log.level=warning", *self.settings, *settings]
        flags = ["--listen", f"tcp://{self.host}:{self.port}", *(f"--set={setting}" for setting in sets)]
        return [*self.prefix, sys.executable, "-m", module, *flags]

    def start(self, *settings: str, module: str = "broker", **environ: str) -> None:
        """Start it, and wait until it listens. *settings* and *environ* are for this process alone."""
        self.launch(*settings, module=module, **environ)
        try:
            self.says("listening on")
        except AssertionError:
            self.kill()
            raise

    def launch(self, *settings: str, module: str = "broker", **environ: str) -> None:
        """Start it, and wait for nothing."""
        assert self._process is None, "it is running"
        self._process = subprocess.Popen(
            self.command(module, settings),
            cwd=ROOT,
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def says(self, text: str) -> None:
        """Wait until it has written *text* to standard output."""
        assert self._process is not None and self._process.stdout is not None
        pipe, said, deadline = self._process.stdout.fileno(), b"", time.monotonic() + WAIT
        while text.encode() not in said:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"it does not say {text!r} within {WAIT} s"
            data = os.read(pipe, 65536)
            assert data, f"it ended before it said {text!r}: {self.log()}"
            said += data

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait for the end of the process."""
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            self.complaints.append(f"it ended by itself with {status}")
        self._process.kill()
        self.kills += 1
        self.ended()

    def ended(self) -> int:
        """Wait until it has ended, by itself or by us; its exit status."""
        assert self._process is not None and self._process.stdout is not None
        status = self._process.wait(WAIT)
        self._process.stdout.close()
        self._process = None
        self.complaints += [line for line in self.log().splitlines() if FAILED.search(line)]
        self._log.truncate(0)
        self._log.seek(0)
        return status

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self.ended()

    def log(self) -> str:
        """What this process has written to standard error."""
        fd = self._log.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self.kill()
        self._log.close()


@contextlib.contextmanager
def restartable(store: str | Path = MEMORY, *settings: str) -> Iterator[Restartable]:
    """A Restartable that is not running yet; at the end it is closed, and must not have complained."""
    with contextlib.closing(Restartable(store, settings)) as broker:
        yield broker
    assert not broker.complaints, "\n".join(broker.complaints)
