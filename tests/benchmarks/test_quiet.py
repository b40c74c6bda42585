"""Runs wait for quiet cores, not without end, and those that were disturbed are measured once more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Machine:
    """Two cores that take as long as *series* says, one look at both after the other, and time."""

    def __init__(self, *series: tuple[float, float]) -> None:
        self._looks = iter([took for both in series for took in both])
        self.now = 0.0

    def look(self, core: int) -> float:
        self.now += 0.01
        return next(self._looks)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import quiet

    def make(machine: Machine, patience: float) -> Any:
        return quiet.Quiet(patience, (0, 1), machine.look, lambda: machine.now, machine.sleep)

    yield make
    del sys.modules["quiet"]


def test_a_run_waits_until_both_cores_are_as_fast_as_they_were(quiet: Any) -> None:
    machine = Machine((1.0, 1.1), (1.8, 1.0), (1.0, 1.2), (1.0, 1.14), (9, 9))
    waits = quiet(machine, 20)
    waits.wait()
    assert waits.waited == pytest.approx(0.02)
    waits.wait()
    assert machine.now == pytest.approx(8 * 0.01 + 2 * 0.2) and waits.waited == pytest.approx(machine.now)


def test_patience_has_an_end(quiet: Any) -> None:
    machine = Machine((1.0, 1.0), *[(2.0, 2.0)] * 100)
    waits = quiet(machine, 2)
    waits.wait()
    waits.wait()
    assert 2.0 <= waits.waited < 2.5


def test_what_is_disturbed_is_measured_once_more(quiet: Any) -> None:
    waits = quiet(Machine((1.0, 1.0), (1.0, 1.1), (1.0, 1.3)), 2)
    waits.wait()
    assert [waits.again(), waits.again()] == [False, True] and waits.repeated == 1


def test_without_patience_nobody_looks(quiet: Any) -> None:
    waits = quiet(Machine(), 0)
    waits.wait()
    assert not waits.again() and waits.waited == 0.0


def test_a_look_takes_some_time_and_leaves_the_cores_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import os

    import quiet

    before = os.sched_getaffinity(0)
    assert 0 < quiet.probe(min(before)) < 10
    assert os.sched_getaffinity(0) == before
