"""`python -m spark.decode` as a program: exit codes, messages, and a kill between its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.tools.logfiles import write_log
from spark.tools.samples import Options, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*arguments: object, crash: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    environment = {**os.environ, "PYBROKER_CRASH": crash}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--trigger", "now and then"], 2, "--trigger 'now and then' is no interval"),
        (["--max-records", "0"], 2, "--max-records wants"),
        (["--schemas", "nowhere.toml"], 3, "nowhere.toml"),
        ([], 3, "there is no such folder"),
    ],
)
def test_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    from spark.decode import main

    assert main(["--out", str(tmp_path / "out"), *arguments]) == code
    assert message in capsys.readouterr().err


def test_rules_that_spark_cannot_use(spark: SparkSession) -> None:
    from spark.decode import check
    from spark.silver.rules import RulesError, rules_of

    rule = {"name": "r", "filter": "#", "format": "json"}
    with pytest.raises(RulesError, match="rule r"):
        check(spark, rules_of({"rule": [{**rule, "schema": "a INTT"}]}))
    with pytest.raises(RulesError, match="rule r"):
        check(spark, rules_of({"rule": [{**rule, "event_time": {"path": "a", "zone": "Nowhere/Town"}}]}))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_decode_kill9(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """Killed after its wide tables, then after points: every payload is in silver or quarantine, once."""
    from spark.silver.tables import PAYLOADS, payloads_table, read_wide, rules_in

    log, out = tmp_path / "log", tmp_path / "out"
    written = write_log(records(Options(messages=600, devices=20, changes_at=300)), log, limit=200)
    ingest = ["spark.ingest", "--log", log, "--out", out, "--kind", "messages", "--table", layout, "--once"]
    assert run(*ingest, "--max-records", 300).returncode == 0
    decode = ["spark.decode", "--out", out, "--table", layout, "--once", "--max-records", 300]
    for crash in ("after wide", "after points"):
        assert run(*decode, crash=crash).returncode == -9
    done = run(*decode)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(json.loads(line)["batch"] > 0 for line in done.stdout.splitlines())
    places = []
    for rule in rules_in(out):
        wide = read_wide(spark, out, rule)
        assert wide is not None
        places += [row.offset for row in wide.select("offset").collect()]
    places += [row.offset for row in payloads_table(out).read(spark, PAYLOADS).select("offset").collect()]
    assert sorted(places) == list(range(written["messages"]))
