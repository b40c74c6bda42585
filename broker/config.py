"""Frozen settings with units; reads a TOML file.

One dataclass is one section of the file, and every field one key. The defaults are safe for a
broker that strangers can reach; a broker that is embedded for tests needs none of them changed.
What a value may be stands in its annotation; nothing below the sections knows a key by name.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

from broker.errors import ConfigError

VERSION = "0.1.0"  # of this package

MIB = 1 << 20
DAY = 24 * 3600


class Between(NamedTuple):
    """A number that is *low*, *high* or in between."""

    low: float
    high: float = inf

    def allows(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        return f"of {self.low} or more" if self.high == inf else f"from {self.low} to {self.high}"


class Like(NamedTuple):
    """A text, or each of several, that matches *pattern*; *words* says the same to a person."""

    pattern: str
    words: str

    def allows(self, value: Any) -> bool:
        texts = (value,) if isinstance(value, str) else value
        return all(isinstance(text, str) and re.fullmatch(self.pattern, text) for text in texts)

    def __str__(self) -> str:
        return self.words


UInt16 = Annotated[int, Between(0, 65535)]
UInt32 = Annotated[int, Between(0, 4294967295)]
PositiveUInt16 = Annotated[int, Between(1, 65535)]
Count = Annotated[int, Between(0)]
Positive = Annotated[int, Between(1)]
Timeout = Annotated[float, Between(0.001, DAY)]
Interval = Annotated[float, Between(0, DAY)]
Listen = Annotated[
    tuple[str, ...],
    Like(
        r"(tcp|tls|ws|wss)://.+|unix:.+|memory:",
        "addresses tcp://host:port, tls://host:port, ws://host:port/path, wss://host:port/path or unix:/path",
    ),
]
Prefixes = Annotated[
    tuple[str, ...],
    Like(r"\$(?!SYS/|share/)[^+#\0]+/", 'prefixes like "$app/", and not "$SYS/" or "$share/"'),
]
Origins = Annotated[tuple[str, ...], Like(r"[^\s/]+(://[^\s/]+)?", "origins like https://host, no path")]
Template = Annotated[str, Like(r"([^{}\0]|\{client_id\})*", "a text with no placeholder but {client_id}")]
FilterLevels = Annotated[
    tuple[str, ...],
    Like(r"(?s:.+)=(always|normal|never)", 'texts like "sensors/#=normal", with always, normal or never'),
]
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]


class Section:
    """The manners of every section: each value is checked once, at construction.

    Raises ConfigError. A list is taken for a tuple.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        section: Any = type(self)
        for name, setting in settings_of(section).items():
            value = getattr(self, name)
            held = setting.accept(value)
            if held is not value:
                object.__setattr__(self, name, held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Section):
    """What one client may ask of the broker; the announcements of CONNACK [MQTT5 3.2.2.3]."""

    receive_maximum: PositiveUInt16 = 1024  # unacknowledged QoS 1 and 2 PUBLISH from a 5.0 client
    maximum_packet_size: Annotated[int, Between(64, 268435460)] = MIB  # bytes of one packet from a client
    topic_alias_maximum: UInt16 = 64  # aliases a client may set
    maximum_qos: Annotated[int, Between(0, 2)] = 2
    retain_available: bool = True
    wildcard_subscription_available: bool = True
    subscription_identifier_available: bool = True
    shared_subscription_available: bool = True
    session_expiry_interval: UInt32 = 7 * DAY  # seconds, the most we grant; 4294967295: for ever
    session_expiry_interval_3x: UInt32 = 7 * DAY  # seconds that a CleanSession 0 session of 3.x is kept
    server_keep_alive: UInt16 = 0  # seconds, the most we allow; 0: whatever the client asks
    server_keep_alive_3x: bool = False  # hold 3.x clients, which cannot be told, to it as well
    message_expiry_interval: UInt32 = 0  # seconds, the longest life of a message; 0: no cap

    maximum_client_id_bytes: Annotated[int, Between(23, 65535)] = 65535
    zero_length_client_id: bool = True
    maximum_topic_bytes: PositiveUInt16 = 65535  # bytes of a Topic Name or Topic Filter
    maximum_topic_levels: PositiveUInt16 = 128
    maximum_subscriptions: Positive = 10_000  # per session
    maximum_user_properties: Annotated[int, Between(0, 10_000)] = 1000  # in one packet from a client
    maximum_filters: Annotated[int, Between(1, 10_000)] = 1000  # in one SUBSCRIBE or UNSUBSCRIBE
    maximum_takeovers: Count = 15  # of one ClientID in `takeover_period`, then newcomers wait; 0: no limit
    takeover_period: Timeout = 60.0  # seconds

    outbound_receive_maximum: PositiveUInt16 = 10_000  # unacknowledged QoS 1 and 2 PUBLISH to a client
    outbound_topic_alias_maximum: UInt16 = 64  # aliases we set toward a client that allows them
    maximum_outbound_packets: Positive = 256  # packets waiting for a socket that takes no more
    maximum_outbound_bytes: Positive = 4 * MIB  # bytes waiting for a socket
    maximum_queued_messages: Positive = 1000  # QoS 1 and 2 messages waiting in a session
    maximum_queued_bytes: Positive = 64 * MIB  # bytes of them
    queue_full: Literal["drop_newest", "drop_oldest", "disconnect"] = "drop_newest"
    queue_qos_0: bool = False  # queue QoS 0 for sessions without a connection

    connect_timeout: Timeout = 10.0  # seconds from accept to a complete CONNECT
    authentication_timeout: Timeout = 30.0  # seconds for an enhanced authentication exchange
    partial_packet_timeout: Timeout = 30.0  # seconds for the rest of a packet that has begun
    send_timeout: Timeout = 30.0  # seconds a socket may accept nothing while bytes wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Section):
    """What the whole process may hold, and its clocks."""

    maximum_connections: Positive = 100_000
    maximum_connections_per_address: Count = 0  # 0: no limit
    maximum_connections_per_user: Count = 0  # clients with one User Name; 0: no limit
    maximum_connect_rate: Annotated[float, Between(0)] = 0.0  # CONNECT packets a second; 0: no limit
    maximum_sessions: Positive = 1_000_000
    maximum_retained_messages: Positive = 500_000
    maximum_retained_bytes: Positive = 256 * MIB
    maximum_bytes: Positive = 1024 * MIB  # queued, in flight, retained and outbound together
    hook_timeout: Timeout = 10.0  # seconds for one call of a hook's coroutine
    fast_lane: bool = True  # serve runs of plain packets at once; the broker does the same without, slower
    stay_awake: Annotated[float, Between(0, 0.001)] = 40e-6  # seconds, see transport.base.Awake; 0: not
    grace_time: Interval = 5.0  # seconds that stop() lets clients take what is queued
    sweep_interval: Annotated[float, Between(0, 60)] = 0.25  # seconds between looks at deadlines; 0: none
    sys_interval: Interval = 10.0  # seconds between two issues of `$SYS`; 0: on demand only


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(Section):
    """Choices that the standards leave open, and versions served."""

    mqtt_3_1: bool = True
    mqtt_3_1_1: bool = True
    mqtt_5: bool = True
    bridge_bit: bool = True  # accept bit 0x80 of a 3.x Protocol Level
    anonymous: Literal["loopback", "everywhere", "never"] = "loopback"  # where no hook authenticates
    takeover: Literal["same_user", "any"] = "same_user"  # who may take a ClientID that is connected
    re_authentication: Literal["same_user", "any"] = "same_user"  # whose name it may end with
    re_check_subscriptions: bool = False  # ask on_subscribe again for each after re-authentication
    silent_refusal: bool = False  # close without CONNACK on bad credentials
    disallowed_code_points: Literal["reject", "accept"] = "reject"  # control characters and non-characters
    dollar_topics: Prefixes = ()  # prefixes like "$app/" that clients may publish to
    authorize_will: Literal["publish", "connect"] = "publish"  # connect: ask on_publish at CONNECT as well
    refused_filter_3_1: Literal["grant", "close"] = "grant"  # MQTT 3.1 has no refusal in SUBACK
    shared_subscriptions_3x: bool = True  # `$share/` for 3.x clients
    overlap: Literal["merge", "per_subscription"] = "merge"  # or one copy for each subscription
    validate_payload_format: bool = False  # check that UTF-8 payloads are
    refused_publish_3x: Literal["acknowledge", "close"] = "acknowledge"
    refused_publish_qos_0: Literal["drop", "disconnect"] = "drop"
    shared_choice: Literal["round_robin", "sticky", "hash"] = "round_robin"  # hash: by the publisher
    shared_unacknowledged: Literal["wait", "move"] = "wait"  # sent QoS 1 of a shared member that went away
    reason_strings: bool = True
    response_information: Template = ""  # a template with {client_id}; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport(Section):
    """How bytes come and go."""

    engine: Literal["auto", "epoll", "asyncio"] = "auto"  # for sockets; auto: epoll where there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls(Section):
    """Files of the `tls://` and `wss://` listeners."""

    certificate: str = ""  # PEM chain
    key: str = ""  # PEM; empty: in the certificate file
    client_ca: str = ""  # PEM of the authorities that sign client certificates
    client_certificates: Literal["none", "optional", "required"] = "none"
    user_name: Literal["connect", "common_name", "san"] = "connect"  # where a client's User Name is from
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    ciphers: str = ""
    handshake_timeout: Timeout = 10.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocket(Section):
    """The `ws://` and `wss://` listeners."""

    origins: Origins = ()  # allowed Origin values; empty: all
    require_subprotocol: bool = True
    maximum_header_size: Annotated[int, Between(256, MIB)] = 16384  # bytes of the HTTP request head


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Section):
    """Where sessions, their messages, retained messages and wills outlive the process."""

    path: str = ""  # a file; ":memory:": nowhere; empty: the daemon's own file, nowhere when embedded
    fsync: Literal["always", "normal", "never"] = "always"  # what an acknowledged message survives
    fsync_for: FilterLevels = ()  # texts "filter=level": another level for the topics that match


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup(Section):
    """What producers send again is acknowledged and not routed again (hook/dedup.py)."""

    enabled: bool = False
    maximum_producers: Annotated[int, Between(1, 1_000_000)] = 10_000  # remembered at one time


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLog(Section):
    """Every message, and what became of it, as files that others read (docs/message-log.md)."""

    NAME: ClassVar[str] = "message_log"
    path: str = ""  # a folder; empty: no log
    node: Annotated[str, Like("[A-Za-z0-9_-]{1,64}", "1 to 64 of A-Z a-z 0-9 _ -")] = "broker"
    fsync: Literal["none", "interval", "ack"] = "interval"  # ack: PUBACK and PUBREC wait for it
    fsync_interval: Timeout = 0.2  # seconds
    compress: bool = True  # segments, when they are closed
    segment_bytes: Positive = 64 * MIB
    segment_seconds: Timeout = 60.0
    overflow: Literal["drop", "block"] = "drop"  # when this many records or bytes wait for the disk:
    maximum_records: Positive = 100_000
    maximum_bytes: Positive = 64 * MIB
    topics: tuple[str, ...] = ("#",)  # filters of what is logged; # alone: all there is
    topics_out: tuple[str, ...] = ()  # and of what of that is not
    max_payload: Count = 0  # bytes kept of a payload; 0: all
    also: Annotated[tuple[str, ...], Like("wills|program|sys", "words: wills, program, sys")] = ()
    deliveries: Literal["none", "dropped", "acked", "all"] = "dropped"  # events of single messages
    sample: Positive = 1  # of acked and all: those of every message whose offset this divides
    retention_seconds: Count = 0  # 0: for ever
    retention_bytes: Count = 0  # of closed segments; 0: no limit
    retention_hard: Count = 0  # seconds, after which not even a consumer is waited for; 0: for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Section):
    """The daemon's logging; an embedded broker leaves logging to its program."""

    level: Level = "info"
    format: Format = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """All settings of one broker."""

    listen: Listen = ("tcp://127.0.0.1:1883",)
    uvloop: bool = False  # the daemon runs on uvloop, which must be installed
    limits: Limits = field(default_factory=Limits)
    capacity: Capacity = field(default_factory=Capacity)
    protocol: Protocol = field(default_factory=Protocol)
    transport: Transport = field(default_factory=Transport)
    tls: Tls = field(default_factory=Tls)
    websocket: WebSocket = field(default_factory=WebSocket)
    store: Store = field(default_factory=Store)
    dedup: Dedup = field(default_factory=Dedup)
    message_log: MessageLog = field(default_factory=MessageLog)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        _check_together(self)


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    listen: Iterable[str] = (),
) -> Config:
    """The settings that hold: flags over environment over file over defaults.

    *path* is a TOML file, or None for the one that `PYBROKER_CONFIG` names, if any. *environ*
    defaults to the process's. *sets* are texts `section.key=value`; *listen* replaces the addresses.
    Raises ConfigError, which names the key and its source, for anything unknown or not allowed.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE)
    given = _from_file(os.fspath(path)) if path else {}
    given |= _from_environ(environ)
    given |= _from_sets(sets)
    if addresses := tuple(listen):
        given["listen"] = Given(addresses, "--listen")
    return _build(given)


class BadSetting(ConfigError):
    """A value that is not allowed, before its source is known and after."""

    def __init__(self, key: str, value: Any, allowed: str, source: str = "argument") -> None:
        super().__init__(f"{source}: {key} = {shown(value)}: must be {allowed}")
        self.key, self.value, self.allowed = key, value, allowed


PREFIX = "PYBROKER_"
CONFIG_VARIABLE = "PYBROKER_CONFIG"  # names the file, and is no setting
NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of"}
SWITCH = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)


class Setting(NamedTuple):
    """What one key may hold, read from the annotation of its field."""

    key: str
    type: type
    rule: Between | Like | None

    def accept(self, value: Any) -> Any:
        """*value* as it is held; raises BadSetting. A bool is no number and a number no bool."""
        if type(value) is list and self.type is tuple:
            value = tuple(value)
        wanted = (int, float) if self.type is float else self.type
        if not isinstance(value, wanted) or (isinstance(value, bool) and self.type is not bool):
            raise BadSetting(self.key, value, self.allowed())
        if self.rule is not None and not self.rule.allows(value):
            raise BadSetting(self.key, value, self.allowed())
        return value

    def parse(self, text: str) -> Any:
        """*text* of a flag or variable as a value; a text that is none is left for `accept`."""
        if self.type is tuple:
            return tuple(filter(None, map(str.strip, text.split(","))))
        if self.type is bool:
            return SWITCH.get(text.lower(), text)
        try:
            return self.type(text)
        except ValueError:
            return text

    def allowed(self) -> str:
        noun = NOUNS.get(self.type, f"a {self.type.__name__}")
        if self.type in (int, float, tuple) and self.rule is not None:
            return f"{noun} {self.rule}"
        return noun if self.rule is None else str(self.rule)


@cache
def settings_of(section: Any) -> dict[str, Setting]:
    """The settings of one dataclass by field name."""
    prefix = "" if section is Config else getattr(section, "NAME", section.__name__.lower()) + "."
    hints = get_type_hints(section, include_extras=True)
    return {item.name: _setting(prefix + item.name, hints[item.name]) for item in fields(section)}


def _setting(key: str, hint: Any) -> Setting:
    rule: Between | Like | None = None
    if get_origin(hint) is Annotated:
        hint, rule = get_args(hint)
    if get_origin(hint) is Literal:
        words = get_args(hint)
        hint, rule = str, Like("|".join(map(re.escape, words)), "one of " + ", ".join(map(shown, words)))
    if hint == tuple[str, ...] and rule is None:
        rule = Like("(?s:.*)", "texts")
    return Setting(key, get_origin(hint) or hint, rule)


@cache
def sections() -> dict[str, Any]:
    """The sections of a file by name."""
    return {name: kind.type for name, kind in settings_of(Config).items() if issubclass(kind.type, Section)}


@cache
def every_setting() -> dict[str, Setting]:
    """All settings by the key that a file and `--set` use."""
    single = {key: setting for key, setting in settings_of(Config).items() if key not in sections()}
    inner = (setting for section in sections().values() for setting in settings_of(section).values())
    return single | {setting.key: setting for setting in inner}


class Given(NamedTuple):
    """A value that someone set, and where."""

    value: Any
    source: str


def _from_file(path: str) -> dict[str, Given]:
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # bad TOML, or bytes that are no UTF-8
        raise ConfigError(f"{path}: {error}") from None
    given: dict[str, Given] = {}
    for name, value in document.items():
        if name not in sections():
            given[_known(name, path)] = Given(value, path)
        elif isinstance(value, dict):
            given |= {_known(f"{name}.{key}", path): Given(item, path) for key, item in value.items()}
        else:
            raise ConfigError(f"{path}: {name} is a section: write [{name}] and its keys below it")
    return given


def _from_environ(environ: Mapping[str, str]) -> dict[str, Given]:
    variables = {PREFIX + key.replace(".", "_").upper(): setting for key, setting in every_setting().items()}
    given = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE:
            continue
        if name not in variables:
            raise ConfigError(f"{name}: no such variable; the nearest is {_nearest(name, variables)}")
        given[variables[name].key] = Given(variables[name].parse(text), name)
    return given


def _from_sets(sets: Iterable[str]) -> dict[str, Given]:
    given = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write it as section.key=value")
        key = _known(key.strip(), "--set")
        given[key] = Given(every_setting()[key].parse(value.strip()), "--set")
    return given


def _build(given: dict[str, Given]) -> Config:
    try:
        made = {name: section(**_picked(section, given)) for name, section in sections().items()}
        return Config(**_picked(Config, given) | made)
    except BadSetting as error:
        source = given[error.key].source if error.key in given else "default"
        raise BadSetting(error.key, error.value, error.allowed, source) from None


def _picked(section: Any, given: dict[str, Given]) -> dict[str, Any]:
    settings = settings_of(section).items()
    return {name: given[setting.key].value for name, setting in settings if setting.key in given}


def _check_together(config: Config) -> None:
    """What one value alone cannot tell. Raises BadSetting."""
    encrypted = any(url.startswith(("tls:", "wss:")) for url in config.listen)
    if encrypted and not config.tls.certificate:
        raise BadSetting("listen", config.listen, "without tls:// and wss://, or tls.certificate must be set")
    if config.tls.client_certificates != "none" and not config.tls.client_ca:
        value = config.tls.client_certificates
        raise BadSetting("tls.client_certificates", value, '"none", or tls.client_ca must be set')
    served = config.protocol
    if not (served.mqtt_3_1 or served.mqtt_3_1_1 or served.mqtt_5):
        raise BadSetting("protocol.mqtt_5", False, "true, or mqtt_3_1_1 or mqtt_3_1: no version is served")


def _known(key: str, source: str) -> str:
    if key in every_setting():
        return key
    if key in sections():
        raise ConfigError(f"{source}: {key} is a section: write {key}.key=value")
    nearest = _nearest(key, every_setting()) if "." in key else _nearest(key, [*every_setting(), *sections()])
    raise ConfigError(f"{source}: {key} is no setting; the nearest is {nearest}")


def _nearest(name: str, names: Collection[str]) -> str:
    """The right name in another section before one that is spelled alike."""
    elsewhere = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    return (elsewhere or difflib.get_close_matches(name, names, 1, cutoff=0.0))[0]


def shown(value: Any) -> str:
    """*value* as a TOML file would write it, cut when it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    return text if len(text) <= 200 else text[:200] + "..."
