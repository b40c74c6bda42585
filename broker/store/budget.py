"""ByteBudget: how many bytes the whole process may hold for messages."""

from __future__ import annotations


class ByteBudget:
    """Counts what queues, in-flight tables, the retained store and blocked sockets hold.

    A message that waits in many places counts in each: the figure is an upper bound. `take` says
    no when the budget is spent; whoever was told no drops the message and counts it.
    """

    __slots__ = ("maximum", "used")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.used = 0

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

    def take_anyway(self, size: int) -> None:
        """Reserve *size* bytes of what must not be lost, such as acknowledged state."""
        self.used += size

    def give(self, size: int) -> None:
        """Return *size* bytes that were taken."""
        self.used -= size
