"""What docs/spark.md tells people to type is typed here."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark.session import ROOT
from tests.faults.daemon import free_port
from tests.spark import jvm

DOCUMENT = (ROOT / "docs" / "spark.md").read_text()
WAIT = 500.0  # seconds for one command, on a machine that is busy with others


def block(heading: str, language: str) -> str:
    """The first fenced block of *language* below *heading*."""
    below = DOCUMENT.partition(f"## {heading}")[2]
    found = re.search(rf"^```{language}\n(.*?)^```", below, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def commands(text: str, port: int) -> list[str]:
    """One a line, for the shell: with this Python, and a port that nobody has."""
    python = f"{sys.executable} -m broker"
    text = text.replace("127.0.0.1:1883", f"127.0.0.1:{port}").replace("pybroker ", f"{python} ")
    return [line.replace("python -m spark", f"{sys.executable} -m spark") for line in text.splitlines()]


def wait_for(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < until, "the broker does not listen"
            time.sleep(0.05)


def output(command: str, folder: Path, environ: dict[str, str]) -> str:
    """A worker has ten seconds to connect to Spark, which a busy machine may not keep: once more, then."""
    for _ in range(3):
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environ, timeout=WAIT, capture_output=True, text=True
        )
        if "failed to connect back" not in done.stderr:
            break
    assert done.returncode == 0, (command, done.stderr[-2000:])
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_five_commands(tmp_path: Path) -> None:
    port = free_port()
    first, *rest = commands(block("A broker with a log and a report, in five commands", "sh"), port)
    assert len(rest) == 4 and first.endswith(" &")
    environ = os.environ | {"PYTHONPATH": str(ROOT), **jvm.environment()}
    broker = subprocess.Popen(
        first.removesuffix(" &").split(), cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL
    )
    said = []
    try:
        wait_for(port)
        for command in rest:
            said.append(output(command, tmp_path, environ))
    finally:
        broker.kill()
        broker.wait(10)
    published = json.loads(said[0])["published"]
    batches = [json.loads(line) for line in said[1].splitlines()]
    assert sum(each["rows"] for each in batches if each["kind"] == "messages") == published >= 2000
    page = (tmp_path / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")


def test_code_in_it_can_be_read() -> None:
    for code in re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL):
        compile(code, "docs/spark.md", "exec")


def test_the_options_of_the_sink_are_all_there() -> None:
    from spark.mqtt.options import OPTIONS

    table = "".join(re.findall(r"^\|[^|]*\|", DOCUMENT, re.MULTILINE))
    assert {*OPTIONS, "window", "producer", "clientId"} <= set(re.findall(r"`(\w+)`", table))
