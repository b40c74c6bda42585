"""MQTT 5.0 sections 3.4 to 3.7: PUBACK, PUBREC, PUBREL and PUBCOMP."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Failing, Policy
from tests.conformance.server import BARE, Server

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
ANSWER = {1: "PUBACK", 2: "PUBREC"}

PAIR = ("k", "v" * 98)  # 104 bytes as User Property


# --------------------------------------------------------------------------- Reason Codes of the server


def strict_server(serve: Serve) -> Server:
    """A broker that has an occasion for every Reason Code of PUBACK and PUBREC."""
    policy = Policy(publish={"no": 0x87, "unspecified": 0x80, "specific": 0x83, "strange": 0x9F})
    return serve(hooks=[policy, Failing()], maximum_retained_messages=1, validate_payload_format=True)


REASONS = {
    0x00: wire.publish("heard", b"x"),
    0x10: wire.publish("unheard", b"x"),
    0x80: wire.publish("unspecified", b"x"),
    0x83: wire.publish("specific", b"x"),
    0x87: wire.publish("no", b"x"),
    0x90: wire.publish("$reserved/t", b"x"),
    0x97: wire.publish("one too many", b"x", retain=True),
    0x99: wire.publish("heard", b"\xff", properties={"payload_format_indicator": 1}),
}


def at_qos(raw: bytes, qos: int, packet_id: int) -> bytes:
    """A short QoS 0 PUBLISH turned into one of another QoS."""
    topic = 4 + raw[3]
    return bytes([raw[0] | qos << 1, raw[1] + 2]) + raw[2:topic] + wire.two(packet_id) + raw[topic:]


def provoke(serve: Serve, code: int, qos: int) -> None:
    """The server answers with *code*; a refused message is neither routed nor retained."""
    server = strict_server(serve)
    watcher, client = server.watch("heard"), server.connect("p")
    client.publish("kept", b"x", retain=True)
    client.send(at_qos(REASONS[code], qos, 5))
    packet = client.expect(ANSWER[qos], packet_id=5, reason_code=code)
    assert len(packet.raw) == 4 if code == 0 else packet.raw[4] == code
    if qos == 2 and code < 0x80:
        client.release(5)
    client.expect_nothing()
    watcher.expect_messages(*(["x"] if code == 0 else []))
    assert server.retained() == [("kept", b"x")]


def in_use(serve: Serve, qos: int) -> None:
    """Identifier 5 is held by a QoS 2 message: 0x91 at QoS 1; at QoS 2 it is a resend and no error."""
    server = serve()
    watcher, client = server.watch(), server.connect("p")
    client.send(wire.publish("t", b"first", qos=2, packet_id=5))
    client.expect("PUBREC", packet_id=5, reason_code=0x00)
    client.send(wire.publish("t", b"second", qos=qos, packet_id=5))
    client.expect(ANSWER[qos], packet_id=5, reason_code=0x91 if qos == 1 else 0x00)
    client.release(5)
    watcher.expect_messages("first")


def mapped(serve: Serve, qos: int) -> None:
    """A hook's code that the packet may not carry becomes 0x80, an exception of a hook 0x83."""
    server = strict_server(serve)
    server.expect_errors()
    client = server.connect("p")
    client.publish("strange", b"x", qos, reason=0x80)
    client.publish("boom", b"x", qos, reason=0x83)
    client.expect_nothing()


every_reason = pytest.mark.parametrize("code", REASONS, ids=hex)


@every_reason
def test_mqtt5_3_4_2_1__reason_codes_of_puback(serve: Serve, code: int) -> None:
    provoke(serve, code, qos=1)


def test_mqtt5_3_4_2_1__identifier_in_use(serve: Serve) -> None:
    in_use(serve, qos=1)


def test_mqtt5_3_4_2_1__no_other_code_in_puback(serve: Serve) -> None:
    mapped(serve, qos=1)


@every_reason
def test_mqtt5_3_5_2_1__reason_codes_of_pubrec(serve: Serve, code: int) -> None:
    provoke(serve, code, qos=2)


def test_mqtt5_3_5_2_1__identifier_not_in_use_but_resent(serve: Serve) -> None:
    in_use(serve, qos=2)


def test_mqtt5_3_5_2_1__no_other_code_in_pubrec(serve: Serve) -> None:
    mapped(serve, qos=2)


def test_mqtt5_3_6_2_1__reason_codes_of_pubrel(server: Server) -> None:
    client = subscriber_with(server, 2, "s")
    for reason in (None, 0x00, 0x10, None):  # PUBREC, and PUBREC again
        client.send(wire.pubrec(1, reason))
        client.expect("PUBREL", packet_id=1, reason_code=0x00)
    client.send(wire.pubrec(77))
    client.expect("PUBREL", packet_id=77, reason_code=0x92)
    client.send(wire.pubcomp(1))
    client.send(wire.pubrec(1))
    client.expect("PUBREL", packet_id=1, reason_code=0x92)
    client.expect_nothing()


def test_mqtt5_3_7_2_1__reason_codes_of_pubcomp(server: Server) -> None:
    client = server.connect("p")
    client.send(wire.publish("t", b"x", qos=2, packet_id=5))
    client.expect("PUBREC")
    client.release(5, 0x00)
    client.release(5, 0x92)
    client.release(6, 0x92)
    client.expect_nothing()


# --------------------------------------------------------------------------- Reason Codes of the client


def subscriber_with(server: Server, qos: int, client_id: str) -> Raw:
    """A client that was just sent a message of this QoS with identifier 1, and has not acknowledged it."""
    client = server.connect(client_id, session_expiry_interval=60)
    client.subscribe(client_id, qos=qos)
    publisher = server.connect("p")
    publisher.publish(client_id, b"x", qos)
    publisher.disconnect()
    client.expect("PUBLISH", packet_id=1, qos=qos)
    return client


def refused_code(server: Server, first: int, *codes: int) -> None:
    """An acknowledgement with a Reason Code that its packet does not know, awaited by nobody, closes."""
    for code in codes:
        server.expect_breach(wire.ack(first, 9, code), codes=0x82)
        server.expect_breach(wire.ack(first, 9, code, {"user_property": [("k", "v")]}), codes=0x82)


def not_acknowledged(server: Server, qos: int, *codes: int) -> None:
    """PUBACK or PUBREC with such a code is not taken as acknowledgement: the message comes again."""
    for at, code in enumerate(codes):
        client = subscriber_with(server, qos, f"s{at}")
        client.send(wire.ack(PUBACK if qos == 1 else PUBREC, 1, code))
        client.expect_close(0x82)
        again = server.connect(f"s{at}", clean_start=False, session_present=True)
        again.expect("PUBLISH", packet_id=1, qos=qos, dup=True)


def test_mqtt5_3_4_2_1__unknown_code_in_puback(server: Server) -> None:
    refused_code(server, PUBACK, 0x01, 0x92, 0xFF)
    not_acknowledged(server, 1, 0x01, 0x92, 0xFF)


def test_mqtt5_3_5_2_1__unknown_code_in_pubrec(server: Server) -> None:
    refused_code(server, PUBREC, 0x01, 0x92, 0xFF)
    not_acknowledged(server, 2, 0x01, 0x92)


def test_mqtt5_3_6_2_1__unknown_code_in_pubrel(server: Server) -> None:
    refused_code(server, PUBREL, 0x80, 0x91, 0x10)


@pytest.mark.parametrize("code", [0x80, 0x91])
def test_mqtt5_3_6_2_1__unknown_code_releases_nothing(server: Server, code: int) -> None:
    held_and(server, wire.pubrel(1, code), 0x82)


def test_mqtt5_3_7_2_1__unknown_code_in_pubcomp(server: Server) -> None:
    refused_code(server, PUBCOMP, 0x80, 0x10, 0x91)


# --------------------------------------------------------------------------- flags of PUBREL


def held_and(server: Server, breach: bytes, code: int) -> None:
    """A held message is not released by *breach*, which closes, and only once by the PUBREL after it."""
    watcher = server.watch()
    client = server.connect("p", session_expiry_interval=60)
    client.send(wire.publish("t", b"x", qos=2, packet_id=1))
    client.expect("PUBREC", packet_id=1)
    client.send(breach)
    client.expect_close(code)
    watcher.expect_nothing()
    again = server.connect("p", clean_start=False, session_present=True)
    again.release(1)
    watcher.expect_messages("x", qos=2)


@pytest.mark.parametrize("first", [0x60, 0x61, 0x63, 0x64, 0x66, 0x6A, 0x6F])
def test_mqtt5_3_6_1_1__wrong_flags(server: Server, first: int) -> None:
    server.expect_breach(wire.pubrel(1, first=first), codes=0x81)
    held_and(server, wire.pubrel(1, first=first), 0x81)


def test_mqtt5_3_6_1_1__flags_of_the_server(server: Server) -> None:
    """In the flow, for an unknown identifier, and when PUBREL is sent again after a reconnect."""
    client = subscriber_with(server, 2, "s")
    client.send(wire.pubrec(1), wire.pubrec(9))
    client.expect("PUBREL", first=0x62, packet_id=1)
    client.expect("PUBREL", first=0x62, packet_id=9)
    client.drop()
    again = server.connect("s", clean_start=False, session_present=True)
    again.expect("PUBREL", first=0x62, packet_id=1, reason_code=0x00)


# --------------------------------------------------------------------------- Reason String and User Property


PROVOKE = {  # packet that provokes the answer, the answer, its Reason Code
    "PUBACK": (wire.publish("no", b"x", qos=1, packet_id=9), 0x87),
    "PUBREC": (wire.publish("no", b"x", qos=2, packet_id=9), 0x87),
    "PUBREL": (wire.pubrec(9), 0x92),
    "PUBCOMP": (wire.pubrel(9), 0x92),
}


def answer(server: Server, kind: str, maximum_packet_size: int, **connect: int) -> wire.Packet:
    """The refusing packet of this kind for a client with that limit."""
    client = server.connect("c", maximum_packet_size=maximum_packet_size, **connect)
    raw, code = PROVOKE[kind]
    client.send(raw)
    packet = client.expect(kind, packet_id=9, reason_code=code)
    client.expect_nothing()
    return packet


def reason_string_by_size(serve: Serve, kind: str) -> None:
    """8 bytes are enough for the Reason Code alone; with 1000 there is a Reason String; switched off none."""
    server = serve(hooks=[Policy(publish={"no": 0x87})], **BARE)
    small = answer(server, kind, 8)
    assert small.properties == {} and len(small.raw) in (5, 6)
    large = answer(server, kind, 1000)
    assert large.properties["reason_string"]
    assert answer(server, kind, len(large.raw)).properties == large.properties
    assert answer(server, kind, len(large.raw) - 1).properties == {}
    off = serve(hooks=[Policy(publish={"no": 0x87})], reason_strings=False, **BARE)
    assert answer(off, kind, 1000).properties == {}


def user_property_by_size(serve: Serve, kind: str) -> None:
    """A hook's User Property is sent if it fits; the Reason String goes first to make room for it."""
    server = serve(hooks=[refusing_hook()], **BARE)
    for size in (8, 109):
        assert "user_property" not in answer(server, kind, size).properties
    assert answer(server, kind, 110).properties == {"user_property": [PAIR]}
    large = answer(server, kind, 1000).properties
    assert large == {"reason_string": "No.", "user_property": [PAIR]}
    assert answer(server, kind, 1000, request_problem_information=0).properties == {}


def user_property_never(serve: Serve, kind: str) -> None:
    """No hook has a say in this packet: whatever the limit, there is no User Property in it."""
    server = serve(hooks=[refusing_hook()], **BARE)
    for size in (8, 109, 110, 1000):
        assert "user_property" not in answer(server, kind, size).properties


def refusing_hook() -> Policy:
    return Policy(publish={"no": 0x87}, reason_string="No.", user_properties=[PAIR])


def test_mqtt5_3_4_2_2__reason_string_of_puback(serve: Serve) -> None:
    reason_string_by_size(serve, "PUBACK")


def test_mqtt5_3_4_2_3__user_property_of_puback(serve: Serve) -> None:
    user_property_by_size(serve, "PUBACK")


def test_mqtt5_3_5_2_2__reason_string_of_pubrec(serve: Serve) -> None:
    reason_string_by_size(serve, "PUBREC")


def test_mqtt5_3_5_2_3__user_property_of_pubrec(serve: Serve) -> None:
    user_property_by_size(serve, "PUBREC")


def test_mqtt5_3_6_2_2__reason_string_of_pubrel(serve: Serve) -> None:
    reason_string_by_size(serve, "PUBREL")


def test_mqtt5_3_6_2_3__user_property_of_pubrel(serve: Serve) -> None:
    user_property_never(serve, "PUBREL")


def test_mqtt5_3_7_2_2__reason_string_of_pubcomp(serve: Serve) -> None:
    reason_string_by_size(serve, "PUBCOMP")


def test_mqtt5_3_7_2_3__user_property_of_pubcomp(serve: Serve) -> None:
    user_property_never(serve, "PUBCOMP")
