"""The floor plan: which rooms there are, and which way imports go.

An import counts wherever it stands: in a function, under TYPE_CHECKING, in a try.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BROKER = Path(__file__).parent.parent / "broker"
SPARK = BROKER.parent / "spark"

ORDER = (
    *("errors", "config", "packet", "topic", "store", "session", "hook", "router", "transport"),
    *("outbound", "refusal", "client", "core", "lane", "handle"),
    *("gateway", "cluster", "connections", "broker", "testing"),
)


def above(room: str, *but: str) -> set[str]:
    """Everything that stands before *room* in the plan, except *but*."""
    return {*ORDER[: ORDER.index(room)]} - {*but}


MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "packet": {"errors"},
    "topic": {"errors"},
    "store": {"errors", "packet", "topic"},
    "session": {"errors", "packet", "topic", "store"},
    "hook": {"errors", "config", "packet", "topic"},
    "router": {"errors", "packet", "topic", "store", "hook"},
    "transport": {"errors"},
    "outbound": {"errors", "config", "hook", "store", "transport"},
    "refusal": {"errors", "config", "packet"},
    "client": above("client", "router"),
    "core": above("core"),
    "lane": above("lane"),
    "handle": above("handle", "transport"),
    "gateway": above("gateway", "handle"),
    "cluster": above("cluster"),
    "connections": above("connections", "gateway"),
    "broker": above("broker"),
    "testing": {*above("testing"), "__init__"},
    "__init__": {*above("testing")},
    "__main__": {*above("testing"), "__init__"},
}

MODULES: dict[str, set[str]] = {
    "packet": {"enums", "message", "wire", "properties", "packets", "connect", "dialect", "codec", "reader"},
    "topic": {"name", "match", "subscription", "tree", "shared", "index"},
    "lane": {"lane", "alike", "atleast", "exactly", "retained", "known", "asked", "audience", "runs"},
    "store": {
        *("base", "memory", "sqlite", "consul", "log", "reader", "cursor", "lease", "stream"),
        *("budget", "journal", "schema", "rows", "pages", "repair"),
    },
    "session": {
        *("session", "manager", "queue", "delivery", "inflight", "alias", "terms", "record", "restore"),
    },
    "hook": {
        *("base", "begun", "hooks", "auth", "acl", "limits", "stats", "export", "dedup", "sound", "identity"),
        *("log.line", "log.names", "log.segment", "log.recorder", "log.recover", "log.retention", "log.runs"),
    },
    "transport": {"base", "listen", "tcp", "epoll", "tls", "http11", "frames", "websocket", "memory"},
    "handle": {
        *("dispatch", "connect", "auth", "publish", "acks", "subscribe", "disconnect", "deadlines"),
        "express",
    },
    "gateway": {"local", "http", "metrics", "dashboard", "cable", "channel", "queue", "broadcast", "bridge"},
}

# What a room or module must do without: bytes and rules know no sockets, clocks or logs; to a session,
# time is an argument.
OUTSIDE = {"asyncio", "selectors", "socket", "ssl", "time", "datetime", "logging"}
MUST_NOT_IMPORT: dict[str, set[str]] = {
    "packet": OUTSIDE,
    "topic": OUTSIDE,
    "session": {"time", "datetime", "socket"},
    "hook.log": {"asyncio", "socket", "ssl"},  # what it knows of time is the wall clock of its records
    "transport.http11": OUTSIDE,
    "transport.frames": OUTSIDE,
}

# The pipeline beside the broker: what each module may import of its own, and all that it may of the broker.
SPARK_FOLDERS: dict[str, set[str]] = {
    "log": {"listing", "lines", "plan", "moments", "rows", "files", "workers", "consumers"},
    "silver": {"ddl", "edges", "payloads", "progress", "protobuf", "rules", "sparkplug", "tables"},
    "gold": {"audit", "delivery", "hours", "live", "refresh", "rows", "sketch", "summary", "traffic"},
    "page": {"document", "numbers", "plots", "text"},
    "tools": {"record", "samples", "shapes", "logfiles"},
    "mqtt": {"line", "options"},
}
SPARK_BASE = {"session", "schema", "tables"}
SPARK_MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "session": set(),
    "schema": set(),
    "log": {"schema"},
    "source": {"schema", "log"},
    "mqtt": set(),
    "live": {"schema", "mqtt"},
    "tables": {"session", "schema", "log"},
    "ingest": {*SPARK_BASE, "source", "log"},
    "silver": {*SPARK_BASE, "log"},
    "decode": {*SPARK_BASE, "silver"},
    "gold": {*SPARK_BASE, "silver", "log"},
    "page": set(),
    "report": {*SPARK_BASE, "gold", "page"},
    "compact": SPARK_BASE,
    "tools": {*SPARK_BASE, "mqtt", "silver"},
}
SPARK_OF_THE_BROKER = {"broker.packet"}
# They write the log themselves: a second writer of the same format would be worse. Its errors come along.
TOOLS_OF_THE_BROKER = {"broker.packet", "broker.hook.log", "broker.errors"}

FILES = sorted(BROKER.rglob("*.py"))
NAMES = {".".join(file.relative_to(BROKER).with_suffix("").parts): file for file in FILES}
FOLDERS = sorted({file.parent for file in FILES})


def room_of(module: str) -> str:
    return module.partition(".")[0]


def imports(source: str) -> Iterator[str]:
    """Every module or name that *source* imports, dotted; a relative one keeps its dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_of(imported: str) -> str | None:
    """The module of ours that *imported* loads, in the keys of NAMES; None for others' modules."""
    if not f"{imported}.".startswith("broker."):
        return None
    parts = imported.split(".")[1:]
    while parts:
        for name in (".".join(parts), ".".join([*parts, "__init__"])):
            if name in NAMES:
                return name
        parts.pop()
    return "__init__"


def wrong(module: str, source: str) -> list[str]:
    """The imports that the plan does not allow in *module*."""
    room = room_of(module)
    parts = module.split(".")
    within = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    forbidden = set().union(*(MUST_NOT_IMPORT.get(name, set()) for name in within))
    found = []
    for imported in imports(source):
        target = module_of(imported)
        outside = target is None and (imported.startswith(".") or room_of(imported) in forbidden)
        inside = target is not None and room_of(target) not in {room, *MAY_IMPORT[room]}
        if outside or inside:
            found.append(imported)
    return found


def wrong_in_spark(module: str, source: str) -> list[str]:
    """The imports that the plan does not allow in *module* of `spark`."""
    room = room_of(module)
    found = []
    for imported in imports(source):
        package, name = [*imported.split("."), ""][:2]
        if package == "broker":
            of_broker = TOOLS_OF_THE_BROKER if room == "tools" else SPARK_OF_THE_BROKER
            allowed = any(f"{imported}.".startswith(f"{each}.") for each in of_broker)
        elif package == "spark":
            allowed = name in {room, *SPARK_MAY_IMPORT[room]}
        else:
            allowed = bool(package)
        if not allowed:
            found.append(imported)
    return found


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("module", NAMES)
def test_a_module_has_a_place_in_the_plan(module: str) -> None:
    room, _, name = module.partition(".")
    assert room in MAY_IMPORT
    assert name.count(".") <= (room == "hook"), "folders are at most two deep, but for the files of the log"
    assert not name or name.endswith("__init__") or name in MODULES[room]


@pytest.mark.parametrize("module", NAMES)
def test_imports_go_one_way(module: str) -> None:
    assert wrong(module, NAMES[module].read_text()) == []


def test_no_module_imports_itself_over_others() -> None:
    waiting = {
        module: {target for imported in imports(file.read_text()) if (target := module_of(imported))}
        for module, file in NAMES.items()
    }
    while ready := [module for module, targets in waiting.items() if not targets & waiting.keys()]:
        for module in ready:
            del waiting[module]
    assert sorted(waiting) == [], "these import each other in a circle, or import one that does"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_floor_has_at_most_nine_modules_and_nine_folders(folder: Path) -> None:
    modules = [file.stem for file in folder.glob("*.py") if not file.stem.startswith("__")]
    folders = [child.name for child in folder.iterdir() if child in FOLDERS]
    assert len(modules) <= 9, modules
    assert len(folders) <= 9, folders


@pytest.mark.parametrize("module", NAMES)
def test_files_and_functions_stay_short(module: str) -> None:
    stay_short(NAMES[module])


def stay_short(file: Path) -> None:
    source = file.read_text()
    sizes = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(ast.parse(source))}
    assert source.count("\n") <= 500
    assert {name: size for name, size in sizes.items() if size > 60} == {}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("packet.wire", "from broker.errors import MqttError", []),
        ("packet.wire", "import broker.session.session", ["broker.session.session"]),
        ("packet.wire", "from broker import config", ["broker.config"]),
        ("packet.wire", "from broker import Broker", ["broker.Broker"]),
        ("packet.wire", "from . import enums", ["..enums"]),
        ("packet.wire", "import asyncio.locks", ["asyncio.locks"]),
        ("packet.wire", "def f():\n    from broker.router import Router", ["broker.router.Router"]),
        ("topic.tree", "if TYPE_CHECKING:\n    from broker.hook.base import A", ["broker.hook.base.A"]),
        ("topic.tree", "try:\n    import time\nexcept ImportError: pass", ["time"]),
        ("topic.tree", "from broker.topic.match import match", []),
        ("client", "from broker.router import Router", ["broker.router.Router"]),
        ("handle.publish", "from broker.transport.base import Peer", ["broker.transport.base.Peer"]),
        ("gateway.cable", "from broker.handle.acks import puback", ["broker.handle.acks.puback"]),
        ("__main__", "from broker import __version__", []),
        ("broker", "from broker.testing import broker", ["broker.testing.broker"]),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, source: str, found: list[str]) -> None:
    assert wrong(module, source) == found


SPARK_NAMES = {".".join(file.relative_to(SPARK).with_suffix("").parts): file for file in SPARK.rglob("*.py")}


@pytest.mark.parametrize("module", SPARK_NAMES)
def test_a_module_of_spark_has_a_place_and_imports_one_way(module: str) -> None:
    room, _, name = module.partition(".")
    assert room in SPARK_MAY_IMPORT
    assert not name or name in {"__init__", *SPARK_FOLDERS.get(room, ())}
    assert len({name for name in SPARK_MAY_IMPORT if name not in {"__init__", *SPARK_FOLDERS}}) <= 9
    assert all(len(modules) <= 9 for modules in SPARK_FOLDERS.values())
    assert wrong_in_spark(module, SPARK_NAMES[module].read_text()) == []
    stay_short(SPARK_NAMES[module])


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("live", "from broker.packet.codec import encode", []),
        ("live", "from broker import packet", []),
        ("live", "from broker.client import Client", ["broker.client.Client"]),
        ("source", "from broker import Broker", ["broker.Broker"]),
        ("source", "from spark.schema import MESSAGES", []),
        ("source", "def f():\n    from spark.tables import Table", ["spark.tables.Table"]),
        ("session", "from . import schema", ["..schema"]),
        ("tools.record", "from spark.tools.samples import mix", []),
    ],
)
def test_a_wrong_arrow_is_seen_in_spark(module: str, source: str, found: list[str]) -> None:
    assert wrong_in_spark(module, source) == found
