"""B28: WebSocket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import publish_numbers
from tests.conformance.server import Server
from tests.conformance.transports import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, WebSocket
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

web_only = pytest.mark.tcp_only("it brings its own WebSocket connections")
ANY_PATH = ("ws://127.0.0.1:0", "tcp://127.0.0.1:0")


def web_connected(server: Server, **connect: Any) -> tuple[Raw, WebSocket]:
    client, websocket = web_client(server)
    client.connect("c", will=wire.will("w", b"will"), **connect)
    return client, websocket


@web_only
def test_b28__any_path_unless_one_is_set(serve: Serve) -> None:
    for listen, path, status in (
        (ANY_PATH, "/mqtt", 101), (ANY_PATH, "/", 101), (ANY_PATH, "/any/where", 101),
        (("ws://127.0.0.1:0/mqtt",), "/mqtt", 101), (("ws://127.0.0.1:0/mqtt",), "/mqtt?x=1", 101),
        (("ws://127.0.0.1:0/mqtt",), "/", 404), (("ws://127.0.0.1:0/mqtt",), "/mqtt/", 404),
    ):  # fmt: skip
        client, websocket = web_client(serve(listen=listen), upgrade=False)
        assert websocket.upgrade("mqtt", path) == status, path
        if status == 101:
            client.connect("c")
            client.expect_nothing()


@web_only
@pytest.mark.parametrize(
    ("offered", "chosen"),
    [("mqtt", "mqtt"), ("mqttv3.1", "mqttv3.1"), ("mqttv3.1, mqtt", "mqtt"), ("mqtt, mqttv3.1", "mqtt"),
     ("foo, mqttv3.1", "mqttv3.1")],
)  # fmt: skip
def test_b28__mqttv3_1_alone_is_accepted(server: Server, offered: str, chosen: str) -> None:
    client, websocket, status = upgraded(server, offered)
    assert (status, websocket.header("Sec-WebSocket-Protocol")) == (101, [chosen])
    client.connect("c", version=3 if chosen == "mqttv3.1" else 5)
    client.expect_nothing()


@web_only
@pytest.mark.parametrize(
    ("lenient", "offered", "status"),
    [(False, None, 400), (False, "foo", 400), (True, None, 101), (True, "foo", 101), (True, "mqtt", 101)],
)
def test_b28__no_subprotocol(serve: Serve, lenient: bool, offered: str | None, status: int) -> None:
    client, websocket, got = upgraded(serve(require_subprotocol=not lenient), offered)
    assert got == status
    assert websocket.header("Sec-WebSocket-Protocol") == (["mqtt"] if offered == "mqtt" else [])
    if status == 101:
        client.connect("c")
        client.expect_nothing()


@web_only
def test_b28__text_closes_with_1003_and_the_will_is_published(server: Server) -> None:
    watcher = server.watch("w")
    client, websocket = web_connected(server)
    send_frames(client, (TEXT, wire.pingreq(), True))
    expect_web_close(websocket, 1003)
    watcher.expect("PUBLISH", payload="will")


@web_only
def test_b28__fragments_with_control_frames_between(server: Server) -> None:
    client, websocket = web_connected(server)
    raw = wire.publish("t", b"x" * 300, qos=1, packet_id=7)
    send_frames(
        client, (BINARY, b"", True), (BINARY, b"", False), (PING, b"1", True), (CONTINUATION, raw[:2], False),
        (PONG, b"", True), (CONTINUATION, b"", False), (PING, b"2", True), (CONTINUATION, raw[2:], True),
        (BINARY, b"", True),
    )  # fmt: skip
    assert [next_frame(websocket), next_frame(websocket)] == [(PONG, b"1"), (PONG, b"2")]
    client.expect("PUBACK", packet_id=7)
    client.expect_nothing()


BAD_FRAMES: dict[str, dict[str, Any]] = {
    "unmasked": {"opcode": BINARY, "mask": False},
    "reserved bit 1": {"opcode": BINARY, "rsv": 4},  # permessage-deflate, which was not agreed on
    "reserved bit 3": {"opcode": BINARY, "rsv": 1},
    "reserved opcode": {"opcode": 3},
    "reserved control opcode": {"opcode": 11},
    "fragmented ping": {"opcode": PING, "fin": False},
    "long ping": {"opcode": PING, "payload": b"x" * 126},
    "continuation of nothing": {"opcode": CONTINUATION},
    "close code 1005": {"opcode": CLOSE, "payload": b"\x03\xed"},
    "close of one byte": {"opcode": CLOSE, "payload": b"\x03"},
}


@web_only
@pytest.mark.parametrize("name", BAD_FRAMES)
def test_b28__breaches_of_the_framing_close_with_1002(server: Server, name: str) -> None:
    watcher = server.watch("w")
    _, websocket = web_connected(server)
    websocket.send_frame(**{"payload": wire.pingreq(), **BAD_FRAMES[name]})
    expect_web_close(websocket, 1002)
    watcher.expect("PUBLISH", payload="will")


@web_only
def test_b28__the_stream_has_no_borders(server: Server) -> None:
    """A frame may end in one packet and hold three more, whatever their sizes."""
    client, _ = web_connected(server)
    stream = b"".join(wire.publish("t", b"x" * n, qos=1, packet_id=n) for n in range(1, 60))
    in_binary(client, *(stream[at : at + 97] for at in range(0, len(stream), 97)))
    for n in range(1, 60):
        client.expect("PUBACK", packet_id=n)


@web_only
@pytest.mark.parametrize("fragments", [1, 4])
def test_b28__size_of_a_message(serve: Serve, fragments: int) -> None:
    """The limit of MQTT plus 1024 bytes; above it the Close comes before the bytes do."""
    server = serve(maximum_packet_size=2000)
    watcher = server.watch("w")
    pings = wire.pingreq() * (3024 // 2)
    client, websocket = web_connected(server)
    send_frames(client, (BINARY, pings, True))
    for _ in range(3024 // 2):
        client.expect("PINGRESP")
    for n in range(fragments - 1):
        send_frames(client, (CONTINUATION if n else BINARY, pings[:756], False))
    opcode = BINARY if fragments == 1 else CONTINUATION
    last = websocket.frame(opcode, bytes(3025 - (fragments - 1) * 756))
    websocket.send_bytes(last[:8])  # its header alone
    frames = data_frames(websocket)
    assert websocket.close_code == 1009
    assert {name for _, payload in frames for name in names_in(payload)} <= {"PINGRESP"}
    watcher.expect("PUBLISH", payload="will")


@web_only
def test_b28__no_compression(server: Server) -> None:
    client, websocket, status = upgraded(
        server, "mqtt", Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"
    )
    assert status == 101 and websocket.header("Sec-WebSocket-Extensions") == []
    client.connect("c")
    client.expect_nothing()


@web_only
def test_b28__several_packets_in_a_frame_of_the_server(server: Server) -> None:
    """Each frame holds whole packets; a burst needs fewer frames than packets."""
    client, websocket = web_connected(server)
    client.subscribe("t", qos=1)
    publish_numbers(server, 100)
    client.send(wire.disconnect(0))
    frames = data_frames(websocket)
    names = [name for _, payload in frames for name in names_in(payload)]
    assert names == ["PUBLISH"] * 100
    assert {opcode for opcode, _ in frames} == {BINARY} and len(frames) < 50


@web_only
def test_b28__close_1000_after_disconnect(server: Server) -> None:
    watcher = server.watch("w")
    client, websocket = web_connected(server)
    client.send(wire.disconnect(0))
    expect_web_close(websocket, 1000)
    watcher.expect_nothing()
    client, websocket = web_connected(server)
    client.send(bytes.fromhex("C1 00"))
    found = next_frame(websocket)
    assert found is not None and found[0] == BINARY and names_in(found[1]) == ["DISCONNECT"]
    expect_web_close(websocket, 1000)
    watcher.expect("PUBLISH", payload="will")


@web_only
@pytest.mark.parametrize("way", ["close frame", "close frame without code", "fin", "rst"])
def test_b28__an_end_without_disconnect_is_abnormal(server: Server, way: str) -> None:
    watcher = server.watch("w")
    client, websocket = web_connected(server)
    if way.startswith("close"):
        payload = b"\x03\xe8" if way == "close frame" else b""
        websocket.send_frame(CLOSE, payload)
        assert next_frame(websocket) == (CLOSE, payload)
        assert next_frame(websocket) is None
    else:
        (client.drop if way == "fin" else client.reset)()
    watcher.expect("PUBLISH", payload="will")


@web_only
@pytest.mark.parametrize("mqtt", [False, True])
def test_b28__websocket_pings_are_no_sign_of_life(server: Server, mqtt: bool) -> None:
    client, websocket = web_connected(server, keep_alive=2)
    for n in range(3):
        server.advance(1.4)
        if mqtt:
            client.expect_nothing()
        elif n < 2:
            websocket.send_frame(PING, b"alive")
            assert next_frame(websocket) == (PONG, b"alive")
    if mqtt:
        client.expect_nothing()
    else:
        client.expect_close(0x8D)


@web_only
def test_b28__origin_check(serve: Serve) -> None:
    origins = ("https://good.example", "http://localhost:8080")
    for allowed, origin, status in (
        ((), "https://bad.example", 101), (origins, "https://good.example", 101), (origins, None, 101),
        (origins, "http://localhost:8080", 101), (origins, "https://bad.example", 403),
        (origins, "http://good.example", 403), (origins, "https://good.example.bad.example", 403),
        (origins, "null", 403),
    ):  # fmt: skip
        client, _, got = upgraded(
            serve(origins=allowed), "mqtt", **{} if origin is None else {"Origin": origin}
        )
        assert got == status, (allowed, origin)
        if status == 101:
            client.connect("c")
            client.expect_nothing()


@web_only
def test_b28__headers_of_a_proxy_are_not_believed(serve: Serve) -> None:
    """Who says to come from elsewhere counts for the address that the socket has."""
    server = serve(maximum_connections_per_address=1)
    first, _, _ = upgraded(server, "mqtt", X_Forwarded_For="192.0.2.1", Authorization="Basic dTpw")
    first.connect("a")
    second, _, status = upgraded(server, "mqtt", X_Forwarded_For="192.0.2.2", Forwarded="for=192.0.2.2")
    assert status == 101
    second.send(wire.connect("b"))
    second.expect_close()
    first.expect_nothing()
