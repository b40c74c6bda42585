"""B13: overlapping subscriptions."""

from __future__ import annotations

import pytest

from tests.conformance.deliveries import subscription_ids
from tests.conformance.marks import both_versions
from tests.conformance.server import Server


@both_versions
def test_b13__one_copy_at_the_highest_qos(server: Server, version: int) -> None:
    """QoS is the lower of the published and the highest granted; identifiers of all, repeats included."""
    client, publisher = server.connect("s", version), server.connect("p")
    for topic_filter, qos, identifier in (("t/#", 0, 3), ("t/a", 1, 5), ("+/a", 1, 3)):
        named = {"subscription_identifier": identifier} if version == 5 else {}
        client.subscribe(topic_filter, qos=qos, **named)
    for qos in (0, 1, 2):
        publisher.publish("t/a", f"{qos}", qos, retain=True)
        packet = client.expect("PUBLISH", payload=f"{qos}", qos=min(qos, 1), retain=False)
        assert sorted(subscription_ids(packet)) == ([3, 3, 5] if version == 5 else [])
    client.expect_nothing()


@pytest.mark.parametrize("with_rap", ["t/#", "t/a"])
def test_b13__retain_as_published_of_any(server: Server, with_rap: str) -> None:
    client = server.connect("s")
    for topic_filter in ("t/#", "t/a"):
        client.subscribe(topic_filter, qos=1, retain_as_published=topic_filter == with_rap)
    publisher = server.connect("p")
    for retain in (True, False):
        publisher.publish("t/a", b"x", 1, retain=retain)
        client.expect("PUBLISH", retain=retain)
        client.expect_nothing()


def test_b13__no_local_takes_its_subscription_out(server: Server) -> None:
    """QoS, RETAIN and identifiers come from what No Local leaves; if it leaves nothing, nothing comes."""
    client = server.connect("s")
    client.subscribe("t/#", qos=2, no_local=True, retain_as_published=True, subscription_identifier=1)
    client.subscribe("t/a", qos=1, subscription_identifier=2)
    client.publish("t/a", b"own", 2, retain=True)
    client.ack(client.expect("PUBLISH", payload="own", qos=1, retain=False, subscription_identifier=[2]))
    client.publish("t/b", b"own", 2, reason=(0x00, 0x10))
    client.expect_nothing()
    server.connect("p").publish("t/a", b"other", 2, retain=True)
    client.expect("PUBLISH", payload="other", qos=2, retain=True, subscription_identifier=[1, 2])
    client.expect_nothing()


@both_versions
def test_b13__shared_matches_are_separate(server: Server, version: int) -> None:
    client = server.connect("s", version)
    filters = ("t/a", "t/+", "$share/g/t/a", "$share/h/t/a", "$share/g/t/+")
    for at, topic_filter in enumerate(filters, 1):
        named = {"subscription_identifier": at} if version == 5 else {}
        client.subscribe(topic_filter, **named)
    server.connect("p").publish("t/a", b"x")
    found = client.expect_messages(*["x"] * 4)
    wanted = [[1, 2], [3], [4], [5]] if version == 5 else [[]] * 4
    assert sorted(sorted(subscription_ids(packet)) for packet in found) == wanted


@both_versions
def test_b13__retained_messages_per_filter(server: Server, version: int) -> None:
    server.connect("p").publish("t/a", b"x", 1, retain=True)
    client = server.connect("s", version)
    named = {"subscription_identifier": 9} if version == 5 else {}
    client.subscribe(("t/#", 0), ("t/a", 1), **named)
    found = client.expect_messages("x", "x", retain=True)
    assert sorted(packet.qos or 0 for packet in found) == [0, 1]
    assert [subscription_ids(packet) for packet in found] == [[9] if version == 5 else []] * 2
