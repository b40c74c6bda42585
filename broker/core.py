"""Core: the things that handlers share, in one frozen dataclass without methods; how they are made."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from broker.client import Client
from broker.config import VERSION, Config
from broker.errors import BrokerError
from broker.hook.base import HookBase
from broker.hook.dedup import Dedup
from broker.hook.export import MessageLog
from broker.hook.hooks import Hooks
from broker.hook.limits import Rate, Takeovers
from broker.hook.stats import Stats
from broker.packet.message import Message
from broker.packet.wire import Seen
from broker.router import Router
from broker.session.manager import ClientTurns, SessionManager
from broker.session.restore import Restore
from broker.session.session import Session
from broker.session.terms import Terms
from broker.store.base import DurableStore, levels_of
from broker.store.budget import ByteBudget
from broker.store.journal import Journal
from broker.store.memory import MemoryRetainedStore, NoteStore
from broker.store.sqlite import SqliteStore
from broker.topic.tree import SubscriptionTree
from broker.transport.base import TransportOptions
from broker.transport.tls import server_context

OVERHEAD = 300  # bytes that the objects around a message or a subscription take, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One broker's shared things. *clients* has every connected client by ClientID."""

    config: Config
    clock: Callable[[], float]  # seconds, monotonic
    hooks: Hooks
    stats: Stats
    budget: ByteBudget
    journal: Journal
    tree: SubscriptionTree[Any]
    retained: MemoryRetainedStore
    notes: NoteStore
    router: Router
    sessions: SessionManager
    turns: ClientTurns
    clients: dict[str, Client]
    users: Counter[str]  # connected clients by User Name
    connect_rate: Rate
    takeovers: Takeovers
    leaving: set[asyncio.Task[None]]  # what sees to the sessions of connections that are gone
    dropped: Callable[[str, Message | None, str], None]
    sys_messages: Callable[[str], Iterator[Message]]  # filter -> what `$SYS` says now


def assemble(
    config: Config,
    hooks: Sequence[HookBase],
    clock: Callable[[], float],
    dropped: Callable[[str, Message | None, str], None],
    sys_messages: Callable[[str], Iterator[Message]],
) -> Core:
    """The shared things of one broker, empty."""
    capacity, limits = config.capacity, config.limits
    budget = ByteBudget(capacity.maximum_bytes)
    dispatch_hooks = Hooks((*hooks, *configured_hooks(config)), capacity.hook_timeout)
    tree: SubscriptionTree[Any] = SubscriptionTree(config.protocol.overlap, came_before=Seen().add)
    journal = make_journal(config, clock)
    retained = MemoryRetainedStore(
        capacity.maximum_retained_messages, capacity.maximum_retained_bytes, budget, journal, 2 * OVERHEAD
    )
    terms = Terms(
        clock=clock,
        budget=budget,
        dropped=dropped,
        overhead=OVERHEAD,
        maximum_queued_messages=limits.maximum_queued_messages,
        maximum_queued_bytes=limits.maximum_queued_bytes,
        queue_full=limits.queue_full,
        queue_qos_0=limits.queue_qos_0,
    )
    return Core(
        config=config,
        clock=clock,
        hooks=dispatch_hooks,
        stats=Stats(clock()),
        budget=budget,
        journal=journal,
        tree=tree,
        retained=retained,
        notes=NoteStore(budget, journal, OVERHEAD),
        router=Router(tree, retained, dispatch_hooks, clock, dropped, config.protocol.shared_choice),
        sessions=SessionManager(terms),
        turns=ClientTurns(),
        clients={},
        users=Counter(),
        connect_rate=Rate(capacity.maximum_connect_rate),
        takeovers=Takeovers(limits.maximum_takeovers, limits.takeover_period),
        leaving=set(),
        dropped=dropped,
        sys_messages=sys_messages,
    )


def configured_hooks(config: Config) -> list[HookBase]:
    """Those that settings ask for, after the program's own: what those refuse leaves no trace."""
    hooks: list[HookBase] = []
    if config.dedup.enabled:
        hooks.append(Dedup(config.dedup.maximum_producers))
    if config.message_log.path:
        hooks.append(MessageLog(config.message_log))
    return hooks


def make_journal(config: Config, clock: Callable[[], float]) -> Journal:
    """The journal of the store that *config* names, which is not opened yet. Raises ConfigError."""
    store: DurableStore | None = None
    levels = levels_of(config.store.fsync, config.store.fsync_for)
    if config.store.path not in ("", ":memory:"):
        store = SqliteStore(config.store.path, levels.lowest, f"pybroker {VERSION}")
    return Journal(store, levels, clock)


async def open_store(core: Core, wall: Callable[[], float]) -> list[Session]:
    """Read what the store has; gives the sessions whose clients were connected when it ended.

    Raises StoreError, or BrokerError the second time: what is in memory is older than the file then.
    """
    journal, hooks = core.journal, core.hooks
    if journal.store is None:
        return []
    if journal.started:
        raise BrokerError("a broker with a store starts once; make another one for the same file")
    noted = await asyncio.to_thread(journal.store.open)
    journal.told = lambda failure: hooks.on_store_failed(failure) if failure else hooks.on_store_recovered()
    journal.still_held = hooks.still_held
    journal.start(noted, wall)
    restore = Restore(journal.store, journal, core.sessions, core.tree, core.retained, core.notes)
    for _ in restore.steps():
        await asyncio.sleep(0)
    restore.finish()
    return restore.connected


def transport_options(config: Config) -> TransportOptions:
    """What the listeners need of *config*; loads the TLS files. Raises ConfigError."""
    return TransportOptions(
        engine=config.transport.engine,
        ssl_context=_ssl_context(config),
        handshake_timeout=config.tls.handshake_timeout,
        websocket_origins=config.websocket.origins,
        websocket_require_subprotocol=config.websocket.require_subprotocol,
        websocket_maximum_message_size=config.limits.maximum_packet_size + 1024,
        maximum_header_size=config.websocket.maximum_header_size,
    )


def _ssl_context(config: Config) -> ssl.SSLContext | None:
    tls = config.tls
    if not tls.certificate:
        return None
    return server_context(
        tls.certificate,
        tls.key or tls.certificate,
        client_ca=tls.client_ca or None,
        client_certificates=tls.client_certificates,
        minimum=tls.minimum_version,
        ciphers=tls.ciphers or None,
    )
