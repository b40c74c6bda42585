"""SUBSCRIBE and UNSUBSCRIBE, and the retained messages that a SUBSCRIBE brings [MQTT5 3.8.4, 3.10.4]."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain

from broker.client import Client, Phase
from broker.core import Core
from broker.errors import (
    ImplementationSpecificError,
    MqttError,
    PacketIdentifierInUse,
    ProtocolError,
    QuotaExceeded,
    ReasonCode,
    SharedSubscriptionsNotSupported,
    StoreUnavailable,
    SubscriptionIdentifiersNotSupported,
    TopicFilterInvalid,
    WildcardSubscriptionsNotSupported,
)
from broker.handle.publish import check_user_properties
from broker.outbound import FEED, LEAST_FEED
from broker.packet.enums import Version
from broker.packet.message import Retained, as_message, retained_packets
from broker.packet.packets import NO_PROPERTIES, Suback, Subscribe, SubscribeRequest, Unsuback, Unsubscribe
from broker.session.session import Session
from broker.topic.name import check_topic_filter, has_wildcard, levels, split_share
from broker.topic.subscription import Subscription, footprint

log = logging.getLogger("broker.client")

SUBACK_FAILURES = frozenset({0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2})
UNSUBACK_FAILURES = frozenset({0x80, 0x83, 0x87, 0x8F, 0x91})
AT_ONCE = 256  # retained messages that a SUBSCRIBE sends before anything else may come between
SEARCH = 16  # what a stretch of the search costs, in messages
TOGETHER = 4  # so many messages that are sent in one piece cost as much as one alone
READY = 8  # so many of those that are kept as the packet that is sent
PIECE = 64 * 1024  # bytes of payload in such a piece, at most


async def handle_subscribe(core: Core, client: Client, packet: Subscribe) -> None:
    """SUBSCRIBE: one Reason Code a filter, in order; then the retained messages, filter by filter.

    All filters are decided, which may wait, before the first subscription is made: SUBACK, retained and
    live messages then follow each other.
    """
    session = client.session
    assert session is not None
    _check_subscribe(core, client, packet)
    decided = await _decide(core, client, session, packet)
    before = core.journal.changes
    codes: list[int] = []
    granted: list[tuple[Subscription, bool]] = []
    for request, subscription in zip(packet.requests, decided, strict=True):
        if isinstance(subscription, MqttError):
            codes.append(_refused_code(core, client, request, subscription))
        else:
            granted.append((subscription, _subscribe(core, client, session, subscription)))
            codes.append(subscription.qos)
    _tell_subscribed(core, client, packet, decided, codes)
    refused = next((error for error in decided if isinstance(error, MqttError)), None)
    client.cork(core.journal.promise(before))
    client.send(Suback(packet.packet_id, codes, client.explain(refused) if refused else NO_PROPERTIES))
    found = [await _retained_for(core, session, *grant) for grant in granted]
    left = AT_ONCE
    for (subscription, _), messages in zip(granted, found, strict=True):
        left = _send_retained(core, client, session, subscription, messages, left)


def _tell_subscribed(
    core: Core,
    client: Client,
    packet: Subscribe,
    decided: Sequence[Subscription | MqttError],
    codes: Sequence[int],
) -> None:
    if not core.hooks.hears_subscribed:
        return
    identifier = packet.properties.get("subscription_identifier", 0)
    for request, held, code in zip(packet.requests, decided, codes, strict=True):
        if isinstance(held, Subscription):
            request = SubscribeRequest(
                held.topic_filter, held.qos, held.no_local, held.retain_as_published, held.retain_handling
            )
        core.hooks.on_subscribed(client.info, request, code, identifier)


def _subscribe(core: Core, client: Client, session: Session, subscription: Subscription) -> bool:
    """Whether *subscription* takes the place of one with the same filter."""
    client.end_feed(subscription.topic_filter)
    session.subscribe(subscription)
    return core.tree.subscribe(session, subscription)


async def _decide(
    core: Core, client: Client, session: Session, packet: Subscribe
) -> list[Subscription | MqttError]:
    """What is granted, or why not, for each filter of *packet*."""
    of_all = _identifier_in_use(client, session, packet.packet_id) or _too_many(core, packet.requests)
    decided: list[Subscription | MqttError] = []
    filters, cost = set(session.subscriptions), 0
    for request in packet.requests:
        try:
            if of_all is not None:
                raise of_all
            if session.state is not None:
                core.journal.check()
            subscription = await _allow(core, client, filters, packet, request)
            if subscription.topic_filter not in filters:
                cost = _check_budget(core, session, cost, subscription.topic_filter)
        except MqttError as refusal:
            _check_transient(client, refusal)
            decided.append(refusal)
        else:
            filters.add(subscription.topic_filter)
            decided.append(subscription)
    return decided


def _check_budget(core: Core, session: Session, cost: int, topic_filter: str) -> int:
    """What the new filters of a packet take: *cost*, and *topic_filter* too. Raises QuotaExceeded."""
    cost += footprint(topic_filter, session.terms.overhead)
    if not core.budget.has(cost):
        raise QuotaExceeded("the byte budget of the broker is spent")
    return cost


async def check_subscriptions_again(core: Core, client: Client) -> None:
    """Ask the hooks once more about each subscription; those refused now are removed [B24]."""
    session = client.session
    assert session is not None
    for topic_filter, held in tuple(session.subscriptions.items()):
        request = SubscribeRequest(
            topic_filter, held.qos, held.no_local, held.retain_as_published, held.retain_handling
        )
        try:
            await core.hooks.on_subscribe(client.info, request)
        except MqttError as refusal:
            log.info("subscription %r of %r removed: %s", topic_filter, client.client_id, refusal)
            _remove(core, client, session, topic_filter)


def _check_subscribe(core: Core, client: Client, packet: Subscribe) -> None:
    """What makes the whole packet a breach; nothing of it takes effect then."""
    limits = core.config.limits
    check_user_properties(core, packet.properties)
    for request in packet.requests:
        check_topic_filter(request.topic_filter)
        shared = request.topic_filter.startswith("$share/")
        if shared and request.no_local:
            raise ProtocolError("No Local on a Shared Subscription")
        if client.version is not Version.MQTT_5:
            continue  # could not be told what is available: refused filter by filter
        if shared and not limits.shared_subscription_available:
            raise SharedSubscriptionsNotSupported(request.topic_filter)
        if has_wildcard(request.topic_filter) and not limits.wildcard_subscription_available:
            raise WildcardSubscriptionsNotSupported(request.topic_filter)
    if "subscription_identifier" in packet.properties and not limits.subscription_identifier_available:
        raise SubscriptionIdentifiersNotSupported("Subscription Identifier")


def _identifier_in_use(client: Client, session: Session, packet_id: int) -> MqttError | None:
    """A QoS 2 PUBLISH of the client holds *packet_id* [B09]."""
    if packet_id not in session.inflight.held:
        return None
    if client.version is not Version.MQTT_5:
        raise ProtocolError(f"identifier {packet_id} is held by a QoS 2 message")
    return PacketIdentifierInUse(f"identifier {packet_id} is held by a QoS 2 message")


def _check_transient(client: Client, refusal: MqttError) -> None:
    """We failed, and 3.x has no way to hear of it but the end of its connection [MQTT-4.8.0-2]."""
    if isinstance(refusal, ImplementationSpecificError) and client.version is not Version.MQTT_5:
        raise refusal


def _too_many(core: Core, filters: Sequence[object]) -> MqttError | None:
    most = core.config.limits.maximum_filters
    return QuotaExceeded(f"more than {most} filters in one packet") if len(filters) > most else None


async def _allow(
    core: Core, client: Client, filters: set[str], packet: Subscribe, request: SubscribeRequest
) -> Subscription:
    """The subscription that is granted for *request*; raises MqttError with its code for SUBACK.

    *filters* are those that the session has, counting the ones granted by this packet.
    """
    limits = core.config.limits
    if core.hooks.look:
        request = await core.hooks.on_subscribe(client.info, request)
    share_name = _check_filter(core, client, request.topic_filter)
    if request.topic_filter not in filters and len(filters) >= limits.maximum_subscriptions:
        raise QuotaExceeded(f"{limits.maximum_subscriptions} subscriptions in this session")
    identifier = packet.properties.get("subscription_identifier")
    return Subscription(
        request.topic_filter,
        min(request.qos, limits.maximum_qos),
        request.no_local or (client.asked.bridge and not share_name),
        request.retain_as_published or client.asked.bridge,
        request.retain_handling,
        (identifier,) if identifier else (),
        share_name,
    )


def _check_filter(core: Core, client: Client, topic_filter: str) -> str:
    """The Share Name of a filter that is accepted here; raises MqttError."""
    limits = core.config.limits
    check_topic_filter(topic_filter)  # a hook may have changed it
    share_name, bare = split_share(topic_filter)
    if client.version is not Version.MQTT_5:
        if share_name and not (
            limits.shared_subscription_available and core.config.protocol.shared_subscriptions_3x
        ):
            raise SharedSubscriptionsNotSupported(topic_filter)
        if has_wildcard(bare) and not limits.wildcard_subscription_available:
            raise WildcardSubscriptionsNotSupported(topic_filter)
    if levels(bare) > limits.maximum_topic_levels:
        raise TopicFilterInvalid(f"more than {limits.maximum_topic_levels} topic levels")
    if len(topic_filter.encode()) > limits.maximum_topic_bytes:
        raise TopicFilterInvalid(f"longer than {limits.maximum_topic_bytes} bytes")
    return share_name


def _refused_code(core: Core, client: Client, request: SubscribeRequest, refusal: MqttError) -> int:
    """MQTT 3.1 has no failure in SUBACK: there a refused filter looks granted and is never delivered."""
    if client.version is not Version.MQTT_3_1:
        return _code(refusal, SUBACK_FAILURES)
    if core.config.protocol.refused_filter_3_1 == "close":
        raise refusal
    log.warning("filter %r of %r refused: %s", request.topic_filter, client.client_id, refusal)
    return request.qos


def _code(refusal: MqttError, allowed: frozenset[int]) -> int:
    return refusal.reason if refusal.reason in allowed else ReasonCode.UNSPECIFIED_ERROR


# ---- retained messages


async def _retained_for(
    core: Core, session: Session, subscription: Subscription, existed: bool
) -> Iterator[list[Retained]]:
    """The retained messages that this SUBSCRIBE brings, by Retain Handling [MQTT-3.3.1-9 to -11]."""
    handling = subscription.retain_handling
    if subscription.share_name or handling == 2 or (handling == 1 and existed):
        return iter(())
    found = await core.router.find_retained(subscription.topic_filter)
    if subscription.topic_filter.startswith("$SYS"):
        return chain((list(core.sys_messages(subscription.topic_filter)),), found)
    return found


def _send_retained(
    core: Core,
    client: Client,
    session: Session,
    subscription: Subscription,
    messages: Iterator[list[Retained]],
    left: int,
) -> int:
    """A first part at once, so that retained comes before live; a long rest as the client takes it.

    *left* is what the whole SUBSCRIBE may still cost at once; gives what of it is left then.
    """
    steps = _steps(core, client, session, subscription, messages)
    while left > 0 and not client.feeding and not client.blocked:
        cost = next(steps, None)
        if cost is None:
            return left
        if cost == 0:
            break
        left -= cost
    client.feed(subscription.topic_filter, steps)
    return left


def _steps(
    core: Core, client: Client, session: Session, subscription: Subscription, found: Iterator[list[Retained]]
) -> Iterator[int]:
    """Send a few messages a step, and give what that cost; 0: the client must take something first.

    One by one, 30,000 small messages cost 3.8 us each, with their search; those that go together 0.9, and 0.4
    if they are kept as packets (QoS 0, `#`; CPython 3.11, 2 cores).
    """
    for stretch in found:
        cost, fresh = SEARCH, True
        while stretch:
            if not _is_wanted(client, session, subscription):
                return
            most = TOGETHER * max(LEAST_FEED, FEED // (core.stats.feeding or 1))
            part, stretch = stretch[:most], stretch[most:]
            if not fresh:
                part = core.router.still_retained(part)
            alone, taken = _send_together(core, client, subscription, part)
            cost += taken
            if cost:
                yield cost
            for retained in alone:
                yield from _send_alone(core, client, session, subscription, retained)
            cost, fresh = 0, False
        if cost:
            yield cost


def _is_wanted(client: Client, session: Session, subscription: Subscription) -> bool:
    """Whether *client* is still the one that subscribed, and subscribed still."""
    return session.link is client and subscription.topic_filter in session.subscriptions


def _send_together(
    core: Core, client: Client, subscription: Subscription, part: list[Retained]
) -> tuple[list[Retained], int]:
    """Those of *part* with QoS 0 that nobody else has to look at, in one piece; the others, and the cost."""
    own_bytes = client.extra.outbound_aliases is not None or client.asked.maximum_packet_size is not None
    looked_at = core.hooks.inspects_delivery or core.hooks.hears_delivered
    careful = own_bytes or subscription.identifiers or looked_at
    if careful or client.blocked or client.full or client.phase is not Phase.CONNECTED:
        return part, 0
    ready = _ready(subscription, part)
    together, alone = (part, []) if ready else _fit_together(client, subscription, part)
    if not together:
        return alone, 0
    core.stats.publish_sent += len(together)
    client.count_sent(len(together))
    client.put(retained_packets(together, client.version), len(together))
    return alone, 1 + len(together) // (READY if ready and client.version is not Version.MQTT_5 else TOGETHER)


def _ready(subscription: Subscription, part: list[Retained]) -> bool:
    """Whether nothing is to be decided for any of *part*: 0.4 us a message less."""
    plain = [len(message[0]) for message in part if isinstance(message, tuple)]
    return len(plain) == len(part) and sum(plain) <= PIECE and not subscription.no_local


def _fit_together(
    client: Client, subscription: Subscription, part: list[Retained]
) -> tuple[list[Retained], list[Retained]]:
    """*part*, divided: what can be sent in one piece, and the others."""
    together: list[Retained] = []
    alone: list[Retained] = []
    left = PIECE
    for retained in part:
        message = as_message(retained)
        own = subscription.no_local and message.client_id == client.client_id
        left -= len(message.payload)
        if own or left < 0 or message.expires_at is not None or (message.qos and subscription.qos):
            alone.append(retained)
        else:
            together.append(retained)
    return together, alone


def _send_alone(
    core: Core, client: Client, session: Session, subscription: Subscription, retained: Retained
) -> Iterator[int]:
    """The steps of one message."""
    message = as_message(retained)
    qos = min(message.qos, subscription.qos)
    while session.link is client and (client.full or session.must_wait(message, qos)):
        yield 0
    own = subscription.no_local and message.client_id == session.client_id
    if own or not _is_wanted(client, session, subscription) or not core.router.still_retained([retained]):
        return
    if message.expires_at is None or message.expires_at > core.clock():
        allowed = core.router.inspected(session.client_id, message)
        if allowed is not None:
            session.deliver_retained(allowed, subscription.qos, subscription.identifiers)
    yield 1


# ---- UNSUBSCRIBE


async def handle_unsubscribe(core: Core, client: Client, packet: Unsubscribe) -> None:
    """UNSUBSCRIBE: from UNSUBACK on nothing new is matched; what was sent is completed [MQTT5 3.10.4]."""
    session = client.session
    assert session is not None
    check_user_properties(core, packet.properties)
    for topic_filter in packet.topic_filters:
        check_topic_filter(topic_filter)
    of_all = _identifier_in_use(client, session, packet.packet_id) or _too_many(core, packet.topic_filters)
    codes: list[int] = []
    refused = of_all
    before = core.journal.changes
    for topic_filter in packet.topic_filters:
        try:
            if of_all is not None:
                raise of_all
            if session.state is not None:
                core.journal.check()
            codes.append(await _unsubscribe(core, client, session, topic_filter))
        except MqttError as refusal:
            _check_transient(client, refusal)
            if isinstance(refusal, StoreUnavailable) and client.version is not Version.MQTT_5:
                raise  # its UNSUBACK could not tell
            refused = refused or refusal
            codes.append(_code(refusal, UNSUBACK_FAILURES))
    if core.hooks.look:
        for topic_filter, code in zip(packet.topic_filters, codes, strict=True):
            core.hooks.on_unsubscribed(client.info, topic_filter, code)
    properties = client.explain(refused) if refused else NO_PROPERTIES
    if session.state is not None:  # others may have changed something while hooks waited
        client.cork(core.journal.promise(before))
    client.send(Unsuback(packet.packet_id, codes, properties))


async def _unsubscribe(core: Core, client: Client, session: Session, topic_filter: str) -> int:
    try:
        if core.hooks.look:
            await core.hooks.on_unsubscribe(client.info, topic_filter)
    except MqttError as refusal:
        failed = isinstance(refusal, ImplementationSpecificError)
        if failed or client.version is Version.MQTT_5:
            raise  # 3.x could not be told: the subscription goes [B26]
    return (
        ReasonCode.SUCCESS
        if _remove(core, client, session, topic_filter)
        else ReasonCode.NO_SUBSCRIPTION_EXISTED
    )


def _remove(core: Core, client: Client, session: Session, topic_filter: str) -> bool:
    """End a subscription; what a shared one had queued here goes to other members [B15]."""
    if not session.unsubscribe(topic_filter):
        return False
    core.tree.unsubscribe(session, topic_filter)
    client.end_feed(topic_filter)
    if topic_filter.startswith("$share/"):
        core.router.hand_on(session, session.take_shared(topic_filter))
    return True
