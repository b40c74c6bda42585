"""MQTT 5.0, sections 3.8 and 3.9: SUBSCRIBE and SUBACK."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.breaches import without_effect
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import BARE, Server
from tests.conformance.texts import BAD_UTF_8

SUBACK_CODES = {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}


@pytest.mark.parametrize("first", [0x80, 0x81, 0x8A, 0x8F])
def test_mqtt5_3_8_1_1__other_flags_are_malformed(server: Server, first: int) -> None:
    raw = wire.subscribe(1, ("t", 1), first=first)
    without_effect(server, raw, MALFORMED, "t")
    server.expect_breach(raw, codes=MALFORMED)


@pytest.mark.parametrize("text", BAD_UTF_8)
def test_mqtt5_3_8_3_1__filter_that_is_no_utf_8(server: Server, text: bytes) -> None:
    for filters in ([text], [("good", 1), (text, 1)], [(text, 1), ("good", 1)]):
        raw = wire.subscribe(1, *filters)
        without_effect(server, raw, MALFORMED, "good")
    server.expect_breach(raw, codes=MALFORMED)


def test_mqtt5_3_8_3_2__no_filter_at_all(server: Server) -> None:
    server.expect_breach(wire.subscribe(1), codes=PROTOCOL_ERROR)
    server.expect_breach(wire.subscribe(1, properties={"user_property": ("k", "v")}), codes=PROTOCOL_ERROR)


def test_mqtt5_3_8_3_2__filter_without_options(server: Server) -> None:
    for raw in (
        wire.subscribe(1, tail=wire.string("t")),
        wire.subscribe(1, ("t", 1), tail=wire.string("u")),
        wire.subscribe(1, ("t", 1), tail=b"\x00"),
        wire.subscribe(1, ("t", 1), tail=b"\x00\x05u"),
    ):
        without_effect(server, raw, MALFORMED, "t", "u")
    server.expect_breach(raw, codes=MALFORMED)


# ---- No Local


def test_mqtt5_3_8_3_3__own_messages_do_not_come_back(server: Server) -> None:
    client, other = server.connect("c"), server.connect("d")
    client.subscribe("t", qos=2, no_local=True)
    other.subscribe("t", qos=2, no_local=True)
    for qos in range(3):
        client.publish("t", b"own", qos=qos)
        other.expect("PUBLISH", payload="own", qos=qos)
    client.expect_nothing()
    other.publish("t", b"other")
    client.expect_messages(b"other")


def test_mqtt5_3_8_3_3__without_it_they_do(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t", qos=2)
    for qos in range(3):
        client.publish("t", b"own", qos=qos)
        client.expect("PUBLISH", payload="own", qos=qos)


@pytest.mark.parametrize("no_local", [True, False])
def test_mqtt5_3_8_3_3__own_message_queued_while_offline(server: Server, no_local: bool) -> None:
    """What a client publishes while it is away is its will."""
    will = wire.will("t", b"will", qos=1)
    client = server.connect("c", will=will, session_expiry_interval=60)
    client.subscribe("t", qos=1, no_local=no_local)
    client.drop()
    server.connect("p").publish("t", b"other", qos=1, reason=0)
    again = server.connect("c", clean_start=False, session_present=True)
    again.expect_messages(*([b"other"] if no_local else [b"will", b"other"]), qos=1)


def test_mqtt5_3_8_3_3__own_retained_message(server: Server) -> None:
    client, other = server.connect("c"), server.connect("d")
    other.publish("t/other", b"other", retain=True)
    client.publish("t/own", b"own", retain=True)
    client.subscribe("t/#", no_local=True, retain_as_published=True)
    client.expect_messages(b"other", retain=True)
    client.publish("t/own", b"live", retain=True)
    client.expect_nothing()
    other.subscribe("t/own", no_local=True)
    other.expect_messages(b"live", retain=True)
    client.subscribe("t/own")
    client.expect_messages(b"live", retain=True)


def test_mqtt5_3_8_3_3__the_client_id_counts_not_the_connection(server: Server) -> None:
    first = server.connect("c", session_expiry_interval=60)
    first.subscribe("t", qos=1, no_local=True)
    first.publish("r", b"by the first", retain=True)
    second = server.connect("c", clean_start=False, session_present=True)
    first.expect_close(0x8E)
    second.publish("t", b"own", qos=1, reason=0)
    second.subscribe("r", no_local=True)
    second.expect_nothing()
    second.disconnect()
    third = server.connect("c", clean_start=True, session_present=False)
    third.subscribe("r", no_local=True)
    third.expect_nothing()


@pytest.mark.parametrize("options", [0x04, 0x05, 0x06, 0x0C, 0x24])
def test_mqtt5_3_8_3_4__no_local_on_a_shared_subscription(server: Server, options: int) -> None:
    without_effect(server, wire.subscribe(1, ("$share/g/t", options)), PROTOCOL_ERROR, "t")
    raw = wire.subscribe(1, ("a", 1), ("$share/g/t", options), ("b", 1))
    without_effect(server, raw, PROTOCOL_ERROR, "a", "t", "b")
    server.expect_breach(raw, codes=PROTOCOL_ERROR)


@pytest.mark.parametrize(
    ("options", "code"),
    [(0x40, MALFORMED), (0x80, MALFORMED), (0xC0, MALFORMED), (0x41, MALFORMED), (0x03, PROTOCOL_ERROR)],
)
def test_mqtt5_3_8_3_5__reserved_bits(server: Server, options: int, code: int) -> None:
    raw = wire.subscribe(1, ("a", 1), ("t", options))
    without_effect(server, raw, code, "a", "t")
    server.expect_breach(raw, codes=code)


# ---- SUBACK


def test_mqtt5_3_8_4_1__one_suback_each(serve: Serve) -> None:
    client = serve(hooks=[Policy(subscribe={"no": 0x87})]).connect("c")
    for packet_id, topic_filter, code in ((1, "t", 1), (2, "no", 0x87), (3, "t", 1), (4, "$share/g/t", 1)):
        client.send(wire.subscribe(packet_id, (topic_filter, 1)))
        client.expect("SUBACK", packet_id=packet_id, reason_codes=[code])
        client.expect_nothing()


def test_mqtt5_3_8_4_2__identifiers_of_a_pipeline(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.subscribe(5, "a"), wire.subscribe(1, ("b", 1)), wire.subscribe(65535, ("c", 2)))
    for packet_id, code in ((5, 0), (1, 1), (65535, 2)):
        client.expect("SUBACK", packet_id=packet_id, reason_codes=[code])
    client.expect_nothing()


def test_mqtt5_3_8_4_3__the_same_filter_replaces(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe("t", subscription_identifier=1)
    client.subscribe("t", qos=1, no_local=True, retain_as_published=True, subscription_identifier=2)
    client.publish("t", b"own", qos=1, reason=(0x00, 0x10))
    publisher.publish("t", b"x", qos=2, retain=True)
    client.expect_messages(b"x", qos=1, retain=True, subscription_identifier=[2])
    client.unsubscribe("t")
    publisher.publish("t", b"y", qos=1, reason=0x10)
    client.unsubscribe("t", reasons=[0x11])
    client.expect_nothing()


def test_mqtt5_3_8_4_4__no_message_is_lost_on_replacement(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe("t", qos=1, retain_handling=2)
    options = wire.options(qos=1, retain_handling=2)
    for start in range(0, 1000, 20):
        batch = range(start + 1, start + 21)
        publisher.send(*(wire.publish("t", b"%d" % n, qos=1, packet_id=n) for n in batch))
        client.send(wire.subscribe(1000 + start, ("t", options)))
    publisher.fence()
    found = client.drain()
    subacks = [packet.reason_codes for packet in found if packet.name == "SUBACK"]
    payloads = [packet.payload for packet in found if packet.name == "PUBLISH"]
    assert subacks == [[1]] * 50
    assert payloads == [b"%d" % n for n in range(1, 1001)]


def test_mqtt5_3_8_4_4__retained_messages_come_again(server: Server) -> None:
    server.connect("p").publish("t", b"kept", qos=1, retain=True)
    client = server.connect("c")
    for _ in range(3):
        client.subscribe("t", qos=1, retain_handling=0)
        client.expect_messages(b"kept", retain=True, qos=1)


def test_mqtt5_3_8_4_5__several_filters_are_a_sequence(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    publisher.publish("a", b"A", qos=2, retain=True)
    publisher.publish("b", b"B", qos=2, retain=True)
    client.send(wire.subscribe(9, ("a", 0), ("b", 1), ("a", 2)))
    client.expect("SUBACK", packet_id=9, reason_codes=[0, 1, 2])
    found = client.drain()
    assert all(packet.retain for packet in found)
    assert sorted((packet.topic_name, packet.qos) for packet in found) == [("a", 0), ("a", 2), ("b", 1)]
    publisher.publish("a", b"live", qos=2)
    client.expect_messages(b"live", qos=2)
    client.unsubscribe("a", "b", "a", reasons=[0x00, 0x00, 0x11])


@pytest.mark.parametrize("count", [1, 2, 100])
def test_mqtt5_3_8_4_6__a_code_for_each_filter(server: Server, count: int) -> None:
    asked = [(f"t/{n}", n % 3) for n in range(count)]
    client = server.connect("c")
    client.send(wire.subscribe(1, *asked))
    client.expect("SUBACK", packet_id=1, reason_codes=[n % 3 for n in range(count)])


def test_mqtt5_3_8_4_7__granted_qos_or_failure(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87})])
    client, publisher = server.connect("c"), server.connect("p")
    for qos in range(3):
        client.subscribe("t", qos=qos, granted=[qos])
    client.subscribe("no", qos=1, granted=[0x87])
    publisher.publish("no", b"x", qos=1, reason=0x10)
    client.expect_nothing()


def test_mqtt5_3_8_4_7__quota(serve: Serve) -> None:
    server = serve(maximum_subscriptions=2)
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe("a", "b", "c", granted=[0, 0, 0x97])
    client.subscribe("b", qos=1, granted=[1])  # a replacement needs no room
    publisher.publish("c", b"x", qos=1, reason=0x10)
    client.unsubscribe("a")
    client.subscribe("c")
    client.expect_nothing()


PAIRS = [(published, granted) for published in range(3) for granted in range(3)]


def test_mqtt5_3_8_4_8__least_of_published_and_granted_live(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    for published, granted in PAIRS:
        client.subscribe("t", qos=granted)
        publisher.publish("t", b"x", qos=published)
        client.expect_messages(b"x", qos=min(published, granted))


def test_mqtt5_3_8_4_8__least_of_published_and_granted_queued(serve: Serve) -> None:
    server = serve(queue_qos_0=True)
    client, publisher = server.connect("c", session_expiry_interval=60), server.connect("p")
    client.subscribe(*((f"t/{granted}", granted) for granted in range(3)))
    client.disconnect()
    for published, granted in PAIRS:
        publisher.publish(f"t/{granted}", b"%d" % published, qos=published)
    client = server.connect("c", clean_start=False, session_present=True)
    found = {(int(p.payload or b""), int((p.topic_name or "")[2:])): p.qos for p in client.drain()}
    assert found == {pair: min(pair) for pair in PAIRS}


def test_mqtt5_3_8_4_8__least_of_published_and_granted_retained(server: Server) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    for published, granted in PAIRS:
        publisher.publish("t", b"x", qos=published, retain=True)
        client.subscribe("t", qos=granted)
        client.expect_messages(b"x", qos=min(published, granted), retain=True)
        client.unsubscribe("t")


# ---- what does not fit into SUBACK


def refused(server: Server, limit: int) -> wire.Packet:
    """The SUBACK of a refused filter for a client with Maximum Packet Size *limit*."""
    return server.connect(f"c{limit}", maximum_packet_size=limit).subscribe("no", granted=[0x87])


def test_mqtt5_3_9_2_1__no_reason_string_that_does_not_fit(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87}, reason_string="Not for you.")], **BARE)
    assert "reason_string" not in refused(server, 8).properties
    assert refused(server, 100).properties["reason_string"] == "Not for you."


def test_mqtt5_3_9_2_2__no_user_property_that_does_not_fit(serve: Serve) -> None:
    pair = ("why", "x" * 95)
    server = serve(hooks=[Policy(subscribe={"no": 0x87}, user_properties=[pair])])
    assert "user_property" not in refused(server, 50).properties
    assert refused(server, 1000).properties["user_property"] == [pair]


def test_mqtt5_3_9_3_1__codes_in_the_order_of_the_filters(serve: Serve) -> None:
    client = serve(hooks=[Policy(subscribe={"no": 0x87})]).connect("c")
    client.send(wire.subscribe(1, ("a", 0), ("no", 1), ("b", 2), ("c", 1)))
    client.expect("SUBACK", reason_codes=[0x00, 0x87, 0x02, 0x01])


def test_mqtt5_3_9_3_2__codes_that_suback_may_not_carry_become_0x80(serve: Serve) -> None:
    codes = [0x00, 0x01, 0x04, 0x10, 0x11, 0x18, 0x19, *range(0x80, 0xA3)]
    server = serve(hooks=[Policy(subscribe={f"t/{code}": code for code in codes})])
    client: Raw = server.connect("c")
    wanted = [code if code in SUBACK_CODES and code >= 0x80 else 0x80 for code in codes]
    client.subscribe(*(f"t/{code}" for code in codes), qos=2, granted=wanted)
    publisher = server.connect("p")
    for code in codes:
        publisher.publish(f"t/{code}", b"x", qos=1, reason=0x10)
    client.expect_nothing()
