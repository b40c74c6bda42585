"""The tables of a durable store, as docs/store-format.md tells in prose, and the SQL that changes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from broker.store.base import Batch, Row, Table

APPLICATION_ID = 0x50794272  # "PyBr"
FORMAT = 2  # PRAGMA user_version

# The BLOBs of a table first, then its plain columns. Every table has another number of columns, so that
# a page can be told to its table when the tree above it is lost.
COLUMNS: dict[Table, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Table.SESSION: (
        (),
        (
            *("client_id TEXT", "user_name TEXT", "version INTEGER", "expiry_interval INTEGER"),
            *("whole INTEGER", "connected INTEGER", "ends_at REAL"),
            *("will INTEGER", "will_delay INTEGER", "will_due REAL"),
        ),
    ),
    Table.SUBSCRIPTION: (
        (),
        (
            *("session INTEGER", "topic_filter TEXT", "qos INTEGER", "no_local INTEGER"),
            *("retain_as_published INTEGER", "retain_handling INTEGER", "identifier INTEGER"),
            "share_name TEXT",
        ),
    ),
    Table.MESSAGE: (
        ("payload BLOB", "properties BLOB"),
        ("topic_name TEXT", "qos INTEGER", "retain INTEGER", "client_id TEXT", "expires_at REAL"),
    ),
    Table.DELIVERY: (
        (),
        (
            *("session INTEGER", "message INTEGER", "qos INTEGER", "retain INTEGER", "requested INTEGER"),
            *("identifiers TEXT", "share TEXT", "packet_id INTEGER", "state INTEGER"),
        ),
    ),
    Table.HELD: ((), ("session INTEGER", "packet_id INTEGER", "message INTEGER")),
    Table.RETAINED: ((), ("message INTEGER",)),
    Table.NOTE: (("value BLOB",), ("key TEXT",)),
    Table.RUN: (
        ("packets BLOB",),
        ("count INTEGER", "client_id TEXT", "five INTEGER", "size INTEGER", "place INTEGER"),
    ),
    Table.PART: (
        (),
        ("session INTEGER", "run INTEGER", "first INTEGER", "count INTEGER", "packet_id INTEGER"),
    ),
}

SINCE = {Table.NOTE: 2, Table.RUN: 2, Table.PART: 2}  # format; all others are in each

META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID"


def names(table: Table) -> tuple[str, ...]:
    """The columns of *table*, without its `id`."""
    blobs, plain = COLUMNS[table]
    return tuple(column.split()[0] for column in (*blobs, *plain))


def tables_of(version: int) -> list[Table]:
    """The tables of store format *version*, in the order in which they are made."""
    return [table for table in Table if SINCE.get(table, 1) <= version]


def create_statements() -> list[str]:
    """What makes an empty store of this format."""
    made = [
        f"CREATE TABLE {table.name.lower()} (id INTEGER PRIMARY KEY, {', '.join((*blobs, *plain))})"
        for table, (blobs, plain) in COLUMNS.items()
    ]
    return [META, *made, f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT}"]


# Format -> the statements that make it of the format before.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    2: (
        "CREATE TABLE note (id INTEGER PRIMARY KEY, value BLOB, key TEXT)",
        "CREATE TABLE run (id INTEGER PRIMARY KEY, packets BLOB, count INTEGER, client_id TEXT, "
        "five INTEGER, size INTEGER, place INTEGER)",
        "CREATE TABLE part (id INTEGER PRIMARY KEY, session INTEGER, run INTEGER, first INTEGER, "
        "count INTEGER, packet_id INTEGER)",
    ),
}


# ---- a batch as statements: few, because each gives the interpreter lock away and must get it back

ROWS = 512  # for one statement at most; a power of two
AT_ONCE = 1024 * 1024  # bytes of BLOBs for one statement, about
PROBE = 65536  # bytes that must fit before a store that was full is tried with messages again
PREPARED = 128  # statements that a connection remembers: each number of rows makes one for each table


class Statement(NamedTuple):
    """One statement of SQL, what stands for its question marks, and the bytes of BLOBs among that."""

    sql: str
    cells: list[Any]
    size: int = 0


def statements(batch: Batch, probe: bool = False) -> Iterator[Statement]:
    """What does all that *batch* says.

    A *probe* writes something large as well, to see whether there is room again.
    """
    meta: list[Any] = ["probe", os.urandom(PROBE // 2).hex()] if probe else []
    if batch.clock is not None:
        meta += ["time", batch.clock.time, "wall", batch.clock.wall]
    if meta:
        yield Statement(f"REPLACE INTO meta VALUES {', '.join(['(?, ?)'] * (len(meta) // 2))}", meta)
    for table, changes in batch.rows.items():
        gone = [number for number, row in changes.items() if row is None]
        if len(gone) < len(changes):
            yield from _puts(table, changes, len(changes) - len(gone))
        if gone:
            yield Statement(_delete(table), [json.dumps(gone)])


def _puts(table: Table, changes: dict[int, Row | None], left: int) -> Iterator[Statement]:
    """As few statements as their limits allow; *left* rows are to be put.

    1,000 messages with a delivery each took 6.9 ms of CPU as JSON that a trigger put into the tables, and
    take 2.6 ms so (CPython 3.11, SQLite 3.40).
    """
    width = 1 + sum(map(len, COLUMNS[table]))
    pieces, many, took, size = 0, _rows_at_once(left, 0), 0, 0
    cells: list[Any] = []
    for number, row in changes.items():
        if row is None:
            continue
        values, blobs = row
        cells += (number, *blobs, *values)
        for blob in blobs:
            size += len(blob)
        took += 1
        if took in (many, left) or size > AT_ONCE:
            while many // 2 >= took:  # cut short by AT_ONCE
                many //= 2
            cells += [None] * (width * (many - took))
            yield Statement(_put(table, many, took == many), cells, size)
            pieces += many < ROWS
            left -= took
            many, took, size, cells = _rows_at_once(left, pieces), 0, 0, []


def _rows_at_once(left: int, pieces: int) -> int:
    """How many rows the next statement is made for, after *pieces* short ones: a power of two.

    The third is filled up. Not the first: rows that are none cost as much as others (100 messages with a
    delivery each took 370 us of CPU in one statement of 128 rows for each table, and take 280 in two).
    """
    size = 1 << (left - 1).bit_length() if pieces >= 2 else 1 << left.bit_length() >> 1
    return min(ROWS, size)


@cache
def _put(table: Table, rows: int, full: bool) -> str:
    """Puts *rows* rows, new or not; if it is not *full*, one without an identifier is none."""
    name, row = table.name.lower(), f"({', '.join('?' * (1 + len(names(table))))})"
    into, values = f"REPLACE INTO {name} (id, {', '.join(names(table))})", f"VALUES {', '.join([row] * rows)}"
    return f"{into} {values}" if full else f"{into} SELECT * FROM ({values}) WHERE column1 IS NOT NULL"


@cache
def _delete(table: Table) -> str:
    return f"DELETE FROM {table.name.lower()} WHERE id IN (SELECT value FROM json_each(?))"
