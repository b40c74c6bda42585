"""The law of the fast lane with a store: as test_twins, over kills, clean stops and a disk that fails.

Both brokers have a store of their own. Whenever all is committed every peer has received the same, and both
would have the same after a restart.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import Broker, Capacity, Config, Limits
from broker.packet import packets as mqtt
from broker.packet.enums import Version
from broker.session.delivery import Delivery, QueuedRun, State
from broker.store.base import Table
from broker.store.repair import verify
from tests.durable import Machine, broken_disk, committed, journal_of, recovered, until
from tests.lane.test_away import VERSIONS
from tests.lane.twins import TURNS, Conversation, One, Side, of_queued
from tests.peer import Clock, run_async

PUBLISHER, READER, OTHER = 0, 1, 2


class DurableSide(Side):
    """One broker after the other, with the store that the one before has left."""

    def __init__(self, fast_lane: bool, folder: Path, limits: dict[str, Any]) -> None:
        capacity = Capacity(sweep_interval=0, fast_lane=fast_lane, sys_interval=0)
        self.machine = Machine(folder, Config(capacity=capacity, limits=Limits(**limits)))
        self.drops = Counter()
        self.clients: dict[int, One] = {}
        self.cut_off = True  # how much was read before a kill, nobody cares

    @property
    def clock(self) -> Clock:  # type: ignore[override]
        return self.machine.clock

    @property
    def broker(self) -> Broker:  # type: ignore[override]
        return self.machine.broker

    async def quiet(self) -> None:
        """Until all that was sent is handled, and what it changed is stored."""
        for _ in range(3):
            for _ in range(TURNS):
                await asyncio.sleep(0)
            await committed(self.broker)
            await until(lambda: not journal_of(self.broker)._busy)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def image(self) -> dict[str, Any]:
        image = super().image()
        sessions = {session.client_id: session for session in self.broker._core.sessions}
        return image | {"kept": {client_id: self.kept(each) for client_id, each in sessions.items()}}

    @staticmethod
    def kept(session: Any) -> list[Any]:
        """All that it has to deliver, in order; but for identifiers, and for what runs cost in flight."""
        runs = chain.from_iterable(run.deliveries() for run in session.inflight.runs or ())
        sent = sorted((*session.inflight.entries.values(), *runs), key=attrgetter("number"))
        found = [of_delivery(each) for each in sent]
        for queued in session.queue:
            found += map(of_delivery, queued.deliveries() if isinstance(queued, QueuedRun) else (queued,))
        return [*found, sum(of_queued(each, session.terms.overhead) for each in session.queue)]


def of_delivery(delivery: Delivery) -> tuple[Any, ...]:
    message, sent = delivery.message, delivery.state is not State.QUEUED
    return (message.topic_name, message.payload, dict(message.properties), message.client_id, sent)


def floods() -> st.SearchStrategy[dict[str, Any]]:
    messages = st.fixed_dictionaries(
        {
            "topic": st.sampled_from(("a", "a", "a", "a/b", "é/ü", "only/other")),
            "size": st.sampled_from((0, 3, 3, 50, 127)),
            "qos": st.sampled_from((1, 1, 1, 1, 1, 2, 0)),
            "retain": st.just(False),
            "dup": st.just(False),
            "properties": st.sampled_from(({}, {}, {}, {}, {"content_type": "x"})),
            "count": st.sampled_from((1, 2, 9, 30, 100)),
        }
    )
    return st.fixed_dictionaries(
        {
            "do": st.just("burst"),  # what is refused depends on time: see the stories
            "who": st.just(PUBLISHER),
            "messages": st.lists(messages, min_size=1, max_size=3),
            "mixed": st.sampled_from((False, False, False, True)),
            "cuts": st.just([]),
            "first": st.sampled_from((1, 300, 65_500)),
        }
    )


def events() -> st.SearchStrategy[dict[str, Any]]:
    who = st.sampled_from((READER, READER, OTHER))
    back = st.fixed_dictionaries(
        {
            "do": st.just("connect"),
            "who": who,
            "version": st.sampled_from(VERSIONS),
            "clean": st.sampled_from((False, False, False, False, False, True)),
            "window": st.sampled_from((1, 3, 9, 40, 65535)),
        }
    )
    acks = st.fixed_dictionaries(
        {
            "do": st.just("acknowledge"),
            "who": who,
            "count": st.sampled_from((1, 2, 5, 20, 1000)),
            "order": st.sampled_from(("same", "same", "same", "same", "reversed", "skipped")),
        }
    )
    leaves = st.fixed_dictionaries({"do": st.sampled_from(("drop", "disconnect")), "who": who})
    ends = st.fixed_dictionaries({"do": st.sampled_from(("kill", "stop")), "who": who})
    return st.one_of(floods(), floods(), floods(), back, back, acks, acks, leaves, ends)


async def compare(happening: list[dict[str, Any]], limits: dict[str, Any], folder: Path, five: bool) -> None:
    folders = folder / "fast", folder / "readable"
    for each in folders:
        each.mkdir()
    sides = DurableSide(True, folders[0], limits), DurableSide(False, folders[1], limits)
    async with sides[0].machine, sides[1].machine:
        talk = Conversation(sides)

        async def step(event: dict[str, Any]) -> None:
            await talk.step(event)
            for side in sides:
                await side.quiet()
            fast, readable = (side.image() for side in sides)
            assert fast == readable, event

        publisher = {"do": "connect", "who": PUBLISHER, "clean": True, "window": 65535}
        publisher["version"] = VERSIONS[not five]
        await step(publisher)
        for who, filters in (READER, ("a", "+/b", "#")), (OTHER, ("a", "only/#")):
            await step({"do": "connect", "who": who, "clean": False, "window": 65535, "version": VERSIONS[0]})
            for topic_filter in filters:
                await step({"do": "subscribe", "who": who, "filter": topic_filter, "qos": 1,
                            "no_local": False, "identifier": 0})  # fmt: skip
            await step({"do": "drop", "who": who})
        for event in happening:
            if event["do"] == "refused":
                await refuse(sides, talk, event)
                await step(publisher)
            elif event["do"] in ("kill", "stop"):
                for side in sides:
                    side.clients.clear()
                    await side.machine.restart_as(event["do"] == "kill")
                talk.versions.clear()
                await step(publisher)
            else:
                await step(event)
        for side in sides:
            assert verify(str(side.machine.path)).problems == []
            for session in side.broker._core.sessions:
                await side.broker.delete_session(session.client_id)
            await side.quiet()
            store: Any = journal_of(side.broker).store
            tables = (Table.MESSAGE, Table.DELIVERY, Table.RUN, Table.PART)
            assert not any([*store.read(table)] for table in tables), "nothing is left of what is over"


async def refuse(sides: tuple[DurableSide, ...], talk: Conversation, event: dict[str, Any]) -> None:
    """A burst that the disk does not take, short enough for one turn of the loop; then it works again."""
    few = [{**message, "count": min(message["count"], 20)} for message in event["messages"]]
    event = {**event, "messages": few}
    for side in sides:
        journal = journal_of(side.broker)
        one_turn = mock.patch("broker.client.monotonic", lambda: 0.0)  # however busy the machine is
        with broken_disk(side.broker), one_turn:
            before, alone = journal.changes, Conversation((side,))  # type: ignore[arg-type]
            alone.versions = talk.versions
            alone.burst(event["who"], event)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if journal.changes != before:  # else, or if all of it is gone again, nothing is written
                await until(lambda journal=journal: journal.failure is not None or not journal.latest)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        await recovered(side.broker)
        await side.quiet()


@settings(max_examples=25, deadline=None)
@given(
    happening=st.lists(events(), min_size=3, max_size=15),
    most=st.sampled_from((10, 150, 1000)),
    policy=st.sampled_from(("drop_newest", "drop_oldest")),
    five=st.booleans(),
)
def test_what_is_stored_is_the_same(
    happening: list[dict[str, Any]], most: int, policy: str, five: bool
) -> None:
    limits = {"maximum_queued_messages": most, "queue_full": policy}
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(happening, limits, Path(folder), five))


def burst(count: int, size: int = 3, do: str = "burst", **properties: str) -> dict[str, Any]:
    message = {"topic": "a", "size": size, "qos": 1, "retain": False, "dup": False, "count": count}
    messages = [{**message, "properties": properties}]
    return {"do": do, "who": PUBLISHER, "messages": messages, "mixed": False, "cuts": [], "first": 1}


def back(window: int, version: Version = Version.MQTT_5, who: int = READER) -> dict[str, Any]:
    return {"do": "connect", "who": who, "version": version, "clean": False, "window": window}


def acks(count: int, order: str = "same", who: int = READER) -> dict[str, Any]:
    return {"do": "acknowledge", "who": who, "count": count, "order": order}


KILL, STOP, DROP = ({"do": do, "who": READER} for do in ("kill", "stop", "drop"))
STORIES: dict[str, list[dict[str, Any]]] = {
    "refused while nobody is there": [burst(5), burst(20, do="refused"), KILL, back(65535)],
    "refused while the reader is there": [back(3), burst(20, do="refused"), burst(9), KILL, back(65535)],
    "refused, when some were dropped": [burst(5), burst(12, do="refused"), KILL, back(65535)],
    "refused, and thawed before": [
        *(burst(20), back(3), burst(20, do="refused"), burst(2), acks(2), KILL, back(65535)),
    ],
    "killed at each step": [
        *(burst(30), KILL, back(9), KILL, back(9), acks(4), KILL, back(40), acks(3, "reversed"), KILL),
        *(back(65535), acks(1000), KILL, back(65535)),
    ],
    "singles between runs": [
        *(burst(12), burst(1, content_type="x"), burst(12, 50), back(5), acks(1, "skipped"), STOP, back(3)),
        *(burst(2, content_type="y"), burst(40), KILL, back(65535, Version.MQTT_3_1_1), KILL, back(65535)),
    ],
    "new rows after a restart": [
        *(burst(30), KILL, burst(9, content_type="x"), back(65535, who=OTHER), acks(3, "skipped", OTHER)),
        *(KILL, back(65535, who=OTHER), back(65535)),
    ],
    "no room": [burst(160), burst(9), KILL, back(40), acks(20), DROP, burst(30), STOP, back(65535)],
}


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
@pytest.mark.parametrize("most", [10, 150])
@pytest.mark.parametrize("story", STORIES)
def test_a_story(story: str, most: int, policy: str, tmp_path: Path) -> None:
    limits = {"maximum_queued_messages": most, "queue_full": policy}
    asyncio.run(compare(STORIES[story], limits, tmp_path, True))


@run_async
async def test_what_was_sent_is_sent_again_with_the_same_identifiers(tmp_path: Path) -> None:
    async with Machine(tmp_path, Config(capacity=Capacity(sweep_interval=0, fast_lane=True))) as machine:
        reader, publisher = machine.peer(), machine.peer()
        await reader.connect("r", properties={"session_expiry_interval": 1000})
        await reader.subscribe("a", qos=1)
        await publisher.connect("p")
        publisher.send(*(mqtt.Publish("a", b"%d" % n, 1, packet_id=n + 70) for n in range(20)))
        came = [await reader.expect(mqtt.Publish) for _ in range(20)]
        sent = {packet.payload: packet.packet_id for packet in came}
        session = machine.broker._core.sessions.get("r")
        assert session is not None and session.inflight.runs and not session.inflight.entries
        reader.send(*(mqtt.Puback(sent[b"%d" % n]) for n in range(7)))
        await reader.expect_nothing()
        for kill in (True, False):
            await machine.restart_as(kill)
            reader = machine.peer()
            await reader.connect("r", clean_start=False, properties={"session_expiry_interval": 1000})
            again = [await reader.expect(mqtt.Publish) for _ in range(13)]
            assert all(packet.dup for packet in again)
            assert [(packet.payload, packet.packet_id) for packet in again] == [*sent.items()][7:]
            await reader.expect_nothing()
