"""Obligations of MQTT 5.0 without a number: PUBLISH, acknowledgements, flow control, retained messages."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.server import Server

# --------------------------------------------------------------------------- Topic Name and Topic Alias


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_x5_11__empty_topic_without_alias(server: Server, qos: int) -> None:
    for properties in ({}, {"user_property": [("k", "v")]}):
        raw = wire.publish("", b"x", qos=qos, retain=True, properties=properties)
        server.expect_breach(raw, codes=0x82)
    assert server.retained() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_x5_12__alias_without_mapping(server: Server, qos: int) -> None:
    other = wire.publish("other", b"x", properties=wire.alias(1))
    for before in (b"", other):
        watcher, client = server.watch(client_id=f"w{len(before)}"), server.connect("c")
        client.send(before, wire.publish("", b"x", qos=qos, retain=True, properties=wire.alias(2)))
        client.expect_close(0x82)
        watcher.expect_messages(*(["x"] if before else []))
    assert server.retained() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_x5_13__alias_with_a_new_topic(server: Server, qos: int) -> None:
    watcher, client = server.watch(), server.connect("c")
    for topic_name in ("a", "", "b", "", "a", ""):
        client.publish(topic_name, b"x", qos, properties=wire.alias(1))
    watcher.expect_messages(*((one, "x") for one in "aabbaa"), topic_alias=None)


# --------------------------------------------------------------------------- Payload Format Indicator


@pytest.mark.parametrize("value", [2, 3, 0x81, 0xFF])
def test_x5_14__payload_format_indicator(server: Server, value: int) -> None:
    for qos in (0, 1, 2):
        raw = wire.publish("t", b"x", qos=qos, retain=True, properties={"payload_format_indicator": value})
        server.expect_breach(raw, codes=0x82)
    assert server.retained() == []


NOT_UTF_8 = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"ok\xe2\x82"]
UTF_8 = [b"", "größe €\U0001f600".encode(), b"\0"]
CLAIMED = {"payload_format_indicator": 1}


def test_x5_39__validation_on(serve: Serve) -> None:
    server = serve(validate_payload_format=True)
    watcher, client = server.watch(), server.connect("c")
    for payload in NOT_UTF_8:
        for qos in (1, 2):
            client.publish("t", payload, qos, retain=True, reason=0x99, properties=CLAIMED)
    client.expect_nothing()
    watcher.expect_nothing()
    for payload in NOT_UTF_8:
        server.expect_breach(wire.publish("t", payload, retain=True, properties=CLAIMED), codes=0x99)
        will = wire.will("t", payload, retain=True, properties=CLAIMED)
        server.expect_refused(wire.connect("w", will=will), codes=0x99)
    assert server.retained() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_x5_39__validation_on_what_passes(serve: Serve, qos: int) -> None:
    """UTF-8 that is claimed to be UTF-8, and anything that is not."""
    server = serve(validate_payload_format=True)
    watcher, client = server.watch(), server.connect("c")
    for payload in UTF_8:
        client.publish("t", payload, qos, properties=CLAIMED)
    for properties in ({}, {"payload_format_indicator": 0}):
        for payload in NOT_UTF_8:
            client.publish("t", payload, qos, properties=properties)
    watcher.expect_messages(*UTF_8, *NOT_UTF_8, *NOT_UTF_8)


def test_x5_39__validation_off(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c")
    for qos in (0, 1, 2):
        client.publish("t", b"\xff", qos, properties=CLAIMED)
    server.connect("w", will=wire.will("t", b"\xff", properties=CLAIMED)).drop()
    watcher.expect_messages(*[b"\xff"] * 4, payload_format_indicator=1)


# --------------------------------------------------------------------------- Subscription Identifiers


def test_x5_33__the_same_identifier_twice(server: Server) -> None:
    client = server.connect("s")
    client.subscribe("t/+", "t/a", "#", subscription_identifier=7)
    client.subscribe("+/a", subscription_identifier=8)
    client.unsubscribe("#")
    server.connect("p").publish("t/a", b"x")
    found = client.expect("PUBLISH").properties["subscription_identifier"]
    assert sorted(found) == [7, 7, 8]
    client.expect_nothing()


def test_x5_34__shared_match(server: Server) -> None:
    """Each copy has the identifier of the SUBSCRIBE of its receiver that chose it, and no other one."""
    members = [server.connect(f"s{at}") for at in range(3)]
    for at, client in enumerate(members[:2], 1):
        client.subscribe("$share/g/t", subscription_identifier=at)
        client.subscribe("t", subscription_identifier=10 * at)
    members[2].subscribe("$share/g/t")
    publisher = server.connect("p")
    for _ in range(6):
        publisher.publish("t", b"x")
    got = [sorted(packet.properties.get("subscription_identifier", []) for packet in client.drain())
           for client in members]  # fmt: skip
    assert got == [[[1]] * 2 + [[10]] * 6, [[2]] * 2 + [[20]] * 6, [[]] * 2]


# --------------------------------------------------------------------------- stray acknowledgements


def test_x5_35__unknown_identifier(server: Server) -> None:
    client = server.connect("c")
    for packet_id in (1, 65535):
        for reason in (None, 0x00, 0x10, 0x87):
            client.send(wire.pubrec(packet_id, reason))
            client.expect("PUBREL", packet_id=packet_id, reason_code=0x92)
        for reason in (None, 0x92):
            client.send(wire.pubrel(packet_id, reason))
            client.expect("PUBCOMP", packet_id=packet_id, reason_code=0x92)
    client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_x5_36__nobody_waits(server: Server, qos: int) -> None:
    """They are ignored, and the send quota does not grow by them."""
    client = server.connect("s", receive_maximum=2)
    client.subscribe("t", qos=qos)
    for packet_id in (1, 2, 3, 65535):
        client.send(wire.puback(packet_id), wire.pubcomp(packet_id), wire.puback(packet_id, 0x10))
    client.expect_nothing()
    publisher = server.connect("p")
    for at in range(5):
        publisher.publish("t", f"{at}", qos)
    found = client.expect_messages("0", "1")
    client.ack(found[0])
    client.send(wire.ack(0x40 if qos == 1 else 0x70, found[0].packet_id or 0))
    client.expect_messages("2")


# --------------------------------------------------------------------------- reconnect


@pytest.mark.parametrize("qos", [1, 2])
def test_x5_37__the_send_quota_starts_afresh(server: Server, qos: int) -> None:
    def connect(**named: int) -> Raw:
        return server.connect("s", clean_start=False, session_expiry_interval=60, **named)

    client = connect(receive_maximum=2)
    client.subscribe("t", qos=qos)
    publisher = server.connect("p")
    for at in range(6):
        publisher.publish("t", f"{at}", qos)
    client.expect_messages("0", "1", dup=False)
    client.drop()
    client = connect(receive_maximum=3)
    assert [packet.dup for packet in client.expect_messages("0", "1", "2")] == [True, True, False]
    client.drop()
    client = connect(receive_maximum=1)
    client.expect_messages("0", dup=True)
    client.drop()
    found = connect().expect_messages(*"012345")
    assert [packet.dup for packet in found] == [True] * 3 + [False] * 3


def test_x5_37__the_receive_maximum_starts_afresh(serve: Serve) -> None:
    server = serve(receive_maximum=2)

    def connect(*packet_ids: int) -> Raw:
        client = server.connect("c", clean_start=False, session_expiry_interval=60)
        for packet_id in packet_ids:
            client.send(wire.publish("t", b"x", qos=2, packet_id=packet_id))
            client.expect("PUBREC", packet_id=packet_id)
        return client

    connect(1, 2).drop()
    client = connect(3, 4)
    client.send(wire.publish("t", b"x", qos=2, packet_id=5))
    client.expect_close(0x93)


# --------------------------------------------------------------------------- retained messages


def test_x5_40__retained_message_expires(server: Server) -> None:
    publisher = server.connect("p")
    publisher.publish("a", b"x", retain=True, message_expiry_interval=5)
    publisher.publish("b", b"x", retain=True, message_expiry_interval=50)
    publisher.publish("c", b"x", retain=True)
    for waited, left in ((0, "abc"), (4, "abc"), (2, "bc"), (50, "c")):
        server.advance(waited)
        assert server.retained() == [(one, b"x") for one in left]
        assert int(server.sys_value("retained messages/count")) == len(left)


def test_x5_42__retained_messages_outlive_the_session(server: Server) -> None:
    for at, leave in enumerate((Raw.disconnect, Raw.drop, Raw.reset)):
        client = server.connect("p", session_expiry_interval=at)
        client.publish(f"t/{at}", b"x", 1, retain=True)
        leave(client)
    server.advance(10)
    server.connect("p", clean_start=False, session_present=False, session_expiry_interval=60)
    server.connect("p", clean_start=True, session_present=False)
    assert server.retained() == [(f"t/{at}", b"x") for at in range(3)]
