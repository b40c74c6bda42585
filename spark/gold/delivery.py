"""latency, drops and late: what became of messages, and how old they were when they came."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.gold.sketch import quantiles, sketches
from spark.gold.traffic import HOUR, messages_of

UNKNOWN = "(unknown)"  # the root of a message that is not in the hours looked at
OVERFLOW = "log_overflow"  # the reason of what the log itself had to drop
WATERMARK = 600  # seconds: what comes later than that a streaming query would have dropped
EARLY = 1_000  # milliseconds: clocks differ; only more than that is the future


def latency(events: DataFrame) -> DataFrame:
    """One row for each (minute, qos): microseconds from the log's record of a message to its write or ack.

    `worst_*` is the delivery that took longest: its latency and the message's place in the log.
    """
    keys = (*HOUR, "minute", "qos")
    known = events.filter(F.col("event").isin("delivered", "acked") & F.col("latency").isNotNull())
    minute = F.date_trunc("minute", "received_at").alias("minute")
    columns = ("event", "latency", "node", "epoch", "message_offset")
    known = known.select(*HOUR, minute, F.coalesce("qos", F.lit(0)).alias("qos"), *columns)
    place = F.struct("latency", "node", "epoch", "message_offset")  # the largest struct: no ties
    made = known.groupBy(*keys).agg(
        F.count_if(F.col("event") == "delivered").alias("delivered"),
        F.count_if(F.col("event") == "acked").alias("acked"),
        F.max(place).alias("worst"),
    )
    for name in ("delivered", "acked"):
        of_name = known.filter(F.col("event") == name)
        made = made.join(sketches(of_name, keys, F.col("latency"), f"{name}_sketch"), [*keys], "left")
        made = made.select("*", *quantiles(f"{name}_", f"{name}_sketch"))
    worst = [F.col(f"worst.{name}").alias(f"worst_{name}") for name in ("latency", "node", "epoch")]
    return made.select("*", *worst, F.col("worst.message_offset").alias("worst_offset")).drop("worst")


def drops(events: DataFrame, bronze: DataFrame) -> DataFrame:
    """One row for each (hour, reason, topic root): deliveries that did not happen.

    *bronze* has the hours before, too: there the messages are. What the log dropped itself stands in its gap
    markers: `count` is known, nothing else.
    """
    keys = (*HOUR, "reason", "root")
    place = ("node", "epoch")
    dropped = events.filter(F.col("event") == "dropped")
    reason, of_message = F.coalesce("reason", F.lit(UNKNOWN)), F.col("message_offset")
    columns = (reason.alias("reason"), of_message.alias("offset"), "client_id")
    dropped = dropped.select(*HOUR, *place, *columns)
    root = F.get("levels", F.lit(0)).alias("root")
    said = messages_of(bronze).select(*place, "offset", root, F.col("size").alias("bytes"))
    joined = said.join(F.broadcast(dropped), [*place, "offset"], "right")
    made = joined.groupBy(*HOUR, "reason", F.coalesce("root", F.lit(UNKNOWN)).alias("root")).agg(
        F.count("*").alias("count"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.count_distinct("client_id").alias("clients"),
    )
    return made.select(*keys, "count", "bytes", "clients")


def overflow(*kinds: DataFrame) -> DataFrame:
    """The gap markers of bronze as rows of `drops`."""
    made = [each.filter(F.col("lost").isNotNull()).select(*HOUR, "lost") for each in kinds]
    both = made[0]
    for each in made[1:]:
        both = both.unionByName(each)
    zero = F.lit(0).cast("bigint")
    counts = both.groupBy(*HOUR).agg(F.sum("lost").alias("count"))
    reason, root = F.lit(OVERFLOW).alias("reason"), F.lit(UNKNOWN).alias("root")
    return counts.select(*HOUR, reason, root, "count", zero.alias("bytes"), zero.alias("clients"))


def late(tables: Iterable[tuple[str, DataFrame]]) -> DataFrame | None:
    """One row for each (hour, rule): received_at - event_time in milliseconds. None: no rule has times."""
    rows: DataFrame | None = None
    for rule, table in tables:
        one = table.filter(F.col("event_time").isNotNull()).select(
            *HOUR,
            F.lit(rule).alias("rule"),
            F.unix_millis("received_at").alias("at"),
            F.unix_millis("event_time").alias("then"),
        )
        rows = one if rows is None else rows.unionByName(one)
    if rows is None:
        return None
    keys = (*HOUR, "rule")
    lateness = F.col("at") - F.col("then")
    counts = rows.groupBy(*keys).agg(
        F.count("*").alias("messages"),
        F.count_if(lateness > WATERMARK * 1000).alias("over_watermark"),
        F.count_if(lateness < -EARLY).alias("future"),
        F.max(lateness).alias("latest_ms"),
    )
    share = F.round(F.col("over_watermark") / F.col("messages"), 6).alias("share_over_watermark")
    made = counts.join(sketches(rows, keys, lateness, "lateness_sketch"), [*keys])
    return made.select("*", share, *quantiles("lateness_", "lateness_sketch"))
