"""The grammar of Topic Names, Topic Filters and `$share/...`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ReasonCode, TopicFilterInvalid, TopicNameInvalid
from broker.topic.name import check_topic_filter, check_topic_name, has_wildcard, levels, split_share
from tests.topic.make import topic_filters, topic_names

LONGEST = "x" * 65_535
NAMES_AND_FILTERS = [
    pytest.param("a", id="one character MQTT-4.7.3-1"),
    pytest.param("/", id="two empty levels"),
    pytest.param("a//b", id="an empty level between"),
    pytest.param(" ", id="a space"),
    pytest.param("$SYS/broker/uptime", id="a topic of the server 4.7.2"),
    pytest.param("$", id="nothing but the sign"),
    pytest.param("$SHARE/g/t", id="case counts MQTT-4.8.2-1"),
    pytest.param("$shared/g/t", id="another prefix MQTT-4.8.2-1"),
    pytest.param("$queue/t", id="of another vendor MQTT-4.8.2-1"),
    pytest.param("a/$share/g", id="not at the start"),
    pytest.param("\ufefföå\U0002a6d4", id="any characters, none stripped"),
    pytest.param(LONGEST, id="65,535 bytes MQTT-4.7.3-3"),
    pytest.param("€" * 21_845, id="65,535 bytes of three each MQTT-4.7.3-3"),
    pytest.param("/" * 65_535, id="65,536 levels"),
]
NEITHER_NAME_NOR_FILTER = [
    pytest.param("", id="empty MQTT-4.7.3-1"),
    pytest.param("a\0b", id="U+0000 MQTT-4.7.3-2"),
    pytest.param("\0", id="nothing but U+0000 MQTT-4.7.3-2"),
    pytest.param(LONGEST + "x", id="65,536 bytes MQTT-4.7.3-3"),
    pytest.param("€" * 21_845 + "x", id="65,536 bytes, fewer characters MQTT-4.7.3-3"),
    pytest.param("a\ud800", id="a surrogate MQTT-1.5.4-1"),
]


@pytest.mark.parametrize("topic_name", NAMES_AND_FILTERS)
def test_a_topic_name_that_is_one(topic_name: str) -> None:
    check_topic_name(topic_name)


@pytest.mark.parametrize(
    "topic_name",
    [
        *NEITHER_NAME_NOR_FILTER,
        pytest.param("#", id="# MQTT-4.7.0-1"),
        pytest.param("a/+/b", id="+ MQTT-4.7.0-1"),
        pytest.param("a+", id="+ within a level MQTT-4.7.0-1"),
        pytest.param("a#b", id="# within a level MQTT-4.7.0-1"),
    ],
)
def test_a_topic_name_that_is_none(topic_name: str) -> None:
    with pytest.raises(TopicNameInvalid) as refusal:
        check_topic_name(topic_name)
    assert refusal.value.reason == ReasonCode.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    "topic_filter",
    [
        *NAMES_AND_FILTERS,
        pytest.param("#", id="all MQTT-4.7.1-1"),
        pytest.param("a/#", id="# after a level MQTT-4.7.1-1"),
        pytest.param("/#", id="# after an empty level MQTT-4.7.1-1"),
        pytest.param("+/#", id="+ and # MQTT-4.7.1-1"),
        pytest.param("+", id="+ alone MQTT-4.7.1-2"),
        pytest.param("+/+", id="+ twice MQTT-4.7.1-2"),
        pytest.param("/+", id="+ after an empty level MQTT-4.7.1-2"),
        pytest.param("a/+/b", id="+ between MQTT-4.7.1-2"),
        pytest.param("+/a/#", id="+ first MQTT-4.7.1-2"),
        pytest.param("+/" * 32_767 + "#", id="32,768 levels"),
        pytest.param("$share/g/t", id="shared MQTT-4.8.2-1"),
        pytest.param("$share/g//t", id="shared /t MQTT-4.8.2-2"),
        pytest.param("$share/g/#", id="shared # MQTT-4.8.2-2"),
        pytest.param("$share/$g/+/a", id="a $ in the ShareName MQTT-4.8.2-2"),
        pytest.param("$share/g/$share/h/t", id="a shared ordinary filter MQTT-4.8.2-2"),
    ],
)
def test_a_topic_filter_that_is_one(topic_filter: str) -> None:
    check_topic_filter(topic_filter)


@pytest.mark.parametrize(
    "topic_filter",
    [
        *NEITHER_NAME_NOR_FILTER,
        pytest.param("a#", id="# after a character MQTT-4.7.1-1"),
        pytest.param("a/#/b", id="# not last MQTT-4.7.1-1"),
        pytest.param("#/a", id="# first MQTT-4.7.1-1"),
        pytest.param("#/", id="# before an empty level MQTT-4.7.1-1"),
        pytest.param("##", id="# twice MQTT-4.7.1-1"),
        pytest.param("a/b#", id="# ends a level MQTT-4.7.1-1"),
        pytest.param("a/#b", id="# starts a level MQTT-4.7.1-1"),
        pytest.param("a+", id="+ ends a level MQTT-4.7.1-2"),
        pytest.param("a/+b", id="+ starts a level MQTT-4.7.1-2"),
        pytest.param("+a/b", id="+ starts the first level MQTT-4.7.1-2"),
        pytest.param("++", id="+ twice in a level MQTT-4.7.1-2"),
        pytest.param("+#", id="+ and # in a level MQTT-4.7.1-2"),
        pytest.param("$share//t", id="ShareName empty MQTT-4.8.2-1"),
        pytest.param("$share", id="neither ShareName nor filter MQTT-4.8.2-1"),
        pytest.param("$share/", id="ShareName and filter empty MQTT-4.8.2-1"),
        pytest.param("$share/g", id="no filter MQTT-4.8.2-2"),
        pytest.param("$share/g/", id="filter empty MQTT-4.8.2-2"),
        pytest.param("$share/+/t", id="+ as ShareName MQTT-4.8.2-2"),
        pytest.param("$share/a+/t", id="+ in ShareName MQTT-4.8.2-2"),
        pytest.param("$share/a#b/t", id="# in ShareName MQTT-4.8.2-2"),
        pytest.param("$share/#", id="# instead of a ShareName MQTT-4.8.2-2"),
        pytest.param("$share/g/a#", id="a filter that is none MQTT-4.8.2-2"),
        pytest.param("$share/g/#/a", id="# not last after the ShareName MQTT-4.8.2-2"),
    ],
)
def test_a_topic_filter_that_is_none(topic_filter: str) -> None:
    with pytest.raises(TopicFilterInvalid) as refusal:
        check_topic_filter(topic_filter)
    assert refusal.value.reason == ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize(
    ("topic_filter", "share_name", "rest"),
    [
        ("$share/g/t", "g", "t"),
        ("$share/g//t", "g", "/t"),
        ("$share/g/a/+/#", "g", "a/+/#"),
        ("$share/g/$share/h/t", "g", "$share/h/t"),
        ("$SHARE/g/t", "", "$SHARE/g/t"),
        ("$shared/g/t", "", "$shared/g/t"),
        ("$queue/t", "", "$queue/t"),
        ("a/$share/g/t", "", "a/$share/g/t"),
        ("#", "", "#"),
    ],
)
def test_a_share_prefix_comes_off(topic_filter: str, share_name: str, rest: str) -> None:
    assert split_share(topic_filter) == (share_name, rest)


@pytest.mark.parametrize(
    ("topic", "count"), [("a", 1), ("/", 2), ("a/", 2), ("a//b", 3), ("/" * 65_535, 65_536), ("+/#", 2)]
)
def test_empty_levels_are_levels(topic: str, count: int) -> None:
    assert levels(topic) == count


@given(topic_names, topic_filters)
def test_what_the_other_tests_draw_is_valid(topic_name: str, topic_filter: str) -> None:
    check_topic_name(topic_name)
    check_topic_filter(topic_filter)
    check_topic_filter(f"$share/g/{topic_filter}")


@given(st.text(alphabet="a/+#$é\0", max_size=8))
def test_a_topic_name_is_a_topic_filter_without_wildcards(topic: str) -> None:
    def passes(check, error) -> bool:  # type: ignore[no-untyped-def]
        try:
            check(topic)
        except error:
            return False
        return True

    is_filter = passes(check_topic_filter, TopicFilterInvalid)
    assert passes(check_topic_name, TopicNameInvalid) == (is_filter and not has_wildcard(topic))
