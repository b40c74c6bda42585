"""MQTT 5.0, obligations without a number about CONNECT and CONNACK."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.sessions import NEVER


def refused_with(server: Server, name: str, good: list[object], bad: list[object]) -> None:
    """One CONNECT property: its good values are accepted, its bad ones get CONNACK 0x82."""
    identifier = wire.IDENTIFIERS[name]
    for value in good:
        server.connect("good", **{name: value}).expect_nothing()
    for value in bad:
        server.expect_refused(wire.connect("c", properties=[(identifier, value)]), codes=PROTOCOL_ERROR)


def test_x5_04__receive_maximum_0(server: Server) -> None:
    refused_with(server, "receive_maximum", [1, 65535], [0])


def test_x5_05__maximum_packet_size_0(server: Server) -> None:
    refused_with(server, "maximum_packet_size", [100, 0xFFFFFFFF], [0])


def test_x5_06__request_response_information_above_1(server: Server) -> None:
    refused_with(server, "request_response_information", [0, 1], [2, 128, 255])


def test_x5_07__request_problem_information_above_1(server: Server) -> None:
    refused_with(server, "request_problem_information", [0, 1], [2, 128, 255])


def test_x5_08__authentication_data_without_a_method(server: Server) -> None:
    for data in (b"", b"x"):
        raw = wire.connect("c", user_name="u", password=b"p", properties=[(0x16, data)])
        server.expect_refused(raw, codes=PROTOCOL_ERROR)


SAMPLES = {"byte": 1, "two": 1, "four": 1, "varint": 1, "string": "x", "binary": b"x", "pair": ("k", "v")}


@pytest.mark.parametrize("identifier", wire.PROPERTIES)
def test_x5_09__properties_of_a_will(server: Server, identifier: int) -> None:
    _, data_type, where = wire.PROPERTIES[identifier]
    will = wire.will("w", b"x", properties=[(identifier, SAMPLES[data_type])])
    if wire.WILL in where:
        server.connect("c", will=will).expect_nothing()
    else:
        server.expect_refused(wire.connect("c", will=will), codes=MALFORMED)


@pytest.mark.parametrize("identifier", [0x00, 0x04, 0x7F])
def test_x5_09__unknown_properties_of_a_will(server: Server, identifier: int) -> None:
    will = wire.will("w", b"x", properties=[(identifier, b"\x00")])
    server.expect_refused(wire.connect("c", will=will), codes=MALFORMED)


# ---- the connect timeout


def test_x5_10__silence(server: Server) -> None:
    late, silent = server.client(), server.client()
    server.settle()
    server.advance(9.9)
    late.connect("late")
    server.advance(0.2)
    silent.expect_close()
    late.expect_nothing()


@pytest.mark.parametrize("size", [1, 2, 9, 16])
@pytest.mark.parametrize("at", [0, 9])
def test_x5_10__half_a_connect(server: Server, size: int, at: int) -> None:
    raw = wire.connect("c", will=wire.will("w", b"x"))
    watcher, late, slow = server.watch(), server.client(), server.client()
    server.settle()
    server.advance(at)
    for client in (late, slow):
        server.push(client, raw[:size])
    server.advance(9.9 - at)
    late.send(raw[size:])
    late.expect("CONNACK", reason_code=0)
    server.advance(0.2)
    slow.expect_close()
    late.expect_nothing()
    watcher.expect_nothing()


@pytest.mark.parametrize("timeout", [1, 60])
def test_x5_10__the_timeout_is_a_setting(serve: Serve, timeout: float) -> None:
    server = serve(connect_timeout=timeout)
    late, silent = server.client(), server.client()
    server.settle()
    server.advance(timeout - 0.1)
    late.connect("late")
    server.advance(0.2)
    silent.expect_close()


# ---- Session Expiry Interval


def interval_told(server: Server, asked: int | None) -> object:
    """Session Expiry Interval in the CONNACK, None if it is not there."""
    client = server.client()
    properties = {} if asked is None else {"session_expiry_interval": asked}
    connack = client.connect("c", **properties)
    client.expect_nothing()
    client.disconnect()
    return connack.properties.get("session_expiry_interval")


@pytest.mark.parametrize("cap", [0, 100, 7 * 86400, NEVER])
def test_x5_28__the_interval_in_force_is_told_if_it_is_another(serve: Serve, cap: int) -> None:
    server = serve(session_expiry_interval=cap)
    for asked in (None, 0, 1, 99, 100, 101, 7 * 86400, 7 * 86400 + 1, NEVER - 1, NEVER):
        assert interval_told(server, asked) == (cap if (asked or 0) > cap else None)


def test_x5_28__the_interval_told_is_the_one_in_force(serve: Serve) -> None:
    server = serve(session_expiry_interval=100)
    for waited, present in ((99.9, True), (100.1, False)):
        client = server.connect("c", session_expiry_interval=1000)
        assert client.connack is not None and client.connack.properties["session_expiry_interval"] == 100
        client.drop()
        server.advance(waited)
        server.connect("c", clean_start=False, session_present=present).disconnect()


def test_x5_29__the_largest_interval_never_ends(serve: Serve) -> None:
    server = serve(session_expiry_interval=NEVER)
    client = server.connect("c", session_expiry_interval=NEVER)
    assert client.connack is not None and "session_expiry_interval" not in client.connack.properties
    client.subscribe("t", qos=1)
    client.drop()
    server.advance(NEVER + 10.0)
    server.connect("p").publish("t", b"x", qos=1, reason=0)
    again = server.connect("c", clean_start=False, session_present=True)
    again.expect("PUBLISH", payload="x")


def test_x5_29__one_less_ends(serve: Serve) -> None:
    server = serve(session_expiry_interval=NEVER)
    server.connect("c", session_expiry_interval=NEVER - 1).drop()
    server.advance(NEVER)
    server.connect("c", clean_start=False, session_present=False).expect_nothing()
