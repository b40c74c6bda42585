"""Connections: all of one broker, from the accepted socket to the last trace of its client."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from broker.client import Client, ClientTerms, no_lane
from broker.core import Core
from broker.errors import ServerShuttingDown
from broker.handle.disconnect import say_goodbye, serve_client
from broker.handle.dispatch import dispatcher
from broker.handle.express import Express
from broker.handle.publish import check_publish_topic, handle_publish, not_stored
from broker.lane.lane import Lane
from broker.outbound import Flusher
from broker.packet.reader import Readers, TopicNames
from broker.transport.base import Awake, Connection, Peer, Turn

log = logging.getLogger("broker")

PUBLISH = 3  # the packet type, which the fast lane leaves alone while hooks inspect it
OVERFLOW = 64  # connections above the maximum that are still read, so that CONNACK can say why


class Connections:
    """Every client that has a connection, and the task that serves it while it has something to say."""

    def __init__(self, core: Core) -> None:
        self._core = core
        names = TopicNames(core.config.protocol.disallowed_code_points == "reject")
        lane = Lane(core, names, check_publish_topic, handle_publish)
        self._terms = client_terms(core, names, lane, self._serve, self._goodbye)
        self.settle = lane.judged.settle
        self._tasks: dict[Client, asyncio.Task[bool] | None] = {}
        self._addresses: Counter[str] = Counter()
        self.open = False  # new ones are accepted
        self.turn = Turn(Awake(core.config.capacity.stay_awake))

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Client]:
        """As they are now: some may go while the caller looks at others."""
        return iter(tuple(self._tasks))

    def begin(self) -> None:
        """Accept clients. A Flusher that another loop left behind would wait for that loop."""
        self.open, self._terms.flusher = True, Flusher(self.turn)

    def task(self, client: Client) -> asyncio.Task[bool] | None:
        """The one that serves *client* at the moment."""
        return self._tasks.get(client)

    def tasks(self) -> set[asyncio.Task[Any]]:
        """All that serve somebody at the moment."""
        return {task for task in self._tasks.values() if task is not None}

    def accept(self, connection: Connection) -> None:
        """A listener has a new one. It is dropped if there are too many."""
        core, capacity = self._core, self._core.config.capacity
        core.stats.connections += 1
        peer, most = connection.peer, capacity.maximum_connections_per_address
        too_many = len(self._tasks) >= capacity.maximum_connections + OVERFLOW
        if too_many or (most and self._fills(_host(peer), most)) or not self.open:
            core.stats.connections_refused += 1
            log.info("refused %s: too many connections", peer.address)
            connection.abort()
            return
        client = Client(connection, self._terms)
        if core.hooks.look:
            client.look(peer)
        self._count(client, 1)
        self._tasks[client] = None
        connection.attach(client)
        if connection.has_unread():
            client.left()

    def _fills(self, host: str, most: int) -> bool:
        """Whether *host* has all the connections that it may have."""
        return bool(host) and self._addresses[host] >= most

    def _count(self, client: Client, step: int) -> None:
        """*client* is one more, or one less: its bytes, and its address if that matters to anybody."""
        self._core.budget.take_anyway(step * client.cost)
        if self._core.config.capacity.maximum_connections_per_address:
            host = _host(client.peer)
            self._addresses[host] += step
            if not self._addresses[host]:
                del self._addresses[host]

    def give_up(self, why: str) -> None:
        """Drop every connection at once; one that is seen off has had its time, too."""
        for client, task in tuple(self._tasks.items()):
            if client.over and task is not None:
                task.cancel()
            client.abort(ServerShuttingDown(why))
            client.cancel()

    def _serve(self, client: Client, data: bytes) -> None:
        """*client* has sent *data*, has more to be read, or is at its end.

        What arrives is served in place, and gets a task only if it waits or hooks are coroutines. CONNECT,
        CONNACK and DISCONNECT cost 137 us with three tasks, and 90 without; a message of one of a hundred
        publishers with a plain hook 16 and 12 (mqttload connect, fanin; CPython 3.11).
        """
        work, hooks = serve_client(self._core, client, data), self._core.hooks
        if not data or hooks.need_task:
            self._spawn(client, work)
            return
        before, hooks.in_place = hooks.in_place, True
        try:
            waits_for = work.send(None)
        except StopIteration as done:
            if not done.value:
                self._forget(client)
        except (Exception, asyncio.CancelledError) as error:
            self._failed(client, error)
        else:
            task = self._spawn(client, Rest(work, waits_for))
            client.task = None if client.over else task
        finally:
            hooks.in_place = before

    def _goodbye(self, client: Client) -> None:
        """*client*, which nobody serves, has sent DISCONNECT and nothing else."""
        client.serving = 1
        try:
            waits = say_goodbye(self._core, client)
        except Exception as error:
            client.fail_inside(error, "end of a connection")
            self._forget(client)
        else:
            if waits is None:
                self._forget(client)
            else:
                self._spawn(client, _gone(waits))

    def _spawn(self, client: Client, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        task = self._tasks[client] = asyncio.create_task(work)
        task.add_done_callback(partial(self._served, client))
        return task

    def _served(self, client: Client, task: asyncio.Task[bool]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(client, error)
        elif task.cancelled() or not task.result():
            self._forget(client)
        elif self._tasks.get(client) is task:  # else it was served in place since, or is gone
            self._tasks[client] = None

    def _failed(self, client: Client, error: BaseException) -> None:
        log.error("client %r: unexpected error", client.client_id, exc_info=error)
        self._forget(client)

    def _forget(self, client: Client) -> None:
        del self._tasks[client]
        self._count(client, -1)
        if self._core.hooks.verdicts is not None:
            self._core.hooks.verdicts.forget(client.info)


class Rest(Coroutine[Any, Any, bool]):
    """What is left of *work*, which waits for the first time: a task goes on with it, or cancels it there."""

    def __init__(self, work: Coroutine[Any, Any, bool], waits_for: Any) -> None:
        self._work = work
        self._first = iter((waits_for,))

    def send(self, value: Any) -> Any:
        for waits_for in self._first:
            return waits_for
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._first = iter(())
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()


async def _gone(waits: Awaitable[None]) -> bool:
    await waits
    return False


def _host(peer: Peer) -> str:
    """Its address without the port; empty for other than TCP, where all have the same one."""
    return "" if peer.transport == "unix" else peer.address.rpartition(":")[0]


def client_terms(
    core: Core,
    names: TopicNames,
    lane: Lane,
    serve: Callable[[Client, bytes], None],
    goodbye: Callable[[Client], None],
) -> ClientTerms:
    express = Express(core, goodbye)
    fast, watched = core.config.capacity.fast_lane, core.hooks.inspects_publish and not lane.judged.open
    return ClientTerms(
        limits=core.config.limits,
        protocol=core.config.protocol,
        clock=core.clock,
        stats=core.stats,
        budget=core.budget,
        journal=core.journal,
        readers=Readers(core.config.limits.maximum_packet_size, names, PUBLISH if watched else -1),
        dropped=core.dropped,
        dispatch=dispatcher(core),
        serve=serve,
        lane=lane.take if lane.open and fast else no_lane,
        offers_again=lane.judged.open and core.hooks.need_task,
        express=express.take if express.open and fast else None,
        delivered=core.hooks.on_delivered if core.hooks.hears_delivered else None,
        not_stored=partial(not_stored, core),
    )
