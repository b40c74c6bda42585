"""The packet reader: any bytes, in any chunks, from clients and servers of every version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any
from unittest import mock

from broker.config import Protocol
from broker.errors import MqttError
from broker.packet import packets as mqtt
from broker.packet import reader as reader_module
from broker.packet.codec import encode, fit
from broker.packet.enums import PacketType, Version
from broker.packet.message import Message, encode_publish, travelling
from broker.packet.packets import NO_PROPERTIES, Packet, Properties
from broker.packet.properties import PROPERTIES, Place, Property
from broker.packet.reader import MAXIMUM_PACKET_SIZE, PacketReader
from broker.packet.wire import BINARY, STRING, STRING_PAIR, UINT8, UINT16, UINT32, VARINT, varint_bytes
from broker.refusal import RETURN_CODES, connack_refusal, disconnect
from tests.fuzz.pieces import Change, Piece
from tests.fuzz.target import Target, chunks

V3, V4, V5 = Version
LIMITS = (64, 200, 1 << 20, MAXIMUM_PACKET_SIZE)
BYTEWISE = 200  # bytes; longer inputs are not read byte by byte, which would make every run slow
MAY_BE_SHORTER = (mqtt.Puback, mqtt.Pubrec, mqtt.Pubrel, mqtt.Pubcomp, mqtt.Disconnect)  # without empty ends
Outcome = tuple[list[Packet], type[MqttError] | None, str, int, Version | None]


class Way:
    """How an input is read: the first settings byte says who sends, the second how it is cut."""

    def __init__(self, settings: bytes) -> None:
        bits, self.cuts = settings.ljust(2, b"\0")[:2]
        self.version = (None, *Version)[bits & 3]  # None: begin with the CONNECT that is in the input
        self.from_client = bits & 4 == 0
        self.strict = bits & 8 == 0
        self.limit = LIMITS[bits >> 4 & 3]

    def reader(self, limit: int = MAXIMUM_PACKET_SIZE) -> PacketReader:
        reader = PacketReader(limit, self.strict, from_client=self.from_client)
        if self.version is not None:
            reader.version = self.version
        return reader

    def read(self, pieces: Sequence[bytes]) -> Outcome:
        reader, found = self.reader(self.limit), []
        for piece in pieces:
            failed = reader.error is not None
            packets = reader.feed(piece)
            assert not (failed and packets), "packets after a breach"
            assert len(reader._held) <= self.limit + len(piece), "more is held than one packet"
            found += packets
        error = reader.error
        return found, type(error) if error else None, str(error), reader.partial, reader.version


def run(data: bytes) -> None:
    way, raw = Way(data), data[2:]
    outcome = way.read([raw])
    assert way.read(chunks(raw, way.cuts)) == outcome, "chunk borders matter"
    if len(raw) <= BYTEWISE:
        assert way.read([raw[at : at + 1] for at in range(len(raw))]) == outcome, "chunk borders matter"
    with mock.patch.object(reader_module, "PART", 1 + way.cuts % 32):
        assert way.read([raw]) == outcome, "it matters how much is decoded at a time"
    found, kind, _, _, version = outcome
    if kind is not None:
        check_error(way, raw)
    for packet, (head, body) in zip(found, split(raw), strict=False):
        assert version is not None
        check_round_trip(way, packet, version, len(join([(head, body)])))
        if isinstance(packet, mqtt.Publish) and packet.topic_name:
            check_delivery(packet)


def check_error(way: Way, raw: bytes) -> None:
    """What the broker would answer can be read, and has the reason of the error."""
    reader = way.reader(way.limit)
    packets = reader.feed(raw)
    greeted, error = bool(packets) or way.version is not None or not way.from_client, reader.error
    assert error is not None and str(error)
    if greeted:
        answer = disconnect(error, None, Protocol())
    else:
        answer = connack_refusal(error, reader.version, None, Protocol())
    if answer is None:
        assert not greeted, "a DISCONNECT can be sent for every reason"
        return
    theirs = PacketReader(from_client=False)
    theirs.version = V5 if len(answer) > 4 else V4
    (packet,) = theirs.feed(answer)
    assert isinstance(packet, mqtt.Disconnect if greeted else mqtt.Connack)
    assert packet.reason_code in (error.reason, RETURN_CODES.get(error.reason)), packet


def check_round_trip(way: Way, packet: Packet, version: Version, size: int) -> None:
    """What was accepted can be sent and is understood as the same; nothing of its *size* bytes was lost."""
    try:
        raw = encode(packet, version)
    except ValueError:
        will = packet.will if isinstance(packet, mqtt.Connect) else None
        assert will and ("+" in will.topic_name or "#" in will.topic_name), "what is accepted can be sent"
        return
    reader = way.reader()
    if isinstance(packet, mqtt.Connect):
        reader = PacketReader(strict=way.strict)
    else:
        reader.version = version
    assert reader.feed(raw) == [packet], "decode undoes encode"
    assert reader.error is None and not reader.partial
    short = version is V3 or isinstance(packet, MAY_BE_SHORTER)
    assert len(raw) <= size if short else len(raw) == size, "something is left out"
    small = fit(packet, version, len(raw) - 1)
    assert small is None or len(small) < len(raw)
    assert fit(packet, version, len(raw)) == raw


def check_delivery(packet: mqtt.Publish) -> None:
    """What goes on to a subscriber: the shared frame and the one made for it alone say the same."""
    message = Message(packet.topic_name, packet.payload, packet.qos, False, travelling(packet.properties))
    packet_id = 7 if packet.qos else 0
    assert message.size >= len(packet.payload)
    for version in (V4, V5):
        head, tail = message.frame(version, packet.qos, False)
        frame = head + (packet_id.to_bytes(2, "big") + tail if packet.qos else tail)
        theirs = PacketReader(strict=False, from_client=False)
        theirs.version = version
        (got,) = theirs.feed(frame)
        five = dict(message.properties) if version is V5 else {}
        expected = mqtt.Publish(message.topic_name, message.payload, packet.qos, packet_id=packet_id)
        expected.properties = five
        assert got == expected and theirs.error is None
        alone = encode_publish(message, version, packet.qos, False, packet_id=packet_id)
        assert theirs.feed(alone) == [expected]


# ---- pieces: the first byte, and the body


def split(data: bytes) -> list[Piece]:
    """Packets as far as there are any, and one piece without a head for what is left."""
    pieces: list[Piece] = []
    at = 0
    while at < len(data):
        length, start = _length(data, at + 1)
        if length < 0 or start + length > len(data):
            return [*pieces, (b"", data[at:])]
        pieces.append((data[at : at + 1], data[start : start + length]))
        at = start + length
    return pieces


def _length(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : at + 4]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return -1, at


def join(pieces: Sequence[Piece]) -> bytes:
    return b"".join(head + varint_bytes(len(body)) + body if head else body for head, body in pieces)


def change_body(body: bytes, most: int, rnd: Random, change: Change) -> bytes:
    """Change the body, or only a property block that stands where one may stand, and its length with it."""
    at = rnd.choice(
        (0, 1, 2, 3, 10, 2 + int.from_bytes(body[:2], "big"), 4 + int.from_bytes(body[:2], "big"))
    )
    length, start = _length(body, at)
    if rnd.random() < 0.5 or length < 0 or start + length > len(body):
        return change(body, most)
    block, row = body[start : start + length], rnd.choice(PROPERTIES)
    if rnd.random() < 0.5:
        block = change(block, len(block) + 32)
    else:
        out = bytearray((row.identifier,))
        row.type.write(out, _value(row))
        block = rnd.choice((block + out, bytes(out) + block, bytes(out)))
    return body[:at] + varint_bytes(len(block)) + block + body[start + length :]


# ---- seeds


def _value(row: Property) -> Any:
    values = {UINT8: 1, UINT16: 300, UINT32: 70_000, VARINT: 200, STRING: "té", BINARY: b"\0\xff"}
    return ("k", "v") if row.type is STRING_PAIR else values[row.type]


def all_properties(place: Place, *but: str) -> Properties:
    rows = [row for row in PROPERTIES if place in row.where and row.name not in but]
    return {row.name: [_value(row)] * 2 if place in row.repeats else _value(row) for row in rows}


def samples(version: Version) -> Iterator[Packet]:
    """Of every packet type one with little and one with much in it."""
    five = version is V5

    def block(place: Place) -> Properties:
        return all_properties(place, "subscription_identifier") if five else NO_PROPERTIES

    will = mqtt.Will("w/t", b"will", 2, True, block(Place.WILL))
    yield mqtt.Connect("c", version)
    yield mqtt.Connect("", version, False, 60, "user", b"pass", will, block(Place.CONNECT), not five)
    for qos in (0, 1, 2):
        yield mqtt.Publish("a/b", b"x", qos, packet_id=qos)
        yield mqtt.Publish("é", b"", qos, True, qos > 0, qos and 65535, block(Place.PUBLISH))
    for ack in (mqtt.Puback, mqtt.Pubrec, mqtt.Pubrel, mqtt.Pubcomp):
        code = (0x92 if ack in (mqtt.Pubrel, mqtt.Pubcomp) else 0x97) if five else 0
        yield ack(1)
        yield ack(65535, code, block(Place[ack.__name__.upper()]))
    request = mqtt.SubscribeRequest("$share/g/+/#", 2, five, five, 2 if five else 0)
    yield mqtt.Subscribe(1, [request, mqtt.SubscribeRequest("a/+/b")], block(Place.SUBSCRIBE))
    yield mqtt.Unsubscribe(2, ["a", "#"], block(Place.UNSUBSCRIBE))
    yield from (mqtt.Pingreq(), mqtt.Disconnect())
    yield mqtt.Connack(False, 0x97 if five else 5, block(Place.CONNACK))
    yield mqtt.Suback(1, [0, 1, 2, 0x80], block(Place.SUBACK))
    yield mqtt.Unsuback(1, [0, 0x11] if five else [], block(Place.UNSUBACK))
    yield mqtt.Pingresp()
    if five:
        yield mqtt.Disconnect(0x81, all_properties(Place.DISCONNECT))
        yield mqtt.Auth(0x18, all_properties(Place.AUTH))


def seeds() -> Iterator[bytes]:
    for version in Version:
        whole = b""
        for packet in samples(version):
            raw = encode(packet, version)
            for direction in (0, 4):
                yield bytes((0x30 | direction | version - 2, 0x21)) + raw
            if raw[0] >> 4 not in (PacketType.CONNECT, PacketType.CONNACK):
                whole += raw
        yield b"\x20\x3a" + encode(mqtt.Connect("c", version), version) + whole
    yield b"\x00\x11\x10\xff\xff\x7f\x00\x04MQTT\x05"
    yield b"\x00\x00\x10\x07\x00\x04MQTX\x05" + b"\x10\x07\x00\x04MQTT\x06"


TARGET = Target(
    name="packets",
    run=run,
    seeds=seeds,
    covers=(
        *("packet.reader", "packet.codec", "packet.connect", "packet.dialect", "packet.properties"),
        *("packet.wire", "packet.message"),
    ),
    settings=2,
    longest=1024,
    split=split,
    join=join,
    change_body=change_body,
    words=[b"MQTT", b"MQIsdp", b"\x00\x04MQTT\x05", b"\x00\x04MQTT\x04", b"\x00\x06MQIsdp\x03", b"$share/"],
)
