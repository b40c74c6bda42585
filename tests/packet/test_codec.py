"""Packets one by one: bytes, outcome and section on one line; laws for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import (
    MalformedPacket,
    MqttError,
    ProtocolError,
    QuotaExceeded,
    TopicAliasInvalid,
    TopicNameInvalid,
    UnknownProtocol,
    UnsupportedProtocolVersion,
)
from broker.packet.codec import decode, encode, fit, read_publish
from broker.packet.dialect import Dialect, read_block, read_packet_id
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
    Will,
)
from broker.packet.properties import Place
from broker.packet.wire import REPEATS_MAX, TopicNames, read_binary, read_varint
from tests.packet import strategies as make

V3, V4, V5 = Version.MQTT_3_1, Version.MQTT_3_1_1, Version.MQTT_5
MQTT5 = "0004" + "4d515454" + "05"
MQTT4 = "0004" + "4d515454" + "04"
MQTT3 = "0006" + "4d5149736470" + "03"
ID = "0001" + "63"  # client_id "c"
WILL = "0001" + "77" + "0000"  # will topic "w", empty payload
MALFORMED, PROTOCOL = MalformedPacket, ProtocolError


def parse(first: int, body: str, version: Version, strict: bool = True, from_client: bool = True) -> Packet:
    return decode(first >> 4, first & 15, bytes.fromhex(body), version, strict, from_client)


# ---- laws ------------------------------------------------------------------------------------


def read_back(raw: bytes, version: Version, from_client: bool) -> Packet:
    length, start = read_varint(raw, 1)
    assert len(raw) == start + length
    return decode(raw[0] >> 4, raw[0] & 15, raw[start:], version, True, from_client)


@pytest.mark.parametrize("version", Version)
@given(data=st.data())
def test_decode_undoes_encode_of_a_client(version: Version, data: st.DataObject) -> None:
    packet = data.draw(make.client_packets(version))
    assert read_back(encode(packet, version), version, True) == packet


@pytest.mark.parametrize("version", Version)
@given(data=st.data())
def test_decode_undoes_encode_of_a_server(version: Version, data: st.DataObject) -> None:
    packet = data.draw(make.server_packets(version))
    assert read_back(encode(packet, version), version, False) == packet


@pytest.mark.parametrize("version", Version)
@given(data=st.data())
def test_every_truncation_and_every_extra_byte_is_no_other_exception(
    version: Version, data: st.DataObject
) -> None:
    from_client = data.draw(st.booleans())
    packets = make.client_packets(version) if from_client else make.server_packets(version)
    raw = encode(data.draw(packets), version)
    body = raw[read_varint(raw, 1)[1] :]
    broken = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=3))
    try:
        decode(raw[0] >> 4, raw[0] & 15, broken, version, True, from_client)
    except MqttError:
        pass


@given(st.integers(0, 255), st.binary(max_size=60), st.sampled_from(Version), st.booleans(), st.booleans())
def test_any_bytes_give_a_packet_or_an_mqtt_error(
    first: int, body: bytes, version: Version, strict: bool, from_client: bool
) -> None:
    try:
        packet = decode(first >> 4, first & 15, body, version, strict, from_client)
    except MqttError:
        return
    assert packet is not None


def plain_publish(flags: int, body: bytes, dialect: Dialect) -> Publish:
    """PUBLISH [MQTT5 3.3] field by field: what `read_publish` does in fewer steps."""
    qos, packet_id, properties = flags >> 1 & 3, 0, NO_PROPERTIES
    if qos == 3 or (flags & 8 and not qos):
        raise MalformedPacket
    raw, at = read_binary(body, 0)
    if qos:
        packet_id, at = read_packet_id(body, at)
    topic_name = dialect.names[raw]
    properties, at = read_block(body, at, Place.PUBLISH, dialect)
    if dialect.from_client and "subscription_identifier" in properties:
        raise ProtocolError
    if not topic_name and "topic_alias" not in properties:
        raise ProtocolError if dialect.version == V5 else MalformedPacket
    return Publish(topic_name, body[at:], qos, bool(flags & 1), bool(flags & 8), packet_id, properties)


def outcome(read: Callable[[], Publish]) -> Publish | type[MqttError]:
    try:
        return read()
    except MqttError as error:
        return type(error)


@given(
    st.integers(0, 15),
    st.binary(max_size=24)
    | st.builds(lambda size, rest: bytes((0, size)) + rest, st.integers(0, 4), st.binary()),
    st.binary(max_size=4),
    st.sampled_from(Version),
    st.booleans(),
)
def test_read_publish_agrees_with_the_plain_one(
    flags: int, body: bytes, around: bytes, version: Version, from_client: bool
) -> None:
    dialect = Dialect(version, True, from_client, TopicNames())
    data, at = around + body + around, len(around)
    quick = outcome(lambda: read_publish(flags, data, at, at + len(body), dialect))
    assert quick == outcome(lambda: plain_publish(flags, body, dialect))


@given(st.data(), st.sampled_from(Version), st.binary(max_size=4), st.booleans())
def test_read_publish_agrees_on_packets_cut_short(
    data: st.DataObject, version: Version, around: bytes, from_client: bool
) -> None:
    raw = encode(data.draw(make.publishes(version, from_client=False)), version)
    body = raw[read_varint(raw, 1)[1] :]
    body = body[: data.draw(st.integers(0, len(body)))]
    dialect = Dialect(version, True, from_client, TopicNames())
    whole, at = around + body + around, len(around)
    quick = outcome(lambda: read_publish(raw[0], whole, at, at + len(body), dialect))
    assert quick == outcome(lambda: plain_publish(raw[0] & 15, body, dialect))


# ---- the fixed header ------------------------------------------------------------------------

BODIES = {
    PacketType.CONNECT: MQTT5 + "00003c00" + ID,
    PacketType.PUBACK: "0001",
    PacketType.PUBREC: "0001",
    PacketType.PUBREL: "0001",
    PacketType.PUBCOMP: "0001",
    PacketType.SUBSCRIBE: "000100" + "00016100",
    PacketType.UNSUBSCRIBE: "000100" + "000161",
    PacketType.PINGREQ: "",
    PacketType.DISCONNECT: "",
    PacketType.AUTH: "19" + "05" + "15" + "0002" + "6d65",
}
FLAGS = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}


@pytest.mark.parametrize("flags", range(16))
@pytest.mark.parametrize("packet_type", BODIES)
def test_reserved_flags_2_1_3_1(packet_type: PacketType, flags: int) -> None:
    body = bytes.fromhex(BODIES[packet_type])
    if flags == FLAGS.get(packet_type, 0):
        decode(packet_type, flags, body, V5)
    else:
        with pytest.raises(MalformedPacket):
            decode(packet_type, flags, body, V5)


@pytest.mark.parametrize(
    ("first", "version", "from_client", "error"),
    [
        pytest.param(0x00, V5, True, MALFORMED, id="type 0 [2.1.2]"),
        pytest.param(0x00, V4, True, MALFORMED, id="type 0 in 3.1.1 [2.2.1]"),
        pytest.param(0xF0, V4, True, MALFORMED, id="type 15 in 3.1.1 [2.2.1]"),
        pytest.param(0xF0, V3, True, MALFORMED, id="type 15 in 3.1"),
        pytest.param(0x20, V5, True, PROTOCOL, id="CONNACK from a client"),
        pytest.param(0x90, V5, True, PROTOCOL, id="SUBACK from a client"),
        pytest.param(0xB0, V4, True, PROTOCOL, id="UNSUBACK from a client"),
        pytest.param(0xD0, V4, True, PROTOCOL, id="PINGRESP from a client"),
        pytest.param(0x10, V5, False, PROTOCOL, id="CONNECT from a server"),
        pytest.param(0x82, V5, False, PROTOCOL, id="SUBSCRIBE from a server"),
        pytest.param(0xA2, V5, False, PROTOCOL, id="UNSUBSCRIBE from a server"),
        pytest.param(0xC0, V5, False, PROTOCOL, id="PINGREQ from a server"),
        pytest.param(0xE0, V4, False, PROTOCOL, id="DISCONNECT from a 3.1.1 server"),
    ],
)
def test_packets_nobody_may_send(
    first: int, version: Version, from_client: bool, error: type[MqttError]
) -> None:
    with pytest.raises(error) as caught:
        parse(first, "", version, from_client=from_client)
    assert type(caught.value) is error


# ---- what is refused -------------------------------------------------------------------------

CONNECT_BREACHES = [
    pytest.param("", UnknownProtocol, id="empty CONNECT"),
    pytest.param("0004" + "4d51", UnknownProtocol, id="cut off in the protocol name"),
    pytest.param("0004" + "4d515454", UnknownProtocol, id="cut off before the level"),
    pytest.param("0004" + "4d515458" + "05", UnknownProtocol, id="name MQTX [3.1.2-1]"),
    pytest.param("0004" + "6d717474" + "05", UnknownProtocol, id="name mqtt [3.1.2-1]"),
    pytest.param("0000" + "05", UnknownProtocol, id="empty name [3.1.2-1]"),
    pytest.param("0004" + "ffffffff" + "05", UnknownProtocol, id="name that is no UTF-8"),
    pytest.param(MQTT5, MALFORMED, id="cut off before the flags"),
    pytest.param(MQTT5 + "02", MALFORMED, id="cut off before Keep Alive"),
    pytest.param(MQTT5 + "02003c", MALFORMED, id="cut off before the properties [2.2.2-1]"),
    pytest.param(MQTT5 + "02003c00", MALFORMED, id="no ClientID [3.1.3-3]"),
    pytest.param(MQTT5 + "02003c00" + "0005" + "63", MALFORMED, id="ClientID cut off [3.1.3-3]"),
    pytest.param(MQTT5 + "02003c00" + "0002" + "fffe", MALFORMED, id="ClientID no UTF-8 [3.1.3-4]"),
    pytest.param(MQTT5 + "02003c00" + "0001" + "00", MALFORMED, id="ClientID with U+0000 [3.1.3-4]"),
    pytest.param(MQTT5 + "03003c00" + ID, MALFORMED, id="reserved flag [3.1.2-3]"),
    pytest.param(MQTT5 + "0a003c00" + ID, MALFORMED, id="Will QoS 1 without a will [3.1.2-11]"),
    pytest.param(MQTT5 + "1a003c00" + ID, MALFORMED, id="Will QoS 3 without a will [3.1.2-11]"),
    pytest.param(MQTT5 + "22003c00" + ID, MALFORMED, id="Will Retain without a will [3.1.2-13]"),
    pytest.param(MQTT5 + "1e003c00" + ID + "00" + WILL, MALFORMED, id="Will QoS 3 [3.1.2-12]"),
    pytest.param(MQTT5 + "06003c00" + ID, MALFORMED, id="will missing [3.1.2-9]"),
    pytest.param(MQTT5 + "06003c00" + ID + "00", MALFORMED, id="will topic missing [3.1.2-9]"),
    pytest.param(MQTT5 + "06003c00" + ID + "00" + "000177", MALFORMED, id="will payload missing [3.1.2-9]"),
    pytest.param(MQTT5 + "02003c00" + ID + "00" + WILL, MALFORMED, id="will without its flag [3.1.2-9]"),
    pytest.param(
        MQTT5 + "06003c00" + ID + "00" + "0001ff" + "0000", MALFORMED, id="Will Topic no UTF-8 [3.1.3-11]"
    ),
    pytest.param(
        MQTT5 + "06003c00" + ID + "04" + "0800012b" + WILL,
        PROTOCOL,
        id="Response Topic + in the will [3.3.2-14]",
    ),
    pytest.param(
        MQTT5 + "06003c00" + ID + "03230001" + WILL, MALFORMED, id="Topic Alias in the will [X5-09]"
    ),
    pytest.param(
        MQTT5 + "06003c00" + ID + "020b01" + WILL, MALFORMED, id="Subscription Identifier in the will"
    ),
    pytest.param(MQTT5 + "82003c00" + ID, MALFORMED, id="user name missing [3.1.2-17]"),
    pytest.param(MQTT5 + "82003c00" + ID + "0001ff", MALFORMED, id="user name no UTF-8 [3.1.3-12]"),
    pytest.param(MQTT5 + "02003c00" + ID + "000175", MALFORMED, id="user name without its flag [3.1.2-16]"),
    pytest.param(MQTT5 + "c2003c00" + ID + "000175", MALFORMED, id="password missing [3.1.2-19]"),
    pytest.param(
        MQTT5 + "82003c00" + ID + "000175" + "000170", MALFORMED, id="password without its flag [3.1.2-18]"
    ),
    pytest.param(
        MQTT5 + "02003c" + "03160000" + ID, PROTOCOL, id="Authentication Data without Method [3.1.2.11.10]"
    ),
    pytest.param(MQTT5 + "02003c" + "03210000" + ID, PROTOCOL, id="Receive Maximum 0 [3.1.2.11.3]"),
    pytest.param(
        MQTT4 + "42003c" + ID + "000170", MALFORMED, id="3.1.1: password without user name [3.1.2-22]"
    ),
    pytest.param(MQTT4 + "03003c" + ID, MALFORMED, id="3.1.1: reserved flag [3.1.2-3]"),
    pytest.param(MQTT4 + "08003c" + ID, MALFORMED, id="3.1.1: Will QoS 1 without a will [3.1.2-13]"),
    pytest.param(MQTT4 + "1e003c" + ID + WILL, MALFORMED, id="3.1.1: Will QoS 3 [3.1.2-14]"),
    pytest.param(MQTT4 + "82003c" + ID, MALFORMED, id="3.1.1: user name missing [3.1.2-19]"),
    pytest.param(MQTT4 + "02003c" + ID + "00", MALFORMED, id="3.1.1: a byte too many"),
    pytest.param(MQTT4 + "02003c" + "000101", MALFORMED, id="3.1.1: control character [1.5.3]"),
    pytest.param(MQTT3 + "42003c" + ID + "000170", MALFORMED, id="3.1: password without user name"),
    pytest.param(MQTT3 + "06003c" + ID + "000177", MALFORMED, id="3.1: will payload missing"),
]
PUBLISH_BREACHES = [
    pytest.param(0x36, "000161" + "0001" + "00", V5, MALFORMED, id="QoS 3 [3.3.1-4]"),
    pytest.param(0x36, "000161" + "0001", V4, MALFORMED, id="3.1.1: QoS 3 [3.3.1-4]"),
    pytest.param(0x38, "000161" + "00", V5, MALFORMED, id="DUP with QoS 0 [3.3.1-2]"),
    pytest.param(0x38, "000161", V4, MALFORMED, id="3.1.1: DUP with QoS 0 [3.3.1-2]"),
    pytest.param(0x30, "", V5, MALFORMED, id="empty PUBLISH"),
    pytest.param(0x30, "00", V4, MALFORMED, id="topic length cut off [3.3.2-1]"),
    pytest.param(0x30, "000561", V5, MALFORMED, id="topic cut off [3.3.2-1]"),
    pytest.param(0x30, "000161", V5, MALFORMED, id="no Property Length [2.2.2-1]"),
    pytest.param(0x32, "000161" + "00", V5, MALFORMED, id="packet identifier cut off"),
    pytest.param(0x32, "000161" + "0001", V5, MALFORMED, id="QoS 1, no Property Length"),
    pytest.param(0x30, "000161" + "05", V5, MALFORMED, id="Property Length too large [X5-02]"),
    pytest.param(0x32, "000161" + "0000" + "00", V5, PROTOCOL, id="QoS 1, identifier 0 [2.2.1-3]"),
    pytest.param(0x34, "000161" + "0000", V4, PROTOCOL, id="3.1.1: QoS 2, identifier 0 [2.3.1-1]"),
    pytest.param(0x30, "0001ff" + "00", V5, MALFORMED, id="topic no UTF-8 [3.3.2-1]"),
    pytest.param(0x30, "000100" + "00", V5, MALFORMED, id="topic with U+0000 [4.7.3-2]"),
    pytest.param(0x30, "000101" + "00", V5, MALFORMED, id="topic with a control character [1.5.4]"),
    pytest.param(0x30, "000101", V3, MALFORMED, id="3.1: topics travel, so the same there"),
    pytest.param(0x30, "0003612f2b" + "00", V5, TopicNameInvalid, id="topic a/+ [3.3.2-2]"),
    pytest.param(0x30, "000123", V4, TopicNameInvalid, id="3.1.1: topic # [3.3.2-2]"),
    pytest.param(0x30, "0000" + "00", V5, PROTOCOL, id="empty topic without alias [3.3.2.1]"),
    pytest.param(0x30, "0000", V4, MALFORMED, id="3.1.1: empty topic [4.7.3-1]"),
    pytest.param(0x30, "000161" + "03230000", V5, TopicAliasInvalid, id="Topic Alias 0 [3.3.2-8]"),
    pytest.param(
        0x30, "000161" + "020b01", V5, PROTOCOL, id="Subscription Identifier from a client [3.3.4-6]"
    ),
    pytest.param(
        0x30, "000161" + "020b00", V5, PROTOCOL, id="Subscription Identifier 0 from a client [3.3.4-6]"
    ),
    pytest.param(0x30, "000161" + "020102", V5, PROTOCOL, id="Payload Format Indicator 2 [3.3.2.3.2]"),
    pytest.param(0x30, "000161" + "051100000001", V5, MALFORMED, id="Session Expiry Interval in PUBLISH"),
]
OTHER_BREACHES = [
    pytest.param(0x40, "", V5, MALFORMED, id="PUBACK of length 0 [X5-26]"),
    pytest.param(0x40, "00", V5, MALFORMED, id="PUBACK of length 1 [X5-26]"),
    pytest.param(0x40, "0000", V5, PROTOCOL, id="PUBACK identifier 0 [X5-26]"),
    pytest.param(0x40, "0000", V4, PROTOCOL, id="3.1.1: PUBACK identifier 0"),
    pytest.param(0x40, "000100", V4, MALFORMED, id="3.1.1: PUBACK of length 3 [X3-04]"),
    pytest.param(0x40, "00010000" + "00", V5, MALFORMED, id="PUBACK with a byte too many [X5-26]"),
    pytest.param(0x40, "00010005", V5, MALFORMED, id="PUBACK with a Property Length too large"),
    pytest.param(0x40, "00010003210001", V5, MALFORMED, id="PUBACK with Receive Maximum"),
    pytest.param(0x40, "000101", V5, PROTOCOL, id="PUBACK 0x01 [3.4.2-1]"),
    pytest.param(0x40, "000192", V5, PROTOCOL, id="PUBACK 0x92 [3.4.2-1]"),
    pytest.param(0x40, "0001ff", V5, PROTOCOL, id="PUBACK 0xFF [3.4.2-1]"),
    pytest.param(0x50, "000192", V5, PROTOCOL, id="PUBREC 0x92 [3.5.2-1]"),
    pytest.param(0x62, "000180", V5, PROTOCOL, id="PUBREL 0x80 [3.6.2-1]"),
    pytest.param(0x62, "00019100", V5, PROTOCOL, id="PUBREL 0x91 [3.6.2-1]"),
    pytest.param(0x70, "000180", V5, PROTOCOL, id="PUBCOMP 0x80 [3.7.2-1]"),
    pytest.param(0x82, "0001", V5, MALFORMED, id="SUBSCRIBE without Property Length [2.2.2-1]"),
    pytest.param(0x82, "000100", V5, PROTOCOL, id="SUBSCRIBE without a filter [3.8.3-2]"),
    pytest.param(0x82, "0001", V4, PROTOCOL, id="3.1.1: SUBSCRIBE without a filter [3.8.3-3]"),
    pytest.param(0x82, "000000" + "00016100", V5, PROTOCOL, id="SUBSCRIBE identifier 0 [2.2.1-3]"),
    pytest.param(0x82, "000100" + "000161", V5, MALFORMED, id="filter without options [3.8.3-2]"),
    pytest.param(0x82, "000100" + "0001ff00", V5, MALFORMED, id="filter no UTF-8 [3.8.3-1]"),
    pytest.param(0x82, "000100" + "00010000", V5, MALFORMED, id="filter with U+0000 [3.8.3-1]"),
    pytest.param(0x82, "000100" + "00016140", V5, MALFORMED, id="options 40 [3.8.3-5]"),
    pytest.param(0x82, "000100" + "00016180", V5, MALFORMED, id="options 80 [3.8.3-5]"),
    pytest.param(0x82, "000100" + "000161c3", V5, MALFORMED, id="options C3: reserved bits count first"),
    pytest.param(0x82, "000100" + "00016103", V5, PROTOCOL, id="QoS 3 [X5-17]"),
    pytest.param(0x82, "000100" + "00016130", V5, PROTOCOL, id="Retain Handling 3 [X5-18]"),
    pytest.param(0x82, "0001" + "00016103", V4, MALFORMED, id="3.1.1: QoS 3 [3.8.3-4]"),
    pytest.param(0x82, "0001" + "00016104", V4, MALFORMED, id="3.1.1: reserved bits [3.8.3-4]"),
    pytest.param(0x82, "0001020b00" + "00016100", V5, PROTOCOL, id="Subscription Identifier 0 [X5-15]"),
    pytest.param(
        0x82, "0001040b010b01" + "00016100", V5, PROTOCOL, id="Subscription Identifier twice [X5-16]"
    ),
    pytest.param(0x8A, "0001" + "00016100", V4, MALFORMED, id="3.1.1: SUBSCRIBE with DUP [3.8.1-1]"),
    pytest.param(0x88, "0001" + "00016100", V3, MALFORMED, id="3.1: SUBSCRIBE with DUP and QoS 0"),
    pytest.param(0x48, "0001", V3, MALFORMED, id="3.1: PUBACK with DUP"),
    pytest.param(0xA2, "000100", V5, PROTOCOL, id="UNSUBSCRIBE without a filter [3.10.3-2]"),
    pytest.param(0xA2, "0001", V4, PROTOCOL, id="3.1.1: UNSUBSCRIBE without a filter [3.10.3-2]"),
    pytest.param(0xA2, "0000" + "000161", V4, PROTOCOL, id="UNSUBSCRIBE identifier 0 [2.3.1-1]"),
    pytest.param(
        0xA2, "000100" + "000161" + "00", V5, MALFORMED, id="UNSUBSCRIBE, a byte too many [3.10.3-1]"
    ),
    pytest.param(0xA2, "000100" + "0001ff", V5, MALFORMED, id="UNSUBSCRIBE filter no UTF-8 [3.10.3-1]"),
    pytest.param(0xC0, "00", V5, MALFORMED, id="PINGREQ with a body [3.12.4-1]"),
    pytest.param(0xC0, "00", V4, MALFORMED, id="3.1.1: PINGREQ with a body [3.12.4-1]"),
    pytest.param(0xE0, "00", V4, MALFORMED, id="3.1.1: DISCONNECT with a body [3.14.1-1]"),
    pytest.param(0xE0, "000000", V5, MALFORMED, id="DISCONNECT, a byte too many [X5-26]"),
    pytest.param(0xE0, "00051f0001ff", V5, MALFORMED, id="DISCONNECT Property Length too large"),
    pytest.param(0xF0, "", V5, PROTOCOL, id="AUTH of length 0 [X5-22]"),
    pytest.param(0xF0, "18", V5, PROTOCOL, id="AUTH of length 1 [X5-22]"),
    pytest.param(0xF0, "1800", V5, PROTOCOL, id="AUTH without a method [X5-22]"),
    pytest.param(0xF0, "1803160000", V5, PROTOCOL, id="AUTH with data but no method [X5-22]"),
    pytest.param(0xF0, "0105150002" + "6d65", V5, PROTOCOL, id="AUTH 0x01 [3.15.2-1]"),
    pytest.param(0xF0, "8005150002" + "6d65", V5, PROTOCOL, id="AUTH 0x80 [3.15.2-1]"),
    pytest.param(0xF0, "1805150002" + "6d65" + "00", V5, MALFORMED, id="AUTH, a byte too many [X5-26]"),
]
SERVER_BREACHES = [
    pytest.param(0x20, "020000", V5, MALFORMED, id="CONNACK reserved bit [3.2.2-1]"),
    pytest.param(0x20, "0100", V3, MALFORMED, id="3.1: CONNACK Session Present"),
    pytest.param(0x20, "018000", V5, PROTOCOL, id="Session Present on a refusal [3.2.2-6]"),
    pytest.param(0x20, "0105", V4, PROTOCOL, id="3.1.1: Session Present on a refusal [3.2.2-4]"),
    pytest.param(0x20, "008b00", V5, PROTOCOL, id="CONNACK 0x8B [3.2.2-8]"),
    pytest.param(0x20, "0006", V4, PROTOCOL, id="3.1.1: return code 6 [3.2.2-6]"),
    pytest.param(0x20, "000000" + "00", V5, MALFORMED, id="CONNACK, a byte too many"),
    pytest.param(0x20, "000003160000", V5, PROTOCOL, id="CONNACK Authentication Data without Method"),
    pytest.param(0x90, "000100" + "03", V5, PROTOCOL, id="SUBACK 0x03 [3.9.3-2]"),
    pytest.param(0x90, "000100", V5, PROTOCOL, id="SUBACK without codes"),
    pytest.param(0x90, "0001" + "87", V4, PROTOCOL, id="3.1.1: SUBACK 0x87 [3.9.3-2]"),
    pytest.param(0xB0, "000100" + "10", V5, PROTOCOL, id="UNSUBACK 0x10 [3.11.3-2]"),
    pytest.param(0xB0, "000100", V5, PROTOCOL, id="UNSUBACK without codes"),
    pytest.param(0xB0, "0001" + "00", V4, MALFORMED, id="3.1.1: UNSUBACK with a code"),
    pytest.param(0xE0, "04", V5, PROTOCOL, id="DISCONNECT 0x04 from a server [3.14.2-1]"),
    pytest.param(0xD0, "00", V5, MALFORMED, id="PINGRESP with a body"),
]


@pytest.mark.parametrize(("body", "error"), CONNECT_BREACHES)
def test_connect_refused(body: str, error: type[MqttError]) -> None:
    with pytest.raises(error) as caught:
        parse(0x10, body, V5)
    assert type(caught.value) is error


@pytest.mark.parametrize(("first", "body", "version", "error"), PUBLISH_BREACHES + OTHER_BREACHES)
def test_refused_from_a_client(first: int, body: str, version: Version, error: type[MqttError]) -> None:
    with pytest.raises(error) as caught:
        parse(first, body, version)
    assert type(caught.value) is error


@pytest.mark.parametrize(("first", "body", "version", "error"), SERVER_BREACHES)
def test_refused_from_a_server(first: int, body: str, version: Version, error: type[MqttError]) -> None:
    with pytest.raises(error) as caught:
        parse(first, body, version, from_client=False)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *[pytest.param("4d515454", level, id=f"MQTT {level}") for level in (0, 1, 2, 3, 6, 99, 0x7F)],
        *[pytest.param("4d515454", level, id=f"MQTT {level:#x}") for level in (0x80, 0x83, 0x85, 0xFF)],
        *[pytest.param("4d5149736470", level, id=f"MQIsdp {level:#x}") for level in (0, 4, 5, 0x84, 0x80)],
    ],
)
def test_unsupported_protocol_version(name: str, level: int) -> None:
    with pytest.raises(UnsupportedProtocolVersion) as caught:
        parse(0x10, f"{len(name) // 2:04x}{name}{level:02x}", V5)
    assert caught.value.level == level


# ---- what is accepted ------------------------------------------------------------------------

ACCEPTED: list[Any] = [
    pytest.param(
        0x10,
        MQTT5 + "40003c00" + ID + "0002ff00",
        V5,
        Connect("c", clean_start=False, keep_alive=60, password=b"\xff\x00"),
        id="5.0: password without user name [3.1.2-19]",
    ),
    pytest.param(0x10, MQTT4 + "02003c" + "0000", V4, Connect("", V4, True, 60), id="3.1.1: empty ClientID"),
    pytest.param(
        0x10,
        "0004" + "4d515454" + "84" + "02003c" + ID,
        V4,
        Connect("c", V4, True, 60, bridge=True),
        id="bridge bit on 3.1.1",
    ),
    pytest.param(
        0x10,
        "0006" + "4d5149736470" + "83" + "02003c" + ID,
        V3,
        Connect("c", V3, True, 60, bridge=True),
        id="bridge bit on 3.1",
    ),
    pytest.param(0x10, MQTT3 + "c2003c" + ID, V3, Connect("c", V3, True, 60), id="3.1: credentials left out"),
    pytest.param(
        0x10,
        MQTT3 + "c2003c" + ID + "000175",
        V3,
        Connect("c", V3, True, 60, "u"),
        id="3.1: password left out",
    ),
    pytest.param(
        0x10,
        MQTT3 + "02003c" + "000201" + "63",
        V3,
        Connect("\x01c", V3, True, 60),
        id="3.1: control characters",
    ),
    pytest.param(0x6A, "0001", V3, Pubrel(1), id="3.1: PUBREL with DUP"),
    pytest.param(
        0x8A, "0001" + "00016101", V3, Subscribe(1, [SubscribeRequest("a", 1)]), id="3.1: SUBSCRIBE with DUP"
    ),
    pytest.param(0xAA, "0001" + "000161", V3, Unsubscribe(1, ["a"]), id="3.1: UNSUBSCRIBE with DUP"),
    pytest.param(0x40, "0001", V5, Puback(1), id="PUBACK of length 2 [X5-27]"),
    pytest.param(0x50, "000110", V5, Pubrec(1, 0x10), id="PUBREC of length 3 [X5-27]"),
    pytest.param(0x62, "00019200", V5, Pubrel(1, 0x92), id="PUBREL with empty properties"),
    pytest.param(0x70, "0001", V4, Pubcomp(1), id="3.1.1: PUBCOMP"),
    pytest.param(0xE0, "", V5, Disconnect(), id="DISCONNECT of length 0 [X5-27]"),
    pytest.param(0xE0, "04", V5, Disconnect(4), id="DISCONNECT of length 1 [X5-27]"),
    pytest.param(
        0xE0,
        "00041c000161",
        V5,
        Disconnect(0, {"server_reference": "a"}),
        id="Server Reference from a client",
    ),
    pytest.param(0xC0, "", V4, Pingreq(), id="PINGREQ"),
    pytest.param(
        0x30,
        "0000" + "03230001" + "ff",
        V5,
        Publish("", b"\xff", properties={"topic_alias": 1}),
        id="empty topic with an alias",
    ),
    pytest.param(0x3D, "000161" + "ffff", V4, Publish("a", b"", 2, True, True, 65535), id="3.1.1: all flags"),
    pytest.param(
        0x82,
        "000100" + "0001612d" + "0001620e",
        V5,
        Subscribe(1, [SubscribeRequest("a", 1, True, True, 2), SubscribeRequest("b", 2, True, True, 0)]),
        id="Subscription Options [3.8.3.1]",
    ),
    pytest.param(
        0x82, "000100" + "000000", V5, Subscribe(1, [SubscribeRequest("")]), id="empty filter: not ours"
    ),
    pytest.param(
        0xF0, "1905150002" + "6d65", V5, Auth(0x19, {"authentication_method": "me"}), id="AUTH 0x19"
    ),
    pytest.param(
        0xF0, "0005150002" + "6d65", V5, Auth(0x00, {"authentication_method": "me"}), id="AUTH 0x00"
    ),
]


@pytest.mark.parametrize(("first", "body", "version", "packet"), ACCEPTED)
def test_accepted_from_a_client(first: int, body: str, version: Version, packet: Packet) -> None:
    assert parse(first, body, version) == packet


def test_connect_with_all_fields() -> None:
    body = MQTT5 + "ee003c" + "051100000e10" + ID + "051800000005" + WILL + "000175" + "000170"
    will = Will("w", b"", 1, True, {"will_delay_interval": 5})
    assert parse(0x10, body, V5) == Connect(
        "c", V5, True, 60, "u", b"p", will, {"session_expiry_interval": 3600}
    )


def test_code_points_are_a_setting_for_topics_too() -> None:
    assert parse(0x30, "000101", V4, strict=False) == Publish("\x01")


@pytest.mark.parametrize("code", range(256), ids=hex)
def test_disconnect_codes_3_14_2_1(code: int) -> None:
    for from_client, codes in ((True, make.CLIENT_LEAVE_CODES), (False, make.SERVER_LEAVE_CODES)):
        if code in codes:
            assert parse(0xE0, f"{code:02x}", V5, from_client=from_client) == Disconnect(code)
        else:
            with pytest.raises(ProtocolError):
                parse(0xE0, f"{code:02x}", V5, from_client=from_client)


@pytest.mark.parametrize(
    ("first", "codes"),
    [
        (0x40, make.PUBLISH_CODES),
        (0x50, make.PUBLISH_CODES),
        (0x62, make.RELEASE_CODES),
        (0x70, make.RELEASE_CODES),
    ],
    ids=["PUBACK", "PUBREC", "PUBREL", "PUBCOMP"],
)
def test_ack_codes(first: int, codes: tuple[int, ...]) -> None:
    for code in set(range(256)) - set(codes):
        with pytest.raises(ProtocolError):
            parse(first, f"0001{code:02x}", V5)
    for code in codes:
        assert parse(first, f"0001{code:02x}", V5).reason_code == code  # type: ignore[union-attr]


# ---- encoding --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packet", "version", "raw"),
    [
        pytest.param(Connack(), V5, "2003000000", id="CONNACK has a Property Length [2.2.2-1]"),
        pytest.param(Connack(False, 1), V4, "20020001", id="3.1.1: CONNACK 1"),
        pytest.param(Connack(True), V4, "20020100", id="3.1.1: Session Present"),
        pytest.param(Connack(True), V3, "20020000", id="3.1: no Session Present"),
        pytest.param(Connack(False, 0x84), V5, "2003008400", id="CONNACK 0x84"),
        pytest.param(Connack(properties={"maximum_qos": 1}), V4, "20020000", id="3.1.1: no properties"),
        pytest.param(Puback(1), V5, "40020001", id="PUBACK, short form"),
        pytest.param(Puback(1, 0x87), V5, "4003000187", id="PUBACK with a code"),
        pytest.param(Puback(1, 0x87), V4, "40020001", id="3.1.1: PUBACK codes vanish [B27]"),
        pytest.param(Pubrec(1, 0x10), V5, "5003000110", id="PUBREC"),
        pytest.param(Pubrel(1), V5, "62020001", id="PUBREL flags [3.6.1-1]"),
        pytest.param(Pubcomp(0xFFFF, 0x92), V5, "7003ffff92", id="PUBCOMP"),
        pytest.param(
            Puback(1, 0, {"reason_string": "a"}), V5, "4008" + "0001" + "00" + "041f000161", id="reason"
        ),
        pytest.param(Suback(1, [0, 1, 2, 0x87]), V5, "9007" + "0001" + "00" + "00010287", id="SUBACK"),
        pytest.param(
            Suback(1, [2, 0x87, 0x8F]), V4, "9005" + "0001" + "028080", id="3.1.1: refusals are 0x80"
        ),
        pytest.param(Unsuback(1, [0, 0x11]), V5, "b005" + "0001" + "00" + "0011", id="UNSUBACK"),
        pytest.param(Unsuback(1, [0, 0x11]), V4, "b0020001", id="3.1.1: UNSUBACK without codes"),
        pytest.param(Pingresp(), V4, "d000", id="PINGRESP"),
        pytest.param(Disconnect(), V5, "e000", id="DISCONNECT 0x00"),
        pytest.param(Disconnect(0x8E), V5, "e0018e", id="DISCONNECT 0x8E"),
        pytest.param(Disconnect(), V4, "e000", id="3.1.1: DISCONNECT"),
        pytest.param(Publish("a", b"x"), V4, "3004" + "000161" + "78", id="3.1.1: PUBLISH"),
        pytest.param(
            Publish("a", b"x", 1, True, True, 7), V5, "3b07" + "000161" + "0007" + "00" + "78", id="PUBLISH"
        ),
    ],
)
def test_encoded(packet: Packet, version: Version, raw: str) -> None:
    assert encode(packet, version).hex() == raw


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        pytest.param(Puback(0), V5, id="identifier 0"),
        pytest.param(Puback(0), V4, id="3.1.1: identifier 0"),
        pytest.param(Puback(65_536), V5, id="identifier too large"),
        pytest.param(Puback(1, 0x92), V5, id="PUBACK 0x92"),
        pytest.param(Pubrel(1, 0x80), V5, id="PUBREL 0x80"),
        pytest.param(Connack(False, 0x8B), V5, id="CONNACK 0x8B"),
        pytest.param(Connack(False, 0x87), V4, id="3.1.1: CONNACK 0x87"),
        pytest.param(Connack(True, 0x87), V5, id="Session Present on a refusal"),
        pytest.param(Connack(properties={"topic_alias": 1}), V5, id="Topic Alias in CONNACK"),
        pytest.param(Connack(properties={"maximum_qos": 2}), V5, id="Maximum QoS 2"),
        pytest.param(Connack(properties={"no_such": 2}), V5, id="unknown property"),
        pytest.param(Suback(1, []), V5, id="SUBACK without codes"),
        pytest.param(Suback(1, [3]), V5, id="SUBACK 0x03"),
        pytest.param(Suback(1, [0x11]), V4, id="3.1.1: SUBACK 0x11"),
        pytest.param(Suback(0, [0]), V5, id="SUBACK identifier 0"),
        pytest.param(Unsuback(1, []), V5, id="UNSUBACK without codes"),
        pytest.param(Unsuback(1, [0x97]), V5, id="UNSUBACK 0x97"),
        pytest.param(Disconnect(0x8C), V5, id="DISCONNECT 0x8C"),
        pytest.param(Disconnect(0x84), V5, id="DISCONNECT 0x84"),
        pytest.param(Auth(0x18), V5, id="AUTH without a method"),
        pytest.param(Auth(0x18, {"authentication_method": "m"}), V4, id="3.1.1: AUTH"),
        pytest.param(Auth(0x80, {"authentication_method": "m"}), V5, id="AUTH 0x80"),
        pytest.param(Publish("a", qos=1), V5, id="QoS 1 without identifier"),
        pytest.param(Publish("a", packet_id=1), V5, id="QoS 0 with identifier"),
        pytest.param(Publish("a", dup=True), V5, id="QoS 0 with DUP"),
        pytest.param(Publish("a", qos=3, packet_id=1), V5, id="QoS 3"),
        pytest.param(Publish(""), V5, id="empty topic"),
        pytest.param(Publish("", properties={"topic_alias": 1}), V4, id="3.1.1: empty topic"),
        pytest.param(Publish("a/#"), V4, id="topic with a wildcard"),
        pytest.param(Publish("a\0"), V4, id="topic with U+0000"),
        pytest.param(Subscribe(1, []), V5, id="SUBSCRIBE without a filter"),
        pytest.param(Subscribe(1, [SubscribeRequest("a", 3)]), V5, id="SUBSCRIBE QoS 3"),
        pytest.param(Subscribe(1, [SubscribeRequest("a", 0, retain_handling=3)]), V5, id="Retain Handling 3"),
        pytest.param(Unsubscribe(1, []), V5, id="UNSUBSCRIBE without a filter"),
        pytest.param(Connect("c", V4, password=b"p"), V4, id="3.1.1: password without user name"),
        pytest.param(Connect("c", V5, will=Will("w", b"", 3)), V5, id="Will QoS 3"),
        pytest.param(Connect("c", V5, will=Will("#", b"")), V5, id="Will Topic with a wildcard"),
        pytest.param(Connect("c", V5, keep_alive=65_536), V5, id="Keep Alive too large"),
    ],
)
def test_must_not_be_sent(packet: Packet, version: Version) -> None:
    with pytest.raises(ValueError):
        encode(packet, version)


# ---- fit -------------------------------------------------------------------------------------

LONG = {"user_property": [("a", "b")], "reason_string": "because"}  # 7 and 10 bytes


@pytest.mark.parametrize(
    ("packet", "limit", "left"),
    [
        pytest.param(Puback(1, 0x87, LONG), None, {"user_property", "reason_string"}, id="no limit"),
        pytest.param(Puback(1, 0x87, LONG), 23, {"user_property", "reason_string"}, id="fits exactly"),
        pytest.param(Puback(1, 0x87, LONG), 22, {"user_property"}, id="Reason String goes first"),
        pytest.param(Puback(1, 0x87, LONG), 12, set(), id="then User Properties"),
        pytest.param(Puback(1, 0x87, LONG), 5, set(), id="code and identifier alone"),
        pytest.param(Puback(1, 0x87, LONG), 4, None, id="not even those"),
        pytest.param(Pingresp(), 2, set(), id="PINGRESP"),
        pytest.param(Suback(1, [0] * 9), 14, set(), id="SUBACK fits"),
        pytest.param(Suback(1, [0] * 9), 13, None, id="SUBACK cannot drop a code"),
        pytest.param(
            Connack(False, 0x9C, {"server_reference": "host:1883", "reason_string": "moved"}),
            8,
            set(),
            id="CONNACK: Server Reference goes too [B22]",
        ),
        pytest.param(
            Connack(False, 0, {"response_information": "r/", "receive_maximum": 9}),
            9,
            {"receive_maximum"},
            id="CONNACK: what the client must know stays",
        ),
        pytest.param(Connack(False, 0, {"receive_maximum": 9}), 7, None, id="CONNACK that cannot fit"),
    ],
)
def test_fit(packet: Packet, limit: int | None, left: set[str] | None) -> None:
    raw = fit(packet, V5, limit)
    if left is None:
        assert raw is None
        return
    assert raw is not None and (limit is None or len(raw) <= limit)
    assert set(getattr(read_back(raw, V5, False), "properties", ())) == left


@pytest.mark.parametrize("version", Version)
@given(data=st.data())
def test_fit_keeps_its_limit_and_all_that_counts(version: Version, data: st.DataObject) -> None:
    packet = data.draw(make.server_packets(version).filter(lambda packet: not isinstance(packet, Publish)))
    raw = fit(packet, version, data.draw(st.integers(1, 120)))
    if raw is not None:
        back = read_back(raw, version, from_client=False)
        assert getattr(back, "reason_code", 0) == getattr(packet, "reason_code", 0)
        dropped = set(getattr(packet, "properties", ())) - set(getattr(back, "properties", ()))
        assert dropped <= {"reason_string", "user_property", "response_information", "server_reference"}


@pytest.mark.parametrize(("first", "item"), [(8, "000161 00"), (10, "000161")])
def test_the_number_of_filters_is_bounded(first: int, item: str) -> None:
    body = bytes.fromhex("0001 00") + bytes.fromhex(item) * (REPEATS_MAX + 1)
    with pytest.raises(QuotaExceeded):
        decode(first, 2, body, Version.MQTT_5)
    decode(first, 2, body[: -len(bytes.fromhex(item))], Version.MQTT_5)
