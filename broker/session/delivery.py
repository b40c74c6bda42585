"""Messages on their way to one session, or from one: singly, and in runs of the fast lane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any, ClassVar, Final

from broker.packet.enums import PacketType, Version
from broker.packet.message import Message, bounds, renumber, renumber_each, rewrite, text_size, topic_size
from broker.packet.packets import Publish
from broker.packet.reader import PacketReader

SHORTEST_RUN: Final = 8  # messages of a queue that are sent in one piece
LONGEST_RUN: Final = 512
RUN_BYTES: Final = 128 * 1024  # of the byte budget that such a piece takes, about


class State(IntEnum):
    """What an outbound message waits for."""

    QUEUED = 0
    WAIT_PUBACK = 1
    WAIT_PUBREC = 2
    WAIT_PUBCOMP = 3
    DONE = 4


WAIT_PUBACK: Final = State.WAIT_PUBACK  # read for each message
WAIT_PUBREC: Final = State.WAIT_PUBREC
DONE: Final = State.DONE
# Every legal step; all else is a ProtocolError. A PUBACK or PUBREC of 0x80 or more ends it at once.
NEXT: Final = {
    (State.WAIT_PUBACK, PacketType.PUBACK): State.DONE,  # QoS 1 [4.3.2]
    (State.WAIT_PUBREC, PacketType.PUBREC): State.WAIT_PUBCOMP,  # QoS 2 [4.3.3]: we answer PUBREL
    (State.WAIT_PUBCOMP, PacketType.PUBREC): State.WAIT_PUBCOMP,  # PUBREC again: PUBREL again
    (State.WAIT_PUBCOMP, PacketType.PUBCOMP): State.DONE,
}


@dataclass(slots=True, eq=False, init=False)
class Delivery:
    """One QoS 1 or 2 message on its way to one session.

    *share* is the full filter of the shared subscription that chose this session, or empty.
    *counted* says that it holds a slot of the current connection's Receive Maximum, *requested* that
    it is a retained message which a SUBSCRIBE asked for: then *retain* holds for every version.
    *record*, *row* and *batch* are what a durable store knows it by; the batch is that of its last change.
    """

    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    share: str
    packet_id: int
    state: State
    counted: bool
    requested: bool
    record: Any
    row: int
    batch: int
    number: int  # of all that its session was ever sent

    def __init__(  # by hand, as in Publish
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        share: str = "",
        packet_id: int = 0,
        state: State = State.QUEUED,
        counted: bool = False,
        requested: bool = False,
        number: int = 0,
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.share = share
        self.packet_id = packet_id
        self.state = state
        self.counted = counted
        self.requested = requested
        self.record = None
        self.row = 0
        self.batch = 0
        self.number = number

    @property
    def plain(self) -> bool:
        """Whether a SentRun can say all there is to know of it."""
        more = self.retain or self.identifiers or self.share or self.record
        return self.qos == 1 and not more and self.message.expires_at is None

    def revoke(self) -> None:
        """The store has refused its message: it is not delivered, unless it was sent already."""
        if self.record is not None:
            self.record.session.revoke(self)


class SentRun:
    """Messages that the fast lane sent together: their PUBLISH packets, some acknowledged already.

    Those that are left have the identifiers from *first* on and take *cost* of the byte budget. *part* is
    what a durable store knows them by, or None. Going through one gives it and the runs that were sent after
    it: a deque of them would take 760 bytes, and most sessions have one run at a time.
    """

    __slots__ = (
        *("client_id", "cost", "count", "done", "first", "five", "number", "packets", "part", "sent_at"),
        "next",
    )

    def __init__(
        self, first: int, count: int, packets: bytes, cost: int, client_id: str, five: bool, sent_at: float
    ) -> None:
        self.first = first
        self.count = count
        self.done = 0  # packets at the beginning that were acknowledged
        self.packets = packets
        self.cost = cost
        self.client_id = client_id
        self.five = five
        self.sent_at = sent_at  # seconds, when Message Expiry Interval began
        self.number = 0  # of the first, as in Delivery
        self.part: Any = None
        self.next: SentRun | None = None

    def __iter__(self) -> Iterator[SentRun]:
        run: SentRun | None = self
        while run is not None:
            yield run
            run = run.next

    def shorten(self, count: int) -> int:
        """The first *count* messages, fewer than there are, leave it; gives what they took of the budget."""
        given = self.cost * count // self.count
        self.first += count
        self.number += count
        self.count -= count
        self.done += count
        self.cost -= given
        return given

    def split(self, count: int) -> SentRun:
        """The first *count* messages, fewer than there are, as a run of their own."""
        taken = SentRun(self.first, count, self.packets, 0, self.client_id, self.five, self.sent_at)
        taken.done, taken.number = self.done, self.number
        taken.cost = self.shorten(count)
        return taken

    def deliveries(self, state: State = WAIT_PUBACK) -> Iterator[Delivery]:
        """Those that are left, as the readable lane knows them."""
        sent = islice(read_packets(self.packets, self.five), self.done, self.done + self.count)
        for number, packet in enumerate(sent, self.number):
            qos, properties = packet.qos, packet.properties
            message = Message(
                packet.topic_name, packet.payload, qos, properties=properties, client_id=self.client_id
            )
            interval = properties.get("message_expiry_interval")
            message.expires_at = None if interval is None else self.sent_at + interval
            delivery = Delivery(message, qos, False, packet_id=packet.packet_id, counted=True, number=number)
            delivery.state = state
            yield delivery


class ExactRuns:
    """QoS 2 messages that the fast lane sent, in runs and in the order of sending.

    What *received* begins with was received, as PUBREC said, and waits for PUBCOMP; *sent* waits for PUBREC.
    """

    __slots__ = ("_last_received", "_last_sent", "received", "sent")

    def __init__(self) -> None:
        self.sent: SentRun | None = None
        self._last_sent: SentRun | None = None
        self.received: SentRun | None = None
        self._last_received: SentRun | None = None

    def __iter__(self) -> Iterator[SentRun]:
        yield from self.received or ()
        yield from self.sent or ()

    def add(self, run: SentRun) -> None:
        """*run* was sent now."""
        if self.sent is None or self._last_sent is None:
            self.sent = run
        else:
            self._last_sent.next = run
        self._last_sent = run

    def receive(self, count: int) -> None:
        """PUBREC for the first *count* messages of the oldest run in `sent`."""
        run = self.sent
        assert run is not None
        if count < run.count:
            run = run.split(count)
        else:
            self.sent, run.next = run.next, None
        if self.received is None or self._last_received is None:
            self.received = run
        else:
            self._last_received.next = run
        self._last_received = run

    def complete(self, count: int) -> int:
        """PUBCOMP for the first *count* of the oldest run in `received`; gives what they took."""
        run = self.received
        assert run is not None
        if count < run.count:
            return run.shorten(count)
        self.received = run.next
        return run.cost

    def deliveries(self) -> Iterator[Delivery]:
        """All of them, as the readable lane knows them."""
        for run in self.received or ():
            yield from run.deliveries(State.WAIT_PUBCOMP)
        for run in self.sent or ():
            yield from run.deliveries(State.WAIT_PUBREC)


def read_packets(packets: bytes, five: bool) -> Iterator[Publish]:
    """PUBLISH packets of ours, one by one."""
    reader = PacketReader(strict=False, from_client=False)
    reader.version = Version.MQTT_5 if five else Version.MQTT_3_1_1
    return (packet for packet in reader.feed(packets) if isinstance(packet, Publish))


class QueuedRun:
    """QoS 1 messages that wait together, as the PUBLISH packets that one publisher sent: QoS 2 see HeldRun.

    None has a property, an expiry or a subscription option. Each takes *overhead* of the byte budget besides
    its own size; *cost* is all of that. *size* is that of each packet if all are equal but for payload and
    identifier, which stands at *offset* then; else 0. *part* is what a durable store knows them by, or None.
    """

    __slots__ = (
        "_at", "client_id", "cost", "count", "five", "offset", "overhead", "packets", "part", "size",
    )  # fmt: skip

    # What a Delivery says of itself.
    qos: ClassVar[int] = 1
    share: ClassVar[str] = ""
    plain: ClassVar[bool] = False

    def __init__(
        self,
        packets: bytes,
        count: int,
        five: bool,
        client_id: str,
        cost: int,
        overhead: int,
        size: int = 0,
        offset: int = 0,
    ) -> None:
        self.packets = packets
        self._at = 0  # where the first of them begins
        self.count = count
        self.five = five
        self.client_id = client_id
        self.cost = cost
        self.overhead = overhead
        self.size = size
        self.offset = offset
        self.part: Any = None

    def extend(self, other: QueuedRun) -> bool:
        """Take *other*, which came right behind, in; False: it is not like this one, or it is too much."""
        mine = (self.five, self.client_id, self.size, self.offset)
        if mine != (other.five, other.client_id, other.size, other.offset) or self.part or other.part:
            return False
        count, cost = self.count + other.count, self.cost + other.cost
        if count > LONGEST_RUN or cost > RUN_BYTES or (self.size and cost * self.count != self.cost * count):
            return False
        self.packets = self.packets[self._at :] + other.packets
        self._at = 0
        self.count = count
        self.cost = cost
        return True

    def take(self, count: int) -> QueuedRun:
        """The first *count* messages, fewer than there are, which leave this run."""
        if self.size:
            end, cost = self._at + count * self.size, self.cost // self.count * count
        else:
            end, cost = self._measure(count)
        taken = QueuedRun(
            self.packets[self._at : end], count, self.five, self.client_id, cost, self.overhead,
            self.size, self.offset,
        )  # fmt: skip
        self._at = end
        self.count -= count
        self.cost -= cost
        if self.part is not None:
            taken.part = self.part
            self.part = taken.part.split(count)
        return taken

    def _measure(self, count: int) -> tuple[int, int]:
        """Where the first *count* packets end, and what they cost."""
        packets, end, cost = self.packets, self._at, count * (self.overhead - self.five)
        for _ in range(count):
            start, end = bounds(packets, end)
            topic_end = start + 2 + (packets[start] << 8 | packets[start + 1])
            cost += text_size(packets[start + 2 : topic_end].decode()) + end - topic_end - 2
        return end, cost

    def numbered(self, five: bool, first: int) -> bytes:
        """The packets for a 5.0 client or another, with the identifiers from *first* on."""
        packets = self.packets[self._at :] if self._at else self.packets
        if self.size:
            packets = renumber(packets, self.size, self.offset, first)
        else:
            packets = renumber_each(packets, first)
        return packets if five == self.five else rewrite(packets, self.five, 1, five, 1)

    def deliveries(self) -> Iterator[Delivery]:
        """The messages as the readable lane queues them."""
        for packet in read_packets(self.packets[self._at :], self.five):
            message = Message(packet.topic_name, packet.payload, 1, client_id=self.client_id)
            yield Delivery(message, 1, False)


class HeldRun:
    """QoS 2 messages that came together and are held until their PUBRELs, which are expected as *pubrels*.

    In order: *heads* are their PUBLISH packets up to the identifier, *tails* what is behind it. They take
    *cost* of the byte budget, with *overhead* for each. *audiences* are who gets them, as far as the fast
    lane knew in its generation *known_at*.
    """

    __slots__ = (
        "audiences", "client_id", "cost", "five", "heads", "known_at", "next", "overhead", "pubrels", "tails",
    )  # fmt: skip

    def __init__(
        self,
        heads: list[bytes],
        tails: list[bytes],
        pubrels: bytes,
        audiences: list[Any],
        five: bool,
        client_id: str,
        overhead: int,
        cost: int,
    ) -> None:
        self.heads = heads
        self.tails = tails
        self.pubrels = pubrels
        self.audiences = audiences
        self.five = five
        self.client_id = client_id
        self.overhead = overhead
        self.cost = cost
        self.known_at = 0
        self.next: HeldRun | None = None

    @property
    def count(self) -> int:
        return len(self.heads)

    def split(self, count: int) -> HeldRun:
        """The first *count* messages, fewer than there are, as a run of their own."""
        heads, tails, pubrels = self.heads[:count], self.tails[:count], self.pubrels[: 4 * count]
        cost = count * (self.overhead - self.five) + sum(map(len, tails))
        cost += sum(topic_size(_name(head)) for head in heads)
        audiences, five, client_id = self.audiences[:count], self.five, self.client_id
        taken = HeldRun(heads, tails, pubrels, audiences, five, client_id, self.overhead, cost)
        self.cost -= cost
        self.pubrels = self.pubrels[4 * count :]
        del self.heads[:count], self.tails[:count], self.audiences[:count]
        return taken

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Those that are left, as the readable lane knows them, with their Packet Identifiers."""
        for place, (head, tail) in enumerate(zip(self.heads, self.tails, strict=True)):
            packet_id = self.pubrels[4 * place + 2] << 8 | self.pubrels[4 * place + 3]
            yield packet_id, Message(_name(head).decode(), tail[self.five :], 2, client_id=self.client_id)


def _name(head: bytes) -> bytes:
    """The Topic Name with which *head*, of a PUBLISH of less than 16 KiB, ends."""
    return head[5 if head[1] > 0x7F else 4 :]
