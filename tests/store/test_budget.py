"""ByteBudget: how many bytes the whole process may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.budget import RESERVE, SMALL, ByteBudget


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


@pytest.mark.parametrize(
    ("used", "low", "scarce", "spent"),
    [(699, False, False, False), (700, True, False, False), (749, True, False, False),
     (750, True, True, False), (799, True, True, False), (800, True, True, True), (900, True, True, True)],
)  # fmt: skip
def test_what_can_be_done_without_goes_first(used: int, low: bool, scarce: bool, spent: bool) -> None:
    budget = ByteBudget(800)
    budget.take_anyway(used)
    assert (budget.low, budget.scarce, budget.spent) == (low, scarce, spent)


@pytest.mark.parametrize(
    ("used", "size", "held", "taken"),
    [
        pytest.param(80_000, 9_000, RESERVE, True, id="an eighth for who holds little"),
        pytest.param(80_000, 9_000, RESERVE + 1, False, id="none for who holds much"),
        pytest.param(85_000, 6_000, 1, False, id="no more than an eighth"),
        pytest.param(85_000, SMALL, 0, True, id="but a little more for who holds nothing"),
        pytest.param(900_000, SMALL, 0, True, id="whatever others hold"),
        pytest.param(900_000, SMALL + 1, 0, False, id="and no large message"),
        pytest.param(900_000, 1, 1, False, id="and only one"),
    ],
)
def test_who_keeps_up_has_a_reserve(used: int, size: int, held: int, taken: bool) -> None:
    budget = ByteBudget(80_000)
    budget.take_anyway(used)
    assert budget.take_more(size, held) is taken
    assert budget.used == used + taken * size


@pytest.mark.parametrize("maximum", [1, 7, 15, 17])
def test_the_smallest_budgets_are_not_short_of_anything_while_empty(maximum: int) -> None:
    budget = ByteBudget(maximum)
    assert not (budget.low or budget.scarce or budget.spent)


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
