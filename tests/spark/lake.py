"""One OUT of a test: bronze put in by batches, as `spark.ingest` does it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.bronze import Row, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Lake:
    def __init__(self, spark: SparkSession, out: Path, layout: str = "parquet") -> None:
        self.spark, self.out, self.layout = spark, out, layout
        self.batches = {"messages": 0, "events": 0}

    def put(self, *rows: Row) -> None:
        self.add("messages", rows)

    def add(self, kind: str, rows: Iterable[Row]) -> None:
        """One batch."""
        from spark.tables import Batch, open_table

        rows, end = list(rows), {}
        for row in sorted(rows, key=lambda row: (row["epoch"], row["offset"])):
            end[row["node"]] = {"e": row["epoch"], "o": row["offset"] + 1}
        batch = Batch("feedbeef-0000", self.batches[kind], end)
        self.batches[kind] += 1
        made = table(self.spark, kind, rows).coalesce(1)
        bronze = open_table(self.out, f"bronze/{kind}", self.layout)
        bronze.commit(bronze.stage(made, batch), batch, {"rows": len(rows)})
