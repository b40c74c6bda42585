"""audit: is every offset that the log gave out in bronze, once?

Offsets are kept as bitmaps of 32 768 bits (one row of 4 KiB for as many records), by hour, and merged: rows,
distinct offsets and the holes between them come from some thousand rows, whatever the number of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SHIFT = 15
BITS = 1 << SHIFT  # offsets of one bitmap
KEYS = ("date", "hour", "node", "epoch", "block")
COLUMNS = (*KEYS[2:], "rows", "first", "last", "bits", "gap_markers", "lost")  # what `merged` wants
RANGES = 100  # missing ranges that are listed; the number of missing offsets is always whole

Range = tuple[int, int]  # first and last offset


def blocks(bronze: DataFrame) -> DataFrame:
    """One row for each (hour, node, epoch, block of offsets)."""
    at = F.col("offset")
    block, bit = F.shiftright(at, SHIFT).alias("block"), at.bitwiseAND(BITS - 1).alias("bit")
    chosen = bronze.select(*KEYS[:-1], block, bit, "lost", at)
    return chosen.groupBy(*KEYS).agg(
        F.count("*").alias("rows"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.bitmap_construct_agg("bit").alias("bits"),
        F.count("lost").alias("gap_markers"),
        F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
    )


def merged(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `blocks` of all hours: one for each (node, epoch, block), with `distinct`.

    Without a JVM: a bitmap costs microseconds. `bits` is None where a block is full, so that a log without
    holes takes a few words for 32 768 records.
    """
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in rows:
        key = (row["node"], row["epoch"], row["block"])
        bits = bits_of(row)
        if key in found:
            old = found[key]
            bits |= bits_of(old)
            sums = {name: old[name] + row[name] for name in ("rows", "gap_markers", "lost")}
            first, last = min(old["first"], row["first"]), max(old["last"], row["last"])
            row = {**old, **sums, "first": first, "last": last}
        distinct = bits.bit_count()
        full = distinct == row["last"] - row["first"] + 1
        packed = None if full else bits.to_bytes(BITS // 8, "little")
        found[key] = {**row, "distinct": distinct, "bits": packed}
    return list(found.values())


def bits_of(row: Mapping[str, Any]) -> int:
    if row["bits"] is not None:
        return int.from_bytes(row["bits"], "little")
    length = int(row["last"] - row["first"] + 1)
    return ((1 << length) - 1) << int(row["first"] - row["block"] * BITS)


def write(path: Path, books: Iterable[Account]) -> None:
    """The table of one file, replaced as a whole."""
    table = pa.Table.from_pylist([account.row() for account in books], ROW)
    path.mkdir(parents=True, exist_ok=True)
    part = path / ".part"
    parquet.write_table(table, part, compression="zstd")
    for old in path.glob("part-*"):
        if old.name != FILE:
            old.unlink()
    part.replace(path / FILE)


@dataclass(slots=True)
class Account:
    """The books of one (kind, node, epoch)."""

    kind: str
    node: str
    epoch: int
    first: int = -1
    last: int = -1
    rows: int = 0
    distinct: int = 0
    gap_markers: int = 0
    lost: int = 0  # records that gap markers stand for
    quarantined: int = 0  # lines that were there and could not be read
    damaged: int = 0  # offsets of what could not be read as lines: a rotten archive
    lost_in_log: int = 0  # offsets that were gone from the log before they were read
    missing: int = 0
    missing_ranges: list[Range] = field(default_factory=list)

    @property
    def duplicates(self) -> int:
        return self.rows - self.distinct

    @property
    def ok(self) -> bool:
        whole = self.last - self.first + 1 - self.quarantined
        return self.rows == self.distinct == whole and not self.lost_in_log and not self.damaged

    def row(self) -> dict[str, Any]:
        ranges = [{"first": first, "last": last} for first, last in self.missing_ranges]
        return {name: getattr(self, name) for name in NAMES} | {"missing_ranges": ranges}


NAMES = (
    *("kind", "node", "epoch", "first", "last", "rows", "distinct", "missing", "duplicates", "gap_markers"),
    *("lost", "quarantined", "damaged", "lost_in_log", "ok"),
)
TYPES = {"kind": pa.string(), "node": pa.string(), "ok": pa.bool_()}
RANGE = pa.struct({"first": pa.int64(), "last": pa.int64()})
ROW = pa.schema({name: TYPES.get(name, pa.int64()) for name in NAMES} | {"missing_ranges": pa.list_(RANGE)})
FILE = "part-00000.parquet"


def accounts(
    kind: str, blocks: Iterable[Any], quarantine: Iterable[Any] = (), gaps: Iterable[Any] = ()
) -> list[Account]:
    """The books of one kind, from rows of `merged`, of quarantine/lines and of log_gaps; by node and epoch.

    `absent` says that there was no line at all: a hole in a segment is no quarantined line.
    """
    books: dict[tuple[str, int], Account] = {}
    seen: dict[tuple[str, int], list[Range]] = {}

    def book(row: Any) -> tuple[Account, list[Range]]:
        key = (row["node"], row["epoch"])
        return books.setdefault(key, Account(kind, *key)), seen.setdefault(key, [])

    for row in blocks:
        account, ranges = book(row)
        for name in ("rows", "distinct", "gap_markers", "lost"):
            setattr(account, name, getattr(account, name) + row[name])
        ranges.extend(runs(row))
    for row in quarantine:
        account, ranges = book(row)
        count = 1 if row["lost"] is None else row["lost"]
        if count == 1 and not row["absent"]:
            account.quarantined += 1
            ranges.append((row["offset"], row["offset"]))
        else:
            account.damaged += count
    for row in gaps:
        book(row)[0].lost_in_log += row["lost"] or 0
    for key, account in books.items():
        close(account, seen[key])
    return [books[key] for key in sorted(books)]


def runs(row: Any) -> Iterator[Range]:
    """The ranges of offsets in one block."""
    if row["bits"] is None:
        yield row["first"], row["last"]
        return
    bits, start = int.from_bytes(row["bits"], "little"), row["block"] * BITS
    at = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        length = (~bits & (bits + 1)).bit_length() - 1
        yield start + at + skip, start + at + skip + length - 1
        bits >>= length
        at += skip + length


def close(account: Account, ranges: list[Range]) -> None:
    """`first`, `last`, and the holes between *ranges*."""
    ranges.sort()
    if not ranges:
        return
    account.first, end = ranges[0]
    for first, last in ranges[1:]:
        if first > end + 1:
            account.missing += first - end - 1
            if len(account.missing_ranges) < RANGES:
                account.missing_ranges.append((end + 1, first - 1))
        end = max(end, last)
    account.last = end
