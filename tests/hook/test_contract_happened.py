"""The contract of hooks: what has happened, told at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker import Message, NotAuthorized, SubscribeRequest
from broker.packet.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.hook.made import boom, hook
from tests.peer import Clock, Peer, memory_broker, run_async, settle


async def follow(event: str) -> list[Any]:
    """What a hook with *event* hears of one message of each QoS, one that is refused, and a retained one."""
    seen: list[Any] = []

    def note(who: str, message: Message, *codes: int) -> None:
        seen.append((who, message.topic_name, *codes))

    async with memory_broker(hooks=[hook(**{event: note})]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await broker.publish("0", b"x", retain=True)
        await peer.subscribe("#", qos=2)
        await peer.expect(Publish)
        await broker.publish("1", b"", qos=1)
        peer.send(Puback((await peer.expect(Publish)).packet_id, 0x80))
        await broker.publish("2", b"", qos=2)
        packet_id = (await peer.expect(Publish)).packet_id
        peer.send(Pubrec(packet_id))
        await peer.expect(Pubrel)
        peer.send(Pubcomp(packet_id))
        await broker.publish("refused", b"", qos=2)
        peer.send(Pubrec((await peer.expect(Publish)).packet_id, 0x97))
        await peer.expect_nothing()
    return seen


@run_async
async def test_47__on_delivered_once_for_each_publish() -> None:
    assert await follow("on_delivered") == [("c", "0", 0), ("c", "1", 1), ("c", "2", 2), ("c", "refused", 2)]


@run_async
async def test_48__on_acknowledged_once_at_the_end() -> None:
    assert await follow("on_acknowledged") == [
        ("c", "1", 1, 0x80),
        ("c", "2", 2, 0),
        ("c", "refused", 2, 0x97),
    ]


@run_async
async def test_49__on_connack_once_for_each_connection_that_was_answered() -> None:
    seen: list[Any] = []
    told = hook(
        on_connack=lambda info, code, present: seen.append(
            (info.client_id, code, present, info.keep_alive, info.session_expiry_interval)
        ),
        on_connect=lambda info, packet: boom() if info.client_id == "bad" else None,
    )
    async with memory_broker(hooks=[told]) as broker:
        for present in (False, True):
            peer = Peer(broker)
            await peer.connect(
                "c", clean_start=False, keep_alive=9, properties={"session_expiry_interval": 60}
            )
            assert seen.pop() == ("c", 0, present, 9, 60)
            peer.drop()
            await settle(broker, "c")
        bad, rubbish, silent = Peer(broker), Peer(broker), Peer(broker)
        assert (await bad.connect("bad")).reason_code == 0x83
        await bad.expect_end()
        rubbish.send_raw(b"\x10\x00")
        await rubbish.expect_end()
        silent.drop()
        for _ in range(10):
            await asyncio.sleep(0)
    assert seen == [("bad", 0x83, False, 0, 0), ("", 0x84, False, 0, 0)]


@run_async
async def test_50__on_session_at_each_change() -> None:
    seen: list[Any] = []
    clock = Clock()
    told = hook(on_session=lambda who, state, waiting: seen.append((who, state, waiting)))
    async with memory_broker(hooks=[told], clock=clock) as broker:
        kept: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 10}}
        first, second = Peer(broker), Peer(broker)
        await first.connect("c", **kept)
        await first.subscribe("t", qos=1)
        await second.connect("c", **kept)
        second.drop()
        await settle(broker, "c")
        await broker.publish("t", b"", qos=1)
        clock.now += 11
        await broker.sweep()
        await Peer(broker).connect("d")
        await broker.delete_session("d")
    assert seen == [
        ("c", "created", 0),
        ("c", "taken_over", 0),
        ("c", "resumed", 0),
        ("c", "expired", 1),
        ("d", "created", 0),
        ("d", "ended", 0),
    ]


@run_async
async def test_51__on_subscribed_and_on_unsubscribed_with_their_codes() -> None:
    seen: list[Any] = []

    def allow(client: Any, request: SubscribeRequest) -> SubscribeRequest:
        if request.topic_filter == "secret":
            raise NotAuthorized("no")
        return SubscribeRequest(request.topic_filter, min(1, request.qos))

    told = hook(
        on_subscribe=allow,
        on_subscribed=lambda info, request, code, number: seen.append(
            (info.client_id, request.topic_filter, request.qos, code, number)
        ),
        on_unsubscribed=lambda info, topic_filter, code: seen.append((info.client_id, topic_filter, code)),
    )
    async with memory_broker(hooks=[told]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        requests = [SubscribeRequest("a", 2), SubscribeRequest("secret", 2)]
        peer.send(Subscribe(1, requests, {"subscription_identifier": 7}))
        await peer.expect(Suback)
        peer.send(Unsubscribe(2, ["a", "b"]))
        await peer.expect(Unsuback)
    assert seen == [("c", "a", 1, 1, 7), ("c", "secret", 2, 0x87, 7), ("c", "a", 0), ("c", "b", 0x11)]


@run_async
async def test_52__sys_values_of_hooks(caplog: pytest.LogCaptureFixture) -> None:
    hooks = [hook(sys_values=lambda: {"log/written": 5}), hook(sys_values=boom)]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("$SYS/broker/log/#")
        found = await peer.expect(Publish)
        assert (found.topic_name, found.payload) == ("$SYS/broker/log/written", b"5")
    assert "failed in sys_values" in caplog.text


@run_async
async def test_53__the_mark_of_a_message_is_there_when_it_is_heard_of_again() -> None:
    seen: list[Any] = []

    def mark(client: Any, message: Message, dup: bool, origin: str) -> None:
        message.mark = len(seen)
        seen.append(message.mark)

    told = hook(
        on_taken=mark,
        on_publish_deliver=lambda who, message: message.with_(payload=b"copy"),
        on_delivered=lambda who, message, qos: seen.append((message.mark, message.payload)),
    )
    async with memory_broker(hooks=[told]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t", qos=1)
        assert await peer_publish(peer) == 0
    assert seen == [0, (0, b"copy")]


async def peer_publish(peer: Peer) -> int:
    """PUBLISH at QoS 1 to the peer itself; the Reason Code of the PUBACK, whichever comes first."""
    peer.send(Publish("t", b"x", 1, packet_id=1))
    found = [await peer.recv(), await peer.recv()]
    return next(packet.reason_code for packet in found if isinstance(packet, Puback))


@run_async
async def test_54__what_is_known_of_a_connection_that_has_ended() -> None:
    seen: dict[str, Any] = {}

    def note(info: Any, reason: int, text: str) -> None:
        seen[info.client_id] = info

    async with memory_broker(hooks=[hook(on_disconnect=note, on_taken=lambda *args: None)]) as broker:
        left, lost, ended = Peer(broker), Peer(broker), Peer(broker)
        for name, peer in (("left", left), ("lost", lost), ("ended", ended)):
            await peer.connect(name)
        await left.subscribe("t")
        left.send(Publish("t", b"x" * 100), Publish("other", b""))
        await left.expect(Publish)
        left.send(Disconnect(0x04))
        lost.drop()
        await broker.disconnect("ended")
        for name in ("left", "lost", "ended"):
            await settle(broker, name)
        for _ in range(10):
            await asyncio.sleep(0)
    assert {name: info.ended_by for name, info in seen.items()} == {
        "left": "client",
        "lost": "network",
        "ended": "server",
    }
    info = seen["left"]
    assert (info.publish_received, info.publish_sent) == (2, 1)
    assert info.bytes_received > 100 and 100 < info.bytes_sent < info.bytes_received
