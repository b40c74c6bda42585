"""A log made by hand, for tests of what writes one and of what reads one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from broker.hook.log.line import EventRecord, MessageRecord, format_event, format_gap, format_message
from broker.hook.log.names import HOUR, OpenSegment, closed_segments
from broker.hook.log.segment import Segment, open_lines

Gap = tuple[int, None, int]  # when, None, how many were lost
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
        places.append(segment.close())
        offset += len(lines)
    return places


def read_log(root: Path, kind: str) -> list[dict[str, Any]]:
    """Every line in closed segments, in the order of their names within each hour."""
    return [json.loads(line) for path, _ in closed_segments(root, kind) for line in open_lines(path)]
