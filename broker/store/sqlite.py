"""SqliteStore: all durable state in one SQLite file (WAL)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Any

from broker.errors import StoreError
from broker.store.base import Batch, Fsync, Row, StoreClock, Table
from broker.store.schema import APPLICATION_ID, COLUMNS, FORMAT, MIGRATIONS, create_statements, names

log = logging.getLogger("broker.store")

LOCK_TIME = 1.0  # seconds that a process which is just ending may take to let go of the lock
BUSY_TIME = 5.0  # seconds that another program may hold the database's own write lock
AT_ONCE = 16 * 1024 * 1024  # bytes of BLOBs for one statement; a larger batch takes several
PROBE = 65536  # bytes that must fit before a store that was full is tried with messages again
FULL = ("SQLITE_FULL",)

BLOBS, VALUES = 2, 10  # the most of each that any table has


def connect(path: str, mode: str = "rwc") -> sqlite3.Connection:
    """A connection in autocommit mode; *mode* is that of SQLite's URIs: ro, rw or rwc."""
    uri = "file:" + path.replace("%", "%25").replace("?", "%3f").replace("#", "%23") + f"?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIME, cached_statements=16
    )


class SqliteStore:
    """One file and its lock. A DurableStore: `open`, then `read`, then `write` from one thread, `close`.

    A batch is one statement: an INSERT into a view whose triggers put and delete in the tables. Each
    statement gives the interpreter lock away and must get it back, which under load costs more than
    all the rows of a batch (1,000 rows, busy loop: 20 ms with two `executemany`, 4 ms so; 2 cores).
    """

    def __init__(self, path: str, lowest: Fsync = Fsync.NORMAL, program: str = "") -> None:
        """*lowest* is what commits get that nobody waits for: NEVER only if no message asks for more.

        *program* is noted in the file.
        """
        self.path = os.path.abspath(path)
        self._program = program
        self._lowest = lowest
        self._fsync: Fsync | None = None
        self._db: sqlite3.Connection | None = None
        self._lock = -1
        self._identity = (0, 0)
        self._failing = False

    # ---- opening

    def open(self) -> StoreClock | None:
        """See DurableStore. After an unclean stop the whole file is checked; how long, the log tells."""
        self._take_lock()
        try:
            with explained(self.path):
                return self._open()
        except BaseException:
            self._close_all()
            raise

    def _open(self) -> StoreClock | None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # for its owner alone
        new = os.path.getsize(self.path) == 0
        self._connect()
        db = self._connection
        if new:
            self._create(db)
        check_format(db, self.path)
        if not new and meta(db).get("clean") != 1:
            self._check(db)
        self._migrate(db)
        self._set_fsync(Fsync.ALWAYS)
        db.execute("REPLACE INTO meta VALUES ('clean', 0), ('program', ?)", (self._program,))
        sync_folder(self.path)
        noted = meta(db)
        if "time" in noted and "wall" in noted:
            return StoreClock(noted["time"], noted["wall"])
        return None

    def _connect(self) -> None:
        self._db = db = connect(self.path, "rw")
        self._fsync = None
        if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreError(f"{self.path}: this file system cannot do WAL; choose another with store.path")
        for statement in change_statements():
            db.execute(statement)
        self._identity = identity(self.path)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreError(f"{self.path}: the store is not open")
        return self._db

    def _take_lock(self) -> None:
        """One process at a time. The lock goes with the process, however it ends."""
        name = self.path + "-lock"
        try:
            self._lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be opened: {error.strerror} ({name}); choose a file in a folder that "
                "exists and may be written, with store.path"
            ) from None
        until = time.monotonic() + LOCK_TIME
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
                    self._close_all()
                    raise StoreError(
                        f"{self.path}: in use by process {holder}; stop it, or give this broker another file "
                        "with store.path"
                    ) from None
                time.sleep(0.02)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _create(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        for statement in create_statements():
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('created', ?), ('clean', 1)", (time.time(),))
        db.execute("COMMIT")
        log.info("new store %s", self.path)

    def _check(self, db: sqlite3.Connection) -> None:
        """The last stop was no clean one: is the file whole? Cost: reads all of it."""
        began = time.monotonic()
        found = [text for (text,) in db.execute("PRAGMA quick_check(10)")]
        if found != ["ok"]:
            raise damaged(self.path, "; ".join(found))
        log.info("%s was not closed properly; checked in %.2f s: sound", self.path, time.monotonic() - began)

    def _migrate(self, db: sqlite3.Connection) -> None:
        at = db.execute("PRAGMA user_version").fetchone()[0]
        for version in range(at + 1, FORMAT + 1):
            log.info("%s: from format %d to %d", self.path, version - 1, version)
            db.execute("BEGIN IMMEDIATE")
            for statement in MIGRATIONS[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version}")
            db.execute("COMMIT")

    # ---- reading

    def read(self, table: Table) -> Iterable[tuple[int, Row]]:
        """All rows by identifier, over a connection of its own: the writer is not in the way."""
        with explained(self.path), contextlib.closing(connect(self.path, "ro")) as db:
            yield from rows_of(db, table)

    # ---- writing

    def write(self, batch: Batch) -> None:
        """See DurableStore."""
        try:
            with explained(self.path):
                if batch.clock is not None or self._failing:
                    self._see_to_file()
                self._write(batch)
        except StoreError:
            self._failing = True
            raise
        self._failing = False

    def _write(self, batch: Batch) -> None:
        db = self._connection
        self._set_fsync(batch.fsync)
        parts = list(statements(batch))
        if self._failing:
            parts.append((json.dumps([[0, "probe", 1, PROBE]]), os.urandom(PROBE)))
        if len(parts) == 1:
            db.execute(CHANGE, parts[0])
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            for part in parts:
                db.execute(CHANGE, part)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _set_fsync(self, fsync: Fsync) -> None:
        fsync = max(fsync, self._lowest)
        if fsync is not self._fsync:
            word = {Fsync.NEVER: "OFF", Fsync.NORMAL: "NORMAL", Fsync.ALWAYS: "FULL"}[fsync]
            self._connection.execute(f"PRAGMA synchronous = {word}")
            self._fsync = fsync

    # ---- the file itself

    def _see_to_file(self) -> None:
        """Somebody may have removed the file under us: all of it is written to a new one then."""
        try:
            here = identity(self.path)
        except FileNotFoundError:
            self._rescue()
            return
        if here != self._identity:
            raise StoreError(
                f"{self.path}: replaced by another file while in use; move that away, and the store goes on"
            )
        if not os.path.exists(self.path + "-wal"):
            log.error("%s-wal was removed while in use; the store is written anew", self.path)
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            self._connect()
        if not os.path.exists(self.path + "-lock"):
            os.close(self._lock)
            self._take_lock()

    def _rescue(self) -> None:
        log.error("%s was removed while in use; it is written anew", self.path)
        if not os.path.exists(self.path + "-lock"):
            os.close(self._lock)
            self._take_lock()
        copy = self.path + "-rescue"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)
        with contextlib.closing(connect(copy)) as target:
            self._connection.backup(target)
        self._connection.close()
        os.rename(copy, self.path)
        sync_folder(self.path)
        self._connect()

    # ---- the end

    def close(self) -> None:
        """See DurableStore."""
        try:
            with explained(self.path):
                if self._db is not None and not self._failing:
                    self._set_fsync(Fsync.ALWAYS)
                    self._db.execute("REPLACE INTO meta VALUES ('clean', 1)")
                    self._db.execute("DELETE FROM meta WHERE key = 'probe'")
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._close_all()

    def _close_all(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


# ---- statements


def change_statements() -> Iterator[str]:
    """The view that batches are inserted into, and a trigger for each thing that may be done to a table."""
    blobs = [f"blob{i}" for i in range(BLOBS)]
    values = [f"v{i}" for i in range(VALUES)]
    columns = ", ".join(f"0 AS {column}" for column in ("kind", "id", *blobs, *values))
    yield f"CREATE TEMP VIEW change AS SELECT {columns}"
    yield (
        "CREATE TEMP TRIGGER put_meta INSTEAD OF INSERT ON change WHEN NEW.kind = 0 BEGIN "
        "REPLACE INTO meta VALUES (NEW.id, ifnull(NEW.blob0, NEW.v0)); END"
    )
    for table, (own_blobs, own_values) in COLUMNS.items():
        name = table.name.lower()
        cells = [f"NEW.{c}" for c in ("id", *blobs[: len(own_blobs)], *values[: len(own_values)])]
        yield (
            f"CREATE TEMP TRIGGER put_{name} INSTEAD OF INSERT ON change WHEN NEW.kind = {table:d} BEGIN "
            f"REPLACE INTO {name} (id, {', '.join(names(table))}) VALUES ({', '.join(cells)}); END"
        )
        yield (
            f"CREATE TEMP TRIGGER delete_{name} INSTEAD OF INSERT ON change WHEN NEW.kind = -{table:d} BEGIN "
            f"DELETE FROM {name} WHERE id = NEW.id; END"
        )


# A row of ?1, which is JSON, is [kind, id, offset and length of each BLOB in ?2, values].
CHANGE = (
    "INSERT INTO change SELECT value->>0, value->>1, "
    + ", ".join(f"substr(?2, value->>{2 + 2 * i}, value->>{3 + 2 * i})" for i in range(BLOBS))
    + ", "
    + ", ".join(f"value->>{2 + 2 * BLOBS + i}" for i in range(VALUES))
    + " FROM json_each(?1)"
)


def statements(batch: Batch) -> Iterator[tuple[str, bytes]]:
    """The parameters of CHANGE that do what *batch* says; at least one pair."""
    rows: list[list[Any]] = []
    blobs: list[bytes] = []
    at = 1  # SQL counts bytes from 1
    if batch.clock is not None:
        for key, value in (("time", batch.clock.time), ("wall", batch.clock.wall)):
            rows.append([0, key, *[None] * 2 * BLOBS, value])
    for table, changes in batch.rows.items():
        for number, row in changes.items():
            if row is None:
                rows.append([-table, number])
                continue
            places: list[int | None] = [None] * (2 * BLOBS)
            for i, blob in enumerate(row.blobs):
                places[2 * i : 2 * i + 2] = [at, len(blob)]
                blobs.append(blob)
                at += len(blob)
            rows.append([table.value, number, *places, *row.values])
            if at > AT_ONCE:
                yield json.dumps(rows), b"".join(blobs)
                rows, blobs, at = [], [], 1
    yield json.dumps(rows), b"".join(blobs)


def rows_of(db: sqlite3.Connection, table: Table) -> Iterator[tuple[int, Row]]:
    """The rows of *table* in the order of their identifiers."""
    width = len(COLUMNS[table][0])
    for number, *cells in db.execute(
        f"SELECT id, {', '.join(names(table))} FROM {table.name.lower()} ORDER BY id"
    ):
        yield number, Row(tuple(cells[width:]), tuple(cells[:width]))


# ---- what a file is, and what went wrong with it


def meta(db: sqlite3.Connection) -> dict[str, Any]:
    """What the store says of itself."""
    return dict(db.execute("SELECT key, value FROM meta WHERE key != 'probe'"))


def check_format(db: sqlite3.Connection, path: str) -> None:
    """Raises StoreError for a file that is not ours, or of a format that we do not know."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path}: an SQLite file, but no store of pybroker; choose another with store.path")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > FORMAT:
        raise StoreError(
            f"{path}: written by a newer pybroker (store format {version}, this one knows {FORMAT}); "
            "use that version, or another file with store.path"
        )


def damaged(path: str, what: str) -> StoreError:
    return StoreError(
        f"{path}: damaged ({what}); `pybroker store salvage {path} NEWFILE` copies what is readable, then "
        "put NEWFILE in its place"
    )


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """What SQLite and the system say, as a StoreError that names the file and the way out."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise damaged(path, str(error)) from None
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            raise StoreError(f"{path}: {error}; it and its folder must exist and be writable") from None
        if name.startswith("SQLITE_BUSY"):
            raise StoreError(f"{path}: locked by another program; close that") from None
        raise StoreError(f"{path}: {error}", full=name in FULL) from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from None


def identity(path: str) -> tuple[int, int]:
    """What tells the file from another one of the same name."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def sync_folder(path: str) -> None:
    """Make the names in the folder of *path* survive a power loss."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
