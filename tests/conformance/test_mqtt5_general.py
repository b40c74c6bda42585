"""MQTT 5.0, chapters 1 and 2: data types, fixed header, packet identifiers, properties."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import wire
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import expect_no_reuse, expect_pubrels, own_qos_2
from tests.conformance.hooks import EnhancedAuth
from tests.conformance.server import Server
from tests.conformance.texts import BOM, ILL_FORMED, expect_text_refused


def pairs_with(pair: tuple[str | bytes, str | bytes]) -> Iterator[bytes]:
    """The packets after CONNECT that may carry User Property *pair*."""
    yield wire.publish("t", b"x", properties=[(0x26, pair)])
    yield wire.subscribe(1, "t", properties=[(0x26, pair)])
    yield wire.unsubscribe(1, "t", properties=[(0x26, pair)])
    yield wire.puback(1, 0, [(0x26, pair)])
    yield wire.disconnect(0, [(0x26, pair)])


@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
def test_mqtt5_1_5_4_1__ill_formed_strings_are_malformed(server: Server, text: bytes) -> None:
    expect_text_refused(server, text)


def test_mqtt5_1_5_4_2__u_0000_is_malformed(server: Server) -> None:
    for text in (b"\x00", b"a\x00b"):
        expect_text_refused(server, text)


def test_mqtt5_1_5_4_3__u_feff_is_kept_in_topics(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("a", subscription_identifier=1)
    client.subscribe(BOM + "a", subscription_identifier=2)
    client.subscribe("a" + BOM, subscription_identifier=3)
    server.connect("p").publish(BOM + "a", b"x")
    packet = client.expect("PUBLISH", topic_name=BOM + "a", subscription_identifier=[2])
    assert packet.raw[2:8] == b"\x00\x04\xef\xbb\xbfa"
    client.expect_nothing()


def test_mqtt5_1_5_4_3__u_feff_makes_another_client_id(server: Server) -> None:
    plain, marked = server.connect("x"), server.connect(BOM + "x")
    plain.expect_nothing()
    marked.expect_nothing()


def test_mqtt5_1_5_4_3__u_feff_is_kept_in_properties(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t")
    pairs = [(BOM + "k", "v" + BOM), ("k", BOM)]
    server.connect("p").publish("t", b"x", content_type=BOM + "text", user_property=pairs)
    client.expect("PUBLISH", content_type=BOM + "text", user_property=pairs)


@pytest.mark.parametrize("border", [127, 16383, 2097151])
@pytest.mark.parametrize("more", [0, 1])
def test_mqtt5_1_5_5_1__remaining_length_is_minimal(serve: Serve, border: int, more: int) -> None:
    server = serve(maximum_packet_size=3_000_000)
    client = server.connect("c")
    client.subscribe("t")
    size = border + more  # of the body: topic 3 bytes, Property Length 1
    server.connect("p").publish("t", b"x" * (size - 4))
    packet = client.expect("PUBLISH", topic_name="t", payload=b"x" * (size - 4))
    assert packet.raw[1 : len(packet.raw) - size] == wire.varint(size)


@pytest.mark.parametrize(
    ("identifier", "encoded"), [(127, "0B7F"), (128, "0B8001"), (268_435_455, "0BFFFFFF7F")]
)
def test_mqtt5_1_5_5_1__subscription_identifier_is_minimal(
    server: Server, identifier: int, encoded: str
) -> None:
    client = server.connect("c")
    client.subscribe("t", subscription_identifier=identifier)
    server.connect("p").publish("t", b"x")
    packet = client.expect("PUBLISH", subscription_identifier=[identifier])
    assert bytes.fromhex(encoded) in packet.raw


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("C0 80 00", id="Remaining Length of PINGREQ"),
        pytest.param("30 85 00 00 01 74 00 78", id="Remaining Length of PUBLISH"),
        pytest.param("30 06 00 01 74 80 00 78", id="Property Length"),
        pytest.param("82 0A 00 01 03 0B 81 00 00 01 74 00", id="Subscription Identifier"),
        pytest.param("30 FF FF FF FF 01", id="five bytes"),
    ],
)
def test_mqtt5_1_5_5_1__longer_than_needed_is_malformed(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=MALFORMED)


@pytest.mark.parametrize("text", [*ILL_FORMED.values(), b"\x00"], ids=[*ILL_FORMED, "U+0000"])
def test_mqtt5_1_5_7_1__both_strings_of_a_pair_are_checked(server: Server, text: bytes) -> None:
    for pair in ((text, "v"), ("k", text)):
        server.expect_refused(wire.connect("c", properties=[(0x26, pair)]), codes=MALFORMED)
        server.expect_refused(
            wire.connect("c", will=wire.will("w", properties=[(0x26, pair)])), codes=MALFORMED
        )
        for raw in pairs_with(pair):
            server.expect_breach(raw, codes=MALFORMED)


def test_mqtt5_1_5_7_1__empty_strings_are_legal(server: Server) -> None:
    client = server.connect("c", user_property=[("", "")])
    client.subscribe("t", user_property=[("", "v"), ("k", "")])
    pairs = [("", ""), ("k", ""), ("", "v")]
    server.connect("p").publish("t", b"x", user_property=pairs)
    client.expect("PUBLISH", user_property=pairs)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("41 02 00 01", id="PUBACK"),
        pytest.param("51 02 00 01", id="PUBREC"),
        pytest.param("60 02 00 01", id="PUBREL"),
        pytest.param("71 02 00 01", id="PUBCOMP"),
        pytest.param("80 07 00 01 00 00 01 74 00", id="SUBSCRIBE"),
        pytest.param("A0 06 00 01 00 00 01 74", id="UNSUBSCRIBE"),
        pytest.param("C1 00", id="PINGREQ"),
        pytest.param("E1 00", id="DISCONNECT"),
        pytest.param("F1 00", id="AUTH"),
        pytest.param("00 00", id="type 0"),
    ],
)
def test_mqtt5_2_1_3_1__reserved_flags_are_malformed(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=MALFORMED)


def test_mqtt5_2_1_3_1__reserved_flags_of_connect(server: Server) -> None:
    for first in (0x11, 0x12, 0x18, 0x1F):
        server.expect_refused(wire.connect("c", first=first), codes=(MALFORMED, None))


FROM_SERVER = [
    pytest.param("20 03 00 00 00", id="CONNACK"),
    pytest.param("90 04 00 01 00 00", id="SUBACK"),
    pytest.param("B0 04 00 01 00 00", id="UNSUBACK"),
    pytest.param("D0 00", id="PINGRESP"),
]


@pytest.mark.parametrize("raw", FROM_SERVER)
def test_mqtt5_2_1_3_1__types_that_only_a_server_sends(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=PROTOCOL_ERROR)


def test_mqtt5_2_1_3_1__the_server_sends_the_listed_flags(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2)])
    client = server.client()
    client.send(wire.connect("c", properties={"authentication_method": "X-TEST"}))
    seen = [client.expect("AUTH", reason_code=0x18)]
    client.send(wire.auth(0x18, {"authentication_method": "X-TEST", "authentication_data": b"proof"}))
    seen += [client.expect("CONNACK", reason_code=0), client.subscribe("t", qos=2)]
    client.send(wire.publish("t", b"x", qos=2, packet_id=7), wire.pubrel(7))
    seen += own_qos_2(client)
    client.send(wire.publish("u", b"x", qos=1, packet_id=8), wire.unsubscribe(9, "t"), wire.pingreq())
    seen += [client.expect(name) for name in ("PUBACK", "UNSUBACK", "PINGRESP")]
    client.send(wire.auth(0x18))
    seen += [client.expect_close(MALFORMED, PROTOCOL_ERROR)]
    firsts = {packet.name: packet.first for packet in seen if packet and packet.name != "PUBLISH"}
    assert firsts == {
        "AUTH": 0xF0, "CONNACK": 0x20, "SUBACK": 0x90, "PUBREC": 0x50, "PUBCOMP": 0x70, "PUBREL": 0x62,
        "PUBACK": 0x40, "UNSUBACK": 0xB0, "PINGRESP": 0xD0, "DISCONNECT": 0xE0,
    }  # fmt: skip


def test_mqtt5_2_2_1_2__qos_0_has_no_packet_identifier(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t", qos=2)
    publisher = server.connect("p")
    publisher.publish("t", b"\x00\x01rest")
    packet = client.expect("PUBLISH", qos=0, payload=b"\x00\x01rest")
    assert packet.raw == b"\x30\x0a\x00\x01t\x00\x00\x01rest"
    publisher.publish("t", b"", content_type="a")
    assert client.expect("PUBLISH").raw == b"\x30\x08\x00\x01t\x04\x03\x00\x01a"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(wire.subscribe(0, "t"), id="SUBSCRIBE"),
        pytest.param(wire.unsubscribe(0, "t"), id="UNSUBSCRIBE"),
        pytest.param(wire.publish("t", b"x", qos=1, packet_id=0, retain=True), id="PUBLISH QoS 1"),
        pytest.param(wire.publish("t", b"x", qos=2, packet_id=0, retain=True), id="PUBLISH QoS 2"),
    ],
)
def test_mqtt5_2_2_1_3__packet_identifier_0(server: Server, raw: bytes) -> None:
    server.expect_breach(raw, codes=PROTOCOL_ERROR)
    assert server.retained() == []


def test_mqtt5_2_2_1_3__packet_identifier_in_use(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.publish("t", b"held", qos=2, packet_id=7))
    client.expect("PUBREC", packet_id=7, reason_code=(0x00, 0x10))
    client.subscribe("t", "u", packet_id=7, granted=[0x91, 0x91])
    client.unsubscribe("t", "u", packet_id=7, reasons=[0x91, 0x91])
    client.publish("t", b"other", qos=1, packet_id=7, reason=0x91)
    client.release(7)
    client.subscribe("t", packet_id=7)
    client.expect_nothing()


def test_mqtt5_2_2_1_4__fifty_unacknowledged_have_fifty_identifiers(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t", qos=1)
    publisher = server.connect("p")
    publisher.send(*(wire.publish("t", b"%d" % n, qos=1, packet_id=n) for n in range(1, 51)))
    publisher.fence()
    found = client.expect_messages(*(b"%d" % n for n in range(1, 51)), qos=1)
    identifiers = {packet.packet_id for packet in found}
    assert len(identifiers) == 50 and 0 not in identifiers


@pytest.mark.tcp_only("70,000 messages take seconds, and bytes are bytes")
def test_mqtt5_2_2_1_4__a_held_identifier_is_not_used_again(server: Server) -> None:
    expect_no_reuse(server, 5)


@pytest.mark.parametrize("packet_id", [1, 0x1234, 0xFFFF])
def test_mqtt5_2_2_1_5__acknowledgements_echo_the_identifier(server: Server, packet_id: int) -> None:
    client = server.connect("c")
    client.send(wire.publish("t", b"x", qos=1, packet_id=packet_id))
    client.expect("PUBACK", packet_id=packet_id)
    client.send(wire.publish("t", b"x", qos=2, packet_id=packet_id))
    client.expect("PUBREC", packet_id=packet_id)
    client.send(wire.pubrel(packet_id))
    client.expect("PUBCOMP", packet_id=packet_id, reason_code=0)


def test_mqtt5_2_2_1_5__pubrel_has_the_identifier_of_its_publish(server: Server) -> None:
    expect_pubrels(server, 5)


def test_mqtt5_2_2_1_5__acknowledgements_for_nothing(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.puback(77), wire.pubcomp(77))
    client.expect_nothing()
    client.send(wire.pubrec(77))
    client.expect("PUBREL", packet_id=77, reason_code=0x92)
    client.send(wire.pubrel(77))
    client.expect("PUBCOMP", packet_id=77, reason_code=0x92)
    client.expect_nothing()


@pytest.mark.parametrize("packet_id", [1, 0x0100, 0xFFFF])
def test_mqtt5_2_2_1_6__suback_and_unsuback_echo_the_identifier(server: Server, packet_id: int) -> None:
    client = server.connect("c")
    client.send(wire.subscribe(packet_id, "t"))
    client.expect("SUBACK", packet_id=packet_id, reason_codes=[0])
    client.send(wire.unsubscribe(packet_id, "t"))
    client.expect("UNSUBACK", packet_id=packet_id, reason_codes=[0])


def test_mqtt5_2_2_2_1__the_server_writes_a_property_length(server: Server) -> None:
    client = server.connect("c")
    connack = client.connack
    assert connack is not None and connack.raw[4] == len(connack.raw) - 5
    assert client.subscribe("t", packet_id=1).raw == bytes.fromhex("9004 0001 00 00")
    client.send(wire.publish("t", b"x"))
    assert client.expect("PUBLISH").raw == bytes.fromhex("3005 000174 00 78")
    assert client.unsubscribe("t", packet_id=2).raw == bytes.fromhex("B004 0002 00 00")


def test_mqtt5_2_2_2_1__short_forms_only_where_allowed(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.publish("nobody", b"x", qos=1, packet_id=3))
    assert client.expect("PUBACK", packet_id=3, reason_code=0x10).raw[1] in (3, 4)
    client.send(wire.publish("nobody", b"x", qos=2, packet_id=4), wire.pubrel(4))
    assert client.expect("PUBREC", packet_id=4, reason_code=0x10).raw[1] in (3, 4)
    assert client.expect("PUBCOMP", packet_id=4, reason_code=0).raw[1] in (2, 3, 4)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("30 03 00 01 74", id="PUBLISH QoS 0 without"),
        pytest.param("32 05 00 01 74 00 01", id="PUBLISH QoS 1 without"),
        pytest.param("82 02 00 01", id="SUBSCRIBE without"),
        pytest.param("A2 02 00 01", id="UNSUBSCRIBE without"),
        pytest.param("30 05 00 01 74 05 78", id="PUBLISH too long"),
        pytest.param("82 07 00 01 20 00 01 74 00", id="SUBSCRIBE too long"),
        pytest.param("A2 06 00 01 20 00 01 74", id="UNSUBSCRIBE too long"),
        pytest.param("40 04 00 01 00 01", id="PUBACK too long"),
        pytest.param("E0 02 00 01", id="DISCONNECT too long"),
    ],
)
def test_mqtt5_2_2_2_1__a_property_length_that_is_missing_or_too_long(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=MALFORMED)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("10 0A 00 04 4D 51 54 54 05 02 00 00", id="without"),
        pytest.param("10 0E 00 04 4D 51 54 54 05 02 00 00 30 00 01 63", id="too long"),
        pytest.param("10 0A 00 04 4D 51 54 54 05 06 00 00", id="with a will flag, without"),
    ],
)
def test_mqtt5_2_2_2_1__connect_without_a_property_length(server: Server, raw: str) -> None:
    server.expect_refused(bytes.fromhex(raw), codes=MALFORMED)
