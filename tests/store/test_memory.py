"""MemoryRetainedStore against its contract in store/base.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.errors import QuotaExceeded
from broker.packet.enums import Version
from broker.packet.message import Message
from broker.store.base import RetainedStore
from broker.store.budget import ByteBudget
from broker.store.memory import MemoryRetainedStore
from broker.topic.match import match
from tests.topic.make import CountedIndex, topic_filters, topic_names

LARGE = 1 << 40


def store(
    messages: int = 100, size: int = LARGE, budget: int = LARGE
) -> tuple[MemoryRetainedStore, ByteBudget]:
    made = ByteBudget(budget)
    return MemoryRetainedStore(messages, size, made), made


def message(topic_name: str = "t", payload: bytes = b"x", expires_at: float | None = None) -> Message:
    return Message(topic_name, payload, 1, True, expires_at=expires_at)


def walk(kept: RetainedStore, topic_filter: str, now: float) -> Iterator[Message | None]:
    """As a subscriber is fed: what is still current, and None after each stretch of the search."""
    stretches = kept.stretches(topic_filter, now)

    def steps() -> Iterator[Message | None]:
        for stretch in stretches:
            yield from filter(kept.is_current, stretch)
            yield None

    return steps()


def found(kept: RetainedStore, topic_filter: str = "#", now: float = 0) -> dict[str, bytes]:
    messages = [each for each in walk(kept, topic_filter, now) if each is not None]
    by_name = {each.topic_name: each.payload for each in messages}
    assert len(by_name) == len(messages), "one message for each topic"
    return by_name


def given(steps: Iterator[Message | None]) -> list[Message]:
    """The messages of a walk, without the stretches that had none."""
    return [each for each in steps if each is not None]


# ---- storing, replacing, deleting


def test_the_last_message_of_a_topic_is_kept() -> None:
    kept, budget = store()
    kept.put(message("a", b"1"))
    kept.put(message("b", b"22"))
    kept.put(message("a", b"333"))
    assert found(kept) == {"a": b"333", "b": b"22"}
    assert (len(kept), kept.size, budget.used) == (2, 7, 7)
    kept.put(message("a", b""))
    assert (kept.size, budget.used) == (4, 4), "a shorter one gives bytes back"


def test_delete() -> None:
    kept, budget = store()
    kept.put(message("a"))
    kept.put(message("b"))
    for _ in range(2):
        kept.delete("a")
        assert (found(kept), len(kept), kept.size, budget.used) == ({"b": b"x"}, 1, 2, 2)
    kept.delete("never")
    kept.delete("b")
    assert (len(kept), kept.size, budget.used) == (0, 0, 0)


def test_what_is_stored_is_a_copy_without_cached_frames() -> None:
    kept, _ = store()
    live = Message("t", b"x" * 10, 2, True, {"content_type": "c"}, "publisher", 50.0)
    live.frame(Version.MQTT_5, 0, False)
    kept.put(live)
    stored = next(walk(kept, "t", 0))
    assert stored is not None
    assert stored is not live and stored == live
    assert stored._frames is None, "thousands of stored messages must not carry their bytes twice"


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("#", "a a/b a/b/c b"),
        ("a/#", "a a/b a/b/c"),
        ("a/+", "a/b"),
        ("+", "a b"),
        ("$SYS/#", "$SYS/x"),
        ("c", ""),
    ],
)
def test_found_by_filter(topic_filter: str, expected: str) -> None:
    kept, _ = store()
    for name in ("a", "a/b", "a/b/c", "b", "$SYS/x"):
        kept.put(message(name))
    assert sorted(found(kept, topic_filter)) == expected.split()


# ---- limits


def test_the_limit_of_messages() -> None:
    kept, budget = store(messages=2)
    kept.put(message("a"))
    kept.put(message("b"))
    for method in (kept.check, kept.put):
        with pytest.raises(QuotaExceeded, match="2 retained messages"):
            method(message("c"))
    assert (found(kept), kept.size, budget.used) == ({"a": b"x", "b": b"x"}, 4, 4), "nothing has changed"
    kept.put(message("a", b"new"))
    kept.delete("b")
    kept.put(message("c"))
    assert sorted(found(kept)) == ["a", "c"]


def test_the_limit_of_bytes() -> None:
    kept, _ = store(size=6)
    kept.put(message("a", b"12"))
    assert kept.check(message("b", b"12")) == 3
    kept.put(message("b", b"12"))
    for bad in (message("c", b""), message("a", b"123")):
        with pytest.raises(QuotaExceeded, match="6 bytes"):
            kept.put(bad)
    assert found(kept) == {"a": b"12", "b": b"12"}
    assert kept.check(message("a", b"")) == -2, "one that shrinks is always taken"
    kept.put(message("a", b""))
    kept.put(message("b", b"1234"[:3]))
    assert kept.size == 5


def test_the_byte_budget_of_the_process() -> None:
    kept, budget = store(budget=10)
    budget.take(6)
    kept.put(message("a", b"123"))
    for bad in (message("b"), message("a", b"1234")):
        with pytest.raises(QuotaExceeded, match="byte budget"):
            kept.put(bad)
    assert (budget.used, found(kept)) == (10, {"a": b"123"})
    kept.put(message("a", b"321"))
    budget.take_anyway(50)
    kept.put(message("a", b"3"))
    kept.delete("a")
    assert budget.used == 56


def test_an_owned_message_goes_above_every_limit() -> None:
    kept, budget = store(messages=1, size=4, budget=4)
    kept.put(message("a", b"123"))
    kept.put(message("b", b"12345"), owned=True)
    kept.put(message("a", b"1234567"), owned=True)
    assert found(kept) == {"a": b"1234567", "b": b"12345"}
    assert (len(kept), kept.size, budget.used) == (2, 14, 14)
    with pytest.raises(QuotaExceeded):
        kept.put(message("c", b""))


# ---- expiry


def test_find_leaves_out_what_has_expired() -> None:
    kept, _ = store()
    kept.put(message("a", expires_at=10))
    kept.put(message("b"))
    assert sorted(found(kept, now=9.999)) == ["a", "b"]
    assert sorted(found(kept, now=10)) == ["b"]


def test_the_sweep_deletes_what_has_expired_and_gives_the_bytes_back() -> None:
    kept, budget = store()
    for name, when in (("a", 30.0), ("b", 10.0), ("c", 20.0), ("d", None)):
        kept.put(message(name, expires_at=when))
    assert kept.clean_expired(9.999) == 0
    assert kept.clean_expired(20) == 2
    assert (sorted(found(kept)), kept.size, budget.used) == (["a", "d"], 4, 4)
    assert kept.clean_expired(20) == 0
    assert kept.clean_expired(1e9) == 1
    assert (sorted(found(kept)), len(kept)) == (["d"], 1)


@pytest.mark.parametrize(
    ("moves", "alive_at_15"),
    [
        ([10.0, 20.0], True),
        ([20.0, 10.0], False),
        ([10.0, None], True),
        ([None, 10.0], False),
        ([10.0, 10.0], False),
    ],
)
def test_the_deadline_of_the_last_message_counts(moves: list[float | None], alive_at_15: bool) -> None:
    kept, budget = store()
    for when in moves:
        kept.put(message("a", expires_at=when))
    assert kept.clean_expired(15) == (0 if alive_at_15 else 1)
    assert (len(kept), budget.used) == ((1, 2) if alive_at_15 else (0, 0))


def test_a_deleted_one_that_comes_again_does_not_expire_by_its_old_deadline() -> None:
    kept, _ = store()
    kept.put(message("a", expires_at=10))
    kept.delete("a")
    kept.put(message("a"))
    assert kept.clean_expired(100) == 0
    assert len(kept) == 1


def test_many_replacements_leave_a_small_heap() -> None:
    kept, _ = store()
    choose, largest = random.Random(1), 0
    for number in range(300_000):
        kept.put(message(f"t{number % 50}", expires_at=1e6 + choose.random()))
        if number % 97 == 0:
            largest = max(largest, len(kept._deadlines))
    assert largest <= 2 * 50 + 1001
    assert kept.clean_expired(1e6) == 0
    assert kept.clean_expired(2e6) == 50
    assert len(kept) == 0 == kept.size


def test_put_and_delete_leave_a_small_heap_too() -> None:
    kept, _ = store()
    for number in range(5000):
        kept.put(message("a", expires_at=1e6 + number))
        kept.delete("a")
    assert len(kept._deadlines) <= 1003
    assert kept.clean_expired(2e6) == 0


# ---- a walk is lazy, and what is newer than its start is not given


def names(steps: Iterator[Message | None]) -> list[str]:
    return [each.topic_name for each in given(steps)]


@pytest.mark.parametrize(
    ("topic_filter", "matches"), [("a/+", 3000), ("#", 3000), ("+/nowhere", 0), ("a/7", 1)]
)
def test_a_walk_takes_a_small_step_at_a_time(topic_filter: str, matches: int) -> None:
    kept, _ = store(messages=3000)
    index: Any = CountedIndex()
    kept._index = index
    for number in range(3000):
        kept.put(message(f"a/{number}"))
    before = count = 0
    steps = walk(kept, topic_filter, 0)
    assert index.looked_at == 0
    for each in steps:
        assert index.looked_at - before <= 256, "whatever the filter, nobody is held up for long"
        before = index.looked_at
        count += each is not None
    assert count == matches


def test_what_is_put_after_the_call_is_not_given() -> None:
    kept, _ = store()
    for name in ("a", "b", "c"):
        kept.put(message(name))
    steps = walk(kept, "#", 0)
    kept.put(message("d"))  # before the first step already
    kept.put(message("b", b"newer"))
    assert names(steps) == ["a", "c"], "b and d reach a subscriber as live ones"
    assert len(names(walk(kept, "#", 0))) == 4


def test_changes_between_two_steps() -> None:
    kept, _ = store(messages=1000)
    for name in ("a", "b", "c", "d", "e"):
        kept.put(message(name))
    steps = walk(kept, "#", 0)
    seen = [each.topic_name for each in (next(steps), next(steps)) if each is not None]
    assert len(seen) == 2
    rest = sorted(set("abcde") - set(seen))
    kept.delete(seen[0])
    kept.delete(rest[0])
    kept.put(message(rest[1], b"newer"))
    for number in range(100):
        kept.put(message(f"new/{number}"))
    assert names(steps) == [rest[2]]


def test_deleted_and_stored_again_is_newer() -> None:
    kept, _ = store()
    kept.put(message("a"))
    steps = walk(kept, "#", 0)
    kept.delete("a")
    kept.put(message("a"))
    assert names(steps) == []


def test_two_walks_at_once_do_not_disturb_each_other() -> None:
    kept, _ = store()
    for number in range(40):
        kept.put(message(f"a/{number}"))
    first, second = walk(kept, "#", 0), walk(kept, "a/#", 0)
    pairs = [
        (one, two) for one, two in zip(first, second, strict=True) if one is not None and two is not None
    ]
    assert len({one.topic_name for one, _ in pairs}) == 40


# ---- against a dictionary


class StoreMachine(RuleBasedStateMachine):
    """The store and a plain dictionary of (payload, deadline) do the same."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.budget = store(messages=5, size=80, budget=120)
        self.model: dict[str, tuple[bytes, float | None]] = {}
        self.others = 0  # bytes that somebody else holds of the budget
        self.now = 0.0

    def model_size(self, model: dict[str, tuple[bytes, float | None]]) -> int:
        return sum(len(name) + len(payload) for name, (payload, _) in model.items())

    @rule(
        name=topic_names,
        payload=st.binary(max_size=40),
        life=st.none() | st.integers(0, 5),
        owned=st.booleans(),
    )
    def put(self, name: str, payload: bytes, life: int | None, owned: bool) -> None:
        expires_at = None if life is None else self.now + life
        after = self.model | {name: (payload, expires_at)}
        size, before = self.model_size(after), self.model_size(self.model)
        fits = len(after) <= max(5, len(self.model)) and (
            size <= before or (size <= 80 and size + self.others <= 120)
        )
        try:
            self.kept.put(message(name, payload, expires_at), owned=owned)
        except QuotaExceeded:
            assert not fits and not owned
        else:
            assert fits or owned
            self.model = after

    @rule(name=topic_names)
    def delete(self, name: str) -> None:
        self.kept.delete(name)
        self.model.pop(name, None)

    @rule(size=st.integers(0, 60))
    def somebody_else(self, size: int) -> None:
        self.budget.give(self.others)
        self.others = size
        self.budget.take_anyway(size)

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    def alive(self) -> dict[str, bytes]:
        return {
            name: payload
            for name, (payload, expires_at) in self.model.items()
            if expires_at is None or expires_at > self.now
        }

    @rule()
    def sweep(self) -> None:
        alive = self.alive()
        assert self.kept.clean_expired(self.now) == len(self.model) - len(alive)
        self.model = {name: self.model[name] for name in alive}

    @rule(topic_filter=topic_filters)
    def find(self, topic_filter: str) -> None:
        expected = {name: payload for name, payload in self.alive().items() if match(topic_filter, name)}
        assert found(self.kept, topic_filter, self.now) == expected

    @invariant()
    def the_books_balance(self) -> None:
        assert len(self.kept) == len(self.model)
        assert self.kept.size == self.model_size(self.model)
        assert self.budget.used == self.kept.size + self.others


StoreMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestStoreMachine = StoreMachine.TestCase
