"""Sample messages, the same for the same seed: into a message log, or published to a broker.

    python -m spark.tools.samples --log DIR --messages 100000          segments, messages and events
    python -m spark.tools.samples --broker 127.0.0.1:1883 --rate 500   over MQTT, with paho-mqtt

Five families of devices in the mix 45 / 20 / 15 / 12 / 8 % (`shapes`), unevenly loud, with broken payloads,
late and future event times, duplicates, reconnect storms, and payloads that change their schema half-way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from broker.hook.log.line import EventRecord, MessageRecord, Publisher
from spark.tools.logfiles import write_log
from spark.tools.shapes import MIX, SECOND, Device, EdgeNode, Said, broken

if TYPE_CHECKING:
    import paho.mqtt.client as mqtt

HEADLINE = "Sample messages, the same for the same seed: into a message log, or published to a broker."
Record = MessageRecord | EventRecord
REASONS = ("queue_full", "queue_full", "expired", "too_large", "no_session", "receive_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to make. Shares are between 0 and 1, times in seconds."""

    messages: int = 10_000
    devices: int = 100
    seed: int = 1
    start: float = 1_795_809_600.0  # 2026-11-27T20:00:00Z, of the first message
    duration: float = 7_200.0  # over which the messages are spread
    skew: float = 1.1  # Pareto: the device of rank n is heard n ** -skew as often as the first
    broken: float = 0.02
    late: float = 0.01  # event times up to two hours before the message
    future: float = 0.002  # event times up to a day after it
    duplicates: float = 0.005  # sent again, with DUP set when QoS 1
    storms: int = 2  # moments at which all connections are lost and come back
    changes_at: int | None = None  # the message from which payloads have the new schema
    deliveries: float = 0.1  # share of the messages whose delivery is told as events


DEFAULTS = {each.name: each.default for each in fields(Options)}
PAHO_NAMES = {
    "content_type": "ContentType",
    "user_property": "UserProperty",
    "payload_format_indicator": "PayloadFormatIndicator",
    "message_expiry_interval": "MessageExpiryInterval",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
}


@dataclass(slots=True)
class Link:
    """One client: the devices that it speaks for, and its connection now."""

    devices: list[Device]
    publisher: Publisher
    since: int = 0
    sent: int = 0


class Samples:
    """The stream of records of *options*, in the order of their time."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.devices: list[Device] = []
        self.weights: list[float] = []
        self.links: dict[str, Link] = {}
        self.connections = itertools.count(1)
        self.offset = 0
        for family, share in MIX:
            count = max(1, round(options.devices * share))
            ranks = [(number + 1) ** -options.skew for number in range(count)]
            self.weights += [share * rank / sum(ranks) for rank in ranks]
            seeds = [random.Random(f"{options.seed} {family.__name__} {number}") for number in range(count)]
            self.devices += [family(number, seed) for number, seed in enumerate(seeds)]
        for device in self.devices:
            nobody = Publisher(device.client_id, 0, device.version, device.user_name)
            self.links.setdefault(device.client_id, Link([], nobody)).devices.append(device)

    def times(self) -> Iterator[int]:
        """When messages come, in microseconds: a slow swell, and a moment of silence after each storm."""
        options, at = self.options, 0.0
        for _ in range(options.messages):
            load = 1 + 0.5 * math.sin(at / options.duration * 2 * math.pi)
            at += self.rng.expovariate(options.messages / options.duration * load)
            yield int((options.start + at) * SECOND)

    def records(self) -> Iterator[Record]:
        """All of them: first everybody connects, then they talk; at the end some are still connected."""
        options = self.options
        storms = {options.messages * (number + 1) // (options.storms + 1) for number in range(options.storms)}
        chosen = self.rng.choices(self.devices, self.weights, k=options.messages)
        changes_at = options.messages if options.changes_at is None else options.changes_at
        for number, (at, device) in enumerate(zip(self.times(), chosen, strict=True)):
            if number == 0 or number in storms:
                yield from self.storm(at, lost=number > 0)
            if number == changes_at:
                for each in self.devices:
                    each.new_schema = True
            yield from self.message(at, device)

    def storm(self, at: int, lost: bool) -> Iterator[Record]:
        """Everybody is gone, wills are heard, and all come back within two seconds, some of them twice."""
        links = list(self.links.values())
        if lost:
            for link in links:
                yield from self.leave(at, link)
        moments = sorted((at + self.rng.randrange(2 * SECOND), number) for number in range(len(links)))
        for moment, number in moments:
            link = links[number]
            if lost and self.rng.random() < 0.1:
                reason = self.rng.choice((0x86, 0x87, 0x9F))  # bad password, not authorised, rate exceeded
                nobody = replaced(link.publisher, next(self.connections))
                refused = (("a", "10.0.0.9"), ("l", "tcp"), ("rc", reason))
                yield EventRecord(moment, "connect", nobody, refused)
            yield from self.come(moment, link)

    def come(self, at: int, link: Link) -> Iterator[Record]:
        link.publisher = publisher = replaced(link.publisher, next(self.connections))
        link.since, link.sent = at, 0
        number = publisher.connection or 0
        address = f"10.0.{number % 4}.{number % 250}:{20000 + number % 40000}"
        present = int(number % 3 == 0)
        fields = (("a", address), ("l", "tcp"), ("ka", 60), ("sei", 0), ("cs", 1 - present), ("sp", present))
        yield EventRecord(at, "connect", publisher, (*fields, ("rc", 0)))
        state = "resumed" if present else "created"
        yield EventRecord(at, "session", publisher, (("st", state), ("pend", 0)))
        for device in link.devices:
            for said in device.hello(at):
                yield self.published(at, link, said)

    def leave(self, at: int, link: Link) -> Iterator[Record]:
        by = self.rng.choice(("network", "network", "keepalive", "takeover"))
        spent = (at - link.since) // 1000
        fields = (("rc", 0x8D if by == "keepalive" else 0), ("by", by), ("dur", spent), ("in", link.sent))
        yield EventRecord(at, "disconnect", link.publisher, fields)
        for device in link.devices:
            for said in device.will(at):
                yield self.published(at, link, said)

    def message(self, at: int, device: Device) -> Iterator[Record]:
        options, rng = self.options, self.rng
        link, event_time = self.links[device.client_id], at
        if rng.random() < options.late:
            event_time -= rng.randrange(60 * SECOND, 7_200 * SECOND)
        elif rng.random() < options.future:
            event_time += rng.randrange(60 * SECOND, 86_400 * SECOND)
        said = device.say(event_time)
        if rng.random() < options.broken:
            said = said._replace(payload=broken(said.payload, rng))
        offset, record = self.offset, self.published(at, link, said)
        yield record
        if rng.random() < options.deliveries:
            yield from self.deliveries(offset, record)
        if not isinstance(device, EdgeNode) and rng.random() < options.duplicates:
            yield self.published(at + 1000, link, said, dup=said.qos > 0)

    def published(self, at: int, link: Link, said: Said, dup: bool = False) -> MessageRecord:
        self.offset, link.sent = self.offset + 1, link.sent + 1
        flags = said.qos << 2 | said.retain << 1 | dup
        return MessageRecord(at, said.topic_name, flags, link.publisher, said.payload, None, said.properties)

    def deliveries(self, offset: int, record: MessageRecord) -> Iterator[Record]:
        """What became of one message: written to a dashboard, acknowledged when QoS 1, or dropped."""
        reader, qos = Publisher("dashboard", 0, 5, "ops"), record.flags >> 2
        wait = int(self.rng.lognormvariate(6.2, 0.8))  # about half a millisecond, with a long tail
        common = (("mo", offset), ("q", qos))
        if self.rng.random() < 0.03:
            why = self.rng.choice(REASONS)
            yield EventRecord(record.at + wait, "dropped", reader, (*common, ("why", why)))
            return
        yield EventRecord(record.at + wait, "delivered", reader, (*common, ("lat", wait)))
        if qos:
            wait += int(self.rng.lognormvariate(7.5, 1.0))
            yield EventRecord(record.at + wait, "acked", reader, (*common, ("lat", wait)))


def replaced(publisher: Publisher, connection: int) -> Publisher:
    return Publisher(publisher.client_id, connection, publisher.version, publisher.user_name)


def records(options: Options) -> Iterator[Record]:
    """Messages and events in the order in which their offsets are given out."""
    return Samples(options).records()


def messages(options: Options) -> Iterator[MessageRecord]:
    return (record for record in records(options) if isinstance(record, MessageRecord))


def publish(options: Options, host: str, port: int, rate: float) -> int:
    """The messages of *options* through one connection per client, at *rate* a second; how many were sent.

    QoS 1 is waited for at the end. Needs paho-mqtt.
    """
    publishers: dict[str, mqtt.Client] = {}
    begun, sent = time.monotonic(), 0
    waiting: list[mqtt.MQTTMessageInfo] = []
    try:
        for sent, record in enumerate(messages(options), 1):
            client_id = record.publisher.client_id or ""
            if client_id not in publishers:
                publishers[client_id] = connected(record.publisher, host, port)
            time.sleep(max(0.0, begun + sent / rate - time.monotonic()))
            waiting.append(send(publishers[client_id], record))
            while len(waiting) > 500:
                waiting.pop(0).wait_for_publish(30)
        for info in waiting:
            info.wait_for_publish(30)
    finally:
        for client in publishers.values():
            client.disconnect()
            client.loop_stop()
    return sent


def connected(publisher: Publisher, host: str, port: int) -> mqtt.Client:
    import paho.mqtt.client as mqtt

    version = mqtt.MQTTv5 if publisher.version == 5 else mqtt.MQTTv311
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, publisher.client_id or "", protocol=version)
    client.connect(host, port)
    client.loop_start()
    return client


def send(client: mqtt.Client, record: MessageRecord) -> mqtt.MQTTMessageInfo:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = None
    if record.properties:
        properties = Properties(PacketTypes.PUBLISH)
        for name, value in record.properties.items():
            setattr(properties, PAHO_NAMES[name], value)
    flags = record.flags
    return client.publish(record.topic_name, record.payload, flags >> 2, bool(flags >> 1 & 1), properties)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m spark.tools.samples", description=HEADLINE)
    made.add_argument("--log", type=Path, help="write closed segments into this folder")
    made.add_argument("--broker", metavar="HOST:PORT", help="publish to this broker instead")
    made.add_argument("--rate", type=float, default=1000, help="messages a second to the broker (1000)")
    made.add_argument("--node", default="sample", help="name of the node in the segments (sample)")
    made.add_argument("--gzip", action="store_true", help="compress the segments")
    made.add_argument("--start", type=since, default=DEFAULTS["start"], help="of the first message, ISO 8601")
    for name in ("messages", "devices", "seed", "storms", "changes_at"):
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=DEFAULTS[name])
    for name in ("duration", "skew", "broken", "late", "future", "duplicates", "deliveries"):
        made.add_argument(f"--{name}", type=float, default=DEFAULTS[name])
    return made


def since(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    given = made.parse_args(arguments)
    options = Options(**{name: getattr(given, name) for name in DEFAULTS})
    if given.log is not None:
        made_of = {"node": given.node, "epoch": int(options.start), "gz": given.gzip}
        written = write_log(records(options), given.log, **made_of)
        print(json.dumps(written))
    elif given.broker:
        host, _, port = given.broker.rpartition(":")
        if not host or not port.isdigit():
            made.error(f"--broker {given.broker!r} is not HOST:PORT")
        print(json.dumps({"published": publish(options, host, int(port), given.rate)}))
    else:
        made.error("say where the samples go: --log DIR or --broker HOST:PORT")
    return 0


if __name__ == "__main__":
    sys.exit(main())
