"""A session outside of a broker: its link writes down what it is given, its clock is the test's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from broker.packet.message import Message
from broker.packet.packets import Pubrel
from broker.session.inflight import Inflight
from broker.session.session import Session
from broker.session.terms import Terms
from broker.store.budget import ByteBudget
from broker.topic.subscription import Subscription
from tests.peer import Clock


class Sent(NamedTuple):
    """A PUBLISH as a link was given it."""

    payload: bytes
    qos: int = 0
    packet_id: int = 0
    dup: bool = False
    retain: bool = False
    identifiers: tuple[int, ...] = ()


class FakeLink:
    """A client that takes everything, until a test says that its socket is full or a message too large."""

    def __init__(self, too_large: Iterable[bytes] = ()) -> None:
        self.sent: list[Sent | Pubrel] = []
        self.too_large = set(too_large)
        self.full = False
        self.keeps_retain = True

    def publish(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        packet_id: int = 0,
        dup: bool = False,
        after: int = 0,
    ) -> bool:
        if message.payload in self.too_large:
            return False
        self.sent.append(Sent(message.payload, qos, packet_id, dup, retain, identifiers))
        return True

    def publish_queued(self, session: Session) -> bool:
        return False

    def send(self, packet: Pubrel, after: int = 0) -> None:
        self.sent.append(packet)

    def fits(self, message: Message, *_: Any) -> bool:
        return message.payload not in self.too_large

    def take(self) -> list[Sent | Pubrel]:
        """What was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent

    def payloads(self) -> list[bytes]:
        return [each.payload for each in self.take() if isinstance(each, Sent)]


class Bench:
    """One session with a clock, a byte budget, and a list of what was dropped."""

    def __init__(self, budget: int = 1 << 20, **terms: Any) -> None:
        self.clock = Clock()
        self.budget = ByteBudget(budget)
        self.drops: list[tuple[bytes, str]] = []
        self.session = Session("c", self.terms(**terms))

    def terms(self, **terms: Any) -> Terms:
        return Terms(clock=self.clock, budget=self.budget, dropped=self._dropped, **terms)

    def _dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        assert client_id == "c" and message is not None
        self.drops.append((message.payload, reason))

    def attach(self, window: int = 10, **link: Any) -> FakeLink:
        """A connection takes the session over, and what waits is sent."""
        made = FakeLink(**link)
        self.session.attach(made, window)
        self.session.pump()
        return made

    def detach(self) -> None:
        assert self.session.detach(self.session.link)

    def deliver(self, *payloads: bytes, qos: int = 1, subscribed: int = 2, **fields: Any) -> None:
        for payload in payloads:
            self.session.deliver(message(payload, qos, **fields), Subscription("t", subscribed))

    def queued(self) -> list[bytes]:
        return [delivery.message.payload for delivery in self.session.queue]

    def held_bytes(self) -> int:
        """What the budget ought to count: every message that is queued, in flight or held."""
        session, inflight = self.session, self.session.inflight
        deliveries = [*session.queue, *inflight.entries.values()]
        return sum(d.message.size for d in deliveries) + sum(m.size for m in inflight.held.values())

    def check_balance(self) -> None:
        session = self.session
        assert self.budget.used == self.held_bytes()
        assert session.bytes == self.held_bytes()
        assert session.inflight.used == sum(d.counted for d in session.inflight.entries.values())


def message(payload: bytes = b"", qos: int = 1, **fields: Any) -> Message:
    return Message("t", payload, qos, **fields)


def in_flight(inflight: Inflight) -> list[bytes]:
    return [delivery.message.payload for delivery in inflight.entries.values()]
