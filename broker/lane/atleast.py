"""QoS 1 in the fast lane: packets to all who get them, and their PUBACKs to the publisher."""

from __future__ import annotations

from typing import Any

from broker.client import Client
from broker.core import Core
from broker.lane.audience import Audience1
from broker.lane.runs import Run, Stretch
from broker.packet.message import rewrite
from broker.session.delivery import SentRun
from broker.session.session import Session


class AtLeastOnce:
    """One for all clients, as the Lane."""

    def __init__(self, core: Core) -> None:
        self._budget = core.budget
        self._clock = core.clock
        self._journal = core.journal
        self._stats = core.stats
        self._overhead = core.sessions.terms.overhead

    def has_room(self, audience: Audience1, size: int) -> bool:
        """Whether packets of a read, *size* bytes at most, may be sent now: `audience.room` says how many."""
        budget = self._budget
        return audience.opens(size, budget.maximum - budget.used, self._overhead)

    def answer(self, client: Client, answer: bytes, stored: Any) -> None:
        """PUBACKs, which wait until the messages are *stored*, unless that is None."""
        count = len(answer) // 4
        if stored is not None or client.waiting.gate:
            after = 0 if stored is None else self._journal.promise(-1)
            client.put_after(after, answer, stored, count)
        else:
            client.put_control(answer, count)

    def finished(self, client: Client, session: Session, count: int) -> None:
        """*client* has acknowledged *count* messages of runs for good: what waited may go on."""
        if count == 1:  # who gets a message now and then: most of them
            session.spare_table()
        session.pump()
        self._stats.messages_received += count
        client.resume_feed()

    def send(self, audience: Audience1, stretch: Stretch | Run) -> Any:
        """A *stretch* to all of *audience*, who have room; gives what was stored of it, or None."""
        stored: Any = None
        count, five, now = stretch.count, stretch.five, self._clock()
        made: dict[tuple[bool, int], bytes] = {}  # for those that are to get the same
        for member in audience.numbered:
            state = member.session.state
            if member.queues:
                queued = stretch.queued(self._overhead)
                if state is not None:
                    queued.part = state.kept_run(queued, stored)
                    stored = queued.part.stored
                member.session.enqueue_run(queued)
                continue
            first = member.session.inflight.next_unused()
            packets = made.get((five, first))
            if packets is None:
                packets = made[five, first] = stretch.numbered(five, first)
            cost = len(packets) + count * self._overhead
            # With the properties, whatever the client is told now: it may come back as one of 5.0.
            run = SentRun(first, count, packets, cost, stretch.client_id, five, now)
            if state is not None:
                run.part = state.kept_run(stretch.queued(self._overhead), stored, first)
                stored = run.part.stored
            if member.five != five:
                rewritten = made.get((member.five, first)) or rewrite(packets, five, 1, member.five, 1)
                packets = made[member.five, first] = rewritten
            member.session.send_run(run)
            member.outbound.put(packets, count)
        for member in audience.lowered:
            member.outbound.put(stretch.without_identifiers(member.five), count)
        stats = self._stats
        stats.publish_received += count
        stats.messages_received += count
        stats.publish_sent += count * (len(audience.members) - audience.queued)
        return stored
