"""Journal: changes of durable state on their way to the disk, and the one place where promises wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.errors import BrokerError, MqttError, ReasonCode, StoreError, StoreUnavailable
from broker.packet.message import Message
from broker.store.base import Batch, DurableStore, Encode, Fsync, Levels, StoreClock, Table, Waiter
from broker.store.rows import made, message_row

log = logging.getLogger("broker.store")

RETRY = 1.0  # seconds between two tries while the store cannot be written
NOTE = 1.0  # seconds between two notes of the clock
STOP = 10.0  # seconds that a stop waits for the disk
GIVE_WAY = 0.001  # seconds after which a busy event loop lets the writer have the interpreter
GIVEN = 0.0001  # seconds for which it does

# Rows by which a copy of a message is acknowledged after a restart, and nobody hears of it again.
CLAIMS = frozenset({Table.HELD, Table.NOTE})
MESSAGE = Table.MESSAGE  # a member of an enumeration takes longer to be looked up

Changes = dict[Table, dict[int, "tuple[Encode, Any] | None"]]


class MessageRecord:
    """The row of one Message, shared by all that hold it: queues, in-flight tables, retained store."""

    __slots__ = ("id", "journal", "references")

    def __init__(self, journal: Journal, number: int) -> None:
        self.journal = journal  # a hook may keep a message longer than the broker lives
        self.id = number
        self.references = 0


class Journal:
    """Collects changes in an open batch while the writer thread commits the one before.

    Belongs to the event loop's thread. There is no timer: a batch is closed when the writer is free, so
    it is as large as what came meanwhile. What is put and deleted again in the same batch is never
    written. Whoever may not say something before it is stored asks `promise` for the number of the
    batch and waits with `wait`; all of them are told in `_release`, and nowhere else.

    Without a store nothing is ever put, and nobody waits.
    """

    def __init__(self, store: DurableStore | None, levels: Levels, clock: Callable[[], float]) -> None:
        self.store = store
        self.levels = levels
        self._clock = clock
        self._wall: Callable[[], float] = lambda: 0.0
        self.offset = 0.0  # what the store's clock is ahead of ours
        self.number = 1  # of the open batch
        self.changes = 0  # puts and deletes, ever: whoever compares two looks knows whether there were any
        self.done = 0  # the newest batch that is committed, and with it all before
        self.latest = 0  # the newest batch with changes that is not committed; 0: all are
        self.ready = False  # the store is open, and all of it is in memory
        self.gate = 0  # while set: whatever is routed now leaves after this batch
        self.failure: StoreError | None = None
        self.told: Callable[[StoreError | None], None] = lambda failure: None  # of a failure, and of its end
        self.still_held: Callable[[], asyncio.Future[None] | None] = lambda: None  # what hooks keep elsewhere
        self.commits = self.rows = self.failures = 0
        self._last_id = 0
        self._message_row = partial(message_row, offset=0.0)
        self._open: Changes = {table: {} for table in Table}
        self._fresh: dict[Table, set[int]] = {table: set() for table in Table}  # not on disk, not on its way
        self._fsync = Fsync.NEVER
        self._on_its_way: tuple[Changes, Fsync] = ({}, Fsync.NEVER)
        self._failed: dict[MessageRecord, list[Any]] = {}  # while waiters are told: what holds a message
        self._waiting: dict[Waiter, None] = {}
        self._noted_at, self._note_due = 0.0, True
        self._ahead = 0.0  # what the wall clock is ahead of ours, as noted last
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False  # the writer has a batch, or will have it when `_until` is done
        self._until: asyncio.Future[None] | None = None
        self._due = False  # a hand-over is scheduled
        self._giving_way = False

    # ---- life

    def start(self, noted: StoreClock | None, wall: Callable[[], float]) -> None:
        """The store is open: its clock goes on from where it was *noted*, with the time in between.

        A wall clock that went back meanwhile counts as no time; one that jumps later changes nothing.
        """
        assert self.store is not None
        self._wall, now = wall, wall()
        time = now if noted is None else noted.time + max(0.0, now - noted.wall)
        self.offset = time - self._clock()
        self._message_row = partial(message_row, offset=self.offset)
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(self.store, self._loop, self._written)
        self._writer.start()

    async def stop(self) -> None:
        """Commit what is open, note the time, close the store. What cannot be written is logged."""
        writer, self._writer = self._writer, None
        self.ready = False
        if writer is None:
            return
        try:
            async with asyncio.timeout(STOP):
                await self._idle(writer)
                self._busy = True
                self._note_due = True
                self._submit(writer, self._close_batch())
                await self._idle(writer)
                if self.failure is not None:
                    log.error("stopped with changes that are not stored, and were not acknowledged")
                await writer.close()
        except TimeoutError:
            log.error("the disk has not answered for %g s: stopped without it", STOP)

    async def _idle(self, writer: Writer) -> None:
        while self._until is not None:
            await asyncio.wait([self._until])
            await asyncio.sleep(0)  # `_held_no_more` is called
        await writer.idle()

    @property
    def started(self) -> bool:
        """Whether the store was opened, ever."""
        return self._loop is not None

    @property
    def writes(self) -> bool:
        """Whether there is a store."""
        return self.store is not None

    def gauges(self) -> dict[str, int | str]:
        """What `$SYS` says of the store."""
        if self.store is None:
            return {}
        return {
            "store/state": "ok" if self.failure is None else f"failed: {self.failure}",
            "store/commits": self.commits,
            "store/rows": self.rows,
            "store/failures": self.failures,
            "store/waiting": len(self._waiting),
        }

    # ---- changes

    def known(self, number: int) -> None:
        """The store has a row *number* already."""
        self._last_id = max(self._last_id, number)

    def new_id(self, count: int = 1) -> int:
        """A row identifier that was never used, or the first of *count* in a row; they grow."""
        self._last_id += count
        return self._last_id - count + 1

    def put(self, table: Table, number: int, encode: Encode, source: Any, *, new: bool = False) -> None:
        """Write the row that *encode* makes of *source* when the batch is closed; *new*: none is there."""
        if new:
            self._fresh[table].add(number)
        self._open[table][number] = (encode, source)
        self.changes += 1
        self.latest = self.number
        if not (self._due or self._busy):
            self._schedule()

    def delete(self, table: Table, number: int) -> None:
        """Delete a row; one that is new in this batch costs nothing."""
        fresh = self._fresh[table]
        if number in fresh:
            fresh.remove(number)
            del self._open[table][number]
            self.changes += 1
            return
        self._open[table][number] = None
        self.changes += 1
        self.latest = self.number
        self._schedule()

    def refer(self, message: Message) -> int:
        """One more holds *message*; gives its row."""
        record = message.record
        if record is None or record.journal is not self:
            number = self._last_id = self._last_id + 1
            record = message.record = MessageRecord(self, number)
            self.put(MESSAGE, number, self._message_row, message, new=True)
        elif record.references == 0:  # let go and taken up again, as at PUBREL
            self._put_again(record, message)
        record.references += 1
        return record.id  # type: ignore[no-any-return]

    def _put_again(self, record: MessageRecord, message: Message) -> None:
        pending = self._open[Table.MESSAGE]
        if record.id in pending and self.failure is None:
            del pending[record.id]  # it was about to be deleted: it stays as it is
        else:  # never written, deleted by an earlier batch, or part of one that failed
            new = record.id not in pending
            self.put(Table.MESSAGE, record.id, self._message_row, message, new=new)

    def let_go(self, message: Message) -> None:
        """One less holds *message*; its row goes with the last."""
        record = message.record
        record.references -= 1
        if record.references == 0:
            self.delete(MESSAGE, record.id)

    # ---- promises

    def promise(self, before: int, topic_name: str | None = None) -> int:
        """The batch that must be committed before what changed since *before* is acknowledged; 0: none.

        *before* is an earlier look at `changes`. The batch becomes as durable as *topic_name* asks for.
        """
        if self.changes == before:
            return 0
        if self.latest != self.number:
            return self.latest
        level = self.levels.default if topic_name is None else self.levels.of(topic_name)
        if level > self._fsync:
            self._fsync = level
        return self.number

    def wait(self, waiter: Waiter) -> None:
        """Tell *waiter* of every commit until it says that it waits no more."""
        self._waiting[waiter] = None
        self._schedule()

    def see_to_clock(self) -> None:
        """Note it when the wall clock has jumped: or the jump would count as time that we were not there."""
        if self._writer is not None and abs(self._wall() - self._clock() - self._ahead) > NOTE:
            self._note_due = True
            self._schedule()

    async def settle(self, number: int, message: Message | None = None) -> None:
        """Wait for the commit of batch *number*. Raises StoreUnavailable when it fails.

        Then *message*, which is what was to be stored, is taken back.
        """
        if number > self.done:
            self.check_open()
            future = asyncio.get_running_loop().create_future()
            revoke = None if message is None else partial(self.revoke, message)
            self.wait(Settling(number, future, revoke))
            await future

    async def settled(self, seconds: float) -> None:
        """Let what is on its way get to the disk, for *seconds* at most."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(seconds):
                await self.settle(self.latest)

    # ---- the writer

    def _schedule(self) -> None:
        """Hand over at the end of this turn of the loop, unless that is seen to already."""
        if not (self._due or self._busy or self.failure or self._loop is None):
            self._due = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """The writer is free: it gets what is open, if anything is."""
        self._due = False
        if self._busy or self._writer is None:
            return
        if not (any(self._open.values()) or self._note_due or self.failure):  # all of it was deleted again
            self.number += 1
            self._fsync = Fsync.NEVER
            self._release(self.number - 1)
            return
        self._busy = True
        self._submit(self._writer, self._close_batch())

    def _submit(self, writer: Writer, batch: Batch) -> None:
        """Have it committed; with CLAIMS when what hooks were told of is where they keep it.

        Else a kill in between would leave a message that is acknowledged, since its copy is, and that
        they never had.
        """
        until = None if CLAIMS.isdisjoint(batch.rows) else self.still_held()
        if until is not None:
            self._until = until
            until.add_done_callback(partial(self._held_no_more, writer, batch))
            return
        writer.submit(batch)
        if not self._giving_way:
            self._give_way()

    def _held_no_more(self, writer: Writer, batch: Batch, until: asyncio.Future[None]) -> None:
        self._until = None
        error = None if until.cancelled() else until.exception()
        if error is None:
            writer.submit(batch)
            return
        full = isinstance(error, MqttError) and error.reason == ReasonCode.QUOTA_EXCEEDED
        self._written(batch, StoreError(f"the store waits for what a hook keeps: {error}", full=full))

    def _close_batch(self) -> Batch:
        now = self._clock()
        batch = Batch(self.number, self._fsync)
        batch.rows = {table: made(changes) for table, changes in self._open.items() if changes}
        if self._note_due or now - self._noted_at >= NOTE:
            batch.clock = StoreClock(now + self.offset, self._wall())
            self._noted_at, self._note_due = now, False
            self._ahead = batch.clock.wall - now
        self._on_its_way = (self._open, self._fsync)
        self._open = {table: {} for table in Table}
        self._fresh = {table: set() for table in Table}
        self._fsync = Fsync.NEVER
        self.number += 1
        return batch

    def _give_way(self) -> None:
        """Let a waiting writer have the interpreter for a moment.

        A loop that is busy with sockets takes the interpreter lock back before the woken writer gets it:
        one commit took 110 ms then, and takes 0.4 ms with this (CPython 3.11, 2 cores).
        """
        writer, loop = self._writer, self._loop
        self._giving_way = False
        if self._busy and writer is not None and loop is not None:
            self._giving_way = True
            writer.let_work(GIVEN)
            loop.call_later(GIVE_WAY, self._give_way)

    def _written(self, batch: Batch, failure: StoreError | None) -> None:
        """The writer is done with *batch*, in the event loop's thread."""
        self._busy = False
        (changes, fsync), self._on_its_way = self._on_its_way, ({}, Fsync.NEVER)
        if failure is not None:
            self._merge(changes, fsync)
            self._fail(batch.number, failure, changes)
            return
        self.commits += 1
        self.rows += len(batch)
        recovered, self.failure = self.failure is not None, None
        if recovered:
            log.warning("the store can be written again")
            self.told(None)
        self._release(batch.number)
        if any(self._open.values()) or self._waiting:
            self._hand_over()

    def _release(self, number: int) -> None:
        """THE place where promises are kept: all that waited for batch *number* may go out now."""
        self.done = number
        if self.latest <= number:
            self.latest = 0
        self._tell(lambda waiter: waiter.committed(number))

    def _tell(self, tell: Callable[[Waiter], bool]) -> None:
        """Tell each waiter, in order; one that breaks waits no more, and keeps no other from hearing it."""
        for waiter in tuple(self._waiting):
            try:
                if tell(waiter):
                    continue
            except Exception:
                log.exception("unexpected error in what waited for the store")
            self._waiting.pop(waiter, None)

    # ---- failure

    def _merge(self, changes: Changes, fsync: Fsync) -> None:
        """What could not be written goes into the open batch, below what has changed since.

        Nothing of it is new any more: a write that failed may have reached the file all the same.
        """
        for table, before in changes.items():
            self._fresh[table] -= before.keys()
            self._open[table] = {**before, **self._open[table]}
        self._fsync = max(self._fsync, fsync)
        if any(self._open.values()):
            self.latest = self.number

    def _fail(self, number: int, failure: StoreError, changes: Changes) -> None:
        self.failures += 1
        first = self.failure is None
        if first:
            log.error("%s; until it can be written again, what needs the store is refused", failure)
            self.told(failure)
        self.failure = failure
        for table in (Table.DELIVERY, Table.RETAINED):
            for _, source in filter(None, changes[table].values()):
                self._failed.setdefault(source.message.record, []).append(source)
        error = StoreUnavailable(failure)
        self._tell(lambda waiter: waiter.not_committed(number, error))
        self._failed.clear()
        # At once for the first time: a commit that failed in its sync stands in the file until the next one
        # takes its place, and a crash would bring back what was refused.
        asyncio.get_running_loop().call_later(0 if first else RETRY, self._hand_over)

    def revoke(self, message: Message) -> None:
        """While waiters are told of a failure: *message*, which is refused now, leaves what held it."""
        for source in self._failed.pop(message.record, ()):
            source.revoke()

    def check_open(self) -> None:
        """Raises BrokerError while there is a store that is not open."""
        if self.store is not None and not self.ready:
            raise BrokerError(f"the store {self.store.path} is not open: start the broker first")

    def check(self) -> None:
        """Raises StoreUnavailable while the store cannot be written."""
        if self.failure is not None:
            raise StoreUnavailable(self.failure)


class Settling:
    """A coroutine that waits for one batch."""

    def __init__(self, number: int, future: asyncio.Future[None], revoke: Callable[[], None] | None) -> None:
        self._number = number
        self.future = future
        self._revoke = revoke

    def committed(self, number: int) -> bool:
        if number < self._number:
            return True
        if not self.future.done():
            self.future.set_result(None)
        return False

    def not_committed(self, number: int, failure: Exception) -> bool:
        if number < self._number:
            return True
        if self._revoke is not None:
            self._revoke()
        if not self.future.done():
            self.future.set_exception(failure)
        return False


class Writer(threading.Thread):
    """The thread that commits: one batch at a time, each answered in the event loop's thread."""

    def __init__(
        self,
        store: DurableStore,
        loop: asyncio.AbstractEventLoop,
        written: Callable[[Batch, StoreError | None], None],
    ) -> None:
        super().__init__(name="pybroker-store", daemon=True)
        self._store = store
        self._loop = loop
        self._answer = written
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._working = threading.Lock()  # held from the hand-over to the answer
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, batch: Batch) -> None:
        """Commit *batch*; the writer must be idle."""
        self._idle.clear()
        self._working.acquire()
        self._batches.put(batch)

    def let_work(self, seconds: float) -> None:
        """Give the interpreter away until the batch is done, for *seconds* at most."""
        if self._working.acquire(timeout=seconds):
            self._working.release()

    async def idle(self) -> None:
        """Wait until the last batch is answered."""
        await self._idle.wait()

    async def close(self) -> None:
        """Close the store and end the thread."""
        self._batches.put(None)
        await asyncio.to_thread(self.join)

    def run(self) -> None:
        while (batch := self._batches.get()) is not None:
            failure: StoreError | None = None
            try:
                self._store.write(batch)
            except StoreError as error:
                failure = error
            except Exception as error:
                log.exception("unexpected error in the store")
                failure = StoreError(f"{self._store.path}: {error}")
            self._working.release()
            self._loop.call_soon_threadsafe(self._done, batch, failure)
            del batch  # nothing is held until the next one
        try:
            self._store.close()
        except StoreError as error:
            log.error("%s", error)

    def _done(self, batch: Batch, failure: StoreError | None) -> None:
        self._idle.set()
        self._answer(batch, failure)
