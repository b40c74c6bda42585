"""Lines of a segment: what is sound, where an offset is, what is said of what is missing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.log import lines
from spark.log.lines import Bad, inflate, last_offset, lines_from, offset_of, sift, stamp_of
from tests.hook.log.files import line_of
from tests.spark.logs import AT, closed, more, opened, records

LINES = [line_of("messages", n, each).rstrip(b"\n") for n, each in enumerate(records(20))]


def test_a_sound_line_tells_its_offset_and_time() -> None:
    assert [offset_of(line) for line in LINES] == [*range(20)]
    assert stamp_of(LINES[3]) == AT + 3000


@pytest.mark.parametrize("at", range(0, len(LINES[0]), 7))
def test_a_line_with_another_byte_is_not_sound(at: int) -> None:
    line = bytearray(LINES[0])
    line[at] ^= 1
    assert offset_of(bytes(line)) is None


@pytest.mark.parametrize("line", [b"", b"{", b"\0" * 80, LINES[0][:-1], LINES[0] + b" ", b'{"o":1}'])
def test_what_is_no_line(line: bytes) -> None:
    assert offset_of(line) is None


def test_sift_gives_the_lines_of_a_range() -> None:
    assert sift(LINES, 5, 9, False) == (LINES[5:9], [])
    assert sift(LINES, 0, 20, True) == (LINES, [])


@pytest.mark.parametrize(
    ("given", "low", "high", "good", "bad"),
    [
        ([0, "x", 2, 3], 0, 4, [0, 2, 3], [(1, 1)]),
        ([0, "x", "y", 3], 0, 4, [0, 3], [(1, 1), (2, 1)]),
        (["x", 1, 2, 3], 0, 4, [1, 2, 3], [(0, 1)]),
        ([0, 1, 2, "x"], 0, 4, [0, 1, 2], [(3, 1)]),
        ([0, 3], 0, 4, [0, 3], [(1, 2)]),  # nothing there at all
        ([0, "x", 3], 0, 4, [0, 3], [(1, 2)]),  # two lines that grew together
        ([0, "x", "y", "z", 2, 3], 0, 4, [0, 2, 3], [(1, 1)]),
        ([0, "x", 1, 2, 3], 0, 4, [0, 1, 2, 3], [(1, 0)]),  # one too many
        ([0, 1, 1, 2, 3], 0, 4, [0, 1, 2, 3], [(2, 0)]),
        ([0, 1, 2, 3, "x"], 0, 4, [0, 1, 2, 3], [(4, 0)]),
        ([0, 1], 0, 4, [0, 1], [(2, 2)]),  # cut short
        ([], 0, 4, [], [(0, 4)]),
    ],
)
def test_sift_accounts_for_every_offset(given, low, high, good, bad) -> None:
    found = sift([LINES[n] if isinstance(n, int) else n.encode() for n in given], low, high, True)
    assert found[0] == [LINES[n] for n in good]
    assert [(each.offset, each.lost) for each in found[1]] == bad


FOUND = st.lists(st.one_of(st.integers(0, 19), st.binary(max_size=5)), max_size=30)


@given(FOUND, st.integers(0, 19), st.data())
def test_rows_and_lost_make_the_range_whatever_stands_there(found, low, data) -> None:
    high = data.draw(st.integers(low, 20))
    given = [LINES[n] if isinstance(n, int) else n for n in found]
    good, bad = sift(given, low, high, data.draw(st.booleans()))
    offsets = [offset_of(line) for line in good]
    assert offsets == sorted({*offsets}) and all(low <= offset < high for offset in offsets)
    assert len(good) + sum(each.lost for each in bad) == high - low


def test_the_last_offset_is_found_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = opened(tmp_path, 0, 0)
    assert last_offset(str(segment.path)) is None
    more(segment, 5000)
    assert last_offset(str(segment.path)) == 4999
    with open(segment.path, "ab") as file:
        file.write(LINES[0][:30])  # being written
    assert last_offset(str(segment.path)) == 4999
    with open(segment.path, "ab") as file:
        file.write(b"\n" + b"\0" * (lines.BLOCK + 1) + b"\n")
    assert last_offset(str(segment.path)) == 4999
    assert last_offset(str(tmp_path / "none")) is None


@pytest.mark.parametrize("wanted", [0, 1, 2500, 4998, 4999])
def test_an_offset_is_found_by_halving(tmp_path: Path, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 1 << 12)
    path = str(closed(tmp_path, 0, 5000))
    found = lines_from(path, wanted)
    first = offset_of(next(found))
    assert first is not None and max(0, wanted - 40) <= first <= wanted
    assert sift(lines_from(path, wanted), wanted, 5000, False)[1] == []


def test_halving_is_not_misled_by_rot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 1 << 10)
    path = closed(tmp_path, 0, 2000)
    data = bytearray(path.read_bytes())
    middle = data.index(b'{"o":1000,')
    data[middle + 5 : middle + 9] = b"9999"
    data[middle + 1000 : middle + 4000] = b"#" * 3000
    path.write_bytes(data)
    good, bad = sift(lines_from(str(path), 1500), 1500, 2000, False)
    assert (len(good), bad) == (500, [])
    good, bad = sift(lines_from(str(path), 999), 999, 1001, False)
    assert [offset_of(line) for line in good] == [999]
    assert bad[0][:2] == (1000, 1)


def test_a_gzip_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = b"".join(b"%d\n" % n for n in range(20_000))
    path = tmp_path / "a.gz"
    whole = gzip.compress(text)
    path.write_bytes(whole)
    assert inflate(str(path)) == (text, "")
    path.write_bytes(whole[: len(whole) // 2])
    found, why = inflate(str(path))
    assert why == "truncated gzip" and text.startswith(found) and len(found) > 1000
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 50 + whole[len(whole) // 2 + 50 :])
    assert inflate(str(path))[1].startswith("rotten gzip") or inflate(str(path))[1] == "truncated gzip"
    path.write_bytes(b"")
    assert inflate(str(path)) == (b"", "truncated gzip")


def test_what_is_kept_of_a_bad_line_is_short() -> None:
    (bad,) = sift([b"\xff" * 10_000], 0, 1, True)[1]
    assert isinstance(bad, Bad) and len(bad.why) < 1100
