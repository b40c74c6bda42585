"""The law of the fast lane: with it and without it every peer receives the same, and all counters agree.

Two brokers get the same conversation, byte for byte but for Packet Identifiers that the broker chose.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import Broker, Capacity, Config, Limits, Protocol
from broker.client import no_lane
from broker.packet import packets as mqtt
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.reader import PacketReader
from broker.session.inflight import Delivery
from broker.session.queue import QueuedRun
from broker.transport.memory import MemoryListener
from tests.peer import Clock, memory_broker

TOPICS = ("a", "a/b", "c", "d/e/f", "new/0", "new/1", "$no", "bad/+", "", "é/ü")
FILTERS = ("a", "a/b", "#", "+/b", "c", "d/#", "new/+", "$share/g/a", "é/ü")
SIZES = (0, 1, 3, 3, 3, 50, 125, 126, 127, 130, 5_000, 17_000)
PROPERTIES: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"content_type": "x"}, {"message_expiry_interval": 60}, {"message_expiry_interval": 0}),
    {"message_expiry_interval": 60, "content_type": "x", "user_property": [("k", "v"), ("k", "v")]},
    *({"topic_alias": 3}, {"topic_alias": 3, "content_type": "x"}, {"payload_format_indicator": 1}),
    {"correlation_data": b"c" * 130},
    {"user_property": [("a", "b")] * 70},
)
TURNS = 25  # of the loop, until everything is quiet


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
            elif isinstance(packet, mqtt.Pubrel):
                kind, packet = "Pubrel", mqtt.Pubrel(1, packet.reason_code)
            seen.setdefault(kind, []).append(repr(packet))
        self.received.clear()
        return seen


class Side:
    """One broker and its clients, by number."""

    def __init__(
        self, fast_lane: bool, limits: dict[str, Any], overlap: str, maximum_bytes: int = 1 << 30
    ) -> None:
        self.clock = Clock()
        self.drops: Counter[tuple[str, str]] = Counter()
        config = Config(
            capacity=Capacity(
                sweep_interval=0, fast_lane=fast_lane, sys_interval=0, maximum_bytes=maximum_bytes
            ),
            limits=Limits(**limits),
            protocol=Protocol(takeover="any", overlap=overlap),  # type: ignore[arg-type]
        )
        self.broker = memory_broker(config, clock=self.clock)
        assert (self.broker._connections._terms.lane is not no_lane) is fast_lane
        self.clients: dict[int, One] = {}
        self.cut_off = False  # somebody was

    async def connect(
        self, number: int, version: Version, clean: bool, window: int, careful: bool = False
    ) -> None:
        one = self.clients[number] = One(self.broker, f"{number}", version)
        properties: dict[str, Any] = {}
        if version is Version.MQTT_5:
            properties = {"session_expiry_interval": 1000, "receive_maximum": window}
        if careful:  # nothing is sent to it but by the readable lane
            properties["maximum_packet_size"] = 100_000
        self.send(number, encode(mqtt.Connect(f"c{number}", version, clean, properties=properties), version))
        one.unacknowledged.clear()

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
                name: getattr(stats, name)
                for name in ("messages_sent", "publish_received", "publish_sent")
            },
            "sent": stats.bytes_sent,
            "read": None if self.cut_off else (stats.bytes_received, stats.messages_received),
            "dropped": dict(stats.dropped),
            "sessions": {s.client_id: self.of_session(s) for s in core.sessions},
            "retained": core.retained.size,
        }

    @staticmethod
    def of_session(session: Any) -> tuple[Any, ...]:
        inflight = session.inflight
        in_flight = len(inflight.entries) + sum(run.count for run in inflight.runs or ())
        queued = sum(of_queued(each, session.terms.overhead) for each in session.queue)
        flow = (session.waiting, queued, session.queued_qos_0, in_flight, inflight.used)
        return (session.connected, *flow, sorted(inflight.held))


def of_queued(queued: Delivery | QueuedRun, overhead: int) -> int:
    """Bytes of the budget that it takes."""
    return queued.cost if isinstance(queued, QueuedRun) else queued.message.size + overhead


# ---- what happens


@st.composite
def bursts(draw: st.DrawFn) -> dict[str, Any]:
    messages = []
    for _ in range(draw(st.integers(1, 4))):
        messages.append(
            {
                "topic": draw(st.sampled_from(TOPICS)),
                "size": draw(st.sampled_from(SIZES)),
                "qos": draw(st.sampled_from((0, 0, 1, 1, 1, 2))),
                "retain": draw(st.integers(0, 9)) == 0,
                "dup": draw(st.integers(0, 9)) == 0,
                "properties": draw(st.sampled_from(PROPERTIES)),
                "count": draw(st.sampled_from((1, 1, 2, 9, 30, 70))),
            }
        )
    return {
        "do": "burst",
        "who": draw(st.integers(0, 3)),
        "messages": messages,
        "mixed": draw(st.booleans()),
        "cuts": draw(st.lists(st.integers(1, 3000), max_size=4)),
        "first": draw(st.sampled_from((1, 1, 300, 65_500))),
    }


def events() -> st.SearchStrategy[dict[str, Any]]:
    who = st.integers(0, 3)
    connects = st.fixed_dictionaries(
        {
            "do": st.just("connect"),
            "who": who,
            "version": st.sampled_from((Version.MQTT_5, Version.MQTT_3_1_1)),
            "clean": st.booleans(),
            "window": st.sampled_from((1, 3, 40, 65535)),
        }
    )
    subscribes = st.fixed_dictionaries(
        {
            "do": st.just("subscribe"),
            "who": who,
            "filter": st.sampled_from(FILTERS),
            "qos": st.integers(0, 2),
            "no_local": st.integers(0, 5).map(lambda n: n == 0),
            "identifier": st.sampled_from((0, 0, 0, 7)),
        }
    )
    acks = st.fixed_dictionaries(
        {
            "do": st.just("acknowledge"),
            "who": who,
            "count": st.sampled_from((1, 2, 5, 1000)),
            "order": st.sampled_from(("same", "same", "same", "reversed", "skipped", "unknown")),
        }
    )
    kinds = ("ping", "drop", "wait", "unsubscribe", "junk", "disconnect")
    other = st.fixed_dictionaries({"do": st.sampled_from(kinds), "who": who, "number": st.integers(0, 6)})
    return st.one_of(connects, subscribes, subscribes, bursts(), bursts(), bursts(), acks, acks, other)


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
        for _ in range(TURNS):
            await asyncio.sleep(0)

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
            event["filter"], event["qos"], no_local=five and event["no_local"] and event["filter"][0] != "$"
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
                out += b"\x40\x02" + identifier if packet.qos == 1 else b"\x50\x02" + identifier
                out += b"\x70\x02" + identifier if packet.qos == 2 else b""
            if event["order"] == "unknown":
                out += b"\x40\x02\xff\xf0"
            side.send(number, out)

    def ping(self, number: int, event: dict[str, Any]) -> None:
        self.both(number, b"\xc0\0" * (1 + event["number"]))

    def wait(self, number: int, event: dict[str, Any]) -> None:
        for side in self.sides:
            side.clock.now += 13.0

    def drop(self, number: int, event: dict[str, Any]) -> None:
        for side in self.sides:
            side.clients[number].connection.abort()

    def junk(self, number: int, event: dict[str, Any]) -> None:
        self.both(number, JUNK[event["number"]])

    def disconnect(self, number: int, event: dict[str, Any]) -> None:
        self.both(number, encode(mqtt.Disconnect(), self.versions[number]))


async def compare(happening: list[dict[str, Any]], limits: dict[str, Any], overlap: str) -> None:
    sides = Side(True, limits, overlap), Side(False, limits, overlap)
    async with sides[0].broker, sides[1].broker:
        talk = Conversation(sides)
        for number in range(3):  # some are there, and everybody hears everything
            await talk.step({"do": "connect", "who": number, "clean": True, "window": 65535,
                             "version": Version.MQTT_5 if number % 2 else Version.MQTT_3_1_1})  # fmt: skip
        for event in happening:
            await talk.step(event)
            fast, readable = (side.image() for side in sides)
            assert fast == readable, event
        for side in sides:
            for one in side.clients.values():
                one.connection.abort()
            for session in tuple(side.broker._core.sessions):
                await side.broker.delete_session(session.client_id)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert sides[0].broker._core.budget.used == sides[1].broker._core.budget.used


@settings(max_examples=500, deadline=None)
@given(
    happening=st.lists(events(), min_size=3, max_size=25),
    limits=st.fixed_dictionaries(
        {
            "outbound_receive_maximum": st.sampled_from((5, 10_000)),
            "maximum_queued_messages": st.sampled_from((10, 1000)),
            "queue_qos_0": st.booleans(),
        }
    ),
    overlap=st.sampled_from(("merge", "per_subscription")),
)
def test_the_same_with_and_without_it(
    happening: list[dict[str, Any]], limits: dict[str, Any], overlap: str
) -> None:
    asyncio.run(compare(happening, limits, overlap))


# ---- those who are away, and come back

PLAIN: tuple[dict[str, Any], ...] = ({}, {}, {}, {"content_type": "x"}, {"message_expiry_interval": 60})


@st.composite
def floods(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly what waits in runs."""
    messages = [
        {
            "topic": draw(st.sampled_from(("a", "a", "a", "a/b", "c", "é/ü"))),
            "size": draw(st.sampled_from((0, 3, 3, 50, 127, 900))),
            "qos": draw(st.sampled_from((0, 1, 1, 1, 1, 1, 1, 2))),
            "retain": False,
            "dup": False,
            "properties": draw(st.sampled_from(PLAIN)),
            "count": draw(st.sampled_from((1, 7, 9, 30, 300))),
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    first = draw(st.sampled_from((1, 300, 65_500)))
    who, mixed = draw(st.integers(0, 2)), draw(st.integers(0, 3)) == 0
    return {"do": "burst", "who": who, "messages": messages, "mixed": mixed, "cuts": [], "first": first}


def comings_and_goings(careful: bool) -> st.SearchStrategy[dict[str, Any]]:
    back = st.fixed_dictionaries(
        {
            "do": st.just("connect"),
            "who": st.just(3),
            "version": st.just(Version.MQTT_5) if careful else st.sampled_from(list(VERSIONS)),
            "clean": st.sampled_from((False, False, False, True)),
            "window": st.sampled_from((1, 3, 9, 40, 65535)),
            "careful": st.just(careful),
        }
    )
    acks = st.fixed_dictionaries(
        {
            "do": st.just("acknowledge"),
            "who": st.just(3),
            "count": st.sampled_from((1, 2, 5, 20, 1000)),
            "order": st.sampled_from(("same", "same", "same", "same", "reversed", "skipped")),
        }
    )
    kinds = st.sampled_from(("drop", "drop", "disconnect", "wait"))
    leaves = st.fixed_dictionaries({"do": kinds, "who": st.just(3)})
    return st.one_of(floods(), floods(), floods(), back, acks, acks, leaves)


POLICIES = ("drop_newest", "drop_oldest", "disconnect")
VERSIONS = (Version.MQTT_5, Version.MQTT_3_1_1)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), few=st.booleans(), policy=st.sampled_from(POLICIES))
def test_who_is_away_finds_the_same(data: st.DataObject, few: bool, policy: str) -> None:
    """Queues in runs; *few*: to the byte, where those to whom the fast lane sends are counted by packets."""
    limits: dict[str, Any] = {
        "queue_full": policy,
        "queue_qos_0": data.draw(st.booleans()),
        "maximum_queued_messages": data.draw(st.sampled_from((10, 320, 1000, 100_000))),
        "maximum_user_properties": 64,
    }
    room = 1 << 30
    if few:
        limits["maximum_queued_bytes"] = data.draw(st.sampled_from((20_000, 300_000, 1 << 26)))
        room = data.draw(st.sampled_from((200_000, 1 << 20)))
    happening = data.draw(st.lists(comings_and_goings(few), min_size=3, max_size=20))
    qos = data.draw(st.sampled_from((1, 1, 1, 2)))
    asyncio.run(compare_away(happening, limits, few, room, qos))


async def compare_away(
    happening: list[dict[str, Any]], limits: dict[str, Any], careful: bool, room: int, qos: int
) -> None:
    sides = Side(True, limits, "merge", room), Side(False, limits, "merge", room)
    async with sides[0].broker, sides[1].broker:
        talk = Conversation(sides)
        for number in range(3):
            await talk.step({"do": "connect", "who": number, "clean": True, "window": 65535,
                             "version": VERSIONS[number % 2]})  # fmt: skip
        away = {"who": 3, "clean": False, "window": 65535, "version": Version.MQTT_5, "careful": careful}
        await talk.step({**away, "do": "connect"})
        for topic_filter in ("a", "+/b", "#"):
            await talk.step({"do": "subscribe", "who": 3, "filter": topic_filter, "qos": qos,
                             "no_local": False, "identifier": 0})  # fmt: skip
        await talk.step({"do": "drop", "who": 3})
        for event in happening:
            await talk.step(event)
            fast, readable = (side.image() for side in sides)
            assert fast == readable, event
        used = [side.broker._core.budget.used for side in sides]
        assert not careful or used[0] == used[1]


@pytest.mark.parametrize("online", [True, False])
def test_what_a_3_1_1_client_was_sent_comes_with_properties_when_it_is_one_of_5(online: bool) -> None:
    def back(version: Version) -> dict[str, Any]:
        return {"do": "connect", "who": 3, "version": version, "clean": False, "window": 65535}

    message = {"topic": "a", "size": 3, "qos": 1, "retain": False, "dup": False, "count": 20}
    message["properties"] = {"content_type": "x"}
    flood = {"do": "burst", "who": 0, "messages": [message], "mixed": False, "cuts": [], "first": 1}
    two = [back(Version.MQTT_3_1_1), flood] if online else [flood, back(Version.MQTT_3_1_1)]
    asyncio.run(compare_away([*two, back(Version.MQTT_5)], {}, False, 1 << 30, 1))
