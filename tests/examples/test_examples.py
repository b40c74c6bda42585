"""Every file in examples/ is run, stays short, and does what its first lines say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import trustme

from broker import Broker, Config, HookBase, ReasonCode
from broker.packet.packets import Publish
from tests.peer import Peer, memory_broker, run_async
from tests.spark import jvm
from tests.spark.brokers import broker_with_dedup, read_all, subscribe

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
RUN_HERE = {
    "auth_and_acl": "test_auth_and_acl",
    "durable": "test_durable",
    "embed": "test_embed",
    "message_log": "test_message_log",
    "minimal": "test_minimal",
    "spark_alarms": "test_spark_alarms",
    "test_with_pytest": "test_in_your_pytest",
    "tls_and_websocket": "test_tls_and_websocket",
    "transform_payload": "test_transform_payload",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_alarms(tmp_path: Path) -> None:
    """Killed once, with a message that comes while it is away: every alarm is there once."""
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    with broker_with_dedup(tmp_path, f"message_log.path={log}", "message_log.compress=false") as broker:
        subscribe(broker.port, "alarms/#")
        found: list[Publish] = []
        command = [sys.executable, EXAMPLES / "spark_alarms.py", log, str(broker.port), checkpoint]
        environ = os.environ | {"PYTHONPATH": str(EXAMPLES.parent), **jvm.environment()}
        for number in range(2):
            oven = mosquitto_pub(broker.port)
            for temperature in (20, 101 + number, "hot"):
                oven("plant/oven", f'{{"temperature": {json.dumps(temperature)}}}')
            process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "running\n"
                found += wait_for_messages(broker.port)
                process.send_signal(signal.SIGTERM if number else signal.SIGKILL)
                assert process.wait(60) == (0 if number else -signal.SIGKILL)
            finally:
                process.kill()
                process.communicate()
        found += read_all(broker.port)
    assert [each.topic_name for each in found] == ["alarms/plant/oven"] * 2
    assert [json.loads(each.payload)["temperature"] for each in found] == [101, 102]


def mosquitto_pub(port: int) -> Callable[[str, str], None]:
    def publish(topic_name: str, message: str) -> None:
        command = ["mosquitto_pub", "-p", str(port), "-t", topic_name, "-m", message, "-q", "1"]
        subprocess.run(command, check=True, timeout=30)

    return publish


def wait_for_messages(port: int) -> list[Publish]:
    """What comes for the reader, at least one."""
    until = time.monotonic() + 100
    while not (found := read_all(port)):
        assert time.monotonic() < until, "no alarm"
    return found


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_example_has_a_test() -> None:
    assert {file.stem for file in FILES} == set(RUN_HERE)
    assert set(RUN_HERE.values()) <= set(globals())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_short(file: Path) -> None:
    assert file.read_text().count("\n") < 60


def test_durable(tmp_path: Path) -> None:
    """Three starts, two of them ended by SIGKILL."""
    for number in (1, 2, 3):
        process = subprocess.Popen(
            [sys.executable, EXAMPLES / "durable.py", tmp_path / "durable.db", "tcp://127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(
                f"start number {number}, listening on tcp://127.0.0.1:"
            )
        finally:
            process.kill()
            process.communicate(timeout=10)


def test_minimal() -> None:
    """Port 1883 may be taken on this machine: then it says so, and that is all it may do wrong."""
    process = subprocess.Popen([sys.executable, EXAMPLES / "minimal.py"], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            if process.poll() is not None or _answers(1883):
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode in (0, -signal.SIGINT) or "address already in use" in errors.lower()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_message_log() -> None:
    output = subprocess.run(
        [sys.executable, EXAMPLES / "message_log.py"], capture_output=True, text=True, timeout=20
    )
    assert output.returncode == 0, output.stderr
    lines = output.stdout.splitlines()
    assert lines[0].endswith(", 1)")
    assert lines[1:3] == ["0 home/kitchen/temperature 21.5", "1 home/kitchen/temperature 21.6"]
    assert lines[3] == "0 log opened"


def test_embed() -> None:
    output = subprocess.run(
        [sys.executable, EXAMPLES / "embed.py"], capture_output=True, text=True, timeout=20
    )
    assert output.returncode == 0, output.stderr
    lines = output.stdout.splitlines()
    assert lines[0].startswith("listening on tcp://127.0.0.1:")
    assert lines[1:] == [f"house/kitchen/temperature {celsius}" for celsius in ("19.5", "20.0", "20.5")]


@run_async
async def test_auth_and_acl() -> None:
    hook: HookBase = load("auth_and_acl").Users()
    async with memory_broker(hooks=[hook]) as broker:
        stranger, ada, grace = Peer(broker), Peer(broker), Peer(broker)
        refused = await stranger.connect("x", user_name="ada", password=b"wrong")
        assert refused.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        await ada.connect("a", user_name="ada", password=b"lovelace")
        await grace.connect("g", user_name="grace", password=b"hopper")
        suback = await ada.subscribe("users/ada/#", "public/#", "users/grace/#", qos=1)
        assert suback.reason_codes == [1, 1, ReasonCode.NOT_AUTHORIZED]
        assert await grace.publish("users/ada/inbox", b"x", qos=1) == ReasonCode.NOT_AUTHORIZED
        assert await grace.publish("users/grace/x", b"x", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS
        await broker.publish("public/notice", b"welcome")
        assert (await ada.expect(Publish)).payload == b"welcome"


@run_async
async def test_tls_and_websocket() -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "server.pem", Path(folder) / "server.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        made: Config = load("tls_and_websocket").config(str(certificate), str(key))
        assert [url.split(":")[0] for url in made.listen] == ["tcp", "tls", "wss"]
        free = [f"{url.split(':')[0]}://127.0.0.1:0" for url in made.listen]
        async with Broker(made, listen=free) as broker:
            context = ssl.create_default_context()
            authority.configure_trust(context)
            port = int(broker.addresses[1].rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(bytes.fromhex("10 0d 0004 4d515454 05 02 0000 00 0000"))
            assert (await reader.readexactly(1))[0] == 0x20
            writer.close()


@run_async
async def test_transform_payload() -> None:
    hook: HookBase = load("transform_payload").Celsius()
    async with memory_broker(hooks=[hook]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("sensors/#")
        peer.send(Publish("sensors/attic/fahrenheit", b"68"))
        got = await peer.expect(Publish)
        assert (got.topic_name, got.payload) == ("sensors/attic/celsius", b"20.0")
        code = await peer.publish("sensors/attic/fahrenheit", b"warm", qos=1)
        assert code == ReasonCode.PAYLOAD_FORMAT_INVALID


def test_in_your_pytest() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        EXAMPLES / "test_with_pytest.py",
    ]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert output.returncode == 0, output.stdout
