"""One TCP connection to the broker that may send anything, and blocks until it is told otherwise."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from typing import Any

from tests.conformance import wire
from tests.conformance.wire import Packet

HOST = "127.0.0.1"
WAIT = 20.0  # seconds for an answer; a machine that does other things too may take its time
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Line:
    """A socket with the packets that came over it. Not for two threads."""

    def __init__(self, port: int, version: int = 5, *, receive_buffer: int = 0) -> None:
        """*receive_buffer* makes the kernel's buffer small: who does not read then blocks early."""
        self.version = version
        self.sock = socket.socket()
        self.sock.settimeout(WAIT)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.connect((HOST, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def tls(self, context: ssl.SSLContext) -> Line:
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        return self

    def connect(self, client_id: str, reason: int = 0, **fields: Any) -> Line:
        """CONNECT, and CONNACK with *reason*."""
        self.send(wire.connect(client_id, version=self.version, **fields))
        connack = self.expect("CONNACK")
        assert connack.reason_code == reason, connack
        return self

    def subscribe(self, *filters: wire.Filter, packet_id: int = 1) -> Packet:
        self.send(wire.subscribe(packet_id, *filters, version=self.version))
        return self.expect("SUBACK")

    def send(self, *chunks: bytes) -> None:
        self.sock.sendall(b"".join(chunks))

    def push(self, *chunks: bytes) -> bool:
        """Send what may break the connection half-way; whether all of it went out."""
        try:
            self.sock.sendall(b"".join(chunks))
        except OSError:
            return False
        return True

    def packet(self, timeout: float = WAIT) -> Packet | None:
        """The next packet; None at the end of the stream. Raises TimeoutError."""
        ends = time.monotonic() + timeout
        while (found := wire.split(self.buffer)) is None:
            self.sock.settimeout(max(0.001, ends - time.monotonic()))
            try:
                data = self.sock.recv(65536)
            except ConnectionError:
                return None
            finally:
                self.sock.settimeout(WAIT)
            if not data:
                return None
            self.buffer += data
        raw, rest = found
        self.buffer = bytearray(rest)
        return wire.parse(raw, self.version)

    def expect(self, name: str) -> Packet:
        packet = self.packet()
        assert packet is not None and packet.name == name, packet
        return packet

    def until(self, name: str) -> tuple[Packet, list[Packet]]:
        """The next packet of this type, and what came before it."""
        before: list[Packet] = []
        while (packet := self.packet()) is not None:
            if packet.name == name:
                return packet, before
            before.append(packet)
        raise AssertionError(f"the stream ended before a {name}; {before[-3:]}")

    def fence(self) -> list[Packet]:
        """What the broker had sent by now."""
        self.send(wire.pingreq())
        return self.until("PINGRESP")[1]

    def rest(self, timeout: float = WAIT) -> bytes:
        """All bytes until the broker ends the connection, which it must within *timeout*."""
        ends, found = time.monotonic() + timeout, bytes(self.buffer)
        with contextlib.suppress(ConnectionError):
            while True:
                self.sock.settimeout(max(0.001, ends - time.monotonic()))
                data = self.sock.recv(65536)
                if not data:
                    break
                found += data
        return found

    def ended(self, timeout: float = WAIT) -> int | None:
        """The Reason Code of the last packet before the broker ended the connection; None: it said none."""
        code: int | None = None
        while (packet := self.packet(timeout)) is not None:
            code = packet.reason_code if packet.name in ("DISCONNECT", "CONNACK") else code
        return code

    def until_end(self) -> bool:
        """Whether the broker has ended the connection instead of answering the PINGREQ that was sent."""
        while (packet := self.packet()) is not None:
            if packet.name == "PINGRESP":
                return False
        return True

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """End without a goodbye."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.sock.close()
