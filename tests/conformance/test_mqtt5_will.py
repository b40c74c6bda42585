"""MQTT 5.0, sections 3.1.2.5 to 3.1.2.7 and 3.1.3.2 to 3.1.3.4: the Will Message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Server
from tests.conformance.wills import breach, dying, expect_will, kick, leave, silence

# ---- Will Flag


def test_mqtt5_3_1_2_7__the_will_is_stored_as_it_was_given(server: Server) -> None:
    watcher = server.watch()
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\x00\xff",
        "user_property": [("k", "v")],
    }
    server.connect("c", will=wire.will("w/t", b"gone", qos=1, **properties)).drop()
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone", qos=1, retain=False, properties=properties)
    watcher.expect_nothing()


def test_mqtt5_3_1_2_7__no_will_after_a_refusal(serve: Serve) -> None:
    server = serve(hooks=[Policy(users={"u": 0x86}, connect={"banned": 0x8A})])
    watcher, will = server.watch(), wire.will("w", b"gone", retain=True)
    for client_id, name, code in (("c", "u", 0x86), ("banned", None, 0x8A)):
        client = server.client()
        client.send(wire.connect(client_id, will=will, user_name=name, properties=[(0x11, 60)]))
        client.expect_close(code)
    expect_will(server, watcher, None)
    assert server.retained() == []


def take_over(server: Server, client: Raw) -> None:
    server.connect(client.client_id, clean_start=False, session_expiry_interval=60)
    client.expect_close(0x8E)


CLIENT_CODES = (0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A))
ENDINGS: dict[str, Callable[[Server, Raw], None]] = {
    "FIN": lambda server, client: client.drop(),
    "RST": lambda server, client: client.reset(),
    "keep alive": silence,
    "protocol error": breach,
    "closed by the server": kick,
    "takeover": take_over,
    **{f"DISCONNECT 0x{code:02X}": leave(code) for code in CLIENT_CODES},
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("interval", [0, 60])
def test_mqtt5_3_1_2_8__published_after(
    server: Server, end: Callable[[Server, Raw], None], interval: int
) -> None:
    watcher = server.watch()
    end(server, dying(server, interval=interval))
    expect_will(server, watcher)


@pytest.mark.parametrize(
    ("delay", "interval", "after"),
    [(2, 60, 2), (10, 0, 0), (10, 1, 1), (60, 60, 60), (0, 0, 0), (0, 60, 0), (1, 0xFFFFFFFF, 1)],
)
def test_mqtt5_3_1_2_8__when(server: Server, delay: int, interval: int, after: int) -> None:
    watcher = server.watch()
    dying(server, delay=delay, interval=interval).drop()
    expect_will(server, watcher, after)


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("interval", [0, 60])
@pytest.mark.parametrize("code", [None, 0x00])
def test_mqtt5_3_1_2_8__not_after_a_normal_disconnection(
    server: Server, delay: int, interval: int, code: int | None
) -> None:
    watcher = server.watch()
    dying(server, delay=delay, interval=interval).disconnect(code)
    expect_will(server, watcher, None)


# Fields of the payload; the last byte of a field is cut as well.
FIELDS = [wire.string("c"), wire.encode_properties({"will_delay_interval": 1}), wire.string("w"),
          wire.binary(b"gone")]  # fmt: skip


@pytest.mark.parametrize("flags", [0x06, 0x0E, 0x16, 0x26])
def test_mqtt5_3_1_2_9__the_will_fields_are_there(server: Server, flags: int) -> None:
    whole = b"".join(FIELDS)
    for count in range(1, len(FIELDS)):
        start = len(b"".join(FIELDS[:count]))
        for size in (start, start + 1, start + len(FIELDS[count]) - 1):
            raw = wire.connect(flags=flags, payload=whole[:size])
            server.expect_refused(raw, codes=MALFORMED)


def test_mqtt5_3_1_2_9__will_fields_without_the_flag(server: Server) -> None:
    for count in (2, 3, 4):
        raw = wire.connect(flags=0x02, payload=b"".join(FIELDS[:count]))
        server.expect_refused(raw, codes=MALFORMED)


@pytest.mark.parametrize("code", [None, 0x04])
def test_mqtt5_3_1_2_10__a_published_will_is_gone(server: Server, code: int | None) -> None:
    watcher = server.watch()
    client = dying(server, interval=300)
    client.disconnect(code) if code else client.drop()
    watcher.expect_messages(("w", b"gone"))
    server.connect("c", clean_start=False, session_expiry_interval=300, session_present=True).drop()
    expect_will(server, watcher, None)


def test_mqtt5_3_1_2_10__a_deleted_will_is_gone(server: Server) -> None:
    watcher = server.watch()
    dying(server, interval=300).disconnect(0x00)
    server.connect("c", clean_start=False, session_expiry_interval=300, session_present=True).drop()
    expect_will(server, watcher, None)


# ---- Will QoS and Will Retain


def test_mqtt5_3_1_2_11__will_qos_without_a_will(server: Server) -> None:
    for qos in (1, 2, 3):
        for payload in (FIELDS[0], b"".join(FIELDS)):
            server.expect_refused(wire.connect(flags=0x02 | qos << 3, payload=payload), codes=MALFORMED)


def test_mqtt5_3_1_2_12__will_qos_3(server: Server) -> None:
    for flags in (0x1E, 0x3E):
        server.expect_refused(wire.connect(flags=flags, payload=b"".join(FIELDS)), codes=MALFORMED)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_3_1_2_12__will_qos(server: Server, qos: int) -> None:
    watcher = server.watch(qos=2)
    server.connect("c", will=wire.will("w", b"gone", qos=qos)).drop()
    watcher.expect_messages(b"gone", qos=qos)


def test_mqtt5_3_1_2_13__will_retain_without_a_will(server: Server) -> None:
    for flags in (0x22, 0x20):
        for payload in (FIELDS[0], b"".join(FIELDS)):
            server.expect_refused(wire.connect(flags=flags, payload=payload), codes=MALFORMED)


def test_mqtt5_3_1_2_14__will_retain_0(server: Server) -> None:
    server.connect("p").publish("w", b"earlier", retain=True)
    watcher = server.watch()
    watcher.expect("PUBLISH", payload="earlier")
    server.connect("c", will=wire.will("w", b"gone", qos=1)).drop()
    server.connect("d", will=wire.will("w/other", b"gone")).drop()
    watcher.expect_messages(("w", b"gone"), ("w/other", b"gone"), retain=False)
    assert server.retained() == [("w", b"earlier")]


def test_mqtt5_3_1_2_15__will_retain_1(server: Server) -> None:
    watcher = server.watch()
    for payload, left in ((b"gone", [("w", b"gone")]), (b"", [])):
        server.connect("c", will=wire.will("w", payload, qos=1, retain=True)).drop()
        watcher.expect_messages(("w", payload), retain=True)
        assert server.retained() == left


# ---- Will Delay Interval


def test_mqtt5_3_1_3_9__cancelled_by_a_new_connection(server: Server) -> None:
    watcher = server.watch()
    dying(server, delay=3, interval=60).drop()
    server.advance(1)
    again = server.connect("c", clean_start=False, session_expiry_interval=60, session_present=True)
    server.advance(5)
    watcher.expect_nothing()
    again.disconnect()
    expect_will(server, watcher, None)


def test_mqtt5_3_1_3_9__cancelled_by_a_takeover(server: Server) -> None:
    watcher = server.watch()
    old = dying(server, delay=3, interval=60)
    again = server.connect("c", clean_start=False, session_expiry_interval=60, session_present=True)
    old.expect_close(0x8E)
    server.advance(5)
    watcher.expect_nothing()
    again.drop()
    expect_will(server, watcher, None)


@pytest.mark.parametrize("connected", [True, False])
def test_mqtt5_3_1_3_9__clean_start_1_ends_the_session(server: Server, connected: bool) -> None:
    watcher = server.watch()
    old = dying(server, delay=3, interval=60)
    if not connected:
        old.drop()
        server.advance(1)
        watcher.expect_nothing()
    server.connect("c", clean_start=True, session_present=False).expect_nothing()
    expect_will(server, watcher)


# ---- Will Properties and Will Topic


def test_mqtt5_3_1_3_10__order_of_user_properties(server: Server) -> None:
    watcher, pairs = server.watch(), [("b", "1"), ("a", "2"), ("b", "3")]
    server.connect("c", will=wire.will("w", b"gone", qos=1, user_property=pairs)).drop()
    watcher.expect("PUBLISH", payload="gone", user_property=pairs)


def test_mqtt5_3_1_3_11__the_will_topic_is_utf_8(server: Server) -> None:
    for topic_name in (b"\xff", b"w\x00", b"\xc0\x80", b"\xed\xa0\x80", b"w\xe2\x82"):
        server.expect_refused(wire.connect("c", will=wire.will(topic_name, b"x")), codes=MALFORMED)


def test_mqtt5_3_1_3_11__the_will_topic_is_a_topic_name(server: Server) -> None:
    for topic_name in ("", "#", "+", "a/#", "a/+/b", "a#", "a+b"):
        for retain in (False, True):
            will = wire.will(topic_name, b"x", retain=retain)
            server.expect_refused(wire.connect("c", will=will), codes=0x90)
    assert server.retained() == []
