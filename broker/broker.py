"""Broker: the composition root."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType, TracebackType
from typing import Any

from broker.client import Client
from broker.config import VERSION, Config
from broker.connections import Connections
from broker.core import assemble, open_store, transport_options
from broker.errors import (
    BrokerError,
    MqttError,
    ProtocolError,
    ReasonCode,
    ServerShuttingDown,
)
from broker.gateway.local import LocalSubscription
from broker.handle.deadlines import check_deadlines
from broker.handle.disconnect import after_restart, due_work, end_session, finish
from broker.handle.publish import check_store, set_expiry
from broker.hook.base import Hold, HookBase, Notes
from broker.hook.stats import Stats, sys_values
from broker.packet.message import Message, as_message, travelling
from broker.packet.packets import NO_PROPERTIES, Properties
from broker.packet.properties import Place, property_block
from broker.store.memory import OwnNotes
from broker.topic.match import match
from broker.topic.name import check_topic_filter, check_topic_name, split_share
from broker.topic.subscription import Subscription
from broker.transport.base import Listener
from broker.transport.listen import listen

log = logging.getLogger("broker")

STOOD_STILL = 0.5  # seconds late, after which the process must have been stopped for a while


class Broker:
    """An MQTT 3.1.1 and 5.0 broker inside this program.

    `async with Broker() as broker` listens while the block runs; `await Broker().serve()` until it is
    cancelled or `request_stop` is called. Everything belongs to this object and to the event loop
    that started it: several brokers can share a loop, and nothing is global. It installs no signal
    handlers. With *store*, a file, what was acknowledged outlives the process. *clock* gives seconds and
    never goes back, *wall* the time of day; tests bring their own.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        hooks: Sequence[HookBase] = (),
        listen: str | Sequence[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        config = config or Config()
        if store is not None:
            config = replace(config, store=replace(config.store, path=os.fspath(store)))
        if listen is not None:
            config = replace(config, listen=(listen,) if isinstance(listen, str) else tuple(listen))
        self.config = config
        self._core = assemble(config, hooks, clock, self._count_drop, self._sys_messages)
        self._listeners: list[Listener] = []
        self._connections = Connections(self._core)
        self._housekeeping: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()  # wills and ends of sessions that wait for hooks
        self._stopping: asyncio.Event | None = None
        self._stop: asyncio.Task[None] | None = None  # one for all who want it
        self._locals: set[LocalSubscription] = set()
        self._local_ids = 0
        self._sys_at = clock()
        self._wall = wall

    # ---- life

    @property
    def addresses(self) -> list[str]:
        """Where it listens, as URLs with the bound host and port; empty before `start`."""
        return [listener.url for listener in self._listeners]

    @property
    def listeners(self) -> Sequence[Listener]:
        """The listeners, started."""
        return tuple(self._listeners)

    async def start(self) -> None:
        """Open the store, initialise the hooks, bind every address and accept clients.

        Raises OSError, ConfigError, StoreError. After an error nothing is left open.
        """
        if self._connections.open:
            raise BrokerError("the broker is started already")
        self._connections.begin()
        self._stop = None
        self._stopping = asyncio.Event()
        self._core.stats.started_at = self._core.clock()
        try:
            left = await open_store(self._core, self._wall)
            await self._core.hooks.init(self)
        except BaseException:
            self._connections.open = False
            await self._core.journal.stop()
            raise
        try:
            await after_restart(self._core, left)
            await self._bind()
        except BaseException:
            await self._abandon()
            raise
        if self.config.capacity.sweep_interval:
            self._housekeeping = asyncio.create_task(self._keep_house())

    async def _bind(self) -> None:
        options = replace(transport_options(self.config), turn=self._connections.turn)
        for url in self.config.listen:
            listener = listen(url, options, self._connections.accept)
            await listener.start()
            self._listeners.append(listener)

    async def _abandon(self) -> None:
        self._connections.open = False
        for listener in self._listeners:
            await listener.stop()
        self._listeners.clear()
        await self._drain()  # who came in through the first ones meanwhile
        await self._core.hooks.stop()
        await self._core.journal.stop()

    async def serve(self) -> None:
        """Run until cancelled or `request_stop`; then stop in order. Starts first if need be."""
        if not self._connections.open:
            await self.start()
        assert self._stopping is not None
        try:
            await self._stopping.wait()
        finally:
            await self.stop()

    def request_stop(self) -> None:
        """Make `serve` stop and return. Not from another thread."""
        if self._stopping is not None:
            self._stopping.set()

    async def stop(self) -> None:
        """Accept nothing more, say 0x8B to 5.0 clients, let queues leave within `grace_time`, close.

        Wills of sessions that end with their connection are published. Does nothing if not started, and
        if it is at work already waits for its end. Cancelled, it gives up the grace time, not the rest.
        """
        if self._stop is None:
            if not self._connections.open:
                return
            self._stop = asyncio.create_task(self._stop_in_order())
        try:
            await asyncio.shield(self._stop)
        except asyncio.CancelledError:
            self._connections.give_up("no time left")
            await asyncio.wait([self._stop])
            raise

    async def _stop_in_order(self) -> None:
        self._connections.open = False
        self.request_stop()
        for listener in self._listeners:
            await listener.stop()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._housekeeping
        await self._core.journal.settled(self.config.capacity.grace_time)
        await self._drain()
        late = tuple(self._background)  # begun meanwhile by the program
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for local in tuple(self._locals):
            local.close()
        self._listeners.clear()
        await self._core.hooks.stop()
        await self._core.journal.stop()
        log.info("stopped")

    async def _drain(self) -> None:
        """End every connection; those that are not gone after the grace time are dropped."""
        goodbyes = {asyncio.create_task(self._let_go(client)) for client in self._connections}
        ends = asyncio.get_running_loop().time() + self.config.capacity.grace_time
        waiting = {*goodbyes, *self._background}
        try:
            await _until(waiting, ends)
            waiting |= self._connections.tasks()
            await _until(waiting, ends)
            waiting |= self._core.leaving
            await _until(waiting, ends)
        finally:
            for task in waiting - self._connections.tasks():
                task.cancel()
            self._connections.give_up("the grace time is over")
        await asyncio.gather(*waiting, *self._connections.tasks(), return_exceptions=True)

    async def _let_go(self, client: Client) -> None:
        """Say goodbye, to one whose socket is slow after it has taken what is queued."""
        await client.drained()
        client.end(ServerShuttingDown("the broker is shutting down"), flush=True)
        await client.wait_closed()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- deadlines

    async def _keep_house(self) -> None:
        loop, interval = asyncio.get_running_loop(), self.config.capacity.sweep_interval
        while True:
            asleep = loop.time()
            await asyncio.sleep(interval)
            if loop.time() - asleep > interval + STOOD_STILL:
                await asyncio.sleep(0)  # we were not running: read first what came meanwhile [B08]
                await asyncio.sleep(0)
            try:
                self._begin_sweep()
            except Exception:
                log.exception("unexpected error while looking at deadlines")

    async def sweep(self) -> None:
        """Look at every deadline now: Keep Alive, time-outs, wills, sessions, retained messages, `$SYS`.

        Runs by itself every `capacity.sweep_interval` seconds, unless that is 0. Returns when the wills and
        the ends of sessions that were due are done, which may wait for hooks.
        """
        await asyncio.gather(*self._begin_sweep())

    def _begin_sweep(self) -> list[asyncio.Task[None]]:
        """As `sweep`, without waiting: each will and each end that is due goes on by itself."""
        core, now = self._core, self._core.clock()
        for client in self._connections:
            check_deadlines(client, self.config.limits, now)
            session = client.session
            if session is not None and session.disconnect_slow and session.link is client:
                session.disconnect_slow = False
                client.end(MqttError("the session's queue is full", ReasonCode.QUOTA_EXCEEDED))
        begun = [self._go_on(work) for work in due_work(core, now)]
        core.retained.clean_expired(now)
        core.sessions.drop_expired(now)
        core.journal.see_to_clock()
        interval = self.config.capacity.sys_interval
        if interval and now - self._sys_at >= interval:
            self._sys_at = now
            self._publish_sys()
        return begun

    def _go_on(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._went_on)
        return task

    def _went_on(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("unexpected error in a will or the end of a session", exc_info=task.exception())

    # ---- the embedded interface

    async def publish(
        self,
        topic_name: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish as the program itself: no hook is asked for permission, and `$` topics are allowed.

        When it returns, the message is in every session that matches, with QoS 1 and 2 as durably as the
        store promises. Gives the Reason Code that a client would get: 0x00, or 0x10 when no subscription
        matched. Raises TopicNameInvalid, ProtocolError for a property or QoS that cannot be, QuotaExceeded
        when it cannot be retained, StoreUnavailable when it cannot be stored, BrokerError while the store
        is not open, which it is from `start` to `stop`.
        """
        self._connections.settle()
        check_topic_name(topic_name)
        message = self._local_message(topic_name, payload, qos, retain, properties)
        journal = self._core.journal
        journal.check_open()
        if qos and journal.failure is not None:
            check_store(self._core, message)
        held = None
        if self._core.hooks.hears_taken:
            held = self._core.hooks.on_taken(None, message, False, "program")
        changes = journal.changes
        matched = await self._core.router.publish(message)
        if qos:
            await journal.settle(journal.promise(changes, topic_name), message)
        await _released(held, qos)
        return ReasonCode.SUCCESS if matched else ReasonCode.NO_MATCHING_SUBSCRIBERS

    def _local_message(
        self, topic_name: str, payload: bytes | str, qos: int, retain: bool, properties: Properties | None
    ) -> Message:
        if qos not in (0, 1, 2):
            raise ProtocolError(f"qos is 0, 1 or 2, not {qos!r}")
        found = travelling(properties or NO_PROPERTIES)
        try:
            property_block(found, Place.PUBLISH)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ProtocolError(f"properties that no PUBLISH can carry: {error}") from error
        if not isinstance(payload, str | bytes | bytearray | memoryview):
            raise TypeError(f"payload is bytes or str, not {type(payload).__name__}")
        data = payload.encode() if isinstance(payload, str) else bytes(payload)
        message = Message(topic_name, data, qos, retain, found)
        set_expiry(message, self.config.limits.message_expiry_interval, self._core.clock())
        return message

    def subscribe(
        self, topic_filter: str, *, qos: int = 2, retained: bool = True, maximum: int = 10_000
    ) -> LocalSubscription:
        """Messages of *topic_filter* as an async iterator; it is live when this returns.

        Starts with the retained messages of the built-in store unless *retained* is False. `$share/`
        filters take part in their group. At most *maximum* messages wait. Raises TopicFilterInvalid.
        """
        self._connections.settle()
        check_topic_filter(topic_filter)
        self._local_ids += 1
        share_name, bare = split_share(topic_filter)
        local = LocalSubscription(
            f"$local/{self._local_ids}",
            maximum,
            self._core.budget,
            self._core.dropped,
            lambda subscriber: self._unsubscribe_local(subscriber, topic_filter),
        )
        subscription = Subscription(topic_filter, qos, retain_as_published=True, share_name=share_name)
        self._core.tree.subscribe(local, subscription)
        self._locals.add(local)
        if retained and not share_name:
            found = self._core.retained.stretches(bare, self._core.clock())
            for message in chain(self._sys_messages(bare), *found):
                local.deliver(as_message(message), subscription)
        return local

    def _unsubscribe_local(self, subscriber: LocalSubscription, topic_filter: str) -> None:
        self._connections.settle()
        self._core.tree.unsubscribe(subscriber, topic_filter)
        self._locals.discard(subscriber)

    def notes(self, owner: str) -> Notes:
        """The small table of *owner*, a hook say: see Notes. Raises BrokerError before the store is open."""
        self._core.journal.check_open()
        return OwnNotes(self._core.notes, owner)

    @property
    def clients(self) -> Mapping[str, Client]:
        """The connected clients by ClientID, live and read-only."""
        self._connections.settle()
        return MappingProxyType(self._core.clients)

    @property
    def stats(self) -> Stats:
        """The counters."""
        self._connections.settle()
        return self._core.stats

    async def disconnect(
        self,
        client_id: str,
        reason: int = ReasonCode.ADMINISTRATIVE_ACTION,
        *,
        server_reference: str | None = None,
    ) -> bool:
        """Close the connection of *client_id*, saying *reason* to a 5.0 client; False if it has none.

        With 0x9C and 0x9D, *server_reference* says where to go: `host[:port]`, several with spaces.
        """
        self._connections.settle()
        client = self._core.clients.get(client_id)
        if client is None:
            return False
        text = "disconnected by the broker's program"
        client.end(MqttError(text, reason, server_reference=server_reference))
        task = self._connections.task(client)
        if task is not None and asyncio.current_task() not in (task, client.extra.greeting):
            await asyncio.wait([task], timeout=self.config.capacity.grace_time)
        return True

    def ask_again(self, client_id: str | None = None) -> None:
        """Rules have changed: where *client_id*, or everybody, may publish is asked of the hooks anew.

        What `may_publish` has allowed is forgotten; without such a hook this does nothing.
        """
        self._connections.settle()
        verdicts = self._core.hooks.verdicts
        if verdicts is None:
            return
        if client_id is None:
            verdicts.forget_all()
        elif client_id in self._core.clients:
            verdicts.forget(self._core.clients[client_id].info)

    async def delete_session(self, client_id: str) -> bool:
        """End the session of *client_id*, closing its connection first; False if there is none.

        A pending will is published, shared messages go to other members.
        """
        self._core.journal.check_open()
        session = self._core.sessions.get(client_id)
        if session is None:
            return False
        await self.disconnect(client_id)
        async with self._core.turns.of(client_id):
            if not session.connected:
                await finish(end_session(self._core, session))
        return True

    # ---- $SYS

    def _gauges(self) -> dict[str, int | str]:
        core = self._core
        return {
            "version": f"pybroker {VERSION}",
            "clients/connected": len(core.clients),
            "clients/disconnected": len(core.sessions) - len(core.clients),
            "clients/total": len(core.sessions),
            "subscriptions/count": core.tree.count,
            "retained messages/count": len(core.retained),
            "store/messages/bytes": core.budget.used,
            **core.journal.gauges(),
            **core.hooks.sys_values(),
        }

    def _sys_messages(self, topic_filter: str) -> Iterator[Message]:
        values = sys_values(self._core.stats, self._gauges(), self._core.clock())
        return (Message(name, value.encode()) for name, value in values.items() if match(topic_filter, name))

    def _publish_sys(self) -> None:
        """Live values to whoever subscribes; not retained, since a new subscriber gets them anyway."""
        for message in self._sys_messages("$SYS/#"):
            if self._core.hooks.hears_taken:
                self._core.hooks.note_taken(None, message, "sys")
            if self._core.router.matches(message.topic_name):
                self._core.router.route(message)

    # ---- drops

    def _count_drop(self, client_id: str, message: Message | None, reason: str) -> None:
        core = self._core
        core.stats.drop(reason)
        client = core.clients.get(client_id)
        if client is not None:
            client.count_drop(reason)
        core.hooks.on_dropped(client_id, message, reason)


async def _released(held: Hold | None, qos: int) -> None:
    """Wait for what hooks hold of a message of the program; others wait for it, too."""
    if held is not None and held.acknowledgement is not None and qos:
        await asyncio.shield(held.acknowledgement)
    if held is not None and held.reading is not None:
        await asyncio.shield(held.reading)


async def _until(tasks: set[asyncio.Task[Any]], ends: float) -> None:
    """Wait for *tasks*, but not after *ends* on the clock of the loop."""
    if tasks:
        await asyncio.wait(tasks, timeout=max(0.0, ends - asyncio.get_running_loop().time()))
