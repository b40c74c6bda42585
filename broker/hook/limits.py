"""Rates: how often something may happen, and for how long."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

from broker.hook.stats import Stats

TURN = 0.01  # seconds of packets of one client, or of all that are as busy, until everybody has a turn
REMEMBERED = 10_000  # ClientIDs whose takeovers are counted at one time


class Rate:
    """At most *per_second* events a second on average, as many at once after a pause; 0: no limit."""

    __slots__ = ("_at", "_left", "_per_second")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = max(per_second, 1.0)
        self._at: float | None = None

    def allow(self, now: float) -> bool:
        """Whether one more event may happen at *now*, in seconds; if so it is counted."""
        if not self._per_second:
            return True
        passed = 0.0 if self._at is None else now - self._at
        self._at = now
        self._left = min(max(self._per_second, 1.0), self._left + passed * self._per_second)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def turn_end(stats: Stats) -> float:
    """When a client that begins its turn now must give way, on the clock `time.monotonic`."""
    return monotonic() + TURN / (1 + stats.busy)


async def give_way(stats: Stats) -> float:
    """Let everybody have a turn of the loop; when the next one ends."""
    stats.busy += 1
    try:
        await asyncio.sleep(0)
    finally:
        stats.busy -= 1
    return turn_end(stats)


@dataclass(slots=True)
class Quarrel:
    """The latest takeovers of one ClientID."""

    left: float  # takeovers that were still allowed after the last one
    at: float  # when that was, in seconds
    told: bool = False  # a refusal has been reported


class Takeovers:
    """Connections that take a ClientID over from each other: *most* times in *seconds*; 0: no limit.

    So many at once, and as many in each period on average. A storm begins with the first refusal and
    is over when there was no takeover for one period. Of at most REMEMBERED ClientIDs; beyond that
    those whose last takeover is the longest ago are forgotten.
    """

    __slots__ = ("_quarrels", "most", "seconds")

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        # By the hash of the ClientID, which may be 65535 bytes long; in the order of the last takeover.
        self._quarrels: OrderedDict[int, Quarrel] = OrderedDict()

    def __len__(self) -> int:
        return len(self._quarrels)

    def allow(self, client_id: str, now: float) -> bool:
        """Whether *client_id* may be taken over at *now*, in seconds; if so it is counted."""
        if not self.most:
            return True
        self._forget(now)
        key = hash(client_id)
        quarrel = self._quarrels.get(key) or Quarrel(self.most, now)
        left = min(self.most, quarrel.left + (now - quarrel.at) * self.most / self.seconds)
        if left < 1.0:
            return False
        quarrel.left, quarrel.at = left - 1.0, now
        self._quarrels[key] = quarrel
        self._quarrels.move_to_end(key)
        if len(self._quarrels) > REMEMBERED:
            self._quarrels.popitem(last=False)
        return True

    def first_refusal(self, client_id: str) -> bool:
        """Whether the refusal of just now is the first of its storm; True once."""
        quarrel = self._quarrels[hash(client_id)]
        told, quarrel.told = quarrel.told, True
        return not told

    def _forget(self, now: float) -> None:
        """Drop what is over. Costs only what is dropped."""
        while self._quarrels:
            key, oldest = next(iter(self._quarrels.items()))
            if now - oldest.at < self.seconds:
                return
            del self._quarrels[key]
