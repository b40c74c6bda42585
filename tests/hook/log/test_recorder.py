"""The recorder: nothing that it took is lost, whatever the disk does; the rest leaves a gap marker."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.hook.log import recorder as recorders
from broker.hook.log.line import MessageRecord, Publisher, format_message
from broker.hook.log.names import HOUR, closed_segments, open_folder
from broker.hook.log.recorder import Recorder, RecorderTerms
from broker.hook.log.recover import prepare
from tests.hook.log.files import Trouble, offsets, read_log, trouble, until

AT = 1_700_000_000_000_000
WHO = Publisher("c", 1, 5)
EPOCH = 1_700_000_000


def record(n: int, at: int = AT, weight: int = 10) -> MessageRecord:
    return MessageRecord(at, f"t/{n}", 4, WHO, b"%d" % n, weight=weight)


@contextmanager
def recording(root: Path, **terms: Any) -> Iterator[Recorder]:
    """A recorder that is stopped and joined at the end; it tries again at once."""
    prepare(root, "n")
    given = {"fsync_interval": 0.001} | terms
    made = Recorder(
        RecorderTerms(root=root, kind="messages", node="n", epoch=EPOCH, format=format_message, **given)
    )
    with mock.patch.object(recorders, "RETRY", 0.002), mock.patch.object(recorders, "LINGER", 0.001):
        made.start()
        try:
            yield made
        finally:
            made.stop(AT)
            assert made.join(10)


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("fsync", ["none", "interval", "ack"])
def test_every_record_once_and_in_order(tmp_path: Path, fsync: str, gz: bool) -> None:
    with recording(tmp_path, fsync=fsync, gz=gz, segment_bytes=20_000) as made:
        for n in range(5000):
            assert made.put(record(n)) == n
    assert offsets(tmp_path) == list(range(5000))
    assert [line["t"] for line in read_log(tmp_path, "messages")] == [f"t/{n}" for n in range(5000)]
    assert list(open_folder(tmp_path, "messages").iterdir()) == []
    assert (made.next, made.written, made.synced, made.waiting, made.waiting_bytes) == (
        5000,
        5000,
        5000,
        0,
        0,
    )
    assert made.segments == len(list(closed_segments(tmp_path, "messages"))) > 1
    assert made.bytes > 5000 * 50


def test_a_segment_is_closed_when_it_is_old(tmp_path: Path) -> None:
    with recording(tmp_path, segment_seconds=0.01) as made:
        made.put(record(0))
        until(lambda: made.segments == 1)
        made.put(record(1))
        until(lambda: made.segments == 2)
    assert offsets(tmp_path) == [0, 1]


def test_what_is_written_can_be_read_before_the_segment_is_closed(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        made.put(record(0))
        until(lambda: made.written == 1)
        (path,) = open_folder(tmp_path, "messages").iterdir()
        assert json.loads(path.read_bytes())["o"] == 0


def test_log_clock_steps(tmp_path: Path) -> None:
    """Forward, back over the border of an hour, back by days, and to before 1970."""
    times = [AT, AT + HOUR, AT, AT - 1, AT - 50 * HOUR, AT + 90 * HOUR, 0, AT]
    with recording(tmp_path) as made:
        for n, at in enumerate(times):
            made.put(record(n, at))
    found = sorted(read_log(tmp_path, "messages"), key=lambda line: line["o"])
    assert [line["ts"] for line in found] == times
    assert offsets(tmp_path) == list(range(len(times)))
    for path, _ in closed_segments(tmp_path, "messages"):
        hours = {json.loads(line)["ts"] // HOUR for line in path.read_bytes().splitlines()}
        assert len(hours) == 1


def test_log_overflow_marks_gap(tmp_path: Path) -> None:
    disk = trouble()
    disk.held.clear()
    with recording(tmp_path, disk=disk, maximum_records=10) as made:
        taken, lost = 1, 0
        made.put(record(0))
        until(lambda: made.taken == 1)
        for n in range(100):
            if made.full:
                made.drop()
                lost += 1
            else:
                made.put(record(n))
                taken += 1
        assert lost > 0 and made.dropped == lost
        disk.held.set()
        until(lambda: not made.full)
        made.put(record(1000))
    found = read_log(tmp_path, "messages")
    assert [line["o"] for line in found] == list(range(taken + 2))
    assert [line["gap"] for line in found if "gap" in line] == [lost]
    assert [line.get("t") for line in found[-2:]] == [None, "t/1000"]
    assert made.next == made.synced == taken + 2


def test_a_gap_at_the_end_is_marked_when_it_stops(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        made.put(record(0))
        made.drop()
        made.drop()
    assert [line.get("gap") for line in read_log(tmp_path, "messages")] == [None, 2]


def test_the_queue_is_bounded_by_bytes_as_well(tmp_path: Path) -> None:
    disk = trouble()
    disk.held.clear()
    with recording(tmp_path, disk=disk, maximum_bytes=1000) as made:
        made.put(record(0))
        until(lambda: made.taken == 1)
        made.put(record(1, weight=999))
        assert not made.full
        made.put(record(2, weight=1))
        assert made.full
        disk.held.set()
        until(lambda: not made.full)


def test_whoever_waits_for_room_is_told(tmp_path: Path) -> None:
    disk, told = trouble(), []
    disk.held.clear()
    with recording(tmp_path, disk=disk, maximum_records=10, room=lambda: told.append(made.waiting)) as made:
        for n in range(20):
            made.put(record(n))
        made.crowded = True
        disk.held.set()
        until(lambda: told)
        assert not made.crowded
    assert len(told) == 1


@pytest.mark.parametrize("fsync", ["none", "interval", "ack"])
def test_log_disk_full(tmp_path: Path, fsync: str, caplog: pytest.LogCaptureFixture) -> None:
    disk, states = trouble(), []
    disk.room = 5000
    with recording(tmp_path, disk=disk, fsync=fsync, state=states.append) as made:
        for n in range(1000):
            made.put(record(n))
        until(lambda: disk.failures > 5, "it is tried again")
        assert made.failure is not None and made.failure.errno == errno.ENOSPC
        (path,) = open_folder(tmp_path, "messages").iterdir()
        assert path.read_bytes().endswith(b'"}\n') or not path.stat().st_size
        disk.room = None
        until(lambda: made.synced == 1000 or (fsync == "none" and made.written == 1000))
        until(lambda: made.failure is None)
    assert offsets(tmp_path) == list(range(1000))
    assert [state and state.errno for state in states] == [errno.ENOSPC, None]
    said = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(said) == 2, "one line when it begins and one when it is over"


@pytest.mark.parametrize("fsync", ["none", "interval", "ack"])
@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("fails", [1, 2, 7])
def test_log_fsync_error(tmp_path: Path, fsync: str, gz: bool, fails: int) -> None:
    """Never tried again on the same file: what was not synced is written anew, into another one."""
    disk = trouble()
    tried: list[Any] = []

    class Failing(disk):  # type: ignore[misc, valid-type]
        @classmethod
        def sync(cls, file: int) -> None:
            segment = made._segment
            assert segment not in tried
            if made.written >= 300 and len(tried) < fails and segment._file == file:
                tried.append(segment)
                raise OSError(errno.EIO, "Input/output error")
            super().sync(file)

    with recording(tmp_path, disk=Failing, fsync=fsync, gz=gz, segment_bytes=8000) as made:
        for n in range(600):
            made.put(record(n))
            if n == 299:
                made.want(300)
                until(lambda: made.written == 300)
        if fsync != "none":
            made.want(600)
            until(lambda: len(tried) == fails and made.synced == 600)
    assert len(tried) == made.sync_failures
    assert len(tried) == fails or fsync == "none"  # which syncs a segment once
    assert offsets(tmp_path) == list(range(600))
    assert list(open_folder(tmp_path, "messages").iterdir()) == []
    assert made.failure is None


def test_a_rename_that_fails_is_tried_again(tmp_path: Path) -> None:
    disk = trouble()
    disk.rename_error = errno.EIO
    with recording(tmp_path, disk=disk, segment_bytes=1, gz=True) as made:
        made.put(record(0))
        until(lambda: disk.failures > 3)
        disk.rename_error = 0
        until(lambda: made.segments == 1)
    assert offsets(tmp_path) == [0]


def test_a_stop_with_a_disk_that_takes_nothing_says_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = trouble()
    disk.write_error = errno.EIO
    with recording(tmp_path, disk=disk) as made:
        for n in range(3):
            made.put(record(n))
        until(lambda: disk.failures > 1)
    assert "3 records are lost" in caplog.text


@pytest.mark.parametrize("seed", range(5))
def test_synced_is_never_said_too_early(tmp_path: Path, seed: int) -> None:
    """Whenever it says that records are synced, so many bytes of them are."""
    disk, claims = trouble(), []

    def claim(offset: int) -> None:
        safe = sum(size for path, size in disk.synced.items() if "kind=messages" in path)
        claims.append((offset, safe))

    with recording(tmp_path, disk=disk, fsync="ack", synced=claim, segment_bytes=3000) as made:
        for n in range(500):
            made.want(made.put(record(n)) + 1)
    lines = [len(line) for path, _ in closed_segments(tmp_path, "messages") for line in path.open("rb")]
    for offset, safe in claims:
        assert safe >= sum(lines[:offset])
    assert claims[-1][0] == 500


def test_trouble_is_the_disk_of_one_test_alone() -> None:
    one, other = trouble(), trouble()
    one.room = 5
    assert other.room is None and Trouble.room is None
