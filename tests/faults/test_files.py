"""The files of the store: taken from a running daemon, not writable, in use, torn, too new, damaged."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.__main__ import main
from tests.faults.daemon import ROOT, WAIT
from tests.faults.scene import Scene, Sender

PAGE = 4096
MESSAGES = 60  # queued in a session, and as many retained


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path / "data")) as scene:
        (tmp_path / "data").mkdir()
        yield scene


def parts(store: Path) -> list[Path]:
    """All files of *store* that are there."""
    return sorted(store.parent.glob(store.name + "*"))


def refused(store: Path, *prefix: str, names: Path | None = None) -> str:
    """The one line with which a daemon says why it does not start; it *names* the store or something else."""
    flags = ("--listen=tcp://127.0.0.1:0", f"--set=store.path={store}")
    command = [*prefix, sys.executable, "-m", "broker", *flags]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT)
    assert ended.returncode in (1, 2), ended
    assert "Traceback" not in ended.stderr
    assert "listening" not in ended.stdout
    said = [line for line in ended.stderr.splitlines() if line.startswith("pybroker: ")]
    assert len(said) == 1, ended.stderr
    assert f"{names or store}" in said[0]
    return said[0]


def filled(scene: Scene, count: int = 5) -> Sender:
    """Started, with a session that is away and has *count* messages."""
    scene.start()
    scene.session("holder", "t")
    sender = Sender(scene.client("sender"), "t")
    for _ in range(count):
        assert sender.send() == 0
    return sender


# ---- taken away while it runs


def remove_database(store: Path) -> None:
    store.unlink()


def remove_wal(store: Path) -> None:
    Path(f"{store}-wal").unlink()


def remove_index(store: Path) -> None:
    Path(f"{store}-shm").unlink(missing_ok=True)


def remove_all(store: Path) -> None:
    for file in parts(store):
        file.unlink()


def move_all(store: Path) -> None:
    """As somebody does who rotates logs."""
    for file in parts(store):
        file.rename(file.with_name("old-" + file.name))


@pytest.mark.parametrize("kill", [True, False], ids=["kill", "stop"])
@pytest.mark.parametrize("change", [remove_database, remove_wal, remove_index, remove_all, move_all])
def test_what_is_removed_is_written_anew(scene: Scene, change: Callable[[Path], None], kill: bool) -> None:
    sender = filled(scene)
    change(scene.store)
    for _ in range(10):
        sender.send()
    assert scene.store.exists()
    assert "removed" in scene.broker.log() or change is remove_index
    scene.broker.kill() if kill else scene.broker.stop()
    scene.start()
    assert scene.holder() == sender.taken


def test_an_acknowledgement_means_that_the_file_was_there(scene: Scene) -> None:
    """The next message after the removal is the first that must not be lost with it."""
    sender = filled(scene)
    for _ in range(3):
        remove_all(scene.store)
        sender.until(0)
        scene.crash()
        sender.client = scene.client("sender")
    assert scene.holder() == sender.taken


def test_another_file_in_its_place_is_not_written_to(scene: Scene) -> None:
    sender = filled(scene)
    other = scene.store.with_name("other")
    with closing(sqlite3.connect(other)) as db:
        db.execute("create table precious (data)")
    before = other.read_bytes()
    other.replace(scene.store)
    sender.until(0x83)
    assert "replaced" in scene.broker.log()
    assert scene.store.read_bytes() == before
    scene.store.rename(other)
    sender.until(0)
    assert other.read_bytes() == before
    scene.crash()
    assert scene.holder() == sender.taken


def test_its_folder_may_go_and_come_back(scene: Scene) -> None:
    sender = filled(scene)
    shutil.rmtree(scene.store.parent)
    sender.until(0x83)
    scene.store.parent.mkdir()
    sender.until(0)
    scene.crash()
    assert scene.holder() == sender.taken


# ---- not to be used


# root without the right to ignore permissions
ORDINARY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()


@pytest.mark.parametrize("what", ["file", "folder", "wal"])
def test_what_may_not_be_written_is_said(scene: Scene, what: str) -> None:
    filled(scene)
    scene.broker.kill()
    place = {"file": scene.store, "folder": scene.store.parent, "wal": Path(f"{scene.store}-wal")}[what]
    mode = stat.S_IMODE(place.stat().st_mode)
    for lock in scene.store.parent.glob("*-lock"):
        lock.unlink()
    place.chmod(mode & ~0o222)
    try:
        assert re.search("writ|read-?only|open|permission", refused(scene.store, *ORDINARY), re.I)
    finally:
        place.chmod(mode)


def test_a_place_where_no_file_can_be_is_said(tmp_path: Path) -> None:
    refused(tmp_path)
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "broker.db", names=tmp_path / "file")


@pytest.mark.parametrize("content", [b"not a database, but a long text. " * 300, b"\x7fELF" + bytes(5000)])
def test_a_file_of_another_kind_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    store = tmp_path / "file"
    store.write_bytes(content)
    refused(store)
    assert store.read_bytes() == content


def test_a_database_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    store = tmp_path / "file"
    with closing(sqlite3.connect(store)) as db:
        db.execute("create table precious (data)")
    before = store.read_bytes()
    assert "no store of pybroker" in refused(store)
    assert store.read_bytes() == before


def test_a_newer_format_is_refused(scene: Scene) -> None:
    filled(scene)
    scene.broker.stop()
    with closing(sqlite3.connect(scene.store)) as db:
        db.execute("pragma user_version = 999")
    assert "999" in refused(scene.store)


def test_one_process_at_a_time(scene: Scene) -> None:
    sender = filled(scene)
    assert str(scene.broker.pid) in refused(scene.store)
    assert sender.send() == 0
    scene.broker.kill()
    scene.start()  # a lock goes with its process
    assert scene.holder() == sender.taken


def test_a_link_is_the_file_that_it_points_to(scene: Scene, tmp_path: Path) -> None:
    """Two names of one file are one store."""
    filled(scene)
    link = tmp_path / "link.db"
    link.symlink_to(scene.store)
    assert str(scene.broker.pid) in refused(link, names=scene.store)


# ---- torn and damaged


def spoil(file: Path, rng: random.Random, at: int, size: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(rng.randbytes(size))


@pytest.mark.parametrize("seed", range(4))
def test_a_torn_end_of_the_wal_vanishes(scene: Scene, seed: int) -> None:
    sender, rng = filled(scene), random.Random(seed)
    scene.broker.kill()
    wal = Path(f"{scene.store}-wal")
    size = wal.stat().st_size
    with wal.open("ab") as file:
        file.write(wal.read_bytes()[32 : 32 + rng.randrange(9000)] if seed % 2 else rng.randbytes(9000))
    assert wal.stat().st_size >= size
    scene.start()
    assert scene.holder() == sender.taken


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of some pages after an unclean stop, in one file."""
    with closing(Scene(tmp_path_factory.mktemp("filled"))) as scene:
        scene.start()
        scene.session("holder", "t/#", qos=1)
        sender = Sender(scene.client("sender"), "t/1", 700)
        for _ in range(MESSAGES):
            assert sender.send() == 0
            sender.client.publish("t/2", b"with a property", 1, content_type="text")  # not in a run
        for number in range(MESSAGES):
            sender.client.publish(f"shelf/{number}", b"x" * 300, 1, retain=True)
        scene.broker.kill()
        with closing(sqlite3.connect(scene.store)) as db:
            assert db.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0
        return scene.store


@pytest.fixture
def store(scene: Scene, filled_store: Path) -> Path:
    """A copy of it."""
    shutil.copyfile(filled_store, scene.store)
    return scene.store


def damage(store: Path, seed: int) -> None:
    """One page is something else."""
    pages = store.stat().st_size // PAGE
    spoil(store, random.Random(seed), PAGE * random.Random(seed).randrange(1, pages), PAGE)


def test_damage_is_found_and_the_way_out_named(store: Path) -> None:
    damage(store, 1)
    said = refused(store)
    assert f"pybroker store salvage {store}" in said


OF_A_SESSION = {"session", "subscription", "delivery", "held", "run", "part"}


@pytest.mark.parametrize("seed", range(16))
def test_what_is_readable_is_salvaged(
    store: Path, scene: Scene, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    whole = rows(store)
    damage(store, seed)
    before = store.read_bytes()
    assert main(["store", "verify", str(store)]) != 0
    found = store.with_name("found.db")
    status = main(["store", "salvage", str(store), str(found)])
    said = capsys.readouterr()
    assert store.read_bytes() == before
    assert main(["store", "verify", str(found)]) == 0
    kept = rows(found)
    assert kept.items() <= whole.items(), "what is salvaged was there"
    lost = whole.keys() - kept.keys()
    tables = {table for table, _ in lost} - {"message"}
    assert tables <= OF_A_SESSION or tables <= {"retained"}, "one page is damaged, of one table"
    assert ("session", 1) not in lost or not {each for each in lost if each[0] == "retained"}
    assert len(lost) <= 4 * MESSAGES + 2, "at most what one session had, or what was retained"
    assert status != 0 or not lost, said
    assert status == 0 or lost or "cannot be read" in said.out + said.err, "a page that may have had rows"
    found.replace(store)
    for rest in parts(store)[1:]:
        rest.unlink()
    scene.start()
    scene.client("anybody").ping()


def rows(store: Path) -> dict[tuple[str, int], tuple[object, ...]]:
    with closing(sqlite3.connect(store)) as db:
        tables = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table'")]
        tables.remove("meta")
        return {(name, row[0]): row for name in tables for row in db.execute(f"select * from {name}")}
