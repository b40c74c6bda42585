"""What `shim.c` has recorded, and the folders that a power loss may leave of it.

The model: a sync that has ended without an error makes safe what was written to the file before it began,
and a sync of the folder makes safe its names. Of all else nothing is certain. A sector of 512 bytes is
written whole or not at all, and holds what was written to it up to some moment, each sector up to a moment of
its own; the size of a file is one that it had since; a name is as it was at some moment since. What was
written before a sync that failed is not written by the next one, unless its page was written again: the
kernel takes the page for clean [as Linux does since 4.13].
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
PAGE = 4096
HEAD = struct.Struct("=cxHIQqq")  # struct entry of shim.c
NOTES = ".notes"  # how the name of a file ends that is no part of the disk: what somebody saw, in order


class Entry(NamedTuple):
    kind: str  # Create, Open, Directory, Write, Truncate, Begin and End of a sync, Unlink, Rename
    name: str
    data: bytes
    inode: int
    at: int  # of a write; the token of a sync
    size: int  # after a truncation; the errno of a sync


class Change(NamedTuple):
    """A write, or a truncation, which has no data."""

    number: int  # entries before it
    at: int
    data: bytes
    size: int  # of the file after it
    doomed: bool = False  # a sync failed: no later one writes it


@dataclass(slots=True)
class File:
    """One file: what is safe, and what is not yet."""

    safe: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    size: int = 0

    def write(self, number: int, at: int, data: bytes) -> None:
        self.size = max(self.size, at + len(data))
        self.pending.append(Change(number, at, data, self.size))

    def truncate(self, number: int, size: int) -> None:
        """To less or to more: what lies between reads as zero from then on."""
        low, high = sorted((self.size, size))
        self.pending.append(Change(number, low, bytes(high - low), size))
        self.size = size

    def synced(self, number: int) -> None:
        """All before entry *number* is safe, but for pages that a failed sync has left behind."""
        before = [change for change in self.pending if change.number < number]
        pages = {page for change in before if not change.doomed for page in pages_of(change)}
        left = []
        for change in before:
            for part in split(change, PAGE) if change.doomed else [change]:
                if change.doomed and part.at // PAGE not in pages:
                    left.append(part)
                else:
                    put(self.safe, part.at, part.data)
        sizes = [change.size for change in before if not change.doomed]
        if sizes:
            del self.safe[sizes[-1] :]
            self.safe.extend(bytes(sizes[-1] - len(self.safe)))
        self.pending = left + self.pending[len(before) :]

    def failed(self, number: int) -> None:
        """A sync ended with an error: what was before entry *number* may never be written."""
        self.pending = [
            change._replace(doomed=True) if change.number < number else change for change in self.pending
        ]

    def now(self) -> bytes:
        """As a process reads it."""
        content = bytearray(self.safe)
        for change in self.pending:
            put(content, change.at, change.data)
        return bytes(content[: self.size])

    def after_loss(self, rng: random.Random) -> bytes:
        """As it may be found when the power is back."""
        if not self.pending:
            return bytes(self.safe)
        size = rng.choice([len(self.safe), self.size, *(change.size for change in self.pending)])
        reaches = LOSSES[rng.randrange(len(LOSSES))](rng, len(self.pending))
        content = bytearray(self.safe)
        grow(content, size, rng)
        ends: dict[int, int] = {}
        for number, change in enumerate(self.pending):
            for part in split(change, SECTOR):
                sector = part.at // SECTOR
                if sector not in ends:
                    ends[sector] = reaches(number)
                    if ends[sector] >= number and sector * SECTOR >= len(self.safe):
                        put(content, sector * SECTOR, bytes(SECTOR))
                if number <= ends[sector]:
                    put(content, part.at, part.data)
        del content[size:]
        return bytes(content)


def grow(content: bytearray, size: int, rng: random.Random) -> None:
    """What was never written is zero on one disk, and what others had there on another."""
    content.extend(bytes(-len(content) % SECTOR))
    more = max(0, size - len(content))
    content.extend(rng.randbytes(more) if rng.random() < 0.3 else bytes(more))


# Each gives a function: of the first change that wants a sector, the last change that this sector will hold.
Reach = Callable[[int], int]
LOSSES: tuple[Callable[[random.Random, int], Reach], ...] = (
    lambda rng, count: lambda first: -1,  # nothing was written
    lambda rng, count: lambda first: count,  # all was
    lambda rng, count: lambda first: rng.randrange(-1, count),  # each sector up to a moment of its own
    lambda rng, count: lambda first: count if rng.random() < 0.5 else -1,  # each sector all or nothing
    lambda rng, count: lambda first: count if rng.random() < 0.98 else -1,  # few are missing
    lambda rng, count: lambda first: count if rng.random() < 0.02 else -1,  # few are there
    lambda rng, count: in_order(rng, count),
)


def in_order(rng: random.Random, count: int) -> Reach:
    """As written, up to a moment; the last write of them is torn."""
    last = rng.randrange(count)
    return lambda first: last - rng.randrange(2)


def put(content: bytearray, at: int, data: bytes) -> None:
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def pages_of(change: Change) -> range:
    return range(change.at // PAGE, (change.at + max(1, len(change.data)) - 1) // PAGE + 1)


def split(change: Change, unit: int) -> Iterator[Change]:
    """The parts of *change* that lie in one *unit* each."""
    at, end = change.at, change.at + len(change.data)
    while at < end:
        border = min(end, (at // unit + 1) * unit)
        yield change._replace(at=at, data=change.data[at - change.at : border - change.at])
        at = border


class Step(NamedTuple):
    """A change of names that is not safe yet: each name with the file it has after it, None for none."""

    number: int
    names: dict[str, File | None]


class Folder:
    """The recorded folder after some entries; `advance` takes the next."""

    def __init__(self, before: dict[str, bytes]) -> None:
        """*before*: the files that were there, and safe, when the recording began."""
        self.safe: dict[str, File | None] = {
            name: File(bytearray(data), size=len(data)) for name, data in before.items()
        }
        self.names = dict(self.safe)
        self.steps: list[Step] = []
        self.files: dict[int, File] = {}  # by inode, as long as that means the same file
        self.directories: set[int] = set()
        self.noted: set[int] = set()  # inodes of the notes
        self.begun: dict[int, int] = {}  # the token of a sync -> the entry at which it began
        self.notes: list[str] = []
        self.number = 0

    def advance(self, entry: Entry) -> None:
        if entry.name.endswith(NOTES):
            self.noted.add(entry.inode)
        elif entry.inode not in self.noted:
            self._change(entry)
        elif entry.kind == "W":
            self.notes += entry.data.decode().splitlines()
        self.number += 1

    def _change(self, entry: Entry) -> None:
        match entry.kind:
            case "W":
                self.files[entry.inode].write(self.number, entry.at, entry.data)
            case "C":
                self.files[entry.inode] = File()
                self._step({entry.name: self.files[entry.inode]})
            case "O":
                file = self.names[entry.name]
                assert file is not None, f"{entry.name} was opened and is not there"
                self.files[entry.inode] = file
            case "D":
                self.directories.add(entry.inode)
            case "T":
                self.files[entry.inode].truncate(self.number, entry.size)
            case "U":
                self._step({entry.name: None})
            case "R":
                self._step({entry.name: None, entry.data.decode(): self.names[entry.name]})
            case "B":
                self.begun[entry.at] = self.number
            case "E":
                self._synced(entry, self.begun.pop(entry.at))

    def _step(self, names: dict[str, File | None]) -> None:
        self.names |= names
        self.steps.append(Step(self.number, names))

    def _synced(self, entry: Entry, began: int) -> None:
        if entry.inode in self.directories:
            if not entry.size:
                for step in self.steps:
                    self.safe |= step.names if step.number < began else {}
                self.steps = [step for step in self.steps if step.number >= began]
        elif entry.size:
            self.files[entry.inode].failed(began)
        else:
            self.files[entry.inode].synced(began)

    def now(self) -> dict[str, bytes]:
        """The files as a process that has not lost its power finds them."""
        return {name: file.now() for name, file in self.names.items() if file is not None}

    def after_loss(self, rng: random.Random) -> dict[str, bytes]:
        """The files as they may be found when the power is back."""
        names, stopped = dict(self.safe), set[str]()
        likely = rng.choice((0.0, 0.5, 0.9, 1.0))
        for step in self.steps:
            if rng.random() < likely and not stopped & step.names.keys():
                names |= step.names
            else:
                stopped |= step.names.keys()
        return {name: file.after_loss(rng) for name, file in names.items() if file is not None}


class Recording:
    """All entries of one recording."""

    def __init__(self, path: Path, before: dict[str, bytes] | None = None) -> None:
        self.entries = list(entries(path.read_bytes()))
        self.before = before or {}

    def count(self, *kinds: str) -> int:
        return sum(entry.kind in kinds for entry in self.entries)

    def borders(self) -> list[int]:
        """Before and after the end of each sync."""
        ends = [at for at, entry in enumerate(self.entries) if entry.kind == "E"]
        return sorted({*ends, *(at + 1 for at in ends)})

    def cuts(self, count: int, rng: random.Random) -> list[int]:
        """*count* numbers of entries: borders, two thirds of them or all, and random ones, in order."""
        borders = self.borders()
        if len(borders) > count * 2 // 3:
            borders = rng.sample(borders, count * 2 // 3)
        places = range(1, len(self.entries) + 1)
        return sorted(borders + rng.choices(places, k=count - len(borders)))

    def folders(self, cuts: Iterable[int]) -> Iterator[Folder]:
        """The folder at each of *cuts*, which are in order; the same object each time."""
        folder = Folder(self.before)
        for cut in cuts:
            while folder.number < cut:
                folder.advance(self.entries[folder.number])
            yield folder


def entries(raw: bytes) -> Iterator[Entry]:
    """The whole entries of a recording, whose last one may be torn by a kill."""
    at = 0
    while at + HEAD.size <= len(raw):
        kind, name, data, inode, place, size = HEAD.unpack_from(raw, at)
        middle = at + HEAD.size + name
        at = middle + data
        if at <= len(raw):
            names, content = raw[middle - name : middle].decode(), raw[middle:at]
            yield Entry(kind.decode(), names, content, inode, place, size)


def lay(folder: Path, files: dict[str, bytes]) -> None:
    """Make *folder* hold *files* and nothing else."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
