"""ByteBudget: how many bytes the whole process may hold for its clients."""

from __future__ import annotations

from typing import Final

RESERVE: Final = 1 << 16  # bytes that a client may hold and be served still when the budget is spent
NUMBERS: Final = 4096  # different numbers that are shared
SMALL: Final = 4096  # bytes of a message that a client which holds nothing is sent, whatever others hold
_numbers: dict[int, int] = {}


def same(number: int) -> int:
    """*number*, as one object for all who keep it for long: one above 256 takes 32 bytes."""
    if len(_numbers) < NUMBERS:
        return _numbers.setdefault(number, number)
    return _numbers.get(number, number)


class ByteBudget:
    """Counts what connections, sessions, queues, in-flight tables, the retained store and sockets hold.

    A message that waits in many places counts in each: the figure is an upper bound. `take` says
    no when the budget is spent; whoever was told no drops the message and counts it.

    As it fills, what can be done without goes first: when it is `low` QoS 0 that would have to wait, when
    it is `scarce` new sessions, and only when it is `spent` everything else that can be refused.
    """

    __slots__ = ("_scarce", "low_from", "maximum", "used")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.used = 0
        self.low_from = maximum - maximum // 8
        self._scarce = maximum - maximum // 16

    @property
    def low(self) -> bool:
        """Whether only an eighth is left: QoS 0 does not wait any more."""
        return self.used >= self.low_from

    @property
    def scarce(self) -> bool:
        """Whether only a sixteenth is left: no new sessions."""
        return self.used >= self._scarce

    @property
    def spent(self) -> bool:
        """Whether nothing more should be taken that can be refused."""
        return self.used >= self.maximum

    def has(self, size: int) -> bool:
        """Whether `take` would say yes."""
        return self.used + size <= self.maximum

    def take(self, size: int) -> bool:
        """Reserve *size* bytes; False, and nothing reserved, when they are not there."""
        if self.used + size > self.maximum:
            return False
        self.used += size
        return True

    def take_more(self, size: int, held: int) -> bool:
        """Reserve *size* bytes above the maximum, for somebody who keeps up and holds *held* bytes.

        There is an eighth more for all who hold little, and beyond it a little for who holds nothing.
        """
        room = self.used + size <= self.maximum + self.maximum // 8
        if not (room and held <= RESERVE) and (held or size > SMALL):
            return False
        self.used += size
        return True

    def take_anyway(self, size: int) -> None:
        """Reserve *size* bytes of what must not be lost, such as acknowledged state."""
        self.used += size

    def give(self, size: int) -> None:
        """Return *size* bytes that were taken."""
        self.used -= size
