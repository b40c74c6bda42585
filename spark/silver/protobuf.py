"""The wire format of Protocol Buffers, as far as Sparkplug B needs it: tags, varints, lengths, fixed words.

Pure: no Spark, no other package. Positions are counted in bytes; every error is a ValueError that says where.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4, groups, are refused

Value = int | memoryview


def read_varint(buffer: memoryview, at: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the position after it."""
    value = shift = 0
    while True:
        if at >= len(buffer):
            raise ValueError(f"a varint runs over the end at byte {at}")
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a varint of more than ten bytes ends at byte {at}")


def fields(buffer: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Every (field number, wire type, value) of one message, in order.

    A fixed word is given as its little-endian bytes read as an unsigned number.
    """
    at, end = 0, len(buffer)
    while at < end:
        tag, at = read_varint(buffer, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError(f"field number 0 before byte {at}")
        if kind == VARINT:
            value, at = read_varint(buffer, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = read_varint(buffer, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} before byte {at}")
        if size > end - at:
            raise ValueError(f"field {number} wants {size} bytes at byte {at}, {end - at} are left")
        piece = buffer[at : at + size]
        at += size
        yield number, kind, piece if kind == BYTES else int.from_bytes(piece, "little")


def packed(value: Value) -> Iterator[int]:
    """The numbers of a repeated varint field, whether packed into one run of bytes or given one by one."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = read_varint(value, at)
        yield number


def write_varint(value: int) -> bytes:
    """*value* as a varint; negative numbers as 64-bit two's complement, ten bytes."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_field(number: int, value: int | bytes | str, kind: int | None = None) -> bytes:
    """One field with its tag: an int as a varint, bytes and str with their length, or *kind* FIXED."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        if kind in (FIXED32, FIXED64):
            return write_varint(number << 3 | kind) + value
        return write_varint(number << 3 | BYTES) + write_varint(len(value)) + value
    return write_varint(number << 3 | VARINT) + write_varint(value)
