"""What is retained without a Message: stored, walked and sent as one that is."""

from __future__ import annotations

from itertools import chain

import pytest

from broker import Broker
from broker.handle.subscribe import PIECE
from broker.lane import lane as fast
from broker.lane.retained import STORED
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.message import Message, as_message, plain_size, retained_packets, retained_size
from broker.packet.packets import Publish, Suback, Subscribe, SubscribeRequest
from broker.store.budget import ByteBudget
from broker.store.memory import MemoryRetainedStore
from tests.lane.by_hand import by_hand, joined, take
from tests.peer import Peer, memory_broker, run_async

LARGE = 1 << 40
SIZES = (1, 113, 114, 115, 116, 117, 118, 119, 300, 16_000)


def publish(topic_name: str, payload: bytes, version: Version = Version.MQTT_3_1_1) -> bytes:
    return encode(Publish(topic_name, payload, 0, True), version)


def retained(broker: Broker) -> dict[str, bytes]:
    found = map(as_message, chain.from_iterable(broker._core.retained.stretches("#", 0.0)))
    return {message.topic_name: message.payload for message in found}


@pytest.mark.parametrize("size", SIZES)
def test_it_is_its_message(size: int) -> None:
    message = Message("some/topic", b"x" * size, 0, True, client_id="c")
    plain = publish("some/topic", b"x" * size), "some/topic", "c"
    assert as_message(plain) == message and as_message(message) is message
    assert plain_size(plain[0]) == retained_size(plain) == retained_size(message) == message.size
    for version in (Version.MQTT_3_1_1, Version.MQTT_5):
        for many in ([plain], [plain, message], [message, plain, plain]):
            assert retained_packets(many, version) == retained_packets([message] * len(many), version)


def test_room() -> None:
    budget = ByteBudget(10_000)
    kept = MemoryRetainedStore(5, 2_000, budget, None, 1_000)
    assert kept.room(100) == 5
    assert kept.room(2_001) == 0, "more bytes than it may have"
    budget.take(7_000)
    assert kept.room(100) == 2, "of the budget"
    kept.put(Message("t", b"x"))
    assert kept.room(100) == 1
    budget.take(1_500)
    assert kept.room(100) == 0


@run_async
async def test_a_name_that_is_too_long_here_is_left() -> None:
    async with memory_broker(by_hand(maximum_topic_bytes=10)) as broker:
        await joined(broker, "p")
        data = [publish("t" * size, b"x", Version.MQTT_5) for size in (10, 11)]
        assert take(broker, "p", b"".join(data)) == data[1]


@run_async
async def test_one_read_stores_so_many_and_no_more() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "p")
        packets = [publish(f"t/{number}", b"x", Version.MQTT_5) for number in range(fast.MOST // STORED + 7)]
        assert take(broker, "p", b"".join(packets)) == b"".join(packets[-7:])
        assert len(retained(broker)) == len(packets) - 7


@run_async
async def test_where_somebody_hears_some_of_it_names_are_matched_in_time() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "else/#")
        await joined(broker, "p")
        known = broker._connections._terms.lane.__self__.known  # type: ignore[attr-defined]
        times = iter([1.0, 1.001, 1.003, 2.0])
        known.now = lambda: next(times)
        packets = [publish(f"t/{number}", b"x", Version.MQTT_5) for number in range(4)]
        assert take(broker, "p", b"".join(packets)) == b"".join(packets[2:])


@run_async
async def test_what_is_replaced_while_it_is_sent_comes_once() -> None:
    """A walk holds messages that the next read replaces: they are current no more."""
    async with memory_broker(by_hand(maximum_outbound_packets=10_000)) as broker:
        publisher = Peer(broker, Version.MQTT_3_1_1)
        await publisher.connect("p")
        store = broker._core.retained
        publisher.send(*(Publish(f"t/{number}", b"old", 0, True) for number in range(3)))
        await publisher.expect_nothing()
        walk = store.stretches("#", 0.0)
        found = list(chain.from_iterable(walk))
        assert not any(isinstance(each, Message) for each in found) and all(map(store.is_current, found))
        publisher.send(Publish("t/1", b"new", 0, True), Publish("t/2", b"", 0, True))
        await publisher.expect_nothing()
        assert [as_message(each).topic_name for each in found if store.is_current(each)] == ["t/0"]


@pytest.mark.parametrize("size", [80, 8000], ids=["one piece", "more than one piece"])
@pytest.mark.parametrize("no_local", [False, True])
@pytest.mark.parametrize("version", [Version.MQTT_3_1_1, Version.MQTT_5])
@run_async
async def test_who_subscribes_gets_all_of_it(version: Version, no_local: bool, size: int) -> None:
    """More than one piece has room for; and nobody his own, if he does not want it."""
    async with memory_broker(by_hand(maximum_outbound_packets=10_000)) as broker:
        publisher, subscriber = Peer(broker, version), Peer(broker, version)
        await publisher.connect("p")
        await subscriber.connect("s")
        for number in range(PIECE // 4000):
            publisher.send(Publish(f"p/{number}", b"p" * size, 0, True))
        subscriber.send(Publish("own", b"mine", 0, True))
        await publisher.expect_nothing()
        await subscriber.expect_nothing()
        found = chain.from_iterable(broker._core.retained.stretches("#", 0.0))
        assert not any(isinstance(each, Message) for each in found)
        wanted = retained(broker)
        own = no_local and version is Version.MQTT_5
        subscriber.send(Subscribe(1, [SubscribeRequest("#", 1, no_local=own)]))
        await subscriber.expect(Suback)
        if own:
            del wanted["own"]
        came = [await subscriber.expect(Publish) for _ in wanted]
        assert {each.topic_name: each.payload for each in came} == wanted
        assert all(each.retain and each.qos == 0 for each in came)
        await subscriber.expect_nothing()
