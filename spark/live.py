"""The `mqtt` sink: rows of a query, streaming or not, as messages to a broker.

    df.writeStream.format("mqtt").option("host", "broker.example").option("checkpointLocation", DIR).start()

Columns `topic` and `payload` (binary or string); optional `qos` (0 or 1, 2 is sent as 1; default 1),
`retain`, `content_type`, `payload_format`, `response_topic`, `correlation_data`, `message_expiry` (seconds)
and `user_properties` (an array of structs of two strings, or a map). All other columns of the message log may
be there and are not sent. Each partition has a connection of its own, at most `window` messages without
PUBACK, and the task ends when all are acknowledged; a negative Reason Code fails it.

Exactly once with a broker whose `dedup` is on: every PUBLISH has the user property `producer` =
`<query id>/<partition>:<batch>:<n>`, and the broker routes each of them once. So the rows of a partition must
come in the same order each time: where the columns node, epoch and offset are there, they are sorted by them.
Between two tries of a batch the number of partitions must not change either: the broker refuses what does not
repeat the first try, and where the checkpoint is a local folder the number is noted in it and compared. The
way out is another name by the option `producer`: all of that batch is sent again. Any other broker gets
every message at least once.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

from spark.mqtt.line import Line, Window
from spark.mqtt.options import Address, between, read_options
from spark.schema import MESSAGES, ORIGIN, PLACE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = ("node", "epoch", "offset")
# Column -> property of PUBLISH.
PROPERTIES = {
    "content_type": "content_type",
    "payload_format": "payload_format_indicator",
    "response_topic": "response_topic",
    "correlation_data": "correlation_data",
    "message_expiry": "message_expiry_interval",
}
SENT = ("topic", "payload", "qos", "retain", "user_properties", *PROPERTIES)
# Of the columns that need not be there; user_properties are looked at by themselves.
TYPES: Mapping[str, tuple[type[DataType], str]] = {
    "qos": (IntegralType, "int"),
    "retain": (BooleanType, "boolean"),
    "content_type": (StringType, "string"),
    "payload_format": (IntegralType, "int"),
    "response_topic": (StringType, "string"),
    "correlation_data": (BinaryType, "binary"),
    "message_expiry": (IntegralType, "bigint"),
}
NOT_SENT = {column.name for column in (*PLACE, *MESSAGES, *ORIGIN)} | {"levels", "size", "ingested_at"}
PRODUCER = "producer"


class MqttDataSource(DataSource):
    """`register(session)`, then `.format("mqtt")`.

    Options: host, port, username, password or passwordFile, tls, ca, cert, key, timeout (seconds), window
    (512), clientId (a prefix), producer (in place of the query's id: a job that is repeated under the same
    name publishes nothing twice).
    """

    @classmethod
    def name(cls) -> str:
        return "mqtt"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return MqttWriter(settings_of(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return MqttStreamWriter(settings_of(self.options, schema))


@dataclass(frozen=True)
class Settings:
    """What a task needs; pickled to it, and written nowhere."""

    address: Address
    window: int = 512
    client_id: str = "spark"
    producer: str = ""  # empty: the query's id
    checkpoint: str = ""
    # Names a batch job; its tasks share it, also when they are repeated.
    run: str = field(default_factory=lambda: uuid.uuid4().hex)


def settings_of(options: Mapping[str, str], schema: StructType) -> Settings:
    """Raises ValueError for an option or a column that cannot be used."""
    check_columns(schema)
    more = {
        "window": ("window", between(1, 65_535)),
        "clientId": ("client_id", str),
        "producer": ("producer", producer_name),
        "checkpointLocation": ("checkpoint", str),
    }
    address, others = read_options(options, more, also=("path",))
    return Settings(address, **others)


def producer_name(text: str) -> str:
    if not text or ":" in text or len(text) > 200:
        raise ValueError("1 to 200 characters without a colon")
    return text


def check_columns(schema: StructType) -> None:
    """Raises ValueError."""
    types: dict[str, DataType] = {each.name: each.dataType for each in schema.fields}
    for name in ("topic", "payload"):
        if name not in types:
            raise ValueError(f"the mqtt sink needs a column {name}; there are {', '.join(types) or 'none'}")
    if not isinstance(types["topic"], StringType):
        raise ValueError(f"topic is {types['topic'].simpleString()}, not string")
    if not isinstance(types["payload"], StringType | BinaryType):
        kind = types["payload"].simpleString()
        raise ValueError(f"payload is {kind}: make it binary or string, by cast or to_json")
    for name, (wanted, text) in TYPES.items():
        if name in types and not isinstance(types[name], wanted):
            raise ValueError(f"{name} is {types[name].simpleString()}: make it {text}, by cast")
    if not are_pairs(types.get("user_properties", MapType(StringType(), StringType()))):
        raise ValueError("user_properties are an array of structs of two strings, or a map of them")
    unknown = types.keys() - {*SENT, *NOT_SENT}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"the mqtt sink knows no column {names}; it sends {', '.join(SENT)}")


def are_pairs(found: DataType) -> bool:
    """Whether it is a map of strings, or an array of structs of two of them."""
    if isinstance(found, MapType):
        return isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    inside = found.elementType if isinstance(found, ArrayType) else None
    fields = inside.fields if isinstance(inside, StructType) else []
    return len(fields) == 2 and all(isinstance(each.dataType, StringType) for each in fields)


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    partition: int
    messages: int


class MqttWriter(DataSourceArrowWriter):
    """`df.write.format("mqtt")`: the whole job is batch 0 of a producer of its own, or of the option."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        settings = self._settings
        return send(settings, settings.producer or settings.run, 0, iterator)


class MqttStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("mqtt")`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise RuntimeError("Spark does not say which query and batch this is")
        return send(self._settings, self._settings.producer or query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        Tries(self._settings.checkpoint).finish(batchId, len(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        Tries(self._settings.checkpoint).note(batchId, len(messages))


class Tries:
    """The number of partitions of a batch that failed, beside the checkpoint if that is a local folder."""

    def __init__(self, checkpoint: str) -> None:
        parts = urlsplit(checkpoint)
        local = checkpoint and parts.scheme in ("", "file")
        self._file = Path(unquote(parts.path), "mqtt-partitions.json") if local else None

    def note(self, batch: int, partitions: int) -> None:
        if self._file is not None and partitions:
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps({"batch": batch, "partitions": partitions}))
            os.replace(part, self._file)

    def finish(self, batch: int, partitions: int) -> None:
        """Raises RuntimeError if an earlier try of *batch* had another number."""
        if self._file is None or not self._file.exists():
            return
        noted = json.loads(self._file.read_text())
        before = noted["partitions"]
        if noted["batch"] == batch and before != partitions:
            raise RuntimeError(
                f"batch {batch} was tried with {before} partitions and now sent with {partitions}: "
                "messages of it may be missing or there twice. To send it once more, give the query another "
                f"producer by option; then, or to go on without, remove {self._file}"
            )
        self._file.unlink()


def register(session: SparkSession) -> None:
    """Makes `mqtt` known to *session*."""
    session.dataSource.register(MqttDataSource)


# ---- in a task


def send(settings: Settings, producer: str, batch: int, batches: Iterable[pa.RecordBatch]) -> Sent:
    """Publish all rows of one partition; they are acknowledged when this returns."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    n = 0
    with Line(settings.address) as line:
        # The same name for each try: who begins anew takes the connection of one that still runs.
        line.connect(f"{settings.client_id}-{producer[:64]}-{partition}")
        window = Window(line, settings.window)
        for message in messages_of(batches):
            mark = f"{producer}/{partition}:{batch}:{n}"
            pairs = [pair for pair in message.properties.get("user_property", ()) if pair[0] != PRODUCER]
            message.properties["user_property"] = [*pairs, (PRODUCER, mark)]
            window.publish(message.topic, message.payload, message.qos, message.retain, message.properties)
            n += 1
        window.settle()
    return Sent(partition, n)


@dataclass(slots=True)
class Outgoing:
    """One row as a message."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


def messages_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Outgoing]:
    """In a fixed order, if the rows have a place in the log. Then all of them are held in memory once.

    Raises ValueError for a row that is no message.
    """
    for batch in ordered(batches):
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in SENT}
        for row in zip(*columns.values(), strict=True):
            yield message_of(dict(zip(columns, row, strict=True)))


def ordered(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Sorted by node, epoch and offset, where these columns are."""
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        return []
    if not set(ORDER) <= set(first.schema.names):
        return (batch for part in ([first], iterator) for batch in part)
    table = pa.Table.from_batches([first, *iterator])
    return table.sort_by([(name, "ascending") for name in ORDER]).to_batches(max_chunksize=10_000)


def message_of(row: dict[str, Any]) -> Outgoing:
    topic, payload = row["topic"], row["payload"]
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        gap = "; a gap marker of the log is no message: filter by topic IS NOT NULL" if topic is None else ""
        raise ValueError(f"a row has the topic {topic!r:.200}, which nobody can publish to{gap}")
    data = payload.encode() if isinstance(payload, str) else payload or b""
    qos = row.get("qos")
    properties = {PROPERTIES[name]: row[name] for name in PROPERTIES if row.get(name) is not None}
    if pairs := pairs_of(row.get("user_properties")):
        properties["user_property"] = pairs
    return Outgoing(topic, data, 1 if qos is None else min(qos, 1), bool(row.get("retain")), properties)


def pairs_of(value: Any) -> list[tuple[str, str]]:
    """User properties as arrow gives them: structs as dictionaries, a map as pairs."""
    pairs = [tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in value or ()]
    return [(name, text) for name, text in pairs if name is not None and text is not None]
