"""A broker that dies at a chosen step, its clients before and after, and what they find."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.conformance import wire
from tests.faults.checker import check
from tests.faults.daemon import WAIT, Restartable
from tests.faults.history import Drained, History, Killed
from tests.faults.killer import TAKES, VARIABLE
from tests.faults.peer import Peer

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


def ask(question: Coroutine[Any, Any, object]) -> None:
    """Begin something that will not be answered, or not before the end."""
    task = asyncio.ensure_future(question)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
