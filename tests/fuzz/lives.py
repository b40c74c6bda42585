"""Brokers that share a store, one after the other: killed or stopped, with a disk that is slow or fails.

Everything is in memory and in the conversation's own time. Clients do what the bytes say; two others know
what they are owed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

from broker import Broker, MqttError
from broker.errors import BrokerError
from broker.store import journal as journals
from tests.fuzz.conversations import (
    ACKNOWLEDGE,
    CONNECT,
    FOR_EVER,
    OF_A_ROGUE,
    OTHER,
    PUBLISH,
    SETTINGS,
    SUBSCRIBE,
    Listening,
    Shelf,
    Whims,
    choose,
    config,
    move,
    settings,
)
from tests.fuzz.pieces import Draw, split_records
from tests.fuzz.rogue import TOPICS, Rogue
from tests.fuzz.target import Target
from tests.fuzz.witness import Publisher, Subscriber, check
from tests.peer import Clock, memory_broker
from tests.store.make import FakeStore, HandWriter
from tests.wire import turns

MOST = 40  # moves of one input
# Choices under which a message may be dropped or forgotten though all do right, so not here.
NOT_HERE = (
    *("stops", "maximum_bytes", "maximum_queued_messages", "maximum_queued_bytes", "queue_full"),
    *("message_expiry_interval", "maximum_qos", "session_expiry_interval", "maximum_sessions"),
    *("maximum_connections_per_user", "receive_maximum"),
)


class Jumping(selectors.DefaultSelector):
    """Whoever waits for a time has it at once: the clock jumps there when there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.clock.now += timeout
        return ready


def jumping_loop() -> asyncio.AbstractEventLoop:
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = selector.clock  # type: ignore[method-assign]
    return loop


def hurry(writer: HandWriter) -> None:
    """From now on the disk answers at once, and now if it is asked already."""
    if not writer.at_once:
        writer.at_once = True
        if writer.batch is not None:
            writer.finish()


class Lives:
    """One store and who comes to it."""

    def __init__(self, chosen: dict[str, dict[str, Any]]) -> None:
        self._chosen = chosen
        self.clock, self.wall = Clock(), Clock(1e9)
        self.store = FakeStore()
        self.publisher, self.subscriber = Publisher(), Subscriber()
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """A new broker for the store, and everybody comes to it."""
        hooks = [Whims()] * self._chosen["scene"]["hooks"] + [Shelf()] * self._chosen["scene"]["shelf"]
        broker = memory_broker(
            config(self._chosen), hooks=hooks, store="fake.db", clock=self.clock, wall=self.wall
        )
        broker._core.journal.store = self.store
        with mock.patch.object(journals, "Writer", HandWriter):
            await broker.start()
        self.broker = broker
        hurry(self.writer)
        self.rogues = [Rogue(broker) for _ in range(4)]

    @property
    def writer(self) -> HandWriter:
        writer: Any = self.broker._core.journal._writer
        return writer

    async def play(self, data: bytes) -> None:
        for head, body in split_records(data)[:MOST]:
            draw, kind = Draw(body), head[0] & 0x3F
            if kind % 16 < len(OF_A_ROGUE):
                OF_A_ROGUE[kind % 16](self.rogues[head[0] >> 6], draw)
            else:
                await OF_ALL[(kind & 3) + 4 * (head[0] >> 7)](self, draw)
            await self.settle(kind >> 4)

    async def settle(self, count: int) -> None:
        await turns(count)
        for rogue in self.rogues:
            rogue.read()
        for witness in (self.publisher, self.subscriber):
            witness.take()
            if witness.lost:
                witness.connect(self.broker)

    # ---- moves

    async def publish(self, draw: Draw) -> None:
        """The one who is owed what is acknowledged publishes."""
        if self.subscriber.subscribed:
            for _ in range(draw.one_of((1, 3, 8))):
                self.publisher.publish(1 + draw.byte() % 2)

    async def disk(self, draw: Draw) -> None:
        """It answers at once, or when it is asked to; it fails, and works again."""
        what = draw.byte() % 6
        if what == AT_ONCE:
            hurry(self.writer)
        elif what == SLOW and self.writer.batch is None:
            self.writer.at_once = False
        elif what == FAILS:
            self.store.fail(draw.chance(2))
        elif what == WORKS:
            self.store.mend()
        elif not self.writer.at_once and self.writer.batch is not None:
            self.writer.finish()

    async def time(self, draw: Draw) -> None:
        seconds = draw.one_of((0.1, 1, 6, 31))
        self.clock.now += seconds
        self.wall.now += seconds
        self._go_on(self.broker.sweep())

    async def program(self, draw: Draw) -> None:
        """What the program that embeds the broker does, which may have to wait for the disk."""
        what, client_id, topic_name = draw.byte() % 4, draw.one_of(("c0", "c1", "given")), draw.one_of(TOPICS)
        if what == 0:
            self._go_on(self.broker.delete_session(client_id))
        elif what == 1:
            self._go_on(self.broker.disconnect(client_id))
        else:
            payload, qos = b"p" * draw.one_of((0, 1, 2000)), draw.byte() % 3
            self._go_on(self.broker.publish(topic_name, payload, qos=qos, retain=what == 2))

    async def end_of_life(self, draw: Draw) -> None:
        """A kill, before or after the commit that is on its way, or a stop; and another broker."""
        how, old, survives = draw.byte() % 4, self.broker, FakeStore()
        batch = self.writer.batch
        if how == 1 and batch is not None and self.store.failure is None:
            self.store.write(batch)
        if how == 3 and self.store.failure is None:
            await self._stop(old)
        survives.rows = {table: dict(rows) for table, rows in self.store.rows.items()}
        survives.noted, crashed, self.store = self.store.noted, self.store, survives
        if how != 3 or crashed.failure is not None:
            for witness in (self.publisher, self.subscriber):
                witness.drop()  # what the old one says from now on nobody hears
            crashed.mend()  # and what it writes nobody reads
            await self._stop(old)
        self.wall.now += draw.one_of((0.1, 5, 100))
        await self.begin()
        await self.settle(2)

    async def _stop(self, broker: Broker) -> None:
        writer: Any = broker._core.journal._writer
        hurry(writer)
        await broker.stop()
        for rogue in self.rogues:
            rogue.leave(1)
        await self._finished()

    async def wait(self, draw: Draw) -> None:
        await turns(draw.byte() % 32)

    # ---- what takes its time

    def _go_on(self, work: Coroutine[Any, Any, Any]) -> None:
        async def guarded() -> None:
            try:
                await work
            except MqttError:
                pass
            except BrokerError as error:
                assert "is not open" in str(error), error

        self.tasks.append(asyncio.create_task(guarded()))

    async def _finished(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            await task

    # ---- the end

    async def end(self) -> None:
        """With a disk that works everything is finished; then all leave for ever, and the store is empty."""
        self.store.mend()
        hurry(self.writer)
        journal = self.broker._core.journal
        for _ in range(400):
            await asyncio.sleep(0.05)  # of the loop's time: the journal tries again once a second
            await self.settle(1)
            if journal.failure is None and self.subscriber.subscribed and not self.publisher.unfinished:
                break
        else:
            raise AssertionError(f"never finished: {self.publisher.unfinished}, {journal.failure}")
        for _ in range(10):
            await self.settle(5)
        check(self.publisher, self.subscriber)
        await self._finished()
        await self._clear()

    async def _clear(self) -> None:
        for rogue in self.rogues:
            rogue.leave(1)
        self.publisher.drop()
        self.subscriber.drop()
        broker, core = self.broker, self.broker._core
        for _ in range(3):
            await turns(20)
            self.clock.now += FOR_EVER
            await broker.sweep()
        retained: Any = core.retained
        for topic_name in [*retained._index]:
            retained.delete(topic_name)
        await turns(20)
        assert not broker._connections and (core.tree.count, [*core.sessions]) == (0, []), "something stays"
        assert core.budget.used == 0, f"{core.budget.used} bytes of the budget are lost"
        assert core.journal.latest == 0 and core.journal._waiting == {}
        left = {table.name: rows for table, rows in self.store.rows.items() if rows}
        assert left == {}, f"rows that nobody deletes: {left}"


OF_ALL: tuple[Callable[[Lives, Draw], Coroutine[Any, Any, None]], ...] = (
    *(Lives.disk, Lives.publish, Lives.end_of_life, Lives.time, Lives.disk, Lives.publish),
    *(Lives.program, Lives.wait),
)


async def episode(data: bytes) -> None:
    chosen = choose(data[:SETTINGS], NOT_HERE)
    lives = Lives(chosen)
    await lives.begin()
    try:
        for _ in range(4):
            await lives.settle(3)
        await lives.play(data[SETTINGS:])
        await lives.end()
    finally:
        lives.store.mend()
        await lives._stop(lives.broker)
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks stay"


def run(data: bytes) -> None:
    with Listening() as listening, asyncio.Runner(loop_factory=jumping_loop) as runner:
        try:
            runner.run(episode(data))
        finally:
            assert not listening.failures, "\n".join(listening.failures)


# ---- seeds: a move of all is one of kinds 12 to 15, the second four with who=2


def all_move(number: int, *body: int) -> bytes:
    return move(12 + number % 4, *body, who=number // 4 * 2)


DISK, TOLD, END, TIME, PROGRAM, WAIT = 0, 1, 2, 3, 6, 7
AT_ONCE, SLOW, ANSWERS, FAILS, WORKS = range(5)


def seeds() -> Iterator[bytes]:
    plain, hooked = settings(), settings("hooks", "queue_qos_0", "shared_unacknowledged", "server_keep_alive")
    owed = all_move(TOLD, 1, 0, 1, 0)
    rogues = b"".join(
        move(CONNECT, 0, 0, 0x21, who, 0, 8, 0, 1, 2, 3, 3, 2, 0, 0, 0, 3, who=who)
        + move(SUBSCRIBE, 0, 1, 0, 0, 10, 2, 16, 1, who=who)
        for who in (0, 1)
    )
    sent = b"".join(move(PUBLISH, 0, qos | 8, 0, 0, 0, 0, 0, 2, qos) for qos in range(3))
    for chosen in (plain, hooked):
        for how in range(4):
            yield chosen + rogues + owed + all_move(END, how, 1) + owed + all_move(TIME, 2)
            slow = all_move(DISK, SLOW) + owed + all_move(DISK, ANSWERS) + owed + sent
            yield chosen + rogues + slow + all_move(END, how, 0) + owed + all_move(END, 3, 2) + rogues
        broken = all_move(DISK, FAILS, 1) + owed + sent + all_move(TIME, 1) + all_move(DISK, WORKS) + owed
        yield chosen + rogues + broken + all_move(DISK, FAILS) + owed + rogues + all_move(END, 0)
        yield (
            chosen
            + rogues
            + b"".join(all_move(PROGRAM, what, 0, 0, 1, 1) for what in range(4))
            + all_move(END)
        )
        for kind in range(4):
            acks = b"".join(move(ACKNOWLEDGE, kind, number, 0, who=1) for number in range(3))
            yield chosen + rogues + sent + acks + all_move(END, 0) + rogues + acks + move(OTHER, 0, 0) + owed


TARGET = Target(
    name="lives",
    run=run,
    seeds=seeds,
    covers=(
        *("store.journal", "store.schema", "store.memory", "session.record", "session.restore"),
        *("session.session", "session.manager", "session.inflight", "outbound", "core"),
        *("handle.connect", "handle.publish", "handle.acks", "handle.subscribe", "handle.disconnect"),
    ),
    settings=SETTINGS,
    longest=800,
    frugal=True,
)
