"""What the subscription tree costs, in nanoseconds of CPU, with 1 to 1,000,000 filters in it.

    python benchmarks/tree.py [rounds [most filters]]

Each filter has a subscriber of its own; each Topic Name matches one filter. *first* is a match that is not
remembered, *remembered* one that is. Medians of the rounds. Ratios travel between machines, figures do not.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from codec import cost

from broker.packet.message import Message
from broker.topic.subscription import Subscription
from broker.topic.tree import SubscriptionTree

SIZES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
NAMES = 1000  # different Topic Names that are matched in turn
ADDED = 1000  # filters that come and go
KINDS = {"exact": "site/{}/device/{}/state", "wildcard": "site/{}/+/{}/#"}


class Nobody:
    """A subscriber that is never delivered to."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id

    def deliver(self, message: Message, subscription: Subscription) -> None:
        raise AssertionError("nothing is routed here")


def grown(kind: str, size: int) -> SubscriptionTree[Nobody]:
    tree = SubscriptionTree[Nobody]()
    for number in range(size):
        tree.subscribe(Nobody(f"c{number}"), Subscription(KINDS[kind].format(number // 100, number % 100), 0))
    return tree


def matching(tree: SubscriptionTree[Nobody], size: int, first: bool) -> Callable[[], int]:
    """Match names that have one subscriber each, in turn."""
    spread = max(1, size // NAMES)
    numbers = [number * spread % size for number in range(NAMES)]
    names = [f"site/{number // 100}/device/{number % 100}/state" for number in numbers]

    def match() -> int:
        for name in names:
            if first:
                tree.routes.clear()
            if len(tree.match(name).direct) != 1:
                raise AssertionError(f"{name} does not have one subscriber")
        return NAMES

    return match


def coming_and_going(tree: SubscriptionTree[Nobody], kind: str, rounds: int) -> tuple[float, float]:
    """What one new filter costs, and taking it away."""
    client = Nobody("guest")
    news = [
        Subscription(KINDS[kind].format(f"new{number // 100}", number % 100), 0) for number in range(ADDED)
    ]
    came, went = [], []
    for _ in range(rounds):
        began = time.process_time_ns()
        for subscription in news:
            tree.subscribe(client, subscription)
        between = time.process_time_ns()
        for subscription in news:
            tree.unsubscribe(client, subscription.topic_filter)
        came.append((between - began) / ADDED)
        went.append((time.process_time_ns() - between) / ADDED)
    return statistics.median(came), statistics.median(went)


def measured(kind: str, size: int, rounds: int) -> tuple[float, float, float, float]:
    """Subscribe, unsubscribe, match first and remembered."""
    tree = grown(kind, size)
    matches = (cost(matching(tree, size, first), rounds) for first in (True, False))
    return *coming_and_going(tree, kind, rounds), *matches


def main(arguments: Sequence[str]) -> None:
    rounds = int(arguments[0]) if arguments else 5
    most = int(arguments[1]) if len(arguments) > 1 else SIZES[-1]
    sizes = list(itertools.takewhile(lambda size: size <= most, SIZES))
    print("| ns each, with so many filters |", " | ".join(f"{size:,}" for size in sizes), "|")
    print("|---|" + "---:|" * len(sizes))
    for kind in KINDS:
        columns = [measured(kind, size, rounds) for size in sizes]
        words = ("subscribe", "unsubscribe", "match, first", "match, remembered")
        for word, row in zip(words, zip(*columns, strict=True), strict=True):
            print(f"| {kind}: {word} |", " | ".join(f"{value:.0f}" for value in row), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
