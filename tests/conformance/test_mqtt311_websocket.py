"""MQTT 3.1.1, chapter 6: WebSocket."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.connects_311 import WILL
from tests.conformance.server import Server
from tests.conformance.transports import BINARY, CONTINUATION, PING, TEXT
from tests.conformance.web_clients import expect_web_close, web_client


@pytest.mark.tcp_only("about WebSocket itself")
@pytest.mark.parametrize(("opcode", "code"), [(TEXT, 1003), (3, 1002), (7, 1002)])
def test_mqtt311_6_0_0_1__other_data_frames(server: Server, opcode: int, code: int) -> None:
    watcher = server.watch()
    client, stream = web_client(server, 4)
    client.connect("c", will=WILL)
    stream.send_frame(opcode, wire.pingreq())
    expect_web_close(stream, code)
    client.drop()
    watcher.expect_messages(("w/t", "gone"))


@pytest.mark.tcp_only("about WebSocket itself")
def test_mqtt311_6_0_0_1__text_frame_first(server: Server) -> None:
    stream = web_client(server, 4)[1]
    stream.send_frame(TEXT, wire.connect("c", version=4))
    expect_web_close(stream, 1003)
    server.connect("still-served", 4, reason=0)


@pytest.mark.tcp_only("about WebSocket itself")
def test_mqtt311_6_0_0_1__server_sends_binary(server: Server) -> None:
    stream = web_client(server, 4)[1]
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
    client, stream = web_client(server, 4)
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
    client, stream = web_client(server, 4, upgrade=False)
    assert stream.upgrade(offer) == 400
    client.drop()


@pytest.mark.tcp_only("about WebSocket itself")
def test_mqtt311_6_0_0_3__mqttv3_1(server: Server) -> None:
    client, stream = web_client(server, 4, upgrade=False)
    assert stream.upgrade("mqttv3.1") == 101
    assert stream.header("Sec-WebSocket-Protocol") == ["mqttv3.1"]
    client.connect("c", version=3, reason=0)
    client.expect_nothing()


@pytest.mark.tcp_only("about WebSocket itself")
@pytest.mark.parametrize("offer", ["mqtt", "mqtt, mqttv3.1", "mqttv3.1, mqtt", "chat, mqtt", "chat,mqtt , x"])
def test_mqtt311_6_0_0_4__mqtt_is_returned(server: Server, offer: str) -> None:
    client, stream = web_client(server, 4, upgrade=False)
    assert stream.upgrade(offer) == 101
    assert stream.header("Sec-WebSocket-Protocol") == ["mqtt"]
    client.connect("c", reason=0)
