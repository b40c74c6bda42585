"""What epoll.py does beyond what every Connection does: turns, watching, and the end of the Poll."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker.errors import ConfigError
from broker.transport import epoll, tcp
from broker.transport.base import CHUNK, Awake, Connection, TransportOptions, Turn
from broker.transport.epoll import EVENTS, LONG, READ, TURN, EpollConnection, Poll
from broker.transport.listen import SocketListener, listen
from broker.transport.tcp import TcpConnection
from tests.peer import run_async
from tests.transport.sockets import FOREVER, read_size, receive, run, send, serving, turns

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's")

T = TypeVar("T")
BIG = bytes(range(256)) * (32 << 10)  # 8 MiB


class Eager:
    """A Reader that takes everything, by a function that gets its connection too."""

    serving = False

    def __init__(self, connection: Connection, work: Callable[[Connection, bytes], None]) -> None:
        self.connection, self.work = connection, work

    def take(self, data: bytes) -> bytes:
        self.work(self.connection, data)
        return b""

    def left(self) -> None:
        pass


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until_reset(connection: Connection) -> None:
    """Wait for the peer's reset without a turn of the loop, in which it would be read."""
    poll = select.poll()
    poll.register(connection.descriptor, select.POLLHUP)  # type: ignore[attr-defined]
    assert poll.poll(5000)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize(("engine", "kind"), [("epoll", EpollConnection), ("asyncio", TcpConnection)])
@run
async def test_the_engine_is_chosen(engine: str, kind: type) -> None:
    for name in (engine, "auto") if kind is EpollConnection else (engine,):
        async with serving(engine=name) as server:
            connection, sock = await server.pair()
            sock.close()
            assert type(connection) is kind


def test_a_system_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(ConfigError, match="this system has no epoll; choose auto or asyncio"):
        listen("tcp://127.0.0.1:0", TransportOptions(engine="epoll"), Connection.abort)
    assert listen("tcp://127.0.0.1:0", TransportOptions(), Connection.abort)


@run
async def test_what_the_peer_said_before_it_went_is_read_though_a_write_failed() -> None:
    async with serving(engine="epoll") as server:
        connection, sock = await server.pair()
        await send(sock, b"last words")
        reset(sock)
        until_reset(connection)
        for _ in range(3):
            connection.write(b"into the void")
        assert connection.pending() == 0
        await connection.drain()
        assert await connection.read() == b"last words"
        with pytest.raises(ConnectionError):
            await connection.read()
        await connection.wait_closed()


@run
async def test_a_write_that_fails_when_nothing_more_can_come_is_the_end() -> None:
    async with serving(engine="epoll") as server:
        connection, sock = await server.pair()
        sock.shutdown(socket.SHUT_WR)
        assert await connection.read() == b""
        reset(sock)
        until_reset(connection)
        connection.write(b"into the void")
        await connection.wait_closed()


@run
async def test_a_write_that_fails_drains_though_nobody_reads() -> None:
    async with serving(engine="epoll") as server:
        connection, sock = await server.pair()
        sending = asyncio.create_task(send(sock, BIG))
        connection.write(BIG)
        await turns()
        sending.cancel()
        await turns(2)
        draining = asyncio.create_task(connection.drain())
        reset(sock)
        await draining
        assert connection.pending() == 0
        assert len(await connection.read()) == CHUNK


@run
async def test_no_connection_takes_more_of_a_turn_than_one_full_read() -> None:
    order: list[int] = []

    async with serving(engine="epoll") as server:
        pairs = [await server.pair() for _ in range(3)]
        for number, (connection, _) in enumerate(pairs):
            connection.attach(Eager(connection, lambda _, data, n=number: order.append(n)))
        for _, sock in pairs:
            sock.send(BIG[: 4 * CHUNK])
        await turns(10)
        for _, sock in pairs:
            sock.close()
        assert [set(order[at : at + 3]) for at in (0, 3)] == [{0, 1, 2}] * 2


@pytest.mark.parametrize(
    ("name", "most", "expected"),
    [
        ("ENOUGH", 64, ["first", "second", "end"]),
        ("ENOUGH", 1, ["first", "end", "second", "end"]),
        ("ENOUGH_BYTES", len(b"first"), ["first", "end", "second", "end"]),
        ("ENOUGH_BYTES", len(b"first") + 1, ["first", "second", "end"]),
    ],
)
@run
async def test_who_is_ready_by_then_is_read_in_the_same_turn(
    name: str, most: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoll, name, most)
    turn, happened = Turn(), list[str]()

    async with serving(engine="epoll", turn=turn) as server:
        (first, first_sock), (second, second_sock) = [await server.pair() for _ in range(2)]

        def note(connection: Connection, data: bytes) -> None:
            happened.append(data.decode())
            turn.at_end(lambda: happened.append("end") if happened[-1:] != ["end"] else None)
            if connection is first:
                second_sock.send(b"second")

        for connection in (first, second):
            connection.attach(Eager(connection, note))
        first_sock.send(b"first")
        await turns(10)
        assert happened == expected
        first_sock.close()
        second_sock.close()


class Wakeful(Awake):
    """Looks as often as it was told to; before each look something is done."""

    def __init__(self, *before: Callable[[], object]) -> None:
        super().__init__(0)
        self.before = list(before)

    def look(self, find: Callable[[], Sequence[T]]) -> Sequence[T]:
        if not self.before:
            return ()
        self.before.pop(0)()
        return find()


@run
async def test_what_comes_while_it_stays_awake_is_read_by_the_same_call_but_in_another_turn() -> None:
    happened = list[str]()
    async with serving(engine="epoll", turn=(turn := Turn())) as server:
        connection, sock = await server.pair()

        def note(connection: Connection, data: bytes) -> None:
            happened.append(data.decode())
            turn.at_end(lambda: happened.append("end"))

        connection.attach(Eager(connection, note))
        loop = asyncio.get_running_loop()
        turn.awake = Wakeful(lambda: loop.call_soon(happened.append, "loop"), lambda: sock.send(b"never"))
        turn.awake.before.insert(0, lambda: sock.send(b"second"))
        sock.send(b"first")
        await turns(10)
        assert happened == ["first", "end", "second", "end", "loop"], "then the loop has its turn"
        sock.close()


@pytest.mark.parametrize("how", ["leaves", "serving", "nobody"])
@run
async def test_it_falls_asleep_at_once_where_a_task_has_something_to_do(how: str) -> None:
    """Who is served by a task, or reads by itself, waits for the loop."""
    async with serving(engine="epoll", turn=(turn := Turn())) as server:
        connection, sock = await server.pair()
        reader = Picky()
        if how != "nobody":
            connection.attach(reader)
        asked = list[str]()
        turn.awake = Wakeful(lambda: asked.append("first"), lambda: asked.append("second"))
        reader.leaves, reader.serving = int(how == "leaves"), how == "serving"
        sock.send(b"x")
        await turns(10)
        assert not asked
        assert how == "serving" or await connection.read() == b"x"
        reader.leaves, reader.serving = 0, False
        if how != "nobody":
            sock.send(b"y")
            await turns(10)
            assert asked == ["first"]
        sock.close()


@run
async def test_outside_of_a_turn_its_end_is_that_of_the_loop_s() -> None:
    turn, happened = Turn(), list[str]()
    turn.at_end(lambda: happened.append("later"))
    assert happened == []
    await asyncio.sleep(0)
    assert happened == ["later"]
    turn.begin()
    turn.at_end(lambda: happened.append("at its end"))
    turn.at_end(lambda: turn.at_end(lambda: happened.append("later still")))
    await asyncio.sleep(0)
    assert happened == ["later"], "it goes on"
    turn.end()
    assert happened == ["later", "at its end"]
    await asyncio.sleep(0)
    assert happened == ["later", "at its end", "later still"]


@run
async def test_a_turn_ends_though_a_poll_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with serving(engine="epoll", turn=turn) as server:
        connection, sock = await server.pair()
        monkeypatch.setattr(epoll, "log", None)  # so that not even that is told

        def fail(connection: Connection, data: bytes) -> None:
            raise ValueError

        connection.attach(Eager(connection, fail))
        sock.send(b"x")
        await turns(5)
        assert not turn._reading
        sock.close()


class Picky:
    """A Reader that leaves what it is told to, and what it was offered."""

    def __init__(self) -> None:
        self.leaves, self.serving, self.sizes = 0, False, list[int]()

    def take(self, data: bytes) -> bytes:
        self.sizes.append(len(data))
        return data[max(0, len(data) - self.leaves) :]

    def left(self) -> None:
        pass


class Flood:
    """As many bytes as anybody reads, in place of the system's `read`; and connections to read them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, long: bool = True) -> None:
        self.poll = Poll(asyncio.get_running_loop(), lambda address: None, 1.0, Turn(), long)  # type: ignore[arg-type, return-value]
        self.most = 1 << 30
        self.connections: list[EpollConnection] = []
        self._sockets: list[socket.socket] = []
        monkeypatch.setattr(epoll, "read", lambda _, size: bytes(min(size, self.most)))

    def connection(self) -> tuple[EpollConnection, Picky]:
        near, far = socket.socketpair()
        self._sockets.append(far)
        connection, reader = self.poll.add(near.detach(), ""), Picky()
        connection.attach(reader)
        self.connections.append(connection)
        return connection, reader

    def close(self) -> None:
        for connection in self.connections:
            connection.abort()
        for sock in self._sockets:
            sock.close()
        assert self.poll._fast == []


@run
async def test_who_is_done_with_a_full_read_gets_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = Flood(monkeypatch)
    connection, reader = flood.connection()
    for most in (CHUNK - 1, 1 << 30, 1 << 30, CHUNK // 4, 1 << 30, CHUNK // 4 - 1, 1 << 30):
        flood.most = most
        connection.receive()
    assert reader.sizes == [CHUNK - 1, CHUNK, LONG, CHUNK // 4, LONG, CHUNK // 4 - 1, CHUNK]
    flood.close()


@run
async def test_who_leaves_some_or_is_not_done_with_it_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = Flood(monkeypatch)
    connection, reader = flood.connection()
    reader.serving = True
    connection.receive()
    connection.receive()
    reader.serving = False
    connection.receive()
    reader.serving = True
    connection.receive()
    connection.receive()
    assert reader.sizes == [CHUNK, CHUNK, CHUNK, LONG, CHUNK]
    reader.serving = False
    connection.receive()
    reader.leaves = 1
    connection.receive()
    assert len(await connection.read()) == 1
    reader.leaves = 0
    connection.receive()
    assert reader.sizes[5:] == [CHUNK, LONG, CHUNK]
    flood.close()


@pytest.mark.parametrize("engine", ["epoll", "asyncio"])
@run
async def test_memory_is_kept_from_the_first_full_read_on(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    for module in (epoll, tcp):
        monkeypatch.setattr(module, "keep_memory", lambda: kept.append(True))
    async with serving(engine=engine) as server:
        connection, sock = await server.pair()
        await send(sock, b"x")
        assert await connection.read() == b"x" and not kept
        connection.attach(Eager(connection, lambda connection, data: None))
        sending = asyncio.ensure_future(send(sock, BIG))
        while not kept:
            await asyncio.sleep(0)
        await sending
        sock.close()


@run
async def test_who_does_not_take_what_is_written_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = Flood(monkeypatch)
    connection, reader = flood.connection()
    connection.receive()
    connection.write(BIG)
    assert connection.pending()
    connection.receive()
    connection.receive()
    assert reader.sizes == [CHUNK, LONG, CHUNK]
    flood.close()


@run
async def test_behind_a_long_read_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = Flood(monkeypatch)
    connection, reader = flood.connection()
    connection.receive()
    reader.leaves = LONG
    connection.receive()
    connection.receive()
    assert not connection._state & READ and reader.sizes == [CHUNK, LONG]
    assert len(await connection.read()) == LONG and connection._state & READ
    flood.close()


@run
async def test_few_hold_much_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that hold nothing make room for others; those that do, do not."""
    monkeypatch.setattr(epoll, "MOST_FAST", 2)
    flood = Flood(monkeypatch)
    pairs = [flood.connection() for _ in range(4)]
    for connection, reader in pairs[:2]:
        connection.receive()
        reader.leaves = LONG
        connection.receive()
    pairs[2][0].receive()
    pairs[2][0].receive()
    assert [reader.sizes[-1] for _, reader in pairs[:3]] == [LONG, LONG, CHUNK]
    await pairs[0][0].read()
    pairs[1][1].serving = True
    await pairs[1][0].read()
    for connection, _ in pairs[2:]:
        connection.receive()
        connection.receive()
    assert [reader.sizes[-1] for _, reader in pairs[2:]] == [LONG, LONG], "the first of them made room"
    pairs[2][0].receive()
    assert pairs[2][1].sizes[-1] == CHUNK
    flood.close()


@run
async def test_who_comes_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = Flood(monkeypatch)
    connection, reader = flood.connection()
    for most in (1 << 30, 1) * 2:
        flood.most = most
        connection.receive()
    assert reader.sizes == [CHUNK, 1] * 2 and flood.poll._fast == [connection]
    flood.close()


@run
async def test_nobody_who_is_gone_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = Flood(monkeypatch)
    connection, _ = flood.connection()
    connection.attach(Eager(connection, lambda connection, data: connection.abort()))
    connection.receive()
    assert len(flood.poll._fast) == 0
    other, _ = flood.connection()
    other.receive()
    assert len(flood.poll._fast) == 1
    other.abort()
    assert len(flood.poll._fast) == 0
    flood.close()


@run
async def test_what_has_frames_around_it_gets_no_long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unread there is the business of whoever takes the frames off."""
    flood = Flood(monkeypatch, long=False)
    connection, reader = flood.connection()
    connection.receive()
    connection.receive()
    assert reader.sizes == [CHUNK, CHUNK]
    flood.close()
    for url, long in (("ws://127.0.0.1:0", False), ("tcp://127.0.0.1:0", True)):
        async with serving(url=url, engine="epoll") as server:
            assert isinstance(server.listener, SocketListener) and server.listener._poll is not None
            assert bool(server.listener._poll._most_fast) is long


@run
async def test_one_may_end_others_within_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    connections: list[Connection] = []
    taken: list[Connection] = []

    def end_all(connection: Connection, data: bytes) -> None:
        taken.append(connection)
        for other in connections:
            other.abort()

    async with serving(engine="epoll") as server:
        pairs = [await server.pair() for _ in range(5)]
        connections += [connection for connection, _ in pairs]
        for connection in connections:
            connection.attach(Eager(connection, end_all))
        for _, sock in pairs:
            sock.send(b"x")
        await turns()
        assert len(taken) == 1
        for connection, sock in pairs:
            await connection.wait_closed()
            sock.close()
    assert caplog.records == []


@run
async def test_a_reader_that_raises_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def fail(connection: Connection, data: bytes) -> None:
        raise RuntimeError("no")

    async with serving(engine="epoll") as server:
        first, one = await server.pair()
        second, two = await server.pair()
        with one, two:
            first.attach(Eager(first, fail))
            second.attach(Eager(second, lambda connection, data: connection.write(data)))
            await send(one, b"x")
            await send(two, b"echo")
            assert await receive(two, 4) == b"echo"
            assert await receive(one, 1) == b""
    assert [record.getMessage() for record in caplog.records] == [
        f"{first.peer.address}: unexpected error, connection dropped"
    ]


@run
async def test_more_connections_than_one_turn_looks_at() -> None:
    async with serving(engine="epoll", backlog=2 * TURN) as server:
        pairs = [await server.pair() for _ in range(TURN + 50)]
        for connection, _ in pairs:
            connection.attach(Eager(connection, lambda connection, data: connection.write(data)))
        for _, sock in pairs:
            sock.send(b"x")
        for _, sock in pairs:
            assert await receive(sock, 1) == b"x"
            sock.close()


@run
async def test_nothing_is_watched_without_need() -> None:
    """Reading stops at 64 KiB, at the end of the stream, and writing is watched only while it is blocked."""
    async with serving(engine="epoll", linger=FOREVER) as server:
        connection, sock = await server.pair()
        made: Any = connection
        with sock:
            assert made._state & EVENTS == select.EPOLLIN
            sending = asyncio.create_task(send(sock, BIG))
            await turns()
            assert made._state & EVENTS == 0
            assert len(await connection.read()) == CHUNK
            assert made._state & EVENTS == select.EPOLLIN
            assert await read_size(connection, len(BIG) - CHUNK) == BIG[CHUNK:]
            await sending
            connection.write(BIG)
            assert made._state & EVENTS == select.EPOLLIN | select.EPOLLOUT
            assert await receive(sock, len(BIG)) == BIG
            await connection.drain()
            assert made._state & EVENTS == select.EPOLLIN
            sock.shutdown(socket.SHUT_WR)
            assert await connection.read() == b""
            assert made._state & EVENTS == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@run
async def test_its_address_is_known_after_its_end_whoever_has_its_descriptor_then(host: str) -> None:
    async with serving(f"tcp://{host}:0", engine="epoll") as server:
        addresses = []
        for _ in range(2):  # the second gets the descriptor of the first
            connection, sock = await server.pair()
            with sock:
                addresses.append((connection, f"{host}:{sock.getsockname()[1]}"))
                assert connection.peer.address == addresses[-1][1]
                connection.abort()
        assert all(connection.peer.address == expected for connection, expected in addresses)


@run
async def test_the_end_of_the_peer_that_is_here_already_needs_no_linger_time() -> None:
    async with serving(engine="epoll", linger=FOREVER) as server:
        connection, sock = await server.pair()
        await send(sock, b"DISCONNECT")
        assert await connection.read() == b"DISCONNECT"
        sock.close()
        connection.close()
        assert connection.descriptor == -1  # type: ignore[attr-defined]
        await connection.wait_closed()


@run
async def test_the_poll_ends_with_its_last_connection() -> None:
    before = descriptors()
    for kept in (0, 1, 3):
        async with serving(engine="epoll") as server:
            pairs = [await server.pair() for _ in range(kept)]
            await server.listener.stop()
            for connection, sock in pairs:
                await send(sock, b"still here")
                assert await connection.read() == b"still here"
                sock.close()
                connection.close()
                await connection.wait_closed()
        assert descriptors() == before


def test_a_loop_that_ends_before_its_connections_leaves_no_descriptor_open() -> None:
    async def leave() -> None:
        loop = asyncio.get_running_loop()
        poll = Poll(loop, lambda address: None, 1.0, Turn(), True)  # type: ignore[arg-type, return-value]
        for _ in range(3):
            near, far = socket.socketpair()
            far.close()
            last = poll.add(near.detach(), "")
        last.abort()

    before = descriptors()
    asyncio.run(leave())
    gc.collect()
    assert descriptors() == before


@run
async def test_a_descriptor_that_cannot_be_watched_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    poll = Poll(asyncio.get_running_loop(), lambda address: None, 1.0, Turn(), True)  # type: ignore[arg-type, return-value]
    before = descriptors()
    descriptor = os.open(os.devnull, os.O_RDONLY)  # no epoll takes that
    with caplog.at_level(logging.ERROR), pytest.raises(PermissionError):
        poll.add(descriptor, "")
    assert descriptors() == before
    poll.release()


@run
async def test_a_socket_that_another_process_has_too_is_not_watched_after_its_end() -> None:
    async with serving(engine="epoll") as server:
        connection, sock = await server.pair()
        made: Any = connection
        poll, inherited = made._poll, os.dup(made.descriptor)  # as a child of fork() has it
        connection.abort()
        with sock:
            await send(sock, b"x")
            await turns()
            assert poll.epoll.poll(0) == []
        os.close(inherited)


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
@run_async
async def test_without_a_descriptor_for_the_epoll_nothing_stays_open(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    place = tmp_path / "socket"
    url = f"unix:{place}" if scheme == "unix" else "tcp://127.0.0.1:0"
    listener = listen(url, TransportOptions(engine="epoll"), lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(select, "epoll", full)
        with pytest.raises(OSError, match=r"cannot listen on .*Too many open files"):
            await listener.start()
    assert not listener._sockets and not place.exists()  # type: ignore[attr-defined]
    await listener.start()
    await listener.stop()
