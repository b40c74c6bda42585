"""Large numbers of what is allowed."""

from __future__ import annotations

import time
from itertools import islice

from tests.conformance import wire
from tests.hostility.attack import reading
from tests.hostility.line import Line
from tests.hostility.scene import MIB, Scene, scene

CONNECTIONS = 10_000
RETAINED = 100_000
SUBSCRIPTIONS = 100_000


def counted(s: Scene, at_rest: int) -> int:
    """Bytes that the broker takes above *at_rest*; what it counts must be about that, and rather more."""
    taken, counts = s.memory() - at_rest, s.sys()["store/messages/bytes"]
    assert taken < counts * 1.1 + 10 * MIB, f"{taken} bytes are taken and {counts} counted"
    return taken


def test_ten_thousand_idle_connections() -> None:
    with scene() as s:
        lines: list[Line] = []
        for number in range(CONNECTIONS):
            line = s.line()
            line.send(wire.connect(f"idle-{number}", keep_alive=600))
            lines.append(line)
            if number % 100 == 99:
                for each in lines[-100:]:
                    assert each.expect("CONNACK").reason_code == 0
        # And now and then a newcomer of the bystander's.
        s.wait_until(lambda: s.sys()["clients/connected"] == CONNECTIONS + 2, "all are connected")
        assert counted(s, s.at_rest) < CONNECTIONS * 12_000
        time.sleep(1.0)  # the bystander among idle ones
        for line in (lines[0], lines[-1]):
            line.fence()
        for start in range(0, CONNECTIONS, 250):
            for line in lines[start : start + 250]:
                line.reset()  # these all at the same moment
            time.sleep(0.05)
        s.wait_until(lambda: s.sys()["clients/total"] <= 3, "the end of all")
        assert s.descriptors() < 40


def test_a_hundred_thousand_retained_messages() -> None:
    with scene() as s:
        publisher, names = s.line().connect("publisher"), iter(range(RETAINED))
        while batch := list(islice(names, 1000)):
            publisher.send(
                *(wire.publish(f"house/{n // 100}/{n % 100}", b"%d" % n, retain=True) for n in batch)
            )
        publisher.fence()
        assert s.sys()["retained messages/count"] == RETAINED
        counted(s, s.at_rest)
        others = [s.line().connect(f"reader-{n}") for n in range(3)]
        with reading(others):
            for line in others:
                line.send(wire.subscribe(1, "#"), wire.subscribe(2, "+/+/+"), wire.subscribe(3, "house/#"))
            reader = s.line().connect("reader")
            reader.subscribe("house/+/+")
            found = {reader.expect("PUBLISH").payload for _ in range(RETAINED)}
        assert len(found) == RETAINED, "each came, and once"
        few = s.line().connect("few")
        few.subscribe("house/+/7")
        got = {few.expect("PUBLISH").topic_name for _ in range(1000)}
        assert got == {f"house/{n}/7" for n in range(1000)}
        assert s.dropped() == {}


def test_a_hundred_thousand_subscriptions() -> None:
    with scene() as s:
        before, lines = s.memory(), [s.line().connect(f"many-{n}") for n in range(20)]
        for number, line in enumerate(lines):
            for start in range(0, 5000, 1000):
                line.send(wire.subscribe(1, *(filter_of(number, n) for n in range(start, start + 1000))))
        for line in lines:
            for _ in range(5):
                assert line.expect("SUBACK").reason_codes == [0] * 1000
        assert s.sys()["subscriptions/count"] == SUBSCRIPTIONS + 2
        counted(s, before)
        publisher = s.line().connect("publisher")
        for number, line in enumerate(lines):
            publisher.send(wire.publish(f"city/{number}/4999/x"), wire.publish(f"city/{number}/x/4998"))
            publisher.fence()
            got = [line.expect("PUBLISH").topic_name for _ in range(2)]
            assert got == [f"city/{number}/4999/x", f"city/{number}/x/4998"]
        assert all(line.fence() == [] for line in lines), "nobody else got one"
        for line in lines:
            line.send(wire.disconnect())
        s.wait_until(lambda: s.sys()["subscriptions/count"] <= 2, "the end of all")


def filter_of(number: int, n: int) -> str:
    return f"city/{number}/{n}/x" if n % 2 else f"city/{number}/+/{n}"
