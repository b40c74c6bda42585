"""Names, filters, the tree and the index: what they say must agree with plain words and with `match`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from broker.errors import TopicFilterInvalid, TopicNameInvalid
from broker.topic.index import TopicIndex
from broker.topic.match import match
from broker.topic.name import MAXIMUM_LENGTH, check_topic_filter, check_topic_name, has_wildcard, split_share
from broker.topic.subscription import Subscription
from broker.topic.tree import SubscriptionTree
from tests.fuzz.pieces import Draw, record, split_records
from tests.fuzz.target import Target
from tests.topic.make import Peer

NAMES = ("a", "a/b", "a/b/c", "b/a", "/", "$x/y")
MOST = 60  # records of one input that are played
LONGEST = MAXIMUM_LENGTH + 10  # characters of a text
WALKS = 3  # walks through the index that may be under way

# ---- the grammar and the matching, in other words than theirs [MQTT5 4.7, 4.8.2]


def is_name(text: str) -> bool:
    return _is_text(text) and not re.search("[+#]", text)


def is_filter(text: str) -> bool:
    if not _is_text(text):
        return False
    if re.match(r"\$share(/|\Z)", text):
        shared = re.fullmatch(r"\$share/[^/+#]+/(.+)", text, re.DOTALL)
        return shared is not None and _is_plain_filter(shared[1])
    return _is_plain_filter(text)


def _is_text(text: str) -> bool:
    return (
        not re.search("[\ud800-\udfff]", text)
        and "\0" not in text
        and 1 <= len(text.encode()) <= MAXIMUM_LENGTH
    )


def _is_plain_filter(text: str) -> bool:
    return bool(re.fullmatch(r"([^+#/]*|\+)(/([^+#/]*|\+))*(/#)?|#", text))


def matches(topic_filter: str, topic_name: str) -> bool:
    if topic_name[0] == "$" and topic_filter[0] in "+#":
        return False
    if topic_filter == "#":
        return True
    levels = topic_filter.removesuffix("/#").split("/")
    pattern = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    return bool(re.fullmatch(pattern + "(/.*)?" * topic_filter.endswith("/#"), topic_name, re.DOTALL))


# ---- playing the records


class Walk:
    """A walk through the index that others change: who was there all the time comes once."""

    def __init__(self, index: TopicIndex[int], topic_filter: str) -> None:
        self.topic_filter = topic_filter
        self.steps = index.find(topic_filter)
        self.stayed, self.known = set(index), set(index)
        self.found: list[str] = []

    def step(self, count: int) -> None:
        for _ in range(count):
            pair = next(self.steps, None)
            if pair is not None:
                self.found.append(pair[0])

    def end(self) -> None:
        self.found += [topic_name for topic_name, _ in self.steps]
        often = Counter(self.found)
        assert all(often[name] == match(self.topic_filter, name) for name in self.stayed)
        assert all(name in self.known and match(self.topic_filter, name) for name in often)


class Play:
    """A tree of each kind and an index, beside plain dictionaries that say the same."""

    def __init__(self) -> None:
        self.peers = [Peer(str(number)) for number in range(4)]
        self.trees = (SubscriptionTree[Peer](cached_names=4), SubscriptionTree[Peer]("per_subscription"))
        self.subscribed: dict[tuple[Peer, str], Subscription] = {}
        self.index: TopicIndex[int] = TopicIndex()
        self.stored: dict[str, int] = {}
        self.walks: list[Walk] = []
        self.count = 0

    def subscribe(self, draw: Draw) -> None:
        peer, options, topic_filter = self.peers[draw.byte() & 3], draw.byte(), text(draw)
        if not check(topic_filter, is_filter, check_topic_filter, TopicFilterInvalid):
            return
        share_name, plain = split_share(topic_filter)
        assert topic_filter == (f"$share/{share_name}/{plain}" if share_name else plain)
        assert has_wildcard(plain) == (not is_name(plain))
        identifiers = (1 + options // 64,) if options & 32 else ()
        flags = options & 8 > 0, options & 16 > 0
        asked = Subscription(topic_filter, options % 3, *flags, 0, identifiers, share_name)
        existed = self.subscribed.pop((peer, topic_filter), None) is not None
        self.subscribed[peer, topic_filter] = asked
        assert [tree.subscribe(peer, asked) for tree in self.trees] == [existed, existed]

    def unsubscribe(self, draw: Draw) -> None:
        key = self.peers[draw.byte() & 3], text(draw)
        existed = self.subscribed.pop(key, None) is not None
        assert [tree.unsubscribe(*key) for tree in self.trees] == [existed, existed]

    def leave(self, draw: Draw) -> None:
        peer = self.peers[draw.byte() & 3]
        filters = [topic_filter for owner, topic_filter in self.subscribed if owner is peer]
        for topic_filter in filters:
            del self.subscribed[peer, topic_filter]
        for tree in self.trees:
            tree.unsubscribe_all(peer, filters)

    def look_up(self, draw: Draw) -> None:
        topic_name = text(draw)
        if check(topic_name, is_name, check_topic_name, TopicNameInvalid):
            self.check_name(topic_name)

    def check_name(self, topic_name: str) -> None:
        """Every subscription that matches, once each; merged, every subscriber once."""
        direct, shared = set[tuple[Peer, int]](), set[tuple[str, Peer, int]]()
        for (peer, topic_filter), asked in self.subscribed.items():
            share_name, plain = split_share(topic_filter)
            assert match(plain, topic_name) == matches(plain, topic_name), (plain, topic_name)
            if match(plain, topic_name) and share_name:
                shared.add((topic_filter, peer, id(asked)))
            elif match(plain, topic_name):
                direct.add((peer, id(asked)))
        merged, separate = (tree.match(topic_name) for tree in self.trees)
        assert sorted(map(hash, direct)) == sorted(hash((one.subscriber, id(one))) for one in separate.direct)
        assert Counter(one.subscriber for one in merged.direct) == Counter({peer for peer, _ in direct})
        for asked in merged.direct:
            peer = asked.subscriber
            parts = [part for part in self.subscribed.values() if (peer, id(part)) in direct]
            assert asked.qos == max(part.qos for part in parts)
            assert asked.identifiers == sum((part.identifiers for part in parts), ())
            assert (asked.own is None) == all(part.no_local for part in parts)
        for route in (merged, separate):
            assert route.valid or len(topic_name) > 1024
            members = ((group, peer, id(asked)) for group in route.groups for peer, asked in group)
            assert shared == {(f"$share/{g.share_name}/{g.topic_filter}", *member) for g, *member in members}

    def store(self, draw: Draw) -> None:
        """One name, or many that begin with it: more than a bunch of the index."""
        count, topic_name = draw.byte() % 40, text(draw)
        for number in range(count + 1):
            name = f"{topic_name}/{number}" if count else topic_name
            if check(name, is_name, check_topic_name, TopicNameInvalid):
                self.count += 1
                self.stored[name] = self.count
                self.index.set(name, self.count)
                for walk in self.walks:
                    walk.known.add(name)

    def remove(self, draw: Draw) -> None:
        """One name, or all that begin with it."""
        many, topic_name = draw.byte() & 1, text(draw)
        names = [name for name in self.stored if name.startswith(topic_name)] if many else [topic_name]
        for name in names:
            assert self.index.pop(name) == self.stored.pop(name, None)
            for walk in self.walks:
                walk.stayed.discard(name)

    def find(self, draw: Draw) -> None:
        size, (_, topic_filter) = draw.byte() + 1, split_share(text(draw))
        if not topic_filter or not check(topic_filter, is_filter, check_topic_filter, TopicFilterInvalid):
            return
        if topic_filter.startswith("$share/"):
            return
        expected = {name: value for name, value in self.stored.items() if match(topic_filter, name)}
        assert sorted(self.index.find(topic_filter)) == sorted(expected.items())
        slices = [value for part in self.index.slices(topic_filter, size) for value in part]
        assert slices == [value for _, value in self.index.find(topic_filter)]
        for name in expected:
            assert matches(topic_filter, name)
        if len(self.walks) < WALKS:
            self.walks.append(Walk(self.index, topic_filter))

    def walk_on(self, draw: Draw) -> None:
        if self.walks:
            count, walk = draw.byte(), draw.one_of(self.walks)
            walk.step(count & 0x1F)
            if count & 0x20:
                self.walks.remove(walk)
                walk.end()

    def end(self) -> None:
        for walk in self.walks:
            walk.end()
        self.walks.clear()
        for topic_name in (*NAMES, *list(self.stored)[:20]):
            self.check_name(topic_name)
        assert dict(self.index.items()) == self.stored and len(self.index) == len(self.stored)
        assert self.trees[0].count == self.trees[1].count == len(self.subscribed)
        for topic_name in tuple(self.stored):
            self.index.pop(topic_name)
        for number, key in enumerate(tuple(self.subscribed)):
            del self.subscribed[key]
            assert all(tree.unsubscribe(*key) for tree in self.trees)
            self.check_name(NAMES[number % len(NAMES)])
        assert self.index._root == (), "something stays in the index"
        for tree in self.trees:
            root = tree._wildcards._root
            assert tree._held == {} and [root.children, root.plus, root.here, root.rest] == [None] * 4


def text(draw: Draw) -> str:
    """What is left as text. What is no UTF-8 becomes surrogates, and a first byte 0xFF makes it long."""
    data = draw.rest()
    if data[:1] == b"\xff" and len(data) > 2:
        times = 1 << (data[1] & 0x0F)
        return (data[2:].decode("utf-8", "surrogateescape") * times)[:LONGEST]
    return data.decode("utf-8", "surrogateescape")


def check(
    topic: str, expected: Callable[[str], bool], checked: Callable[[str], None], error: type[Exception]
) -> bool:
    """Whether *topic* is valid, by both."""
    valid = expected(topic)
    try:
        checked(topic)
    except error:
        assert not valid, f"{topic!r} is refused"
    else:
        assert valid, f"{topic!r} is accepted"
    return valid and len(topic) < 3000  # longer ones would make every look-up slow


KINDS = (
    *(Play.subscribe, Play.subscribe, Play.unsubscribe, Play.look_up, Play.look_up, Play.store, Play.remove),
    *(Play.find, Play.walk_on, Play.leave),
)


def run(data: bytes) -> None:
    play = Play()
    for head, body in split_records(data)[:MOST]:
        KINDS[head[0] % len(KINDS)](play, Draw(body))
    play.end()


def seeds() -> Iterator[bytes]:
    filters = [b"a", b"a/b", b"a/+", b"a/#", b"+", b"+/b", b"#", b"$share/g/a", b"$share/g/#"]
    filters += [b"$share/h/a/+", b"/", b"+/+", b"$x/#", "ü/ñ".encode(), b"a//b", b"+/#"]
    names = [b"a", b"a/b", b"/", b"$x/y", b"a//b", "ü/ñ".encode(), b"a/b/c", b"$share"]
    subscribed = b"".join(record(0, bytes((n & 3, 8 * n & 0xFF)) + each) for n, each in enumerate(filters))
    looked_up = b"".join(record(3, name) for name in names)
    yield subscribed + looked_up
    yield subscribed + b"".join(record(2, b"\0" + each) for each in filters) + looked_up + record(9)
    stored = record(5, b"\0a") + record(5, b"\x27a") + record(5, b"\x20a/3") + record(5, b"\x11$x")
    found = b"".join(record(7, b"\x04" + each) for each in (b"#", b"a/#", b"a/+", b"+/3/+", b"$x/+", b"a/7"))
    yield stored + found + record(8, b"\x05") + record(6, b"\1a/3") + record(8, b"\x2a") + found
    for wrong in (b"", b"a#", b"a/#/b", b"+a", b"a+/b", b"$share", b"$share/", b"$share/g", b"$share/g/"):
        yield record(0, b"\0\0" + wrong) + record(3, wrong)
    for wrong in (b"$share/+/a", b"$share//a", b"\0", b"\xed\xa0\x80", b"\xff\x0fabcde", b"\xff\x10ab/"):
        yield record(0, b"\0\0" + wrong) + record(3, wrong) + record(5, b"\0" + wrong)


TARGET = Target(
    name="topics",
    run=run,
    seeds=seeds,
    covers=("topic.name", "topic.match", "topic.tree", "topic.index", "topic.shared", "topic.subscription"),
    longest=1024,
    words=[b"$share/", b"$share/g/", b"/#", b"+/", b"/+", b"#", b"$x/", b"a/b", b"//"],
)
