"""Router: who gets a message, what hooks make of it, and what becomes of retained messages."""

from __future__ import annotations

from typing import Any

import pytest

from broker import HookBase, Message, MqttError, NotAuthorized, QuotaExceeded
from broker.hook.hooks import Hooks
from broker.router import Router
from broker.session.delivery import Delivery
from broker.store.budget import ByteBudget
from broker.store.memory import MemoryRetainedStore
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription
from broker.topic.tree import SubscriptionTree
from tests.peer import Clock, run_async


class Subscriber:
    """Writes down what it is given."""

    def __init__(self, client_id: str, says: int = Turn.READY) -> None:
        self.client_id = client_id
        self.says = says
        self.got: list[tuple[Message, Subscription]] = []

    def deliver(self, message: Message, subscription: Subscription) -> None:
        self.got.append((message, subscription))

    def turn(self, message: Message, subscription: Subscription) -> int:
        return self.says

    def payloads(self) -> list[bytes]:
        return [message.payload for message, _ in self.got]


class Bench:
    def __init__(self, *hooks: HookBase, messages: int = 10, choice: Any = "round_robin") -> None:
        self.clock, self.budget = Clock(), ByteBudget(1 << 20)
        self.tree: SubscriptionTree[Any] = SubscriptionTree()
        self.kept = MemoryRetainedStore(messages, 1 << 20, self.budget)
        self.drops: list[tuple[str, bytes, str]] = []
        self.router = Router(self.tree, self.kept, Hooks(hooks), self.clock, self._dropped, choice)

    def _dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        assert message is not None
        self.drops.append((client_id, message.payload, reason))

    def add(self, client_id: str, *filters: str, says: int = Turn.READY, **options: Any) -> Subscriber:
        made = Subscriber(client_id, says)
        for topic_filter in filters:
            self.subscribe(made, topic_filter, **options)
        return made

    def subscribe(self, subscriber: Subscriber, topic_filter: str, **options: Any) -> None:
        share = topic_filter.split("/")[1] if topic_filter.startswith("$share/") else ""
        self.tree.subscribe(subscriber, Subscription(topic_filter, share_name=share, **options))

    def stored(self) -> dict[str, bytes]:
        found = self.kept.stretches("#", self.clock())
        return {each.topic_name: each.payload for stretch in found for each in stretch}


# ---- routing


def test_everybody_who_matches_gets_it_once() -> None:
    bench = Bench()
    a, b, c = bench.add("a", "t/1"), bench.add("b", "t/#", "t/+", "t/1"), bench.add("c", "u")
    message = Message("t/1", b"x")
    for _ in range(2):  # the second time from the cache
        assert bench.router.route(message) is True
    assert [len(each.got) for each in (a, b, c)] == [2, 2, 0]
    assert a.got[0][0] is message, "the same object for all: its bytes are made once"


def test_nobody_matches() -> None:
    bench = Bench()
    bench.add("a", "t")
    assert bench.router.route(Message("u")) is False
    assert bench.router.matches("u") is False and bench.router.matches("t") is True
    assert bench.drops == [], "nobody was there to lose it"


def test_a_subscription_made_later_counts_from_then_on() -> None:
    bench = Bench()
    assert not bench.router.route(Message("t"))
    a = bench.add("a", "t")
    assert bench.router.route(Message("t")) and len(a.got) == 1
    bench.tree.unsubscribe(a, "t")
    assert not bench.router.route(Message("t")) and len(a.got) == 1


def test_no_local_keeps_it_from_its_publisher_alone() -> None:
    bench = Bench()
    a, b = bench.add("a", "t", no_local=True), bench.add("b", "t", no_local=True)
    assert bench.router.route(Message("t", b"x", client_id="a")) is True, "a subscription did match"
    assert (a.payloads(), b.payloads()) == ([], [b"x"])
    bench.router.route(Message("t", b"y"))
    assert (a.payloads(), b.payloads()) == ([b"y"], [b"x", b"y"]), "the program is no client"


def test_no_local_of_one_of_two_overlapping_subscriptions() -> None:
    bench = Bench()
    a = bench.add("a", "t", no_local=True, qos=2, identifiers=(1,))
    bench.subscribe(a, "#", qos=1, identifiers=(2,))
    bench.router.route(Message("t", b"own", 2, client_id="a"))
    bench.router.route(Message("t", b"other", 2, client_id="b"))
    [(own, first), (_, second)] = a.got
    assert own.payload == b"own"
    assert (first.qos, first.identifiers) == (1, (2,))
    assert (second.qos, sorted(second.identifiers)) == (2, [1, 2])


# ---- shared subscriptions


def test_one_member_of_each_group_and_everybody_else() -> None:
    bench = Bench()
    one, two = bench.add("1", "$share/g/t"), bench.add("2", "$share/g/t")
    three, plain = bench.add("3", "$share/h/t"), bench.add("4", "t")
    for number in range(4):
        assert bench.router.route(Message("t", b"%d" % number))
    assert sorted(one.payloads() + two.payloads()) == [b"0", b"1", b"2", b"3"]
    assert len(one.got) == len(two.got) == 2
    assert len(three.got) == len(plain.got) == 4


def test_a_group_that_cannot_take_it() -> None:
    bench = Bench()
    bench.add("1", "$share/g/t", says=Turn.REFUSES)
    assert bench.router.route(Message("t", b"x")) is True
    assert bench.drops == [("", b"x", "no_shared_member")]


@pytest.mark.parametrize(("choice", "members"), [("round_robin", 3), ("sticky", 1), ("hash", 1)])
def test_the_choice_is_a_setting(choice: str, members: int) -> None:
    bench = Bench(choice=choice)
    group = [bench.add(name, "$share/g/t") for name in "abc"]
    for _ in range(9):
        bench.router.route(Message("t", b"x", client_id="publisher"))
    assert sum(bool(each.got) for each in group) == members


def delivery(payload: bytes, share: str = "$share/g/t") -> Delivery:
    return Delivery(Message("t", payload, 1), 1, False, share=share)


def test_what_a_member_gives_up_goes_to_the_others_in_order() -> None:
    bench = Bench()
    leaver, other = bench.add("leaver", "$share/g/t"), bench.add("other", "$share/g/t", qos=1)
    bench.router.hand_on(leaver, [delivery(b"%d" % number) for number in range(5)])
    assert (leaver.got, other.payloads()) == ([], [b"0", b"1", b"2", b"3", b"4"])
    assert other.got[0][1].qos == 1, "by the other one's own subscription"


@pytest.mark.parametrize("others", [[], [Turn.REFUSES]])
def test_with_nobody_else_it_stays_with_a_member_and_is_lost_with_the_last(others: list[int]) -> None:
    bench = Bench()
    leaver = bench.add("leaver", "$share/g/t")
    for number, says in enumerate(others):
        bench.add(str(number), "$share/g/t", says=says)
    bench.router.hand_on(leaver, [delivery(b"1")])
    assert (leaver.payloads(), bench.drops) == ([b"1"], [])
    bench.tree.unsubscribe(leaver, "$share/g/t")
    bench.router.hand_on(leaver, [delivery(b"2"), delivery(b"3", "$share/gone/t")])
    assert bench.drops == [("leaver", b"2", "no_shared_member"), ("leaver", b"3", "no_shared_member")]


def test_an_offline_member_takes_what_is_handed_on_only_if_nobody_is_connected() -> None:
    bench = Bench()
    leaver = bench.add("leaver", "$share/g/t")
    away, here = (
        bench.add("away", "$share/g/t", says=Turn.OFFLINE),
        bench.add("here", "$share/g/t", says=Turn.FULL),
    )
    bench.router.hand_on(leaver, [delivery(b"1"), delivery(b"2")])
    assert (away.payloads(), here.payloads()) == ([], [b"1", b"2"])


def test_what_has_expired_meanwhile_is_not_handed_on() -> None:
    bench = Bench()
    leaver, other = bench.add("leaver", "$share/g/t"), bench.add("other", "$share/g/t")
    gone, here = delivery(b"gone"), delivery(b"here")
    gone.message.expires_at, here.message.expires_at = bench.clock(), bench.clock() + 0.001
    bench.router.hand_on(leaver, [gone, here])
    assert other.payloads() == [b"here"]
    assert bench.drops == [("leaver", b"gone", "expired")]


# ---- hooks


class Censor(HookBase):
    """`can_read` by client, `on_publish_deliver` adds the reader's name; `boom` fails in what it names."""

    def __init__(self, hidden_from: str = "", boom: str = "") -> None:
        self.hidden_from, self.boom = hidden_from, boom
        self.asked: list[tuple[str, str]] = []

    def can_read(self, client_id: str, topic_name: str) -> bool:
        self.asked.append((client_id, topic_name))
        if self.boom == "can_read":
            raise RuntimeError("boom")
        return client_id != self.hidden_from

    def on_publish_deliver(self, client_id: str, message: Message) -> Message:
        if self.boom == "on_publish_deliver":
            raise RuntimeError("boom")
        return message.with_(payload=message.payload + b" for " + client_id.encode())


def test_hooks_see_each_delivery_and_change_it_for_that_reader_alone() -> None:
    hook = Censor(hidden_from="b")
    bench = Bench(hook)
    a, b, c = bench.add("a", "t"), bench.add("b", "t"), bench.add("c", "$share/g/t")
    message = Message("t", b"x")
    assert bench.router.route(message) is True
    assert (a.payloads(), b.payloads(), c.payloads()) == ([b"x for a"], [], [b"x for c"])
    assert bench.drops == [("b", b"x", "not_authorized")]
    assert hook.asked == [("a", "t"), ("b", "t"), ("c", "t")]
    assert message.payload == b"x"


@pytest.mark.parametrize(
    ("boom", "reason"), [("can_read", "not_authorized"), ("on_publish_deliver", "hook_failed")]
)
def test_a_hook_that_fails_costs_the_delivery(boom: str, reason: str) -> None:
    bench = Bench(Censor(boom=boom))
    a, b = bench.add("a", "t"), bench.add("b", "$share/g/t")
    assert bench.router.route(Message("t", b"x")) is True
    assert (a.got, b.got) == ([], [])
    assert bench.drops == [("a", b"x", reason), ("b", b"x", reason)]


def test_hooks_see_what_is_handed_on_too() -> None:
    bench = Bench(Censor(hidden_from="other"))
    leaver, other = bench.add("leaver", "$share/g/t"), bench.add("other", "$share/g/t")
    bench.router.hand_on(leaver, [delivery(b"1")])
    assert other.got == []
    assert bench.drops == [("other", b"1", "not_authorized")]


def test_what_is_handed_on_is_the_message_as_it_was_published() -> None:
    bench = Bench(Censor())
    leaver = bench.add("leaver", "$share/g/t")
    bench.router.route(Message("t", b"x", 1))
    other = bench.add("other", "$share/g/t")
    [(message, _)] = leaver.got
    assert message.payload == b"x for leaver"
    bench.router.hand_on(leaver, [Delivery(message, 1, False, share="$share/g/t")])
    assert other.payloads() == [b"x for other"], "and not what the hooks made of it for somebody else"


def test_own_messages_go_through_the_hooks_as_well() -> None:
    bench = Bench(Censor())
    a = bench.add("a", "t", no_local=True)
    bench.subscribe(a, "#")
    bench.router.route(Message("t", b"x", client_id="a"))
    assert a.payloads() == [b"x for a"]


def test_without_such_hooks_nobody_is_asked() -> None:
    bench = Bench(HookBase())
    message = Message("t")
    assert bench.router.inspected("a", message) is message


# ---- retained messages


@run_async
async def test_retain_stores_replaces_and_deletes() -> None:
    bench = Bench()
    a = bench.add("a", "#")
    for payload, stored in ((b"1", {"t": b"1"}), (b"2", {"t": b"2"}), (b"", {})):
        assert await bench.router.publish(Message("t", payload, retain=True)) is True
        assert bench.stored() == stored
    assert a.payloads() == [b"1", b"2", b""], "the empty one is routed like any other"
    await bench.router.publish(Message("t", b"not retained"))
    assert bench.stored() == {}


@run_async
async def test_an_expired_one_deletes_and_is_not_stored() -> None:
    bench = Bench()
    await bench.router.retain(Message("t", b"old", retain=True))
    await bench.router.retain(Message("t", b"new", retain=True, expires_at=bench.clock()))
    assert bench.stored() == {} and len(bench.kept) == 0


@run_async
async def test_what_cannot_be_stored_is_not_routed() -> None:
    bench = Bench(messages=1)
    a = bench.add("a", "#")
    await bench.router.publish(Message("t", b"1", retain=True))
    with pytest.raises(QuotaExceeded):
        await bench.router.publish(Message("u", b"2", retain=True))
    assert (a.payloads(), bench.stored()) == ([b"1"], {"t": b"1"})
    await bench.router.publish(Message("u", b"", retain=True))
    assert a.payloads() == [b"1", b""], "a delete is never refused [B14]"


@run_async
async def test_an_owned_message_is_stored_above_the_limit() -> None:
    bench = Bench(messages=1)
    await bench.router.retain(Message("t", b"1", retain=True))
    await bench.router.retain(Message("u", b"2", retain=True), owned=True)
    assert bench.stored() == {"t": b"1", "u": b"2"}


@run_async
async def test_a_will_that_cannot_be_stored_is_routed_and_counted() -> None:
    bench = Bench(messages=1)
    a = bench.add("a", "#")
    await bench.router.publish_owned(Message("t", b"1", retain=True, client_id="c"))
    await bench.router.publish_owned(Message("u", b"2", retain=True, client_id="c"))
    assert (a.payloads(), bench.stored()) == ([b"1", b"2"], {"t": b"1"})
    assert bench.drops == [("c", b"2", "retained_full")]


class Elsewhere(HookBase):
    """Keeps the retained messages in a list of its own."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.stored: list[Message] = []

    async def store_retained(self, message: Message) -> None:
        if self.error is not None:
            raise self.error
        self.stored.append(message)

    async def get_retained(self, topic_filter: str) -> list[Message]:
        if self.error is not None:
            raise self.error
        return self.stored


async def found(bench: Bench, topic_filter: str = "#") -> list[bytes]:
    return [each.payload for part in await bench.router.find_retained(topic_filter) for each in part]


@run_async
async def test_a_hook_that_keeps_them_takes_the_place_of_the_store() -> None:
    hook = Elsewhere()
    bench = Bench(hook)
    empty = Message("t", b"", retain=True)
    await bench.router.publish(Message("t", b"1", retain=True))
    await bench.router.publish(empty)
    assert hook.stored[1] is empty, "deleting is the hook's as well"
    hook.stored[1:] = [Message("u", b"2", retain=True, expires_at=bench.clock() + 5)]
    assert (bench.stored(), await found(bench)) == ({}, [b"1", b"2"])
    bench.clock.now += 5
    assert await found(bench) == [b"1"], "an expired one is not given on"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("boom"), "retained_failed"),
        (NotAuthorized(), "retained_failed"),
        (QuotaExceeded(), "retained_full"),
    ],
)
@run_async
async def test_a_hook_that_cannot_keep_it(error: Exception, reason: str) -> None:
    bench = Bench(Elsewhere(error))
    a = bench.add("a", "#")
    with pytest.raises(MqttError):
        await bench.router.publish(Message("t", b"1", retain=True))
    assert a.got == []
    await bench.router.publish_owned(Message("t", b"2", retain=True))
    assert (a.payloads(), bench.drops) == ([b"2"], [("", b"2", reason)])
    assert await found(bench) == []


@run_async
async def test_found_by_filter() -> None:
    bench = Bench()
    for name in ("a/1", "a/2", "b"):
        await bench.router.retain(Message(name, name.encode(), retain=True))
    assert sorted(await found(bench, "a/+")) == [b"a/1", b"a/2"]
