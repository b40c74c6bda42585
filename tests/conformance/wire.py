"""MQTT on the wire for the tests alone: builders that can break any rule, a parser that allows no breach.

Nothing here comes from `broker`, so that a mistake of the broker's codec cannot hide in its own
mirror. A builder returns bytes. Its `version` is 3, 4 or 5 (Protocol Level); properties are left
out below 5. Wherever a builder takes *properties* it takes one of

    bytes                                  the raw properties with their Property Length
    [(0x26, ("a", "b")), (0x99, b"raw")]   identifiers in order; bytes for an unknown one are raw
    {"receive_maximum": 5}                 names, as in PROPERTIES; a list repeats a property
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# --------------------------------------------------------------------------- names and tables

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)
NAMES = ("RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE",
         "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH")  # fmt: skip

# identifier: (name, type, packets that may carry it: 0 stands for the Will Properties)
WILL = 0
_EVERY_ACK = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
PROPERTIES: dict[int, tuple[str, str, tuple[int, ...]]] = {
    0x01: ("payload_format_indicator", "byte", (PUBLISH, WILL)),
    0x02: ("message_expiry_interval", "four", (PUBLISH, WILL)),
    0x03: ("content_type", "string", (PUBLISH, WILL)),
    0x08: ("response_topic", "string", (PUBLISH, WILL)),
    0x09: ("correlation_data", "binary", (PUBLISH, WILL)),
    0x0B: ("subscription_identifier", "varint", (PUBLISH, SUBSCRIBE)),
    0x11: ("session_expiry_interval", "four", (CONNECT, CONNACK, DISCONNECT)),
    0x12: ("assigned_client_identifier", "string", (CONNACK,)),
    0x13: ("server_keep_alive", "two", (CONNACK,)),
    0x15: ("authentication_method", "string", (CONNECT, CONNACK, AUTH)),
    0x16: ("authentication_data", "binary", (CONNECT, CONNACK, AUTH)),
    0x17: ("request_problem_information", "byte", (CONNECT,)),
    0x18: ("will_delay_interval", "four", (WILL,)),
    0x19: ("request_response_information", "byte", (CONNECT,)),
    0x1A: ("response_information", "string", (CONNACK,)),
    0x1C: ("server_reference", "string", (CONNACK, DISCONNECT)),
    0x1F: ("reason_string", "string", _EVERY_ACK),
    0x21: ("receive_maximum", "two", (CONNECT, CONNACK)),
    0x22: ("topic_alias_maximum", "two", (CONNECT, CONNACK)),
    0x23: ("topic_alias", "two", (PUBLISH,)),
    0x24: ("maximum_qos", "byte", (CONNACK,)),
    0x25: ("retain_available", "byte", (CONNACK,)),
    0x26: ("user_property", "pair", (CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, *_EVERY_ACK)),
    0x27: ("maximum_packet_size", "four", (CONNECT, CONNACK)),
    0x28: ("wildcard_subscription_available", "byte", (CONNACK,)),
    0x29: ("subscription_identifier_available", "byte", (CONNACK,)),
    0x2A: ("shared_subscription_available", "byte", (CONNACK,)),
}
IDENTIFIERS = {name: identifier for identifier, (name, _, _) in PROPERTIES.items()}

# Reason Codes that the server may put into each packet (tables 3-1 to 3-11 of MQTT 5.0).
SERVER_REASON_CODES: dict[int, frozenset[int]] = {
    CONNACK: frozenset({0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}),
    PUBACK: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    PUBREC: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    PUBREL: frozenset({0x00, 0x92}),
    PUBCOMP: frozenset({0x00, 0x92}),
    SUBACK: frozenset({0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    DISCONNECT: frozenset(
        {0x00, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)}
    ),
    AUTH: frozenset({0x00, 0x18}),
}
SERVER_FLAGS = {CONNACK: 0, PUBACK: 0, PUBREC: 0, PUBREL: 2, PUBCOMP: 0, SUBACK: 0, UNSUBACK: 0,
                PINGRESP: 0, DISCONNECT: 0, AUTH: 0}  # fmt: skip


# --------------------------------------------------------------------------- building: data types


def varint(value: int, width: int = 0) -> bytes:
    """A Variable Byte Integer; *width* forces more bytes than it needs (a breach)."""
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        if value or len(out) + 1 < width:
            out.append(low | 0x80)
        else:
            out.append(low)
            return bytes(out)


def two(value: int) -> bytes:
    return value.to_bytes(2, "big")


def four(value: int) -> bytes:
    return value.to_bytes(4, "big")


def binary(value: bytes) -> bytes:
    return two(len(value)) + value


def string(value: str | bytes) -> bytes:
    """A UTF-8 Encoded String; bytes are taken as they are (to be ill-formed on purpose)."""
    return binary(value.encode() if isinstance(value, str) else value)


_BUILD = {
    "byte": lambda value: bytes([value]),
    "two": two,
    "four": four,
    "varint": lambda value: value if isinstance(value, bytes) else varint(value),
    "string": string,
    "binary": binary,
    "pair": lambda value: string(value[0]) + string(value[1]),
}

PropertySpec = bytes | Iterable[tuple[int, Any]] | Mapping[str, Any]


def one_property(identifier: int, value: Any) -> bytes:
    """One property with its identifier; an identifier that the table lacks takes raw bytes."""
    if identifier not in PROPERTIES:
        return varint(identifier) + bytes(value)
    return varint(identifier) + _BUILD[PROPERTIES[identifier][1]](value)


def encode_properties(spec: PropertySpec = ()) -> bytes:
    """Property Length and properties, from any of the forms that the module docstring names."""
    if isinstance(spec, bytes):
        return spec
    body = b"".join(one_property(identifier, value) for identifier, value in _pairs(spec))
    return varint(len(body)) + body


def _pairs(spec: Iterable[tuple[int, Any]] | Mapping[str, Any]) -> Iterable[tuple[int, Any]]:
    if not isinstance(spec, Mapping):
        yield from spec
        return
    for name, value in spec.items():
        for one in value if isinstance(value, list) else [value]:
            yield IDENTIFIERS[name], one


# --------------------------------------------------------------------------- building: packets


def packet(first: int, body: bytes = b"", length: int | None = None, length_width: int = 0) -> bytes:
    """Any packet: first byte, Remaining Length (*length* lies about it), body."""
    return bytes([first]) + varint(len(body) if length is None else length, length_width) + body


@dataclass(frozen=True)
class Will:
    """The will of a CONNECT; see `will()`."""

    topic_name: str | bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: PropertySpec = ()


def will(
    topic_name: str | bytes, payload: bytes = b"", qos: int = 0, retain: bool = False,
    properties: PropertySpec = (), **named: Any,
) -> Will:  # fmt: skip
    """`will("t", b"x", qos=1, will_delay_interval=5)`: properties by name, or *properties* raw."""
    return Will(topic_name, payload, qos, retain, named or properties)


def connect(
    client_id: str | bytes = "client",
    *,
    version: int = 5,
    clean_start: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    user_name: str | bytes | None = None,
    password: bytes | None = None,
    properties: PropertySpec = (),
    flags: int | None = None,
    protocol_name: str | bytes | None = None,
    level: int | None = None,
    payload: bytes | None = None,
    tail: bytes = b"",
    first: int = 0x10,
) -> bytes:
    """CONNECT; *flags*, *protocol_name*, *level* and *payload* replace what is right; *tail* follows."""
    name = protocol_name if protocol_name is not None else "MQIsdp" if version == 3 else "MQTT"
    byte = connect_flags(clean_start, will, user_name, password) if flags is None else flags
    head = string(name) + bytes([version if level is None else level, byte]) + two(keep_alive)
    if version == 5:
        head += encode_properties(properties)
    if payload is None:
        payload = connect_payload(client_id, will, user_name, password, version)
    return packet(first, head + payload + tail)


def connect_flags(
    clean_start: bool = True,
    will: Will | None = None,
    user_name: str | bytes | None = None,
    password: bytes | None = None,
) -> int:
    byte = clean_start << 1 | (user_name is not None) << 7 | (password is not None) << 6
    return byte if will is None else byte | 4 | will.qos << 3 | will.retain << 5


def connect_payload(
    client_id: str | bytes,
    will: Will | None = None,
    user_name: str | bytes | None = None,
    password: bytes | None = None,
    version: int = 5,
) -> bytes:
    """The fields of the CONNECT payload in their order."""
    out = string(client_id)
    if will is not None:
        out += encode_properties(will.properties) if version == 5 else b""
        out += string(will.topic_name) + binary(will.payload)
    out += b"" if user_name is None else string(user_name)
    return out + (b"" if password is None else binary(password))


def publish(
    topic_name: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    properties: PropertySpec = (),
    version: int = 5,
    first: int | None = None,
) -> bytes:
    """PUBLISH. The identifier is written if *qos* is above 0 (default 1) or if one is given."""
    if packet_id is None and qos:
        packet_id = 1
    body = string(topic_name) + (b"" if packet_id is None else two(packet_id))
    if version == 5:
        body += encode_properties(properties)
    return packet(0x30 | dup << 3 | qos << 1 | retain if first is None else first, body + payload)


def publish_of(size: int, topic_name: str = "t", **fields: Any) -> bytes:
    """A PUBLISH of *size* bytes in all, below 16 KiB, filled up with x."""
    empty = len(publish(topic_name, **fields)) + (size > 129)  # from there on Remaining Length has two bytes
    raw = publish(topic_name, b"x" * (size - empty), **fields)
    assert len(raw) == size
    return raw


def alias(number: int) -> dict[str, int]:
    """The properties of a PUBLISH that uses a Topic Alias."""
    return {"topic_alias": number}


def ack(
    first: int,
    packet_id: int,
    reason_code: int | None = None,
    properties: PropertySpec | None = None,
    version: int = 5,
    tail: bytes = b"",
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP by its first byte; the shortest form that holds what is given."""
    body = two(packet_id)
    if version == 5 and properties is not None:
        body += bytes([reason_code or 0]) + encode_properties(properties)
    elif version == 5 and reason_code is not None:
        body += bytes([reason_code])
    return packet(first, body + tail)


def puback(packet_id: int, reason_code: int | None = None, properties: PropertySpec | None = None,
           version: int = 5, first: int = 0x40) -> bytes:  # fmt: skip
    return ack(first, packet_id, reason_code, properties, version)


def pubrec(packet_id: int, reason_code: int | None = None, properties: PropertySpec | None = None,
           version: int = 5, first: int = 0x50) -> bytes:  # fmt: skip
    return ack(first, packet_id, reason_code, properties, version)


def pubrel(packet_id: int, reason_code: int | None = None, properties: PropertySpec | None = None,
           version: int = 5, first: int = 0x62) -> bytes:  # fmt: skip
    return ack(first, packet_id, reason_code, properties, version)


def pubcomp(packet_id: int, reason_code: int | None = None, properties: PropertySpec | None = None,
            version: int = 5, first: int = 0x70) -> bytes:  # fmt: skip
    return ack(first, packet_id, reason_code, properties, version)


def options(
    qos: int = 0, no_local: bool = False, retain_as_published: bool = False, retain_handling: int = 0
) -> int:
    """The Subscription Options byte."""
    return qos | no_local << 2 | retain_as_published << 3 | retain_handling << 4


Filter = str | bytes | tuple[str | bytes, int]


def subscribe(packet_id: int, *filters: Filter, properties: PropertySpec = (), version: int = 5,
              tail: bytes = b"", first: int = 0x82) -> bytes:  # fmt: skip
    """SUBSCRIBE; a filter is a string (options 0) or (string, options byte)."""
    body = two(packet_id) + (encode_properties(properties) if version == 5 else b"")
    pairs = [one if isinstance(one, tuple) else (one, 0) for one in filters]
    payload = b"".join(string(topic_filter) + bytes([byte]) for topic_filter, byte in pairs)
    return packet(first, body + payload + tail)


def unsubscribe(packet_id: int, *filters: str | bytes, properties: PropertySpec = (), version: int = 5,
                tail: bytes = b"", first: int = 0xA2) -> bytes:  # fmt: skip
    body = two(packet_id) + (encode_properties(properties) if version == 5 else b"")
    return packet(first, body + b"".join(string(one) for one in filters) + tail)


def pingreq() -> bytes:
    return packet(0xC0)


def _short(first: int, reason_code: int | None, spec: PropertySpec | None) -> bytes:
    if spec is not None:
        return packet(first, bytes([reason_code or 0]) + encode_properties(spec))
    return packet(first, b"" if reason_code is None else bytes([reason_code]))


def disconnect(
    reason_code: int | None = None, properties: PropertySpec | None = None, first: int = 0xE0
) -> bytes:
    """DISCONNECT: no body, one byte, or code and properties. 3.x has only the first form."""
    return _short(first, reason_code, properties)


def auth(reason_code: int | None = None, properties: PropertySpec | None = None, first: int = 0xF0) -> bytes:
    return _short(first, reason_code, properties)


# --------------------------------------------------------------------------- reading: what the server sent


@dataclass
class Packet:
    """One packet from the server, checked. Fields that the type does not have keep their default."""

    type: int
    raw: bytes
    first: int
    packet_id: int | None = None
    session_present: bool | None = None
    reason_code: int | None = None
    reason_codes: list[int] = field(default_factory=list)
    topic_name: str | None = None  # resolved by the test client if an alias came
    sent_topic_name: str | None = None  # as it was on the wire: empty if only an alias came
    payload: bytes | None = None
    qos: int | None = None
    retain: bool | None = None
    dup: bool | None = None
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return NAMES[self.type]

    def __repr__(self) -> str:
        skip = ("type", "raw", "first")
        shown = {k: v for k, v in vars(self).items() if k not in skip and v not in (None, [], {})}
        return f"<{self.name} {' '.join(f'{k}={v!r}' for k, v in shown.items())} [{self.raw[:40].hex(' ')}]>"


class _Cursor:
    """Reads the data types from one packet; every read past the end is an AssertionError."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.at, self.what = data, 0, what

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data), f"{self.what} ends too early: {self.data.hex(' ')}"
        self.at += count
        return self.data[self.at - count : self.at]

    def left(self) -> int:
        return len(self.data) - self.at

    def byte(self) -> int:
        return self.take(1)[0]

    def two(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def four(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def varint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                assert byte or not shift, f"{self.what}: a Variable Byte Integer is longer than needed"
                return value
        raise AssertionError(f"{self.what}: a Variable Byte Integer has more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.two())

    def string(self) -> str:
        raw = self.binary()
        try:
            text = raw.decode("utf-8", "strict")
        except UnicodeDecodeError as error:
            raise AssertionError(f"{self.what}: a string is not UTF-8: {raw!r}") from error
        assert "\0" not in text, f"{self.what}: a string holds U+0000"
        return text

    def pair(self) -> tuple[str, str]:
        return self.string(), self.string()

    def done(self) -> None:
        assert not self.left(), f"{self.what}: {self.left()} bytes are left over: {self.data.hex(' ')}"


_ONE_BIT = {
    "payload_format_indicator",
    "maximum_qos",
    "retain_available",
    "wildcard_subscription_available",
    "subscription_identifier_available",
    "shared_subscription_available",
}  # bytes that are 0 or 1 [Maximum QoS 2 is never sent]
_NOT_ZERO = {"receive_maximum", "maximum_packet_size", "topic_alias"}
_NOT_FROM_SERVER = {(DISCONNECT, "session_expiry_interval")}  # MQTT-3.14.2-2


def read_properties(cursor: _Cursor, kind: int) -> dict[str, Any]:
    """The properties of a packet from the server; asserts the table, single occurrence and values."""
    length = cursor.varint()
    inner = _Cursor(cursor.take(length), f"{cursor.what} properties")
    found: dict[str, Any] = {}
    while inner.left():
        identifier = inner.varint()
        assert identifier in PROPERTIES, f"{cursor.what}: unknown property 0x{identifier:02X}"
        name, data_type, where = PROPERTIES[identifier]
        allowed = kind in where and (kind, name) not in _NOT_FROM_SERVER
        assert allowed, f"{cursor.what}: {name} is not allowed"
        value = getattr(inner, data_type)()
        _check_value(cursor.what, name, value)
        if data_type == "pair" or name == "subscription_identifier":
            found.setdefault(name, []).append(value)
        else:
            assert name not in found, f"{cursor.what}: {name} appears twice"
            found[name] = value
    return found


def _check_value(what: str, name: str, value: Any) -> None:
    if name in _ONE_BIT:
        assert value in (0, 1), f"{what}: {name} is {value}"
    if name in _NOT_ZERO or name == "subscription_identifier":
        assert value != 0, f"{what}: {name} is 0"
    if name == "response_topic":
        assert value and not set(value) & set("+#"), f"{what}: {name} is {value!r}"


def split(buffer: bytes | bytearray) -> tuple[bytes, bytes] | None:
    """The first whole packet of *buffer* and the rest, or None; asserts a minimal Remaining Length."""
    value = 0
    for at in range(1, 5):
        if len(buffer) <= at:
            return None
        value |= (buffer[at] & 0x7F) << 7 * (at - 1)
        if buffer[at] < 0x80:
            assert buffer[at] or at == 1, (
                f"Remaining Length is longer than needed: {bytes(buffer[:6]).hex(' ')}"
            )
            end = at + 1 + value
            return (bytes(buffer[:end]), bytes(buffer[end:])) if len(buffer) >= end else None
    raise AssertionError(f"Remaining Length has more than four bytes: {bytes(buffer[:6]).hex(' ')}")


def parse(raw: bytes, version: int) -> Packet:
    """One packet that a server sent to a client of *version*; AssertionError on any breach."""
    kind, flags = raw[0] >> 4, raw[0] & 15
    what = f"{NAMES[kind]} ({raw[:32].hex(' ')})"
    assert kind in _READ, f"the server sent {what}"
    assert version == 5 or kind not in (DISCONNECT, AUTH), f"the server sent {what} to a 3.x client"
    assert kind == PUBLISH or flags == SERVER_FLAGS[kind], f"{what}: flags are {flags:04b}"
    body = raw[1:]
    while body[0] >= 0x80:
        body = body[1:]
    cursor, found = _Cursor(body[1:], what), Packet(kind, raw, raw[0])
    _READ[kind](cursor, found, version)
    cursor.done()
    if version == 5 and kind in SERVER_REASON_CODES:
        for code in found.reason_codes or [found.reason_code]:
            assert code in SERVER_REASON_CODES[kind], f"{what}: reason code {code:#04x} is not in its table"
    return found


def _read_connack(cursor: _Cursor, found: Packet, version: int) -> None:
    flags = cursor.byte()
    assert flags in (0, 1), f"{cursor.what}: Connect Acknowledge Flags are {flags:#04x}"
    found.session_present, found.reason_code = bool(flags), cursor.byte()
    assert not (flags and found.reason_code), f"{cursor.what}: Session Present in a refusal"
    assert version != 3 or not flags, f"{cursor.what}: MQTT 3.1 has no Session Present"
    if version == 5:
        found.properties = read_properties(cursor, CONNACK)
    else:
        assert found.reason_code <= 5, f"{cursor.what}: return code {found.reason_code}"


def _read_publish(cursor: _Cursor, found: Packet, version: int) -> None:
    flags = found.first & 15
    found.dup, found.qos, found.retain = bool(flags & 8), flags >> 1 & 3, bool(flags & 1)
    assert found.qos != 3, f"{cursor.what}: QoS 3"
    assert found.qos or not found.dup, f"{cursor.what}: DUP at QoS 0"
    found.topic_name = cursor.string()
    assert not set(found.topic_name) & set("+#"), f"{cursor.what}: topic {found.topic_name!r}"
    if found.qos:
        found.packet_id = cursor.two()
        assert found.packet_id, f"{cursor.what}: packet identifier 0"
    if version == 5:
        found.properties = read_properties(cursor, PUBLISH)
    assert found.topic_name or "topic_alias" in found.properties, f"{cursor.what}: no topic and no alias"
    found.payload = cursor.take(cursor.left())


def _read_ack(cursor: _Cursor, found: Packet, version: int) -> None:
    found.packet_id, found.reason_code = cursor.two(), 0
    assert found.packet_id, f"{cursor.what}: packet identifier 0"
    if version == 5 and cursor.left():
        found.reason_code = cursor.byte()
        found.properties = read_properties(cursor, found.type) if cursor.left() else {}


def _read_suback(cursor: _Cursor, found: Packet, version: int) -> None:
    found.packet_id = cursor.two()
    assert found.packet_id, f"{cursor.what}: packet identifier 0"
    if version == 5:
        found.properties = read_properties(cursor, found.type)
    if version == 5 or found.type == SUBACK:
        found.reason_codes = list(cursor.take(cursor.left()))
        assert found.reason_codes, f"{cursor.what}: no reason code"
        known = (0, 1, 2) if version == 3 else (0, 1, 2, 0x80)
        assert version == 5 or all(code in known for code in found.reason_codes), (
            f"{cursor.what}: return codes"
        )


def _read_disconnect(cursor: _Cursor, found: Packet, version: int) -> None:
    found.reason_code = cursor.byte() if cursor.left() else 0
    found.properties = read_properties(cursor, found.type) if cursor.left() else {}
    if found.type == AUTH:
        assert "authentication_method" in found.properties, f"{cursor.what}: no Authentication Method"


_READ = {
    CONNACK: _read_connack,
    PUBLISH: _read_publish,
    PUBACK: _read_ack,
    PUBREC: _read_ack,
    PUBREL: _read_ack,
    PUBCOMP: _read_ack,
    SUBACK: _read_suback,
    UNSUBACK: _read_suback,
    PINGRESP: lambda cursor, found, version: None,
    DISCONNECT: _read_disconnect,
    AUTH: _read_disconnect,
}
