"""Session: messages of a Shared Subscription, whose turn it is and what is taken back."""

from __future__ import annotations

import pytest

from broker.packet.enums import PacketType
from broker.session.delivery import State
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription
from tests.session.make import Bench, Sent, message

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
SHARED = Subscription("$share/g/t", 2, share_name="g")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_turn_of_a_connected_member(qos: int) -> None:
    bench = Bench()
    link = bench.attach(window=1)
    ask = message(b"x", qos)
    assert bench.session.turn(ask, SHARED) is Turn.READY
    bench.deliver(b"1")
    passes = Turn.READY if qos == 0 else Turn.FULL
    assert bench.session.turn(ask, SHARED) is passes
    bench.session.acknowledge(1, PUBACK, 0)
    link.full = True
    assert bench.session.turn(ask, SHARED) is Turn.FULL
    bench.deliver(b"2")
    link.full = False
    assert bench.session.turn(ask, SHARED) is passes, "something waits already"
    link.too_large.add(b"x")
    assert bench.session.turn(ask, SHARED) is Turn.REFUSES


def test_turn_of_a_connected_member_whose_queue_is_full() -> None:
    bench = Bench(maximum_queued_messages=1)
    bench.attach(window=0)
    bench.deliver(b"1")
    assert bench.session.turn(message(b"x", 1), SHARED) is Turn.REFUSES, "another member may have room"
    assert bench.session.turn(message(b"x", 0), SHARED) is Turn.READY


def test_qos_0_waits_behind_queued_qos_0() -> None:
    bench = Bench(queue_qos_0=True)
    bench.deliver(b"old", qos=0)
    link = bench.attach(window=1)
    bench.deliver(b"new", qos=0)
    bench.session.pump()
    bench.deliver(b"last", qos=0)
    assert link.payloads() == [b"old", b"new", b"last"]


def test_turn_goes_by_the_lower_qos() -> None:
    bench = Bench()
    bench.attach(window=0)
    assert bench.session.turn(message(b"x", 2), Subscription("$share/g/t", 0, share_name="g")) is Turn.READY
    assert bench.session.turn(message(b"x", 2), SHARED) is Turn.FULL


@pytest.mark.parametrize(("qos", "turn"), [(0, Turn.REFUSES), (1, Turn.OFFLINE), (2, Turn.OFFLINE)])
def test_turn_of_a_member_that_is_away(qos: int, turn: Turn) -> None:
    bench = Bench(maximum_queued_messages=1)
    assert bench.session.turn(message(b"x", qos), SHARED) is turn
    bench.deliver(b"1")
    assert bench.session.turn(message(b"x", qos), SHARED) is Turn.REFUSES, "its queue is full"


def test_turn_changes_nothing() -> None:
    bench = Bench()
    bench.attach()
    for _ in range(3):
        bench.session.turn(message(b"x"), SHARED)
    assert (bench.budget.used, bench.queued(), bench.session.inflight.used) == (0, [], 0)


def share(bench: Bench, *payloads: bytes, qos: int = 1, name: str = "g") -> None:
    for payload in payloads:
        bench.session.deliver(message(payload, qos), Subscription(f"$share/{name}/t", 2, share_name=name))


def test_take_shared_takes_what_was_never_sent() -> None:
    bench = Bench()
    bench.attach(window=2)
    share(bench, b"sent")
    bench.deliver(b"own")
    share(bench, b"g1", b"g2")
    bench.deliver(b"mine")
    share(bench, b"h1", name="h")
    taken = bench.session.take_shared("$share/g/t")
    assert [d.message.payload for d in taken] == [b"g1", b"g2"]
    assert bench.queued() == [b"mine", b"h1"]
    bench.check_balance()
    assert [d.message.payload for d in bench.session.take_shared()] == [b"h1"]
    assert bench.queued() == [b"mine"]
    assert bench.session.take_shared() == []
    bench.check_balance()
    assert bench.budget.used == sum(len(payload) + 1 for payload in (b"sent", b"own", b"mine"))


def test_take_unacknowledged_takes_sent_qos_1_alone() -> None:
    bench = Bench()
    link = bench.attach(window=10)
    share(bench, b"s1")
    share(bench, b"s2", qos=2)
    bench.deliver(b"own")
    share(bench, b"s3", b"s4")
    bench.session.acknowledge(5, PUBACK, 0)
    taken = bench.session.take_unacknowledged()
    assert [(d.message.payload, d.state) for d in taken] == [(b"s1", State.DONE), (b"s3", State.DONE)]
    assert sorted(bench.session.inflight.entries) == [2, 3]
    bench.check_balance()
    link.take()
    bench.detach()
    assert bench.attach().take() == [Sent(b"s2", 2, 2, True), Sent(b"own", 1, 3, True)]
