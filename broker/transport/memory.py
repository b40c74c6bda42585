"""Two Connections joined in memory: for tests and in-process clients."""

from __future__ import annotations

import asyncio
from collections import deque

from broker.transport.base import Accept, Connection, Octets, Peer, Reader, TransportOptions

INBOX = 64 * 1024  # bytes that a reader holds; what is written beyond is pending, as with TCP

MEMORY = Peer(address="memory", transport="memory", local=True, listener="memory:")


class _Flow:
    """One direction: bytes that were written and not read yet, and how it ended.

    Owned by both ends. The writer ends it with `end`; either side cuts it with `cut`.
    """

    __slots__ = (
        "_cut", "_drained", "_offering", "_unread", "_waiter", "chunks", "ended", "error", "reader", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.size = 0
        self._cut = False
        self._unread = False  # what is in chunks was offered to the Reader, or there was none
        self.ended = False  # no more bytes will be written
        self.error: str | None = None  # what the reader hears once the bytes are used up
        self.reader: Reader | None = None
        self._offering: asyncio.Handle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Event | None = None

    def put(self, data: Octets) -> None:
        if data and not self.ended:
            self.chunks.append(bytes(data))
            self.size += len(data)
            self._arrived()

    def pending(self) -> int:
        return max(0, self.size - INBOX)

    async def get(self) -> bytes:
        while not self.chunks:
            if self.error is not None:
                raise ConnectionResetError(self.error)
            if self.ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._unqueue()
        self._unread = self._unread and bool(self.chunks)
        return data

    async def drain(self) -> None:
        while self.pending():
            self._drained = self._drained or asyncio.Event()
            await self._drained.wait()

    def end(self) -> None:
        self.ended = True
        self._arrived()

    def cut(self, error: str | None = None) -> None:
        """Throw the bytes away and end."""
        self.chunks.clear()
        self.size = 0
        self._cut = True
        self.error = error
        self._tell_drained()
        self.ended = True
        self.wake()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif self.reader is not None:
            self.reader.left()

    def _arrived(self) -> None:
        if self.reader is None:
            self._unread = bool(self.chunks)
            self.wake()
        elif self._offering is None:  # a turn later, as with a socket: not within the writer's call
            self._offering = asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        self._offering = None
        while self.chunks and not self._unread and self.reader is not None:
            left = self.reader.take(self._unqueue())
            if left and not self._cut:
                self.chunks.appendleft(left)
                self.size += len(left)
                break
        self._unread = bool(self.chunks)
        if self.chunks or self.ended:
            self.wake()

    def _unqueue(self) -> bytes:
        """Up to INBOX bytes; a longer chunk is split."""
        parts: list[bytes] = []
        room = INBOX
        while self.chunks and room:
            chunk = self.chunks.popleft()
            if len(chunk) > room:
                self.chunks.appendleft(chunk[room:])
                chunk = chunk[:room]
            parts.append(chunk)
            room -= len(chunk)
        self.size -= INBOX - room
        self._tell_drained()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _tell_drained(self) -> None:
        if self._drained is not None and not self.pending():
            drained, self._drained = self._drained, None
            drained.set()


class MemoryConnection:
    """One end. Back-pressure as with TCP: 64 KiB wait at the reader, what is beyond is `pending`."""

    cost = 2200

    def __init__(self, incoming: _Flow, outgoing: _Flow, peer: Peer, linger: float) -> None:
        self.peer = peer
        self.other: MemoryConnection | None = None  # the other end; it is lost when this one aborts
        self._incoming = incoming
        self._outgoing = outgoing
        self._linger = linger  # seconds; a timer runs only while bytes are pending after close()
        self._closing = False
        self._gone = asyncio.Event()
        self._closer: asyncio.Task[None] | None = None

    async def read(self) -> bytes:
        return b"" if self._closing else await self._incoming.get()

    def attach(self, reader: Reader | None) -> None:
        self._incoming.reader = reader

    def has_unread(self) -> bool:
        return self._closing or bool(self._incoming.chunks) or self._incoming.ended

    def write(self, data: Octets) -> None:
        if not self._closing:
            self._outgoing.put(data)

    def pending(self) -> int:
        return self._outgoing.pending()

    async def drain(self) -> None:
        await self._outgoing.drain()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._incoming.cut()
        self._outgoing.end()
        if self._outgoing.pending():
            self._closer = asyncio.get_running_loop().create_task(self._finish())
        else:
            self._gone.set()

    def abort(self) -> None:
        """The other end reads ConnectionResetError."""
        if self._gone.is_set():
            return
        self._closing = True
        self._incoming.cut()
        self._outgoing.cut("the connection was aborted by its peer")
        self._gone.set()
        if self.other is not None:
            self.other._gone.set()

    async def wait_closed(self) -> None:
        await self._gone.wait()

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self._linger):
                await self._outgoing.drain()
        except TimeoutError:
            self.abort()
        self._gone.set()


def pipe(
    *, linger: float = 1.0, near: Peer = MEMORY, far: Peer = MEMORY
) -> tuple[MemoryConnection, MemoryConnection]:
    """Two Connections: what one writes the other reads. *near* is the peer the first one shows."""
    there, back = _Flow(), _Flow()
    first = MemoryConnection(back, there, near, linger)
    second = MemoryConnection(there, back, far, linger)
    first.other, second.other = second, first
    return first, second


class MemoryListener:
    """A listener without a socket: `connect` gives the client's end."""

    url = "memory:"
    encrypted = False
    local = True

    def __init__(self, options: TransportOptions, accept: Accept) -> None:
        self._linger = options.linger
        self._accept = accept
        self._open = False

    async def start(self) -> None:
        self._open = True

    async def stop(self) -> None:
        self._open = False

    def connect(self) -> Connection:
        """A new connection to this listener. Raises ConnectionRefusedError unless it was started."""
        if not self._open:
            raise ConnectionRefusedError("the memory listener is not started")
        client, server = pipe(linger=self._linger)
        self._accept(server)
        return client
