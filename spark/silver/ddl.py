"""Types of `value`: read from what Spark says, widened, written as DDL, kept by number on disk.

Pure: no Spark. A type is a name ("BIGINT", "DECIMAL(10,2)", "map<string,int>"), a dict of fields (a struct),
or a list of one type (an array).
Widening never loses a row: INT -> BIGINT -> DOUBLE -> STRING, and whatever does not fit together is STRING,
which `from_json` fills with the JSON text.
"""

from __future__ import annotations

import re
from pathlib import Path

from spark.log.consumers import write_whole

Type = str | dict[str, "Type"] | list["Type"]

MAX_DEPTH = 8  # deeper values are kept as JSON text
MAX_FIELDS = 1_000  # columns of one rule; payloads whose keys are data would make columns without end
VOID = "VOID"  # seen, but only as null
NUMBERS = ("INT", "BIGINT", "DOUBLE")  # each holds what those before it hold
TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[^\s<>:,()`]+|[<>:,()])")


class Reader:
    """A recursive reader of one type. *inferred*: few kinds of types, and deep nesting is text."""

    def __init__(self, text: str, inferred: bool) -> None:
        self.tokens: list[str] = TOKEN.findall(text)
        self.inferred = inferred
        self.at = 0

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise ValueError("a type that ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def type(self, depth: int = 0) -> Type:
        name = self.take()
        if self.peek() == "(":  # DECIMAL(20,0)
            name += self.group("(", ")")
        if self.peek() != "<":
            return canonical(name.upper()) if self.inferred else name.upper()
        nested = name.upper() in ("OBJECT", "STRUCT", "ARRAY")
        if not nested or (self.inferred and depth >= MAX_DEPTH):
            whole = name + self.group("<", ">")
            return "STRING" if self.inferred else whole
        self.take()
        if name.upper() == "ARRAY":
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

    def group(self, opens: str, closes: str) -> str:
        """The `<...>` or `(...)` that comes next, as it stands there; without recursion."""
        first, depth = self.at, 0
        while True:
            token = self.take()
            depth += (token == opens) - (token == closes)
            if depth == 0:
                return "".join(self.tokens[first : self.at])


def canonical(name: str) -> str:
    if name in ("TINYINT", "SMALLINT", "INT"):
        return "INT"
    if name in ("FLOAT", "DOUBLE") or name.startswith("DECIMAL"):
        return "DOUBLE"
    return "STRING" if name == "VARIANT" else name


def read_type(text: str) -> Type:
    """The type that `schema_of_variant` names: OBJECT<`a b`: BIGINT, c: ARRAY<VOID>>; one of few kinds."""
    return Reader(text, inferred=True).type()


def read_ddl(text: str) -> Type:
    """The type in *text* as it stands there: what `write_type` wrote."""
    return Reader(text, inferred=False).type()


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


def width(kind: Type) -> int:
    """How many columns Parquet makes of *kind*: its leaves, those inside arrays as well."""
    return sum(width(each[0]) if isinstance(each, list) else 1 for _, each in leaves(kind))


def bounded(old: Type, new: Type) -> Type:
    """*new*, or *old*, which the table has already, when *new* has more columns than a table can bear."""
    return new if width(new) <= MAX_FIELDS else old


class Versions:
    """OUT/_schemas/<rule>/<n>.ddl: each one holds all that the ones before it held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> tuple[int, Type]:
        """(n, type); (0, VOID) when there is none."""
        numbers = [int(path.stem) for path in self.folder.glob("*.ddl") if path.stem.isdigit()]
        if not numbers:
            return 0, VOID
        return max(numbers), self.read(max(numbers))

    def read(self, number: int) -> Type:
        """Byte by byte: a name may have a carriage return in it, which `read_text` takes for a line's end."""
        return read_ddl((self.folder / f"{number}.ddl").read_bytes().decode("utf-8"))

    def add(self, kind: Type) -> int:
        """Store *kind* as the next version, whole or not at all; its number."""
        number = self.newest()[0] + 1
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{number}.ddl", write_type(kind) + "\n")
        return number
