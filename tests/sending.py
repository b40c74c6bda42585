"""Sending: the Outbound of a Client that is connected, over a Wire, with what it does told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.client import Client, ClientTerms, Phase, no_lane
from broker.config import Limits, Protocol
from broker.hook.identity import asked
from broker.hook.stats import Stats
from broker.packet.message import Message
from broker.packet.reader import Readers, TopicNames
from broker.session.delivery import Delivery
from broker.session.session import Session
from broker.session.terms import Terms
from broker.store.budget import ByteBudget
from broker.store.journal import Journal
from tests.wire import Wire

EXPIRED = Message("t", b"", 1, expires_at=-1.0)


class Sending:
    """Its `outbound`, and how often that told the client to go on: in as many turns of the loop, that is."""

    alive = 0

    def __init__(
        self,
        clock: Callable[[], float],
        journal: Journal,
        refused: Callable[[Client, bytes, Any, Exception], bytes | None],
        **limits: Any,
    ) -> None:
        self.wire, self.stats = Wire(), Stats(0)
        self.budget = ByteBudget(1 << 30)
        self.times_resumed = 0
        Sending.alive += 1
        of_client, readers = Limits(**limits), Readers(Limits().maximum_packet_size, TopicNames(True))
        self.outbound = Client(
            self.wire,
            ClientTerms(
                limits=of_client, protocol=Protocol(), clock=clock, stats=self.stats, budget=self.budget,
                readers=readers, dropped=lambda *_: None, dispatch=lambda *_: None, journal=journal,
                not_stored=refused, serve=lambda *_: None, lane=no_lane, express=None,
            ),
        )  # fmt: skip
        self.outbound.phase, self.outbound.asked = Phase.CONNECTED, asked()
        terms = Terms(clock=clock, budget=ByteBudget(1 << 30), dropped=self._resumed)
        session = self.outbound.session = Session("c", terms)
        session.attach(self.outbound, 10)
        session.enqueue(Delivery(EXPIRED, 1, False))

    def _resumed(self, client_id: str, message: Message | None, reason: str) -> None:
        """A client that goes on looks at what its session has: that has expired, and there is more."""
        self.times_resumed += 1
        session = self.outbound.session
        assert session is not None
        asyncio.get_running_loop().call_soon(session.enqueue, Delivery(EXPIRED, 1, False))

    @property
    def loops(self) -> list[asyncio.Task[Any]]:
        """The write loops that run."""
        running = (task for task in asyncio.all_tasks() if not task.cancelling())
        return [task for task in running if "write_loop" in repr(task.get_coro())]

    def end(self) -> None:
        """Whatever happened, no byte of the budget is held then, and nothing went wrong."""
        assert len(self.loops) <= Sending.alive, "one each"
        Sending.alive -= 1
        if self.outbound.extra.writer is not None:
            self.outbound.extra.writer.cancel()
        self.outbound.end_writing()
        assert self.budget.used == 0 and not isinstance(self.outbound.ending, AssertionError)
