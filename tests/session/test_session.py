"""Session: send at once, queue or drop; and whatever happens, the byte budget comes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.packet.enums import PacketType
from broker.packet.message import Message
from broker.packet.packets import Pubrel
from broker.session.inflight import NO_ENTRIES, NO_HELD, Delivery, SentRun, State
from broker.session.session import FOR_EVER, Session
from broker.session.will import NEVER, remaining
from broker.store.budget import SMALL
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription
from tests.session.make import Bench, FakeLink, Sent, message

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
SIZE = message(b"1").size  # bytes that each one-letter message counts
SHARED = Subscription("$share/g/t", 2, share_name="g")


# ---- what deliver makes of a message


@pytest.mark.parametrize(
    ("published", "granted", "sent"),
    [(0, 0, 0), (0, 2, 0), (1, 0, 0), (1, 1, 1), (1, 2, 1), (2, 0, 0), (2, 1, 1), (2, 2, 2)],
)
def test_the_qos_is_the_lower_of_the_two(published: int, granted: int, sent: int) -> None:
    bench = Bench()
    link = bench.attach()
    bench.deliver(b"x", qos=published, subscribed=granted)
    assert link.take() == [Sent(b"x", sent, 1 if sent else 0)]
    assert bench.budget.used == (SIZE if sent else 0)
    bench.check_balance()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_retain_and_identifiers(qos: int, as_published: bool, retain: bool) -> None:
    bench = Bench()
    link = bench.attach()
    subscription = Subscription("t", 1, retain_as_published=as_published, identifiers=(7, 7, 9))
    bench.session.deliver(message(b"live", qos, retain=retain), subscription)
    bench.session.deliver_retained(message(b"kept", qos, retain=True), 1, (7,))
    assert link.take() == [
        Sent(b"live", qos, qos, retain=retain and as_published, identifiers=(7, 7, 9)),
        Sent(b"kept", qos, 2 * qos, retain=True, identifiers=(7,)),
    ]


def test_identifiers_and_retain_wait_with_the_message() -> None:
    bench = Bench()
    subscription = Subscription("t", 1, retain_as_published=True, identifiers=(7,))
    bench.session.deliver(message(b"x", retain=True), subscription)
    assert bench.attach().take() == [Sent(b"x", 1, 1, retain=True, identifiers=(7,))]


def test_qos_0_passes_by_what_waits() -> None:
    bench = Bench()
    link = bench.attach(window=1)
    bench.deliver(b"1", b"2")
    bench.deliver(b"now", qos=0)
    assert link.payloads() == [b"1", b"now"]
    assert bench.queued() == [b"2"]


def test_qos_0_without_a_connection_is_dropped() -> None:
    bench = Bench()
    bench.deliver(b"x", qos=0)
    assert (bench.drops, bench.queued(), bench.budget.used) == ([(b"x", "offline")], [], 0)
    bench.session.deliver_retained(message(b"y", 0), 2, ())
    assert (bench.queued(), bench.budget.used) == ([], 0)


def test_qos_0_without_a_connection_waits_if_the_setting_says_so() -> None:
    bench = Bench(queue_qos_0=True)
    bench.deliver(b"0", qos=0)
    bench.deliver(b"1")
    assert bench.queued() == [b"0", b"1"]
    bench.check_balance()
    assert bench.attach().take() == [Sent(b"0"), Sent(b"1", 1, 1)]
    assert bench.budget.used == SIZE, "QoS 0 is done when it is sent"


# ---- the order of things


def test_the_window_full_the_rest_waits_in_order() -> None:
    bench = Bench()
    link = bench.attach(window=2)
    bench.deliver(b"1", b"2", b"3", b"4")
    assert (link.payloads(), bench.queued()) == ([b"1", b"2"], [b"3", b"4"])
    bench.session.acknowledge(2, PUBACK, 0)
    assert (link.take(), bench.queued()) == ([Sent(b"3", 1, 3)], [b"4"])
    bench.session.acknowledge(1, PUBACK, 0x87)
    assert (link.payloads(), bench.queued()) == ([b"4"], [])
    bench.check_balance()


def test_a_socket_that_takes_no_more_keeps_them_in_the_session() -> None:
    bench = Bench()
    link = bench.attach()
    link.full = True
    bench.deliver(b"1", b"2")
    assert (link.take(), bench.queued()) == ([], [b"1", b"2"])
    link.full = False
    bench.deliver(b"3")
    assert link.take() == [], "what waits goes first, and it is pumped by whoever knows that there is room"
    bench.session.pump()
    assert link.payloads() == [b"1", b"2", b"3"]


def test_after_a_cut_the_unfinished_come_first_then_the_queue() -> None:
    bench = Bench()
    link = bench.attach(window=3)
    bench.deliver(b"1")
    bench.deliver(b"2", b"3", qos=2)
    bench.session.acknowledge(3, PUBREC, 0)
    bench.detach()
    bench.deliver(b"4", b"5")
    link = bench.attach(window=3)
    assert link.take() == [Sent(b"1", 1, 1, True), Sent(b"2", 2, 2, True), Pubrel(3), Sent(b"4", 1, 4)]
    assert bench.queued() == [b"5"]
    assert bench.session.inflight.used == 3, "a PUBREL takes no slot"
    bench.check_balance()


def test_a_pubrel_waits_for_no_slot_not_even_behind_a_resend() -> None:
    bench = Bench()
    bench.attach(window=4)
    bench.deliver(b"1", b"2", b"3", b"4", qos=2)
    bench.session.acknowledge(2, PUBREC, 0)
    bench.session.acknowledge(4, PUBREC, 0)
    bench.detach()
    link = bench.attach(window=1)
    assert link.take() == [Sent(b"1", 2, 1, True), Pubrel(2), Pubrel(4)]
    bench.session.acknowledge(4, PUBCOMP, 0)
    bench.session.acknowledge(2, PUBCOMP, 0)
    assert link.take() == [], "they gave no slot back"
    bench.session.acknowledge(1, PUBREC, 0x80)
    assert link.take() == [Sent(b"3", 2, 3, True)]
    bench.check_balance()


@pytest.mark.parametrize("keeps", [True, False])
def test_retain_as_published_has_no_effect_for_3_x(keeps: bool) -> None:
    """And what was queued under one version goes by the version that it is sent to [B27]."""
    bench = Bench()
    subscription = Subscription("t", 1, retain_as_published=True)
    for qos in (0, 1):
        bench.session.deliver(message(b"queued", qos, retain=True), subscription)
    link = FakeLink()
    bench.session.attach(link, 10, keeps)
    bench.session.pump()
    for qos in (0, 1):
        bench.session.deliver(message(b"live", qos, retain=True), subscription)
        bench.session.deliver_retained(message(b"asked", qos, retain=True), 1, ())
    sent = {(each.payload, each.qos): each.retain for each in link.take() if isinstance(each, Sent)}
    assert sent == {
        (b"queued", 1): keeps,
        (b"live", 0): keeps,
        (b"live", 1): keeps,
        (b"asked", 0): True,
        (b"asked", 1): True,
    }


def test_a_window_of_one_resends_one_by_one() -> None:
    bench = Bench()
    bench.attach(window=3)
    bench.deliver(b"1", b"2", b"3")
    bench.detach()
    bench.deliver(b"4")
    link = bench.attach(window=1)
    seen = link.payloads()
    while bench.session.inflight.entries:
        [packet_id] = [i for i, d in bench.session.inflight.entries.items() if d.counted]
        bench.session.acknowledge(packet_id, PUBACK, 0)
        seen += link.payloads()
    assert seen == [b"1", b"2", b"3", b"4"]
    assert bench.budget.used == 0


def test_a_new_message_does_not_overtake_what_is_to_be_resent() -> None:
    bench = Bench()
    bench.attach(window=2)
    bench.deliver(b"1", b"2")
    bench.detach()
    link = bench.attach(window=1)
    bench.deliver(b"3")
    assert (link.payloads(), bench.queued()) == ([b"1"], [b"3"])
    bench.session.acknowledge(1, PUBACK, 0)
    assert (link.payloads(), bench.queued()) == ([b"2"], [b"3"])


def test_an_acknowledgement_before_the_resend_takes_it_out() -> None:
    bench = Bench()
    bench.attach(window=3)
    bench.deliver(b"1", b"2", b"3")
    bench.detach()
    link = bench.attach(window=1)
    bench.session.acknowledge(2, PUBACK, 0)
    assert link.payloads() == [b"1"], "2 was acknowledged late, and gave no slot"
    bench.session.acknowledge(1, PUBACK, 0)
    assert link.payloads() == [b"3"]
    bench.check_balance()


def test_nothing_is_sent_before_pump() -> None:
    bench = Bench()
    bench.deliver(b"1")
    link = FakeLink()
    assert bench.session.attach(link, 5) == 1
    assert link.take() == []
    bench.session.pump()
    assert link.payloads() == [b"1"]


# ---- too large for the client [MQTT-3.1.2-25]


def test_too_large_is_as_good_as_sent() -> None:
    bench = Bench()
    link = bench.attach(window=1, too_large=[b"big"])
    bench.deliver(b"big", b"1")
    assert link.take() == [Sent(b"1", 1, 2)]
    assert bench.queued() == []
    bench.check_balance()


def test_too_large_from_the_queue_and_too_large_to_resend() -> None:
    bench = Bench()
    bench.attach(window=2)
    bench.deliver(b"big", b"1")
    bench.detach()
    bench.deliver(b"huge", b"2")
    link = bench.attach(window=1, too_large=[b"big", b"huge"])
    assert link.take() == [Sent(b"1", 1, 2, True)]
    bench.session.acknowledge(2, PUBACK, 0)
    assert link.payloads() == [b"2"]
    bench.check_balance()


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
            session.detach(session.epoch)
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


# ---- expiry [MQTT5 3.3.2.3.3]


def test_expired_while_it_waited_for_the_window() -> None:
    bench = Bench()
    link = bench.attach(window=1)
    bench.deliver(b"1", b"2", b"3")
    bench.session.queue[0].message.expires_at = bench.clock() + 5
    bench.clock.now += 4.999
    bench.session.pump()
    assert bench.drops == []
    bench.clock.now += 0.001
    bench.session.acknowledge(1, PUBACK, 0)
    assert (link.payloads(), bench.drops) == ([b"1", b"3"], [(b"2", "expired")])
    bench.check_balance()


def test_expired_on_arrival_goes_at_once_or_not_at_all() -> None:
    bench = Bench()
    link = bench.attach(window=1)
    bench.deliver(b"now", expires_at=bench.clock())
    assert link.payloads() == [b"now"]
    bench.deliver(b"late", expires_at=bench.clock())
    assert (link.payloads(), bench.queued(), bench.drops) == ([], [], [(b"late", "expired")])
    bench.check_balance()


def test_what_was_sent_once_does_not_expire() -> None:
    bench = Bench()
    bench.attach()
    bench.deliver(b"1", expires_at=bench.clock() + 5)
    bench.detach()
    bench.clock.now += 1000
    assert bench.attach().take() == [Sent(b"1", 1, 1, True)]


@pytest.mark.parametrize(
    ("expires_at", "now", "left"),
    [(10, 0, 10), (10, 0.5, 10), (10, 9.001, 1), (10, 10, 0), (10, 99, 0), (0, 0, 0)],
)
def test_the_remaining_seconds_are_rounded_up(expires_at: float, now: float, left: int) -> None:
    assert remaining(expires_at, now) == left


# ---- shared subscriptions


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


# ---- connections


def test_a_late_detach_of_an_old_connection_touches_nothing() -> None:
    bench = Bench()
    old = bench.session.attach(FakeLink(), 5)
    link = FakeLink()
    new = bench.session.attach(link, 2)
    assert new == old + 1
    bench.deliver(b"1")
    assert bench.session.detach(old) is False
    assert bench.session.link is link and bench.session.inflight.window == 2
    assert bench.session.detach(new) is True
    assert bench.session.detach(new) is False
    assert not bench.session.connected


def test_attach_stops_every_deadline() -> None:
    session = Bench().session
    session.ends_at, session.will_due = 10.0, 5.0
    session.attach(FakeLink(), 1)
    assert (session.ends_at, session.will_due) == (NEVER, NEVER)


@pytest.mark.parametrize(
    ("interval", "ends"), [(0, 100.0), (60, 160.0), (FOR_EVER - 1, 100.0 + FOR_EVER - 1)]
)
def test_when_a_session_ends(interval: int, ends: float) -> None:
    session = Bench().session
    session.expiry_interval = interval
    assert session.ends_after(100.0) == ends


def test_an_interval_of_all_ones_never_ends() -> None:
    session = Bench().session
    session.expiry_interval = FOR_EVER
    assert session.ends_after(100.0) == NEVER


def test_a_message_that_is_shared_is_not_changed() -> None:
    bench = Bench()
    bench.attach(window=1)
    one = Message("t", b"1", 2, True, {"message_expiry_interval": 5}, "p", bench.clock() + 5)
    before = one.with_()
    for subscribed in (0, 1, 2):
        bench.session.deliver(one, Subscription("t", subscribed, retain_as_published=subscribed == 1))
    assert one == before


# ---- what most sessions do without


def test_those_that_never_sent_share_one_table_and_the_first_message_gives_it_its_own() -> None:
    one, two = Bench(), Bench()
    one.attach(window=7)
    two.attach(window=7)
    assert one.session.inflight is two.session.inflight and one.session.inflight.window == 7
    one.deliver(b"x")
    assert one.session.inflight is not two.session.inflight
    assert (one.session.inflight.used, one.session.inflight.window) == (1, 7)
    shared = two.session.inflight
    assert (shared.used, shared.window, shared.entries, shared.held, shared.runs) == (0, 7, {}, {}, None)
    for change in (
        lambda: shared.start(Delivery(message(b"x"), 1, False)),
        lambda: shared.hold(1, message(b"x")),
        lambda: shared.add_run(SentRun(1, 1, b"", 0, "p", False, 0.0)),
    ):
        with pytest.raises(AssertionError):
            change()
    two.session.detach(two.session.epoch)
    assert not two.session.inflight.room and shared.window == 7


def test_a_table_that_is_empty_again_holds_nothing() -> None:
    bench = Bench()
    bench.attach()
    bench.deliver(b"x")
    bench.session.acknowledge(1, PUBACK, 0)
    bench.session.hold(9, message(b"held", 2))
    bench.session.let_go(9)
    bench.session.send_run(SentRun(2, 1, b"", 0, "p", False, 0.0))
    bench.session.acknowledge_run(1)
    inflight = bench.session.inflight
    assert inflight.entries is NO_ENTRIES and inflight.held is NO_HELD and inflight.runs is None


def test_subscriptions_one_and_several() -> None:
    bench = Bench()
    a, b, again = Subscription("a"), Subscription("b"), Subscription("a", 2)
    seen = []
    for change in (
        lambda: bench.session.subscribe(a),
        lambda: bench.session.subscribe(again),
        lambda: bench.session.subscribe(b),
        lambda: bench.session.subscribe(a),
        lambda: bench.session.unsubscribe("a"),
        lambda: bench.session.unsubscribe("a"),
        lambda: bench.session.unsubscribe("b"),
        lambda: bench.session.subscribe(b),
        lambda: bench.session.unsubscribe("c"),
        lambda: bench.session.unsubscribe("b"),
    ):
        gone = change()
        seen.append((gone, dict(bench.session.subscriptions)))
    assert seen == [
        (None, {"a": a}),
        (None, {"a": again}),
        (None, {"a": again, "b": b}),
        (None, {"a": a, "b": b}),
        (True, {"b": b}),
        (False, {"b": b}),
        (True, {}),
        (None, {"b": b}),
        (False, {"b": b}),
        (True, {}),
    ]
    assert bench.session.fixed_bytes == 0
