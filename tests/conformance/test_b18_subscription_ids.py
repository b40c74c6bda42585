"""B18: Subscription Identifiers."""

from __future__ import annotations

import pytest

from tests.conformance.deliveries import subscription_ids
from tests.conformance.server import Server
from tests.conformance.sessions import resume


def test_b18__part_of_the_session(server: Server) -> None:
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t/a", "t/b", qos=1, subscription_identifier=5)  # one for all filters
    publisher = server.connect("p")
    for name in ("t/a", "t/b"):
        publisher.publish(name, b"live", 1)
        client.ack(client.expect("PUBLISH", subscription_identifier=[5]))
    client.drop()
    publisher.publish("t/a", b"queued", 1)
    client = resume(server)
    client.ack(client.expect("PUBLISH", payload="queued", subscription_identifier=[5]))
    publisher.publish("t/b", b"live again", 1)
    client.expect("PUBLISH", payload="live again", subscription_identifier=[5])


def test_b18__in_retained_copies(server: Server) -> None:
    server.connect("p").publish("t", b"x", 1, retain=True)
    client = server.connect("s")
    for qos in (0, 1):
        client.subscribe("t", qos=qos, subscription_identifier=5 + qos)
        client.expect_messages("x", subscription_identifier=[5 + qos])


@pytest.mark.parametrize("how", ["window", "offline"])
def test_b18__a_queued_copy_never_mixes(server: Server, how: str) -> None:
    """It has the identifiers of the time it was queued, or of the time it is sent."""
    client = server.connect("s", receive_maximum=1, session_expiry_interval=60)
    client.subscribe("t", qos=1, subscription_identifier=1)
    client.subscribe("#", qos=1, subscription_identifier=2)
    publisher = server.connect("p")
    publisher.publish("t", b"first", 1)
    first = client.expect("PUBLISH", payload="first")
    publisher.publish("t", b"queued", 1)
    client.subscribe("t", qos=1, subscription_identifier=3)
    client.unsubscribe("#")
    if how == "window":
        client.ack(first)
    else:
        client.drop()
        client = resume(server)
        client.expect("PUBLISH", payload="first", dup=True)
    packet = client.expect("PUBLISH", payload="queued")
    assert sorted(subscription_ids(packet)) in ([1, 2], [3])


@pytest.mark.parametrize("how", ["unsubscribe", "without", "another", "new session"])
def test_b18__removed(server: Server, how: str) -> None:
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t", subscription_identifier=5)
    if how == "unsubscribe":
        client.unsubscribe("t")
    elif how == "another":
        client.subscribe("t", subscription_identifier=6)
    elif how == "new session":
        client.drop()
        client = server.connect("s", clean_start=True)
    if how != "another":
        client.subscribe("t")
    server.connect("p").publish("t", b"x")
    packet = client.expect("PUBLISH")
    assert subscription_ids(packet) == ([6] if how == "another" else [])
    client.expect_nothing()


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (1, "01"), (127, "7F"), (128, "80 01"), (16_383, "FF 7F"), (16_384, "80 80 01"),
        (2_097_151, "FF FF 7F"), (2_097_152, "80 80 80 01"), (268_435_455, "FF FF FF 7F"),
    ],
)  # fmt: skip
def test_b18__encoded_in_the_fewest_bytes(server: Server, value: int, raw: str) -> None:
    client = server.connect("s")
    client.subscribe("t", subscription_identifier=value)
    server.connect("p").publish("t", b"")
    body = b"\x0b" + bytes.fromhex(raw)
    packet = client.expect("PUBLISH", subscription_identifier=[value])
    assert packet.raw == b"\x30" + bytes([4 + len(body)]) + b"\0\x01t" + bytes([len(body)]) + body


def test_b18__in_the_order_of_subscription(server: Server) -> None:
    client = server.connect("s")
    for identifier, topic_filter in ((9, "+/a"), (3, "t/a"), (7, "#"), (3, "t/+")):
        client.subscribe(topic_filter, subscription_identifier=identifier)
    server.connect("p").publish("t/a", b"x")
    client.expect("PUBLISH", subscription_identifier=[9, 3, 7, 3])
