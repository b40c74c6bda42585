"""MQTT 3.1.1, chapters 4, 6 and 7: operation, WebSocket, conformance."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker.config import Config, Tls
from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.transports import BINARY, CLOSE, CONTINUATION, PING, TEXT, WebSocket

WILL = wire.will("w/t", b"gone", qos=1)


def subscribed(server: Server, *filters: wire.Filter, qos: int = 2, client_id: str = "s") -> Raw:
    """A CleanSession 0 client of 3.1.1 with these subscriptions."""
    client = server.connect(client_id, 4, clean_start=False)
    client.subscribe(*filters, qos=qos)
    return client


def resume(server: Server, client_id: str = "s") -> Raw:
    return server.connect(client_id, 4, clean_start=False, session_present=True)


def publishes(topic: str, payloads: Iterable[bytes], qos: int) -> bytes:
    """A pipeline of PUBLISH packets with the identifiers 1, 2, 3, ..."""
    return b"".join(
        wire.publish(topic, payload, qos=qos, packet_id=number if qos else None, version=4)
        for number, payload in enumerate(payloads, 1)
    )


# ------------------------------------------------------------------------------- 4.1 session state


def test_mqtt311_4_1_0_1__kept_while_away(server: Server) -> None:
    subscribed(server, "t", "u/#").drop()
    publisher = server.connect("p", 4)
    publisher.publish("t", b"1", qos=1)
    server.advance(24 * 3600)
    publisher.publish("u/x", b"2", qos=2)
    again = resume(server)
    for message in again.expect_messages(b"1", b"2"):
        again.ack(message)
    publisher.publish("t", b"3", qos=1)
    again.expect_messages(b"3")


def test_mqtt311_4_1_0_1__qos_2_identifiers(server: Server) -> None:
    """Both ways, across two reconnects."""
    watcher, client = server.watch("up"), subscribed(server, "down")
    server.connect("p", 4).publish("down", b"x", qos=2)
    packet_id = client.expect("PUBLISH", dup=False).packet_id
    up = wire.publish("up", b"y", qos=2, packet_id=77, version=4)
    client.send(up)
    client.expect("PUBREC", packet_id=77)
    for _ in range(2):
        client.drop()
        client = resume(server)
        client.expect("PUBLISH", payload="x", packet_id=packet_id, dup=True)
        client.send(up)
        client.expect("PUBREC", packet_id=77)
    client.release(77)
    watcher.expect_messages(b"y")


def test_mqtt311_4_1_0_2__as_long_as_the_connection(serve: Serve) -> None:
    """A CleanSession 1 client stays as it is while others fill their queues for days."""
    server = serve(maximum_queued_messages=5, maximum_retained_messages=5)
    client, publisher = server.connect("c", 4), server.connect("p", 4)
    client.subscribe("t", qos=2)
    publisher.publish("t", b"1", qos=2)
    message = client.expect("PUBLISH", payload="1")
    client.send(wire.pubrec(message.packet_id or 0, version=4))
    client.expect("PUBREL", packet_id=message.packet_id)
    client.send(wire.publish("t", b"2", qos=2, packet_id=9, version=4))
    client.expect("PUBREC", packet_id=9)
    subscribed(server, "other").drop()
    for _ in range(3):
        publisher.send(publishes("other", [b"x" * 1000] * 20, qos=1))
        publisher.fence()
        publisher.inbox.clear()
        server.advance(24 * 3600)
    client.send(wire.pubcomp(message.packet_id or 0, version=4))
    client.expect_nothing()
    client.release(9)
    client.expect("PUBLISH", payload="2", qos=2)


# ------------------------------------------------------------------------------- 4.3 QoS


def test_mqtt311_4_3_1_1__qos_0(server: Server) -> None:
    publisher = server.connect("p", 4)
    publisher.publish("t", b"kept", retain=True)
    client = subscribed(server, "t", qos=0)
    publisher.publish("t", b"0")
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2, dup=True)
    assert [packet.first for packet in client.drain()] == [0x31, 0x30, 0x30, 0x30]
    client.drop()
    resume(server).expect_nothing()


def test_mqtt311_4_3_2_1__sender(server: Server) -> None:
    """First byte 32 or 33; resent without PUBACK, and not with it; the harness checks the identifiers."""
    publisher = server.connect("p", 4)
    publisher.publish("t", b"kept", qos=1, retain=True)
    client = subscribed(server, "t", qos=1)
    publisher.publish("t", b"a", qos=1)
    publisher.publish("t", b"b", qos=1)
    found = client.expect_messages(b"kept", b"a", b"b")
    assert [packet.first for packet in found] == [0x33, 0x32, 0x32]
    client.ack(found[1])
    client.drop()
    again = resume(server)
    resent = again.expect_messages(b"kept", b"b", dup=True)
    assert [packet.packet_id for packet in resent] == [found[0].packet_id, found[2].packet_id]


def test_mqtt311_4_3_2_2__puback_means_owned(server: Server) -> None:
    subscribed(server, "t").drop()
    publisher = server.connect("p", 4)
    publisher.send(wire.publish("t", b"x", qos=1, packet_id=7, version=4))
    publisher.expect("PUBACK", packet_id=7)
    publisher.reset()
    resume(server).expect_messages(b"x")


def test_mqtt311_4_3_2_2__the_same_identifier_again(server: Server) -> None:
    watcher, publisher = server.watch("t"), server.connect("p", 4)
    for dup in (False, True):
        publisher.send(wire.publish("t", b"x", qos=1, packet_id=7, dup=dup, version=4))
        publisher.expect("PUBACK", packet_id=7)
    watcher.expect_messages(b"x", b"x")


def test_mqtt311_4_3_3_1__sender(server: Server) -> None:
    client = subscribed(server, "t")
    server.connect("p", 4).publish("t", b"x", qos=2)
    first = client.recv()
    packet_id = first.packet_id or 0
    assert first.first == 0x34
    client.drop()
    client = resume(server)
    assert client.recv().raw == bytes([0x3C]) + first.raw[1:]
    client.send(wire.pubrec(packet_id, version=4))
    assert client.recv().raw == b"\x62\x02" + wire.two(packet_id)
    client.drop()
    client = resume(server)
    assert client.recv().raw == b"\x62\x02" + wire.two(packet_id)
    client.send(wire.pubcomp(packet_id, version=4))
    client.expect_nothing()
    client.drop()
    resume(server).expect_nothing()


def test_mqtt311_4_3_3_2__receiver(server: Server) -> None:
    watcher, publisher = server.watch("t"), server.connect("p", 4, clean_start=False)
    for dup in (False, True, True):
        publisher.send(wire.publish("t", b"x", qos=2, packet_id=9, dup=dup, version=4))
        publisher.expect("PUBREC", packet_id=9)
        publisher.drop()
        publisher = resume(server, "p")
    publisher.release(9)
    watcher.expect_messages(b"x")
    publisher.publish("t", b"y", qos=2, packet_id=9)
    watcher.expect_messages(b"y")
    publisher.release(9)
    publisher.release(1234)
    watcher.expect_nothing()


# ------------------------------------------------------------------------------- 4.4, 4.5 delivery


def test_mqtt311_4_4_0_1__resent_on_reconnect(server: Server) -> None:
    """With their identifiers; while the connection lives nothing is sent twice."""
    client, publisher = subscribed(server, "t"), server.connect("p", 4)
    for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 2)):
        publisher.publish("t", payload, qos=qos)
    one, two, three = (packet.packet_id or 0 for packet in client.expect_messages(b"1", b"2", b"3"))
    client.send(wire.pubrec(two, version=4))
    client.expect("PUBREL", packet_id=two)
    server.advance(3600, step=60)
    client.expect_nothing()
    client.drop()
    again = resume(server)
    again.expect("PUBLISH", payload="1", packet_id=one, dup=True)
    again.expect("PUBREL", packet_id=two)
    again.expect("PUBLISH", payload="3", packet_id=three, dup=True)
    again.expect_nothing()


def test_mqtt311_4_5_0_1__to_every_session(server: Server) -> None:
    clients = [subscribed(server, "t/#", qos=1, client_id=f"s{number}") for number in range(20)]
    for client in clients[10:]:
        client.drop()
    server.connect("p", 4).publish("t/x", b"x", qos=1)
    for number, client in enumerate(clients):
        reader = client if number < 10 else resume(server, f"s{number}")
        reader.expect_messages(b"x", qos=1)


# ------------------------------------------------------------------------------- 4.6 order


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt311_4_6_0_1__resent_in_order(server: Server, qos: int) -> None:
    """And before what was never sent; the second is acknowledged, so that identifiers have a gap."""
    client, publisher = subscribed(server, "t"), server.connect("p", 4)
    publisher.send(publishes("t", [b"1", b"x", b"2", b"3", b"4", b"5"], qos))
    publisher.fence()
    for packet_id in range(1, 7):
        if qos == 2:
            publisher.release(packet_id)
    client.ack(client.expect_messages(b"1", b"x", b"2", b"3", b"4", b"5")[1])
    client.drop()
    publisher.publish("t", b"new", qos=qos)
    again = resume(server)
    for payload in (b"1", b"2", b"3", b"4", b"5", b"new"):
        again.expect("PUBLISH", payload=payload, dup=payload != b"new", qos=qos)


def expect_answers(server: Server, qos: int, answer: str) -> Raw:
    """100 PUBLISH at once are acknowledged in their order."""
    client = server.connect("p", 4)
    order = random.Random(qos).sample(range(1, 65536), 100)
    client.send(*[wire.publish("t", b"x", qos=qos, packet_id=one, version=4) for one in order])
    for packet_id in order:
        client.expect(answer, packet_id=packet_id)
    return client


def test_mqtt311_4_6_0_2__puback_order(server: Server) -> None:
    expect_answers(server, 1, "PUBACK").expect_nothing()


def test_mqtt311_4_6_0_3__pubrec_order(server: Server) -> None:
    expect_answers(server, 2, "PUBREC").expect_nothing()


def test_mqtt311_4_6_0_4__pubrel_order(server: Server) -> None:
    client, publisher = subscribed(server, "t"), server.connect("p", 4)
    for payload in (b"a", b"b", b"c"):
        publisher.publish("t", payload, qos=2)
    a, b, c = (packet.packet_id or 0 for packet in client.expect_messages(b"a", b"b", b"c"))
    client.send(*[wire.pubrec(packet_id, version=4) for packet_id in (c, a, b)])
    for packet_id in (c, a, b):
        client.expect("PUBREL", packet_id=packet_id)
    client.expect_nothing()


def absorb(client: Raw) -> list[bytes]:
    """What has come for *client*, each flow carried through, all acknowledgements of a kind at once."""
    found = client.drain()
    client.send(*[wire.ack(0x40 if one.qos == 1 else 0x50, one.packet_id or 0) for one in found if one.qos])
    releases = client.drain()
    client.send(*[wire.pubcomp(one.packet_id or 0) for one in releases])
    client.fence()
    assert {one.name for one in releases} <= {"PUBREL"} and not client.inbox
    return [one.payload or b"" for one in found if one.name == "PUBLISH"]


def received_in_order(serve: Serve, qos: int) -> None:
    """1000 numbered messages from 3 publishers; the subscriber is away for a while twice."""
    server = serve(maximum_queued_messages=2000)
    client = subscribed(server, "t", qos=qos)
    publishers = [server.client(4, transport="tcp") for _ in range(3)]
    for number, publisher in enumerate(publishers):
        publisher.connect(f"p{number}")
    received: list[bytes] = []
    for part in range(5):
        if part % 2:
            client.drop()
        numbers = range(part * 67, part * 67 + 67)
        for who, publisher in enumerate(publishers):
            publisher.send(publishes("t", [b"%d %d" % (who, number) for number in numbers], qos))
        for publisher in publishers:
            publisher.fence()
            publisher.send(*[wire.pubrel(packet_id, version=4) for packet_id in range(1, 68) if qos == 2])
            publisher.fence()
            publisher.inbox.clear()
        client = resume(server) if part % 2 else client
        received += absorb(client)
    for who in range(3):
        mine = [int(one.split()[1]) for one in received if one.startswith(b"%d " % who)]
        gaps = set(range(67, 134)) | set(range(201, 268)) if qos == 0 else set()
        assert mine == [number for number in range(335) if number not in gaps]


def test_mqtt311_4_6_0_5__ordered_by_default(serve: Serve) -> None:
    received_in_order(serve, 1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_4_6_0_6__ordered_topic(serve: Serve, qos: int) -> None:
    received_in_order(serve, qos)


# ------------------------------------------------------------------------------- 4.7 topics


@pytest.mark.parametrize("topic", ["a/+", "#", "a+b", "+/b", "a#"])
def test_mqtt311_4_7_1_1__wildcards_in_topics(server: Server, topic: str) -> None:
    for qos in (0, 1, 2):
        raw = wire.publish(topic, b"x", qos=qos, retain=True, version=4)
        server.expect_breach(raw, codes=(), version=4)
    server.expect_refused(wire.connect("c", version=4, will=wire.will(topic)), version=4)
    assert server.retained() == []


def expect_filters(server: Server, topics: list[str], wanted: dict[str, list[str]]) -> None:
    """A subscriber of each filter gets these of *topics*: retained, in any order, then live."""
    publisher = server.connect("p", 4)
    for topic in topics:
        publisher.publish(topic, b"x", retain=True)
    for topic_filter, matching in wanted.items():
        client = server.connect("s", 4)
        client.subscribe(topic_filter)
        assert sorted(packet.topic_name or "" for packet in client.drain()) == sorted(matching), topic_filter
        publisher.send(*[wire.publish(topic, b"x", version=4) for topic in topics])
        publisher.fence()
        client.expect_messages(*[(topic, b"x") for topic in topics if topic in matching])


@pytest.mark.parametrize("topic_filter", ["a#", "a/#/b", "##", "#/a", "#/", "a/b#", "/#/"])
def test_mqtt311_4_7_1_2__misplaced_multi_level(server: Server, topic_filter: str) -> None:
    server.expect_breach(wire.subscribe(1, (topic_filter, 1), version=4), codes=(), version=4)
    server.expect_breach(wire.unsubscribe(1, topic_filter, version=4), codes=(), version=4)


def test_mqtt311_4_7_1_2__matches(server: Server) -> None:
    topics = ["a", "a/", "a/b", "a/b/c", "b", "/a", "A/b"]
    wanted = {
        "a/#": ["a", "a/", "a/b", "a/b/c"],
        "#": topics,
        "/#": ["/a"],
        "+/#": topics,
        "a/b/#": ["a/b", "a/b/c"],
    }
    expect_filters(server, topics, wanted)


@pytest.mark.parametrize("topic_filter", ["a+", "+a/b", "++", "a/+b", "+/b+", "+#", "#+"])
def test_mqtt311_4_7_1_3__part_of_a_level(server: Server, topic_filter: str) -> None:
    server.expect_breach(wire.subscribe(1, (topic_filter, 1), version=4), codes=(), version=4)
    server.expect_breach(wire.unsubscribe(1, topic_filter, version=4), codes=(), version=4)


def test_mqtt311_4_7_1_3__matches(server: Server) -> None:
    topics = ["a", "a/", "a/b", "a/b/c", "/x", "x"]
    wanted = {
        "a/+": ["a/", "a/b"],
        "/+": ["/x"],
        "+/+": ["a/", "a/b", "/x"],
        "+": ["a", "x"],
        "a/+/c": ["a/b/c"],
        "+/b/#": ["a/b", "a/b/c"],
    }
    expect_filters(server, topics, wanted)


def test_mqtt311_4_7_2_1__dollar_topics(server: Server) -> None:
    """Live and retained: filters that start with a wildcard find nothing."""
    server.run(server.broker.publish("$SYS/x", b"kept", retain=True))
    blind = {topic_filter: server.connect(topic_filter, 4) for topic_filter in ("#", "+/x", "+/#", "+/+")}
    for topic_filter, client in blind.items():
        client.subscribe(topic_filter)
        client.expect_nothing()
    seeing = {
        topic_filter: server.connect(topic_filter, 4) for topic_filter in ("$SYS/#", "$SYS/+", "$SYS/x")
    }
    for topic_filter, client in seeing.items():
        client.subscribe(topic_filter)
        found = [(one.topic_name, one.payload, one.retain) for one in client.drain()]
        assert ("$SYS/x", b"kept", True) in found, topic_filter
    server.run(server.broker.publish("$SYS/x", b"live"))
    for client in blind.values():
        client.expect_nothing()
    for client in seeing.values():
        client.expect_messages(("$SYS/x", "live"), retain=False)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_4_7_3_1__empty(server: Server, qos: int) -> None:
    for raw in (
        wire.publish("", b"x", qos=qos, version=4),
        wire.subscribe(1, ("", qos), version=4),
        wire.subscribe(1, ("t", qos), ("", qos), version=4),
        wire.unsubscribe(1, "", version=4),
    ):
        server.expect_breach(raw, codes=(), version=4)


@pytest.mark.parametrize("topic", ["a\0b", "\0", "a/\0"])
def test_mqtt311_4_7_3_2__null_character(server: Server, topic: str) -> None:
    for raw in (
        wire.publish(topic, b"x", version=4),
        wire.publish(topic, b"x", qos=1, version=4),
        wire.subscribe(1, (topic, 0), version=4),
        wire.unsubscribe(1, topic, version=4),
    ):
        server.expect_breach(raw, codes=(), version=4)
    server.expect_refused(wire.connect("c", version=4, will=wire.will(topic)), version=4)


@pytest.mark.parametrize("topic", ["a" * 65535, "é" * 32767 + "x"], ids=["ascii", "two bytes each"])
def test_mqtt311_4_7_3_3__65535_bytes(server: Server, topic: str) -> None:
    assert len(topic.encode()) == 65535
    client = server.connect("c", 4)
    client.subscribe(topic, qos=1)
    client.publish(topic, b"x", qos=1)
    client.expect("PUBLISH", topic_name=topic, payload="x")
    client.unsubscribe(topic)
    client.publish(topic, b"y")
    client.expect_nothing()


PAIRS = [
    ("\u00c5", "A\u030a"),
    ("A", "a"),
    ("a//b", "a/b"),
    ("a/", "a"),
    (" a", "a"),
    ("a ", "a"),
    ("a%2Fb", "a/b"),
    ("\u212b", "\u00c5"),
    ("/a", "a"),
    ("a\\b", "a/b"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_mqtt311_4_7_3_4__nothing_is_normalized(server: Server, pair: tuple[str, str]) -> None:
    publisher = server.connect("p", 4)
    clients = [subscribed(server, topic, qos=1, client_id=f"s{at}") for at, topic in enumerate(pair)]
    for topic in pair:
        publisher.publish(topic, topic, qos=1, retain=True)
    for topic, client in zip(pair, clients, strict=True):
        client.expect_messages((topic, topic))
    assert server.retained() == sorted((topic, topic.encode()) for topic in pair)


# ------------------------------------------------------------------------------- 4.8 errors

BREACHES: dict[str, bytes] = {
    "type 0": bytes.fromhex("00 00"),
    "type 15": bytes.fromhex("F0 00"),
    "second connect": wire.connect("c", version=4),
    "connack": bytes.fromhex("20 02 00 00"),
    "suback": bytes.fromhex("90 03 00 01 00"),
    "unsuback": bytes.fromhex("B0 02 00 01"),
    "pingresp": bytes.fromhex("D0 00"),
    "publish qos 3": wire.publish("t", packet_id=1, version=4, first=0x36),
    "publish dup qos 0": wire.publish("t", version=4, first=0x38),
    "publish identifier 0": wire.publish("t", qos=1, packet_id=0, version=4),
    "publish wildcard": wire.publish("t/#", b"x", version=4),
    "publish empty topic": wire.publish("", b"x", version=4),
    "publish not utf-8": wire.publish(b"\xff", b"x", version=4),
    "publish null character": wire.publish("a\0b", b"x", version=4),
    "publish cut off": wire.packet(0x32, b"\0\1t\0"),
    "puback flags": wire.puback(1, version=4, first=0x41),
    "puback length": wire.packet(0x40, b"\0\1\0"),
    "pubrec flags": wire.pubrec(1, version=4, first=0x51),
    "pubrel flags": wire.pubrel(1, version=4, first=0x60),
    "pubrel length": wire.packet(0x62, b"\0"),
    "pubcomp flags": wire.pubcomp(1, version=4, first=0x71),
    "pubcomp length": wire.packet(0x70, b"\0\1\0\0"),
    "subscribe flags": wire.subscribe(1, "t", version=4, first=0x80),
    "subscribe empty": wire.subscribe(1, version=4),
    "subscribe qos 3": wire.subscribe(1, ("t", 3), version=4),
    "subscribe reserved bits": wire.subscribe(1, ("t", 4), version=4),
    "subscribe identifier 0": wire.subscribe(0, "t", version=4),
    "subscribe bad filter": wire.subscribe(1, "a#", version=4),
    "subscribe not utf-8": wire.subscribe(1, b"\xff", version=4),
    "subscribe trailing byte": wire.subscribe(1, "t", version=4, tail=b"\0"),
    "unsubscribe flags": wire.unsubscribe(1, "t", version=4, first=0xA0),
    "unsubscribe empty": wire.unsubscribe(1, version=4),
    "unsubscribe not utf-8": wire.unsubscribe(1, b"\xff", version=4),
    "unsubscribe trailing byte": wire.unsubscribe(1, "t", version=4, tail=b"\0"),
    "unsubscribe identifier 0": wire.unsubscribe(0, "t", version=4),
    "pingreq flags": bytes.fromhex("C1 00"),
    "pingreq body": bytes.fromhex("C0 01 00"),
    "disconnect flags": bytes.fromhex("E1 00"),
    "disconnect body": bytes.fromhex("E0 01 00"),
    "length of five bytes": bytes.fromhex("30 80 80 80 80 01"),
    "length longer than needed": bytes.fromhex("C0 80 00"),
    "packet too large": wire.packet(0x30, b"", length=268_435_455),
}


@pytest.mark.parametrize("what", BREACHES)
def test_mqtt311_4_8_0_1__closes_its_own_connection(server: Server, what: str) -> None:
    """Silently, with the will; what follows in the segment is not processed; others notice nothing."""
    other, publisher = subscribed(server, "t", qos=1), server.connect("p", 4)
    server.expect_breach(BREACHES[what], wire.publish("t", b"after", version=4), codes=(), version=4)
    publisher.publish("t", b"x", qos=1)
    other.expect_messages(b"x")


class FailsOnce(HookBase):
    """The retained store and the authorization each fail once, for topic "t"."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.left = {"store": 1, "publish": 1}

    def _fail(self, what: str) -> None:
        if self.left[what]:
            self.left[what] = 0
            raise OSError("no space left, on purpose")

    async def store_retained(self, message: Any) -> None:
        self._fail("store")
        self.stored[message.topic_name] = message

    async def get_retained(self, topic_filter: str) -> Iterable[Any]:
        return self.stored.values()

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        if message.topic_name == "hook":
            self._fail("publish")


@pytest.mark.parametrize(("topic", "retain"), [("store", True), ("hook", False)])
def test_mqtt311_4_8_0_2__something_fails_once(serve: Serve, topic: str, retain: bool) -> None:
    server = serve(hooks=[FailsOnce()])
    server.expect_errors()
    raw = wire.publish(topic, b"x", qos=1, packet_id=5, retain=retain, version=4)
    server.expect_breach(raw, codes=(), version=4)
    watcher, client = server.watch(), server.connect("c", 4)
    client.send(raw)
    client.expect("PUBACK", packet_id=5)
    watcher.expect("PUBLISH", topic_name=topic, payload="x")
    watcher.expect_nothing()


def test_mqtt311_4_8_0_2__store_is_full(serve: Serve) -> None:
    server = serve(maximum_retained_messages=1)
    watcher, publisher = server.watch("t"), server.connect("p", 4)
    publisher.publish("first", b"x", retain=True)
    raw = wire.publish("t", b"x", qos=1, packet_id=5, retain=True, version=4)
    client = server.connect("c", 4, will=wire.will("t", b"gone"))
    client.send(raw)
    client.expect_close()
    watcher.expect_messages(b"gone")
    publisher.publish("first", b"", retain=True)
    again = server.connect("again", 4)
    again.send(raw)
    again.expect("PUBACK", packet_id=5)
    watcher.expect_messages(b"x")
    assert server.retained() == [("t", b"x")]


# ------------------------------------------------------------------------------- 6 WebSocket


def websocket(server: Server, **kwargs: Any) -> tuple[Raw, WebSocket]:
    client = server.client(4, transport="websocket", **kwargs)
    assert isinstance(client.transport, WebSocket)
    return client, client.transport


def expect_frames_end(stream: WebSocket, code: int) -> None:
    """A Close frame with *code* is all that comes."""
    frames = []
    while (found := stream.recv_frame(1.0)) is not None:
        frames.append(found)
        stream.send_frame(CLOSE, found[1][:2])
    assert [opcode for opcode, _ in frames] == [CLOSE] and frames[0][1][:2] == wire.two(code)


@pytest.mark.tcp_only("about WebSocket itself")
@pytest.mark.parametrize(("opcode", "code"), [(TEXT, 1003), (3, 1002), (7, 1002)])
def test_mqtt311_6_0_0_1__other_data_frames(server: Server, opcode: int, code: int) -> None:
    watcher = server.watch()
    client, stream = websocket(server)
    client.connect("c", will=WILL)
    stream.send_frame(opcode, wire.pingreq())
    expect_frames_end(stream, code)
    client.drop()
    watcher.expect_messages(("w/t", "gone"))


@pytest.mark.tcp_only("about WebSocket itself")
def test_mqtt311_6_0_0_1__text_frame_first(server: Server) -> None:
    stream = websocket(server)[1]
    stream.send_frame(TEXT, wire.connect("c", version=4))
    expect_frames_end(stream, 1003)
    server.connect("still-served", 4, reason=0)


@pytest.mark.tcp_only("about WebSocket itself")
def test_mqtt311_6_0_0_1__server_sends_binary(server: Server) -> None:
    stream = websocket(server)[1]
    stream.send_frame(BINARY, wire.connect("c", version=4))
    stream.send_frame(BINARY, wire.subscribe(1, ("t", 1), version=4) + wire.pingreq())
    stream.send_frame(BINARY, wire.publish("t", b"x" * 70_000, qos=1, packet_id=2, version=4))
    received = b""
    while len(received) < 4 + 5 + 2 + 4 + 70_000:
        frame = stream.recv_frame(2.0)
        assert frame is not None and frame[0] in (BINARY, CONTINUATION)
        received += frame[1]
    assert received.startswith(bytes.fromhex("20 02 00 00 90 03 00 01 01 D0 00"))


@pytest.mark.tcp_only("about WebSocket itself")
@pytest.mark.parametrize("way", ["bytes", "together", "fragments"])
def test_mqtt311_6_0_0_2__frames_have_no_meaning(server: Server, way: str) -> None:
    client, stream = websocket(server)
    data = [
        wire.connect("c", version=4),
        wire.subscribe(1, ("t", 1), version=4),
        wire.publish("t", b"x" * 200, qos=1, packet_id=2, version=4),
        wire.pingreq(),
    ]
    whole = b"".join(data)
    client.inspector.sent(whole)
    if way == "bytes":
        for byte in whole:
            stream.send_frame(BINARY, bytes([byte]))
    elif way == "together":
        stream.send_frame(BINARY, whole)
    else:
        pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
        for at, piece in enumerate(pieces):
            stream.send_frame(CONTINUATION if at else BINARY, piece, fin=at == len(pieces) - 1)
            stream.send_frame(PING, b"between")
            stream.pings.append(b"between")
    client.expect("CONNACK", reason_code=0)
    client.expect("SUBACK", packet_id=1, reason_codes=[1])
    client.expect("PUBLISH", payload=b"x" * 200, qos=1)
    client.expect("PUBACK", packet_id=2)
    client.expect("PINGRESP")
    client.drop()


@pytest.mark.tcp_only("about WebSocket itself")
@pytest.mark.parametrize("offer", [None, "chat", "MQTT", "mqtt5", "mqttv3.11"])
def test_mqtt311_6_0_0_3__mqtt_is_not_offered(server: Server, offer: str | None) -> None:
    client, stream = websocket(server, upgrade=False)
    assert stream.upgrade(offer) == 400
    client.drop()


@pytest.mark.tcp_only("about WebSocket itself")
def test_mqtt311_6_0_0_3__mqttv3_1(server: Server) -> None:
    client, stream = websocket(server, upgrade=False)
    assert stream.upgrade("mqttv3.1") == 101
    assert stream.header("Sec-WebSocket-Protocol") == ["mqttv3.1"]
    client.connect("c", version=3, reason=0)
    client.expect_nothing()


@pytest.mark.tcp_only("about WebSocket itself")
@pytest.mark.parametrize("offer", ["mqtt", "mqtt, mqttv3.1", "mqttv3.1, mqtt", "chat, mqtt", "chat,mqtt , x"])
def test_mqtt311_6_0_0_4__mqtt_is_returned(server: Server, offer: str) -> None:
    client, stream = websocket(server, upgrade=False)
    assert stream.upgrade(offer) == 101
    assert stream.header("Sec-WebSocket-Protocol") == ["mqtt"]
    client.connect("c", reason=0)


# ------------------------------------------------------------------------------- 7 conformance


def test_mqtt311_7_0_0_1__no_outbound_connections(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no bridge in this broker: it is a server only, and connects to nobody.

    Another broker's bridge may connect to it as a client, and is served; meanwhile the broker's loop
    is asked for no connection, and a listener that a bridge could find gets none.
    """
    asked: list[str] = []
    for name in ("create_connection", "create_unix_connection", "sock_connect"):
        monkeypatch.setattr(server._thread.loop, name, lambda *args, name=name, **kwargs: asked.append(name))
    with socket.create_server(("127.0.0.1", 0)) as peer:
        peer.setblocking(False)
        local = subscribed(server, "#", qos=1, client_id="local")
        bridge = server.client(4)
        bridge.send(wire.connect("bridge", version=4, level=0x84, clean_start=False))
        bridge.expect("CONNACK", reason_code=0)
        bridge.subscribe("#", qos=1)
        bridge.publish("t", b"from there", qos=1)
        local.expect("PUBLISH", payload="from there")
        local.publish("t", b"from here", qos=1)
        bridge.expect("PUBLISH", payload="from here")
        server.advance(60, step=5)
        with pytest.raises(BlockingIOError):
            peer.accept()
    assert asked == []


def test_mqtt311_7_0_0_2__nothing_beyond_3_1_1(server: Server) -> None:
    """A life with default settings and plain 3.1.1; the harness checks the format of every packet."""
    one, two = server.client(4), server.client(4)
    one.send(bytes.fromhex("10 0D 00 04 4D 51 54 54 04 00 00 00 00 01 61"))
    assert one.recv().raw == bytes.fromhex("20 02 00 00")
    one.send(bytes.fromhex("82 08 00 01 00 03 74 2F 2B 02"))
    assert one.recv().raw == bytes.fromhex("90 03 00 01 02")
    two.connect("b", will=wire.will("t/w", b"gone", qos=1), keep_alive=60)
    two.publish("t/0", b"0")
    two.publish("t/1", b"1", qos=1, retain=True)
    two.publish("t/2", b"2", qos=2)
    found = one.expect_messages(("t/0", "0"), ("t/1", "1"), ("t/2", "2"), retain=False)
    assert [packet.qos for packet in found] == [0, 1, 2]
    for packet in found[1:]:
        one.ack(packet)
    two.drop()
    one.ack(one.expect("PUBLISH", topic_name="t/w", payload="gone"))
    one.unsubscribe("t/+")
    one.subscribe("#", qos=0)
    one.expect_messages(("t/1", "1"), retain=True)
    one.disconnect()
    resume(server, "a").expect_nothing()


def tls_server(serve: Serve, folder: Path) -> tuple[Server, ssl.SSLContext]:
    authority = trustme.CA()
    pem = folder / "server.pem"
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    listen = ("tcp://127.0.0.1:0", "tls://127.0.0.1:0", "ws://127.0.0.1:0/mqtt")
    return serve(Config(listen=listen, tls=Tls(certificate=str(pem)))), context


@pytest.mark.tcp_only("takes each transport by itself")
def test_mqtt311_7_1_1_1__every_transport(serve: Serve, tmp_path: Path) -> None:
    server, context = tls_server(serve, tmp_path)
    for transport in ("tcp", "tls", "websocket"):
        client = server.client(4, transport=transport, context=context if transport == "tls" else None)
        client.connect("c", reason=0)
        client.subscribe("t", qos=1)
        client.publish("t", b"x" * 100_000, qos=1)
        client.expect("PUBLISH", payload=b"x" * 100_000)
        client.disconnect()


@pytest.mark.tcp_only("takes each transport by itself")
@pytest.mark.parametrize("way", ["tcp", "tls", "websocket"])
def test_mqtt311_7_1_1_1__split_at_every_boundary(serve: Serve, tmp_path: Path, way: str) -> None:
    server, context = tls_server(serve, tmp_path)
    data = wire.connect("c", version=4) + wire.subscribe(1, ("t", 1), version=4)
    data += wire.publish("t", b"x", qos=1, packet_id=2, version=4) + wire.pingreq()
    for cut in range(1, len(data)):
        client = server.client(4, transport=way, context=context if way == "tls" else None)
        client.send(data[:cut])
        client.send(data[cut:])
        for kind in ("CONNACK", "SUBACK", "PUBLISH", "PUBACK", "PINGRESP"):
            client.expect(kind)
        client.drop(wait=False)
