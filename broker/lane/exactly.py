"""QoS 2 in the fast lane: packet by packet, by the tables of the session, but without a Packet each."""

from __future__ import annotations

from typing import Final

from broker.client import Client, Phase
from broker.core import Core
from broker.errors import MqttError
from broker.lane.known import Allowed
from broker.packet.enums import PacketType, Version
from broker.packet.message import Message
from broker.packet.packets import NO_PROPERTIES
from broker.packet.wire import TopicNames
from broker.session.inflight import State

PUBLISH_2: Final = 0x34  # first bytes
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
# What waits for such a packet.
WAITS: Final = {
    PUBACK: (State.WAIT_PUBACK, PacketType.PUBACK),
    PUBREC: (State.WAIT_PUBREC, PacketType.PUBREC),
    PUBCOMP: (State.WAIT_PUBCOMP, PacketType.PUBCOMP),
}
STEP: Final = 20  # what a packet costs, and each who gets its message, in slices that are handed out


class Exactly:
    """One for all clients, as the Lane.

    17.7 us a message through the handlers, 12 here; compiled 9.7 and 7 (one to one, window 20).
    """

    def __init__(self, core: Core, names: TopicNames, allowed: Allowed) -> None:
        self._core = core
        self._names = names
        self._allowed = allowed
        self._most_receiving = core.config.limits.receive_maximum
        self.open = core.config.limits.maximum_qos == 2 and not core.journal.writes
        self.left = 0  # what this read may still cost

    def take(self, client: Client, data: bytes, at: int) -> int:
        """Packets like the one at *at*; where those end that were served."""
        if client.waiting.gate:
            return at
        first = data[at]
        if first == PUBLISH_2:
            return self._take_publishes(client, data, at)
        if first == PUBREL:
            return self._take_pubrels(client, data, at)
        return self._take_acknowledgements(client, data, at, first)

    def _take_publishes(self, client: Client, data: bytes, at: int) -> int:
        """PUBLISH without RETAIN, DUP and properties: held until PUBREL, which PUBREC asks for."""
        session = client.session
        assert session is not None
        five, held, client_id = client.version is Version.MQTT_5, session.inflight.held, client.client_id
        extra = client.own()
        receiving = extra.receiving = set() if extra.receiving is None else extra.receiving
        size, last_topic, topic_name, allowed = len(data), b"", "", self._allowed.topics
        answers: list[bytes] = []
        while at + 6 < size and data[at] == PUBLISH_2 and self.left > 0:
            length, start = data[at + 1], at + 2  # `bounds` in place
            if length > 0x7F:
                if not 0 < data[at + 2] < 0x80:
                    break
                length, start = length & 0x7F | data[at + 2] << 7, at + 3
            end = start + length
            block_at = start + 4 + (data[start] << 8 | data[start + 1])
            if end > size or block_at + five > end or (five and data[block_at]):
                break
            identifier = data[block_at - 2 : block_at]
            packet_id = identifier[0] << 8 | identifier[1]
            if packet_id == 0 or packet_id in held or (five and len(receiving) >= self._most_receiving):
                break
            topic = data[start : block_at - 2]
            if topic != last_topic:
                if allowed is not None and topic not in allowed:
                    self._allowed.unasked = topic
                    break
                topic_name, last_topic = self._name(topic[2:], five), topic
                if not topic_name:
                    break
            message = Message(topic_name, data[block_at + five : end], 2, False, NO_PROPERTIES, client_id)
            if not session.hold(packet_id, message):
                break
            held = session.inflight.held
            receiving.add(packet_id)
            answers.append(identifier)
            self.left -= STEP
            at = end
        self._core.stats.publish_received += len(answers)
        self._answer(client, PUBREC, answers)
        return at

    def _name(self, raw: bytes, five: bool) -> str:
        """The Topic Name *raw*, if messages are accepted and, from a 5.0 client, heard there; else ""."""
        try:
            topic_name = self._names[raw]
        except MqttError:
            return ""
        route = self._core.tree.routes.get(topic_name)  # one that is there was checked
        if route is None or topic_name[0] == "$" or (five and not (route.direct or route.groups)):
            return ""
        return topic_name

    def _take_pubrels(self, client: Client, data: bytes, at: int) -> int:
        """PUBREL: what was held is routed."""
        session, router = client.session, self._core.router
        assert session is not None
        size, answers = len(data), []
        while at + 4 <= size and data[at] == PUBREL and data[at + 1] == 2 and self.left > 0:
            packet_id = data[at + 2] << 8 | data[at + 3]
            message = session.inflight.held.get(packet_id)
            if message is None or message.retain or message.expires_at is not None:
                break
            session.let_go(packet_id)
            router.route(message)
            if client.extra.receiving is not None:
                client.extra.receiving.discard(packet_id)
            answers.append(data[at + 2 : at + 4])
            route = self._core.tree.routes.get(message.topic_name)
            self.left -= STEP * (1 + (route.size if route is not None else 1))
            at += 4
            if client.ending is not None:
                break
        self._answer(client, PUBCOMP, answers)
        return at

    def _take_acknowledgements(self, client: Client, data: bytes, at: int, first: int) -> int:
        """PUBACK, PUBREC or PUBCOMP of success, for what waits for it.

        For a PUBACK of what the readable lane has sent 2.5 us become 1 (CPython 3.11, 2 cores).
        """
        session = client.session
        assert session is not None
        waits, packet_type = WAITS[first]
        size, begin, answers = len(data), at, []
        while at + 4 <= size and data[at] == first and data[at + 1] == 2 and self.left > 0:
            delivery = session.inflight.entries.get(data[at + 2] << 8 | data[at + 3])
            if delivery is None or delivery.state is not waits:
                break
            if first == PUBREC:
                session.acknowledge(delivery.packet_id, packet_type, 0)
                answers.append(data[at + 2 : at + 4])
            else:
                session.complete(delivery)
            self.left -= STEP
            at += 4
            if client.ending is not None:
                break
        if answers:
            self._answer(client, PUBREL, answers)
        elif at > begin:
            self._core.stats.messages_received += (at - begin) // 4
            client.resume_feed()
        return at

    def _answer(self, client: Client, first: int, identifiers: list[bytes]) -> None:
        """The answers, whose *first* byte it is, to what was received leave, one each."""
        if not identifiers:
            return
        count, start = len(identifiers), bytes((first, 2))
        self._core.stats.messages_received += count
        if client.phase is Phase.CONNECTED:
            client.put_control(start + start.join(identifiers), count)
        client.resume_feed()
