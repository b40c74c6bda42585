"""The fast lane keeps the order of messages, and forgets nobody who came, went or changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker import Config, Protocol
from broker.config import Store
from broker.errors import MqttError
from broker.lane import known
from broker.packet.codec import encode
from broker.packet.packets import Puback, Publish, Pubrec, Suback, Subscribe, SubscribeRequest
from tests.lane.by_hand import BY_HAND, V5, by_hand, joined, publishes, take
from tests.peer import Peer, memory_broker, run_async, settle
from tests.wire import turns

# ---- order


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_who_hears_several_topics_hears_them_in_order(qos: int) -> None:
    async with memory_broker(by_hand()) as broker:
        everything, some = Peer(broker), Peer(broker)
        await everything.connect("everything")
        await everything.subscribe("#", qos=1)
        await some.connect("some")
        await some.subscribe("a", "c", qos=1)
        await joined(broker, "p")
        topics = [*"abcabcccbbaacb"] * 3
        assert take(broker, "p", publishes(*topics, qos=qos)) == b""
        assert [(await everything.expect(Publish)).topic_name for _ in topics] == topics
        wanted = [topic for topic in topics if topic in "ac"]
        assert [(await some.expect(Publish)).topic_name for _ in wanted] == wanted


@run_async
async def test_what_waits_goes_first() -> None:
    async with memory_broker(by_hand(queue_qos_0=True)) as broker:
        await joined(broker, "p")
        peer = Peer(broker)
        await peer.connect("s", properties={"session_expiry_interval": 60, "receive_maximum": 1})
        await peer.subscribe("t", qos=1)
        data = publishes("t", "t", qos=1)
        assert take(broker, "p", data) == data[len(data) // 2 :], "one is on its way"
        session = broker._core.sessions.get("s")
        assert session is not None
        await broker.publish("t", b"queued", qos=1)
        assert len(session.queue) == 1
        session.table().window = 10
        assert take(broker, "p", data) == b"" and session.waiting == 3, "not before what is queued"
        session.queued_qos_0 = 1
        assert take(broker, "p", publishes("t")) == publishes("t"), "nor QoS 0 before QoS 0 that is"
        session.queued_qos_0 = 0


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_copies_for_two_subscriptions_come_one_after_the_other(qos: int) -> None:
    config = Config(capacity=BY_HAND, protocol=Protocol(overlap="per_subscription"))
    async with memory_broker(config) as broker:
        subscriber, publisher = Peer(broker), Peer(broker)
        await subscriber.connect("s")
        await subscriber.subscribe("t", "#", qos=1)
        await publisher.connect("p")
        publisher.send(*(Publish("t", b"%d" % n, qos, packet_id=qos * (n + 1)) for n in range(4)))
        payloads = [(await subscriber.expect(Publish)).payload for _ in range(8)]
        assert payloads == [b"0", b"0", b"1", b"1", b"2", b"2", b"3", b"3"]


@run_async
async def test_identifiers_of_qos_2_messages_are_looked_at_by_others() -> None:
    async with memory_broker(by_hand()) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        peer.send(Publish("t", b"", 2, packet_id=9))
        await peer.expect(Pubrec)
        assert take(broker, "p", publishes("t", qos=1)) == publishes("t", qos=1)
        assert take(broker, "p", publishes("t")) == b""


@run_async
async def test_where_topics_are_not_equally_durable_the_readable_lane_tells_the_store(tmp_path: Path) -> None:
    for levels, left in (((), b""), (("a/#=never",), publishes("lasting", qos=1))):
        store = Store(path=str(tmp_path / f"{len(levels)}.db"), fsync_for=levels)
        config = Config(capacity=BY_HAND, store=store)
        async with memory_broker(config, store=store.path) as broker:
            await joined(broker, "p")
            for client_id, seconds in (("lasting", 60), ("passing", 0)):
                peer = Peer(broker)
                await peer.connect(client_id, properties={"session_expiry_interval": seconds})
                await peer.subscribe(client_id, qos=1)
            assert take(broker, "p", publishes("lasting", qos=1)) == left
            assert take(broker, "p", publishes("passing", qos=1)) == b""
            assert take(broker, "p", publishes("lasting")) == b"", "QoS 0 is not stored"


# ---- what it remembers


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_who_comes_and_goes_is_known_at_once(qos: int) -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "p")
        first = await joined(broker, "first", "t", qos=1)
        data = publishes("t", qos=qos)
        assert take(broker, "p", data) == b""
        second, client = await joined(broker, "second", "other", qos=1), broker.clients["second"]
        assert take(broker, "p", data) == b""
        second.incoming.put_nowait(encode(Subscribe(2, [SubscribeRequest("t", 1)]), V5))
        await turns(10)
        first.sent(), second.sent()
        assert take(broker, "p", data) == b""
        await turns()
        assert first.sent() and second.sent()
        client.abort(MqttError("gone"))
        await settle(broker, "second")
        assert take(broker, "p", data) == b""
        await turns()
        assert first.sent() and not second.sent()


@run_async
async def test_one_who_was_away_is_served_again() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "p")
        peer = Peer(broker)
        await peer.connect("s", properties={"session_expiry_interval": 60})
        await peer.subscribe("t", qos=1)
        for qos in (0, 1):
            assert take(broker, "p", publishes("t", qos=qos)) == b""
        peer.drop()
        await settle(broker, "s")
        assert take(broker, "p", publishes("t")) == publishes("t")
        assert take(broker, "p", publishes("t", qos=1)) == b"", "it waits"
        again = Peer(broker)
        await again.connect("s", clean_start=False, properties={"session_expiry_interval": 60})
        for dup in (True, False):
            packet = await again.expect(Publish)
            assert packet.dup is dup
            again.send(Puback(packet.packet_id))
        await again.expect_nothing()
        for qos in (0, 1):
            assert take(broker, "p", publishes("t", qos=qos)) == b""


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        ({"no_local": True}, {}),
        ({}, {"receive_maximum": 1}),
        ({}, {"maximum_packet_size": 1000}),
        ({}, {"topic_alias_maximum": 5}),
        ({"identifier": 7}, {}),
        ({"share": True}, {}),
    ],
)
@run_async
async def test_subscribers_that_need_a_decision(options: dict[str, Any], properties: dict[str, Any]) -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "p")
        peer = Peer(broker)
        await peer.connect("s", properties=properties)
        topic_filter = "$share/g/t" if options.get("share") else "t"
        request = SubscribeRequest(topic_filter, 1, no_local=options.get("no_local", False))
        named = {"subscription_identifier": options["identifier"]} if "identifier" in options else {}
        peer.send(Subscribe(1, [request], named))
        await peer.expect(Suback)
        data = publishes("t", "t", qos=1)
        rest = data[len(data) // 2 :] if "receive_maximum" in properties else data
        assert take(broker, "p", data) == rest
        if "receive_maximum" not in properties:
            assert take(broker, "p", publishes("t")) == publishes("t")


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_what_it_remembers_is_bounded(qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "KNOWN", 10)
    async with memory_broker(by_hand()) as broker:
        for number in range(30):
            await joined(broker, f"s{number}", f"t/{number}", qos=1)
        await joined(broker, "p")
        lane = broker._connections._terms.lane.__self__  # type: ignore[attr-defined]
        lane.known.now = lambda: 1.0
        for number in range(30):
            topics = [f"t/{number}", "l" * 2000, "t/0"]
            assert take(broker, "p", publishes(*topics[:: 2 if qos else 1], qos=qos)) == b""
            assert max(map(len, (*lane.known.qos_0, *lane.known.qos_1))) <= 10
            assert len(lane.known._audiences) <= 12 and len(lane.known._first) <= 12
