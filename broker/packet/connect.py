"""CONNECT and CONNACK: where the protocol and its version are agreed on [MQTT5 3.1, 3.2]."""

from __future__ import annotations

from typing import Final

from broker.errors import (
    MalformedPacket,
    ProtocolError,
    UnknownProtocol,
    UnsupportedProtocolVersion,
)
from broker.packet.dialect import (
    MQTT_3_1,
    MQTT_5,
    Dialect,
    check_authentication,
    check_end,
    dialect_of,
    known,
    read_block,
    sendable,
    sendable_qos,
    sendable_topic,
    whole,
    write_block,
)
from broker.packet.enums import Version
from broker.packet.packets import Connack, Connect, Will
from broker.packet.properties import Place
from broker.packet.wire import (
    read_binary,
    read_string,
    read_uint8,
    read_uint16,
    write_binary,
    write_string,
    write_uint8,
    write_uint16,
)

# Protocol Name and Level on the wire -> version; bit 0x80 is set by bridges [MQTT5 3.1.2.1].
_LEVELS: Final = {
    (b"MQIsdp", 3): Version.MQTT_3_1,
    (b"MQTT", 4): Version.MQTT_3_1_1,
    (b"MQTT", 5): Version.MQTT_5,
}
_NAMES: Final = {version: (name, level) for (name, level), version in _LEVELS.items()}
_BRIDGE: Final = 0x80

_CONNACK_CODES: Final = frozenset(
    {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}
)
_RETURN_CODES: Final = range(6)  # of 3.x


def read_protocol(body: bytes) -> tuple[Version, bool, int]:
    """Version and bridge bit of a CONNECT, and the offset after them [MQTT5 3.1.2.1, 3.1.2.2].

    Works on the first bytes of a body too. Raises UnknownProtocol or UnsupportedProtocolVersion.
    """
    try:
        name, at = read_binary(body, 0)
        level, at = read_uint8(body, at)
    except MalformedPacket as error:
        raise UnknownProtocol("CONNECT ends before its protocol level") from error
    if name not in (b"MQTT", b"MQIsdp"):
        raise UnknownProtocol(f"protocol name {name[:16]!r}")
    bridge = level in (3 | _BRIDGE, 4 | _BRIDGE)
    version = _LEVELS.get((name, level & ~_BRIDGE if bridge else level))
    if version is None:
        raise UnsupportedProtocolVersion(f"{name.decode()} level {level}", level)
    return version, bridge, at


def decode_connect(flags: int, body: bytes, dialect: Dialect) -> Connect:
    version, bridge, at = read_protocol(body)
    dialect = dialect_of(version, dialect.strict, dialect.from_client, dialect.names)
    bits, at = read_uint8(body, at)
    _check_connect_flags(bits, dialect)
    keep_alive, at = read_uint16(body, at)
    properties, at = read_block(body, at, Place.CONNECT, dialect)
    check_authentication(properties)
    client_id, at = read_string(body, at, dialect.strings)
    will = None
    if bits & 0x04:
        will, at = _read_will(bits, body, at, dialect)
    user_name = password = None
    if bits & 0x80 and not _left_out(body, at, version):
        user_name, at = read_string(body, at, dialect.strings)
    if bits & 0x40 and not _left_out(body, at, version):
        password, at = read_binary(body, at)
    check_end(body, at)
    clean_start = bits & 0x02 != 0
    return Connect(client_id, version, clean_start, keep_alive, user_name, password, will, properties, bridge)


def _left_out(body: bytes, at: int, version: Version) -> bool:
    """MQTT 3.1 let a payload end before the credentials its flags announce."""
    return version == MQTT_3_1 and at == len(body)


def _check_connect_flags(bits: int, dialect: Dialect) -> None:
    """The Connect Flags [MQTT5 3.1.2.3]."""
    if bits & 0x01:
        raise MalformedPacket("reserved connect flag is set")
    if bits & 0x18 == 0x18:
        raise MalformedPacket("will QoS 3")
    if bits & 0x38 and not bits & 0x04:
        raise MalformedPacket("will QoS or will retain without a will")
    if bits & 0xC0 == 0x40 and not dialect.five:
        raise MalformedPacket("password without user name")


def _read_will(bits: int, body: bytes, at: int, dialect: Dialect) -> tuple[Will, int]:
    properties, at = read_block(body, at, Place.WILL, dialect)
    topic_name, at = read_string(body, at, dialect.strict)  # it travels: 3.1 is no excuse [B21]
    payload, at = read_binary(body, at)
    return Will(topic_name, payload, bits >> 3 & 3, bits & 0x20 != 0, properties), at


def encode_connect(packet: Connect, version: Version) -> bytes:
    """The version is the packet's own; *version* does not count here."""
    version, will = packet.version, packet.will
    bits = packet.clean_start << 1 | (packet.user_name is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        bits |= 0x04 | sendable_qos(will.qos) << 3 | will.retain << 5
    if bits & 0xC0 == 0x40 and version != MQTT_5:
        raise ValueError("password without user name")
    name, level = _NAMES[version]
    out = bytearray()
    write_binary(out, name)
    write_uint8(out, level | _BRIDGE if packet.bridge else level)
    write_uint8(out, bits)
    write_uint16(out, packet.keep_alive)
    write_block(out, packet.properties, Place.CONNECT, version)
    write_string(out, packet.client_id)
    if will is not None:
        write_block(out, will.properties, Place.WILL, version)
        write_string(out, sendable_topic(will.topic_name))
        write_binary(out, will.payload)
    if packet.user_name is not None:
        write_string(out, packet.user_name)
    if packet.password is not None:
        write_binary(out, packet.password)
    return whole(0x10, out)


def decode_connack(flags: int, body: bytes, dialect: Dialect) -> Connack:
    bits, at = read_uint8(body, 0)
    code, at = read_uint8(body, at)
    if bits & ~(dialect.version != MQTT_3_1):
        raise MalformedPacket("reserved bit in CONNACK")
    known(code, _CONNACK_CODES if dialect.five else _RETURN_CODES)
    if bits and code:
        raise ProtocolError("session present on a refusal")
    properties, at = read_block(body, at, Place.CONNACK, dialect)
    check_authentication(properties)
    check_end(body, at)
    return Connack(bits == 1, code, properties)


def encode_connack(packet: Connack, version: Version) -> bytes:
    sendable(packet.reason_code, _CONNACK_CODES if version == MQTT_5 else _RETURN_CODES)
    if packet.session_present and packet.reason_code:
        raise ValueError("session present on a refusal")
    out = bytearray((packet.session_present and version != MQTT_3_1, packet.reason_code))
    write_block(out, packet.properties, Place.CONNACK, version)
    return whole(0x20, out)
