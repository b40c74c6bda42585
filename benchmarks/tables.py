"""Results -> the tables of README.md. Pure: no broker, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from scenarios import Figure, Scenario

Result = Mapping[str, Any]  # what mqttload said, and _cpu, _peak, _error
Results = Mapping[tuple[str, str], Sequence[Result]]  # by scenario and title of the broker
Row = list[str]

FLASHMQ = "FlashMQ"
USERS, BENCHMARKS = "loads that users have", "loads that benchmarks have"


class Line(NamedTuple):
    """A row of a table before it is known which half it stands in."""

    scenario: Scenario
    figure: Figure


def lines(scenarios: Iterable[Scenario], users: bool) -> list[Line]:
    return [Line(each, figure) for each in scenarios if each.users is users for figure in each.figures]


def tables(
    results: Results,
    scenarios: Sequence[Scenario],
    fast: Sequence[str],
    ours: Sequence[str],
    slow: Sequence[str],
) -> str:
    """All tables. Ratios are to the first of *fast*; the goals are for its second, and the best of *ours*."""
    base = fast[0]

    def several(cell: Callable[[Line, str], str], titles: Sequence[str]) -> Callable[[Line], Row]:
        return lambda line: [cell(line, title) for title in titles]

    def speed(line: Line, title: str) -> str:
        return with_ratio(results, line, title, base)

    def processor(line: Line, title: str) -> str:
        return short(cpu(results, line, title))

    def memory(line: Line, title: str) -> str:
        return short(peak(results, line, title))

    def both(line: Line, title: str) -> str:
        text, us = speed(line, title), processor(line, title)
        return f"{text} / {us}" if us else text

    def flashmq(line: Line) -> Row:
        return [short(cpu(results, line, FLASHMQ)) or line.figure.flashmq]

    parts = [
        "### Goals",
        side_by_side(
            scenarios,
            [
                base,
                *(["ratio", "goal", "CPU us (times less)"] if len(fast) > 1 else []),
                "FlashMQ, CPU us",
                "best build",
            ],
            lambda line: [
                short(rate(results, line, base)),
                *goal_cells(results, line, fast),
                *flashmq(line),
                best_build(results, line, ours, base),
            ],
        ),
        "### Rates, and the ratio to mosquitto",
        side_by_side(
            scenarios,
            [*fast, "all delivered"],
            lambda line: [*several(speed, fast)(line), delivered(results, line, fast)],
        ),
        "### CPU of the broker, microseconds a message",
        side_by_side(
            scenarios,
            [*fast, *([] if FLASHMQ in fast else [FLASHMQ])],
            lambda line: [*several(processor, fast)(line), *([] if FLASHMQ in fast else flashmq(line))],
            per_figure_cpu=True,
        ),
        "### Peak memory, MiB",
        side_by_side(scenarios, fast, several(memory, fast), first_figure_only=True),
    ]
    if slow:
        main = [scenario for scenario in scenarios if scenario.main]
        parts += [
            "### The others, in the main scenarios: rate, ratio, CPU us",
            side_by_side(main, slow, several(both, slow)),
        ]
    return "\n\n".join(parts)


def side_by_side(
    scenarios: Sequence[Scenario],
    columns: Sequence[str],
    cells: Callable[[Line], Row],
    first_figure_only: bool = False,
    per_figure_cpu: bool = False,
) -> str:
    """One table: what users have on the left, what benchmarks have on the right."""

    def half(users: bool) -> list[Row]:
        wanted = lines(scenarios, users)
        if first_figure_only:
            wanted = [line for line in wanted if line.figure is line.scenario.figures[0]]
        if per_figure_cpu:
            wanted = [line for line in wanted if line.figure.cpu]
        return [[line.figure.title, *cells(line)] for line in wanted]

    empty = [""] * (len(columns) + 1)
    head = [USERS, *columns, BENCHMARKS, *columns]
    rule = ["---", *["---:"] * len(columns)] * 2
    body = [[*left, *right] for left, right in zip_longest(half(True), half(False), fillvalue=empty)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


# ---- cells


def good(results: Results, line: Line, title: str) -> list[Result]:
    return [each for each in results.get((line.scenario.name, title), ()) if not each.get("_error")]


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def rate(results: Results, line: Line, title: str) -> float | None:
    return median(each.get(line.figure.key) for each in good(results, line, title))


def ratio(results: Results, line: Line, title: str, base: str) -> float | None:
    ours, theirs = rate(results, line, title), rate(results, line, base)
    return ours / theirs if ours is not None and theirs else None


def cpu(results: Results, line: Line, title: str) -> float | None:
    if line.figure.cpu is None:
        return None
    seconds, things = line.figure.cpu
    found = good(results, line, title)
    return median(
        each[seconds] * 1e6 / each[things] for each in found if each.get(things) and seconds in each
    )


def peak(results: Results, line: Line, title: str) -> float | None:
    return median(each.get("_peak") for each in good(results, line, title))


def with_ratio(results: Results, line: Line, title: str, base: str) -> str:
    value = rate(results, line, title)
    if value is None:
        return "fails" if results.get((line.scenario.name, title)) else ""
    every, passed = results[line.scenario.name, title], good(results, line, title)
    note = f" ({len(passed)} of {len(every)} runs)" if len(passed) < len(every) else ""
    against = ratio(results, line, title, base)
    return short(value) + (f" x{against:.2f}" if against is not None and title != base else "") + note


def goal_cells(results: Results, line: Line, fast: Sequence[str]) -> Row:
    """The ratio of the second broker, its goal and whether that is met, its CPU and how many times less."""
    if len(fast) < 2:
        return []
    base, ours = fast[:2]
    against, figure = ratio(results, line, ours, base), line.figure
    met = "" if figure.goal is None else goal_text(figure)
    if met and against is not None:
        value = rate(results, line, ours)
        met += ", met" if is_met(figure, against, value) else ", **missed**"
    shown = f"x{against:.2f}" if against is not None else with_ratio(results, line, ours, base)
    used, theirs = cpu(results, line, ours), cpu(results, line, base)
    less = f" (x{theirs / used:.2f})" if used and theirs else ""
    return [shown, met, short(used) + less]


def best_build(results: Results, line: Line, titles: Sequence[str], base: str) -> str:
    """The best of *titles* beside FlashMQ: the figures if that took part, else CPU time and a constant."""
    figure, theirs = line.figure, rate(results, line, FLASHMQ)
    if figure.best is None:
        return ""
    if theirs:
        ours = [value for title in titles if (value := rate(results, line, title)) is not None]
        best = (max if figure.more else min)(ours, default=None)
        return against(best / theirs, figure) if best is not None else ""
    used = [us for title in titles if (us := cpu(results, line, title))]
    if not used or not figure.flashmq.replace(".", "").isdigit():
        return ""
    return against(constant(figure, cpu(results, line, base)) / min(used), figure)


def against(times: float, figure: Figure) -> str:
    """*times* FlashMQ, and whether that is what *figure* should be."""
    assert figure.best is not None
    sign, met = ("≥", times >= figure.best) if figure.more else ("≤", times <= figure.best)
    return f"x{times:.2f} of {sign} {figure.best:g}, {'met' if met else '**missed**'}"


def constant(figure: Figure, base: float | None) -> float:
    """FlashMQ's CPU time as it would be in this run, in which mosquitto takes *base*.

    System calls and memory cost half as much again on one day as on another: ratios within a run travel.
    """
    scale = base / figure.beside if base and figure.beside else 1.0
    return float(figure.flashmq) * scale


def is_met(figure: Figure, against: float, value: float | None) -> bool:
    if figure.goal is None:
        return True
    within = figure.most is None or (value is not None and value <= figure.most)
    return within and (against >= figure.goal if figure.more else against <= figure.goal)


def goal_text(figure: Figure) -> str:
    text = f"{'≥' if figure.more else '≤'} {figure.goal:g}"
    return f"{text}, ≤ {figure.most:,g} B" if figure.most is not None else text


def delivered(results: Results, line: Line, titles: Sequence[str]) -> str:
    """Whether everything that was published came exactly once; else who lost how many."""
    wrong, seen = [], False
    for title in titles:
        for each in good(results, line, title):
            if "lost" not in each:
                continue
            seen = True
            missing, extra = each["lost"], each.get("duplicated", 0)
            if missing or extra:
                wrong.append(f"{title}: {missing:,} lost" + (f", {extra:,} twice" if extra else ""))
                break
    return "; ".join(wrong) or ("yes" if seen else "")


def short(value: float | None) -> str:
    if value is None:
        return ""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


# ---- the document


def between(document: str, name: str, text: str) -> str:
    """*document* with *text* in place of what stands between the markers of *name*."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    head, found, rest = document.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the markers of {name} are missing")
    return f"{head}{begin}{text}\n{end}{tail}"
