"""Journal: what changes in one turn is one commit, and what comes to nothing is never written."""

from __future__ import annotations

import pytest

from broker.packet.message import Message
from broker.store.base import Fsync, Table
from tests.store.make import Bench, row_of, with_bench

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
