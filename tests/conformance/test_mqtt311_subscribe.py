"""MQTT 3.1.1, sections 3.8 to 3.11: SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed


def expect_breach_of_session(server: Server, *raws: bytes, topic: str = "t", subscribed_before: bool) -> None:
    """Each of *raws* closes, and leaves the subscriptions of the session as they were."""
    publisher = server.connect("p", 4)
    for raw in raws:
        client = server.connect("s", 4)
        client.drop()
        client = server.connect("s", 4, clean_start=False)
        if subscribed_before:
            client.subscribe(topic, qos=1)
        client.send(raw)
        client.expect_close()
        again = resume(server, version=4)
        publisher.publish(topic, b"x", qos=1)
        again.expect_messages(*([b"x"] if subscribed_before else []))
        again.drop()


WRONG_FLAGS = [flags for flags in range(16) if flags != 2]

# ------------------------------------------------------------------------------- 3.8 SUBSCRIBE


def test_mqtt311_3_8_1_1__flags(server: Server) -> None:
    raws = [wire.subscribe(1, ("t", 1), version=4, first=0x80 | flags) for flags in WRONG_FLAGS]
    expect_breach_of_session(server, *raws, subscribed_before=False)


def test_mqtt311_3_8_3_1__not_utf8(server: Server) -> None:
    raws = [
        wire.subscribe(1, ("t", 1), (b"\xff", 1), version=4),
        wire.subscribe(1, (b"\xff", 1), ("t", 1), version=4),
        wire.subscribe(1, ("t", 1), (b"a/\xed\xa0\x80", 1), version=4),
    ]
    expect_breach_of_session(server, *raws, subscribed_before=False)


@pytest.mark.parametrize("available", [False, True])
def test_mqtt311_3_8_3_2__wildcards(serve: Serve, available: bool) -> None:
    server = serve(wildcard_subscription_available=available)
    client = server.connect("c", 4)
    client.subscribe("a/+", "a/#", "a/b", qos=1, granted=[1, 1, 1] if available else [0x80, 0x80, 1])
    publisher = server.connect("p", 4)
    publisher.publish("a/b", b"exact", qos=1)
    publisher.publish("a/c", b"wild", qos=1)
    client.expect_messages(*[b"exact", b"wild"][: 1 + available])


def test_mqtt311_3_8_3_3__nothing_in_it(server: Server) -> None:
    raws = [
        wire.subscribe(1, version=4),
        wire.subscribe(1, version=4, tail=wire.string("t")),
        wire.subscribe(1, ("t", 1), version=4, tail=wire.string("u")),
        wire.subscribe(1, ("t", 1), version=4, tail=b"\0"),
    ]
    expect_breach_of_session(server, *raws, subscribed_before=False)


def test_mqtt311_3_8_3_4__reserved_bits_and_qos_3(server: Server) -> None:
    raws = [
        wire.subscribe(1, ("t", byte), version=4) for byte in (0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF)
    ]
    raws.append(wire.subscribe(1, ("t", 1), ("u", 0x05), version=4))
    expect_breach_of_session(server, *raws, subscribed_before=False)


def test_mqtt311_3_8_4_1__one_suback_each(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87})])
    client = server.connect("c", 4)
    for packet_id, topic_filter, code in ((1, "t", 1), (2, "no", 0x80), (3, "t", 1)):
        client.send(wire.subscribe(packet_id, (topic_filter, 1), version=4))
        client.expect("SUBACK", packet_id=packet_id, reason_codes=[code])
        client.expect_nothing()


def test_mqtt311_3_8_4_2__identifiers(server: Server) -> None:
    client = server.connect("c", 4)
    client.send(*[wire.subscribe(packet_id, ("t", 1), version=4) for packet_id in (5, 1, 65535)])
    for packet_id in (5, 1, 65535):
        client.expect("SUBACK", packet_id=packet_id)


def test_mqtt311_3_8_4_3__replaces(server: Server) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("t", b"kept", qos=2, retain=True)
    client = server.connect("c", 4)
    for qos in (0, 1, 2, 0):
        client.subscribe("t", qos=qos)
        client.expect("PUBLISH", payload="kept", qos=qos, retain=True)
        publisher.publish("t", b"live", qos=2)
        client.expect("PUBLISH", payload="live", qos=qos, retain=False)
        client.expect_nothing()


def test_mqtt311_3_8_4_3__flow_is_not_interrupted(server: Server) -> None:
    """1000 messages while the subscriber subscribes 50 times again: each comes once, in order."""
    client, publisher = server.connect("c", 4), server.client(4, transport="tcp")
    publisher.connect("p")
    client.subscribe("t", qos=1)
    numbers = [b"%d" % number for number in range(1000)]
    for part in range(50):
        messages = numbers[part * 20 : part * 20 + 20]
        publisher.send(*[wire.publish("t", one, version=4, qos=1) for one in messages])
        client.subscribe("t", qos=1)
    publisher.fence()
    client.expect_messages(*numbers, qos=1, dup=False, retain=False)


def test_mqtt311_3_8_4_4__several_filters(server: Server) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("a", b"kept", qos=2, retain=True)
    client = server.connect("c", 4)
    client.send(wire.subscribe(9, ("a", 2), ("b", 1), ("a", 0), version=4))
    client.expect("SUBACK", packet_id=9, reason_codes=[2, 1, 0])
    for qos in (2, 0):  # as two SUBSCRIBE packets would bring it
        client.expect("PUBLISH", topic_name="a", payload="kept", qos=qos, retain=True)
    publisher.publish("a", b"live", qos=2)
    publisher.publish("b", b"live", qos=2)
    client.expect("PUBLISH", topic_name="a", payload="live", qos=0)
    client.expect("PUBLISH", topic_name="b", payload="live", qos=1)
    client.expect_nothing()


def test_mqtt311_3_8_4_5__a_code_per_filter(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87})])
    client = server.connect("c", 4)
    for asked, codes in (
        ([("a", 0), ("b", 1), ("c", 2)], "00 01 02"),
        ([("no", 0)], "80"),
        ([("no", 2), ("d", 1)], "80 01"),
    ):
        client.send(wire.subscribe(3, *asked, version=4))
        assert client.recv().raw == wire.packet(0x90, b"\0\3" + bytes.fromhex(codes))


COMBINATIONS = [(published, granted) for published in (0, 1, 2) for granted in (0, 1, 2)]


@pytest.mark.parametrize(("published", "granted"), COMBINATIONS)
def test_mqtt311_3_8_4_6__live(server: Server, published: int, granted: int) -> None:
    client, publisher = subscribed(server, "t", qos=granted, version=4), server.connect("p", 4)
    publisher.publish("t", b"x", qos=published)
    client.expect_messages(b"x", qos=min(published, granted))


@pytest.mark.parametrize(("published", "granted"), COMBINATIONS)
def test_mqtt311_3_8_4_6__queued(serve: Serve, published: int, granted: int) -> None:
    server = serve(queue_qos_0=True)
    subscribed(server, "t", qos=granted, version=4).drop()
    server.connect("p", 4).publish("t", b"x", qos=published)
    resume(server, version=4).expect_messages(b"x", qos=min(published, granted))


@pytest.mark.parametrize(("published", "granted"), COMBINATIONS)
def test_mqtt311_3_8_4_6__retained(server: Server, published: int, granted: int) -> None:
    server.connect("p", 4).publish("t", b"x", qos=published, retain=True)
    subscribed(server, "t", qos=granted, version=4).expect_messages(
        b"x", qos=min(published, granted), retain=True
    )


# ------------------------------------------------------------------------------- 3.9 SUBACK


def test_mqtt311_3_9_3_1__order(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87})])
    client = server.connect("c", 4)
    client.subscribe(("a", 0), ("no", 1), ("b", 2), granted=[0x00, 0x80, 0x02])


def test_mqtt311_3_9_3_2__codes_of_5_0(serve: Serve) -> None:
    """Whatever a hook refuses with. That no other code comes the harness checks in every test."""
    refusals = {f"r{code:02X}": code for code in (0x80, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2, 0x99, 0x90)}
    server = serve(hooks=[Policy(subscribe=refusals, reason_string="why", user_properties=[("k", "v")])])
    client = server.connect("c", 4)
    client.subscribe(*refusals, granted=[0x80] * len(refusals))
    for topic_filter in refusals:
        client.subscribe(topic_filter, qos=2, granted=[0x80])


# ------------------------------------------------------------------------------- 3.10 UNSUBSCRIBE


def test_mqtt311_3_10_1_1__flags(server: Server) -> None:
    raws = [wire.unsubscribe(1, "t", version=4, first=0xA0 | flags) for flags in WRONG_FLAGS]
    expect_breach_of_session(server, *raws, subscribed_before=True)


def test_mqtt311_3_10_3_1__not_utf8_or_not_contiguous(server: Server) -> None:
    raws = [
        wire.unsubscribe(1, "t", b"\xff", version=4),
        wire.unsubscribe(1, b"\xff", "t", version=4),
        wire.unsubscribe(1, "t", version=4, tail=b"\0"),
        wire.unsubscribe(1, "t", version=4, tail=b"\0\3ab"),
        wire.unsubscribe(1, version=4, tail=b"\0\1t\1"),
    ]
    expect_breach_of_session(server, *raws, subscribed_before=True)


def test_mqtt311_3_10_3_2__nothing_in_it(server: Server) -> None:
    expect_breach_of_session(server, wire.unsubscribe(1, version=4), subscribed_before=True)


def test_mqtt311_3_10_4_1__exact_match(server: Server) -> None:
    client, publisher = subscribed(server, "a/+", qos=1, version=4), server.connect("p", 4)
    client.unsubscribe("a/b", "A/+", "a/#", "+/+", "a/+/", "/a/+", "a/")
    publisher.publish("a/b", b"still", qos=1)
    client.expect_messages(b"still")
    client.unsubscribe("a/+")
    publisher.publish("a/b", b"gone", qos=1)
    client.expect_nothing()


def test_mqtt311_3_10_4_2__nothing_new(server: Server) -> None:
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    client.unsubscribe("t")
    for qos in (0, 1, 2):
        publisher.publish("t", b"live", qos=qos)
    client.expect_nothing()
    client.drop()
    for qos in (0, 1, 2):
        publisher.publish("t", b"away", qos=qos)
    resume(server, version=4).expect_nothing()


def test_mqtt311_3_10_4_3__started_deliveries_are_completed(server: Server) -> None:
    client, publisher = subscribed(server, "t", version=4), server.connect("p", 4)
    publisher.publish("t", b"2", qos=2)
    publisher.publish("t", b"1", qos=1)
    two, one = client.expect_messages(b"2", b"1")
    client.send(wire.pubrec(two.packet_id or 0, version=4))
    client.expect("PUBREL", packet_id=two.packet_id)
    client.unsubscribe("t")
    client.send(wire.pubcomp(two.packet_id or 0, version=4))
    client.expect_nothing()
    client.drop()
    again = resume(server, version=4)
    again.expect("PUBLISH", payload="1", qos=1, dup=True, packet_id=one.packet_id)
    again.expect_nothing()


def test_mqtt311_3_10_4_3__before_pubrec(server: Server) -> None:
    client = subscribed(server, "t", version=4)
    server.connect("p", 4).publish("t", b"2", qos=2)
    message = client.expect("PUBLISH", qos=2)
    client.unsubscribe("t")
    client.drop()
    again = resume(server, version=4)
    resent = again.expect("PUBLISH", payload="2", qos=2, dup=True, packet_id=message.packet_id)
    again.ack(resent)
    again.expect_nothing()


@pytest.mark.parametrize("packet_id", [1, 0x0102, 0xFFFF])
def test_mqtt311_3_10_4_4__unsuback(server: Server, packet_id: int) -> None:
    client = subscribed(server, "t", version=4)
    client.send(wire.unsubscribe(packet_id, "t", version=4))
    assert client.recv().raw == b"\xb0\x02" + wire.two(packet_id)


def test_mqtt311_3_10_4_5__unknown_filter(server: Server) -> None:
    client = server.connect("c", 4)
    client.send(wire.unsubscribe(7, "never", version=4), wire.unsubscribe(8, "never", "nor/#", version=4))
    client.expect("UNSUBACK", packet_id=7)
    client.expect("UNSUBACK", packet_id=8)
    client.expect_nothing()


def test_mqtt311_3_10_4_6__several_filters(server: Server) -> None:
    client, publisher = subscribed(server, "a", "b/+", "c/#", qos=1, version=4), server.connect("p", 4)
    client.send(wire.unsubscribe(7, "a", "b/+", "c/#", version=4))
    client.expect("UNSUBACK", packet_id=7)
    for topic in ("a", "b/x", "c", "c/x"):
        publisher.publish(topic, b"x", qos=1)
    client.expect_nothing()
