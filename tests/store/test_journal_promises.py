"""Journal: promises are kept after the commit, in order, as durably as was asked for; the clock, the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.errors import BrokerError, QuotaExceeded, ReasonCode, StoreUnavailable
from broker.packet.message import Message
from broker.store.base import Fsync, StoreClock, Table, levels_of
from broker.store.journal import NOTE, Journal
from tests.peer import Clock, run_async
from tests.store.make import Bench, hold, with_bench

# ---- promises


@with_bench()
async def test_nothing_changed_is_nothing_to_wait_for(bench: Bench) -> None:
    journal = bench.journal
    assert journal.promise(journal.changes) == 0
    bench.put(1)
    assert journal.promise(journal.changes) == 0, "others have changed something, before"


@with_bench()
async def test_a_promise_is_for_the_batch_with_the_change(bench: Bench) -> None:
    journal = bench.journal
    before = journal.changes
    bench.put(1)
    assert journal.promise(before) == journal.number == 2
    await bench.turn()
    assert journal.number == 3
    assert journal.promise(before) == 2, "it is on its way"
    await bench.quiet()
    assert journal.promise(before) == 0, "it is there"


LEVELS = (
    *("a/#=never", "a/b=always", "+/c=normal", "$share/g/shared/+=never"),
    *("x=y=normal", "#=normal"),
)


@pytest.mark.parametrize(
    ("topic_name", "level"),
    [
        ("a/b", Fsync.NEVER),  # the first that matches
        ("a", Fsync.NEVER),
        ("b/c", Fsync.NORMAL),
        ("shared/1", Fsync.NEVER),  # of the topics in a shared filter
        ("x=y", Fsync.NORMAL),
        ("$SYS/a", Fsync.ALWAYS),  # hidden from "#"
        (None, Fsync.ALWAYS),
    ],
)
@with_bench(fsync="always", fsync_for=LEVELS)
async def test_how_durable(bench: Bench, topic_name: str | None, level: Fsync) -> None:
    bench.put(1)
    bench.journal.promise(-1, topic_name)
    assert (await bench.commit()).fsync is level
    bench.put(2)
    bench.journal.promise(-1, topic_name)
    assert (await bench.commit()).fsync is level, "remembered"


@with_bench(fsync="normal", fsync_for=("a=always", "b=never"))
async def test_a_batch_is_as_durable_as_the_most_careful_in_it(bench: Bench) -> None:
    for number, names in enumerate((["b"], ["b", "a"], ["a", "b"], [None, "b"], [])):
        bench.put(number)
        for name in names:
            bench.journal.promise(-1, name)
    assert (await bench.commit()).fsync is Fsync.ALWAYS
    for number, names in enumerate(([], ["b"], ["b", None])):
        bench.put(10 + number)
        for name in names:
            bench.journal.promise(-1, name)
        assert (await bench.commit()).fsync is (Fsync.NORMAL if None in names else Fsync.NEVER)


@pytest.mark.parametrize(
    ("fsync", "fsync_for", "lowest"),
    [
        ("always", (), Fsync.NORMAL),
        ("normal", (), Fsync.NORMAL),
        ("never", (), Fsync.NEVER),
        ("never", ("a=never",), Fsync.NEVER),
        ("never", ("a=normal",), Fsync.NORMAL),
        ("always", ("#=never",), Fsync.NORMAL),
    ],
)
def test_the_lowest_level_of_all(fsync: str, fsync_for: tuple[str, ...], lowest: Fsync) -> None:
    assert levels_of(fsync, fsync_for).lowest is lowest


def test_the_levels_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.store.base.REMEMBERED", 10)
    levels = levels_of("always", ("a/+=never",))
    for number in range(100):
        assert levels.of(f"a/{number}") is Fsync.NEVER
        assert levels.of(f"b/{number}") is Fsync.ALWAYS
        assert len(levels._known) <= 10


# ---- who waits


@with_bench()
async def test_they_are_told_in_order_after_the_commit_and_not_before(bench: Bench) -> None:
    bench.put(1)
    first = bench.journal.number
    for name in "abc":
        bench.wait(name, first)
    bench.wait("later", first + 1)
    await bench.turn()
    bench.put(2)
    assert bench.told == []
    bench.writer.finish()
    assert bench.told == [(name, "committed") for name in "abc"]
    assert bench.stored() == {1: "x"}
    bench.writer.finish()
    assert bench.told[3:] == [("later", "committed")]
    assert not bench.journal._waiting


@with_bench()
async def test_who_waits_for_nothing_that_is_on_its_way_is_told_soon(bench: Bench) -> None:
    bench.wait("a", bench.journal.number)
    await bench.turn()
    assert bench.told == [("a", "committed")] and bench.writer.batch is None


@with_bench()
async def test_one_that_is_told_may_begin_to_wait_again(bench: Bench) -> None:
    class Again:
        rounds = 0

        def committed(self, number: int) -> bool:
            self.rounds += 1
            bench.put(self.rounds)
            bench.journal.wait(self)
            return self.rounds < 3

        def not_committed(self, number: int, failure: Exception) -> bool:
            raise AssertionError

    again = Again()
    bench.put(100)
    bench.journal.wait(again)
    await bench.quiet()
    assert again.rounds == 3 and bench.stored().keys() == {1, 2, 3, 100}


@with_bench()
async def test_settle_returns_after_the_commit(bench: Bench) -> None:
    await bench.journal.settle(0)
    bench.put(1)
    settling = asyncio.ensure_future(bench.journal.settle(bench.journal.promise(-1)))
    await bench.turn()
    assert not settling.done()
    bench.writer.finish()
    await bench.turn()
    assert settling.done() and settling.result() is None
    await bench.journal.settle(bench.journal.done)


@with_bench()
async def test_whoever_settles_may_give_up(bench: Bench) -> None:
    bench.put(1)
    settling = asyncio.ensure_future(bench.journal.settle(bench.journal.promise(-1)))
    await bench.turn()
    settling.cancel()
    await bench.turn()
    bench.writer.finish()
    assert bench.stored() == {1: "x"} and not bench.journal._waiting


@with_bench()
async def test_settle_raises_when_it_fails(bench: Bench) -> None:
    bench.put(1)
    settling = asyncio.ensure_future(bench.journal.settle(bench.journal.promise(-1)))
    await bench.commit(fail=True)
    await bench.turn()
    with pytest.raises(StoreUnavailable):
        await settling


@with_bench()
async def test_settle_does_not_mind_the_failure_of_an_earlier_batch(bench: Bench) -> None:
    bench.put(1)
    await bench.turn()
    bench.put(2)
    settling = asyncio.ensure_future(bench.journal.settle(bench.journal.promise(-1)))
    await bench.turn()
    bench.store.fail()
    bench.writer.finish()
    bench.store.mend()
    await bench.turn()
    assert not settling.done()
    await bench.quiet()
    assert settling.done() and settling.result() is None


@pytest.mark.parametrize("full", [False, True])
@with_bench()
async def test_what_settles_is_taken_back_when_it_fails(bench: Bench, full: bool) -> None:
    message = Message("t", b"x", 1)
    delivery = hold(bench, message)
    settling = asyncio.ensure_future(bench.journal.settle(bench.journal.promise(-1), message))
    await bench.turn()
    bench.store.fail(full)
    bench.writer.finish()
    assert delivery.revoked == 1
    with pytest.raises(StoreUnavailable) as caught:
        await settling
    assert caught.value.reason == (
        ReasonCode.QUOTA_EXCEEDED if full else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    )


@with_bench()
async def test_one_that_breaks_keeps_no_other_from_hearing_it(bench: Bench) -> None:
    class Breaks:
        def committed(self, number: int) -> bool:
            raise RuntimeError("a bug")

        def not_committed(self, number: int, failure: Exception) -> bool:
            raise RuntimeError("a bug")

    for fail in (False, True):
        bench.put(1)
        bench.journal.wait(Breaks())
        waiter = bench.wait("other", bench.journal.promise(-1))
        await bench.commit(fail=fail)
        assert bench.told[-1] == ("other", "refused" if fail else "committed") and waiter.number
        assert not bench.journal._waiting
    await bench.quiet()
    assert bench.journal.failure is None and bench.stored() == {1: "x"}


@with_bench()
async def test_a_row_that_cannot_be_made_keeps_no_other_from_the_file(bench: Bench) -> None:
    def breaks(source: Any) -> Any:
        raise TypeError("a hook gave this")

    bench.put(1)
    bench.journal.put(Table.SESSION, 2, breaks, "rubbish", new=True)
    bench.put(3)
    await bench.quiet()
    assert bench.stored() == {1: "x", 3: "x"} and not bench.journal.latest


# ---- the clock


@with_bench(started=False)
async def test_the_clock_of_a_new_store_is_the_time_of_day(bench: Bench) -> None:
    bench.start()
    assert bench.journal.offset == 5000 - 100
    bench.put(1)
    await bench.quiet()
    assert bench.store.noted == StoreClock(5000, 5000)


@pytest.mark.parametrize(("wall", "down"), [(5000.0, 1000.0), (4000.0, 0.0), (3000.0, 0.0)])
@with_bench(started=False)
async def test_the_time_in_between_counts(bench: Bench, wall: float, down: float) -> None:
    """*down*: a wall clock that went back while nobody looked counts as no time."""
    bench.store.noted = StoreClock(70_000.0, 4000.0)
    bench.wall.now = wall
    bench.start()
    assert bench.journal.offset + bench.clock() == 70_000 + down
    bench.put(1)
    await bench.quiet()
    assert bench.store.noted == StoreClock(70_000 + down, wall)


@with_bench()
async def test_it_is_noted_once_a_second_at_most(bench: Bench) -> None:
    noted = []
    for number in range(10):
        bench.put(number)
        noted.append((await bench.commit()).clock)
        await bench.later(NOTE / 4)
    assert [each is not None for each in noted] == [False] * 4 + [True] + [False] * 3 + [True] + [False]


@with_bench()
async def test_a_jump_of_the_wall_clock_is_noted_at_once(bench: Bench) -> None:
    bench.journal.see_to_clock()
    await bench.turn()
    assert bench.writer.batch is None
    bench.wall.now += 365 * 86400
    bench.journal.see_to_clock()
    await bench.quiet()
    assert bench.store.noted is not None and bench.store.noted.wall == bench.wall()
    assert bench.store.noted.time == bench.clock() + bench.journal.offset, "no time has passed"


@with_bench()
async def test_no_timer_runs_while_all_is_well(bench: Bench) -> None:
    loop: Any = asyncio.get_running_loop()
    for number in range(20):
        bench.put(number)
        await bench.commit()
    await bench.later(100)
    assert not [each for each in loop._scheduled if not each.cancelled()]
    commits = bench.journal.commits
    for _ in range(20):
        await bench.later(100)
    assert bench.journal.commits == commits, "an idle broker writes nothing"


# ---- the end


@with_bench(at_once=True)
async def test_stop_writes_what_is_open_and_the_time(bench: Bench) -> None:
    bench.put(1)
    bench.clock.now += 0.1
    await bench.journal.stop()
    assert bench.stored() == {1: "x"} and bench.store.closed == 1
    assert bench.store.noted == StoreClock(bench.clock() + bench.journal.offset, 5000.0)
    await bench.journal.stop()
    assert bench.store.closed == 1


@with_bench()
async def test_stop_waits_for_what_is_on_its_way(bench: Bench) -> None:
    bench.put(1)
    await bench.turn()
    bench.put(2)
    waiter = bench.wait("a", bench.journal.number)
    stop, writer = asyncio.ensure_future(bench.journal.stop()), bench.writer
    await bench.turn()
    for _ in range(2):
        writer.finish()
        await bench.turn()
    await stop
    assert bench.stored() == {1: "x", 2: "x"} and bench.told == [(waiter.name, "committed")]


@with_bench(at_once=True)
async def test_stop_without_room_tells_what_is_lost(bench: Bench) -> None:
    bench.put(1)
    bench.store.fail()
    await bench.journal.stop()
    assert bench.store.closed == 1 and bench.journal.failure is not None


@with_bench()
async def test_a_disk_that_never_answers_does_not_keep_the_broker(bench: Bench) -> None:
    bench.put(1)
    await bench.turn()
    stop = asyncio.ensure_future(bench.journal.stop())
    await bench.turn()
    await bench.later(9.9)
    assert not stop.done()
    await bench.later(0.2)
    assert stop.done()


@with_bench(at_once=True)
async def test_after_the_stop_nobody_waits_in_vain(bench: Bench) -> None:
    await bench.journal.stop()
    bench.put(1)
    with pytest.raises(BrokerError):
        await bench.journal.settle(bench.journal.promise(-1))


# ---- what hooks keep elsewhere


class Keeper:
    """Hooks that keep what they were told of when a test says so."""

    def __init__(self, bench: Bench) -> None:
        self.until: asyncio.Future[None] | None = None
        self.asked = 0
        bench.journal.still_held = self.still_held

    def still_held(self) -> asyncio.Future[None] | None:
        self.asked += 1
        return self.until

    def hold(self) -> asyncio.Future[None]:
        self.until = asyncio.get_running_loop().create_future()
        return self.until


@pytest.mark.parametrize("table", list(Table))
@with_bench()
async def test_what_lets_a_copy_be_acknowledged_waits_for_hooks(bench: Bench, table: Table) -> None:
    keeper = Keeper(bench)
    until = keeper.hold()
    bench.put(1, table=table)
    await bench.turn()
    if table not in (Table.NOTE, Table.HELD):
        assert bench.writer.batch is not None and not keeper.asked
        return
    assert bench.writer.batch is None
    bench.put(2, table=table)  # is of the next batch, and waits for what comes later
    later = keeper.hold()
    until.set_result(None)
    await bench.commit()
    assert bench.stored(table) == {1: "x"}
    await bench.turn()
    assert bench.writer.batch is None
    later.set_result(None)
    await bench.commit()
    assert bench.stored(table) == {1: "x", 2: "x"}


@with_bench()
async def test_what_hooks_cannot_keep_is_not_committed_until_they_can(bench: Bench) -> None:
    keeper = Keeper(bench)
    until = keeper.hold()
    bench.put(1, table=Table.NOTE)
    waiter = bench.wait("a", bench.journal.number)
    await bench.turn()
    until.set_exception(QuotaExceeded("no room"))
    await bench.turn()
    assert bench.told == [("a", "refused")] and waiter.failure.reason == ReasonCode.QUOTA_EXCEEDED
    assert bench.journal.failure is not None and "no room" in str(bench.journal.failure)
    assert bench.writer.batch is None, "nor is it at the next try"
    keeper.until = None
    bench.journal._hand_over()  # its time has come
    await bench.commit()
    assert bench.stored(Table.NOTE) == {1: "x"} and bench.journal.failure is None


@pytest.mark.parametrize("well", [True, False])
@with_bench(at_once=True)
async def test_stop_waits_for_hooks_as_well(bench: Bench, well: bool) -> None:
    keeper = Keeper(bench)
    until = keeper.hold()
    bench.put(1, table=Table.NOTE)
    await bench.turn()
    bench.put(2)
    stop = asyncio.ensure_future(bench.journal.stop())
    await bench.turn()
    assert not stop.done()
    if well:
        until.set_result(None)
    else:
        until.set_exception(QuotaExceeded("no room"))
    await stop
    assert (bench.stored(Table.NOTE), bench.stored()) == (({1: "x"}, {2: "x"}) if well else ({}, {}))
    assert bench.store.closed == 1 and (bench.journal.failure is None) is well


# ---- no store


@run_async
async def test_without_a_store_nothing_waits() -> None:
    journal = Journal(None, levels_of("always", ()), Clock())
    assert not journal.writes and journal.gauges() == {}
    assert journal.promise(journal.changes) == 0
    journal.check()
    journal.check_open()
    journal.see_to_clock()
    await journal.settle(0)
    await journal.stop()
