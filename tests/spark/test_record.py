"""`spark.tools.record` beside mosquitto: what was acknowledged is in the log, whoever is killed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.log.listing import Log
from spark.mqtt.line import Line, Window
from spark.mqtt.options import Address
from spark.session import ROOT
from spark.tools.record import address_of, main, parser
from tests.faults.daemon import free_port
from tests.spark.brokers import broker_with_dedup

WAIT = 30.0  # seconds


@contextlib.contextmanager
def mosquitto(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    config = folder / "mosquitto.conf"
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0", "log_dest none"]
    config.write_text("\n".join(lines) + "\n")
    path = os.environ["PATH"] + ":/usr/sbin"  # where Debian has it
    program = shutil.which("mosquitto", path=path)
    assert program is not None, "tests/install.sh installs mosquitto"
    process = subprocess.Popen([program, "-c", str(config)])
    try:
        until = time.monotonic() + WAIT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < until and process.poll() is None, "mosquitto does not start"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait(10)


def start(log: Path, port: int, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spark.tools.record", "--broker", f"127.0.0.1:{port}", "--filter", "t/#"]
    command += ["--log", str(log), "--node", "edge", *flags]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def publish(port: int, numbers: range, **properties: Any) -> None:
    """All of them are acknowledged by the broker when this returns."""
    with Line(Address(port=port)) as line:
        line.connect("publisher")
        window = Window(line, 100)
        for n in numbers:
            window.publish(f"t/{n % 3}", b"%d" % n, 1, False, dict(properties))
        window.settle()


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Every record, in order; closed segments alone."""
    found = []
    for segment in sorted(Log(str(log), "messages").segments(), key=lambda each: (each.epoch, each.first)):
        found += [json.loads(line) for line in Path(segment.path).read_bytes().splitlines()]
    return found


def numbers_of(log: Path) -> Counter[int]:
    return Counter(int(base64.b64decode(line["p"])) for line in lines_of(log))


def wait_for_session(port: int, log: Path) -> None:
    """Until a message comes through: then it is subscribed."""
    until = time.monotonic() + WAIT
    while not any(path.stat().st_size for path in log.glob("v1/open/kind=messages/edge.*")):
        assert time.monotonic() < until, "the recorder does not record"
        publish(port, range(-1, 0))
        time.sleep(0.1)


def test_every_record_and_what_it_says(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with mosquitto(tmp_path, port):
        recorder = start(log, port, "--segment-seconds", "1")
        wait_for_session(port, log)
        publish(port, range(500), content_type="text/plain", user_property=[("a", "1"), ("a", "2")])
        time.sleep(0.5)
        recorder.send_signal(signal.SIGTERM)
        out, err = recorder.communicate(timeout=WAIT)
        assert recorder.returncode == 0, err
    said = json.loads(out.splitlines()[-1])
    found = numbers_of(log)
    del found[-1]
    assert found == Counter(range(500))
    line = lines_of(log)[-1]
    assert (line["t"], line["q"], line["r"], line["ct"]) == ("t/1", 1, 0, "text/plain")
    assert line["up"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    assert "c" not in line and "u" not in line
    assert [each["o"] for each in lines_of(log)] == list(range(said["recorded"]))
    assert said["acknowledged"] == said["recorded"] and said["repeated"] == 0
    assert said["synced"][1] == said["recorded"] - 1


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_record_kill9(protocol: str, tmp_path: Path) -> None:
    """Killed at random while messages come: none is lost, and those that are there twice have DUP."""
    port, log, rng = free_port(), tmp_path / "log", random.Random(7)
    flags = ("--protocol", protocol, "--segment-seconds", "0.5")
    with mosquitto(tmp_path, port):
        recorder = start(log, port, *flags)
        wait_for_session(port, log)
        for round in range(6):
            killer = threading.Timer(rng.uniform(0.01, 0.1), recorder.kill)
            killer.start()
            publish(port, range(2000 * round, 2000 * round + 1000))
            killer.join()
            recorder.communicate(timeout=WAIT)
            publish(port, range(2000 * round + 1000, 2000 * round + 2000))  # while it is away
            recorder = start(log, port, *flags)
            time.sleep(rng.uniform(0.3, 0.8))
        recorder.kill()
        recorder.communicate(timeout=WAIT)
        last = start(log, port, *flags, "--idle", "2")
        _, err = last.communicate(timeout=WAIT)
        assert last.returncode == 0, err
    found = numbers_of(log)
    assert found.keys() - {-1} == set(range(12_000))
    repeated = sum(line["d"] for line in lines_of(log))
    assert sum(found.values()) - len(found) <= repeated + found[-1]


def test_the_broker_goes_and_comes_back(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with mosquitto(tmp_path, port):
        recorder = start(log, port)
        wait_for_session(port, log)
    with mosquitto(tmp_path, port):  # with nothing that it remembers
        until = time.monotonic() + WAIT
        while 7 not in numbers_of_open(log):
            assert time.monotonic() < until
            publish(port, range(7, 8))
            time.sleep(0.2)
        recorder.terminate()
        _, err = recorder.communicate(timeout=WAIT)
    assert recorder.returncode == 0
    assert "closed the connection" in err or "connection to" in err
    assert "the broker has forgotten the session" in err


def numbers_of_open(log: Path) -> set[int]:
    files = log.glob("v1/open/kind=messages/edge.*")
    lines = [line for file in files for line in file.read_bytes().splitlines() if line.endswith(b"}")]
    return {int(base64.b64decode(json.loads(line)["p"])) for line in lines}


def test_two_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, log = free_port(), tmp_path / "log"
    with mosquitto(tmp_path, port):
        recorder = start(log, port)
        wait_for_session(port, log)
        flags = ["--broker", f"127.0.0.1:{port}", "--filter", "#", "--log", str(log), "--node", "edge"]
        assert main(flags) == 3
        assert "another broker writes it as node 'edge'" in capsys.readouterr().err
        recorder.terminate()
        recorder.communicate(timeout=WAIT)


@pytest.mark.parametrize(
    ("broker", "host", "port"),
    [("h", "h", 1883), ("h:1884", "h", 1884), ("[::1]:1884", "::1", 1884), ("::1", "::1", 1883)],
)
def test_addresses(broker: str, host: str, port: int) -> None:
    address = address_of(parser().parse_args(["--broker", broker, "--filter", "#", "--log", "x"]))
    assert (address.host, address.actual_port) == (host, port)


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--broker", "h:x"], 2, "--broker 'h:x': HOST or HOST:PORT, such as broker.example:1883"),
        (["--broker", "mqtt://h"], 2, "--broker 'mqtt://h': HOST or HOST:PORT"),
        (["--broker", "h:70000"], 2, "from 0 to 65535"),
        (["--node", "a b"], 2, "--node 'a b': 1 to 64 letters, digits"),
        (["--session", "-5"], 2, "--session -5: seconds, from 1"),
        (["--segment-seconds", "0"], 2, "--segment-seconds 0: more than 0"),
        (["--password-file", "p"], 2, "--password-file needs --username"),
        (["--username", "u", "--password-file", "/nowhere/p"], 3, "No such file or directory: '/nowhere/p'"),
        (["--ca", "/nowhere/ca.pem"], 3, "No such file or directory: '/nowhere/ca.pem'"),
        (["--ca", __file__], 3, "test_record.py is no PEM file of authorities"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, says: str
) -> None:
    assert main(["--broker", "h", "--filter", "#", "--log", str(tmp_path / "log"), *flags]) == code
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_client_of_the_same_name_ends_it(tmp_path: Path) -> None:
    with broker_with_dedup(tmp_path) as broker:
        recorder = start(tmp_path / "log", broker.port)
        wait_for_session(broker.port, tmp_path / "log")
        with Line(Address(port=broker.port)) as line:
            line.connect("recorder-edge")
            _, err = recorder.communicate(timeout=WAIT)
    assert recorder.returncode == 3 and "ended the connection with 0x8E" in err


def test_secrets_come_from_a_file_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTT_PASSWORD", "hunter2")
    flags = ["--broker", "h:x", "--filter", "#", "--log", "x", "--username", "u"]
    with pytest.raises(ValueError):
        address_of(parser().parse_args(flags))
    assert main(flags) == 2
    flags[1] = "h"
    assert address_of(parser().parse_args(flags)).secret() == b"hunter2"
    assert not any("password" in option and "file" not in option for option in parser().format_help().split())
