"""Bounds of the fast lane, and the packet identifiers of its runs."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from broker import Capacity, Config, Protocol
from broker.lane import known
from broker.lane import lane as fast
from broker.lane.audience import TOGETHER
from broker.packet.codec import encode
from broker.packet.message import Message
from broker.packet.packets import Puback, Publish
from broker.packet.reader import PacketReader
from broker.session.delivery import Delivery, SentRun
from broker.session.inflight import Inflight
from tests.lane.by_hand import BY_HAND, V5, by_hand, joined, publishes, take
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import turns

# ---- bounds


@pytest.mark.parametrize("mixed", [False, True])
@run_async
async def test_one_read_for_many_is_left_after_a_while(mixed: bool) -> None:
    async with memory_broker(by_hand()) as broker:
        for number in range(50):
            await joined(broker, f"s{number}", "t", "u", qos=1)
        await joined(broker, "p")
        data = (publishes("t") + publishes("u", qos=1)) * 1000 if mixed else publishes(*("t", "u") * 2000)
        sent = broker.stats.publish_sent
        broker._connections._terms.lane.__self__.known.now = lambda: 1.0  # type: ignore[attr-defined]
        rest = take(broker, "p", data)
        assert len(data) > len(rest) > 0
        assert 0.9 * fast.MOST <= broker.stats.publish_sent - sent <= fast.MOST + 50


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_names_that_take_long_to_be_matched_are_left_to_others(qos: int) -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        packets = [publishes(f"t/{number}", qos=qos) for number in range(6)]
        times = count(1.0, known.SEARCH * 0.6)  # what each search takes
        broker._connections._terms.lane.__self__.known.now = lambda: next(times)  # type: ignore[attr-defined]
        for left in (2, 2, 4, 5, 6) if qos else (2, 4, 6):  # of QoS 1 what comes once is not remembered
            assert take(broker, "p", b"".join(packets)) == b"".join(packets[left:]), "what is known is free"


@run_async
async def test_a_topic_that_comes_once_is_not_remembered() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        topics = broker._connections._terms.lane.__self__.known  # type: ignore[attr-defined]
        topics.now = lambda: 1.0
        packets = publishes(*(f"t/{number}" for number in range(50)), qos=1)
        for remembered in (range(5), range(50, 51)):  # first it may take some for others
            assert take(broker, "p", packets) == b""
            assert len(topics.qos_1[True]) in remembered
            assert len(topics._audiences) <= 1 and len(topics._first) <= 1


@run_async
async def test_what_is_remembered_and_what_is_not_come_in_order() -> None:
    async with memory_broker(by_hand()) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        for _ in range(2):
            assert take(broker, "p", publishes("t", qos=1)) == b""
        await turns()
        wire.sent()
        topics = ["t", "u", "t", "u", "v", "t", "v", "w", "u"]
        assert take(broker, "p", publishes(*topics, qos=1)) == b""
        await turns()
        reader = PacketReader(from_client=False)
        reader.version = V5
        got = [packet for packet in reader.feed(wire.sent()) if isinstance(packet, Publish)]
        assert [packet.topic_name for packet in got] == topics
        assert [packet.packet_id for packet in got] == list(range(3, 12))


@pytest.mark.parametrize("before", ["", "a", "b", "ab", "aab", "aabb"])
@pytest.mark.parametrize("away", [True, False])
@run_async
async def test_no_more_in_two_topics_than_there_is_room_for(before: str, away: bool) -> None:
    """However often either topic came before."""
    limits = {"maximum_queued_messages": 10, "outbound_receive_maximum": 10}
    async with memory_broker(by_hand(**limits)) as broker:
        peer = Peer(broker)
        await joined(broker, "p")
        await peer.connect("s", properties={"session_expiry_interval": 60})
        await peer.subscribe("#", qos=1)
        for topic in before:
            assert take(broker, "p", publishes(topic, qos=1)) == b""
            peer.send(Puback((await peer.expect(Publish)).packet_id))
            await turns()
        session = broker._core.sessions.get("s")
        assert session is not None
        if away:
            peer.drop()
            await settle(broker, "s")
        rest = take(broker, "p", publishes(*"ab" * 9, qos=1))
        assert len(rest) == 8 * len(publishes("a", qos=1))
        assert (session.waiting, session.inflight.used) == ((10, 0) if away else (0, 10))


@pytest.mark.parametrize("equal", [True, False])
@run_async
async def test_no_more_than_the_receiver_allows(equal: bool) -> None:
    async with memory_broker(by_hand()) as broker:
        subscriber, publisher = Peer(broker), Peer(broker)
        await subscriber.connect("s", properties={"receive_maximum": 10})
        await subscriber.subscribe("t", qos=1)
        await publisher.connect("p")
        payloads = (b"x" * (1 if equal else number + 1) for number in range(25))
        publisher.send(*(Publish("t", payload, 1, packet_id=n + 1) for n, payload in enumerate(payloads)))
        for number in range(25):
            assert (await publisher.expect(Puback)).packet_id == number + 1
        session = broker._core.sessions.get("s")
        assert session is not None and session.inflight.used == 10 and session.waiting == 15
        for number in range(25):
            packet = await subscriber.expect(Publish)
            assert packet.packet_id == number + 1
            subscriber.send(Puback(packet.packet_id))
        await subscriber.expect_nothing()
        assert session.inflight.used == 0 and not session.bytes and not session.inflight.runs


@run_async
async def test_who_gets_a_message_now_and_then_keeps_no_table_of_them() -> None:
    async with memory_broker(by_hand()) as broker:
        subscriber, publisher = Peer(broker), Peer(broker)
        await subscriber.connect("s")
        await subscriber.subscribe("t", qos=1)
        await publisher.connect("p")
        session = broker._core.sessions.get("s")
        assert session is not None
        for number in range(1, 4):
            publisher.send(Publish("t", b"x", 1, packet_id=1))
            await publisher.expect(Puback)
            packet = await subscriber.expect(Publish)
            assert packet.packet_id == number and session.inflight.used == 1
            subscriber.send(Puback(number))
            await turns(10)
            assert session.inflight.blank and not session.bytes
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        assert (await subscriber.expect(Publish)).packet_id == 4
        for wrong in (3, 5, 4 + 256):
            subscriber.send(Puback(wrong))
            await turns(10)
            assert session.inflight.used == 1, "of another: nothing is acknowledged by it"


@run_async
async def test_two_subscriptions_of_one_session_take_its_room_twice() -> None:
    config = Config(capacity=BY_HAND, protocol=Protocol(overlap="per_subscription"))
    async with memory_broker(config) as broker:
        subscriber, publisher = Peer(broker), Peer(broker)
        await subscriber.connect("s", properties={"receive_maximum": 3})
        await subscriber.subscribe("t", "#", qos=1)
        await publisher.connect("p")
        publisher.send(*(Publish("t", b"x", 1, packet_id=number + 1) for number in range(2)))
        for _ in range(2):
            await publisher.expect(Puback)
        session = broker._core.sessions.get("s")
        assert session is not None and (session.inflight.used, len(session.queue)) == (3, 1)


@run_async
async def test_no_more_than_the_byte_budget_has() -> None:
    capacity = Capacity(sweep_interval=0, sys_interval=0, fast_lane=True, maximum_bytes=400_000)
    config = Config(capacity=capacity)
    async with memory_broker(config) as broker:
        await joined(broker, "s", "t", qos=1)
        await joined(broker, "p")
        budget = broker._core.budget
        for number in range(100):
            take(broker, "p", publishes(*["t"] * 100, qos=1))
            assert budget.used <= budget.maximum, number
        assert budget.low


@pytest.mark.parametrize(
    "last", [b"\x32\x06\0\1t\0\0\0", b"\x32\x0b\0\1t\0\7\x05\x03\0\2xy"], ids=["identifier 0", "properties"]
)
@run_async
async def test_a_run_that_is_none_is_looked_for_once(last: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one read of equal packets with another one at its end takes seconds."""
    looks: list[int] = []
    look = fast.count_equal

    def counting(*place: Any) -> int:
        looks.append(1)
        return look(*place)

    monkeypatch.setattr(fast, "count_equal", counting)
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t", qos=1)
        await joined(broker, "p")
        same = encode(Publish("t", b"" if len(last) == 8 else b"12345", 1, packet_id=7), V5)
        assert len(same) == len(last)
        assert take(broker, "p", same * 5000 + last) in (b"", last)
    assert len(looks) <= 3


@run_async
async def test_many_members_get_their_own_numbers_little_by_little() -> None:
    async with memory_broker(by_hand()) as broker:
        for number in range(40):
            await joined(broker, f"s{number}", "t", qos=1)
            broker._core.sessions.get(f"s{number}").table().last = 100 * number  # type: ignore[union-attr]
        await joined(broker, "p")
        data = publishes(*["t"] * 7000, qos=1)
        sent = broker.stats.publish_sent
        assert len(data) > len(take(broker, "p", data)) > 0
        assert TOGETHER <= broker.stats.publish_sent - sent <= TOGETHER + 2 * 40


# ---- identifiers


def run_of(inflight: Inflight, count: int) -> None:
    assert count <= inflight.count_unused()
    inflight.add_run(SentRun(inflight.next_unused(), count, b"", 0, "p", True, 0.0))


def test_identifiers_begin_again_and_pass_by_those_in_use() -> None:
    inflight = Inflight()
    inflight.open(65535)
    run_of(inflight, 10)
    assert inflight.runs is not None
    run_of(inflight, 65_000)
    assert inflight.count_unused() == 525 and inflight.next_unused() == 65_011
    run_of(inflight, 525)
    assert inflight.count_unused() == 0, "1 is in use still"
    assert inflight.acknowledge_run(4) == 0
    assert (inflight.count_unused(), inflight.next_unused()) == (4, 1)
    run_of(inflight, 4)
    assert inflight.count_unused() == 0
    assert [(run.first, run.count) for run in inflight.runs] == [(5, 6), (11, 65_000), (65_011, 525), (1, 4)]


def test_both_lanes_give_different_identifiers_and_keep_the_order() -> None:
    inflight = Inflight()
    inflight.open(65535)
    numbers = iter(range(1, 100))

    def one() -> None:
        delivery = Delivery(Message("t", b"%d" % next(numbers), 1), 1, False)
        inflight.start(delivery)

    def run() -> None:
        first = inflight.next_unused()
        assert inflight.count_unused() >= 2
        data = b"".join(encode(Publish("t", b"", 1, packet_id=first + more), V5) for more in (0, 1))
        inflight.add_run(SentRun(first, 2, data, 0, "p", True, 0.0))

    for step in (one, run, one, run, one):
        step()
    assert [*inflight.entries] == [1, 4, 7]
    inflight.last, inflight._unused_to = 1, 0  # as after all numbers were used once
    one()
    assert [*inflight.entries] == [1, 4, 7, 8], "2 and 3 are in a run"
    inflight.finish(inflight.entries[1])
    inflight.last, inflight._unused_to = 0, 0
    one()
    inflight.thaw()
    assert [*inflight.entries] == [2, 3, 4, 5, 6, 7, 8, 1], "in the order of sending"


@run_async
async def test_a_message_of_a_run_expires_like_any_other() -> None:
    clock = Clock()
    async with memory_broker(by_hand(), clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("s", properties={"session_expiry_interval": 60})
        await peer.subscribe("t", qos=1)
        await joined(broker, "p")
        data = encode(Publish("t", b"", 1, packet_id=1, properties={"message_expiry_interval": 50}), V5)
        assert take(broker, "p", data) == b""
        peer.drop()
        await settle(broker, "s")
        clock.now += 20
        again = Peer(broker)
        await again.connect("s", clean_start=False, properties={"session_expiry_interval": 60})
        assert (await again.expect(Publish)).properties == {"message_expiry_interval": 30}


@pytest.mark.parametrize("order", ["reversed", "again", "resumed"])
@run_async
async def test_runs_become_deliveries_when_somebody_has_to_know(order: str) -> None:
    async with memory_broker(by_hand()) as broker:
        publisher, subscriber = Peer(broker), Peer(broker)
        await publisher.connect("p")
        await subscriber.connect("s", properties={"session_expiry_interval": 60})
        await subscriber.subscribe("#", qos=1)
        sent = [Publish(f"t{n % 2}", b"%d" % n, 1, packet_id=n + 1) for n in range(6)]
        publisher.send(*sent)
        got = [await subscriber.expect(Publish) for _ in sent]
        session = broker._core.sessions.get("s")
        assert session is not None and session.inflight.runs and not session.inflight.entries
        subscriber.send(Puback(got[0].packet_id))
        await subscriber.expect_nothing()
        if order == "resumed":
            subscriber.drop()
            await settle(broker, "s")
            subscriber = Peer(broker)
            await subscriber.connect("s", clean_start=False, properties={"session_expiry_interval": 60})
            again = [await subscriber.expect(Publish) for _ in got[1:]]
            assert [(p.topic_name, p.payload, p.packet_id, p.dup) for p in again] == [
                (p.topic_name, p.payload, p.packet_id, True) for p in got[1:]
            ]
        rest = got[1:][::-1] if order == "reversed" else got[1:]
        subscriber.send(*(Puback(packet.packet_id) for packet in (rest + rest if order == "again" else rest)))
        await subscriber.expect_nothing()
        assert (session.inflight.used, session.bytes, session.inflight.entries) == (0, 0, {})
