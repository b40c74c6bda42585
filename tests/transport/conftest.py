"""Which engine and event loop the socket tests of this folder run on: each that there is."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

import pytest

from tests.transport import sockets

try:
    import uvloop
except ImportError:
    uvloop = None

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if uvloop is not None:
    LOOPS["uvloop"] = uvloop.new_event_loop
ENGINES = ["asyncio", *(["epoll"] if hasattr(select, "epoll") else [])]


@pytest.fixture(params=[f"{engine}-{loop}" for engine in ENGINES for loop in LOOPS])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the engine that `serving` uses, in a loop that `run` makes."""
    name, _, loop = str(request.param).partition("-")
    monkeypatch.setattr(sockets, "engine", name)
    monkeypatch.setattr(sockets, "new_loop", LOOPS[loop])
    return name
