"""The time-outs of connections: one sweep looks at all of them."""

from __future__ import annotations

from broker.client import Client, Phase
from broker.config import Limits
from broker.errors import KeepAliveTimeout, MqttError, NotAuthorized, ProtocolError, QuotaExceeded

QUIET = 1.0  # seconds without a packet, after which a client gives back what it has no use for
HURRY = 2.0  # seconds for the rest of a packet, or for a socket, when memory is short


def check_deadlines(client: Client, limits: Limits, now: float) -> None:
    """End the connection of *client* if one of its time-outs has passed."""
    if client.phase is Phase.CONNECTED:
        _check_connected(client, limits, now)
    elif not client.handling:
        _check_early(client, limits, now - client.last_packet_at)
    client.resume_feed()
    patience = limits.send_timeout
    if client.hurried and not (client.session and client.session.bytes):  # only QoS 0 waits, if anything
        patience = min(patience, HURRY)
    if client.stalled(now, patience):
        client.abort(MqttError(f"the socket took nothing for {patience:g} s"))
        client.cancel()


def _check_early(client: Client, limits: Limits, age: float) -> None:
    """Before CONNACK: a silent close, or 0x87 in the middle of an authentication exchange [B02]."""
    if client.phase is Phase.NEW and (age >= limits.connect_timeout or (age >= HURRY and client.hurried)):
        client.refuse(MqttError("no complete CONNECT in time"))
        client.cancel()
    elif client.phase is Phase.AUTHENTICATING and age >= limits.authentication_timeout:
        client.refuse(NotAuthorized("the authentication exchange took too long"))
        client.cancel()


def _check_connected(client: Client, limits: Limits, now: float) -> None:
    if client.handling:
        return
    begun = client.extra.partial_since
    silence, most = now - client.last_packet_at, 1.5 * client.asked.keep_alive
    if silence >= QUIET:
        client.rest()
    if most and silence >= most:
        client.end(KeepAliveTimeout(f"no packet for {most:g} s"))
    elif begun is not None and now - begun >= limits.partial_packet_timeout:
        client.end(ProtocolError("a packet was begun and not completed in time"))
    elif begun is not None and now - begun >= HURRY and client.hurried:
        client.end(QuotaExceeded("no memory for an unfinished packet"))
