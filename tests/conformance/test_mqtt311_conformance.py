"""MQTT 3.1.1, chapter 7: conformance."""

from __future__ import annotations

import socket

import pytest

from tests.conformance import wire
from tests.conformance.certificates import Authority
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed


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
        local = subscribed(server, "#", qos=1, client_id="local", version=4)
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
    resume(server, "a", version=4).expect_nothing()


@pytest.mark.tcp_only("takes each transport by itself")
def test_mqtt311_7_1_1_1__every_transport(serve: Serve, authority: Authority) -> None:
    server, context = serve(authority.config("tcp", "tls", "ws")), authority.client_side()
    for transport in ("tcp", "tls", "websocket"):
        client = server.client(4, transport=transport, context=context if transport == "tls" else None)
        client.connect("c", reason=0)
        client.subscribe("t", qos=1)
        client.publish("t", b"x" * 100_000, qos=1)
        client.expect("PUBLISH", payload=b"x" * 100_000)
        client.disconnect()


@pytest.mark.tcp_only("takes each transport by itself")
@pytest.mark.parametrize("way", ["tcp", "tls", "websocket"])
def test_mqtt311_7_1_1_1__split_at_every_boundary(serve: Serve, authority: Authority, way: str) -> None:
    server, context = serve(authority.config("tcp", "tls", "ws")), authority.client_side()
    data = wire.connect("c", version=4) + wire.subscribe(1, ("t", 1), version=4)
    data += wire.publish("t", b"x", qos=1, packet_id=2, version=4) + wire.pingreq()
    for cut in range(1, len(data)):
        client = server.client(4, transport=way, context=context if way == "tls" else None)
        client.send(data[:cut])
        client.send(data[cut:])
        for kind in ("CONNACK", "SUBACK", "PUBLISH", "PUBACK", "PINGRESP"):
            client.expect(kind)
        client.drop(wait=False)
