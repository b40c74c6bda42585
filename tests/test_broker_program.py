"""What the program that embeds a Broker can do: publish, subscribe, see and disconnect clients."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest

from broker import (
    HookBase,
    Message,
    QuotaExceeded,
    ReasonCode,
    TopicFilterInvalid,
    TopicNameInvalid,
)
from broker.errors import ProtocolError
from broker.packet.packets import (
    Disconnect,
    Publish,
)
from tests.broker_scenes import (
    config,
    hangs,
    received,
)
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import until

# ---- publish


@run_async
async def test_publish_gives_the_code_that_a_client_would_get() -> None:
    async with memory_broker(config()) as broker:
        assert await broker.publish("t") == ReasonCode.NO_MATCHING_SUBSCRIBERS
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("#", "$app/#", qos=2)
        assert await broker.publish("t", "text €", qos=2, properties={"content_type": "text/plain"}) == 0
        packet = await peer.expect(Publish)
        assert (packet.payload, packet.qos, packet.retain) == ("text €".encode(), 2, False)
        assert packet.properties == {"content_type": "text/plain"}
        assert await broker.publish("$app/x", bytearray(b"1")) == 0, "$ topics are the program's too"
        assert (await peer.expect(Publish)).payload == b"1"
        assert await broker.publish("t", memoryview(b"2")) == 0  # type: ignore[arg-type]
        assert (await peer.expect(Publish)).payload == b"2"


BAD_PUBLISHES: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"topic_name": ""}, TopicNameInvalid),
    ({"topic_name": "a/+"}, TopicNameInvalid),
    ({"topic_name": "a\0b"}, TopicNameInvalid),
    ({"topic_name": "x" * 65536}, TopicNameInvalid),
    ({"topic_name": "\ud800"}, TopicNameInvalid),
    ({"qos": 3}, ProtocolError),
    ({"qos": -1}, ProtocolError),
    ({"qos": "1"}, ProtocolError),
    ({"properties": {"content_typ": "x"}}, ProtocolError),
    ({"properties": {"session_expiry_interval": 1}}, ProtocolError),
    ({"properties": {"content_type": 1}}, ProtocolError),
    ({"properties": {"content_type": "\ud800"}}, ProtocolError),
    ({"properties": {"content_type": "x" * 65536}}, ProtocolError),
    ({"properties": {"payload_format_indicator": 2}}, ProtocolError),
    ({"properties": {"message_expiry_interval": -1}}, ProtocolError),
    ({"properties": {"message_expiry_interval": 1 << 32}}, ProtocolError),
    ({"properties": {"message_expiry_interval": "60"}}, ProtocolError),
    ({"properties": {"message_expiry_interval": 1.5}}, ProtocolError),
    ({"properties": {"message_expiry_interval": None}}, ProtocolError),
    ({"properties": {"response_topic": "a/#"}}, ProtocolError),
    ({"properties": {"correlation_data": "text"}}, ProtocolError),
    ({"properties": {"user_property": [("a",)]}}, ProtocolError),
    ({"properties": {"user_property": [("a", 1)]}}, ProtocolError),
    ({"properties": {"user_property": "ab"}}, ProtocolError),
    ({"payload": 5}, TypeError),
    ({"payload": None}, TypeError),
    ({"payload": [1, 2]}, TypeError),
]


@pytest.mark.parametrize(("fields", "error"), BAD_PUBLISHES, ids=repr)
@run_async
async def test_publish_refuses_what_no_publish_can_carry(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("#")
        with pytest.raises(error):
            await broker.publish(**{"topic_name": "t", "retain": True, **fields})
        await peer.expect_nothing()
        assert await received(broker) == []


@run_async
async def test_properties_of_a_client_alone_do_not_travel() -> None:
    async with memory_broker(config()) as broker:
        local = broker.subscribe("t")
        await broker.publish(
            "t", properties={"topic_alias": 3, "subscription_identifier": [5], "content_type": "c"}
        )
        assert (await anext(aiter(local))).properties == {"content_type": "c"}


@run_async
async def test_what_cannot_be_retained_is_not_published() -> None:
    async with memory_broker(config(maximum_retained_messages=1)) as broker:
        local = broker.subscribe("#")
        await broker.publish("a", b"1", retain=True)
        with pytest.raises(QuotaExceeded):
            await broker.publish("b", b"2", retain=True)
        local.close()
        assert [message.topic_name async for message in local] == ["a"]


@run_async
async def test_a_message_of_the_program_expires_like_any_other() -> None:
    clock = Clock()
    async with memory_broker(config(), clock=clock) as broker:
        await broker.publish("t", b"x", retain=True, properties={"message_expiry_interval": 10})
        clock.now += 9.5
        [message] = await received(broker)
        assert message.expires_at == 1010
        clock.now += 0.5
        assert await received(broker) == []
        await broker.sweep()
        assert broker._core.budget.used == 0


# ---- subscribe


@run_async
async def test_a_subscription_starts_with_the_retained_messages_and_is_live() -> None:
    async with memory_broker(config()) as broker:
        await broker.publish("a/1", b"kept", retain=True)
        local, none = broker.subscribe("a/+"), broker.subscribe("a/+", retained=False)
        await broker.publish("a/1", b"newer", retain=True)
        await broker.publish("a/2", b"live")
        for each in (local, none):
            each.close()
        assert [message.payload async for message in local] == [b"kept", b"newer", b"live"]
        assert [message.payload async for message in none] == [b"newer", b"live"]
        assert broker._core.tree.count == 0


@run_async
async def test_it_takes_part_in_a_group() -> None:
    async with memory_broker(config()) as broker:
        await broker.publish("t", b"kept", retain=True)
        members = [broker.subscribe("$share/g/t") for _ in range(2)]
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("$share/g/t")
        for number in range(6):
            await broker.publish("t", b"%d" % number)
        for each in members:
            each.close()
        got = [[message.payload async for message in each] for each in members]
        got.append([(await peer.expect(Publish)).payload for _ in range(2)])
        assert [len(each) for each in got] == [2, 2, 2]
        assert sorted(chain(*got)) == [b"%d" % number for number in range(6)], "and none that was retained"


@run_async
async def test_a_full_member_is_passed_over() -> None:
    async with memory_broker(config()) as broker:
        small, large = broker.subscribe("$share/g/t", maximum=1), broker.subscribe("$share/g/t")
        for number in range(5):
            await broker.publish("t", b"%d" % number)
        for each in (small, large):
            each.close()
        assert len([message async for message in small]) == 1
        assert len([message async for message in large]) == 4
        assert not broker.stats.dropped


@run_async
async def test_one_that_does_not_keep_up_is_counted() -> None:
    drops: list[tuple[str, str]] = []

    class Watch(HookBase):
        def on_dropped(self, client_id: str, message: Message | None, reason: str) -> None:
            drops.append((client_id, reason))

    async with memory_broker(config(), hooks=[Watch()]) as broker:
        local = broker.subscribe("t", maximum=2)
        for number in range(5):
            await broker.publish("t", b"%d" % number)
        assert broker.stats.dropped == {"queue_full": 3}
        assert drops == [(local.client_id, "queue_full")] * 3


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "$share/g", "$share//t", "$share/+/t", "a\0"])
@run_async
async def test_a_filter_that_cannot_be(topic_filter: str) -> None:
    async with memory_broker(config()) as broker:
        with pytest.raises(TopicFilterInvalid):
            broker.subscribe(topic_filter)
        assert broker._core.tree.count == 0


# ---- clients and disconnect


@run_async
async def test_clients_is_live_and_read_only() -> None:
    async with memory_broker(config()) as broker:
        clients = broker.clients
        assert len(clients) == 0
        peer = Peer(broker)
        await peer.connect("c", user_name="ada")
        assert list(clients) == ["c"]
        assert (clients["c"].client_id, clients["c"].info.user_name) == ("c", "ada")
        with pytest.raises(TypeError):
            clients["d"] = clients["c"]  # type: ignore[index]
        with pytest.raises((TypeError, AttributeError)):
            del clients["c"]  # type: ignore[attr-defined]
        peer.drop()
        await settle(broker, "c")
        assert "c" not in clients


@pytest.mark.parametrize(
    ("code", "said"), [(None, 0x98), (0x97, 0x97), (0x00, 0x00), (0x91, 0x80), (0x9D, 0x9D)]
)
@run_async
async def test_disconnect(code: int | None, said: int) -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await broker.disconnect("d") is False
        assert await broker.disconnect("c", *([] if code is None else [code])) is True
        assert not broker.clients and not broker._connections, "when it returns, it is gone"
        assert (await peer.expect(Disconnect)).reason_code == said
        await peer.expect_end()
        assert await broker.disconnect("c") is False


@run_async
async def test_disconnect_of_what_is_no_code() -> None:
    async with memory_broker(config()) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        with pytest.raises(ValueError, match="999"):
            await broker.disconnect("c", 999)
        await peer.expect_nothing()


@run_async
async def test_disconnect_waits_for_a_hook_that_hangs_no_longer_than_the_grace_time() -> None:
    async with memory_broker(config(grace_time=0.05), hooks=[hangs("on_disconnect")]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await asyncio.wait_for(broker.disconnect("c"), 1) is True
        assert not broker.clients
        assert (await peer.expect(Disconnect)).reason_code == 0x98


@run_async
async def test_a_hook_may_disconnect_its_own_client_and_another() -> None:
    class Kick(HookBase):
        async def init(self, broker: Any) -> None:
            self.broker = broker

        async def on_publish(self, client: Any, message: Message) -> None:
            assert await self.broker.disconnect(message.topic_name)

    async with memory_broker(config(), hooks=[Kick()]) as broker:
        a, b = Peer(broker), Peer(broker)
        await a.connect("a")
        await b.connect("b")
        a.send(Publish("b"))
        assert (await b.expect(Disconnect)).reason_code == 0x98
        a.send(Publish("a"))
        assert (await a.expect(Disconnect)).reason_code == 0x98
        await until(lambda: not broker._connections)
