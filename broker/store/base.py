"""The contracts of the stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from broker.packet.message import Message, Retained
from broker.topic.match import match
from broker.topic.name import split_share

REMEMBERED = 10_000  # Topic Names whose level is remembered


class RetainedStore(Protocol):
    """The last retained message of each Topic Name [MQTT5 3.3.1.3]."""

    def put(self, message: Message, *, owned: bool = False) -> None:
        """Store or replace. Raises QuotaExceeded when a limit is reached; then nothing changed.

        A message that is *owned* (its PUBREC was sent) is stored even above the limits.
        """

    def check(self, message: Message) -> int:
        """The bytes by which `put` would grow the store. Raises QuotaExceeded if that is too much."""

    def delete(self, topic_name: str) -> None:
        """Forget the message of *topic_name*, if there is one."""

    def stretches(self, topic_filter: str, now: float) -> Iterator[list[Retained]]:
        """All messages that match and have not expired by *now*, by stretches of the search; some have none.

        A step costs little, whatever the filter. Between two steps a message may be replaced or deleted: see
        `is_current`. One that was put after the call is not given: it reaches a subscriber as a live one.
        """

    def is_current(self, message: Retained) -> bool:
        """Whether *message*, which was found, is still the retained one of its topic."""

    def clean_expired(self, now: float) -> int:
        """Delete what has expired by *now*; how many."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes held."""


class Fsync(IntEnum):
    """What is survived once a commit is reported: `always` also power loss, all of them `kill -9`."""

    NEVER = 0
    NORMAL = 1
    ALWAYS = 2


class Table(IntEnum):
    """What a durable store keeps rows of. The number is part of the store format."""

    SESSION = 1
    SUBSCRIPTION = 2
    MESSAGE = 3
    DELIVERY = 4
    HELD = 5
    RETAINED = 6
    NOTE = 7
    RUN = 8
    PART = 9


class Row(NamedTuple):
    """One row: its plain values (int, float, str or None) in the order of the table, and its BLOBs."""

    values: tuple[Any, ...]
    blobs: tuple[bytes, ...] = ()


class StoreClock(NamedTuple):
    """A moment on the clock that deadlines in a store are on, and on the wall clock, both in seconds."""

    time: float
    wall: float


@dataclass(slots=True)
class Batch:
    """What one commit writes, all or nothing: rows to put by table and identifier, None to delete."""

    number: int
    fsync: Fsync = Fsync.NEVER
    rows: dict[Table, dict[int, Row | None]] = field(default_factory=dict)
    clock: StoreClock | None = None  # to be noted

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))


class DurableStore(Protocol):
    """One file, or whatever else keeps rows beyond the process. Calls block; one thread at a time."""

    path: str

    def open(self) -> StoreClock | None:
        """Take the lock, check and repair; gives the clock as it was noted last. Raises StoreError."""

    def read(self, table: Table) -> Iterable[tuple[int, Row]]:
        """All rows in the order of their identifiers."""

    def write(self, batch: Batch) -> None:
        """Commit *batch* as durably as it says. Raises StoreError, and then nothing of it is stored."""

    def close(self) -> None:
        """Note that the stop was a clean one, and give the lock back."""


Encode = Callable[[Any], Row]  # what is to be stored -> its row, called when the batch is closed


class Levels:
    """How durable a message of each topic must be before it is acknowledged."""

    def __init__(self, default: Fsync, by_filter: tuple[tuple[str, Fsync], ...] = ()) -> None:
        self.default = default
        self.by_topic = bool(by_filter)  # not the same for all
        self._by_filter = by_filter
        self._known: dict[str, Fsync] = {}
        asked = {default, *(level for _, level in by_filter)}
        # Commits that nobody waits for: without any sync only if no message asks for more.
        self.lowest = Fsync.NEVER if asked == {Fsync.NEVER} else Fsync.NORMAL

    def of(self, topic_name: str) -> Fsync:
        """The level of the first filter that matches, else the default."""
        if not self._by_filter:
            return self.default
        level = self._known.get(topic_name)
        if level is None:
            found = (level for topic_filter, level in self._by_filter if match(topic_filter, topic_name))
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            level = self._known[topic_name] = next(found, self.default)
        return level


def levels_of(fsync: str, fsync_for: tuple[str, ...]) -> Levels:
    """*fsync_for* are texts `filter=level`; the last `=` divides."""
    pairs = (text.rpartition("=") for text in fsync_for)
    by_filter = tuple((split_share(name)[1], Fsync[level.upper()]) for name, _, level in pairs)
    return Levels(Fsync[fsync.upper()], by_filter)


class Waiter(Protocol):
    """Somebody who has promised nothing until a batch is committed."""

    def committed(self, number: int) -> bool:
        """Every batch up to *number* is as durable as asked for; whether it waits for a later one."""

    def not_committed(self, number: int, failure: Exception) -> bool:
        """Batch *number* could not be written, and its changes will be tried again; as `committed`."""
