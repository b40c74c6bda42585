"""Connections that were reset are gone without the garbage collector: a flood of them would wait for it."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct

import pytest

from broker import Broker, Config
from broker.config import Transport
from tests.peer import run_async
from tests.wire import until

KINDS = ("EpollConnection", "TcpConnection", "WebSocketConnection", "Client", "FrameReader")
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
BEGINNINGS = {"tcp": b"\x10", "ws": UPGRADE}


def count() -> dict[str, int]:
    names = [type(each).__name__ for each in gc.get_objects()]
    return {kind: names.count(kind) for kind in KINDS}


@pytest.mark.parametrize("engine", ["epoll", "asyncio"])
@pytest.mark.parametrize("scheme", BEGINNINGS)
@run_async
async def test_a_reset_leaves_no_circles(scheme: str, engine: str) -> None:
    config = Config(transport=Transport(engine=engine))  # type: ignore[arg-type]
    async with Broker(config, listen=f"{scheme}://127.0.0.1:0") as broker:
        host, port = broker.addresses[0].split("/")[2].rsplit(":", 1)
        loop = asyncio.get_running_loop()
        gc.collect()
        gc.disable()
        try:
            before = count()
            for _ in range(20):
                sock = socket.socket()
                sock.setblocking(False)
                await loop.sock_connect(sock, (host, int(port)))
                await loop.sock_sendall(sock, BEGINNINGS[scheme])
                if scheme == "ws":
                    await loop.sock_recv(sock, 1000)
                await until(lambda: len(broker._connections) == 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
                await until(lambda: not broker._connections)
            left: dict[str, int] = {}
            for _ in range(40):  # some linger for a second
                left = {kind: number - before[kind] for kind, number in count().items()}
                if sum(left.values()) <= 3:  # of the last one
                    break
                await asyncio.sleep(0.1)
            assert sum(left.values()) <= 3, left
        finally:
            gc.enable()
