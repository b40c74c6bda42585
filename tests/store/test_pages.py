"""SQLite's file format as pages.py reads it, compared with what SQLite wrote."""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.pages import BadPage, Pages, Tree, entries, free_pages, record, varint

PLAIN = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(max_size=30)
CELLS = PLAIN | st.binary(max_size=50) | st.integers(0, 30_000).map(bytes)


@contextmanager
def pages_of(path: Path) -> Iterator[Pages]:
    with closing(Pages(str(path))) as pages:
        yield pages


def rows_of(pages: Pages, width: int, table: str = "t") -> list[tuple[Any, ...]]:
    used: set[int] = set()
    schema = Tree(pages, used, 1, 5)
    (root,) = [cells[3] for _, cells, _ in schema.rows() if cells[1] == table]
    tree = Tree(pages, used, root, width)
    found = [(number, *cells[1:]) for number, cells, _ in tree.rows()]
    assert schema.gaps == tree.gaps == []
    everything = used | free_pages(pages)
    assert everything == set(range(1, pages.count + 1)), "each page is explained"
    return found


@given(st.dictionaries(st.integers(-(1 << 63), (1 << 63) - 1), st.tuples(CELLS, CELLS), max_size=60),
       st.sampled_from([512, 1024, 4096, 65536]), st.booleans())  # fmt: skip
@settings(max_examples=60)
def test_what_sqlite_writes(rows: dict[int, tuple[Any, Any]], size: int, wal: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.execute(f"PRAGMA page_size = {size}")
            db.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, one, two)")
            db.execute("BEGIN")
            for number, cells in rows.items():
                db.execute("INSERT INTO t VALUES (?, ?, ?)", (number, *cells))
            db.execute("DELETE FROM t WHERE id % 3 = 0")
            db.execute("COMMIT")
            with pages_of(path) as pages:
                assert pages.size == size
                assert rows_of(pages, 3) == db.execute("SELECT * FROM t ORDER BY id").fetchall()
                assert (pages.left_out, pages.missing) == (0, 0)


def test_a_tree_of_three_levels(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a", isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, one)")
        rows = [(number, "x" * 100) for number in range(1, 8000)]
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, ?)", rows)
        db.execute("COMMIT")
    with pages_of(tmp_path / "a") as pages:
        assert rows_of(pages, 2) == rows
        tree = Tree(pages, set(), 2, 2)
        list(tree.rows())
        assert tree.depth >= 2


@given(st.lists(PLAIN | st.binary(max_size=50), max_size=20))
def test_a_record(values: list[Any]) -> None:
    """Made by SQLite as a row of an index-like table."""
    columns = [f"c{number}" for number in range(len(values) + 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.execute(f"CREATE TABLE t ({', '.join(columns)}, PRIMARY KEY (c0)) WITHOUT ROWID")
            db.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(columns))})", ("key", *values))
        with pages_of(path) as pages:
            bad: list[str] = []
            assert [entry.cells for entry in entries(pages, 2, set(), bad)] == [["key", *values]]
            assert bad == []


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("00", 0),
        ("7f", 127),
        ("8100", 128),
        ("ff7f", 16_383),
        ("81808000", 1 << 21),
        ("ffffffffffffffff00", -256),
        ("ffffffffffffffffff", -1),
        ("bfffffffffffffffff", (1 << 63) - 1),
        ("c08080808080808000", -(1 << 63)),
    ],
)
def test_numbers(data: str, value: int) -> None:
    assert varint(bytes.fromhex(data), 0) == (value, len(data) // 2)
    with pytest.raises(IndexError):
        varint(bytes.fromhex(data)[:-1], 0)


@pytest.mark.parametrize(
    "data",
    ["", "00", "03 01", "02 0a", "02 0b", "02 01", "02 00 00", "02 07 00", "02 0f 80", "03 01 80", "ff" * 9],
)
def test_records_that_are_none(data: str) -> None:
    with pytest.raises((ValueError, IndexError, struct.error)):
        if record(bytes.fromhex(data)) == []:
            raise BadPage("an empty one is not written")


# ---- the WAL


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, list[int]]:
    """A database with 20 commits in its WAL; and the size of the WAL after each."""
    sizes = []
    with closing(sqlite3.connect(tmp_path / "a", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, one)")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for number in range(1, 21):
            db.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 1500))
            sizes.append((tmp_path / "a-wal").stat().st_size)
        (tmp_path / "copy").mkdir()
        for file in tmp_path.glob("a*"):
            shutil.copy(file, tmp_path / "copy")
    return tmp_path / "copy" / "a", sizes


def numbers(path: Path) -> list[int]:
    with pages_of(path) as pages:
        return [row[0] for row in rows_of(pages, 2)]


def sqlite_says(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        return [number for (number,) in db.execute("SELECT id FROM t")]


def test_commits_in_the_wal_count(crashed: tuple[Path, list[int]]) -> None:
    path, _ = crashed
    assert numbers(path) == list(range(1, 21))
    Path(f"{path}-wal").write_bytes(b"")
    assert numbers(path) == []


def test_a_wal_that_was_begun_anew(tmp_path: Path) -> None:
    """Behind the new frames are old ones, of another salt."""
    path = tmp_path / "a"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, one)")
        for number in range(1, 100):
            db.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 1500))
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        db.execute("DELETE FROM t WHERE id > 5")
        assert numbers(path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(30))
def test_a_torn_or_damaged_wal_says_what_sqlite_says(crashed: tuple[Path, list[int]], seed: int) -> None:
    (path, sizes), rng = crashed, random.Random(seed)
    wal = bytearray(Path(f"{path}-wal").read_bytes())
    at = rng.randrange(32, len(wal))
    if seed % 2:
        del wal[at:]
    else:
        wal[at] ^= 1 << rng.randrange(8)
    Path(f"{path}-wal").write_bytes(wal)
    whole = sum(size <= at for size in sizes)
    assert numbers(path) == list(range(1, whole + 1))
    foreign = seed % 2 == 0 and (at - 32) % (4096 + 24) in range(8, 16)  # it has another salt now
    with pages_of(path) as pages:
        assert pages.left_out > 0 or foreign or len(wal) - [32, *sizes][whole] < 4096 + 24
    assert sqlite_says(path) == list(range(1, whole + 1))


@pytest.mark.parametrize("seed", range(8))
def test_a_wal_without_its_head_is_none(crashed: tuple[Path, list[int]], seed: int) -> None:
    path, _ = crashed
    wal = bytearray(Path(f"{path}-wal").read_bytes())
    wal[seed * 4] ^= 0x40
    Path(f"{path}-wal").write_bytes(wal)
    assert numbers(path) == sqlite_says(path) == []


# ---- what is no database


@given(st.binary(max_size=3000), st.binary(max_size=3000), st.booleans())
def test_anything_can_be_read(data: bytes, wal: bytes, head: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(b"SQLite format 3\0\2\0\1\1\0\x40\x20\x20" * head + data)
        Path(f"{path}-wal").write_bytes(wal)
        with pages_of(path) as pages:
            tree = Tree(pages, set(), 1, 5)
            assert list(tree.rows()) == [] or head
            free_pages(pages)
            for number in range(1, pages.count + 1):
                list(entries(pages, number, set(), []))


@pytest.mark.parametrize("seed", range(40))
def test_a_spoilt_file_can_be_read(tmp_path: Path, seed: int) -> None:
    """What comes may be wrong, but it ends, and there is no other error."""
    path, rng = tmp_path / "a", random.Random(seed)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, one)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?, ?)", [(n, bytes(rng.randrange(900))) for n in range(1, 300)])
        db.execute("DELETE FROM t WHERE id % 3 = 0")
        db.execute("COMMIT")
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 10, 100, 1000))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)
    with pages_of(path) as pages:
        used: set[int] = set()
        for root in (1, 2):
            assert len(list(Tree(pages, used, root, 5 if root == 1 else 2).rows())) <= 300
        free_pages(pages)
        for number in range(1, pages.count + 1):
            list(entries(pages, number, set(), []))
