"""What a Python worker of Spark is prepared with, once."""

from __future__ import annotations

import functools
import gc

from pyspark import TaskContext


def settle_in() -> None:
    """To be called in a task, after its imports; elsewhere it does nothing.

    A worker collects garbage after each task, and looks at all that pyspark and pyarrow have made when they
    were imported: 20 ms of CPU, as much as the rows of a small segment take. That is not garbage: it is left
    out from now on.
    """
    if TaskContext.get() is not None:
        keep_what_is_there()


@functools.cache
def keep_what_is_there() -> None:
    gc.freeze()
