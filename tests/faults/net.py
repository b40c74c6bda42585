"""A broker behind a wire that can lose, with a bystander beside it whose service must not suffer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.conformance import wire
from tests.faults.checker import check
from tests.faults.daemon import Restartable
from tests.faults.history import Arrived, Drained, History
from tests.faults.peer import Peer
from tests.faults.wires import Wire, kinds

WIRES = kinds()
LATENCY = 3.0  # seconds that the bystander's message may take; a few milliseconds when the machine is idle
SETTINGS = (
    "protocol.anonymous=everywhere",  # in a namespace no client comes from loopback
    "capacity.sweep_interval=0.05",
    "limits.maximum_queued_messages=100000",
)


class Net:
    """One broker, its wire, and what the clients behind that saw."""

    def __init__(self, wire: Wire, broker: Restartable) -> None:
        self.wire, self.broker = wire, broker
        self.history: History = []
        self.peers: list[Peer] = []

    def peer(self, client_id: str, version: int = 5, *, near: bool = False, keep_alive: int = 0) -> Peer:
        """A client behind the wire, or *near*: beside the broker."""
        peer = Peer(client_id, self.history, version=version, keep_alive=keep_alive)
        peer.dial = self.wire.dial_near if near else self.wire.dial
        self.peers.append(peer)
        return peer

    async def joined(self, peer: Peer, clean_start: bool = False) -> None:
        """Connect over a wire that may just have been mended."""
        ends = time.monotonic() + 20
        while True:
            try:
                await peer.connect(clean_start)
                return
            except OSError:
                assert time.monotonic() < ends, f"{peer.client_id} cannot connect"
                await asyncio.sleep(0.05)

    async def mended(self) -> None:
        """Mend the wire, once the end of whoever hung up meanwhile is lost for certain."""
        await asyncio.sleep(0.1)
        self.wire.mend()

    def arrived(self, client_id: str) -> list[Arrived]:
        return [each for each in self.history if isinstance(each, Arrived) and each.client == client_id]

    async def settled(self) -> None:
        """All publishers are done, all that is owed came; then every rule must hold."""
        for peer in self.peers:
            if peer.connected:
                await peer.finished()
                await peer.ping()
        ends = time.monotonic() + 10
        while (breaches := check([*self.history, Drained("all")])) and time.monotonic() < ends:
            await asyncio.sleep(0.1)
        assert not breaches, "\n".join(breaches)


class Bystander:
    """Publishes to itself at QoS 1, over and over; `worst` is the longest that this took."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.rounds, self.worst = peer, 0, 0.0

    async def live(self) -> None:
        peer = self.peer
        await peer.connect(clean_start=True)
        await peer.subscribe("by/stander", 1)
        while True:
            began = time.monotonic()
            peer.publish("by/stander", 1)
            await peer.until(self._has_all, "its own message")
            self.worst = max(self.worst, time.monotonic() - began)
            self.rounds += 1
            await asyncio.sleep(0.02)

    async def served(self, task: asyncio.Task[None]) -> None:
        """It was served in time, and is served still."""
        rounds = self.rounds
        while self.rounds < rounds + 2 and not task.done():
            await asyncio.sleep(0.01)
        assert not task.done(), task.exception()
        task.cancel()
        assert self.worst < LATENCY, self.worst

    def _has_all(self) -> bool:
        assert self.peer.connected, "the bystander was thrown out"
        came = sum(packet.type == wire.PUBLISH for packet in self.peer.seen)
        return came > self.rounds and not self.peer.unfinished


@contextlib.asynccontextmanager
async def net(kind: str, store: Path | str, *settings: str, bystander: bool = True) -> AsyncIterator[Net]:
    """A running broker behind a wire of this *kind*; at the end the bystander must have been served well."""
    cable = WIRES[kind]()
    await cable.open()
    settings = (*SETTINGS, *settings)
    broker = Restartable(store, settings, host=cable.host, port=cable.port, prefix=cable.prefix)
    here = Net(cable, broker)
    witness = Bystander(Peer("bystander", []))
    witness.peer.dial = cable.dial_near
    try:
        broker.start()
        task = asyncio.create_task(witness.live()) if bystander else None
        yield here
        if task is not None:
            await witness.served(task)
        for peer in here.peers:
            if peer.connected:
                await peer.drop()
    finally:
        broker.close()
        await cable.close()
    assert not broker.complaints, "\n".join(broker.complaints)
