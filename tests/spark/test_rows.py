"""Segments -> Arrow: every record once, what is bad in a row of its own, whatever happens to the file."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from broker.hook.log.line import sealed
from spark.log import rows as rows_module
from spark.log.listing import Log, Segment
from spark.log.plan import Hole, Piece
from spark.log.rows import Lost, Rows, arrow_schema, columns_of
from spark.schema import BINARY, KINDS, PLACE
from tests.hook.log.golden import GOLDEN
from tests.spark.logs import AT, EPOCH, HOUR, NODE, closed, opened, read_all, rows_of


def reader(root: Path, **how: bool) -> Rows:
    return Rows(Log(str(root), "messages"), **how)


def read(root: Path, low: int, high: int, **how: bool) -> list[dict]:
    """Offsets of the one segment below *root*."""
    (segment,) = Log(str(root), "messages").segments()
    return rows_of(reader(root, **how).read(Piece(segment, low, high)))


def expected(kind: str) -> list[dict]:
    """The golden log by `json`, with the names and types of the tables."""
    log = Log(str(GOLDEN), kind)
    found = []
    for segment in log.segments():
        data = Path(segment.path).read_bytes()
        text = zlib.decompress(data, 31) if segment.gz else data
        for line in text.decode("ascii").splitlines():
            said = json.loads(line)
            row = {"node": segment.node, "epoch": segment.epoch}
            for column in (*PLACE[2:], *KINDS[kind]):
                row[column.name] = convert(column.name, column.type, said.get(column.key))
            found.append(row)
    return found


def convert(name: str, kind: str, value):
    if value is None:
        return None
    if name in BINARY:
        return base64.b64decode(value)
    return bool(value) if kind == "boolean" else value


@pytest.mark.parametrize("kind", KINDS)
def test_golden_by_json_and_by_arrow(kind: str) -> None:
    found = read_all(GOLDEN, kind)
    wanted = expected(kind)
    assert len(wanted) > 10
    for row, want in zip(found, wanted, strict=True):
        row["received_at"] = round(row["received_at"].timestamp() * 1_000_000)
        assert {name: row[name] for name in want} == want
        assert row["bad"] is None
        assert row["date"].isoformat() == "2023-11-14"


def test_part_of_a_segment(tmp_path: Path) -> None:
    closed(tmp_path, 100, 1000)
    found = read(tmp_path, 500, 510)
    assert [row["offset"] for row in found] == [*range(500, 510)]
    assert found[0]["payload"] == b"payload 500" and found[0]["topic"] == f"t/{500 % 7}"
    assert (found[0]["date"].isoformat(), found[0]["hour"]) == HOUR
    assert found[0]["segment"] == f"{NODE}.{EPOCH}.{100:020}"


def test_without_decode_what_is_binary_is_text(tmp_path: Path) -> None:
    closed(tmp_path, 0, 2)
    assert base64.b64decode(read(tmp_path, 0, 2, decode=False)[1]["payload"]) == b"payload 1"


@pytest.mark.parametrize("gz", [False, True])
def test_parts_are_the_whole(tmp_path: Path, gz: bool) -> None:
    closed(tmp_path, 0, 1000, gz=gz)
    whole = read(tmp_path, 0, 1000)
    assert read(tmp_path, 0, 333) + read(tmp_path, 333, 334) + read(tmp_path, 334, 1000) == whole


def test_an_open_segment_and_the_closed_one_give_the_same_rows(tmp_path: Path) -> None:
    segment = opened(tmp_path, 0, 300)
    (listed,) = Log(str(tmp_path), "messages").segments()
    piece = Piece(listed, 10, 200)
    before = rows_of(reader(tmp_path).read(piece))
    segment.close()
    assert rows_of(reader(tmp_path).read(piece)) == before, "closed between plan and read"
    assert [row["offset"] for row in before] == [*range(10, 200)]


def test_an_open_segment_that_became_two(tmp_path: Path) -> None:
    """A sync failed: its writer published what was on the disk, and wrote the rest into another file."""
    segment = opened(tmp_path, 0, 30)
    (listed,) = Log(str(tmp_path), "messages").segments()
    segment.path.unlink()
    closed(tmp_path, 0, 20)
    opened(tmp_path, 20, 10)
    found = rows_of(reader(tmp_path).read(Piece(listed, 5, 25)))
    assert [row["offset"] for row in found] == [*range(5, 25)]


def test_a_segment_that_is_gone_is_loss(tmp_path: Path) -> None:
    place = closed(tmp_path, 0, 10)
    (segment,) = Log(str(tmp_path), "messages").segments()
    place.unlink()
    with pytest.raises(Lost, match=r"^data loss: node n1 epoch 1700000000: offsets 2 to 9 are gone"):
        rows_of(reader(tmp_path).read(Piece(segment, 2, 10)))
    (row,) = rows_of(reader(tmp_path, fail_on_data_loss=False).read(Piece(segment, 2, 10)))
    assert (row["offset"], row["lost"], row["bad"][:10]) == (2, 8, "data loss:")


def flip(path: Path, offset: int, back: int = 0) -> None:
    """One bit in the payload of the line of *offset* of a plain segment."""
    data = bytearray(path.read_bytes())
    at = data.index(b'{"o":%d,' % offset) + 60
    data[at] ^= 2
    path.write_bytes(data)


def bad_of(found: list[dict]) -> list[tuple[int, int, str]]:
    return [(row["offset"], row["lost"], row["bad"]) for row in found if row["bad"]]


def test_a_flipped_bit_costs_one_line(tmp_path: Path) -> None:
    flip(closed(tmp_path, 0, 100), 50)
    found = read(tmp_path, 0, 100)
    ((offset, lost, why),) = bad_of(found)
    assert (offset, lost) == (50, 1) and why.startswith('not a sound line: {"o":50,')
    assert [row["offset"] for row in found if not row["bad"]] == [n for n in range(100) if n != 50]
    (bad,) = [row for row in found if row["bad"]]
    told = {"node", "epoch", "offset", "lost", "segment", "date", "hour", "bad"}
    assert {name for name, value in bad.items() if value is not None} == told


def test_a_truncated_gzip_gives_what_comes_before(tmp_path: Path) -> None:
    place = closed(tmp_path, 0, 5000, gz=True)
    place.write_bytes(place.read_bytes()[: place.stat().st_size // 2])
    found = read(tmp_path, 0, 5000)
    ((offset, lost, why),) = bad_of(found)
    assert why.startswith("truncated gzip; ")
    assert [row["offset"] for row in found if not row["bad"]] == [*range(offset)]
    assert offset > 1000 and offset + lost == 5000


def test_a_gzip_that_is_no_gzip_is_one_row(tmp_path: Path) -> None:
    closed(tmp_path, 0, 50, gz=True).write_bytes(b"not gzip at all")
    ((offset, lost, why),) = bad_of(read(tmp_path, 0, 50))
    assert (offset, lost) == (0, 50) and why.startswith("rotten gzip")


def test_an_empty_file_under_the_name_of_a_segment(tmp_path: Path) -> None:
    closed(tmp_path, 0, 50).write_bytes(b"")
    assert [bad[:2] for bad in bad_of(read(tmp_path, 0, 50))] == [(0, 50)]


def rewrite(path: Path, lines: list[bytes]) -> Segment:
    """*lines* under the name that they would have, sound as a whole."""
    data = b"".join(lines)
    stem = path.name.split(".")
    stem[3] = f"{zlib.crc32(data):08x}"
    path.unlink()
    path.with_name(".".join(stem)).write_bytes(data)
    (segment,) = Log(str(path.parents[5]), "messages").segments()
    return segment


def lines_with(root: Path, n: int, line: bytes) -> None:
    place = closed(root, 0, 100)
    lines = place.read_bytes().splitlines(keepends=True)
    lines[n] = line
    rewrite(place, lines)


@pytest.mark.parametrize(
    ("line", "topic"),
    [
        ('{"o":7,"ts":1700000000000000,"t":"new key","zz":[1,{"a":2}]', "new key"),
        ('{"o":7,"ts":1700000000000000,"t":"few keys"', "few keys"),
        ('{"o":7,"ts":1700000000000000,"t":"a \\u0000 b"', "a \0 b"),
    ],
)
def test_unknown_keys_are_ignored_and_missing_ones_null(tmp_path: Path, line: str, topic: str) -> None:
    lines_with(tmp_path, 7, sealed(line))
    found = read(tmp_path, 0, 100)
    assert not bad_of(found) and len(found) == 100
    assert found[7]["topic"] == topic and found[7]["client_id"] is None and found[7]["payload"] is None


@pytest.mark.parametrize(
    "line",
    [
        '{"o":7,"ts":"yesterday","t":"a"',
        '{"o":7,"ts":1,"t":"a","q":"two"',
        '{"o":7,"ts":1,"t":5',
        '{"o":7,"ts":1,"t":"a","v":99999999999999999999',
        '{"o":7,"ts":1,"t":"a',
    ],
)
def test_a_sound_line_that_is_no_record_is_quarantined_alone(tmp_path: Path, line: str) -> None:
    lines_with(tmp_path, 7, sealed(line))
    found = read(tmp_path, 0, 100)
    ((offset, lost, why),) = bad_of(found)
    assert (offset, lost) == (7, 1) and why.startswith("not a record (")
    assert [row["offset"] for row in found if not row["bad"]] == [n for n in range(100) if n != 7]


def test_a_payload_that_is_no_base64_is_quarantined_alone(tmp_path: Path) -> None:
    lines_with(tmp_path, 7, sealed('{"o":7,"ts":1700000000000000,"t":"a","p":"abc"'))
    found = read(tmp_path, 0, 100)
    assert [bad[:2] for bad in bad_of(found)] == [(7, 1)] and len(found) == 100


def test_a_name_that_promises_more_than_is_there(tmp_path: Path) -> None:
    """The checksum fits, the offsets do not: a segment whose name was changed by hand."""
    place = closed(tmp_path, 0, 10)
    wrong = place.with_name(place.name.replace(f"{9:020}", f"{19:020}"))
    place.rename(wrong)
    found = read(tmp_path, 0, 20)
    assert [row["offset"] for row in found if not row["bad"]] == [*range(10)]
    assert [bad[:2] for bad in bad_of(found)] == [(10, 10)]


def test_rows_do_not_depend_on_how_a_segment_is_cut_into_blocks(tmp_path: Path, monkeypatch) -> None:
    closed(tmp_path, 0, 500)
    whole = read(tmp_path, 0, 500)
    monkeypatch.setattr(rows_module, "BLOCK", 300)
    monkeypatch.setattr(rows_module, "ROWS", 1)
    assert read(tmp_path, 0, 500) == whole


def test_a_line_longer_than_a_block(tmp_path: Path) -> None:
    payload = base64.b64encode(bytes(9 << 20)).decode()
    lines_with(tmp_path, 7, sealed(f'{{"o":7,"ts":{AT},"t":"large","p":"{payload}"'))
    found = read(tmp_path, 0, 100)
    assert not bad_of(found) and len(found[7]["payload"]) == 9 << 20


def test_a_hole_is_a_row() -> None:
    (row,) = reader(GOLDEN).hole(Hole("n", 1, 5, 9, "gap: ...")).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "node": "n",
        "epoch": 1,
        "offset": 5,
        "lost": 4,
        "bad": "gap: ...",
    }
    assert reader(GOLDEN).hole(Hole("n", 1, 5, None, "data loss: ...")).to_pylist()[0]["lost"] == 0


def test_what_reads_can_be_sent_to_a_worker() -> None:
    again = pickle.loads(pickle.dumps(reader(GOLDEN)))
    assert again.log.kind == "messages" and isinstance(arrow_schema(columns_of("events", True)), pa.Schema)
