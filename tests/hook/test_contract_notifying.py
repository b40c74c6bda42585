"""The contract of hooks: notifying hooks."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from broker import Message, ReasonCode
from broker.packet.packets import Connack, Connect, Disconnect, Will
from tests.hook.made import CONTRACT, boom, hook, recorder
from tests.peer import Clock, Peer, memory_broker, run_async, settle


@run_async
async def test_32__on_connected_once() -> None:
    calls: list[str] = []
    async with memory_broker(hooks=[recorder(calls, "a", "on_connected"), hook(on_connected=boom)]) as broker:
        peer = Peer(broker)
        assert (await peer.connect("c")).reason_code == 0
        await peer.expect_nothing()
        assert calls == ["a.on_connected"]


@run_async
async def test_33__on_disconnect_once_after_the_will() -> None:
    seen: list[Any] = []
    hooks = [
        hook(on_disconnect=lambda client, reason, text: seen.append((client.client_id, int(reason)))),
        hook(on_publish=lambda client, message: seen.append(message.topic_name)),
    ]
    clock = Clock()
    async with memory_broker(hooks=hooks, clock=clock) as broker:
        normal, kept = Peer(broker), Peer(broker)
        await normal.connect("normal")
        normal.send(Disconnect())
        await settle(broker, "normal")
        await kept.connect("idle", keep_alive=10, will=Will("will", b""))
        clock.now += 15
        await broker.sweep()
        assert (await kept.expect(Disconnect)).reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT
        await settle(broker, "idle")
        refused, broken = Peer(broker), Peer(broker)
        refused.send_raw(b"\x10\x00")
        await refused.expect_end()
        await broken.connect("broken")
        broken.send(Connect("broken"))
        await broken.expect(Disconnect)
    assert seen == [("normal", 0), "will", ("idle", 0x8D), ("broken", 0x82)]


@run_async
async def test_33__on_disconnect_after_the_will_of_a_connection_that_was_taken_over() -> None:
    seen: list[str] = []
    gate = asyncio.Event()

    async def slow(client: Any, message: Message) -> None:
        seen.append("asked")
        await gate.wait()
        seen.append("will")

    hooks = [hook(on_publish=slow, on_disconnect=lambda *args: seen.append("disconnect"))]
    async with memory_broker(hooks=hooks) as broker:
        old, new = Peer(broker), Peer(broker)
        await old.connect("c", will=Will("will", b""))
        new.send(Connect("c"))
        assert (await old.expect(Disconnect)).reason_code == ReasonCode.SESSION_TAKEN_OVER
        for _ in range(50):
            await asyncio.sleep(0)
        assert seen == ["asked"]
        gate.set()
        await new.expect(Connack)
        await new.expect_nothing()
        assert seen == ["asked", "will", "disconnect"]


@run_async
async def test_34__created_or_resumed_before_connected() -> None:
    calls: list[str] = []
    events = ("on_session_created", "on_session_resumed", "on_connected")
    async with memory_broker(hooks=[recorder(calls, "a", *events)]) as broker:
        for clean in (True, False):
            peer = Peer(broker)
            await peer.connect("c", clean_start=clean, properties={"session_expiry_interval": 60})
            await peer.expect_nothing()
    assert calls == [f"a.{event}" for event in (events[0], events[2], events[1], events[2])]


@run_async
async def test_35__on_session_ended_once() -> None:
    ended: list[str] = []
    clock = Clock()
    async with memory_broker(hooks=[hook(on_session_ended=ended.append)], clock=clock) as broker:
        for client_id, interval in (("at_once", 0), ("later", 10)):
            peer = Peer(broker)
            await peer.connect(client_id, properties={"session_expiry_interval": interval})
            peer.send(Disconnect())
            await settle(broker, client_id)
        await asyncio.sleep(0)
        assert ended == ["at_once"]
        clock.now += 10
        await broker.sweep()
        await broker.sweep()
        assert ended == ["at_once", "later"]


@run_async
async def test_36__on_dropped_once_with_a_reason() -> None:
    drops: list[Any] = []
    note = hook(
        on_dropped=lambda client_id, message, reason: drops.append((client_id, message.topic_name, reason))
    )
    async with memory_broker(hooks=[note, hook(on_dropped=boom)]) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60, "maximum_packet_size": 50})
        await peer.subscribe("t", qos=1)
        await broker.publish("t", b"x" * 100, qos=1)
        peer.send(Disconnect())
        await settle(broker, "c")
        await broker.publish("t", qos=0)
        await broker.publish("t", qos=1, properties={"message_expiry_interval": 0})
        assert broker.stats.dropped == {"packet_too_large": 1, "offline": 1, "expired": 1}
    assert drops == [("c", "t", reason) for reason in ("packet_too_large", "offline", "expired")]


def test_36__every_reason_is_in_the_table() -> None:
    source = "".join(file.read_text() for file in CONTRACT.parents[1].glob("broker/**/*.py"))
    given = set(re.findall(r'dropped\([^()]*(?:\([^()]*\))?[^()]*"(\w+)"(?: if|\))', source))
    given |= set(re.findall(r'_drop\([^()]*(?:\([^()]*\))?[^()]*"(\w+)"\)', source))
    table = CONTRACT.read_text().partition("## Reasons")[2]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|[^|]*\|", table, re.MULTILINE))))
    assert given and given <= documented
