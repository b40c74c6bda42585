"""What is measured: the loads, which figures count, and the goals. One table; run.py does the work.

A scenario is of one of two kinds. **users**: what users have, that is sizes that vary, many slow connections,
MQTT 5 with properties, hooks, TLS, WebSocket, a durable store, latency, connections. **benchmarks**: what
benchmarks have, streams of equal length and fan-out. Every table shows both, side by side.

A goal is a ratio to mosquitto in the same run, for pybroker uncompiled; *best* is one to FlashMQ, for the
best of all builds. FlashMQ's CPU time (version 1.26.2, one thread) was measured once, on a quiet machine of
the same kind, with mosquitto beside it; it is a constant here, for when its binary is not at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Over = Literal["tcp", "ws", "tls"]
Hooks = Literal["", "each", "remembered"]  # which pair of hooked.py
VARIED = "throughput --topics 50 --subs 5 --vary 200"


@dataclass(frozen=True)
class Figure:
    """One row of the tables: a number that the generator says."""

    title: str
    key: str = "delivered_per_s"
    goal: float | None = None
    flashmq: str = ""  # CPU us for each message, or what stands for it
    more: bool = True  # is better
    # CPU: seconds / things, both of the generator's answer; a share of a core over a rate is the same
    cpu: tuple[str, str] | None = ("broker_cpu", "delivered_per_s")
    most: float | None = None  # an absolute limit as well
    best: float | None = None  # how many times FlashMQ the best build should be; see tables.best_build
    beside: float | None = None  # CPU us of mosquitto in the run that *flashmq* is of


@dataclass(frozen=True)
class Scenario:
    name: str
    load: str  # arguments of mqttload; {count:N} is N, and less in runs of less than a second
    figures: tuple[Figure, ...]
    users: bool
    over: Over = "tcp"
    hooks: Hooks = ""
    durable: bool = False
    main: bool = False  # the slow brokers take part as well
    times: int = 1  # runs of each broker in a round, where a single one says little


def users(name: str, load: str, *figures: Figure, **more: object) -> Scenario:
    return Scenario(name, load, figures, True, **more)  # type: ignore[arg-type]


def benchmark(name: str, load: str, *figures: Figure, **more: object) -> Scenario:
    return Scenario(name, load, figures, False, **more)  # type: ignore[arg-type]


def microseconds(title: str, key: str, goal: float | None = None, flashmq: str = "", **more: Any) -> Figure:
    return Figure(title, key, goal, flashmq, more=False, cpu=None, **more)


def stored(title: str, goal: float | None = None, flashmq: str = "", **more: Any) -> Figure:
    return Figure(title, "stored_per_s", goal, flashmq, cpu=("broker_cpu_store", "count"), **more)


def drained(title: str, goal: float | None = None, **more: Any) -> Figure:
    return Figure(title, "drained_per_s", goal, cpu=("broker_cpu_drain", "delivered"), **more)


def taken(title: str, goal: float | None = None, **more: Any) -> Figure:
    return Figure(title, "delivered_per_s", goal, cpu=("broker_cpu_deliver", "delivered"), **more)


def bytes_each(title: str, goal: float | None = None, flashmq: str = "", **more: Any) -> Figure:
    return Figure(title, "bytes_per_conn", goal, flashmq, more=False, cpu=None, **more)


SCENARIOS = (
    users(
        "varied-qos0",
        VARIED,
        Figure("QoS 0, 50 topics, sizes vary", goal=6, flashmq="0.57", beside=6.07, best=1),
        main=True,
    ),
    users(
        "varied-qos1",
        f"{VARIED} --qos 1",
        Figure("QoS 1, 50 topics, sizes vary", goal=3.5, flashmq="1.44", beside=11.6, best=2),
        main=True,
    ),
    users("varied-qos2", f"{VARIED} --qos 2 --window 20", Figure("QoS 2, 50 topics, sizes vary")),
    users(
        "fanin-100-qos0",
        "fanin --pubs 100",
        Figure("fan-in 100:1, QoS 0", goal=8, flashmq="0.78", beside=3.48, best=1),
        main=True,
    ),
    users(
        "fanin-100-qos1",
        "fanin --pubs 100 --qos 1",
        Figure("fan-in 100:1, QoS 1", goal=3, flashmq="1.40", beside=6.57, best=1),
        main=True,
    ),
    users(
        "slow-100-qos0",
        "fanin --pubs 100 --outstanding 100 --batch 1",
        Figure("fan-in 100:1, one message each, QoS 0"),
    ),
    users(
        "slow-100-qos1",
        "fanin --pubs 100 --qos 1 --window 1",
        Figure("fan-in 100:1, one message each, QoS 1"),
    ),
    users(
        "slow-1000-qos0",
        "fanin --pubs 1000 --outstanding 1000 --batch 1",
        Figure("fan-in 1000:1, one message each, QoS 0"),
    ),
    users(
        "slow-1000-qos1",
        "fanin --pubs 1000 --qos 1 --window 1",
        Figure("fan-in 1000:1, one message each, QoS 1"),
    ),
    users(
        "small-batches-qos0",
        f"{VARIED} --outstanding 100 --batch 1",
        Figure("QoS 0, 50 topics, sizes vary, 100 outstanding"),
    ),
    users(
        "fanout-100-alone",
        "fanout --subs 100 --outstanding 1",
        Figure("fan-out 1:100, QoS 0, one message at a time"),
    ),
    users("v5-qos0", f"{VARIED} --mqtt 5", Figure("MQTT 5, QoS 0, no properties, sizes vary")),
    users(
        "v5-two-qos0",
        f"{VARIED} --mqtt 5 --properties expiry,content_type",
        Figure("MQTT 5, QoS 0, expiry and content type, sizes vary", goal=2, best=0.7),
    ),
    users(
        "v5-two-qos1",
        f"{VARIED} --mqtt 5 --qos 1 --properties expiry,content_type",
        Figure("MQTT 5, QoS 1, expiry and content type, sizes vary", goal=2, best=0.7),
    ),
    users(
        "v5-user-qos0",
        f"{VARIED} --mqtt 5 --properties user",
        Figure("MQTT 5, QoS 0, a user property, sizes vary"),
    ),
    users(
        "v5-alias-qos0",
        # 10 topics: mosquitto takes no more aliases
        "throughput --topics 10 --subs 5 --vary 200 --mqtt 5 --properties alias",
        Figure("MQTT 5, QoS 0, topic aliases, 10 topics, sizes vary"),
    ),
    users("hooks-varied-qos0", VARIED, Figure("hooks, QoS 0, 50 topics, sizes vary", goal=1.5), hooks="each"),
    users(
        "hooks-varied-qos1",
        f"{VARIED} --qos 1",
        Figure("hooks, QoS 1, 50 topics, sizes vary", goal=1.5),
        hooks="each",
    ),
    users(
        "hooks-fanin-100-qos1", "fanin --pubs 100 --qos 1", Figure("hooks, fan-in 100:1, QoS 1"), hooks="each"
    ),
    users("hooks-qos0", "throughput", Figure("hooks, QoS 0 1:1, 64 B"), hooks="each"),
    users("hooks-fanout-100-qos0", "fanout --subs 100", Figure("hooks, fan-out 1:100, QoS 0"), hooks="each"),
    users(
        "hooks-quick-varied-qos0",
        VARIED,
        Figure("hooks with a remembered verdict, QoS 0, 50 topics, sizes vary", goal=1.5, best=0.5),
        hooks="remembered",
    ),
    users(
        "hooks-quick-varied-qos1",
        f"{VARIED} --qos 1",
        Figure("hooks with a remembered verdict, QoS 1, 50 topics, sizes vary", goal=1.5, best=0.5),
        hooks="remembered",
    ),
    users(
        "hooks-quick-fanin-100-qos1",
        "fanin --pubs 100 --qos 1",
        Figure("hooks with a remembered verdict, fan-in 100:1, QoS 1"),
        hooks="remembered",
    ),
    users("ws-qos0", "throughput", Figure("WebSocket, QoS 0 1:1, 64 B", goal=1), over="ws"),
    users(
        "ws-varied-qos1", f"{VARIED} --qos 1", Figure("WebSocket, QoS 1, 50 topics, sizes vary"), over="ws"
    ),
    users("tls-qos0", "throughput", Figure("TLS, QoS 0 1:1, 64 B", goal=1), over="tls"),
    users("tls-varied-qos1", f"{VARIED} --qos 1", Figure("TLS, QoS 1, 50 topics, sizes vary"), over="tls"),
    users(
        "shared-qos0",
        "throughput --share --subs 10 --topics 10 --vary 200",
        Figure("shared subscription of 10, QoS 0, sizes vary"),
    ),
    users(
        "shared-qos1",
        "throughput --share --subs 10 --topics 10 --vary 200 --qos 1",
        Figure("shared subscription of 10, QoS 1, sizes vary"),
    ),
    users(
        "durable-100",
        "persistent --count {count:30000} --window 100",
        stored("durable: QoS 1 stored, window 100", goal=1),
        drained("durable: drained"),
        durable=True,
    ),
    users(
        "durable-1000",
        "persistent --count {count:60000} --window 1000",
        stored("durable: QoS 1 stored, window 1000", goal=1),
        drained("durable: drained"),
        durable=True,
    ),
    users(
        "durable-1",
        "persistent --count {count:2000} --window 1",
        stored("durable: QoS 1 stored, window 1"),
        durable=True,
    ),
    users(
        "durable-retained",
        "retained --count {count:30000}",
        stored("durable: retained stored"),
        taken("durable: retained delivered"),
        durable=True,
    ),
    users(
        "connect",
        "connect --count {count:5000}",
        Figure(
            "connections a second",
            "connects_per_s",
            goal=0.9,
            flashmq="28",
            cpu=("broker_cpu", "connects_per_s"),
            best=1,
            beside=24,
        ),
        main=True,
    ),
    users(
        "idle",
        "idle --clients {count:5000} --hold 1",
        bytes_each("bytes for an idle connection", 0.9, best=0.2),
        main=True,
    ),
    users(
        "idle-session",
        "idle --clients {count:5000} --hold 1 --session",
        bytes_each("bytes for an idle connection with a full session", 0.9, "5,000 B", most=900, best=0.2),
    ),
    users(
        "idle-bare",
        "idle --clients {count:5000} --hold 1 --bare",
        bytes_each("bytes for an idle connection without subscription"),
    ),
    # On virtual machines a run is as fast as another or half again slower, with every broker: by how the
    # cores are woken, which stays so for its whole second. The median of five would be a coin that is tossed.
    users(
        "latency-1k",
        "latency --rate 1000",
        microseconds("latency at 1,000/s, p50, us", "p50_us", 1.15, "171 us", best=1.15),
        microseconds("latency at 1,000/s, p99, us", "p99_us", flashmq="461 us"),
        microseconds("latency at 1,000/s, p99.9, us", "p999_us"),
        main=True,
        times=5,
    ),
    users(
        "latency-10k",
        "latency --rate 10000",
        microseconds("latency at 10,000/s, p50, us", "p50_us", 1.3, "150 us", best=1.3),
        microseconds("latency at 10,000/s, p99, us", "p99_us", flashmq="354 us"),
        microseconds("latency at 10,000/s, p99.9, us", "p999_us"),
        times=3,
    ),
    benchmark(
        "qos0",
        "throughput",
        Figure("QoS 0 1:1, 64 B", goal=12, flashmq="0.46", beside=2.85, best=2.5),
        main=True,
    ),
    benchmark("qos0-wide", "throughput --outstanding 10000", Figure("QoS 0 1:1, 64 B, 10,000 outstanding")),
    benchmark(
        "qos0-4k",
        "throughput --size 4096",
        Figure("QoS 0 1:1, 4 KiB", goal=1.3, flashmq="3.6", beside=6.16, best=1),
    ),
    benchmark("qos0-256k", "throughput --size 262144 --outstanding 8", Figure("QoS 0 1:1, 256 KiB")),
    benchmark(
        "qos1",
        "throughput --qos 1",
        Figure("QoS 1 1:1, window 100", goal=6, flashmq="1.09", beside=8.99, best=1.2),
        main=True,
    ),
    benchmark("qos1-1", "throughput --qos 1 --window 1", Figure("QoS 1 1:1, window 1")),
    benchmark(
        "qos1-1000",
        "throughput --qos 1 --window 1000 --outstanding 10000",
        Figure("QoS 1 1:1, window 1000", goal=10, flashmq="0.66", beside=8.1, best=3),
    ),
    benchmark("qos1-4k", "throughput --qos 1 --size 4096", Figure("QoS 1 1:1, 4 KiB")),
    benchmark("qos1-256k", "throughput --qos 1 --size 262144 --outstanding 8", Figure("QoS 1 1:1, 256 KiB")),
    benchmark(
        "qos2",
        "throughput --qos 2 --window 20",
        Figure("QoS 2 1:1, window 20", goal=1.5, flashmq="5.2", beside=16.9, best=1),
        main=True,
    ),
    benchmark(
        "qos2-100",
        "throughput --qos 2 --window 100 --mqtt 5",
        Figure("QoS 2 1:1, MQTT 5, window 100 if granted"),
    ),
    benchmark(
        "fanout-100-qos0",
        "fanout --subs 100",
        Figure("fan-out 1:100, QoS 0", goal=75, flashmq="0.16", beside=3.95, best=3),
        main=True,
    ),
    benchmark(
        "fanout-100-qos1",
        "fanout --subs 100 --qos 1",
        Figure("fan-out 1:100, QoS 1", goal=30, flashmq="0.29", beside=3.75, best=2.5),
    ),
    benchmark("fanout-1000-qos0", "fanout --subs 1000 --outstanding 50", Figure("fan-out 1:1000, QoS 0")),
    benchmark(
        "fanout-1000-qos1", "fanout --subs 1000 --outstanding 50 --qos 1", Figure("fan-out 1:1000, QoS 1")
    ),
    benchmark(
        "wildcards",
        "wildcards",
        Figure("10,000 wildcard filters", goal=15, flashmq="0.33", beside=4.91, best=1.5),
        main=True,
    ),
    benchmark(
        "persistent",
        "persistent --count {count:60000} --window 100",  # FlashMQ takes no more than 65,535
        stored("in memory: QoS 1 stored, window 100", goal=3, flashmq="3.7, both", best=2),
        drained("in memory: drained", goal=6, best=4),
    ),
    benchmark(
        "persistent-1000",
        "persistent --count {count:60000} --window 1000",
        stored("in memory: QoS 1 stored, window 1000", goal=3, best=2),
        drained("in memory: drained", goal=6, best=4),
    ),
    benchmark(
        "retained",
        "retained --count {count:50000}",
        stored("in memory: retained stored", goal=1.3, flashmq="4, both", best=0.8),
        taken("in memory: retained delivered", goal=4, best=8),
    ),
)
