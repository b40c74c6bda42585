"""What is written today equals the golden log, which every reader is tested with."""

from __future__ import annotations

from pathlib import Path

from broker.hook.log.names import KINDS, closed_segments
from broker.hook.log.segment import open_lines
from tests.hook.log.golden import EVENTS, GOLDEN, MESSAGES, write


def content(root: Path) -> dict[str, list[bytes]]:
    """The lines of every segment by where it is; compressed bytes may differ with zlib."""
    return {
        str(path.relative_to(root)): list(open_lines(path))
        for kind in KINDS
        for path, _ in closed_segments(root, kind)
    }


def test_golden(tmp_path: Path) -> None:
    write(tmp_path)
    golden = content(GOLDEN)
    assert content(tmp_path) == golden
    assert sum(map(len, golden.values())) == len(MESSAGES) + len(EVENTS)
    assert {path.rpartition(".")[2] for path in golden} == {"gz", "jsonl"}
