"""What a fuzz target is, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.fuzz import pieces
from tests.fuzz.pieces import Change, Piece

FOLDER = Path(__file__).parent


def _any_body(piece_body: bytes, most: int, rnd: Random, change: Change) -> bytes:
    return change(piece_body, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Some code that reads what strangers write.

    *run* takes any bytes and raises AssertionError, or lets an exception of that code pass, when
    something is wrong. The first *settings* bytes choose how it runs; the rest are pieces.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    covers: Sequence[str]  # the modules whose lines count
    settings: int = 0
    longest: int = 4096  # bytes of an input that the fuzzer tries
    split: Callable[[bytes], list[Piece]] = pieces.split_records
    join: Callable[[Sequence[Piece]], bytes] = pieces.join_records
    change_body: Callable[[bytes, int, Random, Change], bytes] = _any_body
    frugal: bool = (
        False  # runs are slow: keep what reaches new code, not what runs it another number of times
    )
    words: Sequence[bytes] = ()  # what the fuzzer puts in now and then

    @property
    def kept(self) -> tuple[Path, Path]:
        """The folders of inputs in the tree: the corpus, and what once went wrong."""
        return FOLDER / "corpus" / self.name, FOLDER / "crashes" / self.name

    def inputs(self) -> list[Path]:
        return sorted(path for folder in self.kept for path in folder.glob("*"))

    def mutate(self, data: bytes, most: int, seed: int, change: Change) -> bytes:
        """A changed *data* of at most *most* bytes; some changes know the pieces, some do not."""
        rnd = Random(seed)
        if rnd.random() < 0.25:
            return change(data, most)
        settings, rest = data[: self.settings].ljust(self.settings, b"\0"), data[self.settings :]
        if settings and rnd.random() < 0.1:
            settings = change(settings, len(settings)).ljust(self.settings, b"\0")

        def change_body(body: bytes, longest: int) -> bytes:
            return self.change_body(body, longest, rnd, change)

        changed = settings + self.join(pieces.mutate(self.split(rest), rnd, change, change_body))
        return changed if len(changed) <= most else change(data, most)

    def cross(self, ours: bytes, theirs: bytes, most: int, seed: int) -> bytes:
        """*ours* with a part of *theirs* in it."""
        at = self.settings
        mixed = pieces.cross(self.split(ours[at:]), self.split(theirs[at:]), Random(seed))
        return (ours[:at].ljust(at, b"\0") + self.join(mixed))[:most]


def chunks(data: bytes, pattern: int) -> list[bytes]:
    """*data* cut as *pattern*, one byte, says: two sizes in turn, or not at all for 0."""
    if not pattern:
        return [data]
    sizes, borders = (1 + (pattern & 0x0F), 1 + (pattern >> 4) * 5), [0]
    while borders[-1] < len(data):
        borders.append(min(len(data), borders[-1] + sizes[len(borders) & 1]))
    return [data[start:end] for start, end in pairwise(borders)]
