"""The table of all MQTT 5 properties: id, name, type, where allowed [MQTT5 2.2.2.2]."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from broker.errors import MalformedPacket, MqttError, ProtocolError, TopicAliasInvalid
from broker.packet.packets import NO_PROPERTIES, Properties
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


WILL, CONNECT, CONNACK, PUBLISH = Place.WILL, Place.CONNECT, Place.CONNACK, Place.PUBLISH
SUBSCRIBE, DISCONNECT, AUTH = Place.SUBSCRIBE, Place.DISCONNECT, Place.AUTH
EVERYWHERE = frozenset(Place)
ANSWERS = EVERYWHERE - {WILL, CONNECT, PUBLISH, SUBSCRIBE, Place.UNSUBSCRIBE}


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


PROPERTIES = (
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

_BY_IDENTIFIER = {place: {row.identifier: row for row in PROPERTIES if place in row.where} for place in Place}
_BY_NAME = {place: {row.name: row for row in PROPERTIES if place in row.where} for place in Place}


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
    rows, at = _BY_IDENTIFIER[where], 0
    found: dict[str, Any] = {}
    while at < len(block):
        # No identifier is above 0x7F, so its Variable Byte Integer is always this one byte.
        row = rows.get(block[at])
        if row is None:
            raise MalformedPacket(f"property 0x{block[at]:02X} in {where.name}")
        value, at = row.type.read(block, at + 1, strict)
        if not row.valid(value):
            raise row.breach(f"{row.name} out of range")
        if where in row.repeats:
            values = found.setdefault(row.name, [])
            values.append(value)
            check_count(len(values))
        elif row.name in found:
            raise ProtocolError(f"{row.name} appears twice")
        else:
            found[row.name] = value
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
