"""MQTT 5.0, sections 3.15 and 4.12: AUTH and enhanced authentication."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.authentication import AGAIN, CONTINUE, METHOD, admitted, auth, challenged
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth
from tests.conformance.server import Server

# ---- 3.15


@pytest.mark.parametrize("first", [0xF1, 0xF2, 0xF8, 0xFF])
def test_mqtt5_3_15_1_1__other_flags_are_malformed(two_steps: Server, first: int) -> None:
    raw = bytes([first]) + auth(CONTINUE, b"proof")[1:]
    client = challenged(two_steps)
    client.send(raw)
    client.expect_close(MALFORMED)
    client = admitted(two_steps)
    client.send(bytes([first]) + auth(AGAIN)[1:])
    client.expect_close(MALFORMED)
    two_steps.expect_breach(raw, codes=MALFORMED)


def test_mqtt5_3_15_2_1__the_server_sends_0x18_and_0x00(two_steps: Server) -> None:
    client = admitted(two_steps)  # AUTH 0x18, then CONNACK: no AUTH 0x00 here
    client.expect_nothing()
    client.send(auth(AGAIN, b"again"))
    client.expect("AUTH", reason_code=CONTINUE)
    client.send(auth(CONTINUE, b"proof"))
    client.expect("AUTH", reason_code=0x00)
    client.expect_nothing()


@pytest.mark.parametrize("code", [0x00, 0x01, 0x17, 0x1A, 0x80, 0x87])
def test_mqtt5_3_15_2_1__codes_that_a_client_may_not_send(two_steps: Server, code: int) -> None:
    client = challenged(two_steps)
    client.send(auth(code, b"proof"))
    client.expect_close(PROTOCOL_ERROR)
    client = admitted(two_steps)
    client.send(auth(code, b"proof"))
    client.expect_close(PROTOCOL_ERROR)


def texts(serve: Serve, limit: int) -> list[wire.Packet]:
    """Every AUTH of a method with a long Reason String and User Property; *limit* is Maximum Packet Size."""
    extras: dict[str, Any] = {"reason_string": "y" * 95, "user_properties": [("why", "x" * 95)]}
    server = serve(hooks=[EnhancedAuth(steps=2, **extras)])
    client = server.client()
    client.send(wire.connect("c", properties=METHOD | {"maximum_packet_size": limit}))
    found = [client.expect("AUTH", reason_code=CONTINUE)]
    client.send(auth(CONTINUE, b"proof"))
    client.expect("CONNACK", reason_code=0)
    client.send(auth(AGAIN))
    found.append(client.expect("AUTH", reason_code=CONTINUE))
    client.send(auth(CONTINUE, b"proof"))
    return [*found, client.expect("AUTH", reason_code=0)]


def test_mqtt5_3_15_2_2__no_reason_string_that_does_not_fit(serve: Serve) -> None:
    assert [packet.properties.get("reason_string") for packet in texts(serve, 50)] == [None] * 3
    assert [packet.properties.get("reason_string") for packet in texts(serve, 1000)] == ["y" * 95] * 3


def test_mqtt5_3_15_2_3__no_user_property_that_does_not_fit(serve: Serve) -> None:
    pairs = [("why", "x" * 95)]
    assert [packet.properties.get("user_property") for packet in texts(serve, 50)] == [None] * 3
    assert [packet.properties.get("user_property") for packet in texts(serve, 1000)] == [pairs] * 3


# ---- 4.12


@pytest.mark.parametrize("method", ["X-NONE", "X-TESTING", "x-test", "SCRAM-SHA-1", ""])
def test_mqtt5_4_12_0_1__unsupported_method(two_steps: Server, method: str) -> None:
    two_steps.expect_refused(wire.connect("c", properties={"authentication_method": method}), codes=0x8C)


@pytest.mark.parametrize("method", ["X-TEST", "X-NONE", "SCRAM-SHA-1"])
def test_mqtt5_4_12_0_1__any_method_when_switched_off(server: Server, method: str) -> None:
    server.expect_refused(wire.connect("c", properties={"authentication_method": method}), codes=0x8C)


def test_mqtt5_4_12_0_2__asking_for_more_is_0x18(two_steps: Server) -> None:
    client = two_steps.client()
    client.send(wire.connect("c", properties=METHOD))
    packet = client.expect("AUTH", reason_code=CONTINUE, **METHOD)
    assert packet.raw[0] == 0xF0 and packet.raw[2] == 0x18
    client.send(auth(CONTINUE, b"proof"))
    client.expect("CONNACK", reason_code=0)
    client.send(auth(AGAIN))
    packet = client.expect("AUTH", reason_code=CONTINUE, **METHOD)
    assert packet.raw[0] == 0xF0 and packet.raw[2] == 0x18


@pytest.mark.parametrize("code", [0x00, AGAIN])
def test_mqtt5_4_12_0_3__the_client_answers_with_0x18(two_steps: Server, code: int) -> None:
    client = challenged(two_steps)
    client.send(auth(code, b"proof"))
    client.expect_close(PROTOCOL_ERROR)
    client = challenged(two_steps)
    client.send(auth(CONTINUE, b"proof"))
    client.expect("CONNACK", reason_code=0)


def test_mqtt5_4_12_0_4__refused_in_the_second_step(two_steps: Server) -> None:
    watcher = two_steps.watch()
    before = admitted(two_steps, more={"session_expiry_interval": 60})
    before.subscribe("t", qos=1)
    before.disconnect()
    client = challenged(two_steps, clean_start=True, will=wire.will("w", b"gone"))
    client.send(auth(CONTINUE, b"wrong"))
    client.expect_close(0x87)  # CONNACK, and nothing else
    two_steps.connect("p").publish("t", b"x", qos=1, reason=0x00)
    watcher.expect_messages(b"x")
    again = admitted(two_steps, session_present=True, clean_start=False)
    again.expect_messages(b"x", qos=1)


def test_mqtt5_4_12_0_4__refused_in_the_first_step(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=1)])
    for data in ({}, {"authentication_data": b"wrong"}):
        server.expect_refused(wire.connect("c", properties=METHOD | data), codes=0x87)


def test_mqtt5_4_12_0_5__the_same_method_everywhere(two_steps: Server) -> None:
    client = two_steps.client()
    client.send(wire.connect("c", properties=METHOD))
    client.expect("AUTH", authentication_method="X-TEST")
    client.send(auth(CONTINUE, b"proof"))
    client.expect("CONNACK", reason_code=0, authentication_method="X-TEST")
    client.send(auth(AGAIN))
    client.expect("AUTH", authentication_method="X-TEST")
    client.send(auth(CONTINUE, b"proof"))
    client.expect("AUTH", reason_code=0, authentication_method="X-TEST")


@pytest.mark.parametrize(
    ("raw", "before", "after"),
    [
        pytest.param(auth(CONTINUE, b"proof", "X-NONE"), 0x8C, PROTOCOL_ERROR, id="another method"),
        pytest.param(auth(CONTINUE, b"proof", "x-test"), 0x8C, PROTOCOL_ERROR, id="in lower case"),
        pytest.param(auth(CONTINUE, b"proof", ""), 0x8C, PROTOCOL_ERROR, id="an empty method"),
        pytest.param(wire.auth(CONTINUE, {}), PROTOCOL_ERROR, PROTOCOL_ERROR, id="no method"),
        pytest.param(wire.auth(CONTINUE), PROTOCOL_ERROR, PROTOCOL_ERROR, id="no properties"),
        pytest.param(
            wire.auth(CONTINUE, {"authentication_data": b"x"}), PROTOCOL_ERROR, PROTOCOL_ERROR, id="data"
        ),
    ],
)
def test_mqtt5_4_12_0_5__auth_with_another_method(
    two_steps: Server, raw: bytes, before: int, after: int
) -> None:
    client = challenged(two_steps)
    client.send(raw)
    client.expect_close(before)
    client = admitted(two_steps)
    client.send(auth(AGAIN))
    client.expect("AUTH", reason_code=CONTINUE)
    client.send(raw)
    client.expect_close(after)


def test_mqtt5_4_12_0_6__without_a_method_the_server_sends_none(two_steps: Server) -> None:
    client = two_steps.client()
    client.send(wire.connect("c"), wire.pingreq())
    client.expect("CONNACK", reason_code=0, authentication_method=None, authentication_data=None)
    client.expect("PINGRESP")
    client.expect_nothing()


@pytest.mark.parametrize("code", [CONTINUE, AGAIN])
def test_mqtt5_4_12_0_7__without_a_method_the_client_sends_no_auth(two_steps: Server, code: int) -> None:
    two_steps.expect_breach(auth(code), codes=PROTOCOL_ERROR)
    two_steps.expect_breach(auth(code, b"proof"), codes=PROTOCOL_ERROR)


def test_mqtt5_4_12_0_7__nor_when_switched_off(server: Server) -> None:
    for code in (CONTINUE, AGAIN):
        server.expect_breach(auth(code), codes=PROTOCOL_ERROR)


def test_mqtt5_4_12_1_1__traffic_goes_on_meanwhile(two_steps: Server) -> None:
    client = admitted(two_steps)
    client.subscribe("t", qos=1)
    client.send(auth(AGAIN, b"again"))
    client.expect("AUTH", reason_code=CONTINUE, **METHOD)
    client.publish("t", b"own", qos=1, reason=0x00)
    two_steps.connect("p").publish("t", b"other", qos=1, reason=0x00)
    client.expect_messages(b"own", b"other", qos=1)
    client.send(auth(CONTINUE, b"proof"))
    client.expect("AUTH", reason_code=0x00, authentication_data=b"welcome", **METHOD)
    client.publish("t", b"after", qos=1, reason=0x00)
    client.expect_messages(b"after")


def test_mqtt5_4_12_1_1__in_one_step(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=1)])
    client = server.client()
    client.send(wire.connect("c", properties=METHOD | {"authentication_data": b"proof"}))
    client.expect("CONNACK", reason_code=0, **METHOD)
    client.send(auth(AGAIN, b"proof"))
    client.expect("AUTH", reason_code=0x00, **METHOD)
    client.expect_nothing()


@pytest.mark.parametrize("method", ["X-NONE", "x-test", ""])
def test_mqtt5_4_12_1_1__another_method(two_steps: Server, method: str) -> None:
    client = admitted(two_steps)
    client.send(auth(AGAIN, b"again", method))
    client.expect_close(PROTOCOL_ERROR)


def test_mqtt5_4_12_1_2__failed_re_authentication(two_steps: Server) -> None:
    watcher = two_steps.watch()
    client = admitted(two_steps, will=wire.will("w", b"gone"))
    client.send(auth(AGAIN, b"again"))
    client.expect("AUTH", reason_code=CONTINUE)
    client.send(auth(CONTINUE, b"wrong"))
    client.expect_close(0x87)
    watcher.expect("PUBLISH", topic_name="w", payload="gone")
    watcher.expect_nothing()


def test_mqtt5_4_12_1_2__failed_in_the_first_step(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=1)])
    watcher, client = server.watch(), server.client()
    properties = METHOD | {"authentication_data": b"proof"}
    client.send(wire.connect("c", will=wire.will("w", b"gone"), properties=properties))
    client.expect("CONNACK", reason_code=0)
    client.send(auth(AGAIN, b"wrong"))
    client.expect_close(0x87)
    watcher.expect("PUBLISH", topic_name="w", payload="gone")
    watcher.expect_nothing()
