"""A broker for tests of the sink, as a process; and what somebody who was away finds when he comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from broker.packet.packets import Puback, Publish, Suback, Subscribe, SubscribeRequest
from spark.mqtt.line import Line
from spark.mqtt.options import Address
from tests.faults.daemon import Restartable, restartable

SETTINGS = ("store.fsync=normal", "limits.maximum_queued_messages=1000000")
READER = "reader"


@contextlib.contextmanager
def broker_with_dedup(folder: Path, *settings: str) -> Iterator[Restartable]:
    with restartable(folder / "broker.db", *SETTINGS, "dedup.enabled=true", *settings) as broker:
        broker.start()
        yield broker


def reader(port: int) -> Line:
    """The connection of a session that stays."""
    line = Line(Address(port=port))
    line.connect(READER, clean_start=False, session_expiry_interval=1000, receive_maximum=65_535)
    return line


def subscribe(port: int, topic_filter: str = "#") -> None:
    """From now on everything waits for `read_all`."""
    with reader(port) as line:
        line.send(Subscribe(1, [SubscribeRequest(topic_filter, 1, retain_as_published=True)]))
        line.expect(Suback)


def copies(port: int) -> int:
    """How many messages were acknowledged and not routed."""
    return sys_value(port, "dropped/not_routed")


def received(port: int) -> int:
    """How many messages came."""
    return sys_value(port, "publish/messages/received")


def sys_value(port: int, name: str) -> int:
    with Line(Address(port=port)) as line:
        line.connect(f"observer-{name}")
        line.send(Subscribe(1, [SubscribeRequest(f"$SYS/broker/{name}")]))
        line.expect(Suback)
        packet = line.recv(0.5)
    return int(packet.payload) if isinstance(packet, Publish) else 0


def read_all(port: int, silence: float = 0.5) -> list[Publish]:
    """All that has come, acknowledged; the end is *silence*, in seconds."""
    found: list[Publish] = []
    with reader(port) as line:
        while (packet := line.recv(silence)) is not None:
            if isinstance(packet, Publish):
                found.append(packet)
                line.send(Puback(packet.packet_id))
    return found
