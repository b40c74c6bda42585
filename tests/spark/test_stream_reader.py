"""The stream reader without Spark: what its offsets are, what a batch is, when it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark.log.listing import LogUnreadable
from spark.log.rows import Lost
from spark.source import MqttLog, StreamReader, moment
from tests.spark.logs import AT, EPOCH, NODE, at, closed, more, opened, rows_of, source

ALL = ReadAllAvailable()


def read(reader: StreamReader, start: dict, end: dict) -> list[int]:
    """Offsets of the rows between *start* and *end*; a bad row as what it says."""
    found = []
    for part in reader.partitions(start, end):
        found += [row["bad"] or row["offset"] for row in rows_of(reader.read(part))]
    return found


def test_a_stream_reads_what_is_closed_and_then_what_comes(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    reader = source(tmp_path)
    start = reader.initialOffset()
    assert start == at(0)
    end = reader.latestOffset(start, ALL)
    assert end == at(10) and read(reader, start, end) == [*range(10)]
    assert reader.latestOffset(end, ALL) == end
    closed(tmp_path, 10, 5, gz=True)
    assert reader.latestOffset(end, ALL) == at(15)
    assert read(reader, end, at(15)) == [*range(10, 15)]


def test_batches_are_bounded_by_rows(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    closed(tmp_path, 10, 10)
    reader = source(tmp_path, maxRecordsPerTrigger=7)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(7) and source(tmp_path).getDefaultReadLimit() == ALL
    offset, found = at(0), []
    for want in (7, 14, 20, 20):
        end = reader.latestOffset(offset, limit)
        assert end == at(want)
        found += read(reader, offset, end)
        offset = end
    assert found == [*range(20)]


def test_the_same_range_gives_the_same_rows_in_the_same_parts(tmp_path: Path) -> None:
    segment = opened(tmp_path, 0, 50)
    closed(tmp_path, 0, 20, node="n2")
    end = {**at(40), **at(20, node="n2")}
    tailing = source(tmp_path, tail=True)

    def parts(reader: StreamReader) -> list[list[dict]]:
        return [rows_of(reader.read(part)) for part in reader.partitions({**at(0), **at(0, node="n2")}, end)]

    before = parts(tailing)
    segment.close()
    assert parts(tailing) == before
    assert parts(source(tmp_path)) == before, "without tail, after a restart"


def test_an_open_segment_counts_only_with_tail(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    segment = opened(tmp_path, 10, 5)
    assert source(tmp_path).latestOffset(at(0), ALL) == at(10)
    reader = source(tmp_path, tail=True)
    assert reader.latestOffset(at(0), ALL) == at(15)
    more(segment, 3)
    assert reader.latestOffset(at(15), ALL) == at(18)
    assert read(reader, at(8), at(17)) == [*range(8, 17)]
    assert read(source(tmp_path), at(8), at(17)) == [*range(8, 17)], "planned by a job that had it"
    assert source(tmp_path).latestOffset(at(17), ALL) == at(17), "never back"


def test_open_segment_renamed_between_plan_and_read(tmp_path: Path) -> None:
    segment = opened(tmp_path, 0, 10)
    reader = source(tmp_path, tail=True)
    parts = reader.partitions(at(2), at(9))
    more(segment, 10)
    segment.close()
    assert [row["offset"] for part in parts for row in rows_of(reader.read(part))] == [*range(2, 9)]


def test_a_new_epoch_comes_after_the_old_one(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    closed(tmp_path, 0, 5, epoch=EPOCH + 9)
    reader = source(tmp_path)
    end = reader.latestOffset(at(3), ReadMaxRows(9))
    assert end == at(2, EPOCH + 9)
    assert read(reader, at(3), end) == [3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_a_new_node_is_written_down_before_it_is_read(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    reader = source(tmp_path)
    closed(tmp_path, 4, 10, node="n2")
    first = reader.latestOffset(at(0), ALL)
    assert first == {**at(10), **at(4, node="n2")}
    assert read(reader, at(0), first) == [*range(10)]
    second = reader.latestOffset(first, ALL)
    assert second == {**at(10), **at(14, node="n2")}
    assert read(reader, first, second) == [*range(4, 14)]
    assert source(tmp_path, node="n2").latestOffset({}, ALL) == at(4, node="n2")


def test_an_empty_log_begins_with_nothing(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    reader = source(tmp_path)
    assert reader.initialOffset() == {} and reader.latestOffset({}, ALL) == {}
    assert reader.partitions({}, {}) == []


def test_available_now_stops_where_the_log_was_when_it_began(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    reader = source(tmp_path, maxRecordsPerTrigger=6)
    reader.prepareForTriggerAvailableNow()
    closed(tmp_path, 10, 10)
    closed(tmp_path, 0, 10, node="n2")
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(at(0), limit) == at(6)
    assert reader.latestOffset(at(6), limit) == at(10)
    assert reader.latestOffset(at(10), limit) == at(10)
    assert reader.latestOffset(at(15), limit) == at(15), "a checkpoint that is further already"


def test_a_gap_fails_with_the_offsets(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    closed(tmp_path, 20, 10)
    reader = source(tmp_path)
    text = f"gap: node {NODE} epoch {EPOCH} wants offset 10, next segment starts at 20"
    with pytest.raises(Lost, match=text):
        reader.latestOffset(at(0), ALL)
    with pytest.raises(Lost, match=text):
        reader.partitions(at(0), at(30))
    lenient = source(tmp_path, failOnDataLoss=False)
    assert lenient.latestOffset(at(0), ALL) == at(30)
    assert read(lenient, at(0), at(30)) == [*range(10), text, *range(20, 30)]
    closed(tmp_path, 10, 10)
    assert read(source(tmp_path), at(0), at(30)) == [*range(30)], "it arrived late"


def test_a_log_that_was_wiped_reports_the_old_end(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    shutil.rmtree(tmp_path / "v1")
    closed(tmp_path, 0, 5, epoch=EPOCH + 100)
    text = f"data loss: node {NODE} epoch {EPOCH} was read to offset 10, "
    text += "and the log has nothing of it any more"
    with pytest.raises(Lost, match=text):
        source(tmp_path).latestOffset(at(10), ALL)
    lenient = source(tmp_path, failOnDataLoss=False)
    end = lenient.latestOffset(at(10), ALL)
    assert end == at(5, EPOCH + 100)
    assert read(lenient, at(10), end) == [text, 0, 1, 2, 3, 4]


def test_an_epoch_that_retention_took_whole_is_no_loss_if_it_was_told(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    reader = source(tmp_path, consumer="lake")
    reader.commit(at(10))
    shutil.rmtree(tmp_path / "v1" / "closed")
    closed(tmp_path, 0, 5, epoch=EPOCH + 100)
    end = reader.latestOffset(at(10), ALL)
    assert read(reader, at(10), end) == [*range(5)]


def test_a_log_shorter_than_the_checkpoint(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    with pytest.raises(Lost, match=r"data loss: node n1 epoch \d+ was read to offset 15, the log ends at 10"):
        source(tmp_path).latestOffset(at(15), ALL)
    with pytest.raises(Lost, match=r"data loss: node n1 epoch \d+ is read to offset 15, the log ends at 10"):
        source(tmp_path).partitions(at(5), at(15))
    opened(tmp_path, 10, 0)
    lenient = source(tmp_path, failOnDataLoss=False)
    assert lenient.latestOffset(at(15), ALL) == at(15)
    assert read(lenient, at(8), at(15))[:2] == [8, 9]


def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path) -> None:
    for n, hours in enumerate((0, -3, 5, -1, 0)):
        closed(tmp_path, n * 10, 10, at=AT + hours * 3_600_000_000 + n)
    reader = source(tmp_path)
    assert read(reader, at(0), reader.latestOffset(at(0), ALL)) == [*range(50)]


def test_a_segment_twice_and_segments_that_overlap_are_read_once(tmp_path: Path) -> None:
    place = closed(tmp_path, 0, 10)
    other = place.parents[1] / "hour=07" / place.name
    other.parent.mkdir()
    shutil.copy(place, other)
    closed(tmp_path, 5, 10)
    closed(tmp_path, 0, 10, gz=True)
    reader = source(tmp_path)
    end = reader.latestOffset(at(0), ALL)
    assert end == at(15) and read(reader, at(0), end) == [*range(15)]


def test_a_commit_is_told_to_retention(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    source(tmp_path).commit(at(10))
    assert not (tmp_path / "v1" / "consumers").exists()
    source(tmp_path, consumer="lake").commit(at(10))
    said = json.loads((tmp_path / "v1" / "consumers" / "lake.json").read_text())
    assert said == {"kind": "messages", "offsets": at(10)}


def test_where_a_stream_begins(tmp_path: Path) -> None:
    closed(tmp_path, 5, 10)
    closed(tmp_path, 15, 10, at=AT + 3_600_000_000, gz=True)
    opened(tmp_path, 25, 2)
    begin = {"startingOffsets": "earliest"}, {"startingOffsets": "latest"}
    assert [source(tmp_path, **options).initialOffset() for options in begin] == [at(5), at(25)]
    assert source(tmp_path, startingOffsets="latest", tail=True).initialOffset() == at(27)
    assert source(tmp_path, startingOffsets=json.dumps(at(9))).initialOffset() == at(9)
    assert source(tmp_path, startingOffsets=json.dumps(at(9, node="x"))).initialOffset() == {
        **at(5),
        **at(9, node="x"),
    }


@pytest.mark.parametrize(
    ("since", "offset"),
    [
        ("2023-11-14T22:13:20Z", 5),
        ("2023-11-14T22:13:20.008Z", 8),
        ("2023-11-14T23:13:20.008+01:00", 8),
        ("2023-11-14T22:20:00", 15),
        ("2023-11-14T23:13:20.0201Z", 21),
        ("2024-01-01", 25),
        ("1999-01-01", 5),
    ],
)
def test_a_stream_begins_at_a_time(tmp_path: Path, since: str, offset: int) -> None:
    closed(tmp_path, 5, 10)
    closed(tmp_path, 15, 10, at=AT + 3_600_000_000, gz=True)
    assert source(tmp_path, startingTimestamp=since).initialOffset() == at(offset)
    until = source(tmp_path, endingTimestamp=since).latestOffset(at(5), ALL)
    assert until == at(offset)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "letters"}, "option kind is 'letters', and wants messages or events"),
        ({"tail": "maybe"}, "option tail is 'maybe'"),
        ({"maxRecordsPerTrigger": "0"}, "option maxRecordsPerTrigger is '0', and wants a number above 0"),
        ({"startingOffsets": "newest"}, "option startingOffsets is 'newest', and wants earliest, latest or"),
        ({"startingOffsets": '{"n": 5}'}, "option startingOffsets"),
        ({"endingOffsets": "[]"}, "option endingOffsets"),
        ({"startingTimestamp": "noon"}, "option startingTimestamp is 'noon', and wants a time such as"),
        ({"path": ""}, "option path"),
        ({"consumer": "../x"}, "option consumer is '../x', and wants letters"),
        ({"maxRecordPerTrigger": "5"}, "no option maxRecordPerTrigger; the nearest is maxRecordsPerTrigger"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("'", ".")):
        MqttLog({"path": str(tmp_path), **options})


def test_a_time_without_a_zone_is_utc() -> None:
    assert moment("since", "2023-11-14T22:13:20") == AT == moment("since", "2023-11-14T23:13:20+01:00")


def test_a_log_of_another_version_is_refused(tmp_path: Path) -> None:
    closed(tmp_path, 0, 10)
    (tmp_path / "v9" / "closed").mkdir(parents=True)
    with pytest.raises(LogUnreadable, match="v9"):
        source(tmp_path).initialOffset()
