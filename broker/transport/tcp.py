"""TCP and Unix sockets by asyncio's transports: the portable way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from broker.transport.base import CHUNK, Octets, Peer, Reader, keep_memory


class TcpConnection(asyncio.BufferedProtocol):
    """One accepted TCP or Unix socket.

    The transport reads into *buffer*, which all connections of a listener share: what arrived is
    copied out before the next read, so no read pays for a large buffer of its own.
    """

    __slots__ = (
        "_buffer", "_chunks", "_closing", "_drained", "_eof", "_error", "_gone", "_linger", "_loop",
        "_lost", "_paused", "_reader", "_sink", "_timer", "_transport", "_unread", "_waiter", "peer",
    )  # fmt: skip

    cost = 2200

    def __init__(self, buffer: memoryview, linger: float, peer: Peer) -> None:
        """*linger* is in seconds."""
        self.peer = peer
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer
        self._linger = linger
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._unread = 0  # bytes in _chunks, never more than CHUNK
        self._paused = False  # the transport does not read
        self._eof = False
        self._closing = False
        self._lost = False
        self._error: Exception | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._reader: Reader | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Event | None = None  # these two exist only while somebody waits
        self._gone: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What the Connection is asked

    async def read(self) -> bytes:
        if not self.has_unread():
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._chunks:
            return self._unqueue()
        if self._error is not None and not self._closing and self._sink is None:
            raise ConnectionError(str(self._error)) from self._error
        return b""

    def attach(self, reader: Reader | None) -> None:
        self._reader = reader

    def has_unread(self) -> bool:
        return bool(self._chunks) or self._eof or self._closing or self._sink is not None

    def write(self, data: Octets) -> None:
        transport = self._transport
        if transport is None or self._closing or transport.is_closing():
            return
        transport.write(data)

    def pending(self) -> int:
        return 0 if self._transport is None or self._lost else self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        while self.pending():
            self._drained = self._drained or asyncio.Event()
            await self._drained.wait()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._sink = None
        self._stop_reading()
        if self._transport is None or self._lost:
            return
        self._start_timer()
        if not self.pending():
            self._end_writing(self._transport)

    def abort(self) -> None:
        self._closing = True
        self._sink = None
        self._stop_reading()
        if self._transport is not None and not self._lost:
            self._transport.abort()

    async def wait_closed(self) -> None:
        if not self._lost:
            self._gone = self._gone or asyncio.Event()
            await self._gone.wait()

    def divert(self, sink: Callable[[bytes], None]) -> None:
        if self._closing or self._lost:
            return
        unread, self._chunks, self._sink = self._chunks, [], sink
        self._start_timer()
        self._stop_reading()
        if self._eof:
            self.close()
        elif unread:
            sink(b"".join(unread))

    def _end_writing(self, transport: asyncio.Transport) -> None:
        """Nothing is pending. A full close with unread input would make the kernel send RST, which
        can destroy what was written last; so only our side ends, until the peer ends its own."""
        if self._eof or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer is gone already
            transport.abort()

    def _unqueue(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._unread = 0
        if self._paused:
            self._resume()
        return data

    def _stop_reading(self) -> None:
        self._chunks.clear()
        self._unread = 0
        if self._paused:
            self._resume()
        self.wake()

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None and not self._lost:
            self._transport.resume_reading()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._linger, self.abort)

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif self._reader is not None:
            self._reader.left()

    def _tell_drained(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set()

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # resume_writing then means: nothing pending

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[: CHUNK - self._unread] if self._unread else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        data = bytes(self._buffer[:nbytes])
        if nbytes >= CHUNK:
            keep_memory()
        if self._sink is not None:
            self._sink(data)
            return
        if not self._chunks and self._reader is not None:
            data = self._reader.take(data)
            if not data or self._closing:
                return
        self._chunks.append(data)
        self._unread += len(data)
        if self._unread >= CHUNK and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self.wake()

    def eof_received(self) -> bool:
        """The peer writes no more. True keeps our side open, so that answers can still leave."""
        self._eof = True
        self.wake()
        return not self._closing and self._sink is None

    def resume_writing(self) -> None:
        self._tell_drained()
        transport = self._transport
        if self._closing and transport is not None and not transport.is_closing():
            self._end_writing(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._eof = True
        self._error = None if exc is None else exc.with_traceback(None)  # its frames hold us
        if self._timer is not None:
            self._timer.cancel()
        self.wake()
        self._tell_drained()
        if self._gone is not None:
            self._gone.set()
