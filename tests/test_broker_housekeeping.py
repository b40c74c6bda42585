"""What a Broker does by itself: deadlines, `$SYS`, the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from broker import (
    HookBase,
    Message,
    Version,
)
from broker.packet.codec import encode
from broker.packet.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Will,
)
from broker.router import Router
from tests.broker_scenes import (
    KEPT,
    V3,
    V5,
    WAYS_TO_LEAVE,
    config,
    received,
)
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import Wire, turns, until

# ---- deadlines


@run_async
async def test_a_will_that_waits_for_a_hook_holds_up_no_other_and_no_new_will() -> None:
    """Two wills are due; a hook lets the first one wait. The second client comes back meanwhile."""
    entered = asyncio.Event()

    class Waits(HookBase):
        async def on_publish(self, client: Any, message: Message) -> None:
            if message.topic_name == "will/a":
                entered.set()
                await asyncio.Event().wait()

    clock = Clock()
    async with memory_broker(config(grace_time=0), clock=clock, hooks=[Waits()]) as broker:
        watcher = broker.subscribe("will/#")
        delayed = {"will_delay_interval": 5}
        for client_id in ("a", "b"):
            peer = Peer(broker)
            will = Will(f"will/{client_id}", b"old", properties=delayed)
            await peer.connect(client_id, will=will, properties=KEPT)
            peer.drop()
            await settle(broker, client_id)
        clock.now += 5
        sweeping = asyncio.create_task(broker.sweep())
        await entered.wait()
        back = Peer(broker)
        will = Will("will/b", b"new", properties=delayed)
        await back.connect("b", clean_start=False, will=will, properties=KEPT)
        await turns()
        session = broker._core.sessions.get("b")
        assert session is not None and session.will is not None, "its client is here"
        assert session.will.message.payload == b"new"
        assert not sweeping.done()
        watcher.close()
        assert [message.payload async for message in watcher] == [b"old"]
        sweeping.cancel()


@run_async
async def test_a_client_that_comes_back_in_the_moment_its_will_is_due() -> None:
    clock = Clock()
    async with memory_broker(config(), clock=clock) as broker:
        watcher = broker.subscribe("will")
        delayed = {"will_delay_interval": 5}
        peer, back = Peer(broker), Peer(broker)
        await peer.connect("c", will=Will("will", b"old", properties=delayed), properties=KEPT)
        peer.drop()
        await settle(broker, "c")
        new = Will("will", b"new", properties=delayed)
        async with broker._core.turns.of("c"):
            back.send(Connect("c", clean_start=False, will=new, properties=KEPT))
            await turns()
            clock.now += 5
            sweeping = asyncio.create_task(broker.sweep())
            await turns()
        assert (await back.expect(Connack)).session_present
        await sweeping
        session = broker._core.sessions.get("c")
        assert session is not None and session.will is not None, "the new one is not due"
        watcher.close()
        assert [message.payload async for message in watcher] == [b"old"]


@run_async
async def test_a_client_that_comes_back_in_the_moment_its_session_ends() -> None:
    clock = Clock()
    async with memory_broker(config(), clock=clock) as broker:
        peer, back = Peer(broker), Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 5})
        peer.drop()
        await settle(broker, "c")
        async with broker._core.turns.of("c"):
            back.send(Connect("c", clean_start=False, properties=KEPT))
            await turns()
            clock.now += 4.9  # in time; the sweep that looks a moment later must not end it
            await turns()
            session = broker._core.sessions.get("c")
        assert (await back.expect(Connack)).session_present
        clock.now += 5
        await broker.sweep()
        assert broker._core.sessions.get("c") is session
        await back.expect_nothing()


class Buggy:
    """A router that cannot publish wills: around the real one, whose class may be compiled."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    async def publish_owned(self, message: Message) -> None:
        raise ZeroDivisionError("a bug of ours")


def test_a_bug_at_a_deadline_is_logged_and_the_broker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        clock = Clock()
        async with memory_broker(config(sweep_interval=0.005), clock=clock) as broker:
            object.__setattr__(broker._core, "router", Buggy(broker._core.router))
            peer = Peer(broker)
            will = Will("w", b"", properties={"will_delay_interval": 5})
            await peer.connect("c", will=will, properties=KEPT)
            peer.drop()
            await settle(broker, "c")
            clock.now += 5
            async with asyncio.timeout(1):
                while not caplog.records:
                    await asyncio.sleep(0.005)
            clock.now += 1000
            async with asyncio.timeout(1):
                while len(broker._core.sessions):
                    await asyncio.sleep(0.005)

    caplog.set_level(logging.ERROR)
    asyncio.run(run())
    [record] = caplog.records
    assert record.exc_info and "a bug of ours" in str(record.exc_info[1])


@run_async
async def test_sweep_ends_sessions_and_forgets_retained_messages() -> None:
    clock = Clock()
    async with memory_broker(config(), clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 100})
        await peer.subscribe("t", qos=1)
        await broker.publish("r", b"x", retain=True, properties={"message_expiry_interval": 50})
        peer.drop()
        await settle(broker, "c")
        await broker.publish("t", b"queued", qos=1)
        for passed, sessions, kept in ((49.9, 1, 1), (0.1, 1, 0), (49.9, 1, 0), (0.1, 0, 0)):
            clock.now += passed
            await broker.sweep()
            assert (len(broker._core.sessions), len(broker._core.retained)) == (sessions, kept)
        assert broker._core.budget.used == 0 and broker._core.tree.count == 0


@run_async
async def test_it_looks_at_deadlines_by_itself() -> None:
    clock = Clock()
    async with memory_broker(config(sweep_interval=0.01), clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("c", keep_alive=10)
        clock.now += 15
        assert (await peer.expect(Disconnect)).reason_code == 0x8D


@pytest.mark.parametrize("version", [V5, V3])
@run_async
async def test_a_client_that_is_too_slow_for_its_queue_is_disconnected_if_the_setting_says_so(
    version: Version,
) -> None:
    settings = config(queue_full="disconnect", maximum_queued_messages=2, outbound_receive_maximum=1)
    async with memory_broker(settings) as broker:
        peer = Peer(broker, version)
        await peer.connect("c", clean_start=version is V5, properties=KEPT if version is V5 else {})
        await peer.subscribe("t", qos=1)
        for number in range(3):
            await broker.publish("t", b"%d" % number, qos=1)
        await broker.sweep()
        await peer.expect(Publish)
        await peer.expect_nothing()
        await broker.publish("t", b"3", qos=1)
        await broker.sweep()
        if version is V5:
            assert (await peer.expect(Disconnect)).reason_code == 0x97
        await peer.expect_end()
        again = Peer(broker, version)
        assert (
            await again.connect("c", clean_start=False, properties=KEPT if version is V5 else {})
        ).session_present
        await broker.sweep()
        assert (await again.expect(Publish)).payload == b"0"
        await again.expect_nothing()


# ---- $SYS


@run_async
async def test_sys_on_demand() -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await broker.publish("kept", b"x", retain=True)
        await peer.subscribe("$SYS/broker/clients/+", "kept")
        got = {(packet := await peer.expect(Publish)).topic_name: packet for _ in range(4)}
        assert {name: packet.payload for name, packet in got.items()} == {
            "$SYS/broker/clients/connected": b"1",
            "$SYS/broker/clients/disconnected": b"0",
            "$SYS/broker/clients/total": b"1",
            "kept": b"x",
        }
        assert all(packet.retain for packet in got.values())
        await peer.expect_nothing()
        await peer.subscribe("#", "+/broker/version")
        await peer.expect(Publish)
        await peer.expect_nothing()  # a wildcard in front does not find $SYS


@run_async
async def test_sys_at_an_interval_to_whoever_subscribes() -> None:
    clock = Clock()
    async with memory_broker(config(sys_interval=10), clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("$SYS/broker/uptime", retain_handling=2)
        for passed, expected in ((9.9, []), (0.1, [b"10"]), (9.9, []), (5.1, [b"25"])):
            clock.now += passed
            await broker.sweep()
            for payload in expected:
                packet = await peer.expect(Publish)
                assert (packet.payload, packet.retain) == (payload, False)
            await peer.expect_nothing()
        assert len(broker._core.retained) == 0


@run_async
async def test_sys_says_what_happened() -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties=KEPT)
        await peer.subscribe("t", qos=1)
        await broker.publish("kept", b"12345678", retain=True)
        peer.drop()
        await settle(broker, "c")
        await broker.publish("t", b"gone")
        await broker.publish("t", b"waits", qos=1)
        wanted = {
            "version": "pybroker 0.1.0",
            "clients/connected": "0",
            "clients/disconnected": "1",
            "subscriptions/count": "2",
            "retained messages/count": "1",
            "store/messages/bytes": str(broker._core.budget.used),
            "dropped/offline": "1",
            "publish/messages/dropped": "1",
            "connections/total": "1",
        }
        messages = await received(broker, "$SYS/#")
        values = {
            message.topic_name.removeprefix("$SYS/broker/"): message.payload.decode() for message in messages
        }
        assert {name: values.get(name) for name in wanted} == wanted


# ---- the log


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """The lines of the broker's own log that begin with *word*."""
    names = ("broker", "broker.client")
    return [
        each.getMessage()
        for each in caplog.records
        if each.name in names and each.getMessage().startswith(word)
    ]


ENDINGS = {
    "says_disconnect": "DISCONNECT by the client (0x00)",
    "cuts": "connection lost: the connection was aborted by its peer (0x80)",
    "breaks_the_protocol": "packet type 0 (0x81)",
    "is_kicked": "disconnected by the broker's program (0x98)",
    "is_taken_over": "taken over by memory (0x8E)",
}


@pytest.mark.parametrize("name", [*WAYS_TO_LEAVE])
def test_one_line_for_each_connect_and_each_disconnect(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with memory_broker(config()) as broker:
            peer = Peer(broker)
            await peer.connect("c", clean_start=False, user_name="ada")
            await WAYS_TO_LEAVE[name](broker, peer)
            await until(lambda: not broker._connections)

    asyncio.run(run())
    count = 2 if name == "is_taken_over" else 1
    assert lines(caplog, "connected") == ["connected 'c' from memory (MQTT_5, new session)"] * count
    gone = lines(caplog, "disconnected")
    assert len(gone) == count
    assert f"disconnected 'c' from memory: {ENDINGS[name]}" in gone


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (encode(Connect("", V3, clean_start=False), V3), "refused memory '': a zero-length ClientID"),
        (b"\xc0\x00", "refused memory '': first packet is not CONNECT"),
        (b"", "refused memory '': closed by the client"),
        (b"\x10\x0c\x00\x04MQTT\x06\x02\x00\x00\x00\x00", "refused memory '': "),
    ],
)
def test_one_line_for_each_refusal(packet: bytes, why: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with memory_broker(config()) as broker:
            wire = Wire()
            broker._connections.accept(wire)
            wire.incoming.put_nowait(packet)
            await until(lambda: not broker._connections)

    asyncio.run(run())
    [line] = lines(caplog, "refused")
    assert line.startswith(why)
    assert not lines(caplog, "connected") and not lines(caplog, "disconnected")


def test_the_password_is_in_no_line_and_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def run() -> None:
        async with memory_broker(config()) as broker:
            peer = Peer(broker)
            await peer.connect("c", user_name="ada", password=b"hunter2")
            assert broker.clients["c"].info.password is None
            peer.drop()
            await settle(broker, "c")

    asyncio.run(run())
    assert "hunter2" not in caplog.text
