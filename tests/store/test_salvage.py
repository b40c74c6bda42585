"""salvage: what is left of a damaged store is copied, nothing is invented, nothing is lost in silence."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import StoreError
from broker.store import repair
from broker.store.base import Batch, Row, Table
from broker.store.pages import Pages
from broker.store.repair import Salvaged, salvage, verify
from broker.store.sqlite import SqliteStore
from tests.store.contents import (
    FIXED,
    NOTED,
    PAGE,
    Found,
    as_found,
    change,
    found_in,
    random_rows,
    snapshot,
    spoil,
    without,
    write_store,
)

pytestmark = pytest.mark.usefixtures("no_wait")


def test_a_good_store_is_copied(fixed: Path, new: Path) -> None:
    done = salvage(str(fixed), str(new))
    assert done.copied == {table.name.lower(): len(rows) for table, rows in FIXED.items()}
    assert done.lost == done.notes == []
    assert found_in(new) == as_found(FIXED)
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert {file.name for file in new.parent.glob("new*")} == {"new.db"}
    store = SqliteStore(str(new))
    assert store.open() == NOTED
    store.close()


def test_a_file_that_is_there_already_stays(fixed: Path, new: Path) -> None:
    new.write_bytes(b"precious")
    with pytest.raises(StoreError, match=r"new\.db: is there already"):
        salvage(str(fixed), str(new))
    with pytest.raises(StoreError, match="is there already"):
        salvage(str(fixed), str(fixed))
    assert new.read_bytes() == b"precious"
    assert found_in(fixed) == as_found(FIXED)


def test_a_place_where_no_file_can_be(fixed: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/new\.db: No such file"):
        salvage(str(fixed), str(tmp_path / "nowhere" / "new.db"))


def test_a_disk_that_is_full(fixed: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half done is left."""

    def small(path: str, mode: str = "rwc") -> sqlite3.Connection:
        db = connect(path, mode)
        db.execute("PRAGMA max_page_count = 9")
        return db

    connect = repair.connect
    monkeypatch.setattr(repair, "connect", small)
    with pytest.raises(StoreError, match=r"new\.db: .*full"):
        salvage(str(fixed), str(new))
    assert list(new.parent.glob("new*")) == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    """A store with long rows, free pages and interior pages; and its rows."""
    path = tmp_path_factory.mktemp("large") / "broker.db"
    rows = random_rows(random.Random(1), 300, (0, 10, 200, 600, 6000))
    gone = random.Random(2).sample(sorted(rows[Table.MESSAGE]), 75)
    write_store(path, rows, without(rows, gone))
    assert verify(str(path)).problems == []
    return path, found_in(path)


def check(path: Path, new: Path, whole: Found) -> Salvaged:
    """Salvage *path*, which had the rows *whole*: nothing is invented, and nothing is lost in silence."""
    before = path.read_bytes()
    done = salvage(str(path), str(new))
    assert path.read_bytes() == before
    found = found_in(new)
    assert found.items() <= whole.items()
    assert verify(str(new)).problems == []
    assert done.copied == {
        table.name.lower(): sum(name == table.name.lower() for name, _ in found) for table in Table
    }
    assert done.lost or found == whole
    return done


Places = dict[tuple[str, int], set[int]]  # a row -> the pages on which something of it stands


@pytest.fixture(scope="module")
def places(large: tuple[Path, Found]) -> Places:
    found: Places = {}
    with closing(Pages(str(large[0]))) as pages:
        free = repair.free_pages(pages)
        for page in (page for page in range(1, pages.count + 1) if page not in free):
            if pages.page(page)[0] != repair.LEAF:
                continue
            for entry in repair.entries(pages, page, set(), []):
                if table := repair.WIDTHS.get(len(entry.cells)):
                    found[table.name.lower(), entry.id] = {page, *entry.more}
    assert found.keys() == large[1].keys()
    return found


# Columns that name rows of others.
PARENTS = {"subscription": (1,), "delivery": (1, 2), "held": (1, 3), "retained": (1,), "part": (1, 2)}
SHARED = ("message", "run")


def untouched(places: Places, whole: Found, spoilt: set[int]) -> Found:
    """What of *whole* stands on no page of *spoilt*, and belongs to nothing that does."""
    lost = {key for key in whole if places[key] & spoilt}
    gone = {number for name, number in lost if name in ("session", *SHARED)}
    parents = {key: {row[at] for at in PARENTS.get(key[0], ())} for key, row in whole.items()}
    kept = {key: row for key, row in whole.items() if key not in lost and not gone & parents[key]}
    held = set().union(*(parents[key] for key in kept))
    return {key: row for key, row in kept.items() if key[0] not in SHARED or key[1] in held}


@pytest.mark.parametrize("part", range(4))
def test_any_page_that_is_lost_costs_what_is_on_it(
    large: tuple[Path, Found], places: Places, tmp_path: Path, part: int
) -> None:
    """Every fourth page of the file, one after the other: verify finds it if it costs a row."""
    source, whole = large
    path, new = tmp_path / "broker.db", tmp_path / "new.db"
    shutil.copy(source, path)
    count = path.stat().st_size // PAGE
    for page in range(1 + part, count + 1, 4):
        shutil.copy(source, path)
        spoil(path, page, random.Random(page), b"" if page % 3 else b"\xff")
        done = check(path, new, whole)
        assert untouched(places, whole, {page}).items() <= found_in(new).items()
        assert not done.lost or unsound(path)
        new.unlink()


def unsound(path: Path) -> bool:
    try:
        return bool(verify(str(path)).problems)
    except StoreError as error:
        return "damaged" in str(error)


def test_below_a_root_that_is_lost_everything_is_found(large: tuple[Path, Found], tmp_path: Path) -> None:
    """Deleted rows stand on free pages, and stay there."""
    source, whole = large
    with closing(sqlite3.connect(source)) as db:
        free = db.execute("PRAGMA freelist_count").fetchone()[0]
    assert free >= 10
    for name in ("message", "delivery"):
        path, new = tmp_path / "broker.db", tmp_path / f"{name}.db"
        shutil.copy(source, path)
        root = root_of(source, name)
        spoil(path, root, random.Random(1))
        done = check(path, new, whole)
        assert found_in(new) == whole
        assert done.lost == []
        assert f"{name}: page {root} cannot be read" in done.notes[0]
        assert "all below it were found" in done.notes[0]
        assert "rows were found on pages that no tree leads to" in done.notes[1]


def root_of(path: Path, name: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    return int(found[0])


def test_a_border_that_is_wrong(large: tuple[Path, Found], tmp_path: Path, new: Path) -> None:
    """A page that has its rows, but is said to have others, has them still."""
    source, whole = large
    for name in ("message", "delivery"):
        path = Path(shutil.copy(source, tmp_path / "broker.db"))
        data, at = bytearray(path.read_bytes()), (root_of(path, name) - 1) * PAGE
        assert data[at] == 0x05
        cell = at + int.from_bytes(data[at + 12 : at + 14], "big")
        assert data[cell + 4] >= 0x80, "an identifier of two bytes"
        data[cell + 4 : cell + 6] = b"\x80\x05"
        path.write_bytes(data)
        done = check(path, new, whole)
        assert done.lost, "nobody can be sure"
        assert found_in(new) == whole
        new.unlink()


@pytest.mark.parametrize("to", ["another row's", "its own", "nowhere"])
def test_a_long_row_that_goes_on_elsewhere(
    large: tuple[Path, Found], places: Places, tmp_path: Path, new: Path, to: str
) -> None:
    """It is lost rather than taken with what belongs to another."""
    source, whole = large
    path = Path(shutil.copy(source, tmp_path / "broker.db"))
    one, other = [key for key in sorted(whole) if key[0] == "message" and len(places[key]) == 2][:2]
    (last,) = (page for page in places[other] if source.read_bytes()[(page - 1) * PAGE] == 0)
    (first,) = (page for page in places[one] if source.read_bytes()[(page - 1) * PAGE] == 0)
    data = bytearray(path.read_bytes())
    pointer = data.index(last.to_bytes(4, "big"), (min(places[other] - {last}) - 1) * PAGE)
    if to == "another row's":
        data[pointer : pointer + 4] = first.to_bytes(4, "big")
    else:
        following = last if to == "its own" else 1 << 30
        data[(last - 1) * PAGE : (last - 1) * PAGE + 4] = following.to_bytes(4, "big")
    path.write_bytes(data)
    check(path, new, whole)
    found = found_in(new)
    assert other not in found
    assert one in found


@pytest.fixture
def emptied(tmp_path: Path) -> tuple[Path, Found, list[int]]:
    """A store whose free pages have what was deleted from the middle of a table; its rows; such pages."""
    path = tmp_path / "broker.db"
    session = Row(("reader", None, 5, 100, 1, 0, None, None, 0, None))
    rows = {table: {} for table in Table} | {
        Table.SESSION: {1: session},
        Table.MESSAGE: {2: Row(("a", 1, 0, "", None), (b"", b""))},
        Table.RETAINED: {3: Row((2,))},
        Table.DELIVERY: {number: Row((1, 2, 1, 0, 0, "1,2", "", 0, 0)) for number in range(10, 4000)},
    }
    write_store(path, rows)
    change(
        path,
        "PRAGMA secure_delete = OFF",  # with it, free pages are empty
        "CREATE TEMP TABLE kept AS SELECT * FROM delivery WHERE id NOT BETWEEN 500 AND 3500",
        "DELETE FROM delivery",
        "INSERT INTO delivery SELECT * FROM kept",
    )
    with closing(Pages(str(path))) as pages:
        stale = [page for page in repair.free_pages(pages) if pages.page(page)[0] == repair.LEAF]
        assert len(stale) > 2
    return path, found_in(path), stale


def test_what_is_deleted_does_not_come_back(emptied: tuple[Path, Found, list[int]], new: Path) -> None:
    """Nobody knows which pages are free, and there is a gap: others than what is missing is not taken."""
    path, whole, _ = emptied
    data = bytearray(path.read_bytes())
    root = (root_of(path, "delivery") - 1) * PAGE
    last = int.from_bytes(data[root + 8 : root + 12], "big")
    data[32:40] = bytes(8)
    data[(last - 1) * PAGE : last * PAGE] = random.Random(1).randbytes(PAGE)
    path.write_bytes(data)
    done = check(path, new, whole)
    assert done.lost
    assert ("delivery", 10) in found_in(new)


def test_a_page_that_leads_to_a_free_one(emptied: tuple[Path, Found, list[int]], new: Path) -> None:
    """What stands there was deleted; what should stand there is found elsewhere."""
    path, whole, stale = emptied
    data = bytearray(path.read_bytes())
    root = (root_of(path, "delivery") - 1) * PAGE
    cell = root + int.from_bytes(data[root + 12 : root + 14], "big")
    for page in stale:
        data[cell : cell + 4] = page.to_bytes(4, "big")
        path.write_bytes(data)
        check(path, new, whole)
        assert found_in(new) == whole
        new.unlink()


def test_several_roots_and_the_first_page(large: tuple[Path, Found], tmp_path: Path, new: Path) -> None:
    """Without page 1 nobody knows which pages are free: what was deleted may come back with its own."""
    source, whole = large
    path = Path(shutil.copy(source, tmp_path / "broker.db"))
    for page in (1, root_of(source, "message"), root_of(source, "delivery")):
        spoil(path, page, random.Random(page))
    with pytest.raises(StoreError, match="damaged"):
        verify(str(path))
    done = salvage(str(path), str(new))
    assert verify(str(new)).problems == []
    found = found_in(new)
    for name in ("session", "subscription", "message"):
        assert {key for key in whole if key[0] == name} <= found.keys()
    assert "page 1 is damaged: the tables were looked for where they are made" in done.notes
    assert done.lost, "nobody can be sure"


def test_without_page_1_nothing_is_lost(large: tuple[Path, Found], tmp_path: Path, new: Path) -> None:
    source, whole = large
    for fill in (b"\0", b"\xff", b""):
        path = Path(shutil.copy(source, tmp_path / "broker.db"))
        spoil(path, 1, random.Random(1), fill)
        done = check(path, new, whole)
        assert found_in(new) == whole
        assert done.lost == []
        new.unlink()


def test_without_the_clock_it_begins_anew(fixed: Path, new: Path) -> None:
    spoil(fixed, 2, random.Random(1))
    done = salvage(str(fixed), str(new))
    assert [line for line in done.lost if "clock" in line] == done.lost != []
    store = SqliteStore(str(new))
    assert store.open() is None
    store.close()
    assert found_in(new) == as_found(FIXED)


@pytest.mark.parametrize("seed", range(25))
def test_any_bytes_that_are_lost(
    large: tuple[Path, Found], places: Places, tmp_path: Path, new: Path, seed: int
) -> None:
    """Some at a time, anywhere, header and all: what stands on pages that nobody touched is found."""
    (source, whole), rng = large, random.Random(seed)
    path = Path(shutil.copy(source, tmp_path / "broker.db"))
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 3, 10))):
        size = rng.choice((1, 16, 512, 5000))
        at = rng.randrange(len(data) - size)
        data[at : at + size] = rng.choice((rng.randbytes(size), bytes(size)))
    path.write_bytes(data)
    done = salvage(str(path), str(new))
    assert verify(str(new)).problems == []
    before, pages = source.read_bytes(), range(len(data) // PAGE)
    spoilt = {page + 1 for page in pages if data[page * PAGE :][:PAGE] != before[page * PAGE :][:PAGE]}
    missing = untouched(places, whole, spoilt).items() - found_in(new).items()
    assert not missing, (spoilt, done)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_end_of_the_file_is_lost(
    large: tuple[Path, Found], tmp_path: Path, new: Path, share: float
) -> None:
    source, whole = large
    path = Path(shutil.copy(source, tmp_path / "broker.db"))
    pages = int(path.stat().st_size * share) // PAGE
    os.truncate(path, pages * PAGE + 100)
    done = check(path, new, whole)
    assert any("pages shorter than it says" in line for line in done.lost)
    assert unsound(path)


def test_a_file_of_nothing(tmp_path: Path, new: Path) -> None:
    for data in (b"", b"\0" * 100_000):
        path = tmp_path / "broker.db"
        path.write_bytes(data)
        done = salvage(str(path), str(new))
        assert set(done.copied.values()) == {0}
        assert done.lost
        assert verify(str(new)).problems == []
        new.unlink()


# ---- salvage of a store with a WAL


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, Found]:
    """The files as `kill -9` leaves them, everything but the beginning in the WAL; and the rows."""
    rows = random_rows(random.Random(5), 100)
    source = tmp_path / "source" / "broker.db"
    source.parent.mkdir()
    store = SqliteStore(str(source))
    store.open()
    store.write(Batch(1, rows=dict(rows), clock=NOTED))
    store.write(Batch(2, rows=dict(without(rows, sorted(rows[Table.MESSAGE])[:20]))))
    (tmp_path / "killed").mkdir()
    for file in source.parent.iterdir():
        shutil.copy(file, tmp_path / "killed")
    store.close()
    return tmp_path / "killed" / "broker.db", found_in(source)


def test_the_wal_counts(killed: tuple[Path, Found], new: Path) -> None:
    path, whole = killed
    before = snapshot(path)
    done = check(path, new, whole)
    assert done.notes == []
    assert found_in(new) == whole
    assert snapshot(path) == before


def test_the_wal_mends_what_is_damaged_below_it(killed: tuple[Path, Found], new: Path) -> None:
    path, whole = killed
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))
    check(path, new, whole)
    assert found_in(new) == whole


def test_a_wal_that_is_cut_off(killed: tuple[Path, Found], new: Path) -> None:
    path, _ = killed
    wal = Path(f"{path}-wal")
    os.truncate(wal, wal.stat().st_size - 1)
    done = salvage(str(path), str(new))
    assert any("pages at the end of the WAL belong to no complete commit" in note for note in done.notes)
    with closing(sqlite3.connect(path)) as db:
        expected = db.execute("SELECT count(*) FROM message").fetchone()[0]
    assert done.copied["message"] == expected == 100, "as before the last commit"


# ---- a disk that cannot read


def test_pages_that_the_disk_cannot_read(
    large: tuple[Path, Found], tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole = large
    path = Path(shutil.copy(source, tmp_path / "broker.db"))
    read = os.pread
    bad = {1: 0, 40: 0, 41: 0}

    def pread(fd: int, size: int, at: int) -> bytes:
        page = at // PAGE + 1
        if page in bad and os.readlink(f"/proc/self/fd/{fd}") == str(path):
            bad[page] += 1
            raise OSError(5, "Input/output error")
        return read(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)
    salvage(str(path), str(new))
    assert all(bad.values())
    found = found_in(new)
    assert found.items() <= whole.items()
    assert len(found) > len(whole) / 2
