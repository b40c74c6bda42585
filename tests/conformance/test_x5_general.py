"""MQTT 5.0, obligations without a number that concern all packets: X5-01 to X5-03, X5-23 to X5-27."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.server import Server
from tests.conformance.wire import PropertySpec

SAMPLES: dict[str, Any] = {
    "byte": 1,
    "two": 5,
    "four": 5,
    "varint": 5,
    "string": "text",
    "binary": b"data",
    "pair": ("k", "v"),
}

# Packet type (0: the will) -> a packet of it with any properties.
CONNECTS: dict[int, Callable[[PropertySpec], bytes]] = {
    wire.CONNECT: lambda spec: wire.connect("c", properties=spec),
    wire.WILL: lambda spec: wire.connect("c", will=wire.will("w", b"x", properties=spec)),
}
OTHERS: dict[int, Callable[[PropertySpec], bytes]] = {
    wire.PUBLISH: lambda spec: wire.publish("t", b"x", properties=spec),
    wire.PUBACK: lambda spec: wire.puback(1, 0, spec),
    wire.PUBREC: lambda spec: wire.pubrec(1, 0, spec),
    wire.PUBREL: lambda spec: wire.pubrel(1, 0, spec),
    wire.PUBCOMP: lambda spec: wire.pubcomp(1, 0, spec),
    wire.SUBSCRIBE: lambda spec: wire.subscribe(1, "t", properties=spec),
    wire.UNSUBSCRIBE: lambda spec: wire.unsubscribe(1, "t", properties=spec),
    wire.DISCONNECT: lambda spec: wire.disconnect(0, spec),
    wire.AUTH: lambda spec: wire.auth(0x18, spec),
}


def _name(kind: int) -> str:
    return "WILL" if kind == wire.WILL else wire.NAMES[kind]


def _sample(identifier: int) -> Any:
    return SAMPLES[wire.PROPERTIES[identifier][1]]


def _misplaced(kind: int) -> list[PropertySpec]:
    """Every property that *kind* may not carry, and identifiers that nobody may use."""
    wrong: list[PropertySpec] = [
        [(identifier, _sample(identifier))]
        for identifier, (_, _, where) in wire.PROPERTIES.items()
        if kind not in where
    ]
    unknown = [bytes([code]) + b"\x01" for code in (0x00, 0x04, 0x7F)]
    two_bytes = [b"\x81\x00\x01", b"\xa6\x00\x00\x01k\x00\x01v", b"\x80\x01\x01"]
    return wrong + [wire.varint(len(raw)) + raw for raw in unknown + two_bytes]


@pytest.mark.parametrize("kind", CONNECTS, ids=_name)
def test_x5_01__property_that_connect_may_not_carry(server: Server, kind: int) -> None:
    for spec in _misplaced(kind):
        server.expect_refused(CONNECTS[kind](spec), codes=MALFORMED)


@pytest.mark.parametrize("kind", OTHERS, ids=_name)
def test_x5_01__property_that_the_packet_may_not_carry(server: Server, kind: int) -> None:
    for spec in _misplaced(kind):
        server.expect_breach(OTHERS[kind](spec), codes=MALFORMED)


# Property Length and properties that do not fit each other; {} stands for any packet that may have them.
CUT_OFF = [
    pytest.param(b"\x01\x26", id="nothing after the identifier"),
    pytest.param(b"\x06\x26\x00\x01k\x00\x02", id="a value cut off"),
    pytest.param(b"\x05\x26\x00\x01k\x00\x01v", id="Property Length too small"),
    pytest.param(b"\x7f\x26\x00\x01k\x00\x01v", id="Property Length too large"),
    pytest.param(b"\xff\xff\xff\x7f", id="Property Length far too large"),
    pytest.param(b"\xff\xff\xff\xff\x01", id="Property Length of five bytes"),
]


@pytest.mark.parametrize("raw", CUT_OFF)
def test_x5_02__property_cut_off_in_connect(server: Server, raw: bytes) -> None:
    for build in CONNECTS.values():
        server.expect_refused(build(raw), codes=MALFORMED)


@pytest.mark.parametrize("raw", CUT_OFF)
def test_x5_02__property_cut_off(server: Server, raw: bytes) -> None:
    for build in OTHERS.values():
        server.expect_breach(build(raw), codes=MALFORMED)


@pytest.mark.parametrize(
    "raw",
    [b"\x04\x02\x00\x00\x00", b"\x02\x23\x00", b"\x04\x09\x00\x05a", b"\x01\x01", b"\x03\x03\x00\x01"],
    ids=["four byte integer", "two byte integer", "binary", "byte", "string"],
)
def test_x5_02__each_type_cut_off_in_publish(server: Server, raw: bytes) -> None:
    server.expect_breach(wire.publish("t", properties=raw), codes=MALFORMED)


def _twice(kind: int) -> list[PropertySpec]:
    """Each property that *kind* may carry once, twice; with an Authentication Method where data needs one."""
    single = [
        identifier
        for identifier, (name, data_type, where) in wire.PROPERTIES.items()
        if kind in where
        and data_type != "pair"
        and not (kind == wire.PUBLISH and name == "subscription_identifier")
    ]
    method = [(0x15, "X-NONE")]
    return [
        [
            *(method if identifier == 0x16 else []),
            (identifier, _sample(identifier)),
            (identifier, _sample(identifier)),
        ]
        for identifier in single
    ]


@pytest.mark.parametrize("kind", CONNECTS, ids=_name)
def test_x5_03__single_property_twice_in_connect(server: Server, kind: int) -> None:
    for spec in _twice(kind):
        server.expect_refused(CONNECTS[kind](spec), codes=PROTOCOL_ERROR)


@pytest.mark.parametrize("kind", [kind for kind in OTHERS if kind != wire.UNSUBSCRIBE], ids=_name)
def test_x5_03__single_property_twice(server: Server, kind: int) -> None:
    cases = _twice(kind)
    assert cases
    for spec in cases:
        server.expect_breach(OTHERS[kind](spec), codes=PROTOCOL_ERROR)


@pytest.mark.parametrize("first", [0x30, 0x32, 0x40, 0x82, 0xA2, 0xC0, 0xE0, 0xF0])
@pytest.mark.parametrize("last", ["01", "80", "FF"])
def test_x5_23__length_field_that_goes_on_in_its_fifth_byte(server: Server, first: int, last: str) -> None:
    server.expect_breach(bytes([first]) + bytes.fromhex("FF FF FF FF" + last), codes=MALFORMED)


def test_x5_23__length_field_of_a_first_packet(server: Server) -> None:
    server.expect_refused(bytes.fromhex("10 FF FF FF FF 01"), codes=(MALFORMED, None))


# What a client may put into each packet; table 3-10 without what only a server sends for DISCONNECT.
CLIENT_REASON_CODES: dict[int, set[int]] = {
    wire.PUBACK: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    wire.PUBREC: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    wire.PUBREL: {0x00, 0x92},
    wire.PUBCOMP: {0x00, 0x92},
    wire.DISCONNECT: {0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)},
    wire.AUTH: {0x18, 0x19},
}
WITH_CODE: dict[int, Callable[[int], bytes]] = {
    wire.PUBACK: lambda code: wire.puback(1, code),
    wire.PUBREC: lambda code: wire.pubrec(1, code),
    wire.PUBREL: lambda code: wire.pubrel(1, code),
    wire.PUBCOMP: lambda code: wire.pubcomp(1, code),
    wire.DISCONNECT: wire.disconnect,
    wire.AUTH: lambda code: wire.auth(code, {"authentication_method": "X-NONE"}),
}
SOME_CODES = {
    0x01,
    0x02,
    0x03,
    0x05,
    0x0F,
    0x11,
    0x17,
    0x1A,
    0x7F,
    0x84,
    0x8A,
    0x8E,
    0x92,
    0x9E,
    0xA2,
    0xA3,
    0xFF,
}


@pytest.mark.parametrize("kind", WITH_CODE, ids=_name)
def test_x5_24__undefined_reason_code(server: Server, kind: int) -> None:
    for code in sorted(SOME_CODES - CLIENT_REASON_CODES[kind]):
        server.expect_breach(WITH_CODE[kind](code), codes=PROTOCOL_ERROR)


@pytest.mark.parametrize("kind", [wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP], ids=_name)
def test_x5_24__every_defined_reason_code_is_accepted(server: Server, kind: int) -> None:
    client = server.connect("c")
    client.send(*(WITH_CODE[kind](code) for code in sorted(CLIENT_REASON_CODES[kind])))
    assert {packet.name for packet in client.drain()} <= {"PUBREL", "PUBCOMP"}
    client.expect_nothing()


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param("00 00", MALFORMED, id="type 0"),
        pytest.param("00 02 00 00", MALFORMED, id="type 0 with a body"),
        pytest.param("20 03 00 00 00", PROTOCOL_ERROR, id="CONNACK"),
        pytest.param("90 04 00 01 00 00", PROTOCOL_ERROR, id="SUBACK"),
        pytest.param("B0 04 00 01 00 00", PROTOCOL_ERROR, id="UNSUBACK"),
        pytest.param("D0 00", PROTOCOL_ERROR, id="PINGRESP"),
    ],
)
def test_x5_25__types_that_no_client_sends(server: Server, raw: str, code: int) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=code)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("40 05 00 01 00 00 FF", id="PUBACK"),
        pytest.param("50 05 00 01 00 00 FF", id="PUBREC"),
        pytest.param("62 05 00 01 00 00 FF", id="PUBREL"),
        pytest.param("70 05 00 01 00 00 FF", id="PUBCOMP"),
        pytest.param("82 08 00 01 00 00 01 74 00 FF", id="SUBSCRIBE"),
        pytest.param("A2 07 00 01 00 00 01 74 FF", id="UNSUBSCRIBE"),
        pytest.param("C0 01 00", id="PINGREQ"),
        pytest.param("E0 03 00 00 FF", id="DISCONNECT"),
        pytest.param("F0 08 18 05 15 00 02 58 59 FF", id="AUTH"),
    ],
)
def test_x5_26__bytes_left_over(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=MALFORMED)


def test_x5_26__bytes_left_over_in_connect(server: Server) -> None:
    server.expect_refused(wire.connect("c", tail=b"\x00"), codes=MALFORMED)
    server.expect_refused(wire.connect("c", tail=wire.string("surplus")), codes=MALFORMED)


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70], ids=["PUBACK", "PUBREC", "PUBREL", "PUBCOMP"])
def test_x5_26__acknowledgement_too_short_or_for_0(server: Server, first: int) -> None:
    server.expect_breach(wire.packet(first), codes=MALFORMED)
    server.expect_breach(wire.packet(first, b"\x01"), codes=MALFORMED)
    server.expect_breach(wire.ack(first, 0), codes=PROTOCOL_ERROR)
    server.expect_breach(wire.ack(first, 0, 0, ()), codes=PROTOCOL_ERROR)


FORMS = [
    pytest.param(None, None, id="length 2"),
    pytest.param(0, None, id="length 3"),
    pytest.param(0, (), id="length 4"),
]


@pytest.mark.parametrize(("code", "spec"), FORMS)
def test_x5_27__short_forms_of_acknowledgements(
    server: Server, code: int | None, spec: PropertySpec | None
) -> None:
    client = server.connect("c", receive_maximum=1)
    client.subscribe("t", qos=2)
    publisher = server.connect("p")
    for number in range(2):
        publisher.publish("t", b"1", qos=1)
        publisher.publish("t", b"2", qos=2)
        packet_id = client.expect("PUBLISH", payload="1", qos=1).packet_id or 0
        client.send(wire.puback(packet_id, code, spec))
        packet_id = client.expect("PUBLISH", payload="2", qos=2).packet_id or 0
        client.send(wire.pubrec(packet_id, code, spec))
        client.expect("PUBREL", packet_id=packet_id, reason_code=0)
        client.send(wire.pubcomp(packet_id, code, spec))
        client.expect_nothing()
        publisher.send(wire.publish("t", b"3", qos=2, packet_id=100 + number))
        publisher.expect("PUBREC", packet_id=100 + number)
        publisher.send(wire.pubrel(100 + number, code, spec))
        publisher.expect("PUBCOMP", packet_id=100 + number, reason_code=0)
        client.ack(client.expect("PUBLISH", payload="3"))


@pytest.mark.parametrize(
    ("raw", "published"),
    [
        ("E0 00", False),
        ("E0 01 00", False),
        ("E0 02 00 00", False),
        ("E0 01 04", True),
        ("E0 02 04 00", True),
    ],
)
def test_x5_27__short_forms_of_disconnect(server: Server, raw: str, published: bool) -> None:
    watcher = server.watch()
    client = server.connect("c", will=wire.will("w", b"gone"))
    client.send(bytes.fromhex(raw))
    client.expect_close()
    client.drop()
    if published:
        watcher.expect("PUBLISH", topic_name="w", payload="gone")
    watcher.expect_nothing()
