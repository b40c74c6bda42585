"""Session: what the broker knows of a client, across its connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.packet.enums import PacketType, Version
from broker.packet.message import LAST_IDENTIFIER, Message
from broker.packet.packets import Pubrel
from broker.session.delivery import Delivery, HeldRun, SentRun, State
from broker.session.inflight import NO_DELIVERIES, blank
from broker.session.queue import NOTHING, Queue
from broker.session.terms import NEVER, Link, PendingWill, Recorder, Terms
from broker.store.budget import same
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription, footprint

FOR_EVER: Final = 0xFFFFFFFF  # the Session Expiry Interval that never ends [MQTT5 3.1.2.11.2]


class Session(Queue):
    """The state of one ClientID [MQTT5 4.1]: subscriptions, queue, in-flight messages both ways, will.

    A Subscriber: `deliver` is a plain call from the router. `link` is the connection that owns it. `ends_at`
    and `will_due` are deadlines on the clock, NEVER while they do not run. `fixed_bytes` is what it takes of
    the byte budget besides its messages (`bytes`). With a durable store, `recorder` is told of will and
    deadlines, and `state` (the same, or None for a session that ends with its connection) of all else.
    """

    __slots__ = (
        "_subscribed",
        "ends_at",
        "expiry_interval",
        "fixed_bytes",
        "link",
        "recorder",
        "state",
        "user_name",
        "version",
    )  # fmt: skip

    def __init__(self, client_id: str, terms: Terms) -> None:
        super().__init__(client_id, terms)
        self._subscribed: Subscription | dict[str, Subscription] | None = None  # most have one or none
        self.fixed_bytes = 0
        self.expiry_interval = 0  # seconds
        self.ends_at = NEVER
        self.link: Link | None = None
        self.user_name: str | None = None
        self.version = Version.MQTT_5  # of the latest connection
        self.recorder: Recorder | None = None
        self.state: Recorder | None = None

    @property
    def connected(self) -> bool:
        return self.link is not None

    @property
    def will(self) -> PendingWill | None:
        """Of the latest connection."""
        return self.extra.will

    @will.setter
    def will(self, will: PendingWill | None) -> None:
        if will is not self.extra.will:
            self.own().will = will

    @property
    def will_due(self) -> float:
        """When it is to be published: NEVER while that does not run."""
        return self.extra.will_due

    @will_due.setter
    def will_due(self, will_due: float) -> None:
        if will_due != self.extra.will_due:
            self.own().will_due = will_due

    @property
    def info(self) -> object:
        """ClientInfo of the connection that left a will, for its authorization."""
        return self.extra.info

    @info.setter
    def info(self, info: object) -> None:
        if info is not self.extra.info:
            self.own().info = info

    # ---- connections

    def rest(self) -> None:
        """Give back what is needed only while messages are on their way or a will is left, if none are."""
        if self.extra is not NOTHING and self.extra.is_over:
            self.extra = NOTHING
        if not self.queue:
            self.queue = NO_DELIVERIES
        self.spare_table()

    def attach(self, link: Link, window: int) -> None:
        """A connection takes the session over. Nothing is sent before `pump`."""
        self.link = link
        self.ends_at = NEVER
        if self.extra is not NOTHING:
            self.will_due = NEVER
            self.disconnect_slow = False  # a queue that filled up while nobody was connected
        self.terms.turnover += 1
        self.thaw()
        self.inflight = self.inflight.open(window)
        self.note()

    def note(self) -> None:
        """Tell the store of what it knows of this session as such."""
        if self.recorder is not None:
            self.recorder.note()

    def detach(self, link: Link) -> bool:
        """The connection is gone; False when another one owns the session by now, or none."""
        if self.link is not link:
            return False
        self.link = None
        self.terms.turnover += 1
        self.inflight = self.inflight.close()
        return True

    # ---- delivery

    def deliver(self, message: Message, subscription: Subscription) -> None:
        """Send *message* or keep it for later [MQTT5 4.5]. Never waits."""
        options = subscription.options
        qos = message.qos if message.qos < options.qos else options.qos
        retain = message.retain and options.retain_as_published
        link = self.link
        if qos == 0:
            if link is not None and not self.extra.queued_qos_0:
                link.publish(message, 0, retain and link.keeps_retain, options.identifiers)
                return
            if not self.terms.queue_qos_0:
                self.terms.dropped(self.client_id, message, "offline")
                return
        share = subscription.topic_filter if options.share_name else ""
        self.keep(Delivery(message, qos, retain, options.identifiers, share))

    def deliver_retained(self, message: Message, qos: int, identifiers: tuple[int, ...]) -> None:
        """A retained message because of a SUBSCRIBE: RETAIN is 1 [MQTT5 3.3.1.3]."""
        qos = min(qos, message.qos)
        if qos == 0 and self.link is not None:
            self.link.publish(message.bare(), 0, True, identifiers)  # a copy: frames are not for the store
        elif qos > 0:
            self.keep(Delivery(message.bare(), qos, True, identifiers, requested=True))

    def keep(self, delivery: Delivery) -> None:
        """Send *delivery* at once if its turn has come, else queue it."""
        terms, cost = self.terms, delivery.message.size + self.terms.overhead
        at_once = not self.queue and not self.inflight.resend and self.ready
        if delivery.qos == 0 and terms.budget.low:
            terms.dropped(self.client_id, delivery.message, "memory")
            return
        taken = terms.budget.take(cost) or self._shed_qos_0(cost)
        if not taken and not (at_once and terms.budget.take_more(cost, self.bytes)):
            terms.dropped(self.client_id, delivery.message, "memory")
            return
        alone = self.bytes == 0
        self.bytes += cost
        if self.state is not None:
            self.state.kept(delivery)
        if at_once and (alone or self.bytes <= terms.maximum_queued_bytes):
            self._start(delivery)
        else:
            self._enqueue(delivery)

    @property
    def ready(self) -> bool:
        """Whether a QoS 1 or 2 message could be sent in this moment."""
        link, inflight = self.link, self.inflight
        room = inflight.used < inflight.window and len(inflight.entries) < LAST_IDENTIFIER  # `inflight.room`
        return link is not None and room and not link.full

    def _start(self, delivery: Delivery) -> None:
        link = self.link
        assert link is not None
        message = delivery.message
        retain = delivery.retain and self._retain(delivery)
        if delivery.qos == 0:  # queued while offline
            link.publish(message, 0, retain, delivery.identifiers, after=self._release(delivery))
            return
        (self.table() if self.inflight.blank else self.inflight).start(delivery)
        after = 0 if delivery.record is None else self._stepped(delivery)
        sent = link.publish(
            message, delivery.qos, retain, delivery.identifiers, delivery.packet_id, after=after
        )
        if not sent:  # too large for this client: counts as completely sent [MQTT-3.1.2-25]
            self.inflight.finish(delivery)
            self._release(delivery)

    def _retain(self, delivery: Delivery) -> bool:
        return delivery.requested or (self.link is not None and self.link.keeps_retain)

    def _stepped(self, delivery: Delivery) -> int:
        """Tell the store of its new state; gives the batch to wait for."""
        return delivery.record.stepped(delivery) if delivery.record is not None else 0

    @staticmethod
    def _unstored(delivery: Delivery) -> int:
        return delivery.record.unstored(delivery) if delivery.record is not None else 0

    def pump(self) -> None:
        """Send what may be sent now: first what an earlier connection left, in order, then the queue."""
        if self.inflight.resend:
            self._resend()
        while self.queue and not self.inflight.resend and self.ready:
            if self.link is not None and self.link.publish_queued(self):
                continue
            delivery = self._take_next()
            expires_at = delivery.message.expires_at
            if expires_at is not None and expires_at <= self.terms.clock():
                self._drop(delivery, "expired")
            else:
                self._start(delivery)
                delivery.message.forget_frames()

    def _resend(self) -> None:
        first = self.inflight.used == 0  # nothing was acknowledged on this connection yet
        while self.inflight.resend and self._resend_next():
            pass
        if first and self.link is not None and not self.link.full:
            for delivery in self.inflight.take_released():
                self.link.send(Pubrel(delivery.packet_id), self._unstored(delivery))

    def _resend_next(self) -> bool:
        """Send the first unfinished delivery again [MQTT5 4.4]; False when it must wait."""
        inflight, link = self.inflight, self.link
        delivery = inflight.resend[0]
        if delivery.state is State.DONE:
            inflight.resend.popleft()
            return True
        if link is None or link.full:
            return False
        if delivery.state is State.WAIT_PUBCOMP:
            inflight.resend.popleft()
            link.send(Pubrel(delivery.packet_id), self._unstored(delivery))
            return True
        if inflight.used >= inflight.window:
            return False
        inflight.resend.popleft()
        inflight.count(delivery)
        retain, after = delivery.retain and self._retain(delivery), self._unstored(delivery)
        if not link.publish(
            delivery.message, delivery.qos, retain, delivery.identifiers, delivery.packet_id, True, after
        ):
            inflight.finish(delivery)
            self._release(delivery)
        return True

    # ---- acknowledgements of what we sent

    def acknowledge(self, packet_id: int, packet: PacketType, reason_code: int) -> Delivery | None:
        """PUBACK, PUBREC or PUBCOMP from the client. See Inflight.acknowledge."""
        if packet_id not in self.inflight.entries:
            self.thaw()
        delivery = self.inflight.acknowledge(packet_id, packet, reason_code)
        if delivery is not None and delivery.state is State.DONE:
            self._release(delivery)
            if self.queue or self.inflight.resend:
                self.pump()
        elif delivery is not None:
            self._stepped(delivery)
        return delivery

    def complete(self, delivery: Delivery) -> None:
        """The last acknowledgement of *delivery*, which waits for nothing else, has come."""
        self.inflight.finish(delivery)
        self._release(delivery)
        if self.queue or self.inflight.resend:
            self.pump()

    # ---- what the fast lane sends

    def send_run(self, run: SentRun, qos: int = 1) -> None:
        """*run* is on its way with *qos*, in its place behind all that was sent."""
        self.bytes += run.cost
        self.terms.budget.take_anyway(run.cost)
        if qos == 1:
            self.table().add_run(run)
        else:
            self.table().add_exact(run)

    def complete_run(self, count: int) -> None:
        """PUBCOMP for the first *count* QoS 2 messages that wait for it; then somebody must `pump`."""
        self._give(self.inflight.complete_run(count))

    def acknowledge_run(self, count: int) -> None:
        """PUBACK for the first *count* messages of the oldest run; then somebody must `pump`."""
        self._give(self.inflight.acknowledge_run(count))

    def thaw(self) -> None:
        """Something has to be known of single messages: runs become deliveries."""
        if self.inflight.runs or self.inflight.exact:
            thawed, cost = self.inflight.thaw()
            self._give(cost - sum(each.message.size + self.terms.overhead for each in thawed))

    # ---- QoS 2 of the client: held from PUBLISH to PUBREL

    def hold(self, packet_id: int, message: Message) -> bool:
        """Own *message* until its PUBREL; False when the session or the process holds too much."""
        cost = message.size + self.terms.overhead
        too_much = self.bytes > 0 and self.bytes + cost > self.terms.maximum_queued_bytes
        if too_much or not self.terms.budget.take(cost):
            return False
        self.bytes += cost
        self.table().hold(packet_id, message)
        if self.state is not None:
            self.state.held(packet_id, message)
        return True

    def let_go(self, packet_id: int) -> Message | None:
        """The message that *packet_id* held, which is held no longer."""
        message = self.inflight.let_go(packet_id)
        if message is not None:
            self._give(message.size + self.terms.overhead)
            if self.state is not None:
                self.state.let_go(packet_id, message)
        return message

    def hold_run(self, run: HeldRun) -> bool:
        """The same for many, of a session that is not stored."""
        several = self.bytes > 0 or run.count > 1
        too_much = several and self.bytes + run.cost > self.terms.maximum_queued_bytes
        if too_much or not self.terms.budget.take(run.cost):
            return False
        self.bytes += run.cost
        self.table().hold_run(run)
        return True

    def let_go_run(self, count: int) -> HeldRun:
        """The first *count* messages of the oldest run, which is held no longer."""
        run = self.inflight.let_go_run(count)
        self._give(run.cost)
        return run

    # ---- what it takes besides messages

    def charge(self, cost: int) -> None:
        """Count *cost* bytes (negative: no longer) of the budget for something that stays."""
        self.fixed_bytes = same(self.fixed_bytes + cost)
        self.terms.budget.take_anyway(cost)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """By full Topic Filter, as they are now: to be looked at only."""
        held = self._subscribed
        if isinstance(held, dict):
            return held
        return {} if held is None else {held.topic_filter: held}

    def subscribe(self, subscription: Subscription) -> None:
        """Add or replace a subscription. The first takes no dictionary, which has 184 bytes."""
        topic_filter, held = subscription.topic_filter, self.subscriptions
        if topic_filter not in held:
            self.charge(footprint(topic_filter, self.terms.overhead))
        if isinstance(self._subscribed, dict):
            self._subscribed[topic_filter] = subscription
        else:
            several = {**held, topic_filter: subscription}
            self._subscribed = subscription if len(several) == 1 else several
        if self.state is not None:
            self.state.subscribed(subscription)

    def unsubscribe(self, topic_filter: str) -> bool:
        """Remove a subscription; False if there is none."""
        if topic_filter not in self.subscriptions:
            return False
        if isinstance(self._subscribed, dict):
            del self._subscribed[topic_filter]
        else:
            self._subscribed = None
        self.charge(-footprint(topic_filter, self.terms.overhead))
        if self.state is not None:
            self.state.unsubscribed(topic_filter)
        return True

    def set_will(self, will: PendingWill | None) -> PendingWill | None:
        """Put *will* in the place of the one that is pending, which is returned; `note` tells the store."""
        if will is None and self.extra is NOTHING:
            return None
        before, self.will = self.will, will
        if will is None:
            self.info = None
        if before is not None:
            self.charge(-before.message.size)
        if will is not None:
            self.charge(will.message.size)
        return before

    # ---- shared subscriptions

    def turn(self, message: Message, subscription: Subscription) -> Turn:
        """How well this member of a group could take *message* now: a `shared.Turn` [MQTT5 4.8.2]."""
        qos = min(message.qos, subscription.qos)
        if self.link is not None:
            if not self.link.fits(message, qos, subscription.identifiers):
                return Turn.REFUSES
            if qos == 0:
                return Turn.FULL if self.link.full else Turn.READY
            if self.ready and not self.queue:
                return Turn.READY
            full = self._is_full(self.waiting + 1, message.size + self.terms.overhead)
            return Turn.REFUSES if full else Turn.FULL
        if qos == 0 or self._is_full(self.waiting + 1, message.size + self.terms.overhead):
            return Turn.REFUSES
        return Turn.OFFLINE

    def must_wait(self, message: Message, qos: int) -> bool:
        """Whether *message*, of which there is no hurry, had better not be delivered now."""
        if qos == 0 or (self.ready and not self.queue and self.bytes == 0):
            return False
        half_full = self.waiting >= max(1, (terms := self.terms).maximum_queued_messages // 2)
        too_much = 2 * self.bytes + message.size > terms.maximum_queued_bytes
        no_budget = not terms.budget.has(message.size + terms.overhead)
        return too_much or no_budget or (half_full and not self.ready)

    def take_unacknowledged(self) -> list[Delivery]:
        """Remove the QoS 1 deliveries of shared subscriptions that were sent and not acknowledged."""
        entries = self.inflight.entries.values()
        taken = [d for d in entries if d.share and d.state is State.WAIT_PUBACK]
        for delivery in taken:
            self.inflight.finish(delivery)
            self._release(delivery)
        return taken

    # ---- the end

    @property
    def is_bare(self) -> bool:
        """Whether nothing is held for it, as of one that came and went: 39 -> 37 us a connection."""
        holds = self.queue or self._subscribed is not None or self.state is not None
        return self.inflight.blank and self.extra is NOTHING and not holds

    def clear(self) -> None:
        """Give back all that is held for this session, but a pending will."""
        if self.is_bare:
            self.charge(-self.fixed_bytes)
            return
        for run in self.inflight.all_runs():
            self._drop_run(run)
        self._empty()
        for delivery in self.inflight.entries.values():
            self._release(delivery)
        for packet_id in tuple(self.inflight.held):
            self.let_go(packet_id)
        self.inflight = blank(0)
        self.forget_state()
        self._subscribed = None
        will = self.will.message.size if self.will is not None else 0
        self.charge(will - self.fixed_bytes)

    def forget_state(self) -> None:
        """The store is to forget all but the will: the session is over, or ends with its connection."""
        if self.state is None:
            return
        self.thaw()
        state, self.state = self.state, None
        for topic_filter in self.subscriptions:
            state.unsubscribed(topic_filter)
        for queued in (*self.queue, *self.inflight.entries.values()):
            if isinstance(queued, Delivery):
                state.gone(queued)
            elif queued.part is not None:
                queued.part.gone()
                queued.part = None
        for packet_id, message in self.inflight.held.items():
            state.let_go(packet_id, message)
        state.whole = False

    def ends_after(self, now: float) -> float:
        """The deadline of a session whose connection closes *now*."""
        return NEVER if self.expiry_interval == FOR_EVER else now + self.expiry_interval
