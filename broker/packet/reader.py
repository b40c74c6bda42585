"""PacketReader: any chunks in, whole packets out [MQTT5 2.1]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from broker.errors import MalformedPacket, MqttError, PacketTooLarge, ProtocolError
from broker.packet.codec import check_header, decode_body, read_publish
from broker.packet.connect import read_protocol
from broker.packet.dialect import MQTT_5, dialect_of
from broker.packet.enums import PacketType, Version
from broker.packet.packets import Packet, Puback, Pubcomp, Pubrec, Pubrel
from broker.packet.wire import TopicNames

__all__ = ["MAXIMUM_PACKET_SIZE", "PacketReader", "Readers", "TopicNames"]

MAXIMUM_PACKET_SIZE: Final = 268_435_460  # bytes, the protocol's own limit: 5 of header and the longest body
PART: Final = 4096  # bytes that are decoded at a time, and what is left of the last packet of them
PIECE: Final = 64 * 1024  # bytes of a long read that are looked at together
SPARE: Final = 16  # readers that are kept for the next client
_PROTOCOL_BYTES: Final = 9  # the longest protocol name with its level
# The whole first byte -> packet class. Nearly all acknowledgements are an identifier and nothing else.
_SHORT_ACKS: Final[dict[int, type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]]] = {
    0x40: Puback,
    0x50: Pubrec,
    0x62: Pubrel,
    0x70: Pubcomp,
}


class PacketReader:
    """Turns the bytes of one peer into packets; owns what is left of an unfinished one.

    `feed` never raises. The first breach is kept in `error`, and after it nothing is read any more.
    Holds at most *maximum_packet_size* bytes plus one chunk. Not for two threads at once.
    """

    __slots__ = ("_dialect", "_held", "_needed", "_version", "apart", "error", "maximum_packet_size")

    def __init__(
        self,
        maximum_packet_size: int = MAXIMUM_PACKET_SIZE,
        strict: bool = True,
        names: TopicNames | None = None,
        from_client: bool = True,
    ) -> None:
        """*names* should be one for a whole broker. A reader of a server's packets starts with 5.0."""
        names = TopicNames(strict) if names is None else names
        self.maximum_packet_size = maximum_packet_size
        self.error: MqttError | None = None
        self.apart = -1  # the packet type that `parts` does not offer
        self._dialect = dialect_of(MQTT_5, strict, from_client, names)
        self._version: Version | None = None if from_client else MQTT_5
        self._held: bytes | bytearray = b""  # a bytearray only while it holds something
        self._needed = 0  # bytes until the held packet is whole, 0 while its length is not known

    @property
    def version(self) -> Version | None:
        """What the peer speaks: None until Protocol Name and Level of its CONNECT were read."""
        return self._version

    @version.setter
    def version(self, version: Version | None) -> None:
        if version is not self._version:
            old = self._dialect
            self._dialect = dialect_of(version or MQTT_5, old.strict, old.from_client, old.names)
            self._version = version

    @property
    def partial(self) -> int:
        """Bytes of an unfinished packet that are held; 0: none is."""
        return len(self._held)

    def take_partial(self) -> bytes:
        """The bytes of the unfinished packet, which are not held any more."""
        held, self._held = bytes(self._held), b""
        return held

    def hold(self, beginning: bytes) -> None:
        """Hold the *beginning* of a packet, as if it had been fed."""
        self._keep(beginning)
        self._needed = 0

    def _keep(self, beginning: bytes) -> None:
        if self._held:
            self._held += beginning
        else:
            self._held = bytearray(beginning)

    def discard(self) -> None:
        """Nothing comes any more: hold nothing."""
        self._held = b""

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that *data* completes, in order; [] after a breach. Cost: linear in all bytes fed."""
        return [packet for packets in self.parts(data) for packet in packets]

    def parts(self, data: bytes, take: Callable[[bytes], bytes] | None = None) -> Iterator[list[Packet]]:
        """As `feed`, but decodes little at a time; never an empty list. To be taken to the end.

        After each part the rest is offered to *take*, which gives back what is to be decoded, unless it
        begins with a packet of the type `apart`: it is copied for that, PIECE bytes at most.
        """
        if len(data) > PIECE:
            for at in range(0, len(data), PIECE):
                yield from self.parts(data[at : at + PIECE], take)
            return
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data, self._held = bytes(self._held), b""
        at, size = 0, len(data)
        while at < size and self.error is None:
            packets: list[Packet] = []
            try:
                at = self._read(data, at, packets)
            except MqttError as error:
                self.error = error
                self._held = b""
            if packets:
                yield packets
            if take is not None and at < size and data[at] >> 4 != self.apart and self.error is None:
                data = take(data[at:])
                at, size = 0, len(data)

    def _read(self, data: bytes, at: int, packets: list[Packet]) -> int:
        """Append the next whole packets of *data*; where it goes on. What is not whole is held.

        A hot path [benchmarks/codec.py]: PUBLISH is read in place, all others from a copy of their body. A
        length of two bytes in place, too: 350 -> 60 ns. `_read_length` is the plain version.
        """
        size, limit = len(data), self.maximum_packet_size
        stop = min(size - 1, at + PART)
        self._needed = 0
        if self._version is None and size and data[0] >> 4 != PacketType.CONNECT:
            raise ProtocolError("first packet is not CONNECT")
        while at < stop:
            first, length, start = data[at], data[at + 1], at + 2
            if length > 0x7F:
                if start < size and 0 < data[start] < 0x80:  # two bytes, as nearly all long ones have
                    length, start = length & 0x7F | data[start] << 7, start + 1
                else:
                    length, start = _read_length(data, at + 1)
                    if length < 0:
                        break
            end = start + length
            if end - at > limit:
                check_header(first >> 4, first & 0x0F, self._dialect)
                self._refuse_size(data[start : start + _PROTOCOL_BYTES], length)
                self._needed = size - at + 1  # one byte more, and we look again
                break
            if end > size:
                self._needed = end - at
                break
            if first & 0xF0 == 0x30:
                packets.append(read_publish(first, data, start, end, self._dialect))
            elif length == 2 and first in _SHORT_ACKS:
                packets.append(_read_short_ack(first, data, start))
            elif first & 0xF0 == 0x10:
                packets.append(self._read_connect(first, data[start:end]))
            else:
                packets.append(decode_body(first >> 4, first & 0x0F, data[start:end], self._dialect))
            at = end
        else:
            if at + 1 < size:
                return at
        if at < size:
            self._keep(data[at:])
        return size

    def _read_connect(self, first: int, body: bytes) -> Packet:
        if self._dialect.from_client:
            if self._version is not None:
                raise ProtocolError("second CONNECT")
            self.version = read_protocol(body)[0]
        return decode_body(PacketType.CONNECT, first & 0x0F, body, self._dialect)

    def _refuse_size(self, beginning: bytes, length: int) -> None:
        """Raise for a packet that is too large, but wait for the version of a CONNECT: 5.0 is told why."""
        if self._version is None:
            if len(beginning) < min(length, _protocol_bytes(beginning)):
                return
            with suppress(MqttError):
                self.version = read_protocol(beginning)[0]
        raise PacketTooLarge(f"packet is larger than {self.maximum_packet_size} bytes")


class Readers:
    """The PacketReaders of a broker's clients. One is needed only while something is read or not whole."""

    def __init__(self, maximum_packet_size: int, names: TopicNames, apart: int = -1) -> None:
        """*apart*: see PacketReader."""
        self.names = names
        self._apart = apart
        self._maximum_packet_size = maximum_packet_size
        self._spare: list[PacketReader] = []

    def take(self, version: Version | None) -> PacketReader:
        """One for a client that speaks *version*; None: its CONNECT has not come."""
        if not self._spare:
            self._spare.append(PacketReader(self._maximum_packet_size, self.names.strict, self.names))
            self._spare[-1].apart = self._apart
        reader = self._spare.pop()
        reader.version = version
        return reader

    def give(self, reader: PacketReader) -> bool:
        """Take *reader* back, if nothing of its client is left in it; whether that is so."""
        if reader.partial or reader.error is not None:
            return False
        if len(self._spare) < SPARE:
            self._spare.append(reader)
        return True


def _protocol_bytes(beginning: bytes) -> int:
    """How many bytes of a CONNECT's body hold Protocol Name and Level; of a name that is none of ours, 2."""
    name = int.from_bytes(beginning[:2], "big")
    return name + 3 if name + 3 <= _PROTOCOL_BYTES else 2


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    """Remaining Length and the offset after it [MQTT5 2.1.4]; a length of -1 stands for "not all here"."""
    length = 0
    for index, byte in enumerate(data[at : at + 4]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if byte == 0:
                raise MalformedPacket("remaining length is longer than needed")
            return length, at + index + 1
    if len(data) >= at + 4:
        raise MalformedPacket("remaining length of more than four bytes")
    return -1, at


def _read_short_ack(first: int, data: bytes, at: int) -> Puback | Pubrec | Pubrel | Pubcomp:
    """The acknowledgement of two bytes whose body is at `data[at]`; *first* must be in _SHORT_ACKS.

    A hot path: by the table it takes 680 ns, read in place 280 (CPython 3.11, 2 cores). What the table makes
    of it is the oracle in tests/packet/test_reader.py.
    """
    packet_id = data[at] << 8 | data[at + 1]
    if packet_id == 0:
        raise ProtocolError("packet identifier 0")
    return _SHORT_ACKS[first](packet_id)
