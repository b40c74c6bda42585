"""rates, topics, clients and top: who says how much. Rows of bronze in, rows of gold out.

Hours are the unit of work: `*_hours` are computed from the rows of an hour, days from their hours. Every
aggregation is by groups of many keys first and merged after, so that one loud topic or client stays one row.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.gold.sketch import merged, quantiles, sketches

HOUR = ("date", "hour")
TOP = 20  # of each ranking
DEAD_AFTER = 10  # times the usual gap
MANY = 3  # messages before a topic has a usual gap
ENDS = ("ended", "expired", "taken_over")


def messages_of(bronze: DataFrame) -> DataFrame:
    """Without gap markers, which have no topic."""
    return bronze.filter(F.col("topic").isNotNull())


def client_minutes(bronze: DataFrame) -> DataFrame:
    """One row for each (minute, topic root, client): what rates and clients are added up from."""

    def count(condition: Column) -> Column:
        return F.sum(condition.cast("bigint"))

    minute = F.date_trunc("minute", "received_at").alias("minute")
    root = F.get("levels", F.lit(0)).alias("root")
    chosen = messages_of(bronze).select(*HOUR, minute, root, "client_id", "size", "qos", "retain", "dup")
    return chosen.groupBy(*HOUR, "minute", "root", "client_id").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        *[count(F.col("qos") == qos).alias(f"qos{qos}") for qos in range(3)],
        count(F.col("retain")).alias("retained"),
        count(F.col("dup")).alias("dup"),
    )


def rates(minutes: DataFrame) -> DataFrame:
    """From `client_minutes`: minute, topic root. `publishers` is off by some 2 %; its sketches merge.

    Sorted before the sketch is made, for its bytes depend on the order in which clients come.
    """
    keys = (*HOUR, "minute", "root")
    ordered = minutes.repartition(*keys).sortWithinPartitions(*keys, "client_id")
    sums = ("messages", "bytes", "qos0", "qos1", "qos2", "retained", "dup")
    made = ordered.groupBy(*keys).agg(
        *[F.sum(name).alias(name) for name in sums],
        F.hll_sketch_agg("client_id").alias("publishers_sketch"),
    )
    return made.withColumn("publishers", F.hll_sketch_estimate("publishers_sketch"))


def topic_hours(bronze: DataFrame) -> DataFrame:
    """One row for each (hour, topic). `largest_gap`, in seconds, is exact from one second up.

    Found between the messages of different seconds only: so a topic is sorted by its seconds, 3 600 in an
    hour at most, and not by its messages.
    """
    keys = (*HOUR, "topic")
    second = F.date_trunc("second", "received_at").alias("second")
    chosen = messages_of(bronze).select(*keys, second, "received_at", "size")
    seconds = chosen.groupBy(*keys, "second").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.min("received_at").alias("first"),
        F.max("received_at").alias("last"),
    )
    before = F.lag("last").over(Window.partitionBy(*keys).orderBy("second"))
    hours = (
        seconds.withColumn("gap", gap_seconds(before, F.col("first")))
        .groupBy(*keys)
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.max("gap").alias("largest_gap"),
        )
    )
    return hours.join(sketches(chosen, keys, F.col("size"), "size_sketch"), [*keys])


def gap_seconds(start: Column, end: Column) -> Column:
    return (F.unix_micros(end) - F.unix_micros(start)) / 1_000_000


def topics(hours: DataFrame) -> DataFrame:
    """From `topic_hours`: one row for each (day, topic).

    `dead`: silent at the end of the day's data for DEAD_AFTER times its mean gap.
    """
    keys = ("date", "topic")
    before = F.lag("last").over(Window.partitionBy(*keys).orderBy("hour"))
    days = (
        hours.withColumn("between", gap_seconds(before, F.col("first")))
        .groupBy(*keys)
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.max(F.greatest("largest_gap", "between")).alias("largest_gap"),
        )
    )
    span = gap_seconds(F.col("first"), F.col("last"))
    days = days.withColumn("mean_gap", F.when(F.col("messages") > 1, span / (F.col("messages") - 1)))
    days = days.join(merged(hours, keys, "size_sketch"), [*keys])
    newest = hours.groupBy("date").agg(F.max("last").alias("newest"))
    silent = gap_seconds(F.col("last"), F.col("newest"))
    dead = (F.col("messages") >= MANY) & (silent > DEAD_AFTER * F.col("mean_gap"))
    days = days.join(F.broadcast(newest), "date").withColumn("dead", dead)
    return days.select("*", *quantiles("size_", "size_sketch")).drop("newest")


def client_hours(minutes: DataFrame) -> DataFrame:
    """From `client_minutes`: one row for each (hour, client)."""
    sums = [F.sum(name).alias(name) for name in ("messages", "bytes")]
    return minutes.groupBy(*HOUR, "client_id").agg(*sums)


def clients(hours: DataFrame, events: DataFrame) -> DataFrame:
    """From `client_hours` and the events of whole days: one row for each (day, client).

    Seconds are those of the day: what began before it counts from its first event, what goes on at its end
    until its last. A connection is known by (node, epoch, connection).
    """
    keys = ["date", "client_id"]
    said = hours.groupBy(*keys).agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    known = events.filter(F.col("client_id").isNotNull() & F.col("event").isNotNull())
    accepted = (F.col("event") == "connect") & (F.coalesce("reason_code", F.lit(0)) == 0)
    counts = known.groupBy(*keys).agg(
        F.count_if(accepted).alias("connections"),
        F.count_if(F.col("ended_by") == "takeover").alias("takeovers"),
        F.count_if(F.col("ended_by") == "keepalive").alias("keep_alive_losses"),
    )
    made = said.join(counts, keys, "full")
    for more in (refusals(known), connection_seconds(known), session_seconds(known)):
        made = made.join(more, keys, "left")
    zero = {"messages": 0, "bytes": 0, "connections": 0, "takeovers": 0, "keep_alive_losses": 0}
    return made.fillna({**zero, "refused": 0, "connection_seconds": 0.0, "session_seconds": 0.0})


def refusals(events: DataFrame) -> DataFrame:
    """(day, client): how many CONNECTs were refused, and with which reason codes."""
    keys = ("date", "client_id")
    refused = events.filter((F.col("event") == "connect") & (F.col("reason_code") != 0))
    counts = refused.groupBy(*keys, "reason_code").count()
    pair = F.struct(F.col("reason_code"), F.col("count"))
    reasons = F.array_sort(F.collect_list(pair)).alias("refusals")
    return counts.groupBy(*keys).agg(F.sum("count").alias("refused"), reasons)


def connection_seconds(events: DataFrame) -> DataFrame:
    at, event = F.col("received_at"), F.col("event")
    each = events.filter(event.isin("connect", "disconnect") & F.col("connection").isNotNull())
    each = each.groupBy("date", "client_id", "node", "epoch", "connection").agg(
        F.min(F.when((event == "connect") & (F.coalesce("reason_code", F.lit(0)) == 0), at)).alias("start"),
        F.max(F.when(event == "disconnect", at)).alias("end"),
        F.count_if((event == "connect") & (F.col("reason_code") != 0)).alias("refused"),
    )
    days = events.groupBy("date").agg(F.min("received_at").alias("open"), F.max("received_at").alias("close"))
    each = each.filter("refused = 0").join(F.broadcast(days), "date")
    seconds = gap_seconds(F.coalesce("start", "open"), F.coalesce("end", "close"))
    return each.groupBy("date", "client_id").agg(F.round(F.sum(seconds), 3).alias("connection_seconds"))


def session_seconds(events: DataFrame) -> DataFrame:
    """From `created` to the next end; `resumed` begins one only where nothing is known before it."""
    at, state = F.col("received_at"), F.col("state")
    each = events.filter((F.col("event") == "session") & state.isin("created", "resumed", *ENDS))
    order = Window.partitionBy("date", "client_id").orderBy("received_at", "node", "epoch", "offset")
    each = each.withColumn("next", F.lead("received_at").over(order))
    each = each.withColumn("before", F.lag("state").over(order))
    days = events.groupBy("date").agg(F.min("received_at").alias("open"), F.max("received_at").alias("close"))
    each = each.join(F.broadcast(days), "date")
    alive = F.when(state.isin("created", "resumed"), gap_seconds(at, F.coalesce("next", "close")))
    unseen = F.col("before").isNull() & (state != "created")
    first = F.when(unseen, gap_seconds(F.col("open"), at)).otherwise(0.0)
    total = F.sum(F.coalesce(alive, F.lit(0.0)) + first)
    return each.groupBy("date", "client_id").agg(F.round(total, 3).alias("session_seconds"))


def top(topic_hours: DataFrame, client_hours: DataFrame) -> DataFrame:
    """One row for each (hour, by, measure, rank): the TOP loudest topics and clients."""
    by_topic = topic_hours.select(*HOUR, F.lit("topic").alias("by"), F.col("topic").alias("name"), *SUMS)
    name = F.col("client_id").alias("name")
    by_client = client_hours.select(*HOUR, F.lit("client").alias("by"), name, *SUMS)
    both = by_topic.unionByName(by_client)
    ranked = []
    for measure in SUMS:
        order = Window.partitionBy(*HOUR, "by").orderBy(F.col(measure).desc(), "name")
        rank = F.row_number().over(order)
        one = both.select("*", F.lit(measure).alias("measure"), rank.alias("rank"))
        ranked.append(one.filter(F.col("rank") <= TOP))
    return ranked[0].unionByName(ranked[1])


SUMS = ("messages", "bytes")
