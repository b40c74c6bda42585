"""Runs wait for quiet cores, not without end, and those that were disturbed are measured once more."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NAMES = ("quiet", "run", "tables", "scenarios", "peers", "mqttload", "mqttload.compare")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """quiet, which is part of a program and not of a package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import quiet

    yield quiet
    for name in NAMES:
        sys.modules.pop(name, None)


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

    def waiting(self, quiet: ModuleType, patience: float) -> Any:
        return quiet.Quiet(patience, (0, 1), self.look, lambda: self.now, self.sleep)


def test_a_run_waits_until_both_cores_are_as_fast_as_they_were(quiet: ModuleType) -> None:
    machine = Machine((1.0, 1.2), (1.8, 1.0), (1.0, 1.4), (1.0, 1.29), (9, 9))
    waits = machine.waiting(quiet, 20)
    waits.wait()
    assert waits.waited == pytest.approx(0.02)
    waits.wait()
    assert machine.now == pytest.approx(8 * 0.01 + 2 * 0.2) and waits.waited == pytest.approx(machine.now)


def test_patience_has_an_end(quiet: ModuleType) -> None:
    waits = Machine((1.0, 1.0), *[(2.0, 2.0)] * 100).waiting(quiet, 2)
    waits.wait()
    waits.wait()
    assert 2.0 <= waits.waited < 2.5


def test_without_patience_nobody_looks(quiet: ModuleType) -> None:
    waits = Machine().waiting(quiet, 0)
    waits.wait()
    assert not waits.again() and waits.waited == 0.0


def test_what_was_disturbed_is_measured_once_more_and_that_counts(
    quiet: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it brings, and once only."""
    import run
    from peers import Contender

    calm, noise = (1.0, 1.0), (1.0, 1.5)
    # Calm before and after the first run; noise after the second, and after what is measured in its place.
    machine, rates = Machine(calm, calm, calm, noise, calm, noise), iter((100, 200, 150, 999))
    waits = machine.waiting(quiet, 2)
    monkeypatch.setattr(run, "Quiet", lambda patience: waits)
    monkeypatch.setattr(run, "one", lambda *_: {"delivered_per_s": next(rates), "_error": None})
    scenario = next(each for each in run.SCENARIOS if each.name == "qos0")
    wanted = Namespace(rounds=2, patience=2.0, secs=1.0)
    found = run.run((Path("generator"), True), [Contender("ours", lambda _: None)], [scenario], wanted)
    assert [answer["delivered_per_s"] for _, _, answer in found] == [100, 150]
    assert "1 run(s) measured once more" in capsys.readouterr().err


def test_what_one_run_says_little_of_is_run_more_often(
    quiet: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each broker in turn, every time; and the tables say how many rounds there were."""
    import run
    from peers import Contender

    monkeypatch.setattr(run, "one", lambda *_: {"p50_us": 1.0, "_error": None})
    scenario = next(each for each in run.SCENARIOS if each.name == "latency-10k")
    brokers = [Contender(title, lambda _: None) for title in ("mosquitto", "ours")]
    wanted = Namespace(rounds=2, patience=0.0, secs=1.0)
    found = list(run.run((Path("generator"), True), brokers, [scenario], wanted))
    assert [title for _, title, _ in found] == ["mosquitto", "ours"] * scenario.times * 2
    titles = [broker.title for broker in brokers]
    kept = {"made": "1 s", "fast": titles, "ours": ["ours"], "slow": [], "answers": found}
    monkeypatch.setattr(run, "KEPT", tmp_path / "last.json")
    run.KEPT.write_text(json.dumps(kept))
    monkeypatch.setattr(sys, "argv", ["run.py", "--again", "--scenario", scenario.name])
    run.main()
    assert scenario.times > 1 and "Medians of 2 interleaved round(s)" in capsys.readouterr().out


def test_a_look_takes_some_time_and_leaves_the_cores_as_they_were(quiet: ModuleType) -> None:
    before = os.sched_getaffinity(0)
    assert 0 < quiet.probe(min(before)) < 10
    assert os.sched_getaffinity(0) == before
