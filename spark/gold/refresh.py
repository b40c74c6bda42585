"""Computes the tables of gold for the hours that changed, and the books of the audit.

    OUT/gold/rates, topic_hours, client_hours, top, latency, drops, late, blocks    by date and hour
    OUT/gold/topics, clients                                                        by date
    OUT/gold/audit                                                                  one file

Parquet, one sorted file an hour or day, replaced as a whole: made twice from the same rows it has the same
bytes, and what comes late changes the hour that it belongs to and no other.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.gold import audit, delivery, traffic
from spark.gold.hours import (
    Marks,
    before,
    condition,
    days_of,
    marks,
    of_days,
    read_marks,
    touched,
    within,
    write_marks,
)
from spark.schema import KINDS, Column
from spark.tables import bronze, log_gaps, open_table, quarantine_lines

HOUR, DAY = ("date", "hour"), ("date",)
LATE_TYPES = {"received_at": "timestamp", "event_time": "timestamp", "date": "date", "hour": "int"}
LATE_COLUMNS = tuple(Column("", name, type) for name, type in LATE_TYPES.items())
DROPPED_WITHIN = 1  # hours after its message that a dropped delivery still finds it


class Gold:
    """The tables below OUT/gold. `refresh` first; `read` gives one of them."""

    def __init__(self, session: SparkSession, out: Path) -> None:
        self.session, self.out, self.path = session, out, out / "gold"
        self.books: list[audit.Account] = []
        self.computed: set[str] = set()

    @property
    def ok(self) -> bool:
        return all(account.ok for account in self.books)

    def read(self, name: str) -> DataFrame | None:
        """None where it has no rows yet."""
        path = self.path / name
        if not any(path.rglob("part-*")):
            return None
        return self.session.read.parquet(str(path))

    def refresh(self, since: str | None = None, until: str | None = None) -> None:
        """Every hour of the period whose files are not those that gold was made from; then the audit."""
        file = self.path / "_made_from.json"
        old, new = read_marks(file), self.sources()
        done: Marks = {}
        for source, hours in new.items():
            was = old.get(source, {})
            changed = within(touched(was, hours), since, until)
            self.computed |= changed
            kept = {hour: digest for hour, digest in was.items() if hour not in changed}
            done[source] = kept | {hour: hours[hour] for hour in changed if hour in hours}
        if self.computed:
            self.hours(self.computed)
            self.days(days_of(self.computed))
        self.audit()
        self.path.mkdir(parents=True, exist_ok=True)
        write_marks(file, done)

    def sources(self) -> Marks:
        tables = [open_table(self.out, f"bronze/{kind}") for kind in KINDS]
        tables += [open_table(self.out, f"silver/{name}") for name in self.silver_tables()]
        return {table.name: marks(table) for table in tables}

    def silver_tables(self) -> list[str]:
        """`<rule>/schema=<n>` of all wide tables."""
        found = (self.out / "silver").glob("*/schema=*")
        return sorted(str(path.relative_to(self.out / "silver")) for path in found)

    def hours(self, hours: set[str]) -> None:
        where = condition(hours)
        messages = bronze(self.session, self.out, "messages")
        events = bronze(self.session, self.out, "events").filter(where)
        mine = messages.filter(where)
        minutes = traffic.client_minutes(mine).persist()
        clients, topics = traffic.client_hours(minutes), traffic.topic_hours(mine).persist()
        self.write("rates", traffic.rates(minutes), HOUR, ("minute", "root"), hours)
        self.write("client_hours", clients, HOUR, ("client_id",), hours)
        self.write("topic_hours", topics, HOUR, ("topic",), hours)
        self.write("top", traffic.top(topics, clients), HOUR, ("by", "measure", "rank"), hours)
        minutes.unpersist()
        topics.unpersist()
        self.write("latency", delivery.latency(events), HOUR, ("minute", "qos"), hours)
        recent = messages.filter(condition(before(hours, DROPPED_WITHIN)))
        drops = delivery.drops(events, recent).unionByName(delivery.overflow(mine, events))
        self.write("drops", drops, HOUR, ("reason", "root"), hours)
        wide = [(name.partition("/")[0], self.wide(name).filter(where)) for name in self.silver_tables()]
        late = delivery.late(wide)
        if late is not None:
            self.write("late", late, HOUR, ("rule",), hours)
        for kind, rows in (("messages", mine), ("events", events)):
            self.write(f"blocks/{kind}", audit.blocks(rows), HOUR, ("node", "epoch", "block"), hours)

    def wide(self, name: str) -> DataFrame:
        return open_table(self.out, f"silver/{name}").read(self.session, LATE_COLUMNS)

    def days(self, days: set[str]) -> None:
        where = of_days(days)
        if (hours := self.read("topic_hours")) is not None:
            self.write("topics", traffic.topics(hours.filter(where)), DAY, ("topic",), days)
        hours = self.read("client_hours")
        events = bronze(self.session, self.out, "events").filter(where)
        if hours is None:
            schema = "date DATE, hour INT, client_id STRING, messages BIGINT, bytes BIGINT"
            hours = self.session.createDataFrame([], schema)
        self.write("clients", traffic.clients(hours.filter(where), events), DAY, ("client_id",), days)

    def write(
        self, name: str, rows: DataFrame, parts: Sequence[str], keys: Sequence[str], changed: set[str]
    ) -> None:
        """One sorted file for each hour or day; an hour of *changed* without rows loses its file."""
        path = self.path / name
        for key in changed if parts == DAY else ():
            shutil.rmtree(path / f"date={key}", ignore_errors=True)
        for key in changed if parts == HOUR else ():
            date, _, hour = key.partition("T")
            shutil.rmtree(path / f"date={date}" / f"hour={int(hour)}", ignore_errors=True)
        ordered = rows.repartition(*parts).sortWithinPartitions(*parts, *keys)
        writer = ordered.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*parts).parquet(str(path))

    def audit(self) -> None:
        """The books of all nodes and epochs, whatever the period: what is missing may be anywhere."""
        absent = F.col("bad").startswith("missing").alias("absent")
        places = ("kind", "node", "epoch", "offset", "lost")
        bad = quarantine_lines(self.session, self.out).select(*places, absent).collect()
        gaps = log_gaps(self.session, self.out).select(*places).collect()
        self.books = []
        for kind in KINDS:
            blocks = self.read(f"blocks/{kind}")
            rows = [] if blocks is None else audit.merged(blocks).collect()
            mine = [row for row in bad if row.kind == kind], [row for row in gaps if row.kind == kind]
            self.books += audit.accounts(kind, rows, *mine)
        made = self.session.createDataFrame([account.row() for account in self.books], audit.ROW)
        made.coalesce(1).write.mode("overwrite").parquet(str(self.path / "audit"))
