"""TLS: contexts from files, handshakes good and bad, and the end of a connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from broker.errors import ConfigError
from broker.transport.base import TransportOptions
from broker.transport.listen import listen
from broker.transport.tls import server_context
from tests.transport.sockets import FOREVER, handshaken, read_size, receive_all, run, send, serving, turns

pytestmark = pytest.mark.usefixtures("engine")

PASSWORD = "correct horse"
BIG = bytes(range(256)) * (4 << 10)  # 1 MiB
CONNECT = bytes.fromhex("100d00044d51545405020000000000")


@dataclass
class Files:
    """Certificates on disk: the server's, and two authorities of which only one is trusted."""

    ca: trustme.CA
    stranger: trustme.CA
    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = Files(trustme.CA(), trustme.CA(), tmp_path_factory.mktemp("tls"))
    server = made.ca.issue_cert("localhost", "127.0.0.1")
    other = made.ca.issue_cert("localhost")
    key = load_pem_private_key(server.private_key_pem.bytes(), None)
    secret = BestAvailableEncryption(PASSWORD.encode())
    contents = {
        "cert.pem": b"".join(blob.bytes() for blob in server.cert_chain_pems),
        "key.pem": server.private_key_pem.bytes(),
        "both.pem": server.private_key_and_cert_chain_pem.bytes(),
        "other.pem": other.private_key_pem.bytes(),
        "secret.pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret),
        "ca.pem": made.ca.cert_pem.bytes(),
        "junk.pem": b"not a certificate",
        "broken.pem": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    }
    for name, content in contents.items():
        made.path(name).write_bytes(content)
    return made


def context(files: Files, cert: str = "cert.pem", key: str = "key.pem", **more: Any) -> ssl.SSLContext:
    if "client_ca" in more:
        more["client_ca"] = files.path(more["client_ca"])
    return server_context(files.path(cert), files.path(key), **more)


def client_context(files: Files, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    files.ca.configure_trust(made)
    if certificate is not None:
        certificate.configure_cert(made)
    return made


# Contexts


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cert": "none.pem"}, r"certificate .*none\.pem cannot be read: No such file"),
        ({"key": "none.pem"}, r"key .*none\.pem cannot be read: No such file"),
        ({"cert": ""}, r"certificate .* cannot be read: Is a directory"),
        ({"cert": "junk.pem"}, r"certificate .*junk\.pem is no PEM file with a CERTIFICATE in it"),
        ({"key": "junk.pem"}, r"key .*junk\.pem is no PEM file with a PRIVATE KEY in it"),
        ({"key": "cert.pem"}, r"key .*cert\.pem is no PEM file with a PRIVATE KEY"),
        ({"cert": "broken.pem"}, r"certificate .*broken\.pem with key .*key\.pem cannot be loaded"),
        ({"key": "other.pem"}, r"key .*other\.pem does not belong to certificate .*cert\.pem"),
        ({"key": "secret.pem"}, r"key .*secret\.pem is encrypted; set its password"),
        (
            {"key": "secret.pem", "password": "wrong"},
            r"secret\.pem cannot be loaded: .*is the password right",
        ),
        ({"client_certificates": "required"}, "need a client_ca"),
        ({"client_ca": "ca.pem"}, "'none' must not have one"),
        ({"client_certificates": "sometimes"}, "choose none, optional or required"),
        (
            {"client_ca": "none.pem", "client_certificates": "optional"},
            r"client_ca .*none\.pem cannot be",
        ),
        ({"client_ca": "key.pem", "client_certificates": "optional"}, r"client_ca .*key\.pem is no PEM file"),
        ({"client_ca": "broken.pem", "client_certificates": "optional"}, r"broken\.pem cannot be loaded"),
        ({"minimum": "1.1"}, "choose 1.2 or 1.3"),
        ({"ciphers": "NONSENSE"}, "OpenSSL knows no cipher in 'NONSENSE'"),
    ],
)
def test_what_cannot_be_used_is_named(files: Files, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        context(files, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cert": "both.pem", "key": "both.pem"},
        {"key": "secret.pem", "password": PASSWORD},
        {"minimum": "1.3"},
        {"ciphers": "ECDHE+AESGCM"},
        {"alpn": ()},
        {"client_ca": "ca.pem", "client_certificates": "optional"},
    ],
)
def test_contexts_that_work(files: Files, settings: dict[str, Any]) -> None:
    made = context(files, **settings)
    assert made.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert made.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("url", ["tls://127.0.0.1:0", "wss://127.0.0.1:0"])
def test_an_encrypted_address_needs_a_context(url: str) -> None:
    with pytest.raises(ConfigError, match="set a certificate and its key"):
        listen(url, TransportOptions(), lambda connection: None)


# Data


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@run
async def test_bytes_both_ways(files: Files, version: ssl.TLSVersion) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        assert server.listener.encrypted
        client = client_context(files)
        client.minimum_version = client.maximum_version = version
        reader, writer = await server.streams(client)
        connection = await server.accepted.get()
        assert (connection.peer.transport, connection.peer.certificate) == ("tls", None)
        writer.write(BIG)
        assert await read_size(connection, len(BIG)) == BIG
        connection.write(b"")
        connection.write(BIG)
        assert await reader.readexactly(len(BIG)) == BIG
        await connection.drain()
        assert connection.pending() == 0
        writer.close()
        assert await connection.read() == b""


@pytest.mark.parametrize(
    ("offered", "chosen"), [(["mqtt"], "mqtt"), (["h2", "mqtt"], "mqtt"), (["h2"], None), ([], None)]
)
@run
async def test_alpn(files: Files, offered: list[str], chosen: str | None) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        client = client_context(files)
        if offered:
            client.set_alpn_protocols(offered)
        _, writer = await server.streams(client)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
        writer.close()


@run
async def test_a_peer_that_does_not_read_is_seen_in_pending(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        reader, writer = await server.streams(client_context(files))
        connection = await server.accepted.get()
        for _ in range(16):
            connection.write(BIG)
        assert connection.pending() > 0
        draining = asyncio.create_task(connection.drain())
        assert await reader.readexactly(16 * len(BIG)) == 16 * BIG
        await draining
        writer.close()


# Ends


@run
async def test_close_lets_the_last_bytes_arrive_though_input_is_unread(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files), linger=FOREVER) as server:
        sock, client = await handshaken(server, client_context(files))
        connection = await server.accepted.get()
        sending = asyncio.create_task(send(sock, client.records(BIG)))
        await turns()
        connection.write(BIG)
        connection.write(b"goodbye")
        connection.close()
        connection.write(b"dropped")
        assert await connection.read() == b""
        assert client.opened(await receive_all(sock)) == BIG + b"goodbye"
        await sending
        sock.close()
        await connection.wait_closed()


@run
async def test_a_read_is_at_most_64_kib(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        sock, client = await handshaken(server, client_context(files))
        connection = await server.accepted.get()
        first = client.records(bytes(16384))
        rest = client.records(b"x" * 100) + client.records(bytes(3 * 16384 + 15000))
        reading = asyncio.create_task(connection.read())
        await send(sock, first[:-1])
        await turns()
        await send(sock, first[-1:] + rest)
        sizes = [len(await reading)]
        while sum(sizes) < 4 * 16384 + 15100:
            sizes.append(len(await connection.read()))
        assert max(sizes) <= 65536
        sock.close()


@run
async def test_a_peer_that_never_reads_is_left_after_the_linger_time(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files), linger=0.1) as server:
        sock, _ = await handshaken(server, client_context(files))
        connection = await server.accepted.get()
        for _ in range(16):
            connection.write(BIG)
        connection.close()
        await connection.wait_closed()
        sock.close()


@run
async def test_close_sends_close_notify_and_then_ends_tcp(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        sock, client = await handshaken(server, client_context(files))
        connection = await server.accepted.get()
        connection.write(b"bye")
        connection.close()
        assert client.opened(await receive_all(sock)) == b"bye"
        assert client.tls.read(10) == b""  # and no SSLWantReadError: the end was announced
        sock.close()
        await connection.wait_closed()


@run
async def test_records_in_pieces(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        sock, client = await handshaken(server, client_context(files))
        connection = await server.accepted.get()
        records = client.records(b"whole")
        for index in range(len(records)):
            await send(sock, records[index : index + 1])
            await turns(3)
        assert await connection.read() == b"whole"
        sock.close()


@pytest.mark.parametrize("how", ["close_notify", "end of TCP"])
@run
async def test_the_peer_ends(files: Files, how: str) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        sock, client = await handshaken(server, client_context(files))
        connection = await server.accepted.get()
        await send(sock, client.records(b"last"))
        if how == "close_notify":
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
            await send(sock, client.outgoing.read())
        else:
            sock.shutdown(socket.SHUT_WR)
        assert await connection.read() == b"last"
        assert await connection.read() == b""
        connection.write(b"answer")
        connection.close()
        records = await receive_all(sock)
        if how != "close_notify":
            assert client.opened(records) == b"answer"
        sock.close()
        await connection.wait_closed()


@pytest.mark.parametrize("junk", [b"\x17\x03\x03\x00\x20" + bytes(32), CONNECT])
@run
async def test_a_bad_record_is_a_connection_error(files: Files, junk: bytes) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
        sock, client = await handshaken(server, client_context(files))
        connection = await server.accepted.get()
        await send(sock, client.records(b"good"))
        assert await connection.read() == b"good"
        await send(sock, junk)
        with pytest.raises(ConnectionError, match="TLS failed"):
            await connection.read()
        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
            client.opened(await receive_all(sock))
        sock.close()
        await connection.wait_closed()


# Handshakes


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(CONNECT, id="MQTT without TLS"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP without TLS"),
        pytest.param(bytes.fromhex("16030100050100000100"), id="a broken ClientHello"),
        pytest.param(b"\x80\x2e\x01\x00\x02" + bytes(80), id="an SSL 2 hello"),
        pytest.param(b"\x00" * 100, id="zeros"),
    ],
)
@run
async def test_junk_is_refused_quietly(files: Files, junk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving("tls://127.0.0.1:0", ssl_context=context(files)) as server:
            with await server.dial() as sock:
                await send(sock, junk)
                await receive_all(sock)
            assert server.accepted.empty()
            _, writer = await server.streams(client_context(files))
            await server.accepted.get()
            writer.close()
    assert caplog.records == []


@run
async def test_a_silent_peer_is_closed_and_holds_nobody_up(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files), handshake_timeout=0.3) as server:
        with await server.dial() as silent:
            _, writer = await server.streams(client_context(files))
            await server.accepted.get()
            writer.close()
            assert await receive_all(silent) == b""
        assert server.accepted.empty()


@run
async def test_a_peer_that_leaves_in_the_handshake(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving("tls://127.0.0.1:0", ssl_context=context(files), linger=FOREVER) as server:
            with await server.dial() as sock:
                sock.shutdown(socket.SHUT_WR)
                assert await receive_all(sock) == b""
    assert caplog.records == []


@run
async def test_too_many_handshakes_at_once(files: Files) -> None:
    async with serving(
        "tls://127.0.0.1:0", ssl_context=context(files), maximum_handshakes=1, handshake_timeout=FOREVER
    ) as server:
        with await server.dial() as first, await server.dial() as second:
            assert await receive_all(second) == b""
            first.shutdown(socket.SHUT_WR)
            assert await receive_all(first) == b""
        _, writer = await server.streams(client_context(files))
        await server.accepted.get()
        writer.close()


@run
async def test_stop_ends_handshakes_under_way(files: Files) -> None:
    async with serving("tls://127.0.0.1:0", ssl_context=context(files), handshake_timeout=FOREVER) as server:
        with await server.dial() as sock:
            await turns()
            await server.listener.stop()
            assert await receive_all(sock) == b""


def no_certificate(files: Files) -> None:
    return None


def good_certificate(files: Files) -> trustme.LeafCert:
    return files.ca.issue_cert(common_name="sensor-1", organization_name="plant")


def foreign_certificate(files: Files) -> trustme.LeafCert:
    return files.stranger.issue_cert(common_name="sensor-1")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("mode", "certificate", "accepted"),
    [
        ("none", good_certificate, True),
        ("optional", no_certificate, True),
        ("optional", good_certificate, True),
        ("optional", foreign_certificate, False),
        ("required", no_certificate, False),
        ("required", good_certificate, True),
        ("required", foreign_certificate, False),
    ],
)
@run
async def test_client_certificates(
    files: Files,
    mode: Any,
    certificate: Callable[[Files], trustme.LeafCert | None],
    accepted: bool,
    version: ssl.TLSVersion,
) -> None:
    client_ca = {} if mode == "none" else {"client_ca": "ca.pem"}
    made = context(files, client_certificates=mode, **client_ca)
    async with serving("tls://127.0.0.1:0", ssl_context=made) as server:
        client = client_context(files, certificate(files))
        client.minimum_version = client.maximum_version = version
        if not accepted:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                reader, _ = await server.streams(client)
                await reader.read()
            assert server.accepted.empty()
            return
        _, writer = await server.streams(client)
        connection = await server.accepted.get()
        shown = connection.peer.certificate
        if mode == "none" or certificate is no_certificate:
            assert shown is None
        else:
            assert shown is not None
            assert (("commonName", "sensor-1"),) in shown["subject"]
        writer.close()
