"""B01, B26 and B27: what an error gets, refusals by authorization, and messages between versions."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from broker.errors import NotAuthorized
from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Dropped, EnhancedAuth, Failing, Policy
from tests.conformance.server import Server
from tests.conformance.wire import publish, subscribe

both_versions = pytest.mark.parametrize("version", [4, 5])
every_qos = pytest.mark.parametrize("qos", [0, 1, 2])

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


@both_versions
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


@both_versions
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


@both_versions
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


@both_versions
@pytest.mark.parametrize("what", BREACHES)
def test_b01__others_see_only_the_will(server: Server, what: str, version: int) -> None:
    packets, code = BREACHES[what]
    server.expect_breach(packets[version], wire.pingreq(), codes=code, version=version)


@both_versions
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


@both_versions
def test_b01__connect_handler_raises(serve: Serve, version: int) -> None:
    server = serve(hooks=[Failing("boom")])
    server.expect_errors()
    raw = wire.connect("boom", version=version)
    server.expect_refused(raw, codes=0x83 if version == 5 else (), version=version)


# ------------------------------------------------------------------------------- B26 refused by authorization


def guarded(serve: Serve, **settings: Any) -> tuple[Server, Dropped]:
    """A broker where nobody may publish to "no", subscribe to "no/#" or give up "stay"."""
    dropped = Dropped()
    policy = Policy(publish={"no": 0x87}, subscribe={"no/#": 0x87}, unsubscribe={"stay": 0x87})
    return serve(hooks=[policy, dropped], **settings), dropped


@both_versions
@every_qos
@pytest.mark.parametrize("payload", [b"x", b""], ids=["store", "delete"])
def test_b26__publish(serve: Serve, version: int, qos: int, payload: bytes) -> None:
    """Dropped and counted, never routed or retained; a delete deletes nothing."""
    server, dropped = guarded(serve)
    server.run(server.broker.publish("no", b"kept", retain=True))
    watcher, client = server.watch("+"), server.connect("c", version)
    watcher.expect("PUBLISH", topic_name="no", payload="kept", retain=True)
    answer = client.publish("no", payload, qos=qos, retain=True, packet_id=9, reason=0x87)
    if version == 4 and answer is not None:
        assert answer.raw == bytes([0x40 if qos == 1 else 0x50, 2, 0, 9])
    client.expect_nothing()
    watcher.expect_nothing()
    assert dropped.events == [("c", "refused")]
    assert server.retained() == [("no", b"kept")]
    client.publish("yes", b"x", qos=qos, packet_id=9)
    watcher.expect_messages(("yes", "x"), qos=qos)


def test_b26__pubrec_ends_the_flow(serve: Serve) -> None:
    server, _ = guarded(serve)
    client = server.connect("c")
    client.publish("no", b"x", qos=2, packet_id=9, reason=0x87)
    client.release(9, reason=0x92)


@pytest.mark.parametrize(
    ("version", "qos", "settings"),
    [
        (5, 0, {"refused_publish_qos_0": "disconnect"}),
        (4, 0, {"refused_publish_3x": "close"}),
        (4, 1, {"refused_publish_3x": "close"}),
        (4, 2, {"refused_publish_3x": "close"}),
    ],
)
def test_b26__publish_closes_by_setting(
    serve: Serve, version: int, qos: int, settings: dict[str, str]
) -> None:
    server, _ = guarded(serve, **settings)
    raw = publish("no", b"x", qos=qos, retain=True, version=version)
    server.expect_breach(raw, codes=0x87, version=version)
    assert server.retained() == []


@pytest.mark.parametrize(
    "settings", [{"refused_publish_qos_0": "disconnect"}, {"refused_publish_3x": "close"}]
)
def test_b26__settings_that_do_not_concern_it(serve: Serve, settings: dict[str, str]) -> None:
    """5.0 has codes for QoS 1 and 2."""
    server, _ = guarded(serve, **settings)
    client = server.connect("c")
    client.publish("no", b"x", qos=1, reason=0x87)
    client.publish("no", b"x", qos=2, reason=0x87)
    client.expect_nothing()


@both_versions
def test_b26__subscribe(serve: Serve, version: int) -> None:
    server, _ = guarded(serve)
    client, refused = server.connect("c", version), 0x87 if version == 5 else 0x80
    client.subscribe(("a", 1), ("no/#", 1), ("b", 2), granted=[1, refused, 2])
    server.connect("p").publish("no/x", b"x", qos=1, reason=0x10)
    client.expect_nothing()


@both_versions
def test_b26__unsubscribe(serve: Serve, version: int) -> None:
    """5.0 hears 0x87 and keeps it; 3.1.1 cannot be told, and the subscription goes."""
    server, _ = guarded(serve)
    client, publisher = server.connect("c", version), server.connect("p", 4)
    client.subscribe("stay", "go", qos=1)
    client.unsubscribe("stay", "go", reasons=[0x87, 0x00])
    publisher.publish("stay", b"x", qos=1)
    publisher.publish("go", b"x", qos=1)
    client.expect_messages(*([b"x"] if version == 5 else []))


class NoWills(HookBase):
    """Refuses a CONNECT whose will goes to "no"."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        if packet.will is not None and packet.will.topic_name == "no":
            raise NotAuthorized


@both_versions
def test_b26__will_at_connect(serve: Serve, version: int) -> None:
    server = serve(hooks=[NoWills()])
    raw = wire.connect("c", version=version, will=wire.will("no", b"x"))
    server.expect_refused(raw, codes=0x87 if version == 5 else 5, version=version)


@both_versions
def test_b26__will_at_publish_time(serve: Serve, version: int) -> None:
    server, dropped = guarded(serve)
    watcher = server.watch()
    server.connect("c", version, will=wire.will("no", b"x", qos=1, retain=True)).drop()
    server.connect("d", version, will=wire.will("yes", b"x")).drop()
    watcher.expect_messages(("yes", "x"))
    assert server.retained() == []
    assert [client_id for client_id, _ in dropped.events] == ["c"]


@every_qos
def test_b26__alias_is_set_all_the_same(serve: Serve, qos: int) -> None:
    policy = Policy(publish={"no": 0x87})
    server = serve(hooks=[policy])
    watcher, client = server.watch(), server.connect("c")
    client.publish("no", b"1", qos=qos, reason=0x87, topic_alias=3)
    client.publish("", b"2", qos=qos, reason=0x87, topic_alias=3)
    policy.tables["publish"] = {}
    client.publish("", b"3", qos=qos, topic_alias=3)
    watcher.expect_messages(("no", "3"))


@both_versions
def test_b26__wider_than_the_rights(serve: Serve, version: int) -> None:
    """Granted, and each delivery filtered: live, queued and retained."""
    server = serve(hooks=[Policy(unreadable={"secret"})])
    publisher = server.connect("p", 4)
    session = {} if version == 4 else {"session_expiry_interval": 600}
    client = server.connect("c", version, clean_start=False, **session)
    for topic in ("secret", "open"):
        publisher.publish(topic, b"kept", qos=1, retain=True)
    client.subscribe("#", qos=1)
    client.ack(*client.expect_messages(("open", "kept"), retain=True))
    for topic in ("secret", "open"):
        publisher.publish(topic, b"live", qos=1)
    client.ack(*client.expect_messages(("open", "live")))
    client.drop()
    for topic in ("secret", "open"):
        publisher.publish(topic, b"queued", qos=1)
    again = server.connect("c", version, clean_start=False, session_present=True)
    again.expect_messages(("open", "queued"))
    again.subscribe("secret", qos=1)
    again.expect_nothing()


@both_versions
def test_b26__denied_filter(serve: Serve, version: int) -> None:
    """Refused only where the filter as such is: "no/#" is, "#" and "no/x" are not."""
    server, _ = guarded(serve)
    client, refused = server.connect("c", version), 0x87 if version == 5 else 0x80
    client.subscribe("#", "no/#", "no/x", granted=[0, refused, 0])
    server.connect("p").publish("no/x", b"x")
    client.expect_messages(b"x")


# ------------------------------------------------------------------------------- B27 between versions

PROPERTIES: dict[str, Any] = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 100,
    "content_type": "text/plain",
    "response_topic": "answer/here",
    "correlation_data": b"\0\1",
    "user_property": [("k", "v"), ("k", "w")],
}


def expect_plain(client: Raw, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
    """The next packet is this PUBLISH of 3.1.1, byte for byte."""
    packet = client.expect("PUBLISH", qos=qos)
    wanted = publish(topic, payload, qos=qos, packet_id=packet.packet_id, retain=retain, version=4)
    assert packet.raw == wanted, f"{packet}, expected {wanted.hex(' ')}"


@every_qos
def test_b27__properties_vanish(server: Server, qos: int) -> None:
    """Live and retained; an alias is resolved."""
    client, publisher = server.connect("s", 4), server.connect("p")
    client.subscribe("t", qos=2)
    publisher.publish("t", b"live", qos=qos, topic_alias=1, retain=True, **PROPERTIES)
    expect_plain(client, "t", b"live", qos)
    publisher.publish("", b"alias", qos=qos, topic_alias=1, **PROPERTIES)
    expect_plain(client, "t", b"alias", qos)
    late = server.connect("late", 4)
    late.subscribe("t", qos=2)
    expect_plain(late, "t", b"live", qos, retain=True)


@every_qos
def test_b27__properties_vanish_from_the_queue(serve: Serve, qos: int) -> None:
    server = serve(queue_qos_0=True)
    client, publisher = server.connect("s", 4, clean_start=False), server.connect("p")
    client.subscribe("t", qos=2)
    client.drop()
    publisher.publish("t", b"1", qos=qos, topic_alias=1, **PROPERTIES)
    publisher.publish("", b"2", qos=qos, topic_alias=1, **PROPERTIES)
    server.advance(10)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    expect_plain(again, "t", b"1", qos)
    expect_plain(again, "t", b"2", qos)


def test_b27__will_of_5_0(server: Server) -> None:
    client = server.connect("s", 4)
    client.subscribe("t", qos=1)
    server.connect("c", will=wire.will("t", b"gone", qos=1, will_delay_interval=0, **PROPERTIES)).drop()
    expect_plain(client, "t", b"gone", 1)


def test_b27__expiry_is_not_seen(server: Server) -> None:
    """The deadline holds for 3.1.1 too; of what is left nothing is sent."""
    client = server.connect("s", 4, clean_start=False)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = server.connect("p")
    publisher.publish("t", b"short", qos=1, message_expiry_interval=5)
    publisher.publish("t", b"long", qos=1, message_expiry_interval=50)
    server.advance(10)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    expect_plain(again, "t", b"long", 1)
    again.expect_nothing()


def test_b27__options_of_5_0_in_a_session_of_3_1_1(server: Server) -> None:
    """A 5.0 client subscribed with an identifier and Retain As Published; 3.1.1 goes on with its session."""
    client, publisher = server.connect("s", session_expiry_interval=600), server.connect("p")
    client.subscribe("t", qos=1, retain_as_published=True, subscription_identifier=7)
    client.disconnect()
    publisher.publish("t", b"queued", qos=1, retain=True, **PROPERTIES)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    expect_plain(again, "t", b"queued", 1)
    publisher.publish("t", b"live", qos=1, retain=True, **PROPERTIES)
    expect_plain(again, "t", b"live", 1)
    publisher.publish("t", b"zero", retain=True)
    expect_plain(again, "t", b"zero", 0)
    again.drop()
    client = server.connect("s", clean_start=False, session_present=True)
    client.drain()
    publisher.publish("t", b"once more", retain=True)
    client.expect("PUBLISH", payload="once more", retain=True, subscription_identifier=[7])


@every_qos
@pytest.mark.parametrize("retain_as_published", [False, True])
def test_b27__from_3_1_1_to_5_0(server: Server, qos: int, retain_as_published: bool) -> None:
    """No properties; RETAIN by the subscriber's options."""
    client, publisher = server.connect("s"), server.connect("p", 4)
    client.subscribe("t", qos=2, retain_as_published=retain_as_published)
    publisher.publish("t", b"kept", qos=qos, retain=True)
    publisher.publish("t", b"live", qos=qos)
    kept, live = client.expect_messages(b"kept", b"live", qos=qos, properties={})
    assert (kept.retain, live.retain) == (retain_as_published, False)
    for handling, wanted in ((0, [b"kept"]), (1, []), (2, [])):
        client.subscribe("t", qos=2, retain_as_published=retain_as_published, retain_handling=handling)
        client.expect_messages(*wanted, properties={}, retain=True)


def test_b27__will_of_3_1_1(server: Server) -> None:
    client = server.connect("s")
    client.subscribe("t", qos=1)
    server.connect("c", 4, will=wire.will("t", b"gone", qos=1)).drop()
    client.expect("PUBLISH", topic_name="t", payload="gone", properties={})


@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2])
def test_b27__suback_codes(serve: Serve, reason: int) -> None:
    server = serve(hooks=[Policy(subscribe={"no": reason})])
    for version, code in ((4, 0x80), (5, reason)):
        client = server.connect(f"c{version}", version)
        client.subscribe("no", "yes", granted=[code, 0])
        client.expect_nothing()


@pytest.mark.parametrize(("qos", "first"), [(1, 0x40), (2, 0x50)])
def test_b27__puback_and_pubrec_codes(serve: Serve, qos: int, first: int) -> None:
    """No matching subscribers and refusals: 5.0 hears 0x10, 0x87, 0x90; 3.1.1 gets two bytes of body."""
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    for topic, reason in (("nobody", 0x10), ("no", 0x87), ("$SYS/x", 0x90)):
        server.connect("five").publish(topic, b"x", qos=qos, reason=reason)
        answer = server.connect("four", 4).publish(topic, b"x", qos=qos, packet_id=77)
        assert answer is not None and answer.raw == bytes([first, 2, 0, 77])


def test_b27__unsuback_codes(serve: Serve) -> None:
    server = serve(hooks=[Policy(unsubscribe={"stay": 0x87})])
    five, four = server.connect("five"), server.connect("four", 4)
    for client in (five, four):
        client.subscribe("stay", "go")
    five.unsubscribe("never", "go", "stay", reasons=[0x11, 0x00, 0x87])
    answer = four.unsubscribe("never", "go", "stay", packet_id=77)
    assert answer.raw == bytes([0xB0, 2, 0, 77])


CONNACK_CODES: dict[int, int | None] = {0x86: 4, 0x87: 5, 0x8A: 5, 0x85: 2, 0x97: 3, 0x89: 3, 0x88: 3,
                                        0x9F: None, 0x80: None}  # fmt: skip


@pytest.mark.parametrize(("reason", "code"), CONNACK_CODES.items())
def test_b27__connack_codes(serve: Serve, reason: int, code: int | None) -> None:
    server = serve(hooks=[Policy(connect={"c": reason})])
    server.expect_refused(wire.connect("c"), codes=reason)
    server.expect_refused(wire.connect("c", version=4), codes=() if code is None else code, version=4)


@pytest.mark.parametrize("qos", [1, 2])
def test_b27__properties_survive_a_3_1_1_connection(server: Server, qos: int) -> None:
    """5.0 makes the session; 3.1.1 is sent the messages and acknowledges none; 5.0 gets them in full."""
    client, publisher = server.connect("s", session_expiry_interval=600), server.connect("p")
    client.subscribe("t", qos=2, subscription_identifier=7)
    publisher.publish("t", b"sent", qos=qos, **PROPERTIES)
    client.expect("PUBLISH", payload="sent", **PROPERTIES, subscription_identifier=[7])
    client.drop()
    publisher.publish("t", b"queued", qos=qos, **PROPERTIES)
    between = server.connect("s", 4, clean_start=False, session_present=True)
    publisher.publish("t", b"live", qos=qos, **PROPERTIES)
    plain = between.expect_messages(b"sent", b"queued", b"live", properties={})
    between.drop()
    server.advance(30)
    again = server.connect("s", clean_start=False, session_present=True, session_expiry_interval=600)
    wanted = {**PROPERTIES, "message_expiry_interval": range(70, 101), "subscription_identifier": [7]}
    found = again.expect_messages(b"sent", b"queued", b"live", dup=True, **wanted)
    assert [packet.packet_id for packet in found] == [packet.packet_id for packet in plain]
    publisher.publish("t", b"new", qos=qos)
    again.expect("PUBLISH", payload="new", subscription_identifier=[7])


def test_b27__a_3_1_1_session_goes_on_as_5_0(server: Server) -> None:
    client, publisher = server.connect("s", 4, clean_start=False), server.connect("p")
    client.subscribe("t", qos=1)
    client.drop()
    publisher.publish("t", b"queued", qos=1, retain=True, **PROPERTIES)
    again = server.connect("s", clean_start=False, session_present=True)
    again.expect("PUBLISH", payload="queued", retain=False, **PROPERTIES, subscription_identifier=None)
