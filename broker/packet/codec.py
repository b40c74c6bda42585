"""One table, PacketType -> (decode, encode), for MQTT 3.1, 3.1.1 and 5.0.

Decoding takes the body of a packet (what follows the fixed header) and raises an MqttError for all
that the standard calls malformed or a protocol error. Encoding gives whole packets and raises
ValueError for what must never be sent. Topic Filters are only checked as strings; `topic/name.py`
knows their grammar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar, cast

from broker.errors import MalformedPacket, ProtocolError
from broker.packet.connect import decode_connack, decode_connect, encode_connack, encode_connect
from broker.packet.dialect import (
    MQTT_3_1,
    MQTT_5,
    Dialect,
    check_end,
    known,
    read_block,
    read_packet_id,
    sendable,
    sendable_qos,
    sendable_topic,
    whole,
    write_block,
    write_packet_id,
)
from broker.packet.enums import PacketType, Version
from broker.packet.packets import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    PropertyBlock,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from broker.packet.properties import Place, write_properties
from broker.packet.wire import (
    TopicNames,
    check_count,
    read_string,
    read_uint8,
    read_varint,
    string_bytes,
    write_string,
)

# The Reason Codes each packet may carry in 5.0.
_PUBLISH_CODES: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE_CODES: Final = frozenset({0x00, 0x92})
_SUBACK_CODES: Final = frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2})
_UNSUBACK_CODES: Final = frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91})
_AUTH_CODES: Final = frozenset({0x00, 0x18, 0x19})
_LEAVE_CODES: Final = frozenset({0x00, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A)})  # from either side
_CLIENT_LEAVE_CODES: Final = _LEAVE_CODES | {0x04}
_SERVER_LEAVE_CODES: Final = _LEAVE_CODES | {0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)}
_SUBACK_CODES_3: Final = frozenset({0x00, 0x01, 0x02, 0x80})

# What `fit` leaves out, in this order, for a client with a small Maximum Packet Size.
_DROPPABLE: Final = ("reason_string", "user_property", "response_information", "server_reference")


# ---- PUBLISH ---------------------------------------------------------------------------------


def read_publish(flags: int, data: bytes, at: int, end: int, dialect: Dialect) -> Publish:
    """The PUBLISH whose body is `data[at:end]`; of *flags* only the low four bits count.

    A hot path: *data* may hold other packets around it, nothing is copied but topic and payload.
    benchmarks/codec.py: field by field 730 ns in 3.1.1 and 930 in 5.0, this 410 and 430 (CPython
    3.11, 2 cores, QoS 0, 64 bytes). The plain version is the oracle in tests/packet/test_codec.py.
    """
    begin = at + 2
    if begin > end:
        raise MalformedPacket("PUBLISH cut off")
    topic_end = at = begin + (data[at] << 8 | data[at + 1])
    qos, packet_id = flags >> 1 & 3, 0
    if qos:
        at += 2
    if at > end or qos == 3 or flags & 0x0E == 0x08:
        raise MalformedPacket("PUBLISH cut off, with QoS 3, or with QoS 0 and DUP")
    if qos:
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        if packet_id == 0:
            raise ProtocolError("packet identifier 0")
    topic_name = dialect.names[data[begin:topic_end]]
    block = None
    if dialect.five:
        if at >= end:
            raise MalformedPacket("PUBLISH ends before its properties")
        length = data[at]
        at += 1
        if 0 < length < 0x80 and at + length <= end:
            block = dialect.blocks[data[at : at + length]]
            at += length
        elif length:
            block, at = _long_block(data, at - 1, end, dialect)
        if block is not None and not block.is_plain:
            _check_side(block, dialect)
    properties = NO_PROPERTIES if block is None else block.properties
    if not topic_name:
        _check_empty_topic(properties, dialect)
    return Publish(
        topic_name, data[at:end], qos, flags & 1 == 1, flags & 8 == 8, packet_id, properties, block
    )  # fmt: skip


def _long_block(data: bytes, at: int, end: int, dialect: Dialect) -> tuple[PropertyBlock, int]:
    """Properties with a length of more than one byte, or that are not all there; the offset after them."""
    length, width = read_varint(data[at : min(at + 4, end)], 0)
    begin = at + width
    stop = begin + length
    if stop > end:
        raise MalformedPacket("properties run past the end of the packet")
    return dialect.blocks[data[begin:stop]], stop


def _check_side(block: PropertyBlock, dialect: Dialect) -> None:
    if dialect.from_client and "subscription_identifier" in block.properties:
        raise ProtocolError("subscription identifier from a client")


def _check_empty_topic(properties: Properties, dialect: Dialect) -> None:
    if not dialect.five:
        raise MalformedPacket("empty topic name")
    if "topic_alias" not in properties:
        raise ProtocolError("empty topic name without a topic alias")


def decode_publish(flags: int, body: bytes, dialect: Dialect) -> Publish:
    return read_publish(flags, body, 0, len(body), dialect)


def encode_publish(packet: Publish, version: Version) -> bytes:
    """A PUBLISH as a client sends it; the server's own go through `message.py`."""
    if not packet.topic_name and not (version == MQTT_5 and "topic_alias" in packet.properties):
        raise ValueError("empty topic name")
    if packet.qos == 0 and (packet.dup or packet.packet_id):
        raise ValueError("QoS 0 has neither DUP nor a packet identifier")
    out = bytearray(string_bytes(sendable_topic(packet.topic_name)))
    if sendable_qos(packet.qos):
        write_packet_id(out, packet.packet_id)
    write_block(out, packet.properties, Place.PUBLISH, version)
    out += packet.payload
    return whole(0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain, out)


# ---- PUBACK, PUBREC, PUBREL, PUBCOMP ---------------------------------------------------------

Ack = TypeVar("Ack", Puback, Pubrec, Pubrel, Pubcomp)


def _ack(
    packet_class: type[Ack], first: int, place: Place, codes: frozenset[int]
) -> tuple[Decode, Callable[[Ack, Version], bytes]]:
    """decode and encode of one of the four; in 5.0 a body may end after the identifier or the code."""

    def decode_ack(flags: int, body: bytes, dialect: Dialect) -> Ack:
        packet_id, at = read_packet_id(body, 0)
        if at == len(body):
            return packet_class(packet_id)
        if not dialect.five:
            raise MalformedPacket(f"{place.name} is longer than 2 bytes")
        code = known(body[2], codes)
        if len(body) == 3:
            return packet_class(packet_id, code)
        properties, at = read_block(body, 3, place, dialect)
        check_end(body, at)
        return packet_class(packet_id, code, properties)

    short = bytes((first, 2))

    def encode_ack(packet: Ack, version: Version) -> bytes:
        packet_id = packet.packet_id
        if not 0 < packet_id < 0x10000:
            raise ValueError(f"packet identifier {packet_id}")
        raw = packet_id.to_bytes(2, "big")
        if not (packet.reason_code or packet.properties) or version != MQTT_5:
            return short + raw
        out = bytearray(raw)
        out.append(sendable(packet.reason_code, codes))
        if packet.properties:
            write_properties(out, packet.properties, place)
        return whole(first, out)

    return decode_ack, encode_ack


# ---- SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK ------------------------------------------------


def decode_subscribe(flags: int, body: bytes, dialect: Dialect) -> Subscribe:
    packet_id, at = read_packet_id(body, 0)
    properties, at = read_block(body, at, Place.SUBSCRIBE, dialect)
    requests = []
    while at < len(body):
        topic_filter, at = read_string(body, at, dialect.strings)
        options, at = read_uint8(body, at)
        requests.append(_subscribe_request(topic_filter, options, dialect.five))
        check_count(len(requests))
    if not requests:
        raise ProtocolError("SUBSCRIBE without a topic filter")
    return Subscribe(packet_id, requests, properties)


def _subscribe_request(topic_filter: str, options: int, five: bool) -> SubscribeRequest:
    """Subscription Options [MQTT5 3.8.3.1]; 3.x has only the QoS there."""
    if options & (0xC0 if five else 0xFC):
        raise MalformedPacket("reserved bits in the subscription options")
    qos, retain_handling = options & 3, options >> 4
    if qos == 3 or retain_handling == 3:
        breach = ProtocolError if five else MalformedPacket
        raise breach("QoS 3 or retain handling 3 in the subscription options")
    return SubscribeRequest(topic_filter, qos, options & 0x04 != 0, options & 0x08 != 0, retain_handling)


def encode_subscribe(packet: Subscribe, version: Version) -> bytes:
    out = bytearray()
    write_packet_id(out, packet.packet_id)
    write_block(out, packet.properties, Place.SUBSCRIBE, version)
    if not packet.requests:
        raise ValueError("SUBSCRIBE without a topic filter")
    for request in packet.requests:
        if request.retain_handling not in (0, 1, 2):
            raise ValueError(f"retain handling {request.retain_handling}")
        write_string(out, request.topic_filter)
        options = sendable_qos(request.qos)
        if version == MQTT_5:
            options |= request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4
        out.append(options)
    return whole(0x82, out)


def decode_suback(flags: int, body: bytes, dialect: Dialect) -> Suback:
    packet_id, at = read_packet_id(body, 0)
    properties, at = read_block(body, at, Place.SUBACK, dialect)
    codes = _SUBACK_CODES if dialect.five else _SUBACK_CODES_3
    reason_codes = [known(code, codes) for code in body[at:]]
    if not reason_codes:
        raise ProtocolError("SUBACK without a reason code")
    return Suback(packet_id, reason_codes, properties)


def encode_suback(packet: Suback, version: Version) -> bytes:
    """In 3.x every refusal is 0x80 [MQTT3 3.9.3]."""
    out = bytearray()
    write_packet_id(out, packet.packet_id)
    write_block(out, packet.properties, Place.SUBACK, version)
    if not packet.reason_codes:
        raise ValueError("SUBACK without a reason code")
    codes = [sendable(code, _SUBACK_CODES) for code in packet.reason_codes]
    out += bytes(codes if version == MQTT_5 else [min(code, 0x80) for code in codes])
    return whole(0x90, out)


def decode_unsubscribe(flags: int, body: bytes, dialect: Dialect) -> Unsubscribe:
    packet_id, at = read_packet_id(body, 0)
    properties, at = read_block(body, at, Place.UNSUBSCRIBE, dialect)
    topic_filters = []
    while at < len(body):
        topic_filter, at = read_string(body, at, dialect.strings)
        topic_filters.append(topic_filter)
        check_count(len(topic_filters))
    if not topic_filters:
        raise ProtocolError("UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id, topic_filters, properties)


def encode_unsubscribe(packet: Unsubscribe, version: Version) -> bytes:
    out = bytearray()
    write_packet_id(out, packet.packet_id)
    write_block(out, packet.properties, Place.UNSUBSCRIBE, version)
    if not packet.topic_filters:
        raise ValueError("UNSUBSCRIBE without a topic filter")
    for topic_filter in packet.topic_filters:
        write_string(out, topic_filter)
    return whole(0xA2, out)


def decode_unsuback(flags: int, body: bytes, dialect: Dialect) -> Unsuback:
    packet_id, at = read_packet_id(body, 0)
    if not dialect.five:
        check_end(body, at)
        return Unsuback(packet_id, [])
    properties, at = read_block(body, at, Place.UNSUBACK, dialect)
    reason_codes = [known(code, _UNSUBACK_CODES) for code in body[at:]]
    if not reason_codes:
        raise ProtocolError("UNSUBACK without a reason code")
    return Unsuback(packet_id, reason_codes, properties)


def encode_unsuback(packet: Unsuback, version: Version) -> bytes:
    out = bytearray()
    write_packet_id(out, packet.packet_id)
    if version == MQTT_5:
        write_properties(out, packet.properties, Place.UNSUBACK)
        if not packet.reason_codes:
            raise ValueError("UNSUBACK without a reason code")
        out += bytes(sendable(code, _UNSUBACK_CODES) for code in packet.reason_codes)
    return whole(0xB0, out)


# ---- PINGREQ, PINGRESP, DISCONNECT, AUTH -----------------------------------------------------


def decode_pingreq(flags: int, body: bytes, dialect: Dialect) -> Pingreq:
    check_end(body, 0)
    return Pingreq()


def encode_pingreq(packet: Pingreq, version: Version) -> bytes:
    return b"\xc0\x00"


def decode_pingresp(flags: int, body: bytes, dialect: Dialect) -> Pingresp:
    check_end(body, 0)
    return Pingresp()


def encode_pingresp(packet: Pingresp, version: Version) -> bytes:
    return b"\xd0\x00"


def decode_disconnect(flags: int, body: bytes, dialect: Dialect) -> Disconnect:
    if not dialect.five and not dialect.from_client:
        raise ProtocolError("DISCONNECT from a 3.x server")
    if not dialect.five or not body:
        check_end(body, 0)
        return Disconnect()
    code = known(body[0], _CLIENT_LEAVE_CODES if dialect.from_client else _SERVER_LEAVE_CODES)
    if len(body) == 1:
        return Disconnect(code)
    properties, at = read_block(body, 1, Place.DISCONNECT, dialect)
    check_end(body, at)
    return Disconnect(code, properties)


def encode_disconnect(packet: Disconnect, version: Version) -> bytes:
    out = bytearray()
    if version == MQTT_5 and (packet.reason_code or packet.properties):
        out.append(sendable(packet.reason_code, _CLIENT_LEAVE_CODES | _SERVER_LEAVE_CODES))
        if packet.properties:
            write_properties(out, packet.properties, Place.DISCONNECT)
    return whole(0xE0, out)


def decode_auth(flags: int, body: bytes, dialect: Dialect) -> Auth:
    """Every AUTH names its method, so the short forms without one are refused [MQTT5 3.15.2.2.2]."""
    code = known(body[0], _AUTH_CODES) if body else 0
    if len(body) < 2:
        raise ProtocolError("AUTH without an authentication method")
    properties, at = read_block(body, 1, Place.AUTH, dialect)
    check_end(body, at)
    if "authentication_method" not in properties:
        raise ProtocolError("AUTH without an authentication method")
    return Auth(code, properties)


def encode_auth(packet: Auth, version: Version) -> bytes:
    if version != MQTT_5 or "authentication_method" not in packet.properties:
        raise ValueError("AUTH needs MQTT 5.0 and an authentication method")
    out = bytearray((sendable(packet.reason_code, _AUTH_CODES),))
    write_properties(out, packet.properties, Place.AUTH)
    return whole(0xF0, out)


# ---- the table -------------------------------------------------------------------------------

Decode = Callable[[int, bytes, Dialect], Any]


class Codec(NamedTuple):
    """One packet type: its class, the flags of its fixed header (None: they mean something), its code."""

    packet: type[Any]
    flags: int | None
    decode: Decode
    encode: Callable[[Any, Version], bytes]


CODECS: Final = {
    PacketType.CONNECT: Codec(Connect, 0, decode_connect, encode_connect),
    PacketType.CONNACK: Codec(Connack, 0, decode_connack, encode_connack),
    PacketType.PUBLISH: Codec(Publish, None, decode_publish, encode_publish),
    PacketType.PUBACK: Codec(Puback, 0, *_ack(Puback, 0x40, Place.PUBACK, _PUBLISH_CODES)),
    PacketType.PUBREC: Codec(Pubrec, 0, *_ack(Pubrec, 0x50, Place.PUBREC, _PUBLISH_CODES)),
    PacketType.PUBREL: Codec(Pubrel, 2, *_ack(Pubrel, 0x62, Place.PUBREL, _RELEASE_CODES)),
    PacketType.PUBCOMP: Codec(Pubcomp, 0, *_ack(Pubcomp, 0x70, Place.PUBCOMP, _RELEASE_CODES)),
    PacketType.SUBSCRIBE: Codec(Subscribe, 2, decode_subscribe, encode_subscribe),
    PacketType.SUBACK: Codec(Suback, 0, decode_suback, encode_suback),
    PacketType.UNSUBSCRIBE: Codec(Unsubscribe, 2, decode_unsubscribe, encode_unsubscribe),
    PacketType.UNSUBACK: Codec(Unsuback, 0, decode_unsuback, encode_unsuback),
    PacketType.PINGREQ: Codec(Pingreq, 0, decode_pingreq, encode_pingreq),
    PacketType.PINGRESP: Codec(Pingresp, 0, decode_pingresp, encode_pingresp),
    PacketType.DISCONNECT: Codec(Disconnect, 0, decode_disconnect, encode_disconnect),
    PacketType.AUTH: Codec(Auth, 0, decode_auth, encode_auth),
}
_ENCODE: Final[dict[type[Any], Callable[[Any, Version], bytes]]] = {
    codec.packet: codec.encode for codec in CODECS.values()
}
_ONLY_CLIENTS: Final = {PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ}
_ONLY_SERVERS: Final = {PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP}
# MQTT 3.1 had a DUP flag on these too.
_DUP_IN_3_1: Final = {PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PUBREL}
_TOPIC_NAMES: Final = {strict: TopicNames(strict) for strict in (True, False)}


def decode(
    packet_type: int, flags: int, body: bytes, version: Version, strict: bool = True, from_client: bool = True
) -> Packet:
    """One packet from the two halves of its first byte and its body.

    Raises an MqttError with the code the peer is to hear. A CONNECT brings its own version.
    """
    return decode_body(packet_type, flags, body, Dialect(version, strict, from_client, _TOPIC_NAMES[strict]))


def decode_body(packet_type: int, flags: int, body: bytes, dialect: Dialect) -> Packet:
    """As `decode`, for those that keep a Dialect."""
    packet: Packet = check_header(packet_type, flags, dialect).decode(flags, body, dialect)
    return packet


def check_header(packet_type: int, flags: int, dialect: Dialect) -> Codec:
    """The codec for this first byte; raises what is wrong with it, before anything else [B01]."""
    codec: Codec | None = CODECS.get(packet_type)  # type: ignore[call-overload]
    if codec is None or (packet_type == PacketType.AUTH and not dialect.five):
        raise MalformedPacket(f"packet type {packet_type}")
    if packet_type in (_ONLY_SERVERS if dialect.from_client else _ONLY_CLIENTS):
        raise ProtocolError(f"{PacketType(packet_type).name} from the wrong side")
    if flags != codec.flags and codec.flags is not None:
        _check_flags(packet_type, flags, codec.flags, dialect)
    return codec


def _check_flags(packet_type: int, flags: int, wanted: int, dialect: Dialect) -> None:
    dup_allowed = dialect.version == MQTT_3_1 and packet_type in _DUP_IN_3_1
    if not dup_allowed or flags & ~0x08 != wanted:
        raise MalformedPacket(f"flags {flags:04b} on {PacketType(packet_type).name}")


def encode(packet: Packet, version: Version) -> bytes:
    """The whole packet. Raises ValueError for one that must not be sent."""
    return _ENCODE[type(packet)](packet, version)


def fit(packet: Packet, version: Version, limit: int | None) -> bytes | None:
    """*packet* encoded in at most *limit* bytes, the client's Maximum Packet Size [MQTT5 3.1.2.11.4].

    Properties the peer can do without are left out, one by one, until it fits; None if it never does.
    Not for PUBLISH: whose properties are the publisher's.
    """
    raw = encode(packet, version)
    properties = getattr(packet, "properties", NO_PROPERTIES)
    for name in _DROPPABLE:
        if limit is None or len(raw) <= limit:
            return raw
        if name in properties:
            properties = {key: value for key, value in properties.items() if key != name}
            packet = replace(cast(Any, packet), properties=properties)
            raw = encode(packet, version)
    return raw if limit is None or len(raw) <= limit else None
