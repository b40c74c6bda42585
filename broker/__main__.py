"""`pybroker`, the daemon: flags -> Config -> serve(); and `pybroker store`, which looks after its file.

Exit status: 0 after a clean stop, 1 when an address or the store cannot be used, 2 for bad flags or settings,
128 + the signal when a second signal forces the end. Of `pybroker store`: 0 when all is well, 1 when there is
damage, something is lost or a file cannot be used, 2 for bad flags.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NoReturn, get_args

from broker import __version__
from broker.broker import Broker
from broker.config import Config, Format, Level, every_setting, load, shown
from broker.core import transport_options
from broker.errors import ConfigError, StoreError
from broker.store import repair
from broker.transport.base import is_loopback
from broker.transport.listen import parse_address

log = logging.getLogger("broker")

COMMANDS = ("serve", "check", "store")
WILDCARD = ("0.0.0.0", "::", "")
WAY_OUT = {
    errno.EADDRINUSE: "; stop the program that has it, or choose another with --listen URL",
    errno.EACCES: "; choose a port above 1023, or a path that may be written, with --listen URL",
    errno.EADDRNOTAVAIL: "; choose an address of this machine with --listen URL",
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, an unknown flag first of all."""

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        flags = self.parse_args(argv)
        if flags.command not in COMMANDS:
            self.error(f"{flags.command} is no command: choose serve, check or store")
        if flags.command == "store":
            self.error("store comes first")
        return flags

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def arguments() -> Parser:
    parser = Parser(prog="pybroker", description="An MQTT 3.1.1 and 5.0 broker.", allow_abbrev=False)
    add = parser.add_argument
    add(
        "command",
        nargs="?",
        default="serve",
        metavar="serve|check|store",
        help="serve (the default), or check: say what a configuration means, and start nothing, or store: "
        "look after a store (see pybroker store --help)",
    )
    add("--config", metavar="FILE.toml", help="settings; else the file that PYBROKER_CONFIG names")
    add(
        "--listen",
        metavar="URL",
        action="append",
        default=[],
        help="tcp://host:port, tls://, ws://host:port/path, wss://, unix:/path; repeatable",
    )
    add(
        "--set",
        metavar="section.key=value",
        action="append",
        default=[],
        dest="sets",
        help="one setting, over the environment (PYBROKER_SECTION_KEY) and the file; repeatable",
    )
    add("--log-format", choices=get_args(Format), help="how a line of the log looks, on standard error")
    add("--log-level", choices=get_args(Level), help="the least that is logged")
    add("--version", action="version", version=f"pybroker {__version__}")
    return parser


def store_arguments() -> Parser:
    parser = Parser(prog="pybroker store", description="Look after the file of a store.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="verify|dump|compact|salvage")
    for name, says in STORE_COMMANDS.items():
        command = commands.add_parser(name, help=says, description=says, allow_abbrev=False)
        command.add_argument("file", metavar="FILE")
        if name == "salvage":
            command.add_argument("new", metavar="NEWFILE")
    return parser


def settings(flags: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """The Config that *flags*, *environ* and the file make together. Raises ConfigError."""
    named = {"log.format": flags.log_format, "log.level": flags.log_level}
    sets = [*flags.sets, *(f"{key}={value}" for key, value in named.items() if value)]
    config = load(flags.config, environ, sets, flags.listen)
    if not config.store.path:
        config = replace(config, store=replace(config.store, path=default_store(environ)))
    if not config.listen:
        raise ConfigError(
            "listen is empty: the daemon needs an address, such as --listen tcp://127.0.0.1:1883"
        )
    return config


def default_store(environ: Mapping[str, str]) -> str:
    """The daemon's own file: in the state directory of a service manager, of the system, or of the user."""
    home = environ.get("HOME") or os.path.expanduser("~")
    folder = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if not folder and os.geteuid() == 0:
        folder = "/var/lib/pybroker"
    if not folder:
        folder = os.path.join(environ.get("XDG_STATE_HOME") or os.path.join(home, ".local/state"), "pybroker")
    return os.path.join(folder, "broker.db")


def make_folder(config: Config) -> None:
    """The folder of the store, which only this user can read. Raises StoreError."""
    folder = os.path.dirname(config.store.path)
    if folder and config.store.path != ":memory:":
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{folder}: cannot be made: {error.strerror}; choose a file with --set store.path=FILE"
            ) from None


def kept(config: Config) -> str:
    """One line about what outlives the process."""
    store = config.store
    if store.path == ":memory:":
        return "sessions and messages are kept in memory: a restart loses them"
    survives = "a power loss" if store.fsync == "always" else "a crash of this program, not a power loss"
    return f"sessions and messages are kept in {os.path.abspath(store.path)} and survive {survives}"


def who(url: str, anonymous: str) -> str:
    """Who may connect at *url* when no hook authenticates."""
    address = parse_address(url)
    if anonymous == "never":
        return "nobody: protocol.anonymous is never, and no hook authenticates"
    if anonymous == "everywhere":
        return "everybody who reaches it, without authentication"
    if address.scheme == "unix" or address.host == "localhost" or is_loopback(address.host):
        return "clients of this machine, without authentication"
    if address.host in WILDCARD:
        return (
            "clients of this machine, without authentication; clients from other machines are refused "
            "without authentication (--set protocol.anonymous=everywhere lets them in)"
        )
    return "nobody without authentication (--set protocol.anonymous=everywhere lets all in)"


def greeting(urls: Sequence[str], config: Config) -> Iterator[str]:
    """One line for each listener: its URL, and who may connect."""
    for url in urls:
        asks = parse_address(url).encrypted and config.tls.client_certificates == "required"
        certificate = ", with a client certificate" if asks else ""
        yield f"listening on {url} for {who(url, config.protocol.anonymous)}{certificate}"


def hint(urls: Sequence[str]) -> str:
    """A command that tries the first listener that mosquitto_pub can reach."""
    for address in map(parse_address, urls):
        host = "localhost" if address.host in WILDCARD else address.host
        place = f"-h {host} -p {address.port}" + (" --cafile ca.pem" if address.encrypted else "")
        if not address.websocket:
            place = f"--unix {shlex.quote(address.path)}" if address.scheme == "unix" else place
            return f"try: mosquitto_pub {place} -t hello -m world"
    return f"try: an MQTT client for WebSocket with the address {urls[0]}"


def check(config: Config) -> int:
    """Print what *config* means. Raises ConfigError when a file that it names cannot be used."""
    transport_options(config)
    for line in greeting(config.listen, config):
        print(line.replace("listening on", "would listen on", 1))
    print(kept(config))
    for key, value in changed(config).items():
        if (key, config.store.path) != ("store.path", default_store(os.environ)):
            print(f"set: {key} = {value}")
    print("the configuration is valid")
    return 0


def changed(config: Config) -> dict[str, str]:
    """The settings that differ from their defaults: key and value as a file writes them."""
    mine, default = flat_settings(config), flat_settings(Config())
    return {key: shown(value) for key, value in mine.items() if value != default[key]}


def flat_settings(config: Config) -> dict[str, Any]:
    """Every setting by its key."""
    return {key: attrgetter(key)(config) for key in every_setting()}


async def serve(config: Config) -> int:
    """Run one broker until a signal ends it."""
    make_folder(config)
    broker = Broker(config)
    try:
        await broker.start()
    except OSError as error:
        print(f"pybroker: {error.strerror or error}{WAY_OUT.get(error.errno or 0, '')}", file=sys.stderr)
        return 1
    on_signal(broker.request_stop)
    for line in (*greeting(broker.addresses, config), kept(config), hint(broker.addresses)):
        print(line, flush=True)
    await broker.serve()
    return 0


def on_signal(stop: Callable[[], None]) -> None:
    """SIGTERM and SIGINT call *stop*; the next one ends the process at once, whatever it does."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

    def first(number: signal.Signals) -> None:
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, lambda number, frame: os._exit(128 + number))
        log.info("%s: stopping; a second signal forces it", number.name)
        stop()

    for each in signals:
        loop.add_signal_handler(each, first, each)


def loop_factory(config: Config) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None for asyncio's own. Raises ConfigError when uvloop is asked for and missing."""
    if not config.uvloop:
        return None
    try:
        import uvloop
    except ImportError:
        raise ConfigError("uvloop is set but not installed: pip install pybroker[uvloop]") from None
    factory: Any = uvloop.new_event_loop
    return factory  # type: ignore[no-any-return]


# ---- the log

# What logging itself keeps in a record; everything else came in through `extra=`.
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# A peer chooses its ClientID and its topics: it must not be able to begin a line of ours.
ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO broker.client message`; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(ESCAPES)
        lines = [f"{timestamp(record)} {record.levelname} {record.name} {message}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        if record.stack_info:
            lines.append(record.stack_info)
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, the extras, and exception with a traceback.

    An extra cannot replace one of these; a value that JSON does not know is written as its text.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        extras = {key: value for key, value in vars(record).items() if key not in OWN}
        return json.dumps(line | extras | line, default=str, skipkeys=True)


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def timestamp(record: logging.LogRecord) -> str:
    """ISO 8601 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def configure(level: str, form: str) -> None:
    """Send all logging of this process to standard error. For programs, not for libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[form]())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


# ---- the store

STORE_COMMANDS = {
    "verify": "Say what is in FILE, and what is wrong with it. A broker may have it open.",
    "dump": "Write everything in FILE as JSON Lines. A broker may have it open.",
    "compact": "Give the room that FILE does not need back to the disk.",
    "salvage": "Copy all that can be read in FILE, which is not changed, to NEWFILE.",
}


def look_after(flags: argparse.Namespace) -> int:
    """`pybroker store`. Raises StoreError."""
    match flags.command:
        case "verify":
            verdict = repair.verify(flags.file)
            print(*verdict.facts, *(f"damaged: {text}" for text in verdict.problems), sep="\n")
            print("damage was found" if verdict.problems else "no damage was found")
            return int(bool(verdict.problems))
        case "dump":
            for line in repair.dump(flags.file):
                print(line)
        case "compact":
            print("{} bytes before, {} after".format(*repair.compact(flags.file)))
        case "salvage":
            done = repair.salvage(flags.file, flags.new)
            copied = [f"{name}: {rows} rows copied" for name, rows in done.copied.items()]
            print(*copied, *done.notes, *(f"lost: {text}" for text in done.lost), sep="\n")
            old = flags.file
            print(f"to use {flags.new}: move {old}, {old}-wal and {old}-shm away, then give it that name")
            return int(bool(done.lost))
    return 0


def store(argv: Sequence[str]) -> int:
    """`pybroker store ...`; returns the exit status."""
    flags = store_arguments().parse_args(argv)
    try:
        status = look_after(flags)
        sys.stdout.flush()
        return status
    except StoreError as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def use_all_descriptors() -> None:
    """Each connection takes one, and a shell usually allows 1024 without being asked for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a system may allow less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `pybroker` command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["store"]:
        return store(words[1:])
    flags = arguments().parse(words)
    try:
        config = settings(flags, os.environ)
        if flags.command == "check":
            loop_factory(config)
            return check(config)
        configure(config.log.level, config.log.format)
        use_all_descriptors()
        with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
            return runner.run(serve(config))
    except ConfigError as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return 2
    except StoreError as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before there was a broker to stop
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
