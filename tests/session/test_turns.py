"""ClientTurns: one at a time for each ClientID, in the order asked for, and nothing left behind."""

from __future__ import annotations

import asyncio

import pytest

from broker.session.manager import ClientTurns
from tests.peer import run_async


class Room:
    """Takes turns and writes down who is inside; a visit lasts until `leave` is called for it."""

    def __init__(self) -> None:
        self.turns = ClientTurns()
        self.inside: list[str] = []
        self.history: list[str] = []
        self.doors: dict[str, asyncio.Event] = {}

    async def visit(self, client_id: str, name: str) -> None:
        self.doors[name] = asyncio.Event()
        async with self.turns.of(client_id):
            self.inside.append(name)
            self.history.append(name)
            try:
                await self.doors[name].wait()
            finally:
                self.inside.remove(name)

    def enter(self, client_id: str, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.visit(client_id, name))

    async def leave(self, name: str) -> None:
        self.doors[name].set()
        await breathe()


async def breathe() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@run_async
async def test_one_at_a_time_in_order() -> None:
    room = Room()
    tasks = [room.enter("c", name) for name in ("first", "second", "third")]
    await breathe()
    assert room.inside == ["first"]
    for name, following in (("first", ["second"]), ("second", ["third"]), ("third", [])):
        await room.leave(name)
        assert room.inside == following
    await asyncio.gather(*tasks)
    assert room.turns._waiting == {}, "only ids in use are held"


@run_async
async def test_other_clients_do_not_wait() -> None:
    room = Room()
    tasks = [room.enter(client_id, client_id) for client_id in "abc"]
    await breathe()
    assert room.inside == ["a", "b", "c"]
    for client_id in "abc":
        await room.leave(client_id)
    await asyncio.gather(*tasks)
    assert room.turns._waiting == {}


@run_async
async def test_without_a_rival_nothing_waits() -> None:
    turns = ClientTurns()
    entered = turns.of("c").__aenter__()
    with pytest.raises(StopIteration):
        entered.send(None)


@run_async
async def test_whoever_gives_up_waiting_is_passed_over() -> None:
    room = Room()
    first, second, third = (room.enter("c", name) for name in ("first", "second", "third"))
    await breathe()
    second.cancel()
    await breathe()
    assert second.cancelled() and room.inside == ["first"]
    await room.leave("first")
    assert room.inside == ["third"]
    await room.leave("third")
    await asyncio.gather(first, third)
    assert room.history == ["first", "third"]
    assert room.turns._waiting == {}


@run_async
async def test_cancelled_or_failing_inside_gives_the_turn_on() -> None:
    room = Room()
    first, second = room.enter("c", "first"), room.enter("c", "second")
    await breathe()
    first.cancel()
    await breathe()
    assert room.inside == ["second"]
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    with pytest.raises(ZeroDivisionError):
        async with room.turns.of("c"):
            raise ZeroDivisionError
    assert room.turns._waiting == {}


@run_async
async def test_cancelled_in_the_moment_its_turn_comes() -> None:
    room = Room()
    first, second, third = (room.enter("c", name) for name in ("first", "second", "third"))
    await breathe()
    room.doors["first"].set()
    await asyncio.sleep(0)  # first has left; the turn is given to second, which did not run yet
    second.cancel()
    await breathe()
    assert room.inside == ["third"]
    await room.leave("third")
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert room.turns._waiting == {}
