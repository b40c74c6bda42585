"""The flags of `pybroker`, and what it says; the running daemon is tests/end_to_end/test_daemon.py."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from broker import __version__
from broker.__main__ import (
    STORE_COMMANDS,
    arguments,
    default_store,
    greeting,
    hint,
    kept,
    main,
    make_folder,
    settings,
    who,
)
from broker.config import Config, Log, Store, Tls
from broker.errors import ConfigError, StoreError
from broker.store.sqlite import SqliteStore
from tests.store.contents import FIXED, as_found, found_in, random_rows, write_fixed, write_store

MACHINE = "clients of this machine, without authentication"
ROOT = Path(__file__).parent.parent
MEMORY = {"PYBROKER_STORE_PATH": ":memory:"}


@pytest.fixture(autouse=True)
def logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers of the root logger are pytest's here."""
    monkeypatch.setattr("broker.__main__.configure", lambda level, form: None)


@pytest.mark.parametrize(
    ("url", "anonymous", "words"),
    [
        ("tcp://127.0.0.1:1883", "loopback", MACHINE),
        ("tcp://127.1.2.3:1883", "loopback", MACHINE),
        ("tcp://localhost:1883", "loopback", MACHINE),
        ("tls://[::1]:8883", "loopback", MACHINE),
        ("unix:/run/mqtt.sock", "loopback", MACHINE),
        ("tcp://0.0.0.0:1883", "loopback", MACHINE + "; clients from other machines are refused"),
        ("tcp://[::]:1883", "loopback", MACHINE + "; clients from other machines are refused"),
        ("ws://*:8083/mqtt", "loopback", MACHINE + "; clients from other machines are refused"),
        ("tcp://192.0.2.1:1883", "loopback", "nobody without authentication"),
        ("tcp://localhost.example:1883", "loopback", "nobody without authentication"),
        ("tcp://0.0.0.0:1883", "everywhere", "everybody who reaches it"),
        ("tcp://127.0.0.1:1883", "never", "nobody: protocol.anonymous is never"),
        ("unix:/run/mqtt.sock", "never", "nobody: protocol.anonymous is never"),
    ],
)
def test_who_may_connect(url: str, anonymous: str, words: str) -> None:
    assert who(url, anonymous).startswith(words)


@pytest.mark.parametrize(
    ("urls", "command"),
    [
        (["tcp://127.0.0.1:1883"], "mosquitto_pub -h 127.0.0.1 -p 1883 -t hello -m world"),
        (["tcp://[::1]:1883"], "mosquitto_pub -h ::1 -p 1883 -t hello -m world"),
        (["tcp://*:1884"], "mosquitto_pub -h localhost -p 1884 -t hello -m world"),
        (["ws://127.0.0.1:80/mqtt", "tcp://0.0.0.0:1"], "mosquitto_pub -h localhost -p 1 -t hello -m world"),
        (["tls://127.0.0.1:8883"], "mosquitto_pub -h 127.0.0.1 -p 8883 --cafile ca.pem -t hello -m world"),
        (["unix:/a b"], "mosquitto_pub --unix '/a b' -t hello -m world"),
        (["wss://127.0.0.1:443/mqtt"], "an MQTT client for WebSocket with the address wss://127.0.0.1:443/mqtt"),
    ],
)
def test_a_hint_how_to_try_it(urls: list[str], command: str) -> None:
    assert hint(urls) == f"try: {command}"


def test_the_greeting_has_a_line_for_each_listener() -> None:
    tls = Tls(certificate="c.pem", client_ca="ca.pem", client_certificates="required")
    config = Config(listen=("tcp://127.0.0.1:1", "tls://127.0.0.1:2"), tls=tls)
    assert list(greeting(config.listen, config)) == [
        f"listening on tcp://127.0.0.1:1 for {MACHINE}",
        f"listening on tls://127.0.0.1:2 for {MACHINE}, with a client certificate",
    ]


def test_flags_become_settings(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[limits]\nmaximum_qos = 1\nreceive_maximum = 5")
    flags = arguments().parse_args(
        [
            *("serve", "--config", str(path), "--listen", "tcp://127.0.0.1:0", "--listen", "unix:/a"),
            *("--set", "limits.receive_maximum=6", "--set", "log.level=error"),
            *("--log-format", "json", "--log-level", "debug"),
        ]
    )
    config = settings(flags, {"PYBROKER_LIMITS_MAXIMUM_QOS": "0"})
    assert config.listen == ("tcp://127.0.0.1:0", "unix:/a")
    assert (config.limits.maximum_qos, config.limits.receive_maximum) == (0, 6)
    assert config.log == Log(level="debug", format="json")


def test_serve_is_the_default() -> None:
    flags = arguments().parse_args([])
    assert flags.command == "serve"
    assert settings(flags, MEMORY) == Config(store=Store(path=":memory:"))


def test_a_daemon_needs_an_address() -> None:
    with pytest.raises(ConfigError, match="listen is empty"):
        settings(arguments().parse_args([]), {"PYBROKER_LISTEN": ""})


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["start"], "start is no command: choose serve, check or store"),
        (["--lisen", "tcp://a:1"], "unrecognized arguments: --lisen"),
        (["--conf", "a.toml"], "unrecognized arguments: --conf"),
        (["--listen"], "--listen: expected one argument"),
        (["--log-format", "xml"], "--log-format: invalid choice: 'xml'"),
    ],
)
def test_bad_flags_are_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert words in error
    assert error.startswith("pybroker: ") and error.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--config", "/nowhere/a.toml"], "/nowhere/a.toml: cannot be read: "),
        (["--set", "limits.max_qos=1"], "limits.max_qos is no setting; the nearest is limits.maximum_qos"),
        (["--set", "limits.maximum_qos=3"], "--set: limits.maximum_qos = 3: must be a whole number from"),
        (["--listen", "http://a:1"], "--listen: listen = "),
        (["--listen", "tcp://a:b"], "listen address 'tcp://a:b' cannot be used"),
        (["--listen", "tls://127.0.0.1:0"], "tls.certificate must be set"),
        (["--listen", "tls://[::1]:0", "--set", "tls.certificate=/nowhere/c"], "/nowhere/c cannot be read"),
    ],
)
def test_bad_settings_are_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], command: str, argv: list[str], words: str
) -> None:
    assert main([command, *argv]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("pybroker: ") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_check_tells_what_a_configuration_means(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--listen", "tcp://0.0.0.0:1883", "--set", "limits.maximum_qos=1", "--log-format", "json"]
    assert main(["check", *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"would listen on tcp://0.0.0.0:1883 for {MACHINE}; clients from other")
    assert lines[1] == kept(Config(store=Store(path=default_store(os.environ))))
    assert lines[2:] == [
        'set: listen = ["tcp://0.0.0.0:1883"]',
        "set: limits.maximum_qos = 1",
        'set: log.format = "json"',
        "the configuration is valid",
    ]


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"STATE_DIRECTORY": "/s/pybroker", "XDG_STATE_HOME": "/x"}, "/s/pybroker/broker.db"),
        ({"STATE_DIRECTORY": "/s/a:/s/b"}, "/s/a/broker.db"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/pybroker/broker.db"),
        ({"HOME": "/h"}, "/h/.local/state/pybroker/broker.db"),
    ],
)
def test_the_daemon_has_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], path: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert settings(arguments().parse_args([]), environ).store.path == path


def test_the_system_has_one_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_store({"HOME": "/h", "XDG_STATE_HOME": "/x"}) == "/var/lib/pybroker/broker.db"


@pytest.mark.parametrize(
    ("store", "words"),
    [
        (Store(path=":memory:"), "kept in memory: a restart loses them"),
        (Store(path="/s/a.db"), "kept in /s/a.db and survive a power loss"),
        (Store(path="/s/a.db", fsync="normal"), "survive a crash of this program, not a power loss"),
        (Store(path="/s/a.db", fsync="never"), "survive a crash of this program, not a power loss"),
        (Store(path="a.db"), f"kept in {os.getcwd()}/a.db and"),
    ],
)
def test_what_outlives_the_process(store: Store, words: str) -> None:
    assert words in kept(Config(store=store))


def test_the_folder_of_the_store_is_for_one_user(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "broker.db"
    make_folder(Config(store=Store(path=str(path))))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.write_text("")
    with pytest.raises(StoreError, match=re.escape(f"{path}: cannot be made")):
        make_folder(Config(store=Store(path=f"{path}/broker.db")))


def test_check_loads_the_files_of_tls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    argv = ["check", "--listen", "tls://127.0.0.1:0", "--set", f"tls.certificate={pem}"]
    assert main(argv) == 0
    assert main([*argv, "--set", "tls.ciphers=none-such"]) == 2
    assert "none-such" in capsys.readouterr().err
    pem.write_text("no certificate")
    assert main(argv) == 2
    assert str(pem) in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "check"])
def test_uvloop_that_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert main([command, "--set", "uvloop=true"]) == 2
    assert "pip install pybroker[uvloop]" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"pybroker {__version__}\n"


# ---- pybroker store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_fixed(tmp_path / "broker.db")
    return tmp_path / "broker.db"


def damage(store: Path, page: int) -> None:
    with store.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)


def test_store_verify(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    assert main(["store", "verify", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "format 2"
    assert "message: 6 rows" in lines
    assert lines[-1] == "no damage was found"


def test_store_verify_of_a_damaged_one(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    with closing(sqlite3.connect(store)) as db:
        db.execute("DELETE FROM message WHERE id = 23")
        db.commit()
    assert main(["store", "verify", str(store)]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-2:] == ["damaged: delivery 31 has no message", "damage was found"]
    assert captured.err == ""
    damage(store, 1)
    assert main(["store", "verify", str(store)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"pybroker: {store}: damaged (") and captured.err.count("\n") == 1


def test_store_dump(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    assert main(["store", "dump", str(store)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines if line["table"] == "subscription"] == [4, 5, 6, 7]


def test_store_dump_of_a_damaged_one_gives_what_comes_before(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    damage(store, 5)
    assert main(["store", "dump", str(store)]) == 1
    captured = capsys.readouterr()
    assert '"subscription"' in captured.out and '"message", "id"' not in captured.out
    assert captured.err.startswith(f"pybroker: {store}: damaged (") and captured.err.count("\n") == 1


def test_store_dump_to_somebody_who_reads_only_the_beginning(tmp_path: Path) -> None:
    write_store(tmp_path / "broker.db", random_rows(random.Random(1), 100, (5000,)))
    command = [sys.executable, "-m", "broker", "store", "dump", str(tmp_path / "broker.db")]
    with subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b'{"table": "meta"')
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_store_compact(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    size = store.stat().st_size
    assert main(["store", "compact", str(store)]) == 0
    assert capsys.readouterr().out == f"{size} bytes before, {store.stat().st_size} after\n"
    assert found_in(store) == as_found(FIXED)


def test_store_salvage(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    assert main(["store", "salvage", str(store), str(new)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [f"{table.name.lower()}: {len(rows)} rows copied" for table, rows in FIXED.items()]
    assert lines[-1].startswith(f"to use {new}: move {store}, {store}-wal and")
    assert found_in(new) == as_found(FIXED)


def test_store_salvage_of_a_damaged_one(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    damage(store, 6)
    assert main(["store", "salvage", str(store), str(tmp_path / "new.db")]) == 1
    out = capsys.readouterr().out
    assert "delivery: 0 rows copied\n" in out
    assert "lost: delivery: page 6 cannot be read (it begins with 0xff): rows from the first to" in out
    assert "lost: message: 2 left out, since each is held by nothing" in out
    assert main(["store", "verify", str(tmp_path / "new.db")]) == 0


@pytest.mark.parametrize("command", ["compact", "salvage"])
def test_store_that_is_in_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: Path, command: str
) -> None:
    monkeypatch.setattr("broker.store.sqlite.LOCK_TIME", 0.0)
    running = SqliteStore(str(store))
    running.open()
    new = [f"{store}.new"] if command == "salvage" else []
    assert main(["store", command, str(store), *new]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"pybroker: {store}: in use by process {os.getpid()}") and error.count("\n") == 1
    assert main(["store", "verify", str(store)]) == 0
    running.close()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "arguments are required: verify|dump|compact|salvage"),
        (["mend", "a.db"], "invalid choice: 'mend'"),
        (["verify"], "arguments are required: FILE"),
        (["salvage", "a.db"], "arguments are required: NEWFILE"),
        (["verify", "a.db", "b.db"], "unrecognized arguments: b.db"),
        (["verify", "--fast", "a.db"], "unrecognized arguments: --fast"),
    ],
)
def test_bad_flags_of_store(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["store", *argv])
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert words in error
    assert error.startswith("pybroker store") and error.count("\n") == 1


@pytest.mark.parametrize("argv", [["verify"], ["dump"], ["compact"], ["salvage"]])
def test_store_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: list[str]) -> None:
    new = [str(tmp_path / "new.db")] if argv == ["salvage"] else []
    assert main(["store", *argv, str(tmp_path / "none.db"), *new]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"pybroker: {tmp_path}/none.db: there is no such file\n")
    assert os.listdir(tmp_path) == []


def test_store_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--log-level", "debug", "store"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("pybroker: store comes first")


def test_the_document_has_the_commands() -> None:
    text = (ROOT / "docs" / "store-format.md").read_text()
    headings = re.findall(r"^### `pybroker store (\w+) FILE(?: NEWFILE)?`$", text, re.MULTILINE)
    assert headings == [*STORE_COMMANDS]


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in ((["--help"], "store --help"), (["store", "--help"], "salvage")):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 0
        assert words in capsys.readouterr().out
