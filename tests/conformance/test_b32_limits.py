"""B32: limits, and defence against those who mean no good."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.codes import QUOTA_EXCEEDED, TOO_LARGE
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import BIG, slow_reader
from tests.conformance.hooks import Dropped, Policy
from tests.conformance.server import Server
from tests.conformance.sessions import offline, resume


def refused_connect(server: Server, client_id: str, *codes: int, version: int = 5, **connect: Any) -> None:
    client = server.client(version)
    client.send(wire.connect(client_id, version=version, **connect))
    client.expect_close(*codes)
    client.close()


def test_b32__connections_in_all(serve: Serve) -> None:
    server = serve(maximum_connections=2)
    first, second = server.connect("a"), server.connect("b")
    refused_connect(server, "c", QUOTA_EXCEEDED)
    refused_connect(server, "c", 3, version=4)
    again_there = server.connect("b")  # a takeover is no connection more
    second.expect_close(0x8E)
    first.disconnect()
    server.connect("c").expect_nothing()
    again_there.expect_nothing()


def test_b32__connections_per_address(serve: Serve) -> None:
    server = serve(maximum_connections_per_address=2)
    first, second = server.connect("a"), server.connect("b")
    third = server.client(transport="tcp")
    third.send(wire.connect("c"))
    third.expect_close()
    first.disconnect()
    server.wait_until(lambda: len(server.broker.clients) == 1)
    server.connect("c").expect_nothing()
    second.expect_nothing()


def test_b32__connections_per_user(serve: Serve) -> None:
    server = serve(maximum_connections_per_user=2)
    first, _ = (server.connect(name, user_name="u") for name in "ab")
    refused_connect(server, "c", QUOTA_EXCEEDED, user_name="u")
    refused_connect(server, "c", 3, version=4, user_name="u")
    server.connect("d", user_name="other").expect_nothing()
    for name in "efg":
        server.connect(name).expect_nothing()
    server.connect("b", user_name="u").expect_nothing()
    first.drop()
    server.connect("c", user_name="u").expect_nothing()
    refused_connect(server, "a", QUOTA_EXCEEDED, user_name="u")


def test_b32__connect_rate(serve: Serve) -> None:
    server = serve(maximum_connect_rate=3)
    for n in range(3):
        server.connect(f"{n}").expect_nothing()
    refused_connect(server, "no", 0x9F)
    refused_connect(server, "no", version=4)
    server.advance(1)
    for n in range(3):
        server.connect(f"again {n}").expect_nothing()
    refused_connect(server, "no", 0x9F)
    server.advance(0.4)
    server.connect("one more").expect_nothing()
    refused_connect(server, "no", 0x9F)


def test_b32__packet_size(server: Server) -> None:
    """1 MiB by default."""
    client = server.connect("c")
    assert client.connack is not None
    assert client.connack.properties["maximum_packet_size"] == 1 << 20
    raw = wire.publish("t", bytes((1 << 20) - 8))
    assert len(raw) == 1 << 20
    client.send(raw)
    client.expect_nothing()
    server.expect_breach(wire.publish("t", bytes((1 << 20) - 7)), codes=TOO_LARGE)


def test_b32__subscriptions_per_session(serve: Serve) -> None:
    server = serve(maximum_subscriptions=3)
    for version, code in ((5, QUOTA_EXCEEDED), (4, 0x80)):
        client = server.connect(f"c{version}", version)
        client.subscribe("1", "2")
        client.subscribe("2", "3", "4", "5", granted=[0, 0, code, code])
        client.unsubscribe("1")
        client.subscribe("4", "3", granted=[0, 0])


def test_b32__filters_in_one_packet(serve: Serve) -> None:
    server = serve(maximum_filters=3)
    client = server.connect("c")
    client.subscribe("1", "2", "3")
    client.subscribe("4", "5", "6", "7", granted=[QUOTA_EXCEEDED] * 4)
    client.unsubscribe("1", "2", "3", "4", reasons=[0x80] * 4)  # UNSUBACK knows no 0x97
    server.connect("p").publish("2", b"x", 1, reason=0)
    client.expect("PUBLISH", topic_name="2")


def test_b32__retained_messages(serve: Serve) -> None:
    server = serve(maximum_retained_messages=2, maximum_retained_bytes=1000)
    client = server.connect("c")
    for topic, size, code in (
        ("a", 10, 0x10), ("b", 2000, QUOTA_EXCEEDED), ("b", 10, 0x10), ("c", 10, QUOTA_EXCEEDED),
        ("b", 900, 0x10), ("a", 100, QUOTA_EXCEEDED), ("b", 0, 0x10), ("c", 10, 0x10),
    ):  # fmt: skip
        for qos in (1, 2):
            client.publish(topic, b"x" * size, qos, retain=True, reason=code)
    client.publish("d", b"x", 0, retain=True)
    assert [topic for topic, _ in server.retained()] == ["a", "c"]


def test_b32__topic_levels(serve: Serve) -> None:
    server = serve(maximum_topic_levels=3)
    client = server.connect("c")
    client.subscribe("a/+/#", "a/b/c/d", "$share/g/a/b/c", "$share/g/a/b/c/d", granted=[0, 0x8F, 0, 0x8F])
    for qos in (1, 2):
        client.publish("x/y/z", b"", qos, reason=0x10)
        client.publish("x/y/z/", b"", qos, reason=0x90)
    client.publish("x/y/z/", b"kept", 0, retain=True)
    assert server.retained() == []
    refused_connect(server, "w", 0x90, will=wire.will("x/y/z/"))


def test_b32__topic_and_client_id_lengths(serve: Serve) -> None:
    server = serve(maximum_topic_bytes=10, maximum_client_id_bytes=23)
    client = server.connect("c" * 23)
    client.publish("é" * 5, b"", 1, reason=0x10)
    client.publish("é" * 6, b"", 1, reason=0x90)
    client.subscribe("é" * 5, "é" * 6, granted=[0, 0x8F])
    refused_connect(server, "c" * 24, 0x85)


def test_b32__topic_aliases(serve: Serve) -> None:
    server = serve(topic_alias_maximum=2)
    client = server.connect("c")
    assert client.connack is not None
    assert client.connack.properties["topic_alias_maximum"] == 2
    client.publish("t", b"x", topic_alias=2)
    server.expect_breach(wire.publish("t", b"x", properties={"topic_alias": 3}), codes=0x94)


def test_b32__user_properties(serve: Serve) -> None:
    server = serve(maximum_user_properties=3)
    pairs = {"user_property": [("k", "v")] * 3}
    many = [(0x26, ("k", "v"))] * 4
    client = server.connect("c", **pairs)
    client.publish("t", b"x", 1, **pairs)
    client.subscribe("t", **pairs)
    client.unsubscribe("t", **pairs)
    for raw in (
        wire.publish("t", b"x", properties=many), wire.subscribe(1, "t", properties=many),
        wire.unsubscribe(1, "t", properties=many),
    ):  # fmt: skip
        server.expect_breach(raw, codes=QUOTA_EXCEEDED)
    refused_connect(server, "x", QUOTA_EXCEEDED, properties=many)


def test_b32__sessions_and_bytes(serve: Serve) -> None:
    server = serve(maximum_sessions=3, maximum_bytes=76_000)
    for name in "ab":
        offline(server, client_id=name)
    client = server.connect("c")
    refused_connect(server, "d", QUOTA_EXCEEDED)
    refused_connect(server, "d", 3, version=4)
    # Twice 10 kB each; a session takes 2 kB, a message 300 bytes more, a connection 0.5 kB and more.
    for _ in range(10):
        client.publish("t", b"x" * 10_000, 1, reason=0)
    client.disconnect()
    assert len(resume(server, "a").drain()) + len(resume(server, "b").drain()) == 6


def test_b32__write_buffer(serve: Serve) -> None:
    """What waits for a socket that takes nothing is bounded, in bytes and in packets."""
    for setting in ({"maximum_outbound_bytes": BIG}, {"maximum_outbound_packets": 2}):
        dropped = Dropped()
        server = serve(hooks=[dropped], **setting)
        client = slow_reader(server)
        assert ("slow", "outbound_full") in dropped.events
        assert int(server.sys_value("dropped/outbound_full")) == len(dropped.events)
        assert len(client.drain()) + len(dropped.events) == 64


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("begun", [b"\x30", b"\x30\x80", b"\x30\x0a\x00\x01t", b"\xc0"])
def test_b32__a_packet_must_be_whole_in_time(server: Server, version: int, begun: bytes) -> None:
    """30 s, also when more bytes of it come and nothing is wrong with them."""
    client = server.connect("c", version)
    client.send(wire.pingreq(), begun)
    client.expect("PINGRESP")
    server.advance(29)
    client.send(b"\x00" if begun[-1:] == b"t" else b"")
    server.settle()
    server.advance(2)
    client.expect_close(0x82)


def test_b32__unfinished_packet_and_keep_alive(server: Server) -> None:
    """1.5 times Keep Alive comes first: bytes of an unfinished packet do not count as life."""
    client = server.connect("c", keep_alive=4)
    client.send(b"\x30\x0a")
    server.advance(5)
    client.send(b"\x00")
    server.settle()
    server.advance(1.5)
    client.expect_close(0x8D)


def test_b32__slow_but_whole_packets_are_fine(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t")
    for _ in range(4):
        for byte in wire.publish("t", b"x"):
            client.send(bytes([byte]))
            server.settle()
            server.advance(3)
    client.expect_messages("x", "x", "x", "x")


def many(count: int, what: str = "{}") -> Iterator[str]:
    return (what.format(n) for n in range(count))


PATIENCE = 20.0  # seconds that an answer may take which costs the processor much, on a busy machine
COSTLY: dict[str, tuple[Callable[[], bytes], dict[str, Any] | int | None]] = {
    # a packet within the limits of MQTT, and the answer: its fields, a code of DISCONNECT, or none
    "levels": (lambda: wire.publish("/" * 65535), None),
    "levels of a filter": (lambda: wire.subscribe(1, "+/" * 32767), {"reason_codes": [0x8F]}),
    "filters": (lambda: wire.subscribe(1, *many(10_000)), {"reason_codes": [QUOTA_EXCEEDED] * 10_000}),
    "more filters": (lambda: wire.subscribe(1, *many(80_000, "{}/+/#")), QUOTA_EXCEEDED),
    "one filter": (lambda: wire.subscribe(1, *many(150_000, "a/#")), QUOTA_EXCEEDED),
    "unsubscribe": (lambda: wire.unsubscribe(1, *many(10_000)), {"reason_codes": [0x80] * 10_000}),
    "more to unsubscribe": (lambda: wire.unsubscribe(1, *many(120_000)), QUOTA_EXCEEDED),
    "user properties": (
        lambda: wire.publish("t", properties=[(0x26, ("", ""))] * 200_000), QUOTA_EXCEEDED
    ),
    "identifiers": (lambda: wire.publish("t", properties=[(0x0B, 1)] * 400_000), QUOTA_EXCEEDED),
    "large properties": (lambda: wire.puback(9, 0, [(0x26, ("k" * 60_000, "v" * 60_000))] * 8), None),
    "code points": (lambda: wire.publish("t", properties=[(0x03, "\u0001" * 65_000)]), 0x81),
    "tiny packets": (lambda: wire.publish("t") * 20_000, None),
}  # fmt: skip


@pytest.mark.tcp_only("it measures time")
@pytest.mark.parametrize("name", COSTLY)
def test_b32__no_packet_costs_much(server: Server, name: str) -> None:
    """All of the broker and of this client together take less than a second of the processor for it."""
    make, answer = COSTLY[name]
    packet, client = make(), server.connect("c")
    start = time.process_time()
    client.send(packet, wire.pingreq())
    if isinstance(answer, int):
        client.expect_close(answer, timeout=PATIENCE)
    else:
        if answer is not None:
            client.expect("SUBACK" if packet[0] == 0x82 else "UNSUBACK", **answer)
        client.expect("PINGRESP")
    assert time.process_time() - start < 1.0


@pytest.mark.tcp_only("it measures time")
def test_b32__matching_does_not_explode(serve: Serve) -> None:
    """Deep topics against every mixture of + and # that matches them."""
    server = serve(maximum_topic_levels=65535)
    client = server.connect("c")
    levels = 14
    mixed = [
        "/".join("+" if n >> bit & 1 else "a" for bit in range(levels)) for n in range(0, 1 << levels, 19)
    ]
    client.subscribe(*mixed)
    client.subscribe("+/" * 30_000 + "#", "a/" * 30_000 + "+")
    publisher = server.connect("p")
    start = time.process_time()
    publisher.publish("/".join("a" * levels), b"x", 1, reason=0)
    publisher.publish("a/" * 30_000 + "b", b"x", 1, reason=0)
    publisher.publish("/" * 30_001, b"x", 1, reason=0)
    assert time.process_time() - start < 1.0
    assert len(client.drain()) == 3


@pytest.mark.parametrize(
    "raw", ["30 FF FF FF 7F", "82 FF FF FF 7F 00 01 FF FF FF 7F", "10 FF FF FF 7F 00 04"]
)
def test_b32__lengths_are_checked_before_anything_is_held(server: Server, raw: str) -> None:
    """256 MiB are announced; the answer is there before the second byte of the body."""
    if raw.startswith("10"):
        server.expect_refused(bytes.fromhex(raw) + b"MQTT\x05", codes=TOO_LARGE)
    else:
        server.expect_breach(bytes.fromhex(raw), codes=TOO_LARGE)


def test_b32__inner_lengths_are_checked(server: Server) -> None:
    """A string or property list that says to be longer than its packet."""
    for raw in ("30 05 FF FF 74 00 00", "30 07 00 01 74 FF FF FF 7F", "82 06 00 01 FF FF FF 7F"):
        server.expect_breach(bytes.fromhex(raw), codes=0x81)


def test_b32__everything_counted_is_in_the_metrics(serve: Serve) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87}, connect={"banned": 0x8A})], maximum_queued_messages=1)
    offline(server)
    client = server.connect("c", maximum_packet_size=100)
    client.subscribe("big")
    publisher = server.connect("p")
    refused_connect(server, "banned", 0x8A)
    for topic, qos, payload in (
        ("no", 1, "x"), ("t", 1, "queued"), ("t", 1, "queue_full"), ("big", 0, "x" * 200), ("t", 0, "offline")
    ):  # fmt: skip
        publisher.publish(topic, payload, qos, retain=topic == "t", reason=(0, 0x10, 0x87))
    for name, value in {
        "dropped/refused": "1", "dropped/queue_full": "1", "dropped/packet_too_large": "1",
        "dropped/offline": "1", "publish/messages/dropped": "4", "retained messages/count": "1",
        "connections/refused": "1", "clients/disconnected": "1", "publish/messages/received": "5",
    }.items():  # fmt: skip
        assert server.sys_value(name) == value, name
    for name in (
        "bytes/received", "bytes/sent", "messages/received", "messages/sent", "connections/total",
        "clients/connected", "clients/total", "subscriptions/count", "store/messages/bytes",
    ):  # fmt: skip
        assert int(server.sys_value(name)) > 0, name
