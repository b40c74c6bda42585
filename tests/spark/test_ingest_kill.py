"""Whatever is killed and whenever: every record of the log is in bronze once, byte for byte."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark.session import DONE
from spark.tables import LAYOUTS, bronze
from tests.spark.jobs import ingest, writer
from tests.spark.logs import closed, read_all

pytestmark = pytest.mark.slow

SENT = 12_000
BATCH = 2_500
CRASHES = ("before write", "after one is moved", "after staging", "after table commit")


def bronze_is_the_log(spark: SparkSession, folder: Path) -> int:
    """Rows of bronze, after every record of the log was found in it once, and nothing else."""
    logged = {(row["epoch"], row["offset"]): row for row in read_all(folder / "log")}
    found = bronze(spark, folder / "out", "messages")
    counted = found.groupBy("node", "epoch").agg(
        F.count("*").alias("rows"), F.countDistinct("offset").alias("distinct"), F.max("offset").alias("last")
    )
    audit = counted.collect()
    assert all(row.rows == row.distinct == row.last + 1 for row in audit), audit
    rows = found.select("epoch", "offset", "topic", "payload", "client_id", "qos").collect()
    assert len(rows) == len(logged)
    for row in rows:
        said = logged[row.epoch, row.offset]
        assert {name: said[name] for name in row.asDict()} == row.asDict()
    return len(rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ingest_kill9(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    for first in range(0, SENT, SENT // 3):
        closed(tmp_path / "log", first, SENT // 3, gz=bool(first))
    how = ["--table", layout, "--max-records", str(BATCH)]
    for crash in CRASHES:
        with ingest(tmp_path, "--once", *how, crash=crash) as job:
            assert job.end() == -9, job.errors.read_text()[-3000:]
    chance = random.Random(layout)
    for _ in range(2):
        with ingest(tmp_path, "--once", *how) as job:
            job.wait_for(1)
            time.sleep(chance.random() * 1.5)
    with ingest(tmp_path, "--once", *how) as job:
        assert job.end() == DONE, job.errors.read_text()[-3000:]
    assert bronze_is_the_log(spark, tmp_path) == SENT


def test_ingest_while_writing(spark: SparkSession, tmp_path: Path) -> None:
    """A writer and a job that follows it, both killed twice; then SIGTERM, and the rest."""
    chance = random.Random(5)
    (tmp_path / "log" / "v1").mkdir(parents=True)
    follow = ["--tail", "--trigger", "0 seconds", "--max-records", "2000"]
    for _ in range(2):
        with writer(tmp_path, 100_000) as log, ingest(tmp_path, *follow) as job:
            job.wait_for(2)
            time.sleep(chance.random())
            log.kill()
            time.sleep(chance.random())
    with writer(tmp_path, 8_000) as log, ingest(tmp_path, *follow) as job:
        job.wait_for(2)
        assert job.terminate() == DONE, job.errors.read_text()[-3000:]
        assert log.end() == 0, log.errors.read_text()
    with ingest(tmp_path, "--once") as job:
        assert job.end() == DONE, job.errors.read_text()[-3000:]
    assert bronze_is_the_log(spark, tmp_path) > 8_000
