"""What tests of the whole broker share: settings, hooks that hang, ways to leave, what may be left over."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from broker import (
    Broker,
    Capacity,
    Config,
    HookBase,
    Limits,
    Message,
    Protocol,
    Version,
)
from broker.client import Client
from broker.packet.packets import (
    Disconnect,
)
from tests.peer import Peer

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
KEPT = {"session_expiry_interval": 1000}


def config(**fields: Any) -> Config:
    """Without a clockwork of its own; every field is given by its name alone."""
    given = {"sweep_interval": 0, "sys_interval": 0, "grace_time": 0.2, **fields}
    sections = {}
    for name, section in (("limits", Limits), ("capacity", Capacity), ("protocol", Protocol)):
        mine = {key: given.pop(key) for key in [*given] if key in section.__dataclass_fields__}
        sections[name] = section(**mine)
    assert not given, given
    return Config(**sections)


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


def clients_in_memory() -> list[Client]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Client)]


def port_of(broker: Broker, number: int = 0) -> int:
    return int(broker.addresses[number].rpartition(":")[2])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def hangs(*events: str) -> HookBase:
    """A hook whose *events* never come back; `entered` is set by the first."""
    entered = asyncio.Event()

    async def wait(self: HookBase, *args: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    made = type("Hanging", (HookBase,), dict.fromkeys(events, wait))()
    made.entered = entered
    return made


async def received(broker: Broker, topic_filter: str = "#", **options: Any) -> list[Message]:
    """What a new subscription of the program starts with."""
    local = broker.subscribe(topic_filter, **options)
    local.close()
    return [message async for message in local]


WAYS_TO_LEAVE: dict[str, Callable[[Broker, Peer], Awaitable[object]]] = {}


def way(leaves: Callable[[Broker, Peer], Awaitable[object]]) -> Callable[[Broker, Peer], Awaitable[object]]:
    WAYS_TO_LEAVE[leaves.__name__] = leaves
    return leaves


@way
async def says_disconnect(broker: Broker, peer: Peer) -> None:
    peer.send(Disconnect())


@way
async def cuts(broker: Broker, peer: Peer) -> None:
    peer.drop()


@way
async def breaks_the_protocol(broker: Broker, peer: Peer) -> None:
    peer.send_raw(b"\x00\x00")


@way
async def is_kicked(broker: Broker, peer: Peer) -> None:
    await broker.disconnect("c")


@way
async def is_taken_over(broker: Broker, peer: Peer) -> None:
    other = Peer(broker)
    await other.connect("c", clean_start=False, user_name="ada")
    other.send(Disconnect())
