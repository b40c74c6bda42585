"""audit: is every offset that the log gave out in bronze, once?

Offsets are kept as bitmaps of 32 768 bits (one row of 4 KiB for as many records), by hour, and merged: rows,
distinct offsets and the holes between them come from some thousand rows, whatever the number of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SHIFT = 15
BITS = 1 << SHIFT  # offsets of one bitmap
KEYS = ("date", "hour", "node", "epoch", "block")
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


def merged(blocks: DataFrame) -> DataFrame:
    """Blocks of all hours: one row for each (node, epoch, block)."""
    keys = KEYS[2:]
    made = blocks.groupBy(*keys).agg(
        *[F.sum(name).alias(name) for name in ("rows", "gap_markers", "lost")],
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.bitmap_or_agg("bits").alias("bits"),
    )
    full = F.col("distinct") == F.col("last") - F.col("first") + 1
    made = made.withColumn("distinct", F.bitmap_count("bits"))
    return made.withColumn("bits", F.when(~full, F.col("bits")))  # a full block needs no bits


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
TYPES = {"kind": "STRING", "node": "STRING", "ok": "BOOLEAN"}
RANGES_TYPE = "missing_ranges ARRAY<STRUCT<first: BIGINT, last: BIGINT>>"
ROW = ", ".join(f"{name} {TYPES.get(name, 'BIGINT')}" for name in NAMES) + f", {RANGES_TYPE}"


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
