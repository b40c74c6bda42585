"""What a report says, from the tables of gold: one dictionary of plain values, small whatever gold's size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from spark.gold.hours import key_of, within
from spark.gold.refresh import Gold
from spark.gold.rows import added, best, moment, pieces, rows, sketches
from spark.gold.sketch import middle, quantile_of
from spark.silver.tables import payloads_table
from spark.tables import hour_in

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440)  # minutes of one point of a plot
POINTS = 240  # of a plot at most
ROOTS = 6  # of a plot; the others are added up
LISTED = 12  # rows of a table
REASONS = 100  # of drops
OTHERS = "(others)"
SHARES = (0.5, 0.95, 0.99)
ENDS = ("first", "last")
TROUBLE = ("messages", "bytes", "connections", "refused", "takeovers", "keep_alive_losses")  # of clients
PLACE = ("worst_latency", "worst_node", "worst_epoch", "worst_offset", "minute")  # no ties


def summary(gold: Gold, since: str | None, until: str | None) -> dict[str, Any]:
    """Keys: period, totals, rates, latency, top, sizes, drops, late, clients, dead, quarantine, audit."""
    tables = Tables(gold, since, until)
    period = tables.period()
    step = step_of(minutes_of(period))
    return {
        "period": {**period, "step_minutes": step},
        "totals": tables.totals(),
        "rates": tables.rates(step),
        "latency": tables.latency(step),
        "top": tables.top(),
        "sizes": tables.sizes(),
        "drops": tables.drops(),
        "late": tables.late(),
        "clients": tables.clients(),
        "dead": tables.dead(),
        "quarantine": tables.quarantine(),
        "audit": [account.row() for account in gold.books],
        "ok": gold.ok,
    }


def minutes_of(period: dict[str, Any]) -> int:
    """From the minute of the first message to that of the last."""
    if period["first"] is None:
        return 0
    first, last = (datetime.fromisoformat(period[name]).replace(second=0, microsecond=0) for name in ENDS)
    return (last - first) // timedelta(minutes=1) + 1


def step_of(minutes: int) -> int:
    """The least of STEPS that makes POINTS or fewer of *minutes*."""
    most = STEPS[-1] * POINTS
    return next((step for step in STEPS if minutes / step <= POINTS), STEPS[-1] * math.ceil(minutes / most))


class Tables:
    """What the tables of gold say of one period."""

    def __init__(self, gold: Gold, since: str | None, until: str | None) -> None:
        self.gold, self.since, self.until = gold, since, until

    def files(self, name: str) -> list[Path]:
        """Of whole hours; of a table by day, of every day that the period touches."""
        return [file for file in self.gold.files(name) if self.inside(file)]

    def inside(self, file: Path) -> bool:
        place = file.relative_to(self.gold.out)
        if any(part.startswith("hour=") for part in place.parts):
            return bool(within([key_of(hour_in(place))], self.since, self.until))
        since = None if self.since is None else f"{self.since[:10]}T00"
        return bool(within([f"{day_of(file)}T00"], since, self.until))

    def unread(self) -> list[Path]:
        """Files of quarantine/payloads."""
        return [file for file in payloads_table(self.gold.out).files() if self.inside(file)]

    def pieces(self, name: str, *columns: str) -> Iterator[pa.Table]:
        return pieces(self.files(name), *columns)

    def period(self) -> dict[str, Any]:
        found = [(pc.min(each["first"]), pc.max(each["last"])) for each in self.pieces("topic_hours", *ENDS)]
        if not found:
            return dict.fromkeys(ENDS)
        first, last = min(one.as_py() for one, _ in found), max(one.as_py() for _, one in found)
        return {"first": moment(first), "last": moment(last)}

    def totals(self) -> dict[str, Any]:
        names = ("messages", "bytes", "qos0", "qos1", "qos2", "retained", "dup")
        found = dict.fromkeys(names, 0)
        for piece in self.pieces("rates", *names):
            for name in names:
                found[name] += pc.sum(piece[name]).as_py() or 0
        found["topics"] = self.distinct("topic_hours", "topic")
        found["publishers"] = self.distinct("client_hours", "client_id")
        drops = self.pieces("drops", "count")
        found["dropped"] = sum(pc.sum(piece["count"]).as_py() or 0 for piece in drops)
        found["quarantined"] = sum(parquet.read_metadata(file).num_rows for file in self.unread())
        return found

    def distinct(self, table: str, column: str) -> int:
        """Different values; one row in memory for each of them."""
        each = added(self.pieces(table, column), [column])
        return sum(len(table) - table[column].null_count for table in each)

    def rates(self, step: int) -> dict[str, Any]:
        """{"roots": names, "points": [{"at": ms since 1970, "messages": {root: n}, "bytes": n}]}."""
        totals = added(self.pieces("rates", "root", "messages"), ["root"], ["messages"])
        order = [("messages", "descending"), ("root", "ascending")]
        ranked = [row["root"] for row in best(totals, order, ROOTS + 1)]
        roots = ranked if len(ranked) <= ROOTS else [*ranked[: ROOTS - 1], OTHERS]
        names = pa.array(roots, pa.string())

        def named(piece: pa.Table) -> pa.Table:
            root = pc.if_else(pc.is_in(piece["root"], value_set=names), piece["root"], OTHERS)
            at = by_step(piece["minute"], step)
            return pa.table({"at": at, "root": root, "messages": piece["messages"], "bytes": piece["bytes"]})

        every = map(named, self.pieces("rates", "minute", "root", "messages", "bytes"))
        points: dict[int, dict[str, Any]] = {}
        for found in added(every, ["at", "root"], ["messages", "bytes"]):
            for row in found.sort_by([("at", "ascending"), ("root", "ascending")]).to_pylist():
                point = points.setdefault(row["at"], {"at": row["at"], "messages": {}, "bytes": 0})
                point["messages"][row["root"]] = row["messages"]
                point["bytes"] += row["bytes"]
        return {"roots": roots, "points": list(points.values())}

    def latency(self, step: int) -> dict[str, Any]:
        """{"points": [...], "all": [...], "worst": ...}: percentiles in microseconds, by kind of delivery."""
        points: dict[int, dict[str, Any]] = {}
        every = []
        for kind in ("delivered", "acked"):
            sketch = f"{kind}_sketch"

            def timed(piece: pa.Table) -> pa.Table:
                return piece.append_column("at", by_step(piece["minute"], step))

            by_time = sketches(map(timed, self.pieces("latency", "minute", sketch)), ["at"], sketch)
            for (at,), buckets in by_time.items():
                points.setdefault(at, {"at": at})[kind] = percentiles(buckets)
            by_qos = sketches(self.pieces("latency", "qos", sketch), ["qos"], sketch)
            every += [
                {"kind": kind, "qos": qos, **percentiles(buckets)} for (qos,), buckets in by_qos.items()
            ]
        every.sort(key=lambda row: (row["kind"], row["qos"]))
        worst = best(self.pieces("latency", *PLACE), [(name, "descending") for name in PLACE], 1)
        return {
            "points": [points[at] for at in sorted(points)],
            "all": every,
            "worst": worst[0] if worst else None,
        }

    def top(self) -> dict[str, list[dict[str, Any]]]:
        """`topic` and `client`: the loudest, by messages, of the hours' own lists."""
        columns = ("by", "measure", "name", "messages", "bytes")
        ranked = (piece.filter(pc.field("measure") == "messages") for piece in self.pieces("top", *columns))
        found = added(ranked, ["by", "name"], ["messages", "bytes"])
        order = [("messages", "descending"), ("name", "ascending")]

        def of(by: str) -> list[dict[str, Any]]:
            return best((each.filter(pc.field("by") == by).drop("by") for each in found), order, LISTED)

        return {by: of(by) for by in ("topic", "client")}

    def sizes(self) -> dict[str, Any]:
        """Payload sizes in bytes: {"counts": [[from, count]], "p50", ...}; each bar twice the one before."""
        pieces = self.pieces("topic_hours", "size_sketch")
        sketch = sketches(pieces, (), "size_sketch").get((), {})
        bars: dict[int, int] = {}
        for bucket, count in sketch.items():
            size = middle(bucket)
            bar = 0 if size < 1 else 1 << int(math.log2(size) + 1e-6)
            bars[bar] = bars.get(bar, 0) + count
        return {"counts": [[bar, bars[bar]] for bar in sorted(bars)], **shares(sketch)}

    def drops(self) -> list[dict[str, Any]]:
        keys, sums = ("reason", "root"), ("count", "bytes")
        found = added(self.pieces("drops", *keys, *sums), keys, sums)
        order = [("count", "descending"), ("reason", "ascending"), ("root", "ascending")]
        return best(found, order, REASONS)

    def late(self) -> list[dict[str, Any]]:
        sums = ("messages", "over_watermark", "future")
        rules: dict[str, dict[str, Any]] = {}
        for row in rows(self.files("late"), "rule", *sums, "latest_ms"):
            found = rules.setdefault(row["rule"], dict.fromkeys(sums, 0) | {"latest_ms": row["latest_ms"]})
            found |= {name: found[name] + row[name] for name in sums}
            found["latest_ms"] = max(found["latest_ms"], row["latest_ms"])
        column = "lateness_sketch"
        every = sketches(self.pieces("late", "rule", column), ["rule"], column)
        return [{"rule": rule, **rules[rule], **shares(every.get((rule,), {}))} for rule in sorted(rules)]

    def clients(self) -> list[dict[str, Any]]:
        """Those with the most connections, refusals, takeovers and Keep Alive losses."""
        names = (*TROUBLE, "connection_seconds", "session_seconds")
        order = [("trouble", "descending"), ("connections", "descending"), ("client_id", "ascending")]

        def troubled(found: pa.Table) -> pa.Table:
            found = found.filter((pc.field("connections") + pc.field("refused")) > 0)
            trouble = pc.add(pc.add(found["refused"], found["takeovers"]), found["keep_alive_losses"])
            return found.append_column("trouble", trouble)

        every = added(self.pieces("clients", "client_id", *names), ["client_id"], names)
        listed = best(map(troubled, every), order, LISTED)
        return [{name: row[name] for name in ("client_id", *names)} for row in listed]

    def dead(self) -> list[dict[str, Any]]:
        """The newest first: of each day, which is in the name of a file's folder."""
        names = ("topic", "messages", "last", "mean_gap", "largest_gap")
        order = [("messages", "descending"), ("topic", "ascending")]
        days: dict[str, list[Path]] = {}
        for file in self.files("topics"):
            days.setdefault(day_of(file), []).append(file)
        found: list[dict[str, Any]] = []
        for day in sorted(days, reverse=True):
            silent = (piece.filter(pc.field("dead")) for piece in pieces(days[day], *names, "dead"))
            found += [
                {"date": day} | row for row in best((each.drop("dead") for each in silent), order, LISTED)
            ]
            if len(found) >= LISTED:
                break
        return found[:LISTED]

    def quarantine(self) -> list[dict[str, Any]]:
        """Rule, reason and count of what came in the period; the places in a reason say nothing here."""
        every = map(of_reasons, pieces(self.unread(), "rule", "reason"))
        found = added(every, ["rule", "reason"], ["count"])
        order = [("count", "descending"), ("rule", "ascending"), ("reason", "ascending")]
        return best(found, order, LISTED)


def day_of(file: Path) -> str:
    return file.parent.name.removeprefix("date=")


def of_reasons(piece: pa.Table) -> pa.Table:
    reason = pc.replace_substring_regex(piece["reason"], r"[0-9]+", "n")
    return pa.table(
        {"rule": piece["rule"], "reason": reason, "count": pa.array([1] * len(piece), pa.int64())}
    )


def by_step(minutes: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
    """For each the beginning of the *step* minutes in which it is, in milliseconds since 1970."""
    wide = step * 60_000_000
    steps = pc.floor(pc.divide(minutes.cast(pa.int64()).cast(pa.float64()), wide))
    return pc.multiply(steps.cast(pa.int64()), wide // 1000)


def percentiles(sketch: dict[int, int]) -> dict[str, Any]:
    return {"count": sum(sketch.values()), **shares(sketch)}


def shares(sketch: dict[int, int]) -> dict[str, float | None]:
    return {f"p{share * 100:.0f}": quantile_of(sketch, share) for share in SHARES}
