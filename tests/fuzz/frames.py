"""The WebSocket frame reader, against a plain one that sees all bytes at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

from broker.transport.frames import (
    MAXIMUM_CONTROL,
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
    unmask,
)
from tests.fuzz.pieces import Piece
from tests.fuzz.target import Target, chunks

MAXIMA = (0, 125, 1000, 70_000)  # bytes of a message
HEADER = 14  # bytes, the longest
BYTEWISE = 200
KINDS = {Opcode.TEXT: Text, Opcode.BINARY: Binary}


def run(data: bytes) -> None:
    maximum, pattern = MAXIMA[data[0] & 3] if data else 0, data[1] if len(data) > 1 else 0
    raw = data[2:]
    expected = joined(plain(raw, maximum))
    assert read([raw], maximum) == expected, "the plain reader disagrees"
    assert read(chunks(raw, pattern), maximum) == expected, "chunk borders matter"
    if len(raw) <= BYTEWISE:
        assert read([raw[at : at + 1] for at in range(len(raw))], maximum) == expected
    for event in expected:
        check_answer(event)


def read(pieces: Sequence[bytes], maximum: int) -> list[Event]:
    reader, found = FrameReader(maximum), list[Event]()
    for piece in pieces:
        events = reader.feed(piece)
        assert len(reader._rest) < HEADER + MAXIMUM_CONTROL, "more is held than a header and a control frame"
        assert not (found and isinstance(found[-1], Close | Invalid) and events), "something after the end"
        found += [Invalid(event.code, "") if isinstance(event, Invalid) else event for event in events]
    return joined(found)


def joined(events: Iterable[Event]) -> list[Event]:
    """*events* with the parts of a message in one, as far as no control frame stands between them."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Binary | Text) and isinstance(last, type(event)) and not last.end:
            found[-1] = type(event)(last.data + event.data, event.end)
        elif event != Binary(b"", False) and event != Text(b"", False):
            found.append(event)
    return found


def check_answer(event: Event) -> None:
    """What is sent back is a frame that is whole and short enough."""
    if isinstance(event, Ping):
        assert encode_frame(Opcode.PONG, event.data) == bytes((0x8A, len(event.data))) + event.data
    elif isinstance(event, Close | Invalid):
        reason = event.reason if isinstance(event, Close) else event.why
        frame = encode_close(event.code, reason)
        assert frame[0] == 0x88 and frame[1] == len(frame) - 2 <= MAXIMUM_CONTROL
        assert event.code == CloseCode.NO_STATUS or int.from_bytes(frame[2:4], "big") == event.code
        frame[4:].decode()


# ---- the plain reader [RFC 6455 section 5]


def plain(raw: bytes, maximum: int) -> Iterator[Event]:
    """The events of *raw*, one for each frame; the last one perhaps of a part of its payload."""
    at, kind, size = 0, None, 0
    while at < len(raw):
        first, second = raw[at], raw[at + 1] if at + 1 < len(raw) else None
        opcode, final = first & 0x0F, first >= 0x80
        control = opcode >= 8
        unknown = first & 0x70 or opcode not in set(Opcode) or (control and not final)
        if unknown or (
            second is not None and (second < 0x80 or (control and second > 0x80 + MAXIMUM_CONTROL))
        ):
            yield Invalid(CloseCode.PROTOCOL_ERROR, "")
            return
        width = {None: 0, 0xFE: 2, 0xFF: 8}.get(second, 0)
        start = at + 2 + width + 4
        if start > len(raw) or second is None:
            return
        length = int.from_bytes(raw[at + 2 : at + 2 + width], "big") if width else second - 0x80
        payload = bytes(a ^ b for a, b in zip(raw[start : start + length], cycle(raw[start - 4 : start])))
        whole, at = start + length <= len(raw), start + length
        if length >> 63 or length < {0: 0, 2: 126, 8: 65536}[width]:
            yield Invalid(CloseCode.PROTOCOL_ERROR, "")
            return
        if control:
            if whole:
                yield answer(opcode, payload)
            if not whole or opcode == Opcode.CLOSE:
                return
            continue
        if (kind is None) == (opcode == Opcode.CONTINUATION):
            yield Invalid(CloseCode.PROTOCOL_ERROR, "")
            return
        kind, size = (kind, size + length) if kind else (KINDS[Opcode(opcode)], length)
        if size > maximum:
            yield Invalid(CloseCode.MESSAGE_TOO_BIG, "")
            return
        yield kind(payload, final and whole)
        kind = None if final else kind


def answer(opcode: int, payload: bytes) -> Event:
    if opcode != Opcode.CLOSE:
        return Ping(payload) if opcode == Opcode.PING else Pong(payload)
    if not payload:
        return Close(CloseCode.NO_STATUS, "")
    code = int.from_bytes(payload[:2], "big")
    registered = {1000, 1001, 1002, 1003, *range(1007, 1015)}
    if len(payload) == 1 or not (code in registered or 3000 <= code < 5000):
        return Invalid(CloseCode.PROTOCOL_ERROR, "")
    try:
        return Close(code, payload[2:].decode())
    except UnicodeDecodeError:
        return Invalid(CloseCode.INVALID_PAYLOAD, "")


# ---- pieces: first byte and mask, and the payload


def split(data: bytes) -> list[Piece]:
    """Frames as far as there are any, unmasked, and one piece without a head for what is left."""
    pieces, at = [], 0
    while at + 6 <= len(data):
        width = {0xFE: 2, 0xFF: 8}.get(data[at + 1], 0)
        start = at + 6 + width
        length = int.from_bytes(data[at + 2 : at + 2 + width], "big") if width else data[at + 1] & 0x7F
        if start + length > len(data):
            break
        mask = data[start - 4 : start]
        pieces.append((data[at : at + 1] + mask, unmask(data[start : start + length], mask)))
        at = start + length
    return [*pieces, (b"", data[at:])] if at < len(data) else pieces


def join(pieces: Sequence[Piece]) -> bytes:
    return b"".join(
        frame(head[0], body, head[1:5].ljust(4, b"\0")) if head else body for head, body in pieces
    )


def frame(first: int, payload: bytes = b"", mask: bytes = b"\x37\xfa\x21\x3d") -> bytes:
    """A client's frame, its length in the shortest form."""
    plain_frame = encode_frame(Opcode.BINARY, payload)
    head = bytearray(plain_frame[: len(plain_frame) - len(payload)])
    head[0], head[1] = first, head[1] | 0x80
    return bytes(head) + mask + unmask(payload, mask)


def seeds() -> Iterator[bytes]:
    for settings in (b"\0\0", b"\1\x21", b"\2\x3a", b"\3\xff"):
        yield settings + frame(0x82, b"Hello") + frame(0x81, b"text") + frame(0x82)
        yield settings + frame(0x02, b"a") + frame(0x89, b"ping") + frame(0x00) + frame(0x80, b"b" * 200)
        yield settings + frame(0x02, b"a" * 100) + frame(0x80, b"b" * 100)
        yield settings + frame(0x8A) + frame(0x88, b"\x03\xe8" + "é".encode())
    for payload in (b"", b"\x03", b"\x03\xec", b"\x0b\xb8", b"\x03\xe8\xff"):
        yield b"\2\0" + frame(0x88, payload) + frame(0x82, b"late")
    for raw in (
        "82050102030405",
        "c280",
        "8380",
        "0980",
        "89fe007e",
        "82fe007d00000000",
        "82ff0000000000010000",
    ):
        yield b"\3\x11" + bytes.fromhex(raw)
    yield b"\3\x11\x82\xff\x80" + bytes(11)
    yield b"\3\x11" + frame(0x80, b"x") + frame(0x02) + frame(0x82)
    yield b"\3\0" + frame(0x82, bytes(70_000))


TARGET = Target(
    name="frames",
    run=run,
    seeds=seeds,
    covers=("transport.frames",),
    settings=2,
    longest=2048,
    split=split,
    join=join,
    words=[b"\x88\x80", b"\x89\x80", b"\x82\xfe", b"\x82\xff", b"\x03\xe8"],
)
