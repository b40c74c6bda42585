"""`python -m spark.ingest`: the message log -> bronze; what cannot be read -> quarantine/lines and log_gaps.

One JSON line for each batch on stdout: kind, batch, rows, bad, gaps, seconds, start and end offsets, age of
the newest row in seconds. SIGTERM ends after the running batch. Exit codes: 0 done, 1 data loss, 2 usage, 3
the log cannot be read.

The commit of its bronze table is the end of a batch; quarantine is written before it. So whatever is killed
and whenever, the batch is done again from the offsets in the checkpoint, and replaces what it had written.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from spark.log.consumers import tell, write_whole
from spark.log.listing import VERSION, Log, LogUnreadable
from spark.log.plan import as_offset, of_offset
from spark.log.workers import tell_workers
from spark.schema import (
    BINARY,
    DATA_LOSS,
    GAP,
    KINDS,
    LOG_GAPS,
    PLACE,
    QUARANTINE_LINES,
    Column,
    bronze_columns,
    ddl,
    log_columns,
)
from spark.session import (
    DONE,
    LOSS,
    UNREADABLE,
    Checkpoint,
    Ending,
    Refused,
    age_of,
    alone,
    announce,
    build,
    carried_out,
    crash_point,
    pairs,
    watch,
)
from spark.tables import LAYOUTS, Batch, Hour, Staged, open_table


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    return carried_out("spark.ingest", lambda: run(chosen))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="spark.ingest", description="The message log -> bronze tables.")
    add = made.add_argument
    add("--log", type=Path, required=True, help="folder of the message log")
    add("--out", type=Path, required=True, help="folder of the tables")
    add("--kind", choices=[*KINDS, "both"], default="both")
    add(
        "--source", choices=["mqttlog", "files"], default="mqttlog", help="files: closed segments, no pyarrow"
    )
    when = made.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="what is there now, then end")
    when.add_argument("--trigger", default="1 second", metavar="INTERVAL", help="default: %(default)r")
    add("--tail", action="store_true", help="also what is in segments that are still being written")
    add("--max-records", type=int, metavar="N", help="in a batch at most; --source files: 100 segments")
    add("--from", dest="start", default="earliest", metavar="WHERE", help="earliest, latest, JSON or @TIME")
    add("--until", metavar="TIME", help="with --once: only what was received before")
    add("--table", choices=LAYOUTS, help="default: what is there, or parquet")
    add("--consumer", metavar="NAME", help="retention of the log waits for it: consumers/NAME-<kind>.json")
    add("--resume-from-table", action="store_true", help="a new checkpoint begins where the table ends")
    add("--allow-loss", action="store_true", help="go on where the log has lost records; log_gaps says which")
    add("--master", help="default: local[2]")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark; may be given again")
    return made


def run(chosen: argparse.Namespace, given: SparkSession | None = None) -> int:
    """The whole job; in a session of its own unless one is *given*. Raises Refused."""
    check(chosen)
    kinds = list(KINDS) if chosen.kind == "both" else [chosen.kind]
    jobs = [Job(chosen, kind) for kind in kinds]
    with ExitStack() as locks:
        for job in jobs:
            locks.enter_context(alone(job.checkpoint.path))
            job.prepare()
        session = given or build("spark.ingest", chosen.master, pairs(chosen.conf))
        ending = Ending()
        if given is None:
            ending.listen()
        queries = [job.start(session, ending) for job in jobs]
        failed = watch(queries, ending)
        for job in jobs:
            job.tell()
        if given is None:
            with suppress(Py4JError, OSError):  # there may be no JVM any more
                session.stop()
    return report(failed)


def check(chosen: argparse.Namespace) -> None:
    """Raises Refused for what needs no Spark to be seen."""
    if chosen.max_records is not None and chosen.max_records < 1:
        raise Refused("--max-records wants a number above 0")
    if chosen.until and not chosen.once:
        raise Refused("--until has an end: give --once too")
    try:
        log = Log(str(chosen.log), "messages")
        log.check()
    except (LogUnreadable, OSError) as error:
        raise Refused(str(error), UNREADABLE) from error
    if not (chosen.log / VERSION).is_dir():
        raise Refused(f"{chosen.log} is no message log: it has no folder {VERSION}", UNREADABLE)
    if chosen.source == "files" and (
        chosen.tail or chosen.consumer or chosen.until or chosen.start != "earliest"
    ):
        raise Refused(
            "--source files reads whole segments from the earliest on: no --tail, --from, --consumer"
        )


def report(failed: list[str]) -> int:
    """Says what went wrong, and with which exit code."""
    for text in failed:
        lost = [line for line in text.splitlines() if GAP in line or DATA_LOSS in line]
        print(f"spark.ingest: {lost[0].strip() if lost else text}", file=sys.stderr)
    if any(GAP in text or DATA_LOSS in text for text in failed):
        return LOSS
    return UNREADABLE if failed else DONE


class Job:
    """One kind of records: one query, one checkpoint, one bronze table."""

    def __init__(self, chosen: argparse.Namespace, kind: str) -> None:
        self.chosen, self.kind = chosen, kind
        self.checkpoint = Checkpoint(chosen.out / "_checkpoints" / f"ingest-{kind}")
        self.bronze = open_table(chosen.out, f"bronze/{kind}", chosen.table)
        self.lines = open_table(chosen.out, "quarantine/lines", chosen.table)
        self.gaps = open_table(chosen.out, "log_gaps", chosen.table, partitions=())
        self.beginning = chosen.start
        self.ending = Ending()
        self.first: dict[str, Any] | None = None  # where a new checkpoint begins
        self.schema = ""  # of bronze, as Spark has it, JSON

    def prepare(self) -> None:
        """All that can be refused before a JVM starts. Raises Refused."""
        self._belongs()
        if self.chosen.source == "mqttlog":
            try:
                self._begin()
            except ValueError as error:
                raise Refused(str(error)) from error
            except (LogUnreadable, OSError) as error:
                raise Refused(str(error), UNREADABLE) from error

    def _belongs(self) -> None:
        """Checkpoint and table must belong together."""
        newest, done = self.checkpoint.newest(), self.checkpoint.done()
        last = self.bronze.last(self.checkpoint.query)
        way_out = "Remove the checkpoint and give --resume-from-table"
        if last is not None and (newest is None or last > newest):
            raise Refused(
                f"{self.checkpoint.path} is older than the table: it planned batch {newest}, the table "
                f"has batch {last}. {way_out}"
            )
        if done is not None and (last is None or last < done):
            raise Refused(
                f"{self.bronze.path} is older than {self.checkpoint.path}: batch {done} is done there, "
                f"and the table has {'no batch of it' if last is None else f'batch {last}'}. {way_out}"
            )
        if newest is not None:
            return
        if self.bronze.exists() and not self.chosen.resume_from_table:
            raise Refused(
                f"{self.bronze.path} has rows, but {self.checkpoint.path} is new: all would be read again. "
                "--resume-from-table goes on where the table ends; or choose a new --out"
            )
        if self.bronze.exists() and self.chosen.source == "files":
            raise Refused("--source files keeps no offsets: it cannot resume from a table")
        self._resume()

    def _resume(self) -> None:
        """After the last batch that the table has; what was written of a later one goes."""
        done = self.bronze.done()
        reached: dict[str, tuple[int, int]] = {}
        for kept in self.bronze.progress():
            for node, at in of_offset(kept["end"]).items():
                reached[node] = max(at, reached.get(node, at))
        self.bronze.tidy(done)
        for table in (self.lines, self.gaps):
            table.tidy(done, beyond(self.kind, reached))
        if reached:
            self.beginning = json.dumps(as_offset(reached))

    def _begin(self) -> None:
        """Where the first batch begins, kept in the checkpoint: also if that batch is done again."""
        from spark.source import MqttLog

        reader = MqttLog(self.options()).streamReader(StructType())
        kept = self.checkpoint.path / "first.json"
        if self.checkpoint.exists() and kept.is_file():
            self.first = json.loads(kept.read_text())
        else:
            self.first = reader.initialOffset()
            write_whole(kept, json.dumps(self.first))
        self.beginning = json.dumps(self.first)
        if self.consumer and not self.checkpoint.exists():
            tell(self.chosen.log, self.consumer, self.kind, of_offset(self.first))

    def start(self, session: SparkSession, ending: Ending) -> StreamingQuery:
        self.ending = ending
        if self.chosen.source == "files":
            reader = read_files(session, self.chosen.log, self.kind, bounded=bool(self.chosen.max_records))
        else:
            from spark.source import register

            register(session)
            self.schema = session.createDataFrame([], ddl(bronze_columns(self.kind))).schema.json()
            self.bronze.incoming.mkdir(parents=True, exist_ok=True)
            reader = session.readStream.format("mqttlog-files").options(**self.options())
            reader = reader.option("into", str(self.bronze.incoming.absolute())).load()
        writer = reader.writeStream.foreachBatch(self.batch).queryName(f"ingest {self.kind}")
        writer = writer.option("checkpointLocation", str(self.checkpoint.path))
        if self.chosen.once:
            return writer.trigger(availableNow=True).start()
        try:
            return writer.trigger(processingTime=self.chosen.trigger).start()
        except IllegalArgumentException as error:
            raise Refused(f"--trigger {self.chosen.trigger!r} is no interval such as '5 seconds'") from error

    def options(self) -> dict[str, str]:
        """Of `mqttlog`."""
        options = {
            "path": str(self.chosen.log),
            "kind": self.kind,
            "tail": str(self.chosen.tail),
            "failOnDataLoss": str(not self.chosen.allow_loss),
            "maxRecordsPerTrigger": self.chosen.max_records,
            "consumer": self.consumer,
            "endingTimestamp": self.chosen.until,
        }
        if self.beginning.startswith("@"):
            options["startingTimestamp"] = self.beginning[1:]
        else:
            options["startingOffsets"] = self.beginning
        return {name: str(value) for name, value in options.items() if value is not None}

    @property
    def consumer(self) -> str | None:
        return f"{self.chosen.consumer}-{self.kind}" if self.chosen.consumer else None

    def batch(self, rows: DataFrame, number: int) -> None:
        """What foreachBatch calls."""
        session = rows.sparkSession
        self.ending.check(session)
        began = time.monotonic()
        batch = Batch(self.checkpoint.query, number, self.checkpoint.end(number) or {})
        if self.bronze.is_done(batch):
            return
        crash_point("before write")
        ingested = self.checkpoint.planned_at(number)
        if self.chosen.source == "files":
            staged, found = self._by_spark(rows, batch, ingested)
        else:
            staged, found = self._by_workers(rows, batch, ingested)
        crash_point("after staging")
        if found["bad"] or found["gaps"]:
            self._quarantine(rows, batch, ingested)
        self.bronze.commit(staged, batch, {name: found[name] for name in ("rows", "bad", "gaps")})
        crash_point("after table commit")
        self._announce(batch, found, time.monotonic() - began)

    def _by_workers(
        self, rows: DataFrame, batch: Batch, ingested: dt.datetime
    ) -> tuple[Staged, dict[str, Any]]:
        """The tasks write the files of bronze: a row does not travel through the JVM."""
        tell_workers(rows.sparkSession, round(ingested.timestamp() * 1e6))
        parts = rows.where("rows is not null").collect()
        files: dict[Hour, list[str]] = {}
        for part in parts:
            if part.file:
                files.setdefault((part.date.isoformat(), part.hour), []).append(part.file)
        newest = [part.newest for part in parts if part.newest is not None]
        found = {
            "rows": sum(part.rows for part in parts),
            "bad": sum(part.bad_lines for part in parts),
            "gaps": sum(part.gaps for part in parts),
            "newest": max(newest, default=None),
        }
        return self.bronze.adopt(files, batch, self.schema), found

    def _by_spark(
        self, rows: DataFrame, batch: Batch, ingested: dt.datetime
    ) -> tuple[Staged, dict[str, Any]]:
        seen = Observation()
        observed = rows.observe(seen, *measures())
        good = observed.where("bad is null").dropDuplicates(["node", "epoch", "offset"])
        staged = self.bronze.stage(to_bronze(good, self.kind, constant(ingested)), batch)
        return staged, seen.get

    def _quarantine(self, rows: DataFrame, batch: Batch, ingested: dt.datetime) -> None:
        """Reads the batch again: that is rare, and keeps nothing in memory."""
        tell_workers(rows.sparkSession, None)
        made = {"kind": F.lit(self.kind), "ingested_at": constant(ingested)}
        bad = rows.where("bad is not null").withColumns(made)
        self.lines.write(bad.where(~is_gap()).select(*names(QUARANTINE_LINES)), batch)
        self.gaps.write(bad.where(is_gap()).select(*names(LOG_GAPS)), batch)

    def _announce(self, batch: Batch, found: dict[str, Any], seconds: float) -> None:
        said = {
            "kind": self.kind,
            "batch": batch.number,
            "rows": found["rows"],
            "bad": found["bad"],
            "gaps": found["gaps"],
            "seconds": round(seconds, 3),
            "start": self.checkpoint.end(batch.number - 1) or self.first,
            "end": batch.end,
            "age": age_of(found["newest"]),
        }
        announce(said, *([f"{found['gaps']} gaps in the log"] if found["gaps"] else []))

    def tell(self) -> None:
        """The source tells of a batch when the next one is planned: the last one is ours to tell."""
        done = self.checkpoint.done()
        if self.consumer and done is not None and (end := self.checkpoint.end(done)) is not None:
            tell(self.chosen.log, self.consumer, self.kind, of_offset(end))


def beyond(kind: str, reached: Mapping[str, tuple[int, int]]) -> str:
    """SQL: the rows of *kind* in quarantine or log_gaps of what comes after the places *reached*."""
    after = [
        f"node = '{node}' AND (epoch > {epoch} OR epoch = {epoch} AND \"offset\" >= {offset})"
        for node, (epoch, offset) in reached.items()
    ]
    after += [" AND ".join(["true", *(f"node <> '{node}'" for node in reached)])]
    return f"kind = '{kind}' AND (({') OR ('.join(after)}))"


def names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


def is_gap() -> Expression:
    """Whether `bad` speaks of the log, not of a line."""
    return F.col("bad").startswith(GAP) | F.col("bad").startswith(DATA_LOSS)


def measures() -> list[Expression]:
    """What is counted while the batch is written: rows, bad, gaps; newest, microseconds since 1970."""
    bad = F.col("bad").isNotNull()
    return [
        F.count_if(~bad).alias("rows"),
        F.count_if(bad & ~is_gap()).alias("bad"),
        F.count_if(bad & is_gap()).alias("gaps"),
        F.max(F.unix_micros("received_at")).alias("newest"),
    ]


def constant(value: dt.datetime) -> Expression:
    """*value* in each row, but not in the code that Spark compiles.

    A number or a time would be, and all code of the stage be compiled anew for each batch, and never be
    warm: more than half of the CPU of a small one. Arrays are handed to it, and where Spark cannot know the
    place in one it does not look it up beforehand.
    """
    return F.get(F.array(F.lit(value)), F.spark_partition_id() * 0)


def to_bronze(rows: DataFrame, kind: str, ingested: Expression) -> DataFrame:
    """For `--source files`, what `spark.log.files.to_bronze` does in the workers, in the same words."""
    order = ["date", "hour", "epoch", "offset"]
    if kind == "messages":
        payload = F.unbase64("payload")
        added = {column: F.unbase64(column) for column in BINARY}
        added |= {"levels": F.split("topic", "/"), "size": F.coalesce("payload_size", F.length(payload))}
        rows, order = rows.withColumns(added), ["date", "hour", "topic", "epoch", "offset"]
    rows = rows.sortWithinPartitions(*order).withColumn("ingested_at", ingested)
    return rows.select(*names(bronze_columns(kind)))


def read_files(session: SparkSession, log: Path, kind: str, *, bounded: bool) -> DataFrame:
    """Closed segments by Spark's own reader of JSON, with the columns of `mqttlog` and decode=false.

    No checksums and no gaps, and a segment that was copied in is read twice.
    """
    columns = (*PLACE[2:], *KINDS[kind])
    inside = ", ".join(f"`{column.key}` {IN_JSON.get(column.type, column.type)}" for column in columns)
    reader = session.readStream.schema(f"{inside}, broken string, date date, hour int")
    reader = reader.option("columnNameOfCorruptRecord", "broken").option("pathGlobFilter", "*.jsonl*")
    reader = reader.option(
        "maxFileAge", "1000d"
    )  # or what is a week older than the newest is left out, unsaid
    if bounded:
        reader = reader.option("maxFilesPerTrigger", 100)
    found = reader.json(str(log / VERSION / "closed" / f"kind={kind}"))
    made = {
        "node": F.split("_metadata.file_name", r"\.")[0],
        "epoch": F.split("_metadata.file_name", r"\.")[1].cast("bigint"),
        "segment": F.regexp_extract("_metadata.file_name", r"^(.*\.\d{20})-", 1),
        "bad": F.concat(F.lit("not JSON: "), F.left("broken", F.lit(256))),
    }
    for column in columns:
        value = F.col(f"`{column.key}`")
        if column.type == "timestamp":
            value = F.timestamp_micros(value)
        made[column.name] = value.cast(column.type) if column.type == "boolean" else value
    wanted = [*names(log_columns(kind))]
    return found.select(*[made.get(each, F.col(each)).alias(each) for each in wanted])


IN_JSON = {"binary": "string", "boolean": "tinyint", "timestamp": "bigint"}


if __name__ == "__main__":
    sys.exit(main())
