"""Message and its bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from copy import copy, deepcopy
from dataclasses import replace
from pickle import dumps, loads
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.packet.codec import decode, encode
from broker.packet.enums import Version
from broker.packet.message import Message, encode_publish, numbered_packets, retained_packets
from broker.packet.packets import NO_PROPERTIES, Publish
from broker.packet.properties import PropertyBlocks, copied, publish_block
from broker.packet.wire import read_varint
from tests.packet import strategies as make

V4, V5 = Version.MQTT_3_1_1, Version.MQTT_5


def parse(raw: bytes, version: Version) -> Any:
    length, start = read_varint(raw, 1)
    assert len(raw) == start + length
    return decode(raw[0] >> 4, raw[0] & 15, raw[start:], version, from_client=False)


def as_packet(message: Message, version: Version, qos: int, retain: bool, packet_id: int) -> Publish:
    properties = message.properties if version == V5 else NO_PROPERTIES
    return Publish(message.topic_name, message.payload, qos, retain, False, packet_id, properties)


@given(make.messages(), make.versions, make.qos_levels, st.booleans(), make.packet_ids)
def test_frame_is_the_packet(
    message: Message, version: Version, qos: int, retain: bool, packet_id: int
) -> None:
    head, tail = message.frame(version, qos, retain)
    raw = head + packet_id.to_bytes(2, "big") + tail if qos else head
    assert qos or tail == b""
    assert parse(raw, version) == as_packet(message, version, qos, retain, packet_id if qos else 0)


@given(make.messages(), make.versions, make.qos_levels, st.booleans(), make.packet_ids)
def test_encode_publish_without_extras_is_the_frame(
    message: Message, version: Version, qos: int, retain: bool, packet_id: int
) -> None:
    head, tail = message.frame(version, qos, retain)
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    raw = encode_publish(message, version, qos, retain, packet_id=packet_id if qos else 0)
    assert raw == head + identifier + tail


@given(
    make.messages(),
    st.integers(1, 2),
    st.booleans(),
    make.packet_ids,
    st.lists(st.integers(1, 268_435_455), max_size=3),
    st.none() | st.integers(0, 0xFFFFFFFF),
    st.integers(0, 65535),
    st.booleans(),
)
def test_encode_publish_with_all_extras(
    message: Message,
    qos: int,
    dup: bool,
    packet_id: int,
    identifiers: list[int],
    remaining: int | None,
    topic_alias: int,
    with_topic: bool,
) -> None:
    with_topic = with_topic or not topic_alias
    raw = encode_publish(
        message,
        V5,
        qos,
        False,
        dup=dup,
        packet_id=packet_id,
        subscription_identifiers=identifiers,
        message_expiry_interval=remaining,
        topic_alias=topic_alias,
        with_topic=with_topic,
    )
    wanted = dict(message.properties)
    if remaining is not None:
        wanted["message_expiry_interval"] = remaining
    if identifiers:
        wanted["subscription_identifier"] = identifiers
    if topic_alias:
        wanted["topic_alias"] = topic_alias
    topic_name = message.topic_name if with_topic else ""
    assert parse(raw, V5) == Publish(topic_name, message.payload, qos, False, dup, packet_id, wanted)


@given(make.messages(), st.integers(0, 0xFFFFFFFF), st.lists(st.integers(1, 9), max_size=3))
def test_to_3_1_1_all_properties_vanish(message: Message, remaining: int, identifiers: list[int]) -> None:
    raw = encode_publish(
        message, V4, 0, True, message_expiry_interval=remaining, subscription_identifiers=identifiers
    )
    assert raw == encode(Publish(message.topic_name, message.payload, 0, True), V4)


@pytest.mark.parametrize(
    ("qos", "extras"),
    [
        pytest.param(1, {}, id="QoS 1 without identifier [2.2.1-3]"),
        pytest.param(2, {"packet_id": 0}, id="QoS 2, identifier 0"),
        pytest.param(0, {"packet_id": 1}, id="QoS 0 with identifier [2.2.1-2]"),
        pytest.param(0, {"dup": True}, id="QoS 0 with DUP [3.3.1-2]"),
        pytest.param(0, {"with_topic": False}, id="neither topic nor alias"),
        pytest.param(0, {"subscription_identifiers": [268_435_456]}, id="Subscription Identifier too large"),
    ],
)
def test_must_not_be_sent(qos: int, extras: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        encode_publish(Message("a"), V5, qos, False, **extras)


def test_an_alias_without_topic_never_goes_to_3_1_1() -> None:
    with pytest.raises(ValueError):
        encode_publish(Message("a"), V4, 0, False, topic_alias=1, with_topic=False)


def same(frame: tuple[bytes, bytes], other: tuple[bytes, bytes] | None) -> bool:
    """Whether both were made once; the pair itself may be another one each time."""
    return other is not None and frame[0] is other[0] and frame[1] is other[1]


def test_frames_are_made_once() -> None:
    message = Message("a", b"payload")
    for version in (Version.MQTT_3_1, V4, V5):
        for qos in (0, 1, 2):
            for retain in (False, True):
                first = message.frame(version, qos, retain)
                assert same(message.frame(version, qos, retain), first)
    assert same(message.frame(Version.MQTT_3_1, 1, False), message.frame(V4, 1, False))
    assert not same(message.frame(V4, 1, False), message.frame(V5, 1, False))


def test_the_payload_is_not_copied_per_frame_to_3_1_1() -> None:
    message = Message("a", b"payload")
    assert message.frame(V4, 1, False)[1] is message.payload


@pytest.mark.parametrize("properties", [NO_PROPERTIES, {"user_property": [("k", "v")]}])
@pytest.mark.parametrize("copied", [copy, deepcopy, lambda message: loads(dumps(message))])
def test_copies_of_the_standard_library(copied: Any, properties: Any) -> None:
    message = Message("a", b"payload", 1, True, properties, "client", 5.0)
    message.frame(V5, 1, True)
    made = copied(message)
    assert made == message and made is not message
    assert made.properties == properties


def test_with_drops_the_caches() -> None:
    message = Message("a", b"payload", 1, True, {"content_type": "x"}, "client", 5.0)
    before = message.frame(V5, 1, False), message.size, message.wire
    changed = message.with_(topic_name="longer", payload=b"", properties=NO_PROPERTIES)
    assert changed == Message("longer", b"", 1, True, NO_PROPERTIES, "client", 5.0)
    assert changed.frame(V5, 1, False) == (b"\x32\x0b\x00\x06longer", b"\x00")
    assert (changed.size, changed.wire) == (6, b"")
    assert (message.frame(V5, 1, False), message.size, message.wire) == before
    assert replace(message, topic_name="b").frame(V4, 0, False)[0] == b"\x30\x0a\x00\x01bpayload"


def test_with_knows_its_fields() -> None:
    with pytest.raises(AttributeError):
        Message("a").with_(topic="b")


def test_caches_do_not_count_in_comparisons() -> None:
    one, other = Message("a", b"x"), Message("a", b"x")
    one.frame(V5, 0, False)
    assert one.size and one == other
    assert "_frames" not in repr(one)


def taken(value: object) -> int:
    """Bytes that *value* takes with all that is in it."""
    inside: Iterable[object] = ()
    if isinstance(value, dict):
        inside = value.values()  # the names are constants
    elif isinstance(value, list | tuple):
        inside = value
    return sys.getsizeof(value) + sum(map(taken, inside))


@given(make.messages())
def test_size_is_no_less_than_what_it_takes_and_not_far_above(message: Message) -> None:
    message.properties = message.properties or NO_PROPERTIES
    objects = sys.getsizeof("") + sys.getsizeof(b"")  # are in the overhead of a message
    real = sum(map(taken, (message.topic_name, message.payload))) - objects
    real += taken(message.properties) if message.properties else 0
    sent = len(encode_publish(message, V5, 0, False))
    pairs = len(message.properties.get("user_property", ()))
    wide = 50 * (2 + len(message.properties) + 2 * pairs)  # heads of strings with wide characters
    assert real - wide <= message.size <= 4 * sent + 260 + 200 * (len(message.properties) + pairs)


@pytest.mark.parametrize(
    ("text", "width"), [("x" * 10_000, 1), ("x" * 10_000 + "\U0001f600", 4), ("\u00e9" * 10_000, 4)]
)
def test_size_counts_what_characters_take(text: str, width: int) -> None:
    properties = {"user_property": [(text, text)], "content_type": text}
    for message, texts in (Message(text), 1), (Message("t", properties=properties), 3):
        assert texts * width * len(text) <= message.size <= texts * width * len(text) + 600


@given(st.lists(make.messages(), max_size=5), make.versions)
def test_retained_packets_are_the_frames(messages: list[Message], version: Version) -> None:
    frames = [message.frame(version, 0, True)[0] for message in messages]
    assert retained_packets(messages, version) == b"".join(frames)


@given(st.lists(make.messages(), max_size=5), make.versions, st.integers(1, 65530))
def test_numbered_packets_are_the_frames(messages: list[Message], version: Version, first: int) -> None:
    wanted = b""
    for packet_id, message in enumerate(messages, first):
        head, tail = message.frame(version, 1, False)
        wanted += head + packet_id.to_bytes(2, "big") + tail
    assert numbered_packets(messages, version, first) == wanted


@pytest.mark.parametrize("size", [0, 120, 121, 122, 123, 124, 125, 126, 16_379, 16_380, 16_381, 70_000])
def test_retained_packets_of_any_length(size: int) -> None:
    message = Message("\u00e9/t", b"x" * size)
    assert retained_packets([message], V4) == message.frame(V4, 0, True)[0]


# ---- what is left of the Message Expiry Interval ------------------------------------------------


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("left", [0, 1, 4, 5])
def test_frames_count_down(version: Version, left: int) -> None:
    message = Message("t", b"x", 1, properties={"message_expiry_interval": 5, "content_type": "c"})
    message.expires_at = 105.0
    assert message.count_down(105.0 - left) == left
    head, tail = message.frame(version, 1, False)
    wanted = encode_publish(message, version, 1, False, packet_id=7, message_expiry_interval=left)
    assert head + b"\x00\x07" + tail == wanted


def test_a_frame_holds_for_a_second() -> None:
    message = Message("t", properties={"message_expiry_interval": 5}, expires_at=105.0)
    steps = [(100.0, 5), (100.5, 5), (101.0, 4), (101.9, 4), (102.1, 3), (104.0, 1), (104.1, 1)]
    steps += [(105.0, 0), (105.5, 0), (107.0, 0)]
    before = None
    for now, left in steps:
        assert message.count_down(now) == left, now
        frame = message.frame(V5, 0, False)
        assert same(frame, before) == (now in (100.5, 101.9, 104.1, 105.5)), now
        assert frame[0].endswith(left.to_bytes(4, "big"))
        before = frame


def test_never_more_is_left_than_the_publisher_said() -> None:
    message = Message("t", properties={"message_expiry_interval": 5}, expires_at=105.1)
    assert message.count_down(100.0) == 5
    assert message.count_down(100.2) == 5
    assert message.count_down(101.2) == 4


@pytest.mark.parametrize("interval", [0, 1, 5, 2**32 - 1])
@pytest.mark.parametrize("raw", [b"", bytes.fromhex("030001 63")])
def test_expire_after_is_a_deadline_and_what_is_left(interval: int, raw: bytes) -> None:
    block = PropertyBlocks()[raw + b"\x02" + interval.to_bytes(4, "big")]
    for began in (0.0, 0.3, 1e6 + 0.1):
        short = Message("t", b"x", properties=copied(block))
        short.block = block
        short.expire_after(interval, began)
        plain = Message("t", b"x", properties=copied(block), expires_at=began + interval)
        assert short.expires_at == plain.expires_at
        for later in (0.0, 0.5, 0.999, 1.001, 1.5, 3.0):
            assert short.count_down(began + later) == plain.count_down(began + later)
            assert short.frame(V5, 1, False) == plain.frame(V5, 1, False)
            assert short.frame(V4, 1, False) == plain.frame(V4, 1, False)


def test_what_does_not_expire_counts_nothing() -> None:
    message = Message("t", properties={"message_expiry_interval": 5})
    assert message.count_down(1e9) is None
    assert message.frame(V5, 0, False)[0].endswith(b"\x05\x02\x00\x00\x00\x05")


@given(st.floats(0, 1e6), st.integers(0, 2**32 - 1), st.lists(st.floats(0, 1e6), max_size=8))
def test_counting_down_is_rounding_up(began: float, interval: int, later: list[float]) -> None:
    message = Message("t", properties={"message_expiry_interval": interval}, expires_at=began + interval)
    for now in sorted(later):
        exact = began + interval - (began + now)
        left = message.count_down(began + now)
        assert left is not None and 0 <= left <= interval
        assert abs(left - min(interval, max(0, math.ceil(exact)))) <= (abs(exact - round(exact)) < 1e-6)


def test_bare_keeps_what_is_on_the_wire() -> None:
    message = Message("t", properties={"content_type": "x"})
    assert message.wire == message.bare().wire and message.bare().block is message.block
    assert message.with_(properties={"content_type": "y"}).wire != message.wire


# ---- what is made of fields that change


def test_a_message_that_expires_says_so_without_any_property() -> None:
    message = Message("t", b"x", expires_at=105.0)
    left = message.count_down(100.0)
    assert left == 5
    alone = encode_publish(message, V5, 0, False, message_expiry_interval=left)
    assert message.frame(V5, 0, False)[0] == alone and b"\x02\0\0\0\5" in alone


def test_what_was_made_of_old_fields_is_forgotten() -> None:
    message = Message("t", b"x")
    message.expire_after(60, 100.0)
    before = message.frame(V5, 0, False), message.size
    message.payload, message.expires_at = b"x" * 1000, 105.0
    message.changed()
    assert message.count_down(100.0) == 5
    assert message.size == before[1] + 999
    assert message.frame(V5, 0, False)[0] == encode_publish(message, V5, 0, False, message_expiry_interval=5)


@pytest.mark.parametrize(
    "change",
    [
        lambda empty: empty.update(a=1),
        lambda empty: empty.update({"a": 1}),
        lambda empty: empty.setdefault("a", 1),
        lambda empty: empty.__ior__({"a": 1}),
        lambda empty: empty.__setitem__("a", 1),
    ],
)
def test_no_properties_stay_none(change: Callable[[Any], object]) -> None:
    """All messages without properties share the mapping: one hook must not give them all its own."""
    with pytest.raises(TypeError, match="stays empty"):
        change(Message("t").properties)
    assert NO_PROPERTIES == {}


def test_a_long_block_is_counted_as_often_as_it_is_held() -> None:
    """Nobody shares it; a message that is not published by a client keeps none."""
    long = {"correlation_data": b"x" * 60_000}
    block = publish_block(long)
    mine = Message("t", properties=long)
    mine.block = block
    assert mine.size > len(block.wire) + len(block.head) + 60_000
    program = Message("t", properties=long)
    size = program.size
    assert len(program.wire) > 60_000 and program.block is None and program.size == size
