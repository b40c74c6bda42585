"""TCP and Unix sockets: listeners and their Connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, cast

from broker.transport.address import Address, host_port, is_loopback
from broker.transport.base import Accept, Connection, Peer, Take, TransportOptions

CHUNK = 64 * 1024  # bytes of one read, and the most that waits unread in one connection

UNSENT = 512 * 1024  # bytes that the kernel takes and does not send yet; by itself it takes megabytes
ACCEPT_BATCH = 64  # connections that one listening socket accepts in one turn of the loop
ACCEPT_PAUSE = 1.0  # seconds until the next try when there are no descriptors left
BIND_ATTEMPTS = 16  # for port 0 on several families, which must agree on one free port

log = logging.getLogger(__name__)


# Connections


class TcpConnection(asyncio.BufferedProtocol):
    """One accepted TCP or Unix socket.

    The transport reads into *buffer*, which all connections of a listener share: what arrived is
    copied out before the next read, so no read pays for a large buffer of its own.
    """

    __slots__ = (
        "_buffer", "_chunks", "_closing", "_drained", "_eof", "_error", "_gone", "_linger", "_loop",
        "_lost", "_paused", "_sink", "_take", "_timer", "_transport", "_unread", "_waiter", "peer",
    )  # fmt: skip

    peer: Peer

    def __init__(self, buffer: memoryview, linger: float) -> None:
        """*linger* is in seconds; *peer* is set by who made the transport."""
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
        self._take: Take | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Event | None = None  # these two exist only while somebody waits
        self._gone: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What the Connection is asked

    async def read(self) -> bytes:
        if not self._chunks and not (self._eof or self._closing or self._sink is not None):
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._chunks:
            return self._unqueue()
        if self._error is not None and not self._closing and self._sink is None:
            raise ConnectionError(str(self._error)) from self._error
        return b""

    def tap(self, take: Take | None) -> None:
        self._take = take

    def write(self, data: bytes) -> None:
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
        """Give what comes in to *sink* from now on; `read` is at its end.

        For a protocol above that closes with a handshake of its own. The linger time starts here;
        *sink* must not raise.
        """
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

    def _waits(self) -> bool:
        """Whether somebody is in `read`, not cancelled."""
        return self._waiter is not None and not self._waiter.done()

    def wake(self) -> None:
        """Make a waiting `read` return what there is, though it be nothing.

        For a protocol above, which was tapped and has more to tell.
        """
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

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
        if self._sink is not None:
            self._sink(data)
            return
        if self._take is not None and not self._chunks and self._waits():
            data = self._take(data)
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
        self._error = exc
        if self._timer is not None:
            self._timer.cancel()
        self.wake()
        self._tell_drained()
        if self._gone is not None:
            self._gone.set()


# Listeners

Prepare = Callable[[TcpConnection], Awaitable[Connection | None]]


class SocketListener:
    """Listens on one Address: as many sockets as its host name has addresses, or one socket file.

    With *prepare* each connection first goes through that coroutine (TLS, HTTP upgrade), in the task
    that admits it; it returns what *accept* gets, or None for a connection that it dealt with itself,
    and raises OSError (ssl.SSLError and TimeoutError are some) when the peer failed.
    """

    def __init__(
        self, address: Address, options: TransportOptions, accept: Accept, prepare: Prepare | None = None
    ) -> None:
        self.url = str(address)
        self.encrypted = address.encrypted
        self.local = address.scheme == "unix"
        self._address = address
        self._options = options
        self._accept = accept
        self._prepare = prepare
        self._buffer = memoryview(bytearray(CHUNK))
        self._sockets: list[socket.socket] = []
        self._admitting: set[asyncio.Task[None]] = set()
        self._socket_file: tuple[int, int] | None = None  # device and inode, to unlink no file but ours

    async def start(self) -> None:
        try:
            self._sockets = await self._bind()
            for sock in self._sockets:
                sock.listen(self._options.backlog)
        except OSError as error:
            await self.stop()
            raise OSError(error.errno, f"cannot listen on {self.url}: {error.strerror or error}") from error
        for sock in self._sockets:
            self._watch(sock)

    async def stop(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        self._unlink()
        await asyncio.sleep(0)  # every task has begun, so it closes its socket when it is cancelled
        tasks = tuple(self._admitting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _bind(self) -> list[socket.socket]:
        address = self._address
        if address.scheme == "unix":
            sock = bind_unix(address.path)
            self._socket_file = _inode(address.path)
            return [sock]
        sockets = await bind_tcp(address.host, address.port)
        names = [sock.getsockname() for sock in sockets]
        self.url = str(replace(address, port=names[0][1]))
        self.local = all(is_loopback(name[0]) for name in names)
        return sockets

    def _unlink(self) -> None:
        ours, self._socket_file = self._socket_file, None
        if ours is not None and ours == _inode(self._address.path):
            with contextlib.suppress(OSError):
                os.unlink(self._address.path)

    def _watch(self, sock: socket.socket) -> None:
        if sock in self._sockets:
            asyncio.get_running_loop().add_reader(sock, self._accept_ready, sock)

    def _accept_ready(self, sock: socket.socket) -> None:
        """Not asyncio's Server: stopped in the wrong turn, that one forgets an accepted socket."""
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_BATCH):
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("%s: cannot accept, trying again in %g s: %s", self.url, ACCEPT_PAUSE, error)
                loop.remove_reader(sock)
                loop.call_later(ACCEPT_PAUSE, self._watch, sock)
                return
            if len(self._admitting) >= self._options.maximum_handshakes:
                log.info("%s: too many handshakes at once, one connection dropped", self.url)
                accepted.close()
                continue
            task = loop.create_task(self._admit(accepted))
            self._admitting.add(task)
            task.add_done_callback(self._admitting.discard)

    async def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if self._address.scheme != "unix":
            _bound_unsent(sock)
        transport, raw = await asyncio.get_running_loop().connect_accepted_socket(self._protocol, sock)
        raw.peer = self._peer(transport)
        connection = raw if self._prepare is None else await self._run_prepare(self._prepare, raw)
        if connection is not None:
            self._hand_over(connection)

    def _protocol(self) -> TcpConnection:
        return TcpConnection(self._buffer, self._options.linger)

    def _peer(self, transport: asyncio.BaseTransport) -> Peer:
        scheme = self._address.scheme
        if scheme == "unix":
            return Peer(address=self.url, transport=scheme, local=True, listener=self.url)
        name = transport.get_extra_info("peername") or ("", 0)  # missing when the peer is gone already
        return Peer(
            address=host_port(name[0], name[1]),
            transport=scheme,
            local=is_loopback(name[0]),
            listener=self.url,
        )

    async def _run_prepare(self, prepare: Prepare, raw: TcpConnection) -> Connection | None:
        try:
            return await prepare(raw)
        except OSError as error:
            log.debug("%s: handshake with %s failed: %s", self.url, raw.peer.address, error)
            raw.close()
        except asyncio.CancelledError:
            raw.abort()
            raise
        except Exception:
            log.exception("%s: handshake with %s failed", self.url, raw.peer.address)
            raw.abort()
        return None

    def _hand_over(self, connection: Connection) -> None:
        try:
            self._accept(connection)
        except Exception:
            log.exception("%s: cannot accept %s", self.url, connection.peer.address)
            connection.abort()


# Sockets


def _bound_unsent(sock: socket.socket) -> None:
    """A peer that does not read costs the machine as much as it may cost us, and no more."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS
    if option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, UNSENT)


async def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """A bound socket for each address of *host*, all on one port. Raises OSError."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )
    places = list(dict.fromkeys((family, name) for family, _, _, _, name in infos))
    for _ in range(BIND_ATTEMPTS - 1):
        try:
            return _bind_places(places, port)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE:
                raise
    return _bind_places(places, port)


def _bind_places(places: Iterable[tuple[int, Any]], port: int) -> list[socket.socket]:
    """Families that this machine does not have are left out, unless nothing remains."""
    sockets: list[socket.socket] = []
    missing = OSError(errno.EADDRNOTAVAIL, "the host has no address here")
    try:
        for family, name in places:
            try:
                sockets.append(_bind_one(family, (name[0], port, *name[2:])))
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = error
                continue
            port = sockets[0].getsockname()[1]
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise missing
    return sockets


def _bind_one(family: int, name: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(name)
    except OSError:
        sock.close()
        raise
    return sock


def bind_unix(path: str) -> socket.socket:
    """A socket bound to *path*; a socket file that nothing answers on is replaced. Raises OSError."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    return sock


def _remove_stale(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "a file that is no socket has this name; remove it or choose another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:  # its backlog is full, so somebody listens
            pass
    raise OSError(errno.EADDRINUSE, "another process answers on this socket")


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
