"""B16: message expiry."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.marks import both_versions
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed


@pytest.mark.parametrize(("waited", "left"), [(4.9, ["t/5", "t/ever"]), (5, ["t/ever"]), (500, ["t/ever"])])
def test_b16__deadline_is_arrival_plus_interval(server: Server, waited: float, left: list[str]) -> None:
    """Dropped at the deadline and not before, in a queue and as retained message; absent means never."""
    subscribed(server, "t/#").drop()
    publisher = server.connect("p")
    publisher.publish("t/5", b"x", 1, retain=True, message_expiry_interval=5)
    publisher.publish("t/ever", b"x", 2, retain=True)
    server.advance(waited)
    assert [name for name, _ in server.retained()] == left
    resume(server).expect_messages(*((name, "x") for name in left))


@pytest.mark.parametrize(("asked", "in_force"), [(None, 10), (100, 10), (5, 5), (0, 0)])
def test_b16__cap(serve: Serve, asked: int | None, in_force: int) -> None:
    """`message_expiry_interval` of the settings is the longest life of a message; it is off by default."""
    server = serve(message_expiry_interval=10)
    watcher, publisher = server.watch(), server.connect("p")
    named = {} if asked is None else {"message_expiry_interval": asked}
    publisher.publish("t", b"x", retain=True, **named)
    watcher.expect("PUBLISH", message_expiry_interval=in_force)
    server.advance(in_force)
    assert server.retained() == []


def test_b16__no_cap_by_default(server: Server) -> None:
    watcher = server.watch()
    server.connect("p").publish("t", b"x", message_expiry_interval=4294967295)
    watcher.expect("PUBLISH", message_expiry_interval=4294967295)


@both_versions
@pytest.mark.parametrize("qos", [1, 2])
def test_b16__waiting_for_the_window(serve: Serve, version: int, qos: int) -> None:
    server = serve(outbound_receive_maximum=1)
    client, publisher = subscribed(server, "t", qos=qos, version=version), server.connect("p")
    for payload, interval in (("first", 60), ("expired", 5), ("last", 60)):
        publisher.publish("t", payload, qos, message_expiry_interval=interval)
    blocking = client.expect("PUBLISH", payload="first")
    server.advance(5)
    client.ack(blocking)
    client.expect_messages("last", message_expiry_interval=55 if version == 5 else None)


def test_b16__waiting_for_a_shared_member(server: Server) -> None:
    subscribed(server, "$share/g/t").drop()
    publisher = server.connect("p")
    for interval in (5, 60):
        publisher.publish("t", f"{interval}", 1, message_expiry_interval=interval)
    server.advance(6)
    resume(server).expect_messages("60", message_expiry_interval=54)


@both_versions
@pytest.mark.parametrize("qos", [1, 2])
def test_b16__not_dropped_once_sent(server: Server, version: int, qos: int) -> None:
    """Before PUBACK or PUBREC and over a reconnect; no flow is broken off."""
    client = subscribed(server, "t", qos=qos, version=version)
    server.connect("p").publish("t", b"x", qos, message_expiry_interval=5)
    sent = client.expect("PUBLISH", payload="x", dup=False)
    server.advance(6)
    client.drop()
    client = resume(server, version=version)
    again = client.expect("PUBLISH", payload="x", dup=True, packet_id=sent.packet_id)
    server.advance(6)
    client.ack(again)
    client.expect_nothing()


def test_b16__a_flow_goes_on(server: Server) -> None:
    """QoS 2 past its interval: between PUBREC and PUBCOMP toward a subscriber, and held for a publisher."""
    client, publisher = subscribed(server, "t"), server.connect("p")
    publisher.publish("t", b"x", 2, message_expiry_interval=5)
    packet_id = client.expect("PUBLISH").packet_id or 0
    client.send(wire.pubrec(packet_id))
    client.expect("PUBREL", packet_id=packet_id)
    publisher.send(wire.publish("t", b"y", qos=2, packet_id=9, properties={"message_expiry_interval": 5}))
    publisher.expect("PUBREC", packet_id=9, reason_code=0x00)
    server.advance(6)
    client.drop()
    client = resume(server)
    client.expect("PUBREL", packet_id=packet_id, reason_code=0x00)
    client.send(wire.pubcomp(packet_id))
    publisher.release(9, 0x00)
    server.late().expect_nothing()


@pytest.mark.parametrize(("waited", "sent"), [(0, 60), (0.5, 60), (1, 59), (1.5, 59), (59.5, 1)])
def test_b16__interval_that_is_sent(server: Server, waited: float, sent: int) -> None:
    """Received minus whole seconds waited, what is left rounded up: queued and retained."""
    subscribed(server, "t", qos=1).drop()
    server.connect("p").publish("t", b"x", 1, retain=True, message_expiry_interval=60)
    server.advance(waited)
    resume(server).expect("PUBLISH", message_expiry_interval=sent)
    server.late("t").expect("PUBLISH", retain=True, message_expiry_interval=sent)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b16__interval_0(server: Server, qos: int) -> None:
    """At once or never: not behind a full window, not for a session without a connection."""
    free, blocked = (
        subscribed(server, "t", client_id="free"),
        subscribed(server, "t", client_id="blocked", receive_maximum=1),
    )
    offline, publisher = subscribed(server, "t", client_id="offline"), server.connect("p")
    publisher.publish("t", b"blocks", 1)
    free.ack(free.expect("PUBLISH"))
    first = blocked.expect("PUBLISH", payload="blocks")
    offline.ack(offline.expect("PUBLISH"))
    offline.drop()
    publisher.publish("t", b"0", qos, reason=0x00, message_expiry_interval=0)
    free.expect_messages("0", qos=qos, message_expiry_interval=0)
    if qos == 0:  # needs no slot
        blocked.expect("PUBLISH", payload="0", message_expiry_interval=0)
    blocked.ack(first)
    blocked.expect_nothing()
    resume(server, "offline").expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b16__interval_0_retained(server: Server, qos: int) -> None:
    """It deletes the old one and leaves none."""
    watcher, publisher = server.watch(), server.connect("p")
    publisher.publish("t", b"old", 1, retain=True)
    publisher.publish("t", b"new", qos, retain=True, reason=0x00, message_expiry_interval=0)
    watcher.expect_messages("old", "new", retain=True)
    assert server.sys_value("retained messages/count") == "0"
    assert server.retained() == []


def test_b16__expired_retained_messages_are_never_sent(server: Server) -> None:
    """Found out when somebody asks, before any sweep; and by a sweep when nobody does."""
    publisher = server.connect("p")
    for name in ("a", "b"):
        publisher.publish(name, b"x", retain=True, message_expiry_interval=5 if name == "a" else 10)
    server.clock.now += 6  # no sweep
    assert server.retained() == [("b", b"x")]
    server.advance(1)
    assert server.sys_value("retained messages/count") == "1"
    server.advance(4)
    assert server.sys_value("retained messages/count") == "0"


@pytest.mark.parametrize("waited", [4, 6])
def test_b16__to_3_1_1(server: Server, waited: int) -> None:
    """The same deadlines; the property is not sent."""
    subscribed(server, "t", qos=1, version=4).drop()
    server.connect("p").publish("t", b"x", 1, retain=True, message_expiry_interval=5)
    server.advance(waited)
    wanted = ["x"] * (waited < 5)
    resume(server, version=4).expect_messages(*wanted, properties={})
    server.late(version=4).expect_messages(*wanted, properties={})


def test_b16__a_will_lives_from_its_publication(server: Server) -> None:
    subscribed(server, "t", qos=1).drop()
    watcher = server.watch("t")
    will = wire.will("t", b"x", 1, retain=True, will_delay_interval=20, message_expiry_interval=10)
    server.connect("w", will=will, session_expiry_interval=600).drop()
    server.advance(21, step=0.5)
    watcher.expect("PUBLISH", payload="x", message_expiry_interval=10)
    server.advance(8)
    client = resume(server)
    client.expect("PUBLISH", payload="x", message_expiry_interval={1, 2})
    assert server.retained() == [("t", b"x")]
    server.advance(2)
    assert server.retained() == []
