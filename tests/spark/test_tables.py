"""Tables in both layouts: a batch counts once, and what was kept beside it is found again."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark.schema import Column
from spark.session import Refused
from spark.tables import (
    LAYOUTS,
    Batch,
    ParquetTable,
    Staged,
    Table,
    bronze,
    log_gaps,
    open_table,
    quarantine_lines,
)

COLUMNS = [Column("", "n", "bigint"), Column("", "date", "date"), Column("", "hour", "int")]
QUERY = "12345678-aaaa-bbbb-cccc-000000000000"
OTHER = "87654321-aaaa-bbbb-cccc-000000000000"


def some(spark: SparkSession, first: int, count: int, hour: int = 9) -> DataFrame:
    columns = ("id as n", "date'2026-11-27' as date", f"{hour} as hour")
    return spark.range(first, first + count, 1, 2).selectExpr(*columns)


def numbers(spark: SparkSession, table: Table) -> list[int]:
    return sorted(row.n for row in table.read(spark, COLUMNS).collect())


def arrived(table: Table, *numbers: int) -> str:
    """The name of a file with *numbers* that waits to be adopted."""
    table.incoming.mkdir(parents=True, exist_ok=True)
    name = f"part-{uuid.uuid4()}.parquet"
    parquet.write_table(pyarrow.table({"n": numbers}), table.incoming / name)
    return name


# Of COLUMNS, as Spark has it.
SCHEMA = StructType().add("n", "long").add("date", "date").add("hour", "integer").json()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_of_others_are_adopted(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """A batch is killed after it took its files, is done again, and a task has failed each time."""
    table, batch = open_table(tmp_path, "some/table", layout), Batch(QUERY, 0)
    nine, ten = ("2026-11-27", 9), ("2026-11-27", 10)
    for _ in range(2):
        arrived(table, 99)
        files = {nine: [arrived(table, 1, 2), arrived(table, 3)], ten: [arrived(table, 4)]}
        staged = table.adopt(files, batch, SCHEMA)
        assert not [*table.incoming.iterdir()]
    table.commit(staged, batch, {"rows": 4})
    assert numbers(spark, table) == [1, 2, 3, 4] and table.last(QUERY) == 0
    assert {hour for hour, made in table.hours().items() if made} == {nine, ten}
    assert [row.n for row in table.read(spark, COLUMNS).where("hour = 10").collect()] == [4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_try_that_was_killed_while_it_took_files_leaves_nothing(
    spark: SparkSession, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, batch, nine = open_table(tmp_path, "some/table", layout), Batch(QUERY, 0), ("2026-11-27", 9)

    def killed(point: str) -> None:
        raise KeyboardInterrupt(point)

    with monkeypatch.context() as patch:
        patch.setattr("spark.tables.crash_point", killed)
        with pytest.raises(KeyboardInterrupt, match="after one is moved"):
            table.adopt({nine: [arrived(table, 1), arrived(table, 2)]}, batch, SCHEMA)
    assert numbers(spark, table) == [], "no reader sees a part of an hour"
    table.commit(table.adopt({nine: [arrived(table, 1), arrived(table, 2)]}, batch, SCHEMA), batch)
    assert numbers(spark, table) == [1, 2] and not [*table.incoming.iterdir()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_that_is_done_again_counts_once(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    table = open_table(tmp_path, "some/table", layout)
    assert not table.exists() and numbers(spark, table) == [] and table.last(QUERY) is None
    batch = Batch(QUERY, 0, {"n": {"e": 1, "o": 5}})
    table.stage(some(spark, 0, 5), batch)  # killed before the commit
    table.commit(table.stage(some(spark, 0, 5), batch), batch, {"rows": 5})
    assert table.exists() and numbers(spark, table) == [*range(5)]
    table.write(some(spark, 0, 5), batch)  # killed after it
    table.write(some(spark, 5, 5, hour=10), Batch(QUERY, 1, {"n": {"e": 1, "o": 10}}))
    table.write(some(spark, 10, 5, hour=10), Batch(OTHER, 0))
    assert numbers(spark, table) == [*range(15)]
    assert (table.last(QUERY), table.last(OTHER)) == (1, 0)
    kept = [(each["query"], each["batch"], each["end"]) for each in table.progress()]
    assert (QUERY, 1, {"n": {"e": 1, "o": 10}}) in kept and kept[-1] == (OTHER, 0, {})
    assert {hour: len(made) for hour, made in table.hours().items()}.keys() == {
        ("2026-11-27", 9),
        ("2026-11-27", 10),
    }
    again = open_table(tmp_path, "some/table")
    assert again.layout == layout and numbers(spark, again) == [*range(15)]
    hours = again.read(spark, COLUMNS).where("hour = 10 and date = '2026-11-27'")
    assert sorted(row.n for row in hours.collect()) == [*range(5, 15)]


def test_delta_asks_before_it_stages_and_zero_is_a_version(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(tmp_path, "t", "delta")
    table.write(some(spark, 0, 5), Batch(QUERY, 0))
    before = sorted(tmp_path.rglob("*.parquet"))
    assert table.is_done(Batch(QUERY, 0))
    table.write(some(spark, 0, 5), Batch(QUERY, 0))
    assert sorted(tmp_path.rglob("*.parquet")) == before


def test_other_readers_of_delta_see_a_table(spark: SparkSession, tmp_path: Path) -> None:
    table = open_table(tmp_path, "t", "delta")
    table.write(some(spark, 0, 5), Batch(QUERY, 0))
    table.write(some(spark, 5, 5, hour=10), Batch(QUERY, 1))
    other = DeltaTable(str(tmp_path / "t"))
    found = other.to_pyarrow_table()
    assert sorted(found.column("n").to_pylist()) == [*range(10)]
    assert {*found.column("hour").to_pylist()} == {9, 10}
    assert other.count() == 10 and other.metadata().partition_columns == ["date", "hour"]
    other.optimize.compact()
    assert numbers(spark, open_table(tmp_path, "t")) == [*range(10)]


def test_what_a_killed_batch_left_is_removed_before_another_query_begins(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ParquetTable(tmp_path, "t")
    table.write(some(spark, 0, 5), Batch(QUERY, 0))
    table.stage(some(spark, 5, 5), Batch(QUERY, 1))
    table.stage(some(spark, 5, 5), Batch(OTHER, 0))
    assert table.done() == {QUERY[:8]: 0, OTHER[:8]: -1}
    table.tidy({QUERY[:8]: 0})
    assert numbers(spark, table) == [*range(5), *range(5, 10)]
    table.tidy(table.done())
    assert numbers(spark, table) == [*range(5)]


def test_progress_that_goes_while_it_is_read_is_left_out(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path, "t")
    for number in range(3):
        table.commit(Staged(f"{QUERY[:8]}-{number}", ""), Batch(QUERY, number))
    gone = tmp_path / "t" / "_progress" / f"{QUERY[:8]}-0.json"
    gone.unlink()
    gone.symlink_to(tmp_path / "nothing")
    assert [each["batch"] for each in table.progress()] == [1, 2]


def test_a_delta_table_that_was_begun_and_not_made(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    table = open_table(tmp_path, "t", "delta")
    assert table.last(QUERY) is None and not table.exists()
    table.write(some(spark, 0, 5), Batch(QUERY, 0))
    assert numbers(spark, table) == [*range(5)]


def test_another_layout_than_the_table_has_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    open_table(tmp_path, "t", "delta").write(some(spark, 0, 5), Batch(QUERY, 0))
    with pytest.raises(Refused, match="is a delta table, --table parquet asks for another"):
        open_table(tmp_path, "t", "parquet")


def test_tables_that_are_not_there_yet_are_empty(spark: SparkSession, tmp_path: Path) -> None:
    found = [bronze(spark, tmp_path, "messages"), bronze(spark, tmp_path, "events")]
    found += [quarantine_lines(spark, tmp_path), log_gaps(spark, tmp_path)]
    assert [table.count() for table in found] == [0, 0, 0, 0]
    assert {"levels", "size", "date", "hour"} <= {*found[0].columns}
