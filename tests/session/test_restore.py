"""A restart is a network cut: whatever sessions went through, the store brings back the same ones."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.packet.enums import PacketType
from broker.packet.message import Message
from broker.packet.packets import NO_PROPERTIES, Pubrel
from broker.session.delivery import State
from broker.session.session import FOR_EVER, Session
from broker.session.terms import PendingWill
from broker.store.base import Table
from broker.topic.subscription import Subscription
from tests.peer import Clock
from tests.session.make import Sent
from tests.session.world import World
from tests.store.make import FakeStore

CLIENTS = st.sampled_from(["ann", "bob", "cid"])
CONNECTED = st.integers(0, 2)  # which one of those that are
TOPICS = st.sampled_from(["a", "a/b", "c"])
FILTERS = st.sampled_from(["a", "a/#", "+/b", "#", "$share/g/a/#", "$share/h/#", "$share/g/c"])
INTERVALS = st.sampled_from([0, 5, 60, 60, 3600, FOR_EVER])
PROPERTIES = st.sampled_from(
    [
        NO_PROPERTIES,
        {"content_type": "text", "user_property": [("a", "1"), ("a", "2")]},
        {"response_topic": "r", "correlation_data": b"\0\1", "payload_format_indicator": 1},
        {"message_expiry_interval": 30},
    ]
)
ANSWERS = {
    State.WAIT_PUBACK: PacketType.PUBACK,
    State.WAIT_PUBREC: PacketType.PUBREC,
    State.WAIT_PUBCOMP: PacketType.PUBCOMP,
}
connected = precondition(lambda self: self.world.links)


class RestartLaw(RuleBasedStateMachine):
    """After any steps, with everything committed, a world from the store is the world after a cut."""

    @initialize(
        queue_full=st.sampled_from(["drop_newest", "drop_oldest", "disconnect"]),
        queue_qos_0=st.booleans(),
        maximum=st.integers(2, 8),
    )
    def begin(self, queue_full: str, queue_qos_0: bool, maximum: int) -> None:
        self.sent = 0
        self.world = World(
            FakeStore(),
            Clock(100.0),
            Clock(1e9),
            queue_full=queue_full,
            queue_qos_0=queue_qos_0,
            maximum_queued_messages=maximum,
        )
        for client_id, filters in (("ann", ("#", "a/#")), ("bob", ("$share/g/a/#", "c"))):
            self.world.connect(client_id, window=2)
            for topic_filter in filters:
                share = "g" if topic_filter.startswith("$share") else ""
                self.world.subscribe(client_id, Subscription(topic_filter, 2, share_name=share))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.commit()
            self.world.check_rows()
            self.restarted(0.0, goes_on=False)
            self.world.forget()

    def who(self, number: int) -> str:
        names = sorted(self.world.links)
        return names[number % len(names)]

    def session(self, number: int) -> Session:
        return self.world.session(self.who(number))

    # ---- connections

    @rule(
        client_id=CLIENTS,
        interval=INTERVALS,
        window=st.integers(1, 4),
        delay=st.sampled_from([None, 0, 3, 100]),
        retain=st.booleans(),
        properties=PROPERTIES,
        keeps_retain=st.booleans(),
    )
    def connect(
        self,
        client_id: str,
        interval: int,
        window: int,
        delay: int | None,
        retain: bool,
        properties: Any,
        keeps_retain: bool,
    ) -> None:
        will = None
        if delay is not None:
            message = Message("a/b", b"will of " + client_id.encode(), 1, retain, properties, client_id)
            will = PendingWill(message, delay)
        self.world.connect(client_id, interval, window, will, keeps_retain)

    @connected
    @rule(number=CONNECTED, normal=st.booleans())
    def leave(self, number: int, normal: bool) -> None:
        self.world.cut(self.who(number), normal=normal)

    @connected
    @rule(number=CONNECTED, interval=INTERVALS)
    def disconnect_with_another_interval(self, number: int, interval: int) -> None:
        session = self.session(number)
        session.expiry_interval = interval if session.expiry_interval else 0
        self.world.cut(session.client_id)

    @precondition(lambda self: len(self.world.core.sessions))
    @rule(number=CONNECTED)
    def end(self, number: int) -> None:
        sessions = [*self.world.core.sessions]
        self.world.end(sessions[number % len(sessions)].client_id)

    @connected
    @rule(number=CONNECTED, full=st.booleans())
    def socket(self, number: int, full: bool) -> None:
        self.world.links[self.who(number)].full = full
        self.session(number).pump()

    # ---- subscriptions

    @connected
    @rule(
        number=CONNECTED,
        topic_filter=FILTERS,
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        as_published=st.booleans(),
        handling=st.integers(0, 2),
        identifier=st.sampled_from([(), (1,), (268_435_455,)]),
    )
    def subscribe(
        self,
        number: int,
        topic_filter: str,
        qos: int,
        no_local: bool,
        as_published: bool,
        handling: int,
        identifier: tuple[int, ...],
    ) -> None:
        share = topic_filter.split("/")[1] if topic_filter.startswith("$share/") else ""
        options = (qos, no_local and not share, as_published, handling, identifier, share)
        self.world.subscribe(self.who(number), Subscription(topic_filter, *options))

    @connected
    @rule(number=CONNECTED, which=st.integers(0, 3))
    def unsubscribe(self, number: int, which: int) -> None:
        filters = [*self.session(number).subscriptions]
        if filters:
            self.world.unsubscribe(self.who(number), filters[which % len(filters)])

    # ---- messages

    @rule(
        topic_name=TOPICS,
        qos=st.integers(0, 2),
        retain=st.booleans(),
        empty=st.booleans(),
        properties=PROPERTIES,
        expires=st.sampled_from([None, None, 2, 30]),
        publisher=st.sampled_from(["ann", "p", ""]),
        count=st.integers(1, 3),
    )
    def publish(
        self,
        topic_name: str,
        qos: int,
        retain: bool,
        empty: bool,
        properties: Any,
        expires: int | None,
        publisher: str,
        count: int,
    ) -> None:
        for _ in range(count):
            self.sent += 1
            payload = b"" if empty and retain else b"%d" % self.sent
            message = Message(topic_name, payload, qos, retain, properties, publisher)
            if expires is not None:
                message.expires_at = self.world.clock() + expires
            self.world.publish(message)

    @connected
    @rule(number=CONNECTED, qos=st.integers(1, 2))
    def deliver_retained(self, number: int, qos: int) -> None:
        retained = self.world.core.retained
        for message in chain.from_iterable(retained.stretches("#", self.world.clock())):
            self.session(number).deliver_retained(message, qos, (3,))

    @connected
    @rule(number=CONNECTED, which=st.integers(0, 5), code=st.sampled_from([0, 0, 0x80]))
    def acknowledge(self, number: int, which: int, code: int) -> None:
        session = self.session(number)
        entries = [one for one in session.inflight.entries.values() if one not in session.inflight.resend]
        if entries:
            delivery = entries[which % len(entries)]
            session.acknowledge(delivery.packet_id, ANSWERS[delivery.state], code)

    @connected
    @rule(number=CONNECTED, packet_id=st.integers(1, 3), properties=PROPERTIES)
    def hold(self, number: int, packet_id: int, properties: Any) -> None:
        session = self.session(number)
        if packet_id not in session.inflight.held:
            self.sent += 1
            message = Message("a", b"held %d" % self.sent, 2, False, properties, session.client_id)
            session.hold(packet_id, message)

    @connected
    @rule(number=CONNECTED, packet_id=st.integers(1, 3), refused=st.booleans())
    def release(self, number: int, packet_id: int, refused: bool) -> None:
        """PUBREL; *refused*: the store could not keep it, and its PUBREC says so."""
        message = self.session(number).let_go(packet_id)
        if message is not None and not refused:
            self.world.publish(message)

    @rule(topic_name=TOPICS, retain=st.booleans(), committed=st.booleans())
    def refused(self, topic_name: str, retain: bool, committed: bool) -> None:
        """A PUBLISH whose commit fails is taken back from all that hold it."""
        world = self.world
        if committed:
            world.commit()
        journal = world.core.journal
        self.sent += 1
        message = Message(topic_name, b"refused %d" % self.sent, 1, retain)
        before = journal.changes
        world.store.fail()
        try:
            world.run(refuse(world, message, before))
        finally:
            world.store.mend()
        world.pass_time(1.1)
        world.commit()

    # ---- time

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def commit(self) -> None:
        self.world.commit()
        self.world.check_rows()

    # ---- the law

    @rule(down=st.sampled_from([0.0, 0.0, 4.0, 50.0]), goes_on=st.booleans())
    def restart(self, down: float, goes_on: bool) -> None:
        self.world.commit()
        self.restarted(down, goes_on)

    def restarted(self, down: float, goes_on: bool) -> None:
        """The same as a cut of all connections, with time passing in between."""
        world = self.world
        for session in [*world.core.sessions]:
            deliveries = (*session.queue, *session.inflight.entries.values())
            if session.state is None and any(one.share for one in deliveries):
                world.cut(session.client_id)  # else others would get these after a cut, but not after a crash
        world.commit()
        lasting = [session.client_id for session in world.core.sessions if session.state is not None]
        here = [session for session in world.core.sessions if session.connected]
        again = world.again(down)
        for one in (world, again):
            begin_turns_anew(one)
        assert again.left == sorted(one.client_id for one in here if one.state or one.will)
        world.clock.now += down  # those that are connected leave when the broker is there again
        world.wall.now += down
        world.cut_all()
        for one in (world, again):
            one.commit()
            one.sweep()
            one.commit()
        found, wanted = again.image(), world.image()
        for name in found.keys() | wanted.keys():
            assert found.get(name) == wanted.get(name), name
        for topic_name in ("a", "a/b", "c"):
            assert again.matches(topic_name) == world.matches(topic_name)
        again.check_rows()
        world.check_rows()
        self.sends_the_same(world, again, lasting)
        if goes_on:
            world.forget()
            self.world = again
        else:
            again.forget()

    @staticmethod
    def sends_the_same(world: World, again: World, lasting: list[str]) -> None:
        for client_id in lasting:
            if world.core.sessions.get(client_id) is not None:
                links = [one.connect(client_id, 60, 3) for one in (world, again)]
                sent = [[anonymous(packet) for packet in link.take()] for link in links]
                assert sent[0] == sent[1]

    @invariant()
    def only_sessions_that_last_are_kept(self) -> None:
        if hasattr(self, "world"):
            for session in self.world.core.sessions:
                assert session.state in (None, session.recorder)
                assert session.state is None or session.expiry_interval > 0


def anonymous(packet: Sent | Pubrel) -> Sent | Pubrel:
    """Without an identifier that is given only now: a broker that starts anew counts from what is in use."""
    if isinstance(packet, Sent) and not packet.dup:
        return packet._replace(packet_id=0)
    return packet


def test_whose_turn_it_was_is_not_remembered() -> None:
    law = RestartLaw()
    law.begin(queue_full="drop_newest", queue_qos_0=False, maximum=2)
    options = {"as_published": False, "handling": 0, "identifier": (), "no_local": False, "number": 0}
    law.subscribe(topic_filter="$share/g/a/#", qos=2, **options)
    law.refused(committed=False, retain=False, topic_name="a")
    nothing = {"delay": 0, "keeps_retain": False, "properties": {}, "retain": False}
    law.connect(client_id="bob", interval=5, window=1, **nothing)
    law.restart(down=0.0, goes_on=False)
    law.teardown()


def test_a_subscription_that_was_replaced_stays_the_later_one() -> None:
    law = RestartLaw()
    law.begin(queue_full="drop_newest", queue_qos_0=False, maximum=2)
    options = {"as_published": False, "handling": 0, "no_local": False, "number": 0, "qos": 1}
    law.subscribe(topic_filter="+/b", identifier=(1,), **options)
    law.subscribe(topic_filter="a/#", identifier=(2,), **options)  # there was one, without an identifier
    law.connect("ann", interval=5, window=1, delay=0, keeps_retain=False, properties={}, retain=False)
    law.teardown()


def begin_turns_anew(world: World) -> None:
    """Whose turn it is in a group no store remembers."""
    for topic_name in ("a", "a/b", "c"):
        for group in world.core.tree.match(topic_name).groups:
            group._close_holes()
            group._next = 0


async def refuse(world: World, message: Message, before: int) -> None:
    """*message* is routed, and its publisher waits for a commit that fails."""
    journal = world.core.journal
    await world.core.router.publish_owned(message)
    number = journal.promise(before, message.topic_name)
    if not number:
        return

    class Publisher:
        def committed(self, committed: int) -> bool:
            return committed < number  # nothing of it was left to be written

        def not_committed(self, failed: int, failure: Exception) -> bool:
            if failed >= number:
                journal.revoke(message)
            return failed < number

    journal.wait(Publisher())
    for _ in range(5):
        await asyncio.sleep(0)


TestRestartLaw = RestartLaw.TestCase
TestRestartLaw.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# ---- parts of it, one by one


@pytest.fixture
def world() -> Any:
    made = World(FakeStore(), Clock(100.0), Clock(1e9), queue_qos_0=True)
    made.connect("c", will=PendingWill(Message("w", b"gone", 1), 50))
    made.subscribe("c", Subscription("#", 2))
    made.subscribe("c", Subscription("a", 1))
    made.session("c").hold(4, Message("t", b"held", 2))
    made.cut("c")
    made.commit()
    yield made
    made.forget()


def restarted(world: World, down: float = 0.0) -> World:
    world.commit()
    return world.again(down)


def test_nothing_is_written_because_of_a_restart(world: World) -> None:
    again = restarted(world)
    again.commit()
    assert again.core.journal.commits == 0 and again.store.rows == world.store.rows


def test_what_was_restored_can_be_ended(world: World) -> None:
    """Its rows are known by their numbers."""
    again = restarted(world)
    again.connect("c")
    again.unsubscribe("c", "a")
    again.subscribe("c", Subscription("#", 0))
    assert again.session("c").let_go(4) is not None
    again.commit()
    again.check_rows()
    again.publish(Message("t", b"x", 1, True))
    again.core.retained.delete("t")
    again.commit()
    again.check_rows()
    again.end("c")
    again.commit()
    assert not any(again.store.rows.values())


def test_deadlines_go_on(world: World) -> None:
    world.pass_time(10.0)
    again = restarted(world, down=20.0)
    session = again.session("c")
    assert (again.left_after(session.ends_at), again.left_after(session.will_due)) == (30.0, 20.0)
    again.pass_time(19.0)
    assert session.will is not None
    again.pass_time(1.0)
    assert session.will is None
    again.pass_time(10.0)
    assert len(again.core.sessions) == 0


def test_queued_messages_expire_by_themselves(world: World) -> None:
    for seconds, qos in ((30.0, 1), (20.0, 1), (25.0, 0)):
        world.publish(Message("t", b"x", qos, expires_at=world.clock() + seconds))
    again = restarted(world)
    session = again.session("c")
    assert (len(session.queue), session.queued_qos_0) == (3, 1)
    for seconds, left in ((19.0, 3), (1.0, 2), (5.0, 1), (5.0, 0)):
        again.pass_time(seconds)
        assert len(session.queue) == left, "nobody has to come for it"


def test_new_identifiers_are_new(world: World) -> None:
    used = {number for rows in world.store.rows.values() for number in rows}
    again = restarted(world)
    assert again.core.journal.new_id() > max(used)


@pytest.mark.parametrize(
    "table", [Table.SESSION, Table.MESSAGE, Table.SUBSCRIPTION, Table.DELIVERY, Table.HELD, Table.RETAINED]
)
def test_a_row_that_is_lost_takes_only_what_hangs_on_it(world: World, table: Table) -> None:
    """As after a salvage: what belongs to nothing goes, and the rest is there and in order."""
    world.publish(Message("t", b"x", 2, True))
    world.commit()
    for number in [*world.store.rows[table]]:
        store = world.store
        row = store.rows[table].pop(number)
        again = World(copy_of(store), Clock(1.0), world.wall, queue_qos_0=True)
        again.commit()
        again.check_rows()
        session = again.core.sessions.get("c")
        assert (session is None) == (table is Table.SESSION), "its subscriptions must not go with its will"
        again.forget()
        store.rows[table][number] = row


def copy_of(store: FakeStore) -> FakeStore:
    copy = FakeStore()
    copy.rows = {table: dict(sorted(rows.items())) for table, rows in store.rows.items()}
    copy.noted = store.noted
    return copy


def test_of_two_sessions_with_one_name_the_newer_counts(world: World) -> None:
    store = copy_of(world.store)
    [(number, row)] = store.rows[Table.SESSION].items()
    store.rows[Table.SESSION][number + 1000] = row._replace(values=(*row.values[:7], None, 0, None))
    again = World(store, Clock(1.0), world.wall)
    assert len(again.core.sessions) == 1
    again.commit()
    again.check_rows()
    assert [*store.rows[Table.SESSION]] == [number + 1000]
    again.forget()

