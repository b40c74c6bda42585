"""A time -> an offset: the first record that was received then or later, if the clock never stepped."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby

from spark.log.lines import inflate, offset_of, stamp_of
from spark.log.listing import Positions, Segment
from spark.log.plan import ends


def position_at(segments: Iterable[Segment], moment: int, *, tail: bool) -> Positions:
    """*moment* in microseconds since 1970. Nodes that have nothing so late: their end.

    Reads one or two segments of each node; *segments* are in the order of `Log.segments`.
    """
    segments = [segment for segment in segments if tail or segment.crc is not None]
    found = ends(segments)
    at = dt.datetime.fromtimestamp(moment // 1_000_000, dt.UTC)
    hour = (at.date().isoformat(), at.hour)
    for node, of_node in groupby(segments, lambda each: each.node):
        for segment in of_node:
            if segment.hour >= hour and (offset := first_since(segment, moment)) is not None:
                found[node] = (segment.epoch, offset)
                break
    return found


def first_since(segment: Segment, moment: int) -> int | None:
    with suppress(FileNotFoundError):
        if segment.gz:
            lines: Iterable[bytes] = inflate(segment.path)[0].split(b"\n")
        else:
            with open(segment.path, "rb") as file:
                lines = file.read().split(b"\n")
        for line in lines:
            stamp = stamp_of(line)
            if stamp is not None and stamp >= moment and (offset := offset_of(line)) is not None:
                return offset
    return None
