"""MQTT 5.0, sections 3.10 and 3.11: UNSUBSCRIBE and UNSUBACK."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import BARE, Server
from tests.conformance.texts import BAD_UTF_8

UNSUBACK_CODES = {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}


def without_effect(server: Server, raw: bytes, code: int) -> None:
    """*raw* closes with *code* (the will is published), and the subscription to t is still there."""
    client = server.connect("c", session_expiry_interval=60)
    client.subscribe("t", qos=1)
    client.send(raw)
    client.expect_close(code)
    client.drop()
    server.connect("p").publish("t", b"x", qos=1, reason=0x00)
    again = server.connect("c", clean_start=False, session_present=True)
    again.expect_messages(b"x", qos=1)
    server.expect_breach(raw, codes=code)


@pytest.mark.parametrize("first", [0xA0, 0xA1, 0xAF])
def test_mqtt5_3_10_1_1__other_flags_are_malformed(server: Server, first: int) -> None:
    without_effect(server, wire.unsubscribe(1, "t", first=first), MALFORMED)


@pytest.mark.parametrize("text", BAD_UTF_8)
def test_mqtt5_3_10_3_1__filter_that_is_no_utf_8(server: Server, text: bytes) -> None:
    without_effect(server, wire.unsubscribe(1, "t", text), MALFORMED)


@pytest.mark.parametrize("tail", [b"\x00", b"t", b"\x00\x02t"])
def test_mqtt5_3_10_3_1__bytes_after_the_last_filter(server: Server, tail: bytes) -> None:
    without_effect(server, wire.unsubscribe(1, "t", tail=tail), MALFORMED)


@pytest.mark.parametrize("named", [{}, {"user_property": ("k", "v")}])
def test_mqtt5_3_10_3_2__no_filter_at_all(server: Server, named: dict[str, tuple[str, str]]) -> None:
    without_effect(server, wire.unsubscribe(1, properties=named), PROTOCOL_ERROR)


def ends_by_itself_alone(server: Server, topic_filter: str, topic_name: str, *others: str) -> None:
    """No UNSUBSCRIBE of *others* takes the subscription to *topic_filter*; its own does."""
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe(topic_filter)
    client.unsubscribe(*others, reasons=[0x11] * len(others))
    publisher.publish(topic_name, b"1")
    client.expect_messages(b"1")
    client.unsubscribe(topic_filter, reasons=[0x00])
    publisher.publish(topic_name, b"2", qos=1, reason=0x10)
    client.expect_nothing()


def test_mqtt5_3_10_4_1__filters_are_compared_character_by_character(server: Server) -> None:
    ends_by_itself_alone(server, "a/+", "a/b", "a/b", "A/+", "a/+/", "a/#", "+/+", "/a/+", "a")


def test_mqtt5_3_10_4_1__a_shared_filter_by_its_full_string(server: Server) -> None:
    others = ("t", "g/t", "$share/h/t", "$share/G/t", "$share/g/T", "$share/g/+", "$SHARE/g/t")
    ends_by_itself_alone(server, "$share/g/t", "t", *others)


def test_mqtt5_3_10_4_2__nothing_new_is_sent(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe("t", "t/#", qos=2)
    client.unsubscribe("t")
    publisher.publish("t", b"overlap", qos=2)
    client.expect_messages(b"overlap", qos=2)
    client.unsubscribe("t/#")
    for qos in range(3):
        publisher.publish("t", b"x", qos=qos, reason=0x10)
    client.expect_nothing()


def test_mqtt5_3_10_4_2__nothing_new_is_queued(server: Server) -> None:
    client, publisher = server.connect("c", session_expiry_interval=60), server.connect("p")
    client.subscribe("t", "u", qos=1)
    client.unsubscribe("t")
    client.disconnect()
    publisher.publish("t", b"x", qos=1, reason=0x10)
    publisher.publish("u", b"y", qos=1, reason=0x00)
    again = server.connect("c", clean_start=False, session_present=True)
    again.expect_messages(b"y", qos=1)


def test_mqtt5_3_10_4_3__what_was_sent_is_completed(server: Server) -> None:
    client, publisher = server.connect("c", session_expiry_interval=60), server.connect("p")
    client.subscribe("t", qos=2)
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2)
    publisher.publish("t", b"3", qos=2)
    one, two, three = client.expect_messages(b"1", b"2", b"3")
    client.send(wire.pubrec(two.packet_id or 0))
    client.expect("PUBREL", packet_id=two.packet_id, reason_code=0)
    client.unsubscribe("t")
    client.send(wire.pubcomp(two.packet_id or 0), wire.pubrec(three.packet_id or 0))
    client.expect("PUBREL", packet_id=three.packet_id, reason_code=0)
    client.expect_nothing()
    client.drop()
    again = server.connect("c", clean_start=False, session_present=True)
    resent = again.expect("PUBLISH", payload="1", qos=1, dup=True, packet_id=one.packet_id)
    again.expect("PUBREL", packet_id=three.packet_id)
    again.send(wire.pubcomp(three.packet_id or 0))
    again.ack(resent)
    again.expect_nothing()


def test_mqtt5_3_10_4_4__one_unsuback_each(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t")
    for packet_id, topic_filter, code in ((1, "t", 0x00), (2, "t", 0x11), (3, "never", 0x11)):
        client.send(wire.unsubscribe(packet_id, topic_filter))
        client.expect("UNSUBACK", packet_id=packet_id, reason_codes=[code])
        client.expect_nothing()


def test_mqtt5_3_10_4_5__the_identifier_of_the_unsubscribe(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t")
    client.send(wire.unsubscribe(777, "never"), wire.unsubscribe(65535, "t"), wire.unsubscribe(1, "t"))
    client.expect("UNSUBACK", packet_id=777, reason_codes=[0x11])
    client.expect("UNSUBACK", packet_id=65535, reason_codes=[0x00])
    client.expect("UNSUBACK", packet_id=1, reason_codes=[0x11])


def test_mqtt5_3_10_4_6__several_filters_are_a_sequence(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t")
    client.send(wire.unsubscribe(1, "t", "never", "t"))
    client.expect("UNSUBACK", packet_id=1, reason_codes=[0x00, 0x11, 0x11])
    client.expect_nothing()


# ---- what does not fit into UNSUBACK


def refused(server: Server, limit: int) -> wire.Packet:
    """The UNSUBACK of a refused filter for a client with Maximum Packet Size *limit*."""
    return server.connect(f"c{limit}", maximum_packet_size=limit).unsubscribe("stay", reasons=[0x87])


def test_mqtt5_3_11_2_1__no_reason_string_that_does_not_fit(serve: Serve) -> None:
    server = serve(hooks=[Policy(unsubscribe={"stay": 0x87}, reason_string="Not for you.")], **BARE)
    assert "reason_string" not in refused(server, 8).properties
    assert refused(server, 100).properties["reason_string"] == "Not for you."


def test_mqtt5_3_11_2_2__no_user_property_that_does_not_fit(serve: Serve) -> None:
    pair = ("why", "x" * 95)
    server = serve(hooks=[Policy(unsubscribe={"stay": 0x87}, user_properties=[pair])])
    assert "user_property" not in refused(server, 50).properties
    assert refused(server, 1000).properties["user_property"] == [pair]


def test_mqtt5_3_11_3_1__codes_in_the_order_of_the_filters(serve: Serve) -> None:
    client = serve(hooks=[Policy(unsubscribe={"stay": 0x87})]).connect("c")
    client.subscribe("known", "known2", "stay")
    client.send(wire.unsubscribe(1, "known", "unknown", "known2"))
    client.expect("UNSUBACK", reason_codes=[0x00, 0x11, 0x00])
    client.send(wire.unsubscribe(2, "known", "stay", "known2"))
    client.expect("UNSUBACK", reason_codes=[0x11, 0x87, 0x11])


def test_mqtt5_3_11_3_2__codes_that_unsuback_may_not_carry_become_0x80(serve: Serve) -> None:
    codes = [0x00, 0x01, 0x04, 0x10, 0x11, 0x18, 0x19, *range(0x80, 0xA3)]
    filters = [f"t/{code}" for code in codes]
    server = serve(hooks=[Policy(unsubscribe=dict(zip(filters, codes, strict=True)))])
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe(*filters)
    wanted = [code if code in UNSUBACK_CODES and code >= 0x80 else 0x80 for code in codes]
    client.unsubscribe(*filters, reasons=wanted)
    for topic_name in filters:
        publisher.publish(topic_name, b"still")
    client.expect_messages(*[b"still"] * len(codes))
