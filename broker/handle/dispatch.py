"""Packet class -> handler, and what may arrive in which state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.client import Client, Phase
from broker.core import Core
from broker.errors import ProtocolError
from broker.handle.acks import handle_puback, handle_pubcomp, handle_pubrec, handle_pubrel
from broker.handle.auth import handle_auth
from broker.handle.connect import handle_connect
from broker.handle.disconnect import handle_disconnect
from broker.handle.publish import handle_publish
from broker.handle.subscribe import handle_subscribe, handle_unsubscribe
from broker.packet.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)

Handler = Callable[[Core, Client, Any], Awaitable[None] | None]
CONNECTED: Final = Phase.CONNECTED


def handle_pingreq(core: Core, client: Client, packet: Pingreq) -> None:
    """PINGREQ is answered with PINGRESP [MQTT-3.12.4-1]."""
    client.send(Pingresp())


HANDLERS: Final[dict[type, Handler]] = {
    Publish: handle_publish,
    Puback: handle_puback,
    Pubrec: handle_pubrec,
    Pubrel: handle_pubrel,
    Pubcomp: handle_pubcomp,
    Subscribe: handle_subscribe,
    Unsubscribe: handle_unsubscribe,
    Pingreq: handle_pingreq,
    Connect: handle_connect,
    Disconnect: handle_disconnect,
    Auth: handle_auth,
}

# Before CONNACK 0x00 only these; after it everything above [MQTT-3.1.0-1, MQTT-3.1.2-30].
EARLY: Final = {Phase.NEW: (Connect,), Phase.AUTHENTICATING: (Auth, Disconnect)}


def dispatcher(core: Core) -> Callable[[Client, Packet], Awaitable[None] | None]:
    """The function that a Client calls with each packet, in order; gives what must be waited for."""

    def dispatch(client: Client, packet: Packet) -> Awaitable[None] | None:
        if type(packet) is Publish and client.phase is CONNECTED:  # as below, but sooner
            return handle_publish(core, client, packet)
        if client.phase is not CONNECTED and not isinstance(packet, EARLY.get(client.phase, ())):
            raise ProtocolError(f"{type(packet).__name__} before the connection was accepted")
        handler = HANDLERS.get(type(packet))
        if handler is None:
            raise ProtocolError(f"{type(packet).__name__} from a client")
        return handler(core, client, packet)

    return dispatch
