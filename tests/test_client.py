"""Client: its ends, its deadlines, its failures, and what it holds for a peer that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain, product
from typing import Any

import pytest

from broker import (
    AuthStep,
    Broker,
    Capacity,
    Config,
    HookBase,
    Limits,
    Message,
    MqttError,
    ReasonCode,
    Version,
)
from broker.client import Client, ClientTerms, Phase, no_lane
from broker.config import Protocol
from broker.core import OVERHEAD
from broker.handle import dispatch as dispatching
from broker.hook.stats import Stats
from broker.outbound import UNREAD_ACKS
from broker.packet.codec import encode
from broker.packet.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    Will,
)
from broker.packet.reader import TopicNames
from broker.store.budget import ByteBudget
from broker.store.journal import Journal, levels_of
from tests.peer import Clock, Peer, memory_broker, message_bytes, run_async, settle
from tests.wire import Wire, turns, until

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
NO_CLOCKWORK = {"sweep_interval": 0, "sys_interval": 0, "grace_time": 0}
BY_HAND = Config(capacity=Capacity(**NO_CLOCKWORK))
ERROR = MqttError("first", ReasonCode.ADMINISTRATIVE_ACTION)
SECOND = MqttError("second", ReasonCode.QUOTA_EXCEEDED)
DISCONNECTS = {V5: b"\xe0\x1a\x98\x18\x1f\x00\x15Administrative action", V3: b""}


class Bench:
    """One Client over a Wire; what it decodes goes to `handler`."""

    def __init__(self, version: Version = V5, **limits: Any) -> None:
        self.wire, self.clock = Wire(), Clock()
        self.packets: list[Packet] = []
        self.drops: Counter[str] = Counter()
        self.budget = ByteBudget(1 << 30)
        self.handler: Callable[[Client, Packet], Awaitable[None]] = self._accept
        terms = ClientTerms(
            limits=Limits(**limits), protocol=Protocol(), clock=self.clock, stats=Stats(0),
            budget=self.budget, names=TopicNames(True), dropped=self._dropped, dispatch=self._dispatch,
            journal=Journal(None, levels_of("always", ()), self.clock), not_stored=lambda *_: None,
            serve=lambda *_: None, lane=no_lane,
        )  # fmt: skip
        self.version = version
        self.client = Client(self.wire, terms)

    async def live(self) -> None:
        """As `serve_client` does, but one task for the whole life."""
        while await self.client.run():
            while not self.wire.has_unread():
                await self.wire.incoming.arrived()

    def _dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        self.drops[reason] += 1

    async def _dispatch(self, client: Client, packet: Packet) -> None:
        self.packets.append(packet)
        await self.handler(client, packet)

    async def _accept(self, client: Client, packet: Packet) -> None:
        if isinstance(packet, Connect):
            self.connected()

    def connected(self) -> None:
        """As after CONNACK, without one."""
        self.client.phase, self.client.version = Phase.CONNECTED, self.version
        self.client.maximum_packet_size = None

    def receive(self, *packets: Packet) -> None:
        self.wire.incoming.put_nowait(b"".join(encode(packet, self.version) for packet in packets))


@asynccontextmanager
async def running(version: Version = V5, **limits: Any) -> AsyncIterator[tuple[Bench, asyncio.Task[None]]]:
    """A client that has connected and now waits for a packet; no bytes stay with it."""
    bench = Bench(version, **limits)
    task = asyncio.create_task(bench.live())
    bench.receive(Connect("c", version))
    await turns()
    try:
        yield bench, task
    finally:
        bench.client.abort(MqttError("the test is over"))
        await turns()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert bench.budget.used == 0


# ---- the ways to end, once and twice

ENDS: dict[str, Callable[[Client], None]] = {
    "end": lambda client: client.end(ERROR),
    "end, flushing": lambda client: client.end(ERROR, flush=True),
    "finish": lambda client: client.finish(),
    "abort": lambda client: client.abort(ERROR),
    "refuse": lambda client: client.refuse(ERROR),
    "fail": lambda client: client.fail(ERROR),
}
SECONDS: dict[str, Callable[[Client], None]] = {
    "end": lambda client: client.end(SECOND),
    "end, flushing": lambda client: client.end(SECOND, flush=True),
    "finish": lambda client: client.finish(),
    "abort": lambda client: client.abort(SECOND),
    "refuse": lambda client: client.refuse(SECOND),
    "fail": lambda client: client.fail(SECOND),
}


@pytest.mark.parametrize("version", [V5, V3])
@pytest.mark.parametrize(("first", "second"), [*product(ENDS, SECONDS)])
@run_async
async def test_the_first_end_decides_and_a_second_does_nothing(
    first: str, second: str, version: Version
) -> None:
    bench = Bench(version)
    bench.connected()
    if first == "refuse":
        bench.client.phase = Phase.AUTHENTICATING
        bench.client.reader.version = version
    ENDS[first](bench.client)
    written, ending = bench.wire.sent(), bench.client.ending
    assert bench.client.phase is Phase.GONE
    assert ending is (None if first == "finish" else ERROR)
    assert bench.wire.closed or bench.wire.aborted
    if first in ("end", "end, flushing", "fail"):
        assert written == DISCONNECTS[version]
    elif first != "refuse":
        assert written == b""
    SECONDS[second](bench.client)
    assert bench.wire.sent() == b"", "one DISCONNECT or CONNACK, and nothing behind it"
    assert bench.client.phase is Phase.GONE
    if ending is not None:
        assert bench.client.ending is ending


@pytest.mark.parametrize("end", [*ENDS])
@run_async
async def test_after_the_end_nothing_is_sent(end: str) -> None:
    bench = Bench()
    bench.connected()
    ENDS[end](bench.client)
    bench.wire.sent()
    bench.client.send(Pingresp())
    bench.client.acknowledge(0x40, 1)
    assert bench.client.publish(Message("t"), 0, False, ()) is True
    bench.client.outbound.flush()
    await turns()
    assert bench.wire.sent() == b""
    assert bench.budget.used == 0


@pytest.mark.parametrize("end", [name for name in ENDS if name != "finish"])
@run_async
async def test_the_read_loop_stops_where_it_stands(end: str) -> None:
    async with running() as (bench, task):
        bench.client.phase = Phase.AUTHENTICATING if end == "refuse" else Phase.CONNECTED
        ENDS[end](bench.client)
        if end in ("abort", "refuse"):  # these do not stop the loop: the end of the stream does
            bench.wire.incoming.put_nowait(b"")
        await asyncio.wait_for(task, 1)
        assert bench.client.ending is ERROR
        assert not task.cancelled() and task.cancelling() == 0


@run_async
async def test_what_collected_leaves_before_the_disconnect() -> None:
    bench = Bench()
    bench.connected()
    bench.client.send(Pingresp())
    bench.client.end(ERROR)
    assert bench.wire.sent() == b"\xd0\x00" + DISCONNECTS[V5]


@pytest.mark.parametrize("flush", [False, True])
@run_async
async def test_what_waits_for_a_socket_that_takes_no_more_is_thrown_away(flush: bool) -> None:
    async with running() as (bench, _):
        bench.wire.stuck = True
        bench.client.send(Pingresp())
        await turns()
        bench.client.publish(Message("t", b"waits"), 0, False, ())
        assert bench.client.outbound.blocked and bench.budget.used > 0
        bench.wire.sent()
        bench.client.end(ERROR, flush=flush)
        assert (b"waits" in (written := bench.wire.sent())) is flush
        assert written.endswith(DISCONNECTS[V5])
        assert bench.budget.used == 0
        bench.client.publish(Message("t", b"late"), 0, False, ())
        bench.client.acknowledge(0x40, 1)
        assert bench.budget.used == 0, "nothing is taken any more, so nothing is held"


@run_async
async def test_a_packet_behind_the_end_is_not_handled() -> None:
    async with running() as (bench, task):

        async def ending(client: Client, packet: Packet) -> None:
            client.end(ERROR)

        bench.handler = ending
        bench.receive(Pingreq(), Pingreq(), Pingreq())
        await asyncio.wait_for(task, 1)
        assert bench.packets == [Connect("c"), Pingreq()]


@run_async
async def test_the_end_of_the_stream_and_a_network_failure_are_told_apart() -> None:
    for data, text in (
        (b"", "closed by the client"),
        (ConnectionResetError("reset"), "connection lost: reset"),
    ):
        async with running() as (bench, task):
            bench.wire.incoming.put_nowait(data)
            await asyncio.wait_for(task, 1)
            assert text in str(bench.client.ending)
            assert bench.wire.sent() == b""


@run_async
async def test_cancelled_from_outside_it_says_so_and_stays_cancelled() -> None:
    async def wait(client: Client, packet: Packet) -> None:
        await asyncio.Event().wait()

    async with running() as (bench, task):
        bench.handler = wait
        bench.receive(Pingreq())
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert str(bench.client.ending) == "cancelled"
        assert bench.wire.sent().startswith(b"\xe0") and bench.wire.closed


# ---- an unexpected exception


def breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on UNSUBSCRIBE finds a bug in the broker."""

    async def handle_unsubscribe(core: Any, client: Client, packet: Unsubscribe) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setitem(dispatching.HANDLERS, Unsubscribe, handle_unsubscribe)


def the_error(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    return record


@pytest.mark.parametrize("version", [V5, V3])
def test_a_bug_in_a_handler_is_logged_and_ends_that_client_alone(
    version: Version, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    breaking(monkeypatch)

    async def run() -> None:
        async with memory_broker(BY_HAND) as broker:
            bad, bystander = Peer(broker, version), Peer(broker)
            await bystander.connect("good")
            await bystander.subscribe("#")
            await bad.connect("bad", will=Will("will", b"of bad"))
            bad.send(Publish("before"), Unsubscribe(1, ["a"]), Publish("after"))
            if version is V5:
                assert (await bad.expect(Disconnect)).reason_code == 0x83
            await bad.expect_end()
            topics = [(await bystander.expect(Publish)).topic_name for _ in range(2)]
            assert topics == ["before", "will"]
            await bystander.expect_nothing()
            await settle(broker, "bad")
            assert list(broker.clients) == ["good"]

    asyncio.run(run())
    record = the_error(caplog)
    assert record.exc_info and "a bug of ours" in str(record.exc_info[1])
    assert "'bad'" in record.getMessage()


def test_a_bug_before_connack_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle_connect(core: Any, client: Client, packet: Connect) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setitem(dispatching.HANDLERS, Connect, handle_connect)

    async def run() -> None:
        async with memory_broker(BY_HAND) as broker:
            peer = Peer(broker)
            assert (await peer.connect("c")).reason_code == 0x83
            await peer.expect_end()

    asyncio.run(run())
    assert the_error(caplog).exc_info


def test_a_bug_in_the_write_loop_is_logged_and_ends_that_client_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing() -> Iterator[bool]:
        yield True
        raise ZeroDivisionError("a bug of ours")

    async def run() -> None:
        async with memory_broker(BY_HAND) as broker:
            bad, bystander = Peer(broker), Peer(broker)
            await bystander.connect("good")
            await bystander.subscribe("#")
            await bad.connect("bad", will=Will("will", b"of bad"))
            broker.clients["bad"].outbound.feed("a", failing())
            assert (await bystander.expect(Publish)).topic_name == "will"
            with contextlib.suppress(ConnectionResetError):
                await bad.expect_end()
            await settle(broker, "bad")
            await bystander.expect_nothing()

    asyncio.run(run())
    record = the_error(caplog)
    assert record.exc_info and "a bug of ours" in str(record.exc_info[1])
    assert "'bad'" in record.getMessage()


def test_a_bug_in_the_write_loop_while_a_hook_waits(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> Iterator[int]:
        raise ZeroDivisionError("a bug of ours")
        yield 1

    async def run() -> None:
        hook = Waiting()
        async with memory_broker(BY_HAND, hooks=[hook]) as broker:
            peer = Peer(broker)
            await peer.connect("c")
            peer.send(Publish("wait"))
            await hook.entered.wait()
            broker.clients["c"].outbound.feed("a", failing())
            await until(lambda: len(hook.calls) == 2)
            assert hook.calls == ["cancelled", "on_disconnect c 0x80"]
            assert not broker.clients

    asyncio.run(run())
    assert the_error(caplog).exc_info


# ---- cancelled while a hook waits


class Waiting(HookBase):
    """`on_publish` of topic `wait` and `on_subscribe` wait; *stubborn*: they go on all the same."""

    def __init__(self, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.entered = asyncio.Event()
        self.calls: list[str] = []

    async def _wait(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.calls.append("cancelled")
            if not self.stubborn:
                raise

    async def on_publish(self, client: Any, message: Message) -> None:
        if message.topic_name == "wait":
            await self._wait()

    async def on_subscribe(self, client: Any, request: SubscribeRequest) -> SubscribeRequest:
        if request.topic_filter == "wait":
            await self._wait()
        return request

    async def on_disconnect(self, client: Any, reason: int, text: str) -> None:
        self.calls.append(f"on_disconnect {client.client_id} 0x{reason:02X}")


WAITERS: list[Packet] = [
    Publish("wait", b"x"),
    Publish("wait", b"x", 1, packet_id=1),
    Publish("wait", b"x", 2, packet_id=1),
    Subscribe(1, [SubscribeRequest("wait")]),
]


@pytest.mark.parametrize("expiry", [0, 100])
@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("how", ["disconnect", "takeover"])
@pytest.mark.parametrize(
    "packet", WAITERS, ids=lambda packet: f"{type(packet).__name__}{getattr(packet, 'qos', '')}"
)
@run_async
async def test_a_client_that_is_ended_while_a_hook_waits(
    packet: Packet, how: str, stubborn: bool, expiry: int
) -> None:
    hook = Waiting(stubborn)
    fields = {"clean_start": False, "properties": {"session_expiry_interval": expiry}}
    async with memory_broker(BY_HAND, hooks=[hook]) as broker:
        watcher = broker.subscribe("wait")
        old, new = Peer(broker), Peer(broker)
        await old.connect("c", **fields)
        old.send(packet)
        await hook.entered.wait()
        if how == "disconnect":
            assert await asyncio.wait_for(broker.disconnect("c"), 1)
            code = 0x98
        else:
            assert (await new.connect("c", **fields)).session_present is (expiry > 0)
            code = 0x8E
        assert (await old.expect(Disconnect)).reason_code == code
        await old.expect_end()
        await until(lambda: len(hook.calls) == 2, f"{hook.calls}")
        assert hook.calls == ["cancelled", f"on_disconnect c 0x{code:02X}"]
        if how == "takeover":
            await new.expect_nothing()
            new.drop()
            await settle(broker, "c")
        watcher.close()
        assert [message async for message in watcher] == [], "what was not acknowledged was not routed"
        assert broker._core.tree.count == 0, "no subscription of a connection that is gone"
        session = broker._core.sessions.get("c")
        assert (session is None) is (expiry == 0)
        assert session is None or not session.inflight.held
        assert message_bytes(broker) == 0


# ---- deadlines, to the tick


class Challenging(HookBase):
    async def on_auth(self, client: Any, method: str, data: bytes | None) -> AuthStep:
        return AuthStep(data=b"more")


@asynccontextmanager
async def timed(
    hooks: tuple[HookBase, ...] = (), version: Version = V5, **limits: Any
) -> AsyncIterator[tuple[Broker, Clock, Peer]]:
    clock = Clock()
    config = Config(capacity=BY_HAND.capacity, limits=Limits(**limits))
    async with memory_broker(config, clock=clock, hooks=hooks) as broker:
        yield broker, clock, Peer(broker, version)


async def passes(broker: Broker, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    await broker.sweep()
    await turns(20)


async def to_the_border(broker: Broker, clock: Clock, seconds: float) -> None:
    """Nothing happens a moment before; then the border is reached."""
    connections = len(broker._connections)
    await passes(broker, clock, seconds - 0.001)
    assert len(broker._connections) == connections, "too early"
    await passes(broker, clock, 0.001)


@pytest.mark.parametrize("beginning", [b"", b"\x10", encode(Connect("c"), V5)[:-1]])
@run_async
async def test_connect_timeout(beginning: bytes) -> None:
    async with timed(connect_timeout=10) as (broker, clock, peer):
        peer.send_raw(beginning)
        await turns()
        await to_the_border(broker, clock, 10)
        await peer.expect_end()
        assert not broker._connections


@run_async
async def test_connect_timeout_is_over_with_connect() -> None:
    async with timed(connect_timeout=10) as (broker, clock, peer):
        await passes(broker, clock, 9.999)
        await peer.connect("c")
        await passes(broker, clock, 1000)
        await peer.expect_nothing()


@run_async
async def test_authentication_timeout() -> None:
    async with timed((Challenging(),), connect_timeout=10, authentication_timeout=30) as (
        broker,
        clock,
        peer,
    ):
        peer.send(Connect("c", properties={"authentication_method": "m"}))
        await peer.expect(Auth)
        await to_the_border(broker, clock, 30)
        assert (await peer.expect(Connack)).reason_code == 0x87
        await peer.expect_end()


@pytest.mark.parametrize(("keep_alive", "seconds"), [(1, 1.5), (2, 3), (10, 15), (65535, 98302.5)])
@pytest.mark.parametrize("version", [V5, V3])
@run_async
async def test_keep_alive(version: Version, keep_alive: int, seconds: float) -> None:
    async with timed(version=version) as (broker, clock, peer):
        await peer.connect("c", keep_alive=keep_alive)
        await to_the_border(broker, clock, seconds)
        if version is V5:
            assert (await peer.expect(Disconnect)).reason_code == 0x8D
        await peer.expect_end()


@run_async
async def test_keep_alive_counts_from_the_last_whole_packet() -> None:
    async with timed() as (broker, clock, peer):
        await peer.connect("c", keep_alive=10)
        for _ in range(5):
            await passes(broker, clock, 14.999)
            await peer.expect_nothing()  # a PINGREQ
        await passes(broker, clock, 10)
        peer.send_raw(b"\xc0")  # half a packet is none [B08]
        await turns()
        await to_the_border(broker, clock, 5)
        assert (await peer.expect(Disconnect)).reason_code == 0x8D


@run_async
async def test_no_keep_alive_no_end() -> None:
    async with timed() as (broker, clock, peer):
        await peer.connect("c", keep_alive=0)
        await passes(broker, clock, 1e7)
        await peer.expect_nothing()


@pytest.mark.parametrize("version", [V5, V3])
@run_async
async def test_partial_packet_timeout(version: Version) -> None:
    async with timed(version=version, partial_packet_timeout=30) as (broker, clock, peer):
        await peer.connect("c")
        await passes(broker, clock, 1000)
        peer.send_raw(encode(Publish("t", b"12345"), version)[:-1])
        await turns()
        await passes(broker, clock, 10)
        peer.send_raw(b"")
        await to_the_border(broker, clock, 20)
        if version is V5:
            assert (await peer.expect(Disconnect)).reason_code == 0x82
        await peer.expect_end()


@run_async
async def test_drops_of_bytes_do_not_stretch_the_time_for_a_packet_but_whole_packets_do() -> None:
    async with timed(partial_packet_timeout=30) as (broker, clock, peer):
        await peer.connect("c")
        ping, whole = b"\xc0\x00", encode(Publish("t", b"1" * 50), V5)
        peer.send_raw(ping + whole[:1])
        await turns()
        await passes(broker, clock, 29)
        peer.send_raw(whole[1:] + ping[:1])  # the packet is whole; another one begins
        await turns()
        await passes(broker, clock, 29)
        peer.send_raw(ping[1:] + whole[:1])
        await turns()
        for at in range(1, 30):
            await passes(broker, clock, 1)
            peer.send_raw(whole[at : at + 1])
            await turns()
        assert broker.clients
        await passes(broker, clock, 1)
        assert [type(packet) for packet in (await peer.recv(), await peer.recv())] == [Pingresp] * 2
        assert (await peer.expect(Disconnect)).reason_code == 0x82


@run_async
async def test_an_unfinished_packet_is_in_the_byte_budget_until_it_is_whole_or_the_end() -> None:
    whole = encode(Publish("t", b"1" * 1000), V5)
    async with running() as (bench, _):
        bench.wire.incoming.put_nowait(whole[:600])
        await turns()
        assert bench.budget.used == 600
        bench.wire.incoming.put_nowait(whole[600:] + whole[:7])
        await turns()
        assert bench.budget.used == 7
    assert bench.budget.used == 0


@pytest.mark.parametrize("connected", [True, False])
@run_async
async def test_after_a_breach_nothing_of_what_was_read_is_held(connected: bool) -> None:
    """Not even until the garbage collector comes: the error is kept, and has frames to hold."""
    bench = Bench()
    task = asyncio.create_task(bench.live())
    if connected:
        bench.receive(Connect("c", V5))
    many = {"user_property": [("a", "b")] * 5000}
    bench.wire.incoming.put_nowait(encode(Publish("t", b"x" * 60_000, properties=many), V5) + b"\xff" * 10)

    async def breach(client: Client, packet: Packet) -> None:
        if isinstance(packet, Connect):
            bench.connected()
        else:
            raise MqttError("a breach") from ValueError("with a cause")

    bench.handler = breach
    gc.disable()
    try:
        await turns(10)
        bench.packets.clear()
        assert bench.client.ending is not None and bench.client.ending.__traceback__ is None
        assert bench.client.ending.__cause__ is bench.client.ending.__context__ is None
        assert not any(isinstance(each, Publish) and len(each.payload) == 60_000 for each in gc.get_objects())
    finally:
        gc.enable()
        await task


@pytest.mark.parametrize("end", ["drop", "breach", "disconnect", "no CONNECT"])
@run_async
async def test_a_connection_that_is_gone_needs_no_garbage_collector(end: str) -> None:
    gc.collect()
    gc.disable()
    try:
        async with memory_broker(BY_HAND) as broker:
            before = sum(isinstance(each, Client) for each in gc.get_objects())
            peer = Peer(broker)
            if end == "no CONNECT":
                peer.send_raw(b"\xff\0")
            else:
                await peer.connect("c")
                peer.send_raw({"breach": b"\xff\0", "disconnect": b"\xe0\0"}.get(end, b"\xc0\0"))
                await peer.recv()
            peer.drop()
            await until(lambda: not broker._connections)
            await turns(10)
            assert sum(isinstance(each, Client) for each in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("connected", "short_of", "refused"),
    [(False, "low", True), (True, "low", False), (True, "spent", True), (False, "nothing", False)],
)
@run_async
async def test_a_large_packet_is_not_collected_while_memory_is_short(
    connected: bool, short_of: str, refused: bool
) -> None:
    bench = Bench()
    taken = {"nothing": 0, "low": bench.budget.maximum * 7 // 8, "spent": bench.budget.maximum}[short_of]
    bench.budget.take_anyway(taken)
    task = asyncio.create_task(bench.live())
    packet: Packet = Connect("c" * 60_000, V5, user_name="u" * 60_000)
    if connected:
        bench.receive(Connect("c", V5))
        packet = Publish("t", b"x" * 120_000)
    await turns()
    raw = encode(packet, V5)
    bench.wire.incoming.put_nowait(raw[:60_000])
    await turns()
    assert bench.client.ending is None, "as much as one read brings is none too many"
    bench.wire.incoming.put_nowait(raw[60_000:90_000])
    await turns()
    reason = bench.client.ending.reason if bench.client.ending else 0
    assert reason == (0x97 if refused else 0)
    bench.client.abort(ERROR)
    await asyncio.wait_for(task, 1)
    assert bench.budget.used == taken


@pytest.mark.parametrize(("connected", "short_of"), [(False, "low"), (True, "low"), (True, "spent")])
@run_async
async def test_who_stops_half_way_while_memory_is_short_has_a_moment(connected: bool, short_of: str) -> None:
    async with timed() as (broker, clock, peer):
        budget = broker._core.budget
        if connected:
            await peer.connect("c")
            await passes(broker, clock, 1000)
        peer.send_raw(encode(Publish("t", b"12345") if connected else Connect("c", V5), V5)[:-1])
        await turns()
        await passes(broker, clock, 5)
        others = {"low": budget.maximum * 7 // 8, "spent": budget.maximum}[short_of]
        budget.take_anyway(others)
        await passes(broker, clock, 0)
        if connected:
            assert (await peer.expect(Disconnect)).reason_code == 0x97
        await peer.expect_end()


@run_async
async def test_send_timeout_ends_a_socket_that_takes_nothing() -> None:
    async with timed(send_timeout=30) as (broker, clock, peer):
        await peer.connect("c", will=Will("will", b""))
        await peer.subscribe("big")
        watcher = broker.subscribe("will")
        for _ in range(3):
            await broker.publish("big", b"x" * 65536)
        await turns()
        assert broker.clients["c"].outbound.blocked
        await to_the_border(broker, clock, 30)
        await settle(broker, "c")
        assert (await anext(aiter(watcher))).topic_name == "will"
        assert message_bytes(broker) == 0


# ---- bursts, and peers that do not read


@pytest.mark.parametrize(
    ("blocked", "packets", "spent", "reason"),
    [
        (False, 0, True, None),  # it leaves at once and holds nothing
        (False, 300, False, None),
        (True, 0, False, None),
        (True, 9, False, None),
        (True, 10, False, "outbound_full"),
        (True, 0, True, "memory"),
        (True, 10, True, "outbound_full"),
    ],
)
@run_async
async def test_what_is_dropped_for_a_socket_that_takes_no_more(
    blocked: bool, packets: int, spent: bool, reason: str | None
) -> None:
    async with running(maximum_outbound_packets=10) as (bench, _):
        publish = bench.client.publish
        if blocked:
            bench.wire.stuck = True
            publish(Message("t"), 0, False, ())
            await turns()
        for _ in range(packets):
            publish(Message("t"), 0, False, ())
        assert not bench.drops
        if spent:
            bench.budget.take_anyway(bench.budget.maximum)
        assert publish(Message("t"), 0, False, ()) is (reason is None)
        assert bench.drops == ({reason: 1} if reason else {})
        assert publish(Message("t", b"", 1), 1, False, (), 1) is True, (
            "QoS 1 and 2 are the session's business"
        )
        bench.client.send(Pingresp())
        bench.wire.let_go()
        await turns()
        assert bench.wire.sent().endswith(b"\xd0\x00")
        if spent:
            bench.budget.give(bench.budget.maximum)


@run_async
async def test_a_burst_within_one_read_drops_nothing() -> None:
    async with memory_broker(BY_HAND) as broker:
        publisher, subscriber = Peer(broker), Peer(broker)
        await subscriber.connect("s")
        await subscriber.subscribe("t")
        await publisher.connect("p")
        count = 6000  # far above 256, and less than one read in bytes
        publisher.send(*(Publish("t", b"%d" % number) for number in range(count)))
        got = [(await subscriber.expect(Publish)).payload for _ in range(count)]
        assert got == [b"%d" % number for number in range(count)]
        assert not broker.stats.dropped
        assert message_bytes(broker) == 0


@run_async
async def test_a_reader_that_stops_loses_qos_0_alone_and_nobody_else_notices() -> None:
    config = Config(capacity=BY_HAND.capacity, limits=Limits(maximum_outbound_bytes=200_000))
    async with memory_broker(config) as broker:
        sleeper, bystander = Peer(broker), Peer(broker)
        await sleeper.connect("sleeper", properties={"receive_maximum": 20})
        await sleeper.subscribe("t/#", qos=1)
        await bystander.connect("bystander")
        await bystander.subscribe("t/#", qos=1)
        payload = b"x" * 1000
        largest = 0
        for number in range(700):
            await broker.publish("t/0", payload)
            await broker.publish(f"t/{number}", payload, qos=1)
            assert (await bystander.expect(Publish)).qos == 0
            bystander.send(Puback((await bystander.expect(Publish)).packet_id))
            largest = max(largest, message_bytes(broker))
        await turns()
        client = broker.clients["sleeper"]
        assert client.outbound.blocked
        assert client.dropped == Counter(outbound_full=broker.stats.dropped["outbound_full"])
        assert 0 < broker.stats.dropped["outbound_full"] < 700
        waiting = 700 * (len(payload) + 8 + OVERHEAD)
        assert largest < 200_000 + waiting + 10_000, "QoS 1 in the session once, and the bytes of the socket"

        topics, qos_0 = [], 0
        while len(topics) < 700:
            packet = await sleeper.expect(Publish)
            qos_0 += packet.qos == 0
            if packet.qos:
                topics.append(packet.topic_name)
                sleeper.send(Puback(packet.packet_id))
        assert topics == [f"t/{number}" for number in range(700)]
        assert qos_0 == 700 - broker.stats.dropped["outbound_full"]
        await sleeper.expect_nothing()
        assert message_bytes(broker) == 0
        assert not client.outbound.blocked


@run_async
async def test_qos_0_for_a_blocked_socket_is_dropped_when_the_byte_budget_is_spent() -> None:
    config = Config(capacity=Capacity(**NO_CLOCKWORK, maximum_bytes=50_000))
    async with memory_broker(config) as broker:
        sleeper = Peer(broker)
        await sleeper.connect("sleeper")
        await sleeper.subscribe("t")
        for _ in range(20):
            await broker.publish("t", b"x" * 10_000)
            await turns()
        assert broker.clients["sleeper"].outbound.blocked
        assert broker.stats.dropped["memory"] > 0
        assert message_bytes(broker) < 50_000 + 10_100


@run_async
async def test_a_peer_that_does_not_read_its_answers_is_not_read() -> None:
    async with memory_broker(BY_HAND) as broker:
        peer, bystander = Peer(broker), Peer(broker)
        await bystander.connect("good")
        await peer.connect("greedy", keep_alive=1)
        pings = 10 * 32_768  # each part is one read
        for _ in range(10):
            peer.send_raw(b"\xc0\x00" * (pings // 10))
            await turns(3)
        client = broker.clients["greedy"]
        await until(lambda: client.outbound._unblocked is not None, "the read loop waits")
        handled = broker.stats.messages_received
        assert client.outbound.swamped and client.handling
        assert handled <= 6 * 32_768
        assert message_bytes(broker) <= 4 * UNREAD_ACKS
        await turns(200)
        assert broker.stats.messages_received == handled, "it is not read any more"
        await bystander.expect_nothing()
        for _ in range(pings):
            await peer.expect(Pingresp)
        await peer.expect_nothing()
        assert message_bytes(broker) == 0
        assert not client.handling


@run_async
async def test_while_memory_is_short_few_answers_are_left_unread() -> None:
    async with memory_broker(BY_HAND) as broker:
        peer = Peer(broker)
        await peer.connect("greedy")
        client, budget = broker.clients["greedy"], broker._core.budget
        while not client.outbound.blocked:
            peer.send_raw(b"\xc0\x00" * 2048)
            await turns(10)
        peer.send_raw(b"\xc0\x00" * 2048)
        await turns(10)
        assert not client.outbound.swamped
        budget.take_anyway(budget.maximum)
        assert client.outbound.swamped
        budget.give(budget.maximum)


@pytest.mark.parametrize(("short", "qos", "seconds"), [(False, 0, 30), (True, 0, 2), (True, 1, 30)])
@run_async
async def test_while_memory_is_short_a_socket_that_takes_nothing_has_a_moment(
    short: bool, qos: int, seconds: int
) -> None:
    async with timed(send_timeout=30) as (broker, clock, peer):
        await peer.connect("c")
        await peer.subscribe("big", qos=qos)
        for _ in range(3):
            await broker.publish("big", b"x" * 65536, qos=qos)
        await turns()
        client, budget = broker.clients["c"], broker._core.budget
        assert client.outbound.blocked
        budget.take_anyway(short * budget.maximum)
        await to_the_border(broker, clock, seconds)
        await settle(broker, "c")
        budget.give(short * budget.maximum)


@run_async
async def test_retained_messages_come_as_fast_as_they_are_taken() -> None:
    """More of them than the session may queue: none is lost, and none piles up."""
    limits = Limits(maximum_queued_messages=100)
    async with memory_broker(Config(capacity=BY_HAND.capacity, limits=limits)) as broker:
        for number in range(2000):
            await broker.publish(f"r/{number}", b"x" * 100, qos=1, retain=True)
        kept = message_bytes(broker)
        peer = Peer(broker)
        await peer.connect("c", properties={"receive_maximum": 10})
        await peer.subscribe("r/#", qos=1)
        await turns(100)
        session = broker._core.sessions.get("c")
        assert session is not None and len(session.queue) <= 60
        await broker.publish("r/live", b"live", qos=1)
        seen: list[str] = []
        while len(seen) < 2001:
            packet = await peer.expect(Publish)
            seen.append(packet.topic_name)
            peer.send(Puback(packet.packet_id))
        assert sorted(seen) == sorted([*(f"r/{number}" for number in range(2000)), "r/live"])
        assert not broker.stats.dropped
        await peer.expect_nothing()
        assert message_bytes(broker) == kept


@run_async
async def test_retained_messages_wait_for_the_socket_also_while_memory_is_short() -> None:
    async with memory_broker(BY_HAND) as broker:
        for number in range(300):
            await broker.publish(f"r/{number}", b"x" * 10_000, retain=True)
        peer, budget = Peer(broker), broker._core.budget
        await peer.connect("c")
        budget.take_anyway(budget.maximum * 15 // 16)
        await peer.subscribe("r/#")
        seen = {(await peer.expect(Publish)).topic_name for _ in range(300)}
        assert len(seen) == 300 and not broker.stats.dropped
        budget.give(budget.maximum * 15 // 16)


# ---- what a message costs the loop


class Counting:
    """Counts the tasks and futures that a running loop makes."""

    def __init__(self) -> None:
        self.tasks = self.futures = 0

    def __enter__(self) -> Counting:
        self.loop = asyncio.get_running_loop()
        create_future, loop = self.loop.create_future, self.loop

        def future() -> asyncio.Future[Any]:
            self.futures += 1
            return create_future()

        def task(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
            self.tasks += 1
            return asyncio.Task(coroutine, loop=loop, **kwargs)

        loop.create_future = future  # type: ignore[method-assign]
        loop.set_task_factory(task)
        return self

    def __exit__(self, *_: object) -> None:
        del self.loop.create_future
        self.loop.set_task_factory(None)


async def joined(broker: Broker, client_id: str, *packets: Packet) -> Wire:
    """A client over a Wire, connected, whose *packets* are answered."""
    wire = Wire()
    broker._connections.accept(wire)
    wire.incoming.put_nowait(b"".join(encode(packet, V5) for packet in (Connect(client_id), *packets)))
    await until(lambda: client_id in broker.clients)
    await turns(10)
    wire.sent()
    return wire


@pytest.mark.parametrize("qos", [0, 1, 2])
@run_async
async def test_nothing_in_the_path_of_a_message_makes_a_task_or_a_future(qos: int) -> None:
    async with memory_broker(BY_HAND) as broker:
        subscribers = [
            await joined(broker, f"s{number}", Subscribe(1, [SubscribeRequest("t/+", qos)]))
            for number in range(3)
        ]
        publisher = await joined(broker, "p")
        with Counting() as counted:
            for start in range(0, 10_000, 500):  # twenty reads of 500 messages
                numbers = range(start, start + 500)
                chunk = b"".join(
                    encode(Publish(f"t/{n % 7}", b"x", qos, packet_id=n % 500 + 1 if qos else 0), V5)
                    for n in numbers
                )
                if qos == 2:
                    chunk += b"".join(b"\x62\x02" + (n % 500 + 1).to_bytes(2, "big") for n in numbers)
                publisher.incoming.put_nowait(chunk)
                await turns(10)
                for wire in subscribers if qos else ():  # the subscribers acknowledge, in one read each
                    wire.incoming.put_nowait(acknowledge_all(broker, wire, qos))
                await turns(10)
        assert broker.stats.publish_received == 10_000
        assert broker.stats.publish_sent == 30_000
        reads = 20 + 3 * 20 if qos else 20
        taken = qos < 2 and broker.config.capacity.fast_lane
        assert counted.tasks <= (0 if taken else reads), "one for each read that the fast lane leaves"
        assert counted.futures <= 1000, "a few for each read and each turn of the loop, none for a message"
        assert not broker.stats.dropped


def acknowledge_all(broker: Broker, wire: Wire, qos: int) -> bytes:
    [client] = [client for client in broker.clients.values() if client._connection is wire]
    assert client.session is not None
    wire.sent()
    inflight = client.session.inflight
    runs = (range(run.first, run.first + run.count) for run in inflight.runs or ())
    identifiers = [packet_id.to_bytes(2, "big") for packet_id in chain(inflight.entries, *runs)]
    if qos == 1:
        return b"".join(b"\x40\x02" + packet_id for packet_id in identifiers)
    return b"".join(first + packet_id for first in (b"\x50\x02", b"\x70\x02") for packet_id in identifiers)


@run_async
async def test_publishing_as_the_program_makes_none_either() -> None:
    async with memory_broker(BY_HAND) as broker:
        wire = await joined(broker, "s", Subscribe(1, [SubscribeRequest("t/+", 0)]))
        with Counting() as counted:
            for number in range(10_000):
                await broker.publish(f"t/{number % 7}", b"x", qos=number % 3)
            await turns()
        assert (counted.tasks, counted.futures) == (0, 0)
        assert wire.sent().count(b"\x30") >= 10_000
