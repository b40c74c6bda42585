"""`spark.ingest` in one session: rows, quarantine, gaps, what is refused, what is printed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark import ingest
from spark.schema import KINDS
from spark.session import Ending
from spark.tables import LAYOUTS, bronze, log_gaps, open_table, quarantine_lines
from tests.hook.log.golden import GOLDEN
from tests.spark import jvm
from tests.spark.ingesting import Ingest
from tests.spark.logs import AT, EPOCH, NODE, at, closed, opened
from tests.spark.test_rows import expected, flip


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ingest:
    return Ingest(spark, tmp_path, capsys)


def offsets(job: Ingest) -> list[int]:
    return sorted(row.offset for row in bronze(job.spark, job.out, "messages").select("offset").collect())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_golden_to_bronze(job: Ingest, layout: str) -> None:
    shutil.copytree(GOLDEN, job.log)
    assert job.run("--table", layout, kind="both") == 0
    assert {line["kind"]: (line["rows"], line["bad"]) for line in job.batches} == {
        "messages": (11, 0),
        "events": (16, 0),
    }
    for kind in ("messages", "events"):
        found = bronze(job.spark, job.out, kind).withColumn("received_at", F.unix_micros("received_at"))
        rows = [row.asDict(recursive=True) for row in found.orderBy("offset").collect()]
        wanted = expected(kind)
        assert [{name: row[name] for name in want} for row, want in zip(rows, wanted, strict=True)] == wanted
        assert all(row["ingested_at"] and row["segment"] and row["hour"] in (22, 23) for row in rows)
    messages = bronze(job.spark, job.out, "messages").orderBy("offset").collect()
    assert messages[0].levels == ["sensors", "1", "temperature"] and messages[0].size == 4
    assert messages[4].size == 5000 and len(messages[4].payload) == 13
    assert job.run("--table", layout, kind="both") == 0
    assert not [line for line in job.batches if line["rows"]], "nothing is read again"


def test_batches_say_what_they_did(job: Ingest) -> None:
    closed(job.log, 0, 30)
    opened(job.log, 30, 5)
    assert job.run("--max-records", "20", "--tail") == 0
    assert [(line["batch"], line["rows"], line["start"], line["end"]) for line in job.batches] == [
        (0, 20, at(0), at(20)),
        (1, 15, at(20), at(35)),
    ]
    assert all(line["age"] > 0 and line["seconds"] > 0 for line in job.batches)
    assert "messages batch 1: 15 rows in" in job.said
    assert offsets(job) == [*range(35)]


def test_retention_is_told_of_the_last_batch_too(job: Ingest) -> None:
    closed(job.log, 0, 30)
    assert job.run("--consumer", "lake") == 0
    said = json.loads((job.log / "v1" / "consumers" / "lake-messages.json").read_text())
    assert said == {"kind": "messages", "offsets": at(30)}


def test_from_and_until_a_time(job: Ingest) -> None:
    closed(job.log, 0, 30)
    assert job.run("--from", "@2023-11-14T22:13:20.010Z", "--until", "2023-11-14T22:13:20.020") == 0
    assert offsets(job) == [*range(10, 20)]


def rot_gzip(log: Path, node: str) -> None:
    place = closed(log, 0, 3000, gz=True, node=node)
    data = bytearray(place.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    place.write_bytes(data)


def truncate_gzip(log: Path, node: str) -> None:
    place = closed(log, 0, 3000, gz=True, node=node)
    place.write_bytes(place.read_bytes()[:-2000])


def flip_bit(log: Path, node: str) -> None:
    flip(closed(log, 0, 3000, node=node), 100)


def garbage_at_the_end(log: Path, node: str) -> None:
    place = closed(log, 0, 3000, node=node)
    place.write_bytes(place.read_bytes() + b"\0" * 100)


def torn_line_of_an_open_segment(log: Path, node: str) -> None:
    with open(opened(log, 0, 3000, node=node).path, "ab") as file:
        file.write(b'{"o":3000,"ts":17')


def twice_and_overlapping(log: Path, node: str) -> None:
    place = closed(log, 0, 2000, node=node)
    (place.parents[1] / "hour=01").mkdir()
    shutil.copy(place, place.parents[1] / "hour=01" / place.name)
    closed(log, 1000, 2000, node=node)


def foreign_files(log: Path, node: str) -> None:
    place = closed(log, 0, 3000, node=node)
    (place.parent / f".{place.name}").write_bytes(b"x")
    (place.parent / "readme.txt").write_bytes(b"x")


def clock_set_back(log: Path, node: str) -> None:
    closed(log, 0, 1000, node=node)
    closed(log, 1000, 1000, at=AT - 7_200_000_000, node=node)
    closed(log, 2000, 1000, at=AT + 7_200_000_000, node=node)


QUARANTINE = [  # what is done to a log of 3000 records; rows in bronze, in quarantine
    (rot_gzip, None, 1),
    (truncate_gzip, None, 1),
    (flip_bit, 2999, 1),
    (garbage_at_the_end, 3000, 1),
    (torn_line_of_an_open_segment, 3000, 0),
    (twice_and_overlapping, 3000, 0),
    (foreign_files, 3000, 0),
    (clock_set_back, 3000, 0),
]


@pytest.fixture(scope="module")
def quarantined(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run over all cases, each a node of its own; where its tables are."""
    root = tmp_path_factory.mktemp("quarantine")
    for make, _, _ in QUARANTINE:
        make(root / "log", make.__name__)
    where = ["--log", str(root / "log"), "--out", str(root / "out")]
    chosen = ingest.parser().parse_args([*where, "--kind", "messages", "--once", "--tail"])
    assert ingest.run(chosen, spark) == 0
    return root / "out"


@pytest.mark.parametrize(("make", "rows", "bad"), QUARANTINE, ids=[case[0].__name__ for case in QUARANTINE])
def test_quarantine(spark: SparkSession, quarantined: Path, make, rows: int | None, bad: int) -> None:
    of_node = f"node = '{make.__name__}'"
    found = bronze(spark, quarantined, "messages").where(of_node).select("offset").collect()
    lines = quarantine_lines(spark, quarantined).where(of_node).collect()
    assert len(lines) == bad
    assert rows is None or len(found) == rows
    assert len({row.offset for row in found}) == len(found)
    assert len(found) + sum(line.lost for line in lines) == 3000
    assert all(line.kind == "messages" and line.segment and line.bad for line in lines)


def test_what_is_read_again_for_quarantine_leaves_no_files(quarantined: Path) -> None:
    assert not [*open_table(quarantined, "bronze/messages").incoming.iterdir()]


def test_a_missing_segment_fails_and_is_counted_where_that_is_allowed(job: Ingest) -> None:
    closed(job.log, 0, 10)
    closed(job.log, 20, 10)
    text = f"gap: node {NODE} epoch {EPOCH} wants offset 10, next segment starts at 20"
    assert job.run() == 1 and text in job.said
    assert job.run("--allow-loss") == 0
    (gap,) = log_gaps(job.spark, job.out).collect()
    assert (gap.kind, gap.offset, gap.lost, gap.bad) == ("messages", 10, 10, text)
    assert offsets(job) == [*range(10), *range(20, 30)]
    assert quarantine_lines(job.spark, job.out).count() == 0


def test_a_log_that_was_wiped(job: Ingest) -> None:
    closed(job.log, 0, 10)
    assert job.run() == 0
    shutil.rmtree(job.log)
    closed(job.log, 0, 5, epoch=EPOCH + 1)
    assert job.run() == 1 and f"data loss: node {NODE} epoch {EPOCH} was read to offset 10" in job.said
    assert job.run("--allow-loss") == 0
    assert bronze(job.spark, job.out, "messages").count() == 15
    assert log_gaps(job.spark, job.out).count() == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoint_lost(job: Ingest, layout: str) -> None:
    closed(job.log, 0, 10)
    closed(job.log, 10, 10)
    assert job.run("--table", layout, "--max-records", "8") == 0
    shutil.rmtree(job.out / "_checkpoints")
    assert job.run() == 2 and "--resume-from-table goes on where the table ends" in job.said
    closed(job.log, 20, 10)
    table = open_table(job.out, "bronze/messages")
    left = table.read(job.spark, ingest.bronze_columns("messages"))
    table.stage(left.drop("batch"), ingest.Batch("99999999-0000", 7))  # a batch that was killed
    assert job.run("--resume-from-table") == 0
    assert job.batches[0]["start"] == at(20) and offsets(job) == [*range(30)]
    assert job.run() == 0 and offsets(job) == [*range(30)]


def test_a_checkpoint_older_than_the_table_is_refused(job: Ingest) -> None:
    closed(job.log, 0, 10)
    assert job.run() == 0
    shutil.copytree(job.out / "_checkpoints", job.log.parent / "saved")
    closed(job.log, 10, 10)
    assert job.run() == 0
    shutil.rmtree(job.out / "_checkpoints")
    (job.log.parent / "saved").rename(job.out / "_checkpoints")
    assert job.run() == 2 and "is older than the table: it planned batch 0, the table has batch 1" in job.said


def test_a_table_older_than_the_checkpoint_is_refused(job: Ingest) -> None:
    closed(job.log, 0, 10)
    assert job.run() == 0
    shutil.copytree(job.out / "bronze", job.log.parent / "saved")
    closed(job.log, 10, 10)
    assert job.run() == 0
    shutil.rmtree(job.out / "bronze")
    assert job.run() == 2 and "batch 1 is done there, and the table has no batch of it" in job.said
    (job.log.parent / "saved").rename(job.out / "bronze")
    assert job.run() == 2 and "and the table has batch 0. Remove the checkpoint" in job.said
    shutil.rmtree(job.out / "_checkpoints")
    assert job.run("--resume-from-table") == 0 and offsets(job) == [*range(20)]


def test_a_checkpoint_without_a_batch_is_new(job: Ingest) -> None:
    """As a job leaves it that resumed from the table and was killed before Spark had planned anything."""
    closed(job.log, 0, 10)
    assert job.run() == 0
    checkpoint = job.out / "_checkpoints" / "ingest-messages"
    for left in ("offsets", "commits"):
        shutil.rmtree(checkpoint / left)
    assert job.run() == 2 and "is older than the table: it planned batch None" in job.said
    (checkpoint / "metadata").write_text(json.dumps({"id": "0badcafe-0000-0000-0000-000000000000"}))
    assert job.run() == 2 and "has rows, but" in job.said
    closed(job.log, 10, 10)
    assert job.run("--resume-from-table") == 0 and offsets(job) == [*range(20)]


def failing(self: object, rows: object, number: int) -> None:
    raise RuntimeError("as the test wants it")


def test_a_first_batch_that_is_done_again_begins_where_it_did(job: Ingest, monkeypatch) -> None:
    closed(job.log, 0, 10)
    start = ingest.Job.start

    def while_something_comes(self: ingest.Job, *about):
        closed(job.log, 10, 10)
        return start(self, *about)

    with monkeypatch.context() as patch:
        patch.setattr(ingest.Job, "start", while_something_comes)
        patch.setattr(ingest.Job, "batch", failing)
        assert job.run("--from", "latest", "--consumer", "lake") == 3
    said = job.log / "v1" / "consumers" / "lake-messages.json"
    assert json.loads(said.read_text())["offsets"] == at(10), "retention waits from the start"
    closed(job.log, 20, 10)
    assert job.run("--from", "latest") == 0
    assert [line["start"] for line in job.batches] == [at(10), at(20)]
    assert offsets(job) == [*range(10, 30)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("done", [0, 10])
def test_quarantine_of_a_batch_that_was_killed_is_there_once(
    job: Ingest, monkeypatch, layout: str, done: int
) -> None:
    """Killed between the two commits; then the checkpoint is lost."""
    if done:
        flip(closed(job.log, 0, done), 4)
        assert job.run("--table", layout) == 0
    flip(closed(job.log, done, 10), done + 5)
    with monkeypatch.context() as patch:
        patch.setattr(type(open_table(job.out, "x", layout)), "commit", commit_but_bronze)
        assert job.run("--table", layout) == 3
    assert quarantine_lines(job.spark, job.out).count() == (2 if done else 1)
    shutil.rmtree(job.out / "_checkpoints")
    assert job.run("--table", layout, "--resume-from-table") == 0
    bad = sorted(row.offset for row in quarantine_lines(job.spark, job.out).collect())
    assert bad == ([4, 15] if done else [5])
    assert sorted([*offsets(job), *bad]) == [*range(done + 10)]


COMMITS = {layout: type(open_table(Path(), "x", layout)).commit for layout in LAYOUTS}


def commit_but_bronze(self, *about) -> None:
    if self.name.startswith("bronze"):
        raise RuntimeError("as the test wants it")
    COMMITS[self.layout](self, *about)


def test_files_as_a_source(job: Ingest) -> None:
    place = closed(job.log, 0, 10)
    (place.parents[1] / "hour=01").mkdir()
    shutil.copy(place, place.parents[1] / "hour=01" / place.name)
    closed(job.log, 10, 10, gz=True)
    assert job.run("--source", "files") == 0
    assert offsets(job) == [*range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_workers_write_what_spark_would(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """The two ways to bronze have the same columns, types and rows."""
    found = []
    for source in ("mqttlog", "files"):
        job = Ingest(spark, tmp_path / source, capsys)
        shutil.copytree(GOLDEN, job.log)
        assert job.run("--source", source, kind=kind) == 0
        table = bronze(spark, job.out, kind)
        files = open_table(job.out, f"bronze/{kind}").files()
        schemas = {str(spark.read.parquet(str(file)).schema) for file in files}
        rows = [row.asDict(recursive=True) for row in table.collect()]
        told = [{**row, "ingested_at": None, "batch": None} for row in rows]
        found.append((table.dtypes, schemas, sorted(told, key=str)))
        assert len({row["ingested_at"] for row in rows}) == 1 and rows[0]["ingested_at"]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--max-records", "0"], 2, "--max-records wants a number above 0"),
        (["--conf", "x"], 2, "KEY=VALUE"),
        (["--from", "yesterday"], 2, "option startingOffsets is 'yesterday', and wants earliest"),
        (["--from", "@noon"], 2, "option startingTimestamp is 'noon', and wants a time such as"),
        (["--source", "files", "--tail"], 2, "--source files reads whole segments"),
    ],
)
def test_wrong_usage_is_said(tmp_path: Path, capsys, more: list[str], code: int, message: str) -> None:
    closed(tmp_path, 0, 1)
    where = ["--log", str(tmp_path), "--out", str(tmp_path / "out")]
    assert ingest.main([*where, "--once", *more]) == code
    assert message in capsys.readouterr().err


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path, capsys) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert ingest.main(["--log", str(tmp_path / "none"), *out]) == 3
    assert ingest.main(["--log", str(tmp_path), *out]) == 3
    assert "is no message log: it has no folder v1" in capsys.readouterr().err
    (tmp_path / "v2" / "closed").mkdir(parents=True)
    assert ingest.main(["--log", str(tmp_path), *out]) == 3
    assert "a layout newer than v1" in capsys.readouterr().err


def test_two_jobs_on_one_checkpoint_are_refused(tmp_path: Path) -> None:
    other = pytest.raises(ingest.Refused, match="another job")
    with ingest.alone(tmp_path / "c"), other, ingest.alone(tmp_path / "c"):
        pass


def test_a_job_that_is_asked_to_end_refuses_the_next_batch(job: Ingest, monkeypatch) -> None:
    closed(job.log, 0, 30)
    announce = ingest.Job._announce

    def then_end(self, *about) -> None:
        announce(self, *about)
        self.ending.ask()

    monkeypatch.setattr(ingest.Job, "_announce", then_end)
    assert job.run("--max-records", "10") == 0 and len(job.batches) == 1
    assert offsets(job) == [*range(10)] and not Ending()
    monkeypatch.setattr(ingest.Job, "_announce", announce)
    assert job.run() == 0 and offsets(job) == [*range(30)]


@pytest.mark.parametrize("source", ["mqttlog", "files"])
def test_the_code_of_a_batch_is_compiled_once(
    job: Ingest, spark: SparkSession, monkeypatch, source: str
) -> None:
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts: list[int] = []
    announce = ingest.Job._announce

    def note(self, *about) -> None:
        counts.append(compiled.getCount())
        announce(self, *about)

    monkeypatch.setattr(ingest.Job, "_announce", note)
    with jvm.compiled(spark):
        for first in (0, 10, 20):
            closed(job.log, first, 10)
            assert job.run("--source", source) == 0
    assert len(counts) == 3 and counts[0] > 0 and counts[1] == counts[2]
    rows = bronze(job.spark, job.out, "messages").select("ingested_at").distinct()
    assert rows.count() == 3, "though each has a time of its own"
