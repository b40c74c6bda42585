"""The daemon's log lines, as text for a person or as JSON for a machine; both one line a record."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

# What logging itself keeps in a record; everything else came in through `extra=`.
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# A peer chooses its ClientID and its topics: it must not be able to begin a line of ours.
ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO broker.client message`; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(ESCAPES)
        lines = [f"{timestamp(record)} {record.levelname} {record.name} {message}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        if record.stack_info:
            lines.append(record.stack_info)
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, the extras, and exception with a traceback.

    An extra cannot replace one of these; a value that JSON does not know is written as its text.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        extras = {key: value for key, value in vars(record).items() if key not in OWN}
        return json.dumps(line | extras | line, default=str, skipkeys=True)


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def timestamp(record: logging.LogRecord) -> str:
    """ISO 8601 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def configure(level: str, form: str) -> None:
    """Send all logging of this process to standard error. For programs, not for libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[form]())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
