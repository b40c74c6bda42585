"""Which hours must be computed again: those whose files are not the ones that gold was made from.

File names say enough, for a file never changes: a batch that is done again, and compaction, write new ones.
What gold was made from stands in OUT/gold/_made_from.json, written after all of its tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from spark.tables import Hour, Table, hour_in

VERSION = 1  # of what the tables of gold have: another number computes all of them again
Marks = dict[str, dict[str, str]]  # {source: {hour: digest of file names}}


def key_of(hour: Hour) -> str:
    return f"{hour[0]}T{hour[1]:02}"


def hour_of(key: str) -> Hour:
    date, _, hour = key.partition("T")
    return date, int(hour)


def marks(table: Table) -> dict[str, str]:
    """A digest of the names of the files of each hour."""
    names: dict[str, list[str]] = {}
    if table.layout == "parquet":
        for path in table.path.glob("date=*/hour=*/batch=*/part-*"):
            names.setdefault(key_of(hour_in(path)), []).append(f"{path.parent.name}/{path.name}")
    else:
        names = {key_of(hour): list(files) for hour, files in table.hours().items()}
    return {hour: sha256("\n".join(sorted(files)).encode()).hexdigest()[:16] for hour, files in names.items()}


def read_marks(path: Path) -> Marks:
    """Nothing where there is no such file, or where it is of another VERSION."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        return dict(raw["sources"]) if raw["version"] == VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_marks(path: Path, made_from: Marks) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"version": VERSION, "sources": made_from}, sort_keys=True, indent=1), "utf-8")
    part.replace(path)


def touched(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    """Hours whose files are others than before; those that are gone count, too."""
    return {hour for hour in {*old, *new} if old.get(hour) != new.get(hour)}


def within(hours: Iterable[str], since: str | None, until: str | None) -> set[str]:
    """Those from *since* to before *until*, which are hours, too; None: no bound."""
    return {hour for hour in hours if (since is None or hour >= since) and (until is None or hour < until)}


def condition(hours: Iterable[str]) -> str:
    """SQL over `date` and `hour`, by which folders are pruned."""
    by_day: dict[str, list[int]] = {}
    for key in sorted(hours):
        date, hour = hour_of(key)
        by_day.setdefault(date, []).append(hour)
    days = [f"(date = '{day}' AND hour IN ({', '.join(map(str, of))}))" for day, of in by_day.items()]
    return " OR ".join(days) or "false"


def days_of(hours: Iterable[str]) -> set[str]:
    return {hour_of(key)[0] for key in hours}


def of_days(days: Iterable[str]) -> str:
    """SQL over `date`."""
    return f"date IN ({', '.join(repr(day) for day in sorted(days))})" if days else "false"


def before(hours: Iterable[str], count: int) -> set[str]:
    """*hours* and the *count* hours before each."""
    return {moved(key, -n) for key in hours for n in range(count + 1)}


def after(hours: Iterable[str], count: int) -> set[str]:
    """*hours* and the *count* hours after each."""
    return {moved(key, n) for key in hours for n in range(count + 1)}


def moved(key: str, by: int) -> str:
    return (datetime.strptime(key, "%Y-%m-%dT%H") + timedelta(hours=by)).strftime("%Y-%m-%dT%H")


def as_plain(row: Any) -> Any:
    """A Row, with all that is in it, as what JSON can hold."""
    if hasattr(row, "asDict"):
        return {name: as_plain(value) for name, value in row.asDict(recursive=False).items()}
    if isinstance(row, list | tuple):
        return [as_plain(each) for each in row]
    if isinstance(row, bytearray | bytes):
        return bytes(row).hex()
    return row.isoformat() if hasattr(row, "isoformat") else row
