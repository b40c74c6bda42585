"""Two brokers that get the same conversation, byte for byte but for Packet Identifiers that the broker chose.

The one has the fast lane, the other has not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from broker import (
    Broker,
    Capacity,
    ClientInfo,
    Config,
    HookBase,
    Limits,
    NotAuthorized,
    Protocol,
    QuotaExceeded,
)
from broker.client import no_lane
from broker.errors import AcknowledgeOnly
from broker.packet import packets as mqtt
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.message import Message, as_message
from broker.packet.reader import PacketReader
from broker.session.delivery import Delivery, QueuedRun
from broker.session.inflight import Inflight
from broker.transport.memory import MemoryListener
from tests.peer import Clock, memory_broker

TOPICS = ("a", "a/b", "c", "d/e/f", "new/0", "new/1", "$no", "bad/+", "", "é/ü")
FILTERS = ("a", "a/b", "#", "+/b", "c", "d/#", "new/+", "$share/g/a", "é/ü")
SIZES = (0, 1, 3, 3, 3, 50, 125, 126, 127, 130, 5_000, 17_000)
PROPERTIES: tuple[dict[str, Any], ...] = (
    *({},) * 10,
    *({"content_type": "x"}, {"message_expiry_interval": 60}, {"message_expiry_interval": 0}),
    {"message_expiry_interval": 60, "content_type": "x", "user_property": [("k", "v"), ("k", "v")]},
    *({"topic_alias": 3}, {"topic_alias": 3, "content_type": "x"}, {"payload_format_indicator": 1}),
    {"correlation_data": b"c" * 130},
    {"user_property": [("a", "b")] * 70},
)
TURNS = 25  # of the loop, in which something happens until everything is quiet


class One:
    """A client of one of the two brokers."""

    def __init__(self, broker: Broker, name: str, version: Version) -> None:
        listener = broker.listeners[0]
        assert isinstance(listener, MemoryListener)
        self.version = version
        self.connection = listener.connect()
        self.reader = PacketReader(from_client=False)
        self.reader.version = version
        self.received: list[Any] = []
        self.unacknowledged: list[mqtt.Publish] = []
        self.unreleased: list[int] = []  # PUBRECs that came: identifiers of its own
        self.uncompleted: list[int] = []  # PUBRELs that came: identifiers of the broker
        self.ended = ""
        self.task = asyncio.create_task(self._read(), name=name)

    async def _read(self) -> None:
        try:
            while data := await self.connection.read():
                self.received += self.reader.feed(data)
            self.ended = "end"
        except ConnectionError:
            self.ended = "reset"

    def take(self) -> dict[str, list[str]]:
        """What came since the last look, by kind: the kinds have no order among each other."""
        seen: dict[str, list[str]] = {"": [self.ended]}
        for packet in self.received:
            kind = type(packet).__name__
            if isinstance(packet, mqtt.Publish) and packet.qos:
                self.unacknowledged.append(packet)
                packet = replace(packet)
                packet.packet_id = 1
            elif isinstance(packet, mqtt.Pubrec):
                self.unreleased += [packet.packet_id] * (packet.reason_code < 0x80)
            elif isinstance(packet, mqtt.Pubrel):
                self.uncompleted.append(packet.packet_id)
                packet = mqtt.Pubrel(1, packet.reason_code)
            seen.setdefault(kind, []).append(repr(packet))
        self.received.clear()
        return seen


class Rules(HookBase):
    """Everybody may publish but to what is *refused*; one of one letter with Quota exceeded."""

    def __init__(self, refused: tuple[str, ...]) -> None:
        self.refused = refused

    def may_publish(self, client: ClientInfo, topic_name: str) -> bool:
        if topic_name in self.refused and len(topic_name) == 1:
            raise QuotaExceeded(topic_name)
        return topic_name not in self.refused


class Judge(HookBase):
    """Looks at each message and writes it down; what it does then depends on the first byte of the payload.

    *kinds* has what it does, by that byte; nothing for other messages: it lets them pass.
    """

    def __init__(self, kinds: dict[int, str]) -> None:
        self.kinds = kinds
        self.asked: list[tuple[str, bytes, int]] = []
        self.seen: list[Any] = []
        self.broker: Any = None

    async def init(self, broker: Any) -> None:
        self.broker = broker

    def look(self, message: Message) -> str:
        self.asked.append((message.topic_name, message.payload[:1], message.qos))
        kind = self.kinds.get(message.payload[0], "") if message.payload else ""
        if kind == "refuse":
            raise NotAuthorized(message.topic_name)
        if kind == "quota":
            raise QuotaExceeded(message.topic_name)
        if kind == "silence":
            raise AcknowledgeOnly
        if kind == "fail":
            raise ZeroDivisionError
        if kind == "count":
            self.seen.append(self.broker.stats.publish_sent)  # of those before it
        return kind

    def change(self, message: Message) -> Message:
        kind = self.kinds.get(message.payload[0], "") if message.payload else ""
        if kind == "change":
            return message.with_(payload=b"changed", topic_name="c")
        if kind == "qos":
            return message.with_(qos=0)
        if kind == "properties":
            message.properties = {"content_type": "new"}
        if kind == "in place":
            message.payload = b"in place"
        return message


class Plain(Judge):
    """By plain methods."""

    def on_publish(self, client: ClientInfo, message: Message) -> None:  # type: ignore[override]
        if self.look(message) == "mark":
            message.mark = 1

    def on_publish_received(self, client: ClientInfo, message: Message) -> Message:  # type: ignore[override]
        return self.change(message)


class Coroutines(Judge):
    """By coroutines, some of which wait."""

    async def on_publish(self, client: ClientInfo, message: Message) -> None:
        kind = self.look(message)
        if kind == "wait":
            await asyncio.sleep(0)
        elif kind == "publish":
            await self.broker.publish("a/b", b"by a hook", qos=1)
        elif kind == "time out":
            async with asyncio.timeout(1):
                await asyncio.sleep(0)

    async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
        if self.kinds.get(message.payload[0] if message.payload else 999) == "wait long":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return message.with_(payload=b"waited")
        return self.change(message)


class Logged(Coroutines):
    """The same, and it hears of what was taken, in runs or not."""

    holds = False

    def on_taken(self, client: ClientInfo | None, message: Message, dup: bool, origin: Any) -> None:
        self.seen.append(message.topic_name)

    def on_taken_run(self, client: ClientInfo, packets: bytes, count: int) -> None:
        reader = PacketReader(from_client=True)
        reader.version = client.version
        names = [packet.topic_name for packet in reader.feed(packets) if isinstance(packet, mqtt.Publish)]
        assert len(names) == count
        self.seen += names


class Side:
    """One broker and its clients, by number."""

    judge: Judge | None = None

    def __init__(
        self,
        fast_lane: bool,
        limits: dict[str, Any],
        overlap: str,
        capacity: dict[str, int],
        refused: tuple[str, ...] | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.clock = Clock()
        self.judge = judge
        self.rules = Rules(refused or ())
        self.drops: Counter[tuple[str, str]] = Counter()
        config = Config(
            capacity=Capacity(sweep_interval=0, fast_lane=fast_lane, sys_interval=0, **capacity),  # type: ignore[arg-type]
            limits=Limits(**limits),
            protocol=Protocol(takeover="any", overlap=overlap),  # type: ignore[arg-type]
        )
        hooks: list[HookBase] = [] if refused is None else [self.rules]
        hooks += [] if judge is None else [judge]
        self.broker = memory_broker(config, clock=self.clock, hooks=hooks)
        assert (self.broker._connections._terms.lane is not no_lane) is fast_lane
        self.clients: dict[int, One] = {}
        self.cut_off = False  # somebody was

    async def connect(
        self, number: int, version: Version, clean: bool, window: int, careful: bool = False
    ) -> None:
        self.clients[number] = One(self.broker, f"{number}", version)
        properties: dict[str, Any] = {}
        if version is Version.MQTT_5:
            properties = {"session_expiry_interval": 1000, "receive_maximum": window}
        if careful:  # nothing is sent to it but by the readable lane
            properties["maximum_packet_size"] = 100_000
        self.send(number, encode(mqtt.Connect(f"c{number}", version, clean, properties=properties), version))

    def send(self, number: int, data: bytes) -> None:
        if number in self.clients and data:
            self.clients[number].connection.write(data)

    def image(self) -> dict[str, Any]:
        """Everything that must agree; but how much was read of one who was cut off, nobody cares."""
        stats, core = self.broker.stats, self.broker._core
        self.cut_off |= any(one.ended for one in self.clients.values())
        return {
            "received": {number: one.take() for number, one in self.clients.items()},
            "stats": {
                name: getattr(stats, name) for name in ("messages_sent", "publish_received", "publish_sent")
            },
            "sent": stats.bytes_sent,
            "read": None if self.cut_off else (stats.bytes_received, stats.messages_received),
            "dropped": dict(stats.dropped),
            "sessions": {s.client_id: self.of_session(s) for s in core.sessions},
            "asked": None if self.judge is None else (self.judge.asked, self.judge.seen),
            "retained": (core.retained.size, sorted(map(self.of_retained, self.retained()))),
        }

    def retained(self) -> Iterator[Message]:
        return map(as_message, chain.from_iterable(self.broker._core.retained.stretches("#", self.clock.now)))

    @staticmethod
    def of_retained(message: Message) -> tuple[Any, ...]:
        of_all = message.topic_name, message.payload, message.qos, message.client_id, message.size
        return (*of_all, repr(message.properties), repr(message.expires_at))

    def progress(self) -> tuple[int, ...]:
        """What changes as long as anything happens."""
        stats = self.broker.stats
        return stats.bytes_received, stats.messages_received, stats.bytes_sent, stats.messages_sent

    def gives_way(self) -> bool:
        """Whether somebody has read more than could be handled in one turn of the loop."""
        return self.broker.stats.busy > 0

    @staticmethod
    def of_session(session: Any) -> tuple[Any, ...]:
        inflight = session.inflight
        in_flight = len(inflight.entries) + sum(run.count for run in inflight.all_runs())
        queued = sum(of_queued(each, session.terms.overhead) for each in session.queue)
        flow = (session.waiting, queued, session.queued_qos_0, in_flight, inflight.used)
        return (session.connected, *flow, sorted(held_identifiers(inflight)))


def held_identifiers(inflight: Inflight) -> Iterator[int]:
    """Of QoS 2 messages that are held, without a look at `held`, which would tell runs apart."""
    yield from inflight._held
    run = inflight.held_run
    while run is not None:
        yield from (int.from_bytes(run.pubrels[at + 2 : at + 4], "big") for at in range(0, 4 * run.count, 4))
        run = run.next


def of_queued(queued: Delivery | QueuedRun, overhead: int) -> int:
    """Bytes of the budget that it takes."""
    return queued.cost if isinstance(queued, QueuedRun) else queued.message.size + overhead


JUNK = (
    *(b"\x32\x05\x00\x01a\x00\x00", b"\x30\x80\x00", b"\x30\x02\x00\x05", b"\x40\x02\x00\x00", b"\x36\x00"),
    *(b"\x40\x03\x00\x01\x10", b"\x32\x03\x00\x01a"),
)


class Conversation:
    """Does one event after the other on both sides."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self.sides = sides
        self.versions: dict[int, Version] = {}

    async def step(self, event: dict[str, Any]) -> None:
        number = event["who"]
        if event["do"] == "connect":
            self.versions[number] = event["version"]
            for side in self.sides:
                await side.connect(
                    number, event["version"], event["clean"], event["window"], event.get("careful", False)
                )
        elif number in self.versions:
            getattr(self, event["do"])(number, event)
        before: object = None
        # Turns end by the clock: on a busy machine there are more of them, also such as change no figure.
        while before != (now := [side.progress() for side in self.sides]) or any(
            side.gives_way() for side in self.sides
        ):
            before = now
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def dead(self) -> list[int]:
        clients = self.sides[0].clients
        return [number for number in range(4) if number not in clients or clients[number].ended]

    def both(self, number: int, data: bytes) -> None:
        for side in self.sides:
            side.send(number, data)

    def burst(self, number: int, event: dict[str, Any]) -> None:
        version, packet_id, packets = self.versions[number], event["first"], []
        for message in event["messages"]:
            topic = message["topic"] or "a"
            for place in range(message["count"]):
                if place and "topic_alias" in message["properties"] and version is Version.MQTT_5:
                    topic = ""
                payload = bytes((place % 256,)) * message["size"]
                properties = message["properties"] if version is Version.MQTT_5 else {}
                packet = mqtt.Publish(topic.replace("+", "x"), payload, message["qos"], message["retain"])
                packet.properties = properties
                if message["qos"]:
                    packet.dup, packet.packet_id = message["dup"], packet_id
                packets.append(encode(packet, version).replace(b"bad/x", b"bad/+"))
                packet_id = packet_id % 65535 + 1
        if event["mixed"]:
            packets = [packet for place in range(3) for packet in packets[place::3]]
        data = b"".join(packets)
        for cut in event["cuts"]:
            self.both(number, data[:cut])
            data = data[cut:]
        self.both(number, data)

    def subscribe(self, number: int, event: dict[str, Any]) -> None:
        version = self.versions[number]
        five = version is Version.MQTT_5
        request = mqtt.SubscribeRequest(
            event["filter"], event["qos"], five and event["no_local"] and event["filter"][0] != "$"
        )
        if five:
            request.retain_as_published, request.retain_handling = (
                event.get("as_published", False),
                event.get("handling", 0),
            )
        properties = {"subscription_identifier": event["identifier"]} if five and event["identifier"] else {}
        self.both(number, encode(mqtt.Subscribe(5, [request], properties), version))

    def unsubscribe(self, number: int, event: dict[str, Any]) -> None:
        self.both(number, encode(mqtt.Unsubscribe(6, [FILTERS[event["number"]]]), self.versions[number]))

    def acknowledge(self, number: int, event: dict[str, Any]) -> None:
        for side in self.sides:
            one = side.clients[number]
            waiting = one.unacknowledged[: event["count"]]
            del one.unacknowledged[: event["count"]]
            if event["order"] == "reversed":
                waiting.reverse()
            elif event["order"] == "skipped":
                waiting = waiting[1::2]
            out = b""
            for packet in waiting:
                identifier = packet.packet_id.to_bytes(2, "big")
                answer = b"\x50" if packet.qos == 2 else b"\x40"
                if event.get("code") and one.version is Version.MQTT_5:
                    out += answer + b"\x03" + identifier + bytes((event["code"],))
                else:
                    out += answer + b"\x02" + identifier
                out += b"\x70\x02" + identifier if packet.qos == 2 and event.get("at_once", True) else b""
            if event["order"] == "unknown":
                out += (b"\x40" if event["count"] % 2 else b"\x50") + b"\x02\xff\xf0"
            side.send(number, out)

    def release(self, number: int, event: dict[str, Any]) -> None:
        """PUBREL for the PUBRECs that came, or PUBCOMP for the PUBRELs."""
        for side in self.sides:
            one = side.clients[number]
            first = b"\x70\x02" if event["complete"] else b"\x62\x02"
            waiting = one.uncompleted if event["complete"] else one.unreleased
            some = waiting[: event["count"]]
            del waiting[: event["count"]]
            if event["order"] == "reversed":
                some.reverse()
            elif event["order"] == "skipped":
                some = some[1::2]
            elif event["order"] == "unknown":
                some = [*some, 65_000, *some]
            side.send(number, b"".join(first + each.to_bytes(2, "big") for each in some))

    def ping(self, number: int, event: dict[str, Any]) -> None:
        self.both(number, b"\xc0\0" * (1 + event["number"]))

    def wait(self, number: int, event: dict[str, Any]) -> None:
        for side in self.sides:
            side.clock.now += 13.0

    def drop(self, number: int, event: dict[str, Any]) -> None:
        for side in self.sides:
            side.clients[number].connection.abort()

    def change(self, number: int, event: dict[str, Any]) -> None:
        """Other rules: for all, or for one client and those who come."""
        for side in self.sides:
            side.rules.refused = event["refused"]
            side.broker.ask_again(None if event["all"] else f"c{number}")

    def junk(self, number: int, event: dict[str, Any]) -> None:
        self.both(number, JUNK[event["number"]])

    def disconnect(self, number: int, event: dict[str, Any]) -> None:
        self.both(number, encode(mqtt.Disconnect(), self.versions[number]))


async def compare(
    happening: Callable[[list[int]], dict[str, Any] | None],
    hear: list[int],
    limits: dict[str, Any],
    overlap: str,
    retained: dict[str, int],
    refused: tuple[str, ...] | None = None,
    judge: Callable[[], Judge] | None = None,
) -> None:
    """*happening* gives the next event, None at the end; it is told which clients are not there.

    With *refused*, topics, a hook is asked who may publish where; what *judge* makes looks at each message.
    """
    fast, slow = (
        Side(fast_lane, limits, overlap, retained, refused, judge and judge()) for fast_lane in (True, False)
    )
    sides = fast, slow
    async with sides[0].broker, sides[1].broker:
        talk = Conversation(sides)
        for number in range(3):  # some are there, and hear everything with the QoS of *hear*
            await talk.step({"do": "connect", "who": number, "clean": True, "window": 65535,
                             "version": Version.MQTT_5 if number % 2 else Version.MQTT_3_1_1})  # fmt: skip
        for number, qos in enumerate(hear):
            await talk.step({"do": "subscribe", "who": number, "filter": "#", "qos": qos, "no_local": False,
                             "identifier": 0, "as_published": False, "handling": 0})  # fmt: skip
        while (event := happening(talk.dead())) is not None:
            await talk.step(event)
            found, wanted = (side.image() for side in sides)
            assert found == wanted, event
        for side in sides:
            for one in side.clients.values():
                one.connection.abort()
            for session in tuple(side.broker._core.sessions):
                await side.broker.delete_session(session.client_id)
            for message in [*side.retained()]:
                side.broker._core.retained.delete(message.topic_name)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert [side.broker._core.budget.used for side in sides] == [0, 0]
