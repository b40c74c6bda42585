"""Columns of the log's two kinds: the key in a line, the name in a table, the type in SQL.

What `mqttlog` yields: PLACE, the columns of the kind, ORIGIN. What bronze has: BRONZE, in its order.
Keys that are not here are left unread, and optional keys that a line lacks are null.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Column(NamedTuple):
    key: str  # in a line; "" for what is not from the line
    name: str
    type: str  # DDL


PLACE = (
    Column("", "node", "string"),
    Column("", "epoch", "bigint"),
    Column("o", "offset", "bigint"),
    Column("ts", "received_at", "timestamp"),
)

MESSAGES = (
    Column("t", "topic", "string"),
    Column("q", "qos", "tinyint"),
    Column("r", "retain", "boolean"),
    Column("d", "dup", "boolean"),
    Column("c", "client_id", "string"),
    Column("cn", "connection", "bigint"),  # unique in (node, epoch); joins to events
    Column("v", "protocol", "tinyint"),
    Column("p", "payload", "binary"),
    Column("ps", "payload_size", "int"),  # only where the payload was cut
    Column("u", "username", "string"),
    Column("pf", "payload_format", "tinyint"),
    Column("ct", "content_type", "string"),
    Column("rt", "response_topic", "string"),
    Column("cd", "correlation_data", "binary"),
    Column("up", "user_properties", "array<struct<key:string,value:string>>"),
    Column("mei", "message_expiry", "bigint"),  # seconds
    Column("mt", "mountpoint", "string"),
    Column("gap", "lost", "bigint"),  # a gap marker: so many records were dropped here
)

EVENTS = (
    Column("ev", "event", "string"),
    Column("c", "client_id", "string"),
    Column("cn", "connection", "bigint"),
    Column("v", "protocol", "tinyint"),
    Column("u", "username", "string"),
    Column("a", "peer", "string"),
    Column("l", "listener", "string"),
    Column("ka", "keep_alive", "int"),  # seconds
    Column("sei", "session_expiry", "bigint"),  # seconds
    Column("cs", "clean_start", "boolean"),
    Column("sp", "session_present", "boolean"),
    Column("rc", "reason_code", "smallint"),
    Column("by", "ended_by", "string"),
    Column("dur", "duration", "bigint"),  # milliseconds
    Column("in", "messages_in", "bigint"),
    Column("out", "messages_out", "bigint"),
    Column("bin", "bytes_in", "bigint"),
    Column("bout", "bytes_out", "bigint"),
    Column("st", "state", "string"),
    Column("pend", "pending", "bigint"),  # queued messages
    Column("f", "topic_filter", "string"),
    Column("q", "qos", "tinyint"),
    Column("nl", "no_local", "boolean"),
    Column("rap", "retain_as_published", "boolean"),
    Column("rh", "retain_handling", "tinyint"),
    Column("sid", "subscription_identifier", "bigint"),
    Column("mo", "message_offset", "bigint"),  # of the message: same node, same epoch
    Column("lat", "latency", "bigint"),  # microseconds since received_at of the message
    Column("why", "reason", "string"),
    Column("gap", "lost", "bigint"),
)

ORIGIN = (
    Column("", "segment", "string"),  # file name
    Column("", "date", "date"),  # of the segment, as `hour`: UTC
    Column("", "hour", "int"),
    # Null in a row that is a record. Else why there is none, and the row says only where: node, epoch,
    # offset (the first that is missing), lost (how many), segment.
    Column("", "bad", "string"),
)

KINDS = {"messages": MESSAGES, "events": EVENTS}
BINARY = frozenset({"payload", "correlation_data"})  # base64 in a line

# How `bad` begins where the log itself is incomplete, not a line of it: these rows go to `log_gaps`.
GAP, DATA_LOSS = "gap: ", "data loss: "

# Added on the way to bronze.
LEVELS = Column("", "levels", "array<string>")  # of the topic
SIZE = Column("", "size", "int")  # bytes of the payload as it was published
INGESTED_AT = Column("", "ingested_at", "timestamp")

PARTITIONS = ("date", "hour")


def ddl(columns: Iterable[Column]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def log_columns(kind: str) -> tuple[Column, ...]:
    """What `mqttlog` yields, and the file source after renaming."""
    return (*PLACE, *KINDS[kind], *ORIGIN)


def bronze_columns(kind: str) -> tuple[Column, ...]:
    """The table `bronze/<kind>`: `date` and `hour`, by which it is partitioned, come last."""
    added = (LEVELS, SIZE) if kind == "messages" else ()
    segment, date, hour, _ = ORIGIN
    return (*PLACE, *KINDS[kind], *added, segment, INGESTED_AT, date, hour)


QUARANTINE_LINES = (  # the table quarantine/lines
    Column("", "kind", "string"),
    Column("", "node", "string"),
    Column("", "epoch", "bigint"),
    Column("", "offset", "bigint"),  # the first that could not be read
    Column("", "lost", "bigint"),  # how many offsets this row stands for; 0: a line too many
    Column("", "segment", "string"),
    Column("", "bad", "string"),  # the reason, and the first bytes of what stood there
    INGESTED_AT,
    Column("", "date", "date"),
    Column("", "hour", "int"),
)
LOG_GAPS = tuple(column for column in QUARANTINE_LINES if column.name not in {"segment", "date", "hour"})
