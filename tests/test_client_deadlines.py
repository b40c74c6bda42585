"""Client: its deadlines to the tick, and Keep Alive."""

from __future__ import annotations

from typing import Any

import pytest

from broker import AuthStep, HookBase, Version
from broker.packet.codec import encode
from broker.packet.packets import Auth, Connack, Connect, Disconnect, Pingresp, Publish, Will
from tests.client_bench import V3, V5, passes, timed, to_the_border
from tests.peer import message_bytes, run_async, settle
from tests.wire import turns


class Challenging(HookBase):
    async def on_auth(self, client: Any, method: str, data: bytes | None) -> AuthStep:
        return AuthStep(data=b"more")


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
            await passes(broker, clock, 14.875)  # a packet's time is rounded up to an eighth
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
        assert broker.clients["c"].blocked
        await to_the_border(broker, clock, 30)
        await settle(broker, "c")
        assert (await anext(aiter(watcher))).topic_name == "will"
        assert message_bytes(broker) == 0
