"""Subscribers, names and filters for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from broker.topic.index import TopicIndex
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription


class Peer:
    """A Subscriber that answers every `turn` with what the test said."""

    def __init__(self, client_id: str, says: int = Turn.READY) -> None:
        self.client_id = client_id
        self.says = says
        self.asked = 0

    def __repr__(self) -> str:
        return self.client_id

    def deliver(self, message: Any, subscription: Subscription) -> None:
        raise AssertionError("nothing on this floor delivers")

    def turn(self, message: Any, subscription: Subscription) -> int:
        self.asked += 1
        return self.says


class CountedIndex:
    """A TopicIndex that counts the walks that have begun, those that go on, and the names looked at.

    Around one, not made from it: the class may be compiled. Names are counted in whole slices.
    """

    def __init__(self) -> None:
        self._index: TopicIndex[Any] = TopicIndex()
        self.begun = self.open = self.looked_at = 0

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, topic_name: str) -> bool:
        return topic_name in self._index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def slices(self, topic_filter: str, size: int = 256) -> Iterator[list[Any]]:
        self.begun += 1
        self.open += 1
        try:
            for found in self._index.slices(topic_filter, size):
                self.looked_at += size
                yield found
        finally:
            self.open -= 1


# Few levels, so that names and filters meet; `$x` at the start is hidden, the empty level is a level.
LEVELS = ("a", "b", "", "$x")

topic_names = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
_plain = st.lists(st.sampled_from((*LEVELS, "+", "+")), min_size=1, max_size=4).map("/".join)
topic_filters = st.one_of(
    _plain.filter(bool),
    _plain.map(lambda parents: f"{parents}/#"),
    st.just("#"),
)
