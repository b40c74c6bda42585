"""A Connection whose socket takes bytes, or none of them, as the test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from broker.transport.base import Octets, Reader
from broker.transport.memory import MEMORY, MemoryConnection


class Incoming:
    """What the peer sent and nobody has read."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.unread: deque[bytes | Exception] = deque()
        self.arrival = asyncio.Event()

    async def arrived(self) -> None:
        """Wait for more, or for the end."""
        self.arrival.clear()
        await self.arrival.wait()

    def put_nowait(self, data: bytes | Exception) -> None:
        """*data* arrives; b"" is the end of the stream, an exception that of the network."""
        if data and isinstance(data, bytes) and not self.unread and self._wire.reader is not None:
            data = self._wire.reader.take(data)
            if not data:
                return
        self.unread.append(data)
        self._wire.tell()


class Wire:
    """Writes down each `write`. While `stuck` the bytes stay pending until `let_go`."""

    def __init__(self) -> None:
        self.peer = MEMORY
        self.cost = MemoryConnection.cost
        self.writes: list[bytes] = []
        self.stuck = False
        self.held = 0  # bytes pending
        self.closed = self.aborted = 0  # how often
        self.incoming = Incoming(self)
        self.reader: Reader | None = None
        self._drained = asyncio.Event()
        self._gone = asyncio.Event()

    async def read(self) -> bytes:
        while not self.has_unread():
            await self.incoming.arrived()
        data = b"" if self.closed or self.aborted else self.incoming.unread.popleft()
        if isinstance(data, Exception):
            raise data
        return data

    def attach(self, reader: Reader | None) -> None:
        self.reader = reader

    def has_unread(self) -> bool:
        return bool(self.incoming.unread or self.closed or self.aborted)

    def tell(self) -> None:
        """Somebody must read."""
        self.incoming.arrival.set()
        if self.reader is not None:
            self.reader.left()

    def write(self, data: Octets) -> None:
        if self.closed or self.aborted:
            return
        self.writes.append(bytes(data))
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
        self.tell()

    def abort(self) -> None:
        self.aborted += 1
        self.take(self.held)
        self._gone.set()
        self.tell()

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


class Most:
    """While it is entered: the most that *counter* grew by in one turn of the loop."""

    def __init__(self, counter: Callable[[], int]) -> None:
        self.counter, self.most, self.last = counter, 0, counter()

    async def __aenter__(self) -> Most:
        self.watching = asyncio.create_task(self.watch())
        await turns(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.look()
        self.watching.cancel()

    def look(self) -> None:
        now = self.counter()
        self.most, self.last = max(self.most, now - self.last), now

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0)
