"""SubscriptionTree: who receives a Topic Name. The one lock, and the match cache [MQTT5 4.7, 4.8]."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from threading import Lock
from typing import Final, Generic, Literal, TypeVar

from broker.topic.name import has_wildcard, split_share
from broker.topic.shared import SharedGroup
from broker.topic.subscription import Subscriber, Subscription, merge

__all__ = ["Route", "Subscriber", "Subscription", "SubscriptionTree"]

S = TypeVar("S", bound=Subscriber)

CACHED_NAMES: Final = 16_384  # Topic Names whose Route is remembered
CACHED_NAME_LENGTH: Final = 1024  # characters; longer names are matched each time
CACHED_SUBSCRIPTIONS = 1 << 18  # in all remembered Routes together
SCANNED_NAMES: Final = 512  # up to so many are looked through when a wildcard filter changes


def always(topic_name: str) -> bool:
    """Every Topic Name is worth to be remembered."""
    return True


class Route(Generic[S]):
    """Who receives one Topic Name, as it was when it was matched. Nobody changes one.

    `valid` turns False once a subscription changed that could matter: whoever keeps a Route checks it.
    """

    __slots__ = ("direct", "groups", "size", "valid")

    def __init__(
        self, direct: tuple[Subscription, ...], groups: tuple[SharedGroup[S], ...], size: int
    ) -> None:
        self.direct = direct
        self.groups = groups  # each gives one copy to the member it chooses
        self.size = size  # subscriptions and groups that it is made of
        self.valid = True


class SubscriptionTree(Generic[S]):
    """All subscriptions, found by Topic Name.

    One lock guards everything that changes; it is held for a walk or a change, never across an `await`.
    `routes` may be read without it: a dictionary of the Routes that are valid now, by Topic Name. It stays
    the same object. `generation` grows with every change of any subscription: what is derived from several
    Routes holds while it stays the same, if it was read before they were.
    """

    def __init__(
        self,
        overlap: Literal["merge", "per_subscription"] = "merge",
        cached_names: int = CACHED_NAMES,
        came_before: Callable[[str], bool] = always,
    ) -> None:
        """*overlap*: one copy per subscriber, or one for each of its matching subscriptions [MQTT5 3.3.4].

        The Route of a Topic Name is remembered if *came_before* says so of it when it is matched: one takes
        as much as two subscriptions, and a name that comes once needs none.
        """
        self.routes: dict[str, Route[S]] = {}
        self.generation = 0
        self.count = 0  # subscriptions
        self._lock = Lock()
        self._merges = overlap == "merge"
        self._cached_names = cached_names
        self._came_before = came_before
        self._cached_subscriptions = 0
        # By filter without share prefix. Most filters have one subscription: it stands here itself.
        self._held: dict[str, Subscription | _Crowd[S]] = {}
        self._wildcards = _Wildcards()

    def __len__(self) -> int:
        return self.count

    def subscribe(self, subscriber: S, subscription: Subscription) -> bool:
        """Add *subscription*, or replace the one of *subscriber* with the same filter: then True.

        The filter must be valid. Cost: constant, plus its levels if it has wildcards and is new.
        """
        share_name, topic_filter = split_share(subscription.topic_filter)
        if subscription.subscriber is not None and subscription.subscriber is not subscriber:
            raise ValueError(f"{subscription} belongs to {subscription.subscriber.client_id!r}")
        subscription.subscriber = subscriber
        with self._lock:
            if subscription.identifiers:
                subscription.order = self.generation
            if share_name:
                existed = self._crowd(topic_filter).join(share_name, topic_filter, subscriber, subscription)
            else:
                existed = self._put(topic_filter, subscription)
            self.count += not existed
            self._changed(topic_filter)
        return existed

    def unsubscribe(self, subscriber: S, topic_filter: str) -> bool:
        """Remove the subscription with exactly this filter, `$share/...` included; False if there is none."""
        share_name, topic_filter = split_share(topic_filter)
        with self._lock:
            if not self._take(topic_filter, share_name, subscriber):
                return False
            self.count -= 1
            self._changed(topic_filter)
        return True

    def unsubscribe_all(self, subscriber: S, topic_filters: Iterable[str]) -> None:
        """Remove those of *topic_filters* that *subscriber* has; the lock is free between two of them."""
        for topic_filter in topic_filters:
            self.unsubscribe(subscriber, topic_filter)

    def group(self, topic_filter: str) -> SharedGroup[S] | None:
        """The group of a filter `$share/...`, or None if it has no member."""
        share_name, topic_filter = split_share(topic_filter)
        held = self._held.get(topic_filter)
        return held.groups.get(share_name) if isinstance(held, _Crowd) else None

    def match(self, topic_name: str) -> Route[S]:
        """The Route of *topic_name*, which must be valid: every subscriber once, overlapping filters merged.

        A leading `$` hides the name from `+` and `#` [4.7.2]; a SharedGroup gives one member [4.8.2].
        Cost: one lookup if remembered; else grows with levels and the branches of wildcard filters that
        match a beginning of the name, each visited once, and with the subscribers found.
        """
        route = self.routes.get(topic_name)
        if route is None:
            with self._lock:
                route = self.routes.get(topic_name)  # another thread may have been faster
                if route is None:
                    route = self._route(topic_name)
                    self._remember(topic_name, route)
        return route

    def is_heard(self, topic_name: str) -> bool:
        """Whether any subscription matches *topic_name*, which must be valid. Remembers nothing."""
        with self._lock:
            return topic_name in self._held or bool(self._wildcards.find(topic_name))

    def _put(self, topic_filter: str, subscription: Subscription) -> bool:
        held, subscriber = self._held.get(topic_filter), subscription.subscriber
        if isinstance(held, _Crowd):
            existed = subscriber in held.direct
            held.direct[subscriber] = subscription
        elif held is None or held.subscriber is subscriber:
            existed = held is not None
            self._held[topic_filter] = subscription
            if not existed and has_wildcard(topic_filter):
                self._wildcards.add(topic_filter)
        else:
            self._crowd(topic_filter).direct[subscriber] = subscription
            existed = False
        return existed

    def _crowd(self, topic_filter: str) -> _Crowd[S]:
        """The crowd at *topic_filter*, made if there is none."""
        held = self._held.get(topic_filter)
        if isinstance(held, _Crowd):
            return held
        crowd = self._held[topic_filter] = _Crowd()
        if held is not None:
            crowd.direct[held.subscriber] = held
        elif has_wildcard(topic_filter):
            self._wildcards.add(topic_filter)
        return crowd

    def _take(self, topic_filter: str, share_name: str, subscriber: S) -> bool:
        held = self._held.get(topic_filter)
        if isinstance(held, _Crowd):
            if not held.leave(share_name, subscriber):
                return False
            if len(held.direct) == 1 and not held.groups:
                self._held[topic_filter] = next(iter(held.direct.values()))
            if held.direct or held.groups:
                return True
        elif held is None or share_name or held.subscriber is not subscriber:
            return False
        del self._held[topic_filter]
        if has_wildcard(topic_filter):
            self._wildcards.discard(topic_filter)
        return True

    def _changed(self, topic_filter: str) -> None:
        """Forget every Route that a change at *topic_filter* may touch.

        An exact filter touches one name. For a wildcard filter, names are compared with what stands before
        the wildcard; if very many are remembered, it is cheaper to match again than to look through them.
        """
        self._forget_matching(topic_filter)
        self.generation += 1  # last: who reads it first and matches then has nothing older

    def _forget_matching(self, topic_filter: str) -> None:
        if not has_wildcard(topic_filter):
            self._forget(topic_filter)
            return
        prefix = topic_filter.partition("#")[0].partition("+")[0].removesuffix("/")  # a/# matches a
        if len(self.routes) > SCANNED_NAMES:
            self._forget_all()
            return
        for topic_name in [name for name in self.routes if name.startswith(prefix)]:
            self._forget(topic_name)

    def _forget(self, topic_name: str) -> None:
        route = self.routes.pop(topic_name, None)
        if route is not None:
            route.valid = False
            self._cached_subscriptions -= route.size

    def _forget_all(self) -> None:
        for route in self.routes.values():
            route.valid = False
        self.routes.clear()
        self._cached_subscriptions = 0

    def _remember(self, topic_name: str, route: Route[S]) -> None:
        if len(topic_name) > CACHED_NAME_LENGTH or not self._came_before(topic_name):
            route.valid = False  # nobody will tell it of a change
            return
        self._cached_subscriptions += route.size
        if self._cached_subscriptions > CACHED_SUBSCRIPTIONS or len(self.routes) >= self._cached_names:
            self._forget_all()
            self._cached_subscriptions = route.size
        self.routes[topic_name] = route

    def _route(self, topic_name: str) -> Route[S]:
        found: list[Collection[Subscription]] = []
        groups: list[SharedGroup[S]] = []
        for topic_filter in (topic_name, *self._wildcards.find(topic_name)):
            held = self._held.get(topic_filter)
            if isinstance(held, _Crowd):
                found.append(held.direct.values())
                groups.extend(held.groups.values())
            elif held is not None:
                found.append((held,))
        if not found:  # as for most of what is only retained: 1.3 -> 0.6 us
            return Route((), (), 0)
        size = sum(map(len, found)) + len(groups)
        if self._merges and len(found) > 1:
            found = [_merge_overlaps(found)]
        return Route(tuple(chain.from_iterable(found)), tuple(groups), size)


class _Crowd(Generic[S]):
    """What stands at a filter with more than one plain subscription."""

    __slots__ = ("direct", "groups")

    def __init__(self) -> None:
        self.direct: dict[S, Subscription] = {}
        self.groups: dict[str, SharedGroup[S]] = {}

    def join(self, share_name: str, topic_filter: str, subscriber: S, subscription: Subscription) -> bool:
        group = self.groups.get(share_name)
        if group is None:
            group = self.groups[share_name] = SharedGroup(share_name, topic_filter)
        return group.join(subscriber, subscription)

    def leave(self, share_name: str, subscriber: S) -> bool:
        if not share_name:
            return self.direct.pop(subscriber, None) is not None
        group = self.groups.get(share_name)
        if group is None or not group.leave(subscriber):
            return False
        if not group:
            del self.groups[share_name]
        return True


def _merge_overlaps(found: Iterable[Iterable[Subscription]]) -> Collection[Subscription]:
    """One for each subscriber that was *found*."""
    merged: dict[Subscriber, Subscription] = {}
    overlaps: dict[Subscriber, list[Subscription]] = {}
    for subscription in chain.from_iterable(found):
        first = merged.setdefault(subscription.subscriber, subscription)
        if first is not subscription:
            overlaps.setdefault(subscription.subscriber, [first]).append(subscription)
    for subscriber, subscriptions in overlaps.items():
        merged[subscriber] = merge(subscriptions)
    return merged.values()


class _Node:
    """One level of wildcard filters. The filters that end here are `here`, and with `/#`, `rest`."""

    __slots__ = ("children", "here", "plus", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        self.plus: _Node | None = None
        self.here: str | None = None
        self.rest: str | None = None


class _Wildcards:
    """The filters that have wildcards, by Topic Name. No recursion: a filter has up to 65,536 levels."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, topic_filter: str) -> None:
        node = self._root
        for level in topic_filter.split("/"):
            if level == "#":
                node.rest = topic_filter
                return
            node = _child(node, level)
        node.here = topic_filter

    def discard(self, topic_filter: str) -> None:
        """Remove a filter that is there, and the branch that only it needed."""
        node, path = self._root, []
        levels = topic_filter.split("/")
        for level in levels:
            if level != "#":
                path.append((node, level))
                node = _child(node, level)
        if levels[-1] == "#":
            node.rest = None
        else:
            node.here = None
        for parent, level in reversed(path):
            if node.here or node.rest or node.plus or node.children:
                return
            _drop(parent, level)
            node = parent

    def find(self, topic_name: str) -> list[str]:
        """The filters that match. Level by level, so each node is visited at most once."""
        root = self._root
        if root.children is None and root.plus is None and root.rest is None:
            return []
        levels = topic_name.split("/")
        found: list[str] = []
        nodes = [root]
        if topic_name.startswith("$"):  # not for + and # at the root
            child = (root.children or {}).get(levels.pop(0))
            nodes = [child] if child else []
        for level in levels:
            if not nodes:
                return found
            nodes = _step(nodes, level, found)
        for node in nodes:
            if node.here is not None:
                found.append(node.here)
            if node.rest is not None:  # a/# matches a
                found.append(node.rest)
        return found


def _step(nodes: list[_Node], level: str, found: list[str]) -> list[_Node]:
    """The nodes below *nodes* for one more *level*; filters that match whatever follows go to *found*."""
    below: list[_Node] = []
    for node in nodes:
        if node.rest is not None:
            found.append(node.rest)
        if node.plus is not None:
            below.append(node.plus)
        if node.children is not None:
            child = node.children.get(level)
            if child is not None:
                below.append(child)
    return below


def _child(node: _Node, level: str) -> _Node:
    """The node for *level* below *node*, made if there is none."""
    if level == "+":
        if node.plus is None:
            node.plus = _Node()
        return node.plus
    if node.children is None:
        node.children = {}
    child = node.children.get(level)
    if child is None:
        child = node.children[level] = _Node()
    return child


def _drop(node: _Node, level: str) -> None:
    """Undo `_child`."""
    if level == "+":
        node.plus = None
    elif node.children is not None:
        del node.children[level]
        if not node.children:
            node.children = None
