"""Journal: group commit, elision, promises that are kept after the commit and in order, and failures."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from broker.errors import BrokerError, ReasonCode, StoreError, StoreUnavailable
from broker.packet.message import Message
from broker.store.base import Batch, Fsync, StoreClock, Table
from broker.store.journal import NOTE, RETRY, Journal, Writer, levels_of
from tests.peer import Clock, run_async
from tests.store.make import Bench, FakeStore, row_of, with_bench

# ---- group commit


@with_bench()
async def test_what_changes_in_one_turn_is_one_batch(bench: Bench) -> None:
    for number in range(100):
        bench.put(number)
    assert bench.writer.batch is None, "nothing is handed over before the turn ends"
    await bench.quiet()
    assert [len(batch) for batch in bench.store.batches] == [100]
    assert bench.journal.rows == 100


@with_bench()
async def test_it_collects_while_the_writer_is_busy(bench: Bench) -> None:
    bench.put(1)
    await bench.turn()
    for number in range(2, 50):
        bench.put(number)
        await bench.turn()
    assert bench.stored() == {}
    await bench.quiet()
    assert [sorted(batch.rows[Table.SESSION]) for batch in bench.store.batches] == [[1], [*range(2, 50)]]
    assert [batch.number for batch in bench.store.batches] == [2, 3], "numbers grow by one"


@with_bench()
async def test_a_row_is_what_its_source_is_when_the_batch_is_closed(bench: Bench) -> None:
    source = ["early"]
    bench.journal.put(Table.SESSION, 1, lambda found: row_of(found[0]), source, new=True)
    source[0] = "late"
    await bench.turn()
    source[0] = "too late"
    await bench.quiet()
    assert bench.stored() == {1: "late"}


@with_bench()
async def test_put_and_deleted_in_one_batch_is_never_written(bench: Bench) -> None:
    commits = bench.journal.commits
    bench.put(1)
    bench.put(1, "again", new=False)
    number = bench.journal.promise(-1)
    bench.wait("a", number)
    bench.journal.delete(Table.SESSION, 1)
    await bench.turn()
    assert bench.writer.batch is None and bench.journal.commits == commits
    assert bench.told == [("a", "committed")], "nothing is left that could be waited for"
    assert (bench.journal.done, bench.journal.latest) == (number, 0)


@with_bench()
async def test_it_leaves_no_level_behind(bench: Bench) -> None:
    bench.put(1)
    bench.journal.promise(-1)
    bench.journal.delete(Table.SESSION, 1)
    await bench.turn()
    bench.put(2)
    assert (await bench.commit()).fsync is Fsync.NEVER, "nobody waits for this one"


@with_bench()
async def test_who_waits_for_it_while_the_writer_is_busy_is_told(bench: Bench) -> None:
    bench.put(1)
    await bench.turn()
    bench.put(2)
    bench.wait("a", bench.journal.promise(-1))
    bench.journal.delete(Table.SESSION, 2)
    bench.writer.finish()
    assert bench.told == [("a", "committed")] and bench.writer.batch is None


@with_bench()
async def test_with_other_changes_it_is_left_out(bench: Bench) -> None:
    bench.put(1)
    bench.put(2)
    bench.journal.delete(Table.SESSION, 1)
    assert (await bench.commit()).rows == {Table.SESSION: {2: row_of("x")}}


@with_bench()
async def test_what_is_on_its_way_is_deleted_by_the_next_batch(bench: Bench) -> None:
    bench.put(1)
    await bench.turn()
    bench.journal.delete(Table.SESSION, 1)
    await bench.quiet()
    assert [batch.rows for batch in bench.store.batches] == [
        {Table.SESSION: {1: row_of("x")}},
        {Table.SESSION: {1: None}},
    ]


@with_bench()
async def test_put_again_after_it_was_deleted(bench: Bench) -> None:
    bench.put(1)
    await bench.quiet()
    bench.journal.delete(Table.SESSION, 1)
    bench.put(1, "again", new=False)
    await bench.quiet()
    assert bench.stored() == {1: "again"}


def test_identifiers_grow_and_are_never_those_of_the_store() -> None:
    journal = Bench().journal
    journal.known(7)
    journal.known(3)
    assert [journal.new_id(), journal.new_id()] == [8, 9]


# ---- messages, and how many hold them


def texts(bench: Bench) -> dict[int, str]:
    return {number: row.blobs[0].decode() for number, row in bench.store.rows[Table.MESSAGE].items()}


@with_bench()
async def test_a_message_has_one_row_for_all_that_hold_it(bench: Bench) -> None:
    message = Message("t", b"once", 1)
    number = bench.journal.refer(message)
    assert {bench.journal.refer(copy) for copy in (message, message.bare(), message.bare())} == {number}
    await bench.quiet()
    assert texts(bench) == {number: "once"}
    for _ in range(3):
        bench.journal.let_go(message)
    await bench.quiet()
    assert list(texts(bench).values()) == ["once"]
    bench.journal.let_go(message)
    await bench.quiet()
    assert texts(bench) == {}


@with_bench()
async def test_a_message_that_all_let_go_before_the_commit_costs_nothing(bench: Bench) -> None:
    message = Message("t", b"x", 1)
    for _ in range(3):
        bench.journal.refer(message)
    for _ in range(3):
        bench.journal.let_go(message)
    await bench.turn()
    assert bench.writer.batch is None


@pytest.mark.parametrize("stored", [False, True])
@with_bench()
async def test_a_message_that_is_taken_up_again_is_there(bench: Bench, stored: bool) -> None:
    """PUBREL: it leaves the publisher's session and enters the subscribers'."""
    message = Message("t", b"x", 2)
    number = bench.journal.refer(message)
    if stored:
        await bench.quiet()
        bench.store.batches.clear()
    bench.journal.let_go(message)
    assert bench.journal.refer(message) == number
    await bench.quiet()
    assert texts(bench) == {number: "x"}
    if stored:
        assert [batch.rows for batch in bench.store.batches if batch.rows] == [], "it is not written twice"
    bench.journal.let_go(message)
    await bench.quiet()
    assert texts(bench) == {}


@with_bench()
async def test_a_message_that_is_taken_up_again_while_its_end_is_on_the_way(bench: Bench) -> None:
    message = Message("t", b"x", 2)
    number = bench.journal.refer(message)
    await bench.quiet()
    bench.journal.let_go(message)
    await bench.turn()
    bench.journal.refer(message)
    await bench.quiet()
    assert texts(bench) == {number: "x"}


@with_bench()
async def test_a_message_whose_end_failed_and_that_was_taken_up_again_has_an_end(bench: Bench) -> None:
    message = Message("t", b"x", 2)
    bench.journal.refer(message)
    await bench.quiet()
    bench.journal.let_go(message)
    await bench.turn()
    bench.journal.refer(message)
    bench.store.fail()
    bench.writer.finish()
    bench.store.mend()
    bench.journal.let_go(message)
    await bench.quiet()
    assert texts(bench) == {}


@pytest.mark.parametrize("fails", [False, True])
@with_bench()
async def test_a_message_that_wanders_keeps_its_row(bench: Bench, fails: bool) -> None:
    message = Message("t", b"x", 1)
    number = bench.journal.refer(message)
    if fails:
        await bench.commit(fail=True)
    for _ in range(3):
        bench.journal.let_go(message)
        bench.journal.refer(message)
    await bench.quiet()
    assert texts(bench) == {number: "x"}


@with_bench()
async def test_a_copy_with_other_fields_is_another_message(bench: Bench) -> None:
    message = Message("t", b"x", 1)
    number = bench.journal.refer(message)
    other = bench.journal.refer(message.with_(payload=b"y"))
    await bench.quiet()
    assert texts(bench) == {number: "x", other: "y"}


@with_bench()
async def test_a_message_that_another_journal_knows_is_new_to_this_one(bench: Bench) -> None:
    """A hook keeps the objects that it was given, and outlives a broker."""
    message = Message("t", b"x", 1)
    Bench().journal.refer(message)
    number = bench.journal.refer(message)
    await bench.quiet()
    assert texts(bench) == {number: "x"}


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
    monkeypatch.setattr("broker.store.journal.REMEMBERED", 10)
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


# ---- failure


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


@with_bench()
async def test_a_batch_that_failed_is_tried_again(bench: Bench) -> None:
    bench.put(1)
    await bench.commit(fail=True)
    assert bench.stored() == {}
    await bench.quiet()
    assert bench.stored() == {1: "x"}
    assert (bench.journal.failures, bench.journal.failure) == (1, None)


CHANGES = {"put": "new", "delete": None}


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
