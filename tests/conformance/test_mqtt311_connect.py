"""MQTT 3.1.1, sections 3.1, 3.2, 3.12 and 3.14: CONNECT and CONNACK, PINGREQ, DISCONNECT."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Failing, Password, Policy
from tests.conformance.server import Server

SERVED, RESUMED = bytes.fromhex("20 02 00 00"), bytes.fromhex("20 02 01 00")
WILL = wire.will("w/t", b"gone", qos=1)
FF = b"\xff"


def connect(client_id: str | bytes = "c", **kwargs: Any) -> bytes:
    """A CONNECT of 3.1.1."""
    return wire.connect(client_id, version=4, **kwargs)


def fields(*values: str | bytes) -> bytes:
    """A CONNECT payload of length-prefixed fields."""
    return b"".join(wire.string(value) for value in values)


# CONNECT packets that are closed without a byte, by what is wrong with them.
MALFORMED: dict[str, list[bytes]] = {
    "reserved flag": [connect(flags=flags) for flags in (0x03, 0x01)],
    "no will topic": [connect(flags=0x06, payload=fields("c"))],
    "no will message": [connect(flags=0x06, payload=fields("c", "w"))],
    "will message cut off": [connect(flags=0x06, payload=fields("c", "w") + b"\0\5ab")],
    "will fields without a will": [connect(tail=fields("w", "gone"))],
    "will qos without a will": [connect(flags=flags) for flags in (0x08, 0x10, 0x18, 0x0A, 0x12, 0x1A)],
    "will retain without a will": [connect(flags=flags) for flags in (0x20, 0x22)],
    "will qos 3": [connect(flags=flags, payload=fields("c", "w", "")) for flags in (0x1E, 0x1C, 0x3E)],
    "user name without its flag": [connect(tail=fields("u"))],
    "no user name": [connect(flags=0x82, payload=fields("c"))],
    "password without its flag": [connect(user_name="u", tail=fields("p"))],
    "no password": [connect(flags=0xC2, payload=fields("c", "u"))],
    "password without user name": [connect(flags=flags, payload=fields("c", "p")) for flags in (0x42, 0x40)],
    "no client identifier": [connect(payload=b""), connect(payload=b"\0"), connect(payload=b"\0\2c")],
    "client identifier": [connect(FF)],
    "will topic": [connect(will=wire.will(topic)) for topic in (FF, "", "w/+", "w/#", "#", "w+")],
    "user name": [connect(user_name=FF)],
    "order": [
        connect(flags=0x06, payload=fields("c", FF, "w")),
        connect(flags=0x06, payload=fields(FF, "c", "w")),
        connect(flags=0xC2, payload=fields("c", FF, "u")),
    ],
    "trailing byte": [connect(tail=b"\0"), connect(will=WILL, user_name="u", password=b"p", tail=b"\0\0")],
}


def refuse_all(server: Server, *kinds: str) -> None:
    """Close, no CONNACK, nothing routed, for each packet of *kinds*."""
    for kind in kinds:
        for packet in MALFORMED[kind]:
            server.expect_refused(packet, version=4)


def expect_answer(server: Server, raw: bytes, answer: str, *after: bytes) -> None:
    """*raw* is answered with these very bytes, and the connection is closed."""
    wanted = bytes.fromhex(answer)
    client = server.client(5 if len(wanted) == 5 else 4)
    client.send(raw, *after)
    found = client.expect_close(wanted[3])
    assert found is not None and found.raw == wanted, f"{raw.hex(' ')} -> {found}"


def expect_raw(client: Raw, wanted: bytes) -> None:
    assert client.recv().raw == wanted


def keep(server: Server, client_id: str = "s", topic_filter: str = "t") -> None:
    """A CleanSession 0 session with one QoS 2 subscription, whose client is away."""
    client = server.connect(client_id, 4, clean_start=False, session_present=False)
    client.subscribe(topic_filter, qos=2)
    client.disconnect()


# ------------------------------------------------------------------------------- 3.1 the packet itself


@pytest.mark.parametrize(
    "first",
    [
        wire.pingreq(),
        wire.publish("t", b"x", version=4),
        wire.publish("t", b"x", qos=1, retain=True, version=4),
        wire.subscribe(1, "t", version=4),
        wire.disconnect(),
        wire.puback(1, version=4),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("ff 13 37 00 c0 00"),
    ],
    ids=["pingreq", "publish", "retained", "subscribe", "disconnect", "puback", "http", "noise"],
)
def test_mqtt311_3_1_0_1__something_else_first(server: Server, first: bytes) -> None:
    server.expect_refused(first, connect(), version=4)
    assert server.retained() == []


@pytest.mark.parametrize("second", [connect("c"), connect("other"), wire.connect("c")])
def test_mqtt311_3_1_0_2__second_connect(server: Server, second: bytes) -> None:
    server.expect_breach(second, codes=(), version=4)


def test_mqtt311_3_1_0_2__both_in_one_segment(server: Server) -> None:
    watcher, client = server.watch(), server.client(4)
    client.send(connect(will=WILL), connect(will=WILL))
    client.expect_close(0, skip=["PINGRESP"])
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone")
    watcher.expect_nothing()


# ------------------------------------------------------------------------------- 3.1.2 the variable header


@pytest.mark.parametrize("name", ["MQTX", "mqtt", "", "MQT", "MQTTT", "MQIsdp\0", b"\xff\xff\xff\xff"])
def test_mqtt311_3_1_2_1__wrong_name(server: Server, name: str | bytes) -> None:
    server.expect_refused(connect(protocol_name=name), version=4)


def test_mqtt311_3_1_2_1__mqisdp(serve: Serve) -> None:
    """Level 3 is MQTT 3.1, served or (by setting) refused; no other level goes with that name."""
    server = serve()
    client = server.connect("c", 3)
    client.subscribe("t")
    client.publish("t", b"x")
    client.expect_messages(b"x")
    expect_answer(server, connect(protocol_name="MQIsdp"), "20 02 00 01")
    off = serve(mqtt_3_1=False)
    expect_answer(off, wire.connect("c", version=3), "20 02 00 01")


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_mqtt311_3_1_2_2__level_too_low(server: Server, level: int) -> None:
    expect_answer(server, connect(level=level), "20 02 00 01", wire.pingreq())


@pytest.mark.parametrize("level", [6, 7, 0x7F, 0xFF])
def test_mqtt311_3_1_2_2__level_too_high(serve: Serve, level: int) -> None:
    """It belongs to the newest version served, and gets that version's answer."""
    expect_answer(serve(), connect(level=level), "20 03 00 84 00", wire.pingreq())
    expect_answer(serve(mqtt_5=False), connect(level=level), "20 02 00 01", wire.pingreq())


def test_mqtt311_3_1_2_2__level_5_is_served(server: Server) -> None:
    client = server.client(5)
    client.send(wire.connect("c", version=5))
    client.expect("CONNACK", reason_code=0)
    client.expect_nothing()


def test_mqtt311_3_1_2_3__reserved_flag(server: Server) -> None:
    refuse_all(server, "reserved flag")


def test_mqtt311_3_1_2_4__session_is_kept(server: Server) -> None:
    keep(server)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    server.connect("p", 4).publish("t", b"x", qos=2)
    again.expect("PUBLISH", topic_name="t", payload="x", qos=2)


@pytest.mark.parametrize(
    ("queue_qos_0", "wanted"), [(False, ["1", "2", "4"]), (True, ["0", "1", "2", "3", "4"])]
)
def test_mqtt311_3_1_2_5__stored_while_away(serve: Serve, queue_qos_0: bool, wanted: list[str]) -> None:
    server = serve(queue_qos_0=queue_qos_0)
    keep(server)
    publisher = server.connect("p", 4)
    for payload, qos in (("0", 0), ("1", 1), ("2", 2), ("3", 0), ("4", 1)):
        publisher.publish("t", payload, qos=qos)
    again = server.connect("s", 4, clean_start=False, session_present=True)
    found = again.expect_messages(*wanted, dup=False)
    assert [packet.qos for packet in found if packet.qos] == [1, 2, 1]


def test_mqtt311_3_1_2_6__old_state_is_discarded(server: Server) -> None:
    keep(server)
    publisher = server.connect("p", 4)
    publisher.publish("t", b"queued", qos=1)
    clean = server.connect("s", 4, session_present=False)
    publisher.publish("t", b"live", qos=1)
    clean.expect_nothing()


def test_mqtt311_3_1_2_6__state_is_never_reused(server: Server) -> None:
    clean = server.connect("s", 4)
    clean.subscribe("t", qos=1)
    clean.drop()
    again = server.connect("s", 4, clean_start=False, session_present=False)
    server.connect("p", 4).publish("t", b"x", qos=1)
    again.expect_nothing()


def test_mqtt311_3_1_2_6__takeover_of_a_clean_session(server: Server) -> None:
    clean = server.connect("s", 4)
    clean.subscribe("t", qos=1)
    again = server.connect("s", 4, clean_start=False, session_present=False)
    clean.expect_close()
    server.connect("p", 4).publish("t", b"x", qos=1)
    again.expect_nothing()


def test_mqtt311_3_1_2_7__retained_outlives_the_session(server: Server) -> None:
    client = server.connect("c", 4)
    client.publish("t", b"kept", qos=1, retain=True)
    client.disconnect()
    subscriber = server.connect("s", 4)
    subscriber.subscribe("t", qos=1)
    subscriber.expect_messages(("t", "kept"), retain=True)


def breach(server: Server, client: Raw) -> None:
    client.send(wire.packet(0x00))
    client.expect_close()


def takeover(server: Server, client: Raw) -> None:
    server.connect("c", 4)
    client.expect_close()


def silence(server: Server, client: Raw) -> None:
    server.advance(3.5, step=0.5)
    client.expect_close()


def kick(server: Server, client: Raw) -> None:
    server.run(server.broker.disconnect("c"))
    client.expect_close()


WAYS: list[Callable[[Server, Raw], None]] = [
    lambda server, client: client.drop(),
    lambda server, client: client.reset(),
    breach,
    takeover,
    silence,
    kick,
]


@pytest.mark.parametrize("way", WAYS, ids=["fin", "rst", "breach", "takeover", "silence", "kick"])
def test_mqtt311_3_1_2_8__will_is_published(server: Server, way: Callable[[Server, Raw], None]) -> None:
    watcher = server.watch()
    client = server.connect("c", 4, will=WILL, keep_alive=2)
    watcher.expect_nothing()
    way(server, client)
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone", qos=1, retain=False)
    watcher.expect_nothing()


def test_mqtt311_3_1_2_8__not_after_disconnect(server: Server) -> None:
    watcher = server.watch()
    server.connect("c", 4, will=WILL).disconnect()
    watcher.expect_nothing()


def test_mqtt311_3_1_2_8__not_for_a_refused_connect(serve: Serve) -> None:
    server = serve(hooks=[Policy(connect={"c": 0x87})])
    server.expect_refused(connect(will=WILL), codes=5, version=4)


def test_mqtt311_3_1_2_9__will_fields_are_missing(server: Server) -> None:
    refuse_all(server, "no will topic", "no will message", "will message cut off")


def test_mqtt311_3_1_2_9__empty_will_message(server: Server) -> None:
    watcher = server.watch()
    server.connect("c", 4, will=wire.will("w/t", b"", qos=2)).drop()
    watcher.expect("PUBLISH", topic_name="w/t", payload=b"", qos=2)


def test_mqtt311_3_1_2_10__published_once(server: Server) -> None:
    watcher = server.watch()
    server.connect("c", 4, clean_start=False, will=WILL).drop()
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone")
    server.connect("c", 4, clean_start=False, session_present=True).drop()
    watcher.expect_nothing()


def test_mqtt311_3_1_2_10__removed_by_disconnect(server: Server) -> None:
    watcher = server.watch()
    server.connect("c", 4, clean_start=False, will=WILL).disconnect()
    server.connect("c", 4, clean_start=False, session_present=True).drop()
    watcher.expect_nothing()


def test_mqtt311_3_1_2_11__will_parts_without_the_flag(server: Server) -> None:
    refuse_all(server, "will qos without a will", "will retain without a will", "will fields without a will")


def test_mqtt311_3_1_2_12__no_will(server: Server) -> None:
    watcher = server.watch()
    server.connect("c", 4).drop()
    server.connect("c", 4, clean_start=False).reset()
    watcher.expect_nothing()


def test_mqtt311_3_1_2_13__will_qos_without_the_flag(server: Server) -> None:
    refuse_all(server, "will qos without a will")


def test_mqtt311_3_1_2_14__will_qos_3(server: Server) -> None:
    refuse_all(server, "will qos 3")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt311_3_1_2_14__will_arrives_at_its_qos(server: Server, qos: int) -> None:
    watcher = server.watch()
    server.connect("c", 4, will=wire.will("w/t", b"gone", qos=qos)).drop()
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone", qos=qos, retain=False)


def test_mqtt311_3_1_2_15__will_retain_without_the_flag(server: Server) -> None:
    refuse_all(server, "will retain without a will")


def test_mqtt311_3_1_2_16__will_retain_0(server: Server) -> None:
    """Not stored: no retained message without an earlier one, and an earlier one stays."""
    server.connect("c", 4, will=WILL).drop()
    assert server.retained() == []
    server.connect("p", 4).publish("w/t", b"earlier", qos=1, retain=True)
    server.connect("c", 4, will=WILL).drop()
    assert server.retained() == [("w/t", b"earlier")]


def test_mqtt311_3_1_2_17__will_retain_1(server: Server) -> None:
    server.connect("c", 4, will=wire.will("w/t", b"gone", qos=1, retain=True)).drop()
    late = server.connect("s", 4)
    late.subscribe("w/+", qos=2)
    late.expect("PUBLISH", topic_name="w/t", payload="gone", qos=1, retain=True)


def test_mqtt311_3_1_2_18__user_name_without_the_flag(server: Server) -> None:
    refuse_all(server, "user name without its flag")


def test_mqtt311_3_1_2_19__user_name_is_missing(server: Server) -> None:
    refuse_all(server, "no user name")


def test_mqtt311_3_1_2_20__password_without_the_flag(server: Server) -> None:
    refuse_all(server, "password without its flag")


def test_mqtt311_3_1_2_21__password_is_missing(server: Server) -> None:
    refuse_all(server, "no password")


def test_mqtt311_3_1_2_22__password_without_user_name(server: Server) -> None:
    refuse_all(server, "password without user name")
    server.connect("five", 5, password=b"p", reason=0)


def test_mqtt311_3_1_2_24__silence(server: Server) -> None:
    """Open at 2.9 s, closed at 3.5 s, as after a network failure."""
    watcher = server.watch()
    client = server.connect("c", 4, keep_alive=2, will=WILL)
    server.advance(2.9, step=0.5)
    client.expect_nothing()
    server.advance(2.9, step=0.5)
    watcher.expect_nothing()
    server.advance(0.6, step=0.1)
    client.expect_close()
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone")


def test_mqtt311_3_1_2_24__each_packet_counts(server: Server) -> None:
    client = server.connect("c", 4, keep_alive=2)
    every = [
        wire.publish("t", b"x", version=4),
        wire.publish("t", b"x", qos=1, packet_id=1, version=4),
        wire.publish("t", b"x", qos=2, packet_id=2, version=4),
        wire.pubrel(2, version=4),
        wire.puback(9, version=4),
        wire.pubcomp(9, version=4),
        wire.subscribe(3, "t", version=4),
        wire.unsubscribe(4, "t", version=4),
        wire.pingreq(),
    ]
    for packet in every:
        server.advance(2.5, step=0.5)
        before = server.broker.stats.messages_received
        client.send(packet)
        server.wait_until(lambda before=before: server.broker.stats.messages_received > before)
    for answer in ("PUBACK", "PUBREC", "PUBCOMP", "SUBACK", "UNSUBACK", "PINGRESP"):
        client.expect(answer)
    server.advance(3.5, step=0.5)
    client.expect_close()


def test_mqtt311_3_1_2_24__none(server: Server) -> None:
    client = server.connect("c", 4, keep_alive=0)
    server.advance(10, step=0.5)
    client.expect_nothing()
    server.advance(100_000)
    client.expect_nothing()


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


@pytest.mark.parametrize("kind", MALFORMED)
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
    for packet in MALFORMED["trailing byte"]:
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


# ------------------------------------------------------------------------------- 3.2 CONNACK


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


# ------------------------------------------------------------------------------- 3.12 PINGREQ


def test_mqtt311_3_12_4_1__pingresp(server: Server) -> None:
    client = server.connect("c", 4)
    client.send(bytes.fromhex("C0 00"))
    expect_raw(client, bytes.fromhex("D0 00"))
    client.send(*[wire.pingreq()] * 100)
    for _ in range(100):
        client.expect("PINGRESP")
    client.expect_nothing()


@pytest.mark.parametrize("raw", ["C0 01 00", "C0 02 00 01"])
def test_mqtt311_3_12_4_1__with_a_body(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=(), version=4)


# ------------------------------------------------------------------------------- 3.14 DISCONNECT


@pytest.mark.parametrize("raw", ["E1 00", "E2 00", "E4 00", "E8 00", "EF 00", "E0 01 00", "E0 02 00 00"])
def test_mqtt311_3_14_1_1__reserved_bits_or_a_body(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=(), version=4)


def test_mqtt311_3_14_4_2__nothing_after(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c", 4, will=WILL)
    late = [
        wire.publish("t", b"late", version=4),
        wire.publish("t", b"late", qos=1, retain=True, version=4),
        wire.pingreq(),
    ]
    client.send(wire.disconnect(), *late)
    client.expect_close()
    watcher.expect_nothing()
    assert server.retained() == []


def test_mqtt311_3_14_4_3__will_is_discarded(server: Server) -> None:
    watcher = server.watch()
    for clean in (True, False):
        client = server.connect("c", 4, clean_start=clean, will=WILL)
        client.send(bytes.fromhex("E0 00"))
        client.expect_close()
        client.drop()
    server.advance(100)
    watcher.expect_nothing()
