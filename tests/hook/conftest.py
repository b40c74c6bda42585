"""Folders in memory, where a system has them: a sync takes no time there, and there are many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
