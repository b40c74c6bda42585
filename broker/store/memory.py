"""The stores, in dictionaries."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from broker.errors import QuotaExceeded
from broker.packet.message import Message
from broker.store.budget import ByteBudget
from broker.topic.index import TopicIndex


class MemoryRetainedStore:
    """Retained messages in a TopicIndex: found by filter without a look at all of them.

    Each is kept with the number of the change that put it, so that a walk that was begun earlier
    knows what is newer than itself. Deadlines wait in a heap; stale entries of it are skipped.
    """

    def __init__(self, maximum_messages: int, maximum_bytes: int, budget: ByteBudget) -> None:
        self._maximum_messages = maximum_messages
        self._maximum_bytes = maximum_bytes
        self._budget = budget
        self._index: TopicIndex[tuple[int, Message]] = TopicIndex()
        self._deadlines: list[tuple[float, int, str]] = []
        self._changes = 0
        self.size = 0

    def __len__(self) -> int:
        return len(self._index)

    def put(self, message: Message, *, owned: bool = False) -> None:
        """Store or replace; see RetainedStore."""
        growth = self._growth(message) if owned else self.check(message)
        self._budget.take_anyway(growth)
        self._changes += 1
        self._index.set(message.topic_name, (self._changes, message.bare()))
        self.size += growth
        if message.expires_at is not None:
            self._note_deadline(message.expires_at, message.topic_name)

    def _note_deadline(self, when: float, topic_name: str) -> None:
        heapq.heappush(self._deadlines, (when, self._changes, topic_name))
        if len(self._deadlines) > 2 * len(self._index) + 1000:
            # Messages replaced long before their deadline leave entries behind.
            self._deadlines = [
                (message.expires_at, number, name)
                for name, (number, message) in self._index.items()
                if message.expires_at is not None
            ]
            heapq.heapify(self._deadlines)

    def check(self, message: Message) -> int:
        """The bytes by which `put` would grow the store. Raises QuotaExceeded if that is too much."""
        growth, is_new = self._growth(message), message.topic_name not in self._index
        if is_new and len(self._index) >= self._maximum_messages:
            raise QuotaExceeded(f"{self._maximum_messages} retained messages are stored")
        if growth > 0 and self.size + growth > self._maximum_bytes:
            raise QuotaExceeded(f"{self._maximum_bytes} bytes of retained messages are stored")
        if growth > 0 and not self._budget.has(growth):
            raise QuotaExceeded("the byte budget of the broker is spent")
        return growth

    def _growth(self, message: Message) -> int:
        old = self._index.get(message.topic_name)
        return message.size - (old[1].size if old else 0)

    def delete(self, topic_name: str) -> None:
        """Forget the message of *topic_name*, if there is one."""
        old = self._index.pop(topic_name)
        if old is not None:
            self.size -= old[1].size
            self._budget.give(old[1].size)

    def find(self, topic_filter: str, now: float) -> Iterator[Message | None]:
        """Every match; see RetainedStore."""
        return self._find(topic_filter, now, self._changes)

    def _find(self, topic_filter: str, now: float, newest: int) -> Iterator[Message | None]:
        for stretch in self._index.slices(topic_filter):
            for topic_name, _ in stretch:
                number, message = self._index.get(topic_name) or (newest + 1, None)
                if message is None or number > newest:
                    continue  # changed since: a subscriber has it as a live one
                if message.expires_at is None or message.expires_at > now:
                    yield message
            yield None

    def clean_expired(self, now: float) -> int:
        """Delete what has expired by *now*; how many. Costs nothing when nothing has."""
        deleted = 0
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, topic_name = heapq.heappop(self._deadlines)
            stored = self._index.get(topic_name)
            if stored is not None and stored[0] == number:
                self.delete(topic_name)
                deleted += 1
        return deleted
