"""Who is admitted to a Broker, and who takes over from whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker import (
    HookBase,
)
from broker.handle.disconnect import leave
from broker.packet.codec import encode
from broker.packet.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Will,
)
from broker.session.terms import NEVER
from broker.transport.base import Peer as Address
from broker.transport.memory import MemoryConnection
from tests.broker_scenes import (
    KEPT,
    V5,
    config,
    hangs,
)
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import Wire, turns, until

# ---- who is admitted


@run_async
async def test_maximum_connections() -> None:
    async with memory_broker(config(maximum_connections=2)) as broker:
        peers = [Peer(broker) for _ in range(4)]
        codes = [(await peer.connect(f"c{number}")).reason_code for number, peer in enumerate(peers)]
        assert codes == [0, 0, 0x97, 0x97]
        again = Peer(broker)
        assert (await again.connect("c1")).reason_code == 0, "a takeover makes no client more"
        peers[0].drop()
        await settle(broker, "c0")
        assert (await Peer(broker).connect("c5")).reason_code == 0


@run_async
async def test_far_above_the_maximum_connections_are_not_even_read() -> None:
    async with memory_broker(config(maximum_connections=1)) as broker:
        wires = [Wire() for _ in range(100)]
        for wire in wires:
            broker._connections.accept(wire)
        assert len(broker._connections) == 65
        assert sum(wire.aborted for wire in wires) == 35 == broker.stats.connections_refused


def from_address(address: str) -> Wire:
    wire = Wire()
    wire.peer = Address(address=address, transport="tcp", listener="tcp://127.0.0.1:1883")
    return wire


@run_async
async def test_maximum_connections_per_address() -> None:
    async with memory_broker(config(maximum_connections_per_address=2)) as broker:
        addresses = [
            *("10.0.0.1:5001", "10.0.0.1:5002", "10.0.0.1:5003", "10.0.0.2:5001"),
            *("[2001:db8::1]:1", "[2001:db8::1]:2", "[2001:db8::1]:3", "[2001:db8::2]:1"),
        ]
        wires = [from_address(address) for address in addresses]
        for wire in wires:
            broker._connections.accept(wire)
        assert [wire.aborted for wire in wires] == [0, 0, 1, 0, 0, 0, 1, 0]
        wires[0].incoming.put_nowait(b"")
        await until(lambda: len(broker._connections) == 5)
        late = from_address("10.0.0.1:5004")
        broker._connections.accept(late)
        assert not late.aborted
        for _ in range(5):
            assert Peer(broker), "connections in memory have no address"
        for _ in range(5):
            wire = Wire()
            wire.peer = Address("unix:/run/mqtt.sock", "unix", local=True)
            broker._connections.accept(wire)
            assert not wire.aborted, "nor have Unix sockets, where all have that of the listener"


@run_async
async def test_maximum_connections_per_user() -> None:
    async with memory_broker(config(maximum_connections_per_user=1)) as broker:
        codes = []
        for client_id, user_name in (
            ("a", "ada"),
            ("b", "ada"),
            ("c", "bob"),
            ("d", None),
            ("e", None),
            ("a", "ada"),
        ):
            peer = Peer(broker)
            codes.append((await peer.connect(client_id, user_name=user_name)).reason_code)
        assert codes == [0, 0x97, 0, 0, 0, 0]
        peer.drop()
        await settle(broker, "a")
        assert (await Peer(broker).connect("f", user_name="ada")).reason_code == 0


@run_async
async def test_maximum_sessions() -> None:
    clock = Clock()
    async with memory_broker(config(maximum_sessions=2), clock=clock) as broker:
        for client_id in ("a", "b"):
            peer = Peer(broker)
            await peer.connect(client_id, clean_start=False, properties=KEPT)
            peer.send(Disconnect())
            await settle(broker, client_id)
        assert (await Peer(broker).connect("c")).reason_code == 0x97
        assert (await Peer(broker).connect("a", clean_start=False)).session_present, (
            "one that is there goes on"
        )
        assert (await Peer(broker).connect("b", clean_start=True)).reason_code == 0, "and may begin anew"
        clock.now += 2000
        await broker.disconnect("a")
        assert (await Peer(broker).connect("c")).reason_code == 0


@run_async
async def test_new_sessions_are_refused_before_the_byte_budget_is_spent() -> None:
    async with memory_broker(config()) as broker:
        away, peer, budget = Peer(broker), Peer(broker), broker._core.budget
        await away.connect("away", properties=KEPT)
        away.drop()
        await peer.connect("c")
        others = budget.maximum * 15 // 16 - budget.used
        budget.take_anyway(others - MemoryConnection.cost - 1)
        assert (await Peer(broker).connect("early")).reason_code == 0
        assert (await Peer(broker).connect("late")).reason_code == 0x97
        old = await Peer(broker).connect("away", clean_start=False, properties=KEPT)
        assert (old.reason_code, old.session_present) == (0, True), "its session is here and stays"
        assert await peer.publish("a", b"x", 1, retain=True) == 0x10, "messages still have room"
        assert broker.stats.dropped == {}


@run_async
async def test_the_byte_budget_of_the_process_refuses() -> None:
    async with memory_broker(config()) as broker:
        away, peer, budget = Peer(broker), Peer(broker), broker._core.budget
        await away.connect("away", properties=KEPT)
        await away.subscribe("t", qos=1)
        away.drop()
        await peer.connect("c")
        before = budget.used
        others = budget.maximum - before - 950  # somebody else holds all but 950 bytes
        budget.take_anyway(others)
        peer.send(Publish("a", b"x" * 1000, 1, retain=True, packet_id=1))
        assert (await peer.expect(Puback)).reason_code == 0x97
        peer.send(Publish("a", b"x" * 1000, 2, packet_id=2))
        assert (await peer.expect(Pubrec)).reason_code == 0x97
        await broker.publish("t", b"x" * 1000, qos=1)
        assert broker.stats.dropped == {"refused": 2, "memory": 1}
        assert (await Peer(broker).connect("late")).reason_code == 0x97, "nor is there room for a session"
        assert budget.used == before + others
        await peer.subscribe("t", qos=1)
        await broker.publish("t", b"x" * 1000, qos=1)
        peer.send(Puback((await peer.expect(Publish)).packet_id))
        await peer.expect_nothing()  # who is here and keeps up is served all the same
        budget.give(others)
        peer.send(Publish("a", b"x" * 1000, 2, packet_id=2))
        assert (await peer.expect(Pubrec)).reason_code == 0x10
        session = broker._core.sessions.get("away")
        await broker.publish("t", b"x" * 1000, qos=1)
        assert session is not None and len(session.queue) == 1


# ---- takeover


@pytest.mark.parametrize("event", ["on_publish", "on_subscribe", "on_connected", "on_session_created"])
@run_async
async def test_takeover_while_a_hook_of_the_old_connection_hangs(event: str) -> None:
    hook = hangs(event)
    stopped = False
    inner = getattr(type(hook), event)

    async def once(self: HookBase, *args: Any) -> Any:
        nonlocal stopped
        if not stopped:
            stopped = True
            await inner(self, *args)
        return args[-1]

    setattr(type(hook), event, once)
    async with memory_broker(config(hook_timeout=0.1), hooks=[hook]) as broker:
        old, new = Peer(broker), Peer(broker)
        await old.connect("c")
        if event == "on_publish":
            old.send(Publish("t", b"x", 1, packet_id=1))
        elif event == "on_subscribe":
            old.send_raw(b"\x82\x07\x00\x01\x00\x00\x01t\x00")
        await hook.entered.wait()  # type: ignore[attr-defined]
        assert (await asyncio.wait_for(new.connect("c"), 1)).reason_code == 0
        assert (await old.expect(Disconnect)).reason_code == 0x8E
        await old.expect_end()
        await new.expect_nothing()
        async with asyncio.timeout(1):
            while len(broker._connections) > 1:  # it may still tell hooks of its connection
                await asyncio.sleep(0.01)
        assert list(broker.clients) == ["c"]


@pytest.mark.parametrize("expiry", [0, 100])
@run_async
async def test_a_late_teardown_of_the_old_connection_never_touches_the_new_one(expiry: int) -> None:
    properties = {"session_expiry_interval": expiry}
    async with memory_broker(config()) as broker:
        watcher = broker.subscribe("will/#")
        wire, new = Wire(), Peer(broker)
        broker._connections.accept(wire)
        wire.incoming.put_nowait(
            encode(Connect("c", user_name="ada", will=Will("will/old", b""), properties=properties), V5)
        )
        await until(lambda: "c" in broker.clients)
        old = broker.clients["c"]
        await new.connect(
            "c", user_name="ada", clean_start=False, will=Will("will/new", b""), properties=properties
        )
        await new.subscribe("t", qos=1)
        session = broker._core.sessions.get("c")
        assert session is not None
        await leave(broker._core, old)
        old.extra.leaving = None  # as if the takeover had not marked it
        await leave(broker._core, old)
        wire.incoming.put_nowait(ConnectionResetError("late"))
        await until(lambda: len(broker._connections) == 1)
        await broker.sweep()
        assert broker.clients["c"] is session.link is not old
        assert broker._core.sessions.get("c") is session and session.ends_at == NEVER
        assert broker._core.users == {"ada": 1}
        await broker.publish("t", b"x", qos=1)
        assert (await new.expect(Publish)).payload == b"x"
        watcher.close()
        assert [message.topic_name async for message in watcher] == ["will/old"]


@run_async
async def test_many_connections_fight_for_one_client_id_and_one_remains() -> None:
    async with memory_broker(config(maximum_takeovers=0)) as broker:
        peers = [Peer(broker) for _ in range(20)]
        for peer in peers:
            peer.send(Connect("c", clean_start=False, properties=KEPT))
        await turns(200)
        assert len(broker.clients) == len(broker._connections) == 1
        for peer in peers[:-1]:
            await peer.expect(Connack)
            assert (await peer.expect(Disconnect)).reason_code == 0x8E
        await peers[-1].expect(Connack)
        await peers[-1].expect_nothing()
        assert broker._core.turns._waiting == {}
