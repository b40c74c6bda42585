"""Clients that work with a broker on a disk that records, and what they find when the power is back.

    python -m tests.faults.powerloss FOLDER FSYNC SEED

runs the first half, the broker and its clients in one process: what a client does and sees goes into the
recording, between the writes and syncs of the store, in the order in which it happened. `aftermath` is the
second half: a broker on what a power loss left, the same clients with the state that they had, and the rules
of `checker` over both halves of the history.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import pickle
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from broker import Broker
from broker.config import load
from broker.store import journal
from tests.conformance import wire
from tests.conformance.wire import Packet
from tests.faults.checker import check, ends_session
from tests.faults.history import (
    Acknowledged,
    Arrived,
    Connected,
    Connecting,
    Drained,
    Event,
    Found,
    Freed,
    Gone,
    Killed,
    Looking,
    Published,
    Tag,
)
from tests.faults.peer import Outgoing, Peer
from tests.faults.recording import NOTES

STORE = "broker.db"
CLIENTS = f"clients{NOTES}"
QUIET = 0.004  # seconds without anything new until what a broker had to say is taken for said
RETRY = 0.05  # seconds between two tries of a store that fails: as if a second passed faster
AGAIN = 0.03  # seconds until what was refused is tried again
PATIENCE = 15.0  # seconds until what is not over by then is taken for hung

VERSIONS = {"elder": 4}
EXPIRIES = {"mortal": 0}  # seconds of a session; an hour for all others
WILLS = {name: Tag(name, f"b/{name}", 1) for name in ("mortal", "mourned")}
SHELVES = [f"r/{number}" for number in range(5)]  # topics of retained messages


class Noted(list[Event]):
    """A history of which each event is also written to a file, before anything follows from it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def append(self, event: Event) -> None:
        super().append(event)
        os.write(self.fd, base64.b64encode(pickle.dumps(event)) + b"\n")


def events(notes: list[str]) -> list[Event]:
    return [pickle.loads(base64.b64decode(line)) for line in notes]


@contextlib.asynccontextmanager
async def serving(folder: Path, fsync: str) -> AsyncIterator[int]:
    """A broker with its store in *folder*; gives its port. *fsync* is a level, or `level,filter=level`."""
    level, _, by_filter = fsync.partition(",")
    sets = [f"store.path={folder / STORE}", f"store.fsync={level}", f"store.fsync_for={by_filter}"]
    broker = Broker(load(environ={}, sets=sets, listen=["tcp://127.0.0.1:0"]))
    await broker.start()
    try:
        yield urlsplit(broker.addresses[0]).port or 0
    finally:
        await broker.stop()


# ---- the work


class Cast:
    """The clients by name, made when first asked for."""

    def __init__(self, history: list[Event], port: int) -> None:
        self.history, self.port = history, port
        self.peers: dict[str, Peer] = {}
        self.unanswered: set[str] = set()  # asked for a Clean Start and heard nothing

    def __getitem__(self, name: str) -> Peer:
        if name not in self.peers:
            version, expiry = VERSIONS.get(name, 5), EXPIRIES.get(name, 3600)
            peer = Peer(name, self.history, version=version, port=self.port, expiry=expiry)
            self.peers[name] = peer
        return self.peers[name]


async def work(cast: Cast, rng: random.Random) -> None:
    """Sessions of all kinds, and everything that can be under way in them."""
    await subscribe(cast)
    tasks = (publish, burst, churn, visit, retain, never_finish, leave_wills)
    await asyncio.gather(*(task(cast, rng) for task in tasks))


async def join(peer: Peer, clean_start: bool = False, will: wire.Will | None = None) -> None:
    """Connected, however often it takes: a store that fails refuses sessions."""
    while not peer.connected:
        try:
            await peer.connect(clean_start, will)
        except (OSError, AssertionError):
            await asyncio.sleep(AGAIN)


async def insist(peer: Peer, exchange: Callable[[], Awaitable[Packet]]) -> None:
    """The answer of *exchange* says yes, however often it takes."""
    answer = None
    while answer is None or any(code >= 0x80 for code in answer.reason_codes):
        await join(peer)
        with contextlib.suppress(ConnectionError):
            answer = await exchange()


async def finish(peer: Peer) -> None:
    """Everything that it has published is acknowledged or refused."""
    while peer.unfinished:
        await join(peer)
        with contextlib.suppress(ConnectionError):
            await peer.finished()


async def subscribe(cast: Cast) -> None:
    for name, *filters in (
        ("keeper", "a/#", "b/#"),
        ("visitor", "a/#"),
        ("elder", "b/#"),
        ("lazy", "a/#"),
        ("half", "b/+"),
        ("left", "$share/pair/a/#"),
        ("right", "$share/pair/a/#"),
    ):
        qos = 1 if name in ("lazy", "left") else 2
        for topic_filter in filters:
            await insist(cast[name], lambda: cast[name].subscribe(topic_filter, qos))  # noqa: B023
    await cast["keeper"].disconnect()
    cast["lazy"].withhold.add("PUBLISH")
    cast["half"].withhold.add("PUBREL")


async def publish(cast: Cast, rng: random.Random) -> None:
    """One that waits for each acknowledgement."""
    peer = cast["patient"]
    for number in range(40):
        await join(peer)
        peer.publish(rng.choice(("a/1", "b/1")), 1 + number % 2, size=rng.choice((10, 700, 5000)))
        await finish(peer)


async def burst(cast: Cast, rng: random.Random) -> None:
    """One that does not, and whose connection is cut meanwhile."""
    peer = cast["hasty"]
    for _ in range(6):
        await join(peer)
        for _ in range(12):
            peer.publish(rng.choice(("a/2", "b/2")), rng.choice((1, 2)), size=rng.choice((10, 3000)))
        await asyncio.sleep(rng.random() * 0.02)
        await peer.drop()
        await asyncio.sleep(0.01)
    await finish(peer)


async def churn(cast: Cast, rng: random.Random) -> None:
    """Subscriptions and sessions that come and go."""
    peer = cast["restless"]
    for _ in range(6):
        await join(peer, clean_start=True)
        await insist(peer, lambda: peer.subscribe("a/#", 1))
        await insist(peer, lambda: peer.subscribe("b/2", 2))
        await asyncio.sleep(rng.random() * 0.02)
        await insist(peer, lambda: peer.unsubscribe("a/#"))
        await peer.disconnect()
        await join(peer)
        await asyncio.sleep(rng.random() * 0.02)
        await peer.drop()


async def visit(cast: Cast, rng: random.Random) -> None:
    """One that takes what has come for it, and goes."""
    peer = cast["visitor"]
    for _ in range(8):
        await asyncio.sleep(rng.random() * 0.04)
        await peer.drop()
        await asyncio.sleep(rng.random() * 0.04)
        await join(peer)


async def retain(cast: Cast, rng: random.Random) -> None:
    peer = cast["archivist"]
    for _ in range(50):
        await join(peer)
        clears = rng.random() < 0.2
        size = 0 if clears else rng.choice((10, 2000))
        number = rng.randrange(len(SHELVES))
        qos = 1 + number % 2  # one for each: QoS 2 is retained at PUBREL, after QoS 1 that was sent later
        peer.publish(SHELVES[number], qos, retain=True, clears=clears, size=size)
        if rng.random() < 0.6:
            await finish(peer)
    await finish(peer)


async def never_finish(cast: Cast, rng: random.Random) -> None:
    """One that says no PUBREL."""
    peer = cast["mute"]
    peer.withhold.add("PUBREC")
    for _ in range(15):
        await join(peer)
        peer.publish("b/3", 2)
        await asyncio.sleep(rng.random() * 0.02)


async def leave_wills(cast: Cast, rng: random.Random) -> None:
    """Connections that end with the broker's, and have a last word."""
    for name, tag in WILLS.items():
        await asyncio.sleep(rng.random() * 0.1)
        await join(cast[name], will=wire.will(tag.topic_name, tag.payload(), qos=1 + len(name) % 2))


async def main(folder: Path, fsync: str, seed: int) -> None:
    """The first half, up to the moment at which everything ends at once."""
    journal.RETRY = RETRY
    history = Noted(folder / CLIENTS)
    async with serving(folder, fsync) as port:
        await work(Cast(history, port), random.Random(seed))
        os._exit(0)


# ---- when the power is back


def resumed(history: list[Event], port: int, into: list[Event]) -> Cast:
    """The clients with what they know at the end of *history*; what they do goes to *into*."""
    cast = Cast(into, port)
    for event in history:
        if isinstance(event, Connecting):
            cast[event.client]  # makes it
        if ends_session(event):
            cast[event.client].unfinished.clear()
            cast[event.client].taken.clear()
        if isinstance(event, Connecting) and event.clean_start:
            cast.unanswered.add(event.client)
        elif isinstance(event, Connected):
            cast.unanswered.discard(event.client)
        elif isinstance(event, Published):
            _published(cast[event.client], event)
        elif isinstance(event, Acknowledged):
            _acknowledged(cast[event.client], event)
        elif isinstance(event, Arrived) and event.qos == 2:
            cast[event.client].taken.add(event.packet_id)
        elif isinstance(event, Freed):
            cast[event.client].taken.discard(event.packet_id)
    return cast


def _published(peer: Peer, event: Published) -> None:
    peer._numbers[event.tag.topic_name] = event.tag.number
    if not event.dup:
        payload = b"" if event.clears else event.tag.payload()
        peer.unfinished[event.packet_id] = Outgoing(event.tag, event.qos, event.retain, payload)


def _acknowledged(peer: Peer, event: Acknowledged) -> None:
    if event.kind != "PUBREC" or event.code >= 0x80:
        peer.unfinished.pop(event.packet_id, None)
    elif event.packet_id in peer.unfinished:
        peer.unfinished[event.packet_id].released = True


def cut_off(history: list[Event]) -> list[Event]:
    """*history* and, for all who were connected, the end of it."""
    connected = {}
    for event in history:
        if isinstance(event, (Connecting, Gone)):
            connected[event.client] = isinstance(event, Connecting)
    gone = [Gone(client) for client, there in connected.items() if there]
    return [*history, *last_words(history), *gone, Killed("broker")]


def last_words(history: list[Event]) -> Iterator[Event]:
    """The wills of those whom CONNACK told that they have one are as good as acknowledged messages."""
    asked = {event.client for event in history if isinstance(event, Connecting)}
    told = {event.client for event in history if isinstance(event, Connected)}
    for name in WILLS.keys() & asked:
        yield Published(name, WILLS[name], 1 + len(name) % 2)
        yield Acknowledged(name, WILLS[name], "PUBACK", code=0 if name in told else 0x83)


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"{what} within {PATIENCE} s") from None


def open_ends(cast: Cast) -> list[str]:
    return [name for name, peer in cast.peers.items() if peer.unfinished or peer.taken]


async def drain(cast: Cast) -> None:
    """All connect and finish what is under way, until nothing new comes."""
    for name in WILLS:
        cast.peers.pop(name, None)
    for name, peer in cast.peers.items():
        await peer.connect(clean_start=name in cast.unanswered)
    seen = -1
    while seen != len(cast.history):
        await until(lambda: not open_ends(cast), "every exchange ends")
        for peer in cast.peers.values():
            await peer.ping()
        seen = len(cast.history)
        await asyncio.sleep(QUIET)
    cast.history.append(Drained(""))


async def look(cast: Cast) -> None:
    """What is retained, seen by one whom nobody knows."""
    found: list[Event] = []
    peer = Peer("looker", found, port=cast.port, expiry=0)
    cast.history += [Looking("looker", topic_name) for topic_name in SHELVES]
    await peer.connect(clean_start=True)
    await peer.subscribe("r/#", 2)
    seen = -1
    while seen != len(found):
        seen = len(found)
        await peer.ping()
    await peer.drop()
    tags = {event.tag.topic_name: event.tag for event in found if isinstance(event, Arrived)}
    cast.history += [Found("looker", topic_name, tags.get(topic_name)) for topic_name in SHELVES]


async def aftermath(folder: Path, before: list[Event]) -> list[str]:
    """Every breach of what clients may rely on, when a broker goes on with *folder* after *before*."""
    history = cut_off(before)
    async with serving(folder, "never") as port:
        cast = resumed(before, port, history)
        await drain(cast)
        await look(cast)
        for peer in cast.peers.values():
            await peer.drop()
    return check(history)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
