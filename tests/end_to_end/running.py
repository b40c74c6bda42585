"""A broker in a background thread for clients that run beside it, and a wire between that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from queue import Empty, Queue
from typing import Any, TypeVar
from urllib.parse import urlsplit

from broker import Broker, Config, HookBase
from tests.conformance.server import ErrorLog, LoopThread

T = TypeVar("T")
WAIT = 15.0  # seconds for anything that should happen at once; a busy machine may take its time

LISTEN = {
    "tcp": "tcp://127.0.0.1:0",
    "tls": "tls://127.0.0.1:0",
    "ws": "ws://127.0.0.1:0/mqtt",
    "wss": "wss://127.0.0.1:0/mqtt",
}


class Clock:
    """Real time, and what a test has added to it: nobody sleeps for an hour to see an hour pass."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Running:
    """One broker; made by the fixture `serve`, which closes it and fails on an error in its log."""

    def __init__(self, thread: LoopThread, config: Config, hooks: Sequence[HookBase]) -> None:
        self.thread, self.clock, self.log = thread, Clock(), ErrorLog()
        self.relays: list[Relay] = []
        logging.getLogger("broker").addHandler(self.log)
        thread.errors.clear()
        self.broker = self.run(self._start(config, hooks))

    async def _start(self, config: Config, hooks: Sequence[HookBase]) -> Broker:
        broker = Broker(config, hooks=hooks, clock=self.clock)
        await broker.start()
        return broker

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """What *coro* returns; it runs in the broker's loop."""
        return self.thread.run(coro, WAIT)

    def url(self, scheme: str = "tcp") -> str:
        """Its address for *scheme*, with the bound port."""
        return next(one for one in self.broker.addresses if one.startswith(f"{scheme}:"))

    def port(self, scheme: str = "tcp") -> int:
        return urlsplit(self.url(scheme)).port or 0

    def relay(self) -> Relay:
        """A wire to the TCP listener."""
        relay = self.run(Relay.to(self.port()))
        relay.thread = self.thread
        self.relays.append(relay)
        return relay

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, and look at every deadline."""
        self.clock.ahead += seconds
        self.run(self.broker.sweep())

    def publish(self, topic_name: str, payload: bytes | str = b"", **options: Any) -> int:
        """`Broker.publish` from the test's thread."""
        return self.run(self.broker.publish(topic_name, payload, **options))

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Return once *condition*, called in the broker's loop, holds."""
        self.run(_until(condition, what))

    def wait_gone(self, client_id: str) -> None:
        self.wait_until(lambda: client_id not in self.broker.clients, f"the end of {client_id}")

    def close(self) -> None:
        for relay in self.relays:
            self.run(relay.close())
        try:
            self.run(self.broker.stop())
        finally:
            logging.getLogger("broker").removeHandler(self.log)
        errors = self.log.lines + self.thread.errors
        assert not errors, "the broker logged:\n" + "\n".join(errors)


class Relay:
    """A TCP wire between clients and the broker that a test can mute one way, and cut.

    `muted` holds the directions whose bytes get lost: "answers" (broker to client), "acks" (client to
    broker). A cut is a reset for both sides, and leaves the wire whole for the next connection.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.muted: set[str] = set()
        self.thread: LoopThread
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def to(cls, target: int) -> Relay:
        relay = cls(target)
        relay.server = await asyncio.start_server(relay._connected, "127.0.0.1", 0)
        relay.port = relay.server.sockets[0].getsockname()[1]
        return relay

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers |= {writer, far_writer}
        await asyncio.gather(
            self._pump(reader, far_writer, "acks"), self._pump(far_reader, writer, "answers")
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if way not in self.muted:
                    writer.write(data)
        if not writer.is_closing():
            writer.close()

    def cut(self) -> None:
        """Reset every connection, and carry what comes over the next ones again."""
        self.thread.run(self._cut(), WAIT)

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self.muted.clear()

    async def close(self) -> None:
        self.server.close()
        await self._cut()
        await asyncio.gather(*self._tasks)


async def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT - 1
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {WAIT} s: {what}"
        await asyncio.sleep(0.005)


def take(queue: Queue[T], count: int) -> list[T]:
    """The next *count* things of *queue*; says what came when some are missing."""
    found: list[T] = []
    try:
        for _ in range(count):
            found.append(queue.get(timeout=WAIT))
    except Empty:
        raise AssertionError(f"{len(found)} of {count} came: {found}") from None
    return found


class Recorder(HookBase):
    """Counts what the broker has taken in and seen end: a muted client cannot tell."""

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.ended: list[tuple[str, int]] = []

    def on_publish(self, client: Any, message: Any) -> None:
        self.published.append(message.payload)

    def on_disconnect(self, client: Any, reason: int, text: str) -> None:
        self.ended.append((client.client_id, reason))
