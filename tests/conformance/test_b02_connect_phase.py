"""B02: from the first byte to CONNACK."""

from __future__ import annotations

from typing import Any

import pytest

from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.authentication import METHOD
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Gate, Policy
from tests.conformance.refusals import refusals
from tests.conformance.server import Server
from tests.conformance.sessions import kept, returned


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


def pipelined(version: int = 5) -> list[bytes]:
    topics = [wire.publish("t", text, version=version) for text in (b"1", b"2")]
    return [wire.subscribe(1, "t", version=version), *topics, wire.pingreq()]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__pipelined_packets_wait_for_the_authenticator(serve: Serve, version: int) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate])
    watcher, client = server.watch(), server.client(version)
    server.hold(gate, client, wire.connect("c", version=version), *pipelined(version))
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
    server.hold(gate, client, wire.connect("c", version=version), *pipelined(version))
    server.run(gate.open())
    client.expect_close(0x87 if version == 5 else 5)
    watcher.expect_nothing()


@pytest.mark.tcp_only("fills the socket")
def test_b02__little_is_read_before_connack(serve: Serve) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate], maximum_packet_size=4096)
    client = server.client()
    server.hold(gate, client, wire.connect("c"))
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
    new = returned(server, keep_alive=2, session_expiry_interval=60, receive_maximum=10)
    old.expect_close(0x8E)
    new.expect("PUBLISH", payload="in flight", dup=True)
    new.expect("PUBLISH", payload="gone", dup=False)
    new.expect_nothing()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b02__keep_alive_starts_after_connack(serve: Serve, version: int) -> None:
    gate = Gate("c")
    server = serve(hooks=[gate])
    client, raw = server.client(version), wire.connect("c", version=version, keep_alive=2)
    server.hold(gate, client, raw)
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
    server.hold(hook.gate, slow, wire.connect("c", version=version, user_name="first"))
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
        server.hold(gate, client, wire.connect("c", clean_start=False, properties=[(0x11, interval)]))
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
    server.hold(gate, first, raw)  # the will of the old connection waits
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
    returned(server, version=version).expect_nothing()
