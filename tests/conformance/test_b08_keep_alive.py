"""B08: Keep Alive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.config import Capacity
from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Gate
from tests.conformance.server import Server
from tests.conformance.wills import expect_will


def heard(server: Server, client: Raw, raw: bytes) -> None:
    """Sends *raw*, and waits until the broker has read all of it."""
    stats = server.broker.stats
    before = stats.bytes_received
    client.send(raw)
    server.wait_until(lambda: stats.bytes_received >= before + len(raw), "all bytes read")
    server.settle()


def expect_alive(server: Server, client: Raw) -> None:
    """The server still sends to *client*, which says nothing."""
    server.run(server.broker.publish("alive", b"x"))
    client.expect("PUBLISH", topic_name="alive")


def listening(server: Server, client_id: str = "c", version: int = 5, **connect: Any) -> Raw:
    client = server.connect(client_id, version, **connect)
    client.subscribe("alive")
    return client


@pytest.mark.parametrize("version", [5, 4])
@pytest.mark.parametrize("keep_alive", [1, 2, 10, 65535])
def test_b08__one_and_a_half_times_and_never_early(server: Server, keep_alive: int, version: int) -> None:
    client = listening(server, version=version, keep_alive=keep_alive)
    server.advance(1.5 * keep_alive - 0.01)
    expect_alive(server, client)
    server.advance(0.02)
    client.expect_close(0x8D)


def test_b08__zero_means_none(server: Server) -> None:
    client = listening(server, keep_alive=0)
    server.advance(10**7, step=10**6)
    expect_alive(server, client)


def test_b08__the_broker_looks_by_itself(serve: Serve) -> None:
    assert Capacity().sweep_interval <= 0.5  # the lag at most
    server = serve(sweep_interval=0.02)
    client = server.connect("c", keep_alive=1)
    server.settle()  # the time starts with the end of the CONNECT, after its CONNACK
    server.clock.now += 1.5
    client.expect_close(0x8D)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(wire.pingreq(), id="PINGREQ"),
        pytest.param(wire.publish("t", b"x"), id="PUBLISH"),
        pytest.param(wire.subscribe(1, "t"), id="SUBSCRIBE"),
        pytest.param(wire.unsubscribe(1, "t"), id="UNSUBSCRIBE"),
        pytest.param(wire.puback(77), id="PUBACK"),
        pytest.param(wire.pubrel(77), id="PUBREL"),
    ],
)
def test_b08__any_complete_packet_counts(server: Server, raw: bytes) -> None:
    client = listening(server, keep_alive=10)
    for _ in range(3):
        server.advance(14.9)
        heard(server, client, raw)
    server.advance(15.1)
    client.expect_close(0x8D, skip=("PINGRESP", "SUBACK", "UNSUBACK", "PUBCOMP"))


def test_b08__what_the_server_sends_does_not_count(server: Server) -> None:
    client = listening(server, keep_alive=10)
    for _ in range(3):
        server.advance(4.9)
        expect_alive(server, client)
    server.advance(0.4)
    client.expect_close(0x8D)


def test_b08__an_unfinished_packet_does_not_count(server: Server) -> None:
    client = listening(server, keep_alive=10)
    raw = wire.publish("t", b"x" * 10)
    server.advance(10)
    heard(server, client, raw[:5])
    server.advance(4.9)
    heard(server, client, raw[5:7])
    server.advance(0.2)
    client.expect_close(0x8D)


def test_b08__an_unfinished_packet_has_its_own_time(server: Server) -> None:
    client = listening(server, keep_alive=0)
    heard(server, client, wire.publish("t", b"x" * 10)[:5])
    server.advance(29.9)
    expect_alive(server, client)
    server.advance(0.2)
    client.expect_close(MALFORMED, PROTOCOL_ERROR)


def test_b08__the_time_that_the_server_does_not_read_is_not_counted(serve: Serve) -> None:
    gate = Gate()
    server = serve(hooks=[gate], hook_timeout=600.0)
    client = listening(server, keep_alive=10)
    client.send(wire.publish("gate", b"x", qos=1))
    server.wait_until(lambda: gate.waiting)
    server.advance(60, step=5)
    server.run(gate.open())
    client.expect("PUBACK")
    server.advance(14.9)
    expect_alive(server, client)
    server.advance(0.2)
    client.expect_close(0x8D)


@pytest.mark.tcp_only("the sockets must be full, and that takes megabytes")
def test_b08__the_time_that_the_server_is_held_up_is_not_counted(server: Server) -> None:
    client = listening(server, keep_alive=10)
    server.run(fill(server))
    client.send(wire.pingreq() * 40_000)  # more answers than the server keeps for a client that reads none
    server.wait_until(lambda: server.broker.stats.bytes_received > 66_000)
    server.settle()
    server.advance(20, step=5)
    while not client.transport.recv(1).endswith(b"\xd0\x00"):
        continue
    client.expect_nothing()


async def fill(server: Server) -> None:
    """Publishes until the connection of c takes no more."""
    while not server.broker.clients["c"].full:
        await server.broker.publish("alive", b"x" * 1_000_000)
        await asyncio.sleep(0.001)


def test_b08__a_timeout_is_an_abnormal_close(server: Server) -> None:
    watcher = server.watch("w")
    for delay in (0, 5):
        will = wire.will("w", b"gone", will_delay_interval=delay)
        client = server.connect("c", keep_alive=1, will=will, session_expiry_interval=60)
        server.advance(1.6)
        client.expect_close(0x8D)
        client.drop()
        expect_will(server, watcher, delay)


@pytest.mark.parametrize(
    ("asked", "told", "in_force"), [(0, 30, 30), (60, 30, 30), (31, 30, 30), (30, None, 30), (10, None, 10)]
)
def test_b08__server_keep_alive(serve: Serve, asked: int, told: int | None, in_force: int) -> None:
    server = serve(server_keep_alive=30)
    client = listening(server, keep_alive=asked)
    assert client.connack is not None
    assert client.connack.properties.get("server_keep_alive") == told
    server.advance(1.5 * in_force - 0.1)
    expect_alive(server, client)
    server.advance(0.2)
    client.expect_close(0x8D)


@pytest.mark.parametrize("cap", [False, True])
def test_b08__the_cap_holds_for_3_x_only_if_asked_for(serve: Serve, cap: bool) -> None:
    server = serve(server_keep_alive=30, server_keep_alive_3x=cap)
    none, long = (listening(server, name, 4, keep_alive=n) for name, n in (("a", 0), ("b", 60)))
    server.advance(45.1)
    for client in (none, long):
        if cap:
            client.expect_close()
        else:
            expect_alive(server, client)
            client.drain()
