"""`python -m spark.decode` as a program: exit codes, messages, and a kill between its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import jvm
from tests.spark.bronze import said
from tests.spark.lake import Lake

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
    from spark.session import Refused
    from spark.silver.rules import rules_of

    rule = {"name": "r", "filter": "#", "format": "json"}
    with pytest.raises(Refused, match="rule r"):
        check(spark, rules_of({"rule": [{**rule, "schema": "a INTT"}]}))
    with pytest.raises(Refused, match="rule r"):
        check(spark, rules_of({"rule": [{**rule, "event_time": {"path": "a", "zone": "Nowhere/Town"}}]}))


RULES = """
[[rule]]
name = "objects"
filter = "o/#"
format = "json"

[[rule]]
name = "numbers"
filter = "n/#"
format = "number"
"""


@pytest.mark.slow
def test_decode_kill9(spark: SparkSession, tmp_path: Path) -> None:
    """Killed after its wide tables, then after points: every payload is in silver or quarantine, once."""
    from spark.silver.tables import PAYLOADS, payloads_table, read_wide, rules_in

    lake, rules = Lake(spark, tmp_path / "out"), tmp_path / "rules.toml"
    rules.write_text(RULES)
    payloads = ['{"a":1}', "1.5", '{"a":"x"}', "{", "2"]
    rows = [said(n, f"{'on'[n % 2]}/t", payloads[n % 5]) for n in range(40)]
    for part in (rows[:20], rows[20:]):
        lake.put(*part)
    decode = ["spark.decode", "--out", lake.out, "--schemas", rules, "--once", "--max-records", 20]
    decode += ["--conf", f"spark.driver.extraJavaOptions={jvm.options()}"]
    for crash in ("after wide", "after points"):
        assert run(*decode, crash=crash).returncode == -9
    done = run(*decode)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [json.loads(line)["batch"] for line in done.stdout.splitlines()] == [1]
    places = []
    for rule in rules_in(lake.out):
        wide = read_wide(spark, lake.out, rule)
        assert wide is not None
        places += [row.offset for row in wide.select("offset").collect()]
    places += [row.offset for row in payloads_table(lake.out).read(spark, PAYLOADS).collect()]
    assert sorted(places) == list(range(len(rows)))
