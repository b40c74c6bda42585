"""Connections that come in floods, say little or nothing, or fight with each other."""

from __future__ import annotations

import contextlib
import re
import resource
import threading
import time

import pytest

from tests.conformance import wire
from tests.hostility.attack import at_once, repeat
from tests.hostility.line import Line
from tests.hostility.scene import MIB, bound, scene


def test_a_flood_of_clients_that_come_and_go() -> None:
    def come_and_go(worker: int) -> None:
        count, ends = 0, time.monotonic() + 2.0
        while time.monotonic() < ends:
            line = Line(s.port).connect(f"flood-{worker}-{count}", will=wire.will("w", b"x"))
            line.reset() if count % 2 else line.close()
            count += 1
        counts.append(count)

    with scene() as s:
        counts: list[int] = []
        at_once(come_and_go, 4)
        s.wait_until(lambda: s.sys()["clients/total"] <= 3, "the end of all")
        assert s.sys()["connections/total"] >= sum(counts)
        assert s.peak() < s.at_rest + 20 * MIB and s.descriptors() < 40


def test_a_flood_beyond_the_maximum_of_connections() -> None:
    """Some more are told why, the rest are closed unread; who is connected stays so."""
    with scene(capacity__maximum_connections=100, newcomers=False) as s:
        told = unread = 0
        lines = [s.line() for _ in range(1000)]
        for number, line in enumerate(lines):
            line.push(wire.connect(f"flood-{number}"))
        held = []
        for line in lines:
            packet = line.packet()
            if packet is None:
                unread += 1
            elif packet.reason_code:
                assert packet.reason_code == 0x97
                told += 1
            else:
                held.append(line)
        assert len(held) == 98, "and two are the monitor and the bystander"
        assert told + unread == 902 and told > 0
        assert s.sys()["connections/refused"] == 902
        held[0].fence()


@pytest.mark.parametrize(("version", "reason"), [(5, 0x9F), (4, None)])
def test_a_flood_beyond_the_rate(version: int, reason: int | None) -> None:
    with scene(capacity__maximum_connect_rate=50, newcomers=False) as s:
        codes = []
        for number in range(300):
            line = Line(s.port, version)
            line.push(wire.connect(f"flood-{number}", version=version))
            packet = line.packet()
            codes.append(packet.reason_code if packet else None)
            line.close()
        assert set(codes) == {0, reason}
        assert codes.count(reason) >= 100
        assert s.sys()["connections/refused"] == codes.count(reason)


def test_more_connections_than_there_are_descriptors() -> None:
    """Who is connected is served, and as soon as there is a descriptor again the next one is let in."""
    with scene(newcomers=False, expected="cannot accept") as s:
        resource.prlimit(s.broker.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        lines = [s.line() for _ in range(200)]
        for number, line in enumerate(lines):
            line.push(wire.connect(f"flood-{number}"))
        time.sleep(2.0)
        assert 1 <= len(s.logged("cannot accept")) <= 5, "once in a second"
        for line in lines:
            line.reset()
        s.wait_until(lambda: s.accepts("afterwards"), "room for others")


def test_connections_that_say_nothing() -> None:
    with scene(limits__connect_timeout=1) as s:
        lines = [s.line() for _ in range(3000)]
        for line in lines:
            assert line.rest() == b""
        s.wait_until(lambda: s.descriptors() < 40, "the end of all")
        assert s.sys()["connections/refused"] == 3000
        assert s.peak() < s.at_rest + 3000 * 10_000 + 10 * MIB


def test_connects_that_come_byte_by_byte() -> None:
    """Slow loris: the time counts from accept to the whole CONNECT, whatever comes in between."""
    raw = wire.connect("loris", will=wire.will("w", b"x" * 200))
    with scene(limits__connect_timeout=1.5) as s:
        lines = [s.line() for _ in range(500)]
        for at in range(100):
            began = time.monotonic()
            alive = [line for line in lines if line.push(raw[at : at + 1])]
            if not alive:
                break
            time.sleep(max(0.0, began + 0.1 - time.monotonic()))
        assert at < 99, "they are closed before the end of their CONNECT"
        s.wait_until(lambda: s.descriptors() < 40, "the end of all")
        assert s.sys()["connections/refused"] == 500


@pytest.mark.parametrize("known", [False, True])
def test_large_packets_that_are_never_finished(known: bool) -> None:
    """A megabyte each, from peers that nobody knows yet, or from clients: the budget holds."""
    many = [("a", "b" * 60_000)] * 15
    connect = wire.connect("c", will=wire.will("w", b"x" * 60_000, user_property=many))
    with scene(capacity__maximum_bytes=64 * MIB, newcomers=False) as s:
        for number in range(200):
            line = s.line()
            if known and not line.push(wire.connect(f"c{number}")):
                continue
            line.push((wire.publish("t", b"x" * 1_000_000) if known else connect)[:-1])
        time.sleep(1.0)  # until it has read what it wants to
        assert s.peak() < bound(64 * MIB) + 200 * 65_536, "and what one read brings"
        s.wait_until(lambda: s.accepts("afterwards"), "room for others", 5)


def test_unfinished_packets_do_not_keep_a_client_alive() -> None:
    with scene(limits__partial_packet_timeout=2) as s:
        games = {
            "byte by byte": wire.publish("t", b"x" * 1000),
            "one byte": b"\x30",
            "a length without an end": b"\x30\xff\xff",
        }
        lines = {}
        for name, raw in games.items():
            for keep_alive in (1, 0, 65535):
                line = s.line().connect(f"{name}{keep_alive}", keep_alive=keep_alive)
                line.push(raw[:1])
                lines[name, keep_alive] = line
        began = time.monotonic()
        for at in range(1, 40):
            for (name, _), line in lines.items():
                line.push(games[name][at : at + 1])
            time.sleep(0.1)
            if time.monotonic() - began > 5:
                break
        ends = {key: line.ended() for key, line in lines.items()}
        for (_, keep_alive), reason in ends.items():
            assert reason == (0x8D if keep_alive == 1 else 0x82), ends
        s.wait_until(lambda: s.sys()["clients/connected"] <= 3, "the end of all")


def test_pings_without_an_end_and_without_a_reader() -> None:
    """Who reads no answers is not read any more; who only pings is served, among others."""
    with scene(limits__send_timeout=2) as s:
        lines = [s.line(receive_buffer=4096).connect(f"ping-{n}", keep_alive=1) for n in range(4)]
        at_once(lambda number: repeat(lines[number], wire.pingreq() * 16_384, 2.0) and None, 4)
        assert s.peak() < s.at_rest + 20 * MIB
        s.wait_until(lambda: s.sys()["clients/connected"] <= 3, "the end of those whose answers pile up")


def test_two_clients_that_fight_over_one_client_id() -> None:
    """Each comes back at once when it was taken over: after a while the newcomer has to wait."""
    with scene(level="info") as s:
        over, refused, took = threading.Event(), [0, 0], [0, 0]

        def fight(number: int) -> None:
            while not over.is_set():
                line = Line(s.port)
                line.push(wire.connect("loop", clean_start=False, properties={"session_expiry_interval": 60}))
                connack = line.packet()
                if connack is None or connack.reason_code:
                    assert connack is None or connack.reason_code == 0x9F
                    refused[number] += 1
                else:
                    took[number] += 1
                    wait_for_the_end(line, over)
                line.close()

        threading.Timer(3.0, over.set).start()
        at_once(fight, 2)
        assert 15 <= sum(took) <= 15 + 4, "fifteen at once, and one in four seconds"
        assert sum(refused) >= 3
        told = s.logged(" WARNING ")
        assert len(told) == 1 and len(set(re.findall(r"127\.0\.0\.1:\d+", told[0]))) == 2, told
        assert s.sys()["connections/refused"] == sum(refused)


def wait_for_the_end(line: Line, over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            if line.packet(0.1) is None:
                return
