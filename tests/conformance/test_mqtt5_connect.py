"""MQTT 5.0, sections 3.1 to 3.1.2.10: CONNECT up to Keep Alive, all but the will."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR, REFUSED_3X, REFUSED_5, UNSUPPORTED_VERSION
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Seen
from tests.conformance.server import Server
from tests.conformance.sessions import returned

# ---- 3.1: the first packet, and the only CONNECT

NOT_A_CONNECT = {
    "PINGREQ": wire.pingreq(),
    "PUBLISH": wire.publish("t", b"x"),
    "PUBLISH, retained": wire.publish("t", b"x", qos=1, retain=True),
    "PUBACK": wire.puback(1),
    "PUBREL": wire.pubrel(1),
    "SUBSCRIBE": wire.subscribe(1, "t"),
    "UNSUBSCRIBE": wire.unsubscribe(1, "t"),
    "DISCONNECT": wire.disconnect(),
    "DISCONNECT with a code": wire.disconnect(0x04),
    "AUTH": wire.auth(0x18, {"authentication_method": "X-TEST"}),
    "CONNACK": bytes.fromhex("20 03 00 00 00"),
    "zeros": bytes(16),
    "ones": b"\xff" * 16,
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16 03 01 00 05 01 00 00 01 00"),
    "text": b"hello\n",
}


@pytest.mark.parametrize("raw", NOT_A_CONNECT.values(), ids=NOT_A_CONNECT)
def test_mqtt5_3_1_0_1__anything_before_connect_closes_silently(server: Server, raw: bytes) -> None:
    server.expect_refused(raw)
    server.expect_refused(raw, wire.connect("c", will=wire.will("w", b"x")), wire.publish("t", b"x"))
    assert server.retained() == []


def test_mqtt5_3_1_0_2__second_connect(server: Server) -> None:
    server.expect_breach(wire.connect("other"), codes=PROTOCOL_ERROR)
    server.expect_breach(wire.connect("other"), wire.publish("t", b"x"), codes=PROTOCOL_ERROR)
    server.expect_breach(wire.connect("other", version=4), codes=PROTOCOL_ERROR)


def test_mqtt5_3_1_0_2__two_connects_in_one_segment(server: Server) -> None:
    watcher, client = server.watch(), server.client()
    raw = wire.connect("c", will=wire.will("w", b"gone"))
    client.send(raw, raw)
    client.expect("CONNACK", reason_code=0)
    client.expect_close(PROTOCOL_ERROR)
    watcher.expect_messages(("w", b"gone"))


# ---- 3.1.2: variable header


@pytest.mark.parametrize("name", ["mqtt", "MQTX", "", "MQT", "MQTT5", "MQisdp"])
def test_mqtt5_3_1_2_1__unknown_protocol_name(server: Server, name: str) -> None:
    server.expect_refused(wire.connect("c", protocol_name=name), wire.publish("t", b"x"))


def test_mqtt5_3_1_2_1__name_of_another_version(server: Server) -> None:
    client = server.client()
    client.send(wire.connect("c", protocol_name="MQIsdp"), wire.pingreq())
    refusal = client.expect_close(UNSUPPORTED_VERSION)
    assert refusal is not None and refusal.raw == REFUSED_5


@pytest.mark.parametrize("level", [6, 99, 255])
def test_mqtt5_3_1_2_2__future_versions(server: Server, level: int) -> None:
    client = server.client()
    client.send(wire.connect("c", level=level))
    refusal = client.expect_close(UNSUPPORTED_VERSION)
    assert refusal is not None and refusal.raw == REFUSED_5


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_mqtt5_3_1_2_2__versions_that_never_were(server: Server, level: int) -> None:
    client = server.client(version=4)
    client.send(wire.connect("c", version=4, level=level))
    refusal = client.expect_close(1)
    assert refusal is not None and refusal.raw == REFUSED_3X


@pytest.mark.parametrize(("version", "setting"), [(3, "mqtt_3_1"), (4, "mqtt_3_1_1"), (5, "mqtt_5")])
def test_mqtt5_3_1_2_2__older_versions_are_served_or_switched_off(
    serve: Serve, version: int, setting: str
) -> None:
    served = serve().client(version)
    connack = served.connect("c")
    assert version == 5 or connack.raw == bytes.fromhex("20 02 00 00")
    served.expect_nothing()
    client = serve(**{setting: False}).client(version)
    client.send(wire.connect("c", version=version))
    refusal = client.expect_close(UNSUPPORTED_VERSION if version == 5 else 1)
    assert refusal is not None and refusal.raw == (REFUSED_5 if version == 5 else REFUSED_3X)


@pytest.mark.parametrize("flags", [0x01, 0x03, 0x81, 0xC3, 0x07, 0xEF])
def test_mqtt5_3_1_2_3__reserved_flag(server: Server, flags: int) -> None:
    will = wire.will("w", b"x", qos=flags >> 3 & 3, retain=bool(flags & 0x20)) if flags & 4 else None
    name, password = "u" if flags & 0x80 else None, b"p" if flags & 0x40 else None
    raw = wire.connect("c", will=will, user_name=name, password=password, flags=flags)
    server.expect_refused(raw, codes=MALFORMED)


# ---- Clean Start


def half_done(server: Server) -> tuple[Raw, Raw, int, int]:
    """A dropped session of "c" with one of each: subscription, half-done flows, queued messages.

    Gives its publisher, a watcher of topic "in", and the identifiers of what was sent to it and what
    it has had a PUBREL for. Its own QoS 2 PUBLISH to "in" has identifier 9.
    """
    watcher, publisher = server.watch("in"), server.connect("p")
    client = server.connect("c", session_expiry_interval=300)
    options = wire.options(2, no_local=True, retain_as_published=True)
    client.subscribe(("s/#", options), subscription_identifier=7)
    publisher.publish("s/sent", b"sent", qos=2)
    publisher.publish("s/released", b"released", qos=2)
    sent = client.expect("PUBLISH", payload="sent", qos=2)
    released = client.expect("PUBLISH", payload="released", qos=2)
    client.send(wire.pubrec(released.packet_id))
    client.expect("PUBREL", packet_id=released.packet_id)
    client.send(wire.publish("in", b"old", qos=2, packet_id=9))
    client.expect("PUBREC", packet_id=9, reason_code=0)
    client.drop()
    publisher.publish("s/queued", b"q1", qos=1, reason=0)
    publisher.publish("s/queued", b"q2", qos=1, reason=0)
    return publisher, watcher, sent.packet_id, released.packet_id


def test_mqtt5_3_1_2_4__clean_start_1_discards_everything(server: Server) -> None:
    publisher, watcher, _, _ = half_done(server)
    client = server.connect("c", clean_start=True, session_expiry_interval=300, session_present=False)
    client.expect_nothing()
    publisher.publish("s/sent", b"x", qos=1, reason=0x10)
    client.expect_nothing()
    client.release(9, reason=0x92)
    client.publish("in", b"new", qos=2, packet_id=9, reason=0)
    watcher.expect_messages(b"new")


def test_mqtt5_3_1_2_5__clean_start_0_resumes_everything(server: Server) -> None:
    publisher, watcher, sent, released = half_done(server)
    client = returned(server, session_expiry_interval=300)
    first = client.expect("PUBLISH", payload="sent", qos=2, dup=True, packet_id=sent)
    second = client.expect("PUBREL", packet_id=released)
    queued = [client.expect("PUBLISH", payload=text, qos=1, dup=False) for text in ("q1", "q2")]
    client.expect_nothing()
    for packet in (first, second, *queued):
        client.ack(packet)
        assert packet is second or packet.properties["subscription_identifier"] == [7]

    client.send(wire.publish("in", b"old", qos=2, packet_id=9, dup=True))
    client.expect("PUBREC", packet_id=9, reason_code=0)
    client.release(9)
    watcher.expect_messages(b"old")

    publisher.publish("s/live", b"live", qos=2, retain=True)
    client.expect("PUBLISH", payload="live", qos=2, retain=True, dup=False, subscription_identifier=[7])
    client.publish("s/own", b"no local", qos=1)
    client.expect_nothing()


def test_mqtt5_3_1_2_6__clean_start_0_creates_a_session(server: Server) -> None:
    first = server.connect("c", clean_start=False, session_expiry_interval=300, session_present=False)
    first.drop()
    returned(server).expect_nothing()


# ---- User Name and Password


def test_mqtt5_3_1_2_16__user_name_without_its_flag(server: Server) -> None:
    tail = wire.string("u")
    server.expect_refused(wire.connect("c", tail=tail), codes=MALFORMED)
    server.expect_refused(wire.connect("c", will=wire.will("w"), tail=tail), codes=MALFORMED)
    both = wire.connect_payload("c", None, "u", b"p")
    server.expect_refused(wire.connect(flags=0x42, payload=both), codes=MALFORMED)


def test_mqtt5_3_1_2_17__user_name_flag_without_a_user_name(server: Server) -> None:
    for flags in (0x82, 0xC2):
        server.expect_refused(wire.connect("c", flags=flags), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x82, tail=b"\x00"), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x82, tail=b"\x00\x02u"), codes=MALFORMED)


@pytest.mark.parametrize("name", ["", "u", "ü/+ 1"])
def test_mqtt5_3_1_2_17__user_name_reaches_the_authenticator(serve: Serve, name: str) -> None:
    seen = Seen()
    server = serve(hooks=[seen])
    server.connect("c", user_name=name, password=b"").expect_nothing()
    server.connect("d", user_name=name).expect_nothing()
    server.connect("e").expect_nothing()
    found = [(packet.user_name, packet.password) for packet in seen.connects]
    assert found == [(name, b""), (name, None), (None, None)]


def test_mqtt5_3_1_2_18__password_without_its_flag(server: Server) -> None:
    tail = wire.binary(b"p")
    server.expect_refused(wire.connect("c", user_name="u", tail=tail), codes=MALFORMED)
    server.expect_refused(wire.connect("c", tail=tail), codes=MALFORMED)


def test_mqtt5_3_1_2_19__password_flag_without_a_password(server: Server) -> None:
    server.expect_refused(wire.connect("c", user_name="u", flags=0xC2), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x42), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x42, tail=b"\x00\x02p"), codes=MALFORMED)


@pytest.mark.parametrize("password", [b"", b"p", b"\x00\xff\xfe\xc0\x80", bytes(range(256)) * 255])
def test_mqtt5_3_1_2_19__password_alone_and_as_bytes(serve: Serve, password: bytes) -> None:
    seen = Seen()
    client = serve(hooks=[seen]).connect("c", password=password)
    client.expect_nothing()
    assert (seen.connects[0].user_name, seen.connects[0].password) == (None, password)


# ---- Keep Alive


@pytest.mark.parametrize("asked", [60, 3, 0])
def test_mqtt5_3_1_2_21__server_keep_alive_governs(serve: Serve, asked: int) -> None:
    server = serve(server_keep_alive=2)
    early, silent = (server.connect(name, keep_alive=asked) for name in ("early", "silent"))
    for client in (early, silent):
        assert client.connack is not None and client.connack.properties["server_keep_alive"] == 2
    server.advance(2.9)
    early.expect_nothing()
    server.advance(0.2)
    silent.expect_close(0x8D)
    early.expect_nothing()


def test_mqtt5_3_1_2_21__off(serve: Serve) -> None:
    for server, asked in ((serve(), 60), (serve(server_keep_alive=2), 2), (serve(server_keep_alive=2), 1)):
        client = server.connect("c", keep_alive=asked)
        assert client.connack is not None and "server_keep_alive" not in client.connack.properties
        server.advance(1.5 * asked - 0.1)
        client.expect_nothing()


def test_mqtt5_3_1_2_22__silence_closes_after_one_and_a_half(server: Server) -> None:
    watcher = server.watch()
    early, silent = (
        server.connect(name, keep_alive=2, will=wire.will(f"w/{name}", b"gone")) for name in ("early", "late")
    )
    server.advance(2.9)
    early.expect_nothing()
    server.advance(0.2)
    silent.expect_close(0x8D)
    watcher.expect_messages(("w/late", b"gone"))
    early.expect_nothing()


REARMS = {
    "PINGREQ": wire.pingreq(),
    "PUBLISH 0": wire.publish("t", b"x"),
    "PUBLISH 1": wire.publish("t", b"x", qos=1),
    "PUBLISH 2": wire.publish("t", b"x", qos=2),
    "PUBACK": wire.puback(1),
    "PUBREC": wire.pubrec(77),
    "PUBREL": wire.pubrel(77),
    "PUBCOMP": wire.pubcomp(77),
    "SUBSCRIBE": wire.subscribe(3, "x"),
    "UNSUBSCRIBE": wire.unsubscribe(3, "x"),
}


def test_mqtt5_3_1_2_22__any_complete_packet_re_arms(server: Server) -> None:
    clients = {name: server.connect(name, keep_alive=2) for name in (*REARMS, "silent")}
    clients["PUBACK"].subscribe("to/ack", qos=1)
    server.connect("p").publish("to/ack", b"x", qos=1)
    server.advance(2)
    for name, raw in REARMS.items():
        server.push(clients[name], raw)
    clients["PINGREQ"].expect("PINGRESP")
    server.advance(1.5)
    clients.pop("silent").expect_close(0x8D)
    for client in clients.values():
        client.drain()
    server.advance(3.1)
    for client in clients.values():
        client.expect_close(0x8D)


def test_mqtt5_3_1_2_22__traffic_to_the_client_does_not_re_arm(server: Server) -> None:
    client, publisher = server.connect("c", keep_alive=2), server.connect("p")
    client.subscribe("t", qos=1)
    server.advance(2)
    publisher.publish("t", b"x")
    publisher.publish("t", b"x", qos=1)
    client.expect("PUBLISH", qos=0)
    client.expect("PUBLISH", qos=1)
    server.advance(1.1)
    client.expect_close(0x8D)


def test_mqtt5_3_1_2_22__half_a_packet_does_not_re_arm(server: Server) -> None:
    client = server.connect("c", keep_alive=2)
    server.advance(2)
    server.push(client, wire.publish("t", b"half")[:6])
    server.advance(1.1)
    client.expect_close(0x8D)


def test_mqtt5_3_1_2_22__keep_alive_0_never_closes(server: Server) -> None:
    client = server.connect("c", keep_alive=0)
    for seconds in (10, 100_000):
        server.advance(seconds)
        client.expect_nothing()
