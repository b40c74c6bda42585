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
    session.table().last = packet_id


def own_qos_2(client: Raw) -> list[Packet]:
    """What a client gets that sent itself a QoS 2 message: the order of PUBLISH and PUBCOMP is free."""
    seen = [client.expect("PUBREC"), client.recv(), client.recv()]
    packet_id = next(identifier(packet) for packet in seen if packet.name == "PUBLISH")
    client.send(wire.pubrec(packet_id, version=client.version))
    seen.append(client.expect("PUBREL", packet_id=packet_id))
    client.send(wire.pubcomp(packet_id, version=client.version))
    return seen


def expect_pubrels(server: Server, version: int) -> None:
    """Two deliveries; PUBREL has the identifier of the PUBREC that it answers, in that order."""
    client = server.connect("c", version)
    client.subscribe("t", qos=2)
    publish_numbers(server, 2, qos=2)
    first, second = (identifier(packet) for packet in client.expect_messages("0", "1", qos=2))
    client.send(wire.pubrec(second, version=version), wire.pubrec(first, version=version))
    client.expect("PUBREL", packet_id=second, reason_code=0)
    client.expect("PUBREL", packet_id=first, reason_code=0)


def expect_no_reuse(server: Server, version: int) -> None:
    """One identifier stays unacknowledged while 70,000 messages use all the others, over the wrap."""
    client = server.connect("c", version)
    client.subscribe("t", qos=1)
    publish_numbers(server, 1)
    held = identifier(client.expect("PUBLISH", payload="0"))
    seen: set[int] = set()
    for _ in range(140):
        publish_numbers(server, 500)
        found = [identifier(client.expect("PUBLISH", payload=f"{n}")) for n in range(500)]
        client.send(*(wire.puback(packet_id, version=version) for packet_id in found))
        seen.update(found)
    client.fence()
    assert held not in seen and 0 not in seen
    assert len(seen) == 65534


def slow_reader(server: Server, count: int = 64) -> Raw:
    """A client that reads nothing while *count* messages of a quarter MiB, numbered, come for it."""
    client = server.connect("slow", will=wire.will("w", b"will"))
    client.subscribe("big", ("t", 1))

    async def fill() -> None:
        for n in range(count):
            await server.broker.publish("big", (b"%04d" % n) + bytes(BIG - 4))

    server.run(fill())
    return client
