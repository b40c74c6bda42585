"""Retention: the oldest first, never what a consumer still needs, and what is too old all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.hook.log.line import MessageRecord, Publisher
from broker.hook.log.names import HOUR, closed_segments
from broker.hook.log.recover import prepare
from broker.hook.log.retention import Retention, sweep
from tests.hook.log.files import write_segments

AT = 1_700_000_000_000_000 // HOUR * HOUR
WHO = Publisher("c", 1, 5)
NOW = (AT + 10 * HOUR) / 1_000_000


def hours(root: Path, kind: str = "messages") -> list[int]:
    """The hours, counted from the first, of which there is a segment."""
    found = []
    for path, _ in closed_segments(root, kind):
        day, hour = (part.rpartition("=")[2] for part in path.parts[-3:-1])
        found.append((int(day[-2:]) - 14) * 24 + int(hour) - 22)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One message in each of ten hours, in epoch 7; offset n in hour n."""
    prepare(tmp_path, "n")
    records = [MessageRecord(AT + n * HOUR, "t", 0, WHO, b"x" * 50) for n in range(10)]
    write_segments(tmp_path, "messages", records, node="n", epoch=7)
    assert hours(tmp_path) == list(range(10))
    return tmp_path


def consumer(root: Path, name: str = "bronze", **said: Any) -> Path:
    path = root / "v1" / "consumers" / f"{name}.json"
    path.write_text(json.dumps(said))
    return path


def left(root: Path, **terms: float) -> list[int]:
    sweep(root, "n", Retention(**terms), NOW)  # type: ignore[arg-type]
    return hours(root)


def test_nothing_goes_without_a_limit(root: Path) -> None:
    assert left(root) == list(range(10))


def test_by_age_counted_from_the_end_of_its_hour(root: Path) -> None:
    assert left(root, seconds=3 * 3600) == [7, 8, 9]  # the last one ended just now


def test_by_bytes_the_oldest_first(root: Path) -> None:
    size = next(path.stat().st_size for path, _ in closed_segments(root, "messages"))
    assert left(root, most_bytes=4 * size) == [6, 7, 8, 9]
    assert left(root, most_bytes=1) == []
    assert list((root / "v1/closed/kind=messages").iterdir()) == []


def test_of_other_nodes_nothing_goes(root: Path) -> None:
    write_segments(root, "messages", [MessageRecord(AT, "t", 0, WHO, b"")], node="other", epoch=7)
    assert left(root, seconds=1) == [0, 9]


def test_log_retention_waits_for_consumer(root: Path) -> None:
    consumer(root, kind="messages", offsets={"n": {"e": 7, "o": 3}})
    assert left(root, seconds=1) == list(range(3, 10))
    consumer(root, "slow", kind="messages", offsets={"n": {"e": 7, "o": 2}})
    consumer(root, kind="messages", offsets={"n": {"e": 8, "o": 0}})
    assert left(root, seconds=1) == list(range(3, 10)), "the slowest counts"
    consumer(root, "slow", kind="messages", offsets={"n": {"e": 7, "o": 5}})
    assert left(root, most_bytes=1) == list(range(5, 10))


def test_a_consumer_that_has_not_seen_the_node_needs_all_of_it(root: Path) -> None:
    consumer(root, kind="messages", offsets={"other": {"e": 9, "o": 9}})
    assert left(root, seconds=1) == list(range(10))


def test_a_consumer_of_events_needs_no_messages(root: Path) -> None:
    consumer(root, kind="events", offsets={})
    assert left(root, seconds=1) == [9]


def test_hard_retention_waits_for_nobody(root: Path) -> None:
    consumer(root, kind="messages", offsets={"n": {"e": 7, "o": 1}})
    assert left(root, seconds=1, hard_seconds=6 * 3600) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"offsets":5}', '{"offsets":{"n":{"e":"x"}}}'])
def test_what_cannot_be_understood_keeps_everything(root: Path, said: str) -> None:
    (root / "v1/consumers/odd.json").write_text(said)
    assert left(root, seconds=1) == list(range(10))
    assert left(root, hard_seconds=1) == [9]
