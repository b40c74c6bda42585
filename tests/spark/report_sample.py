"""A report as `spark.gold.summary` gives it, for tests of what is shown: no JVM."""

from __future__ import annotations

import copy
import math
from typing import Any

MINUTE = 60_000
NOON = 1_795_780_800_000
EMPTY: dict[str, Any] = {
    "period": {"first": None, "last": None, "step_minutes": 1},
    "totals": {"messages": 0, "bytes": 0, "topics": 0, "quarantined": 0, "dropped": 0},
    "rates": {"roots": [], "points": []},
    "latency": {"points": [], "all": [], "worst": None},
    "top": {"topic": [], "client": []},
    "sizes": {"counts": []},
    **{name: [] for name in ("drops", "late", "clients", "dead", "quarantine", "audit")},
    "ok": True,
}


def book(kind: str, *missing: tuple[int, int], **more: Any) -> dict[str, Any]:
    lost = sum(last - first + 1 for first, last in missing)
    zero = dict.fromkeys(("duplicates", "gap_markers", "lost", "quarantined", "damaged", "lost_in_log"), 0)
    whole = {"kind": kind, "node": "n1", "epoch": 100, "first": 0, "last": 9_999, "rows": 10_000 - lost}
    ranges = [{"first": first, "last": last} for first, last in missing]
    counts = {"distinct": 10_000 - lost, "missing": lost, "missing_ranges": ranges, "ok": not missing}
    return {**whole, **zero, **counts, **more}


def full(*, audit: list[dict[str, Any]] | None = None, topic: str = "plant/line/1") -> dict[str, Any]:
    """Three hours of two roots; *topic* is the loudest."""
    report = copy.deepcopy(EMPTY)
    report["period"] = {"first": "2026-11-27T12:00:00", "last": "2026-11-27T15:00:00", "step_minutes": 1}
    sums = {"messages": 10_000, "bytes": 812_345, "topics": 240, "publishers": 17}
    sums |= {"qos0": 8_000, "qos1": 1_900, "qos2": 100, "retained": 70, "dup": 4}
    report["totals"] = sums | {"dropped": 12, "quarantined": 31}
    waves = [20 + 10 * math.sin(at / 20) for at in range(180)]
    points = [
        {"at": NOON + at * MINUTE, "messages": {"plant": wave, "home": 10}, "bytes": 2_000}
        for at, wave in enumerate(waves)
        if at not in (70, 71)  # minutes without messages
    ]
    report["rates"] = {"roots": ["plant", "home"], "points": points}
    shares = {"p50": 800.0, "p95": 4_000.0, "p99": 52_000.0}
    delivered = {"count": 40, **shares}
    report["latency"] = {
        "points": [{"at": point["at"], "delivered": delivered} for point in points],
        "all": [{"kind": "delivered", "qos": 0, **delivered}, {"kind": "acked", "qos": 1, **delivered}],
        "worst": {"worst_latency": 912_000, "worst_node": "n1", "worst_epoch": 100, "worst_offset": 77},
    }
    loud = {"messages": 5_300, "bytes": 400_000}
    report["top"] = {"topic": [{"name": topic, **loud}], "client": [{"name": "bridge", **loud}]}
    report["sizes"] = {"counts": [[0, 5], [64, 7_000], [128, 2_995]], "p50": 81.0, "p95": 200.0, "p99": 240.0}
    report["drops"] = [{"reason": "queue_full", "root": "plant", "count": 12, "bytes": 900}]
    times = {"messages": 900, "over_watermark": 9, "future": 2, "latest_ms": 7_000_000}
    report["late"] = [{"rule": "line", **times, "p50": 3.0, "p95": 40.0, "p99": 700_000.0}]
    seconds = {"connection_seconds": 10_000.0, "session_seconds": 10_800.0}
    trouble = {"connections": 7, "refused": 2, "takeovers": 1, "keep_alive_losses": 3}
    report["clients"] = [{"client_id": "bridge", "messages": 1, "bytes": 1, **trouble, **seconds}]
    silent = {"messages": 60, "last": "2026-11-27T12:10:00", "mean_gap": 10.0, "largest_gap": 30.0}
    report["dead"] = [{"date": "2026-11-27", "topic": "plant/line/9", **silent}]
    report["quarantine"] = [{"rule": "line", "reason": "not JSON", "count": 31}]
    report["audit"] = [book("messages"), book("events")] if audit is None else audit
    report["ok"] = all(each["ok"] for each in report["audit"])
    return report


NASTY = (
    '"><script>alert(1)</script>\n\u2028é',
    "' onmouseover='alert(1)' x='",
    "</td></table></div></style></main><!-- <![CDATA[",
    "&lt;b&gt; &amp; &#60;b&#62; a && b; c & d",
    "plant/" + "x" * 65_000,
    "温度/センサー/" * 40,
    "\U0001f3ed" * 200,
    "\u202etxt.exe\u202c \u2066\u200f\x85\x1b[31m",
)


def nasty() -> dict[str, Any]:
    """Four days whose topics, clients, rules and reasons are NASTY; every number is as long as it gets."""
    report = full(audit=[book("messages", (120, 129), node="n" * 64), book("events")])
    period = {"first": "2026-11-27T12:00:00", "last": "2026-12-01T06:00:00", "step_minutes": 30}
    report["period"] = period
    for at, point in enumerate(report["rates"]["points"]):
        point |= {"at": NOON + at * 30 * MINUTE, "messages": dict.fromkeys(NASTY[:6], 20e6 + at)}
    report["rates"]["roots"] = list(NASTY[:6])
    for at, point in enumerate(report["latency"]["points"]):
        point["at"] = NOON + at * 30 * MINUTE
    big = {"messages": 99_999, "bytes": 999_400_000_000}
    report["totals"] |= dict.fromkeys(report["totals"], 99_999) | {"bytes": 999_400_000_000}
    report["top"] = {by: [{"name": name, **big} for name in NASTY] for by in ("topic", "client")}
    report["sizes"]["counts"] = [[0, 5], *([1 << bit, 10_000 + bit] for bit in range(29))]
    report["drops"] = [{"reason": name, "root": name, "count": 99_999, "bytes": 1} for name in NASTY]
    seconds = {"connection_seconds": 40_000.0, "session_seconds": 86_340.0}
    trouble = dict.fromkeys(("connections", "refused", "takeovers", "keep_alive_losses"), 99_999)
    report["clients"] = [{"client_id": name, **big, **trouble, **seconds} for name in NASTY]
    for name, key in (("dead", "topic"), ("late", "rule")):
        report[name] = [{**report[name][0], key: text} for text in NASTY]
    report["quarantine"] = [{"rule": name, "reason": name, "count": 99_999} for name in NASTY]
    return report
