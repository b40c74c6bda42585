"""Runs of `spark.ingest` in the session of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark import ingest


class Ingest:
    """`run("--tail", ...)` gives the exit code; `batches` and `said` are what the last run printed."""

    def __init__(self, spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.spark, self.log, self.out, self.capsys = spark, root / "log", root / "out", capsys
        self.batches: list[dict[str, Any]] = []
        self.said = ""

    def run(self, *more: str, kind: str = "messages") -> int:
        where = ["--log", str(self.log), "--out", str(self.out), "--kind", kind]
        chosen = ingest.parser().parse_args([*where, "--once", *more])
        try:
            code = ingest.run(chosen, self.spark)
        except ingest.Refused as refused:
            code, self.said = refused.code, str(refused)
            return code
        finally:
            self.spark.sparkContext.setLogLevel("ERROR")
        printed = self.capsys.readouterr()
        self.said = printed.err
        self.batches = [json.loads(line) for line in printed.out.splitlines()]
        return code
