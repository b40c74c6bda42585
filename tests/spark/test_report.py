"""`python -m spark.report`: which hours, which exit code, which format; and the stream of --live."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.gold.hours import after, before, condition, read_marks, touched, within, write_marks
from tests.spark.bronze import NOON, SECOND, said
from tests.spark.lake import Lake
from tests.spark.test_summary import no_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_hours_that_changed() -> None:
    old = {"2026-11-27T12": "a", "2026-11-27T13": "b", "2026-11-27T14": "c"}
    new = {"2026-11-27T12": "a", "2026-11-27T13": "x", "2026-11-27T15": "d"}
    changed = touched(old, new)
    assert changed == {"2026-11-27T13", "2026-11-27T14", "2026-11-27T15"}
    assert within(changed, "2026-11-27T14", "2026-11-27T15") == {"2026-11-27T14"}


def test_hours_go_over_midnight() -> None:
    assert before({"2026-11-28T00"}, 1) == {"2026-11-27T23", "2026-11-28T00"}
    assert after({"2026-12-31T23"}, 1) == {"2026-12-31T23", "2027-01-01T00"}


def test_hours_as_sql() -> None:
    assert condition(["2026-11-28T01", "2026-11-27T23", "2026-11-28T00"]) == (
        "(date = '2026-11-27' AND hour IN (23)) OR (date = '2026-11-28' AND hour IN (0, 1))"
    )
    assert condition([]) == "false"


def test_marks_of_another_version_are_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "_made_from.json"
    assert read_marks(file) == {}
    write_marks(file, {"bronze/messages": {"2026-11-27T12": "a"}})
    assert read_marks(file) == {"bronze/messages": {"2026-11-27T12": "a"}}
    file.write_text(file.read_text().replace('"version": 1', '"version": 0'))
    assert read_marks(file) == {}


@pytest.mark.parametrize(
    ("given", "up", "key"),
    [
        ("2026-11-27", False, "2026-11-27T00"),
        ("2026-11-27T21:30", False, "2026-11-27T21"),
        ("2026-11-27T21:30", True, "2026-11-27T22"),
        ("2026-11-27T21:00", True, "2026-11-27T21"),
        ("2026-11-28T00:30+01:00", False, "2026-11-27T23"),
    ],
)
def test_a_period_is_of_whole_hours_of_utc(given: str, up: bool, key: str) -> None:
    from spark.report import hour_key

    assert hour_key("--since", given, up) == key


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--since", "yesterday"], 2, "--since 'yesterday' is no time"),
        (["--since", "2026-11-28", "--until", "2026-11-27"], 2, "is not before"),
        ([], 3, "no tables there"),
    ],
)
def test_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    from spark.report import main

    assert main(["--out", str(tmp_path), *arguments]) == code
    assert message in capsys.readouterr().err


def test_exit_codes_and_formats(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from spark.report import report

    lake = Lake(spark, tmp_path)
    lake.put(*(said(n, f"plant/{n % 2}", b"x" * n, NOON + n * SECOND) for n in range(6)))
    assert report(lambda: spark, lake.out, None, None, "json", None) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["ok"], made["totals"]["messages"], made["totals"]["bytes"]) == (True, 6, 15)
    assert [row["name"] for row in made["top"]["topic"]] == ["plant/0", "plant/1"]
    assert report(no_session, lake.out, None, None, "json", None) == 0  # nothing changed: no JVM
    assert json.loads(capsys.readouterr().out) == made
    [point] = made["rates"]["points"]
    assert point == {"at": NOON // 1000, "messages": {"plant": 6}, "bytes": 15}
    lake.put(said(8, "plant/0", b""))
    page = tmp_path / "page.html"
    assert report(lambda: spark, lake.out, None, None, "html", page) == 1
    assert "Missing: 6–7" in page.read_text("utf-8")
    assert re.search(r"1 hours computed in .*, audit FAILED", capsys.readouterr().err)
    assert report(no_session, lake.out, None, None, "html", page) == 1
    assert "Missing: 6–7" in page.read_text("utf-8")


def test_live_rates_tell_what_the_watermark_dropped(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from spark.gold.live import Told, start

    lake = Lake(spark, tmp_path)
    lines = []
    for rows in (
        [said(0, "a/x", b"12", NOON), said(1, "a/y", b"1", NOON + SECOND), said(2, "b", b"", NOON)],
        [said(3, "a/x", b"", NOON + 600 * SECOND)],
        [said(4, "a/x", b"", NOON), said(5, "b", b"", NOON + 601 * SECOND)],
    ):
        lake.put(*rows)
        told, query = Told(), start(spark, lake.out, None, "1 minute")
        query.awaitTermination()
        for progress in query.recentProgress:
            told.tell(json.loads(progress.json))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(line["rows"] for line in lines) == 6
    assert sum(line["numRowsDroppedByWatermark"] for line in lines) == 1
    found = spark.read.parquet(str(lake.out / "gold" / "live_rates")).orderBy("root").collect()
    assert [(row.root, row.messages, row.bytes) for row in found] == [("a", 2, 3), ("b", 1, 0)]
