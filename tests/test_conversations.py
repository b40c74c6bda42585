"""Random conversations, valid and mutated, of several peers at once: whatever they do, nothing of them stays.

An episode is decided by its seed alone. CONVERSATION_SEEDS=7 or 1000-3000 (without its end) runs others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from itertools import chain
from typing import Any

import pytest

from broker import Broker, Capacity, Config, HookBase, Limits, Message, MqttError, NotAuthorized, Protocol
from broker.packet import packets as mqtt
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.message import as_message
from broker.packet.reader import PacketReader
from tests.peer import Clock, Peer, memory_broker
from tests.wire import turns, until

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
TOPICS = ["a", "b", "a/b", "a/b/c", "/", "ü/ñ"]
FILTERS = [*TOPICS, "#", "+", "a/#", "+/b", "$SYS/#", "$share/g/a", "$share/g/a/#", "$share/h/#"]
FOR_EVER = 1_000_000.0  # seconds, longer than any session is kept


FIRST, _, END = os.environ.get("CONVERSATION_SEEDS", "0-60").partition("-")


class Whims(HookBase):
    """Waits a little, refuses now and then, changes copies; the bystanders it leaves alone."""

    def __init__(self, rnd: random.Random) -> None:
        self._rnd = rnd

    async def _think(self, client: Any, asked: Any) -> Any:
        await turns(self._rnd.choice([0, 0, 1, 5]))
        if not client.client_id.startswith("by-") and self._rnd.random() < 0.1:
            raise self._rnd.choice([NotAuthorized("no"), MqttError("no", 0x80)])
        return asked

    on_connect = on_publish = on_subscribe = _think

    def on_publish_deliver(self, client_id: str, message: Message) -> Message:
        return message if client_id.startswith("by-") else message.with_(payload=message.payload + b"!")


class Rogue:
    """A peer of random mind: one connection after another, each well-behaved but for what `_send` does."""

    def __init__(self, broker: Broker, rnd: random.Random, client_ids: list[str]) -> None:
        self._listener: Any = broker.listeners[0]
        self._rnd, self._client_ids = rnd, client_ids
        self._packet_ids = [1, 2, 65535, rnd.randrange(1, 65536)]
        self.connection: Any = None

    def step(self) -> None:
        if self.connection is not None and self._rnd.random() < 0.9:  # else it does not read
            self._read()
        if self.connection is None or self.connection._incoming.ended or self._rnd.random() < 0.03:
            self.leave()
            self._connect()
            return
        self._rnd.choice([self._publish, self._publish, self._subscribe, self._other])()

    def leave(self) -> None:
        if self.connection is not None:
            self._rnd.choice([self.connection.abort, self.connection.close])()
        self.connection = None

    def _read(self) -> None:
        while self.connection._incoming.chunks:
            data = self.connection._incoming._unqueue()
            for packet in self._reader.feed(data) if self._readable else ():
                self._check(packet)
                self._answer(packet)
            assert self._reader.error is None, f"cannot be read: {self._reader.error!r}"

    def _check(self, packet: mqtt.Packet) -> None:
        assert not self._over, f"{packet} after the end"
        assert isinstance(packet, mqtt.Connack) or self._greeted, f"{packet} before CONNACK"
        assert not (isinstance(packet, mqtt.Connack) and self._greeted), "a second CONNACK"
        self._over = isinstance(packet, mqtt.Disconnect) or (not self._greeted and packet.reason_code != 0)
        self._greeted = True

    def _answer(self, packet: mqtt.Packet) -> None:
        if isinstance(packet, mqtt.Publish) and packet.qos and self._rnd.random() < 0.9:
            self._send(mqtt.Puback(packet.packet_id) if packet.qos == 1 else mqtt.Pubrec(packet.packet_id))
        elif isinstance(packet, mqtt.Pubrel):
            self._send(mqtt.Pubcomp(packet.packet_id))
        elif isinstance(packet, mqtt.Pubrec) and packet.reason_code < 0x80:
            self._send(mqtt.Pubrel(packet.packet_id))

    def _connect(self) -> None:
        rnd = self._rnd
        self.connection = self._listener.connect()
        self._reader = PacketReader(from_client=False, strict=False)
        self._reader.version = self._version = version = rnd.choice([V3, V5])
        self._readable, self._greeted, self._over = True, False, False
        expiry, window = rnd.choice([0, 1, 10, 1000, 0xFFFFFFFF]), rnd.choice([1, 2, 5, 100])
        properties = {"session_expiry_interval": expiry, "receive_maximum": window}
        properties |= rnd.choice([{}, {"maximum_packet_size": 20}, {"topic_alias_maximum": 9}])
        delay = {"will_delay_interval": rnd.choice([0, 5, 500])} if version is V5 else {}
        will = mqtt.Will(rnd.choice(TOPICS), b"will", rnd.randrange(3), rnd.random() < 0.3, delay)
        client_id, keep_alive = rnd.choice([*self._client_ids, ""]), rnd.choice([0, 1, 60])
        packet = mqtt.Connect(client_id, version, rnd.random() < 0.4, keep_alive)
        packet.properties = properties if version is V5 else {}
        packet.will, packet.user_name = rnd.choice([None, will]), rnd.choice([None, None, None, "user"])
        self._readable = self._send(packet)  # else we do not know which version it speaks

    def _publish(self) -> None:
        rnd = self._rnd
        qos, life = rnd.randrange(3), rnd.choice([0, 10, 0xFFFFFFFF])
        offered = rnd.choice([{}, {"message_expiry_interval": life}, {"topic_alias": rnd.choice([1, 2])}])
        properties = offered if self._version is V5 else {}
        payload = rnd.randbytes(rnd.choice([0, 1, 10, 100, 2000]))
        dup, packet_id = qos > 0 and rnd.random() < 0.2, rnd.choice(self._packet_ids) if qos else 0
        for _ in range(rnd.choice([1, 1, 1, 20])):
            retain = rnd.random() < 0.2
            self._send(mqtt.Publish(rnd.choice(TOPICS), payload, qos, retain, dup, packet_id, properties))

    def _subscribe(self) -> None:
        rnd = self._rnd
        packet_id, filters = rnd.choice(self._packet_ids), rnd.sample(FILTERS, rnd.choice([1, 2, 5]))
        requests = [mqtt.SubscribeRequest(each, rnd.randrange(3)) for each in filters]
        properties = {"subscription_identifier": 7} if self._version is V5 else {}
        asks = mqtt.Subscribe(packet_id, requests, properties)
        self._send(asks if rnd.random() < 0.7 else mqtt.Unsubscribe(packet_id, filters))

    def _other(self) -> None:
        """Acknowledgements of what was never sent, a second CONNECT, noise, and more of that kind."""
        packet_id = self._rnd.choice(self._packet_ids)
        kinds = [kind(packet_id) for kind in (mqtt.Pubrel, mqtt.Puback, mqtt.Pubrec, mqtt.Pubcomp)]
        rare = [mqtt.Pingreq(), mqtt.Disconnect(), mqtt.Connect("again", self._version)]
        if self._version is V5:
            rare += [mqtt.Disconnect(4), mqtt.Disconnect(0, {"session_expiry_interval": 5})]
            rare += [mqtt.Auth(0x19, {"authentication_method": "m"})]
        if self._rnd.random() < 0.05:
            self.connection.write(self._rnd.randbytes(self._rnd.choice([1, 3, 100])))
        self._send(self._rnd.choice(kinds if self._rnd.random() < 0.8 else rare))

    def _send(self, packet: mqtt.Packet) -> bool:
        """Mostly as it is, sometimes in two parts, mutated, or without its end; False: not as it is."""
        rnd, data = self._rnd, bytearray(encode(packet, self._version))
        chance, at = rnd.random(), rnd.randrange(len(data))
        if chance < 0.03:
            data[at : at + rnd.randrange(2)] = rnd.randbytes(1)
        elif chance < 0.04:
            del data[at:]
        elif chance < 0.14:
            self.connection.write(bytes(data[:at]))
            del data[:at]
        self.connection.write(bytes(data))
        return chance >= 0.04


class Pair:
    """Two clients that do nothing wrong: what one publishes the other gets, once and at once."""

    def __init__(self, broker: Broker, version: Version) -> None:
        self.publisher, self.subscriber = Peer(broker, version), Peer(broker, version)
        self._number = 0

    async def begin(self) -> None:
        await self.publisher.connect("by-p")
        await self.subscriber.connect("by-s")
        await self.subscriber.subscribe("by/#", qos=1)

    async def exchange(self) -> None:
        self._number += 1
        payload = b"%d" % self._number
        assert await self.publisher.publish("by/t", payload, qos=self._number % 3) == 0, "it is refused"
        got = await self.subscriber.expect(mqtt.Publish)
        assert got.payload == payload, "the bystander's message"
        if got.qos:
            self.subscriber.send(mqtt.Puback(got.packet_id))


def config(rnd: random.Random) -> Config:
    limits = Limits(
        maximum_queued_messages=rnd.choice([5, 1000]),
        queue_full=rnd.choice(["drop_newest", "drop_oldest", "disconnect"]),
        queue_qos_0=rnd.random() < 0.3,
    )
    protocol = Protocol(shared_unacknowledged=rnd.choice(["wait", "move"]))
    return Config(limits=limits, protocol=protocol, capacity=Capacity(sweep_interval=0, grace_time=0.05))


async def chaos(broker: Broker, rnd: random.Random, rogues: list[Rogue], clock: Clock, pair: Pair) -> None:
    for _ in range(150):
        rnd.choice(rogues).step()
        chance = rnd.random()
        if chance < 0.05:
            clock.now += rnd.choice([0.1, 1, 6, 30, 1000])
        if chance < 0.1:
            await broker.sweep()
        elif chance < 0.2:
            await pair.exchange()
        elif chance < 0.22:
            await broker.disconnect("c0")
        await turns(rnd.choice([0, 1, 2, 5]))
    await pair.exchange()


async def nothing_stays(broker: Broker, clock: Clock) -> None:
    await until(lambda: not broker._connections, "connections stay")
    clock.now += FOR_EVER
    for _ in range(3):
        await broker.sweep()
    core = broker._core
    addresses = dict(broker._connections._addresses)
    left = (core.tree.count, [*core.sessions], core.clients, dict(core.users), addresses)
    assert left == (0, [], {}, {}, {})
    for message in [*chain.from_iterable(core.retained.stretches("#", clock.now))]:
        core.retained.delete(as_message(message).topic_name)
    assert core.budget.used == 0, "bytes of the budget are lost"


async def episode(seed: int) -> None:
    rnd, clock = random.Random(seed), Clock()
    hooks = [Whims(rnd)] if rnd.random() < 0.5 else []
    broker = memory_broker(config(rnd), hooks=hooks, clock=clock)
    async with broker:
        pair = Pair(broker, rnd.choice([V3, V5]))
        await pair.begin()
        client_ids = ["c0", "c1", "c2", "c3"][: rnd.choice([1, 4])]
        rogues = [Rogue(broker, rnd, client_ids) for _ in range(rnd.choice([2, 4, 8]))]
        await chaos(broker, rnd, rogues, clock, pair)
        if rnd.random() < 0.85:  # else the broker stops in the middle of it all
            for rogue in rogues:
                rogue.leave()
            pair.publisher.drop()
            pair.subscriber.send(mqtt.Disconnect())
            await nothing_stays(broker, clock)
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks stay"


@pytest.mark.parametrize("seed", range(int(FIRST), int(END or int(FIRST) + 1)))
def test_nothing_of_a_conversation_stays(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "broker")
    try:
        asyncio.run(episode(seed))
    except Exception as error:
        raise AssertionError(f"CONVERSATION_SEEDS={seed}: {error!r}") from error
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [], f"CONVERSATION_SEEDS={seed}"
