"""After a kill or a stop everything goes on as after a network cut, and the time in between counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker import HookBase
from broker.config import Config
from broker.packet.packets import (
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.broker_scenes import V3, V5, config
from tests.durable import Machine, committed, journal_of
from tests.peer import Peer, run_async, settle

KINDS = pytest.mark.parametrize("kill", [True, False], ids=["kill", "stop"])
LASTING: dict[str, Any] = {"session_expiry_interval": 1000}


async def resume(machine: Machine, client_id: str = "c", *, present: bool = True, **fields: Any) -> Peer:
    """A client with Clean Start 0, which finds its session or does not."""
    fields.setdefault("properties", LASTING)
    peer = machine.peer(fields.pop("version", V5))
    connack = await peer.connect(client_id, clean_start=False, **fields)
    assert connack.session_present is present
    return peer


async def lasting(machine: Machine, client_id: str = "c", *filters: str, qos: int = 2, **fields: Any) -> Peer:
    """A client with a session that lasts, and subscriptions."""
    fields.setdefault("properties", LASTING)
    peer = machine.peer()
    await peer.connect(client_id, **fields)
    if filters:
        await peer.subscribe(*filters, qos=qos)
    return peer


async def away(machine: Machine, client_id: str = "c", *filters: str, qos: int = 2, **fields: Any) -> None:
    """The same, and it has gone away."""
    peer = await lasting(machine, client_id, *filters, qos=qos, **fields)
    peer.drop()
    await settle(machine.broker, client_id)


async def got(peer: Peer, *payloads: bytes, **fields: Any) -> list[Publish]:
    """Exactly these messages."""
    found = [await peer.expect(Publish) for _ in payloads]
    assert [packet.payload for packet in found] == [*payloads]
    for packet in found:
        assert {name: getattr(packet, name) for name in fields} == fields
    await peer.expect_nothing()
    return found


def watcher(ended: list[str]) -> HookBase:
    class Watch(HookBase):
        async def on_session_ended(self, client_id: str) -> None:
            ended.append(client_id)

    return Watch()


# ---- sessions and subscriptions


@KINDS
@pytest.mark.parametrize("version", [V3, V5])
@run_async
async def test_a_session_goes_on(tmp_path: Path, kill: bool, version: Any) -> None:
    async with Machine(tmp_path) as machine:
        properties = LASTING if version is V5 else {}
        peer = machine.peer(version)
        await peer.connect("c", clean_start=False, properties=properties)
        await peer.subscribe("a/+", "b", qos=1)
        await machine.restart_as(kill, down=900)
        await machine.broker.publish("a/x", b"queued", qos=2)
        peer = await resume(machine, version=version, properties=properties)
        await got(peer, b"queued", qos=1, dup=False, packet_id=1)
        peer.send(Unsubscribe(2, ["a/+"]))
        await peer.expect(Unsuback)
        await machine.restart_as(kill)
        await machine.broker.publish("a/x", b"no more")
        await machine.broker.publish("b", b"still", qos=1)
        peer = await resume(machine, version=version, properties=properties)
        await got(peer, b"queued", b"still")


@KINDS
@run_async
async def test_the_options_of_subscriptions_are_kept(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        peer = machine.peer()
        await peer.connect("c", properties=LASTING)
        for request, identifier in (
            (SubscribeRequest("a/#", 1, no_local=True), 7),
            (SubscribeRequest("a/b", 2, retain_as_published=True), 9),
        ):
            peer.send(Subscribe(1, [request], {"subscription_identifier": identifier}))
            await peer.expect(Suback)
        await machine.restart_as(kill)
        peer = await resume(machine)
        await machine.broker.publish("a/b", b"both", qos=2, retain=True)
        await machine.broker.publish("a/c", b"first", qos=2, retain=True)
        found = [await peer.expect(Publish) for _ in range(2)]
        assert sorted(found[0].properties["subscription_identifier"]) == [7, 9]
        assert [(packet.qos, packet.retain) for packet in found] == [(2, True), (1, False)]
        peer.send(Publish("a/c", b"own", 0))
        await peer.expect_nothing()


@KINDS
@pytest.mark.parametrize("how", ["clean start", "disconnect", "delete", "expired", "3.1.1"])
@run_async
async def test_a_session_that_is_over_stays_over(tmp_path: Path, kill: bool, how: str) -> None:
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "t")
        if how == "disconnect":
            peer.send(Disconnect(0, {"session_expiry_interval": 0}))
            await settle(machine.broker, "c")
        elif how == "delete":
            await machine.broker.delete_session("c")
        elif how == "expired":
            peer.drop()
            await settle(machine.broker, "c")
            await machine.advance(1000)
        else:
            other = machine.peer(V3 if how == "3.1.1" else V5)
            await other.connect("c")
            other.drop()
            await settle(machine.broker, "c")
        await machine.restart_as(kill)
        await machine.broker.publish("t", b"x", qos=1)
        peer = await resume(machine, present=False)
        await peer.expect_nothing()
        core = machine.broker._core
        assert len(core.sessions) == 1 and core.tree.count == 0


@KINDS
@run_async
async def test_one_that_resumed_with_interval_0_ends_with_its_connection(tmp_path: Path, kill: bool) -> None:
    """Already then: what its client will not come back for is not kept."""
    ended: list[str] = []
    async with Machine(tmp_path, hooks=[watcher(ended)]) as machine:
        await away(machine, "c", "t")
        await machine.broker.publish("t", b"x", qos=1)
        peer = await resume(machine, properties={})
        await got(peer, b"x")
        await machine.restart_as(kill)
        assert ended == ([] if kill else ["c"]), "nothing of it is in the store"
        await resume(machine, present=False)


@KINDS
@run_async
async def test_the_rest_of_a_session_s_life(tmp_path: Path, kill: bool) -> None:
    ended: list[str] = []
    async with Machine(tmp_path, hooks=[watcher(ended)]) as machine:
        await away(machine, "short", "t", properties={"session_expiry_interval": 100})
        await away(machine, "long", "t", properties={"session_expiry_interval": 200})
        await away(machine, "for ever", "t", properties={"session_expiry_interval": 0xFFFFFFFF})
        await machine.advance(30)
        await machine.restart_as(kill, down=80)
        await machine.broker.sweep()
        assert ended == ["short"], "it ended while the broker was down"
        await machine.advance(89)
        assert ended == ["short"]
        await machine.advance(2)
        assert ended == ["short", "long"]
        await machine.restart_as(kill, down=10**9)
        assert [session.client_id for session in machine.broker._core.sessions] == ["for ever"]


@run_async
async def test_a_session_that_ended_while_the_broker_was_down_is_not_resumed(tmp_path: Path) -> None:
    """Its client may come before the first look at deadlines."""
    async with Machine(tmp_path) as machine:
        await away(machine, "c", "t")
        await machine.stop(down=1000)
        peer = await resume(machine, present=False)
        await peer.expect_nothing()


@run_async
async def test_the_life_of_one_that_was_connected_is_counted_from_the_start(tmp_path: Path) -> None:
    ended: list[str] = []
    async with Machine(tmp_path, hooks=[watcher(ended)]) as machine:
        await lasting(machine, "c", "t")
        await machine.kill(down=5000)
        await machine.advance(999)
        assert ended == []
        await machine.advance(1)
        assert ended == ["c"]


@run_async
async def test_takeover_and_restart(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        old = await lasting(machine, "c", "t")
        await machine.broker.publish("t", b"1", qos=1)
        await got(old, b"1")
        new = await resume(machine)
        await got(new, b"1", dup=True)
        assert isinstance(await old.recv(), Disconnect)
        await machine.kill()
        await got(await resume(machine), b"1", dup=True, packet_id=1)


# ---- messages to a client


@KINDS
@run_async
async def test_queued_and_unacknowledged_messages_in_order(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        properties = {**LASTING, "receive_maximum": 2}
        peer = await lasting(machine, "c", "t", properties=properties)
        for number in range(5):
            await machine.broker.publish("t", b"%d" % number, qos=1)
        await got(peer, b"0", b"1", dup=False)
        await machine.restart_as(kill)
        await machine.broker.publish("t", b"5", qos=1)
        peer = await resume(machine, properties=properties)
        found = await got(peer, b"0", b"1", dup=True)
        assert [packet.packet_id for packet in found] == [1, 2]
        for number in range(4):
            peer.send(Puback(number + 1))
            again = await got(peer, b"%d" % (number + 2), dup=False)
            assert again[0].packet_id == number + 3
        for number in (5, 6):
            peer.send(Puback(number))
        await peer.expect_nothing()
        await machine.restart_as(kill)
        await (await resume(machine)).expect_nothing()


@KINDS
@pytest.mark.parametrize("step", ["sent", "received", "complete"])
@run_async
async def test_qos_2_to_a_client_at_each_step(tmp_path: Path, kill: bool, step: str) -> None:
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "t")
        await machine.broker.publish("t", b"x", qos=2)
        packet_id = (await peer.expect(Publish)).packet_id
        if step != "sent":
            peer.send(Pubrec(packet_id))
            assert (await peer.expect(Pubrel)).packet_id == packet_id
        if step == "complete":
            peer.send(Pubcomp(packet_id))
            await peer.expect_nothing()
        await machine.restart_as(kill)
        peer = await resume(machine)
        if step == "sent":
            await got(peer, b"x", dup=True, qos=2, packet_id=packet_id)
            peer.send(Pubrec(packet_id))
        if step != "complete":
            assert (await peer.expect(Pubrel)).packet_id == packet_id
            peer.send(Pubcomp(packet_id))
        await peer.expect_nothing()
        await machine.restart_as(kill)
        await (await resume(machine)).expect_nothing()


@KINDS
@run_async
async def test_released_and_unreleased_go_on_side_by_side(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "t")
        for payload, qos in ((b"a", 2), (b"b", 1), (b"c", 2), (b"d", 2)):
            await machine.broker.publish("t", payload, qos=qos)
        await got(peer, b"a", b"b", b"c", b"d")
        peer.send(Pubrec(3))
        await peer.expect(Pubrel)
        await machine.restart_as(kill)
        peer = await resume(machine)
        found = [await peer.recv() for _ in range(4)]
        order = [(type(each).__name__, getattr(each, "packet_id", 0)) for each in found]
        assert order == [("Publish", 1), ("Publish", 2), ("Pubrel", 3), ("Publish", 4)]
        await peer.expect_nothing()


@KINDS
@run_async
async def test_identifiers_of_what_is_unfinished_are_not_given_again(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "t")
        for number in range(3):
            await machine.broker.publish("t", b"%d" % number, qos=2)
        await got(peer, b"0", b"1", b"2")
        peer.send(Pubrec(2))
        await peer.expect(Pubrel)
        await machine.restart_as(kill)
        peer = await resume(machine)
        for _ in range(3):
            await peer.recv()
        await machine.broker.publish("t", b"new", qos=2)
        assert (await peer.expect(Publish)).packet_id not in (1, 2, 3)


@KINDS
@run_async
async def test_what_is_left_of_the_life_of_a_message(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "c", "t")
        for payload, seconds in ((b"short", 20), (b"long", 60), (b"edge", 22)):
            await machine.broker.publish("t", payload, qos=1, properties={"message_expiry_interval": seconds})
        await machine.broker.publish("t", b"for ever", qos=1)
        await machine.advance(10)
        await machine.restart_as(kill, down=12)
        found = await got(await resume(machine), b"long", b"for ever")
        assert found[0].properties == {"message_expiry_interval": 38}
        assert machine.broker.stats.dropped == {"expired": 2}


@run_async
async def test_properties_travel_through_the_store(tmp_path: Path) -> None:
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"\0\xff",
        "user_property": [("a", "1"), ("a", "2"), ("", "")],
    }
    async with Machine(tmp_path) as machine:
        await away(machine, "c", "#")
        await machine.broker.publish("t", "\u00e9\U0001f600", qos=1, retain=True, properties=properties)
        await machine.kill()
        found = await got(await resume(machine), "\u00e9\U0001f600".encode())
        assert found[0].properties == properties and found[0].retain is False


@KINDS
@run_async
async def test_queued_qos_0(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path, config(queue_qos_0=True)) as machine:
        await away(machine, "c", "t")
        for number in range(4):
            await machine.broker.publish("t", b"%d" % number, qos=number % 2)
        await machine.restart_as(kill)
        peer = await resume(machine)
        found = await got(peer, b"0", b"1", b"2", b"3", dup=False)
        assert [packet.qos for packet in found] == [0, 1, 0, 1]
        await machine.restart_as(kill)
        await got(await resume(machine), b"1", b"3", dup=True)


@KINDS
@run_async
async def test_a_retained_message_that_a_subscribe_asked_for(tmp_path: Path, kill: bool) -> None:
    """It stays RETAIN 1, whatever the subscription says of live ones."""
    async with Machine(tmp_path) as machine:
        await machine.broker.publish("t", b"kept", qos=1, retain=True)
        peer = await lasting(machine, "c", "t")
        await got(peer, b"kept", retain=True, dup=False)
        await machine.restart_as(kill)
        await got(await resume(machine), b"kept", retain=True, dup=True)


# ---- messages from a client


@KINDS
@pytest.mark.parametrize("step", ["held", "released"])
@run_async
async def test_qos_2_from_a_client_at_each_step(tmp_path: Path, kill: bool, step: str) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "t")
        peer = await lasting(machine, "p")
        peer.send(Publish("t", b"x", 2, True, packet_id=9))
        await peer.expect(Pubrec)
        if step == "released":
            peer.send(Pubrel(9))
            assert (await peer.expect(Pubcomp)).reason_code == 0
        await machine.restart_as(kill)
        peer = await resume(machine, "p")
        if step == "held":
            peer.send(Publish("t", b"x", 2, True, dup=True, packet_id=9))
            assert (await peer.expect(Pubrec)).reason_code in (0, 0x10)
            assert len(machine.broker._core.retained) == 0, "it is routed and retained at PUBREL"
        peer.send(Pubrel(9))
        assert (await peer.expect(Pubcomp)).reason_code == (0 if step == "held" else 0x92)
        await got(await resume(machine, "s"), b"x", dup=False)
        assert len(machine.broker._core.retained) == 1


# ---- retained messages


@KINDS
@run_async
async def test_retained_messages(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        broker = machine.broker
        for topic_name, payload in (("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"new")):
            await broker.publish(topic_name, payload, qos=1, retain=True)
        await broker.publish("b", b"", qos=1, retain=True)
        await broker.publish("d", b"qos 0", retain=True)
        for name, seconds in (("e", 30), ("f", 60)):
            properties = {"message_expiry_interval": seconds}
            await broker.publish(name, b"x", qos=1, retain=True, properties=properties)
        await machine.advance(20)
        await machine.restart_as(kill, down=15)
        peer = machine.peer()
        await peer.connect("late")
        await peer.subscribe("#", qos=1)
        found = {(each := await peer.expect(Publish)).topic_name: each for _ in range(4)}
        await peer.expect_nothing()
        assert {name: (each.payload, each.qos) for name, each in found.items()} == {
            "a": (b"new", 1),
            "c": (b"3", 1),
            "d": (b"qos 0", 0),
            "f": (b"x", 1),
        }
        assert found["f"].properties == {"message_expiry_interval": 25}
        await machine.broker.sweep()
        assert len(machine.broker._core.retained) == 4
        await machine.broker.publish("a", b"", qos=1, retain=True)
        await machine.restart_as(kill, down=1000)
        assert len(machine.broker._core.retained) == 3
        await machine.broker.sweep()
        assert len(machine.broker._core.retained) == 2


# ---- wills


async def will_seen(machine: Machine, seconds: float) -> None:
    """The will comes after *seconds*, not before."""
    peer = await resume(machine, "s")
    if seconds:
        await machine.advance(seconds - 0.5)
        await peer.expect_nothing()
        await machine.advance(0.5)
    else:
        await machine.broker.sweep()
    await got(peer, b"gone")


@KINDS
@run_async
async def test_a_will_that_waits_goes_on_waiting(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "w", qos=1)
        will = Will("w", b"gone", 1, properties={"will_delay_interval": 60})
        await away(machine, "c", will=will)
        await machine.advance(10)
        await machine.restart_as(kill, down=20)
        await will_seen(machine, 30)
        await machine.restart_as(kill, down=1000)
        await machine.broker.sweep()
        assert machine.broker._core.sessions.get("c") is None


@KINDS
@run_async
async def test_a_will_that_fell_due_while_the_broker_was_down(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "w", qos=1)
        await away(machine, "c", will=Will("w", b"gone", 1, properties={"will_delay_interval": 60}))
        await machine.restart_as(kill, down=100)
        await will_seen(machine, 0)
        await machine.restart_as(kill)
        await got(await resume(machine, "s"), b"gone", dup=True)


@run_async
async def test_the_delay_of_who_was_connected_counts_from_the_start_after_a_kill(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "w", qos=1)
        await lasting(machine, "c", will=Will("w", b"gone", 1, properties={"will_delay_interval": 60}))
        await machine.kill(down=50)
        await will_seen(machine, 60)


@run_async
async def test_it_counts_from_the_end_of_the_connection_after_a_stop(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "w", qos=1)
        await lasting(machine, "c", will=Will("w", b"gone", 1, properties={"will_delay_interval": 60}))
        await machine.stop(down=50)
        await will_seen(machine, 10)


@KINDS
@run_async
async def test_one_who_comes_back_in_time_takes_its_will_back(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "w", qos=1)
        await away(machine, "c", will=Will("w", b"gone", 1, properties={"will_delay_interval": 60}))
        await machine.restart_as(kill, down=30)
        await resume(machine, "c")
        await machine.advance(500)
        await machine.restart_as(kill, down=10)
        await machine.broker.sweep()
        await (await resume(machine, "s")).expect_nothing()


@KINDS
@pytest.mark.parametrize("delay", [0, 60])
@run_async
async def test_the_will_of_a_session_that_ends_with_its_connection(
    tmp_path: Path, kill: bool, delay: int
) -> None:
    ended: list[str] = []
    async with Machine(tmp_path, hooks=[watcher(ended)]) as machine:
        await away(machine, "s", "w", qos=1)
        peer = machine.peer()
        await peer.connect("c", will=Will("w", b"gone", 1, True, {"will_delay_interval": delay}))
        await machine.restart_as(kill, down=10)
        assert ended == ["c"]
        await got(await resume(machine, "s"), b"gone", dup=False)
        assert len(machine.broker._core.retained) == 1
        await machine.restart_as(kill, down=10)
        await got(await resume(machine, "s"), b"gone", dup=True)
        assert [session.client_id for session in machine.broker._core.sessions] == ["s"]


@KINDS
@run_async
async def test_a_will_that_disconnect_deleted(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "w", properties={"session_expiry_interval": 0xFFFFFFFF})
        for client_id, properties in (("0", {}), ("n", LASTING)):
            peer = machine.peer()
            await peer.connect(client_id, will=Will("w", b"gone", 1), properties=properties)
            peer.send(Disconnect())
            await settle(machine.broker, client_id)
        await machine.restart_as(kill, down=2000)
        await machine.broker.sweep()  # the session of "n" ends
        await (await resume(machine, "s")).expect_nothing()


@run_async
async def test_hooks_are_asked_about_a_will_after_a_restart(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    class Ask(HookBase):
        async def on_publish(self, client: Any, message: Any) -> None:
            asked.append((client.client_id, client.user_name))

    async with Machine(tmp_path, hooks=[Ask()]) as machine:
        will = Will("w", b"gone", 1, properties={"will_delay_interval": 60})
        await away(machine, "waits", user_name="ann", will=will)
        await lasting(machine, "connected", user_name="bob", will=will)
        peer = machine.peer()
        await peer.connect("ends", user_name="cid", will=will)
        await machine.kill(down=10)
        assert asked == [("ends", "cid")]
        await machine.advance(60)
        assert sorted(asked) == [("connected", "bob"), ("ends", "cid"), ("waits", "ann")]


# ---- shared subscriptions


@KINDS
@run_async
async def test_a_shared_queue_goes_on_and_is_handed_on(tmp_path: Path, kill: bool) -> None:
    async with Machine(tmp_path) as machine:
        for client_id in ("one", "two"):
            await away(machine, client_id, "$share/g/t", qos=1)
        for number in range(4):
            await machine.broker.publish("t", b"%d" % number, qos=1)
        await machine.restart_as(kill)
        peer = await resume(machine, "one")
        await got(peer, b"0", b"2", dup=False)
        await machine.broker.publish("t", b"4", qos=1)
        assert (await peer.expect(Publish)).payload == b"4", "who is there comes first"
        assert await machine.broker.delete_session("two")
        await got(peer, b"1", b"3")


# ---- who it belongs to


@run_async
async def test_a_session_belongs_to_its_user_after_a_restart(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "c", user_name="ann")
        await machine.kill()
        peer = machine.peer()
        peer.send(Connect("c", user_name="bob", clean_start=False))
        refusal = await peer.recv()
        assert getattr(refusal, "reason_code", None) == 0x87
        await resume(machine, user_name="ann")


@run_async
async def test_a_broker_with_nothing_to_keep_keeps_nothing(tmp_path: Path) -> None:
    async with Machine(tmp_path, Config()) as machine:
        peer = machine.peer()
        await peer.connect("c")
        await peer.subscribe("t", qos=2)
        for qos in (0, 1, 2):
            await machine.broker.publish("t", b"%d" % qos, qos=qos)
        await got(peer, b"0", b"1", b"2")
        await committed(machine.broker)
        assert journal_of(machine.broker).commits == 0
        await machine.kill()
        assert len(machine.broker._core.sessions) == 0
