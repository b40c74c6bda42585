"""What a log has, by its names alone; foreign names, other versions, and files that move meanwhile."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import pytest

from spark.log.listing import Log, LogUnreadable, Segment
from tests.hook.log.golden import GOLDEN
from tests.spark.logs import AT, EPOCH, NODE, closed, opened


def names(found: list[Segment]) -> list[tuple[str, int, int, int, bool]]:
    return [(each.node, each.epoch, each.first, each.last, each.crc is None) for each in found]


def test_segments_come_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    closed(tmp_path, 10, 5, at=AT - 3_600_000_000)  # the clock was set back
    closed(tmp_path, 0, 10, gz=True)
    closed(tmp_path, 0, 3, epoch=EPOCH + 1)
    closed(tmp_path, 0, 2, node="a")
    opened(tmp_path, 3, 4, epoch=EPOCH + 1)
    assert names(Log(str(tmp_path), "messages").segments()) == [
        ("a", EPOCH, 0, 1, False),
        (NODE, EPOCH, 0, 9, False),
        (NODE, EPOCH, 10, 14, False),
        (NODE, EPOCH + 1, 0, 2, False),
        (NODE, EPOCH + 1, 3, 6, True),
    ]
    assert Log(str(tmp_path), "events").segments() == []
    assert names(Log(str(tmp_path), "messages", nodes=["a"]).segments()) == [("a", EPOCH, 0, 1, False)]


@pytest.mark.parametrize(
    "name",
    [
        ".n1.1700000000.00000000000000000010-00000000000000000012.00000000.jsonl",
        "n1.1700000000.00000000000000000010-00000000000000000012.00000000.jsonl.part",
        "n1.1700000000.10-12.00000000.jsonl",
        "n/1.jsonl".replace("/", "!"),
        "n1.1700000000.00000000000000000012-00000000000000000010.00000000.jsonl",
        "_SUCCESS",
        "notes.txt",
    ],
)
def test_foreign_files_are_ignored(tmp_path: Path, name: str) -> None:
    place = closed(tmp_path, 0, 10)
    (place.parent / name).write_bytes(b"x")
    (place.parent.parent / "hour=xx").mkdir()
    (place.parent.parent.parent / "other").mkdir()
    (place.parent.parent.parent / "date=2023-11-15").write_bytes(b"a file")
    assert names(Log(str(tmp_path), "messages").segments()) == [(NODE, EPOCH, 0, 9, False)]


def test_a_layout_that_we_do_not_know_is_refused(tmp_path: Path) -> None:
    closed(tmp_path, 0, 1)
    (tmp_path / "v2" / "closed").mkdir(parents=True)
    with pytest.raises(LogUnreadable, match="v2: a layout newer than v1"):
        Log(str(tmp_path), "messages").segments()
    with pytest.raises(LogUnreadable, match="no message log at"):
        Log(str(tmp_path / "none"), "messages").segments()


def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path: Path, monkeypatch) -> None:
    place = closed(tmp_path, 0, 10)
    old = time.time_ns() - 60_000_000_000
    os.utime(place.parent, ns=(old, old))
    log = Log(str(tmp_path), "messages")
    before = log.segments()
    listed = []
    monkeypatch.setattr(log, "_list_folder", lambda folder: listed.append(folder) or iter(()))
    assert log.segments() == before and listed == []
    assert log.segments({NODE: (EPOCH, 10)}) == before, "it tells where its epoch ends"
    log.segments({NODE: (EPOCH, 11)})
    assert log.segments({NODE: (EPOCH, 11)}) == [], "used up: nothing is kept of it"


def test_what_a_log_remembers_stays_where_it_is() -> None:
    log = Log(str(GOLDEN), "messages")
    log.segments()
    assert log._seen and pickle.loads(pickle.dumps(log))._seen == {}


def test_a_folder_that_changed_just_now_is_listed_again(tmp_path: Path) -> None:
    first = closed(tmp_path, 0, 10)
    stat = first.parent.stat()
    log = Log(str(tmp_path), "messages")
    assert len(log.segments()) == 1
    closed(tmp_path, 10, 10)
    os.utime(first.parent, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # within one tick of the clock
    assert len(log.segments()) == 2


def test_a_segment_that_appears_while_we_list_waits_for_those_before_it(tmp_path: Path) -> None:
    """The hour of the first segment was listed before it was published; that of the second after."""
    closed(tmp_path, 0, 10)
    log = Log(str(tmp_path), "messages")
    listing, calls = log._list, []

    def racing(after):
        calls.append(after)
        found = list(listing(after))
        if len(calls) == 2:  # the second look: it sees the later one only
            closed(tmp_path, 10, 10)
            closed(tmp_path, 20, 10, at=AT + 3_600_000_000)
            found = [each for each in listing(after) if each.first != 10]
        return iter(found)

    log._list = racing
    assert [each.first for each in log.segments()] == [0]
    assert [each.first for each in Log(str(tmp_path), "messages").segments()] == [0, 10, 20]


def test_an_open_segment_that_is_closed_too_is_there_once(tmp_path: Path) -> None:
    segment = opened(tmp_path, 0, 10)
    data = segment.path.read_bytes()
    place = segment.close()
    segment.path.write_bytes(data)
    log = Log(str(tmp_path), "messages")
    assert names(log.segments()) == [(NODE, EPOCH, 0, 9, False)]
    assert log.segments()[0].path == str(place)
