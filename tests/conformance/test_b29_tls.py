"""B29: TLS."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

import pytest
import trustme

from broker.config import Config
from broker.errors import NotAuthorized
from broker.hook.base import ClientInfo, HookBase
from broker.transport.listen import parse_address
from tests.conformance import wire
from tests.conformance.certificates import Authority
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.server import Server

tls_only = pytest.mark.tcp_only("it brings its own TLS listener")


def tls_client(server: Server, context: ssl.SSLContext, **kwargs: Any) -> Raw:
    return server.client(transport="tcp", address=server.address("tls"), context=context, **kwargs)


def test_b29__registered_ports(server: Server) -> None:
    """Addresses without a port; a test binds none of them."""
    assert [parse_address(f"{scheme}://host").port for scheme in ("tcp", "tls")] == [1883, 8883]
    assert Config().listen == ("tcp://127.0.0.1:1883",)
    server.connect("c").expect_nothing()


@tls_only
@pytest.mark.parametrize("offered", [["mqtt"], ["http/1.1", "mqtt"], None, ["http/1.1"]])
def test_b29__alpn(serve: Serve, authority: Authority, offered: list[str] | None) -> None:
    server = serve(authority.config("tls", "tcp"))
    context = authority.client_side()
    if offered is not None:
        context.set_alpn_protocols(offered)
    client = tls_client(server, context)
    assert client.transport.sock.selected_alpn_protocol() == (
        "mqtt" if offered and "mqtt" in offered else None
    )
    client.connect("c")
    client.expect_nothing()


def leave_tls(client: Raw, way: str) -> None:
    """Ends the stream of a TLS client in one of the ways in which it can end."""
    sock = client.transport.sock
    assert isinstance(sock, ssl.SSLSocket)
    if way == "close_notify":
        sock.settimeout(1)
        sock.unwrap().close()
        client.closed = True
    elif way == "alert":
        raw = socket.socket(fileno=sock.detach())
        raw.sendall(bytes.fromhex("15 03 03 00 02 02 28"))  # a record that is no record of this connection
        raw.close()
        client.closed = True
    else:
        {"fin": client.drop, "rst": client.reset, "disconnect": client.disconnect}[way]()


@tls_only
@pytest.mark.parametrize("way", ["close_notify", "alert", "fin", "rst", "disconnect"])
def test_b29__an_end_without_disconnect_is_abnormal(serve: Serve, authority: Authority, way: str) -> None:
    server = serve(authority.config("tls", "tcp"))
    watcher = server.watch("w")
    client = tls_client(server, authority.client_side())
    client.connect("c", will=wire.will("w", b"will"))
    leave_tls(client, way)
    if way == "disconnect":
        watcher.expect_nothing()
    else:
        watcher.expect("PUBLISH", payload="will")


class CommonNames(HookBase):
    """The Common Name of the certificate is the user name; "guest" for none. "mallory" may not come in."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        subject = dict(pair for group in (client.certificate or {}).get("subject", ()) for pair in group)
        client.user_name = subject.get("commonName", "guest")
        client.user_properties.append(("user", client.user_name))
        if client.user_name == "mallory":
            raise NotAuthorized


@tls_only
@pytest.mark.parametrize(
    ("mode", "name", "reason"),
    [("none", None, 0), ("optional", None, 0), ("optional", "alice", 0), ("required", "alice", 0),
     ("required", "mallory", 0x87), ("none", "alice", 0)],
)  # fmt: skip
def test_b29__user_name_of_a_client_certificate(
    serve: Serve, authority: Authority, mode: str, name: str | None, reason: int
) -> None:
    """A verified certificate is given to the hooks, which may take the user name from it."""
    more = {} if mode == "none" else {"client_ca": authority.ca_file}
    server = serve(authority.config("tls", "tcp", client_certificates=mode, **more), hooks=[CommonNames()])
    client = tls_client(server, authority.client_side(name))
    connack = client.connect("c", reason=reason)
    user = "guest" if mode == "none" or name is None else name
    assert reason or connack.properties["user_property"] == [("user", user)]


@tls_only
@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
def test_b29__required_certificate(serve: Serve, authority: Authority, shown: str) -> None:
    server = serve(
        authority.config("tls", "tcp", client_certificates="required", client_ca=authority.ca_file)
    )
    context = authority.client_side(*(("eve", trustme.CA()) if shown != "nothing" else ()))
    try:
        client = tls_client(server, context)
        client.send(wire.connect("c"))
        got = client.transport.recv(1.0)
    except ssl.SSLError:
        got = b""
    assert got == b""
    alice = tls_client(server, authority.client_side("alice"))
    alice.connect("c", session_present=False)


@tls_only
def test_b29__handshake_timeout(serve: Serve, authority: Authority) -> None:
    """Those who say nothing hold up nobody, and are closed without a word of MQTT."""
    server = serve(authority.config("tls", "tcp", handshake_timeout=0.3))
    port, context = int(server.address("tls").rpartition(":")[2]), authority.client_side()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    silent[0].sendall(b"\x16\x03\x01")  # the beginning of a record
    start = time.monotonic()
    tls_client(server, context).connect("c")
    assert time.monotonic() - start < 0.3
    for sock in silent:
        sock.settimeout(2)
        with sock:
            assert sock.recv(1000) == b""
    assert time.monotonic() - start > 0.2
