"""The contract of hooks: the last word on a message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker import (
    AcknowledgeOnly,
    Capacity,
    Config,
    HookBase,
    Message,
    MqttError,
    NotAuthorized,
    QuotaExceeded,
    Version,
)
from broker.packet.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from tests.durable import broken_disk, recovered
from tests.hook.made import boom, hangs, hook, refusing
from tests.peer import Peer, memory_broker, run_async


@pytest.mark.parametrize("qos", [0, 1, 2])
@run_async
async def test_41__on_accepted_after_all_allowed_it(qos: int) -> None:
    seen: list[Any] = []
    later = hook(
        on_accepted=lambda client, message: seen.append((client.client_id, message.payload)),
        on_publish_received=lambda client, message: message.with_(payload=message.payload + b"!"),
    )

    async def wait(client: Any, message: Message) -> None:
        await asyncio.sleep(0)
        if message.payload == b"no":
            raise NotAuthorized

    async with memory_broker(hooks=[hook(on_publish=wait), later]) as broker:
        peer, reader = Peer(broker), Peer(broker)
        await peer.connect("c")
        await reader.connect("r")
        await reader.subscribe("t")
        for number, payload in enumerate((b"no", b"yes"), 1):
            await peer.publish("t", payload, qos=qos, packet_id=number)
        assert (await reader.expect(Publish)).payload == b"yes!"
        await broker.publish("t", b"of the program")
        assert (await reader.expect(Publish)).payload == b"of the program"
    assert seen == [("c", b"yes!")]


@pytest.mark.parametrize(
    ("failure", "code"), [(refusing(QuotaExceeded("full")), 0x97), (boom, 0x83), (hangs, 0x83)]
)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@run_async
async def test_41__on_accepted_refuses(failure: Any, code: int) -> None:
    async with memory_broker(hooks=[hook(on_accepted=failure)]) as broker:
        peer = Peer(broker)
        await peer.connect("c", will=Will("t", b"will"))
        await peer.subscribe("t")
        assert await peer.publish("t", b"1", qos=1, retain=True) == code
        assert await peer.publish("t", b"2", qos=2, packet_id=2) == code
        await peer.publish("t", b"3")
        await peer.expect_nothing()
        assert broker.stats.dropped == {"refused": 3}
        other = Peer(broker)
        await other.connect("o")
        await other.subscribe("t")
        peer.send(Disconnect(0x04))
        assert (await other.expect(Publish)).payload == b"will", "nobody is asked about it"


@pytest.mark.parametrize("event", ["on_publish", "on_publish_received", "on_accepted"])
@run_async
async def test_42__acknowledge_only(event: str, tmp_path: Path) -> None:
    later: list[Any] = []

    def once(client: Any, message: Message) -> Any:
        if message.payload == b"copy":
            raise AcknowledgeOnly
        return message

    hooks = [hook(**{event: once}), hook(on_accepted=lambda client, message: later.append(message.payload))]
    async with memory_broker(hooks=hooks, store=tmp_path / "broker.db") as broker:
        peer, vier = Peer(broker), Peer(broker, Version.MQTT_3_1_1)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await vier.connect("vier", clean_start=False)
        await peer.subscribe("t", qos=1)
        for each in (peer, vier):
            for qos in (0, 1, 2):
                assert await each.publish("t", b"copy", qos=qos, packet_id=7, retain=True) == 0
            await each.expect_nothing()
        assert broker.stats.dropped == {"not_routed": 6}
        assert later == [] and len(broker._core.retained) == 0
        assert not broker._core.sessions.get("c").inflight.held, "the identifier is free"  # type: ignore[union-attr]
        assert await vier.publish("t", b"x", qos=1) == 0
        assert (await peer.expect(Publish)).payload == b"x"


@run_async
async def test_42__an_acknowledgement_waits_for_what_is_on_its_way(tmp_path: Path) -> None:
    """The first try of the same message may have been on another connection, and not be stored yet."""

    def copies(client: Any, message: Message) -> None:
        if message.payload == b"copy":
            raise AcknowledgeOnly

    async with memory_broker(hooks=[hook(on_accepted=copies)], store=tmp_path / "broker.db") as broker:
        reader, first, second = Peer(broker), Peer(broker), Peer(broker)
        await reader.connect("r", properties={"session_expiry_interval": 60})
        await reader.subscribe("t", qos=1)
        await first.connect("1")
        await second.connect("2")
        with broken_disk(broker):
            first.send(Publish("t", b"x", 1, packet_id=1))
            second.send(Publish("t", b"copy", 1, packet_id=1))
            assert [(await each.expect(Puback)).reason_code for each in (first, second)] == [0x97, 0x97]
        await recovered(broker)
        assert await second.publish("t", b"copy", qos=1) == 0


@run_async
async def test_42__a_copy_at_qos_2_ends_its_flow_after_a_restart(tmp_path: Path) -> None:
    def copies(client: Any, message: Message) -> None:
        raise AcknowledgeOnly

    keep: Any = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    for packet in (Publish("t", b"copy", 2, packet_id=9), None):
        async with memory_broker(hooks=[hook(on_accepted=copies)], store=tmp_path / "broker.db") as broker:
            peer, reader = Peer(broker), Peer(broker)
            await peer.connect("c", **keep)
            await reader.connect("r")
            await reader.subscribe("#", qos=2)
            if packet is not None:
                peer.send(packet)
                assert (await peer.expect(Pubrec)).reason_code == 0
            else:
                peer.send(Pubrel(9))
                assert (await peer.expect(Pubcomp)).reason_code == 0
                assert broker.stats.dropped == {}, "it was counted when it came"
            await reader.expect_nothing()


@run_async
async def test_43__on_taken_back_once_for_what_is_refused_after_all(tmp_path: Path) -> None:
    accepted: list[bytes] = []
    taken_back: list[Any] = []
    note = hook(
        on_accepted=lambda client, message: accepted.append(message.payload),
        on_taken_back=lambda client, message: taken_back.append((client.client_id, message.payload)),
    )
    config = Config(capacity=Capacity(maximum_retained_bytes=60))
    async with memory_broker(config, hooks=[note], store=tmp_path / "broker.db") as broker:
        peer, reader = Peer(broker), Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await reader.connect("r", properties={"session_expiry_interval": 60})
        await reader.subscribe("t", qos=1)
        large = b"r" * 100
        assert await peer.publish("t", large, qos=1, retain=True) == 0x97
        assert await peer.publish("t", large, qos=2, retain=True) == 0x97
        assert taken_back == [("c", large)] * 2
        taken_back.clear()
        with broken_disk(broker):
            assert await peer.publish("t", b"1", qos=1) == 0x97
            assert await peer.publish("t", b"2", qos=2) == 0x97
        assert taken_back == [("c", b"1"), ("c", b"2")]
        await recovered(broker)
        assert await peer.publish("t", b"3", qos=1) == 0
        assert len(taken_back) == 2
    assert accepted == [large, large, b"1", b"2", b"3"]


@run_async
async def test_43__what_store_retained_refuses_is_taken_back() -> None:
    taken_back: list[bytes] = []

    async def full(message: Message) -> None:
        await asyncio.sleep(0)
        raise QuotaExceeded("full")

    note = hook(
        on_accepted=lambda client, message: None,
        on_taken_back=lambda client, message: taken_back.append(message.payload),
        store_retained=full,
    )
    async with memory_broker(hooks=[note]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", b"1", qos=1, retain=True) == 0x97
    assert taken_back == [b"1"]


@pytest.mark.parametrize(("failure", "code"), [(refusing(QuotaExceeded("full")), 0x97), (boom, 0x83)])
@run_async
async def test_43__what_a_hook_behind_it_refuses_is_taken_back(failure: Any, code: int) -> None:
    """But not for those that were not told, or that an AcknowledgeOnly follows."""
    taken_back: list[str] = []

    def told(name: str, accept: Any = lambda *args: None) -> HookBase:
        def note(client: Any, message: Message) -> None:
            taken_back.append(name)

        return hook(on_accepted=accept, on_taken_back=note)

    def decide(client: Any, message: Message) -> None:
        if message.payload == b"copy":
            raise AcknowledgeOnly
        failure()

    hooks = [told("first"), told("second"), told("refuses", decide), told("behind")]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", b"x", qos=1) == code
        assert taken_back == ["first", "second"]
        assert await peer.publish("t", b"copy", qos=1) == 0
        assert taken_back == ["first", "second"]


@run_async
async def test_44__notes_are_committed_with_the_message(tmp_path: Path) -> None:
    """Nobody reads it, and yet its acknowledgement waits for the note."""
    notes: list[Any] = []
    found: list[Any] = []

    def begin(broker: Any) -> None:
        notes[:] = [broker.notes("mine"), broker.notes("other")]
        found.append((notes[0].items(), notes[1].items(), notes[0].durable))

    made = hook(init=begin, on_accepted=lambda client, message: notes[0].put("last", message.payload))
    for number in (b"1", b"2"):
        async with memory_broker(hooks=[made], store=tmp_path / "broker.db") as broker:
            peer = Peer(broker)
            await peer.connect("c")
            with broken_disk(broker, full=False):
                assert await peer.publish("nobody/reads", number, qos=1) == 0x83
                with pytest.raises(MqttError):
                    notes[0].check()
            await recovered(broker)
            notes[0].check()
            assert await peer.publish("nobody/reads", number, qos=1) == 0x10
            assert notes[0].get("last") == number
            notes[1].put("gone", b"")
            notes[1].delete("gone")
            notes[1].put(number.decode(), b"kept")
            notes[1].delete("never was")
    assert found == [([], [], True), ([("last", b"1")], [("1", b"kept")], True)]


@run_async
async def test_44__notes_without_a_store() -> None:
    async with memory_broker() as broker:
        before = broker._core.budget.used
        notes = broker.notes("mine")
        assert not notes.durable
        notes.put("a", b"1")
        notes.put("a", b"22")
        assert broker.notes("mine").items() == [("a", b"22")]
        notes.delete("a")
        assert notes.get("a") is None
        assert broker._core.budget.used == before
        for owner in ("", "a/b"):
            with pytest.raises(ValueError, match="without a slash"):
                broker.notes(owner)
