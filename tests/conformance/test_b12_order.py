"""B12: what comes in which order."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import numbers
from tests.conformance.hooks import Slow
from tests.conformance.server import Server
from tests.conformance.sessions import offline, resume, subscribed


def test_b12__one_fifo_for_qos_1_and_2(server: Server) -> None:
    qos = [1, 2, 2, 1, 1, 2, 1, 2]
    client = subscribed(server, qos=2, receive_maximum=1)
    publisher = server.connect("p")
    for n, one in enumerate(qos):
        publisher.publish("t", f"{n}", one)
    for n, one in enumerate(qos):
        client.ack(client.expect("PUBLISH", payload=f"{n}", qos=one))
    client.drop()
    for n, one in enumerate(qos):
        publisher.publish("t", f"{n}", one)
    found = resume(server).expect_messages(*numbers(*range(8)))
    assert [packet.qos for packet in found] == qos


def test_b12__qos_0_keeps_its_order(serve: Serve) -> None:
    server = serve(queue_qos_0=True)
    client = subscribed(server, qos=2, receive_maximum=1)
    publisher = server.connect("p")
    for n in range(20):
        publisher.publish("t", f"{n}", n % 2)
    client.expect_messages("0", "1", *numbers(*range(2, 20, 2)))
    client.drop()
    for n in range(20, 30):
        publisher.publish("t", f"{n}", 0)
    client = resume(server)
    payloads = [int(packet.payload or b"") for packet in client.drain()]
    assert [n for n in payloads if n % 2 == 0 or n >= 20] == list(range(20, 30))


def test_b12__live_qos_0_stays_behind_queued_qos_0(serve: Serve) -> None:
    server = serve(queue_qos_0=True)
    offline(server)
    publisher = server.connect("p")
    for payload, qos in (("1", 1), ("2", 1), ("old", 0)):
        publisher.publish("t", payload, qos)
    client = resume(server, receive_maximum=1)
    publisher.publish("t", b"new", 0)
    found: list[wire.Packet] = []
    while batch := client.drain():
        found += batch
        for packet in batch:
            if packet.qos:
                client.ack(packet)
    assert [packet.payload for packet in found if packet.qos == 0] == [b"old", b"new"]
    assert [packet.payload for packet in found if packet.qos == 1] == [b"1", b"2"]


def test_b12__answers_in_the_order_of_the_requests(serve: Serve) -> None:
    server = serve(hooks=[Slow(seconds=0.005)])
    client = server.connect("c")
    client.send(
        wire.publish("slow/1", qos=1, packet_id=1), wire.publish("t", qos=2, packet_id=2),
        wire.subscribe(3, "slow/2"), wire.subscribe(4, "t2"), wire.publish("slow/3", qos=2, packet_id=5),
        wire.pubrel(2), wire.pingreq(), wire.unsubscribe(6, "slow/2"), wire.publish("t", qos=1, packet_id=7),
        wire.unsubscribe(8, "t2"), wire.pubrel(5), wire.pingreq(),
    )  # fmt: skip
    for name, packet_id in (
        ("PUBACK", 1), ("PUBREC", 2), ("SUBACK", 3), ("SUBACK", 4), ("PUBREC", 5), ("PUBCOMP", 2),
        ("PINGRESP", None), ("UNSUBACK", 6), ("PUBACK", 7), ("UNSUBACK", 8), ("PUBCOMP", 5),
        ("PINGRESP", None),
    ):  # fmt: skip
        client.expect(name, packet_id=packet_id)


def test_b12__routed_in_the_order_received(serve: Serve) -> None:
    """QoS 0 and 1 as they come, even behind a slow authorization; QoS 2 in the order of the PUBRELs."""
    server = serve(hooks=[Slow(seconds=0.005)])
    watcher = server.watch("#")
    client = server.connect("c")
    client.send(
        wire.publish("slow", b"1"), wire.publish("t", b"a", qos=2, packet_id=1), wire.publish("t", b"2"),
        wire.publish("slow", b"b", qos=2, packet_id=2), wire.publish("slow", b"3", qos=1, packet_id=3),
        wire.publish("t", b"4"), wire.pubrel(2), wire.publish("t", b"5", qos=1, packet_id=4), wire.pubrel(1),
    )  # fmt: skip
    client.drain()
    watcher.expect_messages("1", "2", "3", "4", "b", "5", "a")


def test_b12__subscription_is_live_from_suback_on(server: Server) -> None:
    """One stream: each packet is done before the next one of its connection."""
    client = server.connect("c")
    client.send(
        wire.publish("t", b"too early", qos=1, packet_id=1), wire.subscribe(2, ("t", 0)),
        wire.publish("t", b"just right", qos=1, packet_id=3), wire.unsubscribe(4, "t"),
        wire.publish("t", b"too late", qos=1, packet_id=5),
    )  # fmt: skip
    client.expect("PUBACK", packet_id=1, reason_code=0x10)
    client.expect("SUBACK", packet_id=2)
    found = [client.recv(), client.recv()]
    assert sorted(one.name for one in found) == ["PUBACK", "PUBLISH"]
    assert [one.payload for one in found if one.name == "PUBLISH"] == [b"just right"]
    client.expect("UNSUBACK", packet_id=4)
    client.expect("PUBACK", packet_id=5, reason_code=0x10)
    client.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b12__suback_then_retained_then_live(server: Server, qos: int) -> None:
    publisher = server.connect("p")
    for n in range(10):
        publisher.publish(f"t/{n}", b"kept", retain=True, qos=1)
    client = server.connect("c")
    client.send(wire.subscribe(1, ("t/+", qos)), wire.publish("t/5", b"live", qos=1, packet_id=2))
    client.expect("SUBACK", packet_id=1)
    found = [packet for packet in client.drain() if packet.name == "PUBLISH"]
    assert [packet.payload for packet in found] == [b"kept"] * 10 + [b"live"]
    assert [packet.retain for packet in found] == [True] * 10 + [False]
