"""Rates: how often something may happen."""

from __future__ import annotations


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
