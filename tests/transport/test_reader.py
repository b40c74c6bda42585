"""The Reader of every kind of Connection: what it gets, in which order, and when that ends."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker.transport.base import Connection
from broker.transport.memory import MemoryListener
from broker.transport.tls import server_context
from tests.transport.sockets import Tls, handshaken, read_size, receive, run, send, serving, turns
from tests.transport.test_websocket import BINARY, CLOSE, TEXT, masked, upgrade

pytestmark = pytest.mark.usefixtures("engine")

KINDS = ("tcp", "unix", "tls", "ws", "wss", "memory")
NETWORK = ("tcp", "tls", "ws", "wss")


@dataclass
class Line:
    """The client's end of a connection of any kind; *send* leaves in as few system calls as there are."""

    sock: socket.socket | None = None
    tls: Tls | None = None
    frames: bool = False
    memory: Connection | None = None

    async def send(self, data: bytes) -> None:
        if self.memory is not None:
            self.memory.write(data)
        else:
            await self.raw(masked(BINARY, data) if self.frames else data)

    async def raw(self, data: bytes) -> None:
        assert self.sock is not None
        await send(self.sock, self.tls.records(data) if self.tls else data)

    async def receive(self, size: int) -> bytes:
        if self.memory is not None:
            return await read_size(self.memory, size)
        assert self.sock is not None
        size += 2 * self.frames
        if self.tls is None:
            data = await receive(self.sock, size)
        else:
            data = b""
            while len(data) < size:
                data += self.tls.opened(await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16))
        return data[2 * self.frames :]

    def end(self) -> None:
        if self.memory is not None:
            self.memory.close()
        else:
            assert self.sock is not None
            self.sock.shutdown(socket.SHUT_WR)


@dataclass
class Tap:
    """A Reader beside a task that waits in `read`: notes what it is given, and leaves what *leave* says."""

    leave: Callable[[bytes], bytes] = lambda data: b""
    taken: list[bytes] = field(default_factory=list)
    given: asyncio.Event = field(default_factory=asyncio.Event)
    serving: bool = False

    def take(self, data: bytes) -> bytes:
        self.taken.append(data)
        self.given.set()
        return self.leave(data)

    def left(self) -> None:
        """Somebody reads all the time."""

    async def has(self, data: bytes) -> None:
        while b"".join(self.taken) != data:
            self.given.clear()
            await asyncio.wait_for(self.given.wait(), 5)


@dataclass
class Lines:
    folder: Path
    server: ssl.SSLContext
    client: ssl.SSLContext

    def url(self, kind: str) -> str:
        return {"unix": f"unix:{self.folder}/s", "memory": "memory:"}.get(kind, f"{kind}://127.0.0.1:0")

    @asynccontextmanager
    async def open(self, kind: str, **options: Any) -> AsyncIterator[tuple[Connection, Line]]:
        """The server's Connection, through its handshakes, and the client's end."""
        async with serving(self.url(kind), ssl_context=self.server, **options) as server:
            if isinstance(server.listener, MemoryListener):
                client = server.listener.connect()
                yield await server.accepted.get(), Line(memory=client)
                return
            line = Line()
            if kind in ("tls", "wss"):
                line.sock, line.tls = await handshaken(server, self.client)
            else:
                line.sock = await server.dial()
            with line.sock:
                if kind in ("ws", "wss"):
                    await line.raw(upgrade())
                    head = b""
                    while not head.endswith(b"\r\n\r\n"):
                        head += await line.receive(1)
                    line.frames = True
                yield await server.accepted.get(), line


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    folder, ca = tmp_path_factory.mktemp("lines"), trustme.CA()
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    client = ssl.create_default_context()
    ca.configure_trust(client)
    return Lines(folder, server_context(folder / "server.pem", folder / "server.pem"), client)


def reading(connection: Connection) -> asyncio.Task[bytes]:
    return asyncio.create_task(connection.read())


@pytest.mark.parametrize("kind", KINDS)
@run
async def test_the_reader_is_first_and_read_waits_on(lines: Lines, kind: str) -> None:
    async with lines.open(kind) as (connection, line):
        tap = Tap()
        connection.attach(tap)
        waiting = reading(connection)
        await turns(3)
        await line.send(b"one")
        await tap.has(b"one")
        await line.send(b"two")
        await tap.has(b"onetwo")
        await turns(5)
        assert not waiting.done()
        tap.leave = lambda data: data[1:]
        await line.send(b"three")
        assert await waiting == b"hree"
        connection.write(b"answer")
        assert await line.receive(6) == b"answer"


@pytest.mark.parametrize("kind", KINDS)
@run
async def test_the_end_of_the_stream(lines: Lines, kind: str) -> None:
    async with lines.open(kind) as (connection, line):
        tap = Tap()
        connection.attach(tap)
        waiting = reading(connection)
        await turns(3)
        await line.send(b"last words")
        line.end()
        assert await waiting == b""
        assert tap.taken == [b"last words"]
        assert await connection.read() == b""


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("kind", KINDS)
@run
async def test_the_reader_may_end_the_connection(lines: Lines, kind: str, end: str) -> None:
    async with lines.open(kind, linger=0.1) as (connection, line):

        def leave(data: bytes) -> bytes:
            getattr(connection, end)()
            return data

        tap = Tap(leave)
        connection.attach(tap)
        waiting = reading(connection)
        await turns(3)
        await line.send(b"the end")
        assert await waiting == b""
        assert await connection.read() == b""
        if line.memory is None and end == "close":
            await line.send(b"more")
            await turns()
        await connection.wait_closed()
        assert tap.taken == [b"the end"]


@pytest.mark.parametrize("kind", NETWORK)
@run
async def test_a_reset(lines: Lines, kind: str) -> None:
    async with lines.open(kind) as (connection, line):
        connection.attach(Tap())
        waiting = reading(connection)
        await turns(3)
        assert line.sock is not None
        line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sock.close()
        with pytest.raises(ConnectionError):
            await waiting


@pytest.mark.parametrize("left", [b"", b"left"])
@pytest.mark.parametrize("kind", ["ws", "wss"])
@run
async def test_a_websocket_that_ends_behind_the_reader(lines: Lines, kind: str, left: bytes) -> None:
    for opcode in (CLOSE, TEXT):
        async with lines.open(kind, linger=0.1) as (connection, line):
            tap = Tap(lambda data: left)
            connection.attach(tap)
            waiting = reading(connection)
            await turns(3)
            await line.raw(masked(BINARY, b"and") + masked(opcode, b"\x03\xe8"))
            if left:
                assert await waiting == left
                waiting = reading(connection)
            if opcode == CLOSE:
                assert await waiting == b""
            else:
                with pytest.raises(ConnectionError, match="text frame"):
                    await waiting
            assert tap.taken == [b"and"]


@pytest.mark.parametrize("left", [b"", b"left"])
@run
async def test_tls_that_ends_behind_the_reader(lines: Lines, left: bytes) -> None:
    for ending in ("notify", "noise"):
        async with lines.open("tls") as (connection, line):
            tap = Tap(lambda data: left)
            connection.attach(tap)
            waiting = reading(connection)
            await turns(3)
            assert line.tls is not None
            assert line.sock is not None
            data = line.tls.records(b"and")
            if ending == "notify":
                with pytest.raises(ssl.SSLWantReadError):
                    line.tls.tls.unwrap()
                data += line.tls.outgoing.read()
            else:
                data += b"\x17\x03\x03\x00\x20" + bytes(32)
            await send(line.sock, data)
            if left:
                assert await waiting == left
                waiting = reading(connection)
            if ending == "notify":
                assert await waiting == b""
            else:
                with pytest.raises(ConnectionError, match="TLS failed"):
                    await waiting
            assert tap.taken == [b"and"]


@run
async def test_a_reader_that_is_detached_within_the_call(lines: Lines) -> None:
    """What TLS has decrypted by then, and has not, goes to `read`."""
    for kind in KINDS:
        async with lines.open(kind) as (connection, line):

            def leave(data: bytes) -> bytes:
                connection.attach(None)
                return b""

            tap = Tap(leave)
            connection.attach(tap)
            waiting = reading(connection)
            await turns(3)
            whole = bytes(range(256)) * 4000
            sending = asyncio.create_task(line.send(whole))
            read = await waiting
            taken = tap.taken[0]
            assert len(tap.taken) == 1
            assert taken + read + await read_size(connection, len(whole) - len(taken) - len(read)) == whole
            await sending


# One without a task


@dataclass
class Seldom:
    """A Reader with a task only while there is something to read, as an MQTT client may be."""

    connection: Connection
    leave: Callable[[bytes], bytes] = lambda data: b""
    seen: list[bytes] = field(default_factory=list)  # taken or read, in order
    reads: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    failure: ConnectionError | None = None
    task: asyncio.Task[None] | None = None

    @property
    def serving(self) -> bool:
        return self.task is not None

    def take(self, data: bytes) -> bytes:
        if self.task is not None:
            return data
        left = self.leave(data)
        self.seen.append(data[: len(data) - len(left)])
        return left

    def left(self) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self.work())

    async def work(self) -> None:
        await turns(1)
        try:
            while self.connection.has_unread() and not self.ended.is_set():
                data = await self.connection.read()
                self.reads += bool(data)
                self.seen.append(data)
                if not data:
                    self.ended.set()
                await turns(1)
        except ConnectionError as error:
            self.failure = error
            self.ended.set()
        self.task = None

    async def has(self, data: bytes) -> None:
        for _ in range(5000):
            if b"".join(self.seen) == data:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(self.seen)


@pytest.mark.parametrize("kind", KINDS)
@run
async def test_a_reader_needs_no_task(lines: Lines, kind: str) -> None:
    async with lines.open(kind, linger=0.1) as (connection, line):
        reader = Seldom(connection)
        connection.attach(reader)
        await line.send(b"one")
        await reader.has(b"one")
        assert reader.task is None
        assert not connection.has_unread()
        reader.leave = lambda data: data[1:]
        await line.send(b"two")
        await reader.has(b"onetwo")
        await turns(5)
        assert (reader.reads, reader.task) == (1, None)
        reader.leave = lambda data: b""
        await line.send(b"three")
        await reader.has(b"onetwothree")
        assert reader.reads == 1
        line.end()
        await asyncio.wait_for(reader.ended.wait(), 5)
        assert reader.failure is None
        assert connection.has_unread()


@pytest.mark.parametrize("kind", KINDS)
@run
async def test_a_reader_has_everything_in_order(lines: Lines, kind: str) -> None:
    chance = random.Random(8)
    sent = [os.urandom(chance.choice((1, 30, 400, 20_000))) for _ in range(150)]
    async with lines.open(kind) as (connection, line):
        reader = Seldom(connection, lambda data: data[chance.choice((0, len(data) // 2, len(data))) :])
        connection.attach(reader)
        for data in sent:
            await line.send(data)
            await turns(chance.choice((0, 0, 3)))
        await reader.has(b"".join(sent))
        assert reader.reads > 0


@pytest.mark.parametrize("end", ["close", "abort", "reset"])
@pytest.mark.parametrize("kind", KINDS)
@run
async def test_a_reader_is_told_of_the_end(lines: Lines, kind: str, end: str) -> None:
    async with lines.open(kind, linger=0.1) as (connection, line):
        reader = Seldom(connection)
        connection.attach(reader)
        if end != "reset":
            getattr(connection, end)()
            connection.write(b"dropped")
        elif line.sock is not None:
            line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.sock.close()
        elif line.memory is not None:
            line.memory.abort()
        await asyncio.wait_for(reader.ended.wait(), 5)
        if end == "close" and line.sock is not None:
            await line.send(b"too late")
            await turns()
            assert b"".join(reader.seen) == b""
        if kind != "unix":  # which knows no reset
            assert (reader.failure is not None) == (end == "reset")


@pytest.mark.parametrize("kind", KINDS)
@run
async def test_what_comes_behind_unread_bytes_passes_the_reader_by(lines: Lines, kind: str) -> None:
    async with lines.open(kind) as (connection, line):
        tap = Tap(lambda data: data)
        connection.attach(tap)
        await line.send(b"one")
        await tap.has(b"one")
        await line.send(b"two")
        await turns()
        assert connection.has_unread()
        assert tap.taken == [b"one"]
        assert await read_size(connection, 6) == b"onetwo"
        await line.send(b"three")
        await tap.has(b"onethree")
        assert await connection.read() == b"three"


@run
async def test_close_notify_alone_is_something_to_read(lines: Lines) -> None:
    async with lines.open("tls") as (connection, line):
        reader = Seldom(connection)
        connection.attach(reader)
        assert line.tls is not None
        assert line.sock is not None
        with pytest.raises(ssl.SSLWantReadError):
            line.tls.tls.unwrap()
        await send(line.sock, line.tls.outgoing.read())
        await asyncio.wait_for(reader.ended.wait(), 5)
        assert reader.failure is None
