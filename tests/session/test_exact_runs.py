"""QoS 2 in runs: what was sent steps on as single messages would, and what is held can be told apart."""

from __future__ import annotations

import gc
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.packet.codec import encode
from broker.packet.enums import PacketType, Version
from broker.packet.message import Message
from broker.packet.packets import Publish
from broker.session.delivery import ExactRuns, HeldRun, SentRun, State
from broker.session.inflight import NO_HELD, Inflight
from tests.session.make import Bench, message

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
OVERHEAD = 7


def packets(first: int, count: int, version: Version = V3, qos: int = 2) -> bytes:
    sent = (Publish(f"t/{n % 3}", b"x" * (n % 4), qos, packet_id=n) for n in range(first, first + count))
    return b"".join(encode(packet, version) for packet in sent)


def sent_run(first: int, count: int) -> SentRun:
    data = packets(first, count)
    return SentRun(first, count, data, len(data) + OVERHEAD * count, "p", False, 0.0)


def held_run(first: int, count: int, version: Version = V3) -> HeldRun:
    """Each with a Topic Name of another length, and one that takes more than its bytes."""
    heads, tails, cost = [], [], 0
    for n in range(first, first + count):
        name = ("t" * (1 + n % 200) + ("ü" if n % 3 == 0 else "")).encode()
        packet = encode(Publish(name.decode(), b"x" * (n % 4), 2, packet_id=n), version)
        end = packet.index(name) + len(name)
        heads.append(packet[:end])
        tails.append(packet[end + 2 :])
        cost += Message(name.decode(), b"x" * (n % 4)).size + OVERHEAD
    pubrels = b"".join(b"\x62\x02" + n.to_bytes(2, "big") for n in range(first, first + count))
    return HeldRun(heads, tails, pubrels, [None] * count, version is V5, "p", OVERHEAD, cost)


STEPS = st.lists(st.tuples(st.sampled_from(["send", "receive", "complete"]), st.integers(1, 9)), max_size=40)


@given(STEPS)
def test_they_step_on_as_those_that_stand_alone_would(steps: list[tuple[str, int]]) -> None:
    runs, last, taken, given_back = ExactRuns(), 0, 0, 0
    sent, received = deque[int](), deque[int]()
    for step, count in steps:
        if step == "send":
            run = sent_run(last + 1, count)
            run.number, taken = last + 1, taken + run.cost
            runs.add(run)
            sent.extend(range(last + 1, last + count + 1))
            last += count
        elif step == "receive" and runs.sent is not None:
            count = min(count, runs.sent.count)
            assert runs.sent.first == sent[0]
            runs.receive(count)
            received.extend(sent.popleft() for _ in range(count))
        elif step == "complete" and runs.received is not None:
            count = min(count, runs.received.count)
            assert runs.received.first == received[0]
            given_back += runs.complete(count)
            for _ in range(count):
                received.popleft()
        wanted = [(n, State.WAIT_PUBCOMP) for n in received] + [(n, State.WAIT_PUBREC) for n in sent]
        found = [*runs.deliveries()]
        assert [(each.packet_id, each.state) for each in found] == wanted
        assert [each.number for each in found] == [n for n, _ in wanted]
        assert all(each.qos == 2 and each.message.payload == b"x" * (each.packet_id % 4) for each in found)
        assert taken - given_back == sum(run.cost for run in runs)
        assert sum(run.count for run in runs) == len(wanted)


def test_a_table_with_both_kinds_has_one_numbering_and_thaws_in_the_order_of_sending() -> None:
    bench = Bench()
    bench.attach()
    session = bench.session
    session.send_run(sent_run(1, 3), 2)
    data = packets(4, 2, qos=1)
    session.send_run(SentRun(4, 2, data, len(data), "p", False, 0.0))
    session.send_run(sent_run(6, 2), 2)
    table = session.inflight
    assert (table.next_unused(), table.used) == (8, 7)
    assert table.exact is not None
    table.exact.receive(2)
    session.complete_run(1)
    assert table.used == 6
    assert not any(table.is_free(n) for n in range(2, 8)) and table.is_free(1) and table.is_free(8)
    session.thaw()
    assert [(n, each.state.name) for n, each in table.entries.items()] == [
        (2, "WAIT_PUBCOMP"), (3, "WAIT_PUBREC"), (4, "WAIT_PUBACK"), (5, "WAIT_PUBACK"), (6, "WAIT_PUBREC"),
        (7, "WAIT_PUBREC"),
    ]  # fmt: skip
    assert table.exact is None and table.runs is None and table.used == 6
    assert session.acknowledge(3, PacketType.PUBREC, 0) is not None
    for packet_id in (2, 3):
        assert session.acknowledge(packet_id, PacketType.PUBCOMP, 0) is not None
    assert table.used == 4


def test_a_message_that_stands_alone_passes_by_the_identifiers_of_runs() -> None:
    bench = Bench()
    bench.attach()
    bench.session.send_run(sent_run(1, 3), 2)
    bench.session.inflight.last, bench.session.inflight._unused_to = 0, 0  # all were used once
    bench.deliver(b"x")
    assert [*bench.session.inflight.entries] == [4]


@pytest.mark.parametrize("version", [V3, V5])
def test_what_is_held_is_told_apart_when_somebody_looks(version: Version) -> None:
    bench = Bench()
    session, used = bench.session, bench.budget.used
    session.terms.overhead = OVERHEAD
    assert session.hold_run(held_run(1, 4, version)) and session.hold_run(held_run(5, 2, version))
    first = session.let_go_run(3)
    assert (first.count, first.pubrels[2:4], len(first.pubrels)) == (3, b"\0\1", 12)
    assert [len(tail) - (version is V5) for tail in first.tails] == [1, 2, 3] and len(first.audiences) == 3
    table = session.inflight
    assert table.holds and not table.singles
    assert {n: each.payload for n, each in table.held.items()} == {n: b"x" * (n % 4) for n in (4, 5, 6)}
    assert all(each.qos == 2 and each.client_id == "p" for each in table.held.values())
    assert table.held_run is None and table.singles
    assert session.bytes == sum(each.size + OVERHEAD for each in table.held.values())
    session.hold(9, message(b"alone", 2))
    assert sorted(table.held) == [4, 5, 6, 9]
    for packet_id in (4, 5, 6, 9):
        assert session.let_go(packet_id) is not None
    assert table.held is NO_HELD and session.bytes == 0 and bench.budget.used == used


def test_what_is_held_goes_with_the_session() -> None:
    bench = Bench()
    used, bench.session.terms.overhead = bench.budget.used, OVERHEAD
    assert bench.session.hold_run(held_run(1, 4))
    bench.session.send_run(sent_run(1, 3), 2)
    bench.session.clear()
    assert bench.budget.used == used and bench.session.inflight.blank


def test_nothing_is_kept_of_a_run_that_is_done() -> None:
    bench = Bench()
    for first in (1, 3):
        bench.session.hold_run(held_run(first, 2))
    for _ in range(2):
        bench.session.let_go_run(2)
    gc.collect()
    assert not any(isinstance(each, HeldRun) for each in gc.get_objects())


def test_a_table_that_holds_runs_is_not_given_back() -> None:
    bench = Bench()
    session = bench.session
    session.hold_run(held_run(1, 2))
    session.spare_table()
    assert session.inflight.holds
    session.let_go_run(2)
    session.send_run(sent_run(1, 1), 2)
    session.spare_table()
    assert not session.inflight.blank and session.inflight.exact is not None
    session.inflight.exact.receive(1)
    session.complete_run(1)
    session.spare_table()
    assert session.inflight.blank


@pytest.mark.parametrize(("count", "most", "held"), [(1, 5, True), (2, 5, False), (2, 5000, True)])
def test_one_message_may_be_larger_than_a_session_may_hold_but_not_several(
    count: int, most: int, held: bool
) -> None:
    bench = Bench()
    bench.session.terms.maximum_queued_bytes = most
    assert bench.session.hold_run(held_run(1, count)) is held
    assert bench.session.hold_run(held_run(9, 1)) is (not held or most > 5), "if there is one already"


def test_everybodys_table_takes_no_runs() -> None:
    bench = Bench()
    bench.attach(window=7)
    table: Inflight = bench.session.inflight
    for change in (lambda: table.hold_run(held_run(1, 1)), lambda: table.add_exact(sent_run(1, 1))):
        with pytest.raises(AssertionError):
            change()
