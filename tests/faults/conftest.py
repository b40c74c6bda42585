"""`--rounds`: how often the kill storm kills the broker; `--cuts`: how many power losses there are."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=50, help="kills in tests/faults/test_kill_storm.py")
    parser.addoption("--cuts", type=int, default=300, help="power losses in tests/faults/test_power_loss.py")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    # Not known when all of `tests` is run: then pytest reads this file too late.
    return int(request.config.getoption("--rounds", default=50))


@pytest.fixture
def cuts(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--cuts", default=300))
