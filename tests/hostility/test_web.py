"""WebSocket and plain HTTP that want to hurt."""

from __future__ import annotations

import time

from tests.conformance import wire
from tests.hostility.attack import at_once, repeat
from tests.hostility.line import Line
from tests.hostility.scene import MIB, Scene, scene
from tests.hostility.web import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    UPGRADE,
    close_code,
    frame,
    upgraded,
)

CONNECT = wire.connect("web", keep_alive=60)
TIMES = 20  # of each breach

# What is sent after the upgrade, and the code of the Close frame that answers it.
BREACHES: dict[str, tuple[bytes, int]] = {
    "no mask": (frame(BINARY, CONNECT, mask=False), 1002),
    "text": (frame(TEXT, CONNECT), 1003),
    "a message that is too large": (frame(BINARY, CONNECT, size=1 << 30), 1009),
    "the longest length there is": (frame(BINARY, b"", size=(1 << 63) - 1), 1009),
    "a length beyond that": (frame(BINARY, b"", size=(1 << 64) - 1), 1002),
    "a continuation of nothing": (frame(CONTINUATION, CONNECT), 1002),
    "a message inside another": (frame(BINARY, CONNECT, fin=False) + frame(BINARY, CONNECT), 1002),
    "a ping in fragments": (frame(PING, b"x", fin=False), 1002),
    "a ping that is too long": (frame(PING, b"x" * 126), 1002),
    "a reserved bit": (frame(BINARY | 0x40, CONNECT), 1002),
    "a reserved opcode": (frame(5, CONNECT), 1002),
    "a close code that does not exist": (frame(CLOSE, b"\x03\xed"), 1002),
    "a close reason that is no text": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
}


def test_frames_that_break_a_rule_again_and_again() -> None:
    with scene(schemes=("tcp", "ws")) as s:
        for name, (raw, code) in BREACHES.items():
            for _ in range(TIMES):
                line = upgraded(s.line(scheme="ws"))
                line.push(raw)
                line.sock.shutdown(1)
                assert close_code(line.rest()) == code, name
                line.close()
        check_peace(s)


HEAD = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n"
# Requests, and the beginnings of the answers that are right.
JUNK: dict[str, tuple[bytes, bytes]] = {
    "a page": (HEAD + b"\r\n", b"HTTP/1.1 426 "),
    "another path": (b"GET /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404 "),
    "a body": (b"POST /mqtt HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"HTTP/1.1 405 "),
    "a long line": (b"GET /" + b"x" * 20_000, b"HTTP/1.1 4"),
    "many headers": (HEAD + b"".join(b"X-%d: x\r\n" % n for n in range(200)) + b"\r\n", b"HTTP/1.1 431 "),
    "long headers": (HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n", b"HTTP/1.1 4"),
    "a head without an end": (HEAD + b"X: x\r\n" * 10_000, b"HTTP/1.1 431 "),
    "two lengths": (HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 400 "),
    "a folded header": (HEAD + b"X: a\r\n b\r\n\r\n", b"HTTP/1.1 400 "),
    "no CR": (b"GET / HTTP/1.1\nHost: x\n\n", b"HTTP/1.1 400 "),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 505 "),
    "MQTT": (CONNECT, b"HTTP/1.1 400 "),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100, b"HTTP/1.1 400 "),
    "binary": (bytes(range(256)) * 100, b"HTTP/1.1 4"),
    "a key that is none": (UPGRADE.replace(b"AAAA==", b"AA==") + b"\r\n", b"HTTP/1.1 400 "),
    "no subprotocol": (UPGRADE.replace(b"mqtt\r\n", b"soap\r\n", 1) + b"\r\n", b"HTTP/1.1 4"),
}


def test_http_that_is_no_upgrade_again_and_again() -> None:
    with scene(schemes=("tcp", "ws")) as s:
        for name, (raw, answer) in JUNK.items():
            for _ in range(TIMES):
                line = s.line(scheme="ws")
                line.push(raw)
                found = line.rest()
                lost = not found and len(raw) > 10_000  # a reset came before it
                assert lost or found.startswith(answer), f"{name}: {found[:80]!r}"
                line.close()
        check_peace(s)


def test_heads_that_come_byte_by_byte() -> None:
    """There is one time for all of it, and no memory beyond the largest head."""
    with scene(schemes=("tcp", "ws"), tls__handshake_timeout=1.5) as s:
        lines = [s.line(scheme="ws") for _ in range(500)]
        for line in lines:
            line.push(HEAD + b"X: " + b"x" * 8000 + b"\r\n")
        ends = time.monotonic() + 10
        while lines and time.monotonic() < ends:
            lines = [line for line in lines if line.push(b"X")]
            time.sleep(0.1)
        assert not lines, "they are closed although something comes all the time"
        assert s.peak() < s.at_rest + 500 * 30_000 + 10 * MIB
        check_peace(s)


def test_messages_in_endless_fragments() -> None:
    """A byte in each frame: it is served like any other way to send it, and costs no memory."""
    with scene(schemes=("tcp", "ws")) as s:
        line = upgraded(s.line(scheme="ws"))
        rest = [frame(CONTINUATION, CONNECT[at : at + 1], fin=False) for at in range(1, len(CONNECT))]
        line.send(frame(BINARY, CONNECT[:1], fin=False), *rest)
        assert line.sock.recv(100)[2] == 0x20, "a CONNACK"
        endless = [upgraded(s.line(scheme="ws")) for _ in range(4)]
        for each in endless:
            each.push(frame(BINARY, CONNECT, fin=False))
        many = (frame(CONTINUATION, b"", fin=False) + frame(CONTINUATION, b"\xc0", fin=False)
                + frame(CONTINUATION, b"\x00", fin=False)) * 3000  # fmt: skip
        at_once(lambda number: repeat(endless[number], many, 3.0) and None, 4)
        assert s.peak() < s.at_rest + 20 * MIB
        for each in endless:
            each.reset()
        check_peace(s)


def test_floods_of_pings() -> None:
    """Who reads no Pong gets none any more, and costs nothing."""
    with scene(schemes=("tcp", "ws")) as s:
        lines = [upgraded(s.line(scheme="ws", receive_buffer=4096)) for _ in range(4)]
        for line in lines:
            line.push(frame(BINARY, CONNECT.replace(b"web", b"w%02d" % lines.index(line))))
        many = (frame(PING, b"x" * 125) + frame(PONG, b"y" * 125)) * 1000
        at_once(lambda number: repeat(lines[number], many, 2.0) and None, 4)
        assert s.peak() < s.at_rest + 20 * MIB
        for line in lines:
            line.reset()
        check_peace(s)


def test_a_flood_of_upgrades() -> None:
    def come_and_go(worker: int) -> None:
        ends = time.monotonic() + 2.0
        while time.monotonic() < ends:
            line = upgraded(Line(s.ports["ws"]))
            line.push(frame(BINARY, wire.connect(f"web-{worker}")))
            line.reset()

    with scene(schemes=("tcp", "ws")) as s:
        at_once(come_and_go, 4)
        assert s.peak() < s.at_rest + 20 * MIB
        check_peace(s)


def check_peace(s: Scene) -> None:
    """Everybody is gone, nothing is left of them, and the next WebSocket is served."""
    s.wait_until(lambda: s.sys()["clients/total"] <= 4, "the end of all")
    s.wait_until(lambda: s.descriptors() < 40, "their descriptors come back")
    line = upgraded(s.line(scheme="ws"))
    line.send(frame(BINARY, wire.connect("afterwards")))
    assert line.sock.recv(100)[2] == 0x20
