"""B01: which breach decides, and what happens then."""

from __future__ import annotations

import socket
import time

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Failing, Policy
from tests.conformance.marks import either_version
from tests.conformance.server import Server
from tests.conformance.wire import publish, subscribe

# ------------------------------------------------------------------------------- B01 which breach decides

TWICE = [(0x01, 0), (0x01, 0)]  # Payload Format Indicator twice: 0x82 by the property rules

# Two breaches in each packet; the code of the one that comes first on the ladder. Topic
# and values are read with the properties, so that there either may be the first.
LADDER: dict[str, tuple[bytes, int | set[int]]] = {
    "flags, length limit": (wire.packet(0x80, length=268_435_455), 0x81),
    "flags, value": (subscribe(1, ("t", 3), first=0x80), 0x81),
    "length limit, structure": (wire.packet(0x32, b"\xff\xff\0", length=268_435_455), 0x95),
    "structure, value": (wire.packet(0x32, b"\0\3a/+\0"), 0x81),
    "structure, property": (wire.packet(0x30, b"\0\1t\x20\1\0\1\0"), 0x81),
    "structure, utf-8": (wire.packet(0x32, b"\0\1\xff\0"), 0x81),
    "utf-8, property": (publish(b"\xff", properties=TWICE), 0x81),
    "utf-8, value": (subscribe(1, (b"\xff", 1), ("t", 3)), 0x81),
    "property, value": (publish("a/+", properties=TWICE), {0x82, 0x90}),
    "property, value of alias": (publish("t", properties=[(0x23, 0), *TWICE]), {0x82, 0x94}),
    "property, value of options": (subscribe(1, ("t", 3), properties=[(0x23, 1)]), 0x81),
    "property, value of filter": (subscribe(1, "a#", properties=[(0x0B, 1), (0x0B, 2)]), 0x82),
    "property, state": (publish("", properties=[(0x23, 9), *TWICE]), 0x82),
    "value, state": (publish("a/+", qos=2, packet_id=2), 0x90),
    "value, state and authorization": (publish("no", qos=2, packet_id=2, properties=[(0x01, 2)]), 0x82),
    "state, authorization": (publish("no", qos=2, packet_id=2), 0x93),
}


@pytest.mark.parametrize("what", LADDER)
def test_b01__the_first_breach_decides(serve: Serve, what: str) -> None:
    """The client has used up its Receive Maximum and may not publish to "no"."""
    server = serve(hooks=[Policy(publish={"no": 0x87})], receive_maximum=1)
    packet, codes = LADDER[what]
    client = server.connect("c")
    client.send(publish("t", qos=2, packet_id=1))
    client.expect("PUBREC", packet_id=1)
    client.send(packet)
    client.expect_close(*(codes if isinstance(codes, set) else {codes}))


CONNECT_LADDER: dict[str, tuple[bytes, int]] = {
    "flags, property": (wire.connect("c", first=0x11, properties=[(0x21, 0)]), 0x81),
    "structure, property": (wire.connect("c", flags=0x03, properties=[(0x21, 0)]), 0x81),
    "utf-8, value": (wire.connect(b"\xff", will=wire.will("a/+")), 0x81),
    "property, value": (wire.connect("c", properties=[(0x17, 1), (0x17, 1)], will=wire.will("a/+")), 0x82),
    "value, authorization": (wire.connect("c", will=wire.will("a/+"), user_name="u", password=b"x"), 0x90),
    "state, authorization": (wire.connect("", user_name="u", password=b"x"), 0x85),
}


@pytest.mark.parametrize("what", CONNECT_LADDER)
def test_b01__in_connect_too(serve: Serve, what: str) -> None:
    server = serve(hooks=[Policy(credentials={"u": b"p"})], zero_length_client_id=False)
    packet, code = CONNECT_LADDER[what]
    client = server.client()
    client.send(packet)
    client.expect_close(code)


# ------------------------------------------------------------------------------- B01 what happens then


def test_b01__connack_before_it(server: Server) -> None:
    """5.0: CONNACK with the code, Session Present 0 though there is a session, the end."""
    server.connect("c", session_expiry_interval=60).disconnect()
    for packet, code in ((wire.connect("c", clean_start=False, tail=b"\0"), 0x81),
                         (wire.connect("c", clean_start=False, properties=[(0x21, 0)]), 0x82)):  # fmt: skip
        client = server.client()
        client.send(packet, wire.pingreq())
        client.expect_close(code, session_present=False)
    server.connect("c", clean_start=False, session_present=True)


@either_version
@pytest.mark.parametrize(
    "raw",
    [
        wire.packet(0x10, b"\0\4MQT"),
        wire.packet(0x10, b"\0\4MQTT"),
        wire.packet(0x10),
        wire.connect("c", protocol_name="MQTX"),
        wire.pingreq(),
        wire.packet(0x00),
        wire.auth(0x18),
    ],
    ids=lambda raw: raw.hex(),
)
def test_b01__no_version_no_answer(server: Server, raw: bytes, version: int) -> None:
    server.expect_refused(raw, version=version)


@either_version
@pytest.mark.parametrize(
    "breach", [wire.packet(0x00), wire.packet(0xE1), publish("a/#", version=4), b"\xff" * 9]
)
def test_b01__disconnect_never_before_connack(server: Server, breach: bytes, version: int) -> None:
    """CONNECT and a breach in one segment."""
    client = server.client(version)
    client.send(wire.connect("c", version=version), breach)
    client.expect("CONNACK", reason_code=0)
    client.expect_close(0x81, 0x82, 0x90)


@pytest.mark.parametrize("breach", [wire.pingreq(), wire.packet(0x00), publish("t", b"x")])
def test_b01__connack_in_the_middle_of_authentication(serve: Serve, breach: bytes) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2)])
    client = server.client()
    client.send(wire.connect("c", properties=[(0x15, "X-TEST")]))
    client.expect("AUTH", reason_code=0x18)
    client.send(breach)
    client.expect_close(0x81, 0x82)


@either_version
def test_b01__stops_reading(server: Server, version: int) -> None:
    """What came before the breach is answered, what comes after it is not looked at."""
    client = server.connect("c", version)
    client.subscribe("t", qos=1)
    client.send(
        publish("t", b"x", version=version),
        publish("t", b"y", qos=1, packet_id=9, version=version),
        wire.pingreq(),
        wire.packet(0x00),
        publish("late", b"x", retain=True, version=version),
        wire.pingreq(),
    )
    client.expect("PUBLISH", payload="x")
    client.expect("PUBLISH", payload="y")
    client.expect("PUBACK", packet_id=9)
    client.expect("PINGRESP")
    client.expect_close(0x81, 0x82)
    assert server.retained() == []


def flooded(server: Server) -> tuple[Raw, int]:
    """A subscriber that has read nothing of the messages waiting for it, and how many could wait."""
    dropped, count = server.broker.stats.dropped, 12
    client, publisher = server.connect("c"), server.connect("p")
    client.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # and no growing
    client.subscribe("t")
    for _ in range(count):
        publisher.publish("t", b"x" * 1_000_000)
    return client, count - dropped["outbound_full"]


@pytest.mark.tcp_only("about the buffers of a socket")
def test_b01__what_is_queued_is_dropped(server: Server) -> None:
    """It would have to leave before DISCONNECT does."""
    client, waiting = flooded(server)
    client.send(wire.packet(0x00))
    server.wait_until(lambda: "c" not in server.broker.clients, "the end of c")
    received = 0
    while (packet := client.recv()).name == "PUBLISH":
        received += 1
    assert packet.name == "DISCONNECT" and packet.reason_code == 0x81
    assert 0 < received < waiting
    client.expect_close()


@pytest.mark.tcp_only("about the buffers of a socket")
def test_b01__disconnect_that_does_not_leave(server: Server) -> None:
    """A client that reads nothing does not hold its socket for longer than a second."""
    client, _ = flooded(server)
    link = server.broker.clients["c"]
    started = time.monotonic()
    client.send(wire.packet(0x00))
    server.wait_until(lambda: "c" not in server.broker.clients, "the end of c")
    server.run(link.wait_closed(), timeout=3)
    assert time.monotonic() - started < 1.5
    received = b""
    while chunk := client.transport.recv(1.0):
        received += chunk
    assert received.startswith(b"\x30") and not received.endswith(b"Malformed packet")


BREACHES: dict[str, tuple[dict[int, bytes], int]] = {
    "malformed": ({version: wire.packet(0x32, b"\0\1t") for version in (4, 5)}, 0x81),
    "too large": ({version: wire.packet(0x30, length=268_435_455) for version in (4, 5)}, 0x95),
    "not utf-8": ({version: publish(b"\xff", version=version) for version in (4, 5)}, 0x81),
    "protocol error": ({version: wire.connect("c", version=version) for version in (4, 5)}, 0x82),
    "topic": ({version: publish("a/#", version=version) for version in (4, 5)}, 0x90),
    "filter": ({version: subscribe(1, "a#", version=version) for version in (4, 5)}, 0x8F),
}


@either_version
@pytest.mark.parametrize("what", BREACHES)
def test_b01__others_see_only_the_will(server: Server, what: str, version: int) -> None:
    packets, code = BREACHES[what]
    server.expect_breach(packets[version], wire.pingreq(), codes=code, version=version)


@either_version
def test_b01__malformed_connect(server: Server, version: int) -> None:
    """3.1.1: no CONNACK for it; a well-formed one that is refused gets one."""
    raw = wire.connect("c", version=version, tail=b"\0")
    server.expect_refused(raw, codes=0x81 if version == 5 else (), version=version)


@pytest.mark.parametrize(("reason", "code"), [(0x85, 2), (0x88, 3), (0x86, 4), (0x87, 5)])
def test_b01__refused_connect(serve: Serve, reason: int, code: int) -> None:
    server = serve(hooks=[Policy(connect={"c": reason})])
    server.expect_refused(wire.connect("c", version=4), codes=code, version=4)
    server.expect_refused(wire.connect("c", version=5), codes=reason, version=5)


# Packets whose handler raises, and what a 5.0 client hears of it.
FAILING: dict[str, tuple[dict[int, bytes], str | None]] = {
    "publish qos 0": ({v: publish("boom", b"x", retain=True, version=v) for v in (4, 5)}, None),
    "publish qos 1": ({v: publish("boom", b"x", qos=1, packet_id=9, version=v) for v in (4, 5)}, "PUBACK"),
    "publish qos 2": ({v: publish("boom", b"x", qos=2, packet_id=9, version=v) for v in (4, 5)}, "PUBREC"),
    "subscribe": ({v: subscribe(9, "boom", version=v) for v in (4, 5)}, "SUBACK"),
    "unsubscribe": ({v: wire.unsubscribe(9, "boom", version=v) for v in (4, 5)}, "UNSUBACK"),
}


@pytest.mark.parametrize("what", FAILING)
def test_b01__handler_raises(serve: Serve, what: str) -> None:
    """5.0: 0x83 and on; 3.1.1: a transient error, which closes."""
    server = serve(hooks=[Failing("boom")])
    server.expect_errors()
    watcher, client = server.watch(), server.connect("c")
    packets, answer = FAILING[what]
    client.send(packets[5])
    if answer in ("PUBACK", "PUBREC"):
        client.expect(answer, packet_id=9, reason_code=0x83)
    elif answer is not None:
        client.expect(answer, packet_id=9, reason_codes=[0x83])
    client.expect_nothing()
    watcher.expect_nothing()
    assert server.retained() == []
    server.expect_breach(packets[4], codes=(), version=4)


@either_version
def test_b01__connect_handler_raises(serve: Serve, version: int) -> None:
    server = serve(hooks=[Failing("boom")])
    server.expect_errors()
    raw = wire.connect("boom", version=version)
    server.expect_refused(raw, codes=0x83 if version == 5 else (), version=version)
