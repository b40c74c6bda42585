"""The benchmarks run and say what they should. No figure is ever compared with a time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = {"peers", "quiet", "scenarios", "tables"}  # of run.py and growth.py; hooked.py is run by it
MINUTES = {"spark"}  # its parts are in tests/spark
OVER_SOCKETS = {"run", "growth", "hooked"}
# Arguments for a short run, where one round is not short enough.
FEW = {"tree": ["1", "100"], "message_log": ["1", "3000"]}
MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
SPEAKS_PLAIN = """
import socket, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from run import build
listener = socket.create_server(("127.0.0.1", 0))
def answer():
    peer, _ = listener.accept()
    peer.recv(4096)
    peer.sendall(b"HTTP/1.1 404 Not Found\\r\\n\\r\\n")
    peer.recv(4096)
threading.Thread(target=answer, daemon=True).start()
command = [str(build()[0]), "throughput", "--ws", "--port", str(listener.getsockname()[1]), "--secs", "0.1"]
done = subprocess.run(command, capture_output=True, text=True, timeout=20)
assert done.returncode == 2, done
print(done.stderr)
"""
HERE = ["--broker", "pybroker", *(["--broker", "mosquitto"] if MOSQUITTO else [])]


def run(name: str, *arguments: str) -> str:
    """What a program prints; fails unless its exit status is 0."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=BENCHMARKS.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(printed: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if "|" in line]


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in BENCHMARKS.glob("*.py")} - PARTS - OVER_SOCKETS - MINUTES)
)
def test_each_program_in_one_process_prints_a_whole_table(name: str) -> None:
    head, _, *body = rows(run(name, *FEW.get(name, ["1"])))
    assert body
    for row in body:
        assert len(row) == len(head)
        assert all(float(cell.replace(",", "")) >= 0 for cell in row[1:]), row


def test_the_broker_with_a_log_delivers_all_that_is_published() -> None:
    load = "throughput --topics 2 --size 81 --qos 1"
    head, _, *body = rows(run("message_log", "1", "--broker", "--secs", "0.3", "--load", load))
    assert head[0] == "what" and len(body) == 6
    assert all(float(row[1]) > 0 and float(row[2]) > 0 for row in body)


def test_the_main_scenarios_deliver_all_that_is_published() -> None:
    chosen = ["varied-qos1", "hooks-varied-qos1", "hooks-quick-varied-qos1", "ws-qos0", "tls-qos0"]
    chosen += ["shared-qos1", "v5-two-qos0"]
    printed = run("run", "--rounds", "1", "--secs", "0.2", *HERE, *asked(chosen))
    assert "fails" not in printed and "lost" not in printed, printed
    rates = table(printed, "### Rates")
    assert len(rates) == len(chosen)
    for row in rates:
        assert all(cell[:1].isdigit() for cell in row[1 : len(row) // 2 - 1]), row
        assert row[len(row) // 2 - 1] == "yes", row


def test_scenarios_of_other_kinds_say_their_own_figures() -> None:
    chosen = [
        "durable-100",
        "v5-alias-qos0",
        "idle-session",
        "latency-1k",
        "connect",
        "wildcards",
        "retained",
    ]
    printed = run("run", "--rounds", "1", "--secs", "0.2", "--broker", "pybroker", *asked(chosen))
    assert "fails" not in printed and "lost" not in printed, printed
    assert len(table(printed, "### Peak")) == 5  # five of these are what users have, two what benchmarks have


def test_growth_measures_each_series() -> None:
    printed = run("growth", "--rounds", "1", "--secs", "0.5", "--most", "1", "--no-write")
    mine = [row for row in rows(printed) if row[0] == "pybroker"]
    assert len(mine) == 3
    assert all(float(row[1]) > 0 for row in mine)


def test_the_generator_sees_a_server_that_speaks_something_else() -> None:
    """Plain MQTT where WebSocket is wanted: an answer of the generator's own, and exit status 2."""
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS_PLAIN, str(BENCHMARKS)], capture_output=True, text=True, timeout=30
    )
    assert "the upgrade was refused" in done.stdout, done


def asked(names: list[str]) -> list[str]:
    return [word for name in names for word in ("--scenario", name)]


def table(printed: str, heading: str) -> list[list[str]]:
    """The rows of the table below *heading*, without its head."""
    _, _, rest = printed.partition(heading)
    return rows(rest.split("###")[0])[2:]
