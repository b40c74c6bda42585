"""The contract of hooks: what has been taken from a client, and what is held until a hook has it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker import (
    AcknowledgeOnly,
    Broker,
    Capacity,
    Config,
    Message,
    MqttError,
    QuotaExceeded,
    ReasonCode,
    Version,
)
from broker.hook.base import Hold
from broker.packet.packets import Pingreq, Pingresp, Puback, Publish, Pubrec, Pubrel, Will
from broker.packet.reader import PacketReader
from tests.hook.made import boom, hook, recorder, refusing
from tests.peer import Peer, memory_broker, run_async, settle


@run_async
async def test_45__on_taken_after_all_others_and_before_anybody_is_sent_it() -> None:
    calls: list[str] = []
    accepted: list[Any] = []

    def note(client: Any, message: Message, dup: bool, origin: str) -> None:
        calls.append("accepted")
        who = None if client is None else client.client_id
        accepted.append((who, message.topic_name, message.payload, message.qos, dup, origin))

    def change(client: Any, message: Message) -> Message:
        return message.with_(payload=b"changed")

    hooks = [
        hook(on_taken=note),
        hook(on_publish_received=change),
        recorder(calls, "b", "on_publish", "on_delivered"),
    ]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c", will=Will("w", b"will"))
        await peer.subscribe("t")
        peer.send(Publish("t", b"0"))
        await peer.expect(Publish)
        assert calls == ["b.on_publish", "accepted", "b.on_delivered"]
        peer.send(Publish("u", b"2", 2, packet_id=7), Publish("u", b"2", 2, packet_id=7, dup=True), Pubrel(7))
        await peer.expect_end() if False else None
        for _ in range(2):
            await peer.expect(Pubrec)
        peer.drop()
        await settle(broker, "c")
        await broker.publish("p", b"program", qos=1)
        broker._publish_sys()
    kinds = [each for each in accepted if each[5] != "sys"]
    assert kinds == [
        ("c", "t", b"changed", 0, False, "client"),
        ("c", "u", b"changed", 2, False, "client"),
        ("c", "w", b"changed", 0, False, "will"),
        (None, "p", b"program", 1, False, "program"),
    ]
    assert {(each[0], each[5]) for each in accepted[len(kinds) :]} == {(None, "sys")}


@pytest.mark.parametrize("failure", [refusing(QuotaExceeded("full")), boom, lambda *args: "no Hold"])
@run_async
async def test_45__it_may_refuse_what_a_client_or_the_program_published(failure: Any) -> None:
    async with memory_broker(hooks=[hook(on_taken=failure)]) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("#")
        await peer.connect("c", will=Will("will", b"all the same"))
        refused = ReasonCode.QUOTA_EXCEEDED if failure not in (boom,) else 0x83
        for qos in (1, 2):
            code = await peer.publish("t", b"x", qos=qos, retain=True, packet_id=qos)
            assert code in (refused, 0x83)
        with pytest.raises(MqttError):
            await broker.publish("t", b"x", qos=1)
        assert len(broker._core.retained) == 0
        assert not peer_session(broker, "c").inflight.held
        peer.drop()
        assert (await watcher.expect(Publish)).topic_name == "will"
        await watcher.expect_nothing()


def peer_session(broker: Broker, client_id: str) -> Any:
    return broker._core.sessions.get(client_id)


@run_async
async def test_46__acknowledgements_wait_in_order_and_the_client_is_read_on() -> None:
    futures: dict[str, asyncio.Future[None]] = {}

    def hold(client: Any, message: Message, dup: bool, origin: str) -> Any:
        future = futures.get(message.topic_name)
        return None if future is None else Hold(acknowledgement=future)

    async with memory_broker(hooks=[hook(on_taken=hold)]) as broker:
        futures["a"] = asyncio.get_running_loop().create_future()
        futures["b"] = asyncio.get_running_loop().create_future()
        peer, watcher = Peer(broker), Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("#", qos=0)
        await peer.connect("c")
        peer.send(Publish("a", b"1", 1, packet_id=1), Publish("free", b"2", 1, packet_id=2))
        peer.send(Publish("b", b"3", 2, packet_id=3), Publish("a", b"4", 1, packet_id=4))
        for payload in (b"1", b"2", b"4"):  # QoS 2 is routed at PUBREL
            assert (await watcher.expect(Publish)).payload == payload
        await peer.expect_nothing()
        futures["b"].set_result(None)
        await peer.expect_nothing()
        futures["a"].set_result(None)
        answers = [await peer.expect(kind) for kind in (Puback, Puback, Pubrec, Puback)]
        assert [answer.packet_id for answer in answers] == [1, 2, 3, 4]
        assert all(answer.reason_code == 0 for answer in answers)


@pytest.mark.parametrize("version", [Version.MQTT_5, Version.MQTT_3_1_1])
@run_async
async def test_46__an_error_refuses_what_was_held(version: Version) -> None:
    held: list[asyncio.Future[None]] = []

    def hold(client: Any, message: Message, dup: bool, origin: str) -> Any:
        return Hold(acknowledgement=held[0]) if message.topic_name == "held" else None

    async with memory_broker(hooks=[hook(on_taken=hold)]) as broker:
        held.append(asyncio.get_running_loop().create_future())
        peer = Peer(broker, version)
        await peer.connect("c")
        peer.send(Publish("held", b"1", 1, packet_id=1), Publish("held", b"2", 2, packet_id=2))
        peer.send(Publish("free", b"3", 1, packet_id=3))
        await peer.expect_nothing()
        held[0].set_exception(QuotaExceeded("the log is full"))
        if version is Version.MQTT_5:
            assert (await peer.expect(Puback)).reason_code == ReasonCode.QUOTA_EXCEEDED
            assert (await peer.expect(Pubrec)).reason_code == ReasonCode.QUOTA_EXCEEDED
            assert (await peer.expect(Puback)).reason_code in (0, 0x10)
            assert not peer_session(broker, "c").inflight.held
        else:
            await peer.expect_end()
    assert not held[0].cancelled()


@run_async
async def test_46__a_repeated_qos_2_message_waits_for_what_the_first_waited_for() -> None:
    held: list[asyncio.Future[None]] = []
    hold = hook(on_taken=lambda *args: Hold(acknowledgement=held[0]))
    async with memory_broker(hooks=[hold]) as broker:
        held.append(asyncio.get_running_loop().create_future())
        peer, again = Peer(broker), Peer(broker)
        await peer.connect("c", clean_start=False, properties={"session_expiry_interval": 60})
        peer.send(Publish("t", b"1", 2, packet_id=1))
        await peer.expect_nothing()
        peer.drop()
        await again.connect("c", clean_start=False)
        again.send(Publish("t", b"1", 2, packet_id=1, dup=True))
        await again.expect_nothing()
        held[0].set_result(None)
        await again.expect(Pubrec)


@run_async
async def test_46__the_program_waits_as_well_and_cancels_nothing() -> None:
    held: list[asyncio.Future[None]] = []
    hold = hook(on_taken=lambda *args: Hold(acknowledgement=held[0], reading=held[0]))
    async with memory_broker(hooks=[hold]) as broker:
        held.append(asyncio.get_running_loop().create_future())
        task = asyncio.create_task(broker.publish("t", b"1", qos=1))
        other = asyncio.create_task(broker.publish("t", b"1", qos=1))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert not held[0].cancelled() and not other.done()
        held[0].set_result(None)
        assert await other == ReasonCode.NO_MATCHING_SUBSCRIBERS


@run_async
async def test_46__a_client_that_must_wait_is_not_read() -> None:
    futures: list[asyncio.Future[None]] = []
    seen: list[str] = []

    def hold(client: Any, message: Message, dup: bool, origin: str) -> Any:
        seen.append(message.topic_name)
        return Hold(reading=futures[0]) if message.topic_name == "full" else None

    async with memory_broker(hooks=[hook(on_taken=hold), hook(on_taken=hold)]) as broker:
        futures.append(asyncio.get_running_loop().create_future())
        peer, other, gone = Peer(broker), Peer(broker), Peer(broker)
        await peer.connect("c")
        await other.connect("o")
        await gone.connect("g")
        for each in (peer, gone):
            each.send(Publish("full", b""), Publish("behind", b""))
        assert await other.publish("free", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS
        assert "behind" not in seen
        gone.drop()
        await broker.disconnect("g")
        assert not futures[0].done()
        futures[0].set_result(None)
        await peer.expect_nothing()
        assert seen.count("behind") == 2


@pytest.mark.parametrize("holds", [False, True])
@run_async
async def test_55__runs_of_the_fast_lane_in_order_with_the_rest(holds: bool) -> None:
    seen: list[Any] = []

    def single(client: Any, message: Message, dup: bool, origin: str) -> None:
        seen.append(message.payload)

    def run(client: Any, packets: bytes, count: int) -> None:
        reader = PacketReader()
        reader.version = Version.MQTT_5
        found = [packet for packet in reader.feed(packets) if isinstance(packet, Publish)]
        assert len(found) == count and client.client_id == "c" and not reader.partial
        seen.append([(packet.topic_name, packet.payload) for packet in found])

    made = hook(on_taken=single, on_taken_run=run)
    made.holds = holds
    config = Config(capacity=Capacity(fast_lane=True))
    async with memory_broker(config, hooks=[made]) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await peer.connect("c")
        await watcher.connect("w")
        await watcher.subscribe("#")
        peer.send(Publish("t", b"names it", properties={"topic_alias": 1}))
        await peer.expect_nothing()
        peer.send(Publish("t", b"0"), Pingreq(), Publish("u", b"1"))
        await peer.expect(Pingresp)
        peer.send(Publish("", b"2", properties={"topic_alias": 1}))
        await peer.expect_nothing()
        peer.send(Publish("t", b"3", 1, packet_id=5))
        await peer.expect(Puback)
        peer.send(Publish("u", b"4"), Publish("t", b"5", 2, packet_id=9), Publish("u", b"6"))
        await peer.expect(Pubrec)
        await peer.expect_nothing()
    runs = [pair for part in seen if isinstance(part, list) for pair in part]
    flat = [each for part in seen for each in (part if isinstance(part, list) else [("", part)])]
    assert [payload for _, payload in flat] == [b"names it", *(b"%d" % n for n in range(7))]
    assert runs[:3] == [("t", b"0"), ("u", b"1"), ("t", b"2")]
    assert (("t", b"3") in runs) is not holds


@run_async
async def test_56__still_held_is_asked_before_a_copy_is_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept: Any = None

    def copy(client: Any, message: Message) -> None:
        raise AcknowledgeOnly("a copy")

    keeps = hook(on_accepted=copy, still_held=lambda: kept)
    async with memory_broker(hooks=[hook(still_held=boom), keeps]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", qos=1) == 0
        assert "failed in still_held" in caplog.text
        kept = asyncio.get_running_loop().create_future()
        peer.send(Publish("t", b"", 1, packet_id=2))
        await peer.expect_nothing()
        kept.set_result(None)
        assert (await peer.expect(Puback)).reason_code == 0
        kept = asyncio.get_running_loop().create_future()
        kept.set_exception(QuotaExceeded("no"))
        assert await peer.publish("t", qos=1) == ReasonCode.QUOTA_EXCEEDED
        kept = 5
        assert await peer.publish("t", qos=1) == 0
        assert "still_held" in caplog.records[-1].getMessage()


@run_async
async def test_56__still_held_is_asked_before_the_store_speaks_of_a_message(tmp_path: Path) -> None:
    kept = asyncio.get_running_loop().create_future()
    path = tmp_path / "broker.db"
    keeping: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    async with memory_broker(hooks=[hook(still_held=lambda: kept)], store=path) as broker:
        peer = Peer(broker)
        await peer.connect("c", **keeping)
        peer.send(Publish("t", b"", 2, packet_id=1))
        await peer.expect_nothing()
        kept.set_result(None)
        assert (await peer.expect(Pubrec)).packet_id == 1
