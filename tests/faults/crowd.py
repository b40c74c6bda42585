"""Who is out in the storm: clients that each live as one kind of user does, until they are told to end.

Every actor is a coroutine over one client. While `Weather.raging` it does what its kind does; afterwards
it comes back, completes what is open and stays, so that all that is owed can arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.conformance import wire
from tests.faults.history import Found, History, Looking, Tag
from tests.faults.peer import ConnectionGone, Peer

NOTHING = 1.5  # seconds after SUBACK in which what is retained comes, if there is anything
AGAIN = 0.02  # seconds until the next try of a connection that was refused
SHELVES = "kept"  # topics of retained messages begin so; nobody but the looker subscribes to them


@dataclass
class Weather:
    """What all actors share."""

    port: int
    history: History
    seed: int
    raging: bool = True
    peers: list[Peer] = field(default_factory=list)

    def peer(self, client_id: str, version: int, expiry: int = 3600) -> Peer:
        peer = Peer(client_id, self.history, version=version, port=self.port, expiry=expiry)
        self.peers.append(peer)
        return peer

    def random(self, client_id: str) -> random.Random:
        """Each actor has its own dice, so that what one does changes nothing for another."""
        return random.Random(f"{self.seed} {client_id}")


async def joined(peer: Peer, clean_start: bool = False) -> bool:
    """Connected now; False, after a moment, when the broker is not there."""
    try:
        await peer.connect(clean_start)
    except (OSError, TimeoutError):
        await asyncio.sleep(AGAIN)
        return False
    return True


async def publisher(weather: Weather, client_id: str, version: int, window: int) -> None:
    """Bursts at QoS 1 and 2 to topics of its own, and a retained message now and then."""
    peer, dice = weather.peer(client_id, version), weather.random(client_id)
    shelf, shelf_qos = f"{SHELVES}/{client_id}", dice.randint(1, 2)
    while True:
        if not await joined(peer):
            continue
        while peer.connected and weather.raging:
            for _ in range(dice.randint(1, window)):
                if len(peer.unfinished) < window:
                    qos = dice.randint(1, 2)
                    peer.publish(f"storm/{client_id}/{'ab'[qos - 1]}", qos, size=dice.choice((0, 0, 0, 3000)))
            if dice.random() < 0.2:
                peer.publish(shelf, shelf_qos, retain=True, clears=dice.random() < 0.2)
            await asyncio.sleep(dice.uniform(0.0, 0.06))
            if dice.random() < 0.01:
                await peer.drop()
        await peer.over()


async def subscriber(weather: Weather, client_id: str, version: int, filters: dict[str, int]) -> None:
    """Always there; sometimes slow to read, sometimes its network breaks."""
    peer, dice = weather.peer(client_id, version), weather.random(client_id)
    missing = dict(filters)
    while True:
        if not await joined(peer):
            continue
        await _subscribe(peer, missing)
        while peer.connected and weather.raging:
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            if dice.random() < 0.1:
                peer.pause()
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                peer.resume()
            if dice.random() < 0.05:
                await peer.drop()
        await peer.over()


async def _subscribe(peer: Peer, missing: dict[str, int]) -> None:
    """Subscribe to each that was not acknowledged before; what is done leaves *missing*."""
    try:
        for topic_filter, qos in tuple(missing.items()):
            await peer.subscribe(topic_filter, qos)
            del missing[topic_filter]
    except (OSError, TimeoutError):
        return


async def visitor(weather: Weather, client_id: str, version: int, filters: dict[str, int]) -> None:
    """Away most of the time, for longer than one life of the broker; the messages wait."""
    peer, dice = weather.peer(client_id, version), weather.random(client_id)
    missing = dict(filters)
    while True:
        if weather.raging and not missing:
            await _while_raging(weather, dice.uniform(0.5, 4.0))
        if not await joined(peer):
            continue
        await _subscribe(peer, missing)
        await _while_raging(weather, dice.uniform(0.05, 1.0))
        if weather.raging and peer.connected:
            await (peer.disconnect() if dice.random() < 0.5 else peer.drop())
        if not weather.raging:
            await peer.over()


async def _while_raging(weather: Weather, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while weather.raging and loop.time() < ends:
        await asyncio.sleep(min(0.1, seconds))


async def toggler(weather: Weather, client_id: str, version: int, topic_filter: str) -> None:
    """Subscribes and unsubscribes: what was published after UNSUBACK must not come."""
    peer, dice = weather.peer(client_id, version), weather.random(client_id)
    while True:
        if not await joined(peer):
            continue
        try:
            while weather.raging:
                await peer.subscribe(topic_filter, 2)
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                await peer.unsubscribe(topic_filter)
                await asyncio.sleep(dice.uniform(0.0, 0.3))
        except (OSError, TimeoutError):
            await peer.drop()
            continue
        await peer.over()


async def beginner(weather: Weather, client_id: str, version: int, topic_filter: str) -> None:
    """Starts clean now and then, and must then find nothing of before."""
    peer, dice = weather.peer(client_id, version), weather.random(client_id)
    while True:
        if not await joined(peer, clean_start=version == 5 and weather.raging and dice.random() < 0.5):
            continue
        await _subscribe(peer, {topic_filter: 2})
        while peer.connected and weather.raging:
            await asyncio.sleep(dice.uniform(0.0, 0.8))
            if dice.random() < 0.7:
                await (peer.disconnect() if dice.random() < 0.5 else peer.drop())
        await peer.over()


async def mayfly(weather: Weather, client_id: str) -> None:
    """Its session lives for a second after each connection, whether the broker lives meanwhile or not."""
    peer, dice = weather.peer(client_id, 5, expiry=1), weather.random(client_id)
    while True:
        await _while_raging(weather, dice.choice((0.1, 0.3, 3.5, 5.0)))
        if not await joined(peer):
            continue
        await _subscribe(peer, {"storm/+/b": 2})
        await _while_raging(weather, dice.uniform(0.0, 0.5))
        if not weather.raging:
            await peer.over()
        await peer.drop()


async def looker(weather: Weather, client_id: str, publishers: list[str]) -> None:
    """Reads every retained message, over and over."""
    peer, dice = weather.peer(client_id, 5, expiry=0), weather.random(client_id)
    while True:
        if not await joined(peer, clean_start=True):
            continue
        try:
            while weather.raging:
                await look(weather.history, peer, f"{SHELVES}/{dice.choice(publishers)}")
                await asyncio.sleep(dice.uniform(0.0, 0.1))
        except (OSError, TimeoutError):
            await peer.drop()
            continue
        await peer.over()


async def look(history: History, peer: Peer, topic_name: str) -> None:
    """Write down what is retained under *topic_name*."""
    peer.seen.clear()
    history.append(Looking(peer.client_id, topic_name))
    await peer.subscribe(topic_name, 0)
    found: list[Tag] = []

    def came() -> list[Tag]:
        shown = [p for p in peer.seen if p.type == wire.PUBLISH and p.retain and p.topic_name == topic_name]
        found[:] = [Tag.of(topic_name, packet.payload or b"") for packet in shown]
        return found

    with contextlib.suppress(TimeoutError):
        await peer.until(lambda: came() or not peer.connected, "something retained", NOTHING)
    if not peer.connected:
        raise ConnectionGone(peer.client_id)
    history.append(Found(peer.client_id, topic_name, found[0] if found else None))
    await peer.unsubscribe(topic_name)


def crowd(weather: Weather) -> list[Coroutine[Any, Any, None]]:
    """Everybody. No client has both a subscription of its own and a shared one: see the checker."""
    publishers = [f"pub{number}" for number in range(6)]
    everything, share = {"storm/#": 2}, {"$share/crew/storm/+/b": 2}
    return [
        *(publisher(weather, name, 4 + n % 2, (1, 4, 16)[n % 3]) for n, name in enumerate(publishers)),
        subscriber(weather, "all5", 5, everything),
        subscriber(weather, "all4", 4, everything),
        subscriber(weather, "once5", 5, {"storm/+/a": 1, "storm/+/b": 1}),
        subscriber(weather, "overlap4", 4, {"storm/pub1/#": 2, "storm/+/b": 1, "storm/pub1/b": 1}),
        subscriber(weather, "crew5", 5, share),
        subscriber(weather, "crew4", 4, share),
        visitor(weather, "crew_away5", 5, share),
        visitor(weather, "away5", 5, everything),
        visitor(weather, "away4", 4, {"storm/+/a": 1, "storm/+/b": 2}),
        toggler(weather, "toggler5", 5, "storm/pub1/#"),
        toggler(weather, "toggler4", 4, "storm/pub2/#"),
        beginner(weather, "beginner5", 5, "storm/pub3/#"),
        mayfly(weather, "mayfly5"),
        looker(weather, "looker5", publishers),
    ]
