"""SIGKILL at every step between the arrival of a packet and the last byte of its answer, one by one.

A flow is what clients do around the one packet that is looked at: everything before `armed` is over and
stored, then comes the packet, and with it the end of the broker. The table says what must be left of it
in the store, seen from outside: who comes back first finds just that, before anybody repeats anything.
Then all clients come back and go on as the standard says, and every rule of `checker` must hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import wire
from tests.faults import test_dedup as dedup
from tests.faults.checker import check
from tests.faults.crowd import look
from tests.faults.daemon import WAIT, Restartable
from tests.faults.history import Arrived, Drained, Found, History, Killed
from tests.faults.killer import MISSING, PLACES, TAKES, VARIABLE, Place, find, reachable
from tests.faults.peer import Peer
from tests.peer import run_async

SETTINGS = (
    "capacity.sys_interval=0",
    "store.fsync=normal",
    "limits.outbound_receive_maximum=1",  # so that a second message waits in the session
)
COMMIT_TAKES = 0.05  # seconds
QUIET = 0.15  # seconds in which nothing may come that is not in the table
TOPIC = "point/x"


class Scene:
    """One broker that will be killed, and its clients."""

    def __init__(self, broker: Restartable, version: int) -> None:
        self.broker, self.version = broker, version
        self.history: History = []
        self.peers: list[Peer] = []

    def peer(self, client_id: str) -> Peer:
        peer = Peer(client_id, self.history, version=self.version, port=self.broker.port)
        self.peers.append(peer)
        return peer

    async def pair(self, qos: int, *withhold: str) -> tuple[Peer, Peer]:
        """A publisher, and a subscriber that answers nothing of *withhold*; one message went through."""
        publisher, subscriber = self.peer("pub"), self.peer("sub")
        await publisher.connect()
        await subscriber.connect()
        await subscriber.subscribe(TOPIC, qos)
        publisher.publish(TOPIC, qos)
        await self.complete()
        subscriber.withhold = set(withhold)
        return publisher, subscriber

    async def complete(self) -> None:
        """Every flow of every client is over, on both sides."""
        for peer in self.peers:
            await peer.finished()
        for peer in self.peers:
            await peer.ping()
            await peer.until(lambda peer=peer: not peer.taken, "PUBREL")
            await peer.ping()  # the broker has read our last acknowledgement

    async def armed(self) -> None:
        """From now on the place that was chosen is deadly."""
        await asyncio.sleep(0.02)  # nothing is on its way to the disk any more
        os.kill(self.broker.pid, signal.SIGUSR1)
        await _blocking(self.broker.says, "armed")

    async def dead(self) -> None:
        """The broker has killed itself, and lives again without that habit."""
        status = await asyncio.wait_for(_blocking(self.broker.ended), WAIT)
        assert status == -signal.SIGKILL, status
        self.history.append(Killed("broker"))
        for peer in self.peers:
            await asyncio.wait_for(peer.over(), WAIT)
            peer.withhold.clear()
        await _blocking(self.broker.start)

    async def settled(self) -> None:
        """Everybody is back, everything is repeated: now all rules hold, for one more message as well."""
        for peer in self.peers:
            if not peer.connected:
                await peer.connect()
        await self.complete()
        await asyncio.sleep(QUIET)
        breaches = check([*self.history, Drained("all")])
        assert not breaches, "\n".join(breaches)


async def _blocking(function: Callable[..., object], *args: str) -> object:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


@contextlib.asynccontextmanager
async def scene(store: Path, version: int, point: str, *more: str) -> AsyncIterator[Scene]:
    with contextlib.closing(Restartable(store, (*SETTINGS, *more))) as broker:
        broker.start(module="tests.faults.killer", **{VARIABLE: point, TAKES: str(COMMIT_TAKES)})
        here = Scene(broker, version)
        try:
            yield here
        finally:
            for peer in here.peers:
                await peer.drop()
    assert not broker.complaints, broker.complaints


def shown(packet: wire.Packet) -> str:
    return packet.name + (" DUP" if packet.dup else "")


async def first(peer: Peer, wanted: str) -> str:
    """What *peer* gets by itself when it comes back; *wanted* is waited for."""
    assert (await peer.connect()).session_present
    flow = (wire.PUBLISH, wire.PUBREL)
    with contextlib.suppress(TimeoutError):
        within = WAIT if wanted else QUIET
        await peer.until(lambda: any(p.type in flow for p in peer.seen), wanted, within)
    return " ".join(shown(packet) for packet in peer.seen[:1] if packet.type in flow)


# ---- messages. What is left: what the subscriber gets before the publisher is back

Flow = Callable[[Scene, int], Awaitable[Peer]]


async def publish_1(here: Scene, qos: int) -> Peer:
    """PUBLISH at QoS 1 to a subscriber that is there and acknowledges nothing."""
    publisher, subscriber = await here.pair(1, "PUBLISH")
    await here.armed()
    publisher.publish(TOPIC, 1)
    return subscriber


async def publish_2(here: Scene, qos: int) -> Peer:
    """PUBLISH at QoS 2: it is held."""
    publisher, subscriber = await here.pair(2, "PUBLISH")
    publisher.withhold = {"PUBREC"}
    await here.armed()
    publisher.publish(TOPIC, 2)
    return subscriber


async def release_2(here: Scene, qos: int) -> Peer:
    """PUBREL of the publisher: what was held is routed."""
    publisher, subscriber = await here.pair(2, "PUBLISH")
    publisher.withhold = {"PUBREC"}
    publisher.publish(TOPIC, 2)
    await publisher.until(lambda: any(each.released for each in publisher.unfinished.values()), "PUBREC")
    await here.armed()
    publisher.raw(wire.pubrel(next(iter(publisher.unfinished)), version=here.version))
    return subscriber


async def away(here: Scene, qos: int) -> Peer:
    """PUBLISH to a subscriber that is not there."""
    publisher, subscriber = await here.pair(qos)
    await subscriber.disconnect()
    await here.armed()
    publisher.publish(TOPIC, qos)
    return subscriber


async def come_back(here: Scene, qos: int) -> Peer:
    """CONNECT of a subscriber for whom a message waits."""
    publisher, subscriber = await here.pair(qos)
    await subscriber.disconnect()
    publisher.publish(TOPIC, qos)
    await publisher.finished()
    subscriber.withhold = {"PUBLISH"}
    await here.armed()
    ask(subscriber.connect())
    return subscriber


def ask(question: Coroutine[Any, Any, object]) -> None:
    """Begin something that will not be answered, or not before the end."""
    task = asyncio.ensure_future(question)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _delivered(here: Scene, qos: int, withhold: str) -> tuple[Peer, int]:
    """The publisher is done with a message, the subscriber has not answered *withhold*; its identifier."""
    publisher, subscriber = await here.pair(qos, withhold)
    publisher.publish(TOPIC, qos)
    await publisher.finished()
    kind = {"PUBLISH": wire.PUBLISH, "PUBREL": wire.PUBREL}[withhold]
    await subscriber.until(lambda: subscriber.seen[-1].type == kind, withhold)
    await subscriber.ping()
    return subscriber, subscriber.seen[-2].packet_id or 0


async def acknowledge(here: Scene, qos: int) -> Peer:
    """PUBACK or PUBREC of the subscriber."""
    subscriber, packet_id = await _delivered(here, qos, "PUBLISH")
    subscriber.withhold = {"PUBLISH", "PUBREL"}
    await here.armed()
    subscriber.raw((wire.puback if qos == 1 else wire.pubrec)(packet_id, version=here.version))
    return subscriber


async def make_room(here: Scene, qos: int) -> Peer:
    """PUBACK or PUBCOMP of the subscriber, after which the next message leaves the queue."""
    withheld = {1: "PUBLISH", 2: "PUBREL"}[qos]
    subscriber, packet_id = await _delivered(here, qos, withheld)
    publisher = here.peers[0]
    publisher.publish(TOPIC, qos)
    await publisher.finished()
    subscriber.withhold = {"PUBLISH"}
    await here.armed()
    subscriber.raw((wire.puback if qos == 1 else wire.pubcomp)(packet_id, version=here.version))
    return subscriber


async def complete_2(here: Scene, qos: int) -> Peer:
    """PUBCOMP of the subscriber."""
    subscriber, packet_id = await _delivered(here, 2, "PUBREL")
    await here.armed()
    subscriber.raw(wire.pubcomp(packet_id, version=here.version))
    return subscriber


NOTHING, PUBLISH, AGAIN, PUBREL = "", "PUBLISH", "PUBLISH DUP", "PUBREL"

# flow -> QoS -> place -> what is left, where each message is stored by itself
MESSAGES: dict[Flow, dict[int, dict[str, str]]] = {
    publish_1: {1: {
        "PUBLISH arrives: before": NOTHING,
        "append message: after": NOTHING,
        "append delivery: after": NOTHING,
        "route: after": NOTHING,
        "PUBLISH arrives: after": NOTHING,
        "close batch: before": NOTHING,
        "close batch: after": NOTHING,
        "commit: before": NOTHING,
        "PUBLISH leaves: before": NOTHING,  # at QoS 1 it waits for no disk
        "PUBLISH leaves: after": NOTHING,
        "commit: after": AGAIN,
        "release: before": AGAIN,
        "release: after": AGAIN,
        "PUBACK leaves: before": AGAIN,
        "PUBACK leaves: after": AGAIN,
    }},
    publish_2: {2: {
        "PUBLISH arrives: before": NOTHING,
        "append held: after": NOTHING,
        "PUBLISH arrives: after": NOTHING,
        "commit: before": NOTHING,
        "commit: after": NOTHING,
        "release: after": NOTHING,
        "PUBREC leaves: before": NOTHING,
        "PUBREC leaves: after": NOTHING,
    }},
    release_2: {2: {
        "PUBREL arrives: before": NOTHING,
        "append deletion: after": NOTHING,
        "append delivery: after": NOTHING,
        "route: before": NOTHING,
        "route: after": NOTHING,
        "PUBREL arrives: after": NOTHING,
        "commit: before": NOTHING,
        "commit: after": AGAIN,
        "release: before": AGAIN,
        "PUBLISH leaves: before": AGAIN,
        "PUBLISH leaves: after": AGAIN,
        "PUBCOMP leaves: before": AGAIN,
        "PUBCOMP leaves: after": AGAIN,
    }},
    away: {
        1: {"commit: before": NOTHING, "commit: after": PUBLISH, "PUBACK leaves: after": PUBLISH},
        2: {"route: after": NOTHING, "PUBREC leaves: after": NOTHING, "PUBCOMP leaves: before": PUBLISH},
    },
    come_back: {qos: {
        "CONNECT arrives: before": PUBLISH,
        "append delivery: after": PUBLISH,
        "commit: before": PUBLISH,
        "commit: after": AGAIN,
        "CONNACK leaves: after": AGAIN,
        "PUBLISH leaves: before": AGAIN,
        "PUBLISH leaves: after": AGAIN,
    } for qos in (1, 2)},
    acknowledge: {
        1: {
            "PUBACK arrives: before": AGAIN,
            "append deletion: after": AGAIN,
            "PUBACK arrives: after": AGAIN,
            "commit: before": AGAIN,
            "commit: after": NOTHING,
            "release: after": NOTHING,
        },
        2: {
            "PUBREC arrives: before": AGAIN,
            "append delivery: after": AGAIN,
            "PUBREC arrives: after": AGAIN,
            "commit: before": AGAIN,
            "commit: after": PUBREL,
            "release: before": PUBREL,
            "PUBREL leaves: before": PUBREL,
            "PUBREL leaves: after": PUBREL,
        },
    },
    make_room: {
        1: {"commit: before": AGAIN, "commit: after": AGAIN, "PUBLISH leaves: after": AGAIN},
        2: {
            "append deletion: after": PUBREL,
            "append delivery: after": PUBREL,
            "commit: before": PUBREL,
            "commit: after": AGAIN,
            "PUBLISH leaves: before": AGAIN,
            "PUBLISH leaves: after": AGAIN,
        },
    },
    complete_2: {2: {
        "PUBCOMP arrives: before": PUBREL,
        "append deletion: after": PUBREL,
        "PUBCOMP arrives: after": PUBREL,
        "commit: before": PUBREL,
        "commit: after": NOTHING,
    }},
}  # fmt: skip


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("flow", "qos", "point", "left"),
    [
        pytest.param(flow, qos, point, left, id=f"{flow.__name__}-QoS {qos}-{point}")
        for flow, levels in MESSAGES.items()
        for qos, points in levels.items()
        for point, left in points.items()
        if reachable(point)
    ],
)
@run_async
async def test_messages(flow: Flow, qos: int, point: str, left: str, version: int, tmp_path: Path) -> None:
    await _message(flow, qos, left, scene(tmp_path / "point.db", version, point, "capacity.fast_lane=false"))


# The same for what the fast lane takes: QoS 1, stored in runs.
RUNS: dict[Flow, dict[str, str]] = {
    publish_1: {
        "lane takes PUBLISH: before": NOTHING,
        "append run: after": NOTHING,
        "append part: after": NOTHING,
        "lane takes PUBLISH: after": NOTHING,
        "close batch: before": NOTHING,
        "close batch: after": NOTHING,
        "commit: before": NOTHING,
        "PUBLISH leaves: before": NOTHING,
        "PUBLISH leaves: after": NOTHING,
        "commit: after": AGAIN,
        "release: before": AGAIN,
        "PUBACK leaves: before": AGAIN,
        "PUBACK leaves: after": AGAIN,
    },
    away: {
        "append run: after": NOTHING,
        "append part: after": NOTHING,
        "commit: before": NOTHING,
        "commit: after": PUBLISH,
        "release: before": PUBLISH,
        "PUBACK leaves: before": PUBLISH,
        "PUBACK leaves: after": PUBLISH,
    },
    come_back: {
        "CONNECT arrives: before": PUBLISH,
        "append part: after": PUBLISH,
        "commit: before": PUBLISH,
        "commit: after": AGAIN,
        "CONNACK leaves: after": AGAIN,
        "PUBLISH leaves: before": AGAIN,
        "PUBLISH leaves: after": AGAIN,
    },
    acknowledge: {
        "lane takes PUBACK: before": AGAIN,
        "append deletion: after": AGAIN,
        "lane takes PUBACK: after": AGAIN,
        "commit: before": AGAIN,
        "commit: after": NOTHING,
        "release: after": NOTHING,
    },
    make_room: {
        "append deletion: after": AGAIN,
        "append delivery: after": AGAIN,
        "commit: before": AGAIN,
        "commit: after": AGAIN,
        "PUBLISH leaves: before": AGAIN,
        "PUBLISH leaves: after": AGAIN,
    },
}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("flow", "point", "left"),
    [
        pytest.param(flow, point, left, id=f"{flow.__name__}-{point}")
        for flow, points in RUNS.items()
        for point, left in points.items()
        if reachable(point)
    ],
)
@run_async
async def test_runs(flow: Flow, point: str, left: str, version: int, tmp_path: Path) -> None:
    await _message(flow, 1, left, scene(tmp_path / "point.db", version, point, "capacity.fast_lane=true"))


async def _message(
    flow: Flow, qos: int, left: str, setting: contextlib.AbstractAsyncContextManager[Scene]
) -> None:
    async with setting as here:
        subscriber = await flow(here, qos)
        await here.dead()
        assert await first(subscriber, left) == left
        await here.settled()
        publisher = next(peer for peer in here.peers if peer.client_id == "pub")
        last = publisher.publish(TOPIC, qos)
        await here.settled()
        came = {each.tag.number for each in here.history if isinstance(each, Arrived)}
        assert came == set(range(1, last.number + 1))


# ---- what else is stored. What is left: whether it happened, as far as whoever comes back can see

Probe = Callable[[Scene], Awaitable[bool]]


async def subscribe(here: Scene) -> Probe:
    """SUBSCRIBE to another filter."""
    _, subscriber = await here.pair(1)
    await here.armed()
    ask(subscriber.subscribe("other/x", 1))
    return is_subscribed


async def unsubscribe(here: Scene) -> Probe:
    """UNSUBSCRIBE from one of two filters."""
    _, subscriber = await here.pair(1)
    await subscriber.subscribe("other/x", 1)
    await here.armed()
    ask(subscriber.unsubscribe("other/x"))
    return is_subscribed


async def is_subscribed(here: Scene) -> bool:
    publisher, subscriber = here.peers
    await subscriber.connect()
    await publisher.connect()
    tag = publisher.publish("other/x", 1)
    await here.complete()
    return any(isinstance(each, Arrived) and each.tag == tag for each in here.history)


async def begin(here: Scene) -> Probe:
    """CONNECT of a client that never was here: a new session."""
    await here.pair(1)
    newcomer = here.peer("new")
    await here.armed()
    ask(newcomer.connect())
    return is_known


async def is_known(here: Scene) -> bool:
    """Whether there is a session."""
    return bool((await here.peers[-1].connect()).session_present)


async def begin_clean(here: Scene) -> Probe:
    """CONNECT with Clean Start 1 over a session with a subscription and a message that waits."""
    publisher, subscriber = await here.pair(2)
    await subscriber.disconnect()
    publisher.publish(TOPIC, 2)
    await publisher.finished()
    await here.armed()
    ask(subscriber.connect(clean_start=True))
    return is_clean


async def is_clean(here: Scene) -> bool:
    """Whether the session of before is over. One that is over must have left nothing, one that is not all."""
    publisher, subscriber = here.peers
    present = (await subscriber.connect()).session_present
    with contextlib.suppress(TimeoutError):
        await subscriber.until(lambda: any(p.type == wire.PUBLISH for p in subscriber.seen), "it", QUIET)
    waiting = any(packet.type == wire.PUBLISH for packet in subscriber.seen)
    await publisher.connect()
    before = len(here.history)
    publisher.publish(TOPIC, 2)
    await here.complete()
    subscribed = any(isinstance(each, Arrived) for each in here.history[before:])
    assert waiting == subscribed and (present or not waiting)
    return not waiting


async def leave_for_good(here: Scene) -> Probe:
    """DISCONNECT with Session Expiry Interval 0; 3.1.1 has no such thing."""
    _, subscriber = await here.pair(1)
    await here.armed()
    ask(subscriber.disconnect(expiry=0))
    return is_over


async def is_over(here: Scene) -> bool:
    return not (await here.peers[1].connect()).session_present


async def leave_a_will(here: Scene) -> Probe:
    """The end of a connection with a will, while somebody waits for it. It is owed whatever happens."""
    _, subscriber = await here.pair(2)
    mortal = here.peer("mortal")
    await subscriber.subscribe("will/x", 2)
    await mortal.connect(will=mortal.will("will/x", 2))
    await here.armed()
    await mortal.drop()
    return is_published


async def is_published(here: Scene) -> bool:
    subscriber = here.peers[1]
    await subscriber.connect()
    return await comes(here, subscriber, "will/x")


async def comes(here: Scene, peer: Peer, topic_name: str) -> bool:
    """Whether *peer* has a message of that topic, or gets it soon."""

    def came() -> bool:
        arrived = (each for each in here.history if isinstance(each, Arrived))
        return any(each.client == peer.client_id and each.tag.topic_name == topic_name for each in arrived)

    with contextlib.suppress(TimeoutError):
        await peer.until(came, topic_name, WAIT)
    return came()


async def hand_on(here: Scene) -> Probe:
    """The end of a member's connection, with a message in its queue that another member can have."""
    publisher, _ = await here.pair(2)
    full, other = here.peer("full"), here.peer("other")
    for member, window in ((full, 1), (other, 10)):
        await member.connect(receive_maximum=window)
        await member.subscribe("$share/crew/group/x", 2)
    await other.disconnect()
    full.withhold = {"PUBLISH"}
    for _ in range(2):
        publisher.publish("group/x", 2)
    await publisher.finished()
    await full.until(lambda: full.taken, "the first")
    await full.ping()
    await here.armed()
    await full.drop()
    return is_handed_on


async def is_handed_on(here: Scene) -> bool:
    other = here.peers[3]
    await other.connect()
    return await comes(here, other, "group/x")


async def expire(here: Scene) -> Probe:
    """The end of a session whose time is over."""
    await here.pair(2)
    short = here.peer("short")
    short.expiry = 1
    await short.connect()
    await short.subscribe(TOPIC, 2)
    await short.drop()
    await asyncio.sleep(0.1)  # the broker has noticed
    await here.armed()
    return is_expired


async def is_expired(here: Scene) -> bool:
    return not (await here.peers[2].connect()).session_present


async def retain_2(here: Scene) -> Probe:
    """PUBREL that takes the place of what is retained."""
    publisher, _ = await here.pair(1)
    publisher.publish("shelf/x", 2, retain=True)
    await publisher.finished()
    publisher.withhold = {"PUBREC"}
    publisher.publish("shelf/x", 2, retain=True)
    await publisher.until(lambda: any(each.released for each in publisher.unfinished.values()), "PUBREC")
    await here.armed()
    publisher.raw(wire.pubrel(next(iter(publisher.unfinished)), version=here.version))
    return is_retained


async def retain(here: Scene) -> Probe:
    """PUBLISH at QoS 1 that takes the place of what is retained."""
    publisher, _ = await here.pair(1)
    publisher.publish("shelf/x", 1, retain=True)
    await publisher.finished()
    await here.armed()
    publisher.publish("shelf/x", 1, retain=True)
    return is_retained


async def is_retained(here: Scene) -> bool:
    looker = here.peer("looker")
    await looker.connect()
    await look(here.history, looker, "shelf/x")
    found = [each.tag.number for each in here.history if isinstance(each, Found) and each.tag is not None]
    return found == [2]


async def clear(here: Scene) -> Probe:
    """PUBLISH without a payload: nothing is to be retained any more."""
    publisher, _ = await here.pair(1)
    publisher.publish("shelf/x", 1, retain=True)
    await publisher.finished()
    await here.armed()
    publisher.publish("shelf/x", 1, retain=True, clears=True)
    return is_cleared


async def is_cleared(here: Scene) -> bool:
    looker = here.peer("looker")
    await looker.connect()
    await look(here.history, looker, "shelf/x")
    return any(isinstance(each, Found) and each.tag is None for each in here.history)


NO, YES = False, True

STATES: dict[Callable[[Scene], Awaitable[Probe]], dict[str, bool]] = {
    subscribe: {
        "SUBSCRIBE arrives: before": NO,
        "append subscription: after": NO,
        "SUBSCRIBE arrives: after": NO,
        "commit: before": NO,
        "commit: after": YES,
        "SUBACK leaves: before": YES,
        "SUBACK leaves: after": YES,
    },
    unsubscribe: {
        "UNSUBSCRIBE arrives: before": YES,
        "append deletion: after": YES,
        "UNSUBSCRIBE arrives: after": YES,
        "commit: before": YES,
        "commit: after": NO,
        "UNSUBACK leaves: before": NO,
        "UNSUBACK leaves: after": NO,
    },
    begin: {
        "CONNECT arrives: before": NO,
        "append session: after": NO,
        "CONNECT arrives: after": NO,
        "commit: before": NO,
        "commit: after": YES,
        "CONNACK leaves: before": YES,
        "CONNACK leaves: after": YES,
    },
    begin_clean: {
        "CONNECT arrives: before": NO,
        "end of session: before": NO,
        "append deletion: after": NO,
        "end of session: after": NO,
        "CONNECT arrives: after": NO,
        "commit: before": NO,
        "commit: after": YES,
        "CONNACK leaves: before": YES,
        "CONNACK leaves: after": YES,
    },
    leave_for_good: {
        "DISCONNECT arrives: before": NO,
        "end of session: before": NO,
        "end of session: after": NO,
        "commit: before": NO,
        "commit: after": YES,
    },
    leave_a_will: {
        "will: before": YES,
        "append message: after": YES,
        "append delivery: after": YES,
        "will: after": YES,
        "commit: before": YES,
        "commit: after": YES,
        "PUBLISH leaves: before": YES,
        "PUBLISH leaves: after": YES,
    },
    retain: {
        "append retained: after": NO,
        "retain: after": NO,
        "commit: before": NO,
        "commit: after": YES,
        "PUBACK leaves: before": YES,
    },
    retain_2: {
        "PUBREL arrives: before": NO,
        "append retained: after": NO,
        "retain: after": NO,
        "append deletion: after": NO,
        "commit: before": NO,
        "commit: after": YES,
        "PUBCOMP leaves: before": YES,
    },
    hand_on: {
        "hand on: before": YES,
        "append deletion: after": YES,
        "append delivery: after": YES,
        "hand on: after": YES,
        "commit: before": YES,
        "commit: after": YES,
    },
    expire: {
        "end of session: before": YES,
        "append deletion: after": YES,
        "end of session: after": YES,
        "commit: after": YES,
    },
    clear: {
        "append deletion: after": NO,
        "retain: after": NO,
        "commit: before": NO,
        "commit: after": YES,
        "PUBACK leaves: before": YES,
    },
}


ONLY_5 = (leave_for_good, hand_on, expire)  # 3.1.1 cannot say that


@pytest.mark.parametrize(
    ("act", "point", "left", "version"),
    [
        pytest.param(act, point, left, version, id=f"{act.__name__}-{point}-{version}")
        for act, points in STATES.items()
        for point, left in points.items()
        if reachable(point)
        for version in ((5,) if act in ONLY_5 else (4, 5))
    ],
)
@run_async
async def test_states(act: Any, point: str, left: bool, version: int, tmp_path: Path) -> None:
    async with scene(tmp_path / "point.db", version, point) as here:
        probe = await act(here)
        await here.dead()
        assert await probe(here) is left
        await here.settled()


# ---- the launcher itself


@pytest.mark.parametrize("name", PLACES)
def test_every_place_is_there_and_used(name: str) -> None:
    find(PLACES[name])
    levels = [points for each in MESSAGES.values() for points in each.values()]
    rows = [*levels, *RUNS.values(), *STATES.values(), dedup.POINTS]
    assert any(point.rpartition(": ")[0] == name for points in rows for point in points)


def test_a_place_that_is_gone_is_no_silent_success(tmp_path: Path) -> None:
    with contextlib.closing(Restartable(tmp_path / "point.db", SETTINGS)) as broker:
        broker.launch(module="tests.faults.killer", **{VARIABLE: "commit of something: after"})
        assert broker.ended() == MISSING
    place = Place("broker.router", "Router.route_by_pigeon")
    with pytest.raises(LookupError, match="route_by_pigeon is not there"):
        find(place)
