"""The faults themselves, shown on plain SQLite: what they do, and that they find a loss if there is one."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.recording import NOTES, Change, Entry, File, Folder, Recording, lay
from tests.faults.shim import HELD, Disk

# Rows of all sizes, one commit each, noted once it has returned; checkpoints and a WAL that begins anew.
WRITER = f"""
import os, random, sqlite3, sys
path, journal, synchronous = sys.argv[1:]
notes = os.open(path + "{NOTES}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
db = sqlite3.connect(path, isolation_level=None)
db.execute(f"pragma journal_mode = {{journal}}")
db.execute(f"pragma synchronous = {{synchronous}}")
db.execute("pragma wal_autocheckpoint = 30")
db.execute("create table row (id integer primary key, data blob)")
for id in range(1, 121):
    size = random.Random(id).choice((10, 600, 5000, 20000))
    db.execute("insert into row values (?, ?)", (id, bytes([id % 256]) * size))
    if id % 3 == 0:
        db.execute("update row set data = ? where id = ?", (bytes([id % 256]) * 50, id - 1))
    os.write(notes, f"{{id}}\\n".encode())
os._exit(0)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "disk").mkdir()
    with Disk(tmp_path / "disk") as disk:
        yield disk


def run(disk: Disk, script: str, *arguments: str, record: bool = False) -> str:
    """What *script* prints on *disk*."""
    command = [sys.executable, "-c", script, *arguments]
    environ = os.environ | disk.environ(record)
    return subprocess.run(
        command, env=environ, timeout=60, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def fate(folder: Path, files: dict[str, bytes], noted: list[str]) -> str:
    """What a power loss that left *files* did to the rows that were *noted* as committed."""
    lay(folder, files)
    with closing(sqlite3.connect(folder / "db")) as db:
        try:
            if db.execute("pragma integrity_check").fetchall() != [("ok",)]:
                return "damaged"
            found = {row for (row,) in db.execute("select id from row")} if noted else set()
        except sqlite3.DatabaseError as error:
            return "no table" if "no such table" in str(error) else "damaged"
    lost = {int(line) for line in noted} - found
    assert found <= set(range(1, len(found) + 1)), "rows in the middle are gone"
    return "lost" if lost else "whole"


@pytest.mark.parametrize(
    ("journal", "synchronous", "fates"),
    [
        pytest.param("wal", "full", {"whole"}, id="every commit is synced"),
        pytest.param("wal", "normal", {"whole", "lost"}, id="checkpoints are: what is lost is the end"),
        pytest.param("wal", "off", {"whole", "lost", "damaged"}, id="nothing is"),
        pytest.param("delete", "extra", {"whole"}, id="with a rollback journal, and its name"),
        pytest.param("delete", "full", {"whole", "lost"}, id="without its name: it may be back"),
    ],
)
def test_what_a_power_loss_leaves(
    disk: Disk, tmp_path: Path, journal: str, synchronous: str, fates: set[str]
) -> None:
    run(disk, WRITER, str(disk.folder / "db"), journal, synchronous, record=True)
    recording = Recording(disk.recording)
    rng = random.Random(7)
    found = {
        fate(tmp_path / "found", folder.after_loss(rng), folder.notes)
        for folder in recording.folders(recording.cuts(200, rng))
    }
    assert found - {"no table"} == fates


def test_without_a_loss_the_recording_holds_the_folder_as_it_is(disk: Disk) -> None:
    run(disk, WRITER, str(disk.folder / "db"), "wal", "full", record=True)
    recording = Recording(disk.recording)
    *_, last = recording.folders([len(recording.entries)])
    there = {file.name: file.read_bytes() for file in disk.folder.iterdir()}
    for name in ("db", "db-wal"):
        assert last.now()[name] == there[name]
    assert last.notes == [str(row) for row in range(1, 121)]


def test_a_sync_that_failed_makes_nothing_safe_and_neither_does_the_next() -> None:
    file = File()
    for number, data in enumerate((b"a", b"b")):
        file.write(number, number * 4096, data * 4096)
    file.failed(2)
    file.write(3, 4096, b"c" * 10)
    file.synced(4)
    assert file.safe == bytes(4096) + b"c" * 10 + b"b" * 4086
    found = {file.after_loss(random.Random(seed))[:4096] for seed in range(50)}
    assert {bytes(4096), b"a" * 4096} <= found


def test_a_sector_holds_what_was_there_at_one_moment() -> None:
    file = File(bytearray(1024), size=1024)
    for number, data in enumerate((b"1", b"2", b"3")):
        file.write(number, 100, data * 800)
    found = {file.after_loss(random.Random(seed)) for seed in range(400)}
    assert {(one[100], one[899]) for one in found} == {(a, b) for a in b"\x00123" for b in b"\x00123"}
    assert all(len(set(one[100:512])) == len(set(one[512:900])) == 1 for one in found)


def test_names_are_lost_until_their_folder_is_synced() -> None:
    folder = Folder({"old": b"old"})
    steps = [
        Entry("D", "", b"", 9, 0, 0),
        Entry("C", "new", b"", 1, 0, 0),
        Entry("W", "", b"new", 1, 0, 3),
        Entry("B", "", b"", 1, 1, 0),
        Entry("E", "", b"", 1, 1, 0),
        Entry("R", "new", b"old", 0, 0, 0),
    ]
    for entry in steps:
        folder.advance(entry)
    found = [folder.after_loss(random.Random(seed)) for seed in range(100)]
    expected = [{"old": b"old"}, {"old": b"old", "new": b"new"}, {"old": b"new"}]
    assert all(one in found for one in expected)
    assert all(one in expected for one in found)
    for entry in (Entry("B", "", b"", 9, 2, 0), Entry("E", "", b"", 9, 2, 0)):
        folder.advance(entry)
    assert all(folder.after_loss(random.Random(seed)) == {"old": b"new"} for seed in range(20))


def test_a_file_that_was_cut_and_grew_again_is_zero_between() -> None:
    file = File(bytearray(b"x" * 10), size=10)
    file.truncate(0, 2)
    file.write(1, 6, b"y")
    assert file.now() == b"xx\0\0\0\0y"
    file.synced(2)
    assert file.safe == b"xx\0\0\0\0y"
    assert file.pending == list[Change]()


# ---- faults of a running process

STEPS = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma journal_mode = wal")
db.execute("create table if not exists row (id integer primary key, data blob)")
for line in sys.stdin:
    try:
        db.execute("insert into row (data) values (zeroblob(?))", (int(line),))
        print("done", flush=True)
    except sqlite3.OperationalError as error:
        print(error, flush=True)
"""


class Writer:
    """A process that adds a row of so many bytes for each line it reads."""

    def __init__(self, disk: Disk) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STEPS, str(disk.folder / "db")],
            env=os.environ | disk.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, size: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def add(self, size: int) -> str:
        self.ask(size)
        return self.answer()


@pytest.fixture
def writer(disk: Disk) -> Iterator[Writer]:
    writer = Writer(disk)
    assert writer.add(10) == "done"
    yield writer
    disk.free()
    writer.process.communicate(timeout=30)


def test_a_full_disk_refuses_what_grows_and_takes_it_when_there_is_room(disk: Disk, writer: Writer) -> None:
    disk.fill()
    assert writer.add(10_000) == "database or disk is full"
    assert writer.add(10) == "database or disk is full"
    assert disk.refused > 0
    disk.quota = disk.used() + 100_000
    assert writer.add(10_000) == "done"
    assert writer.add(200_000) == "database or disk is full"
    assert disk.used() <= disk.quota
    disk.free()
    assert writer.add(200_000) == "done"


@pytest.mark.parametrize("fault", ["write_error", "sync_error"])
def test_an_io_error_is_one_as_long_as_it_lasts(disk: Disk, writer: Writer, fault: str) -> None:
    setattr(disk, fault, errno.EIO)
    assert writer.add(10) == "disk I/O error"
    disk.free()
    assert writer.add(10) == "done"


def test_a_sync_that_is_held_ends_when_it_may(disk: Disk, writer: Writer) -> None:
    disk.sync_delay = HELD
    before = disk.syncs
    writer.ask(10)
    limit = time.monotonic() + 30
    while disk.syncs == before and time.monotonic() < limit:
        time.sleep(0.01)
    assert disk.syncs == before + 1
    disk.sync_delay = 0
    assert writer.answer() == "done"


def test_files_elsewhere_are_not_touched(disk: Disk, tmp_path: Path) -> None:
    disk.quota, disk.write_error = 0, errno.EIO
    script = "import os, sys; print(os.write(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), b'text'))"
    assert run(disk, script, str(tmp_path / "elsewhere")) == "4"
    with pytest.raises(subprocess.CalledProcessError):
        run(disk, script, str(disk.folder / "here"))
