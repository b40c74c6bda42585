"""Values by Topic Name, found by Topic Filter."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.topic.index import BUNCH, TopicIndex
from broker.topic.match import match
from tests.topic.make import topic_filters, topic_names


def index_of(*topic_names: str) -> TopicIndex[int]:
    index: TopicIndex[int] = TopicIndex()
    for number, topic_name in enumerate(topic_names):
        index.set(topic_name, number)
    return index


class Contents(RuleBasedStateMachine):
    """An index against a dictionary and `match`."""

    def __init__(self) -> None:
        super().__init__()
        self.index: TopicIndex[int] = TopicIndex()
        self.values: dict[str, int] = {}

    @rule(topic_name=topic_names, value=st.integers())
    def set(self, topic_name: str, value: int) -> None:
        self.index.set(topic_name, value)
        self.values[topic_name] = value

    @rule(names=st.lists(topic_names, min_size=BUNCH, max_size=3 * BUNCH))
    def set_many(self, names: list[str]) -> None:
        for topic_name in names:
            self.set(topic_name, 0)

    @rule(topic_name=topic_names)
    def pop(self, topic_name: str) -> None:
        assert self.index.pop(topic_name, None) == self.values.pop(topic_name, None)

    @rule(topic_filter=topic_filters)
    def pop_many(self, topic_filter: str) -> None:
        for topic_name in [name for name in self.values if match(topic_filter, name)]:
            self.pop(topic_name)

    @rule(topic_filter=topic_filters, size=st.integers(1, 5))
    def find(self, topic_filter: str, size: int) -> None:
        expected = {name: value for name, value in self.values.items() if match(topic_filter, name)}
        found = list(self.index.find(topic_filter))
        assert len(found) == len(expected)
        assert dict(found) == expected
        slices = list(self.index.slices(topic_filter, size))
        assert [value for values in slices for value in values] == [value for _, value in found]
        assert max(map(len, slices)) <= size

    @rule(topic_name=topic_names)
    def get(self, topic_name: str) -> None:
        assert self.index.get(topic_name) == self.values.get(topic_name)
        assert (topic_name in self.index) == (topic_name in self.values)

    @invariant()
    def same(self) -> None:
        assert list(self.index.items()) == list(self.values.items())
        assert len(self.index) == len(self.values)
        if not self.values:
            assert self.index._root == (), "nothing is left of removed names"


TestContents = Contents.TestCase

CHANGES = st.lists(st.tuples(st.integers(0, 30), st.booleans(), topic_names), max_size=30)


@given(st.sets(topic_names, max_size=60), topic_filters, CHANGES)
def test_changes_between_the_steps_of_a_find(
    names: set[str], topic_filter: str, changes: list[tuple[int, bool, str]]
) -> None:
    index = index_of(*names)
    steady = {name for name in names if name not in {changed for _, _, changed in changes}}
    found: list[str] = []
    for step, (topic_name, _) in enumerate(index.find(topic_filter)):
        assert topic_name in index
        found.append(topic_name)
        for at, adds, changed in changes:
            if at == step and adds:
                index.set(changed, -1)
            elif at == step:
                index.pop(changed)
    assert len(found) == len(set(found)), "nothing comes twice"
    assert {name for name in steady if match(topic_filter, name)} <= set(found)
    assert all(match(topic_filter, name) for name in found)


def test_a_find_gives_the_value_of_the_moment() -> None:
    index = index_of("a/1", "a/2", "a/3")
    found = index.find("a/+")
    assert next(found) == ("a/1", 0)
    index.set("a/2", 7)
    index.pop("a/3")
    assert list(found) == [("a/2", 7)]


def test_the_order_stays() -> None:
    index = index_of(*(f"{number % 7}/{number}" for number in range(200)))
    assert list(index.find("#")) == list(index.find("#"))
    assert list(index.find("3/#")) == [(f"3/{number}", number) for number in range(3, 200, 7)]


def test_defaults() -> None:
    index = index_of("a")
    assert index.get("b", 5) == 5
    assert index.pop("b", 6) == 6
    assert index.get("b") is index.pop("b") is None
    assert list(index) == ["a"]


def test_slices_come_also_where_nothing_matches() -> None:
    index = index_of(*(f"{number}/a" for number in range(1000)))
    slices = list(index.slices("+/b", 100))
    assert len(slices) >= 10
    assert not any(slices)


def test_a_find_does_not_look_at_everything() -> None:
    index = index_of(*(f"{number % 100}/{number}" for number in range(10_000)))
    looked_at = sum(count for count, _ in index._bunches("42/#", 16))
    assert looked_at <= 100 + 2


@pytest.mark.parametrize(
    "topic_filter",
    ["#", "+/#", "+/" * 32_767 + "#", "/" * 32_000 + "#", "+/" * 32_000 + "+"],
    ids=["all", "one and all", "many + and all", "many levels and all", "many +"],
)
def test_names_of_very_many_levels(topic_filter: str) -> None:
    names = ["/" * 65_000 + str(number) for number in range(3 * BUNCH)] + ["/" * 32_000 + "x"]
    began = process_time()
    index = index_of(*names)
    found = [name for name, _ in index.find(topic_filter)]
    for name in names:
        index.pop(name)
    assert found == [name for name in names if match(topic_filter, name)]
    assert index._root == ()
    assert process_time() - began < 10, "seconds, where under one is usual"
