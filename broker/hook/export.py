"""MessageLog: every message that was accepted, and what became of it, as files that others read.

What stands in them is in docs/message-log.md. This module hears what happens, in the event loop, and makes
records of it: tuples, put into a queue. Two threads make lines of them (log/recorder.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from errno import EDQUOT, ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

from broker.config import MessageLog as Settings
from broker.errors import ConfigError, ImplementationSpecificError, MqttError, QuotaExceeded, ReasonCode
from broker.hook.base import BrokerApi, ClientInfo, Hold, HookBase, Origin, SessionState
from broker.hook.log.line import NOBODY, MessageRecord, Publisher, format_event, format_message
from broker.hook.log.names import KINDS
from broker.hook.log.recorder import Recorder, RecorderTerms
from broker.hook.log.recover import Recovered, lock, prepare, recover, take_epoch
from broker.hook.log.retention import Retention, sweep
from broker.hook.log.runs import Runs
from broker.hook.log.segment import Disk
from broker.packet.enums import Version
from broker.packet.message import Message
from broker.packet.packets import SubscribeRequest
from broker.topic.match import match
from broker.topic.name import check_topic_filter

log = logging.getLogger("broker.log")

OVERHEAD = 300  # bytes that a record takes besides topic and payload, about
STOP = 8.0  # seconds that a stop waits for the disk
SWEEP = 60.0  # seconds between two looks at retention
REMEMBERED = 10_000  # topics of which it is remembered whether they are logged
SINCE = "message_log"  # where the attributes of a client have its Connection
ENDED_BY = {
    ReasonCode.SESSION_TAKEN_OVER: "takeover",
    ReasonCode.KEEP_ALIVE_TIMEOUT: "keepalive",
    ReasonCode.SERVER_SHUTTING_DOWN: "shutdown",
}
WANTED: dict[Origin, str] = {"will": "wills", "program": "program", "sys": "sys"}

Fields = tuple[tuple[str, "str | int | None"], ...]
Redact = Callable[[MessageRecord], "MessageRecord | None"]


class Connection(Publisher):
    """One connection of a client."""

    __slots__ = ("since",)

    def __init__(self, client: ClientInfo, number: int, since: int) -> None:
        super().__init__(client.client_id, number, int(client.version), client.user_name)
        self.since = since  # microseconds since 1970


class Group:
    """Messages whose acknowledgements wait for the same sync."""

    __slots__ = ("future", "hold", "last")

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.hold = Hold(acknowledgement=self.future)
        self.last = 0  # every record before this offset must be on the disk


class MessageLog(HookBase):
    """Writes the log below *path*, with `fsync="ack"` and so on as in the section `message_log` of a file.

    *redact* gets each MessageRecord before it is written and gives the one to write, or None; it runs in the
    event loop. *wall* is the time of day in seconds. One object serves one broker.
    """

    id = "message_log"

    def __init__(
        self,
        path: str | os.PathLike[str] | Settings,
        *,
        redact: Redact | None = None,
        wall: Callable[[], float] = time.time,
        disk: type[Disk] = Disk,
        **settings: Any,
    ) -> None:
        if not isinstance(path, Settings):
            path = Settings(path=os.fspath(path), **settings)
        self.settings = path
        self._redact, self._wall, self._disk = redact, wall, disk
        self._root = Path(path.path)
        self._everything = path.topics == ("#",) and not path.topics_out
        self._known: dict[str, bool] = {}
        for topic_filter in (*path.topics, *path.topics_out):
            _check_filter(topic_filter)
        self._most = path.max_payload
        self._now: Callable[[], int] = _microseconds if wall is time.time else self._given_time
        self._wants = {origin: word in path.also for origin, word in WANTED.items()} | {"client": True}
        self._ack = self.holds = path.fsync == "ack"
        # Nothing has to be known of a message before its line is made: the fast lane may stay open.
        plain = self._everything and redact is None and path.overflow == "drop"
        self._runs = plain and path.deliveries in ("none", "dropped")
        self._begin()

    def _begin(self) -> None:
        self.epoch = 0  # 0: not open yet
        self.failure: OSError | None = None  # why messages cannot be written
        self._lock: int | None = None
        self._connections = 0  # that there were in this epoch
        self._live: dict[str, Connection] = {}  # by ClientID
        self._last: tuple[ClientInfo | None, Publisher] = (None, NOBODY)  # who published last
        self._groups: deque[Group] = deque()  # the last one may grow
        self._growing = False
        self._room: asyncio.Future[None] | None = None  # done when the queue has room again
        self._swept_at = 0.0

    @property
    def provides(self) -> frozenset[str]:
        """What is not asked for costs nothing."""
        events = super().provides
        deliveries = self.settings.deliveries
        unwanted = {"on_delivered": ("all",), "on_acknowledged": ("acked", "all")}
        unwanted["on_dropped"] = ("dropped", "acked", "all")
        events -= {event for event, words in unwanted.items() if deliveries not in words}
        return events if self._runs else events - {"on_taken_run"}

    # ---- life

    async def init(self, broker: BrokerApi) -> None:
        """Recover what a crash left, and begin an epoch. Raises ConfigError."""
        self._begin()
        try:
            recovered, self.epoch = await asyncio.to_thread(self._open)
        except OSError as error:
            where = error.filename or self._root
            raise ConfigError(f"message_log.path: {where}: {error.strerror or error}") from error
        loop = asyncio.get_running_loop()
        self._messages = Recorder(self._terms(loop, "messages", format_message))
        self._events = Recorder(self._terms(loop, "events", format_event))
        for recorder in (self._messages, self._events):
            recorder.start()
        for each in recovered:
            text = f"{each.kind} {each.name.name}: {each.records} records, {each.torn} bytes torn"
            self._note("log", NOBODY, (("st", "recovered"), ("why", text)))
        self._note("log", NOBODY, (("st", "opened"),))

    def _open(self) -> tuple[list[Recovered], int]:
        """What was left, and the new epoch. In a thread of its own: all of this may wait for the disk."""
        node, now = self.settings.node, self._wall()
        self._lock = lock(self._root, node)
        try:
            prepare(self._root, node)
            recovered = recover(self._root, node, self.settings.compress)
            epoch = take_epoch(self._root, node, now)
            self._sweep()
        except BaseException:
            self._unlock()
            raise
        return recovered, epoch

    def _terms(
        self, loop: asyncio.AbstractEventLoop, kind: str, form: Callable[[int, tuple[Any, ...]], bytes]
    ) -> RecorderTerms:
        settings = self.settings
        post = partial(_post, loop)
        return RecorderTerms(
            root=self._root,
            kind=kind,
            node=settings.node,
            epoch=self.epoch,
            format=form,
            format_run=Runs(settings.max_payload).lines if self._runs else None,
            fsync=settings.fsync if kind == "messages" or not self._ack else "interval",
            fsync_interval=settings.fsync_interval,
            gz=settings.compress,
            segment_bytes=settings.segment_bytes,
            segment_seconds=settings.segment_seconds,
            maximum_records=settings.maximum_records,
            maximum_bytes=settings.maximum_bytes,
            disk=self._disk,
            synced=partial(post, self._synced) if kind == "messages" and self._ack else lambda offset: None,
            room=partial(post, self._has_room),
            state=partial(post, self._state, kind),
            closed=(lambda path: self._sweep_sometimes()) if kind == "messages" else lambda path: None,
        )

    async def stop(self) -> None:
        """Write what waits, as long as that takes STOP seconds at most, and let others have the folder.

        A thread that hangs in the disk may write yet: then nobody else may have it, while this process lives.
        """
        if self._lock is None:
            return
        for recorder in (self._messages, self._events):
            recorder.stop(self._now())
        done = [await asyncio.to_thread(r.join, STOP / 2) for r in (self._messages, self._events)]
        if not all(done):
            log.error("message log %s: the disk takes nothing: what waits is lost", self._root)
            self.failure = self.failure or OSError("the disk does not answer")
        self._synced(self._messages.synced)
        self._fail_groups(ImplementationSpecificError("the message log is closed"))
        if all(done):
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- messages

    def on_taken(self, client: ClientInfo | None, message: Message, dup: bool, origin: Origin) -> Hold | None:
        """Put it into the queue. Raises QuotaExceeded for one that must be on the disk and cannot be."""
        topic_name = message.topic_name
        if not self._wants[origin] or not (self._everything or self._is_logged(topic_name)):
            return None
        at, recorder, qos = self._now(), self._messages, message.qos
        payload, cut, properties = message.payload, None, message.properties or None
        if self._most and len(payload) > self._most:
            payload, cut = payload[: self._most], len(payload)
        last, publisher = self._last
        if client is not last:
            publisher = NOBODY if client is None else self._connection(client)
            self._last = client, publisher
        flags = qos << 2 | message.retain << 1 | dup
        weight = OVERHEAD + (len(payload) + len(topic_name) if properties is None else message.size)
        record: tuple[Any, ...] | None
        record = (at, topic_name, flags, publisher, payload, cut, properties, None, weight)
        if self._redact is not None and (record := self._redacted(MessageRecord(*record))) is None:
            return None
        must, reading = self._ack and qos > 0, None
        if recorder.full or (must and self.failure is not None):
            drop = self.settings.overflow == "drop"
            if must and (drop or self.failure is not None):
                raise self._refusal()
            if drop:
                recorder.drop()
                return None
            reading = self._wait_for_room()
        offset = recorder.put(record)
        message.mark = (offset, at)
        if must:
            hold = self._hold(offset + 1)
            return hold if reading is None else Hold(hold.acknowledgement, reading)
        return None if reading is None else Hold(reading=reading)

    def on_taken_run(self, client: ClientInfo, packets: bytes, count: int) -> None:
        """What the fast lane took of one read. Its messages get no mark."""
        recorder = self._messages
        if recorder.full:
            recorder.drop(count)
            return
        connection = self._connection(client)
        weight = OVERHEAD + len(packets)
        five = connection.version == Version.MQTT_5
        recorder.put((self._now(), count, five, connection, packets, None, None, None, weight), count)

    def _redacted(self, record: MessageRecord) -> tuple[Any, ...] | None:
        """What is to be written in its place. If no line can be made of that, the message is refused."""
        assert self._redact is not None
        found = self._redact(record)
        if found is not None:
            format_message(0, found)  # here, where it ends one message, and not in the thread
        return found

    def _is_logged(self, topic_name: str) -> bool:
        known = self._known.get(topic_name)
        if known is None:
            settings = self.settings
            wanted = settings.topics == ("#",) or any(match(each, topic_name) for each in settings.topics)
            known = wanted and not any(match(each, topic_name) for each in settings.topics_out)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[topic_name] = known
        return known

    def _connection(self, client: ClientInfo) -> Connection:
        found = client.attributes.get(SINCE)
        return found if isinstance(found, Connection) else self._new_connection(client)

    def _new_connection(self, client: ClientInfo) -> Connection:
        self._connections += 1
        self._last = None, NOBODY
        made = client.attributes[SINCE] = Connection(client, self._connections, self._now())
        return made

    # ---- acknowledgements that wait for the disk

    def _hold(self, offset: int) -> Hold:
        if not self._growing:
            self._groups.append(Group())
            self._growing = True
        group = self._groups[-1]
        group.last = offset
        self._messages.want(offset)
        return group.hold

    def still_held(self) -> asyncio.Future[None] | None:
        """Done when the disk has all that was put so far; failed while it takes nothing."""
        if not self._ack or not self.epoch or (recorder := self._messages).synced >= recorder.next:
            return None
        hold = self._hold(recorder.next)
        if self.failure is not None:
            self._fail_groups(self._refusal())
        return hold.acknowledgement

    def _synced(self, offset: int) -> None:
        """Every record before *offset* is on the disk. Who comes now waits for the next sync."""
        self._growing = False
        while self._groups and self._groups[0].last <= offset:
            self._groups.popleft().future.set_result(None)

    def _fail_groups(self, error: MqttError) -> None:
        self._growing = False
        while self._groups:
            future = self._groups.popleft().future
            future.set_exception(error)
            future.exception()  # else it is complained of where nobody waits

    def _refusal(self) -> MqttError:
        """What a message is refused with that must be on the disk before it is acknowledged."""
        failure = self.failure
        if failure is None or failure.errno in (ENOSPC, EDQUOT):
            return QuotaExceeded("the message log takes no more", reason_string="the message log is full")
        text = "the message log cannot be written"
        return ImplementationSpecificError(f"{text}: {failure}", reason_string=text)

    # ---- a queue that is full, a disk that takes nothing

    def _wait_for_room(self) -> asyncio.Future[None]:
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
            self._messages.crowded = True
        return self._room

    def _has_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _state(self, kind: str, failure: OSError | None) -> None:
        if kind == "messages":
            self.failure = failure
            if failure is not None:
                self._fail_groups(self._refusal())
        state = "resumed" if failure is None else "degraded"
        why = f"{kind}: {failure}" if failure else kind
        self._note("log", NOBODY, (("st", state), ("why", why)))

    # ---- retention

    def _sweep_sometimes(self) -> None:
        if abs(self._wall() - self._swept_at) >= SWEEP:
            self._sweep()

    def _sweep(self) -> None:
        settings = self.settings
        terms = Retention(settings.retention_seconds, settings.retention_bytes, settings.retention_hard)
        self._swept_at = self._wall()
        try:
            removed = sweep(self._root, settings.node, terms, self._swept_at)
        except OSError as error:
            log.error("message log %s: old segments cannot be removed: %s", self._root, error)
        else:
            if removed:
                log.info("message log %s: %d old segments removed", self._root, len(removed))

    # ---- events

    def _given_time(self) -> int:
        return int(self._wall() * 1_000_000)

    def _note(self, event: str, publisher: Publisher, fields: Fields) -> None:
        if self._events.full:
            self._events.drop()
        else:
            self._events.put((self._now(), event, publisher, fields, OVERHEAD))

    def _of(self, client_id: str) -> Publisher:
        return self._live.get(client_id) or Publisher(client_id)

    def on_connack(self, client: ClientInfo, reason: int, session_present: bool) -> None:
        connection = self._new_connection(client)
        if reason == ReasonCode.SUCCESS:
            self._live[client.client_id] = connection
        fields: Fields = (
            ("a", client.address),
            ("l", client.listener or client.transport),
            ("ka", client.keep_alive),
            ("sei", client.session_expiry_interval),
            ("cs", client.clean_start),
            ("sp", session_present),
            ("rc", int(reason)),
        )
        self._note("connect", connection, fields)

    def on_disconnect(self, client: ClientInfo, reason: int, text: str) -> None:  # type: ignore[override]
        connection = self._connection(client)
        self._last = None, NOBODY
        if self._live.get(client.client_id) is connection:
            del self._live[client.client_id]
        by = client.ended_by
        if by == "server":
            by = ENDED_BY.get(ReasonCode(reason), by)
        fields: Fields = (
            ("rc", int(reason)),
            ("by", by),
            ("dur", max(0, self._now() - connection.since) // 1000),
            ("in", client.publish_received),
            ("out", None if self._runs else client.publish_sent),  # the fast lane does not count them
            ("bin", client.bytes_received),
            ("bout", client.bytes_sent),
        )
        self._note("disconnect", connection, fields)

    def on_session(self, client_id: str, state: SessionState, waiting: int) -> None:
        self._note("session", self._of(client_id), (("st", state), ("pend", waiting)))

    def on_subscribed(
        self, client: ClientInfo, request: SubscribeRequest, reason: int, identifier: int
    ) -> None:
        fields: Fields = (
            ("f", request.topic_filter),
            ("q", int(request.qos) if reason < 0x80 else None),
            ("rc", int(reason)),
            ("nl", request.no_local),
            ("rap", request.retain_as_published),
            ("rh", int(request.retain_handling)),
            ("sid", identifier or None),
        )
        self._note("subscribe", self._connection(client), fields)

    def on_unsubscribed(self, client: ClientInfo, topic_filter: str, reason: int) -> None:
        self._note("unsubscribe", self._connection(client), (("f", topic_filter), ("rc", int(reason))))

    def on_delivered(self, client_id: str, message: Message, qos: int) -> None:
        self._follow("delivered", client_id, message, qos)

    def on_acknowledged(self, client_id: str, message: Message, qos: int, reason: int) -> None:
        self._follow("acked", client_id, message, qos)

    def _follow(self, event: str, client_id: str, message: Message, qos: int) -> None:
        mark = message.mark
        if mark is not None and mark[0] % self.settings.sample == 0:
            latency = max(0, self._now() - mark[1])
            fields: Fields = (("mo", mark[0]), ("q", int(qos)), ("lat", latency))
            self._note(event, self._of(client_id), fields)

    def on_dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        mark = None if message is None else message.mark
        qos = None if message is None else int(message.qos)
        sampled = self.settings.deliveries != "dropped"
        if mark is None:
            self._note("dropped", self._of(client_id), (("q", qos), ("why", reason)))
        elif not sampled or mark[0] % self.settings.sample == 0:
            late = max(0, self._now() - mark[1])
            fields: Fields = (("mo", mark[0]), ("q", qos), ("lat", late), ("why", reason))
            self._note("dropped", self._of(client_id), fields)

    # ---- metrics

    @property
    def synced(self) -> tuple[int, int]:
        """(epoch, offset) of the last message that is on the disk; offset -1: none of this epoch."""
        return self.epoch, self._messages.synced - 1

    def sys_values(self) -> Mapping[str, int | str]:
        """What `$SYS/broker/log/...` says."""
        failed = self.failure or self._events.failure
        values: dict[str, int | str] = {"log/state": "degraded" if failed else "ok", "log/epoch": self.epoch}
        for kind, recorder in zip(KINDS, (self._messages, self._events), strict=True):
            values |= {f"log/{kind}/{name}": value for name, value in recorder.figures().items()}
        return values


def _microseconds() -> int:
    return time.time_ns() // 1000


def _check_filter(topic_filter: str) -> None:
    try:
        check_topic_filter(topic_filter)
    except MqttError as error:
        raise ConfigError(f"message_log.topics: {topic_filter!r}: {error}") from None


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    """Have the event loop make a call; one that is closed needs to know nothing any more."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        log.debug("the event loop is closed already")
