"""What waits for the disk and what does not, in a broker whose disk stands still; and what costs no write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker import BrokerError, HookBase, NotAuthorized
from broker.config import Config, Store
from broker.packet.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
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
from broker.store.base import Batch, Fsync, Table
from tests.broker_scenes import V3, config
from tests.durable import Machine, broken_disk, committed, failed, journal_of, recovered, slow_disk, until
from tests.peer import Peer, memory_broker, run_async, settle
from tests.test_restart import LASTING, away, got, lasting, resume
from tests.wire import turns


async def waits(peer: Peer, *packets: Packet) -> None:
    """Nothing comes in answer to *packets* but what a ping gets."""
    peer.send(*packets)
    await peer.expect_nothing()
    await turns(20)
    await peer.expect_nothing()


# ---- what waits


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (Publish("t", b"x", 1, packet_id=5), Puback),
        (Publish("none", b"x", 1, True, packet_id=5), Puback),
        (Publish("none", b"x", 2, packet_id=5), Pubrec),
        (Pubrel(9), Pubcomp),
    ],
    ids=["PUBACK", "PUBACK of a retained message", "PUBREC", "PUBCOMP"],
)
@run_async
async def test_acknowledgements_of_messages(
    tmp_path: Path, packet: Packet, answer: type[Puback | Pubrec | Pubcomp]
) -> None:
    """They wait; after a kill in this moment all of it is as if it had never come, else it is there."""
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "t", qos=1)
        peer = await lasting(machine, "p")
        peer.send(Publish("t", b"held", 2, packet_id=9))
        await peer.expect(Pubrec)
        async with slow_disk(machine.broker):
            await waits(peer, packet)
        assert (await peer.expect(answer)).reason_code in (0, 0x10)
        async with slow_disk(machine.broker):
            await machine.kill(at_once=True)
        payload = b"held" if answer is Pubcomp else b"x"
        routed = answer is Pubcomp or getattr(packet, "topic_name", "") == "t"
        await got(await resume(machine, "s"), *[payload] * routed)


@pytest.mark.parametrize("kind", ["qos 1", "retained", "qos 2", "release"])
@run_async
async def test_what_was_not_acknowledged_may_be_lost_and_is_not_there_by_half(
    tmp_path: Path, kind: str
) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "t", qos=1)
        peer = await lasting(machine, "p")
        peer.send(Publish("t", b"held", 2, packet_id=9))
        await peer.expect(Pubrec)
        async with slow_disk(machine.broker):
            await waits(
                peer,
                {
                    "qos 1": Publish("t", b"x", 1, packet_id=5),
                    "retained": Publish("t", b"x", 1, True, packet_id=5),
                    "qos 2": Publish("t", b"x", 2, packet_id=5),
                    "release": Pubrel(9),
                }[kind],
            )
            await machine.kill(at_once=True)
        core = machine.broker._core
        assert len(core.retained) == 0
        session = core.sessions.get("p")
        assert session is not None and {*session.inflight.held} == {9}
        await (await resume(machine, "s")).expect_nothing()
        peer = await resume(machine, "p")
        peer.send(Pubrel(9))
        assert (await peer.expect(Pubcomp)).reason_code == 0


@run_async
async def test_suback_and_unsuback(tmp_path: Path) -> None:
    """All behind them waits as well; what came before has left."""
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "a")
        await machine.broker.publish("r", b"kept", retain=True, qos=1)
        async with slow_disk(machine.broker):
            peer.send(
                Publish("a", b"before"),
                Subscribe(2, [SubscribeRequest("r", 1)]),
                Publish("a", b"behind"),
                Pingreq(),
                Unsubscribe(3, ["a"]),
            )
            assert (await peer.expect(Publish)).payload == b"before"
            await turns(50)
        assert (await peer.expect(Suback)).reason_codes == [1]
        assert (await peer.expect(Publish)).payload == b"kept"
        assert (await peer.expect(Publish)).payload == b"behind"
        await peer.expect(Pingresp)
        assert (await peer.expect(Unsuback)).reason_codes == [0]
        await machine.kill()
        session = machine.broker._core.sessions.get("c")
        assert session is not None and [*session.subscriptions] == ["r"]


@pytest.mark.parametrize("case", ["new", "resumed", "clean start", "will", "interval 0"])
@run_async
async def test_connack(tmp_path: Path, case: str) -> None:
    async with Machine(tmp_path) as machine:
        if case in ("resumed", "clean start", "interval 0"):
            await away(machine, "c", "t")
        peer = machine.peer()
        async with slow_disk(machine.broker):
            lasts = {} if case in ("will", "interval 0") else LASTING
            will = Will("w", b"x") if case == "will" else None
            peer.send(Connect("c", clean_start=case == "clean start", properties=lasts, will=will), Pingreq())
            await turns(50)
            assert not peer._received and "c" in machine.broker.clients
        present = case in ("resumed", "interval 0")
        assert (await peer.expect(Connack)).session_present is present
        await peer.expect(Pingresp)


@pytest.mark.parametrize("clean", [True, False])
@run_async
async def test_connack_of_a_client_without_anything_to_keep(tmp_path: Path, clean: bool) -> None:
    async with Machine(tmp_path) as machine:
        peer = machine.peer()
        async with slow_disk(machine.broker):
            await peer.connect("c", clean_start=clean)
            await peer.subscribe("t", qos=2)
            await peer.publish("t", b"x", qos=0)
            assert (await peer.expect(Publish)).payload == b"x"
            for qos in (1, 2):
                peer.send(Publish("none", b"x", qos, packet_id=3))
                assert (await peer.recv()).reason_code == 0x10  # type: ignore[union-attr]
            peer.send(Unsubscribe(3, ["t"]))
            await peer.expect(Unsuback)


@run_async
async def test_qos_0_and_reading_do_not_wait(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "t")
        await machine.broker.publish("t", b"stored", qos=1)
        await got(peer, b"stored")
        async with slow_disk(machine.broker):
            peer.send(Publish("t", b"qos 0"), Puback(1))
            await got(peer, b"qos 0")
            await machine.broker.publish("t", b"at once", qos=0)
            await got(peer, b"at once")


@run_async
async def test_qos_1_goes_to_who_is_there_before_it_is_stored_and_qos_2_does_not(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "+")
        first, second = machine.peer(), machine.peer()
        await first.connect("first")
        await second.connect("second")
        async with slow_disk(machine.broker):
            first.send(Publish("one", b"1", 1, packet_id=1))
            await got(peer, b"1", packet_id=1)
            await first.expect_nothing()
            second.send(Publish("two", b"2", 2, packet_id=2), Pubrel(2))
            assert (await second.expect(Pubrec)).packet_id == 2, "nothing is held for this publisher"
            await peer.expect_nothing()
        await got(peer, b"2", packet_id=2)
        assert (await first.expect(Puback)).packet_id == 1
        assert (await second.expect(Pubcomp)).packet_id == 2


@run_async
async def test_pubrel_waits_for_its_pubrec(tmp_path: Path) -> None:
    """After PUBREL the client may forget the identifier: PUBLISH must not come again."""
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "t")
        await machine.broker.publish("t", b"x", qos=2)
        await got(peer, b"x")
        async with slow_disk(machine.broker):
            await waits(peer, Pubrec(1))
            again = await_connect(machine)
            await turns(50)
            assert not again._received, "nor on the next connection"
        await again.expect(Connack)
        assert (await again.expect(Pubrel)).packet_id == 1


def await_connect(machine: Machine) -> Peer:
    """A takeover of "c" whose CONNACK is not there yet."""
    peer = machine.peer()
    peer.send(Connect("c", clean_start=False, properties=LASTING))
    return peer


@run_async
async def test_publish_of_the_program_returns_after_the_commit(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "c", "t")
        async with slow_disk(machine.broker):
            publishing = asyncio.ensure_future(machine.broker.publish("t", b"1", qos=1))
            await machine.broker.publish("t", b"0", qos=0)
            await machine.broker.publish("none", b"2", qos=2)
            await turns(50)
            assert not publishing.done()
        assert await publishing == 0
        await machine.kill()
        await got(await resume(machine), b"1")


@run_async
async def test_the_program_may_publish_while_the_broker_runs_and_not_else(tmp_path: Path) -> None:
    """What it gave before would be taken for what the file has already."""
    broker = memory_broker(config(), store=tmp_path / "broker.db")
    with pytest.raises(BrokerError):
        await broker.publish("t", b"x", retain=True)
    async with broker:
        await broker.publish("t", b"x", retain=True)
    with pytest.raises(BrokerError):
        await broker.publish("t", b"x", qos=1)


# ---- the order of answers


class Refusing(HookBase):
    async def on_publish(self, client: Any, message: Any) -> None:
        if message.topic_name == "no":
            raise NotAuthorized("no")


@run_async
async def test_a_refused_message_is_answered_in_its_turn(tmp_path: Path) -> None:
    """PUBACK and PUBREC each come in the order of their PUBLISH [MQTT-4.6.0-2, MQTT-4.6.0-3]."""
    async with Machine(tmp_path, hooks=[Refusing()]) as machine:
        await away(machine, "s", "t", qos=1)
        peer = await lasting(machine, "p")
        packets: list[Packet] = []
        for number in range(0, 12, 4):
            packets += [
                Publish("t", b"x", 1, packet_id=number + 1),
                Publish("no", b"x", 1, packet_id=number + 2),
                Publish("t", b"x", 2, packet_id=number + 3),
                Publish("no", b"x", 2, packet_id=number + 4),
            ]
        packets += [Publish("t", b"in use", 1, packet_id=3)]
        async with slow_disk(machine.broker):
            peer.send(*packets)
            await turns(50)
        answers = [await peer.recv() for _ in packets]
        for kind in (Puback, Pubrec):
            found = [each.packet_id for each in answers if isinstance(each, kind)]
            assert found == [each.packet_id for each in packets if each.qos == (1 if kind is Puback else 2)]  # type: ignore[attr-defined]
        assert [each.reason_code for each in answers if isinstance(each, Puback)] == [0, 0x87] * 3 + [0x91]


@pytest.mark.parametrize("version", [V3, None])
@run_async
async def test_a_full_disk_refuses_in_order(tmp_path: Path, version: Any) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "t", qos=1)
        peer = machine.peer(*([version] if version else []))
        await peer.connect("p")
        await committed(machine.broker)
        with broken_disk(machine.broker):
            peer.send(
                Publish("t", b"1", 1, packet_id=1),
                Publish("none", b"2", 1, packet_id=2),
                Publish("t", b"3", 1, packet_id=3),
                Publish("none", b"4", 2, packet_id=4),
            )
            if version is V3:
                await peer.expect_end()
            else:
                found = [(each.packet_id, each.reason_code) for each in [await peer.recv() for _ in range(4)]]  # type: ignore[union-attr]
                assert [each for each in found if each[0] != 4] == [(1, 0x97), (2, 0x10), (3, 0x97)]
        await recovered(machine.broker)
        await (await resume(machine, "s")).expect_nothing()


@run_async
async def test_a_refused_message_leaves_what_was_retained_before(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await machine.broker.publish("r", b"old", qos=1, retain=True)
        peers = [machine.peer() for _ in range(3)]
        for number, peer in enumerate(peers):
            await peer.connect(f"p{number}")
        await committed(machine.broker)
        with broken_disk(machine.broker):
            for number, peer in enumerate(peers):
                peer.send(Publish("r", b"%d" % number, 1, True, packet_id=1))
            for peer in peers:
                assert (await peer.expect(Puback)).reason_code == 0x97
        await recovered(machine.broker)
        for kill in (None, True):
            if kill:
                await machine.kill()
            late = machine.peer()
            await late.connect("late")
            await late.subscribe("r")
            await got(late, b"old")


# ---- hooks that wait do not make others' changes ours


def slow_hook(event: str, go_on: asyncio.Event) -> HookBase:
    async def wait(self: Any, client: Any, *args: Any) -> Any:
        if client.client_id == "slow":
            await go_on.wait()
        return args[0] if args else None

    return type("Slow", (HookBase,), {event: wait})()


@pytest.mark.parametrize(
    ("event", "packet", "answer"),
    [
        ("on_publish_received", Publish("none", b"x", 1, packet_id=5), Puback),
        ("on_unsubscribe", Unsubscribe(5, ["t"]), Unsuback),
    ],
)
@run_async
async def test_who_keeps_nothing_waits_for_nobody_s_commit(
    tmp_path: Path, event: str, packet: Packet, answer: type[Packet]
) -> None:
    go_on = asyncio.Event()
    async with Machine(tmp_path, hooks=[slow_hook(event, go_on)]) as machine:
        await away(machine, "s", "d", qos=1)
        slow, other = machine.peer(), machine.peer()
        await slow.connect("slow")
        await slow.subscribe("t")
        await other.connect("other")
        async with slow_disk(machine.broker):
            slow.send(packet)
            await turns(50)
            other.send(Publish("d", b"x", 1, packet_id=1))
            await other.expect_nothing()
            go_on.set()
            await slow.expect(answer)


# ---- how durable


def levels(machine: Machine) -> list[Fsync]:
    """What each commit is to survive, from now on."""
    store: Any = journal_of(machine.broker).store
    found: list[Fsync] = []
    write: Callable[[Batch], None] = store.write

    def note(batch: Batch) -> None:
        found.append(batch.fsync)
        write(batch)

    store.write = note
    return found


@run_async
async def test_each_topic_has_its_level(tmp_path: Path) -> None:
    settings = config()
    store = Store(fsync="normal", fsync_for=("cheap/#=never", "dear/#=always"))
    settings = Config(store=store, capacity=settings.capacity)
    async with Machine(tmp_path, settings) as machine:
        await away(machine, "s", "#", qos=1)
        peer = machine.peer()
        await peer.connect("p")
        await committed(machine.broker)
        found = levels(machine)
        for topic_name, qos, level in (
            ("cheap/a", 1, Fsync.NEVER),
            ("a", 1, Fsync.NORMAL),
            ("dear/a", 1, Fsync.ALWAYS),
            ("cheap/a", 2, Fsync.NEVER),
            ("dear/a", 2, Fsync.ALWAYS),
        ):
            assert await peer.publish(topic_name, b"x", qos=qos) == 0
            assert found[-1] is level, topic_name
        await (await lasting(machine, "c")).expect_nothing()
        assert found[-1] is Fsync.NORMAL


# ---- what costs nothing


async def costs(machine: Machine, work: Any) -> tuple[int, dict[str, int]]:
    """The commits that *work* makes, and the rows it leaves in memory for the next one."""
    journal = journal_of(machine.broker)
    await committed(machine.broker)
    await until(lambda: not journal._busy)
    before = journal.commits
    await work()
    await turns(20)
    if journal.latest:
        await committed(machine.broker)
    await until(lambda: not journal._busy)
    tables = {table.name: len(rows) for table, rows in journal._open.items() if rows}
    return journal.commits - before, tables


@run_async
async def test_a_message_that_nothing_durable_holds_is_not_written(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await lasting(machine, "other", "other")
        subscriber, publisher = machine.peer(), machine.peer()
        await subscriber.connect("s")
        await subscriber.subscribe("t", qos=2)
        await publisher.connect("p")

        async def work() -> None:
            for qos in (0, 1, 2):
                await publisher.publish("t", b"x", qos=qos)
                await publisher.publish("none", b"x", qos=qos)
                await machine.broker.publish("t", b"x", qos=qos)
            for _ in range(6):
                await subscriber.expect(Publish)

        assert await costs(machine, work) == (0, {})


@run_async
async def test_qos_0_is_not_written_but_for_the_retained_store(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "away", "#")
        peer = await lasting(machine, "c", "#")

        async def work() -> None:
            peer.send(Publish("t", b"x"))
            await got(peer, b"x")

        assert (await costs(machine, work))[0] == 0

        async def retained() -> None:
            peer.send(Publish("t", b"x", 0, True))
            await got(peer, b"x")

        assert (await costs(machine, retained))[0] == 1


@run_async
async def test_a_message_that_all_have_acknowledged_before_the_commit_is_not_written(tmp_path: Path) -> None:
    """The disk is busy with another one meanwhile: nothing of this one is left to be stored."""
    async with Machine(tmp_path) as machine:
        await away(machine, "away", "other")
        peer, publisher = await lasting(machine, "c", "t", qos=1), machine.peer()
        await publisher.connect("p")

        async def work() -> None:
            async with slow_disk(machine.broker):
                await waits(publisher, Publish("other", b"y", 1, packet_id=1))
                await waits(publisher, Publish("t", b"x", 1, packet_id=2))
                assert (await peer.expect(Publish)).payload == b"x"
                await waits(peer, Puback(1))
            assert [(await publisher.expect(Puback)).packet_id for _ in range(2)] == [1, 2]

        assert await costs(machine, work) == (1, {})


@run_async
async def test_reading_an_idle_broker_costs_nothing(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        peer = await lasting(machine, "c", "t")

        async def work() -> None:
            for _ in range(10):
                await peer.expect_nothing()
                await machine.advance(10)

        assert await costs(machine, work) == (0, {})


@run_async
async def test_a_thousand_messages_share_their_commits(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "t", qos=1)
        peer = machine.peer()
        await peer.connect("p")

        async def work() -> None:
            async with slow_disk(machine.broker):
                peer.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(1, 1001)))
                await peer.expect_nothing()
            for number in range(1, 1001):
                assert (await peer.expect(Puback)).packet_id == number

        commits, _ = await costs(machine, work)
        assert commits <= 3
        store = journal_of(machine.broker).store
        assert store is not None
        in_runs = sum(row.values[3] for _, row in store.read(Table.PART))
        assert len(dict(store.read(Table.DELIVERY))) + in_runs == 1000


# ---- a new name


class Renames(HookBase):
    """Enhanced authentication that makes another user of a client the second time."""

    async def on_auth(self, client: Any, method: str, data: bytes | None) -> Any:
        from broker import AuthStep

        client.user_name = "second" if client.authenticated else "first"
        return AuthStep(done=True)


@run_async
async def test_a_user_name_that_changed_on_the_way_is_stored(tmp_path: Path) -> None:
    from broker.config import Protocol

    settings = Config(protocol=Protocol(re_authentication="any"), capacity=config().capacity)
    async with Machine(tmp_path, settings, hooks=[Renames()]) as machine:
        peer = machine.peer()
        method = {"authentication_method": "m"}
        await peer.connect("c", properties={**LASTING, **method})
        peer.send(Auth(0x19, method))
        await peer.expect(Auth)
        await machine.kill()
        session = machine.broker._core.sessions.get("c")
        assert session is not None and session.user_name == "second"


# ---- while it fails


@run_async
async def test_a_connection_that_waits_for_a_commit_that_fails_ends(tmp_path: Path) -> None:
    """Without a DISCONNECT: a CONNACK that was not sent would have to come before it."""
    async with Machine(tmp_path) as machine:
        peer = machine.peer()
        with broken_disk(machine.broker):
            peer.send(Connect("c", properties=LASTING))
            await failed(machine.broker)
            with pytest.raises(ConnectionResetError):
                await peer.recv()
        await recovered(machine.broker)


@pytest.mark.parametrize("cut", ["taken over", "kicked"])
@run_async
async def test_one_that_is_ended_while_its_connack_waits_hears_nothing(tmp_path: Path, cut: str) -> None:
    async with Machine(tmp_path) as machine:
        peer = machine.peer()
        async with slow_disk(machine.broker):
            peer.send(Connect("c", properties=LASTING))
            await turns(50)
            if cut == "kicked":
                await machine.broker.disconnect("c")
            else:
                other = await_connect(machine)
                await turns(50)
                assert not other._received
            assert await peer.recv() is None
        await settle(machine.broker, "c") if cut == "kicked" else await other.expect(Connack)


@run_async
async def test_a_stop_lets_acknowledgements_leave(tmp_path: Path) -> None:
    async with Machine(tmp_path) as machine:
        await away(machine, "s", "t", qos=1)
        peer = await lasting(machine, "p")
        peer.send(Publish("t", b"x", 1, packet_id=1))
        await turns(10)
        await machine.stop()
        assert (await peer.expect(Puback)).packet_id == 1
        assert (await peer.expect(Disconnect)).reason_code == 0x8B
        await got(await resume(machine, "s"), b"x")
