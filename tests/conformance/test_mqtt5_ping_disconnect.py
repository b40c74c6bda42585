"""MQTT 5.0, sections 3.12 to 3.14: PINGREQ, PINGRESP and DISCONNECT, in both directions."""

from __future__ import annotations

import pytest

from broker.errors import ReasonCode
from tests.conformance import wire
from tests.conformance.authentication import METHOD
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Policy
from tests.conformance.server import BARE, Server
from tests.conformance.wills import dying, expect_will

# ---- PINGREQ


def test_mqtt5_3_12_4_1__pingreq_is_answered(server: Server) -> None:
    client = server.connect("c")
    client.send(bytes.fromhex("C0 00"))
    assert client.expect("PINGRESP").raw == bytes.fromhex("D0 00")
    client.expect_nothing()


def test_mqtt5_3_12_4_1__a_hundred_in_a_row(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.pingreq() * 100, wire.subscribe(1, "t"))
    for _ in range(100):
        client.expect("PINGRESP")
    client.expect("SUBACK")


@pytest.mark.parametrize("raw", ["C0 01 00", "C0 02 C0 00"])
def test_mqtt5_3_12_4_1__pingreq_with_a_body(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=MALFORMED)


# ---- never before CONNACK


def ends_without_disconnect(client: Raw, *codes: int | None) -> None:
    """The server closes; at most a CONNACK comes (with one of *codes*), never a byte E0."""
    last = client.expect_close(*codes)
    assert last is None or last.raw[0] == 0x20
    client.close()


@pytest.mark.parametrize("first", [0x00, *range(0x20, 0x100, 0x10)])
def test_mqtt5_3_14_0_1__bad_first_packet(server: Server, first: int) -> None:
    for body in (b"", b"\x00\x01t", b"\x00\x01\x00"):
        client = server.client()
        client.send(wire.packet(first, body))
        ends_without_disconnect(client)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(wire.connect("c", first=0x11), MALFORMED, id="flags"),
        pytest.param(wire.connect("c", flags=0x03), MALFORMED, id="reserved flag"),
        pytest.param(wire.connect(b"\xff"), MALFORMED, id="not UTF-8"),
        pytest.param(wire.connect("c", tail=b"\x00"), MALFORMED, id="bytes left over"),
        pytest.param(wire.connect("c", properties=[(0x21, 0)]), PROTOCOL_ERROR, id="Receive Maximum 0"),
        pytest.param(wire.connect("c", properties=[(0x99, b"x")]), MALFORMED, id="unknown property"),
        pytest.param(wire.connect("c", will=wire.will("a/#")), 0x90, id="Will Topic"),
        pytest.param(wire.connect("no"), 0x8A, id="refused by a hook"),
        pytest.param(wire.connect("c", properties=METHOD), 0x8C, id="method"),
        pytest.param(wire.connect("c", level=6), 0x84, id="version"),
        pytest.param(wire.connect("c", protocol_name="MQTX"), None, id="protocol name"),
    ],
)
def test_mqtt5_3_14_0_1__bad_connect(serve: Serve, raw: bytes, code: int | None) -> None:
    client = serve(hooks=[Policy(connect={"no": 0x8A})]).client()
    client.send(raw)
    ends_without_disconnect(client, code, None if code == MALFORMED else code)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(wire.publish("t"), PROTOCOL_ERROR, id="PUBLISH"),
        pytest.param(wire.pingreq(), PROTOCOL_ERROR, id="PINGREQ"),
        pytest.param(wire.connect("c"), PROTOCOL_ERROR, id="CONNECT"),
        pytest.param(wire.auth(0x18, METHOD, first=0xF1), MALFORMED, id="AUTH with flags"),
        pytest.param(wire.auth(0x18, {"authentication_method": "X"}), 0x8C, id="AUTH with another method"),
        pytest.param(wire.auth(0x18, METHOD | {"authentication_data": b"bad"}), 0x87, id="AUTH, bad proof"),
        pytest.param(wire.disconnect(0x81), None, id="DISCONNECT"),
    ],
)
def test_mqtt5_3_14_0_1__error_during_authentication(serve: Serve, raw: bytes, code: int | None) -> None:
    client = serve(hooks=[EnhancedAuth(steps=2)]).client()
    client.send(wire.connect("c", properties=METHOD))
    client.expect("AUTH", reason_code=0x18)
    client.send(raw)
    ends_without_disconnect(client, code)


@pytest.mark.parametrize("raw", [b"", wire.connect("c")[:7]])
def test_mqtt5_3_14_0_1__connect_timeout(server: Server, raw: bytes) -> None:
    client = server.client()
    client.send(raw)
    stats = server.broker.stats
    server.wait_until(lambda: stats.connections and stats.bytes_received == len(raw))
    server.advance(10.1)
    ends_without_disconnect(client)


def test_mqtt5_3_14_0_1__authentication_timeout(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2)])
    client = server.client()
    client.send(wire.connect("c", properties=METHOD))
    client.expect("AUTH", reason_code=0x18)
    server.advance(30.1)
    ends_without_disconnect(client, 0x87)


# ---- flags and reason codes


@pytest.mark.parametrize("raw", ["E1 00", "E2 00", "E8 00", "EF 00", "E1 01 00", "EF 02 00 00"])
def test_mqtt5_3_14_1_1__reserved_flags(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=MALFORMED)


# 0x00 and 0x04, and the failures that either side may send [table 3-10].
CLIENT_CODES = {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
SERVER_CODES = {0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)}
OTHER_CODES = {0x01, 0x05, 0x10, 0x11, 0x18, 0x84, 0x8C, 0x91, 0x92, 0xA3, 0xFF}


def test_mqtt5_3_14_2_1__codes_that_a_client_may_not_send(server: Server) -> None:
    for code in sorted(SERVER_CODES | OTHER_CODES):
        server.expect_breach(wire.disconnect(code), codes=PROTOCOL_ERROR)


def test_mqtt5_3_14_2_1__codes_that_a_client_may_send(server: Server) -> None:
    watcher = server.watch()
    for code in sorted(CLIENT_CODES):
        client = server.connect(f"c{code}", will=wire.will("w", b"%d" % code))
        client.disconnect(code)
        if code:
            watcher.expect("PUBLISH", topic_name="w", payload=f"{code}")
        watcher.expect_nothing()


def test_mqtt5_3_14_2_1__the_server_sends_listed_codes_only(server: Server) -> None:
    sendable = wire.SERVER_REASON_CODES[wire.DISCONNECT]
    for code in sorted({int(one) for one in ReasonCode}):
        client = server.connect(f"c{code}")
        server.run(server.broker.disconnect(client.client_id, code))
        client.expect_close(code if code in sendable else 0x80)


# ---- properties


def test_mqtt5_3_14_2_2__no_session_expiry_interval_from_the_server(serve: Serve) -> None:
    server = serve(grace_time=0.05)
    old = server.connect("a", session_expiry_interval=60)
    server.connect("a", clean_start=False, session_expiry_interval=60)
    old.expect_close(0x8E, session_expiry_interval=None)
    late = server.connect("b", keep_alive=10, session_expiry_interval=60)
    server.advance(15.1)
    late.expect_close(0x8D, session_expiry_interval=None)
    wrong = server.connect("c", session_expiry_interval=60)
    wrong.send(wire.subscribe(1))
    wrong.expect_close(PROTOCOL_ERROR, session_expiry_interval=None)
    last = server.connect("d", session_expiry_interval=60)
    server.run(server.broker.stop())
    last.expect_close(0x8B, session_expiry_interval=None)


def test_mqtt5_3_14_2_3__no_reason_string_that_does_not_fit(serve: Serve) -> None:
    server = serve(**BARE)
    for limit, fits in ((8, False), (1000, True)):
        client = server.connect("c", maximum_packet_size=limit)
        client.send(wire.subscribe(1))
        last = client.expect_close(PROTOCOL_ERROR)
        assert last is not None and ("reason_string" in last.properties) is fits


def test_mqtt5_3_14_2_4__no_user_property_that_does_not_fit(serve: Serve) -> None:
    pair = ("why", "x" * 95)
    policy = Policy(publish={"no": 0x87}, user_properties=[pair])
    server = serve(hooks=[policy], refused_publish_qos_0="disconnect", **BARE)
    for limit, wanted in ((8, None), (50, None), (1000, [pair])):
        client = server.connect("c", maximum_packet_size=limit)
        client.send(wire.publish("no", b"x"))
        client.expect_close(0x87, user_property=wanted)


# ---- after DISCONNECT


def test_mqtt5_3_14_4_1__the_server_says_no_more(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe("t", qos=1)
    client.send(wire.subscribe(1), wire.pingreq(), wire.publish("t", b"own", qos=1), wire.subscribe(2, "u"))
    publisher.publish("t", b"x", qos=1)
    client.expect_close(PROTOCOL_ERROR, skip=("PUBLISH",))


def test_mqtt5_3_14_4_1__the_client_is_not_heard_any_more(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c")
    publishes = wire.publish("t", b"x", retain=True) + wire.publish("t", b"y", qos=1)
    client.send(wire.disconnect(), publishes, wire.pingreq())
    client.expect_close()
    watcher.expect_nothing()
    assert server.retained() == []


def test_mqtt5_3_14_4_2__the_server_closes_after_its_disconnect(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.publish("a/#", b"x"))
    client.expect_close(0x90)


def test_mqtt5_3_14_4_2__the_server_closes_after_the_clients_disconnect(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.disconnect())
    client.expect_close()


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("raw", ["E0 00", "E0 01 00", "E0 02 00 00"])
def test_mqtt5_3_14_4_3__disconnect_0x00_deletes_the_will(server: Server, raw: str, delay: int) -> None:
    watcher = server.watch()
    will = wire.will("w", b"gone", will_delay_interval=delay)
    for expiry in (0, 60):
        client = server.connect("c", will=will, session_expiry_interval=expiry)
        client.send(bytes.fromhex(raw))
        client.expect_close()
        client.drop()
        server.advance(6)
        watcher.expect_nothing()
    server.advance(61)
    watcher.expect_nothing()


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("raw", ["E0 01 04", "E0 02 04 00"])
def test_mqtt5_3_14_4_3__disconnect_0x04_keeps_it(server: Server, raw: str, delay: int) -> None:
    watcher = server.watch()
    client = dying(server, delay=delay, interval=60)
    client.send(bytes.fromhex(raw))
    client.expect_close()
    client.drop()
    expect_will(server, watcher, delay)
