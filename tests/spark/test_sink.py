"""The `mqtt` sink with Spark: rows become messages, each of them once, whatever fails in between."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions

from spark.live import register
from tests.faults.daemon import Restartable
from tests.spark.brokers import broker_with_dedup, copies, read_all, received, subscribe

ROWS = 1000  # of one batch; Spark gives a plain udf a hundred at a time
SENT = 100  # of a batch that fails, at least


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Small batches of Arrow, so that a task fails after it has sent something."""
    register(spark)
    size = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(size)
    spark.conf.set(size, "10")
    yield spark
    spark.conf.set(size, before)


def payload_of(flag: Path, at: int, port: int | None = None) -> Any:
    """The payload for a number. That of *at* fails while there is no file *flag*.

    With *port*, not before another task has sent something to the broker there.
    """
    least = at // ROWS * ROWS + 2 * SENT

    def payload(value: int) -> bytes:
        if value == at and not flag.exists():
            ends = time.monotonic() + 20
            while port is not None and received(port) < least and time.monotonic() < ends:
                time.sleep(0.1)
            raise RuntimeError("as the test wants it")
        return b"%d" % value

    return functions.udf(payload, "binary", useArrow=False)


def stream(
    session: SparkSession, flag: Path, at: int, partitions: int = 2, port: int | None = None
) -> DataFrame:
    """Numbered rows with a place in the log; batches of ROWS, and the same ones each time."""
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    df = source.option("numPartitions", partitions).load()
    return df.select(
        functions.lit("n").alias("node"),
        functions.lit(1).alias("epoch"),
        functions.col("value").alias("offset"),
        functions.concat(functions.lit("alarms/"), functions.col("value") % 3).alias("topic"),
        payload_of(flag, at, port)("value").alias("payload"),
    )


def run_batches(df: DataFrame, broker: Restartable, folder: Path, upto: int, **options: Any) -> None:
    """Until batch *upto* is done. Raises StreamingQueryException."""
    writer = df.writeStream.format("mqtt").option("port", broker.port).options(**options)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    done = threading.Event()
    try:
        while (query.lastProgress is None or query.lastProgress.batchId < upto) and not done.wait(0.1):
            if query.exception() is not None:
                raise query.exception()
            if not query.isActive:
                query.awaitTermination(1)
    finally:
        query.stop()


def counted(broker: Restartable) -> Counter[bytes]:
    return Counter(each.payload for each in read_all(broker.port))


def test_batch_write(session: SparkSession, tmp_path: Path) -> None:
    rows = [
        ("t/1", "text", 1, False, "text/plain", {"a": "b"}, 60),
        ("t/2", "kept", 0, True, None, None, None),
        ("t/3", None, 2, None, None, {"producer": "of another"}, None),
        ("grüße/🌡", "warm ☀", None, None, None, {}, None),
    ]
    schema = "topic string, payload string, qos int, retain boolean, content_type string, "
    schema += "user_properties map<string,string>, message_expiry bigint"
    df = session.createDataFrame(rows, schema).coalesce(1)
    with broker_with_dedup(tmp_path) as broker:
        subscribe(broker.port)
        df.write.format("mqtt").mode("append").option("port", broker.port).save()
        found = {each.topic_name: each for each in read_all(broker.port)}
    assert found.keys() == {"t/1", "t/3", "grüße/🌡"}, "QoS 0 is not kept for who is away"
    first = found["t/1"]
    assert (first.payload, first.retain, first.properties["content_type"]) == (b"text", False, "text/plain")
    assert ("a", "b") in first.properties["user_property"]
    assert 0 < first.properties["message_expiry_interval"] <= 60
    assert found["t/3"].payload == b""
    names = [name for name, _ in found["t/3"].properties["user_property"]]
    assert names == ["producer"], "only our own"
    assert found["grüße/🌡"].payload.decode() == "warm ☀"


def test_sink_replay(session: SparkSession, tmp_path: Path) -> None:
    """A task fails after it has sent; the query is started again: the broker has every message once."""
    flag = tmp_path / "flag"
    with broker_with_dedup(tmp_path) as broker:
        subscribe(broker.port)
        # In the second batch; not to be sorted.
        df = stream(session, flag, ROWS + 950, port=broker.port).drop("node")
        with pytest.raises(StreamingQueryException, match="as the test wants it"):
            run_batches(df, broker, tmp_path, 5, window=5)
        flag.touch()
        run_batches(df, broker, tmp_path, 2)
        assert copies(broker.port) > SENT
        found = counted(broker)
        assert set(found.values()) == {1}
        assert {b"%d" % n for n in range(3 * ROWS)} <= found.keys()


def test_the_broker_is_killed_meanwhile(session: SparkSession, tmp_path: Path) -> None:
    """SIGKILL of the broker in the middle of a batch, then both are started again."""
    with broker_with_dedup(tmp_path) as broker:
        subscribe(broker.port)
        df = stream(session, tmp_path, -1)
        killer = threading.Timer(4.0, broker.kill)
        killer.start()
        with pytest.raises(StreamingQueryException, match=r"broker at 127\.0\.0\.1|connection to"):
            run_batches(df, broker, tmp_path, 100_000, window=3)
        killer.join()
        broker.start()
        done = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
        run_batches(df, broker, tmp_path, done + 1)
        found = counted(broker)
        assert set(found.values()) == {1}
        assert {b"%d" % n for n in range(done * ROWS)} <= found.keys()


def test_another_number_of_partitions_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """Rows would be counted for others that were sent: the broker sees that they are not the same.

    Where the first try had sent nothing of a partition yet, there is nothing to compare: the commit sees it.
    """
    refused = "does not repeat what was sent|was tried with 2 partitions and now sent with 3"
    flag = tmp_path / "flag"
    with broker_with_dedup(tmp_path) as broker:
        subscribe(broker.port)
        with pytest.raises(StreamingQueryException, match="as the test wants it"):
            first = stream(session, flag, 950, partitions=2, port=broker.port)
            run_batches(first, broker, tmp_path, 1, window=5)
        flag.touch()
        with pytest.raises(StreamingQueryException, match=refused):
            run_batches(stream(session, flag, -1, partitions=3), broker, tmp_path, 1)
        # The way out: as another producer all of the batch is sent again.
        run_batches(stream(session, flag, -1, partitions=3), broker, tmp_path, 1, producer="again")
        found = counted(broker)
        assert {b"%d" % n for n in range(2 * ROWS)} <= found.keys(), "nothing is lost"


def test_a_negative_reason_code_fails_the_job(session: SparkSession, tmp_path: Path) -> None:
    df = session.createDataFrame([("$SYS/x", "1")], "topic string, payload string")
    with broker_with_dedup(tmp_path) as broker, pytest.raises(PySparkException) as caught:
        df.write.format("mqtt").mode("append").option("port", broker.port).save()
    assert "refused a message to '$SYS/x' with 0x90" in str(caught.value)


def test_secrets_stay_out_of_checkpoint_plan_and_errors(
    session: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2-and-more"
    options = {"username": "ada", "password": secret, "timeout": "5"}
    with broker_with_dedup(tmp_path, "protocol.anonymous=everywhere") as broker:
        df = stream(session, tmp_path, -1)
        writer = df.writeStream.format("mqtt").option("port", broker.port).options(**options)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        for _ in range(100):
            if query.lastProgress is not None or query.awaitTermination(0.2):
                break
        query.explain(True)
        said = [str(query.lastProgress), str(query.exception())]
        query.stop()
        broker.stop()
        with pytest.raises(StreamingQueryException) as caught:
            run_batches(df, broker, tmp_path, 100_000, **options)
        said += [str(caught.value), repr(caught.value)]
    out, err = capfd.readouterr()
    assert secret not in "".join([out, err, *said])
    assert "there is no broker at 127.0.0.1" in said[-2]
    for file in (tmp_path / "checkpoint").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file
