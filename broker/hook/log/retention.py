"""Retention: which closed segments are old enough to go, and wait for nobody."""

from __future__ import annotations

import calendar
import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from broker.hook.log.names import KINDS, ClosedSegment, closed_segments
from broker.hook.log.recover import VERSION

log = logging.getLogger("broker.log")


class Retention(NamedTuple):
    """How long segments are kept; 0: no limit."""

    seconds: float = 0
    most_bytes: int = 0  # of all closed segments of a node together
    hard_seconds: float = 0  # older ones go even if a consumer needs them


class Kept(NamedTuple):
    """One closed segment, as retention sees it."""

    ends_at: float  # the end of its hour, seconds since 1970
    kind: str
    segment: ClosedSegment
    path: Path
    size: int


Positions = dict[str, dict[str, tuple[int, int]]]  # consumer -> node -> (epoch, next offset)


def sweep(root: Path, node: str, terms: Retention, now: float) -> list[Path]:
    """Remove what is older than *terms* say or too much, oldest first; gives what was removed."""
    if not (terms.seconds or terms.most_bytes or terms.hard_seconds):
        return []
    segments = sorted(_kept(root, node))
    total = sum(each.size for each in segments)
    needs = {kind: positions(root, kind) for kind in KINDS}
    removed = []
    for each in segments:
        age = now - each.ends_at
        too_old = bool(terms.seconds) and age >= terms.seconds
        too_much = bool(terms.most_bytes) and total > terms.most_bytes
        far_too_old = bool(terms.hard_seconds) and age >= terms.hard_seconds
        if not far_too_old and (not (too_old or too_much) or needed(each.segment, needs[each.kind])):
            continue
        each.path.unlink(missing_ok=True)
        total -= each.size
        removed.append(each.path)
        for folder in (each.path.parent, each.path.parent.parent):
            with suppress(OSError):
                folder.rmdir()
    return removed


def needed(segment: ClosedSegment, consumers: Positions | None) -> bool:
    """Whether a consumer has not committed all of *segment* yet. None: it is not known where they are."""
    if consumers is None:
        return True
    last = (segment.epoch, segment.last)
    return any(last >= at.get(segment.node, (0, 0)) for at in consumers.values())


def positions(root: Path, kind: str) -> Positions | None:
    """Where each consumer of *kind* is; None if a file says nothing that can be understood."""
    found: Positions = {}
    for path in sorted((root / VERSION / "consumers").glob("*.json")):
        try:
            said = json.loads(path.read_bytes())
            if said.get("kind", kind) == kind:
                found[path.stem] = _offsets(said)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.error("%s cannot be read: all that it may need is kept: %s", path, error)
            return None
    return found


def _offsets(said: dict[str, Any]) -> dict[str, tuple[int, int]]:
    offsets = said["offsets"]
    return {node: (int(at["e"]), int(at["o"])) for node, at in offsets.items()}


def _kept(root: Path, node: str) -> list[Kept]:
    found = []
    for kind in KINDS:
        for path, segment in closed_segments(root, kind):
            if segment.node == node:
                with suppress(FileNotFoundError, ValueError):
                    found.append(Kept(_end_of_hour(path), kind, segment, path, path.stat().st_size))
    return found


def _end_of_hour(path: Path) -> float:
    """Seconds since 1970 when the hour of `date=.../hour=.../*` ended. Raises ValueError."""
    date, hour = path.parts[-3:-1]
    return calendar.timegm(time.strptime(f"{date} {hour}", "date=%Y-%m-%d hour=%H")) + 3600.0
