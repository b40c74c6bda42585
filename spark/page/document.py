"""The report as one HTML file: no script, no request, light and dark as the reader has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from spark.page import numbers as n
from spark.page import plots
from spark.page.text import reason

COLORS = ("c1", "c2", "c3", "c4", "c5", "c6")
REST = "c7"  # of what is added up as others
OTHERS = "(others)"
LONG = 200  # characters of a name that is shown where one hovers over it
# The browser itself holds the page to it: no request, no script.
POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
)
STYLE = Path(__file__).with_name("style.css")
KINDS = {"delivered": "written", "acked": "acknowledged"}
REASONS = {  # of dropped deliveries
    "queue_full": "queue full",
    "expired": "message expired",
    "too_large": "too large for the client",
    "no_session": "no session",
    "receive_max": "Receive Maximum",
    "log_overflow": "the log was full",
}


def document(report: dict[str, Any]) -> str:
    period = report["period"]
    title = "Message report"
    when = "No messages in this period"
    if period["first"] is not None:
        last = n.moment(period["last"])
        same_day = period["first"][:10] == period["last"][:10]
        when = f"{n.moment(period['first'])} to {last[11:] if same_day else last} UTC"
    cards = "".join(part(report) for part in CARDS)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{POLICY}<link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{STYLE.read_text('utf-8')}</style></head><body><main>"
        f"<header><div><h1>{title}</h1><p>{when}</p></div>{pill(report)}</header>"
        f'{facts(report)}<div class="cards">{cards}</div>'
        f"<footer>{foot(report)}</footer></main></body></html>\n"
    )


def pill(report: dict[str, Any]) -> str:
    if not report["audit"]:
        return ""
    state = ("ok", "Audit passed") if report["ok"] else ("no", "Audit failed")
    return f'<div class="pill {state[0]}">{state[1]}</div>'


def foot(report: dict[str, Any]) -> str:
    return (
        f"Times are UTC. Percentiles are within 1 % of the value. "
        f"One point of a plot is {n.seconds(report['period']['step_minutes'] * 60)}."
    )


def facts(report: dict[str, Any]) -> str:
    totals, late = report["totals"], {row["kind"]: row for row in merged(report["latency"]["all"])}
    if not totals["messages"]:
        return ""
    seconds = spent(report)
    quarantined = totals["quarantined"]
    share, qos0 = (n.percent(each / totals["messages"]) for each in (quarantined, totals["qos0"]))
    found = [
        ("Messages", n.count(totals["messages"]), f"{n.rate(totals['messages'] / seconds)} mean", ""),
        ("Payload", n.size(totals["bytes"]), f"half are under {n.size(report['sizes']['p50'])}", ""),
        ("Topics", n.count(totals["topics"]), f"{n.count(len(report['dead']))} fell silent", ""),
        ("Publishers", n.count(totals["publishers"]), f"{qos0} at QoS 0", ""),
    ]
    if "delivered" in late:
        row = late["delivered"]
        found.append(
            ("Delivery, p99", n.microseconds(row["p99"]), f"half in {n.microseconds(row['p50'])}", "")
        )
    found += [
        ("Dropped", n.count(totals["dropped"]), "deliveries and log", "bad" if totals["dropped"] else ""),
        ("Not readable", n.count(quarantined), f"{share} of payloads", ""),
    ]
    cells = [
        f'<div class="fact {mark}"><span>{name}</span><b>{escape(value)}</b>'
        f"<small>{escape(more)}</small></div>"
        for name, value, more, mark in found
    ]
    return f'<div class="facts">{"".join(cells)}</div>'


def spent(report: dict[str, Any]) -> float:
    """Seconds of the period that was measured; one at least."""
    from datetime import datetime

    first, last = (datetime.fromisoformat(report["period"][name]) for name in ("first", "last"))
    return max((last - first).total_seconds(), 1.0)


def merged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kind of delivery: that of the QoS with the most."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] not in best or row["count"] > best[row["kind"]]["count"]:
            best[row["kind"]] = row
    return list(best.values())


def card(title: str, note: str, body: str, wide: bool = False) -> str:
    kind = "card wide" if wide else "card half"
    return f'<section class="{kind}"><h2>{title}</h2><p>{note}</p>{body}</section>'


def empty(text: str) -> str:
    return f'<div class="empty">{text}</div>'


def rates(report: dict[str, Any]) -> str:
    """Messages a second, stacked by the first level of the topic."""
    found, step = report["rates"], report["period"]["step_minutes"]
    every = filled(found["points"], step, {"messages": {}, "bytes": 0})
    title = "Messages a second"
    note = "By the first level of the topic; the height of the whole is the load of the broker."
    if not every:
        return card(title, note, empty("No messages in this period."), wide=True)
    roots = found["roots"]
    colors = [REST if root == OTHERS else COLORS[at % 6] for at, root in enumerate(roots)]
    seconds = step * 60
    lines = [
        plots.Line(root, color, [point["messages"].get(root, 0) / seconds for point in every])
        for root, color in zip(roots, colors, strict=True)
    ]
    tips = [rate_tip(point, lines, at, seconds) for at, point in enumerate(every)]
    scale = plots.linear(max(sum(line.values[at] or 0 for line in lines) for at in range(len(every))))
    labels = plots.times([point["at"] for point in every])
    shapes = plots.areas(lines)
    keys = plots.legend([(n.name(line.name), line.color) for line in lines])
    return card(title, note, keys + plots.plot(title, shapes, scale, n.rate, labels, tips), wide=True)


def rate_tip(point: dict[str, Any], lines: Sequence[plots.Line], at: int, seconds: int) -> str:
    rows = [(line.color, n.name(line.name, 30), n.rate(line.values[at])) for line in reversed(lines)]
    rows = [row for row in rows if row[2] != "0/s"]
    total = sum(line.values[at] or 0 for line in lines)
    head = f"{n.clock(point['at'], '%d %b %H:%M')} · {n.rate(total)} · {n.size(point['bytes'] / seconds)}/s"
    return plots.tip(head, rows)


def filled(points: Sequence[dict[str, Any]], step: int, nothing: dict[str, Any]) -> list[dict[str, Any]]:
    """*points* with *nothing* where there is none, so that time runs evenly."""
    if not points:
        return []
    known = {point["at"]: point for point in points}
    wide = step * 60_000
    every = range(points[0]["at"], points[-1]["at"] + wide, wide)
    return [known.get(at, {"at": at, **nothing}) for at in every]


def latency(report: dict[str, Any]) -> str:
    found, step = report["latency"], report["period"]["step_minutes"]
    every = filled(found["points"], step, {})
    title = "Delivery latency"
    note = (
        "From the record of a message to its write, or to the last acknowledgement. The scale is logarithmic."
    )
    if not every:
        return card(title, note, empty('No deliveries were logged: set <code>deliveries = "acked"</code>.'))
    shares = ("p50", "p95", "p99")
    series = {share: [point.get("delivered", {}).get(share) for point in every] for share in shares}
    values = [value for line in series.values() for value in line if value]
    if not values:
        return card(title, note, empty("No deliveries in this period."))
    scale = plots.logarithmic(min(values), max(values))
    lines = [
        plots.Line(share, color, series[share])
        for share, color in zip(shares, ("c1", "c4", "c2"), strict=True)
    ]
    tips = [latency_tip(point, lines, at) for at, point in enumerate(every)]
    shapes = plots.band(series["p50"], series["p99"], "c1", scale) + plots.curves(lines, scale)
    labels = plots.times([point["at"] for point in every])
    picture = plots.plot(title, shapes, scale, n.microseconds, labels, tips)
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("", lambda row: KINDS[row["kind"]]),
        ("QoS", lambda row: str(row["qos"])),
        ("count", lambda row: n.count(row["count"])),
        *((share, lambda row, share=share: n.microseconds(row[share])) for share in shares),
    ]
    rows = sorted(found["all"], key=lambda row: (row["kind"] != "delivered", row["qos"]))
    worst = found["worst"]
    told = (
        f"The slowest took {n.microseconds(worst['worst_latency'])}: message {worst['worst_offset']} of "
        f"{worst['worst_node']}, epoch {worst['worst_epoch']}."
    )
    keys = plots.legend([(line.name, line.color) for line in lines])
    return card(title, note, f'{keys}{picture}{table(rows, columns)}<p class="note">{told}</p>')


def latency_tip(point: dict[str, Any], lines: Sequence[plots.Line], at: int) -> str:
    count = n.count(point.get("delivered", {}).get("count", 0))
    rows = [(line.color, line.name, n.microseconds(line.values[at])) for line in reversed(lines)]
    return plots.tip(f"{n.clock(point['at'], '%d %b %H:%M')} · {count} deliveries", rows)


def table(
    rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, Callable[[dict[str, Any]], str]]]
) -> str:
    """The first column is a name, cut where there is no room. Rows become blocks where columns have none."""
    heads = "".join(f"<th>{escape(head)}</th>" for head, _ in columns)
    body = "".join(f"<tr>{cells(row, columns)}</tr>" for row in rows)
    size = "many" if len(columns) > 6 else "some" if len(columns) > 3 else "few"
    return f'<div class="scroll"><table class="{size}"><tr>{heads}</tr>{body}</table></div>'


def cells(row: dict[str, Any], columns: Sequence[tuple[str, Callable[[dict[str, Any]], str]]]) -> str:
    name, *others = [(head, show(row)) for head, show in columns]
    first = f'<td title="{escape(name[1])}">{escape(n.name(name[1]))}</td>'
    return first + "".join(f'<td data-head="{escape(head)}">{escape(text)}</td>' for head, text in others)


def sizes(report: dict[str, Any]) -> str:
    found = report["sizes"]
    title, note = "Payload sizes", "How many payloads have which size; each bar is twice as wide as the last."
    if not found["counts"]:
        return card(title, note, empty("No payloads in this period."))
    known = dict(found["counts"])
    steps = [0] if 0 in known else []
    powers = [bar for bar in known if bar]
    if powers:
        at = min(powers)
        while at <= max(powers):
            steps.append(at)
            at *= 2
    whole = sum(known.values())
    rows = [(size_label(bar), known.get(bar, 0), size_title(bar, known.get(bar, 0), whole)) for bar in steps]
    half, most, nearly = (n.size(found[share]) for share in ("p50", "p95", "p99"))
    told = f"Half are under {half}, 95 % under {most}, 99 % under {nearly}."
    return card(title, note, plots.pillars(rows, n.count) + f'<p class="note">{told}</p>')


def size_label(bar: int) -> str:
    return str(bar) if bar < 1024 else f"{bar // 1024}k" if bar < 1 << 20 else f"{bar >> 20}M"


def size_title(bar: int, count: int, whole: int) -> str:
    width = "empty" if bar == 0 else f"{bar:,} to {2 * bar - 1:,} bytes"
    return f"{width}: {n.count(count)} payloads, {n.percent(count / whole)}"


def top(report: dict[str, Any]) -> str:
    title, note = "Loudest", "Most messages of the period; the share is that of all messages."
    if not report["top"]["topic"]:
        return card(title, note, empty("No messages in this period."), wide=True)
    whole = report["totals"]["messages"]
    sides = []
    for by, color in (("topic", "c1"), ("client", "c3")):
        rows = []
        for row in report["top"][by][:10]:
            share = n.percent(row["messages"] / whole)
            said = (
                f"{n.name(row['name'], LONG)}: {row['messages']:,} messages, {share}, {n.size(row['bytes'])}"
            )
            shown = f"{n.count(row['messages'])} · {share}"
            rows.append((n.name(row["name"], 34), row["messages"], shown, said))
        sides.append(f"<div><h3>{by.title()}s</h3>{plots.bars(rows, color)}</div>")
    return card(title, note, f'<div class="two">{"".join(sides)}</div>', wide=True)


def drops(report: dict[str, Any]) -> str:
    title, note = "Dropped", "Deliveries that did not happen, and records that the log had no room for."
    by_reason: dict[str, dict[str, int]] = {}
    for row in report["drops"]:
        by_reason.setdefault(row["reason"], {})[row["root"]] = row["count"]
    if not by_reason:
        return card(title, note, empty("Nothing was dropped."))
    rows = []
    for why, roots in sorted(by_reason.items(), key=lambda each: -sum(each[1].values())):
        total = sum(roots.values())
        said = ", ".join(f"{n.name(root, 30)} {n.count(count)}" for root, count in roots.items())
        rows.append((REASONS.get(why, n.name(why)), total, n.count(total), said))
    return card(title, note, f'<div style="margin-top:16px">{plots.bars(rows, "c2")}</div>')


def late(report: dict[str, Any]) -> str:
    title, note = "Event times", "How much older than its arrival a payload says it is."
    if not report["late"]:
        return card(title, note, empty("No rule names an event time, or nothing was decoded yet."))
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("rule", lambda row: n.name(row["rule"], LONG)),
        ("payloads", lambda row: n.count(row["messages"])),
        ("p50", lambda row: n.milliseconds(row["p50"])),
        ("p99", lambda row: n.milliseconds(row["p99"])),
        ("over 10 min", lambda row: n.percent(row["over_watermark"] / row["messages"])),
        ("future", lambda row: n.count(row["future"])),
    ]
    return card(title, note, table(report["late"], columns))


def quarantine(report: dict[str, Any]) -> str:
    title, note = (
        "Not readable",
        "Payloads in quarantine, by rule and reason; their bytes are still in bronze.",
    )
    if not report["quarantine"]:
        return card(title, note, empty("Every payload was read."))
    rows = []
    for row in report["quarantine"][:10]:
        said = n.name(f"{row['rule']}: {row['reason']}", LONG)
        rows.append((n.name(said), row["count"], n.count(row["count"]), said))
    return card(title, note, f'<div style="margin-top:16px">{plots.bars(rows, "c5")}</div>')


def clients(report: dict[str, Any]) -> str:
    title, note = "Restless clients", "Refused, taken over, lost to Keep Alive, or often connected."
    if not report["clients"]:
        return card(title, note, empty("No connections were logged."), wide=True)
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("client", lambda row: n.name(row["client_id"], LONG)),
        ("connects", lambda row: n.count(row["connections"])),
        ("refused", lambda row: n.count(row["refused"])),
        ("taken over", lambda row: n.count(row["takeovers"])),
        ("Keep Alive", lambda row: n.count(row["keep_alive_losses"])),
        ("connected", lambda row: n.seconds(row["connection_seconds"])),
        ("in session", lambda row: n.seconds(row["session_seconds"])),
        ("messages", lambda row: n.count(row["messages"])),
    ]
    return card(title, note, table(report["clients"][:8], columns), wide=True)


def dead(report: dict[str, Any]) -> str:
    title, note = "Silent topics", "Silent at the end of their day for ten times their usual gap."
    if not report["dead"]:
        return card(title, note, empty("All topics spoke as usual."))
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("topic", lambda row: n.name(row["topic"], LONG)),
        ("last heard", lambda row: n.moment(row["last"])),
        ("usual gap", lambda row: n.seconds(row["mean_gap"])),
    ]
    return card(title, note, table(report["dead"][:8], columns))


def audit(report: dict[str, Any]) -> str:
    title = "Audit"
    note = "Every offset that the log gave out, from first to last; what is missing is red."
    if not report["audit"]:
        return card(title, note, empty("Nothing was ingested yet."), wide=True)
    return card(title, note, "".join(book(each) for each in report["audit"]), wide=True)


def book(each: dict[str, Any]) -> str:
    ranges = [(hole["first"], hole["last"]) for hole in each["missing_ranges"]]
    said = [f"{n.count(each['rows'])} rows"]
    for name, text in (("quarantined", "lines in quarantine"), ("gap_markers", "gaps marked by the log")):
        if each[name]:
            lost = f", which stand for {n.count(each['lost'])} records" if name == "gap_markers" else ""
            said.append(f"{n.count(each[name])} {text}{lost}")
    state = "ok" if each["ok"] else "no"
    holes = ""
    if ranges:
        shown = ", ".join(
            f"{first:,}–{last:,}" if last > first else f"{first:,}" for first, last in ranges[:6]
        )
        holes = f"<p>Missing: {shown}{' …' if len(ranges) > 6 else ''}</p>"
    offsets = f"offsets {each['first']:,} to {each['last']:,}"
    return (
        f'<div class="book"><header><strong>{escape(each["kind"])}</strong>'
        f"<span>node {escape(each['node'])}, {epoch(each['epoch'])}, {'; '.join(said)}</span>"
        f'<b class="{state}">{escape(reason(each))}</b></header>'
        f"{plots.strip(each['first'], each['last'], ranges, offsets)}"
        f"{holes}</div>"
    )


def epoch(number: int) -> str:
    """An epoch is the second in which a log was opened, or a little more."""
    return f"log of {n.clock(number * 1000, '%Y-%m-%d %H:%M')}, epoch {number}"


CARDS: tuple[Callable[[dict[str, Any]], str], ...] = (
    *(rates, audit, latency, sizes, top, drops, quarantine, late, dead, clients),
)
