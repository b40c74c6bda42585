"""A restart is a network cut: whatever sessions went through, the store brings back the same ones."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.packet.enums import PacketType
from broker.packet.message import Message
from broker.packet.packets import NO_PROPERTIES
from broker.session.inflight import State
from broker.session.session import FOR_EVER
from broker.session.will import PendingWill
from broker.topic.subscription import Subscription
from tests.peer import Clock
from tests.session.world import World
from tests.store.make import FakeStore

CLIENTS = st.sampled_from(["ann", "bob", "cid"])
TOPICS = st.sampled_from(["a", "a/b", "c"])
FILTERS = st.sampled_from(["a", "a/#", "+/b", "#", "$share/g/a/#", "$share/h/#", "$share/g/c"])
INTERVALS = st.sampled_from([0, 0, 5, 60, 3600, FOR_EVER])
PROPERTIES = st.sampled_from(
    [
        NO_PROPERTIES,
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

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.commit()
            self.world.check_rows()
            self.restarted(0.0, goes_on=False)
            self.world.forget()

    # ---- connections

    @rule(
        client_id=CLIENTS,
        interval=INTERVALS,
        window=st.integers(1, 4),
        delay=st.sampled_from([None, None, 0, 3, 100]),
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

    def connected(self, client_id: str) -> bool:
        return client_id in self.world.links

    def has(self, client_id: str) -> bool:
        return self.world.core.sessions.get(client_id) is not None

    @rule(client_id=CLIENTS, normal=st.booleans())
    def leave(self, client_id: str, normal: bool) -> None:
        if not self.connected(client_id):
            return
        self.world.cut(client_id, normal=normal)

    @rule(client_id=CLIENTS, interval=INTERVALS)
    def disconnect_with_another_interval(self, client_id: str, interval: int) -> None:
        if not self.connected(client_id):
            return
        session = self.world.session(client_id)
        if interval and not session.expiry_interval:
            return
        session.expiry_interval = interval
        self.world.cut(client_id)

    @rule(client_id=CLIENTS)
    def end(self, client_id: str) -> None:
        if not self.has(client_id):
            return
        self.world.end(client_id)

    @rule(client_id=CLIENTS, full=st.booleans())
    def socket(self, client_id: str, full: bool) -> None:
        if not self.connected(client_id):
            return
        self.world.links[client_id].full = full
        self.world.session(client_id).pump()

    # ---- subscriptions

    @rule(
        client_id=CLIENTS,
        topic_filter=FILTERS,
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        as_published=st.booleans(),
        handling=st.integers(0, 2),
        identifier=st.sampled_from([(), (1,), (268_435_455,)]),
    )
    def subscribe(
        self,
        client_id: str,
        topic_filter: str,
        qos: int,
        no_local: bool,
        as_published: bool,
        handling: int,
        identifier: tuple[int, ...],
    ) -> None:
        if not self.connected(client_id):
            return
        share = topic_filter.split("/")[1] if topic_filter.startswith("$share/") else ""
        no_local = no_local and not share
        self.world.subscribe(
            client_id, Subscription(topic_filter, qos, no_local, as_published, handling, identifier, share)
        )

    @rule(client_id=CLIENTS, topic_filter=FILTERS)
    def unsubscribe(self, client_id: str, topic_filter: str) -> None:
        if not self.connected(client_id):
            return
        self.world.unsubscribe(client_id, topic_filter)

    # ---- messages

    @rule(
        topic_name=TOPICS,
        qos=st.integers(0, 2),
        retain=st.booleans(),
        empty=st.booleans(),
        properties=PROPERTIES,
        expires=st.sampled_from([None, None, 2, 30]),
        publisher=st.sampled_from(["ann", "p", ""]),
        large=st.booleans(),
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
        large: bool,
    ) -> None:
        self.sent += 1
        payload = b"" if empty and retain else b"%d" % self.sent + large * b"x" * 100
        message = Message(topic_name, payload, qos, retain, properties, publisher)
        if expires is not None:
            message.expires_at = self.world.clock() + expires
        self.world.publish(message)

    @rule(client_id=CLIENTS, qos=st.integers(1, 2))
    def deliver_retained(self, client_id: str, qos: int) -> None:
        if not self.connected(client_id):
            return
        for message in self.world.core.retained.find("#", self.world.clock()):
            if message is not None:
                self.world.session(client_id).deliver_retained(message, qos, (3,))

    @rule(client_id=CLIENTS, which=st.integers(0, 5), code=st.sampled_from([0, 0, 0x80]))
    def acknowledge(self, client_id: str, which: int, code: int) -> None:
        if not self.connected(client_id):
            return
        session = self.world.session(client_id)
        entries = [one for one in session.inflight.entries.values() if one not in session.inflight.resend]
        if not entries:
            return
        delivery = entries[which % len(entries)]
        session.acknowledge(delivery.packet_id, ANSWERS[delivery.state], code)

    @rule(client_id=CLIENTS, packet_id=st.integers(1, 3), properties=PROPERTIES)
    def hold(self, client_id: str, packet_id: int, properties: Any) -> None:
        if not self.connected(client_id):
            return
        session = self.world.session(client_id)
        if packet_id in session.inflight.held:
            return
        self.sent += 1
        session.hold(packet_id, Message("a", b"held %d" % self.sent, 2, False, properties, client_id))

    @rule(client_id=CLIENTS, packet_id=st.integers(1, 3), refused=st.booleans())
    def release(self, client_id: str, packet_id: int, refused: bool) -> None:
        """PUBREL; *refused*: the store could not keep it, and its PUBREC says so."""
        if not self.connected(client_id):
            return
        message = self.world.session(client_id).let_go(packet_id)
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
        world.publish(message)
        number = journal.promise(before, topic_name)
        if not number:
            return

        class Refuses:
            def committed(self, number: int) -> bool:
                raise AssertionError("the disk is full")

            def not_committed(self, number: int, failure: Exception) -> bool:
                journal.revoke(message)
                return False

        journal.wait(Refuses())
        world.store.fail()
        try:
            world.run(turns())
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
        lasting = [session.client_id for session in world.core.sessions if session.state is not None]
        connected = sorted(
            session.client_id
            for session in world.core.sessions
            if session.connected and (session.state is not None or session.will is not None)
        )
        again = world.again(down)
        assert again.left == connected
        assert not [one for one in again.drops if one[1] == "orphan"]
        world.clock.now += down  # those that are connected leave when the broker is there again
        world.wall.now += down
        world.cut_all()
        for one in (world, again):
            one.commit()
            one.sweep()
            one.commit()
        assert again.image() == world.image()
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
                assert links[0].take() == links[1].take()

    @invariant()
    def only_sessions_that_last_are_kept(self) -> None:
        if hasattr(self, "world"):
            for session in self.world.core.sessions:
                assert session.state in (None, session.recorder)
                assert session.state is None or session.expiry_interval > 0


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


TestRestartLaw = RestartLaw.TestCase
TestRestartLaw.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
