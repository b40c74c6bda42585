"""What is needed to misuse HTTP and WebSocket: requests and frames of any kind."""

from __future__ import annotations

from tests.hostility.line import Line

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
MASK = b"\x12\x34\x56\x78"
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n"
)


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bool = True, size: int = -1) -> bytes:
    """One frame; *size* is a length that may be a lie."""
    length = len(payload) if size < 0 else size
    head = bytes([opcode | fin << 7])
    if length < 126:
        head += bytes([length | mask << 7])
    elif length < 1 << 16:
        head += bytes([126 | mask << 7]) + length.to_bytes(2, "big")
    else:
        head += bytes([127 | mask << 7]) + length.to_bytes(8, "big")
    if not mask:
        return head + payload
    pattern = int.from_bytes((MASK * (len(payload) // 4 + 1))[: len(payload)], "big")
    return head + MASK + (int.from_bytes(payload, "big") ^ pattern).to_bytes(len(payload), "big")


def upgraded(line: Line) -> Line:
    """*line* after the upgrade; what the broker sends from here on is in frames."""
    line.send(UPGRADE + b"\r\n")
    head = b""
    while b"\r\n\r\n" not in head:
        data = line.sock.recv(65536)
        assert data, head
        head += data
    assert head.startswith(b"HTTP/1.1 101 "), head
    return line


def close_code(raw: bytes) -> int | None:
    """The code of the Close frame at the end of *raw*, in which nothing but short frames is."""
    code = None
    while len(raw) >= 2:
        opcode, length = raw[0] & 15, raw[1]
        if opcode == CLOSE and length >= 2:
            code = int.from_bytes(raw[2:4], "big")
        raw = raw[2 + length :]
    return code

