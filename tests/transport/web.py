"""A WebSocket client written by hand, which can break every rule."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from broker.transport.base import Connection
from tests.transport.sockets import Server, receive, receive_all, send, serving

URL = "ws://127.0.0.1:0"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA


def upgrade(*changes: str, drop: str = "", first: str = "GET /mqtt HTTP/1.1") -> bytes:
    """An upgrade request; *changes* are further header lines, *drop* names the ones to leave out."""
    headers = [
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt",
    ]
    left_out = {name.lower() for name in drop.split()}
    kept = [line for line in headers if line.split(":")[0].lower() not in left_out]
    return "\r\n".join([first, *kept, *changes, "", ""]).encode()


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    rest: bytes

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


async def head(sock: socket.socket) -> Answer:
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = await receive(sock, 1)
        assert piece, raw
        raw += piece
    first, *lines = raw.decode().split("\r\n")[:-2]
    pairs = (line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), [(name.lower(), value) for name, value in pairs], b"")


async def ask(server: Server, request: bytes) -> Answer:
    """The answer to *request*, with everything up to the end of the stream."""
    with await server.dial() as sock:
        await send(sock, request)
        answer = await head(sock)
        if answer.status != 101:
            answer.rest = await receive_all(sock)
        return answer


@dataclass
class Client:
    """A WebSocket client that can break every rule."""

    sock: socket.socket

    async def frame(self, opcode: int, payload: bytes = b"", final: bool = True) -> None:
        await send(self.sock, masked(opcode, payload, final))

    async def receive(self) -> tuple[int, bytes]:
        """The next frame's opcode and payload. Asserts that it is unmasked and not fragmented."""
        first, second = await receive(self.sock, 2)
        assert first & 0xF0 == 0x80
        assert second < 0x80
        size = second
        if second > 125:
            size = int.from_bytes(await receive(self.sock, 2 if second == 126 else 8), "big")
        return first & 0x0F, await receive(self.sock, size)

    async def closed(self) -> int:
        """The code of the Close that comes next; then nothing may follow but the end."""
        opcode, payload = await self.receive()
        assert opcode == CLOSE
        await self.frame(CLOSE, payload[:2])
        assert await receive_all(self.sock) == b""
        return int.from_bytes(payload[:2], "big")


def masked(opcode: int, payload: bytes = b"", final: bool = True) -> bytes:
    mask, size = os.urandom(4), len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    body = bytes(a ^ b for a, b in zip(payload, mask * (size // 4 + 1), strict=False))
    return bytes([final << 7 | opcode]) + length + mask + body


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[Connection, Client]]:
    async with serving(URL, **options) as server:
        with await server.dial() as sock:
            await send(sock, upgrade())
            assert (await head(sock)).status == 101
            yield await server.accepted.get(), Client(sock)
