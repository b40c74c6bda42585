"""B22: redirect."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Server

REFERENCES = "other.example:1883 [2001:db8::1]:1883 [2001:db8::2] third.example"


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__instead_of_connack_0x00(serve: Serve, code: int) -> None:
    watcher = (server := serve(hooks=[Policy(connect={"c": code}, server_reference=REFERENCES)])).watch()
    client = server.client()
    client.send(wire.connect("c", will=wire.will("w", b"gone")))
    client.expect_close(code, server_reference=REFERENCES)
    watcher.expect_nothing()  # a connection that was never accepted has no will


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__without_a_reference(serve: Serve, code: int) -> None:
    client = serve(hooks=[Policy(connect={"c": code})]).client()
    client.send(wire.connect("c"))
    client.expect_close(code, server_reference=None)


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__a_live_connection(server: Server, code: int) -> None:
    client, old = server.connect("c"), server.connect("o", 4)
    server.run(server.broker.disconnect("c", code, server_reference=REFERENCES))
    client.expect_close(code, server_reference=REFERENCES)
    server.run(server.broker.disconnect("o", code, server_reference=REFERENCES))
    old.expect_close()


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__a_live_connection_by_a_hook(serve: Serve, code: int) -> None:
    policy = Policy(publish={"no": code}, server_reference=REFERENCES)
    server = serve(hooks=[policy], refused_publish_qos_0="disconnect")
    client = server.connect("c")
    client.send(wire.publish("no", b"x"))
    client.expect_close(code, server_reference=REFERENCES)


def test_b22__a_reference_that_does_not_fit(serve: Serve) -> None:
    policy = Policy(connect={"c": 0x9C}, publish={"no": 0x9D}, server_reference=REFERENCES)
    server = serve(hooks=[policy], refused_publish_qos_0="disconnect")
    for limit, wanted in ((50, None), (200, REFERENCES)):
        client = server.client()
        client.send(wire.connect("c", properties={"maximum_packet_size": limit}))
        client.expect_close(0x9C, server_reference=wanted)
        client = server.connect("d", maximum_packet_size=limit)
        client.send(wire.publish("no", b"x"))
        client.expect_close(0x9D, server_reference=wanted)


@pytest.mark.parametrize("back", [True, False])
def test_b22__a_delayed_will_gives_time_to_move(server: Server, back: bool) -> None:
    watcher = server.watch("w")
    now, later = wire.will("w", b"now"), wire.will("w", b"later", will_delay_interval=5)
    for client_id, will in (("a", now), ("b", later)):
        client = server.connect(client_id, will=will, session_expiry_interval=60)
        server.run(server.broker.disconnect(client_id, 0x9D))
        client.expect_close(0x9D)
    watcher.expect_messages(b"now")
    server.advance(4)
    if back:
        server.connect("b", clean_start=False, session_present=True)
    server.advance(2)
    watcher.expect_messages(*([] if back else [b"later"]))


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__3_1_1_gets_return_code_3(serve: Serve, code: int) -> None:
    client = serve(hooks=[Policy(connect={"c": code}, server_reference=REFERENCES)]).client(4)
    client.send(wire.connect("c", version=4))
    client.expect_close(3)
