"""Log lines of the daemon."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import pytest

from broker.__main__ import FORMATTERS, configure


def record(message: str, *arguments: Any, **extra: Any) -> logging.LogRecord:
    made = logging.getLogger("broker.client").makeRecord(
        "broker.client", logging.WARNING, "client.py", 1, message, arguments, None, extra=extra
    )
    made.created = 1769860800.0257
    return made


def failure() -> logging.LogRecord:
    made = record("failed")
    try:
        raise ValueError("inner")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_text_is_one_line() -> None:
    line = FORMATTERS["text"]().format(record("%s connected", "c1", client_id="c1"))
    assert line == "2026-01-31T12:00:00.025Z WARNING broker.client c1 connected"


def test_json_is_one_object_with_the_extras() -> None:
    line = FORMATTERS["json"]().format(record("%s connected", "c1", client_id="c1", keep_alive=60, peer=int))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-31T12:00:00.025Z",
        "level": "warning",
        "logger": "broker.client",
        "message": "c1 connected",
        "client_id": "c1",
        "keep_alive": 60,
        "peer": "<class 'int'>",
    }


def test_an_extra_does_not_replace_what_every_line_has() -> None:
    line = json.loads(FORMATTERS["json"]().format(record("text", level="x", time="x", logger="x")))
    assert (line["level"], line["logger"], line["time"][:4]) == ("warning", "broker.client", "2026")


@pytest.mark.parametrize("client_id", ["a\nb", "a\x1b[2Kb", "a\x85b", "a\u2028b", "a\ud800b", "a\0b"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_peer_cannot_begin_a_line(form: str, client_id: str) -> None:
    line = FORMATTERS[form]().format(record("connected: %s", client_id, client_id=client_id))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert line.encode("utf-8", "backslashreplace")


def test_a_traceback_follows_text_and_is_inside_json() -> None:
    first, *rest = FORMATTERS["text"]().format(failure()).splitlines()
    assert first.endswith("failed")
    assert rest[0].startswith("Traceback") and rest[-1] == "ValueError: inner"
    line = json.loads(FORMATTERS["json"]().format(failure()))
    assert line["exception"].endswith("ValueError: inner")


@pytest.mark.parametrize(("level", "shown"), [("info", 2), ("warning", 1), ("error", 0)])
def test_configure_sends_the_level_and_above_to_standard_error(
    capsys: pytest.CaptureFixture[str], level: str, shown: int
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        root.handlers.clear()  # force=True would close those of pytest
        configure(level, "text")
        logging.getLogger("broker").info("one")
        logging.getLogger("asyncio").warning("two")
    finally:
        root.handlers[:], level_before = before
        root.setLevel(level_before)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(re.findall(r"^20\S+Z (INFO|WARNING) ", captured.err, re.MULTILINE)) == shown
