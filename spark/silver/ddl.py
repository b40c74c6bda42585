"""Types of inferred columns: read from what Spark says, widened, written as DDL, kept by number on disk.

Pure: no Spark. A type is a name ("BIGINT"), a dict of fields (a struct), or a list of one type (an array).
Widening never loses a row: INT -> BIGINT -> DOUBLE -> STRING, and whatever does not fit together is STRING,
which `from_json` fills with the JSON text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

Type = str | dict[str, "Type"] | list["Type"]

MAX_DEPTH = 8  # deeper values are kept as JSON text
MAX_FIELDS = 1_000  # leaves of one rule; payloads whose keys are data would make columns without end
VOID = "VOID"  # seen, but only as null
NUMBERS = ("INT", "BIGINT", "DOUBLE")  # each holds what those before it hold
TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[^\s<>:,()`]+|[<>:,()])")


class Reader:
    """A recursive reader of one type, deep nesting passed over without recursion."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = TOKEN.findall(text)
        self.at = 0

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise ValueError("a type that ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def type(self, depth: int = 0) -> Type:
        name = self.take().upper()
        if self.peek() == "(":  # DECIMAL(20,0)
            while self.take() != ")":
                pass
        if self.peek() != "<":
            return canonical(name)
        if depth >= MAX_DEPTH or name not in ("OBJECT", "STRUCT", "ARRAY"):
            self.skip()
            return "STRING"
        self.take()
        if name == "ARRAY":
            made: Type = [self.type(depth + 1)]
        else:
            made = self.fields(depth)
        if self.take() != ">":
            raise ValueError("a type with no end")
        return made

    def fields(self, depth: int) -> dict[str, Type]:
        found: dict[str, Type] = {}
        while self.peek() != ">":
            name = self.take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if self.peek() == ":":
                self.take()
            found[name] = self.type(depth + 1)
            if self.peek() == ",":
                self.take()
        return found

    def skip(self) -> None:
        """Past the `<...>` that comes next."""
        depth = 0
        while True:
            token = self.take()
            depth += (token == "<") - (token == ">")
            if depth == 0:
                return


def canonical(name: str) -> str:
    if name in ("TINYINT", "SMALLINT", "INT"):
        return "INT"
    if name in ("FLOAT", "DECIMAL", "DOUBLE"):
        return "DOUBLE"
    return "STRING" if name == "VARIANT" else name


def read_type(text: str) -> Type:
    """The type in *text*: DDL, or as `schema_of_variant` has it: OBJECT<`a b`: BIGINT, c: ARRAY<VOID>>."""
    return Reader(text).type()


def widen(old: Type, new: Type) -> Type:
    """The narrowest type that holds both; fields keep the order in which they came."""
    if old == new or new == VOID:
        return old
    if old == VOID:
        return new
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: widen(old.get(name, VOID), kind) for name, kind in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        return [widen(old[0], new[0])]
    if old in NUMBERS and new in NUMBERS:
        return max(str(old), str(new), key=NUMBERS.index)
    return "STRING"


def known(kind: Type) -> Type:
    """*kind* as a table has it: Parquet has no VOID and no empty struct, so such fields wait for a value.

    An array of nothing is an array of text. VOID if nothing is left.
    """
    if isinstance(kind, list):
        item = known(kind[0])
        return ["STRING" if item == VOID else item]
    if isinstance(kind, dict):
        fields = {name: known(each) for name, each in kind.items()}
        return {name: each for name, each in fields.items() if each != VOID} or VOID
    return kind


def distinct(kind: Type) -> Type:
    """*kind* with names that differ in more than their case, as most readers of tables ask for."""
    if isinstance(kind, list):
        return [distinct(kind[0])]
    if not isinstance(kind, dict):
        return kind
    found: dict[str, Type] = {}
    taken = {name.lower() for name in kind}
    seen: set[str] = set()
    for name, each in kind.items():
        chosen, number = name, 2
        while chosen.lower() in seen or (chosen != name and chosen.lower() in taken):
            chosen, number = f"{name}_{number}", number + 1
        seen.add(chosen.lower())
        found[chosen] = distinct(each)
    return found


def write_type(kind: Type) -> str:
    """*kind* as DDL; Spark reads it where no VOID is left."""
    if isinstance(kind, list):
        return f"ARRAY<{write_type(kind[0])}>"
    if isinstance(kind, dict):
        inner = ", ".join(f"{quoted(name)}: {write_type(each)}" for name, each in kind.items())
        return f"STRUCT<{inner}>"
    return kind


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def leaves(kind: Type, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Type]]:
    """(path, type) of all that is not a struct, in order."""
    if isinstance(kind, dict) and kind:
        return [leaf for name, each in kind.items() for leaf in leaves(each, (*path, name))]
    return [(path, kind)]


def bounded(old: Type, new: Type) -> Type:
    """*new*, or *old*, which the table has already, when *new* has more leaves than a table can bear."""
    return new if len(leaves(new)) <= MAX_FIELDS else old


class Versions:
    """OUT/_schemas/<rule>/<n>.ddl: each one holds all that the ones before it held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> tuple[int, Type]:
        """(n, type); (0, VOID) when there is none."""
        numbers = [int(path.stem) for path in self.folder.glob("*.ddl") if path.stem.isdigit()]
        if not numbers:
            return 0, VOID
        return max(numbers), read_type((self.folder / f"{max(numbers)}.ddl").read_text("utf-8"))

    def add(self, kind: Type) -> int:
        """Store *kind* as the next version, whole or not at all; its number."""
        number = self.newest()[0] + 1
        self.folder.mkdir(parents=True, exist_ok=True)
        staged = self.folder / f".{number}.ddl"
        with staged.open("w", encoding="utf-8") as file:
            file.write(write_type(kind) + "\n")
            file.flush()
            os.fsync(file.fileno())
        staged.rename(self.folder / f"{number}.ddl")
        return number

