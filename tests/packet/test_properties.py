"""The table of MQTT 5 properties, row by row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import (
    MalformedPacket,
    MqttError,
    ProtocolError,
    QuotaExceeded,
    ReasonCode,
    TopicAliasInvalid,
)
from broker.packet.packets import NO_PROPERTIES, Properties, PropertyBlock
from broker.packet.properties import (
    PROPERTIES,
    Place,
    Property,
    PropertyBlocks,
    block_size,
    copied,
    properties_size,
    property_block,
    publish_block,
    read_properties,
    travelling,
    write_properties,
)
from broker.packet.wire import (
    BINARY,
    REPEATS_MAX,
    STRING,
    STRING_PAIR,
    UINT8,
    UINT16,
    UINT32,
    VARINT,
    varint_bytes,
)
from tests.packet import strategies as make

SAMPLES: dict[Any, Any] = {
    UINT8: 1,
    UINT16: 7,
    UINT32: 70_000,
    VARINT: 300,
    STRING: "text",
    BINARY: b"\x00\xff",
    STRING_PAIR: ("k", "v"),
}
PAIRS = [pytest.param(row, place, id=f"{row.name} in {place.name}") for row in PROPERTIES for place in Place]


def one(row: Property) -> bytes:
    out = bytearray((row.identifier,))
    row.type.write(out, SAMPLES[row.type])
    return bytes(out)


def block(body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((len(body),)) + body


def read(raw: bytes, place: Place, strict: bool = True) -> Any:
    properties, at = read_properties(raw, 0, len(raw), place, strict)
    assert at == len(raw)
    return properties


def test_there_are_27() -> None:
    assert len({row.identifier for row in PROPERTIES}) == len({row.name for row in PROPERTIES}) == 27


# What section 2.2.2.2 lists, written a second time and independently of the table.
WHERE = {
    "payload_format_indicator": "PUBLISH WILL",
    "message_expiry_interval": "PUBLISH WILL",
    "content_type": "PUBLISH WILL",
    "response_topic": "PUBLISH WILL",
    "correlation_data": "PUBLISH WILL",
    "subscription_identifier": "PUBLISH SUBSCRIBE",
    "session_expiry_interval": "CONNECT CONNACK DISCONNECT",
    "assigned_client_identifier": "CONNACK",
    "server_keep_alive": "CONNACK",
    "authentication_method": "CONNECT CONNACK AUTH",
    "authentication_data": "CONNECT CONNACK AUTH",
    "request_problem_information": "CONNECT",
    "will_delay_interval": "WILL",
    "request_response_information": "CONNECT",
    "response_information": "CONNACK",
    "server_reference": "CONNACK DISCONNECT",
    "reason_string": "CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH",
    "receive_maximum": "CONNECT CONNACK",
    "topic_alias_maximum": "CONNECT CONNACK",
    "topic_alias": "PUBLISH",
    "maximum_qos": "CONNACK",
    "retain_available": "CONNACK",
    "user_property": " ".join(place.name for place in Place),
    "maximum_packet_size": "CONNECT CONNACK",
    "wildcard_subscription_available": "CONNACK",
    "subscription_identifier_available": "CONNACK",
    "shared_subscription_available": "CONNACK",
}


@pytest.mark.parametrize(("row", "place"), PAIRS)
def test_every_property_in_every_place(row: Property, place: Place) -> None:
    raw, sample = block(one(row)), SAMPLES[row.type]
    if place.name in WHERE[row.name].split():
        value = [sample] if place in row.repeats else sample
        assert read(raw, place) == {row.name: value}
        out = bytearray()
        write_properties(out, {row.name: value}, place)
        assert out == raw
    else:
        with pytest.raises(MalformedPacket):
            read(raw, place)
        with pytest.raises(ValueError):
            write_properties(bytearray(), {row.name: sample}, place)


@pytest.mark.parametrize(("row", "place"), [pair for pair in PAIRS if pair.values[1] in pair.values[0].where])
def test_every_property_twice(row: Property, place: Place) -> None:
    may_repeat = row.name == "user_property" or (row.name, place) == (
        "subscription_identifier",
        Place.PUBLISH,
    )
    if may_repeat:
        assert read(block(one(row) * 2), place) == {row.name: [SAMPLES[row.type]] * 2}
    else:
        with pytest.raises(ProtocolError):
            read(block(one(row) * 2), place)


@pytest.mark.parametrize(("row", "place"), [pair for pair in PAIRS if pair.values[1] in pair.values[0].where])
def test_every_value_cut_off(row: Property, place: Place) -> None:
    whole = one(row)
    for length in range(1, len(whole)):
        # The bytes that are missing stand right behind the block, where they must not be read.
        raw = block(whole[:length]) + whole[length:]
        with pytest.raises(MalformedPacket):
            read_properties(raw, 0, len(raw), place)


@pytest.mark.parametrize(
    ("raw", "place", "error"),
    [
        pytest.param("", Place.CONNECT, MalformedPacket, id="Property Length missing [2.2.2-1]"),
        pytest.param("8000", Place.CONNECT, MalformedPacket, id="Property Length 80 00 [1.5.5-1]"),
        pytest.param("05", Place.CONNECT, MalformedPacket, id="Property Length too large [X5-02]"),
        pytest.param("ffffffff7f", Place.CONNECT, MalformedPacket, id="Property Length of five bytes"),
        pytest.param("0100", Place.CONNECT, MalformedPacket, id="identifier 0x00 [X5-01]"),
        pytest.param("0104", Place.CONNECT, MalformedPacket, id="identifier 0x04 [X5-01]"),
        pytest.param("017f", Place.CONNECT, MalformedPacket, id="identifier 0x7F [X5-01]"),
        pytest.param("0491000001", Place.CONNECT, MalformedPacket, id="identifier of two bytes [X5-01]"),
        pytest.param("03210000", Place.CONNECT, ProtocolError, id="Receive Maximum 0 [3.1.2.11.3]"),
        pytest.param("052700000000", Place.CONNECT, ProtocolError, id="Maximum Packet Size 0 [3.1.2.11.4]"),
        pytest.param(
            "021902", Place.CONNECT, ProtocolError, id="Request Response Information 2 [3.1.2.11.6]"
        ),
        pytest.param("021702", Place.CONNECT, ProtocolError, id="Request Problem Information 2 [3.1.2.11.7]"),
        pytest.param("020102", Place.PUBLISH, ProtocolError, id="Payload Format Indicator 2 [3.3.2.3.2]"),
        pytest.param(
            "020102", Place.WILL, ProtocolError, id="Payload Format Indicator 2 in the will [3.1.3.2.3]"
        ),
        pytest.param("020b00", Place.SUBSCRIBE, ProtocolError, id="Subscription Identifier 0 [3.8.2.1.2]"),
        pytest.param(
            "030b8100", Place.SUBSCRIBE, MalformedPacket, id="Subscription Identifier 81 00 [1.5.5-1]"
        ),
        pytest.param("03230000", Place.PUBLISH, TopicAliasInvalid, id="Topic Alias 0 [3.3.2-8]"),
        pytest.param("06230001230002", Place.PUBLISH, ProtocolError, id="Topic Alias twice [3.3.2.3.4]"),
        pytest.param("03230001", Place.WILL, MalformedPacket, id="Topic Alias in the will [X5-09]"),
        pytest.param("03080000", Place.PUBLISH, ProtocolError, id="Response Topic empty [4.7.3-1]"),
        pytest.param("060800032f2b2f", Place.PUBLISH, ProtocolError, id="Response Topic with + [3.3.2-14]"),
        pytest.param("0408000123", Place.WILL, ProtocolError, id="Response Topic with # [3.3.2-14]"),
        pytest.param("04080001ff", Place.PUBLISH, MalformedPacket, id="Response Topic no UTF-8 [3.3.2-13]"),
        pytest.param("04030001ff", Place.PUBLISH, MalformedPacket, id="Content Type no UTF-8 [3.3.2-19]"),
        pytest.param("041f000100", Place.PUBACK, MalformedPacket, id="Reason String with U+0000 [1.5.4-2]"),
        pytest.param("022402", Place.CONNACK, ProtocolError, id="Maximum QoS 2 [3.2.2.3.4]"),
        pytest.param("022502", Place.CONNACK, ProtocolError, id="Retain Available 2 [3.2.2.3.5]"),
        pytest.param(
            "022a02", Place.CONNACK, ProtocolError, id="Shared Subscription Available 2 [3.2.2.3.13]"
        ),
    ],
)
def test_refused(raw: str, place: Place, error: type[MqttError]) -> None:
    with pytest.raises(error) as caught:
        read_properties(bytes.fromhex(raw), 0, len(raw) // 2, place)
    assert type(caught.value) is error
    assert caught.value.reason in ReasonCode


def test_block_must_end_within_the_packet() -> None:
    raw = bytes.fromhex("0511000000ff")
    with pytest.raises(MalformedPacket):
        read_properties(raw, 0, 5, Place.CONNECT)
    assert read_properties(raw, 0, 6, Place.CONNECT) == ({"session_expiry_interval": 255}, 6)


def test_an_empty_block_is_the_shared_one() -> None:
    properties, at = read_properties(b"\x00\xff", 0, 2, Place.PUBLISH)
    assert properties is NO_PROPERTIES and at == 1
    with pytest.raises(TypeError):
        NO_PROPERTIES["content_type"] = "x"  # type: ignore[index]
    assert not NO_PROPERTIES


def test_user_properties_keep_their_order() -> None:
    pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", "")]
    out = bytearray()
    write_properties(out, {"user_property": pairs}, Place.PUBLISH)
    assert read(bytes(out), Place.PUBLISH) == {"user_property": pairs}


@pytest.mark.parametrize(("count", "fits"), [(REPEATS_MAX, True), (REPEATS_MAX + 1, False)])
def test_the_number_of_user_properties_is_bounded(count: int, fits: bool) -> None:
    pairs = [("key", "value")] * count
    out = bytearray()
    write_properties(out, {"user_property": pairs}, Place.PUBLISH)
    if fits:
        assert read(bytes(out), Place.PUBLISH)["user_property"] == pairs
    else:
        with pytest.raises(QuotaExceeded):
            read(bytes(out), Place.PUBLISH)


@pytest.mark.parametrize("name", ["receive_maximum", "maximum_packet_size"])
def test_zero_is_not_written(name: str) -> None:
    with pytest.raises(ValueError):
        write_properties(bytearray(), {name: 0}, Place.CONNACK)


@given(st.data(), st.sampled_from(Place))
def test_reading_undoes_writing(data: st.DataObject, place: Place) -> None:
    properties, out = data.draw(make.properties(place)), bytearray(b"\xee")
    write_properties(out, properties, place)
    assert read_properties(bytes(out) + b"\xee", 1, len(out), place) == (properties, len(out))


@given(st.binary(max_size=40), st.sampled_from(Place))
def test_any_bytes_give_properties_or_an_error(raw: bytes, place: Place) -> None:
    try:
        properties, at = read_properties(raw, 0, len(raw), place)
    except MqttError:
        return
    out = bytearray()
    write_properties(out, properties, place)
    assert len(out) == at


# ---- the block of a PUBLISH ------------------------------------------------------------------

PUBLISH = Place.PUBLISH
EXPIRY, ALIAS = bytes.fromhex("0200000005"), bytes.fromhex("230007")


def agrees(found: PropertyBlock, properties: Properties) -> None:
    """*found* is what the plain functions make of *properties*."""
    travels = travelling(properties)
    rest = {name: value for name, value in travels.items() if name != "message_expiry_interval"}
    wire = bytearray()
    write_properties(wire, rest, PUBLISH)
    assert bytes(varint_bytes(len(found.wire)) + found.wire) == wire
    assert (found.properties, found.travels) == (properties, travels)
    assert found.expiry == properties.get("message_expiry_interval")
    assert found.topic_alias == properties.get("topic_alias", 0)
    assert found.user_properties == len(properties.get("user_property", ()))
    assert copied(found) == travels
    not_plain = {"topic_alias", "subscription_identifier", "user_property"} & set(properties)
    assert found.is_plain == (not not_plain and properties.get("payload_format_indicator", 0) == 0)
    whole = bytearray()
    write_properties(
        whole, {**rest, **({"message_expiry_interval": 5} if found.expiry is not None else {})}, PUBLISH
    )
    assert found.head + (bytes((0, 0, 0, 5)) if found.expiry is not None else b"") == whole
    alone = len(found.wire) + len(found.head) if len(found.wire) > PropertyBlocks.LONGEST else 0
    assert block_size(found) == block_size(found) == properties_size(travels) + alone


@given(make.properties(Place.PUBLISH))
def test_a_block_is_what_the_plain_functions_make_of_it(properties: Properties) -> None:
    blocks, raw = PropertyBlocks(), property_block(properties, Place.PUBLISH)
    agrees(publish_block(properties), properties)
    agrees(blocks[raw], properties)
    assert (raw in blocks) == (len(raw) <= PropertyBlocks.LONGEST)
    agrees(blocks[raw], properties)


@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        pytest.param(EXPIRY, b"", id="expiry alone"),
        pytest.param(ALIAS + EXPIRY, b"", id="alias and expiry"),
        pytest.param(b"\x01\x01" + EXPIRY + b"\x03\x00\x01x", b"\x01\x01\x03\x00\x01x", id="between"),
        pytest.param(
            b"\x09\x00\x05" + EXPIRY + EXPIRY, b"\x09\x00\x05" + EXPIRY, id="the same bytes in a value"
        ),
        pytest.param(
            bytes.fromhex("0900020203" + "0203020302"), bytes.fromhex("0900020203"), id="overlapping matches"
        ),
        pytest.param(bytes.fromhex("0900030203ff") + ALIAS, bytes.fromhex("0900030203ff"), id="alias behind"),
        pytest.param(b"\x09\x00\x03" + ALIAS + ALIAS, b"\x09\x00\x03" + ALIAS, id="alias in a value"),
    ],
)
def test_what_does_not_travel_is_cut_out_of_the_block(raw: bytes, wire: bytes) -> None:
    assert PropertyBlocks()[raw].wire == wire


def test_user_properties_stay_where_they_were() -> None:
    raw = bytes.fromhex("26 0001 61 0000 0101 26 0001 62 0000")
    assert PropertyBlocks()[raw].wire == raw


@pytest.mark.parametrize(("strict", "fits"), [(True, False), (False, True)])
def test_strictness_holds_for_blocks(strict: bool, fits: bool) -> None:
    blocks, raw = PropertyBlocks(strict), b"\x03\x00\x01\x01"
    if fits:
        assert blocks[raw].properties == {"content_type": "\x01"}
    else:
        with pytest.raises(MalformedPacket):
            blocks[raw]
        assert not blocks


def test_the_cache_of_blocks_is_bounded() -> None:
    blocks = PropertyBlocks()
    for number in range(2 * PropertyBlocks.MAXIMUM + 1):
        blocks[b"\x02" + number.to_bytes(4, "big")]
        assert 0 < len(blocks) <= PropertyBlocks.MAXIMUM
    long = b"\x09\x00\x80" + bytes(128)
    assert blocks[long].properties == {"correlation_data": bytes(128)} and long not in blocks


def test_a_copy_is_for_one_message_alone() -> None:
    found = PropertyBlocks()[bytes.fromhex("0101 26 0001 61 0000")]
    mine: Any = copied(found)
    mine["user_property"].append(("b", ""))
    mine["payload_format_indicator"] = 5
    assert copied(found) == {"payload_format_indicator": 1, "user_property": [("a", "")]}


@pytest.mark.parametrize(
    ("properties", "left"),
    [
        pytest.param(NO_PROPERTIES, NO_PROPERTIES, id="none"),
        pytest.param({"topic_alias": 1}, NO_PROPERTIES, id="Topic Alias [3.3.2-7]"),
        pytest.param({"subscription_identifier": [1]}, NO_PROPERTIES, id="Subscription Identifier [3.3.4-6]"),
        pytest.param(
            {"will_delay_interval": 1, "content_type": "x"}, {"content_type": "x"}, id="Will Delay Interval"
        ),
        pytest.param({"message_expiry_interval": 1}, {"message_expiry_interval": 1}, id="expiry travels"),
    ],
)
def test_travelling(properties: Any, left: Any) -> None:
    assert travelling(properties) == left
    if properties == left:
        assert travelling(properties) is properties
    if not left:
        assert travelling(properties) is NO_PROPERTIES
