"""Outbound: what waits for a commit. The gate lets through in order; a cork holds back everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.client import Client
from broker.errors import QuotaExceeded
from broker.outbound import FEED, GATED, Held
from broker.store.journal import RETRY
from tests.peer import run_async
from tests.sending import Sending
from tests.store.make import Bench as Journaled
from tests.wire import turns

PUBACK, PUBREC, PUBREL, PUBCOMP = b"\x40%d", b"\x50%d", b"\x62%d", b"\x70%d"
QOS_0, QOS_1, QOS_2, QOS_1_DUP = b"\x30%d", b"\x32%d", b"\x34%d", b"\x3a%d"
PING = b"\xd0\0"


class Bench(Journaled, Sending):
    """An Outbound over a Wire, and a journal that commits when the test says so."""

    def __init__(self, ends: bool = False, **limits: Any) -> None:
        Journaled.__init__(self)
        Sending.__init__(self, self.clock, self.journal, self._refused, **limits)
        self.refusals: list[tuple[bytes, Any]] = []
        self.ends = ends  # as 3.x does: a refusal ends the connection

    def _refused(self, client: Client, data: bytes, about: Any, failure: Exception) -> bytes | None:
        self.refusals.append((data, about))
        if self.ends:
            client.end_writing()
            return None
        return b"!" + data

    def change(self) -> int:
        """Something changes in the store; gives the batch."""
        self.put(self.journal.new_id())
        return self.journal.promise(-1)

    def after(self, batch: int, *kinds: bytes, about: Any = None) -> None:
        for kind in kinds:
            self.outbound.put_after(batch, kind, about)

    async def sent(self) -> bytes:
        await turns()
        return self.wire.sent()

    async def fails(self) -> None:
        await self.commit(fail=True)
        await turns()


@asynccontextmanager
async def running(**fields: Any) -> AsyncIterator[Bench]:
    """A Bench; whatever happened, it holds no bytes of the budget in the end."""
    bench = Bench(**fields)
    asyncio.get_running_loop().time = bench.clock  # type: ignore[method-assign]
    bench.start()
    try:
        yield bench
    finally:
        bench.end()


def pack(*numbered: tuple[bytes, int]) -> bytes:
    return b"".join(kind % number for kind, number in numbered)


# ---- the gate


@run_async
async def test_what_promises_leaves_after_the_commit() -> None:
    async with running() as bench:
        bench.after(bench.change(), PUBACK % 1, PUBACK % 2)
        assert await bench.sent() == b""
        assert bench.budget.used == len(PUBACK % 1) * 2
        await bench.commit()
        assert await bench.sent() == PUBACK % 1 + PUBACK % 2
        assert bench.budget.used == 0 and not bench.outbound.gate
        assert not bench.journal._waiting


@run_async
async def test_it_leaves_in_the_order_in_which_it_came() -> None:
    """What has to wait for nothing waits behind what does."""
    async with running() as bench:
        first = bench.change()
        bench.after(first, PUBACK % 1)
        bench.after(0, PUBACK % 2)
        await bench.turn()
        second = bench.change()
        bench.after(second, PUBREC % 3)
        bench.after(first, PUBACK % 4)
        bench.after(0, PUBACK % 5)
        bench.writer.finish()
        assert await bench.sent() == PUBACK % 1 + PUBACK % 2
        bench.writer.finish()
        assert await bench.sent() == PUBREC % 3 + PUBACK % 4 + PUBACK % 5


@run_async
async def test_what_promises_nothing_passes() -> None:
    async with running() as bench:
        bench.after(bench.change(), PUBACK % 1)
        bench.outbound.put_control(PING)
        bench.outbound.put(QOS_0 % 9)
        assert await bench.sent() == PING + QOS_0 % 9
        await bench.commit()
        assert await bench.sent() == PUBACK % 1


@run_async
async def test_it_leaves_into_a_socket_that_takes_no_more() -> None:
    """Acknowledgements count there as such, and messages do not."""
    async with running() as bench:
        batch = bench.change()
        bench.after(batch, QOS_2 % 1, PUBACK % 2)
        bench.wire.stuck = True
        bench.outbound.put(b"first")
        await turns()
        assert bench.outbound.blocked
        await bench.commit()
        assert bench.outbound.waiting.control_bytes == len(PUBACK % 2)
        bench.wire.sent()
        bench.wire.let_go()
        assert await bench.sent() == QOS_2 % 1 + PUBACK % 2


@run_async
async def test_a_peer_with_too_many_promises_is_not_read() -> None:
    async with running() as bench:
        batch = bench.change()
        for _ in range(GATED):
            bench.after(batch, PUBACK % 1)
        assert not bench.outbound.swamped
        bench.after(batch, PUBACK % 1)
        assert bench.outbound.swamped
        waiting = asyncio.create_task(bench.outbound.until_taken())
        await turns()
        assert not waiting.done()
        await bench.commit()
        await turns()
        assert waiting.done() and not bench.outbound.swamped


@run_async
async def test_close_lets_a_peer_go_that_waits_at_the_gate() -> None:
    async with running() as bench:
        batch = bench.change()
        for _ in range(GATED + 1):
            bench.after(batch, PUBACK % 1)
        waiting = asyncio.create_task(bench.outbound.until_taken())
        await turns()
        bench.outbound.end_writing()
        await turns()
        assert waiting.done() and bench.budget.used == 0
        await bench.commit()
        assert await bench.sent() == b"" and not bench.journal._waiting


# ---- what a hook holds


@run_async
async def test_what_is_held_keeps_its_place_and_what_waits_for_nothing_is_not_the_journals() -> None:
    async with running() as bench:
        until = asyncio.get_running_loop().create_future()
        bench.after(-1, PUBACK % 1, about=Held(until, None))
        bench.after(0, PUBCOMP % 2)
        bench.outbound.put(QOS_0 % 3)
        assert await bench.sent() == QOS_0 % 3
        assert not bench.journal._waiting, "without a store it would keep the connection for ever"
        bench.after(bench.change(), PUBACK % 4)
        bench.after(-1, PUBREC % 5, about=Held(until, None))
        until.set_result(None)
        assert await bench.sent() == PUBACK % 1 + PUBCOMP % 2
        await bench.commit()
        assert await bench.sent() == PUBACK % 4 + PUBREC % 5
        assert bench.budget.used == 0 and not bench.outbound.gate and not bench.journal._waiting


@pytest.mark.parametrize("held_first", [True, False])
@run_async
async def test_what_is_stored_and_held_waits_for_both(held_first: bool) -> None:
    async with running() as bench:
        until = asyncio.get_running_loop().create_future()
        bench.after(bench.change(), PUBACK % 1, about=Held(until, None))
        for held in (held_first, not held_first):
            assert await bench.sent() == b""
            if held:
                until.set_result(None)
            else:
                await bench.commit()
        assert await bench.sent() == PUBACK % 1


@pytest.mark.parametrize("error", [QuotaExceeded("full"), OSError("gone"), None])
@run_async
async def test_what_is_held_in_vain_is_refused_in_its_place(error: Exception | None) -> None:
    async with running() as bench:
        until = asyncio.get_running_loop().create_future()
        bench.after(-1, PUBACK % 1, about=Held(until, "one"))
        bench.after(0, PUBACK % 2)
        bench.after(-1, PUBREC % 3, about=Held(until, None))
        if error is None:
            until.cancel()
        else:
            until.set_exception(error)
        assert await bench.sent() == pack((b"!\x40%d", 1), (PUBACK, 2), (b"!\x50%d", 3))
        assert bench.refusals == [(PUBACK % 1, "one"), (PUBREC % 3, None)]
        assert bench.budget.used == 0 and not bench.outbound.gate


@run_async
async def test_a_store_that_fails_refuses_what_is_held_no_more_than_once() -> None:
    async with running() as bench:
        until = asyncio.get_running_loop().create_future()
        bench.after(-1, PUBACK % 1, about=Held(until, "held alone"))
        bench.after(bench.change(), PUBACK % 2, about=Held(until, "held and stored"))
        await bench.fails()
        assert bench.refusals == [(PUBACK % 2, "held and stored")]
        assert await bench.sent() == b"", "what comes before is held still"
        until.set_exception(QuotaExceeded("full"))
        assert await bench.sent() == pack((b"!\x40%d", 1), (b"!\x40%d", 2))
        assert bench.refusals[1:] == [(PUBACK % 1, "held alone")]
        await bench.quiet()


@pytest.mark.parametrize("how", ["closed", "refused"])
@run_async
async def test_a_hook_that_never_answers_stops_the_reading_until_the_end(how: str) -> None:
    async with running(ends=True) as bench:
        until = asyncio.get_running_loop().create_future()
        for _ in range(GATED + 1):
            bench.after(-1, PUBACK % 1, about=Held(until, None))
        waiting = asyncio.create_task(bench.outbound.until_taken())
        await turns()
        assert bench.outbound.swamped and not waiting.done()
        if how == "closed":
            bench.outbound.end_writing()
        else:
            until.set_exception(QuotaExceeded("full"))
        assert await bench.sent() == b"" and waiting.done() and bench.budget.used == 0
        if how == "closed":
            until.set_result(None)
            assert await bench.sent() == b"" and bench.refusals == []
        else:
            assert len(bench.refusals) == 1, "the first one ends the connection"


# ---- a commit fails


@run_async
async def test_puback_and_pubrec_are_refused_in_their_place() -> None:
    """The order of acknowledgements is that of the messages [MQTT-4.6.0-2, MQTT-4.6.0-3]."""
    async with running() as bench:
        batch = bench.change()
        bench.after(batch, PUBACK % 1, about="one")
        bench.after(0, PUBACK % 2)
        bench.after(batch, PUBREC % 3)
        bench.after(0, PUBREC % 4)
        await bench.fails()
        assert bench.refusals == [(PUBACK % 1, "one"), (PUBREC % 3, None)]
        assert await bench.sent() == pack((b"!\x40%d", 1), (PUBACK, 2), (b"!\x50%d", 3), (PUBREC, 4))
        assert bench.budget.used == 0


@run_async
async def test_all_else_is_owed_and_stays_in_order() -> None:
    async with running() as bench:
        batch = bench.change()
        bench.after(batch, PUBREL % 1, PUBCOMP % 2, QOS_2 % 3)
        bench.after(0, PUBREL % 4)
        bench.after(batch, PUBACK % 5)
        await bench.fails()
        assert await bench.sent() == b"", "a refusal does not pass what was before it"
        assert bench.refusals == [(PUBACK % 5, None)]
        bench.after(0, PUBACK % 6)
        await bench.quiet()
        assert await bench.sent() == pack((PUBREL, 1), (PUBCOMP, 2), (QOS_2, 3), (PUBREL, 4)) + b"!" + pack(
            (PUBACK, 5), (PUBACK, 6)
        )


@run_async
async def test_qos_1_goes_out_all_the_same() -> None:
    """To send it promises nothing: what was stored is delivered while nothing can be."""
    async with running() as bench:
        batch = bench.change()
        bench.after(batch, QOS_2 % 1, QOS_1 % 2, QOS_1_DUP % 3, PUBCOMP % 4)
        await bench.fails()
        assert await bench.sent() == pack((QOS_1, 2), (QOS_1_DUP, 3))
        assert [data for _, data, *_ in bench.outbound.gate or ()] == [QOS_2 % 1, PUBCOMP % 4]
        await bench.quiet()
        assert await bench.sent() == pack((QOS_2, 1), (PUBCOMP, 4))


@run_async
async def test_what_waits_for_a_later_batch_is_not_refused_yet() -> None:
    async with running() as bench:
        first = bench.change()
        bench.after(first, PUBACK % 1)
        await bench.turn()
        bench.after(bench.change(), PUBACK % 2)
        bench.after(0, PUBACK % 3)
        bench.store.fail()
        bench.writer.finish()
        assert bench.refusals == [(PUBACK % 1, None)]
        assert await bench.sent() == b"!" + PUBACK % 1
        bench.writer.finish()
        assert bench.refusals[1:] == [(PUBACK % 2, None)]
        assert await bench.sent() == b"!" + PUBACK % 2 + PUBACK % 3


@run_async
async def test_a_refusal_that_ends_the_connection_harms_nobody_else() -> None:
    """3.x: all of its messages are taken back, nothing more is sent, and the journal goes on."""
    async with running(ends=True) as bench:
        batch = bench.change()
        bench.after(batch, PUBACK % 1, PUBCOMP % 2, QOS_1 % 3, PUBACK % 4, PUBREC % 5)
        bench.after(0, PUBACK % 6)
        other = bench.wait("other", batch)
        await bench.fails()
        assert [data for data, _ in bench.refusals] == [PUBACK % 1, PUBACK % 4, PUBREC % 5]
        assert bench.told == [(other.name, "refused")] and not bench.journal._waiting
        assert await bench.sent() == b"" and bench.budget.used == 0
        await bench.quiet()
        assert bench.journal.failure is None


@run_async
async def test_it_may_fail_again_and_again() -> None:
    async with running() as bench:
        bench.after(bench.change(), PUBCOMP % 1)
        for number in range(2, 5):
            bench.after(bench.change(), PUBACK % number)
            bench.store.fail()
            await bench.later(RETRY)
            bench.writer.finish()
            await turns()
        assert len(bench.refusals) == 3
        bench.store.mend()
        await bench.later(RETRY)
        await bench.quiet()
        assert await bench.sent() == PUBCOMP % 1 + b"".join(b"!" + PUBACK % number for number in range(2, 5))


# ---- the cork


@run_async
async def test_nothing_leaves_a_corked_socket() -> None:
    async with running() as bench:
        bench.outbound.put(QOS_0 % 1)
        bench.outbound.cork(bench.change())
        bench.outbound.put_control(b"SUBACK")
        bench.outbound.put(QOS_0 % 2)
        bench.outbound.put_control(PING)
        bench.outbound.flush()
        assert bench.outbound.corked
        assert await bench.sent() == QOS_0 % 1, "what was there before has left"
        await bench.commit()
        assert not bench.outbound.corked
        assert await bench.sent() == b"SUBACK" + QOS_0 % 2 + PING
        assert bench.times_resumed == 1 and bench.budget.used == 0


@run_async
async def test_a_cork_of_nothing_is_none() -> None:
    async with running() as bench:
        bench.outbound.cork(0)
        bench.outbound.put(b"x")
        assert await bench.sent() == b"x"


@run_async
async def test_the_gate_opens_behind_the_cork() -> None:
    async with running() as bench:
        bench.after(bench.change(), PUBACK % 1)
        await bench.turn()
        bench.outbound.cork(bench.change())
        bench.outbound.put_control(b"SUBACK")
        bench.writer.finish()
        assert await bench.sent() == b"", "the batch of the cork is under way"
        bench.writer.finish()
        assert await bench.sent() == b"SUBACK" + PUBACK % 1


@run_async
async def test_corks_wait_for_the_latest() -> None:
    async with running() as bench:
        bench.outbound.cork(bench.change())
        bench.outbound.put_control(b"1")
        await bench.turn()
        bench.outbound.cork(bench.change())
        bench.outbound.put_control(b"2")
        bench.outbound.cork(1)
        bench.writer.finish()
        assert await bench.sent() == b""
        bench.writer.finish()
        assert await bench.sent() == b"12"


@run_async
async def test_a_corked_socket_is_full_like_one_that_takes_no_more() -> None:
    async with running(maximum_outbound_packets=5) as bench:
        bench.outbound.cork(bench.change())
        for number in range(5):
            assert not bench.outbound.full
            bench.outbound.put(QOS_0 % number)
        assert bench.outbound.full and bench.budget.used == 5 * len(QOS_0 % 0)
        await bench.commit()
        await turns()
        assert not bench.outbound.full and bench.budget.used == 0 and bench.times_resumed == 1


@run_async
async def test_a_feed_begins_behind_the_cork() -> None:
    async with running() as bench:
        bench.outbound.cork(bench.change())
        bench.outbound.put_control(b"SUBACK")

        def feed() -> Any:
            for number in range(3 * FEED):
                bench.outbound.put(b"<%d>" % number)
                yield 1

        bench.outbound.feed("#", feed())
        assert await bench.sent() == b""
        await bench.commit()
        await turns(50)
        assert await bench.sent() == b"SUBACK" + b"".join(b"<%d>" % number for number in range(3 * FEED))


@pytest.mark.parametrize("low", [False, True])
@run_async
async def test_a_socket_that_was_full_when_it_was_corked_goes_on(low: bool) -> None:
    """What was flushed by the cork is more than the socket takes at once."""
    async with running(maximum_outbound_bytes=1024) as bench:
        bench.wire.stuck = True
        bench.outbound.put(b"x" * (10 if low else 2000))
        if low:
            bench.budget.take_anyway(bench.budget.maximum)
        bench.outbound.cork(bench.change())
        assert bench.outbound.blocked
        bench.outbound.put_control(b"SUBACK")
        await turns()
        bench.wire.sent()
        bench.wire.let_go()
        await turns()
        assert await bench.sent() == b""
        await bench.commit()
        assert await bench.sent() == b"SUBACK"
        if low:
            bench.budget.give(bench.budget.maximum)
        assert not bench.outbound.blocked
        bench.outbound.put(b"more")
        assert await bench.sent() == b"more"


@run_async
async def test_a_commit_that_fails_ends_a_corked_connection() -> None:
    """What it was to hear cannot be said, and nothing may come before it."""
    async with running() as bench:
        bench.outbound.cork(bench.change())
        bench.outbound.put_control(b"CONNACK")
        bench.after(bench.journal.number, PUBACK % 1)
        await bench.fails()
        assert bench.wire.aborted == 1 and await bench.sent() == b""
        assert not bench.journal._waiting
        await bench.quiet()


@run_async
async def test_close_while_corked() -> None:
    async with running() as bench:
        bench.outbound.cork(bench.change())
        bench.outbound.put_control(b"CONNACK")
        bench.outbound.end_writing()
        assert bench.budget.used == 0
        await bench.fails()
        assert bench.wire.aborted == 0 and await bench.sent() == b""
        assert not bench.journal._waiting
