"""`mqttlog` in Spark: the same rows as every other reader has, filters by name, workers anywhere."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.ingest import read_files
from spark.log.workers import settle_in
from spark.schema import BINARY, KINDS, PLACE
from spark.source import register
from tests.hook.log.golden import GOLDEN
from tests.spark.logs import AT, EPOCH, NODE, closed, opened, read_all
from tests.spark.test_rows import flip

ROOT = Path(__file__).parents[2]
ORDER = ["node", "epoch", "offset"]


def load(spark: SparkSession, root: Path, **options: object) -> DataFrame:
    register(spark)
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("mqttlog").options(path=str(root), **given).load()


def rows(found: DataFrame) -> list[dict]:
    return [row.asDict(recursive=True) for row in found.orderBy(*ORDER).collect()]


def by_json(spark: SparkSession, root: Path, kind: str) -> DataFrame:
    """What anybody reads who knows the table of keys, and no more."""
    columns = (*PLACE[2:], *KINDS[kind])
    plain = {"binary": "string", "boolean": "int", "timestamp": "bigint"}
    schema = ", ".join(f"`{column.key}` {plain.get(column.type, column.type)}" for column in columns)
    found = spark.read.schema(schema).json(str(root / "v1" / "closed" / f"kind={kind}"))
    made = []
    for column in columns:
        value = F.col(f"`{column.key}`")
        if column.name in BINARY:
            value = F.unbase64(value)
        elif column.type == "timestamp":
            value = F.timestamp_micros(value)
        made.append(value.cast(column.type).alias(column.name))
    return found.select(*made).orderBy("offset")


@pytest.mark.parametrize("kind", KINDS)
def test_golden(spark: SparkSession, kind: str) -> None:
    """Read by Python, by `spark.read.json` and by `mqttlog`: equal."""
    names = [column.name for column in (*PLACE[2:], *KINDS[kind])]
    found = load(spark, GOLDEN, kind=kind)
    plain = by_json(spark, GOLDEN, kind).collect()
    assert found.select(*names).orderBy("offset").collect() == plain
    arrow = [{**row, "received_at": row["received_at"].timestamp()} for row in read_all(GOLDEN, kind)]
    seen = rows(found.withColumn("received_at", F.unix_micros("received_at") / 1_000_000))
    assert seen == arrow and len(seen) > 10


def test_what_a_worker_has_imported_is_no_garbage(spark: SparkSession) -> None:
    def frozen(_: int) -> int:
        settle_in()
        return gc.get_freeze_count()

    before = gc.get_freeze_count()
    settle_in()
    assert gc.get_freeze_count() == before, "here is no task"
    (count,) = spark.sparkContext.parallelize([0], 1).map(frozen).collect()
    assert count > 10_000


def test_source_matches_files(spark: SparkSession, tmp_path: Path) -> None:
    """`--source files` has the same columns, types and rows."""
    shutil.copytree(GOLDEN, tmp_path / "log")
    for kind in KINDS:
        stream = read_files(spark, tmp_path / "log", kind, bounded=True)
        name = f"files_{kind}"
        query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
        query.awaitTermination()
        wanted = load(spark, GOLDEN, kind=kind, decode=False)
        found = spark.table(name)
        assert found.dtypes == wanted.dtypes
        assert rows(found) == rows(wanted)


FILTERS = [
    ("date = DATE'2023-11-14' and hour = 23", {23}),
    ("hour in (22, 24)", {22}),
    ("hour > 22", {23}),
    ("hour <= 22 and node = 'n1'", {22}),
    ("date < '2023-11-14'", set()),
    (f"epoch = {EPOCH} and hour is not null", {22, 23}),
    ("node = 'other'", set()),
]


@pytest.mark.parametrize(("condition", "hours"), FILTERS)
def test_filters_drop_segments_by_name(spark: SparkSession, tmp_path: Path, condition: str, hours) -> None:
    closed(tmp_path, 0, 10)
    unread = closed(tmp_path, 10, 10, at=AT + 3_600_000_000)
    if 23 not in hours:
        unread.write_bytes(b"")  # reading it would give a bad row
    found = load(spark, tmp_path).where(condition).select("offset", "hour", "bad").collect()
    assert {row.hour for row in found} == hours and not any(row.bad for row in found)
    assert len(found) == 10 * len(hours)


def test_a_filter_on_something_else_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    closed(tmp_path, 0, 20)
    found = load(spark, tmp_path).where("topic = 't/3' and hour = 22 and date = '2023-11-14'")
    assert [row.offset for row in found.select("offset").collect()] == [3, 10, 17]


def test_batch_offsets_and_tail(spark: SparkSession, tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    opened(tmp_path, 10, 5)
    options = {"startingOffsets": f'{{"{NODE}": {{"e": {EPOCH}, "o": 3}}}}'}
    offsets = [row.offset for row in load(spark, tmp_path, **options).select("offset").collect()]
    assert offsets == [*range(3, 10)]
    options["endingOffsets"] = f'{{"{NODE}": {{"e": {EPOCH}, "o": 12}}}}'
    offsets = [row.offset for row in load(spark, tmp_path, tail=True, **options).select("offset").collect()]
    assert offsets == [*range(3, 12)]


def test_a_rotten_line_and_a_gap_in_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    flip(closed(tmp_path, 0, 10), 5)
    closed(tmp_path, 15, 5)
    with pytest.raises(PySparkException, match="gap: node n1 epoch 1700000000 wants offset 10, next segment"):
        load(spark, tmp_path).count()
    bad = load(spark, tmp_path, failOnDataLoss=False).where("bad is not null").orderBy("offset").collect()
    assert [(row.offset, row.lost, row.segment is None) for row in bad] == [(5, 1, False), (10, 5, True)]


def test_an_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    assert load(spark, tmp_path).count() == 0


def test_what_cannot_be_read_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no message log at"):
        load(spark, tmp_path / "none").count()
    with pytest.raises(PySparkException, match="option kind is 'letters'"):
        load(spark, tmp_path, kind="letters")


FROM_ANOTHER_FOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from spark.session import build
from spark.source import register

def where(_):
    import spark.source
    return spark.source.__file__

session = build("another folder")
register(session)
print(session.read.format("mqttlog").load(sys.argv[2]).count())
print(session.sparkContext.parallelize([1], 1).map(where).collect()[0])
"""


def test_workers_from_another_folder(tmp_path: Path) -> None:
    """The driver found our modules by a path of its own; workers have to find the same ones."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "spark", copy / "spark")
    ours = {"PYTHONPATH", "PYSPARK_PYTHON"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-c", FROM_ANOTHER_FOLDER, str(copy), str(GOLDEN)]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout.split() == ["11", str(copy / "spark" / "source.py")], run.stderr[-2000:]


def test_open_segment_renamed_between_plan_and_read(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has the plan; the writer closes the segment; the tasks read it where it is now."""
    segment = opened(tmp_path, 0, 10)
    found = load(spark, tmp_path, tail=True).select("offset")
    assert found.rdd.getNumPartitions() == 1  # planned: the parts are made
    segment.close()
    assert [row.offset for row in found.collect()] == [*range(10)]
