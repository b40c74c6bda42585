"""MQTT 5.0 chapter 6: MQTT over WebSocket. These tests make frames and requests of their own."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.test_mqtt5_qos import SCRIPT, expect_answers
from tests.conformance.transports import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, WebSocket

pytestmark = pytest.mark.tcp_only("it brings its own WebSocket connections")

UNSUPPORTED_DATA = 1003


def web_client(server: Server, upgrade: bool = True) -> tuple[Raw, WebSocket]:
    """A client over WebSocket and the transport under it."""
    client = server.client(transport="websocket", upgrade=upgrade)
    assert isinstance(client.transport, WebSocket)
    return client, client.transport


def send_frames(client: Raw, *frames: tuple[int, bytes, bool]) -> None:
    """Frames as (opcode, payload, FIN), all in one segment."""
    websocket = client.transport
    assert isinstance(websocket, WebSocket)
    client.inspector.sent(b"".join(payload for opcode, payload, _ in frames if opcode < CLOSE))
    websocket.send_bytes(b"".join(websocket.frame(opcode, payload, fin) for opcode, payload, fin in frames))


def in_binary(client: Raw, *payloads: bytes) -> None:
    """One binary message for each payload."""
    send_frames(client, *((BINARY, payload, True) for payload in payloads))


def next_frame(websocket: WebSocket, timeout: float = 1.0) -> tuple[int, bytes] | None:
    """The next frame, but for answers to the Pings that `WebSocket.send` strews in."""
    while (found := websocket.recv_frame(timeout)) is not None:
        if found[0] != PONG or found[1] not in websocket.pings:
            return found
        websocket.pings.remove(found[1])
    return None


def expect_web_close(websocket: WebSocket, code: int, timeout: float = 1.0) -> None:
    """A Close frame with *code* is the very next frame; then, once answered, the end of TCP."""
    found = next_frame(websocket, timeout)
    assert found is not None and found[0] == CLOSE, f"expected a Close frame, got {found}"
    assert int.from_bytes(found[1][:2], "big") == code, f"expected {code}, got {found[1]!r}"
    websocket.send_frame(CLOSE, found[1][:2])
    assert next_frame(websocket, timeout) is None


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


def data_frames(websocket: WebSocket) -> list[tuple[int, bytes]]:
    """All frames until the Close frame, which is answered; its code is then in `close_code`."""
    found = []
    while (frame := next_frame(websocket)) is not None and frame[0] != CLOSE:
        found.append(frame)
    assert frame is not None, "the stream ended without a Close frame"
    websocket.close_code = int.from_bytes(frame[1][:2], "big")
    websocket.send_frame(CLOSE, frame[1][:2])
    return found


def names_in(stream: bytes) -> list[str]:
    """The packets in *stream*, which must be whole."""
    found = []
    while stream:
        cut = wire.split(stream)
        assert cut is not None, f"a packet is cut off: {stream[:40]!r}"
        raw, stream = cut
        found.append(wire.parse(raw, 5).name)
    return found


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


def upgraded(server: Server, protocols: str | None, **headers: str) -> tuple[Raw, WebSocket, int]:
    """A client after an upgrade request with *protocols* (None: no such header), and the HTTP status."""
    client, websocket = web_client(server, upgrade=False)
    return client, websocket, websocket.upgrade(protocols, **headers)


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
