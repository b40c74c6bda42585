"""Which parts make a range; gaps, losses, overlaps, limits. Names only: no file is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark.log import plan
from spark.log.listing import Segment
from spark.log.plan import Hole, Piece, as_offset, ends, limited, of_offset, starts, steps


def segment(first: int, last: int, epoch: int = 1, node: str = "n", *, is_open: bool = False) -> Segment:
    path, crc = f"/{node}.{epoch}.{first}-{last}", None if is_open else 7
    return Segment(node, epoch, first, last, path, ("2023-11-14", 1), crc)


def planned(segments, start, end, told=None):
    found = []
    for step in steps(segments, start, end, told):
        if isinstance(step, Piece):
            found.append((step.segment.epoch, step.segment.first, step.low, step.high))
        else:
            found.append(step.why)
    return found


def test_a_range_is_parts_of_segments() -> None:
    segments = [segment(0, 9), segment(10, 19), segment(0, 4, epoch=2), segment(5, 7, epoch=2, is_open=True)]
    assert planned(segments, {"n": (1, 3)}, {"n": (2, 6)}) == [
        (1, 0, 3, 10),
        (1, 10, 10, 20),
        (2, 0, 0, 5),
        (2, 5, 5, 6),
    ]
    assert planned(segments, {"n": (1, 20)}, {"n": (2, 1)}) == [(2, 0, 0, 1)]
    assert planned(segments, {"n": (2, 8)}, {"n": (2, 8)}) == []
    assert starts(segments) == {"n": (1, 0)}
    assert ends(segments) == {"n": (2, 8)}
    assert ends(segments, tail=False) == {"n": (2, 5)}


def test_a_node_that_is_new_begins_where_it_can() -> None:
    assert planned([segment(5, 9)], {}, {"n": (1, 10)}) == [(1, 5, 5, 10)]


def test_segments_that_overlap_are_read_once() -> None:
    segments = [segment(0, 9), segment(0, 9), segment(0, 5), segment(5, 14), segment(12, 13)]
    assert planned(segments, {"n": (1, 0)}, {"n": (1, 15)}) == [(1, 0, 0, 10), (1, 5, 10, 15)]


def test_a_missing_segment_is_a_gap_with_its_offsets() -> None:
    segments = [segment(0, 9), segment(20, 29), segment(7, 9, epoch=2)]
    assert planned(segments, {"n": (1, 0)}, {"n": (2, 10)}) == [
        (1, 0, 0, 10),
        "gap: node n epoch 1 wants offset 10, next segment starts at 20",
        (1, 20, 20, 30),
        "gap: node n epoch 2 wants offset 0, next segment starts at 7",
        (2, 7, 7, 10),
    ]


def test_a_log_that_is_shorter_than_what_was_planned() -> None:
    assert planned([segment(0, 9)], {"n": (1, 5)}, {"n": (1, 20)}) == [
        (1, 0, 5, 10),
        "data loss: node n epoch 1 is read to offset 20, the log ends at 10",
    ]
    assert planned([segment(0, 9), segment(0, 4, epoch=2)], {"n": (1, 15)}, {"n": (2, 5)}) == [
        "data loss: node n epoch 1 was read to offset 15, the log ends at 10",
        (2, 0, 0, 5),
    ]


def test_a_log_that_was_wiped_is_told_from_one_that_retention_emptied() -> None:
    segments = [segment(0, 4, epoch=9)]
    wiped = "data loss: node n epoch 1 was read to offset 15, and the log has nothing of it any more"
    assert planned(segments, {"n": (1, 15)}, {"n": (9, 5)}) == [wiped, (9, 0, 0, 5)]
    assert planned(segments, {"n": (1, 15)}, {"n": (9, 5)}, {"n": (1, 15)}) == [(9, 0, 0, 5)]
    assert planned(segments, {"n": (1, 15)}, {"n": (9, 5)}, {"n": (1, 14)}) == [wiped, (9, 0, 0, 5)]
    assert planned(segments, {"n": (1, 0)}, {"n": (9, 5)}) == [(9, 0, 0, 5)], "nothing of it was read"


def test_large_segments_are_cut_at_fixed_offsets(monkeypatch) -> None:
    monkeypatch.setattr(plan, "PART", 10)
    cuts = [(1, 5, 5, 15), (1, 5, 15, 25), (1, 5, 25, 31)]
    assert planned([segment(5, 30)], {"n": (1, 5)}, {"n": (1, 31)}) == cuts
    assert planned([segment(5, 99, is_open=True)], {"n": (1, 5)}, {"n": (1, 31)}) == cuts
    assert planned([segment(5, 30)], {"n": (1, 17)}, {"n": (1, 26)}) == [(1, 5, 17, 25), (1, 5, 25, 26)]


def limit(segments, start, rows):
    return limited(list(steps(segments, start, ends(segments))), start, rows)


def test_a_limit_is_shared_by_the_nodes() -> None:
    segments = [*(segment(n * 10, n * 10 + 9) for n in range(10)), segment(0, 4, node="small")]
    start = {"n": (1, 0), "small": (1, 0)}
    assert limit(segments, start, 50) == {"small": (1, 5), "n": (1, 45)}
    assert limit(segments, start, 6) == {"small": (1, 3), "n": (1, 3)}
    assert limit(segments, start, 1) == {"small": (1, 1), "n": (1, 0)}
    assert limit(segments, start, 1000) == {"small": (1, 5), "n": (1, 100)}


def test_a_limit_goes_over_the_end_of_an_epoch_and_over_holes() -> None:
    segments = [segment(0, 4), segment(8, 9), segment(0, 9, epoch=2)]
    assert limit(segments, {"n": (1, 0)}, 5) == {"n": (1, 8)}
    assert limit(segments, {"n": (1, 5)}, 3) == {"n": (2, 1)}
    assert limit([segment(0, 9, epoch=2)], {"n": (1, 5)}, 3) == {"n": (2, 3)}


SIZES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3)


@given(SIZES, st.integers(1, 7))
def test_batches_of_any_size_read_every_offset_once_and_in_order(epochs, rows) -> None:
    segments, wanted = [], []
    for epoch, sizes in enumerate(epochs):
        first = 0
        for size in sizes:
            segments.append(segment(first, first + size - 1, epoch=epoch))
            wanted += [(epoch, first + n) for n in range(size)]
            first += size
    read, at, last = [], {"n": (0, 0)}, ends(segments)
    while at != last:
        end = limited(list(steps(segments, at, last)), at, rows)
        parts = list(steps(segments, at, end))
        assert not [part for part in parts if isinstance(part, Hole)]
        assert 0 < sum(part.count for part in parts) <= rows
        read += [(part.segment.epoch, n) for part in parts for n in range(part.low, part.high)]
        at = end
    assert read == wanted


def test_an_offset_is_what_a_checkpoint_has() -> None:
    assert as_offset({"b": (2, 3), "a": (1, 0)}) == {"a": {"e": 1, "o": 0}, "b": {"e": 2, "o": 3}}
    assert of_offset({"a": {"e": 1, "o": 0}}) == {"a": (1, 0)}
