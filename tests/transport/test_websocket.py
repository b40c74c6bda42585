"""WebSocket over real sockets: the stream made of frames, every way to close it, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import pytest
import trustme

from broker.transport.base import Connection
from broker.transport.tls import server_context
from broker.transport.websocket import PONG_LIMIT, WebSocketConnection
from tests.transport.sockets import (
    FOREVER,
    Server,
    handshaken,
    read_size,
    receive_all,
    run,
    send,
    serving,
    turns,
)
from tests.transport.web import BINARY, CLOSE, PING, PONG, TEXT, connected, masked, upgrade

pytestmark = pytest.mark.usefixtures("engine")

BIG = bytes(range(256)) * (4 << 10)  # 1 MiB


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
