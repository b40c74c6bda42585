"""All scenarios against all brokers, and the tables of README.md.

    python benchmarks/run.py                                  # everything, about an hour; writes README.md
    python benchmarks/run.py --scenario 'fan*' --rounds 1     # some; prints the tables
    python benchmarks/run.py --patience 20                    # on a machine that others use, too
    python benchmarks/run.py --list

Builds the load generator, finds or installs the peers (in `benchmarks/.bench_cache`), and runs: each time a
fresh broker on core 0 and the generator on core 1, in the order round, scenario, broker, so that a slow drift
of the machine hits all alike. Figures are medians. FLASHMQ=path in the environment makes FlashMQ take part.
All single answers of the last whole run are in `benchmarks/.bench_cache/last.json`.

More brokers: `--pybroker 'NAME=PYTHON FLAGS'` is pybroker as another Python has it installed (a compiled
build in its own environment, for instance), `--variant 'NAME=FLAGS'` this tree with other flags, `--peer
'NAME=COMMAND'` (with `--conf NAME=TEXT`) anything else, where {port}, {dir} and {conf} are filled in.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import itertools
import json
import os
import platform
import random
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import peers
import tables
from mqttload import compare
from peers import CACHE, HERE, Contender
from quiet import Quiet
from scenarios import SCENARIOS, Scenario

README = HERE / "README.md"
SOURCE = HERE / "mqttload" / "mqttload.c"
KEPT = CACHE / "last.json"


def main() -> None:
    wanted = options()
    chosen = [
        each for each in SCENARIOS if any(fnmatch.fnmatch(each.name, name) for name in wanted.scenario or "*")
    ]
    if wanted.list:
        for each in chosen:
            print(f"{each.name:22} {'users' if each.users else 'benchmarks':11} {each.over} {each.load}")
        return
    for_readme = wanted.write or not (wanted.scenario or wanted.broker)
    if wanted.again:
        kept = json.loads(KEPT.read_text())
    else:
        brokers = contenders(wanted)
        kept = {
            "made": circumstances(wanted, brokers[0].title),
            "fast": [each.title for each in brokers if not each.slow],
            "ours": [each.title for each in brokers if each.ours],
            "slow": [each.title for each in brokers if each.slow],
            "answers": [],
        }
        for answer in run(build(), brokers, chosen, wanted):
            kept["answers"].append(answer)
            if for_readme:
                KEPT.write_text(json.dumps(kept))  # each time: a run that is ended early is not lost
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for scenario, title, answer in kept["answers"]:
        results.setdefault((scenario, title), []).append(answer)
    times = {each.name: each.times for each in SCENARIOS}
    rounds = max(-(-len(answers) // times.get(scenario, 1)) for (scenario, _), answers in results.items())
    text = f"Medians of {rounds} interleaved round(s) of {kept['made']}\n\n" + tables.tables(
        results, chosen, kept["fast"], kept["ours"], kept["slow"]
    )
    if for_readme:
        README.write_text(tables.between(README.read_text(), "figures", text))
    else:
        print(text)


def options() -> argparse.Namespace:
    says = __doc__ or ""
    parser = argparse.ArgumentParser(description=says, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--scenario", action="append", metavar="NAME", help="only those, wildcards allowed; repeatable")
    add(
        "--broker",
        action="append",
        choices=sorted(KNOWN),
        help="only those, and what is added below; repeatable",
    )
    add("--rounds", type=int, default=5)
    add(
        "--patience",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait so long at most, before each run, until nobody else uses the cores (see quiet.py)",
    )
    add("--secs", type=float, default=1.0, help="measured seconds of a run; below 1, counts shrink as well")
    add("--pybroker", action="append", default=[], metavar="NAME=PYTHON FLAGS")
    add("--variant", action="append", default=[], metavar="NAME=FLAGS")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND")
    add("--conf", action="append", default=[], metavar="NAME=TEXT")
    add("--list", action="store_true", help="say which scenarios there are")
    add("--write", action="store_true", help="write README.md even if only some were run")
    add(
        "--again",
        action="store_true",
        help="write the tables of the last whole run once more, also if it was ended early",
    )
    return parser.parse_args()


# ---- who takes part


def uvloop() -> Contender | None:
    there = importlib.util.find_spec("uvloop") is not None
    return peers.from_source("pybroker, uvloop", "--set uvloop=true") if there else None


KNOWN = {
    "mosquitto": peers.mosquitto,
    "pybroker": lambda: peers.from_source("pybroker"),
    "uvloop": uvloop,
    "readable": lambda: peers.from_source("readable lane alone", "--set capacity.fast_lane=false"),
    "flashmq": peers.flashmq,
    "amqtt": peers.amqtt,
    "aedes": peers.aedes,
}


def contenders(wanted: argparse.Namespace) -> list[Contender]:
    """mosquitto first: ratios are against it. Then pybroker: the goals are for it."""
    found = []
    for name, make in KNOWN.items():
        if wanted.broker and name not in wanted.broker:
            continue
        contender = make()
        if contender is None:
            say(f"{name} takes no part: not found, and could not be installed")
        else:
            found.append(contender)
    for given in wanted.variant:
        found.append(peers.from_source(*split(given)))
    for given in wanted.pybroker:
        title, command = split(given)
        python, _, flags = command.partition(" ")
        found.append(peers.pybroker(title, python, flags))
    confs = dict(map(split, wanted.conf))
    for given in wanted.peer:
        title, command = split(given)
        conf = confs.get(title)
        found.append(peers.any_other(title, command, conf.replace("\\n", "\n") if conf else None))
    if not found:
        sys.exit("no broker to measure")
    return found


def split(given: str) -> tuple[str, str]:
    name, equals, text = given.partition("=")
    if not equals:
        sys.exit(f"{given}: NAME=... is wanted")
    return name, text


# ---- the generator


def build() -> tuple[Path, bool]:
    """The generator, built if it is older than its source, and whether it speaks TLS."""
    CACHE.mkdir(exist_ok=True)
    program = CACHE / "mqttload"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        fresh = CACHE / f"mqttload.{os.getpid()}"
        base = ["cc", "-O2", "-o", str(fresh), str(SOURCE)]
        with_tls = subprocess.run([*base, "-DMQTTLOAD_TLS", "-lssl", "-lcrypto"], capture_output=True)
        if with_tls.returncode:
            subprocess.run(base, check=True)
        os.replace(fresh, program)  # whole, or not at all: another run may be using the old one
    tls = b"SSL_write" in program.read_bytes()
    if not tls:
        say("no TLS: the headers of OpenSSL are missing (Debian: libssl-dev)")
    return program, tls


def load_arguments(scenario: Scenario, secs: float) -> list[str]:
    """The generator's arguments. A short run also counts less, at least 20."""

    def count(match: re.Match[str]) -> str:
        return str(max(20, int(int(match[1]) * min(1.0, secs))))

    words = re.sub(r"\{count:(\d+)\}", count, scenario.load).split()
    if words[0] in compare.TIMED:
        words += ["--secs", str(secs), "--warmup", str(min(0.5, secs))]
    if scenario.over != "tcp":
        words.append(f"--{scenario.over}")
    return words


# ---- running


def run(
    generator: tuple[Path, bool],
    brokers: Sequence[Contender],
    chosen: Sequence[Scenario],
    wanted: argparse.Namespace,
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Scenario, broker and answer of each run."""
    program, tls = generator
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ports = free_ports()
    quiet = Quiet(wanted.patience if len(os.sched_getaffinity(0)) > 1 else 0)
    often = [(scenario, broker) for scenario in chosen for _ in range(scenario.times) for broker in brokers]
    for number, (scenario, broker) in itertools.product(range(wanted.rounds), often):
        if (scenario.over == "tls" and not tls) or (broker.slow and not scenario.main):
            continue
        quiet.wait()
        answer = one(str(program), broker, scenario, wanted.secs, ports)
        if answer is not None and quiet.again():
            quiet.wait()
            answer = one(str(program), broker, scenario, wanted.secs, ports)
        if answer is not None:
            say(f"{number + 1} {scenario.name}, {broker.title}: {summary(scenario, answer)}")
            yield scenario.name, broker.title, answer
    if wanted.patience:
        say(f"waited {quiet.waited:.0f} s for others; {quiet.repeated} run(s) measured once more")


def one(
    program: str, contender: Contender, scenario: Scenario, secs: float, ports: Iterator[int]
) -> dict[str, Any] | None:
    """What the generator says, with _cpu, _peak and _error; None if this broker takes no part."""
    started = contender.start(scenario)
    if started is None:
        return None
    cores = len(os.sched_getaffinity(0)) > 1
    scratch = CACHE / "scratch"  # on the disk of the sources: /tmp may be memory, which syncs in no time
    scratch.mkdir(exist_ok=True)
    command, conf = started
    broker = compare.Broker(
        contender.title, command, conf, 0 if cores else -1, str(scratch), True, contender.env
    )
    port, port2 = next(ports), next(ports)
    at = port if scenario.over == "tcp" else port2
    words = load_arguments(scenario, secs)
    try:
        return compare.one_run(broker, words, program, 1 if cores else -1, port, port2, 0.2, at)
    except SystemExit as failed:  # it did not start
        return {"_error": str(failed)}


def free_ports() -> Iterator[int]:
    """Ports of this machine below those that clients get, from a random one on."""
    for offset in itertools.count(random.randrange(10_000)):
        port = 20_000 + offset % 10_000
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


def summary(scenario: Scenario, answer: dict[str, Any]) -> str:
    if answer["_error"]:
        return "failed: " + " ".join(answer["_error"].split())[-300:]
    return ", ".join(f"{each.key} {tables.short(answer.get(each.key))}" for each in scenario.figures)


def circumstances(wanted: argparse.Namespace, base: str) -> str:
    """How it was measured, but for the rounds: a run may be ended early."""
    patient = f", waiting {wanted.patience:g} s at most for others to leave them" if wanted.patience else ""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"{wanted.secs:g} s; {python}; "
        f"{os.cpu_count()} cores, one for the broker and one for the generator{patient}; "
        f"ratios are to {base}."
    )


def say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
