"""A small bronze table made by hand: rows in the shape that `spark.ingest` gives them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from broker.hook.log.line import EventRecord, MessageRecord
from spark.schema import EVENTS, bronze_columns, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
KEYS = {column.key: column.name for column in EVENTS}
FLAGS = {"clean_start", "session_present", "no_local", "retain_as_published"}
SECOND = 1_000_000
NOON = int(datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()) * SECOND


def place(offset: int, at: int, node: str = "n1", epoch: int = 100) -> Row:
    moment = datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)
    where = {"node": node, "epoch": epoch, "offset": offset, "received_at": moment, "segment": f"{node}.seg"}
    return {**where, "ingested_at": moment, "date": moment.date(), "hour": moment.hour}


def message(offset: int, record: MessageRecord, **where: Any) -> Row:
    publisher, properties = record.publisher, record.properties or {}
    return {
        **place(offset, record.at, **where),
        "topic": record.topic_name,
        "levels": record.topic_name.split("/"),
        "qos": record.flags >> 2,
        "retain": bool(record.flags & 2),
        "dup": bool(record.flags & 1),
        "client_id": publisher.client_id,
        "connection": publisher.connection,
        "protocol": publisher.version,
        "username": publisher.user_name,
        "payload": bytearray(record.payload),
        "size": len(record.payload),
        "content_type": properties.get("content_type"),
    }


def event(offset: int, record: EventRecord, **where: Any) -> Row:
    fields = {KEYS[key]: value for key, value in record.fields}
    fields |= {name: bool(value) for name, value in fields.items() if name in FLAGS}
    publisher = record.publisher
    return {
        **place(offset, record.at, **where),
        "event": record.event,
        "client_id": publisher.client_id,
        "connection": publisher.connection,
        "protocol": publisher.version,
        "username": publisher.user_name,
        **fields,
    }


def said(offset: int, topic: str, payload: bytes | str, at: int = NOON, **more: Any) -> Row:
    """One message, for tests that write payloads by hand."""
    raw = payload.encode() if isinstance(payload, str) else payload
    levels = topic.split("/")
    where = {name: more.pop(name) for name in ("node", "epoch") if name in more}
    row = {**place(offset, at, **where), "topic": topic, "levels": levels, "payload": bytearray(raw)}
    defaults = {"size": len(raw), "qos": 0, "retain": False, "dup": False, "client_id": "c1", "connection": 1}
    return {**row, **defaults, **more}


def gap(offset: int, lost: int, at: int = NOON, **where: Any) -> Row:
    return {**place(offset, at, **where), "lost": lost}


def table(spark: SparkSession, kind: str, rows: Iterable[Row]) -> DataFrame:
    columns = bronze_columns(kind)
    made = [tuple(row.get(column.name) for column in columns) for row in rows]
    return spark.createDataFrame(made, ddl(columns))


def tables(spark: SparkSession, records: Iterable[MessageRecord | EventRecord]) -> dict[str, DataFrame]:
    """Both tables of *records*, offsets counted as the log counts them."""
    rows: dict[str, list[Row]] = {"messages": [], "events": []}
    for record in records:
        if isinstance(record, MessageRecord):
            rows["messages"].append(message(len(rows["messages"]), record))
        else:
            rows["events"].append(event(len(rows["events"]), record))
    return {kind: table(spark, kind, found) for kind, found in rows.items()}
