"""Networks that lose what is sent: two network namespaces joined by a cable, or a proxy that stalls.

Whoever sends into a wire that loses hears nothing of it: no error, no end. A client of the lossy side
gets its socket from `dial`; one beside the broker from `dial_near`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from typing import Protocol

from tests.faults.daemon import free_port

DIAL = 3.0  # seconds that a connection may take to come about
WAYS = ("to_broker", "from_broker")


class Wire(Protocol):
    """What lies between clients and the broker. `host`, `port`, `prefix` are for `Restartable`."""

    host: str
    port: int
    prefix: Sequence[str]

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def lose(self, *ways: str) -> None:
        """From now on what is sent in these *ways* (all, if none is named) does not arrive."""

    def mend(self) -> None:
        """Carry everything again; what TCP still has arrives late."""

    def dial(self) -> socket.socket:
        """A connection of a client over this wire. Blocks; raises OSError."""

    def dial_near(self) -> socket.socket:
        """A connection of a client that sits beside the broker."""


# ---- namespaces


def namespaces_allowed() -> bool:
    """Whether this machine lets us make network namespaces."""
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    return tools and subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL).returncode == 0


class Namespaces:
    """The broker in one network namespace, its clients in another, a virtual cable between them.

    A frame is lost when its sender believes in a wrong MAC address: neither side can tell.
    """

    host, port = "10.99.0.2", 1883
    near, far = "10.99.0.2", "10.99.0.1"
    NOBODY = "02:00:00:00:00:99"

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        self.prefix: Sequence[str] = ()
        self._macs: dict[str, str] = {}

    async def open(self) -> None:
        for _ in range(2):  # clients, broker
            script = "ip link set lo up && echo && exec sleep 600"
            holder = subprocess.Popen(["unshare", "-n", "sh", "-c", script], stdout=subprocess.PIPE)
            self._holders.append(holder)
            assert holder.stdout is not None and holder.stdout.readline() == b"\n"
        broker = str(self._holders[1].pid)
        self.prefix = ("nsenter", f"--net=/proc/{broker}/ns/net")
        self._ip(0, "link", "add", "wire0", "type", "veth", "peer", "name", "wire1", "netns", broker)
        for side, name, address in ((0, "wire0", self.far), (1, "wire1", self.near)):
            self._ip(side, "addr", "add", f"{address}/30", "dev", name)
            self._ip(side, "link", "set", name, "up")
            shown = self._ip(side, "-o", "link", "show", name).split()
            self._macs[name] = shown[shown.index("link/ether") + 1]
        self.mend()

    def _ip(self, side: int, *words: str) -> str:
        command = ["nsenter", f"--net=/proc/{self._holders[side].pid}/ns/net", "ip", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    async def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()

    def lose(self, *ways: str) -> None:
        for way in ways or WAYS:
            self._believe(way, self.NOBODY)

    def mend(self) -> None:
        self._believe("to_broker", self._macs["wire1"])
        self._believe("from_broker", self._macs["wire0"])

    def _believe(self, way: str, mac: str) -> None:
        """The side that sends this way takes *mac* for the address of the other one."""
        side, there, name = (0, self.near, "wire0") if way == "to_broker" else (1, self.far, "wire1")
        self._ip(side, "neigh", "replace", there, "lladdr", mac, "dev", name, "nud", "permanent")

    def dial(self) -> socket.socket:
        return self._dial(0)

    def dial_near(self) -> socket.socket:
        return self._dial(1)

    def _dial(self, side: int) -> socket.socket:
        """A socket belongs to the namespace that its thread was in when it was made."""
        its = f"/proc/{self._holders[side].pid}/ns/net"
        with open(its) as there, open("/proc/thread-self/ns/net") as here:
            _setns(there.fileno())
            try:
                sock = socket.socket()
            finally:
                _setns(here.fileno())
        return _connect(sock, (self.host, self.port))


CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int) -> None:
    if LIBC.setns(fd, CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _connect(sock: socket.socket, place: tuple[str, int]) -> socket.socket:
    try:
        sock.settimeout(DIAL)
        sock.connect(place)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


# ---- a proxy


class Lost(Exception):
    """A connection ended while the wire did not carry."""


class StallingProxy:
    """Carries bytes between two sockets, and stalls instead of losing; ends are not carried either.

    What was sent meanwhile arrives when the wire is mended, as after retransmission, unless its sender is
    gone by then: the other side is left with a connection that is half open.
    """

    host = "127.0.0.1"
    prefix: Sequence[str] = ()

    def __init__(self) -> None:
        self.port = free_port()
        self._carry = {way: asyncio.Event() for way in WAYS}
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self.mend()
        self._server = await asyncio.start_server(self._accept, self.host, 0)
        self._front = self._server.sockets[0].getsockname()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.transport.abort()
            return
        for pump in (self._pump("to_broker", reader, there[1]), self._pump("from_broker", there[0], writer)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    await self._carried(way, reader)
                    writer.write(data)
                    await writer.drain()
            await self._carried(way, reader)
            writer.close()
        except Lost:
            if way == "from_broker":  # whoever sends into a connection that is gone is told so
                await self._carry[way].wait()
                writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
            raise

    async def _carried(self, way: str, reader: asyncio.StreamReader) -> None:
        """Wait until the wire carries; raises Lost when the sender ends before, and all of it with it."""
        while not self._carry[way].is_set():
            if reader.at_eof() or reader.exception() is not None:
                raise Lost
            await asyncio.sleep(0.005)

    def lose(self, *ways: str) -> None:
        for way in ways or WAYS:
            self._carry[way].clear()

    def mend(self) -> None:
        for carry in self._carry.values():
            carry.set()

    def dial(self) -> socket.socket:
        return _connect(socket.socket(), self._front)

    def dial_near(self) -> socket.socket:
        return _connect(socket.socket(), (self.host, self.port))


def kinds() -> dict[str, type[Namespaces] | type[StallingProxy]]:
    """The wires that this machine has."""
    proxy: dict[str, type[Namespaces] | type[StallingProxy]] = {"proxy": StallingProxy}
    return proxy | ({"namespaces": Namespaces} if namespaces_allowed() else {})
