"""Fixtures, `server` and `serve` above all; the option --transport; the marker tcp_only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from broker.config import Config
from broker.hook.base import HookBase
from tests.conformance.certificates import Authority
from tests.conformance.hooks import EnhancedAuth
from tests.conformance.server import LoopThread, Server, configure
from tests.conformance.transports import TRANSPORTS, seeded

Serve = Callable[..., Server]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport",
        default="all",
        help=f"transports of the conformance tests, comma separated: {', '.join(TRANSPORTS)}; default all",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "tcp_only(reason): a conformance test that makes no sense on other transports"
    )


def _chosen(config: pytest.Config) -> list[str]:
    text = config.getoption("--transport", default="all")
    names = list(TRANSPORTS) if text == "all" else text.split(",")
    unknown = set(names) - set(TRANSPORTS)
    if unknown:
        raise pytest.UsageError(f"--transport: unknown {sorted(unknown)}; known: {', '.join(TRANSPORTS)}")
    return names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "transport" in metafunc.fixturenames:
        alone = metafunc.definition.get_closest_marker("tcp_only")
        metafunc.parametrize("transport", ["tcp"] if alone else _chosen(metafunc.config), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a choice that leaves TCP out, the tests that are for TCP alone are left out too."""
    if "tcp" in _chosen(config):
        return
    out = [item for item in items if "conformance" in item.nodeid and item.get_closest_marker("tcp_only")]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.fixture
def serve(request: pytest.FixtureRequest, transport: str, loop_thread: LoopThread) -> Iterator[Serve]:
    """`serve(config=None, hooks=(), **overrides)` starts a broker; overrides are fields of any section."""
    servers: list[Server] = []

    def start(config: Config | None = None, hooks: Sequence[HookBase] = (), **overrides: Any) -> Server:
        rng = seeded(request.node.nodeid)
        servers.append(Server(loop_thread, transport, rng, configure(config, overrides), hooks))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Serve) -> Server:
    """A broker with default settings."""
    return serve()


@pytest.fixture
def two_steps(serve: Serve) -> Server:
    """A broker with an authentication method that asks for more once."""
    return serve(hooks=[EnhancedAuth(steps=2)])


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of TLS tests."""
    return Authority(tmp_path_factory.mktemp("tls"))
