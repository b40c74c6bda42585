"""Packets as bytes: equal ones counted at once, numbered at once, acknowledged at once. No I/O, no objects.

A run is packets of the same length and with the same beginning, back to back: what a publisher sends that
reports one thing. A stretch is any packets, back to back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from struct import Struct
from typing import Final

from broker.config import Config
from broker.errors import MqttError
from broker.packet.dialect import MQTT_5, dialect_of
from broker.packet.message import (
    ENCODED_TOPICS,
    LAST_IDENTIFIER,
    bounds,
    halves,
    renumber,
    rewrite,
    topic_size,
)
from broker.packet.wire import TopicNames, varint_bytes
from broker.session.delivery import QueuedRun, SentRun

# As many packets must be left in a read for a run to be looked for. One of QoS 1 is sent by itself, which
# costs as much as ten packets that are looked at. 100 publishers, 10 packets a read, us a message: 0.41 and
# 1.39 with 8 for both, 0.31 and 1.10 with these.
FEW: Final = 4
FEW_1: Final = 12
# So many are looked at in one go. Of more packets so many, and then by strides so many and then all: a run
# that ends early costs little.
AT_ONCE: Final = 64
FIRST: Final = 16
GALLOP: Final = 256
SHORT: Final = 16 * 1024  # bytes: a packet of more is not for us
LARGE: Final = 16 * 1024  # bytes: of more a copy costs more than a view
SHORTEST: Final = 128  # bytes of a property block: the first length that takes two bytes
MAXIMUM: Final = 4096  # property blocks that are remembered


def part(data: bytes, begin: int, end: int) -> bytes | memoryview:
    """What stands there: a view of *data* if that is most of it, and it is more than LARGE.

    A hot path: 4 KiB messages took 2.4 us with copies and 1.4 with views, of 256 KiB that were read at once.
    """
    if 2 * (end - begin) > len(data) and end - begin > LARGE:
        return memoryview(data)[begin:end]
    return data[begin:end]


@lru_cache(2048)
def beginnings(length: int, size: int, count: int) -> Callable[..., tuple[bytes, ...]]:
    """A function of bytes and a place: the first *length* bytes of *count* packets of *size* bytes there."""
    return Struct(f"{length}s{size - length}x" * count).unpack_from


@lru_cache(64)
def endings(begin: int, size: int, count: int) -> Callable[..., tuple[bytes, ...]]:
    """The same for what they have from *begin* on."""
    return Struct(f"{begin}x{size - begin}s" * count).unpack_from


def count_equal(data: bytes, at: int, size: int, beginning: bytes) -> int:
    """How many packets of *size* bytes with this *beginning* stand in *data* from *at* on, back to back.

    May give less than there are. Cost: about 0.02 us a packet, 0.2 for the first.
    """
    all_of_them, length = (len(data) - at) // size, len(beginning)
    known = all_of_them if all_of_them <= AT_ONCE else FIRST
    found = beginnings(length, size, known)(data, at)
    if found.count(beginning) != known:
        known = 0
        while found[known] == beginning:
            known += 1
        return known
    for most in (GALLOP, all_of_them):
        if known == all_of_them:
            break
        number = min(most, all_of_them)
        end = at + number * size
        for offset, byte in enumerate(beginning, at):
            if data[offset:end:size].count(byte) != number:
                return known
        known = number
    return known


@cache
def _identifiers() -> list[bytes]:
    """All Packet Identifiers as they stand in packets. 2.5 MB, made when the first is needed."""
    return [number.to_bytes(2, "big") for number in range(LAST_IDENTIFIER + 1)]


@cache
def acknowledgements(first_byte: int) -> bytes:
    """All four byte acknowledgements of one type, from identifier 0 on: that of *n* stands at 4 * n."""
    high, low = halves()
    packets = bytearray(bytes((first_byte, 2, 0, 0)) * len(high))
    packets[2::4], packets[3::4] = high, low
    return bytes(packets)


class Stretch:
    """PUBLISH packets of one QoS, 1 or 2: *heads* end before the identifiers, *tails* begin after them."""

    __slots__ = ("_heads", "_qos", "_tails", "client_id", "count", "five")

    def __init__(
        self, heads: list[bytes], tails: list[bytes], five: bool, client_id: str, qos: int = 1
    ) -> None:
        self._heads = heads
        self._tails = tails
        self._qos = qos
        self.count = len(heads)
        self.five = five
        self.client_id = client_id

    def numbered(self, five: bool, first: int, qos: int = 1) -> bytes:
        """The packets for a 5.0 client or another, with *qos* and the identifiers from *first* on."""
        same = five == self.five and qos == self._qos
        if self.count == 1 and same:
            return b"".join((self._heads[0], first.to_bytes(2, "big"), self._tails[0]))
        out: list[bytes] = [b""] * (3 * self.count)
        out[0::3] = self._heads
        out[1::3] = _identifiers()[first : first + self.count]
        out[2::3] = self._tails
        packets = b"".join(out)
        return packets if same else rewrite(packets, self.five, self._qos, five, qos)

    def without_identifiers(self, five: bool) -> bytes:
        """The packets as QoS 0, for a 5.0 client or another."""
        return rewrite(self.numbered(self.five, 1, self._qos), self.five, self._qos, five, 0)

    def queued(self, overhead: int) -> QueuedRun:
        """The packets, none of which has a property, as a session keeps them; *overhead* bytes for each."""
        cost = self.count * (overhead - self.five) + sum(map(len, self._tails))
        for head in self._heads:
            cost += topic_size(head[5:] if head[1] > 0x7F else head[4:])
        packets = self.numbered(self.five, 1)
        return QueuedRun(packets, self.count, self.five, self.client_id, cost, overhead)


class Run:
    """As Stretch: packets of one publisher that are of equal *size*, with the identifier at *offset*."""

    __slots__ = ("_offset", "_packets", "_size", "client_id", "count", "five")

    def __init__(self, packets: bytes, size: int, offset: int, five: bool, client_id: str) -> None:
        self._packets = packets
        self._size = size
        self._offset = offset
        self.count = len(packets) // size
        self.five = five
        self.client_id = client_id

    def numbered(self, five: bool, first: int) -> bytes:
        """See Stretch."""
        if self.count == 1 and five == self.five:
            number = first.to_bytes(2, "big")
            return b"".join((self._packets[: self._offset], number, self._packets[self._offset + 2 :]))
        packets = renumber(self._packets, self._size, self._offset, first)
        return packets if five == self.five else rewrite(packets, self.five, 1, five, 1)

    def without_identifiers(self, five: bool) -> bytes:
        """See Stretch."""
        return rewrite(self._packets, self.five, 1, five, 0)

    def queued(self, overhead: int) -> QueuedRun:
        """See Stretch."""
        size, offset, packets = self._size, self._offset, self._packets
        name = packets[5 if packets[1] > 0x7F else 4 : offset]
        unit = topic_size(name) + size - offset - 2 - self.five + overhead
        cost = unit * self.count
        return QueuedRun(packets, self.count, self.five, self.client_id, cost, overhead, size, offset)

    def acknowledgements(self, first_byte: int) -> bytes:
        """One for each, with its identifier; b"" if one of them is 0."""
        if self.count == 1:
            identifier = self._packets[self._offset : self._offset + 2]
            return b"" if identifier == b"\0\0" else bytes((first_byte, 2)) + identifier
        high, low = self._packets[self._offset :: self._size], self._packets[self._offset + 1 :: self._size]
        if 0 in low and any(not (one or other) for one, other in zip(high, low, strict=True)):
            return b""
        out = bytearray(bytes((first_byte, 2, 0, 0)) * self.count)
        out[2::4], out[3::4] = high, low
        return bytes(out)


def rewrite_aliases(
    data: bytes, names: Mapping[int, str], look: Callable[[bytes], tuple[int, bytes]]
) -> tuple[bytes, int]:
    """The packets that *data* begins with, each with its Topic Name; and where they ended in *data*.

    *names* has what each Topic Alias stands for, *look* gives the alias in a property block and the block
    without it. Ends at the first packet that has a Topic Name or an alias that is not known.
    """
    out: list[bytes] = []
    seen: dict[bytes, tuple[bytes, bytes]] = {}  # by block: what comes before and behind the identifier
    at, size = 0, len(data)
    most = 2 * size + SHORT  # bytes: a long name takes a thousand times what stands for it
    while at + 5 < size and most > 0 and data[at] in (0x30, 0x32):
        length, start = data[at + 1], at + 2
        if length > 0x7F:  # `bounds` in place, and what was found kept: 0.98 -> 0.6 us a packet
            if not 0 < data[at + 2] < 0x80:
                break
            length, start = length & 0x7F | data[at + 2] << 7, at + 3
        end, block_at = start + length, start + 2 + (data[at] & 2)
        if end > size or block_at >= end or data[start] or data[start + 1]:
            break
        block_end = block_at + 1 + data[block_at]
        raw = data[block_at:block_end]
        found = seen.get(raw)
        if found is None:
            alias, block = look(raw)
            name = names.get(alias)
            if name is None:
                break
            found = seen[raw] = ENCODED_TOPICS[name], block
        topic, block = found
        length += len(topic) + len(block) - 2 - (block_end - block_at)
        if block_end > end or length > SHORT:
            break
        if data[at] == 0x30:
            out += (b"\x30", varint_bytes(length), topic, block, data[block_end:end])
        else:
            head = data[at : at + 1] + varint_bytes(length)
            out += (head, topic, data[start + 2 : block_at], block, data[block_end:end])
        most -= length
        at = end
    return b"".join(out), at


def repeats(data: bytes, at: int, end: int, few: int) -> bool:
    """Whether it looks as if *few* packets like the one at *at* followed."""
    ahead = end + (few - 2) * (end - at)
    return ahead + 2 < len(data) and data[ahead : ahead + 2] == data[at : at + 2]


def count_same(data: bytes, at: int, expected: bytes, place: int) -> int:
    """How many acknowledgements at *at* are the *expected* ones."""
    count = 0
    while data[at : at + 4] == expected[place : place + 4]:
        count += 1
        at += 4
        place += 4
    return count


def acknowledged(data: bytes, at: int, first_byte: int, run: SentRun) -> int:
    """How many of *run*, from its first on, are acknowledged at *at* by packets of this type, in order."""
    number, first = min(run.count, (len(data) - at) // 4), run.first
    if number == 1:  # as it is for most, who need no table of 256 KiB for it
        same = data[at + 3] == first & 0xFF and data[at + 2] == first >> 8 and data[at + 1] == 2
        return int(same and data[at] == first_byte)
    if number:
        expected, place = acknowledgements(first_byte), 4 * first
        if data[at : at + 4 * number] != expected[place : place + 4 * number]:
            number = count_same(data, at, expected, place)
    return number


def is_begun(data: bytes, at: int) -> bool:
    """Whether a short packet of a kind that this lane takes stands at *at*, and its end is not there yet."""
    if data[at] not in (0x30, 0x31, 0x32, 0x34, 0x40, 0x50, 0x62, 0x70):
        return len(data) - at < 2
    _, end = bounds(data, at)
    return end > len(data) if end else len(data) - at < 2 or (len(data) - at == 2 and data[at + 1] > 0x7F)


class Blocks(dict[bytes, bytes]):
    """Property block of a PUBLISH, length included -> the same with Message Expiry Interval at its end.

    b"" for one that is not for this lane: with an alias or an identifier, that expires at once, whose
    payload must be looked at, or that is none at all. Bounded: emptied at MAXIMUM.
    """

    def __init__(self, config: Config, names: TopicNames) -> None:
        super().__init__()
        self._aliased: dict[bytes, tuple[int, bytes]] = {}
        self._known = dialect_of(MQTT_5, names.strict, True, names).blocks
        self._most_user_properties = config.limits.maximum_user_properties
        self._looks_at_payload = config.protocol.validate_payload_format

    def __missing__(self, raw: bytes) -> bytes:
        if len(self) >= MAXIMUM:
            self.clear()
            self._aliased.clear()
        block = self[raw] = self._settle(raw)
        return block

    def alias_in(self, raw: bytes) -> tuple[int, bytes]:
        """The Topic Alias in *raw* and what is sent of the block; 0: there is none, or it is not for us."""
        self[raw]
        return self._aliased.get(raw, (0, b""))

    def _settle(self, raw: bytes) -> bytes:
        if raw[0] >= SHORTEST:
            return b""
        try:
            block = self._known[raw[1:]]
        except MqttError:
            return b""
        if block.expiry == 0 or "subscription_identifier" in block.properties:
            return b""
        if block.user_properties > self._most_user_properties:
            return b""
        if self._looks_at_payload and block.properties.get("payload_format_indicator") == 1:
            return b""
        sent = block.head if block.expiry is None else block.head + block.expiry.to_bytes(4, "big")
        if block.topic_alias:
            self._aliased[raw] = block.topic_alias, sent
            return b""
        return sent
