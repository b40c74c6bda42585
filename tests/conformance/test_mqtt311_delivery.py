"""MQTT 3.1.1, sections 4.1 to 4.6: session state, QoS, delivery, order."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed


def publishes(topic: str, payloads: Iterable[bytes], qos: int) -> bytes:
    """A pipeline of PUBLISH packets with the identifiers 1, 2, 3, ..."""
    return b"".join(
        wire.publish(topic, payload, qos=qos, packet_id=number if qos else None, version=4)
        for number, payload in enumerate(payloads, 1)
    )


# ------------------------------------------------------------------------------- 4.1 session state


def test_mqtt311_4_1_0_1__kept_while_away(server: Server) -> None:
    subscribed(server, "t", "u/#", version=4).drop()
    publisher = server.connect("p", 4)
    publisher.publish("t", b"1", qos=1)
    server.advance(24 * 3600)
    publisher.publish("u/x", b"2", qos=2)
    again = resume(server, version=4)
    for message in again.expect_messages(b"1", b"2"):
        again.ack(message)
    publisher.publish("t", b"3", qos=1)
    again.expect_messages(b"3")


def test_mqtt311_4_1_0_1__qos_2_identifiers(server: Server) -> None:
    """Both ways, across two reconnects."""
    watcher, client = server.watch("up"), subscribed(server, "down", version=4)
    server.connect("p", 4).publish("down", b"x", qos=2)
    packet_id = client.expect("PUBLISH", dup=False).packet_id
    up = wire.publish("up", b"y", qos=2, packet_id=77, version=4)
    client.send(up)
    client.expect("PUBREC", packet_id=77)
    for _ in range(2):
        client.drop()
        client = resume(server, version=4)
        client.expect("PUBLISH", payload="x", packet_id=packet_id, dup=True)
        client.send(up)
        client.expect("PUBREC", packet_id=77)
    client.release(77)
    watcher.expect_messages(b"y")


def test_mqtt311_4_1_0_2__as_long_as_the_connection(serve: Serve) -> None:
    """A CleanSession 1 client stays as it is while others fill their queues for days."""
    server = serve(maximum_queued_messages=5, maximum_retained_messages=5)
    client, publisher = server.connect("c", 4), server.connect("p", 4)
    client.subscribe("t", qos=2)
    publisher.publish("t", b"1", qos=2)
    message = client.expect("PUBLISH", payload="1")
    client.send(wire.pubrec(message.packet_id or 0, version=4))
    client.expect("PUBREL", packet_id=message.packet_id)
    client.send(wire.publish("t", b"2", qos=2, packet_id=9, version=4))
    client.expect("PUBREC", packet_id=9)
    subscribed(server, "other", version=4).drop()
    for _ in range(3):
        publisher.send(publishes("other", [b"x" * 1000] * 20, qos=1))
        publisher.fence()
        publisher.inbox.clear()
        server.advance(24 * 3600)
    client.send(wire.pubcomp(message.packet_id or 0, version=4))
    client.expect_nothing()
    client.release(9)
    client.expect("PUBLISH", payload="2", qos=2)


# ------------------------------------------------------------------------------- 4.3 QoS


def test_mqtt311_4_3_1_1__qos_0(server: Server) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("t", b"kept", retain=True)
    client = subscribed(server, "t", qos=0, version=4)
    publisher.publish("t", b"0")
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2, dup=True)
    assert [packet.first for packet in client.drain()] == [0x31, 0x30, 0x30, 0x30]
    client.drop()
    resume(server, version=4).expect_nothing()


def test_mqtt311_4_3_2_1__sender(server: Server) -> None:
    """First byte 32 or 33; resent without PUBACK, and not with it; the harness checks the identifiers."""
    publisher = server.connect("p", 4)
    publisher.publish("t", b"kept", qos=1, retain=True)
    client = subscribed(server, "t", qos=1, version=4)
    publisher.publish("t", b"a", qos=1)
    publisher.publish("t", b"b", qos=1)
    found = client.expect_messages(b"kept", b"a", b"b")
    assert [packet.first for packet in found] == [0x33, 0x32, 0x32]
    client.ack(found[1])
    client.drop()
    again = resume(server, version=4)
    resent = again.expect_messages(b"kept", b"b", dup=True)
    assert [packet.packet_id for packet in resent] == [found[0].packet_id, found[2].packet_id]


def test_mqtt311_4_3_2_2__puback_means_owned(server: Server) -> None:
    subscribed(server, "t", version=4).drop()
    publisher = server.connect("p", 4)
    publisher.send(wire.publish("t", b"x", qos=1, packet_id=7, version=4))
    publisher.expect("PUBACK", packet_id=7)
    publisher.reset()
    resume(server, version=4).expect_messages(b"x")


def test_mqtt311_4_3_2_2__the_same_identifier_again(server: Server) -> None:
    watcher, publisher = server.watch("t"), server.connect("p", 4)
    for dup in (False, True):
        publisher.send(wire.publish("t", b"x", qos=1, packet_id=7, dup=dup, version=4))
        publisher.expect("PUBACK", packet_id=7)
    watcher.expect_messages(b"x", b"x")


def test_mqtt311_4_3_3_1__sender(server: Server) -> None:
    client = subscribed(server, "t", version=4)
    server.connect("p", 4).publish("t", b"x", qos=2)
    first = client.recv()
    packet_id = first.packet_id or 0
    assert first.first == 0x34
    client.drop()
    client = resume(server, version=4)
    assert client.recv().raw == bytes([0x3C]) + first.raw[1:]
    client.send(wire.pubrec(packet_id, version=4))
    assert client.recv().raw == b"\x62\x02" + wire.two(packet_id)
    client.drop()
    client = resume(server, version=4)
    assert client.recv().raw == b"\x62\x02" + wire.two(packet_id)
    client.send(wire.pubcomp(packet_id, version=4))
    client.expect_nothing()
    client.drop()
    resume(server, version=4).expect_nothing()


def test_mqtt311_4_3_3_2__receiver(server: Server) -> None:
    watcher, publisher = server.watch("t"), server.connect("p", 4, clean_start=False)
    for dup in (False, True, True):
        publisher.send(wire.publish("t", b"x", qos=2, packet_id=9, dup=dup, version=4))
        publisher.expect("PUBREC", packet_id=9)
        publisher.drop()
        publisher = resume(server, "p", version=4)
    publisher.release(9)
    watcher.expect_messages(b"x")
    publisher.publish("t", b"y", qos=2, packet_id=9)
    watcher.expect_messages(b"y")
    publisher.release(9)
    publisher.release(1234)
    watcher.expect_nothing()


# ------------------------------------------------------------------------------- 4.4, 4.5 delivery


def test_mqtt311_4_4_0_1__resent_on_reconnect(server: Server) -> None:
    """With their identifiers; while the connection lives nothing is sent twice."""
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 2)):
        publisher.publish("t", payload, qos=qos)
    one, two, three = (packet.packet_id or 0 for packet in client.expect_messages(b"1", b"2", b"3"))
    client.send(wire.pubrec(two, version=4))
    client.expect("PUBREL", packet_id=two)
    server.advance(3600, step=60)
    client.expect_nothing()
    client.drop()
    again = resume(server, version=4)
    again.expect("PUBLISH", payload="1", packet_id=one, dup=True)
    again.expect("PUBREL", packet_id=two)
    again.expect("PUBLISH", payload="3", packet_id=three, dup=True)
    again.expect_nothing()


def test_mqtt311_4_5_0_1__to_every_session(server: Server) -> None:
    clients = [subscribed(server, "t/#", qos=1, client_id=f"s{number}", version=4) for number in range(20)]
    for client in clients[10:]:
        client.drop()
    server.connect("p", 4).publish("t/x", b"x", qos=1)
    for number, client in enumerate(clients):
        reader = client if number < 10 else resume(server, f"s{number}", version=4)
        reader.expect_messages(b"x", qos=1)


# ------------------------------------------------------------------------------- 4.6 order


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt311_4_6_0_1__resent_in_order(server: Server, qos: int) -> None:
    """And before what was never sent; the second is acknowledged, so that identifiers have a gap."""
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    publisher.send(publishes("t", [b"1", b"x", b"2", b"3", b"4", b"5"], qos))
    publisher.fence()
    for packet_id in range(1, 7):
        if qos == 2:
            publisher.release(packet_id)
    client.ack(client.expect_messages(b"1", b"x", b"2", b"3", b"4", b"5")[1])
    client.drop()
    publisher.publish("t", b"new", qos=qos)
    again = resume(server, version=4)
    for payload in (b"1", b"2", b"3", b"4", b"5", b"new"):
        again.expect("PUBLISH", payload=payload, dup=payload != b"new", qos=qos)


def expect_answers(server: Server, qos: int, answer: str) -> Raw:
    """100 PUBLISH at once are acknowledged in their order."""
    client = server.connect("p", 4)
    order = random.Random(qos).sample(range(1, 65536), 100)
    client.send(*[wire.publish("t", b"x", qos=qos, packet_id=one, version=4) for one in order])
    for packet_id in order:
        client.expect(answer, packet_id=packet_id)
    return client


def test_mqtt311_4_6_0_2__puback_order(server: Server) -> None:
    expect_answers(server, 1, "PUBACK").expect_nothing()


def test_mqtt311_4_6_0_3__pubrec_order(server: Server) -> None:
    expect_answers(server, 2, "PUBREC").expect_nothing()


def test_mqtt311_4_6_0_4__pubrel_order(server: Server) -> None:
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    for payload in (b"a", b"b", b"c"):
        publisher.publish("t", payload, qos=2)
    a, b, c = (packet.packet_id or 0 for packet in client.expect_messages(b"a", b"b", b"c"))
    client.send(*[wire.pubrec(packet_id, version=4) for packet_id in (c, a, b)])
    for packet_id in (c, a, b):
        client.expect("PUBREL", packet_id=packet_id)
    client.expect_nothing()


def absorb(client: Raw) -> list[bytes]:
    """What has come for *client*, each flow carried through, all acknowledgements of a kind at once."""
    found = client.drain()
    client.send(*[wire.ack(0x40 if one.qos == 1 else 0x50, one.packet_id or 0) for one in found if one.qos])
    releases = client.drain()
    client.send(*[wire.pubcomp(one.packet_id or 0) for one in releases])
    client.fence()
    assert {one.name for one in releases} <= {"PUBREL"} and not client.inbox
    return [one.payload or b"" for one in found if one.name == "PUBLISH"]


def received_in_order(serve: Serve, qos: int) -> None:
    """1000 numbered messages from 3 publishers; the subscriber is away for a while twice."""
    server = serve(maximum_queued_messages=2000)
    client = subscribed(server, "t", qos=qos, version=4)
    publishers = [server.client(4, transport="tcp") for _ in range(3)]
    for number, publisher in enumerate(publishers):
        publisher.connect(f"p{number}")
    received: list[bytes] = []
    for part in range(5):
        if part % 2:
            client.drop()
        numbers = range(part * 67, part * 67 + 67)
        for who, publisher in enumerate(publishers):
            publisher.send(publishes("t", [b"%d %d" % (who, number) for number in numbers], qos))
        for publisher in publishers:
            publisher.fence()
            publisher.send(*[wire.pubrel(packet_id, version=4) for packet_id in range(1, 68) if qos == 2])
            publisher.fence()
            publisher.inbox.clear()
        client = resume(server, version=4) if part % 2 else client
        received += absorb(client)
    for who in range(3):
        mine = [int(one.split()[1]) for one in received if one.startswith(b"%d " % who)]
        gaps = set(range(67, 134)) | set(range(201, 268)) if qos == 0 else set()
        assert mine == [number for number in range(335) if number not in gaps]


def test_mqtt311_4_6_0_5__ordered_by_default(serve: Serve) -> None:
    received_in_order(serve, 1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_4_6_0_6__ordered_topic(serve: Serve, qos: int) -> None:
    received_in_order(serve, qos)
