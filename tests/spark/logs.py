"""Logs for tests, made by what writes the log; and rows of them as plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from broker.hook.log.line import MessageRecord, Publisher
from broker.hook.log.names import OpenSegment
from broker.hook.log.segment import Segment
from spark.log.listing import Log
from spark.log.plan import Piece
from spark.log.rows import Rows
from spark.source import MqttLog, StreamReader
from tests.hook.log.files import line_of, write_segments

NODE, EPOCH = "n1", 1_700_000_000
AT = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC
HOUR = ("2023-11-14", 22)
WHO = Publisher("c-1", 1, 5, "alice")


def records(count: int, first: int = 0, at: int = AT) -> list[MessageRecord]:
    """Messages that tell their own offset, a millisecond apart."""
    return [
        MessageRecord(at + n * 1000, f"t/{n % 7}", 4, WHO, b"payload %d" % n)
        for n in range(first, first + count)
    ]


def closed(root: Path, first: int, count: int, *, at: int = AT, **name: Any) -> Path:
    """One closed segment of *count* messages."""
    name = {"node": NODE, "epoch": EPOCH, "first": first, **name}
    (path,) = write_segments(root, "messages", records(count, first, at), **name)
    return path


def opened(root: Path, first: int, count: int, *, node: str = NODE, epoch: int = EPOCH) -> Segment:
    """A segment that is being written; `more` writes on, `close` publishes it."""
    segment = Segment(root, "messages", OpenSegment(node, epoch, first), AT)
    more(segment, count)
    return segment


def more(segment: Segment, count: int) -> None:
    found = enumerate(records(count, segment.next))
    segment.append(b"".join(line_of("messages", segment.next + n, each) for n, each in found), count)


def source(root: Path, **options: Any) -> StreamReader:
    """What Spark makes of `readStream.format("mqttlog").options(...)`, without Spark."""
    given = {name: str(value) for name, value in options.items()}
    return MqttLog({"path": str(root), **given}).streamReader(None)


def rows_of(batches: Iterable[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def read_all(root: Path, kind: str = "messages", **how: Any) -> list[dict[str, Any]]:
    """Every row of closed segments, in the order of the log."""
    log = Log(str(root), kind)
    rows = Rows(log, **how)
    segments = [each for each in log.segments() if each.crc is not None]
    pieces = [Piece(each, each.first, each.last + 1) for each in segments]
    return [row for piece in pieces for row in rows_of(rows.read(piece))]


def at(offset: int, epoch: int = EPOCH, node: str = NODE) -> dict[str, dict[str, int]]:
    return {node: {"e": epoch, "o": offset}}
