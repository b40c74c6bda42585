"""paho-mqtt in the storm: clients with a session of their own making, so that not only `Peer` is heard."""

from __future__ import annotations

import asyncio
from typing import Any

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.faults.crowd import Weather
from tests.faults.history import (
    Acknowledged,
    Arrived,
    Connected,
    Connecting,
    Gone,
    History,
    Published,
    Subscribed,
    Subscribing,
    Tag,
)

HOUR = 3600


class PahoSession:
    """One client in a thread of its own, which comes back after every loss."""

    def __init__(self, client_id: str, history: History, port: int, version: int) -> None:
        self.client_id, self.history = client_id, history
        options: dict[str, Any] = {} if version == MQTTv5 else {"clean_session": False}
        self.client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, **options)
        self.client.reconnect_delay_set(0.05, 0.05)
        self.client.max_queued_messages_set(0)
        self.client.on_pre_connect = lambda *_: history.append(Connecting(client_id, False, HOUR))
        self.client.on_connect = self._connected
        self.client.on_disconnect = lambda *_: history.append(Gone(client_id))
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = HOUR
        asked = {"clean_start": False, "properties": session} if version == MQTTv5 else {}
        self.client.connect_async("127.0.0.1", port, keepalive=60, **asked)
        self.client.loop_start()

    def _connected(self, client: Client, _: Any, flags: Any, reason: Any, __: Any) -> None:
        if not reason.is_failure:
            self.history.append(Connected(self.client_id, bool(flags.session_present)))

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class PahoPublisher(PahoSession):
    """5.0; messages of its own at QoS 1. It tells no identifiers, and may send out of order.

    Not at QoS 2: when more than one try is needed to connect again, paho (2.1) forgets that PUBREC came,
    and sends the PUBLISH instead of the PUBREL [MQTT-4.3.3-5].
    """

    def __init__(self, client_id: str, history: History, port: int) -> None:
        self._open: dict[int, Tag] = {}
        self._early: set[int] = set()  # acknowledged before we knew the identifier
        self._number = 0
        super().__init__(client_id, history, port, MQTTv5)
        self.client.on_publish = self._acknowledged

    async def live(self, weather: Weather) -> None:
        dice = weather.random(self.client_id)
        while True:
            if weather.raging and len(self._open) < 20:
                self._publish()
            await asyncio.sleep(dice.uniform(0.0, 0.1))

    def _publish(self) -> None:
        self._number += 1
        tag = Tag(self.client_id, f"storm/{self.client_id}/a", self._number)
        self.history.append(Published(self.client_id, tag, 1))
        mid = self.client.publish(tag.topic_name, tag.payload(), 1).mid
        self._open[mid] = tag
        if mid in self._early:
            self._early.discard(mid)
            self._done(mid)

    def _acknowledged(self, client: Client, _: Any, mid: int, reason: Any, __: Any) -> None:
        self._done(mid) if mid in self._open else self._early.add(mid)

    def _done(self, mid: int) -> None:
        self.history.append(Acknowledged(self.client_id, self._open.pop(mid), "PUBACK"))


class PahoSubscriber(PahoSession):
    """3.1.1, QoS 2; subscribes until it has been acknowledged once."""

    def __init__(self, client_id: str, history: History, port: int, topic_filter: str) -> None:
        self.topic_filter, self._subscribed = topic_filter, False
        super().__init__(client_id, history, port, MQTTv311)
        self.client.on_message = self._message
        self.client.on_subscribe = self._granted

    async def live(self) -> None:
        while True:
            if not self._subscribed and self.client.is_connected():
                self.history.append(Subscribing(self.client_id, self.topic_filter))
                self.client.subscribe(self.topic_filter, 2)
            await asyncio.sleep(0.5)

    def _granted(self, *_: Any) -> None:
        self._subscribed = True
        self.history.append(Subscribed(self.client_id, self.topic_filter))

    def _message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        tag, qos = Tag.of(message.topic, message.payload), message.qos
        packet_id = message.mid if qos == 1 else 0  # at QoS 2 this is called at PUBREL
        dup = qos == 1 and bool(message.dup)
        self.history.append(Arrived(self.client_id, tag, qos, packet_id, dup, bool(message.retain)))
