"""Bytes as a list of pieces, and how pieces are mutated: what makes the fuzzer's changes reach deep.

A piece is a head and a body. How pieces become bytes and bytes pieces is each target's own business; the
default is the record: one byte of head, one of length, the body. Every byte string is a list of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")
Piece = tuple[bytes, bytes]
Change = Callable[[bytes, int], bytes]  # what the fuzzer makes of these bytes, at most so many

LONGEST_RECORD = 255


class Draw:
    """Choices made of bytes. When they are used up every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        taken = self.take(1)
        return taken[0] if taken else 0

    def uint16(self) -> int:
        return self.byte() << 8 | self.byte()

    def chance(self, of: int) -> bool:
        """True for one byte in *of*, and never for the byte 0."""
        return self.byte() % of == of - 1

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.byte() % len(choices)]

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def rest(self) -> bytes:
        return self.take(self.left)


def split_records(data: bytes) -> list[Piece]:
    pieces, at = [], 0
    while at < len(data):
        length = data[at + 1] if at + 1 < len(data) else 0
        pieces.append((data[at : at + 1], data[at + 2 : at + 2 + length]))
        at += 2 + length
    return pieces


def join_records(pieces: Sequence[Piece]) -> bytes:
    return b"".join(record(head[0] if head else 0, body) for head, body in pieces)


def record(head: int, body: bytes = b"") -> bytes:
    body = body[:LONGEST_RECORD]
    return bytes((head, len(body))) + body


# ---- mutation


def mutate(pieces: list[Piece], rnd: Random, change: Change, change_body: Change) -> list[Piece]:
    """*pieces* with one to four changes; *change_body* knows what the body of a piece is."""
    pieces = list(pieces)
    for _ in range(rnd.choice((1, 1, 1, 2, 4))):
        if not pieces:
            return [(change(b"\0", 1), b"")]
        rnd.choice((_drop, _double, _swap, _move, _head, _body, _body, _body))(
            pieces, rnd, change, change_body
        )
    return pieces


def cross(ours: list[Piece], theirs: list[Piece], rnd: Random) -> list[Piece]:
    """A stretch of *theirs* in the place of a stretch of *ours*."""
    start, end = sorted((rnd.randint(0, len(ours)), rnd.randint(0, len(ours))))
    first, last = sorted((rnd.randint(0, len(theirs)), rnd.randint(0, len(theirs))))
    return [*ours[:start], *theirs[first:last], *ours[end:]]


def _drop(pieces: list[Piece], rnd: Random, change: Change, change_body: Change) -> None:
    del pieces[rnd.randrange(len(pieces))]


def _double(pieces: list[Piece], rnd: Random, change: Change, change_body: Change) -> None:
    pieces.insert(rnd.randint(0, len(pieces)), rnd.choice(pieces))


def _swap(pieces: list[Piece], rnd: Random, change: Change, change_body: Change) -> None:
    one, other = rnd.randrange(len(pieces)), rnd.randrange(len(pieces))
    pieces[one], pieces[other] = pieces[other], pieces[one]


def _move(pieces: list[Piece], rnd: Random, change: Change, change_body: Change) -> None:
    pieces.insert(rnd.randrange(len(pieces)), pieces.pop(rnd.randrange(len(pieces))))


def _head(pieces: list[Piece], rnd: Random, change: Change, change_body: Change) -> None:
    at = rnd.randrange(len(pieces))
    head, body = pieces[at]
    changed = bytes((rnd.randrange(256),)) + head[1:] if rnd.random() < 0.5 else change(head, len(head))
    pieces[at] = changed.ljust(len(head), b"\0"), body


def _body(pieces: list[Piece], rnd: Random, change: Change, change_body: Change) -> None:
    at = rnd.randrange(len(pieces))
    head, body = pieces[at]
    pieces[at] = head, change_body(body, len(body) + 64)
