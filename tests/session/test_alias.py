"""Topic Aliases, both ways [MQTT5 3.3.2.3.4, B17]."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ProtocolError, QuotaExceeded, TopicAliasInvalid
from broker.packet.packets import Publish
from broker.session.alias import LONGEST_NAME, InboundAliases, OutboundAliases
from broker.store.budget import ByteBudget


def publish(topic_name: str, alias: int | None = None) -> Publish:
    return Publish(topic_name, properties={} if alias is None else {"topic_alias": alias})


# ---- what the client defines


def test_a_mapping_holds_until_it_is_replaced() -> None:
    aliases = InboundAliases(2, ByteBudget(1 << 20))
    steps = [
        ("a", 1, "a"),
        ("", 1, "a"),
        ("b", 2, "b"),
        ("", 1, "a"),
        ("c", 1, "c"),
        ("", 1, "c"),
        ("", 2, "b"),
    ]
    for topic_name, alias, expected in steps:
        assert aliases.resolve(publish(topic_name, alias)) == expected
    assert aliases.resolve(publish("plain")) == "plain"
    assert aliases.resolve(publish("", 1)) == "c", "a PUBLISH without an alias touches none"


@pytest.mark.parametrize("alias", [0, 3, 65535])
@pytest.mark.parametrize("topic_name", ["a", ""])
def test_out_of_range(topic_name: str, alias: int) -> None:
    with pytest.raises(TopicAliasInvalid, match=rf"{alias} is not in 1\.\.2"):
        InboundAliases(2, ByteBudget(1 << 20)).resolve(publish(topic_name, alias))


def test_never_set() -> None:
    aliases = InboundAliases(2, ByteBudget(1 << 20))
    aliases.resolve(publish("a", 1))
    with pytest.raises(ProtocolError, match="topic alias 2 has no mapping"):
        aliases.resolve(publish("", 2))


def test_the_border_is_allowed() -> None:
    assert InboundAliases(65535, ByteBudget(1 << 20)).resolve(publish("a", 65535)) == "a"


# ---- what we define


def test_first_with_the_topic_then_without() -> None:
    aliases = OutboundAliases(2)
    assert aliases.find("a") == (1, True)
    aliases.commit("a", 1)
    assert aliases.find("a") == (1, False)
    assert aliases.find("b") == (2, True)


def test_find_alone_defines_nothing() -> None:
    aliases = OutboundAliases(1)
    for name in ("a", "b", "a"):
        assert aliases.find(name) == (1, True), "a packet that was not sent leaves no mapping behind"
    aliases.commit("a", 1)
    assert aliases.find("b") == (1, True)
    assert aliases.find("a") == (1, False)


def test_the_least_recently_used_is_mapped_anew() -> None:
    aliases = OutboundAliases(2)
    for name in ("a", "b", "a"):  # a was used last
        alias, _ = aliases.find(name)
        aliases.commit(name, alias)
    assert aliases.find("c") == (2, True)
    aliases.commit("c", 2)
    assert aliases.find("b") == (1, True), "of a and c it is a that was not used for longer"
    assert (aliases.find("a"), aliases.find("c")) == ((1, False), (2, False))


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60))
def test_a_client_that_follows_always_knows_the_topic(maximum: int, sendings: list[tuple[str, bool]]) -> None:
    """What leaves is read by the inbound side; *False* is a packet that was dropped after `find`."""
    ours, theirs = OutboundAliases(maximum), InboundAliases(maximum, ByteBudget(1 << 20))
    for name, sent in sendings:
        alias, with_topic = ours.find(name)
        assert 1 <= alias <= maximum
        if sent:
            ours.commit(name, alias)
            assert theirs.resolve(publish(name if with_topic else "", alias)) == name


def test_what_the_client_defines_is_counted_and_bounded() -> None:
    budget = ByteBudget(10)
    aliases = InboundAliases(3, budget)
    aliases.resolve(publish("12345", 1))
    aliases.resolve(publish("1234", 2))
    assert budget.used == 9
    with pytest.raises(QuotaExceeded):
        aliases.resolve(publish("12", 3))
    aliases.resolve(publish("1", 1))
    assert budget.used == 5
    aliases.clear()
    assert budget.used == 0


def test_long_names_get_no_alias() -> None:
    aliases = OutboundAliases(5)
    assert aliases.find("a" * LONGEST_NAME) == (1, True)
    assert aliases.find("a" * (LONGEST_NAME + 1)) == (0, True)
