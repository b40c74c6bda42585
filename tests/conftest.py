"""For the whole suite: no test is judged by the time it takes, and none writes to a real data folder."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from broker import Capacity

if os.environ.get("PYBROKER_CAPACITY_FAST_LANE") == "false":  # daemons read it themselves
    Capacity.__init__.__kwdefaults__["fast_lane"] = False

settings.register_profile("pybroker", deadline=None)
settings.load_profile("pybroker")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones begin first: they wait while others compute, and none of them is alone at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True, scope="session")
def compiled_once() -> Iterator[None]:
    """Some two thousand programs are started: they keep what they import compiled, whatever this one does.

    Compiling the broker takes longer than all the rest of its start.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """A run in the background of a shell may ignore SIGINT; the programs that it starts must not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory):
    """Where a daemon that was told of no store has its file, in this process and in those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATE_DIRECTORY", str(tmp_path_factory.mktemp("state")))
        yield
