"""What a report says, from the tables of gold: one dictionary of plain values, small whatever gold's size."""

from __future__ import annotations

import math
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.gold.hours import as_plain
from spark.gold.refresh import Gold
from spark.gold.sketch import add, middle, quantile_of
from spark.silver.tables import payloads_table

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440)  # minutes of one point of a plot
POINTS = 240  # of a plot at most
ROOTS = 6  # of a plot; the others are added up
LISTED = 12  # rows of a table
OTHERS = "(others)"
SHARES = (0.5, 0.95, 0.99)


def summary(gold: Gold, since: str | None, until: str | None) -> dict[str, Any]:
    """Keys: period, totals, rates, latency, top, sizes, drops, late, clients, dead, quarantine, audit."""
    tables = Tables(gold, since, until)
    minutes = tables.span()
    step = step_of(minutes)
    rates = tables.rates(step)
    unread = tables.quarantine()
    return {
        "period": {**tables.period(), "step_minutes": step},
        "totals": {**tables.totals(), "quarantined": sum(row["count"] for row in unread)},
        "rates": rates,
        "latency": tables.latency(step),
        "top": tables.top(),
        "sizes": tables.sizes(),
        "drops": tables.drops(),
        "late": tables.late(),
        "clients": tables.clients(),
        "dead": tables.dead(),
        "quarantine": unread[:LISTED],
        "audit": [account.row() for account in gold.books],
        "ok": gold.ok,
    }


def step_of(minutes: int) -> int:
    """The least of STEPS that makes POINTS or fewer of *minutes*."""
    most = STEPS[-1] * POINTS
    return next((step for step in STEPS if minutes / step <= POINTS), STEPS[-1] * math.ceil(minutes / most))


class Tables:
    """Queries over gold within one period."""

    def __init__(self, gold: Gold, since: str | None, until: str | None) -> None:
        self.gold, self.since, self.until = gold, since, until

    def table(self, name: str) -> DataFrame | None:
        """Rows of whole hours, or of whole days."""
        rows = self.gold.read(name)
        if rows is None:
            return None
        by_day = "hour" not in rows.columns
        text = F.col("date").cast("string")
        key = text if by_day else F.format_string("%sT%02d", text, F.col("hour"))
        for bound, keep in ((self.since, key.__ge__), (self.until, key.__lt__)):
            if bound is not None:
                rows = rows.filter(keep(bound[:10] if by_day and keep == key.__ge__ else bound))
        return rows

    def span(self) -> int:
        """Minutes from the first to the last."""
        rates = self.table("rates")
        if rates is None:
            return 0
        [row] = rates.agg(F.min("minute").alias("first"), F.max("minute").alias("last")).collect()
        return 0 if row.first is None else int((row.last - row.first).total_seconds() // 60) + 1

    def period(self) -> dict[str, Any]:
        topics = self.table("topic_hours")
        if topics is None:
            return {"first": None, "last": None}
        [row] = topics.agg(F.min("first").alias("first"), F.max("last").alias("last")).collect()
        return {"first": as_plain(row["first"]), "last": as_plain(row["last"])}

    def totals(self) -> dict[str, Any]:
        found: dict[str, Any] = {"messages": 0, "bytes": 0, "topics": 0, "dropped": 0}
        rates, topics = self.table("rates"), self.table("topic_hours")
        if rates is not None and topics is not None:
            names = ("messages", "bytes", "qos0", "qos1", "qos2", "retained", "dup")
            publishers = F.hll_sketch_estimate(F.hll_union_agg("publishers_sketch")).alias("publishers")
            [row] = rates.agg(*[F.sum(name).alias(name) for name in names], publishers).collect()
            found |= {name: value or 0 for name, value in row.asDict().items()}
            found["topics"] = topics.select("topic").distinct().count()
        if (drops := self.table("drops")) is not None:
            found["dropped"] = drops.agg(F.sum("count")).collect()[0][0] or 0
        return found

    def rates(self, step: int) -> dict[str, Any]:
        """{"roots": names, "points": [{"at": ms since 1970, "messages": {root: n}, "bytes": n}]}."""
        rows = self.table("rates")
        if rows is None:
            return {"roots": [], "points": []}
        totals = rows.groupBy("root").agg(F.sum("messages").alias("n")).orderBy(F.desc("n"), "root")
        ranked = [row.root for row in totals.limit(ROOTS + 1).collect()]
        roots = ranked if len(ranked) <= ROOTS else [*ranked[: ROOTS - 1], OTHERS]
        named = F.when(F.col("root").isin(roots), F.col("root")).otherwise(OTHERS).alias("root")
        sums = F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
        found = rows.select(at(step), named, "messages", "bytes").groupBy("at", "root").agg(*sums).collect()
        points: dict[int, dict[str, Any]] = {}
        for row in sorted(found, key=lambda row: (row["at"], row.root)):
            point = points.setdefault(row["at"], {"at": row["at"], "messages": {}, "bytes": 0})
            point["messages"][row.root] = row.messages
            point["bytes"] += row.bytes
        return {"roots": roots, "points": list(points.values())}

    def latency(self, step: int) -> dict[str, Any]:
        """{"points": [...], "all": [...], "worst": ...}: percentiles in microseconds, by kind of delivery."""
        rows = self.table("latency")
        if rows is None:
            return {"points": [], "all": [], "worst": None}
        chosen = rows.select(at(step), "qos", "delivered_sketch", "acked_sketch").collect()
        points: dict[int, dict[str, list[Any]]] = {}
        of_qos: dict[tuple[str, int], list[Any]] = {}
        for row in chosen:
            for kind in ("delivered", "acked"):
                if sketch := row[f"{kind}_sketch"]:
                    points.setdefault(row["at"], {}).setdefault(kind, []).append(sketch)
                    of_qos.setdefault((kind, row.qos), []).append(sketch)
        place = F.struct("worst_latency", "worst_node", "worst_epoch", "worst_offset", "minute")
        [worst] = rows.agg(F.max(place).alias("w")).collect()
        return {
            "points": [
                {"at": when, **{kind: percentiles(each) for kind, each in kinds.items()}}
                for when, kinds in sorted(points.items())
            ],
            "all": [
                {"kind": kind, "qos": qos, **percentiles(each)}
                for (kind, qos), each in sorted(of_qos.items())
            ],
            "worst": as_plain(worst.w),
        }

    def top(self) -> dict[str, list[dict[str, Any]]]:
        """`topic` and `client`: the loudest, by messages, of the hours' own lists."""
        rows = self.table("top")
        found: dict[str, list[dict[str, Any]]] = {"topic": [], "client": []}
        if rows is None:
            return found
        sums = F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
        ranked = rows.filter("measure = 'messages'").groupBy("by", "name").agg(*sums)
        for by in found:
            best = ranked.filter(F.col("by") == by).orderBy(F.desc("messages"), "name").limit(LISTED)
            found[by] = [as_plain(row) for row in best.drop("by").collect()]
        return found

    def sizes(self) -> dict[str, Any]:
        """Payload sizes in bytes: {"counts": [[from, count]], "p50", ...}; each bar twice the one before."""
        rows = self.table("topic_hours")
        if rows is None:
            return {"counts": []}
        pair = F.explode("size_sketch").alias("p")
        sums = rows.select(pair).groupBy("p.bucket").agg(F.sum("p.count").alias("n")).collect()
        sketch = {row.bucket: row.n for row in sums}
        bars: dict[int, int] = {}
        for bucket, count in sketch.items():
            size = middle(bucket)
            bar = 0 if size < 1 else 1 << int(math.log2(size) + 1e-6)
            bars[bar] = bars.get(bar, 0) + count
        shares = {f"p{share * 100:.0f}": quantile_of(sketch, share) for share in SHARES}
        return {"counts": [[bar, bars[bar]] for bar in sorted(bars)], **shares}

    def drops(self) -> list[dict[str, Any]]:
        rows = self.table("drops")
        if rows is None:
            return []
        sums = F.sum("count").alias("count"), F.sum("bytes").alias("bytes")
        made = rows.groupBy("reason", "root").agg(*sums).orderBy(F.desc("count"), "reason", "root")
        return [as_plain(row) for row in made.limit(100).collect()]

    def late(self) -> list[dict[str, Any]]:
        rows = self.table("late")
        if rows is None:
            return []
        names = ("rule", "messages", "over_watermark", "future", "latest_ms", "lateness_sketch")
        rules: dict[str, list[Any]] = {}
        for row in rows.select(*names).collect():
            rules.setdefault(row.rule, []).append(row)
        found = []
        for rule, hours in sorted(rules.items()):
            sketch = add([row.lateness_sketch for row in hours])
            shares = {f"p{share * 100:.0f}": quantile_of(sketch, share) for share in SHARES}
            sums = {name: sum(row[name] for row in hours) for name in names[1:4]}
            found.append({"rule": rule, **sums, "latest_ms": max(row.latest_ms for row in hours), **shares})
        return found

    def clients(self) -> list[dict[str, Any]]:
        """Those with the most connections, refusals, takeovers and Keep Alive losses."""
        rows = self.table("clients")
        if rows is None:
            return []
        names = ("messages", "bytes", "connections", "refused", "takeovers", "keep_alive_losses")
        seconds = ("connection_seconds", "session_seconds")
        sums = [F.sum(name).alias(name) for name in (*names, *seconds)]
        trouble = F.col("refused") + F.col("takeovers") + F.col("keep_alive_losses")
        made = rows.groupBy("client_id").agg(*sums).filter("connections + refused > 0")
        made = made.orderBy(trouble.desc(), F.desc("connections"), "client_id")
        return [as_plain(row) for row in made.limit(LISTED).collect()]

    def dead(self) -> list[dict[str, Any]]:
        rows = self.table("topics")
        if rows is None:
            return []
        names = ("date", "topic", "messages", "last", "mean_gap", "largest_gap")
        made = rows.filter("dead").select(*names).orderBy(F.desc("date"), F.desc("messages"), "topic")
        return [as_plain(row) for row in made.limit(LISTED).collect()]

    def quarantine(self) -> list[dict[str, Any]]:
        from spark.silver.tables import PAYLOADS

        table = payloads_table(self.gold.out)
        if not table.exists():
            return []
        rows = table.read(self.gold.session, PAYLOADS)
        reason = F.regexp_replace("reason", r"\d+", "n").alias("reason")  # positions say nothing here
        made = rows.groupBy("rule", reason).agg(F.count("*").alias("count"))
        made = made.orderBy(F.desc("count"), "rule", "reason").limit(1000)
        return [as_plain(row) for row in made.collect()]


def at(step: int) -> Any:
    """Milliseconds since 1970 of the *step* minutes in which a row's `minute` is."""
    width = step * 60
    return (F.floor(F.unix_seconds("minute") / width) * width * 1000).alias("at")


def percentiles(sketches: list[Any]) -> dict[str, Any]:
    total = add(sketches)
    shares = {f"p{share * 100:.0f}": quantile_of(total, share) for share in SHARES}
    return {"count": sum(total.values()), **shares}
