"""All sessions of a broker, on a store of dictionaries: links write down what they are given."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any
from unittest import mock

from broker import core as cores
from broker.config import Capacity, Config, Limits, Store
from broker.core import Core, assemble, open_store
from broker.handle.disconnect import _keep_session, after_restart, due_work, end_session, finish, publish_will
from broker.packet.message import Message
from broker.session.delivery import Delivery
from broker.session.record import record_session
from broker.session.session import Session
from broker.session.terms import NEVER, PendingWill
from broker.store import journal as journals
from broker.store.base import Table
from broker.topic.subscription import Subscription
from tests.peer import Clock
from tests.session.make import FakeLink
from tests.store.make import FakeStore, HandWriter, loop_of


class AtOnce(HandWriter):
    """A batch is committed at the end of the turn in which it was handed over."""

    at_once = True


async def at_once(call: Callable[..., Any]) -> Any:
    """In the place of a thread."""
    return call()


class World:
    """Sessions, retained messages and who subscribes to what, on one store."""

    def __init__(self, store: FakeStore, clock: Clock, wall: Clock, **limits: Any) -> None:
        self.store, self.clock, self.wall, self._limits = store, clock, wall, limits
        self.drops: list[tuple[str, str]] = []
        self.links: dict[str, FakeLink] = {}
        self.loop = loop_of(clock)
        config = Config(
            store=Store(path="fake.db"), limits=Limits(**limits), capacity=Capacity(maximum_bytes=1 << 22)
        )
        with mock.patch.object(cores, "SqliteStore", lambda *_: store):
            self.core: Core = assemble(config, (), clock, self._dropped, lambda _: iter(()))
        self.run(self._open())

    async def _open(self) -> None:
        with mock.patch.object(journals, "Writer", AtOnce), mock.patch.object(asyncio, "to_thread", at_once):
            left = await open_store(self.core, self.wall)
        self.core.journal.ready = True
        self.left = sorted(session.client_id for session in left)
        await after_restart(self.core, left)

    def _dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        self.drops.append((client_id, reason))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def commit(self) -> None:
        """Everything gets to the store."""
        journal = self.core.journal

        async def quiet() -> None:
            await journal.settle(journal.latest)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not journal.latest and not journal._busy

        self.run(quiet())

    def forget(self) -> None:
        """The process is gone."""
        self.loop.close()

    def again(self, down: float = 0.0) -> World:
        """A world after a crash of this one, *down* seconds later; this one may go on by itself."""
        return World(copy.deepcopy(self.store), Clock(50.0), Clock(self.wall() + down), **self._limits)

    # ---- connections

    def session(self, client_id: str) -> Session:
        session = self.core.sessions.get(client_id)
        assert session is not None
        return session

    def connect(
        self,
        client_id: str,
        interval: int = 60,
        window: int = 10,
        will: PendingWill | None = None,
        keeps_retain: bool = True,
    ) -> FakeLink:
        """As handle/connect.py does it, without packets and hooks."""
        core = self.core
        session, present = core.sessions.get_or_create(client_id)
        if present and session.connected:
            self.cut(client_id)
            session, present = core.sessions.get_or_create(client_id)
        if not present:
            session.charge(core.sessions.cost(client_id, f"user of {client_id}"))
        session.expiry_interval = interval
        session.set_will(will)
        session.user_name = f"user of {client_id}"
        record_session(session, core.journal)
        link = self.links[client_id] = FakeLink()
        link.keeps_retain = keeps_retain
        session.attach(link, window)
        session.pump()
        return link

    def cut(self, client_id: str, *, normal: bool = False) -> None:
        """The connection ends; *normal*: by DISCONNECT 0x00, which deletes the will."""
        session = self.session(client_id)
        del self.links[client_id]
        left_at = self.clock()
        assert session.detach(session.link)
        if normal:
            session.set_will(None)
        if session.expiry_interval == 0:
            self.run(finish(end_session(self.core, session)))
        else:
            self.run(finish(_keep_session(self.core, session, left_at)))

    def cut_all(self) -> None:
        """What a restart is to look like: the network goes away, for all at once."""
        links = dict(self.links)
        self.links.clear()
        sessions = [session for session in self.core.sessions if session.client_id in links]
        for session in sessions:
            assert session.detach(session.link)
        self.run(after_restart(self.core, sessions))

    def end(self, client_id: str) -> None:
        self.links.pop(client_id, None)
        session = self.session(client_id)
        session.detach(session.link)
        self.run(finish(end_session(self.core, session)))

    def publish_will(self, client_id: str) -> None:
        self.run(publish_will(self.core, self.session(client_id)))

    # ---- subscriptions and messages

    def subscribe(self, client_id: str, subscription: Subscription) -> None:
        session = self.session(client_id)
        session.subscribe(subscription)
        self.core.tree.subscribe(session, subscription)

    def unsubscribe(self, client_id: str, topic_filter: str) -> None:
        session = self.session(client_id)
        if session.unsubscribe(topic_filter):
            self.core.tree.unsubscribe(session, topic_filter)
            if topic_filter.startswith("$share/"):
                self.core.router.hand_on(session, session.take_shared(topic_filter))

    def publish(self, message: Message) -> None:
        self.run(self.core.router.publish_owned(message))

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds
        self.sweep()

    def sweep(self) -> None:
        core, now = self.core, self.clock()

        async def all_of_it() -> None:
            for work in due_work(core, now):
                await work

        self.run(all_of_it())
        core.retained.clean_expired(now)
        core.sessions.drop_expired(now)

    # ---- what is there

    def left_after(self, when: float) -> float | None:
        """A deadline, as seconds from now."""
        return None if when == NEVER else round(when - self.clock(), 6)

    def of_message(self, message: Message) -> tuple[Any, ...]:
        expires = None if message.expires_at is None else self.left_after(message.expires_at)
        properties = sorted((name, str(value)) for name, value in message.properties.items())
        fields = (message.topic_name, message.payload, message.qos, message.retain, message.client_id)
        return (*fields, properties, expires)

    def of_delivery(self, one: Delivery) -> tuple[Any, ...]:
        options = (one.qos, one.retain, one.requested, one.identifiers, one.share, one.packet_id)
        return (self.of_message(one.message), *options, one.state.name)

    def of_session(self, session: Session) -> dict[str, Any]:
        will = session.will
        return {
            "user": (session.user_name, session.version, session.expiry_interval),
            "will": None if will is None else (self.of_message(will.message), will.delay),
            "deadlines": (self.left_after(session.ends_at), self.left_after(session.will_due)),
            "subscriptions": sorted(session.subscriptions.values(), key=lambda each: each.topic_filter),
            "queue": [self.of_delivery(one) for one in session.queue],
            "in flight": [self.of_delivery(one) for one in session.inflight.entries.values()],
            "held": {number: self.of_message(one) for number, one in session.inflight.held.items()},
            "bytes": (session.bytes, session.fixed_bytes, session.queued_qos_0),
        }

    def image(self) -> dict[str, Any]:
        """Everything that a restart must bring back, by client."""
        core = self.core
        found: dict[str, Any] = {session.client_id: self.of_session(session) for session in core.sessions}
        now = self.clock()
        retained = [self.of_message(one) for one in chain.from_iterable(core.retained.stretches("#", now))]
        found["retained"] = sorted(retained, key=str), core.retained.size
        found["budget"] = core.budget.used
        return found

    def matches(self, topic_name: str) -> list[Any]:
        """Who would get a message, with what options; identifiers of merged subscriptions in any order."""
        route = self.core.tree.match(topic_name)
        direct = sorted((found.subscriber.client_id, *options(found)) for found in route.direct)
        groups = [sorted((one.client_id, *options(found)) for one, found in group) for group in route.groups]
        return [direct, sorted(groups)]

    # ---- the rows

    def check_rows(self) -> None:
        """Each row belongs to something that is there, and each message is counted by those that hold it."""
        holders: dict[int, int] = {}
        wanted = dict.fromkeys(Table, 0)

        def holds(message: Message) -> None:
            number = message.record.id
            holders[number] = holders.get(number, 0) + 1
            assert message.record.journal is self.core.journal

        for session in self.core.sessions:
            if session.state is not None:
                deliveries = [*session.queue, *session.inflight.entries.values()]
                wanted[Table.SUBSCRIPTION] += len(session.subscriptions)
                wanted[Table.DELIVERY] += len(deliveries)
                wanted[Table.HELD] += len(session.inflight.held)
                for delivery in deliveries:
                    assert delivery.record is session.state
                    holds(delivery.message)
                for held in session.inflight.held.values():
                    holds(held)
            will = session.will
            if session.state is not None or will is not None:
                wanted[Table.SESSION] += 1
            if will is not None:
                holds(will.message)
        for message in chain.from_iterable(self.core.retained.stretches("#", -1e9)):
            wanted[Table.RETAINED] += 1
            holds(message)
        wanted[Table.MESSAGE] = len(holders)
        assert {table: len(rows) for table, rows in self.store.rows.items()} == wanted
        assert self.store.rows[Table.MESSAGE].keys() == holders.keys()


def options(one: Subscription) -> tuple[Any, ...]:
    """What counts of it when a message comes; which one of several merged gives its name does not."""
    flags = (one.qos, one.no_local, one.retain_as_published, sorted(one.identifiers), one.own is None)
    return (*flags, one.topic_filter if one.share_name else "")


Step = Callable[[World], None]
