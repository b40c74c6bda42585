"""One Topic Filter against one Topic Name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from broker.topic.match import match
from tests.topic.make import topic_filters, topic_names


@pytest.mark.parametrize(
    ("topic_filter", "matched", "not_matched"),
    [
        pytest.param("a/#", ["a", "a/", "a/b", "a/b/c"], ["b", "ab", "/a", "A"], id="MQTT-4.7.1-1"),
        pytest.param("#", ["a", "/", "a/b/c", "a/$x"], ["$SYS", "$SYS/a"], id="MQTT-4.7.1-1 all"),
        pytest.param("/#", ["/", "/a", "/a/b"], ["a"], id="MQTT-4.7.1-1 after an empty level"),
        pytest.param("+/#", ["a", "a/b", "/", "/b/c"], ["$SYS", "$SYS/a"], id="MQTT-4.7.1-1 after +"),
        pytest.param("a/+", ["a/", "a/b"], ["a", "a/b/c", "b/a"], id="MQTT-4.7.1-2"),
        pytest.param("+", ["a"], ["/x", "a/b", "$SYS"], id="MQTT-4.7.1-2 alone"),
        pytest.param("+/+", ["/x", "a/b", "/"], ["a", "a/b/c", "$SYS/b"], id="MQTT-4.7.1-2 twice"),
        pytest.param("/+", ["/x", "/"], ["x", "a/x"], id="MQTT-4.7.1-2 after an empty level"),
        pytest.param("a/+/c", ["a/b/c", "a//c", "a/$/c"], ["a/c", "a/b/c/d"], id="MQTT-4.7.1-2 between"),
        pytest.param("+/x", ["/x", "a/x"], ["$SYS/x"], id="MQTT-4.7.2-1 + first"),
        pytest.param("$SYS/#", ["$SYS", "$SYS/x", "$SYS/x/y"], ["SYS/x"], id="MQTT-4.7.2-1 named"),
        pytest.param("$SYS/+", ["$SYS/x"], ["$SYS", "$SYS/x/y"], id="MQTT-4.7.2-1 named with +"),
        pytest.param("a/+/#", ["a/$x", "a/b/c"], ["a"], id="MQTT-4.7.2-1 a later $ is ordinary"),
        pytest.param("a//b", ["a//b"], ["a/b", "a/ /b"], id="MQTT-4.7.3-4 empty levels"),
        pytest.param("a", ["a"], ["A", " a", "a/", "%61"], id="MQTT-4.7.3-4 nothing is folded"),
        pytest.param("\u00c5", ["\u00c5"], ["A\u030a"], id="MQTT-4.7.3-4 nothing is normalized"),
    ],
)
def test_a_filter(topic_filter: str, matched: list[str], not_matched: list[str]) -> None:
    assert [name for name in matched if not match(topic_filter, name)] == []
    assert [name for name in not_matched if match(topic_filter, name)] == []


@given(topic_filters, topic_names)
def test_it_is_a_regular_expression(topic_filter: str, topic_name: str) -> None:
    """Said another way: + is anything but a slash, /# anything or nothing after a slash."""
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*").replace(r"/\#", "(/.*)?").replace(r"\#", ".*")
    hidden = topic_name[0] == "$" and topic_filter[0] in "+#"
    assert match(topic_filter, topic_name) == (not hidden and re.fullmatch(pattern, topic_name) is not None)
