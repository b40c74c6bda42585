"""Messages on their way to a subscriber: numbered ones, their identifiers, and a client that reads none."""

from __future__ import annotations

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.server import Server
from tests.conformance.wire import Packet

BIG = 256 * 1024


def publish_numbers(server: Server, count: int, qos: int = 1, start: int = 0) -> None:
    """Topic "t", payloads that count on."""

    async def publish() -> None:
        for n in range(start, start + count):
            await server.broker.publish("t", f"{n}", qos=qos)

    server.run(publish())


def numbers(*values: int) -> list[str]:
    """The payloads of `publish_numbers`."""
    return [f"{value}" for value in values]


def identifier(packet: Packet) -> int:
    assert packet.packet_id is not None
    return packet.packet_id


def subscription_ids(packet: Packet) -> list[int]:
    return packet.properties.get("subscription_identifier", [])  # type: ignore[no-any-return]


def wind(server: Server, client_id: str, packet_id: int) -> None:
    """Makes *packet_id* the identifier used last; the 65,000 messages to there are sent for 2.2.1-4."""
    session = server.broker._core.sessions.get(client_id)
    assert session is not None
    session.inflight._last = packet_id


def slow_reader(server: Server, count: int = 64) -> Raw:
    """A client that reads nothing while *count* messages of a quarter MiB, numbered, come for it."""
    client = server.connect("slow", will=wire.will("w", b"will"))
    client.subscribe("big", ("t", 1))

    async def fill() -> None:
        for n in range(count):
            await server.broker.publish("big", (b"%04d" % n) + bytes(BIG - 4))

    server.run(fill())
    return client
