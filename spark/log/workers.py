"""What Python workers of Spark are prepared with, and told by the driver."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING

from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settle_in() -> None:
    """To be called in a task; elsewhere it does nothing.

    A worker collects garbage after each task, and looks at all that pyspark and pyarrow have made when they
    were imported: 20 ms of CPU, as much as the rows of a small segment take. That is not garbage: it is left
    out from now on.
    """
    if TaskContext.get() is not None:
        keep_what_is_there()


@functools.cache
def keep_what_is_there() -> None:
    gc.freeze()


INGESTED_AT = "pybroker.ingested_at"  # a local property of jobs
NOTHING = "nothing"


def tell_workers(session: SparkSession, ingested_at: int | None) -> None:
    """For the jobs that this thread starts over `mqttlog-files`: see `spark.log.files.written`."""
    session.sparkContext.setLocalProperty(INGESTED_AT, NOTHING if ingested_at is None else str(ingested_at))


def ingested_at() -> int | None:
    """In a task, what `tell_workers` told. Raises RuntimeError where nobody did."""
    context = TaskContext.get()
    said = context.getLocalProperty(INGESTED_AT) if context else None
    if said is None:
        raise RuntimeError("mqttlog-files is read by spark.ingest alone: nobody said what to write")
    return None if said == NOTHING else int(said)
