"""Sparkplug B payloads: bytes <-> Metric, and what an edge node has to be remembered for.

Pure: no Spark. `decode` reads one payload; `EdgeNode` resolves the aliases that BIRTH messages gave
[Sparkplug 3.0, 6.4.5] and checks `seq`, which runs 0..255 over all messages of an edge node and its devices.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any

from spark.silver.protobuf import FIXED32, FIXED64, Value, fields, packed, write_field

NAMES = (
    *("Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float", "Double", "Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File"),
    *("Template", "PropertySet", "PropertySetList"),
    *("Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array"),
    *("UInt64Array", "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"),
)
CODES = {name: code for code, name in enumerate(NAMES)}
SIGNED = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}  # bits; the wire has two's complement
UNSIGNED = {"UInt8": 8, "UInt16": 16, "UInt32": 32, "UInt64": 64}
ITEMS = {  # little-endian words of an array [6.4.16]
    "Int8": "b",
    "Int16": "h",
    "Int32": "i",
    "Int64": "q",
    "UInt8": "B",
    "UInt16": "H",
    "UInt32": "I",
    "UInt64": "Q",
    "Float": "f",
    "Double": "d",
    "DateTime": "Q",
}
INT_VALUE, LONG_VALUE, FLOAT_VALUE, DOUBLE_VALUE, BOOLEAN_VALUE, STRING_VALUE, BYTES_VALUE = range(10, 17)
DATASET_VALUE, TEMPLATE_VALUE = 17, 18
MAX_DEPTH = 16  # templates inside templates


@dataclass(slots=True)
class Metric:
    """One metric. In DATA messages `name` may be None and `datatype` 0: the BIRTH of that alias has them."""

    name: str | None = None
    alias: int | None = None
    timestamp: int | None = None  # ms since 1970
    datatype: int = 0
    value: Any = None
    historical: bool = False
    null: bool = False


@dataclass(slots=True)
class Payload:
    timestamp: int | None = None  # ms since 1970
    seq: int | None = None
    metrics: list[Metric] = field(default_factory=list)


def text_of(value: Value) -> str:
    if isinstance(value, int):
        raise ValueError("a number where text was expected")
    return bytes(value).decode("utf-8")


def message_of(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value


def number_of(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number was expected")
    return value


def word_of(value: Value, size: int) -> bytes:
    """The bytes of a fixed word; a varint may come in its place, and be too large for it."""
    number = number_of(value)
    if number >> 8 * size:
        raise ValueError(f"{number} in a word of {size} bytes")
    return number.to_bytes(size, "little")


def decode(payload: bytes) -> Payload:
    """One payload; ValueError for whatever is not a Sparkplug B payload. Unknown fields are passed over."""
    found = Payload()
    for number, _, value in fields(memoryview(payload)):
        if number == 1:
            found.timestamp = number_of(value)
        elif number == 2:
            found.metrics.append(decode_metric(message_of(value)))
        elif number == 3:
            found.seq = number_of(value)
    return found


def decode_metric(buffer: memoryview, depth: int = 0) -> Metric:
    """One metric, its value still as the wire has it where the datatype is not known yet."""
    if depth > MAX_DEPTH:
        raise ValueError(f"templates more than {MAX_DEPTH} deep")
    metric = Metric()
    wire: tuple[int, Value] | None = None
    for number, _, value in fields(buffer):
        match number:
            case 1:
                metric.name = text_of(value)
            case 2:
                metric.alias = number_of(value)
            case 3:
                metric.timestamp = number_of(value)
            case 4:
                metric.datatype = number_of(value)
            case 5:
                metric.historical = bool(value)
            case 7:
                metric.null = bool(value)
            case _ if INT_VALUE <= number <= TEMPLATE_VALUE:
                wire = number, value
    if wire is not None and not metric.null:
        metric.value = plain(*wire, depth)
        if metric.datatype:
            metric.value = typed(metric.datatype, metric.value)
    return metric


def plain(number: int, value: Value, depth: int = 0) -> Any:
    """The value of a oneof member of a metric, by its field number alone."""
    if number in (INT_VALUE, LONG_VALUE):
        return number_of(value)
    if number == BOOLEAN_VALUE:
        return bool(number_of(value))
    if number == FLOAT_VALUE:
        return struct.unpack("<f", word_of(value, 4))[0]
    if number == DOUBLE_VALUE:
        return struct.unpack("<d", word_of(value, 8))[0]
    if number == STRING_VALUE:
        return text_of(value)
    if number == BYTES_VALUE:
        return bytes(message_of(value))
    if number == DATASET_VALUE:
        return dataset(message_of(value))
    return template(message_of(value), depth)


def typed(datatype: int, value: Any) -> Any:
    """*value* as *datatype* means it: the sign of integers, the items of arrays. ValueError if it is none."""
    name = NAMES[datatype] if datatype < len(NAMES) else "Unknown"
    if name in SIGNED or name in UNSIGNED:
        bits = SIGNED.get(name) or UNSIGNED[name]
        if not isinstance(value, int):
            raise ValueError(f"{type(value).__name__} in a metric of type {name}")
        value &= (1 << bits) - 1
        return value - (1 << bits) if name in SIGNED and value >> (bits - 1) else value
    if name.endswith("Array") and isinstance(value, bytes):
        return array(name.removesuffix("Array"), value)
    return value


def array(item: str, raw: bytes) -> list[Any]:
    if item == "String":
        return raw.decode("utf-8").split("\0")[:-1]  # each one ends in a zero byte
    if item == "Boolean":
        count = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 or count > 8 * (len(raw) - 4):
            raise ValueError(f"{count} booleans in {len(raw)} bytes")
        return [bool(raw[4 + at // 8] >> (7 - at % 8) & 1) for at in range(count)]
    size = struct.calcsize(ITEMS[item])
    if len(raw) % size:
        raise ValueError(f"{len(raw)} bytes are no whole {item} items")
    return list(struct.unpack(f"<{len(raw) // size}{ITEMS[item]}", raw))


def dataset(buffer: memoryview) -> dict[str, Any]:
    """{"columns": names, "types": names of types, "rows": lists}."""
    columns: list[str] = []
    types: list[int] = []
    rows: list[memoryview] = []
    for number, _, value in fields(buffer):
        if number == 2:
            columns.append(text_of(value))
        elif number == 3:
            types.extend(packed(value))
        elif number == 4:
            rows.append(message_of(value))
    names = [NAMES[code] if code < len(NAMES) else str(code) for code in types]
    return {"columns": columns, "types": names, "rows": [dataset_row(row, types) for row in rows]}


def dataset_row(buffer: memoryview, types: list[int]) -> list[Any]:
    cells: list[Any] = []
    for number, _, element in fields(buffer):
        if number != 1:
            continue
        value = None
        for member, _, wire in fields(message_of(element)):
            if 1 <= member <= 6:
                value = plain(member + INT_VALUE - 1, wire)  # the same six kinds, numbered from 1
        code = types[len(cells)] if len(cells) < len(types) else 0
        cells.append(typed(code, value) if code and value is not None else value)
    return cells


def template(buffer: memoryview, depth: int) -> dict[str, Any]:
    """{"ref", "version", "definition", "metrics": {name: value}}."""
    found: dict[str, Any] = {"ref": None, "version": None, "definition": False, "metrics": {}}
    for number, _, value in fields(buffer):
        if number == 1:
            found["version"] = text_of(value)
        elif number == 2:
            metric = decode_metric(message_of(value), depth + 1)
            found["metrics"][metric.name or f"alias {metric.alias}"] = metric.value
        elif number == 4:
            found["ref"] = text_of(value)
        elif number == 5:
            found["definition"] = bool(value)
    return found


def number_and_text(value: Any) -> tuple[float | None, str | None]:
    """What a table of points keeps of *value*: numbers and booleans as a number, all else as text."""
    if value is None:
        return None, None
    if isinstance(value, bool | int | float):
        number = float(value)
        exact = isinstance(value, bool | float) or abs(value) <= 1 << 53
        return number, None if exact and math.isfinite(number) else str(value)
    if isinstance(value, str):
        return None, value
    return None, json.dumps(value, ensure_ascii=False, default=lambda raw: base64.b64encode(raw).decode())


@dataclass(slots=True)
class EdgeNode:
    """What is remembered of one edge node between its messages; goes through JSON from batch to batch.

    `aliases` has one table per device; the edge node's own is under "". An NBIRTH forgets all of them.
    """

    seq: int | None = None
    aliases: dict[str, dict[int, tuple[str, int]]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> EdgeNode:
        raw = json.loads(text)
        tables = {
            device: {int(alias): (name, code) for alias, (name, code) in table.items()}
            for device, table in raw["aliases"].items()
        }
        return cls(raw["seq"], tables)

    def to_json(self) -> str:
        return json.dumps({"seq": self.seq, "aliases": self.aliases}, sort_keys=True)

    def take(self, kind: str, device: str, payload: Payload) -> str | None:
        """Resolve the names and types of *payload* in place; what was wrong with its `seq`, or None.

        ValueError if an alias is in no BIRTH: the metrics mean nothing then.
        """
        wrong = self.check_seq(kind, payload.seq)
        if kind == "NBIRTH":
            self.aliases.clear()
        if kind in ("NBIRTH", "DBIRTH"):
            self.aliases[device] = {
                metric.alias: (metric.name or "", metric.datatype)
                for metric in payload.metrics
                if metric.alias is not None
            }
        if kind == "DDEATH":
            self.aliases.pop(device, None)
        for metric in payload.metrics:
            if metric.name is None:
                self.resolve(metric, device)
        return wrong

    def check_seq(self, kind: str, seq: int | None) -> str | None:
        """NDEATH and commands have no `seq`; an NBIRTH starts it at 0 [6.4.23]."""
        if kind not in ("NBIRTH", "NDATA", "DBIRTH", "DDATA", "DDEATH"):
            return None
        wanted = 0 if kind == "NBIRTH" else None if self.seq is None else (self.seq + 1) % 256
        self.seq = seq
        if seq is None:
            return "no seq"
        return None if wanted is None or seq == wanted else f"seq {seq} where {wanted} was due"

    def resolve(self, metric: Metric, device: str) -> None:
        if metric.alias is None:
            raise ValueError("a metric with neither name nor alias")
        known = self.aliases.get(device, {}).get(metric.alias) or self.aliases.get("", {}).get(metric.alias)
        if known is None:
            raise ValueError(f"alias {metric.alias} without a BIRTH")
        metric.name, code = known
        if not metric.datatype:
            metric.datatype = code
            metric.value = None if metric.value is None else typed(code, metric.value)


def encode(payload: Payload) -> bytes:
    """The bytes of *payload*; values of scalar types and arrays only, as samples and tests need them."""
    out = bytearray()
    if payload.timestamp is not None:
        out += write_field(1, payload.timestamp)
    for metric in payload.metrics:
        out += write_field(2, encode_metric(metric))
    if payload.seq is not None:
        out += write_field(3, payload.seq)
    return bytes(out)


def encode_metric(metric: Metric) -> bytes:
    out = bytearray()
    if metric.name is not None:
        out += write_field(1, metric.name)
    for number, value in ((2, metric.alias), (3, metric.timestamp), (4, metric.datatype or None)):
        if value is not None:
            out += write_field(number, value)
    if metric.historical:
        out += write_field(5, 1)
    if metric.value is None:
        return bytes(out + write_field(7, 1))
    return bytes(out + encode_value(NAMES[metric.datatype], metric.value))


def encode_value(name: str, value: Any) -> bytes:
    if name.endswith("Array"):
        return write_field(BYTES_VALUE, encode_array(name.removesuffix("Array"), value))
    match value:
        case bool():
            return write_field(BOOLEAN_VALUE, int(value))
        case int():
            wide = name in ("Int64", "UInt64", "UInt32", "DateTime")
            return write_field(LONG_VALUE if wide else INT_VALUE, value if wide else value & 0xFFFFFFFF)
        case float() if name == "Float":
            return write_field(FLOAT_VALUE, struct.pack("<f", value), FIXED32)
        case float():
            return write_field(DOUBLE_VALUE, struct.pack("<d", value), FIXED64)
        case str():
            return write_field(STRING_VALUE, value)
        case _:
            return write_field(BYTES_VALUE, bytes(value))


def encode_array(item: str, values: list[Any]) -> bytes:
    if item == "String":
        return b"".join(value.encode() + b"\0" for value in values)
    if item == "Boolean":
        bits = bytearray((len(values) + 7) // 8)
        for at, value in enumerate(values):
            bits[at // 8] |= bool(value) << (7 - at % 8)
        return len(values).to_bytes(4, "little") + bytes(bits)
    return struct.pack(f"<{len(values)}{ITEMS[item]}", *values)
