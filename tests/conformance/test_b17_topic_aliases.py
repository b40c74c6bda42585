"""B17: Topic Aliases."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Codes, Server
from tests.conformance.sessions import resume, subscribed


def test_b17__announced(serve: Serve) -> None:
    client = serve().connect("c")
    assert client.connack is not None and 32 <= client.connack.properties["topic_alias_maximum"] <= 65535
    client = serve(topic_alias_maximum=7).connect("c")
    assert client.connack is not None and client.connack.properties["topic_alias_maximum"] == 7


def test_b17__each_direction_has_its_own(server: Server) -> None:
    client, other = server.connect("c", topic_alias_maximum=5), server.connect("o")
    client.subscribe("in")
    other.subscribe("out")
    client.publish("out", b"1", properties=wire.alias(1))
    other.publish("in", b"2")
    client.expect("PUBLISH", sent_topic_name="in", topic_alias=1)
    client.publish("", b"3", properties=wire.alias(1))
    other.publish("in", b"4")
    client.expect("PUBLISH", topic_name="in", sent_topic_name="", topic_alias=1, payload="4")
    other.expect_messages(("out", "1"), ("out", "3"), topic_alias=None)


def test_b17__each_connection_has_its_own(server: Server) -> None:
    watcher, clients = server.watch(), [server.connect(f"c{at}") for at in range(2)]
    for at, client in enumerate(clients):
        client.publish(f"t/{at}", b"x", properties=wire.alias(1))
    for client in clients:
        client.publish("", b"x", properties=wire.alias(1))
    watcher.expect_messages(("t/0", "x"), ("t/1", "x"), ("t/0", "x"), ("t/1", "x"))
    clients[0].drop()
    again = server.connect("c0")
    again.send(wire.publish("", b"x", properties=wire.alias(1)))
    again.expect_close(0x82)


def test_b17__never_stored_with_a_message(server: Server) -> None:
    subscribed(server, "t", qos=1).drop()
    publisher = server.connect("p")
    for name in ("t", ""):
        publisher.publish(name, b"x", 1, retain=True, properties=wire.alias(9))
    resume(server).expect_messages(("t", "x"), ("t", "x"), topic_alias=None)
    server.late().expect_messages(("t", "x"), topic_alias=None)


@pytest.mark.parametrize(
    ("topic_name", "number", "codes"),
    [
        ("", 65535, 0x94),  # the range comes before the mapping
        ("no", 65535, 0x94),  # and before the authorization
        ("a/+", 0, (0x90, 0x94)),  # both break a rule of the value alone
        ("a/+", 65535, (0x90, 0x94)),
        ("", 3, 0x82),
        ("a/+", 3, 0x90),
    ],
)
def test_b17__order_of_inbound_checks(serve: Serve, topic_name: str, number: int, codes: Codes) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    raw = wire.publish(topic_name, b"x", qos=1, packet_id=1, properties=wire.alias(number))
    server.expect_breach(raw, codes=codes)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b17__set_by_a_refused_publish(serve: Serve, qos: int) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    client = server.connect("c")
    for name in ("no", "", "$reserved", ""):
        refused = 0x90 if name == "$reserved" else 0x87
        client.publish(name, b"x", qos, properties=wire.alias(1), reason=refused if name else (0x87, 0x90))
    client.expect_nothing()


def test_b17__set_by_a_repeat(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c")
    for topic_name, number in (("a", 1), ("b", 2), ("", 2)):
        client.send(wire.publish(topic_name, b"x", qos=2, packet_id=5, properties=wire.alias(number)))
        client.expect("PUBREC", packet_id=5, reason_code=0x00)
    client.release(5)
    for number in (1, 2):
        client.publish("", b"y", 1, properties=wire.alias(number))
    watcher.expect_messages(("a", "x"), ("a", "y"), ("b", "y"))


@pytest.mark.parametrize(("client_maximum", "setting", "limit"), [(2, 64, 2), (10, 3, 3), (65535, 64, 64)])
def test_b17__outbound_limit(serve: Serve, client_maximum: int, setting: int, limit: int) -> None:
    """The lower of the client's maximum and the setting; first use with the topic, later ones without."""
    server = serve(outbound_topic_alias_maximum=setting)
    client = server.connect("s", topic_alias_maximum=client_maximum)
    client.subscribe("#")
    publisher = server.connect("p")
    topics = [f"t/{at}" for at in range(limit)]
    for first in (True, False, False):
        publisher.send(*(wire.publish(name, b"x") for name in topics))
        publisher.fence()
        found = client.expect_messages(*((name, "x") for name in topics))
        assert [packet.sent_topic_name for packet in found] == (topics if first else [""] * limit)
        assert {packet.properties["topic_alias"] for packet in found} == set(range(1, limit + 1))


def test_b17__least_recently_used_is_mapped_anew(server: Server) -> None:
    client = server.connect("s", topic_alias_maximum=2)
    client.subscribe("#", qos=2)
    publisher, aliases = server.connect("p"), []
    for name, with_topic in (("a", 1), ("b", 1), ("a", 0), ("c", 1), ("a", 0), ("b", 1), ("a", 0), ("c", 1)):
        publisher.publish(name, b"x", 1)
        packet = client.expect("PUBLISH", topic_name=name, sent_topic_name=name if with_topic else "")
        client.ack(packet)
        aliases.append(packet.properties["topic_alias"])
    assert aliases[0] == aliases[2] == aliases[4] == aliases[6]
    assert set(aliases[1::2]) == {3 - aliases[0]}


@pytest.mark.parametrize("clean_start", [True, False])
def test_b17__full_topic_after_a_reconnect(server: Server, clean_start: bool) -> None:
    client, publisher = subscribed(server, "#", topic_alias_maximum=9), server.connect("p")
    publisher.publish("a", b"1", 1)
    publisher.publish("a", b"2", 1)
    client.expect("PUBLISH", sent_topic_name="a")
    client.expect("PUBLISH", sent_topic_name="", topic_name="a")
    client.drop()
    client = server.connect("s", clean_start=clean_start, topic_alias_maximum=9)
    if clean_start:
        client.subscribe("#")
        publisher.publish("a", b"1")
        publisher.publish("a", b"2")
    found = client.expect_messages(("a", "1"), ("a", "2"))
    assert [packet.sent_topic_name for packet in found] == ["a", ""]


def test_b17__a_dropped_packet_defines_nothing(server: Server) -> None:
    """Too large for the client, or expired: the next one brings the topic."""
    client = subscribed(server, "#", maximum_packet_size=60, topic_alias_maximum=9, receive_maximum=1)
    publisher = server.connect("p")
    for qos in (0, 1):
        publisher.publish(f"large/{qos}", b"x" * 60, qos)
        for sent in (f"large/{qos}", ""):
            publisher.publish(f"large/{qos}", b"small", qos)
            packet = client.expect("PUBLISH", payload="small", sent_topic_name=sent)
            if qos:
                client.ack(packet)
    publisher.publish("blocks", b"x", 1)
    publisher.publish("expires", b"x", 1, message_expiry_interval=5)
    blocking = client.expect("PUBLISH", topic_name="blocks")
    server.advance(6)
    client.ack(blocking)
    publisher.publish("expires", b"x", 1)
    client.expect("PUBLISH", sent_topic_name="expires")


def test_b17__size_of_a_packet_with_an_alias_only(server: Server) -> None:
    """Too large with its topic, small enough without: it comes once the alias is known, not before."""
    name = "long/" * 10
    client = subscribed(server, "#", maximum_packet_size=70, topic_alias_maximum=9)
    publisher = server.connect("p")
    publisher.publish(name, b"x" * 60)
    publisher.publish(name, b"defines")
    publisher.publish(name, b"x" * 60)
    client.expect("PUBLISH", sent_topic_name=name, payload="defines")
    packet = client.expect("PUBLISH", topic_name=name, sent_topic_name="", payload=b"x" * 60)
    assert len(packet.raw) == 2 + 2 + 4 + 60
    client.expect_nothing()
