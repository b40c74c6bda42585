"""Clients that are let in, and do with MQTT what it was not made for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from tests.conformance import wire
from tests.hostility.attack import at_once, reading, repeat
from tests.hostility.line import Line
from tests.hostility.scene import MIB, bound, scene

SECONDS = 1.5  # of most attacks


# ---- subscription bombs


def crossing(levels: int) -> list[str]:
    """Every filter of *levels* levels that are + or a, and one more +: they all match one name."""
    return ["/".join(each) + "/+" for each in itertools.product("+a", repeat=levels)]


def subscribe_all(line: Line, filters: list[str]) -> list[int]:
    for start in range(0, len(filters), 500):
        line.send(wire.subscribe(1, *filters[start : start + 500]))
    return [code for _ in range(0, len(filters), 500) for code in line.until("SUBACK")[0].reason_codes]


def test_filters_that_all_match_the_same_names() -> None:
    """`+/a/+/...`: each name is looked for in thousands of branches, and every packet brings a new one."""
    with scene() as s:
        for number in range(4):
            assert set(subscribe_all(s.line().connect(f"bomb-{number}"), crossing(12))) == {0}
        publisher = s.line().connect("publisher")
        names = b"".join(wire.publish("a/" * 12 + str(number)) for number in range(3000))
        repeat(publisher, names, 4.0)


BOMBS: dict[str, Callable[[int], str]] = {
    "many levels": lambda n: f"{n}/" + "+/" * 126 + "+",
    "long": lambda n: f"{n}/" + "x" * 60_000,
    "shared": lambda n: f"$share/{n}/bomb",
    "levels of their own": lambda n: "/".join(f"{n}-{at}" for at in range(100)) + "/#",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_more_filters_than_the_memory_has_room_for(kind: str) -> None:
    """What they take is counted, and beyond the budget, or 10,000 of them, they are refused one by one."""
    with scene(capacity__maximum_bytes=64 * MIB, newcomers=False) as s:
        codes: list[int] = []
        line = s.line().connect("bomb")
        at_a_time = 1 if kind == "long" else 100
        for start in range(0, 12_000, at_a_time):
            line.send(wire.subscribe(1, *map(BOMBS[kind], range(start, start + at_a_time))))
            codes += line.until("SUBACK")[0].reason_codes
            if codes[-1] and len(codes) > 1000:
                break
        assert set(codes) == {0, 0x97}
        assert codes == sorted(codes), "all that has room, and then none"
        assert s.peak() < bound(64 * MIB)
        line.fence()
        line.send(wire.disconnect())
        s.wait_until(lambda: s.sys()["store/messages/bytes"] < MIB, "all of it comes back")


BAD_FILTERS = ("+/" * 128 + "+", "+/" * 30_000, "x+/y", "#/x", "$share/+/x", "")


def test_filters_that_nobody_may_have() -> None:
    """Refused in SUBACK, or a breach; in any case they leave nothing behind."""
    with scene() as s:
        for bad in BAD_FILTERS:
            for _ in range(10):
                line = s.line().connect("bomb")
                line.push(wire.subscribe(1, bad, bad))
                packet = line.packet()
                assert packet is not None, bad[:20]
                codes = packet.reason_codes or [packet.reason_code]
                assert set(codes) <= {0x81, 0x82, 0x8F}, f"{bad[:20]}: {packet}"
                line.close()
        s.wait_until(lambda: s.sys()["clients/total"] <= 3, "the end of all")
        assert s.sys()["subscriptions/count"] == 2


def test_subscriptions_that_come_and_go_all_the_time() -> None:
    filters = [f"x/{n}/+" for n in range(500)] + [f"$share/g/{n}" for n in range(500)]
    churn = wire.subscribe(1, *filters) + wire.unsubscribe(2, *filters)
    with scene() as s:
        lines = [s.line().connect(f"churn-{n}") for n in range(4)]
        with reading(lines):
            at_once(lambda number: repeat(lines[number], churn, 2 * SECONDS) and None, 4)
        for line in lines:
            line.reset()
        s.wait_until(lambda: s.sys()["subscriptions/count"] <= 2, "the end of all", 30)
        assert s.peak() < s.at_rest + 20 * MIB


# ---- Topic Aliases


def test_topic_aliases_that_are_long_and_change_all_the_time() -> None:
    with scene(capacity__maximum_bytes=64 * MIB, newcomers=False) as s:
        lines = [s.line().connect(f"alias-{n}") for n in range(40)]
        for change in range(2):
            for number, line in enumerate(lines):
                names = [f"{number}/{change}/{alias}/" + "x" * 60_000 for alias in range(1, 65)]
                line.push(*(wire.publish(n, properties=wire.alias(a)) for a, n in enumerate(names, 1)))
        gone = sum(line.push(wire.pingreq()) is False or line.until_end() for line in lines)
        assert s.peak() < bound(64 * MIB)
        assert 0 < gone < len(lines), "those for whose names there was no room"


BREACHES: dict[str, tuple[bytes, set[int]]] = {
    "an alias above the maximum": (wire.publish("t", properties=wire.alias(65)), {0x94}),
    "alias 0": (wire.publish("t", properties={"topic_alias": 0}), {0x94}),
    "an alias that was never set": (wire.publish("", properties=wire.alias(7)), {0x82, 0x94}),
    "no topic and no alias": (wire.publish(""), {0x82, 0x90}),
    "packet identifier 0": (wire.publish("t", qos=1, packet_id=0), {0x81, 0x82}),
    "QoS 3": (wire.publish("t", first=0x36, packet_id=1), {0x81}),
    "SUBSCRIBE with packet identifier 0": (wire.subscribe(0, "t"), {0x81, 0x82}),
    "CONNECT again": (wire.connect("again"), {0x82}),
    "a length of five bytes": (b"\x30\xff\xff\xff\xff\x01", {0x81}),
    "the largest packet": (b"\x30\xff\xff\xff\x7f", {0x95}),
    "packet type 0": (wire.packet(0x00), {0x81}),
}


def test_clients_that_break_a_rule_again_and_again() -> None:
    with scene() as s:
        for name, (raw, codes) in BREACHES.items():
            for number in range(20):
                line = s.line().connect(f"breach-{number % 3}", will=wire.will("w", b"x"))
                line.push(raw)
                assert line.ended() in codes, name
                line.close()
        s.wait_until(lambda: s.sys()["clients/total"] <= 3, "the end of all")
        assert s.peak() < s.at_rest + 10 * MIB


# ---- Packet Identifiers and QoS 2


def test_acknowledgements_that_nobody_waits_for() -> None:
    kinds = (wire.puback, wire.pubrec, wire.pubrel, wire.pubcomp)
    raw = b"".join(kind(number) for number in (1, 7, 65535) for kind in kinds)
    with scene() as s:
        lines = [s.line().connect(f"ack-{n}") for n in range(4)]
        with reading(lines):
            at_once(lambda number: repeat(lines[number], raw * 1000, SECONDS) and None, 4)
        assert s.peak() < s.at_rest + 20 * MIB


def test_one_packet_identifier_for_everything() -> None:
    """It is held by a QoS 2 message, and used for all else meanwhile."""
    raw = (
        wire.publish("t", b"x", qos=2, packet_id=9, dup=True) + wire.publish("t", b"y", qos=1, packet_id=9)
        + wire.subscribe(9, "t") + wire.unsubscribe(9, "t")
    )  # fmt: skip
    with scene() as s:
        watcher = s.line().connect("watcher")
        watcher.subscribe(("t", 2))
        line = s.line().connect("client")
        line.send(wire.publish("t", b"first", qos=2, packet_id=9))
        line.expect("PUBREC")
        for _ in range(500):
            line.send(raw)
            answers = [line.packet() for _ in range(4)]
            assert [a and a.name for a in answers] == ["PUBREC", "PUBACK", "SUBACK", "UNSUBACK"]
            assert answers[1] is not None and answers[1].reason_code == 0x91
            assert all(a is not None and a.reason_codes == [0x91] for a in answers[2:])
        line.send(wire.pubrel(9))
        line.expect("PUBCOMP")
        assert [packet.payload for packet in watcher.fence()] == [b"first"]


def test_qos_2_without_pubrel_from_those_who_are_told_the_limit() -> None:
    with scene() as s:
        for number in range(20):
            line = s.line().connect(f"hoarder-{number}", properties={"session_expiry_interval": 0})
            line.push(*(wire.publish("t", b"x" * 1000, qos=2, packet_id=n) for n in range(1, 1026)))
            assert line.ended() == 0x93
        s.wait_until(lambda: s.sys()["clients/total"] <= 3, "the end of all")
        assert s.peak() < s.at_rest + 20 * MIB


def test_qos_2_without_pubrel_from_those_who_cannot_be_told() -> None:
    """3.x knows no Receive Maximum: what a session and what all may hold are the limits."""
    with scene(capacity__maximum_bytes=64 * MIB, limits__maximum_queued_bytes=8 * MIB, newcomers=False) as s:
        packets = [
            wire.publish("t", b"x" * 10_000, qos=2, packet_id=n, version=4) for n in range(1, 1001)
        ]
        for number in range(12):
            line = s.line(4)
            line.push(wire.connect(f"hoarder-{number}", version=4))
            line.push(*packets)
            line.rest()
            line.close()
        assert s.dropped()["refused"] >= 12
        assert s.peak() < bound(64 * MIB)


def test_qos_2_to_those_who_never_answer() -> None:
    """Without PUBREC, and with PUBREC but without PUBCOMP: window, then queue, then drops with a reason."""
    with scene(limits__maximum_queued_messages=100, limits__outbound_receive_maximum=1024) as s:
        mute, half = s.line().connect("mute"), s.line().connect("half")
        for line in (mute, half):
            line.subscribe(("t", 2))
        publisher = s.line().connect("publisher")
        for _ in range(30):
            publisher.send(*(wire.publish("t", b"x" * 100, qos=2, packet_id=n) for n in range(1, 101)))
            assert {publisher.expect("PUBREC").reason_code for _ in range(100)} == {0}
            publisher.send(*(wire.pubrel(n) for n in range(1, 101)))
            assert {publisher.expect("PUBCOMP").reason_code for _ in range(100)} == {0}
            for packet in half.fence():
                if packet.name == "PUBLISH":
                    half.send(wire.pubrec(packet.packet_id or 0))
        assert s.dropped() == {"queue_full": 2 * (3000 - 1024 - 100)}
        assert s.peak() < s.at_rest + 20 * MIB


# ---- small packets at full speed


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(wire.publish("t") * 8000, id="empty messages"),
        pytest.param(wire.publish("t", properties=[(0x26, ("a", "b"))] * 900) * 8, id="properties"),
        pytest.param(wire.publish("/".join("x" * 120)) * 250, id="many levels"),
        pytest.param(wire.publish("$SYS/x") * 5000, id="messages that are refused"),
    ],
)
def test_ten_publishers_at_full_speed(raw: bytes) -> None:
    with scene() as s:
        lines = [s.line().connect(f"publisher-{n}") for n in range(10)]
        at_once(lambda number: repeat(lines[number], raw, 2 * SECONDS) and None, 10)
        dropped = s.dropped()
        assert set(dropped) <= {"refused"}
        assert s.peak() < s.at_rest + 20 * MIB


def test_packets_with_more_user_properties_than_allowed() -> None:
    """A megabyte of empty ones: decoded at most once, refused, and not held."""
    many = b"\x26\0\0\0\0" * 200_000
    connect = wire.connect("c", properties=wire.varint(len(many)) + many)
    with scene() as s:
        ends = time.monotonic() + 2 * SECONDS

        def attack(number: int) -> None:
            while time.monotonic() < ends:
                line = Line(s.port)
                line.push(connect)
                packet = line.packet()
                assert packet is None or packet.reason_code == 0x97, packet
                line.close()

        at_once(attack, 4)
        assert s.peak() < s.at_rest + 100 * MIB

