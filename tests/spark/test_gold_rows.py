"""Rows of Parquet files without a JVM: pieces, sums, sketches and the best, against plain Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from spark.gold import rows as r

KEYS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "\U0001f600", "a/b"]))
TABLES = st.lists(
    st.lists(st.tuples(KEYS, st.integers(0, 3), st.integers(-5, 2**40)), max_size=12), max_size=6
)
SKETCH = pa.list_(pa.struct({"bucket": pa.int32(), "count": pa.int64()}))
SCHEMA = pa.schema({"name": pa.string(), "n": pa.int32(), "count": pa.int64()})


def table(found: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA)


def tuples(found: list[pa.Table]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for each in found for row in each.to_pylist()]


def test_pieces_are_of_the_columns_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order; no piece is larger than PIECE, and a file of no rows gives none."""
    monkeypatch.setattr(r, "PIECE", 4)
    files = [tmp_path / name for name in ("one", "none", "two")]
    for file, rows in zip(files, (10, 0, 3), strict=True):
        parquet.write_table(table([(str(n), n, n) for n in range(rows)]), file)
    found = list(r.pieces(files, "count", "name"))
    assert [len(piece) for piece in found] == [4, 4, 2, 3]
    assert {tuple(piece.column_names) for piece in found} == {("count", "name")}
    assert [row["count"] for row in r.rows(files, "count")] == [*range(10), *range(3)]


@given(TABLES)
def test_sums_by_keys(found: list[list[tuple[Any, ...]]]) -> None:
    wanted: Counter[tuple[Any, int]] = Counter()
    for name, n, count in (row for each in found for row in each):
        wanted[name, n] += count
    total = r.added(map(table, found), ["name", "n"], ["count"])
    assert len(total) == bool(found)
    assert {row[:2]: row[2] for row in tuples(total)} == dict(wanted)
    assert len(tuples(total)) == len(wanted)


@given(TABLES, st.sampled_from([1, 3, 10]))
def test_the_order_of_adding_does_not_matter(found: list[list[tuple[Any, ...]]], enough: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(r, "ENOUGH", enough)
        some = tuples(r.added(map(table, found), ["name"], ["count"]))
    every = tuples(r.added(map(table, [[row for each in found for row in each]]), ["name"], ["count"]))
    assert sorted(some, key=repr) == sorted(every, key=repr)


def test_only_so_many_rows_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 tables of the same names never stand in memory side by side."""
    monkeypatch.setattr(r, "ENOUGH", 50)
    most, grouped = [], r.grouped

    def watched(tables: list[pa.Table], keys: list[str], sums: list[str]) -> pa.Table:
        most.append(sum(map(len, tables)))
        return grouped(tables, keys, sums)

    monkeypatch.setattr(r, "grouped", watched)
    given_ = (table([(str(n), 0, 1) for n in range(20)]) for _ in range(100))
    assert {row[1] for row in tuples(r.added(given_, ["name"], ["count"]))} == {100}
    assert max(most) <= 50 + 20


def sketch_rows() -> Iterator[dict[str, Any]]:
    chance = random.Random(7)
    for n in range(60):
        pairs = [{"bucket": chance.randrange(-3, 9), "count": chance.randrange(1, 50)} for _ in range(n % 5)]
        yield {"name": f"r{n % 3}", "sketch": None if n % 7 == 0 else pairs}


def test_sketches_of_each_key() -> None:
    found, schema = list(sketch_rows()), pa.schema({"name": pa.string(), "sketch": SKETCH})
    wanted: dict[tuple[str, ...], Counter[int]] = {}
    for row in found:
        for pair in row["sketch"] or ():
            wanted.setdefault((row["name"],), Counter())[pair["bucket"]] += pair["count"]
    whole = pa.Table.from_pylist(found, schema)
    parts = [whole.slice(at, 7) for at in range(0, 60, 7)]
    assert r.sketches(parts, ["name"], "sketch") == wanted
    assert r.sketches(parts, (), "sketch") == {(): sum(wanted.values(), Counter())}
    assert r.sketches([whole.slice(0, 0)], ["name"], "sketch") == {}
    assert r.sketches([], ["name"], "sketch") == {}


@given(TABLES, st.integers(1, 5))
def test_the_best_of_all_pieces(found: list[list[tuple[Any, ...]]], count: int) -> None:
    """Names in the order of their bytes, as Spark has them, and nulls last."""
    order = [("count", "descending"), ("name", "ascending"), ("n", "ascending")]
    every = sorted(
        (row for each in found for row in each),
        key=lambda row: (-row[2], row[0] is None, (row[0] or "").encode(), row[1]),
    )
    best = r.best(map(table, found), order, count)
    assert [tuple(row.values()) for row in best] == every[:count]


def test_times_are_those_of_utc_without_a_zone() -> None:
    noon = datetime(2026, 11, 27, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=5)))
    assert r.moment(noon) == r.moment(east) == r.moment(noon.replace(tzinfo=None)) == "2026-11-27T12:00:00"
    assert r.plain({"day": date(2026, 11, 27), "n": 1}) == {"day": "2026-11-27", "n": 1}
