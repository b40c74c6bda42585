"""Nobody takes more than a share: memory that is counted and given back, and work that is done in slices.

What costs time is counted in steps of the work and turns of the loop, never timed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import chain
from typing import Any
from unittest.mock import patch

import pytest

from broker import Broker, Capacity, Config, Limits, Message, Version
from broker.handle.subscribe import TOGETHER
from broker.outbound import BURST
from broker.packet.enums import PacketType
from broker.packet.packets import (
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from broker.session.inflight import LAST_IDENTIFIER
from broker.session.manager import AT_ONCE
from broker.session.session import Session
from broker.topic.subscription import Subscription
from broker.transport.memory import MemoryConnection
from tests.peer import Clock, Peer, memory_broker, message_bytes, run_async, settle
from tests.session.make import Bench
from tests.topic.make import CountedIndex
from tests.wire import Most, turns, until

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
KEPT = {"session_expiry_interval": 10_000}
SHORT = {"message_expiry_interval": 5}


def by_hand(maximum_bytes: int = 1 << 30, fast_lane: bool = True, **limits: Any) -> Config:
    """Without a clockwork of its own."""
    capacity = Capacity(sweep_interval=0, sys_interval=0, maximum_bytes=maximum_bytes, fast_lane=fast_lane)
    return Config(capacity=capacity, limits=Limits(**limits))


def session_of(broker: Broker, client_id: str) -> Session:
    session = broker._core.sessions.get(client_id)
    assert session is not None
    return session


async def offline(broker: Broker, client_id: str, *filters: str) -> Session:
    """A session that nobody is connected to, subscribed at QoS 1."""
    peer = Peer(broker)
    await peer.connect(client_id, properties=KEPT)
    await peer.subscribe(*filters, qos=1)
    peer.drop()
    await settle(broker, client_id)
    return session_of(broker, client_id)


async def taken(peer: Peer) -> list[Packet]:
    """All that the broker has for *peer*, who acknowledges each PUBLISH, until a ping finds nothing more."""
    got: list[Packet] = []
    while True:
        await turns()
        waiting = [packet async for packet in before_pong(peer)]
        if not waiting:
            return got
        got += waiting


async def before_pong(peer: Peer) -> AsyncIterator[Packet]:
    peer.send(Pingreq())
    while (packet := await peer.recv()) is not None and not isinstance(packet, Pingresp):
        if isinstance(packet, Publish) and packet.qos:
            peer.send(Puback(packet.packet_id))
        yield packet


# ---- retained messages: a walk through them holds nobody up, and one at a time is enough


def retained(broker: Broker, count: int, name: str = "a/{}/x", payload: bytes = b"1") -> CountedIndex:
    """*count* retained messages of QoS 1 in an index that counts."""
    store: Any = broker._core.retained
    store._index = walks = CountedIndex()
    for number in range(count):
        store.put(Message(name.format(number), payload, 1, True))
    return walks


@pytest.mark.parametrize("count", [1000, 6000])  # many short searches, or long ones
@run_async
async def test_filters_that_match_nothing_are_searched_in_slices(count: int) -> None:
    async with memory_broker(by_hand()) as broker:
        walks = retained(broker, count)
        peer, bystander = Peer(broker), Peer(broker)
        await peer.connect("c")
        await bystander.connect("b")
        async with Most(lambda: walks.looked_at) as looks:
            peer.send(Subscribe(1, [SubscribeRequest(f"+/+/nothing{number}", 0) for number in range(20)]))
            await peer.expect(Suback)
            await bystander.expect_nothing()
            assert walks.looked_at < 20 * count, "others are served long before the end"
            await until(lambda: walks.begun == 20 and not walks.open)
        assert walks.looked_at >= 20 * count
        assert looks.most <= 5000, "whatever the number of filters and messages"


@run_async
async def test_feeds_that_wait_their_turn_have_not_begun() -> None:
    async with memory_broker(by_hand()) as broker:
        walks = retained(broker, 2000, "a/b/c/d/{}")
        peer = Peer(broker)
        await peer.connect("c", properties={"receive_maximum": 1})
        for number in range(16):
            levels = ("+" if number >> at & 1 else name for at, name in enumerate("abcd"))
            peer.send(Subscribe(number + 1, [SubscribeRequest("/".join(levels) + "/+", 1)]))
        await until(lambda: len(session_of(broker, "c").subscriptions) == 16)
        await turns(50)
        assert (walks.begun, walks.open) == (1, 1), "a walk holds memory only while it runs"
        peer.drop()
        await settle(broker, "c")
        await until(lambda: not walks.open)


@run_async
async def test_many_clients_that_are_fed_at_the_same_time_leave_turns_to_others() -> None:
    async with memory_broker(by_hand()) as broker:
        retained(broker, 2000)
        peers = [Peer(broker) for _ in range(40)]
        for number, peer in enumerate(peers):
            await peer.connect(f"c{number}")
            peer.send(Subscribe(1, [SubscribeRequest("#", 0)]))
        stats = broker.stats
        await turns(3)
        async with Most(lambda: stats.publish_sent) as sent:
            await until(lambda: stats.publish_sent == 40 * 2000)
        most = 40 * 6 * TOGETHER
        assert sent.most <= most, "four times TOGETHER for each, and some more while few are fed"
        await turns()
        assert stats.feeding == 0
        peers[0].send(Subscribe(2, [SubscribeRequest("#", 0)]))
        async with Most(lambda: stats.publish_sent) as sent:
            await until(lambda: stats.publish_sent == 41 * 2000)
        assert sent.most >= 64, "alone it goes faster"


def identifiers(packets: list[Packet]) -> list[int]:
    return [
        packet.properties["subscription_identifier"][0] for packet in packets if isinstance(packet, Publish)
    ]


@pytest.mark.parametrize("unsubscribe", [True, False])
@pytest.mark.parametrize(("handling", "brought"), [(2, 0), (0, 200)])
@run_async
async def test_a_new_subscription_ends_the_feed_of_the_old_one(
    handling: int, brought: int, unsubscribe: bool
) -> None:
    async with memory_broker(by_hand(maximum_queued_messages=10)) as broker:
        retained(broker, 200)
        peer = Peer(broker)
        await peer.connect("c", properties={"receive_maximum": 1})
        peer.send(Subscribe(1, [SubscribeRequest("a/#", 1)], {"subscription_identifier": 7}))
        await peer.expect(Suback)
        await turns(20)
        if unsubscribe:
            peer.send(Unsubscribe(2, ["a/#"]))
        again = SubscribeRequest("a/#", 0, retain_handling=handling)
        peer.send(Subscribe(3, [again], {"subscription_identifier": 8}))
        got = await taken(peer)
        old = identifiers(got).count(7)
        assert 0 < old <= 12, "what was queued already, and nothing more"
        assert identifiers(got).count(8) == brought
        assert [type(packet) for packet in got if isinstance(packet, (Suback, Unsuback))] == (
            [Unsuback, Suback] if unsubscribe else [Suback]
        )
        late = [packet for packet in got if isinstance(packet, Publish) and identifiers([packet]) == [8]]
        assert {packet.qos for packet in late} <= {0}


@pytest.mark.parametrize(
    ("limits", "count", "receive_maximum"),
    [
        ({"maximum_queued_messages": 1}, 1, 65535),
        ({"maximum_queued_messages": 1}, 20, 1),
        ({"maximum_queued_bytes": 10_000}, 50, 1),
        ({"maximum_queued_bytes": 500}, 5, 1),  # less than one of them takes
        ({"maximum_bytes": 180_000}, 100, 1),  # nearly all of it is spent by what is retained
    ],
)
@run_async
async def test_retained_messages_fit_through_a_small_queue(
    limits: dict[str, int], count: int, receive_maximum: int
) -> None:
    async with memory_broker(by_hand(**limits)) as broker:
        retained(broker, count, payload=b"x" * 1000)
        peer = Peer(broker)
        await peer.connect("c", properties={"receive_maximum": receive_maximum})
        await peer.subscribe("a/#", qos=1)
        got = await taken(peer)
        assert len({packet.topic_name for packet in got if isinstance(packet, Publish)}) == len(got) == count
        assert not broker.stats.dropped


@run_async
async def test_what_is_kept_has_no_encoded_frames() -> None:
    async with memory_broker(by_hand()) as broker:
        away = await offline(broker, "away", "a/#")
        for version in (V3, V5):  # connected, so that a live message is encoded before it is queued
            live = Peer(broker, version)
            await live.connect(f"live{version}")
            await live.subscribe("a/#", qos=1)
        for number in range(3):
            await broker.publish(f"a/{number}", b"x", qos=2, retain=True)
        for version in (V3, V5):
            for qos in (0, 1, 2):
                peer = Peer(broker, version)
                await peer.connect(f"{version}-{qos}")
                await peer.subscribe("a/#", qos=qos)
                assert [(await peer.expect(Publish)).qos for _ in range(3)] == [qos] * 3
        stored = [*chain.from_iterable(broker._core.retained.stretches("#", 0))]
        waiting = [delivery.message for delivery in away.queue]
        assert len(stored) == len(waiting) == 3
        assert [each._frames for each in stored + waiting] == [None] * 6


# ---- queues: what has expired takes no place and no bytes


@run_async
async def test_expired_messages_make_room_in_a_full_queue() -> None:
    clock = Clock()
    async with memory_broker(by_hand(maximum_queued_messages=10), clock=clock) as broker:
        away = await offline(broker, "away", "t")
        for number in range(10):
            await broker.publish("t", b"%d" % number, qos=1, properties=SHORT if number % 2 else {})
        clock.now += 5
        await broker.publish("t", b"fresh", qos=1)
        assert [d.message.payload for d in away.queue] == [b"0", b"2", b"4", b"6", b"8", b"fresh"]
        assert broker.stats.dropped == {"expired": 5}
        assert message_bytes(broker) == away.bytes


@run_async
async def test_expired_messages_of_one_who_is_away_leave_the_budget_to_others() -> None:
    clock = Clock()
    async with memory_broker(by_hand(maximum_bytes=200_000), clock=clock) as broker:
        await offline(broker, "a", "to/a")
        other = await offline(broker, "b", "to/b")
        while not broker.stats.dropped:
            await broker.publish("to/a", b"x" * 10_000, qos=1, properties=SHORT)
        await broker.publish("to/b", b"y" * 10_000, qos=1)
        assert broker.stats.dropped == {"memory": 2} and not other.queue
        clock.now += 4.9
        await broker.sweep()
        assert message_bytes(broker) > 100_000
        clock.now += 0.1
        await broker.sweep()
        assert message_bytes(broker) == 0, "nobody had to touch that queue"
        for _ in range(10):
            await broker.publish("to/b", b"y" * 10_000, qos=1)
        assert broker.stats.dropped["memory"] == 2 and len(other.queue) == 10


@run_async
async def test_queues_that_expire_all_at_once_are_swept_in_slices() -> None:
    clock = Clock()
    async with memory_broker(by_hand(), clock=clock) as broker:
        sessions = [broker._core.sessions.create(f"s{number}") for number in range(30)]
        for session in sessions:
            broker._core.tree.subscribe(session, Subscription("t", 1))
        for number in range(1000):
            await broker.publish("t", b"", qos=1, properties={"message_expiry_interval": 5 + number % 2})
        clock.now += 10
        sweeps, before = 0, 0
        while message_bytes(broker):
            await broker.sweep()
            dropped = broker.stats.dropped["expired"]
            assert before < dropped <= before + AT_ONCE + 1000
            before, sweeps = dropped, sweeps + 1
        assert (before, sweeps) == (30_000, 3)
        assert not any(session.queue for session in sessions)


class Watched(deque[Any]):
    """A queue that counts how many of its messages were looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.looked_at += 1
            yield each


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "disconnect"])
def test_a_message_for_a_full_queue_does_not_look_through_it(policy: str) -> None:
    bench = Bench(queue_full=policy, maximum_queued_messages=100, queue_qos_0=True)
    bench.session.queue = queue = Watched()
    for number in range(100):
        bench.deliver(b"%d" % number, expires_at=bench.clock.now + 100)
    for number in range(100, 150):
        bench.deliver(b"%d" % number, expires_at=bench.clock.now + 100)
    assert queue.looked_at == 0
    assert len(bench.drops) == 50 and len(queue) == 100
    bench.check_balance()


# ---- one read of many packets


@pytest.mark.parametrize("connected", [True, False])
@run_async
async def test_one_read_for_many_subscribers_gives_others_a_turn(connected: bool) -> None:
    """Deliveries count, and so do drops: a session that is full costs as well."""
    async with memory_broker(by_hand(maximum_queued_messages=1, fast_lane=False)) as broker:
        readers = [Peer(broker) for _ in range(40)]
        for number, reader in enumerate(readers):
            await reader.connect(f"s{number}", properties=KEPT)
            await reader.subscribe("t")
            if not connected:
                reader.drop()
                await settle(broker, f"s{number}")
        publisher = Peer(broker)
        await publisher.connect("p")
        stats = broker.stats
        async with Most(lambda: stats.publish_sent + stats.drops) as work:
            publisher.send_raw(b"\x30\x04\0\1t\0" * 8000)  # one read
            await until(lambda: stats.publish_received == 8000)
        assert stats.publish_sent + stats.drops == 40 * 8000
        assert work.most <= 100_000, "of 320,000; in ten milliseconds"


@pytest.mark.parametrize(
    ("raw", "count"), [(b"\xc0\0", 32_000), (b"\x30\x04\0\1t\0", 10_000)], ids=["pings", "nobody subscribes"]
)
@run_async
async def test_one_read_of_many_small_packets_gives_others_a_turn(raw: bytes, count: int) -> None:
    async with memory_broker(by_hand(fast_lane=False)) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        stats = broker.stats
        before = stats.messages_received
        with patch("broker.hook.limits.TURN", 0.001):  # a fast machine does most of one read in ten
            async with Most(lambda: stats.messages_received) as work:
                peer.send_raw(raw * count)
                await until(lambda: stats.messages_received - before == count)
        assert work.most <= 0.75 * count


# ---- what a session holds


@pytest.mark.parametrize("version", [V3, V5])
@run_async
async def test_a_client_that_never_releases_is_refused_before_it_spends_the_budget(version: Version) -> None:
    async with memory_broker(by_hand(maximum_bytes=1 << 20, maximum_queued_bytes=100_000)) as broker:
        greedy, peer = Peer(broker, version), Peer(broker)
        await greedy.connect("greedy")
        await peer.connect("peer")
        await peer.subscribe("t", qos=1)
        packet: Packet | None = None
        for number in range(1, 50):
            greedy.send(Publish("mine", b"x" * 10_000, 2, packet_id=number))
            packet = await greedy.recv()
            if packet is None or (isinstance(packet, Pubrec) and packet.reason_code >= 0x80):
                break
        assert number == 10, "nine of 10,000 bytes and more fit into 100,000"
        if version is V3:
            assert packet is None, "it has no way to hear of it but the end"
        else:
            assert isinstance(packet, Pubrec) and packet.reason_code == 0x97
            greedy.send(Pubrel(1))
            await greedy.expect(Pubcomp)
            assert await greedy.publish("mine", b"x" * 10_000, qos=2, packet_id=50) == 0x10
        assert broker._core.budget.used < 200_000
        assert await peer.publish("other", b"y" * 50_000, qos=1) == 0x10
        await broker.publish("t", b"y" * 50_000, qos=1)
        assert len((await peer.expect(Publish)).payload) == 50_000, "others do not notice"


def test_with_every_identifier_in_use_a_message_waits() -> None:
    """A client that answers PUBREC and never PUBCOMP collects them over its connections."""
    bench = Bench(budget=1 << 30, maximum_queued_messages=10)
    bench.attach(window=65535)
    for packet_id in range(1, LAST_IDENTIFIER + 1):
        bench.deliver(b"", qos=2)
        bench.session.acknowledge(packet_id, PacketType.PUBREC, 0)
    bench.detach()
    link = bench.attach(window=65535)
    assert len(link.take()) == LAST_IDENTIFIER, "a PUBREL for each, which takes no slot of the window"
    bench.deliver(b"late", qos=2)
    assert (link.take(), bench.queued()) == ([], [b"late"])


def test_what_is_in_flight_counts_for_the_bytes_of_a_session() -> None:
    bench = Bench(maximum_queued_bytes=1000)
    link = bench.attach(window=65535)
    for _ in range(5):  # over as many connections
        bench.deliver(*[b"x" * 99] * 5, qos=2)
        bench.detach()
        link = bench.attach(window=65535)
    assert len(link.payloads()) == 10
    assert bench.session.bytes == bench.budget.used == 1000
    assert bench.drops == [(b"x" * 99, "queue_full")] * 15


async def with_will(broker: Broker, peer: Peer) -> int:
    properties = {"will_delay_interval": 9000, "user_property": [("k", "v" * 5000)] * 10}
    await peer.connect("c", will=Will("w", b"p" * 30_000, properties=properties), properties=KEPT)
    return 80_000


async def with_filters(broker: Broker, peer: Peer) -> int:
    await peer.connect("c", properties=KEPT)
    await peer.subscribe(*(f"{number}/" + "x" * 5000 for number in range(10)))
    await peer.subscribe(*(f"{number}/" + "x" * 5000 for number in range(10)))  # again: counted once
    return 50_000


async def with_names(broker: Broker, peer: Peer) -> int:
    await peer.connect("c" * 20_000, user_name="u" * 30_000, properties=KEPT)
    return 50_000


async def with_many_empty_messages(broker: Broker, peer: Peer) -> int:
    await peer.connect("c", properties=KEPT)
    for packet_id in range(1, 201):
        peer.send(Publish("e", b"", 2, packet_id=packet_id))
        await peer.expect(Pubrec)
    return 200 * 200


@pytest.mark.parametrize("make", [with_will, with_filters, with_names, with_many_empty_messages])
@run_async
async def test_what_a_session_holds_is_counted_while_it_lives(
    make: Callable[[Broker, Peer], Awaitable[int]],
) -> None:
    clock = Clock()
    async with memory_broker(by_hand(), clock=clock) as broker:
        budget, peer = broker._core.budget, Peer(broker)
        least = await make(broker, peer)
        assert least <= budget.used <= least + 40_000
        (client_id,) = broker.clients
        peer.drop()
        await settle(broker, client_id)
        assert least <= budget.used <= least + 40_000, "and while nobody is connected"
        clock.now += 20_000
        await broker.sweep()
        assert len(broker._core.sessions) == 0
        assert budget.used == 0


@run_async
async def test_a_filter_is_given_back_with_its_subscription_and_refused_without_room() -> None:
    async with memory_broker(by_hand()) as broker:
        budget, peer = broker._core.budget, Peer(broker)
        await peer.connect("c")
        before = budget.used
        assert (await peer.subscribe("x" * 5000)).reason_codes == [0]
        assert budget.used >= before + 5000
        others = budget.maximum - budget.used
        budget.take_anyway(others)
        assert (await peer.subscribe("x" * 5000, "y")).reason_codes == [0, 0x97], "a held one stays"
        budget.give(others)
        peer.send(Unsubscribe(2, ["x" * 5000]))
        await peer.expect(Unsuback)
        assert budget.used == before


@run_async
async def test_the_filters_of_one_packet_are_counted_together() -> None:
    async with memory_broker(by_hand()) as broker:
        budget, peer = broker._core.budget, Peer(broker)
        await peer.connect("c")
        others = budget.maximum - budget.used - 100_000
        budget.take_anyway(others)
        suback = await peer.subscribe(*(f"{number}/" + "+/" * 100 + "#" for number in range(20)))
        assert suback.reason_codes == [0] * 3 + [0x97] * 17, "each takes some thirty thousand"
        assert budget.used <= budget.maximum
        assert (await peer.subscribe("+/" * 100 + "#", "t")).reason_codes == [0x97, 0], "a small one has room"
        budget.give(others)


@run_async
async def test_a_will_is_given_back_when_it_is_replaced_or_deleted() -> None:
    async with memory_broker(by_hand()) as broker:
        budget, peer = broker._core.budget, Peer(broker)
        await peer.connect("c", properties=KEPT)
        without = budget.used
        for size in (50_000, 10_000):
            peer = Peer(broker)
            await peer.connect("c", clean_start=False, will=Will("w", b"p" * size), properties=KEPT)
            await until(lambda: len(broker._connections) == 1)
            assert without + size <= budget.used <= without + size + 1000
        peer.send(Disconnect())
        await settle(broker, "c")
        while broker._connections:
            await asyncio.sleep(0)
        assert budget.used == without - MemoryConnection.cost


# ---- sockets that take nothing


@run_async
async def test_what_blocked_sockets_hold_is_in_the_budget() -> None:
    async with memory_broker(by_hand(maximum_bytes=1 << 20)) as broker:
        readers = [Peer(broker) for _ in range(10)]
        for number, reader in enumerate(readers):
            await reader.connect(f"s{number}")
            await reader.subscribe("#")
        publisher = Peer(broker)
        await publisher.connect("p")
        publisher.send(Publish("t" * 10_000, properties={"topic_alias": 1}))
        publisher.send(*[Publish("", properties={"topic_alias": 1})] * 1000)  # few bytes in, many out
        await until(lambda: broker.stats.publish_received == 1001)
        await turns()
        held = sum(client._connection.pending() for client in broker._core.clients.values())
        assert 0 < held <= broker._core.budget.used
        assert held <= (1 << 20) + 10 * (BURST + 20_000), "one burst each above the maximum"
        assert broker.stats.dropped["memory"] > 0
        for number, reader in enumerate(readers):
            reader.drop()
            await settle(broker, f"s{number}")
        publisher.drop()
        await settle(broker, "p")
        await until(lambda: broker._core.budget.used == 0, "the bytes come back with the sockets")
