"""Subscription, how overlapping ones become one, and what a Subscriber is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

from broker.topic.name import has_wildcard

_ORDER: Final = attrgetter("order")
SHARED: Final = 4096  # different Options that are shared


@dataclass(slots=True)
class Options:
    """What a SUBSCRIBE asked for besides the filter. Nobody changes one: all that ask the same have it."""

    qos: int  # granted
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifiers: tuple[int, ...]  # of a merged one: all, in the order of subscription, repeats included
    share_name: str


_options: dict[tuple[Any, ...], Options] = {}


class Subscription:
    """What one SUBSCRIBE asked of one Topic Filter, or several such merged for one message [MQTT5 3.8.3.1].

    It belongs to one subscriber. Nobody changes one after it was made, except that the tree says whose it is,
    and numbers it (`order`), when it is subscribed. There may be millions: one takes 64 bytes.
    """

    __slots__ = ("options", "order", "subscriber", "topic_filter")

    def __init__(
        self, topic_filter: str, qos: int = 0, no_local: bool = False, retain_as_published: bool = False,
        retain_handling: int = 0, identifiers: tuple[int, ...] = (), share_name: str = "",
    ) -> None:  # fmt: skip
        """*topic_filter* is as subscribed, with `$share/...`; of a merged one: that of one of its parts."""
        self.topic_filter = topic_filter
        key = qos, no_local, retain_as_published, retain_handling, identifiers, share_name
        options = _options.get(key)
        if options is None:
            options = Options(*key)
            if len(_options) < SHARED:
                _options[key] = options
        self.options = options
        self.order = 0  # set by the tree if there are identifiers
        self.subscriber: Any = None

    def __eq__(self, other: object) -> bool:
        """Whether it asks for the same, whoever does."""
        if not isinstance(other, Subscription):
            return NotImplemented
        return self.topic_filter == other.topic_filter and self.options == other.options

    def __repr__(self) -> str:
        return f"Subscription({self.topic_filter!r}, {self.options})"

    @property
    def qos(self) -> int:
        return self.options.qos

    @property
    def no_local(self) -> bool:
        return self.options.no_local

    @property
    def retain_as_published(self) -> bool:
        return self.options.retain_as_published

    @property
    def retain_handling(self) -> int:
        return self.options.retain_handling

    @property
    def identifiers(self) -> tuple[int, ...]:
        return self.options.identifiers

    @property
    def share_name(self) -> str:
        return self.options.share_name

    @property
    def own(self) -> Subscription | None:
        """What applies to a message its subscriber published itself; None: No Local keeps it away."""
        return None if self.options.no_local else self


class Merged(Subscription):
    """Several with No Local among them: `own` is the merger of the others."""

    __slots__ = ("remaining",)

    remaining: Subscription | None

    @property
    def own(self) -> Subscription | None:
        return self.remaining


def footprint(topic_filter: str, overhead: int) -> int:
    """Bytes that a subscription takes, about, at *overhead* for each group of objects that belong to it.

    With wildcards each level may be a branch of the tree that nobody else needs.
    """
    branches = topic_filter.count("/") + 1 if has_wildcard(topic_filter) else 0
    width = 1 if topic_filter.isascii() else 4  # bytes a character, at most
    return width * len(topic_filter) + (3 + branches) * overhead


M = TypeVar("M", bound=Subscription)


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
    if not any(part.no_local for part in parts):
        return _merge(parts, Subscription)
    merged = _merge(parts, Merged)
    others = [part for part in parts if not part.no_local]
    merged.remaining = _merge(others, Subscription) if others else None
    return merged


def _merge(parts: list[Subscription], kind: type[M]) -> M:
    first = parts[0]
    merged = kind(
        first.topic_filter,
        max(part.qos for part in parts),
        any(part.no_local for part in parts),
        any(part.retain_as_published for part in parts),
        first.retain_handling,
        tuple(chain.from_iterable(part.identifiers for part in parts)),
    )
    merged.subscriber = first.subscriber
    return merged
