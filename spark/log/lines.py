"""Lines of a segment: which are sound, where an offset is, what is missing."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

OPENING = re.compile(rb'\{"o":(0|[1-9]\d{0,19}),')
CLOSING = re.compile(rb',"k":"([0-9a-f]{8})"\}')
STAMP = re.compile(rb'\{"o":\d+,"ts":(\d+)')
SEAL = len(',"k":"00000000"}')
BLOCK = 1 << 16  # bytes read at once while looking for a line
SHOWN = 256  # bytes of a bad line that are kept


class Bad(NamedTuple):
    """What stands where records should be."""

    offset: int  # the first that is missing
    lost: int  # how many; 0: there is a line too many
    why: str


def offset_of(line: bytes) -> int | None:
    """The offset of *line*, which has no newline; None: it is torn, rotten, or no line of a log."""
    begin, end = OPENING.match(line), CLOSING.match(line, max(0, len(line) - SEAL))
    if begin is None or end is None or end.end() != len(line):
        return None
    return int(begin[1]) if zlib.crc32(line[:-SEAL]) == int(end[1], 16) else None


def stamp_of(line: bytes) -> int | None:
    """`ts` of *line*, microseconds since 1970."""
    found = STAMP.match(line)
    return int(found[1]) if found else None


def last_offset(path: str) -> int | None:
    """The offset of the last sound line of a plain file, found from its end; None: there is none.

    What comes after the last newline is being written. None as well if the file is not there.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            span = BLOCK
            while True:
                start = max(0, size - span)
                lines = read_at(file, start, size - start).split(b"\n")[:-1]
                if start:
                    del lines[:1]  # its beginning is not here
                for line in reversed(lines):
                    if (offset := offset_of(line)) is not None:
                        return offset
                if not start:
                    return None
                span *= 4
    except FileNotFoundError:
        return None


def read_at(file: object, start: int, size: int) -> bytes:
    """*size* bytes from *start*, or as many as there are."""
    parts = []
    while size > 0 and (part := os.pread(file.fileno(), size, start)):  # type: ignore[attr-defined]
        parts.append(part)
        start, size = start + len(part), size - len(part)
    return b"".join(parts)


def lines_from(path: str, offset: int) -> Iterator[bytes]:
    """Lines of a plain file from somewhere at or before *offset*, without their newlines.

    The place is found by halving: sound lines have growing offsets. A torn line at the end is given too.
    """
    with open(path, "rb", buffering=1 << 20) as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while high - low > BLOCK:
            middle = (low + high) // 2
            found = first_sound(read_at(file, middle, BLOCK))
            if found is None:  # lines longer than a block, or rotten ones: read on from `low`
                break
            if found[1] > offset:
                high = middle
            else:
                low = middle + found[0]
        file.seek(low)
        for line in file:
            yield line.removesuffix(b"\n")


def first_sound(block: bytes) -> tuple[int, int] | None:
    """(place, offset) of the first sound line of *block* that begins after a newline in it."""
    at = block.find(b"\n") + 1
    while at > 0 and (end := block.find(b"\n", at)) > 0:
        offset = offset_of(block[at:end])
        if offset is not None:
            return at, offset
        at = end + 1
    return None


def inflate(path: str) -> tuple[bytes, str]:
    """What can be read of a gzip file, and why there is no more; "" where it is whole."""
    parts: list[bytes] = []
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    with open(path, "rb") as file:
        try:
            while block := file.read(1 << 18):
                parts.append(stream.decompress(block))
                if stream.eof:
                    return b"".join(parts), ""
        except zlib.error as error:
            return b"".join(parts), f"rotten gzip ({error})"
    return b"".join(parts), "truncated gzip"


def sift(lines: Iterable[bytes], low: int, high: int, whole: bool) -> tuple[list[bytes], list[Bad]]:
    """The sound lines with offsets from *low* to before *high*, and what stands for the others.

    Rows and `lost` of the bad ones are high - low in sum, whatever *lines* are. *whole*: they are all of
    a segment; else bad lines before the first and after the last sound one of the range, where no offset
    is missing, are another's.
    """
    good: list[bytes] = []
    bad: list[Bad] = []
    wanted, between = low, []
    for line in lines:
        offset = offset_of(line)
        if offset is None:
            between.append(line)
        elif offset >= high:
            break
        elif offset >= wanted:
            if offset > wanted or (between and (good or whole)):
                bad += missing(wanted, offset, between)
            good.append(line)
            wanted, between = offset + 1, []
        elif offset < low:
            between = []
        else:
            bad.append(Bad(wanted, 0, shown("offset seen before", line)))
    if wanted < high or (between and whole):
        bad += missing(wanted, high, between)
    return good, bad


def missing(low: int, high: int, between: list[bytes]) -> list[Bad]:
    """Why the offsets from *low* to before *high* are not there: the bad lines that stand *between*."""
    between = [line for line in between if line] or between
    if len(between) == high - low:
        return [Bad(low + n, 1, shown("not a sound line", line)) for n, line in enumerate(between)]
    if not between:
        return [Bad(low, high - low, f"missing: offsets {low} to {high - 1} are not in the segment")]
    if low == high:
        return [Bad(low, 0, shown("a line too many", line)) for line in between]
    return [Bad(low, high - low, shown(f"{len(between)} lines are not sound, first", between[0]))]


def shown(why: str, line: bytes) -> str:
    return f"{why}: {line[:SHOWN].decode('ascii', 'backslashreplace')}"
