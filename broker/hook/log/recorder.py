"""Recorder: records of one kind on their way to the disk, and the thread that takes them there."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from broker.hook.log.line import format_gap
from broker.hook.log.names import HOUR, OpenSegment
from broker.hook.log.segment import Disk, Segment

log = logging.getLogger("broker.log")

BATCH = 2000  # records that are written at once, at most
BATCH_BYTES = 1 << 20  # and about so many bytes of them
TURN = 256  # records that are formatted before the event loop may have the interpreter
LINGER = 0.02  # seconds that records collect, unless an acknowledgement waits
RETRY = 1.0  # seconds between two tries while the disk takes nothing
UNSYNCED = 16 << 20  # bytes kept until they are synced; then it is time

Record = tuple[Any, ...]


class Group(NamedTuple):
    """Lines of one hour, as they are written."""

    data: bytes
    records: int
    at: int  # microseconds since 1970, of the first


@dataclass(slots=True, kw_only=True)
class RecorderTerms:
    """What a Recorder needs of the world. The last five are called in its thread."""

    root: Path
    kind: str
    node: str
    epoch: int
    format: Callable[[int, Record], bytes]
    format_run: Callable[[int, Record], list[bytes]] | None = None  # of a record that stands for many
    fsync: str = "interval"  # none, interval or ack
    fsync_interval: float = 0.2  # seconds
    gz: bool = False
    segment_bytes: int = 64 << 20
    segment_seconds: float = 60.0
    maximum_records: int = 100_000
    maximum_bytes: int = 64 << 20
    disk: type[Disk] = Disk
    clock: Callable[[], float] = time.monotonic
    synced: Callable[[int], None] = lambda offset: None  # every record before this one is on the disk
    room: Callable[[], None] = lambda: None  # the queue was `crowded`, and is half empty
    state: Callable[[OSError | None], None] = lambda error: None  # nothing can be written; None: it can
    closed: Callable[[Path], None] = lambda path: None  # a segment was published


class Recorder:
    """A bounded queue into which the event loop puts records, and a thread that writes them.

    `put`, `drop` and what they change belong to the event loop; all else to the thread. They share a deque
    and counters that only one of them writes: no lock. Records get their offsets in the order of `put`, so
    `next` is the offset of the next one. What was taken is never dropped: while the disk takes nothing it
    waits, and `full` says when too much does.
    """

    def __init__(self, terms: RecorderTerms) -> None:
        self.terms = terms
        # the event loop's
        self.next = 0  # offset of the next record
        self.lost = 0  # records dropped since the last one that got in
        self.dropped = 0  # records dropped, ever
        self.wanted = 0  # somebody waits until every record before this offset is on the disk
        self.crowded = False  # somebody waits for room; the thread takes it back
        self._put_bytes = 0
        self._records_left = self._bytes_left = 0  # at least so much room is there
        # the thread's
        self.taken = 0
        self.written = 0  # records in a file
        self.synced = 0  # records on the disk
        self.bytes = 0  # written, ever
        self.segments = 0  # published
        self.sync_seconds = 0.0  # of the last sync
        self.sync_failures = 0
        self.failure: OSError | None = None
        self._taken_bytes = 0
        self._segment: Segment | None = None
        self._opened_at = self._synced_at = terms.clock()
        self._groups: deque[Group] = deque()  # formatted, not written
        self._kept: list[Group] = []  # written, not synced
        self._kept_bytes = 0
        # between them
        self._queue: deque[Record] = deque()
        self._sleeping = False
        self._lingering = False
        self._stopping = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log-{terms.kind}", daemon=True)

    # ---- the event loop's

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Records that are in memory alone."""
        return self.next - self.written

    @property
    def waiting_bytes(self) -> int:
        return self._put_bytes - self._taken_bytes

    @property
    def full(self) -> bool:
        """Whether there is no room for one more."""
        if self._records_left > 0 and self._bytes_left > 0:
            return False
        terms = self.terms
        self._records_left = terms.maximum_records - (self.next - self.taken)
        self._bytes_left = terms.maximum_bytes - self.waiting_bytes
        return self._records_left <= 0 or self._bytes_left <= 0

    def put(self, record: Record, count: int = 1) -> int:
        """Take *record*, whose last field is its weight, whether there is room or not; gives its offset.

        It stands for *count* records. After some were dropped a gap marker goes before it.
        """
        if self.lost:
            lost, self.lost = self.lost, 0
            self.put((record[0], None, lost, 0))
        offset, weight = self.next, record[-1]
        self._put_bytes += weight
        self._bytes_left -= weight
        self._records_left -= count
        self._queue.append(record)
        self.next = offset + count
        if self._sleeping:
            self._wake()
        return offset

    def drop(self, count: int = 1) -> None:
        """*count* records were not taken: the next one that is will be preceded by a gap marker."""
        self.lost += count
        self.dropped += count

    def want(self, offset: int) -> None:
        """Sync every record before *offset* as soon as can be: somebody waits for it."""
        self.wanted = offset
        if self._sleeping or self._lingering:
            self._wake()

    def _wake(self) -> None:
        self._sleeping = self._lingering = False
        self._woken.set()

    def stop(self, at: int) -> None:
        """Write what is left, and end; *at* is the time of a last gap marker. See `join`."""
        if self.lost:
            lost, self.lost = self.lost, 0
            self.put((at, None, lost, 0))
        self._stopping = True
        self._woken.set()

    def join(self, seconds: float) -> bool:
        """Wait in another thread until all is written; False: the disk takes nothing."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def figures(self) -> dict[str, int]:
        """What `$SYS` says of it."""
        return {
            "appended": self.next,
            "written": self.written,
            "synced": self.synced,
            "dropped": self.dropped,
            "queued": self.waiting,
            "queued bytes": self.waiting_bytes,
            "bytes": self.bytes,
            "segments": self.segments,
            "sync microseconds": int(self.sync_seconds * 1_000_000),
            "sync failures": self.sync_failures,
        }

    # ---- the thread's

    def _run(self) -> None:
        try:
            while self._queue or not self._stopping:
                self._turn()
            self._end()
        except _Stopped:
            waiting = self.waiting
            log.error("%s: %d records are lost: %s", self._name, waiting, self.failure)
        except Exception:
            log.exception("%s: the thread that writes it has failed", self._name)
            self.failure = OSError("the thread that writes the log has failed")
            self.terms.state(self.failure)

    @property
    def _name(self) -> str:
        return f"message log {self.terms.root}, {self.terms.kind}"

    def _turn(self) -> None:
        if self._queue:
            self._take()
            self._write()
        else:
            self._rest()
        self._keep_deadlines()

    def _rest(self) -> None:
        """Until there is something to do; then a little longer, so that one wake-up serves many records."""
        timeout = self._until_deadline()
        self._woken.clear()
        self._sleeping = True
        if not self._queue and not self._stopping and self.wanted <= self.synced:
            self._woken.wait(timeout)
        self._sleeping = False
        if not self._queue:
            return
        self._woken.clear()
        self._lingering = True
        if self.wanted <= self.synced and not self._stopping:
            self._woken.wait(LINGER)
        self._lingering = False

    def _take(self) -> None:
        """Format up to a batch: groups of one hour each."""
        terms, queue, offset = self.terms, self._queue, self.taken
        lines: list[bytes] = []
        most, turn, size, low, first_at = offset + BATCH, offset + TURN, 0, 0, 0
        while offset < most and queue and size < BATCH_BYTES:
            record = queue.popleft()
            size += record[-1]
            at, what = record[0], record[1]
            if not low <= at < low + HOUR or not lines:
                self._group(lines, first_at)
                lines, low, first_at = [], at - at % HOUR, at
            if what.__class__ is int and terms.format_run is not None:
                lines += terms.format_run(offset, record)
                offset += what
            elif what is None:
                lines.append(format_gap(offset, at, record[2]))
                offset += 1
            else:
                lines.append(terms.format(offset, record))
                offset += 1
            if offset >= turn:
                turn = offset + TURN
                time.sleep(0)
        self._group(lines, first_at)
        self.taken = offset
        self._taken_bytes += size
        if self.crowded and self._has_room():
            self.crowded = False
            terms.room()

    def _has_room(self) -> bool:
        terms = self.terms
        few = 2 * (self.next - self.taken) <= terms.maximum_records
        return few and 2 * self.waiting_bytes <= terms.maximum_bytes

    def _group(self, lines: list[bytes], at: int) -> None:
        if lines:
            self._groups.append(Group(b"".join(lines), len(lines), at))

    def _write(self) -> None:
        """All groups into files, however long the disk takes nothing. Raises _Stopped."""
        while self._groups:
            group = self._groups[0]
            segment = self._segment
            if segment is not None and segment.hour != group.at // HOUR:
                self._close()
                continue
            try:
                if segment is None:
                    segment = self._open(group.at)
                segment.append(group.data, group.records)
            except OSError as error:
                self._failed(error)
                continue
            self._groups.popleft()
            self.written += group.records
            self.bytes += len(group.data)
            if self.terms.fsync != "none":
                self._kept.append(group)
                self._kept_bytes += len(group.data)
            else:
                self._works()

    def _open(self, at: int) -> Segment:
        terms = self.terms
        name = OpenSegment(terms.node, terms.epoch, self.written)
        self._segment = Segment(terms.root, terms.kind, name, at, terms.gz, terms.disk)
        self._opened_at = terms.clock()
        return self._segment

    def _until_deadline(self) -> float | None:
        """Seconds until something is due; None: nothing will be."""
        segment, now = self._segment, self.terms.clock()
        if segment is None:
            return None
        due = self._opened_at + self.terms.segment_seconds
        if self.terms.fsync != "none" and segment.synced < segment.size:
            due = min(due, self._synced_at + self.terms.fsync_interval)
        return max(0.0, due - now)

    def _keep_deadlines(self) -> None:
        segment, now = self._segment, self.terms.clock()
        if segment is None:
            return
        terms = self.terms
        unsynced = terms.fsync != "none" and segment.synced < segment.size
        overdue = now - self._synced_at >= terms.fsync_interval or self._kept_bytes >= UNSYNCED
        if unsynced and (overdue or self.wanted > self.synced):
            self._sync()
        if self._segment is segment:
            segment.compress()
            if segment.size >= terms.segment_bytes or now - self._opened_at >= terms.segment_seconds:
                self._close()

    def _sync(self) -> None:
        """What is written is on the disk. If that fails it is written anew, into another file."""
        failures = 0
        while self._segment is not None:
            before = self.terms.clock()
            try:
                self._segment.sync()
            except OSError as error:
                self._abandon(error)
                failures += 1
                if failures > 1:
                    self._failed(error)
                self._write()
                continue
            now = self.terms.clock()
            self.sync_seconds, self._synced_at = now - before, now
            self._note_synced()
            return

    def _note_synced(self) -> None:
        self._kept, self._kept_bytes = [], 0
        self.synced = self.written
        self._works()
        self.terms.synced(self.synced)

    def _abandon(self, error: OSError) -> None:
        """The segment could not be synced: its unsynced groups are to be written again."""
        segment, self._segment = self._segment, None
        assert segment is not None
        self.sync_failures += 1
        log.error("%s: %s cannot be synced: %s; a new one is begun", self._name, segment.path, error)
        again = self.terms.fsync != "none" and not self._stopping  # else it is better than nothing
        try:
            place = segment.abandon(cut=again)
        except OSError as second:
            log.error("%s: %s is left where it is: %s", self._name, segment.path, second)
        else:
            self._published(place)
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        if again:
            self._groups.extendleft(reversed(kept))
            self.written -= sum(group.records for group in kept)
            self.bytes -= sum(len(group.data) for group in kept)

    def _close(self) -> None:
        """Publish the segment, however long that takes."""
        while (segment := self._segment) is not None:
            if self.terms.fsync != "none":
                self._sync()
                if self._segment is not segment:
                    continue
            try:
                segment.sync()
            except OSError as error:
                self._abandon(error)
                continue
            try:
                place = segment.close()
            except OSError as error:
                self._failed(error)
                continue
            self._segment = None
            self._note_synced()
            self._published(place)

    def _published(self, place: Path | None) -> None:
        if place is not None:
            self.segments += 1
            self.terms.closed(place)

    def _end(self) -> None:
        self._close()

    # ---- a disk that takes nothing

    def _failed(self, error: OSError) -> None:
        """Say so once, and wait a moment before the next try. Raises _Stopped when there is none."""
        if self.failure is None:
            log.error("%s: cannot be written: %s; tried again each second", self._name, error)
            self.failure = error
            self.terms.state(error)
        if self._stopping:
            raise _Stopped
        self._woken.clear()
        self._woken.wait(RETRY)

    def _works(self) -> None:
        if self.failure is not None:
            log.warning("%s: is written again", self._name)
            self.failure = None
            self.terms.state(None)


class _Stopped(Exception):
    """There is no time for another try."""
