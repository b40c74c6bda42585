"""SessionRecord: which rows a session has, when it has none, and what has to wait for them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from broker.core import Core
from broker.handle import disconnect
from broker.packet.enums import PacketType, Version
from broker.packet.message import Message
from broker.session.record import session_row
from broker.session.session import FOR_EVER, Session
from broker.session.terms import NEVER, PendingWill
from broker.store.base import Fsync, Row, Table
from broker.store.schema import names as columns
from broker.topic.subscription import Subscription
from tests.peer import Clock
from tests.session.make import FakeLink, Sent
from tests.session.world import World
from tests.store.make import FakeStore

OFFSET = 1e9 - 100.0  # what the store's clock is ahead of the broker's
PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
ALL = "#"


@pytest.fixture
def world() -> Iterator[World]:
    made = World(FakeStore(), Clock(100.0), Clock(1e9))
    yield made
    made.forget()


def rows(world: World, table: Table) -> list[Any]:
    world.commit()
    return [row.values for _, row in sorted(world.store.rows[table].items())]


def names(world: World) -> set[str]:
    """The tables that are not empty."""
    world.commit()
    return {table.name for table, found in world.store.rows.items() if found}


def will(payload: bytes = b"gone", delay: int = 0) -> PendingWill:
    return PendingWill(Message("w", payload, 1), delay)


# ---- the session itself


def test_its_row_while_it_is_connected_and_afterwards(world: World) -> None:
    world.connect("c", interval=60, will=will(delay=7))
    session, message = world.session("c"), 1 + world.session("c").recorder.id  # type: ignore[union-attr]
    owner = ("c", "user of c", int(Version.MQTT_5), 60, 1)
    assert rows(world, Table.SESSION) == [(*owner, 1, None, message, 7, None)]
    world.cut("c")
    left = (0, 160.0 + OFFSET, message, 7, 107.0 + OFFSET)
    assert rows(world, Table.SESSION) == [(*owner, *left)]
    assert (session.ends_at, session.will_due) == (160.0, 107.0)
    world.connect("c", interval=FOR_EVER)
    assert rows(world, Table.SESSION) == [(*owner[:3], FOR_EVER, 1, 1, None, None, 0, None)]
    world.cut("c")
    assert rows(world, Table.SESSION) == [(*owner[:3], FOR_EVER, 1, 0, None, None, 0, None)]


def test_one_that_ends_with_its_connection_has_none(world: World) -> None:
    world.connect("c", interval=0)
    world.subscribe("c", Subscription(ALL, 2))
    world.publish(Message("t", b"x", 2))
    world.session("c").hold(1, Message("t", b"y", 2))
    assert names(world) == set()
    assert world.core.journal.commits == 0


def test_one_that_ends_with_its_connection_has_one_while_it_has_a_will(world: World) -> None:
    world.connect("c", interval=0, will=will())
    world.subscribe("c", Subscription(ALL, 2))
    world.publish(Message("t", b"x", 1))
    assert names(world) == {"SESSION", "MESSAGE"}
    assert rows(world, Table.SESSION)[0][3:6] == (0, 0, 1)
    world.cut("c", normal=True)
    assert names(world) == set()


def test_a_will_is_replaced_by_that_of_the_next_connection(world: World) -> None:
    for number in range(3):
        world.connect("c", will=will(b"%d" % number, delay=100))
        world.cut("c")
    world.commit()
    assert [row.blobs[0] for row in world.store.rows[Table.MESSAGE].values()] == [b"2"]
    world.connect("c")
    world.commit()
    assert names(world) == {"SESSION"}


def test_a_will_that_was_published_is_forgotten_with_it(world: World) -> None:
    world.connect("watcher")
    world.subscribe("watcher", Subscription(ALL, 2))
    world.cut("watcher")
    world.connect("c", will=will(delay=5))
    world.cut("c")
    world.commit()
    commits = world.core.journal.commits
    world.pass_time(5.0)
    world.commit()
    assert world.core.journal.commits == commits + 1, "the message that it was is stored in the same commit"
    assert [values[7] for values in rows(world, Table.SESSION)] == [None, None]
    assert len(rows(world, Table.DELIVERY)) == 1


def test_the_end_of_a_session_leaves_nothing(world: World) -> None:
    world.connect("c")
    world.subscribe("c", Subscription(ALL, 2))
    for qos in (1, 2):
        world.publish(Message("t", b"x", qos))
    world.session("c").hold(1, Message("t", b"y", 2))
    world.cut("c")
    world.publish(Message("t", b"queued", 1))
    assert names(world) == {"SESSION", "SUBSCRIPTION", "DELIVERY", "MESSAGE", "HELD"}
    world.pass_time(60.0)
    assert names(world) == set()


def test_a_session_that_is_to_end_with_its_next_connection_is_forgotten_at_once(world: World) -> None:
    """Its client said so in CONNECT; what is in it goes on in memory."""
    world.connect("c")
    world.subscribe("c", Subscription(ALL, 2))
    world.session("c").hold(1, Message("t", b"y", 2))
    world.cut("c")
    world.publish(Message("t", b"queued", 1))
    link = world.connect("c", interval=0)
    assert names(world) == set()
    assert link.payloads() == [b"queued"]
    session = world.session("c")
    session.acknowledge(1, PUBACK, 0)
    assert session.let_go(1) is not None
    world.publish(Message("t", b"later", 2))
    world.unsubscribe("c", "#")
    world.cut("c")
    assert names(world) == set() and world.core.budget.used == 0


# ---- what is in it


@pytest.mark.parametrize(("identifiers", "first"), [((), "$share/g/a/+"), ((268_435_455,), "#")])
def test_a_subscription_that_is_replaced_has_one_row(
    world: World, identifiers: tuple[int, ...], first: str
) -> None:
    """The last one, if the order of identifiers is to be seen by it; else the one that it had."""
    world.connect("c")
    before = Subscription("$share/g/a/+", 1, False, True, 2, (), "g")
    later = Subscription("$share/g/a/+", 2, False, False, 1, identifiers, "g")
    for subscription in (before, Subscription(ALL, 2), later):
        world.subscribe("c", subscription)
    owner = world.session("c").recorder.id  # type: ignore[union-attr]
    found = rows(world, Table.SUBSCRIPTION)
    assert {values[1]: values for values in found} == {
        "$share/g/a/+": (owner, "$share/g/a/+", 2, 0, 0, 1, sum(identifiers), "g"),
        "#": (owner, "#", 2, 0, 0, 0, 0, ""),
    }
    assert (len(found), found[0][1]) == (2, first)
    world.unsubscribe("c", "$share/g/a/+")
    assert [values[1] for values in rows(world, Table.SUBSCRIPTION)] == ["#"]


def test_a_delivery_step_by_step(world: World) -> None:
    link = world.connect("c", window=1)
    world.subscribe("c", Subscription("t", 2, False, True, 0, (7,)))
    world.publish(Message("t", b"first", 2, True))
    world.publish(Message("t", b"second", 1))
    session = world.session("c")

    def steps() -> list[tuple[int, ...]]:
        return [(values[2], *values[-2:]) for values in rows(world, Table.DELIVERY)]  # QoS, identifier, state

    assert rows(world, Table.DELIVERY)[0][2:7] == (2, 1, 0, "7", "")
    assert steps() == [(2, 1, 2), (1, 0, 0)]
    session.acknowledge(1, PUBREC, 0)
    assert steps() == [(2, 1, 3), (1, 0, 0)]
    session.acknowledge(1, PUBREC, 0)
    assert steps() == [(2, 1, 3), (1, 0, 0)]
    session.acknowledge(1, PUBCOMP, 0)
    assert steps() == [(1, 2, 1)]
    assert link.payloads() == [b"first", b"second"]
    session.acknowledge(2, PUBACK, 0x80)
    assert steps() == [] and len(rows(world, Table.MESSAGE)) == 1, "the retained one"


def test_what_is_acknowledged_before_the_commit_costs_nothing(world: World) -> None:
    world.connect("c")
    world.subscribe("c", Subscription(ALL, 2))
    world.commit()
    commits = world.core.journal.commits

    async def at_once() -> None:
        await world.core.router.publish(Message("t", b"x", 1))
        world.session("c").acknowledge(1, PUBACK, 0)

    world.run(at_once())
    world.commit()
    assert world.core.journal.commits == commits
    world.check_rows()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_must_be_stored_before_it_leaves(world: World, qos: int) -> None:
    """QoS 1 that nobody was promised yet goes out at once; QoS 2, and what was stored in the queue, wait."""
    journal = world.core.journal
    link = world.connect("c", window=1)
    world.subscribe("c", Subscription(ALL, 2))
    afters: list[int] = []
    real = link.publish

    def publish(*args: Any, after: int = 0, **kwargs: Any) -> bool:
        afters.append(after)
        return real(*args, after=after, **kwargs)

    link.publish = publish  # type: ignore[method-assign]
    world.commit()

    async def scene() -> None:
        await world.core.router.publish(Message("t", b"now", qos))
        assert afters == [0 if qos == 1 else journal.number]
        await world.core.router.publish(Message("t", b"waits", qos))

    world.run(scene())
    world.commit()
    if qos == 2:
        world.session("c").acknowledge(1, PUBREC, 0)
        world.session("c").acknowledge(1, PUBCOMP, 0)
    else:
        world.session("c").acknowledge(1, PUBACK, 0)
    assert afters[1:] == [journal.number], "its identifier would be unknown after a crash"
    assert link.take() == [Sent(b"now", qos, 1), Sent(b"waits", qos, 2)]


def test_queued_qos_0_leaves_when_it_is_not_stored_any_more() -> None:
    """Else a crash would bring it twice."""
    world = World(FakeStore(), Clock(100.0), Clock(1e9), queue_qos_0=True)
    world.connect("c")
    world.subscribe("c", Subscription(ALL, 2))
    world.cut("c")
    world.publish(Message("t", b"x", 0))
    assert [values[2] for values in rows(world, Table.DELIVERY)] == [0]
    seen: list[int] = []
    session, number = world.session("c"), world.core.journal.number

    class Link:
        full, keeps_retain = False, True

        def publish(self, *args: Any, after: int = 0, **kwargs: Any) -> bool:
            seen.append(after)
            return True

        def publish_queued(self, session: Any) -> bool:
            return False

    session.attach(Link(), 10)  # type: ignore[arg-type]
    session.pump()
    assert seen == [number]
    assert names(world) == {"SESSION", "SUBSCRIPTION"}
    world.forget()


def test_a_shared_message_that_is_handed_on_moves_with_its_row(world: World) -> None:
    for client_id in ("one", "two"):
        world.connect(client_id)
        world.subscribe(client_id, Subscription("$share/g/t", 1, share_name="g"))
        world.cut(client_id)
    for number in range(2):
        world.publish(Message("t", b"%d" % number, 1))
    before = rows(world, Table.MESSAGE)
    world.end("one")
    assert rows(world, Table.MESSAGE) == before, "it is the same message"
    owner = world.session("two").recorder.id  # type: ignore[union-attr]
    assert [values[0] for values in rows(world, Table.DELIVERY)] == [owner, owner]
    world.check_rows()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_sent_again_before_it_is_stored(world: World, qos: int) -> None:
    """A takeover while a commit is under way: exactly once needs the disk, at least once does not."""
    world.connect("c")
    world.subscribe("c", Subscription(ALL, 2))
    world.publish(Message("t", b"x", qos))
    world.commit()
    session, journal = world.session("c"), world.core.journal
    afters: list[int] = []

    class Link(FakeLink):
        def publish(self, *args: Any, after: int = 0, **kwargs: Any) -> bool:
            afters.append(after or (args[6] if len(args) > 6 else 0))
            return True

        def send(self, packet: Any, after: int = 0) -> None:
            afters.append(after)

    session.attach(Link(), 10)
    session.pump()
    assert afters == [0], "all of it is stored"
    if qos == 2:
        session.acknowledge(1, PUBREC, 0)
        session.attach(Link(), 10)
        session.pump()
        assert afters[1:] == [journal.number], "PUBREL, of what is not stored yet"
    world.publish(Message("t", b"y", qos))
    session.attach(Link(), 10)
    session.pump()
    assert (afters[-1] > journal.done) == (qos == 2)


def test_all_identifiers_and_what_a_subscribe_asked_for(world: World) -> None:
    world.connect("c")
    world.subscribe("c", Subscription("t", 1, identifiers=(7,)))
    world.subscribe("c", Subscription("#", 1, identifiers=(268_435_455,)))
    world.publish(Message("t", b"live", 1, True))
    world.session("c").deliver_retained(Message("t", b"kept", 1, True), 1, (7,))
    assert [values[3:7] for values in rows(world, Table.DELIVERY)] == [
        (0, 0, "7,268435455", ""),
        (1, 1, "7", ""),
    ]
    again = world.again()
    found = [
        (one.identifiers, one.retain, one.requested) for one in again.session("c").inflight.entries.values()
    ]
    assert found == [((7, 268_435_455), False, False), ((7,), True, True)]
    again.forget()


def test_a_will_that_comes_and_goes_within_a_batch_costs_nothing(world: World) -> None:

    async def scene() -> None:
        world.connect("c", interval=0, will=will())
        session = world.session("c")
        session.detach(session.link)
        session.set_will(None)
        await disconnect.finish(disconnect.end_session(world.core, session))

    world.run(scene())
    world.commit()
    assert world.core.journal.rows == 0


def test_the_end_of_a_subscription_is_as_durable_as_an_acknowledgement(world: World) -> None:
    """Hooks may wait before UNSUBACK is put together, and it is committed meanwhile."""
    world.connect("c")
    world.subscribe("c", Subscription(ALL, 2))
    world.commit()
    world.session("c").unsubscribe("#")
    world.commit()
    assert world.store.batches[-1].fsync is Fsync.ALWAYS


# ---- moments in between


def row_of(world: World, client_id: str) -> dict[str, Any]:
    found = [values for values in rows(world, Table.SESSION) if values[0] == client_id]
    return dict(zip(columns(Table.SESSION), found[0], strict=True))


def test_a_connection_whose_end_was_not_seen_to_has_no_deadlines(world: World) -> None:
    """Hooks may hold it up: the row is made when the socket is gone and the deadlines are not set yet."""
    world.connect("c", interval=60, will=will(delay=10))
    world.connect("z", interval=0, will=will(b"at once"))
    for client_id in ("c", "z"):
        session = world.session(client_id)
        assert session.detach(session.link)
        world.links.pop(client_id)
    found = row_of(world, "c")
    assert (found["connected"], found["ends_at"], found["will_due"]) == (0, None, None)
    again = world.again(down=5.0)
    assert again.left == ["c", "z"]
    session = again.session("c")
    assert (again.left_after(session.ends_at), again.left_after(session.will_due)) == (60.0, 10.0)
    assert again.core.sessions.get("z") is None, "it ended with its connection"
    again.commit()
    again.check_rows()
    again.forget()


def test_a_will_that_hooks_are_asked_about_is_due_and_still_stored(world: World) -> None:
    world.connect("watcher")
    world.subscribe("watcher", Subscription(ALL, 2))
    world.cut("watcher")
    world.connect("c", interval=3600, will=will(delay=10))
    world.cut("c")
    session = world.session("c")
    session.will_due = NEVER  # publish_will has begun
    session.set_will(None)
    record: Any = session.recorder
    world.core.journal.put(Table.SESSION, record.id, session_row, record)
    assert row_of(world, "c")["will_due"] == 0.0
    again = world.again()
    assert again.left == []
    again.sweep()
    assert [one.message.payload for one in again.session("watcher").queue] == [b"gone"]
    again.commit()
    again.check_rows()
    again.forget()


def test_a_session_that_is_over_is_not_there_while_its_will_is_asked_about(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash then must not leave half a session, with Session Present 1 and nothing in it."""
    world.connect("watcher")
    world.subscribe("watcher", Subscription(ALL, 2))
    world.cut("watcher")
    world.connect("c", interval=60, will=will(delay=10))
    world.subscribe("c", Subscription(ALL, 2))
    world.cut("c")
    stores: list[FakeStore] = []
    publish_will = disconnect.publish_will

    async def ask_first(core: Core, session: Session) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        stores.append(copy.deepcopy(world.store))
        await publish_will(core, session)

    monkeypatch.setattr(disconnect, "publish_will", ask_first)
    world.end("c")
    monkeypatch.undo()
    again = World(stores[0], Clock(1.0), world.wall)
    assert again.core.sessions.get("c") is None
    assert [one.message.payload for one in again.session("watcher").queue] == [b"gone"]
    again.commit()
    again.check_rows()
    again.forget()


def test_rows_are_plain_values(world: World) -> None:
    """What SQLite is given must be what it gives back."""
    world.connect("c", will=will(delay=1))
    world.subscribe("c", Subscription("t", 2, True, True, 1, (5,)))
    world.publish(Message("t", b"x", 2, True, {"content_type": "a"}, "p", 200.0))
    world.session("c").hold(4, Message("t", b"y", 2))
    world.cut("c")
    world.commit()
    assert {kind for kind, table in world.store.rows.items() if table} >= {
        *(Table.SESSION, Table.SUBSCRIPTION, Table.MESSAGE, Table.DELIVERY, Table.HELD)
    }
    for table in world.store.rows.values():
        for row in table.values():
            assert isinstance(row, Row)
            assert all(type(value) in (int, float, str, type(None)) for value in row.values)
            assert all(type(blob) is bytes for blob in row.blobs)
