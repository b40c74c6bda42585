"""B03: versions."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED, REFUSED_3X, REFUSED_5
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy, Seen
from tests.conformance.server import Server


@pytest.mark.parametrize(("name", "level"), [("MQTT", 4), ("MQTT", 5), ("MQIsdp", 3)])
def test_b03__what_is_served(server: Server, name: str, level: int) -> None:
    client = server.client(level)
    client.send(wire.connect("c", version=level, protocol_name=name, level=level))
    client.expect("CONNACK", reason_code=0)
    client.subscribe("t")
    client.publish("t", b"x", qos=1)
    client.expect("PUBLISH", payload="x")


@pytest.mark.parametrize("name", ["", "M", "mqtt", "MQTT ", "MQIsdP", "MQISDP", "HTTP/1", "\u00e9"])
def test_b03__any_other_name_closes_without_a_byte(server: Server, name: str) -> None:
    for version in (3, 4, 5):
        for level in (version, 0, 6, 0x84):
            raw = wire.connect("c", version=version, protocol_name=name, level=level)
            server.expect_refused(raw, wire.pingreq(), version=version)


UNSUPPORTED = [
    *[("MQTT", level, REFUSED_3X) for level in range(4)],
    *[("MQTT", level, REFUSED_5) for level in (6, 7, 0x7F, 0x85, 0xFF)],
    ("MQIsdp", 4, REFUSED_3X),
    ("MQIsdp", 5, REFUSED_5),
    ("MQIsdp", 0x84, REFUSED_3X),
    ("MQTT", 0x83, REFUSED_3X),
]


@pytest.mark.parametrize(("name", "level", "answer"), UNSUPPORTED)
def test_b03__unsupported_versions(server: Server, name: str, level: int, answer: bytes) -> None:
    client = server.client(5 if answer == REFUSED_5 else 4)
    client.send(wire.connect("c", protocol_name=name, level=level), wire.pingreq())
    refusal = client.expect_close(answer[3])
    assert refusal is not None and refusal.raw == answer


@pytest.mark.parametrize(
    ("version", "setting", "answer"),
    [(3, "mqtt_3_1", REFUSED_3X), (4, "mqtt_3_1_1", REFUSED_3X), (5, "mqtt_5", REFUSED_5)],
)
def test_b03__switched_off(serve: Serve, version: int, setting: str, answer: bytes) -> None:
    server = serve(**{setting: False})
    client = server.client(version)
    client.send(wire.connect("c", version=version), wire.pingreq())
    refusal = client.expect_close(answer[3])
    assert refusal is not None and refusal.raw == answer
    for other in {3, 4, 5} - {version}:
        server.connect("c", other).expect_nothing()


def bridge(server: Server, version: int, client_id: str = "bridge") -> Raw:
    client = server.client(version)
    client.send(wire.connect(client_id, version=version, level=0x80 | version))
    client.expect("CONNACK", reason_code=0)
    return client


@pytest.mark.parametrize("version", [3, 4])
def test_b03__a_bridge_hears_no_echo_and_keeps_retain(server: Server, version: int) -> None:
    one, plain, publisher = bridge(server, version), server.connect("plain", version), server.connect("p")
    for client in (one, plain):
        client.subscribe("t/#", "u", qos=1)
    one.publish("t/own", b"own", qos=1)
    publisher.publish("u", b"kept", qos=1, retain=True)
    publisher.publish("u", b"live", qos=1)
    for client, wanted in ((one, [("kept", True), ("live", False)]),
                           (plain, [("own", False), ("kept", False), ("live", False)])):  # fmt: skip
        found = client.drain()
        assert [(packet.payload.decode(), packet.retain) for packet in found] == wanted


@pytest.mark.parametrize("version", [3, 4])
def test_b03__bridges_switched_off(serve: Serve, version: int) -> None:
    server = serve(bridge_bit=False)
    client = server.client(version)
    client.send(wire.connect("c", version=version, level=0x80 | version), wire.pingreq())
    refusal = client.expect_close(1)
    assert refusal is not None and refusal.raw == REFUSED_3X
    server.connect("c", version).expect_nothing()


def test_b03__3_1_client_ids(server: Server) -> None:
    for client_id in ("c", "c" * 23, "c" * 24, "c" * 1000):
        server.connect(client_id, version=3).expect_nothing()
    for clean_start in (True, False):
        client = server.client(version=3)
        client.send(wire.connect("", version=3, clean_start=clean_start))
        client.expect_close(2)


def test_b03__3_1_has_no_session_present(server: Server) -> None:
    for number in range(2):
        client = server.client(version=3)
        assert client.connect("c", clean_start=False).raw == bytes.fromhex("20 02 00 00")
        if number:
            client.expect_messages(b"x", qos=1)
        else:
            client.subscribe("t", qos=1)
            client.drop()
            server.connect("p").publish("t", b"x", qos=1, reason=0)


def test_b03__3_1_is_granted_what_it_is_refused(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87})])
    client = server.connect("c", version=3)
    client.subscribe(("no", 1), ("yes", 1), ("no", 0), granted=[1, 1, 0])
    publisher = server.connect("p")
    publisher.publish("no", b"1", qos=1, reason=0x10)
    publisher.publish("yes", b"2", qos=1, reason=0)
    client.expect_messages(b"2")
    server.connect("d", version=4).subscribe(("no", 1), ("yes", 1), granted=[0x80, 1])


WITH_DUP = [
    (wire.subscribe(1, ("t", 1), version=4, first=0x8A), "SUBACK"),
    (wire.unsubscribe(1, "t", version=4, first=0xAA), "UNSUBACK"),
    (wire.pubrel(1, version=4, first=0x6A), "PUBCOMP"),
]


@pytest.mark.parametrize(("raw", "answer"), WITH_DUP)
def test_b03__dup_on_requests_of_3_1_alone(server: Server, raw: bytes, answer: str) -> None:
    client = server.connect("c", version=3)
    client.send(raw)
    client.expect(answer, packet_id=1)
    client.expect_nothing()
    server.expect_breach(raw, codes=MALFORMED, version=4)
    for first in (raw[0] & 0xF0, raw[0] | 1, raw[0] | 4):
        server.expect_breach(bytes([first]) + raw[1:], codes=MALFORMED, version=3)


def test_b03__3_1_may_resend_while_connected(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c", version=3)
    for dup in (False, True):
        client.send(wire.publish("t", b"1", qos=1, packet_id=1, dup=dup, version=3))
        client.expect("PUBACK", packet_id=1)
    for dup in (False, True):
        client.send(wire.publish("t", b"2", qos=2, packet_id=2, dup=dup, version=3))
        client.expect("PUBREC", packet_id=2)
    for first in (0x62, 0x6A):
        client.send(wire.pubrel(2, version=3, first=first))
        client.expect("PUBCOMP", packet_id=2)
    watcher.expect_messages(b"1", b"1", b"2")


def test_b03__3_1_credentials_may_be_left_out(serve: Serve) -> None:
    seen = Seen()
    server = serve(hooks=[seen])
    cases = [
        (0xC2, None, None),
        (0x82, None, None),
        (0xC2, "u", None),
        (0xC2, "u", b"\xff\x00"),
        (0x02, None, None),
    ]
    for flags, name, password in cases:
        client = server.client(version=3)
        client.send(wire.connect("c", version=3, flags=flags, user_name=name, password=password))
        client.expect("CONNACK", reason_code=0)
        assert (seen.connects[-1].user_name, seen.connects[-1].password) == (name, password)
        client.disconnect()
    for flags in (0xC2, 0x82):
        server.expect_refused(wire.connect("c", version=4, flags=flags), version=4)
    server.expect_refused(wire.connect("c", version=3, flags=0x02, user_name="u"), version=3)


def test_b03__3_1_strings_may_hold_control_characters(server: Server) -> None:
    server.connect("a\x01\x7f", version=3, user_name="u\x02").expect_nothing()
    server.expect_refused(wire.connect("a\x01", version=4), version=4)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("qos", [1, 2])
def test_b03__nothing_is_sent_again_while_connected(server: Server, version: int, qos: int) -> None:
    client = server.connect("c", version)
    client.subscribe("t", qos=qos)
    server.connect("p").publish("t", b"x", qos=qos)
    client.expect("PUBLISH", qos=qos, dup=False)
    server.advance(1000, step=10)
    client.expect_nothing()


def test_b03__a_refused_filter_closes_3_1_by_setting(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87})], refused_filter_3_1="close")
    client = server.connect("c", version=3)
    client.send(wire.subscribe(1, ("no", 1), version=3))
    client.expect_close()
    granted = server.connect("d", version=3)
    granted.subscribe("yes", qos=1)
    granted.expect_nothing()
