"""MQTT 5.0 section 3.3.1.3: RETAIN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.server import Server

DETAILS = {"content_type": "text/plain", "user_property": [("k", "1"), ("k", "2")]}
COUNT = "retained messages/count"


# --------------------------------------------------------------------------- storing


def test_mqtt5_3_3_1_5__the_last_one_is_kept(server: Server) -> None:
    publisher = server.connect("p")
    publisher.publish("t", b"A", 1, retain=True, content_type="a", response_topic="r")
    publisher.publish("t", b"B", 0, retain=True, content_type="b")
    publisher.publish("t", b"C", 2, retain=True, **DETAILS)
    client = server.late()
    client.expect("PUBLISH", payload="C", qos=2, retain=True, properties=DETAILS)
    client.expect_nothing()


def test_mqtt5_3_3_1_5__each_qos_replaces(server: Server) -> None:
    publisher = server.connect("p")
    for qos in (0, 1, 2, 1, 0):
        publisher.publish("t", f"{qos}", qos, retain=True)
        server.late().expect_messages(f"{qos}", qos=qos, retain=True)


def test_mqtt5_3_3_1_5__a_will_replaces(server: Server) -> None:
    server.connect("p").publish("t", b"A", 1, retain=True)
    server.connect("w", will=wire.will("t", b"gone", 2, retain=True, **DETAILS)).drop()
    client = server.late()
    client.expect("PUBLISH", payload="gone", qos=2, retain=True, properties=DETAILS)
    client.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_3_3_1_6__empty_removes(server: Server, qos: int) -> None:
    publisher = server.connect("p")
    for topic_name in ("t", "t/a"):
        publisher.publish(topic_name, b"A", 1, retain=True)
    live = {rap: server.connect(f"live-{rap}") for rap in (False, True)}
    for rap, client in live.items():
        client.subscribe("t", qos=2, retain_as_published=rap, retain_handling=2)
    publisher.publish("t", b"", qos, retain=True)
    for rap, client in live.items():
        client.expect("PUBLISH", topic_name="t", payload=b"", qos=qos, retain=rap)
    assert server.retained() == [("t/a", b"A")]


def test_mqtt5_3_3_1_7__empty_is_not_stored(server: Server) -> None:
    publisher = server.connect("p")
    publisher.publish("other", b"A", retain=True)
    assert int(server.sys_value(COUNT)) == 1
    for qos in (0, 1, 2):
        publisher.publish(f"t/{qos}", b"", qos, retain=True, message_expiry_interval=60, **DETAILS)
    server.connect("w", will=wire.will("t/w", b"", 1, retain=True, **DETAILS)).drop()
    assert server.retained() == [("other", b"A")]
    assert int(server.sys_value(COUNT)) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_3_3_1_8__retain_0_touches_nothing(server: Server, qos: int) -> None:
    publisher = server.connect("p")
    publisher.publish("t", b"A", 1, retain=True)
    for topic_name in ("t", "new"):
        publisher.publish(topic_name, b"B", qos)
        publisher.publish(topic_name, b"", qos)
    assert server.retained() == [("t", b"A")]


# --------------------------------------------------------------------------- Retain Handling

TOPICS = ["/a", "/a/b", "a", "a/b", "a/b/c"]


@pytest.mark.parametrize(
    ("topic_filter", "found"),
    [
        ("a/b", ["a/b"]),
        ("a/+", ["a/b"]),
        ("+", ["a"]),
        ("#", TOPICS),
        ("a/#", ["a", "a/b", "a/b/c"]),
        ("/a", ["/a"]),
        ("/+", ["/a"]),
        ("/#", ["/a", "/a/b"]),
        ("+/+", ["/a", "a/b"]),
        ("none", []),
    ],
)
def test_mqtt5_3_3_1_9__retain_handling_0(server: Server, topic_filter: str, found: list[str]) -> None:
    publisher = server.connect("p")
    for topic_name in TOPICS:
        publisher.publish(topic_name, b"x", retain=True)
    client = server.connect("s")
    for qos in (0, 1, 0):  # again, too
        client.subscribe(topic_filter, qos=qos, retain_handling=0)
        packets = client.drain()
        assert sorted(packet.topic_name or "" for packet in packets) == found
        assert all(packet.retain for packet in packets)


def test_mqtt5_3_3_1_10__retain_handling_1(server: Server) -> None:
    server.connect("p").publish("t", b"A", 1, retain=True)
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t", retain_handling=1)
    client.expect_messages("A", retain=True)
    for qos in (0, 1, 2):
        client.subscribe("t", qos=qos, retain_handling=1)
        client.expect_nothing()
    client.unsubscribe("t")
    client.subscribe("t", retain_handling=1)
    client.expect_messages("A", retain=True)
    client.drop()
    resumed = server.connect("s", clean_start=False, session_present=True, session_expiry_interval=60)
    resumed.subscribe("t", retain_handling=1)
    resumed.expect_nothing()
    resumed.drop()
    fresh = server.connect("s", clean_start=True, session_present=False)
    fresh.subscribe("t", retain_handling=1)
    fresh.expect_messages("A", retain=True)


def test_mqtt5_3_3_1_11__retain_handling_2(server: Server) -> None:
    publisher = server.connect("p")
    publisher.publish("t", b"A", 1, retain=True)
    client = server.connect("s")
    for _ in range(2):
        client.subscribe("t", retain_as_published=True, retain_handling=2)
        client.expect_nothing()
    publisher.publish("t", b"B", 1, retain=True)
    client.expect_messages("B", retain=True)


def test_mqtt5_3_3_1_11__retain_handling_3(server: Server) -> None:
    server.expect_breach(wire.subscribe(1, ("t", wire.options(retain_handling=3))), codes=0x82)


# --------------------------------------------------------------------------- Retain As Published


def every_way(server: Server, retain_as_published: bool) -> Iterator[tuple[bool, Raw]]:
    """(RETAIN as published, a client that gets it next): live, queued while offline, and as a will."""
    publisher = server.connect("p")
    for retain in (False, True):
        client = server.connect("s", session_expiry_interval=60)
        client.subscribe("#", qos=1, retain_as_published=retain_as_published, retain_handling=2)
        publisher.publish("live", b"x", 1, retain=retain)
        yield retain, client
        server.connect("w", will=wire.will("will", b"x", 1, retain)).drop()
        yield retain, client
        client.drop()
        publisher.publish("queued", b"x", 1, retain=retain)
        server.connect("w", will=wire.will("queued/will", b"x", 1, retain)).drop()
        client = server.connect("s", clean_start=False, session_present=True)
        yield retain, client
        yield retain, client


def test_mqtt5_3_3_1_12__retain_as_published_0(server: Server) -> None:
    for _, client in every_way(server, retain_as_published=False):
        client.ack(client.expect("PUBLISH", payload="x", retain=False))
    client = server.late(retain_as_published=False)
    found = client.drain()
    assert {(packet.topic_name, packet.retain) for packet in found} == {
        (name, True) for name in ("live", "will", "queued", "queued/will")
    }


def test_mqtt5_3_3_1_13__retain_as_published_1(server: Server) -> None:
    for retain, client in every_way(server, retain_as_published=True):
        client.ack(client.expect("PUBLISH", payload="x", retain=retain))
