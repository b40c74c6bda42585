"""B27: messages between versions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.marks import every_qos
from tests.conformance.server import Server
from tests.conformance.wire import publish

PROPERTIES: dict[str, Any] = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 100,
    "content_type": "text/plain",
    "response_topic": "answer/here",
    "correlation_data": b"\0\1",
    "user_property": [("k", "v"), ("k", "w")],
}


def expect_plain(client: Raw, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
    """The next packet is this PUBLISH of 3.1.1, byte for byte."""
    packet = client.expect("PUBLISH", qos=qos)
    wanted = publish(topic, payload, qos=qos, packet_id=packet.packet_id, retain=retain, version=4)
    assert packet.raw == wanted, f"{packet}, expected {wanted.hex(' ')}"


@every_qos
def test_b27__properties_vanish(server: Server, qos: int) -> None:
    """Live and retained; an alias is resolved."""
    client, publisher = server.connect("s", 4), server.connect("p")
    client.subscribe("t", qos=2)
    publisher.publish("t", b"live", qos=qos, topic_alias=1, retain=True, **PROPERTIES)
    expect_plain(client, "t", b"live", qos)
    publisher.publish("", b"alias", qos=qos, topic_alias=1, **PROPERTIES)
    expect_plain(client, "t", b"alias", qos)
    late = server.connect("late", 4)
    late.subscribe("t", qos=2)
    expect_plain(late, "t", b"live", qos, retain=True)


@every_qos
def test_b27__properties_vanish_from_the_queue(serve: Serve, qos: int) -> None:
    server = serve(queue_qos_0=True)
    client, publisher = server.connect("s", 4, clean_start=False), server.connect("p")
    client.subscribe("t", qos=2)
    client.drop()
    publisher.publish("t", b"1", qos=qos, topic_alias=1, **PROPERTIES)
    publisher.publish("", b"2", qos=qos, topic_alias=1, **PROPERTIES)
    server.advance(10)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    expect_plain(again, "t", b"1", qos)
    expect_plain(again, "t", b"2", qos)


def test_b27__will_of_5_0(server: Server) -> None:
    client = server.connect("s", 4)
    client.subscribe("t", qos=1)
    server.connect("c", will=wire.will("t", b"gone", qos=1, will_delay_interval=0, **PROPERTIES)).drop()
    expect_plain(client, "t", b"gone", 1)


def test_b27__expiry_is_not_seen(server: Server) -> None:
    """The deadline holds for 3.1.1 too; of what is left nothing is sent."""
    client = server.connect("s", 4, clean_start=False)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = server.connect("p")
    publisher.publish("t", b"short", qos=1, message_expiry_interval=5)
    publisher.publish("t", b"long", qos=1, message_expiry_interval=50)
    server.advance(10)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    expect_plain(again, "t", b"long", 1)
    again.expect_nothing()


def test_b27__options_of_5_0_in_a_session_of_3_1_1(server: Server) -> None:
    """A 5.0 client subscribed with an identifier and Retain As Published; 3.1.1 goes on with its session."""
    client, publisher = server.connect("s", session_expiry_interval=600), server.connect("p")
    client.subscribe("t", qos=1, retain_as_published=True, subscription_identifier=7)
    client.disconnect()
    publisher.publish("t", b"queued", qos=1, retain=True, **PROPERTIES)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    expect_plain(again, "t", b"queued", 1)
    publisher.publish("t", b"live", qos=1, retain=True, **PROPERTIES)
    expect_plain(again, "t", b"live", 1)
    publisher.publish("t", b"zero", retain=True)
    expect_plain(again, "t", b"zero", 0)
    again.drop()
    client = server.connect("s", clean_start=False, session_present=True)
    client.drain()
    publisher.publish("t", b"once more", retain=True)
    client.expect("PUBLISH", payload="once more", retain=True, subscription_identifier=[7])


@every_qos
@pytest.mark.parametrize("retain_as_published", [False, True])
def test_b27__from_3_1_1_to_5_0(server: Server, qos: int, retain_as_published: bool) -> None:
    """No properties; RETAIN by the subscriber's options."""
    client, publisher = server.connect("s"), server.connect("p", 4)
    client.subscribe("t", qos=2, retain_as_published=retain_as_published)
    publisher.publish("t", b"kept", qos=qos, retain=True)
    publisher.publish("t", b"live", qos=qos)
    kept, live = client.expect_messages(b"kept", b"live", qos=qos, properties={})
    assert (kept.retain, live.retain) == (retain_as_published, False)
    for handling, wanted in ((0, [b"kept"]), (1, []), (2, [])):
        client.subscribe("t", qos=2, retain_as_published=retain_as_published, retain_handling=handling)
        client.expect_messages(*wanted, properties={}, retain=True)


def test_b27__will_of_3_1_1(server: Server) -> None:
    client = server.connect("s")
    client.subscribe("t", qos=1)
    server.connect("c", 4, will=wire.will("t", b"gone", qos=1)).drop()
    client.expect("PUBLISH", topic_name="t", payload="gone", properties={})


@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2])
def test_b27__suback_codes(serve: Serve, reason: int) -> None:
    server = serve(hooks=[Policy(subscribe={"no": reason})])
    for version, code in ((4, 0x80), (5, reason)):
        client = server.connect(f"c{version}", version)
        client.subscribe("no", "yes", granted=[code, 0])
        client.expect_nothing()


@pytest.mark.parametrize(("qos", "first"), [(1, 0x40), (2, 0x50)])
def test_b27__puback_and_pubrec_codes(serve: Serve, qos: int, first: int) -> None:
    """No matching subscribers and refusals: 5.0 hears 0x10, 0x87, 0x90; 3.1.1 gets two bytes of body."""
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    for topic, reason in (("nobody", 0x10), ("no", 0x87), ("$SYS/x", 0x90)):
        server.connect("five").publish(topic, b"x", qos=qos, reason=reason)
        answer = server.connect("four", 4).publish(topic, b"x", qos=qos, packet_id=77)
        assert answer is not None and answer.raw == bytes([first, 2, 0, 77])


def test_b27__unsuback_codes(serve: Serve) -> None:
    server = serve(hooks=[Policy(unsubscribe={"stay": 0x87})])
    five, four = server.connect("five"), server.connect("four", 4)
    for client in (five, four):
        client.subscribe("stay", "go")
    five.unsubscribe("never", "go", "stay", reasons=[0x11, 0x00, 0x87])
    answer = four.unsubscribe("never", "go", "stay", packet_id=77)
    assert answer.raw == bytes([0xB0, 2, 0, 77])


CONNACK_CODES: dict[int, int | None] = {0x86: 4, 0x87: 5, 0x8A: 5, 0x85: 2, 0x97: 3, 0x89: 3, 0x88: 3,
                                        0x9F: None, 0x80: None}  # fmt: skip


@pytest.mark.parametrize(("reason", "code"), CONNACK_CODES.items())
def test_b27__connack_codes(serve: Serve, reason: int, code: int | None) -> None:
    server = serve(hooks=[Policy(connect={"c": reason})])
    server.expect_refused(wire.connect("c"), codes=reason)
    server.expect_refused(wire.connect("c", version=4), codes=() if code is None else code, version=4)


@pytest.mark.parametrize("qos", [1, 2])
def test_b27__properties_survive_a_3_1_1_connection(server: Server, qos: int) -> None:
    """5.0 makes the session; 3.1.1 is sent the messages and acknowledges none; 5.0 gets them in full."""
    client, publisher = server.connect("s", session_expiry_interval=600), server.connect("p")
    client.subscribe("t", qos=2, subscription_identifier=7)
    publisher.publish("t", b"sent", qos=qos, **PROPERTIES)
    client.expect("PUBLISH", payload="sent", **PROPERTIES, subscription_identifier=[7])
    client.drop()
    publisher.publish("t", b"queued", qos=qos, **PROPERTIES)
    between = server.connect("s", 4, clean_start=False, session_present=True)
    publisher.publish("t", b"live", qos=qos, **PROPERTIES)
    plain = between.expect_messages(b"sent", b"queued", b"live", properties={})
    between.drop()
    server.advance(30)
    again = server.connect("s", clean_start=False, session_present=True, session_expiry_interval=600)
    wanted = {**PROPERTIES, "message_expiry_interval": range(70, 101), "subscription_identifier": [7]}
    found = again.expect_messages(b"sent", b"queued", b"live", dup=True, **wanted)
    assert [packet.packet_id for packet in found] == [packet.packet_id for packet in plain]
    publisher.publish("t", b"new", qos=qos)
    again.expect("PUBLISH", payload="new", subscription_identifier=[7])


def test_b27__a_3_1_1_session_goes_on_as_5_0(server: Server) -> None:
    client, publisher = server.connect("s", 4, clean_start=False), server.connect("p")
    client.subscribe("t", qos=1)
    client.drop()
    publisher.publish("t", b"queued", qos=1, retain=True, **PROPERTIES)
    again = server.connect("s", clean_start=False, session_present=True)
    again.expect("PUBLISH", payload="queued", retain=False, **PROPERTIES, subscription_identifier=None)
