"""Those who are away, and come back: the same with the fast lane and without it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.packet.enums import Version
from tests.lane.twins import Conversation, Side

PLAIN: tuple[dict[str, Any], ...] = ({}, {}, {}, {"content_type": "x"}, {"message_expiry_interval": 60})


@st.composite
def floods(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly what waits in runs."""
    messages = [
        {
            "topic": draw(st.sampled_from(("a", "a", "a", "a/b", "c", "é/ü"))),
            "size": draw(st.sampled_from((0, 3, 3, 50, 127, 900))),
            "qos": draw(st.sampled_from((0, 1, 1, 1, 1, 1, 1, 2))),
            "retain": False,
            "dup": False,
            "properties": draw(st.sampled_from(PLAIN)),
            "count": draw(st.sampled_from((1, 7, 9, 30, 300))),
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    first = draw(st.sampled_from((1, 300, 65_500)))
    who, mixed = draw(st.integers(0, 2)), draw(st.integers(0, 3)) == 0
    return {"do": "burst", "who": who, "messages": messages, "mixed": mixed, "cuts": [], "first": first}


def comings_and_goings(careful: bool) -> st.SearchStrategy[dict[str, Any]]:
    back = st.fixed_dictionaries(
        {
            "do": st.just("connect"),
            "who": st.just(3),
            "version": st.just(Version.MQTT_5) if careful else st.sampled_from(list(VERSIONS)),
            "clean": st.sampled_from((False, False, False, True)),
            "window": st.sampled_from((1, 3, 9, 40, 65535)),
            "careful": st.just(careful),
        }
    )
    acks = st.fixed_dictionaries(
        {
            "do": st.just("acknowledge"),
            "who": st.just(3),
            "count": st.sampled_from((1, 2, 5, 20, 1000)),
            "order": st.sampled_from(("same", "same", "same", "same", "reversed", "skipped")),
        }
    )
    kinds = st.sampled_from(("drop", "drop", "disconnect", "wait"))
    leaves = st.fixed_dictionaries({"do": kinds, "who": st.just(3)})
    return st.one_of(floods(), floods(), floods(), back, acks, acks, leaves)


POLICIES = ("drop_newest", "drop_oldest", "disconnect")
VERSIONS = (Version.MQTT_5, Version.MQTT_3_1_1)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), few=st.booleans(), policy=st.sampled_from(POLICIES))
def test_who_is_away_finds_the_same(data: st.DataObject, few: bool, policy: str) -> None:
    """Queues in runs; *few*: to the byte, where those to whom the fast lane sends are counted by packets."""
    limits: dict[str, Any] = {
        "queue_full": policy,
        "queue_qos_0": data.draw(st.booleans()),
        "maximum_queued_messages": data.draw(st.sampled_from((10, 320, 1000, 100_000))),
        "maximum_user_properties": 64,
    }
    room = 1 << 30
    if few:
        limits["maximum_queued_bytes"] = data.draw(st.sampled_from((20_000, 300_000, 1 << 26)))
        room = data.draw(st.sampled_from((200_000, 1 << 20)))
    happening = data.draw(st.lists(comings_and_goings(few), min_size=3, max_size=20))
    qos = data.draw(st.sampled_from((1, 1, 1, 2)))
    asyncio.run(compare_away(happening, limits, few, room, qos))


async def compare_away(
    happening: list[dict[str, Any]], limits: dict[str, Any], careful: bool, room: int, qos: int
) -> None:
    sides = (
        Side(True, limits, "merge", {"maximum_bytes": room}),
        Side(False, limits, "merge", {"maximum_bytes": room}),
    )
    async with sides[0].broker, sides[1].broker:
        talk = Conversation(sides)
        for number in range(3):
            await talk.step({"do": "connect", "who": number, "clean": True, "window": 65535,
                             "version": VERSIONS[number % 2]})  # fmt: skip
        away = {"who": 3, "clean": False, "window": 65535, "version": Version.MQTT_5, "careful": careful}
        await talk.step({**away, "do": "connect"})
        for topic_filter in ("a", "+/b", "#"):
            await talk.step({"do": "subscribe", "who": 3, "filter": topic_filter, "qos": qos,
                             "no_local": False, "identifier": 0})  # fmt: skip
        await talk.step({"do": "drop", "who": 3})
        for event in happening:
            await talk.step(event)
            fast, readable = (side.image() for side in sides)
            assert fast == readable, event
        used = [side.broker._core.budget.used for side in sides]
        assert not careful or used[0] == used[1]


@pytest.mark.parametrize("online", [True, False])
def test_what_a_3_1_1_client_was_sent_comes_with_properties_when_it_is_one_of_5(online: bool) -> None:
    def back(version: Version) -> dict[str, Any]:
        return {"do": "connect", "who": 3, "version": version, "clean": False, "window": 65535}

    message = {"topic": "a", "size": 3, "qos": 1, "retain": False, "dup": False, "count": 20}
    message["properties"] = {"content_type": "x"}
    flood = {"do": "burst", "who": 0, "messages": [message], "mixed": False, "cuts": [], "first": 1}
    two = [back(Version.MQTT_3_1_1), flood] if online else [flood, back(Version.MQTT_3_1_1)]
    asyncio.run(compare_away([*two, back(Version.MQTT_5)], {}, False, 1 << 30, 1))
