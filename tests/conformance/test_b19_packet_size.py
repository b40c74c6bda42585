"""B19: Maximum Packet Size, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.codes import TOO_LARGE
from tests.conformance.conftest import Serve
from tests.conformance.hooks import ConnackProperties, Dropped, Policy
from tests.conformance.marks import both_qos
from tests.conformance.server import Server
from tests.conformance.sessions import again, offline


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b19__inbound_limit(serve: Serve, version: int, qos: int) -> None:
    """All bytes count; equal is fine, one more is not."""
    server = serve(maximum_packet_size=1000)
    client = server.connect("c", version)
    client.send(wire.publish_of(1000, qos=qos, version=version))
    if qos:
        client.expect("PUBACK" if qos == 1 else "PUBREC", packet_id=1)
    client.expect_nothing()
    server.expect_breach(wire.publish_of(1001, qos=qos, version=version), codes=TOO_LARGE, version=version)


@pytest.mark.parametrize("version", [4, 5])
def test_b19__decided_from_the_fixed_header(server: Server, version: int) -> None:
    """Whatever the packet would have been, its bytes need not come."""
    for first in (0x30, 0x82, 0xA2, 0x40, 0xE0):
        for length in (1 << 20, 268_435_455):
            server.expect_breach(bytes([first]) + wire.varint(length), codes=TOO_LARGE, version=version)


@pytest.mark.parametrize("limit", [64, 1 << 20, 268_435_459, 268_435_460])
def test_b19__announced_below_the_maximum_of_the_protocol(serve: Serve, limit: int) -> None:
    server = serve(maximum_packet_size=limit)
    client = server.client()
    client.send(wire.connect("c"))
    client.expect("CONNACK", maximum_packet_size={limit, None} if limit == 268_435_460 else limit)


OUTBOUND: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # CONNECT, SUBSCRIBE and PUBLISH properties
    "plain": ({}, {}, {}),
    "identifiers": ({}, {"subscription_identifier": 268_435_455}, {}),
    "properties": (
        {},
        {},
        {"user_property": [("k", "v")] * 5, "content_type": "c", "correlation_data": b"d"},
    ),
    "expiry": ({}, {}, {"message_expiry_interval": 100}),
}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("case", OUTBOUND)
def test_b19__outbound_limit(serve: Serve, qos: int, case: str) -> None:
    """The size that counts is the real one. Too large: dropped for this client alone, and no word of it."""
    dropped = Dropped()
    server = serve(hooks=[dropped])
    connect, subscribe, publish = OUTBOUND[case]
    measure = server.connect("measure", **connect)
    measure.subscribe("t", qos=2, **subscribe)
    publisher = server.connect("p")
    publisher.publish("t", b"x" * 100, qos, **publish)
    size = len(measure.expect("PUBLISH").raw)
    measure.auto_ack = True
    client = server.connect("c", maximum_packet_size=size, **connect)
    client.subscribe("t", qos=2, **subscribe)
    client.auto_ack = True
    for n, more in enumerate((0, 1, 50, 0)):
        publisher.publish("t", b"%d" % n + b"x" * (99 + more), qos, reason=0, **publish)
    found = client.expect_messages("0" + "x" * 99, "3" + "x" * 99, qos=qos)
    assert len(found[0].raw) == len(found[1].raw) == size
    assert len(measure.drain()) == 4
    assert dropped.events == [("c", "packet_too_large")] * 2
    assert server.sys_value("dropped/packet_too_large") == "2"


@both_qos
@pytest.mark.parametrize("way", ["live", "queued", "retained"])
def test_b19__too_large_frees_identifier_and_slot(server: Server, qos: int, way: str) -> None:
    publisher = server.connect("p")
    if way == "queued":
        offline(server, "t/#", qos=qos)
    for n, payload in enumerate((b"x" * 200, b"1", b"x" * 200, b"3")):
        if way != "live":
            publisher.publish(f"t/{n}", payload, qos, retain=way == "retained")
    client = server.connect(
        "s", clean_start=False, session_expiry_interval=60, maximum_packet_size=100, receive_maximum=1
    )
    if way != "queued":
        client.subscribe("t/#", qos=qos)
    for n, payload in enumerate((b"x" * 200, b"1", b"x" * 200, b"3")):
        if way == "live":
            publisher.publish(f"t/{n}", payload, qos)
    for payload in "13":
        client.ack(client.expect("PUBLISH", payload=payload, packet_id={1, 2, 3, 4}))
    client.expect_nothing()
    again(client, server).expect_nothing()  # it counts as completely sent


@pytest.mark.parametrize("qos", [0, 1])
def test_b19__with_an_alias(server: Server, qos: int) -> None:
    """An alias makes the first packet longer and the later ones shorter; it is never why one is dropped."""
    topic = "t" * 50
    publisher = server.connect("p")
    limit = len(wire.publish(topic, b"x" * 30, qos=qos))
    client = server.connect("c", maximum_packet_size=limit, topic_alias_maximum=1)
    client.subscribe(topic, qos=qos)
    for size, alias, sent in (
        (200, None, None),  # too large, and no definition
        (30, None, topic),  # fits without an alias
        (27, 1, topic),  # with one
        (30, 1, ""),
        (77, 1, ""),  # with the alias alone
        (78, None, None),
    ):
        publisher.publish(topic, b"x" * size, qos, reason=0)
        found = client.drain()
        assert len(found) == (sent is not None), size
        for packet in found:
            assert (packet.sent_topic_name, packet.properties.get("topic_alias")) == (sent, alias)
            assert packet.payload == b"x" * size


def lengthy(**tables: dict[str, int]) -> Policy:
    """Refuses with a Reason String and a User Property, each of about 50 bytes."""
    return Policy(reason_string="r" * 50, user_properties=[("k" * 25, "v" * 25)], **tables)


ACKS: dict[str, tuple[Policy, bytes]] = {
    "PUBACK": (lengthy(publish={"no": 0x87}), wire.publish("no", b"x", qos=1)),
    "PUBREC": (lengthy(publish={"no": 0x87}), wire.publish("no", b"x", qos=2)),
    "SUBACK": (lengthy(subscribe={"no": 0x87}), wire.subscribe(1, "yes", "no")),
    "UNSUBACK": (lengthy(unsubscribe={"no": 0x87}), wire.unsubscribe(1, "yes", "no")),
}


@pytest.mark.parametrize("name", ACKS)
def test_b19__acknowledgement_too_large(serve: Serve, name: str) -> None:
    """First the Reason String goes, then the User Properties; never the acknowledgement itself."""
    policy, request = ACKS[name]
    server = serve(hooks=[policy])
    client = server.connect("c")
    client.send(request)
    size = len(client.expect(name, reason_string="r" * 50, user_property=[("k" * 25, "v" * 25)]).raw)
    without = size - 53
    for limit, reason_string, user_property in (
        (size, "r" * 50, [("k" * 25, "v" * 25)]),
        (size - 1, None, [("k" * 25, "v" * 25)]),
        (without, None, [("k" * 25, "v" * 25)]),
        (without - 1, None, None),
    ):
        client = server.connect("c", maximum_packet_size=limit)
        client.send(request)
        client.expect(name, reason_string=reason_string, user_property=user_property)
        client.expect_nothing()


def test_b19__reason_strings_of_the_server_itself(server: Server) -> None:
    for limit, told in ((1000, True), (20, False)):
        client = server.connect("c", maximum_packet_size=limit)
        client.send(wire.pubrel(9), wire.pubrec(9), bytes.fromhex("C1 00"))
        for name in ("PUBCOMP", "PUBREL", "DISCONNECT"):
            found = client.expect(name, reason_code=0x81 if name == "DISCONNECT" else 0x92)
            assert ("reason_string" in found.properties) == told, found
        client.drop()


@pytest.mark.parametrize("name", ["SUBACK", "UNSUBACK"])
def test_b19__too_many_filters_for_the_answer(server: Server, name: str) -> None:
    """SUBACK and UNSUBACK cannot be left out: DISCONNECT 0x95. The answer to n filters has n + 5 bytes."""
    build = wire.subscribe if name == "SUBACK" else wire.unsubscribe
    client = server.connect("c", maximum_packet_size=50)
    client.send(build(1, *(f"f{n}" for n in range(45))))
    assert len(client.expect(name).raw) == 50
    client.send(build(1, *(f"f{n}" for n in range(46))))
    client.expect_close(TOO_LARGE)


def test_b19__connack_that_does_not_fit(serve: Serve) -> None:
    server = serve(hooks=[ConnackProperties(("k" * 25, "v" * 25))])
    client = server.connect("c")
    assert client.connack is not None
    size = len(client.connack.raw)
    client.disconnect()
    smallest = size - 55
    for limit, optional in ((size, True), (size - 1, False), (smallest, False)):
        client = server.client()
        client.send(wire.connect("c", properties={"maximum_packet_size": limit}))
        client.expect("CONNACK", user_property=[("k" * 25, "v" * 25)] if optional else None)
        client.disconnect()
    server.expect_refused(wire.connect("c", properties={"maximum_packet_size": smallest - 1}))


@pytest.mark.parametrize("qos", [0, 1])
def test_b19__shared_messages_go_where_they_fit(server: Server, qos: int) -> None:
    """Of two members one takes small packets alone. Nothing is lost around its limit."""
    small = server.connect("small", maximum_packet_size=150)
    large = server.connect("large")
    topic = "é" * 20
    for client in (small, large):
        client.subscribe(f"$share/g/{topic}", qos=qos, subscription_identifier=268_435_455)
        client.auto_ack = True
    publisher = server.connect("p")
    for size in range(60, 110):
        for _ in range(2):
            publisher.publish(topic, b"x" * size, qos, user_property=[("é", "ü")] * 2)
    got = [len(packet.payload or b"") for client in (small, large) for packet in client.drain()]
    assert sorted(got) == sorted([*range(60, 110)] * 2)
