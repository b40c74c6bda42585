"""A journal whose writer answers when the test says so, over a store of dictionaries, in its own time."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from unittest import mock

from broker.errors import StoreError
from broker.packet.message import Message
from broker.store import journal as journals
from broker.store.base import Batch, Fsync, Row, StoreClock, Table, levels_of
from broker.store.journal import Journal
from tests.peer import Clock

Rows = dict[Table, dict[int, Row]]


class FakeStore:
    """A DurableStore without a disk. While `failure` is set nothing can be written."""

    path = "fake.db"

    def __init__(self) -> None:
        self.rows: Rows = {table: {} for table in Table}
        self.batches: list[Batch] = []  # those that were committed
        self.noted: StoreClock | None = None
        self.failure: Exception | None = None
        self.opened = self.closed = 0

    def open(self) -> StoreClock | None:
        self.opened += 1
        return self.noted

    def read(self, table: Table) -> Iterable[tuple[int, Row]]:
        return sorted(self.rows[table].items())

    def write(self, batch: Batch) -> None:
        if self.failure is not None:
            raise self.failure
        for table, changes in batch.rows.items():
            for number, row in changes.items():
                if row is None:
                    self.rows[table].pop(number, None)
                else:
                    self.rows[table][number] = row
        self.noted = batch.clock or self.noted
        self.batches.append(batch)

    def close(self) -> None:
        self.closed += 1

    def fail(self, full: bool = True) -> None:
        self.failure = StoreError("fake.db: no room" if full else "fake.db: broken", full=full)

    def mend(self) -> None:
        self.failure = None


class HandWriter:
    """In the place of the thread: a batch is written by `finish`, or at the end of the turn if `at_once`."""

    at_once = False

    def __init__(self, store: FakeStore, loop: Any, answer: Callable[..., None]) -> None:
        self._store, self._loop, self._answer = store, loop, answer
        self.batch: Batch | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        pass

    def submit(self, batch: Batch) -> None:
        assert self.batch is None, "the writer is busy"
        self.batch = batch
        self._idle.clear()
        if self.at_once:
            self._loop.call_soon(self.finish)

    def let_work(self, seconds: float) -> None:
        pass

    def finish(self) -> None:
        """The disk has answered."""
        batch, self.batch, failure = self.batch, None, None
        assert batch is not None, "the writer has nothing to do"
        try:
            self._store.write(batch)
        except StoreError as error:
            failure = error
        self._idle.set()
        self._answer(batch, failure)

    async def idle(self) -> None:
        await self._idle.wait()

    async def close(self) -> None:
        self._store.close()


class Waits:
    """A Waiter for one batch, or for several: what it was told, in order, into a list that others share."""

    def __init__(self, name: str, number: int, told: list[tuple[str, str]]) -> None:
        self.name, self.number, self.told = name, number, told
        self.failure: Any = None

    def committed(self, number: int) -> bool:
        if number < self.number:
            return True
        self.told.append((self.name, "committed"))
        return False

    def not_committed(self, number: int, failure: Exception) -> bool:
        if number < self.number:
            return True
        self.failure = failure
        self.told.append((self.name, "refused"))
        return False


def row_of(value: Any) -> Row:
    return Row((value,))


class Bench:
    """One journal and what is around it."""

    def __init__(self, fsync: str = "always", fsync_for: tuple[str, ...] = (), at_once: bool = False) -> None:
        self.clock, self.wall = Clock(100.0), Clock(5000.0)
        self.store = FakeStore()
        self.journal = Journal(self.store, levels_of(fsync, fsync_for), self.clock)
        self.told: list[tuple[str, str]] = []
        self.at_once = at_once
        self.failures: list[StoreError | None] = []
        self.journal.told = self.failures.append

    def start(self) -> None:
        with mock.patch.object(journals, "Writer", HandWriter):
            self.journal.start(self.store.open(), self.wall)  # type: ignore[arg-type]
        self.writer.at_once = self.at_once
        self.journal.ready = True

    @property
    def writer(self) -> HandWriter:
        writer: Any = self.journal._writer
        return writer

    def put(self, number: int, value: Any = "x", table: Table = Table.SESSION, new: bool = True) -> None:
        self.journal.put(table, number, row_of, value, new=new)

    def wait(self, name: str, number: int) -> Waits:
        waiter = Waits(name, number, self.told)
        self.journal.wait(waiter)
        return waiter

    async def turn(self) -> None:
        """The loop goes round: what is open is handed over if the writer is free."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def commit(self, *, fail: bool = False) -> Batch:
        """Hand over, and let the disk answer."""
        await self.turn()
        batch = self.writer.batch
        assert batch is not None, "nothing was handed over"
        if fail:
            self.store.fail()
        self.writer.finish()
        self.store.mend()
        return batch

    async def quiet(self) -> None:
        """Let everything get to the disk."""
        await self.turn()
        while self.writer.batch is not None:
            self.writer.finish()
            await self.turn()

    def stored(self, table: Table = Table.SESSION) -> dict[int, Any]:
        return {number: row.values[0] for number, row in self.store.rows[table].items()}

    async def later(self, seconds: float) -> None:
        """Time passes, for the loop too."""
        self.clock.now += seconds
        self.wall.now += seconds
        await self.turn()


class Holds:
    """What holds a message, as far as a journal sees it."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.revoked = 0

    def revoke(self) -> None:
        self.revoked += 1


def hold(bench: Bench, message: Message, table: Table = Table.DELIVERY) -> Holds:
    held = Holds(message)
    bench.journal.refer(message)
    bench.journal.put(
        table, bench.journal.new_id(), lambda found: row_of(found.message.record.id), held, new=True
    )
    return held


def loop_of(clock: Clock) -> asyncio.AbstractEventLoop:
    """A loop whose timers are on *clock*. Nothing in it may wait for anything else than a turn."""
    loop = asyncio.new_event_loop()
    loop.time = clock  # type: ignore[method-assign]
    return loop


def with_bench(*, started: bool = True, **fields: Any) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """A test that is a coroutine and takes a Bench, in a loop of the bench's own time."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Any:
        @functools.wraps(test)
        def run(**params: Any) -> None:
            bench = Bench(**fields)
            loop = loop_of(bench.clock)

            async def whole() -> None:
                if started:
                    bench.start()
                    bench.journal.see_to_clock()  # written once, so that it is in nobody's way
                    await bench.quiet()
                    bench.store.batches.clear()
                await test(bench, **params)

            try:
                loop.run_until_complete(whole())
            finally:
                loop.close()

        del run.__wrapped__  # type: ignore[attr-defined]
        return _without_first(run, test)

    return decorate


def _without_first(run: Any, test: Any) -> Any:
    """pytest must not look for a fixture called `bench`."""
    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    return run


__all__ = [
    "Bench",
    "FakeStore",
    "Fsync",
    "HandWriter",
    "Holds",
    "Rows",
    "Waits",
    "hold",
    "loop_of",
    "row_of",
    "with_bench",
]
