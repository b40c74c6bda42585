"""Hooks and settings that give what no packet can carry: the client in question may suffer, nobody else."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from broker import Config, HookBase, Message, NotAuthorized, Protocol, ReasonCode, SubscribeRequest
from broker.packet.packets import (
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.broker_scenes import KEPT
from tests.hook.made import hook, refusing
from tests.peer import Peer, memory_broker, run_async, settle
from tests.wire import turns

RUBBISH_MESSAGES = [
    lambda message: message.with_(payload="text"),
    lambda message: message.with_(topic_name="a/#"),
    lambda message: message.with_(topic_name=""),
    lambda message: message.with_(qos=3),
    lambda message: message.with_(properties={"content_type": 5}),
    lambda message: message.with_(client_id=None),
    lambda message: message.with_(client_id="\udc80"),
    lambda message: message.with_(retain="yes"),
    lambda message: message.with_(expires_at="soon"),
    lambda message: message.with_(properties={"user_property": [("k", "x\0")]}),
    lambda message: None,
    lambda message: message.with_(qos=Decimal(1)),
    lambda message: message.with_(retain=1.0),
    lambda message: message.with_(expires_at=float("inf")),
    lambda message: message.with_(expires_at=10**400),
]
RUBBISH = {ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, ReasonCode.TOPIC_NAME_INVALID}
NO = ReasonCode.NOT_AUTHORIZED
TOO_LONG, WITH_NUL = "y" * 70_000, "y\0"


async def watching(broker: Any, client_id: str, topic_filter: str = "#") -> Peer:
    peer = Peer(broker)
    await peer.connect(client_id)
    await peer.subscribe(topic_filter)
    return peer


@pytest.mark.parametrize("change", RUBBISH_MESSAGES)
@run_async
async def test_a_rubbish_copy_is_dropped_and_the_others_get_theirs(change: Any) -> None:
    spoil = hook(on_publish_deliver=lambda who, message: change(message) if who == "bad" else message)
    drops: list[Any] = []
    watch = hook(on_dropped=lambda who, message, reason: drops.append((who, reason)))
    async with memory_broker(hooks=[spoil, watch]) as broker:
        peers = [await watching(broker, name) for name in ("before", "bad", "after")]
        publisher = Peer(broker)
        await publisher.connect("p")
        assert await publisher.publish("t", b"x", qos=1) == 0, "the publisher has nothing to do with it"
        for peer in (peers[0], peers[2]):
            assert (await peer.expect(Publish)).payload == b"x"
        await peers[1].expect_nothing()
    assert drops == [("bad", "hook_failed")]


def in_place(message: Message) -> Message:
    message.topic_name = "a/#"
    return message


@pytest.mark.parametrize("change", [*RUBBISH_MESSAGES, in_place])
@run_async
async def test_a_rubbish_message_is_refused_neither_sent_nor_stored(change: Any) -> None:
    async with memory_broker(hooks=[hook(on_publish_received=lambda who, m: change(m))]) as broker:
        watcher, publisher = await watching(broker, "w"), Peer(broker)
        await publisher.connect("p")
        assert await publisher.publish("t", b"x", qos=1, retain=True) in RUBBISH
        await watcher.expect_nothing()
        later = await watching(broker, "later")
        await later.expect_nothing()
        await publisher.expect_nothing()


@pytest.mark.parametrize("change", [*RUBBISH_MESSAGES, in_place])
@run_async
async def test_a_will_that_becomes_rubbish_is_not_published(change: Any) -> None:
    async with memory_broker(hooks=[hook(on_publish_received=lambda who, m: change(m))]) as broker:
        watcher, leaver = await watching(broker, "w"), Peer(broker)
        await leaver.connect("p", will=Will("will", b"x", retain=True))
        leaver.drop()
        await settle(broker, "p")
        await turns(20)
        await watcher.expect_nothing()
        assert broker.stats.dropped == {"will_refused": 1}


@pytest.mark.parametrize(
    "found",
    [
        lambda topic_filter: [None],
        lambda topic_filter: ["text"],
        lambda topic_filter: None,
        lambda topic_filter: [Message("t", "text")],  # type: ignore[arg-type]  # compiled, this raises
        lambda topic_filter: [Message("a/#", b"x")],
    ],
)
@run_async
async def test_rubbish_for_retained_messages_brings_none(found: Any) -> None:
    async with memory_broker(hooks=[hook(get_retained=found)]) as broker:
        peer = Peer(broker)
        await peer.connect("s")
        assert (await peer.subscribe("t")).reason_codes == [0]
        await peer.expect_nothing()


@pytest.mark.parametrize(
    "rubbish",
    [
        lambda: SubscribeRequest("t", -1),
        lambda: SubscribeRequest("t", 3),
        lambda: SubscribeRequest("t", 0, retain_handling=3),
        lambda: SubscribeRequest(5, 0),  # type: ignore[arg-type]  # compiled, this raises
    ],
)
@run_async
async def test_a_rubbish_request_refuses_that_filter(rubbish: Any) -> None:
    def change(client: Any, request: SubscribeRequest) -> SubscribeRequest:
        return rubbish() if request.topic_filter == "bad" else request

    async with memory_broker(hooks=[hook(on_subscribe=change)]) as broker:
        peer = Peer(broker)
        await peer.connect("s")
        suback = await peer.subscribe("bad", "good", qos=1)
        assert suback.reason_codes == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, 1]
        assert "t" not in broker._core.sessions.get("s").subscriptions  # type: ignore[union-attr]


@pytest.mark.parametrize("topic_filter", [None, "", "a/#/b", "a\0"])
@run_async
async def test_a_rubbish_filter_refuses_it(topic_filter: Any) -> None:
    change = hook(on_subscribe=lambda client, request: SubscribeRequest(topic_filter, 0))
    async with memory_broker(hooks=[change]) as broker:
        peer = Peer(broker)
        await peer.connect("s")
        assert (await peer.subscribe("t")).reason_codes[0] >= 0x80
        await peer.expect_nothing()


@pytest.mark.parametrize("text", [TOO_LONG, WITH_NUL])
@pytest.mark.parametrize(
    ("event", "packet", "answer"),
    [
        ("on_publish", Publish("t", b"x", 1, packet_id=1), Puback(1, NO)),
        ("on_publish", Publish("t", b"x", 2, packet_id=1), Pubrec(1, NO)),
        ("on_subscribe", Subscribe(1, [SubscribeRequest("t", 0)]), Suback(1, [NO])),
        ("on_unsubscribe", Unsubscribe(1, ["t"]), Unsuback(1, [NO])),
    ],
)
@run_async
async def test_a_reason_string_that_cannot_be_sent_is_left_out(
    event: str, packet: Packet, answer: Packet, text: str
) -> None:
    async with memory_broker(
        hooks=[hook(**{event: refusing(NotAuthorized("no", reason_string=text))})]
    ) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        peer.send(packet)
        assert await peer.recv() == answer
        await peer.expect_nothing()


@pytest.mark.parametrize("text", [TOO_LONG, WITH_NUL])
@run_async
async def test_a_reason_string_that_connack_cannot_carry_is_left_out(text: str) -> None:
    refuse = hook(on_connect=refusing(NotAuthorized("no", reason_string=text)))
    async with memory_broker(hooks=[refuse]) as broker:
        assert await Peer(broker).connect("c") == Connack(False, NO, {})


@pytest.mark.parametrize("pair", [("a", 5), ("a", WITH_NUL), ("a", TOO_LONG), "text", None])
@run_async
async def test_user_properties_that_cannot_be_sent_are_left_out(pair: Any) -> None:
    async with memory_broker(hooks=[hook(on_connect=lambda c, p: c.user_properties.append(pair))]) as broker:
        peer = Peer(broker)
        connack = await peer.connect("c")
        assert connack.reason_code == 0
        assert "user_property" not in connack.properties
        assert connack.properties["receive_maximum"] == 1024, "the rest is said all the same"


class Willing(HookBase):
    """Gives the client "bad" a will that is none."""

    def __init__(self, will: Callable[[], Any]) -> None:
        self.will = will  # makes it: what is compiled raises

    async def on_connect(self, client: Any, packet: Connect) -> None:
        if client.client_id == "bad":
            packet.will = self.will()


@pytest.mark.parametrize(
    "will",
    [
        lambda: "rubbish",
        lambda: 5,
        lambda: Will("a/#", b""),
        lambda: Will(None, b""),  # type: ignore[arg-type]
        lambda: Will("w", b"", 0, False, {"content_type": 5}),
    ],
)
@run_async
async def test_a_rubbish_will_refuses_and_leaves_no_session(will: Any) -> None:
    async with memory_broker(hooks=[Willing(will)]) as broker:
        peer, good = Peer(broker), Peer(broker)
        assert (await peer.connect("bad")).reason_code in RUBBISH
        await peer.expect_end()
        assert (await good.connect("good")).reason_code == 0
        assert [session.client_id for session in broker._core.sessions] == ["good"]


# ---- settings


@pytest.mark.parametrize("length", [65535 - len("reply//"), 65535])
@run_async
async def test_response_information_longer_than_a_string_is_left_out(length: int) -> None:
    config = Config(protocol=Protocol(response_information="reply/{client_id}/"))
    async with memory_broker(config) as broker:
        peer = Peer(broker)
        connack = await peer.connect("x" * length, properties={"request_response_information": 1})
        assert connack.reason_code == 0
        assert ("response_information" in connack.properties) is (length < 65535)
        await peer.expect_nothing()


# ---- what a store could not keep, or not give back


@pytest.mark.parametrize("user_name", [b"bytes", 5, WITH_NUL, "\udc80", TOO_LONG])
@run_async
async def test_a_rubbish_user_name_is_refused(user_name: Any, tmp_path: Path) -> None:
    def give(client: Any, packet: Connect) -> None:
        if packet.client_id == "bad":
            client.user_name = user_name

    path = tmp_path / "broker.db"
    async with memory_broker(hooks=[hook(on_connect=give)], store=path) as broker:
        bad, good = Peer(broker), Peer(broker)
        connack = await bad.connect("bad", properties=KEPT)
        assert connack.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        await good.connect("good", properties=KEPT, user_name="\U0001f600")
        assert (await good.subscribe("t", qos=1)).reason_codes == [1]
    async with memory_broker(store=path) as broker:
        peer = Peer(broker)
        connack = await peer.connect("good", clean_start=False, user_name="\U0001f600")
        assert connack.session_present


@pytest.mark.parametrize(
    ("name", "value"),
    [("payload", "text"), ("qos", 3), ("topic_name", 5), ("properties", {"will_delay_interval": "long"})],
)
@run_async
async def test_a_will_that_becomes_rubbish_before_it_is_kept(name: str, value: Any, tmp_path: Path) -> None:
    def change(client: Any, packet: Connect) -> None:
        if packet.will is not None:
            setattr(packet.will, name, value)

    async with memory_broker(hooks=[hook(on_connect=change)], store=tmp_path / "broker.db") as broker:
        peer, other = Peer(broker), Peer(broker)
        connack = await peer.connect("bad", properties=KEPT, will=Will("w", b"x"))
        assert connack.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        await other.connect("good", properties=KEPT)
        assert (await other.subscribe("t", qos=1)).reason_codes == [1], "the store is well"
        assert broker._core.journal.failures == 0
