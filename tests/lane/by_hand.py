"""A broker without clocks of its own, and clients whose connections a test holds in its hand."""

from __future__ import annotations

from typing import Any

from broker import Broker, Capacity, Config, Limits
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Connect, Publish, Subscribe, SubscribeRequest
from broker.packet.reader import PacketReader
from tests.peer import stop_clocks
from tests.wire import Wire, turns

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
BY_HAND = Capacity(sweep_interval=0, sys_interval=0, fast_lane=True)


def by_hand(**limits: Any) -> Config:
    return Config(capacity=BY_HAND, limits=Limits(**limits))


async def joined(
    broker: Broker,
    client_id: str,
    *filters: str,
    qos: int = 0,
    version: Version = V5,
    keep: bool = False,
    **connect: Any,
) -> Wire:
    """A client whose connection the test holds in its hand. *keep*: with what it was sent."""
    stop_clocks(broker)
    wire = Wire()
    broker._connections.accept(wire)
    data = encode(Connect(client_id, version, **connect), version)
    if filters:
        data += encode(Subscribe(1, [SubscribeRequest(one, qos) for one in filters]), version)
    wire.incoming.put_nowait(data)
    await turns(10)
    assert client_id in broker.clients
    if not keep:
        wire.sent()
    return wire


def publishes(*topics: str, qos: int = 0, payload: bytes = b"x", version: Version = V5) -> bytes:
    packets = (
        Publish(topic, payload, qos, packet_id=qos * (n % 65535 + 1)) for n, topic in enumerate(topics)
    )
    return b"".join(encode(packet, version) for packet in packets)


def packets(wire: Wire) -> list[Any]:
    """What was sent to it since the last look."""
    reader = PacketReader(from_client=False)
    reader.version = V5
    return list(reader.feed(wire.sent()))


def topics(wire: Wire) -> list[str]:
    """Of the PUBLISH packets among them."""
    return [packet.topic_name for packet in packets(wire) if isinstance(packet, Publish)]


def take(broker: Broker, client_id: str, data: bytes) -> bytes:
    """What the lane leaves of *data*."""
    stop_clocks(broker)
    return broker._connections._terms.lane(broker.clients[client_id], data)
