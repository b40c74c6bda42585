"""QoS 2 in the fast lane: in runs, or each by the tables of the session, without a Packet each."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final

from broker.client import Client, Phase
from broker.core import Core
from broker.errors import MqttError
from broker.lane.asked import Allowed
from broker.lane.atleast import AtLeastOnce
from broker.lane.audience import Audience1
from broker.lane.known import Known
from broker.lane.runs import (
    FEW_1,
    Stretch,
    acknowledged,
    acknowledgements,
    count_equal,
    count_same,
    endings,
    repeats,
)
from broker.packet.enums import PacketType, Version
from broker.packet.message import Message, bounds, topic_size
from broker.packet.packets import NO_PROPERTIES
from broker.packet.wire import TopicNames
from broker.session.delivery import HeldRun, SentRun, State
from broker.session.session import Session

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
FEWER: Final = 4  # in a run, so many cost as much as one by itself
LONGEST: Final = 256  # messages in a run


class Exactly:
    """One for all clients, as the Lane.

    A message costs 17.7 us through the handlers, 10 packet by packet and 5.4 in runs, of which most is the
    kernel's (one to one, window 20; with window 100 5.9 and 1.2; compiled 3.9 and 0.85; CPython 3.11).
    """

    def __init__(
        self, core: Core, names: TopicNames, known: Known, allowed: Allowed, at_least_once: AtLeastOnce
    ) -> None:
        self._core = core
        self._names = names
        self._known = known
        self._allowed = allowed
        self._at_least_once = at_least_once
        self._overhead = core.sessions.terms.overhead
        self._most_receiving = core.config.limits.receive_maximum
        self.open = core.config.limits.maximum_qos == 2 and not core.journal.writes
        self.left = 0  # what this read may still cost

    def take(self, client: Client, data: bytes, at: int) -> int:
        """Packets like the one at *at*; where those end that were served."""
        session = client.session
        if client.waiting.gate or session is None:
            return at
        first = data[at]
        if first == PUBLISH_2:
            at = self._hold_runs(client, session, data, at)
            return self._take_publishes(client, session, data, at)
        begin = -1
        while begin < at < len(data) and data[at] == first and self.left > 0 and not client.is_ending:
            begin = at
            if first == PUBREL:
                at = self._release_runs(client, session, data, at)
                at = self._take_pubrels(client, session, data, at)
                if at == begin and self._tell_apart(session, data, at):
                    begin = -1
                continue
            if first == PUBREC:
                at = self._take_pubrecs(client, session, data, at)
            elif first == PUBCOMP:
                at = self._take_pubcomps(client, session, data, at)
            at = self._take_acknowledgements(client, session, data, at, first)
        return at

    @staticmethod
    def _tell_apart(session: Session, data: bytes, at: int) -> bool:
        """The PUBREL there is not for the first of a run; whether it may be for one further on."""
        inflight = session.inflight
        if inflight.held_run is None or at + 4 > len(data):
            return False
        if data[at + 2] << 8 | data[at + 3] in inflight.singles:
            return False
        inflight.thaw_held()
        return True

    # ---- in runs, for those who can be sent runs

    def _hold_runs(self, client: Client, session: Session, data: bytes, at: int) -> int:
        """PUBLISH without RETAIN, DUP and properties: held until PUBREL, which PUBREC asks for."""
        begin = -1
        while begin < at and at + 6 < len(data) and data[at] == PUBLISH_2 and self.left > 0:
            begin, at = at, self._hold_run(client, session, data, at)
        return at

    def _hold_run(self, client: Client, session: Session, data: bytes, at: int) -> int:
        """What follows each other; where that ends."""
        five, client_id, overhead = client.version is Version.MQTT_5, client.client_id, self._overhead
        begin, cost, unit, last_topic = at, 0, 0, b""
        heads: list[bytes] = []
        tails: list[bytes] = []
        identifiers: list[bytes] = []
        audiences: list[Audience1] = []
        audience: Audience1 | None = None
        while at + 6 < len(data) and data[at] == PUBLISH_2 and len(heads) < LONGEST:
            start, block_at, end = _head(data, at, five)
            topic = data[start : block_at - 2]
            if end and topic != last_topic:
                audience, last_topic = self._audience(topic, five), topic
                unit = 0 if audience is None else topic_size(topic[2:]) - five + overhead
            if not end or audience is None:
                break
            if not heads and repeats(data, at, end, FEW_1):
                size, place = end - at, block_at - 2 - at
                heads, tails, found = _alike(data, at, size, place, five)
                if heads:
                    at, cost = at + len(heads) * size, len(heads) * (unit + end - block_at)
                    identifiers, audiences = [found], [audience] * len(heads)
                    break
            heads.append(data[at : block_at - 2])
            identifiers.append(data[block_at - 2 : block_at])
            tails.append(data[block_at:end])
            audiences.append(audience)
            cost += unit + end - block_at
            at = end
        if not heads:
            return at
        pubrels = _acknowledge(PUBREL, b"".join(identifiers))
        run = HeldRun(heads, tails, pubrels, audiences, five, client_id, overhead, cost)
        return at if self._hold(client, session, run) else begin

    def _audience(self, topic: bytes, five: bool) -> Audience1 | None:
        """Who gets messages of *topic*, length included; None: we do not know, or whether the client may."""
        allowed, known = self._allowed.topics, self._known.qos_2[five]
        if allowed is not None and topic not in allowed:
            return None
        return known.get(topic) or self._known.find_1(known, topic, five, 2)

    def _hold(self, client: Client, session: Session, run: HeldRun) -> bool:
        """Hold *run*; False: one of its messages needs a look."""
        count, extra = run.count, client.own()
        numbers, receiving = set(_identifiers(count)(run.pubrels, 0)), extra.receiving or ()
        if len(numbers) < count or 0 in numbers or not numbers.isdisjoint(receiving):
            return False
        if run.five and count + len(receiving) > self._most_receiving:
            return False
        singles = session.inflight.singles  # of an earlier connection, perhaps
        if singles and any(number in singles for number in numbers):
            return False
        run.known_at = self._known.forgotten
        if not session.hold_run(run):
            return False
        if extra.receiving:
            extra.receiving |= numbers
        else:
            extra.receiving = numbers
        self.left -= STEP + count * STEP // FEWER
        self._core.stats.publish_received += count
        self._answer(client, _turn(PUBREC, run.pubrels), count)
        return True

    def _release_runs(self, client: Client, session: Session, data: bytes, at: int) -> int:
        """PUBREL in the order of the PUBLISH: what was held is sent; where they end."""
        inflight, receiving = session.inflight, client.extra.receiving
        while (run := inflight.held_run) is not None and self.left > 0 and client.ending is None:
            pubrels = run.pubrels
            number = min(len(pubrels), len(data) - at) // 4
            if data[at : at + 4 * number] != pubrels[: 4 * number]:
                number = count_same(data, at, pubrels, 0)
            if not number or (run.known_at != self._known.forgotten and not self._find_again(run)):
                break
            opened: list[Audience1] = []
            number = self._collect(run, number, opened)
            if not number:
                break
            run = session.let_go_run(number)
            for audience in opened:
                self._send(audience, run)
            if receiving is not None and len(receiving) == number:
                receiving.clear()
            elif receiving is not None:
                receiving.difference_update(_identifiers(number)(run.pubrels, 0))
            self._answer(client, _turn(PUBCOMP, run.pubrels), number)
            self.left -= STEP
            at += 4 * number
        return at

    def _find_again(self, run: HeldRun) -> bool:
        """Who gets the messages of *run* now; False: of some we do not know."""
        known, audiences = self._known.qos_2[run.five], []
        for head in run.heads:
            topic = head[3:] if head[1] > 0x7F else head[2:]
            audience = known.get(topic) or self._known.find_1(known, topic, run.five, 2)
            if audience is None:
                return False
            audiences.append(audience)
        run.audiences, run.known_at = audiences, self._known.forgotten
        return True

    def _collect(self, run: HeldRun, number: int, opened: list[Audience1]) -> int:
        """The first *number* messages of *run*, each with its audience; how many of them have room.

        Somebody may get messages of two audiences, and in order: then those of one are sent first.
        """
        audiences: list[Audience1] = run.audiences
        heads, tails, count, size, first = run.heads, run.tails, 0, run.cost, audiences[0]
        if audiences.count(first) == len(audiences):
            if self._at_least_once.has_room(first, size) and not first.queued:
                count = min(number, first.room)
                first.heads, first.tails = heads[:count], tails[:count]
                opened.append(first)
            return count
        for audience in audiences[:number]:
            if not audience.opened:
                if opened and not (audience.alone and opened[-1].alone):
                    break
                if not self._at_least_once.has_room(audience, size) or audience.queued:
                    break
                audience.opened = True
                opened.append(audience)
            if not audience.room:
                break
            audience.room -= 1
            audience.heads.append(heads[count])
            audience.tails.append(tails[count])
            count += 1
        for audience in opened:
            audience.opened = False
        return count

    def _send(self, audience: Audience1, run: HeldRun) -> None:
        """What was collected of *run* to all of *audience*."""
        stretch = Stretch(audience.heads, audience.tails, run.five, run.client_id, 2)
        audience.heads, audience.tails = [], []
        count, made, now = stretch.count, dict[tuple[bool, int, int], bytes](), self._core.clock()
        for member in audience.numbered if count else ():
            session, five = member.session, member.five
            first, qos = session.inflight.next_unused(), 2 if member in audience.exact else 1
            packets = made.get((five, first, qos))  # for those that are to get the same
            if packets is None:
                packets = made[five, first, qos] = stretch.numbered(five, first, qos)
            cost = len(packets) + count * self._overhead
            sent = SentRun(first, count, packets, cost, run.client_id, five, now)
            session.send_run(sent, qos)
            member.outbound.put(packets, count)
        for member in audience.lowered if count else ():
            member.outbound.put(stretch.without_identifiers(member.five), count)
        self.left -= count * STEP * (1 + len(audience.members)) // FEWER
        self._core.stats.publish_sent += count * len(audience.members)

    def _take_pubrecs(self, client: Client, session: Session, data: bytes, at: int) -> int:
        """PUBREC in the order in which this lane has sent, each of which is answered; where they end."""
        while (exact := session.inflight.exact) is not None and (run := exact.sent) is not None:
            first, number = run.first, acknowledged(data, at, PUBREC, run)
            if not number:
                break
            exact.receive(number)
            if number == 1:
                answer = b"\x62\x02" + data[at + 2 : at + 4]
            else:
                answer = acknowledgements(PUBREL)[4 * first : 4 * (first + number)]
            self._answer(client, answer, number)
            at += 4 * number
        return at

    def _take_pubcomps(self, client: Client, session: Session, data: bytes, at: int) -> int:
        """PUBCOMP in that order; where they end."""
        inflight, begin = session.inflight, at
        while (exact := inflight.exact) is not None and (run := exact.received) is not None:
            number = acknowledged(data, at, PUBCOMP, run)
            if not number:
                break
            session.complete_run(number)
            at += 4 * number
        if at > begin:
            self._at_least_once.finished(client, session, (at - begin) // 4)
        return at

    # ---- packet by packet

    def _take_publishes(self, client: Client, session: Session, data: bytes, at: int) -> int:
        """As `_hold_runs`."""
        if at == len(data) or data[at] != PUBLISH_2:
            return at
        five, held, client_id = client.version is Version.MQTT_5, session.inflight.singles, client.client_id
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
            if packet_id == 0 or packet_id in held or packet_id in receiving:
                break
            if five and len(receiving) >= self._most_receiving:
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
            held = session.inflight.singles
            receiving.add(packet_id)
            answers.append(identifier)
            self.left -= STEP
            at = end
        self._core.stats.publish_received += len(answers)
        self._answer(client, _acknowledge(PUBREC, b"".join(answers)), len(answers))
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

    def _take_pubrels(self, client: Client, session: Session, data: bytes, at: int) -> int:
        """PUBREL: what was held is routed."""
        router, size, answers = self._core.router, len(data), []
        while at + 4 <= size and data[at] == PUBREL and data[at + 1] == 2 and self.left > 0:
            packet_id = data[at + 2] << 8 | data[at + 3]
            message = session.inflight.singles.get(packet_id)
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
        self._answer(client, _acknowledge(PUBCOMP, b"".join(answers)), len(answers))
        return at

    def _take_acknowledgements(
        self, client: Client, session: Session, data: bytes, at: int, first: int
    ) -> int:
        """PUBACK, PUBREC or PUBCOMP of success, for what waits for it.

        For a PUBACK of what the readable lane has sent 2.5 us become 1 (CPython 3.11, 2 cores).
        """
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
            self._answer(client, _acknowledge(PUBREL, b"".join(answers)), len(answers))
        elif at > begin:
            self._core.stats.messages_received += (at - begin) // 4
            client.resume_feed()
        return at

    def _answer(self, client: Client, answers: bytes, count: int) -> None:
        """The answers to what was received leave, one each."""
        if not count:
            return
        self._core.stats.messages_received += count
        if client.phase is Phase.CONNECTED:
            client.put_control(answers, count)
        client.resume_feed()


def _head(data: bytes, at: int, five: bool) -> tuple[int, int, int]:
    """Where body, what follows the identifier, and end of the PUBLISH there are; an end of 0: not ours."""
    start, end = bounds(data, at)
    block_at = start + 4 + (data[start] << 8 | data[start + 1])
    if not end or end > len(data) or block_at + five > end or (five and data[block_at]):
        return 0, 0, 0
    return start, block_at, end


def _alike(
    data: bytes, at: int, size: int, place: int, five: bool
) -> tuple[list[bytes], list[bytes], bytes]:
    """Packets of *size* bytes that are alike but for identifier, at *place*, and payload; none if one is not.

    Up to the identifier, behind it, and the identifiers.
    """
    number = min(count_equal(data, at, size, data[at : at + place]), LONGEST)
    stop = at + number * size
    if number < 2 or (five and data[at + place + 2 : stop : size].count(0) != number):
        return [], [], b""
    identifiers = bytearray(2 * number)
    identifiers[::2] = data[at + place : stop : size]
    identifiers[1::2] = data[at + place + 1 : stop : size]
    tails = endings(place + 2, size, number)(data, at)
    return [data[at : at + place]] * number, [*tails], bytes(identifiers)


@lru_cache(64)  # of up to 8 KiB
def _identifiers(count: int) -> Callable[[bytes, int], tuple[int, ...]]:
    """A function of bytes and a place: the Packet Identifiers of *count* acknowledgements there."""
    return Struct("!" + "2xH" * count).unpack_from


def _acknowledge(first: int, identifiers: bytes) -> bytes:
    """Packets with this *first* byte for *identifiers*, which stand back to back."""
    if len(identifiers) == 2:
        return bytes((first, 2)) + identifiers
    out = bytearray(bytes((first, 2, 0, 0)) * (len(identifiers) // 2))
    out[2::4], out[3::4] = identifiers[::2], identifiers[1::2]
    return bytes(out)


def _turn(first: int, acknowledgements: bytes) -> bytes:
    """The same *acknowledgements*, but with this *first* byte."""
    out = bytearray(acknowledgements)
    out[::4] = bytes((first,)) * (len(out) // 4)
    return bytes(out)
