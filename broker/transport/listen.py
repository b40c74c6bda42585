"""Listen addresses: what `tcp://0.0.0.0:1883` and its like say, their sockets, and who is accepted there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import stat
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from broker.errors import ConfigError
from broker.transport import tls
from broker.transport.base import (
    CHUNK,
    Accept,
    Connection,
    Listener,
    Peer,
    RawConnection,
    TransportOptions,
    host_port,
    is_loopback,
)
from broker.transport.epoll import Poll
from broker.transport.memory import MemoryListener
from broker.transport.tcp import TcpConnection
from broker.transport.websocket import Door, Handler

UNSENT = 512 * 1024  # bytes that the kernel takes and does not send yet; by itself it takes megabytes
ACCEPT_BATCH = 64  # connections that one listening socket accepts in one turn of the loop
ACCEPT_PAUSE = 1.0  # seconds until the next try when there are no descriptors left
BIND_ATTEMPTS = 16  # for port 0 on several families, which must agree on one free port

log = logging.getLogger(__name__)

# Addresses

# The registered ports of MQTT. None is registered for MQTT over WebSocket: these two are customary.
DEFAULT_PORTS = {"tcp": 1883, "tls": 8883, "ws": 8083, "wss": 8084}
UNIX_PATH_MAXIMUM = 107  # bytes, what fits into sockaddr_un


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A listen address taken apart. *host* is empty for all interfaces of both families."""

    scheme: str  # tcp, tls, ws, wss or unix
    host: str = ""
    port: int = 0
    path: str = ""  # of the socket file, or of the URL for WebSocket

    @property
    def encrypted(self) -> bool:
        return self.scheme in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        """The URL; `parse_address` reads it again."""
        if self.scheme == "unix":
            return f"unix:{self.path}"
        return f"{self.scheme}://{host_port(self.host or '*', self.port)}{self.path}"


def parse_address(url: str) -> Address:
    """The Address in *url*: `tcp://`, `tls://`, `ws://`, `wss://` or `unix:/path`.

    A missing port is 1883, 8883, 8083 or 8084. Port 0 is any free one. A host that is missing or
    `*` is every interface, IPv4 and IPv6. Raises ConfigError.
    """
    if url.startswith("unix:"):
        return _parse_unix(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _bad(url, f"{error}; IPv6 goes into brackets, as in tcp://[::1]:1883") from None
    if parts.scheme not in DEFAULT_PORTS or "://" not in url:
        raise _bad(url, "it must begin with tcp://, tls://, ws://, wss:// or unix:")
    _check_parts(url, parts)
    host = parts.hostname or ""
    return Address(
        scheme=parts.scheme,
        host="" if host == "*" else host,
        port=DEFAULT_PORTS[parts.scheme] if port is None else port,
        path=parts.path,
    )


def _parse_unix(url: str) -> Address:
    path = url.removeprefix("unix:")
    if path.startswith("///"):
        path = path[2:]
    if not path or path.startswith("//") or path.endswith("/") or "\0" in path:
        raise _bad(url, "give the path of a socket file, as in unix:/run/pybroker.sock")
    if len(os.fsencode(path)) > UNIX_PATH_MAXIMUM:
        raise _bad(url, f"the path of a socket file has at most {UNIX_PATH_MAXIMUM} bytes")
    return Address(scheme="unix", path=path)


def _check_parts(url: str, parts: SplitResult) -> None:
    if parts.username is not None or parts.password is not None:
        raise _bad(url, "a listen address has no user name or password; leave out what is before @")
    if parts.query or parts.fragment:
        raise _bad(url, "a listen address has no ? and no #")
    if parts.path not in ("", "/") and parts.scheme in ("tcp", "tls"):
        raise _bad(url, "only ws:// and wss:// have a path; leave it out")
    if any(character.isspace() for character in url):
        raise _bad(url, "take out the white space")


def _bad(url: str, why: str) -> ConfigError:
    return ConfigError(f"listen address {url!r} cannot be used: {why}")


# Listeners


def listen(
    url: str, options: TransportOptions, accept: Accept, routes: Mapping[str, Handler] | None = None
) -> Listener:
    """A Listener for *url*, not started. *accept* gets each connection when it can be used.

    *routes* serve further paths of a ws:// or wss:// address. Raises ConfigError.
    """
    if url == MemoryListener.url:
        return MemoryListener(options, accept)
    address = parse_address(url)
    return SocketListener(address, options, accept, _prepare(address, options, routes))


def _prepare(
    address: Address, options: TransportOptions, routes: Mapping[str, Handler] | None
) -> Prepare | None:
    """What a connection goes through first; None when a plain socket is all."""
    context = options.ssl_context if address.encrypted else None
    if address.encrypted and context is None:
        raise ConfigError(
            f"listen address {str(address)!r} needs TLS: set a certificate and its key, or use "
            f"{'ws' if address.websocket else 'tcp'}://"
        )
    if not address.encrypted and not address.websocket:
        return None
    door = Door(options, options.websocket_path or address.path, routes) if address.websocket else None

    async def prepare(raw: RawConnection) -> Connection | None:
        connection = raw
        if context is not None:
            connection = await tls.handshake(raw, context, options.handshake_timeout)
        return connection if door is None else await door.admit(connection)

    return prepare


Prepare = Callable[[RawConnection], Awaitable[Connection | None]]


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
        self._by_epoll = uses_epoll(options.engine)
        self._poll: Poll | None = None  # what has our connections, unless asyncio has
        self._buffer = memoryview(bytearray(0 if self._by_epoll else CHUNK))
        self._sockets: list[socket.socket] = []
        self._admitting: set[asyncio.Task[None]] = set()
        self._socket_file: tuple[int, int] | None = None  # device and inode, to unlink no file but ours

    async def start(self) -> None:
        try:
            self._sockets = await self._bind()
            for sock in self._sockets:
                sock.listen(self._options.backlog)
            if self._by_epoll:
                loop, options, plain = asyncio.get_running_loop(), self._options, self._prepare is None
                self._poll = Poll(loop, self._peer, options.linger, options.turn, long=plain)
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
        if self._poll is not None:
            self._poll.release()
            self._poll = None
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
                descriptor, name = accept_from(sock)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("%s: cannot accept, trying again in %g s: %s", self.url, ACCEPT_PAUSE, error)
                loop.remove_reader(sock)
                loop.call_later(ACCEPT_PAUSE, self._watch, sock)
                return
            self._begin(descriptor, self.url if self._address.scheme == "unix" else name)

    def _begin(self, descriptor: int, name: str | tuple[Any, ...]) -> None:
        if len(self._admitting) >= self._options.maximum_handshakes:
            log.info("%s: too many handshakes at once, one connection dropped", self.url)
            os.close(descriptor)
            return
        if self._poll is None:
            address = name if isinstance(name, str) else host_port(name[0], name[1])
            self._spawn(self._connect(socket.socket(fileno=descriptor), address))
            return
        try:
            raw = self._poll.add(descriptor, name)
        except OSError as error:
            log.error("%s: cannot keep a connection: %s", self.url, error)
            return
        if self._prepare is None:
            self._hand_over(raw)
        else:
            self._spawn(self._admit(raw))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._admitting.add(task)
        task.add_done_callback(self._admitting.discard)

    async def _connect(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        raw = TcpConnection(self._buffer, self._options.linger, self._peer(address))
        await asyncio.get_running_loop().connect_accepted_socket(lambda: raw, sock)
        await self._admit(raw)

    async def _admit(self, raw: RawConnection) -> None:
        connection = raw if self._prepare is None else await self._run_prepare(self._prepare, raw)
        if connection is not None:
            self._hand_over(connection)

    def _peer(self, address: str) -> Peer:
        scheme = self._address.scheme
        local = scheme == "unix" or is_loopback(address.rpartition(":")[0].strip("[]"))
        return Peer(address=address, transport=scheme, local=local, listener=self.url)

    async def _run_prepare(self, prepare: Prepare, raw: RawConnection) -> Connection | None:
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


def uses_epoll(engine: str) -> bool:
    """Whether connections are those of epoll.py. Raises ConfigError."""
    if engine == "epoll" and not hasattr(select, "epoll"):
        raise ConfigError("transport.engine: this system has no epoll; choose auto or asyncio")
    return engine != "asyncio" and hasattr(select, "epoll")


def _set_options(sock: socket.socket) -> None:
    """What the sockets accepted from *sock* inherit: small packets leave at once, and a peer that does not
    read costs the machine as much as it may cost us, and no more."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS
    if option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, UNSENT)


def accept_from(sock: socket.socket) -> tuple[int, Any]:
    """A descriptor and its peer's name. Raises OSError.

    Not socket.accept(): to make a socket object and to take it apart again takes 2 of the 35 us of a
    connection from accept to close, all of it in Python.
    """
    if hasattr(sock, "_accept"):  # what socket.accept() itself calls
        descriptor, name = sock._accept()
        return descriptor, name
    accepted, name = sock.accept()
    return accepted.detach(), name


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
        _set_options(sock)
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
