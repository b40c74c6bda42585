"""Twenty thousand messages through the daemon, in order. Nothing is timed here: see benchmarks/."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from paho.mqtt.client import MQTTv311

from tests.end_to_end.gmqtt import Client
from tests.end_to_end.paho import Paho
from tests.end_to_end.process import FREE, daemon

COUNT = 20_000
PATIENCE = 90.0  # seconds


@pytest.fixture
def port() -> Iterator[int]:
    """A daemon whose sessions hold as much as a publisher can be ahead of a subscriber."""
    settings = ("--set", f"limits.maximum_queued_messages={COUNT}", "--log-level", "warning")
    with daemon(*FREE, *settings) as process:
        yield process.port()
        process.process.terminate()
        assert process.end()[::2] == (0, "")


def test_paho(port: int) -> None:
    subscriber, publisher = Paho("sub", MQTTv311), Paho("pub", MQTTv311)
    for client in (subscriber, publisher):
        client.client.max_inflight_messages_set(1000)
        assert client.connect("127.0.0.1", port).reason == 0
    subscriber.subscribe("numbers", 1)
    infos = [publisher.client.publish("numbers", str(number), 1) for number in range(COUNT)]
    infos[-1].wait_for_publish(PATIENCE)
    assert [int(payload) for payload in subscriber.payloads(COUNT)] == list(range(COUNT))
    assert all(info.is_published() for info in infos)
    subscriber.nothing_more()
    for client in (subscriber, publisher):
        client.close()


def test_gmqtt(port: int) -> None:
    """gmqtt sends as fast as it is told to, so this keeps within the Receive Maximum of 1024."""

    async def run() -> None:
        subscriber, publisher = Client("sub"), Client("pub")
        for client in (subscriber, publisher):
            await client.connect(port)
        await subscriber.subscribe("numbers", 1)
        got: list[int] = []
        async with asyncio.timeout(PATIENCE):
            for number in range(COUNT):
                publisher.client.publish("numbers", str(number), 1)
                if number % 500 == 499:
                    got += map(int, await subscriber.payloads(500))
        assert got == list(range(COUNT))
        await subscriber.nothing_more()
        for client in (subscriber, publisher):
            await client.close()

    asyncio.run(run())
