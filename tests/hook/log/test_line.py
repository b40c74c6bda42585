"""The line of the message log: what goes in comes out, and what is torn or rotten is seen."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.hook.log.line import (
    EventRecord,
    MessageRecord,
    Publisher,
    format_event,
    format_gap,
    format_message,
    offset_of,
    sound,
    sound_prefix,
)

AT = 1_700_000_000_000_000
NAMES = {
    "pf": "payload_format_indicator",
    "ct": "content_type",
    "rt": "response_topic",
    "cd": "correlation_data",
    "up": "user_property",
    "mei": "message_expiry_interval",
}
KEYS = [
    "o",
    "ts",
    "t",
    "q",
    "r",
    "d",
    "c",
    "cn",
    "v",
    "p",
    "ps",
    "u",
    "pf",
    "ct",
    "rt",
    "cd",
    "up",
    "mei",
    "mt",
    "k",
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
topics = st.one_of(
    texts.filter(bool),
    st.sampled_from(['"', "\\", "a\nb", "a\u2028b", "\U0001f600/x", "\x7f", "ü" * 32767, "t" * 65535]),
)
properties = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "content_type": texts,
        "response_topic": topics,
        "correlation_data": st.binary(max_size=40),
        "user_property": st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
    },
)
publishers = st.builds(
    Publisher,
    texts,
    st.integers(0, 2**40),
    st.sampled_from([3, 4, 5]),
    st.none() | texts,
)
records = st.builds(
    MessageRecord,
    st.integers(0, 2**53),
    topics,
    st.integers(0, 11),
    publishers,
    st.binary(max_size=200),
    st.none() | st.integers(0, 2**28),
    st.none() | properties,
    st.none() | texts,
)


def expected(offset: int, record: MessageRecord) -> dict[str, Any]:
    """What `json.loads` should give, by the plainest way."""
    who, given_properties = record.publisher, record.properties or {}
    found: dict[str, Any] = {
        "o": offset,
        "ts": record.at,
        "t": record.topic_name,
        "q": record.flags >> 2,
        "r": record.flags >> 1 & 1,
        "d": record.flags & 1,
        "c": who.client_id,
        "cn": who.connection,
        "v": who.version,
        "p": base64.b64encode(record.payload).decode(),
        "ps": record.size,
        "u": who.user_name,
        "mt": record.mountpoint,
    }
    found |= {key: given_properties.get(name) for key, name in NAMES.items()}
    if found["cd"] is not None:
        found["cd"] = base64.b64encode(found["cd"]).decode()
    if found["up"] is not None:
        found["up"] = [{"key": key, "value": value} for key, value in found["up"]]
    return {key: value for key, value in found.items() if value is not None}


@given(st.integers(0, 10**19), records)
def test_any_message_comes_back(offset: int, record: MessageRecord) -> None:
    line = format_message(offset, record)
    said = json.loads(line)
    crc = said.pop("k")
    assert said == expected(offset, record)
    assert line.isascii() and line.endswith(b'"}\n') and line.count(b"\n") == 1
    assert crc == f"{zlib.crc32(line[: line.rindex(b',' + chr(34).encode() + b'k')]):08x}"
    assert sound(line) and offset_of(line) == offset


@given(st.integers(0, 10**19), records)
def test_keys_have_one_order_and_no_spaces_stand_between(offset: int, record: MessageRecord) -> None:
    line = format_message(offset, record)
    keys = list(json.loads(line))
    assert keys == [key for key in KEYS if key in keys]
    assert line[:-1].decode() == json.dumps(json.loads(line), separators=(",", ":"))


def test_what_a_message_with_nothing_looks_like() -> None:
    line = format_message(7, (AT, "a/b", 0, Publisher("c", 1, 4), b"", None, None, None, 0))
    assert line == (
        b'{"o":7,"ts":1700000000000000,"t":"a/b","q":0,"r":0,"d":0,"c":"c","cn":1,"v":4,"p":"","k":"%08x"}\n'
        % zlib.crc32(line[:-17])
    )


def test_an_event() -> None:
    fields = (("a", "10.0.0.1:5"), ("sp", True), ("rc", 0), ("sei", None))
    said = json.loads(format_event(3, EventRecord(AT, "connect", Publisher("c", 9, 5, "u"), fields)))
    del said["k"]
    assert list(said.items()) == [
        *(("o", 3), ("ts", AT), ("ev", "connect"), ("c", "c"), ("cn", 9), ("v", 5), ("u", "u")),
        *(("a", "10.0.0.1:5"), ("sp", 1), ("rc", 0)),
    ]


def test_a_gap_marker() -> None:
    line = format_gap(12, AT, 40)
    assert sound(line)
    assert json.loads(line) == {"o": 12, "ts": AT, "gap": 40, "k": f"{zlib.crc32(line[:-17]):08x}"}


def lines(first: int, count: int) -> list[bytes]:
    who = Publisher("c", 1, 5)
    return [
        format_message(n, (AT, "t", 0, who, b"x" * n, None, None, None, 0))
        for n in range(first, first + count)
    ]


@given(st.integers(0, 400), st.binary(max_size=300))
def test_any_prefix_and_garbage_gives_the_longest_sound_prefix(cut: int, garbage: bytes) -> None:
    whole = lines(5, 4)
    data = b"".join(whole)[:cut]
    kept, count = sound_prefix(data + garbage, 5)
    ends = [sum(map(len, whole[:n])) for n in range(5)]
    most = max(n for n, end in enumerate(ends) if end <= len(data))
    if count > most:  # the garbage went on as the log would have
        assert (data + garbage).startswith(b"".join(whole[:count]))
    else:
        assert (kept, count) == (ends[most], most)


@pytest.mark.parametrize("at", [0, 1, 5, 30, -2, -5, -12, -18])
def test_a_bit_that_flipped_is_seen(at: int) -> None:
    line = bytearray(lines(0, 1)[0])
    line[at] ^= 1
    assert not sound(bytes(line)) or offset_of(bytes(line)) != 0


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{}\n", b'{"o":0}\n', b',"k":"00000000"}\n', b"\0" * 100 + b"\n"]
)
def test_what_is_no_line(line: bytes) -> None:
    assert not sound(line)


def test_a_hole_or_a_repeated_offset_ends_the_prefix() -> None:
    first, second, third = lines(0, 3)
    assert sound_prefix(first + third, 0) == (len(first), 1)
    assert sound_prefix(first + first + second, 0) == (len(first), 1)
    assert sound_prefix(second, 0) == (0, 0)
