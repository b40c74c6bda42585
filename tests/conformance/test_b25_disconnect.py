"""B25: DISCONNECT."""

from __future__ import annotations

import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.server import Server


@pytest.mark.parametrize("code", [None, 0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)])
def test_b25__only_0x00_deletes_the_will(server: Server, code: int | None) -> None:
    watcher = server.watch()
    for spec in (None, ()) if code is not None else (None,):  # one byte has no properties
        client = server.connect("c", will=wire.will("w", b"gone"))
        client.disconnect(code, spec)
        watcher.expect_messages(*([b"gone"] if code else []))


def test_b25__reason_string_and_user_property_are_logged_not_stored(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = server.watch()
    client = server.connect("c", will=wire.will("w", b"gone"), session_expiry_interval=60)
    with caplog.at_level("INFO", "broker.client"):
        client.disconnect(0x04, {"reason_string": "going home", "user_property": ("mood", "tired")})
    watcher.expect("PUBLISH", topic_name="w", payload="gone", user_property=None)
    assert "going home" in caplog.text and "tired" in caplog.text
    again = server.connect("c", clean_start=False, session_present=True)
    assert again.connack is not None
    assert not {"reason_string", "user_property"} & set(again.connack.properties)


def test_b25__takeover_keep_alive_and_kick(server: Server) -> None:
    old = server.connect("a")
    server.connect("a").expect_nothing()
    old.expect_close(0x8E)
    late = server.connect("b", keep_alive=1)
    server.advance(1.6)
    late.expect_close(0x8D)
    kicked = server.connect("c")
    server.run(server.broker.disconnect("c"))
    kicked.expect_close(0x98)


def test_b25__quota(serve: Serve) -> None:
    server = serve(queue_full="disconnect", maximum_queued_messages=1)
    client, publisher = server.connect("c", receive_maximum=1), server.connect("p")
    client.subscribe("t", qos=1)
    for number in range(3):
        publisher.publish("t", b"%d" % number, qos=1)
    server.advance(0.1)
    client.expect_close(0x97, skip=("PUBLISH",))


@pytest.mark.parametrize("code", [0x87, 0x89, 0x96, 0x97, 0x98, 0x9C, 0x9D, 0xA0])
def test_b25__by_the_program(server: Server, code: int) -> None:
    watcher = server.watch()
    client = server.connect("c", will=wire.will("w", b"gone"))
    old = server.connect("o", 4, will=wire.will("w", b"gone"))
    for one in (client, old):
        server.run(server.broker.disconnect(one.client_id, code))
        one.expect_close(code)
        watcher.expect("PUBLISH", topic_name="w", payload="gone")


class Wills(HookBase):
    """Keeps the payload of everything that is published."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        self.payloads.append(message.payload)


async def publish_and_stop(server: Server) -> None:
    await server.broker.publish("t", b"last", qos=1)
    await server.broker.stop()


def test_b25__shutdown(serve: Serve) -> None:
    server = serve(hooks=[wills := Wills()], grace_time=0.05)
    short = server.connect("a", will=wire.will("w", b"at once"))
    short.subscribe("t", qos=1)
    long = server.connect("b", session_expiry_interval=60,
                          will=wire.will("w", b"delayed", will_delay_interval=30))  # fmt: skip
    old, silent = server.connect("c", 4), server.client()
    url = urlsplit(server.address())
    start = time.monotonic()
    server.run(publish_and_stop(server))  # nobody closes his side: the grace time is the bound
    assert time.monotonic() - start < 1
    short.expect("PUBLISH", topic_name="t", payload="last")
    short.expect_close(0x8B)
    long.expect_close(0x8B)
    old.expect_close()
    silent.expect_close()
    assert wills.payloads == [b"at once"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.hostname, url.port), timeout=1)
