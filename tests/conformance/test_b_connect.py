"""Behaviours around CONNECT: B02 to B07 and B30."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import MqttError
from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import ConnackProperties, EnhancedAuth, Gate, Policy, Seen
from tests.conformance.refusals import Refusal, refusals
from tests.conformance.server import Server

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
REFUSED_3X, REFUSED_5 = bytes.fromhex("20 02 00 01"), bytes.fromhex("20 03 00 84 00")
METHOD = {"authentication_method": "X-TEST"}
NEVER = 0xFFFFFFFF


def resume(
    server: Server, client_id: str = "c", version: int = 5, present: bool = True, **kwargs: Any
) -> Raw:
    """The client again, with Clean Start 0."""
    shown = None if version == 3 else present  # 3.1 has no Session Present
    return server.connect(client_id, version, clean_start=False, session_present=shown, **kwargs)


def kept(version: int) -> dict[str, Any]:
    """The arguments of `connect` that make a session which outlives its connection."""
    return {"session_expiry_interval": 60} if version == 5 else {"clean_start": False}


# ---------------------------------------------------------------------------------- B02 connect phase


@pytest.mark.parametrize("sent", [0, 1, 12])
def test_b02__no_connect_in_time(server: Server, sent: int) -> None:
    client = server.client()
    server.settle()
    server.push(client, wire.connect("c")[:sent])
    server.advance(10.1)
    client.expect_close()


def test_b02__the_authentication_exchange_has_its_own_timeout(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2)])
    watcher, late, silent = server.watch(), server.client(), server.client()
    for client in (late, silent):
        client.send(wire.connect("late" if client is late else "c", properties=METHOD))
        client.expect("AUTH", reason_code=0x18)
    server.advance(29.9)
    late.send(wire.auth(0x18, {**METHOD, "authentication_data": b"proof"}))
    late.expect("CONNACK", reason_code=0)
    server.advance(0.2)
    silent.expect_close(0x87)
    late.expect_nothing()
    watcher.expect_nothing()


def held(server: Server, gate: Gate, client: Raw, *chunks: bytes) -> None:
    """*client* sends *chunks*, the first of which waits at *gate*."""
    before = gate.waiting
    client.send(*chunks)
    server.wait_until(lambda: gate.waiting > before, "the gate")


def pipelined(version: int = 5) -> list[bytes]:
    topics = [wire.publish("t", text, version=version) for text in (b"1", b"2")]
    return [wire.subscribe(1, "t", version=version), *topics, wire.pingreq()]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__pipelined_packets_wait_for_the_authenticator(serve: Serve, version: int) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate])
    watcher, client = server.watch(), server.client(version)
    held(server, gate, client, wire.connect("c", version=version), *pipelined(version))
    watcher.expect_nothing()
    server.run(gate.open())
    client.expect("CONNACK", reason_code=0)
    client.expect("SUBACK", packet_id=1)
    client.expect("PUBLISH", payload="1")
    client.expect("PUBLISH", payload="2")
    client.expect("PINGRESP")
    watcher.expect_messages(b"1", b"2")


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__pipelined_packets_are_thrown_away_after_a_refusal(serve: Serve, version: int) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate, Policy(connect={"c": 0x87})])
    watcher, client = server.watch(), server.client(version)
    held(server, gate, client, wire.connect("c", version=version), *pipelined(version))
    server.run(gate.open())
    client.expect_close(0x87 if version == 5 else 5)
    watcher.expect_nothing()


@pytest.mark.tcp_only("fills the socket")
def test_b02__little_is_read_before_connack(serve: Serve) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate], maximum_packet_size=4096)
    client = server.client()
    held(server, gate, client, wire.connect("c"))
    before = server.broker.stats.bytes_received
    client.transport.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.transport.sock.sendall(wire.pingreq() * (1 << 23))
    assert server.broker.stats.bytes_received == before
    server.run(gate.open())
    client.expect("CONNACK", reason_code=0)
    client.expect("PINGRESP")


def test_b02__order_of_work(serve: Serve) -> None:
    server = serve()
    publisher = server.connect("p")
    old = server.connect("c", session_expiry_interval=60, will=wire.will("s/will", b"gone", qos=1))
    old.subscribe("s/#", qos=1)
    publisher.publish("s/sent", b"in flight", qos=1)
    old.expect("PUBLISH", payload="in flight")
    new = resume(server, keep_alive=2, session_expiry_interval=60, receive_maximum=10)
    old.expect_close(0x8E)
    new.expect("PUBLISH", payload="in flight", dup=True)
    new.expect("PUBLISH", payload="gone", dup=False)
    new.expect_nothing()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__keep_alive_starts_after_connack(serve: Serve, version: int) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate])
    client, raw = server.client(version), wire.connect("c", version=version, keep_alive=2)
    held(server, gate, client, raw)
    server.advance(5)
    server.run(gate.open())
    client.expect("CONNACK", reason_code=0)
    server.advance(2)
    client.expect_nothing()
    server.advance(3.1)
    client.expect_close(0x8D)


class HoldFirst(HookBase):
    """Holds the first CONNECT of user "first" until the event; everybody else passes."""

    def __init__(self) -> None:
        self.gate = Gate("first")

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        await self.gate._wait(packet.user_name or "")


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__the_last_to_finish_authentication_wins(serve: Serve, version: int) -> None:
    hook = HoldFirst()
    server = serve(hooks=[hook], takeover="any")
    slow = server.client(version)
    held(server, hook.gate, slow, wire.connect("c", version=version, user_name="first"))
    fast = server.connect("c", version)
    fast.expect_nothing()
    server.run(hook.gate.open())
    slow.expect("CONNACK", reason_code=0)
    fast.expect_close(0x8E)
    slow.expect_nothing()


@pytest.mark.parametrize("interval", [0, 60])
def test_b02__many_at_once_leave_one(serve: Serve, interval: int) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate])
    clients = [server.client() for _ in range(10)]
    for client in clients:
        held(server, gate, client, wire.connect("c", clean_start=False, properties=[(0x11, interval)]))
    server.run(gate.open())
    server.settle()
    connacks = [client.expect("CONNACK", reason_code=0) for client in clients]
    assert sum(connack.session_present for connack in connacks) == (9 if interval else 0)
    assert len(server.broker.clients) == 1
    port = server.broker.clients["c"].info.address.rpartition(":")[2]
    [winner] = [client for client in clients if client.port == port]
    for client in clients:
        if client is not winner:
            client.expect_close(0x8E)
    winner.expect_nothing()


@pytest.mark.parametrize("interval", [0, 60])
def test_b02__a_takeover_that_waits_is_taken_over(serve: Serve, interval: int) -> None:
    gate = Gate("gate")
    server = serve(hooks=[gate])
    watcher, properties = server.watch(), [(0x11, interval)]
    old = server.connect("c", will=wire.will("gate", b"gone"), session_expiry_interval=interval)
    raw = wire.connect("c", clean_start=False, properties=properties)
    first, second = server.client(), server.client()
    held(server, gate, first, raw)  # the will of the old connection waits
    old.expect_close(0x8E)
    server.push(second, raw)
    server.run(gate.open())
    first.expect("CONNACK", reason_code=0)
    second.expect("CONNACK", reason_code=0, session_present=interval > 0)
    first.expect_close(0x8E)
    second.expect_nothing()
    watcher.expect_messages(b"gone")


# Reason Code -> Return Code of 3.1.1, None: close without a CONNACK.
IN_BOTH_VERSIONS = {0x86: 4, 0x87: 5, 0x8A: 5, 0x85: 2, 0x97: 3, 0x89: 3, 0x88: 3, 0x9F: None, 0x9C: 3,
                    0x9D: 3, 0x90: None, 0x9B: None, 0x9A: None, 0x80: None}  # fmt: skip


@pytest.mark.parametrize(("code", "code_3x"), IN_BOTH_VERSIONS.items())
def test_b02__codes_of_a_hooks_refusal(serve: Serve, code: int, code_3x: int | None) -> None:
    server = serve(hooks=[Policy(connect={"c": code})])
    server.expect_refused(wire.connect("c"), wire.publish("t", b"x"), codes=code)
    for version in (3, 4):
        client = server.client(version)
        client.send(wire.connect("c", version=version), wire.publish("t", b"x", version=version))
        client.expect_close(*[code_3x] if code_3x else [])


def test_b02__a_failing_hook_is_unspecific_to_3_1_1(serve: Serve) -> None:
    server = serve(hooks=[Policy(connect={"c": 0x83})])
    server.expect_refused(wire.connect("c"), codes=0x83)
    server.expect_refused(wire.connect("c", version=4), version=4)


BY_ITSELF = {
    "bad password": 4, "anonymous": 5, "long ClientID": 2, "empty ClientID": 2, "will to a wildcard": None,
    "will to $SYS": None, "Will QoS": None, "Will Retain": None, "trailing bytes": None, "too large": None,
}  # fmt: skip


@pytest.mark.parametrize("name", BY_ITSELF)
def test_b02__codes_of_the_brokers_refusals(serve: Serve, name: str) -> None:
    for version, code in ((5, refusals()[name].code), (4, BY_ITSELF[name]), (3, BY_ITSELF[name])):
        refusal = refusals(version=version)[name]
        client = serve(hooks=refusal.hooks(), **refusal.settings).client(version)
        client.send(refusal.raw)
        client.expect_close(*[code] if code else [])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__full(serve: Serve, version: int) -> None:
    server = serve(maximum_connections=1)
    only, other = server.connect("c", version), server.client(version)
    other.send(wire.connect("d", version=version))
    other.expect_close(0x97 if version == 5 else 3)
    server.connect("c", version).expect_nothing()
    only.expect_close(0x8E)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__too_many_sessions(serve: Serve, version: int) -> None:
    server = serve(maximum_sessions=1)
    server.connect("c", version, **kept(version)).drop()
    other = server.client(version)
    other.send(wire.connect("d", version=version))
    other.expect_close(0x97 if version == 5 else 3)
    resume(server, version=version).expect_nothing()


# ---------------------------------------------------------------------------------- B03 versions


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


# ---------------------------------------------------------------------------------- B04 ClientID

LEGAL = ["c", " c", "c ", "C", "a/b", "#", "+", "$SYS", "$share/g/t", "é", "e\u0301", "\ufeffc", "\U0001f600",
         "Å", "\u212b", "ß", "ss", "\u3000", "x" * 65535, "é" * 32767]  # fmt: skip


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b04__well_formed_client_ids_are_kept_as_they_are(server: Server, version: int) -> None:
    clients = []
    for client_id in LEGAL:
        client = server.client(version)
        client.send(wire.connect(client_id, version=version))
        client.expect("CONNACK", reason_code=0, assigned_client_identifier=None)
        clients.append(client)
    for client in clients:  # nobody was taken over by another
        client.expect_nothing()
    server.connect(LEGAL[0], version).expect_nothing()
    clients[0].expect_close(0x8E)


def test_b04__a_length_may_be_set(serve: Serve) -> None:
    server = serve(maximum_client_id_bytes=30)
    for version, code in ((5, 0x85), (4, 2), (3, 2)):
        for client_id in ("c" * 30, "é" * 15):
            server.connect(client_id, version).expect_nothing()
        for client_id in ("c" * 31, "é" * 15 + "c"):
            server.expect_refused(wire.connect(client_id, version=version), codes=code, version=version)


CONTROLS = ["\x01", "\x1f", "\x7f", "\x9f", "\ufdd0", "\ufffe", "\U0010ffff"]


@pytest.mark.parametrize("version", [4, 5])
def test_b04__control_characters(serve: Serve, version: int) -> None:
    strict, lenient = serve(), serve(disallowed_code_points="accept")
    for text in CONTROLS:
        raw = wire.connect(f"c{text}", version=version)
        strict.expect_refused(raw, codes=MALFORMED if version == 5 else (), version=version)
        lenient.connect(f"c{text}", version).expect_nothing()


def test_b04__who_gets_an_id_assigned(server: Server) -> None:
    for clean_start in (True, False):
        client = server.client()
        assert "assigned_client_identifier" in client.connect("", clean_start=clean_start).properties
    client = server.client(version=4)
    assert client.connect("").raw == bytes.fromhex("20 02 00 00")
    client.subscribe("t")
    client.publish("t", b"x")
    client.expect("PUBLISH", payload="x")
    server.expect_refused(wire.connect("", version=4, clean_start=False), codes=2, version=4)


def test_b04__the_form_of_an_assigned_id(server: Server) -> None:
    found = [server.connect("").client_id for _ in range(20)]
    assert all(len(one) == 23 and one.isascii() and one.isalnum() for one in found)
    assert len({one[0] for one in found}) == 1 and len(set(found)) == 20
    assert all(len({one[at] for one in found}) > 1 for at in range(-17, 0))  # 17 characters: 101 bits


class Renames(HookBase):
    """Gives every client the ClientID "cert-<user name>"."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        if packet.user_name:
            packet.client_id = f"cert-{packet.user_name}"


def test_b04__a_rewritten_client_id_is_returned(serve: Serve) -> None:
    server = serve(hooks=[Renames()])
    for client_id in ("mine", "", "other"):
        client = server.client()
        client.connect(client_id, clean_start=False, user_name="u", session_expiry_interval=60,
                       session_present=client_id != "mine")  # fmt: skip
        assert client.connack is not None
        assert client.connack.properties["assigned_client_identifier"] == "cert-u"
    server.connect("mine", clean_start=False, session_present=False).expect_nothing()


# ---------------------------------------------------------------------------------- B05 takeover


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize("old", [3, 4, 5])
def test_b05__the_old_connection_is_closed(server: Server, old: int, new: int) -> None:
    first = server.connect("c", old)
    second = server.connect("c", new)
    first.expect_close(0x8E)
    second.expect_nothing()


def test_b05__only_after_authentication(serve: Serve) -> None:
    gate = Gate("c")
    server = serve(hooks=[Policy(users={"u": 0x86}), gate])
    server.run(gate.open())
    old = server.connect("c")
    server.run(_close(gate))
    refused, slow = server.client(), server.client()
    refused.send(wire.connect("c", user_name="u"))
    refused.expect_close(0x86)
    held(server, gate, slow, wire.connect("c"))
    old.expect_nothing()
    server.run(gate.open())
    old.expect_close(0x8E)
    slow.expect("CONNACK", reason_code=0)


async def _close(gate: Gate) -> None:
    gate.opened.clear()


def test_b05__the_old_connection_processes_nothing_more(serve: Serve) -> None:
    gate = Gate("gate")
    server = serve(hooks=[gate])
    watcher, old = server.watch("after"), server.connect("c", session_expiry_interval=60)
    old.publish("after", b"acknowledged", qos=1, reason=0)
    chunks = [
        wire.publish("gate", qos=1, packet_id=5),
        wire.publish("after", b"x"),
        wire.subscribe(9, "after"),
    ]
    held(server, gate, old, *chunks)
    resume(server).expect_nothing()
    old.expect_close(0x8E)
    server.run(gate.open())
    server.settle()
    watcher.expect_messages(b"acknowledged")


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize("old", [3, 4, 5])
def test_b05__state_moves_across_versions(server: Server, old: int, new: int) -> None:
    watcher, publisher = server.watch("in"), server.connect("p")
    first = (
        server.connect("c", old, receive_maximum=3, **kept(5))
        if old == 5
        else server.connect("c", old, **kept(4))
    )
    first.subscribe("s/#", qos=2)
    first.send(wire.publish("in", b"held", qos=2, packet_id=9, version=old))
    first.expect("PUBREC", packet_id=9)
    for number, qos in enumerate((1, 2, 2, 1, 1)):
        publisher.publish("s/t", str(number), qos=qos, reason=0)
    sent = [first.expect("PUBLISH", payload=str(number), dup=False) for number in range(3 if old == 5 else 5)]
    first.send(wire.pubrec(sent[2].packet_id, version=old))
    first.expect("PUBREL", packet_id=sent[2].packet_id)

    second = resume(server, version=new, **kept(5) if new == 5 else {})
    first.expect_close(0x8E)
    identifiers = [packet.packet_id for packet in sent]
    again = []
    for number in (0, 1):
        fields = {"payload": str(number), "qos": number + 1, "packet_id": identifiers[number]}
        again.append(second.expect("PUBLISH", dup=True, **fields))
    again.append(second.expect("PUBREL", packet_id=identifiers[2]))
    for number in (3, 4):
        again.append(second.expect("PUBLISH", payload=str(number), qos=1, dup=number < len(sent)))
    second.expect_nothing()
    for packet in again:
        second.ack(packet)
    second.release(9)
    watcher.expect_messages(b"held")
    publisher.publish("s/t", b"live", qos=1, reason=0)
    second.expect("PUBLISH", payload="live")


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize("old", [3, 4, 5])
@pytest.mark.parametrize("clean_start", [True, False])
def test_b05__a_session_that_ends_with_its_connection_is_not_taken_over(
    server: Server, old: int, new: int, clean_start: bool
) -> None:
    watcher = server.watch("w")
    first = server.connect("c", old, will=wire.will("w", b"gone"))
    first.subscribe("t", qos=1)
    second = server.connect("c", new, clean_start=clean_start, session_present=False)
    first.expect_close(0x8E)
    watcher.expect_messages(b"gone")
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    second.expect_nothing()


@pytest.mark.parametrize(("version", "code"), [(5, 0x87), (4, 5), (3, 5)])
@pytest.mark.parametrize("connected", [True, False])
def test_b05__another_user_is_refused(server: Server, version: int, code: int, connected: bool) -> None:
    old = server.connect("c", user_name="u", session_expiry_interval=60)
    if not connected:
        old.drop()
    for name in ("other", "U", None):
        client = server.client(version)
        client.send(wire.connect("c", version=version, clean_start=False, user_name=name))
        client.expect_close(code)
    if connected:
        old.expect_nothing()
    resume(server, user_name="u").expect_nothing()


@pytest.mark.parametrize("connected", [True, False])
def test_b05__another_user_by_setting(serve: Serve, connected: bool) -> None:
    server = serve(takeover="any")
    old = server.connect("c", user_name="u", session_expiry_interval=60)
    if not connected:
        old.drop()
    resume(server, user_name="other").expect_nothing()
    if connected:
        old.expect_close(0x8E)


# ---------------------------------------------------------------------------------- B06 session lifetime


def ends_after(server: Server, seconds: float, leave: Callable[[], None], version: int = 5) -> None:
    """*leave* makes the session of "c" and leaves it; it ends after *seconds*, and not earlier."""
    for waited, present in ((seconds - 0.1, True), (seconds + 0.1, False)):
        leave()
        server.advance(waited)
        last = resume(server, version=version, present=present)
        last.disconnect()
        server.connect("c", version).disconnect()


@pytest.mark.parametrize(("asked", "held"), [(99, 99), (100, 100), (101, 100), (NEVER, 100)])
def test_b06__the_interval_is_capped_and_told_if_changed(serve: Serve, asked: int, held: int) -> None:
    server = serve(session_expiry_interval=100)

    def leave() -> None:
        client = server.client()
        connack = client.connect("c", session_expiry_interval=asked)
        assert connack.properties.get("session_expiry_interval") == (None if asked == held else held)
        client.drop()

    ends_after(server, held, leave)


@pytest.mark.parametrize(("last", "held"), [(20, 20), (200, 100), (NEVER, 100)])
@pytest.mark.parametrize("code", [0x00, 0x04, 0x80])
def test_b06__disconnect_changes_the_interval(serve: Serve, last: int, held: int, code: int) -> None:
    server = serve(session_expiry_interval=100)

    def leave() -> None:
        client = server.connect("c", session_expiry_interval=50)
        client.disconnect(code, {"session_expiry_interval": last})

    ends_after(server, held, leave)


def test_b06__disconnect_ends_the_session_with_0(server: Server) -> None:
    client = server.connect("c", session_expiry_interval=50)
    client.disconnect(0x00, {"session_expiry_interval": 0})
    resume(server, present=False).expect_nothing()


@pytest.mark.parametrize(("old", "new"), [(50, 20), (20, 50), (50, 50)])
@pytest.mark.parametrize("taken_over", [True, False])
def test_b06__the_new_connects_interval_replaces_the_old_one(
    server: Server, old: int, new: int, taken_over: bool
) -> None:
    def leave() -> None:
        first = server.connect("c", session_expiry_interval=old)
        first.expect_nothing() if taken_over else first.drop()
        resume(server, session_expiry_interval=new).drop()

    ends_after(server, new, leave)


def test_b06__the_new_connect_without_an_interval_ends_it(server: Server) -> None:
    server.connect("c", session_expiry_interval=50).drop()
    resume(server).drop()
    resume(server, present=False).expect_nothing()


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("interval", [0, 30])
def test_b06__interval_of_3x_sessions(serve: Serve, version: int, interval: int) -> None:
    server = serve(session_expiry_interval_3x=interval)
    client = server.connect("c", version, clean_start=False)
    client.subscribe("t", qos=1)
    client.drop()
    if interval:
        server.advance(interval - 0.1)
        server.connect("p").publish("t", b"x", qos=1, reason=0)
        server.advance(0.2)
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    resume(server, version=4, present=False).expect_nothing()


@pytest.mark.parametrize("version", [3, 4])
def test_b06__clean_session_1_ends_with_its_connection(server: Server, version: int) -> None:
    client = server.connect("c", version)
    client.subscribe("t", qos=1)
    client.drop()
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    resume(server, version=4, present=False).expect_nothing()


def test_b06__the_default_of_3x_is_the_cap(server: Server) -> None:
    ends_after(server, 7 * 86400, lambda: server.connect("c", 4, clean_start=False).drop(), version=4)


def test_b06__the_clock_starts_when_the_connection_closes(server: Server) -> None:
    def leave() -> None:
        client = server.connect("c", session_expiry_interval=30)
        server.advance(1000, step=100)
        client.expect_nothing()
        client.drop()

    ends_after(server, 30, leave)


def test_b06__a_deadline_counts_before_anyone_looks_at_it(server: Server) -> None:
    client = server.connect("c", session_expiry_interval=30)
    client.subscribe("t", qos=1)
    client.drop()
    server.clock.now += 30.1  # no look at deadlines
    resume(server, present=False).expect_nothing()
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)


def test_b06__at_expiry_all_is_gone_but_retained_messages(server: Server) -> None:
    watcher, publisher = server.watch("w/#"), server.connect("p")
    will = wire.will("w/a", b"gone", will_delay_interval=1000)
    client = server.connect("c", session_expiry_interval=30, will=will)
    client.subscribe("s/#", qos=2)
    client.publish("kept", b"retained", qos=1, retain=True)
    client.send(wire.publish("w/in", b"held", qos=2, packet_id=9))
    client.expect("PUBREC", packet_id=9)
    publisher.publish("s/sent", b"1", qos=2)
    client.expect("PUBLISH", payload="1")
    client.drop()
    publisher.publish("s/queued", b"2", qos=1, reason=0)
    server.advance(30.1)
    watcher.expect_messages(("w/a", b"gone"))
    publisher.publish("s/later", b"3", qos=1, reason=0x10)
    again = resume(server, present=False)
    again.expect_nothing()
    again.release(9, reason=0x92)
    publisher.publish("s/later", b"4", qos=1, reason=0x10)
    again.expect_nothing()
    watcher.expect_nothing()
    assert server.retained() == [("kept", b"retained")]


def test_b06__at_expiry_shared_messages_go_to_another_member(server: Server) -> None:
    client, publisher = server.connect("c", session_expiry_interval=30), server.connect("p")
    client.subscribe("$share/g/t", qos=1)
    publisher.publish("t", b"1", qos=1)
    client.expect("PUBLISH", payload="1")
    other = server.connect("d")
    other.subscribe("$share/g/t", qos=1)
    client.drop()
    server.advance(29.9)
    other.expect_nothing()
    server.advance(0.2)
    other.expect_messages(b"1", qos=1, dup=False)


@pytest.mark.parametrize("properties", [{}, {"session_expiry_interval": 0}])
def test_b06__interval_0_ends_at_close(server: Server, properties: dict[str, int]) -> None:
    client = server.connect("c", **properties)
    client.subscribe("t", qos=1)
    client.drop()
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    resume(server, present=False).expect_nothing()


def test_b06__clean_start_1_starts_empty_and_is_kept(server: Server) -> None:
    for number in range(2):
        client = server.connect("c", clean_start=True, session_expiry_interval=60, session_present=False)
        client.expect_nothing()
        client.subscribe(f"t/{number}", qos=1)
        client.drop()
        server.connect("p").publish(f"t/{number}", str(number), qos=1, reason=0)
    resume(server).expect_messages(b"1")


@pytest.mark.parametrize(("old", "new"), [(5, 5), (4, 4), (5, 4), (4, 5), (3, 4)])
def test_b06__an_empty_session_is_present(server: Server, old: int, new: int) -> None:
    server.connect("c", old, **kept(old)).drop()
    resume(server, version=new).expect_nothing()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b06__removed_by_the_operator(server: Server, version: int) -> None:
    client = server.connect("c", version)
    assert server.run(server.broker.disconnect("c"))
    client.expect_close(0x98)
    resume(server, version=4, present=False).expect_nothing()


# ---------------------------------------------------------------------------------- B07 wills


def dying(server: Server, version: int = 5, delay: int = 0, interval: int = 0, **kwargs: Any) -> Raw:
    """A client "c" with a will "gone" to "w"; Keep Alive 10."""
    properties = {"session_expiry_interval": interval} if version == 5 else {"clean_start": not interval}
    will = wire.will("w", b"gone", will_delay_interval=delay)
    return server.connect("c", version, will=will, keep_alive=10, **properties, **kwargs)


def expect_will(server: Server, watcher: Raw, after: float | None) -> None:
    """The will comes *after* that many seconds, not earlier and only once; None: never."""
    if after:
        server.advance(after - 0.1)
        watcher.expect_nothing()
        server.advance(0.2)
    watcher.expect_messages(*[("w", b"gone")] * (after is not None), qos=0, retain=False)
    server.advance(1_000_000)
    watcher.expect_nothing()


def breach(server: Server, client: Raw) -> None:
    client.send(bytes.fromhex("C1 00"))
    client.expect_close(MALFORMED)
    client.drop()


def silence(server: Server, client: Raw) -> None:
    server.advance(15)
    client.expect_close(0x8D)
    client.drop()


def kick(server: Server, client: Raw) -> None:
    server.run(server.broker.disconnect("c"))
    client.expect_close(0x98)
    client.drop()


def leave(code: int | None) -> Callable[[Server, Raw], None]:
    return lambda server, client: client.disconnect(code)


ABNORMAL_3X: dict[str, Callable[[Server, Raw], None]] = {
    "FIN": lambda server, client: client.drop(),
    "RST": lambda server, client: client.reset(),
    "Keep Alive": silence,
    "error": breach,
    "kick": kick,
}
ABNORMAL = {**ABNORMAL_3X, "DISCONNECT 0x04": leave(0x04), "DISCONNECT 0x80": leave(0x80),
            "DISCONNECT 0x99": leave(0x99)}  # fmt: skip
DUE = [(0, 0, 0), (0, 50, 0), (5, 0, 0), (5, 50, 5), (50, 50, 50), (50, 5, 5), (5, NEVER, 5)]


@pytest.mark.parametrize("end", ABNORMAL.values(), ids=ABNORMAL)
@pytest.mark.parametrize(("delay", "interval", "after"), DUE)
def test_b07__abnormal_end(
    server: Server, end: Callable[[Server, Raw], None], delay: int, interval: int, after: int
) -> None:
    watcher = server.watch()
    end(server, dying(server, 5, delay, interval))
    expect_will(server, watcher, after)


@pytest.mark.parametrize(("delay", "interval", "after"), DUE)
@pytest.mark.parametrize("code", [None, 0x00])
def test_b07__disconnect_0_deletes(
    server: Server, delay: int, interval: int, after: int, code: int | None
) -> None:
    watcher = server.watch()
    dying(server, 5, delay, interval).disconnect(code)
    expect_will(server, watcher, None)


RETURNS = [  # delay, interval, waited, Clean Start, will
    (5, 50, 4.9, False, None),
    (50, 50, 49.9, False, None),
    (50, 5, 4.9, False, None),
    (5, 50, 4.9, True, 0),
    (50, 5, 4.9, True, 0),
    (50, 50, 0, True, 0),
]


@pytest.mark.parametrize("end", ABNORMAL.values(), ids=ABNORMAL)
@pytest.mark.parametrize(("delay", "interval", "waited", "clean_start", "after"), RETURNS)
def test_b07__a_new_connection_in_time(
    server: Server, end: Callable[[Server, Raw], None], delay: int, interval: int, waited: float,
    clean_start: bool, after: int | None,
) -> None:  # fmt: skip
    watcher = server.watch()
    end(server, dying(server, 5, delay, interval))
    server.advance(waited) if waited else None
    watcher.expect_nothing()
    server.connect("c", clean_start=clean_start, session_present=not clean_start)
    expect_will(server, watcher, after)


def test_b07__a_will_that_is_due_is_not_cancelled(server: Server) -> None:
    watcher = server.watch()
    dying(server, 5, delay=5, interval=50).drop()
    server.clock.now += 5.1  # no look at deadlines
    resume(server).expect_nothing()
    expect_will(server, watcher, 0)


TAKEOVERS = [  # Clean Start, delay, interval, will
    (False, 0, 50, 0),
    (False, 5, 50, None),
    (False, 50, 5, None),
    (False, 0, 0, 0),
    (False, 5, 0, 0),
    (True, 0, 0, 0),
    (True, 5, 0, 0),
    (True, 0, 50, 0),
    (True, 5, 50, 0),
]


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize(("clean_start", "delay", "interval", "after"), TAKEOVERS)
def test_b07__takeover(
    server: Server, clean_start: bool, delay: int, interval: int, after: int | None, new: int
) -> None:
    watcher, old = server.watch(), dying(server, 5, delay, interval)
    present = None if new == 3 else interval > 0 and not clean_start
    newcomer = server.connect("c", new, clean_start=clean_start, session_present=present)
    old.expect_close(0x8E)
    expect_will(server, watcher, after)
    newcomer.drop()
    expect_will(server, watcher, None)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("interval", [0, 1])
def test_b07__3x_has_no_delay(server: Server, version: int, interval: int) -> None:
    watcher = server.watch()
    for end in ABNORMAL_3X.values():
        end(server, dying(server, version, interval=interval))
        expect_will(server, watcher, 0)
    dying(server, version, interval=interval).disconnect()
    expect_will(server, watcher, None)


@pytest.mark.parametrize("old", [3, 4])
@pytest.mark.parametrize("interval", [0, 1])
@pytest.mark.parametrize("clean_start", [True, False])
def test_b07__3x_takeover(server: Server, old: int, interval: int, clean_start: bool) -> None:
    watcher, client = server.watch(), dying(server, old, interval=interval)
    server.connect("c", clean_start=clean_start, session_present=interval > 0 and not clean_start)
    client.expect_close()
    expect_will(server, watcher, 0)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean_start", [True, False])
def test_b07__a_new_session_does_not_get_its_own_old_will(
    server: Server, version: int, clean_start: bool
) -> None:
    watcher, old = server.watch(), dying(server, version, interval=0)
    new = server.client(version)
    raw = wire.connect("c", version=version, clean_start=clean_start)
    new.send(raw, wire.subscribe(1, "w", version=version), wire.publish("other", b"x", version=version))
    new.expect("CONNACK", reason_code=0, session_present=False)
    new.expect("SUBACK", packet_id=1)
    new.expect_nothing()
    old.expect_close(0x8E)
    watcher.expect_messages(("w", b"gone"), ("other", b"x"))


@pytest.mark.parametrize("no_local", [True, False])
def test_b07__a_resumed_session_gets_it_unless_no_local(server: Server, no_local: bool) -> None:
    will = wire.will("w", b"gone", qos=1)
    old = server.connect("c", session_expiry_interval=60, will=will)
    old.subscribe("w", qos=1, no_local=no_local)
    new = resume(server)
    old.expect_close(0x8E)
    new.expect_messages(*[b"gone"] * (not no_local), qos=1, dup=False)


def test_b07__its_owner_may_not_publish_there(serve: Serve) -> None:
    server = serve(hooks=[Policy(publish={"w": 0x87})])
    watcher = server.watch()
    will = wire.will("w", b"gone", qos=1, retain=True)
    server.connect("c", will=will).drop()
    server.connect("d", 4, will=will).drop()
    watcher.expect_nothing()
    assert server.retained() == []


def test_b07__retained_rules_and_overlap(server: Server) -> None:
    client = server.connect("s")
    client.subscribe("w/#", "w/+", "#", qos=2, subscription_identifier=3)
    client.subscribe(("w/a", wire.options(1, retain_as_published=True)), subscription_identifier=4)
    server.connect("c", will=wire.will("w/a", b"gone", qos=1, retain=True)).drop()
    [packet] = client.expect_messages(b"gone", qos=1, retain=True)
    assert sorted(packet.properties["subscription_identifier"]) == [3, 3, 3, 4]
    assert server.retained("w/#") == [("w/a", b"gone")]
    server.connect("c", will=wire.will("w/a", b"", retain=True)).drop()
    client.expect_messages(b"", retain=True)
    assert server.retained("w/#") == []


def test_b07__expiry_counts_from_publication(server: Server) -> None:
    watcher = server.watch()
    will = wire.will("w", b"gone", qos=1, retain=True, will_delay_interval=50, message_expiry_interval=10)
    server.connect("c", will=will, session_expiry_interval=100).drop()
    sleeper = server.connect("s", session_expiry_interval=1000)
    sleeper.subscribe("w", qos=1)
    sleeper.drop()
    server.advance(50)
    watcher.expect("PUBLISH", payload="gone", message_expiry_interval=10)
    server.advance(4)
    resume(server, "s", session_expiry_interval=1000).expect("PUBLISH", message_expiry_interval=6)
    server.advance(5.9)
    assert server.retained() == [("w", b"gone")]
    server.advance(0.2)
    assert server.retained() == []


def test_b07__will_delay_interval_is_not_forwarded(server: Server) -> None:
    watcher = server.watch()
    will = wire.will("w", b"gone", will_delay_interval=1, content_type="x", user_property=[("a", "b")])
    server.connect("c", will=will, session_expiry_interval=60).drop()
    server.advance(1)
    watcher.expect("PUBLISH", properties={"content_type": "x", "user_property": [("a", "b")]})


BAD_WILLS = [
    (wire.will("w/+"), {}, 0x90),
    (wire.will(""), {}, 0x90),
    (wire.will("$SYS/w"), {}, 0x90),
    (wire.will("$other/w"), {}, 0x90),
    (wire.will("a/b/c"), {"maximum_topic_levels": 2}, 0x90),
    (wire.will("w", qos=1), {"maximum_qos": 0}, 0x9B),
    (wire.will("w", retain=True), {"retain_available": False}, 0x9A),
]


@pytest.mark.parametrize(("will", "settings", "code"), BAD_WILLS)
def test_b07__checked_at_connect(serve: Serve, will: wire.Will, settings: dict[str, Any], code: int) -> None:
    server = serve(**settings)
    server.expect_refused(wire.connect("c", will=will), codes=code)
    server.expect_refused(wire.connect("c", will=will, version=4), version=4)


@pytest.mark.parametrize(
    ("interval", "delay", "published"), [(0, 0, True), (0, 5, True), (60, 0, True), (60, 5, False)]
)
def test_b07__shutdown(serve: Serve, interval: int, delay: int, published: bool) -> None:
    server, heard = serve(grace_time=0.05), list[bytes]()
    client = dying(server, 5, delay, interval)
    server.run(_stop_and_listen(server, heard))
    client.expect_close(0x8B)
    assert heard == [b"gone"] * published


async def _stop_and_listen(server: Server, heard: list[bytes]) -> None:
    """Stops the broker; *heard* is what a subscriber within the program gets while it stops."""
    subscription = server.broker.subscribe("w")
    await server.broker.stop()
    try:
        while True:
            heard.append((await asyncio.wait_for(anext(aiter(subscription)), 0.02)).payload)
    except (TimeoutError, StopAsyncIteration):
        return


def test_b07__each_connect_replaces_the_stored_will(server: Server) -> None:
    watcher = server.watch()
    kwargs = {"session_expiry_interval": 60, "clean_start": False}
    for payload in (b"1", b"2"):
        old = server.connect("c", will=wire.will("w", payload, will_delay_interval=5), **kwargs)
    old.drop()
    server.advance(5)
    watcher.expect_messages(b"2")
    server.connect("c", will=wire.will("w", b"3", will_delay_interval=5), **kwargs).drop()
    server.connect("c", **kwargs).drop()
    server.advance(100)
    watcher.expect_nothing()


# ---------------------------------------------------------------------------------- B30 CONNACK properties

SILENT = {
    "receive_maximum": 65535,
    "maximum_packet_size": 268435460,
    "topic_alias_maximum": 0,
}  # the standard's
DEFAULT = {"receive_maximum": 1024, "maximum_packet_size": 1 << 20, "topic_alias_maximum": 64}


def test_b30__defaults_of_the_broker(server: Server) -> None:
    connack = server.client().connect("c")
    assert connack.properties == DEFAULT


def test_b30__nothing_where_nothing_differs(serve: Serve) -> None:
    server = serve(**SILENT)
    names = ("request_response_information", "request_problem_information", "receive_maximum")
    properties = {"session_expiry_interval": 60, "topic_alias_maximum": 5, **dict.fromkeys(names, 1)}
    for given in ({}, properties):
        connack = server.client().connect("c", keep_alive=30, **given)
        assert connack.raw == bytes.fromhex("20 03 00 00 00")


TOLD: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [  # settings, CONNECT, CONNACK
    ({"session_expiry_interval": 9}, {"session_expiry_interval": 10}, {"session_expiry_interval": 9}),
    ({"session_expiry_interval": 9}, {"session_expiry_interval": 9}, {}),
    ({"receive_maximum": 65534}, {}, {"receive_maximum": 65534}),
    ({"maximum_qos": 1}, {}, {"maximum_qos": 1}),
    ({"maximum_qos": 0}, {}, {"maximum_qos": 0}),
    ({"retain_available": False}, {}, {"retain_available": 0}),
    ({"maximum_packet_size": 268435459}, {}, {"maximum_packet_size": 268435459}),
    ({}, {"client_id": ""}, {"assigned_client_identifier": "?"}),
    ({"topic_alias_maximum": 1}, {}, {"topic_alias_maximum": 1}),
    ({"wildcard_subscription_available": False}, {}, {"wildcard_subscription_available": 0}),
    ({"subscription_identifier_available": False}, {}, {"subscription_identifier_available": 0}),
    ({"shared_subscription_available": False}, {}, {"shared_subscription_available": 0}),
    ({"server_keep_alive": 9}, {"keep_alive": 10}, {"server_keep_alive": 9}),
    ({"server_keep_alive": 9}, {"keep_alive": 0}, {"server_keep_alive": 9}),
    ({"server_keep_alive": 9}, {"keep_alive": 9}, {}),
    ({"response_information": "r"}, {"request_response_information": 1}, {"response_information": "r"}),
    ({"response_information": "r"}, {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "asked", "told"), TOLD)
def test_b30__each_property_where_it_differs(
    serve: Serve, settings: dict[str, Any], asked: dict[str, Any], told: dict[str, Any]
) -> None:
    server = serve(**{**SILENT, **settings})
    connack = server.client().connect(**{"client_id": "c", **asked})
    if told == {"assigned_client_identifier": "?"}:
        assert list(connack.properties) == list(told)
    else:
        assert connack.properties == told


def test_b30__enhanced_authentication_and_user_properties(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=1), ConnackProperties(("k", "v"))], **SILENT)
    connack = server.client().connect("c", **METHOD, authentication_data=b"proof")
    assert connack.properties == {**METHOD, "authentication_data": b"welcome", "user_property": [("k", "v")]}


IN_REFUSALS = {
    "reason_string",
    "user_property",
    "server_reference",
    "authentication_method",
    "authentication_data",
}
EVERYTHING = {
    **dict.fromkeys(("server_keep_alive", "session_expiry_interval", "receive_maximum"), 5),
    "response_information": "r",
    "shared_subscription_available": False,
}
ASKING = [(0x11, 1000), (0x19, 1)]


@pytest.mark.parametrize("name", refusals())
def test_b30__properties_of_a_refusal(serve: Serve, name: str) -> None:
    refusal: Refusal = refusals(properties=ASKING)[name]
    server = serve(hooks=[*refusal.hooks()], **{**EVERYTHING, **refusal.settings})
    client = server.client()
    client.send(refusal.raw)
    connack = client.expect_close(refusal.code)
    assert connack is not None and set(connack.properties) <= IN_REFUSALS
    # A CONNECT that is no CONNECT by the format need not be read as far as the limit for a Reason String.
    assert "reason_string" in connack.properties or connack.reason_code in (0x81, 0x82, 0x95)


class Redirects(HookBase):
    """Sends everybody elsewhere."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        client.user_properties.append(("not", "sent"))
        code = int(packet.client_id, 16)
        raise MqttError("elsewhere", code, user_properties=[("k", "v")], server_reference="b:1883 [::1]:1883")


def test_b30__a_redirection(serve: Serve) -> None:
    server = serve(hooks=[Redirects()], **EVERYTHING)
    for code in (0x9C, 0x9D, 0x87):
        client = server.client()
        client.send(wire.connect(f"{code:x}", properties=ASKING))
        reference = None if code == 0x87 else "b:1883 [::1]:1883"
        connack = client.expect_close(code, server_reference=reference, user_property=[("k", "v")])
        assert connack is not None and set(connack.properties) <= IN_REFUSALS


def test_b30__a_refused_authentication(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=1, reason_string="No.")], **EVERYTHING)
    client = server.client()
    client.send(wire.connect("c", properties=[*ASKING, (0x15, "X-TEST"), (0x16, b"wrong")]))
    connack = client.expect_close(0x87, reason_string="No.", authentication_data=None)
    assert connack is not None and set(connack.properties) <= IN_REFUSALS
