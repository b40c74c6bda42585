"""Subscriptions of the program that embeds the broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from broker.packet.message import Message
from broker.store.budget import ByteBudget
from broker.topic.shared import Turn
from broker.topic.subscription import Subscription


class LocalSubscription:
    """Messages of one filter, as an async iterator: a Subscriber without a connection.

    Usable as an async context manager as well; leaving either ends the subscription. At most
    *maximum* messages wait, and their bytes count in *budget*; a program that does not keep up loses
    the newest, counted as drops.
    """

    def __init__(
        self,
        client_id: str,
        maximum: int,
        budget: ByteBudget,
        dropped: Callable[[str, Message | None, str], None],
        unsubscribe: Callable[[LocalSubscription], None],
    ) -> None:
        self.client_id = client_id
        self._maximum = maximum
        self._budget = budget
        self._dropped = dropped
        self._unsubscribe = unsubscribe
        self._waiting: deque[Message] = deque()
        self._waker: asyncio.Future[None] | None = None
        self._closed = False

    def deliver(self, message: Message, subscription: Subscription) -> None:
        """Take *message* for the program; see topic.Subscriber."""
        if len(self._waiting) >= self._maximum:
            self._dropped(self.client_id, message, "queue_full")
        elif not self._budget.take(message.size):
            self._dropped(self.client_id, message, "memory")
        else:
            self._waiting.append(message)
            self._wake()

    def _take(self) -> Message:
        message = self._waiting.popleft()
        if not self._closed:
            self._budget.give(message.size)
        return message

    def turn(self, message: Message, subscription: Subscription) -> int:
        """See topic.Subscriber."""
        return Turn.READY if len(self._waiting) < self._maximum else Turn.REFUSES

    def close(self) -> None:
        """End the subscription; the iterator gives what waits and then ends."""
        if not self._closed:
            self._closed = True
            self._unsubscribe(self)
            self._budget.give(sum(message.size for message in self._waiting))  # the program's, from now on
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
                    yield self._take()
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
