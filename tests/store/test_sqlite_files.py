"""The files of a SqliteStore: who may have them, and what happens when somebody takes them away."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from broker.errors import StoreError
from broker.store import sqlite
from broker.store.base import StoreClock, Table
from broker.store.sqlite import SqliteStore
from tests.store.contents import killed, numbers, opened, put

ROOT = Path(__file__).parents[2]
WAIT = 30.0  # seconds, for the start of an interpreter on a busy machine
CLOCK = StoreClock(1.5, 2.5)
pytestmark = pytest.mark.usefixtures("no_wait")


def test_the_files_are_for_their_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(path) as store:
            put(store)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
            path.unlink()
            put(store, 2)
            modes["again"] = stat.S_IMODE(path.stat().st_mode)
    finally:
        os.umask(before)
    names = ("", "-wal", "-shm", "-lock")
    assert modes == {**{f"broker.db{name}": 0o600 for name in names}, "again": 0o600}


# ---- the lock


def test_a_second_one_is_told_who_has_it(path: Path) -> None:
    with opened(path) as store:
        with pytest.raises(StoreError, match=rf"in use by process {os.getpid()}; stop it, or"):
            SqliteStore(str(path)).open()
        put(store)
    with opened(path) as store:  # it was given back
        assert [number for number, _ in store.read(Table.MESSAGE)] == [1]


OPEN_IT = """
import sys
from broker.errors import StoreError
from broker.store.sqlite import SqliteStore
try:
    SqliteStore(sys.argv[1]).open()
except StoreError as error:
    print(error)
else:
    print("opened", flush=True)
    sys.stdin.read()
"""


def test_a_second_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", OPEN_IT, str(path)]
    with opened(path):
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT)
        assert f"in use by process {os.getpid()};" in ended.stdout, ended
    with subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "opened\n"
        with pytest.raises(StoreError, match=f"in use by process {other.pid};"):
            SqliteStore(str(path)).open()
        other.kill()
        other.wait(WAIT)
    with opened(path):
        pass  # a lock goes with its process


def test_a_process_that_is_just_ending_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCK_TIME", WAIT)
    lock = os.open(f"{path}-lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    began = threading.Event()
    monkeypatch.setattr(sqlite.time, "sleep", lambda seconds: began.set())
    opening = threading.Thread(target=lambda: SqliteStore(str(path)).open())
    opening.start()
    assert began.wait(WAIT)
    assert not path.exists()
    os.close(lock)
    opening.join(WAIT)
    assert path.exists()


def test_a_link_has_the_lock_of_what_it_leads_to(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(path)
    with opened(link) as store:
        put(store, clock=CLOCK)
        assert "removed" not in caplog.text
        with pytest.raises(StoreError, match="in use by process"):
            SqliteStore(str(path)).open()
    assert numbers(path) == [1]
    assert os.listdir(link.parent) == ["link.db"]


# ---- files that somebody takes away


def remove(path: Path, *names: str) -> None:
    for name in names:
        Path(f"{path}{name}").unlink()


@pytest.mark.parametrize(
    "names",
    [("",), ("-wal",), ("-shm",), ("-lock",), ("", "-wal"), ("-wal", "-shm"), ("", "-wal", "-shm", "-lock")],
    ids=lambda names: ",".join(names) or "db",
)
@pytest.mark.parametrize("noted", [True, False], ids=["with the clock", "at once"])
def test_what_is_removed_is_there_again_before_the_commit_is_reported(
    path: Path, tmp_path: Path, names: tuple[str, ...], noted: bool
) -> None:
    with opened(path) as store:
        put(store, 1)
        os.utime(path.parent, ns=(1, 1))  # so that the removal is another moment, however soon it comes
        put(store, 2)
        remove(path, *names)
        if noted:  # and so that nobody sees that it was one
            os.utime(path.parent, ns=(1, 1))
        put(store, 3, clock=CLOCK if noted else None)
        assert all(os.path.exists(f"{path}{name}") for name in names)
        assert numbers(killed(path, tmp_path / "killed")) == [1, 2, 3]
        with pytest.raises(StoreError, match="in use by process"):
            SqliteStore(str(path)).open()
        put(store, 4)
        assert numbers(killed(path, tmp_path / "killed later")) == [1, 2, 3, 4]
    assert numbers(path) == [1, 2, 3, 4]
    assert {file.name for file in path.parent.glob("broker.db*")} == {"broker.db", "broker.db-lock"}


def test_it_is_removed_again_and_again(path: Path, tmp_path: Path) -> None:
    with opened(path) as store:
        for number in range(1, 6):
            put(store, number, clock=CLOCK)
            remove(path, "", "-wal", "-shm")
        put(store, 6, clock=CLOCK)
        assert numbers(killed(path, tmp_path / "killed")) == [1, 2, 3, 4, 5, 6]


def test_a_copy_that_was_left_half_done_is_thrown_away(path: Path) -> None:
    with opened(path) as store:
        put(store, 1)
        Path(f"{path}-rescue").write_bytes(b"half")
        remove(path, "")
        put(store, 2, clock=CLOCK)
    assert numbers(path) == [1, 2]
    assert not Path(f"{path}-rescue").exists()


def test_a_file_that_takes_its_place_is_not_written_to(path: Path, tmp_path: Path) -> None:
    with opened(path) as store:
        put(store, 1)
        path.rename(tmp_path / "mine")
        path.write_bytes(b"precious")
        for number in (2, 3):
            with pytest.raises(StoreError, match="replaced by another file while in use; move that away"):
                put(store, number, clock=CLOCK)
        assert path.read_bytes() == b"precious"
        path.rename(tmp_path / "precious")
        put(store, 3, clock=CLOCK)
        assert (tmp_path / "precious").read_bytes() == b"precious"
    assert numbers(path)[-1] == 3


def test_a_lock_that_somebody_else_has_taken_meanwhile(path: Path) -> None:
    """Its file was removed, and another broker made a new one: there must not be two that write."""
    with opened(path) as store:
        put(store, 1)
        remove(path, "-lock")
        lock = sqlite.take_lock(str(path))
        with pytest.raises(StoreError, match="in use by process"):
            put(store, 2, clock=CLOCK)
        os.close(lock)
        put(store, 3, clock=CLOCK)
        with pytest.raises(StoreError, match="in use by process"):
            SqliteStore(str(path)).open()


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with opened(folder / "broker.db") as store:
        put(store, 1)
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match=re.escape(str(folder))):
            put(store, 2)
        folder.mkdir()
        put(store, 3)
    assert numbers(folder / "broker.db")[-1] == 3
