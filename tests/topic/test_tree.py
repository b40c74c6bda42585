"""The tree against `match`, and its cache against itself."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from threading import Thread
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.topic import tree as module
from broker.topic.match import match
from broker.topic.name import split_share
from broker.topic.tree import Route, Subscription, SubscriptionTree
from tests.topic.make import Peer, topic_filters, topic_names

any_filters = st.one_of(
    topic_filters,
    st.tuples(st.sampled_from("gh"), topic_filters).map(lambda drawn: f"$share/{drawn[0]}/{drawn[1]}"),
)
options = st.fixed_dictionaries(
    {
        "qos": st.integers(0, 2),
        "no_local": st.booleans(),
        "retain_as_published": st.booleans(),
        "retain_handling": st.integers(0, 2),
        "identifiers": st.lists(st.integers(1, 9), max_size=1).map(tuple),
    }
)
Options = dict[str, Any]
What = tuple[int, bool, bool, tuple[int, ...]]


def subscription(topic_filter: str, **asked: Any) -> Subscription:
    return Subscription(topic_filter, share_name=split_share(topic_filter)[0], **asked)


def tree_of(*subscribed: tuple[Peer, Subscription], **arguments: Any) -> SubscriptionTree[Peer]:
    tree: SubscriptionTree[Peer] = SubscriptionTree(**arguments)
    for peer, asked in subscribed:
        tree.subscribe(peer, asked)
    return tree


def merged(parts: list[Subscription]) -> What | None:
    """What all *parts* ask for together, said without `merge`."""
    if not parts:
        return None
    return (
        max(part.qos for part in parts),
        any(part.no_local for part in parts),
        any(part.retain_as_published for part in parts),
        sum((part.identifiers for part in parts), ()),
    )


def what(asked: Subscription | None) -> What | None:
    return merged([asked] if asked else [])


class Subscribing(RuleBasedStateMachine):
    """A tree against a plain list of (subscriber, Subscription) in the order of subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = [Peer(str(number)) for number in range(3)]
        # A small cache overflows often, as a large one does not in a test.
        self.merging: SubscriptionTree[Peer] = SubscriptionTree(cached_names=4)
        self.separate: SubscriptionTree[Peer] = SubscriptionTree("per_subscription")
        self.model: dict[tuple[Peer, str], Subscription] = {}
        self.matched: dict[str, Route[Peer]] = {}

    @rule(number=st.integers(0, 2), topic_filter=any_filters, asked=options)
    def subscribe(self, number: int, topic_filter: str, asked: Options) -> None:
        key = self.peers[number], topic_filter
        new = subscription(topic_filter, **asked)
        existed = self.model.pop(key, None) is not None
        self.model[key] = new
        generation = self.merging.generation
        assert self.merging.subscribe(key[0], new) == existed
        assert self.separate.subscribe(key[0], new) == existed
        assert self.merging.generation > generation

    @rule(number=st.integers(0, 2), topic_filter=any_filters)
    def unsubscribe(self, number: int, topic_filter: str) -> None:
        key = self.peers[number], topic_filter
        existed = self.model.pop(key, None) is not None
        assert self.merging.unsubscribe(*key) == existed
        assert self.separate.unsubscribe(*key) == existed

    @rule(number=st.integers(0, 2))
    def end_session(self, number: int) -> None:
        peer = self.peers[number]
        filters = [topic_filter for owner, topic_filter in self.model if owner is peer]
        for tree in (self.merging, self.separate):
            tree.unsubscribe_all(peer, filters)
        for topic_filter in filters:
            del self.model[peer, topic_filter]

    @rule(topic_name=topic_names)
    def direct(self, topic_name: str) -> None:
        expected: dict[Peer, list[Subscription]] = {}
        for (peer, topic_filter), asked in self.model.items():
            if not asked.share_name and match(topic_filter, topic_name):
                expected.setdefault(peer, []).append(asked)
        route = self.merging.match(topic_name)
        assert len(route.direct) == len(expected), "each subscriber once"
        for asked in route.direct:
            parts = expected[asked.subscriber]
            assert what(asked) == merged(parts)
            assert what(asked.own) == merged([part for part in parts if not part.no_local])
        found = self.separate.match(topic_name).direct
        assert len(found) == sum(map(len, expected.values()))
        assert all(any(asked is part for part in expected[asked.subscriber]) for asked in found)
        self.matched[topic_name] = route

    @rule(topic_name=topic_names)
    def shared(self, topic_name: str) -> None:
        expected: dict[tuple[str, str], list[tuple[Peer, Subscription]]] = {}
        for (peer, topic_filter), asked in self.model.items():
            key = split_share(topic_filter)
            if asked.share_name and match(key[1], topic_name):
                expected.setdefault(key, []).append((peer, asked))
        for tree in (self.merging, self.separate):
            groups = tree.match(topic_name).groups
            assert len(groups) == len(expected)
            for group in groups:
                members = expected[group.share_name, group.topic_filter]
                assert {(peer, id(asked)) for peer, asked in group} == {(p, id(a)) for p, a in members}
                assert tree.group(f"$share/{group.share_name}/{group.topic_filter}") is group

    @invariant()
    def a_kept_route_knows_when_it_is_old(self) -> None:
        """One that says it is valid is the one that the tree gives now."""
        for topic_name, route in self.matched.items():
            if route.valid:
                assert self.merging.match(topic_name) is route
        self.matched = {topic_name: route for topic_name, route in self.matched.items() if route.valid}

    @invariant()
    def counts(self) -> None:
        assert len(self.merging) == len(self.separate) == self.separate.count == len(self.model)
        assert len(self.merging.routes) <= 4
        for tree in (self.merging, self.separate):
            assert tree._cached_subscriptions == sum(route.size for route in tree.routes.values())
            if not self.model:
                assert tree._held == {}, "nothing is left of removed filters"
                root = tree._wildcards._root
                assert [root.children, root.plus, root.here, root.rest] == [None] * 4


TestSubscribing = Subscribing.TestCase


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_plain_subscription_is_given_as_it_is(qos: int) -> None:
    peer, asked = Peer("a"), Subscription("a/+", qos, identifiers=(5,))
    (given,) = tree_of((peer, asked)).match("a/b").direct
    assert given is asked and given.subscriber is peer
    assert asked.own is asked
    assert Subscription("a", no_local=True).own is None


def test_identifiers_come_in_the_order_of_subscription() -> None:
    peer = Peer("a")
    filters = ["a/#", "a/b", "+/b", "#", "a/+"]
    asked = [Subscription(topic_filter, identifiers=(7,)) for topic_filter in filters[:2]]
    asked += [Subscription(topic_filter, identifiers=(n,)) for n, topic_filter in enumerate(filters[2:])]
    tree = tree_of(*((peer, one) for one in asked))
    assert tree.match("a/b").direct[0].identifiers == (7, 7, 0, 1, 2)
    tree.subscribe(peer, Subscription("a/#", identifiers=(9,)))  # replaced: it is the newest now
    assert tree.match("a/b").direct[0].identifiers == (7, 0, 1, 2, 9)


def test_a_subscription_belongs_to_one_subscriber() -> None:
    asked = Subscription("a/+")
    tree = tree_of((Peer("a"), asked))
    with pytest.raises(ValueError, match="belongs to 'a'"):
        tree.subscribe(Peer("b"), asked)
    assert len(tree) == 1


def test_an_unsubscribe_compares_character_by_character() -> None:
    """MQTT-3.10.4-1."""
    peer = Peer("a")
    tree = tree_of((peer, Subscription("a/+")), (peer, Subscription("$share/g/t", share_name="g")))
    for topic_filter in ("a/b", "A/+", "a/+/", "t", "$share/h/t", "$share/g/a/+", "a/#"):
        assert not tree.unsubscribe(peer, topic_filter)
    assert not tree.unsubscribe(Peer("a"), "a/+"), "another subscriber of the same name"
    assert len(tree) == 2
    assert tree.unsubscribe(peer, "a/+")
    assert tree.unsubscribe(peer, "$share/g/t")
    assert len(tree) == 0
    assert tree.group("$share/g/t") is None


NESTED = ["+", "+/#", "+/a", "+/+", "+/a/#", "+/a/b", "#", "a/#", "a/+"]


@pytest.mark.parametrize("kept", NESTED)
def test_a_removed_filter_takes_no_other_with_it(kept: str) -> None:
    peer, other = Peer("a"), Peer("b")
    tree = tree_of((peer, Subscription(kept)), *((other, Subscription(one)) for one in NESTED))
    tree.unsubscribe_all(other, NESTED)
    for topic_name in ("a", "a/a", "a/a/b", "b/c"):
        assert [one.subscriber for one in tree.match(topic_name).direct] == [peer] * match(kept, topic_name)
    tree.unsubscribe(peer, kept)
    assert tree._wildcards._root.children is None
    assert tree._wildcards._root.plus is None


def test_a_name_is_looked_up_once() -> None:
    tree = tree_of((Peer("a"), Subscription("a/+")))
    route = tree.match("a/b")
    assert tree.match("a/b") is tree.routes["a/b"] is route


@pytest.mark.parametrize(
    ("topic_filter", "forgotten"),
    [
        pytest.param("a/b", {"a/b"}, id="an exact filter: its name"),
        pytest.param("a/x", set(), id="an exact filter of no name"),
        pytest.param("a/#", {"a", "a/b", "a/b/c"}, id="a prefix"),
        pytest.param("a/b/+", {"a/b", "a/b/c"}, id="a longer prefix"),
        pytest.param("+/x", {"a", "a/b", "a/b/c", "b", "$s"}, id="no prefix: all"),
        pytest.param("$share/g/b", {"b"}, id="shared: of the filter"),
    ],
)
def test_what_a_change_forgets(topic_filter: str, forgotten: set[str]) -> None:
    tree = tree_of()
    routes = {topic_name: tree.match(topic_name) for topic_name in ("a", "a/b", "a/b/c", "b", "$s")}
    tree.subscribe(Peer("a"), subscription(topic_filter))
    assert routes.keys() - tree.routes.keys() == forgotten
    assert {topic_name for topic_name, route in routes.items() if not route.valid} == forgotten


def test_with_many_names_remembered_a_wildcard_change_forgets_all() -> None:
    tree = tree_of()
    for number in range(module.SCANNED_NAMES + 1):
        tree.match(f"a/{number}")
    tree.subscribe(Peer("a"), Subscription("b/+"))
    assert tree.routes == {}


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_SUBSCRIPTIONS", 25)
    tree = tree_of(*((Peer(str(number)), Subscription("#")) for number in range(10)))
    routes = [tree.match(topic_name) for topic_name in ("a", "b", "c")]
    assert [route.valid for route in routes] == [False, False, True]
    assert list(tree.routes) == ["c"]
    long = tree.match("x" * (module.CACHED_NAME_LENGTH + 1))
    assert (len(long.direct), long.valid, len(tree.routes)) == (10, False, 1)


BOMBS = {
    "many +": "+/" * 32_767 + "#",
    "many levels": "/" * 65_533 + "#",
    "names and +": "/+" * 32_767,
}


@pytest.mark.parametrize("topic_filter", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("topic_name", ["/" * 65_535, "/" * 65_533, "a/" * 32_767 + "a"], ids=len)
def test_very_many_levels(topic_filter: str, topic_name: str) -> None:
    began = process_time()
    peer = Peer("a")
    tree = tree_of((peer, Subscription(topic_filter)))
    assert len(tree.match(topic_name).direct) == match(topic_filter, topic_name)
    assert tree.unsubscribe(peer, topic_filter)
    assert process_time() - began < 5, "seconds, where a tenth is usual"


def test_each_node_is_visited_at_most_once() -> None:
    """All 2**10 filters of `a` and `+` match; a walk that went back would visit far more than the nodes."""
    visited = 0

    class Level(str):
        """A key that knows how often it was looked up."""

        __hash__ = str.__hash__

        def __eq__(self, level: object) -> bool:
            nonlocal visited
            visited += 1
            return str(self) == level

    filters = ["/".join("a+"[number >> bit & 1] for bit in range(10)) for number in range(1024)]
    tree = tree_of(*((Peer("a"), Subscription(topic_filter)) for topic_filter in filters))
    nodes = [tree._wildcards._root]
    for node in nodes:  # those that are added on the way as well
        if node.children is not None:
            node.children = {Level(level): child for level, child in node.children.items()}
            nodes += node.children.values()
        if node.plus is not None:
            nodes.append(node.plus)
    assert len(tree.match("/".join("a" * 10)).direct) == 1024
    assert visited == 1022  # those with branches, but for one that has only a `+`


@given(st.lists(st.tuples(topic_filters, options), min_size=1, max_size=5), topic_names)
def test_the_order_of_subscribing_does_not_change_who_receives(
    asked: list[tuple[str, Options]], topic_name: str
) -> None:
    peers = [Peer(str(number)) for number in range(len(asked))]
    pairs = [(peer, subscription(one, **how)) for peer, (one, how) in zip(peers, asked, strict=True)]
    forwards = tree_of(*pairs).match(topic_name).direct
    backwards = tree_of(*reversed(pairs)).match(topic_name).direct
    assert {one.subscriber for one in forwards} == {one.subscriber for one in backwards}


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_route_is_remembered_once_its_name_came_before() -> None:
    came: list[str] = []

    def came_before(name: str) -> bool:
        came.append(name)
        return came.count(name) > 1

    tree: SubscriptionTree[Peer] = SubscriptionTree(came_before=came_before)
    tree.subscribe(Peer("a"), subscription("t"))
    first = tree.match("t")
    assert not first.valid and not tree.routes, "whoever keeps it asks anew"
    second = tree.match("t")
    assert second.valid and tree.routes == {"t": second} and second.direct == first.direct
    assert tree.match("t") is second and came == ["t", "t"]
    tree.subscribe(Peer("b"), subscription("t"))
    assert not second.valid and len(tree.match("t").direct) == 2


@pytest.mark.usefixtures("many_switches")
def test_threads() -> None:
    """Each thread has its own subscriber and name; all share a filter, a crowd and a group."""
    tree: SubscriptionTree[Peer] = SubscriptionTree(cached_names=16)
    wrong: list[str] = []

    def hammer(number: int) -> None:
        chance, peer = random.Random(number), Peer(str(number))
        mine = ["#", f"own/{number}", f"own/{number}/+", "own/+", "$share/g/own/+"]
        has: set[str] = set()
        for _ in range(1500):
            topic_filter = chance.choice(mine)
            if topic_filter in has:
                has.discard(topic_filter)
                existed = tree.unsubscribe(peer, topic_filter)
            else:
                has.add(topic_filter)
                existed = not tree.subscribe(peer, subscription(topic_filter))
            route = tree.match(f"own/{number}")
            found = peer in {one.subscriber for one in route.direct}
            member = any(peer in group for group in route.groups)
            expected = bool(has & {"#", f"own/{number}", "own/+"}), "$share/g/own/+" in has
            for group in route.groups:
                group.choose("message")
            if not existed or (found, member) != expected:
                wrong.append(f"{number}: {topic_filter} {sorted(has)}")
        tree.unsubscribe_all(peer, list(has))

    threads = [Thread(target=hammer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(tree) == 0
    assert tree._held == {}


@pytest.mark.parametrize(
    ("action", "waits"),
    [
        pytest.param(lambda tree, peer: tree.match("a/b"), False, id="a remembered name"),
        pytest.param(lambda tree, peer: tree.match("a/c"), True, id="another name"),
        pytest.param(lambda tree, peer: tree.subscribe(peer, Subscription("b")), True, id="subscribe"),
        pytest.param(lambda tree, peer: tree.unsubscribe(peer, "a/+"), True, id="unsubscribe"),
    ],
)
def test_what_waits_for_the_lock(action: Callable[[Any, Peer], object], waits: bool) -> None:
    peer = Peer("a")
    tree = tree_of((peer, Subscription("a/+")))
    tree.match("a/b")
    thread = Thread(target=action, args=(tree, peer))
    with tree._lock:
        thread.start()
        thread.join(0.05 if waits else 10)
        assert thread.is_alive() == waits
    thread.join()
