"""Turns in a shared group."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.topic.shared import SharedGroup, Turn
from broker.topic.subscription import Subscription
from tests.topic.make import Peer

READY, FULL, OFFLINE, REFUSES = Turn


def group_of(*peers: Peer) -> SharedGroup[Peer]:
    group: SharedGroup[Peer] = SharedGroup("g", "t")
    for peer in peers:
        group.join(peer, Subscription("$share/g/t", share_name="g"))
    return group


def turns(group: SharedGroup[Peer], count: int) -> str:
    """Who gets *count* messages, one letter each; `-` for nobody."""
    chosen = (group.choose("message") for _ in range(count))
    return "".join(member[0].client_id if member else "-" for member in chosen)


@pytest.mark.parametrize(
    ("says", "order"),
    [
        pytest.param([READY, READY, READY], "abcabc", id="all in turn"),
        pytest.param([READY, FULL, READY], "acacac", id="a full one waits while others can"),
        pytest.param([FULL, OFFLINE, FULL], "acacac", id="the full before the offline"),
        pytest.param([OFFLINE, REFUSES, OFFLINE], "acacac", id="the offline at last"),
        pytest.param([OFFLINE, OFFLINE, READY], "cccccc", id="offline ones swallow nothing MQTT-4.8.2"),
        pytest.param([REFUSES, REFUSES, REFUSES], "------", id="nobody"),
        pytest.param([], "------", id="no members"),
    ],
)
def test_who_gets_it(says: list[int], order: str) -> None:
    peers = [Peer(letter, turn) for letter, turn in zip("abc", says, strict=False)]
    assert turns(group_of(*peers), 6) == order


def test_a_member_that_was_passed_over_does_not_give_its_neighbour_two_turns() -> None:
    peers = a, b, c = [Peer(letter) for letter in "abc"]
    group = group_of(*peers)
    assert turns(group, 1) == "a"
    b.says = REFUSES
    assert turns(group, 3) == "cac"
    b.says = READY
    assert turns(group, 4) == "abca"
    assert (a.asked, b.asked, c.asked) == (4, 3, 3)


def test_a_ready_member_is_found_without_asking_the_others() -> None:
    peers = [Peer(str(number)) for number in range(1000)]
    group = group_of(*peers)
    turns(group, 1000)
    assert {peer.asked for peer in peers} == {1}


def test_a_message_given_up_goes_to_another_member() -> None:
    a, b = Peer("a"), Peer("b")
    group = group_of(a, b)
    subscription = Subscription("$share/g/t", share_name="g")
    assert group.choose("message", excluding=a) == (b, subscription)
    assert group.choose("message", excluding=b) == (a, subscription)
    assert [peer for peer, _ in group.others(a)] == [b]
    group.leave(b)
    assert group.choose("message", excluding=a) is None
    assert list(group.others(a)) == []


def test_a_replaced_subscription_keeps_its_turn() -> None:
    a, b = Peer("a"), Peer("b")
    group = group_of(a, b)
    turns(group, 1)
    assert group.join(b, Subscription("$share/g/t", 2, share_name="g"))
    chosen = group.choose("message")
    assert chosen is not None
    assert (chosen[0], chosen[1].qos) == (b, 2)


@given(st.data(), st.integers(1, 6))
def test_nobody_has_two_turns_between_two_of_a_member_that_is_always_ready(
    data: st.DataObject, size: int
) -> None:
    peers = [Peer(str(number)) for number in range(size)]
    group = group_of(*peers)
    since: Counter[Peer] = Counter()
    for _ in range(data.draw(st.integers(1, 40))):
        for peer in peers[1:]:
            peer.says = data.draw(st.sampled_from(list(Turn)))
        chosen = group.choose("message")
        assert chosen is not None
        assert chosen[0].says == READY
        since[chosen[0]] += 1
        assert max(since.values()) == 1
        if chosen[0] is peers[0]:
            since.clear()


class Membership(RuleBasedStateMachine):
    """A group against a plain list of members in the order of their turns."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = [Peer(str(number)) for number in range(6)]
        self.group = group_of()
        self.ring: list[Peer] = []
        self.next = 0

    @rule(number=st.integers(0, 5))
    def join(self, number: int) -> None:
        peer = self.peers[number]
        existed = self.group.join(peer, Subscription("$share/g/t", number % 3))
        assert existed == (peer in self.ring)
        if not existed:
            self.ring.append(peer)

    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        peer = self.peers[number]
        assert self.group.leave(peer) == (peer in self.ring)
        if peer in self.ring:
            place = self.ring.index(peer)
            self.next -= place < self.next
            self.ring.remove(peer)

    @rule()
    def choose(self) -> None:
        chosen = self.group.choose("message")
        if not self.ring:
            assert chosen is None
            return
        self.next %= len(self.ring)
        assert chosen is not None
        assert chosen[0] is self.ring[self.next]
        assert chosen[1].qos == self.peers.index(chosen[0]) % 3
        self.next += 1

    @invariant()
    def members(self) -> None:
        assert [peer for peer, _ in self.group] == self.ring
        assert len(self.group) == len(self.ring)
        assert [peer for peer in self.peers if peer in self.group] == [
            p for p in self.peers if p in self.ring
        ]
        assert len(self.group._ring) <= 2 * len(self.ring), "holes are bounded"


TestMembership = Membership.TestCase
