"""The tables of silver, and what they are made of.

OUT/silver/<rule>/schema=<n>    one row for each payload that was read; `value` has the type of version n
OUT/silver/points               one row for each field of each payload
OUT/quarantine/payloads         one row for each payload that was not read, with the reason
OUT/_schemas/<rule>/<n>.ddl     the types; a new version is a new table, for Parquet has one type a column
OUT/silver/_edges/<rule>/<n>    what Sparkplug B has to remember after batch n
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.schema import Column
from spark.silver.ddl import Type, Versions, distinct, known, write_type
from spark.silver.payloads import type_of
from spark.tables import Table, open_table

PLACE = (
    Column("", "node", "string"),
    Column("", "epoch", "bigint"),
    Column("", "offset", "bigint"),
    Column("", "received_at", "timestamp"),
)
HOUR = (Column("", "date", "date"), Column("", "hour", "int"))
WIDE = (
    *PLACE,
    Column("", "event_time", "timestamp"),
    Column("", "topic", "string"),
    Column("", "client_id", "string"),
    Column("", "tags", "map<string,string>"),
)
POINTS = (
    Column("", "received_at", "timestamp"),
    Column("", "event_time", "timestamp"),
    Column("", "topic", "string"),
    Column("", "tags", "map<string,string>"),
    Column("", "field", "string"),
    Column("", "number", "double"),
    Column("", "text", "string"),
    Column("", "rule", "string"),
    *PLACE[:3],
    *HOUR,
)
PAYLOADS = (
    *PLACE,
    Column("", "topic", "string"),
    Column("", "client_id", "string"),
    Column("", "rule", "string"),
    Column("", "reason", "string"),
    Column("", "size", "int"),
    Column("", "head", "binary"),  # the first 256 bytes
    *HOUR,
)


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]


def wide_columns(value: str) -> tuple[Column, ...]:
    """Of a wide table whose values have the type *value*, in DDL."""
    return (*WIDE, Column("", "value", value), *HOUR)


def wide_table(out: Path, rule: str, version: int, layout: str | None = None) -> Table:
    return open_table(out, f"silver/{rule}/schema={version}", layout)


def points_table(out: Path, layout: str | None = None) -> Table:
    return open_table(out, "silver/points", layout)


def payloads_table(out: Path, layout: str | None = None) -> Table:
    return open_table(out, "quarantine/payloads", layout)


def versions(out: Path, rule: str) -> Versions:
    return Versions(out / "_schemas" / rule)


def rules_in(out: Path) -> list[str]:
    """The rules that have a table."""
    found = {path.parent.name for path in (out / "silver").glob("*/schema=*")}
    return sorted(found)


def of_table(kind: Type) -> Type:
    """The type of `value` in a table, given that of the payloads."""
    return distinct(known(kind))


def each_version(session: SparkSession, out: Path, rule: str) -> Iterator[DataFrame]:
    """One DataFrame for each version of the wide table of *rule*, oldest first."""
    stored = versions(out, rule)
    for number in range(1, stored.newest()[0] + 1):
        value = write_type(of_table(stored.read(number)))
        table = wide_table(out, rule, number)
        if value != "VOID" and table.exists():
            columns = wide_columns(value)
            yield table.read(session, columns).select(*names(columns))


def in_type(rows: DataFrame, newest: Type) -> DataFrame:
    """By way of JSON, which is how the values came."""
    if type_of(rows.schema["value"].dataType) == newest:
        return rows
    text = F.to_json(F.struct("value"))
    return rows.withColumn("value", F.from_json(text, f"STRUCT<value: {write_type(newest)}>")["value"])


def read_wide(session: SparkSession, out: Path, rule: str) -> DataFrame | None:
    """All versions of a rule's table in the newest type, new fields null in old rows. None: no rows yet."""
    newest = of_table(versions(out, rule).newest()[1])
    parts = [in_type(rows, newest) for rows in each_version(session, out, rule)]
    return reduce(DataFrame.unionByName, parts) if parts else None
