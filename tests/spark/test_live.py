"""What the `mqtt` sink makes of options, columns and rows. No JVM."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark.live import MqttDataSource, Sent, Settings, Tries, check_columns, message_of, messages_of, send
from spark.mqtt.options import Address
from spark.schema import bronze_columns, ddl
from tests.spark.brokers import broker_with_dedup, copies, read_all, subscribe

SIMPLE = {"binary": BinaryType(), "double": DoubleType(), "boolean": BooleanType()}
SIMPLE |= {name: IntegerType() for name in ("int", "tinyint", "bigint")}
SIMPLE |= {"texts": ArrayType(StringType()), "numbers": MapType(StringType(), IntegerType())}
SIMPLE["pairs"] = ArrayType(StructType().add("key", "string").add("value", "string"))


def frame(ddl: str) -> StructType:
    """What `StructType.fromDDL` would make, which needs a JVM; types that no check looks at are strings."""
    columns = (column.split(" ", 1) for column in ddl.split(", "))
    return StructType([StructField(name, SIMPLE.get(kind, StringType())) for name, kind in columns])


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("payload binary", "needs a column topic; there are payload"),
        ("topic string", "needs a column payload; there are topic"),
        ("topic int, payload binary", "topic is int, not string"),
        ("topic string, payload double", "payload is double: make it binary or string, by cast or to_json"),
        (
            "topic string, payload string, retian boolean",
            "knows no column retian; it sends topic",
        ),
        ("topic string, payload string, user_properties int", "user_properties are an array"),
        ("topic string, payload string, user_properties texts", "user_properties are an array"),
        ("topic string, payload string, user_properties numbers", "user_properties are an array"),
        ("topic string, payload string, retain string", "retain is string: make it boolean, by cast"),
        ("topic string, payload string, qos string", "qos is string: make it int, by cast"),
        ("topic string, payload string, message_expiry double", "message_expiry is double: make it bigint"),
        ("topic string, payload string, content_type int", "content_type is int: make it string"),
        ("topic string, payload string, correlation_data string", "make it binary, by cast"),
    ],
)
def test_a_frame_that_cannot_be_sent(columns: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_columns(frame(columns))


def test_a_frame_that_can_be_sent() -> None:
    check_columns(frame("topic string, payload string"))
    check_columns(frame(ddl(c for c in bronze_columns("messages") if c.name != "user_properties")))
    check_columns(frame("topic string, payload string, user_properties pairs"))


def test_there_is_a_sink_and_no_source() -> None:
    """The live source waits for a broker that can replay."""
    source = MqttDataSource({})
    assert source.name() == "mqtt"
    for method in ("reader", "streamReader", "simpleStreamReader"):
        assert method not in vars(MqttDataSource)


def test_settings_are_pickled_whole_and_shown_without_the_password() -> None:
    options = {"host": "h", "username": "u", "password": "hunter2", "checkpointLocation": "/c", "window": "3"}
    schema = frame("topic string, payload string")
    writer: Any = MqttDataSource(options).streamWriter(schema, False)
    again = pickle.loads(pickle.dumps(writer))
    assert again._settings == writer._settings
    assert again._settings.address.secret() == b"hunter2"
    assert (again._settings.window, again._settings.checkpoint) == (3, "/c")
    assert "hunter2" not in repr(writer._settings)
    with pytest.raises(ValueError, match="option producer 'a:b' cannot be used"):
        MqttDataSource({"producer": "a:b"}).writer(schema, False)


@pytest.mark.parametrize("topic", [None, "", "a/+", "#", "a\0b"])
def test_a_row_that_is_no_message(topic: Any) -> None:
    with pytest.raises(ValueError, match="which nobody can publish to"):
        message_of({"topic": topic, "payload": b""})


def batch(*rows: tuple[Any, ...], names: str) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(list(each)) for each in columns], names.split())


def test_rows_with_a_place_are_sorted_and_others_left() -> None:
    names = "node epoch offset topic payload"
    rows = [("b", 1, 1, "t", "4"), ("a", 2, 10, "t", "3"), ("a", 2, 9, "t", "2"), ("a", 1, 11, "t", "1")]
    for order in (rows, rows[::-1]):
        batches = [batch(*order[:1], names=names), batch(*order[1:], names=names)]
        assert [each.payload for each in messages_of(batches)] == [b"1", b"2", b"3", b"4"]
    pairs = [batch(("t", "2"), ("t", "1"), names="topic payload"), batch(("t", "3"), names="topic payload")]
    assert [each.payload for each in messages_of(pairs)] == [b"2", b"1", b"3"]
    assert list(messages_of([])) == []


def test_every_column_of_a_message() -> None:
    row = {
        "topic": "t", "payload": "grüße", "qos": 2, "retain": True, "content_type": "text/plain",
        "payload_format": 1, "response_topic": "r", "correlation_data": b"\xff", "message_expiry": 7,
        "user_properties": [{"key": "a", "value": text} for text in ("1", None, "2")],
    }  # fmt: skip
    sent = message_of(row)
    assert (sent.payload, sent.qos, sent.retain) == ("grüße".encode(), 1, True)
    assert sent.properties == {
        "content_type": "text/plain", "payload_format_indicator": 1, "response_topic": "r",
        "correlation_data": b"\xff", "message_expiry_interval": 7,
        "user_property": [("a", "1"), ("a", "2")],
    }  # fmt: skip
    assert message_of({"topic": "t", "payload": b"", "user_properties": [("k", "v")]}).properties == {
        "user_property": [("k", "v")]
    }
    assert (message_of({"topic": "t", "payload": None, "qos": 0}).qos) == 0


def test_the_number_of_partitions_is_compared(tmp_path: Path) -> None:
    tries = Tries(f"file://{tmp_path}")
    tries.finish(0, 3)  # nothing failed
    tries.note(1, 3)
    with pytest.raises(RuntimeError, match="batch 1 was tried with 3 partitions and now sent with 2"):
        tries.finish(1, 2)
    tries.finish(1, 3)
    assert list(tmp_path.iterdir()) == []
    tries.note(2, 3)
    tries.finish(3, 2)  # another batch may have another number
    for elsewhere in ("", "s3a://bucket/checkpoint"):
        Tries(elsewhere).note(1, 3)
        Tries(elsewhere).finish(1, 2)


def test_a_task_that_is_repeated_publishes_nothing_twice(tmp_path: Path) -> None:
    with broker_with_dedup(tmp_path) as broker:
        subscribe(broker.port)
        settings = Settings(Address(port=broker.port))
        rows = [batch(*((f"t/{n}", str(n)) for n in range(100)), names="topic payload")]
        assert send(settings, "query", 4, rows) == send(settings, "query", 4, rows) == Sent(0, 100)
        assert copies(broker.port) == 100
        found = read_all(broker.port)
    assert [each.payload for each in found] == [b"%d" % n for n in range(100)]
    assert found[7].properties["user_property"] == [("producer", "query/0:4:7")]
