"""MQTT 3.1.1, section 4.7: Topic Names and Topic Filters."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.server import Server
from tests.conformance.sessions import subscribed


@pytest.mark.parametrize("topic", ["a/+", "#", "a+b", "+/b", "a#"])
def test_mqtt311_4_7_1_1__wildcards_in_topics(server: Server, topic: str) -> None:
    for qos in (0, 1, 2):
        raw = wire.publish(topic, b"x", qos=qos, retain=True, version=4)
        server.expect_breach(raw, codes=(), version=4)
    server.expect_refused(wire.connect("c", version=4, will=wire.will(topic)), version=4)
    assert server.retained() == []


def expect_filters(server: Server, topics: list[str], wanted: dict[str, list[str]]) -> None:
    """A subscriber of each filter gets these of *topics*: retained, in any order, then live."""
    publisher = server.connect("p", 4)
    for topic in topics:
        publisher.publish(topic, b"x", retain=True)
    for topic_filter, matching in wanted.items():
        client = server.connect("s", 4)
        client.subscribe(topic_filter)
        assert sorted(packet.topic_name or "" for packet in client.drain()) == sorted(matching), topic_filter
        publisher.send(*[wire.publish(topic, b"x", version=4) for topic in topics])
        publisher.fence()
        client.expect_messages(*[(topic, b"x") for topic in topics if topic in matching])


@pytest.mark.parametrize("topic_filter", ["a#", "a/#/b", "##", "#/a", "#/", "a/b#", "/#/"])
def test_mqtt311_4_7_1_2__misplaced_multi_level(server: Server, topic_filter: str) -> None:
    server.expect_breach(wire.subscribe(1, (topic_filter, 1), version=4), codes=(), version=4)
    server.expect_breach(wire.unsubscribe(1, topic_filter, version=4), codes=(), version=4)


def test_mqtt311_4_7_1_2__matches(server: Server) -> None:
    topics = ["a", "a/", "a/b", "a/b/c", "b", "/a", "A/b"]
    wanted = {
        "a/#": ["a", "a/", "a/b", "a/b/c"],
        "#": topics,
        "/#": ["/a"],
        "+/#": topics,
        "a/b/#": ["a/b", "a/b/c"],
    }
    expect_filters(server, topics, wanted)


@pytest.mark.parametrize("topic_filter", ["a+", "+a/b", "++", "a/+b", "+/b+", "+#", "#+"])
def test_mqtt311_4_7_1_3__part_of_a_level(server: Server, topic_filter: str) -> None:
    server.expect_breach(wire.subscribe(1, (topic_filter, 1), version=4), codes=(), version=4)
    server.expect_breach(wire.unsubscribe(1, topic_filter, version=4), codes=(), version=4)


def test_mqtt311_4_7_1_3__matches(server: Server) -> None:
    topics = ["a", "a/", "a/b", "a/b/c", "/x", "x"]
    wanted = {
        "a/+": ["a/", "a/b"],
        "/+": ["/x"],
        "+/+": ["a/", "a/b", "/x"],
        "+": ["a", "x"],
        "a/+/c": ["a/b/c"],
        "+/b/#": ["a/b", "a/b/c"],
    }
    expect_filters(server, topics, wanted)


def test_mqtt311_4_7_2_1__dollar_topics(server: Server) -> None:
    """Live and retained: filters that start with a wildcard find nothing."""
    server.run(server.broker.publish("$SYS/x", b"kept", retain=True))
    blind = {topic_filter: server.connect(topic_filter, 4) for topic_filter in ("#", "+/x", "+/#", "+/+")}
    for topic_filter, client in blind.items():
        client.subscribe(topic_filter)
        client.expect_nothing()
    seeing = {
        topic_filter: server.connect(topic_filter, 4) for topic_filter in ("$SYS/#", "$SYS/+", "$SYS/x")
    }
    for topic_filter, client in seeing.items():
        client.subscribe(topic_filter)
        found = [(one.topic_name, one.payload, one.retain) for one in client.drain()]
        assert ("$SYS/x", b"kept", True) in found, topic_filter
    server.run(server.broker.publish("$SYS/x", b"live"))
    for client in blind.values():
        client.expect_nothing()
    for client in seeing.values():
        client.expect_messages(("$SYS/x", "live"), retain=False)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_4_7_3_1__empty(server: Server, qos: int) -> None:
    for raw in (
        wire.publish("", b"x", qos=qos, version=4),
        wire.subscribe(1, ("", qos), version=4),
        wire.subscribe(1, ("t", qos), ("", qos), version=4),
        wire.unsubscribe(1, "", version=4),
    ):
        server.expect_breach(raw, codes=(), version=4)


@pytest.mark.parametrize("topic", ["a\0b", "\0", "a/\0"])
def test_mqtt311_4_7_3_2__null_character(server: Server, topic: str) -> None:
    for raw in (
        wire.publish(topic, b"x", version=4),
        wire.publish(topic, b"x", qos=1, version=4),
        wire.subscribe(1, (topic, 0), version=4),
        wire.unsubscribe(1, topic, version=4),
    ):
        server.expect_breach(raw, codes=(), version=4)
    server.expect_refused(wire.connect("c", version=4, will=wire.will(topic)), version=4)


@pytest.mark.parametrize("topic", ["a" * 65535, "é" * 32767 + "x"], ids=["ascii", "two bytes each"])
def test_mqtt311_4_7_3_3__65535_bytes(server: Server, topic: str) -> None:
    assert len(topic.encode()) == 65535
    client = server.connect("c", 4)
    client.subscribe(topic, qos=1)
    client.publish(topic, b"x", qos=1)
    client.expect("PUBLISH", topic_name=topic, payload="x")
    client.unsubscribe(topic)
    client.publish(topic, b"y")
    client.expect_nothing()


PAIRS = [
    ("\u00c5", "A\u030a"),
    ("A", "a"),
    ("a//b", "a/b"),
    ("a/", "a"),
    (" a", "a"),
    ("a ", "a"),
    ("a%2Fb", "a/b"),
    ("\u212b", "\u00c5"),
    ("/a", "a"),
    ("a\\b", "a/b"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_mqtt311_4_7_3_4__nothing_is_normalized(server: Server, pair: tuple[str, str]) -> None:
    publisher = server.connect("p", 4)
    clients = [
        subscribed(server, topic, qos=1, client_id=f"s{at}", version=4) for at, topic in enumerate(pair)
    ]
    for topic in pair:
        publisher.publish(topic, topic, qos=1, retain=True)
    for topic, client in zip(pair, clients, strict=True):
        client.expect_messages((topic, topic))
    assert server.retained() == sorted((topic, topic.encode()) for topic in pair)
