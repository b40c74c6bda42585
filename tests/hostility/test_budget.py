"""`capacity.maximum_bytes`: that the process takes no more, and what is shed in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance import wire
from tests.hostility.attack import SMALL, publish_all
from tests.hostility.line import Line
from tests.hostility.scene import MIB, Scene, bound, scene

BUDGET = 48 * MIB
KEPT = {"session_expiry_interval": 600}

# Each kind fills the memory with one thing, as small or as odd as it can be, and yields now and then.
Filling = Callable[[Scene], Iterator[None]]


def messages(s: Scene, topic: str, payload: Callable[[int], bytes], **fields: object) -> Iterator[None]:
    """Retained messages at QoS 1, a hundred at a time."""
    publisher = s.line().connect("publisher")
    for start in range(0, 1_000_000, 100):
        numbers = range(start, start + 100)
        publish_all(
            publisher,
            (
                wire.publish(topic.format(n), payload(n), qos=1, packet_id=n % 100 + 1, retain=True, **fields)
                for n in numbers
            ),
        )
        yield


def retained_small(s: Scene) -> Iterator[None]:
    return messages(s, "r/{}", lambda n: b"x")


def retained_with_properties(s: Scene) -> Iterator[None]:
    pairs = [(0x26, (f"a{n}", "b")) for n in range(500)]
    return messages(s, "r/{}", lambda n: b"x", properties=pairs)


def retained_wide(s: Scene) -> Iterator[None]:
    """A character of four bytes makes every other one take four."""
    return messages(s, "r/{}/\U0001f600" + "x" * 5000, lambda n: b"x")


def queued(s: Scene) -> Iterator[None]:
    """Empty messages for sessions whose clients are away, each by itself."""
    return queue(s, content_type="")


def queued_in_runs(s: Scene) -> Iterator[None]:
    """The same, as they wait in runs: they count as much as if they were taken apart in this moment."""
    return queue(s)


def queue(s: Scene, **properties: str) -> Iterator[None]:
    publisher = s.line().connect("publisher")
    for number in range(1000):
        away = Line(s.port)
        away.push(wire.connect(f"away-{number}", properties=KEPT), wire.subscribe(1, (f"q/{number}", 1)))
        packet = away.packet()
        if packet is not None and packet.reason_code == 0:
            away.expect("SUBACK")
        away.close()
        packets = (
            wire.publish(f"q/{number}", qos=1, packet_id=n % 500 + 1, properties=properties)
            for n in range(1000)
        )
        assert set(publish_all(publisher, packets)) <= {0, 0x10}
        yield


def in_flight(s: Scene) -> Iterator[None]:
    """Messages of 2 KiB, sent to clients that read nothing and acknowledge nothing."""
    publisher = s.line().connect("publisher")
    for number in range(1000):
        line = s.line(receive_buffer=SMALL)
        line.push(wire.connect(f"reader-{number}"), wire.subscribe(1, (f"f/{number}", 1)))
        packets = (
            wire.publish(f"f/{number}", b"%d" % n * 500, qos=1, packet_id=n % 500 + 1) for n in range(1000)
        )
        assert set(publish_all(publisher, packets)) <= {0, 0x10}
        yield


def held(s: Scene) -> Iterator[None]:
    """QoS 2 without PUBREL."""
    for number in range(1000):
        line = s.line()
        line.push(wire.connect(f"holder-{number}"))
        line.push(*(wire.publish("h", b"x", qos=2, packet_id=n) for n in range(1, 1001)))
        yield


def wills(s: Scene) -> Iterator[None]:
    for number in range(20_000):
        line = s.line()
        line.push(wire.connect(f"will-{number}", will=wire.will("w", b"x" * 20_000)))
        if number % 100 == 99:
            yield


def names(s: Scene) -> Iterator[None]:
    """ClientIDs of 60,000 bytes, of sessions that stay."""
    for number in range(5000):
        line = Line(s.port)
        line.push(wire.connect(f"{number:05}" + "x" * 60_000, properties=KEPT))
        line.packet()
        line.close()
        if number % 100 == 99:
            yield


def idle(s: Scene) -> Iterator[None]:
    """Clients that sent 60 KB once, and are silent from then on."""
    for number in range(16_000):
        line = s.line()
        line.push(wire.connect(f"idle-{number}"), wire.publish("i", b"x" * 6000) * 10)
        if number % 100 == 99:
            yield


FILLINGS: list[Filling] = [
    retained_small, retained_with_properties, retained_wide, queued, queued_in_runs,
    in_flight, held, wills, names, idle,
]  # fmt: skip


@pytest.mark.parametrize("fill", FILLINGS, ids=lambda fill: fill.__name__)
def test_what_the_budget_counts_is_what_the_process_takes(fill: Filling) -> None:
    budget = 8 * MIB if fill is idle else BUDGET  # as many connections as a process may have
    with scene(capacity__maximum_bytes=budget, newcomers=False) as s:
        before, counts, more = s.memory(), 0, 3
        for _ in fill(s):
            counts = s.sys()["store/messages/bytes"]
            more -= counts >= 0.92 * budget  # and then a little more, for which there is no room
            if not more or s.memory() > 2 * bound(budget):
                break
        assert not more, f"only {counts} bytes are counted"
        assert s.peak() < bound(budget), f"{s.peak() >> 20} MiB are taken, {counts >> 20} counted"
        if fill is not queued_in_runs:
            assert s.memory() - before > budget // 3, "far less than is counted"


def test_the_reserve_for_those_who_keep_up_is_limited() -> None:
    """Two thousand wait until the budget is spent; then each is sent a message, and acknowledges none."""
    with scene(capacity__maximum_bytes=BUDGET, newcomers=False) as s:
        publisher = s.line().connect("publisher")
        for number in range(2000):
            line = s.line()
            line.push(wire.connect(f"reader-{number}"), wire.subscribe(1, (f"own/{number}", 1)))
            line.expect("CONNACK")
        fill_to(s, publisher, 0.99 * BUDGET, 0, 40_000)
        for size in (60_000, 4000, 60_000):
            packets = (
                wire.publish(f"own/{n}", b"%04d" % n * (size // 4), qos=1, packet_id=n % 100 + 1)
                for n in range(2000)
            )
            assert set(publish_all(publisher, packets, 10)) == {0}
        assert s.dropped()["memory"] > 1000
        assert s.sys()["store/messages/bytes"] < BUDGET * 9 // 8 + 2000 * 4500
        assert s.peak() < bound(BUDGET) + 2000 * 4500


def test_what_is_shed_in_which_order() -> None:
    """QoS 0 first, then new clients, then what can be refused; what was acknowledged never."""
    budget = 16 * MIB
    with scene(capacity__maximum_bytes=budget, newcomers=False) as s:
        sleeper = s.line(receive_buffer=SMALL).connect("sleeper")
        away = s.line().connect("away", properties=KEPT)
        sleeper.subscribe(("flood", 0))
        away.subscribe(("kept", 1))
        away.close()
        publisher = s.line().connect("publisher")
        assert publish_all(publisher, kept_messages(100)) == [0] * 100
        retained = fill_to(s, publisher, 0.80 * budget, 0)
        flood(s, publisher)
        assert "memory" not in s.dropped(), "there is room for QoS 0 up to the limits of one client"

        retained = fill_to(s, publisher, 0.88 * budget, retained)
        flood(s, publisher)
        assert s.dropped()["memory"] > 0, "QoS 0 does not wait any more"
        assert s.accepts("a new client"), "but there is room for new ones"

        retained = fill_to(s, publisher, 0.94 * budget, retained)
        for version, reason in ((5, 0x97), (4, 3)):
            s.line(version).connect("too late", reason)
        back = s.line().connect("away", clean_start=False, properties=KEPT)
        assert [back.expect("PUBLISH").payload for _ in range(100)] == [b"%d" % n for n in range(100)]
        assert publish_all(publisher, [wire.publish("r/0", b"x", qos=1, packet_id=1, retain=True)]) == [0x10]

        code = 0
        while code in (0, 0x10):
            raw = wire.publish(f"r/{retained}", b"x" * 4096, qos=1, packet_id=1, retain=True)
            [code] = publish_all(publisher, [raw])
            retained += code in (0, 0x10)
        assert code == 0x97, "no more retained messages"
        while publisher.subscribe(f"s/{retained}/{code}").reason_codes == [0]:
            code += 1
        assert s.dropped()["refused"] == 1
        check_kept(s, publisher, back, retained)


def kept_messages(count: int) -> Iterator[bytes]:
    return (wire.publish("kept", b"%d" % n, qos=1, packet_id=n + 1) for n in range(count))


def fill_to(s: Scene, publisher: Line, wanted: float, number: int, size: int = 4096) -> int:
    """Retained messages, on top of *number*, until *wanted* bytes are counted; how many there are then."""
    while s.sys()["store/messages/bytes"] < wanted:
        raw = wire.publish(f"r/{number}", b"x" * size, qos=1, packet_id=1, retain=True)
        assert publish_all(publisher, [raw]) == [0x10]
        number += 1
    return number


def flood(s: Scene, publisher: Line) -> None:
    """More QoS 0 than the kernel takes for a client that does not read."""
    for _ in range(40):
        publisher.send(wire.publish("flood", b"x" * 32_768))
    publisher.fence()


def check_kept(s: Scene, publisher: Line, back: Line, retained: int) -> None:
    """All that was acknowledged is there, and who keeps up is served as ever."""
    assert s.sys()["retained messages/count"] == retained
    assert publish_all(publisher, [wire.publish("kept", b"live", qos=1, packet_id=1)]) == [0]
    back.send(*(wire.puback(n) for n in range(1, 102)))
    assert back.expect("PUBLISH").payload == b"live"
    assert publish_all(publisher, [wire.publish("r/0", qos=1, packet_id=1, retain=True)]) == [0x10]
    back.subscribe("r/#")  # there is room for one again
    found = {back.expect("PUBLISH").topic_name for _ in range(1, retained)}
    assert found == {f"r/{n}" for n in range(1, retained)}
