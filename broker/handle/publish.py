"""PUBLISH from a client [MQTT5 3.3.4]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from broker.client import Client
from broker.core import Core
from broker.errors import (
    AcknowledgeOnly,
    MqttError,
    PacketIdentifierInUse,
    PayloadFormatInvalid,
    ProtocolError,
    QosNotSupported,
    QuotaExceeded,
    ReasonCode,
    ReceiveMaximumExceeded,
    RetainNotSupported,
    TopicAliasInvalid,
    TopicNameInvalid,
)
from broker.hook.base import ClientInfo, Hold
from broker.outbound import Held
from broker.packet.codec import fit
from broker.packet.enums import QoS, Version
from broker.packet.message import NEVER_ROUTED, Message
from broker.packet.packets import NO_PROPERTIES, Properties, PropertyBlock, Puback, Publish, Pubrec
from broker.packet.properties import copied
from broker.session.alias import InboundAliases
from broker.session.session import Session
from broker.topic.name import levels

PUBACK: Final = 0x40  # first bytes
PUBREC: Final = 0x50
# What PUBACK and PUBREC may say besides success [MQTT5 3.4.2.1, 3.5.2.1].
REFUSALS: Final = frozenset({0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
# Another try may succeed: a 3.x connection is closed and the client comes back [MQTT-4.8.0-2].
TRANSIENT: Final = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


def handle_publish(core: Core, client: Client, packet: Publish) -> Awaitable[None] | None:
    """PUBLISH: check, allow, transform, hand over, acknowledge. An awaitable only where a hook has to wait.

    A plain function, as what follows: without hooks that wait a message costs no coroutine.
    """
    session = client.session
    assert session is not None
    core.stats.publish_received += 1
    client.count_published()
    judged = client.extra.judged
    asked = judged.popleft() if judged else None  # the fast lane has asked about it already
    limits, topic_name, qos = core.config.limits, packet.topic_name, packet.qos
    block = packet.block
    if block is not None and not block.is_plain:
        topic_name = _resolve_topic(core, client, packet, block)
        check_user_properties(core, block.properties)
    if packet.retain or qos > limits.maximum_qos:
        _check_capability(core, client, packet)
    if qos:
        receiving, inflight = client.extra.receiving, session.inflight
        # What came in runs is in `receiving` as well: they need not be told apart for each packet.
        here = packet.packet_id in inflight.singles or (receiving and packet.packet_id in receiving)
        if here and packet.packet_id in inflight.held:
            _repeated(core, client, packet)
            return None
        if receiving:
            _count_received(core, client, receiving)
    if asked is not None:
        message = asked[0]
    elif block is None and not limits.message_expiry_interval and not packet.retain:
        message = Message(topic_name, packet.payload, qos, False, NO_PROPERTIES, client.client_id)
    else:
        message = _message(core, client, packet, topic_name)
    try:
        if topic_name not in core.tree.routes or topic_name[0] == "$":
            check_publish_topic(core, topic_name)
        if block is not None and not block.is_plain:
            _check_payload(core, message)
        if core.hooks.judges_publish:
            if core.hooks.verdicts is not None:
                core.hooks.verdicts.check(client.info, topic_name)
            if core.hooks.inspects_publish:
                found = core.hooks.inspect_publish(client.info, message) if asked is None else asked[1]
                if isinstance(found, MqttError):
                    raise found
                if not isinstance(found, Message):
                    return _wait_for_hook(core, client, session, packet, message, found)
                message = found
    except MqttError as refusal:
        refuse_publish(core, client, packet, message, refusal)
        return None
    if qos or message.retain or core.hooks.accepts or core.hooks.hears_taken:
        return _accept(core, client, session, packet, message)
    core.router.route(message)  # nothing to store, nothing to acknowledge
    return None


async def _wait_for_hook(
    core: Core, client: Client, session: Session, packet: Publish, message: Message, found: Awaitable[Message]
) -> None:
    """A hook waits before it lets *message* pass, or another one in its place."""
    try:
        allowed = await found
    except MqttError as refusal:
        return refuse_publish(core, client, packet, message, refusal)
    waits = _accept(core, client, session, packet, allowed)
    if waits is not None:
        await waits
    return None


def _accept(
    core: Core, client: Client, session: Session, packet: Publish, message: Message
) -> Awaitable[None] | None:
    """Nobody has anything against *message*: store it, if that is asked for, and hand it over."""
    qos, journal = packet.qos, core.journal
    before = journal.changes
    if core.hooks.accepts and not _is_accepted(core, client, packet, message):
        return None
    try:
        if journal.failure is not None and qos:
            check_store(core, message, qos == QoS.EXACTLY_ONCE and session.state is not None)
        if qos == QoS.EXACTLY_ONCE:
            return _hold(core, client, session, packet, message)
        if message.retain and core.hooks.stores_retained:
            return _store_by_hook(core, client, packet, message, before)
        held = _tell_taken(core, client, packet, message) if core.hooks.hears_taken else None
        if message.retain:
            core.router.retain_now(message)
    except MqttError as refusal:
        _take_back(core, client, packet, message, refusal)
        return None
    return _hand_over(core, client, packet, message, before, held)


def _tell_taken(core: Core, client: Client, packet: Publish, message: Message) -> Hold | None:
    """Hooks hear of *message*, which nothing else stands in the way of. Raises MqttError, too."""
    if message.retain and message.payload and not core.hooks.stores_retained:
        core.retained.check(message)
    return core.hooks.on_taken(client.info, message, packet.dup, "client")


async def _wait_to_read(reading: asyncio.Future[None]) -> None:
    """Nothing more of this client is read until *reading* is done; others wait for it, too."""
    await asyncio.wait([reading])


def _is_accepted(core: Core, client: Client, packet: Publish, message: Message) -> bool:
    """The last word of hooks; if it is no, the client has its answer."""
    try:
        core.hooks.on_accepted(client.info, message)
    except MqttError as refusal:
        refuse_publish(core, client, packet, message, refusal)
        return False
    return True


def _take_back(core: Core, client: Client, packet: Publish, message: Message, refusal: MqttError) -> None:
    """Refuse *message*, which hooks were told is accepted."""
    core.hooks.on_taken_back(client.info, message)
    refuse_publish(core, client, packet, message, refusal)


async def _store_by_hook(core: Core, client: Client, packet: Publish, message: Message, before: int) -> None:
    """A hook stores what is retained, and may wait."""
    held = None
    try:
        await core.router.retain(message)
        if core.hooks.hears_taken:
            held = _tell_taken(core, client, packet, message)
    except MqttError as refusal:
        return _take_back(core, client, packet, message, refusal)
    waits = _hand_over(core, client, packet, message, before, held)
    if waits is not None:
        await waits
    return None


def _hand_over(
    core: Core, client: Client, packet: Publish, message: Message, before: int, held: Hold | None
) -> Awaitable[None] | None:
    """Route, then acknowledge: that is a promise, and waits for what was stored since *before*.

    It waits for what hooks have *held* as well.
    """
    matched = core.router.route(message)
    if packet.qos:
        journal = core.journal
        after = journal.promise(before, message.topic_name) if journal.changes != before else 0
        if held is None and (matched or client.version is not Version.MQTT_5):  # as below, but sooner
            client.acknowledge(PUBACK, packet.packet_id, after, message)
            return None
        until = None if held is None else held.acknowledgement
        _acknowledge(client, packet.packet_id, matched, *_in_turn(after, until, message))
    return None if held is None or held.reading is None else _wait_to_read(held.reading)


def check_store(core: Core, message: Message, held: bool = False) -> None:
    """The store cannot be written: raises StoreUnavailable if it would have to keep *message*.

    *held* says that the publisher's own session must, until its PUBREL.
    """
    route = core.tree.match(message.topic_name)
    members = (subscription for group in route.groups for _, subscription in group)
    durable = any(getattr(each.subscriber, "state", None) is not None for each in (*route.direct, *members))
    if held or durable or (message.retain and not core.hooks.stores_retained):
        core.journal.check()


async def inspected(core: Core, info: ClientInfo, message: Message) -> Message:
    """What the hooks make of *message*, a will, if they allow it; a MqttError refuses it."""
    if core.hooks.verdicts is not None:
        core.hooks.verdicts.ask(info, message.topic_name)
    found = core.hooks.inspect_publish(info, message)
    return found if isinstance(found, Message) else await found


def _resolve_topic(core: Core, client: Client, packet: Publish, block: PropertyBlock) -> str:
    if not block.topic_alias:
        return packet.topic_name
    most, extra = core.config.limits.topic_alias_maximum, client.own()
    if not most:
        raise TopicAliasInvalid("Topic Alias Maximum is 0")
    if extra.aliases is None:
        extra.aliases = InboundAliases(most, core.budget)
    return str(extra.aliases.resolve(packet))


def _check_capability(core: Core, client: Client, packet: Publish) -> None:
    """What CONNACK announced [MQTT5 3.2.2.3]; 3.x clients, which cannot be told, may set RETAIN in vain."""
    limits = core.config.limits
    if packet.qos > limits.maximum_qos:
        raise QosNotSupported(f"QoS {packet.qos}")
    if packet.retain and not limits.retain_available and client.version is Version.MQTT_5:
        raise RetainNotSupported("RETAIN 1")


def check_user_properties(core: Core, properties: Properties) -> None:
    """Raises QuotaExceeded above the number allowed in one packet."""
    most = core.config.limits.maximum_user_properties
    if len(properties.get("user_property", ())) > most:
        raise QuotaExceeded(f"more than {most} User Properties")


def _repeated(core: Core, client: Client, packet: Publish) -> None:
    """An identifier that a QoS 2 message holds until its PUBREL [MQTT-4.3.3-10]."""
    if packet.qos == QoS.EXACTLY_ONCE:
        _receive(client, packet.packet_id)
        after, held = core.journal.latest, core.hooks.still_held()  # it may not be stored yet
        client.acknowledge(PUBREC, packet.packet_id, *_in_turn(after, held, None))
    elif client.version is Version.MQTT_5:
        in_use = PacketIdentifierInUse(f"identifier {packet.packet_id} is held by a QoS 2 message")
        client.answer(Puback(packet.packet_id, in_use.reason, client.explain(in_use)), 0)
    else:
        raise ProtocolError(f"identifier {packet.packet_id} is held by a QoS 2 message")


def _receive(client: Client, packet_id: int) -> None:
    """It counts against the Receive Maximum of this connection, from now to its PUBCOMP."""
    extra = client.own()
    if extra.receiving is None:
        extra.receiving = set()
    extra.receiving.add(packet_id)


def _count_received(core: Core, client: Client, receiving: set[int]) -> None:
    """Receive Maximum of this connection [MQTT-3.3.4-7]; QoS 1 is answered before the next is read."""
    if client.version is Version.MQTT_5 and len(receiving) >= core.config.limits.receive_maximum:
        raise ReceiveMaximumExceeded(f"{len(receiving) + 1} unacknowledged PUBLISH packets")


def _message(core: Core, client: Client, packet: Publish, topic_name: str) -> Message:
    block, limits = packet.block, core.config.limits
    most, retain = limits.message_expiry_interval, packet.retain and limits.retain_available
    properties = NO_PROPERTIES if block is None else copied(block)
    message = Message(topic_name, packet.payload, packet.qos, retain, properties, client.client_id)
    if block is not None:
        message.block = block
        if block.expiry is not None and not most:
            message.expire_after(block.expiry, core.clock())
    if most:
        set_expiry(message, most, core.clock())
    return message


def set_expiry(message: Message, most: int, now: float) -> None:
    """Its deadline, counted from *now*; *most* caps the interval in seconds, 0: no cap [B16]."""
    interval = message.properties.get("message_expiry_interval")
    if most and (interval is None or interval > most):
        interval = most
        message.properties = {**message.properties, "message_expiry_interval": most}
    if interval is not None:
        message.expires_at = now + interval


def check_publish_topic(core: Core, topic_name: str) -> None:
    """A valid Topic Name that is not accepted here all the same: TopicNameInvalid [B20, B21]."""
    limits = core.config.limits
    if topic_name[0] == "$" and not topic_name.startswith(core.config.protocol.dollar_topics or ("\0",)):
        raise TopicNameInvalid("topics that begin with $ are the server's")
    if levels(topic_name) > limits.maximum_topic_levels:
        raise TopicNameInvalid(f"more than {limits.maximum_topic_levels} topic levels")
    most = limits.maximum_topic_bytes
    if 4 * len(topic_name) > most and (len(topic_name) > most or len(topic_name.encode()) > most):
        raise TopicNameInvalid(f"longer than {most} bytes")


def _check_payload(core: Core, message: Message) -> None:
    if not message.properties or not core.config.protocol.validate_payload_format:
        return
    if message.properties.get("payload_format_indicator") == 1 and not is_utf8(message.payload):
        raise PayloadFormatInvalid("the payload is not UTF-8")


def is_utf8(payload: bytes) -> bool:
    """Whether *payload* is well-formed UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _hold(
    core: Core, client: Client, session: Session, packet: Publish, message: Message
) -> Awaitable[None] | None:
    """QoS 2: ours from now on, routed on PUBREL (acks.py) [MQTT5 4.3.3]."""
    if message.retain and message.payload and not core.hooks.stores_retained:
        core.retained.check(message)  # PUBCOMP could not refuse it any more
    before = core.journal.changes
    if not session.hold(packet.packet_id, message):
        raise QuotaExceeded("the byte budget of the broker is spent")
    held: Hold | None = None
    if message.expires_at == NEVER_ROUTED:
        held = Hold(core.hooks.still_held())
    elif core.hooks.hears_taken:
        try:
            held = core.hooks.on_taken(client.info, message, packet.dup, "client")
        except MqttError:
            session.let_go(packet.packet_id)
            raise
    until = None if held is None else held.acknowledgement
    after, about = _in_turn(core.journal.promise(before, message.topic_name), until, None)
    _receive(client, packet.packet_id)
    if client.version is not Version.MQTT_5 or core.router.matches(message.topic_name):
        client.acknowledge(PUBREC, packet.packet_id, after, about)
    else:
        client.answer(Pubrec(packet.packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS), after, about)
    return None if held is None or held.reading is None else _wait_to_read(held.reading)


def _in_turn(after: int, until: asyncio.Future[None] | None, message: Message | None) -> tuple[int, Any]:
    """What an acknowledgement of *message* waits for: batch *after* and *until*; see Outbound.put_after."""
    return (after, message) if until is None else (after or -1, Held(until, message))


def _acknowledge(client: Client, packet_id: int, matched: bool, after: int, about: Any) -> None:
    if matched or client.version is not Version.MQTT_5:
        client.acknowledge(PUBACK, packet_id, after, about)
    else:
        client.answer(Puback(packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS), after, about)


def refuse_publish(core: Core, client: Client, packet: Publish, message: Message, refusal: MqttError) -> None:
    """PUBACK, PUBREC or silence: decided here alone. Raises *refusal* where the connection must end."""
    if isinstance(refusal, AcknowledgeOnly):
        _acknowledge_only(core, client, packet, message)
        return
    core.dropped(client.client_id, message, "refused")
    if client.version is not Version.MQTT_5:
        _refuse_3(core, client, packet, refusal)
    elif packet.qos == QoS.AT_MOST_ONCE:
        disconnect = core.config.protocol.refused_publish_qos_0 == "disconnect"
        if disconnect or refusal.reason == ReasonCode.PAYLOAD_FORMAT_INVALID:
            raise refusal
    else:
        reason = refusal.reason if refusal.reason in REFUSALS else ReasonCode.UNSPECIFIED_ERROR
        answer = Puback if packet.qos == QoS.AT_LEAST_ONCE else Pubrec
        client.answer(answer(packet.packet_id, reason, client.explain(refusal)), 0)  # in its turn


def _acknowledge_only(core: Core, client: Client, packet: Publish, message: Message) -> None:
    """A hook has seen to *message*. What it is a copy of may not be stored yet: the answer waits for that.

    The flow of QoS 2 goes on to its end, with a message that is never routed.
    """
    core.dropped(client.client_id, message, "not_routed")
    if packet.qos == QoS.AT_LEAST_ONCE:
        after, held = core.journal.latest, core.hooks.still_held()
        client.acknowledge(PUBACK, packet.packet_id, *_in_turn(after, held, None))
    elif packet.qos == QoS.EXACTLY_ONCE and client.session is not None:
        empty = Message(
            message.topic_name, b"", packet.qos, client_id=message.client_id, expires_at=NEVER_ROUTED
        )
        try:
            _hold(core, client, client.session, packet, empty)
        except MqttError as refusal:
            refuse_publish(core, client, packet, empty, refusal)


def not_stored(
    core: Core, client: Client, acknowledgement: bytes, message: Message | None, failure: Exception
) -> bytes | None:
    """The PUBLISH that *acknowledgement* was for could not be stored: it never happened.

    *message* is the one of a PUBACK, which was routed already; what a PUBREC was for is still held. Gives the
    negative acknowledgement; None for 3.x, which has none: the connection is ended.
    """
    assert isinstance(failure, MqttError)
    packet_id = int.from_bytes(acknowledgement[2:4], "big")
    if message is not None:
        core.journal.revoke(message)
    elif client.session is not None:
        message = client.session.let_go(packet_id)
        if client.extra.receiving is not None:
            client.extra.receiving.discard(packet_id)
    if message is not None:
        core.hooks.on_taken_back(client.info, message)
    core.dropped(client.client_id, message, "store_failed")
    if client.version is not Version.MQTT_5:
        client.end(failure)
        return None
    answer = Puback if acknowledgement[0] == PUBACK else Pubrec
    packet = answer(packet_id, failure.reason, client.explain(failure))
    return fit(packet, client.version, client.asked.maximum_packet_size)


def _refuse_3(core: Core, client: Client, packet: Publish, refusal: MqttError) -> None:
    """3.x has no negative acknowledgement: a positive one, or the end [MQTT-3.3.5-2, MQTT-4.8.0-2]."""
    if refusal.reason in TRANSIENT:
        raise refusal  # a transient error: the client may try again
    if refusal.reason == ReasonCode.NOT_AUTHORIZED and core.config.protocol.refused_publish_3x == "close":
        raise refusal
    if packet.qos:
        client.acknowledge(PUBACK if packet.qos == QoS.AT_LEAST_ONCE else PUBREC, packet.packet_id)
