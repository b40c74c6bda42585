"""MQTT 3.1.1: obligations without a number, those of chapters 3 and 4."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.connects_311 import connect
from tests.conformance.hooks import Password, Policy
from tests.conformance.server import Server

WILL = wire.will("w", b"gone", qos=1)


# ------------------------------------------------------------------------------- X3-01 no CONNECT in time


@pytest.mark.parametrize("length", [0, 1, 2, 9, 14])
def test_x3_01__no_whole_connect_in_time(server: Server, length: int) -> None:
    """Ten seconds by default, counted from the beginning, whatever trickles in."""
    client = server.client(4)
    server.wait_until(lambda: len(server.broker._connections) == 1)
    server.advance(6, step=0.5)
    client.send(connect()[:length])
    server.settle()
    server.advance(3.9, step=0.5)
    server.connect("other", 4, reason=0)
    server.advance(0.6, step=0.1)
    client.expect_close()


def test_x3_01__just_in_time(serve: Serve) -> None:
    server = serve(connect_timeout=3.0)
    client, late = server.client(4), server.client(4)
    server.wait_until(lambda: len(server.broker._connections) == 2)
    server.advance(2.9, step=0.5)
    client.connect("c", reason=0)
    server.advance(0.6, step=0.1)
    late.expect_close()
    server.advance(60, step=1)
    client.expect_nothing()


# ------------------------------------------------------------------------------- X3-05 DISCONNECT


@pytest.mark.parametrize("clean", [True, False])
def test_x3_05__the_server_closes(server: Server, clean: bool) -> None:
    """The client leaves its side open, and has asked for things before."""
    watcher = server.watch()
    client = server.connect("c", 4, clean_start=clean, will=WILL)
    client.send(wire.subscribe(1, "t", version=4), wire.disconnect(), wire.pingreq())
    client.expect_close(skip=["SUBACK"])
    watcher.expect_nothing()


# ------------------------------------------------------------------------------- X3-06, X3-07 stray answers


def test_x3_06__pubrel_for_nothing(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c", 4, clean_start=False)
    for packet_id in (1, 77, 0xFFFF):
        client.send(wire.pubrel(packet_id, version=4))
        assert client.recv().raw == b"\x70\x02" + wire.two(packet_id)
    client.publish("t", b"x", qos=2, packet_id=77)
    client.release(77)
    watcher.expect_messages(b"x")


def test_x3_07__nobody_waits(server: Server) -> None:
    client = server.connect("c", 4)
    client.subscribe("t", qos=2)
    for packet_id in (1, 77, 0xFFFF):
        client.send(wire.puback(packet_id, version=4), wire.pubcomp(packet_id, version=4))
        client.expect_nothing()
        client.send(wire.pubrec(packet_id, version=4))
        assert client.recv().raw == b"\x62\x02" + wire.two(packet_id)
        client.send(wire.pubcomp(packet_id, version=4))
    client.publish("t", b"x", qos=1)
    message = client.expect("PUBLISH", payload="x", qos=1)
    client.ack(message)
    client.ack(message)
    client.expect_nothing()


# ------------------------------------------------------------------------------- X3-08 refusals

# Reason Codes of hooks and the Return Codes that stand for them; None: no answer.
RETURN_CODES: dict[int, int | None] = {
    0x84: 1, 0x85: 2, 0x88: 3, 0x89: 3, 0x97: 3, 0x9C: 3, 0x9D: 3, 0x86: 4, 0x87: 5, 0x8A: 5,
    0x80: None, 0x81: None, 0x82: None, 0x83: None, 0x8C: None, 0x90: None, 0x95: None, 0x99: None,
    0x9A: None, 0x9B: None, 0x9F: None,
}  # fmt: skip


@pytest.mark.parametrize(("reason", "code"), RETURN_CODES.items())
def test_x3_08__return_codes(serve: Serve, reason: int, code: int | None) -> None:
    server = serve(hooks=[Policy(connect={"c": reason}, reason_string="why", user_properties=[("k", "v")])])
    server.expect_refused(connect(will=WILL), codes=() if code is None else code, version=4)


@pytest.mark.parametrize(
    ("settings", "will"),
    [
        ({}, wire.will("$SYS/x")),
        ({"maximum_qos": 1}, wire.will("w", qos=2)),
        ({"retain_available": False}, wire.will("w", retain=True)),
    ],
)
def test_x3_08__wills_have_no_code(serve: Serve, settings: dict[str, Any], will: wire.Will) -> None:
    serve(**settings).expect_refused(connect(will=will), version=4)


def test_x3_08__the_broker_itself(serve: Serve) -> None:
    """Level, ClientID, room, owner of the session, anonymous clients."""
    server = serve(maximum_connections=2, maximum_sessions=2)
    server.expect_refused(connect(level=2), codes=1, version=4)  # its bystander is the first client
    server.expect_refused(connect("", clean_start=False), codes=2, version=4)
    owner = server.connect("owner", 4, clean_start=False, user_name="u")
    server.expect_refused(connect("third"), codes=3, version=4)
    server.expect_refused(connect("owner", user_name="other"), codes=5, version=4)
    owner.drop()
    server.expect_refused(connect("third"), codes=3, version=4)
    nobody = serve(anonymous="never")
    client = nobody.client(4)
    client.send(connect())
    client.expect_close(5)


# ------------------------------------------------------------------------------- X3-09 QoS 3


def test_x3_09__qos_3(server: Server) -> None:
    for requests in ([("t", 3)], [("t", 1), ("u", 3)], [("t", 3), ("u", 1)]):
        server.expect_breach(wire.subscribe(1, *requests, version=4), codes=(), version=4)


# ------------------------------------------------------------------------------- X3-10 failed authentication

WRONG: Iterable[dict[str, Any]] = [
    {},
    {"user_name": "u"},
    {"user_name": "u", "password": b""},
    {"user_name": "u", "password": b"P"},
    {"user_name": "U", "password": b"p"},
    {"user_name": "", "password": b"p"},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_x3_10__bad_user_name_or_password(serve: Serve, wrong: dict[str, Any]) -> None:
    server = serve(hooks=[Password()])
    client = server.client(4)
    client.send(connect(**wrong), wire.pingreq())
    found = client.expect_close(4)
    assert found is not None and found.raw == bytes.fromhex("20 02 00 04")


def test_x3_10__not_authorized(serve: Serve) -> None:
    serve(hooks=[Policy(connect={"c": 0x87})]).expect_refused(connect(), codes=5, version=4)


@pytest.mark.parametrize("reason", [0x86, 0x87])
def test_x3_10__silent_by_setting(serve: Serve, reason: int) -> None:
    server = serve(hooks=[Policy(connect={"c": reason})], silent_refusal=True)
    server.expect_refused(connect(), version=4)
