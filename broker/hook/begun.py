"""Coroutines of hooks that have begun: what does not wait needs no task."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from functools import partial
from typing import Any


class Begun:
    """A coroutine that waits for the first time, or, in place, has yet to begin: `await` goes on with it."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, waits_for = self._coroutine, self._waits_for
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                step = partial(coroutine.throw, error)
            else:
                step = partial(coroutine.send, sent)
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value


class Later:
    """An answer that somebody waits for by `await`; or nobody any more, who calls `close`."""

    __slots__ = ("_begun", "_rest")

    def __init__(self, begun: Begun, rest: Coroutine[Any, Any, Any]) -> None:
        """*rest* waits for *begun*, and goes on with what comes of it."""
        self._begun = begun
        self._rest = rest

    def close(self) -> None:
        self._rest.close()
        self._begun.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._rest.__await__()


def first_step(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What *coroutine* gives, or a Begun if it waits."""
    try:
        return Begun(coroutine, coroutine.send(None))
    except StopIteration as done:
        return done.value


async def awaiting(result: Awaitable[Any]) -> Any:
    return await result
