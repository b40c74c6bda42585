"""HookBase: override what you need. The contract of each method is in docs/hooks.md."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from broker.errors import StoreError
from broker.packet.enums import Version
from broker.packet.message import Message
from broker.packet.packets import Connect, Properties, SubscribeRequest


@dataclass(slots=True, eq=False)
class ClientInfo:
    """What hooks see of one connection. *attributes* is theirs: it lives as long as the connection."""

    client_id: str
    version: Version = Version.MQTT_5
    user_name: str | None = None
    password: bytes | None = None  # only until CONNACK: nothing keeps it longer
    clean_start: bool = True
    keep_alive: int = 0  # seconds, as the client asked
    address: str = "memory"  # host:port of the peer
    transport: str = "memory"  # tcp, tls, ws, wss, unix or memory
    listener: str = ""
    local: bool = True  # the peer is on this machine
    certificate: dict[str, Any] | None = None  # SSLSocket.getpeercert() of a verified certificate
    authentication_method: str | None = None
    authenticated: bool = False  # CONNACK 0x00 was sent
    session_expiry_interval: int = 0  # seconds, in force
    ended_by: str = ""  # from on_disconnect on: client, network or server
    publish_received: int = 0  # PUBLISH packets of this connection; these four in on_disconnect only
    publish_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    _user_properties: list[tuple[str, str]] | None = field(default=None, init=False, repr=False)
    _attributes: dict[str, Any] | None = field(default=None, init=False, repr=False)

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        """They go into the CONNACK."""
        if self._user_properties is None:
            self._user_properties = []
        return self._user_properties

    @user_properties.setter
    def user_properties(self, pairs: list[tuple[str, str]]) -> None:
        self._user_properties = pairs

    @property
    def attributes(self) -> dict[str, Any]:
        if self._attributes is None:
            self._attributes = {}
        return self._attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthStep:
    """One answer of an enhanced authentication method [MQTT5 4.12].

    *done* ends the exchange with success; otherwise the client is asked for more with *data*.
    """

    done: bool = False
    data: bytes | None = None
    reason_string: str | None = None
    user_properties: Sequence[tuple[str, str]] = ()


class Notes(Protocol):
    """What a hook wants to remember: small values by key, beyond the process where the broker has a store.

    All of it is in memory as well, and counts there. What is put in the same turn of the loop as a message is
    accepted is in the same commit: see `on_accepted`.
    """

    @property
    def durable(self) -> bool:
        """Whether they outlive the process."""

    def check(self) -> None:
        """Raises StoreUnavailable while the store cannot be written."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None:
        """Store or replace: at once in memory, and with the next commit in the store."""

    def delete(self, key: str) -> None:
        """Forget it, if it is there."""

    def items(self) -> list[tuple[str, bytes]]:
        """All of this hook, those that were put first before the others."""


Origin = Literal["client", "will", "program", "sys"]  # whose message it is
SessionState = Literal["created", "resumed", "taken_over", "expired", "ended"]


@dataclass(frozen=True, slots=True)
class Hold:
    """What must wait until a future is done. It may be shared: nobody cancels it."""

    acknowledgement: asyncio.Future[None] | None = None  # PUBACK or PUBREC leaves then; an error refuses
    reading: asyncio.Future[None] | None = None  # nothing more of the publisher is read until then


class BrokerApi(Protocol):
    """What `init` is given: the embedded interface of the broker."""

    async def publish(
        self,
        topic_name: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int: ...

    def notes(self, owner: str) -> Notes: ...

    async def disconnect(
        self, client_id: str, reason: int = ..., *, server_reference: str | None = ...
    ) -> bool: ...

    def ask_again(self, client_id: str | None = None) -> None:
        """What `may_publish` has allowed this client, or all, is asked anew from now on."""


class HookBase:
    """A plug-in. A method that is not overridden is never called and costs nothing.

    Coroutines may be overridden by plain functions. To refuse, raise a MqttError with a Reason Code
    of the packet in question. `broker.errors` has one class for each common refusal.
    """

    id: str = ""  # names the hook in logs; empty: the class name
    holds: bool = True  # on_taken may hold acknowledgements; False lets the fast lane take QoS 1 and 2

    async def init(self, broker: BrokerApi) -> None:
        """Once, before the first connection. An exception stops the start of the broker."""

    async def stop(self) -> None:
        """Once, after the last connection."""

    @property
    def provides(self) -> frozenset[str]:
        """The names of the events that this hook overrides."""
        mine = type(self)
        return frozenset(name for name in EVENTS if getattr(mine, name) is not getattr(HookBase, name))

    async def on_connect(self, client: ClientInfo, packet: Connect) -> None:
        """Authenticate and authorize. Fail fast: a MqttError refuses with CONNACK [MQTT5 3.1.4].

        Setting `packet.client_id` gives the client another ClientID, which CONNACK returns.
        """

    async def on_auth(self, client: ClientInfo, method: str, data: bytes | None) -> AuthStep | None:
        """A step of enhanced authentication [MQTT5 4.12]. First provider: None means not my method.

        `client.authenticated` tells re-authentication from the first one.
        """
        return None

    async def on_connected(self, client: ClientInfo) -> None:
        """CONNACK 0x00 was sent. Notify all."""

    async def on_disconnect(self, client: ClientInfo, reason: int, text: str) -> None:
        """An accepted connection has ended; *reason* 0x00 is the client's own wish. Notify all."""

    async def on_subscribe(self, client: ClientInfo, request: SubscribeRequest) -> SubscribeRequest:
        """Once per filter, in order. Transform chain; a MqttError refuses this filter in SUBACK."""
        return request

    async def on_unsubscribe(self, client: ClientInfo, topic_filter: str) -> None:
        """Once per filter, in order. Fail fast: a MqttError refuses this filter in UNSUBACK (5.0)."""

    def may_publish(self, client: ClientInfo, topic_name: str) -> bool:
        """May this client publish to this topic? All must pass; never waits.

        True is remembered for the connection and the topic: see `BrokerApi.ask_again`. A hook that has this
        leaves the fast lane open.
        """
        return True

    async def on_publish(self, client: ClientInfo, message: Message) -> None:
        """May this client publish this? Once per message. Fail fast: a MqttError refuses it."""

    async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
        """The message to use instead, after all allowed it. Transform chain, once per message."""
        return message

    def on_accepted(self, client: ClientInfo, message: Message) -> None:
        """Everybody allowed *message*: it is held, retained or routed next. Fail fast; never waits.

        AcknowledgeOnly: the client gets its acknowledgement, and nothing else happens.
        """

    def on_taken_back(self, client: ClientInfo, message: Message) -> None:
        """A message that `on_accepted` was told of is refused after all. Notify all; never waits."""

    def on_publish_deliver(self, client_id: str, message: Message) -> Message:
        """The message that this client is sent. Transform chain, once per delivery: never waits."""
        return message

    def can_read(self, client_id: str, topic_name: str) -> bool:
        """May this client be sent this topic? All must pass, once per delivery: never waits."""
        return True

    def on_taken(self, client: ClientInfo | None, message: Message, dup: bool, origin: Origin) -> Hold | None:
        """*message* is routed next, after all that was asked. Fail fast, never waits, may hold the answer.

        *client* is None where nobody but the program or the broker itself has published it.
        """
        return None

    def still_held(self) -> asyncio.Future[None] | None:
        """Done when all that `on_taken` was told of is where this hook keeps it; None: it is. Never waits.

        Asked where an answer or the store is about to speak of earlier messages. An error refuses that.
        """
        return None

    def on_taken_run(self, client: ClientInfo, packets: bytes, count: int) -> None:
        """In place of `on_taken` for *count* messages at once, from the fast lane. Never waits, nor refuses.

        *packets* are whole packets as the client sent them, with PUBLISH among others, and without
        Topic Aliases. A hook that has this and `on_taken` leaves the fast lane open.
        """

    def on_delivered(self, client_id: str, message: Message, qos: int) -> None:
        """A PUBLISH with *message* is on its way to the socket of *client_id*. Notify all; never waits."""

    def on_acknowledged(self, client_id: str, message: Message, qos: int, reason: int) -> None:
        """*client_id* has acknowledged *message* to the end. Notify all; never waits."""

    def on_connack(self, client: ClientInfo, reason: int, session_present: bool) -> None:
        """A connection was accepted (0x00), or refused for *reason*. Notify all; never waits."""

    def on_session(self, client_id: str, state: SessionState, waiting: int) -> None:
        """The session of *client_id*, in which *waiting* messages wait, is *state* now. Never waits."""

    def on_subscribed(
        self, client: ClientInfo, request: SubscribeRequest, reason: int, identifier: int
    ) -> None:
        """SUBACK says *reason* about *request*, as it was granted or as it was asked. Never waits.

        *identifier* is the Subscription Identifier; 0: none.
        """

    def on_unsubscribed(self, client: ClientInfo, topic_filter: str, reason: int) -> None:
        """UNSUBACK says *reason* about *topic_filter*. Notify all; never waits."""

    def sys_values(self) -> Mapping[str, int | str]:
        """What `$SYS/broker/...` says of this hook, by the rest of the Topic Name. Never waits."""
        return {}

    async def on_session_created(self, client_id: str) -> None:
        """A session began. Notify all."""

    async def on_session_resumed(self, client_id: str) -> None:
        """A session goes on over a new connection. Notify all."""

    async def on_session_ended(self, client_id: str) -> None:
        """A session and all in it is gone. Notify all."""

    async def store_retained(self, message: Message) -> None:
        """Store, replace or (empty payload) delete a retained message. First provider."""

    async def get_retained(self, topic_filter: str) -> Iterable[Message]:
        """All retained messages that match *topic_filter*. First provider."""
        return ()

    def on_dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        """A message was not delivered to *client_id*, for *reason*. Notify all; never waits."""

    def on_store_failed(self, failure: StoreError) -> None:
        """The store cannot be written any more: what needs it is refused. Notify all; never waits."""

    def on_store_recovered(self) -> None:
        """The store can be written again. Notify all; never waits."""


EVENTS = (
    "on_connect",
    "on_auth",
    "on_connected",
    "on_disconnect",
    "on_subscribe",
    "on_unsubscribe",
    "may_publish",
    "on_publish",
    "on_publish_received",
    "on_accepted",
    "on_taken_back",
    "on_publish_deliver",
    "can_read",
    "on_session_created",
    "on_session_resumed",
    "on_session_ended",
    "store_retained",
    "get_retained",
    "on_dropped",
    "on_store_failed",
    "on_store_recovered",
    "on_taken",
    "still_held",
    "on_taken_run",
    "on_delivered",
    "on_acknowledged",
    "on_connack",
    "on_session",
    "on_subscribed",
    "on_unsubscribed",
    "sys_values",
)
