"""The power goes at any moment: nothing acknowledged is lost with `always`, only the end with `normal`."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from broker.store.repair import verify
from tests.faults.history import Acknowledged, Arrived, Event, History, Published, Tag
from tests.faults.powerloss import CLIENTS, STORE, WILLS, aftermath, cut_off, drain, events, resumed, serving
from tests.faults.recording import Folder, Recording, lay
from tests.faults.shim import Disk

ROOT = Path(__file__).parent.parent.parent
SYNC = 2  # milliseconds of one sync: long enough for others to come in between


@contextmanager
def failing(disk: Disk, rng: random.Random) -> Iterator[None]:
    """Meanwhile syncs fail, writes fail, and the disk is full, each for some milliseconds."""
    over = threading.Event()
    notes = disk.folder / CLIENTS

    def fail() -> None:
        while not (notes.exists() and notes.stat().st_size) and not over.wait(0.01):
            pass  # a store that cannot even be opened is another test
        for number in count():
            if over.wait(rng.random() * 0.06):
                return
            match number % 3:
                case 0:
                    disk.sync_error = errno.EIO
                case 1:
                    disk.write_error = errno.EIO
                case 2:
                    disk.fill()
            over.wait(rng.random() * 0.03)
            disk.free()
            disk.sync_delay = SYNC

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def untroubled(disk: Disk, rng: random.Random) -> Iterator[None]:
    yield


def record(place: Path, fsync: str, seed: int, trouble: Callable = untroubled) -> Recording:
    """What the store does while clients work with it."""
    (place / "disk").mkdir()
    with Disk(place / "disk") as disk:
        disk.sync_delay = SYNC
        command = [sys.executable, "-m", "tests.faults.powerloss", str(disk.folder), fsync, str(seed)]
        with trouble(disk, random.Random(seed)):
            environ = os.environ | disk.environ(record=True)
            subprocess.run(command, cwd=ROOT, env=environ, timeout=60, check=True)
        return Recording(disk.recording)


class Wrecks:
    """Folders that a power loss left of one recording, and the history that led to each."""

    def __init__(self, recording: Recording, place: Path, seed: int, cuts: int) -> None:
        self.recording, self.place = recording, place
        self.rng = random.Random(seed)
        self.cuts = recording.cuts(cuts, self.rng)
        *_, last = recording.folders([len(recording.entries)])
        self.history = events(last.notes)

    def all(self, loss: Callable[[Folder], dict[str, bytes]] | None = None) -> Iterator[tuple[int, History]]:
        """For each cut its number, with what *loss* left of the folder laid in `place`."""
        for cut, folder in zip(self.cuts, self.recording.folders(self.cuts), strict=True):
            files = loss(folder) if loss else folder.after_loss(self.rng)
            if self.rng.random() < 0.3:  # the index of the WAL is no part of what is stored
                files[f"{STORE}-shm"] = self.rng.randbytes(32768)
            else:
                files.pop(f"{STORE}-shm", None)
            lay(self.place, files)
            yield cut, self.history[: len(folder.notes)]


# A publisher sends again what was not acknowledged, and one that came meanwhile gets it after later ones.
FINE = "was refused$|order_is_kept: restless"


def judge(
    wrecks: Wrecks, loss: Callable[[Folder], dict[str, bytes]] | None = None, but: str = FINE
) -> list[str]:
    """The first breaches, each with its cut, that do not match *but*."""
    found = []
    for cut, before in wrecks.all(loss):
        breaches = problems(wrecks.place, before) + asyncio.run(aftermath(wrecks.place, before))
        found += [f"cut {cut}: {breach}" for breach in breaches if not re.search(but, breach)]
        if len(found) > 20:
            break
    return found


def problems(folder: Path, before: History) -> list[str]:
    """What `pybroker store verify` says, once there was a client: before that it may not even be a store."""
    return verify(str(folder / STORE)).problems if before else []


@pytest.mark.parametrize("seed", [1, 2])
def test_with_always_nothing_acknowledged_is_lost(tmp_path: Path, seed: int, cuts: int) -> None:
    recording = record(tmp_path, "always", seed)
    assert judge(Wrecks(recording, tmp_path / "found", seed, cuts // 3)) == []


@pytest.mark.parametrize("seed", [3, 4])
def test_nor_on_a_disk_that_fails_now_and_then(tmp_path: Path, seed: int, cuts: int) -> None:
    recording = record(tmp_path, "always", seed, failing)
    assert any(entry.kind == "E" and entry.size for entry in recording.entries), "no sync has failed"
    # A will that was given while the store could not be written is in memory alone. A refusal that is lost
    # with its connection makes the publisher send again, when later messages have been taken.
    fine = f"{FINE}|order_is_kept|{'|'.join(WILLS)}"
    assert judge(Wrecks(recording, tmp_path / "found", seed, cuts // 3), but=fine) == []


@pytest.mark.parametrize("fsync", ["never", "normal"])
def test_a_kill_loses_nothing_whatever_is_synced(tmp_path: Path, fsync: str, cuts: int) -> None:
    """Between any two writes: what the kernel has taken stays."""
    recording = record(tmp_path, fsync, 4)
    assert judge(Wrecks(recording, tmp_path / "found", 4, cuts // 6), Folder.now) == []


def test_with_normal_the_end_alone_is_lost(tmp_path: Path, cuts: int) -> None:
    recording = record(tmp_path, "normal", 5)
    wrecks, lost = Wrecks(recording, tmp_path / "found", 5, cuts // 6), 0
    for cut, before in wrecks.all():
        assert problems(wrecks.place, before) == [], f"cut {cut}"
        kept = asyncio.run(keeps(wrecks.place, before))
        for publisher, sent in acknowledged(before).items():
            got = [tag for tag in sent if tag in kept]
            assert got == sent[: len(got)], f"cut {cut}: {publisher} lost what is not the end"
            lost += len(sent) - len(got)
    assert lost > 0, "this power loss does not even find what is not synced"


def test_topics_can_be_safer_than_others(tmp_path: Path, cuts: int) -> None:
    recording = record(tmp_path, "normal,a/#=always", 6)
    wrecks, lost = Wrecks(recording, tmp_path / "found", 6, cuts // 6), 0
    for cut, before in wrecks.all():
        kept = asyncio.run(keeps(wrecks.place, before))
        for (publisher, topic_name, _), sent in acknowledged(before).items():
            gone = [tag for tag in sent if tag not in kept]
            assert not gone or topic_name[0] == "b", f"cut {cut}: {publisher} lost {gone}"
            lost += len(gone)
    assert lost > 0, "the others are as safe"


async def keeps(folder: Path, before: list[Event]) -> set[Tag]:
    """What the session of one that was away all the time has."""
    history = cut_off(before)
    async with serving(folder, "never") as port:
        cast = resumed([event for event in before if event.client == "keeper"], port, history)
        await drain(cast)
        for peer in cast.peers.values():
            await peer.drop()
    return {event.tag for event in history if isinstance(event, Arrived) and event.client == "keeper"}


def acknowledged(history: list[Event]) -> dict[tuple[str, str, int], list[Tag]]:
    """What was acknowledged to the end, in order: by publisher, topic and QoS."""
    qos = {event.tag: event.qos for event in history if isinstance(event, Published)}
    found = defaultdict[tuple[str, str, int], list[Tag]](list)
    for event in history:
        over = isinstance(event, Acknowledged) and event.kind != "PUBREC"
        if over and event.tag and event.tag.topic_name[0] in "ab":
            found[event.client, event.tag.topic_name, qos[event.tag]].append(event.tag)
    return found
