"""What a message costs the broker against how many subscribers and subscriptions there are: plot and table.

    python benchmarks/growth.py [--rounds N] [--secs S] [--most N]     # a quarter of an hour

Three series over sockets, each run with a fresh broker: fan-out to 1 ... 10,000 subscribers of one topic, at
QoS 0 and 1, with 20 messages outstanding whatever their number; and 50 topics with sizes that vary, while
other clients, of 5,000 filters each, hold 1 ... 1,000,000 subscriptions that match nothing, half of them with
wildcards.
What counts is the broker's CPU time. growth.png needs matplotlib (`pip install pybroker[benchmark]`).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import peers
import tables
from peers import HERE, Contender
from run import README, build, free_ports, one, say
from scenarios import VARIED, Figure, Scenario

ROOM = "--set capacity.maximum_bytes=8000000000"  # a million subscriptions are more than it holds by default
PLOT = HERE / "growth.png"
SUBSCRIBERS = (1, 10, 100, 1_000, 10_000)
SUBSCRIPTIONS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
Points = dict[str, list[tuple[int, float]]]  # by name of the broker: (how many, CPU us)


class Series(NamedTuple):
    title: str
    against: str
    counts: tuple[int, ...]
    load: Callable[[int], str]


def fanout(qos: int) -> Callable[[int], str]:
    return lambda count: f"fanout --qos {qos} --subs {count} --outstanding 20"


SERIES = (
    Series("a delivery, QoS 0", "subscribers", SUBSCRIBERS, fanout(0)),
    Series("a delivery, QoS 1", "subscribers", SUBSCRIBERS, fanout(1)),
    Series("a message, QoS 0", "subscriptions", SUBSCRIPTIONS, lambda count: f"{VARIED} --ballast {count}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=1.0)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--no-write", action="store_true", help="print, and change no file")
    wanted = parser.parse_args()
    brokers = [each for each in (peers.mosquitto(), peers.from_source("pybroker", ROOM)) if each is not None]
    found = [measure(series, brokers, wanted) for series in SERIES]
    text = "\n\n".join(part for pair in zip(SERIES, found, strict=True) for part in said(*pair))
    if wanted.no_write:
        print(text)
        return
    if plot(found):
        text = f"![CPU time against subscribers and subscriptions]({PLOT.name})\n\n{text}"
    README.write_text(tables.between(README.read_text(), "growth", text))


def measure(series: Series, brokers: Sequence[Contender], wanted: argparse.Namespace) -> Points:
    program, _ = build()
    ports = free_ports()
    points: Points = {broker.title: [] for broker in brokers}
    for count in series.counts:
        if count > wanted.most:
            break
        scenario = Scenario(f"{series.title} {count}", series.load(count), (Figure(series.title),), True)
        costs: dict[str, list[float]] = {broker.title: [] for broker in brokers}
        for _ in range(wanted.rounds):
            for broker in brokers:
                costs[broker.title] += cpu(str(program), broker, scenario, wanted.secs, ports)
        for title, values in costs.items():
            if values:
                points[title].append((count, statistics.median(values)))
    return points


def cpu(
    program: str, broker: Contender, scenario: Scenario, secs: float, ports: Iterator[int]
) -> list[float]:
    """The microseconds of one run, or nothing if it failed."""
    answer = one(program, broker, scenario, secs, ports) or {}
    if answer.get("_error") or not answer.get("delivered_per_s"):
        say(f"{scenario.name}, {broker.title}: failed: {answer.get('_error')}")
        return []
    spent = answer["broker_cpu"] * 1e6 / answer["delivered_per_s"]
    say(f"{scenario.name}, {broker.title}: {spent:.2f} us, {answer['_peak']:.0f} MiB at most")
    return [float(spent)]


# ---- what is said of it


def said(series: Series, points: Points) -> list[str]:
    """A table and the slope in words."""
    counts = [count for count, _ in max(points.values(), key=len)]
    head = (
        f"| CPU us for {series.title}, {series.against}: | "
        + " | ".join(f"{count:,}" for count in counts)
        + " |"
    )
    rows = [head, "|---|" + "---:|" * len(counts)]
    for title, found in points.items():
        costs = dict(found)
        cells = [tables.short(costs.get(count)) for count in counts]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return ["\n".join(rows), "\n".join(f"- {words(series, title, found)}" for title, found in points.items())]


def slope(points: Sequence[tuple[int, float]]) -> float:
    """The exponent b of cost = a * count**b, by least squares on logarithms."""
    xs, ys = [math.log(count) for count, _ in points], [math.log(cost) for _, cost in points]
    return statistics.linear_regression(xs, ys).slope


def words(series: Series, title: str, points: Sequence[tuple[int, float]]) -> str:
    if len(points) < 2:
        return f"{title}: too few points."
    (least, first), (most, last) = points[0], points[-1]
    steep = slope(points)
    way = "stays the same" if abs(steep) < 0.03 else "falls" if steep < 0 else "grows"
    return (
        f"{title}: what {series.title} costs {way}: {tables.short(first)} us with {least:,}, "
        f"{tables.short(last)} us with {most:,}; ten times as many {series.against} make it x{10**steep:.2f}."
    )


def plot(found: Sequence[Points]) -> bool:
    """growth.png, if matplotlib is there."""
    if importlib.util.find_spec("matplotlib") is None:
        say("no plot: matplotlib is missing")
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SERIES), figsize=(4.5 * len(SERIES), 3.6), layout="constrained")
    for axis, series, points in zip(axes, SERIES, found, strict=True):
        for title, pairs in points.items():
            axis.plot(*zip(*pairs, strict=True), marker="o", label=title)
        axis.set(
            title=f"CPU for {series.title}", xlabel=series.against, ylabel="us", xscale="log", yscale="log"
        )
        axis.grid(True, which="major", alpha=0.3)
        axis.legend()
    figure.savefig(PLOT, dpi=110)
    return True


if __name__ == "__main__":
    main()
