"""Which parts of which segments make a range of offsets, and what of the range is not there.

The same range gives the same parts in the same order, whether a segment is open or closed, plain or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from spark.log.listing import Position, Positions, Segment

# Records in a part at most: 32 MiB of lines of usual size. Parts are cut where the offset, counted from
# the segment's first, is a multiple of it, so that a cut does not depend on what the file looks like.
PART = 131_072


class Piece(NamedTuple):
    """Offsets of one segment, from *low* to before *high*."""

    segment: Segment
    low: int
    high: int

    @property
    def count(self) -> int:
        return self.high - self.low

    @property
    def whole(self) -> bool:
        segment = self.segment
        return segment.crc is not None and (self.low, self.high) == (segment.first, segment.last + 1)


class Hole(NamedTuple):
    """Offsets that no segment has. *high* is None where nobody can tell how many they are."""

    node: str
    epoch: int
    low: int
    high: int | None
    why: str  # begins with GAP or DATA_LOSS of spark.schema

    count = 0  # it takes no room in a batch


Step = Piece | Hole


def starts(segments: Iterable[Segment]) -> Positions:
    """Where each node begins."""
    found: Positions = {}
    for segment in segments:
        at = (segment.epoch, segment.first)
        found[segment.node] = min(found.get(segment.node, at), at)
    return found


def ends(segments: Iterable[Segment], *, tail: bool = True) -> Positions:
    """What comes next of each node; without *tail* open segments do not count."""
    found: Positions = {}
    for segment in segments:
        if segment.crc is None and not tail:
            continue
        at = (segment.epoch, segment.last + 1)
        found[segment.node] = max(found.get(segment.node, at), at)
    return found


def steps(
    segments: Iterable[Segment],
    start: Mapping[str, Position],
    end: Mapping[str, Position],
    told: Mapping[str, Position] | None = None,
) -> Iterator[Step]:
    """What is between *start* and *end*, node by node. A node that is not in *start* begins where it can.

    *segments* are in the order of `Log.segments`; *told* is what retention knows that we have read.
    """
    by_node = {node: list(found) for node, found in groupby(segments, lambda each: each.node)}
    for node in sorted(end):
        found = by_node.get(node, [])
        first = start.get(node) or starts(found).get(node, end[node])
        if first < end[node]:
            for step in _of_node(node, found, first, end[node]):
                # All of an epoch is gone. Retention takes only what was read: if it knows what was, that is
                # no loss; and a log that was wiped has no memory of us.
                unknown = isinstance(step, Hole) and step.high is None
                if not (unknown and told and told.get(node, (0, 0)) >= _begin(step)):
                    yield step


def _of_node(node: str, segments: list[Segment], start: Position, end: Position) -> Iterator[Step]:
    by_epoch = {epoch: list(found) for epoch, found in groupby(segments, lambda each: each.epoch)}
    between = {epoch for epoch in by_epoch if start[0] <= epoch <= end[0]}
    for epoch in sorted(between | {start[0], end[0]}):
        low = start[1] if epoch == start[0] else 0
        high = end[1] if epoch == end[0] else None
        yield from _of_epoch(node, epoch, by_epoch.get(epoch, []), low, high)


def _of_epoch(node: str, epoch: int, segments: list[Segment], low: int, high: int | None) -> Iterator[Step]:
    """*high* is None for an epoch that is over: it goes to the end."""
    wanted, where = low, f"node {node} epoch {epoch}"
    for segment in segments:
        if high is not None and segment.first >= high:
            break
        if segment.last < wanted:
            continue
        if segment.first > wanted:
            text = f"gap: {where} wants offset {wanted}, next segment starts at {segment.first}"
            yield Hole(node, epoch, wanted, segment.first, text)
            wanted = segment.first
        until = segment.last + 1 if high is None else min(high, segment.last + 1)
        yield from _cut(segment, wanted, until)
        wanted = until
    if high is not None and wanted < high:
        text = f"data loss: {where} is read to offset {high}, the log ends at {wanted}"
        yield Hole(node, epoch, wanted, high, text)
    if high is None and low and not segments:
        text = f"data loss: {where} was read to offset {low}, and the log has nothing of it any more"
        yield Hole(node, epoch, low, None, text)
    if high is None and segments and (last := max(segment.last for segment in segments) + 1) < low:
        text = f"data loss: {where} was read to offset {low}, the log ends at {last}"
        yield Hole(node, epoch, low, None, text)


def _cut(segment: Segment, low: int, high: int) -> Iterator[Piece]:
    while low < high:
        until = min(high, segment.first + ((low - segment.first) // PART + 1) * PART)
        yield Piece(segment, low, until)
        low = until


def limited(found: Iterable[Step], start: Positions, rows: int) -> Positions:
    """Where a batch ends that begins at *start* and takes at most *rows*, in fair shares of the nodes."""
    by_node = {node: list(part) for node, part in groupby(found, _node)}
    end, left = dict(start), rows
    waiting = sorted(by_node, key=lambda node: sum(step.count for step in by_node[node]))
    for place, node in enumerate(waiting):
        share = max(1, left // (len(waiting) - place))
        for step in by_node[node]:
            epoch, low = _begin(step)
            if isinstance(step, Hole):
                end[node] = (epoch, step.high if step.high is not None else low)
                continue
            taken = min(share, step.count)
            if taken <= 0:
                break
            end[node] = (epoch, low + taken)
            share, left = share - taken, left - taken
            if taken < step.count:
                break
        if left <= 0:
            break
    return end


def _node(step: Step) -> str:
    return step.segment.node if isinstance(step, Piece) else step.node


def _begin(step: Step) -> Position:
    return (step.segment.epoch, step.low) if isinstance(step, Piece) else (step.epoch, step.low)


def as_offset(positions: Mapping[str, Position]) -> dict[str, dict[str, int]]:
    """As a checkpoint has it: `{"<node>": {"e": epoch, "o": next offset}}`."""
    return {node: {"e": epoch, "o": offset} for node, (epoch, offset) in sorted(positions.items())}


def of_offset(offset: Mapping[str, Mapping[str, int]]) -> Positions:
    """Raises KeyError, TypeError or ValueError for what is no offset of ours."""
    return {node: (int(at["e"]), int(at["o"])) for node, at in offset.items()}
