"""MQTT 5.0 sections 3.3.1, 3.3.2.1 and 3.3.4: flags, Topic Name and actions of PUBLISH."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import publish_numbers
from tests.conformance.hooks import Policy
from tests.conformance.server import Server
from tests.conformance.sessions import subscribed
from tests.conformance.texts import ILL_FORMED
from tests.conformance.topics import matches

FIRST_OF_QOS_0 = {0x30, 0x31}


# --------------------------------------------------------------------------- 3.3.1.1, 3.3.1.2: DUP and QoS


def test_mqtt5_3_3_1_1__dup_when_sent_again(server: Server) -> None:
    subscriber = server.connect("s", session_expiry_interval=60)
    subscriber.subscribe("t", qos=2)
    publisher = server.connect("p")
    for qos in (1, 2):
        publisher.publish("t", f"sent {qos}", qos)
    sent = [subscriber.expect("PUBLISH", payload=f"sent {qos}", qos=qos, dup=False) for qos in (1, 2)]
    subscriber.drop()
    for qos in (1, 2):
        publisher.publish("t", f"queued {qos}", qos)
    again = server.connect("s", clean_start=False, session_present=True)
    for packet in sent:
        again.expect("PUBLISH", payload=packet.payload, qos=packet.qos, packet_id=packet.packet_id, dup=True)
    for qos in (1, 2):
        again.expect("PUBLISH", payload=f"queued {qos}", qos=qos, dup=False)
    again.expect_nothing()


@pytest.mark.parametrize("first", [0x38, 0x39])
def test_mqtt5_3_3_1_2__dup_with_qos_0_is_malformed(server: Server, first: int) -> None:
    server.expect_breach(wire.publish("t", b"x", first=first), codes=0x81)
    assert server.retained() == []


def test_mqtt5_3_3_1_2__server_sends_no_dup_with_qos_0(server: Server) -> None:
    """However the message was published and for whatever reason it is sent at QoS 0."""
    subscribers = [server.connect("s0"), server.connect("s1")]
    subscribers[0].subscribe("t", qos=0)
    subscribers[1].subscribe("t", qos=2, retain_as_published=True)
    publisher = server.connect("p")
    publisher.publish("t", b"0", 0, retain=True)
    publisher.publish("t", b"1", 1, dup=True, retain=True)
    publisher.publish("t", b"2", 2, dup=True, retain=True)
    for payload in "012":
        subscribers[0].expect("PUBLISH", payload=payload, qos=0, first=FIRST_OF_QOS_0)
    subscribers[1].expect("PUBLISH", payload="0", qos=0, first=0x31)
    late = server.connect("late")
    late.subscribe("t")
    late.expect("PUBLISH", payload="2", qos=0, first=0x31)


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt5_3_3_1_3__dup_is_not_passed_on(server: Server, qos: int) -> None:
    subscriber = server.connect("s")
    subscriber.subscribe("t", qos=2)
    server.connect("p").publish("t", b"x", qos, dup=True, retain=True)
    subscriber.expect("PUBLISH", qos=qos, dup=False)
    late = server.connect("late")
    late.subscribe("t", qos=2)
    late.expect("PUBLISH", qos=qos, dup=False, retain=True)


@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_mqtt5_3_3_1_4__qos_3_is_malformed(server: Server, first: int) -> None:
    for packet_id in (None, 1):
        server.expect_breach(wire.publish("t", b"x", first=first, packet_id=packet_id), codes=0x81)
    assert server.retained() == []


# --------------------------------------------------------------------------- 3.3.2.1: Topic Name


def test_mqtt5_3_3_2_1__malformed_topic(server: Server) -> None:
    for topic_name in ILL_FORMED.values():
        server.expect_breach(wire.publish(topic_name, b"x", retain=True), codes=0x81)
    for qos in (1, 2):
        server.expect_breach(wire.publish(b"\xff", b"x", qos=qos, retain=True), codes=0x81)
    for body in (b"", b"\0", wire.two(10) + b"abc", wire.two(3) + b"ab"):
        server.expect_breach(wire.packet(0x30, body), codes=0x81)
    assert server.retained() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_3_3_2_1__empty_topic(server: Server, qos: int) -> None:
    server.expect_breach(wire.publish("", b"x", qos=qos, retain=True), codes=0x82)
    assert server.retained() == []


def test_mqtt5_3_3_2_1__server_puts_the_topic_first(server: Server) -> None:
    subscriber = server.connect("s")
    subscriber.subscribe("#", qos=2)
    for qos in (0, 1, 2):
        server.connect("p").publish("t/ü", b"x", qos, content_type="c")
        assert subscriber.expect("PUBLISH", qos=qos).raw[2:].startswith(wire.string("t/ü"))


@pytest.mark.parametrize("topic_name", ["a/+", "a/#", "#", "+", "a+b"])
def test_mqtt5_3_3_2_2__wildcard_in_a_topic(server: Server, topic_name: str) -> None:
    for qos in (0, 1, 2):
        server.expect_breach(wire.publish(topic_name, b"x", qos=qos, retain=True), codes=0x90)
    assert server.retained() == []


def random_topic(rng: random.Random) -> str:
    first = rng.choice(["", "a", "b", "$app"])
    return "/".join([first, *(rng.choice(["", "a", "b", "ab", "$app"]) for _ in range(rng.randrange(1, 4)))])


def random_filter(rng: random.Random) -> str:
    levels = [rng.choice(["+", level, level]) for level in random_topic(rng).split("/")]
    return "/".join([*levels[: rng.randrange(5)], "#"] if rng.random() < 0.3 else levels)


class Aliased:
    """A publisher that uses Topic Aliases as far as the server allows them."""

    def __init__(self, client: Raw) -> None:
        assert client.connack is not None
        self.client, self.known = client, {}  # type: Raw, dict[str, int]
        self.maximum = client.connack.properties["topic_alias_maximum"]

    def packet(self, topic_name: str, payload: bytes) -> bytes:
        if alias := self.known.get(topic_name):
            return wire.publish("", payload, properties={"topic_alias": alias})
        if len(self.known) == self.maximum:
            return wire.publish(topic_name, payload)
        alias = self.known[topic_name] = len(self.known) + 1
        return wire.publish(topic_name, payload, properties={"topic_alias": alias})


@pytest.mark.parametrize("aliases", [0, 8], ids=["names", "aliases"])
def test_mqtt5_3_3_2_3__topics_match_the_filters(serve: Serve, aliases: int) -> None:
    """1000 random topics against random filters: what matches comes, nothing else does."""
    server, rng = serve(dollar_topics=("$app/",)), random.Random(aliases)
    publisher = Aliased(server.connect("p"))
    subscriber = server.connect("s", topic_alias_maximum=aliases)
    for _ in range(10):
        filters = sorted({random_filter(rng) for _ in range(6)})
        subscriber.subscribe(*filters)
        topics = [random_topic(rng) for _ in range(100)]
        chunks = [publisher.packet(name, b"%d" % at) if aliases else wire.publish(name, b"%d" % at)
                  for at, name in enumerate(topics)]  # fmt: skip
        publisher.client.send(*chunks)
        publisher.client.fence()
        wanted = [
            (name, b"%d" % at) for at, name in enumerate(topics) if any(matches(one, name) for one in filters)
        ]
        subscriber.expect_messages(*wanted)
        subscriber.unsubscribe(*filters)


# --------------------------------------------------------------------------- 3.3.4: answers


@pytest.mark.parametrize(("topic_name", "code"), [("heard", 0x00), ("unheard", 0x10), ("no", 0x87)])
def test_mqtt5_3_3_4_1__one_answer_by_qos(serve: Serve, topic_name: str, code: int) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    server.connect("s").subscribe("heard", qos=2)
    client = server.connect("p")
    client.send(wire.publish(topic_name, b"0"))
    client.expect_nothing()
    client.send(wire.publish(topic_name, b"1", qos=1, packet_id=7))
    client.expect("PUBACK", packet_id=7, reason_code=code)
    client.expect_nothing()
    client.send(wire.publish(topic_name, b"2", qos=2, packet_id=8))
    client.expect("PUBREC", packet_id=8, reason_code=code)
    client.expect_nothing()
    client.release(8, 0x92 if code >= 0x80 else 0x00)
    client.expect_nothing()


# --------------------------------------------------------------------------- 3.3.4: overlapping subscriptions

OVERLAPPING = {"a/+": 0, "a/#": 1, "a/b": 2}


@pytest.mark.parametrize("order", list(permutations(OVERLAPPING)), ids=" ".join)
def test_mqtt5_3_3_4_2__overlap_at_the_highest_qos(server: Server, order: tuple[str, ...]) -> None:
    subscriber = server.connect("s")
    for topic_filter in order:
        subscriber.subscribe(topic_filter, qos=OVERLAPPING[topic_filter])
    publisher = server.connect("p")
    for qos in (2, 1, 0):
        publisher.publish("a/b", f"{qos}", qos)
        for packet in subscriber.expect_messages(f"{qos}", qos=qos):
            if qos:
                subscriber.ack(packet)


def test_mqtt5_3_3_4_3__identifiers_of_all(server: Server) -> None:
    subscriber = server.connect("s")
    subscriber.subscribe("t/#", subscription_identifier=1)
    subscriber.subscribe("t/+", subscription_identifier=2)
    server.connect("p").publish("t/a", b"x", retain=True)
    found = [one for packet in subscriber.drain() for one in packet.properties["subscription_identifier"]]
    assert sorted(found) == [1, 2]
    for identifier, topic_filter in ((1, "t/#"), (2, "t/+")):
        subscriber.subscribe(topic_filter, subscription_identifier=identifier)
        subscriber.expect("PUBLISH", retain=True, subscription_identifier=[identifier])
    subscriber.expect_nothing()


def test_mqtt5_3_3_4_4__one_copy_with_all_identifiers(server: Server) -> None:
    subscriber = server.connect("s")
    for topic_filter, identifier in (("t/#", 1), ("t/+", 0), ("+/a", 3), ("t/a", 3)):
        named = {"subscription_identifier": identifier} if identifier else {}
        subscriber.subscribe(topic_filter, **named)
    server.connect("p").publish("t/a", b"x")
    assert sorted(subscriber.expect("PUBLISH").properties["subscription_identifier"]) == [1, 3, 3]
    subscriber.expect_nothing()


def subscribe_twice(server: Server) -> Raw:
    """A client with two overlapping subscriptions, after a message that both match."""
    subscriber = server.connect("s")
    subscriber.subscribe("t/#", qos=1, subscription_identifier=1)
    subscriber.subscribe("t/a", qos=2, subscription_identifier=2)
    subscriber.subscribe("t/+", qos=0)
    server.connect("p").publish("t/a", b"x", 2)
    return subscriber


def test_mqtt5_3_3_4_5__several_copies_with_one_identifier_each(serve: Serve) -> None:
    found = subscribe_twice(serve(overlap="per_subscription")).expect_messages(b"x", b"x", b"x")
    got = sorted((packet.qos, packet.properties.get("subscription_identifier")) for packet in found)
    assert got == [(0, None), (1, [1]), (2, [2])]


def test_mqtt5_3_3_4_5__void_for_a_single_copy(server: Server) -> None:
    subscribe_twice(server).expect_messages(b"x", qos=2)


@pytest.mark.parametrize("identifier", [0, 1, 268_435_455])
def test_mqtt5_3_3_4_6__subscription_identifier_from_a_client(server: Server, identifier: int) -> None:
    for qos in (0, 1, 2):
        named = {"subscription_identifier": identifier}
        server.expect_breach(wire.publish("t", b"x", qos=qos, retain=True, properties=named), codes=0x82)
    assert server.retained() == []


# --------------------------------------------------------------------------- 3.3.4: Receive Maximum, server


def full_client(serve: Serve) -> Raw:
    """A client with as many QoS 2 messages open as the server takes: 1, 2 and 3."""
    server = serve(hooks=[Policy(publish={"no": 0x87})], receive_maximum=3)
    client = server.connect("p")
    assert client.connack is not None and client.connack.properties["receive_maximum"] == 3
    for packet_id in (1, 2, 3):
        client.send(wire.publish("t", b"x", qos=2, packet_id=packet_id))
        client.expect("PUBREC", packet_id=packet_id, reason_code=0x10)
    return client


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt5_3_3_4_7__one_above_the_receive_maximum(serve: Serve, qos: int) -> None:
    client = full_client(serve)
    client.send(wire.publish("t", b"x", qos=qos, packet_id=4))
    client.expect_close(0x93)


def test_mqtt5_3_3_4_7__what_is_not_counted(serve: Serve) -> None:
    client = full_client(serve)
    client.publish("t", b"qos 0 is not counted")
    client.send(wire.publish("t", b"x", qos=2, packet_id=2, dup=True))
    client.expect("PUBREC", packet_id=2, reason_code=0x00)
    client.release(2)
    for packet_id in range(10, 15):  # one slot is free, and PUBREC 0x87 and PUBACK free it each time
        client.publish("no", b"refused", 2, packet_id=packet_id, reason=0x87)
        client.publish("t", b"done", 1, packet_id=packet_id)
    client.send(wire.publish("t", b"x", qos=2, packet_id=4))
    client.expect("PUBREC", packet_id=4)
    client.send(wire.publish("t", b"x", qos=2, packet_id=5))
    client.expect_close(0x93)


# --------------------------------------------------------------------------- 3.3.4: Receive Maximum, client


def subscriber_of(server: Server, receive_maximum: int, qos: int, count: int) -> Raw:
    """A client with a small Receive Maximum, after *count* messages "0", "1", ... were published."""
    subscriber = subscribed(server, qos=qos, receive_maximum=receive_maximum)
    publish_numbers(server, count, qos)
    return subscriber


def test_mqtt5_3_3_4_9__puback_frees_a_slot(server: Server) -> None:
    subscriber = subscriber_of(server, 2, qos=1, count=5)
    open_now = subscriber.expect_messages("0", "1", qos=1)
    for payload in "234":
        subscriber.ack(open_now.pop(0))
        open_now += subscriber.expect_messages(payload, qos=1)
    subscriber.ack(open_now[0], 0x87)
    subscriber.expect_nothing()


def test_mqtt5_3_3_4_9__pubcomp_or_a_refusing_pubrec_frees_a_slot(server: Server) -> None:
    subscriber = subscriber_of(server, 2, qos=2, count=5)
    first, second = (packet.packet_id or 0 for packet in subscriber.expect_messages("0", "1", qos=2))
    subscriber.send(wire.pubrec(first))
    subscriber.expect("PUBREL", packet_id=first)
    subscriber.expect_nothing()
    subscriber.send(wire.pubcomp(first))
    subscriber.expect("PUBLISH", payload="2")
    subscriber.expect_nothing()
    subscriber.send(wire.pubrec(second, 0x80))
    subscriber.expect("PUBLISH", payload="3")
    subscriber.expect_nothing()


def test_mqtt5_3_3_4_10__other_packets_pass(server: Server) -> None:
    subscriber = subscriber_of(server, 1, qos=2, count=2)
    subscriber.expect("PUBLISH", payload="0", packet_id=1)
    subscriber.expect_nothing()  # PINGREQ is answered
    for first, answer in (
        (wire.subscribe(1, ("other", 2)), "SUBACK"),
        (wire.publish("away", b"x", qos=1, packet_id=2), "PUBACK"),
        (wire.publish("away", b"x", qos=2, packet_id=3), "PUBREC"),
        (wire.pubrel(3), "PUBCOMP"),
        (wire.unsubscribe(4, "other"), "UNSUBACK"),
        (wire.pubrec(1), "PUBREL"),
    ):
        subscriber.send(first)
        subscriber.expect(answer)
    server.connect("p").publish("t", b"qos 0 passes")
    subscriber.expect("PUBLISH", payload="qos 0 passes")
    subscriber.expect_nothing()
    subscriber.send(wire.pubcomp(1))
    subscriber.expect("PUBLISH", payload="1")
