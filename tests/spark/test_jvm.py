"""The archives of classes do not collect."""

from __future__ import annotations

import os
from pathlib import Path

from tests.spark import jvm


def test_archives_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    for name, age in (
        ("new.jsa", 60),
        ("used.jsa", jvm.KEPT - 1),
        ("old.jsa", jvm.KEPT + 1),
        ("lock", jvm.KEPT * 2),
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age, now - age))
    jvm.remove_old(tmp_path, now)
    assert {path.name for path in tmp_path.iterdir()} == {"new.jsa", "used.jsa", "lock"}
