"""Sketches that merge: a histogram with logarithmic buckets, as an array of (bucket, count).

Why not Spark's KLL sketches: they throw coins. Two runs over the same 300 000 rows gave different bytes
(Spark 4.3), and a table that is computed again must be the same. A histogram has no luck in it, adds up in
any order, and is off by at most 1 % of the value: GAMMA is the ratio of neighbouring bucket borders.

Values are whole numbers (bytes, microseconds, milliseconds) and may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

GAMMA = 1.02
TYPE = "array<struct<bucket:int,count:bigint>>"


def bucket_of(value: Column) -> Column:
    """0 for 0, n for values in (GAMMA ** (n - 2), GAMMA ** (n - 1)], -n for as much below zero."""
    size = F.ceil(F.log(F.greatest(F.abs(value), F.lit(1))) / math.log(GAMMA) - 1e-9) + 1
    return F.when(value == 0, 0).when(value > 0, size).otherwise(-size).cast("int")


def middle(bucket: int) -> float:
    """The value that stands for all values of *bucket*: off by at most 1 %."""
    if bucket == 0:
        return 0.0
    size = 1.0 if abs(bucket) == 1 else 2 * GAMMA ** (abs(bucket) - 1) / (GAMMA + 1)
    return math.copysign(size, bucket)


def value_of(bucket: Column) -> Column:
    """`middle` as a column."""
    size = F.when(F.abs(bucket) == 1, 1.0).otherwise(F.pow(F.lit(GAMMA), F.abs(bucket) - 1) * 2 / (GAMMA + 1))
    return F.when(bucket == 0, 0.0).otherwise(F.signum(bucket) * size)


def sketches(rows: DataFrame, keys: Sequence[str], value: Column, name: str) -> DataFrame:
    """(*keys, name): one sketch of *value*, which is not null, for each key. Counts first, collects after."""
    counts = rows.select(*keys, bucket_of(value).alias("bucket")).groupBy(*keys, "bucket").count()
    return collected(counts, keys, name)


def merged(rows: DataFrame, keys: Sequence[str], name: str) -> DataFrame:
    """(*keys, name): the sketches of rows with the same key, added."""
    each = rows.select(*keys, F.explode(name).alias("e")).select(*keys, "e.bucket", "e.count")
    return collected(each.groupBy(*keys, "bucket").agg(F.sum("count").alias("count")), keys, name)


def collected(counts: DataFrame, keys: Sequence[str], name: str) -> DataFrame:
    pair = F.struct("bucket", "count")
    return counts.groupBy(*keys).agg(F.array_sort(F.collect_list(pair)).cast(TYPE).alias(name))


def quantile(sketch: Column, share: float) -> Column:
    """The value under which *share* of the values are; null for no sketch or an empty one."""
    total = F.aggregate(sketch, F.lit(0).cast("bigint"), lambda sum_, pair: sum_ + pair["count"])
    rank = F.greatest(F.ceil(total * share), F.lit(1))
    start = F.struct(F.lit(0).cast("bigint").alias("sum"), F.lit(None).cast("int").alias("bucket"))

    def step(at: Column, pair: Column) -> Column:
        seen = at["sum"] + pair["count"]
        here = F.coalesce(at["bucket"], F.when(seen >= rank, pair["bucket"]))
        return F.struct(seen.alias("sum"), here.alias("bucket"))

    return F.round(value_of(F.aggregate(sketch, start, step)["bucket"]), 3)


def quantiles(prefix: str, sketch: str) -> list[Column]:
    """`<prefix>p50`, `<prefix>p95`, `<prefix>p99` of the column *sketch*."""
    return [quantile(F.col(sketch), percent / 100).alias(f"{prefix}p{percent}") for percent in (50, 95, 99)]


def add(sketches: Sequence[Sequence[tuple[int, int]]]) -> dict[int, int]:
    """Sketches added, in plain Python, for the page: {bucket: count}."""
    total: dict[int, int] = {}
    for sketch in sketches:
        for bucket, count in sketch:
            total[bucket] = total.get(bucket, 0) + count
    return total


def quantile_of(sketch: dict[int, int], share: float) -> float | None:
    """As `quantile`, of what `add` made."""
    rank, seen = max(1, math.ceil(sum(sketch.values()) * share)), 0
    for bucket in sorted(sketch):
        seen += sketch[bucket]
        if seen >= rank:
            return middle(bucket)
    return None
