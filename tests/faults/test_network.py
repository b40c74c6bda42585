"""Networks that fail: half-open connections, resets in mid-packet, readers that stop, blackholes.

Each scene runs over a proxy that stalls, and in network namespaces where the machine has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.conformance import wire
from tests.faults.net import WIRES, Net, net
from tests.faults.peer import Peer, reset_on_close
from tests.peer import run_async

every_wire = pytest.mark.parametrize("kind", WIRES)
both_versions = pytest.mark.parametrize("version", [4, 5])
STORE = "net.db"


async def watcher_of(here: Net, *topic_filters: str) -> Peer:
    """A durable subscriber at QoS 2 beside the broker, which also publishes."""
    watcher = here.peer("watcher", near=True)
    await watcher.connect()
    for topic_filter in topic_filters:
        await watcher.subscribe(topic_filter, 2)
    return watcher


@every_wire
@both_versions
@run_async
async def test_keep_alive_ends_a_dead_peer(kind: str, version: int, tmp_path: Path) -> None:
    """Its will is published, its session stays, and what comes meanwhile waits [B08]."""
    async with net(kind, tmp_path / STORE) as here:
        watcher = await watcher_of(here, "will/#")
        peer = here.peer("peer", version, keep_alive=1)
        await peer.connect(will=peer.will("will/peer"))
        silent = time.monotonic()  # from now on, or from the moment when SUBSCRIBE arrives
        await peer.subscribe("t/#", 2)
        here.wire.lose()
        await watcher.until(lambda: here.arrived("watcher"), "the will")
        assert 1.4 < time.monotonic() - silent < 10
        for qos in (1, 2, 1, 2):
            watcher.publish("t/x", qos)
        await watcher.finished()
        await peer.drop()
        await here.mended()
        await here.joined(peer)
        await here.settled()
        assert sorted((each.tag.number, each.dup) for each in here.arrived("peer")) == [
            (number, False) for number in (1, 2, 3, 4)
        ]


@every_wire
@both_versions
@run_async
async def test_a_half_open_connection_is_taken_over(kind: str, version: int, tmp_path: Path) -> None:
    """The client died and its end was lost: what went into the dead connection comes again, with DUP."""
    async with net(kind, tmp_path / STORE) as here:
        watcher = await watcher_of(here)
        peer = here.peer("peer", version)
        await peer.connect()
        await peer.subscribe("t/#", 2)
        here.wire.lose()
        for qos in (1, 2, 1, 2):
            watcher.publish("t/x", qos)
        await watcher.finished()
        await peer.drop()
        for qos in (1, 2):
            watcher.publish("t/y", qos)
        await watcher.finished()
        await here.mended()
        await here.joined(peer)
        await here.settled()
        assert [each.dup for each in here.arrived("peer")] == [True] * 6


@every_wire
@both_versions
@run_async
async def test_acknowledgements_to_a_publisher_are_lost(kind: str, version: int, tmp_path: Path) -> None:
    """It sends all again: QoS 1 may come twice, QoS 2 does not."""
    async with net(kind, tmp_path / STORE) as here:
        await watcher_of(here, "t/#")
        peer = here.peer("peer", version)
        await peer.connect()
        peer.publish("t/before", 2)
        await peer.finished()
        here.wire.lose("from_broker")
        for qos in (1, 2, 1, 2):
            peer.publish("t/x", qos)
        await asyncio.sleep(0.3)
        assert len(peer.unfinished) == 4
        await peer.drop()
        await here.mended()
        await here.joined(peer)
        await here.settled()
        numbers = [each.tag.number for each in here.arrived("watcher") if each.tag.topic_name == "t/x"]
        assert sorted(numbers) == [1, 1, 2, 3, 3, 4]


@every_wire
@both_versions
@run_async
async def test_acknowledgements_of_a_subscriber_are_lost(kind: str, version: int, tmp_path: Path) -> None:
    """The broker sends all again, under the same identifiers."""
    async with net(kind, tmp_path / STORE) as here:
        watcher = await watcher_of(here)
        peer = here.peer("peer", version)
        await peer.connect()
        await peer.subscribe("t/#", 2)
        here.wire.lose("to_broker")
        for qos in (1, 2, 1, 2):
            watcher.publish("t/x", qos)
        await peer.until(lambda: len(here.arrived("peer")) == 4, "the first time")
        await peer.drop()
        await here.mended()
        await here.joined(peer)
        await here.settled()
        assert sorted((each.qos, each.dup, each.again) for each in here.arrived("peer")) == [
            *[(1, False, False)] * 2,
            *[(1, True, False)] * 2,
            *[(2, False, False)] * 2,
            *[(2, True, True)] * 2,
        ]


@every_wire
@run_async
async def test_a_wire_that_fails_again_and_again(kind: str, tmp_path: Path) -> None:
    """Both ways in turn, for moments: TCP repeats what it must, and nobody has to connect again."""
    async with net(kind, tmp_path / STORE) as here:
        await watcher_of(here, "t/#")
        peers = [here.peer(f"peer{version}", version) for version in (4, 5)]
        for peer in peers:
            await peer.connect()
            await peer.subscribe("t/#", 2)
        for ways in (["to_broker"], ["from_broker"], []) * 4:
            here.wire.lose(*ways)
            for peer in peers:
                for qos in (1, 2):
                    peer.publish(f"t/{peer.client_id}", qos)
            await asyncio.sleep(0.05)
            here.wire.mend()
            await asyncio.sleep(0.1)
        await here.settled()
        assert all(peer.connected for peer in here.peers)


@every_wire
@run_async
async def test_a_reader_that_stops(kind: str, tmp_path: Path) -> None:
    """It is given up after `send_timeout`, and has everything when it comes back."""
    async with net(kind, tmp_path / STORE, "limits.send_timeout=1.5") as here:
        watcher = await watcher_of(here, "will/#")
        peer = here.peer("peer")
        peer.dial = lambda: narrow(here.wire.dial())
        await peer.connect(will=peer.will("will/peer"))
        await peer.subscribe("t/#", 2)
        peer.pause()
        stopped = time.monotonic()
        for _ in range(60):
            for qos in (0, 1, 2):
                watcher.publish("t/x", qos, size=100_000)
            await watcher.finished()
        await watcher.until(lambda: here.arrived("watcher"), "the will", 30)
        assert time.monotonic() - stopped > 1.4
        await peer.drop()
        peer.resume()
        peer.dial = here.wire.dial
        await here.joined(peer)
        await here.settled()


def narrow(sock: socket.socket) -> socket.socket:
    """With a small buffer for what arrives, so that a reader that stops is noticed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return sock


@every_wire
@both_versions
@run_async
async def test_killed_while_nobody_can_hear_it(kind: str, version: int, tmp_path: Path) -> None:
    """The client's connection is half-open now: its next packet meets nobody, and its session is there."""
    async with net(kind, tmp_path / STORE, bystander=False) as here:
        watcher = await watcher_of(here)
        peer = here.peer("peer", version)
        await peer.connect()
        await peer.subscribe("t/#", 2)
        for qos in (1, 2):
            peer.publish("t/x", qos)
        await peer.finished()
        here.wire.lose()
        here.broker.kill()
        await watcher.over()
        here.broker.start()
        await here.joined(watcher)
        for qos in (1, 2):
            watcher.publish("t/x", qos)
        await watcher.finished()
        here.wire.mend()
        peer.raw(wire.pingreq())
        await asyncio.wait_for(peer.over(), 20)
        await here.joined(peer)
        await here.settled()


@run_async
async def test_a_broker_that_stood_still(tmp_path: Path) -> None:
    """It was stopped for longer than any Keep Alive: that was its silence, not that of its clients."""
    async with net("proxy", tmp_path / STORE) as here:
        peers = [here.peer(f"peer{number}", 4 + number % 2, near=True, keep_alive=1) for number in range(4)]
        for peer in peers:
            await peer.connect()
        os.kill(here.broker.pid, signal.SIGSTOP)
        for _ in range(4):
            for peer in peers:
                peer.raw(wire.pingreq())
            await asyncio.sleep(0.5)
        os.kill(here.broker.pid, signal.SIGCONT)
        for _ in range(4):
            await asyncio.sleep(0.25)
            for peer in peers:
                assert peer.connected, "the broker blamed its own silence on a client"
                await peer.ping()


CUT = {
    "CONNECT": lambda version: wire.connect("peer", version=version, clean_start=False),
    "PUBLISH 1": lambda version: wire.publish("t/x", b"peer 9 ....", qos=1, packet_id=9, version=version),
    "PUBLISH 2": lambda version: wire.publish("t/x", b"peer 9 ....", qos=2, packet_id=9, version=version),
    "PUBREL": lambda version: wire.pubrel(9, version=version),
    "SUBSCRIBE": lambda version: wire.subscribe(9, ("u/#", 2), version=version),
    "UNSUBSCRIBE": lambda version: wire.unsubscribe(9, "t/#", version=version),
    "DISCONNECT": lambda version: b"\xe0\x01\x00"[: 2 + (version == 5)],
}


@both_versions
@pytest.mark.parametrize("packet", CUT)
@run_async
async def test_a_reset_in_mid_packet(packet: str, version: int, tmp_path: Path) -> None:
    """Wherever the packet is cut nothing of it happens: the will is published, the session is as before."""
    async with net("proxy", tmp_path / STORE) as here:
        watcher = await watcher_of(here, "will/#", "t/#", "u/#")
        peer = here.peer("peer", version, near=True)
        await peer.connect()
        await peer.subscribe("t/#", 2)
        await peer.disconnect()
        raw = CUT[packet](version)
        for cut in sorted({1, 2, len(raw) // 2, len(raw) - 1} & set(range(1, len(raw)))):
            if packet == "CONNECT":
                await reset_after(here, raw[:cut])
                continue
            wills = len(here.arrived("watcher"))
            await peer.connect(will=peer.will("will/peer"))
            peer.raw(raw[:cut])
            await asyncio.sleep(0.02)
            await peer.drop()
            await watcher.until(lambda wills=wills: len(here.arrived("watcher")) > wills, "the will")
            assert [each.tag.topic_name for each in here.arrived("watcher")[wills:]] == ["will/peer"]
        assert (await peer.connect()).session_present
        for topic_name in ("t/x", "u/x"):
            watcher.publish(topic_name, 2)
        await here.settled()
        assert [each.tag.topic_name for each in here.arrived("peer")] == ["t/x"]


async def reset_after(here: Net, data: bytes) -> None:
    """A connection that sends *data* and is reset."""
    loop = asyncio.get_running_loop()
    sock = await loop.run_in_executor(None, here.wire.dial_near)
    with contextlib.closing(sock):
        reset_on_close(sock)
        await loop.sock_sendall(sock, data)
        await asyncio.sleep(0.02)
