"""The brokers that are compared: how each is found, installed if it is missing, and started for a scenario.

Each is a Contender: for a scenario it gives a command and the text of a configuration file, or nothing if it
cannot take part. In both, {port} is where plain TCP must listen, {port2} where the scenario's WebSocket or
TLS must, {dir} an empty folder and {conf} the file. Installed peers live in `.bench_cache` beside this file.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scenarios import Scenario

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".bench_cache"
Started = tuple[str, str | None]  # the command, the text of its configuration

# What mosquitto has unlimited in its configuration below, so that nothing is dropped while a window is open.
PYBROKER = (
    "--log-level warning --set limits.maximum_queued_messages=1000000"
    " --set limits.maximum_queued_bytes=1000000000 --set limits.maximum_outbound_packets=1000000"
    " --set limits.maximum_outbound_bytes=1000000000"
)


LARGE = 4096  # bytes of a message


@dataclass(frozen=True)
class Contender:
    title: str
    start: Callable[[Scenario], Started | None]
    slow: bool = False  # only in the main scenarios, and in a table of its own
    ours: bool = False  # a build of pybroker
    env: dict[str, str] = field(default_factory=dict)


def certificate() -> tuple[Path, Path] | None:
    """A self-signed certificate and its key, made once; None without openssl."""
    files = CACHE / "certificate.pem", CACHE / "key.pem"
    if not all(map(Path.exists, files)):
        if not shutil.which("openssl"):
            return None
        CACHE.mkdir(exist_ok=True)
        make = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]
        make += ["-subj", "/CN=localhost", "-days", "3650", "-out", str(files[0]), "-keyout", str(files[1])]
        subprocess.run(make, check=True, capture_output=True)
    return files


# ---- pybroker


def pybroker(title: str, python: str, flags: str = "", env: dict[str, str] | None = None) -> Contender:
    """pybroker as *python* has it installed, or as *env* lets it be found."""

    def start(scenario: Scenario) -> Started | None:
        hooked = f"{shlex.quote(str(HERE / 'hooked.py'))} {scenario.hooks}"
        program = hooked if scenario.hooks else "-m broker"
        words = [python, program, "--listen tcp://127.0.0.1:{port}", PYBROKER]
        words.append("--set store.path=" + ("{dir}/b.db" if scenario.durable else ":memory:"))
        if scenario.over == "ws":
            words.append("--listen ws://127.0.0.1:{port2}/mqtt")
        if scenario.over == "tls":
            files = certificate()
            if files is None:
                return None
            words.append("--listen tls://127.0.0.1:{port2}")
            words.append(f"--set tls.certificate={shlex.quote(str(files[0]))}")
            words.append(f"--set tls.key={shlex.quote(str(files[1]))}")
        return " ".join([*words, flags]), None

    return Contender(title, start, ours=True, env=env or {})


def from_source(title: str, flags: str = "") -> Contender:
    """This tree, whatever else is installed."""
    return pybroker(title, shlex.quote(sys.executable), flags, {"PYTHONPATH": str(HERE.parent)})


# ---- mosquitto and FlashMQ


def mosquitto() -> Contender | None:
    command = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if command is None:
        if os.geteuid() or not shutil.which("apt-get"):
            return None
        subprocess.run(
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "mosquitto"], check=False
        )
        command = shutil.which("mosquitto", path="/usr/sbin")
        if command is None:
            return None
    said = subprocess.run([command, "-h"], capture_output=True, text=True).stdout.split()
    return Contender(f"mosquitto {said[2]}", lambda scenario: _mosquitto(command, scenario))


def _mosquitto(command: str, scenario: Scenario) -> Started | None:
    lines = ["allow_anonymous true", "max_queued_messages 0", "listener {port} 127.0.0.1"]
    if os.geteuid() == 0:
        lines.insert(0, "user root")
    if scenario.over != "tcp":
        lines.append("listener {port2} 127.0.0.1")
    if scenario.over == "ws":
        lines.append("protocol websockets")
    if scenario.over == "tls":
        files = certificate()
        if files is None:
            return None
        lines += [f"certfile {files[0]}", f"keyfile {files[1]}"]
    if scenario.hooks:
        lines.append(f"acl_file {allowed()}")
    return shlex.quote(command) + " -c {conf}", "\n".join(lines)


def allowed() -> Path:
    """Where pybroker has hooks, the others have a list of what everybody may do."""
    acl = CACHE / "allowed.acl"
    acl.write_text("topic readwrite load/#\n")
    return acl


def flashmq() -> Contender | None:
    """Only if FLASHMQ names its binary."""
    command = os.environ.get("FLASHMQ")
    if not command:
        return None
    common = "allow_anonymous true\nthread_count 1\nlog_file {dir}/flashmq.log\nstorage_dir {dir}\n"
    # It drops what is more; the first is counted in 16 bits.
    common += "max_qos_msg_pending_per_client 65535\nmax_qos_bytes_pending_per_client 2147483647\n"
    bound = "  inet_protocol ip4\n  inet4_bind_address 127.0.0.1\n"
    plain = f"listen {{\n  protocol mqtt\n{bound}  port {{port}}\n}}\n"

    def start(scenario: Scenario) -> Started | None:
        conf = common + plain
        if any(int(size) >= LARGE for size in re.findall(r"--size (\d+)", scenario.load)):
            conf = "client_max_write_buffer_size 268435456\n" + conf  # it drops of these what is more
        files = certificate()
        if scenario.over == "tls" and files is None:
            return None
        if scenario.hooks:
            conf += f"mosquitto_acl_file {allowed()}\n"
        if scenario.over == "ws":
            conf += f"listen {{\n  protocol websockets\n{bound}  port {{port2}}\n}}\n"
        if scenario.over == "tls" and files is not None:
            keys = f"  fullchain {files[0]}\n  privkey {files[1]}\n"
            conf += f"listen {{\n  protocol mqtt\n{bound}  port {{port2}}\n{keys}}}\n"
        return f"{shlex.quote(command)} --config-file {{conf}}", conf

    return Contender("FlashMQ", start)


# ---- the slow ones, and any other


def plain_only(command: str, conf: str | None) -> Callable[[Scenario], Started | None]:
    """A broker that is measured over plain TCP, in memory and without hooks only."""

    def start(scenario: Scenario) -> Started | None:
        special = scenario.over != "tcp" or scenario.hooks or scenario.durable
        return None if special else (command, conf)

    return start


def amqtt() -> Contender | None:
    home = CACHE / "amqtt"
    python = home / "bin" / "python"
    if not (home / "bin" / "amqtt").exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(home)], check=False).returncode
        if (
            made
            or subprocess.run([str(python), "-m", "pip", "install", "-q", "amqtt"], check=False).returncode
        ):
            return None
    ask = "from importlib.metadata import version; print(version('amqtt'))"
    version = subprocess.run(
        [str(python), "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    conf = (
        "listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    )
    return Contender(
        f"amqtt {version}",
        plain_only(f"{shlex.quote(str(home / 'bin' / 'amqtt'))} -c {{conf}}", conf),
        slow=True,
    )


def aedes() -> Contender | None:
    home = CACHE / "aedes"
    package = home / "node_modules" / "aedes" / "package.json"
    if not shutil.which("node") or not shutil.which("npm"):
        return None
    if not package.exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}\n')
        install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "aedes"]
        if subprocess.run(install, cwd=home, check=False).returncode:
            return None
    shutil.copy(HERE / "aedes.mjs", home)
    version = next(line for line in package.read_text().splitlines() if '"version"' in line).split('"')[3]
    return Contender(
        f"aedes {version}",
        plain_only(f"node {shlex.quote(str(home / 'aedes.mjs'))} {{port}}", None),
        slow=True,
    )


def any_other(title: str, command: str, conf: str | None) -> Contender:
    return Contender(title, plain_only(command, conf))
