"""A Client, or a whole broker, whose sockets and time are the test's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker import Broker, Capacity, Config, HookBase, Limits, Message, MqttError, ReasonCode, Version
from broker.client import Client, ClientTerms, Phase, no_lane
from broker.config import Protocol
from broker.hook.identity import asked
from broker.hook.stats import Stats
from broker.packet.codec import encode
from broker.packet.packets import Connect, Packet
from broker.packet.reader import Readers, TopicNames
from broker.store.base import levels_of
from broker.store.budget import ByteBudget
from broker.store.journal import Journal
from tests.peer import Clock, Peer, memory_broker
from tests.wire import Wire, turns, until

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
NO_CLOCKWORK = {"sweep_interval": 0, "sys_interval": 0, "grace_time": 0}
BY_HAND = Config(capacity=Capacity(**NO_CLOCKWORK))
ERROR = MqttError("first", ReasonCode.ADMINISTRATIVE_ACTION)


class Bench:
    """One Client over a Wire; what it decodes goes to `handler`."""

    def __init__(self, version: Version = V5, **limits: Any) -> None:
        self.wire, self.clock = Wire(), Clock()
        self.packets: list[Packet] = []
        self.drops: Counter[str] = Counter()
        self.budget = ByteBudget(1 << 30)
        self.handler: Callable[[Client, Packet], Awaitable[None]] = self._accept
        readers = Readers(Limits(**limits).maximum_packet_size, TopicNames(True))
        terms = ClientTerms(
            limits=Limits(**limits), protocol=Protocol(), clock=self.clock, stats=Stats(0),
            budget=self.budget, readers=readers, dropped=self._dropped, dispatch=self._dispatch,
            journal=Journal(None, levels_of("always", ()), self.clock), not_stored=lambda *_: None,
            serve=lambda *_: None, lane=no_lane, express=None,
        )  # fmt: skip
        self.version = version
        self.client = Client(self.wire, terms)

    async def live(self) -> None:
        """As `serve_client` does, but one task for the whole life."""
        while await self.client.run():
            while not self.wire.has_unread():
                await self.wire.incoming.arrived()

    def _dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        self.drops[reason] += 1

    async def _dispatch(self, client: Client, packet: Packet) -> None:
        self.packets.append(packet)
        await self.handler(client, packet)

    async def _accept(self, client: Client, packet: Packet) -> None:
        if isinstance(packet, Connect):
            self.connected()

    def connected(self) -> None:
        """As after CONNACK, without one."""
        self.client.phase, self.client.version = Phase.CONNECTED, self.version
        self.client.asked = asked()

    def receive(self, *packets: Packet) -> None:
        self.wire.incoming.put_nowait(b"".join(encode(packet, self.version) for packet in packets))


@asynccontextmanager
async def running(version: Version = V5, **limits: Any) -> AsyncIterator[tuple[Bench, asyncio.Task[None]]]:
    """A client that has connected and now waits for a packet; no bytes stay with it."""
    bench = Bench(version, **limits)
    task = asyncio.create_task(bench.live())
    bench.receive(Connect("c", version))
    await turns()
    try:
        yield bench, task
    finally:
        bench.client.abort(MqttError("the test is over"))
        await turns()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert bench.budget.used == 0


@asynccontextmanager
async def timed(
    hooks: tuple[HookBase, ...] = (), version: Version = V5, **limits: Any
) -> AsyncIterator[tuple[Broker, Clock, Peer]]:
    clock = Clock()
    config = Config(capacity=BY_HAND.capacity, limits=Limits(**limits))
    async with memory_broker(config, clock=clock, hooks=hooks) as broker:
        yield broker, clock, Peer(broker, version)


async def passes(broker: Broker, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    await broker.sweep()
    await turns(20)


async def to_the_border(broker: Broker, clock: Clock, seconds: float) -> None:
    """Nothing happens a moment before; then the border is reached."""
    connections = len(broker._connections)
    await passes(broker, clock, seconds - 0.001)
    assert len(broker._connections) == connections, "too early"
    await passes(broker, clock, 0.001)


async def joined(broker: Broker, client_id: str, *packets: Packet) -> Wire:
    """A client over a Wire, connected, whose *packets* are answered."""
    wire = Wire()
    broker._connections.accept(wire)
    wire.incoming.put_nowait(b"".join(encode(packet, V5) for packet in (Connect(client_id), *packets)))
    await until(lambda: client_id in broker.clients)
    await turns(10)
    wire.sent()
    return wire
