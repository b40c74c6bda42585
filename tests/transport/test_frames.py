"""WebSocket frames: a table of RFC 6455, and laws."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transport.frames import (
    Binary,
    Close,
    CloseCode,
    Event,
    FrameReader,
    Invalid,
    Opcode,
    Ping,
    Pong,
    Text,
    encode_close,
    encode_frame,
)

MASK = bytes.fromhex("37fa213d")
MAXIMUM = 100_000


def masked(first: int, payload: bytes = b"", mask: bytes = MASK, form: int = 0) -> bytes:
    """A client's frame, written the slow way; *form* forces a length of 2 or 8 bytes."""
    size = len(payload)
    if form == 8 or size >= 1 << 16:
        length = b"\xff" + size.to_bytes(8, "big")
    elif form == 2 or size > 125:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = bytes([0x80 | size])
    return bytes([first]) + length + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload))


def invalid(events: list[Event]) -> CloseCode | None:
    assert not any(isinstance(event, Invalid) for event in events[:-1])
    return events[-1].code if events and isinstance(events[-1], Invalid) else None


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        pytest.param(masked(0x82, b"Hello"), [Binary(b"Hello", True)], id="binary"),
        pytest.param(masked(0x82), [Binary(b"", True)], id="empty"),
        pytest.param(bytes.fromhex("818537fa213d7f9f4d5158"), [Text(b"Hello", True)], id="text [5.7]"),
        pytest.param(masked(0x82, b"x" * 126), [Binary(b"x" * 126, True)], id="126 bytes"),
        pytest.param(masked(0x82, b"x" * 65536), [Binary(b"x" * 65536, True)], id="65536 bytes"),
        pytest.param(masked(0x82, b"ab", b"\0\0\0\0"), [Binary(b"ab", True)], id="mask 0"),
        pytest.param(
            masked(0x02, b"a") + masked(0x00) + masked(0x80, b"b"),
            [Binary(b"a", False), Binary(b"", False), Binary(b"b", True)],
            id="fragments [5.4]",
        ),
        pytest.param(
            masked(0x01, b"a") + masked(0x80, b"b"),
            [Text(b"a", False), Text(b"b", True)],
            id="text fragments",
        ),
        pytest.param(
            masked(0x02, b"a") + masked(0x89, b"p") + masked(0x8A) + masked(0x80, b"b"),
            [Binary(b"a", False), Ping(b"p"), Pong(b""), Binary(b"b", True)],
            id="control frames between fragments [5.5]",
        ),
        pytest.param(masked(0x89, b"x" * 125), [Ping(b"x" * 125)], id="longest Ping"),
        pytest.param(masked(0x88), [Close(1005, "")], id="Close without a code"),
        pytest.param(masked(0x88, b"\x03\xe8"), [Close(1000, "")], id="Close 1000"),
        pytest.param(
            masked(0x88, b"\x0b\xb8" + "é".encode()), [Close(3000, "é")], id="Close 3000 with a reason"
        ),
        pytest.param(masked(0x88) + masked(0x82, b"x"), [Close(1005, "")], id="nothing after a Close"),
    ],
)
def test_frames(raw: bytes, events: list[Event]) -> None:
    assert FrameReader(MAXIMUM).feed(raw) == events


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(encode_frame(Opcode.BINARY, b"x"), 1002, id="no mask [5.1]"),
        pytest.param(masked(0xC2, b"x"), 1002, id="RSV1"),
        pytest.param(masked(0xA2, b"x"), 1002, id="RSV2"),
        pytest.param(masked(0x92, b"x"), 1002, id="RSV3"),
        *(pytest.param(masked(0x80 | op), 1002, id=f"opcode {op:#x}") for op in (3, 4, 5, 6, 7, 11, 12, 15)),
        pytest.param(masked(0x09), 1002, id="fragmented Ping"),
        pytest.param(masked(0x08), 1002, id="fragmented Close"),
        pytest.param(masked(0x89, b"x" * 126), 1002, id="long Ping"),
        pytest.param(masked(0x89, b"x", form=2), 1002, id="Ping with a length of 2 bytes"),
        pytest.param(masked(0x80, b"x"), 1002, id="continuation of nothing"),
        pytest.param(masked(0x82) + masked(0x00), 1002, id="continuation after the end"),
        pytest.param(masked(0x02) + masked(0x82), 1002, id="new message inside one"),
        pytest.param(masked(0x02) + masked(0x81), 1002, id="text inside binary"),
        pytest.param(masked(0x82, b"x" * 125, form=2), 1002, id="125 in 2 bytes [5.2]"),
        pytest.param(masked(0x82, b"x", form=8), 1002, id="1 in 8 bytes"),
        pytest.param(masked(0x82, b"x" * 65535, form=8), 1002, id="65535 in 8 bytes"),
        pytest.param(b"\x82\xff\x80" + bytes(7) + MASK, 1002, id="highest bit of the length"),
        pytest.param(b"\x82\xff" + bytes(4) + b"\x7f\xff\xff\xff" + MASK, 1009, id="2 GiB announced"),
        pytest.param(b"\x82\xff\x7f" + b"\xff" * 7 + MASK, 1009, id="2 ** 63 - 1 announced"),
        pytest.param(
            masked(0x02, b"x" * 60_000) + masked(0x80, b"x" * 40_001), 1009, id="too large over two fragments"
        ),
        pytest.param(masked(0x88, b"\x03"), 1002, id="Close of one byte [5.5.1]"),
        *(
            pytest.param(masked(0x88, code.to_bytes(2, "big")), 1002, id=f"Close {code} [7.4]")
            for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65535)
        ),
        pytest.param(masked(0x88, b"\x03\xe8\xff"), 1007, id="reason is not UTF-8 [8.1]"),
        pytest.param(masked(0x88, b"\x03\xe8\xed\xa0\x80"), 1007, id="reason with a surrogate"),
    ],
)
def test_breaches(raw: bytes, code: int) -> None:
    reader = FrameReader(MAXIMUM)
    assert invalid(reader.feed(raw)) == code
    assert reader.feed(masked(0x82, b"x")) == []
    slow = FrameReader(MAXIMUM)
    assert (
        invalid([event for index in range(len(raw)) for event in slow.feed(raw[index : index + 1])]) == code
    )


@pytest.mark.parametrize(
    "code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1014, 3000, 4999]
)
def test_close_codes_that_may_be_sent(code: int) -> None:
    assert FrameReader(MAXIMUM).feed(masked(0x88, code.to_bytes(2, "big"))) == [Close(code, "")]


def test_a_message_of_the_largest_size_passes() -> None:
    raw = masked(0x02, b"x" * 60_000) + masked(0x80, b"x" * 40_000) + masked(0x82, b"y" * MAXIMUM)
    events = FrameReader(MAXIMUM).feed(raw)
    assert events == [Binary(b"x" * 60_000, False), Binary(b"x" * 40_000, True), Binary(b"y" * MAXIMUM, True)]


def test_a_breach_is_told_with_its_first_byte() -> None:
    assert invalid(FrameReader(MAXIMUM).feed(b"\xf2")) == 1002
    assert invalid(FrameReader(MAXIMUM).feed(b"\x82\x05")) == 1002


def test_a_payload_is_told_as_it_comes() -> None:
    raw, reader = masked(0x82, b"abcdef"), FrameReader(MAXIMUM)
    assert reader.feed(raw[:9]) == [Binary(b"abc", False)]
    assert reader.feed(raw[9:]) == [Binary(b"def", True)]


def merged(events: list[Event]) -> list[Event]:
    """Pieces of one message joined, so that only what was sent counts."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Binary | Text) and isinstance(last, type(event)) and not last.end:
            result[-1] = type(event)(last.data + event.data, event.end)
        else:
            result.append(event)
    return result


frames = st.one_of(
    st.builds(
        masked, st.sampled_from([0x82, 0x81]), st.binary(max_size=300), st.binary(min_size=4, max_size=4)
    ),
    st.builds(
        masked, st.sampled_from([0x89, 0x8A]), st.binary(max_size=125), st.binary(min_size=4, max_size=4)
    ),
)


@given(st.lists(frames, max_size=6).map(b"".join), st.data())
def test_chunk_borders_do_not_matter(raw: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=8))
    borders = sorted({0, *cuts, len(raw)})
    reader = FrameReader(MAXIMUM)
    events = [event for a, b in pairwise(borders) for event in reader.feed(raw[a:b])]
    assert merged(events) == merged(FrameReader(MAXIMUM).feed(raw))


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
def test_decode_undoes_masked_encode(payload: bytes, mask: bytes) -> None:
    assert FrameReader(MAXIMUM).feed(masked(0x82, payload, mask)) == [Binary(payload, True)]


headers = st.builds(masked, st.integers(0, 255), st.binary(max_size=8))


@given(st.binary(max_size=100) | st.lists(headers, max_size=6).map(b"".join), st.integers(1, 20))
def test_any_bytes_give_events_or_a_close_code(raw: bytes, step: int) -> None:
    reader = FrameReader(50)
    events = [event for at in range(0, len(raw), step) for event in reader.feed(raw[at : at + step])]
    assert invalid(events) in (None, 1002, 1007, 1009)
    assert sum(len(event.data) for event in events if isinstance(event, Binary | Text)) <= len(raw)


@pytest.mark.parametrize(
    ("frame", "head"),
    [
        (encode_frame(Opcode.BINARY, b""), "8200"),
        (encode_frame(Opcode.BINARY, b"x" * 125), "827d"),
        (encode_frame(Opcode.BINARY, b"x" * 126), "827e007e"),
        (encode_frame(Opcode.BINARY, b"x" * 65535), "827effff"),
        (encode_frame(Opcode.BINARY, b"x" * 65536), "827f0000000000010000"),
        (encode_frame(Opcode.PONG, b"x"), "8a01"),
        (encode_close(1000), "880203e8"),
        (encode_close(1005), "8800"),
        (encode_close(1003, "é" * 100), "887c03ebc3a9"),
    ],
)
def test_encoded_frames(frame: bytes, head: str) -> None:
    assert frame.hex().startswith(head)


def test_a_long_reason_is_cut_between_characters() -> None:
    frame = encode_close(1002, "é" * 62)
    assert frame == b"\x88\x7c\x03\xea" + ("é" * 61).encode()


# The quick way for whole frames


def stream(events: list[Event]) -> list[object]:
    """As a reader of bytes sees it: neighbouring pieces of one kind joined, whatever message they are of."""
    result: list[object] = []
    for event in events:
        last = result[-1] if result else None
        if not isinstance(event, Binary | Text):
            result.append(event)
        elif event.data and isinstance(last, tuple) and last[0] is type(event):
            result[-1] = (last[0], last[1] + event.data)
        elif event.data:
            result.append((type(event), event.data))
    return result


some_frames = st.one_of(
    st.builds(masked, st.just(0x82), st.binary(max_size=300), st.binary(min_size=4, max_size=4)),
    st.builds(masked, st.integers(0, 255), st.binary(max_size=8)),
    st.builds(masked, st.sampled_from([0x02, 0x80, 0x00, 0x01, 0x89]), st.binary(max_size=200)),
    st.builds(masked, st.just(0x82), st.binary(max_size=150), st.just(MASK), st.sampled_from([2, 8])),
    st.binary(min_size=1, max_size=3),
)


@given(st.lists(some_frames, max_size=8).map(b"".join), st.data(), st.sampled_from([60, 1 << 20]))
def test_the_quick_way_finds_what_feed_finds(raw: bytes, data: st.DataObject, maximum: int) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=8))
    borders = sorted({0, *cuts, len(raw)})
    plain, quick = FrameReader(maximum), FrameReader(maximum)
    events: list[Event] = []
    for a, b in pairwise(borders):
        payload, rest = quick.whole(raw[a:b])
        events += [Binary(payload, True), *quick.feed(rest)]
    assert stream(events) == stream([event for a, b in pairwise(borders) for event in plain.feed(raw[a:b])])


def test_the_quick_way_takes_all_that_is_ordinary() -> None:
    payloads = [b"x" * size for size in (1, 2, 5, 125, 126, 127, 3000, 65535)]
    raw, reader = b"".join(masked(0x82, payload) for payload in payloads), FrameReader(MAXIMUM)
    assert reader.whole(raw) == (b"".join(payloads), b"")
    head, tail = raw[:-1000], raw[-1000:]
    payload, rest = reader.whole(head)
    assert payload == b"".join(payloads[:-1])
    assert reader.feed(rest) == [Binary(b"x" * (65535 - 1000), False)]
    assert reader.whole(tail + masked(0x82, b"more")) == (b"x" * 1000 + b"more", b"")
    assert reader.whole(masked(0x82, b"and more")) == (b"and more", b"")


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(masked(0x82, b"x" * 65536) + masked(0x82, b"y"), id="a length of 8 bytes"),
        pytest.param(masked(0x82, b"x" * 150, form=8), id="which should be 2"),
        pytest.param(masked(0x82, b"x" * 70_001), id="too large"),
        pytest.param(masked(0x82, b"x" * 5_001) * 20, id="large"),
        pytest.param(masked(0x02, b"x" * 50) + masked(0x80, b"y" * 50) + masked(0x82, b"z"), id="fragments"),
        pytest.param(masked(0x81, b"x" * 50) + masked(0x82, b"z" * 50), id="text"),
    ],
)
@pytest.mark.parametrize("maximum", [5_000, 70_000])
def test_the_quick_way_leaves_what_is_not(raw: bytes, maximum: int) -> None:
    for cut in (0, 20, 70, len(raw) - 5):
        plain, quick = FrameReader(maximum), FrameReader(maximum)
        events: list[Event] = []
        for piece in (raw[:cut], raw[cut:]):
            payload, rest = quick.whole(piece)
            events += [Binary(payload, True), *quick.feed(rest)]
        assert stream(events) == stream([*plain.feed(raw[:cut]), *plain.feed(raw[cut:])])
