"""How to read what one peer sends, and the rules that every packet type shares."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from broker.errors import MalformedPacket, ProtocolError
from broker.packet.enums import Version
from broker.packet.packets import NO_PROPERTIES, Properties
from broker.packet.properties import Place, PropertyBlocks, read_properties, write_properties
from broker.packet.wire import TopicNames, read_uint16, varint_bytes, write_uint16

MQTT_3_1: Final = Version.MQTT_3_1
MQTT_5: Final = Version.MQTT_5
_BLOCKS: Final = {strict: PropertyBlocks(strict) for strict in (True, False)}


class Dialect:
    """The version a peer speaks and the manners it is held to. Never changed once made.

    *strict* refuses disallowed code points; MQTT 3.1 had no such rule, so `strings` is False there.
    Topic Names go by *names*, whatever the version: they travel on to other clients.
    """

    __slots__ = ("blocks", "five", "from_client", "names", "strict", "strings", "version")

    def __init__(self, version: Version, strict: bool, from_client: bool, names: TopicNames) -> None:
        self.version = version
        self.five = version == MQTT_5
        self.strict = strict
        self.strings = strict and version != MQTT_3_1
        self.from_client = from_client
        self.names = names
        self.blocks = _BLOCKS[self.strings]


def dialect_of(version: Version, strict: bool, from_client: bool, names: TopicNames) -> Dialect:
    """The Dialect, one for all readers that share *names*."""
    key = version, strict, from_client
    found: Dialect | None = names.dialects.get(key)
    if found is None:
        found = names.dialects[key] = Dialect(version, strict, from_client, names)
    return found


def read_packet_id(body: bytes, at: int) -> tuple[int, int]:
    packet_id, at = read_uint16(body, at)
    if packet_id == 0:
        raise ProtocolError("packet identifier 0")
    return packet_id, at


def read_block(body: bytes, at: int, place: Place, dialect: Dialect) -> tuple[Properties, int]:
    """The property block of *place*; 3.x has none."""
    if not dialect.five:
        return NO_PROPERTIES, at
    return read_properties(body, at, len(body), place, dialect.strings)


def check_end(body: bytes, at: int) -> None:
    if at != len(body):
        raise MalformedPacket(f"{len(body) - at} bytes left over")


def check_authentication(properties: Properties) -> None:
    if "authentication_data" in properties and "authentication_method" not in properties:
        raise ProtocolError("authentication data without a method")


def known(code: int, codes: Container[int]) -> int:
    """*code* as received, if the packet may carry it."""
    if code not in codes:
        raise ProtocolError(f"reason code 0x{code:02X} has no meaning here")
    return code


def write_packet_id(out: bytearray, packet_id: int) -> None:
    if packet_id == 0:
        raise ValueError("packet identifier 0")
    write_uint16(out, packet_id)


def write_block(out: bytearray, properties: Properties, place: Place, version: Version) -> None:
    """The property block of *place*; to 3.x nothing, whatever the properties are."""
    if version == MQTT_5:
        write_properties(out, properties, place)


def sendable(code: int, codes: Container[int]) -> int:
    """*code* to be sent, if the packet may carry it; ValueError if not."""
    if code not in codes:
        raise ValueError(f"reason code 0x{code:02X} has no meaning here")
    return int(code)


def sendable_qos(qos: int) -> int:
    if qos not in (0, 1, 2):
        raise ValueError(f"QoS {qos}")
    return int(qos)


def sendable_topic(topic_name: str) -> str:
    if "+" in topic_name or "#" in topic_name:
        raise ValueError("topic name holds a wildcard")
    return topic_name


def whole(first: int, body: bytes | bytearray) -> bytes:
    """A packet of its first byte and its body; ValueError above 268435455 bytes of body."""
    return b"".join((first.to_bytes(1, "big"), varint_bytes(len(body)), body))
