"""kill -9, over and over, under load: nothing acknowledged is lost [B33]."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.daemon import MEMORY
from tests.faults.storm import Plan, Report, storm


def run(store: str | Path, plan: Plan) -> Report:
    report = storm(store, plan)
    print(f"seed {plan.seed}: {report}")
    assert report.counts["Arrived"] > 20 * plan.rounds, f"seed {plan.seed}: hardly anything came: {report}"
    return report


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_what_was_acknowledged_survives(tmp_path: Path, rounds: int) -> None:
    plan = Plan(rounds, random.randrange(1 << 32))
    report = run(tmp_path / "storm.db", plan)
    assert not report.breaches, f"seed {plan.seed}: {report}"
    assert report.kills >= rounds


def test_broken_connections_alone_do_no_harm() -> None:
    plan = Plan(8, random.randrange(1 << 32), kill=False)
    report = run(MEMORY, plan)
    assert not report.breaches, f"seed {plan.seed}: {report}"


def test_the_storm_is_noticed_where_nothing_is_stored() -> None:
    """The same storm over a broker without a store: the checker must not be content."""
    report = run(MEMORY, Plan(3, 1, early=0, stops=0, shortest=0.8, patience=2.0))
    assert any(breach.startswith("session_present_says_the_truth") for breach in report.breaches), report
