"""SharedGroup: whose turn it is among the members of a Shared Subscription [MQTT5 4.8.2]."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import chain
from typing import Any, Generic, Literal, TypeVar
from zlib import crc32

from broker.topic.subscription import Subscriber, Subscription

S = TypeVar("S", bound=Subscriber)
Choice = Literal["round_robin", "sticky", "hash"]


class Turn(IntEnum):
    """How well a member can take a message now; the lowest is chosen."""

    READY = 0  # connected, the packet fits, and (QoS above 0) a slot is free
    FULL = 1  # connected, but it has to wait for a slot
    OFFLINE = 2  # not connected, and its session would queue it
    REFUSES = 3  # cannot have it


class SharedGroup(Generic[S]):
    """The members of one (Share Name, Topic Filter), asked in turn.

    The tree alone lets members join and leave, under its lock. `choose` needs no lock: it walks a list
    that only grows or gets holes, and a race of two threads can at worst give one member two turns.
    """

    __slots__ = ("_next", "_places", "_ring", "share_name", "topic_filter")

    def __init__(self, share_name: str, topic_filter: str) -> None:
        self.share_name = share_name
        self.topic_filter = topic_filter  # without the share prefix
        self._ring: list[tuple[S, Subscription] | None] = []  # None: a hole where a member left
        self._places: dict[S, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, subscriber: object) -> bool:
        return subscriber in self._places

    def __iter__(self) -> Iterator[tuple[S, Subscription]]:
        """The members, longest first in the group."""
        for member in self._ring:
            if member is not None:
                yield member

    def join(self, subscriber: S, subscription: Subscription) -> bool:
        """Add a member at the end, or replace its subscription in place. True if it was one before."""
        place = self._places.get(subscriber)
        if place is not None:
            self._ring[place] = (subscriber, subscription)
            return True
        self._places[subscriber] = len(self._ring)
        self._ring.append((subscriber, subscription))
        return False

    def leave(self, subscriber: S) -> bool:
        """Remove a member; False if it was none. Constant cost: holes go when they are half of the ring."""
        place = self._places.pop(subscriber, None)
        if place is None:
            return False
        self._ring[place] = None
        if len(self._ring) > 2 * len(self._places):
            self._close_holes()
        return True

    def choose(
        self, message: Any, excluding: S | None = None, choice: Choice = "round_robin", key: str = ""
    ) -> tuple[S, Subscription] | None:
        """The member that gets *message*, or None: nobody can have it.

        Round robin over the READY ones, else over the FULL, else over the OFFLINE. Between two turns of a
        member that is always READY nobody has two. Cost: one `turn` per member that is asked, and the
        first READY one ends it. `sticky` begins with the member that had the last message, `hash` with one
        that *key* decides. *excluding* passes over one member, for messages that it gives up.
        """
        ring, start = self._ring, self._start(choice, key)
        chosen, best, place = None, int(Turn.REFUSES), start
        for at in chain(range(start, len(ring)), range(min(start, len(ring)))):  # a racing leave shrinks it
            member = ring[at]
            if member is None or member[0] is excluding:
                continue
            turn = member[0].turn(message, member[1])
            if turn < best:
                chosen, best, place = member, turn, at
                if turn == Turn.READY:
                    break
        if chosen is not None:
            self._next = place + 1
        return chosen

    def _start(self, choice: Choice, key: str) -> int:
        if choice == "sticky":
            return max(self._next - 1, 0)
        if choice == "hash" and self._ring:
            return crc32(key.encode()) % len(self._ring)
        return self._next

    def others(self, subscriber: S) -> Iterator[tuple[S, Subscription]]:
        """The members except *subscriber*."""
        for member in self:
            if member[0] is not subscriber:
                yield member

    def _close_holes(self) -> None:
        before = sum(member is not None for member in self._ring[: self._next])
        self._ring = [member for member in self._ring if member is not None]
        self._places = {member[0]: place for place, member in enumerate(self)}
        self._next = before
