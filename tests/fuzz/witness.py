"""Two clients who do everything right, and know what they are owed: what was acknowledged arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from broker import Broker
from broker.packet import packets as mqtt
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Packet
from broker.packet.reader import PacketReader

V5 = Version.MQTT_5
TOPIC = "witness/topic"
KEPT = {"session_expiry_interval": 1000}


class Witness:
    """A durable client that never waits: `take` sees to what has come. It outlives every broker."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._connection: Any = None
        self.greeted = False  # this connection has its CONNACK
        self._known = False  # the broker has told of our session, ever

    def connect(self, broker: Broker) -> None:
        listener: Any = broker.listeners[0]
        self._connection = listener.connect()
        self._reader = PacketReader(from_client=False)
        self.greeted = False
        self.send(
            mqtt.Connect(self._client_id, clean_start=False, user_name=self._client_id, properties=KEPT)
        )

    @property
    def lost(self) -> bool:
        """The connection has ended: connect again."""
        flow = None if self._connection is None else self._connection._incoming
        return flow is None or (flow.ended and not flow.chunks)

    def send(self, packet: Packet) -> None:
        self._connection.write(encode(packet, V5))

    def take(self) -> None:
        for packet in self._packets():
            if not isinstance(packet, mqtt.Connack):
                assert self.greeted or isinstance(packet, mqtt.Disconnect)
                self.on(packet)
            elif packet.reason_code == 0:
                assert packet.session_present or not self._known, "the session is lost"
                self.greeted = self._known = True
                self.begin()

    def _packets(self) -> Iterator[Packet]:
        while not self.lost and self._connection._incoming.chunks:
            yield from self._reader.feed(self._connection._incoming._unqueue())
            assert self._reader.error is None

    def drop(self) -> None:
        self._connection.abort()

    def begin(self) -> None:
        """CONNACK has come."""

    def on(self, packet: Packet) -> None:
        """Any other packet has."""


class Publisher(Witness):
    """Publishes numbers at QoS 1 and 2; after each reconnect what is unfinished again."""

    def __init__(self) -> None:
        super().__init__("witness/publisher")
        self._number = 0
        self.unfinished: dict[int, mqtt.Publish | mqtt.Pubrel] = {}
        self._payloads: dict[int, bytes] = {}
        self.acknowledged: list[bytes] = []

    def publish(self, qos: int) -> None:
        if self.greeted and len(self.unfinished) < 10:
            self._number += 1
            packet_id, payload = self._number, b"%d of %d" % (self._number, qos)
            self._payloads[packet_id] = payload
            self.unfinished[packet_id] = mqtt.Publish(TOPIC, payload, qos, packet_id=packet_id)
            self.send(self.unfinished[packet_id])

    def begin(self) -> None:
        for packet in self.unfinished.values():
            if isinstance(packet, mqtt.Publish):
                packet.dup = True
            self.send(packet)

    def on(self, packet: Packet) -> None:
        if isinstance(packet, mqtt.Pubrec) and packet.reason_code < 0x80:
            self.unfinished[packet.packet_id] = release = mqtt.Pubrel(packet.packet_id)
            self.send(release)
        elif isinstance(packet, mqtt.Puback | mqtt.Pubrec | mqtt.Pubcomp):
            before = self.unfinished.pop(packet.packet_id)
            assert isinstance(before, mqtt.Pubrel) == isinstance(packet, mqtt.Pubcomp), packet
            if packet.reason_code < 0x80 or isinstance(packet, mqtt.Pubcomp):
                self.acknowledged.append(self._payloads[packet.packet_id])
        else:
            assert isinstance(packet, mqtt.Disconnect), packet


class Subscriber(Witness):
    """Counts what it gets; a QoS 2 message once, however often it is sent."""

    def __init__(self) -> None:
        super().__init__("witness/subscriber")
        self._receiving: set[int] = set()
        self.subscribed = False
        self.got: Counter[bytes] = Counter()

    def begin(self) -> None:
        self.send(mqtt.Subscribe(1, [mqtt.SubscribeRequest(TOPIC, 2, retain_handling=1)]))

    def on(self, packet: Packet) -> None:
        if isinstance(packet, mqtt.Publish):
            assert packet.topic_name == TOPIC
            if packet.qos == 1 or packet.packet_id not in self._receiving:
                self.got[packet.payload] += 1
            if packet.qos == 2:
                self._receiving.add(packet.packet_id)
            self.send(mqtt.Puback(packet.packet_id) if packet.qos == 1 else mqtt.Pubrec(packet.packet_id))
        elif isinstance(packet, mqtt.Pubrel):
            self._receiving.discard(packet.packet_id)
            self.send(mqtt.Pubcomp(packet.packet_id))
        elif isinstance(packet, mqtt.Suback):
            self.subscribed = self.subscribed or packet.reason_codes == [2]
            if not self.subscribed:  # the disk fails
                self.begin()
        else:
            assert isinstance(packet, mqtt.Disconnect), packet


def check(publisher: Publisher, subscriber: Subscriber) -> None:
    lost = [payload for payload in publisher.acknowledged if not subscriber.got[payload]]
    assert not lost, f"acknowledged and lost: {lost}"
    twice = [payload for payload, count in subscriber.got.items() if count > 1 and payload.endswith(b"2")]
    assert not twice, f"QoS 2 and not once: {twice}"
