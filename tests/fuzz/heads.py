"""The HTTP head parser: any bytes in any chunks, and what another parser makes of what it accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from email.parser import HeaderParser
from random import Random

from broker.transport.http11 import HeadReader, HttpError, Request, response
from broker.transport.websocket import check_upgrade, choose_subprotocol, upgrade_response
from tests.fuzz.pieces import Change, Piece
from tests.fuzz.target import Target, chunks

SIZES = (64, 512, 16384, 1 << 20)  # bytes of a head
STATUSES = {400, 414, 431, 505}
UPGRADE_STATUSES = {400, 403, 426}
BYTEWISE = 300
Outcome = tuple[Request, bytes] | int | None


def run(data: bytes) -> None:
    settings, raw = data[:2].ljust(2, b"\0"), data[2:]
    size, most = SIZES[settings[0] & 3], 3 if settings[0] & 4 else 100
    outcome = read([raw], size, most)
    agree(outcome, read(chunks(raw, settings[1]), size, most))
    if len(raw) <= BYTEWISE:
        agree(outcome, read([raw[at : at + 1] for at in range(len(raw))], size, most))
    if outcome is None:
        assert b"\r\n\r\n" not in raw, "a head that is whole and neither taken nor refused"
    elif not isinstance(outcome, int):
        check_request(raw, *outcome)


def read(pieces: Sequence[bytes], size: int, most: int) -> Outcome:
    """The Request and what followed it, the status of the refusal, or None for a head that is not whole."""
    reader = HeadReader(size, most)
    for at, piece in enumerate(pieces):
        try:
            request = reader.feed(piece)
        except HttpError as error:
            assert error.status in STATUSES, error
            assert response(error.status, error.headers, f"{error}\n".encode())
            return error.status
        assert len(reader._buffer) <= size + len(piece) + 4, "more is held than a head and a chunk"
        if request is not None:
            return request, reader.rest + b"".join(pieces[at + 1 :])
    return None


def agree(one: Outcome, other: Outcome) -> None:
    """However it is cut: the same request, or none. Why it is refused depends on what was seen first."""
    if isinstance(one, int) and isinstance(other, int):
        return
    assert one == other, "chunk borders matter"


def check_request(raw: bytes, request: Request, rest: bytes) -> None:
    head = raw[: len(raw) - len(rest)]
    assert head.endswith(b"\r\n\r\n") and head + rest == raw and head.count(b"\r\n\r\n") == 1
    first, _, lines = head.partition(b"\r\n")
    assert first == f"{request.method} {request.target} HTTP/1.{request.version[1]}".encode("ascii")
    assert request.version[0] == 1 and not request.path.count("?")
    theirs = HeaderParser().parsestr(lines.decode("latin-1"))  # as http.client has it
    assert sorted(name.lower() for name in theirs) == sorted(
        name for name, values in request.headers.items() for _ in values
    ), "another parser sees other headers"
    for name, values in request.headers.items():
        found = [value.strip(" \t") for value in theirs.get_all(name, [])]
        assert found == values, "another parser sees other values"
        assert all(token == token.strip() and token for token in request.tokens(name))
    assert not ("content-length" in request.headers and "transfer-encoding" in request.headers)
    check_websocket(request)


def check_websocket(request: Request) -> None:
    """Each step of the upgrade gives a header line or an HttpError."""
    for origins in ((), ("https://a.example",)):
        try:
            accepted = check_upgrade(request, origins)
        except HttpError as error:
            assert error.status in UPGRADE_STATUSES
            assert response(error.status, error.headers)
        else:
            assert len(accepted) == 28
            assert upgrade_response(accepted, choose_subprotocol(request, False)).endswith(b"\r\n\r\n")
    with suppress(HttpError):
        assert choose_subprotocol(request, True) in ("mqtt", "mqttv3.1")


# ---- pieces: a line without its end


def split(data: bytes) -> list[Piece]:
    return [(b"", line) for line in data.split(b"\r\n")]


def join(pieces: Sequence[Piece]) -> bytes:
    return b"\r\n".join(head + body for head, body in pieces)


def change_body(body: bytes, most: int, rnd: Random, change: Change) -> bytes:
    """Change a line, or make it longer: heads of just the size that is allowed are where borders matter."""
    return change(body, most) if rnd.random() < 0.7 else body + b"x" * rnd.randrange(64)


def head_of(*lines: str, first: str = "GET /mqtt HTTP/1.1") -> bytes:
    return "\r\n".join((first, *lines, "", "")).encode("latin-1")


UPGRADE = (
    "Host: broker.example",
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


def seeds() -> Iterator[bytes]:
    upgrade = head_of(*UPGRADE, "Sec-WebSocket-Protocol: mqttv3.1, mqtt", "Origin: https://a.example")
    for settings in (b"\0\0", b"\1\x21", b"\2\x3a", b"\3\xff", b"\6\x11"):
        yield settings + upgrade + b"\x82\x80"
    for line in UPGRADE:
        yield b"\2\0" + head_of(*(other for other in UPGRADE if other != line))
    for lines in (("Host: a", "Host: b"), ("Host: a", "Content-Length: 1", "Transfer-Encoding: chunked")):
        yield b"\2\0" + head_of(*lines, first="POST / HTTP/1.1") + b"x"
    for line in ("A : b", " A: b", "A:\tb\t ", "A: \xe9\xff", "A:", ":b", "A: b\x0b", "Content-Length: +1"):
        yield b"\2\x32" + head_of("Host: a", line)
    for first in (
        "GET http://h/p?q HTTP/1.1",
        "GET /#f HTTP/1.1",
        "OPTIONS * HTTP/1.0",
        "GET / HTTP/2.0",
        "GET /",
    ):
        yield b"\2\x11" + head_of("Host: a", first=first)
    yield b"\2\0GET / HTTP/1.1\nHost: a\n\n"
    yield b"\2\0" + head_of("Host: a", first="GET /" + "x" * 9000 + " HTTP/1.1")
    yield b"\2\0" + head_of("Host: a", "A: " + "x" * 9000)
    yield b"\2\0" + head_of("Host: a", *["A: b"] * 120)
    yield b"\2\0\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01c"


TARGET = Target(
    name="heads",
    run=run,
    seeds=seeds,
    covers=("transport.http11",),
    settings=2,
    longest=1024,
    split=split,
    join=join,
    change_body=change_body,
    words=[
        *(b"\r\n", b"\r\n\r\n", b" HTTP/1.1", b" HTTP/1.0", b"Host: ", b"Content-Length: ", b"Origin: "),
        *(b"Transfer-Encoding: chunked", b"Upgrade: websocket", b"Connection: Upgrade", b"http://", b"*"),
        *(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Protocol: mqtt", b"Sec-WebSocket-Key: "),
    ],
)
