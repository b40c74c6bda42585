"""Rate: how often something may happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.hook.limits import Rate


def test_no_limit() -> None:
    rate = Rate(0)
    assert all(rate.allow(0.0) for _ in range(10_000))


@pytest.mark.parametrize("per_second", [1, 2, 10, 100])
def test_so_many_at_once_then_so_many_a_second(per_second: int) -> None:
    rate = Rate(per_second)
    assert [rate.allow(5.0) for _ in range(per_second + 2)] == [True] * per_second + [False] * 2
    assert [rate.allow(6.0) for _ in range(per_second + 1)] == [True] * per_second + [False]


def test_a_long_pause_saves_nothing_up() -> None:
    rate = Rate(3)
    assert [rate.allow(1e6) for _ in range(4)] == [True] * 3 + [False]
    assert [rate.allow(2e6) for _ in range(4)] == [True] * 3 + [False]


def test_between_two_seconds() -> None:
    rate = Rate(2)
    assert [rate.allow(now) for now in (0, 0, 0.25, 0.5, 0.75, 1.0)] == [True, True, False, True, False, True]


def test_less_than_one_a_second() -> None:
    rate = Rate(0.5)
    assert [rate.allow(now) for now in (0, 1, 1.999, 2, 3, 4)] == [True, False, False, True, False, True]


def test_whoever_is_refused_does_not_lose_what_was_collected() -> None:
    rate = Rate(1)
    assert rate.allow(0)
    assert not any(rate.allow(tenth / 10) for tenth in range(1, 10))
    assert rate.allow(1.001)


@given(
    st.floats(0.1, 50),
    st.lists(st.floats(0, 2, allow_subnormal=False), min_size=1, max_size=200),
)
def test_never_more_than_the_rate_and_one_burst(per_second: float, pauses: list[float]) -> None:
    rate, now, allowed = Rate(per_second), 1000.0, 0
    for pause in pauses:
        now += pause
        allowed += rate.allow(now)
        assert allowed <= max(per_second, 1.0) + (now - 1000.0) * per_second + 1e-6
