"""WebSocket: the HTTP upgrade, a Connection made of frames, and which path leads where [RFC 6455]."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from broker.transport.base import Connection, Octets, RawConnection, Reader, TransportOptions
from broker.transport.frames import (
    Binary,
    Close,
    CloseCode,
    Event,
    FrameReader,
    Invalid,
    Opcode,
    Ping,
    Text,
    encode_close,
    encode_frame,
)
from broker.transport.http11 import HeadReader, HttpError, Request, response

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # [4.2.2]
SUBPROTOCOLS = ("mqtt", "mqttv3.1")  # the first one that a client offers is chosen
FRAMES = 1000  # bytes that a connection takes besides the raw one, about
PONG_LIMIT = 64 * 1024  # bytes pending, beyond which a Ping gets no Pong

log = logging.getLogger(__name__)

# What serves a path. It gets the request, the connection, which is its own from then on, and the
# bytes that followed the head. A Connection that it returns is handed to the listener's accept;
# None means that it did, or will do, everything itself. An HttpError becomes the answer. It runs
# in the task of the handshake, which the listener's stop() cancels.
Handler = Callable[[Request, RawConnection, bytes], Awaitable[Connection | None]]


class Door:
    """The HTTP side of one ws:// or wss:// listener: a head, then the handler of its path."""

    def __init__(
        self, options: TransportOptions, path: str = "", routes: Mapping[str, Handler] | None = None
    ) -> None:
        """*path* is where MQTT is served, empty or `/` for everywhere; *routes* come first."""
        self._options = options
        self._path = "" if path == "/" else path
        self._routes = dict(routes or {})

    async def admit(self, raw: RawConnection) -> Connection | None:
        """Read a request and serve it. Raises ConnectionError or TimeoutError."""
        request: Request | None = None
        try:
            request, rest = await read_head(raw, self._options)
            handler = self._routes.get(request.path, self._serve_mqtt)
            return await handler(request, raw, rest)
        except HttpError as error:
            log.debug("%s: %d for %s: %s", raw.peer.listener, error.status, raw.peer.address, error)
            refuse(raw, error, head_only=request is not None and request.method == "HEAD")
            return None

    async def _serve_mqtt(self, request: Request, raw: RawConnection, rest: bytes) -> Connection:
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "Only GET is served here.", [("Allow", "GET, HEAD")])
        if self._path and request.path != self._path:
            raise HttpError(404, f"Nothing is here. MQTT over WebSocket is at {self._path}")
        if not request.tokens("upgrade") or request.method == "HEAD":
            raise HttpError(426, self._help(raw), [("Upgrade", "websocket")])
        options = self._options
        accepted = check_upgrade(request, options.websocket_origins)
        subprotocol = choose_subprotocol(request, options.websocket_require_subprotocol)
        raw.write(upgrade_response(accepted, subprotocol))
        return WebSocketConnection(raw, options, subprotocol, rest)

    def _help(self, raw: RawConnection) -> str:
        listener = urlsplit(raw.peer.listener)
        where = f"{listener.scheme}://HOST:{listener.port}{self._path or '/mqtt'}"
        return (
            "This is an MQTT broker, and this port speaks MQTT over WebSocket.\n"
            f"Connect to it with an MQTT client, not with a browser's address line: {where}\n"
            "The WebSocket subprotocol is mqtt."
        )


async def read_head(raw: RawConnection, options: TransportOptions) -> tuple[Request, bytes]:
    """The request head and what followed it. Raises HttpError, ConnectionError or TimeoutError."""
    reader = HeadReader(options.maximum_header_size)
    try:
        async with asyncio.timeout(options.handshake_timeout):
            while data := await raw.read():
                request = reader.feed(data)
                if request is not None:
                    return request, reader.rest
    except TimeoutError:
        raise TimeoutError(f"no HTTP request within {options.handshake_timeout:g} s") from None
    raise ConnectionError("the peer left before its HTTP request was whole")


def refuse(raw: RawConnection, error: HttpError, *, head_only: bool = False) -> None:
    """Answer with the error, and close."""
    upgrade = any(name == "Upgrade" for name, _ in error.headers)
    headers = [
        *error.headers,
        ("Connection", "upgrade, close" if upgrade else "close"),
        ("Content-Type", "text/plain; charset=utf-8"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    raw.write(response(error.status, headers, f"{error}\n".encode(), head_only=head_only))
    raw.close()


# The upgrade


def check_upgrade(request: Request, origins: tuple[str, ...]) -> str:
    """The Sec-WebSocket-Accept for a right upgrade request [4.2.1]. Raises HttpError.

    *origins* are the allowed ones, empty for all. A request without Origin does not come from a
    browser's page, so it passes.
    """
    if (
        request.version < (1, 1)
        or "content-length" in request.headers
        or "transfer-encoding" in request.headers
    ):
        raise HttpError(400, "An upgrade is an HTTP/1.1 GET without a body.")
    if "websocket" not in map(str.lower, request.tokens("upgrade")):
        raise HttpError(426, "Only an upgrade to websocket is served.", [("Upgrade", "websocket")])
    if "upgrade" not in map(str.lower, request.tokens("connection")):
        raise HttpError(400, "Connection: Upgrade is missing.")
    if request.only("sec-websocket-version") != "13":
        raise HttpError(
            426, "The WebSocket version is 13.", [("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
        )
    key = request.only("sec-websocket-key") or ""
    if not is_key(key):
        raise HttpError(400, "Sec-WebSocket-Key is not the base64 of 16 bytes.")
    origin = request.only("origin")
    if origins and origin is not None and origin.lower() not in map(str.lower, origins):
        raise HttpError(403, "Pages from this origin may not connect.")
    return base64.b64encode(hashlib.sha1(key.encode("ascii") + GUID).digest()).decode("ascii")


def is_key(key: str) -> bool:
    try:
        return len(key) == 24 and len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def choose_subprotocol(request: Request, required: bool) -> str | None:
    """Ours that the client offers, `mqtt` before `mqttv3.1`. Raises HttpError 400 [MQTT5 6]."""
    offered = request.tokens("sec-websocket-protocol")
    for name in SUBPROTOCOLS:
        if name in offered:
            return name
    if required:
        raise HttpError(400, "Offer the WebSocket subprotocol mqtt: Sec-WebSocket-Protocol: mqtt")
    return None


def upgrade_response(accepted: str, subprotocol: str | None) -> bytes:
    headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accepted)]
    if subprotocol is not None:
        headers.append(("Sec-WebSocket-Protocol", subprotocol))
    return response(101, headers)


# The connection


class WebSocketConnection:
    """The bytes in the binary messages of a WebSocket, whose raw connection it owns.

    One `write` is one frame. A peer's Close, like the end of TCP, is the end of the stream; text
    and what breaks RFC 6455 is a ConnectionError.
    """

    __slots__ = (
        "_closed", "_ended", "_failure", "_frames", "_linger", "_payload", "_raw", "_reader", "_rest",
        "_timer", "peer", "pongs_skipped", "subprotocol",
    )  # fmt: skip

    serving = True  # as a Reader: what it was given may still be here

    def __init__(
        self, raw: RawConnection, options: TransportOptions, subprotocol: str | None, rest: bytes = b""
    ) -> None:
        """*rest* is what came after the request head."""
        self.peer = raw.peer
        self.subprotocol = subprotocol
        self.pongs_skipped = 0  # Pings without an answer because the peer did not read
        self._raw = raw
        self._rest = rest
        self._linger = options.linger
        self._frames = FrameReader(options.websocket_maximum_message_size)
        self._payload: list[bytes] = []
        self._failure: str | None = None
        self._ended = False  # our Close is written: no more frames
        self._closed = False  # by close() or abort()
        self._timer: asyncio.TimerHandle | None = None
        self._reader: Reader | None = None

    @property
    def cost(self) -> int:
        """See Connection."""
        return self._raw.cost + FRAMES

    async def read(self) -> bytes:
        while not self._closed:
            if self._payload:
                return self._unqueue()
            if self._failure is not None:
                raise ConnectionError(self._failure)
            if self._ended:
                return b""
            data, self._rest = self._rest or await self._raw.read(), b""
            if not data and not self._payload and not self._failure:
                return b""
            self._feed(data)
        return b""

    def attach(self, reader: Reader | None) -> None:
        self._reader = reader
        self._raw.attach(None if reader is None else self)

    def has_unread(self) -> bool:
        return bool(self._payload or self._rest) or self._ended or self._closed or self._raw.has_unread()

    def left(self) -> None:
        if self._reader is not None:
            self._reader.left()

    def take(self, data: bytes) -> bytes:
        """What the raw connection has: take the frames off here, and wake `read` if anything is left."""
        if self._payload or self._rest:
            return data
        self._feed(data)
        if self._payload and self._reader is not None and not self._closed:
            left = self._reader.take(self._unqueue())
            if left:
                self._payload.append(left)
        if self._payload:
            self._raw.wake()
        return b""

    def write(self, data: Octets) -> None:
        if data and not self._ended:
            self._raw.write(encode_frame(Opcode.BINARY, data))

    def pending(self) -> int:
        """Bytes with frames around them."""
        return self._raw.pending()

    async def drain(self) -> None:
        await self._raw.drain()

    def close(self) -> None:
        """As Connection.close; the peer has half of the linger time to answer our Close."""
        if self._closed:
            return
        self._closed = True
        if not self._ended:
            self._send_close(CloseCode.NORMAL)

    def abort(self) -> None:
        self._closed = self._ended = True
        self._cancel_timer()
        self._raw.abort()

    async def wait_closed(self) -> None:
        await self._raw.wait_closed()

    def _unqueue(self) -> bytes:
        payload, self._payload = self._payload, []
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _feed(self, data: bytes) -> None:
        if not self._ended:
            payload, data = self._frames.whole(data)
            if payload:
                self._payload.append(payload)
            if not data:
                return
        for event in self._frames.feed(data):
            if self._ended:
                self._after_close(event)
            else:
                self._on_event(event)

    def _on_event(self, event: Event) -> None:
        match event:
            case Binary():
                if event.data:
                    self._payload.append(event.data)
            case Ping():
                self._pong(event.data)
            case Text():
                self._failure = "a WebSocket text frame"
                self._send_close(CloseCode.UNSUPPORTED_DATA, "MQTT is in binary frames")
            case Close():
                self._end(event.code)
            case Invalid():
                self._failure = f"WebSocket: {event.why}"
                self._end(event.code, event.why)

    def _after_close(self, event: Event) -> None:
        """Our Close has left: only the peer's one still counts."""
        if isinstance(event, Close | Invalid):
            self._hang_up()

    def _pong(self, data: bytes) -> None:
        if self._raw.pending() > PONG_LIMIT:
            self.pongs_skipped += 1
        else:
            self._raw.write(encode_frame(Opcode.PONG, data))

    def _end(self, code: int, reason: str = "") -> None:
        """The peer waits for no more than our Close: send it and end TCP [7.1.1]."""
        self._ended = True
        self._raw.write(encode_close(code, reason))
        self._raw.close()

    def _send_close(self, code: CloseCode, reason: str = "") -> None:
        """Begin the closing handshake [7.1.2]; the peer's Close comes to `_feed`."""
        self._ended = True
        self._raw.write(encode_close(code, reason))
        self._timer = asyncio.get_running_loop().call_later(self._linger / 2, self._raw.close)
        self._raw.divert(self._feed)

    def _hang_up(self) -> None:
        self._cancel_timer()
        self._raw.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
