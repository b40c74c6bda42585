"""Hooks for the tests: one that refuses by a table, enhanced authentication, slow and failing ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from broker.errors import BadUserNameOrPassword, MqttError, NotAuthorized
from broker.hook.base import AuthStep, ClientInfo, HookBase

Codes = Mapping[str, int]


class Policy(HookBase):
    """Refuses what its tables name, each with its Reason Code and the same extras.

    `Policy(publish={"no": 0x87}, subscribe={"no/#": 0x87}, unsubscribe={"stay": 0x87},
    connect={"banned-id": 0x8A}, users={"banned": 0x8A}, unreadable={"secret"}, credentials={"u": b"p"},
    reason_string="No.", user_properties=[("k", "v")], server_reference="other:1883")`.
    With *credentials* every CONNECT must carry a pair from them (0x86), and what came is in `seen` as
    (client_id, user_name, password).
    """

    def __init__(self, *, publish: Codes | None = None, subscribe: Codes | None = None,
                 unsubscribe: Codes | None = None, connect: Codes | None = None, users: Codes | None = None,
                 unreadable: Sequence[str] | set[str] = (), credentials: Mapping[str, bytes] | None = None,
                 reason_string: str | None = None,
                 user_properties: Sequence[tuple[str, str]] = (),
                 server_reference: str | None = None) -> None:  # fmt: skip
        self.tables = {"publish": publish or {}, "subscribe": subscribe or {},
                       "unsubscribe": unsubscribe or {}, "connect": connect or {},
                       "users": users or {}}  # fmt: skip
        self.unreadable, self.credentials = set(unreadable), credentials
        self.extras = {"reason_string": reason_string, "user_properties": user_properties,
                       "server_reference": server_reference}  # fmt: skip
        self.seen: list[tuple[str, str | None, bytes | None]] = []

    def _check(self, table: str, key: str) -> None:
        code = self.tables[table].get(key)
        if code is not None:
            raise MqttError(f"policy refuses {table} {key}", code, **self.extras)  # type: ignore[arg-type]

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        self.seen.append((packet.client_id, packet.user_name, packet.password))
        if self.credentials is not None and (
            packet.user_name not in self.credentials or self.credentials[packet.user_name] != packet.password
        ):
            raise BadUserNameOrPassword("wrong password", **self.extras)  # type: ignore[arg-type]
        self._check("connect", packet.client_id)
        self._check("users", packet.user_name or "")

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        self._check("publish", message.topic_name)

    async def on_subscribe(self, client: ClientInfo, request: Any) -> Any:
        self._check("subscribe", request.topic_filter)
        return request

    async def on_unsubscribe(self, client: ClientInfo, topic_filter: str) -> None:
        self._check("unsubscribe", topic_filter)

    def can_read(self, client_id: str, topic_name: str) -> bool:
        return topic_name not in self.unreadable


class Password(HookBase):
    """User "u" with password b"p", and nobody else; `seen` has (client_id, user_name, password)."""

    def __init__(self, user_name: str = "u", password: bytes = b"p") -> None:
        self.pair = (user_name, password)
        self.seen: list[tuple[str, str | None, bytes | None]] = []

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        self.seen.append((packet.client_id, packet.user_name, packet.password))
        if (packet.user_name, packet.password) != self.pair:
            raise BadUserNameOrPassword


class Seen(HookBase):
    """Lets everything pass and keeps the CONNECT packets in `connects`."""

    def __init__(self) -> None:
        self.connects: list[Any] = []

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        self.connects.append(packet)


class ConnackProperties(HookBase):
    """Adds User Properties to every CONNACK."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.pairs = pairs

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        client.user_properties.extend(self.pairs)


class EnhancedAuth(HookBase):
    """An enhanced authentication method of one step or two.

    *steps* 1: CONNECT carries the proof. *steps* 2: any CONNECT (or AUTH 0x19) data is answered
    with the challenge b"challenge", and AUTH 0x18 must carry the proof. The proof is b"proof", the
    final data b"welcome"; a wrong proof is refused with 0x87. `steps_seen` keeps the data that came.
    """

    def __init__(self, method: str = "X-TEST", steps: int = 1, *, reason_string: str | None = None,
                 user_properties: Sequence[tuple[str, str]] = ()) -> None:  # fmt: skip
        self.method, self.steps = method, steps
        self.extras: dict[str, Any] = {"reason_string": reason_string, "user_properties": user_properties}
        self.steps_seen: list[bytes | None] = []

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        """Overridden so that the broker has an authenticator; the method itself decides."""

    async def on_auth(self, client: ClientInfo, method: str, data: bytes | None) -> AuthStep | None:
        if method != self.method:
            return None
        self.steps_seen.append(data)
        if self.steps == 2 and not client.attributes.get("challenged"):
            client.attributes["challenged"] = True
            return AuthStep(data=b"challenge", **self.extras)
        client.attributes["challenged"] = False
        if data != b"proof":
            raise NotAuthorized("bad proof", **self.extras)
        return AuthStep(done=True, data=b"welcome", **self.extras)


class Slow(HookBase):
    """Authorizing a PUBLISH, SUBSCRIBE or UNSUBSCRIBE of a topic or filter with *prefix* takes *seconds*."""

    def __init__(self, prefix: str = "slow", seconds: float = 0.02) -> None:
        self.prefix, self.seconds = prefix, seconds

    async def _wait(self, topic: str) -> None:
        if topic.startswith(self.prefix):
            await asyncio.sleep(self.seconds)

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        await self._wait(message.topic_name)

    async def on_subscribe(self, client: ClientInfo, request: Any) -> Any:
        await self._wait(request.topic_filter)
        return request

    async def on_unsubscribe(self, client: ClientInfo, topic_filter: str) -> None:
        await self._wait(topic_filter)


class Gate(HookBase):
    """Holds a CONNECT with ClientID *name* and a PUBLISH to topic *name* until `server.run(gate.open())`."""

    def __init__(self, name: str = "gate") -> None:
        self.name, self.opened, self.waiting = name, asyncio.Event(), 0

    async def _wait(self, name: str) -> None:
        if name == self.name:
            self.waiting += 1
            await self.opened.wait()

    async def open(self) -> None:
        self.opened.set()

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        await self._wait(packet.client_id)

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        await self._wait(message.topic_name)


class Failing(HookBase):
    """Raises RuntimeError for the ClientID, topic or filter *name* in every authorising method.

    `server.expect_errors()` says that the broker's log of it is wanted.
    """

    def __init__(self, name: str = "boom") -> None:
        self.name = name

    def _fail(self, name: str) -> None:
        if name == self.name:
            raise RuntimeError("this hook fails on purpose")

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        self._fail(packet.client_id)

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        self._fail(message.topic_name)

    async def on_subscribe(self, client: ClientInfo, request: Any) -> Any:
        self._fail(request.topic_filter)
        return request

    async def on_unsubscribe(self, client: ClientInfo, topic_filter: str) -> None:
        self._fail(topic_filter)


class Dropped(HookBase):
    """Counts what the broker drops: (client_id, reason) in `events`."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def on_dropped(self, client_id: str, message: Any, reason: str) -> None:
        self.events.append((client_id, reason))


class Recorder(HookBase):
    """The harness' own: who is connected, so that a test can wait for the end of a connection."""

    id = "conformance-recorder"

    def __init__(self) -> None:
        self.live: dict[int, ClientInfo] = {}
        self.reasons: list[tuple[str, int, str]] = []  # (client_id, reason, text) of each end

    async def on_connected(self, client: ClientInfo) -> None:
        self.live[id(client)] = client

    async def on_disconnect(self, client: ClientInfo, reason: int, text: str) -> None:
        self.live.pop(id(client), None)
        self.reasons.append((client.client_id, reason, text))

    def has(self, client_id: str, port: str, address: str) -> bool:
        """Is the connection from *port* to the listener at *address* alive? Without ports: *client_id*.

        The port alone will not do: two connections to two listeners may have the same one.
        """
        for client in self.live.values():
            _, colon, tail = client.address.rpartition(":")
            if not (colon and tail.isdigit()):
                found = client.client_id == client_id
            else:
                found = tail == port and urlsplit(client.listener).port == urlsplit(address).port
            if found:
                return True
        return False
