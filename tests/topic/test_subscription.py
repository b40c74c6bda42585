"""Several subscriptions that match one message become one [MQTT5 3.3.4]."""

from __future__ import annotations

from itertools import permutations

import pytest

from broker.topic.subscription import Subscription, merge


def numbered(*parts: Subscription) -> list[Subscription]:
    for number, part in enumerate(parts):
        part.order = number
    return list(parts)


PLAIN = Subscription("a/#", 1, identifiers=(1,))


@pytest.mark.parametrize(
    ("parts", "merged", "own"),
    [
        pytest.param([PLAIN], PLAIN, PLAIN, id="one"),
        pytest.param(
            [Subscription("#", 2), Subscription("a", 0), Subscription("+", 1)],
            Subscription("#", 2),
            Subscription("#", 2),
            id="the highest QoS",
        ),
        pytest.param(
            [Subscription("#"), Subscription("a", retain_as_published=True), Subscription("+")],
            Subscription("#", retain_as_published=True),
            Subscription("#", retain_as_published=True),
            id="Retain As Published if any",
        ),
        pytest.param(
            [
                PLAIN,
                Subscription("a"),
                Subscription("+", identifiers=(7,)),
                Subscription("#", identifiers=(1,)),
            ],
            Subscription("a/#", 1, identifiers=(1, 7, 1)),
            Subscription("a/#", 1, identifiers=(1, 7, 1)),
            id="all identifiers, repeats too MQTT-3.3.4-4",
        ),
        pytest.param(
            [Subscription("#", 2, True, True, identifiers=(1,)), Subscription("a", 1, identifiers=(2,))],
            Subscription("#", 2, True, True, identifiers=(1, 2)),
            Subscription("a", 1, identifiers=(2,)),
            id="own messages by what has no No Local MQTT-3.8.3-3",
        ),
        pytest.param(
            [
                Subscription("#", 2, True),
                Subscription("a", 1),
                Subscription("+", 0, retain_as_published=True),
            ],
            Subscription("#", 2, True, True),
            Subscription("a", 1, retain_as_published=True),
            id="own messages by several that have none",
        ),
        pytest.param(
            [Subscription("#", 2, True), Subscription("a", 1, True)],
            Subscription("#", 2, True),
            None,
            id="no own messages",
        ),
    ],
)
def test_merge(parts: list[Subscription], merged: Subscription, own: Subscription | None) -> None:
    for shuffled in permutations(numbered(*parts)):
        result = merge(shuffled)
        assert result == merged
        assert result.own == own
