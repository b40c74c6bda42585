"""What a session shares with all others, what it needs of the world around it, and the will it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.packet.message import Message, travelling
from broker.packet.packets import Connect, Pubrel
from broker.session.delivery import Delivery
from broker.store.budget import ByteBudget
from broker.topic.subscription import Subscription

NEVER: Final = float("inf")


@dataclass(slots=True)
class PendingWill:
    """A will that is stored with a session. *delay* is in seconds; 0 for 3.x."""

    message: Message
    delay: int = 0


def will_of(packet: Connect) -> PendingWill | None:
    """The will that *packet* carries. Its message expiry starts at publication, not here."""
    will = packet.will
    if will is None:
        return None
    delay = will.properties.get("will_delay_interval", 0)
    message = Message(
        topic_name=will.topic_name,
        payload=will.payload,
        qos=will.qos,
        retain=will.retain,
        properties=travelling(will.properties),
        client_id=packet.client_id,
    )
    return PendingWill(message, delay)


def will_due(will: PendingWill, left_at: float, session_ends_at: float) -> float:
    """When the will is to be published: after its delay, or with the session if that ends earlier."""
    return min(left_at + will.delay, session_ends_at)


class Link(Protocol):
    """What a session needs of the client that is connected to it."""

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
        """Queue a PUBLISH; False: dropped and counted, for this client only.

        It leaves when batch *after* of the journal is committed; 0: at once.
        """

    def publish_queued(self, session: Any) -> bool:
        """Send what the queue of *session*, which is `ready`, begins with in one piece; False: one by one."""

    def send(self, packet: Pubrel, after: int = 0) -> None:
        """Queue a control packet; never dropped. *after* is as in `publish`."""

    def fits(self, message: Message, qos: int, identifiers: tuple[int, ...]) -> bool:
        """Whether the client's Maximum Packet Size allows the PUBLISH of *message*."""

    @property
    def keeps_retain(self) -> bool:
        """It knows Retain As Published: 3.x does not, whoever made the subscription."""

    @property
    def full(self) -> bool:
        """Its socket takes no more: QoS 1 and 2 had better wait in the session."""


class Recorder(Protocol):
    """What a session tells a durable store: every change of its state, before anybody else sees it."""

    whole: bool

    @property
    def stored(self) -> bool:
        """Whether the session would be there after a crash in this moment."""

    def note(self) -> None:
        """Will, deadlines, owner or interval have changed."""

    def subscribed(self, subscription: Subscription) -> None: ...

    def unsubscribed(self, topic_filter: str) -> None: ...

    def kept(self, delivery: Delivery) -> None: ...

    def stepped(self, delivery: Delivery) -> int:
        """It was sent or released; gives the batch that must be committed before that leaves, or 0."""

    def unstored(self, delivery: Delivery) -> int:
        """The batch of its last change, if that is not committed yet, else 0."""

    def gone(self, delivery: Delivery) -> int:
        """It is not ours any more; as `stepped`."""

    @property
    def takes_runs(self) -> bool:
        """Whether it can be told of many messages at once."""

    def kept_run(self, run: Any, stored: Any, packet_id: int = 0) -> Any:
        """The session owns the messages of a QueuedRun: see record.Part."""

    def held(self, packet_id: int, message: Message) -> None: ...

    def let_go(self, packet_id: int, message: Message) -> None: ...


def _nobody(session: Any) -> None:
    """Nobody looks at the deadlines of queues."""


@dataclass(slots=True, kw_only=True)
class Terms:
    """What all sessions of one broker share."""

    clock: Callable[[], float]
    budget: ByteBudget
    dropped: Callable[[str, Message | None, str], None]  # client_id, message, reason
    expiring: Callable[[Any], None] = _nobody  # `queue_expires_at` of a session came nearer
    overhead: int = 0  # bytes that the objects around a message or subscription take, in the budget
    maximum_queued_messages: int = 1000
    maximum_queued_bytes: int = 1 << 26  # queued, in flight and held, of one session
    queue_full: str = "drop_newest"
    queue_qos_0: bool = False
    turnover: int = 0  # grows when a connection takes or leaves a session
