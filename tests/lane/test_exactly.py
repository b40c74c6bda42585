"""QoS 2 in the fast lane: what it takes, and what it leaves to those who decide."""

from __future__ import annotations

from typing import Any

import pytest

from broker import Broker
from broker.lane import lane as fast
from broker.lane.exactly import FEWER, LONGEST, STEP
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.lane.by_hand import by_hand, joined, take
from tests.peer import Clock, Peer, memory_broker, run_async

V5 = Version.MQTT_5


def publish(packet_id: int, topic: str = "t", **properties: Any) -> bytes:
    return encode(Publish(topic, b"x", 2, packet_id=packet_id, properties=properties), V5)


def acks(first_byte: int, *packet_ids: int) -> bytes:
    return b"".join(bytes((first_byte, 2, 0, packet_id)) for packet_id in packet_ids)


async def start(broker: Broker, qos: int = 2) -> None:
    """*s* hears t, and t is known."""
    await joined(broker, "s", "t", qos=qos)
    await joined(broker, "p")
    for _ in range(2):
        broker._core.tree.match("t")


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (publish(1) + publish(2) + acks(0x62, 1, 2), b""),
        (publish(1) + publish(1), publish(1)),  # PUBREC once more
        (publish(1) + publish(2, "nobody"), publish(2, "nobody")),  # 0x10
        (publish(1) + publish(2, content_type="x"), publish(2, content_type="x")),
        (publish(1) + b"\x36" + publish(2)[1:], b"\x36" + publish(2)[1:]),  # QoS 3
        (publish(1) + b"\x34\x07\0\1t\0\0\0x", b"\x34\x07\0\1t\0\0\0x"),
        (publish(1) + acks(0x62, 2), acks(0x62, 2)),
        (publish(1) + b"\x62\x03\0\1\0", b"\x62\x03\0\1\0"),
        (acks(0x50, 1), acks(0x50, 1)),
        (acks(0x70, 1), acks(0x70, 1)),
        (publish(1) + acks(0x62, 1)[:3], b""),
    ],
)
@run_async
async def test_what_it_takes(data: bytes, left: bytes) -> None:
    async with memory_broker(by_hand()) as broker:
        await start(broker)
        assert take(broker, "p", data) == left


@run_async
async def test_the_whole_flow_is_taken_and_counted() -> None:
    async with memory_broker(by_hand()) as broker:
        await start(broker)
        stats, used = broker.stats, broker._core.budget.used
        before = stats.messages_received, stats.publish_received, stats.messages_sent, stats.publish_sent
        assert take(broker, "p", publish(1) + publish(2)) == b""
        assert sorted(broker.clients["p"].extra.receiving or ()) == [1, 2]
        assert take(broker, "p", acks(0x62, 1, 2)) == b"" and not broker.clients["p"].extra.receiving
        assert take(broker, "s", acks(0x50, 1, 2)) == b""
        assert take(broker, "s", acks(0x70, 1) + acks(0x70, 2)) == b""
        after = stats.messages_received, stats.publish_received, stats.messages_sent, stats.publish_sent
        assert [new - old for old, new in zip(before, after, strict=True)] == [8, 2, 8, 2]
        assert broker._core.budget.used == used
        session = broker.clients["s"].session
        assert session is not None and session.inflight.used == 0 and not session.inflight.entries


@run_async
async def test_an_answer_out_of_turn_ends_the_connection() -> None:
    async with memory_broker(by_hand()) as broker:
        publisher, subscriber = Peer(broker), Peer(broker)
        await publisher.connect("p")
        await subscriber.connect("s")
        await subscriber.subscribe("t", qos=2)
        await publisher.publish("t", qos=2)
        packet_id = (await subscriber.expect(Publish)).packet_id
        subscriber.send(Pubcomp(packet_id))
        assert (await subscriber.expect(Disconnect)).reason_code == 0x82
        assert await publisher.publish("t", qos=2) == 0x10


@run_async
async def test_what_expired_while_it_was_held_is_not_routed() -> None:
    clock = Clock()
    async with memory_broker(by_hand(), clock=clock) as broker:
        publisher, subscriber = Peer(broker), Peer(broker)
        await publisher.connect("p")
        await subscriber.connect("s")
        await subscriber.subscribe("t", qos=2)
        publisher.send(Publish("t", b"", 2, packet_id=1, properties={"message_expiry_interval": 5}))
        await publisher.expect(Pubrec)
        clock.now += 6
        publisher.send(Pubrel(1))
        await publisher.expect(Pubcomp)
        await subscriber.expect_nothing()
        assert broker.stats.dropped["expired"] == 1


@run_async
async def test_who_holds_too_much_hears_it_from_the_others() -> None:
    async with memory_broker(by_hand(maximum_queued_bytes=1)) as broker:
        await start(broker)
        assert take(broker, "p", publish(1) + publish(2)) == publish(2)


@run_async
async def test_behind_an_answer_that_waits_for_the_store_nothing_is_taken() -> None:
    async with memory_broker(by_hand()) as broker:
        await start(broker)
        broker.clients["p"].put_after(10, encode(Puback(9), V5))
        assert take(broker, "p", publish(1)) == publish(1)


@run_async
async def test_one_read_is_left_after_a_while() -> None:
    """Runs of messages that are not alike, and the PUBRELs of them; and each message by itself."""
    async with memory_broker(by_hand(receive_maximum=65_535)) as broker:
        await start(broker)
        some = fast.MOST * FEWER // STEP
        packets = [encode(Publish("t", b"x" * (n % 2), 2, packet_id=n), V5) for n in range(1, some + LONGEST)]
        assert 0 < len(take(broker, "p", b"".join(packets))) < LONGEST * len(packets[0])
        rels = b"".join(b"\x62\x02" + n.to_bytes(2, "big") for n in range(1, some))
        assert 0 < len(take(broker, "p", rels)) < len(rels)
        session = broker.clients["p"].session
        assert session is not None and session.inflight.held and session.inflight.singles
        assert 0 < len(take(broker, "p", b"".join(packets[-some // 4 :]))) < len(rels)


