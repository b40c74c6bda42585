"""Computes the tables of gold for the hours that changed, and the books of the audit.

    OUT/gold/rates, topic_hours, client_hours, top, latency, drops, late, blocks    by date and hour
    OUT/gold/topics, clients                                                        by date
    OUT/gold/audit                                                                  one file

Parquet, one sorted file an hour or day, replaced as a whole: made twice from the same rows it has the same
bytes, and what comes late changes the hour that it belongs to and no other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark.gold import audit, delivery, traffic
from spark.gold.hours import (
    Marks,
    after,
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
from spark.gold.rows import rows
from spark.schema import KINDS, Column
from spark.tables import bronze, open_table

HOUR, DAY = ("date", "hour"), ("date",)
LATE_TYPES = {"received_at": "timestamp", "event_time": "timestamp", "date": "date", "hour": "int"}
LATE_COLUMNS = tuple(Column("", name, type) for name, type in LATE_TYPES.items())
NO_CLIENT_HOURS = "date DATE, hour INT, client_id STRING, messages BIGINT, bytes BIGINT"
DROPPED_WITHIN = 1  # hours after its message that a dropped delivery still finds it


class Gold:
    """The tables below OUT/gold. `refresh` first; `read` and `files` give one of them.

    *session* is asked for one when there is something to compute, and not before: a JVM takes seconds.
    """

    def __init__(self, session: Callable[[], SparkSession], out: Path) -> None:
        self._session, self.out, self.path = session, out, out / "gold"
        self.books: list[audit.Account] = []
        self.computed: set[str] = set()

    @cached_property
    def session(self) -> SparkSession:
        return self._session()

    @property
    def ok(self) -> bool:
        return all(account.ok for account in self.books)

    def read(self, name: str) -> DataFrame | None:
        """None where it has no rows yet."""
        found = any((self.path / name).rglob("part-*"))
        return self.session.read.parquet(str(self.path / name)) if found else None

    def files(self, name: str) -> list[Path]:
        """Of a table by hour or by day; in order of time."""
        path = self.path / name
        return sorted([*path.glob("date=*/part-*"), *path.glob("date=*/hour=*/part-*")])

    def refresh(self, since: str | None = None, until: str | None = None) -> None:
        """Every hour of the period whose files are not those that gold was made from; then the audit."""
        file = self.path / "_made_from.json"
        old, new = read_marks(file), self.sources()
        done: Marks = {}
        changed: dict[str, set[str]] = {"messages": set(), "events": set(), "silver": set()}
        for source, hours in new.items():
            was = old.get(source, {})
            mine = within(touched(was, hours), since, until)
            changed[source.removeprefix("bronze/") if source.startswith("bronze/") else "silver"] |= mine
            kept = {hour: digest for hour, digest in was.items() if hour not in mine}
            done[source] = kept | {hour: hours[hour] for hour in mine if hour in hours}
        self.computed = set().union(*changed.values())
        self.compute(changed["messages"], changed["events"], changed["silver"])
        self.audit()
        self.path.mkdir(parents=True, exist_ok=True)
        write_marks(file, done)

    def compute(self, messages: set[str], events: set[str], silver: set[str]) -> None:
        """The tables that are made from the given hours of each source, and no others."""
        if messages:
            self.of_messages(messages)
        if events:
            self.of_events(events)
        if messages or events:
            self.of_both(messages, events)
        if silver:
            self.of_silver(silver)

    def sources(self) -> Marks:
        tables = [open_table(self.out, f"bronze/{kind}") for kind in KINDS]
        tables += [open_table(self.out, f"silver/{name}") for name in self.silver_tables()]
        return {table.name: marks(table) for table in tables}

    def silver_tables(self) -> list[str]:
        """`<rule>/schema=<n>` of all wide tables."""
        found = (self.out / "silver").glob("*/schema=*")
        return sorted(str(path.relative_to(self.out / "silver")) for path in found)

    def bronze(self, kind: str, where: str) -> DataFrame:
        return bronze(self.session, self.out, kind).filter(where)

    def of_messages(self, hours: set[str]) -> None:
        mine = self.bronze("messages", condition(hours))
        minutes = traffic.client_minutes(mine).persist()
        clients, topics = traffic.client_hours(minutes).persist(), traffic.topic_hours(mine).persist()
        self.write("rates", traffic.rates(minutes), HOUR, ("minute", "root"), hours)
        self.write("client_hours", clients, HOUR, ("client_id",), hours)
        self.write("topic_hours", topics, HOUR, ("topic",), hours)
        self.write("top", traffic.top(topics, clients), HOUR, ("by", "measure", "rank"), hours)
        for each in (minutes, clients, topics):
            each.unpersist()
        self.write("blocks/messages", audit.blocks(mine), HOUR, ("node", "epoch", "block"), hours)
        if (every := self.read("topic_hours")) is not None:
            days = days_of(hours)
            self.write("topics", traffic.topics(every.filter(of_days(days))), DAY, ("topic",), days)

    def of_events(self, hours: set[str]) -> None:
        mine = self.bronze("events", condition(hours))
        self.write("latency", delivery.latency(mine), HOUR, ("minute", "qos"), hours)
        self.write("blocks/events", audit.blocks(mine), HOUR, ("node", "epoch", "block"), hours)

    def of_both(self, messages: set[str], events: set[str]) -> None:
        """A dropped delivery looks for its message in its own hour and in those before."""
        days = days_of(messages | events)
        hours = self.read("client_hours")
        if hours is None:
            hours = self.session.createDataFrame([], NO_CLIENT_HOURS)
        clients = traffic.clients(hours.filter(of_days(days)), self.bronze("events", of_days(days)))
        self.write("clients", clients, DAY, ("client_id",), days)
        every = messages | events | after(messages, DROPPED_WITHIN)
        mine, told = (self.bronze(kind, condition(every)) for kind in ("messages", "events"))
        recent = self.bronze("messages", condition(before(every, DROPPED_WITHIN)))
        drops = delivery.drops(told, recent).unionByName(delivery.overflow(mine, told))
        self.write("drops", drops, HOUR, ("reason", "root"), every)

    def of_silver(self, hours: set[str]) -> None:
        where = condition(hours)
        wide = [(name.partition("/")[0], self.wide(name).filter(where)) for name in self.silver_tables()]
        late = delivery.late(wide)
        if late is not None:
            self.write("late", late, HOUR, ("rule",), hours)

    def wide(self, name: str) -> DataFrame:
        return open_table(self.out, f"silver/{name}").read(self.session, LATE_COLUMNS)

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
        places = ("kind", "node", "epoch", "offset", "lost")
        lines, gaps = (
            open_table(self.out, "quarantine/lines"),
            open_table(self.out, "log_gaps", partitions=()),
        )
        self.books = []
        for kind in KINDS:
            counts = audit.merged(rows(self.files(f"blocks/{kind}"), *audit.COLUMNS))
            bad = (
                {**row, "absent": row["bad"].startswith("missing")}
                for row in rows(lines.files(), *places, "bad")
                if row["kind"] == kind
            )
            lost = (row for row in rows(gaps.files(), *places) if row["kind"] == kind)
            self.books += audit.accounts(kind, counts, bad, lost)
        audit.write(self.path / "audit", self.books)
