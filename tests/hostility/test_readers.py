"""Readers that do not read, and publishers that do not wait."""

from __future__ import annotations

import time

import pytest

from tests.conformance import wire
from tests.hostility.attack import SMALL, flood, publish_all, reading
from tests.hostility.line import Line
from tests.hostility.scene import MIB, Scene, bound, scene

PAGE = b"x" * 4096
BUDGET = 256 * MIB


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("qos", "reason"), [(0, "outbound_full"), (1, "queue_full"), (2, "queue_full")])
def test_one_reader_that_never_reads(version: int, qos: int, reason: str) -> None:
    """It costs what one client may cost, is given up after `send_timeout`, and is all that loses messages."""
    with scene(limits__send_timeout=2) as s:
        reader = s.line(version, receive_buffer=SMALL).connect("reader")
        reader.subscribe(("flood", qos))
        sent = flood(s.line().connect("publisher"), "flood", PAGE, 1.5, min(qos, 1))
        dropped = s.dropped()
        assert list(dropped) == [reason]
        assert 0 < dropped[reason] < sent
        s.wait_until(lambda: s.sys()["clients/connected"] <= 4, "the end of the reader")
        assert s.peak() < s.at_rest + 40 * MIB


BATCH = 20  # packets that are published at once


def test_a_thousand_that_read_slowly() -> None:
    """Each gets what it can take, and waits with no more than its limit; the rest is dropped and counted.

    What one turn of the loop brought before the socket was found to be full is there besides: BATCH packets.
    """
    with scene(limits__maximum_outbound_packets=16, limits__maximum_queued_messages=100) as s:
        lines = [s.line(receive_buffer=SMALL).connect(f"slow-{n}") for n in range(1000)]
        for number, line in enumerate(lines):
            line.subscribe(("flood", number % 2))
        before, dropped = s.memory(), {}
        publisher, ends = s.line().connect("publisher"), time.monotonic() + 15
        with reading(lines, size=512, pause=0.1):
            while not dropped.get("outbound_full") and time.monotonic() < ends:
                flood(publisher, "flood", PAGE, 0.5, qos=1, window=BATCH)
                dropped = s.dropped()
        assert dropped["outbound_full"] and set(dropped) <= {"outbound_full", "queue_full"}
        assert s.peak() < before + 1000 * ((16 + BATCH) * 4200 + 10_000) + 20 * MIB
        assert s.sys()["clients/connected"] >= 1003, "nobody is given up"


def test_a_publisher_at_full_speed_into_a_full_queue() -> None:
    """The queue keeps what was first, the publisher hears PUBACK each time, and what is lost is counted."""
    with scene() as s:
        away = s.line().connect("away", properties={"session_expiry_interval": 60})
        away.subscribe(("flood", 1))
        away.close()
        s.wait_until(lambda: s.sys()["clients/disconnected"] == 1, "the end of the connection")
        packets = (
            wire.publish("flood", b"%06d" % n + PAGE, qos=1, packet_id=n % 1000 + 1) for n in range(20_000)
        )
        codes = publish_all(s.line().connect("publisher"), packets)
        assert codes == [0] * 20_000
        assert s.dropped() == {"queue_full": 19_000}
        assert s.peak() < s.at_rest + 1000 * 5000 + 20 * MIB
        back = s.line().connect(
            "away", clean_start=False, properties={"session_expiry_interval": 60, "receive_maximum": 65535}
        )
        for number in range(1000):
            packet = back.expect("PUBLISH")
            assert (packet.payload or b"")[:6] == b"%06d" % number
            back.send(wire.puback(packet.packet_id or 0))


def blocked_readers(s: Scene, count: int, qos: int, topic: str = "flood") -> list[Line]:
    lines = [s.line(receive_buffer=SMALL).connect(f"blocked-{n}") for n in range(count)]
    for number, line in enumerate(lines):
        line.subscribe((topic.format(number), qos))
    return lines


@pytest.mark.parametrize("qos", [0, 1])
def test_a_fan_out_beyond_the_budget(qos: int) -> None:
    """The same messages to a thousand that read nothing: far more than the budget, counted copy by copy."""
    with scene(capacity__maximum_bytes=BUDGET, newcomers=False) as s:
        lines = blocked_readers(s, 1000, qos)
        publisher, ends, most = s.line().connect("publisher"), time.monotonic() + 30, 0
        while s.dropped().get("memory", 0) < 100 and time.monotonic() < ends:
            flood(publisher, "flood", 16 * PAGE, 0.2, 1, window=5)
            most = max(most, s.sys()["store/messages/bytes"])
        check_pressure(s, lines, qos, most)


@pytest.mark.parametrize("qos", [0, 1])
def test_as_many_bytes_of_messages_that_are_all_different(qos: int) -> None:
    """Nothing is shared here: what the budget counts is what the process takes."""
    with scene(capacity__maximum_bytes=BUDGET, newcomers=False) as s:
        lines = blocked_readers(s, 100, qos, "flood/{}")
        publisher, most = s.line().connect("publisher"), 0
        for number in range(300):
            payload = b"%06d" % number + 4 * PAGE
            packets = [wire.publish(f"flood/{n}", payload, qos=1, packet_id=n + 1) for n in range(100)]
            assert set(publish_all(publisher, packets)) <= {0, 0x10}
            most = max(most, s.sys()["store/messages/bytes"]) if number % 10 == 9 else most
        check_pressure(s, lines, qos, most)


def check_pressure(s: Scene, lines: list[Line], qos: int, most: int) -> None:
    """The budget was spent, for QoS 0 nearly: all else was dropped and counted; and it passes."""
    dropped = s.dropped()
    assert most > BUDGET * (6 if qos == 0 else 7) // 8
    assert most <= BUDGET * 9 // 8
    assert dropped["memory"] > 0 and set(dropped) <= {"memory", "outbound_full", "queue_full"}
    assert s.peak() < bound(BUDGET), f"{s.peak() >> 20} MiB"
    for line in lines:
        line.reset()
    s.wait_until(lambda: s.sys()["store/messages/bytes"] < MIB, "all of it comes back")
    s.line().connect("afterwards")
