"""What the message log costs: lines, files, syncs, and the broker with a log and without, as ratios.

    python benchmarks/message_log.py [rounds] [records]     # the log alone, in one process
    python benchmarks/message_log.py --broker [--secs 3]    # the daemon under load, with a log and without

Each row has its baseline from the same run, the best of the rounds: CPU time of the process in microseconds a
record, or what the row says. The baseline of the lines is `json.dumps` of a dictionary with the payload in
base64. *bar*: what the ratio has to reach, or with *at most* may not pass. That of the broker is for loads of
so many messages a second; where it is given as many as it takes, a line costs more than a message: none.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from broker.hook.log.line import Publisher, format_message
from broker.hook.log.names import closed_segments
from broker.hook.log.recorder import Recorder, RecorderTerms
from broker.hook.log.recover import prepare

AT = 1_700_000_000_000_000
CHUNK = 1000  # records that are put at once, or of which an acknowledgement is waited for
HEAD = "| what | baseline | this | ratio | bar |"

Record = tuple[Any, ...]


class Row(NamedTuple):
    what: str
    baseline: float
    this: float
    ratio: float
    bar: float | None

    def __str__(self) -> str:
        bar = "" if self.bar is None else f"{self.bar:.2f}"
        return f"| {self.what} | {self.baseline:.3g} | {self.this:.3g} | {self.ratio:.2f} | {bar} |"


def records(count: int) -> list[Record]:
    """Messages of 500 sensors by 50 clients: topics of 24 bytes, payloads of 81."""
    rng = random.Random(1)
    clients = [Publisher(f"sensor-gateway-{n:02}", n, 5, "sensors") for n in range(50)]
    made = []
    for n in range(count):
        sensor = rng.randrange(500)
        payload = json.dumps({"sensor": sensor, "value": rng.random(), "unit": "C", "ok": True, "n": n})
        data = payload.encode().ljust(81)[:81]
        made.append(
            (AT + n, f"plant/hall/{sensor:04}/value", 4, clients[sensor % 50], data, None, None, None, 400)
        )
    return made


def plain(offset: int, record: Record) -> bytes:
    """The same line without a checksum, by the obvious way."""
    at, topic_name, flags, who, payload, _, _, _, _ = record
    said = {
        "o": offset,
        "ts": at,
        "t": topic_name,
        "q": flags >> 2,
        "r": flags >> 1 & 1,
        "d": flags & 1,
        "c": who.client_id,
        "cn": who.connection,
        "v": who.version,
        "p": base64.b64encode(payload).decode(),
        "u": who.user_name,
    }
    return json.dumps(said).encode() + b"\n"


def cpu(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def wall(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def write(folder: Path, found: list[Record], fsync: str, gz: bool) -> None:
    """The whole way of *found*, from the queue to closed segments."""
    prepare(folder, "n")
    terms = RecorderTerms(
        root=folder, kind="messages", node="n", epoch=1, format=format_message, fsync=fsync, gz=gz,
        maximum_records=len(found) + 1,
    )  # fmt: skip
    recorder = Recorder(terms)
    recorder.start()
    for n, record in enumerate(found, 1):
        recorder.put(record)
        if fsync == "ack" and not n % CHUNK:
            recorder.want(n)
    recorder.stop(AT)
    if not recorder.join(60):
        raise SystemExit("the disk takes nothing")


def measured(found: list[Record], fsync: str, gz: bool, clock: Callable[..., float]) -> tuple[float, int]:
    """Seconds, and bytes of the segments."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        root = Path(folder)
        seconds = clock(lambda: write(root, found, fsync, gz))
        return seconds, sum(path.stat().st_size for path, _ in closed_segments(root, "messages"))


def log_alone(rounds: int, count: int) -> list[Row]:
    found = records(count)
    each = 1e6 / count  # microseconds a record

    def best(work: Callable[[], float]) -> float:
        return min(work() for _ in range(rounds)) * each

    dumps = best(lambda: cpu(lambda: [plain(n, record) for n, record in enumerate(found)]))
    lines = best(lambda: cpu(lambda: [format_message(n, record) for n, record in enumerate(found)]))
    whole = best(lambda: measured(found, "interval", False, cpu)[0])
    packed = best(lambda: measured(found, "interval", True, cpu)[0])
    none = best(lambda: measured(found, "none", False, wall)[0])
    ack = best(lambda: measured(found, "ack", False, wall)[0])
    size, small = (measured(found, "none", gz, wall)[1] for gz in (False, True))
    return [
        Row("a line with its checksum, json.dumps", dumps, lines, dumps / lines, 2.2),
        Row("the whole log, plain, json.dumps", dumps, whole, dumps / whole, 1.5),
        Row("the whole log, gzip, json.dumps", dumps, packed, dumps / packed, 1.0),
        Row("fsync ack, fsync none, wall", none, ack, none / ack, 0.6),
        Row("bytes a record, gzip, plain (at most)", size / count, small / count, small / size, 0.35),
    ]


# ---- the broker

LOADS = (
    # so many messages a second, log or not
    "latency --rate 20000 --qos 1 --topics 50 --pubs 10 --size 81",
    "latency --rate 100000 --qos 0 --topics 50 --pubs 10 --size 81",
    "latency --rate 300000 --qos 0 --topics 50 --pubs 10 --size 81",
    # as many as the broker takes
    "throughput --qos 0 --topics 50 --size 81",
    "throughput --qos 1 --topics 50 --size 81 --window 100",
    "fanout --subs 10 --size 81",
    "fanin --pubs 100 --qos 1 --window 1 --size 81",
)
LOG = "--set message_log.path={dir}/messages --set message_log.retention_bytes=100000000"
WAYS = {
    "no log, no lane": "--set capacity.fast_lane=false",
    "log": LOG,
    "log, ack": f"{LOG} --set message_log.fsync=ack",
}


def rate(answer: dict[str, Any]) -> float:
    if "rate" in answer:  # messages a second that were to be sent
        return float(answer["rate"]) * float(answer["delivered"]) / float(answer["expected"])
    return float(answer["delivered_per_s"])


def cost(answer: dict[str, Any]) -> float:
    """Microseconds of the broker's CPU, all threads, a delivery."""
    return float(answer["broker_cpu"]) * 1e6 / rate(answer)


def slowest(answer: dict[str, Any]) -> float:
    """Milliseconds, of the slowest but one in a hundred."""
    return float(answer["p99_us"]) / 1000


FIGURES = {"messages a second": rate, "CPU us a delivery": cost, "p99 ms": slowest}


def broker(rounds: int, secs: float, loads: list[str]) -> list[Row]:
    """Rate and CPU of the daemon, of each load, log on against log off."""
    from peers import from_source
    from run import build, free_ports, one
    from scenarios import Scenario

    program, ports, rows = str(build()[0]), free_ports(), []
    for load in loads:
        scenario = Scenario(load, load, (), True)
        answers: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for title, flags in ({"": ""} | WAYS).items():
                answer = one(program, from_source(title, flags), scenario, secs, ports)
                if answer is None or answer["_error"]:
                    raise SystemExit(f"{title}, {load}: {answer and answer['_error']}")
                answers.setdefault(title, []).append(answer)
        for title in WAYS:
            for what, figure in FIGURES.items():
                if figure is slowest and "p99_us" not in answers[title][0]:
                    continue
                before, after = (statistics.median(map(figure, answers[t])) for t in ("", title))
                ratio = after / before if figure is rate else before / after
                bar = 0.8 if figure is rate and "--rate" in load and title in ("log", "log, ack") else None
                rows.append(Row(f"{load}: {title}: {what}", before, after, ratio, bar))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("records", type=int, nargs="?", default=100_000)
    parser.add_argument("--broker", action="store_true")
    parser.add_argument("--secs", type=float, default=3.0)
    parser.add_argument("--load", action="append", help="of mqttload; may be given several times")
    given = parser.parse_args()
    if given.broker:
        rows = broker(given.rounds, given.secs, given.load or list(LOADS))
    else:
        rows = log_alone(given.rounds, given.records)
    print(HEAD, "| --- | ---: | ---: | ---: | ---: |", *rows, sep="\n")


if __name__ == "__main__":
    main()
