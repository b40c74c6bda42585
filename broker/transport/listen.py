"""From a listen address to its Listener."""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import ConfigError
from broker.transport import tls
from broker.transport.address import Address, parse_address
from broker.transport.base import Accept, Connection, Listener, TransportOptions
from broker.transport.memory import MemoryListener
from broker.transport.tcp import Prepare, SocketListener, TcpConnection
from broker.transport.websocket import Door, Handler, RawConnection


def listen(
    url: str, options: TransportOptions, accept: Accept, routes: Mapping[str, Handler] | None = None
) -> Listener:
    """A Listener for *url*, not started. *accept* gets each connection when it can be used.

    *routes* serve further paths of a ws:// or wss:// address. Raises ConfigError.
    """
    if url == MemoryListener.url:
        return MemoryListener(options, accept)
    address = parse_address(url)
    return SocketListener(address, options, accept, _prepare(address, options, routes))


def _prepare(
    address: Address, options: TransportOptions, routes: Mapping[str, Handler] | None
) -> Prepare | None:
    """What a connection goes through first; None when a plain socket is all."""
    context = options.ssl_context if address.encrypted else None
    if address.encrypted and context is None:
        raise ConfigError(
            f"listen address {str(address)!r} needs TLS: set a certificate and its key, or use "
            f"{'ws' if address.websocket else 'tcp'}://"
        )
    if not address.encrypted and not address.websocket:
        return None
    door = Door(options, options.websocket_path or address.path, routes) if address.websocket else None

    async def prepare(raw: TcpConnection) -> Connection | None:
        connection: RawConnection = raw
        if context is not None:
            connection = await tls.handshake(raw, context, options.handshake_timeout)
        return connection if door is None else await door.admit(connection)

    return prepare
