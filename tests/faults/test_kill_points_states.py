"""SIGKILL at every step, as in test_kill_points.py, of what is stored besides messages.

What is left is whether it happened, as far as whoever comes back can see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import wire
from tests.faults.crowd import look
from tests.faults.daemon import WAIT
from tests.faults.history import Arrived, Found
from tests.faults.killer import reachable
from tests.faults.peer import Peer
from tests.faults.points import QUIET, TOPIC, Scene, ask, scene
from tests.peer import run_async

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
