"""Router: a Message to every Subscriber; retained messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from broker.errors import MqttError, ReasonCode
from broker.hook.hooks import Hooks
from broker.packet.message import Message, Retained
from broker.store.base import RetainedStore
from broker.topic.shared import Choice, SharedGroup
from broker.topic.subscription import Subscriber, Subscription
from broker.topic.tree import SubscriptionTree

Dropped = Callable[[str, Message | None, str], None]


class Router:
    """Knows who gets a message, not how it gets there: a Subscriber's `deliver` is all it calls."""

    def __init__(
        self,
        tree: SubscriptionTree[Any],
        retained: RetainedStore,
        hooks: Hooks,
        clock: Callable[[], float],
        dropped: Dropped,
        shared_choice: Choice = "round_robin",
    ) -> None:
        self.tree = tree
        self.retained = retained
        self._hooks = hooks
        self._clock = clock
        self._dropped = dropped
        self._choice: Choice = shared_choice
        self._inspects = hooks.inspects_delivery

    def route(self, message: Message) -> bool:
        """Hand *message* to every matching subscriber [MQTT5 3.3.4]; False when there was none.

        A plain call: when it returns, the message is in every session. Cost: one dictionary look-up
        for a topic seen before, and one `deliver` a subscriber.
        """
        topic_name = message.topic_name
        route = self.tree.routes.get(topic_name)
        if route is None:
            route = self.tree.match(topic_name)
        inspects = self._inspects
        for subscription in route.direct:
            subscriber = subscription.subscriber
            if subscription.options.no_local and subscriber.client_id == message.client_id:
                self._deliver_own(subscriber, message, subscription.own)
            elif inspects:
                self._inspect(subscriber, message, subscription)
            else:
                subscriber.deliver(message, subscription)
        for group in route.groups:
            chosen = group.choose(message, None, self._choice, message.client_id)
            self._deliver_shared(chosen, message)
        if message.qos:
            message.forget_frames()
        return bool(route.direct or route.groups)

    def _deliver_own(self, subscriber: Subscriber, message: Message, own: Subscription | None) -> None:
        """To its own publisher: what No Local leaves of the subscription [MQTT-3.8.3-3]."""
        if own is not None:
            self._inspect(subscriber, message, own)

    def _deliver_shared(self, chosen: tuple[Any, Subscription] | None, message: Message) -> None:
        if chosen is None:
            self._dropped("", message, "no_shared_member")
        elif self._inspects:
            self._inspect(chosen[0], message, chosen[1])
        else:
            chosen[0].deliver(message, chosen[1])

    def _inspect(self, subscriber: Subscriber, message: Message, subscription: Subscription) -> None:
        """Deliver what the hooks make of *message*, if they allow it at all."""
        allowed = self.inspected(subscriber.client_id, message)
        if allowed is not None:
            subscriber.deliver(allowed, subscription)

    def inspected(self, client_id: str, message: Message) -> Message | None:
        """What `can_read` and `on_publish_deliver` leave of *message* for this client; None: nothing."""
        if not self._inspects:
            return message
        hooks = self._hooks
        if hooks.checks_delivery and not hooks.can_read(client_id, message.topic_name):
            self._dropped(client_id, message, "not_authorized")
            return None
        if not hooks.changes_delivery:
            return message
        changed = hooks.on_publish_deliver(client_id, message)
        if changed is None:
            self._dropped(client_id, message, "hook_failed")
        elif changed is not message:
            changed.original = message
        return changed

    def matches(self, topic_name: str) -> bool:
        """Whether any subscription matches *topic_name*."""
        route = self.tree.match(topic_name)
        return bool(route.direct or route.groups)

    def hand_on(self, leaver: Subscriber, deliveries: Iterable[Any]) -> None:
        """Give shared messages that *leaver* will not complete to other members [MQTT5 4.8.2].

        *deliveries* have `message` and `share`, the full filter of the group. Nobody to take one: dropped.
        """
        for delivery in deliveries:
            message = delivery.message.original or delivery.message
            group = self.tree.group(delivery.share)
            chosen = group.choose(message, leaver) if group is not None else None
            if message.expires_at is not None and message.expires_at <= self._clock():
                self._dropped(leaver.client_id, message, "expired")
            elif chosen is not None:
                self._inspect(chosen[0], message, chosen[1])
            else:
                self._give_back(leaver, delivery.message, group)

    def _give_back(self, leaver: Subscriber, message: Message, group: SharedGroup[Any] | None) -> None:
        """Nobody else can take it: *leaver* keeps it if it is a member still."""
        mine = next((pair for pair in group if pair[0] is leaver), None) if group is not None else None
        if mine is None:
            self._dropped(leaver.client_id, message, "no_shared_member")
        else:
            leaver.deliver(message, mine[1])

    # ---- retained messages

    async def publish(self, message: Message) -> bool:
        """Store *message* if RETAIN is set, then route it. Raises MqttError when it cannot be stored."""
        if message.retain:
            await self.retain(message)
        return self.route(message)

    async def retain(self, message: Message, *, owned: bool = False) -> None:
        """Store, replace or delete the retained message of its topic [MQTT5 3.3.1.3].

        Raises MqttError when it cannot be stored; *owned* ones go above the limits of the built-in store.
        """
        if self._hooks.stores_retained:
            await self._hooks.store_retained(message)
        else:
            self.retain_now(message, owned=owned)

    def retain_now(self, message: Message, *, owned: bool = False) -> None:
        """As `retain`, in the built-in store, which never waits. Not while a hook stores them."""
        expired = message.expires_at is not None and message.expires_at <= self._clock()
        if not message.payload or expired:
            self.retained.delete(message.topic_name)
        else:
            self.retained.put(message, owned=owned)

    async def publish_owned(self, message: Message) -> None:
        """Like `publish`, for a message that nobody can be told a refusal of: a will, `broker.publish`."""
        try:
            await self.publish(message)
        except MqttError as error:
            full = error.reason == ReasonCode.QUOTA_EXCEEDED
            self._dropped(message.client_id, message, "retained_full" if full else "retained_failed")
            self.route(message)

    async def find_retained(self, topic_filter: str) -> Iterator[list[Retained]]:
        """The retained messages that match and have not expired; see RetainedStore.stretches."""
        now = self._clock()
        if not self._hooks.keeps_retained:
            return self.retained.stretches(topic_filter, now)
        found = await self._hooks.get_retained(topic_filter)
        return iter([[m for m in found if m.expires_at is None or m.expires_at > now]])

    def still_retained(self, messages: list[Retained]) -> list[Retained]:
        """Those of *messages* that nobody replaced or deleted since they were found; $SYS is not stored."""
        if self._hooks.keeps_retained:
            return messages
        return [
            message
            for message in messages
            if (isinstance(message, Message) and not message.retain) or self.retained.is_current(message)
        ]
