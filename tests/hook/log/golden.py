"""The golden log: what is in `tests/hook/golden_log`, and how it was made.

Run as a program it writes that folder anew, for a new version of the layout.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from broker.hook.log.line import EventRecord, MessageRecord, Publisher
from broker.hook.log.names import HOUR
from tests.hook.log.files import Gap, write_segments

GOLDEN = Path(__file__).parents[1] / "golden_log"
NODE, EPOCH = "golden-1", 1_700_000_000
AT = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC

SENSOR = Publisher("sensor-1", 1, 5, "alice")
OLD = Publisher("old", 2, 3)
ODD = 'odd/"quoted"\\/\n/\u2028/\U0001f600/\u00fc/\x7f'
EVERYTHING = {
    "payload_format_indicator": 1,
    "content_type": "application/json",
    "response_topic": "answers/1",
    "correlation_data": b"\x00\xff\x10",
    "user_property": [("a", "1"), ("a", "2"), ("b", 'quote " newline \n line separator \u2028')],
    "message_expiry_interval": 4_294_967_295,
}

MESSAGES: list[MessageRecord | Gap] = [
    MessageRecord(AT, "sensors/1/temperature", 0, SENSOR, b"21.5"),
    MessageRecord(
        AT + 1, "sensors/1/state", 4 | 2, SENSOR, b'{"on":true,"name":"\xc3\xbc"}', None, EVERYTHING
    ),
    MessageRecord(AT + 1_000_000, "empty", 8 | 1, OLD, b""),
    MessageRecord(
        AT + 1_000_001, 'odd/"quoted"\\/\n/\u2028/\U0001f600/\u00fc/\x7f', 0, OLD, bytes(range(256))
    ),
    MessageRecord(AT + 1_500_000, "cut", 4, SENSOR, b"first 13 byte", 5000),
    (AT + 2_000_000, None, 40, 0),
    MessageRecord(AT + 2_000_001, "after/the/gap", 4, SENSOR, b"1", mountpoint="tenant-7"),
    MessageRecord(AT + 2_000_002, "t" * 65535, 0, SENSOR, b"long topic"),
    MessageRecord(AT + 2_000_003, "of/the/program", 0, Publisher(), b"x"),
    MessageRecord(AT + HOUR, "next/hour", 4, SENSOR, b"2"),
    MessageRecord(AT + HOUR - 1, "clock/stepped/back", 4, SENSOR, b"3"),
]


def _event(n: int, name: str, who: Publisher, **fields: str | int | None) -> EventRecord:
    return EventRecord(AT + n, name, who, tuple((key.rstrip("_"), value) for key, value in fields.items()))


LOG, NO_NAME = Publisher(), Publisher("nobody", None, 5, "mallory")
EVENTS: list[EventRecord | Gap] = [
    _event(0, "log", LOG, st="opened"),
    _event(1, "connect", SENSOR, a="10.0.0.1:4711", l="tcp", ka=60, sei=3600, cs=0, sp=1, rc=0),
    _event(2, "session", SENSOR, st="resumed", pend=3),
    _event(3, "connect", NO_NAME, a="10.0.0.9:1", l="tcp", ka=0, sei=0, cs=1, sp=0, rc=0x86),
    _event(4, "subscribe", SENSOR, f="sensors/+/state", q=1, rc=1, nl=0, rap=1, rh=2, sid=7),
    _event(5, "subscribe", SENSOR, f="secret/#", rc=0x87, nl=0, rap=0, rh=0),
    _event(6, "unsubscribe", SENSOR, f="sensors/+/state", rc=0),
    _event(7, "delivered", OLD, mo=1, q=1, lat=250),
    _event(8, "acked", OLD, mo=1, q=1, lat=1900),
    _event(9, "dropped", OLD, mo=2, q=2, lat=12, why="queue_full"),
    (AT + 10, None, 5, 0),
    _event(11, "session", SENSOR, st="taken_over", pend=0),
    _event(12, "log", LOG, st="degraded", why="No space left on device"),
    _event(13, "log", LOG, st="resumed"),
    _event(14, "disconnect", SENSOR, rc=0, by="client", dur=1234, in_=5, out=2, bin=900, bout=120),
    _event(15, "session", SENSOR, st="expired", pend=0),
]


def write(root: Path) -> None:
    """The whole log: half of the messages compressed, events both ways."""
    write = partial(write_segments, root, node=NODE, epoch=EPOCH)
    write("messages", MESSAGES[:5])
    write("messages", MESSAGES[5:], first=5, gz=True)
    write("events", EVENTS[:9], gz=True)
    write("events", EVENTS[9:], first=9)


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write(GOLDEN)
