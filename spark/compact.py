"""`python -m spark.compact`: hours of small files are rewritten as files of about 128 MiB.

One JSON line for each hour on stdout: table, date, hour, files before and after, rows, bytes, seconds. Exit
codes: 0 done, 1 an hour did not have as many rows afterwards as before and was left as it is, 2 usage or
another run at work, 3 there is no such folder.

Only hours that ended before --after are looked at, and of them only what no job writes any more: the newest
batch of a query may be done again. A job may write into the same hour meanwhile; a batch that comes late is
a file of its own until the next run.

parquet: the rows are written into a hidden folder of the hour, then `_swap.json` says which folders it
replaces: from that moment on they count, and whatever is killed, the next reader or run finishes the swap
(spark.tables). A job that was reading the old files when they went fails, and is right when it runs again.
delta: `optimize.compact`; old files go by vacuum after a week, for those who still read them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import fcntl
import json
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from spark.session import DONE, LOSS, UNREADABLE, Refused, build, carried_out, crash_point, pairs
from spark.tables import (
    BATCH_FOLDER,
    DeltaLakeTable,
    Hour,
    ParquetTable,
    Table,
    hidden,
    hour_in,
    locked,
    settle,
    swap,
)

TARGET = 128 << 20  # bytes of a file, about
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# What rows are sorted by within a file, as far as a table has it: statistics then prune queries by topic.
ORDER = ("topic", "client_id", "node", "epoch", "offset")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    return carried_out("spark.compact", lambda: run(chosen))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="spark.compact", description="Small files of a table -> large ones.")
    add = made.add_argument
    add("--out", type=Path, required=True, help="folder of the tables")
    add("--after", default="2h", metavar="TIME", help="leave hours alone until then; 90s, 30m, 2h, 1d")
    add("--dry-run", action="store_true", help="say what would be done")
    add("--master", help="default: local[2]")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark; may be given again")
    return made


def run(chosen: argparse.Namespace) -> int:
    ended_before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds_of(chosen.after))
    if not chosen.out.is_dir():
        raise Refused(f"--out {chosen.out}: there is no such folder; spark.ingest makes it", UNREADABLE)
    if chosen.dry_run:
        return go(chosen, ended_before)
    with (chosen.out / "_compact.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"--out {chosen.out}: another spark.compact is at work") from None
        return go(chosen, ended_before)


def go(chosen: argparse.Namespace, ended_before: dt.datetime) -> int:
    code, session = DONE, None
    for table in tables_below(chosen.out):
        if isinstance(table, ParquetTable) and not chosen.dry_run:
            tidy(table.path)
        for work in plan(table, ended_before):
            if chosen.dry_run:
                tell(work, would=True)
                continue
            if isinstance(table, ParquetTable):
                session = session or build("spark.compact", chosen.master, pairs(chosen.conf))
            if not compact(session, table, work):
                code = LOSS
    if session is not None:
        session.stop()
    return code


def seconds_of(text: str) -> float:
    """Of `2h`. Raises Refused."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if not found:
        raise Refused(f"--after {text!r} is no time: write 90s, 30m, 2h or 1d")
    return int(found[1]) * UNITS[found[2]]


# ---- what there is to do


class Work(NamedTuple):
    """One hour of one table."""

    table: Table
    hour: Hour
    folders: list[Path]  # parquet: those that become one
    files: int
    size: int  # bytes

    @property
    def wanted(self) -> int:
        """Files."""
        return max(1, round(self.size / TARGET))


def tables_below(out: Path) -> Iterator[Table]:
    """Every table in either layout that is partitioned by hour, in the order of their names."""
    marks = {"_progress": ParquetTable, "_delta_log": DeltaLakeTable}
    found = [(mark.parent, kind) for name, kind in marks.items() for mark in out.glob(f"**/{name}")]
    for path, kind in sorted(found, key=lambda each: each[0]):
        table: Table = kind(out, str(path.relative_to(out)))
        inside = path.glob("date=*/hour=*") if kind is ParquetTable else path.glob("**/date=*/hour=*")
        if any(inside):
            yield table


def plan(table: Table, ended_before: dt.datetime) -> list[Work]:
    """The hours of *table* that are worth it, oldest first."""
    made = parquet_work(table) if isinstance(table, ParquetTable) else delta_work(table)
    return [each for each in sorted(made, key=lambda each: each.hour) if has_ended(each.hour, ended_before)]


def has_ended(hour: Hour, before: dt.datetime) -> bool:
    date, number = hour
    begun = dt.datetime.fromisoformat(date).replace(hour=number, tzinfo=dt.UTC)
    return begun + dt.timedelta(hours=1) <= before


def parquet_work(table: ParquetTable) -> Iterator[Work]:
    settle(table.path)
    hours: dict[Hour, list[Path]] = {}
    for folder in sorted(table.folders()):
        if has_hour(folder) and is_settled(table, folder):
            hours.setdefault(hour_in(folder), []).append(folder)
    for hour, folders in hours.items():
        files = [file for folder in folders for file in folder.glob("*.parquet")]
        work = Work(table, hour, folders, len(files), sum(file.stat().st_size for file in files))
        if len(folders) > 1 or work.files > work.wanted:
            yield work


def delta_work(table: Table) -> Iterator[Work]:
    found = table.table() if isinstance(table, DeltaLakeTable) else None
    hours: dict[Hour, list[int]] = {}
    for uri in found.file_uris() if found else []:
        if has_hour(file := Path(uri)):
            hours.setdefault(hour_in(file), []).append(file.stat().st_size)
    for hour, sizes in hours.items():
        work = Work(table, hour, [], len(sizes), sum(sizes))
        if work.files > work.wanted:
            yield work


def has_hour(path: Path) -> bool:
    """Not the folder of rows without a time."""
    return "__HIVE_DEFAULT_PARTITION__" not in str(path)


def is_settled(table: ParquetTable, folder: Path) -> bool:
    """Whether no job will write the batch of *folder* again: a later one of its query is done."""
    found = BATCH_FOLDER.fullmatch(folder.name)
    if found is None:
        return folder.name.startswith("batch=c")  # ours
    last = table.last(found[1])
    return last is not None and int(found[2]) < last


# ---- doing it


def compact(session: SparkSession | None, table: Table, work: Work) -> bool:
    """False, and nothing changed, if rows would be lost or won."""
    began = time.monotonic()
    if session is None or not isinstance(table, ParquetTable):
        files, rows = compact_delta(table, work), None
    else:
        stage = rewrite(session, work)
        before, rows = count_rows(work.folders), count_rows([stage])
        if before != rows:
            shutil.rmtree(stage)
            where = f"{table.name} {work.hour[0]} {work.hour[1]:02}"
            print(f"spark.compact: {where}: {before} rows became {rows}; left as it is", file=sys.stderr)
            return False
        crash_point("after write")
        with locked(table.path):
            swap(table.path, stage, work.folders)
        files = len(list(shown(stage).glob("*.parquet")))
    said = {} if rows is None else {"rows": rows}
    tell(work, files_after=files, **said, seconds=round(time.monotonic() - began, 3))
    return True


def rewrite(session: SparkSession, work: Work) -> Path:
    """Its rows in a hidden folder beside those that they are from."""
    names = [folder.name.removeprefix("batch=").removeprefix("c") for folder in work.folders]
    first, last = names[0].split("~")[0], names[-1].split("~")[-1].split(".")[0]
    hour = work.folders[0].parent
    stage = hidden(hour / f"batch=c{first}~{last}.{uuid.uuid4().hex[:8]}")
    crash_point("before write")
    rows = session.read.option("mergeSchema", "true").parquet(*map(str, work.folders))
    arranged(rows, work.wanted).write.parquet(str(stage))
    return stage


def arranged(rows: DataFrame, files: int) -> DataFrame:
    order = [name for name in ORDER if name in rows.columns]
    if not order:
        return rows.coalesce(files)
    spread = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *order)
    return spread.sortWithinPartitions(*order)


def shown(stage: Path) -> Path:
    """Where the hidden folder *stage* is to be seen."""
    return stage.with_name(stage.name.removeprefix("."))


def count_rows(folders: Sequence[Path]) -> int:
    """As the footers of the files say."""
    from pyarrow import parquet

    files = [file for folder in folders for file in folder.glob("*.parquet")]
    return sum(parquet.ParquetFile(file).metadata.num_rows for file in files)


def compact_delta(table: Table, work: Work) -> int:
    """In one transaction; how many files the hour has then."""
    assert isinstance(table, DeltaLakeTable)
    delta = table.table()
    assert delta is not None
    date, hour = work.hour
    filters = [("date", "=", date), ("hour", "=", str(hour))]
    delta.optimize.compact(partition_filters=filters, target_size=TARGET)
    return sum(hour_in(Path(uri)) == work.hour for uri in delta.file_uris() if has_hour(Path(uri)))


def tidy(path: Path) -> None:
    """Finish the swap of a run that was killed, and remove what one left that was killed before its swap."""
    with locked(path):
        settle(path, alone=True)
        for folder in path.glob("date=*/hour=*/.batch=c*"):
            shutil.rmtree(folder)


def tell(work: Work, would: bool = False, **said: Any) -> None:
    date, hour = work.hour
    line: dict[str, Any] = {"table": work.table.name, "date": date, "hour": hour, "files": work.files}
    line |= {"bytes": work.size, **({"wanted": work.wanted, "dry_run": True} if would else said)}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
