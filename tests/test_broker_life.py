"""The life of a Broker: start, serve, stop, and nothing left over."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from contextlib import closing, suppress
from typing import Any

import pytest

from broker import (
    Broker,
    BrokerError,
    ConfigError,
    HookBase,
    Version,
)
from broker.packet.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Will,
)
from broker.session.session import Session
from tests.broker_scenes import (
    KEPT,
    V3,
    V5,
    WAYS_TO_LEAVE,
    clients_in_memory,
    config,
    hangs,
    is_free,
    others,
    port_of,
)
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import Wire, turns, until

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
    assert broker.clients["sleeper"].blocked
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
    broker._connections.accept(wire)  # accepted by a listener in the same moment
    assert wire.aborted and not broker._connections


def sessions_in_memory() -> list[Session]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Session)]


@pytest.mark.parametrize("name", [*WAYS_TO_LEAVE])
def test_nothing_of_a_client_stays(name: str) -> None:
    async def run() -> None:
        # Such as the log of the test before holds yet.
        before, of_others = clients_in_memory(), sessions_in_memory()
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
            mine = [each for each in clients_in_memory() if each not in before]
            assert not mine, "and no Client, while the broker goes on"
            assert not broker._core.users and not broker._connections._addresses
            assert broker._core.budget.used == 0
            assert broker._core.tree.count == 0
            left = [each for each in sessions_in_memory() if each not in of_others]
            assert len(left) <= 3, "reminders of deadlines hold sessions, but only a bounded number"

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
