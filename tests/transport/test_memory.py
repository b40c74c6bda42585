"""Connections joined in memory."""

from __future__ import annotations

import asyncio

import pytest

from broker.transport.base import Connection, Peer, TransportOptions
from broker.transport.memory import INBOX, MemoryListener, pipe
from tests.transport.sockets import run, turns


@run
async def test_what_one_end_writes_the_other_reads() -> None:
    near, far = pipe()
    near.write(b"one")
    near.write(b"")
    near.write(bytearray(b"two"))
    assert await far.read() == b"onetwo"
    far.write(b"back")
    assert await near.read() == b"back"
    waiting = asyncio.create_task(far.read())
    await turns()
    assert not waiting.done()
    near.write(b"late")
    assert await waiting == b"late"


@run
async def test_what_the_reader_has_no_room_for_is_pending() -> None:
    near, far = pipe()
    near.write(b"a" * INBOX)
    assert near.pending() == 0
    near.write(b"b" * 10)
    assert near.pending() == 10
    draining = asyncio.create_task(near.drain())
    await turns()
    assert not draining.done()
    assert await far.read() == b"a" * INBOX
    await draining
    assert near.pending() == 0
    assert await far.read() == b"b" * 10


@run
async def test_a_read_is_at_most_64_kib() -> None:
    near, far = pipe()
    near.write(b"x" * (3 * INBOX + 5))
    assert [len(await far.read()) for _ in range(4)] == [INBOX, INBOX, INBOX, 5]


@run
async def test_close_lets_pending_bytes_arrive_first() -> None:
    near, far = pipe()
    far.write(b"never read")
    near.write(b"x" * (INBOX + 1))
    near.close()
    near.close()
    near.write(b"dropped")
    assert await near.read() == b""
    gone = asyncio.create_task(near.wait_closed())
    await turns()
    assert not gone.done()
    assert [len(await far.read()) for _ in range(3)] == [INBOX, 1, 0]
    await gone
    far.write(b"dropped")
    assert far.pending() == 0


@run
async def test_a_peer_that_never_reads_is_left_after_the_linger_time() -> None:
    near, far = pipe(linger=0.01)
    near.write(b"x" * (INBOX + 1))
    near.close()
    await near.wait_closed()
    assert near.pending() == 0
    with pytest.raises(ConnectionResetError):
        await far.read()


@run
async def test_abort_is_a_reset_for_the_peer() -> None:
    near, far = pipe()
    near.write(b"x" * 2 * INBOX)
    far.write(b"x" * 2 * INBOX)
    draining = asyncio.create_task(far.drain())
    await turns()
    near.abort()
    await near.wait_closed()
    await far.wait_closed()
    await draining
    assert await near.read() == b""
    with pytest.raises(ConnectionResetError):
        await far.read()
    far.close()
    far.abort()
    assert await far.read() == b""


@run
async def test_close_wakes_a_waiting_read() -> None:
    near, far = pipe()
    waiting = asyncio.create_task(near.read()), asyncio.create_task(far.read())
    await turns()
    near.close()
    assert [await task for task in waiting] == [b"", b""]


@run
async def test_a_cancelled_read_loses_nothing() -> None:
    near, far = pipe()
    waiting = asyncio.create_task(far.read())
    await turns()
    waiting.cancel()
    near.write(b"kept")
    await turns()
    assert waiting.cancelled()
    assert await far.read() == b"kept"


@run
async def test_the_listener_hands_over_the_other_end() -> None:
    accepted: list[Connection] = []
    listener = MemoryListener(TransportOptions(), accepted.append)
    with pytest.raises(ConnectionRefusedError):
        listener.connect()
    await listener.start()
    client = listener.connect()
    client.write(b"hello")
    assert await accepted[0].read() == b"hello"
    assert accepted[0].peer == Peer(address="memory", transport="memory", local=True, listener="memory:")
    await listener.stop()
    with pytest.raises(ConnectionRefusedError):
        listener.connect()
    accepted[0].write(b"lives on")
    assert await client.read() == b"lives on"
