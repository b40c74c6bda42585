"""Who gets the messages of a Topic Name, as far as the fast lane can serve them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from broker.client import Client
from broker.hook.identity import IDLE
from broker.outbound import Outbound
from broker.packet.enums import Version
from broker.session.session import Session
from broker.topic.subscription import Subscription

TOGETHER: Final = 200_000  # QoS 1 packets that are numbered at a time, one for each member: about 6 ms


class Member:
    """A session, the connection that it had then, and what was collected for it of one read.

    One without a connection can only queue QoS 1: it has none of the other fields.
    """

    __slots__ = ("collects", "five", "link", "outbound", "parts", "queues", "session")

    outbound: Outbound[Any]  # the same as link, which may be None
    five: bool

    def __init__(self, session: Session, link: Client | None) -> None:
        self.session = session
        self.link = link
        if link is not None:
            self.outbound = link
            self.five = link.version is Version.MQTT_5
        self.parts: list[bytes | memoryview] = []  # QoS 0 packets
        self.collects = False  # it was found to be ready in this read
        self.queues = link is None  # QoS 1 waits in the session

    @property
    def ready(self) -> bool:
        """Whether a packet may be sent without asking anybody."""
        session, waiting = self.session, self.outbound.waiting
        if session.link is not self.link or session.extra.queued_qos_0:
            return False
        return not (waiting.blocked or waiting.corked)

    def hand_over(self) -> None:
        """The QoS 0 packets that were collected are to be sent; whoever collected them counts them."""
        parts = self.parts
        self.collects = False
        if parts:
            packets = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self.outbound.put(packets, 0)

    def room(self, size: int) -> int:
        """How many QoS 1 messages, *size* bytes in all, it can be sent, or queue."""
        session = self.session
        inflight, terms, state = session.inflight, session.terms, session.state
        if session.link is not self.link or (state is not None and not state.takes_runs):
            return 0
        self.queues = self.link is None or len(session.queue) > 0 or len(inflight.resend) > 0
        if self.queues:
            return session.room(size)
        if inflight.blank:
            inflight = session.table()
        if self.outbound.waiting is not IDLE and (not self.ready or self.outbound.waiting.gate):
            return 0
        room = (terms.maximum_queued_bytes - session.bytes - size) // (terms.overhead or 1)
        slots, unused = inflight.window - inflight.used, inflight.count_unused()
        room = room if room < slots else slots  # `min` takes 150 ns, and this is asked for each read
        return room if room < unused else unused


class Audience:
    """Who gets the messages of some topics that come from a 5.0 client, or from another, in QoS 0.

    *same* take packets as they came, *rewritten* in the form of the other version.
    """

    __slots__ = ("members", "read", "rewritten", "same", "size")

    def __init__(self, members: Iterable[Member], five: bool) -> None:
        self.members = tuple(members)
        self.size = len(self.members)
        self.same = tuple(member.parts.append for member in self.members if member.five == five)
        self.rewritten = tuple(member.parts.append for member in self.members if member.five != five)
        self.read = 0  # the last read in which all of them were found to be ready


class Audience1:
    """The same for QoS 1, and what was collected for it of one read. Or for QoS 2.

    *numbered* get QoS 1 or 2, of these *exact* QoS 2, *lowered* QoS 0. *alone*: no member belongs to another
    audience, so that it does not matter which of them is served first.
    """

    __slots__ = (
        "alone", "exact", "heads", "lowered", "members", "numbered", "opened", "queued", "room", "stored",
        "tails",
    )  # fmt: skip

    def __init__(self, members: Iterable[tuple[Member, int]], alone: bool = True, qos: int = 1) -> None:
        pairs = tuple(members)
        self.members = tuple(member for member, _ in pairs)
        self.numbered = tuple(member for member, granted in pairs if granted)
        self.exact = frozenset(member for member, granted in pairs if granted == qos == 2)
        self.lowered = tuple(member for member, granted in pairs if not granted)
        self.alone = alone
        self.heads: list[bytes] = []  # of packets, up to the identifier
        self.tails: list[bytes] = []  # what is behind it
        self.room = 0  # for more of them
        self.opened = False
        self.queued = 0  # members who queue them
        self.stored = False  # a store is told

    def opens(self, size: int, free: int, overhead: int) -> bool:
        """Whether packets of a read, *size* bytes at most, may be collected now.

        *free* bytes are left in the byte budget, and each message takes *overhead* besides its own.
        """
        for member in self.lowered:
            if not member.ready:
                return False
        room = size
        if self.numbered:
            count, queued, stored = len(self.numbered), 0, False
            room, most = (free // count - size) // (overhead or 1), TOGETHER // count or 1
            room = room if room < most else most
            for member in self.numbered:
                fits = member.room(size)
                room = room if room < fits else fits
                queued += member.queues
                stored = stored or member.session.state is not None
            self.queued = queued
            self.stored = stored
        self.room = room
        return room > 0


def find_links(direct: Iterable[Subscription], qos: int) -> list[tuple[Session, Client | None, int]] | None:
    """Who they are, with the QoS of each; None: for one of them each message of *qos* needs a decision."""
    found: list[tuple[Session, Client | None, int]] = []
    for subscription in direct:
        subscriber, options = subscription.subscriber, subscription.options
        if not isinstance(subscriber, Session) or options.identifiers or options.no_local:
            return None
        link = subscriber.link
        if isinstance(link, Client):
            if link.careful:
                return None
            found.append((subscriber, link, options.qos))
        elif link is None and qos == 1 and options.qos:
            found.append((subscriber, None, options.qos))
        else:
            return None
    return found
