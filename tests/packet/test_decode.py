"""Packets that are read one by one: bytes, outcome and section on one line."""

from __future__ import annotations

from typing import Any

import pytest

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
from broker.packet.codec import decode
from broker.packet.enums import PacketType, Version
from broker.packet.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    Will,
)
from broker.packet.wire import REPEATS_MAX
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


@pytest.mark.parametrize(("first", "item"), [(8, "000161 00"), (10, "000161")])
def test_the_number_of_filters_is_bounded(first: int, item: str) -> None:
    body = bytes.fromhex("0001 00") + bytes.fromhex(item) * (REPEATS_MAX + 1)
    with pytest.raises(QuotaExceeded):
        decode(first, 2, body, Version.MQTT_5)
    decode(first, 2, body[: -len(bytes.fromhex(item))], Version.MQTT_5)
