"""Races: two things about one client, or about the whole broker, happen at once, or while a hook waits.

A hook waits at a gate, the other thing happens, the gate opens. No test waits for time to pass.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker import Broker, Capacity, Config, HookBase, Message, NotAuthorized, Protocol
from broker.hook.base import AuthStep
from broker.packet.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    SubscribeRequest,
    Will,
)
from broker.session.session import Session
from broker.session.terms import NEVER
from tests.peer import WAIT, Clock, Peer, memory_broker, run_async, settle
from tests.wire import turns, until

KEPT = {"session_expiry_interval": 1000}


def config(protocol: Protocol | None = None, **capacity: Any) -> Config:
    """No clockwork of its own, and a grace time that no test can wait for."""
    fields = {"sweep_interval": 0, "sys_interval": 0, "grace_time": 60, **capacity}
    return Config(capacity=Capacity(**fields), protocol=protocol or Protocol())


class Gate:
    """Whoever passes waits until it is opened."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self.arrived = 0

    async def passes(self) -> None:
        self.arrived += 1
        await self._open.wait()

    async def reached(self, times: int = 1) -> None:
        await until(lambda: self.arrived >= times, "nobody comes to the gate")

    def open(self) -> None:
        self._open.set()


class Diary(HookBase):
    """What hooks are told of sessions and connections, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def on_session_created(self, client_id: str) -> None:
        self.lines.append("created")

    async def on_session_resumed(self, client_id: str) -> None:
        self.lines.append("resumed")

    async def on_session_ended(self, client_id: str) -> None:
        self.lines.append("ended")

    async def on_connected(self, client: Any) -> None:
        self.lines.append("connected")

    async def on_disconnect(self, client: Any, reason: int, text: str) -> None:
        self.lines.append(f"disconnected 0x{reason:02X}")

    def of_sessions(self) -> list[str]:
        return [line for line in self.lines if line in ("created", "resumed", "ended")]


class WillWaits(HookBase):
    """A message to `will` waits at the gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def on_publish(self, client: Any, message: Message) -> None:
        if message.topic_name == "will":
            await self.gate.passes()


def delayed_will(topic_name: str = "will") -> Will:
    return Will(topic_name, b"gone", properties={"will_delay_interval": 5})


async def cut_off(broker: Broker, peer: Peer, client_id: str) -> Session:
    """*peer* is gone without DISCONNECT, and its session has its deadlines."""
    peer.drop()
    await settle(broker, client_id)
    session = broker._core.sessions.get(client_id)
    assert session is not None
    await until(lambda: session.ends_at != NEVER)
    return session


# ---- a hook that is cancelled from inside


async def cancelled_inside() -> None:
    """As a hook that waits for a task of its own which somebody cancels."""
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


class LeaksCancellation(HookBase):
    async def on_connect(self, client: Any, packet: Connect) -> None:
        if client.client_id == "bad":
            await cancelled_inside()

    async def on_publish(self, client: Any, message: Message) -> None:
        if message.topic_name == "bad":
            await cancelled_inside()


@run_async
async def test_a_hook_that_is_cancelled_from_inside_refuses_as_one_that_fails() -> None:
    async with memory_broker(config(), hooks=[LeaksCancellation()]) as broker:
        assert (await Peer(broker).connect("bad")).reason_code == 0x83
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("bad", qos=1) == 0x83
        await peer.expect_nothing()


@run_async
async def test_a_hook_that_is_cancelled_from_inside_does_not_end_the_housekeeping() -> None:
    clock = Clock()
    settings = config(sweep_interval=0.001)
    async with memory_broker(settings, hooks=[LeaksCancellation()], clock=clock) as broker:
        watcher = broker.subscribe("good")
        bad, good, idle = Peer(broker), Peer(broker), Peer(broker)
        for peer, name in ((bad, "bad"), (good, "good")):
            await peer.connect(f"client/{name}", will=delayed_will(name), properties=KEPT)
        await idle.connect("idle", keep_alive=10)
        await cut_off(broker, bad, "client/bad")
        clock.now += 5
        async with asyncio.timeout(WAIT):
            while not broker.stats.dropped["will_refused"]:
                await asyncio.sleep(0)
        await cut_off(broker, good, "client/good")
        clock.now += 10
        assert (await idle.expect(Disconnect)).reason_code == 0x8D
        assert (await asyncio.wait_for(anext(aiter(watcher)), WAIT)).payload == b"gone"


# ---- deadlines while a hook waits


@run_async
async def test_a_will_that_waits_for_a_hook_does_not_hold_up_keep_alive() -> None:
    clock, hook = Clock(), WillWaits()
    async with memory_broker(config(sweep_interval=0.001), hooks=[hook], clock=clock) as broker:
        peer, idle = Peer(broker), Peer(broker)
        await peer.connect("c", will=delayed_will(), properties=KEPT)
        await idle.connect("idle", keep_alive=10)
        await cut_off(broker, peer, "c")
        clock.now += 5
        async with asyncio.timeout(WAIT):
            while not hook.gate.arrived:
                await asyncio.sleep(0)
        clock.now += 10
        assert (await idle.expect(Disconnect)).reason_code == 0x8D
        assert hook.gate.arrived == 1, "the will waits all the time"
        hook.gate.open()


@run_async
async def test_a_session_that_ends_while_its_client_comes_back_ends_once() -> None:
    """CONNECT waits for the hook of the will that is due; meanwhile the session's time is over as well."""
    clock, hook, diary = Clock(), WillWaits(), Diary()
    async with memory_broker(config(), hooks=[hook, diary], clock=clock) as broker:
        peer, back = Peer(broker), Peer(broker)
        await peer.connect("c", will=delayed_will(), properties={"session_expiry_interval": 6})
        await cut_off(broker, peer, "c")
        clock.now += 5.5
        back.send(Connect("c", clean_start=False, properties=KEPT))
        await hook.gate.reached()
        clock.now += 1
        sweeping = asyncio.create_task(broker.sweep())
        await turns(20)
        hook.gate.open()
        assert not (await back.expect(Connack)).session_present
        await sweeping
        await back.expect_nothing()
        assert diary.of_sessions() == ["created", "ended", "created"]
        assert len(broker._core.sessions) == 1


# ---- hooks hear of a ClientID in order


@run_async
async def test_a_session_has_ended_before_the_next_one_of_its_client_id_is_created() -> None:
    hook, diary = WillWaits(), Diary()
    async with memory_broker(config(), hooks=[hook, diary]) as broker:
        old, new = Peer(broker), Peer(broker)
        await old.connect("c", will=Will("will", b"gone"))
        old.drop()
        await hook.gate.reached()
        new.send(Connect("c"))
        await turns(50)
        assert diary.of_sessions() == ["created"]
        hook.gate.open()
        await new.expect(Connack)
        await until(lambda: len(diary.of_sessions()) > 2)
        assert diary.of_sessions() == ["created", "ended", "created"]


class Slow(HookBase):
    """The first call waits at the gate, for the hooks behind it as well."""

    def __init__(self, event: str) -> None:
        self.gate = Gate()
        self._event = event

    async def _call(self, event: str) -> None:
        if event == self._event and not self.gate.arrived:
            await self.gate.passes()

    async def on_session_created(self, client_id: str) -> None:
        await self._call("on_session_created")

    async def on_connected(self, client: Any) -> None:
        await self._call("on_connected")


@pytest.mark.parametrize("event", ["on_session_created", "on_connected"])
@pytest.mark.parametrize("kept", [True, False])
@run_async
async def test_a_takeover_takes_no_notification_from_the_old_connection(kept: bool, event: str) -> None:
    slow, diary = Slow(event), Diary()
    async with memory_broker(config(), hooks=[slow, diary]) as broker:
        old, new = Peer(broker), Peer(broker)
        await old.connect("c", properties=KEPT if kept else {})
        await slow.gate.reached()
        new.send(Connect("c", clean_start=False, properties=KEPT))
        await turns(50)
        slow.gate.open()
        assert (await new.expect(Connack)).session_present is kept
        expected = ["created", "connected", "disconnected 0x8E"]
        expected += ["resumed", "connected"] if kept else ["ended", "created", "connected"]
        await until(lambda: len(diary.lines) == len(expected), f"{diary.lines}")
        assert sorted(diary.lines) == sorted(expected)
        old_session, new_session = diary.of_sessions()[0], diary.of_sessions()[1:]
        assert old_session == "created" and new_session == (["resumed"] if kept else ["ended", "created"])
        assert diary.lines[:2] == ["created", "connected"] and diary.lines[-1] == "connected"


@pytest.mark.parametrize("event", ["on_session_created", "on_session_resumed", "on_connected"])
@run_async
async def test_a_hook_may_disconnect_its_own_client_while_it_is_told_of_it(event: str) -> None:
    """Were it to wait for the end of the connection, which waits for it, only the grace time would end it."""
    returned: list[bool] = []

    class Kick(HookBase):
        async def init(self, broker: Any) -> None:
            self.broker = broker

    async def kick(self: Kick, *args: Any) -> None:
        returned.append(await self.broker.disconnect("c", 0x97))

    setattr(Kick, event, kick)
    async with memory_broker(config(hook_timeout=60), hooks=[Kick()]) as broker:
        peer = Peer(broker)
        if event == "on_session_resumed":
            await peer.connect("c", properties=KEPT)
            peer.drop()
            await settle(broker, "c")
            peer = Peer(broker)
        await peer.connect("c", clean_start=False, properties=KEPT)
        assert (await peer.expect(Disconnect)).reason_code == 0x97
        await peer.expect_end()
        await until(lambda: not broker._connections)
        assert returned == [True]


# ---- who may have a session, and who counts


@pytest.mark.parametrize("user_name", ["mallory", None])
@run_async
async def test_another_user_cannot_clear_the_session_of_a_client_that_is_away(user_name: str | None) -> None:
    async with memory_broker(config()) as broker:
        watcher = broker.subscribe("will")
        alice, mallory, back = Peer(broker), Peer(broker), Peer(broker)
        will = delayed_will()
        await alice.connect("c", user_name="alice", will=will, properties=KEPT)
        await alice.subscribe("t", qos=1)
        await cut_off(broker, alice, "c")
        await broker.publish("t", b"precious", qos=1)
        assert (await mallory.connect("c", user_name=user_name, clean_start=True)).reason_code == 0x87
        assert (await back.connect("c", user_name="alice", clean_start=False)).session_present
        assert (await back.expect(Publish)).payload == b"precious"
        watcher.close()
        assert [message async for message in watcher] == []


METHOD = {"authentication_method": "M"}


class Renames(HookBase):
    """The User Name becomes `root` in the first step of an authentication that comes again.

    Data `fail` refuses in that step, `wait` waits at the gate; any other takes a second step.
    """

    def __init__(self) -> None:
        self.gate = Gate()

    async def on_auth(self, client: Any, method: str, data: bytes | None) -> AuthStep:
        if not client.authenticated:
            client.user_name = "alice"
            return AuthStep(done=True)
        if data == b"last":
            return AuthStep(done=True)
        client.user_name = "root"
        if data == b"fail":
            raise NotAuthorized("no")
        if data == b"wait":
            await self.gate.passes()
        return AuthStep(done=False)


def again(data: bytes) -> Auth:
    return Auth(0x19, {**METHOD, "authentication_data": data})


LAST = Auth(0x18, {**METHOD, "authentication_data": b"last"})


@run_async
async def test_a_user_name_that_the_first_step_claims_is_refused_at_the_end() -> None:
    async with memory_broker(config(), hooks=[Renames()]) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties=METHOD)
        peer.send(again(b"first"))
        assert (await peer.expect(Auth)).reason_code == 0x18
        assert broker.clients["c"].info.user_name == "alice"
        peer.send(LAST)
        assert (await peer.expect(Disconnect)).reason_code == 0x87
        await settle(broker, "c")
        assert broker._core.users == {}


@run_async
async def test_a_client_that_may_change_its_user_name_counts_for_the_new_one() -> None:
    async with memory_broker(config(Protocol(re_authentication="any")), hooks=[Renames()]) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties=METHOD)
        peer.send(again(b"first"))
        await peer.expect(Auth)
        assert broker._core.users == {"alice": 1}
        peer.send(LAST)
        assert (await peer.expect(Auth)).reason_code == 0x00
        assert broker._core.users == {"root": 1}
        peer.drop()
        await settle(broker, "c")
        assert broker._core.users == {}


@pytest.mark.parametrize("data", [b"fail", b"wait"])
@run_async
async def test_a_re_authentication_that_is_cut_off_changes_no_count(data: bytes) -> None:
    hook = Renames()
    async with memory_broker(config(), hooks=[hook]) as broker:
        peer, new = Peer(broker), Peer(broker)
        await peer.connect("c", properties=METHOD)
        peer.send(again(data))
        if data == b"wait":
            await hook.gate.reached()
            assert await broker.disconnect("c")
        await peer.expect(Disconnect)
        await settle(broker, "c")
        assert broker._core.users == {}
        assert (await new.connect("c", properties=METHOD)).reason_code == 0
        assert broker._core.users == {"alice": 1}


@run_async
async def test_a_client_counts_for_the_user_that_it_came_as_whatever_a_hook_calls_it_later() -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c", user_name="alice")
        broker.clients["c"].info.user_name = "bob"
        peer.drop()
        await settle(broker, "c")
        assert broker._core.users == {}


class EndsWait(HookBase):
    def __init__(self) -> None:
        self.gate = Gate()

    async def on_session_ended(self, client_id: str) -> None:
        await self.gate.passes()


@pytest.mark.parametrize("limit", ["maximum_connections", "maximum_connections_per_user"])
@run_async
async def test_clients_that_come_in_at_once_do_not_get_past_a_limit(limit: str) -> None:
    """Each had room when it came; then the end of its old session waits for a hook."""
    hook, names = EndsWait(), [f"c{number}" for number in range(5)]
    async with memory_broker(config(**{limit: 2}), hooks=[hook]) as broker:
        for name in names:
            peer = Peer(broker)
            await peer.connect(name, user_name="u", properties=KEPT)
            await cut_off(broker, peer, name)
        peers = [Peer(broker) for _ in names]
        for name, peer in zip(names, peers, strict=True):
            peer.send(Connect(name, clean_start=True, user_name="u"))
        await hook.gate.reached(len(names))
        hook.gate.open()
        codes = [(await peer.expect(Connack)).reason_code for peer in peers]
        assert sorted(codes) == [0, 0, 0x97, 0x97, 0x97]
        assert len(broker.clients) == 2 and broker._core.users == {"u": 2}


class Swallows(HookBase):
    """Filter `first` waits, waits again when it is cancelled, and then raises something else."""

    def __init__(self, error: Exception) -> None:
        self.gate = Gate()
        self._error = error

    async def on_subscribe(self, client: Any, request: SubscribeRequest) -> SubscribeRequest:
        if request.topic_filter == "first":
            try:
                await self.gate.passes()
            except asyncio.CancelledError:
                await self.gate.passes()
                raise self._error from None
        return request


@pytest.mark.parametrize("error", [NotAuthorized("no"), ZeroDivisionError("a bug of the hook")])
@run_async
async def test_a_hook_that_answers_a_cancellation_with_an_error_subscribes_nobody(error: Exception) -> None:
    hook = Swallows(error)
    async with memory_broker(config(), hooks=[hook]) as broker:
        old, new = Peer(broker), Peer(broker)
        await old.connect("c")
        old.send(Subscribe(1, [SubscribeRequest("first"), SubscribeRequest("second")]))
        await hook.gate.reached()
        await new.connect("c")
        await hook.gate.reached(2)
        hook.gate.open()
        await until(lambda: len(broker._connections) == 1)
        new.drop()
        await until(lambda: not broker._connections)
        assert broker._core.tree.count == 0 and broker._core.budget.used == 0


# ---- stopping


class Leaving(HookBase):
    """`on_disconnect` waits at the gate."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.stopped = 0

    async def on_disconnect(self, client: Any, reason: int, text: str) -> None:
        await self.gate.passes()

    async def stop(self) -> None:
        self.stopped += 1


@run_async
async def test_cancelled_twice_it_still_stops_the_hooks_and_ends_every_task() -> None:
    hook = Leaving()
    broker = memory_broker(config(sweep_interval=60), hooks=[hook])
    serving = asyncio.create_task(broker.serve())
    await until(lambda: broker.addresses)
    await Peer(broker).connect("c")
    serving.cancel()
    await hook.gate.reached()
    assert not serving.done() and not hook.stopped
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert hook.stopped == 1 and not broker._connections
    await broker.stop()
    assert hook.stopped == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@run_async
async def test_serve_and_every_stop_return_when_it_has_stopped() -> None:
    hook = Leaving()
    broker = memory_broker(config(), hooks=[hook])
    serving = asyncio.create_task(broker.serve())
    await until(lambda: broker.addresses)
    await Peer(broker).connect("c")
    stops = [asyncio.create_task(broker.stop()) for _ in range(2)]
    await hook.gate.reached()
    await turns(20)
    assert not any(task.done() for task in (serving, *stops))
    hook.gate.open()
    for task in (serving, *stops):
        await asyncio.wait_for(task, WAIT)
    assert hook.stopped == 1 and not broker._connections


@run_async
async def test_a_subscription_of_the_program_ends_with_the_broker() -> None:
    broker = memory_broker(config())
    await broker.start()
    local = broker.subscribe("t")

    async def consume() -> list[bytes]:
        return [message.payload async for message in local]

    consuming = asyncio.create_task(consume())
    await broker.publish("t", b"last")
    await turns()
    await broker.stop()
    assert await asyncio.wait_for(consuming, WAIT) == [b"last"]


@run_async
async def test_a_will_that_comes_due_during_the_stop_does_not_outlive_it() -> None:
    class WillNeverReturns(Leaving):
        over_in_time: bool | None = None

        async def on_publish(self, client: Any, message: Message) -> None:
            self.gate.arrived += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.over_in_time = not self.stopped

    clock, hook = Clock(), WillNeverReturns()
    broker = memory_broker(config(hook_timeout=60), hooks=[hook], clock=clock)
    await broker.start()
    hook.gate.open()
    away, here = Peer(broker), Peer(broker)
    await away.connect("away", will=delayed_will(), properties=KEPT)
    await cut_off(broker, away, "away")
    await hook.gate.reached()
    hook.gate = Gate()
    await here.connect("here")
    stopping = asyncio.create_task(broker.stop())
    await hook.gate.reached()
    clock.now += 5
    sweeping = asyncio.create_task(broker.sweep())
    await hook.gate.reached(2)
    hook.gate.open()
    await asyncio.wait_for(stopping, WAIT)
    assert hook.over_in_time is True and hook.stopped == 1
    await asyncio.gather(sweeping, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@run_async
async def test_a_hook_may_stop_the_broker() -> None:
    """Its own connection is one that the stop waits for: only the grace time ends that."""

    class StopsIt(HookBase):
        stopped = asyncio.Event()

        async def init(self, broker: Any) -> None:
            self.broker = broker

        async def on_publish(self, client: Any, message: Message) -> None:
            await self.broker.stop()

        async def stop(self) -> None:
            self.stopped.set()

    hook = StopsIt()
    broker = memory_broker(config(grace_time=0), hooks=[hook])
    await broker.start()
    peer = Peer(broker)
    await peer.connect("c")
    peer.send(Publish("t", b"x", 1, packet_id=1))
    await asyncio.wait_for(hook.stopped.wait(), WAIT)
    await asyncio.wait_for(broker.stop(), WAIT)
    assert not broker._connections and not broker.addresses


class WaitsOnce(WillWaits):
    """The will waits at the gate, or the news of the first session does."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self._event = event

    async def on_publish(self, client: Any, message: Message) -> None:
        if self._event == "on_publish":
            await self.gate.passes()

    async def on_session_created(self, client_id: str) -> None:
        if self._event == "on_session_created":
            await self.gate.passes()


@pytest.mark.parametrize("event", ["on_publish", "on_session_created"])
@run_async
async def test_a_stop_during_a_takeover_loses_neither_the_will_nor_the_end_of_the_session(event: str) -> None:
    hook, diary = WaitsOnce(event), Diary()
    broker = memory_broker(config(hook_timeout=60), hooks=[hook, diary])
    await broker.start()
    watcher = broker.subscribe("will")
    old, new = Peer(broker), Peer(broker)
    await old.connect("c", will=Will("will", b"gone"))
    if event == "on_session_created":
        await hook.gate.reached()
    new.send(Connect("c", clean_start=False))
    assert (await old.expect(Disconnect)).reason_code == 0x8E
    await hook.gate.reached()
    stopping = asyncio.create_task(broker.stop())
    await new.expect_end()  # whoever took over is gone in the middle of it
    await turns(20)
    assert not stopping.done()
    hook.gate.open()
    await asyncio.wait_for(stopping, WAIT)
    assert [message.payload async for message in watcher] == [b"gone"]
    assert diary.of_sessions() == ["created", "ended"]
    assert len(broker._core.sessions) == 0 and broker._core.budget.used == 0
