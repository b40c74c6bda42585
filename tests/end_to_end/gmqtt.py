"""gmqtt for tests: its callbacks fill queues, and its calls wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import gmqtt
from gmqtt.mqtt.constants import MQTTv50


class Client:
    """One gmqtt client; its messages are (topic, payload, qos, properties) in a queue."""

    def __init__(self, client_id: str, version: int = MQTTv50, clean: bool = True, **options: Any) -> None:
        self.version, self.client = version, gmqtt.Client(client_id, clean_session=clean, **options)
        self.client.reconnect_delay = 0.01
        self.messages: asyncio.Queue[tuple[str, bytes, int, dict[str, Any]]] = asyncio.Queue()
        self.connacks: asyncio.Queue[tuple[int, dict[str, Any]]] = asyncio.Queue()
        self.subacks: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self.answer: Callable[[bytes], Awaitable[int]] | None = None  # makes the Reason Code of our ack
        self.client.on_message = self._on_message
        self.client.on_connect = lambda _, flags, code, props: self.connacks.put_nowait((flags, props))
        self.client.on_subscribe = lambda _, mid, codes, props: self.subacks.put_nowait(codes)
        self.client.on_unsubscribe = lambda _, mid, codes: self.subacks.put_nowait(codes)

    async def _on_message(
        self, _: object, topic: str, payload: bytes, qos: int, props: dict[str, Any]
    ) -> int:
        self.messages.put_nowait((topic, payload, qos, props))
        return await self.answer(payload) if self.answer else 0

    async def connect(self, port: int, ssl: Any = False) -> bool:
        """Session Present."""
        await self.client.connect("127.0.0.1", port, ssl=ssl, version=self.version)
        return await self.connected()

    async def connected(self) -> bool:
        """Session Present of the next CONNACK, which may be one that gmqtt came back for by itself."""
        flags, self.announced = await self.connacks.get()
        return bool(flags)

    async def subscribe(self, topic_filter: str, qos: int = 2, **options: Any) -> tuple[int, ...]:
        self.client.subscribe(topic_filter, qos, **options)
        return await self.subacks.get()

    async def take(self, count: int) -> list[tuple[str, bytes, int, dict[str, Any]]]:
        return [await self.messages.get() for _ in range(count)]

    async def payloads(self, count: int) -> list[bytes]:
        return [payload for _, payload, _, _ in await self.take(count)]

    async def nothing_more(self) -> None:
        await self.subscribe("gmqtt/last", 0)
        self.client.publish("gmqtt/last", b"last")
        assert await self.payloads(1) == [b"last"]

    async def close(self) -> None:
        await self.client.disconnect()
