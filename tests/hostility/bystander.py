"""A well-behaved client in a process of its own: what it lives through while others misbehave.

`python -m tests.hostility.bystander PORT PID` goes round until its standard input ends: QoS 0 to itself,
QoS 1 to itself with all acknowledgements, and now and then a new connection. Then it writes one JSON object
with the seconds that each kind took, and what went wrong. PID is the broker: the time in which it, or we,
were ready to run and the machine was busy with other processes does not count.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from tests.conformance import wire
from tests.hostility.line import Line

PAUSE = 0.01  # seconds between two rounds
CONNECT_EVERY = 0.25  # seconds
TOPIC = "bystander"
LIMIT = 110.0  # seconds, whatever happens to whoever started it


class Bystander:
    """One client with what it measured, in seconds."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.waits = [Path(f"/proc/{each}/schedstat") for each in (pid, os.getpid())]
        self.line = Line(port).connect("bystander", keep_alive=60)
        self.line.subscribe((TOPIC, 1))
        self.rounds = 0
        self.seconds: dict[str, list[float]] = {"qos0": [], "qos1": [], "connect": []}

    def now(self) -> float:
        """Seconds, on a clock that stands still while the machine does not run us or the broker."""
        lost = sum(int(each.read_text().split()[1]) for each in self.waits if each.exists())
        return time.monotonic() - lost / 1e9

    def round_trip(self, qos: int) -> None:
        """Publish, and see it come back whole; nothing else may come."""
        self.rounds += 1
        payload, wanted = str(self.rounds).encode(), {"PUBLISH"} | ({"PUBACK"} if qos else set())
        began = self.now()
        self.line.send(wire.publish(TOPIC, payload, qos=qos))
        while wanted:
            packet = self.line.packet()
            assert packet is not None, "the broker ended the connection"
            assert packet.name in wanted, f"unexpected {packet}"
            wanted.discard(packet.name)
            if packet.name == "PUBLISH":
                assert packet.payload == payload, f"{packet.payload!r} instead of {payload!r}"
            if packet.name == "PUBLISH" and qos:
                self.line.send(wire.puback(packet.packet_id or 0))
        self.seconds[f"qos{qos}"].append(self.now() - began)

    def newcomer(self) -> None:
        """A client that comes and goes."""
        began = self.now()
        line = Line(self.port).connect(f"newcomer-{self.rounds}")
        line.send(wire.disconnect())
        self.seconds["connect"].append(self.now() - began)
        line.close()


def main(port: int, pid: int, connects: bool) -> None:
    bystander, over = Bystander(port, pid), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print("ready", flush=True)
    ends, connect_at, error = time.monotonic() + LIMIT, 0.0, ""
    try:
        while not over.is_set() and time.monotonic() < ends:
            bystander.round_trip(0)
            bystander.round_trip(1)
            if connects and time.monotonic() >= connect_at:
                bystander.newcomer()
                connect_at = time.monotonic() + CONNECT_EVERY
            time.sleep(PAUSE)
    except (AssertionError, OSError) as failure:
        error = f"{type(failure).__name__} in round {bystander.rounds}: {failure}"
    print(json.dumps({"error": error, **bystander.seconds}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "alone" not in sys.argv[3:])
