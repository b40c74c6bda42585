"""Types that are inferred and widened, without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.silver import ddl
from spark.silver.ddl import (
    VOID,
    Type,
    Versions,
    bounded,
    distinct,
    known,
    leaves,
    read_ddl,
    read_type,
    widen,
    write_type,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
TYPES: st.SearchStrategy[Type] = st.recursive(
    st.sampled_from(["INT", "BIGINT", "DOUBLE", "STRING", "BOOLEAN", VOID]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3) | st.lists(inner, min_size=1, max_size=1),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OBJECT<a: BIGINT, b: DECIMAL(20,0)>", {"a": "BIGINT", "b": "DOUBLE"}),
        ("OBJECT<`we ird.k``y,`: BIGINT, ``: STRING>", {"we ird.k`y,": "BIGINT", "": "STRING"}),
        ("OBJECT<d: OBJECT<x: VOID>, f: OBJECT<>>", {"d": {"x": VOID}, "f": {}}),
        ("ARRAY<OBJECT<q: BIGINT>>", [{"q": "BIGINT"}]),
        ("STRUCT<a: SMALLINT, b: FLOAT>", {"a": "INT", "b": "DOUBLE"}),
        ("VARIANT", "STRING"),
        ("ARRAY<VARIANT>", ["STRING"]),
    ],
)
def test_types_are_read(text: str, kind: Type) -> None:
    assert read_type(text) == kind


def test_deep_types_are_text_and_cost_no_recursion() -> None:
    deep = "OBJECT<a: " * 20_000 + "BIGINT" + ">" * 20_000
    assert [len(path) for path, _ in leaves(read_type(deep))] == [ddl.MAX_DEPTH]


@pytest.mark.parametrize("text", ["", "OBJECT<a", "OBJECT<a: BIGINT", "ARRAY<OBJECT<"])
def test_what_is_no_type_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="type"):
        read_type(text)


@pytest.mark.parametrize(
    ("old", "new", "wide"),
    [
        ("INT", "BIGINT", "BIGINT"),
        ("BIGINT", "INT", "BIGINT"),
        ("BIGINT", "DOUBLE", "DOUBLE"),
        ("DOUBLE", "STRING", "STRING"),
        ("BOOLEAN", "BIGINT", "STRING"),
        (VOID, "BIGINT", "BIGINT"),
        ("BIGINT", VOID, "BIGINT"),
        ({"a": "INT"}, {"b": "STRING"}, {"a": "INT", "b": "STRING"}),
        ({"a": {"x": "INT"}}, {"a": {"x": "DOUBLE"}}, {"a": {"x": "DOUBLE"}}),
        ({"a": "INT"}, "INT", "STRING"),
        (["INT"], ["DOUBLE"], ["DOUBLE"]),
        (["INT"], {"a": "INT"}, "STRING"),
    ],
)
def test_widening(old: Type, new: Type, wide: Type) -> None:
    assert widen(old, new) == wide


@given(TYPES, TYPES)
def test_what_was_widened_takes_both_and_stays(one: Type, other: Type) -> None:
    wide = widen(one, other)
    assert widen(wide, one) == wide
    assert widen(wide, other) == wide


@given(TYPES)
def test_what_is_written_is_read(kind: Type) -> None:
    assert read_ddl(write_type(kind)) == kind


def test_a_declared_type_is_read_as_it_was_written() -> None:
    """Or each batch would find another type than that of its table, and make a new version."""
    deep: Type = "FLOAT"
    for _ in range(ddl.MAX_DEPTH + 2):
        deep = {"x": deep}
    kind: Type = {"s": "SMALLINT", "d": "DECIMAL(10,2)", "m": "map<string,decimal(4,1)>", "deep": deep}
    assert read_ddl(write_type(kind)) == kind


@given(TYPES)
def test_a_table_has_no_void_and_no_empty_struct(kind: Type) -> None:
    whole = known(kind)
    assert whole == VOID or all(each not in (VOID, {}) for _, each in leaves(whole))


@given(TYPES)
def test_names_differ_in_more_than_their_case(kind: Type) -> None:
    for one in structs(distinct(kind)):
        assert len({name.lower() for name in one}) == len(one)
    assert len(leaves(distinct(kind))) == len(leaves(kind))


def structs(kind: Type) -> list[dict[str, Type]]:
    if isinstance(kind, list):
        return structs(kind[0])
    return [kind, *(one for each in kind.values() for one in structs(each))] if isinstance(kind, dict) else []


def test_names_keep_their_order() -> None:
    kind: Type = {"a": "INT", "A": "STRING", "a_2": "INT", "b": [{"x": "INT", "X": "INT"}]}
    assert distinct(kind) == {"a": "INT", "A_3": "STRING", "a_2": "INT", "b": [{"x": "INT", "X_2": "INT"}]}


def test_keys_that_are_data_do_not_make_columns_without_end() -> None:
    old: Type = {"a": "INT"}
    assert bounded(old, {f"k{n}": "INT" for n in range(ddl.MAX_FIELDS + 1)}) == old
    assert bounded(old, [{f"k{n}": "INT" for n in range(ddl.MAX_FIELDS + 1)}]) == old
    assert bounded(old, {"a": "INT", "b": "INT"}) == {"a": "INT", "b": "INT"}


def test_versions_are_kept_by_number(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "zigbee")
    assert versions.newest() == (0, VOID)
    assert versions.add({"a": "BIGINT", "b": VOID}) == 1
    assert versions.add({"a": "DOUBLE", "b": "STRING"}) == 2
    (tmp_path / "zigbee" / ".3.ddl.77.part").write_text("STRUCT<a")  # left by a job that was killed
    assert versions.newest() == (2, {"a": "DOUBLE", "b": "STRING"})
    assert (tmp_path / "zigbee" / "1.ddl").read_text() == "STRUCT<`a`: BIGINT, `b`: VOID>\n"
    odd: Type = {"\r": "INT", "\r\n": "INT", "\0": "INT", "`": "INT"}
    versions.add(odd)
    assert versions.newest() == (3, odd)
