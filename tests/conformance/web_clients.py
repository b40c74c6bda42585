"""Clients that make WebSocket frames and upgrade requests of their own."""

from __future__ import annotations

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.server import Server
from tests.conformance.transports import BINARY, CLOSE, PONG, WebSocket


def web_client(server: Server, version: int = 5, *, upgrade: bool = True) -> tuple[Raw, WebSocket]:
    """A client over WebSocket and the transport under it."""
    client = server.client(version, transport="websocket", upgrade=upgrade)
    assert isinstance(client.transport, WebSocket)
    return client, client.transport


def upgraded(server: Server, protocols: str | None, **headers: str) -> tuple[Raw, WebSocket, int]:
    """A client after an upgrade request with *protocols* (None: no such header), and the HTTP status."""
    client, websocket = web_client(server, upgrade=False)
    return client, websocket, websocket.upgrade(protocols, **headers)


def send_frames(client: Raw, *frames: tuple[int, bytes, bool]) -> None:
    """Frames as (opcode, payload, FIN), all in one segment."""
    websocket = client.transport
    assert isinstance(websocket, WebSocket)
    client.inspector.sent(b"".join(payload for opcode, payload, _ in frames if opcode < CLOSE))
    websocket.send_bytes(b"".join(websocket.frame(opcode, payload, fin) for opcode, payload, fin in frames))


def in_binary(client: Raw, *payloads: bytes) -> None:
    """One binary message for each payload."""
    send_frames(client, *((BINARY, payload, True) for payload in payloads))


def next_frame(websocket: WebSocket, timeout: float = 1.0) -> tuple[int, bytes] | None:
    """The next frame, but for answers to the Pings that `WebSocket.send` strews in."""
    while (found := websocket.recv_frame(timeout)) is not None:
        if found[0] != PONG or found[1] not in websocket.pings:
            return found
        websocket.pings.remove(found[1])
    return None


def expect_web_close(websocket: WebSocket, code: int, timeout: float = 1.0) -> None:
    """A Close frame with *code* is the very next frame; then, once answered, the end of TCP."""
    found = next_frame(websocket, timeout)
    assert found is not None and found[0] == CLOSE, f"expected a Close frame, got {found}"
    assert int.from_bytes(found[1][:2], "big") == code, f"expected {code}, got {found[1]!r}"
    websocket.send_frame(CLOSE, found[1][:2])
    assert next_frame(websocket, timeout) is None


def data_frames(websocket: WebSocket) -> list[tuple[int, bytes]]:
    """All frames until the Close frame, which is answered; its code is then in `close_code`."""
    found = []
    while (frame := next_frame(websocket)) is not None and frame[0] != CLOSE:
        found.append(frame)
    assert frame is not None, "the stream ended without a Close frame"
    websocket.close_code = int.from_bytes(frame[1][:2], "big")
    websocket.send_frame(CLOSE, frame[1][:2])
    return found


def names_in(stream: bytes) -> list[str]:
    """The packets in *stream*, which must be whole."""
    found = []
    while stream:
        cut = wire.split(stream)
        assert cut is not None, f"a packet is cut off: {stream[:40]!r}"
        raw, stream = cut
        found.append(wire.parse(raw, 5).name)
    return found
