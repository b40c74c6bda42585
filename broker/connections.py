"""Connections: all of one broker, from the accepted socket to the last trace of its client."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from broker.client import Client, ClientTerms, no_lane
from broker.core import CONNECTION_OVERHEAD, TLS_OVERHEAD, Core
from broker.errors import ServerShuttingDown
from broker.handle.disconnect import serve_client
from broker.handle.dispatch import dispatcher
from broker.handle.publish import check_publish_topic, not_stored
from broker.lane.lane import Lane
from broker.packet.reader import TopicNames
from broker.transport.base import Connection

log = logging.getLogger("broker")

OVERFLOW = 64  # connections above the maximum that are still read, so that CONNACK can say why


class Connections:
    """Every client that has a connection, and the task that serves it while it has something to say."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._terms = client_terms(core, self._serve)
        self._tasks: dict[Client, asyncio.Task[bool] | None] = {}
        self._addresses: Counter[str] = Counter()
        self.open = False  # new ones are accepted

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Client]:
        """As they are now: some may go while the caller looks at others."""
        return iter(tuple(self._tasks))

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
        peer = connection.peer
        host = peer.address.rpartition(":")[0]
        most = capacity.maximum_connections_per_address
        too_many = len(self._tasks) >= capacity.maximum_connections + OVERFLOW
        if too_many or (most and host and self._addresses[host] >= most) or not self.open:
            core.stats.connections_refused += 1
            log.info("refused %s: too many connections", peer.address)
            connection.abort()
            return
        client = Client(connection, self._terms)
        core.budget.take_anyway(_cost(client))
        self._addresses[host] += 1
        self._tasks[client] = None
        connection.attach(client)
        if connection.has_unread():
            client.left()

    def give_up(self, why: str) -> None:
        """Drop every connection at once; one that is seen off has had its time, too."""
        for client, task in tuple(self._tasks.items()):
            if client.over and task is not None:
                task.cancel()
            client.abort(ServerShuttingDown(why))
            client.cancel()

    def _serve(self, client: Client) -> None:
        """*client* has something to read, or is at its end."""
        task = self._tasks[client] = asyncio.create_task(serve_client(self._core, client))
        task.add_done_callback(partial(self._served, client))

    def _served(self, client: Client, task: asyncio.Task[bool]) -> None:
        failed = not task.cancelled() and task.exception() is not None
        if failed:
            log.error("client %r: unexpected error", client.client_id, exc_info=task.exception())
        if failed or task.cancelled() or not task.result():
            self._forget(client)
        elif self._tasks[client] is task:
            self._tasks[client] = None

    def _forget(self, client: Client) -> None:
        del self._tasks[client]
        self._core.budget.give(_cost(client))
        host = client.info.address.rpartition(":")[0]
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]


def _cost(client: Client) -> int:
    """Bytes that the connection of *client* takes, about."""
    return CONNECTION_OVERHEAD + TLS_OVERHEAD * (client.info.transport in ("tls", "wss"))


def client_terms(core: Core, serve: Callable[[Client], None]) -> ClientTerms:
    strict = core.config.protocol.disallowed_code_points == "reject"
    names = TopicNames(strict)
    lane = Lane(core, names, check_publish_topic)
    return ClientTerms(
        limits=core.config.limits,
        protocol=core.config.protocol,
        clock=core.clock,
        stats=core.stats,
        budget=core.budget,
        journal=core.journal,
        names=names,
        dropped=core.dropped,
        dispatch=dispatcher(core),
        serve=serve,
        lane=lane.take if lane.open and core.config.capacity.fast_lane else no_lane,
        not_stored=partial(not_stored, core),
    )
