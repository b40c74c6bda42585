"""Broker: its life, the embedded interface, what it admits, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from itertools import chain
from typing import Any

import pytest

from broker import (
    Broker,
    BrokerError,
    Capacity,
    Config,
    ConfigError,
    HookBase,
    Limits,
    Message,
    Protocol,
    QuotaExceeded,
    ReasonCode,
    TopicFilterInvalid,
    TopicNameInvalid,
    Version,
)
from broker.client import Client
from broker.errors import ProtocolError
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
from broker.session.session import Session
from broker.session.will import NEVER
from broker.transport.base import Peer as Address
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import Wire, turns, until

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
KEPT = {"session_expiry_interval": 1000}


def config(**fields: Any) -> Config:
    """Without a clockwork of its own; every field is given by its name alone."""
    given = {"sweep_interval": 0, "sys_interval": 0, "grace_time": 0.2, **fields}
    sections = {}
    for name, section in (("limits", Limits), ("capacity", Capacity), ("protocol", Protocol)):
        mine = {key: given.pop(key) for key in [*given] if key in section.__dataclass_fields__}
        sections[name] = section(**mine)
    assert not given, given
    return Config(**sections)


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


def clients_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Client) for each in gc.get_objects())


def port_of(broker: Broker, number: int = 0) -> int:
    return int(broker.addresses[number].rpartition(":")[2])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def hangs(*events: str) -> HookBase:
    """A hook whose *events* never come back; `entered` is set by the first."""
    entered = asyncio.Event()

    async def wait(self: HookBase, *args: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    made = type("Hanging", (HookBase,), dict.fromkeys(events, wait))()
    made.entered = entered
    return made


# ---- start and stop


@run_async
async def test_start_and_stop() -> None:
    broker = Broker(config(), listen=["tcp://127.0.0.1:0", "memory:"])
    assert broker.addresses == []
    await broker.stop()  # not started: nothing to do
    await broker.start()
    port = port_of(broker)
    assert broker.addresses == [f"tcp://127.0.0.1:{port}", "memory:"] and port > 0
    assert not is_free(port)
    with pytest.raises(BrokerError, match="started already"):
        await broker.start()
    await broker.stop()
    await broker.stop()
    assert broker.addresses == [] and is_free(port)
    assert not others()


@run_async
async def test_it_can_be_started_again() -> None:
    broker = memory_broker(config())
    for _ in range(3):
        async with broker:
            peer = Peer(broker)
            await peer.connect("c", clean_start=False, properties=KEPT)
        assert not others()
    async with broker:
        assert (await Peer(broker).connect("c", clean_start=False)).session_present


@run_async
async def test_the_block_ends_it_whatever_happens() -> None:
    broker = memory_broker(config())
    with pytest.raises(ZeroDivisionError):
        async with broker as entered:
            assert entered is broker
            raise ZeroDivisionError
    assert broker.addresses == [] and not others()


@run_async
async def test_serve_starts_and_request_stop_ends_it() -> None:
    broker = memory_broker(config())
    broker.request_stop()  # before there is anything to stop
    serving = asyncio.create_task(broker.serve())
    await until(lambda: broker.addresses)
    await turns()
    assert not serving.done()
    broker.request_stop()
    await asyncio.wait_for(serving, 1)
    assert broker.addresses == [] and not others()


@run_async
async def test_serve_inside_the_block() -> None:
    async with memory_broker(config()) as broker:
        serving = asyncio.create_task(broker.serve())
        await turns()
        broker.request_stop()
        await asyncio.wait_for(serving, 1)
        assert broker.addresses == []


@pytest.mark.parametrize("version", [V5, V3])
@run_async
async def test_cancelling_serve_is_a_clean_stop(version: Version) -> None:
    broker = memory_broker(config())
    serving = asyncio.create_task(broker.serve())
    await until(lambda: broker.addresses)
    peer = Peer(broker, version)
    await peer.connect("c")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    if version is V5:
        assert (await peer.expect(Disconnect)).reason_code == 0x8B
    await peer.expect_end()
    assert broker.addresses == [] and not broker.clients and not others()


@run_async
async def test_cancelled_while_it_starts() -> None:
    hook = hangs("init")
    broker = memory_broker(config(), hooks=[hook])
    serving = asyncio.create_task(broker.serve())
    await hook.entered.wait()  # type: ignore[attr-defined]
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert broker.addresses == [] and not others()


@run_async
async def test_cancelled_twice_it_waits_for_nobody() -> None:
    broker = memory_broker(config(grace_time=60))
    serving = asyncio.create_task(broker.serve())
    await until(lambda: broker.addresses)
    peer = await sleeper(broker)
    serving.cancel()
    await turns(20)
    assert not serving.done(), "somebody still reads"
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(ConnectionResetError):
        while await peer.recv():
            pass
    await until(lambda: not others())


class Stopped(HookBase):
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def init(self, broker: Any) -> None:
        self.calls.append("init")

    async def stop(self) -> None:
        self.calls.append("stop")


@run_async
async def test_a_port_in_use_leaves_nothing_open() -> None:
    hook = Stopped()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port, free = taken.getsockname()[1], socket.create_server(("127.0.0.1", 0))
        first = free.getsockname()[1]
        free.close()
        listen = [f"tcp://127.0.0.1:{first}", f"tcp://127.0.0.1:{port}", "tcp://127.0.0.1:0"]
        broker = Broker(config(), listen=listen, hooks=[hook])
        with pytest.raises(OSError, match=f"cannot listen on tcp://127.0.0.1:{port}"):
            await broker.start()
        assert broker.addresses == [] and is_free(first) and not others()
        assert hook.calls == ["init", "stop"]
    async with broker:  # the port is free by now
        assert [port_of(broker, number) for number in (0, 1)] == [first, port]
    assert hook.calls == ["init", "stop"] * 2


@run_async
async def test_who_came_in_while_the_start_failed_is_let_go() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        listen = ["memory:", f"tcp://127.0.0.1:{taken.getsockname()[1]}"]
        broker = Broker(config(), listen=listen)
        starting = asyncio.create_task(broker.start())
        await until(lambda: broker.listeners)
        early = Peer(broker)
        early.send(Connect("early"))
        with pytest.raises(OSError, match="cannot listen"):
            await starting
        with suppress(ConnectionResetError):
            assert isinstance(await early.recv(), Connack | None)
            assert isinstance(await early.recv(), Disconnect | None)
    assert not broker.clients and not broker._connections and not others()


@pytest.mark.parametrize("url", ["tls://127.0.0.1:0", "tcp://127.0.0.1:99999", "http://x"])
@run_async
async def test_an_address_that_cannot_be_is_an_error_of_the_settings(url: str) -> None:
    with pytest.raises(ConfigError):
        await Broker(listen=["memory:", url]).start()
    assert not others()


# ---- what stop does


async def sleeper(broker: Broker, messages: int = 100, size: int = 2000) -> Peer:
    """A client that has read its SUBACK and nothing since; its socket takes no more."""
    peer = Peer(broker)
    await peer.connect("sleeper")
    await peer.subscribe("t")
    for number in range(messages):
        await broker.publish("t", b"%03d" % number + b"x" * size)
        await turns(2)
    assert broker.clients["sleeper"].outbound.blocked
    return peer


@run_async
async def test_stop_lets_a_slow_reader_take_what_is_queued() -> None:
    broker = memory_broker(config(grace_time=30))
    await broker.start()
    broker.listeners[0]._linger = 0.01  # type: ignore[attr-defined]
    peer, quick = await sleeper(broker), Peer(broker)
    await quick.connect("quick")
    stopping = asyncio.create_task(broker.stop())
    assert (await quick.expect(Disconnect)).reason_code == 0x8B, "the others do not wait for it"
    await asyncio.sleep(0.05)  # far beyond the time that a closed connection lingers
    assert not stopping.done()
    got = [(await peer.expect(Publish)).payload[:3] for _ in range(100)]
    assert got == [b"%03d" % number for number in range(100)]
    assert (await peer.expect(Disconnect)).reason_code == 0x8B
    await peer.expect_end()
    await asyncio.wait_for(stopping, 1)
    assert broker._core.budget.used == 0 and not others()


@run_async
async def test_stop_waits_no_longer_than_the_grace_time() -> None:
    broker = memory_broker(config(grace_time=0.1))
    await broker.start()
    peer = await sleeper(broker)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await broker.stop()
    assert 0.09 <= loop.time() - began < 0.19
    with pytest.raises(ConnectionResetError):
        while await peer.recv():
            pass
    assert broker._core.budget.used == 0 and not broker.clients and not others()


@run_async
async def test_wills_of_sessions_that_end_are_published_at_stop() -> None:
    async with memory_broker(config()) as broker:
        watcher = broker.subscribe("will/#")
        for client_id, properties in (("a", {}), ("b", KEPT), ("c", {})):
            peer = Peer(broker)
            delay = {"will_delay_interval": 10}
            will = Will(f"will/{client_id}", b"", properties=delay if client_id != "c" else {})
            await peer.connect(client_id, will=will, properties=properties)
        await broker.stop()
        watcher.close()
        assert sorted([message.topic_name async for message in watcher]) == ["will/a", "will/c"]


@run_async
async def test_a_hook_that_hangs_does_not_hold_up_the_stop() -> None:
    broker = memory_broker(config(grace_time=0.05), hooks=[hangs("on_disconnect")])
    await broker.start()
    peer = Peer(broker)
    await peer.connect("c")
    await asyncio.wait_for(broker.stop(), 1)
    assert (await peer.expect(Disconnect)).reason_code == 0x8B
    assert not others()


@run_async
async def test_a_will_that_waits_for_a_hook_does_not_hold_up_the_stop_either() -> None:
    clock = Clock()
    hook = hangs("on_publish")
    broker = memory_broker(config(grace_time=0.05), hooks=[hook], clock=clock)
    await broker.start()
    peer = Peer(broker)
    await peer.connect("c", will=Will("w", b"", properties={"will_delay_interval": 5}), properties=KEPT)
    peer.drop()
    await settle(broker, "c")
    clock.now += 5
    sweeping = asyncio.create_task(broker.sweep())
    await hook.entered.wait()  # type: ignore[attr-defined]
    await asyncio.wait_for(broker.stop(), 1)
    await asyncio.gather(sweeping, return_exceptions=True)
    assert not others()


@run_async
async def test_nobody_comes_in_after_stop() -> None:
    broker = memory_broker(config())
    await broker.start()
    listener = broker.listeners[0]
    await broker.stop()
    with pytest.raises(ConnectionRefusedError):
        listener.connect()  # type: ignore[attr-defined]
    wire = Wire()
    broker._accept(wire)  # accepted by a listener in the same moment
    assert wire.aborted and not broker._connections


WAYS_TO_LEAVE: dict[str, Callable[[Broker, Peer], Awaitable[object]]] = {}


def way(leaves: Callable[[Broker, Peer], Awaitable[object]]) -> Callable[[Broker, Peer], Awaitable[object]]:
    WAYS_TO_LEAVE[leaves.__name__] = leaves
    return leaves


@way
async def says_disconnect(broker: Broker, peer: Peer) -> None:
    peer.send(Disconnect())


@way
async def cuts(broker: Broker, peer: Peer) -> None:
    peer.drop()


@way
async def breaks_the_protocol(broker: Broker, peer: Peer) -> None:
    peer.send_raw(b"\x00\x00")


@way
async def is_kicked(broker: Broker, peer: Peer) -> None:
    await broker.disconnect("c")


@way
async def is_taken_over(broker: Broker, peer: Peer) -> None:
    other = Peer(broker)
    await other.connect("c", clean_start=False, user_name="ada")
    other.send(Disconnect())


@pytest.mark.parametrize("name", [*WAYS_TO_LEAVE])
def test_nothing_of_a_client_stays(name: str) -> None:
    async def run() -> None:
        before = clients_in_memory()
        async with memory_broker(config()) as broker:
            for _ in range(3):
                peer = Peer(broker)
                kept = {} if name == "is_taken_over" else {"clean_start": False, "properties": KEPT}
                await peer.connect("c", will=Will("w", b"x"), user_name="ada", **kept)
                await peer.subscribe("t/#", "$share/g/u", qos=2)
                await broker.publish("t/1", b"x", qos=2)
                await WAYS_TO_LEAVE[name](broker, peer)
                await until(lambda: not broker._connections)
                assert await broker.delete_session("c") is (name != "is_taken_over")
            await turns()
            assert not others(), "no task is left"
            del peer
            assert clients_in_memory() == before, "and no Client, while the broker goes on"
            assert not broker._core.users and not broker._addresses
            assert broker._core.budget.used == 0
            assert broker._core.tree.count == 0
            gc.collect()
            kept = [each for each in gc.get_objects() if isinstance(each, Session)]
            assert len(kept) <= 3, "reminders of deadlines hold sessions, but only a bounded number"

    asyncio.run(run())


@run_async
async def test_two_brokers_in_one_loop() -> None:
    async with memory_broker(config()) as one, memory_broker(config()) as two:
        first, second = Peer(one), Peer(two)
        await first.connect("c")
        await second.connect("c")
        await first.subscribe("t")
        await second.subscribe("t")
        await one.publish("t", b"1", retain=True)
        assert (await first.expect(Publish)).payload == b"1"
        await second.expect_nothing()
        assert await two.disconnect("c") and list(one.clients) == ["c"]
        await one.stop()
        assert (await first.expect(Disconnect)).reason_code == 0x8B
        third = Peer(two)
        await third.connect("d")
        await third.expect_nothing()


@run_async
async def test_no_signal_handlers_and_no_logging_is_set_up() -> None:
    numbers = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]
    before = [signal.getsignal(number) for number in numbers]
    handlers = [logging.getLogger(name).handlers[:] for name in (None, "broker", "broker.client")]
    async with memory_broker(config()):
        assert [signal.getsignal(number) for number in numbers] == before
        assert not asyncio.get_running_loop()._signal_handlers  # type: ignore[attr-defined]
    assert [logging.getLogger(name).handlers for name in (None, "broker", "broker.client")] == handlers


# ---- publish


async def received(broker: Broker, topic_filter: str = "#", **options: Any) -> list[Message]:
    """What a new subscription of the program starts with."""
    local = broker.subscribe(topic_filter, **options)
    local.close()
    return [message async for message in local]


@run_async
async def test_publish_gives_the_code_that_a_client_would_get() -> None:
    async with memory_broker(config()) as broker:
        assert await broker.publish("t") == ReasonCode.NO_MATCHING_SUBSCRIBERS
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("#", "$app/#", qos=2)
        assert await broker.publish("t", "text €", qos=2, properties={"content_type": "text/plain"}) == 0
        packet = await peer.expect(Publish)
        assert (packet.payload, packet.qos, packet.retain) == ("text €".encode(), 2, False)
        assert packet.properties == {"content_type": "text/plain"}
        assert await broker.publish("$app/x", bytearray(b"1")) == 0, "$ topics are the program's too"
        assert (await peer.expect(Publish)).payload == b"1"
        assert await broker.publish("t", memoryview(b"2")) == 0  # type: ignore[arg-type]
        assert (await peer.expect(Publish)).payload == b"2"


BAD_PUBLISHES: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"topic_name": ""}, TopicNameInvalid),
    ({"topic_name": "a/+"}, TopicNameInvalid),
    ({"topic_name": "a\0b"}, TopicNameInvalid),
    ({"topic_name": "x" * 65536}, TopicNameInvalid),
    ({"topic_name": "\ud800"}, TopicNameInvalid),
    ({"qos": 3}, ProtocolError),
    ({"qos": -1}, ProtocolError),
    ({"qos": "1"}, ProtocolError),
    ({"properties": {"content_typ": "x"}}, ProtocolError),
    ({"properties": {"session_expiry_interval": 1}}, ProtocolError),
    ({"properties": {"content_type": 1}}, ProtocolError),
    ({"properties": {"content_type": "\ud800"}}, ProtocolError),
    ({"properties": {"content_type": "x" * 65536}}, ProtocolError),
    ({"properties": {"payload_format_indicator": 2}}, ProtocolError),
    ({"properties": {"message_expiry_interval": -1}}, ProtocolError),
    ({"properties": {"message_expiry_interval": 1 << 32}}, ProtocolError),
    ({"properties": {"message_expiry_interval": "60"}}, ProtocolError),
    ({"properties": {"message_expiry_interval": 1.5}}, ProtocolError),
    ({"properties": {"message_expiry_interval": None}}, ProtocolError),
    ({"properties": {"response_topic": "a/#"}}, ProtocolError),
    ({"properties": {"correlation_data": "text"}}, ProtocolError),
    ({"properties": {"user_property": [("a",)]}}, ProtocolError),
    ({"properties": {"user_property": [("a", 1)]}}, ProtocolError),
    ({"properties": {"user_property": "ab"}}, ProtocolError),
    ({"payload": 5}, TypeError),
    ({"payload": None}, TypeError),
    ({"payload": [1, 2]}, TypeError),
]


@pytest.mark.parametrize(("fields", "error"), BAD_PUBLISHES, ids=repr)
@run_async
async def test_publish_refuses_what_no_publish_can_carry(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("#")
        with pytest.raises(error):
            await broker.publish(**{"topic_name": "t", "retain": True, **fields})
        await peer.expect_nothing()
        assert await received(broker) == []


@run_async
async def test_properties_of_a_client_alone_do_not_travel() -> None:
    async with memory_broker(config()) as broker:
        local = broker.subscribe("t")
        await broker.publish(
            "t", properties={"topic_alias": 3, "subscription_identifier": [5], "content_type": "c"}
        )
        assert (await anext(aiter(local))).properties == {"content_type": "c"}


@run_async
async def test_what_cannot_be_retained_is_not_published() -> None:
    async with memory_broker(config(maximum_retained_messages=1)) as broker:
        local = broker.subscribe("#")
        await broker.publish("a", b"1", retain=True)
        with pytest.raises(QuotaExceeded):
            await broker.publish("b", b"2", retain=True)
        local.close()
        assert [message.topic_name async for message in local] == ["a"]


@run_async
async def test_a_message_of_the_program_expires_like_any_other() -> None:
    clock = Clock()
    async with memory_broker(config(), clock=clock) as broker:
        await broker.publish("t", b"x", retain=True, properties={"message_expiry_interval": 10})
        clock.now += 9.5
        [message] = await received(broker)
        assert message.expires_at == 1010
        clock.now += 0.5
        assert await received(broker) == []
        await broker.sweep()
        assert broker._core.budget.used == 0


# ---- subscribe


@run_async
async def test_a_subscription_starts_with_the_retained_messages_and_is_live() -> None:
    async with memory_broker(config()) as broker:
        await broker.publish("a/1", b"kept", retain=True)
        local, none = broker.subscribe("a/+"), broker.subscribe("a/+", retained=False)
        await broker.publish("a/1", b"newer", retain=True)
        await broker.publish("a/2", b"live")
        for each in (local, none):
            each.close()
        assert [message.payload async for message in local] == [b"kept", b"newer", b"live"]
        assert [message.payload async for message in none] == [b"newer", b"live"]
        assert broker._core.tree.count == 0


@run_async
async def test_it_takes_part_in_a_group() -> None:
    async with memory_broker(config()) as broker:
        await broker.publish("t", b"kept", retain=True)
        members = [broker.subscribe("$share/g/t") for _ in range(2)]
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("$share/g/t")
        for number in range(6):
            await broker.publish("t", b"%d" % number)
        for each in members:
            each.close()
        got = [[message.payload async for message in each] for each in members]
        got.append([(await peer.expect(Publish)).payload for _ in range(2)])
        assert [len(each) for each in got] == [2, 2, 2]
        assert sorted(chain(*got)) == [b"%d" % number for number in range(6)], "and none that was retained"


@run_async
async def test_a_full_member_is_passed_over() -> None:
    async with memory_broker(config()) as broker:
        small, large = broker.subscribe("$share/g/t", maximum=1), broker.subscribe("$share/g/t")
        for number in range(5):
            await broker.publish("t", b"%d" % number)
        for each in (small, large):
            each.close()
        assert len([message async for message in small]) == 1
        assert len([message async for message in large]) == 4
        assert not broker.stats.dropped


@run_async
async def test_one_that_does_not_keep_up_is_counted() -> None:
    drops: list[tuple[str, str]] = []

    class Watch(HookBase):
        def on_dropped(self, client_id: str, message: Message | None, reason: str) -> None:
            drops.append((client_id, reason))

    async with memory_broker(config(), hooks=[Watch()]) as broker:
        local = broker.subscribe("t", maximum=2)
        for number in range(5):
            await broker.publish("t", b"%d" % number)
        assert broker.stats.dropped == {"queue_full": 3}
        assert drops == [(local.client_id, "queue_full")] * 3


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "$share/g", "$share//t", "$share/+/t", "a\0"])
@run_async
async def test_a_filter_that_cannot_be(topic_filter: str) -> None:
    async with memory_broker(config()) as broker:
        with pytest.raises(TopicFilterInvalid):
            broker.subscribe(topic_filter)
        assert broker._core.tree.count == 0


# ---- clients and disconnect


@run_async
async def test_clients_is_live_and_read_only() -> None:
    async with memory_broker(config()) as broker:
        clients = broker.clients
        assert len(clients) == 0
        peer = Peer(broker)
        await peer.connect("c", user_name="ada")
        assert list(clients) == ["c"]
        assert (clients["c"].client_id, clients["c"].info.user_name) == ("c", "ada")
        with pytest.raises(TypeError):
            clients["d"] = clients["c"]  # type: ignore[index]
        with pytest.raises((TypeError, AttributeError)):
            del clients["c"]  # type: ignore[attr-defined]
        peer.drop()
        await settle(broker, "c")
        assert "c" not in clients


@pytest.mark.parametrize(
    ("code", "said"), [(None, 0x98), (0x97, 0x97), (0x00, 0x00), (0x91, 0x80), (0x9D, 0x9D)]
)
@run_async
async def test_disconnect(code: int | None, said: int) -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await broker.disconnect("d") is False
        assert await broker.disconnect("c", *([] if code is None else [code])) is True
        assert not broker.clients and not broker._connections, "when it returns, it is gone"
        assert (await peer.expect(Disconnect)).reason_code == said
        await peer.expect_end()
        assert await broker.disconnect("c") is False


@run_async
async def test_disconnect_of_what_is_no_code() -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        with pytest.raises(ValueError, match="999"):
            await broker.disconnect("c", 999)
        await peer.expect_nothing()


@run_async
async def test_disconnect_waits_for_a_hook_that_hangs_no_longer_than_the_grace_time() -> None:
    async with memory_broker(config(grace_time=0.05), hooks=[hangs("on_disconnect")]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await asyncio.wait_for(broker.disconnect("c"), 1) is True
        assert not broker.clients
        assert (await peer.expect(Disconnect)).reason_code == 0x98


@run_async
async def test_a_hook_may_disconnect_its_own_client_and_another() -> None:
    class Kick(HookBase):
        async def init(self, broker: Any) -> None:
            self.broker = broker

        async def on_publish(self, client: Any, message: Message) -> None:
            assert await self.broker.disconnect(message.topic_name)

    async with memory_broker(config(), hooks=[Kick()]) as broker:
        a, b = Peer(broker), Peer(broker)
        await a.connect("a")
        await b.connect("b")
        a.send(Publish("b"))
        assert (await b.expect(Disconnect)).reason_code == 0x98
        a.send(Publish("a"))
        assert (await a.expect(Disconnect)).reason_code == 0x98
        await until(lambda: not broker._connections)


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
            broker._accept(wire)
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
            broker._accept(wire)
        assert [wire.aborted for wire in wires] == [0, 0, 1, 0, 0, 0, 1, 0]
        wires[0].incoming.put_nowait(b"")
        await until(lambda: len(broker._connections) == 5)
        late = from_address("10.0.0.1:5004")
        broker._accept(late)
        assert not late.aborted
        for _ in range(5):
            assert Peer(broker), "connections in memory have no address"


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
async def test_the_byte_budget_of_the_process_refuses() -> None:
    async with memory_broker(config()) as broker:
        away, peer, budget = Peer(broker), Peer(broker), broker._core.budget
        await away.connect("away", properties=KEPT)
        await away.subscribe("t", qos=1)
        away.drop()
        await peer.connect("c")
        before = budget.used
        others = budget.maximum - before - 900  # somebody else holds all but 900 bytes
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
        broker._accept(wire)
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
        old.leaving = None  # as if the takeover had not marked it
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
    async with memory_broker(config()) as broker:
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
        assert broker._core.turns._locks == {}


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


def test_a_bug_at_a_deadline_is_logged_and_the_broker_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def publish_owned(message: Message) -> None:
        raise ZeroDivisionError("a bug of ours")

    async def run() -> None:
        clock = Clock()
        async with memory_broker(config(sweep_interval=0.005), clock=clock) as broker:
            monkeypatch.setattr(broker._core.router, "publish_owned", publish_owned)
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
            broker._accept(wire)
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
