"""A broker in a background event loop, with a clock that only the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import difflib
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from broker import Broker
from broker.config import Capacity, Config, Limits, Protocol, WebSocket
from broker.hook.base import HookBase
from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.hooks import Gate, Recorder
from tests.conformance.transports import TRANSPORTS, Tcp

T = TypeVar("T")
Codes = int | tuple[int | None, ...]

LISTEN = ("tcp://127.0.0.1:0", "ws://127.0.0.1:0/mqtt")
SCHEMES = {"tcp": "tcp:", "bytewise": "tcp:", "websocket": "ws:"}
# With these CONNACK has nothing to say: 5 bytes, so that a client which takes 8 can be served at all.
BARE: dict[str, Any] = {
    "receive_maximum": 65535,
    "maximum_packet_size": 268_435_460,
    "topic_alias_maximum": 0,
}
SECTIONS = {"limits": Limits, "capacity": Capacity, "protocol": Protocol, "websocket": WebSocket}


class LoopThread:
    """One event loop in one daemon thread, for all brokers of the test session."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.errors: list[str] = []
        self.loop.set_exception_handler(self._failed)
        self.thread = threading.Thread(target=self.loop.run_forever, name="broker loop", daemon=True)
        self.thread.start()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"event loop: {context.get('message')} {context.get('exception')!r}")

    def run(self, coro: Coroutine[Any, Any, T], timeout: float = 10.0) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result(timeout)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 10_000.0

    def __call__(self) -> float:
        return self.now


class ErrorLog(logging.Handler):
    """Collects what the broker logs at ERROR and above."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def configure(config: Config | None, overrides: dict[str, Any]) -> Config:
    """*config* with fields of any section replaced by name; no sweep and no `$SYS` of its own accord."""
    base = config or Config(listen=LISTEN)
    if base.listen == Config().listen:
        base = dataclasses.replace(base, listen=LISTEN)
    given = {"sweep_interval": 0.0, "sys_interval": 0.0, "grace_time": 0.3, **overrides}
    for section, kind in SECTIONS.items():
        names = {one.name for one in dataclasses.fields(kind)} & set(given)
        changes = {name: given.pop(name) for name in names}
        base = dataclasses.replace(base, **{section: dataclasses.replace(getattr(base, section), **changes)})
    top = {one.name for one in dataclasses.fields(Config)}
    for name in set(given) - top:
        near = difflib.get_close_matches(
            name, [f.name for k in SECTIONS.values() for f in dataclasses.fields(k)]
        )
        raise AssertionError(f"no setting is called {name!r}; near: {near}")
    return dataclasses.replace(base, **given)


class Server:
    """One broker under test; made by the fixtures `server` and `serve`."""

    def __init__(self, thread: LoopThread, transport: str, rng: random.Random, config: Config,
                 hooks: Sequence[HookBase] = ()) -> None:  # fmt: skip
        self.transport, self.rng, self.clock, self._thread = transport, rng, Clock(), thread
        self.recorder, self.log = Recorder(), ErrorLog()
        self.clients: list[Raw] = []
        self._errors_wanted = False
        self._watcher: Raw | None = None
        logging.getLogger("broker").addHandler(self.log)
        thread.errors.clear()
        self._config, self._hooks = config, hooks
        self.broker: Broker = self.run(self._start(config, hooks))

    async def _start(self, config: Config, hooks: Sequence[HookBase]) -> Broker:
        broker = Broker(config, hooks=[*hooks, self.recorder], clock=self.clock)
        await broker.start()
        return broker

    def restart(self) -> None:
        """Another broker with the same settings and hooks; the old one stops as on SIGTERM."""
        self.run(self.broker.stop())
        self.wait_until(lambda: not self.recorder.live, "the end of every client")
        self.broker = self.run(self._start(self._config, self._hooks))

    # ---- time and the loop

    def run(self, coro: Coroutine[Any, Any, T], timeout: float = 10.0) -> T:
        """Runs *coro* in the broker's loop and returns what it returns."""
        return self._thread.run(coro, timeout)

    def advance(self, seconds: float, step: float | None = None) -> None:
        """Lets *seconds* pass, in one jump or in steps, and looks at every deadline after each."""
        self.run(self._advance(seconds, step or seconds))

    async def _advance(self, seconds: float, step: float) -> None:
        end = self.clock.now + seconds
        await _turns(10)
        while self.clock.now < end - 1e-9:
            self.clock.now = min(self.clock.now + step, end)
            await self.broker.sweep()
            await _turns(10)

    def settle(self) -> None:
        """Lets the loop run until everything that is ready has been done."""
        self.run(_turns(50))

    def wait_until(self, condition: Callable[[], object], what: str = "", timeout: float = 10.0) -> None:
        """Waits in real time until *condition*, called in the broker's loop, holds."""
        self.run(_wait_until(condition, what, timeout), timeout + 2)

    # ---- clients

    def address(self, transport: str | None = None) -> str:
        scheme = SCHEMES.get(transport or self.transport, f"{transport}:")
        found = [one for one in self.broker.addresses if one.startswith(scheme)]
        assert found, f"no {scheme} listener in {self.broker.addresses}"
        return found[0]

    def client(self, version: int = 5, *, transport: str | None = None, address: str | None = None,
               context: ssl.SSLContext | None = None, **kwargs: Any) -> Raw:  # fmt: skip
        """A client with an open stream that has sent nothing yet."""
        kind: type[Tcp] = TRANSPORTS.get(transport or self.transport, Tcp)
        stream = kind(address or self.address(transport), rng=self.rng, context=context, **kwargs)
        client = Raw(stream, version, self._gone, self.settle)
        self.clients.append(client)
        return client

    def connect(self, client_id: str = "client", version: int = 5, **kwargs: Any) -> Raw:
        """A client that is connected; arguments as `Raw.connect`; its CONNACK is `client.connack`."""
        client = self.client(version)
        client.connect(client_id, **kwargs)
        return client

    def push(self, client: Raw, *chunks: bytes) -> None:
        """*client* sends bytes that need no answer; the broker has dealt with them when this returns."""
        self.settle()
        stats = self.broker.stats
        wanted = stats.bytes_received + sum(map(len, chunks))
        client.send(*chunks)
        self.wait_until(lambda: stats.bytes_received >= wanted, "the end of what was sent")
        self.settle()

    def hold(self, gate: Gate, client: Raw, *chunks: bytes) -> None:
        """*client* sends *chunks*, the first of which waits at *gate* when this returns."""
        before = gate.waiting
        client.send(*chunks)
        self.wait_until(lambda: gate.waiting > before, "the gate")

    def watch(
        self, topic_filter: str = "#", client_id: str = "watcher", qos: int = 2, version: int = 5
    ) -> Raw:
        """A bystander on plain TCP that sees every message as published, and acknowledges by itself."""
        client = self.client(version, transport="tcp")
        client.connect(client_id)
        granted = [min(qos, self.broker.config.limits.maximum_qos)]
        client.subscribe(topic_filter, qos=qos, retain_as_published=version == 5, granted=granted)
        client.auto_ack = True
        return client

    def late(self, topic_filter: str = "#", qos: int = 2, version: int = 5, **options: Any) -> Raw:
        """A new client that has just subscribed: retained messages are the next it gets."""
        client = self.connect(f"late-{len(self.clients)}", version)
        client.subscribe(topic_filter, qos=qos, **options)
        return client

    def sys_value(self, name: str) -> str:
        """What a new subscriber is told as `$SYS/broker/`*name*."""
        topic_name = f"$SYS/broker/{name}"
        packet = self.late(topic_name).expect("PUBLISH", topic_name=topic_name, retain=True)
        return (packet.payload or b"").decode()

    def retained(self, topic_filter: str = "#") -> list[tuple[str, bytes]]:
        """What a new subscriber gets at once: (topic, payload), sorted; all with RETAIN 1."""
        client = self.client(transport="tcp")
        client.connect(f"retained-{len(self.clients)}")
        client.subscribe(topic_filter)
        found = [packet for packet in client.drain() if packet.name == "PUBLISH"]
        client.disconnect()
        assert all(packet.retain for packet in found), f"a retained message without RETAIN: {found}"
        return sorted((packet.topic_name or "", packet.payload or b"") for packet in found)

    # ---- breaches

    def expect_breach(self, *chunks: bytes, codes: Codes, version: int = 5, **connect: Any) -> None:
        """A client with a will sends *chunks* after CONNACK: the server closes with one of *codes*.

        3.x: it closes without a packet. A bystander on the same broker sees the will, and nothing else.
        """
        with _noted(chunks):
            bystander = self._bystander()
            qos = min(1, self.broker.config.limits.maximum_qos)
            will = wire.will("breach/will", b"gone", qos=qos)
            client = self.connect(f"breach-{len(self.clients)}", version, will=will, **connect)
            client.send(*chunks)
            client.expect_close(*_codes(codes))
            client.close()
            bystander.expect("PUBLISH", topic_name="breach/will", payload=b"gone", qos=qos)
            bystander.expect_nothing()

    def expect_refused(self, *chunks: bytes, codes: Codes = (), version: int = 5) -> None:
        """*chunks* are the first bytes of a connection: CONNACK with one of *codes* (none: silence), the end.

        The bystander sees nothing.
        """
        with _noted(chunks):
            bystander = self._bystander()
            client = self.client(version)
            client.send(*chunks)
            client.expect_close(*_codes(codes))
            client.close()
            bystander.expect_nothing()

    def _bystander(self) -> Raw:
        if self._watcher is None:
            self._watcher = self.watch("#", "bystander")
        return self._watcher

    # ---- the broker's side of a client's end

    def _gone(self, client: Raw) -> None:
        """Called when *client* has closed its socket: the broker must notice, and end what hangs on it."""
        if client.accepted:
            self.wait_until(
                lambda: not self.recorder.has(client.client_id, client.port, client.transport.address),
                f"the end of {client.client_id}",
            )
        self.settle()

    # ---- the end

    def expect_errors(self) -> None:
        """This test provokes errors in the broker's log; at least one must be there at the end."""
        self._errors_wanted = True

    def close(self) -> None:
        """Closes all clients, asserts that the broker has none left and logged no error, and stops it."""
        for client in self.clients:
            client.close()
        try:
            self.wait_until(
                lambda: not self.recorder.live and not self.broker.clients, "the end of every client"
            )
        finally:
            try:
                self.run(self.broker.stop())
            finally:
                logging.getLogger("broker").removeHandler(self.log)
        errors = self.log.lines + self._thread.errors
        if self._errors_wanted:
            assert errors, "the test wanted an error in the broker's log"
        else:
            assert not errors, "the broker logged:\n" + "\n".join(errors)


def _codes(codes: Codes) -> tuple[int | None, ...]:
    return codes if isinstance(codes, tuple) else (codes,)


@contextlib.contextmanager
def _noted(chunks: Sequence[bytes]) -> Iterator[None]:
    """Says in a failure which bytes were sent."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"after sending {' | '.join(chunk[:80].hex(' ') for chunk in chunks)}")
        raise


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _wait_until(condition: Callable[[], object], what: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {timeout} s: {what}"
        await asyncio.sleep(0.002)
