"""What a message costs from the log to bronze, and back: microseconds of CPU, and ratios of the same run.

    python benchmarks/spark.py [--messages N] [--rounds N] [line ...]

Lines: read, ingest, memory, tail, sink. Ratios of the first are to `spark.read.json` of the same files,
written nowhere; of the sink to paho-mqtt with the same messages, of the broker to itself without dedup. CPU
is that of the whole process tree, JVM and workers, on a warm JVM, the best of the rounds. Ratios travel
between machines, figures do not. Exit code 1: a ratio is below its bar.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
if Path(sys.path[0]).resolve() == ROOT / "benchmarks":  # run as a file: `spark` must be the package
    sys.path[0] = str(ROOT)

import pyarrow as pa  # noqa: E402
from paho.mqtt import client as mqtt  # noqa: E402

from broker.hook.log.line import format_message  # noqa: E402
from broker.hook.log.names import OpenSegment  # noqa: E402
from broker.hook.log.segment import Segment  # noqa: E402
from spark import ingest, live, session  # noqa: E402
from spark.log.listing import Log  # noqa: E402
from spark.mqtt.options import Address  # noqa: E402
from spark.schema import KINDS, PLACE  # noqa: E402
from spark.source import register  # noqa: E402
from spark.tables import LAYOUTS  # noqa: E402
from spark.tools.logfiles import write_log  # noqa: E402
from spark.tools.samples import Options, messages  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
SEGMENT = 25_000  # records; four make a batch


class Line(NamedTuple):
    """A line of the table. *ratio* is better when larger; where *at_most*, when smaller."""

    what: str
    figure: str
    ratio: float
    bar: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


def tree(root: int) -> list[int]:
    """*root* and every process below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu() -> float:
    """Seconds of CPU that this process and all below it have used, those that ended as well."""
    total = 0
    for pid in tree(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / TICK


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of CPU of *work*, the least of the rounds; one more goes before to warm the JVM."""
    found = []
    for _ in range(rounds + 1):
        before = cpu()
        work()
        found.append(cpu() - before)
    return min(found[1:])


def by_json(spark: session.SparkSession, log: Path) -> None:
    """The baseline: all columns as the line has them, nothing decoded or checked."""
    plain = {"binary": "string", "boolean": "int", "timestamp": "bigint"}
    columns = (*PLACE[2:], *KINDS["messages"])
    schema = ", ".join(f"`{column.key}` {plain.get(column.type, column.type)}" for column in columns)
    found = spark.read.schema(schema).json(str(log / "v1" / "closed" / "kind=messages"))
    found.write.format("noop").mode("overwrite").save()


def by_mqttlog(spark: session.SparkSession, log: Path, decode: bool) -> None:
    reader = spark.read.format("mqttlog").option("decode", decode)
    reader.load(str(log)).write.format("noop").mode("overwrite").save()


def chosen(log: Path, out: Path, *more: str) -> list[str]:
    return ["--log", str(log), "--out", str(out), "--kind", "messages", *more]


def to_bronze(spark: session.SparkSession, log: Path, layout: str) -> float:
    """Seconds of CPU for a row in all batches but the first: starting a query costs two seconds, once."""
    out, seen = log.parent / "bronze", []
    shutil.rmtree(out, ignore_errors=True)
    said = chosen(log, out, "--once", "--table", layout, "--max-records", str(4 * SEGMENT))
    announce = ingest.Job._announce

    def note(job: ingest.Job, batch: object, found: dict[str, int], seconds: float) -> None:
        seen.append((cpu(), found["rows"]))
        announce(job, batch, found, seconds)

    ingest.Job._announce = note
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert ingest.run(ingest.parser().parse_args(said), spark) == 0
    finally:
        ingest.Job._announce = announce
    return (seen[-1][0] - seen[0][0]) / sum(rows for _, rows in seen[1:])


def reading(folder: Path, count: int, rounds: int, lines: set[str]) -> Iterator[Line]:
    """Lines `read` and `ingest`: one session, one log."""
    log = folder / "log"
    write_log(messages(Options(messages=count)), log, limit=SEGMENT)
    rows = len_of(log)
    spark = session.build("benchmark")
    register(spark)
    base = best(lambda: by_json(spark, log), rounds)
    print(f"spark.read.json of {rows} messages: {1e6 * base / rows:.2f} us each\n", flush=True)
    base /= rows
    for what, decode in (("mqttlog read", True), ("mqttlog read, decode=false", False)):
        if "read" in lines:
            spent = best(lambda decode=decode: by_mqttlog(spark, log, decode), rounds) / rows
            yield Line(what, f"{1e6 * spent:.2f} us", base / spent, 0.40)
    for layout in LAYOUTS:
        if "ingest" in lines:
            spent = min([to_bronze(spark, log, layout) for _ in range(rounds + 2)][2:])
            yield Line(f"ingest to bronze, {layout}, warm", f"{1e6 * spent:.2f} us", base / spent, 0.20)
    spark.stop()


def len_of(log: Path) -> int:
    return sum(each.last + 1 - each.first for each in Log(str(log), "messages").segments())


def memory(folder: Path, count: int) -> Line:
    """The most that the JVM ever had, over a backlog and over ten times as much."""
    peaks = []
    for times in (1, 10):
        log = folder / f"log-{times}"
        write_log(messages(Options(messages=count * times)), log, limit=SEGMENT)
        said = chosen(log, folder / f"out-{times}", "--once", "--max-records", str(count // 4))
        peaks.append(peak_of(said))
    figure = f"{peaks[0]:.0f} -> {peaks[1]:.0f} MB"
    return Line("JVM peak, 10 x the backlog", figure, peaks[1] / peaks[0], 1.25, True)


def peak_of(said: list[str]) -> float:
    """Megabytes of the JVM of one job, at its highest."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    job = subprocess.Popen([sys.executable, "-m", "spark.ingest", *said], env=environment, **quiet)
    peak = 0
    while job.poll() is None:
        for pid in tree(job.pid)[1:]:
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{pid}/status").read_text()
                if status.startswith("Name:\tjava"):
                    peak = max(peak, int(status.split("VmHWM:")[1].split()[0]))
        time.sleep(0.1)
    assert job.returncode == 0
    return peak / 1024


def tail(folder: Path, count: int, rate: int) -> Line:
    """How old the oldest row of a batch is when it is done, while a writer goes on: *count* batches."""
    log, ended = folder / "tail", threading.Event()
    (log / "v1").mkdir(parents=True)
    writing = threading.Thread(target=write_on, args=(log, rate, ended))
    said = chosen(log, folder / "tailed", "--tail", "--trigger", "1 second")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "spark.ingest", *said]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as job:
        writing.start()
        batches = []
        for line in job.stdout or ():
            batches.append(json.loads(line))
            if len(batches) == count:
                job.send_signal(signal.SIGTERM)
        ended.set()
    writing.join()
    assert len(batches) >= count, f"the job ended by itself, with {job.returncode}"
    warm = batches[len(batches) // 2 :]
    ages = [batch["age"] + batch["rows"] / rate for batch in warm]
    age, spent = sum(ages) / len(ages), sum(batch["seconds"] for batch in warm) / len(warm)
    figure = f"{age:.1f} s, a batch {spent:.1f} s"
    return Line("age of the oldest row, 1 s trigger", figure, age / (3 * spent + 1), 1.0, True)


def write_on(log: Path, rate: int, ended: threading.Event) -> None:
    """*rate* messages a second into segments of five seconds."""
    source = messages(Options(messages=10_000_000))
    segment: Segment | None = None
    first, epoch = 0, int(time.time())
    while not ended.is_set():
        now = int(time.time() * 1e6)
        if segment is None:
            segment = Segment(log, "messages", OpenSegment("bench", epoch, first), now)
            until = time.monotonic() + 5
        lines = [format_message(segment.next + n, next(source)._replace(at=now)) for n in range(rate // 10)]
        segment.append(b"".join(lines), len(lines))
        if time.monotonic() > until or now // 3_600_000_000 != segment.hour:
            first = segment.next
            segment.close()
            segment = None
        ended.wait(0.1)


@contextlib.contextmanager
def broker(folder: Path, *settings: str) -> Iterator[tuple[int, int]]:
    """A broker as a process: its port, and its number."""
    command = [sys.executable, "-m", "broker", "--listen", "tcp://127.0.0.1:0", "--set", "log.level=error"]
    command += [part for setting in settings for part in ("--set", setting)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = next(line for line in process.stdout if "listening on" in line)
        yield int(said.rpartition("127.0.0.1:")[2].split()[0].rstrip(",.")), process.pid
    finally:
        process.kill()
        process.communicate()


def of_process(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def by_sink(port: int, batch: int, rows: list[tuple[str, bytes]]) -> None:
    """One task, without the JVM that would give it its rows."""
    columns = [pa.array(list(each)) for each in zip(*rows, strict=True)]
    batches = pa.Table.from_arrays(columns, ["topic", "payload"]).to_batches(10_000)
    live.send(live.Settings(Address(port=port)), "benchmark", batch, batches)


def by_paho(port: int, rows: list[tuple[str, bytes]]) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(512)
    client.connect("127.0.0.1", port)
    client.loop_start()
    properties = mqtt.Properties(mqtt.PacketTypes.PUBLISH)
    properties.UserProperty = ("producer", "none")
    sent = [client.publish(topic, payload, 1, properties=properties) for topic, payload in rows]
    for each in sent:
        each.wait_for_publish(60)
    client.disconnect()
    client.loop_stop()


def sink(folder: Path, count: int, rounds: int) -> Iterator[Line]:
    """CPU of one task that publishes, against paho-mqtt; and of the broker with and without dedup."""
    rows = [(f"devices/{n % 500}/state", b"x" * 81) for n in range(count)]
    costs: dict[str, list[float]] = {}
    for name, dedup in (("without", "false"), ("dedup", "true")):
        store = f"store.path={folder / name}.db"
        with broker(folder, store, f"dedup.enabled={dedup}") as (port, pid):
            for batch in range(rounds + 1):
                ours, theirs = time.process_time(), of_process(pid)
                by_sink(port, batch, rows)
                costs.setdefault("sink", []).append(time.process_time() - ours)
                costs.setdefault(name, []).append(of_process(pid) - theirs)
            if name == "without":
                before = time.process_time()
                by_paho(port, rows)
                costs["paho"] = [time.process_time() - before]
    least = {name: min(found) / count * 1e6 for name, found in costs.items()}
    yield Line("sink, a task", f"{least['sink']:6.1f} us", least["paho"] / least["sink"], 2.0)
    yield Line("broker with dedup", f"{least['dedup']:6.1f} us", least["without"] / least["dedup"], 0.25)


LINES = ("read", "ingest", "memory", "tail", "sink")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("lines", nargs="*", metavar="line", help=f"{', '.join(LINES)}; default: all")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    lines = {*given.lines} or {*LINES}
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if lines & {"read", "ingest"}:
            found += list(reading(folder, given.messages, given.rounds, lines))
        if "memory" in lines:
            found.append(memory(folder, given.messages // 4))
        if "tail" in lines:
            found.append(tail(folder, 12, 2000))
        if "sink" in lines:
            found += sink(folder, given.messages // 8, given.rounds)
    for line in found:
        bar = f"{'<=' if line.at_most else '>='} {line.bar:.2f}{'' if line.holds else '  !'}"
        print(f"{line.what:36} {line.figure:24} {line.ratio:5.2f}  {bar}")
    return 0 if all(line.holds for line in found) else 1


if __name__ == "__main__":
    sys.exit(main())
