"""`--soak-seconds`: how long clients come and go in the soak test."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seconds", type=float, default=60.0, help="length of tests/soak")


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    # Not known when all of `tests` is run: then pytest reads this file too late.
    return float(request.config.getoption("--soak-seconds", default=60.0))
