"""The contract of hooks: a verdict that is remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker import (
    Broker,
    Capacity,
    ClientInfo,
    Config,
    MqttError,
    NotAuthorized,
    Protocol,
    ReasonCode,
    Version,
)
from broker.hook.sound import LONGEST, MOST, Verdicts
from broker.packet.packets import Disconnect, Puback, Publish, Pubrec, Pubrel, Will
from tests.hook.made import boom, hook, recorder, refusing
from tests.peer import Peer, memory_broker, run_async, settle


def config(fast_lane: bool, **protocol: Any) -> Config:
    return Config(capacity=Capacity(fast_lane=fast_lane), protocol=Protocol(**protocol))


def verdicts_of(broker: Broker) -> Verdicts:
    verdicts = broker._core.hooks.verdicts
    assert verdicts is not None
    return verdicts


class Asked(list[str]):
    """Which client was asked about, and for which topic; all but *refused* is allowed."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = refused

    def __call__(self, client: ClientInfo, topic_name: str) -> bool:
        self.append(f"{client.client_id} {topic_name}")
        return topic_name not in self.refused


@pytest.mark.parametrize("fast_lane", [True, False])
@run_async
async def test_57__asked_before_on_publish_whatever_the_qos(fast_lane: bool) -> None:
    asked = Asked()
    calls: list[str] = []

    def note(client: Any, topic_name: str) -> bool:
        calls.append(f"may_publish {topic_name}")
        return True

    later = hook(on_publish=lambda client, message: calls.append(f"on_publish {message.topic_name}"))
    async with memory_broker(config(fast_lane), hooks=[later, hook(may_publish=note)]) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        await peer.publish("t", qos=1)
    assert calls == ["may_publish t", "on_publish t"]
    async with memory_broker(config(fast_lane), hooks=[hook(may_publish=asked)]) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        for qos in (0, 1, 2):
            await peer.publish(f"t{qos}", qos=qos)
            await peer.publish(f"r{qos}", b"x", qos=qos, retain=True)
        broker.ask_again()
        peer.send(*[Publish("t", qos=2, packet_id=7)] * 3, Pubrel(7))
        for _ in range(3):
            await peer.expect(Pubrec)
    assert asked == ["p t0", "p r0", "p t1", "p r1", "p t2", "p r2", "p t"]


@pytest.mark.parametrize("fast_lane", [True, False])
@run_async
async def test_57__a_topic_alias_is_the_name_it_stands_for(fast_lane: bool) -> None:
    asked = Asked()
    async with memory_broker(config(fast_lane), hooks=[hook(may_publish=asked)]) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await peer.connect("p")
        await watcher.connect("w")
        await watcher.subscribe("#")
        peer.send(Publish("a", b"0", properties={"topic_alias": 1}))
        await peer.expect_nothing()
        broker.ask_again("p")
        peer.send(*[Publish("", b"1", properties={"topic_alias": 1})] * 3)
        assert [(await watcher.expect(Publish)).topic_name for _ in range(4)] == ["a"] * 4
    assert asked == ["p a"] * 2


async def late(*args: Any) -> bool:
    return True


@pytest.mark.parametrize("fast_lane", [True, False])
@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (lambda *args: False, 0x87),
        (lambda *args: None, 0x83),
        (lambda *args: 1, 0x83),
        (lambda *args: "yes", 0x83),
        (refusing(MqttError("no", ReasonCode.QUOTA_EXCEEDED)), 0x97),
        (refusing(MqttError("no", ReasonCode.BANNED)), 0x80),
        (boom, 0x83),
        (late, 0x83),
        (refusing(asyncio.CancelledError()), 0x83),  # type: ignore[arg-type]
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
@run_async
async def test_57__all_must_say_true(fast_lane: bool, verdict: Any, code: int) -> None:
    hooks = [hook(may_publish=lambda *args: True), hook(may_publish=verdict)]
    async with memory_broker(config(fast_lane), hooks=hooks) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("#", qos=1)
        await peer.connect("p")
        for _ in range(2):  # the fast lane knows the topic the second time
            for qos in (1, 2):
                assert await peer.publish("t", b"x", qos=qos) == code
                assert await peer.publish("t", b"x", qos=qos, retain=True) == code
            await peer.publish("t", b"x")
            await peer.publish("t", b"x", retain=True)
        await peer.expect_nothing()
        await watcher.subscribe("t")  # nothing was retained
        await watcher.expect_nothing()
        assert broker.stats.dropped == {"refused": 12} and len(verdicts_of(broker)) == 0


@run_async
async def test_57__a_hook_that_forgets_to_return_something_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(hooks=[hook(may_publish=lambda *args: None)]) as broker:
        peer = Peer(broker)
        await peer.connect("ada")
        assert await peer.publish("t", qos=1) == 0x83
    assert "may_publish returned None, which is no sound bool" in caplog.text


@run_async
async def test_57__a_refusal_says_who_and_where() -> None:
    async with memory_broker(hooks=[hook(may_publish=lambda *args: False)]) as broker:
        peer, old = Peer(broker), Peer(broker, Version.MQTT_3_1_1)
        await peer.connect("ada")
        with pytest.raises(NotAuthorized, match="ada may not publish to a/b"):
            verdicts_of(broker).check(broker.clients["ada"].info, "a/b")
        await old.connect("old")
        assert await old.publish("t", qos=1) == 0  # a refusal that 3.x clients cannot be told


@pytest.mark.parametrize("fast_lane", [True, False])
@run_async
async def test_58__asked_once_for_a_connection_and_a_topic(fast_lane: bool) -> None:
    asked = Asked()
    async with memory_broker(config(fast_lane), hooks=[hook(may_publish=asked)]) as broker:
        for _ in range(2):
            one, two = Peer(broker), Peer(broker)
            await one.connect("1")
            await two.connect("2")
            for qos in (0, 1, 2):
                for peer in (one, two):
                    await peer.publish("a", qos=qos)
                    await peer.publish("b", b"x", qos=qos, retain=True)
                    await peer.expect_nothing()
            one.drop()
            two.send(Disconnect())
            await settle(broker, "1")
            await settle(broker, "2")
        await asyncio.sleep(0)
        assert len(verdicts_of(broker)) == 0
    assert asked == ["1 a", "1 b", "2 a", "2 b"] * 2


@pytest.mark.parametrize("end", ["disconnect", "drop", "program", "takeover", "error"])
@run_async
async def test_58__forgotten_when_the_connection_ends(end: str) -> None:
    async with memory_broker(hooks=[hook(may_publish=lambda *args: True)]) as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("p")
        await peer.publish("t", qos=1)
        verdicts = verdicts_of(broker)
        assert len(verdicts) == 1 and verdicts.of(broker.clients["p"].info) == {b"\0\1t"}
        if end == "disconnect":
            peer.send(Disconnect())
        elif end == "drop":
            peer.drop()
        elif end == "program":
            await broker.disconnect("p")
        elif end == "takeover":
            await other.connect("p")
            assert verdicts.of(broker.clients["p"].info) == set()
        else:
            peer.send_raw(b"\0\0")
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(verdicts) == 0 and verdicts._allowed == {}


@pytest.mark.parametrize("fast_lane", [True, False])
@run_async
async def test_58__ask_again(fast_lane: bool) -> None:
    rules = Asked()
    async with memory_broker(config(fast_lane), hooks=[hook(may_publish=rules)]) as broker:
        one, two = Peer(broker), Peer(broker)
        await one.connect("1")
        await two.connect("2")
        await one.subscribe("t")
        assert await two.publish("t", qos=2) == 0
        rules.refused = ("t",)
        assert await two.publish("t", qos=2) == 0, "it is remembered"
        broker.ask_again("1")
        broker.ask_again("nobody")
        assert await two.publish("t", qos=2) == 0
        broker.ask_again("2")
        assert await two.publish("t", qos=2) == 0x87
        rules.refused = ()
        assert await two.publish("t", qos=2) == 0
        rules.refused = ("t",)
        broker.ask_again()
        assert await two.publish("t", qos=2) == 0x87
    async with memory_broker(config(fast_lane)) as broker:
        broker.ask_again()
        broker.ask_again("nobody")


@run_async
async def test_58__what_hooks_are_saying_at_that_moment_is_not_remembered() -> None:
    """The second hook changes what the first has said already."""
    asked = Asked()
    again: list[int] = [1]

    def change(client: Any, topic_name: str) -> bool:
        if again:
            again.pop()
            asked.refused = ("t",)
            broker.ask_again()
        return True

    hooks = [hook(may_publish=asked), hook(may_publish=change)]
    async with memory_broker(config(False), hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        assert await peer.publish("t", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS
        assert await peer.publish("t", qos=1) == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("fast_lane", [True, False])
@run_async
async def test_58__a_long_name_is_asked_about_each_time(fast_lane: bool) -> None:
    asked = Asked()
    long, longer = "l" * LONGEST, "l" * (LONGEST + 1)
    async with memory_broker(config(fast_lane), hooks=[hook(may_publish=asked)]) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        await peer.subscribe("#")
        for _ in range(3):
            peer.send(Publish(long), Publish(longer))
            assert [(await peer.expect(Publish)).topic_name for _ in range(2)] == [long, longer]
    assert asked.count(f"p {long}") == 1 and asked.count(f"p {longer}") >= 3


def test_58__memory_is_bounded() -> None:
    asked = Asked()
    verdicts = Verdicts(recording(asked))
    clients = [ClientInfo("1"), ClientInfo("1")]
    for number in range(MOST):
        verdicts.check(clients[number % 2], f"t/{number}")
    assert len(verdicts) == len(asked) == MOST
    of_one = verdicts.of(clients[0])
    assert len(of_one) == MOST // 2
    for number in range(MOST):
        verdicts.check(clients[number % 2], f"t/{number}")
    assert len(asked) == MOST, "all is remembered"
    verdicts.check(clients[0], "one more")
    assert len(verdicts) == 1 and verdicts.of(clients[0]) == {b"\0\x08one more"}
    assert of_one == set() and verdicts.of(clients[1]) == set(), "whoever holds it sees it"
    verdicts.check(clients[1], "t/1")
    assert len(asked) == MOST + 2
    of_one = verdicts.of(clients[0])
    for client in clients:
        verdicts.forget(client)
        verdicts.forget(client)
    assert of_one == set(), "here as well"
    assert len(verdicts) == 0 and verdicts._allowed == {}


def recording(asked: Any) -> Any:
    hooks = memory_broker(hooks=[hook(may_publish=asked)])._core.hooks
    assert hooks.verdicts is not None
    return hooks.verdicts._methods


@run_async
async def test_59__a_refusal_is_asked_for_again() -> None:
    asked = Asked("no")
    async with memory_broker(config(True), hooks=[hook(may_publish=asked)]) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        for number in range(1, 4):
            assert await peer.publish("no", qos=1) == 0x87
            assert number <= asked.count("p no") <= 2 * number
        asked.refused = ()
        assert await peer.publish("no", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS


@run_async
async def test_60__a_will_is_asked_about_when_it_is_published() -> None:
    asked = Asked()
    async with memory_broker(hooks=[hook(may_publish=asked)]) as broker:
        watcher = Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("will")
        for refused in (False, True):
            peer = Peer(broker)
            await peer.connect("p", will=Will("will", b"x", 1))
            await peer.publish("will", b"alive", qos=1)
            assert (await watcher.expect(Publish)).payload == b"alive"
            asked.refused = ("will",) if refused else ()
            peer.send(Disconnect(0x04))
            await settle(broker, "p")
            if not refused:
                assert (await watcher.expect(Publish)).payload == b"x"
            await watcher.expect_nothing()
        assert broker.stats.dropped == {"will_refused": 1}
    assert asked == ["p will"] * 4


@run_async
async def test_60__a_will_is_asked_about_at_connect_as_well() -> None:
    asked = Asked("no")
    settings = config(True, authorize_will="connect")
    async with memory_broker(settings, hooks=[hook(may_publish=asked)]) as broker:
        assert (await Peer(broker).connect("p", will=Will("no", b""))).reason_code == 0x87
        peer = Peer(broker)
        assert (await peer.connect("q", will=Will("yes", b""))).reason_code == 0
        assert len(verdicts_of(broker)) == 0
        peer.drop()
        await settle(broker, "q")
    assert asked == ["p no", "q yes", "q yes"]


@run_async
async def test_60__the_chain_of_a_will_goes_on_after_it() -> None:
    calls: list[str] = []
    hooks = [
        recorder(calls, "a", "on_publish_received", "may_publish"),
        hook(on_publish=refusing(NotAuthorized())),
    ]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("p", will=Will("will", b"x"))
        peer.drop()
        await settle(broker, "p")
        assert broker.stats.dropped == {"will_refused": 1}
    assert calls == ["a.may_publish"]


@run_async
async def test_61__it_leaves_the_fast_lane_open() -> None:
    asked = Asked("no")
    async with memory_broker(config(True), hooks=[hook(may_publish=asked)]) as broker:
        peer, reader = Peer(broker), Peer(broker)
        await reader.connect("r")
        await reader.subscribe("t", qos=1)
        await peer.connect("p")
        for qos in (0, 1):
            for number in range(500):
                await peer.publish("t", b"%d" % number, qos=qos)
            for number in range(500):
                packet = await reader.expect(Publish)
                assert (packet.payload, packet.qos) == (b"%d" % number, qos)
                if qos:
                    reader.send(Puback(packet.packet_id))
        assert broker.clients["p"].info.publish_received == 0, "it leaves out what the fast lane took"
    assert asked == ["p t"]
