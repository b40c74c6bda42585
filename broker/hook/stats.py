"""Counters, and what `$SYS` says."""

from __future__ import annotations

from collections import Counter
from typing import Final

SYS: Final = "$SYS/broker/"


class Stats:
    """What one broker has counted since it started. Plain integers: written in the loop's thread only."""

    __slots__ = (
        "busy",
        "bytes_received",
        "bytes_sent",
        "connections",
        "connections_refused",
        "dropped",
        "drops",
        "feeding",
        "messages_received",
        "messages_sent",
        "publish_received",
        "publish_sent",
        "started_at",
    )

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.connections = 0  # accepted by a listener, ever
        self.connections_refused = 0  # refused with a reason, ever
        self.bytes_received = 0
        self.bytes_sent = 0
        self.messages_received = 0  # packets of every type
        self.messages_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.dropped: Counter[str] = Counter()  # by reason
        self.drops = 0  # all of them
        self.busy = 0  # clients whose packets wait for the next turn of the loop
        self.feeding = 0  # clients that are being sent many retained messages now

    def drop(self, reason: str) -> None:
        """A message was dropped for *reason*."""
        self.dropped[reason] += 1
        self.drops += 1


def sys_values(stats: Stats, gauges: dict[str, int | str], now: float) -> dict[str, str]:
    """Topic Name -> value of all of `$SYS/broker/...`; *gauges* are the sizes of this moment."""
    values: dict[str, int | str] = {
        "uptime": int(now - stats.started_at),
        "connections/total": stats.connections,
        "connections/refused": stats.connections_refused,
        "bytes/received": stats.bytes_received,
        "bytes/sent": stats.bytes_sent,
        "messages/received": stats.messages_received,
        "messages/sent": stats.messages_sent,
        "publish/messages/received": stats.publish_received,
        "publish/messages/sent": stats.publish_sent,
        "publish/messages/dropped": stats.drops,
        **{f"dropped/{reason}": count for reason, count in sorted(stats.dropped.items())},
        **gauges,
    }
    return {SYS + name: str(value) for name, value in values.items()}
