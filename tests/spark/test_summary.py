"""What a report says of the files of gold, against plain Python; the files are made here, without a JVM."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark.gold import rows as pieces
from spark.gold.refresh import Gold
from spark.gold.sketch import middle
from spark.gold.summary import LISTED, OTHERS, ROOTS, step_of, summary
from tests.spark.test_gold_rows import SKETCH

Row = dict[str, Any]
START = datetime(2026, 11, 26, 22, tzinfo=UTC)
HOURS = [START + timedelta(hours=n) for n in range(5)]  # over midnight
MOMENT, INT, TEXT = pa.timestamp("us", tz="UTC"), pa.int64(), pa.string()
TYPES = {
    **dict.fromkeys(("minute", "first", "last"), MOMENT),
    **dict.fromkeys(("root", "topic", "client_id", "by", "measure", "name", "reason", "rule"), TEXT),
    **dict.fromkeys(("size_sketch", "delivered_sketch", "acked_sketch", "lateness_sketch"), SKETCH),
    **dict.fromkeys(("mean_gap", "largest_gap", "connection_seconds", "session_seconds"), pa.float64()),
    "worst_node": TEXT,
    "dead": pa.bool_(),
    "qos": pa.int32(),
}


def no_session() -> NoReturn:
    raise AssertionError("a report of what is there needs no JVM")


class Made:
    """Tables of gold in two files an hour, and their rows."""

    def __init__(self, out: Path) -> None:
        self.out, self.chance = out, random.Random(3)
        self.rows: dict[str, list[tuple[datetime, Row]]] = {}

    def put(self, name: str, hour: datetime, rows: Sequence[Row], by_day: bool = False) -> None:
        folder = self.out / name / f"date={hour:%Y-%m-%d}"
        folder = folder if by_day else folder / f"hour={hour.hour}"
        folder.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([(key, TYPES.get(key, INT)) for key in rows[0]])
        for n, part in enumerate((rows[::2], rows[1::2])):
            file = folder / f"part-{len(list(folder.iterdir())):05}-{n}.parquet"
            parquet.write_table(pa.Table.from_pylist(part, schema), file)
        self.rows.setdefault(name, []).extend((hour, row) for row in rows)

    def sketch(self) -> list[dict[str, int]]:
        buckets = sorted(self.chance.sample(range(400), 3))
        return [{"bucket": bucket, "count": self.chance.randrange(1, 9)} for bucket in buckets]

    def counts(self, *names: str) -> dict[str, int]:
        return {name: self.chance.randrange(1, 1_000) for name in names}

    def hour(self, hour: datetime) -> None:
        qos = ("qos0", "qos1", "qos2", "retained", "dup", "messages", "bytes")
        minutes = [hour + timedelta(minutes=n) for n in (0, 7, 59)]
        roots = [f"r{n}" for n in range(9)]
        self.put(
            "gold/rates",
            hour,
            [{"minute": m, "root": x, **self.counts(*qos)} for m in minutes for x in roots],
        )
        ends = {"first": hour + timedelta(seconds=3), "last": hour + timedelta(minutes=59, seconds=2)}
        topics = [f"r{self.chance.randrange(9)}/{self.chance.randrange(40)}" for _ in range(30)]
        sums = ("messages", "bytes")
        hours = [{"topic": t, **ends, **self.counts(*sums), "size_sketch": self.sketch()} for t in topics]
        self.put("gold/topic_hours", hour, hours)
        clients: list[str | None] = [f"c{self.chance.randrange(50)}" for _ in range(20)]
        self.put(
            "gold/client_hours", hour, [{"client_id": c, **self.counts(*sums)} for c in [*clients, None]]
        )
        ranks = [(by, what, f"{by}{n}") for by in ("topic", "client") for what in sums for n in range(15)]
        rows = [{"by": by, "measure": m, "name": name, **self.counts(*sums)} for by, m, name in ranks]
        self.put("gold/top", hour, rows)
        where = {"worst_node": "n1", "worst_epoch": 100}
        kinds = {"delivered_sketch": self.sketch(), "acked_sketch": None}
        slow = [{"minute": m, "qos": n, **kinds, **where} for n, m in enumerate(minutes)]
        self.put(
            "gold/latency", hour, [{**each, **self.counts("worst_latency", "worst_offset")} for each in slow]
        )
        drops = [{"reason": "queue_full", "root": f"r{n}", **self.counts("count", "bytes")} for n in range(3)]
        self.put("gold/drops", hour, drops)
        names = ("messages", "over_watermark", "future", "latest_ms")
        rows = [
            {"rule": f"rule{n}", **self.counts(*names), "lateness_sketch": self.sketch()} for n in range(2)
        ]
        self.put("gold/late", hour, rows)
        payloads = [{"rule": "rule0", "reason": f"at {n}: no JSON"} for n in range(7)]
        self.put("quarantine/payloads", hour, [*payloads, {"rule": "rule1", "reason": "empty"}])

    def day(self, day: datetime) -> None:
        names = ("messages", "bytes", "connections", "refused", "takeovers", "keep_alive_losses")
        seconds = {"connection_seconds": 0.5, "session_seconds": 2.0}
        rows = [{"client_id": f"c{n}", **self.counts(*names), **seconds} for n in range(20)]
        quiet = {"client_id": "quiet", **dict.fromkeys(names, 0), "messages": 10**6, **seconds}
        self.put("gold/clients", day, [*rows, quiet], by_day=True)
        gaps = {"last": day, "mean_gap": 2.0, "largest_gap": 9.0}
        silent = [
            {"topic": f"t{n}", **self.counts("messages"), **gaps, "dead": n % 3 == 0} for n in range(30)
        ]
        self.put("gold/topics", day, silent, by_day=True)

    def of(self, name: str, keep: Callable[[datetime], bool]) -> list[Row]:
        return [row for hour, row in self.rows[name] if keep(hour)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("summary"))
    for hour in HOURS:
        made.hour(hour)
    made.day(HOURS[0])
    made.day(HOURS[-1])
    # quarantine has one folder a batch below the hour
    for file in list((made.out / "quarantine").rglob("part-*")):
        batch = file.parent / f"batch=feedbeef-{file.stem[-1]}"
        batch.mkdir(exist_ok=True)
        file.rename(batch / file.name)
    return made


PERIODS = [
    pytest.param(None, None, id="all"),
    pytest.param("2026-11-26T23", "2026-11-27T02", id="three hours of two days"),
    pytest.param("2026-11-27T01", None, id="one day"),
    pytest.param(None, "2026-11-27T00", id="to midnight"),
]


@pytest.mark.parametrize(("since", "until"), PERIODS)
def test_a_report_of_a_period(
    made: Made, monkeypatch: pytest.MonkeyPatch, since: str | None, until: str | None
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 8)
    monkeypatch.setattr(pieces, "ENOUGH", 20)

    def within(hour: datetime) -> bool:
        key = f"{hour:%Y-%m-%dT%H}"
        return (since is None or key >= since) and (until is None or key < until)

    def days(day: datetime) -> bool:
        key = f"{day:%Y-%m-%d}"
        return (since is None or key >= since[:10]) and (until is None or f"{key}T00" < until)

    report = summary(Gold(no_session, made.out), since, until)
    check_totals(report, lambda name: made.of(name, within))
    check_rates(report, made.of("gold/rates", within))
    check_latency(report, made.of("gold/latency", within))
    check_lists(report, lambda name: made.of(name, within))
    check_days(report, lambda name: made.of(name, days))


def check_totals(report: Row, of: Callable[[str], list[Row]]) -> None:
    rates, topics, totals = of("gold/rates"), of("gold/topic_hours"), report["totals"]
    for name in ("messages", "bytes", "qos0", "qos1", "qos2", "retained", "dup"):
        assert totals[name] == sum(row[name] for row in rates)
    assert totals["topics"] == len({row["topic"] for row in topics})
    assert totals["publishers"] == len({row["client_id"] for row in of("gold/client_hours")} - {None})
    assert totals["dropped"] == sum(row["count"] for row in of("gold/drops"))
    assert totals["quarantined"] == len(of("quarantine/payloads"))
    ends = (min(row["first"] for row in topics), max(row["last"] for row in topics))
    assert (report["period"]["first"], report["period"]["last"]) == tuple(
        each.strftime("%Y-%m-%dT%H:%M:%S") for each in ends
    )
    sizes = [pair for row in topics for pair in row["size_sketch"]]
    assert sum(count for _, count in report["sizes"]["counts"]) == sum(pair["count"] for pair in sizes)
    assert report["sizes"]["p50"] == quantile(sizes, 0.5)


def quantile(pairs: Sequence[dict[str, int]], share: float) -> float:
    every = sorted(pair["bucket"] for pair in pairs for _ in range(pair["count"]))
    return middle(every[max(1, -(-int(len(every) * share * 100) // 100)) - 1])


def check_rates(report: Row, rates: list[Row]) -> None:
    sums: Counter[str] = Counter()
    for row in rates:
        sums[row["root"]] += row["messages"]
    loudest = sorted(sums, key=lambda root: (-sums[root], root))[: ROOTS - 1]
    assert report["rates"]["roots"] == [*loudest, OTHERS]
    step = report["period"]["step_minutes"] * 60_000
    found: dict[int, Counter[str]] = {}
    for row in rates:
        at = int(row["minute"].timestamp() * 1000) // step * step
        root = row["root"] if row["root"] in loudest else OTHERS
        found.setdefault(at, Counter())[root] += row["messages"]
    assert {point["at"]: point["messages"] for point in report["rates"]["points"]} == found
    assert [point["at"] for point in report["rates"]["points"]] == sorted(found)
    assert sum(point["bytes"] for point in report["rates"]["points"]) == sum(row["bytes"] for row in rates)


def check_latency(report: Row, rows: list[Row]) -> None:
    pairs = [pair for row in rows for pair in row["delivered_sketch"]]
    assert sum(point["delivered"]["count"] for point in report["latency"]["points"]) == sum(
        pair["count"] for pair in pairs
    )
    assert [(row["kind"], row["qos"]) for row in report["latency"]["all"]] == [
        ("delivered", qos) for qos in range(3)
    ]
    of_qos = [pair for row in rows if row["qos"] == 1 for pair in row["delivered_sketch"]]
    assert report["latency"]["all"][1]["p50"] == quantile(of_qos, 0.5)
    worst = max(rows, key=lambda row: (row["worst_latency"], row["worst_offset"], row["minute"]))
    assert report["latency"]["worst"]["worst_latency"] == worst["worst_latency"]
    assert report["latency"]["worst"]["minute"] == worst["minute"].strftime("%Y-%m-%dT%H:%M:%S")


def check_lists(report: Row, of: Callable[[str], list[Row]]) -> None:
    for by in ("topic", "client"):
        sums: Counter[str] = Counter()
        for row in of("gold/top"):
            if (row["by"], row["measure"]) == (by, "messages"):
                sums[row["name"]] += row["messages"]
        ranked = sorted(sums.items(), key=lambda each: (-each[1], each[0]))[:LISTED]
        assert [(row["name"], row["messages"]) for row in report["top"][by]] == ranked
    drops: Counter[str] = Counter()
    for row in of("gold/drops"):
        drops[row["root"]] += row["count"]
    assert [(row["root"], row["count"]) for row in report["drops"]] == sorted(
        drops.items(), key=lambda each: (-each[1], each[0])
    )
    late = [row for row in of("gold/late") if row["rule"] == "rule1"]
    told = report["late"][1]
    assert (told["rule"], told["future"]) == ("rule1", sum(row["future"] for row in late))
    assert told["latest_ms"] == max(row["latest_ms"] for row in late)
    assert told["p95"] == quantile([pair for row in late for pair in row["lateness_sketch"]], 0.95)
    hours = len(of("quarantine/payloads")) // 8
    assert report["quarantine"] == [
        {"rule": "rule0", "reason": "at n: no JSON", "count": 7 * hours},
        {"rule": "rule1", "reason": "empty", "count": hours},
    ]


def check_days(report: Row, of: Callable[[str], list[Row]]) -> None:
    clients: dict[str, Counter[str]] = {}
    for row in of("gold/clients"):
        sums = clients.setdefault(row["client_id"], Counter())
        sums.update({name: value for name, value in row.items() if name != "client_id"})
    clients.pop("quiet")

    def trouble(client: str) -> tuple[Any, ...]:
        row = clients[client]
        return -(row["refused"] + row["takeovers"] + row["keep_alive_losses"]), -row["connections"], client

    assert [row["client_id"] for row in report["clients"]] == sorted(clients, key=trouble)[:LISTED]
    assert all(
        row == {"client_id": row["client_id"], **clients[row["client_id"]]} for row in report["clients"]
    )
    dead = [row for row in of("gold/topics") if row["dead"]]
    dead.sort(key=lambda row: (-row["last"].timestamp(), -row["messages"], row["topic"]))
    assert [(row["topic"], row["messages"]) for row in report["dead"]] == [
        (row["topic"], row["messages"]) for row in dead[:LISTED]
    ]
    assert [row["date"] for row in report["dead"]] == [f"{row['last']:%Y-%m-%d}" for row in dead[:LISTED]]


@pytest.mark.parametrize("there", [False, True], ids=["no tables", "no hour in the period"])
def test_a_report_of_nothing(made: Made, tmp_path: Path, there: bool) -> None:
    report = summary(Gold(no_session, made.out if there else tmp_path), "2027-01-01T00", None)
    assert report["period"] == {"first": None, "last": None, "step_minutes": 1}
    assert not any(report["totals"].values())
    assert report["rates"] == {"roots": [], "points": []}
    assert report["latency"] == {"points": [], "all": [], "worst": None}
    assert report["sizes"] == {"counts": [], "p50": None, "p95": None, "p99": None}
    for name in ("drops", "late", "clients", "dead", "quarantine", "audit"):
        assert report[name] == []


@pytest.mark.parametrize(
    ("minutes", "step"), [(0, 1), (240, 1), (241, 2), (1440, 10), (345_600, 1440), (345_601, 2880)]
)
def test_a_plot_has_so_many_points_at_most(minutes: int, step: int) -> None:
    assert step_of(minutes) == step


@pytest.mark.parametrize(
    ("day", "since", "until", "there"),
    [
        ("2026-11-27", "2026-11-27T23", None, True),
        ("2026-11-26", "2026-11-27T00", None, False),
        ("2026-11-27", None, "2026-11-27T01", True),
        ("2026-11-27", None, "2026-11-27T00", False),
    ],
)
def test_a_day_is_in_a_period_that_touches_it(
    made: Made, day: str, since: str | None, until: str | None, there: bool
) -> None:
    from spark.gold.summary import Tables

    found = Tables(Gold(no_session, made.out), since, until).files("clients")
    assert any(file.parent.name == f"date={day}" for file in found) == there
