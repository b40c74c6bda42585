"""ByteBudget: how many bytes the whole process may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.budget import ByteBudget


@pytest.mark.parametrize(
    ("used", "size", "fits"),
    [(0, 0, True), (0, 10, True), (0, 11, False), (9, 1, True), (9, 2, False), (10, 0, True)],
)
def test_take_and_has_agree_and_a_refusal_reserves_nothing(used: int, size: int, fits: bool) -> None:
    budget = ByteBudget(10)
    assert budget.take(used)
    assert budget.has(size) is fits
    assert budget.used == used, "asking takes nothing"
    assert budget.take(size) is fits
    assert budget.used == (used + size if fits else used)


def test_what_must_not_be_lost_goes_above_the_maximum() -> None:
    budget = ByteBudget(10)
    budget.take_anyway(25)
    assert (budget.used, budget.spent, budget.has(0), budget.take(0)) == (25, True, False, False)
    budget.give(16)
    assert (budget.used, budget.spent, budget.take(1)) == (9, False, True)
    assert budget.spent


@given(st.lists(st.tuples(st.sampled_from(["take", "take_anyway"]), st.integers(0, 40)), max_size=30))
def test_what_was_taken_can_be_given_back(steps: list[tuple[str, int]]) -> None:
    budget, taken = ByteBudget(100), []
    for method, size in steps:
        if getattr(budget, method)(size) is not False:
            taken.append(size)
        assert budget.used == sum(taken)
        assert budget.spent is (sum(taken) >= 100)
    for size in taken:
        budget.give(size)
    assert budget.used == 0
