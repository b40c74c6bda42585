"""After all the coming and going every table is as it was, and so is the process.

    pytest tests/soak --soak-seconds 600
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.handle.express import KEEP_ALIVES
from broker.hook.identity import ASKED
from broker.hook.limits import REMEMBERED
from broker.lane.runs import MAXIMUM
from broker.packet.properties import PropertyBlocks
from broker.packet.reader import SPARE
from broker.packet.wire import TopicNames
from broker.session.inflight import BLANKS
from broker.topic.subscription import SHARED
from broker.topic.tree import CACHED_NAMES
from broker.transport.base import PEERS, Peer
from tests.soak.census import census
from tests.soak.churn import churn

ROOT = Path(__file__).parent.parent.parent
WARM_UP = 0.25  # of all the time: caches fill, and the interpreter takes what it will keep
CALM = 20.0  # seconds for sessions, messages and connections to end; they need two or three
GROWTH = 24 << 20  # bytes that the process may grow
MEMORY = "resident"  # bytes, among the sizes

# What may be larger than at the start, and by how much at most.
BOUNDED: dict[str, int] = {
    "TopicNames": TopicNames.MAXIMUM,
    **dict.fromkeys(("SubscriptionTree.routes", "Route", "all Route"), CACHED_NAMES),
    **dict.fromkeys(("Takeovers._quarrels", "Quarrel", "all Quarrel"), REMEMBERED),
    "Stats.dropped": 20,  # reasons
    "Blocks": MAXIMUM,
    **dict.fromkeys(("PropertyBlocks", "all PropertyBlock"), 2 * PropertyBlocks.MAXIMUM),
    **dict.fromkeys(("PropertyBlock", "PropertyBlock.properties"), 2 * PropertyBlocks.MAXIMUM),
    **dict.fromkeys(("Dialect", "all Dialect", "Version"), 3),  # versions
    **dict.fromkeys(("Readers._spare", "PacketReader", "all PacketReader"), SPARE),
    "all BlankInflight": BLANKS,
    "all Asked": ASKED,
    "all Options": SHARED,
    **dict.fromkeys(("Express._asked", "Asked"), KEEP_ALIVES),
    **dict.fromkeys(("Peers._last", "all Peer"), 3 * PEERS),  # listeners
    "Peer": 3 * PEERS * len(Peer._fields),  # as tuples they are tables
    "Poll._connections": 20_000,  # the highest descriptor that there was
    "rows of meta": 10,
}


def differences(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """What is larger than before, and more than it may be."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, 0), after.get(name, 0)
        most = was + GROWTH if name == MEMORY else max(was, BOUNDED.get(name, 0))
        if now > most:
            found.append(f"{name}: {was} before, {now} after, {most} at most")
    return found


class Subject:
    """The process with the broker."""

    def __init__(self, store: Path) -> None:
        command, pipe = [sys.executable, "-m", "tests.soak.subject", str(store)], subprocess.PIPE
        self.log = store.with_suffix(".log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=log, text=True
            )
        self.ports: list[int] = self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the broker ended: {self.log.read_text()}"
        return json.loads(line)

    def census(self) -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.write("census\n")
        self.process.stdin.flush()
        found: dict[str, int] = self._line()
        return found

    def calm(self, start: Mapping[str, int]) -> dict[str, int]:
        """Its size once all is over; that it is no larger than at the *start* is waited for, for a while."""
        ends = time.monotonic() + CALM
        time.sleep(4)  # longer than any session, will or message lives
        while differences(start, found := self.census()) and time.monotonic() < ends:
            time.sleep(0.5)
        return found


    def end(self) -> list[str]:
        """Stop it; the errors that it logged."""
        self.process.communicate(timeout=30)
        log = self.log.read_text()
        assert self.process.returncode == 0, log
        return [line for line in log.splitlines() if "ERROR" in line or "Traceback" in line]


@contextmanager
def subject(store: Path) -> Iterator[Subject]:
    running = Subject(store)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()


@pytest.mark.long
@pytest.mark.timeout(36_000)
def test_everything_goes_back_to_its_start(soak_seconds: float, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with subject(tmp_path / "soak.db") as running:
        start = running.census()
        played, breaches = asyncio.run(churn(running.ports, WARM_UP * soak_seconds, seed))
        warm = running.calm(start)
        more, others = asyncio.run(churn(running.ports, (1 - WARM_UP) * soak_seconds, seed + 1))
        end = running.calm(start | {MEMORY: warm[MEMORY]})
        print(f"{played + more} scenes, {warm[MEMORY] >> 20} -> {end[MEMORY] >> 20} MiB")
        errors = running.end()
    larger = differences(start | {MEMORY: warm[MEMORY]}, end)
    assert not larger, "\n".join([f"seed {seed}", *larger])
    assert not [*breaches, *others, *errors], f"seed {seed}"
    assert played + more > 2 * soak_seconds


# ---- the census itself


class Inner:
    """Taken for one of the broker's."""

    __slots__ = ("entries", "owner")
    __module__ = "broker.made_up"

    def __init__(self, owner: object, entries: object) -> None:
        self.owner, self.entries = owner, entries


class Outer:
    __module__ = "broker.made_up"

    def __init__(self) -> None:
        self.parts = {"a": Inner(self, [1, 2]), "b": Inner(self, [3])}
        self.single = Inner(self, {"x": {1: [4, 5]}})
        self.method = self.single.__init__


def test_no_table_is_forgotten() -> None:
    assert census(Outer()) == {
        "Outer": 1,
        "Outer.parts": 2,
        "Inner": 3,
        "Inner.entries": 4,
        "Inner.entries[]": 1,
        "Inner.entries[][]": 2,
    }


@pytest.mark.parametrize(
    ("name", "now", "grown"),
    [
        ("Core.clients", 1, True),
        ("SubscriptionTree.routes", CACHED_NAMES, False),
        ("SubscriptionTree.routes", CACHED_NAMES + 1, True),
        (MEMORY, GROWTH, False),
        (MEMORY, GROWTH + 1, True),
        ("tasks", 1, True),
    ],
)
def test_growth_is_seen(name: str, now: int, grown: bool) -> None:
    assert bool(differences({}, {name: now})) is grown
    assert not differences({name: now}, {})
