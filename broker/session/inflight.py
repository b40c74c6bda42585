"""Packet identifiers, Receive Maximum, and the QoS 1 and 2 tables of one session."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Any, ClassVar, Final

from broker.errors import ProtocolError
from broker.packet.enums import PacketType, Version
from broker.packet.message import LAST_IDENTIFIER, Message, numbered_packets
from broker.session.delivery import (
    LONGEST_RUN,
    NEXT,
    RUN_BYTES,
    SHORTEST_RUN,
    WAIT_PUBACK,
    WAIT_PUBREC,
    Delivery,
    ExactRuns,
    HeldRun,
    SentRun,
    State,
)

# Of all that have none, since most sessions never do; nothing may be put into these.
NO_DELIVERIES: Final[deque[Any]] = deque(maxlen=0)
NO_HELD: Final[dict[int, Message]] = {}
NO_ENTRIES: Final[dict[int, Delivery]] = {}
BLANKS: Final = 64  # windows for which there is a BlankInflight; clients may ask for any


class Inflight:
    """Outbound messages that were sent and not completed, by Packet Identifier.

    The table keeps the order of the first sending and outlives connections; `window` and `used`
    belong to the current connection [MQTT5 4.9]. Inbound QoS 2 messages are in `held` from
    PUBLISH to PUBREL. What the fast lane sent is in `runs`, the oldest of them, or with QoS 2 in `exact`,
    until something has to be known of one of its messages: `thaw` makes entries of them. What it holds is
    in `held_run`, the oldest, until somebody looks at `held`.
    """

    __slots__ = (
        *("_held", "_newest", "_newest_held", "_started", "_unused_to", "entries", "exact", "held_run"),
        *("last", "resend", "runs", "used", "window"),
    )

    blank: ClassVar[bool] = False

    def __init__(self, window: int = 0, last: int = 0) -> None:
        """*last* is the Packet Identifier behind which it begins: one is not used again at once."""
        self.runs: SentRun | None = None
        self._newest: SentRun | None = None  # of the runs
        self.exact: ExactRuns | None = None
        self.held_run: HeldRun | None = None
        self._newest_held: HeldRun | None = None
        self._started = 0  # messages that were ever sent
        self._unused_to = 0  # no identifier between `last` and this one is in use
        self.entries = NO_ENTRIES
        self._held = NO_HELD
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
        runs = any(run.first < wanted.stop and packet_id < run.first + run.count for run in self.all_runs())
        return not runs and not any(each in self.entries for each in wanted)

    def open(self, window: int) -> Inflight:
        """A new connection: its quota starts afresh, and all that is unfinished is to be sent again."""
        self.window = window
        self.used = 0
        if self.held_run is not None:  # the fast lane knows them by what came on one connection
            self.thaw_held()
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
        if self.entries or self.runs or self.exact or self.holds or self.resend or self.used:
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
        in_runs = self.runs is not None or self.exact is not None
        if in_runs and self.count_unused():  # else there may be thousands of runs to look through
            packet_id = self.next_unused()
        else:
            packet_id = self.last % LAST_IDENTIFIER + 1
            while packet_id in entries or (in_runs and self._in_run(packet_id)):
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

    # ---- inbound QoS 2 messages

    @property
    def held(self) -> dict[int, Message]:
        """By Packet Identifier, to be looked at only."""
        if self.held_run is not None:
            self.thaw_held()
        return self._held

    def thaw_held(self) -> None:
        """Something has to be known of single messages: runs become `singles`."""
        if self._held is NO_HELD:
            self._held = {}
        run = self.held_run
        while run is not None:
            self._held.update(run.messages())
            run = run.next
        self.held_run = self._newest_held = None

    @property
    def singles(self) -> dict[int, Message]:
        """Those of them that are in no run, as `held`."""
        return self._held

    @property
    def holds(self) -> bool:
        """Whether there are any."""
        return self.held_run is not None or len(self._held) > 0

    def held_as(self, packet_id: int) -> Message | None:
        """The one that *packet_id* holds."""
        single = self._held.get(packet_id)
        return self.held.get(packet_id) if single is None else single

    def hold(self, packet_id: int, message: Message) -> None:
        """One has come."""
        held = self._held
        if held is NO_HELD:
            held = self._held = {}
        held[packet_id] = message

    def let_go(self, packet_id: int) -> Message | None:
        """The message that *packet_id* held until now."""
        held = self._held if packet_id in self._held else self.held
        message = held.pop(packet_id, None)
        if not held:
            self._held = NO_HELD
        return message

    def hold_run(self, run: HeldRun) -> None:
        """Many have come."""
        if self.held_run is None or self._newest_held is None:
            self.held_run = run
        else:
            self._newest_held.next = run
        self._newest_held = run

    def let_go_run(self, count: int) -> HeldRun:
        """The first *count* messages of the oldest run, which are held no longer."""
        run = self.held_run
        assert run is not None
        if count < run.count:
            return run.split(count)
        self.held_run = run.next
        if run.next is None:
            self._newest_held = None
        return run

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
            runs = (run.first for run in self.all_runs())
            used = (packet_id for packet_id in chain(self.entries, runs) if packet_id > self.last)
            self._unused_to = min(used, default=LAST_IDENTIFIER + 1)
        return self._unused_to - self.last - 1

    def next_unused(self) -> int:
        """The identifier after the last one; see `count_unused`."""
        return self.last + 1

    def all_runs(self) -> Iterator[SentRun]:
        """Those of QoS 1, and then those of QoS 2."""
        return chain(self.runs or (), self.exact or ())

    def add_exact(self, run: SentRun) -> None:
        """As `add_run`, with QoS 2."""
        if self.exact is None:
            self.exact = ExactRuns()
        self.exact.add(run)
        self._count_run(run)

    def complete_run(self, count: int) -> int:
        """PUBCOMP for the first *count* messages that wait for it in `exact`; gives what they took."""
        exact = self.exact
        assert exact is not None
        self.used -= count
        cost = exact.complete(count)
        if exact.received is None and exact.sent is None:
            self.exact = None
        return cost

    def add_run(self, run: SentRun) -> None:
        """*run* was sent now, with identifiers from `next_unused`."""
        newest = self._newest
        if newest is None:
            self.runs = run
        else:
            newest.next = run
        self._newest = run
        self._count_run(run)

    def _count_run(self, run: SentRun) -> None:
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
        return run.shorten(count)

    def thaw(self) -> tuple[list[Delivery], int]:
        """Make entries of all runs, in the order of sending; gives them, and the bytes that the runs took."""
        thawed: list[Delivery] = []
        cost = sum(run.cost for run in self.all_runs())
        for run in self.runs or ():
            deliveries = [*run.deliveries()]
            if run.part is not None:
                run.part.thawed(deliveries)
            thawed += deliveries
        if self.exact is not None:
            thawed += self.exact.deliveries()
        ordered = sorted(chain(self.entries.values(), thawed), key=attrgetter("number"))
        self.runs = self._newest = self.exact = None
        self.entries = {delivery.packet_id: delivery for delivery in ordered}
        return thawed, cost

    def _in_run(self, packet_id: int) -> bool:
        return any(run.first <= packet_id < run.first + run.count for run in self.all_runs())

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

    def hold_run(self, run: HeldRun) -> None:
        raise AssertionError("this is everybody's")

    def add_run(self, run: SentRun) -> None:
        raise AssertionError("this is everybody's")

    def add_exact(self, run: SentRun) -> None:
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
