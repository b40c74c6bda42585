"""Core: the things that handlers share, in one frozen dataclass without methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from broker.client import Client
from broker.config import Config
from broker.hook.hooks import Hooks
from broker.hook.limits import Rate
from broker.hook.stats import Stats
from broker.packet.message import Message
from broker.router import Router
from broker.session.manager import SessionManager
from broker.session.turns import ClientTurns
from broker.store.base import RetainedStore
from broker.store.budget import ByteBudget
from broker.topic.tree import SubscriptionTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One broker's shared things. *clients* has every connected client by ClientID."""

    config: Config
    clock: Callable[[], float]  # seconds, monotonic
    hooks: Hooks
    stats: Stats
    budget: ByteBudget
    tree: SubscriptionTree[Any]
    retained: RetainedStore
    router: Router
    sessions: SessionManager
    turns: ClientTurns
    clients: dict[str, Client]
    users: Counter[str]  # connected clients by User Name
    connect_rate: Rate
    dropped: Callable[[str, Message | None, str], None]
    sys_messages: Callable[[str], Iterator[Message]]  # filter -> what `$SYS` says now
