"""A broker with a store that is killed or stopped and comes back, and whose disk fails or stands still."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from broker import Broker, Config
from broker.errors import StoreError
from broker.store import journal as journals
from broker.store.base import Batch
from broker.store.journal import Journal
from tests.broker_scenes import config
from tests.peer import WAIT, Clock, Peer, memory_broker


def journal_of(broker: Broker) -> Journal:
    return broker._core.journal


async def committed(broker: Broker) -> None:
    """Wait until all that has changed is in the file."""
    async with asyncio.timeout(WAIT):
        await journal_of(broker).settle(journal_of(broker).latest)


async def until(condition: Any, what: str = "") -> None:
    """Wait for something that another thread has a part in."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT):
            while not condition():
                await asyncio.sleep(0.001)
    assert condition(), what


@contextlib.contextmanager
def broken_disk(broker: Broker, full: bool = True) -> Iterator[None]:
    """Nothing can be written meanwhile; each try comes soon after the one before."""
    store: Any = journal_of(broker).store

    def refuse(batch: Batch) -> None:
        raise StoreError(f"{store.path}: no room" if full else f"{store.path}: I/O error", full=full)

    store.write = refuse
    try:
        with mock.patch.object(journals, "RETRY", 0.005):
            yield
    finally:
        del store.write


async def failed(broker: Broker) -> None:
    await until(lambda: journal_of(broker).failure is not None, "the store has not failed")


async def recovered(broker: Broker) -> None:
    await until(lambda: journal_of(broker).failure is None, "the store has not recovered")


@contextlib.asynccontextmanager
async def slow_disk(broker: Broker) -> AsyncIterator[None]:
    """No commit ends meanwhile: what is acknowledged inside was acknowledged too early."""
    store: Any = journal_of(broker).store
    go_on, write = threading.Event(), store.write

    def wait(batch: Batch) -> None:
        assert go_on.wait(4 * WAIT)
        write(batch)

    await committed(broker)
    store.write = wait
    try:
        yield
    finally:
        del store.write
        go_on.set()


class Machine:
    """One store, the brokers that have it one after the other, and time, which goes on while none does."""

    def __init__(self, folder: Path, settings: Config | None = None, **kwargs: Any) -> None:
        self._folder = folder
        self._config = settings or config()
        self._kwargs = kwargs
        self._brokers: list[Broker] = []
        self.clock = Clock()  # of the broker that is there now: each begins anew
        self.wall = Clock(1_700_000_000.0)

    async def __aenter__(self) -> Machine:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in reversed(self._brokers):
            await broker.stop()

    @property
    def broker(self) -> Broker:
        return self._brokers[-1]

    @property
    def path(self) -> Path:
        return self._folder / f"{len(self._brokers)}.db"

    async def _start(self) -> None:
        path = self._folder / f"{len(self._brokers) + 1}.db"
        self.clock = Clock(1000.0 * (7 - len(self._brokers)))
        self._brokers.append(
            memory_broker(self._config, store=path, clock=self.clock, wall=self.wall, **self._kwargs)
        )
        await self.broker.start()

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds

    async def advance(self, seconds: float) -> None:
        """Time passes, and the broker looks at its deadlines."""
        self.pass_time(seconds)
        await self.broker.sweep()

    async def restart_as(self, kill: bool, down: float = 0.0) -> None:
        """The broker ends, by a *kill* or a clean stop; *down* seconds later there is another."""
        await (self.kill(down) if kill else self.stop(down))

    def _copy(self) -> None:
        """What is in the files at this moment, and nothing of what a process has in memory."""
        journal = journal_of(self.broker)
        assert not journal._busy or "write" in vars(journal.store), "a commit is under way"
        after = self._folder / f"{len(self._brokers) + 1}.db"
        for suffix in ("", "-wal"):
            file = Path(f"{self.path}{suffix}")
            if file.exists():
                shutil.copy(file, f"{after}{suffix}")

    async def kill(self, down: float = 0.0, *, at_once: bool = False) -> None:
        """`kill -9`, when everything is committed; *at_once*: what is not committed is lost."""
        if not at_once:
            await committed(self.broker)
            await until(lambda: not journal_of(self.broker)._busy)
        self._copy()
        self.wall.now += down
        await self._start()

    async def stop(self, down: float = 0.0) -> None:
        """A clean stop and another start."""
        await self.broker.stop()
        self._copy()
        self.wall.now += down
        await self._start()

    def peer(self, *args: Any) -> Peer:
        return Peer(self.broker, *args)
