"""Closed segments of a message log written at one go, for samples and tests: no open files, no recovery."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

from broker.hook.log.line import EventRecord, MessageRecord, format_event, format_message
from broker.hook.log.names import FOLDER_MODE, HOUR, ClosedSegment, hour_folder


class Segments:
    """One kind of one node and epoch. A segment ends at *limit* records or with the hour of its records."""

    def __init__(self, root: Path, kind: str, node: str, epoch: int, limit: int, gz: bool) -> None:
        self.root, self.kind, self.node, self.epoch = root, kind, node, epoch
        self.limit, self.gz = limit, gz
        self.first = self.next = 0
        self.lines: list[bytes] = []
        self.hour = -1

    def add(self, record: MessageRecord | EventRecord) -> None:
        if len(self.lines) >= self.limit or record.at // HOUR != self.hour:
            self.close()
        if not self.lines:
            self.first, self.hour = self.next, record.at // HOUR
        line = format_message if isinstance(record, MessageRecord) else format_event
        self.lines.append(line(self.next, record))
        self.next += 1

    def close(self) -> None:
        if not self.lines:
            return
        data = b"".join(self.lines)
        folder = hour_folder(self.root, self.kind, self.hour * HOUR)
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        name = ClosedSegment(self.node, self.epoch, self.first, self.next - 1, crc32(data), self.gz).name
        (folder / name).write_bytes(gzip.compress(data, 1, mtime=0) if self.gz else data)
        self.lines = []


def write_log(
    records: Iterable[MessageRecord | EventRecord],
    root: Path,
    *,
    node: str = "sample",
    epoch: int = 1_795_809_000,
    limit: int = 20_000,
    gz: bool = False,
) -> dict[str, int]:
    """The number of records written, by kind. What is in *root* already stays: take another node or epoch."""
    kinds = {kind: Segments(root, kind, node, epoch, limit, gz) for kind in ("messages", "events")}
    for record in records:
        kinds["messages" if isinstance(record, MessageRecord) else "events"].add(record)
    for segments in kinds.values():
        segments.close()
    return {kind: segments.next for kind, segments in kinds.items()}
