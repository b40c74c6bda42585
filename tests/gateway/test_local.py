"""Subscriptions of the program that embeds the broker."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from broker import Message
from broker.gateway.local import LocalSubscription
from broker.store.budget import ByteBudget
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription
from tests.peer import run_async
from tests.wire import turns

ANY = Subscription("#")


class Bench:
    """One subscription of the program; *ended* says how often the broker was told that it is over."""

    def __init__(self, maximum: int = 3, budget: int = 1000) -> None:
        self.budget = ByteBudget(budget)
        self.drops: list[tuple[str, bytes, str]] = []
        self.ended: list[LocalSubscription] = []
        self.local = LocalSubscription("$local/1", maximum, self.budget, self._dropped, self.ended.append)

    def _dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        assert message is not None
        self.drops.append((client_id, message.payload, reason))

    def deliver(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.local.deliver(Message("t", payload), ANY)


async def rest(messages: AsyncIterator[Message]) -> list[bytes]:
    return [message.payload async for message in messages]


@run_async
async def test_messages_in_order_those_that_wait_first() -> None:
    bench = Bench()
    bench.deliver(b"1", b"2")
    messages = aiter(bench.local)
    assert [(await anext(messages)).payload for _ in range(2)] == [b"1", b"2"]
    waiting = asyncio.create_task(anext(messages))
    await turns()
    assert not waiting.done()
    bench.deliver(b"3", b"4")
    assert (await asyncio.wait_for(waiting, 1)).payload == b"3"
    assert (await anext(messages)).payload == b"4"
    assert bench.budget.used == 0
    bench.local.close()


@run_async
async def test_a_program_that_does_not_keep_up_loses_the_newest() -> None:
    bench = Bench(maximum=2)
    bench.deliver(b"1", b"2", b"3", b"4")
    assert bench.drops == [("$local/1", b"3", "queue_full"), ("$local/1", b"4", "queue_full")]
    messages = aiter(bench.local)
    assert (await anext(messages)).payload == b"1"
    bench.deliver(b"5")
    bench.local.close()
    assert await rest(messages) == [b"2", b"5"]


@run_async
async def test_what_waits_counts_in_the_byte_budget() -> None:
    bench = Bench(maximum=100, budget=10)
    bench.deliver(b"123", b"4567", b"x")
    assert (bench.budget.used, bench.drops) == (9, [("$local/1", b"x", "memory")])
    messages = aiter(bench.local)
    await anext(messages)
    assert bench.budget.used == 5
    bench.local.close()
    assert bench.budget.used == 0
    assert await rest(messages) == [b"4567"]
    assert bench.budget.used == 0, "given back once"


@pytest.mark.parametrize("waiting", [0, 1, 2, 3])
def test_turn(waiting: int) -> None:
    bench = Bench(maximum=3)
    bench.deliver(*[b"x"] * waiting)
    assert bench.local.turn(Message("t"), ANY) == (Turn.READY if waiting < 3 else Turn.REFUSES)


@run_async
async def test_close_gives_what_waits_and_then_ends() -> None:
    bench = Bench()
    bench.deliver(b"1", b"2")
    bench.local.close()
    bench.local.close()
    assert bench.ended == [bench.local]
    assert await rest(aiter(bench.local)) == [b"1", b"2"]
    assert await rest(aiter(bench.local)) == []
    assert bench.ended == [bench.local]


@run_async
async def test_close_wakes_whoever_waits() -> None:
    bench = Bench()
    waiting = asyncio.create_task(rest(aiter(bench.local)))
    await turns()
    bench.local.close()
    assert await asyncio.wait_for(waiting, 1) == []


@run_async
async def test_leaving_its_block_ends_it() -> None:
    bench = Bench()
    with pytest.raises(ZeroDivisionError):
        async with bench.local as local:
            assert local is bench.local and bench.ended == []
            raise ZeroDivisionError
    assert bench.ended == [bench.local]


@run_async
async def test_leaving_the_loop_ends_it() -> None:
    bench = Bench()
    bench.deliver(b"1", b"2")
    async for _ in bench.local:
        break
    gc.collect()
    await turns()
    assert bench.ended == [bench.local]
    assert bench.budget.used == 0


@run_async
async def test_closing_the_iterator_ends_it() -> None:
    bench = Bench()
    bench.deliver(b"1")
    messages = aiter(bench.local)
    await anext(messages)
    await messages.aclose()  # type: ignore[attr-defined]
    assert bench.ended == [bench.local]


@run_async
async def test_a_task_that_is_cancelled_while_it_waits_ends_it() -> None:
    bench = Bench()
    waiting = asyncio.create_task(rest(aiter(bench.local)))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled() and bench.ended == [bench.local]
    bench.deliver(b"late")  # nobody is woken, nothing fails


@run_async
async def test_a_timeout_for_one_message_and_the_next_one() -> None:
    """The pattern `wait_for(anext(...))` ends the iteration, as with every async generator."""
    bench = Bench()
    messages = aiter(bench.local)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(messages)
    with pytest.raises(StopAsyncIteration):
        await anext(messages)
    assert bench.ended == [bench.local]
