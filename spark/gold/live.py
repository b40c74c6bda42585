"""rates as a stream: one minute at a time, appended when the watermark has passed it.

What comes later than the watermark is dropped by Spark; the table `rates` of gold counts it and needs none.
So each batch tells how much was dropped: numRowsDroppedByWatermark, which counts (minute, root) groups.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark.schema import bronze_columns, ddl
from spark.session import DONE, UNREADABLE, Ending, Refused, announce, watch
from spark.tables import open_table


def run(session: SparkSession, out: Path, ending: Ending, trigger: str | None, watermark: str) -> int:
    """Until *ending*, or, without *trigger*, until all that is there was read."""
    if open_table(out, "bronze/messages").layout != "parquet":
        session.stop()
        raise Refused("--live follows the files of a parquet table; this one is a delta table")
    listener = Told()
    session.streams.addListener(listener)
    try:
        query = start(session, out, trigger, watermark)
        failed = watch([query], ending)
        for progress in query.recentProgress:
            listener.tell(dict(progress))
    finally:
        session.streams.removeListener(listener)
        session.stop()
    for text in failed:
        print(f"spark.report: {text}", file=sys.stderr)
    return UNREADABLE if failed else DONE


def start(session: SparkSession, out: Path, trigger: str | None, watermark: str) -> StreamingQuery:
    """Appends to OUT/gold/live_rates."""
    writer = rates(source(session, out), watermark).writeStream.format("parquet").outputMode("append")
    writer = writer.option("checkpointLocation", str(out / "_checkpoints" / "report-live"))
    writer = writer.option("path", str(out / "gold" / "live_rates")).queryName("live rates")
    return (writer.trigger(processingTime=trigger) if trigger else writer.trigger(availableNow=True)).start()


def source(session: SparkSession, out: Path) -> DataFrame:
    """The files of bronze as they come. Compacted ones have rows that were read before, and other names."""
    folder = out / "bronze" / "messages"
    reader = session.readStream.schema(ddl(bronze_columns("messages"))).option("basePath", str(folder))
    return reader.parquet(str(folder / "date=*" / "hour=*" / "batch=????????-*"))


def rates(rows: DataFrame, watermark: str) -> DataFrame:
    known = rows.filter(F.col("topic").isNotNull()).withWatermark("received_at", watermark)
    minute = F.window("received_at", "1 minute").alias("window")
    grouped = known.groupBy(minute, F.get("levels", F.lit(0)).alias("root"))
    sums = F.count("*").alias("messages"), F.sum("size").alias("bytes")
    return grouped.agg(*sums).select(F.col("window.start").alias("minute"), "root", "messages", "bytes")


class Told(StreamingQueryListener):
    """One JSON line for each batch, once."""

    def __init__(self) -> None:
        self.last = -1

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.tell(json.loads(event.progress.json))

    def tell(self, progress: dict[str, Any]) -> None:
        if progress["batchId"] <= self.last:
            return
        self.last = progress["batchId"]
        states = progress.get("stateOperators") or []
        dropped = sum(state["numRowsDroppedByWatermark"] for state in states)
        held = sum(state["numRowsTotal"] for state in states)
        rows = progress["numInputRows"]
        seconds = (progress.get("durationMs") or {}).get("triggerExecution", 0) / 1000
        said = {"batch": progress["batchId"], "rows": rows, "seconds": seconds}
        said["numRowsDroppedByWatermark"] = dropped
        said |= {"groups": held, "watermark": (progress.get("eventTime") or {}).get("watermark")}
        late = [f"{dropped} groups too late"] if dropped else []
        announce(said, f"{held:,} minutes held", *late)
