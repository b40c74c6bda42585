"""SqliteStore: how it opens, what it commits and how durably, and what it says when it cannot."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import StoreError
from broker.store import repair, schema, sqlite
from broker.store.base import Batch, Fsync, Row, StoreClock, Table
from broker.store.schema import COLUMNS
from broker.store.sqlite import SqliteStore
from tests.store.contents import FIXED, as_found, found_in, killed, message, numbers, opened, put, write_fixed

WAIT = 30.0  # seconds, for the start of an interpreter on a busy machine
CLOCK = StoreClock(1.5, 2.5)
NOTHING: dict[Table, dict[int, Row]] = {table: {} for table in Table}
pytestmark = pytest.mark.usefixtures("no_wait")

# ---- opening


def test_the_first_opening_makes_the_file(path: Path) -> None:
    with opened(path) as store:
        assert store.path == str(path)
        assert {table: list(store.read(table)) for table in Table} == {table: [] for table in Table}
    assert repair.verify(str(path)).problems == []


def test_a_clean_stop_leaves_one_file_and_its_lock(path: Path) -> None:
    with opened(path) as store:
        put(store)
    assert {file.name for file in path.parent.iterdir()} == {"broker.db", "broker.db-lock"}


def test_the_clock_is_given_as_it_was_noted_last(path: Path) -> None:
    with opened(path) as store:
        put(store, clock=StoreClock(1.25, 2.5))
        put(store, 2, clock=StoreClock(3.25, 1_700_000_000.123456))
        put(store, 3)
    store = SqliteStore(str(path))
    assert store.open() == StoreClock(3.25, 1_700_000_000.123456)
    store.close()


def test_no_clock_was_noted_yet(path: Path) -> None:
    with opened(path):
        pass
    store = SqliteStore(str(path))
    assert store.open() is None
    store.close()


def test_the_program_is_noted(path: Path) -> None:
    with opened(path, Fsync.NORMAL, "pybroker 7"), closing(sqlite3.connect(path)) as db:
        assert sqlite.meta(db)["program"] == "pybroker 7"


def test_names_that_a_uri_would_read_otherwise(tmp_path: Path) -> None:
    for name in ("a b", "a?mode=ro", "a#b", "a%20b", "ü☀", "a&b"):
        with opened(tmp_path / name) as store:
            put(store)
        assert (tmp_path / name).is_file()
        with opened(tmp_path / name) as store:
            assert len(list(store.read(Table.MESSAGE))) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"a text that is no database. " * 500), "damaged"),
        (lambda path: path.with_name("broker.db-lock").mkdir(), "cannot be opened: Is a directory"),
    ],
)
def test_what_is_no_store(path: Path, make: Any, words: str) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=f"{re.escape(str(path))}.*{words}"):
        SqliteStore(str(path)).open()
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"No such file or directory .*; choose a file in a folder that"):
        SqliteStore(str(tmp_path / "nowhere" / "broker.db")).open()


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_database_of_somebody_else_is_left_alone(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("CREATE TABLE precious (data)")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"no store of pybroker; choose another with store\.path"):
        SqliteStore(str(path)).open()
    assert path.read_bytes() == before


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.touch()
    with opened(path) as store:
        put(store)
    assert numbers(path) == [1]


def test_a_first_start_that_was_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the header in WAL mode and the tables."""
    monkeypatch.setattr(sqlite, "create_statements", lambda: ["CREATE TABLE one (a)", "NO STATEMENT"])
    with pytest.raises(StoreError):
        SqliteStore(str(path)).open()
    monkeypatch.undo()
    assert path.stat().st_size > 0
    with opened(path) as store:
        put(store)
    assert numbers(path) == [1]


def test_nothing_is_left_open_when_it_cannot_be_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "create_statements", lambda: ["NO STATEMENT"])
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StoreError, match=re.escape(f"{path}: ")):
            SqliteStore(str(path)).open()
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_old_sqlite_is_refused_before_anything_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.31.1")
    with pytest.raises(StoreError, match=re.escape(f"{path}: SQLite 3.31.1 is too old, 3.32 is needed")):
        SqliteStore(str(path)).open()
    assert not path.exists()


# ---- clean or not


@pytest.mark.parametrize(("most", "looked"), [(0, 0), (64 << 20, 1)])
def test_after_a_clean_stop_a_small_file_is_checked(
    path: Path, monkeypatch: pytest.MonkeyPatch, most: int, looked: int
) -> None:
    write_fixed(path)
    checks: list[str] = []
    monkeypatch.setattr(sqlite, "wrong", lambda db, check: checks.append(check) or [])
    monkeypatch.setattr(sqlite, "CHECKED", most)
    with opened(path):
        assert len(checks) == looked


def test_after_another_stop_everything_is_checked(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as store:
        put(store)
        left = killed(path, tmp_path / "killed")
    with caplog.at_level("INFO", "broker.store"), opened(left):
        pass
    assert f"{left} was not closed properly; checked in" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "broker.store"), opened(left):
        pass
    assert "checked" not in caplog.text


def test_damage_is_found_after_an_unclean_stop(path: Path, tmp_path: Path) -> None:
    with opened(path) as store:
        for number in range(1, 200):
            put(store, number, message("x" * 500))
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        left = killed(path, tmp_path / "killed")
    with left.open("r+b") as file:
        file.seek(4096 * 10)
        file.write(b"\xff" * 4096)
    with pytest.raises(StoreError) as caught:
        SqliteStore(str(left)).open()
    assert str(caught.value).startswith(f"{left}: damaged (")
    assert "\n" not in str(caught.value)
    assert f"`pybroker store salvage {left} NEWFILE`" in str(caught.value)


def test_damage_after_a_clean_stop_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small file at once, in a large one when it is read."""
    write_fixed(path)
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'message'").fetchone()
    with path.open("r+b") as file:
        file.seek(4096 * (root - 1))
        file.write(b"\xff" * 4096)
    with pytest.raises(StoreError, match=r"damaged .*salvage"):
        SqliteStore(str(path)).open()
    monkeypatch.setattr(sqlite, "CHECKED", 0)
    with opened(path) as store, pytest.raises(StoreError, match=r"damaged .*salvage"):
        list(store.read(Table.MESSAGE))


def test_a_text_that_is_none_is_damage(path: Path) -> None:
    write_fixed(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE session SET client_id = CAST(x'ff' AS TEXT)")
        db.commit()
    with opened(path) as store, pytest.raises(StoreError, match=r"damaged .*UTF-8.*salvage"):
        list(store.read(Table.SESSION))


# ---- rows


def cells(kind: str) -> st.SearchStrategy[Any]:
    """What a column of *kind* may hold. U+0000 and surrogates are in no string of MQTT [MQTT5 1.5.4]."""
    return {
        "TEXT": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
        "INTEGER": st.integers(-(1 << 62), 1 << 62),
        "REAL": st.floats(0, 4e9).map(lambda value: round(value, 6)) | st.none(),
        "BLOB": st.binary(max_size=100) | st.integers(0, 9000).map(lambda size: b"z" * size),
    }[kind]


def rows(table: Table) -> st.SearchStrategy[Row]:
    blobs, plain = ([cells(column.split()[1]) for column in columns] for columns in COLUMNS[table])
    return st.builds(Row, st.tuples(*plain), st.tuples(*blobs))


identifiers = st.integers(1, 8) | st.integers(1, 1 << 40)
changes = st.fixed_dictionaries(
    {table: st.dictionaries(identifiers, st.none() | rows(table), max_size=9) for table in Table}
)


@given(st.lists(changes, min_size=1, max_size=4))
@settings(max_examples=60)
def test_what_is_read_is_what_was_written(batches: list[dict[Table, dict[int, Row | None]]]) -> None:
    expected: dict[Table, dict[int, Row]] = {table: {} for table in Table}
    with tempfile.TemporaryDirectory() as folder:
        with opened(Path(folder) / "broker.db") as store:
            for number, batch in enumerate(batches):
                store.write(Batch(number, rows=batch))
                for table, each in batch.items():
                    expected[table] |= {key: row for key, row in each.items() if row is not None}
                    for key in (key for key, row in each.items() if row is None):
                        expected[table].pop(key, None)
            found = {table: list(store.read(table)) for table in Table}
        with opened(Path(folder) / "broker.db") as store:
            assert found == {table: list(store.read(table)) for table in Table}
    assert found == {table: sorted(each.items()) for table, each in expected.items()}


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.0", "null", "true", '"', "\\", "\\u0000", "'; DROP TABLE session; --", "[1]", "{}",
     "a\nb\t\x01\x7f", "\ufeff\uffff\U0010ffff", "e\u0301", "ﬀ", "😀" * 100, "x" * 65_535],
)  # fmt: skip
def test_odd_strings(path: Path, text: str) -> None:
    with opened(path) as store:
        store.write(Batch(1, rows={Table.MESSAGE: {1: Row((text, 1, 0, text, None), (text.encode(), b""))}}))
        ((_, row),) = store.read(Table.MESSAGE)
    assert row == Row((text, 1, 0, text, None), (text.encode(), b""))


@pytest.mark.parametrize("blobs", [(b"", b""), (b"", b"p"), (b"p", b""), (b"\0", b"\0\0")])
def test_an_empty_blob_is_not_nothing(path: Path, blobs: tuple[bytes, bytes]) -> None:
    with opened(path) as store:
        put(store, 1, Row(("a", 1, 0, "", None), blobs))
        ((_, row),) = store.read(Table.MESSAGE)
    assert row.blobs == blobs


@pytest.mark.parametrize("number", [1, 0, 2**31, 2**53 + 1, 2**63 - 1, -1, -(2**53) - 1])
def test_integers(path: Path, number: int) -> None:
    with opened(path) as store:
        store.write(Batch(1, rows={Table.HELD: {5: Row((number, 1, number))}}))
        assert list(store.read(Table.HELD)) == [(5, Row((number, 1, number)))]


@pytest.mark.parametrize("seconds", [0.0, 1.0, 0.1, 1e-6, 1_700_000_000.123456, 2.0**53, 4e9 + 1e-6])
def test_times(path: Path, seconds: float) -> None:
    with opened(path) as store:
        put(store, 1, Row(("a", 1, 0, "", seconds), (b"", b"")), clock=StoreClock(seconds, seconds))
        ((_, row),) = store.read(Table.MESSAGE)
    assert row.values[-1] == seconds
    assert isinstance(row.values[-1], float)


def test_a_batch_may_be_larger_than_one_statement(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "AT_ONCE", 1000)
    batch = {number: message("x" * (number % 700)) for number in range(1, 100)}
    executed: list[str] = []
    with opened(path) as store:
        store.write(Batch(1, rows={Table.HELD: {7: Row((1, 1, 1))}}))
        store._connection.set_trace_callback(executed.append)
        store.write(Batch(2, rows={Table.MESSAGE: batch, Table.HELD: {7: None}}, clock=CLOCK))
        store._connection.set_trace_callback(None)
        assert dict(store.read(Table.MESSAGE)) == batch
        assert list(store.read(Table.HELD)) == []
    assert sum(text.startswith("REPLACE INTO message") for text in executed) > 4
    assert executed.count("BEGIN IMMEDIATE") == executed.count("COMMIT") == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 97, 383, 384, 511, 512, 513, 1000, 1025])
def test_any_number_of_rows(path: Path, count: int) -> None:
    """Statements are made for powers of two: what does not fill one leaves no rows behind."""
    rows = {number: message(f"{number}") for number in range(1, count + 1)}
    held = {number: Row((number, 1, number)) for number in rows}
    with opened(path) as store:
        store.write(Batch(1, rows={Table.MESSAGE: rows, Table.HELD: held}))
        assert dict(store.read(Table.MESSAGE)) == rows
        assert dict(store.read(Table.HELD)) == held
        assert len(list(schema.statements(Batch(1, rows={Table.HELD: held})))) <= 4
        store.write(Batch(2, rows={Table.MESSAGE: dict.fromkeys(rows), Table.HELD: {count: None}}))
        assert list(store.read(Table.MESSAGE)) == []
        assert [number for number, _ in store.read(Table.HELD)] == list(range(1, count))


@pytest.mark.parametrize("at_once", [1000, schema.AT_ONCE], ids=["several statements", "one statement"])
def test_a_batch_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(schema, "AT_ONCE", at_once)
    batch = {number: message("x" * 700) for number in range(1, 10)}
    with opened(path) as store:
        put(store, 1, message("before"))
        with pytest.raises(StoreError, match=re.escape(str(path))):
            store.write(Batch(2, rows={Table.MESSAGE: {**batch, 10: Row((object(),) * 5, (b"", b""))}}))
        assert dict(store.read(Table.MESSAGE)) == {1: message("before")}
        store.write(Batch(3, rows={Table.MESSAGE: batch}))
        assert dict(store.read(Table.MESSAGE)) == batch
    assert repair.verify(str(path)).facts


def test_reading_sees_one_moment(path: Path) -> None:
    with opened(path) as store:
        for number in range(1, 300):
            put(store, number, message("x" * 100))
        reading = iter(store.read(Table.MESSAGE))
        next(reading)
        store.write(Batch(1, rows={Table.MESSAGE: dict.fromkeys(range(100, 300))}))
        assert sum(1 for _ in reading) == 298
        assert sum(1 for _ in store.read(Table.MESSAGE)) == 99


def test_writing_is_for_another_thread(path: Path) -> None:
    with opened(path) as store:
        thread = threading.Thread(target=put, args=(store,))
        thread.start()
        thread.join(WAIT)
        assert [number for number, _ in store.read(Table.MESSAGE)] == [1]


# ---- how durable


@pytest.mark.parametrize(
    ("lowest", "asked", "level"),
    [
        (Fsync.NORMAL, Fsync.NEVER, 1),
        (Fsync.NORMAL, Fsync.NORMAL, 1),
        (Fsync.NORMAL, Fsync.ALWAYS, 2),
        (Fsync.NEVER, Fsync.NEVER, 0),
        (Fsync.NEVER, Fsync.NORMAL, 1),
        (Fsync.NEVER, Fsync.ALWAYS, 2),
    ],
)
def test_the_level_of_each_batch(path: Path, lowest: Fsync, asked: Fsync, level: int) -> None:
    with opened(path, lowest) as store:
        for fsync in (Fsync.NEVER, asked, Fsync.ALWAYS, asked):
            put(store, fsync=fsync)
            found = store._connection.execute("PRAGMA synchronous").fetchone()[0]
            assert found == (level if fsync is asked else max(fsync, lowest))


def test_the_stop_is_durable_whatever_came_before(path: Path) -> None:
    store = SqliteStore(str(path), Fsync.NEVER)
    store.open()
    put(store)
    executed: list[str] = []
    store._connection.set_trace_callback(executed.append)
    store.close()
    clean = next(number for number, text in enumerate(executed) if "'clean', 1" in text)
    assert "PRAGMA synchronous = FULL" in executed[:clean]


class Unable:
    """A connection that cannot do what begins with *words*."""

    def __init__(self, db: sqlite3.Connection, words: str) -> None:
        self._db, self._words = db, words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql.startswith(self._words):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        return self._db.execute(sql, *parameters)


@pytest.mark.parametrize("words", ["REPLACE INTO message", "PRAGMA wal_checkpoint"])
def test_after_a_sync_that_failed_the_wal_is_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says the same before and after, but the next sync has something to write."""
    written: list[tuple[str, int]] = []
    monkeypatch.setattr(sqlite, "MERGE", 1)
    with opened(path) as store:
        put(store)
        db, store._db = store._connection, Unable(store._connection, words)  # type: ignore[assignment]
        try:
            put(store, 2)
        except StoreError as error:
            assert words.startswith("REPLACE")
            assert "disk I/O error" in str(error)
        else:
            assert "WAL cannot be merged: disk I/O error" in caplog.text
        store._db = db
        write, commit = os.pwrite, store._write

        def pwrite(fd: int, data: bytes, at: int) -> int:
            written.append((os.readlink(f"/proc/self/fd/{fd}"), len(data)))
            assert os.pread(fd, len(data), at) == data
            return write(fd, data, at)

        monkeypatch.setattr(sqlite.os, "pwrite", pwrite)
        monkeypatch.setattr(store, "_write", lambda batch: (written.append(("commit", 0)), commit(batch)))
        size = os.path.getsize(f"{path}-wal")
        for number in (3, 4):
            put(store, number)
        assert written == [(f"{path}-wal", size), ("commit", 0), ("commit", 0)], "once, and before"
    assert numbers(path) == ([1, 3, 4] if words.startswith("REPLACE") else [1, 2, 3, 4])


def test_the_wal_does_not_grow_for_ever(path: Path) -> None:
    with opened(path) as store:
        for number in range(1, 4000):
            put(store, number % 100 + 1, message("x" * 3000))
        assert os.path.getsize(f"{path}-wal") < 10_000_000


@pytest.mark.parametrize("step", [1, 2, 64, 1000], ids=lambda step: f"every {step}")
def test_what_the_wal_grows_by_is_about_right(path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Rows that are near to each other share pages; those that are far apart do not."""
    monkeypatch.setattr(sqlite, "MERGE", 1 << 30)
    with opened(path) as store:
        rows = {number: message("x" * 40) for number in range(1, 20_000)}
        store.write(Batch(1, rows={Table.MESSAGE: rows}))
        pages, counted = os.path.getsize(f"{path}-wal") // 4096, store._grown
        rows = {number: message("y" * 40) for number in range(1, 20_000, step)}
        store.write(Batch(2, rows={Table.MESSAGE: rows}))
        pages, counted = os.path.getsize(f"{path}-wal") // 4096 - pages, store._grown - counted
    assert pages / 2 < counted < pages * 4


# ---- when it cannot be written


def test_full_is_told_from_other_errors(path: Path) -> None:
    with opened(path) as store:
        store._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(StoreError, match="full") as caught:
            put(store, 1, message("x" * 100_000))
        assert caught.value.full
        with pytest.raises(StoreError) as caught:
            put(store, 2)
        assert caught.value.full, "something large is tried first"
        store._connection.execute("PRAGMA max_page_count = 1000")
        put(store, 3)
        assert [number for number, _ in store.read(Table.MESSAGE)] == [3]
        assert "probe" not in sqlite.meta(store._connection)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM meta WHERE key = 'probe'").fetchone() == (0,)


def test_a_stop_while_it_cannot_be_written_is_no_clean_one(path: Path) -> None:
    with opened(path) as store:
        store._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(StoreError):
            put(store, 1, message("x" * 100_000))
    with closing(sqlite3.connect(path)) as db:
        assert sqlite.meta(db)["clean"] == 0


def test_another_program_that_writes(path: Path) -> None:
    with opened(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program; close that") as caught:
            put(store)
        assert not caught.value.full
        other.execute("ROLLBACK")
        put(store)
        assert [number for number, _ in store.read(Table.MESSAGE)] == [1]


def test_a_file_that_may_not_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is for whoever is not root."""
    write_fixed(path)
    monkeypatch.setattr(sqlite.os, "open", os.open)
    open_it = sqlite.connect
    monkeypatch.setattr(sqlite, "connect", lambda path, mode="rwc": open_it(path, "ro"))
    with pytest.raises(StoreError, match="must exist and be writable"):
        SqliteStore(str(path)).open()


def test_closing_twice_and_without_opening(path: Path) -> None:
    store = SqliteStore(str(path))
    store.close()
    store.open()
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is not open"):
        put(store)


def test_the_fixed_store_is_what_it_says(path: Path) -> None:
    write_fixed(path)
    assert found_in(path) == as_found(FIXED)
