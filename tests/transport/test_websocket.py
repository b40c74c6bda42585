"""The upgrade and the frames over real sockets, with a client written by hand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trustme

from broker.transport.base import Connection
from broker.transport.http11 import HttpError, Request, response
from broker.transport.tls import server_context
from broker.transport.websocket import PONG_LIMIT, RawConnection, WebSocketConnection
from tests.transport.sockets import (
    FOREVER,
    Server,
    handshaken,
    read_size,
    receive,
    receive_all,
    run,
    send,
    serving,
    turns,
)

pytestmark = pytest.mark.usefixtures("engine")

URL = "ws://127.0.0.1:0"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
BIG = bytes(range(256)) * (4 << 10)  # 1 MiB
TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA


def upgrade(*changes: str, drop: str = "", first: str = "GET /mqtt HTTP/1.1") -> bytes:
    """An upgrade request; *changes* are further header lines, *drop* names the ones to leave out."""
    headers = [
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: mqtt",
    ]
    left_out = {name.lower() for name in drop.split()}
    kept = [line for line in headers if line.split(":")[0].lower() not in left_out]
    return "\r\n".join([first, *kept, *changes, "", ""]).encode()


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    rest: bytes

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


async def head(sock: socket.socket) -> Answer:
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = await receive(sock, 1)
        assert piece, raw
        raw += piece
    first, *lines = raw.decode().split("\r\n")[:-2]
    pairs = (line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), [(name.lower(), value) for name, value in pairs], b"")


async def ask(server: Server, request: bytes) -> Answer:
    """The answer to *request*, with everything up to the end of the stream."""
    with await server.dial() as sock:
        await send(sock, request)
        answer = await head(sock)
        if answer.status != 101:
            answer.rest = await receive_all(sock)
        return answer


@dataclass
class Client:
    """A WebSocket client that can break every rule."""

    sock: socket.socket

    async def frame(self, opcode: int, payload: bytes = b"", final: bool = True) -> None:
        await send(self.sock, masked(opcode, payload, final))

    async def receive(self) -> tuple[int, bytes]:
        """The next frame's opcode and payload. Asserts that it is unmasked and not fragmented."""
        first, second = await receive(self.sock, 2)
        assert first & 0xF0 == 0x80
        assert second < 0x80
        size = second
        if second > 125:
            size = int.from_bytes(await receive(self.sock, 2 if second == 126 else 8), "big")
        return first & 0x0F, await receive(self.sock, size)

    async def closed(self) -> int:
        """The code of the Close that comes next; then nothing may follow but the end."""
        opcode, payload = await self.receive()
        assert opcode == CLOSE
        await self.frame(CLOSE, payload[:2])
        assert await receive_all(self.sock) == b""
        return int.from_bytes(payload[:2], "big")


def masked(opcode: int, payload: bytes = b"", final: bool = True) -> bytes:
    mask, size = os.urandom(4), len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    body = bytes(a ^ b for a, b in zip(payload, mask * (size // 4 + 1), strict=False))
    return bytes([final << 7 | opcode]) + length + mask + body


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[Connection, Client]]:
    async with serving(URL, **options) as server:
        with await server.dial() as sock:
            await send(sock, upgrade())
            assert (await head(sock)).status == 101
            yield await server.accepted.get(), Client(sock)


# The upgrade


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
async def test_binary_frames_both_ways() -> None:
    """MQTT-6.0.0-1."""
    async with connected() as (connection, client):
        await client.frame(BINARY, b"ping")
        assert await connection.read() == b"ping"
        for payload in (b"pong", b"x" * 126, b"y" * 65536, BIG):
            connection.write(payload)
            assert await client.receive() == (BINARY, payload)
        connection.write(b"")
        connection.write(b"after nothing")
        assert await client.receive() == (BINARY, b"after nothing")
        await connection.drain()
        assert connection.pending() == 0


@run
async def test_frames_have_no_meaning_for_the_stream() -> None:
    """MQTT-6.0.0-2: fragments, empty frames and control frames between them."""
    async with connected() as (connection, client):
        await client.frame(BINARY, b"")
        for byte in b"one":
            await client.frame(BINARY, bytes([byte]))
        await client.frame(BINARY, b"t", final=False)
        await client.frame(PING, b"?")
        await client.frame(0, b"", final=False)
        await client.frame(PONG, b"unasked")
        await client.frame(0, b"w", final=False)
        await client.frame(0, b"o")
        assert await read_size(connection, 6) == b"onetwo"
        assert await client.receive() == (PONG, b"?")


@run
async def test_an_empty_frame_is_not_the_end() -> None:
    async with connected() as (connection, client):
        waiting = asyncio.create_task(connection.read())
        await client.frame(BINARY)
        await client.frame(PONG)
        await turns()
        assert not waiting.done()
        await client.frame(BINARY, b"x")
        assert await waiting == b"x"


@run
async def test_a_large_message_in_any_chunks() -> None:
    async with connected() as (connection, client):
        sending = asyncio.create_task(client.frame(BINARY, BIG))
        pieces = []
        while sum(map(len, pieces)) < len(BIG):
            pieces.append(await connection.read())
        await sending
        assert b"".join(pieces) == BIG
        assert max(map(len, pieces)) <= 65536


@run
async def test_pongs_for_a_peer_that_does_not_read_are_bounded() -> None:
    async with connected() as (connection, client):
        assert isinstance(connection, WebSocketConnection)
        connection.write(16 * BIG)
        assert connection.pending() > PONG_LIMIT
        before = connection.pending()
        reading = asyncio.create_task(connection.read())
        for _ in range(1000):
            await client.frame(PING, b"x" * 125)
        await client.frame(BINARY, b"done")
        assert await reading == b"done"
        assert connection.pending() <= before
        assert connection.pongs_skipped == 1000
        assert (await client.receive())[1] == 16 * BIG
        await connection.drain()
        await client.frame(PING, b"again")
        await client.frame(BINARY, b"done")
        assert await connection.read() == b"done"
        assert await client.receive() == (PONG, b"again")


# Ends


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(masked(TEXT, b"text"), 1003, id="text [MQTT-6.0.0-1]"),
        pytest.param(masked(TEXT, b"text", final=False), 1003, id="text fragment"),
        pytest.param(b"\x82\x01x", 1002, id="no mask"),
        pytest.param(masked(0x0, b"x"), 1002, id="continuation of nothing"),
        pytest.param(masked(0x3), 1002, id="reserved opcode"),
        pytest.param(masked(0x42), 1002, id="reserved bit"),
        pytest.param(masked(PING, b"x" * 126), 1002, id="long Ping"),
        pytest.param(masked(CLOSE, b"x"), 1002, id="short Close"),
        pytest.param(masked(CLOSE, b"\x03\xed"), 1002, id="Close 1005"),
        pytest.param(masked(CLOSE, b"\x03\xe8\xff"), 1007, id="Close reason is not UTF-8"),
        pytest.param(masked(BINARY, b"x" * 1001), 1009, id="large message"),
        pytest.param(
            masked(BINARY, b"x" * 600, final=False) + masked(0, b"x" * 401), 1009, id="large over fragments"
        ),
    ],
)
@run
async def test_what_breaks_the_rules_is_closed_with_a_code(raw: bytes, code: int) -> None:
    async with connected(websocket_maximum_message_size=1000, linger=FOREVER) as (connection, client):
        await client.frame(BINARY, b"before")
        await send(client.sock, raw)
        data = b""
        with pytest.raises(ConnectionError):
            while True:
                piece = await connection.read()
                assert piece
                data += piece
        assert data.startswith(b"before")
        assert b"text" not in data
        connection.write(b"dropped")
        assert await client.closed() == code
        with pytest.raises(ConnectionError):
            await connection.read()
        connection.close()
        assert await connection.read() == b""
        client.sock.close()
        await connection.wait_closed()


@pytest.mark.parametrize(
    ("payload", "echo"),
    [(b"", b""), (b"\x03\xe8", b"\x03\xe8"), (b"\x03\xe9bye", b"\x03\xe9"), (b"\x0f\xa0", b"\x0f\xa0")],
)
@run
async def test_a_close_from_the_peer_is_echoed(payload: bytes, echo: bytes) -> None:
    async with connected(linger=FOREVER) as (connection, client):
        await client.frame(BINARY, b"last")
        await client.frame(CLOSE, payload)
        await client.frame(BINARY, b"too late")
        assert await connection.read() == b"last"
        assert await connection.read() == b""
        connection.write(b"dropped")
        assert await client.receive() == (CLOSE, echo)
        assert await receive_all(client.sock) == b""
        client.sock.close()
        await connection.wait_closed()


@pytest.mark.parametrize("reading", [True, False])
@run
async def test_close_waits_for_the_close_of_the_peer(reading: bool) -> None:
    async with connected(linger=FOREVER) as (connection, client):
        waiting = asyncio.create_task(connection.read()) if reading else None
        await client.frame(BINARY, b"" if reading else b"unread" * 1000)
        await turns()
        connection.write(b"goodbye")
        connection.close()
        connection.close()
        connection.write(b"dropped")
        assert await connection.read() == b""
        if waiting is not None:
            assert await waiting == b""
        await client.frame(BINARY, b"on its way" * 10_000)
        await client.frame(PING)
        assert await client.receive() == (BINARY, b"goodbye")
        assert await client.closed() == 1000
        client.sock.close()
        await connection.wait_closed()


@run
async def test_a_peer_that_does_not_answer_our_close() -> None:
    async with connected(linger=1.0) as (connection, client):
        connection.close()
        assert await client.receive() == (CLOSE, b"\x03\xe8")
        assert await receive_all(client.sock) == b""
        for _ in range(2):  # after half of the time only our side has ended: no reset yet
            await client.frame(BINARY, b"talks on")
            await turns()
        client.sock.close()
        await connection.wait_closed()


@run
async def test_a_peer_that_ends_tcp_instead_of_answering_our_close() -> None:
    async with connected(linger=FOREVER) as (connection, client):
        connection.close()
        assert await client.receive() == (CLOSE, b"\x03\xe8")
        client.sock.shutdown(socket.SHUT_WR)
        assert await receive_all(client.sock) == b""
        await connection.wait_closed()


@run
async def test_closes_that_cross() -> None:
    async with connected(linger=FOREVER) as (connection, client):
        await client.frame(BINARY, b"unread")
        await client.frame(CLOSE, b"\x03\xe8")
        await turns()
        connection.close()
        assert await client.receive() == (CLOSE, b"\x03\xe8")
        assert await receive_all(client.sock) == b""
        client.sock.close()
        await connection.wait_closed()


@run
async def test_a_peer_that_never_reads_is_left_after_the_linger_time() -> None:
    async with connected(linger=0.1) as (connection, _):
        connection.write(16 * BIG)
        connection.close()
        await connection.wait_closed()
        assert connection.pending() == 0


@run
async def test_the_end_of_tcp_is_the_end_of_the_stream() -> None:
    async with connected() as (connection, client):
        await client.frame(BINARY, b"last")
        client.sock.shutdown(socket.SHUT_WR)
        assert await connection.read() == b"last"
        assert await connection.read() == b""
        connection.write(b"answer")
        connection.close()
        assert await client.receive() == (BINARY, b"answer")
        assert await client.receive() == (CLOSE, b"\x03\xe8")
        assert await receive_all(client.sock) == b""
        await connection.wait_closed()


@run
async def test_abort() -> None:
    async with connected(linger=FOREVER) as (connection, client):
        waiting = asyncio.create_task(connection.read())
        await turns()
        connection.abort()
        assert await waiting == b""
        connection.write(b"dropped")
        connection.close()
        await connection.wait_closed()
        with contextlib.suppress(ConnectionResetError):
            assert await receive_all(client.sock) == b""


# Over TLS


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context, and a client's that trusts it and shows a certificate."""
    folder, ca = tmp_path_factory.mktemp("wss"), trustme.CA()
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    ca.cert_pem.write_to_path(folder / "ca.pem")
    server = server_context(
        folder / "server.pem",
        folder / "server.pem",
        client_ca=folder / "ca.pem",
        client_certificates="optional",
    )
    client = ssl.create_default_context()
    ca.configure_trust(client)
    ca.issue_cert(common_name="sensor-1").configure_cert(client)
    return server, client


async def open_wss(
    server: Server, client: ssl.SSLContext
) -> tuple[Connection, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await server.streams(client)
    writer.write(upgrade())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return await server.accepted.get(), reader, writer


@run
async def test_wss(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serving("wss://127.0.0.1:0/mqtt", ssl_context=contexts[0], linger=FOREVER) as server:
        assert server.listener.encrypted
        connection, reader, writer = await open_wss(server, contexts[1])
        assert connection.peer.transport == "wss"
        assert connection.peer.certificate is not None
        assert (("commonName", "sensor-1"),) in connection.peer.certificate["subject"]
        writer.write(masked(BINARY, BIG))
        assert await read_size(connection, len(BIG)) == BIG
        connection.write(BIG)
        assert await reader.readexactly(len(BIG) + 10) == b"\x82\x7f" + len(BIG).to_bytes(8, "big") + BIG
        waiting = asyncio.create_task(connection.read())
        await turns()
        connection.close()
        assert await waiting == b""
        assert await reader.readexactly(4) == b"\x88\x02\x03\xe8"
        writer.write(masked(BINARY, b"on its way" * 1000) + masked(CLOSE, b"\x03\xe8"))
        assert await reader.read() == b""
        writer.close()
        await connection.wait_closed()


@run
async def test_wss_peers_that_end(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serving("wss://127.0.0.1:0/mqtt", ssl_context=contexts[0], linger=0.2) as server:
        connection, _, writer = await open_wss(server, contexts[1])
        connection.close()
        writer.close()
        await connection.wait_closed()
        connection, reader, writer = await open_wss(server, contexts[1])
        connection.close()
        assert await reader.read() == b"\x88\x02\x03\xe8"
        writer.close()
        await connection.wait_closed()
        connection, reader, writer = await open_wss(server, contexts[1])
        writer.write(masked(BINARY, b"last") + masked(CLOSE) + masked(BINARY, b"late"))
        assert [await connection.read(), await connection.read()] == [b"last", b""]
        assert await reader.read() == b"\x88\x00"
        writer.close()
        await connection.wait_closed()


@pytest.mark.parametrize("end", ["a Close read too far ahead", "close_notify"])
@run
async def test_wss_and_the_end_of_the_peer(contexts: tuple[ssl.SSLContext, ssl.SSLContext], end: str) -> None:
    async with serving("wss://127.0.0.1:0/mqtt", ssl_context=contexts[0], linger=FOREVER) as server:
        sock, client = await handshaken(server, contexts[1])
        await send(sock, client.records(upgrade()))
        connection = await server.accepted.get()
        closing = masked(CLOSE, b"\x03\xe8")
        if end == "close_notify":
            connection.close()
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
            await send(sock, client.outgoing.read())
        else:  # more records in one chunk than one read decrypts
            first, second = masked(BINARY, bytes(3 * 16384 - 8)), masked(BINARY, bytes(100))
            await send(sock, b"".join(map(client.records, (first, second, closing))))
            assert await connection.read()
            connection.close()
        plain = client.opened(await receive_all(sock))
        assert plain.endswith(b"\r\n\r\n\x88\x02\x03\xe8")
        sock.close()
        await connection.wait_closed()


# Other doors


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
