"""SIGKILL at every step between the arrival of a packet and the last byte of its answer, one by one.

A flow is what clients do around the one packet that is looked at: everything before `armed` is over and
stored, then comes the packet, and with it the end of the broker. The table says what must be left of it
in the store, seen from outside: who comes back first finds just that, before anybody repeats anything.
Then all clients come back and go on as the standard says, and every rule of `checker` must hold.

Here it is messages that are looked at; what else is stored is in test_kill_points_states.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.conformance import wire
from tests.faults import test_dedup as dedup
from tests.faults.daemon import Restartable
from tests.faults.history import Arrived
from tests.faults.killer import MISSING, PLACES, VARIABLE, Place, find, reachable
from tests.faults.peer import Peer
from tests.faults.points import SETTINGS, TOPIC, Scene, ask, first, scene
from tests.faults.test_kill_points_states import STATES
from tests.peer import run_async

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
