"""`spark.compact`: what it takes, what it makes of it, and what is there after a kill at each step."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from spark import compact as program
from spark.compact import LOSS, Work, compact, has_ended, main, plan, seconds_of, tables_below, tidy
from spark.schema import Column
from spark.session import ROOT, USAGE, Refused
from spark.tables import Batch, DeltaLakeTable, ParquetTable, open_table, settle

QUERY = "0123abcd-aaaa-bbbb-cccc-0123456789ab"
HOUR = ("2026-11-27", 21)
LATER = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
COLUMNS = (Column("", "topic", "string"), Column("", "offset", "bigint"), Column("", "date", "date"),
           Column("", "hour", "int"))  # fmt: skip


def batch_folder(path: Path, number: int, hour: int = 21, query: str = QUERY, files: int = 1) -> None:
    """What ingest writes: rows numbered from 10 * number on."""
    folder = path / f"date=2026-11-27/hour={hour}/batch={query[:8]}-{number}"
    folder.mkdir(parents=True)
    for file in range(files):
        numbers = range(10 * number + file, 10 * number + 10, files)
        table = pa.table({"topic": [f"t/{-n}" for n in numbers], "offset": list(numbers)})
        parquet.write_table(table, folder / f"part-{file}.parquet")


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    """Batches 0 to 4 have rows in hour 21, 5 in hour 22; 0 to 3 are done."""
    made = ParquetTable(tmp_path / "out", "bronze/messages")
    for number in range(5):
        batch_folder(made.path, number, files=2)
    batch_folder(made.path, 5, hour=22)
    for number in range(4):
        made.commit(stage(number), Batch(QUERY, number))
    return made


def stage(number: int) -> Any:
    from spark.tables import Staged

    return Staged(f"{QUERY[:8]}-{number}", "")


def seen(table: ParquetTable) -> list[int]:
    """The numbers of the rows that a reader finds who respects what the table says of itself."""
    table.hours()  # as a reader does: it looks at the journal
    return offsets(list(table.folders()))


def offsets(folders: list[Path]) -> list[int]:
    files = [file for folder in folders for file in folder.glob("*.parquet")]
    return sorted(n for file in files for n in parquet.read_table(file).column("offset").to_pylist())


def new_folder(table: ParquetTable, work: Work) -> Path:
    """What `rewrite` makes, without Spark."""
    folder = work.folders[0].parent / ".batch=cfirst~last.01234567"
    folder.mkdir()
    whole = pa.concat_tables(
        [parquet.read_table(file) for each in work.folders for file in each.glob("*.parquet")]
    )
    parquet.write_table(whole, folder / "part-0.parquet")
    return folder


# ---- what there is to do


def test_only_what_no_job_writes_any_more(table: ParquetTable) -> None:
    """3 is the last batch that is done: it may be done again. 4 is being written."""
    (work,) = plan(table, LATER)
    assert work.hour == HOUR
    assert [folder.name[-2:] for folder in work.folders] == ["-0", "-1", "-2"]
    assert (work.files, work.wanted) == (6, 1)


def test_hours_have_their_time(table: ParquetTable) -> None:
    end = dt.datetime(2026, 11, 27, 22, tzinfo=dt.UTC)
    assert has_ended(HOUR, end) and not has_ended(HOUR, end - dt.timedelta(seconds=1))
    assert plan(table, end - dt.timedelta(seconds=1)) == []
    assert len(plan(table, end)) == 1


def test_what_is_compact_already_is_left(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path, "t")
    batch_folder(table.path, 0)
    for number in (0, 1):
        table.commit(stage(number), Batch(QUERY, number))
    assert plan(table, LATER) == []
    batch_folder(table.path, 7, query="ffffffff")  # of a query that nobody knows
    assert plan(table, LATER) == []


def test_rows_without_a_time_are_left(table: ParquetTable) -> None:
    (table.path / "date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__/batch=0123abcd-0").mkdir(
        parents=True
    )
    assert len(plan(table, LATER)) == 1


def test_every_table_below(table: ParquetTable, tmp_path: Path) -> None:
    out = tmp_path / "out"
    other = ParquetTable(out, "silver/points")
    batch_folder(other.path, 0)
    other.commit(stage(0), Batch(QUERY, 0))
    ParquetTable(out, "log_gaps", ()).commit(stage(0), Batch(QUERY, 0))  # has no hours
    assert [each.name for each in tables_below(out)] == ["bronze/messages", "silver/points"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400), ("0s", 0)]
)
def test_after(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_words_that_are_no_time_and_folders_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("", "2", "h", "2 hours", "-1h"):
        with pytest.raises(Refused, match="write 90s, 30m, 2h or 1d"):
            seconds_of(text)
    assert main(["--out", str(tmp_path / "nowhere")]) == 3
    assert main(["--out", str(tmp_path), "--after", "soon"]) == USAGE
    assert "spark.ingest makes it" in capsys.readouterr().err


def test_a_dry_run_changes_nothing(
    table: ParquetTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["--out", str(tmp_path / "out"), "--dry-run"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["table"], said["hour"], said["files"], said["wanted"]) == ("bronze/messages", 21, 6, 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_two_runs_at_once(table: ParquetTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    with (tmp_path / "out" / "_compact.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["--out", str(tmp_path / "out")]) == USAGE
    assert "another spark.compact is at work" in capsys.readouterr().err


# ---- kills

POINTS = ("before journal", "after journal", "after one is hidden", "after the new one is shown",
          "after one is removed")  # fmt: skip
SWAP = """
import sys
from pathlib import Path
from spark.tables import locked, swap
path, stage, *old = map(Path, sys.argv[1:])
with locked(path):
    swap(path, stage, old)
"""


def killed(point: str, *command: str) -> int:
    environ = os.environ | {"PYBROKER_CRASH": point, "PYTEST_CURRENT_TEST": "x", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], env=environ, timeout=200, stdout=subprocess.DEVNULL
    ).returncode


@pytest.mark.parametrize("point", POINTS)
def test_compact_kill9(point: str, table: ParquetTable) -> None:
    """At each step of the swap, in a process of its own: rows are there once, whoever looks."""
    before = seen(table)
    assert before == list(range(60))
    (work,) = plan(table, LATER)
    stage = new_folder(table, work)
    paths = [str(each) for each in (table.path, stage, *work.folders)]
    assert killed(point, "-c", SWAP, *paths) == -signal.SIGKILL
    assert seen(table) == before
    tidy(table.path)
    assert seen(table) == before
    assert list(table.path.rglob(".*")) == [] and not (table.path / "_swap.json").exists()
    left = plan(table, LATER)
    assert len(left) == (1 if point == "before journal" else 0)


def test_a_swap_is_finished_by_whoever_reads(table: ParquetTable) -> None:
    (work,) = plan(table, LATER)
    new = new_folder(table, work)
    paths = [str(each) for each in (table.path, new, *work.folders)]
    assert killed("after journal", "-c", SWAP, *paths) == -signal.SIGKILL
    assert (table.path / "_swap.json").exists()
    settle(table.path)
    assert not (table.path / "_swap.json").exists()
    assert (
        sorted(folder.name for folder in work.folders[0].parent.iterdir())[-1] == "batch=cfirst~last.01234567"
    )


@pytest.mark.slow
def test_compact_kill9_whole(table: ParquetTable, tmp_path: Path) -> None:
    """The program itself, killed when it has written and not yet swapped; then once more."""
    before = seen(table)
    command = ("-m", "spark.compact", "--out", str(tmp_path / "out"), "--after", "0s")
    assert killed("after write", *command) == -signal.SIGKILL
    assert len(list(table.path.rglob(".batch=c*"))) == 1
    assert seen(table) == before
    assert killed("never", *command) == 0
    assert seen(table) == before
    assert plan(table, LATER) == []
    assert list(table.path.rglob(".batch*")) == []


# ---- with Spark


def test_an_hour_becomes_one_sorted_file(
    spark: SparkSession, table: ParquetTable, capsys: pytest.CaptureFixture[str]
) -> None:
    before = seen(table)
    (work,) = plan(table, LATER)
    assert compact(spark, table, work)
    said = json.loads(capsys.readouterr().out)
    assert (said["files"], said["files_after"], said["rows"]) == (6, 1, 30)
    assert seen(table) == before
    names = sorted(folder.name for folder in work.folders[0].parent.iterdir())
    assert [name[:14] for name in names] == ["batch=0123abcd", "batch=0123abcd", "batch=c0123abc"]
    (file,) = (work.folders[0].parent / names[-1]).glob("*.parquet")
    topics = parquet.read_table(file).column("topic").to_pylist()
    assert topics == sorted(topics)
    rows = table.read(spark, COLUMNS)
    assert sorted(row.offset for row in rows.collect()) == before
    assert rows.where("hour = 21").count() == 50
    assert plan(table, LATER) == []
    # Batches that come later are taken together with what was compact already.
    for number in (4, 6):
        table.commit(stage(number), Batch(QUERY, number))
    (work,) = plan(table, LATER)
    assert len(work.folders) == 3
    assert compact(spark, table, work)
    assert seen(table) == before


def test_rows_that_would_be_lost_stay(
    spark: SparkSession,
    table: ParquetTable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = seen(table)
    (work,) = plan(table, LATER)
    monkeypatch.setattr(program, "arranged", lambda rows, files: rows.limit(7))
    assert not compact(spark, table, work)
    assert "30 rows became 7; left as it is" in capsys.readouterr().err
    assert seen(table) == before
    assert list(table.path.rglob(".batch*")) == []
    assert LOSS == 1


def test_delta(spark: SparkSession, tmp_path: Path) -> None:
    table: Any = open_table(tmp_path, "bronze/messages", "delta")
    assert isinstance(table, DeltaLakeTable)
    for number in range(3):
        rows = spark.range(10 * number, 10 * number + 10).selectExpr(
            "concat('t/', id) AS topic",
            "id AS offset",
            "DATE'2026-11-27' AS date",
            "CAST(20 + id % 2 AS INT) AS hour",
        )
        table.write(rows.coalesce(1), Batch(QUERY, number))
    works = plan(table, LATER)
    assert [(work.hour[1], work.files) for work in works] == [(20, 3), (21, 3)]
    assert all(compact(None, table, work) for work in works)
    assert plan(table, LATER) == []
    again: Any = open_table(tmp_path, "bronze/messages")
    assert sorted(row.offset for row in again.read(spark, COLUMNS).collect()) == list(range(30))
    assert again.last(QUERY) == 2, "a batch that is done again is still known"
    assert again.read(spark, COLUMNS).where("hour = 21").count() == 15
