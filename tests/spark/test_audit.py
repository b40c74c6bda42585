"""The books of the audit, without a JVM: what makes them red, and which offsets are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from spark.gold.audit import BITS, NAMES, Account, accounts, merged, runs, write


def block(*offsets: int, number: int = 0, rows: int | None = None, **more: Any) -> dict[str, Any]:
    """As `merged` gives it; `blocks` gives the bits of a full one, too."""
    distinct = sorted(set(offsets))
    bits = sum(1 << (offset - number * BITS) for offset in distinct).to_bytes(BITS // 8, "little")
    full = len(distinct) == distinct[-1] - distinct[0] + 1
    where: dict[str, Any] = {"node": "n", "epoch": 1, "block": number}
    where |= {"first": distinct[0], "last": distinct[-1]}
    counts = {"rows": len(offsets) if rows is None else rows, "distinct": len(distinct)}
    return {**where, **counts, "bits": None if full else bits, "gap_markers": 0, "lost": 0, **more}


def bad(offset: int, lost: int = 1, absent: bool = False) -> dict[str, Any]:
    return {"node": "n", "epoch": 1, "offset": offset, "lost": lost, "absent": absent}


Rows = list[dict[str, Any]]


def one(blocks: Rows, quarantine: Rows, gaps: Rows) -> Account:
    [account] = accounts("messages", blocks, quarantine, gaps)
    return account


GREEN = [
    pytest.param([block(0, 1, 2)], [], id="all there"),
    pytest.param([block(5, 6)], [], id="the beginning was not kept"),
    pytest.param([block(0, 2)], [bad(1)], id="a line in quarantine"),
    pytest.param([block(0, 1)], [bad(2)], id="the last line in quarantine"),
    pytest.param([block(0, 1)], [bad(1, lost=0)], id="a line too many"),
    pytest.param([block(0, 1, gap_markers=1, lost=500)], [], id="the log had to drop, and says so"),
    pytest.param([block(BITS - 1), block(BITS, number=1)], [], id="two blocks"),
]
RED = [
    pytest.param([block(0, 2)], [], [(1, 1)], id="one missing"),
    pytest.param([block(0, 1, 5, 9)], [], [(2, 4), (6, 8)], id="ranges missing"),
    pytest.param([block(0, 1, rows=3)], [], [], id="one twice"),
    pytest.param([block(0, 9)], [bad(1, lost=8)], [(1, 8)], id="a rotten archive"),
    pytest.param([block(0, 2)], [bad(1, absent=True)], [(1, 1)], id="a hole in a segment"),
    pytest.param([block(0), block(3 * BITS, number=3)], [], [(1, 3 * BITS - 1)], id="whole blocks missing"),
    pytest.param([block(0, 1)], [bad(7)], [(2, 6)], id="missing before quarantine"),
]


@pytest.mark.parametrize(("blocks", "quarantine"), GREEN)
def test_green(blocks: list[dict[str, Any]], quarantine: list[dict[str, Any]]) -> None:
    account = one(blocks, quarantine, [])
    assert account.ok
    assert (account.missing, account.missing_ranges) == (0, [])


@pytest.mark.parametrize(("blocks", "quarantine", "missing"), RED)
def test_red(
    blocks: list[dict[str, Any]], quarantine: list[dict[str, Any]], missing: list[tuple[int, int]]
) -> None:
    account = one(blocks, quarantine, [])
    assert not account.ok
    assert account.missing_ranges == missing
    assert account.missing == sum(last - first + 1 for first, last in missing)


def test_red_where_the_log_had_lost_records_before_they_were_read() -> None:
    gone = one([block(0, 1)], [], [bad(2, lost=40)])
    assert not gone.ok and gone.lost_in_log == 40


def test_nodes_epochs_and_kinds_have_their_own_books() -> None:
    rows = [block(0, 1), block(0, 2, node="m"), block(7, epoch=2)]
    found = accounts("events", rows)
    assert [(each.kind, each.node, each.epoch, each.ok) for each in found] == [
        ("events", "m", 1, False),
        ("events", "n", 1, True),
        ("events", "n", 2, True),
    ]


@given(st.sets(st.integers(0, BITS - 1), min_size=1, max_size=40), st.integers(0, 3))
def test_runs_are_the_offsets_of_a_bitmap(offsets: set[int], number: int) -> None:
    given_ = [number * BITS + offset for offset in offsets]
    row = block(*given_, number=number)
    row["bits"] = sum(1 << offset for offset in offsets).to_bytes(BITS // 8, "little")
    found = [offset for first, last in runs(row) for offset in range(first, last + 1)]
    assert found == sorted(given_)


PARTS = st.lists(
    st.tuples(st.sets(st.integers(0, 2 * BITS - 1), min_size=1, max_size=9), st.integers(0, 3)), max_size=6
)


@given(PARTS, st.booleans())
def test_blocks_of_hours_add_up(parts: list[tuple[set[int], int]], dense: bool) -> None:
    """Each part is an hour: its offsets, and how many of its rows are there twice."""
    every: list[int] = []
    rows = []
    for found, twice in parts:
        offsets = set(range(min(found), min(found) + 9)) if dense else found
        for number in {offset // BITS for offset in offsets}:
            mine = [offset for offset in offsets if offset // BITS == number]
            mine += mine[:twice]
            row = block(*mine, number=number, gap_markers=1, lost=5)
            bits = sum(1 << (offset - number * BITS) for offset in set(mine)).to_bytes(BITS // 8, "little")
            rows.append({**row, "bits": bits})
            every += mine
    total = merged(rows)
    assert sum(row["rows"] for row in total) == len(every)
    assert sum(row["lost"] for row in total) == 5 * len(rows) == 5 * sum(row["gap_markers"] for row in total)
    assert sum(row["distinct"] for row in total) == len(set(every))
    found_ = [offset for row in total for first, last in runs(row) for offset in range(first, last + 1)]
    assert sorted(found_) == sorted(set(every))
    for row in total:
        full = row["distinct"] == row["last"] - row["first"] + 1
        assert (row["bits"] is None) == full


def test_the_table_is_one_file_replaced_as_a_whole(tmp_path: Path) -> None:
    """Also where Spark wrote it, under another name."""
    folder = tmp_path / "audit"
    folder.mkdir()
    (folder / "part-00000-1234.snappy.parquet").write_bytes(b"older")
    write(folder, accounts("messages", [block(0, 1, 5)]))
    [file] = folder.glob("*part*")
    [row] = parquet.read_table(file).to_pylist()
    assert list(row) == [*NAMES, "missing_ranges"]
    assert (row["rows"], row["ok"], row["missing_ranges"]) == (3, False, [{"first": 2, "last": 4}])
    write(folder, [])
    assert parquet.read_table(folder).num_rows == 0
