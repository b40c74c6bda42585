"""What a message costs in the whole broker but for the sockets, in nanoseconds of CPU: both lanes.

    python benchmarks/lane.py [rounds]

One process: a publisher and its subscribers are connected through memory, and their own work, which is
little, is counted as well. *a read* is what the broker gets at once; of one message a read, most is the turns
of the event loop. Subscribers have QoS 0. Medians of the rounds, a message or a delivery each. Ratios travel
between machines, figures do not.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from broker import Broker, Capacity, Config, Limits
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Connect, Publish, Subscribe, SubscribeRequest
from broker.transport.base import Connection
from broker.transport.memory import MemoryListener


class Case(NamedTuple):
    title: str
    qos: int = 0
    together: int = 250  # messages a read
    topics: int = 1
    sizes: tuple[int, int] = (64, 64)  # of payloads, evenly from the first to the second
    subscribers: int = 1
    version: Version = Version.MQTT_3_1_1
    properties: dict[str, object] | None = None


TWO = {"message_expiry_interval": 3600, "content_type": "application/json"}
MIXED = (20, 120)
CASES = (
    Case("QoS 0, 50 topics, 20 to 120 B, 250 a read", topics=50, sizes=MIXED),
    Case("QoS 1, 50 topics, 20 to 120 B, 250 a read", 1, topics=50, sizes=MIXED),
    Case("MQTT 5, two properties, 20 to 120 B", 0, 250, 50, MIXED, 1, Version.MQTT_5, TWO),
    Case("QoS 0, 1 a read", together=1),
    Case("QoS 0, one topic, 64 B, 250 a read"),
    Case("QoS 1, one topic, 64 B, 250 a read", 1),
    Case("QoS 1, one topic, 64 B, 20 a read", 1, 20),
    Case("QoS 0, fan-out 100, 50 a read, each delivery", together=50, subscribers=100),
    Case("QoS 0, fan-out 100, 1 a read, each delivery", together=1, subscribers=100),
)


def messages(case: Case, qos: int) -> bytes:
    """One read of a publisher, with its Packet Identifiers from 1."""
    least, most = case.sizes
    packets = []
    for number in range(case.together):
        payload = b"x" * (least + (most - least) * (number * 7 % 16) // 15)
        topic_name, packet_id = f"load/{number % case.topics}", number + 1 if qos else 0
        publish = Publish(topic_name, payload, qos, packet_id=packet_id, properties=case.properties or {})
        packets.append(encode(publish, case.version))
    return b"".join(packets)


async def joined(broker: Broker, client_id: str, version: Version, topic_filter: str = "") -> Connection:
    """A client, with one subscription if it names a filter."""
    listener = broker.listeners[0]
    assert isinstance(listener, MemoryListener)
    connection = listener.connect()
    connection.write(encode(Connect(client_id, version), version))
    await connection.read()
    if topic_filter:
        connection.write(encode(Subscribe(1, [SubscribeRequest(topic_filter)]), version))
        await connection.read()
    return connection


async def taken(connection: Connection, size: int) -> None:
    while size > 0:
        size -= len(await connection.read())
    if size:
        raise AssertionError("more bytes than were published")


async def cost(case: Case, fast_lane: bool, rounds: int) -> float:
    limits = Limits(maximum_outbound_packets=100_000)
    config = Config(limits=limits, capacity=Capacity(fast_lane=fast_lane, sweep_interval=0))
    async with Broker(config, listen="memory:") as broker:
        subscribers = [
            await joined(broker, f"s{number}", case.version, "load/#") for number in range(case.subscribers)
        ]
        publisher = await joined(broker, "p", case.version)
        chunk, size = messages(case, case.qos), len(messages(case, 0))
        found = []
        for _ in range(rounds):
            done, began = 0, time.process_time_ns()
            while (spent := time.process_time_ns() - began) < 100_000_000:
                publisher.write(chunk)
                for subscriber in subscribers:
                    await taken(subscriber, size)
                if case.qos:
                    await taken(publisher, 4 * case.together)  # PUBACK
                done += case.together * case.subscribers
            found.append(spent / done)
        return statistics.median(found)


def main(arguments: Sequence[str]) -> None:
    rounds = int(arguments[0]) if arguments else 5
    print("| ns each | fast lane | readable lane |")
    print("|---|---:|---:|")
    for case in CASES:
        costs = [asyncio.run(cost(case, fast_lane, rounds)) for fast_lane in (True, False)]
        print(f"| {case.title} |", " | ".join(f"{each:.0f}" for each in costs), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
