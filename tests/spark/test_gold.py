"""bronze -> gold, on a few rows written by hand: every table, reruns, and rows that come late."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.hook.log.line import EventRecord, Publisher
from spark.gold.sketch import GAMMA, add, middle, quantile_of
from tests.spark import jvm
from tests.spark.bronze import NOON, SECOND, Row, event, gap, said
from tests.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.gold.refresh import Gold

HOUR = 3_600 * SECOND
ONE = Publisher("c1", 1, 5, None)


def told(offset: int, at: int, name: str, publisher: Publisher = ONE, **fields: Any) -> Row:
    return event(offset, EventRecord(at, name, publisher, tuple(fields.items())))


MESSAGES = [
    said(0, "a/x", b"1234", NOON, qos=1),
    said(1, "a/y", b"12", NOON + SECOND, client_id="c2", retain=True),
    said(2, "a/x", b"123456", NOON + 30 * SECOND, qos=2, dup=True),
    said(3, "b", b"", NOON + 61 * SECOND),
    said(4, "a/x", b"12", NOON + HOUR, qos=1),
    gap(5, 40, NOON + HOUR),
]
EVENTS = [
    told(0, NOON, "connect", rc=0),
    told(1, NOON, "connect", Publisher("c2", 2, 5, None), rc=0x87),
    told(2, NOON + SECOND, "session", st="created"),
    told(3, NOON + SECOND, "delivered", Publisher("r", 3, 5, None), mo=0, q=1, lat=1_000),
    told(4, NOON + SECOND, "acked", Publisher("r", 3, 5, None), mo=0, q=1, lat=5_000),
    told(5, NOON + 2 * SECOND, "delivered", Publisher("r", 3, 5, None), mo=2, q=1, lat=100_000),
    told(6, NOON + 3 * SECOND, "dropped", Publisher("r", 3, 5, None), mo=2, q=1, why="queue_full"),
    told(7, NOON + 3 * SECOND, "dropped", Publisher("s", 4, 5, None), mo=999, q=1, why="queue_full"),
    told(8, NOON + 600 * SECOND, "disconnect", by="keepalive", dur=600_000),
    told(9, NOON + 900 * SECOND, "connect", Publisher("c1", 5, 5, None), rc=0),
    told(10, NOON + 1000 * SECOND, "disconnect", Publisher("c1", 5, 5, None), by="takeover"),
    told(11, NOON + 1000 * SECOND, "session", Publisher("c1", 5, 5, None), st="ended"),
]


def made(lake: Lake, **period: str) -> Gold:
    from spark.gold.refresh import Gold

    gold = Gold(lambda: lake.spark, lake.out)
    gold.refresh(**period)
    return gold


def rows(gold: Gold, name: str, *order: str) -> list[dict[str, Any]]:
    found = gold.read(name)
    return [] if found is None else [row.asDict(True) for row in found.orderBy(*order).collect()]


@pytest.fixture(scope="module")
def gold(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gold]:
    lake = Lake(spark, tmp_path_factory.mktemp("gold"))
    lake.put(*MESSAGES)
    lake.add("events", EVENTS)
    with jvm.compiled(spark):
        yield made(lake)


def test_rates(gold: Gold) -> None:
    found = rows(gold, "rates", "minute", "root")
    names = ("root", "messages", "bytes", "publishers", "qos0", "qos1", "qos2", "retained", "dup")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("a", 3, 12, 2, 1, 1, 1, 1, 1),
        ("b", 1, 0, 1, 1, 0, 0, 0, 0),
        ("a", 1, 2, 1, 0, 1, 0, 0, 0),
    ]
    assert [row["minute"].strftime("%H:%M") for row in found] == ["12:00", "12:01", "13:00"]


def test_topics(gold: Gold) -> None:
    found = {row["topic"]: row for row in rows(gold, "topics", "topic")}
    assert {topic: row["messages"] for topic, row in found.items()} == {"a/x": 3, "a/y": 1, "b": 1}
    x = found["a/x"]
    assert (x["bytes"], x["mean_gap"], x["largest_gap"]) == (12, 1800.0, 3570.0)
    assert (x["size_p50"], x["size_p99"]) == (pytest.approx(4, rel=0.01), pytest.approx(6, rel=0.01))
    assert not any(row["dead"] for row in found.values())


def test_clients(gold: Gold) -> None:
    found = {row["client_id"]: row for row in rows(gold, "clients", "client_id")}
    one = found["c1"]
    assert (one["messages"], one["connections"], one["takeovers"], one["keep_alive_losses"]) == (4, 2, 1, 1)
    assert one["connection_seconds"] == 700.0
    assert one["session_seconds"] == 999.0
    assert found["c2"]["refusals"] == [{"reason_code": 0x87, "count": 1}]
    assert (found["c2"]["refused"], found["c2"]["connections"]) == (1, 0)


def test_latency(gold: Gold) -> None:
    [row] = rows(gold, "latency", "minute")
    assert (row["qos"], row["delivered"], row["acked"]) == (1, 2, 1)
    assert row["delivered_p50"] == pytest.approx(1_000, rel=0.01)
    assert row["delivered_p99"] == pytest.approx(100_000, rel=0.01)
    assert row["acked_p95"] == pytest.approx(5_000, rel=0.01)
    assert (row["worst_latency"], row["worst_node"], row["worst_offset"]) == (100_000, "n1", 2)


def test_drops(gold: Gold) -> None:
    found = rows(gold, "drops", "reason", "root")
    assert [(row["reason"], row["root"], row["count"], row["bytes"]) for row in found] == [
        ("log_overflow", "(unknown)", 40, 0),
        ("queue_full", "(unknown)", 1, 0),
        ("queue_full", "a", 1, 6),
    ]


def test_top(gold: Gold) -> None:
    noon = [row for row in rows(gold, "top", "by", "measure", "rank") if row["hour"] == 12]
    ranks = {(row["by"], row["measure"], row["rank"]): row["name"] for row in noon}
    assert ranks["topic", "messages", 1] == "a/x"
    assert ranks["client", "bytes", 1] == "c1"
    assert ("topic", "messages", 3) in ranks and ("topic", "messages", 4) not in ranks


def test_audit_is_green(gold: Gold) -> None:
    assert gold.ok
    books = {account.kind: account for account in gold.books}
    assert (books["messages"].rows, books["messages"].gap_markers, books["messages"].lost) == (6, 1, 40)
    assert books["events"].rows == len(EVENTS)


def test_a_summary_of_what_spark_wrote(gold: Gold) -> None:
    from spark.gold.summary import summary

    report = summary(gold, None, None)
    totals = {"messages": 5, "bytes": 14, "topics": 3, "publishers": 2, "dropped": 42, "quarantined": 0}
    assert {name: report["totals"][name] for name in totals} == totals
    assert report["period"] == {
        "first": "2026-11-27T12:00:00",
        "last": "2026-11-27T13:00:00",
        "step_minutes": 1,
    }
    points = [point["messages"] for point in report["rates"]["points"]]
    assert points == [{"a": 3}, {"b": 1}, {"a": 1}]
    ranked = [(row["name"], row["messages"], row["bytes"]) for row in report["top"]["topic"]]
    assert ranked == [("a/x", 3, 12), ("a/y", 1, 2), ("b", 1, 0)]
    assert report["sizes"]["counts"] == [[0, 1], [2, 2], [4, 2]]
    assert [(row["kind"], row["count"]) for row in report["latency"]["all"]] == [
        ("acked", 1),
        ("delivered", 2),
    ]
    assert report["latency"]["worst"]["worst_latency"] == 100_000
    assert next((row["reason"], row["count"]) for row in report["drops"]) == ("log_overflow", 40)
    assert [row["client_id"] for row in report["clients"]] == ["c1", "c2"]
    noon = summary(gold, "2026-11-27T12", "2026-11-27T13")
    assert (noon["totals"]["messages"], noon["totals"]["publishers"]) == (4, 2)
    assert summary(gold, "2026-11-27T13", None)["totals"]["messages"] == 1


def test_late(spark: SparkSession, tmp_path: Path) -> None:
    from spark.decode import Decoder
    from spark.silver.rules import rules_of

    lake = Lake(spark, tmp_path)
    seconds = [NOON // SECOND - wait for wait in (1, 5, 3_600, -60)]
    lake.put(*(said(n, "t", f'{{"at":{at}}}') for n, at in enumerate(seconds)))
    rule = {"name": "r", "filter": "t", "format": "json", "event_time": {"path": "at", "unit": "s"}}
    Decoder(spark, lake.out, rules_of({"rule": [rule]}), None, 100).step()
    shutil.rmtree(lake.out / "bronze")  # from silver alone
    [row] = rows(made(lake), "late", "rule")
    assert (row["rule"], row["messages"], row["over_watermark"], row["future"]) == ("r", 4, 1, 1)
    assert (row["share_over_watermark"], row["latest_ms"]) == (0.25, 3_600_000)
    assert row["lateness_p50"] == pytest.approx(1_000, rel=0.01)
    assert row["lateness_p99"] == pytest.approx(3_600_000, rel=0.01)


def bytes_of(gold: Gold) -> dict[str, str]:
    """A digest of every data file below gold, by table, hour and day."""
    files = list(gold.path.rglob("part-*.parquet"))
    found = {str(path.parent.relative_to(gold.path)): sha256(path.read_bytes()).hexdigest() for path in files}
    assert len(found) == len(files)  # one file each
    return found


def test_report_rerun_is_identical(spark: SparkSession, tmp_path: Path) -> None:
    """Also when bronze is in other files: the same rows in another order give the same bytes."""
    lake = Lake(spark, tmp_path)
    many = [
        said(n, f"t/{n % 7}", b"x" * (n % 50), NOON + n * SECOND, client_id=f"c{n % 31}") for n in range(400)
    ]
    lake.put(*many)
    lake.add("events", EVENTS)
    first = made(lake)
    before = bytes_of(first)
    assert first.computed == {"2026-11-27T12"}
    assert made(lake).computed == set()
    shutil.rmtree(lake.out / "bronze")
    lake.add("events", EVENTS[6:])
    for part in (many[250:], many[:100], many[100:250]):
        lake.put(*part)
    lake.add("events", EVENTS[:6])
    again = made(lake)
    assert again.computed == first.computed
    assert bytes_of(again) == before


def test_late_rows_change_the_right_hour(spark: SparkSession, tmp_path: Path) -> None:
    """And a period computes its own hours alone."""
    lake = Lake(spark, tmp_path)
    lake.put(*(said(n, "t", b"x", NOON + n * HOUR) for n in range(3)))
    assert made(lake, since="2026-11-27T13", until="2026-11-27T14").computed == {"2026-11-27T13"}
    gold = made(lake)
    assert gold.computed == {"2026-11-27T12", "2026-11-27T14"}
    before = bytes_of(gold)
    lake.put(said(3, "t", b"x", NOON + HOUR + 5 * SECOND))
    gold = made(lake)
    after = bytes_of(gold)
    changed = {path for path in after if after[path] != before.get(path)}
    assert gold.computed == {"2026-11-27T13"}
    assert changed == {
        *(f"{name}/date=2026-11-27/hour=13" for name in ("rates", "topic_hours", "client_hours", "top")),
        "blocks/messages/date=2026-11-27/hour=13",
        *(f"{name}/date=2026-11-27" for name in ("topics", "clients")),
        "audit",
    }
    assert [row["messages"] for row in rows(gold, "topic_hours", "hour")] == [1, 2, 1]
    assert made(lake, since="2026-11-27T14").computed == set()


def test_audit_is_red(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "delta")
    lake.put(*(said(n, "t", b"x") for n in (0, 1, 4, 4)))
    gold = made(lake)
    [row] = rows(gold, "audit", "node")
    assert not gold.ok and not row["ok"]
    assert (row["missing_ranges"], row["duplicates"]) == ([{"first": 2, "last": 3}], 1)


VALUES = [0, 1, 2, 3, 50, 51, 1_000, 123_456_789, 2**50, -1, -7, -1_000]


def test_a_bucket_is_off_by_a_hundredth(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from spark.gold.sketch import bucket_of, value_of

    bucket = bucket_of(F.col("value"))
    given = spark.createDataFrame([(value,) for value in VALUES], "value BIGINT")
    found = given.select("value", bucket.alias("b"), value_of(bucket).alias("v")).collect()
    assert {row.value for row in found} == set(VALUES)
    for row in found:
        assert row.v == pytest.approx(middle(row.b)) == pytest.approx(row.value, rel=(GAMMA - 1) / 2 + 1e-6)


def test_sketches_add_up() -> None:
    total = add([[(1, 3), (5, 1)], [(5, 2)]])
    assert total == {1: 3, 5: 3}
    assert quantile_of(total, 0.5) == middle(1)
    assert quantile_of(total, 0.99) == middle(5)
    assert quantile_of({}, 0.5) is None
    assert not math.isnan(middle(0))
