"""What `pybroker store` does with a file: verify, dump, compact, and salvage what is left of it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from broker.errors import StoreError
from broker.store.base import Row, Table
from broker.store.pages import (
    HIGHEST,
    INTERIOR,
    LEAF,
    LOWEST,
    BadPage,
    Pages,
    Tree,
    entries,
    free_pages,
    start,
)
from broker.store.rows import fault
from broker.store.schema import APPLICATION_ID, COLUMNS, FORMAT, create_statements, names, tables_of
from broker.store.sqlite import (
    check_format,
    connect,
    damaged,
    explained,
    meta,
    newer,
    rows_of,
    sync_folder,
    take_lock,
    wrong,
)

MOST = 20  # lines about one kind of fault
WIDTHS = {len(names(table)) + 1: table for table in Table}  # cells of a row, with its identifier -> table


class Rule(NamedTuple):
    """Rows that must not be: those of *table* for which *where* holds."""

    table: Table
    says: str
    where: str


def newest(table: str, columns: str, among: str = "1") -> str:
    """All but the last of those that are alike in *columns*."""
    return f"{among} AND id NOT IN (SELECT max(id) FROM {table} WHERE {among} GROUP BY {columns})"


NO_SESSION = "session NOT IN (SELECT id FROM session)"
NO_MESSAGE = "message NOT IN (SELECT id FROM message)"
HOLDERS = " UNION ".join(f"SELECT message FROM {table}" for table in ("delivery", "held", "retained"))
HOLDERS += " UNION SELECT will FROM session WHERE will IS NOT NULL"
RETAINED_TWICE = (
    "message IN (SELECT id FROM message) AND id NOT IN (SELECT max(retained.id) FROM retained "
    "JOIN message ON message.id = retained.message GROUP BY topic_name)"
)
NO_RUN = "NOT EXISTS (SELECT 1 FROM run WHERE run.id = part.run AND part.first + part.count <= run.count)"
IDENTIFIER_TWICE = (
    "packet_id > 0 AND (EXISTS (SELECT 1 FROM delivery AS other WHERE other.session = part.session AND "
    "other.packet_id BETWEEN part.packet_id AND part.packet_id + part.count - 1) OR EXISTS (SELECT 1 FROM "
    "part AS other WHERE other.session = part.session AND other.id > part.id AND other.packet_id > 0 AND "
    "other.packet_id < part.packet_id + part.count AND part.packet_id < other.packet_id + other.count))"
)

# In an order in which one pass removes everything: what goes early leaves others behind.
WILL_LOST = Rule(
    Table.SESSION,
    "has a will without a message",
    "will IS NOT NULL AND will NOT IN (SELECT id FROM message)",
)
RULES = (
    WILL_LOST,
    Rule(Table.SESSION, "is no session and has no will", "whole = 0 AND will IS NULL"),
    Rule(Table.SESSION, "has the client_id of a later one", newest("session", "client_id")),
    Rule(Table.SUBSCRIPTION, "belongs to no session", NO_SESSION),
    Rule(Table.SUBSCRIPTION, "is there twice", newest("subscription", "session, topic_filter")),
    Rule(Table.DELIVERY, "belongs to no session", NO_SESSION),
    Rule(Table.DELIVERY, "has no message", NO_MESSAGE),
    Rule(
        Table.DELIVERY,
        "has the packet identifier of a later one",
        newest("delivery", "session, packet_id", "packet_id > 0"),
    ),
    Rule(Table.HELD, "belongs to no session", NO_SESSION),
    Rule(Table.HELD, "has no message", NO_MESSAGE),
    Rule(Table.HELD, "has the packet identifier of a later one", newest("held", "session, packet_id")),
    Rule(Table.RETAINED, "has no message", NO_MESSAGE),
    Rule(Table.RETAINED, "has the topic of a later one", RETAINED_TWICE),
    Rule(Table.NOTE, "has the key of a later one", newest("note", "key")),
    Rule(Table.PART, "belongs to no session", NO_SESSION),
    Rule(Table.PART, "has no run with so many messages", NO_RUN),
    Rule(Table.PART, "has the packet identifier of another delivery", IDENTIFIER_TWICE),
    Rule(Table.RUN, "is held by nothing", "id NOT IN (SELECT run FROM part)"),
    Rule(Table.MESSAGE, "is held by nothing", f"id NOT IN ({HOLDERS})"),
)


# ---- verify and dump: beside a broker that has it open


@contextlib.contextmanager
def looking(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing and sees one moment. Raises StoreError."""
    path = os.path.realpath(path)
    if not os.path.isfile(path):
        raise StoreError(f"{path}: there is no such file")
    # Without a WAL nobody has it open. SQLite would make one to read with it, and leave it there.
    closed = not os.path.exists(path + "-wal")
    before = os.stat(path)
    with explained(path), contextlib.closing(connect(path, "ro&immutable=1" if closed else "ro")) as db:
        db.execute("BEGIN")
        yield db
    after = os.stat(path)
    if closed and (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise StoreError(f"{path}: a broker has changed it meanwhile; try again")


@dataclass
class Verdict:
    """What a store is, and what is wrong with it; lines of text."""

    facts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify(path: str) -> Verdict:
    """Is the file whole, and do its rows belong together? Raises StoreError if it is no store at all."""
    verdict = Verdict()
    with looking(path) as db:
        check_format(db, path)
        for look in (about, counts):
            try:
                verdict.facts += look(db)
            except sqlite3.Error as error:
                verdict.problems.append(str(error))
        for check in (integrity, contents, references):
            try:
                for number, problem in enumerate(check(db)):
                    if number == MOST:
                        verdict.problems.append("and more of these")
                        break
                    verdict.problems.append(problem)
            except sqlite3.Error as error:
                verdict.problems.append(f"the rest cannot be read: {error}")
    return verdict


def about(db: sqlite3.Connection) -> Iterator[str]:
    noted = meta(db)
    yield f"format {db.execute('PRAGMA user_version').fetchone()[0]}"
    for key in ("created", "wall"):
        if is_time(noted.get(key)):
            moment = datetime.fromtimestamp(noted[key], UTC)
            yield f"{'made' if key == 'created' else 'last written'} {moment:%Y-%m-%d %H:%M:%S} UTC"
    yield "closed properly" if noted.get("clean") == 1 else "in use, or not closed properly"


def is_time(value: object) -> bool:
    """Seconds that a calendar has."""
    return isinstance(value, int | float) and 0 <= value < 1e11


def tables_in(db: sqlite3.Connection) -> list[Table]:
    """The tables of a file that may be of an older format."""
    return tables_of(db.execute("PRAGMA user_version").fetchone()[0])


def counts(db: sqlite3.Connection) -> Iterator[str]:
    for table in tables_in(db):
        name = table.name.lower()
        yield f"{name}: {db.execute(f'SELECT count(*) FROM {name}').fetchone()[0]} rows"


def integrity(db: sqlite3.Connection) -> Iterator[str]:
    """What SQLite finds."""
    yield from wrong(db, f"integrity_check({MOST})")


def contents(db: sqlite3.Connection) -> Iterator[str]:
    """Rows that say nothing to the broker."""
    noted = meta(db)
    for key in ("time", "wall"):
        if key in noted and not is_time(noted[key]):
            yield f"meta {key} is no time"
    for table in tables_in(db):
        for number, row in rows_of(db, table):
            if says := fault(table, number, row):
                yield f"{table.name.lower()} {number}: {says}"


def references(db: sqlite3.Connection) -> Iterator[str]:
    """Rows that do not belong to others as they should."""
    there = tables_in(db)
    for table, says, where in RULES:
        if table not in there:
            continue
        name = table.name.lower()
        for (number,) in db.execute(f"SELECT id FROM {name} WHERE {where} ORDER BY id"):
            yield f"{name} {number} {says}"


def dump(path: str) -> Iterator[str]:
    """Everything as JSON Lines: an object for each row, `table` and `id` first.

    A BLOB that is UTF-8 is a text, another one {"base64": text}.
    """
    with looking(path) as db:
        check_format(db, path)
        for key, value in meta(db).items():
            yield json.dumps({"table": "meta", "key": key, "value": value})
        for table in tables_in(db):
            columns = names(table)
            for number, row in rows_of(db, table):
                cells = (*map(shown, row.blobs), *row.values)
                line = {"table": table.name.lower(), "id": number, **dict(zip(columns, cells, strict=True))}
                yield json.dumps(line)


def shown(blob: bytes) -> str | dict[str, str]:
    """*blob* as JSON can have it."""
    try:
        return blob.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(blob).decode()}


# ---- compact and salvage: nobody else may have it


def compact(path: str) -> tuple[int, int]:
    """Write the file anew without what is free in it: bytes before and after. Needs as much room again."""
    path = os.path.realpath(path)
    with looking(path) as db:
        check_format(db, path)
    lock = take_lock(path)
    try:
        before = bytes_of(path)
        with explained(path), contextlib.closing(connect(path, "rw")) as db:
            if found := wrong(db, "quick_check(1)"):
                raise damaged(path, found[0])
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return before, bytes_of(path)
    finally:
        os.close(lock)


def bytes_of(path: str) -> int:
    return sum(os.path.getsize(name) for name in (path, path + "-wal") if os.path.exists(name))


@dataclass
class Salvaged:
    """Rows that were copied, by table; what is lost for good, and what else is to be said, in lines."""

    copied: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def salvage(path: str, new: str) -> Salvaged:
    """Copy what can be read of the store *path*, which stays as it is, into a store *new*.

    Raises StoreError when *new* is there already or cannot be written, and when *path* is no store.
    """
    path, new = os.path.realpath(path), os.path.realpath(new)
    if not os.path.isfile(path):
        raise StoreError(f"{path}: there is no such file")
    if os.path.exists(new):
        raise StoreError(f"{new}: is there already; name a file that is not")
    part = new + "-part"
    lock = take_lock(path)
    try:
        with explained(new):
            os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
            with contextlib.closing(connect(part, "rw")) as db:
                with explained(path):
                    pages = Pages(path)
                with contextlib.closing(pages):
                    done = Salvage(path, pages, db).run()
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            os.rename(part, new)
            sync_folder(new)
    finally:
        os.close(lock)
        with contextlib.suppress(OSError):
            os.unlink(part)
    return done


class Salvage:
    """From the trees of the tables as far as they can be walked; then from the leaves that no tree leads to.

    What such a leaf has is taken only for the gaps in its table: elsewhere it is something old.
    """

    def __init__(self, path: str, pages: Pages, db: sqlite3.Connection) -> None:
        self._path, self._pages, self._db = path, pages, db
        self._used: set[int] = set()  # pages
        self._trees: dict[Table, Tree] = {}
        self._refused: Counter[Table] = Counter()  # rows
        self._found: Counter[Table] = Counter()  # rows that no tree leads to
        self._done = Salvaged()

    def run(self) -> Salvaged:
        db, done = self._db, self._done
        db.execute("PRAGMA journal_mode = OFF")  # a file that is not finished is thrown away
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for statement in create_statements():
            db.execute(statement)
        roots = self._roots()
        self._copy_meta(roots["meta"])
        for table in filter(lambda table: table.name.lower() in roots, Table):
            root, width = roots[table.name.lower()], len(names(table)) + 1
            tree = self._trees[table] = Tree(self._pages, self._used, root, width)
            for row in tree.rows():
                self._copy(table, row.id, row.cells)
        gaps = any(tree.gaps for tree in self._trees.values())
        self._tell_lost(self._search() if gaps else 0)
        self._drop_strays()
        db.execute("COMMIT")
        for table in Table:
            name = table.name.lower()
            done.copied[name] = db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        return done

    def _roots(self) -> dict[str, int]:
        """Where each table begins; if that is lost: where it is made."""
        header = self._pages.header
        version = FORMAT
        if header:
            version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
            if application == APPLICATION_ID and version > FORMAT:
                raise newer(self._path, version)
            version = version if 1 <= version <= FORMAT else FORMAT
        tree = Tree(self._pages, self._used, 1, 5)
        told = {row.cells[1]: row.cells[3] for row in tree.rows() if row.cells[0] == "table"}
        made = {name: 2 + i for i, name in enumerate(("meta", *(table.name.lower() for table in Table)))}
        if told and not told.keys() & made.keys():
            raise StoreError(f"{self._path}: an SQLite file, but no store of pybroker")
        if tree.gaps or not header:
            self._done.notes.append("page 1 is damaged: the tables were looked for where they are made")
        there = {"meta", *(table.name.lower() for table in tables_of(version)), *told}
        roots = {name: told.get(name) for name in made if name in there}
        return {name: root if isinstance(root, int) else made[name] for name, root in roots.items()}

    def _copy_meta(self, root: int) -> None:
        bad: list[str] = []
        found: dict[Any, Any] = {}
        try:
            rows = list(entries(self._pages, root, self._used, bad))
            found = dict(row.cells for row in rows if len(row.cells) == 2)
            self._used.update(*(row.more for row in rows))
            self._used.add(root)
        except BadPage as error:
            bad.append(str(error))
        for key in ("created", "time", "wall"):
            if is_time(found.get(key)):
                self._db.execute("REPLACE INTO meta VALUES (?, ?)", (key, float(found[key])))
            elif bad and key == "time":
                self._done.lost.append(f"meta: the clock of the store ({bad[0]})")
        self._db.execute("REPLACE INTO meta VALUES ('clean', 1)")

    def _copy(self, table: Table, number: int, cells: list[Any]) -> bool:
        """Whether the row was copied, or one with its number before."""
        blobs, plain = COLUMNS[table]
        cells = [
            float(cell) if kind.endswith(" REAL") and isinstance(cell, int) else cell  # as SQLite stores 1.0
            for kind, cell in zip((*blobs, *plain), cells[1:], strict=True)
        ]
        row = Row(tuple(cells[len(blobs) :]), tuple(cells[: len(blobs)]))
        if fault(table, number, row):
            self._refused[table] += 1
            return False
        marks = ", ".join("?" * (1 + len(cells)))
        self._db.execute(f"INSERT OR IGNORE INTO {table.name.lower()} VALUES ({marks})", (number, *cells))
        return True

    def _search(self) -> int:
        """Look at every page that no tree leads to; how many there are that nothing explains."""
        free, doubtful = free_pages(self._pages), set()
        for number in range(1, self._pages.count + 1):
            if number in self._used or number in free:
                continue
            try:
                kind = self._pages.page(number)[start(number)]
            except BadPage:
                continue
            # Where a long row goes on, a page begins with the number of the next: never with one of these.
            if kind != INTERIOR and not (kind == LEAF and self._take(number)):
                doubtful.add(number)
        doubtful -= self._used | {gap.page for tree in self._trees.values() for gap in tree.gaps}
        doubtful.discard((1 << 30) // self._pages.size + 1)  # SQLite leaves this one out
        return len(doubtful)

    def _take(self, number: int) -> bool:
        """Copy the rows of a leaf that no tree leads to, where they fill a gap; whether there were any."""
        bad: list[str] = []
        taken = False
        for row in entries(self._pages, number, self._used, bad):
            table = WIDTHS.get(len(row.cells))
            if table is None or table not in self._trees:
                continue
            if not any(gap.low < row.id <= gap.high for gap in self._trees[table].gaps):
                continue
            if self._copy(table, row.id, row.cells):
                self._found[table] += 1
                self._used |= row.more
                taken = True
        if taken:
            self._used.add(number)
            self._done.lost += [f"page {number}: {each}" for each in bad]
        return taken

    def _tell_lost(self, strange: int) -> None:
        """*strange* pages may be what is missing."""
        notes, lost = self._done.notes, self._done.lost
        for table, tree in self._trees.items():
            name, found = table.name.lower(), self._found[table]
            for page, low, high, depth, why in tree.gaps:
                text = f"{name}: page {page} cannot be read ({why})"
                if strange == 0 and (depth < tree.depth or (depth == 0 and found)):
                    notes.append(f"{text}; it had no rows itself, and all below it were found")
                    continue
                first = "the first" if low == LOWEST else str(low + 1)
                last = "the last" if high == HIGHEST else str(high)
                lost.append(f"{text}: rows from {first} to {last}, but for those that were found elsewhere")
            if found:
                notes.append(f"{name}: {found} rows were found on pages that no tree leads to")
            if self._refused[table]:
                lost.append(f"{name}: {self._refused[table]} rows that make no sense")
        if self._pages.missing:
            lost.append(f"the file is {self._pages.missing} pages shorter than it says")
        if self._pages.left_out:
            notes.append(f"{self._pages.left_out} pages at the end of the WAL belong to no complete commit")

    def _drop_strays(self) -> None:
        """What a lost row leaves behind."""
        for rule in RULES:
            name = rule.table.name.lower()
            what = "UPDATE session SET will = NULL, will_delay = 0, will_due = NULL"
            what = what if rule is WILL_LOST else f"DELETE FROM {name}"
            if dropped := self._db.execute(f"{what} WHERE {rule.where}").rowcount:
                self._done.lost.append(f"{name}: {dropped} left out, since each {rule.says}")
