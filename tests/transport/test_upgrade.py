"""The upgrade to a WebSocket, over real sockets."""

from __future__ import annotations

import base64
import hashlib
import logging
import socket

import pytest

from broker.transport.base import Connection
from broker.transport.http11 import HttpError, Request, response
from broker.transport.websocket import RawConnection, WebSocketConnection
from tests.transport.sockets import FOREVER, receive, receive_all, run, send, serving
from tests.transport.web import BINARY, KEY, URL, ask, head, masked, upgrade

pytestmark = pytest.mark.usefixtures("engine")


@run
async def test_the_answer_to_an_upgrade() -> None:
    async with serving(URL) as server:
        with await server.dial() as sock:
            await send(sock, upgrade())
            answer = await head(sock)
            assert answer.status == 101
            assert sorted(answer.headers) == [
                ("connection", "Upgrade"),
                ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
                ("sec-websocket-protocol", "mqtt"),
                ("upgrade", "websocket"),
            ]
            connection = await server.accepted.get()
            name = sock.getsockname()
            assert connection.peer.address == f"{name[0]}:{name[1]}"
            assert (connection.peer.transport, connection.peer.local) == ("ws", True)
            assert connection.peer.listener == server.listener.url


@pytest.mark.parametrize(
    "request_head",
    [
        pytest.param(upgrade(first="GET / HTTP/1.1"), id="any path"),
        pytest.param(upgrade(first="GET http://localhost/x?y HTTP/1.1"), id="absolute target"),
        pytest.param(upgrade(first="GET / HTTP/1.7"), id="later version"),
        pytest.param(upgrade("upgrade: WebSocket", drop="Upgrade"), id="Upgrade in other case"),
        pytest.param(upgrade("Upgrade: h2c, websocket", drop="Upgrade"), id="Upgrade list"),
        pytest.param(upgrade("Connection: keep-alive, UPGRADE", drop="Connection"), id="Firefox"),
        pytest.param(upgrade("Connection: keep-alive"), id="Connection in two headers"),
        pytest.param(upgrade("Origin: http://evil.example"), id="any Origin"),
        pytest.param(upgrade("Sec-WebSocket-Extensions: permessage-deflate"), id="extension offered"),
    ],
)
@run
async def test_upgrades_that_are_accepted(request_head: bytes) -> None:
    async with serving(URL) as server:
        answer = await ask(server, request_head)
        assert answer.status == 101
        assert answer.values("sec-websocket-extensions") == []
        await server.accepted.get()


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        pytest.param(upgrade(first="GET /mqtt HTTP/1.0"), 400, id="HTTP/1.0"),
        pytest.param(upgrade(first="GET /mqtt HTTP/2.0"), 505, id="HTTP/2"),
        pytest.param(upgrade(first="POST /mqtt HTTP/1.1"), 405, id="POST"),
        pytest.param(upgrade(first="OPTIONS * HTTP/1.1"), 405, id="OPTIONS"),
        pytest.param(upgrade(drop="Host"), 400, id="no Host"),
        pytest.param(upgrade("Upgrade: h2c", drop="Upgrade"), 426, id="another protocol"),
        pytest.param(upgrade(drop="Upgrade"), 426, id="no Upgrade"),
        pytest.param(upgrade(drop="Connection"), 400, id="no Connection"),
        pytest.param(upgrade("Connection: keep-alive", drop="Connection"), 400, id="keep-alive"),
        pytest.param(upgrade(drop="Sec-WebSocket-Version"), 426, id="no version"),
        pytest.param(upgrade("Sec-WebSocket-Version: 8", drop="Sec-WebSocket-Version"), 426, id="version 8"),
        pytest.param(upgrade("Sec-WebSocket-Version: 13"), 400, id="two versions"),
        pytest.param(upgrade(drop="Sec-WebSocket-Key"), 400, id="no key"),
        pytest.param(upgrade(f"Sec-WebSocket-Key: {KEY}"), 400, id="two keys"),
        pytest.param(upgrade("Sec-WebSocket-Key: abc", drop="Sec-WebSocket-Key"), 400, id="short key"),
        pytest.param(upgrade("Sec-WebSocket-Key: " + "!" * 24, drop="Sec-WebSocket-Key"), 400, id="bad key"),
        pytest.param(
            upgrade("Sec-WebSocket-Key: " + base64.b64encode(bytes(17)).decode(), drop="Sec-WebSocket-Key"),
            400,
            id="long key",
        ),
        pytest.param(upgrade("Content-Length: 5"), 400, id="body"),
        pytest.param(upgrade("Transfer-Encoding: chunked"), 400, id="chunked body"),
        pytest.param(upgrade(drop="Sec-WebSocket-Protocol"), 400, id="no subprotocol"),
        pytest.param(b"\x10\x0e\x00\x04MQTT\x05", 400, id="MQTT without WebSocket"),
        pytest.param(upgrade("A: " + "b" * 20_000), 431, id="large head"),
    ],
)
@run
async def test_upgrades_that_are_refused(
    request_head: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(URL, linger=FOREVER) as server:
            answer = await ask(server, request_head)
            assert answer.status == status
            assert answer.values("content-type") == ["text/plain; charset=utf-8"]
            assert answer.values("content-length") == [str(len(answer.rest))]
            assert "close" in answer.values("connection")[0]
            assert server.accepted.empty()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        (["mqtt"], "mqtt"),
        (["foo, mqtt"], "mqtt"),
        (["mqtt, foo"], "mqtt"),
        (["mqttv3.1, mqtt"], "mqtt"),
        (["foo", "mqtt"], "mqtt"),
        (["mqtt,mqtt"], "mqtt"),
        (["mqttv3.1"], "mqttv3.1"),
        (["foo,bar,mqttv3.1"], "mqttv3.1"),
        (["foo"], None),
        (["MQTT"], None),
        ([], None),
        ([""], None),
    ],
)
@run
async def test_subprotocols(offers: list[str], chosen: str | None) -> None:
    """MQTT-6.0.0-3, MQTT-6.0.0-4."""
    lines = [f"Sec-WebSocket-Protocol: {offer}" for offer in offers]
    request_head = upgrade(*lines, drop="Sec-WebSocket-Protocol")
    async with serving(URL) as server:
        answer = await ask(server, request_head)
        if chosen is None:
            assert answer.status == 400
            assert b"mqtt" in answer.rest
        else:
            assert answer.status == 101
            assert answer.values("sec-websocket-protocol") == [chosen]
            connection = await server.accepted.get()
            assert isinstance(connection, WebSocketConnection)
            assert connection.subprotocol == chosen
    async with serving(URL, websocket_require_subprotocol=False) as server:
        answer = await ask(server, request_head)
        assert answer.status == 101
        assert answer.values("sec-websocket-protocol") == ([chosen] if chosen else [])


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://good.example", 101),
        ("HTTPS://Good.Example", 101),
        ("https://also.example:8443", 101),
        ("http://good.example", 403),
        ("https://good.example.evil.example", 403),
        ("https://evil.example", 403),
        ("null", 403),
        (None, 101),
    ],
)
@run
async def test_origins(origin: str | None, status: int) -> None:
    allowed = ("https://good.example", "https://also.example:8443")
    async with serving(URL, websocket_origins=allowed) as server:
        request_head = upgrade() if origin is None else upgrade(f"Origin: {origin}")
        assert (await ask(server, request_head)).status == status


@pytest.mark.parametrize(
    ("url", "setting", "path", "status"),
    [
        (URL, "", "/anything", 101),
        (URL + "/", "", "/anything", 101),
        (URL + "/mqtt", "", "/mqtt", 101),
        (URL + "/mqtt", "", "/mqtt?token=1", 101),
        (URL + "/mqtt", "", "/mqtt/", 404),
        (URL + "/mqtt", "", "/", 404),
        (URL + "/mqtt", "/other", "/other", 101),
        (URL + "/mqtt", "/other", "/mqtt", 404),
        (URL, "/other", "/", 404),
    ],
)
@run
async def test_paths(url: str, setting: str, path: str, status: int) -> None:
    async with serving(url, websocket_path=setting) as server:
        answer = await ask(server, upgrade(first=f"GET {path} HTTP/1.1"))
        assert answer.status == status
        if status == 404:
            assert (setting or "/mqtt").encode() in answer.rest


@run
async def test_a_browser_gets_a_helpful_answer() -> None:
    async with serving(URL + "/mqtt") as server:
        answer = await ask(server, b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.status == 426
        assert answer.values("upgrade") == ["websocket"]
        assert answer.values("connection") == ["upgrade, close"]
        assert b"MQTT over WebSocket" in answer.rest
        assert f"ws://HOST:{server.port}/mqtt".encode() in answer.rest
        without_body = await ask(server, b"HEAD /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (without_body.status, without_body.rest) == (426, b"")
        assert without_body.values("content-length") == answer.values("content-length")
        for method, status in (("POST", 405), ("DELETE", 405), ("BREW", 405)):
            answer = await ask(server, f"{method} /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert (answer.status, answer.values("allow")) == (status, ["GET, HEAD"])


@run
async def test_a_head_in_pieces_and_frames_right_behind_it() -> None:
    async with serving(URL) as server:
        with await server.dial() as sock:
            for byte in upgrade():
                await send(sock, bytes([byte]))
            connection = await server.accepted.get()
            assert (await head(sock)).status == 101
        with await server.dial() as sock:
            await send(sock, upgrade() + masked(BINARY, b"early"))
            connection = await server.accepted.get()
            assert await connection.read() == b"early"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", upgrade()[:-2]])
@run
async def test_a_slow_head_is_closed(sent: bytes) -> None:
    async with serving(URL, handshake_timeout=0.1) as server:
        with await server.dial() as sock:
            await send(sock, sent)
            assert await receive_all(sock) == b""
        assert server.accepted.empty()


@run
async def test_a_peer_that_leaves_before_the_upgrade() -> None:
    async with serving(URL, linger=FOREVER) as server:
        with await server.dial() as sock:
            await send(sock, b"GET / ")
            sock.shutdown(socket.SHUT_WR)
            assert await receive_all(sock) == b""
        assert server.accepted.empty()


# Data


@run
async def test_a_path_may_lead_elsewhere() -> None:
    seen: list[tuple[str, bytes]] = []

    async def health(request: Request, raw: RawConnection, rest: bytes) -> None:
        seen.append((request.query, rest))
        raw.write(response(200, [("Connection", "close")], b"fine"))
        raw.close()

    async def secret(request: Request, raw: RawConnection, rest: bytes) -> None:
        raise HttpError(403, "not you", [("X", "y")])

    async def raw_door(request: Request, raw: RawConnection, rest: bytes) -> Connection:
        return raw

    async def broken(request: Request, raw: RawConnection, rest: bytes) -> None:
        raise RuntimeError("no")

    routes = {"/health": health, "/secret": secret, "/raw": raw_door, "/broken": broken}
    async with serving(URL + "/mqtt", routes) as server:
        answer = await ask(server, b"POST /health?full HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
        assert (answer.status, answer.rest, seen) == (200, b"fine", [("full", b"hi")])
        answer = await ask(server, b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (answer.status, answer.values("x"), answer.rest) == (403, ["y"], b"not you\n")
        with await server.dial() as sock:
            await send(sock, b"GET /raw HTTP/1.1\r\nHost: x\r\n\r\n")
            connection = await server.accepted.get()
            connection.write(b"as it is")
            assert await receive(sock, 8) == b"as it is"
        with await server.dial() as sock:
            await send(sock, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await receive_all(sock) == b""
        assert (await ask(server, upgrade())).status == 101


def test_the_key_of_the_standard() -> None:
    digest = hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    assert base64.b64encode(digest) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
