"""Names of the message log: all that is known of a segment stands in its name.

LOG/v1/lock.<node>                             one writer of a node at a time
LOG/v1/epoch.<node>                            the last epoch used
LOG/v1/open/kind=messages/<node>.<epoch>.<first>
LOG/v1/closed/kind=messages/date=2026-11-27/hour=21/<node>.<epoch>.<first>-<last>.<crc>.jsonl[.gz]
LOG/v1/torn/                                   tails cut off at recovery
LOG/v1/consumers/<name>.json                   what a consumer has committed
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KINDS = ("messages", "events")
NODE = r"[A-Za-z0-9_-]{1,64}"
OPEN_NAME = re.compile(rf"({NODE})\.(\d{{10}})\.(\d{{20}})")
CLOSED_NAME = re.compile(rf"({NODE})\.(\d{{10}})\.(\d{{20}})-(\d{{20}})\.([0-9a-f]{{8}})\.jsonl(\.gz)?")
HOUR = 3_600_000_000  # microseconds
FOLDER_MODE, FILE_MODE = 0o750, 0o640


class OpenSegment(NamedTuple):
    """A file that is being written, or was when its writer ended."""

    node: str
    epoch: int
    first: int  # offset of its first record

    @property
    def name(self) -> str:
        return f"{self.node}.{self.epoch:010}.{self.first:020}"


class ClosedSegment(NamedTuple):
    """A file that nobody writes any more."""

    node: str
    epoch: int
    first: int  # offset of its first record
    last: int  # offset of its last record
    crc: int  # CRC-32 of its bytes before compression
    gz: bool = False

    @property
    def name(self) -> str:
        suffix = ".gz" if self.gz else ""
        return f"{self.node}.{self.epoch:010}.{self.first:020}-{self.last:020}.{self.crc:08x}.jsonl{suffix}"


def open_segment(name: str) -> OpenSegment | None:
    """What *name* says; None: it is no name of an open segment."""
    found = OPEN_NAME.fullmatch(name)
    return OpenSegment(found[1], int(found[2]), int(found[3])) if found else None


def closed_segment(name: str) -> ClosedSegment | None:
    """What *name* says; None: it is no name of a closed segment."""
    found = CLOSED_NAME.fullmatch(name)
    if found is None:
        return None
    node, epoch, first, last, crc, gz = found.groups()
    return ClosedSegment(node, int(epoch), int(first), int(last), int(crc, 16), gz is not None)


def open_folder(root: Path, kind: str) -> Path:
    return root / "v1" / "open" / f"kind={kind}"


def closed_folder(root: Path, kind: str) -> Path:
    return root / "v1" / "closed" / f"kind={kind}"


def hour_folder(root: Path, kind: str, at: int) -> Path:
    """Where a segment goes whose records are of the hour of *at*, in microseconds since 1970."""
    moment = time.gmtime(at // 1_000_000)
    return closed_folder(root, kind) / time.strftime("date=%Y-%m-%d/hour=%H", moment)


def closed_segments(root: Path, kind: str) -> Iterator[tuple[Path, ClosedSegment]]:
    """All of one kind, in the order of their hours; foreign files are left out."""
    for path in sorted(closed_folder(root, kind).glob("date=*/hour=*/*.jsonl*")):
        found = closed_segment(path.name)
        if found is not None:
            yield path, found
