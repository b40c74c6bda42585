"""The broker inside a program: three lines, two brokers in one loop, and a look with a browser."""

from __future__ import annotations

import asyncio
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiomqtt import Client

from broker import Broker
from tests.end_to_end.certificates import Certificates
from tests.end_to_end.conftest import Serve
from tests.end_to_end.paho import Paho
from tests.end_to_end.process import ROOT
from tests.end_to_end.running import LISTEN, WAIT

THREE_LINES = """
import asyncio
from broker import Broker
asyncio.run(Broker(listen="unix:{path}").serve())
"""


def answers(path: Path) -> bool:
    """Whether somebody listens there: the file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_three_lines_are_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-c", THREE_LINES.format(path=path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + WAIT
            while not answers(path):
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline, "it does not listen"
                time.sleep(0.01)
            client = Paho("me", transport="unix")
            assert client.connect(str(path), 1).reason == 0
            client.subscribe("hello")
            client.publish("hello", b"world", 2)
            assert client.payloads(1) == [b"world"]
            client.close()
            process.send_signal(2)
            assert process.wait(WAIT) != 0  # a program without signal handling: KeyboardInterrupt
            errors = process.stderr.read()
            assert errors.rstrip().endswith("KeyboardInterrupt")
            assert "never retrieved" not in errors
            assert not path.exists()
        finally:
            process.kill()


@asynccontextmanager
async def client_of(broker: Broker, topic_filter: str) -> AsyncIterator[Client]:
    async with Client("127.0.0.1", urlsplit(broker.addresses[0]).port) as client:
        await client.subscribe(topic_filter)
        yield client


def test_two_brokers_in_one_loop_know_nothing_of_each_other() -> None:
    async def run() -> None:
        async with (
            Broker(listen=LISTEN["tcp"]) as one,
            Broker(listen=LISTEN["tcp"]) as two,
            client_of(two, "#") as second,
        ):
            async with client_of(one, "#") as first:
                for broker, name in ((one, b"one"), (two, b"two")):
                    await broker.publish("name", name, retain=True)
                assert (await anext(aiter(first.messages))).payload == b"one"
                assert (await anext(aiter(second.messages))).payload == b"two"
                assert len(first.messages) == 0
            await one.stop()
            await two.publish("name", b"still here")
            assert (await anext(aiter(second.messages))).payload == b"still here"
            assert len(second.messages) == 0
            assert (len(one.clients), len(two.clients)) == (0, 1)

    asyncio.run(asyncio.wait_for(run(), WAIT))


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_browser_is_told_what_is_here(serve: Serve, certificates: Certificates, scheme: str) -> None:
    running = serve(scheme)
    host, port = "127.0.0.1", running.port(scheme)
    if scheme == "ws":
        connection = http.client.HTTPConnection(host, port, timeout=WAIT)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=WAIT, context=certificates.context())
    for path, status, upgrade in (("/mqtt", 426, "websocket"), ("/", 404, None)):
        connection.request("GET", path)  # opens a connection of its own each time
        answer = connection.getresponse()
        text = answer.read().decode()
        assert (answer.status, answer.headers["Upgrade"]) == (status, upgrade)
        assert answer.headers.get_content_type() == "text/plain"
        assert "MQTT over WebSocket" in text and "/mqtt" in text
        if status == 426:
            assert f"{scheme}://HOST:{port}/mqtt" in text
    connection.close()
