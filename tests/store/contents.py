"""Stores with known contents: a fixed one that has something of everything, and random ones.

`python -m tests.store.contents` writes the fixed one to formats/, once for each store format: what later
versions must still open.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from broker.packet.wire import varint_bytes
from broker.store.base import Batch, Row, StoreClock, Table
from broker.store.schema import FORMAT, tables_of
from broker.store.sqlite import SqliteStore

PAGE = 4096  # bytes
FORMATS = Path(__file__).parent / "formats"
Rows = dict[Table, dict[int, Row]]

# Store time of the fixed store and wall time when it was noted: seconds.
NOTED = StoreClock(1_700_000_000.5, 1_700_000_100.25)
CENTURY = 3_155_760_000.0  # seconds: deadlines that no test will live to see

# content_type "text/plain" and a user property "k": "v", as they stand in PUBLISH.
PROPERTIES = bytes.fromhex("03 000a 746578742f706c61696e 26 0001 6b 0001 76")

FIXED: Rows = {
    Table.SESSION: {
        1: Row(("reader", "ada", 5, 0xFFFFFFFF, 1, 0, None, None, 0, None)),
        2: Row(("vier", None, 4, 0xFFFFFFFF, 1, 1, None, 20, 0, None)),
        3: Row(("mourned", "", 5, 0, 0, 0, NOTED.time + CENTURY, 21, 60, NOTED.time + CENTURY)),
    },
    Table.SUBSCRIPTION: {
        4: Row((1, "house/+/temperature", 1, 0, 1, 2, 17, "")),
        5: Row((1, "$share/crew/jobs/#", 2, 0, 0, 0, 0, "crew")),
        6: Row((2, "#", 0, 0, 0, 0, 0, "")),
        7: Row((1, "grüße/🌡", 2, 1, 0, 0, 268_435_455, "")),
    },
    Table.MESSAGE: {
        20: Row(("wills/vier", 1, 1, "vier", None), (b"gone", b"")),
        21: Row(("wills/mourned", 2, 0, "mourned", None), (b"", PROPERTIES)),
        22: Row(("house/attic/temperature", 1, 0, "sensor", NOTED.time + CENTURY), (b"19.5", PROPERTIES)),
        23: Row(("jobs/1", 2, 0, "", None), (bytes(range(256)) * 40, b"")),  # on several pages
        24: Row(("grüße/🌡", 2, 1, "sensor", None), ("warm ☀".encode(), b"")),
        25: Row(("house/empty", 1, 0, "sensor", None), (b"", b"")),
    },
    Table.DELIVERY: {
        30: Row((1, 22, 1, 0, 0, "17", "", 1, 1)),  # WAIT_PUBACK
        31: Row((1, 23, 2, 0, 0, "", "$share/crew/jobs/#", 2, 2)),  # WAIT_PUBREC
        32: Row((1, 24, 2, 1, 1, "268435455", "", 3, 3)),  # WAIT_PUBCOMP
        33: Row((1, 25, 1, 0, 0, "17,17", "", 0, 0)),  # QUEUED
    },
    Table.HELD: {40: Row((2, 65_535, 24))},
    Table.RETAINED: {50: Row((24,)), 51: Row((22,))},
    Table.NOTE: {
        60: Row(('dedup/["ada", "query/0"]',), (b"3 41 7",)),
        61: Row(("grüße/",), (bytes(range(256)),)),
    },
    Table.RUN: {
        70: Row(
            (3, "sensor", 0, 8, 5), (bytes.fromhex("3206000172000161 3206000172000262 3206000172000363"),)
        ),
        71: Row((2, "sensor", 1, 0, 0), (bytes.fromhex("32080002c3bc00070078 320700017200010079"),)),
    },
    Table.PART: {
        80: Row((2, 70, 1, 1, 9)),  # the second of three, sent
        81: Row((2, 70, 2, 1, 0)),
        82: Row((2, 71, 0, 2, 0)),
    },
}


def fixed_of(version: int) -> Rows:
    """What the fixed store of format *version* has: nothing in the tables that came later."""
    return {table: rows if table in tables_of(version) else {} for table, rows in FIXED.items()}


def write_fixed(path: Path) -> None:
    write_store(path, FIXED, program="pybroker 0.1.0")


def write_store(path: Path, *changes: Any, program: str = "") -> None:
    """Each of *changes* is one commit: rows by table and identifier, None to delete. Then a clean stop."""
    store = SqliteStore(str(path), program=program)
    store.open()
    for number, rows in enumerate(changes, 1):
        store.write(Batch(number, rows=dict(rows), clock=NOTED))
    store.close()


def random_rows(
    rng: random.Random, messages: int = 300, sizes: Sequence[int] = (0, 10, 200, 5000, 20_000)
) -> Rows:
    """Sessions with queues, held and retained messages, as a broker would have them."""
    last = iter(range(1, 1 << 20))
    rows: Rows = {table: {} for table in Table}
    for number in range(1, messages // 15 + 2):
        session = next(last)
        rows[Table.SESSION][session] = Row((f"client-{number}", "user", 5, 100, 1, 0, None, None, 0, None))
        for level in range(5):
            rows[Table.SUBSCRIPTION][next(last)] = Row((session, f"a/{level}/#", 1, 0, 0, 0, 0, ""))
    sessions = tuple(rows[Table.SESSION])
    for number in range(1, messages + 1):
        message = next(last)
        blobs = rng.randbytes(rng.choice(sizes)), rng.choice((b"", PROPERTIES))
        expires_at = rng.choice((None, NOTED.time + number))
        rows[Table.MESSAGE][message] = Row((f"a/{number}", 1, 0, "sender", expires_at), blobs)
        match rng.randrange(5):
            case 0:
                rows[Table.RETAINED][next(last)] = Row((message,))
            case 1:
                rows[Table.HELD][next(last)] = Row((rng.choice(sessions), number, message))
            case _:
                for session in rng.sample(sessions, 2):
                    values = (session, message, 1, 0, 0, "1,2", "", number, 1)
                    rows[Table.DELIVERY][next(last)] = Row(values)
    for number in range(messages // 10):
        packet = b"2" + varint_bytes(7 + number) + b"\0\1r\0\1" + bytes(2 + number)
        run, size = next(last), len(packet) if number % 2 else 0
        place = size and len(packet) - 4 - number
        rows[Table.RUN][run] = Row((9, "sender", 0, size, place), (packet * 9,))
        for session in rng.sample(sessions, 2):
            rows[Table.PART][next(last)] = Row((session, run, number % 4, 4, 0))
        rows[Table.NOTE][next(last)] = Row((f"owner/{number}",), (rng.randbytes(rng.choice(sizes)),))
    return rows


def without(rows: Rows, messages: Iterable[int]) -> dict[Table, dict[int, None]]:
    """The change that deletes *messages* and what holds them."""
    gone = set(messages)
    place = {Table.DELIVERY: 1, Table.HELD: 2, Table.RETAINED: 0}
    held = {
        table: {number: None for number, row in rows[table].items() if row.values[at] in gone}
        for table, at in place.items()
    }
    return {Table.MESSAGE: dict.fromkeys(gone), **held}


Found = dict[tuple[str, int], tuple[Any, ...]]


def found_in(path: Path) -> Found:
    """Every row, by table and identifier, as SQLite has it."""
    with closing(sqlite3.connect(path)) as db:
        tables = [table.name.lower() for table in Table]
        return {(name, row[0]): row for name in tables for row in db.execute(f"SELECT * FROM {name}")}


def as_found(rows: Any) -> Found:
    """What `found_in` gives for a store that has *rows*."""
    return {
        (table.name.lower(), number): (number, *row.blobs, *row.values)
        for table, changes in rows.items()
        for number, row in changes.items()
    }


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def snapshot(path: Path) -> dict[str, bytes]:
    """The files of a store, but for its lock."""
    files = {file.name: file.read_bytes() for file in path.parent.glob("broker.db*")}
    files.pop("broker.db-lock", None)
    return files


def spoil(path: Path, page: int, rng: random.Random, fill: bytes = b"") -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(fill * PAGE or rng.randbytes(PAGE))


@contextmanager
def opened(path: Path, *arguments: Any) -> Iterator[SqliteStore]:
    store = SqliteStore(str(path), *arguments)
    store.open()
    try:
        yield store
    finally:
        store.close()


def message(text: str = "") -> Row:
    return Row(("a", 1, 0, "sender", None), (text.encode(), b""))


def put(store: SqliteStore, number: int = 1, row: Row | None = None, **fields: Any) -> None:
    store.write(Batch(number, rows={Table.MESSAGE: {number: row or message(str(number))}}, **fields))


def numbers(path: Path) -> list[int]:
    """The messages that whoever opens *path* finds."""
    return [number for name, number in found_in(path) if name == "message"]


def killed(path: Path, where: Path) -> Path:
    """The files as a kill in this moment leaves them, somewhere else."""
    where.mkdir()
    for file in path.parent.glob(path.name + "*"):
        shutil.copy(file, where)
    return where / path.name


if __name__ == "__main__":
    target = FORMATS / f"{FORMAT}.db"
    if target.exists():
        raise SystemExit(f"{target} is there already: it stays as the version wrote it that made the format")
    write_fixed(target)
    Path(f"{target}-lock").unlink()
