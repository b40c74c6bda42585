"""Clients with a will "gone" to "w", the ways in which they end, and when the will comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED
from tests.conformance.server import Server


def dying(server: Server, version: int = 5, delay: int = 0, interval: int = 0, **connect: Any) -> Raw:
    """Client "c" with that will; *delay* and *interval* are those of will and session; Keep Alive 10."""
    properties = {"session_expiry_interval": interval} if version == 5 else {"clean_start": not interval}
    will = wire.will("w", b"gone", will_delay_interval=delay)
    return server.connect("c", version, will=will, keep_alive=10, **properties, **connect)


def expect_will(server: Server, watcher: Raw, after: float | None = 0) -> None:
    """The will comes *after* that many seconds, not earlier and only once; None: never."""
    if after:
        server.advance(after - 0.1)
        watcher.expect_nothing()
        server.advance(0.2)
    watcher.expect_messages(*[("w", b"gone")] * (after is not None), qos=0, retain=False)
    server.advance(1_000_000)
    watcher.expect_nothing()


# ---- ways to end without DISCONNECT 0x00: each takes a server and its client


def breach(server: Server, client: Raw) -> None:
    client.send(bytes.fromhex("C1 00"))
    client.expect_close(MALFORMED)
    client.drop()


def silence(server: Server, client: Raw) -> None:
    """For a Keep Alive of up to 10."""
    server.advance(15)
    client.expect_close(0x8D)
    client.drop()


def kick(server: Server, client: Raw) -> None:
    server.run(server.broker.disconnect(client.client_id))
    client.expect_close(0x98)
    client.drop()


def leave(code: int | None) -> Callable[[Server, Raw], None]:
    return lambda server, client: client.disconnect(code)
