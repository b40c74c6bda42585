"""Retained messages in a durable store: their rows, and which one is there when the disk refuses another."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from broker.packet.message import Message
from broker.store.base import Table
from broker.store.budget import ByteBudget
from broker.store.memory import MemoryRetainedStore
from tests.store.make import Bench, with_bench


class Kept:
    """A retained store on the journal of *bench*."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.budget = ByteBudget(1 << 20)
        self.store = MemoryRetainedStore(100, 1 << 20, self.budget, bench.journal)

    def put(self, payload: bytes, qos: int = 1, topic_name: str = "t") -> Message:
        message = Message(topic_name, payload, qos, True)
        self.store.put(message)
        return message

    def refusable(self, payload: bytes) -> Message:
        """Of a publisher that waits for its PUBACK."""
        message = self.put(payload)
        journal = self.bench.journal

        class Publisher:
            def __init__(self, number: int) -> None:
                self.number = number

            def committed(self, number: int) -> bool:
                return number < self.number

            def not_committed(self, number: int, failure: Exception) -> bool:
                if number < self.number:
                    return True
                journal.revoke(message)
                return False

        journal.wait(Publisher(journal.promise(-1)))
        return message

    @property
    def payload(self) -> bytes | None:
        found = [message.payload for message in chain.from_iterable(self.store.stretches("#", 0.0))]
        return found[0] if found else None

    def stored(self) -> dict[int, bytes]:
        """Row of the retained message -> the payload it refers to."""
        messages = self.bench.store.rows[Table.MESSAGE]
        rows = self.bench.store.rows[Table.RETAINED]
        return {number: messages[row.values[0]].blobs[0] for number, row in rows.items()}

    async def fails(self) -> None:
        await self.bench.commit(fail=True)
        await self.bench.turn()

    async def check(self, payload: bytes | None) -> None:
        """In memory, and in the file when it can be written again; nothing else is there."""
        assert self.payload == payload
        await self.bench.quiet()
        assert self.payload == payload
        assert [*self.stored().values()] == [payload] * (payload is not None)
        assert len(self.bench.store.rows[Table.MESSAGE]) == (payload is not None)
        size = 0 if payload is None else 1 + len(payload)
        assert (self.store.size, self.budget.used) == (size, size)


@with_bench()
async def test_a_topic_keeps_its_row_while_it_has_a_message(bench: Bench) -> None:
    kept = Kept(bench)
    for number in range(3):
        kept.put(b"%d" % number)
        await bench.quiet()
        assert list(kept.stored().values()) == [b"%d" % number]
    assert len(kept.stored()) == 1
    [first] = kept.stored()
    kept.put(b"", topic_name="other")
    kept.store.delete("t")
    await bench.quiet()
    assert first not in kept.stored() and len(bench.store.rows[Table.MESSAGE]) == 1
    kept.store.delete("other")
    await kept.check(None)


@with_bench()
async def test_many_in_one_batch_cost_one_row(bench: Bench) -> None:
    kept = Kept(bench)
    for number in range(100):
        kept.put(b"%d" % number)
    batch = await bench.commit()
    assert {table: len(rows) for table, rows in batch.rows.items()} == {Table.RETAINED: 1, Table.MESSAGE: 1}
    await kept.check(b"99")


@with_bench()
async def test_one_that_comes_and_goes_costs_nothing(bench: Bench) -> None:
    kept = Kept(bench)
    kept.put(b"x")
    kept.store.delete("t")
    await bench.turn()
    assert bench.writer.batch is None


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("count", [1, 2, 3])
@with_bench()
async def test_refused_ones_leave_what_was_there(bench: Bench, count: int, before: bytes | None) -> None:
    kept = Kept(bench)
    if before is not None:
        kept.put(before)
        await bench.quiet()
    for number in range(count):
        kept.refusable(b"%d" % number)
    await kept.fails()
    await kept.check(before)


@with_bench()
async def test_one_that_was_not_refused_stays(bench: Bench) -> None:
    """QoS 0 has no promise to be taken back, and QoS 2 is owned."""
    for qos in (0, 2):
        kept = Kept(bench)
        kept.put(b"old")
        await bench.quiet()
        kept.refusable(b"1")
        kept.put(b"stays", qos)
        kept.refusable(b"2")
        kept.refusable(b"3")
        await kept.fails()
        await kept.check(b"stays")
        kept.store.delete("t")
        await bench.quiet()


@with_bench()
async def test_one_that_was_committed_stays(bench: Bench) -> None:
    kept = Kept(bench)
    kept.put(b"old")
    await bench.quiet()
    kept.refusable(b"1")
    await bench.turn()
    kept.refusable(b"2")
    bench.writer.finish()
    await kept.fails()
    await kept.check(b"1")


@with_bench()
async def test_two_batches_that_fail_one_after_the_other(bench: Bench) -> None:
    kept = Kept(bench)
    kept.put(b"old")
    await bench.quiet()
    kept.refusable(b"1")
    await bench.turn()
    kept.refusable(b"2")
    bench.store.fail()
    bench.writer.finish()
    assert kept.payload == b"2", "its batch has not failed yet"
    await bench.turn()
    bench.writer.finish()
    bench.store.mend()
    await bench.later(2)
    await kept.check(b"old")


@with_bench()
async def test_one_that_was_deleted_meanwhile_does_not_come_back(bench: Bench) -> None:
    kept = Kept(bench)
    kept.put(b"old")
    await bench.quiet()
    kept.refusable(b"1")
    await bench.turn()
    kept.store.delete("t")
    bench.store.fail()
    bench.writer.finish()
    bench.store.mend()
    await kept.check(None)


@with_bench()
async def test_nothing_is_remembered_of_what_is_stored(bench: Bench) -> None:
    kept: Any = Kept(bench)
    for number in range(50):
        kept.put(b"x", topic_name=f"t/{number}")
    assert len(kept.store._unstored) == 50
    await bench.quiet()
    bench.put(1)
    await bench.quiet()
    assert len(kept.store._unstored) == 0
