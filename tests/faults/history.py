"""What clients did and saw, in the order in which it happened: what `checker` judges.

One process writes it, so the order is real: what comes later in the list did not cause what comes
before. A client writes down what it sends before it sends it, and what arrives when it arrives.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Tag(NamedTuple):
    """Which message it is; it travels in the payload. Numbers count up for each publisher and topic."""

    publisher: str
    topic_name: str
    number: int

    def payload(self, size: int = 0) -> bytes:
        """The bytes that carry this tag, filled up to *size*."""
        return f"{self.publisher} {self.number} ".encode().ljust(size, b".")

    @classmethod
    def of(cls, topic_name: str, payload: bytes) -> Tag:
        publisher, number, _ = payload.decode().split(" ", 2)
        return cls(publisher, topic_name, int(number))


@dataclass(slots=True)
class Event:
    """Something about *client*."""

    client: str


@dataclass(slots=True)
class Connecting(Event):
    """CONNECT leaves. *expiry* is the Session Expiry Interval that is asked for, seconds."""

    clean_start: bool
    expiry: float
    at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Connected(Event):
    """CONNACK 0x00 came."""

    session_present: bool


@dataclass(slots=True)
class Leaving(Event):
    """DISCONNECT leaves; *expiry*: the Session Expiry Interval in it, None for none."""

    expiry: int | None = None


@dataclass(slots=True)
class Gone(Event):
    """The connection is over, whoever ended it."""

    at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Published(Event):
    """PUBLISH leaves. *clears*: it has no payload, and so deletes the retained message."""

    tag: Tag
    qos: int
    packet_id: int = 0  # 0: the client does not tell
    dup: bool = False
    retain: bool = False
    clears: bool = False


@dataclass(slots=True)
class Willed(Event):
    """A will is made, for the CONNECT that comes next; it may be published or not."""

    tag: Tag
    qos: int


@dataclass(slots=True)
class Acknowledged(Event):
    """PUBACK, PUBREC or PUBCOMP (*kind*) came; *tag* is None when nothing waited for it."""

    tag: Tag | None
    kind: str
    packet_id: int = 0
    code: int = 0


@dataclass(slots=True)
class Arrived(Event):
    """PUBLISH came. *again*: QoS 2, and its Packet Identifier says that the client has it already."""

    tag: Tag
    qos: int
    packet_id: int = 0
    dup: bool = False
    retain: bool = False
    again: bool = False


@dataclass(slots=True)
class Freed(Event):
    """PUBREL came: the Packet Identifier of a QoS 2 message means nothing any more."""

    packet_id: int


@dataclass(slots=True)
class Subscribing(Event):
    topic_filter: str


@dataclass(slots=True)
class Subscribed(Event):
    """SUBACK came, with a QoS."""

    topic_filter: str


@dataclass(slots=True)
class Unsubscribing(Event):
    topic_filter: str


@dataclass(slots=True)
class Unsubscribed(Event):
    """UNSUBACK came, with success."""

    topic_filter: str


@dataclass(slots=True)
class Looking(Event):
    """SUBSCRIBE leaves, to see what is retained under *topic_name*."""

    topic_name: str


@dataclass(slots=True)
class Found(Event):
    """What `Looking` found; None: nothing is retained."""

    topic_name: str
    tag: Tag | None


@dataclass(slots=True)
class Breach(Event):
    """The broker did what no broker may, whatever happened before."""

    text: str


@dataclass(slots=True)
class Started(Event):
    """The broker was started again and listens; *client* names it."""

    at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Killed(Event):
    """The broker was killed; *client* names it."""

    at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Drained(Event):
    """The end: every client was connected long enough that nothing more came."""


History = list[Event]
