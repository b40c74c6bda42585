"""MQTT 3.1.1, section 4.8: handling errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.sessions import subscribed

BREACHES: dict[str, bytes] = {
    "type 0": bytes.fromhex("00 00"),
    "type 15": bytes.fromhex("F0 00"),
    "second connect": wire.connect("c", version=4),
    "connack": bytes.fromhex("20 02 00 00"),
    "suback": bytes.fromhex("90 03 00 01 00"),
    "unsuback": bytes.fromhex("B0 02 00 01"),
    "pingresp": bytes.fromhex("D0 00"),
    "publish qos 3": wire.publish("t", packet_id=1, version=4, first=0x36),
    "publish dup qos 0": wire.publish("t", version=4, first=0x38),
    "publish identifier 0": wire.publish("t", qos=1, packet_id=0, version=4),
    "publish wildcard": wire.publish("t/#", b"x", version=4),
    "publish empty topic": wire.publish("", b"x", version=4),
    "publish not utf-8": wire.publish(b"\xff", b"x", version=4),
    "publish null character": wire.publish("a\0b", b"x", version=4),
    "publish cut off": wire.packet(0x32, b"\0\1t\0"),
    "puback flags": wire.puback(1, version=4, first=0x41),
    "puback length": wire.packet(0x40, b"\0\1\0"),
    "pubrec flags": wire.pubrec(1, version=4, first=0x51),
    "pubrel flags": wire.pubrel(1, version=4, first=0x60),
    "pubrel length": wire.packet(0x62, b"\0"),
    "pubcomp flags": wire.pubcomp(1, version=4, first=0x71),
    "pubcomp length": wire.packet(0x70, b"\0\1\0\0"),
    "subscribe flags": wire.subscribe(1, "t", version=4, first=0x80),
    "subscribe empty": wire.subscribe(1, version=4),
    "subscribe qos 3": wire.subscribe(1, ("t", 3), version=4),
    "subscribe reserved bits": wire.subscribe(1, ("t", 4), version=4),
    "subscribe identifier 0": wire.subscribe(0, "t", version=4),
    "subscribe bad filter": wire.subscribe(1, "a#", version=4),
    "subscribe not utf-8": wire.subscribe(1, b"\xff", version=4),
    "subscribe trailing byte": wire.subscribe(1, "t", version=4, tail=b"\0"),
    "unsubscribe flags": wire.unsubscribe(1, "t", version=4, first=0xA0),
    "unsubscribe empty": wire.unsubscribe(1, version=4),
    "unsubscribe not utf-8": wire.unsubscribe(1, b"\xff", version=4),
    "unsubscribe trailing byte": wire.unsubscribe(1, "t", version=4, tail=b"\0"),
    "unsubscribe identifier 0": wire.unsubscribe(0, "t", version=4),
    "pingreq flags": bytes.fromhex("C1 00"),
    "pingreq body": bytes.fromhex("C0 01 00"),
    "disconnect flags": bytes.fromhex("E1 00"),
    "disconnect body": bytes.fromhex("E0 01 00"),
    "length of five bytes": bytes.fromhex("30 80 80 80 80 01"),
    "length longer than needed": bytes.fromhex("C0 80 00"),
    "packet too large": wire.packet(0x30, b"", length=268_435_455),
}


@pytest.mark.parametrize("what", BREACHES)
def test_mqtt311_4_8_0_1__closes_its_own_connection(server: Server, what: str) -> None:
    """Silently, with the will; what follows in the segment is not processed; others notice nothing."""
    other, publisher = subscribed(server, "t", qos=1, version=4), server.connect("p", 4)
    server.expect_breach(BREACHES[what], wire.publish("t", b"after", version=4), codes=(), version=4)
    publisher.publish("t", b"x", qos=1)
    other.expect_messages(b"x")


class FailsOnce(HookBase):
    """The retained store and the authorization each fail once, for topic "t"."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.left = {"store": 1, "publish": 1}

    def _fail(self, what: str) -> None:
        if self.left[what]:
            self.left[what] = 0
            raise OSError("no space left, on purpose")

    async def store_retained(self, message: Any) -> None:
        self._fail("store")
        self.stored[message.topic_name] = message

    async def get_retained(self, topic_filter: str) -> Iterable[Any]:
        return self.stored.values()

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        if message.topic_name == "hook":
            self._fail("publish")


@pytest.mark.parametrize(("topic", "retain"), [("store", True), ("hook", False)])
def test_mqtt311_4_8_0_2__something_fails_once(serve: Serve, topic: str, retain: bool) -> None:
    server = serve(hooks=[FailsOnce()])
    server.expect_errors()
    raw = wire.publish(topic, b"x", qos=1, packet_id=5, retain=retain, version=4)
    server.expect_breach(raw, codes=(), version=4)
    watcher, client = server.watch(), server.connect("c", 4)
    client.send(raw)
    client.expect("PUBACK", packet_id=5)
    watcher.expect("PUBLISH", topic_name=topic, payload="x")
    watcher.expect_nothing()


def test_mqtt311_4_8_0_2__store_is_full(serve: Serve) -> None:
    server = serve(maximum_retained_messages=1)
    watcher, publisher = server.watch("t"), server.connect("p", 4)
    publisher.publish("first", b"x", retain=True)
    raw = wire.publish("t", b"x", qos=1, packet_id=5, retain=True, version=4)
    client = server.connect("c", 4, will=wire.will("t", b"gone"))
    client.send(raw)
    client.expect_close()
    watcher.expect_messages(b"gone")
    publisher.publish("first", b"", retain=True)
    again = server.connect("again", 4)
    again.send(raw)
    again.expect("PUBACK", packet_id=5)
    watcher.expect_messages(b"x")
    assert server.retained() == [("t", b"x")]
