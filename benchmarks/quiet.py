"""Waits until nobody else uses the cores: on a shared machine a run that is disturbed says little.

What a neighbour takes of a core (the other half of it, its cache) shows in no counter of ours, but in how
long a piece of plain work takes. While that is more than MOST times what it took at best, a run waits, and
one after which it is so is measured once more. What decides is never what the run itself has brought.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

MOST = 1.3  # what a core does to its clock by itself is up to 1.2, a neighbour 1.7 and more
PROBES = 3  # of a core, of which the one in the middle counts
COUNT = 100_000  # additions of one probe, some milliseconds
PAUSE = 0.2  # seconds between looks


def probe(core: int) -> float:
    """Seconds that the same piece of work takes on *core*."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        found = []
        for _ in range(PROBES):
            began, total = time.perf_counter(), 0
            for number in range(COUNT):
                total += number
            found.append(time.perf_counter() - began)
        return sorted(found)[PROBES // 2]
    finally:
        os.sched_setaffinity(0, before)


class Quiet:
    """How disturbed some cores are, and patience with it."""

    def __init__(
        self,
        patience: float,
        cores: Sequence[int] = (0, 1),
        look: Callable[[int], float] = probe,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """*patience* is in seconds, for each wait; 0: never look."""
        self.patience = patience
        self.waited = 0.0  # seconds in all
        self.repeated = 0  # runs
        self._cores, self._look, self._clock, self._sleep = cores, look, clock, sleep
        self._best = float("inf")

    def disturbed(self) -> bool:
        """Whether one of the cores is slow now."""
        if self.patience <= 0:
            return False
        slow = False
        for core in self._cores:
            took = self._look(core)
            self._best = min(took, self._best)
            slow = slow or took > MOST * self._best
        return slow

    def wait(self) -> None:
        """Until none is, or patience has ended."""
        began = self._clock()
        while self.disturbed() and self._clock() - began < self.patience:
            self._sleep(PAUSE)
        self.waited += self._clock() - began

    def again(self) -> bool:
        """Asked after a run: whether it is to be measured once more."""
        if not self.disturbed():
            return False
        self.repeated += 1
        return True
