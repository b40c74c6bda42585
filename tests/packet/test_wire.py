"""The data types of MQTT."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import MalformedPacket, TopicNameInvalid
from broker.packet import wire
from broker.packet.wire import DataType, Seen, TopicNames
from tests.packet import strategies as make


@pytest.mark.parametrize(
    ("data_type", "raw", "value"),
    [
        pytest.param(wire.UINT8, "ff", 255, id="byte"),
        pytest.param(wire.UINT16, "0102", 258, id="two byte integer [1.5.2]"),
        pytest.param(wire.UINT32, "ffffffff", 0xFFFFFFFF, id="four byte integer [1.5.3]"),
        pytest.param(wire.VARINT, "00", 0, id="varint 0 [1.5.5]"),
        pytest.param(wire.VARINT, "7f", 127, id="varint, longest of one byte"),
        pytest.param(wire.VARINT, "8001", 128, id="varint, shortest of two bytes"),
        pytest.param(wire.VARINT, "ff7f", 16_383, id="varint, longest of two bytes"),
        pytest.param(wire.VARINT, "808001", 16_384, id="varint, shortest of three bytes"),
        pytest.param(wire.VARINT, "80808001", 2_097_152, id="varint, shortest of four bytes"),
        pytest.param(wire.VARINT, "ffffff7f", 268_435_455, id="varint, the largest"),
        pytest.param(wire.BINARY, "0003000102", b"\x00\x01\x02", id="binary [1.5.6]"),
        pytest.param(wire.STRING, "0000", "", id="empty string"),
        pytest.param(wire.STRING, "0005" + "41f0aa9b94", "A\U0002a6d4", id="the example of [1.5.4]"),
        pytest.param(wire.STRING, "0003efbbbf", "\ufeff", id="U+FEFF stays [1.5.4-3]"),
        pytest.param(wire.STRING_PAIR, "0001610000", ("a", ""), id="string pair [1.5.7]"),
    ],
)
def test_both_ways(data_type: DataType, raw: str, value: object) -> None:
    wanted, out = bytes.fromhex(raw), bytearray()
    data_type.write(out, value)
    assert out == wanted
    assert data_type.read(b"\xee" + wanted + b"\xee", 1, True) == (value, 1 + len(wanted))


@pytest.mark.parametrize(
    ("data_type", "raw"),
    [
        pytest.param(wire.UINT8, "", id="byte missing"),
        pytest.param(wire.UINT16, "01", id="two byte integer cut off"),
        pytest.param(wire.UINT32, "010203", id="four byte integer cut off"),
        pytest.param(wire.VARINT, "", id="varint missing"),
        pytest.param(wire.VARINT, "80", id="varint cut off"),
        pytest.param(wire.VARINT, "8000", id="varint longer than needed [1.5.5-1]"),
        pytest.param(wire.VARINT, "81808000", id="varint longer than needed, four bytes"),
        pytest.param(wire.VARINT, "8080808001", id="varint of five bytes [1.5.5]"),
        pytest.param(wire.BINARY, "0002ff", id="binary cut off"),
        pytest.param(wire.STRING, "00", id="string length cut off"),
        pytest.param(wire.STRING, "000261", id="string cut off"),
        pytest.param(wire.STRING, "0002c080", id="overlong form [1.5.4-1]"),
        pytest.param(wire.STRING, "0003eda080", id="surrogate [1.5.4-1]"),
        pytest.param(wire.STRING, "0001ff", id="no UTF-8 [1.5.4-1]"),
        pytest.param(wire.STRING, "0004f5808080", id="beyond U+10FFFF"),
        pytest.param(wire.STRING, "0002e282", id="truncated sequence"),
        pytest.param(wire.STRING, "000100", id="U+0000 [1.5.4-2]"),
        pytest.param(wire.STRING_PAIR, "0001ff000161", id="bad name in a pair [1.5.7-1]"),
        pytest.param(wire.STRING_PAIR, "0001610001ff", id="bad value in a pair [1.5.7-1]"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_malformed(data_type: DataType, raw: str, strict: bool) -> None:
    with pytest.raises(MalformedPacket):
        data_type.read(bytes.fromhex(raw), 0, strict)


NON_CHARACTERS = [*range(0xFDD0, 0xFDF0), *(p << 16 | low for p in range(17) for low in (0xFFFE, 0xFFFF))]
DISALLOWED = [*range(0x01, 0x20), *range(0x7F, 0xA0), *NON_CHARACTERS]


def test_there_are_66_non_characters() -> None:
    assert len(NON_CHARACTERS) == 66


@pytest.mark.parametrize("code_point", DISALLOWED, ids=hex)
def test_disallowed_code_points_are_a_setting(code_point: int) -> None:
    out = bytearray()
    wire.write_string(out, f"a{chr(code_point)}b")
    with pytest.raises(MalformedPacket):
        wire.read_string(bytes(out), 0, True)
    assert wire.read_string(bytes(out), 0, False)[0] == f"a{chr(code_point)}b"


@pytest.mark.parametrize(
    "text", [" ", "~", "\xa0", "\ufeff", "\ufdcf", "\ufdf0", "\ufffd", "\U0010fffd"], ids=ascii
)
def test_neighbours_of_disallowed_code_points_are_fine(text: str) -> None:
    out = bytearray()
    wire.write_string(out, text)
    assert wire.read_string(bytes(out), 0, True)[0] == text


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        pytest.param(wire.UINT8, 256, id="byte"),
        pytest.param(wire.UINT16, 65_536, id="two byte integer"),
        pytest.param(wire.UINT16, -1, id="negative"),
        pytest.param(wire.UINT32, 1 << 32, id="four byte integer"),
        pytest.param(wire.VARINT, 268_435_456, id="varint"),
        pytest.param(wire.VARINT, -1, id="negative varint"),
        pytest.param(wire.BINARY, bytes(65_536), id="long binary"),
        pytest.param(wire.STRING, "\u00e9" * 32_768, id="string of 65536 bytes"),
        pytest.param(wire.STRING, "a\0b", id="U+0000"),
        pytest.param(wire.STRING, "\ud800", id="surrogate"),
        pytest.param(wire.STRING_PAIR, ("a", "\0"), id="pair"),
    ],
)
def test_no_such_encoding(data_type: DataType, value: object) -> None:
    with pytest.raises(ValueError):
        data_type.write(bytearray(), value)


@given(st.integers(0, wire.VARINT_MAX))
def test_varint_is_minimal_and_comes_back(value: int) -> None:
    raw = wire.varint_bytes(value)
    assert len(raw) == 1 + (value > 127) + (value > 16_383) + (value > 2_097_151)
    assert wire.read_varint(raw, 0) == (value, len(raw))


@given(st.binary(max_size=8))
def test_any_bytes_are_text_or_malformed(raw: bytes) -> None:
    try:
        text = wire.decode_text(raw, True)
    except MalformedPacket:
        return
    assert text.encode() == raw


@given(make.topic_names)
def test_topic_names_gives_one_object_per_name(topic_name: str) -> None:
    names = TopicNames()
    assert names[topic_name.encode()] == names[topic_name.encode()] == topic_name
    assert names[bytes(bytearray(topic_name.encode()))] is names[topic_name.encode()]


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"a/+", TopicNameInvalid),
        (b"#", TopicNameInvalid),
        (b"a+b", TopicNameInvalid),
        (b"\xff", MalformedPacket),
        (b"a\0b", MalformedPacket),
        (b"a\x01b", MalformedPacket),
    ],
)
def test_a_refused_name_is_not_kept(raw: bytes, error: type[Exception]) -> None:
    names = TopicNames()
    for _ in range(2):
        with pytest.raises(error):
            names[raw]
    assert not names


def test_lenient_names_keep_control_characters() -> None:
    assert TopicNames(strict=False)[b"a\x01b"] == "a\x01b"


def test_topic_names_are_bounded() -> None:
    names, most = TopicNames(), 0
    for number in range(2 * TopicNames.MAXIMUM):
        for _ in range(2):
            names[b"%d" % number]
        most = max(most, len(names))
        assert b"%d" % number in names
    assert most == TopicNames.MAXIMUM and len(names) <= TopicNames.MAXIMUM
    before = len(names)
    for _ in range(2):
        assert names[b"x" * 1025] == "x" * 1025
    assert len(names) == before
    for _ in range(2):
        assert names[b"x" * 1024] == "x" * 1024
    assert b"x" * 1024 in names


def test_a_name_that_comes_once_is_not_kept() -> None:
    names = TopicNames()
    for number in range(50_000):
        assert names[b"t/%d" % number] == f"t/{number}"
    assert len(names) < 10_000, "an eighth is taken for another one"
    names.clear()
    assert names[b"again"] == names[b"again"] == "again" and b"again" in names


def test_seen_forgets_none_before_too_many_have_come() -> None:
    seen = Seen()
    before = [seen.add(b"%d" % number) for number in range(10_000)]
    assert before.count(True) < 1500, "those that it takes for others"
    assert all(seen.add(b"%d" % number) for number in range(10_000))
