"""Power losses and kills under a store alone, also when syncs fail: what it has reported is there."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.commits import OPEN, breaches
from tests.faults.daemon import ROOT
from tests.faults.recording import NOTES, Recording, lay
from tests.faults.shim import Disk

INDEX = "broker.db-shm"  # the index of the WAL, which is no part of what is stored


def record(folder: Path, seed: int, fails: bool = False) -> Recording:
    """What a store in *folder* writes. With *fails*, now and then a sync fails."""
    before = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(NOTES)}
    with Disk(folder) as disk:
        command = [sys.executable, "-m", "tests.faults.commits", str(folder / "broker.db"), str(seed)]
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | disk.environ(record=True))
        rng = random.Random(seed)
        disk.sync_delay = 1
        while process.poll() is None:
            time.sleep(rng.random() * 0.03)
            disk.sync_error = errno.EIO if fails else 0
            time.sleep(rng.random() * 0.01)
            disk.sync_error = 0
        assert process.returncode == 0
        return Recording(disk.recording, before)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fails", [False, True], ids=["syncs work", "some syncs fail"])
def test_what_was_reported_is_there(tmp_path: Path, seed: int, fails: bool) -> None:
    recording, rng = record(tmp_path, seed, fails), random.Random(seed)
    assert fails == any(entry.kind == "E" and entry.size for entry in recording.entries)
    cuts, found = recording.cuts(150, rng), tmp_path / "found"
    for cut, folder in zip(cuts, recording.folders(cuts), strict=True):
        files = folder.after_loss(rng)
        files.pop(INDEX, None)
        lay(found, files)
        assert breaches(found, folder.notes) == [], f"cut {cut}"


@pytest.mark.parametrize("loss", ["power", "kill"])
def test_a_new_store_may_end_at_any_moment(tmp_path: Path, loss: str) -> None:
    """Every moment until it is open, several times each: the next start makes a whole one."""
    recording, rng, found = record(tmp_path, 3), random.Random(3), tmp_path / "found"
    for folder in recording.folders(sorted([*range(1, 120)] * 2)):
        files = folder.after_loss(rng) if loss == "power" else folder.now()
        files.pop(INDEX, None)
        lay(found, files)
        assert breaches(found, folder.notes) == [], f"cut {folder.number}"
        if OPEN in folder.notes:
            return
    raise AssertionError("it was never open")


@pytest.mark.parametrize("seed", range(3))
def test_the_power_may_go_again_while_it_recovers(tmp_path: Path, seed: int) -> None:
    first, rng = record(tmp_path, seed), random.Random(seed)
    second, found = tmp_path / "second", tmp_path / "found"
    *_, folder = first.folders([rng.randrange(len(first.entries) // 2, len(first.entries))])
    files = folder.after_loss(rng)
    files.pop(INDEX, None)
    lay(second, files)
    again = record(second, seed + 100)
    cuts = sorted([*again.cuts(30, rng), *range(1, 41)])
    for cut, later in zip(cuts, again.folders(cuts), strict=True):
        files = later.after_loss(rng)
        files.pop(INDEX, None)
        lay(found, files)
        assert breaches(found, [*folder.notes, *later.notes]) == [], f"cut {cut}"
