"""Outbound: what is on its way to one client's socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from broker.config import Limits
from broker.errors import MqttError
from broker.hook.identity import IDLE, Identified
from broker.hook.sound import failure_of
from broker.hook.stats import Stats
from broker.store.budget import ByteBudget
from broker.store.journal import Journal
from broker.transport.base import Connection, Octets, Turn

BURST: Final = 256 * 1024  # bytes that may collect within one turn of the loop before they are written
UNREAD_ACKS: Final = 64 * 1024  # bytes of control packets for a socket that takes none: too many
FEW_ACKS: Final = 1024  # the same when memory is short
GATED: Final = 4096  # acknowledgements that wait for a commit: enough not to read any more
PUBLISH: Final = 0x30  # first byte, without the other flags
QOS_1: Final = 0x32
ACKNOWLEDGEMENTS: Final = (0x40, 0x50)  # first bytes of PUBACK and PUBREC
FEED: Final = 64  # cost of the retained messages that a turn of the loop sends, one each, to all that are fed
NO_PACKETS: Final[list[Octets]] = []  # of all that have none, as most do; nothing may be put into it
# What waits in the gate: batch, packet, what is told of a refusal, how many packets; 0: it is no run.
Gated = tuple[int, bytes, Any, int]
LEAST_FEED: Final = 4  # the same for one client, however many are fed


class Held(NamedTuple):
    """What stands in the gate *about* an acknowledgement that waits for more than a commit."""

    until: asyncio.Future[None]  # an error in it refuses the acknowledgement
    about: Any  # what is told of a refusal


class Flusher:
    """Writes what the clients of a broker have collected: each once, at the end of the turn.

    One for all of them: to wake a write loop each costs 2 us a turn and client, this 0.3 (CPython 3.11).
    """

    __slots__ = ("_dirty", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._dirty: list[Outbound[Any]] = []

    def add(self, outbound: Outbound[Any]) -> None:
        """Flush *outbound* when everybody who is ready now has been read."""
        if not self._dirty:
            self._turn.at_end(self._flush)
        self._dirty.append(outbound)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for outbound in dirty:
            try:
                outbound.flush_turn()
            except Exception as error:
                if not outbound.closed:
                    outbound.write_failed(error)


@dataclass(slots=True, kw_only=True)
class WriteTerms:
    """What all Outbounds of one broker share."""

    limits: Limits
    clock: Callable[[], float]
    stats: Stats
    budget: ByteBudget
    journal: Journal
    flusher: Flusher = field(default_factory=lambda: Flusher(Turn()))


T = TypeVar("T", bound=WriteTerms)


class Outbound(Identified, Generic[T]):
    """Packets of one client that wait to be written; the part of Client that sees to it.

    `put` never waits. Packets collect and are written once per turn of the loop by the Flusher, or
    earlier when a burst grows large. While the socket takes no more (`blocked`) the queue is
    bounded: `full` tells when 256 packets or the bytes allowed wait, and whoever sends data must ask
    first. Control packets are always taken; `swamped` tells when too many of them go unread. `write_loop`
    runs only while the socket is blocked or there is a feed.

    What promises that something is stored goes through the `gate` (`put_after`), in order, and leaves when
    the journal has committed it, or when what it is Held for is done; while anything is in it, what must
    stay behind that goes there as well. `cork` holds back everything. Both are a Waiter of the journal.
    """

    __slots__ = ("_bytes", "_packets", "_terms", "closed")

    def __init__(self, connection: Connection, terms: T) -> None:
        super().__init__(connection)
        self._terms = terms
        self._packets = NO_PACKETS
        self._bytes = 0
        self.closed = False

    @property
    def budget(self) -> ByteBudget:
        return self._terms.budget

    # ---- what Client does for it

    def resumed(self) -> None:
        """The socket takes data again."""

    def start_writing(self) -> None:
        """Run `write_loop`: the socket takes no more, or there is a feed."""

    def write_failed(self, error: Exception) -> None:
        """A bug of ours: nothing can be written any more."""

    def refused(self, acknowledgement: bytes, about: Any, failure: Exception) -> bytes | None:
        """*acknowledgement* must not be sent; gives what is sent instead. *about* is what `put_after` got."""

    # ---- taking

    def put(self, data: Octets, count: int = 1) -> None:
        """Take a packet for the socket, or *count* of them in one."""
        packets, terms = self._packets, self._terms
        if packets is NO_PACKETS:
            packets = self._packets = []
        packets.append(data)
        self._bytes += len(data)
        terms.stats.messages_sent += count
        waiting = self.waiting
        if waiting is not IDLE and (waiting.blocked or waiting.corked):
            self._count_blocked(len(data))
        elif len(packets) == 1:
            terms.flusher.add(self)
        elif self._bytes > BURST:
            self.flush()

    def put_control(self, data: bytes, count: int = 1) -> None:
        """Take a packet that is never dropped for data, or *count* of them in one."""
        if self.waiting.blocked:
            self._wait().control_bytes += len(data)
        self.put(data, count)

    def _count_blocked(self, size: int) -> None:
        if self.closed:
            self._packets, self._bytes = NO_PACKETS, 0
            return
        limits = self._terms.limits
        waits = self._wait()
        waits.blocked_bytes += size
        self.budget.take_anyway(size)
        waiting = self._bytes + self._connection.pending()
        waits.full = (
            len(self._packets) >= limits.maximum_outbound_packets or waiting >= limits.maximum_outbound_bytes
        )

    @property
    def swamped(self) -> bool:
        """Whether the peer leaves so many control packets unread that it must not be read any more."""
        waiting = self.waiting
        if waiting is IDLE:
            return False
        most = FEW_ACKS if self.budget.low else UNREAD_ACKS
        unread: bool = waiting.control_bytes > most
        if unread or waiting.gated_bytes <= GATED:
            return unread
        gate: Iterable[Gated] = waiting.gate or ()
        return sum(1 + count * (data[0] in ACKNOWLEDGEMENTS) for _, data, _, count in gate) > GATED

    # ---- the gate

    def put_after(self, batch: int, data: bytes, about: Any = None, count: int = 0) -> None:
        """Take a packet that leaves when *batch* is committed and all that was put here before has left.

        With *about* a Held it waits for that as well; *batch* is -1 if for nothing else. With a *count* it is
        as many: PUBLISH, or PUBACKs, and *about* a StoredRun.
        """
        if self.closed:
            return
        waiting = self._wait()
        if waiting.gate is None:
            waiting.gate = deque()
        waiting.gate.append((batch, data, about, count))
        self._count_gated(len(data))
        if batch > 0:
            self._terms.journal.wait(self)
        elif len(waiting.gate) == 1:
            self._open_gate(self._terms.journal.done)

    def cork(self, batch: int) -> None:
        """Nothing leaves before *batch* is committed, unless that is 0; if it fails the connection ends."""
        if batch > self.waiting.corked:
            self.flush()
            self._wait().corked = batch
            self._terms.journal.wait(self)

    def committed(self, number: int) -> bool:
        """See Waiter."""
        self._open_gate(number)
        if 0 < self.waiting.corked <= number:
            self._uncork()
        return self._waits

    def not_committed(self, number: int, failure: Exception) -> bool:
        """See Waiter: PUBACK and PUBREC are refused, QoS 1 goes out all the same, all else is owed still."""
        if self.waiting.corked and not self.closed:
            self.waiting.corked = 0
            self._connection.abort()
            return False
        kept: deque[Gated] = deque()
        refuse = self.refused  # which may close us
        for batch, data, about, count in tuple(self.gate or ()):
            if 0 < batch <= number and data[0] in ACKNOWLEDGEMENTS:
                messages = about.revoke() if count else (about.about if isinstance(about, Held) else about,)
                for at, message in enumerate(messages):
                    single = data[4 * at : 4 * at + 4] if count else data
                    refusal = refuse(single, message, failure)
                    if refusal and not self.closed:  # it takes the place of what it refuses
                        self._count_gated(len(refusal) - len(single))
                        kept.append((0, refusal, None, 0))
            elif data[0] & 0xF6 == QOS_1 and not self.closed:
                self._leave(data, count)
            else:
                kept.append((batch, data, about, count))
        if not self.closed:
            self._wait().gate = kept
            self._open_gate(self._terms.journal.done)
        return self._waits

    @property
    def _waits(self) -> bool:
        return bool(self.gate or self.waiting.corked) and not self.closed

    def _count_gated(self, size: int) -> None:
        self._wait().gated_bytes += size
        self.budget.take_anyway(size)

    def _open_gate(self, number: int) -> None:
        """What waits for batch *number* or earlier leaves, in order."""
        gate = self.gate
        while gate and gate[0][0] <= number and not self.closed:
            about = gate[0][2]
            if isinstance(about, Held):
                if not about.until.done():
                    self._watch(about.until)
                    break
                if (failure := failure_of(about.until)) is not None:
                    self._refuse_held(gate.popleft()[1], about.about, failure)
                    continue
            self._leave(*gate.popleft()[1::2])
        if gate is not None and not gate and self.gate is gate:
            self._wait().gate = None  # an empty deque takes as much as three connections
        self._tell_unblocked()

    def _watch(self, until: asyncio.Future[None]) -> None:
        if self._wait().held is not until:
            self._wait().held = until
            until.add_done_callback(self._held_no_more)

    def _held_no_more(self, until: asyncio.Future[None]) -> None:
        self._wait().held = None
        if not self.closed:
            self._open_gate(self._terms.journal.done)

    def _refuse_held(self, data: bytes, about: Any, failure: MqttError) -> None:
        refusal = self.refused(data, about, failure)  # which may close us
        if not self.closed:
            self._count_gated(-len(data))
            if refusal:
                self.put_control(refusal)

    def _leave(self, data: bytes, count: int) -> None:
        self._count_gated(-len(data))
        (self.put if data[0] & 0xF0 == PUBLISH else self.put_control)(data, count or 1)

    def _uncork(self) -> None:
        self._wait().corked = 0
        if not self.blocked:
            self._unblock()
        if self.waiting.writing:
            self._wake()

    # ---- writing

    def flush_turn(self) -> None:
        """The turn of the loop is at its end."""
        if not self.waiting.blocked:
            self.flush()

    def flush(self) -> None:
        """Write all that has collected, in one call."""
        packets = self._packets
        if packets and not self.waiting.corked:
            self._packets, self._bytes = NO_PACKETS, 0
            if not self.closed:
                self.write(packets[0] if len(packets) == 1 else b"".join(packets))

    def write(self, data: Octets) -> None:
        """Write *data* now, behind what was written before."""
        self._terms.stats.bytes_sent += len(data)
        if self._info is not None:
            self._info.bytes_sent += len(data)
        self._connection.write(data)
        pending = self._count_pending()
        if pending and not self.blocked:
            if pending >= self._terms.limits.maximum_outbound_bytes or self.budget.low:
                self._block(pending)
            self._wake()  # the write loop gives the socket a turn before it calls it blocked

    def _block(self, pending: int) -> None:
        waiting = self._wait()
        waiting.blocked = True
        waiting.blocked_since = self._terms.clock()
        waiting.pending_seen = pending

    def _count_pending(self) -> int:
        """Keep what the connection holds in the budget; gives it, or 0 once it has ended: it lingers only."""
        if self.closed:
            return 0
        pending: int = self._connection.pending()
        if pending or self.waiting is not IDLE:
            waiting = self._wait()
            if pending != waiting.pending_counted:
                self.budget.take_anyway(pending - waiting.pending_counted)
                waiting.pending_counted = pending
        return pending

    async def write_loop(self) -> None:
        """See to a socket that takes no more, and to feeds, until there is nothing left of either."""
        try:
            while not self.closed:
                if self.waiting.corked:
                    await self._woken()
                    continue
                if not self.blocked:
                    await self._write_turn()
                if self.blocked:
                    await self._connection.drain()
                    self._unblock()
                elif feed := self._wait().feed:
                    await self._send_feed(feed)
                elif not self._connection.pending():
                    return
        finally:
            self._wait().writing = False

    async def _write_turn(self) -> None:
        """Write; a socket that still holds bytes one turn of the loop later takes no more."""
        self.flush()
        if self._connection.pending():
            await asyncio.sleep(0)
            pending = self._count_pending()
            if pending and not self.blocked:
                self._block(pending)

    def _wake(self) -> None:
        waiting = self._wait()
        waker = waiting.waker
        if not waiting.writing and not self.closed:
            waiting.writing = True
            self.start_writing()
        elif waker is not None and not waker.done():
            waker.set_result(None)

    async def _woken(self) -> None:
        waker = self._wait().waker = asyncio.get_running_loop().create_future()
        await waker

    def _unblock(self) -> None:
        """The socket has taken everything: what waited behind it goes on."""
        waiting = self._wait()
        waiting.blocked = waiting.full = False
        waiting.control_bytes = 0
        self._release()
        self._count_pending()
        self.flush()
        self._tell_unblocked()
        if not self.closed:
            self.resumed()

    def _tell_unblocked(self) -> None:
        unblocked = self.waiting.unblocked
        if unblocked is not None and not unblocked.done():
            unblocked.set_result(None)

    def _release(self) -> None:
        if self.waiting is not IDLE:
            self.budget.give(self.waiting.blocked_bytes)
            self.waiting.blocked_bytes = 0

    async def until_taken(self) -> None:
        """Wait while the peer leaves too many control packets unread."""
        while self.swamped and not self.closed:
            unblocked = self._wait().unblocked = asyncio.get_running_loop().create_future()
            await unblocked

    async def drained(self) -> None:
        """Wait until the socket has taken all there is, or is lost."""
        while self.blocked and not self.closed:
            await self._connection.drain()
            await asyncio.sleep(0)  # the write loop goes on now

    def stalled(self, now: float, seconds: float) -> bool:
        """Whether the socket has taken nothing for *seconds* although bytes wait."""
        if not self.blocked:
            return False
        pending, waiting = self._connection.pending(), self._wait()
        if pending != waiting.pending_seen:
            waiting.pending_seen, waiting.blocked_since = pending, now
        return now - waiting.blocked_since >= seconds

    def discard(self) -> None:
        """Throw away what was not written."""
        self._packets, self._bytes = NO_PACKETS, 0
        self._release()

    def end_writing(self) -> None:
        """Nothing is written any more."""
        if self.closed:
            return
        self.closed = True
        self.discard()
        waiting = self.waiting
        if waiting is not IDLE:
            waiting.gate, waiting.corked = None, 0
            self.budget.give(waiting.gated_bytes + waiting.pending_counted)
            waiting.gated_bytes = waiting.pending_counted = 0
            if waiting.feed is not None:
                waiting.feed.clear()  # a write loop that waits may hold it for a while
                waiting.feed = None
            self._tell_unblocked()

    # ---- many retained messages: sent as the client takes them, never all at once

    @property
    def feeding(self) -> bool:
        """Whether a feed is on its way: another one must not begin, only wait."""
        return bool(self.waiting.feed)

    def feed(self, topic_filter: str, steps: Iterator[int]) -> None:
        """Run *steps* little by little; each puts at most one message and gives its cost, or 0: not now.

        Feeds take their turns one after the other, and those that wait have not begun: a walk through
        the retained messages holds memory only while it runs.
        """
        waiting = self._wait()
        if waiting.feed is None:
            waiting.feed = {}
        waiting.feed.setdefault(topic_filter, []).append(steps)
        self._wake()

    def end_feed(self, topic_filter: str) -> None:
        """What *topic_filter* was to bring is out of date."""
        if self.waiting.feed:
            self.waiting.feed.pop(topic_filter, None)

    def resume_feed(self) -> None:
        """Something was acknowledged: a feed that waits may go on."""
        if self.feeding:
            self._wake()

    async def _send_feed(self, feed: dict[str, list[Iterator[int]]]) -> None:
        """Some of it, and less the more clients are fed: then everybody else has a turn."""
        stats = self._terms.stats
        stats.feeding += 1
        try:
            if self._send_some(feed, max(LEAST_FEED, FEED // stats.feeding)):
                await asyncio.sleep(0)
                return
        finally:
            stats.feeding -= 1
        self.flush()
        if not self._connection.pending():  # else the write loop sees to the socket first
            await self._woken()

    def _send_some(self, feed: dict[str, list[Iterator[int]]], left: int) -> bool:
        """The first of *feed* until it has cost *left*; False when the client must take something first."""
        topic_filter, waiting = next(iter(feed.items()))
        while left > 0 and not self.blocked and feed.get(topic_filter) is waiting:
            cost = next(waiting[0], None)
            if cost is None:
                waiting.pop(0)
                if not waiting and feed.get(topic_filter) is waiting:
                    del feed[topic_filter]
                break
            if cost == 0:
                return False
            left -= cost
        return True
