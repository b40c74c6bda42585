"""What the socket tests of this folder share: a served listener, and raw clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.transport.base import Connection, Listener, TransportOptions
from broker.transport.listen import listen, parse_address
from broker.transport.websocket import Handler

PATIENCE = 20.0  # seconds, for what must happen
FOREVER = 100.0  # seconds, a linger time that no test can wait for
ABSENCE = 0.1  # seconds, for what must not


engine = "auto"  # of the listeners
new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own, with a limit."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE))

    return wrapper


@dataclass
class Server:
    listener: Listener
    accepted: asyncio.Queue[Connection] = field(default_factory=asyncio.Queue)

    @property
    def port(self) -> int:
        return parse_address(self.listener.url).port

    def where(self) -> tuple[socket.AddressFamily, Any]:
        """Family and name of the socket to connect to."""
        address = parse_address(self.listener.url)
        if address.scheme == "unix":
            return socket.AF_UNIX, address.path
        if ":" in address.host:
            return socket.AF_INET6, (address.host, address.port)
        return socket.AF_INET, (address.host or "127.0.0.1", address.port)

    async def dial(self, buffer: int = 0) -> socket.socket:
        """A connected raw socket; *buffer* bytes for its kernel buffers, 0 for the default."""
        family, name = self.where()
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, name)
        except OSError:
            sock.close()
            raise
        return sock

    async def pair(self, buffer: int = 0) -> tuple[Connection, socket.socket]:
        """The server's Connection and the client's raw socket."""
        sock = await self.dial(buffer)
        return await self.accepted.get(), sock

    async def streams(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname="localhost" if context else None
        )


@contextlib.asynccontextmanager
async def serving(
    url: str = "tcp://127.0.0.1:0",
    routes: Mapping[str, Handler] | None = None,
    accept: Callable[[Connection], None] | None = None,
    **options: Any,
) -> AsyncIterator[Server]:
    """A started listener. At the end it is stopped and what it accepted is aborted."""
    connections: list[Connection] = []

    def hand_over(connection: Connection) -> None:
        connections.append(connection)
        server.accepted.put_nowait(connection)

    given = TransportOptions(**{"linger": 0.3, "engine": engine, **options})
    server = Server(listen(url, given, accept or hand_over, routes))
    await server.listener.start()
    try:
        yield server
    finally:
        await server.listener.stop()
        for connection in connections:
            connection.abort()
            await connection.wait_closed()


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly *size* bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < size:
        piece = await asyncio.get_running_loop().sock_recv(sock, size - len(data))
        if not piece:
            break
        data += piece
    return data


async def receive_all(sock: socket.socket) -> bytes:
    """Everything up to the end of the stream."""
    pieces = []
    while piece := await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


async def read_size(connection: Connection, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await connection.read()
        if not piece:
            break
        data += piece
    return data


async def turns(count: int = 50) -> None:
    """Let the loop look at its sockets some times."""
    for _ in range(count):
        await asyncio.sleep(0)


class Tls:
    """A client's TLS over a raw socket, so that its records can be cut, bent and counted."""

    def __init__(self, made: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = made.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def records(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def opened(self, records: bytes) -> bytes:
        self.incoming.write(records)
        plain = b""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self.tls.read(1 << 16):
                plain += piece
        return plain


async def handshaken(server: Server, made: ssl.SSLContext) -> tuple[socket.socket, Tls]:
    loop, client = asyncio.get_running_loop(), Tls(made)
    sock = await server.dial()
    while True:
        try:
            client.tls.do_handshake()
        except ssl.SSLWantReadError:
            await send(sock, client.outgoing.read())
            client.incoming.write(await loop.sock_recv(sock, 1 << 16))
        else:
            await send(sock, client.outgoing.read())
            return sock, client
