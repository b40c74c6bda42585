"""Byte streams under a test client: TCP, TCP cut into single bytes, WebSocket with frames cut at random.

All are synchronous. `recv` returns b"" at the end of the stream, and raises TimeoutError when
nothing came in time. `send` swallows a connection that the server has closed: what the server
had to say before is still to be read, and that is what a test looks at.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import socket
import ssl
import struct
import time
from urllib.parse import urlsplit

BYTEWISE_LIMIT = 2048  # bytes of one send that go out singly; the rest goes in pieces of up to 999


class Tcp:
    """A plain socket, or TLS over it with *context*; `tcp://`, `tls://` and `unix:` addresses."""

    name = "tcp"

    def __init__(self, address: str, *, rng: random.Random | None = None, timeout: float = 10.0,
                 context: ssl.SSLContext | None = None) -> None:  # fmt: skip
        self.rng, self.timeout, self.address = rng or random.Random(1), timeout, address
        self.sock = self._open(address)
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")

    def _open(self, address: str) -> socket.socket:
        if address.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(self.timeout)
            sock.connect(address.removeprefix("unix:"))
            return sock
        url = urlsplit(address)
        sock = socket.create_connection((url.hostname, url.port), timeout=self.timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    @property
    def local(self) -> str:
        """The port of this side, "" over a Unix socket."""
        name = self.sock.getsockname()
        return str(name[1]) if isinstance(name, tuple) else ""

    def send(self, data: bytes) -> None:
        try:
            self._send(data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return

    def _send(self, data: bytes) -> None:
        self.sock.settimeout(self.timeout)
        self.sock.sendall(data)

    def recv(self, timeout: float) -> bytes:
        self.sock.settimeout(max(timeout, 0.001))
        try:
            return self.sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    def close(self) -> None:
        """FIN, with everything that arrived already thrown away unread only after it."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self.sock.close()

    def reset(self) -> None:
        """RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Bytewise(Tcp):
    """One byte per send, so that the server may see every border inside every packet."""

    name = "bytewise"

    def _send(self, data: bytes) -> None:
        self.sock.settimeout(self.timeout)
        view, at = memoryview(data), 0
        while at < len(data):
            step = 1 if at < BYTEWISE_LIMIT else self.rng.randrange(1, 1000)
            self.sock.sendall(view[at : at + step])
            at += step


CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class WebSocket(Tcp):
    """MQTT over WebSocket; `send` cuts frames at random, with fragments, empty frames and pings between.

    `upgrade()` alone makes the HTTP exchange, `send_frame` and `recv_frame` single frames, for tests
    of the WebSocket layer itself. `close_code` is the code of the close frame that came, if any.
    """

    name = "websocket"

    def __init__(self, address: str, *, upgrade: bool = True, **kwargs: object) -> None:
        super().__init__(address, **kwargs)  # type: ignore[arg-type]
        self.buffer = b""
        self.pings: list[bytes] = []
        self.close_code: int | None = None
        self._close_sent = False
        self.status, self.headers = 0, []  # type: int, list[tuple[str, str]]
        if upgrade:
            self.upgrade()
            assert self.status == 101, f"the upgrade was answered with {self.status}"

    # ---- the HTTP exchange

    def upgrade(self, protocols: str | None = "mqtt", path: str | None = None, **headers: str) -> int:
        """Sends the upgrade request; sets and returns `status`; headers by name, `_` for `-`."""
        url = urlsplit(self.address)
        key = base64.b64encode(self.rng.randbytes(16)).decode()
        lines = [
            f"GET {path or url.path or '/mqtt'} HTTP/1.1",
            f"Host: {url.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        if protocols is not None:
            lines.append(f"Sec-WebSocket-Protocol: {protocols}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        super()._send(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.read_response()
        if self.status == 101:
            digest = hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
            assert self.header("Sec-WebSocket-Accept") == [base64.b64encode(digest).decode()]
            assert [v.lower() for v in self.header("Upgrade")] == ["websocket"]
        return self.status

    def read_response(self) -> int:
        """Reads one HTTP response head into `status` and `headers`; what follows stays in `buffer`."""
        while b"\r\n\r\n" not in self.buffer:
            chunk = super().recv(self.timeout)
            assert chunk, f"the stream ended inside the HTTP response: {self.buffer!r}"
            self.buffer += chunk
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = [(k.strip().lower(), v.strip()) for k, _, v in (line.partition(":") for line in rest)]
        return self.status

    def header(self, name: str) -> list[str]:
        """Every value of a response header."""
        return [value for key, value in self.headers if key == name.lower()]

    # ---- frames

    def frame(
        self, opcode: int, payload: bytes = b"", fin: bool = True, mask: bool = True, rsv: int = 0
    ) -> bytes:
        """One client frame; *mask* False and *rsv* are breaches."""
        size = len(payload)
        short = size if size < 126 else 126 if size < 65536 else 127
        extra = b"" if short < 126 else struct.pack(">H" if short == 126 else ">Q", size)
        head = bytes([fin << 7 | rsv << 4 | opcode, mask << 7 | short]) + extra
        if not mask:
            return head + payload
        key = self.rng.randbytes(4)
        stream = (key * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")
        return head + key + masked

    def send_frame(self, opcode: int, payload: bytes = b"", **kwargs: object) -> None:
        self.send_bytes(self.frame(opcode, payload, **kwargs))  # type: ignore[arg-type]

    def send_bytes(self, data: bytes) -> None:
        """Bytes below the framing."""
        try:
            super()._send(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def _send(self, data: bytes) -> None:
        """Cuts *data* into messages, those into frames, and the byte stream of it all into two sends."""
        out = b""
        for message in self._cut(data, 4):
            pieces = self._cut(message, 3)
            for at, piece in enumerate(pieces):
                out += self._noise() + self.frame(
                    CONTINUATION if at else BINARY, piece, fin=at == len(pieces) - 1
                )
        middle = self.rng.randrange(len(out) + 1)
        super()._send(out[:middle])
        super()._send(out[middle:])

    def _cut(self, data: bytes, most: int) -> list[bytes]:
        cuts = sorted(self.rng.randrange(len(data) + 1) for _ in range(self.rng.randrange(most)))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _noise(self) -> bytes:
        if self.rng.random() > 0.1 or len(self.pings) > 20:
            return b""
        self.pings.append(self.rng.randbytes(self.rng.randrange(9)))
        return self.frame(PING, self.pings[-1])

    def recv_frame(self, timeout: float) -> tuple[int, bytes] | None:
        """The next frame as (opcode, payload), None at the end of the stream; strict on server frames."""
        deadline = time.monotonic() + timeout
        while (found := self._take_frame()) is None:
            chunk = super().recv(deadline - time.monotonic())
            if not chunk:
                assert not self.buffer, f"the stream ended inside a frame: {self.buffer[:40]!r}"
                return None
            self.buffer += chunk
        return found

    def _take_frame(self) -> tuple[int, bytes] | None:
        data = self.buffer
        if len(data) < 2:
            return None
        first, size, at = data[0], data[1], 2
        assert not first & 0x70, f"reserved bits in a server frame: {first:#04x}"
        assert not size & 0x80, "a server frame is masked"
        if size >= 126:
            at = 4 if size == 126 else 10
            if len(data) < at:
                return None
            size = int.from_bytes(data[2:at], "big")
            assert size >= (126 if at == 4 else 65536), "a frame length is longer than needed"
        if len(data) < at + size:
            return None
        assert first & 15 < 8 or (first & 0x80 and size < 126), "a control frame is fragmented or too long"
        self.buffer = data[at + size :]
        return first & 15, data[at : at + size]

    def recv(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while (found := self.recv_frame(deadline - time.monotonic())) is not None:
            opcode, payload = found
            if opcode in (BINARY, CONTINUATION) and payload:
                assert self.close_code is None, "a data frame came after the close frame"
                return payload
            self._control(opcode, payload)
        return b""

    def _control(self, opcode: int, payload: bytes) -> None:
        assert opcode in (BINARY, CONTINUATION, CLOSE, PING, PONG), f"the server sent opcode {opcode}"
        if opcode == PONG:
            assert payload in self.pings, f"a pong for no ping: {payload!r}"
            del self.pings[: self.pings.index(payload) + 1]
        elif opcode == PING:
            self.send_frame(PONG, payload)
        elif opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2], "big") if payload else 1005
            if not self._close_sent:
                self._close_sent = True
                self.send_frame(CLOSE, payload[:2])


TRANSPORTS: dict[str, type[Tcp]] = {"tcp": Tcp, "bytewise": Bytewise, "websocket": WebSocket}


def seeded(text: str) -> random.Random:
    """A generator that depends on *text* alone; MQTT_SEED in the environment varies it."""
    return random.Random(f"{os.environ.get('MQTT_SEED', '')}{text}")
