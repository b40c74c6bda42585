"""Fixtures: `serve` and `broker` run a broker beside the test, `certificates` are for its TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from broker import Config, HookBase, Tls
from tests.conformance.server import LoopThread, configure
from tests.end_to_end.certificates import Certificates
from tests.end_to_end.running import LISTEN, Running

Serve = Callable[..., Running]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.fixture
def serve(
    loop_thread: LoopThread, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """`serve("tcp", "wss", hooks=[...], receive_maximum=5)` starts a broker with such listeners."""
    brokers = ExitStack()

    def start(
        *schemes: str, hooks: Sequence[HookBase] = (), tls: Tls | None = None, **settings: Any
    ) -> Running:
        unix = {"unix": f"unix:{tmp_path_factory.mktemp('unix') / 'mqtt'}"}
        listen = tuple((LISTEN | unix)[scheme] for scheme in schemes or ("tcp",))
        base = Config(listen=listen, tls=tls or certificates.tls())
        config = configure(base, {"sweep_interval": 0.05, **settings})
        running = Running(loop_thread, config, hooks)
        brokers.callback(running.close)
        return running

    with brokers:
        yield start


@pytest.fixture
def broker(serve: Serve) -> Running:
    """A broker with default settings on TCP."""
    return serve()
