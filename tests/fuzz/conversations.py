"""A whole broker in memory: several clients who do what the bytes say, and two who only want service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from broker import (
    AuthStep,
    Broker,
    Capacity,
    Config,
    HookBase,
    Limits,
    Message,
    MqttError,
    NotAuthorized,
    Protocol,
)
from broker.packet import packets as mqtt
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.message import as_message
from broker.topic.match import match
from tests.fuzz.pieces import Draw, record, split_records
from tests.fuzz.rogue import FILTERS, TOPICS, Rogue
from tests.fuzz.target import Target
from tests.peer import Clock, Peer, memory_broker
from tests.wire import turns, until

MOST = 40  # moves of one conversation
FOR_EVER = 1_000_000.0  # seconds, longer than any session is kept
BYSTANDERS = "bystander/one", "bystander/two"
THEIR_TOPIC = "bystander/topic"
METHOD = "method"
TIGHT = 300_000  # bytes of a budget that can be spent


class Whims(HookBase):
    """Waits a little, refuses some things and changes others; the bystanders it leaves alone."""

    async def on_connect(self, client: Any, packet: mqtt.Connect) -> None:
        await turns(2)
        if packet.user_name == "other":
            packet.client_id = "given"

    async def on_auth(self, client: Any, method: str, data: bytes | None) -> AuthStep | None:
        await turns(1)
        if data and data[0] & 1:
            client.user_name = "another"
        return AuthStep(done=bool(data), data=b"more") if method == METHOD else None

    async def on_publish(self, client: Any, message: Message) -> None:
        await turns(len(message.payload) % 3)
        if message.topic_name == "no":
            raise NotAuthorized("no")
        if message.topic_name == "b" and message.qos == 2:
            raise MqttError("no", 0x80)

    async def on_subscribe(self, client: Any, request: mqtt.SubscribeRequest) -> mqtt.SubscribeRequest:
        await turns(1)
        if request.topic_filter == "no" or (request.topic_filter == "a" and client.user_name == "another"):
            raise NotAuthorized("no")
        return replace(request, qos=0) if request.topic_filter == "b" else request

    async def on_unsubscribe(self, client: Any, topic_filter: str) -> None:
        await turns(1)
        if topic_filter == "/":
            raise NotAuthorized("no")

    async def on_disconnect(self, client: Any, reason: int, text: str) -> None:
        await turns(3)

    async def on_session_ended(self, client_id: str) -> None:
        await turns(3)

    def on_publish_deliver(self, client_id: str, message: Message) -> Message:
        changed = not client_id.startswith("bystander") and message.topic_name == "a"
        return message.with_(payload=message.payload + b"!") if changed else message

    def can_read(self, client_id: str, topic_name: str) -> bool:
        return (client_id, topic_name) != ("c1", "a/b/c")


class Shelf(HookBase):
    """Retained messages that a hook keeps."""

    def __init__(self) -> None:
        self._kept: dict[str, Message] = {}

    async def store_retained(self, message: Message) -> None:
        await turns(1)
        self._kept[message.topic_name] = message

    async def get_retained(self, topic_filter: str) -> list[Message]:
        await turns(1)
        return [message for name, message in self._kept.items() if match(topic_filter, name)]


# What the settings bytes choose: each takes the bits it needs, from the lowest on.
CHOICES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("scene", "hooks", (False, True)),
    ("scene", "shelf", (False, True)),
    ("scene", "stops", (False, True)),  # in the middle of it all
    ("capacity", "maximum_bytes", (1 << 30, TIGHT)),
    ("limits", "maximum_queued_messages", (1000, 5)),
    ("limits", "maximum_queued_bytes", (1 << 26, 5000)),
    ("limits", "queue_full", ("drop_newest", "drop_oldest", "disconnect", "drop_oldest")),
    ("limits", "queue_qos_0", (False, True)),
    ("limits", "maximum_outbound_packets", (256, 4)),
    ("limits", "receive_maximum", (1024, 2)),
    ("limits", "maximum_packet_size", (1 << 20, 1000)),
    ("limits", "maximum_subscriptions", (10_000, 3)),
    ("limits", "server_keep_alive", (0, 10)),
    ("limits", "message_expiry_interval", (0, 100)),
    ("limits", "retain_available", (True, False)),
    ("limits", "maximum_qos", (2, 1)),
    ("limits", "session_expiry_interval", (1000, 100)),
    ("protocol", "shared_unacknowledged", ("wait", "move")),
    ("protocol", "shared_choice", ("round_robin", "sticky", "hash", "round_robin")),
    ("protocol", "overlap", ("merge", "per_subscription")),
    ("protocol", "takeover", ("same_user", "any")),
    ("protocol", "refused_publish_qos_0", ("drop", "disconnect")),
    ("protocol", "refused_publish_3x", ("acknowledge", "close")),
    ("protocol", "refused_filter_3_1", ("grant", "close")),
    ("protocol", "validate_payload_format", (False, True)),
    ("protocol", "re_check_subscriptions", (False, True)),
    ("protocol", "re_authentication", ("same_user", "any")),
    ("protocol", "authorize_will", ("publish", "connect")),
    ("capacity", "maximum_sessions", (1000, 6)),
    ("capacity", "maximum_retained_messages", (1000, 2)),
    ("capacity", "maximum_connections_per_user", (0, 2)),
)
SETTINGS = 5  # bytes


def choose(settings: bytes, without: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Section -> name -> value; the first value for those named in *without*."""
    bits, chosen = int.from_bytes(settings, "little"), dict[str, dict[str, Any]]()
    for section, name, values in CHOICES:
        bits, index = divmod(bits, len(values))
        chosen.setdefault(section, {})[name] = values[0 if name in without else index]
    return chosen


def config(chosen: dict[str, dict[str, Any]]) -> Config:
    capacity = Capacity(sweep_interval=0, grace_time=0.01, **chosen["capacity"])
    limits, protocol = Limits(**chosen["limits"]), Protocol(**chosen["protocol"])
    return Config(limits=limits, protocol=protocol, capacity=capacity)


class Bystanders:
    """What one publishes at QoS 1 the other gets, at once, whatever the rest does."""

    def __init__(self, broker: Broker) -> None:
        self.peers = Peer(broker, Version.MQTT_5), Peer(broker, Version.MQTT_3_1_1)
        self._number = 0
        self._tight = broker.config.capacity.maximum_bytes == TIGHT

    async def begin(self) -> None:
        for peer, client_id in zip(self.peers, BYSTANDERS, strict=True):
            await peer.connect(client_id, user_name=client_id)
        await self.peers[1].subscribe(THEIR_TOPIC, qos=1)

    async def exchange(self) -> None:
        self._number += 1
        payload = b"%d" % self._number
        code = await self.peers[0].publish(THEIR_TOPIC, payload, qos=1)
        if code == 0x97 and self._tight:
            return
        assert code == 0, "the bystander is refused"
        got = await self.peers[1].expect(mqtt.Publish)
        assert (got.topic_name, got.payload, got.qos) == (THEIR_TOPIC, payload, 1), "the bystander's message"
        self.peers[1].send(mqtt.Puback(got.packet_id))

    def leave(self) -> None:
        self.peers[0].drop()
        self.peers[1].send(mqtt.Disconnect())


class Scene:
    """One conversation."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker, self.clock = broker, clock
        self.rogues = [Rogue(broker) for _ in range(4)]
        self.bystanders = Bystanders(broker)
        self.locals: list[Any] = []

    async def play(self, data: bytes) -> None:
        for head, body in split_records(data)[:MOST]:
            draw, rogue = Draw(body), self.rogues[head[0] >> 6]
            kind = head[0] & 0x3F
            if kind % 16 < len(OF_A_ROGUE):
                OF_A_ROGUE[kind % 16](rogue, draw)
            else:
                await OF_ALL[kind % len(OF_ALL)](self, draw)
            await turns(kind >> 4)
            for each in self.rogues:
                each.read()
            self.check_bounds()

    def check_bounds(self) -> None:
        """No session holds more than it may, but for one message that is larger than all of that."""
        most = self.broker.config.limits.maximum_queued_bytes
        for session in self.broker._core.sessions:
            held = session.waiting + len(session.inflight.entries) + len(session.inflight.held)
            assert session.bytes <= most or held == 1, f"{held} messages of {session.bytes} bytes"

    async def pass_time(self, draw: Draw) -> None:
        self.clock.now += draw.one_of((0.1, 1, 6, 11, 31, 1000))
        self.bystanders.peers[0].send(mqtt.Pingreq())
        self.bystanders.peers[1].send(mqtt.Pingreq())
        for peer in self.bystanders.peers:
            await peer.expect(mqtt.Pingresp)
        await self.broker.sweep()

    async def exchange(self, draw: Draw) -> None:
        await self.bystanders.exchange()

    async def program(self, draw: Draw) -> None:
        """What the program that embeds the broker does."""
        try:
            await draw.one_of(OF_THE_PROGRAM)(self, draw)
        except MqttError:
            pass

    async def disconnect(self, draw: Draw) -> None:
        await self.broker.disconnect(draw.one_of(("c0", "c1", "given", "")), 0x98)

    async def delete(self, draw: Draw) -> None:
        await self.broker.delete_session(draw.one_of(("c0", "c1", "given", "")))

    async def listen(self, draw: Draw) -> None:
        self.locals.append(self.broker.subscribe(draw.one_of(FILTERS), maximum=3))

    async def hear(self, draw: Draw) -> None:
        """Take what waits of a subscription, or close it."""
        if self.locals and draw.chance(3):
            self.locals.pop(0).close()
        elif self.locals:
            local = self.locals[0]
            messages = aiter(local)
            while local._waiting:
                await anext(messages)

    async def publish(self, draw: Draw) -> None:
        topic_name, payload = draw.one_of(TOPICS), b"p" * draw.one_of((0, 1, 2000, 30_000))
        qos, retain = draw.byte() % 3, draw.chance(2)
        for _ in range(draw.one_of((1, 1, 10, 100))):
            await self.broker.publish(topic_name, payload, qos=qos, retain=retain)

    async def retain(self, draw: Draw) -> None:
        """Many retained messages, more than one SUBSCRIBE is sent at once."""
        qos, payload = draw.byte() % 3, b"p" * draw.one_of((10, 0, 1000))
        for number in range(draw.one_of((3, 30, 300))):
            await self.broker.publish(f"a/{number}", payload, qos=qos, retain=True)

    async def restart(self, draw: Draw) -> None:
        """Stop and start: what is in memory stays, connections do not."""
        if self.bystanders._tight:
            return
        await self.broker.stop()
        self.locals.clear()
        await self.broker.start()
        for rogue in self.rogues:
            rogue.leave(1)  # or what it has not read would linger
            rogue.moved(self.broker)
        self.bystanders = Bystanders(self.broker)
        await self.bystanders.begin()

    async def wait(self, draw: Draw) -> None:
        await turns(draw.byte() % 32)

    async def end(self) -> None:
        """All leave, their time runs out, and nothing of them stays."""
        await self.bystanders.exchange()
        for rogue in self.rogues:
            rogue.read()
            rogue.leave(1)
        for local in self.locals:
            local.close()
        self.bystanders.leave()
        broker, core = self.broker, self.broker._core
        await until(lambda: not broker._connections, "connections stay")
        self.clock.now += FOR_EVER
        for _ in range(3):
            await broker.sweep()
        await until(lambda: not (core.leaving or broker._background), "work goes on")
        addresses = dict(broker._connections._addresses)
        tables = (core.tree.count, [*core.sessions], core.clients, dict(core.users), addresses)
        assert tables == (0, [], {}, {}, {}), f"tables are not empty: {tables}"
        assert core.turns._waiting == {} and core.tree._held == {}
        for message in [
            *chain.from_iterable(core.retained.stretches("#", self.clock.now)),
            *chain.from_iterable(core.retained.stretches("$SYS/#", self.clock.now)),
        ]:
            core.retained.delete(as_message(message).topic_name)
        assert len(core.retained) == 0 and core.retained.size == 0
        assert core.budget.used == 0, f"{core.budget.used} bytes of the budget are lost"


OF_A_ROGUE: tuple[Callable[[Rogue, Draw], None], ...] = (
    *(Rogue.connect, Rogue.publish, Rogue.publish, Rogue.subscribe, Rogue.subscribe, Rogue.acknowledge),
    *(Rogue.other, Rogue.raw, Rogue.spoil, Rogue.spoil, Rogue.behave, Rogue.go),
)
OF_ALL: tuple[Callable[[Scene, Draw], Awaitable[None]], ...] = (
    *(Scene.pass_time, Scene.exchange, Scene.program, Scene.wait),
)
OF_THE_PROGRAM: tuple[Callable[[Scene, Draw], Awaitable[None]], ...] = (
    *(Scene.disconnect, Scene.delete, Scene.listen, Scene.hear, Scene.publish, Scene.retain),
    *(Scene.restart, Scene.publish),
)


class Listening(logging.Handler):
    """Every error that is logged, of asyncio too; *failures* are those that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []
        self.failures: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter("%(name)s: %(message)s").format(record)  # with its traceback
        self.said.append(text)
        if record.exc_info or record.name == "asyncio":
            self.failures.append(text)

    def __enter__(self) -> Listening:
        for name in ("broker", "asyncio"):
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("broker", "asyncio"):
            logging.getLogger(name).removeHandler(self)


async def episode(data: bytes) -> None:
    chosen = choose(data[:SETTINGS])
    clock, numbers, asked = Clock(), iter(range(1 << 30)), chosen["scene"]
    hooks = [Whims()] * asked["hooks"] + [Shelf()] * asked["shelf"]
    broker = memory_broker(config(chosen), hooks=hooks, clock=clock)
    broker._core.sessions.new_client_id = lambda: f"new{next(numbers)}"  # type: ignore[method-assign]
    async with broker:
        scene = Scene(broker, clock)
        await scene.bystanders.begin()
        await scene.play(data[SETTINGS:])
        if not asked["stops"]:
            await scene.end()
    for rogue in scene.rogues:
        rogue.leave(1)
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks stay"


def run(data: bytes) -> None:
    with Listening() as listening:
        try:
            asyncio.run(episode(data))
        finally:
            assert not listening.said, "\n".join(listening.said)


# ---- seeds: a move is the rogue in two bits, how long to wait in two, the kind in four


def move(kind: int, *body: int | bytes, who: int = 0, wait: int = 2) -> bytes:
    parts = (part if isinstance(part, bytes) else bytes((part,)) for part in body)
    return record(who << 6 | wait << 4 | kind, b"".join(parts))


CONNECT, PUBLISH, SUBSCRIBE, ACKNOWLEDGE, OTHER, RAW, SPOIL, BEHAVE, GO = 0, 1, 3, 5, 6, 7, 8, 10, 11
TIME, EXCHANGE, PROGRAM, WAIT = 12, 13, 14, 15


def settings(*names: str) -> bytes:
    """The bytes that choose the second value of each of *names*."""
    bits, place = 0, 1
    for _, name, values in CHOICES:
        bits += place * (name in names)
        place *= len(values)
    return bits.to_bytes(SETTINGS, "little")


def seeds() -> Iterator[bytes]:
    plain, hooked = settings(), settings("hooks", "re_check_subscriptions", "re_authentication")
    small = settings("maximum_queued_messages", "queue_full", "maximum_outbound_packets", "receive_maximum")
    tight = settings("maximum_bytes", "queue_qos_0", "maximum_sessions", "maximum_subscriptions")
    for chosen in (plain, hooked, small, tight, settings("hooks", "shelf", "stops", "authorize_will")):
        for version in (0, 4, 12):
            kept = move(CONNECT, 0, version, 1, 1, 0, 3, 2, 0, 0, 0, 3)
            other = move(CONNECT, 0, version, 0x22, 0, 2, 12, 0, 1, 2, 3, 1, 1, 0, 4, 0, 11, who=1)
            subscribed = move(SUBSCRIBE, 0, 1, 1, 7, 10, 2, 16, 1, who=1) + move(
                SUBSCRIBE, 0, 2, 0, 0, 2, 2, 1
            )
            sent = b"".join(move(PUBLISH, 0, qos | 8, 0, 0, 0, 0, 0, 2, qos) for qos in range(3))
            acked = b"".join(move(ACKNOWLEDGE, kind, 1, 0) for kind in range(4)) + move(OTHER, 0, 0)
            gone = move(GO, 1) + move(EXCHANGE) + move(PUBLISH, 3, 2, 0, 0, 0, 0, 0, 3, 1, who=1)
            again = (
                move(CONNECT, 0, version | 2, 1, 1, 0, 3, 1, 0, 0, 0, 3)
                + move(TIME, 3)
                + move(OTHER, 1, who=1)
            )
            yield chosen + kept + other + subscribed + sent + acked + gone + again + move(TIME, 5)
    both = move(CONNECT, 0, 0, 0) + move(CONNECT, 0, 1, 0, who=1)
    everything = move(SUBSCRIBE, 0, 1, 0, 0, 10, 1)
    for chosen in (plain, small, tight):
        yield chosen + both + everything + move(PROGRAM, 4, 0, 3, 1, 0, 3) + move(TIME, 4)
        yield (
            chosen
            + both
            + move(PROGRAM, 5, 1, 2, 2)
            + everything
            + move(BEHAVE, 1)
            + everything
            + move(TIME, 4)
        )
        yield chosen + both + move(BEHAVE, 1) + everything + move(PROGRAM, 4, 0, 3, 1, 0, 3) + move(BEHAVE, 0)
        yield chosen + both + b"".join(move(PROGRAM, what, 2, 2, 1, 1, 1) for what in range(8))
    authenticated = move(CONNECT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20)
    authenticated += move(WAIT, 20) * 3 + move(SUBSCRIBE, 0, 1, 0, 0, 0, 1) + move(WAIT, 20)
    for data in (b"2222", b"1111"):
        yield hooked + authenticated + move(OTHER, 0, 0, data, 5) + move(PUBLISH, 0, 1)
    told, heard = move(PROGRAM, 4, 0, 1, 1, 0, 2), move(PROGRAM, 3)
    yield plain + move(PROGRAM, 2, 10) + told + heard + told + heard + told + move(PROGRAM, 3, 2)
    slow = move(CONNECT, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 2) + everything
    yield plain + slow + move(PROGRAM, 4, 0, 1, 1, 0, 2) + move(TIME, 4)
    for how in range(5):
        spoilt = (move(SPOIL, how, 0, at, 0x80, kind) for at in (0, 2, 9) for kind in range(5))
        yield plain + both + b"".join(spoilt)
    raw = encode(mqtt.Connect("c0"), Version.MQTT_5)
    yield plain + move(RAW, raw[:5]) + move(RAW, raw[5:]) + move(RAW, b"\xc0\0\xc0") + move(TIME, 4)


TARGET = Target(
    name="conversations",
    run=run,
    seeds=seeds,
    covers=(
        *(
            "broker",
            "client",
            "outbound",
            "refusal",
            "router",
            "gateway.local",
            "handle.connect",
            "handle.auth",
        ),
        *("handle.publish", "handle.acks", "handle.subscribe", "handle.disconnect", "handle.dispatch"),
        *("session.session", "session.manager", "session.inflight", "session.alias", "session.delivery"),
        *("hook.hooks", "store.memory", "transport.memory"),
    ),
    settings=SETTINGS,
    longest=1000,
    frugal=True,
)
