"""Packets: laws of the codec, what it writes, and what is left out of a packet to make it fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import MalformedPacket, MqttError, ProtocolError
from broker.packet.codec import decode, encode, fit, read_publish
from broker.packet.dialect import Dialect, read_block, read_packet_id
from broker.packet.enums import Version
from broker.packet.packets import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from broker.packet.wire import TopicNames, read_binary, read_varint
from tests.packet import strategies as make

V3, V4, V5 = Version.MQTT_3_1, Version.MQTT_3_1_1, Version.MQTT_5


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
