"""B34: what a PUBLISH is answered."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed


@pytest.mark.parametrize(
    ("topic_name", "retain", "code"),
    [("no", False, 0x87), ("no", True, 0x87), ("too many", True, 0x97), ("$reserved", False, 0x90)],
)
@pytest.mark.parametrize("qos", [1, 2])
def test_b34__checked_before_it_is_owned(
    serve: Serve, qos: int, topic_name: str, retain: bool, code: int
) -> None:
    """Authorization and quota are in PUBACK and PUBREC; what was refused is not delivered later either."""
    server = serve(hooks=[Policy(publish={"no": 0x87})], maximum_retained_messages=1)
    client = server.connect("p")
    client.publish("kept", b"x", retain=True)
    watcher = server.watch()
    watcher.drain()
    client.publish(topic_name, b"x", qos, retain=retain, packet_id=5, reason=code)
    client.release(5, 0x92)  # the flow is over
    client.expect_nothing()
    watcher.expect_nothing()
    assert server.retained() == [("kept", b"x")]


def test_b34__what_is_owned_is_stored(serve: Serve) -> None:
    """A QoS 2 message that was accepted is retained at PUBREL, even if others took the last place since."""
    server = serve(maximum_retained_messages=1)
    client = server.connect("p")
    for packet_id in (1, 2):
        client.send(wire.publish(f"t/{packet_id}", b"x", qos=2, packet_id=packet_id, retain=True))
        client.expect("PUBREC", packet_id=packet_id, reason_code=0x10)
    client.publish("t/3", b"x", 1, retain=True, packet_id=3, reason=0x10)
    client.release(1)
    client.release(2)
    for qos in (1, 2):
        client.publish("t/4", b"x", qos, retain=True, reason=0x97)
    assert server.retained() == [("t/1", b"x"), ("t/2", b"x"), ("t/3", b"x")]


@pytest.mark.parametrize("qos", [1, 2])
def test_b34__owned(server: Server, qos: int) -> None:
    """What was acknowledged reaches every session, whatever becomes of the publisher."""
    subscribed(server, "t", client_id="offline").drop()
    online, client = subscribed(server, "t", client_id="online"), server.connect("p")
    client.send(wire.publish("t", b"x", qos=qos, packet_id=1))
    client.expect("PUBACK" if qos == 1 else "PUBREC", reason_code=0x00)
    if qos == 2:
        client.send(wire.pubrel(1))
        client.expect("PUBCOMP", reason_code=0x00)
    client.reset()
    online.expect_messages("x", qos=qos)
    resume(server, "offline").expect_messages("x", qos=qos)


@pytest.mark.parametrize("qos", [1, 2])
def test_b34__subscribers_do_not_gate_publishers(server: Server, qos: int) -> None:
    """One does not acknowledge, one has its window full, one is not there."""
    silent = subscribed(server, "t", client_id="silent")
    full = subscribed(server, "t", client_id="full", receive_maximum=1)
    subscribed(server, "t", client_id="offline").drop()
    publisher = server.connect("p")
    for at in range(3):
        publisher.publish("t", f"{at}", qos, reason=0x00)
    silent.expect_messages("0", "1", "2")
    full.expect_messages("0")
    resume(server, "offline").expect_messages("0", "1", "2")


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("topic_filter", ["t", "+", "#", "$share/g/t", "$share/g/+"])
def test_b34__no_matching_subscribers(server: Server, topic_filter: str, online: bool, qos: int) -> None:
    """0x10 only if no subscription matched: shared or not, with or without a connection."""
    publisher = server.connect("p")
    publisher.publish("t", b"x", qos, reason=0x10)
    client = subscribed(server, topic_filter)
    if not online:
        client.drop()
    publisher.publish("t", b"x", qos, reason=0x00)
    publisher.publish("u/u", b"x", qos, reason=0x00 if topic_filter == "#" else 0x10)
    publisher.publish("t", b"x", qos, reason=0x00, retain=True)


@pytest.mark.parametrize("qos", [1, 2])
def test_b34__no_matching_subscribers_after_the_session(server: Server, qos: int) -> None:
    client, publisher = subscribed(server, "t"), server.connect("p")
    client.drop()
    publisher.publish("t", b"x", qos, reason=0x00)
    server.advance(601)
    publisher.publish("t", b"x", qos, reason=0x10, retain=True)
    assert server.retained() == [("t", b"x")]


def test_b34__refused_qos_2_is_over(serve: Serve) -> None:
    """PUBREL that comes anyway: PUBCOMP 0x92. The identifier is free at once."""
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    watcher, client = server.watch(), server.connect("p")
    client.publish("no", b"x", 2, packet_id=5, reason=0x87)
    client.subscribe("u", packet_id=5)
    client.publish("t", b"y", 1, packet_id=5)
    client.release(5, 0x92)
    client.publish("t", b"z", 2, packet_id=5)
    watcher.expect_messages("y", "z")
