"""MQTT 3.1.1, sections 3.1 to 3.1.2: CONNECT up to Keep Alive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.connects_311 import WILL, connect, expect_answer, keep, refuse_all
from tests.conformance.hooks import Policy
from tests.conformance.server import Server
from tests.conformance.wills import breach, kick, silence

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


def takeover(server: Server, client: Raw) -> None:
    server.connect("c", 4)
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
