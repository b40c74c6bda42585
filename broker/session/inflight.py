"""Packet identifiers, Receive Maximum, and the QoS 1 and 2 tables of one session."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from operator import attrgetter
from typing import Any, ClassVar, Final

from broker.errors import ProtocolError
from broker.packet.enums import PacketType, Version
from broker.packet.message import LAST_IDENTIFIER, Message, numbered_packets
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


# Of all that have none, since most sessions never do; nothing may be put into these.
NO_DELIVERIES: Final[deque[Any]] = deque(maxlen=0)
NO_HELD: Final[dict[int, Message]] = {}
NO_ENTRIES: Final[dict[int, Delivery]] = {}
BLANKS: Final = 64  # windows for which there is a BlankInflight; clients may ask for any


class SentRun:
    """QoS 1 messages that the fast lane sent together: their PUBLISH packets, some acknowledged already.

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

    def deliveries(self) -> Iterator[Delivery]:
        """Those that are left, as the readable lane knows them."""
        sent = read_packets(self.packets, self.five)
        for number, packet in enumerate(islice(sent, self.done, None), self.number):
            message = Message(
                packet.topic_name, packet.payload, 1, properties=packet.properties, client_id=self.client_id
            )
            interval = packet.properties.get("message_expiry_interval")
            message.expires_at = None if interval is None else self.sent_at + interval
            delivery = Delivery(message, 1, False, packet_id=packet.packet_id, counted=True, number=number)
            delivery.state = State.WAIT_PUBACK
            yield delivery


def read_packets(packets: bytes, five: bool) -> Iterator[Publish]:
    """PUBLISH packets of ours, one by one."""
    reader = PacketReader(strict=False, from_client=False)
    reader.version = Version.MQTT_5 if five else Version.MQTT_3_1_1
    return (packet for packet in reader.feed(packets) if isinstance(packet, Publish))


class Inflight:
    """Outbound messages that were sent and not completed, by Packet Identifier.

    The table keeps the order of the first sending and outlives connections; `window` and `used`
    belong to the current connection [MQTT5 4.9]. Inbound QoS 2 messages are in `held` from
    PUBLISH to PUBREL. What the fast lane sent is in `runs`, the oldest of them, until something has to be
    known of one of its messages: `thaw` makes entries of them.
    """

    __slots__ = (
        *("_newest", "_started", "_unused_to", "entries", "held", "last", "resend", "runs", "used", "window"),
    )

    blank: ClassVar[bool] = False

    def __init__(self, window: int = 0, last: int = 0) -> None:
        """*last* is the Packet Identifier behind which it begins: one is not used again at once."""
        self.runs: SentRun | None = None
        self._newest: SentRun | None = None  # of the runs
        self._started = 0  # messages that were ever sent
        self._unused_to = 0  # no identifier between `last` and this one is in use
        self.entries = NO_ENTRIES
        self.held = NO_HELD
        self.resend = NO_DELIVERIES  # of an earlier connection, not sent on this one yet
        self.window = window
        self.used = 0
        self.last = last

    def restore(self, delivery: Delivery) -> None:
        """A delivery that was sent before a restart, in the order of the first sending."""
        self._enter(delivery)
        self.last = delivery.packet_id
        delivery.number = self._started = self._started + 1

    def restore_run(self, run: SentRun) -> None:
        """The same for many at once."""
        self.add_run(run)
        self.used = 0

    def is_free(self, packet_id: int, count: int = 1) -> bool:
        """Whether nobody has one of *count* identifiers from *packet_id* on."""
        wanted = range(packet_id, packet_id + count)
        runs = any(run.first < wanted.stop and packet_id < run.first + run.count for run in self.runs or ())
        return not runs and not any(each in self.entries for each in wanted)

    def open(self, window: int) -> Inflight:
        """A new connection: its quota starts afresh, and all that is unfinished is to be sent again."""
        self.window = window
        self.used = 0
        for delivery in self.entries.values():
            delivery.counted = False
        self.resend = deque(self.entries.values()) if self.entries else NO_DELIVERIES
        return self

    def close(self) -> Inflight:
        """The connection is gone."""
        self.window = 0
        self.resend = NO_DELIVERIES
        return self

    def rest(self) -> Inflight:
        """The one to go on with while nothing is sent: everybody's, if nothing is left of what was."""
        if self.entries or self.held or self.runs or self.resend or self.used:
            return self
        found = blank(self.window)
        return found if found.blank else self

    @property
    def room(self) -> bool:
        """Whether one more PUBLISH may be sent now: a slot and an identifier are free."""
        return self.used < self.window and len(self.entries) < LAST_IDENTIFIER

    def start(self, delivery: Delivery) -> None:
        """Give *delivery* an unused Packet Identifier and a slot. Needs `room`."""
        entries = self.entries
        if self.runs and self.count_unused():  # else there may be thousands of runs to look through
            packet_id = self.next_unused()
        else:
            packet_id = self.last % LAST_IDENTIFIER + 1
            while packet_id in entries or (self.runs and self._in_run(packet_id)):
                packet_id = packet_id % LAST_IDENTIFIER + 1
        if packet_id <= self.last:
            self._unused_to = 0
        self.last = delivery.packet_id = packet_id
        delivery.number = self._started = self._started + 1
        delivery.state = WAIT_PUBACK if delivery.qos == 1 else WAIT_PUBREC
        if entries is NO_ENTRIES:
            self._enter(delivery)
        else:
            entries[packet_id] = delivery
        delivery.counted = True
        self.used += 1

    def _enter(self, delivery: Delivery) -> None:
        if self.entries is NO_ENTRIES:
            self.entries = {}
        self.entries[delivery.packet_id] = delivery

    def hold(self, packet_id: int, message: Message) -> None:
        """An inbound QoS 2 message has come."""
        if self.held is NO_HELD:
            self.held = {}
        self.held[packet_id] = message

    def let_go(self, packet_id: int) -> Message | None:
        """The message that *packet_id* held until now."""
        message = self.held.pop(packet_id, None)
        if not self.held:
            self.held = NO_HELD
        return message

    # ---- runs of the fast lane

    def take_run(self, queue: deque[Any], version: Version, overhead: int) -> SentRun | None:
        """Start what *queue* begins with as a run, if that is worth it; needs `room`.

        30,000 messages of a session that had been away cost 3.5 us each one by one, and 0.9 in runs (mqttload
        persistent; CPython 3.11, 2 cores).
        """
        most = min(self.window - self.used, self.count_unused(), LONGEST_RUN)
        if len(queue) < SHORTEST_RUN or most < SHORTEST_RUN:
            return None
        client_id, cost, five = queue[0].message.client_id, 0, version is Version.MQTT_5
        messages: list[Message] = []
        for delivery in islice(queue, most):
            if not delivery.plain or delivery.message.client_id != client_id or cost > RUN_BYTES:
                break
            message = delivery.message
            if message.properties and not five:  # wanted if it comes back as a client of 5.0
                break
            cost += message.size + overhead
            messages.append(message)
        if len(messages) < SHORTEST_RUN:
            return None
        for _ in messages:
            queue.popleft()
        first = self.next_unused()
        packets = numbered_packets(messages, version, first)
        run = SentRun(first, len(messages), packets, cost, client_id, five, 0.0)  # none expires
        self.add_run(run)
        return run

    def count_unused(self) -> int:
        """How many identifiers in a row nobody uses, from the one on that `next_unused` gives."""
        if self.last >= LAST_IDENTIFIER:
            self.last = self._unused_to = 0
        if self.last + 1 >= self._unused_to:
            runs = (run.first for run in self.runs or ())
            used = (packet_id for packet_id in chain(self.entries, runs) if packet_id > self.last)
            self._unused_to = min(used, default=LAST_IDENTIFIER + 1)
        return self._unused_to - self.last - 1

    def next_unused(self) -> int:
        """The identifier after the last one; see `count_unused`."""
        return self.last + 1

    def add_run(self, run: SentRun) -> None:
        """*run* was sent now, with identifiers from `next_unused`."""
        newest = self._newest
        if newest is None:
            self.runs = run
        else:
            newest.next = run
        self._newest = run
        run.number = self._started + 1
        self._started += run.count
        self.last = run.first + run.count - 1
        self.used += run.count

    def acknowledge_run(self, count: int) -> int:
        """The first *count* messages of the oldest run are done; gives what they took of the byte budget."""
        run = self.runs
        assert run is not None
        self.used -= count
        if run.part is not None:
            run.part.acknowledged(count)
        if count == run.count:
            self.runs = run.next
            if run.next is None:
                self._newest = None
            return run.cost
        given = run.cost * count // run.count
        run.first += count
        run.number += count
        run.count -= count
        run.done += count
        run.cost -= given
        return given

    def thaw(self) -> tuple[list[Delivery], int]:
        """Make entries of all runs, in the order of sending; gives them, and the bytes that the runs took."""
        thawed: list[Delivery] = []
        cost = 0
        for run in self.runs or ():
            cost += run.cost
            deliveries = [*run.deliveries()]
            if run.part is not None:
                run.part.thawed(deliveries)
            thawed += deliveries
        ordered = sorted(chain(self.entries.values(), thawed), key=attrgetter("number"))
        self.runs = self._newest = None
        self.entries = {delivery.packet_id: delivery for delivery in ordered}
        return thawed, cost

    def _in_run(self, packet_id: int) -> bool:
        return any(run.first <= packet_id < run.first + run.count for run in self.runs or ())

    def take_released(self) -> list[Delivery]:
        """Remove those that only need their PUBREL again from what is to be resent: it waits for no slot."""
        released = [delivery for delivery in self.resend if delivery.state is State.WAIT_PUBCOMP]
        if released:
            self.resend = deque(d for d in self.resend if d.state is not State.WAIT_PUBCOMP)
        return released

    def count(self, delivery: Delivery) -> None:
        """Take a slot for a PUBLISH that is sent now."""
        delivery.counted = True
        self.used += 1

    def acknowledge(self, packet_id: int, packet: PacketType, reason_code: int) -> Delivery | None:
        """Step the table on; None when nobody waits for this identifier.

        Raises ProtocolError when the acknowledgement does not fit the state. Afterwards
        `delivery.state` tells what is due: DONE, or WAIT_PUBCOMP for a PUBREL.
        """
        delivery = self.entries.get(packet_id)
        if delivery is None:
            return None
        following = NEXT.get((delivery.state, packet))
        if following is None:
            raise ProtocolError(f"{packet.name} for identifier {packet_id}, which is {delivery.state.name}")
        if following is State.DONE or (reason_code >= 0x80 and delivery.state is not State.WAIT_PUBCOMP):
            self.finish(delivery)
        else:
            delivery.state = following
        return delivery

    def finish(self, delivery: Delivery) -> None:
        """Free the identifier and the slot of *delivery*."""
        del self.entries[delivery.packet_id]
        if not self.entries:
            self.entries = NO_ENTRIES
        delivery.state = State.DONE
        if delivery.counted:
            delivery.counted = False
            self.used -= 1


class BlankInflight(Inflight):
    """All of those that nothing was ever put into and that have the same window: most, at 120 bytes each.

    Nobody changes one: who wants to, asks `Queue.table`.
    """

    __slots__ = ()
    blank: ClassVar[bool] = True

    def open(self, window: int) -> Inflight:
        return blank(window)

    def close(self) -> Inflight:
        return blank(0)

    def rest(self) -> Inflight:
        return self

    def count(self, delivery: Delivery) -> None:
        raise AssertionError("this is everybody's")

    def _enter(self, delivery: Delivery) -> None:
        raise AssertionError("this is everybody's")

    def hold(self, packet_id: int, message: Message) -> None:
        raise AssertionError("this is everybody's")

    def add_run(self, run: SentRun) -> None:
        raise AssertionError("this is everybody's")


_BLANK: Final[dict[int, BlankInflight]] = {}


def blank(window: int) -> Inflight:
    """A table with nothing in it."""
    found = _BLANK.get(window)
    if found is None:
        if len(_BLANK) >= BLANKS:
            return Inflight(window)
        found = _BLANK[window] = BlankInflight(window)
    return found
