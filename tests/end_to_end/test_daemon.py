"""`pybroker` as a process: what it prints, how it ends, and what a bad start says."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
from pathlib import Path

import pytest

from tests.end_to_end.process import FREE, WAIT, daemon

CONNECT = bytes.fromhex("10 0d 0004 4d515454 04 02 003c 0001")  # 3.1.1; one byte of client_id follows
CONNACK = bytes.fromhex("20 02 00 00")
SUBSCRIBE = bytes.fromhex("82 06 0001 0001 23 00")  # "#" at QoS 0
SUBACK = bytes.fromhex("90 03 0001 00")
PUBLISH = bytes.fromhex("30 838020 0001 61") + bytes(1 << 19)  # "a" at QoS 0
PINGREQ, PINGRESP = bytes.fromhex("c0 00"), bytes.fromhex("d0 00")
DISCONNECT = bytes.fromhex("e0 00")


def connected(port: int, client_id: bytes = b"a") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), WAIT)
    client.sendall(CONNECT + client_id)
    assert read(client, len(CONNACK)) == CONNACK
    return client


def read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := client.recv(size - len(data))):
        data += chunk
    return data


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("flags", [(), ("--set", "uvloop=true")], ids=["asyncio", "uvloop"])
def test_a_signal_stops_it_cleanly(number: signal.Signals, flags: tuple[str, ...]) -> None:
    with daemon("serve", *FREE, *flags) as pybroker:
        with connected(pybroker.port()) as client:
            pybroker.process.send_signal(number)
            assert read(client, 1) == b""
        status, _, errors = pybroker.end()
        assert status == 0
        assert f"{number.name}: stopping" in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("flags", [(), ("--set", "uvloop=true")], ids=["asyncio", "uvloop"])
def test_a_second_signal_forces_it(number: signal.Signals, flags: tuple[str, ...]) -> None:
    """The first one waits: a client takes nothing of what is queued for it, and the grace time is long."""
    patience = ("--set", "capacity.grace_time=3600", "--set", "limits.send_timeout=3600")
    with daemon(*FREE, *patience, *flags) as pybroker:
        port = pybroker.port()
        with connected(port, b"a") as subscriber, connected(port, b"b") as publisher:
            subscriber.sendall(SUBSCRIBE)
            assert read(subscriber, len(SUBACK)) == SUBACK
            for _ in range(48):  # more than the kernel takes for a socket that nobody reads
                publisher.sendall(PUBLISH)
            publisher.sendall(PINGREQ)
            assert read(publisher, len(PINGRESP)) == PINGRESP
            pybroker.process.send_signal(number)
            pybroker.until(pybroker.err, f"{number.name}: stopping")
            pybroker.process.send_signal(number)
            assert pybroker.end()[0] == 128 + number


def test_it_prints_each_address_and_a_hint(tmp_path: Path) -> None:
    flags = [*FREE, "--listen", "ws://127.0.0.1:0/mqtt", "--listen", f"unix:{tmp_path}/s"]
    with daemon(*flags) as pybroker:
        lines = [pybroker.out.get(timeout=WAIT) for _ in range(5)]
        machine = "clients of this machine, without authentication"
        assert re.fullmatch(rf"listening on tcp://127\.0\.0\.1:[1-9]\d* for {machine}\n", lines[0])
        assert re.fullmatch(rf"listening on ws://127\.0\.0\.1:[1-9]\d*/mqtt for {machine}\n", lines[1])
        assert lines[2] == f"listening on unix:{tmp_path}/s for {machine}\n"
        assert lines[3] == "sessions and messages are kept in memory: a restart loses them\n"
        assert re.fullmatch(r"try: mosquitto_pub -h 127\.0\.0\.1 -p \d+ -t hello -m world\n", lines[4])
        pybroker.process.terminate()
        assert pybroker.end()[:2] == (0, "")


def test_its_store_is_a_file_in_its_data_folder(tmp_path: Path) -> None:
    environ = {"PYBROKER_STORE_PATH": "", "STATE_DIRECTORY": str(tmp_path / "data")}
    with daemon(*FREE, **environ) as pybroker:
        pybroker.until(pybroker.out, re.escape(f"kept in {tmp_path}/data/broker.db and survive a power loss"))
        assert (tmp_path / "data" / "broker.db").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "refused without authentication"),
        (("--set", "protocol.anonymous=everywhere"), "everybody who reaches it, without authentication"),
        (("--set", "protocol.anonymous=never"), "nobody: protocol.anonymous is never"),
    ],
)
def test_it_prints_who_may_connect(flags: tuple[str, ...], words: str) -> None:
    with daemon("--listen", "tcp://0.0.0.0:0", *flags) as pybroker:
        assert words in pybroker.out.get(timeout=WAIT)


def test_the_environment_and_a_file_set_it_up(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('listen = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0"]\n[log]\nlevel = "error"\n')
    with daemon(PYBROKER_CONFIG=str(path), PYBROKER_LOG_LEVEL="info", PYBROKER_LOG_FORMAT="json") as pybroker:
        ports = {pybroker.port(), pybroker.port()}
        assert len(ports) == 2
        pybroker.process.terminate()
        status, _, errors = pybroker.end()
        assert status == 0
        lines = [json.loads(line) for line in errors.splitlines()]
        assert "info" in {line["level"] for line in lines if line["message"].startswith("SIGTERM")}


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_for_each_connect_and_disconnect(form: str) -> None:
    with daemon(*FREE, "--log-format", form) as pybroker:
        with connected(pybroker.port()) as client:
            client.sendall(DISCONNECT)
            assert read(client, 1) == b""
        pybroker.process.terminate()
        _, _, errors = pybroker.end()
        about = [line for line in errors.splitlines() if re.search(r"\bconnected\b|disconnected", line)]
        assert len(about) == 2
        if form == "json":
            assert [json.loads(line)["level"] for line in about] == ["info", "info"]


@pytest.mark.parametrize("command", ["serve", "check"])
def test_an_unknown_key_is_status_2(tmp_path: Path, command: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[limits]\nrecieve_maximum = 10\n")
    with daemon(command, "--config", str(path)) as pybroker:
        nearest = "limits.recieve_maximum is no setting; the nearest is limits.receive_maximum"
        assert pybroker.end() == (2, "", f"pybroker: {path}: {nearest}\n")


def test_an_address_in_use_is_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with daemon("--listen", url) as pybroker:
            status, output, errors = pybroker.end()
    assert (status, output) == (1, "")
    assert url in errors and "in use" in errors and "--listen" in errors
    assert errors.startswith("pybroker: ") and errors.count("\n") == 1


def test_check_starts_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with daemon("check", "--listen", url) as pybroker:
            status, output, errors = pybroker.end()
    assert (status, errors) == (0, "")
    assert output.startswith(f"would listen on {url} for ")


def test_it_uses_as_many_descriptors_as_it_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with daemon(*FREE) as running:
            running.port()
            assert resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
