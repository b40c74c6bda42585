"""Behaviours that a setting or the embedding program switches on: B03, B06, B26."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Server


def test_b03__a_refused_filter_closes_3_1_by_setting(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no": 0x87})], refused_filter_3_1="close")
    client = server.connect("c", version=3)
    client.send(wire.subscribe(1, ("no", 1), version=3))
    client.expect_close()
    granted = server.connect("d", version=3)
    granted.subscribe("yes", qos=1)
    granted.expect_nothing()


@pytest.mark.parametrize("connected", [True, False])
def test_b06__a_session_removed_by_the_program(server: Server, connected: bool) -> None:
    watcher = server.watch("w")
    client = server.connect(
        "c", session_expiry_interval=60, will=wire.will("w", b"gone", will_delay_interval=9)
    )
    client.subscribe("t", qos=1)
    if not connected:
        client.drop()
    assert server.run(server.broker.delete_session("c"))
    if connected:
        client.expect_close(0x98)
    watcher.expect("PUBLISH", payload="gone")
    assert not server.run(server.broker.delete_session("c"))
    again = server.connect("c", clean_start=False, session_present=False)
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    again.expect_nothing()


@pytest.mark.parametrize(("version", "codes"), [(5, (0x87,)), (4, (5,))])
def test_b26__a_will_authorized_at_connect(serve: Serve, version: int, codes: tuple[int, ...]) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})], authorize_will="connect")
    connect = wire.connect("c", version=version, will=wire.will("no", b"x"))
    server.expect_refused(connect, codes=codes, version=version)
    allowed = server.connect("c", version=version, will=wire.will("yes", b"x"))
    allowed.expect_nothing()
