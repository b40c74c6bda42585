"""Session: a full queue, and the byte budget, which comes back whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.packet.enums import PacketType
from broker.session.delivery import State
from broker.session.session import Session
from broker.store.budget import SMALL
from broker.topic.subscription import Subscription
from tests.session.make import Bench, FakeLink, message

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
SIZE = message(b"1").size  # bytes that each one-letter message counts
SHARED = Subscription("$share/g/t", 2, share_name="g")


# ---- a full queue


@pytest.mark.parametrize("caps", [{"maximum_queued_messages": 2}, {"maximum_queued_bytes": 2 * SIZE}])
@pytest.mark.parametrize(
    ("policy", "kept", "dropped"),
    [
        ("drop_newest", [b"1", b"2"], [b"3", b"4"]),
        ("drop_oldest", [b"3", b"4"], [b"1", b"2"]),
        ("disconnect", [b"1", b"2"], [b"3", b"4"]),
    ],
)
def test_a_full_queue(policy: str, kept: list[bytes], dropped: list[bytes], caps: dict[str, int]) -> None:
    bench = Bench(queue_full=policy, **caps)
    bench.attach(window=0)
    bench.deliver(b"1", b"2")
    assert bench.drops == [] and not bench.session.disconnect_slow
    bench.deliver(b"3", b"4")
    assert (bench.queued(), bench.drops) == (kept, [(payload, "queue_full") for payload in dropped])
    assert bench.session.disconnect_slow is (policy == "disconnect")
    bench.check_balance()


def test_a_queue_that_was_full_while_nobody_was_connected_does_not_end_the_next_connection() -> None:
    bench = Bench(queue_full="disconnect", maximum_queued_messages=1)
    bench.deliver(b"1", b"2")
    bench.attach()
    assert not bench.session.disconnect_slow, "a client that was away was not slow"


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "disconnect"])
def test_qos_0_makes_room_first(policy: str) -> None:
    bench = Bench(queue_full=policy, queue_qos_0=True, maximum_queued_messages=3)
    bench.deliver(b"a", qos=0)
    bench.deliver(b"1")
    bench.deliver(b"b", qos=0)
    bench.deliver(b"2")
    assert (bench.queued(), bench.drops) == ([b"1", b"b", b"2"], [(b"a", "queue_full")]), "the oldest alone"
    bench.deliver(b"3")
    assert bench.queued() == [b"1", b"2", b"3"]
    assert not bench.session.disconnect_slow
    bench.check_balance()


def test_drop_oldest_drops_as_many_as_it_takes() -> None:
    bench = Bench(queue_full="drop_oldest", maximum_queued_bytes=4 * SIZE)
    bench.deliver(b"1", b"2", b"3", b"4")
    bench.deliver(b"five!")  # as large as three of them
    assert bench.queued() == [b"4", b"five!"]
    assert bench.drops == [(b"1", "queue_full"), (b"2", "queue_full"), (b"3", "queue_full")]
    bench.check_balance()


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "disconnect"])
def test_a_message_above_the_byte_cap_throws_nothing_else_out(policy: str) -> None:
    bench = Bench(queue_full=policy, maximum_queued_bytes=3 * SIZE)
    bench.deliver(b"1", b"2")
    bench.deliver(b"x" * 100)
    assert (bench.queued(), bench.drops) == ([b"1", b"2"], [(b"x" * 100, "queue_full")])
    bench.check_balance()


# ---- the byte budget of the process


def test_a_spent_budget_drops_and_takes_nothing() -> None:
    bench = Bench(budget=2 * SIZE)
    link = bench.attach(window=1)
    bench.deliver(b"1", b"2", b"3")
    assert (link.payloads(), bench.queued(), bench.drops) == ([b"1"], [b"2"], [(b"3", "memory")])
    bench.deliver(b"0", qos=0)
    assert link.payloads() == [b"0"], "QoS 0 that leaves at once holds nothing"
    assert not bench.session.hold(1, message(b"4", 2))
    assert bench.session.inflight.held == {}
    bench.check_balance()
    bench.session.acknowledge(1, PUBACK, 0)
    bench.deliver(b"5")
    assert bench.queued() == [b"5"]
    bench.check_balance()


def test_a_low_budget_keeps_no_qos_0_and_everything_else() -> None:
    bench = Bench(budget=8 * SIZE, queue_qos_0=True)
    bench.deliver(b"1", b"2", b"3", qos=0)
    bench.deliver(b"4", b"5", b"6", b"7", qos=1)
    bench.deliver(b"0", qos=0)
    bench.deliver(b"8", qos=1)
    assert bench.queued() == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"]
    assert bench.drops == [(b"0", "memory")]
    bench.check_balance()


def test_a_spent_budget_takes_back_queued_qos_0_for_the_rest() -> None:
    bench = Bench(budget=4 * SIZE, queue_qos_0=True)
    bench.deliver(b"a", b"b", qos=0)
    bench.deliver(b"1", b"2", b"3", qos=1)
    assert bench.queued() == [b"1", b"2", b"3"]
    assert bench.drops == [(b"a", "memory"), (b"b", "memory")]
    bench.deliver(b"4", b"5", qos=1)
    assert bench.queued() == [b"1", b"2", b"3", b"4"], "what waits at QoS 1 is not touched"
    assert bench.drops[2:] == [(b"5", "memory")]
    bench.check_balance()


def test_hold_and_let_go() -> None:
    bench = Bench()
    held = message(b"mine", 2)
    assert bench.session.hold(7, held)
    assert bench.budget.used == held.size
    assert bench.session.let_go(7) is held
    assert bench.session.let_go(7) is None
    assert bench.budget.used == 0


def test_clear_gives_back_what_is_queued_sent_and_held() -> None:
    bench = Bench()
    bench.attach(window=2)
    bench.deliver(b"1", b"2", b"3", qos=2)
    bench.session.acknowledge(1, PUBREC, 0)
    bench.session.hold(9, message(b"held", 2))
    bench.check_balance()
    bench.detach()
    bench.session.clear()
    assert (bench.budget.used, bench.session.bytes, bench.queued()) == (0, 0, [])
    bench.session.clear()
    assert bench.budget.used == 0
    assert bench.attach().take() == []


STEP = st.one_of(
    st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(0, 40)),
    st.tuples(st.just("attach"), st.integers(1, 3), st.just(0)),
    st.tuples(
        st.sampled_from(["detach", "pump", "take_shared", "take_unacknowledged", "clear"]), *[st.just(0)] * 2
    ),
    st.tuples(st.just("full"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("acknowledge"), st.integers(0, 5), st.sampled_from([0, 0x80])),
    st.tuples(st.just("hold"), st.integers(1, 3), st.integers(0, 40)),
    st.tuples(st.just("let_go"), st.integers(1, 3), st.just(0)),
)
TERMS = st.fixed_dictionaries(
    {
        "maximum_queued_messages": st.integers(1, 4),
        "maximum_queued_bytes": st.integers(10, 120),
        "queue_full": st.sampled_from(["drop_newest", "drop_oldest", "disconnect"]),
        "queue_qos_0": st.booleans(),
        "budget": st.integers(20, 300),
    }
)


def apply(bench: Bench, step: str, number: int, size: int) -> None:
    session = bench.session
    match step:
        case "deliver":
            subscription = SHARED if size % 2 else Subscription("t", 2)
            expires_at = bench.clock() + size % 7 if size % 3 == 0 else None
            session.deliver(message(b"x" * size, number, expires_at=expires_at), subscription)
        case "attach":
            session.attach(FakeLink(too_large=[b"x" * 13]), number)
            session.pump()
        case "detach":
            session.detach(session.link)
        case "full" if isinstance(session.link, FakeLink):
            session.link.full = bool(number)
        case "wait":
            bench.clock.now += number
        case "hold" if number not in session.inflight.held:
            session.hold(number, message(b"h" * size, 2))
        case "acknowledge" if session.inflight.entries:
            acknowledge_one(session, number, size)
        case "let_go":
            session.let_go(number)
        case "pump" | "take_shared" | "take_unacknowledged" | "clear":
            getattr(session, step)()


def acknowledge_one(session: Session, number: int, code: int) -> None:
    waiting = [*session.inflight.entries.values()]
    delivery = waiting[number % len(waiting)]
    by_state = {State.WAIT_PUBACK: PUBACK, State.WAIT_PUBREC: PUBREC, State.WAIT_PUBCOMP: PUBCOMP}
    session.acknowledge(delivery.packet_id, by_state[delivery.state], code)


@settings(max_examples=300, deadline=None)
@given(TERMS, st.lists(STEP, max_size=60))
def test_whatever_happens_the_books_balance(terms: dict[str, Any], steps: list[tuple[str, int, int]]) -> None:
    bench = Bench(**terms)
    for step in steps:
        apply(bench, *step)
        bench.check_balance()
        session = bench.session
        assert bench.budget.used <= bench.budget.maximum + SMALL
        assert len(session.queue) <= terms["maximum_queued_messages"]
        assert sum(queued.message.size for queued in session.queue) <= terms["maximum_queued_bytes"]
        assert session.inflight.used <= max(session.inflight.window, 3)
    bench.session.clear()
    assert bench.budget.used == 0
