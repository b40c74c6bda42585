"""SessionRecord: what a durable store knows of one session."""

from __future__ import annotations

from typing import Any

from broker.packet.message import Message
from broker.session.delivery import Delivery, QueuedRun, read_packets
from broker.session.session import Session
from broker.session.terms import NEVER
from broker.store.base import Row, Table
from broker.store.journal import Journal
from broker.store.rows import new_row
from broker.topic.subscription import Subscription

DELIVERY = Table.DELIVERY  # a member of an enumeration takes longer to be looked up


class SessionRecord:
    """The rows of one session: itself with its will, subscriptions, deliveries, and what it holds.

    A Recorder. Told of every change by the Session, plain calls that never wait. A session that ends with its
    connection has only the one row, and that while it has a will: after a crash the will is published.
    """

    __slots__ = ("_filters", "_has_row", "_held", "_since", "id", "journal", "session", "whole", "will")

    def __init__(self, session: Session, journal: Journal, whole: bool, stored_as: int = 0) -> None:
        """*stored_as* is the row that the store has of it already."""
        self.session = session
        self.journal = journal
        self.whole = whole  # all of the session is stored, not its will alone
        self.id = stored_as or journal.new_id()
        self._has_row = stored_as > 0  # of the session itself
        self._since = 0 if stored_as else journal.number  # the batch that makes it
        self.will = session.will if stored_as else None  # as stored
        self._filters: dict[str, int] = {}
        self._held: dict[int, int] = {}

    # ---- the session itself

    def note(self) -> None:
        """Bring the row into line with the session."""
        session, journal = self.session, self.journal
        will, before = session.will, self.will
        if will is not before:
            if will is not None:
                journal.refer(will.message)
            if before is not None:
                journal.let_go(before.message)
            self.will = will
        if self.whole or will is not None:
            journal.put(Table.SESSION, self.id, session_row, self, new=not self._has_row)
            if not self._has_row:
                self._has_row, self._since = True, journal.number
        elif self._has_row:
            journal.delete(Table.SESSION, self.id)
            self._has_row = False

    @property
    def stored(self) -> bool:
        """Whether the session would be there after a crash in this moment."""
        return self._has_row and self.whole and self._since <= self.journal.done

    # ---- subscriptions

    def subscribed(self, subscription: Subscription) -> None:
        number = self._filters.get(subscription.topic_filter)
        if number is not None and subscription.identifiers:  # rows stand in the order of Subscription.order
            self.journal.delete(Table.SUBSCRIPTION, number)
            number = None
        new = number is None
        if number is None:
            number = self._filters[subscription.topic_filter] = self.journal.new_id()
        self.journal.put(Table.SUBSCRIPTION, number, subscription_row, (self.id, subscription), new=new)

    def unsubscribed(self, topic_filter: str) -> None:
        self.journal.delete(Table.SUBSCRIPTION, self._filters.pop(topic_filter))
        self.journal.promise(-1)  # now: a hook may wait before the answer is put together

    # ---- deliveries

    def kept(self, delivery: Delivery) -> None:
        """The session owns *delivery* from now on."""
        journal = self.journal
        journal.refer(delivery.message)
        delivery.record = self
        delivery.row = journal.new_id()
        delivery.batch = journal.number
        journal.put(DELIVERY, delivery.row, delivery_row, delivery, new=True)

    def stepped(self, delivery: Delivery) -> int:
        """Its Packet Identifier or state has changed; the batch to wait for before others see it; 0: none.

        A delivery that is not on its way to the disk yet was promised to nobody: QoS 1 goes out at once. So
        it does while the store cannot be written; a crash then costs the DUP flag of the next sending.
        """
        journal = self.journal
        journal.put(DELIVERY, delivery.row, delivery_row, delivery)
        if delivery.qos == 1 and (delivery.batch == journal.number or journal.failure is not None):
            return 0
        delivery.batch = journal.number
        return journal.promise(-1, delivery.message.topic_name)

    def unstored(self, delivery: Delivery) -> int:
        """The batch of its last change, if that is not committed yet, else 0. QoS 1 need not wait for it."""
        return delivery.batch if delivery.qos == 2 and delivery.batch > self.journal.done else 0

    def gone(self, delivery: Delivery) -> int:
        """Completed, dropped or handed on."""
        self.journal.delete(DELIVERY, delivery.row)
        self.journal.let_go(delivery.message)
        delivery.record = None
        return self.journal.latest

    @property
    def takes_runs(self) -> bool:
        """Whether it can be told of many messages at once: those of all topics are as durable."""
        return not self.journal.levels.by_topic

    def kept_run(self, run: QueuedRun, stored: StoredRun | None, packet_id: int = 0) -> Part:
        """The session owns the messages of *run*, sent with identifiers from *packet_id* on unless that is 0.

        *stored* is the row of them that another session has made already.
        """
        if stored is None:
            stored = StoredRun(self.journal, run)
        part = Part(self, stored, self.journal.new_id(run.count), 0, run.count, packet_id)
        stored.parts.append(part)
        return part

    # ---- QoS 2 of the client

    def held(self, packet_id: int, message: Message) -> None:
        self.journal.refer(message)
        number = self._held[packet_id] = self.journal.new_id()
        self.journal.put(Table.HELD, number, held_row, (self.id, packet_id, message), new=True)

    def let_go(self, packet_id: int, message: Message) -> None:
        self.journal.delete(Table.HELD, self._held.pop(packet_id))
        self.journal.let_go(message)

    # ---- after a restart

    def restored_subscription(self, number: int, topic_filter: str) -> None:
        self._filters[topic_filter] = number

    def restored_held(self, number: int, packet_id: int) -> None:
        self._held[packet_id] = number


class StoredRun:
    """The row of QoS 1 packets that one publisher sent, shared by all sessions that keep them."""

    __slots__ = (
        "client_id", "count", "five", "id", "journal", "packets", "parts", "place", "references",
        "size",
    )  # fmt: skip

    def __init__(self, journal: Journal, run: QueuedRun, stored_as: int = 0) -> None:
        """*run* is whole; *stored_as* is the row that the store has of it already."""
        self.journal = journal
        self.packets = run.packets
        self.count = run.count
        self.client_id = run.client_id
        self.five = run.five
        self.size = run.size
        self.place = run.offset
        self.references = 0
        self.parts: list[Part] = []  # as they were kept, whatever became of them
        self.id = stored_as or journal.new_id()
        if not stored_as:
            journal.put(Table.RUN, self.id, run_row, self, new=True)

    def revoke(self) -> list[Message]:
        """The store has refused them: who was not sent one already is not; gives all."""
        for part in self.parts:
            part.revoke()
        packets = read_packets(self.packets, self.five)
        return [Message(each.topic_name, each.payload, 1, client_id=self.client_id) for each in packets]

    def let_go(self) -> None:
        """One part of it less; its row goes with the last."""
        self.references -= 1
        if self.references == 0:
            self.journal.delete(Table.RUN, self.id)


class Part:
    """The row of *count* messages of a run, from the one numbered *first* on, which one session keeps.

    Its row and the *count* - 1 identifiers behind it belong to these messages: when they part, each has its
    own. *packet_id* is that of the first, or 0: queued.
    """

    __slots__ = ("_later", "batch", "count", "first", "packet_id", "record", "row", "stored")

    def __init__(
        self, record: SessionRecord, stored: StoredRun, row: int, first: int, count: int, packet_id: int,
        batch: int = -1,
    ) -> None:  # fmt: skip
        """*batch* is that which makes its messages durable; -1: the open one; 0: they are."""
        self.record = record
        self.stored = stored
        self.row = row
        self.first = first
        self.count = count
        self.packet_id = packet_id
        self.batch = record.journal.number if batch < 0 else batch
        self._later: list[Any] = []  # what became of these messages before they were durable
        stored.references += 1
        if batch:
            self._put(new=True)

    def _put(self, new: bool = False) -> None:
        self.record.journal.put(Table.PART, self.row, part_row, self, new=new)

    def split(self, count: int) -> Part:
        """All but the first *count* messages, which stay."""
        rest = Part(
            self.record, self.stored, self.row + count, self.first + count, self.count - count, 0, self.batch
        )
        if not self.batch:
            rest._put(new=True)
        elif self.batch > self.record.journal.done:
            self._later.append(rest)
        self.count = count
        return rest

    def sent(self, packet_id: int) -> int:
        """They are sent with identifiers from *packet_id* on; the batch to wait for before: see `stepped`."""
        journal = self.record.journal
        self.packet_id = packet_id
        self._put()
        if self.batch == journal.number or journal.failure is not None:
            return 0
        return journal.promise(-1)

    def acknowledged(self, count: int) -> None:
        """The first *count* are done."""
        if count == self.count:
            self.gone()
            return
        self.first += count
        self.packet_id += count
        self.count -= count
        self._put()

    def gone(self) -> None:
        """Completed, dropped, or stored as something else."""
        self.record.journal.delete(Table.PART, self.row)
        self.stored.let_go()

    def thawed(self, deliveries: list[Delivery]) -> None:
        """From now on *deliveries* are stored in its place, in the same order among others."""
        journal = self.record.journal
        fresh = self.batch == journal.number
        if self.batch > journal.done:
            self._later += deliveries
        self.gone()
        for row, delivery in enumerate(deliveries, self.row):
            journal.refer(delivery.message)
            delivery.record, delivery.row = self.record, row
            delivery.batch = journal.number if fresh else 0
            journal.put(DELIVERY, row, delivery_row, delivery, new=True)

    def revoke(self) -> None:
        """The store has refused the messages: what was not sent already is not delivered."""
        self.record.session.revoke_run(self)
        for later in self._later:
            later.revoke()


def record_session(session: Session, journal: Journal) -> None:
    """A connection has just set what *session* is: what of it the store is to know from now on."""
    whole = session.expiry_interval > 0
    if not whole:
        session.forget_state()
    if not journal.writes or (session.recorder is None and not whole and session.will is None):
        return
    record = session.recorder
    if record is None:
        record = session.recorder = SessionRecord(session, journal, whole)
    session.state = record if whole else None


def session_row(record: SessionRecord) -> Row:
    """Without deadlines a session is connected, or about to be given some; see Restore."""
    session, offset, will = record.session, record.journal.offset, record.will
    will_due = session.will_due if session.will is will else -offset  # else it is being published now
    values: tuple[Any, ...] = (
        session.client_id,
        session.user_name,
        int(session.version),
        session.expiry_interval,
        int(record.whole),
        int(session.connected),
        None if session.ends_at == NEVER else session.ends_at + offset,
        None if will is None else will.message.record.id,
        0 if will is None else will.delay,
        None if will_due == NEVER else will_due + offset,
    )
    return Row(values)


def subscription_row(source: tuple[int, Subscription]) -> Row:
    number, held = source
    identifier = held.identifiers[0] if held.identifiers else 0
    flags = (held.qos, int(held.no_local), int(held.retain_as_published), held.retain_handling)
    return Row((number, held.topic_filter, *flags, identifier, held.share_name))


def delivery_row(delivery: Delivery) -> Row:
    identifiers = delivery.identifiers
    values = (
        delivery.record.id,
        delivery.message.record.id,
        delivery.qos,
        1 if delivery.retain else 0,
        1 if delivery.requested else 0,
        ",".join(map(str, identifiers)) if identifiers else "",
        delivery.share,
        delivery.packet_id,
        int(delivery.state),
    )
    return new_row(Row, (values, ()))


def run_row(run: StoredRun) -> Row:
    return Row((run.count, run.client_id, int(run.five), run.size, run.place), (run.packets,))


def part_row(part: Part) -> Row:
    return new_row(
        Row, ((part.record.id, part.stored.id, part.first, part.count, part.packet_id), ())
    )


def held_row(source: tuple[int, int, Message]) -> Row:
    session, packet_id, message = source
    return Row((session, packet_id, message.record.id))
