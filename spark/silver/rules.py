"""The rules file: which payloads are read how. Pure: no Spark.

[[rule]]
name = "zigbee"                         # the table silver/zigbee
filter = "zigbee2mqtt/+"                # a Topic Filter; the first rule that matches wins
format = "json"                         # json, number, text, boolean, raw, sparkplug
schema = "infer"                        # of json: DDL, or "infer" (default)
event_time = { path = "last_seen", unit = "iso" }     # iso, s, ms, us; zone = "+01:00" for local times
tags = ["", "device"]                   # names for topic levels, "" for those without one
max_bytes = 1_000_000                   # longer payloads go to quarantine (16 MiB)
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMATS = ("json", "number", "text", "boolean", "raw", "sparkplug")
UNITS = ("iso", "s", "ms", "us")
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
ZONE = re.compile(r"[+-]\d\d:\d\d|[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
RESERVED = {"points"}
KEYS = {"name", "filter", "format", "schema", "event_time", "tags", "max_bytes"}
DEFAULT = Path(__file__).parent.parent / "schemas.toml"


class RulesError(ValueError):
    """A rules file that cannot be used; the message names the rule and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    path: tuple[str, ...]
    unit: str = "iso"
    zone: str = "UTC"  # of times that name none


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    topic_filter: str
    format: str
    schema: str | None = None  # DDL of a struct; None: inferred
    event_time: EventTime | None = None
    tags: tuple[str, ...] = ()
    max_bytes: int = 16 << 20

    @property
    def levels(self) -> list[str]:
        return self.topic_filter.split("/")


def read_rules(path: Path) -> list[Rule]:
    """RulesError for what is wrong in the file, OSError if it cannot be read."""
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RulesError(f"{path}: {error}") from error
    return rules_of(raw, str(path))


def rules_of(raw: dict[str, Any], where: str = "rules") -> list[Rule]:
    tables = raw.get("rule")
    if not isinstance(tables, list) or not tables:
        raise RulesError(f"{where}: no [[rule]]")
    if unknown := set(raw) - {"rule"}:
        raise RulesError(f"{where}: {', '.join(sorted(unknown))} is not known; rules are in [[rule]]")
    found: list[Rule] = []
    for number, table in enumerate(tables, 1):
        try:
            found.append(rule_of(table))
        except (RulesError, TypeError, KeyError, AttributeError) as error:
            named = table.get("name", number) if isinstance(table, dict) else number
            raise RulesError(f"{where}: rule {named}: {error}") from error
    names = [rule.name for rule in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RulesError(f"{where}: more than one rule is named {', '.join(sorted(twice))}")
    return found


def rule_of(table: dict[str, Any]) -> Rule:
    if unknown := set(table) - KEYS:
        raise RulesError(f"{', '.join(sorted(unknown))} is not known; a rule has {', '.join(sorted(KEYS))}")
    for key in ("name", "filter", "format"):
        if not isinstance(table.get(key), str):
            raise RulesError(f"{key} is missing")
    if not NAME.fullmatch(table["name"]) or table["name"] in RESERVED:
        raise RulesError("name must be lower-case letters, digits and _, at most 40, and not 'points'")
    if table["format"] not in FORMATS:
        raise RulesError(f"format {table['format']!r} is none of {', '.join(FORMATS)}")
    check_filter(table["filter"])
    schema = table.get("schema", "infer")
    if schema != "infer" and table["format"] != "json":
        raise RulesError('schema is for format = "json" alone')
    if not isinstance(schema, str) or not schema.strip():
        raise RulesError('schema is "infer", or the fields as DDL: "a INT, b STRING"')
    return Rule(
        name=table["name"],
        topic_filter=table["filter"],
        format=table["format"],
        schema=None if schema == "infer" else schema,
        event_time=event_time_of(table.get("event_time"), table["format"]),
        tags=tags_of(table.get("tags", [])),
        max_bytes=size_of(table.get("max_bytes", Rule.__dataclass_fields__["max_bytes"].default)),
    )


def check_filter(topic_filter: str) -> None:
    levels = topic_filter.split("/")
    if not topic_filter or "\0" in topic_filter:
        raise RulesError("filter is empty or has a zero character")
    for at, level in enumerate(levels):
        alone = level in ("+", "#")
        if ("+" in level or "#" in level) and not alone:
            raise RulesError(f"filter {topic_filter!r}: + and # stand alone in a level")
        if level == "#" and at != len(levels) - 1:
            raise RulesError(f"filter {topic_filter!r}: # comes last")


def event_time_of(raw: dict[str, Any] | None, format: str) -> EventTime | None:
    if raw is None:
        return None
    if format != "json":
        raise RulesError('event_time is for format = "json" alone: other payloads have no fields')
    if not isinstance(raw, dict) or not isinstance(raw.get("path"), str):
        raise RulesError('event_time is a table with a path: { path = "time.at", unit = "ms" }')
    if unknown := set(raw) - {"path", "unit", "zone"}:
        raise RulesError(f"event_time: {', '.join(sorted(unknown))} is not known")
    unit, zone = raw.get("unit", "iso"), raw.get("zone", "UTC")
    if unit not in UNITS:
        raise RulesError(f"event_time: unit {unit!r} is none of {', '.join(UNITS)}")
    if not isinstance(zone, str) or not ZONE.fullmatch(zone):
        raise RulesError(f"event_time: zone {zone!r} is no zone")
    return EventTime(path=tuple(raw["path"].split(".")), unit=unit, zone=zone)


def tags_of(raw: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(name, str) for name in raw):
        raise RulesError("tags is a list of names, one for each topic level")
    named = [name for name in raw if name]
    if len(set(named)) < len(named):
        raise RulesError("tags has a name twice")
    return tuple(raw)


def size_of(raw: Any) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or raw < 1:
        raise RulesError("max_bytes is a number of bytes")
    return raw


def as_plain(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """*rules* as what JSON can hold; `from_plain` reads it back."""
    return [asdict(rule) for rule in rules]


def from_plain(tables: Sequence[dict[str, Any]]) -> list[Rule]:
    found = []
    for table in tables:
        time = table["event_time"]
        made = {"tags": tuple(table["tags"])}
        if time is not None:
            made["event_time"] = EventTime(**{**time, "path": tuple(time["path"])})
        found.append(Rule(**{**table, **made}))
    return found


def matches(topic_filter: str, topic_name: str) -> bool:
    """[MQTT5 4.7]: what the column expression of `payloads` must agree with."""
    wanted, levels = topic_filter.split("/"), topic_name.split("/")
    if topic_name.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted.pop()
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(w in ("+", v) for w, v in zip(wanted, levels, strict=True))
