"""gmqtt, which speaks MQTT without paho underneath, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from gmqtt.mqtt.handler import MQTTConnectError

from tests.end_to_end.certificates import Certificates
from tests.end_to_end.conftest import Serve
from tests.end_to_end.gmqtt import Client
from tests.end_to_end.running import WAIT, Recorder, Running

VERSIONS = pytest.mark.parametrize("version", [MQTTv311, MQTTv50], ids=["mqtt 3.1.1", "mqtt 5"])


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Runs *test* within WAIT seconds."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT):
            await test()

    asyncio.run(bounded())


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
@VERSIONS
def test_messages_go_both_ways(serve: Serve, certificates: Certificates, version: int, scheme: str) -> None:
    running = serve(scheme)
    port, ssl = running.port(scheme), certificates.context() if scheme == "tls" else False

    async def test() -> None:
        subscriber, publisher = Client("sub", version), Client("pub", version)
        for client in (subscriber, publisher):
            assert not await client.connect(port, ssl)
        for qos in range(3):
            assert await subscriber.subscribe(f"a/{qos}/+", qos) == (qos,)
        for granted in range(3):
            for qos in range(3):
                publisher.client.publish(f"a/{granted}/{qos}", bytes(100_000), qos)
                topic, payload, received, props = (await subscriber.take(1))[0]
                assert (topic, len(payload), received) == (f"a/{granted}/{qos}", 100_000, min(granted, qos))
                assert (props["dup"], props["retain"]) == (0, 0)
        subscriber.client.unsubscribe("a/0/+")
        await subscriber.subacks.get()
        publisher.client.publish("a/0/0", b"to nobody")
        await subscriber.nothing_more()
        for client in (subscriber, publisher):
            await client.close()

    run(test)


@VERSIONS
def test_retained_and_will(broker: Running, version: int) -> None:
    async def test() -> None:
        will = gmqtt.Message("status", b"lost", qos=1, retain=True)
        client = Client("me", version, will_message=will)
        await client.connect(broker.port())
        client.client.publish("status", b"here", qos=1, retain=True)
        watcher = Client("watcher", version)
        await watcher.connect(broker.port())
        await watcher.subscribe("status")
        client.client.stop_reconnect()
        await asyncio.to_thread(broker.run, broker.broker.disconnect("me"))
        found = await watcher.take(2)
        assert [(payload, props["retain"]) for _, payload, _, props in found] == [(b"here", 1), (b"lost", 0)]
        late = Client("late", version)
        await late.connect(broker.port())
        await late.subscribe("status")
        assert [(payload, props["retain"]) for _, payload, _, props in await late.take(1)] == [(b"lost", 1)]
        for each in (watcher, late, client):
            await each.close()

    run(test)


def lasting(version: int) -> dict[str, Any]:
    return {"clean": False} | ({"session_expiry_interval": 3600} if version == MQTTv50 else {})


@VERSIONS
def test_a_subscriber_gets_again_what_it_did_not_acknowledge(broker: Running, version: int) -> None:
    """Cut by the broker's program, gmqtt comes back by itself."""

    async def test() -> None:
        client = Client("me", version, optimistic_acknowledgement=False, **lasting(version))
        assert not await client.connect(broker.port())
        await client.subscribe("a", 2)
        hold = asyncio.Event()

        async def answer(payload: bytes) -> int:
            await hold.wait()
            return 0

        client.answer = answer
        for number in range(10):
            await asyncio.to_thread(broker.publish, "a", str(number), qos=1 + number % 2)
        assert [int(payload) for payload in await client.payloads(10)] == list(range(10))
        await asyncio.to_thread(broker.run, broker.broker.disconnect("me"))
        await asyncio.to_thread(broker.publish, "a", "10", qos=2)
        assert await client.connected()
        client.answer = None
        again = [(int(payload), bool(props["dup"])) for _, payload, _, props in await client.take(11)]
        assert again == [*((number, True) for number in range(10)), (10, False)]
        await client.nothing_more()
        await client.close()

    run(test)


@pytest.mark.parametrize("qos", [1, 2])
@VERSIONS
def test_a_publisher_that_loses_the_answers(serve: Serve, version: int, qos: int) -> None:
    """It sends again over the next connection: QoS 1 at least once, QoS 2 exactly once."""
    recorder = Recorder()
    running = serve(hooks=[recorder])
    relay = running.relay()
    wanted = [str(number).encode() for number in range(15)]

    async def test() -> None:
        subscriber = Client("sub", version)
        await subscriber.connect(running.port())
        await subscriber.subscribe("a")
        publisher = Client("pub", version, **lasting(version))
        await publisher.connect(relay.port)
        relay.muted.add("answers")
        for payload in wanted:
            publisher.client.publish("a", payload, qos)
        taken_in = "all of them, taken in"
        await asyncio.to_thread(running.wait_until, lambda: len(recorder.published) == len(wanted), taken_in)
        await asyncio.to_thread(relay.cut)
        assert await publisher.connected()
        times = 1 if qos == 2 else 2
        assert await subscriber.payloads(times * len(wanted)) == wanted * times
        await subscriber.nothing_more()
        await publisher.nothing_more()
        for client in (subscriber, publisher):
            await client.close()

    run(test)


def test_properties(broker: Running) -> None:
    sent = {
        "payload_format_id": 1,
        "message_expiry_interval": 1000,
        "content_type": "json",
        "response_topic": "answers",
        "correlation_data": b"\0\1",
        "user_property": [("k", "v"), ("k", "w")],
    }

    async def test() -> None:
        subscriber = Client("sub", topic_alias_maximum=2, receive_maximum=5)
        publisher = Client("pub")
        await subscriber.connect(broker.port())
        await publisher.connect(broker.port())
        assert publisher.announced["topic_alias_maximum"][0] > 0
        await subscriber.subscribe("a/#", 1, subscription_identifier=5)
        await subscriber.subscribe("a/+", 1, subscription_identifier=6, no_local=True)
        publisher.client.publish("a/b", b"{}", 1, topic_alias=1, **sent)
        for _ in range(3):
            publisher.client.publish("", b"by alias", 2, topic_alias=1)
        found = await subscriber.take(4)
        assert [(topic, payload) for topic, payload, _, _ in found] == [
            ("a/b", payload) for payload in (b"{}", b"by alias", b"by alias", b"by alias")
        ]
        props = found[0][3]
        assert 1000 - WAIT <= props["message_expiry_interval"][0] <= sent.pop("message_expiry_interval")
        for name, value in sent.items():
            assert props[name] == (value if isinstance(value, list) else [value]), name
        assert all(sorted(props["subscription_identifier"]) == [5, 6] for _, _, _, props in found)
        for client in (subscriber, publisher):
            await client.close()

    run(test)


def test_refusals(serve: Serve) -> None:
    open_to_all, closed = serve(), serve(anonymous="never")

    async def test() -> None:
        client = Client("me")
        await client.connect(open_to_all.port())
        for qos in range(3):
            client.client.publish("$SYS/mine", b"no", qos)
        await client.nothing_more()
        await client.close()
        stranger = Client("stranger")
        with pytest.raises(MQTTConnectError, match="Not authorized"):
            await stranger.connect(closed.port())

    run(test)
