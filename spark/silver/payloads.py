"""Payloads -> values, as column expressions: one rule at a time, never an exception for a payload.

`decoded` gives the columns of KEPT, `event_time`, `tags`, `value` and `reason`; `reason` is null where the
payload was read, else it says why not and `value` is of no use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark.silver.ddl import VOID, Type, distinct, leaves, read_type, write_type
from spark.silver.rules import EventTime, Rule

IDENTITY = ("node", "epoch", "offset", "received_at", "topic", "client_id")
KEPT = (*IDENTITY, "levels", "payload", "size", "date", "hour")
BAD = "__bad"  # the field in which from_json keeps what it could not read
NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
DATED = r"^\s*\d{4}-\d\d"
ZONED = r"\d[T ].*([zZ]|[+-]\d\d(:?\d\d)?)\s*$"  # of a time: a date alone ends in -27
TRUE, FALSE = ("on", "true", "1", "yes"), ("off", "false", "0", "no")
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
NUMERIC = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN")


def matching(rule: Rule) -> Column:
    """Whether the topic of a row is matched by the filter of *rule* [MQTT5 4.7]."""
    levels = rule.levels
    open_ended = levels[-1] == "#"
    wanted = levels[:-1] if open_ended else levels
    count = F.size("levels")
    tests = [count >= len(wanted) if open_ended else count == len(wanted)]
    tests += [F.get("levels", F.lit(at)) == level for at, level in enumerate(wanted) if level != "+"]
    if levels[0] in ("+", "#"):
        tests.append(~F.col("topic").startswith("$"))
    return reduce(lambda one, other: one & other, tests)


def rule_name(rules: Sequence[Rule]) -> Column:
    """The name of the first rule that matches; null where none does."""
    name = F.when(matching(rules[0]), rules[0].name)
    for rule in rules[1:]:
        name = name.when(matching(rule), rule.name)
    return name


def text() -> Column:
    """The payload as text; null where it is not UTF-8."""
    return F.try_validate_utf8(F.col("payload").cast("string"))


def refusal(rule: Rule) -> Column:
    """Why a payload is not even looked at; null where it is."""
    reason = F.when(F.col("payload").isNull(), "no payload")
    if rule.format not in ("text", "raw"):
        reason = reason.when(F.length("payload") == 0, "empty")
    reason = reason.when(F.length("payload") > rule.max_bytes, f"more than {rule.max_bytes} bytes")
    if rule.format not in ("raw", "sparkplug"):
        reason = reason.when(F.col("text").isNull(), "not UTF-8")
    return reason


def decoded(rows: DataFrame, rule: Rule, kind: Type = VOID) -> DataFrame:
    """*rows* of bronze, read by *rule*; *kind* is the type of the JSON values. Not for `sparkplug`."""
    rows = rows.select(*KEPT, text().alias("text"))
    rows = rows.select("*", refusal(rule).alias("refused"))
    good = F.col("refused").isNull()
    if rule.format == "json":
        rows = json_values(rows, kind, good, rule.event_time.zone if rule.event_time else "UTC")
    else:
        value, reason = VALUES[rule.format]()
        rows = rows.select("*", F.when(good, value).alias("value"))
        rows = rows.select("*", F.coalesce("refused", reason).alias("reason"))
    when = event_time(rule.event_time, kind).alias("event_time")
    return rows.select(*KEPT, when, tags(rule).alias("tags"), "value", "reason")


def number_values() -> tuple[Column, Column]:
    value = F.when(F.col("text").rlike(NUMBER), F.col("text").try_cast("double"))
    finite = F.when(F.abs(value) < float("inf"), value)
    return finite, F.when(F.col("value").isNull(), "not a number")


def boolean_values() -> tuple[Column, Column]:
    word = F.lower(F.trim("text"))
    value = F.when(word.isin(*TRUE), True).when(word.isin(*FALSE), False)
    return value, F.when(F.col("value").isNull(), "neither true nor false")


KINDS: dict[str, Type] = {"number": "DOUBLE", "boolean": "BOOLEAN", "text": "STRING", "raw": "BINARY"}
VALUES = {
    "number": number_values,
    "boolean": boolean_values,
    "text": lambda: (F.col("text"), F.lit(None).cast("string")),
    "raw": lambda: (F.col("payload"), F.lit(None).cast("string")),
}


def json_values(rows: DataFrame, kind: Type, good: Column, zone: str) -> DataFrame:
    """`value` and `reason` of JSON. What is no object is read as the only field of an object around it.

    *zone* is that of times which name none.
    """
    if kind == VOID:
        return rows.select("*", F.lit(None).cast("string").alias("value"), no_type().alias("reason"))
    whole: Type = kind if isinstance(kind, dict) else {"value": kind}
    source = F.col("text") if isinstance(kind, dict) else F.concat(F.lit('{"value":'), "text", F.lit("}"))
    bad = BAD
    while bad in whole:  # a payload may have any name
        bad += "_"
    schema = f"{write_type(whole)[:-1]}, {bad}: STRING>"
    strict = {"columnNameOfCorruptRecord": bad, "allowNonNumericNumbers": "false", "timeZone": zone}
    parsed = F.from_json(F.when(good, source), schema, strict)
    rows = rows.select("*", parsed.alias("parsed"))
    unread = F.col(f"parsed.{bad}").isNotNull() | F.col("parsed").isNull()
    if not isinstance(kind, dict):  # `1,"value":2` is whole in the object around it, and nowhere else
        unread = unread | F.try_parse_json("text").isNull()
    wrong = F.when(unread, not_read())
    value = F.col("parsed").dropFields(bad) if isinstance(kind, dict) else F.col("parsed.value")
    if distinct(kind) != kind:
        value = value.cast(write_type(distinct(kind)))  # by position
    return rows.select("*", value.alias("value"), F.coalesce("refused", wrong).alias("reason"))


def no_type() -> Column:
    return F.coalesce("refused", not_read())


def not_read() -> Column:
    """Why JSON was not read; costs a second parse, and only of such payloads."""
    lost = F.try_parse_json("text").isNull()
    return F.when(lost, "not JSON").otherwise("JSON that does not fit the schema")


def event_time(rule: EventTime | None, kind: Type) -> Column:
    """When it happened, as the payload says; null where it says nothing that is a time of years 1 to 9999."""
    types = dict(leaves(kind))
    never = F.lit(None).cast("timestamp")
    if rule is None or rule.path not in types:
        return never
    said, of = field("value", rule.path), types[rule.path]
    if of != "TIMESTAMP" and rule.unit != "iso":
        return of_number(said, PER_SECOND[rule.unit]) if of == "STRING" or numeric(of) else never
    if of == "TIMESTAMP":
        time = said
    elif of == "STRING":
        dated = F.when(said.rlike(DATED), said)  # a time alone would be one of today
        local = dated.try_cast("timestamp")
        time = F.when(said.rlike(ZONED), local).otherwise(F.to_utc_timestamp(local, rule.zone))
    else:
        return never
    return F.when(F.unix_seconds(time).between(FIRST_SECOND, LAST_SECOND), time)


def of_number(said: Column, per_second: int) -> Column:
    seconds = said.try_cast("double") / per_second
    possible = seconds.between(FIRST_SECOND, LAST_SECOND)  # beyond, the conversion would raise
    micros = F.round(F.when(possible, said.try_cast("double")) * (1_000_000 // per_second))
    return F.timestamp_micros(micros.cast("bigint"))


def numeric(kind: Type) -> bool:
    return isinstance(kind, str) and (kind in NUMERIC or kind.startswith("DECIMAL"))


def tags(rule: Rule) -> Column:
    """{name: topic level} for the levels that are there."""
    pairs = [(at, name) for at, name in enumerate(rule.tags) if name]
    if not pairs:
        return F.lit(None).cast("map<string,string>")
    made = F.map_from_arrays(
        F.array(*[F.lit(name) for _, name in pairs]),
        F.array(*[F.get("levels", F.lit(at)) for at, _ in pairs]),
    )
    return F.map_filter(made, lambda _, level: level.isNotNull())


def field(column: str, path: Sequence[str]) -> Column:
    return reduce(lambda at, name: at.getField(name), path, F.col(column))


def points_of(kind: Type) -> Column:
    """An array of (field, number, text), one for each leaf of `value`; those without a value are null."""
    return F.array(*[point(path, each) for path, each in leaves(kind)])


def point(path: tuple[str, ...], kind: Type) -> Column:
    value = field("value", path)
    number, words = F.lit(None).cast("double"), F.lit(None).cast("string")
    if isinstance(kind, list) or (isinstance(kind, str) and kind.startswith("map")):
        words = F.to_json(value)
    elif kind == "STRING":
        number, words = F.when(value.rlike(NUMBER), value.try_cast("double")), value
    elif numeric(kind):
        number = value.cast("double")
        if kind == "BIGINT":  # a double holds no more than 2 ** 53 exactly
            words = F.when((value > 1 << 53) | (value < -(1 << 53)), value.cast("string"))
    elif kind == "BINARY":
        words = F.base64(value)
    else:
        words = value.cast("string")
    name = F.lit(".".join(path) or "value").alias("field")
    made = F.struct(name, number.alias("number"), words.alias("text"))
    return F.when(value.isNotNull(), made)


def inferred(rows: DataFrame, names: Sequence[str]) -> dict[str, tuple[Type, Type]]:
    """For each rule in *names*: the type of the JSON objects in *rows*, and of all other JSON values.

    *rows* has `rule`. One pass, one parse of each payload; what is not JSON counts for nothing.
    """
    value = F.try_parse_json(text())
    is_object = F.schema_of_variant(value).startswith("OBJECT")
    chosen = rows.filter(F.col("rule").isin(*names)).select("rule", value.alias("v"), is_object.alias("o"))
    found = chosen.groupBy("rule").agg(
        F.schema_of_variant_agg(F.when(F.col("o"), F.col("v"))).alias("objects"),
        F.schema_of_variant_agg(F.when(~F.col("o"), F.col("v"))).alias("others"),
    )
    return {row.rule: (read_type(row.objects), read_type(row.others)) for row in found.collect()}


def declared(rule: Rule) -> Type:
    """The declared schema of *rule*, its types as Spark names them; raises what Spark raises for bad DDL."""
    return type_of(StructType.fromDDL(rule.schema or ""))


def type_of(data: DataType) -> Type:
    if isinstance(data, StructType):
        return {each.name: type_of(each.dataType) for each in data}
    if isinstance(data, ArrayType):
        return [type_of(data.elementType)]
    name = data.simpleString()
    return name if isinstance(data, MapType) else name.upper()
