"""TCP and Unix sockets over the real loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from broker.transport.base import CHUNK, Connection, TransportOptions
from broker.transport.epoll import EpollConnection
from broker.transport.listen import UNSENT, accept_from, listen
from tests.transport.sockets import (
    ABSENCE,
    FOREVER,
    Server,
    read_size,
    receive,
    receive_all,
    run,
    send,
    serving,
    turns,
)

pytestmark = pytest.mark.usefixtures("engine")

BIG = bytes(range(256)) * (32 << 10)  # 8 MiB, more than the kernel buffers of one connection


@pytest.fixture(params=["tcp", "tcp6", "unix"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"tcp": "tcp://127.0.0.1:0", "tcp6": "tcp://[::1]:0", "unix": f"unix:{tmp_path}/s"}[request.param]


async def fill(sock: socket.socket, sent: int, limit: int) -> int:
    """Send until the other side takes no more; how many bytes it took, with the *sent* before."""
    idle = 0
    while sent < limit and idle < 5:
        try:
            sent += sock.send(BIG[sent % len(BIG) :])
            idle = 0
        except BlockingIOError:
            idle += 1
            await asyncio.sleep(0.02)
    return sent


# Data


@run
async def test_bytes_both_ways(url: str) -> None:
    async with serving(url) as server:
        connection, sock = await server.pair()
        with sock:
            await send(sock, b"ping")
            assert await connection.read() == b"ping"
            connection.write(b"po")
            connection.write(b"ng")
            assert await receive(sock, 4) == b"pong"
            assert connection.pending() == 0
            await connection.drain()


@run
async def test_a_view_is_written_as_what_it_shows(url: str) -> None:
    async with serving(url) as server:
        connection, sock = await server.pair()
        with sock:
            view = memoryview(BIG)[1:-1]
            connection.write(view)
            connection.write(view[:300])
            assert connection.pending()
            assert await receive(sock, len(view) + 300) == BIG[1:-1] + BIG[1:301]


@run
async def test_who_the_peer_is(url: str) -> None:
    async with serving(url) as server:
        connection, sock = await server.pair()
        with sock:
            peer, name = connection.peer, sock.getsockname()
            assert (peer.local, peer.certificate, peer.listener) == (True, None, server.listener.url)
            assert (server.listener.local, server.listener.encrypted) == (True, False)
            if url.startswith("unix:"):
                assert (peer.transport, peer.address) == ("unix", url)
            else:
                host = f"[{name[0]}]" if ":" in name[0] else name[0]
                assert (peer.transport, peer.address) == ("tcp", f"{host}:{name[1]}")


@run
async def test_read_gives_what_waits_without_suspending() -> None:
    async with serving() as server:
        connection, sock = await server.pair()
        with sock:
            await send(sock, b"first")
            assert await connection.read() == b"first"
            await send(sock, b"second")
            await turns()
            with pytest.raises(StopIteration) as returned:
                connection.read().__await__().__next__()
            assert returned.value.value == b"second"


@run
async def test_small_packets_leave_at_once_and_unsent_bytes_are_bounded() -> None:
    async with serving() as server:
        connection, sock = await server.pair()
        made: Any = connection
        with sock:
            if isinstance(connection, EpollConnection):
                descriptor = connection.descriptor
            else:
                descriptor = made._transport.get_extra_info("socket").fileno()
            with socket.socket(fileno=os.dup(descriptor)) as its:
                assert its.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert its.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT


@run
async def test_a_server_that_does_not_read_stops_the_peer(url: str) -> None:
    async with serving(url) as server:
        connection, sock = await server.pair()
        with sock:
            sent = sock.send(BIG[:1000])
            await turns()
            sent = await fill(sock, sent, 64 << 20)
            assert sent < 64 << 20
            sizes, data = [], bytearray()
            while len(data) < sent:
                piece = await connection.read()
                sizes.append(len(piece))
                data += piece
            assert max(sizes) <= CHUNK
            whole = (BIG * (sent // len(BIG) + 1))[:sent]
            assert data == whole
            await send(sock, b"and on")
            assert await connection.read() == b"and on"


@run
async def test_a_peer_that_does_not_read_is_seen_in_pending(url: str) -> None:
    async with serving(url) as server:
        connection, sock = await server.pair()
        with sock:
            connection.write(BIG)
            assert 0 < connection.pending() < len(BIG)
            waiting = [asyncio.create_task(connection.drain()) for _ in range(3)]
            await asyncio.sleep(ABSENCE)
            assert not any(task.done() for task in waiting)
            waiting.pop().cancel()
            assert await receive(sock, len(BIG)) == BIG
            await asyncio.gather(*waiting)
            assert connection.pending() == 0


@run
async def test_a_cancelled_read_loses_nothing() -> None:
    async with serving() as server:
        connection, sock = await server.pair()
        with sock:
            waiting = asyncio.create_task(connection.read())
            await turns()
            await send(sock, b"kept")
            waiting.cancel()
            await turns()
            assert await connection.read() == b"kept"


# Ends


@run
async def test_half_close_by_the_peer_leaves_our_side_open(url: str) -> None:
    async with serving(url, linger=FOREVER) as server:
        connection, sock = await server.pair()
        with sock:
            await send(sock, b"last words")
            sock.shutdown(socket.SHUT_WR)
            assert await connection.read() == b"last words"
            assert await connection.read() == b""
            assert await connection.read() == b""
            connection.write(b"an answer")
            assert await receive(sock, 9) == b"an answer"
            connection.write(BIG)
            connection.close()
            assert await receive_all(sock) == BIG
            await connection.wait_closed()


@run
async def test_close_lets_the_last_bytes_arrive_though_input_is_unread(url: str) -> None:
    """A plain close() would answer the unread input with a reset, and that can overtake the data."""
    async with serving(url, linger=FOREVER) as server:
        connection, sock = await server.pair()
        with sock:
            await send(sock, b"x" * 3 * CHUNK)
            await turns()
            connection.write(b"goodbye")
            connection.close()
            connection.close()
            connection.write(b"dropped")
            await send(sock, b"y" * 3 * CHUNK)
            assert await asyncio.wait_for(receive_all(sock), 1) == b"goodbye"
            await turns()
            assert await connection.read() == b""
        await connection.wait_closed()


@run
async def test_close_sends_what_is_pending_first(url: str) -> None:
    async with serving(url, linger=FOREVER) as server:
        connection, sock = await server.pair()
        with sock:
            connection.write(BIG)
            connection.close()
            assert await receive_all(sock) == BIG
        await connection.wait_closed()


@run
async def test_a_peer_that_never_reads_is_left_after_the_linger_time(url: str) -> None:
    async with serving(url, linger=0.1) as server:
        connection, sock = await server.pair()
        with sock:
            connection.write(BIG)
            connection.close()
            await asyncio.wait_for(connection.wait_closed(), 5)
            assert connection.pending() == 0
            await connection.drain()
            with contextlib.suppress(ConnectionResetError):
                assert len(await receive_all(sock)) < len(BIG)


@run
async def test_a_peer_that_never_closes_is_left_after_the_linger_time(url: str) -> None:
    async with serving(url, linger=0.1) as server:
        connection, sock = await server.pair()
        with sock:
            connection.close()
            assert await receive_all(sock) == b""
            await asyncio.wait_for(connection.wait_closed(), 5)


@run
async def test_a_peer_that_talks_on_is_left_after_the_linger_time() -> None:
    async with serving(linger=0.1) as server:
        connection, sock = await server.pair()
        with sock:
            connection.close()
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                while True:
                    await send(sock, BIG)
            await connection.wait_closed()


@run
async def test_a_reset_is_a_connection_error() -> None:
    async with serving() as server:
        connection, sock = await server.pair()
        connection.write(BIG)
        waiting = asyncio.create_task(connection.read()), asyncio.create_task(connection.drain())
        await turns()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        with pytest.raises(ConnectionError):
            await waiting[0]
        await waiting[1]
        with pytest.raises(ConnectionError):
            await connection.read()
        connection.write(b"dropped")
        assert connection.pending() == 0
        await connection.wait_closed()
        connection.close()
        connection.abort()
        assert await connection.read() == b""


@run
async def test_bytes_before_a_reset_are_read_first() -> None:
    async with serving() as server:
        connection, sock = await server.pair()
        await send(sock, b"in time")
        await turns()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        await connection.wait_closed()
        assert await connection.read() == b"in time"
        with pytest.raises(ConnectionError):
            await connection.read()


@run
async def test_close_and_abort_wake_a_waiting_read(url: str) -> None:
    async with serving(url) as server:
        for end in ("close", "abort"):
            connection, sock = await server.pair()
            with sock:
                waiting = asyncio.create_task(connection.read())
                await turns()
                getattr(connection, end)()
                assert await waiting == b""


@run
async def test_abort_drops_everything(url: str) -> None:
    async with serving(url, linger=FOREVER) as server:
        connection, sock = await server.pair()
        with sock:
            connection.write(BIG)
            connection.abort()
            connection.abort()
            connection.close()
            await connection.wait_closed()
            with contextlib.suppress(ConnectionResetError):
                assert len(await receive_all(sock)) < len(BIG)


@run
async def test_abort_after_close_does_not_linger() -> None:
    async with serving(linger=FOREVER) as server:
        connection, sock = await server.pair()
        with sock:
            connection.close()
            connection.abort()
            await connection.wait_closed()


@run
async def test_what_is_diverted_is_left_after_the_linger_time(url: str) -> None:
    async with serving(url, linger=0.1) as server:
        connection, sock = await server.pair()
        raw: Any = connection
        with sock:
            diverted: list[bytes] = []
            await send(sock, b"one")
            await turns()
            raw.divert(diverted.append)
            await send(sock, b"two")
            assert await connection.read() == b""
            await asyncio.wait_for(connection.wait_closed(), 5)
            assert b"".join(diverted) == b"onetwo"


@pytest.mark.parametrize("when", ["before", "after"])
@run
async def test_what_is_diverted_ends_with_the_peer(url: str, when: str) -> None:
    async with serving(url, linger=FOREVER) as server:
        connection, sock = await server.pair()
        raw: Any = connection
        with sock:
            if when == "before":
                sock.shutdown(socket.SHUT_WR)
                assert await connection.read() == b""
            raw.divert(lambda data: None)
            assert await connection.read() == b""
            if when == "after":
                sock.shutdown(socket.SHUT_WR)
            await connection.wait_closed()
            assert await receive_all(sock) == b""


# Listeners


@run
async def test_port_0_and_all_interfaces_give_one_port_for_both_families() -> None:
    async with serving("tcp://*:0") as server:
        assert server.listener.url == f"tcp://*:{server.port}"
        assert server.port > 0
        assert not server.listener.local
        for host in ("127.0.0.1", "::1"):
            _, writer = await asyncio.open_connection(host, server.port)
            connection = await server.accepted.get()
            assert connection.peer.address.startswith(f"[{host}]:" if ":" in host else f"{host}:")
            writer.close()


@pytest.mark.parametrize(
    ("url", "shown", "local"),
    [
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:{}", True),
        ("tcp://[::1]:0", "tcp://[::1]:{}", True),
        ("tcp://localhost:0", "tcp://localhost:{}", True),
        ("tcp://0.0.0.0:0", "tcp://0.0.0.0:{}", False),
        ("ws://127.0.0.1:0/mqtt", "ws://127.0.0.1:{}/mqtt", True),
    ],
)
@run
async def test_the_bound_address_can_be_read(url: str, shown: str, local: bool) -> None:
    async with serving(url) as server:
        assert server.listener.url == shown.format(server.port)
        assert server.port > 0
        assert server.listener.local is local


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
@run
async def test_an_address_that_is_not_here(host: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on tcp://{host}:1883: "):
        await listen(f"tcp://{host}", TransportOptions(), Connection.abort).start()


@run
async def test_a_port_in_use_is_an_error_and_leaves_nothing_open() -> None:
    async with serving() as server:
        second = listen(server.listener.url, TransportOptions(), Connection.abort)
        with pytest.raises(OSError, match=f"cannot listen on {server.listener.url}: ") as caught:
            await second.start()
        assert caught.value.errno == errno.EADDRINUSE
        await second.stop()


@run
async def test_stop_accepts_nothing_more_and_leaves_connections(url: str) -> None:
    async with serving(url) as server:
        connection, sock = await server.pair()
        with sock:
            await server.listener.stop()
            with pytest.raises(OSError):
                await server.dial()
            await send(sock, b"still here")
            assert await connection.read() == b"still here"


@run
async def test_nothing_is_handed_over_after_stop() -> None:
    for count in range(8):  # turns of the loop between a connection and stop()
        async with serving() as server:
            with socket.create_connection(server.where()[1]) as sock:
                await turns(count)
                await server.listener.stop()
                accepted = server.accepted.qsize()
                await turns()
                assert server.accepted.qsize() == accepted
                if not accepted:
                    with contextlib.suppress(ConnectionResetError):
                        assert await asyncio.to_thread(sock.recv, 1) == b""


@run
async def test_a_listener_starts_again_after_stop(url: str) -> None:
    async with serving(url) as server:
        await server.listener.stop()
        await server.listener.start()
        connection, sock = await server.pair()
        with sock:
            connection.write(b"x")
            assert await receive(sock, 1) == b"x"


@run
async def test_an_accept_that_raises_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Connection] = []

    def accept(connection: Connection) -> None:
        taken.append(connection)
        if len(taken) == 1:
            raise RuntimeError("no")
        connection.write(b"hello")
        connection.close()

    async with serving(accept=accept) as server:
        with await server.dial() as sock:
            assert await receive_all(sock) == b""
        with await server.dial() as sock:
            assert await receive_all(sock) == b"hello"
        await taken[1].wait_closed()
    assert "cannot accept" in caplog.text


@run
async def test_no_descriptors_left_is_a_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = accept_from, [OSError(errno.EMFILE, "Too many open files")]

    def failing(sock: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return accept(sock)

    monkeypatch.setattr("broker.transport.listen.accept_from", failing)
    monkeypatch.setattr("broker.transport.listen.ACCEPT_PAUSE", 0.05)
    async with serving() as server:
        connection, sock = await server.pair()
        with sock:
            connection.write(b"late")
            assert await receive(sock, 4) == b"late"
    assert "cannot accept, trying again in 0.05 s: [Errno 24] Too many open files" in caplog.text


@run
async def test_many_connections() -> None:
    async def echo(server: Server, text: bytes) -> bytes:
        with await server.dial() as sock:
            await send(sock, text)
            sock.shutdown(socket.SHUT_WR)
            return await receive_all(sock)

    async def serve(connection: Connection) -> None:
        while data := await connection.read():
            connection.write(data)
        connection.close()
        await connection.wait_closed()

    tasks: list[asyncio.Task[None]] = []
    async with serving(accept=lambda c: tasks.append(asyncio.create_task(serve(c)))) as server:
        texts = [b"%d " % number * 1000 for number in range(300)]
        assert await asyncio.gather(*(echo(server, text) for text in texts)) == texts
        await asyncio.gather(*tasks)


# Socket files


@run
async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    async with serving(f"unix:{path}") as server:
        connection, sock = await server.pair()
        with sock:
            connection.write(b"alive")
            assert await receive(sock, 5) == b"alive"
    assert not path.exists()


@run
async def test_a_socket_file_that_answers_is_left_alone(tmp_path: Path) -> None:
    async with serving(f"unix:{tmp_path}/s") as server:
        with pytest.raises(OSError, match="another process answers") as caught:
            await listen(server.listener.url, TransportOptions(), Connection.abort).start()
        assert caught.value.errno == errno.EADDRINUSE
        with await server.dial():
            await server.accepted.get()  # the probe of the second listener
            await server.accepted.get()


@run
async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="no socket has this name"):
        await listen(f"unix:{path}", TransportOptions(), Connection.abort).start()
    assert path.read_text() == "precious"


@run
async def test_stop_unlinks_no_file_but_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(f"unix:{path}"):
        os.rename(path, tmp_path / "moved")
        path.write_text("another's")
    assert path.read_text() == "another's"


@run
async def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot listen on unix:"):
        await listen(f"unix:{tmp_path}/none/s", TransportOptions(), Connection.abort).start()


@run
async def test_nothing_of_all_this_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(linger=0.05) as server:
            connection, sock = await server.pair()
            await send(sock, b"x" * 1000)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            for _ in range(20):
                connection.write(BIG)
            connection.close()
            await connection.wait_closed()
            assert await read_size(connection, 1) == b""
    assert caplog.records == []
