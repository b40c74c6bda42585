"""Sparkplug B in Spark: the messages of each edge node in their order, with what was remembered of it.

The memory of a batch is a table of (edge, state) beside the data: batch n reads what the newest batch before
it left, so a redo starts from the same state. It is read and written in parallel; the driver never holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.silver.ddl import read_ddl
from spark.silver.payloads import KEPT, refusal, tags
from spark.silver.rules import Rule
from spark.silver.sparkplug import NAMES, EdgeNode, Metric, decode, number_and_text

# Times cross to Python and back as microseconds: a datetime would go by the zone of the worker's machine.
METRIC = (
    "name: STRING, alias: BIGINT, datatype: STRING, number: DOUBLE, text: STRING, timestamp: BIGINT, "
    "historical: BOOLEAN, missing: BOOLEAN"
)
VALUE = (
    "type: STRING, group: STRING, edge: STRING, device: STRING, seq: INT, seq_error: STRING, "
    f"timestamp: BIGINT, metrics: ARRAY<STRUCT<{METRIC}>>"
)
KIND = read_ddl(f"STRUCT<{VALUE.replace('timestamp: BIGINT', 'timestamp: TIMESTAMP')}>")
TYPES = {
    "node": "STRING",
    "epoch": "BIGINT",
    "offset": "BIGINT",
    "received_at": "BIGINT",
    "topic": "STRING",
    "client_id": "STRING",
    "levels": "ARRAY<STRING>",
    "payload": "BINARY",
    "size": "INT",
    "date": "DATE",
    "hour": "INT",
    "tags": "MAP<STRING, STRING>",
}
OUT = (*KEPT, "tags", "value", "reason", "edge", "state")
SCHEMA = (
    ", ".join(f"{name} {TYPES[name]}" for name in (*KEPT, "tags"))
    + f", value STRUCT<{VALUE}>, reason STRING, edge STRING, state STRING"
)
KINDS = {"NBIRTH", "NDEATH", "DBIRTH", "DDEATH", "NDATA", "DDATA", "NCMD", "DCMD"}
STATE_COLUMNS = "edge STRING, state STRING"
LAST_MILLISECOND = 253_402_300_799_000  # of the year 9999; later ones are no times


def edge_key() -> Column:
    """`<group>/<edge node>`: the topic is spBv1.0/<group>/<type>/<edge node>[/<device>]."""
    group, edge = F.get("levels", F.lit(1)), F.get("levels", F.lit(3))
    return F.coalesce(F.concat_ws("/", group, edge), F.lit(""))


def decoded(rows: DataFrame, rule: Rule, states: DataFrame | None) -> DataFrame:
    """As `payloads.decoded`, with `edge` and `state`: null in messages, and alone in one row per edge node.

    By way of an RDD: `mapInArrow` asks for pandas (PySpark 4.3), which nothing else here needs.
    """
    kept = [F.unix_micros(name).alias(name) if name == "received_at" else F.col(name) for name in KEPT]
    refused = refusal(rule).alias("refused")
    read = rows.select(*kept, tags(rule).alias("tags"), refused, edge_key().alias("edge"))
    read = read.select("*", F.lit(None).cast("string").alias("state"), F.lit(1).alias("order"))
    if states is not None:
        known = states.select("edge", "state", F.lit(0).alias("order"))
        read = read.unionByName(known, allowMissingColumns=True)
    ordered = in_order(read.repartition("edge"))
    made = ordered.sparkSession.createDataFrame(ordered.rdd.mapPartitions(walk), SCHEMA, verifySchema=False)
    value = F.col("value")
    metrics = F.transform(value["metrics"], with_time)
    at = F.timestamp_micros(value["timestamp"])
    made = made.withColumn("received_at", F.timestamp_micros("received_at")).withColumn("event_time", at)
    return made.withColumn("value", value.withField("timestamp", at).withField("metrics", metrics))


def in_order(rows: DataFrame) -> DataFrame:
    """*rows*, partitioned by `edge`, sorted by it: its memory first, then its messages.

    In the order of the log's offsets, for a clock may have been set back. Only what came through different
    nodes is put in order by time: each node's latest so far.
    """
    before = Window.partitionBy("edge", "node").orderBy("epoch", "offset")
    latest = F.max("received_at").over(before.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    rows = rows.withColumn("latest", latest)
    return rows.sortWithinPartitions("edge", "order", "latest", "node", "epoch", "offset")


def with_time(metric: Column) -> Column:
    return metric.withField("timestamp", F.timestamp_micros(metric["timestamp"]))


def walk(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of one partition, in the order of OUT."""
    walking = Walk()
    for row in rows:
        yield from (tuple(made.get(name) for name in OUT) for made in walking.step(row))
    yield from (tuple(made.get(name) for name in OUT) for made in walking.leave())


class Walk:
    """Through the rows of one partition, sorted by edge node; holds one edge node at a time."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.edge = EdgeNode()

    def leave(self) -> Iterator[dict[str, Any]]:
        if self.key and self.edge != EdgeNode():
            yield {"edge": self.key, "state": self.edge.to_json()}

    def step(self, row: Any) -> Iterator[dict[str, Any]]:
        if row["edge"] != self.key:
            yield from self.leave()
            self.key, self.edge = row["edge"], EdgeNode()
        if row["state"] is not None:
            self.edge = EdgeNode.from_json(row["state"])
            return
        made = {name: row[name] for name in (*KEPT, "tags")}
        try:
            made |= self.message(row)
        except ValueError as error:
            made["reason"] = str(error)
        except Exception as error:  # whatever a payload can do: it must not stop all others
            made["reason"] = f"{type(error).__name__}: {error}"
        yield made

    def message(self, row: Any) -> dict[str, Any]:
        """`value`; ValueError says why there is none."""
        if row["refused"] is not None:
            raise ValueError(row["refused"])
        levels = row["levels"]
        if len(levels) >= 3 and levels[1] == "STATE":
            return host_state(levels[2], bytes(row["payload"]))
        if len(levels) not in (4, 5) or levels[2] not in KINDS:
            raise ValueError("no topic of Sparkplug B")
        device = levels[4] if len(levels) == 5 else ""
        payload = decode(bytes(row["payload"]))
        wrong = self.edge.take(levels[2], device, payload)
        value: dict[str, Any] = {
            "type": levels[2],
            "group": levels[1],
            "edge": levels[3],
            "device": device or None,
            "seq": payload.seq if payload.seq is not None and payload.seq < 256 else None,
            "seq_error": wrong,
            "timestamp": micros(payload.timestamp),
            "metrics": [metric_row(metric) for metric in payload.metrics],
        }
        return {"value": value}


def host_state(host: str, payload: bytes) -> dict[str, Any]:
    """STATE of a host application: JSON or, before 3.0, ONLINE or OFFLINE; kept as text."""
    metric = {"name": "STATE", "datatype": "Text", "text": payload.decode("utf-8"), "missing": False}
    return {"value": {"type": "STATE", "edge": host, "metrics": [metric]}}


def metric_row(metric: Metric) -> dict[str, Any]:
    number, words = number_and_text(metric.value)
    return {
        "name": metric.name,
        "alias": None if metric.alias is None or metric.alias >> 63 else metric.alias,
        "datatype": NAMES[metric.datatype] if metric.datatype < len(NAMES) else str(metric.datatype),
        "number": number,
        "text": words,
        "timestamp": micros(metric.timestamp),
        "historical": metric.historical,
        "missing": metric.value is None,
    }


def micros(milliseconds: int | None) -> int | None:
    """Microseconds; None for what is no time."""
    if milliseconds is None or milliseconds > LAST_MILLISECOND:
        return None
    return milliseconds * 1000


def points_of() -> Column:
    """As `payloads.points_of`; the field is `device/name` for metrics of a device."""

    def point(metric: Column) -> Column:
        name = F.concat_ws("/", F.col("value.device"), metric["name"])
        made = F.struct(name.alias("field"), metric["number"].alias("number"), metric["text"].alias("text"))
        return F.when(~metric["missing"], made)

    return F.transform("value.metrics", point)
