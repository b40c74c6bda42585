"""The fast lane's door for messages to be retained: from the bytes of a PUBLISH to the store."""

from __future__ import annotations

from typing import Final

from broker.core import Core
from broker.packet.message import Plain
from broker.packet.wire import varint_bytes

PUBLISH_RETAINED: Final = 0x31  # first byte of QoS 0 with RETAIN
STORED: Final = 10  # one that is stored costs about as much as so many slices that are handed out


class Retaining:
    """What is to be retained of one read."""

    __slots__ = ("_core", "_longest", "_most_slashes", "found", "open")

    def __init__(self, core: Core, longest: int) -> None:
        """A Topic Name of more than *longest* bytes is not for us."""
        limits, hooks = core.config.limits, core.hooks
        self._core = core
        self._longest = min(longest, limits.maximum_topic_bytes)
        self._most_slashes = limits.maximum_topic_levels - 1
        self.open = limits.retain_available and not hooks.keeps_retained
        self.found: list[Plain] = []

    def room(self, size: int) -> int:
        """How many messages of *size* bytes together may be stored without asking about each."""
        return self._core.retained.room(size) if self.open else 0

    def name(self, raw: bytes) -> str:
        """The Topic Name that *raw* is, if there is nothing to be asked about it; else ""."""
        if not raw.isascii() or not 0 < len(raw) <= self._longest:
            return ""
        name, most = raw.decode(), self._most_slashes
        if not name.isprintable() or "+" in name or "#" in name or name[0] == "$":
            return ""
        return name if len(name) <= most or name.count("/") <= most else ""

    def store(self) -> None:
        """All that was found is retained from now on."""
        self._core.retained.put_plain(self.found)
        self.found = []


def plain_packet(topic: bytes, payload: bytes) -> bytes:
    """The PUBLISH of a retained message as 3.x clients are sent it; *topic* has its length."""
    return b"".join((b"\x31", varint_bytes(len(topic) + len(payload)), topic, payload))
