"""The message log of real processes: killed at any moment, on a disk that is full or fails."""

from __future__ import annotations

import base64
import errno
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.hook.log.names import closed_segments, open_folder
from broker.hook.log.recover import lock, recover
from broker.hook.log.segment import leftovers
from tests.conformance.transports import Tcp
from tests.faults.daemon import ROOT, Restartable
from tests.faults.scene import EVERY_CODE, WAIT, Patient, until
from tests.faults.shim import Disk
from tests.hook.log.files import offsets, open_lines

KILLS = 25


def payloads(root: Path) -> list[str]:
    """Of all messages in closed segments."""
    found = []
    for path, _ in closed_segments(root, "messages"):
        lines = [json.loads(line) for line in open_lines(path)]
        found += [base64.b64decode(line["p"]).decode() for line in lines if "p" in line]
    return found


def work_and_die(root: Path, run: str, rng: random.Random) -> list[str]:
    """A writer that is killed some time after its first acknowledgement; gives what it was promised."""
    command = [sys.executable, "-m", "tests.faults.logwriter", str(root), run]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first, "it ended by itself"
    time.sleep(rng.random() * 0.15)
    process.kill()
    rest = process.stdout.read()
    process.wait()
    lines = (first + rest).decode().split("\n")
    return lines[:-1]  # the last one may be torn


def spoil(root: Path, rng: random.Random) -> None:
    """Garbage behind half of the files that are open."""
    for kind in ("messages", "events"):
        for path in open_folder(root, kind).iterdir():
            if rng.random() < 0.5:
                tail = rng.choice(
                    [bytes(3000), rng.randbytes(200), b'{"o":', b"\n\n", path.read_bytes()[:300]]
                )
                with path.open("ab") as file:
                    file.write(tail)


def test_log_kill9(tmp_path: Path) -> None:
    rng = random.Random(9)
    promised: list[str] = []
    for number in range(KILLS):
        promised += work_and_die(tmp_path, "x" * (number % 2 + 1) + str(number), rng)
        spoil(tmp_path, rng)
    recover(tmp_path, "broker", True)
    logged = Counter(payloads(tmp_path))
    assert len(promised) > KILLS
    assert not [payload for payload in promised if not logged[payload]], "acknowledged and lost"
    assert max(logged.values()) == 1
    epochs: dict[int, list[int]] = {}
    for _, name in sorted(closed_segments(tmp_path, "messages"), key=lambda each: each[1]):
        epochs.setdefault(name.epoch, []).extend(range(name.first, name.last + 1))
    assert len(epochs) == KILLS
    assert all(numbers == list(range(len(numbers))) for numbers in epochs.values())
    for kind in ("messages", "events"):
        check_sums(tmp_path, kind)


def check_sums(root: Path, kind: str) -> None:
    """Every segment holds what its name says, and every line its checksum."""
    by_epoch: dict[int, Path] = {}
    for path, name in closed_segments(root, kind):
        copy = root / "sums" / kind / str(name.epoch) / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.hardlink_to(path)
        by_epoch[name.epoch] = root / "sums" / kind / str(name.epoch)
    for folder in by_epoch.values():
        assert offsets(folder, kind)


# ---- the daemon


class Logged:
    """A daemon with a log in *folder*, and its clients."""

    def __init__(self, folder: Path, *settings: str, disk: Disk | None = None) -> None:
        self.root = folder
        sets = (f"message_log.path={folder}", "capacity.sys_interval=0.2", *settings)
        self.broker = Restartable(settings=sets)
        self.environ = disk.environ() if disk is not None else {}
        self.clients: list[Any] = []

    def start(self) -> None:
        self.broker.start(**self.environ)

    def client(self, name: str, version: int = 5) -> Any:
        client = Patient(Tcp(f"tcp://127.0.0.1:{self.broker.port}", timeout=WAIT), version)
        self.clients.append(client)
        client.connect(name)
        return client

    def stop(self) -> None:
        self.broker.stop()

    def close(self) -> None:
        for client in self.clients:
            client.transport.close()
        self.broker.close()


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Callable[..., Logged]]:
    made: list[Logged] = []

    def make(*settings: str, disk: Disk | None = None) -> Logged:
        (tmp_path / "log").mkdir(exist_ok=True)
        made.append(Logged(tmp_path / "log", *settings, disk=disk))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.close()


def mosquitto_pub(port: int, *more: str) -> None:
    command = ["mosquitto_pub", "-p", str(port), "-i", "pub", *more]
    subprocess.run(command, check=True, timeout=20)


def test_mosquitto_pub_makes_lines_on_the_disk(logged: Callable[..., Logged]) -> None:
    daemon = logged("message_log.fsync=ack", "message_log.deliveries=acked")
    properties = ["-V", "mqttv5", "-D", "publish", "user-property", "unit", "C"]
    mosquitto_pub(daemon.broker.port, "-t", "a/b", "-m", "21.5", "-q", "1", *properties)
    ((path, _),) = leftovers(open_folder(daemon.root, "messages"), "broker")
    line = json.loads(path.read_bytes())
    assert (line["o"], line["t"], line["q"], line["c"], line["v"]) == (0, "a/b", 1, "pub", 5)
    assert base64.b64decode(line["p"]) == b"21.5"
    assert line["up"] == [{"key": "unit", "value": "C"}]
    assert abs(line["ts"] / 1e6 - time.time()) < 60
    daemon.stop()
    assert payloads(daemon.root) == ["21.5"]
    assert list(open_folder(daemon.root, "messages").iterdir()) == []


def test_log_two_writers(logged: Callable[..., Logged]) -> None:
    daemon = logged()
    second = Restartable(settings=(f"message_log.path={daemon.root}",))
    with closing(second):
        with pytest.raises(AssertionError):
            second.start()
        assert any("another broker writes it" in line for line in second.complaints)
        third = Restartable(settings=(f"message_log.path={daemon.root}", "message_log.node=third"))
        with closing(third):
            third.start()


@pytest.mark.parametrize("fsync", ["ack", "interval"])
def test_log_disk_full(logged: Callable[..., Logged], tmp_path: Path, fsync: str) -> None:
    (tmp_path / "log").mkdir()
    with Disk(tmp_path / "log") as disk:
        daemon = logged(f"message_log.fsync={fsync}", "message_log.compress=no", disk=disk)
        client = daemon.client("c")
        assert publish(client, "before") == 0x10
        disk.write_error = errno.ENOSPC
        publish(client, "notices")
        until(lambda: "messages: cannot be written" in daemon.broker.log(), "it has not noticed")
        code = publish(client, "full")
        assert code == (0x97 if fsync == "ack" else 0x10)
        disk.write_error = 0
        until(lambda: publish(client, "after") == 0x10, "it is not written again")
        daemon.stop()
    logged_now = payloads(daemon.root)
    assert logged_now[0] == "before" and "after" in logged_now
    assert ("full" in logged_now) is (fsync == "interval"), "what was refused at once was never taken"
    assert offsets(daemon.root) == list(range(len(logged_now)))
    states = [line.get("st") for line in log_events(daemon.root) if "messages" in line.get("why", "messages")]
    assert states == ["opened", "degraded", "resumed"]
    daemon.broker.complaints.clear()


def publish(client: Any, payload: str) -> int:
    """QoS 1, to the end; the Reason Code."""
    return int(client.publish("t", payload.encode(), qos=1, reason=EVERY_CODE).reason_code)


def log_events(root: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path, _ in closed_segments(root, "events") for line in open_lines(path)]
    return [line for line in lines if line.get("ev") == "log"]


def test_a_lock_goes_with_its_process(logged: Callable[..., Logged]) -> None:
    daemon = logged()
    daemon.broker.kill()
    os.close(lock(daemon.root, "broker"))
