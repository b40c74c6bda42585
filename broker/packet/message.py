"""Message: what is routed and stored, and its bytes as PUBLISH."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from typing import Any, Final

from broker.packet.enums import Version
from broker.packet.packets import NO_PROPERTIES, Properties, PropertyBlock
from broker.packet.properties import (
    PropertyBlocks,
    block_size,
    properties_size,
    publish_block,
    text_size,
    travelling,
)
from broker.packet.wire import Seen, TopicNames, string_bytes, varint_bytes

__all__ = ["Message", "encode_publish", "text_size", "travelling"]

MQTT_5: Final = Version.MQTT_5
LAST_IDENTIFIER: Final = 65535

_FIRST_BYTES = tuple(bytes((0x30 | flags,)) for flags in range(16))


class _Heads(dict[int, bytes]):
    """Remaining Length << 4 | flags -> the fixed header of such a PUBLISH; bounded."""

    def __missing__(self, key: int) -> bytes:
        if len(self) >= 4096:
            self.clear()
        head = self[key] = _FIRST_BYTES[key & 15] + varint_bytes(key >> 4)
        return head


_HEADS = _Heads()  # 150 ns less a message than to make it (CPython 3.11)
_RETAINED_HEADS: Final = tuple(bytes((0x31, length)) for length in range(128))


class _EncodedTopics(dict[str, bytes]):
    """Topic Name -> the same as UTF-8 Encoded String; bounded as `TopicNames` is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()

    def __missing__(self, topic_name: str) -> bytes:
        raw = string_bytes(topic_name)
        if len(raw) <= TopicNames.LONGEST and self.seen.add(topic_name):
            if len(self) >= TopicNames.MAXIMUM:
                self.clear()
            self[topic_name] = raw
        return raw


# benchmarks/codec.py: string_bytes() takes 230 ns, this 40 (CPython 3.11, 2 cores).
ENCODED_TOPICS: Final = _EncodedTopics()

Frames = dict[int, tuple[bytes, bytes]]  # (5.0 or not, qos, retain) in four bits -> (head, tail)


NEVER_ROUTED: Final = -1e15  # `expires_at` of what is held for QoS 2 alone; no clock comes near it


@dataclass(slots=True, init=False)
class Message:
    """An Application Message on its way.

    *properties* are those of `travelling`. *client_id* is the publisher's. *expires_at* is in seconds
    of the broker's clock; None: never. Once routed a message is shared: change it with `with_`, since
    setting a field leaves the caches behind. *block* is what *properties* are on the wire: whoever made
    the one of the other sets it; None: not known yet.
    """

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties
    client_id: str
    expires_at: float | None
    # What hooks made this message of, for one subscriber; handed on to another one it is made anew.
    original: Message | None = field(init=False, repr=False, compare=False)
    # The row of a durable store that holds it; copies of `bare` share it.
    record: Any = field(init=False, repr=False, compare=False)
    block: PropertyBlock | None = field(init=False, repr=False, compare=False)
    # A hook's own note, for when it hears of this message again; copies have it, restarts forget it.
    mark: Any = field(init=False, repr=False, compare=False)
    _size: int = field(init=False, repr=False, compare=False)
    _frames: Frames | None = field(init=False, repr=False, compare=False)
    _left: int | None = field(init=False, repr=False, compare=False)  # see `count_down`
    _ages_at: float = field(init=False, repr=False, compare=False)

    def __init__(  # by hand, as in Publish
        self,
        topic_name: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        client_id: str = "",
        expires_at: float | None = None,
    ) -> None:
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.client_id = client_id
        self.expires_at = expires_at
        self.original = None
        self.record = None
        self.block = None
        self.mark = None
        self._size = -1
        self._frames = None
        self._left = None
        self._ages_at = 0.0

    @property
    def size(self) -> int:
        """About the bytes it takes: topic, payload and property values; counted once."""
        if self._size < 0:
            taken, block = 0, self.block
            if self.properties:
                taken = properties_size(self.properties) if block is None else block_size(block)
            self._size = text_size(self.topic_name) + len(self.payload) + taken
        return self._size

    @property
    def wire(self) -> bytes:
        """Its 5.0 properties on the wire, without their length and without Message Expiry Interval."""
        block = self.block or publish_block(self.properties)
        if len(block.wire) <= PropertyBlocks.LONGEST:  # else it would be kept and counted by nobody
            self.block = block
        return block.wire

    def expire_after(self, interval: int, now: float) -> None:
        """Its deadline, *interval* seconds from *now*: for a second from now that is what is left."""
        self.expires_at = now + interval
        self._left = interval
        self._ages_at = now + 1
        self._frames = None

    def count_down(self, now: float) -> int | None:
        """The seconds until it expires, rounded up, never below 0 [MQTT5 3.3.2.3.3]; None: it does not.

        The frames that are asked for afterwards say so. They are made anew only when a second has passed.
        """
        if self.expires_at is not None and now >= self._ages_at:
            left = max(0, ceil(self.expires_at - now))
            self._left = min(left, self.properties.get("message_expiry_interval", left))
            self._ages_at = self.expires_at - self._left + 1
            self._frames = None
        return self._left

    def bare(self) -> Message:
        """A copy to keep: without the encoded frames, which can be made again."""
        copy = self.with_()
        copy.original, copy.record, copy.block, copy._size = (
            self.original, self.record, self.block, self._size
        )  # fmt: skip
        return copy

    def forget_frames(self) -> None:
        """Whoever could be sent the same bytes has them: what is in flight need not hold them twice."""
        self._frames = None

    def changed(self) -> None:
        """Fields were set in place: what was made of the old ones is forgotten."""
        self._size, self._frames, self._left, self._ages_at = -1, None, None, 0.0

    def with_(self, **changes: Any) -> Message:
        """A copy with other fields and without caches; an unknown field raises AttributeError."""
        copy = Message(
            self.topic_name,
            self.payload,
            self.qos,
            self.retain,
            self.properties,
            self.client_id,
            self.expires_at,
        )
        copy.mark = self.mark
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    def __reduce__(self) -> tuple[type[Message], tuple[Any, ...]]:
        """For copy and pickle: without caches, as `with_`."""
        fields = (self.topic_name, self.payload, self.qos, self.retain)
        return Message, (*fields, self.properties, self.client_id, self.expires_at)

    def frame(self, version: Version, qos: int, retain: bool) -> tuple[bytes, bytes]:
        """(head, tail) of its PUBLISH, DUP 0, made once per 5.0 or not, *qos* and *retain*.

        QoS 0: head is the whole packet. QoS 1, 2: the Packet Identifier (two bytes) goes between.
        Message Expiry Interval is what `count_down` said last.
        """
        key = (version is MQTT_5) << 3 | qos << 1 | retain
        frames = self._frames
        if frames is None:
            frames = self._frames = {}
        found = frames.get(key)
        if found is None:
            found = frames[key] = self._make_frame(version, qos, retain)
        return found

    def _sent_properties(self) -> bytes:
        """All properties on the wire, with what is left of the Message Expiry Interval."""
        block, left = self.block, self._left
        if block is not None and block.expiry is None and left is None:
            return block.head
        if block is not None and block.expiry is not None and left is not None:
            return block.head + left.to_bytes(4, "big")
        return _properties(self, left, 0, ())

    def _make_frame(self, version: Version, qos: int, retain: bool) -> tuple[bytes, bytes]:
        topic, payload, block = ENCODED_TOPICS[self.topic_name], self.payload, b""
        if version is MQTT_5:
            block = self._sent_properties() if self.properties or self._left is not None else b"\0"
        length, flags = len(topic) + len(block) + len(payload), qos << 1 | retain
        if qos == 0:
            return b"".join((_HEADS[length << 4 | flags], topic, block, payload)), b""
        return _HEADS[length + 2 << 4 | flags] + topic, block + payload if block else payload


def encode_publish(
    message: Message,
    version: Version,
    qos: int,
    retain: bool,
    *,
    dup: bool = False,
    packet_id: int = 0,
    subscription_identifiers: Iterable[int] = (),
    message_expiry_interval: int | None = None,
    topic_alias: int = 0,
    with_topic: bool = True,
) -> bytes:
    """The PUBLISH that brings *message* to one subscriber; to 3.x without any property.

    *message_expiry_interval* (seconds left) takes the place of the one received. *with_topic* False
    needs 5.0 and a *topic_alias*. Raises ValueError for what the standard forbids to send.
    """
    if bool(qos) != bool(packet_id) or (dup and not qos):
        raise ValueError("QoS, packet identifier and DUP do not go together")
    five = version == MQTT_5
    if with_topic:
        topic = ENCODED_TOPICS[message.topic_name]
    elif five and topic_alias:
        topic = b"\0\0"
    else:
        raise ValueError("neither topic name nor topic alias")
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    block = b""
    if five:
        plain = not (topic_alias or subscription_identifiers or message.properties)
        if plain and message_expiry_interval is None:
            block = b"\0"
        else:
            block = _properties(message, message_expiry_interval, topic_alias, subscription_identifiers)
    payload = message.payload
    length = varint_bytes(len(topic) + len(identifier) + len(block) + len(payload))
    first = _FIRST_BYTES[dup << 3 | qos << 1 | retain]
    return b"".join((first, length, topic, identifier, block, payload))


def numbered_packets(messages: Iterable[Message], version: Version, first: int) -> bytes:
    """The PUBLISH of each of *messages* with QoS 1 and with identifiers from *first* on.

    For what nobody else is sent, and so without the caches of `frame`, which is the plain version.
    """
    parts: list[bytes] = []
    five, block = version is MQTT_5, b""
    for packet_id, message in enumerate(messages, first):
        topic, payload = ENCODED_TOPICS[message.topic_name], message.payload
        if five:
            block = _properties(message, None, 0, ()) if message.properties else b"\0"
        length = varint_bytes(len(topic) + 2 + len(block) + len(payload))
        parts += (b"\x32", length, topic, packet_id.to_bytes(2, "big"), block, payload)
    return b"".join(parts)


# A retained message that is nothing but its PUBLISH: QoS 0, no properties, an ASCII Topic Name. The packet,
# as a 3.x client is sent it and of less than 16,384 bytes, the Topic Name, and the publisher's ClientID. Half
# the memory of a Message, and none of the garbage collector's time, which leaves alone what is a mere tuple
# (3.7 -> 2.7 us to store one of 50,000; CPython 3.11). Where most are such ones, ask isinstance() for a
# tuple: no for an answer takes it 50 ns more than yes.
Plain = tuple[bytes, str, str]
Retained = Message | Plain


def plain_size(packet: bytes) -> int:
    """As that of the Message."""
    return len(packet) - (4 if len(packet) < 130 else 5)


def retained_size(retained: Retained) -> int:
    """The size of its Message."""
    return plain_size(retained[0]) if isinstance(retained, tuple) else retained.size


def as_message(retained: Retained) -> Message:
    """*retained*, ready for whatever is done with messages."""
    if isinstance(retained, Message):
        return retained
    packet, topic_name, client_id = retained
    payload = packet[len(packet) - plain_size(packet) + len(topic_name) :]
    return Message(topic_name, payload, 0, True, client_id=client_id)


def retained_packets(messages: Sequence[Retained], version: Version) -> bytes:
    """The PUBLISH of each of *messages* with QoS 0 and RETAIN 1, which is sent once and kept by nobody.

    None may have an expiry. 880 -> 180 ns a message: `bare` and `frame` are the plain version (30,000 topics,
    64 bytes; CPython 3.11, 2 cores).
    """
    five = version is MQTT_5
    if not five:
        plain = [message[0] for message in messages if isinstance(message, tuple)]
        if len(plain) == len(messages):
            return b"".join(plain)
    parts: list[bytes] = []
    for message in messages:
        if isinstance(message, tuple):
            packet, name, _ = message
            start = 2 if len(packet) < 130 else 3
            length, payload_at = len(packet) - start + 1, start + 2 + len(name)
            if five:
                head = b"\x31" + varint_bytes(length)
                parts += (head, packet[start:payload_at], b"\0", packet[payload_at:])
            else:
                parts.append(packet)
            continue
        topic, payload, block = message.topic_name.encode(), message.payload, b""
        if five:
            block = _properties(message, None, 0, ()) if message.properties else b"\0"
        size = len(topic)
        length = size + len(payload) + len(block) + 2
        head = _RETAINED_HEADS[length] if length < 128 else b"\x31" + varint_bytes(length)
        parts += (head, size.to_bytes(2, "big"), topic, block, payload)
    return b"".join(parts)


def _properties(
    message: Message, remaining: int | None, topic_alias: int, identifiers: Iterable[int]
) -> bytes:
    """The whole property block; *remaining* takes the place of the Message Expiry Interval received."""
    if remaining is None:
        remaining = message.properties.get("message_expiry_interval")
    block = message.wire if message.properties else b""
    if remaining is not None:
        block += b"\x02" + remaining.to_bytes(4, "big")
    if topic_alias:
        block += b"\x23" + topic_alias.to_bytes(2, "big")
    for identifier in identifiers:
        block += b"\x0b" + varint_bytes(identifier)
    return varint_bytes(len(block)) + block


# ---- packets as bytes, many at once


@cache
def halves() -> tuple[bytes, bytes]:
    """The high and the low bytes of all Packet Identifiers, by identifier."""
    numbers = range(LAST_IDENTIFIER + 1)
    return bytes(number >> 8 for number in numbers), bytes(number & 0xFF for number in numbers)


def bounds(data: bytes, at: int) -> tuple[int, int]:
    """Where the body of the packet at *at* begins and ends; an end of 0: its length is not there or not ours.

    It may end behind *data*. A length of more than two bytes, or one that is longer than needed, is not ours.
    """
    left = len(data) - at
    if left < 2:
        return 0, 0
    length, start = data[at + 1], at + 2
    if length > 0x7F:
        if left < 3 or not 0 < data[at + 2] < 0x80:
            return 0, 0
        length, start = length & 0x7F | data[at + 2] << 7, at + 3
    return start, start + length


def rewrite(stretch: bytes, five: bool, qos: int, to_five: bool, to_qos: int) -> bytes:
    """PUBLISH packets of one version and QoS as those of another; *to_qos* is *qos* or lower.

    *stretch* has no flags but *qos*, and properties of less than 128 bytes, which 3.x does not get.
    """
    out, at, first_byte = bytearray(), 0, bytes((0x30 | to_qos << 1,))
    while at < len(stretch):
        start, at = bounds(stretch, at)
        topic_end = start + 2 + (stretch[start] << 8 | stretch[start + 1])
        block_at = topic_end + (2 if qos else 0)
        payload_at = block_at + 1 + stretch[block_at] if five else block_at
        head = stretch[start : block_at if to_qos else topic_end]
        block = (stretch[block_at:payload_at] or b"\0") if to_five else b""
        out += first_byte + varint_bytes(len(head) + len(block) + at - payload_at)
        out += head + block + stretch[payload_at:at]
    return bytes(out)


def topic_size(name: bytes) -> int:
    """What `text_size` says of a Topic Name that stands there as *name*."""
    return len(name) if name.isascii() else text_size(name.decode())


def renumber(packets: bytes, size: int, offset: int, first: int) -> bytes:
    """*packets* of *size* bytes each, with the identifiers from *first* on, which stand at *offset*."""
    high, low = halves()
    count = len(packets) // size
    out = bytearray(packets)
    out[offset::size] = high[first : first + count]
    out[offset + 1 :: size] = low[first : first + count]
    return bytes(out)


def renumber_each(packets: bytes, first: int) -> bytes:
    """The same for packets of any size."""
    out, at = bytearray(packets), 0
    while at < len(packets):
        start, at = bounds(packets, at)
        place = start + 2 + (packets[start] << 8 | packets[start + 1])
        out[place] = first >> 8
        out[place + 1] = first & 0xFF
        first += 1
    return bytes(out)
