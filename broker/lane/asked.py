"""What hooks say before the fast lane takes something: who may publish where, and what of each message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from broker.client import Client
from broker.core import Core
from broker.errors import MqttError
from broker.lane.alike import Alike
from broker.lane.known import Known
from broker.packet.enums import Version
from broker.packet.message import Message, bounds
from broker.packet.packets import NO_PROPERTIES, Publish
from broker.packet.wire import TopicNames

PUBLISH_0: Final = 0x30  # first bytes
PUBLISH_1: Final = 0x32
ASKING: Final = 0.002  # seconds for hooks that are asked about the messages of one read


class Allowed:
    """Where the client that is served may publish, as far as hooks were asked. One for all clients.

    A hook may do whatever it likes while it is asked. So a run stops at a topic that nobody was asked about;
    when all that it collected is handed over the hooks are asked, and a new run begins.
    """

    __slots__ = ("_core", "_known", "_names", "_verdicts", "check_topic", "topics", "unasked")

    def __init__(
        self, core: Core, known: Known, names: TopicNames, check_topic: Callable[[Core, str], None]
    ) -> None:
        """See Lane."""
        self._core = core
        self._known = known
        self._names = names
        self.check_topic = check_topic
        self._verdicts = core.hooks.verdicts
        self.topics: set[bytes] | None = None  # as raw bytes with their length; None: everywhere
        self.unasked = b""  # the one at which a run has stopped

    def begin(self, client: Client) -> None:
        """A read of *client* begins."""
        if self._verdicts is not None:
            self.topics, self.unasked = self._verdicts.of(client.info), b""

    def ask(self, client: Client) -> bool:
        """Ask about the topic at which a run has stopped; whether another one may begin with it.

        If not, all else is the readable lane's, which asks once more.
        """
        topic, verdicts = self.unasked, self._verdicts
        assert verdicts is not None
        try:
            topic_name = self._names[topic[2:]]
            self.check_topic(self._core, topic_name or "$")
            verdicts.check(client.info, topic_name)
        except MqttError:
            return False
        self.begin(client)
        if not self._known.fresh:  # a hook has subscribed
            self._known.forget()
        return not client.is_ending and topic in verdicts.of(client.info)


class Untold:
    """What was taken of a read, and hooks that hear of runs (`on_taken_run`) have not heard of yet."""

    __slots__ = ("_at", "_before", "_hooks", "_stats", "open")

    def __init__(self, core: Core) -> None:
        self._hooks = core.hooks
        self._stats = core.stats
        self._at = 0  # in the read
        self._before = 0  # so many PUBLISH packets had been received then
        self.open = core.hooks.hears_runs

    def begin(self, at: int) -> None:
        """All before *at* is told, or is nobody's business."""
        self._at, self._before = at, self._stats.publish_received

    def tell(self, client: Client, data: bytes, at: int) -> None:
        """The packets of *data* up to *at* were taken."""
        if not self.open:
            return
        count, packets = self._stats.publish_received - self._before, data[self._at : at]
        self.begin(at)
        if count:
            client.info.publish_received += count
            self._hooks.on_taken_run(client.info, packets, count)


class Judged:
    """PUBLISH while hooks look at each message: what they let pass as it is, at once, is taken like others.

    They are asked about the messages of a read one after the other, by the same call as in the readable lane.
    The first that is refused, changed or has to wait is left to that lane, with what was said of it. What was
    let pass is taken then, together. To a hook it looks as if it had been taken before the next one was asked
    about: what it does to the broker, or asks of it, comes behind (`settle`, which the Broker calls).
    50 topics, a hook that allows and one that logs, coroutines both: 6.7 us a message of QoS 0 and 13 of
    QoS 1 packet by packet, 4.3 and 7.0 so (CPython 3.11, 2 cores).
    """

    __slots__ = (
        "_alike", "_allowed", "_begin", "_client", "_core", "_data", "_disturbed", "_handle", "_hooks",
        "_known", "_left", "_messages", "_names", "_take", "_unasked", "_until", "_untold", "_upto", "now",
        "open",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        names: TopicNames,
        known: Known,
        allowed: Allowed,
        alike: Alike,
        untold: Untold,
        take: Callable[[Client, bytes, bool, int, bool], int],
        handle: Callable[[Core, Client, Publish], object],
    ) -> None:
        """*take* is Lane._take, *handle* the readable lane's handler of PUBLISH."""
        self._core = core
        self._hooks = core.hooks
        self._names = names
        self._known = known
        self._allowed = allowed
        self._alike = alike
        self._untold = untold
        self._take = take
        self._handle = handle
        self._client: Client | None = None  # while its messages are asked about
        self._data = b""
        self._begin = self._upto = 0  # in it: what was let pass, and not taken
        self._messages: list[Message] = []  # the same
        self._until = 0.0
        self._disturbed = False  # a hook has done more than to look at a message
        self._left = False  # the next packet is the readable lane's
        self._unasked = b""  # see Allowed
        self.now: Callable[[], float] = monotonic
        # Whoever has the last word, or holds what is let pass, is asked by the handler.
        self.open = core.hooks.inspects_publish and not (core.hooks.accepts or core.hooks.holds)

    @property
    def asks(self) -> bool:
        """A hook is at work."""
        return self._client is not None

    def take(self, client: Client, data: bytes) -> int:
        """Where the packets end that were served, PUBLISH and others."""
        at, end, allowed = 0, len(data), self._allowed
        self._until = self.now() + ASKING
        while at < end:
            begin = at
            if data[at] & 0xF0 != PUBLISH_0:
                at = self._take(client, data, False, at, True)
                self._left = at == begin
            else:
                at = self._take_publishes(client, data, at)
                if self._unasked:
                    allowed.unasked = self._unasked
                    self._left = not allowed.ask(client)
            if self._left:
                break
        return at

    def _take_publishes(self, client: Client, data: bytes, at: int) -> int:
        """Ask about the PUBLISH packets from *at* on, and take what may be; where that ends.

        A coroutine may need a task (asyncio.timeout, say): without the client's own such hooks are not asked.
        """
        hooks = self._hooks
        in_place = hooks.in_place or client.task is None or client.task is not asyncio.current_task()
        self._left, self._unasked = (in_place and hooks.need_task) or bool(client.extra.judged), b""
        if self._left:
            return at
        before, hooks.in_place = hooks.in_place, in_place
        self._client, self._data, self._begin, self._upto = client, data, at, at
        self._allowed.begin(client)
        try:
            self._ask(client, data, at)
            self._serve(client)
        finally:
            hooks.in_place = before
            self._client, self._data = None, b""
            self._messages.clear()
        return self._begin

    def _ask(self, client: Client, data: bytes, at: int) -> None:
        """Ask about one packet after the other, as long as they are let pass.

        A hot path: the header is read in place, as in Lane. PacketReader is the plain version.
        """
        size, five, inspect = len(data), client.version is Version.MQTT_5, self._hooks.inspect_publish
        info, client_id, now, until = client.info, client.client_id, self.now, self._until
        second, topic_name, last_topic, allowed = self._second(client), "", b"", self._allowed.topics
        self._left, self._disturbed = True, False
        while at + 4 < size:
            first, length, start = data[at], data[at + 1], at + 2
            if first != PUBLISH_0 and first != second:
                break
            if length > 0x7F:
                if not 0 < data[at + 2] < 0x80:
                    return
                length, start = length & 0x7F | data[at + 2] << 7, at + 3
            end = start + length
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            qos = first >> 1 & 1
            payload_at = topic_end + 2 * qos + five
            if end > size or payload_at > end or (five and data[payload_at - 1]):
                return
            topic = data[start:topic_end]
            if topic != last_topic:
                if not self._is_ours(topic, five, qos):
                    return
                last_topic, topic_name = topic, self._names[topic[2:]]
            if allowed is not None and topic not in allowed:
                self._unasked = topic
                return
            if now() > until or (qos and data[topic_end : topic_end + 2] == b"\0\0"):
                return
            message = Message(topic_name, data[payload_at:end], qos, False, NO_PROPERTIES, client_id)
            try:
                found = inspect(info, message)
            except MqttError as refusal:
                self._leave(client, message, refusal)
                return
            if found is not message or message.mark is not None:
                self._leave(client, message, found)
                return
            self._messages.append(message)
            at = self._upto = end
            if self._disturbed:
                self._disturbed = False
                if client.is_ending:
                    return
        self._left = at < size and data[at] & 0xF0 == PUBLISH_0

    def _second(self, client: Client) -> int:
        """What else is asked about besides PUBLISH of QoS 0: its first byte; 0: nothing."""
        core, session = self._core, client.session
        shut = core.config.limits.maximum_qos == 0 or core.journal.failure is not None
        return 0 if shut or session is None or session.inflight.holds else PUBLISH_1

    def _is_ours(self, topic: bytes, five: bool, qos: int) -> bool:
        """Whether messages to *topic*, length included, may be taken, as far as is known."""
        found: dict[bytes, Any] = (self._known.qos_1 if qos else self._known.qos_0)[five]
        if topic in found:
            return found[topic] is not None
        try:
            self._allowed.check_topic(self._core, self._names[topic[2:]] or "$")
        except MqttError:
            return False
        return True

    def _leave(self, client: Client, message: Message, found: Any) -> None:
        """The readable lane goes on with *message*, of which hooks have said *found*."""
        self._serve(client)
        extra = client.own()
        if extra.judged is None:
            extra.judged = deque()
        extra.judged.append((message, found))

    def settle(self) -> None:
        """Take what was let pass: a hook looks at what the broker did, or does something to it."""
        client, self._disturbed = self._client, True
        if client is None:
            return
        self._serve(client)
        self._untold.tell(client, self._data, self._begin)
        judged = client.extra.judged
        while judged and not client.is_ending:
            message: Message = judged[0][0]
            packet = Publish(message.topic_name, message.payload, message.qos)
            start, end = bounds(self._data, self._begin)
            if message.qos:
                at = start + 2 + int.from_bytes(self._data[start : start + 2], "big")
                packet.packet_id = int.from_bytes(self._data[at : at + 2], "big")
            self._begin = end
            self._core.stats.messages_received += 1
            try:
                self._handle(self._core, client, packet)
            except MqttError as error:
                client.fail(error)
        self._untold.begin(self._begin)

    def _serve(self, client: Client) -> None:
        """Take what was let pass. What cannot be taken, for want of room say, is left, and is in `judged`."""
        data, messages = self._data, self._messages
        if not messages:
            return
        if self._begin or self._upto < len(data):
            data = data[self._begin : self._upto]
        self._messages = []
        if not self._known.fresh:
            self._known.forget()
        took, count = self._alike.take(client, data), len(messages)
        if took < len(data):
            took = self._take(client, data, False, took, False)
        self._begin += took
        if took < len(data):
            count = at = 0
            while at < took:
                count, at = count + 1, bounds(data, at)[1]
            client.own().judged = deque((message, message) for message in messages[count:])
        if not self._untold.open:  # else it counts them
            client.info.publish_received += count
