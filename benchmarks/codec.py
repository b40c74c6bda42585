"""What packets cost, in nanoseconds of CPU: decoding a read of 64 KiB, and encoding for subscribers.

    python benchmarks/codec.py [rounds]

Medians of the rounds; each is a few tenths of a second. Ratios travel between machines, figures do not.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.message import Message, encode_publish
from broker.packet.packets import Connect, Publish
from broker.packet.reader import PacketReader, TopicNames

CHUNK = 65536
PAYLOAD = b"x" * 64


def cost(work: Callable[[], int], rounds: int) -> float:
    """Nanoseconds of CPU for each of the things that one call of *work* says it did."""
    found = []
    for _ in range(rounds):
        done, began = 0, time.process_time_ns()
        while (spent := time.process_time_ns() - began) < 100_000_000:
            done += work()
        found.append(spent / done)
    return statistics.median(found)


def decoding(version: Version, qos: int) -> Callable[[], int]:
    """Feed one chunk of equal PUBLISH packets."""
    reader = PacketReader(names=TopicNames())
    reader.feed(encode(Connect("c", version), version))
    packet = encode(Publish("sensors/attic/temperature", PAYLOAD, qos, packet_id=7 if qos else 0), version)
    chunk = packet * (CHUNK // len(packet))
    return lambda: len(reader.feed(chunk))


def encoding(version: Version, qos: int, shared: bool) -> Callable[[], int]:
    """The bytes for 100 subscribers: from the shared frame, or each for itself."""
    message = Message("sensors/attic/temperature", PAYLOAD, qos, properties={"content_type": "text/plain"})

    def from_frame() -> int:
        for packet_id in range(1, 101):
            head, tail = message.frame(version, qos, False)
            b"".join((head, packet_id.to_bytes(2, "big"), tail)) if qos else head
        return 100

    def alone() -> int:
        for packet_id in range(1, 101):
            encode_publish(message, version, qos, False, packet_id=packet_id if qos else 0)
        return 100

    return from_frame if shared else alone


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print("| PUBLISH, 64 bytes, ns each | 3.1.1 QoS 0 | 3.1.1 QoS 1 | 5.0 QoS 0 | 5.0 QoS 1 |")
    print("|---|---:|---:|---:|---:|")
    cases = [(version, qos) for version in (Version.MQTT_3_1_1, Version.MQTT_5) for qos in (0, 1)]
    rows = {
        "decode, one read of 64 KiB": decoding,
        "encode, from the shared frame": lambda version, qos: encoding(version, qos, True),
        "encode, for one client alone": lambda version, qos: encoding(version, qos, False),
    }
    for name, make in rows.items():
        print(f"| {name} |", " | ".join(f"{cost(make(*case), rounds):.0f}" for case in cases), "|")


if __name__ == "__main__":
    main()
