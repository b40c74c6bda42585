"""Enhanced authentication as a client sees it; the broker's side is `hooks.EnhancedAuth` with two steps."""

from __future__ import annotations

from typing import Any

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.server import Server

METHOD = {"authentication_method": "X-TEST"}
CONTINUE, AGAIN = 0x18, 0x19


def auth(reason: int, data: bytes | None = None, method: str = "X-TEST") -> bytes:
    """AUTH with a method and, unless None, data."""
    named: dict[str, Any] = {"authentication_method": method}
    return wire.auth(reason, named if data is None else named | {"authentication_data": data})


def challenged(
    server: Server, client_id: str = "c", more: dict[str, Any] | None = None, **fields: Any
) -> Raw:
    """A client in the middle of its exchange: CONNECT sent (with *more* properties), AUTH 0x18 read."""
    client = server.client()
    client.client_id = client_id
    client.send(wire.connect(client_id, properties=METHOD | (more or {}), **fields))
    client.expect("AUTH", reason_code=CONTINUE, authentication_data=b"challenge", **METHOD)
    return client


def admitted(server: Server, client_id: str = "c", more: dict[str, Any] | None = None,
             session_present: bool = False, **fields: Any) -> Raw:  # fmt: skip
    """A client whose exchange of two steps has succeeded."""
    client = challenged(server, client_id, more, **fields)
    client.send(auth(CONTINUE, b"proof"))
    client.expect(
        "CONNACK", reason_code=0, session_present=session_present, authentication_data=b"welcome", **METHOD
    )
    return client
