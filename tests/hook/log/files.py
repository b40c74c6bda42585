"""A log made by hand, for tests of what writes one and of what reads one."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from broker.hook.log.line import (
    EventRecord,
    MessageRecord,
    format_event,
    format_gap,
    format_message,
    offset_of,
    sound,
)
from broker.hook.log.names import HOUR, OpenSegment, closed_segments
from broker.hook.log.segment import Disk, Segment, open_lines

Gap = tuple[int, None, int, int]  # when, None, how many were lost, 0
Record = MessageRecord | EventRecord | Gap

FORMATS = {"messages": format_message, "events": format_event}


def line_of(kind: str, offset: int, record: Record) -> bytes:
    """The line of *record*, as what writes the log makes it."""
    if record[1] is None:
        return format_gap(offset, record[0], record[2])
    return FORMATS[kind](offset, record)


def write_segments(
    root: Path,
    kind: str,
    records: Iterable[Record],
    *,
    node: str = "node",
    epoch: int = 1_700_000_000,
    first: int = 0,
    gz: bool = False,
) -> list[Path]:
    """*records* in closed segments below *root*, one for each hour on end; offsets from *first* on."""
    places, offset = [], first
    for _, group in groupby(records, lambda record: record[0] // HOUR):
        same_hour = list(group)
        lines = [line_of(kind, offset + n, record) for n, record in enumerate(same_hour)]
        segment = Segment(root, kind, OpenSegment(node, epoch, offset), same_hour[0][0], gz)
        segment.append(b"".join(lines), len(lines))
        place = segment.close()
        assert place is not None
        places.append(place)
        offset += len(lines)
    return places


def read_log(root: Path, kind: str) -> list[dict[str, Any]]:
    """Every line in closed segments, in the order of their names within each hour."""
    return [json.loads(line) for path, _ in closed_segments(root, kind) for line in open_lines(path)]


class Trouble(Disk):
    """A disk that does as a test says. Make a class of your own by `trouble()`: what it says is shared."""

    room: int | None = None  # bytes it still takes; None: all
    write_error = sync_error = rename_error = 0  # an errno
    failures = 0  # operations that it refused
    held: threading.Event  # writes wait for it
    synced: dict[str, int]  # bytes of a file that are safe, by its path

    @classmethod
    def write(cls, file: int, data: memoryview) -> int:  # type: ignore[override]
        cls.held.wait(10)
        cls._check(cls.write_error)
        if cls.room is None:
            return os.write(file, data)
        cls._check(0 if cls.room else errno.ENOSPC)
        written = os.write(file, data[: cls.room])
        cls.room -= written
        return written

    @classmethod
    def sync(cls, file: int) -> None:  # type: ignore[override]
        cls._check(cls.sync_error)
        os.fdatasync(file)
        cls.synced[os.readlink(f"/proc/self/fd/{file}")] = os.fstat(file).st_size

    @classmethod
    def rename(cls, source: Path, place: Path) -> None:  # type: ignore[override]
        cls._check(cls.rename_error)
        os.rename(source, place)

    @classmethod
    def _check(cls, error: int) -> None:
        if error:
            cls.failures += 1
            raise OSError(error, os.strerror(error))


def trouble() -> type[Trouble]:
    """A disk of its own, without any trouble yet."""
    made = type("MyTrouble", (Trouble,), {"held": threading.Event(), "synced": {}})
    made.held.set()
    return made


def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait for what a thread does."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what or "it does not happen"
        time.sleep(0.001)


def offsets(root: Path, kind: str = "messages") -> list[int]:
    """Of every line, in order; a segment that is not as its name says fails."""
    found: list[int] = []
    for path, name in sorted(closed_segments(root, kind), key=lambda each: each[1].first):
        lines = list(open_lines(path))
        assert all(sound(line) for line in lines)
        assert zlib.crc32(b"".join(lines)) == name.crc
        numbers = [offset_of(line) for line in lines]
        assert numbers == list(range(name.first, name.last + 1))
        found += numbers
    return found
