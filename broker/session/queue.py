"""Queue: the messages of one session that wait to be sent, singly or in runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker.packet.enums import Version
from broker.session.delivery import Delivery, QueuedRun, SentRun, State
from broker.session.inflight import NO_DELIVERIES, Inflight, blank
from broker.session.terms import NEVER, PendingWill, Terms


class Extra:
    """Of one session; made when the first of it is needed. Nobody changes NOTHING, which all others have."""

    __slots__ = (
        "disconnect_slow", "info", "more", "queue_expires_at", "queued_qos_0", "will", "will_due",
    )  # fmt: skip

    def __init__(self) -> None:
        self.more = 0  # messages in runs, beyond one each
        self.queued_qos_0 = 0
        self.queue_expires_at = NEVER
        self.disconnect_slow = False
        self.will: PendingWill | None = None
        self.will_due = NEVER
        self.info: object = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is needed any more."""
        waits = self.more or self.queued_qos_0 or self.queue_expires_at != NEVER or self.disconnect_slow
        return not waits and self.will is None and self.will_due == NEVER and self.info is None


NOTHING: Final = Extra()


class Queue:
    """What waits in one session, and what all of its messages take.

    In `queue` are deliveries, and runs that the fast lane put there: those become deliveries as soon as
    anything must be known of a single one. `bytes` is what its messages take of the byte budget, queued,
    in flight and held.
    """

    __slots__ = ("bytes", "client_id", "extra", "inflight", "last_packet_id", "queue", "terms")

    def __init__(self, client_id: str, terms: Terms) -> None:
        self.client_id = client_id
        self.terms = terms
        self.inflight = blank(0)
        self.last_packet_id = 0  # that was sent, when `inflight` became everybody's
        self.queue: deque[Delivery | QueuedRun] = NO_DELIVERIES
        self.extra = NOTHING
        self.bytes = 0

    def own(self) -> Extra:
        """Its `extra`, to put something there."""
        if self.extra is NOTHING:
            self.extra = Extra()
        return self.extra

    @property
    def queued_qos_0(self) -> int:
        """While any waits, later QoS 0 waits behind it [B12]."""
        return self.extra.queued_qos_0

    @queued_qos_0.setter
    def queued_qos_0(self, queued_qos_0: int) -> None:
        if queued_qos_0 != self.extra.queued_qos_0:
            self.own().queued_qos_0 = queued_qos_0

    @property
    def queue_expires_at(self) -> float:
        """The earliest deadline in the queue, or earlier."""
        return self.extra.queue_expires_at

    @queue_expires_at.setter
    def queue_expires_at(self, queue_expires_at: float) -> None:
        if queue_expires_at != self.extra.queue_expires_at:
            self.own().queue_expires_at = queue_expires_at

    @property
    def disconnect_slow(self) -> bool:
        """The queue is full and the setting says to disconnect."""
        return self.extra.disconnect_slow

    @disconnect_slow.setter
    def disconnect_slow(self, disconnect_slow: bool) -> None:
        if disconnect_slow != self.extra.disconnect_slow:
            self.own().disconnect_slow = disconnect_slow

    def table(self) -> Inflight:
        """Its `inflight`, to put something in there."""
        if self.inflight.blank:
            self.inflight = Inflight(self.inflight.window, self.last_packet_id)
        return self.inflight

    def spare_table(self) -> None:
        """Nothing may be in it any more: then it is given back, but for its last Packet Identifier."""
        inflight = self.inflight
        resting = inflight.rest()
        if resting is not inflight:
            self.inflight = resting
            self.last_packet_id = inflight.last

    @property
    def waiting(self) -> int:
        """Messages in the queue."""
        return len(self.queue) + self.extra.more

    def _add_more(self, count: int) -> None:
        if count:
            self.own().more += count

    # ---- what comes in

    def enqueue(self, delivery: Delivery) -> None:
        """Put *delivery*, which is counted, at the end of the queue."""
        self.queue = deque() if self.queue is NO_DELIVERIES else self.queue
        self.queue.append(delivery)

    def enqueue_run(self, run: QueuedRun) -> None:
        """Put *run*, for which there is room, at the end of the queue."""
        self.bytes += run.cost
        self.terms.budget.take_anyway(run.cost)
        queue = self.queue
        if queue is NO_DELIVERIES:
            queue = self.queue = deque()
        last = queue[-1] if queue else None
        if isinstance(last, QueuedRun) and last.extend(run):
            self.own().more += run.count
        else:
            queue.append(run)
            self._add_more(run.count - 1)

    def _enqueue(self, delivery: Delivery) -> None:
        """Queue *delivery*, which is counted, if that is allowed."""
        message = delivery.message
        if message.expires_at is not None:
            if message.expires_at <= self.terms.clock():
                self._drop(delivery, "expired")
                return
            if message.expires_at < self.queue_expires_at:
                self.queue_expires_at = message.expires_at
                self.terms.expiring(self)
        if self._is_full(self.waiting + 1) and not self._make_room(delivery):
            return
        delivery.message = message if message.qos else message.bare()  # the router drops the frames of others
        self.enqueue(delivery)
        self.queued_qos_0 += delivery.qos == 0

    # ---- what goes out

    def _take_next(self) -> Delivery:
        first = self.queue.popleft()
        if isinstance(first, QueuedRun):
            self._add_more(1 - first.count)
            deliveries = [*first.deliveries()]
            if first.part is not None:
                first.part.thawed(deliveries)
            self.queue.extendleft(reversed(deliveries))
            return self._take_next()
        self.queued_qos_0 -= first.qos == 0
        return first

    def take_run(self, version: Version) -> tuple[SentRun | None, int]:
        """Start what the queue, which is not empty, begins with as a run, if that is worth it; needs room.

        Gives the batch of the journal as well that must be committed before it leaves; 0: none.
        """
        inflight, first = self.table(), self.queue[0]
        if not isinstance(first, QueuedRun):
            return inflight.take_run(self.queue, version, self.terms.overhead), 0
        if first.part is not None and not first.part.record.takes_runs:
            return None, 0
        most = min(inflight.window - inflight.used, inflight.count_unused())
        if most < 1:
            return None, 0
        if first.count > most:
            run = first.take(most)
            self._add_more(-most)
        else:
            run = first
            self.queue.popleft()
            self._add_more(1 - first.count)
        five, identifier = version is Version.MQTT_5, inflight.next_unused()
        packets = run.numbered(five, identifier)
        sent = SentRun(identifier, run.count, packets, run.cost, run.client_id, five, 0.0)
        sent.part = run.part
        inflight.add_run(sent)
        return sent, 0 if run.part is None else run.part.sent(identifier)

    # ---- limits

    def _is_full(self, messages: int, more: int = 0) -> bool:
        """Whether *messages* in the queue, and *more* bytes than now, are too many."""
        terms = self.terms
        return messages > terms.maximum_queued_messages or self.bytes + more > terms.maximum_queued_bytes

    def room(self, size: int) -> int:
        """How many QoS 1 messages, *size* bytes in all, can be queued whatever their topics are."""
        terms = self.terms
        free = terms.maximum_queued_bytes - self.bytes - 4 * size  # see `text_size`
        return min(terms.maximum_queued_messages - self.waiting, free // (terms.overhead or 1))

    def _make_room(self, delivery: Delivery) -> bool:
        """The queue is full: whether *delivery*, counted in `bytes` already, may still go in.

        What has expired goes first, then QoS 0, then by setting.
        """
        policy = self.terms.queue_full
        if self.terms.clock() >= self.queue_expires_at:
            self.drop_expired()
        if self.queued_qos_0:
            self._drop_queued_qos_0()
        if policy == "drop_oldest" and delivery.message.size <= self.terms.maximum_queued_bytes:
            while self.queue and self._is_full(self.waiting + 1):
                self._drop(self._take_next(), "queue_full")
        if not self._is_full(self.waiting + 1):
            return True
        self.disconnect_slow = policy == "disconnect"
        self._drop(delivery, "queue_full")
        return False

    def drop_expired(self) -> None:
        """Drop what has expired in the queue. Cost: one look at all of it."""
        now = self.terms.clock()
        kept, expired, earliest = deque[Delivery | QueuedRun](), [], NEVER
        for queued in self.queue:
            deadline = None if isinstance(queued, QueuedRun) else queued.message.expires_at
            if deadline is None or isinstance(queued, QueuedRun):
                kept.append(queued)
            elif deadline <= now:
                expired.append(queued)
            else:
                kept.append(queued)
                earliest = min(earliest, deadline)
        self.queue, self.queue_expires_at = kept, earliest
        for delivery in expired:
            self.queued_qos_0 -= delivery.qos == 0
            self._drop(delivery, "expired")
        if earliest != NEVER:
            self.terms.expiring(self)

    def _drop_queued_qos_0(self) -> None:
        """Drop QoS 0 from the queue until there is room."""
        for queued in self._singles(lambda each: each.qos == 0):
            if not self._is_full(self.waiting + 1):
                return
            self.queue.remove(queued)
            self.queued_qos_0 -= queued.qos == 0
            self._drop(queued, "queue_full")

    def _shed_qos_0(self, cost: int) -> bool:
        """The budget of the process is spent: take *cost* bytes of what queued QoS 0 gives back."""
        if not self.queued_qos_0:
            return False
        for queued in self._take_out(lambda each: each.qos == 0):
            self._drop(queued, "memory")
        return self.terms.budget.take(cost)

    # ---- what leaves without being sent

    def take_shared(self, share: str = "") -> list[Delivery]:
        """Remove the queued, never sent deliveries of shared subscriptions: of *share*, or of all."""
        taken = self._take_out(lambda each: each.share != "" and (not share or each.share == share))
        for delivery in taken:
            self._release(delivery)
        return taken

    def revoke(self, delivery: Delivery) -> None:
        """The store refused the message of *delivery*; one that was sent already is completed."""
        if delivery.state is State.QUEUED and delivery in self.queue:
            self.queue.remove(delivery)
            self.queued_qos_0 -= delivery.qos == 0
            self._drop(delivery, "store_failed")

    def revoke_run(self, part: Any) -> None:
        """The same for the messages of a run."""
        for queued in self.queue:
            if isinstance(queued, QueuedRun) and queued.part is part:
                self.queue.remove(queued)
                self._add_more(1 - queued.count)
                self._drop_run(queued)
                for delivery in queued.deliveries():
                    self.terms.dropped(self.client_id, delivery.message, "store_failed")
                return

    def _singles(self, wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """The deliveries in the queue that are *wanted*: those in runs never are."""
        return [each for each in self.queue if isinstance(each, Delivery) and wanted(each)]

    def _take_out(self, wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove the deliveries that are *wanted*; they are counted still."""
        taken = self._singles(wanted)
        if taken:
            gone = set(taken)
            self.queue = deque(each for each in self.queue if each not in gone)
            self.queued_qos_0 -= sum(each.qos == 0 for each in taken)
        return taken

    def _empty(self) -> None:
        """Nothing waits any more."""
        for queued in self.queue:
            if isinstance(queued, QueuedRun):
                self._drop_run(queued)
            else:
                self._release(queued)
        self.queue = NO_DELIVERIES
        if self.extra is not NOTHING:
            self.extra.more = self.extra.queued_qos_0 = 0

    def _drop_run(self, run: QueuedRun | SentRun) -> None:
        self._give(run.cost)
        if run.part is not None:
            run.part.gone()

    def _drop(self, delivery: Delivery, reason: str) -> None:
        self._release(delivery)
        self.terms.dropped(self.client_id, delivery.message, reason)

    def _release(self, delivery: Delivery) -> int:
        """It is not ours any more; gives the batch to wait for before anything is made of that."""
        self._give(delivery.message.size + self.terms.overhead)
        return delivery.record.gone(delivery) if delivery.record is not None else 0

    def _give(self, cost: int) -> None:
        self.bytes -= cost
        self.terms.budget.give(cost)
