"""Client: one connection that speaks MQTT."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from struct import Struct
from time import monotonic
from typing import Any, Final

from broker.config import Protocol
from broker.errors import ImplementationSpecificError, MqttError, PacketTooLarge, QuotaExceeded, StreamEnded
from broker.hook.identity import HANDLING, IDLE, NOTHING, OVER
from broker.hook.identity import Phase as Phase
from broker.hook.limits import give_way, turn_end
from broker.outbound import Outbound, WriteTerms
from broker.packet.codec import fit
from broker.packet.enums import Version
from broker.packet.message import Message, encode_publish
from broker.packet.packets import NO_PROPERTIES, Connack, Packet, Properties
from broker.packet.reader import PacketReader, Readers
from broker.refusal import connack_refusal, disconnect, explain
from broker.session.alias import encode_aliased
from broker.session.session import Session
from broker.transport.base import Connection

log = logging.getLogger("broker.client")

ACK: Final = Struct(">BBH")  # PUBACK, PUBREC, PUBREL and PUBCOMP with Reason Code 0x00, in every version
GOODBYE: Final = b"\xe0\0"  # DISCONNECT with nothing in it
LARGE: Final = 64 * 1024  # bytes of an unfinished packet that are too many when memory is short


@dataclass(slots=True, kw_only=True)
class ClientTerms(WriteTerms):
    """What all clients of one broker share."""

    protocol: Protocol
    readers: Readers
    dropped: Callable[[str, Message | None, str], None]
    dispatch: Callable[[Client, Packet], Awaitable[None] | None]
    serve: Callable[[Client, bytes], None]  # runs a client that has this to read, or more, or is at its end
    lane: Callable[[Client, bytes], bytes]  # the fast lane: gives what it does not take
    offers_again: bool = False  # in a task it takes more
    moment: float = -inf  # when somebody was heard last, rounded up
    delivered: Callable[[str, Message, int], None] | None = None  # a PUBLISH is on its way
    express: Callable[[Client, bytes], bool] | None  # the same for CONNECT and DISCONNECT; whether it took it
    not_stored: Callable[[Client, bytes, Any, Exception], bytes | None]  # what an acknowledgement becomes


def no_lane(client: Client, data: bytes) -> bytes:
    """The fast lane while it is closed."""
    return data


class Client(Outbound[ClientTerms]):
    """One connection that speaks MQTT.

    What arrives is offered to the fast lane; `read_loop` alone decodes the rest and runs handlers, one packet
    after the other. What is to be sent is put into the Outbound that it is; nothing that sends ever waits.
    While the socket takes no more, QoS 0 is dropped and counted when `full`, QoS 1 and 2 stay in the session;
    who leaves too many control packets unread is not read.
    """

    __slots__ = (
        "counted_user", "reader", "session", "task",
    )

    def __init__(self, connection: Connection, terms: ClientTerms) -> None:
        super().__init__(connection, terms)
        self.task: asyncio.Task[Any] | None = None  # what reads, unless the loop itself does
        self.heard()  # until it is connected: when it was accepted
        self.reader: PacketReader | None = None  # while something is read, or a packet is not whole
        self.session: Session | None = None
        self.counted_user: str | None = None  # the User Name that it counts for

    @property
    def is_ending(self) -> bool:
        """Asked anew after each packet: of `ending` itself mypyc would not believe that it changes."""
        return self.ending is not None

    def count_drop(self, reason: str) -> None:
        """A message to or from this client was dropped."""
        extra = self.own()
        extra.dropped = extra.dropped or Counter()
        extra.dropped[reason] += 1

    def heard(self) -> None:
        """A packet of it was read now. Who is heard in the same eighth of a second has the same 32 bytes."""
        terms, now = self._terms, self._terms.clock()
        if now > terms.moment:
            terms.moment = ceil(8 * now) / 8  # none is ever thought to be silent too early
        self.last_packet_at = terms.moment

    # ---- the life of the connection

    async def run(self, data: bytes = b"") -> bool:
        """Read *data* and all there is: True. Or until the connection ends: `ending` tells why."""
        self.task, ended = asyncio.current_task(), True
        try:
            ended = await self.read_loop(data)
        except MqttError as error:
            self.fail(error)
        except ConnectionError as error:
            self.ending = self.ending or StreamEnded(f"connection lost: {error}")
        except asyncio.CancelledError:
            if self.ending is None:
                self.end(MqttError("cancelled"))
                raise
            if self_task := asyncio.current_task():
                self_task.uncancel()  # it was `end` that stopped the loop
        except Exception:
            log.exception("client %r from %s: unexpected error", self.client_id, self.peer.address)
            self.fail(ImplementationSpecificError("unexpected error in the read loop"))
        finally:
            self.task = None
            if ended:
                self.end_reading()
        self.spare_reader()
        if not ended:
            self.serving = 0
        return not ended

    def end_reading(self) -> None:
        """Nothing more is read."""
        self.serving = OVER
        self.forget_judged()
        if self.extra.writer:
            self.extra.writer.cancel()
        if not self.closed:
            self._close()
        self._connection.attach(None)

    def left(self) -> None:
        """Something must be read, or it is the end: see transport.Reader."""
        if not self.serving:
            self.serving = 1
            self._terms.serve(self, b"")

    async def read_loop(self, data: bytes = b"") -> bool:
        """Bytes in, packets to their handlers, until all is read or the stream has ended; whether it has.

        Whoever sends much, or what takes long, goes on after everybody else had a turn.
        """
        connection, reader, terms = self._connection, self.own_reader(), self._terms
        stats, dispatch = terms.stats, terms.dispatch
        offer = None if terms.lane is no_lane else self._offer
        while not self.is_ending:
            if not data and not connection.has_unread():
                return False
            fresh = not data or terms.offers_again  # else what was given was offered before
            data = data or await connection.read()
            if not data:
                self.ending = self.ending or StreamEnded("closed by the client without DISCONNECT")
                return True
            stats.bytes_received += len(data)
            self.count_received(len(data))
            turn_ends, progressed = turn_end(stats), False
            for packets in reader.parts(offer(data) if fresh and offer else data, offer):
                stats.messages_received += len(packets)
                self.last_packet_at, progressed = HANDLING, True
                if self.extra.partial_counted:
                    self._count_partial(0)  # it is whole: whoever keeps it counts it
                for packet in packets:
                    waits = dispatch(self, packet)
                    if waits is not None:
                        await waits
                    if self.ending is not None:
                        return True
                    if monotonic() > turn_ends:
                        turn_ends = await give_way(stats)
                del packet, packets  # or they would be held until something comes again
                if self.swamped:
                    await self._until_taken()
            if progressed:
                self.heard()  # our own time is not the client's silence [B08]
            if reader.error is not None:
                raise reader.error
            data = b""
            self.note_partial(progressed)
            if self.swamped:
                await self._until_taken()
        return True

    def take(self, data: bytes) -> bytes:
        """*data* arrived: the read loop has what the fast lane leaves. See transport.Reader."""
        if self.serving:
            return data
        express = self._terms.express
        if express is not None and (self.phase is Phase.NEW or data == GOODBYE) and express(self, data):
            return b""
        rest = self._offer(data)
        self._terms.stats.bytes_received += len(data) - len(rest)
        self.count_received(len(data) - len(rest))
        if rest and not self.serving:
            self.serving, data, rest = 1, rest, b""
            self._terms.serve(self, data)
        return rest

    def _offer(self, data: bytes) -> bytes:
        """The fast lane takes what it can of *data*; gives the rest."""
        try:
            return self._terms.lane(self, data)
        except Exception as error:
            self.fail_inside(error, "fast lane")
        return b""

    def note_partial(self, progressed: bool) -> None:
        """What came was read as far as it is whole; *progressed* says that some was. Raises QuotaExceeded."""
        held, budget = self.partial, self._terms.budget
        if not held and self.extra is NOTHING:
            return
        extra = self.own()
        if not held:
            extra.partial_since = None
        elif progressed or extra.partial_since is None:
            extra.partial_since = self._terms.clock()
        self._count_partial(held)
        if held > LARGE and (budget.spent or (budget.low and self.phase is not Phase.CONNECTED)):
            raise QuotaExceeded("no memory for the rest of a large packet")

    def _count_partial(self, held: int) -> None:
        held, counted = 0 if self.closed else held, self.extra.partial_counted
        if held != counted:
            self._terms.budget.take_anyway(held - counted)
            self.own().partial_counted = held

    # ---- its reader: an idle connection has none

    @property
    def partial(self) -> int:
        """Bytes of an unfinished packet that are held."""
        return 0 if self.reader is None else self.reader.partial

    def own_reader(self) -> PacketReader:
        """Its reader, to read or to hold something."""
        if self.reader is None:
            self.reader = self._terms.readers.take(None if self.phase is Phase.NEW else self.version)
        return self.reader

    def spare_reader(self) -> None:
        """Nobody reads: one that holds nothing is for whoever needs one next."""
        reader = self.reader
        if reader is not None and self.phase > Phase.AUTHENTICATING and self._terms.readers.give(reader):
            self.reader = None

    @property
    def hurried(self) -> bool:
        """Whether memory is short: an unfinished packet has a moment only."""
        return self._terms.budget.low

    async def _until_taken(self) -> None:
        """The client reads nothing of what it asks for: read no more of it until it does."""
        self.last_packet_at = HANDLING  # the time we do not read is not held against the client
        await self.until_taken()
        self.heard()

    def fail(self, error: MqttError) -> None:
        """A breach by the client, or our own failure: say the Reason Code where the version has a way."""
        error.__traceback__ = error.__context__ = error.__cause__ = None  # their frames hold what was read
        if self.phase in (Phase.NEW, Phase.AUTHENTICATING):
            self.refuse(error)
        else:
            self.end(error)

    @property
    def _version_said(self) -> Version | None:
        """The version that CONNECT names; None while that is not known."""
        if self.reader is not None:
            return self.reader.version
        return None if self.phase is Phase.NEW else self.version

    def refuse(self, error: MqttError) -> None:
        """Answer CONNECT with *error*, or with nothing where the standard has no answer, and close."""
        protocol = self._terms.protocol
        data = connack_refusal(error, self._version_said, self.asked.maximum_packet_size, protocol)
        if self.phase is not Phase.GONE:
            self._terms.stats.connections_refused += 1
            self.phase = Phase.GONE
            self.ending = self.ending or error
            if data:
                self.write(data)
            self._close()

    def end(self, error: MqttError, *, flush: bool = False) -> None:
        """Close from our side: DISCONNECT with the Reason Code to a 5.0 client, nothing to 3.x [4.13].

        What collected in this turn leaves first; what waits for a socket that takes no more is thrown
        away, unless *flush*. May be called from anywhere; the read loop is stopped where it stands.
        """
        if self.phase is Phase.GONE:
            return
        connected = self.phase is Phase.CONNECTED
        self.ending = self.ending or error
        if flush or not self.blocked:
            self.flush()
        self.discard()
        if connected and self.version is Version.MQTT_5:
            self._say_disconnect(error)
        self.phase = Phase.GONE
        self._close()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def _say_disconnect(self, error: MqttError) -> None:
        data = disconnect(error, self.asked.maximum_packet_size, self._terms.protocol)
        if data and not self.corked:  # a CONNACK that was not sent comes before everything
            self._terms.stats.messages_sent += 1
            self.write(data)

    def finish(self) -> None:
        """The client said DISCONNECT: send what is queued, read no more, close [MQTT-3.14.4-2]."""
        self.flush()
        self.phase = Phase.GONE
        self._close()

    def abort(self, error: MqttError) -> None:
        """Give the connection up at once, as after a network failure."""
        self.ending = self.ending or error
        self.phase = Phase.GONE
        self._connection.abort()

    def _close(self) -> None:
        if self.phase is not Phase.GONE:
            self.flush()
            self.phase = Phase.GONE
        self.end_writing()
        if self.reader is not None:
            self.reader.discard()
        self._count_partial(0)
        if self.extra.aliases is not None:
            self.extra.aliases.clear()
        self._connection.close()

    async def wait_closed(self) -> None:
        """Wait until the bytes are gone and the connection with them."""
        await self._connection.wait_closed()

    def cancel(self) -> None:
        """Stop the read loop where it stands."""
        if self.task is not None:
            self.task.cancel()

    # ---- sending

    def publish(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...],
        packet_id: int = 0, dup: bool = False, after: int = 0,
    ) -> bool:  # fmt: skip
        """Queue a PUBLISH; False: dropped and counted. See terms.Link, and Message.frame for its bytes."""
        if qos == 0 and self.waiting is not IDLE and (self.full or (self.blocked and self.budget.low)):
            reason = "outbound_full" if self.full else "memory"
            self._terms.dropped(self.client_id, message, reason)
            return False
        if message.expires_at is not None:
            message.count_down(self._terms.clock())  # the frame says what is left, for all in this second
        if identifiers or dup or self.careful:
            data = self._encode(message, qos, retain, identifiers, packet_id, dup)
            if data is None:
                self._terms.dropped(self.client_id, message, "packet_too_large")
                return False
        elif qos:
            head, tail = message.frame(self.version, qos, retain)
            data = b"".join((head, packet_id.to_bytes(2, "big"), tail))
        else:
            data = message.frame(self.version, 0, retain)[0]
        self._terms.stats.publish_sent += 1
        self.count_sent(1)
        if self.phase is Phase.GONE:
            return True
        if self._terms.delivered is not None:
            self._terms.delivered(self.client_id, message, qos)
        journal = self._terms.journal
        after = after or journal.gate
        if after or (qos and self.waiting.gate and journal.failure is None):
            self.put_after(after, data)
        else:
            self.put(data)
        return True

    def publish_queued(self, session: Session) -> bool:
        """See terms.Link. Runs are the fast lane's: it knows what to do with their PUBACKs."""
        terms = self._terms
        if self.careful or terms.lane is no_lane or terms.journal.gate:
            return False
        run, after = session.take_run(self.version)
        if run is not None and (after or (self.gate and terms.journal.failure is None)):
            self.put_after(after, run.packets, None, run.count)
        elif run is not None:
            self.put(run.packets, run.count)
        terms.stats.publish_sent += 0 if run is None else run.count
        return run is not None

    def _encode(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...],
        packet_id: int, dup: bool,
    ) -> bytes | None:  # fmt: skip
        """The PUBLISH for this client alone; None: it may not be sent that much [MQTT-3.1.2-24]."""
        left = message.count_down(self._terms.clock())
        encode = partial(
            encode_publish, message, self.version, qos, retain,
            dup=dup, packet_id=packet_id, subscription_identifiers=identifiers, message_expiry_interval=left,
        )  # fmt: skip
        aliases = self.extra.outbound_aliases
        return encode_aliased(encode, message.topic_name, aliases, self.asked.maximum_packet_size)

    def fits(self, message: Message, qos: int, identifiers: tuple[int, ...]) -> bool:
        """Whether its PUBLISH is within the client's Maximum Packet Size; see terms.Link."""
        if self.asked.maximum_packet_size is None:
            return True
        data = encode_publish(
            message, self.version, qos, False, packet_id=min(qos, 1), subscription_identifiers=identifiers
        )
        return len(data) <= self.asked.maximum_packet_size

    def rest(self) -> None:
        super().rest()
        if self.session is not None and self.session.link is self:
            self.session.rest()

    def resumed(self) -> None:
        """The socket takes data again: so may the session."""
        if self.session is not None and self.session.link is self:
            self.session.pump()

    def send(self, packet: Packet, after: int = 0) -> None:
        """Queue a control packet; never dropped for data. One that cannot be made small enough ends us.

        It leaves when batch *after* is committed; 0: at once.
        """
        if self.phase is Phase.GONE:
            return
        data = fit(packet, self.version, self.asked.maximum_packet_size)
        if data is not None and after:
            self.put_after(after, data)
        elif data is not None:
            self.put_control(data)
        elif isinstance(packet, Connack):
            self.abort(PacketTooLarge("CONNACK does not fit the client's Maximum Packet Size"))
        else:
            self.end(PacketTooLarge(f"{type(packet).__name__} does not fit the client's Maximum Packet Size"))

    def acknowledge(self, first_byte: int, packet_id: int, after: int = 0, message: Any = None) -> None:
        """PUBACK 0x40, PUBREC 0x50, PUBREL 0x62 or PUBCOMP 0x70 of success; see Outbound.put_after."""
        if self.phase is Phase.GONE:
            return
        if after or self.waiting.gate:
            self.put_after(after, ACK.pack(first_byte, 2, packet_id), message)
        else:
            self.put_control(ACK.pack(first_byte, 2, packet_id))

    def answer(self, packet: Packet, after: int, message: Any = None) -> None:
        """As `acknowledge`, for one with another Reason Code."""
        data = fit(packet, self.version, self.asked.maximum_packet_size)
        if data is None or self.phase is Phase.GONE:
            return
        if after or self.waiting.gate:
            self.put_after(after, data, message)
        else:
            self.put_control(data)

    # ---- what Outbound needs of it

    def start_writing(self) -> None:
        self.own().writer = asyncio.create_task(self._guarded_write_loop())

    async def _guarded_write_loop(self) -> None:
        try:
            await self.write_loop()
        except Exception as error:
            self.write_failed(error)

    def write_failed(self, error: Exception) -> None:
        self.fail_inside(error, "write loop")

    def fail_inside(self, error: Exception, where: str) -> None:
        """A bug of ours, outside of the read loop: it costs this client its connection."""
        log.error("client %r from %s: unexpected error", self.client_id, self.peer.address, exc_info=error)
        self.abort(MqttError(f"unexpected error in the {where}: {error}"))
        self.cancel()

    def refused(self, acknowledgement: bytes, about: Any, failure: Exception) -> bytes | None:
        return self._terms.not_stored(self, acknowledgement, about, failure)

    def explain(self, error: MqttError) -> Properties:
        """Reason String and User Properties for an acknowledgement; none if the client wants none."""
        if self.version is not Version.MQTT_5 or not self.asked.problem_information:
            return NO_PROPERTIES
        return explain(error, self._terms.protocol)
