"""The fast lane: when it is closed, what it takes and what it leaves, its time, and what a bug costs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from broker import Config, HookBase, Limits, Protocol
from broker.client import no_lane
from broker.errors import MqttError
from broker.packet.codec import encode
from broker.packet.message import Message
from broker.packet.packets import Disconnect, Pingresp, Puback, Publish
from broker.packet.reader import PacketReader
from tests.lane.by_hand import BY_HAND, V3, V5, by_hand, joined, publishes, take
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import turns

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
async def test_who_sees_what_is_published_leaves_it_all_else() -> None:
    watching = Watching()
    async with memory_broker(by_hand(), hooks=[watching]) as broker:
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        assert take(broker, "p", publishes("t", qos=2)) == publishes("t", qos=2)
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
        (publishes("t", qos=2), b""),
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


@pytest.mark.parametrize("topics", ["ttttt", "tutut"])
@pytest.mark.parametrize("cut", [0, 1, 5000])
@run_async
async def test_much_at_once_arrives_as_it_came(cut: int, topics: str) -> None:
    """Most of a long read is handed on as it lies there, to clients of its own version."""
    async with memory_broker(by_hand()) as broker:
        five, three = await joined(broker, "s", "t", "u"), await joined(broker, "s3", "t", "u", version=V3)
        await joined(broker, "p")
        data = b"before" + publishes(*topics, payload=b"x" * 5_000)
        assert take(broker, "p", data[6 : len(data) - cut]) == b""
        await turns()
        if cut:
            assert take(broker, "p", data[len(data) - cut :]) == b""
            await turns()
        assert five.sent() == data[6:]
        assert three.sent() == publishes(*topics, payload=b"x" * 5_000, version=V3)


@run_async
async def test_within_a_long_read_nobody_collects_answers_without_end() -> None:
    async with memory_broker(by_hand()) as broker:
        wire = await joined(broker, "p")
        client, wire.stuck, pings = broker.clients["p"], True, 131_072
        wire.incoming.put_nowait(b"\xc0\0")
        await turns()
        assert client.blocked
        before = broker.stats.messages_received
        wire.incoming.put_nowait(b"\xc0\0" * pings)
        await turns(20)
        assert client.swamped and 30_000 < broker.stats.messages_received - before < 40_000
        while broker.stats.messages_received - before < pings:
            wire.let_go()
            await turns()
        assert wire.sent() == b"\xd0\0" * (pings + 1)


@run_async
async def test_a_long_read_of_pings_takes_no_more_memory_than_its_answer() -> None:
    async with memory_broker(by_hand()) as broker:
        wire, pings = await joined(broker, "p"), b"\xc0\0" * 262_144
        tracemalloc.start()
        try:
            assert take(broker, "p", pings) == b""
            await turns()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * len(pings)
        assert wire.sent() == b"\xd0\0" * 262_144


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
        waiting = broker.clients["s"]._wait()
        waiting.blocked, waiting.corked = why == "blocked", 10**9 * (why == "corked")
        assert take(broker, "p", publishes("t", qos=qos)) == publishes("t", qos=qos)
        waiting.blocked, waiting.corked = False, 0
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
        client._wait().blocked = why == "it does not read its answers"
        client.ending = MqttError("over") if why == "it is ending" else None
        assert take(broker, "p", publishes("t")) == publishes("t")
        client._wait().blocked, client.ending = False, None
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
