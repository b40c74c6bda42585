"""MQTT 3.1.1, sections 3.3 and 3.6: PUBLISH and its acknowledgements."""

from __future__ import annotations

import random

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed
from tests.conformance.topics import matches

# ------------------------------------------------------------------------------- 3.3.1 the first byte


def test_mqtt311_3_3_1_1__dup(server: Server) -> None:
    """1 on what was sent before, 0 on what only waited."""
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2)
    client.expect_messages(b"1", b"2", dup=False)
    client.drop()
    publisher.publish("t", b"3", qos=1)
    again = resume(server, version=4)
    for payload, qos, dup in ((b"1", 1, True), (b"2", 2, True), (b"3", 1, False)):
        again.expect("PUBLISH", payload=payload, qos=qos, dup=dup)


@pytest.mark.parametrize("first", [0x38, 0x39])
def test_mqtt311_3_3_1_2__dup_at_qos_0(server: Server, first: int) -> None:
    server.expect_breach(wire.publish("t", b"x", version=4, first=first), codes=(), version=4)
    assert server.retained() == []


def test_mqtt311_3_3_1_2__server_never_sets_it(server: Server) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("t", b"kept", retain=True)
    client = subscribed(server, "t", version=4)
    for qos in (0, 1, 2):
        client.subscribe("t", qos=0)
        publisher.publish("t", b"live", qos=qos, dup=qos > 0)
    found = client.drain()
    assert [packet.first for packet in found] == [0x31, 0x31, 0x30, 0x31, 0x30, 0x31, 0x30]


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt311_3_3_1_3__incoming_dup_is_not_passed_on(server: Server, qos: int) -> None:
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    publisher.publish("t", b"x", qos=qos, dup=True)
    client.expect("PUBLISH", payload="x", qos=qos, dup=False)


@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_mqtt311_3_3_1_4__qos_3(server: Server, first: int) -> None:
    server.expect_breach(wire.publish("t", b"x", packet_id=1, version=4, first=first), codes=(), version=4)
    assert server.retained() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_1_5__message_and_qos_are_stored(server: Server, qos: int) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("t", b"first", qos=2, retain=True)
    publisher.publish("t", b"second", qos=qos, retain=True)
    client = subscribed(server, "t", qos=2, version=4)
    client.expect_messages(("t", "second"), qos=qos, retain=True)


def test_mqtt311_3_3_1_6__every_matching_topic(server: Server) -> None:
    publisher = server.connect("p", 4)
    topics = ["a", "a/b", "a/b/c", "a/d", "b", "/a"]
    for topic in topics:
        publisher.publish(topic, f"old {topic}", retain=True)
        publisher.publish(topic, topic, retain=True)
    wanted = {
        "a/b": ["a/b"],
        "a/+": ["a/b", "a/d"],
        "+": ["a", "b"],
        "a/#": ["a", "a/b", "a/b/c", "a/d"],
        "#": topics,
        "+/+/c": ["a/b/c"],
        "nothing/#": [],
    }
    client = server.connect("s", 4)
    for topic_filter, matching in wanted.items():
        client.subscribe(topic_filter)
        found = [(packet.topic_name, packet.payload) for packet in client.drain()]
        assert sorted(found) == sorted((topic, topic.encode()) for topic in matching)


def test_mqtt311_3_3_1_7__qos_0_replaces(server: Server) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("t", b"A", qos=1, retain=True)
    publisher.publish("t", b"B", qos=0, retain=True)
    subscribed(server, "t", version=4).expect_messages(b"B", qos=0, retain=True)


@pytest.mark.parametrize(("qos", "first"), [(0, 0x31), (1, 0x33), (2, 0x35)])
def test_mqtt311_3_3_1_8__retain_1_on_subscribe(server: Server, qos: int, first: int) -> None:
    server.connect("p", 4).publish("t", b"x", qos=qos, retain=True)
    client = subscribed(server, "t", version=4)
    assert client.recv().first == first
    client.subscribe("+")
    client.expect("PUBLISH", topic_name="t", retain=True)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_1_9__retain_0_on_live(server: Server, qos: int) -> None:
    client = subscribed(server, "t", version=4)
    server.connect("p", 4).publish("t", b"x", qos=qos, retain=True)
    client.expect("PUBLISH", payload="x", qos=qos, retain=False)


def test_mqtt311_3_3_1_9__queued_as_well(server: Server) -> None:
    subscribed(server, "t", version=4).drop()
    server.connect("p", 4).publish("t", b"x", qos=1, retain=True)
    resume(server, version=4).expect_messages(b"x", retain=False)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_1_10__empty_removes(server: Server, qos: int) -> None:
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    publisher.publish("t", b"kept", qos=1, retain=True)
    assert server.retained() == [("t", b"kept")]
    publisher.publish("t", b"", qos=qos, retain=True)
    client.expect("PUBLISH", payload="kept", retain=False)
    client.expect("PUBLISH", payload=b"", qos=qos, retain=False)
    late = server.connect("late", 4)
    late.subscribe("#")
    late.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_1_11__empty_is_not_stored(server: Server, qos: int) -> None:
    server.connect("p", 4).publish("t", b"", qos=qos, retain=True)
    late = server.connect("late", 4)
    late.subscribe("#")
    late.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_1_12__retain_0_changes_nothing(server: Server, qos: int) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("other", b"B", qos=qos)
    publisher.publish("t", b"A", qos=1, retain=True)
    publisher.publish("t", b"B", qos=qos)
    publisher.publish("t", b"", qos=qos)
    subscribed(server, "#", version=4).expect_messages(("t", "A"), retain=True)


# ------------------------------------------------------------------------------- 3.3.2 the topic


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_2_1__no_string_first(server: Server, qos: int) -> None:
    first = 0x30 | qos << 1
    raws = [
        wire.publish(b"\xff", b"x", qos=qos, version=4),
        wire.publish(b"t\xc3", b"x", qos=qos, version=4),
        wire.packet(first, b"\0\x05ab"),
        wire.packet(first, b"\xff\xfft\0\1x"),
        wire.packet(first, b"\0"),
        wire.packet(first),
    ]
    for raw in raws:
        server.expect_breach(raw, codes=(), version=4)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["a/+", "#", "a+b", "+", "a/#", "a#", "+/a"])
def test_mqtt311_3_3_2_2__wildcards(server: Server, topic: str, qos: int) -> None:
    raw = wire.publish(topic, b"x", qos=qos, retain=True, version=4)
    server.expect_breach(raw, codes=(), version=4)
    assert server.retained() == []


def random_topic(rng: random.Random, letters: str) -> str:
    return "/".join(rng.choice(["a", "b", "", *letters]) for _ in range(rng.randrange(1, 5)))


def test_mqtt311_3_3_2_3__reference_matcher(server: Server) -> None:
    """20 random filters, each of its own client, and 60 random topics: nothing extra, nothing missing."""
    rng = random.Random(f"{server.rng.random()}")
    clients = {}
    while len(clients) < 20:
        topic_filter = random_topic(rng, "++") + rng.choice(["", "", "/#"])
        if topic_filter and topic_filter not in clients:
            clients[topic_filter] = subscribed(
                server, topic_filter, qos=0, client_id=f"s{len(clients)}", version=4
            )
    topics = [topic for topic in (random_topic(rng, "") for _ in range(60)) if topic]
    publisher = server.connect("p", 4)
    publisher.send(*[wire.publish(topic, b"%d" % at, version=4) for at, topic in enumerate(topics)])
    publisher.fence()
    for topic_filter, client in clients.items():
        found = [(packet.topic_name, packet.payload) for packet in client.drain()]
        wanted = [(topic, b"%d" % at) for at, topic in enumerate(topics) if matches(topic_filter, topic)]
        assert found == wanted, topic_filter


# ------------------------------------------------------------------------------- 3.3.4, 3.3.5 the answer


@pytest.mark.parametrize("listener", [False, True])
def test_mqtt311_3_3_4_1__answer_by_qos(server: Server, listener: bool) -> None:
    if listener:
        server.watch()
    client = server.connect("p", 4)
    client.send(wire.publish("t", b"0", version=4))
    client.expect_nothing()
    client.send(wire.publish("t", b"1", qos=1, packet_id=7, version=4))
    assert client.recv().raw == bytes.fromhex("40 02 00 07")
    client.send(wire.publish("t", b"2", qos=2, packet_id=8, version=4))
    assert client.recv().raw == bytes.fromhex("50 02 00 08")
    client.send(wire.pubrel(8, version=4))
    assert client.recv().raw == bytes.fromhex("70 02 00 08")
    client.expect_nothing()


def test_mqtt311_3_3_5_1__overlapping_subscriptions(server: Server) -> None:
    """One copy, at the highest QoS of all that match."""
    client, publisher = (
        subscribed(server, ("a/+", 0), ("a/#", 1), ("a/b", 2), version=4),
        server.connect("p", 4),
    )
    for topic, granted in (("a/b", 2), ("a/c", 1), ("a/b/c", 1)):
        for qos in (0, 1, 2):
            publisher.publish(topic, b"x", qos=qos)
            client.expect("PUBLISH", topic_name=topic, qos=min(qos, granted))
    client.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_5_2__acknowledged_and_dropped(serve: Serve, qos: int) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    watcher, client = server.watch(), server.connect("c", 4)
    client.publish("no", b"x", qos=qos, retain=True)
    client.expect_nothing()
    watcher.expect_nothing()
    assert server.retained() == []
    client.publish("yes", b"x", qos=qos)
    watcher.expect("PUBLISH", topic_name="yes")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_3_5_2__closed_by_setting(serve: Serve, qos: int) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})], refused_publish_3x="close")
    server.expect_breach(wire.publish("no", b"x", qos=qos, retain=True, version=4), codes=(), version=4)
    assert server.retained() == []


# ------------------------------------------------------------------------------- 3.6 PUBREL


@pytest.mark.parametrize("first", [flags | 0x60 for flags in range(16) if flags != 2])
def test_mqtt311_3_6_1_1__flags(server: Server, first: int) -> None:
    """The held message is not routed either."""
    held = wire.publish("t", b"x", qos=2, packet_id=1, version=4)
    watcher = server.watch()
    client = server.connect("c", 4, will=wire.will("w", b"gone"))
    client.send(held)
    client.expect("PUBREC", packet_id=1)
    client.send(wire.pubrel(1, version=4, first=first))
    client.expect_close()
    watcher.expect_messages(("w", "gone"))
