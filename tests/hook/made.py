"""Hooks made of functions, functions that fail, and which events there are of a kind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from broker import Capacity, Config, HookBase, MqttError

CONTRACT = Path(__file__).parents[2] / "docs" / "hooks.md"


def hook(**methods: Any) -> HookBase:
    """A hook that overrides *methods*, given without `self`."""
    wrapped = {name: _without_self(method) for name, method in methods.items()}
    return type("Made", (HookBase,), wrapped)()


def _without_self(method: Any) -> Any:
    if asyncio.iscoroutinefunction(method):

        async def waits(self: HookBase, *args: Any) -> Any:
            return await method(*args)

        return waits
    return lambda self, *args: method(*args)


def recorder(calls: list[str], name: str, *events: str) -> HookBase:
    """A hook that writes down which of *events* it got, and passes on what it was given."""

    def note(event: str) -> Any:
        def call(*args: Any) -> Any:
            calls.append(f"{name}.{event}")
            return True if event in ASKED_AT_ONCE else args[-1]

        return call

    return hook(**{event: note(event) for event in events})


def boom(*args: Any) -> Any:
    raise RuntimeError("boom")


ASKED_AT_ONCE = ("can_read", "may_publish")
OF_THE_STORE = ("on_store_failed", "on_store_recovered")
OF_A_MESSAGE = ("on_accepted", "on_taken_back")
TOLD_AT_ONCE = (
    *("on_taken", "on_delivered", "on_acknowledged", "on_connack", "on_session"),
    *("on_subscribed", "on_unsubscribed", "sys_values", "still_held", "on_taken_run"),
)
ONCE_PER_DELIVERY = ("on_publish_deliver", "on_dropped")
NEVER_WAITS = (*ONCE_PER_DELIVERY, *ASKED_AT_ONCE, *OF_A_MESSAGE, *OF_THE_STORE, *TOLD_AT_ONCE)


async def hangs(*args: Any) -> Any:
    await asyncio.Event().wait()


def refusing(error: MqttError) -> Any:
    def refuse(*args: Any) -> Any:
        raise error

    return refuse


QUICK = Config(capacity=Capacity(hook_timeout=0.02))
