"""MQTT 5.0 section 4.7: Topic Names and Topic Filters."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import FILTER_INVALID, MALFORMED, NAME_INVALID, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.server import Server


def expect_matches(server: Server, topic_filter: str, topics: dict[str, bool]) -> None:
    """Live and retained: *topic_filter* gets those of *topics* that are True, and only those."""
    wanted = [topic for topic, matches in topics.items() if matches]
    client = server.connect("c")
    client.subscribe(topic_filter)
    publisher = server.connect("p")
    for topic in topics:
        publisher.publish(topic, b"live", retain=True)
    client.expect_messages(*((topic, b"live") for topic in wanted), retain=False)
    assert server.retained(topic_filter) == sorted((topic, b"live") for topic in wanted)
    client.disconnect()


# --------------------------------------------------------------------------- 4.7.1: wildcards


@pytest.mark.parametrize("topic_name", ["a/+", "a/#", "#", "+", "a+b", "a#", "+/a"])
def test_mqtt5_4_7_0_1__no_wildcards_in_topic_names(server: Server, topic_name: str) -> None:
    for qos in (0, 1, 2):
        server.expect_breach(wire.publish(topic_name, b"x", qos=qos, retain=True), codes=NAME_INVALID)
        server.expect_refused(wire.connect(will=wire.will(topic_name, b"x", qos)), codes=NAME_INVALID)
    assert server.retained() == []


def test_mqtt5_4_7_0_1__wildcards_in_filters(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("a/+", "a/#", "+", "#", granted=[0, 0, 0, 0])
    client.unsubscribe("a/+", "a/#", "+", "#", reasons=[0, 0, 0, 0])


def expect_invalid_filter(server: Server, topic_filter: str | bytes, code: int = FILTER_INVALID) -> None:
    """Alone, behind a good one, and in UNSUBSCRIBE."""
    server.expect_breach(wire.subscribe(1, topic_filter), codes=code)
    server.expect_breach(wire.subscribe(1, "good", topic_filter), codes=code)
    server.expect_breach(wire.unsubscribe(1, topic_filter), codes=code)


@pytest.mark.parametrize("topic_filter", ["a#", "a/#/b", "#/a", "##", "a/b#", "#/", "a/##", "#+"])
def test_mqtt5_4_7_1_1__misplaced_multi_level_wildcard(server: Server, topic_filter: str) -> None:
    expect_invalid_filter(server, topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "yes", "no"),
    [
        ("#", ["a", "a/b", "/", "/a", "a/", "a//b"], []),
        ("a/#", ["a", "a/", "a/b/c", "a//", "a/b"], ["b", "ab", "/a", "A/b"]),
        ("/#", ["/", "/a", "/a/b"], ["a", "a/b"]),
        ("+/#", ["a", "/a", "a/b/c"], []),
        ("a/+/#", ["a/", "a/b", "a/b/c"], ["a", "b/c"]),
    ],
)
def test_mqtt5_4_7_1_1__multi_level_wildcard(
    server: Server, topic_filter: str, yes: list[str], no: list[str]
) -> None:
    expect_matches(server, topic_filter, dict.fromkeys(yes, True) | dict.fromkeys(no, False))


@pytest.mark.parametrize("topic_filter", ["a+", "a/+b", "+a/b", "++", "a/b+/c", "+/a+", "+a/#"])
def test_mqtt5_4_7_1_2__misplaced_single_level_wildcard(server: Server, topic_filter: str) -> None:
    expect_invalid_filter(server, topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "yes", "no"),
    [
        ("+", ["a", "b"], ["/x", "a/", "a/b"]),
        ("+/+", ["/x", "a/b", "/", "a/"], ["a", "a/b/c"]),
        ("/+", ["/x", "/"], ["x", "a/b", "/x/y"]),
        ("a/+/b", ["a/x/b", "a//b"], ["a/b", "a/x/y/b", "a/x/b/"]),
        ("+/a/#", ["x/a", "/a", "x/a/b/c"], ["a", "x/b/a"]),
        ("a/+", ["a/", "a/b"], ["a", "a/b/c"]),
        ("+/b/+", ["a/b/c", "/b/"], ["a/b", "a/c/b"]),
    ],
)
def test_mqtt5_4_7_1_2__single_level_wildcard(
    server: Server, topic_filter: str, yes: list[str], no: list[str]
) -> None:
    expect_matches(server, topic_filter, dict.fromkeys(yes, True) | dict.fromkeys(no, False))


# --------------------------------------------------------------------------- 4.7.2: topics that begin with $

BLIND = ["#", "+/#", "+/x", "+/+", "+", "$share/g/#", "$share/g/+/x"]


def from_server(server: Server, topic_name: str, payload: bytes, retain: bool = False) -> None:
    server.run(server.broker.publish(topic_name, payload, qos=1, retain=retain))


def subscribed(server: Server, topic_filter: str) -> Raw:
    """A client with that filter, its retained messages read."""
    client = server.connect(topic_filter)
    client.subscribe(topic_filter, qos=1)
    client.auto_ack = True
    client.drain()
    return client


@pytest.mark.parametrize("topic_filter", BLIND)
def test_mqtt5_4_7_2_1__leading_wildcards_do_not_match(serve: Serve, topic_filter: str) -> None:
    server = serve(dollar_topics=("$app/",))
    client = subscribed(server, topic_filter)
    for retain in (False, True):
        from_server(server, "$SYS/x", b"live", retain)
        server.connect("p").publish("$app/x", b"live", 1, retain=retain, reason=0x10)
    client.expect_nothing()
    late = server.connect("late")
    late.subscribe(topic_filter)
    late.expect_nothing()


@pytest.mark.parametrize("topic_filter", ["$SYS/#", "$SYS/+", "$SYS/x", "$share/g/$SYS/#", "$share/g/$SYS/+"])
def test_mqtt5_4_7_2_1__filters_that_name_the_first_level_match(server: Server, topic_filter: str) -> None:
    client = subscribed(server, topic_filter)
    from_server(server, "$SYS/x", b"live")
    client.expect("PUBLISH", topic_name="$SYS/x", payload="live")
    from_server(server, "$SYS/x", b"kept", retain=True)
    client.expect("PUBLISH", topic_name="$SYS/x", payload="kept")
    if not topic_filter.startswith("$share"):
        assert ("$SYS/x", b"kept") in server.retained(topic_filter)


def test_mqtt5_4_7_2_1__dollar_at_a_later_level_is_ordinary(server: Server) -> None:
    expect_matches(server, "+/+", {"a/$x": True, "/$SYS": True, "a$/b": True})


# --------------------------------------------------------------------------- 4.7.3: what all topics are


def test_mqtt5_4_7_3_1__empty_topics(server: Server) -> None:
    expect_invalid_filter(server, "")
    for qos in (0, 1, 2):
        server.expect_breach(wire.publish("", b"x", qos=qos, retain=True), codes=PROTOCOL_ERROR)
    server.expect_refused(wire.connect(will=wire.will("", b"x")), codes=NAME_INVALID)


def test_mqtt5_4_7_3_1__one_character_is_enough(server: Server) -> None:
    for topic in ("/", "a", " ", "é"):
        expect_matches(server, topic, {topic: True, "other": False})


def test_mqtt5_4_7_3_2__u_0000(server: Server) -> None:
    for topic in (b"a\0b", b"\0", b"a/\0"):
        expect_invalid_filter(server, topic, MALFORMED)
        for qos in (0, 1, 2):
            server.expect_breach(wire.publish(topic, b"x", qos=qos, retain=True), codes=MALFORMED)
        server.expect_breach(wire.publish("t", b"x", properties={"response_topic": topic}), codes=MALFORMED)
        server.expect_refused(wire.connect(will=wire.will(topic)), codes=MALFORMED)
        server.expect_refused(wire.connect(will=wire.will("t", response_topic=topic)), codes=MALFORMED)
    assert server.retained() == []


LONG = [
    "é" * 32767 + "x",
    "€" * 21845,
    "𝄞" * 16383 + "abc",
    "a/" * 100 + "ü" * 32667 + "y",
]


@pytest.mark.parametrize("topic", LONG, ids=["two bytes", "three bytes", "four bytes", "levels"])
def test_mqtt5_4_7_3_3__topics_of_65535_bytes(server: Server, topic: str) -> None:
    assert len(topic.encode()) == 65535
    client = server.connect("c", will=wire.will(topic, b"will"))
    client.subscribe(topic, qos=2)
    publisher = server.connect("p")
    for qos in (0, 1, 2):
        publisher.publish(topic, b"x", qos, retain=True, response_topic=topic)
        client.expect("PUBLISH", topic_name=topic, payload="x", qos=qos, response_topic=topic)
    assert server.retained("#") == [(topic, b"x")]
    client.unsubscribe(topic, reasons=[0])
    publisher.subscribe(topic)
    publisher.expect("PUBLISH", topic_name=topic, payload="x", retain=True)
    client.drop()
    publisher.expect("PUBLISH", topic_name=topic, payload="will")


LOOK_ALIKE = [
    "\u00c5", "A\u030a", "\u212b", "A", "a", "a//b", "a/b", "a/", "/a", " a", "a ", "a%2Fb", "%61",
    "a\\b", "ﬁ", "fi", "ß", "ss", "\ufeffa", "１", "1", "a.b", "a*", "a?", "*",
]  # fmt: skip


def test_mqtt5_4_7_3_4__nothing_is_normalized(server: Server) -> None:
    client = server.connect("c")
    for at, topic in enumerate(LOOK_ALIKE, 1):
        client.subscribe(topic, subscription_identifier=at)
    publisher = server.connect("p")
    for at, topic in enumerate(LOOK_ALIKE, 1):
        publisher.publish(topic, b"%d" % at, retain=True)
        found = client.expect("PUBLISH", topic_name=topic, subscription_identifier=[at])
        assert found.raw[2:].startswith(wire.string(topic))
        client.expect_nothing()
    for at, topic in enumerate(LOOK_ALIKE, 1):
        assert server.retained(topic) == [(topic, b"%d" % at)]


def test_mqtt5_4_7_3_4__nothing_is_substituted_on_unsubscribe(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("a/b", "\u00c5")
    client.unsubscribe("A/b", "a//b", "A\u030a", "a%2Fb", " a/b", reasons=[0x11] * 5)
    publisher = server.connect("p")
    publisher.publish("a/b", b"1")
    publisher.publish("\u00c5", b"2")
    client.expect_messages("1", "2")
