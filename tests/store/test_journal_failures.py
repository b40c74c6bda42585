"""Journal: a batch that cannot be written, who is told of it, and what is taken back."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from broker.errors import StoreError, StoreUnavailable
from broker.packet.message import Message
from broker.store.base import Batch, Fsync, Table
from broker.store.journal import RETRY, Writer
from tests.peer import run_async
from tests.store.make import Bench, FakeStore, hold, row_of, with_bench

# ---- a batch that fails


@with_bench()
async def test_a_batch_that_failed_is_tried_again(bench: Bench) -> None:
    bench.put(1)
    await bench.commit(fail=True)
    assert bench.stored() == {}
    await bench.quiet()
    assert bench.stored() == {1: "x"}
    assert (bench.journal.failures, bench.journal.failure) == (1, None)


@pytest.mark.parametrize("then", ["put", "delete", "nothing"])
@pytest.mark.parametrize("first", ["put", "delete"])
@pytest.mark.parametrize("stored", [False, True])
@with_bench()
async def test_what_changed_since_goes_over_what_failed(
    bench: Bench, stored: bool, first: str, then: str
) -> None:
    if stored:
        bench.put(1, "old")
        await bench.quiet()
    if first == "put":
        bench.put(1, "first", new=not stored)
    elif stored:
        bench.journal.delete(Table.SESSION, 1)
    bench.put(2)
    await bench.turn()
    if then == "put":
        bench.put(1, "then", new=not stored and first == "delete")
    elif then == "delete":
        bench.journal.delete(Table.SESSION, 1)
    bench.store.fail()
    bench.writer.finish()
    bench.store.mend()
    await bench.quiet()
    expected = {"put": "then", "delete": None, "nothing": "first" if first == "put" else None}[then]
    assert bench.stored().get(1) == expected
    assert bench.stored()[2] == "x"


@with_bench()
async def test_the_level_of_a_batch_that_failed_is_kept(bench: Bench) -> None:
    bench.put(1)
    bench.journal.promise(-1)
    assert (await bench.commit(fail=True)).fsync is Fsync.ALWAYS
    assert (await bench.commit()).fsync is Fsync.ALWAYS


@with_bench()
async def test_it_is_tried_at_once_and_then_every_second(bench: Bench) -> None:
    bench.store.fail()
    bench.put(1)
    await bench.turn()
    bench.writer.finish()
    await bench.turn()
    assert bench.writer.batch is not None, "what was refused must not stay in the file as it is"
    for _ in range(3):
        bench.writer.finish()
        bench.put(2)
        bench.wait("patient", 1_000)
        await bench.later(RETRY * 0.9)
        assert bench.writer.batch is None
        await bench.later(RETRY * 0.2)
        assert bench.writer.batch is not None
    bench.store.mend()
    await bench.quiet()
    assert bench.stored() == {1: "x", 2: "x"}


@with_bench()
async def test_each_is_told_of_the_failure_of_its_batch_and_no_other(bench: Bench) -> None:
    bench.put(1)
    number = bench.journal.promise(-1)
    first, second = bench.wait("first", number), bench.wait("second", number)
    later = bench.wait("later", number + 1)
    await bench.commit(fail=True)
    assert bench.told == [("first", "refused"), ("second", "refused")]
    assert isinstance(first.failure, StoreUnavailable) and second.failure is not None
    assert later.failure is None and list(bench.journal._waiting) == [later]
    await bench.quiet()
    assert bench.told[2:] == [("later", "committed")]


@with_bench()
async def test_one_that_waits_on_is_told_when_it_works_again(bench: Bench) -> None:
    class Patient(type(bench.wait("x", 0))):  # type: ignore[misc]
        def not_committed(self, number: int, failure: Exception) -> bool:
            return True

    await bench.quiet()
    bench.told.clear()
    bench.put(1)
    bench.journal.wait(Patient("patient", bench.journal.promise(-1), bench.told))
    for _ in range(3):
        await bench.commit(fail=True)
        await bench.later(RETRY)
    assert bench.told == []
    await bench.quiet()
    assert bench.told == [("patient", "committed")]


@with_bench()
async def test_failure_and_recovery_are_told_once(bench: Bench) -> None:
    for _ in range(2):
        bench.failures.clear()
        bench.put(1, new=False)
        for _ in range(3):
            await bench.commit(fail=True)
            assert len(bench.failures) == 1 and bench.failures[0] is not None
            with pytest.raises(StoreUnavailable):
                bench.journal.check()
            await bench.later(RETRY)
        assert bench.journal.gauges()["store/state"] == "failed: fake.db: no room"
        await bench.quiet()
        assert len(bench.failures) == 2 and bench.failures[1] is None
        bench.journal.check()
    assert bench.journal.failures == 6
    assert bench.journal.gauges()["store/state"] == "ok"


@with_bench()
async def test_it_works_again_without_anything_to_write(bench: Bench) -> None:
    """Everything was taken back: a probe is written all the same, or the state would stay for ever."""
    bench.put(1)
    await bench.commit(fail=True)
    bench.journal.delete(Table.SESSION, 1)
    await bench.later(RETRY)
    assert bench.writer.batch is not None
    await bench.quiet()
    assert bench.journal.failure is None and bench.stored() == {}


@with_bench()
async def test_a_message_is_taken_back_from_all_that_hold_it(bench: Bench) -> None:
    message, other = Message("t", b"x", 1), Message("t", b"y", 1)
    mine = [hold(bench, message), hold(bench, message.bare()), hold(bench, message, Table.RETAINED)]
    others = [hold(bench, other)]
    bench.journal.put(Table.DELIVERY, 900, row_of, None, new=True)
    bench.journal.delete(Table.DELIVERY, 900)

    class Refuses:
        def committed(self, number: int) -> bool:
            raise AssertionError

        def not_committed(self, number: int, failure: Exception) -> bool:
            bench.journal.revoke(message)
            bench.journal.revoke(message)
            bench.journal.revoke(Message("t", b"never seen"))
            return False

    bench.journal.wait(Refuses())
    await bench.commit(fail=True)
    assert [held.revoked for held in (*mine, *others)] == [1, 1, 1, 0]
    bench.journal.revoke(other)
    assert others[0].revoked == 0, "who was not refused in time has its promise"


@with_bench()
async def test_one_that_changed_in_the_next_batch_too_is_taken_back(bench: Bench) -> None:
    message = Message("t", b"x", 1)
    held = hold(bench, message)
    bench.wait("a", bench.journal.promise(-1)).not_committed = (  # type: ignore[method-assign]
        lambda number, failure: bench.journal.revoke(message) or False
    )
    await bench.turn()
    bench.journal.put(Table.DELIVERY, message.record.id + 1, lambda held: row_of(0), held)
    bench.store.fail()
    bench.writer.finish()
    assert held.revoked == 1


# ---- the thread


class Answers:
    """What a Writer tells, and when."""

    def __init__(self, store: Any) -> None:
        self.got: list[tuple[int, StoreError | None]] = []
        self.writer = Writer(store, asyncio.get_running_loop(), self._answer)
        self.writer.start()

    def _answer(self, batch: Batch, failure: StoreError | None) -> None:
        self.got.append((batch.number, failure))

    async def write(self, number: int) -> StoreError | None:
        self.writer.submit(Batch(number))
        await asyncio.wait_for(self.writer.idle(), 5)
        assert self.got[-1][0] == number
        return self.got[-1][1]


@run_async
async def test_the_thread_answers_each_batch_and_ends() -> None:
    store = FakeStore()
    answers = Answers(store)
    for number in range(10):
        assert await answers.write(number) is None
    store.fail()
    assert await answers.write(11) is store.failure
    store.mend()
    assert await answers.write(12) is None
    answers.writer.let_work(0.001)
    await answers.writer.close()
    assert not answers.writer.is_alive() and store.closed == 1


@run_async
async def test_an_unexpected_error_in_the_store_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()
    answers = Answers(store)
    store.failure = ZeroDivisionError("a bug")
    with caplog.at_level(logging.CRITICAL, "broker.store"):
        failure = await answers.write(1)
    assert isinstance(failure, StoreError) and "a bug" in str(failure)
    store.mend()
    assert await answers.write(2) is None
    store.close = lambda: (_ for _ in ()).throw(StoreError("cannot be closed"))  # type: ignore[assignment]
    await answers.writer.close()
    assert not answers.writer.is_alive() and "cannot be closed" in caplog.text
