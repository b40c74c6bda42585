"""Names and files of the message log: what a segment's name says, and how it gets to `closed/`."""

from __future__ import annotations

import errno
import gzip
import json
import os
import zlib
from pathlib import Path

import pytest

from broker.hook.log.line import EventRecord, MessageRecord, Publisher
from broker.hook.log.names import (
    HOUR,
    ClosedSegment,
    OpenSegment,
    closed_segment,
    closed_segments,
    hour_folder,
    open_folder,
    open_segment,
)
from broker.hook.log.segment import Disk, Segment, leftovers
from tests.hook.log.files import line_of, read_log, write_segments

AT = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC
WHO = Publisher("c", 1, 5)
OPEN = OpenSegment("n", 1, 0)


def record(n: int) -> MessageRecord:
    return MessageRecord(AT + n, f"t/{n}", 4, WHO, b"x" * n)


def test_names_come_back() -> None:
    opened = OpenSegment("node-1_A", 1_700_000_000, 12)
    closed = ClosedSegment("node-1_A", 1_700_000_000, 12, 40, 0xABC, True)
    assert opened.name == "node-1_A.1700000000.00000000000000000012"
    assert closed.name == ("node-1_A.1700000000.00000000000000000012-00000000000000000040.00000abc.jsonl.gz")
    assert open_segment(opened.name) == opened
    assert closed_segment(closed.name) == closed
    plain = closed._replace(gz=False)
    assert closed_segment(plain.name) == plain


@pytest.mark.parametrize(
    "name", ["", "x", ".n.0000000001.1", "n.1.2", "n.0000000001.00000000000000000000.gz.part"]
)
def test_foreign_names(name: str) -> None:
    assert open_segment(name) is None
    assert closed_segment(name) is None


@pytest.mark.parametrize("gz", [False, True])
def test_a_closed_segment_says_what_it_holds(tmp_path: Path, gz: bool) -> None:
    records = [record(n) for n in range(100)]
    (place,) = write_segments(tmp_path, "messages", records, node="n", epoch=7, first=5, gz=gz)
    raw = b"".join(line_of("messages", n + 5, each) for n, each in enumerate(records))
    name = closed_segment(place.name)
    assert name == ClosedSegment("n", 7, 5, 104, zlib.crc32(raw), gz)
    assert place.parent == tmp_path / "v1/closed/kind=messages/date=2023-11-14/hour=22"
    data = place.read_bytes()
    assert (gzip.decompress(data) if gz else data) == raw
    if gz:
        assert int.from_bytes(data[-8:-4], "little") == name.crc
    assert list(open_folder(tmp_path, "messages").iterdir()) == []
    assert [line["o"] for line in read_log(tmp_path, "messages")] == list(range(5, 105))


def test_modes(tmp_path: Path) -> None:
    (place,) = write_segments(
        tmp_path / "log", "events", [EventRecord(AT, "log", fields=(("st", "opened"),))]
    )
    assert place.stat().st_mode & 0o777 == 0o640
    for folder in (place.parent, place.parent.parent, tmp_path / "log/v1"):
        assert folder.stat().st_mode & 0o777 == 0o750
    assert json.loads(place.read_bytes())["ev"] == "log"


def test_one_segment_for_each_hour(tmp_path: Path) -> None:
    moments = (AT, AT + HOUR, AT + HOUR, AT)
    records = [MessageRecord(at, "t", 0, WHO, b"") for at in moments]
    places = write_segments(tmp_path, "messages", records)
    assert [place.parent.name for place in places] == ["hour=22", "hour=23", "hour=22"]
    assert places[2].parent == hour_folder(tmp_path, "messages", AT)
    assert len(list(closed_segments(tmp_path, "messages"))) == 3


def test_an_empty_segment_leaves_nothing(tmp_path: Path) -> None:
    assert Segment(tmp_path, "messages", OPEN, AT).close() is None
    assert leftovers(open_folder(tmp_path, "messages"), "n") == []
    assert list(closed_segments(tmp_path, "messages")) == []


class Full(Disk):
    """A disk with room for so many bytes."""

    room = 0

    @classmethod
    def write(cls, file: int, data: memoryview) -> int:
        if not cls.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(file, data[: cls.room])
        cls.room -= written
        return written


def test_a_line_that_did_not_fit_is_taken_back(tmp_path: Path) -> None:
    first, second = (line_of("messages", n, record(n)) for n in range(2))

    class Little(Full):
        room = len(first) + 10

    segment = Segment(tmp_path, "messages", OPEN, AT, disk=Little)
    segment.append(first, 1)
    with pytest.raises(OSError, match="No space"):
        segment.append(second, 1)
    assert segment.path.read_bytes() == first
    Little.room = 1000
    segment.append(second, 1)
    place = segment.close()
    assert place is not None
    assert place.read_bytes() == first + second


@pytest.mark.parametrize("again", [True, False])
def test_a_piece_of_a_line_that_could_not_be_cut_off_is_cut_off_later(tmp_path: Path, again: bool) -> None:
    first, second = (line_of("messages", n, record(n)) for n in range(2))

    class Little(Full):
        room = len(first) + 10
        stuck = True

        @classmethod
        def truncate(cls, file: int, size: int) -> None:
            if cls.stuck:
                raise OSError(5, "Input/output error")
            os.ftruncate(file, size)

    segment = Segment(tmp_path, "messages", OPEN, AT, disk=Little)
    segment.append(first, 1)
    for _ in range(2):
        with pytest.raises(OSError, match=r"No space|Input/output"):
            segment.append(second, 1)
    with pytest.raises(OSError, match="Input/output"):
        segment.close()
    Little.stuck, Little.room = False, 1000
    if again:
        segment.append(second, 1)
    place = segment.close()
    assert place is not None
    assert place.read_bytes() == (first + second if again else first)


def test_without_room_for_the_compressed_file_the_plain_one_is_published(tmp_path: Path) -> None:
    lines = [line_of("messages", n, record(n)) for n in range(50)]
    data = b"".join(lines)

    class Little(Full):
        room = len(data) + 20

    segment = Segment(tmp_path, "messages", OPEN, AT, gz=True, disk=Little)
    segment.append(data, 50)
    segment.compress()
    place = segment.close()
    assert place is not None
    assert place.suffix == ".jsonl"
    assert place.read_bytes() == data
    assert list(open_folder(tmp_path, "messages").iterdir()) == []


@pytest.mark.parametrize("cut", [True, False])
def test_a_segment_that_cannot_be_synced_is_published_as_far_as_it_may_be(tmp_path: Path, cut: bool) -> None:
    first, second = (line_of("messages", n, record(n)) for n in range(2))
    segment = Segment(tmp_path, "messages", OPEN, AT, gz=True)
    segment.append(first, 1)
    segment.sync()
    segment.append(second, 1)
    segment.compress()
    place = segment.abandon(cut)
    assert place is not None
    assert place.read_bytes() == (first if cut else first + second)
    name = closed_segment(place.name)
    assert name is not None and name.last == (0 if cut else 1)
    assert list(open_folder(tmp_path, "messages").iterdir()) == []
