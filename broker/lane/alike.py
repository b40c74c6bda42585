"""The way of most reads of many connections: a packet alone, or packets that are all alike."""

from __future__ import annotations

from typing import Final

from broker.client import Client
from broker.core import Core
from broker.hook.identity import IDLE
from broker.lane.atleast import AtLeastOnce
from broker.lane.known import Known
from broker.lane.runs import Run, count_equal, part
from broker.packet.enums import Version
from broker.packet.message import rewrite

MQTT_5: Final = Version.MQTT_5
PUBACK: Final = 0x40  # first byte


class Alike:
    """One for all clients, as the Lane, which can do all of this as well.

    A read of ten packets costs 3.5 us there and 1.5 here (QoS 0), 11 and 6 (QoS 1; CPython 3.11, 2 cores).
    """

    __slots__ = ("_at_least_once", "_journal", "_known", "_stats", "_terms", "_tree", "_verdicts")

    def __init__(self, core: Core, known: Known, at_least_once: AtLeastOnce) -> None:
        self._known = known
        self._at_least_once = at_least_once
        self._journal = core.journal
        self._tree = core.tree
        self._terms = core.sessions.terms
        self._stats = core.stats
        self._verdicts = core.hooks.verdicts

    def take(self, client: Client, data: bytes) -> int:
        """Where the packets end that were served: the first, and those like it if no other kind follows it.

        *data* begins with PUBLISH of QoS 0 or 1. Those that need a look at more than their header are left.
        """
        size, five, known = len(data), client.version is MQTT_5, self._known
        if size < 6 or self._tree.generation != known.generation or self._terms.turnover != known.turnover:
            return 0
        length, start = data[1], 2
        if length > 0x7F:
            if not 0 < data[2] < 0x80:
                return 0
            length, start = length & 0x7F | data[2] << 7, 3
        end, first = start + length, data[0]
        topic_end = start + 2 + (data[start] << 8 | data[start + 1])
        block_at = topic_end + (first & 2)
        if end > size or block_at + five > end or (five and data[block_at]):
            return 0
        if end + 1 < size and (data[end] != first or data[end + 1] != data[1]):
            return 0
        verdicts = self._verdicts
        if verdicts is not None and data[start:topic_end] not in verdicts.of(client.info):
            return 0
        if first & 2:
            return self._take_1(client, data, end, topic_end, five)
        return self._take_0(data, end, topic_end, five)

    def _take_0(self, data: bytes, end: int, topic_end: int, five: bool) -> int:
        """QoS 0: the bytes as they came are handed on. The first packet ends at *end*."""
        audience = self._known.qos_0[five].get(data[data[1] >> 7 | 2 : topic_end])
        if audience is None:
            return 0
        members = audience.members
        for member in members:
            queued = member.session.extra.queued_qos_0
            if queued or (member.outbound.waiting is not IDLE and not member.ready):
                return 0
        count = 1
        packets: bytes | memoryview = data
        if end < len(data):
            count = count_equal(data, 0, end, data[: topic_end + five])
            end *= count
            if end < len(data):
                packets = part(data, 0, end)
        other = rewrite(bytes(packets), five, 0, not five, 0) if audience.rewritten else b""
        for member in members:
            member.outbound.put(packets if member.five == five else other, count)
        stats = self._stats
        stats.publish_received += count
        stats.messages_received += count
        stats.publish_sent += count * audience.size
        return end

    def _take_1(self, client: Client, data: bytes, end: int, topic_end: int, five: bool) -> int:
        """QoS 1: numbered, sent and acknowledged. The first packet ends at *end*."""
        session = client.session
        if session is None or session.inflight.holds or self._journal.failure:
            return 0
        audience = self._known.qos_1[five].get(data[data[1] >> 7 | 2 : topic_end])
        if audience is None or not self._at_least_once.has_room(audience, len(data)):
            return 0
        count = 1 if end == len(data) else count_equal(data, 0, end, data[:topic_end])
        count = count if count < audience.room else audience.room
        stop = end * count
        if five and data[topic_end + 2 : stop : end].count(0) != count:
            return 0
        run = Run(data if stop == len(data) else data[:stop], end, topic_end, five, client.client_id)
        answer = run.acknowledgements(PUBACK)
        if not answer:
            return 0
        self._at_least_once.answer(client, answer, self._at_least_once.send(audience, run))
        return stop
