"""Pieces of the log as files of bronze, without Spark: what is in a file, and what a task says of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from broker.hook.log.line import MessageRecord
from spark.log.files import FOUND, to_bronze, written
from spark.log.listing import Log
from spark.log.plan import Hole, Piece
from spark.log.rows import Rows, arrow_schema, columns_of
from spark.log.workers import ingested_at
from spark.schema import DATA_LOSS, KINDS, bronze_columns
from tests.hook.log.files import write_segments
from tests.hook.log.golden import GOLDEN
from tests.spark.logs import AT, EPOCH, NODE, WHO, closed, read_all, rows_of
from tests.spark.test_rows import flip

NOW = AT + 60_000_000


def read(root: Path, kind: str = "messages", now: int | None = NOW) -> tuple[list[dict[str, Any]], Path]:
    """What tasks say that read all of the log *root*; and the folder where they wrote."""
    into = root.parent / "into"
    into.mkdir(exist_ok=True)
    log, said = Log(str(root), kind), []
    for segment in log.segments():
        piece = Piece(segment, segment.first, segment.last + 1)
        said += rows_of(written(Rows(log).read(piece), kind, str(into), now))
    return said, into


def of_files(said: list[dict[str, Any]], into: Path) -> list[dict[str, Any]]:
    return [row for each in said if each["file"] for row in table(into, each["file"]).to_pylist()]


def table(into: Path, file: str) -> pa.Table:
    return parquet.ParquetFile(into / file).read()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_the_rows_of_the_log(tmp_path: Path, kind: str) -> None:
    (tmp_path / "log").symlink_to(GOLDEN)
    said, into = read(tmp_path / "log", kind)
    wanted = read_all(GOLDEN, kind)
    found = sorted(of_files(said, into), key=lambda row: (row["epoch"], row["offset"]))
    assert len(found) == len(wanted) == sum(each["rows"] for each in said)
    names = [column.name for column in bronze_columns(kind) if column.name not in {"date", "hour"}]
    for row, want in zip(found, wanted, strict=True):
        assert list(row) == names
        topic = want.get("topic")
        added = {"levels": topic and topic.split("/"), "size": row.get("size")}
        known = {**want, **added, "ingested_at": row["ingested_at"]}
        assert row == {name: known[name] for name in names}
        assert row["ingested_at"].timestamp() == NOW / 1e6
    for each in said:
        there = [row for row in wanted if row["segment"] in {r["segment"] for r in of_files([each], into)}]
        assert {(row["date"], row["hour"]) for row in there} == {(each["date"], each["hour"])}
        assert each["newest"] == max(round(row["received_at"].timestamp() * 1e6) for row in there)


def test_size_is_that_of_the_payload_as_it_was_published(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(GOLDEN)
    rows = of_files(*read(tmp_path / "log"))
    for row in rows:
        whole = None if row["payload"] is None else len(row["payload"])
        assert row["size"] == (whole if row["payload_size"] is None else row["payload_size"])
    assert any(row["payload_size"] for row in rows) and any(row["lost"] for row in rows)


def test_rows_are_sorted_by_topic_then_offset_and_pages_tell_their_bounds(tmp_path: Path) -> None:
    closed(tmp_path / "log", 0, 50)
    (said,), into = read(tmp_path / "log")
    rows = of_files([said], into)
    order = [(row["topic"], row["offset"]) for row in rows]
    assert order == sorted(order) and len(set(order)) == 50
    group = parquet.ParquetFile(into / said["file"]).metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    assert all(column.has_column_index and column.compression == "ZSTD" for column in columns)
    (topic,) = [column.statistics for column in columns if column.path_in_schema == "topic"]
    assert (topic.min, topic.max) == ("t/0", "t/6")


def test_what_is_bad_is_said_and_the_rest_is_written(tmp_path: Path) -> None:
    flip(closed(tmp_path / "log", 0, 10), 4)
    (bad, said), into = read(tmp_path / "log")
    assert (bad["offset"], bad["lost"], bad["rows"], bad["file"]) == (4, 1, None, None)
    assert bad["bad"].startswith("not a sound line: ") and bad["hour"] == said["hour"]
    assert (said["rows"], said["bad_lines"], said["gaps"], said["bad"]) == (9, 1, 0, None)
    assert sorted(row["offset"] for row in of_files([said], into)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_hole_is_a_gap_and_no_file(tmp_path: Path) -> None:
    rows = Rows(Log(str(tmp_path), "messages"))
    hole = rows.hole(Hole(NODE, EPOCH, 5, 8, f"{DATA_LOSS}gone"))
    bad, said = rows_of(written([hole], "messages", str(tmp_path), NOW))
    assert (bad["offset"], bad["lost"], bad["bad"]) == (5, 3, f"{DATA_LOSS}gone")
    assert (said["rows"], said["bad_lines"], said["gaps"], said["file"]) == (0, 0, 1, None)
    assert not [*tmp_path.iterdir()]


def test_without_a_time_nothing_is_written_and_only_what_is_bad_is_said(tmp_path: Path) -> None:
    flip(closed(tmp_path / "log", 0, 10), 4)
    (bad,), into = read(tmp_path / "log", now=None)
    assert bad["offset"] == 4 and not [*into.iterdir()]


def test_a_second_try_writes_a_file_of_its_own(tmp_path: Path) -> None:
    closed(tmp_path / "log", 0, 10)
    (first,), into = read(tmp_path / "log")
    (second,), _ = read(tmp_path / "log")
    assert first["file"] != second["file"]
    assert {path.name for path in into.iterdir()} == {first["file"], second["file"]}
    assert of_files([first], into) == of_files([second], into)


def test_a_task_that_was_told_nothing_refuses() -> None:
    with pytest.raises(RuntimeError, match=r"mqttlog-files is read by spark\.ingest alone"):
        ingested_at()


TOPICS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(st.tuples(TOPICS, st.binary(max_size=40)), min_size=1, max_size=30))
def test_any_topics_and_payloads(tmp_path_factory, sent: list[tuple[str, bytes]]) -> None:
    root = tmp_path_factory.mktemp("any")
    made = [MessageRecord(AT, topic, 4, WHO, payload) for topic, payload in sent]
    write_segments(root / "log", "messages", made, node=NODE, epoch=EPOCH, first=0)
    rows = of_files(*read(root / "log"))
    assert Counter((row["topic"], row["payload"]) for row in rows) == Counter(sent)
    assert all(row["levels"] == row["topic"].split("/") for row in rows)
    assert all(row["size"] == len(row["payload"]) for row in rows)
    assert [(row["topic"].encode(), row["offset"]) for row in rows] == sorted(
        (row["topic"].encode(), row["offset"]) for row in rows
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_have_the_columns_too(kind: str) -> None:
    nothing = arrow_schema(columns_of(kind, True)).empty_table()
    names = [column.name for column in bronze_columns(kind) if column.name not in {"date", "hour"}]
    assert to_bronze(nothing, kind, NOW).column_names == names
    assert arrow_schema(FOUND).names == [column.name for column in FOUND]
