"""What was found stays right, and a short look for more. The long one: see README.md beside this file."""

from __future__ import annotations

import base64
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.packet import message
from tests.fuzz.hunt import NAMES, load
from tests.fuzz.pieces import Piece, join_records, split_records
from tests.fuzz.target import FOLDER, chunks

ROOT = FOLDER.parent.parent
SECONDS = int(os.environ.get("FUZZ_SECONDS", "8"))  # for each target
LARGEST_CORPUS = 1 << 20  # bytes, of all together
# As in pyproject.toml: there is no atheris elsewhere.
HAS_ATHERIS = platform.system() == "Linux" and platform.machine() == "x86_64" and sys.version_info < (3, 15)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_stays_right(name: str) -> None:
    target = load(name)
    inputs = target.inputs()
    assert len(inputs) > 10, "the corpus is missing"
    for path in inputs:
        data = path.read_bytes()
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"{path.relative_to(FOLDER)}: {base64.b64encode(data).decode()}") from error


@pytest.mark.parametrize("name", NAMES)
def test_the_seeds_are_right_and_reach_something(name: str) -> None:
    target = load(name)
    seeds = list(target.seeds())
    assert len(seeds) > 10
    for seed in seeds:
        target.run(seed)


@pytest.mark.skipif(not HAS_ATHERIS, reason="atheris 3 is for Linux on x86_64 alone, before Python 3.15")
@pytest.mark.timeout(SECONDS * 4 + 120)
@pytest.mark.parametrize("name", NAMES)
def test_a_short_look_for_more(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(SECONDS), "--found", str(tmp_path)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=SECONDS * 4 + 100
    )
    crashes = [
        path for path in tmp_path.iterdir() if path.name.partition("-")[0] in ("crash", "oom", "timeout")
    ]
    told = "".join(f"{path.name}: {base64.b64encode(path.read_bytes()).decode()}\n" for path in crashes)
    assert ended.returncode == 0 and not crashes, f"{told}{ended.stdout[-2000:]}{ended.stderr[-6000:]}"
    assert "DONE" in ended.stderr and "cov:" in ended.stderr, ended.stderr[-2000:]


# What each target must see, once it is broken so: a value, or a function of a module that is never compiled.
BROKEN: dict[str, tuple[str, Any]] = {
    "packets": ("broker.packet.message._FIRST_BYTES", (b"\x30",) * 16),
    "frames": ("broker.transport.frames.unmask", lambda data, mask: data),
    "heads": ("broker.transport.http11._HEADER", re.compile(rb"([^:]+):[ \t]*(.*?)[ \t]*")),
    "topics": ("broker.topic.name.SHARE", "$shared/"),
    "conversations": ("broker.handle.disconnect.count_user", lambda core, client, by: None),
    "files": ("broker.session.restore.fault", lambda *anything: ""),
    "lives": ("broker.store.journal.Journal.promise", lambda self, before, topic_name=None: 0),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_target_sees_what_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load(name)
    where, instead = BROKEN[name]
    monkeypatch.setattr(where, instead)
    monkeypatch.setattr(message, "_HEADS", type(message._HEADS)())  # what is broken is not kept for others
    for data in (*(path.read_bytes() for path in target.inputs()), *target.seeds()):
        try:
            target.run(data)
        except Exception:
            return
    raise AssertionError(f"nothing notices that {where} is broken")


def test_the_corpus_stays_small() -> None:
    sizes = [path.stat().st_size for name in NAMES for path in load(name).inputs()]
    assert sum(sizes) < LARGEST_CORPUS


@pytest.mark.parametrize("name", NAMES)
def test_pieces_join_to_what_was_split(name: str) -> None:
    """So that a mutation which changes one piece leaves the others as they are."""
    target = load(name)
    for seed in target.seeds():
        pieces = target.split(seed[target.settings :])
        assert target.split(target.join(pieces)) == pieces


@pytest.mark.parametrize("name", NAMES)
def test_mutations_stay_within_the_bounds_and_come_from_their_number_alone(name: str) -> None:
    def change(data: bytes, most: int) -> bytes:
        return (data[::-1] + b"\x07")[:most]

    target, seeds = load(name), list(load(name).seeds())
    for number in range(200):
        ours, theirs = Random(number).choices(seeds, k=2)
        mutated = target.mutate(ours, 200, number, change)
        assert len(mutated) <= 200 and mutated == target.mutate(ours, 200, number, change)
        assert len(target.cross(ours, theirs, 200, number)) <= 200


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"", []),
        (b"\x05", [(b"\x05", b"")]),
        (b"\x05\x02ab\x06\x00\x07\x09xy", [(b"\x05", b"ab"), (b"\x06", b""), (b"\x07", b"xy")]),
    ],
)
def test_any_bytes_are_records(data: bytes, pieces: list[Piece]) -> None:
    assert split_records(data) == pieces
    assert split_records(join_records(pieces)) == pieces


@pytest.mark.parametrize("pattern", [0, 1, 0x21, 0xFF])
def test_chunks_are_the_whole(pattern: int) -> None:
    data = bytes(range(256))
    assert b"".join(chunks(data, pattern)) == data
    assert len(chunks(data, pattern)) == 1 or pattern
