"""Awake: it looks for more as long as that pays, and what it costs where it does not is bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import cycle, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import Broker, Capacity, Config
from broker.transport.base import LONGEST_PAUSE, LONGEST_TURN, PAUSE, SOON, SURE, TRIAL, Awake

LASTS = 40e-6
GLANCE = 1e-6  # seconds that one look at the epoll takes
LATE = 1.5 * LASTS  # in time for a trial
NEVER = 1.0


class World:
    """Something comes so many seconds after all was done, by turns; time passes only while somebody looks."""

    def __init__(self, lasts: float = LASTS) -> None:
        self.now = 100.0
        self.awake = Awake(lasts, lambda: self.now)
        self.looked = 0.0
        self.sleeps = 0

    def answer(self, after: float, asleep: float | None = None, anew: bool = False) -> bool:
        """Something comes *after* so long, or *asleep* if nobody looks then; whether it was found by a look.

        *anew*: the loop had its turn before.
        """
        if anew:
            self.awake.woken()
        comes, begun = self.now + after, self.now

        def find() -> list[str]:
            self.now += GLANCE
            return ["it"] if self.now >= comes else []

        found = self.awake.look(find)
        self.looked += self.now - begun
        if not found:
            self.sleeps += 1
            self.now = max(self.now, begun + (after if asleep is None else asleep))
            self.awake.woken()
        return list(found) == ["it"]

    def until_trial(self, after: float = LATE) -> int:
        """How often it slept a short while before it looked."""
        for count in range(10 * LONGEST_PAUSE):
            before = self.looked
            self.answer(after)
            if self.looked > before:
                return count
        raise AssertionError("it never looks")


def test_who_never_slept_shortly_never_looks() -> None:
    world = World()
    assert not any(world.answer(after) for after in repeat(SOON * 1.01, 5 * PAUSE))
    assert world.looked == 0


@pytest.mark.parametrize(("lasts", "cores"), [(0.0, 2), (LASTS, 1), (LASTS, None)])
def test_it_is_off_at_0_and_where_nobody_else_could_run(
    lasts: float, cores: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    world = World(lasts)
    assert not any(world.answer(LASTS / 2) for _ in range(5 * PAUSE))
    assert world.looked == 0


def test_after_some_short_sleeps_it_looks_and_goes_on_while_that_pays() -> None:
    world = World()
    assert world.until_trial(LASTS / 2) == PAUSE
    slept = world.sleeps
    assert all(world.answer(LASTS / 2, anew=True) for _ in range(100))
    assert world.sleeps == slept


def test_who_slept_because_we_did_is_late_once() -> None:
    """As long as we sleep others fall asleep, too: the first answer takes longer than those behind it."""
    world = World()
    for _ in range(PAUSE):
        assert not world.answer(LASTS / 2, asleep=3 * LASTS)
    assert world.answer(LATE), "a trial lasts longer"
    assert all(world.answer(LASTS / 2, anew=True) for _ in range(100))


def test_what_never_comes_in_time_is_given_up() -> None:
    world = World()
    world.until_trial(SOON * 0.9)
    looked = world.looked
    for _ in range(TRIAL - 1):
        world.answer(SOON * 0.9)
    assert world.looked == pytest.approx(looked * TRIAL, rel=0.05)
    before = world.looked
    world.answer(SOON * 0.9)
    assert world.looked == before


def test_trials_in_vain_are_ever_rarer_until_one_pays() -> None:
    world, pauses = World(), list[int]()
    for _ in range(10):
        pauses.append(world.until_trial(SOON * 0.9))
        for _ in range(TRIAL - 1):
            world.answer(SOON * 0.9)
    doubled = [min(PAUSE << number, LONGEST_PAUSE) for number in range(10)]
    assert pauses == [count - (number > 0) for number, count in enumerate(doubled)]
    for _ in range(world.until_trial(LASTS / 2) + SURE):
        world.answer(LASTS / 2)
    for _ in range(SURE):
        world.answer(SOON * 0.9)
    assert world.until_trial(SOON * 0.9) < 2 * PAUSE


def test_who_is_sure_bears_with_a_few_that_are_late() -> None:
    world = World()
    world.until_trial(LASTS / 2)
    assert all(world.answer(LASTS / 2, anew=True) for _ in range(2 * SURE))
    for _ in range(SURE - TRIAL - 1):
        assert not world.answer(LATE), "no trial, and so no longer than in ordinary times"
    assert world.answer(LASTS / 2)
    before = world.looked
    assert not world.answer(NEVER)
    assert world.looked - before == pytest.approx(LASTS, rel=0.1)


def test_nobody_is_ever_more_than_sure() -> None:
    world = World()
    world.until_trial(LASTS / 2)
    for _ in range(100 * SURE):
        world.answer(LASTS / 2, anew=True)
    for _ in range(SURE):
        assert not world.answer(NEVER)
    looked = world.looked
    world.answer(NEVER)
    assert world.looked == looked


@pytest.mark.parametrize("lasts", [0.0, 30e-6])
def test_the_setting_says_for_how_long(lasts: float) -> None:
    awake = Broker(Config(capacity=Capacity(stay_awake=lasts)))._connections.turn.awake
    awake.woken()
    awake._pays = TRIAL
    assert list(awake.look(lambda: ["it"])) == (["it"] if lasts else [])
    before = time.monotonic()
    awake.look(lambda: ())
    assert time.monotonic() - before >= lasts


def gaps(pattern: list[float]) -> Iterator[float]:
    return cycle(pattern)


@settings(deadline=None, max_examples=30)
@given(pattern=st.lists(st.floats(2.1 * LASTS, 5 * SOON), min_size=1, max_size=6))
def test_where_it_is_in_vain_it_takes_next_to_no_time(pattern: list[float]) -> None:
    world, come = World(), gaps(pattern)
    for _ in range(2 * LONGEST_PAUSE):
        world.answer(next(come))
    world.looked, begun = 0.0, world.now
    for _ in range(10 * LONGEST_PAUSE):
        world.answer(next(come))
    assert world.looked <= 0.01 * (world.now - begun)


def test_all_else_in_the_loop_has_its_turn_after_a_while() -> None:
    world = World()
    world.until_trial(LASTS / 2)
    for _ in range(3):
        begun = world.now
        while world.answer(LASTS / 2):
            assert world.now - begun <= LONGEST_TURN + LASTS
        assert world.now - begun >= LONGEST_TURN


def test_it_gives_what_was_found_and_nothing_else() -> None:
    awake, now = Awake(LASTS, iter(range(1000)).__next__), list[int]()
    assert list(awake.look(lambda: now)) == [], "nobody is asked: it may sleep"

    def asked() -> Callable[[], list[int]]:
        raise AssertionError

    assert list(awake.look(asked)) == []  # type: ignore[arg-type]
