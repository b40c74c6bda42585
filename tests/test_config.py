"""Settings: what is allowed, where a value comes from, and what an error says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.__main__ import changed
from broker.config import (
    Capacity,
    Config,
    Limits,
    Log,
    Protocol,
    Tls,
    WebSocket,
    every_setting,
    load,
)
from broker.errors import ConfigError


def write(folder: Path, text: str) -> str:
    path = folder / "broker.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        (Limits, "receive_maximum", 0, "from 1 to 65535"),
        (Limits, "receive_maximum", 65536, "from 1 to 65535"),
        (Limits, "receive_maximum", True, "a whole number"),
        (Limits, "receive_maximum", 10.0, "a whole number"),
        (Limits, "receive_maximum", "10", "a whole number"),
        (Limits, "maximum_packet_size", 63, "from 64 to 268435460"),
        (Limits, "maximum_packet_size", 268435461, "from 64 to 268435460"),
        (Limits, "topic_alias_maximum", -1, "from 0 to 65535"),
        (Limits, "maximum_qos", 3, "from 0 to 2"),
        (Limits, "retain_available", 1, "true or false"),
        (Limits, "session_expiry_interval", 1 << 32, "from 0 to 4294967295"),
        (Limits, "maximum_client_id_bytes", 22, "from 23 to 65535"),
        (Limits, "maximum_subscriptions", 0, "of 1 or more"),
        (Limits, "queue_full", "block", 'one of "drop_newest", "drop_oldest", "disconnect"'),
        (Limits, "queue_full", None, 'one of "drop_newest"'),
        (Limits, "connect_timeout", 0, "from 0.001 to 86400"),
        (Limits, "connect_timeout", float("inf"), "a number from 0.001"),
        (Limits, "connect_timeout", float("nan"), "a number from 0.001"),
        (Limits, "connect_timeout", True, "a number"),
        (Capacity, "maximum_bytes", 0, "of 1 or more"),
        (Capacity, "maximum_connections_per_address", -1, "of 0 or more"),
        (Capacity, "sweep_interval", 61, "from 0 to 60"),
        (Capacity, "grace_time", -0.1, "from 0 to 86400"),
        (Protocol, "anonymous", "yes", 'one of "loopback", "everywhere", "never"'),
        (Protocol, "dollar_topics", ("app/",), 'prefixes like "$app/"'),
        (Protocol, "dollar_topics", ("$SYS/",), 'not "$SYS/"'),
        (Protocol, "dollar_topics", ("$app/", "$share/"), 'or "$share/"'),
        (Protocol, "dollar_topics", "$app/", "a list"),
        (Protocol, "dollar_topics", (1,), "prefixes"),
        (Protocol, "response_information", "reply/{id}", "{client_id}"),
        (Tls, "minimum_version", "1.1", 'one of "1.2", "1.3"'),
        (Tls, "minimum_version", 1.2, 'one of "1.2", "1.3"'),
        (Tls, "certificate", Path("a.pem"), "a text"),
        (WebSocket, "origins", ("https://host/",), "no path"),
        (Log, "format", "xml", 'one of "text", "json"'),
        (Config, "listen", ("http://127.0.0.1:1883",), "tcp://host:port"),
        (Config, "listen", ("127.0.0.1:1883",), "tcp://host:port"),
        (Config, "listen", "tcp://127.0.0.1:1883", "tcp://host:port"),
        (Config, "uvloop", "yes", "true or false"),
        (Config, "limits", {"receive_maximum": 1}, "a Limits"),
    ],
)
def test_a_value_that_is_not_allowed(section: type, key: str, value: Any, allowed: str) -> None:
    prefix = "" if section is Config else section.__name__.lower() + "."
    with pytest.raises(ConfigError, match=rf"^argument: {prefix}{key} = ") as caught:
        section(**{key: value})
    assert allowed in str(caught.value).partition(": must be ")[2]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        (Limits, "receive_maximum", 65535),
        (Limits, "maximum_packet_size", 268435460),
        (Limits, "session_expiry_interval", 4294967295),
        (Limits, "connect_timeout", 1),
        (Capacity, "grace_time", 0),
        (Capacity, "sweep_interval", 0.0),
        (Capacity, "maximum_bytes", 1 << 50),
        (Protocol, "dollar_topics", ("$app/", "$a/b/")),
        (Protocol, "response_information", "reply/{client_id}/"),
        (WebSocket, "origins", ("https://host:8443", "null")),
        (Config, "listen", ()),
        (Config, "listen", ("tcp://[::1]:0", "ws://0.0.0.0:80/mqtt", "unix:/run/mqtt.sock")),
    ],
)
def test_a_value_that_is_allowed(section: type, key: str, value: Any) -> None:
    assert getattr(section(**{key: value}), key) == value


def test_a_list_is_held_as_a_tuple() -> None:
    config = Config(listen=["tcp://127.0.0.1:0"])  # type: ignore[arg-type]
    assert config.listen == ("tcp://127.0.0.1:0",)
    assert hash(config) == hash(dataclasses.replace(config))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"listen": ("tls://127.0.0.1:8883",)}, "argument: listen = .* tls.certificate must be set"),
        ({"listen": ("tcp://a:1", "wss://a:2")}, "tls.certificate must be set"),
        ({"tls": Tls(client_certificates="required")}, "tls.client_certificates = .*tls.client_ca must"),
        ({"protocol": Protocol(mqtt_5=False, mqtt_3_1=False, mqtt_3_1_1=False)}, "no version is served"),
    ],
)
def test_values_that_do_not_go_together(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**arguments)


def test_tls_listeners_with_a_certificate() -> None:
    config = Config(listen=("tls://a:1", "wss://a:2"), tls=Tls(certificate="a.pem"))
    assert config.tls.certificate == "a.pem"


FULL = """
listen = ["tcp://127.0.0.1:1884", "unix:/run/mqtt.sock"]
uvloop = true
[limits]
receive_maximum = 10
connect_timeout = 3
queue_full = "disconnect"
[websocket]
origins = ["https://host"]
"""


def test_a_file(tmp_path: Path) -> None:
    assert load(write(tmp_path, FULL), {}) == Config(
        listen=("tcp://127.0.0.1:1884", "unix:/run/mqtt.sock"),
        uvloop=True,
        limits=Limits(receive_maximum=10, connect_timeout=3, queue_full="disconnect"),
        websocket=WebSocket(origins=("https://host",)),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nrecieve_maximum = 1", "limits.recieve_maximum is no setting; .* limits.receive_maximum"),
        ("[limit]\nreceive_maximum = 1", "limit is no setting; the nearest is limits"),
        ("receive_maximum = 1", "receive_maximum is no setting; the nearest is limits.receive_maximum"),
        ("[capacity]\nmaximum_qos = 1", "capacity.maximum_qos is no setting; .* limits.maximum_qos"),
        ("listeners = []", "listeners is no setting; the nearest is listen"),
        ("[limits.receive]\nmaximum = 1", "limits.receive is no setting; .* limits.receive_maximum"),
        ("limits = 1", r"limits is a section: write \[limits\]"),
        ("[listen]\nport = 1883", "listen = .*must be a list of addresses"),
        ("[limits]\nreceive_maximum = 0", "limits.receive_maximum = 0: must be a whole number from 1"),
        ("[limits]\nreceive_maximum = true", "limits.receive_maximum = true: must be a whole number"),
        ("[limits]\nretain_available = 1", "limits.retain_available = 1: must be true or false"),
        ("[limits]\nconnect_timeout = inf", "limits.connect_timeout = Infinity: must be a number"),
        ("[log]\nlevel = 2026-01-31", 'log.level = "2026-01-31": must be one of "debug"'),
        ('listen = ["tls://0.0.0.0:8883"]', "listen = .*tls.certificate must be set"),
        ('[tls]\nclient_certificates = "optional"', "tls.client_certificates = .*tls.client_ca must be set"),
        ("listen = [", "at end of document"),
        ("a = \xe9", "line 1"),
    ],
)
def test_an_error_in_a_file_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path, {})
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load(path, {})


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(ConfigError, match=f"{re.escape(str(path))}: cannot be read: "):
        load(path, {})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("uvloop", "true", True),
        ("uvloop", "Yes", True),
        ("uvloop", "on", True),
        ("uvloop", "1", True),
        ("limits.retain_available", "FALSE", False),
        ("limits.retain_available", "no", False),
        ("limits.retain_available", "off", False),
        ("limits.retain_available", "0", False),
        ("limits.receive_maximum", "1_000", 1000),
        ("limits.connect_timeout", "2.5", 2.5),
        ("limits.connect_timeout", "2", 2.0),
        ("limits.queue_full", "drop_oldest", "drop_oldest"),
        ("listen", "tcp://a:1, unix:/b", ("tcp://a:1", "unix:/b")),
        ("listen", "", ()),
        ("websocket.origins", "https://a", ("https://a",)),
        ("tls.certificate", "/etc/a=b.pem", "/etc/a=b.pem"),
    ],
)
def test_a_text_is_read_by_the_type_of_its_key(key: str, text: str, value: Any) -> None:
    def read(config: Config) -> Any:
        section, _, name = key.rpartition(".")
        return getattr(getattr(config, section) if section else config, name)

    variable = "PYBROKER_" + key.replace(".", "_").upper()
    for config in (load(None, {variable: text}), load(None, {}, [f"{key}={text}"])):
        assert read(config) == value
        assert type(read(config)) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("uvloop", "maybe", "true or false"),
        ("limits.receive_maximum", "ten", "a whole number from 1 to 65535"),
        ("limits.receive_maximum", "1.5", "a whole number from 1 to 65535"),
        ("limits.receive_maximum", "", "a whole number from 1 to 65535"),
        ("limits.receive_maximum", "1K", "a whole number from 1 to 65535"),
        ("limits.connect_timeout", "nan", "a number from 0.001 to 86400"),
        ("limits.connect_timeout", "soon", "a number from 0.001 to 86400"),
        ("limits.queue_full", "DROP_OLDEST", "one of "),
        ("listen", "mqtt://a:1", "a list of addresses tcp://"),
        ("listen", "tls://a:1", "without tls://"),
    ],
)
def test_a_bad_text_names_its_source(key: str, text: str, allowed: str) -> None:
    variable = "PYBROKER_" + key.replace(".", "_").upper()
    for source, environ, sets in ((variable, {variable: text}, []), ("--set", {}, [f"{key}={text}"])):
        with pytest.raises(ConfigError) as caught:
            load(None, environ, sets)
        assert str(caught.value).startswith(f"{source}: {key} = ")
        assert f": must be {allowed}" in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "sets", "message"),
    [
        ({"PYBROKER_LISTN": "x"}, [], "PYBROKER_LISTN: no such variable; the nearest is PYBROKER_LISTEN"),
        ({"PYBROKER_LOG_LEVLE": ""}, [], "PYBROKER_LOG_LEVLE: no such variable; the nearest is PYBROKER_LOG"),
        ({}, ["log.levle=info"], "--set: log.levle is no setting; the nearest is log.level"),
        ({}, ["level=info"], "--set: level is no setting; the nearest is log.level"),
        ({}, ["log=info"], "--set: log is a section: write log.key=value"),
        ({}, ["log.level"], "--set log.level: write it as section.key=value"),
        ({}, ["=1"], "--set:  is no setting"),
    ],
)
def test_an_unknown_name_gets_the_nearest(environ: dict[str, str], sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        load(None, environ, sets)


def test_other_variables_are_not_ours() -> None:
    assert load(None, {"PATH": "/bin", "pybroker_listen": "x", "MY_PYBROKER_LISTEN": "x"}) == Config()


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "[limits]\nreceive_maximum = 1\ntopic_alias_maximum = 1\nmaximum_qos = 1")
    environ = {"PYBROKER_LIMITS_TOPIC_ALIAS_MAXIMUM": "2", "PYBROKER_LIMITS_MAXIMUM_QOS": "2"}
    limits = load(path, environ, ["limits.maximum_qos=0", "limits.maximum_qos=1"]).limits
    assert (limits.receive_maximum, limits.topic_alias_maximum, limits.maximum_qos) == (1, 2, 1)
    assert limits.server_keep_alive == Limits().server_keep_alive


def test_listen_flags_replace_the_addresses(tmp_path: Path) -> None:
    path = write(tmp_path, 'listen = ["tcp://a:1", "tcp://a:2"]')
    environ = {"PYBROKER_LISTEN": "tcp://b:1"}
    assert load(path, {}).listen == ("tcp://a:1", "tcp://a:2")
    assert load(path, environ).listen == ("tcp://b:1",)
    assert load(path, environ, ["listen=tcp://c:1"]).listen == ("tcp://c:1",)
    assert load(path, environ, ["listen=tcp://c:1"], ["ws://d", "unix:e"]).listen == ("ws://d", "unix:e")
    with pytest.raises(ConfigError, match=r"^--listen: listen = "):
        load(path, environ, (), ["d:1"])


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[limits]\nmaximum_qos = 1")
    other = write(tmp_path / "..", "[limits]\nmaximum_qos = 0")
    assert load(None, {"PYBROKER_CONFIG": path}).limits.maximum_qos == 1
    assert load(other, {"PYBROKER_CONFIG": path}).limits.maximum_qos == 0


def test_the_environment_is_the_process_s_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYBROKER_LIMITS_MAXIMUM_QOS", "1")
    assert load().limits.maximum_qos == 1
    assert load(None, {}).limits.maximum_qos == 2


def test_changed_names_what_differs() -> None:
    assert changed(Config()) == {}
    config = Config(listen=("tcp://a:1",), limits=Limits(maximum_qos=1), log=Log(format="json"))
    assert changed(config) == {"listen": '["tcp://a:1"]', "limits.maximum_qos": "1", "log.format": '"json"'}


def test_a_long_value_is_cut_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Log(level="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400


def test_every_key_has_a_variable_of_its_own() -> None:
    names = [key.replace(".", "_") for key in every_setting()]
    assert len(names) == len(set(names)) > 60
    assert "config" not in names


@given(st.sampled_from(sorted(every_setting())), st.text(max_size=20))
def test_any_text_is_a_setting_or_a_clean_refusal(key: str, text: str) -> None:
    try:
        config = load(None, {}, [f"{key}={text}"])
    except ConfigError as error:
        assert str(error).startswith(f"--set: {key} = ")
    else:
        assert changed(config).keys() <= {key}
