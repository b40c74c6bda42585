"""`python -m spark.decode`: bronze/messages -> silver by rules; what cannot be read -> quarantine/payloads.

One JSON line for each batch on stdout: batch, rows, bad, unmatched, seconds, start and end offsets, age of
the newest row in seconds, rows and reasons by rule, and the types that this batch widened. SIGTERM ends after
the running batch. Exit codes: 0 done, 2 usage, 3 nothing to read.

The end of a batch is the commit of silver/points, the last of its tables; a batch that is done again takes
the same rows of the log and replaces what it wrote.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.session import (
    DONE,
    UNREADABLE,
    Ending,
    Refused,
    age_of,
    alone,
    announce,
    build,
    carried_out,
    crash_point,
    pairs,
)
from spark.silver import edges, payloads
from spark.silver.ddl import VOID, Type, bounded, distinct, known, widen, write_type
from spark.silver.progress import Plan, next_plan, reached, store_plan, stored_plan
from spark.silver.rules import DEFAULT, Rule, RulesError, read_rules
from spark.silver.tables import (
    PAYLOADS,
    POINTS,
    names,
    payloads_table,
    points_table,
    versions,
    wide_columns,
    wide_table,
)
from spark.tables import LAYOUTS, Batch, bronze, open_table

HEAD = 256  # bytes of a payload that quarantine keeps
MAX_RECORDS = 200_000
# A batch has some 50 queries, the same in each batch: their code must not fall out of Spark's cache (100).
MANY_QUERIES = {"spark.sql.codegen.cache.maxEntries": "1000"}
SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "millisecond": 0.001}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    return carried_out("spark.decode", lambda: run(chosen))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="spark.decode", description="Bronze tables -> silver, by rules.")
    add = made.add_argument
    add("--out", type=Path, required=True, help="folder of the tables")
    add("--schemas", type=Path, default=DEFAULT, metavar="FILE.toml", help="the rules; default: %(default)s")
    when = made.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="what is there now, then end")
    when.add_argument("--trigger", default="5 seconds", metavar="INTERVAL", help="default: %(default)r")
    add("--max-records", type=int, default=MAX_RECORDS, metavar="N", help="in a batch: %(default)s or so")
    add("--table", choices=LAYOUTS, help="default: what is there, or parquet")
    add("--master", help="default: local[2]")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark; may be given again")
    return made


def run(chosen: argparse.Namespace) -> int:
    pause = interval(chosen.trigger)
    if chosen.max_records < 1:
        raise Refused("--max-records wants a number above 0")
    try:
        rules = read_rules(chosen.schemas)
    except RulesError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"--schemas: {error}", UNREADABLE) from error
    if not chosen.out.is_dir():
        raise Refused(f"--out {chosen.out}: there is no such folder; spark.ingest makes it", UNREADABLE)
    if chosen.once and not (chosen.out / "bronze" / "messages").is_dir():
        raise Refused(f"--out {chosen.out} has no bronze/messages; spark.ingest makes it", UNREADABLE)
    with alone(chosen.out / "_checkpoints" / "decode"):
        session = build("spark.decode", chosen.master, MANY_QUERIES | pairs(chosen.conf))
        ending = Ending().listen()
        try:
            decoder = Decoder(session, chosen.out, rules, chosen.table, chosen.max_records)
            while not ending:
                if not decoder.step() and (chosen.once or ending.wait(pause)):
                    break
        finally:
            session.stop()
    return DONE


def interval(text: str) -> float:
    """Seconds of `5 seconds`, as Spark writes it."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", text)
    if not found or found[2] not in SECONDS:
        raise Refused(f'--trigger {text!r} is no interval: write "5 seconds" or "1 minute"')
    return float(found[1]) * SECONDS[found[2]]


# JSON may have both `a` and `A`, and so has the schema that it is read with. Times without a zone are those
# of their rule, whatever the user's own settings say.
READING = {"spark.sql.caseSensitive": "true", "spark.sql.session.timeZone": "UTC"}


@contextmanager
def reading(session: SparkSession) -> Iterator[None]:
    before = {name: session.conf.get(name) for name in READING}
    for name, value in READING.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


class Decoder:
    """The batches of one OUT. Holds no rows between them: what is done stands in the tables."""

    def __init__(
        self, session: SparkSession, out: Path, rules: Sequence[Rule], layout: str | None, max_records: int
    ) -> None:
        self.session, self.out, self.rules = session, out, rules
        self.layout, self.max_records = layout, max_records
        self.points = points_table(out, layout)
        self.quarantine = payloads_table(out, layout)
        self.plan_file = out / "silver" / "_plan.json"
        self.announced: dict[str, Any] = {}
        self.states: list[Path] = []
        self.held: list[DataFrame] = []  # in Spark's cache, until the batch is done
        check(session, rules)

    def step(self) -> bool:
        """One batch; False: there was nothing new."""
        planned = self.plan()
        if planned is None:
            return False
        with reading(self.session):
            self.batch(*planned)
        return True

    def plan(self) -> tuple[Plan, Sequence[Rule]] | None:
        """What to do next, and by which rules: a batch that was begun keeps its own."""
        done = reached(self.points.progress())
        if planned := stored_plan(self.plan_file, done):
            if planned[1] != list(self.rules):
                text = f"batch {planned[0].number} was begun with other rules: it is finished with those"
                print(text, file=sys.stderr, flush=True)
            return planned
        plan = next_plan(done, list(open_table(self.out, "bronze/messages").progress()), self.max_records)
        if plan is None:
            return None
        store_plan(self.plan_file, plan, self.rules)
        return plan, self.rules

    def rows(self, plan: Plan, rules: Sequence[Rule]) -> DataFrame:
        """The rows of bronze that *plan* names, each with the rule that it goes by."""
        rows = bronze(self.session, self.out, "messages").filter(plan.condition())
        if plan.batches is not None and "batch" in rows.columns:
            compacted = F.col("batch").startswith("c")
            rows = rows.filter(F.col("batch").isin(*plan.batches) | compacted)
        rows = rows.filter(F.col("topic").isNotNull())
        return rows.select(*payloads.KEPT, payloads.rule_name(rules).alias("rule"))

    def batch(self, plan: Plan, rules: Sequence[Rule]) -> None:
        began = time.monotonic()
        batch = Batch(plan.query, plan.number, plan.end)
        self.announced, self.states = {}, []
        rows = self.hold(self.rows(plan, rules))
        sums = F.count("*").alias("n"), F.max(F.unix_micros("received_at")).alias("newest")
        counted = rows.groupBy("rule").agg(*sums).collect()
        found = {row.rule: row.n for row in counted}
        wanted = [rule for rule in rules if rule.name in found]
        kinds = self.kinds(rows, wanted)
        parts = {}
        for rule in wanted:
            made = self.decoded(rows, rule, kinds[rule.name][1], plan.number)
            parts[rule.name] = self.hold(made)
        for name, part in parts.items():
            self.store_wide(part, name, kinds[name], batch)
        crash_point("after wide")
        told = self.finish(parts, kinds, batch)
        crash_point("after points")
        while self.held:
            self.held.pop().unpersist()
        newest = max((row.newest for row in counted), default=None)
        self.announce(plan, found, told, newest, time.monotonic() - began)

    def hold(self, rows: DataFrame) -> DataFrame:
        self.held.append(rows.persist())
        return rows

    def kinds(self, rows: DataFrame, wanted: Sequence[Rule]) -> dict[str, tuple[int, Type]]:
        """For each rule: the version and the type of its values; widens what must be wider."""
        unknown = [rule.name for rule in wanted if rule.format == "json" and rule.schema is None]
        seen = payloads.inferred(rows, unknown) if unknown else {}
        kinds = {}
        for rule in wanted:
            stored = versions(self.out, rule.name)
            number, old = stored.newest()
            new = self.kind(rule, old, seen.get(rule.name, (VOID, VOID)))
            if new != old or number == 0:
                number = stored.add(new)
                self.announced[rule.name] = {"version": number, "type": write_type(new)}
            kinds[rule.name] = number, known(new)
        return kinds

    def kind(self, rule: Rule, old: Type, seen: tuple[Type, Type]) -> Type:
        """The type of the values of *rule*, given what its table has and what this batch has."""
        if rule.format == "sparkplug":
            return edges.KIND
        if rule.format != "json":
            return payloads.KINDS[rule.format]
        if rule.schema is not None:
            return payloads.declared(rule)
        objects, others = seen
        if isinstance(old, dict) or (old == VOID and objects != VOID):
            others = VOID  # what is no object goes to quarantine
        return bounded(old, widen(widen(old, objects), others))

    def decoded(self, rows: DataFrame, rule: Rule, kind: Type, number: int) -> DataFrame:
        mine = rows.filter(F.col("rule") == rule.name)
        if rule.format != "sparkplug":
            return payloads.decoded(mine, rule, kind)
        folder = self.out / "silver" / "_edges" / rule.name
        made = self.hold(edges.decoded(mine, rule, self.newest_states(folder, number)))
        states = made.filter(F.col("state").isNotNull()).select("edge", "state")
        states.write.mode("overwrite").parquet(str(folder / str(number)))
        self.states.append(folder)
        return made.filter(F.col("state").isNull()).drop("edge", "state")

    def newest_states(self, folder: Path, number: int) -> DataFrame | None:
        """What was remembered after the newest batch before *number*."""
        done = [int(path.parent.name) for path in folder.glob("*/_SUCCESS")]
        before = [each for each in done if each < number]
        if not before:
            return None
        path = str(folder / str(max(before)))
        return self.session.read.schema(edges.STATE_COLUMNS).parquet(path)

    def store_wide(self, part: DataFrame, rule: str, kind: tuple[int, Type], batch: Batch) -> None:
        number, value = kind[0], distinct(kind[1])
        if value == VOID:
            return
        columns = wide_columns(write_type(value))
        good = part.filter(F.col("reason").isNull()).select(*names(columns))
        wide_table(self.out, rule, number, self.layout).write(good.sortWithinPartitions("topic"), batch)

    def finish(self, parts: dict[str, DataFrame], kinds: dict[str, tuple[int, Type]], batch: Batch) -> Any:
        """Quarantine and points, which ends the batch; rows by (rule, reason)."""
        told = []
        if parts:
            fields = (*payloads.KEPT, "reason")
            each = [part.select(*fields, F.lit(name).alias("rule")) for name, part in parts.items()]
            every = reduce(DataFrame.unionByName, each)
            kind = F.regexp_replace("reason", r"\d+", "n").alias("reason")  # places are endless
            told = every.groupBy("rule", kind).count().collect()
            bad = every.filter(F.col("reason").isNotNull())
            bad = bad.withColumn("head", F.substring("payload", 1, HEAD)).select(*names(PAYLOADS))
            if any(row.reason is not None for row in told):
                self.quarantine.write(bad, batch)
        points = [self.points_of(part, name, kinds[name][1]) for name, part in parts.items()]
        whole = reduce(DataFrame.unionByName, points) if points else self.no_points()
        self.points.write(whole.sortWithinPartitions("topic", "field"), batch)
        for folder in self.states:
            for path in folder.iterdir():
                if path.name.isdigit() and int(path.name) < batch.number:
                    shutil.rmtree(path)
        return told

    def points_of(self, part: DataFrame, rule: str, kind: Type) -> DataFrame:
        if kind == VOID:
            return self.no_points()
        kind = distinct(kind)
        made = edges.points_of() if kind == edges.KIND else payloads.points_of(kind)
        good = part.filter(F.col("reason").isNull()).select("*", F.lit(rule).alias("rule"))
        points = good.select("*", F.explode(F.array_compact(made)).alias("point"))
        return points.select("*", "point.*").select(*names(POINTS))

    def no_points(self) -> DataFrame:
        return self.session.createDataFrame([], ", ".join(f"{each.name} {each.type}" for each in POINTS))

    def announce(
        self, plan: Plan, found: dict[str | None, int], told: Any, newest: int | None, seconds: float
    ) -> None:
        rows, unmatched = sum(found.values()), found.get(None, 0)
        reasons: dict[str, dict[str, int]] = {}
        for row in told:
            if row.reason is not None:
                reasons.setdefault(row.rule, {})[row.reason] = row["count"]
        bad = sum(sum(each.values()) for each in reasons.values())
        said = {"batch": plan.number, "rows": rows, "bad": bad, "unmatched": unmatched}
        said |= {"seconds": round(seconds, 3), "start": plan.start, "end": plan.end, "age": age_of(newest)}
        said |= {"rules": {name: count for name, count in found.items() if name}, "reasons": reasons}
        wider = [f"{name} is now version {new['version']}" for name, new in self.announced.items()]
        announce(said | {"schemas": self.announced}, *wider)


def check(session: SparkSession, rules: Sequence[Rule]) -> None:
    """Raises Refused for DDL that Spark cannot read and for zones that it does not know."""
    for rule in rules:
        try:
            if rule.schema is not None:
                payloads.declared(rule)
            if rule.event_time is not None and rule.event_time.zone != "UTC":
                moment = F.to_utc_timestamp(F.lit("2026-01-01"), rule.event_time.zone)
                session.range(1).select(moment).collect()
        except PySparkException as error:
            raise Refused(f"rule {rule.name}: {str(error).splitlines()[0]}") from error


if __name__ == "__main__":
    sys.exit(main())
