"""Session: what deliver makes of a message, in which order things are sent, and when they expire."""

from __future__ import annotations

import subprocess
import sys

import pytest

from broker.packet.enums import PacketType
from broker.packet.message import Message
from broker.packet.packets import Pubrel
from broker.session.delivery import Delivery, SentRun
from broker.session.inflight import NO_ENTRIES, NO_HELD, Inflight
from broker.session.session import FOR_EVER
from broker.session.terms import NEVER
from broker.topic.subscription import Subscription
from tests.session.make import Bench, FakeLink, Sent, message

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
SIZE = message(b"1").size  # bytes that each one-letter message counts


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
    link.keeps_retain = keeps
    bench.session.attach(link, 10)
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
    bench.session.attach(link, 5)
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


# ---- connections


def test_a_late_detach_of_an_old_connection_touches_nothing() -> None:
    bench = Bench()
    old, link = FakeLink(), FakeLink()
    bench.session.attach(old, 5)
    bench.session.attach(link, 2)
    bench.deliver(b"1")
    assert bench.session.detach(old) is False
    assert bench.session.link is link and bench.session.inflight.window == 2
    assert bench.session.detach(link) is True
    assert bench.session.detach(link) is False
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
    two.session.detach(two.session.link)
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


def test_a_table_that_is_given_back_goes_on_behind_its_last_identifier() -> None:
    bench, other = Bench(), Bench()
    bench.attach(window=7)
    other.attach(window=3)
    session = bench.session
    session.send_run(SentRun(5, 2, b"", 0, "p", False, 0.0))
    mine = session.inflight
    session.spare_table()
    assert session.inflight is mine, "something is in it"
    session.acknowledge_run(2)
    session.spare_table()
    assert session.inflight.blank and session.inflight.window == 7
    other.deliver(b"x")
    table = other.session.inflight
    assert (table.window, table.used, table.last, [*table.entries]) == (3, 1, 1, [1])
    assert session.table().next_unused() == 7 and session.inflight is not table


def test_a_table_stays_where_there_is_none_for_everybody() -> None:
    """More windows than there are such tables: in a process of its own, since those are everybody's."""
    program = """if True:
        from broker.session.inflight import BLANKS, Inflight
        tables = [Inflight(window, 9) for window in range(1, BLANKS + 10)]
        assert all(table.rest() is table or table.rest().blank for table in tables)
        assert not all(table.rest().blank for table in tables)
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_runs_go_on_from_one_to_the_next() -> None:
    table = Inflight(9)
    runs = [SentRun(first, 2, b"", 2, "p", False, 0.0) for first in (1, 3, 5)]
    for run in runs:
        table.add_run(run)
    assert [*(table.runs or ())] == runs and table.used == 6
    assert table.acknowledge_run(2) == 2 and [*(table.runs or ())] == runs[1:]
    assert table.acknowledge_run(1) == 1 and table.acknowledge_run(1) == 1 and table.acknowledge_run(2) == 2
    assert table.runs is None and table.used == 0
    again = SentRun(7, 1, b"", 0, "p", False, 0.0)
    table.add_run(again)
    assert [*(table.runs or ())] == [again], "and nothing of what was before"


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
