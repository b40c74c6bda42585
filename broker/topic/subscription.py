"""Subscription, how overlapping ones become one, and what a Subscriber is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

from broker.topic.name import has_wildcard

_ORDER = attrgetter("order")


@dataclass(slots=True)
class Subscription:
    """What one SUBSCRIBE asked of one Topic Filter, or several such merged for one message [MQTT5 3.8.3.1].

    Nobody changes one after it was made, except that the tree numbers it (`order`) when it is subscribed.
    """

    topic_filter: str  # as subscribed, with `$share/...`; of a merged one: the filter of one of its parts
    qos: int = 0  # granted
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifiers: tuple[int, ...] = ()  # of a merged one: all, in the order of subscription, repeats included
    share_name: str = ""
    order: int = field(default=0, repr=False, compare=False)  # set by the tree if there are identifiers
    remaining: Subscription | None = field(default=None, repr=False, compare=False)  # see `own`

    @property
    def own(self) -> Subscription | None:
        """What applies to a message its subscriber published itself; None: No Local keeps it away.

        Nothing is stored for the usual case: without No Local it is the subscription itself.
        """
        return self.remaining if self.no_local else self


def footprint(topic_filter: str, overhead: int) -> int:
    """Bytes that a subscription takes, about, at *overhead* for each group of objects that belong to it.

    With wildcards each level may be a branch of the tree that nobody else needs.
    """
    branches = topic_filter.count("/") + 1 if has_wildcard(topic_filter) else 0
    width = 1 if topic_filter.isascii() else 4  # bytes a character, at most
    return width * len(topic_filter) + (3 + branches) * overhead


class Subscriber(Protocol):
    """Anything that receives messages: a Session, a cable client, a Stream's writer, a bridge.

    Hashed and compared by identity. *message* is whatever the router routes; this floor only hands it on.
    """

    @property
    def client_id(self) -> str: ...

    def deliver(self, message: Any, subscription: Subscription) -> object:
        """Take one copy of *message*; *subscription* says with which QoS, RETAIN and identifiers."""

    def turn(self, message: Any, subscription: Subscription) -> int:
        """How well a member of a shared group could take *message* now: a `shared.Turn`. No side effects."""


def merge(subscriptions: Iterable[Subscription]) -> Subscription:
    """One for all *subscriptions* of a subscriber that match the same message [MQTT5 3.3.4].

    The highest QoS, Retain As Published if any asks for it, the identifiers of all. No Local if any asks
    for it, and then `own` is the merger of those that do not.
    """
    parts = sorted(subscriptions, key=_ORDER)
    merged = _merge(parts)
    if merged.no_local:
        others = [part for part in parts if not part.no_local]
        merged.remaining = _merge(others) if others else None
    return merged


def _merge(parts: list[Subscription]) -> Subscription:
    merged = Subscription(parts[0].topic_filter, retain_handling=parts[0].retain_handling)
    identifiers: list[int] = []
    for part in parts:
        if part.qos > merged.qos:
            merged.qos = part.qos
        if part.no_local:
            merged.no_local = True
        if part.retain_as_published:
            merged.retain_as_published = True
        if part.identifiers:
            identifiers.extend(part.identifiers)
    merged.identifiers = tuple(identifiers)
    return merged
