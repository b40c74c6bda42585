"""Outbound: one write a turn, bounded while the socket takes nothing, and its bytes given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.client import Client
from broker.outbound import BURST, FEED, UNREAD_ACKS
from broker.store.base import levels_of
from broker.store.journal import Journal
from tests.peer import Clock, run_async
from tests.sending import Sending
from tests.wire import turns, until

PENDING = 5  # bytes that `block` leaves in the connection


class Bench(Sending):
    """An Outbound over a Wire."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        journal = Journal(None, levels_of("always", ()), self.clock)
        super().__init__(self.clock, journal, lambda *_: None, **limits)

    async def block(self, data: bytes = b"first") -> None:
        """The socket takes no more, and the write loop knows it."""
        self.wire.stuck = True
        self.outbound.put(data)
        await turns()
        assert self.outbound.blocked
        self.wire.sent()


@asynccontextmanager
async def running(**limits: Any) -> AsyncIterator[Bench]:
    """A Bench; whatever happened, it holds no bytes of the budget in the end; one write loop at most runs."""
    bench = Bench(**limits)
    try:
        yield bench
    finally:
        bench.end()


# ---- one write a turn


@run_async
async def test_what_collects_in_one_turn_is_one_write() -> None:
    async with running() as bench:
        for number in range(1000):
            bench.outbound.put(b"%d;" % number)
        assert bench.wire.writes == [], "put itself writes nothing"
        await turns(1)
        assert bench.wire.writes == [b"".join(b"%d;" % number for number in range(1000))]
        await turns()
        assert len(bench.wire.writes) == 1
        bench.outbound.put(b"next")
        await turns()
        assert bench.wire.writes[1:] == [b"next"]
        assert bench.stats.messages_sent == 1001
        assert bench.stats.bytes_sent == sum(map(len, bench.wire.writes))


@run_async
async def test_a_packet_alone_is_written_as_it_is() -> None:
    async with running() as bench:
        packet = b"x" * 1000
        bench.outbound.put(packet)
        await turns()
        assert bench.wire.writes[0] is packet, "the bytes that all subscribers share are not copied"


@run_async
async def test_a_long_burst_does_not_collect_without_bound() -> None:
    async with running() as bench:
        packet = b"x" * 1000
        for _ in range(3 * BURST // len(packet)):
            bench.outbound.put(packet)
        sizes = [len(data) for data in bench.wire.writes]
        assert len(sizes) == 2 and all(BURST < size <= BURST + len(packet) for size in sizes)
        await turns()
        assert sum(map(len, bench.wire.writes)) == 3 * BURST // len(packet) * len(packet)
        assert len(bench.wire.writes) == 3


@run_async
async def test_a_burst_for_a_socket_that_is_slow_for_one_turn_is_no_block() -> None:
    async with running() as bench:
        bench.wire.stuck = True
        bench.outbound.put(b"a")
        await turns(1)
        bench.wire.let_go()
        bench.outbound.put(b"b")
        await turns()
        assert (bench.wire.sent(), bench.outbound.blocked, bench.times_resumed) == (b"ab", False, 0)


@run_async
async def test_flush_writes_now_and_nothing_twice() -> None:
    async with running() as bench:
        bench.outbound.put(b"a")
        bench.outbound.put(b"b")
        bench.outbound.flush()
        bench.outbound.flush()
        assert bench.wire.writes == [b"ab"]
        await turns()
        assert bench.wire.writes == [b"ab"]


# ---- a socket that takes no more


@run_async
async def test_blocked_and_free_again() -> None:
    async with running() as bench:
        await bench.block()
        for number in range(10):
            bench.outbound.put(b"%d" % number)
        await turns()
        assert bench.wire.sent() == b"", "nothing is written to a socket that takes no more"
        assert bench.budget.used == 10 + PENDING
        bench.wire.let_go()
        await turns()
        assert bench.wire.writes == [b"0123456789"]
        assert (bench.outbound.blocked, bench.budget.used, bench.times_resumed) == (False, 0, 1)


@pytest.mark.parametrize(
    ("packets", "size", "limits", "full"),
    [
        (255, 1, {}, False),
        (256, 1, {}, True),
        (9, 1, {"maximum_outbound_packets": 10}, False),
        (10, 1, {"maximum_outbound_packets": 10}, True),
        (4, 20, {"maximum_outbound_bytes": 100}, False),  # and five bytes that are pending
        (5, 19, {"maximum_outbound_bytes": 100}, True),
        (1, 4 << 20, {}, True),
    ],
)
@run_async
async def test_full(packets: int, size: int, limits: dict[str, int], full: bool) -> None:
    async with running(**limits) as bench:
        await bench.block()
        for _ in range(packets):
            assert not bench.outbound.full
            bench.outbound.put(b"x" * size)
        assert bench.outbound.full is full
        bench.wire.let_go()
        await turns()
        assert not bench.outbound.full


@run_async
async def test_while_the_socket_takes_everything_it_is_never_full() -> None:
    async with running() as bench:
        for _ in range(10_000):
            bench.outbound.put(b"x" * 100)
        assert not bench.outbound.full
        assert bench.budget.used == 0


@run_async
async def test_a_connection_that_holds_the_allowed_bytes_is_blocked_within_the_turn() -> None:
    async with running(maximum_outbound_bytes=1000) as bench:
        bench.wire.stuck = True
        for _ in range(10 * BURST // 100):
            bench.outbound.put(b"x" * 100)
            if bench.outbound.full:
                break
        assert bench.outbound.blocked and bench.outbound.full
        assert bench.wire.held <= BURST + 100, "and what is beyond is counted"


@run_async
async def test_blocked_again_by_what_had_waited() -> None:
    async with running() as bench:
        await bench.block()
        bench.outbound.put(b"second")
        bench.wire.take(100)  # the first is gone, the second will not go
        await turns()
        assert bench.outbound.blocked and bench.wire.sent() == b"second"
        assert bench.budget.used == 6, "what is in the connection's hands is counted once"
        bench.outbound.put(b"third")
        assert bench.budget.used == 6 + 5
        bench.wire.let_go()
        await turns()
        assert (bench.wire.sent(), bench.outbound.blocked) == (b"third", False)


@pytest.mark.parametrize("end", ["discard", "end_writing"])
@run_async
async def test_what_is_thrown_away_is_given_back(end: str) -> None:
    async with running() as bench:
        await bench.block()
        for _ in range(20):
            bench.outbound.put(b"x" * 10)
        assert bench.budget.used == 200 + PENDING
        getattr(bench.outbound, end)()
        assert bench.budget.used == (PENDING if end == "discard" else 0)
        bench.wire.let_go()
        await turns()
        assert bench.wire.sent() == b""
        assert bench.budget.used == 0


@run_async
async def test_after_close_nothing_is_written() -> None:
    async with running() as bench:
        bench.outbound.put(b"a")
        bench.outbound.end_writing()
        bench.outbound.flush()
        await turns()
        assert bench.wire.sent() == b""


DOINGS: dict[str, Callable[[Bench], Any]] = {
    "nothing": lambda bench: None,
    "a packet": lambda bench: bench.outbound.put(b"x" * 100),
    "a long packet": lambda bench: bench.outbound.put(b"x" * 2 * BURST),
    "a packet, written at once": lambda bench: bench.outbound.write(b"x" * 100),
    "a control packet": lambda bench: bench.outbound.put_control(b"x" * 100),
    "an acknowledgement that waits": lambda bench: bench.outbound.put_after(1, b"x" * 100),
    "an acknowledgement that does not": lambda bench: bench.outbound.put_after(0, b"x" * 100),
    "the beginning of a packet": lambda bench: begin_packet(bench.outbound),
}


def begin_packet(client: Client) -> None:
    client.own_reader().hold(b"\x30\x64" + bytes(50))
    client.note_partial(True)


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("before", DOINGS)
@pytest.mark.parametrize("after", DOINGS)
@run_async
async def test_who_has_ended_takes_nothing_of_the_budget(before: str, after: str, turn: int) -> None:
    """Whatever its loops are in the middle of, or is asked of it later, though bytes are still to leave."""
    bench = Bench()
    bench.wire.stuck = True
    bench.outbound.put(b"first")
    DOINGS[before](bench)
    await turns(turn)
    bench.outbound.finish()
    assert bench.budget.used == 0
    DOINGS[after](bench)
    await turns()
    assert bench.budget.used == 0
    bench.wire.let_go()
    await turns()
    assert bench.budget.used == 0
    bench.end()


# ---- control packets


@run_async
async def test_control_packets_are_taken_however_full_it_is() -> None:
    async with running(maximum_outbound_packets=2) as bench:
        await bench.block()
        for number in range(100):
            bench.outbound.put_control(b"%02d" % number)
        assert bench.outbound.full
        assert bench.budget.used == 200 + PENDING
        bench.wire.let_go()
        await turns()
        assert bench.wire.sent() == b"".join(b"%02d" % number for number in range(100))


@run_async
async def test_too_many_unread_acknowledgements_swamp_it() -> None:
    async with running() as bench:
        ack = b"\x40\x02\x00\x01"
        for _ in range(UNREAD_ACKS):
            bench.outbound.put_control(ack)
        assert not bench.outbound.swamped, "they leave"
        await turns()
        await bench.block()
        for _ in range(UNREAD_ACKS // len(ack)):
            bench.outbound.put_control(ack)
        assert not bench.outbound.swamped
        bench.outbound.put_control(ack)
        assert bench.outbound.swamped
        waiting = asyncio.create_task(bench.outbound.until_taken())
        await turns()
        assert not waiting.done()
        bench.wire.let_go()
        await asyncio.wait_for(waiting, 1)
        assert not bench.outbound.swamped


@run_async
async def test_data_alone_does_not_swamp_it() -> None:
    async with running() as bench:
        await bench.block()
        bench.outbound.put(b"x" * 10 * UNREAD_ACKS)
        assert not bench.outbound.swamped
        await asyncio.wait_for(bench.outbound.until_taken(), 1)


@run_async
async def test_close_ends_the_wait_of_a_swamped_one() -> None:
    async with running() as bench:
        await bench.block()
        bench.outbound.put_control(b"x" * (UNREAD_ACKS + 1))
        waiting = asyncio.create_task(bench.outbound.until_taken())
        await turns()
        bench.outbound.end_writing()
        await asyncio.wait_for(waiting, 1)


@run_async
async def test_drained_waits_until_all_is_taken() -> None:
    async with running() as bench:
        await asyncio.wait_for(bench.outbound.drained(), 1)
        await bench.block()
        bench.outbound.put(b"more")
        waiting = asyncio.create_task(bench.outbound.drained())
        await turns()
        assert not waiting.done()
        bench.wire.take(5)  # the first; now the second is pending
        await turns(10)
        assert not waiting.done()
        bench.wire.let_go()
        await asyncio.wait_for(waiting, 1)
        assert bench.wire.pending() == 0


# ---- stalled [B11]


@run_async
async def test_stalled_when_nothing_is_taken_for_the_whole_send_timeout() -> None:
    async with running(send_timeout=30) as bench:
        assert not bench.outbound.stalled(bench.clock() + 1e9, 30), "nothing waits, nothing stalls"
        await bench.block(b"x" * 100)
        began = bench.clock()
        assert not bench.outbound.stalled(began + 29.999, 30)
        assert bench.outbound.stalled(began + 30, 30)


@run_async
async def test_every_byte_that_is_taken_begins_the_time_anew() -> None:
    async with running(send_timeout=30) as bench:
        await bench.block(b"x" * 100)
        began = bench.clock()
        for step in range(1, 6):
            bench.wire.take(1)
            assert not bench.outbound.stalled(began + 25 * step, 30)
        assert not bench.outbound.stalled(began + 125 + 29, 30)
        assert bench.outbound.stalled(began + 125 + 30, 30)


@run_async
async def test_bytes_that_collect_meanwhile_are_no_progress() -> None:
    async with running(send_timeout=30) as bench:
        await bench.block(b"x" * 100)
        for _ in range(10):
            bench.outbound.put(b"y")
            await turns(1)
            assert not bench.outbound.stalled(bench.clock() + 29, 30)
        assert bench.outbound.stalled(bench.clock() + 30, 30)


@run_async
async def test_a_new_block_begins_a_new_time() -> None:
    async with running(send_timeout=30) as bench:
        await bench.block(b"x" * 100)
        bench.clock.now += 29
        bench.wire.let_go()
        await turns()
        bench.clock.now += 29
        await bench.block(b"x" * 100)
        assert not bench.outbound.stalled(bench.clock() + 29, 30)
        assert bench.outbound.stalled(bench.clock() + 30, 30)


# ---- feeds of retained messages


class Feeding:
    """Steps that put `name` and a number; `wait` makes them say that they must wait."""

    def __init__(self, bench: Bench, name: str, count: int) -> None:
        self.bench, self.name, self.count = bench, name, count
        self.given = 0
        self.asked = 0
        self.wait = False

    def __iter__(self) -> Iterator[int]:
        while self.given < self.count:
            while self.wait:
                self.asked += 1
                yield 0
            self.bench.outbound.put(b"%s%d;" % (self.name.encode(), self.given))
            self.given += 1
            yield 1

    def start(self, topic_filter: str | None = None) -> Feeding:
        self.bench.outbound.feed(topic_filter or self.name, iter(self))
        return self


@run_async
async def test_a_feed_is_sent_little_by_little_and_others_run_between() -> None:
    async with running() as bench:
        feeding = Feeding(bench, "a", 10 * FEED).start()
        seen = []
        while feeding.given < feeding.count:
            await turns(1)
            seen.append(feeding.given)
        steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
        assert max(steps) <= FEED
        await turns()
        assert bench.wire.sent() == b"".join(b"a%d;" % number for number in range(10 * FEED))
        assert not bench.outbound.feeding


@run_async
async def test_dear_steps_count_for_more() -> None:
    async with running() as bench:
        given = 0

        def dear() -> Iterator[int]:
            nonlocal given
            for given in range(1, 1001):  # noqa: B007
                yield FEED // 4

        bench.outbound.feed("a", dear())
        for turn in range(1, 50):
            await turns(1)
            assert given <= 4 * turn


@run_async
async def test_live_packets_leave_during_a_feed() -> None:
    async with running() as bench:
        feeding = Feeding(bench, "a", 100 * FEED).start()
        await turns()
        bench.outbound.put(b"LIVE")
        await turns()
        assert feeding.given < feeding.count
        assert b"LIVE" in bench.wire.sent()


@run_async
async def test_a_feed_waits_without_being_asked_all_the_time_and_goes_on_when_told() -> None:
    async with running() as bench:
        feeding = Feeding(bench, "a", 3).start()
        feeding.wait = True
        await turns(50)
        assert (feeding.given, feeding.asked) == (0, 1), "waiting costs nothing"
        bench.outbound.resume_feed()
        await turns(50)
        assert (feeding.given, feeding.asked) == (0, 2)
        feeding.wait = False
        bench.outbound.resume_feed()
        await turns()
        assert bench.wire.sent() == b"a0;a1;a2;"


@run_async
async def test_a_feed_does_not_fill_a_socket_that_takes_no_more() -> None:
    async with running() as bench:
        bench.wire.stuck = True
        feeding = Feeding(bench, "a", 100 * FEED).start()
        await turns(50)
        assert bench.outbound.blocked and feeding.given <= 2 * FEED
        bench.wire.let_go()
        await until(lambda: feeding.given == feeding.count)


@run_async
async def test_a_socket_that_is_stuck_while_a_feed_waits_is_noticed() -> None:
    async with running(send_timeout=30) as bench:

        def one_and_wait() -> Iterator[int]:
            bench.outbound.put(b"unread")
            yield 1
            while True:
                yield 0

        bench.wire.stuck = True
        bench.outbound.feed("a", one_and_wait())
        await turns(10)
        assert bench.outbound.blocked and bench.outbound.stalled(bench.clock() + 30, 30)


@run_async
async def test_a_feed_that_is_out_of_date_ends() -> None:
    async with running() as bench:
        old = Feeding(bench, "old", 10 * FEED).start("a/#")
        await turns(3)
        given = old.given
        bench.outbound.end_feed("a/#")
        new = Feeding(bench, "new", 5).start("a/#")
        await turns(10)
        assert 0 < given == old.given < old.count
        assert new.given == 5
        assert bench.wire.sent().endswith(b"new0;new1;new2;new3;new4;")


@run_async
async def test_feeds_for_several_filters_all_arrive() -> None:
    async with running() as bench:
        feedings = [Feeding(bench, name, 3 * FEED).start() for name in "abc"]
        await until(lambda: all(feeding.given == feeding.count for feeding in feedings))
        await turns()
        assert bench.wire.sent().count(b";") == 9 * FEED


@run_async
async def test_two_clients_share_the_loop() -> None:
    async with running() as one, running() as two:
        first, second = Feeding(one, "a", 10 * FEED).start(), Feeding(two, "b", 10 * FEED).start()
        while first.given < first.count and second.given < second.count:
            await turns(1)
            assert abs(first.given - second.given) <= FEED


@run_async
async def test_a_feed_ends_with_its_connection() -> None:
    async with running() as bench:
        feeding = Feeding(bench, "a", 10 * FEED).start()
        await turns(3)
        bench.outbound.end_writing()
        given = feeding.given
        await turns(10)
        assert 0 < given == feeding.given


@run_async
async def test_an_exception_in_a_step_ends_the_write_loop() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise RuntimeError("boom")

    bench = Bench()
    loop = asyncio.create_task(bench.outbound.write_loop())
    bench.outbound.feed("a", failing())
    with pytest.raises(RuntimeError, match="boom"):
        await asyncio.wait_for(loop, 1)
