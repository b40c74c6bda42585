"""`python -m spark.decode`: bronze/messages -> silver by rules; what cannot be read -> quarantine/payloads.

One JSON line for each batch on stdout: batch, rows, bad, unmatched, seconds, start and end offsets, age of
the newest row in seconds, rows and reasons by rule, and the types that this batch widened. SIGTERM ends after
the running batch. Exit codes: 0 done, 2 usage, 3 nothing to read.

The end of a batch is the commit of silver/points, the last of its tables; a batch that is done again takes
the same rows of the log and replaces what it wrote.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
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

from spark.session import DONE, UNREADABLE, USAGE, Ending, Refused, alone, build, crash_point, pairs
from spark.silver import edges, payloads
from spark.silver.ddl import VOID, Type, bounded, distinct, known, widen, write_type
from spark.silver.progress import Plan, next_plan, reached, stored_plan
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
    try:
        return run(chosen)
    except RulesError as error:
        print(f"spark.decode: {error}", file=sys.stderr)
        return USAGE
    except Refused as refused:
        print(f"spark.decode: {refused}", file=sys.stderr)
        return refused.code


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
    except OSError as error:
        raise Refused(f"--schemas: {error}", UNREADABLE) from error
    if not chosen.out.is_dir():
        raise Refused(f"--out {chosen.out}: there is no such folder; spark.ingest makes it", UNREADABLE)
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
        raise Refused(f"--trigger {text!r} is no interval: write \"5 seconds\" or \"1 minute\"")
    return float(found[1]) * SECONDS[found[2]]


@contextmanager
def case_sensitive(session: SparkSession) -> Iterator[None]:
    """JSON may have both `a` and `A`, and so has the schema that it is read with."""
    before = session.conf.get("spark.sql.caseSensitive")
    session.conf.set("spark.sql.caseSensitive", "true")
    try:
        yield
    finally:
        session.conf.set("spark.sql.caseSensitive", before)


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
        plan = self.plan()
        if plan is None:
            return False
        with case_sensitive(self.session):
            self.batch(plan)
        return True

    def plan(self) -> Plan | None:
        done = reached(self.points.progress())
        if plan := stored_plan(self.plan_file, done):
            return plan
        plan = next_plan(done, list(open_table(self.out, "bronze/messages").progress()), self.max_records)
        if plan is not None:
            self.plan_file.parent.mkdir(parents=True, exist_ok=True)
            staged = self.plan_file.with_suffix(".part")
            staged.write_text(json.dumps(plan._asdict()), "utf-8")
            staged.replace(self.plan_file)
        return plan

    def rows(self, plan: Plan) -> DataFrame:
        """The rows of bronze that *plan* names, each with the rule that it goes by."""
        rows = bronze(self.session, self.out, "messages").filter(plan.condition())
        if plan.batches is not None and "batch" in rows.columns:
            compacted = F.col("batch").startswith("c")
            rows = rows.filter(F.col("batch").isin(*plan.batches) | compacted)
        rows = rows.filter(F.col("topic").isNotNull())
        return rows.select(*payloads.KEPT, payloads.rule_name(self.rules).alias("rule"))

    def batch(self, plan: Plan) -> None:
        began = time.monotonic()
        batch = Batch(plan.query, plan.number, plan.end)
        self.announced, self.states = {}, []
        rows = self.hold(self.rows(plan))
        sums = F.count("*").alias("n"), F.max("received_at").alias("newest")
        counted = rows.groupBy("rule").agg(*sums).collect()
        found = {row.rule: row.n for row in counted}
        kinds = self.kinds(rows, found)
        parts = {}
        for rule in self.rules:
            if rule.name in found:
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

    def kinds(self, rows: DataFrame, found: dict[str | None, int]) -> dict[str, tuple[int, Type]]:
        """For each rule with rows: the version and the type of its values; widens what must be wider."""
        wanted = [rule for rule in self.rules if rule.name in found]
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
            return f"STRUCT<{edges.STORED}>"
        if rule.format != "json":
            return payloads.KINDS[rule.format]
        if rule.schema is not None:
            return payloads.declared(rule)
        objects, others = seen
        if isinstance(old, dict) or (old == VOID and objects != VOID):
            return bounded(old, widen(old, objects))  # what is no object goes to quarantine
        return widen(widen(old, objects), others)

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
        of_edges = isinstance(kind, str) and kind.startswith("STRUCT")
        made = edges.points_of() if of_edges else payloads.points_of(kind)
        good = part.filter(F.col("reason").isNull()).select("*", F.lit(rule).alias("rule"))
        points = good.select("*", F.explode(F.array_compact(made)).alias("point"))
        return points.select("*", "point.*").select(*names(POINTS))

    def no_points(self) -> DataFrame:
        return self.session.createDataFrame([], ", ".join(f"{each.name} {each.type}" for each in POINTS))

    def announce(
        self, plan: Plan, found: dict[str | None, int], told: Any, newest: dt.datetime | None, seconds: float
    ) -> None:
        rows, unmatched = sum(found.values()), found.get(None, 0)
        reasons: dict[str, dict[str, int]] = {}
        for row in told:
            if row.reason is not None:
                reasons.setdefault(row.rule, {})[row.reason] = row["count"]
        bad = sum(sum(each.values()) for each in reasons.values())
        age = None if newest is None else round((dt.datetime.now() - newest).total_seconds(), 3)
        said = {"batch": plan.number, "rows": rows, "bad": bad, "unmatched": unmatched}
        said |= {"seconds": round(seconds, 3), "start": plan.start, "end": plan.end, "age": age}
        said |= {"rules": {name: count for name, count in found.items() if name}, "reasons": reasons}
        print(json.dumps(said | {"schemas": self.announced}), flush=True)
        text = f"batch {plan.number}: {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f}/s)"
        text += "" if age is None else f", newest {age:.1f} s old"
        text += f", {bad} bad" if bad else ""
        text += "".join(f", {name} is now version {new['version']}" for name, new in self.announced.items())
        print(text, file=sys.stderr, flush=True)




def check(session: SparkSession, rules: Sequence[Rule]) -> None:
    """Raises RulesError for DDL that Spark cannot read and for zones that it does not know."""
    for rule in rules:
        try:
            if rule.schema is not None:
                payloads.declared(rule)
            if rule.event_time is not None and rule.event_time.zone != "UTC":
                moment = F.to_utc_timestamp(F.lit("2026-01-01"), rule.event_time.zone)
                session.range(1).select(moment).collect()
        except PySparkException as error:
            raise RulesError(f"rule {rule.name}: {str(error).splitlines()[0]}") from error


if __name__ == "__main__":
    sys.exit(main())
