"""Plots of one page: shapes as SVG that stretches, words as HTML that does not.

Every plot is a `<div class="plot">` with the axes as text placed by percent, so that letters keep their size
however wide the page is. Hovering needs no script: each column of a plot has its words inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from spark.page import numbers as n

WIDE, HIGH = 1000, 240  # units of the SVG; stretched to the plot
LABELS = 6  # times along an axis
SIZES = 8  # labels below pillars


class Line(NamedTuple):
    """One series: None where there is no value, which breaks the line."""

    name: str
    color: str
    values: list[float | None]


class Scale(NamedTuple):
    """Up a plot: `at` gives 0 for the bottom and 1 for the top."""

    at: Callable[[float], float]
    ticks: list[float]


def linear(top: float) -> Scale:
    ticks = n.ticks(top)
    return Scale(lambda value: value / ticks[-1], ticks)


def logarithmic(low: float, high: float) -> Scale:
    import math

    ticks = n.powers(low, high)
    first, last = math.log10(ticks[0]), math.log10(ticks[-1])
    return Scale(lambda value: (math.log10(max(value, ticks[0])) - first) / (last - first), ticks)


def times(moments: Sequence[int]) -> list[tuple[float, str]]:
    """(share of the width, text) of some of *moments*, milliseconds since 1970."""
    if not moments:
        return []
    first, last = moments[0], moments[-1]
    days = (last - first) / 86_400_000
    pattern = "%H:%M" if days <= 1.5 else "%d %b %H:%M" if days <= 5 else "%d %b"
    step = max(1, -(-len(moments) // LABELS))
    return [((at + 0.5) / len(moments), n.clock(moments[at], pattern)) for at in range(0, len(moments), step)]


def areas(lines: Sequence[Line]) -> str:
    """The values of *lines*, stacked, over a scale that begins at 0; the first one is at the bottom."""
    count = max((len(line.values) for line in lines), default=0)
    sums = [0.0] * count
    scale = linear(max((sum(line.values[at] or 0 for line in lines) for at in range(count)), default=0))
    shapes = []
    for line in lines:
        below = list(sums)
        sums = [low + (value or 0) for low, value in zip(sums, line.values, strict=True)]
        upper = points(sums, scale)
        lower = points(below, scale)[::-1]
        shapes.append(f'<polygon fill="var(--{line.color})" points="{joined([*upper, *lower])}"/>')
        shapes.append(f'<polyline class="edge" points="{joined(upper)}"/>')
    return "".join(shapes)


def curves(lines: Sequence[Line], scale: Scale) -> str:
    """One line for each series; a dot where a value has no neighbour."""
    shapes = []
    for line in lines:
        for run in runs(line.values):
            found = [(x_of(at, len(line.values)), y_of(value, scale)) for at, value in run]
            if len(found) == 1:
                found.append((found[0][0] + 0.01, found[0][1]))
            shapes.append(f'<polyline class="curve" stroke="var(--{line.color})" points="{joined(found)}"/>')
    return "".join(shapes)


def band(low: Sequence[float | None], high: Sequence[float | None], color: str, scale: Scale) -> str:
    """The area between two series."""
    shapes = []
    for run in runs([None if a is None or b is None else (a, b) for a, b in zip(low, high, strict=True)]):
        upper = [(x_of(at, len(low)), y_of(pair[1], scale)) for at, pair in run]
        lower = [(x_of(at, len(low)), y_of(pair[0], scale)) for at, pair in run]
        shapes.append(
            f'<polygon class="band" fill="var(--{color})" points="{joined([*upper, *lower[::-1]])}"/>'
        )
    return "".join(shapes)


def runs(values: Sequence[Any]) -> list[list[tuple[int, Any]]]:
    """Neighbours that are not None, with their places."""
    found: list[list[tuple[int, Any]]] = []
    for at, value in enumerate(values):
        if value is None:
            continue
        if found and found[-1][-1][0] == at - 1:
            found[-1].append((at, value))
        else:
            found.append([(at, value)])
    return found


def points(values: Sequence[float], scale: Scale) -> list[tuple[float, float]]:
    return [(x_of(at, len(values)), y_of(value, scale)) for at, value in enumerate(values)]


def x_of(at: int, count: int) -> float:
    return (at + 0.5) / count * WIDE


def y_of(value: float, scale: Scale) -> float:
    return (1 - scale.at(value)) * HIGH


def joined(found: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in found)


def plot(
    title: str,
    shapes: str,
    scale: Scale,
    write: Callable[[float], str],
    labels: Sequence[tuple[float, str]],
    columns: Sequence[str],
    grows: bool = False,
) -> str:
    """The frame: grid, axes, *shapes*, and one column for each text of *columns* to hover over.

    *grows*: as high as its card has room.
    """
    grid, words = [], []
    for tick in scale.ticks:
        up = scale.at(tick) * 100
        grid.append(f'<i class="grid" style="bottom:{up:.2f}%"></i>')
        words.append(f'<span class="tick" style="bottom:{up:.2f}%">{escape(write(tick))}</span>')
    below = [f'<span class="time" style="left:{at * 100:.2f}%">{escape(text)}</span>' for at, text in labels]
    hover = []
    for at, text in enumerate(columns):
        side = " left" if at > len(columns) / 2 else ""
        hover.append(f'<b class="col{side}"><span class="tip">{text}</span></b>')
    picture = (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img">'
        f"<title>{escape(title)}</title>{shapes}</svg>"
    )
    return (
        f'<div class="plot{" grows" if grows else ""}"><div class="ticks">{"".join(words)}</div>'
        f'<div class="field">{"".join(grid)}'
        f'{picture}<div class="cols">{"".join(hover)}</div></div>'
        f'<div class="times">{"".join(below)}</div></div>'
    )


def bars(rows: Sequence[tuple[str, float, str, str]], color: str = "c1") -> str:
    """Lying bars: (name, value, its text, title) each; the longest is as wide as the plot."""
    most = max((value for _, value, _, _ in rows), default=0) or 1
    found = []
    for name, value, text, title in rows:
        width = max(value / most * 100, 0.4 if value else 0)
        found.append(
            f'<div class="bar" title="{escape(title)}"><span class="name">{escape(name)}</span>'
            f'<span class="track"><i style="width:{width:.2f}%;background:var(--{color})"></i></span>'
            f'<span class="value">{escape(text)}</span></div>'
        )
    return f'<div class="bars">{"".join(found)}</div>'


def pillars(rows: Sequence[tuple[str, float, str]], write: Callable[[float], str]) -> str:
    """Standing bars: (label, value, title) each."""
    scale = linear(max((value for _, value, _ in rows), default=0))
    wide = WIDE / max(len(rows), 1)
    shapes = []
    for at, (_, value, _) in enumerate(rows):
        high = scale.at(value) * HIGH
        x, y = at * wide + wide * 0.09, HIGH - high
        shapes.append(
            f'<rect class="pillar" x="{x:.1f}" y="{y:.1f}" width="{wide * 0.82:.1f}" height="{high:.1f}"/>'
        )
    step = max(1, -(-len(rows) // SIZES))
    labels = [((at + 0.5) / len(rows), rows[at][0]) for at in range(0, len(rows), step)]
    columns = [f"<em>{escape(title)}</em>" for _, _, title in rows]
    title = "How many payloads have which size"
    return plot(title, "".join(shapes), scale, write, labels, columns, grows=True)


def strip(first: int, last: int, missing: Sequence[tuple[int, int]], title: str) -> str:
    """All offsets as one bar, with its holes; a hole is at least wide enough to be seen."""
    whole = max(last - first + 1, 1)
    holes = []
    for start, end in missing:
        left, wide = (start - first) / whole * 100, (end - start + 1) / whole * 100
        wide = max(wide, 0.5)
        said = f"missing: {start} to {end}" if start != end else f"missing: {start}"
        holes.append(f'<i style="left:{min(left, 100 - wide):.3f}%;width:{wide:.3f}%" title="{said}"></i>')
    return f'<div class="strip" title="{escape(title)}">{"".join(holes)}</div>'


def legend(lines: Sequence[tuple[str, str]]) -> str:
    """(name, color) each."""
    keys = [f'<span><i style="background:var(--{color})"></i>{escape(name)}</span>' for name, color in lines]
    return f'<div class="legend">{"".join(keys)}</div>'


def tip(head: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """What stands in a column: a time, and (color, name, value) each."""
    lines = [
        f'<s><i style="background:var(--{color})"></i>{escape(name)}<u>{escape(value)}</u></s>'
        for color, name, value in rows
    ]
    return f"<em>{escape(head)}</em>{''.join(lines)}"
