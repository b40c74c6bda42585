"""What devices say: topics and payloads in the shapes of five public conventions, from a seeded generator.

A device knows nothing of brokers or logs: it answers (topic name, payload, extras) tuples. Times come in as
microseconds since 1970; the times in payloads are event times, which may differ from the time of arrival.
"""

from __future__ import annotations

import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from spark.silver.sparkplug import CODES, Metric, Payload, encode

SECOND = 1_000_000
ZONE = timedelta(hours=1)  # Tasmota writes local time and no zone


class Said(NamedTuple):
    topic_name: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] | None = None  # of PUBLISH, by the names of broker.packet.properties


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(at / SECOND, UTC)


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def wave(at: int, low: float, high: float, period: float = 86_400.0) -> float:
    """A value between *low* and *high* that swings once in *period* seconds."""
    return (low + high) / 2 + (high - low) / 2 * math.sin(at / SECOND / period * 2 * math.pi)


@dataclass
class Device(ABC):
    """One client. `new_schema` is set once messages have passed the point where the payloads change."""

    number: int
    rng: random.Random
    new_schema: bool = False

    client_id = ""
    version = 4
    user_name: str | None = None

    def hello(self, at: int) -> Iterator[Said]:
        """What it publishes after CONNECT."""
        return iter(())

    @abstractmethod
    def say(self, at: int) -> Said:
        """One message, with event time *at*."""

    def will(self, at: int) -> Iterator[Said]:
        """What others hear when it is lost."""
        return iter(())


class Zigbee(Device):
    """zigbee2mqtt: a bridge that speaks for many devices; flat JSON, numbers of both kinds.

    All of them share one connection, which makes this client by far the loudest.
    """

    client_id = "zigbee2mqtt_bridge"
    user_name = "zigbee"

    @property
    def name(self) -> str:
        return f"{('kitchen', 'hall', 'cellar', 'garden')[self.number % 4]}_sensor_{self.number:03d}"

    def hello(self, at: int) -> Iterator[Said]:
        yield Said(f"zigbee2mqtt/{self.name}/availability", b'{"state":"online"}', 1, True)

    def will(self, at: int) -> Iterator[Said]:
        yield Said(f"zigbee2mqtt/{self.name}/availability", b'{"state":"offline"}', 1, True)

    def say(self, at: int) -> Said:
        state: dict[str, Any] = {
            "battery": 100 - self.number % 60,
            "humidity": round(wave(at, 35, 75) + self.rng.gauss(0, 1.5), 2),
            "linkquality": self.rng.randrange(20, 255),
            "temperature": round(wave(at, 17, 24) + self.rng.gauss(0, 0.4), 2),
            "last_seen": moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        if self.number % 3 == 0:
            state |= {"occupancy": self.rng.random() < 0.2}
        if self.new_schema:
            device = {"firmware": "2.1.0", "uptime": self.number}
            state |= {"battery": state["battery"] + 0.5, "device": device}
        return Said(f"zigbee2mqtt/{self.name}", compact(state), 0)


class Tasmota(Device):
    """Tasmota: nested JSON, the local time without a zone, a last will in plain text."""

    @property
    def client_id(self) -> str:  # type: ignore[override]
        return f"DVES_{0xA1B200 + self.number:06X}"

    @property
    def name(self) -> str:
        return f"plug-{self.number:03d}"

    def hello(self, at: int) -> Iterator[Said]:
        yield Said(f"tele/{self.name}/LWT", b"Online", 1, True)

    def will(self, at: int) -> Iterator[Said]:
        yield Said(f"tele/{self.name}/LWT", b"Offline", 1, True)

    def say(self, at: int) -> Said:
        time = (moment(at) + ZONE).strftime("%Y-%m-%dT%H:%M:%S")
        if self.rng.random() < 0.3:
            state = {"Time": time, "UptimeSec": at // SECOND % 10**6, "POWER": self.rng.choice(("ON", "OFF"))}
            wifi = {"AP": 1, "RSSI": self.rng.randrange(40, 100), "Signal": -self.rng.randrange(30, 80)}
            return Said(f"tele/{self.name}/STATE", compact({**state, "Wifi": wifi}), 0)
        watts = max(0, round(wave(at, 0, 900, 7200) + self.rng.gauss(0, 40)))
        total = round(at / SECOND % 10**6 / 1000, 3)
        energy = {"Total": total, "Power": watts + 0.25 if self.new_schema else watts, "Voltage": 230}
        return Said(f"tele/{self.name}/SENSOR", compact({"Time": time, "ENERGY": energy}), 0)


class HomeAssistant(Device):
    """Home Assistant's statestream, bare values, and its retained discovery documents."""

    client_id = "homeassistant"
    user_name = "hass"
    domains = ("sensor", "binary_sensor", "light", "climate")

    @property
    def domain(self) -> str:
        return self.domains[self.number % 4]

    def hello(self, at: int) -> Iterator[Said]:
        identity = f"ha{self.number:04d}"
        topic = f"homeassistant/{self.domain}/entity_{self.number:03d}/state"
        document = {"name": f"Entity {self.number}", "unique_id": identity, "state_topic": topic}
        device = {"identifiers": [identity], "manufacturer": "Example"}
        yield Said(
            f"homeassistant/{self.domain}/{identity}/config", compact({**document, "device": device}), 1, True
        )

    def say(self, at: int) -> Said:
        if self.domain in ("binary_sensor", "light"):
            value = self.rng.choice(("on", "off"))
        elif self.domain == "climate":
            value = self.rng.choice(("heat", "off", "auto", "unavailable"))
        else:
            value = f"{wave(at, 18, 23) + self.rng.gauss(0, 0.3):.1f}"
        return Said(f"homeassistant/{self.domain}/entity_{self.number:03d}/state", value.encode(), 0, True)


@dataclass
class EdgeNode(Device):
    """Sparkplug B: an edge node with one device; BIRTH gives names and aliases, DATA has aliases alone."""

    seq: int = 255
    births: int = 0
    names: dict[str, str] = field(
        default_factory=lambda: {"Speed": "Double", "Count": "Int64", "Running": "Boolean", "Mode": "String"}
    )

    @property
    def client_id(self) -> str:  # type: ignore[override]
        return f"edge-{self.number:03d}"

    def topic(self, kind: str, device: str = "") -> str:
        tail = f"/{device}" if device else ""
        return f"spBv1.0/plant{self.number % 3}/{kind}/line{self.number:03d}{tail}"

    def next_seq(self) -> int:
        self.seq = (self.seq + 1) % 256
        return self.seq

    def metric(self, alias: int, name: str, at: int) -> Metric:
        values = {
            "Speed": round(wave(at, 900, 1500, 3600) + self.rng.gauss(0, 10), 3),
            "Count": at // SECOND % 10**9,
            "Running": self.rng.random() < 0.9,
            "Mode": self.rng.choice(("auto", "manual")),
        }
        return Metric(name, alias, at // 1000, CODES[self.names[name]], values[name])

    def hello(self, at: int) -> Iterator[Said]:
        self.seq, self.births = 255, self.births + 1
        identity = Metric("bdSeq", None, at // 1000, CODES["UInt64"], self.births % 256)
        uptime = Metric("Uptime", 9, at // 1000, CODES["UInt32"], 0)
        yield Said(self.topic("NBIRTH"), encode(Payload(at // 1000, self.next_seq(), [identity, uptime])))
        metrics = [self.metric(alias, name, at) for alias, name in enumerate(self.names)]
        yield Said(self.topic("DBIRTH", "drive"), encode(Payload(at // 1000, self.next_seq(), metrics)))

    def say(self, at: int) -> Said:
        chosen = self.rng.sample(list(enumerate(self.names)), k=self.rng.randrange(1, len(self.names) + 1))
        metrics = [self.metric(alias, name, at) for alias, name in sorted(chosen)]
        for one in metrics:
            one.name = None
        return Said(self.topic("DDATA", "drive"), encode(Payload(at // 1000, self.next_seq(), metrics)))

    def will(self, at: int) -> Iterator[Said]:
        identity = Metric("bdSeq", None, at // 1000, CODES["UInt64"], self.births % 256)
        yield Said(self.topic("NDEATH"), encode(Payload(at // 1000, None, [identity])), 1)


class Modern(Device):
    """A device of MQTT 5: content type, User Properties (one name twice), expiry, now and then a request."""

    version = 5

    @property
    def client_id(self) -> str:  # type: ignore[override]
        return f"m5-{self.number:04d}"

    def say(self, at: int) -> Said:
        name = f"fleet/{('north', 'south')[self.number % 2]}/{self.client_id}"
        pairs = [("firmware", "1.4.2"), ("tag", "a"), ("tag", "b")]
        properties: dict[str, Any] = {"content_type": "application/json", "user_property": pairs}
        properties |= {"payload_format_indicator": 1, "message_expiry_interval": 3600}
        position = {"lat": round(wave(at, 47, 49), 5), "lon": round(wave(at, 8, 12, 40_000), 5)}
        values = {"ts": at // 1000, "pos": position, "speed": round(abs(self.rng.gauss(40, 20)), 1)}
        if self.rng.random() < 0.05:
            properties |= {"response_topic": f"{name}/reply", "correlation_data": self.rng.randbytes(8)}
            return Said(f"{name}/request", compact({"ts": at // 1000, "ask": "route"}), 1, False, properties)
        values["errors"] = [self.rng.randrange(9) for _ in range(self.rng.randrange(3))]
        return Said(f"{name}/position", compact(values), 1, False, properties)


MIX: tuple[tuple[type[Device], float], ...] = (  # share of the messages
    (Zigbee, 0.45),
    (Tasmota, 0.20),
    (HomeAssistant, 0.15),
    (EdgeNode, 0.12),
    (Modern, 0.08),
)


def broken(payload: bytes, rng: random.Random) -> bytes:
    """*payload* as a faulty device or a rotten link would have made it."""
    kind = rng.randrange(8)
    if kind == 0:
        return payload[: max(1, len(payload) // 2)]
    if kind == 1:
        return b"\xff\xfe" + payload
    if kind == 2:
        return b""
    if kind == 3:
        return b'{"temperature":NaN,"humidity":-Infinity}'
    if kind == 4:
        return b'{"temperature":20.5,"temperature":21.5}'
    if kind == 5:
        return b"[" * 2_000 + b"]" * 2_000
    if kind == 6:
        return b'{"battery":18446744073709551617,"temperature":1e400}'
    return rng.randbytes(24)
