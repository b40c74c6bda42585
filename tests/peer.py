"""A small MQTT client over a connection joined in memory, for tests of what lies above the packets.

It speaks by `broker.packet`, which the conformance tests check with a codec of their own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeVar

from broker import Broker, Config
from broker.lane.lane import Lane
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import (
    NO_PROPERTIES,
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from broker.packet.reader import PacketReader
from broker.transport.base import Connection
from broker.transport.memory import MemoryConnection, MemoryListener

P = TypeVar("P", bound=Packet)
WAIT = 5.0  # seconds until a test that waits in vain fails


class Clock:
    """Time that moves when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def run_async(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, run in a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def memory_broker(config: Config | None = None, **kwargs: Any) -> Broker:
    """A broker that is reached through memory alone, whose deadlines move by `sweep`."""
    return Broker(config or Config(), listen="memory:", **kwargs)


def stop_clocks(broker: Broker) -> None:
    """Names are matched and hooks are asked in no time, unless a test has a clock for that.

    Else what takes the lane longer than it may, on a machine that is busy, is left to the readable one.
    """
    lane = getattr(broker._connections._terms.lane, "__self__", None)
    for room in (lane.known, lane.judged) if isinstance(lane, Lane) else ():
        if room.now is monotonic:
            room.now = lambda: 1.0


class Peer:
    """One client. `recv` gives packets in order; acknowledgements are the test's business."""

    def __init__(self, broker: Broker, version: Version = Version.MQTT_5) -> None:
        stop_clocks(broker)
        listener = broker.listeners[0]
        assert isinstance(listener, MemoryListener)
        self.version = version
        self._connection: Connection = listener.connect()
        self._reader = PacketReader(from_client=False)
        self._reader.version = version
        self._received: list[Packet] = []

    def send(self, *packets: Packet) -> None:
        self._connection.write(b"".join(encode(packet, self.version) for packet in packets))

    def send_raw(self, data: bytes) -> None:
        self._connection.write(data)

    async def recv(self) -> Packet | None:
        """The next packet; None at the end of the stream."""
        while not self._received:
            data = await asyncio.wait_for(self._connection.read(), WAIT)
            if not data:
                return None
            self._received += self._reader.feed(data)
            assert self._reader.error is None, self._reader.error
        return self._received.pop(0)

    async def expect(self, kind: type[P]) -> P:
        packet = await self.recv()
        assert isinstance(packet, kind), packet
        return packet

    async def expect_nothing(self) -> None:
        """Whatever was on its way is here: the next packet is the answer to a ping."""
        self.send(Pingreq())
        await self.expect(Pingresp)

    async def expect_end(self) -> None:
        assert await self.recv() is None

    async def connect(self, client_id: str = "", **fields: Any) -> Connack:
        """CONNECT and its answer; *properties* and other fields of Connect by keyword."""
        self.send(Connect(client_id, self.version, **fields))
        return await self.expect(Connack)

    async def subscribe(self, *filters: str, qos: int = 0, packet_id: int = 1, **options: Any) -> Suback:
        requests = [SubscribeRequest(topic_filter, qos, **options) for topic_filter in filters]
        self.send(Subscribe(packet_id, requests))
        return await self.expect(Suback)

    async def publish(
        self, topic_name: str, payload: bytes = b"", qos: int = 0, packet_id: int = 1, **fields: Any
    ) -> int:
        """Publish and see it acknowledged to the end; the Reason Code of the first acknowledgement."""
        self.send(Publish(topic_name, payload, qos, packet_id=packet_id if qos else 0, **fields))
        if qos == 0:
            return 0
        if qos == 1:
            return (await self.expect(Puback)).reason_code
        code = (await self.expect(Pubrec)).reason_code
        if code < 0x80:
            self.send(Pubrel(packet_id))
            await self.expect(Pubcomp)
        return code

    def drop(self) -> None:
        """Cut the connection without DISCONNECT."""
        self._connection.abort()

    async def gone(self) -> None:
        await self._connection.wait_closed()


async def settle(broker: Broker, client_id: str) -> None:
    """Wait until *broker* has let *client_id* go."""
    for _ in range(10_000):
        if client_id not in broker.clients:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{client_id} is still connected")


def message_bytes(broker: Broker) -> int:
    """What messages take of the byte budget: without what sessions and connections take by being there."""
    core = broker._core
    connections = MemoryConnection.cost * len(broker._connections)
    return core.budget.used - connections - sum(session.fixed_bytes for session in core.sessions)


__all__ = ["NO_PROPERTIES", "Clock", "Peer", "memory_broker", "message_bytes", "run_async", "settle"]
