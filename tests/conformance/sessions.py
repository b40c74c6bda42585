"""Sessions that outlive their connection: clients that subscribe, stay away and come back."""

from __future__ import annotations

from typing import Any

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.server import Server

LASTING = 600  # seconds of a session that outlives its connection
NEVER = 0xFFFFFFFF  # the Session Expiry Interval of one that does not end


def kept(version: int) -> dict[str, Any]:
    """The arguments of `connect` that make a session which outlives its connection by a minute or more."""
    return {"session_expiry_interval": 60} if version == 5 else {"clean_start": False}


def subscribed(
    server: Server,
    *filters: wire.Filter,
    qos: int = 2,
    client_id: str = "s",
    version: int = 5,
    **connect: Any,
) -> Raw:
    """A client with these subscriptions (none given: to "t") and a session that lasts.

    It acknowledges nothing by itself. *connect* goes to `Raw.connect`.
    """
    connect.setdefault("session_expiry_interval", LASTING)
    client = server.connect(client_id, version, clean_start=version == 5, **connect)
    client.subscribe(*(filters or ("t",)), qos=qos)
    return client


def offline(server: Server, *filters: wire.Filter, **named: Any) -> None:
    """A session as `subscribed` makes it, which waits for its client."""
    subscribed(server, *filters, **named).drop()


def returned(
    server: Server, client_id: str = "c", version: int = 5, *, present: bool = True, **connect: Any
) -> Raw:
    """The client again, with Clean Start 0; *present*: it finds its session.

    That ends with this connection, unless *connect* has a Session Expiry Interval or 3.x needs none.
    """
    shown = None if version == 3 else present  # 3.1 has no Session Present
    return server.connect(client_id, version, clean_start=False, session_present=shown, **connect)


def resume(server: Server, client_id: str = "s", version: int = 5, **connect: Any) -> Raw:
    """The next connection of a session that exists, and lasts on."""
    connect.setdefault("session_expiry_interval", LASTING)
    return returned(server, client_id, version, **connect)


def again(client: Raw, server: Server, **connect: Any) -> Raw:
    """*client* loses its connection and comes back to its session."""
    client.drop()
    return resume(server, client.client_id, client.version, **connect)
