"""The contract of hooks: retained messages, and what no hook is asked about."""

from __future__ import annotations

from typing import Any

from broker import Message, QuotaExceeded, ReasonCode
from broker.packet.packets import Disconnect, Publish, Pubrec, Pubrel
from tests.hook.made import boom, hook, recorder
from tests.peer import Clock, Peer, memory_broker, run_async


@run_async
async def test_37__store_retained_first_provider() -> None:
    stored: list[Any] = []

    async def store(message: Message) -> None:
        if message.topic_name == "full":
            raise QuotaExceeded("full")
        if message.topic_name == "fails":
            boom()
        stored.append((message.topic_name, message.payload))

    second: list[str] = []
    async with memory_broker(
        hooks=[hook(store_retained=store), recorder(second, "b", "store_retained")]
    ) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("+")
        await peer.connect("p")
        assert await peer.publish("t", b"x", qos=1, retain=True) == 0
        assert await peer.publish("t", b"", qos=2, retain=True) == 0
        assert await peer.publish("full", b"x", qos=1, retain=True) == ReasonCode.QUOTA_EXCEEDED
        assert await peer.publish("fails", b"x", qos=1, retain=True) == 0x83
        peer.send(Publish("full", b"x", 2, True, packet_id=9), Pubrel(9))
        await peer.expect(Pubrec)
        assert (await peer.expect(Disconnect)).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert [(await watcher.expect(Publish)).topic_name for _ in range(2)] == ["t", "t"]
        await watcher.expect_nothing()
    assert stored == [("t", b"x"), ("t", b"")]
    assert second == []


@run_async
async def test_38__get_retained_first_provider() -> None:
    clock = Clock()

    async def find(topic_filter: str) -> list[Message]:
        if topic_filter == "fails":
            boom()
        return [Message("t", b"new", 1), Message("t", b"old", expires_at=clock.now - 1)]

    second: list[str] = []
    hooks = [hook(get_retained=find), recorder(second, "b", "get_retained")]
    async with memory_broker(hooks=hooks, clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        got = await peer.expect(Publish)
        assert (got.payload, got.retain, got.qos) == (b"new", True, 0)
        assert (await peer.subscribe("fails")).reason_codes == [0]
        await peer.expect_nothing()
    assert second == []


@run_async
async def test_39__the_program_is_not_asked() -> None:
    asked: list[str] = []
    events = ("on_publish", "on_publish_received", "can_read", "on_publish_deliver")
    async with memory_broker(hooks=[recorder(asked, "a", *events)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        await broker.publish("t", b"x")
        await peer.expect(Publish)
    assert asked == ["a.can_read", "a.on_publish_deliver"]
