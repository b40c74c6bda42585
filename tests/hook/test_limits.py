"""Rate and Takeovers: how often something may happen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.hook import limits
from broker.hook.limits import Rate, Takeovers


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


# ---- takeovers


def test_no_limit_of_takeovers_remembers_nothing() -> None:
    takeovers = Takeovers(0, 60)
    assert all(takeovers.allow("c", 0.0) for _ in range(1000))
    assert len(takeovers) == 0


@pytest.mark.parametrize("most", [1, 2, 15])
def test_so_many_takeovers_of_each_client_id(most: int) -> None:
    takeovers = Takeovers(most, 60)
    for client_id in ("a", "b"):
        assert [takeovers.allow(client_id, 5.0) for _ in range(most + 2)] == [True] * most + [False] * 2
    assert takeovers.allow("c", 5.0)


def test_a_storm_is_slowed_to_so_many_in_each_period() -> None:
    takeovers = Takeovers(4, 60)
    allowed = [tenth / 10 for tenth in range(3000) if takeovers.allow("c", tenth / 10)]
    assert allowed[:4] == [0.0, 0.1, 0.2, 0.3]
    assert len(allowed) == 4 + 300 // 15 - 1
    assert all(later - earlier > 14.5 for earlier, later in pairwise(allowed[3:]))


def test_takeovers_that_are_far_apart_are_never_refused() -> None:
    takeovers = Takeovers(2, 60)
    assert all(takeovers.allow("c", 31.0 * number) for number in range(100))


def test_a_storm_is_told_of_once_and_is_over_after_a_quiet_period() -> None:
    takeovers = Takeovers(2, 60)
    told = 0
    for second in range(600):
        told += not takeovers.allow("c", float(second)) and takeovers.first_refusal("c")
    assert told == 1
    assert [takeovers.allow("c", 700.0) for _ in range(3)] == [True, True, False]
    assert takeovers.first_refusal("c") and not takeovers.first_refusal("c")


def test_refusals_do_not_make_a_storm_longer() -> None:
    takeovers = Takeovers(1, 60)
    assert takeovers.allow("c", 0.0)
    assert not any(takeovers.allow("c", float(second)) for second in range(60))
    assert takeovers.allow("c", 60.0)


def test_what_is_over_is_forgotten() -> None:
    takeovers = Takeovers(3, 60)
    for number in range(100):
        takeovers.allow(f"c{number}", float(number))
    takeovers.allow("c5", 100.0)
    assert len(takeovers) == 59 + 1, "those of less than a minute ago, and c5 is one"
    takeovers.allow("x", 200.0)
    assert len(takeovers) == 1


def test_a_limited_number_is_remembered_and_the_latest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMEMBERED", 3)
    takeovers = Takeovers(1, 60)
    for client_id in "abcd":
        assert takeovers.allow(client_id, 1.0)
    assert len(takeovers) == 3
    assert [takeovers.allow(client_id, 1.0) for client_id in "bcda"] == [False, False, False, True]


def test_long_client_ids_are_not_kept() -> None:
    takeovers = Takeovers(1, 60)
    client_id = "x" * 65535
    takeovers.allow(client_id, 0.0)
    assert client_id not in map(str, takeovers._quarrels)
    assert not takeovers.allow("x" * 65535, 0.0)
