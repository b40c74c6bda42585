"""MQTT 5.0, obligations without a number: SUBSCRIBE, shared subscriptions, DISCONNECT and AUTH."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.authentication import admitted, challenged
from tests.conformance.breaches import without_effect
from tests.conformance.client import Raw
from tests.conformance.codes import PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth
from tests.conformance.server import Server


@pytest.mark.parametrize("filters", [["t"], [("t", 1), ("u", 2)], ["#"], ["$share/g/t"]])
def test_x5_15__subscription_identifier_0(server: Server, filters: list[wire.Filter]) -> None:
    raw = wire.subscribe(1, *filters, properties=[(0x0B, 0)])
    without_effect(server, raw, PROTOCOL_ERROR, "t", "u")
    server.expect_breach(raw, codes=PROTOCOL_ERROR)


@pytest.mark.parametrize("pair", [(1, 1), (1, 2), (268435455, 5)])
def test_x5_16__subscription_identifier_twice(server: Server, pair: tuple[int, int]) -> None:
    raw = wire.subscribe(1, ("t", 1), properties={"subscription_identifier": list(pair)})
    without_effect(server, raw, PROTOCOL_ERROR, "t")
    server.expect_breach(raw, codes=PROTOCOL_ERROR)


def options_refused(server: Server, options: int) -> None:
    raw = wire.subscribe(1, ("a", 1), ("t", options), ("b", 1))
    without_effect(server, raw, PROTOCOL_ERROR, "a", "t", "b")
    server.expect_breach(raw, codes=PROTOCOL_ERROR)


@pytest.mark.parametrize("options", [0x03, 0x07, 0x0B, 0x0F, 0x13, 0x23])
def test_x5_17__qos_3(server: Server, options: int) -> None:
    options_refused(server, options)


@pytest.mark.parametrize("options", [0x30, 0x31, 0x32, 0x34, 0x38, 0x3E])
def test_x5_18__retain_handling_3(server: Server, options: int) -> None:
    options_refused(server, options)


@pytest.mark.parametrize(
    ("feature", "filters", "identifier", "code"),
    [
        ("wildcard", ["a/+"], None, 0xA2),
        ("wildcard", ["t", "#"], None, 0xA2),
        ("wildcard", ["$share/g/a/#"], None, 0xA2),
        ("subscription_identifier", ["t"], 7, 0xA1),
        ("shared", ["$share/g/t"], None, 0x9E),
        ("shared", ["t", "$share/g/a/#"], None, 0x9E),
    ],
)
def test_x5_19__features_that_are_switched_off(
    serve: Serve, feature: str, filters: list[str], identifier: int | None, code: int
) -> None:
    name = feature if feature == "subscription_identifier" else f"{feature}_subscription"
    server = serve(**{f"{name}_available": False})
    raw = wire.subscribe(1, *filters, properties=[(0x0B, identifier)] if identifier else ())
    without_effect(server, raw, code, "t", "a/b")
    watcher, client = server.watch("w"), server.connect("c", will=wire.will("w", b"gone"))
    client.send(raw)
    client.expect_close(code)
    client.drop()
    watcher.expect("PUBLISH", payload="gone")
    client = server.connect("c")
    assert client.connack is not None and client.connack.properties[f"{name}_available"] == 0
    client.subscribe("t")


def test_x5_19__all_switched_on(server: Server) -> None:
    client = server.connect("c")
    names = [f"{name}_available" for name in ("wildcard_subscription", "subscription_identifier")]
    assert client.connack is not None
    assert not {*names, "shared_subscription_available"} & set(client.connack.properties)
    client.subscribe("a/+", "#", "$share/g/a/#", subscription_identifier=7, granted=[0, 0, 0])


# ---- Session Expiry Interval in DISCONNECT


def leave(client: Raw, interval: int) -> None:
    client.disconnect(0, {"session_expiry_interval": interval})


@pytest.mark.parametrize("interval", [1, 60, 0xFFFFFFFF])
def test_x5_20__no_life_for_a_session_that_had_none(server: Server, interval: int) -> None:
    raw = wire.disconnect(0, {"session_expiry_interval": interval})
    server.expect_breach(raw, codes=PROTOCOL_ERROR)
    server.expect_breach(raw, codes=PROTOCOL_ERROR, session_expiry_interval=0)
    client = server.connect("c")
    client.send(raw)
    client.expect_close(PROTOCOL_ERROR)
    client.drop()
    server.connect("c", clean_start=False, session_present=False)


def test_x5_20__zero_after_zero_is_fine(server: Server) -> None:
    watcher = server.watch()
    leave(server.connect("c", will=wire.will("w", b"gone")), 0)
    watcher.expect_nothing()
    server.connect("c", clean_start=False, session_present=False)


@pytest.mark.parametrize(
    ("first", "then", "lives"),
    [
        pytest.param(100, 0, 0, id="to 0"),
        pytest.param(100, 10, 10, id="shorter"),
        pytest.param(10, 100, 100, id="longer"),
        pytest.param(10, 500, 200, id="longer than allowed"),
        pytest.param(500, 0xFFFFFFFF, 200, id="for ever, which is not allowed"),
    ],
)
def test_x5_21__the_new_value_replaces_the_old(serve: Serve, first: int, then: int, lives: int) -> None:
    server = serve(session_expiry_interval=200)
    if lives:
        leave(server.connect("c", session_expiry_interval=first), then)
        server.advance(lives - 0.1)
        server.connect("c", clean_start=False, session_present=True).disconnect()
    leave(server.connect("c", session_expiry_interval=first), then)
    server.advance(lives + 0.1)
    server.connect("c", clean_start=False, session_present=False)


def test_x5_21__for_ever(serve: Serve) -> None:
    server = serve(session_expiry_interval=0xFFFFFFFF)
    leave(server.connect("c", session_expiry_interval=10), 0xFFFFFFFF)
    server.advance(10**9)
    server.connect("c", clean_start=False, session_present=True)


WITHOUT_METHOD = [
    pytest.param("F0 00", id="length 0"),
    pytest.param("F0 01 18", id="length 1, continue"),
    pytest.param("F0 01 19", id="length 1, again"),
    pytest.param("F0 02 18 00", id="no property, continue"),
    pytest.param("F0 02 19 00", id="no property, again"),
    pytest.param("F0 06 18 04 16 00 01 78", id="data alone"),
    pytest.param("F0 09 19 07 26 00 01 6B 00 01 76", id="User Property alone"),
]


@pytest.mark.parametrize("raw", WITHOUT_METHOD)
def test_x5_22__auth_without_a_method(serve: Serve, raw: str) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2)])
    for client in (challenged(server), admitted(server)):
        client.send(bytes.fromhex(raw))
        client.expect_close(PROTOCOL_ERROR)
    server.expect_breach(bytes.fromhex(raw), codes=PROTOCOL_ERROR)


# ---- shared subscriptions


@pytest.mark.parametrize("topic_filter", ["$share/g/t/a", "$share/g/t/+", "$share/g/#"])
def test_x5_30__no_retained_messages(server: Server, topic_filter: str) -> None:
    publisher, client = server.connect("p"), server.connect("c")
    publisher.publish("t/a", b"kept", qos=1, retain=True)
    for handling in (0, 1, 0, 2):
        client.subscribe(topic_filter, qos=1, retain_handling=handling, retain_as_published=True)
        client.expect_nothing()
    publisher.publish("t/a", b"live", qos=1, retain=True)
    client.expect_messages(b"live", retain=True)


def test_x5_31__subscribed_twice_is_one_membership(server: Server) -> None:
    twice, once, publisher = server.connect("a"), server.connect("b"), server.connect("p")
    twice.subscribe("$share/g/t")
    once.subscribe("$share/g/t")
    twice.subscribe("$share/g/t")
    for number in range(10):
        publisher.publish("t", b"%d" % number)
    assert (len(twice.drain()), len(once.drain())) == (5, 5)
    twice.unsubscribe("$share/g/t")
    for _ in range(4):
        publisher.publish("t", b"x")
    once.expect_messages(*[b"x"] * 4)
    twice.expect_nothing()
    twice.unsubscribe("$share/g/t", reasons=[0x11])


def test_x5_31__twice_and_alone(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe("$share/g/t", "$share/g/t", qos=1)
    client.subscribe("$share/g/t", qos=1)
    publisher.publish("t", b"one", qos=1)
    client.expect_messages(b"one")
    client.unsubscribe("$share/g/t")
    publisher.publish("t", b"x", qos=1, reason=0x10)
    client.expect_nothing()


@pytest.mark.parametrize("topic_filter", ["t", "+", "$share/g/t"])
def test_x5_32__made_anew_without_an_identifier(server: Server, topic_filter: str) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe(topic_filter, subscription_identifier=7)
    publisher.publish("t", b"1")
    client.expect("PUBLISH", payload="1", subscription_identifier=[7])
    client.subscribe(topic_filter)
    publisher.publish("t", b"2")
    client.expect("PUBLISH", payload="2", subscription_identifier=None)
    client.subscribe(topic_filter, subscription_identifier=8)
    publisher.publish("t", b"3")
    client.expect("PUBLISH", payload="3", subscription_identifier=[8])


def test_x5_32__retained_copies_too(server: Server) -> None:
    client = server.connect("c")
    server.connect("p").publish("t", b"kept", retain=True)
    client.subscribe("t", subscription_identifier=7)
    client.expect("PUBLISH", subscription_identifier=[7])
    client.subscribe("t")
    client.expect("PUBLISH", subscription_identifier=None)


CLIENT_CODES = (0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A))


@pytest.mark.parametrize("code", CLIENT_CODES)
def test_x5_38__the_server_closes(server: Server, code: int) -> None:
    for spec in (None, (), {"reason_string": "bye", "user_property": ("k", "v")}):
        client = server.connect("c")
        client.send(wire.disconnect(code, spec))
        client.expect_close()


def test_x5_41__the_last_member_leaves(server: Server) -> None:
    member, publisher = server.connect("m", receive_maximum=1), server.connect("p")
    member.subscribe("$share/g/t", qos=1)
    for number in range(4):
        publisher.publish("t", b"%d" % number, qos=1, reason=0x00)
    sent = member.expect("PUBLISH", payload="0")
    member.unsubscribe("$share/g/t")
    publisher.publish("t", b"x", qos=1, reason=0x10)
    member.ack(sent)  # what was sent is completed, what waited is gone
    member.expect_nothing()
    other = server.connect("o")
    other.subscribe("$share/g/t", qos=1)
    member.subscribe("$share/g/t", qos=1)
    other.expect_nothing()
    member.expect_nothing()


def test_x5_41__one_of_two_leaves(server: Server) -> None:
    leaver, stayer, publisher = (server.connect(name) for name in ("l", "s", "p"))
    leaver.subscribe("$share/g/t")
    stayer.subscribe("$share/g/t")
    leaver.unsubscribe("$share/g/t")
    publisher.publish("t", b"x", qos=1, reason=0x00)
    stayer.expect_messages(b"x")
    stayer.unsubscribe("$share/g/t")
    publisher.publish("t", b"y", qos=1, reason=0x10)
    leaver.expect_nothing()
    stayer.expect_nothing()


def test_x5_41__messages_that_wait_for_an_absent_member(server: Server) -> None:
    member, publisher = server.connect("m", session_expiry_interval=60), server.connect("p")
    member.subscribe("$share/g/t", qos=1)
    member.disconnect()
    for number in range(3):
        publisher.publish("t", b"%d" % number, qos=1, reason=0x00)
    member = server.connect("m", clean_start=False, receive_maximum=1, session_expiry_interval=60)
    sent = member.expect("PUBLISH", payload="0")
    member.unsubscribe("$share/g/t")
    member.ack(sent)
    member.expect_nothing()
