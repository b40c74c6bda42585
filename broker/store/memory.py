"""The stores, in dictionaries."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from broker.errors import QuotaExceeded
from broker.packet.message import Message, Plain, Retained, as_message, plain_size, retained_size
from broker.store.base import Row, Table
from broker.store.budget import ByteBudget
from broker.store.journal import Journal
from broker.topic.index import TopicIndex


@dataclass(slots=True, eq=False, weakref_slot=True)
class RetainedRow:
    """What a durable store is told of one retained message. *before* comes back if it is refused."""

    store: MemoryRetainedStore
    message: Message
    before: Message | None
    batch: int

    def revoke(self) -> None:
        """The durable store refused the message: the one before is the retained one still."""
        self.store.revoke(self.message, self.before)


def retained_row(source: RetainedRow) -> Row:
    return Row((source.message.record.id,))


@dataclass(slots=True)
class Note:
    """One note. Its row is made of what it says when the batch is closed."""

    key: str
    value: bytes
    number: int  # of its row; 0: there is no durable store


def note_row(source: Note) -> Row:
    return Row((source.key,), (source.value,))


class NoteStore:
    """What hooks want to remember: small values by key, in one table for all owners.

    Every change goes into the open batch of *journal*, so that it is committed together with all else that
    changed in the same turn of the loop.
    """

    def __init__(self, budget: ByteBudget, journal: Journal, overhead: int = 0) -> None:
        self._budget = budget
        self._journal = journal
        self._overhead = overhead
        self._notes: dict[str, Note] = {}

    @property
    def durable(self) -> bool:
        """Whether they outlive the process."""
        return self._journal.writes

    def restore(self, number: int, key: str, value: bytes) -> None:
        """A note that the durable store has in row *number*. Raises ValueError for a second one of *key*."""
        if key in self._notes:
            raise ValueError(f"a second note {key!r:.100}")
        self._notes[key] = Note(key, value, number)
        self._budget.take_anyway(self._cost(key, value))

    def check(self) -> None:
        """Raises StoreUnavailable while the store cannot be written."""
        self._journal.check()

    def get(self, key: str) -> bytes | None:
        note = self._notes.get(key)
        return None if note is None else note.value

    def of(self, prefix: str) -> list[tuple[str, bytes]]:
        """All whose key begins with *prefix*, as they were put first. Cost: a look at all there are."""
        return [(key, note.value) for key, note in self._notes.items() if key.startswith(prefix)]

    def put(self, key: str, value: bytes) -> None:
        """Store or replace."""
        journal = self._journal
        note = self._notes.get(key)
        if note is None:
            number = journal.new_id() if journal.writes else 0
            note = self._notes[key] = Note(key, value, number)
            self._budget.take_anyway(self._cost(key, value))
            new = True
        else:
            self._budget.take_anyway(len(value) - len(note.value))
            note.value, new = value, False
        if journal.writes:
            journal.put(Table.NOTE, note.number, note_row, note, new=new)

    def delete(self, key: str) -> None:
        """Forget it, if it is there."""
        note = self._notes.pop(key, None)
        if note is not None:
            self._budget.give(self._cost(key, note.value))
            if self._journal.writes:
                self._journal.delete(Table.NOTE, note.number)

    def _cost(self, key: str, value: bytes) -> int:
        return len(key) + len(value) + self._overhead


class OwnNotes:
    """The notes of one *owner* in the table of all."""

    def __init__(self, store: NoteStore, owner: str) -> None:
        """*owner* is a short name without a slash."""
        if not owner or "/" in owner:
            raise ValueError(f"notes belong to a name without a slash, not to {owner!r}")
        self._store = store
        self._prefix = owner + "/"

    @property
    def durable(self) -> bool:
        return self._store.durable

    def check(self) -> None:
        self._store.check()

    def get(self, key: str) -> bytes | None:
        return self._store.get(self._prefix + key)

    def put(self, key: str, value: bytes) -> None:
        self._store.put(self._prefix + key, value)

    def delete(self, key: str) -> None:
        self._store.delete(self._prefix + key)

    def items(self) -> list[tuple[str, bytes]]:
        at = len(self._prefix)
        return [(key[at:], value) for key, value in self._store.of(self._prefix)]


def _is_live(message: Message, now: float) -> bool:
    return message.expires_at is None or message.expires_at > now


class MemoryRetainedStore:
    """Retained messages in a TopicIndex: found by filter without a look at all of them.

    Each is kept with the number of the change that put it, so that a walk that was begun earlier
    knows what is newer than itself. Deadlines wait in a heap; stale entries of it are skipped. With a
    *journal* that writes, every change is told to it.
    """

    def __init__(
        self,
        maximum_messages: int,
        maximum_bytes: int,
        budget: ByteBudget,
        journal: Journal | None = None,
        overhead: int = 0,
    ) -> None:
        """*overhead* is what a message takes of *budget* besides its own bytes."""
        self._journal = journal if journal is not None and journal.writes else None
        self._rows: dict[str, int] = {}  # in the journal, by Topic Name
        self._unstored = WeakValueDictionary[str, RetainedRow]()  # while the journal has them
        self._maximum_messages = maximum_messages
        self._maximum_bytes = maximum_bytes
        self._budget = budget
        self._overhead = overhead
        self._index: TopicIndex[tuple[int, Retained]] = TopicIndex()
        self._deadlines: list[tuple[float, int, str]] = []
        self._changes = 0
        self.size = 0

    def __len__(self) -> int:
        return len(self._index)

    def put(self, message: Message, *, owned: bool = False) -> None:
        """Store or replace; see RetainedStore."""
        stored = self._index.get(message.topic_name)
        growth = message.size - (0 if stored is None else retained_size(stored[1]))
        if not owned:
            self._check(growth, stored is None)
        if self._journal is not None:
            self._note(self._journal, message)
        self._keep(message, growth, stored is None)

    def room(self, size: int) -> int:
        """How many more messages of *size* bytes together can be put without asking for each; 0: ask."""
        free = self._budget.maximum - self._budget.used - size
        if self._journal is not None or self.size + size > self._maximum_bytes or free < 0:
            return 0
        return min(self._maximum_messages - len(self._index), free // (self._overhead or 1))

    def put_plain(self, messages: list[Plain]) -> None:
        """As `put` of each of *messages*, for which there is `room`."""
        index, changes, growth, count = self._index, self._changes, 0, len(self._index)
        for message in messages:
            changes += 1
            before = index.set(message[1], (changes, message))
            growth += plain_size(message[0])
            if before is not None:
                growth -= retained_size(before[1])
        self._budget.take_anyway(growth + (len(index) - count) * self._overhead)
        self._changes = changes
        self.size += growth

    def _keep(self, message: Message, growth: int, is_new: bool) -> None:
        self._budget.take_anyway(growth + is_new * self._overhead)
        self._changes += 1
        self._index.set(message.topic_name, (self._changes, message.bare()))
        self.size += growth
        if message.expires_at is not None:
            self._note_deadline(message.expires_at, message.topic_name)

    def _note(self, journal: Journal, message: Message) -> None:
        """Tell the journal that *message* takes the place of what is there."""
        topic_name = message.topic_name
        number, old = self._rows.get(topic_name), self._index.get(topic_name)
        new = number is None
        if number is None:
            number = self._rows[topic_name] = journal.new_id()
        journal.refer(message)
        before, last = as_message(old[1]) if old else None, self._unstored.get(topic_name)
        if last is not None and last.batch == journal.number and last.message.qos == 1:
            before = last.before  # they are refused together
        source = self._unstored[topic_name] = RetainedRow(self, message.bare(), before, journal.number)
        journal.put(Table.RETAINED, number, retained_row, source, new=new)
        if old is not None:
            journal.let_go(as_message(old[1]))

    def holds(self, topic_name: str) -> bool:
        """Whether *topic_name* has a retained message."""
        return topic_name in self._index

    def restore(self, number: int, message: Message) -> None:
        """A message that the durable store has in row *number*."""
        self._rows[message.topic_name] = number
        stored = self._index.get(message.topic_name)
        self._keep(message, message.size - (retained_size(stored[1]) if stored else 0), stored is None)

    def revoke(self, message: Message, before: Message | None) -> None:
        """Put *before* in the place of *message*, if that is there still."""
        stored, last = self._index.get(message.topic_name), self._unstored.get(message.topic_name)
        if stored is None or as_message(stored[1]).record is not message.record:
            if last is not None and last.before is not None and last.before.record is message.record:
                last.before = before
        elif before is None:
            self.delete(message.topic_name)
        else:
            self.put(before, owned=True)

    def _note_deadline(self, when: float, topic_name: str) -> None:
        heapq.heappush(self._deadlines, (when, self._changes, topic_name))
        if len(self._deadlines) > 2 * len(self._index) + 1000:
            # Messages replaced long before their deadline leave entries behind.
            self._deadlines = [
                (message.expires_at, number, name)
                for name, (number, message) in self._index.items()
                if isinstance(message, Message) and message.expires_at is not None
            ]
            heapq.heapify(self._deadlines)

    def check(self, message: Message) -> int:
        """The bytes by which `put` would grow the store. Raises QuotaExceeded if that is too much."""
        stored = self._index.get(message.topic_name)
        growth = message.size - (0 if stored is None else retained_size(stored[1]))
        self._check(growth, stored is None)
        return growth

    def _check(self, growth: int, is_new: bool) -> None:
        if is_new and len(self._index) >= self._maximum_messages:
            raise QuotaExceeded(f"{self._maximum_messages} retained messages are stored")
        if growth > 0 and self.size + growth > self._maximum_bytes:
            raise QuotaExceeded(f"{self._maximum_bytes} bytes of retained messages are stored")
        if growth > 0 and not self._budget.has(growth + is_new * self._overhead):
            raise QuotaExceeded("the byte budget of the broker is spent")

    def delete(self, topic_name: str) -> None:
        """Forget the message of *topic_name*, if there is one."""
        old = self._index.pop(topic_name)
        if old is not None:
            if self._journal is not None:
                self._journal.delete(Table.RETAINED, self._rows.pop(topic_name))
                self._journal.let_go(as_message(old[1]))
            self.size -= retained_size(old[1])
            self._budget.give(retained_size(old[1]) + self._overhead)

    def stretches(self, topic_filter: str, now: float) -> Iterator[list[Retained]]:
        """See RetainedStore. What is changed from now on is left out: a subscriber has it as a live one."""
        return self._stretches(topic_filter, now, self._changes)

    def _stretches(self, topic_filter: str, now: float, newest: int) -> Iterator[list[Retained]]:
        for stretch in self._index.slices(topic_filter):
            yield [
                message
                for number, message in stretch
                if number <= newest
                and (isinstance(message, tuple) or _is_live(message, now))
            ]

    def is_current(self, message: Retained) -> bool:
        """See RetainedStore."""
        if isinstance(message, Message):
            stored = self._index.get(message.topic_name)
            return stored is not None and stored[1] is message
        stored = self._index.get(message[1])
        return stored is not None and not isinstance(stored[1], Message) and stored[1][0] is message[0]

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
