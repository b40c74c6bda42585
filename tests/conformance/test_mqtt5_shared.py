"""MQTT 5.0 section 4.8.2: Shared Subscriptions."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import FILTER_INVALID, SHARED_NOT_SUPPORTED
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import identifier
from tests.conformance.server import Server
from tests.conformance.sessions import subscribed
from tests.conformance.wire import Packet

SHARED = "$share/g/t"
TWICE = pytest.mark.parametrize("unacknowledged", ["wait", "move"])  # a setting that QoS 2 does not heed


def member(server: Server, client_id: str, qos: int = 2, session_expiry_interval: int = 60) -> Raw:
    named = {"client_id": client_id, "session_expiry_interval": session_expiry_interval}
    return subscribed(server, SHARED, qos=qos, **named)


def one_delivery(
    server: Server, qos: int, session_expiry_interval: int = 60
) -> tuple[Raw, Packet, list[Raw]]:
    """Of three members: the one that got the message, its PUBLISH, and the others."""
    members = [member(server, name, qos, session_expiry_interval) for name in "abc"]
    server.connect("p").publish("t", b"once", qos, reason=0)
    found = {client: client.drain() for client in members}
    chosen = next(client for client in members if found[client])
    (packet,) = found.pop(chosen)
    assert packet.payload == b"once" and packet.qos == qos and not any(found.values())
    return chosen, packet, list(found)


# --------------------------------------------------------------------------- the filter


@pytest.mark.parametrize("topic_filter", ["$share//t", "$share//", "$share///", "$share/"])
def test_mqtt5_4_8_2_1__empty_share_name(server: Server, topic_filter: str) -> None:
    server.expect_breach(wire.subscribe(1, topic_filter), codes=FILTER_INVALID)
    server.expect_breach(wire.unsubscribe(1, topic_filter), codes=FILTER_INVALID)


@pytest.mark.parametrize(
    "topic_filter", ["$SHARE/g/t", "$shared/g/t", "$Share/g/t", "x$share/g/t", "$queue/t"]
)
def test_mqtt5_4_8_2_1__other_prefixes_are_ordinary(server: Server, topic_filter: str) -> None:
    clients = [server.connect(name) for name in "ab"]
    for client in clients:
        client.subscribe(topic_filter)
    server.run(server.broker.publish("t", b"no"))
    server.run(server.broker.publish(topic_filter, b"yes"))
    for client in clients:
        client.expect_messages((topic_filter, "yes"))


def test_mqtt5_4_8_2_1__messages_of_the_filter_behind_the_name(server: Server) -> None:
    client = member(server, "c")
    wild = server.connect("w")
    wild.subscribe("$share/ü g/a/+/#", qos=1)
    publisher = server.connect("p")
    for qos in (0, 1, 2):
        publisher.publish("t", f"{qos}", qos)
        publisher.publish("a/b/c", f"{qos}", qos)
    client.expect_messages(("t", "0"), ("t", "1"), ("t", "2"))
    wild.expect_messages(*(("a/b/c", f"{qos}") for qos in (0, 1, 2)))
    client.unsubscribe(SHARED, reasons=[0])
    publisher.publish("t", b"x", 1, reason=0x10)
    client.expect_nothing()


def test_mqtt5_4_8_2_1__switched_off(serve: Serve) -> None:
    server = serve(shared_subscription_available=False)
    client = server.connect("c")
    assert client.connack is not None
    assert client.connack.properties["shared_subscription_available"] == 0
    server.expect_breach(wire.subscribe(1, SHARED), codes=SHARED_NOT_SUPPORTED)
    client.subscribe("$shared/g/t")


@pytest.mark.parametrize(
    "topic_filter",
    ["$share/g", "$share", "$share/g/", "$share/+/t", "$share/a#b/t", "$share/#/t", "$share/a+/t",
     "$share/g/a#", "$share/g/a+", "$share/g/#/a", "$share/g#", "$share/+"],
)  # fmt: skip
def test_mqtt5_4_8_2_2__grammar(server: Server, topic_filter: str) -> None:
    server.expect_breach(wire.subscribe(1, topic_filter), codes=FILTER_INVALID)
    server.expect_breach(wire.subscribe(1, "good", topic_filter), codes=FILTER_INVALID)
    server.expect_breach(wire.unsubscribe(1, topic_filter), codes=FILTER_INVALID)


def test_mqtt5_4_8_2_2__the_name_ends_at_the_slash(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("$share/g//t", "$share/h/t", "$share/h/$share/x/t")
    publisher = server.connect("p")
    publisher.publish("/t", b"1")
    publisher.publish("t", b"2")
    publisher.publish("g/t", b"3")
    server.run(server.broker.publish("$share/x/t", b"4"))
    client.expect_messages(("/t", "1"), ("t", "2"), ("$share/x/t", "4"))


# --------------------------------------------------------------------------- deliveries


def test_mqtt5_4_8_2_1__groups_and_ordinary_subscriptions_are_independent(server: Server) -> None:
    """A copy for each group and one for the subscriptions that are not shared, to one client too."""
    client = server.connect("c")
    client.subscribe("t", "+", SHARED, "$share/h/t", "$share/g/+")
    other = server.connect("d")
    other.subscribe(SHARED)
    publisher = server.connect("p")
    for n in range(10):
        publisher.publish("t", f"{n}")
    mine, others = client.drain(), other.drain()
    assert len(mine) + len(others) == 40 and len(others) == 5
    counts = [sum(packet.payload == b"%d" % n for packet in mine) for n in range(10)]
    assert sorted(counts) == [3] * 5 + [4] * 5


@pytest.mark.parametrize("published", [0, 1, 2])
def test_mqtt5_4_8_2_3__each_members_granted_qos(server: Server, published: int) -> None:
    members = [member(server, f"c{qos}", qos) for qos in (0, 1, 2)]
    publisher = server.connect("p")
    for n in range(30):
        publisher.publish("t", f"{n}", published, reason=0)
    got: list[int] = []
    for granted, client in enumerate(members):
        found = client.drain()
        assert found and {packet.qos for packet in found} == {min(published, granted)}
        got += [int(packet.payload or b"") for packet in found]
    assert sorted(got) == list(range(30))


@TWICE
@pytest.mark.parametrize("pubrec", [False, True])
def test_mqtt5_4_8_2_4__qos_2_is_completed_with_its_client(
    serve: Serve, unacknowledged: str, pubrec: bool
) -> None:
    server = serve(shared_unacknowledged=unacknowledged)
    client, packet, others = one_delivery(server, 2)
    if pubrec:
        client.send(wire.pubrec(identifier(packet)))
        client.expect("PUBREL", packet_id=packet.packet_id)
    client.drop()
    client = server.connect(
        client.client_id, clean_start=False, session_present=True, session_expiry_interval=60
    )
    if pubrec:
        client.ack(client.expect("PUBREL", packet_id=packet.packet_id))
    else:
        client.ack(client.expect("PUBLISH", payload="once", packet_id=packet.packet_id, dup=True))
    for one in (client, *others):
        one.expect_nothing()


@TWICE
@pytest.mark.parametrize("pubrec", [False, True])
@pytest.mark.parametrize("interval", [0, 1])
def test_mqtt5_4_8_2_5__qos_2_ends_with_the_session(
    serve: Serve, unacknowledged: str, pubrec: bool, interval: int
) -> None:
    server = serve(shared_unacknowledged=unacknowledged)
    client, packet, others = one_delivery(server, 2, session_expiry_interval=interval)
    if pubrec:
        client.send(wire.pubrec(identifier(packet)))
        client.expect("PUBREL", packet_id=packet.packet_id)
    client.drop()
    server.advance(2)
    late = member(server, "late")
    back = server.connect(client.client_id, clean_start=False, session_present=False)
    for one in (late, back, *others):
        one.expect_nothing()


def test_mqtt5_4_8_2_5__clean_start_ends_it_too(server: Server) -> None:
    client, _, others = one_delivery(server, 2)
    client.drop()
    for one in (server.connect(client.client_id, session_present=False), *others):
        one.expect_nothing()


@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x97])
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt5_4_8_2_6__refused_is_discarded(server: Server, qos: int, reason: int) -> None:
    client, packet, others = one_delivery(server, qos)
    client.ack(packet, reason)
    for one in (client, *others):
        one.expect_nothing()
    client.drop()
    again = server.connect(client.client_id, clean_start=False, session_present=True)
    for one in (again, *others):
        one.expect_nothing()
