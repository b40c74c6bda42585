"""A Connection whose socket takes bytes, or none of them, as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.transport.memory import MEMORY


class Wire:
    """Writes down each `write`. While `stuck` the bytes stay pending until `let_go`."""

    def __init__(self) -> None:
        self.peer = MEMORY
        self.writes: list[bytes] = []
        self.stuck = False
        self.held = 0  # bytes pending
        self.closed = self.aborted = 0  # how often
        self.first: Callable[[bytes], bytes] | None = None  # see Connection.tap
        self.incoming: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._drained = asyncio.Event()
        self._gone = asyncio.Event()

    async def read(self) -> bytes:
        while not (self.closed or self.aborted):
            data = await self.incoming.get()
            if isinstance(data, Exception):
                raise data
            if data and self.first is not None:
                data = self.first(data)
                if not data:
                    continue
            return data
        return b""

    def tap(self, take: Callable[[bytes], bytes] | None) -> None:
        self.first = take

    def write(self, data: bytes) -> None:
        if self.closed or self.aborted:
            return
        self.writes.append(data)
        if self.stuck:
            self.held += len(data)

    def pending(self) -> int:
        return self.held

    async def drain(self) -> None:
        while self.held:
            self._drained.clear()
            await self._drained.wait()

    def take(self, size: int) -> None:
        """The socket takes *size* bytes of what is pending."""
        self.held -= min(size, self.held)
        if not self.held:
            self._drained.set()

    def let_go(self) -> None:
        """The peer reads again."""
        self.stuck = False
        self.take(self.held)

    def close(self) -> None:
        self.closed += 1
        self._gone.set()

    def abort(self) -> None:
        self.aborted += 1
        self.take(self.held)
        self._gone.set()

    async def wait_closed(self) -> None:
        await self._gone.wait()

    def sent(self) -> bytes:
        """All that was written since the last look."""
        data = b"".join(self.writes)
        self.writes.clear()
        return data


async def turns(count: int = 5) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the loop go round until *condition* holds; it may take real I/O, but no time."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(what or "it never happens")
