"""Rare combinations of common things: hooks that wait, odd clocks, messages that come back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from broker import Config, HookBase, Limits, Message
from broker.handle.connect import certificate_name
from broker.packet.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Will,
)
from tests.peer import Clock, Peer, memory_broker, run_async, settle
from tests.wire import turns

KEPT = {"session_expiry_interval": 1000}
ONE_AT_A_TIME = {**KEPT, "receive_maximum": 1}


# ---- shared messages that nobody else takes


class Exclaim(HookBase):
    def on_publish_deliver(self, client_id: str, message: Message) -> Message:
        return message.with_(payload=message.payload + b"!")


@run_async
async def test_a_shared_message_that_comes_back_was_changed_once() -> None:
    async with memory_broker(hooks=[Exclaim()]) as broker:
        member = Peer(broker)
        await member.connect("m", properties=ONE_AT_A_TIME)
        await member.subscribe("$share/g/t", qos=1)
        for payload in (b"1", b"2"):
            await broker.publish("t", payload, qos=1)
        assert (await member.expect(Publish)).payload == b"1!"
        for _ in range(3):  # each time "2" is offered to the others, of whom there are none
            member.drop()
            await settle(broker, "m")
            member = Peer(broker)
            await member.connect("m", clean_start=False, properties=ONE_AT_A_TIME)
            first = await member.expect(Publish)
            assert (first.payload, first.dup) == (b"1!", True)
        member.send(Puback(first.packet_id))
        assert (await member.expect(Publish)).payload == b"2!"


@run_async
async def test_a_shared_message_that_expired_is_not_handed_to_another_member() -> None:
    clock = Clock()
    async with memory_broker(clock=clock) as broker:
        leaver, other = Peer(broker), Peer(broker)
        await leaver.connect("leaver", properties=ONE_AT_A_TIME)
        await leaver.subscribe("$share/g/t", qos=1)
        for payload, interval in ((b"sent", 5), (b"expired", 5), (b"alive", 50)):
            await broker.publish("t", payload, qos=1, properties={"message_expiry_interval": interval})
        await other.connect("other", properties=KEPT)
        await other.subscribe("$share/g/t", qos=1)
        clock.now += 10
        leaver.send(Disconnect(0, {"session_expiry_interval": 0}))
        await settle(broker, "leaver")
        got = await other.expect(Publish)
        assert (got.payload, got.properties) == (b"alive", {"message_expiry_interval": 40})
        await other.expect_nothing()


# ---- Message Expiry Interval


@pytest.mark.parametrize("now", [1234.567, 4321.1, 87654.3217, 0.1])
@pytest.mark.parametrize("interval", [1, 10, 30, 100, 4294967295])
@run_async
async def test_the_interval_sent_is_never_above_the_one_received(now: float, interval: int) -> None:
    clock = Clock(now)
    async with memory_broker(clock=clock) as broker:
        subscriber, publisher = Peer(broker), Peer(broker)
        await subscriber.connect("s")
        await subscriber.subscribe("t")
        await publisher.connect("p")
        sent = {"message_expiry_interval": interval}
        publisher.send(Publish("t", b"x", properties=sent), Pingreq())
        await publisher.expect(Pingresp)
        assert (await subscriber.expect(Publish)).properties == sent


@pytest.mark.parametrize(("asked", "in_force"), [(10_000, 60), (None, 60), (30, 30)])
@run_async
async def test_the_longest_life_holds_for_wills_and_the_program_too(asked: int | None, in_force: int) -> None:
    properties = {} if asked is None else {"message_expiry_interval": asked}
    async with memory_broker(Config(limits=Limits(message_expiry_interval=60)), clock=Clock()) as broker:
        leaver, later = Peer(broker), Peer(broker)
        await leaver.connect("p", will=Will("will", b"x", retain=True, properties=properties))
        leaver.drop()
        await settle(broker, "p")
        await broker.publish("program", b"x", retain=True, properties=properties)
        await later.connect("s")
        await later.subscribe("program", "will")
        for topic_name in ("program", "will"):
            got = await later.expect(Publish)
            assert (got.topic_name, got.properties) == (topic_name, {"message_expiry_interval": in_force})


# ---- SUBACK


class SlowStore(HookBase):
    """Looks its retained messages up for as long as the test likes."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def get_retained(self, topic_filter: str) -> Iterable[Message]:
        self.asked.set()
        await self.go_on.wait()
        return [Message("t", b"old", 0, True)]


@run_async
async def test_suback_comes_before_all_that_the_subscription_brings() -> None:
    store = SlowStore()
    async with memory_broker(hooks=[store]) as broker:
        subscriber = Peer(broker)
        await subscriber.connect("s")
        subscriber.send(Subscribe(1, [SubscribeRequest("t", 0)]))
        await store.asked.wait()
        await broker.publish("t", b"live")
        await turns()
        store.go_on.set()
        assert isinstance(await subscriber.recv(), Suback)
        assert {(await subscriber.expect(Publish)).payload for _ in range(2)} == {b"live", b"old"}


# ---- names of certificates


@pytest.mark.parametrize(
    ("names", "user_name"),
    [
        ([("DNS", "sensor"), ("email", "a@b")], "sensor"),
        ([("DirName", ((("commonName", "evil"),),)), ("DNS", "sensor")], "sensor"),
        ([("DirName", ((("commonName", "evil"),),))], None),
        ([], None),
    ],
)
def test_an_alternative_name_is_a_text_or_none(
    names: list[tuple[str, object]], user_name: str | None
) -> None:
    assert certificate_name({"subjectAltName": tuple(names)}, "san") == user_name


def test_a_certificate_without_names() -> None:
    assert certificate_name({}, "san") is None
    assert certificate_name({}, "cn") is None
