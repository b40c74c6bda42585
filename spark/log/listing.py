"""Which segments a log has: all that is known of one stands in its name, so a listing answers it.

LOG/v1/open/kind=<kind>/<node>.<epoch>.<first>
LOG/v1/closed/kind=<kind>/date=2026-11-27/hour=21/<node>.<epoch>.<first>-<last>.<crc>.jsonl[.gz]
"""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark.log.lines import last_offset, stamp_of

VERSION = "v1"
NODE = r"[A-Za-z0-9_-]{1,64}"
OPEN = re.compile(rf"({NODE})\.(\d{{10}})\.(\d{{20}})")
CLOSED = re.compile(rf"({NODE})\.(\d{{10}})\.(\d{{20}})-(\d{{20}})\.([0-9a-f]{{8}})\.jsonl(\.gz)?")
# A folder that changed later than this before it was read may change again under the same time stamp.
SETTLED = 2_000_000_000  # nanoseconds

# Of a node: the epoch, and the offset in it that comes next.
Position = tuple[int, int]
Positions = dict[str, Position]


class LogUnreadable(Exception):
    """There is no log, or one of a layout that we do not know."""


class Segment(NamedTuple):
    node: str
    epoch: int
    first: int  # offset of its first record
    last: int  # offset of its last record
    path: str
    hour: tuple[str, int]  # date and hour, UTC, in which all its records were received
    crc: int | None = None  # of its bytes before compression; None: the file is open

    @property
    def name(self) -> str:
        """The same while it is open, when it is closed, and compressed or not."""
        return f"{self.node}.{self.epoch:010}.{self.first:020}"

    @property
    def gz(self) -> bool:
        return self.path.endswith(".gz")


class Log:
    """One kind of records in one log. Folders that did not change are not listed again."""

    def __init__(self, path: str, kind: str, *, nodes: Iterable[str] = ()) -> None:
        self.root, self.kind, self.nodes = Path(path), kind, frozenset(nodes)
        self._seen: dict[str, tuple[int, tuple[Segment, ...]]] = {}  # folder -> when it changed, what it has

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_seen": {}}

    def check(self) -> None:
        """Raises LogUnreadable."""
        if not self.root.is_dir():
            raise LogUnreadable(f"there is no message log at {self.root}: no such folder")
        names = {child.name for child in self.root.iterdir() if (child / "closed").is_dir()}
        unknown = {name for name in names if re.fullmatch(r"v\d+", name)} - {VERSION}
        if unknown:
            raise LogUnreadable(f"{self.root}/{min(unknown)}: a layout newer than {VERSION}, all we can read")

    def segments(self, after: Mapping[str, Position] | None = None) -> list[Segment]:
        """Every segment, in order: node, epoch, first. Those before *after* may be missing.

        A segment is published before the next one of its node is. So of two listings the second has
        every segment that comes before one in the first; what is newer than that waits for the next call.
        """
        top: Positions = {}
        for segment in self._list({}):
            top[segment.node] = max(top.get(segment.node, (0, 0)), (segment.epoch, segment.last))
        found = [
            segment
            for segment in self._list(after or {})
            if segment.node in top and (segment.epoch, segment.first) <= top[segment.node]
        ]
        closed = {segment.name for segment in found if segment.crc is not None}
        found = [segment for segment in found if segment.crc is not None or segment.name not in closed]
        return sorted(found, key=lambda each: (each.node, each.epoch, each.first, -each.last, each.path))

    def _list(self, after: Mapping[str, Position]) -> Iterator[Segment]:
        self.check()
        yield from self._open()  # before what is closed: a segment that moves meanwhile is seen at least once
        folders = list(self._hours())
        for folder in folders:
            yield from self._folder(folder, after)
        for gone in self._seen.keys() - set(folders):
            del self._seen[gone]

    def _open(self) -> Iterator[Segment]:
        for name, path in entries(self.root / VERSION / "open" / f"kind={self.kind}"):
            found = OPEN.fullmatch(name)
            if found and self._wanted(found[1]):
                first, last, hour = int(found[3]), last_offset(path), first_hour(path)
                if last is not None and last >= first and hour is not None:
                    yield Segment(found[1], int(found[2]), first, last, path, hour)

    def _hours(self) -> Iterator[str]:
        closed = self.root / VERSION / "closed" / f"kind={self.kind}"
        for date, path in sorted(entries(closed)):
            if re.fullmatch(r"date=\d{4}-\d\d-\d\d", date):
                hours = sorted(entries(path))
                yield from (folder for hour, folder in hours if re.fullmatch(r"hour=\d\d", hour))

    def _folder(self, folder: str, after: Mapping[str, Position]) -> Iterable[Segment]:
        try:
            changed = os.stat(folder).st_mtime_ns
        except FileNotFoundError:
            return ()
        known = self._seen.get(folder)
        if known is None or known[0] != changed:
            now = time.time_ns()
            known = (changed, tuple(self._list_folder(folder)))
            if changed + SETTLED < now:
                self._seen[folder] = known
        if folder in self._seen and after and all(is_used_up(segment, after) for segment in known[1]):
            self._seen[folder] = (changed, ())
        return known[1]

    def _list_folder(self, folder: str) -> Iterator[Segment]:
        date, hour = (part.partition("=")[2] for part in Path(folder).parts[-2:])
        for name, path in entries(folder):
            found = CLOSED.fullmatch(name)
            if found is None or not self._wanted(found[1]):
                continue
            epoch, first, last = (int(found[n]) for n in (2, 3, 4))
            if first <= last:
                yield Segment(found[1], epoch, first, last, path, (date, int(hour)), int(found[5], 16))

    def _wanted(self, node: str) -> bool:
        return not self.nodes or node in self.nodes


def entries(folder: str | Path) -> list[tuple[str, str]]:
    """(name, path) of what is in *folder*; nothing where it is not there."""
    try:
        with os.scandir(folder) as found:
            return [(entry.name, entry.path) for entry in found]
    except (FileNotFoundError, NotADirectoryError):
        return []


def first_hour(path: str) -> tuple[str, int] | None:
    """Date and hour of the first line of an open segment; a closed one has them in its folder's name."""
    try:
        with open(path, "rb", buffering=0) as file:
            stamp = stamp_of(file.read(64))
    except FileNotFoundError:
        return None
    if stamp is None:
        return None
    moment = dt.datetime.fromtimestamp(stamp // 1_000_000, dt.UTC)
    return moment.date().isoformat(), moment.hour


def is_used_up(segment: Segment, after: Mapping[str, Position]) -> bool:
    """Whether nothing at *after* or later needs *segment*, not even to know where its epoch ends."""
    at = after.get(segment.node)
    return at is not None and (segment.epoch, segment.last + 1) < at
