"""PUBACK, PUBREC, PUBREL, PUBCOMP [MQTT5 3.4-3.7, 4.3]."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from broker.client import Client
from broker.core import Core
from broker.errors import MqttError, ReasonCode
from broker.packet.enums import PacketType, Version
from broker.packet.message import NEVER_ROUTED, Message
from broker.packet.packets import Puback, Pubcomp, Pubrec, Pubrel
from broker.session.delivery import State
from broker.session.session import Session

PUBREL: Final = 0x62  # first bytes
PUBCOMP: Final = 0x70


def handle_puback(core: Core, client: Client, packet: Puback) -> None:
    """PUBACK: the QoS 1 message is done, whatever the code says [MQTT-4.4.0-2]. Unknown: ignored."""
    assert client.session is not None
    delivery = client.session.acknowledge(packet.packet_id, PacketType.PUBACK, packet.reason_code)
    if delivery is not None and core.hooks.hears_acknowledged:
        core.hooks.on_acknowledged(client.client_id, delivery.message, 1, packet.reason_code)
    client.resume_feed()


def handle_pubrec(core: Core, client: Client, packet: Pubrec) -> None:
    """PUBREC: PUBREL, or the end of the flow for 0x80 and above [MQTT-4.3.3-4]."""
    assert client.session is not None
    before = core.journal.changes
    delivery = client.session.acknowledge(packet.packet_id, PacketType.PUBREC, packet.reason_code)
    if delivery is None:
        _answer_unknown(core, client, Pubrel, packet.packet_id, PUBREL)
    elif delivery.state is State.WAIT_PUBCOMP:  # from PUBREL on the client may forget the identifier
        after = core.journal.promise(before, delivery.message.topic_name)
        client.acknowledge(PUBREL, packet.packet_id, after)
    elif core.hooks.hears_acknowledged:  # it was refused
        core.hooks.on_acknowledged(client.client_id, delivery.message, 2, packet.reason_code)
    client.resume_feed()


def handle_pubrel(core: Core, client: Client, packet: Pubrel) -> Awaitable[None] | None:
    """PUBREL: the held message is routed now, and PUBCOMP says so [MQTT-4.3.3-11].

    If storing or routing fails the message stays held and the connection ends: the client repeats PUBREL.
    """
    session = client.session
    assert session is not None
    message = session.inflight.held_as(packet.packet_id)
    if message is None:
        _answer_unknown(core, client, Pubcomp, packet.packet_id, PUBCOMP)
        return None
    expired = message.expires_at is not None and message.expires_at < core.clock()
    before = core.journal.changes
    if message.retain and not expired:
        if core.hooks.stores_retained:
            return _store_by_hook(core, client, session, packet.packet_id, message, before)
        core.router.retain_now(message, owned=True)
    _let_go(core, client, session, packet.packet_id, message, before, expired)
    return None


async def _store_by_hook(
    core: Core, client: Client, session: Session, packet_id: int, message: Message, before: int
) -> None:
    """A hook stores what is retained, and may wait."""
    await core.router.retain(message, owned=True)
    _let_go(core, client, session, packet_id, message, before, False)


def _let_go(
    core: Core,
    client: Client,
    session: Session,
    packet_id: int,
    message: Message,
    before: int,
    expired: bool,
) -> None:
    """Route *message*, which nobody holds any more, and answer; *before* is from when PUBREL came."""
    session.let_go(packet_id)
    if expired:  # the flow goes on, the message does not [MQTT-4.3.3-13]
        if (message.expires_at or 0.0) > NEVER_ROUTED / 2:  # what a hook has seen to was counted at PUBLISH
            core.dropped(client.client_id, message, "expired")
    else:
        _route_held(core, message, core.journal.promise(before, message.topic_name))
    if client.extra.receiving is not None:
        client.extra.receiving.discard(packet_id)
    client.acknowledge(PUBCOMP, packet_id, core.journal.promise(before, message.topic_name))
    client.resume_feed()


def _route_held(core: Core, message: Message, after: int) -> None:
    """Nobody sees *message* before the store knows that it is held no more.

    Else a crash would make the client repeat its PUBREL, and us route the message once more.
    """
    core.journal.gate = after
    try:
        core.router.route(message)
    finally:
        core.journal.gate = 0


def handle_pubcomp(core: Core, client: Client, packet: Pubcomp) -> None:
    """PUBCOMP: the QoS 2 message is done. Unknown: ignored."""
    assert client.session is not None
    delivery = client.session.acknowledge(packet.packet_id, PacketType.PUBCOMP, packet.reason_code)
    if delivery is not None and core.hooks.hears_acknowledged:
        core.hooks.on_acknowledged(client.client_id, delivery.message, 2, packet.reason_code)
    client.resume_feed()


def _answer_unknown(
    core: Core, client: Client, answer: type[Pubrel] | type[Pubcomp], packet_id: int, first_byte: int
) -> None:
    """Nobody holds this identifier: 0x92, which 3.x cannot say [MQTT5 3.6.2.1, 3.7.2.1].

    What it stood for may be on its way to the disk, and the answer must not come before it.
    """
    after = core.journal.latest
    if client.version is Version.MQTT_5:
        unknown = MqttError("packet identifier not found", ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
        client.answer(answer(packet_id, unknown.reason, client.explain(unknown)), after)
    else:
        client.acknowledge(first_byte, packet_id, after)
