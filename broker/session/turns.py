"""ClientTurns: one CONNECT at a time for each ClientID."""

from __future__ import annotations

import asyncio
from collections import deque


class ClientTurns:
    """Serialises what may wait between "is there a session" and "it is mine now". Holds only ids in use."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # for ids whose turn somebody has

    def of(self, client_id: str) -> Turn:
        """Wait for the turn of *client_id*; turns are given in the order they were asked for."""
        return Turn(self._waiting, client_id)


class Turn:
    """`async with` it. Costs next to nothing while nobody else has it: every CONNECT takes one."""

    __slots__ = ("_client_id", "_waiting")

    def __init__(self, waiting: dict[str, deque[asyncio.Future[None]]], client_id: str) -> None:
        self._waiting = waiting
        self._client_id = client_id

    async def __aenter__(self) -> None:
        before = self._waiting.get(self._client_id)
        if before is None:
            self._waiting[self._client_id] = deque()
            return
        given = asyncio.get_running_loop().create_future()
        before.append(given)
        try:
            await given
        except BaseException:
            if given.done() and not given.cancelled():  # in this very moment
                self._give_on()
            given.cancel()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._give_on()

    def _give_on(self) -> None:
        before = self._waiting[self._client_id]
        while before:
            given = before.popleft()
            if not given.done():
                given.set_result(None)
                return
        del self._waiting[self._client_id]
