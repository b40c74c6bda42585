"""The journal against a plain dictionary: whatever is put, deleted, committed and refused, in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from broker.packet.message import Message
from broker.store.base import Fsync, Table
from broker.store.journal import RETRY
from tests.store.make import Bench, loop_of

TABLES = st.sampled_from([Table.SESSION, Table.DELIVERY])
State = dict[tuple[Table, int], Any]
NAMES = {"cheap": Fsync.NEVER, "usual": Fsync.NORMAL, "dear": Fsync.ALWAYS}


class Source:
    """What a row is made of. It may change until its batch is closed."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.message = Message("t")  # a journal looks at it when a write has failed

    def revoke(self) -> None:
        raise AssertionError("nobody was refused by name")


class Promise:
    """A Waiter that knows what had changed when it was made a promise."""

    def __init__(self, law: JournalLaw, number: int, state: State, level: Fsync) -> None:
        self.law, self.number, self.state, self.level = law, number, state, level
        self.since = len(law.history)
        self.end = ""

    def committed(self, number: int) -> bool:
        assert not self.end
        if number < self.number:
            return True
        self.end = "kept"
        self.law.check_kept(self)
        return False

    def not_committed(self, number: int, failure: Exception) -> bool:
        assert not self.end
        if number < self.number:
            return True
        self.end = "refused"
        return False


class JournalLaw(RuleBasedStateMachine):
    """What is stored is what was there when some batch was closed, and never less than was promised."""

    rows = Bundle("rows")
    messages = Bundle("messages")

    @initialize()
    def begin(self) -> None:
        self.bench = Bench("never", ("cheap=never", "usual=normal", "dear=always"))
        self.loop = loop_of(self.bench.clock)
        self.model: State = {}  # as it is in memory
        self.history: list[State] = [{}]  # after each change
        self.closed = 0  # the place in `history` that the batch under way has
        self.stored = 0  # and the newest one that was written
        self.levels: list[Fsync] = []  # of the batches that were written
        self.promises: list[Promise] = []
        self.run(self._start())

    async def _start(self) -> None:
        self.bench.start()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.store.mend()
        self.finish_all()
        assert self.on_disk() == self.history[-1]
        assert not self.bench.journal._waiting and all(promise.end for promise in self.promises)
        self.loop.close()

    def finish_all(self) -> None:
        for _ in range(4):
            self.pass_time()
            if self.bench.writer.batch is not None:
                self.finish()

    # ---- what changes

    def changed(self) -> None:
        self.history.append({key: getattr(value, "value", value) for key, value in self.model.items()})

    @rule(target=rows, table=TABLES, value=st.integers(0, 9))
    def put_new(self, table: Table, value: int) -> tuple[Table, int]:
        number = self.bench.journal.new_id()
        self.put(table, number, value, True)
        return table, number

    @rule(row=rows, value=st.integers(0, 9))
    def put_again(self, row: tuple[Table, int], value: int) -> None:
        self.put(*row, value, False)

    def put(self, table: Table, number: int, value: int, new: bool) -> None:
        source = self.model[table, number] = Source(value)
        self.bench.journal.put(table, number, lambda found: (found.value,), source, new=new)
        self.changed()

    @rule(row=rows, value=st.integers(10, 19))
    def change_in_place(self, row: tuple[Table, int], value: int) -> None:
        """As sessions do: the object is the same, and the journal is told that it has changed."""
        source = self.model[row]
        source.value = value
        self.bench.journal.put(*row, lambda found: (found.value,), source)
        self.changed()

    @rule(row=consumes(rows))
    def delete(self, row: tuple[Table, int]) -> None:
        del self.model[row]
        self.bench.journal.delete(*row)
        self.changed()

    @rule(target=messages, count=st.integers(1, 3))
    def refer(self, count: int) -> Any:
        message = Message("t", b"%d" % len(self.history))
        for _ in range(count):
            self.bench.journal.refer(message)
        self.model[Table.MESSAGE, message.record.id] = message.payload
        self.changed()
        return multiple(*[message] * count)

    @rule(target=messages, message=messages)
    def refer_again(self, message: Message) -> Message:
        self.bench.journal.refer(message.bare())
        return message

    @rule(message=consumes(messages))
    def let_go(self, message: Message) -> None:
        self.bench.journal.let_go(message)
        if message.record.references == 0:
            del self.model[Table.MESSAGE, message.record.id]
            self.changed()

    @rule(target=messages, message=consumes(messages))
    def hand_on(self, message: Message) -> Message:
        """Let go by one and taken up by another, with nothing in between."""
        self.bench.journal.let_go(message)
        self.bench.journal.refer(message)
        return message

    # ---- who waits

    @rule(name=st.sampled_from([*NAMES]), back=st.integers(0, 3))
    def promise(self, name: str, back: int) -> None:
        journal = self.bench.journal
        number = journal.promise(journal.changes - back, name)
        if number:
            self.promises.append(
                promise := Promise(
                    self, number, self.history[-1], NAMES[name] if number == journal.number else Fsync.NEVER
                )
            )
            journal.wait(promise)
        else:
            assert back == 0 or self.on_disk() == self.history[-1]

    def check_kept(self, promise: Promise) -> None:
        """Everything that had changed before the promise is written, or was undone before it had to be."""
        assert self.stored >= promise.since - 1 or self.on_disk() == self.history[-1]
        written = self.levels[-1] if self.levels else Fsync.ALWAYS
        assert written >= promise.level or self.on_disk() == self.history[-1]

    # ---- the disk and time

    @rule()
    def turn(self) -> None:
        before = self.bench.writer.batch
        self.run(self.bench.turn())
        if before is None and self.bench.writer.batch is not None:
            self.closed = len(self.history) - 1

    @rule()
    def finish(self) -> None:
        batch = self.bench.writer.batch
        if batch is None:
            return
        if self.bench.store.failure is None:
            self.stored = self.closed
            self.levels.append(batch.fsync)
        handed = len(self.history) - 1
        self.run(self._finish())
        if self.bench.writer.batch is not None:
            self.closed = handed

    async def _finish(self) -> None:
        self.bench.writer.finish()

    @rule()
    def fail(self) -> None:
        self.bench.store.fail()

    @rule()
    def mend(self) -> None:
        self.bench.store.mend()

    @rule()
    def pass_time(self) -> None:
        before = self.bench.writer.batch
        self.run(self.bench.later(RETRY))
        if before is None and self.bench.writer.batch is not None:
            self.closed = len(self.history) - 1

    # ---- the law

    def on_disk(self) -> State:
        found: State = {}
        for table, rows in self.bench.store.rows.items():
            for number, row in rows.items():
                found[table, number] = row.blobs[0] if table is Table.MESSAGE else row[0]  # type: ignore[index]
        return found

    @invariant()
    def what_is_stored_was_there_once(self) -> None:
        if hasattr(self, "bench"):
            assert self.on_disk() == self.history[self.stored]

    @invariant()
    def told_of_each_failure_and_its_end(self) -> None:
        if hasattr(self, "bench"):
            failures = self.bench.failures
            assert [each is None for each in failures] == [bool(at % 2) for at in range(len(failures))]
            assert (self.bench.journal.failure is not None) == bool(len(failures) % 2)


TestJournalLaw = pytest.mark.filterwarnings("error")(JournalLaw.TestCase)
TestJournalLaw.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
