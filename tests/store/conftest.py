"""Where the tests of this folder have their stores. Who wants no wait says so: `usefixtures("no_wait")`."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store import sqlite
from tests.store.contents import write_fixed


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock or a database that somebody else has is not waited for."""
    monkeypatch.setattr(sqlite, "LOCK_TIME", 0.0)
    monkeypatch.setattr(sqlite, "BUSY_TIME", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where nothing is yet."""
    return tmp_path / "broker.db"


@pytest.fixture
def fixed(path: Path) -> Path:
    """A store with something of everything, properly closed."""
    write_fixed(path)
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Where a copy may go."""
    return tmp_path / "new.db"
