"""The report as lines of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spark.page import numbers as n

Column = tuple[str, Callable[[dict[str, Any]], str]]


def text(report: dict[str, Any]) -> str:
    parts = [headline(report), audit(report["audit"])]
    period, totals = report["period"], report["totals"]
    if period["first"] is None:
        return "\n\n".join([*parts, "No messages in this period."]) + "\n"
    for title, by in (("Loudest topics", "topic"), ("Loudest clients", "client")):
        rows = report["top"][by]
        whole = totals["messages"] or 1
        columns: list[Column] = [
            (by, lambda row: n.name(row["name"])),
            ("messages", lambda row: n.count(row["messages"])),
            ("share", lambda row, whole=whole: n.percent(row["messages"] / whole)),  # type: ignore[misc]
            ("bytes", lambda row: n.size(row["bytes"])),
        ]
        parts.append(section(title, rows, columns))
    parts += [section(title, report_rows(report, key), columns) for title, key, columns in SECTIONS]
    return "\n\n".join(part for part in parts if part) + "\n"


def report_rows(report: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = report["latency"]["all"] if key == "latency" else report[key]
    return rows


def headline(report: dict[str, Any]) -> str:
    period, totals, sizes = report["period"], report["totals"], report["sizes"]
    if period["first"] is None:
        return "Report: nothing yet"
    lines = [
        f"Report: {n.moment(period['first'])} to {n.moment(period['last'])} UTC",
        f"  {n.count(totals['messages'])} messages, {n.size(totals['bytes'])} of payload, "
        f"{n.count(totals['topics'])} topics, {n.count(totals['publishers'])} publishers",
        f"  QoS 0/1/2: {n.count(totals['qos0'])} / {n.count(totals['qos1'])} / {n.count(totals['qos2'])}, "
        f"{n.count(totals['retained'])} retained, {n.count(totals['dup'])} sent again",
        f"  payload p50 {n.size(sizes['p50'])}, p95 {n.size(sizes['p95'])}, p99 {n.size(sizes['p99'])}",
    ]
    return "\n".join(lines)


def audit(books: Sequence[dict[str, Any]]) -> str:
    if not books:
        return "Audit: nothing to audit"
    bad = [book for book in books if not book["ok"]]
    lines = [section(f"Audit: {'OK' if not bad else 'FAILED'}", books, AUDIT)]
    for book in bad:
        where = f"{book['kind']} of {book['node']}, epoch {book['epoch']}"
        ranges = ", ".join(f"{each['first']}-{each['last']}" for each in book["missing_ranges"][:10])
        lines.append(f"  {where}: {reason(book)}" + (f"; missing: {ranges}" if ranges else ""))
    return "\n".join(lines)


def reason(book: dict[str, Any]) -> str:
    """Why the books of one epoch do not balance."""
    words = {
        "missing": "offsets missing",
        "duplicates": "rows twice",
        "damaged": "offsets in damaged segments",
        "lost_in_log": "records gone from the log before they were read",
    }
    found = [f"{n.count(book[name])} {text}" for name, text in words.items() if book[name]]
    return ", ".join(found) or "balanced" if book["ok"] else ", ".join(found) or "rows and offsets differ"


def section(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> str:
    """A table with its title; nothing where there are no rows."""
    if not rows:
        return ""
    cells = [[head for head, _ in columns], *([show(row) for _, show in columns] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    lines = [line(row, widths) for row in cells]
    return "\n".join([title, lines[0], "  " + "  ".join("-" * width for width in widths), *lines[1:]])


def line(cells: Iterable[str], widths: Sequence[int]) -> str:
    first, *others = list(cells)
    right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    return "  " + "  ".join([first.ljust(widths[0]), *right]).rstrip()


def shown(key: str, write: Callable[[Any], str] = n.count) -> Callable[[dict[str, Any]], str]:
    return lambda row: write(row[key])


AUDIT: list[Column] = [
    ("kind", shown("kind", str)),
    ("node", shown("node", str)),
    ("epoch", shown("epoch", str)),
    ("first", shown("first", str)),
    ("last", shown("last", str)),
    *((name, shown(name)) for name in ("rows", "missing", "duplicates", "quarantined", "lost")),
    ("ok", lambda row: "yes" if row["ok"] else "NO"),
]
PERCENTILES = ("p50", "p95", "p99")
SECTIONS: list[tuple[str, str, list[Column]]] = [
    (
        "Latency",
        "latency",
        [
            ("kind", shown("kind", str)),
            ("QoS", shown("qos", str)),
            ("count", shown("count")),
            *((name, shown(name, n.microseconds)) for name in PERCENTILES),
        ],
    ),
    (
        "Dropped",
        "drops",
        [("reason", shown("reason", n.name)), ("root", shown("root", n.name)), ("count", shown("count"))],
    ),
    (
        "Event times",
        "late",
        [
            ("rule", shown("rule", n.name)),
            ("messages", shown("messages")),
            *((name, shown(name, n.milliseconds)) for name in PERCENTILES),
            ("over 10 min", shown("over_watermark")),
            ("future", shown("future")),
        ],
    ),
    (
        "Payloads in quarantine",
        "quarantine",
        [("rule", shown("rule", n.name)), ("reason", shown("reason", n.name)), ("count", shown("count"))],
    ),
    (
        "Clients with trouble",
        "clients",
        [
            ("client", shown("client_id", n.name)),
            *((name, shown(name)) for name in ("connections", "refused", "takeovers", "keep_alive_losses")),
            ("connected", shown("connection_seconds", n.seconds)),
        ],
    ),
    (
        "Silent topics",
        "dead",
        [
            ("topic", shown("topic", n.name)),
            ("last", shown("last", n.moment)),
            ("usual gap", shown("mean_gap", n.seconds)),
        ],
    ),
]
