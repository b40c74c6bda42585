"""`pybroker` in this process, with a disk that takes its time and a place where it kills itself.

    COMMIT_TAKES=0.05 KILL_AT="commit: after" python -m tests.faults.killer [flags of pybroker]

The first call of the named place after SIGUSR1 (answered with "armed" on standard output) is the end of the
process, by SIGKILL. A place that the broker does not have any more ends it at once, with status 3. The
seconds are those that a commit takes longer, from SIGUSR1 on if there is a place: what does not wait
for the disk shows. LOG_TAKES is the same for a write of the message log.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from broker.hook.log.segment import Disk
from broker.store.base import Table
from tests.conformance import wire
from tests.faults.peer import packets

VARIABLE, TAKES, LOG_TAKES = "KILL_AT", "COMMIT_TAKES", "LOG_TAKES"
MISSING = 3  # exit status


def kill() -> NoReturn:
    while True:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)  # until it has arrived


def always(*args: Any, **kwargs: Any) -> bool:
    return True


@dataclass(frozen=True)
class Place:
    """A function of the broker, and which of its calls count.

    *by_name*: those who call it have its name in their code; else it is a method, or in a table of handlers.
    """

    module: str
    name: str
    counts: Callable[..., bool] = always
    by_name: bool = False


def of_table(*tables: Table) -> Callable[..., bool]:
    """Calls of Journal.put and Journal.delete for one of *tables*."""
    return lambda journal, table, *args, **kwargs: table in tables


def with_packet(kind: int) -> Callable[..., bool]:
    """Calls of a connection's `write` whose bytes hold a packet of this kind."""
    return lambda connection, data: any(raw[0] >> 4 == kind for raw in packets(bytearray(data)))


def read_of(first: int) -> Callable[..., bool]:
    """Calls of Lane.take whose bytes begin with *first*, the first byte of a packet."""
    return lambda lane, client, data: data[0] == first


def something(store: Any, batch: Any) -> bool:
    """A batch with rows in it: one without only notes the time."""
    return any(batch.rows.values())


JOURNAL, SOCKETS = "broker.store.journal", "broker.transport.epoll"

PLACES: dict[str, Place] = {
    # what arrives
    "CONNECT arrives": Place("broker.handle.connect", "handle_connect"),
    "PUBLISH arrives": Place("broker.handle.publish", "handle_publish", by_name=True),
    "PUBACK arrives": Place("broker.handle.acks", "handle_puback"),
    "PUBREC arrives": Place("broker.handle.acks", "handle_pubrec"),
    "PUBREL arrives": Place("broker.handle.acks", "handle_pubrel"),
    "PUBCOMP arrives": Place("broker.handle.acks", "handle_pubcomp"),
    "SUBSCRIBE arrives": Place("broker.handle.subscribe", "handle_subscribe"),
    "UNSUBSCRIBE arrives": Place("broker.handle.subscribe", "handle_unsubscribe"),
    "DISCONNECT arrives": Place("broker.handle.disconnect", "handle_disconnect"),
    "lane takes PUBLISH": Place("broker.lane.lane", "Lane.take", read_of(0x32)),
    "lane takes PUBACK": Place("broker.lane.lane", "Lane.take", read_of(0x40)),
    # what is done
    "route": Place("broker.router", "Router.route"),
    "retain": Place("broker.router", "Router.retain_now"),
    "hand on": Place("broker.router", "Router.hand_on"),
    "will": Place("broker.handle.disconnect", "publish_will"),
    "end of session": Place("broker.handle.disconnect", "end_session"),
    # what is stored
    "append session": Place(JOURNAL, "Journal.put", of_table(Table.SESSION)),
    "append subscription": Place(JOURNAL, "Journal.put", of_table(Table.SUBSCRIPTION)),
    "append message": Place(JOURNAL, "Journal.put", of_table(Table.MESSAGE)),
    "append delivery": Place(JOURNAL, "Journal.put", of_table(Table.DELIVERY)),
    "append held": Place(JOURNAL, "Journal.put", of_table(Table.HELD)),
    "append retained": Place(JOURNAL, "Journal.put", of_table(Table.RETAINED)),
    "append note": Place(JOURNAL, "Journal.put", of_table(Table.NOTE)),
    "append run": Place(JOURNAL, "Journal.put", of_table(Table.RUN)),
    "append part": Place(JOURNAL, "Journal.put", of_table(Table.PART)),
    "append deletion": Place(JOURNAL, "Journal.delete"),
    "close batch": Place(JOURNAL, "Journal._close_batch"),
    "commit": Place("broker.store.sqlite", "SqliteStore.write", something),
    "release": Place(JOURNAL, "Journal._release"),
    # what leaves
    "CONNACK leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.CONNACK)),
    "PUBLISH leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.PUBLISH)),
    "PUBACK leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.PUBACK)),
    "PUBREC leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.PUBREC)),
    "PUBREL leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.PUBREL)),
    "PUBCOMP leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.PUBCOMP)),
    "SUBACK leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.SUBACK)),
    "UNSUBACK leaves": Place(SOCKETS, "EpollConnection.write", with_packet(wire.UNSUBACK)),
}


class Trigger:
    """Kills at the first call that counts, once armed."""

    def __init__(self, place: Place, after: bool) -> None:
        self.place, self.after, self.armed = place, after, False

    def arm(self, *_: Any) -> None:
        self.armed = True
        print("armed", flush=True)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                hit = self._before(*args, **kwargs)
                result = await function(*args, **kwargs)
                return kill() if hit else result
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                hit = self._before(*args, **kwargs)
                result = function(*args, **kwargs)
                return kill() if hit else result

        return wrapped

    def _before(self, *args: Any, **kwargs: Any) -> bool:
        hit = self.armed and self.place.counts(*args, **kwargs)
        if hit and not self.after:
            kill()
        return hit


def find(place: Place) -> tuple[Any, str, Callable[..., Any]]:
    """What holds the function, its name there, and the function. Raises LookupError."""
    try:
        holder: Any = importlib.import_module(place.module)
        *classes, name = place.name.split(".")
        for each in classes:
            holder = getattr(holder, each)
        return holder, name, getattr(holder, name)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"{place.module}:{place.name} is not there: {error}") from None


def reachable(point: str) -> bool:
    """Whether the calls of "place: before" can be seen: compiled code looks up neither methods nor names."""
    place = PLACES[point.rpartition(": ")[0]]
    holder, _, function = find(place)
    return inspect.isfunction(function) or not (place.by_name or isinstance(holder, type))


def install(place: Place, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put the wrapped function wherever the broker holds the plain one. Raises LookupError."""
    holder, name, function = find(place)
    wrapped = wrap(function)
    setattr(holder, name, wrapped)
    for module in [module for key, module in sys.modules.items() if f"{key}.".startswith("broker.")]:
        for key, value in tuple(vars(module).items()):
            if value is function:
                setattr(module, key, wrapped)
            elif isinstance(value, dict):
                for k in [k for k, v in value.items() if v is function]:
                    value[k] = wrapped


class SlowCommits:
    """Commits of something take longer, while `slow` says so."""

    def __init__(self, seconds: float, slow: Callable[[], bool]) -> None:
        self.seconds, self.slow = seconds, slow

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(store: Any, batch: Any) -> Any:
            if self.slow() and something(store, batch):
                time.sleep(self.seconds)
            return function(store, batch)

        return wrapped


def slow_log(seconds: float, slow: Callable[[], bool]) -> None:
    """Writes of the message log take longer, while *slow* says so."""

    def write(file: int, data: Any) -> int:
        if slow():
            time.sleep(seconds)
        return os.write(file, data)

    Disk.write = staticmethod(write)


def install_all(where: str, takes: str, log_takes: str = "") -> None:
    """What the variables say. Raises LookupError, ValueError."""
    trigger = None
    if where:
        name, _, when = where.rpartition(": ")
        if when not in ("before", "after"):
            raise ValueError(f"before or after, not {when!r}")
        trigger = Trigger(PLACES[name], when == "after")
        signal.signal(signal.SIGUSR1, trigger.arm)
    if takes:  # first, so that the trigger is around it
        slow = SlowCommits(float(takes), lambda: trigger is None or trigger.armed)
        install(PLACES["commit"], slow.wrap)
    if log_takes:
        slow_log(float(log_takes), lambda: trigger is None or trigger.armed)
    if trigger is not None:
        install(trigger.place, trigger.wrap)


def main() -> int:
    from broker.__main__ import main as pybroker

    try:
        install_all(*(os.environ.get(name, "") for name in (VARIABLE, TAKES, LOG_TAKES)))
    except (LookupError, ValueError) as error:
        print(f"killer: {error}", file=sys.stderr)
        return MISSING
    return pybroker()


if __name__ == "__main__":
    sys.exit(main())
