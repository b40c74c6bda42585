"""The fast lane: runs of packets for which every decision is made already.

What the readable lane (client.py, handle/, router.py) does for each packet, this does for as many as stand
in one read: PUBLISH of QoS 0 and 1 without RETAIN and DUP, and with properties that only travel, for
sessions that have room, connected or (QoS 1) not, which a store is told of by runs; what is to be retained,
of QoS 0 and without properties; the PUBACKs of what it sent; PINGREQ; the packets of QoS 2 (exactly.py),
where there is no store. All else is handed back untouched: PUBLISH that a hook which sees what clients
publish does not let pass at once (asked.py), or to topics that `may_publish` refuses, everything while one
wants to see what they are sent, and all but PUBACKs while memory is short. Without this folder the broker
does the same, slower: tests/lane compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from broker.client import Client, Phase
from broker.core import Core
from broker.hook.identity import IDLE
from broker.lane.alike import Alike
from broker.lane.asked import Allowed, Judged, Untold
from broker.lane.atleast import AtLeastOnce
from broker.lane.audience import Audience, Audience1, Member
from broker.lane.exactly import PUBCOMP, PUBLISH_2, PUBREC, PUBREL, Exactly
from broker.lane.known import LONGEST, Known
from broker.lane.retained import PUBLISH_RETAINED, STORED, Retaining, plain_packet
from broker.lane.runs import (
    FEW,
    FEW_1,
    LARGE,
    SHORT,
    Blocks,
    Run,
    Stretch,
    acknowledged,
    count_equal,
    is_begun,
    part,
    repeats,
    rewrite_aliases,
)
from broker.packet.enums import Version
from broker.packet.message import bounds, rewrite
from broker.packet.packets import Publish
from broker.packet.wire import TopicNames

CONNECTED: Final = Phase.CONNECTED
PUBLISH_0: Final = 0x30  # first bytes
PUBLISH_1: Final = 0x32
PUBACK: Final = 0x40
PINGREQ: Final = 0xC0
STEPS: Final = (PUBLISH_2, PUBREC, PUBREL, PUBCOMP)
PINGREQS: Final = re.compile(rb"(?:\xc0\0)++")  # possessive: what may be given back costs 64 bytes each
PINGRESP: Final = b"\xd0\0"
MOST: Final = 20_000  # slices handed out for one read, two milliseconds about: then others have a turn
EACH: Final = 10  # QoS 1 packets that are numbered for one member cost about as much as a slice
ASKED: Final = 50  # and so do hooks that are asked about a topic


class Lane:
    """One for all clients of a broker; in the event loop's thread."""

    def __init__(
        self, core: Core, names: TopicNames, check_topic: Callable[[Core, str], None],
        handle: Callable[[Core, Client, Publish], object],
    ) -> None:  # fmt: skip
        """*names* should be those of the readers; *check_topic* raises MqttError for one not accepted.

        *handle* is the readable lane's handler of PUBLISH.
        """
        limits, hooks = core.config.limits, core.hooks
        self._core = core
        self._budget = core.budget
        self.known = Known(core, names, check_topic)
        self._reads = 0
        self._work = 0  # slices handed out for this read
        self._overhead = core.sessions.terms.overhead
        self._blocks = Blocks(core.config, names)
        self._retaining = Retaining(core, LONGEST)
        self._allowed = Allowed(core, self.known, names, check_topic)
        self._at_least_once = AtLeastOnce(core)
        self._untold = Untold(core)
        self._exactly = Exactly(core, names, self.known, self._allowed, self._at_least_once)
        self._alike = Alike(core, self.known, self._at_least_once)
        rooms = self.known, self._allowed, self._alike, self._untold
        self.judged = Judged(core, names, *rooms, self._take, handle)
        self._most_qos = limits.maximum_qos
        self._watched = hooks.inspects_publish
        self._holds = hooks.holds  # an acknowledgement may have to wait: QoS 0 alone
        few = (PUBLISH_0, PUBLISH_1) if self._most_qos and not self._holds else (PUBLISH_0,)
        self._alike_for = () if self._watched else few  # first bytes of the packets for it
        # What would have to look at every message that is sent.
        watched = hooks.inspects_delivery or hooks.follows_messages
        self.open = not (watched or limits.message_expiry_interval or limits.maximum_packet_size < SHORT)

    def take(self, client: Client, data: bytes) -> bytes:
        """Serve what can be served of *data*, which *client* sent; gives the rest, from a packet's start on.

        The beginning of a packet that is not whole yet is left with the reader.
        """
        budget, reader, untold = self._budget, client.reader, self._untold
        if client.session is None or client.phase is not CONNECTED or client.ending is not None:
            return data
        shut, at = False, 0
        if client.waiting is not IDLE or budget.used >= budget.low_from:
            shut = client.blocked or budget.low or client.swamped
        if self.judged.asks:  # a hook has done something that leads here
            self.judged.settle()
            return data
        untold.begin(0)
        if reader is None and not shut and data[0] in self._alike_for:
            at = self._alike.take(client, data)
            if at == len(data):
                client.heard()
                untold.tell(client, data, at)
                return b""
        held = 0 if reader is None else reader.partial
        if shut and data[0] != PUBACK and not held:
            return data
        if held:
            if held > SHORT:
                return data
            data = client.own_reader().take_partial() + data
        if not at and client.extra.aliases is not None:
            data = self._without_aliases(client.extra.aliases.names, data)
        self.known.begin()
        try:
            if self.judged.open and not shut:
                at = self.judged.take(client, data)
            else:
                at = self._take(client, data, shut, at, self._watched)
        except BaseException:
            self.known.forget()  # what was collected half
            raise
        end = len(data)
        took = at > 0
        untold.tell(client, data, at)
        if at < end and is_begun(data, at):
            client.own_reader().hold(data[at:])
            at = end
        if took:
            client.heard()
        if (held or client.partial) and (took or at == end):  # else the read loop goes on with it
            client.note_partial(took)
        if at == end:
            return b""
        return data[at:] if at else data

    def _without_aliases(self, names: dict[int, str], data: bytes) -> bytes:
        """*data* with Topic Names in place of the Topic Aliases that it begins with, if it does."""
        if data[2:4] != b"\0\0" and data[3:5] != b"\0\0":
            return data
        packets, end = rewrite_aliases(data, names, self._blocks.alias_in)
        return packets + data[end:] if end else data

    def _take(self, client: Client, data: bytes, shut: bool, at: int, watched: bool) -> int:
        """Where the packets from *at* on end that were served; *shut*: only PUBACKs, which end something.

        *watched*: no PUBLISH.
        """
        end, first, allowed = len(data), -1, self._allowed
        self._work = 0
        allowed.begin(client)
        while at < end and data[at] != first:  # whoever stops before more of its kind has a reason
            first = data[at]
            if shut and first != PUBACK:
                break
            if first & 0xF0 == PUBLISH_0 and (watched or (self._holds and first & 6)):
                break
            if first == PUBLISH_0:
                at = self._take_qos_0(client, data, at)
            elif first == PUBLISH_1 and self._most_qos > 0:
                at = self._take_qos_1(client, data, at)
            elif first == PUBLISH_RETAINED and self._retaining.open:
                at = self._take_retained(client, data, at)
            elif first == PUBACK:
                at = self._take_pubacks(client, data, at)
                if at < end and data[at] == PUBACK:
                    at = self._take_step(client, data, at)
            elif first in STEPS and self._exactly.open:
                at = self._take_step(client, data, at)
            elif first == PINGREQ:
                at = self._take_pingreqs(client, data, at)
            else:
                break
            if allowed.unasked and allowed.ask(client):  # that was the reason
                self._work += ASKED
                first = -1
        return at

    def _take_step(self, client: Client, data: bytes, at: int) -> int:
        """Packets of which each is looked up in the tables of its session; where they end."""
        exactly = self._exactly
        exactly.left = MOST - self._work
        at = exactly.take(client, data, at)
        self._work = MOST - exactly.left
        return at

    # ---- PUBLISH

    def _take_qos_0(self, client: Client, data: bytes, at: int) -> int:
        """PUBLISH of QoS 0 from *at* on; where what was served ends. Neighbours of one audience are a slice.

        A hot path. The header is read in place, as in `_take_qos_1`: 35 of 480 ns less (benchmarks/lane.py).
        """
        five, allowed = client.version is Version.MQTT_5, self._allowed.topics
        known = self.known.qos_0[five]
        audience: Audience | None = None
        opened: list[Member] = []
        begin, count, received, sent, size, last_topic, last_length = at, 0, 0, 0, len(data), b"", 0
        self._reads += 1
        while at + 4 < size and data[at] == PUBLISH_0:
            length, start = data[at + 1], at + 2
            if length > 0x7F:
                if not 0 < data[at + 2] < 0x80:
                    break
                length, start = length & 0x7F | data[at + 2] << 7, at + 3
            end = start + length
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            if end > size or topic_end + five > end:
                break
            block_end, changed = topic_end + five, False
            if five and data[topic_end]:
                block_end += data[topic_end]
                block = self._blocks[data[topic_end:block_end]] if block_end <= end else b""
                if not block:
                    break
                changed = block != data[topic_end:block_end]  # it is sent in another order
            topic = data[start:topic_end]
            if topic != last_topic:
                if allowed is not None and topic not in allowed:
                    self._allowed.unasked = topic
                    break
                found = known.get(topic) or self.known.find_0(known, topic, five)
                if found is None or found is not audience:
                    if audience is not None:
                        self._collect(audience, data, begin, at, five)
                        sent += count * audience.size
                    received, begin, count = received + count, at, 0
                    audience = found if self._work < MOST and self._opens(found, opened) else None
                    if audience is None:
                        break
                    self._work += audience.size
                last_topic = topic
            elif length == last_length and not changed and repeats(data, at, end, FEW):
                if number := count_equal(data, at, end - at, data[at:block_end]):
                    count, at, last_length = count + number, at + number * (end - at), 0
                    continue
                length = 0
            if changed and audience is not None:
                other = data[begin:topic_end] + block + data[block_end:end]
                self._collect(audience, other, 0, len(other), five)
                begin = end
            last_length, count = length, count + 1
            at = end
        if audience is not None:
            self._collect(audience, data, begin, at, five)
            sent += count * audience.size
        self._hand_over(opened, received + count, sent)
        return at

    def _take_retained(self, client: Client, data: bytes, at: int) -> int:
        """PUBLISH of QoS 0 with RETAIN and without properties from *at* on; where what was stored ends.

        A hot path: 7.0 us a message of a new topic by the handlers, 2.4 here (50,000 topics of 64 bytes;
        CPython 3.11, 2 cores). For those who hear it, it is the same message without RETAIN.
        """
        five, size, retaining = client.version is Version.MQTT_5, len(data), self._retaining
        known, client_id = self.known.retained[five], client.info.client_id
        allowed = self._allowed.topics
        room = retaining.room(size - at)
        opened: list[Member] = []
        received = sent = 0
        self._reads += 1
        while at + 4 < size and data[at] == PUBLISH_RETAINED and received < room and self._work < MOST:
            start, end = bounds(data, at)
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            if end > size or topic_end + five >= end or (five and data[topic_end]):  # empty: it is deleted
                break
            topic = data[start:topic_end]
            if allowed is not None and topic not in allowed:
                self._allowed.unasked = topic
                break
            name = retaining.name(topic[2:])
            if not name:
                break
            found = known.get(topic) or self.known.find_retained(known, topic, name, five)
            if found is None:
                break
            if found.size:
                if not self._opens(found, opened):
                    break
                self._collect(found, b"\x30" + data[at + 1 : end], 0, end - at, five)
                sent += found.size
                self._work += found.size
            packet = plain_packet(topic, data[topic_end + 1 : end]) if five else data[at:end]
            retaining.found.append((packet, name, client_id))
            received += 1
            self._work += STORED
            at = end
        retaining.store()
        self._hand_over(opened, received, sent)
        return at

    def _hand_over(self, opened: list[Member], received: int, sent: int) -> None:
        """What was collected of one read leaves, and is counted."""
        for member in opened:
            member.hand_over()
        stats = self._core.stats
        stats.publish_received += received
        stats.messages_received += received
        stats.publish_sent += sent
        stats.messages_sent += sent

    def _opens(self, audience: Audience | None, opened: list[Member]) -> bool:
        """Whether all of *audience* can take packets of this read."""
        if audience is None:
            return False
        if audience.read != self._reads:
            for member in audience.members:
                if not member.collects:
                    if not member.ready:
                        return False
                    member.collects = True
                    opened.append(member)
            audience.read = self._reads
        return True

    @staticmethod
    def _collect(audience: Audience, data: bytes, begin: int, end: int, five: bool) -> None:
        stretch = part(data, begin, end) if end - begin > LARGE else data[begin:end]
        for append in audience.same:
            append(stretch)
        if audience.rewritten:
            other = rewrite(bytes(stretch), five, 0, not five, 0)
            for append in audience.rewritten:
                append(other)

    def _take_qos_1(self, client: Client, data: bytes, at: int) -> int:
        """PUBLISH of QoS 1 from *at* on; where what was served, and acknowledged, ends."""
        session = client.session
        assert session is not None
        if session.inflight.holds or self._core.journal.failure:
            return at
        five, allowed = client.version is Version.MQTT_5, self._allowed.topics
        known = self.known.qos_1[five]
        audience: Audience1 | None = None
        opened: list[Audience1] = []
        identifiers: list[bytes] = []
        size, last_topic, last_length, runs = len(data), b"", 0, True
        while at + 6 < size and data[at] == PUBLISH_1:
            length, start = data[at + 1], at + 2
            if length > 0x7F:
                if not 0 < data[at + 2] < 0x80:
                    break
                length, start = length & 0x7F | data[at + 2] << 7, at + 3
            end = start + length
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            block_at = topic_end + 2
            identifier = data[topic_end:block_at]
            if end > size or block_at + five > end or identifier == b"\0\0":
                break
            block_end, block = block_at + five, b""
            if five and data[block_at]:
                block_end += data[block_at]
                block = self._blocks[data[block_at:block_end]] if block_end <= end else b""
                if not block:
                    break
            topic = data[start:topic_end]
            if topic != last_topic:
                if allowed is not None and topic not in allowed:
                    self._allowed.unasked = topic
                    break
                found = known.get(topic) or self.known.find_1(known, topic, five)
                if found is None or found is not audience:
                    if audience is not None and audience.stored:
                        self._answer_all(client, opened, identifiers)
                    audience = None
                    if self._work < MOST:
                        audience = self._turn_to(found, opened, client, size, identifiers)
                    self._work += 1 if found is None else len(found.members)
                last_topic = topic
            elif runs and length == last_length and audience and not block and repeats(data, at, end, FEW_1):
                self._answer_all(client, opened, identifiers)
                begin, at = at, self._take_run(client, audience, data, at, end, topic_end)
                runs = at > begin
                audience, last_topic, last_length = None, b"", 0
                continue
            if audience is None or not audience.room or (block and (audience.queued or audience.stored)):
                break
            last_length = length
            identifiers.append(identifier)
            audience.heads.append(data[at:topic_end])
            audience.tails.append(block + data[block_end if block else block_at : end])
            audience.room -= 1
            at = end
        self._answer_all(client, opened, identifiers)
        return at

    def _turn_to(
        self,
        found: Audience1 | None,
        opened: list[Audience1],
        client: Client,
        size: int,
        identifiers: list[bytes],
    ) -> Audience1 | None:
        """*found*, ready to collect; None if it is not."""
        if found is None or found.opened:
            return found
        # Somebody may get messages of two audiences, and in order, and has room for both together.
        if not found.alone or (opened and not opened[-1].alone):
            self._send_all(client, opened)
        if not self._at_least_once.has_room(found, size):
            return None
        if found.stored:  # what is stored is acknowledged by itself
            self._answer_all(client, opened, identifiers)
        found.opened = True
        opened.append(found)
        return found

    def _answer_all(self, client: Client, opened: list[Audience1], identifiers: list[bytes]) -> None:
        """Hand over what was collected, and acknowledge it."""
        stored = self._send_all(client, opened)
        if identifiers:
            self._at_least_once.answer(client, b"\x40\x02" + b"\x40\x02".join(identifiers), stored)
            identifiers.clear()

    def _send_all(self, client: Client, opened: list[Audience1]) -> Any:
        """Hand over the QoS 1 packets that were collected; what was stored of the last ones, or None."""
        stored = None
        five, client_id = client.version is Version.MQTT_5, client.client_id
        for audience in opened:
            audience.opened = False
            if audience.heads:
                stored = self._send(audience, Stretch(audience.heads, audience.tails, five, client_id))
                audience.heads, audience.tails = [], []
        opened.clear()
        return stored

    def _take_run(
        self, client: Client, audience: Audience1, data: bytes, at: int, end: int, topic_end: int
    ) -> int:
        """QoS 1 packets that are like the one at *at* but for identifier and payload; where they end."""
        size, five = end - at, client.version is Version.MQTT_5
        number = count_equal(data, at, size, data[at:topic_end])
        end = at + number * size
        if five and data[topic_end + 2 : end : size].count(0) != number:
            return at
        if not number or not self._at_least_once.has_room(audience, end - at):
            return at
        end = at + min(number, audience.room) * size
        run = Run(data[at:end], size, topic_end - at, five, client.client_id)
        answer = run.acknowledgements(PUBACK)
        if not answer:
            return at
        self._at_least_once.answer(client, answer, self._send(audience, run))
        return end

    def _send(self, audience: Audience1, stretch: Stretch | Run) -> Any:
        """See AtLeastOnce.send."""
        self._work += len(audience.numbered) * stretch.count // EACH
        return self._at_least_once.send(audience, stretch)

    # ---- PUBACK

    def _take_pubacks(self, client: Client, data: bytes, at: int) -> int:
        """PUBACKs in the order in which this lane has sent; where they end."""
        session = client.session
        assert session is not None
        inflight, begin = session.inflight, at
        while (run := inflight.runs) is not None:
            number = acknowledged(data, at, PUBACK, run)
            if not number:
                break
            session.acknowledge_run(number)
            at += 4 * number
        if at > begin:
            self._at_least_once.finished(client, session, (at - begin) // 4)
        return at

    def _take_pingreqs(self, client: Client, data: bytes, at: int) -> int:
        """PINGREQs, each of which is answered; where they end."""
        found = PINGREQS.match(data, at)
        if found is None:
            return at
        count = (found.end() - at) // 2
        client.put_control(PINGRESP * count, count)
        self._core.stats.messages_received += count
        return found.end()
