"""Every statement has a test, every test a statement, and every test looks at the wire."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.conformance import coverage_table
from tests.conformance.coverage_table import (
    DOC,
    SHARED_CHECKS,
    all_tests,
    covered,
    document,
    functions_of,
    key_of,
    looks,
    statements,
)


def test_the_tables_are_whole() -> None:
    """The numbers of section 7 of either standard, two mistyped ids of 3.1.1 set right."""
    counts = Counter(one.standard for one in statements().values())
    assert counts == {"mqtt5": 251, "mqtt311": 141, "x5": 42, "x3": 10, "b": 34}
    bound = Counter(one.standard for one in statements().values() if one.binds in ("server", "both"))
    assert (bound["mqtt5"], bound["mqtt311"]) == (245, 136)


def test_every_statement_has_a_test() -> None:
    missing = [
        f"{one.standard} {one.id}" for one in covered().values() if one.binds != "client" and not one.tests
    ]
    assert not missing, f"{len(missing)} without a test: {', '.join(missing)}"


def test_every_test_has_a_statement() -> None:
    known = statements()
    strange = [f"{test.file}: {test.name}" for test in all_tests() if test.key not in known]
    assert not strange, f"no known id in the name of: {strange}"


def test_no_test_hides_another() -> None:
    """A name that is used twice in one file, or in two files, would be counted and not run or seen twice."""
    twice = [name for name, count in Counter(_all_names()).items() if count > 1]
    assert not twice, f"used twice: {twice}"


def _all_names() -> list[str]:
    names = []
    for path in sorted(coverage_table.HERE.glob("test_*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        names += [
            one.name for one in body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
        ]
    return names


def test_every_shared_check_looks_at_the_wire() -> None:
    found = {}
    for path in sorted(set(coverage_table.HERE.glob("*.py")) - set(coverage_table.HERE.glob("test_*.py"))):
        local = functions_of(path)
        found |= {name: looks(local[name], local, set()) for name in SHARED_CHECKS & set(local)}
    assert found == dict.fromkeys(SHARED_CHECKS, True)


def test_every_test_looks_at_the_wire() -> None:
    blind = [f"{test.file}: {test.name}" for test in all_tests() if not test.checks_the_wire]
    assert not blind, f"no assertion about what came over the wire in: {blind}"


def test_no_test_is_skipped() -> None:
    """No skip, xfail or importorskip stands in this folder."""
    found = []
    for path in sorted(coverage_table.HERE.glob("test_*.py")):
        names = {
            node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
        }
        found += [f"{path.name}: {name}" for name in names & {"skip", "skipif", "xfail", "importorskip"}]
    assert not found


def test_the_document_is_up_to_date() -> None:
    old = DOC.read_text(encoding="utf-8") if DOC.exists() else ""
    assert document(old) == old, "run: python -m tests.conformance.coverage_table"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("test_mqtt5_3_1_2_8__will", ("mqtt5", "MQTT-3.1.2-8")),
        ("test_mqtt311_3_1_0_1__first", ("mqtt311", "MQTT-3.1.0-1")),
        ("test_mqtt5_2_2_1_2__x", ("mqtt5", "MQTT-2.2.1-2")),
        ("test_x5_07__problem", ("x5", "X5-07")),
        ("test_x3_01__silence", ("x3", "X3-01")),
        ("test_b14__retained", ("b", "B14")),
        ("test_b1__short", None),
        ("test_mqtt5_3_1_2_8_will", None),
        ("test_something", None),
    ],
)
def test_ids_in_names(name: str, key: tuple[str, str] | None) -> None:
    assert key_of(name) == key


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("def test_a(c):\n    c.expect('PUBACK')", True),
        ("def test_a(c):\n    c.publish('t')", False),
        ("def test_a(c):\n    c.publish('t', qos=1, reason=0x87)", True),
        ("def test_a(c):\n    k = c.connect()\n    assert k.properties == {}", True),
        ("def test_a(c):\n    assert c", False),
        ("def test_a(c):\n    helper(c)\ndef helper(c):\n    c.expect_close()", True),
        ("def test_a(c):\n    helper(c)\ndef helper(c):\n    test_a(c)", False),
        ("def test_a(c):\n    expect_will(c)", True),
        ("def test_a(c):\n    expect_will(c)\ndef expect_will(c):\n    c.publish('t')", False),
    ],
)
def test_what_counts_as_looking(source: str, outcome: bool) -> None:
    local = {one.name: one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)}
    assert looks(local["test_a"], local, set()) is outcome
