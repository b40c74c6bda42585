"""The rules file, without a JVM: what it may say, and what a person is told who got it wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.topic.match import match
from spark.silver.rules import (
    DEFAULT,
    EventTime,
    RulesError,
    as_plain,
    check_filter,
    from_plain,
    matches,
    read_rules,
    rules_of,
)
from spark.tools.samples import Options, messages

LEVELS = st.sampled_from(["a", "b", "", "$x"])


def one(**table: Any) -> dict[str, Any]:
    return {"rule": [{"name": "r", "filter": "a/#", "format": "json", **table}]}


def test_a_rule() -> None:
    time = {"path": "time.at", "unit": "ms"}
    [rule] = rules_of(one(schema="a INT", event_time=time, tags=["", "device"], max_bytes=10))
    assert (rule.name, rule.topic_filter, rule.format, rule.schema) == ("r", "a/#", "json", "a INT")
    assert rule.event_time == EventTime(path=("time", "at"), unit="ms")
    assert (rule.tags, rule.max_bytes) == (("", "device"), 10)
    assert rules_of(one())[0].schema is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, r"no \[\[rule\]\]"),
        ({"rule": [], "x": 1}, r"no \[\[rule\]\]"),
        ({**one(), "rules": 1}, "rules is not known"),
        (one(nmae="x"), "rule r: nmae is not known"),
        (one(name="Zig bee"), "rule Zig bee: name must be"),
        (one(name="points"), "not 'points'"),
        (one(format="xml"), "format 'xml' is none of json"),
        (one(filter=""), "filter is empty"),
        (one(filter="a/#/b"), "# comes last"),
        (one(filter="a+/b"), "stand alone"),
        (one(format="text", schema="a INT"), "schema is for"),
        (one(format="text", event_time={"path": "a"}), "event_time is for"),
        (one(event_time={"path": "a", "unit": "h"}), "unit 'h' is none of"),
        (one(event_time={"path": "a", "zone": "'; drop"}), "is no zone"),
        (one(event_time={"unit": "s"}), "event_time is a table with a path"),
        (one(event_time="ts"), "event_time is a table with a path"),
        (one(event_time={"path": "a", "zone": 1}), "is no zone"),
        (one(schema=5), "the fields as DDL"),
        (one(schema=" "), "the fields as DDL"),
        (one(tags="device"), "tags is a list"),
        (one(tags=5), "tags is a list"),
        (one(tags=["a", "a"]), "a name twice"),
        (one(max_bytes=0), "max_bytes is a number"),
        ({"rule": [*one()["rule"], *one()["rule"]]}, "more than one rule is named r"),
        ({"rule": [{"name": "r", "format": "json"}]}, "rule r: filter is missing"),
        ({"rule": ["x"]}, "rule 1"),
    ],
)
def test_what_is_wrong_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(RulesError, match=message):
        rules_of(raw)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("rule = [")
    with pytest.raises(RulesError, match=r"rules\.toml"):
        read_rules(path)


@given(
    st.lists(st.sampled_from(["a", "b", "+", ""]), min_size=1, max_size=4),
    st.booleans(),
    st.lists(LEVELS, min_size=1, max_size=5),
)
def test_filters_match_as_in_the_broker(wanted: list[str], open_ended: bool, levels: list[str]) -> None:
    topic_filter, topic_name = "/".join([*wanted, *(["#"] if open_ended else [])]), "/".join(levels)
    if topic_filter and topic_name:
        check_filter(topic_filter)
        assert matches(topic_filter, topic_name) == match(topic_filter, topic_name)


def test_rules_go_through_json() -> None:
    rules = read_rules(DEFAULT)
    assert from_plain(json.loads(json.dumps(as_plain(rules)))) == rules


def test_our_rules_know_every_sample() -> None:
    rules = read_rules(DEFAULT)
    for record in messages(Options(messages=2_000, devices=40)):
        assert any(matches(rule.topic_filter, record.topic_name) for rule in rules), record.topic_name
