"""Client: its ends, once and twice, by a bug, and while a hook waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from broker import Capacity, Config, HookBase, Message, MqttError, ReasonCode, Version
from broker.client import Client, Phase
from broker.handle import dispatch as dispatching
from broker.packet.packets import (
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    Will,
)
from tests.client_bench import BY_HAND, ERROR, NO_CLOCKWORK, V3, V5, Bench, running
from tests.peer import Peer, memory_broker, message_bytes, run_async, settle
from tests.wire import turns, until

SECOND = MqttError("second", ReasonCode.QUOTA_EXCEEDED)
DISCONNECTS = {V5: b"\xe0\x1a\x98\x18\x1f\x00\x15Administrative action", V3: b""}

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
        bench.client.own_reader().version = version
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
    bench.client.flush()
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
        assert bench.client.blocked and bench.budget.used > 0
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
        plain = Config(capacity=Capacity(**NO_CLOCKWORK, fast_lane=False))  # so that a handler is asked
        async with memory_broker(plain) as broker:
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
            broker.clients["bad"].feed("a", failing())
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
            broker.clients["c"].feed("a", failing())
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
