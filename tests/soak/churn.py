"""Clients that come and go in every way there is, and leave nothing behind that should last."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.conformance import wire
from tests.faults.history import Breach, Event
from tests.faults.peer import Peer

USERS = 16  # at the same time
NAMES = 60  # ClientIDs that they share: who comes takes over, resumes, or begins; others are used once
TOPICS = 40


class Breaches(list[Event]):
    """A history that keeps nothing but what no broker may do."""

    def append(self, event: Event) -> None:
        if isinstance(event, Breach):
            super().append(event)


@dataclass
class User:
    """Somebody with one connection at a time, and with all scenes in a random order."""

    port: int
    web_port: int
    dice: random.Random
    history: Breaches
    scenes: int = 0

    async def live(self, ends: float) -> None:
        while time.monotonic() < ends:
            scene = self.dice.choice(SCENES)
            with contextlib.suppress(OSError, TimeoutError):
                await scene(self)
            self.scenes += 1

    def peer(self) -> Peer:
        """A client that remembers nothing of what its ClientID did before."""
        version = self.dice.choice((3, 4, 4, 5, 5, 5))
        number = self.dice.randrange(NAMES) if self.dice.random() < 0.5 else self.dice.getrandbits(64)
        peer = Peer(f"soak{number}", self.history, version=version, port=self.port)
        peer.expiry = self.dice.choice((0, 1, 2, 3600))
        return peer

    def topic(self) -> str:
        """One of a few, or one that never was."""
        number = self.dice.randrange(TOPICS) if self.dice.random() < 0.7 else self.dice.getrandbits(64)
        return f"soak/{number}"

    def filter(self) -> str:
        number = self.dice.randrange(TOPICS)
        return self.dice.choice(
            (self.topic(), f"soak/{number}/+", "soak/+", "+/#", "soak/#", f"$share/g{number % 3}/soak/#")
        )

    async def rest(self, most: float = 0.3) -> None:
        await asyncio.sleep(self.dice.uniform(0, most))

    async def leave(self, peer: Peer) -> None:
        """One of the ways to end a connection."""
        dice = self.dice
        try:
            if not peer.connected or dice.random() < 0.3:
                return
            if peer.version == 5 and dice.random() < 0.4:
                await peer.disconnect(expiry=0 if peer.expiry == 0 or dice.random() < 0.5 else 1)
            elif dice.random() < 0.5:
                await peer.disconnect(*((None, 4) if peer.version == 5 and dice.random() < 0.5 else ()))
            else:
                other = self.peer()
                other.client_id = peer.client_id
                try:
                    await other.connect(clean_start=dice.random() < 0.5)
                finally:
                    await other.drop()
        finally:
            await peer.drop()


async def subscriber(user: User) -> None:
    """Takes what comes, now and then without an answer, and gives up some of its subscriptions."""
    peer, dice = user.peer(), user.dice
    await peer.connect(clean_start=dice.random() < 0.5)
    try:
        peer.withhold = set(dice.sample(["PUBLISH", "PUBREL"], dice.randrange(3)))
        filters = [user.filter() for _ in range(dice.randint(1, 8))]
        for topic_filter in filters:
            await peer.subscribe(topic_filter, dice.randrange(3))
        await user.rest(0.5)
        for topic_filter in dice.sample(filters, dice.randrange(len(filters) + 1)):
            await peer.unsubscribe(topic_filter)
    finally:
        await user.leave(peer)


async def publisher(user: User) -> None:
    """Publishes at every QoS; some QoS 2 messages are never released."""
    peer, dice = user.peer(), user.dice
    await peer.connect(clean_start=dice.random() < 0.5)
    try:
        peer.withhold = {"PUBREC"} if dice.random() < 0.3 else set()
        for _ in range(dice.randint(1, 30)):
            expires = {"message_expiry_interval": 1} if peer.version == 5 and dice.random() < 0.3 else {}
            peer.publish(user.topic(), dice.randrange(3), size=dice.choice((0, 100, 20_000)), **expires)
            if dice.random() < 0.2:
                await user.rest(0.05)
        if not peer.withhold:
            await peer.finished(2)
    finally:
        await user.leave(peer)


async def retainer(user: User) -> None:
    """Sets retained messages, reads one, and clears some."""
    peer, dice = user.peer(), user.dice
    names = [user.topic() for _ in range(dice.randint(1, 10))]
    await peer.connect(clean_start=True)
    try:
        for name in names:
            expires = {"message_expiry_interval": 1} if peer.version == 5 and dice.random() < 0.3 else {}
            peer.publish(name, dice.randrange(3), retain=True, **expires)
        await peer.subscribe(dice.choice(names), 1)
        await user.rest()
        for name in dice.sample(names, dice.randrange(len(names) + 1)):
            peer.publish(name, dice.randrange(3), retain=True, clears=True)
    finally:
        await user.leave(peer)


async def mortal(user: User) -> None:
    """Has a will, and mostly dies of it."""
    peer, dice = user.peer(), user.dice
    later = {"will_delay_interval": dice.randrange(2)} if peer.version == 5 else {}
    will = peer.will(user.topic(), dice.randrange(3), retain=False, **later)
    await peer.connect(clean_start=dice.random() < 0.5, will=will)
    try:
        await user.rest()
    finally:
        await user.leave(peer)


async def deaf(user: User) -> None:
    """Subscribes to everything, and reads nothing of it."""
    peer = user.peer()
    await peer.connect()
    try:
        await peer.subscribe("soak/#", user.dice.randrange(3))
        peer.pause()
        await user.rest(1.5)
    finally:
        await peer.drop()


JUNK = (
    b"",
    b"\x10",
    wire.connect("soak1")[:9],
    wire.connect("soak1", protocol_name="MQTX"),
    wire.publish("soak/1", b"x"),
    wire.connect("", clean_start=False, version=4),
    wire.connect("soak2") + wire.connect("soak2"),
    wire.connect("soak3") + b"\xff\xff\xff\xff\xff",
    b"GET /mqtt HTTP/1.1\r\n\r\n",
)
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: "
    + base64.b64encode(bytes(16))
    + b"\r\n\r\n"
)


async def stranger(user: User) -> None:
    """Says something that is no conversation, over TCP or a WebSocket, and hangs up."""
    dice = user.dice
    port = dice.choice((user.port, user.web_port))
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(dice.choice((*JUNK, UPGRADE, UPGRADE + b"\x82\x80\0\0\0\0", UPGRADE + b"\xff" * 9)))
        await user.rest()
    finally:
        if dice.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()


SCENES: tuple[Callable[[User], Awaitable[None]], ...] = (
    subscriber,
    subscriber,
    publisher,
    publisher,
    retainer,
    mortal,
    deaf,
    stranger,
)


async def clear(port: int, history: Breaches) -> None:
    """Delete all that is retained, once everybody who could retain something has gone."""
    cleaner = Peer("cleaner", history, port=port, expiry=0)
    await cleaner.connect(clean_start=True)
    await asyncio.sleep(1)  # what is on its way has arrived
    await cleaner.subscribe("#", 1)
    found = -1
    while found < len(cleaner.seen):
        found = len(cleaner.seen)
        await asyncio.sleep(0.5)
    for name in {packet.topic_name for packet in cleaner.seen if packet.type == wire.PUBLISH}:
        cleaner.publish(name or "", 1, retain=True, clears=True)
    await cleaner.finished()
    await cleaner.disconnect()


async def churn(ports: list[int], seconds: float, seed: int) -> tuple[int, list[Event]]:
    """How many scenes were played in these *seconds*, and what was wrong with the broker in them."""
    history, ends = Breaches(), time.monotonic() + seconds
    users = [User(*ports, random.Random(f"{seed} {number}"), history) for number in range(USERS)]
    await asyncio.gather(*(user.live(ends) for user in users))
    await clear(ports[0], history)
    return sum(user.scenes for user in users), list(history)
