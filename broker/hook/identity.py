"""Identified: who a client is; Extra and Waiting: what few connections have. An idle one takes little."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Any, Final

from broker.errors import DisconnectedByClient, MqttError
from broker.hook.base import ClientInfo
from broker.hook.begun import Later
from broker.packet.enums import Version


class Phase(IntEnum):
    """How far a connection has come."""

    NEW = 0  # no complete CONNECT yet
    AUTHENTICATING = 1  # enhanced authentication [MQTT5 4.12]
    CONNECTED = 2  # CONNACK 0x00 was sent
    GONE = 3  # nothing more is read or sent


class Extra:
    """Of one Client; made when the first of it is needed. Nobody changes NOTHING, which all others have."""

    __slots__ = (
        "aliases", "dropped", "exchange", "greeting", "judged", "leaving", "outbound_aliases",
        "partial_counted", "partial_since", "receiving", "writer",
    )  # fmt: skip

    def __init__(self) -> None:
        self.writer: asyncio.Task[None] | None = None  # runs `Outbound.write_loop`
        self.greeting: asyncio.Task[None] | None = None  # the hooks that are told of the connection
        self.leaving: asyncio.Task[None] | None = None  # what sees to its session afterwards
        self.exchange: object = None  # the state of enhanced authentication, for its handler
        self.partial_since: float | None = None  # a packet was begun then, and is not whole
        self.partial_counted = 0  # bytes of it, in the budget
        self.aliases: Any = None  # InboundAliases, once the client uses any
        self.outbound_aliases: Any = None  # OutboundAliases, if the client takes any
        self.dropped: Counter[str] | None = None  # messages not delivered on this connection, by reason
        # Of the PUBLISH packets that are read next: what hooks were shown, and what they said (lane.asked).
        self.judged: deque[tuple[Any, Any]] | None = None
        self.receiving: set[int] | None = None  # QoS 2 identifiers of this connection, PUBLISH to PUBCOMP


NOTHING: Final = Extra()


@dataclass(slots=True)
class Asked:
    """What CONNECT asked for. Nobody changes one: all that ask for the same have it."""

    clean_start: bool
    keep_alive: int  # seconds: as the client asked, and once it is connected those in force
    expiry_interval: int  # seconds
    maximum_packet_size: int | None  # bytes
    problem_information: bool
    bridge: bool


ASKED: Final = 4096  # different ones that are shared
_asked: dict[tuple[Any, ...], Asked] = {}


def asked(
    clean_start: bool = True, keep_alive: int = 0, expiry_interval: int = 0,
    maximum_packet_size: int | None = None, problem_information: bool = True, bridge: bool = False,
) -> Asked:  # fmt: skip
    """The one for all that asked for the same."""
    key = clean_start, keep_alive, expiry_interval, maximum_packet_size, problem_information, bridge
    found = _asked.get(key)
    if found is None:
        found = Asked(*key)
        if len(_asked) < ASKED:
            _asked[key] = found
    return found


OVER: Final = 2  # `serving` of who is read no more
HANDLING: Final = inf  # `last_packet_at` while a handler is at work
SHORTEST_CONNACK: Final = 5  # bytes: all that is safe to send while CONNECT was not understood
UNASKED: Final = asked(maximum_packet_size=SHORTEST_CONNACK)  # there was no CONNECT yet


class Waiting:
    """What an Outbound knows of bytes that wait, for the socket, a commit or a feed; the others have IDLE."""

    __slots__ = (
        "blocked", "blocked_bytes", "blocked_since", "control_bytes", "corked", "feed", "full", "gate",
        "gated_bytes", "held", "pending_counted", "pending_seen", "unblocked", "waker", "writing",
    )  # fmt: skip

    def __init__(self) -> None:
        self.blocked = False  # the socket takes no more
        self.full = False  # and enough waits for it
        self.corked = 0  # the batch that must be committed before anything leaves
        self.gate: deque[Any] | None = None
        self.blocked_bytes = 0  # of the byte budget
        self.blocked_since = 0.0
        self.control_bytes = 0
        self.gated_bytes = 0  # of the byte budget
        self.held: asyncio.Future[None] | None = None  # what the first in the gate waits for
        self.pending_seen = 0
        self.pending_counted = 0  # in the byte budget
        self.writing = False  # write_loop runs
        self.waker: asyncio.Future[None] | None = None
        self.unblocked: asyncio.Future[None] | None = None
        self.feed: dict[str, list[Iterator[int]]] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is needed any more."""
        if self.writing or self.held or self.feed:
            return False
        waits = self.blocked or self.full or self.corked or self.gate
        counted = self.blocked_bytes or self.gated_bytes or self.pending_counted
        return not (waits or counted)


IDLE: Final = Waiting()  # of all for whom nothing waits; nobody changes it


class Identified:
    """Who a client is, and how far its connection has come.

    Nearly all do without a ClientInfo, which takes 150 bytes, while there are no hooks, and without an Extra.
    """

    __slots__ = (
        "_client_id", "_connection", "_info", "_user_name", "asked", "ending", "extra", "last_packet_at",
        "phase", "serving", "version", "waiting",
    )  # fmt: skip

    def __init__(self, connection: Any) -> None:
        """*connection* is a transport.Connection."""
        self._connection = connection
        self.phase = Phase.NEW
        self.extra = NOTHING
        self.waiting = IDLE
        self._info: ClientInfo | None = None  # once somebody looks; then ClientID and User Name are there
        self._client_id = ""
        self._user_name: str | None = None
        self.version = Version.MQTT_5
        self.asked = UNASKED
        self.serving = 0  # 1: somebody reads; OVER: nobody will
        self.last_packet_at = 0.0  # or HANDLING
        self.ending: MqttError | None = None

    @property
    def over(self) -> bool:
        """Nothing is read any more."""
        return self.serving == OVER

    @property
    def handling(self) -> bool:
        """A handler is at work: that is not the client's silence."""
        return self.last_packet_at == HANDLING

    @property
    def normal(self) -> bool:
        """The client said DISCONNECT 0x00."""
        return isinstance(self.ending, DisconnectedByClient) and self.ending.reason == 0

    @property
    def cost(self) -> int:
        """Bytes of memory that it takes while it is idle, about."""
        cost: int = self._connection.cost
        return cost

    @property
    def careful(self) -> bool:
        """A Maximum Packet Size or Topic Aliases: no frame fits all."""
        return self.asked.maximum_packet_size is not None or self.extra.outbound_aliases is not None

    @property
    def keeps_retain(self) -> bool:
        """See session.terms.Link."""
        return self.version is Version.MQTT_5 or self.asked.bridge

    @property
    def peer(self) -> Any:
        """A transport.Peer: who is at the other end."""
        return self._connection.peer

    @property
    def client_id(self) -> str:
        return self._client_id if self._info is None else self._info.client_id

    @client_id.setter
    def client_id(self, client_id: str) -> None:
        self._client_id = client_id
        if self._info is not None:
            self._info.client_id = client_id

    @property
    def user_name(self) -> str | None:
        return self._user_name if self._info is None else self._info.user_name

    @user_name.setter
    def user_name(self, user_name: str | None) -> None:
        self._user_name = user_name
        if self._info is not None:
            self._info.user_name = user_name

    @property
    def info(self) -> ClientInfo:
        """What hooks see of it, made for the first who asks: 150 bytes that most connections do without."""
        return self.look(self.peer) if self._info is None else self._info

    def look(self, peer: Any) -> ClientInfo:
        """There are hooks, and they may look from now on. *peer* is its `peer`."""
        self._info = ClientInfo(
            self._client_id, self.version, self._user_name, None, self.asked.clean_start,
            self.asked.keep_alive, peer.address, peer.transport, peer.listener, peer.local, peer.certificate,
            authenticated=self.phase is Phase.CONNECTED,
        )  # fmt: skip
        return self._info

    def accepted(self) -> None:
        """CONNACK 0x00 is sent: hooks are told so, and nobody needs the password any more."""
        if self._info is not None:
            self._info.authenticated, self._info.password = True, None

    # ---- what hooks are told at the end: nobody counts for those who are not there

    def count_received(self, size: int) -> None:
        """*size* bytes of it were read."""
        if self._info is not None:
            self._info.bytes_received += size

    def count_published(self) -> None:
        """It sent a PUBLISH."""
        if self._info is not None:
            self._info.publish_received += 1

    def count_sent(self, count: int) -> None:
        """*count* PUBLISH packets are on their way to it."""
        if self._info is not None:
            self._info.publish_sent += count

    def own(self) -> Extra:
        """Its `extra`, to put something there."""
        if self.extra is NOTHING:
            self.extra = Extra()
        return self.extra

    def forget_judged(self) -> None:
        """Nobody reads the messages any more that hooks were asked about already."""
        judged = self.extra.judged
        while judged:
            waits = judged.popleft()[1]
            if isinstance(waits, Later):
                waits.close()

    # ---- what waits to be sent

    def _wait(self) -> Waiting:
        """Its `waiting`, to put something there."""
        if self.waiting is IDLE:
            self.waiting = Waiting()
        return self.waiting

    def rest(self) -> None:
        """Give it back, if nothing waits any more."""
        if self.waiting is not IDLE and self.waiting.is_over:
            self.waiting = IDLE

    @property
    def blocked(self) -> bool:
        """The socket takes no more."""
        return self.waiting.blocked

    @property
    def full(self) -> bool:
        """And enough waits for it; see terms.Link."""
        return self.waiting.full

    @property
    def corked(self) -> bool:
        """Nothing at all may leave before a commit."""
        return self.waiting.corked > 0

    @property
    def gate(self) -> deque[Any] | None:
        """What may leave after a commit, see outbound.Gated."""
        return self.waiting.gate
