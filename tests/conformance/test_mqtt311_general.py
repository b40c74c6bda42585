"""MQTT 3.1.1, chapters 1 and 2: strings, fixed header, packet identifiers; X3-02 to X3-04."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.deliveries import expect_no_reuse, expect_pubrels, own_qos_2
from tests.conformance.server import Server
from tests.conformance.texts import BOM, ILL_FORMED, expect_text_refused


def breach(server: Server, *raw: bytes) -> None:
    server.expect_breach(*raw, codes=(), version=4)


@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
def test_mqtt311_1_5_3_1__ill_formed_strings_close(server: Server, text: bytes) -> None:
    expect_text_refused(server, text, version=4)


def test_mqtt311_1_5_3_2__u_0000_closes(server: Server) -> None:
    for text in (b"\x00", b"a\x00b"):
        expect_text_refused(server, text, version=4)


def test_mqtt311_1_5_3_3__u_feff_is_kept_in_topics(server: Server) -> None:
    plain, marked = server.connect("1", 4), server.connect("2", 4)
    plain.subscribe("a")
    marked.subscribe(BOM + "a")
    server.connect("p", 4).publish(BOM + "a", b"x")
    assert marked.expect("PUBLISH", topic_name=BOM + "a").raw == b"\x30\x07\x00\x04\xef\xbb\xbfax"
    marked.expect_nothing()
    plain.expect_nothing()


def test_mqtt311_1_5_3_3__u_feff_makes_another_client_id(server: Server) -> None:
    plain, marked = server.connect("x", 4), server.connect(BOM + "x", 4)
    plain.expect_nothing()
    marked.expect_nothing()


def test_mqtt311_2_2_2_1__the_server_sends_the_listed_flags(server: Server) -> None:
    client = server.client(4)
    seen = [client.connect("c"), client.subscribe("t", qos=2)]
    client.send(
        wire.publish("t", b"x", qos=2, packet_id=7, version=4),
        wire.pubrel(7, version=4),
    )
    seen += own_qos_2(client)
    client.send(
        wire.publish("u", b"x", qos=1, packet_id=8, version=4),
        wire.unsubscribe(9, "t", version=4),
        wire.pingreq(),
    )
    seen += [client.expect(name) for name in ("PUBACK", "UNSUBACK", "PINGRESP")]
    firsts = {packet.name: packet.first for packet in seen if packet.name != "PUBLISH"}
    assert firsts == {
        "CONNACK": 0x20, "SUBACK": 0x90, "PUBREC": 0x50, "PUBCOMP": 0x70, "PUBREL": 0x62, "PUBACK": 0x40,
        "UNSUBACK": 0xB0, "PINGRESP": 0xD0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("41 02 00 01", id="PUBACK"),
        pytest.param("51 02 00 01", id="PUBREC"),
        pytest.param("60 02 00 01", id="PUBREL"),
        pytest.param("71 02 00 01", id="PUBCOMP"),
        pytest.param("80 06 00 01 00 01 74 00", id="SUBSCRIBE"),
        pytest.param("A0 05 00 01 00 01 74", id="UNSUBSCRIBE"),
        pytest.param("C1 00", id="PINGREQ"),
        pytest.param("E1 00", id="DISCONNECT"),
        pytest.param("00 00", id="type 0"),
        pytest.param("F0 00", id="type 15"),
    ],
)
def test_mqtt311_2_2_2_2__reserved_flags_close(server: Server, raw: str) -> None:
    breach(server, bytes.fromhex(raw))


def test_mqtt311_2_2_2_2__reserved_flags_of_connect(server: Server) -> None:
    for first in (0x11, 0x12, 0x18, 0x1F):
        server.expect_refused(wire.connect("c", version=4, first=first), version=4)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(wire.subscribe(0, "t", version=4), id="SUBSCRIBE"),
        pytest.param(wire.unsubscribe(0, "t", version=4), id="UNSUBSCRIBE"),
        pytest.param(wire.publish("t", b"x", qos=1, packet_id=0, retain=True, version=4), id="PUBLISH QoS 1"),
        pytest.param(wire.publish("t", b"x", qos=2, packet_id=0, retain=True, version=4), id="PUBLISH QoS 2"),
    ],
)
def test_mqtt311_2_3_1_1__packet_identifier_0(server: Server, raw: bytes) -> None:
    breach(server, raw)
    assert server.retained() == []


def test_mqtt311_2_3_1_1__the_server_never_uses_0(server: Server) -> None:
    client = server.connect("c", 4)
    client.subscribe("t", qos=2)
    publisher = server.connect("p", 4)
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2)
    assert all(packet.packet_id for packet in client.expect_messages(b"1", b"2"))


def test_mqtt311_2_3_1_3__resent_publish_is_the_same_message(server: Server) -> None:
    watcher = server.watch("t")
    client = server.connect("c", 4)
    client.send(wire.publish("t", b"once", qos=2, packet_id=5, version=4))
    client.expect("PUBREC", packet_id=5)
    client.send(wire.publish("t", b"once", qos=2, packet_id=5, dup=True, version=4))
    client.expect("PUBREC", packet_id=5)
    client.release(5)
    watcher.expect("PUBLISH", payload="once")
    watcher.expect_nothing()


def test_mqtt311_2_3_1_3__identifier_is_free_after_the_answer(server: Server) -> None:
    watcher = server.watch("t")
    client = server.connect("c", 4)
    for payload in (b"1", b"2"):
        client.publish("t", payload, qos=1, packet_id=5)
        client.publish("t", payload, qos=2, packet_id=5)
        client.subscribe("u", packet_id=5)
        client.unsubscribe("u", packet_id=5)
    watcher.expect_messages(b"1", b"1", b"2", b"2")


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt311_2_3_1_4__resent_with_the_same_identifier(server: Server, qos: int) -> None:
    client = server.connect("c", 4, clean_start=False)
    client.subscribe("t", qos=2)
    publisher = server.connect("p", 4)
    publisher.publish("t", b"1", qos=qos)
    publisher.publish("t", b"2", qos=qos)
    first = [packet.packet_id for packet in client.expect_messages(b"1", b"2", qos=qos, dup=False)]
    client.drop()
    client = server.connect("c", 4, clean_start=False, session_present=True)
    again = client.expect_messages(b"1", b"2", qos=qos, dup=True)
    assert [packet.packet_id for packet in again] == first


@pytest.mark.tcp_only("70,000 messages take seconds, and bytes are bytes")
def test_mqtt311_2_3_1_4__a_held_identifier_is_not_used_again(server: Server) -> None:
    expect_no_reuse(server, 4)


def test_mqtt311_2_3_1_5__qos_0_has_no_packet_identifier(server: Server) -> None:
    client = server.connect("c", 4)
    client.subscribe("t", qos=2)
    server.connect("p", 4).publish("t", b"\x00\x01rest")
    packet = client.expect("PUBLISH", qos=0, payload=b"\x00\x01rest")
    assert packet.raw == b"\x30\x09\x00\x01t\x00\x01rest"


@pytest.mark.parametrize("packet_id", [1, 0x1234, 0xFFFF])
def test_mqtt311_2_3_1_6__acknowledgements_echo_the_identifier(server: Server, packet_id: int) -> None:
    client = server.connect("c", 4)
    client.send(wire.publish("t", b"x", qos=1, packet_id=packet_id, version=4))
    assert client.expect("PUBACK").raw == b"\x40\x02" + wire.two(packet_id)
    client.send(wire.publish("t", b"x", qos=2, packet_id=packet_id, version=4))
    assert client.expect("PUBREC").raw == b"\x50\x02" + wire.two(packet_id)
    client.send(wire.pubrel(packet_id, version=4))
    assert client.expect("PUBCOMP").raw == b"\x70\x02" + wire.two(packet_id)


def test_mqtt311_2_3_1_6__pubrel_has_the_identifier_of_its_publish(server: Server) -> None:
    expect_pubrels(server, 4)


@pytest.mark.parametrize("packet_id", [1, 0x0100, 0xFFFF])
def test_mqtt311_2_3_1_7__suback_and_unsuback_echo_the_identifier(server: Server, packet_id: int) -> None:
    client = server.connect("c", 4)
    client.send(wire.subscribe(packet_id, "t", version=4))
    client.expect("SUBACK", packet_id=packet_id, reason_codes=[0])
    client.send(wire.unsubscribe(packet_id, "t", version=4))
    assert client.expect("UNSUBACK").raw == b"\xb0\x02" + wire.two(packet_id)


# ---------------------------------------------------------------------------------- X3-02 to X3-04


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("00 00", id="type 0"),
        pytest.param("F0 00", id="type 15"),
        pytest.param("F0 02 18 00", id="type 15 as AUTH"),
        pytest.param("20 02 00 00", id="CONNACK"),
        pytest.param("90 03 00 01 00", id="SUBACK"),
        pytest.param("B0 02 00 01", id="UNSUBACK"),
        pytest.param("D0 00", id="PINGRESP"),
    ],
)
def test_x3_02__types_that_no_client_sends(server: Server, raw: str) -> None:
    breach(server, bytes.fromhex(raw))


@pytest.mark.parametrize("first", [0x30, 0x40, 0x82, 0xC0, 0xE0])
@pytest.mark.parametrize("last", ["01", "80", "FF"])
def test_x3_03__remaining_length_of_five_bytes(server: Server, first: int, last: str) -> None:
    breach(server, bytes([first]) + bytes.fromhex("FF FF FF FF" + last))


@pytest.mark.parametrize(
    "raw",
    ["C0 80 00", "C0 80 80 00", "C0 80 80 80 00", "30 84 00 00 01 74 78", "40 82 80 00 00 01", "E0 80 00"],
)
def test_x3_03__remaining_length_longer_than_needed(server: Server, raw: str) -> None:
    breach(server, bytes.fromhex(raw))


def test_x3_03__remaining_length_of_a_first_packet(server: Server) -> None:
    server.expect_refused(bytes.fromhex("10 FF FF FF FF 01"), version=4)
    connect = wire.connect("c", version=4)
    server.expect_refused(connect[:1] + bytes([connect[1] | 0x80, 0]) + connect[2:], version=4)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("40 00", id="PUBACK of length 0"),
        pytest.param("40 01 01", id="PUBACK of length 1"),
        pytest.param("40 03 00 01 00", id="PUBACK of length 3"),
        pytest.param("50 03 00 01 00", id="PUBREC of length 3"),
        pytest.param("62 03 00 01 00", id="PUBREL of length 3"),
        pytest.param("70 03 00 01 00", id="PUBCOMP of length 3"),
        pytest.param("70 01 00", id="PUBCOMP of length 1"),
        pytest.param("82 07 00 01 00 01 74 00 FF", id="SUBSCRIBE"),
        pytest.param("82 01 00", id="SUBSCRIBE of length 1"),
        pytest.param("A2 06 00 01 00 01 74 FF", id="UNSUBSCRIBE"),
        pytest.param("C0 01 00", id="PINGREQ"),
        pytest.param("E0 01 00", id="DISCONNECT"),
        pytest.param("30 02 00 05", id="PUBLISH without its topic"),
        pytest.param("32 03 00 01 74", id="PUBLISH QoS 1 without an identifier"),
    ],
)
def test_x3_04__bytes_left_over_or_missing(server: Server, raw: str) -> None:
    breach(server, bytes.fromhex(raw))


def test_x3_04__bytes_left_over_in_connect(server: Server) -> None:
    server.expect_refused(wire.connect("c", version=4, tail=b"\x00"), version=4)
    server.expect_refused(wire.connect("c", version=4, tail=wire.string("surplus")), version=4)
