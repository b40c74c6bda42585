"""Subscriptions of the program that embeds the broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from broker.packet.message import Message
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription


class LocalSubscription:
    """Messages of one filter, as an async iterator: a Subscriber without a connection.

    Usable as an async context manager as well; leaving either ends the subscription. At most
    *maximum* messages wait; a program that does not keep up loses the newest, counted as drops.
    """

    def __init__(
        self,
        client_id: str,
        maximum: int,
        dropped: Callable[[str, Message | None, str], None],
        unsubscribe: Callable[[LocalSubscription], None],
    ) -> None:
        self.client_id = client_id
        self._maximum = maximum
        self._dropped = dropped
        self._unsubscribe = unsubscribe
        self._waiting: deque[Message] = deque()
        self._waker: asyncio.Future[None] | None = None
        self._closed = False

    def deliver(self, message: Message, subscription: Subscription) -> None:
        """Take *message* for the program; see topic.Subscriber."""
        if len(self._waiting) >= self._maximum:
            self._dropped(self.client_id, message, "queue_full")
            return
        self._waiting.append(message)
        self._wake()

    def turn(self, message: Message, subscription: Subscription) -> int:
        """See topic.Subscriber."""
        return Turn.READY if len(self._waiting) < self._maximum else Turn.REFUSES

    def close(self) -> None:
        """End the subscription; the iterator gives what waits and then ends."""
        if not self._closed:
            self._closed = True
            self._unsubscribe(self)
            self._wake()

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        try:
            while True:
                while self._waiting:
                    yield self._waiting.popleft()
                if self._closed:
                    return
                self._waker = asyncio.get_running_loop().create_future()
                await self._waker
        finally:
            self.close()

    async def __aenter__(self) -> LocalSubscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
