"""The table of all MQTT 5 properties: id, name, type, where allowed [MQTT5 2.2.2.2]; blocks of a PUBLISH."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple

from broker.errors import MalformedPacket, MqttError, ProtocolError, TopicAliasInvalid
from broker.packet.packets import NO_PROPERTIES, Properties, PropertyBlock
from broker.packet.wire import (
    BINARY,
    STRING,
    STRING_PAIR,
    UINT8,
    UINT16,
    UINT32,
    VARINT,
    DataType,
    check_count,
    read_varint,
    varint_bytes,
)


class Place(IntEnum):
    """Where a property block may stand: a packet by its type, or the will inside CONNECT."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    DISCONNECT = 14
    AUTH = 15


WILL: Final = Place.WILL
CONNECT: Final = Place.CONNECT
CONNACK: Final = Place.CONNACK
PUBLISH: Final = Place.PUBLISH
SUBSCRIBE: Final = Place.SUBSCRIBE
DISCONNECT: Final = Place.DISCONNECT
AUTH: Final = Place.AUTH
EVERYWHERE: Final = frozenset(Place)
ANSWERS: Final = EVERYWHERE - {WILL, CONNECT, PUBLISH, SUBSCRIBE, Place.UNSUBSCRIBE}


def on(*places: Place) -> frozenset[Place]:
    return frozenset(places)


def anything(value: Any) -> bool:
    return True


def flag(value: int) -> bool:
    return value <= 1


def positive(value: int) -> bool:
    return value > 0


def plain_topic(value: str) -> bool:
    """At least one character and no wildcard."""
    return value != "" and "+" not in value and "#" not in value


Breach = type[MqttError]


class Property(NamedTuple):
    """One row. Where it *repeats* its value is a list; *breach* is raised unless *valid*."""

    identifier: int
    name: str
    type: DataType
    where: frozenset[Place]
    valid: Callable[[Any], bool] = anything
    repeats: frozenset[Place] = frozenset()
    breach: Breach = ProtocolError


PROPERTIES: Final = (
    Property(0x01, "payload_format_indicator", UINT8, on(PUBLISH, WILL), flag),
    Property(0x02, "message_expiry_interval", UINT32, on(PUBLISH, WILL)),  # seconds
    Property(0x03, "content_type", STRING, on(PUBLISH, WILL)),
    Property(0x08, "response_topic", STRING, on(PUBLISH, WILL), plain_topic),
    Property(0x09, "correlation_data", BINARY, on(PUBLISH, WILL)),
    Property(0x0B, "subscription_identifier", VARINT, on(PUBLISH, SUBSCRIBE), positive, repeats=on(PUBLISH)),
    Property(0x11, "session_expiry_interval", UINT32, on(CONNECT, CONNACK, DISCONNECT)),  # seconds
    Property(0x12, "assigned_client_identifier", STRING, on(CONNACK)),
    Property(0x13, "server_keep_alive", UINT16, on(CONNACK)),  # seconds
    Property(0x15, "authentication_method", STRING, on(CONNECT, CONNACK, AUTH)),
    Property(0x16, "authentication_data", BINARY, on(CONNECT, CONNACK, AUTH)),
    Property(0x17, "request_problem_information", UINT8, on(CONNECT), flag),
    Property(0x18, "will_delay_interval", UINT32, on(WILL)),  # seconds
    Property(0x19, "request_response_information", UINT8, on(CONNECT), flag),
    Property(0x1A, "response_information", STRING, on(CONNACK)),
    Property(0x1C, "server_reference", STRING, on(CONNACK, DISCONNECT)),
    Property(0x1F, "reason_string", STRING, ANSWERS),
    Property(0x21, "receive_maximum", UINT16, on(CONNECT, CONNACK), positive),
    Property(0x22, "topic_alias_maximum", UINT16, on(CONNECT, CONNACK)),
    Property(0x23, "topic_alias", UINT16, on(PUBLISH), positive, breach=TopicAliasInvalid),
    Property(0x24, "maximum_qos", UINT8, on(CONNACK), flag),
    Property(0x25, "retain_available", UINT8, on(CONNACK), flag),
    Property(0x26, "user_property", STRING_PAIR, EVERYWHERE, repeats=EVERYWHERE),
    Property(0x27, "maximum_packet_size", UINT32, on(CONNECT, CONNACK), positive),  # bytes
    Property(0x28, "wildcard_subscription_available", UINT8, on(CONNACK), flag),
    Property(0x29, "subscription_identifier_available", UINT8, on(CONNACK), flag),
    Property(0x2A, "shared_subscription_available", UINT8, on(CONNACK), flag),
)

# Publisher and subscriber each have their own of these; they never travel [MQTT5 3.3.4].
STAYS_BEHIND: Final = frozenset({"topic_alias", "subscription_identifier", "will_delay_interval"})

_BY_IDENTIFIER: Final = {
    place: {row.identifier: row for row in PROPERTIES if place in row.where} for place in Place
}
# What `_read_block` needs of a row, ready to be unpacked; None in place of `anything`.
_READING: Final = {
    place: {
        number: (row.name, row.type.read, None if row.valid is anything else row.valid, place in row.repeats)
        for number, row in rows.items()
    }
    for place, rows in _BY_IDENTIFIER.items()
}
_BY_NAME: Final = {place: {row.name: row for row in PROPERTIES if place in row.where} for place in Place}


def read_properties(
    buffer: bytes, at: int, end: int, where: Place, strict: bool = True
) -> tuple[Properties, int]:
    """The properties of one packet, and the offset after them; *end* is where the packet ends.

    MalformedPacket: cut off, unknown, or not allowed in *where*. ProtocolError: twice, or a value
    out of its range. TopicAliasInvalid: Topic Alias 0.
    """
    length, width = read_varint(buffer[at : min(at + 4, end)], 0)  # of what is behind *end* nothing is read
    at += width
    stop = at + length
    if stop > end:
        raise MalformedPacket("properties run past the end of the packet")
    if length == 0:
        return NO_PROPERTIES, at
    return _read_block(buffer[at:stop], where, strict), stop


def _read_block(block: bytes, where: Place, strict: bool) -> Properties:
    """All of *block*: with the bytes behind it cut away, no value can reach past its end."""
    rows, at, size = _READING[where], 0, len(block)
    found: dict[str, Any] = {}
    while at < size:
        # No identifier is above 0x7F, so its Variable Byte Integer is always this one byte.
        identifier = block[at]
        row = rows.get(identifier)
        if row is None:
            raise MalformedPacket(f"property 0x{identifier:02X} in {where.name}")
        name, read, valid, repeats = row
        value, at = read(block, at + 1, strict)
        if valid is not None and not valid(value):
            raise _BY_IDENTIFIER[where][identifier].breach(f"{name} out of range")
        if name not in found:
            found[name] = [value] if repeats else value
        elif repeats:
            found[name].append(value)
            check_count(len(found[name]))
        else:
            raise ProtocolError(f"{name} appears twice")
    return found


def write_properties(out: bytearray, properties: Properties, where: Place) -> None:
    """Append Property Length and properties; ValueError for what must not stand there."""
    if not properties:
        out.append(0)
        return
    block = property_block(properties, where)
    out += varint_bytes(len(block))
    out += block


def property_block(properties: Properties, where: Place) -> bytes:
    """The properties without their length, in the order of the mapping."""
    rows, block = _BY_NAME[where], bytearray()
    for name, value in properties.items():
        row = rows.get(name)
        if row is None:
            raise ValueError(f"{name} is no property of {where.name}")
        for item in value if where in row.repeats else (value,):
            if not row.valid(item):
                raise ValueError(f"{name} out of range: {item!r}")
            block.append(row.identifier)
            row.type.write(block, item)
    return bytes(block)


# ---- the block of a PUBLISH ------------------------------------------------------------------


def travelling(properties: Properties) -> Properties:
    """Those that go with the message: the same mapping if all do, NO_PROPERTIES if none does."""
    if STAYS_BEHIND.isdisjoint(properties):
        return properties or NO_PROPERTIES
    return {name: value for name, value in properties.items() if name not in STAYS_BEHIND} or NO_PROPERTIES


def publish_block(properties: Properties, raw: bytes | None = None) -> PropertyBlock:
    """The block of a PUBLISH with *properties*, which stood in *raw*, if they were received.

    ValueError for what must not stand there.
    """
    expiry: int | None = properties.get("message_expiry_interval")
    alias: int = properties.get("topic_alias", 0)
    all_travel = STAYS_BEHIND.isdisjoint(properties)
    travels = properties if all_travel else travelling(properties)
    wire = None if raw is None else _travelling_bytes(raw, expiry, alias, all_travel, properties)
    if wire is None:
        rest = {name: value for name, value in travels.items() if name != "message_expiry_interval"}
        wire = property_block(rest, PUBLISH)
    head = varint_bytes(len(wire)) + wire if expiry is None else varint_bytes(len(wire) + 5) + wire + b"\x02"
    pairs = len(properties.get("user_property", ()))
    is_plain = all_travel and not pairs and not properties.get("payload_format_indicator")
    return PropertyBlock(properties, travels, wire, head, expiry, alias, pairs, is_plain)


def _travelling_bytes(
    raw: bytes, expiry: int | None, alias: int, all_travel: bool, properties: Properties
) -> bytes | None:
    """*raw* without Message Expiry Interval and Topic Alias; None if that cannot be told from looking at it.

    A value may hold the same bytes by chance.
    """
    if not all_travel and "subscription_identifier" in properties:
        return None
    rest: bytes | None = raw
    if expiry is not None:
        rest = _without(raw, b"\x02" + expiry.to_bytes(4, "big"))
    if alias and rest is not None:
        rest = _without(rest, b"\x23" + alias.to_bytes(2, "big"))
    return rest


def _without(raw: bytes, part: bytes) -> bytes | None:
    """*raw* without *part*, which is in it; None if it stands there twice."""
    at = raw.find(part)
    return raw[:at] + raw[at + len(part) :] if at == raw.rfind(part) else None


class PropertyBlocks(dict[bytes, PropertyBlock]):
    """Raw property block of a PUBLISH, without its length -> what it says, validated once.

    Most publishers send the same few blocks all the time. Two properties (expiry, content type) cost 5.1 us
    a message in the whole broker when they were read and written for each, and 1.0 with this and
    `Message.count_down` (50 topics, 16 to 216 bytes, QoS 0, one subscriber; CPython 3.11, 2 cores). The
    plain functions are the oracle in tests/packet/test_properties.py. Bounded: emptied at `MAXIMUM` blocks,
    and one over `LONGEST` bytes is never kept. Raises what `read_properties` does.
    """

    MAXIMUM: ClassVar[int] = 1024
    LONGEST: ClassVar[int] = 128

    def __init__(self, strict: bool = True) -> None:
        super().__init__()
        self.strict = strict

    def __missing__(self, raw: bytes) -> PropertyBlock:
        block = publish_block(_read_block(raw, PUBLISH, self.strict), raw)
        if len(raw) <= self.LONGEST:
            if len(self) >= self.MAXIMUM:
                self.clear()
            self[raw] = block
        return block


def copied(block: PropertyBlock) -> Properties:
    """The mapping of what travels for one message alone: hooks and programs get hold of it."""
    if not block.travels:
        return NO_PROPERTIES
    found = dict(block.travels)
    if block.user_properties:
        found["user_property"] = list(found["user_property"])
    return found


def block_size(block: PropertyBlock) -> int:
    """About the bytes that its properties take in a message; counted once."""
    if block.size < 0:
        block.size = properties_size(block.travels)
        if len(block.wire) > PropertyBlocks.LONGEST:  # no other message shares it
            block.size += len(block.wire) + len(block.head)
    return block.size


def properties_size(properties: Properties) -> int:
    """With the objects around them, which take far more than short values; measured with CPython 3.11."""
    size = 250 if properties else 0
    for name, value in properties.items():
        if name == "user_property":
            size += sum(text_size(key) + text_size(text) + 170 for key, text in value)
        elif isinstance(value, str):
            size += text_size(value) + 60
        else:
            size += len(value) + 60 if isinstance(value, bytes) else 30
    return size


def text_size(text: str) -> int:
    """Bytes that the characters of *text* take in memory, at most."""
    return len(text) if text.isascii() else 4 * len(text)
