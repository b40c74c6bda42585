"""Which rows of bronze a batch of decode takes: a range of log offsets, so that compaction changes nothing.

Pure but for small files. Offsets are the log's: {node: {"e": epoch, "o": next offset}}. What is done stands
in the table silver/points, the last one that a batch commits; what is planned in OUT/silver/_plan.json, so
that a batch that is done again takes the same rows by the same rules.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spark.log.consumers import write_whole
from spark.silver.rules import Rule, as_plain, from_plain

Offsets = dict[str, dict[str, int]]


class Plan(NamedTuple):
    query: str
    number: int
    start: Offsets
    end: Offsets
    batches: tuple[str, ...] | None  # of bronze, that have all of these rows; None: not known

    def condition(self) -> str:
        """SQL over node, epoch and offset."""
        return " OR ".join(f"({within(node, self.start.get(node), end)})" for node, end in self.end.items())


def within(node: str, start: Mapping[str, int] | None, end: Mapping[str, int]) -> str:
    """The rows of *node* from *start* to before *end*. Bounds of `epoch` alone, too: they prune files."""
    tests = [f"node = '{node}'", f"epoch <= {end['e']}", f"(epoch < {end['e']} OR offset < {end['o']})"]
    if start is not None:
        tests += [f"epoch >= {start['e']}", f"(epoch > {start['e']} OR offset >= {start['o']})"]
    return " AND ".join(tests)


def at(place: Mapping[str, int]) -> tuple[int, int]:
    return place["e"], place["o"]


def further(one: Offsets, other: Mapping[str, Mapping[str, int]]) -> Offsets:
    """For each node the later of two places."""
    found = dict(one)
    for node, place in other.items():
        if node not in found or at(place) > at(found[node]):
            found[node] = dict(place)
    return found


def reached(progress: Iterable[Mapping[str, Any]]) -> tuple[str, int, Offsets]:
    """(query, last batch, end) of the batches that are done; a new query and -1 where there are none."""
    query, number, end = "", -1, {}
    for kept in progress:
        if kept["batch"] >= number:
            query, number, end = kept["query"], kept["batch"], kept["end"]
    return query or uuid.uuid4().hex, number, end


def next_plan(
    done: tuple[str, int, Offsets], bronze: Iterable[Mapping[str, Any]], max_records: int
) -> Plan | None:
    """The next batches of bronze, *max_records* rows at most but one batch at least; None: nothing new."""
    query, last, start = done
    end, rows, known = start, 0, True
    names: list[str] = []
    for kept in bronze:
        reach = further(end, kept["end"])
        if reach == end:
            continue
        if not names and kept["batch"] > 0:
            known = follows(kept, start, bronze)
        if names and rows + kept.get("rows", 0) > max_records:
            break
        names.append(f"{kept['query'][:8]}-{kept['batch']}")
        end, rows = reach, rows + kept.get("rows", 0)
    if end == start:
        return None
    return Plan(query, last + 1, start, end, tuple(names) if known else None)


def follows(kept: Mapping[str, Any], start: Offsets, bronze: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the batch before *kept* is still known and was taken: else there may be more between."""
    before = [each for each in bronze if (each["query"], each["batch"]) == (kept["query"], kept["batch"] - 1)]
    return bool(before) and further(start, before[0]["end"]) == start


def store_plan(path: Path, plan: Plan, rules: Sequence[Rule]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(plan._asdict() | {"rules": as_plain(rules)}))


def stored_plan(path: Path, done: tuple[str, int, Offsets]) -> tuple[Plan, list[Rule]] | None:
    """The plan of the batch after *done* and the rules that it goes by, if one was begun."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        names = raw["batches"]
        plan = Plan(raw["query"], raw["number"], raw["start"], raw["end"], tuple(names) if names else None)
        rules = from_plain(raw["rules"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    fits = plan.number == done[1] + 1 and plan.start == done[2] and (done[1] < 0 or plan.query == done[0])
    return (plan, rules) if fits else None
