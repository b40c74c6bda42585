"""B09: packet identifiers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.marks import both_versions
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed


def test_b09__two_spaces(server: Server) -> None:
    """An identifier of the client and the same one of the server have nothing to do with each other."""
    client = subscribed(server, "t")
    client.send(wire.publish("own", b"x", qos=2, packet_id=1))  # held
    client.expect("PUBREC", packet_id=1)
    server.connect("p").publish("t", b"x", 2)
    client.expect("PUBLISH", packet_id=1, qos=2)  # in flight
    client.send(wire.pubrec(1), wire.pubrel(1), wire.subscribe(1, "other"), wire.pubcomp(1))
    client.expect("PUBREL", packet_id=1, reason_code=0x00)
    client.expect("PUBCOMP", packet_id=1, reason_code=0x00)
    client.expect("SUBACK", packet_id=1, reason_codes=[0])
    client.expect_nothing()


def test_b09__next_after_the_last(server: Server) -> None:
    client, publisher = subscribed(server, "t", qos=1), server.connect("p")
    for packet_id in range(1, 6):  # not the smallest free one
        publisher.publish("t", b"x", 1)
        client.ack(client.expect("PUBLISH", packet_id=packet_id))


@pytest.mark.tcp_only("65535 messages need no other transport")
def test_b09__all_65535_in_use(serve: Serve) -> None:
    """They wrap to 1, those in flight are passed over, and with none left sending stops and goes on later."""
    server = serve(outbound_receive_maximum=65535, maximum_queued_messages=70_000)
    client = subscribed(server, "t", qos=1)

    async def publish(count: int) -> None:
        for at in range(count):
            await server.broker.publish("t", b"", qos=1)
            if at % 100 == 0:
                await asyncio.sleep(0)

    server.run(publish(65535 + 2), timeout=60)
    size = len(wire.publish("t", qos=1))
    data = b""
    while len(data) < 65535 * size:  # too many to parse one by one
        data += client.transport.recv(2)
    assert data == b"".join(wire.publish("t", qos=1, packet_id=one) for one in range(1, 65536))
    client.expect_nothing()
    client.send(wire.puback(7))
    client.expect("PUBLISH", packet_id=7)
    client.expect_nothing()
    client.send(wire.puback(3), wire.puback(5))
    client.expect("PUBLISH", packet_id=3)
    server.run(publish(1))
    client.expect("PUBLISH", packet_id=5)


@pytest.mark.parametrize(
    ("qos", "answers"),
    [
        (1, [wire.puback(1)]),
        (1, [wire.puback(1, 0x87)]),
        (2, [wire.pubrec(1), wire.pubcomp(1)]),
        (2, [wire.pubrec(1, 0x87)]),
    ],
)
def test_b09__in_flight_until(server: Server, qos: int, answers: list[bytes]) -> None:
    """Until the last of *answers* the message comes again after a reconnect; then it does not."""
    client = subscribed(server, "t", qos=qos)
    server.connect("p").publish("t", b"x", qos)
    client.expect("PUBLISH", packet_id=1, qos=qos, dup=False)
    client.drop()
    for raw in answers:
        client = resume(server)
        client.expect("PUBREL" if raw[0] == 0x70 else "PUBLISH", packet_id=1)
        client.send(raw)
        client.drain()
        client.drop()
    resume(server).expect_nothing()


def test_b09__too_large_frees_its_identifier(server: Server) -> None:
    """Neither identifier nor slot is held by a message that was dropped before it was sent."""
    client = subscribed(server, "t", maximum_packet_size=50, receive_maximum=1)
    publisher = server.connect("p")
    for qos in (1, 2):
        publisher.publish("t", b"x" * 60, qos, reason=0x00)
        publisher.publish("t", b"small", qos)
        client.ack(client.expect("PUBLISH", payload="small", qos=qos))
    client.drop()
    resume(server).expect_nothing()


def test_b09__identifiers_survive_reconnects(server: Server) -> None:
    client, publisher = subscribed(server, "t"), server.connect("p")
    for at in range(3):
        publisher.publish("t", f"{at}", 1 + at % 2)
    client.expect_messages("0", "1", "2")
    client.send(wire.publish("own", b"x", qos=2, packet_id=9))
    client.expect("PUBREC")
    client.drop()
    client = resume(server)
    for packet_id in (1, 2, 3):
        client.expect("PUBLISH", packet_id=packet_id, dup=True)
    publisher.publish("t", b"3", 1)
    client.expect("PUBLISH", packet_id=4, dup=False)
    client.release(9, 0x00)


def test_b09__clean_start_frees_identifiers(server: Server) -> None:
    client = subscribed(server, "t")
    server.connect("p").publish("t", b"x", 1)
    client.expect("PUBLISH", packet_id=1)
    client.send(wire.publish("t", b"x", qos=2, packet_id=9))
    client.expect("PUBREC")
    client.drop()
    client = subscribed(server, "t")
    client.expect_nothing()
    client.release(9, 0x92)
    client.subscribe("u", packet_id=9)
    server.connect("p").publish("t", b"y", 1)
    client.expect("PUBLISH", packet_id=1, dup=False, payload="y")


@both_versions
def test_b09__no_memory_of_inbound_qos_1(server: Server, version: int) -> None:
    watcher, client = server.watch(), server.connect("p", version)
    for dup in (False, False, True):
        client.publish("t", b"x", 1, packet_id=5, dup=dup)
    watcher.expect_messages(*["x"] * 3)


@both_versions
def test_b09__a_repeated_qos_2_identifier_is_a_resend(server: Server, version: int) -> None:
    """Whatever DUP, topic and payload say; after PUBREL the identifier is new."""
    watcher, client = server.watch(), server.connect("p", version)
    for topic_name, payload, dup in (("t", b"x", False), ("t", b"x", True), ("u", b"y", False)):
        client.send(wire.publish(topic_name, payload, qos=2, packet_id=5, dup=dup, version=version))
        client.expect("PUBREC", packet_id=5, reason_code=0x00)
    watcher.expect_nothing()
    client.release(5)
    client.publish("t", b"z", 2, packet_id=5, dup=True)
    watcher.expect_messages(("t", "x"), ("t", "z"))


@both_versions
@pytest.mark.parametrize(
    ("build", "answer", "refusal"),
    [
        (partial(wire.publish, "t", b"y", qos=1, packet_id=5), "PUBACK", {"reason_code": 0x91}),
        (partial(wire.subscribe, 5, "a", "b"), "SUBACK", {"reason_codes": [0x91, 0x91]}),
        (partial(wire.unsubscribe, 5, "a", "b"), "UNSUBACK", {"reason_codes": [0x91, 0x91]}),
    ],
    ids=["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_b09__identifier_held_by_qos_2(
    server: Server, version: int, build: Callable[..., bytes], answer: str, refusal: dict[str, Any]
) -> None:
    watcher, client = server.watch(), server.connect("p", version)
    client.send(wire.publish("t", b"x", qos=2, packet_id=5, version=version))
    client.expect("PUBREC", packet_id=5)
    client.send(build(version=version))
    if version == 4:
        client.expect_close()
        watcher.expect_nothing()
        return
    client.expect(answer, packet_id=5, **refusal)
    client.release(5)
    watcher.expect_messages("x")
    server.connect("q").publish("a", b"not subscribed")
    client.expect_nothing()
