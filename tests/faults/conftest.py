"""`--rounds`: how often the kill storm kills the broker."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=50, help="kills in tests/faults/test_kill_storm.py")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    # Not known when all of `tests` is run: then pytest reads this file too late.
    return int(request.config.getoption("--rounds", default=50))
