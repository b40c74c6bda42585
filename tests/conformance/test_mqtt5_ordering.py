"""MQTT 5.0 sections 4.5 and 4.6: message receipt and message ordering."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise, product

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import identifier, wind
from tests.conformance.hooks import Slow
from tests.conformance.server import Server
from tests.conformance.sessions import resume

PUBLISHERS = ("p0", "p1", "p2")
TOPICS = ("a", "a/b", "a/b/c", "a/c", "b/b", "b")


# --------------------------------------------------------------------------- 4.5: message receipt


@pytest.mark.parametrize("keep_qos_0", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_4_5_0_1__every_matching_session_gets_it(serve: Serve, qos: int, keep_qos_0: bool) -> None:
    server = serve(queue_qos_0=keep_qos_0)
    filters = ["t/x", "t/+", "#", "+/x"]
    clients = [server.connect(f"c{n}", session_expiry_interval=60) for n in range(16)]
    for n, client in enumerate(clients):
        client.subscribe(filters[n % 4], qos=n // 4 % 3)
    shared = [server.connect(f"shared{n}", session_expiry_interval=60) for n in range(4)]
    for client in shared:
        client.subscribe("$share/g/t/x", qos=2)
    offline, online = clients[8:], clients[:8]
    for client in (*offline, shared[3]):
        client.drop()
    server.connect("p").publish("t/x", b"x", qos, reason=0)
    for n, client in enumerate(online):
        client.expect_messages("x", qos=min(qos, n // 4 % 3))
    assert sum(len(client.drain()) for client in shared[:3]) == 1  # one copy for the group
    for n, client in enumerate(offline, 8):
        granted = min(qos, n // 4 % 3)
        kept = granted > 0 or keep_qos_0
        resume(server, client.client_id).expect_messages(*["x"] * kept, qos=granted)
    resume(server, "shared3").expect_nothing()


# --------------------------------------------------------------------------- 4.6: what the server sends


def test_mqtt5_4_6_0_1__resent_in_the_order_of_the_first_sending(server: Server) -> None:
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t", qos=2)
    publisher = server.connect("p")
    wind(server, "s", 65532)
    for n, qos in enumerate((1, 2, 2, 1, 2)):
        publisher.publish("t", f"{n}", qos)
    sent = client.expect_messages("0", "1", "2", "3", "4")
    assert [packet.packet_id for packet in sent] == [65533, 65534, 65535, 1, 2]
    for _ in range(2):
        client.drop()
        client = resume(server)
        found = client.expect_messages("0", "1", "2", "3", "4", dup=True)
        assert [(one.packet_id, one.qos) for one in found] == [(one.packet_id, one.qos) for one in sent]


def check_answers_in_order(serve: Serve, qos: int, answer: str) -> None:
    """100 in one stream, every seventh with an authorization that takes time."""
    server = serve(hooks=[Slow(seconds=0.001)])
    publisher = server.connect("p")
    topics = ["slow" if n % 7 == 0 else "quick" for n in range(1, 101)]
    publisher.send(*(wire.publish(topic, qos=qos, packet_id=n) for n, topic in enumerate(topics, 1)))
    for n in range(1, 101):
        publisher.expect(answer, packet_id=n, reason_code=0x10)
    publisher.expect_nothing()


def test_mqtt5_4_6_0_2__pubacks_in_the_order_of_publish(serve: Serve) -> None:
    check_answers_in_order(serve, 1, "PUBACK")


def test_mqtt5_4_6_0_3__pubrecs_in_the_order_of_publish(serve: Serve) -> None:
    check_answers_in_order(serve, 2, "PUBREC")


def test_mqtt5_4_6_0_4__pubrels_in_the_order_of_pubrec(server: Server) -> None:
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t", qos=2)
    publisher = server.connect("p")
    for payload in "abc":
        publisher.publish("t", payload, 2)
    a, b, c = (identifier(packet) for packet in client.expect_messages("a", "b", "c"))
    client.send(*(wire.pubrec(packet_id) for packet_id in (c, a, b)))
    for packet_id in (c, a, b):
        client.expect("PUBREL", packet_id=packet_id, reason_code=0)
    client.expect_nothing()


# --------------------------------------------------------------------------- 4.6: Ordered Topics


def flood(publisher: Raw, topics: list[str], start: int) -> None:
    """One numbered message at each QoS for each of *topics*, in one stream; the answers come in order.

    The payload is "publisher qos number".
    """
    stream, answers, releases = [], [], []
    for n, topic in enumerate(topics, start):
        for qos in (0, 1, 2):
            packet_id = publisher.next_id() if qos else None
            payload = f"{publisher.client_id} {qos} {n}".encode()
            stream.append(wire.publish(topic, payload, qos=qos, packet_id=packet_id))
            if packet_id:
                answers.append(("PUBACK" if qos == 1 else "PUBREC", packet_id))
            if packet_id and qos == 2:
                releases.append(packet_id)
    publisher.send(*stream)
    for name, packet_id in answers:
        publisher.expect(name, packet_id=packet_id, reason_code={0, 0x10})
    publisher.send(*map(wire.pubrel, releases))
    for packet_id in releases:
        publisher.expect("PUBCOMP", packet_id=packet_id, reason_code=0)


class Consumer:
    """Takes all there is, and keeps the numbers by topic, publisher and QoS of the PUBLISH."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str, str], list[int]] = defaultdict(list)

    def take(self, client: Raw) -> None:
        """Acknowledges until nothing comes any more."""
        found = True
        while found:
            found = [packet for packet in client.drain() if packet.type in (wire.PUBLISH, wire.PUBREL)]
            for packet in found:
                self.note(packet)
                if packet.type == wire.PUBREL:
                    client.send(wire.pubcomp(identifier(packet)))
                elif packet.qos:
                    client.send((wire.puback if packet.qos == 1 else wire.pubrec)(identifier(packet)))

    def note(self, packet: wire.Packet) -> None:
        if packet.type == wire.PUBLISH:
            name, qos, number = (packet.payload or b"").decode().split()
            self.numbers[packet.topic_name or "", name, qos].append(int(number))


@pytest.mark.parametrize("receive_maximum", [1, 10, 65535])
def test_mqtt5_4_6_0_5__one_publishers_order(serve: Serve, transport: str, receive_maximum: int) -> None:
    """Three times connected and three times not: at QoS 1 and 2 nothing is missing and nothing twice."""
    server = serve(maximum_queued_messages=10_000)
    publishers = [server.connect(name) for name in PUBLISHERS]
    consumer, step = Consumer(), 56 if transport == "tcp" else 7  # tcp: over 1000 at each QoS
    for turn in range(6):
        if turn % 2 == 0:
            client = server.connect(
                "s", clean_start=False, session_expiry_interval=60, receive_maximum=receive_maximum
            )
            client.subscribe("t", qos=2)
        for publisher in publishers:
            flood(publisher, ["t"] * step, turn * step)
        if turn % 2 == 0:
            consumer.take(client)
            client.drop()
    client = resume(server, "s", receive_maximum=receive_maximum)
    consumer.take(client)
    expect_order(consumer, range(6 * step))


def expect_order(consumer: Consumer, every: range) -> None:
    assert set(consumer.numbers) == {("t", name, qos) for name in PUBLISHERS for qos in "012"}
    for (_, _, qos), numbers in consumer.numbers.items():
        assert numbers == (sorted(set(numbers)) if qos == "0" else list(every))


@pytest.mark.parametrize("receive_maximum", [1, 20])
def test_mqtt5_4_6_0_5__order_over_a_cut_in_the_middle(server: Server, receive_maximum: int) -> None:
    """The connection breaks with messages in flight that were not acknowledged or not even read."""
    publishers = [server.connect(name) for name in PUBLISHERS]
    consumer = Consumer()
    client = server.connect("s", session_expiry_interval=60, receive_maximum=receive_maximum)
    client.subscribe("t", qos=2)
    for publisher in publishers:
        flood(publisher, ["t"] * 10, 0)
    for cut in range(4):
        client.reset()
        client = resume(server, receive_maximum=receive_maximum)
        flood(publishers[cut % 3], ["t"] * 2, 10 + cut // 3 * 2)
    consumer.take(client)
    assert {key[1:] for key in consumer.numbers} >= set(product(PUBLISHERS, "12"))
    for (_, name, qos), numbers in consumer.numbers.items():
        every = range(14 if name == "p0" else 12)
        assert numbers == (sorted(set(numbers)) if qos == "0" else list(every)), (name, qos)


@pytest.mark.parametrize("overlap", ["merge", "per_subscription"])
def test_mqtt5_4_6_0_6__every_topic_is_ordered(serve: Serve, overlap: str) -> None:
    """Wildcards, overlaps and downgrades: in each topic each publisher's messages come in their order."""
    server = serve(overlap=overlap)
    rng = random.Random(46)
    client = server.connect("s", receive_maximum=5)
    client.subscribe(("#", 0), ("a/#", 2), ("a/+", 1), ("+/b", 2), ("a/b", 1))
    publishers = [server.connect(name) for name in PUBLISHERS]
    sent: dict[tuple[str, str], list[int]] = defaultdict(list)
    consumer = Consumer()
    for start in range(0, 60, 20):
        for publisher in publishers:
            topics = [rng.choice(TOPICS) for _ in range(20)]
            for n, topic in enumerate(topics, start):
                sent[topic, publisher.client_id].append(n)
            flood(publisher, topics, start)
        consumer.take(client)
    copies = {"a": 2, "a/b": 5, "a/b/c": 2, "a/c": 3, "b/b": 2, "b": 1}
    for (topic, name), numbers in sent.items():
        times = 1 if overlap == "merge" else copies[topic]
        for qos in "012":
            assert_copies(consumer.numbers[topic, name, qos], numbers, times)


def assert_copies(found: list[int], sent: list[int], times: int) -> None:
    """Each number *times* times, and the n-th copies of all in the order of sending."""
    places: dict[int, list[int]] = defaultdict(list)
    for at, number in enumerate(found):
        places[number].append(at)
    assert sorted(found) == sorted(sent * times)
    for earlier, later in pairwise(sent):
        assert all(before < after for before, after in zip(places[earlier], places[later], strict=True))
