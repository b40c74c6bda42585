"""The daemon under attack, its bystander, and what can be seen of both from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.conformance import wire
from tests.end_to_end.process import ROOT, Daemon, daemon
from tests.hostility.line import WAIT, Line

MIB = 1 << 20
STORE = ("--set=store.path=:memory:",)  # what is measured here is memory alone
LATENCY = 1.5  # seconds that a round trip of the bystander may take; in peace it is 1 ms
NEWCOMER = 3.0  # the same for a new connection
BASE = 40 * MIB  # what the process may take before anybody connects
PATH = {"ws": "/mqtt", "wss": "/mqtt"}
URL = re.compile(r"^listening on (\w+)://[^ ]+?:(\d+)")


def bound(budget: int) -> int:
    """The most memory that the process may take: its base, the *budget*, and an eighth for its allocator."""
    return BASE + budget + budget // 8


class Scene:
    """One broker with one bystander."""

    def __init__(self, broker: Daemon, schemes: tuple[str, ...], newcomers: bool) -> None:
        self.broker = broker
        self.ports = {}
        for _ in schemes:
            match = broker.until(broker.out, URL.pattern)
            self.ports[match[1]] = int(match[2])
        self.port = self.ports["tcp"]
        self.monitor = Line(self.port).connect("monitor")
        self.sys()  # its subscription is made while there is room
        self.bystander = self._bystander(newcomers)
        self.at_rest = self.memory()
        self._lines: list[Line] = []

    def _bystander(self, newcomers: bool) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.hostility.bystander"]
        about = [str(self.port), str(self.broker.process.pid), *([] if newcomers else ["alone"])]
        started = subprocess.Popen(
            [*command, *about],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert started.stdout is not None and started.stdout.readline() == "ready\n"
        return started

    # ---- the process

    def _status(self, field: str) -> int:
        status = Path(f"/proc/{self.broker.process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.M)
        assert found is not None
        return int(found[1]) * 1024

    def memory(self) -> int:
        """Bytes that it holds now."""
        return self._status("VmRSS")

    def peak(self) -> int:
        """The most bytes that it ever held."""
        return self._status("VmHWM")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.broker.process.pid}/fd"))

    # ---- what it says of itself

    def sys(self) -> dict[str, int]:
        """The numbers in `$SYS/broker/` now."""
        self.monitor.send(wire.subscribe(1, "$SYS/broker/#"))
        found = [packet for packet in self.monitor.fence() if packet.name == "PUBLISH"]
        values = {(packet.topic_name or "").removeprefix("$SYS/broker/"): packet.payload for packet in found}
        return {name: int(value) for name, value in values.items() if value and value.isdigit()}

    def dropped(self) -> dict[str, int]:
        """Messages dropped, by reason; their sum must be what is dropped in all."""
        values = self.sys()
        reasons = {k.removeprefix("dropped/"): v for k, v in values.items() if k.startswith("dropped/")}
        assert sum(reasons.values()) == values["publish/messages/dropped"], values
        return reasons

    def wait_until(self, condition: Callable[[], Any], what: str, timeout: float = WAIT) -> None:
        ends = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < ends, f"did not happen within {timeout} s: {what}"
            time.sleep(0.05)

    # ---- who comes

    def line(self, version: int = 5, scheme: str = "tcp", **options: Any) -> Line:
        """A connection, closed with the scene."""
        line = Line(self.ports[scheme], version, **options)
        self._lines.append(line)
        return line

    def accepts(self, client_id: str) -> bool:
        """Whether a new client is let in now."""
        line = self.line()
        line.push(wire.connect(client_id))
        packet = line.packet()
        return packet is not None and packet.reason_code == 0

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self.monitor.close()

    # ---- the end

    def verdict(self, rounds: int = 1) -> dict[str, Any]:
        """What the bystander lived through; asserts that it was served all the time, as in peace."""
        said, _ = self.bystander.communicate(timeout=2 * WAIT)
        report = json.loads(said)
        assert not report["error"], report["error"]
        assert len(report["qos1"]) >= rounds, f"only {len(report['qos1'])} rounds"
        slowest = {kind: round(max(report[kind], default=0.0), 3) for kind in ("qos0", "qos1", "connect")}
        assert max(slowest["qos0"], slowest["qos1"]) < LATENCY and slowest["connect"] < NEWCOMER, slowest
        assert self.broker.process.poll() is None, "the broker has died"
        return {"rounds": len(report["qos1"]), "slowest": slowest}

    def logged(self, *words: str) -> list[str]:
        """The lines of its log that have one of *words*."""
        return [line for line in list(self.broker.err.queue) if any(word in line for word in words)]


@contextlib.contextmanager
def scene(
    *flags: str, schemes: tuple[str, ...] = ("tcp",), newcomers: bool = True, level: str = "warning",
    rounds: int = 1, expected: str = "^$", **settings: Any,
) -> Iterator[Scene]:  # fmt: skip
    """A daemon with *settings* (`limits__receive_maximum=5`), its bystander, and at the end the verdict.

    Nothing is logged at ERROR but what matches *expected*.
    """
    raise_descriptors()
    listen = [f"--listen={scheme}://127.0.0.1:0{PATH.get(scheme, '')}" for scheme in schemes]
    sets = [f"--set={key.replace('__', '.')}={value}" for key, value in settings.items()]
    with daemon(*listen, *STORE, "--log-level", level, *sets, *flags) as broker:
        place = Scene(broker, schemes, newcomers)
        try:
            yield place
            report = place.verdict(rounds)
            errors = [line for line in place.logged(" ERROR ", "Traceback") if not re.search(expected, line)]
            assert not errors, errors
            report |= {"rest MiB": place.at_rest >> 20, "peak MiB": place.peak() >> 20}
            print(json.dumps(report))
        finally:
            place.bystander.kill()
            place.bystander.wait()
            place.close()


def raise_descriptors() -> None:
    """As many files as the machine allows, for us and for the daemon that inherits it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
