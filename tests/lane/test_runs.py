"""Packets as bytes against packets one by one."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.lane.runs import (
    LARGE,
    SHORT,
    Run,
    Stretch,
    acknowledgements,
    bounds,
    count_equal,
    is_begun,
    part,
    rewrite,
    rewrite_aliases,
)
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Puback, Publish
from broker.packet.reader import PacketReader

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
PROPERTIES = ({}, {"content_type": "x"}, {"message_expiry_interval": 7, "user_property": [("k", "v")]})

topics = st.sampled_from(("a", "a/b", "é", "x" * 130))
payloads = st.binary(max_size=200)
packet_ids = st.integers(1, 65535)


def decoded(data: bytes, version: Version) -> list[Publish]:
    reader = PacketReader(from_client=False)
    reader.version = version
    found = [packet for packet in reader.feed(data) if isinstance(packet, Publish)]
    assert reader.error is None and not reader.partial
    return found


def version(five: bool) -> Version:
    return V5 if five else V3


@given(
    st.lists(st.tuples(topics, payloads, packet_ids, st.sampled_from(PROPERTIES)), min_size=1, max_size=8),
    *(st.booleans(), st.booleans(), st.sampled_from(((0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)))),
)
def test_rewritten_is_decoded_changed_and_encoded(
    messages: list[tuple[str, bytes, int, dict[str, object]]], five: bool, to_five: bool, qos: tuple[int, int]
) -> None:
    sent = [
        Publish(
            topic, payload, qos[0], packet_id=number if qos[0] else 0, properties=properties if five else {}
        )
        for topic, payload, number, properties in messages
    ]
    raw = b"".join(encode(packet, version(five)) for packet in sent)
    for packet in sent:
        packet.qos = qos[1]
        packet.packet_id = packet.packet_id if qos[1] else 0
        packet.properties = packet.properties if to_five else {}
    wanted = b"".join(encode(packet, version(to_five)) for packet in sent)
    assert rewrite(raw, five, qos[0], to_five, qos[1]) == wanted


@given(
    st.lists(st.tuples(topics, payloads), min_size=1, max_size=8), st.booleans(), st.booleans(),
    st.integers(1, 65535 - 8), st.sampled_from(((1, 1), (2, 1), (2, 2))),
)  # fmt: skip
def test_a_stretch_with_new_identifiers(
    messages: list[tuple[str, bytes]], five: bool, to_five: bool, first: int, qos: tuple[int, int]
) -> None:
    heads, tails = [], []
    for topic, payload in messages:
        raw = encode(Publish(topic, payload, qos[0], packet_id=0x4141), version(five))
        at = raw.index(topic.encode()) + len(topic.encode())
        heads.append(raw[:at])
        tails.append(raw[at + 2 :])
    stretch = Stretch(heads, tails, five, "p", qos[0])
    found = decoded(stretch.numbered(to_five, first, qos[1]), version(to_five))
    assert [(packet.topic_name, packet.payload) for packet in found] == messages
    assert [packet.packet_id for packet in found] == list(range(first, first + len(messages)))
    assert all(packet.qos == qos[1] for packet in found)
    plain = decoded(stretch.without_identifiers(to_five), version(to_five))
    assert [(packet.topic_name, packet.payload, packet.qos) for packet in plain] == [
        (*message, 0) for message in messages
    ]


@given(st.lists(packet_ids, min_size=1, max_size=40), st.booleans(), st.booleans(), st.integers(1, 60_000))
def test_a_run_with_new_identifiers(identifiers: list[int], five: bool, to_five: bool, first: int) -> None:
    packets = [
        encode(Publish("t", b"%5d" % number, 1, packet_id=number), version(five)) for number in identifiers
    ]
    run = Run(b"".join(packets), len(packets[0]), packets[0].index(b"t") + 1, five, "p")
    assert run.count == len(packets)
    assert run.acknowledgements(0x40) == b"".join(encode(Puback(number), V3) for number in identifiers)
    found = decoded(run.numbered(to_five, first), version(to_five))
    assert [packet.packet_id for packet in found] == list(range(first, first + len(packets)))
    assert [packet.payload for packet in found] == [b"%5d" % number for number in identifiers]
    assert [packet.qos for packet in decoded(run.without_identifiers(to_five), version(to_five))] == [
        0
    ] * run.count


@pytest.mark.parametrize(("identifiers", "right"), [((1, 256, 513), True), ((1, 0, 2), False), ((0,), False)])
def test_a_run_with_the_identifier_0_is_none_of_ours(identifiers: tuple[int, ...], right: bool) -> None:
    packets = [b"\x32\x06\0\1t" + number.to_bytes(2, "big") + b"x" for number in identifiers]
    assert bool(Run(b"".join(packets), 8, 5, False, "p").acknowledgements(0x40)) is right


@given(st.lists(st.sampled_from((b"abcd", b"abce", b"xbcd", b"abc")), max_size=600), st.integers(1, 4))
def test_equal_packets_are_counted_and_never_more(packets: list[bytes], length: int) -> None:
    data = b"".join(packets)
    beginning = b"abcd"[:length]
    pieces = [data[at : at + 4] for at in range(0, len(data) - 3, 4)]
    there = len(list(takewhile(lambda piece: piece.startswith(beginning), pieces)))
    found = count_equal(data, 0, 4, beginning)
    assert found <= there
    assert found == there or found in (16, 256)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 3000])
def test_all_of_a_long_run_are_counted(count: int) -> None:
    assert count_equal(b"-" + b"abcd" * count + b"ab", 1, 4, b"abc") == count
    if count > 256:
        assert count_equal(b"abcd" * count + b"xxxx", 0, 4, b"abc") == 256


def test_every_acknowledgement_stands_where_its_number_says() -> None:
    table = acknowledgements(0x40)
    assert len(table) == 4 * 65536
    for number in (1, 2, 255, 256, 65535):
        assert table[4 * number : 4 * number + 4] == encode(Puback(number), V3)


def test_aliases_of_long_names_are_rewritten_little_by_little() -> None:
    """A thousand bytes must not become a million."""
    data = b"\x30\x08\0\0\x03\x23\0\1xy" * 1000
    packets, end = rewrite_aliases(data, {1: "n" * 4000}, lambda raw: (1, b"\0"))
    assert 0 < end < len(data)
    assert len(packets) < 2 * len(data) + SHORT + 4100
    again, _ = rewrite_aliases(data[end:], {1: "n" * 4000}, lambda raw: (1, b"\0"))
    assert again == packets


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", (0, 0)),
        (b"\x30", (0, 0)),
        (b"\x30\5", (2, 7)),
        (b"\x30\x80", (0, 0)),
        (b"\x30\x80\0", (0, 0)),
        (b"\x30\x80\1", (3, 131)),
        (b"\x30\xff\x7f", (3, 3 + 16_383)),
        (b"\x30\x80\x80\1", (0, 0)),
    ],
)
def test_bounds(data: bytes, found: tuple[int, int]) -> None:
    assert bounds(data, 0) == found
    start, end = bounds(b"--" + data, 2)
    assert (start, end) == (found[0] + 2 if found[1] else 0, found[1] + 2 if found[1] else 0)


@pytest.mark.parametrize("kind", [0x30, 0x31, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70, 0x33, 0x82])
def test_what_has_begun(kind: int) -> None:
    """Whatever the length of a packet of ours, every beginning of it is one."""
    for size in (0, 1, 5, 127, 128, 300):
        head = bytes((kind, size)) if size < 128 else bytes((kind, size & 0x7F | 0x80, size >> 7))
        packet = head + bytes(size)
        ours = kind in (0x30, 0x31, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70)
        for at in range(1, len(packet)):
            assert is_begun(packet[:at], 0) is (ours or at == 1), (size, at)
        assert not is_begun(packet, 0) and not is_begun(packet * 2, 0)
        assert is_begun(packet + packet[:1], len(packet))
    assert not is_begun(bytes((kind, 0x80, 0)), 0)
    assert not is_begun(bytes((kind, 0x80, 0x80)), 0)


@example(0, LARGE + 1, 3 * LARGE)  # much, and not the most of it
@example(LARGE, 0, LARGE)  # most of it, and not much
@given(st.integers(0, 3 * LARGE), st.integers(0, 3 * LARGE), st.integers(0, 3 * LARGE))
def test_a_part_is_a_view_only_of_most_of_it(size: int, begin: int, end: int) -> None:
    begin, end, size = sorted((size, begin, end))
    data = bytes(size)
    found = part(data, begin, end)
    assert bytes(found) == data[begin:end]
    assert isinstance(found, bytes) or (len(found) > LARGE and 2 * len(found) > size)
    assert isinstance(found, memoryview) or not size // 2 < len(found) > LARGE
