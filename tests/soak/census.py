"""How large every table of a broker is, found by walking from the broker itself, so that none is forgotten.

A table is a dictionary, list, set or deque in an attribute of an object of the broker. Its name is
`Class.attribute`, or that of its class if it has one of its own; what the same attribute of several objects
holds is added up. `[]` stands for tables in tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

TABLES = (dict, list, set, frozenset, deque, tuple)
PAGE = os.sysconf("SC_PAGESIZE")


def is_ours(value: object) -> bool:
    module: str = type(value).__module__
    return f"{module}.".startswith("broker.") and not isinstance(value, TABLES)


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Every attribute of one of our objects, with slots or without."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):
                yield name, getattr(value, name)


def census(*roots: object) -> Counter[str]:
    """Sizes of all tables that *roots* lead to, and how many objects of each class of ours there are."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[object] = list(roots)
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind = type(value).__name__
        sizes[kind] += 1
        for name, inner in attributes(value):
            _look(f"{kind}.{name}", inner, sizes, seen, todo)
    return sizes


def _look(name: str, value: object, sizes: Counter[str], seen: set[int], todo: list[object]) -> None:
    if is_ours(value):
        todo.append(value)
    elif isinstance(value, TABLES) and id(value) not in seen:
        seen.add(id(value))
        if type(value).__module__.startswith("broker."):
            name = type(value).__name__
        sizes[name] += len(value)
        inside = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        for each in inside:
            _look(f"{name}[]", each, sizes, seen, todo)
    elif isinstance(value, asyncio.Queue):
        sizes[name] += value.qsize()
    elif callable(value) and is_ours(getattr(value, "__self__", None)):
        todo.append(value.__self__)


def objects() -> Counter[str]:
    """Objects of our classes that the garbage collector knows: also those that no table leads to."""
    gc.collect()
    return Counter(f"all {type(each).__name__}" for each in gc.get_objects() if is_ours(each))


def process() -> Counter[str]:
    """What the process has of the system."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * PAGE
    return Counter(
        {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "tasks": len(asyncio.all_tasks()),
            "resident": resident,
        }
    )


def rows(store: str) -> Counter[str]:
    """Rows in every table of the file."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return Counter(
            {f"rows of {name}": db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}
        )
