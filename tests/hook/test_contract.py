"""The contract of hooks, docs/hooks.md: one test or more for each numbered sentence.

This file has its first chapter, the rules for all; the others are in files beside it, which begin like it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from broker import Broker, HookBase, Message, ReasonCode, SubscribeRequest
from broker.hook.base import EVENTS
from broker.packet.packets import (
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.hook.made import (
    ASKED_AT_ONCE,
    CONTRACT,
    NEVER_WAITS,
    OF_THE_STORE,
    QUICK,
    TOLD_AT_ONCE,
    boom,
    hangs,
    hook,
    recorder,
)
from tests.peer import Peer, memory_broker, run_async, settle


def test_every_sentence_has_a_test() -> None:
    numbers = {int(number) for number in re.findall(r"^(\d+)\. ", CONTRACT.read_text(), re.MULTILINE)}
    files = "".join(path.read_text() for path in Path(__file__).parent.glob("test_contract*.py"))
    tested = {int(found) for found in re.findall(r"^(?:async )?def test_(\d\d)__", files, re.MULTILINE)}
    assert numbers == tested == set(range(1, max(numbers) + 1))


# ---- the rules for all


def test_01__a_hook_provides_what_it_overrides() -> None:
    assert HookBase().provides == frozenset()
    assert hook(on_publish=boom, can_read=boom).provides == {"on_publish", "can_read"}
    assert hook(**dict.fromkeys(EVENTS, boom)).provides == set(EVENTS)


@run_async
async def test_02__in_the_order_given() -> None:
    calls: list[str] = []
    hooks = [recorder(calls, name, "on_publish", "on_publish_received", "can_read") for name in "ab"]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        peer.send(Publish("t"))
        await peer.expect(Publish)
    assert calls == [
        *("a.on_publish", "b.on_publish", "a.on_publish_received", "b.on_publish_received"),
        *("a.can_read", "b.can_read"),
    ]


@run_async
async def test_03__init_before_the_first_listener() -> None:
    seen: list[Any] = []

    async def init(broker: Broker) -> None:
        seen.append((name := len(seen), broker.addresses, name))

    broker = memory_broker(hooks=[hook(init=init), hook(init=init)])
    async with broker:
        assert seen == [(0, [], 0), (1, [], 1)]
        assert broker.addresses == ["memory:"]


@run_async
async def test_04__init_that_raises_stops_the_start() -> None:
    stopped: list[str] = []
    good = [hook(stop=lambda name=name: stopped.append(name)) for name in "ab"]
    broker = memory_broker(hooks=[*good, hook(init=boom), hook(stop=lambda: stopped.append("never"))])
    with pytest.raises(RuntimeError, match="boom"):
        await broker.start()
    assert stopped == ["b", "a"]
    assert broker.addresses == []


@run_async
async def test_05__stop_last_first_after_the_last_connection(caplog: pytest.LogCaptureFixture) -> None:
    order: list[str] = []
    hooks = [
        hook(stop=lambda: order.append("a"), on_disconnect=lambda *args: order.append("gone")),
        hook(stop=boom),
        hook(stop=lambda: order.append("c")),
    ]
    async with memory_broker(hooks=hooks) as broker:
        await Peer(broker).connect("c")
    assert order == ["gone", "c", "a"]
    assert "failed in stop" in caplog.text


@run_async
async def test_06__a_plain_function_will_do() -> None:
    calls: list[str] = []
    waits = [event for event in EVENTS if event not in ("on_auth", "get_retained", *NEVER_WAITS)]
    async with memory_broker(hooks=[recorder(calls, "a", *waits)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        peer.send(Subscribe(1, [SubscribeRequest("t")]))
        await peer.expect(Suback)
        peer.send(Publish("t", b"x", retain=True))
        await peer.expect(Publish)
        peer.send(Unsubscribe(2, ["t"]))
        assert (await peer.expect(Unsuback)).reason_codes == [0]
        peer.send(Disconnect())
        await peer.expect_end()
        await settle(broker, "c")
    assert {call[2:] for call in calls} == set(waits) - {"on_session_resumed"}


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@run_async
async def test_07__once_per_delivery_never_waits() -> None:
    async def late(*args: Any) -> Any:
        return args[-1]

    drops: list[str] = []
    for method in ("on_publish_deliver", "can_read"):
        noted = hook(on_dropped=lambda client_id, message, reason: drops.append(reason))
        async with memory_broker(hooks=[hook(**{method: late}), noted]) as broker:
            peer = Peer(broker)
            await peer.connect("c")
            await peer.subscribe("t")
            peer.send(Publish("t"))
            await peer.expect_nothing()
    assert drops == ["hook_failed", "not_authorized"]


@run_async
async def test_07__a_coroutine_that_is_told_of_a_drop_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(hooks=[hook(on_dropped=hangs)]) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties={"maximum_packet_size": 20})
        await peer.subscribe("t")
        peer.send(Publish("t", b"x" * 20))
        await peer.expect_nothing()
    assert "failed in on_dropped" in caplog.text


@run_async
async def test_08__a_coroutine_has_its_time(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(QUICK, hooks=[hook(on_publish=hangs)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", qos=1) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert "failed in on_publish" in caplog.text


@pytest.mark.parametrize("event", [e for e in EVENTS if e not in (*OF_THE_STORE, "sys_values", "still_held")])
@pytest.mark.parametrize("failure", [boom, hangs])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_09__a_hook_that_fails_touches_nobody_else(
    event: str, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Client "bad" alone meets the failure; the bystander's service goes on before, during and after."""

    def only_for_bad(*args: Any) -> Any:
        who = getattr(args[0], "client_id", args[0])
        bad = who in ("bad", "bad/t") or (event == "store_retained" and args[0].topic_name == "bad/t")
        if bad:
            return failure()
        if event in TOLD_AT_ONCE:
            return None
        return True if event in ASKED_AT_ONCE else () if event == "get_retained" else args[-1]

    async def scene() -> None:
        async with memory_broker(QUICK, hooks=[hook(**{event: only_for_bad})]) as broker:
            bystander, bad = Peer(broker), Peer(broker)
            await bystander.connect("good")
            await bystander.subscribe("good/t")
            bad.send(Connect("bad", properties={"authentication_method": "M"} if event == "on_auth" else {}))
            bad.send(Subscribe(1, [SubscribeRequest("bad/t")]), Publish("bad/t", b"x", 1, True, packet_id=2))
            bad.send(Unsubscribe(3, ["bad/t"]), Disconnect(0x04))
            while await bad.recv() is not None:
                pass
            await settle(broker, "bad")
            await bystander.publish("good/t", b"still here", qos=0)
            assert (await bystander.expect(Publish)).payload == b"still here"
            assert list(broker.clients) == ["good"]

    asyncio.run(scene())
    never_called = (
        "on_session_resumed",
        "on_dropped",
        "on_acknowledged",
        "on_taken_back",
        "on_taken_run",
    )  # by this scene
    silent = event == "can_read" and failure is hangs  # a coroutine is simply not True
    if event not in never_called and not silent:
        assert "failed in" in caplog.text or "returned" in caplog.text


@run_async
async def test_10__only_the_client_it_was_called_for_waits() -> None:
    gate = asyncio.Event()

    async def slow(client: Any, message: Message) -> None:
        if client.client_id == "slow":
            await gate.wait()

    async with memory_broker(hooks=[hook(on_publish=slow)]) as broker:
        one, two = Peer(broker), Peer(broker)
        await one.connect("slow")
        await two.connect("quick")
        one.send(Publish("t", qos=1, packet_id=1))
        assert await two.publish("t", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS
        gate.set()
        assert (await one.expect(Puback)).packet_id == 1


@run_async
async def test_11__one_packet_after_the_other() -> None:
    seen: list[str] = []

    async def slow(client: Any, message: Message) -> None:
        seen.append(f"begin {message.topic_name}")
        await asyncio.sleep(0)
        seen.append(f"end {message.topic_name}")

    async with memory_broker(hooks=[hook(on_publish=slow)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        peer.send(Publish("1"), Publish("2"))
        await peer.expect_nothing()
    assert seen == ["begin 1", "end 1", "begin 2", "end 2"]


def test_log_names_hook_and_event(caplog: pytest.LogCaptureFixture) -> None:
    class Named(HookBase):
        id = "my-hook"

        async def on_connected(self, client: Any) -> None:
            raise RuntimeError("boom")

    async def scene() -> None:
        async with memory_broker(hooks=[Named()]) as broker:
            peer = Peer(broker)
            await peer.connect("c")
            await peer.expect_nothing()

    with caplog.at_level(logging.ERROR, "broker.hook"):
        asyncio.run(scene())
    assert "my-hook failed in on_connected" in caplog.text
    assert "RuntimeError: boom" in caplog.text
