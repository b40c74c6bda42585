"""The pipeline from the broker's message log to tables: see README.md beside this file."""

import sys
from importlib.util import find_spec

JOBS = ("ingest", "decode", "report", "compact")


def _check(words: list[str]) -> None:
    """Who starts a job without what it needs hears what to install; *words* are those of the command."""
    job = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if job.removeprefix("spark.") in JOBS and any(find_spec(name) is None for name in ("pyspark", "pyarrow")):
        print(f"{job} needs PySpark and pyarrow: pip install 'pybroker[spark]'", file=sys.stderr)
        sys.exit(2)  # 1 would say that data are lost


_check(sys.orig_argv)
