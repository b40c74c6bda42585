"""paho-mqtt for tests: its callbacks fill queues, and its calls wait for the answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from queue import Queue
from typing import Any, NamedTuple

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.end_to_end.certificates import Certificates
from tests.end_to_end.running import Running, take

TRANSPORTS = {"tcp": "tcp", "tls": "tcp", "ws": "websockets", "wss": "websockets", "unix": "unix"}


class Answer(NamedTuple):
    """What came with a CONNACK or DISCONNECT."""

    session_present: bool
    reason: ReasonCode
    properties: Properties | None


def properties(packet: str, **values: Any) -> Properties:
    """`properties("CONNECT", SessionExpiryInterval=60)`; names as paho's. A list gives several."""
    made = Properties(getattr(PacketTypes, packet))
    for name, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            setattr(made, name, each)
    return made


def session(seconds: int, **values: Any) -> Properties:
    return properties("CONNECT", SessionExpiryInterval=seconds, **values)


class Paho:
    """One paho-mqtt client in a thread of its own. Does not come back by itself after a loss."""

    def __init__(
        self,
        client_id: str = "",
        version: int = MQTTv5,
        transport: str = "tcp",
        clean_session: bool | None = None,
        manual_ack: bool = False,
    ) -> None:
        self.client = Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=clean_session,
            protocol=version,
            transport=transport,
            reconnect_on_failure=False,
            manual_ack=manual_ack,
        )
        self.messages: Queue[MQTTMessage] = Queue()
        self.connacks: Queue[Answer] = Queue()
        self.ends: Queue[ReasonCode] = Queue()
        self._subacks: Queue[tuple[int, list[ReasonCode]]] = Queue()
        self._acks: Queue[tuple[int, ReasonCode]] = Queue()
        client = self.client
        client.on_connect = lambda _, __, flags, reason, props: self.connacks.put(
            Answer(flags.session_present, reason, props)
        )
        client.on_disconnect = lambda _, __, flags, reason, props: self.ends.put(reason)
        client.on_message = lambda _, __, message: self.messages.put(message)
        client.on_subscribe = lambda _, __, mid, reasons, props: self._subacks.put((mid, reasons))
        client.on_unsubscribe = lambda _, __, mid, reasons, props: self._subacks.put((mid, reasons))
        client.on_publish = lambda _, __, mid, reason, props: self._acks.put((mid, reason))

    def connect(self, host: str, port: int, **options: Any) -> Answer:
        """The CONNACK, whatever it says."""
        self.client.connect(host, port, **options)
        return self.start()

    def start(self) -> Answer:
        self.client.loop_start()
        return take(self.connacks, 1)[0]

    def reconnect(self) -> Answer:
        """Once more with the same session, and with what was in flight."""
        self.client.loop_stop()
        self.client.reconnect()
        return self.start()

    def subscribe(
        self, topic_filter: str, qos: int = 2, options: SubscribeOptions | None = None, **props: Any
    ) -> int:
        """The Reason Code of the SUBACK."""
        if options is not None:
            result, mid = self.client.subscribe(
                topic_filter, options=options, properties=properties("SUBSCRIBE", **props)
            )
        else:
            result, mid = self.client.subscribe(topic_filter, qos)
        return self._answer(result, mid)

    def unsubscribe(self, topic_filter: str) -> None:
        self._answer(*self.client.unsubscribe(topic_filter))

    def _answer(self, result: int, packet_id: int | None) -> int:
        assert result == 0
        answered, reasons = take(self._subacks, 1)[0]
        assert answered == packet_id
        return reasons[0].value if reasons else 0

    def publish(
        self, topic_name: str, payload: bytes | str = b"", qos: int = 0, retain: bool = False, **props: Any
    ) -> int:
        """The Reason Code of PUBACK, PUBREC or PUBCOMP; 0 for QoS 0, once it has left."""
        found = properties("PUBLISH", **props) if props else None
        info = self.client.publish(topic_name, payload, qos, retain, found)
        answered, reason = take(self._acks, 1)[0]
        assert answered == info.mid
        return int(reason.value)

    def take(self, count: int = 1) -> list[MQTTMessage]:
        """The next *count* messages."""
        return take(self.messages, count)

    def payloads(self, count: int) -> list[bytes]:
        return [message.payload for message in self.take(count)]

    def nothing_more(self) -> None:
        """Nothing is on its way: a round trip to the broker brings no message."""
        topic_name = "paho/last"
        assert self.subscribe(topic_name, 0) == 0
        self.publish(topic_name, b"last")
        assert self.payloads(1) == [b"last"]

    def nothing_more_but(self, count: int) -> list[MQTTMessage]:
        """*count* messages, and no more."""
        found = self.take(count)
        self.nothing_more()
        return found

    def cut(self) -> None:
        """End the connection without DISCONNECT."""
        self.client.socket().shutdown(socket.SHUT_RDWR)
        take(self.ends, 1)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextlib.contextmanager
def connected(
    running: Running,
    client_id: str = "",
    version: int = MQTTv5,
    scheme: str = "tcp",
    *,
    certificates: Certificates | None = None,
    identity: str | None = None,
    port: int | None = None,
    clean_session: bool | None = None,
    manual_ack: bool = False,
    will: dict[str, Any] | None = None,
    user_name: str | None = None,
    **options: Any,
) -> Iterator[Paho]:
    """A client whose CONNACK says 0; its Answer is `client.connack`. *options* are for paho's connect."""
    client = Paho(client_id, version, TRANSPORTS[scheme], clean_session, manual_ack)
    if TRANSPORTS[scheme] == "websockets":
        client.client.ws_set_options(path="/mqtt")
    if certificates is not None:
        client.client.tls_set_context(certificates.context(identity))
    if will is not None:
        client.client.will_set(**will)
    if user_name is not None:
        client.client.username_pw_set(user_name)
    host = running.url(scheme).removeprefix("unix:") if scheme == "unix" else "127.0.0.1"
    client.connack = client.connect(host, port or running.port(scheme) or 1, **options)
    assert client.connack.reason == 0, client.connack
    try:
        yield client
    finally:
        client.close()
