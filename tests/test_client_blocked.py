"""Client: bursts, what is held for a peer that does not read, and what is dropped."""

from __future__ import annotations

from collections import Counter

import pytest

from broker import Capacity, Config, Limits, Message
from broker.core import OVERHEAD
from broker.outbound import UNREAD_ACKS
from broker.packet.packets import Pingresp, Puback, Publish
from tests.client_bench import BY_HAND, NO_CLOCKWORK, running, timed, to_the_border
from tests.peer import Peer, memory_broker, message_bytes, run_async, settle
from tests.wire import turns, until


@pytest.mark.parametrize(
    ("blocked", "packets", "spent", "reason"),
    [
        (False, 0, True, None),  # it leaves at once and holds nothing
        (False, 300, False, None),
        (True, 0, False, None),
        (True, 9, False, None),
        (True, 10, False, "outbound_full"),
        (True, 0, True, "memory"),
        (True, 10, True, "outbound_full"),
    ],
)
@run_async
async def test_what_is_dropped_for_a_socket_that_takes_no_more(
    blocked: bool, packets: int, spent: bool, reason: str | None
) -> None:
    async with running(maximum_outbound_packets=10) as (bench, _):
        publish = bench.client.publish
        if blocked:
            bench.wire.stuck = True
            publish(Message("t"), 0, False, ())
            await turns()
        for _ in range(packets):
            publish(Message("t"), 0, False, ())
        assert not bench.drops
        if spent:
            bench.budget.take_anyway(bench.budget.maximum)
        assert publish(Message("t"), 0, False, ()) is (reason is None)
        assert bench.drops == ({reason: 1} if reason else {})
        assert publish(Message("t", b"", 1), 1, False, (), 1) is True, (
            "QoS 1 and 2 are the session's business"
        )
        bench.client.send(Pingresp())
        bench.wire.let_go()
        await turns()
        assert bench.wire.sent().endswith(b"\xd0\x00")
        if spent:
            bench.budget.give(bench.budget.maximum)


@run_async
async def test_a_burst_within_one_read_drops_nothing() -> None:
    async with memory_broker(BY_HAND) as broker:
        publisher, subscriber = Peer(broker), Peer(broker)
        await subscriber.connect("s")
        await subscriber.subscribe("t")
        await publisher.connect("p")
        count = 6000  # far above 256, and less than one read in bytes
        publisher.send(*(Publish("t", b"%d" % number) for number in range(count)))
        got = [(await subscriber.expect(Publish)).payload for _ in range(count)]
        assert got == [b"%d" % number for number in range(count)]
        assert not broker.stats.dropped
        assert message_bytes(broker) == 0


@run_async
async def test_a_reader_that_stops_loses_qos_0_alone_and_nobody_else_notices() -> None:
    config = Config(capacity=BY_HAND.capacity, limits=Limits(maximum_outbound_bytes=200_000))
    async with memory_broker(config) as broker:
        sleeper, bystander = Peer(broker), Peer(broker)
        await sleeper.connect("sleeper", properties={"receive_maximum": 20})
        await sleeper.subscribe("t/#", qos=1)
        await bystander.connect("bystander")
        await bystander.subscribe("t/#", qos=1)
        payload = b"x" * 1000
        largest = 0
        for number in range(700):
            await broker.publish("t/0", payload)
            await broker.publish(f"t/{number}", payload, qos=1)
            assert (await bystander.expect(Publish)).qos == 0
            bystander.send(Puback((await bystander.expect(Publish)).packet_id))
            largest = max(largest, message_bytes(broker))
        await turns()
        client = broker.clients["sleeper"]
        assert client.blocked
        assert client.extra.dropped == Counter(outbound_full=broker.stats.dropped["outbound_full"])
        assert 0 < broker.stats.dropped["outbound_full"] < 700
        waiting = 700 * (len(payload) + 8 + OVERHEAD)
        assert largest < 200_000 + waiting + 10_000, "QoS 1 in the session once, and the bytes of the socket"

        topics, qos_0 = [], 0
        while len(topics) < 700:
            packet = await sleeper.expect(Publish)
            qos_0 += packet.qos == 0
            if packet.qos:
                topics.append(packet.topic_name)
                sleeper.send(Puback(packet.packet_id))
        assert topics == [f"t/{number}" for number in range(700)]
        assert qos_0 == 700 - broker.stats.dropped["outbound_full"]
        await sleeper.expect_nothing()
        assert message_bytes(broker) == 0
        assert not client.blocked


@run_async
async def test_qos_0_for_a_blocked_socket_is_dropped_when_the_byte_budget_is_spent() -> None:
    config = Config(capacity=Capacity(**NO_CLOCKWORK, maximum_bytes=50_000))
    async with memory_broker(config) as broker:
        sleeper = Peer(broker)
        await sleeper.connect("sleeper")
        await sleeper.subscribe("t")
        for _ in range(20):
            await broker.publish("t", b"x" * 10_000)
            await turns()
        assert broker.clients["sleeper"].blocked
        assert broker.stats.dropped["memory"] > 0
        assert message_bytes(broker) < 50_000 + 10_100


@run_async
async def test_a_peer_that_does_not_read_its_answers_is_not_read() -> None:
    async with memory_broker(BY_HAND) as broker:
        peer, bystander = Peer(broker), Peer(broker)
        await bystander.connect("good")
        await peer.connect("greedy", keep_alive=1)
        pings = 10 * 32_768  # each part is one read
        for _ in range(10):
            peer.send_raw(b"\xc0\x00" * (pings // 10))
            await turns(3)
        client = broker.clients["greedy"]
        await until(lambda: client.waiting.unblocked is not None, "the read loop waits")
        handled = broker.stats.messages_received
        assert client.swamped and client.handling
        assert handled <= 6 * 32_768
        assert message_bytes(broker) <= 4 * UNREAD_ACKS
        await turns(200)
        assert broker.stats.messages_received == handled, "it is not read any more"
        await bystander.expect_nothing()
        for _ in range(pings):
            await peer.expect(Pingresp)
        await peer.expect_nothing()
        assert message_bytes(broker) == 0
        assert not client.handling


@run_async
async def test_while_memory_is_short_few_answers_are_left_unread() -> None:
    async with memory_broker(BY_HAND) as broker:
        peer = Peer(broker)
        await peer.connect("greedy")
        client, budget = broker.clients["greedy"], broker._core.budget
        while not client.blocked:
            peer.send_raw(b"\xc0\x00" * 2048)
            await turns(10)
        peer.send_raw(b"\xc0\x00" * 2048)
        await turns(10)
        assert not client.swamped
        budget.take_anyway(budget.maximum)
        assert client.swamped
        budget.give(budget.maximum)


@pytest.mark.parametrize(("short", "qos", "seconds"), [(False, 0, 30), (True, 0, 2), (True, 1, 30)])
@run_async
async def test_while_memory_is_short_a_socket_that_takes_nothing_has_a_moment(
    short: bool, qos: int, seconds: int
) -> None:
    async with timed(send_timeout=30) as (broker, clock, peer):
        await peer.connect("c")
        await peer.subscribe("big", qos=qos)
        for _ in range(3):
            await broker.publish("big", b"x" * 65536, qos=qos)
        await turns()
        client, budget = broker.clients["c"], broker._core.budget
        assert client.blocked
        budget.take_anyway(short * budget.maximum)
        await to_the_border(broker, clock, seconds)
        await settle(broker, "c")
        budget.give(short * budget.maximum)


@run_async
async def test_retained_messages_come_as_fast_as_they_are_taken() -> None:
    """More of them than the session may queue: none is lost, and none piles up."""
    limits = Limits(maximum_queued_messages=100)
    async with memory_broker(Config(capacity=BY_HAND.capacity, limits=limits)) as broker:
        for number in range(2000):
            await broker.publish(f"r/{number}", b"x" * 100, qos=1, retain=True)
        kept = message_bytes(broker)
        peer = Peer(broker)
        await peer.connect("c", properties={"receive_maximum": 10})
        await peer.subscribe("r/#", qos=1)
        await turns(100)
        session = broker._core.sessions.get("c")
        assert session is not None and len(session.queue) <= 60
        await broker.publish("r/live", b"live", qos=1)
        seen: list[str] = []
        while len(seen) < 2001:
            packet = await peer.expect(Publish)
            seen.append(packet.topic_name)
            peer.send(Puback(packet.packet_id))
        assert sorted(seen) == sorted([*(f"r/{number}" for number in range(2000)), "r/live"])
        assert not broker.stats.dropped
        await peer.expect_nothing()
        assert message_bytes(broker) == kept


@run_async
async def test_retained_messages_wait_for_the_socket_also_while_memory_is_short() -> None:
    async with memory_broker(BY_HAND) as broker:
        for number in range(300):
            await broker.publish(f"r/{number}", b"x" * 10_000, retain=True)
        peer, budget = Peer(broker), broker._core.budget
        await peer.connect("c")
        budget.take_anyway(budget.maximum * 15 // 16)
        await peer.subscribe("r/#")
        seen = {(await peer.expect(Publish)).topic_name for _ in range(300)}
        assert len(seen) == 300 and not broker.stats.dropped
        budget.give(budget.maximum * 15 // 16)
