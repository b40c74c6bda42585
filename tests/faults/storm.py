"""The kill storm: a broker that is killed over and over under clients that never give up.

    python -m tests.faults.storm --rounds 500 --seed 7

runs it by itself; see `--help`. What clients did and saw is judged at the end, by `checker`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.checker import check
from tests.faults.crowd import Weather, crowd
from tests.faults.daemon import MEMORY, Restartable
from tests.faults.history import Acknowledged, Arrived, Drained, History, Killed, Started
from tests.faults.killer import TAKES
from tests.faults.pahos import PahoPublisher, PahoSubscriber

LEVELS = ("always", "normal", "never")
WINDOWS = (5, 20, 1024)  # messages on their way to one subscriber; the others wait in its session
COMMITS = (0.002, 0.01, 0.05)  # seconds that a commit takes on a slow disk
LONGEST = 10  # times the patience, if something comes all the time
QUIET = 1.0  # seconds without anything new, after which nothing more is expected
SHOWN = 5  # breaches of each rule that are printed
SETTINGS = ("limits.maximum_queued_messages=1000000",)  # nothing may be dropped for want of room


@dataclass
class Plan:
    """What happens to the broker. Everything random comes from *seed*."""

    rounds: int = 50
    seed: int = 0
    kill: bool = True  # False: the broker lives, only connections break
    shortest: float = 0.02  # seconds of one life of the broker
    longest: float = 1.2
    early: float = 0.1  # how many of the kills hit a broker that is still starting
    slow: float = 0.5  # how many of its lives it spends with a slow disk
    stops: float = 0.1  # how many stops in order there are besides, for each kill
    patience: float = 30.0  # seconds for what is still missing at the end


@dataclass
class Report:
    kills: int = 0
    stops: int = 0
    seconds: float = 0.0
    breaches: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        lines = [f"{self.kills} kills, {self.stops} stops, {self.seconds:.0f} s; {counts}"]
        shown: Counter[str] = Counter()
        for breach in self.breaches:
            name = breach.partition(":")[0]
            shown[name] += 1
            if shown[name] <= SHOWN:
                lines.append(breach)
        lines += [f"{count} breaches of {name}" for name, count in shown.items()]
        return "\n".join(lines)


class Storm:
    """One storm over one broker, which is not running before and after."""

    def __init__(self, broker: Restartable, plan: Plan) -> None:
        self.broker, self.plan = broker, plan
        self.dice = random.Random(plan.seed)
        self.history: History = []
        self.weather = Weather(broker.port, self.history, plan.seed)
        self.report = Report()

    async def run(self) -> Report:
        began = time.monotonic()
        with self._pahos() as (publisher, subscriber):
            actors = [asyncio.create_task(actor) for actor in crowd(self.weather)]
            actors.append(asyncio.create_task(publisher.live(self.weather)))
            actors.append(asyncio.create_task(subscriber.live()))
            try:
                await self._rage(actors)
                self.weather.raging = False
                await self._calm(actors)
            finally:
                for actor in actors:
                    actor.cancel()
                await asyncio.wait(actors)
        await _blocking(self.broker.stop)
        self.report.seconds = time.monotonic() - began
        self.report.counts = Counter(_kind(event) for event in self.history)
        complaints = [f"log: {line}" for line in self.broker.complaints]
        self.report.breaches = [*check(self.history), *complaints]
        return self.report

    @contextmanager
    def _pahos(self) -> Iterator[tuple[PahoPublisher, PahoSubscriber]]:
        publisher = PahoPublisher("paho_pub", self.history, self.broker.port)
        subscriber = PahoSubscriber("paho_sub", self.history, self.broker.port, "storm/#")
        try:
            yield publisher, subscriber
        finally:
            publisher.stop()
            subscriber.stop()

    # ---- the broker's lives

    async def _rage(self, actors: list[asyncio.Task[None]]) -> None:
        plan, dice = self.plan, self.dice
        if not plan.kill:
            await self._start()
            await self._live(plan.rounds * plan.longest / 2, actors)
            return
        while self.report.kills < plan.rounds:
            if dice.random() < plan.early:
                self.broker.launch(*self._settings())
                await asyncio.sleep(dice.uniform(0.0, 0.4))
                await self._kill()
                continue
            await self._start()
            await self._live(dice.uniform(plan.shortest, plan.longest), actors)
            if dice.random() < plan.stops:
                self.report.stops += 1
                await _blocking(self.broker.stop)
            else:
                await self._kill()
            await asyncio.sleep(dice.uniform(0.0, 0.05))
        await self._start()

    async def _start(self) -> None:
        await _blocking(self._start_now)
        self.history.append(Started("broker"))

    def _start_now(self) -> None:
        if self.dice.random() < self.plan.slow:
            takes = {TAKES: f"{self.dice.choice(COMMITS):g}"}
            self.broker.start(*self._settings(), module="tests.faults.killer", **takes)
        else:
            self.broker.start(*self._settings())

    def _settings(self) -> list[str]:
        """What this life is like."""
        window = f"limits.outbound_receive_maximum={self.dice.choice(WINDOWS)}"
        return [window, *([] if self.broker.store == MEMORY else [f"store.fsync={self.dice.choice(LEVELS)}"])]

    async def _live(self, seconds: float, actors: list[asyncio.Task[None]]) -> None:
        done, _ = await asyncio.wait(actors, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for actor in done:
            actor.result()
            raise AssertionError(f"{actor} gave up")
        assert self.broker.running, f"the broker ended by itself: {self.broker.log()}"

    async def _kill(self) -> None:
        self.history.append(Killed("broker"))
        await _blocking(self.broker.kill)
        self.report.kills += 1

    # ---- the end

    async def _calm(self, actors: list[asyncio.Task[None]]) -> None:
        """Until nothing more comes; what is missing even then is what `check` finds.

        With a small window and a slow disk a long queue takes its time: as long as something comes we wait.
        """
        now = time.monotonic()
        deadline, latest = now + self.plan.patience, now + LONGEST * self.plan.patience
        while time.monotonic() < deadline:
            before = len(self.history)
            await self._live(QUIET, actors)
            if len(self.history) > before:
                deadline = min(time.monotonic() + self.plan.patience, latest)
            quiet = len(self.history) == before and all(peer.connected for peer in self.weather.peers)
            if quiet and not check([*self.history, Drained("all")]):
                break
        self.history.append(Drained("all"))


def _kind(event: object) -> str:
    if isinstance(event, Arrived):
        return "Arrived again" if event.again or event.dup else "Arrived"
    return event.kind if isinstance(event, Acknowledged) else type(event).__name__


async def _blocking(function: Callable[..., Any], *args: str) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def storm(store: str | Path, plan: Plan) -> Report:
    """Run one storm on *store*, which is new or was left by another one."""
    broker = Restartable(store, SETTINGS)
    try:
        return asyncio.run(Storm(broker, plan).run())
    finally:
        broker.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description="The kill storm.")
    parser.add_argument("--rounds", type=int, default=50, help="how often the broker is killed")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--store", help=f"a path that is kept, or {MEMORY}; else a file that goes away")
    parser.add_argument("--no-kill", action="store_true", help="connections break, the broker lives")
    flags = parser.parse_args()
    print(f"seed {flags.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(flags.rounds, flags.seed, kill=not flags.no_kill)
        report = storm(flags.store or Path(folder) / "storm.db", plan)
    print(f"{report}\n{len(report.breaches)} breaches with seed {flags.seed}")
    return 1 if report.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
