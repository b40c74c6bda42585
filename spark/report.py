"""`python -m spark.report`: silver and bronze -> gold and its audit, as a table, JSON, or one HTML file.

Computes the hours whose files changed since the last time, then tells of the period from --since to --until,
in whole hours of UTC. Where nothing changed no JVM is started. Exit codes: 0 done, 1 the audit failed, 2
usage, 3 nothing to read. `--live` is a stream: rates by minute with a watermark of received_at, one JSON line
for each batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark.gold import live
from spark.gold.refresh import Gold
from spark.gold.summary import summary
from spark.page.document import document
from spark.page.text import text
from spark.session import DONE, LOSS, UNREADABLE, Ending, Refused, alone, build, carried_out, pairs

FORMATS = ("table", "json", "html")


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    return carried_out("spark.report", lambda: run(chosen))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="spark.report", description="Gold tables, their audit, and a report.")
    add = made.add_argument
    add("--out", type=Path, required=True, help="folder of the tables")
    add("--since", metavar="TIME", help="ISO 8601, UTC; whole hours")
    add("--until", metavar="TIME", help="to before this time")
    add("--format", choices=FORMATS, default="table", help="default: %(default)s")
    add("--output", type=Path, metavar="FILE", help="write the report here, not to stdout")
    add("--live", action="store_true", help="rates as they come, until SIGTERM; late rows are dropped")
    add("--once", action="store_true", help="with --live: what is there now, then end")
    add("--trigger", default="5 seconds", metavar="INTERVAL", help="of --live; default: %(default)r")
    add("--watermark", default="1 minute", metavar="INTERVAL", help="of --live; default: %(default)r")
    add("--master", help="default: local[2]")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark; may be given again")
    return made


def run(chosen: argparse.Namespace) -> int:
    since = None if chosen.since is None else hour_key("--since", chosen.since, up=False)
    until = None if chosen.until is None else hour_key("--until", chosen.until, up=True)
    if since is not None and until is not None and since >= until:
        raise Refused(f"--since {chosen.since} is not before --until {chosen.until}")
    if not (chosen.out / "bronze").is_dir():
        raise Refused(f"--out {chosen.out}: no tables there; spark.ingest makes them", UNREADABLE)
    if chosen.live:
        with alone(chosen.out / "_checkpoints" / "report-live"):
            session = build("spark.report", chosen.master, pairs(chosen.conf))
            times = {"trigger": None if chosen.once else chosen.trigger, "watermark": chosen.watermark}
            return live.run(session, chosen.out, Ending().listen(), **times)
    conf = pairs(chosen.conf)
    with alone(chosen.out / "_checkpoints" / "report"), ExitStack() as at_end:

        def built() -> SparkSession:
            made = build("spark.report", chosen.master, conf)
            at_end.callback(made.stop)
            return made

        return report(built, chosen.out, since, until, chosen.format, chosen.output)


def hour_key(flag: str, given: str, up: bool) -> str:
    """The hour of a time; *up*: the first that begins at it or after."""
    try:
        moment = datetime.fromisoformat(given)
    except ValueError as error:
        raise Refused(f"{flag} {given!r} is no time: write 2026-11-27T21:00") from error
    moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    whole = moment.replace(minute=0, second=0, microsecond=0)
    return (whole + timedelta(hours=1) if up and whole < moment else whole).strftime("%Y-%m-%dT%H")


def report(
    session: Callable[[], SparkSession],
    out: Path,
    since: str | None,
    until: str | None,
    format: str,
    output: Path | None,
) -> int:
    """*session* is asked for one where gold is not up to date."""
    began = time.monotonic()
    gold = Gold(session, out)
    gold.refresh(since, until)
    made = summary(gold, since, until)
    shown = written(made, format)
    if output is None:
        sys.stdout.write(shown)
    else:
        output.write_text(shown, "utf-8")
    spent = time.monotonic() - began
    state = "OK" if gold.ok else "FAILED"
    print(f"{len(gold.computed)} hours computed in {spent:.1f} s, audit {state}", file=sys.stderr, flush=True)
    return DONE if gold.ok else LOSS


def written(made: dict[str, Any], format: str) -> str:
    if format == "json":
        return json.dumps(made, indent=1) + "\n"
    return document(made) if format == "html" else text(made)


if __name__ == "__main__":
    sys.exit(main())
