"""The law of the fast lane: with it and without it every peer receives the same, and all counters agree."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.packet.enums import Version
from tests.lane.twins import (
    FILTERS,
    PROPERTIES,
    SIZES,
    TOPICS,
    Coroutines,
    Judge,
    Logged,
    Plain,
    compare,
)

ORDERS = ("same", "same", "same", "reversed", "skipped", "unknown")
CODES = (0, 0, 0, 0, 0x10, 0x80, 0x97)  # of PUBACK and PUBREC
REFUSED = ((), (), ("a",), ("a/b", "new/1"), ("é/ü", "c", "new/0"))  # by a hook
OTHER = ("ping", "drop", "wait", "unsubscribe", "junk", "disconnect")

# ---- what happens


@st.composite
def bursts(draw: st.DrawFn) -> dict[str, Any]:
    messages = []
    for _ in range(draw(st.integers(1, 4))):
        messages.append(
            {
                "topic": draw(st.sampled_from(TOPICS)),
                "size": draw(st.sampled_from(SIZES)),
                "qos": draw(st.sampled_from((0, 0, 1, 1, 1, 2))),
                "retain": draw(st.integers(0, 2)) == 0,
                "dup": draw(st.integers(0, 9)) == 0,
                "properties": draw(st.sampled_from(PROPERTIES)),
                "count": draw(st.sampled_from((1, 1, 2, 9, 30, 70))),
            }
        )
    return {
        "do": "burst",
        "who": draw(st.integers(0, 3)),
        "messages": messages,
        "mixed": draw(st.booleans()),
        "cuts": draw(st.lists(st.integers(1, 3000), max_size=4)),
        "first": draw(st.sampled_from((1, 1, 300, 65_500))),
    }


def events() -> st.SearchStrategy[dict[str, Any]]:
    who = st.integers(0, 3)
    connects = st.fixed_dictionaries(
        {
            "do": st.just("connect"),
            "who": who,
            "version": st.sampled_from((Version.MQTT_5, Version.MQTT_3_1_1)),
            "clean": st.booleans(),
            "window": st.sampled_from((1, 3, 40, 65535)),
        }
    )
    subscribes = st.fixed_dictionaries(
        {
            "do": st.just("subscribe"),
            "who": who,
            "filter": st.sampled_from(FILTERS),
            "qos": st.integers(0, 2),
            "no_local": st.integers(0, 5).map(lambda n: n == 0),
            "as_published": st.integers(0, 3).map(lambda n: n == 0),
            "handling": st.integers(0, 2),
            "identifier": st.sampled_from((0, 0, 0, 7)),
        }
    )
    acks = st.fixed_dictionaries(
        {
            "do": st.just("acknowledge"),
            "who": who,
            "count": st.sampled_from((1, 2, 5, 1000)),
            "order": st.sampled_from(ORDERS),
            "code": st.sampled_from(CODES),
            "at_once": st.booleans(),
        }
    )
    releases = st.fixed_dictionaries(
        {
            "do": st.just("release"),
            "who": who,
            "count": st.sampled_from((1, 2, 5, 1000)),
            "order": st.sampled_from(ORDERS),
            "complete": st.booleans(),
        }
    )
    other = st.fixed_dictionaries({"do": st.sampled_from(OTHER), "who": who, "number": st.integers(0, 6)})
    changes = st.fixed_dictionaries(
        {"do": st.just("change"), "who": who, "refused": st.sampled_from(REFUSED), "all": st.booleans()}
    )
    often = bursts(), bursts(), bursts(), acks, acks, releases
    return st.one_of(connects, subscribes, subscribes, *often, changes, other)


class Chances:
    """The same by chance, and more likely to be of use: what is drawn above is mostly small, or an error."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.exactly = seed % 3 == 0  # mostly QoS 2, and mostly as it should be

    def event(self, dead: list[int]) -> dict[str, Any]:
        """*dead* are clients that are not there."""
        choice, chance, who = self.random.choice, self.random.random(), self.random.randrange(4)
        if dead and chance < 0.5:
            who, chance = choice(dead), 0.0
        event: dict[str, Any] = {"who": who}
        if chance < 0.04:
            version = choice((Version.MQTT_5, Version.MQTT_3_1_1))
            window = choice((1, 3, 40, 65535, 65535))
            return event | {"do": "connect", "version": version, "clean": chance > 0.03, "window": window}
        if chance < 0.12:
            event |= {"do": "subscribe", "filter": choice(FILTERS), "qos": choice((0, 1, 2))}
            event |= {"no_local": self.one_in(8), "identifier": self.one_in(8) * 7}
            return event | {"as_published": self.one_in(4), "handling": choice((0, 0, 1, 2))}
        if chance < 0.5:
            return event | self.burst()
        orders = ("same",) * 12 + ORDERS if self.exactly else ORDERS * 2 + ("same",) * 6
        order, count = choice(orders), choice((1, 2, 5, 1000, 1000))
        if chance < 0.75:
            code, at_once = choice((0,) * 12 * self.exactly + CODES), self.one_in(4)
            event |= {"do": "acknowledge", "count": count, "order": order}
            return event | {"code": code, "at_once": at_once}
        if chance < 0.94:
            return event | {"do": "release", "count": count, "order": order, "complete": self.one_in(2)}
        return event | {"do": choice(OTHER), "number": self.random.randrange(7)}

    def burst(self) -> dict[str, Any]:
        choice, messages = self.random.choice, []
        one_kind = choice(((2, 0),) * 12 * self.exactly + (None, (0, 0), (0, 1), (1, 0), (2, 0)))
        for _ in range(self.random.randint(1, 5)):
            qos, retain = one_kind or (choice((0, 1, 2)), self.one_in(4))
            message = {"topic": choice(TOPICS[:4] * 6 + TOPICS), "size": choice(SIZES), "qos": qos}
            message |= {"retain": bool(retain), "dup": self.one_in(12)}
            message["count"] = choice((1, 1, 2, 5, 9, 13, 30, 70))
            messages.append(message | {"properties": choice(({},) * 30 + PROPERTIES)})
        cuts = [self.random.randint(1, 3000) for _ in range(choice((0, 0, 0, 1, 4)))]
        event = {"do": "burst", "messages": messages, "mixed": self.one_in(3), "cuts": cuts}
        return event | {"first": choice((1, 1, 300, 65_500))}

    def one_in(self, number: int) -> bool:
        return self.random.randrange(number) == 0


@settings(max_examples=500, deadline=None)
@given(
    happening=st.lists(events(), min_size=3, max_size=25),
    hear=st.lists(st.integers(0, 2), max_size=3),
    limits=st.fixed_dictionaries(
        {
            "outbound_receive_maximum": st.sampled_from((5, 10_000)),
            "maximum_queued_messages": st.sampled_from((10, 1000)),
            "queue_qos_0": st.booleans(),
            "retain_available": st.integers(0, 9).map(bool),
            "maximum_topic_levels": st.sampled_from((2, 128)),
        }
    ),
    overlap=st.sampled_from(("merge", "per_subscription")),
    retained=st.sampled_from(({}, {"maximum_retained_messages": 2}, {"maximum_retained_bytes": 300})),
    refused=st.sampled_from((None, None, *REFUSED)),
)
def test_the_same_with_and_without_it(
    happening: list[dict[str, Any]],
    hear: list[int],
    limits: dict[str, Any],
    overlap: str,
    retained: dict[str, int],
    refused: tuple[str, ...] | None,
) -> None:
    events = iter(happening)
    asyncio.run(compare(lambda dead: next(events, None), hear, limits, overlap, retained, refused))


LONG = range(int(os.environ.get("TWINS", 120)))


@pytest.mark.parametrize("seed", LONG)
def test_the_same_in_long_conversations(seed: int) -> None:
    talk_at_length(Chances(seed), None)


class Changes(Chances):
    """The same, and now and then other rules."""

    def event(self, dead: list[int]) -> dict[str, Any]:
        if not self.one_in(12):
            return super().event(dead)
        refused, who = self.random.choice(REFUSED), self.random.randrange(4)
        return {"do": "change", "who": who, "refused": refused, "all": self.one_in(3)}


@pytest.mark.parametrize("seed", LONG[::3])
def test_the_same_where_a_hook_says_who_may_publish(seed: int) -> None:
    chances = Changes(seed)
    talk_at_length(chances, chances.random.choice(REFUSED))


class Simple(Chances):
    """Mostly messages of QoS 0 and 1 that nobody has to look at, but hooks do."""

    def burst(self) -> dict[str, Any]:
        event = super().burst()
        if not self.one_in(4):
            for message in event["messages"]:
                message |= {"properties": {}, "dup": False, "retain": False, "qos": min(message["qos"], 1)}
        return event


KINDS = ("refuse", "quota", "silence", "fail", "count", "change", "qos", "properties", "in place")
OF_PLAIN = (*KINDS, "mark")
OF_COROUTINES = (*KINDS, "wait", "wait long", "publish", "time out")


def judge_of(chances: Chances, hook: type[Judge]) -> Judge:
    kinds = OF_PLAIN if hook is Plain else OF_COROUTINES
    choice, most = chances.random.choice, chances.random.choice((0, 1, 2, 4, 8))
    return hook({choice((0, 1, 2, 3, 5, 8, 9, 29)): choice(kinds) for _ in range(most)})


@pytest.mark.parametrize("hook", [Plain, Coroutines, Logged])
@pytest.mark.parametrize("seed", LONG[::3])
def test_the_same_where_hooks_look_at_each_message(seed: int, hook: type[Judge]) -> None:
    """Each hook is asked about the same messages in the same order, once, and sees the same counters."""
    chances = Simple(seed)
    refused = chances.random.choice((None, None, *REFUSED))
    state = chances.random.getstate()

    def judge() -> Judge:
        chances.random.setstate(state)
        return judge_of(chances, hook)

    talk_at_length(chances, refused, judge)


def talk_at_length(
    chances: Chances, refused: tuple[str, ...] | None, judge: Callable[[], Judge] | None = None
) -> None:
    choice, left = chances.random.choice, count(-60)
    limits = {
        "outbound_receive_maximum": choice((5, 10_000, 10_000)),
        "receive_maximum": choice((20, 65_535, 65_535)),
        "maximum_queued_messages": choice((10, 1000)),
        "queue_qos_0": chances.one_in(2),
        "maximum_topic_levels": choice((2, 128, 128)),
    }
    retained = choice(({}, {}, {"maximum_retained_messages": 2}, {"maximum_retained_bytes": 300}))
    hear = [choice((0, 1, 2, *(2,) * 6 * chances.exactly)) for _ in range(choice((0, 1, 2, 3)))]
    overlap = choice(("merge", "merge", "per_subscription"))
    happening = partial(next_event, chances, left)
    asyncio.run(compare(happening, hear, limits, overlap, retained, refused, judge))


def next_event(chances: Chances, left: Iterator[int], dead: list[int]) -> dict[str, Any] | None:
    return chances.event(dead) if next(left) else None
