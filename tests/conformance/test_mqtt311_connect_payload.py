"""MQTT 3.1.1, sections 3.1.3 and 3.1.4: the payload of CONNECT, and what follows it."""

from __future__ import annotations

import string

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.connects_311 import (
    BROKEN,
    RESUMED,
    SERVED,
    WILL,
    connect,
    expect_answer,
    expect_raw,
    keep,
    refuse_all,
)
from tests.conformance.hooks import Password, Policy
from tests.conformance.server import Server

# ------------------------------------------------------------------------------- 3.1.3 the payload


def test_mqtt311_3_1_3_1__order(serve: Serve) -> None:
    hook = Password()
    server = serve(hooks=[hook])
    watcher = server.client(4)
    watcher.connect("watcher", user_name="u", password=b"p")
    watcher.subscribe("#", qos=2)
    client = server.connect("c", 4, will=WILL, user_name="u", password=b"p")
    assert hook.seen[-1] == ("c", "u", b"p")
    client.drop()
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone", qos=1)


def test_mqtt311_3_1_3_1__another_order(server: Server) -> None:
    refuse_all(server, "order")


def test_mqtt311_3_1_3_2__case_counts(server: Server) -> None:
    keep(server, "id", "lower")
    keep(server, "ID", "upper")
    publisher = server.connect("p", 4)
    publisher.publish("lower", b"1", qos=1)
    publisher.publish("upper", b"2", qos=1)
    for client_id, payload in (("id", b"1"), ("ID", b"2")):
        again = server.connect(client_id, 4, clean_start=False, session_present=True)
        again.expect_messages(payload)


def test_mqtt311_3_1_3_2__from_another_address(server: Server) -> None:
    keep(server)
    again = server.client(4, transport="tcp" if server.transport == "websocket" else "websocket")
    again.connect("s", clean_start=False, session_present=True)
    server.connect("p", 4).publish("t", b"x", qos=1)
    again.expect_messages(b"x")


def test_mqtt311_3_1_3_3__no_client_identifier(server: Server) -> None:
    refuse_all(server, "no client identifier")


def test_mqtt311_3_1_3_4__not_utf8(server: Server) -> None:
    refuse_all(server, "client identifier")


def test_mqtt311_3_1_3_5__letters_and_digits(server: Server) -> None:
    alphabet = string.digits + string.ascii_letters
    assert len(alphabet) == 62
    for client_id in [*alphabet, alphabet[:23], alphabet[-23:]]:
        client = server.connect(client_id, 4, session_present=False, reason=0)
        client.drop(wait=False)


def test_mqtt311_3_1_3_6__each_gets_its_own(server: Server) -> None:
    one, two = server.connect("", 4, reason=0), server.connect("", 4, reason=0)
    one.subscribe("t")
    two.publish("t", b"x")
    one.expect_messages(b"x")
    two.expect_nothing()


def test_mqtt311_3_1_3_6__switched_off(serve: Serve) -> None:
    server = serve(zero_length_client_id=False)
    expect_answer(server, connect(""), "20 02 00 02", wire.pingreq())


EMPTY_AND_KEPT = bytes.fromhex("10 0C 00 04 4D 51 54 54 04 00 00 3C 00 00")


def test_mqtt311_3_1_3_7__empty_needs_clean_session(server: Server) -> None:
    expect_answer(server, EMPTY_AND_KEPT, "20 02 00 02")
    server.connect("", 4, reason=0)


def test_mqtt311_3_1_3_8__empty_and_kept(server: Server) -> None:
    expect_answer(server, EMPTY_AND_KEPT, "20 02 00 02", wire.pingreq())


def test_mqtt311_3_1_3_9__refused_by_policy(serve: Serve) -> None:
    server = serve(hooks=[Policy(connect={"not-you": 0x85})], maximum_client_id_bytes=23)
    expect_answer(server, connect("not-you"), "20 02 00 02", wire.pingreq())
    expect_answer(server, connect("x" * 24), "20 02 00 02", wire.pingreq())
    server.connect("x" * 23, 4, reason=0)


def test_mqtt311_3_1_3_10__will_topic(server: Server) -> None:
    refuse_all(server, "will topic")


def test_mqtt311_3_1_3_11__user_name(server: Server) -> None:
    refuse_all(server, "user name")


# ------------------------------------------------------------------------------- 3.1.4 the response


@pytest.mark.parametrize("kind", BROKEN)
def test_mqtt311_3_1_4_1__malformed(server: Server, kind: str) -> None:
    refuse_all(server, kind)


def test_mqtt311_3_1_4_1__cut_off(server: Server) -> None:
    """Every beginning of a CONNECT, with a Remaining Length that says it is all."""
    body = connect(will=WILL, user_name="u", password=b"p")[2:]
    for length in range(len(body)):
        server.expect_refused(wire.packet(0x10, body[:length]), version=4)


def test_mqtt311_3_1_4_1__stream_ends_inside(server: Server) -> None:
    watcher, whole = server.watch(), connect(will=WILL)
    for length in (1, 2, 9, len(whole) - 1):
        client = server.client(4)
        client.send(whole[:length])
        client.drop()
    watcher.expect_nothing()


@pytest.mark.parametrize("clean", [True, False])
def test_mqtt311_3_1_4_2__old_connection_is_closed(server: Server, clean: bool) -> None:
    watcher = server.watch()
    old = server.connect("c", 4, clean_start=clean, will=WILL)
    new = server.client(4)
    new.send(connect(flags=clean << 1))
    expect_raw(new, SERVED if clean else RESUMED)
    old.expect_close()
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone")
    new.expect_nothing()


def test_mqtt311_3_1_4_2__old_client_of_5_0(server: Server) -> None:
    old = server.connect("c", 5)
    new = server.connect("c", 4, reason=0)
    old.expect_close(0x8E)
    new.expect_nothing()


def test_mqtt311_3_1_4_2__refused_newcomer(serve: Serve) -> None:
    server = serve(hooks=[Password()])
    old = server.connect("c", 4, user_name="u", password=b"p", will=WILL)
    expect_answer(server, connect(user_name="u", password=b"no"), "20 02 00 04")
    for packet in BROKEN["trailing byte"]:
        client = server.client(4)
        client.send(packet)
        client.expect_close()
    old.expect_nothing()


@pytest.mark.parametrize("clean", [True, False])
def test_mqtt311_3_1_4_3__takeover(server: Server, clean: bool) -> None:
    old = server.connect("c", 4, clean_start=False)
    old.subscribe("t", qos=1)
    new = server.connect("c", 4, clean_start=clean, session_present=not clean)
    old.expect_close()
    server.connect("p", 4).publish("t", b"x", qos=1)
    new.expect_messages(*([] if clean else [b"x"]))


def test_mqtt311_3_1_4_4__connack(server: Server) -> None:
    client = server.client(4)
    client.send(connect())
    found = client.recv(timeout=1)
    assert found.raw == SERVED


@pytest.mark.parametrize(("client_id", "code"), [("bad-password", 4), ("no-rights", 5)])
def test_mqtt311_3_1_4_5__nothing_is_processed_after(serve: Serve, client_id: str, code: int) -> None:
    server = serve(hooks=[Policy(connect={"bad-password": 0x86, "no-rights": 0x87})])
    watcher = server.watch()
    expect_answer(
        server,
        connect(client_id, user_name="u", password=b"p"),
        f"20 02 00 0{code}",
        wire.subscribe(1, "t", version=4),
        wire.publish("t", b"x", version=4, qos=1, retain=True),
        wire.publish("t", b"y", version=4),
    )
    watcher.expect_nothing()
    assert server.retained() == []
