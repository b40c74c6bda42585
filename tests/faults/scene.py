"""A daemon with a store, clients that speak to it, and what they have got."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.conformance.client import Raw
from tests.conformance.transports import Tcp
from tests.conformance.wire import Packet
from tests.faults.daemon import Restartable

WAIT = 15.0  # seconds for what takes a moment
EVERY_CODE = range(256)


class Patient(Raw):
    """A client that waits longer for what comes: a daemon on a busy machine may take its time."""

    def _pump(self, deadline: float) -> Packet | None:
        return super()._pump(deadline + WAIT)


class Scene:
    """A daemon whose store is `broker.db` in *folder*; *environ* is for each of its processes."""

    def __init__(self, folder: Path, *settings: str, environ: Mapping[str, str] | None = None) -> None:
        self.store = folder / "broker.db"
        self.environ = dict(environ or {})
        self.broker = Restartable(self.store, ("log.level=info", *settings))
        self.clients = ExitStack()

    def start(self, **environ: str) -> None:
        self.broker.start(**self.environ | environ)

    def client(self, name: str, version: int = 5, *, keep: int = 0, **connect: Any) -> Raw:
        """Connected; with *keep* its session outlives connections for so many seconds."""
        client = Patient(Tcp(f"tcp://127.0.0.1:{self.broker.port}", timeout=WAIT), version)
        self.clients.callback(client.transport.close)
        if version == 5 and keep:
            connect["session_expiry_interval"] = keep
        client.connect(name, clean_start=not keep, **connect)
        return client

    def session(self, name: str, *filters: str, qos: int = 2, keep: int = 3600) -> None:
        """Somebody who is away, and wants it all."""
        client = self.client(name, keep=keep)
        client.subscribe(*filters, qos=qos)
        client.disconnect()

    def holder(self) -> list[str]:
        """All that the session of "holder", which must be there, has."""
        client = self.client("holder", keep=3600, session_present=True)
        found = rest(client)
        client.disconnect()
        return found

    def crash(self) -> None:
        """kill -9, and the next one."""
        self.broker.kill()
        self.start()

    def close(self) -> None:
        self.clients.close()
        self.broker.close()


class Sender:
    """Publishes numbered messages to one topic, and remembers which were taken."""

    def __init__(self, client: Raw, topic_name: str, size: int = 0) -> None:
        self.client, self.topic_name, self.ballast = client, topic_name, bytes(size)
        self.number = 0
        self.taken: list[str] = []

    def send(self, qos: int = 1, **options: Any) -> int:
        """Publish to the end; the Reason Code of the first acknowledgement, 0 for any that takes it."""
        self.number += 1
        name = f"{self.topic_name} {self.number}"
        payload = name.encode() + self.ballast
        answer = self.client.publish(self.topic_name, payload, qos, reason=EVERY_CODE, **options)
        assert answer is not None and answer.reason_code is not None
        if answer.reason_code >= 0x80:
            return answer.reason_code
        self.taken.append(name)
        return 0

    def until(self, code: int, qos: int = 1, within: float = WAIT, **options: Any) -> None:
        """Until that is the answer: what a file has already may be used up first, a try may be due."""
        limit = time.monotonic() + within
        while self.send(qos, **options) != code:
            assert time.monotonic() < limit, f"after {self.number} messages still not {code:#04x}"
            time.sleep(0.02)


def text(payload: bytes | None) -> str:
    return (payload or b"").rstrip(b"\0").decode()


def rest(client: Raw) -> list[str]:
    """What has come when nothing comes any more; all of it is acknowledged."""
    client.auto_ack = True
    found: list[str] = []
    quiet = 0
    while quiet < 4:
        news = [text(packet.payload) for packet in client.drain()]
        found += news
        quiet = 0 if news else quiet + 1
        time.sleep(0.03)
    return found


def until(condition: Callable[[], object], what: str, within: float = WAIT) -> None:
    limit = time.monotonic() + within
    while not condition():
        assert time.monotonic() < limit, f"not within {within} s: {what}"
        time.sleep(0.02)
