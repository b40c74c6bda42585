"""TCP and Unix sockets by epoll: a connection is one small object, with no task, timer or future of its own.

The event loop watches the epoll, not the sockets. Against asyncio's transports this halves the time of a
connection from accept to close and the memory of an idle one; tcp.py is what it must behave like.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from broker.transport.base import CHUNK, Octets, Peer, Peers, Reader, Turn, keep_memory, unpacked_address

READ: Final = 0x1  # EPOLLIN and EPOLLOUT, which select has on Linux only
WRITE: Final = 0x4
EVENTS: Final = READ | WRITE  # what the epoll tells us of; the other bits of a connection's state:
EOF: Final = 0x10  # the peer writes no more
CLOSING: Final = 0x20  # close was called
MUTE: Final = 0x40  # write() takes nothing more
FAST: Final = 0x80  # it is read LONG at a time
# Bytes of one read where the Reader was done at once with a full one. With half of it publishers of 4 KiB
# fell asleep with each read, and to wake them was a quarter of the work: 390,000 a second, 595,000 with this.
LONG: Final = 512 * 1024
MOST_FAST = 16  # connections of one listener that are FAST, or hold what they were read then
TURN: Final = 256  # connections that are looked at in one go; the next one begins with the others
# So many connections, or bytes, are read before anything is written, if so many are ready: who is read with
# others is answered with them, in few writes. It must not be all: then the clients and we would take turns.
ENOUGH, ENOUGH_BYTES = 64, CHUNK

Ready = Sequence[tuple[int, int]]  # descriptors and their events

log = logging.getLogger(__name__)
read = os.read  # found sooner, once a read


class Poll:
    """The epoll of one listener and the connections in it. It ends with the last of them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, peer: Callable[[str], Peer],
        linger: float, turn: Turn, long: bool,
    ) -> None:  # fmt: skip
        """*peer* makes a Peer of an address; *linger* is in seconds; *long*: there may be long reads."""
        self.loop, self.linger, self._one_turn = loop, linger, turn
        self._most_fast = MOST_FAST if long else 0
        self._fast: list[EpollConnection] = []
        self.peers = Peers(peer)
        self._connections: list[EpollConnection | None] = []  # by descriptor: those are small and dense
        self.epoll = select.epoll()
        self._find: Callable[[], Ready] = partial(self.epoll.poll, 0, TURN)
        self.others_wait = False  # a task has something to do
        self._count = 0
        self._wanted = True
        loop.add_reader(self.epoll.fileno(), self._turn)

    def add(self, descriptor: int, name: str | tuple[Any, ...]) -> EpollConnection:
        """A connection of *descriptor*, which is its own from now on. Raises OSError.

        *name* is that of the peer, as the socket has it, or its address.
        """
        try:
            os.set_blocking(descriptor, False)
            self.epoll.register(descriptor, READ)
        except OSError:
            os.close(descriptor)
            raise
        connections = self._connections
        while descriptor >= len(connections):
            connections.append(None)
        address = name if isinstance(name, str) else self.peers.note(descriptor, name)
        connection = connections[descriptor] = EpollConnection(self, descriptor, address)
        self._count += 1
        return connection

    def may_be_fast(self, connection: EpollConnection) -> bool:
        """Whether *connection* may be FAST; those that hold nothing more of what they were read make room."""
        fast = self._fast
        if connection in fast:
            return True
        if len(fast) >= self._most_fast:
            fast = self._fast = [each for each in fast if each.is_behind()]
        if len(fast) >= self._most_fast:
            return False
        fast.append(connection)
        return True

    def forget(self, descriptor: int) -> None:
        if self._fast:
            self._fast = [each for each in self._fast if each is not self._connections[descriptor]]
        self._connections[descriptor] = None
        self._count -= 1
        self._end_if_done()

    def release(self) -> None:
        """The listener adds no more."""
        self._wanted = False
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._count and not self._wanted and not self.epoll.closed:
            self.loop.remove_reader(self.epoll.fileno())
            self.epoll.close()

    def _turn(self) -> None:
        """Read whoever is ready, and whoever is soon after, if that is to be expected; see Awake."""
        awake, ready = self._one_turn.awake, self._find()
        awake.woken()
        self.others_wait = False
        while ready:
            self._serve(ready)
            ready = () if self.others_wait or self.epoll.closed else awake.look(self._find)

    def _serve(self, ready: Ready) -> None:
        connections, left, room = self._connections, ENOUGH, ENOUGH_BYTES
        self._one_turn.begin()
        try:
            while ready:
                left -= len(ready)
                for descriptor, events in ready:
                    connection = connections[descriptor]
                    if connection is None:  # it went within this turn
                        continue
                    try:
                        if events == READ:
                            room -= connection.receive()
                        else:
                            connection.ready(events)
                    except Exception:
                        log.exception("%s: unexpected error, connection dropped", connection.address)
                        connection.abort()
                ready = self._find() if left > 0 and room > 0 and not self.epoll.closed else ()
        finally:
            self._one_turn.end()

    def __del__(self) -> None:
        """A loop that ends before its connections leaves no descriptor open."""
        for connection in self._connections:
            if connection is not None:
                os.close(connection.descriptor)


class Rest:
    """What most connections do without, most of the time."""

    __slots__ = ("chunks", "drained", "error", "gone", "out", "sink", "timer", "unread", "waiter")

    def __init__(self) -> None:
        self.chunks: list[bytes] | None = None  # what nobody has read
        self.unread = 0  # bytes of it: no more than CHUNK, or what was the last long read
        self.out: bytearray | None = None  # what the kernel did not take yet
        self.error: OSError | None = None
        self.sink: Callable[[bytes], None] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.drained: asyncio.Event | None = None
        self.gone: asyncio.Event | None = None
        self.timer: asyncio.TimerHandle | None = None


NOTHING: Final = Rest()  # of all that have none; nobody changes it


class EpollConnection:
    """One accepted TCP or Unix socket.

    What an idle connection does not need is in its Rest, which is made when it does. A write that fails does
    not end the connection: what the peer said before it went is read first.
    """

    __slots__ = ("_address", "_poll", "_reader", "_rest", "_state", "descriptor")

    cost: ClassVar[int] = 450

    def __init__(self, poll: Poll, descriptor: int, address: str | None) -> None:
        """*address* is None if *poll* has it."""
        self._poll = poll
        self.descriptor = descriptor  # -1 once it is closed
        self._address: str | int | None = address
        self._state = READ  # bits, see above
        self._reader: Reader | None = None
        self._rest = NOTHING

    def _own(self) -> Rest:
        """Its Rest, to put something there."""
        if self._rest is NOTHING:
            self._rest = Rest()
        return self._rest

    @property
    def address(self) -> str:
        """Of the peer, as in Peer."""
        known = self._address
        if known is None:
            known = self._poll.peers.number(self.descriptor)
        return known if isinstance(known, str) else unpacked_address(known)

    @property
    def peer(self) -> Peer:
        known = self._address
        peers = self._poll.peers
        return peers.of(peers.number(self.descriptor) if known is None else known)

    async def read(self) -> bytes:
        if not self.has_unread():
            waiter = self._own().waiter = self._poll.loop.create_future()
            await waiter
        rest = self._rest
        if rest.chunks is not None:
            return self._unqueue(rest.chunks)
        if rest.error is not None and not self._state & CLOSING and rest.sink is None:
            raise ConnectionError(str(rest.error)) from rest.error
        return b""

    def attach(self, reader: Reader | None) -> None:
        self._reader = reader

    def has_unread(self) -> bool:
        rest = self._rest
        return self._state & (EOF | CLOSING) > 0 or rest.chunks is not None or rest.sink is not None

    def write(self, data: Octets) -> None:
        if self._state & MUTE:
            return
        out = self._rest.out
        if out is not None:
            out += data
            return
        try:
            sent = os.write(self.descriptor, data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._stop_writing(error)
            return
        if sent < len(data):
            self._own().out = bytearray(memoryview(data)[sent:])  # no more room than that
            self._watch(self._state | WRITE)

    def pending(self) -> int:
        out = self._rest.out
        return 0 if out is None else len(out)

    async def drain(self) -> None:
        while self._rest.out is not None:
            self._own().drained = drained = self._rest.drained or asyncio.Event()
            await drained.wait()

    def close(self) -> None:
        if self._state & CLOSING:
            return
        self._stop_reading()
        if self.descriptor >= 0:
            if self._rest.out is None:
                self._end_writing()
            else:
                self._start_timer()

    def abort(self) -> None:
        self._stop_reading()
        self._lose(None)

    async def wait_closed(self) -> None:
        if self.descriptor >= 0:
            gone = self._own().gone = self._rest.gone or asyncio.Event()
            await gone.wait()

    def wake(self) -> None:
        waiter = self._rest.waiter
        if waiter is not None:
            self._own().waiter = None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif self._reader is not None:
            self._reader.left()

    def divert(self, sink: Callable[[bytes], None]) -> None:
        if self._state & CLOSING or self.descriptor < 0:
            return
        unread = self._rest.chunks
        self._own().sink = sink
        self._start_timer()
        self._drop_unread()
        if self._state & EOF:
            self.close()
        elif unread is not None:
            sink(b"".join(unread))

    def _unqueue(self, chunks: list[bytes]) -> bytes:
        rest = self._own()
        rest.chunks, rest.unread = None, 0
        if not self._state & (READ | EOF):
            self._watch(self._state | READ)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _drop_unread(self) -> None:
        if self._rest.chunks is not None:
            self._unqueue(self._rest.chunks)
        self.wake()

    def _stop_reading(self) -> None:
        self._state |= CLOSING | MUTE
        if self._rest.sink is not None:
            self._own().sink = None
        self._drop_unread()

    def _start_timer(self) -> None:
        if self._rest.timer is None:
            self._own().timer = self._poll.loop.call_later(self._poll.linger, self.abort)

    # What the epoll tells

    def ready(self, events: int) -> None:
        """Anything but READ alone."""
        if self._state & WRITE and events & ~READ:
            self._send_more()
        if self._state & READ and events & ~WRITE:
            self.receive()

    def receive(self) -> int:
        """One read; how many bytes it brought. Who waits for it is woken, unless the Reader takes all."""
        rest = self._rest
        unread = rest.unread
        if unread >= CHUNK:  # only now: who reads within a turn of the loop spares two system calls
            self._watch(self._state & ~READ)
            return 0
        try:
            data = read(self.descriptor, LONG if self._state & FAST else CHUNK - unread)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._lose(error)
            return 0
        size = len(data)
        if not size:
            self._end_of_stream()
            return 0
        if self._state & CLOSING:
            return size
        if rest.sink is not None:
            rest.sink(data)
            return size
        reader = self._reader
        if not unread and reader is not None:
            data = reader.take(data)
            if reader.serving:
                self._poll.others_wait = True
            if not data or self._state & CLOSING:
                if size >= CHUNK or self._state & FAST:
                    self._pace(size)
                return size
        rest = self._own()
        if rest.chunks is None:
            rest.chunks = [data]
        else:
            rest.chunks.append(data)
        rest.unread = unread + len(data)
        self._state &= ~FAST
        self._poll.others_wait = True
        self.wake()
        return size

    def _pace(self, size: int) -> None:
        """The Reader took all of the last read, which brought *size* bytes: be FAST, or not.

        Who does not take what is written is not: answers to a long read are long, too.
        """
        reader, state = self._reader, self._state
        if size >= CHUNK:
            keep_memory()
        if reader is None or reader.serving or size < CHUNK // 4 or self._rest.out is not None:
            self._state &= ~FAST
        elif size >= CHUNK and not state & (EOF | CLOSING | MUTE | FAST) and self._poll.may_be_fast(self):
            self._state |= FAST

    def is_behind(self) -> bool:
        """Be FAST no more; whether much of what was read may still be held."""
        self._state &= ~FAST
        return self._rest.unread > 0 or (self._reader is not None and self._reader.serving > 0)

    def _end_of_stream(self) -> None:
        """The peer writes no more. Our side stays open, so that answers can still leave."""
        self._state |= EOF
        if self._rest.error is not None:
            self._lose(None)
            return
        self._watch(self._state & ~READ)
        self.wake()
        if self._rest.sink is not None:
            self.close()
        elif self._state & CLOSING and self._rest.out is None:
            self._lose(None)

    def _send_more(self) -> None:
        out = self._rest.out
        if out is None:
            return
        try:
            sent = os.write(self.descriptor, out)
        except BlockingIOError:
            return
        except OSError as error:
            self._stop_writing(error)
            return
        del out[:sent]
        if not out:
            self._tell_drained()
            if self._state & CLOSING:
                self._end_writing()

    def _stop_writing(self, error: OSError) -> None:
        """The peer takes no more; `read` tells, after what it said before."""
        if self._state & (EOF | CLOSING) or not isinstance(error, ConnectionError):
            self._lose(error)
        else:
            self._own().error = error.with_traceback(None)
            self._state |= MUTE
            self._tell_drained()

    def _tell_drained(self) -> None:
        if self._rest.out is not None:
            self._own().out = None
        self._watch(self._state & ~WRITE)
        drained = self._rest.drained
        if drained is not None:
            self._own().drained = None
            drained.set()

    def _end_writing(self) -> None:
        """Nothing is pending. With unread input a close would send RST: our side ends, then the peer's."""
        if self._state & EOF or self._rest.error is not None or self._has_ended():
            self._lose(None)
            return
        self._start_timer()
        try:
            sock = socket.SocketType(socket.AF_UNIX, socket.SOCK_STREAM, 0, self.descriptor)
            try:
                sock.shutdown(socket.SHUT_WR)
            finally:
                sock.detach()
        except OSError:  # the peer is gone already
            self._lose(None)

    def _has_ended(self) -> bool:
        """Whether the peer's end is here already, as after DISCONNECT: that spares a timer and a shutdown."""
        try:
            return not os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _watch(self, state: int) -> None:
        """Its state is *state* from now on, as to the events."""
        before, self._state = self._state, state
        old, events = before & EVENTS, state & EVENTS
        if old == events:
            return
        epoll, descriptor = self._poll.epoll, self.descriptor
        try:
            if not old:
                epoll.register(descriptor, events)
            elif events:
                epoll.modify(descriptor, events)
            else:  # not modify: 0 would still tell of a peer that is gone, again and again
                epoll.unregister(descriptor)
        except OSError as error:  # no memory
            self._state = before
            self._lose(error)

    def _lose(self, error: OSError | None) -> None:
        """The end of the socket."""
        descriptor = self.descriptor
        if descriptor < 0:
            return
        if self._address is None:
            self._address = self._poll.peers.number(descriptor)
        self.descriptor = -1
        if self._state & EVENTS:  # a close takes it out only if no other process has the socket
            try:
                self._poll.epoll.unregister(descriptor)
            except OSError:
                pass
        os.close(descriptor)
        self._poll.forget(descriptor)
        if error is not None and self._rest.error is None:
            self._own().error = error.with_traceback(None)  # its frames hold us
        self._state = self._state & ~EVENTS | EOF | MUTE
        timer = self._rest.timer
        if timer is not None:
            self._own().timer = None
            timer.cancel()
        self.wake()
        self._tell_drained()
        if self._rest.gone is not None:
            self._rest.gone.set()
