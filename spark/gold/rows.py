"""Rows of Parquet files without a JVM, by pyarrow: read in pieces, added up, the best of them.

What a report reads is small beside what gold is made from, and a Spark query costs a second of planning
before it reads a row. Memory: one piece of a file, and of groups one row each, ENOUGH or three times as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

PIECE = 65_536  # rows
ENOUGH = 1_000_000  # rows that wait to be added up

Order = Sequence[tuple[str, str]]  # (column, "ascending" or "descending") each
Sketches = dict[tuple[Any, ...], dict[int, int]]  # {values of the keys: {bucket: count}}


def pieces(files: Iterable[Path], *columns: str) -> Iterator[pa.Table]:
    """Tables of PIECE rows at most, and of *columns* in this order; of no rows: none."""
    for file in files:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(PIECE, columns=list(columns)):
                yield pa.Table.from_batches([batch]).select(columns)


def rows(files: Iterable[Path], *columns: str) -> Iterator[dict[str, Any]]:
    for piece in pieces(files, *columns):
        yield from piece.to_pylist()


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """*row* as JSON can hold it: times in UTC, without a zone."""
    return {name: moment(value) if isinstance(value, date) else value for name, value in row.items()}


def moment(value: date) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return value.isoformat()


def added(tables: Iterable[pa.Table], keys: Sequence[str], sums: Sequence[str] = ()) -> list[pa.Table]:
    """One table with one row for each value of *keys*, and the sums of *sums*; [] of no tables."""
    waiting: list[pa.Table] = []
    total = 0
    for table in tables:
        waiting.append(grouped([table], keys, sums))
        total += len(waiting[-1])
        if len(waiting) > 1 and total > max(ENOUGH, 2 * len(waiting[0])):
            waiting = [grouped(waiting, keys, sums)]
            total = len(waiting[0])
    return [grouped(waiting, keys, sums)] if waiting else []


def grouped(tables: Sequence[pa.Table], keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    made = pa.concat_tables(tables).group_by(list(keys)).aggregate([(name, "sum") for name in sums])
    return made.select([*keys, *(f"{name}_sum" for name in sums)]).rename_columns([*keys, *sums])


def sketches(tables: Iterable[pa.Table], keys: Sequence[str], column: str) -> Sketches:
    """The sketches of *column* of rows with the same *keys*, added; a null is none."""
    found: Sketches = {}
    pairs = (pairs_of(table, keys, column) for table in tables)
    for total in added(pairs, [*keys, "bucket"], ["count"]):
        for row in total.to_pylist():
            key = tuple(row[name] for name in keys)
            found.setdefault(key, {})[row["bucket"]] = row["count"]
    return found


def pairs_of(table: pa.Table, keys: Sequence[str], column: str) -> pa.Table:
    """One row for each bucket of each sketch of *column*."""
    lists = table[column].combine_chunks()
    parents, pairs = pc.list_parent_indices(lists), pc.list_flatten(lists)
    columns = {name: table[name].take(parents) for name in keys}
    return pa.table({**columns, **{name: pc.struct_field(pairs, name) for name in ("bucket", "count")}})


def best(tables: Iterable[pa.Table], order: Order, count: int) -> list[dict[str, Any]]:
    """The first *count* rows of all *tables* in *order*; nulls are last."""
    kept: pa.Table | None = None
    for table in tables:
        both = table if kept is None else pa.concat_tables([kept, table])
        kept = both.take(pc.sort_indices(both, sort_keys=list(order))[:count])
    return [] if kept is None else [plain(row) for row in kept.to_pylist()]
