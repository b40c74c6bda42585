"""The contract of hooks: transforming hooks."""

from __future__ import annotations

from typing import Any

import pytest

from broker import Message, ReasonCode, Version
from broker.packet.packets import Publish
from tests.hook.made import QUICK, boom, hangs, hook
from tests.peer import Peer, memory_broker, run_async


@pytest.mark.parametrize("qos", [0, 1, 2])
@run_async
async def test_27__on_publish_received_gives_the_message_to_use(qos: int) -> None:
    def change(client: Any, message: Message) -> Message:
        return message.with_(topic_name="x/" + message.topic_name, payload=message.payload.upper())

    def bad(client: Any, message: Message) -> Message:
        return message.with_(topic_name=message.topic_name.replace("hash", "#"))

    async with memory_broker(
        hooks=[hook(on_publish_received=change), hook(on_publish_received=bad)]
    ) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await peer.connect("p")
        await watcher.connect("w")
        await watcher.subscribe("#")
        assert await peer.publish("t", b"abc", qos=qos, retain=True) == 0
        live = await watcher.expect(Publish)
        assert (live.topic_name, live.payload) == ("x/t", b"ABC")
        await watcher.subscribe("x/t")
        assert (await watcher.expect(Publish)).retain
        if qos:
            assert await peer.publish("hash", qos=qos) == ReasonCode.TOPIC_NAME_INVALID
        await watcher.expect_nothing()


@pytest.mark.parametrize("failure", [boom, hangs, lambda *args: None])
@run_async
async def test_28__on_publish_received_that_fails_refuses(failure: Any) -> None:
    async with memory_broker(QUICK, hooks=[hook(on_publish_received=failure)]) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        await peer.subscribe("t")
        assert await peer.publish("t", qos=1) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


@run_async
async def test_29__on_publish_deliver_changes_one_copy() -> None:
    order: list[str] = []

    def deliver(client_id: str, message: Message) -> Message:
        order.append(client_id)
        return message.with_(payload=client_id.encode())

    def read(client_id: str, topic_name: str) -> bool:
        return client_id != "c"

    async with memory_broker(hooks=[hook(on_publish_deliver=deliver), hook(can_read=read)]) as broker:
        peers = {name: Peer(broker) for name in "abc"}
        for name, peer in peers.items():
            await peer.connect(name)
            await peer.subscribe("t", qos=1)
        await broker.publish("t", b"x", qos=1)
        for name in "ab":
            assert (await peers[name].expect(Publish)).payload == name.encode()
        await peers["c"].expect_nothing()
    assert sorted(order) == ["a", "b"]


@pytest.mark.parametrize("failure", [boom, lambda *args: None, lambda *args: "text"])
@run_async
async def test_30__on_publish_deliver_that_fails_drops_the_copy(failure: Any) -> None:
    drops: list[Any] = []
    hooks = [
        hook(on_publish_deliver=lambda client_id, message: failure() if client_id == "c" else message),
        hook(on_dropped=lambda client_id, message, reason: drops.append((client_id, reason))),
    ]
    async with memory_broker(hooks=hooks) as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        await other.connect("o")
        await other.subscribe("t")
        await broker.publish("t")
        await other.expect(Publish)
        await peer.expect_nothing()
    assert drops == [("c", "hook_failed")]


def test_31__a_changed_message_is_another_one() -> None:
    message = Message("t", b"x")
    head, _ = message.frame(Version.MQTT_5, 0, False)
    changed = message.with_(payload=b"y")
    assert (message.payload, changed.payload) == (b"x", b"y")
    assert changed.frame(Version.MQTT_5, 0, False)[0] != head == message.frame(Version.MQTT_5, 0, False)[0]
