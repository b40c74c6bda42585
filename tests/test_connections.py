"""Who serves a client: the loop itself what waits for nothing, else a task."""

from __future__ import annotations

import asyncio
import select
import ssl
from typing import Any

import pytest

from broker import Broker, Capacity, Config, HookBase, Version
from broker.client import Client
from broker.errors import MqttError
from broker.handle import dispatch
from broker.hook.base import ClientInfo
from broker.outbound import NO_PACKETS
from broker.packet.codec import encode
from broker.packet.packets import Connect, Disconnect, Publish, Subscribe, SubscribeRequest
from broker.session.inflight import NO_DELIVERIES, NO_ENTRIES, NO_HELD
from broker.transport.base import TransportOptions
from broker.transport.epoll import EpollConnection
from broker.transport.listen import SocketListener
from broker.transport.tcp import TcpConnection
from broker.transport.tls import TlsConnection
from broker.transport.websocket import WebSocketConnection
from tests.peer import Peer, memory_broker, run_async, settle
from tests.wire import Wire, until

CONNECT = encode(Connect("c"), Version.MQTT_5)
SERVING = {"serve_client", "Rest", "_leave"}


def count_tasks() -> list[str]:
    """From now on, the names of what gets a task to serve a client."""
    names: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        name = getattr(work, "__qualname__", type(work).__name__)
        if name in SERVING:
            names.append(name)
        return asyncio.Task(work, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(factory)
    return names


def arrive(broker: Broker, data: bytes) -> tuple[Wire, Client]:
    """A connection on which *data* arrives now."""
    wire = Wire()
    broker._connections.accept(wire)
    client = next(client for client in broker._connections if client._connection is wire)
    wire.incoming.put_nowait(data)
    return wire, client


@run_async
async def test_what_waits_for_nothing_gets_no_task() -> None:
    async with memory_broker() as broker:
        tasks, peer = count_tasks(), Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t", qos=1)
        assert await peer.publish("u", b"x", qos=1) == 0x10
        peer.send(Disconnect())
        await settle(broker, "c")
        await until(lambda: not len(broker._connections))
        assert tasks == []


@run_async
async def test_an_end_without_disconnect_gets_one() -> None:
    async with memory_broker() as broker:
        tasks, peer = count_tasks(), Peer(broker)
        await peer.connect("c")
        peer.drop()
        await settle(broker, "c")
        assert tasks == ["serve_client"]


@run_async
async def test_what_waits_goes_on_in_a_task_and_what_comes_later_behind_it() -> None:
    async with memory_broker() as broker:
        tasks = count_tasks()
        async with broker._core.turns.of("c"):
            wire, client = arrive(broker, CONNECT)
            wire.incoming.put_nowait(bytes.fromhex("c000"))
            assert tasks == ["Rest"] and wire.writes == []
        await until(lambda: b"".join(wire.writes).endswith(bytes.fromhex("d000")))
        assert wire.writes[0][0] == 0x20 and broker.clients["c"] is client


@run_async
async def test_ended_before_its_task_has_begun() -> None:
    async with memory_broker() as broker:
        async with broker._core.turns.of("c"):
            wire, client = arrive(broker, CONNECT)
            client.end(MqttError("ended at once"))
            client.cancel()
            await until(lambda: not len(broker._connections))
        assert client.over and wire.closed and broker._core.turns._waiting == {}
        assert (await Peer(broker).connect("c")).reason_code == 0


async def asks(client: Any, value: Any) -> Any:
    """A hook that uses what needs a task, before it waits for the first time and after."""
    assert asyncio.current_task() is not None
    async with asyncio.timeout(1):
        await asyncio.sleep(0)
    return value


class Asks(HookBase):
    async def on_connect(self, client: Any, packet: Any) -> Any:
        return await asks(client, packet)

    async def on_subscribe(self, client: Any, request: Any) -> Any:
        return await asks(client, request)

    async def on_publish(self, client: Any, message: Any) -> Any:
        return await asks(client, message)


class Gives(HookBase):
    """As Asks, by plain functions that give a coroutine."""

    def on_connect(self, client: Any, packet: Any) -> Any:
        return asks(client, packet)

    def on_subscribe(self, client: Any, request: Any) -> Any:
        return asks(client, request)

    def on_publish(self, client: Any, message: Any) -> Any:
        return asks(client, message)


@pytest.mark.parametrize("hook", [Asks, Gives])
@run_async
async def test_coroutines_of_hooks_run_in_a_task(hook: type[HookBase]) -> None:
    async with memory_broker(hooks=[hook()]) as broker:
        peer = Peer(broker)
        assert (await peer.connect("c")).reason_code == 0
        assert (await peer.subscribe("t", qos=1)).reason_codes == [1]
        assert await peer.publish("u", b"x", qos=1) == 0x10


class Plain(HookBase):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_connect(self, client: Any, packet: Any) -> None:  # type: ignore[override]
        self.told.append("connect")

    def on_publish(self, client: Any, message: Any) -> None:  # type: ignore[override]
        self.told.append("publish")

    def on_disconnect(self, client: Any, reason: int, text: str) -> None:  # type: ignore[override]
        self.told.append("disconnect")


@run_async
async def test_plain_hooks_need_no_task() -> None:
    hook = Plain()
    async with memory_broker(hooks=[hook]) as broker:
        tasks, peer = count_tasks(), Peer(broker)
        await peer.connect("c")
        assert await peer.publish("u", b"x", qos=1) == 0x10
        assert tasks == []
        peer.send(Disconnect())
        await until(lambda: not len(broker._connections))
    assert hook.told == ["connect", "publish", "disconnect"]


@run_async
async def test_a_hook_that_gave_a_coroutine_is_not_called_after_the_end() -> None:
    async with memory_broker(hooks=[Gives()]) as broker:
        wire, client = arrive(broker, CONNECT)
        client.end(MqttError("ended at once"))
        await until(lambda: not len(broker._connections))
        assert client.over and wire.closed and not client.info.authenticated


@run_async
async def test_what_all_share_while_they_have_none_stays_empty() -> None:
    async with memory_broker() as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t", qos=2)
        await other.connect("d")
        for number in (1, 2, 3):
            other.send(Publish("t", b"x", 1, packet_id=number))
        await peer.expect(Publish)
        peer.send(Disconnect())
        await settle(broker, "c")
        assert NO_PACKETS == [] and NO_ENTRIES == NO_HELD == {} and not NO_DELIVERIES


def test_what_hooks_keep_with_a_connection() -> None:
    info = ClientInfo("c")
    info.attributes["mine"] = 7
    info.user_properties.append(("a", "b"))
    assert info.attributes == {"mine": 7} and info.user_properties == [("a", "b")]
    info.user_properties = []
    assert info.user_properties == [] and ClientInfo("d").attributes == {}


class Cancelled(HookBase):
    """Asks a future that was cancelled: what it raises is no cancellation of ours."""

    def can_read(self, client_id: str, topic_name: str) -> bool:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.cancel()
        return future.result()


@run_async
async def test_a_plain_hook_that_lets_a_cancellation_out_has_failed() -> None:
    async with memory_broker(hooks=[Cancelled()]) as broker:
        subscriber, publisher = Peer(broker), Peer(broker)
        await subscriber.connect("s")
        await subscriber.subscribe("t")
        await publisher.connect("p")
        assert await publisher.publish("t", b"x", qos=1) == 0, "the publisher has nothing to do with it"
        await subscriber.expect_nothing()
        assert broker.stats.dropped == {"not_authorized": 1}


@run_async
async def test_a_cancellation_from_anywhere_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancelled(*_: Any) -> None:
        raise asyncio.CancelledError

    async with memory_broker() as broker:
        peer = Peer(broker)
        await peer.connect("c")
        monkeypatch.setitem(dispatch.HANDLERS, Subscribe, cancelled)
        peer.send(Subscribe(1, [SubscribeRequest("t")]))
        await until(lambda: not len(broker._connections))
        await settle(broker, "c")
    assert broker._core.budget.used == 0


def test_what_another_loop_left_to_be_flushed_does_not_hold_up_the_next() -> None:
    broker = memory_broker(Config(capacity=Capacity(sweep_interval=0)))
    first = asyncio.new_event_loop()

    async def begin() -> None:
        await broker.start()
        await Peer(broker).connect("c")

    def end_in_the_middle() -> None:
        broker._core.clients["c"].put(b"\xd0\0")
        first.stop()

    first.run_until_complete(begin())
    first.call_soon(end_in_the_middle)
    first.run_forever()
    first.close()

    async def again() -> None:
        await broker.stop()
        async with broker:
            assert (await Peer(broker).connect("d")).reason_code == 0

    asyncio.run(again())


@run_async
async def test_a_connection_counts_as_much_as_its_kind_takes() -> None:
    """Epoll a fifth of asyncio, and TLS and WebSocket what is below them and more."""

    def raw(cost: int) -> Wire:
        wire = Wire()
        wire.cost = cost
        return wire

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    encrypted = TlsConnection(raw(EpollConnection.cost), context)  # type: ignore[arg-type]
    framed = WebSocketConnection(encrypted, TransportOptions(), None)
    assert EpollConnection.cost * 4 < TcpConnection.cost
    assert TcpConnection.cost < encrypted.cost < framed.cost
    async with memory_broker() as broker:
        before = broker._core.budget.used
        wire = raw(framed.cost)
        broker._connections.accept(wire)
        assert broker._core.budget.used == before + framed.cost
        wire.incoming.put_nowait(b"")
        await until(lambda: not len(broker._connections))
        assert broker._core.budget.used == before


@run_async
async def test_what_a_turn_brings_is_written_before_the_loop_goes_on() -> None:
    """By each listener of a broker, also when it was started again."""
    config = Config(capacity=Capacity(sweep_interval=0, sys_interval=0), listen=("tcp://127.0.0.1:0",) * 2)
    broker = Broker(config)
    for _ in range(2):
        async with broker:
            for number, listener in enumerate(broker._listeners):
                assert isinstance(listener, SocketListener) and listener._poll is not None
                port = int(broker.addresses[number].rpartition(":")[2])
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(encode(Connect(f"c{number}"), Version.MQTT_5))
                assert await reader.read(1) == b"\x20"
                await until(lambda: f"c{number}" in broker.clients)  # noqa: B023
                before = broker.stats.bytes_sent
                writer.write(b"\xc0\0")
                assert select.select([listener._poll.epoll], [], [], 10)[0]
                listener._poll._turn()  # and nothing else
                assert broker.stats.bytes_sent == before + 2
                writer.close()
