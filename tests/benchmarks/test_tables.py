"""Results become tables: ratios, goals, what failed, what was lost; both kinds of load side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """tables, scenarios and growth, which are programs and not a package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    names = ("tables", "scenarios", "growth", "run", "peers", "mqttload", "mqttload.compare")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import growth
    import scenarios
    import tables

    return {"tables": tables, "scenarios": scenarios, "growth": growth}


def stream(rate: float, share: float = 1.0, lost: int = 0) -> dict[str, Any]:
    return {"delivered_per_s": rate, "broker_cpu": share, "lost": lost, "_peak": 10.0, "_error": None}


def drawn(modules: dict[str, ModuleType], results: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    """Goals, rates, CPU and memory of two scenarios, one of each kind, and two brokers."""
    scenarios = modules["scenarios"]
    chosen = [
        scenarios.users("slow", "fanin", scenarios.Figure("slow ones", goal=2, flashmq="300", best=1)),
        scenarios.benchmark("fast", "fanout", scenarios.Figure("fast ones", goal=3)),
    ]
    text: str = modules["tables"].tables(results, chosen, ["theirs", "ours"], ["ours"], [])
    return [part for part in text.split("\n\n") if part.startswith("|")]


def test_what_users_have_stands_beside_what_benchmarks_have(modules: dict[str, ModuleType]) -> None:
    goals, rates, cpu, memory = drawn(
        modules,
        {
            ("slow", "theirs"): [stream(900), stream(1000), stream(5000)],
            ("slow", "ours"): [stream(2000, share=0.5)],
            ("fast", "theirs"): [stream(1000)],
            ("fast", "ours"): [stream(2000)],
        },
    )
    assert goals.splitlines()[-1] == (
        "| slow ones | 1,000 | x2.00 | ≥ 2, met | 250 (x4.00) | 300 | x1.20 of ≥ 1, met "
        "| fast ones | 1,000 | x2.00 | ≥ 3, **missed** | 500 (x2.00) |  |  |"
    )
    assert rates.splitlines()[-1] == (
        "| slow ones | 1,000 | 2,000 x2.00 | yes | fast ones | 1,000 | 2,000 x2.00 | yes |"
    )
    assert cpu.splitlines()[-1] == "| slow ones | 1,000 | 250 | 300 | fast ones | 1,000 | 500 |  |"
    assert memory.splitlines()[-1] == "| slow ones | 10.0 | 10.0 | fast ones | 10.0 | 10.0 |"


def test_what_was_measured_elsewhere_is_scaled_by_what_both_runs_have(modules: dict[str, ModuleType]) -> None:
    tables, scenarios = modules["tables"], modules["scenarios"]
    figure = scenarios.Figure("it", flashmq="300", best=1, beside=2000)
    assert tables.constant(figure, 1000) == 150 and tables.constant(figure, None) == 300
    line = tables.Line(scenarios.users("slow", "fanin", figure), figure)
    results = {("slow", "theirs"): [stream(1000)], ("slow", "ours"): [stream(2000, share=0.5)]}
    assert tables.best_build(results, line, ["ours"], "theirs") == "x0.60 of ≥ 1, **missed**"
    assert tables.best_build({}, line, ["ours"], "theirs") == ""


def test_the_best_build_stands_beside_flashmq_where_that_took_part(modules: dict[str, ModuleType]) -> None:
    tables, scenarios = modules["tables"], modules["scenarios"]
    figure = scenarios.Figure("it", flashmq="300", best=1, beside=2000)
    line = tables.Line(scenarios.users("slow", "fanin", figure), figure)
    results = {
        ("slow", "theirs"): [stream(1000)],
        ("slow", "ours"): [stream(2000, share=0.1)],
        ("slow", "FlashMQ"): [stream(2500)],
    }
    assert tables.best_build(results, line, ["ours"], "theirs") == "x0.80 of ≥ 1, **missed**"
    results["slow", "ours, compiled"] = [stream(3000)]
    assert tables.best_build(results, line, ["ours", "ours, compiled"], "theirs") == "x1.20 of ≥ 1, met"
    results["slow", "FlashMQ"] = [{"_error": "lost"}]
    assert tables.best_build(results, line, ["ours"], "theirs").startswith("x3.00"), "by CPU time"


def test_less_may_be_better_than_flashmq(modules: dict[str, ModuleType]) -> None:
    tables, scenarios = modules["tables"], modules["scenarios"]
    figure = scenarios.bytes_each("idle", best=0.2)
    line = tables.Line(scenarios.users("idle", "idle", figure), figure)
    results: dict[tuple[str, str], list[dict[str, Any]]]
    results = {("idle", name): [{"bytes_per_conn": size}] for name, size in (("a", 900), ("b", 950))}
    assert tables.best_build(results, line, ["a", "b"], "theirs") == "", "there is no constant"
    results["idle", "FlashMQ"] = [{"bytes_per_conn": 5000}]
    assert tables.best_build(results, line, ["a", "b"], "theirs") == "x0.18 of ≤ 0.2, met"
    results["idle", "FlashMQ"] = [{"bytes_per_conn": 4000}]
    assert tables.best_build(results, line, ["a", "b"], "theirs") == "x0.23 of ≤ 0.2, **missed**"


def test_losses_and_failures_are_said(modules: dict[str, ModuleType]) -> None:
    failed = {"_error": "timed out"}
    goals, rates, *_ = drawn(
        modules,
        {
            ("slow", "theirs"): [stream(1000, lost=7)],
            ("slow", "ours"): [failed],
            ("fast", "theirs"): [stream(1000)],
            ("fast", "ours"): [stream(2000), failed],
        },
    )
    assert "| x2.00 |" in goals and "| fails | ≥ 2 |" in goals
    assert rates.splitlines()[-1] == (
        "| slow ones | 1,000 | fails | theirs: 7 lost | fast ones | 1,000 | 2,000 x2.00 (1 of 2 runs) | yes |"
    )


def test_a_goal_may_be_a_ceiling_and_an_absolute_one_as_well(modules: dict[str, ModuleType]) -> None:
    tables, scenarios = modules["tables"], modules["scenarios"]
    latency = scenarios.microseconds("p50", "p50_us", 1.2)
    memory = scenarios.bytes_each("idle", 0.9, most=900)
    assert tables.goal_text(latency) == "≤ 1.2"
    assert tables.is_met(latency, 1.2, 100) and not tables.is_met(latency, 1.3, 100)
    assert tables.goal_text(memory) == "≤ 0.9, ≤ 900 B"
    assert tables.is_met(memory, 0.8, 900) and not tables.is_met(memory, 0.8, 901)


def test_only_what_stands_between_the_markers_is_replaced(modules: dict[str, ModuleType]) -> None:
    tables = modules["tables"]
    document = "by hand\n<!-- x: begin -->\nold\n<!-- x: end -->\nby hand too\n"
    assert tables.between(document, "x", "new") == document.replace("old", "new")
    with pytest.raises(ValueError, match="markers of y"):
        tables.between(document, "y", "new")


def test_every_scenario_has_a_name_of_its_own_and_both_kinds_are_there(
    modules: dict[str, ModuleType],
) -> None:
    chosen = modules["scenarios"].SCENARIOS
    assert len({each.name for each in chosen}) == len(chosen)
    assert {each.users for each in chosen} == {True, False}
    assert {each.over for each in chosen} == {"tcp", "ws", "tls"}


def test_growth_is_said_in_words(modules: dict[str, ModuleType]) -> None:
    growth = modules["growth"]
    square_root = [(1, 1.0), (100, 10.0), (10_000, 100.0)]
    assert growth.slope(square_root) == pytest.approx(0.5)
    assert "grows: 1.00 us with 1, 100 us with 10,000" in growth.words(growth.SERIES[0], "it", square_root)
    assert "stays the same" in growth.words(growth.SERIES[0], "it", [(1, 2.0), (1000, 2.0)])


def test_flashmq_is_as_it_comes_where_it_loses_nothing(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    import peers

    monkeypatch.setenv("FLASHMQ", "flashmq")
    contender = peers.flashmq()
    for scenario in modules["scenarios"].SCENARIOS:
        _, conf = contender.start(scenario)
        larger = "client_max_write_buffer_size" in conf
        assert larger == scenario.name.endswith(("-4k", "-256k")), scenario.name
