"""MQTT 5.0 chapter 6: MQTT over WebSocket. These tests make frames and requests of their own."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.script import SCRIPT, expect_answers
from tests.conformance.server import Server
from tests.conformance.transports import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT
from tests.conformance.web_clients import (
    data_frames,
    expect_web_close,
    in_binary,
    names_in,
    next_frame,
    send_frames,
    upgraded,
    web_client,
)

pytestmark = pytest.mark.tcp_only("it brings its own WebSocket connections")

UNSUPPORTED_DATA = 1003


# --------------------------------------------------------------------------- binary frames


@pytest.mark.parametrize("split", [False, True])
def test_mqtt5_6_0_0_1__connect_in_a_text_frame(server: Server, split: bool) -> None:
    client, websocket = web_client(server)
    raw = wire.connect("c")
    if split:
        send_frames(client, (TEXT, raw[:5], False), (CONTINUATION, raw[5:], True))
    else:
        send_frames(client, (TEXT, raw, True))
    expect_web_close(websocket, UNSUPPORTED_DATA)
    server.connect("c", clean_start=False, session_present=False)


@pytest.mark.parametrize("text", [b"", b"x", wire.publish("t", b"no", retain=True)])
def test_mqtt5_6_0_0_1__text_frame_after_connack(server: Server, text: bytes) -> None:
    watcher = server.watch("#")
    client, websocket = web_client(server)
    client.connect("c", will=wire.will("w", b"will"))
    send_frames(client, (TEXT, text, True), (BINARY, wire.publish("t", b"no"), True))
    expect_web_close(websocket, UNSUPPORTED_DATA)
    watcher.expect("PUBLISH", topic_name="w", payload="will")
    watcher.expect_nothing()
    assert server.retained() == []


def test_mqtt5_6_0_0_1__the_server_sends_binary_frames(server: Server) -> None:
    client, websocket = web_client(server)
    in_binary(client, *SCRIPT)
    expect_answers(client)
    in_binary(client, wire.subscribe(7, "u"), wire.publish("u", b"x" * 70_000), bytes.fromhex("C1 00"))
    frames = data_frames(websocket)
    assert {opcode for opcode, _ in frames} == {BINARY}
    assert names_in(b"".join(payload for _, payload in frames))[-1] == "DISCONNECT"


def test_mqtt5_6_0_0_1__control_frames_are_fine(server: Server) -> None:
    client, websocket = web_client(server)
    raw = wire.connect("c")
    for frame in ((PONG, b"unasked"), (PING, b"before"), (PING, b""), (PING, b"x" * 125)):
        send_frames(client, (*frame, True))
    send_frames(
        client, (BINARY, raw[:3], False), (PING, b"inside", True), (PONG, b"", True),
        (CONTINUATION, raw[3:], True),
    )  # fmt: skip
    for payload in (b"before", b"", b"x" * 125, b"inside"):
        assert next_frame(websocket) == (PONG, payload)
    client.expect("CONNACK", reason_code=0)
    client.expect_nothing()


def test_mqtt5_6_0_0_1__close_frame(server: Server) -> None:
    """It is answered with the same code; without DISCONNECT it is no normal end."""
    watcher = server.watch("w")
    for payload, answer in ((b"\x03\xe8bye", b"\x03\xe8"), (b"", b""), (b"\x0f\xa0", b"\x0f\xa0")):
        client, websocket = web_client(server)
        client.connect("c", will=wire.will("w", b"will"))
        send_frames(client, (CLOSE, payload, True))
        assert next_frame(websocket) == (CLOSE, answer)
        assert next_frame(websocket) is None
        watcher.expect("PUBLISH", payload="will")


# --------------------------------------------------------------------------- frames and packets


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_mqtt5_6_0_0_2__frames_of_any_size(server: Server, size: int) -> None:
    client, _ = web_client(server)
    stream = b"".join(SCRIPT)
    in_binary(client, *(stream[at : at + size] for at in range(0, len(stream), size)))
    expect_answers(client)
    client.expect_nothing()


def test_mqtt5_6_0_0_2__several_packets_in_a_frame(server: Server) -> None:
    client, _ = web_client(server)
    in_binary(client, wire.connect("c") + wire.subscribe(1, ("t", 1)) + wire.publish("t", b"x", qos=1))
    client.expect("CONNACK", reason_code=0)
    client.expect("SUBACK", packet_id=1, reason_codes=[1])
    assert {client.recv().name, client.recv().name} == {"PUBLISH", "PUBACK"}
    client.expect_nothing()


@pytest.mark.parametrize("fragmented", [False, True])
def test_mqtt5_6_0_0_2__a_packet_over_three_frames(server: Server, fragmented: bool) -> None:
    client, _ = web_client(server)
    for packet in SCRIPT:
        pieces = packet[:1], packet[1:3], packet[3:]
        if fragmented:
            opcodes = BINARY, CONTINUATION, CONTINUATION
            send_frames(client, *zip(opcodes, pieces, (False, False, True), strict=True))
        else:
            in_binary(client, *pieces)
    expect_answers(client)
    client.expect_nothing()


def test_mqtt5_6_0_0_2__fragments_of_the_whole_stream(server: Server) -> None:
    """One message of the whole stream in fragments of one byte, with empty ones between."""
    client, _ = web_client(server)
    stream = b"".join(SCRIPT)
    frames = [(BINARY, b"", False)]
    for at in range(len(stream)):
        frames += [(CONTINUATION, stream[at : at + 1], False), (CONTINUATION, b"", False)]
    send_frames(client, *frames, (CONTINUATION, b"", True))
    expect_answers(client)
    client.expect_nothing()


# --------------------------------------------------------------------------- the sub-protocol


OFFERS = ["mqtt", "foo, mqtt", "mqtt, foo", "foo,mqtt,bar", "foo , mqtt", "mqttv3.1, mqtt", "xmqtt, mqtt"]


@pytest.mark.parametrize("protocols", OFFERS)
def test_mqtt5_6_0_0_3__offered(server: Server, protocols: str) -> None:
    client, _, status = upgraded(server, protocols)
    assert status == 101
    client.connect("c")
    client.expect_nothing()


NOT_OFFERED = [None, "foo", "foo, bar", "xmqtt", "mqtt5", "mqttv5", "mqtt v5", "MQTT/5"]


@pytest.mark.parametrize("protocols", NOT_OFFERED)
def test_mqtt5_6_0_0_3__not_offered(server: Server, protocols: str | None) -> None:
    client, websocket, status = upgraded(server, protocols)
    assert status == 400 and websocket.header("Sec-WebSocket-Accept") == []
    client.transport.close()
    server.connect("c").expect_nothing()


@pytest.mark.parametrize("protocols", [None, "foo"])
def test_mqtt5_6_0_0_3__a_lenient_setting(serve: Serve, protocols: str | None) -> None:
    client, websocket, status = upgraded(serve(require_subprotocol=False), protocols)
    assert status == 101 and websocket.header("Sec-WebSocket-Protocol") == []
    client.connect("c")
    client.expect_nothing()


@pytest.mark.parametrize("protocols", OFFERS)
def test_mqtt5_6_0_0_4__selected_once(server: Server, protocols: str) -> None:
    client, websocket, _ = upgraded(server, protocols)
    assert websocket.header("Sec-WebSocket-Protocol") == ["mqtt"]
    client.connect("c")
    client.expect_nothing()


def test_mqtt5_6_0_0_4__offered_in_two_headers(server: Server) -> None:
    client, websocket, status = upgraded(server, "foo", Sec_WebSocket_Protocol="mqtt")
    assert (status, websocket.header("Sec-WebSocket-Protocol")) == (101, ["mqtt"])
    client.connect("c")
    client.expect_nothing()
