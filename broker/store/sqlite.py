"""SqliteStore: all durable state in one SQLite file (WAL)."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Any

from broker.errors import StoreError
from broker.store.base import Batch, Fsync, Row, StoreClock, Table
from broker.store.schema import (
    APPLICATION_ID,
    COLUMNS,
    FORMAT,
    MIGRATIONS,
    PREPARED,
    create_statements,
    names,
    statements,
)

log = logging.getLogger("broker.store")

LOCK_TIME = 1.0  # seconds that a process which is just ending may take to let go of the lock
BUSY_TIME = 5.0  # seconds that another program may hold the database's own write lock
PAGE = 4096  # bytes, about
NEAR = 32  # rows with identifiers this near to each other are on one page, about
OLDEST = (3, 32)  # of SQLite: the first that takes as many values in one statement as a batch has
CHECKED = 64 << 20  # bytes; a larger file is checked only after an unclean stop
MERGE = 1000  # pages that the WAL grows by, about, until they are written to the database too
FULL = ("SQLITE_FULL",)


def connect(path: str, mode: str = "rwc") -> sqlite3.Connection:
    """A connection in autocommit mode; *mode* is that of SQLite's URIs: ro, rw or rwc."""
    uri = "file:" + path.replace("%", "%25").replace("?", "%3f").replace("#", "%23") + f"?mode={mode}"
    return sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIME,
        cached_statements=PREPARED,
    )


class SqliteStore:
    """One file and its lock. A DurableStore: `open`, then `read`, then `write` from one thread, `close`.

    A batch is few statements, whatever is in it. Each, and each row of an `executemany`, gives the
    interpreter lock away and must get it back, which under load costs more than all the rows of a batch.
    """

    def __init__(self, path: str, lowest: Fsync = Fsync.NORMAL, program: str = "") -> None:
        """*lowest* is what commits get that nobody waits for: NEVER only if no message asks for more.

        *program* is noted in the file.
        """
        self.path = os.path.realpath(path)  # SQLite follows links too, with what it has beside the file
        self._program = program
        self._lowest = lowest
        self._fsync: Fsync | None = None
        self._db: sqlite3.Connection | None = None
        self._lock = -1
        self._identity = (0, 0)
        self._folder_changed = 0
        self._grown = 0  # pages in the WAL since the last merge, about
        self._failing = False  # the last batch could not be written
        self._doubtful = False  # a sync has failed

    # ---- opening

    def open(self) -> StoreClock | None:
        """See DurableStore. A small file, or any after an unclean stop, is checked whole: see `_check`."""
        if sqlite3.sqlite_version_info < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            raise StoreError(f"{self.path}: SQLite {sqlite3.sqlite_version} is too old, {wanted} is needed")
        self._lock = take_lock(self.path)
        try:
            with explained(self.path):
                return self._open()
        except BaseException:
            self._close_all()
            raise

    def _open(self) -> StoreClock | None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # for its owner alone
        self._connect()
        db = self._connection
        if is_empty(db):
            self._create(db)
        else:
            self._check(db, clean=meta(db).get("clean") == 1)
        self._migrate(db)
        self._set_fsync(Fsync.ALWAYS)
        db.execute("REPLACE INTO meta VALUES ('clean', 0), ('program', ?)", (self._program,))
        # A sync may have failed when it was opened before, and its pages count as written since: all that is
        # in the WAL is written once more, the first page of a new file with it.
        self._write_wal_again()
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        sync_folder(self.path)
        noted = meta(db)
        clock = StoreClock(noted.get("time", math.nan), noted.get("wall", math.nan))
        return clock if all(type(value) in (int, float) and math.isfinite(value) for value in clock) else None

    def _connect(self) -> None:
        self._db = db = connect(self.path, "rw")
        self._fsync = None
        self._grown = 0
        if not is_empty(db):
            check_format(db, self.path)  # nothing is changed before: it may belong to somebody else
        if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreError(f"{self.path}: this file system cannot do WAL; choose another with store.path")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # it says nothing of failures: see _merge
        self._identity = identity(self.path)
        self._folder_changed = self._folder_time()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreError(f"{self.path}: the store is not open")
        return self._db

    def _create(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        for statement in create_statements():
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('created', ?), ('clean', 1)", (time.time(),))
        db.execute("COMMIT")
        log.info("new store %s", self.path)

    def _check(self, db: sqlite3.Connection, clean: bool) -> None:
        """Is the file whole? Cost: reads all of it, 0.6 ms a MB; not when it is large and was closed well."""
        if clean and os.path.getsize(self.path) > CHECKED:
            return
        began = time.monotonic()
        if found := wrong(db, "quick_check(10)"):
            raise damaged(self.path, "; ".join(found))
        if not clean:
            took = time.monotonic() - began
            log.info("%s was not closed properly; checked in %.2f s: sound", self.path, took)

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
        """See DurableStore. What is reported is in a file that bears the name, whoever removed that one."""
        try:
            with explained(self.path):
                if self._failing or self._doubtful:
                    self._see_to_files()
                    self._write_wal_again()
                self._write(batch)
                if batch.clock is not None or self._folder_changed != self._folder_time():
                    self._see_to_files()
        except StoreError:
            self._failing = self._doubtful = True
            raise
        self._failing = False
        self._merge()

    def _write(self, batch: Batch) -> None:
        db = self._connection
        self._set_fsync(batch.fsync)
        todo = list(statements(batch, self._failing))
        near = sum(len({number // NEAR for number in rows}) for rows in batch.rows.values())
        self._grown += 4 + near + sum(each.size for each in todo) // PAGE
        if len(todo) == 1:
            db.execute(todo[0].sql, todo[0].cells)
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            for sql, cells, _ in todo:
                db.execute(sql, cells)
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

    def _merge(self) -> None:
        """Write what is in the WAL to the database, now and then, so that the WAL begins anew."""
        if self._grown < MERGE:
            return
        self._grown = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:  # nothing is lost: it is all in the WAL. But was that synced?
            log.error("%s: its WAL cannot be merged: %s", self.path, error)
            self._doubtful = True

    def _write_wal_again(self) -> None:
        """After a failed sync: the system holds the pages of it for clean, and would never write them.

        SQLite repeats the frames of the commit that failed, not those of earlier ones that nobody
        synced; a power loss would cut the log there. The same bytes written again make the pages dirty.
        """
        with open(self.path + "-wal", "r+b", buffering=0) as file:
            at = 0
            while data := os.pread(file.fileno(), 1 << 16, at):
                os.pwrite(file.fileno(), data, at)
                at += len(data)
        self._doubtful = False

    # ---- the files themselves

    def _folder_time(self) -> int:
        """Another one after a file of the folder was removed, renamed or made."""
        try:
            return os.stat(os.path.dirname(self.path)).st_mtime_ns
        except FileNotFoundError:
            return 0

    def _see_to_files(self) -> None:
        """Somebody may have removed them under us: what is committed goes to files that bear the names."""
        self._folder_changed = self._folder_time()
        self._see_to_lock()
        try:
            here = identity(self.path)
        except FileNotFoundError:
            self._rescue()
            return
        if here != self._identity:
            raise StoreError(
                f"{self.path}: replaced by another file while in use; move that away, and the store goes on"
            )
        for name in ("-wal", "-shm"):
            if not os.path.exists(self.path + name):
                self._reopen(name)

    def _see_to_lock(self) -> None:
        found = os.fstat(self._lock)
        with contextlib.suppress(FileNotFoundError):
            if identity(self.path + "-lock") == (found.st_dev, found.st_ino):
                return
        lock = take_lock(self.path)
        os.close(self._lock)
        self._lock = lock

    def _reopen(self, removed: str) -> None:
        """Bring all that is committed into the database, and begin a new WAL."""
        log.error("%s%s was removed while in use; it is made anew", self.path, removed)
        self._set_fsync(Fsync.ALWAYS)
        busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(f"{self.path}: locked by another program; close that")
        self._connection.close()
        self._connect()

    def _rescue(self) -> None:
        """Write the whole store, which this connection still has, to a new file."""
        log.error("%s was removed while in use; it is written anew", self.path)
        copy = self.path + "-rescue"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)
        os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(connect(copy, "rw")) as target:
            self._connection.backup(target)
        os.rename(copy, self.path)  # one of them is there at any moment
        sync_folder(self.path)
        self._connection.close()  # before there is a new WAL: SQLite removes what is called like the old one
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
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
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


def rows_of(db: sqlite3.Connection, table: Table) -> Iterator[tuple[int, Row]]:
    """The rows of *table* in the order of their identifiers."""
    width = len(COLUMNS[table][0])
    for number, *cells in db.execute(
        f"SELECT id, {', '.join(names(table))} FROM {table.name.lower()} ORDER BY id"
    ):
        yield number, Row(tuple(cells[width:]), tuple(cells[:width]))


# ---- what a file is, and what went wrong with it


def take_lock(path: str) -> int:
    """The lock of the store *path*, as an open file: it goes with the process, however that ends.

    Raises StoreError when another process has it.
    """
    path = os.path.realpath(path)
    name = path + "-lock"
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be opened: {error.strerror} ({name}); choose a file in a folder that "
            "exists and may be written, with store.path"
        ) from None
    until = time.monotonic() + LOCK_TIME
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > until:
                holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
                os.close(lock)
                raise StoreError(
                    f"{path}: in use by process {holder}; stop it, or choose another file with store.path"
                ) from None
            time.sleep(0.02)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def meta(db: sqlite3.Connection) -> dict[str, Any]:
    """What the store says of itself."""
    return dict(db.execute("SELECT key, value FROM meta WHERE key != 'probe'"))


def is_empty(db: sqlite3.Connection) -> bool:
    """Whether nothing was ever made in it: a new file, or one whose making was cut off."""
    marks = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return marks == [0, 0] and db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)


def wrong(db: sqlite3.Connection, check: str) -> list[str]:
    """What PRAGMA *check* finds, a line each."""
    lines = [line for (text,) in db.execute(f"PRAGMA {check}") for line in text.splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("***")]


def check_format(db: sqlite3.Connection, path: str) -> None:
    """Raises StoreError for a file that is not ours, or of a format that we do not know."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path}: an SQLite file, but no store of pybroker; choose another with store.path")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version < 1:
        raise damaged(path, f"there is no store format {version}")
    if version > FORMAT:
        raise newer(path, version)


def newer(path: str, version: int) -> StoreError:
    return StoreError(
        f"{path}: written by a newer pybroker (store format {version}, this one knows {FORMAT}); "
        "use that version, or another file with store.path"
    )


def damaged(path: str, what: str) -> StoreError:
    return StoreError(
        f"{path}: damaged ({what}); `pybroker store salvage {path} NEWFILE` copies what is readable, and "
        "tells how to go on with NEWFILE"
    )


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """What SQLite and the system say, as a StoreError that names the file and the way out."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "decode to UTF-8" in str(error):
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
