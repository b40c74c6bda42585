"""The data types of MQTT: read(buffer, at, strict), write(out, value) [MQTT5 1.5].

Every `read_*` takes bytes and an offset and gives the value and the offset after it; what is cut
off or ill-formed raises MalformedPacket. Only strings look at *strict*. Every `write_*` appends to
a bytearray and raises ValueError for a value that has no such encoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

from broker.errors import MalformedPacket, QuotaExceeded, TopicNameInvalid

VARINT_MAX: Final = 268_435_455
STRING_MAX: Final = 65_535  # bytes, for strings and binary data

REPEATS_MAX: Final = 10_000  # filters, or properties of one name, in a packet: more would hold up all others

# What a receiver may refuse [MQTT5 1.5.4]: control characters and the 66 non-characters.
_LAST_OF_PLANES: Final = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_DISALLOWED: Final = re.compile("[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef" + _LAST_OF_PLANES + "]")

# The one-byte Variable Byte Integers, made once: most packets are shorter than 128 bytes.
_SHORT_VARINTS: Final = tuple(bytes((value,)) for value in range(128))


class DataType(NamedTuple):
    """How one data type is read and written."""

    read: Callable[[bytes, int, bool], tuple[Any, int]]
    write: Callable[[bytearray, Any], None]


def check_count(count: int) -> None:
    """Raises QuotaExceeded above REPEATS_MAX, so that no packet costs more than a moment."""
    if count > REPEATS_MAX:
        raise QuotaExceeded(f"more than {REPEATS_MAX} in one packet")


def read_uint8(buffer: bytes, at: int, strict: bool = True) -> tuple[int, int]:
    if at >= len(buffer):
        raise MalformedPacket("byte cut off")
    return buffer[at], at + 1


def read_uint16(buffer: bytes, at: int, strict: bool = True) -> tuple[int, int]:
    if at + 2 > len(buffer):
        raise MalformedPacket("two byte integer cut off")
    return buffer[at] << 8 | buffer[at + 1], at + 2


def read_uint32(buffer: bytes, at: int, strict: bool = True) -> tuple[int, int]:
    if at + 4 > len(buffer):
        raise MalformedPacket("four byte integer cut off")
    return int.from_bytes(buffer[at : at + 4], "big"), at + 4


def read_varint(buffer: bytes, at: int, strict: bool = True) -> tuple[int, int]:
    """A Variable Byte Integer of one to four bytes, none of them needless [MQTT5 1.5.5]."""
    value = 0
    for shift in (0, 7, 14, 21):
        byte, at = read_uint8(buffer, at)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise MalformedPacket("variable byte integer is longer than needed")
            return value, at
    raise MalformedPacket("variable byte integer of more than four bytes")


def read_binary(buffer: bytes, at: int, strict: bool = True) -> tuple[bytes, int]:
    """Binary Data: a two byte length, then that many bytes [MQTT5 1.5.6]."""
    start = at + 2
    if start > len(buffer):
        raise MalformedPacket("two byte integer cut off")
    end = start + (buffer[at] << 8 | buffer[at + 1])
    if end > len(buffer):
        raise MalformedPacket("string or binary data cut off")
    return buffer[start:end], end


def read_string(buffer: bytes, at: int, strict: bool = True) -> tuple[str, int]:
    """A UTF-8 Encoded String [MQTT5 1.5.4]; *strict* refuses the disallowed code points too."""
    raw, at = read_binary(buffer, at)
    return decode_text(raw, strict), at


def read_string_pair(buffer: bytes, at: int, strict: bool = True) -> tuple[tuple[str, str], int]:
    name, at = read_string(buffer, at, strict)
    value, at = read_string(buffer, at, strict)
    return (name, value), at


def decode_text(raw: bytes, strict: bool) -> str:
    """*raw* as text. U+FEFF is a character like any other and stays [MQTT5 1.5.4-3]."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise MalformedPacket("string is not UTF-8") from None
    if text.isascii() and text.isprintable():
        return text
    if "\0" in text:
        raise MalformedPacket("string holds U+0000")
    if strict and _DISALLOWED.search(text):
        raise MalformedPacket("string holds a control character or a non-character")
    return text


class Seen:
    """Which names came before, in eight kilobytes. Of some that did not it says so, too.

    What comes once is not worth to be remembered: of thousands of devices that each have topics of their own
    that would be as much as all else that is known.
    """

    __slots__ = ("_bits", "_count")

    BITS: ClassVar[int] = 1 << 16

    def __init__(self) -> None:
        self._bits = bytearray(self.BITS // 8)
        self._count = 0

    def add(self, name: bytes | str) -> bool:
        """Whether *name* came before; from now on it did, until too many have."""
        at = hash(name) % self.BITS
        if self._bits[at >> 3] >> (at & 7) & 1:
            return True
        if self._count >= self.BITS // 4:
            self._bits, self._count = bytearray(self.BITS // 8), 0
        self._bits[at >> 3] |= 1 << (at & 7)
        self._count += 1
        return False


class TopicNames(dict[bytes, str]):
    """Raw Topic Name -> the str it stands for, validated once: UTF-8, code points, no wildcard.

    One for all readers of a broker: a topic in use is then one str object, whose hash is known.
    One is kept from the second time on. Bounded: emptied at `MAXIMUM` names, and a name over `LONGEST` bytes
    is never kept.
    Raises MalformedPacket or TopicNameInvalid. b"" gives "": what that means, the caller knows.
    """

    MAXIMUM: ClassVar[int] = 16_384
    LONGEST: ClassVar[int] = 1024

    def __init__(self, strict: bool = True) -> None:
        super().__init__()
        self.strict = strict
        self.seen = Seen()
        self.dialects: dict[Any, Any] = {}  # see dialect_of

    def __missing__(self, raw: bytes) -> str:
        name = decode_text(raw, self.strict)
        if "+" in name or "#" in name:
            raise TopicNameInvalid("topic name holds a wildcard")
        if len(raw) <= self.LONGEST and self.seen.add(raw):
            if len(self) >= self.MAXIMUM:
                self.clear()
            self[raw] = name
        return name


def varint_bytes(value: int) -> bytes:
    """*value* as a Variable Byte Integer."""
    if 0 <= value < 128:
        return _SHORT_VARINTS[value]
    if 0 <= value < 16_384:  # 290 -> 110 ns
        return bytes((value & 0x7F | 0x80, value >> 7))
    if not 0 <= value <= VARINT_MAX:
        raise ValueError(f"{value} does not fit a variable byte integer")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_bytes(text: str) -> bytes:
    """*text* as a UTF-8 Encoded String, length included."""
    raw = text.encode()
    if len(raw) > STRING_MAX or b"\0" in raw:
        raise ValueError("string is longer than 65535 bytes or holds U+0000")
    return len(raw).to_bytes(2, "big") + raw


def write_uint8(out: bytearray, value: int) -> None:
    out += _uint_bytes(value, 1)


def write_uint16(out: bytearray, value: int) -> None:
    out += _uint_bytes(value, 2)


def write_uint32(out: bytearray, value: int) -> None:
    out += _uint_bytes(value, 4)


def write_varint(out: bytearray, value: int) -> None:
    out += varint_bytes(value)


def write_binary(out: bytearray, value: bytes) -> None:
    if len(value) > STRING_MAX:
        raise ValueError("binary data is longer than 65535 bytes")
    out += len(value).to_bytes(2, "big")
    out += value


def write_string(out: bytearray, value: str) -> None:
    out += string_bytes(value)


def write_string_pair(out: bytearray, value: tuple[str, str]) -> None:
    name, text = value
    out += string_bytes(name)
    out += string_bytes(text)


def _uint_bytes(value: int, size: int) -> bytes:
    if not 0 <= value < 1 << 8 * size:
        raise ValueError(f"{value} does not fit {size} bytes")
    return value.to_bytes(size, "big")


UINT8: Final = DataType(read_uint8, write_uint8)
UINT16: Final = DataType(read_uint16, write_uint16)
UINT32: Final = DataType(read_uint32, write_uint32)
VARINT: Final = DataType(read_varint, write_varint)
STRING: Final = DataType(read_string, write_string)
BINARY: Final = DataType(read_binary, write_binary)
STRING_PAIR: Final = DataType(read_string_pair, write_string_pair)
