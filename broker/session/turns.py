"""ClientTurns: one CONNECT at a time for each ClientID."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ClientTurns:
    """Serialises what may wait between "is there a session" and "it is mine now". Holds only ids in use."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, client_id: str) -> AsyncIterator[None]:
        """Wait for the turn of *client_id*; turns are given in the order they were asked for."""
        lock, users = self._locks.get(client_id) or (asyncio.Lock(), 0)
        self._locks[client_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[client_id]
            if users == 1:
                del self._locks[client_id]
            else:
                self._locks[client_id] = (lock, users - 1)
