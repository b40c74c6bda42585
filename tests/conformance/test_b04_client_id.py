"""B04: the ClientID."""

from __future__ import annotations

from typing import Any

import pytest

from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.codes import MALFORMED
from tests.conformance.conftest import Serve
from tests.conformance.server import Server

LEGAL = ["c", " c", "c ", "C", "a/b", "#", "+", "$SYS", "$share/g/t", "é", "e\u0301", "\ufeffc", "\U0001f600",
         "Å", "\u212b", "ß", "ss", "\u3000", "x" * 65535, "é" * 32767]  # fmt: skip


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b04__well_formed_client_ids_are_kept_as_they_are(server: Server, version: int) -> None:
    clients = []
    for client_id in LEGAL:
        client = server.client(version)
        client.send(wire.connect(client_id, version=version))
        client.expect("CONNACK", reason_code=0, assigned_client_identifier=None)
        clients.append(client)
    for client in clients:  # nobody was taken over by another
        client.expect_nothing()
    server.connect(LEGAL[0], version).expect_nothing()
    clients[0].expect_close(0x8E)


def test_b04__a_length_may_be_set(serve: Serve) -> None:
    server = serve(maximum_client_id_bytes=30)
    for version, code in ((5, 0x85), (4, 2), (3, 2)):
        for client_id in ("c" * 30, "é" * 15):
            server.connect(client_id, version).expect_nothing()
        for client_id in ("c" * 31, "é" * 15 + "c"):
            server.expect_refused(wire.connect(client_id, version=version), codes=code, version=version)


CONTROLS = ["\x01", "\x1f", "\x7f", "\x9f", "\ufdd0", "\ufffe", "\U0010ffff"]


@pytest.mark.parametrize("version", [4, 5])
def test_b04__control_characters(serve: Serve, version: int) -> None:
    strict, lenient = serve(), serve(disallowed_code_points="accept")
    for text in CONTROLS:
        raw = wire.connect(f"c{text}", version=version)
        strict.expect_refused(raw, codes=MALFORMED if version == 5 else (), version=version)
        lenient.connect(f"c{text}", version).expect_nothing()


def test_b04__who_gets_an_id_assigned(server: Server) -> None:
    for clean_start in (True, False):
        client = server.client()
        assert "assigned_client_identifier" in client.connect("", clean_start=clean_start).properties
    client = server.client(version=4)
    assert client.connect("").raw == bytes.fromhex("20 02 00 00")
    client.subscribe("t")
    client.publish("t", b"x")
    client.expect("PUBLISH", payload="x")
    server.expect_refused(wire.connect("", version=4, clean_start=False), codes=2, version=4)


def test_b04__the_form_of_an_assigned_id(server: Server) -> None:
    found = [server.connect("").client_id for _ in range(20)]
    assert all(len(one) == 23 and one.isascii() and one.isalnum() for one in found)
    assert len({one[0] for one in found}) == 1 and len(set(found)) == 20
    assert all(len({one[at] for one in found}) > 1 for at in range(-17, 0))  # 17 characters: 101 bits


class Renames(HookBase):
    """Gives every client the ClientID "cert-<user name>"."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        if packet.user_name:
            packet.client_id = f"cert-{packet.user_name}"


def test_b04__a_rewritten_client_id_is_returned(serve: Serve) -> None:
    server = serve(hooks=[Renames()])
    for client_id in ("mine", "", "other"):
        client = server.client()
        client.connect(client_id, clean_start=False, user_name="u", session_expiry_interval=60,
                       session_present=client_id != "mine")  # fmt: skip
        assert client.connack is not None
        assert client.connack.properties["assigned_client_identifier"] == "cert-u"
    server.connect("mine", clean_start=False, session_present=False).expect_nothing()
