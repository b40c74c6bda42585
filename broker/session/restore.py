"""Sessions and retained messages as a durable store has them, after a restart [MQTT5 4.1]."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from broker.errors import MqttError
from broker.packet.enums import Version
from broker.packet.message import Message, bounds, text_size
from broker.session.delivery import Delivery, QueuedRun, SentRun, State
from broker.session.manager import SessionManager
from broker.session.record import Part, SessionRecord, StoredRun
from broker.session.session import FOR_EVER, Session
from broker.session.terms import NEVER, PendingWill
from broker.store.base import DurableStore, Row, Table
from broker.store.journal import Journal, MessageRecord
from broker.store.memory import MemoryRetainedStore, NoteStore
from broker.store.rows import fault, message_of
from broker.topic.subscription import Subscription
from broker.topic.tree import SubscriptionTree

log = logging.getLogger("broker.store")

TURN = 1000  # rows that are read before others have a turn


class Restore:
    """Reads a store into memory, once, before anybody is connected.

    `steps` does it little by little. Afterwards *connected* are the sessions whose connection had not ended,
    or its end was not seen to yet, when the broker ended without a stop. Rows that belong to nothing (a bug,
    or what a salvage could not save) are in `orphans`, and deleted by `finish`.
    """

    def __init__(
        self,
        store: DurableStore,
        journal: Journal,
        sessions: SessionManager,
        tree: SubscriptionTree[Any],
        retained: MemoryRetainedStore,
        notes: NoteStore,
    ) -> None:
        self._store = store
        self._journal = journal
        self._sessions = sessions
        self._tree = tree
        self._retained = retained
        self._notes = notes
        self._messages: dict[int, Message] = {}
        self._runs: dict[int, RestoredRun] = {}
        self._by_row: dict[int, tuple[Session, SessionRecord]] = {}
        self.connected: list[Session] = []
        self.orphans: list[tuple[Table, int]] = []
        self._changed: list[SessionRecord] = []  # their rows say what is not true

    def steps(self) -> Iterator[None]:
        """Read everything, the journal's clock being set; each step is short."""
        readers = {
            Table.MESSAGE: self._message,
            Table.RUN: self._run,
            Table.SESSION: self._session,
            Table.SUBSCRIPTION: self._subscription,
            Table.DELIVERY: self._delivery,
            Table.PART: self._part,
            Table.HELD: self._held,
            Table.RETAINED: self._retain,
            Table.NOTE: self._note,
        }
        for count, (table, number, row) in enumerate(self._rows(readers)):
            try:
                if says := fault(table, number, row):
                    raise ValueError(says)
                self._journal.known(number)
                readers[table](number, row if row.blobs else row.values)
            except (KeyError, ValueError, TypeError, MqttError) as error:
                log.error("%s: row %d of %s left out: %r", self._store.path, number, table.name, error)
                self.orphans.append((table, number))
            if count % TURN == 0:
                yield

    def _rows(self, tables: Iterable[Table]) -> Iterator[tuple[Table, int, Row]]:
        """Those of one table after the other; but parts stand among deliveries, by their identifiers."""
        for table in tables:
            if table is Table.DELIVERY:
                both = (self._of(table), self._of(Table.PART))
                yield from heapq.merge(*both, key=itemgetter(1))
            elif table is not Table.PART:
                yield from self._of(table)

    def _of(self, table: Table) -> Iterator[tuple[Table, int, Row]]:
        for number, row in self._store.read(table):
            yield table, number, row

    def finish(self) -> None:
        """Delete what nothing holds; from here on the journal takes changes."""
        self._journal.ready = True
        for table, number in self.orphans:
            self._journal.delete(table, number)
        for record in self._changed:
            record.note()
        for number, message in self._messages.items():
            if not message.record.references:
                self._journal.delete(Table.MESSAGE, number)
        for number, run in self._runs.items():
            if not run.stored.references:
                self._journal.delete(Table.RUN, number)
        sessions, retained = len(self._by_row), len(self._retained)
        log.info("%s: %d sessions, %d retained messages", self._store.path, sessions, retained)

    def _message(self, number: int, row: Any) -> None:
        message = self._messages[number] = message_of(row, self._journal.offset)
        message.record = MessageRecord(self._journal, number)

    def _run(self, number: int, row: Any) -> None:
        self._runs[number] = RestoredRun(self._journal, number, row)

    def _note(self, number: int, row: Any) -> None:
        self._notes.restore(number, row.values[0], row.blobs[0])

    def _take(self, number: int) -> Message:
        message = self._messages[number]
        message.record.references += 1
        return message

    def _session(self, number: int, values: tuple[Any, ...]) -> None:
        client_id, user_name, version, interval, whole, connected, ends_at, will, delay, will_due = values
        if (older := self._sessions.get(client_id)) is not None:
            self._leave_out(older)
        session = self._sessions.create(client_id)
        session.charge(self._sessions.cost(client_id, user_name))
        session.user_name, session.expiry_interval = user_name, interval
        session.version = Version(version)
        offset = self._journal.offset
        session.ends_at = NEVER if ends_at is None else ends_at - offset
        if will in self._messages:
            session.set_will(PendingWill(self._take(will), delay))
            session.will_due = NEVER if will_due is None else will_due - offset
        record = SessionRecord(session, self._journal, bool(whole), number)
        if will is not None and session.will is None:
            log.error("%s: the will of %.100r is not there", self._store.path, client_id)
            self._changed.append(record)
        session.recorder, session.state = record, record if whole else None
        self._by_row[number] = (session, record)
        unseen = (ends_at is None and interval != FOR_EVER) or (will is not None and will_due is None)
        if connected or unseen or not whole:
            self.connected.append(session)
        self._sessions.note_deadlines(session)

    def _leave_out(self, older: Session) -> None:
        """Another session has its ClientID: what a salvage found in a page that was not in use any more."""
        number = next(number for number, (session, _) in self._by_row.items() if session is older)
        log.error("%s: a second, older session of %.100r left out", self._store.path, older.client_id)
        if (will := older.set_will(None)) is not None:
            will.message.record.references -= 1
        older.clear()
        del self._by_row[number]
        self.orphans.append((Table.SESSION, number))
        self.connected = [session for session in self.connected if session is not older]

    def _subscription(self, number: int, values: tuple[Any, ...]) -> None:
        owner, topic_filter, qos, no_local, as_published, handling, identifier, share_name = values
        session, record = self._by_row[owner]
        if topic_filter in session.subscriptions:
            raise ValueError(f"a second subscription to {topic_filter!r:.100}")
        identifiers = (identifier,) if identifier else ()
        subscription = Subscription(
            topic_filter, qos, bool(no_local), bool(as_published), handling, identifiers, share_name
        )
        record.restored_subscription(number, topic_filter)
        session.state = None  # the store knows of it already
        session.subscribe(subscription)
        session.state = record
        self._tree.subscribe(session, subscription)

    def _delivery(self, number: int, values: tuple[Any, ...]) -> None:
        owner, message, qos, retain, requested, identifiers, share, packet_id, state = values
        session, record = self._by_row[owner]
        if state and not session.inflight.is_free(packet_id):
            raise ValueError(f"a second delivery with identifier {packet_id}")
        delivery = Delivery(
            self._take(message),
            qos,
            bool(retain),
            tuple(map(int, identifiers.split(","))) if identifiers else (),
            share,
            packet_id,
            State(state),
            requested=bool(requested),
        )
        delivery.record, delivery.row = record, number
        _charge(session, delivery.message)
        _put_back(session, delivery)

    def _part(self, number: int, values: tuple[Any, ...]) -> None:
        owner, run, first, count, packet_id = values
        session, record = self._by_row[owner]
        inflight, restored = session.inflight, self._runs[run]
        if first + count > restored.stored.count:
            raise ValueError(f"{count} messages from {first} of a run that has {restored.stored.count}")
        if packet_id and not inflight.is_free(packet_id, count):
            raise ValueError(f"a second delivery with identifier {packet_id} or one behind it")
        self._journal.known(number + count - 1)
        waiting = restored.queued(first, count, session.terms.overhead)
        part = Part(record, restored.stored, number, first, count, packet_id, 0)
        if packet_id:
            session.bytes += waiting.cost
            session.terms.budget.take_anyway(waiting.cost)
            packets = waiting.numbered(waiting.five, packet_id)
            sent = SentRun(packet_id, count, packets, waiting.cost, waiting.client_id, waiting.five, 0.0)
            sent.part = part
            session.table().restore_run(sent)
        else:
            waiting.part = part
            session.enqueue_run(waiting)

    def _held(self, number: int, values: tuple[Any, ...]) -> None:
        owner, packet_id, message = values
        session, record = self._by_row[owner]
        if packet_id in session.inflight.held or message not in self._messages:
            raise ValueError(f"a second message with identifier {packet_id}, or none")
        record.restored_held(number, packet_id)
        held = self._take(message)
        session.table().hold(packet_id, held)
        _charge(session, held)

    def _retain(self, number: int, values: tuple[Any, ...]) -> None:
        topic_name = self._messages[values[0]].topic_name
        if self._retained.holds(topic_name):
            raise ValueError(f"a second retained message of {topic_name!r:.100}")
        self._retained.restore(number, self._take(values[0]))


class RestoredRun:
    """Packets of one publisher as the store has them, and where in them each begins."""

    def __init__(self, journal: Journal, number: int, row: Row) -> None:
        (packets,), (count, client_id, five, size, place) = row.blobs, row.values
        self._ends = [0]
        self._sizes = [0]  # of the messages up to each
        for _ in range(count):
            start, end = bounds(packets, self._ends[-1])
            topic_end = start + 2 + (packets[start] << 8 | packets[start + 1])
            taken = text_size(packets[start + 2 : topic_end].decode()) + end - topic_end - 2 - five
            self._ends.append(end)
            self._sizes.append(self._sizes[-1] + taken)
        whole = QueuedRun(packets, count, bool(five), client_id, 0, 0, size, place)
        self.stored = StoredRun(journal, whole, number)

    def queued(self, first: int, count: int, overhead: int) -> QueuedRun:
        """*count* of them from the one numbered *first* on, in a queue."""
        run, end = self.stored, first + count
        packets = run.packets[self._ends[first] : self._ends[end]]
        cost = self._sizes[end] - self._sizes[first] + count * overhead
        return QueuedRun(packets, count, run.five, run.client_id, cost, overhead, run.size, run.place)


def _charge(session: Session, message: Message) -> None:
    """Count *message* as the session does, above the limits if it must be."""
    cost = message.size + session.terms.overhead
    session.bytes += cost
    session.terms.budget.take_anyway(cost)


def _put_back(session: Session, delivery: Delivery) -> None:
    """Into the queue or in flight, in the order of the rows."""
    if delivery.state is not State.QUEUED:
        session.table().restore(delivery)
        return
    session.enqueue(delivery)
    session.queued_qos_0 += delivery.qos == 0
    expires_at = delivery.message.expires_at
    if expires_at is not None and expires_at < session.queue_expires_at:
        session.queue_expires_at = expires_at
        session.terms.expiring(session)
