"""MQTT 3.1.1, section 3.2: CONNACK."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.connects_311 import RESUMED, SERVED, connect, expect_answer, expect_raw, keep
from tests.conformance.hooks import Failing, Policy
from tests.conformance.server import Server


def test_mqtt311_3_2_0_1__first_packet(server: Server) -> None:
    """And exactly one: the harness refuses a second CONNACK."""
    keep(server)
    publisher = server.connect("p", 4)
    for payload in (b"1", b"2"):
        publisher.publish("t", payload, qos=1)
    again = server.client(4)
    again.send(connect("s", flags=0), wire.pingreq())
    expect_raw(again, RESUMED)
    again.expect("PUBLISH", payload="1")
    again.expect("PUBLISH", payload="2")
    again.expect("PINGRESP")
    again.expect_nothing()


def test_mqtt311_3_2_2_1__clean_session(server: Server) -> None:
    keep(server)
    client = server.client(4)
    client.send(connect("s"))
    expect_raw(client, SERVED)


def test_mqtt311_3_2_2_2__stored_state(server: Server) -> None:
    server.connect("s", 4, clean_start=False).disconnect()
    for _ in range(2):
        client = server.client(4)
        client.send(connect("s", flags=0))
        expect_raw(client, RESUMED)
        client.drop()


def test_mqtt311_3_2_2_3__no_stored_state(server: Server) -> None:
    client = server.client(4)
    client.send(connect("fresh", flags=0))
    expect_raw(client, SERVED)


@pytest.mark.parametrize(
    ("user_name", "password", "answer"),
    [("u", b"no", "20 02 00 04"), (None, None, "20 02 00 04"), ("other", b"p", "20 02 00 05")],
)
def test_mqtt311_3_2_2_4__refused_with_a_session(
    serve: Serve, user_name: str | None, password: bytes | None, answer: str
) -> None:
    """The last one is a user that is known, and is not the owner of the session."""
    server = serve(hooks=[Policy(credentials={"u": b"p", "other": b"p"})])
    server.connect("s", 4, clean_start=False, user_name="u", password=b"p").disconnect()
    raw = wire.connect("s", version=4, clean_start=False, user_name=user_name, password=password)
    expect_answer(server, raw, answer)
    server.connect("s", 4, clean_start=False, user_name="u", password=b"p", session_present=True)


def test_mqtt311_3_2_2_5__closed_after_each_refusal(serve: Serve) -> None:
    policy = Policy(connect={"2": 0x85, "3": 0x88, "4": 0x86, "5": 0x87})
    server = serve(hooks=[policy])
    expect_answer(server, connect(level=3), "20 02 00 01", wire.pingreq())
    for code in "2345":
        expect_answer(server, connect(code), f"20 02 00 0{code}", wire.pingreq())


@pytest.mark.parametrize("reason", [0x80, 0x82, 0x83, 0x90, 0x95, 0x99, 0x9A, 0x9B, 0x9F])
def test_mqtt311_3_2_2_6__no_code_fits(serve: Serve, reason: int) -> None:
    server = serve(hooks=[Policy(connect={"c": reason}, reason_string="why")])
    server.expect_refused(connect(), wire.pingreq(), version=4)


def test_mqtt311_3_2_2_6__over_the_connect_rate(serve: Serve) -> None:
    server = serve(maximum_connect_rate=1.0)
    server.connect("first", 4, reason=0)
    second = server.client(4)
    second.send(connect("second"))
    second.expect_close()
    server.advance(1)
    server.connect("second", 4, reason=0)


def test_mqtt311_3_2_2_6__too_many_from_one_address(serve: Serve) -> None:
    server = serve(maximum_connections_per_address=1)
    first = server.connect("first", 4, reason=0)
    second = server.client(4)
    second.send(connect("second"))
    second.expect_close()
    first.expect_nothing()


def test_mqtt311_3_2_2_6__hook_fails(serve: Serve) -> None:
    server = serve(hooks=[Failing("c")])
    server.expect_errors()
    server.expect_refused(connect(), version=4)
