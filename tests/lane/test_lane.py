"""What the fast lane keeps to: bounds, turns, and what happens when it has a bug."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from broker import Broker, Capacity, Config, HookBase, Limits, Protocol
from broker.client import no_lane
from broker.config import Store
from broker.errors import MqttError
from broker.lane import known
from broker.lane import lane as fast
from broker.lane.audience import TOGETHER
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.message import Message
from broker.packet.packets import (
    Connect,
    Disconnect,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from broker.packet.reader import PacketReader
from broker.session.inflight import Delivery, Inflight, SentRun
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import Wire, turns

V5 = Version.MQTT_5
BY_HAND = Capacity(sweep_interval=0, sys_interval=0, fast_lane=True)


def by_hand(**limits: Any) -> Config:
    return Config(capacity=BY_HAND, limits=Limits(**limits))


async def joined(broker: Broker, client_id: str, *filters: str, qos: int = 0) -> Wire:
    """A client whose connection the test holds in its hand."""
    wire = Wire()
    broker._connections.accept(wire)
    packets = [Connect(client_id, V5)]
    data = b"".join(encode(packet, V5) for packet in packets)
    if filters:
        data += encode(Subscribe(1, [SubscribeRequest(one, qos) for one in filters]), V5)
    wire.incoming.put_nowait(data)
    await turns(10)
    assert client_id in broker.clients
    wire.sent()
    return wire


def publishes(*topics: str, qos: int = 0, payload: bytes = b"x") -> bytes:
    packets = (
        Publish(topic, payload, qos, packet_id=qos * (n % 65535 + 1)) for n, topic in enumerate(topics)
    )
    return b"".join(encode(packet, V5) for packet in packets)


def take(broker: Broker, client_id: str, data: bytes) -> bytes:
    """What the lane leaves of *data*. Names are matched in no time, unless a test has a clock for that."""
    client, lane = broker.clients[client_id], broker._connections._terms.lane
    topics = lane.__self__.known  # type: ignore[attr-defined]
    topics.now = (lambda: 1.0) if topics.now is monotonic else topics.now
    return lane(client, data)


# ---- when it is closed


class Watching(HookBase):
    def on_publish(self, client: Any, message: Any) -> None: ...


class Filtering(HookBase):
    def can_read(self, client_id: str, topic_name: str) -> bool:
        return True


class Indifferent(HookBase):
    def on_connected(self, client: Any) -> None: ...


@pytest.mark.parametrize(
    ("hooks", "limits", "is_open"),
    [
        ((), {}, True),
        ((Indifferent(),), {}, True),
        ((Watching(),), {}, True),
        ((Filtering(),), {}, False),
        ((), {"message_expiry_interval": 60}, False),
        ((), {"maximum_packet_size": 1000}, False),
    ],
)
def test_who_wants_to_see_every_message_closes_it(
    hooks: tuple[HookBase, ...], limits: dict[str, int], is_open: bool
) -> None:
    broker = memory_broker(by_hand(**limits), hooks=hooks)
    assert (broker._connections._terms.lane is not no_lane) is is_open


@run_async
async def test_who_sees_what_is_published_leaves_it_the_acknowledgements() -> None:
    watching = Watching()
    async with memory_broker(by_hand(), hooks=[watching]) as broker:
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        for qos in (0, 1, 2):
            assert take(broker, "p", publishes("t", qos=qos)) == publishes("t", qos=qos)
        assert take(broker, "p", b"\x31\x05\0\1t\0r") == b"\x31\x05\0\1t\0r"
        session, sent = broker.clients["s"].session, broker.stats.messages_received
        assert session is not None
        for number in range(4):
            broker._core.router.route(Message("t", b"x", 1 + number // 3))
        assert session.inflight.used == 4
        data = b"\x40\x02\0\2\x40\x02\0\1\x40\x02\0\3\x50\x02\0\4\x70\x02\0\4\xc0\0"
        assert take(broker, "s", data) == b"" and session.inflight.used == 0
        assert broker.stats.messages_received - sent == 6 and session.bytes == 0
        assert take(broker, "s", data[:4]) == data[:4], "nobody waits for it"


# ---- what it takes and what it leaves


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (publishes("t", "u", "t"), b""),
        (publishes("t", "t", qos=1), b""),
        (publishes("t", qos=1) + b"\xc0\0" * 3 + publishes("t"), b""),
        (publishes("t", qos=2), publishes("t", qos=2)),
        (publishes("t") + b"\x31\x05\0\1t\0r" + publishes("t"), b""),
        (b"\x31\x05\0\1t\0r" * 3 + b"\x31\x05\0\1t", b""),
        (b"\x31\x04\0\1t\0" + publishes("t"), b"\x31\x04\0\1t\0" + publishes("t")),  # it is deleted
        (b"\x31\x07\0\1t\2\1\0r", b"\x31\x07\0\1t\2\1\0r"),
        (b"\x31\x06\0\2\xc3\xa9\0r", b"\x31\x06\0\2\xc3\xa9\0r"),
        (b"\x31\x05\0\1+\0r", b"\x31\x05\0\1+\0r"),
        (b"\x31\x06\0\2$t\0r", b"\x31\x06\0\2$t\0r"),
        (b"\x31\x04\0\0\0r", b"\x31\x04\0\0\0r"),
        (b"\x31\x02\0\5hello", b"\x31\x02\0\5hello"),
        (b"\x3a\x07\0\1t\0\1\0d", b"\x3a\x07\0\1t\0\1\0d"),
        (publishes("nobody", qos=1), publishes("nobody", qos=1)),  # 0x10: the readable lane says so
        (publishes("nobody"), b""),
        (publishes("$SYS/x"), publishes("$SYS/x")),
        (publishes("t") + b"\x30\x04\0\1+\0", b"\x30\x04\0\1+\0"),
        (b"\x32\x06\0\1t\0\0\0", b"\x32\x06\0\1t\0\0\0"),
        (b"\x30\x84\x00\0\1t\0", b"\x30\x84\x00\0\1t\0"),
        (b"\x30\x02\0\5hello", b"\x30\x02\0\5hello"),
        (b"\x32\x04\0\5hello\0\1\0", b"\x32\x04\0\5hello\0\1\0"),
        (publishes("t", payload=b"x" * 20_000), publishes("t", payload=b"x" * 20_000)),
        (b"\x40\x02\0\7", b"\x40\x02\0\7"),
        (publishes("t")[:3], b""),  # begun: it is kept for the next read
    ],
)
@run_async
async def test_what_it_takes(data: bytes, left: bytes) -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t", "u", qos=1)
        await joined(broker, "p")
        assert take(broker, "p", data) == left


@run_async
async def test_a_packet_in_two_pieces_is_taken_whole() -> None:
    async with memory_broker(by_hand()) as broker:
        wire = await joined(broker, "s", "t")
        await joined(broker, "p")
        data = publishes("t", "t")
        for at in range(1, len(data)):
            assert take(broker, "p", data[:at]) == take(broker, "p", data[at:]) == b""
            await turns()
            assert wire.sent() == data, at


@run_async
async def test_what_the_read_loop_is_busy_with_comes_first() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t")
        await joined(broker, "p")
        client = broker.clients["p"]
        client.serving = True
        data = publishes("t")
        assert client.take(data) == data


@run_async
async def test_a_long_beginning_is_the_reader_s() -> None:
    async with memory_broker(by_hand()) as broker:
        wire = await joined(broker, "p")
        data = publishes("t", payload=b"x" * 60_000)
        wire.incoming.put_nowait(data[:20_000])
        await turns()
        assert broker.clients["p"].partial == 20_000
        assert take(broker, "p", data[20_000:]) == data[20_000:]


@pytest.mark.parametrize("why", ["blocked", "corked"])
@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_a_member_that_takes_nothing_is_the_readable_lane_s(why: str, qos: int) -> None:
    """It counts what waits for a socket or for a commit, and drops what is too much."""
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t", qos=1)
        await joined(broker, "p")
        outbound = broker.clients["s"].outbound
        outbound.blocked, outbound._corked = why == "blocked", 10**9 * (why == "corked")
        assert take(broker, "p", publishes("t", qos=qos)) == publishes("t", qos=qos)
        outbound.blocked, outbound._corked = False, 0
        assert take(broker, "p", publishes("t", qos=qos)) == b""


@pytest.mark.parametrize("why", ["memory is short", "it does not read its answers", "it is ending"])
@run_async
async def test_it_steps_aside(why: str) -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t")
        await joined(broker, "p")
        client, budget = broker.clients["p"], broker._core.budget
        taken = budget.maximum if why == "memory is short" else 0
        budget.take_anyway(taken)
        client.outbound.blocked = why == "it does not read its answers"
        client.ending = MqttError("over") if why == "it is ending" else None
        assert take(broker, "p", publishes("t")) == publishes("t")
        client.outbound.blocked, client.ending = False, None
        budget.give(taken)
        assert take(broker, "p", publishes("t")) == b""


@run_async
async def test_it_has_no_qos_that_the_broker_has_not() -> None:
    async with memory_broker(by_hand(maximum_qos=0)) as broker:
        await joined(broker, "s", "t")
        await joined(broker, "p")
        assert take(broker, "p", publishes("t")) == b""
        assert take(broker, "p", publishes("t", qos=1)) == publishes("t", qos=1)


def with_properties(**properties: Any) -> bytes:
    return encode(Publish("t", b"\xff", 0, properties=properties), V5)


EXPIRY, TYPE = b"\x02\0\0\0\x3c", b"\x03\0\1x"


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        (with_properties(content_type="x"), with_properties(content_type="x")),
        (b"\x30\x0e\0\1t\x09" + TYPE + EXPIRY + b"p", b"\x30\x0e\0\1t\x09" + TYPE + EXPIRY + b"p"),
        (b"\x30\x0e\0\1t\x09" + EXPIRY + TYPE + b"p", b"\x30\x0e\0\1t\x09" + TYPE + EXPIRY + b"p"),
        (with_properties(user_property=[("k", "v")]), with_properties(user_property=[("k", "v")])),
        (with_properties(user_property=[("k", "v")] * 3), b""),
        (with_properties(topic_alias=1), b""),
        (with_properties(message_expiry_interval=0), b""),
        (with_properties(payload_format_indicator=0), with_properties(payload_format_indicator=0)),
        (with_properties(payload_format_indicator=1), b""),
        (with_properties(correlation_data=b"x" * 200), b""),
        (b"\x30\x08\0\1t\x04\x7f\0\1x", b""),  # no such property
        (b"\x30\x07\0\1t\x04\x03\0\1", b""),  # its block is longer than the packet
    ],
)
@pytest.mark.parametrize("others", [False, True])
@run_async
async def test_properties_that_travel(data: bytes, sent: bytes, others: bool) -> None:
    config = Config(
        capacity=BY_HAND,
        limits=Limits(maximum_user_properties=2, topic_alias_maximum=5),
        protocol=Protocol(validate_payload_format=True),
    )
    async with memory_broker(config) as broker:
        wire = await joined(broker, "s", "t")
        await joined(broker, "p")
        plain = publishes("t") if others else b""
        assert take(broker, "p", plain + data + plain) == (b"" if sent else data + plain)
        await turns()
        assert wire.sent() == plain + sent + (plain if sent else b"")


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_aliases_that_are_known_are_names(qos: int) -> None:
    async with memory_broker(by_hand(topic_alias_maximum=5)) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        peer = Peer(broker)
        await peer.connect("p")

        def packet(topic: str, number: int, payload: bytes = b"x", **properties: Any) -> bytes:
            properties = {**properties, "topic_alias": number}
            return encode(Publish(topic, payload, qos, packet_id=7 * qos, properties=properties), V5)

        long = "l" * 200
        peer.send_raw(packet("t", 1) + packet("", 1) + packet(long, 2) + packet("", 2, content_type="x"))
        await peer.expect_nothing() if not qos else [await peer.expect(Puback) for _ in range(4)]
        wire.sent()
        plain = publishes("u", qos=qos)
        data = packet("", 1) + packet("", 2, b"y" * 100, content_type="x") + packet("", 1) + plain
        assert take(broker, "p", data + packet("", 1)) == packet("", 1), "after one that has its name"
        assert take(broker, "p", packet("", 3)) == packet("", 3), "never defined"
        assert take(broker, "p", packet("t", 2)) == packet("t", 2), "defined anew"
        await turns()
        reader = PacketReader(from_client=False)
        found = [p for p in reader.feed(wire.sent()) if isinstance(p, Publish)]
        assert [(p.topic_name, p.payload, p.qos, p.properties) for p in found] == [
            ("t", b"x", qos, {}), (long, b"y" * 100, qos, {"content_type": "x"}), ("t", b"x", qos, {}),
            ("u", b"x", qos, {}),
        ]  # fmt: skip


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


# ---- time


@run_async
async def test_what_it_takes_keeps_the_connection_alive() -> None:
    clock = Clock()
    async with memory_broker(by_hand(), clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("p", keep_alive=10)
        for _ in range(5):
            clock.now += 14
            assert take(broker, "p", publishes("t")) == b""
            await broker.sweep()
        clock.now += 16
        await broker.sweep()
        assert (await peer.expect(Disconnect)).reason_code == 0x8D


@run_async
async def test_a_packet_of_another_kind_has_its_time_too() -> None:
    """A SUBSCRIBE that comes byte by byte: each look at it is not a new beginning."""
    clock = Clock()
    async with memory_broker(by_hand(partial_packet_timeout=30), clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        peer.send_raw(b"\x82\x50")
        began = clock.now
        while "p" in broker.clients and clock.now < began + 100:
            await turns()
            await broker.sweep()
            clock.now += 5
            peer.send_raw(b"\0")
            await turns()
        assert clock.now == began + 35, "30 seconds, and the step in which it is seen"


@run_async
async def test_a_beginning_without_an_end_has_its_time() -> None:
    clock = Clock()
    async with memory_broker(by_hand(partial_packet_timeout=30), clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        budget = broker._core.budget
        before = budget.used
        assert take(broker, "p", publishes("t", "t")[:-2]) == b""
        assert budget.used == before + len(publishes("t")) - 2
        clock.now += 29
        assert take(broker, "p", publishes("t")[-2:] + publishes("t")[:3]) == b"", "another one has begun"
        clock.now += 29
        await broker.sweep()
        assert take(broker, "p", publishes("t")[3:]) == b""
        assert budget.used == before
        clock.now += 1000
        await broker.sweep()
        assert take(broker, "p", publishes("t")[:3]) == b""
        clock.now += 31
        await broker.sweep()
        assert isinstance(await peer.recv(), Disconnect)


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
        assert take(broker, "p", b"".join(packets)) == b"".join(packets[2:])
        assert take(broker, "p", b"".join(packets)) == b"".join(packets[4:]), "those that are known are free"
        assert take(broker, "p", b"".join(packets)) == b""


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
            broker._core.sessions.get(f"s{number}").table()._last = 100 * number  # type: ignore[union-attr]
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
    inflight._last, inflight._unused_to = 1, 0  # as after all numbers were used once
    one()
    assert [*inflight.entries] == [1, 4, 7, 8], "2 and 3 are in a run"
    inflight.finish(inflight.entries[1])
    inflight._last, inflight._unused_to = 0, 0
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


# ---- a bug


@run_async
async def test_a_bug_in_it_costs_its_client_the_connection_and_nobody_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_broker(by_hand()) as broker:
        bad, bystander = Peer(broker), Peer(broker)
        await bad.connect("bad")
        await bystander.connect("good")
        await bystander.subscribe("t")
        with monkeypatch.context() as patch:
            patch.setattr(broker._connections._terms, "lane", lambda client, data: 1 // 0)
            bad.send(Publish("t", b"lost"))
            with pytest.raises(ConnectionResetError):
                await bad.recv()
            await settle(broker, "bad")
        assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"]
        other = Peer(broker)
        await other.connect("other")
        other.send(Publish("t", b"after"))
        assert (await bystander.expect(Publish)).payload == b"after"
        bystander.send_raw(b"\xc0\0")
        await bystander.expect(Pingresp)
