"""Retained messages on their way to a new subscriber: many at once, never an old one after a newer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker import Config, HookBase, Message
from broker.config import Limits
from broker.handle.subscribe import AT_ONCE, PIECE, TOGETHER
from broker.outbound import BURST, FEED
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import (
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from tests.hook.made import hook
from tests.lane.by_hand import joined
from tests.peer import Clock, Peer, memory_broker, run_async
from tests.wire import Most, turns, until

V4, V5 = Version.MQTT_3_1_1, Version.MQTT_5
FIRST = AT_ONCE * TOGETHER  # more messages than come before anything else may


async def fill(broker: Any, count: int, payload: bytes = b"old", **fields: Any) -> None:
    for number in range(count):
        await broker._core.router.publish(Message(f"r/{number}", payload, retain=True, **fields))


def fill_with_packets(broker: Any, count: int, payload: bytes = b"old") -> None:
    """The same without a Message for each, as the fast lane keeps them."""
    names = [f"r/{number}" for number in range(count)]
    broker._core.retained.put_plain([(encode(Publish(n, payload, 0, True), V4), n, "p") for n in names])


async def subscribed(
    broker: Any, version: Version = V5, qos: int = 0, client_id: str = "s", **fields: Any
) -> Peer:
    """A peer that has its SUBACK for `#`."""
    peer = Peer(broker, version)
    await peer.connect(client_id, **{name: fields.pop(name) for name in ("properties",) if name in fields})
    peer.send(Subscribe(1, [SubscribeRequest("#", qos, **fields)]))
    await peer.expect(Suback)
    return peer


async def received(peer: Peer, count: int) -> list[Publish]:
    return [await peer.expect(Publish) for _ in range(count)]


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("properties", [None, {"content_type": "c", "user_property": [("a", "b")]}])
@run_async
async def test_all_come_once_with_all_that_they_carry(version: Version, properties: Any) -> None:
    async with memory_broker() as broker:
        await fill(broker, 3000, b"x" * 150, properties=properties or {})
        peer = await subscribed(broker, version)
        packets = await received(peer, 3000)
        await peer.expect_nothing()
        stats = broker._core.stats
        assert stats.publish_sent == 3000 and stats.messages_sent >= 3003
    assert {packet.topic_name for packet in packets} == {f"r/{number}" for number in range(3000)}
    wanted = properties if properties and version is V5 else {}
    assert all(p.payload == b"x" * 150 and p.retain and p.properties == wanted for p in packets)


@run_async
async def test_what_goes_alone_comes_too() -> None:
    """Every second one has QoS 1, every third expires."""
    clock = Clock()
    async with memory_broker(clock=clock) as broker:
        for number in range(600):
            later = None if number % 3 else clock() + 10
            await broker._core.router.publish(
                Message(f"r/{number}", b"x", number % 2, True, expires_at=later)
            )
        peer = await subscribed(broker, qos=1)
        found: dict[str, int] = {}
        while len(found) < 600:
            packet = await peer.expect(Publish)
            assert packet.topic_name not in found
            found[packet.topic_name] = packet.qos
            if packet.qos:
                peer.send(Puback(packet.packet_id))
    assert found == {f"r/{number}": number % 2 for number in range(600)}


class Slow(HookBase):
    """Nothing that a hook may look at is sent in one piece with others."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_publish_deliver(self, client_id: str, message: Message) -> Message:
        self.seen.append(message.topic_name)
        return message


@run_async
async def test_hooks_see_each_of_them() -> None:
    watcher, denier = Slow(), hook(can_read=lambda who, topic_name: topic_name != "r/7")
    async with memory_broker(hooks=[watcher, denier]) as broker:
        await fill(broker, 50)
        watcher.seen.clear()
        peer = await subscribed(broker)
        assert len(await received(peer, 49)) == 49
        await peer.expect_nothing()
    assert len(watcher.seen) == 49 and "r/7" not in watcher.seen


@pytest.mark.parametrize(
    ("connect", "options", "config"),
    [
        pytest.param({"maximum_packet_size": 30}, {}, Config(), id="Maximum Packet Size"),
        pytest.param({"topic_alias_maximum": 5}, {}, Config(), id="Topic Aliases"),
        pytest.param({}, {}, Config(limits=Limits(outbound_topic_alias_maximum=0)), id="nothing of the kind"),
    ],
)
@run_async
async def test_packets_that_are_this_clients_alone(connect: Any, options: Any, config: Config) -> None:
    async with memory_broker(config) as broker:
        await fill(broker, 20)
        await broker._core.router.publish(Message("r/large", b"x" * 100, retain=True))
        peer = await subscribed(broker, properties=connect, **options)
        large = "maximum_packet_size" not in connect
        packets = await received(peer, 20 + large)
        await peer.expect_nothing()
        aliases = [packet.properties.get("topic_alias") for packet in packets]
        assert any(aliases) == ("topic_alias_maximum" in connect)


@run_async
async def test_no_local_holds_for_retained_ones() -> None:
    async with memory_broker() as broker:
        await fill(broker, 5, client_id="s")
        await broker._core.router.publish(Message("other", b"x", retain=True, client_id="p"))
        peer = await subscribed(broker, no_local=True)
        assert (await peer.expect(Publish)).topic_name == "other"
        await peer.expect_nothing()


@pytest.mark.parametrize("change", [b"new", b""], ids=["replaced", "deleted"])
@pytest.mark.parametrize("feeders", [1, 9])
@run_async
async def test_nothing_old_comes_after_something_newer(change: bytes, feeders: int) -> None:
    """All are changed while they are on their way; each topic ends with what is true now."""
    count = 2 * FIRST
    async with memory_broker() as broker:
        await fill(broker, count)
        peers = await asyncio.gather(
            *(subscribed(broker, client_id=f"s{number}") for number in range(feeders))
        )
        while feeders > 1 and broker._core.stats.publish_sent < feeders * (FIRST + FEED):
            await asyncio.sleep(0)
        await fill(broker, count, change)
        for peer in peers:
            packets = await received(peer, count)
            while sum(packet.payload == change for packet in packets) < count:
                packets.append(await peer.expect(Publish))
            await peer.expect_nothing()
            latest = {packet.topic_name: packet.payload for packet in packets}
            assert len(latest) == count and set(latest.values()) == {change}
            assert any(packet.payload == b"old" for packet in packets)


@run_async
async def test_what_waits_for_acknowledgements_is_looked_at_again() -> None:
    """All are deleted while most of them wait for room in the session: only what had room comes still."""
    async with memory_broker(Config(limits=Limits(maximum_queued_messages=4))) as broker:
        await fill(broker, 50, qos=1)
        peer = await subscribed(broker, qos=1, properties={"receive_maximum": 1})
        packets: list[Any] = [await peer.expect(Publish)]
        for number in range(50):
            await broker._core.router.retain(Message(f"r/{number}", b"", 1, True))
        olds = 0
        for packet in packets:
            olds += 1
            peer.send(Puback(packet.packet_id))
            for _ in range(20):
                await asyncio.sleep(0)
            peer.send(Pingreq())
            packets += await until_pong(peer)
        assert 1 <= olds <= 6


async def until_pong(peer: Peer) -> list[Publish]:
    """What comes before the answer to the ping that was sent."""
    found: list[Publish] = []
    while not isinstance(packet := await peer.recv(), Pingresp):
        assert isinstance(packet, Publish) and packet.payload == b"old"
        found.append(packet)
    return found


@pytest.mark.parametrize(("packets", "version", "most"), [(False, V5, 256), (True, V5, 256), (True, V4, 512)])
@run_async
async def test_others_have_their_turn(packets: bool, version: Version, most: int) -> None:
    """Between two pieces of a long feed, of *most* messages, a live one of somebody else gets through."""
    async with memory_broker() as broker:
        if packets:
            fill_with_packets(broker, 4 * FIRST)
        else:
            await fill(broker, 4 * FIRST)
        peer, stats = await subscribed(broker, version), broker._core.stats
        await broker._core.router.publish(Message("live", b"x"))
        async with Most(lambda: stats.publish_sent) as turn:
            found = await received(peer, 4 * FIRST + 1)
        assert [packet.topic_name for packet in found].index("live") <= AT_ONCE // FEED * most + 2 * most
        assert turn.most <= most


@pytest.mark.parametrize("packets", [False, True])
@run_async
async def test_large_ones_do_not_pile_up(packets: bool) -> None:
    """No more than a piece is made of them before it is written."""
    async with memory_broker() as broker:
        if packets:
            fill_with_packets(broker, 256, b"x" * 16_000)
        else:
            await fill(broker, 256, b"x" * 16_000)
        wire = await joined(broker, "s", "#", version=V4, keep=True)
        await until(lambda: broker._core.stats.publish_sent == 256)
        await turns()
        assert sum(map(len, wire.writes)) > 256 * 16_000
        assert max(map(len, wire.writes)) <= BURST + PIECE


@run_async
async def test_unsubscribe_ends_what_is_on_its_way() -> None:
    async with memory_broker() as broker:
        await fill(broker, 4 * FIRST)
        peer = await subscribed(broker)
        peer.send(Unsubscribe(2, ["#"]))
        while not isinstance(await peer.recv(), Unsuback):
            pass
        await peer.expect_nothing()
        assert broker._core.stats.publish_sent < 4 * FIRST
