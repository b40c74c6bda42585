"""Tables below OUT, in two layouts, written batch by batch so that a batch that is done again counts once.

    OUT/bronze/messages, OUT/bronze/events    spark.schema.bronze_columns; by date and hour
    OUT/quarantine/lines                      spark.schema.QUARANTINE_LINES; by date and hour
    OUT/log_gaps                              spark.schema.LOG_GAPS; not partitioned
    OUT/_checkpoints/<job>                    Spark's own; it and the tables belong together

parquet: `<table>/date=2026-11-27/hour=21/batch=<first 8 of the query id>-<number>/part-*.parquet`, replaced
as a whole when the batch is done again, and `<table>/_progress/<batch>.json` once the batch is done:
{"query", "batch", "end", ...}. A batch with a higher number than the highest of its query in `_progress` is
being written, or was when its job was killed: leave it alone. Reading gives a column `batch`.

delta: a Delta table. Files are in `data/<batch>-<uuid>/date=/hour=/`; the commit has the transaction (query
id, number of the batch) and, under "batch", what `_progress` has in the other layout.

While a compaction puts one folder `batch=c<first>~<last>.<id>` in the place of others, `_swap.json` says so:
whoever reads the table by this module finishes that first. Others may see an hour without them for a moment.
Files in `_incoming` are of no batch yet, see `adopt`.

`open_table(out, name)` finds out which layout a table has; `read` gives an empty DataFrame before the first
batch; `hours` says what each hour is made of, so that one can see which hours changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark.log.consumers import write_whole
from spark.schema import LOG_GAPS, PARTITIONS, QUARANTINE_LINES, Column, bronze_columns, ddl
from spark.session import Refused, crash_point

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

LAYOUTS = ("parquet", "delta")
KEPT = 100  # files in _progress, of each query
BATCH_FOLDER = re.compile(r"batch=([0-9a-f]{8})-(\d+)")

Hour = tuple[str, int]  # date and hour


class Batch(NamedTuple):
    """One micro-batch of one streaming query; its name is in every path that it writes."""

    query: str  # id of the query, which a checkpoint keeps
    number: int
    end: Mapping[str, Any] = {}  # offsets of the source at its end

    @property
    def name(self) -> str:
        return f"{self.query[:8]}-{self.number}"


class Staged(NamedTuple):
    """Files of a batch that is not done yet."""

    place: str
    schema: str  # of Spark, JSON: a Delta table has the same


SWAP = "_swap.json"  # {"new": folder, "old": [folders]} of a table, while they change places


def hidden(folder: Path) -> Path:
    """Where *folder* is while nobody is to see it: Spark skips names with a dot."""
    return folder.with_name(f".{folder.name}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else swaps folders of the table *path* meanwhile."""
    with (path / "_compact.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def swap(path: Path, stage: Path, old: Iterable[Path]) -> None:
    """The hidden folder *stage* takes the place of the folders *old*, from the journal on. Locked."""
    for file in [*stage.iterdir(), stage]:
        sync(file)
    new = stage.with_name(stage.name.removeprefix("."))
    names = {"new": str(new.relative_to(path)), "old": [str(each.relative_to(path)) for each in old]}
    crash_point("before journal")
    write_whole(path / SWAP, json.dumps(names))
    sync(path)
    crash_point("after journal")
    settle(path, alone=True)


def settle(path: Path, alone: bool = False) -> None:
    """Finish a swap of the table *path* that has begun, or wait until it is done. *alone*: it is locked."""
    if not (path / SWAP).exists():
        return
    if not alone:
        with locked(path):
            settle(path, alone=True)
        return
    with suppress(FileNotFoundError):
        names = json.loads((path / SWAP).read_text())
        old, new = [path / each for each in names["old"]], path / names["new"]
        for folder in old:
            with suppress(FileNotFoundError):
                folder.rename(hidden(folder))
            crash_point("after one is hidden")
        if hidden(new).exists():
            hidden(new).rename(new)
        sync(new.parent)
        crash_point("after the new one is shown")
        for folder in old:
            shutil.rmtree(hidden(folder), ignore_errors=True)
            crash_point("after one is removed")
        (path / SWAP).unlink()
        sync(path)


def sync(path: Path) -> None:
    """Make the file, or the names in the folder, survive a power loss."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class Table(ABC):
    """`stage` rows of a batch or `adopt` files, then `commit`: again too, after a crash at any point."""

    layout = ""

    def __init__(self, out: Path, name: str, partitions: Iterable[str] = PARTITIONS) -> None:
        self.name, self.path, self.partitions = name, out / name, list(partitions)

    @abstractmethod
    def exists(self) -> bool:
        """Whether it has rows, or had."""

    @abstractmethod
    def last(self, query: str) -> int | None:
        """The highest batch of *query* that is done."""

    @abstractmethod
    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        """Writes *rows*; what it returns is for `commit`."""

    @abstractmethod
    def new_place(self, batch: Batch) -> str:
        """`place` of what is to be staged."""

    @abstractmethod
    def folder(self, place: str, hour: Hour) -> Path:
        """Where the files of *hour* of it are."""

    @abstractmethod
    def commit(self, staged: Staged, batch: Batch, said: Mapping[str, Any] | None = None) -> None:
        """*batch* is done; *said* is kept beside it."""

    @abstractmethod
    def progress(self) -> Iterator[dict[str, Any]]:
        """What was kept of batches that are done: `query`, `batch`, `end`, what was `said`; newest last."""

    @abstractmethod
    def read(self, session: SparkSession, columns: Iterable[Column]) -> DataFrame: ...

    @abstractmethod
    def files(self) -> list[Path]:
        """What `read` reads: one Parquet file each, in folders that tell date and hour."""

    @abstractmethod
    def hours(self) -> dict[Hour, frozenset[str]]:
        """Of each hour the batches or files that make it; of a table by date and hour."""

    @abstractmethod
    def done(self) -> dict[str, int]:
        """Of each query that wrote here, by the first 8 of its id, the last batch done; -1: none."""

    @abstractmethod
    def tidy(self, done: Mapping[str, int], beyond: str = "false") -> None:
        """Removes what queries left that will not go on: batches behind what *done* says.

        *beyond* is true, in SQL, for the rows of such batches: for a layout that does not tell them by names.
        """

    @property
    def incoming(self) -> Path:
        """Where files wait to be adopted; on the table's own file system, and out of readers' sight."""
        return self.path / "_incoming"

    def is_done(self, batch: Batch) -> bool:
        last = self.last(batch.query)
        return last is not None and last >= batch.number

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Both steps, unless the batch is done."""
        if not self.is_done(batch):
            self.commit(self.stage(rows, batch), batch)

    def adopt(self, files: Mapping[Hour, Sequence[str]], batch: Batch, schema: str) -> Staged:
        """Instead of `stage`: *files* of each hour were written into `incoming`, synced, by others.

        *schema*: of the rows, as Spark has it, JSON. All else in `incoming` is of failed tasks, and goes.
        """
        staged = Staged(self.new_place(batch), schema)
        for hour, names in files.items():
            folder = self.folder(staged.place, hour)
            for left in (hidden(folder), folder):  # by a try that was killed
                shutil.rmtree(left, ignore_errors=True)
            hidden(folder).mkdir(parents=True)
            for name in names:
                (self.incoming / name).rename(hidden(folder) / name)
                crash_point("after one is moved")
            hidden(folder).rename(folder)
            depth = len(folder.relative_to(self.path).parts)
            for each in (folder, *folder.parents[:depth]):
                sync(each)
        for file in self.incoming.iterdir():
            file.unlink(missing_ok=True)
        return staged


class ParquetTable(Table):
    layout = "parquet"

    @property
    def _progress(self) -> Path:
        return self.path / "_progress"

    def exists(self) -> bool:
        return any(self.path.glob("_progress/*.json")) or any(self.folders())

    def last(self, query: str) -> int | None:
        done = (int(path.stem[9:]) for path in self._progress.glob(f"{query[:8]}-*.json"))
        return max(done, default=None)

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        folders = [*self.partitions, "batch"]
        named = rows.withColumn("batch", F.lit(batch.name))
        writer = named.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*folders).parquet(str(self.path))
        return Staged(batch.name, rows.schema.json())

    def new_place(self, batch: Batch) -> str:
        return batch.name

    def folder(self, place: str, hour: Hour) -> Path:
        return self.path / f"date={hour[0]}" / f"hour={hour[1]}" / f"batch={place}"

    def commit(self, staged: Staged, batch: Batch, said: Mapping[str, Any] | None = None) -> None:
        self._progress.mkdir(parents=True, exist_ok=True)
        write_whole(self._progress / f"{staged.place}.json", kept_of(batch, said))
        (self._progress / f"{batch.query[:8]}-{batch.number - KEPT}.json").unlink(missing_ok=True)

    def progress(self) -> Iterator[dict[str, Any]]:
        found = []
        for path in self._progress.glob("*.json"):
            with suppress(FileNotFoundError):  # a job that is at work keeps the newest only
                found.append((path.stat().st_mtime_ns, int(path.stem[9:]), path.read_text()))
        yield from (json.loads(text) for _, _, text in sorted(found))

    def read(self, session: SparkSession, columns: Iterable[Column]) -> DataFrame:
        schema = f"{ddl(columns)}, batch string"
        settle(self.path)
        if not any(self.folders()):
            return session.createDataFrame([], schema)
        return session.read.schema(schema).parquet(str(self.path))

    def files(self) -> list[Path]:
        settle(self.path)
        return [file for folder in self.folders() for file in folder.glob("part-*")]

    def hours(self) -> dict[Hour, frozenset[str]]:
        settle(self.path)
        return by_hour((hour_in(folder), folder.name.removeprefix("batch=")) for folder in self.folders())

    def done(self) -> dict[str, int]:
        found = [BATCH_FOLDER.fullmatch(folder.name) for folder in self.folders()]
        queries = {each[1] for each in found if each}
        queries |= {path.stem[:8] for path in self._progress.glob("*.json")}
        last = {query: self.last(query) for query in queries}
        return {query: -1 if batch is None else batch for query, batch in last.items()}

    def tidy(self, done: Mapping[str, int], beyond: str = "false") -> None:
        for folder in list(self.folders()):
            found = BATCH_FOLDER.fullmatch(folder.name)
            if found and found[1] in done and int(found[2]) > done[found[1]]:
                shutil.rmtree(folder)

    def folders(self) -> Iterator[Path]:
        """Of all batches, done or not."""
        depth = "/".join(f"{name}=*" for name in [*self.partitions, "batch"])
        return self.path.glob(depth)


class DeltaLakeTable(Table):
    layout = "delta"

    def __init__(self, out: Path, name: str, partitions: Iterable[str] = PARTITIONS) -> None:
        super().__init__(out, name, partitions)
        self._opened: DeltaTable | None = None

    def exists(self) -> bool:
        return any((self.path / "_delta_log").glob("*.json"))

    def table(self) -> DeltaTable | None:
        """As it is now; None before the first commit."""
        if not self.exists():
            return None
        if self._opened is None:
            self._opened = delta_lake().DeltaTable(str(self.path))
        else:
            self._opened.update_incremental()
        return self._opened

    def last(self, query: str) -> int | None:
        table = self.table()
        return None if table is None else table.transaction_version(query)

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        folder = self.new_place(batch)
        rows.write.mode("error").partitionBy(*self.partitions).parquet(str(self.path / folder))
        return Staged(folder, rows.schema.json())

    def new_place(self, batch: Batch) -> str:
        """Never a folder that was used before: a table may point to what is in it."""
        return f"data/{batch.name}-{uuid.uuid4()}"

    def folder(self, place: str, hour: Hour) -> Path:
        return self.path / place / f"date={hour[0]}" / f"hour={hour[1]}"

    def commit(self, staged: Staged, batch: Batch, said: Mapping[str, Any] | None = None) -> None:
        deltalake = delta_lake()
        from deltalake.transaction import CommitProperties, Transaction

        schema = deltalake.Schema.from_json(nullable(staged.schema))
        table = self.table() or deltalake.DeltaTable.create(
            str(self.path), schema, mode="ignore", partition_by=self.partitions
        )
        table.create_write_transaction(
            [self._added(file) for file in sorted((self.path / staged.place).rglob("part-*.parquet"))],
            "append",
            schema,
            self.partitions,
            commit_properties=CommitProperties(
                custom_metadata={"batch": kept_of(batch, said)},
                app_transactions=[Transaction(batch.query, batch.number)],
            ),
        )

    def progress(self) -> Iterator[dict[str, Any]]:
        table = self.table()
        for commit in reversed(table.history() if table else []):
            if "batch" in commit:
                yield json.loads(commit["batch"])

    def read(self, session: SparkSession, columns: Iterable[Column]) -> DataFrame:
        """Partition columns come from the paths: files of several folders have no base for Spark."""
        files = self.files()
        if not files:
            return session.createDataFrame([], ddl(columns))
        return read_files(session, files, list(columns), self.partitions)

    def files(self) -> list[Path]:
        table = self.table()
        return [Path(uri) for uri in table.file_uris()] if table else []

    def hours(self) -> dict[Hour, frozenset[str]]:
        return by_hour((hour_in(file), file.name) for file in self.files())

    def done(self) -> dict[str, int]:
        kept = list(self.progress())
        return {each["query"][:8]: self.last(each["query"]) or 0 for each in kept}

    def tidy(self, done: Mapping[str, int], beyond: str = "false") -> None:
        """Files that no commit took, or that compaction replaced, go once they are older than a week."""
        if table := self.table():
            if beyond != "false":
                table.delete(beyond)
            table.vacuum(dry_run=False, full=True)

    def _added(self, file: Path) -> Any:
        from deltalake.transaction import AddAction

        parts = [part.partition("=") for part in file.relative_to(self.path).parts[:-1]]
        values = {name: value for name, sign, value in parts if sign and name in self.partitions}
        stat = file.stat()
        return AddAction(
            str(file.relative_to(self.path)),
            stat.st_size,
            {
                name: None if value == "__HIVE_DEFAULT_PARTITION__" else value
                for name, value in values.items()
            },
            stat.st_mtime_ns // 1_000_000,
            True,
            statistics(file),
        )


def read_files(
    session: SparkSession, files: Iterable[Path], columns: Sequence[Column], partitions: Iterable[str]
) -> DataFrame:
    """*columns* of Parquet files in any folders; those of *partitions* are in the names of the folders."""
    inside = ddl(column for column in columns if column.name not in partitions)
    found = session.read.schema(inside).option("recursiveFileLookup", "true").parquet(*map(str, files))
    for column in columns:
        if column.name in partitions:
            value = F.regexp_extract(F.col("_metadata.file_path"), rf"/{column.name}=([^/]*)/", 1)
            found = found.withColumn(column.name, value.cast(column.type))
    return found.select(*[column.name for column in columns])


def delta_lake() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise Refused("--table delta needs deltalake: pip install 'pybroker[delta]'") from error
    return deltalake


def kept_of(batch: Batch, said: Mapping[str, Any] | None) -> str:
    return json.dumps({"query": batch.query, "batch": batch.number, "end": batch.end, **(said or {})})


def by_hour(found: Iterable[tuple[Hour, str]]) -> dict[Hour, frozenset[str]]:
    hours: dict[Hour, set[str]] = {}
    for hour, name in found:
        hours.setdefault(hour, set()).add(name)
    return {hour: frozenset(names) for hour, names in hours.items()}


def hour_in(path: Path) -> Hour:
    """Date and hour of a path with `date=` and `hour=` in it."""
    parts = dict(part.split("=", 1) for part in path.parts if "=" in part)
    return parts["date"], int(parts["hour"])


def nullable(schema: str) -> str:
    """Columns of a Delta table may be null, or its next writer must prove that none is."""
    fields = StructType.fromJson(json.loads(schema)).fields
    return StructType([type(field)(field.name, field.dataType, True) for field in fields]).json()


def statistics(file: Path) -> str:
    """Of a Parquet file, for Delta: rows, and the least and greatest of what is short and has an order."""
    from pyarrow import parquet

    found = parquet.ParquetFile(file).metadata
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for n in range(found.num_columns):
        groups = [found.row_group(group).column(n) for group in range(found.num_row_groups)]
        name, known = groups[0].path_in_schema if groups else "", [each.statistics for each in groups]
        if "." in name or not known or not all(each and each.has_min_max for each in known):
            continue
        low, high = min(each.min for each in known), max(each.max for each in known)
        if isinstance(low, int | str) and not isinstance(low, bool) and len(str(low) + str(high)) <= 256:
            least[name], greatest[name] = low, high
    return json.dumps({"numRecords": found.num_rows, "minValues": least, "maxValues": greatest})


TABLES = {kind.layout: kind for kind in (ParquetTable, DeltaLakeTable)}


def open_table(
    out: Path, name: str, layout: str | None = None, partitions: Iterable[str] = PARTITIONS
) -> Table:
    """The table OUT/<name>. Without *layout*: the one that it has, or parquet. Raises Refused."""
    there = next((kind.layout for kind in TABLES.values() if kind(out, name, partitions).exists()), None)
    if layout and there and layout != there:
        raise Refused(
            f"{out / name} is a {there} table, --table {layout} asks for another: choose a new --out"
        )
    return TABLES[layout or there or "parquet"](out, name, partitions)


def bronze(session: SparkSession, out: Path, kind: str) -> DataFrame:
    """All of bronze/<kind>; no rows where nothing was ingested yet."""
    return open_table(out, f"bronze/{kind}").read(session, bronze_columns(kind))


def quarantine_lines(session: SparkSession, out: Path) -> DataFrame:
    return open_table(out, "quarantine/lines").read(session, QUARANTINE_LINES)


def log_gaps(session: SparkSession, out: Path) -> DataFrame:
    return open_table(out, "log_gaps", partitions=()).read(session, LOG_GAPS)
