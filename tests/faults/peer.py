"""Peer: a client with raw sockets that keeps its session over connections, as the standard wants it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.conformance import wire
from tests.conformance.wire import Packet, Will
from tests.faults.history import (
    Acknowledged,
    Arrived,
    Breach,
    Connected,
    Connecting,
    Freed,
    Gone,
    History,
    Leaving,
    Published,
    Subscribed,
    Subscribing,
    Tag,
    Unsubscribed,
    Unsubscribing,
    Willed,
)

WAIT = 15.0  # seconds for an answer, on a machine that does other things as well
HOUR = 3600


class ConnectionGone(ConnectionError):
    """The connection ended while something was waited for."""


class Refused(ConnectionError):
    """CONNACK says no."""


@dataclass(slots=True)
class Outgoing:
    """One PUBLISH of ours that is not completed."""

    tag: Tag
    qos: int
    retain: bool
    payload: bytes
    released: bool = False  # PUBREC came: PUBREL is what is sent again
    properties: dict[str, int] = field(default_factory=dict)  # 5.0


class Peer:
    """One client. Its state belongs to the loop; all that happens goes to *history*.

    `withhold` names packets that it does not answer ("PUBLISH", "PUBREC", "PUBREL"); the state that this
    leaves is as if the answer were lost. `seen` has the packets of this connection after CONNACK.
    """

    def __init__(
        self,
        client_id: str,
        history: History,
        *,
        version: int = 5,
        port: int = 0,
        host: str = "127.0.0.1",
        expiry: int = HOUR,
        keep_alive: int = 0,
    ) -> None:
        self.client_id, self.history, self.version = client_id, history, version
        self.place = (host, port)
        self.expiry, self.keep_alive = expiry, keep_alive
        self.unfinished: dict[int, Outgoing] = {}  # in the order of their first sending
        self.taken: set[int] = set()  # QoS 2 identifiers of the broker, PUBLISH to PUBREL
        self.withhold: set[str] = set()
        self.seen: list[Packet] = []
        self.dial: Callable[[], socket.socket] | None = None  # another way to make the socket
        self.connected = False
        self.progress = asyncio.Event()  # set whenever something arrives or the connection ends
        self._numbers: dict[str, int] = {}
        self._last_id = 0
        self._answers: dict[int, asyncio.Future[Packet]] = {}
        self._pong: asyncio.Future[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._reading = asyncio.Event()
        self._reading.set()

    # ---- the connection

    async def connect(self, clean_start: bool = False, will: Will | None = None, **properties: int) -> Packet:
        """CONNECT and CONNACK; what is unfinished is sent again. Raises ConnectionError, TimeoutError."""
        assert self._task is None, f"{self.client_id} is connected"
        self._reader, self._writer = await self._open()
        # 3.1.1 has no Session Expiry Interval: a session with Clean Session 0 stays.
        expiry = float(self.expiry) if self.version == 5 else 0.0 if clean_start else float("inf")
        self.history.append(Connecting(self.client_id, clean_start, expiry))
        if self.version == 5 and self.expiry:
            properties["session_expiry_interval"] = self.expiry
        self._write(
            wire.connect(
                self.client_id,
                version=self.version,
                clean_start=clean_start,
                keep_alive=self.keep_alive,
                will=will,
                properties=properties,
            )
        )
        buffer = bytearray()
        try:
            async with asyncio.timeout(WAIT):
                connack = await self._connack(buffer)
        except BaseException:
            self._over()
            raise
        self._begin(connack, buffer)
        return connack

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.dial is None:
            return await asyncio.open_connection(*self.place)
        sock = await asyncio.get_running_loop().run_in_executor(None, self.dial)
        return await asyncio.open_connection(sock=sock)

    async def _connack(self, buffer: bytearray) -> Packet:
        assert self._reader is not None
        while True:
            found = wire.split(buffer)
            if found is not None:
                del buffer[: len(found[0])]
                packet = wire.parse(found[0], self.version)
                assert packet.type == wire.CONNACK, packet
                if packet.reason_code:
                    raise Refused(packet)
                return packet
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionGone("no CONNACK")
            buffer += data

    def _begin(self, connack: Packet, buffer: bytearray) -> None:
        self.history.append(Connected(self.client_id, bool(connack.session_present)))
        self.seen.clear()
        if not connack.session_present:  # the broker knows nothing of it: neither do we
            self.unfinished.clear()
            self.taken.clear()
        self.connected = True
        self._task = asyncio.create_task(self._read_loop(buffer))
        for packet_id, outgoing in self.unfinished.items():
            if outgoing.released:
                self._write(wire.pubrel(packet_id, version=self.version))
            else:
                self._send(packet_id, outgoing, dup=True)

    async def _read_loop(self, buffer: bytearray) -> None:
        assert self._reader is not None
        try:
            while True:
                for raw in packets(buffer):
                    self._handle(wire.parse(raw, self.version))
                self.progress.set()
                await self._reading.wait()
                data = await self._reader.read(65536)
                if not data:
                    return
                buffer += data
        except ConnectionError:
            return
        except Exception as error:
            self.history.append(Breach(self.client_id, repr(error)))
        finally:
            self._over()

    def _over(self) -> None:
        """The connection is gone, for whatever reason."""
        self.connected, self._task = False, None
        self.history.append(Gone(self.client_id))
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        for waiting in (*self._answers.values(), self._pong):
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionGone(self.client_id))
                waiting.exception()  # it is no error if nobody waits
        self._answers.clear()
        self._pong = None
        self.progress.set()

    async def drop(self) -> None:
        """Cut the connection: a reset, as after a crash of ours."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # it is closed already
                reset_on_close(self._writer.get_extra_info("socket"))
        await self._stop()

    async def disconnect(self, expiry: int | None = None, reason: int = 0) -> None:
        """DISCONNECT, with another Session Expiry Interval if one is given; wait for the end."""
        self.history.append(Leaving(self.client_id, expiry))
        if self.version == 5:
            properties = None if expiry is None else {"session_expiry_interval": expiry}
            self._write(wire.disconnect(reason, properties))
        else:
            self._write(wire.disconnect())
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), WAIT)
        await self._stop()

    async def _stop(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if self._task is task:  # it had not begun yet, and so has seen to nothing
                self._over()

    def pause(self) -> None:
        """Read no more of the socket than what is on its way."""
        self._reading.clear()

    def resume(self) -> None:
        self._reading.set()

    # ---- sending

    def raw(self, data: bytes) -> None:
        """Send *data* as it is; no state changes."""
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(data)

    def next_id(self) -> int:
        """An identifier that nothing unfinished has."""
        while True:
            self._last_id = self._last_id % 65535 + 1
            if self._last_id not in self.unfinished and self._last_id not in self._answers:
                return self._last_id

    def publish(
        self,
        topic_name: str,
        qos: int = 1,
        *,
        retain: bool = False,
        clears: bool = False,
        size: int = 0,
        **properties: int,
    ) -> Tag:
        """The next message of this publisher and topic, sent now. *clears*: without a payload."""
        tag = self._next_tag(topic_name)
        outgoing = Outgoing(tag, qos, retain, b"" if clears else tag.payload(size), properties=properties)
        packet_id = self.next_id() if qos else 0
        if qos:
            self.unfinished[packet_id] = outgoing
        self._send(packet_id, outgoing)
        return tag

    def will(self, topic_name: str, qos: int = 1, retain: bool = False, **properties: int) -> Will:
        """A will for `connect`, with the next number of its topic."""
        tag = self._next_tag(topic_name)
        self.history.append(Willed(self.client_id, tag, qos))
        return wire.will(topic_name, tag.payload(), qos, retain, **properties)

    def _next_tag(self, topic_name: str) -> Tag:
        number = self._numbers[topic_name] = self._numbers.get(topic_name, 0) + 1
        return Tag(self.client_id, topic_name, number)

    def _send(self, packet_id: int, outgoing: Outgoing, dup: bool = False) -> None:
        tag, qos, retain = outgoing.tag, outgoing.qos, outgoing.retain
        self.history.append(
            Published(self.client_id, tag, qos, packet_id, dup, retain, clears=not outgoing.payload)
        )
        self._write(
            wire.publish(
                tag.topic_name,
                outgoing.payload,
                qos=qos,
                packet_id=packet_id or None,
                dup=dup,
                retain=retain,
                properties=outgoing.properties,
                version=self.version,
            )
        )

    async def subscribe(self, topic_filter: str, qos: int = 2, options: int = 0) -> Packet:
        """SUBSCRIBE and its SUBACK. *options* are the other bits of the Subscription Options."""
        packet_id = self.next_id()
        self.history.append(Subscribing(self.client_id, topic_filter))
        data = wire.subscribe(packet_id, (topic_filter, qos | options), version=self.version)
        suback = await self._ask(packet_id, data)
        if suback.reason_codes[0] < 0x80:
            self.history.append(Subscribed(self.client_id, topic_filter))
        return suback

    async def unsubscribe(self, topic_filter: str) -> Packet:
        packet_id = self.next_id()
        self.history.append(Unsubscribing(self.client_id, topic_filter))
        unsuback = await self._ask(packet_id, wire.unsubscribe(packet_id, topic_filter, version=self.version))
        if all(code < 0x80 for code in unsuback.reason_codes):
            self.history.append(Unsubscribed(self.client_id, topic_filter))
        return unsuback

    async def _ask(self, packet_id: int, data: bytes) -> Packet:
        if not self.connected:
            raise ConnectionGone(self.client_id)
        answer = self._answers[packet_id] = asyncio.get_running_loop().create_future()
        self._write(data)
        return await asyncio.wait_for(answer, WAIT)

    async def ping(self) -> None:
        """PINGREQ and its answer: all that was sent before has been handled."""
        if not self.connected:
            raise ConnectionGone(self.client_id)
        self._pong = asyncio.get_running_loop().create_future()
        self._write(wire.pingreq())
        await asyncio.wait_for(self._pong, WAIT)

    async def until(self, condition: Callable[[], object], what: str, within: float = WAIT) -> None:
        """Wait until *condition* holds, which something that arrives makes true."""
        try:
            async with asyncio.timeout(within):
                while not condition():
                    self.progress.clear()
                    await self.progress.wait()
        except TimeoutError:
            raise TimeoutError(f"{self.client_id} waited {within} s for {what}") from None

    async def over(self) -> None:
        """Wait until the connection has ended."""
        while self.connected:
            self.progress.clear()
            await self.progress.wait()

    async def finished(self, within: float = WAIT) -> None:
        """Wait until everything published is acknowledged. Raises ConnectionGone, TimeoutError."""
        await self.until(lambda: not self.unfinished or not self.connected, "acknowledgements", within)
        if self.unfinished:
            raise ConnectionGone(self.client_id)

    # ---- what arrives

    def _handle(self, packet: Packet) -> None:
        self.seen.append(packet)
        handler = {
            wire.PUBLISH: self._publish,
            wire.PUBACK: self._done,
            wire.PUBREC: self._pubrec,
            wire.PUBREL: self._pubrel,
            wire.PUBCOMP: self._done,
            wire.SUBACK: self._answer,
            wire.UNSUBACK: self._answer,
            wire.PINGRESP: self._pingresp,
            wire.DISCONNECT: lambda packet: None,
        }[packet.type]
        handler(packet)

    def _publish(self, packet: Packet) -> None:
        assert packet.topic_name is not None and packet.payload is not None
        packet_id, again = packet.packet_id or 0, packet.packet_id in self.taken
        if packet.payload:  # one without was to delete what is retained, and bears no tag
            tag = Tag.of(packet.topic_name, packet.payload)
            dup, retain = bool(packet.dup), bool(packet.retain)
            self.history.append(Arrived(self.client_id, tag, packet.qos or 0, packet_id, dup, retain, again))
        if packet.qos == 2:
            self.taken.add(packet_id)
        if packet.qos and "PUBLISH" not in self.withhold:
            answer = wire.puback if packet.qos == 1 else wire.pubrec
            self._write(answer(packet_id, version=self.version))

    def _pubrel(self, packet: Packet) -> None:
        packet_id = packet.packet_id or 0
        known = packet_id in self.taken
        self.taken.discard(packet_id)
        self.history.append(Freed(self.client_id, packet_id))
        if "PUBREL" not in self.withhold:
            self._write(wire.pubcomp(packet_id, None if known else 0x92, version=self.version))

    def _pubrec(self, packet: Packet) -> None:
        packet_id = packet.packet_id or 0
        outgoing = self.unfinished.get(packet_id)
        self._note(packet, outgoing)
        if outgoing is None:
            return
        if (packet.reason_code or 0) >= 0x80:
            del self.unfinished[packet_id]
            return
        outgoing.released = True
        if "PUBREC" not in self.withhold:
            self._write(wire.pubrel(packet_id, version=self.version))

    def _done(self, packet: Packet) -> None:
        self._note(packet, self.unfinished.pop(packet.packet_id or 0, None))

    def _note(self, packet: Packet, outgoing: Outgoing | None) -> None:
        tag = None if outgoing is None else outgoing.tag
        code = packet.reason_code or 0
        self.history.append(Acknowledged(self.client_id, tag, packet.name, packet.packet_id or 0, code))

    def _answer(self, packet: Packet) -> None:
        answer = self._answers.pop(packet.packet_id or 0, None)
        assert answer is not None, f"{packet} answers nothing"
        if not answer.done():
            answer.set_result(packet)

    def _pingresp(self, packet: Packet) -> None:
        pong, self._pong = self._pong, None
        if pong is not None and not pong.done():
            pong.set_result(None)


def packets(buffer: bytearray) -> list[bytes]:
    """Every whole packet of *buffer*, which keeps the rest."""
    at, view, found = 0, bytes(buffer), []
    while (end := _end(view, at)) <= len(view):
        found.append(view[at:end])
        at = end
    del buffer[:at]
    return found


def _end(data: bytes, at: int) -> int:
    """Where the packet at *at* ends; beyond the end of *data* if it is not whole."""
    length = 0
    for place in range(4):
        if at + 1 + place >= len(data):
            return len(data) + 1
        byte = data[at + 1 + place]
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return at + 2 + place + length
    raise AssertionError(f"Remaining Length has more than four bytes: {data[at : at + 6].hex(' ')}")


def reset_on_close(sock: socket.socket) -> None:
    """The end of *sock* will be a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
