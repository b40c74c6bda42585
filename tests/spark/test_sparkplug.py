"""Sparkplug B without a JVM: bytes by hand, every data type, aliases, seq."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark.silver.protobuf import write_field
from spark.silver.sparkplug import (
    CODES,
    EdgeNode,
    Metric,
    Payload,
    decode,
    encode,
    number_and_text,
)

# Written by hand from the .proto of the standard: timestamp 1, seq 3, one metric "t" of type Int8 = -1
BY_HAND = bytes.fromhex("08 01  12 0a  0a 01 74  10 07  20 01  50 ff 01  18 03".replace(" ", ""))


def metric(name: str, value: object, **more: object) -> Metric:
    return Metric(name=f"the {name}", datatype=CODES[name], value=value, **more)  # type: ignore[arg-type]


def test_bytes_by_hand() -> None:
    found = decode(BY_HAND)
    assert (found.timestamp, found.seq) == (1, 3)
    assert found.metrics == [Metric(name="t", alias=7, datatype=1, value=-1)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("Int8", -128), ("Int16", -32768), ("Int32", -(2**31)), ("Int64", -(2**63)), ("UInt8", 255)),
        *(("UInt16", 65535), ("UInt32", 2**32 - 1), ("UInt64", 2**64 - 1), ("Float", 0.5), ("Double", 0.1)),
        *(("Boolean", True), ("Boolean", False), ("String", "ü"), ("DateTime", 1_764_000_000_000)),
        *(("Text", ""), ("UUID", "u-1"), ("Bytes", b"\x00\xff"), ("File", b"")),
        *(("Int8Array", [-1, 2]), ("Int16Array", [-300]), ("Int32Array", [1]), ("Int64Array", [-(2**40)])),
        *(("UInt8Array", [200]), ("UInt16Array", [1, 2]), ("UInt32Array", []), ("UInt64Array", [2**63])),
        *(("FloatArray", [0.5, 2.0]), ("DoubleArray", [0.1]), ("DateTimeArray", [5])),
        *(("BooleanArray", [True] * 9 + [False]), ("StringArray", ["a", "", "é"])),
    ],
    ids=str,
)
def test_every_data_type(name: str, value: object) -> None:
    [found] = decode(encode(Payload(5, 1, [metric(name, value, alias=3)]))).metrics
    assert found == metric(name, value, alias=3)


def test_dataset_and_template_are_text() -> None:
    # a DataSet of columns n (Int32), s (String) with one row (-2, "x"); a Template {ref "R", a = true}
    row = bytes.fromhex("0a06 08 fe ff ff ff 0f  0a03 32 01 78".replace(" ", ""))
    table = bytes.fromhex("0802 12016e 120173 1803 180c 22".replace(" ", "")) + bytes([len(row)]) + row
    inner = bytes.fromhex("0a0161 200b 7001".replace(" ", ""))
    template = b"\x12" + bytes([len(inner)]) + inner + bytes.fromhex("220152")
    body = bytes.fromhex("0a0164 2010 8a01".replace(" ", "")) + bytes([len(table)]) + table
    body2 = bytes.fromhex("0a0174 2013 9201".replace(" ", "")) + bytes([len(template)]) + template
    payload = b"\x12" + bytes([len(body)]) + body + b"\x12" + bytes([len(body2)]) + body2
    first, second = decode(payload).metrics
    assert first.value == {"columns": ["n", "s"], "types": ["Int32", "String"], "rows": [[-2, "x"]]}
    assert second.value == {"ref": "R", "version": None, "definition": False, "metrics": {"a": True}}
    assert number_and_text(first.value)[1] == (
        '{"columns": ["n", "s"], "types": ["Int32", "String"], "rows": [[-2, "x"]]}'
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("08", "varint"),
        ("0a05 00", "wants 5 bytes"),
        ("13", "wire type 3"),
        ("00", "field number 0"),
        ("08 ffffffffffffffffffffff", "ten bytes"),
        ("10 01", "a number where a message"),
        ("12 03 0a 01 ff", "decode"),
        ("12 05 20 01 6a 01 00", "bytes where a number"),
        ("12 06 60 80 80 80 80 10", "in a word of 4 bytes"),
    ],
)
def test_what_is_no_payload_is_a_value_error(raw: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(bytes.fromhex(raw.replace(" ", "")))


def test_templates_within_templates_end() -> None:
    body = b""
    for _ in range(40):
        inner = b"\x12" + varint(len(body)) + body  # template.metrics
        body = b"\x92\x01" + varint(len(inner)) + inner  # metric.template_value
    with pytest.raises(ValueError, match="deep"):
        decode(b"\x12" + varint(len(body)) + body)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


NUMBERS = st.integers(0, 2**64 - 1)
FIELDS = st.recursive(  # (number, value): messages of any fields, within each other
    st.tuples(st.integers(1, 20), NUMBERS | st.binary(max_size=9)).map(lambda pair: write_field(*pair)),
    lambda inner: st.tuples(st.integers(1, 20), st.lists(inner, max_size=4)).map(
        lambda pair: write_field(pair[0], b"".join(pair[1]))
    ),
    max_leaves=8,
)


@given(st.binary(max_size=64) | st.lists(FIELDS, max_size=3).map(b"".join))
@example(write_field(2, write_field(12, 1 << 40)))
@example(write_field(2, write_field(17, write_field(4, write_field(1, write_field(3, 1 << 40))))))
def test_any_bytes_are_a_payload_or_a_value_error(raw: bytes) -> None:
    """Nothing else than ValueError, and whatever is a payload can be told and remembered."""
    try:
        found = decode(raw)
        edge = EdgeNode()
        edge.take("NBIRTH", "", found)
    except ValueError:
        return
    assert EdgeNode.from_json(edge.to_json()) == edge
    for metric in found.metrics:
        number_and_text(metric.value)


def birth(seq: int, **aliases: int) -> Payload:
    return Payload(1, seq, [Metric(name, alias, None, CODES["Int16"], 1) for name, alias in aliases.items()])


def data(seq: int | None, alias: int, value: int = 65535) -> Payload:
    return Payload(1, seq, [Metric(alias=alias, value=value)])


def test_aliases_belong_to_edge_node_and_device() -> None:
    edge = EdgeNode()
    assert edge.take("NBIRTH", "", birth(0, speed=1)) is None
    assert edge.take("DBIRTH", "pump", birth(1, flow=1)) is None
    edge = EdgeNode.from_json(edge.to_json())  # what is remembered goes from batch to batch
    of_node, of_device = data(2, 1), data(3, 1)
    assert edge.take("NDATA", "", of_node) is None
    assert edge.take("DDATA", "pump", of_device) is None
    assert (of_node.metrics[0].name, of_device.metrics[0].name) == ("speed", "flow")
    assert of_node.metrics[0].value == -1  # the type is known from the BIRTH alone


def test_seq_and_death() -> None:
    edge = EdgeNode()
    edge.take("NBIRTH", "", birth(0, speed=1))
    assert edge.take("NDATA", "", data(2, 1)) == "seq 2 where 1 was due"
    assert edge.take("NDATA", "", data(3, 1)) is None
    assert edge.take("NDATA", "", data(None, 1)) == "no seq"
    edge.seq = 255
    assert edge.take("NDATA", "", data(0, 1)) is None
    assert edge.take("NDEATH", "", Payload(1, None, [Metric("bdSeq", None, None, 8, 0)])) is None
    assert edge.take("NBIRTH", "", birth(4, other=9)) == "seq 4 where 0 was due"
    with pytest.raises(ValueError, match="alias 1 without a BIRTH"):
        edge.take("NDATA", "", data(5, 1))


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        (True, 1.0, None),
        (2**60 + 1, float(2**60), str(2**60 + 1)),
        (float("nan"), float("nan"), "nan"),
        ("x", None, "x"),
        ([1, 2], None, "[1, 2]"),
        (b"\x01", None, '"AQ=="'),
        (None, None, None),
    ],
)
def test_number_and_text(value: object, number: float | None, text: str | None) -> None:
    found = number_and_text(value)
    assert found[1] == text
    assert found[0] == number or number != number
