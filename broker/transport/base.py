"""The seam between bytes and protocols: Connection, Listener and what a peer is."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

CHUNK: Final = 64 * 1024  # bytes of one read, and the most that waits unread in one connection
PEERS = 128  # that are remembered, of each listener
KEPT = 4 * 1024 * 1024  # bytes
Octets = bytes | memoryview  # what is written; whoever holds a view holds all of what it is a part of

# Of Awake
SOON: Final = 250e-6  # seconds of sleep that are so short that it may pay to stay awake
TRIAL: Final = 3  # how often something must come late, or not at all, before that is given up
SURE: Final = 12  # the same where it has paid for long
PAUSE: Final = 16  # short sleeps from one trial to the next,
LONGEST_PAUSE: Final = 1024  # up to so many as long as trials are in vain
LONGEST_TURN: Final = 500e-6  # seconds; then all else in the event loop has its turn

T = TypeVar("T")


@cache
def keep_memory() -> None:
    """Have the C library keep what large packets take, 8 MiB at most, for the next ones. Once is enough.

    glibc learns from the largest block it was given back: as long as that was small, it returns to the system
    what is free above 128 KiB, and each buffer of a large packet costs page faults. Messages of 256 KiB took
    500 us, and 105 with this; of 4 KiB, with long reads, 2.9 and 1.4 (CPython 3.11, 2 cores).
    """
    bytes(KEPT)


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unpacked_address(number: int) -> str:
    """What Peers have noted, as text."""
    return host_port(socket.inet_ntoa((number >> 16).to_bytes(4, "big")), number & 0xFFFF)


def is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


class Awake:
    """Whether to look for more, for a moment, before the event loop may fall asleep: where that pays.

    To fall asleep and to be woken takes 20 to 100 us on a virtual machine, and who waits for our answer falls
    asleep as well; if nobody does, most answers take 20. QoS 1, one message at a time: 7,800 a second,
    11,200 with this; QoS 2 at window 20: 70,000 and 102,000 (mosquitto 11,000 and 56,000; CPython 3.11, 2
    cores). Only who has slept shortly, time and again, tries it, and if it is in vain ever more rarely: then
    it takes less than a hundredth of the time. Where it is not, what 20,000 events a second leave of a core.
    """

    __slots__ = ("_lasts", "_monotonic", "_pause", "_pays", "_short", "_slept", "_until")

    def __init__(self, lasts: float, monotonic: Callable[[], float] = monotonic) -> None:
        """*lasts*: seconds to look; 0: not at all, as where nobody else could run meanwhile."""
        self._lasts = lasts if (os.cpu_count() or 1) > 1 else 0.0
        self._monotonic = monotonic
        self._pays = 0  # times that it may still be in vain; 0: it is not done
        self._short = 0  # short sleeps since the last trial
        self._pause = PAUSE
        self._slept = 0.0  # from then on, or from before
        self._until = 0.0  # nobody looks for more after that

    def woken(self) -> None:
        """There is something to do."""
        now = self._monotonic()
        self._until = now + LONGEST_TURN
        if self._pays or not self._lasts or now - self._slept > SOON:
            return
        self._short += 1
        if self._short >= self._pause:
            self._short, self._pays = 0, TRIAL

    def look(self, find: Callable[[], Sequence[T]]) -> Sequence[T]:
        """All is done: what *find* finds while it pays to look. Nothing: the loop may sleep."""
        now = begun = self._monotonic()
        if self._pays and now < self._until:
            # A trial takes longer: who is asleep because we were is late the first time.
            until = begun + (self._lasts if self._pays > TRIAL else 2 * self._lasts)
            while now < until:
                found = find()
                if found:
                    self._learn(now - begun < self._lasts)
                    return found
                now = self._monotonic()
            self._learn(False)
        self._slept = now
        return ()

    def _learn(self, in_time: bool) -> None:
        """Something came *in_time*, or not."""
        if in_time:
            self._pays = min(self._pays + 1, SURE)
            if self._pays == SURE:
                self._pause = PAUSE
        else:
            self._pays -= 1
            if not self._pays:
                self._pause = min(2 * self._pause, LONGEST_PAUSE)


class Turn:
    """The turn of the event loop in which a Poll reads its connections; one for all listeners of a broker.

    What was read leads to writes, and all of them wait for its end: one write for each connection. If they
    waited for the loop's next turn it would look for whoever is ready once more: with small reads that is a
    quarter more CPU (50 topics, 100 messages outstanding: 1.50 us each, 1.20 with this; CPython 3.11).
    """

    __slots__ = ("_later", "_reading", "awake")

    def __init__(self, awake: Awake | None = None) -> None:
        self.awake = awake or Awake(0)
        self._later: list[Callable[[], None]] = []
        self._reading = False

    def begin(self) -> None:
        self._reading = True

    def end(self) -> None:
        """Call all that waits. None of them may raise."""
        self._reading = False
        later, self._later = self._later, []
        for call in later:
            call()

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it at the end of this turn; of the loop's, where no Poll is reading."""
        if self._reading:
            self._later.append(call)
        else:
            asyncio.get_running_loop().call_soon(call)


class Peer(NamedTuple):
    """Who is at the other end.

    *address* is `host:port` (IPv6 in brackets), `unix:/path` or `memory`; *transport* is `tcp`,
    `tls`, `ws`, `wss`, `unix` or `memory`; *local* tells a peer on this machine (loopback, Unix
    socket, memory); *certificate* is `SSLSocket.getpeercert()` of a verified client certificate.
    """

    address: str
    transport: str
    local: bool = False
    listener: str = ""
    certificate: dict[str, Any] | None = None


class Peers:
    """The peers of open connections: who begins is asked for a few times, all others hardly ever."""

    __slots__ = ("_last", "_make", "_numbers")

    def __init__(self, make: Callable[[str], Peer]) -> None:
        """*make* makes a Peer of an address."""
        self._make = make
        self._last: dict[int | str, Peer] = {}
        self._numbers = array("Q")  # IPv4 addresses and ports by descriptor: as text they take 64 bytes each

    def note(self, descriptor: int, name: tuple[Any, ...]) -> str | None:
        """The address of a socket's *name*; None if it is noted as a number."""
        host, text = name[0], host_port(name[0], name[1])
        if ":" in host:
            return text
        while descriptor >= len(self._numbers):
            self._numbers.append(0)
        number = int.from_bytes(socket.inet_aton(host), "big") << 16 | name[1]
        self._numbers[descriptor] = number
        self._remember(number, text)
        return None

    def number(self, descriptor: int) -> int:
        """What was noted, for `unpacked_address`."""
        return self._numbers[descriptor]

    def of(self, address: int | str) -> Peer:
        """The Peer of an address, or of its number."""
        found = self._last.get(address)
        if found is None:
            text = address if isinstance(address, str) else unpacked_address(address)
            found = self._remember(address, text)
        return found

    def _remember(self, address: int | str, text: str) -> Peer:
        if len(self._last) >= PEERS:
            self._last.clear()
        found = self._last[address] = self._make(text)
        return found


class Reader(Protocol):
    """Who has a Connection and waits in its `read` only when there is something to read.

    A task that waits takes three times the memory of the connection.
    """

    @property
    def serving(self) -> int:
        """Whether something that was taken may not be done with yet."""

    def take(self, data: bytes) -> bytes:
        """*data* arrived, with nothing unread before it; gives what `read` shall give.

        Must not raise; may call anything of the connection.
        """

    def left(self) -> None:
        """Somebody must read: something was left, or it is the end. Told at least once; must not raise."""


class Connection(Protocol):
    """A byte stream both ways. Knows nothing of MQTT.

    `read` is called by one coroutine only. `write` never waits and never raises: after an error
    or `close` it drops the bytes, and `read` tells.
    """

    @property
    def cost(self) -> int:
        """Bytes of memory that it takes while it is idle, with the Client on it, about."""

    @property
    def peer(self) -> Peer:
        """Who is at the other end; keep it rather than ask twice."""

    async def read(self) -> bytes:
        """The next bytes, at most CHUNK; empty at the end of the stream or after `close`.

        Raises ConnectionError when the network or the peer's framing failed.
        """

    def attach(self, reader: Reader | None) -> None:
        """Give what arrives to *reader* first, at once, in the turn in which it arrives; None: no more.

        Order is kept: while anything is unread, new bytes queue behind it and pass *reader* by. Who
        attaches itself asks `has_unread` once, and again each time it leaves `read` for good.
        """

    def has_unread(self) -> bool:
        """Whether `read` may have something to give at once, if only the end."""

    def write(self, data: Octets) -> None:
        """Take *data* for the peer. Costs one system call when nothing is pending."""

    def pending(self) -> int:
        """Bytes taken by `write` that the kernel has not accepted yet."""

    async def drain(self) -> None:
        """Wait until `pending()` is 0 or the connection is lost. Never raises but CancelledError."""

    def close(self) -> None:
        """End in order: what is pending leaves first, then the peer reads the end of the stream.

        What still comes in is thrown away. Ends by itself within the connection's linger time
        even if the peer never reads and never closes. Calling it again does nothing.
        """

    def abort(self) -> None:
        """Drop everything and close at once."""

    async def wait_closed(self) -> None:
        """Wait until the connection is gone. Never raises but CancelledError."""


class RawConnection(Connection, Protocol):
    """A Connection that another one can be built on."""

    def wake(self) -> None:
        """Make a waiting `read` return what there is, though it be nothing.

        For a protocol above, which is attached and has more to tell.
        """

    def divert(self, sink: Callable[[bytes], None]) -> None:
        """Give what comes in to *sink* from now on; `read` is at its end.

        For a protocol above that closes with a handshake of its own. The linger time starts here;
        *sink* must not raise.
        """


Accept = Callable[[Connection], None]


class Listener(Protocol):
    """Something that makes Connections and hands each to the function given at construction."""

    url: str  # after start() with the bound host and port
    encrypted: bool
    local: bool  # reachable from this machine only

    async def start(self) -> None:
        """Bind and accept. Raises OSError."""

    async def stop(self) -> None:
        """Accept nothing more. Connections that were handed over live on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """What the listeners of one broker share."""

    engine: Literal["auto", "epoll", "asyncio"] = "auto"  # what moves the bytes of sockets; auto: epoll
    turn: Turn = field(default_factory=Turn)
    ssl_context: ssl.SSLContext | None = None
    backlog: int = 1024
    handshake_timeout: float = 10.0  # seconds for TLS, and again for the HTTP upgrade
    maximum_handshakes: int = 10_000  # TLS and HTTP upgrades under way at once, per listener
    linger: float = 1.0  # seconds from close() to the end, whatever the peer does
    websocket_path: str = ""  # only this path is served; empty: the path of the listen address, or any
    websocket_origins: tuple[str, ...] = ()  # allowed Origin values; empty: all
    websocket_require_subprotocol: bool = True  # else a client that offers none is accepted
    websocket_maximum_message_size: int = (1 << 20) + 1024  # bytes of one message, over all its frames
    maximum_header_size: int = 16384  # bytes of an HTTP request head
