"""express.py does what the read loop and its handlers do, and takes only what is plain."""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import Broker, Capacity, Config, HookBase, Limits, Version, connections
from broker.client import Client
from broker.config import Protocol, Tls
from broker.handle import express
from broker.packet.codec import encode
from broker.packet.packets import Connect, Disconnect, Pingreq, Publish, Subscribe, SubscribeRequest, Will
from tests.hook.test_stats import counters
from tests.peer import Clock, memory_broker, run_async
from tests.wire import Wire, turns

V31, V3, V5 = Version.MQTT_3_1, Version.MQTT_3_1_1, Version.MQTT_5
BY_HAND = {"sweep_interval": 0, "sys_interval": 0, "grace_time": 0}
WITH_IT = Config(capacity=Capacity(fast_lane=True))  # whatever the environment says
GOODBYE = b"\xe0\0"

CONFIGS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "short ClientIDs": {"limits": {"maximum_client_id_bytes": 23}},
    "one client": {"capacity": {"maximum_connections": 1}},
    "one session": {"capacity": {"maximum_sessions": 1}},
    "two CONNECTs a second": {"capacity": {"maximum_connect_rate": 2}},
    "no 5.0": {"protocol": {"mqtt_5": False}},
    "no 3.1.1": {"protocol": {"mqtt_3_1_1": False}},
    "nobody anonymous": {"protocol": {"anonymous": "never"}},
    "everybody": {"protocol": {"anonymous": "everywhere", "takeover": "same_user"}},
    "Keep Alive of ours": {"limits": {"server_keep_alive": 10}},
    "no aliases, QoS 1": {"limits": {"topic_alias_maximum": 0, "maximum_qos": 1, "retain_available": False}},
    "small window": {"limits": {"outbound_receive_maximum": 7, "receive_maximum": 3}},
    "small packets": {"limits": {"maximum_packet_size": 64}},
    "little memory": {"capacity": {"maximum_bytes": 1 << 20}},
    "names of certificates": {"tls": {"user_name": "common_name"}},
}


def config_of(name: str, fast: bool) -> Config:
    parts = CONFIGS[name]
    return Config(
        capacity=Capacity(**{**BY_HAND, **parts.get("capacity", {}), "fast_lane": fast}),
        limits=Limits(**parts.get("limits", {})),
        protocol=Protocol(**parts.get("protocol", {})),
        tls=Tls(**parts.get("tls", {})),
    )


def plain(client_id: str = "c", version: Version = V3, **fields: Any) -> bytes:
    return encode(Connect(client_id, version, **fields), version)


# ---- all that can be seen of a broker


def of_client(client: Client) -> dict[str, Any]:
    fields = (
        "version", "phase", "asked", "careful", "client_id", "user_name", "counted_user", "serving",
        "over", "normal", "partial",
    )  # fmt: skip
    seen = {name: getattr(client, name) for name in fields}
    seen["handling"] = client.handling and not client.over  # nobody asks after the end
    seen["last_packet_at"] = 0 if client.over else client.last_packet_at
    seen["aliases"] = client.extra.aliases is not None
    seen["ending"] = repr(client.ending)
    info = dataclasses.asdict(client.info)
    seen["info"] = {key: value for key, value in info.items() if not key.startswith("publish")}  # for hooks
    return seen


def of_session(session: Any) -> dict[str, Any]:
    fields = (
        "expiry_interval", "ends_at", "will", "will_due", "user_name", "version",
        "bytes", "fixed_bytes", "recorder", "state", "connected",
    )  # fmt: skip
    return {name: getattr(session, name) for name in fields} | {"window": session.inflight.window}


def seen(broker: Broker, wires: list[Wire], clients: list[Client | None]) -> dict[str, Any]:
    core = broker._core
    stats = core.stats
    return {
        "wires": [(b"".join(wire.writes), bool(wire.closed), bool(wire.aborted)) for wire in wires],
        "clients": [client and of_client(client) for client in clients],
        "by id": {client_id: clients.index(client) for client_id, client in core.clients.items()},
        "sessions": {session.client_id: of_session(session) for session in core.sessions},
        "stats": {name: getattr(stats, name) for name in counters(stats)},
        "rest": (core.budget.used, len(broker._connections), dict(core.users), core.turns._waiting),
    }


async def talk(name: str, fast: bool, steps: list[tuple[int, bytes, float]]) -> list[dict[str, Any]]:
    """What is seen after each of *steps*: on which connection what arrives, after how many seconds."""
    clock, found = Clock(), []
    async with memory_broker(config_of(name, fast), clock=clock) as broker:
        given = count(1)  # and not by chance
        broker._core.sessions.new_client_id = lambda: f"given-{next(given)}"  # type: ignore[method-assign]
        if name == "little memory":
            broker._core.budget.take_anyway(15 * (1 << 16) - 2000)
        wires: list[Wire] = []
        clients: list[Client | None] = []
        for number, data, later in steps:
            clock.now += later
            if number >= len(wires):
                number = len(wires)
                wires.append(Wire())
                broker._connections.accept(wires[-1])
                mine = (client for client in broker._connections if client._connection is wires[-1])
                clients.append(next(mine, None))
            if not wires[number].closed and not wires[number].aborted:
                wires[number].incoming.put_nowait(data)
            await turns(8)
            found.append(seen(broker, wires, clients))
    return found


def same(name: str, steps: list[tuple[int, bytes, float]]) -> None:
    slow, fast = (asyncio.run(talk(name, way, steps)) for way in (False, True))
    for number, (one, other) in enumerate(zip(slow, fast, strict=True)):
        for part in one:
            assert one[part] == other[part], f"{part} after step {number} of {steps}"


# ---- the law

ids = st.sampled_from(["c", "c", "d", "one of 31 characters, about so.", "x" * 108, "\u00e9", "a\tb", ""])
connects = st.builds(
    plain,
    ids,
    st.sampled_from([V3, V3, V5, V5, V31]),
    keep_alive=st.sampled_from([0, 1, 60, 0xFFFF]),
    clean_start=st.sampled_from([True, True, True, False]),
    user_name=st.sampled_from([None, None, None, "ann"]),
    will=st.sampled_from([None, None, None, Will("w", b"x")]),
    bridge=st.sampled_from([False, False, False, True]),
).filter(lambda data: data is not None)
properties = st.sampled_from(
    [{}, {"session_expiry_interval": 5}, {"receive_maximum": 2}, {"maximum_packet_size": 20}]
)
connects_5 = st.builds(lambda client_id, found: plain(client_id, V5, properties=found), ids, properties)
others = st.sampled_from(
    [
        GOODBYE,
        GOODBYE + GOODBYE,
        b"\xe0",
        b"\xe1\0",
        encode(Disconnect(0x04), V5),
        encode(Pingreq(), V3),
        encode(Pingreq(), V3) + GOODBYE,
        encode(Publish("t", b"x"), V3),
        encode(Subscribe(1, [SubscribeRequest("t", 1)]), V3),
        encode(Publish("t", b"x", 1, packet_id=7), V5) + GOODBYE,
        b"",
    ]
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A plain CONNECT with one byte changed, cut, or with something behind it."""
    data = bytearray(plain(draw(st.sampled_from(["c", "dd"])), draw(st.sampled_from([V3, V5]))))
    place = draw(st.integers(0, len(data) - 1))
    match draw(st.sampled_from(["change", "cut", "more"])):
        case "change":
            data[place] = draw(st.integers(0, 255))
        case "cut":
            del data[place:]
        case _:
            data += draw(others)
    return bytes(data)


steps = st.tuples(
    st.integers(0, 3),
    st.one_of(connects, connects_5, damaged(), others, others),
    st.sampled_from([0, 0, 0.4, 9]),  # seconds later
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*CONFIGS]), st.lists(steps, max_size=8))
def test_both_ways_come_to_the_same(name: str, talks: list[tuple[int, bytes, float]]) -> None:
    same(name, talks)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("version", [V3, V5])
def test_the_plainest_of_all(name: str, version: Version) -> None:
    same(
        name,
        [
            (0, plain("c", version, keep_alive=60), 0),
            (1, plain("d", version), 0),
            (2, plain("c", version), 0.1),
            (3, plain("\u007f", version), 0.1),
            (1, GOODBYE, 1),
            (2, GOODBYE, 0),
            (4, plain("c", version, clean_start=False), 0),
            (4, GOODBYE, 0),
            (5, plain("c", version), 0),
            (5, GOODBYE, 0),
        ],
    )


@pytest.mark.parametrize("version", [V3, V5])
def test_every_byte_matters(version: Version) -> None:
    data = plain("cd", version, keep_alive=60)
    for place in range(len(data)):
        for value in {0, 1, 2, 3, 0x42, 0x7F, 0x80, data[place] ^ 1, data[place] ^ 0x80}:
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            same("default", [(0, changed, 0), (0, GOODBYE, 0)])


@pytest.mark.parametrize("version", [V3, V5])
def test_what_belongs_to_a_packet_that_was_begun(version: Version) -> None:
    data = plain("c", version)
    for place in range(1, len(data)):
        same("default", [(0, data[:place], 0), (0, data[place:], 0), (0, b"\xe0", 0), (0, b"\0", 0)])
    same("default", [(0, data[:3], 0), (0, data, 0)])
    same("default", [(0, data, 0), (0, b"\x30\x05\0\1t", 0), (0, GOODBYE, 0)])


# ---- what it takes


@run_async
async def test_what_is_plain_needs_no_reader_and_what_hooks_may_see_no_express(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[bool] = []
    take = express.Express.take

    def noted(self: express.Express, client: Client, data: bytes) -> bool:
        taken.append(take(self, client, data))
        return taken[-1]

    monkeypatch.setattr(express.Express, "take", noted)
    for hooks, wanted in (((), [True, True]), ((HookBase(),), [])):
        taken.clear()
        async with memory_broker(WITH_IT, hooks=hooks) as broker:
            wire = Wire()
            broker._connections.accept(wire)
            wire.incoming.put_nowait(plain())
            await turns(2)
            assert wire.writes == [bytes.fromhex("20020000")] and "c" in broker.clients
            wire.incoming.put_nowait(GOODBYE)
            await turns(2)
            assert wire.closed and not broker.clients and not len(broker._connections)
        assert taken == wanted


@run_async
async def test_an_error_inside_costs_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("a bug")

    async with memory_broker(WITH_IT) as broker:
        for where in (
            (express.Express, "_start"),
            (express.Express, "_take_disconnect"),
            (connections, "say_goodbye"),
        ):
            wire = Wire()
            broker._connections.accept(wire)
            with monkeypatch.context() as patch:
                if where[1] != "_start":
                    wire.incoming.put_nowait(plain(version=V5))
                patch.setattr(*where, breaks)
                wire.incoming.put_nowait(plain(version=V5) if where[1] == "_start" else GOODBYE)
                await turns(8)
            assert (wire.aborted or wire.closed) and not len(broker._connections)
            assert wire.writes[0][3] == (0x83 if where[1] == "_start" else 0), "the Reason Code of CONNACK"
            assert not broker.clients or where[1] == "say_goodbye"
