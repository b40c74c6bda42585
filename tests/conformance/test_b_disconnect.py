"""Behaviours B08, B22, B24, B25, B31: Keep Alive, redirect, enhanced authentication, DISCONNECT, reasons."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from broker.config import Capacity
from broker.errors import MqttError
from broker.hook.base import AuthStep, ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Failing, Gate, Policy
from tests.conformance.server import Server
from tests.conformance.test_mqtt5_auth import AGAIN, CONTINUE, METHOD, admitted, auth, challenged
from tests.conformance.test_mqtt5_subscribe import MALFORMED, PROTOCOL_ERROR

# ---- B08 Keep Alive


def heard(server: Server, client: Raw, raw: bytes) -> None:
    """Sends *raw*, and waits until the broker has read all of it."""
    stats = server.broker.stats
    before = stats.bytes_received
    client.send(raw)
    server.wait_until(lambda: stats.bytes_received >= before + len(raw), "all bytes read")
    server.settle()


def expect_alive(server: Server, client: Raw) -> None:
    """The server still sends to *client*, which says nothing."""
    server.run(server.broker.publish("alive", b"x"))
    client.expect("PUBLISH", topic_name="alive")


def listening(server: Server, client_id: str = "c", version: int = 5, **connect: Any) -> Raw:
    client = server.connect(client_id, version, **connect)
    client.subscribe("alive")
    return client


@pytest.mark.parametrize("version", [5, 4])
@pytest.mark.parametrize("keep_alive", [1, 2, 10, 65535])
def test_b08__one_and_a_half_times_and_never_early(server: Server, keep_alive: int, version: int) -> None:
    client = listening(server, version=version, keep_alive=keep_alive)
    server.advance(1.5 * keep_alive - 0.01)
    expect_alive(server, client)
    server.advance(0.02)
    client.expect_close(0x8D)


def test_b08__zero_means_none(server: Server) -> None:
    client = listening(server, keep_alive=0)
    server.advance(10**7, step=10**6)
    expect_alive(server, client)


def test_b08__the_broker_looks_by_itself(serve: Serve) -> None:
    assert Capacity().sweep_interval <= 0.5  # the lag at most
    server = serve(sweep_interval=0.02)
    client = server.connect("c", keep_alive=1)
    server.clock.now += 1.5
    client.expect_close(0x8D)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(wire.pingreq(), id="PINGREQ"),
        pytest.param(wire.publish("t", b"x"), id="PUBLISH"),
        pytest.param(wire.subscribe(1, "t"), id="SUBSCRIBE"),
        pytest.param(wire.unsubscribe(1, "t"), id="UNSUBSCRIBE"),
        pytest.param(wire.puback(77), id="PUBACK"),
        pytest.param(wire.pubrel(77), id="PUBREL"),
    ],
)
def test_b08__any_complete_packet_counts(server: Server, raw: bytes) -> None:
    client = listening(server, keep_alive=10)
    for _ in range(3):
        server.advance(14.9)
        heard(server, client, raw)
    server.advance(15.1)
    client.expect_close(0x8D, skip=("PINGRESP", "SUBACK", "UNSUBACK", "PUBCOMP"))


def test_b08__what_the_server_sends_does_not_count(server: Server) -> None:
    client = listening(server, keep_alive=10)
    for _ in range(3):
        server.advance(4.9)
        expect_alive(server, client)
    server.advance(0.4)
    client.expect_close(0x8D)


def test_b08__an_unfinished_packet_does_not_count(server: Server) -> None:
    client = listening(server, keep_alive=10)
    raw = wire.publish("t", b"x" * 10)
    server.advance(10)
    heard(server, client, raw[:5])
    server.advance(4.9)
    heard(server, client, raw[5:7])
    server.advance(0.2)
    client.expect_close(0x8D)


def test_b08__an_unfinished_packet_has_its_own_time(server: Server) -> None:
    client = listening(server, keep_alive=0)
    heard(server, client, wire.publish("t", b"x" * 10)[:5])
    server.advance(29.9)
    expect_alive(server, client)
    server.advance(0.2)
    client.expect_close(MALFORMED, PROTOCOL_ERROR)


def test_b08__the_time_that_the_server_does_not_read_is_not_counted(serve: Serve) -> None:
    gate = Gate()
    server = serve(hooks=[gate], hook_timeout=600.0)
    client = listening(server, keep_alive=10)
    client.send(wire.publish("gate", b"x", qos=1))
    server.wait_until(lambda: gate.waiting)
    server.advance(60, step=5)
    server.run(gate.open())
    client.expect("PUBACK")
    server.advance(14.9)
    expect_alive(server, client)
    server.advance(0.2)
    client.expect_close(0x8D)


@pytest.mark.tcp_only("the sockets must be full, and that takes megabytes")
def test_b08__the_time_that_the_server_is_held_up_is_not_counted(server: Server) -> None:
    client = listening(server, keep_alive=10)
    server.run(fill(server))
    client.send(wire.pingreq() * 40_000)  # more answers than the server keeps for a client that reads none
    server.wait_until(lambda: server.broker.stats.bytes_received > 66_000)
    server.settle()
    server.advance(20, step=5)
    while not client.transport.recv(1).endswith(b"\xd0\x00"):
        continue
    client.expect_nothing()


async def fill(server: Server) -> None:
    """Publishes until the connection of c takes no more."""
    while not server.broker.clients["c"].full:
        await server.broker.publish("alive", b"x" * 1_000_000)
        await asyncio.sleep(0.001)


def test_b08__a_timeout_is_an_abnormal_close(server: Server) -> None:
    watcher = server.watch("w")
    for delay in (0, 5):
        will = wire.will("w", b"gone", will_delay_interval=delay)
        client = server.connect("c", keep_alive=1, will=will, session_expiry_interval=60)
        server.advance(1.6)
        client.expect_close(0x8D)
        client.drop()
        if delay:
            server.advance(4.8)
            watcher.expect_nothing()
            server.advance(0.3)
        watcher.expect("PUBLISH", topic_name="w", payload="gone")


@pytest.mark.parametrize(
    ("asked", "told", "in_force"), [(0, 30, 30), (60, 30, 30), (31, 30, 30), (30, None, 30), (10, None, 10)]
)
def test_b08__server_keep_alive(serve: Serve, asked: int, told: int | None, in_force: int) -> None:
    server = serve(server_keep_alive=30)
    client = listening(server, keep_alive=asked)
    assert client.connack is not None
    assert client.connack.properties.get("server_keep_alive") == told
    server.advance(1.5 * in_force - 0.1)
    expect_alive(server, client)
    server.advance(0.2)
    client.expect_close(0x8D)


@pytest.mark.parametrize("cap", [False, True])
def test_b08__the_cap_holds_for_3_x_only_if_asked_for(serve: Serve, cap: bool) -> None:
    server = serve(server_keep_alive=30, server_keep_alive_3x=cap)
    none, long = (listening(server, name, 4, keep_alive=n) for name, n in (("a", 0), ("b", 60)))
    server.advance(45.1)
    for client in (none, long):
        if cap:
            client.expect_close()
        else:
            expect_alive(server, client)
            client.drain()


# ---- B22 redirect

REFERENCES = "other.example:1883 [2001:db8::1]:1883 [2001:db8::2] third.example"


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__instead_of_connack_0x00(serve: Serve, code: int) -> None:
    watcher = (server := serve(hooks=[Policy(connect={"c": code}, server_reference=REFERENCES)])).watch()
    client = server.client()
    client.send(wire.connect("c", will=wire.will("w", b"gone")))
    client.expect_close(code, server_reference=REFERENCES)
    watcher.expect_nothing()  # a connection that was never accepted has no will


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__without_a_reference(serve: Serve, code: int) -> None:
    client = serve(hooks=[Policy(connect={"c": code})]).client()
    client.send(wire.connect("c"))
    client.expect_close(code, server_reference=None)


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__a_live_connection(server: Server, code: int) -> None:
    client, old = server.connect("c"), server.connect("o", 4)
    server.run(server.broker.disconnect("c", code, server_reference=REFERENCES))
    client.expect_close(code, server_reference=REFERENCES)
    server.run(server.broker.disconnect("o", code, server_reference=REFERENCES))
    old.expect_close()


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__a_live_connection_by_a_hook(serve: Serve, code: int) -> None:
    policy = Policy(publish={"no": code}, server_reference=REFERENCES)
    server = serve(hooks=[policy], refused_publish_qos_0="disconnect")
    client = server.connect("c")
    client.send(wire.publish("no", b"x"))
    client.expect_close(code, server_reference=REFERENCES)


def test_b22__a_reference_that_does_not_fit(serve: Serve) -> None:
    policy = Policy(connect={"c": 0x9C}, publish={"no": 0x9D}, server_reference=REFERENCES)
    server = serve(hooks=[policy], refused_publish_qos_0="disconnect")
    for limit, wanted in ((50, None), (200, REFERENCES)):
        client = server.client()
        client.send(wire.connect("c", properties={"maximum_packet_size": limit}))
        client.expect_close(0x9C, server_reference=wanted)
        client = server.connect("d", maximum_packet_size=limit)
        client.send(wire.publish("no", b"x"))
        client.expect_close(0x9D, server_reference=wanted)


@pytest.mark.parametrize("back", [True, False])
def test_b22__a_delayed_will_gives_time_to_move(server: Server, back: bool) -> None:
    watcher = server.watch("w")
    now, later = wire.will("w", b"now"), wire.will("w", b"later", will_delay_interval=5)
    for client_id, will in (("a", now), ("b", later)):
        client = server.connect(client_id, will=will, session_expiry_interval=60)
        server.run(server.broker.disconnect(client_id, 0x9D))
        client.expect_close(0x9D)
    watcher.expect_messages(b"now")
    server.advance(4)
    if back:
        server.connect("b", clean_start=False, session_present=True)
    server.advance(2)
    watcher.expect_messages(*([] if back else [b"later"]))


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_b22__3_1_1_gets_return_code_3(serve: Serve, code: int) -> None:
    client = serve(hooks=[Policy(connect={"c": code}, server_reference=REFERENCES)]).client(4)
    client.send(wire.connect("c", version=4))
    client.expect_close(3)


# ---- B24 enhanced authentication


class Echo(HookBase):
    """Gives back the Authentication Data it gets, in two steps; `seen` has user name, password and data."""

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, bytes | None, bytes | None]] = []
        self.connects: list[tuple[str | None, bytes | None]] = []

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        self.connects.append((packet.user_name, packet.password))

    async def on_auth(self, client: ClientInfo, method: str, data: bytes | None) -> AuthStep:
        self.seen.append((client.user_name, client.password, data))
        done = bool(client.attributes.get("asked"))
        client.attributes["asked"] = not done
        return AuthStep(done=done, data=data)


class Whims(EnhancedAuth):
    """Refuses a proof that is a digit with that code; b"other" is a proof of another user."""

    async def on_auth(self, client: ClientInfo, method: str, data: bytes | None) -> AuthStep | None:
        if data and data.isdigit():
            raise MqttError("a whim", int(data))
        if data == b"other":
            client.user_name, data = "other", b"proof"
        return await super().on_auth(client, method, data)


class Publishers(HookBase):
    """Keeps the user name of each PUBLISH."""

    def __init__(self) -> None:
        self.user_names: list[str | None] = []

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        self.user_names.append(client.user_name)


@pytest.fixture
def two_steps(serve: Serve) -> Server:
    return serve(hooks=[EnhancedAuth(steps=2)])


def test_b24__no_handler(two_steps: Server) -> None:
    two_steps.expect_refused(wire.connect("c", properties={"authentication_method": "X"}), codes=0x8C)


def test_b24__the_handler_accepts_asks_or_refuses(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth("X-ONE", steps=1), EnhancedAuth("X-TEST", steps=2)])
    client = server.client()
    properties = {"authentication_method": "X-ONE", "authentication_data": b"proof"}
    client.send(wire.connect("c", properties=properties))
    client.expect("CONNACK", reason_code=0, authentication_method="X-ONE", authentication_data=b"welcome")
    admitted(server, "d").expect_nothing()
    properties["authentication_data"] = b"wrong"
    server.expect_refused(wire.connect("e", properties=properties), codes=0x87)


@pytest.mark.parametrize("code", [0x80, 0x83, 0x86, 0x87, 0x88, 0x8A, 0x97])
def test_b24__refused_with_its_own_code(serve: Serve, code: int) -> None:
    server = serve(hooks=[Whims(steps=2)])
    data = b"%d" % code
    server.expect_refused(wire.connect("c", properties=METHOD | {"authentication_data": data}), codes=code)
    client = challenged(server)
    client.send(auth(CONTINUE, data))
    client.expect_close(code)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(wire.publish("t", b"x", retain=True), id="PUBLISH"),
        pytest.param(wire.puback(1), id="PUBACK"),
        pytest.param(wire.pubrec(1), id="PUBREC"),
        pytest.param(wire.pubrel(1), id="PUBREL"),
        pytest.param(wire.pubcomp(1), id="PUBCOMP"),
        pytest.param(wire.subscribe(1, "t"), id="SUBSCRIBE"),
        pytest.param(wire.unsubscribe(1, "t"), id="UNSUBSCRIBE"),
        pytest.param(wire.pingreq(), id="PINGREQ"),
        pytest.param(wire.connect("c"), id="CONNECT"),
        pytest.param(auth(AGAIN), id="AUTH 0x19"),
    ],
)
def test_b24__nothing_but_auth_and_disconnect_meanwhile(two_steps: Server, raw: bytes) -> None:
    watcher = two_steps.watch()
    client = challenged(two_steps, will=wire.will("w", b"gone"))
    client.send(raw, auth(CONTINUE, b"proof"))
    client.expect_close(PROTOCOL_ERROR)
    watcher.expect_nothing()
    assert two_steps.retained() == []


@pytest.mark.parametrize("code", [None, 0x00, 0x04, 0x80])
def test_b24__disconnect_meanwhile(two_steps: Server, code: int | None) -> None:
    watcher = two_steps.watch()
    client = challenged(two_steps, will=wire.will("w", b"gone"))
    client.send(wire.disconnect(code))
    client.expect_close()
    client.close()
    watcher.expect_nothing()


def test_b24__its_time_out_applies_and_keep_alive_does_not(two_steps: Server) -> None:
    client = challenged(two_steps, keep_alive=1)
    two_steps.advance(29.9)
    client.send(auth(CONTINUE, b"proof"))
    client.expect("CONNACK", reason_code=0)
    client.expect_nothing()
    two_steps.advance(1.6)
    client.expect_close(0x8D)
    late = challenged(two_steps, keep_alive=0)
    two_steps.advance(30.1)
    late.expect_close(0x87)


def test_b24__user_name_and_password_may_come_along(serve: Serve) -> None:
    server = serve(hooks=[echo := Echo()])
    client = server.client()
    client.send(wire.connect("c", user_name="u", password=b"p", properties=METHOD))
    client.expect("AUTH", reason_code=CONTINUE)
    client.send(auth(CONTINUE, b"x"))
    client.expect("CONNACK", reason_code=0)
    client.send(auth(AGAIN))
    client.expect("AUTH", reason_code=CONTINUE)
    assert echo.seen == [("u", b"p", None), ("u", b"p", b"x"), ("u", None, None)]
    assert echo.connects == [("u", b"p")]


def test_b24__no_takeover_before_acceptance(two_steps: Server) -> None:
    watcher = two_steps.watch()
    old = admitted(two_steps, will=wire.will("w", b"old"))
    new = challenged(two_steps)
    old.expect_nothing()
    new.send(auth(CONTINUE, b"wrong"))
    new.expect_close(0x87)
    old.expect_nothing()
    watcher.expect_nothing()
    admitted(two_steps)
    old.expect_close(0x8E)
    watcher.expect("PUBLISH", topic_name="w", payload="old")


def test_b24__no_clean_start_before_acceptance(two_steps: Server) -> None:
    before = admitted(two_steps, more={"session_expiry_interval": 60})
    before.subscribe("t", qos=1)
    before.disconnect()
    publisher = two_steps.connect("p")
    new = challenged(two_steps, clean_start=True)
    publisher.publish("t", b"1", qos=1, reason=0x00)
    new.send(auth(CONTINUE, b"proof"))
    new.expect("CONNACK", reason_code=0, session_present=False)
    publisher.publish("t", b"2", qos=1, reason=0x10)
    new.expect_nothing()


def test_b24__a_second_0x19_during_re_authentication(two_steps: Server) -> None:
    client = admitted(two_steps)
    client.send(auth(AGAIN))
    client.expect("AUTH", reason_code=CONTINUE)
    client.send(auth(AGAIN))
    client.expect_close(PROTOCOL_ERROR)


def test_b24__0x18_without_a_question(two_steps: Server) -> None:
    client = admitted(two_steps)
    client.send(auth(CONTINUE, b"proof"))
    client.expect_close(PROTOCOL_ERROR)


def test_b24__re_authentication_again_and_again(two_steps: Server) -> None:
    client = admitted(two_steps)
    for _ in range(3):
        client.send(auth(AGAIN))
        client.expect("AUTH", reason_code=CONTINUE, authentication_data=b"challenge", **METHOD)
        client.send(auth(CONTINUE, b"proof"))
        client.expect("AUTH", reason_code=0x00, authentication_data=b"welcome", **METHOD)
    client.expect_nothing()


def test_b24__the_old_identity_counts_until_0x00(serve: Serve) -> None:
    server = serve(hooks=[Whims(steps=2), publishers := Publishers()])
    watcher = server.watch("w")
    client = admitted(server, user_name="u", will=wire.will("w", b"gone"))
    client.send(auth(AGAIN))
    client.expect("AUTH", reason_code=CONTINUE)
    client.publish("t", b"x", qos=1, reason=0x10)
    client.send(auth(CONTINUE, b"other"))
    client.expect_close(0x87)  # another user is refused
    watcher.expect("PUBLISH", payload="gone")
    assert publishers.user_names == ["u", "u"]


def re_authenticated(client: Raw, proof: bytes = b"proof") -> None:
    client.send(auth(AGAIN))
    client.expect("AUTH", reason_code=CONTINUE)
    client.send(auth(CONTINUE, proof))
    client.expect("AUTH", reason_code=0x00)


def test_b24__another_user_by_setting(serve: Serve) -> None:
    server = serve(hooks=[Whims(steps=2), publishers := Publishers()], re_authentication="any")
    client = admitted(server, user_name="u")
    client.publish("t", b"x", qos=1, reason=0x10)
    re_authenticated(client, b"other")
    client.publish("t", b"x", qos=1, reason=0x10)
    client.expect_nothing()
    assert publishers.user_names == ["u", "other"]


@pytest.mark.parametrize("again", [True, False])
def test_b24__subscriptions_are_checked_again_by_setting(serve: Serve, again: bool) -> None:
    policy, filters = Policy(), ("t", "u/+", "$share/g/v", "stays")
    server = serve(hooks=[EnhancedAuth(steps=2), policy], re_check_subscriptions=again)
    client, publisher = admitted(server), server.connect("p")
    client.subscribe(*filters, qos=1)
    policy.tables["subscribe"] = dict.fromkeys(filters[:3], 0x87)
    client.send(auth(AGAIN))
    client.expect("AUTH", reason_code=CONTINUE)
    publisher.publish("t", b"meanwhile", qos=1, reason=0x00)
    client.expect_messages(b"meanwhile")
    client.send(auth(CONTINUE, b"proof"))
    client.expect("AUTH", reason_code=0x00)
    for topic_name in ("t", "u/a", "v"):
        publisher.publish(topic_name, topic_name, qos=1, reason=0x10 if again else 0x00)
    publisher.publish("stays", b"stays", qos=1, reason=0x00)
    client.expect_messages(*([b"stays"] if again else [b"t", b"u/a", b"v", b"stays"]))
    client.unsubscribe(*filters, reasons=[0x11, 0x11, 0x11, 0x00] if again else [0x00] * 4)


def test_b24__failed_re_authentication(serve: Serve) -> None:
    server = serve(hooks=[Whims(steps=2)])
    watcher = server.watch("w")
    for proof, code in ((b"wrong", 0x87), (b"151", 0x97), (b"140", 0x80)):  # 0x8C is not for DISCONNECT
        client = admitted(server, will=wire.will("w", b"gone"))
        client.send(auth(AGAIN))
        client.expect("AUTH", reason_code=CONTINUE)
        client.send(auth(CONTINUE, proof))
        client.expect_close(code)
        watcher.expect("PUBLISH", topic_name="w", payload="gone")


@pytest.mark.parametrize("code", [0xA0, 0x87])
def test_b24__the_server_forces_it_by_disconnect(two_steps: Server, code: int) -> None:
    client = admitted(two_steps)
    two_steps.advance(10**6, step=10**5)
    client.expect_nothing()  # no AUTH of its own accord
    two_steps.run(two_steps.broker.disconnect("c", code))
    client.expect_close(code)


@pytest.mark.parametrize("data", [None, b"", b"\xff\x00\xc0"])
def test_b24__authentication_data_absent_empty_or_any_bytes(serve: Serve, data: bytes | None) -> None:
    server = serve(hooks=[echo := Echo()])
    given = {} if data is None else {"authentication_data": data}
    client = server.client()
    client.send(wire.connect("c", properties=METHOD | given))
    client.expect("AUTH", reason_code=CONTINUE, authentication_data=data)
    client.send(auth(CONTINUE, data))
    client.expect("CONNACK", reason_code=0, authentication_data=data, **METHOD)
    client.send(auth(AGAIN, data))
    client.expect("AUTH", reason_code=CONTINUE, authentication_data=data)
    client.send(auth(CONTINUE, data))
    client.expect("AUTH", reason_code=0x00, authentication_data=data)
    assert [one for _, _, one in echo.seen] == [data] * 4


# ---- B25 DISCONNECT


@pytest.mark.parametrize("code", [None, 0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)])
def test_b25__only_0x00_deletes_the_will(server: Server, code: int | None) -> None:
    watcher = server.watch()
    for spec in (None, ()) if code is not None else (None,):  # one byte has no properties
        client = server.connect("c", will=wire.will("w", b"gone"))
        client.disconnect(code, spec)
        watcher.expect_messages(*([b"gone"] if code else []))


def test_b25__reason_string_and_user_property_are_logged_not_stored(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = server.watch()
    client = server.connect("c", will=wire.will("w", b"gone"), session_expiry_interval=60)
    with caplog.at_level("INFO", "broker.client"):
        client.disconnect(0x04, {"reason_string": "going home", "user_property": ("mood", "tired")})
    watcher.expect("PUBLISH", topic_name="w", payload="gone", user_property=None)
    assert "going home" in caplog.text and "tired" in caplog.text
    again = server.connect("c", clean_start=False, session_present=True)
    assert again.connack is not None
    assert not {"reason_string", "user_property"} & set(again.connack.properties)


def test_b25__takeover_keep_alive_and_kick(server: Server) -> None:
    old = server.connect("a")
    server.connect("a").expect_nothing()
    old.expect_close(0x8E)
    late = server.connect("b", keep_alive=1)
    server.advance(1.6)
    late.expect_close(0x8D)
    kicked = server.connect("c")
    server.run(server.broker.disconnect("c"))
    kicked.expect_close(0x98)


def test_b25__quota(serve: Serve) -> None:
    server = serve(queue_full="disconnect", maximum_queued_messages=1)
    client, publisher = server.connect("c", receive_maximum=1), server.connect("p")
    client.subscribe("t", qos=1)
    for number in range(3):
        publisher.publish("t", b"%d" % number, qos=1)
    server.advance(0.1)
    client.expect_close(0x97, skip=("PUBLISH",))


@pytest.mark.parametrize("code", [0x87, 0x89, 0x96, 0x97, 0x98, 0x9C, 0x9D, 0xA0])
def test_b25__by_the_program(server: Server, code: int) -> None:
    watcher = server.watch()
    client = server.connect("c", will=wire.will("w", b"gone"))
    old = server.connect("o", 4, will=wire.will("w", b"gone"))
    for one in (client, old):
        server.run(server.broker.disconnect(one.client_id, code))
        one.expect_close(code)
        watcher.expect("PUBLISH", topic_name="w", payload="gone")


class Wills(HookBase):
    """Keeps the payload of everything that is published."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    async def on_publish(self, client: ClientInfo, message: Any) -> None:
        self.payloads.append(message.payload)


async def publish_and_stop(server: Server) -> None:
    await server.broker.publish("t", b"last", qos=1)
    await server.broker.stop()


def test_b25__shutdown(serve: Serve) -> None:
    server = serve(hooks=[wills := Wills()], grace_time=0.05)
    short = server.connect("a", will=wire.will("w", b"at once"))
    short.subscribe("t", qos=1)
    long = server.connect("b", session_expiry_interval=60,
                          will=wire.will("w", b"delayed", will_delay_interval=30))  # fmt: skip
    old, silent = server.connect("c", 4), server.client()
    url = urlsplit(server.address())
    start = time.monotonic()
    server.run(publish_and_stop(server))  # nobody closes his side: the grace time is the bound
    assert time.monotonic() - start < 1
    short.expect("PUBLISH", topic_name="t", payload="last")
    short.expect_close(0x8B)
    long.expect_close(0x8B)
    old.expect_close()
    silent.expect_close()
    assert wills.payloads == [b"at once"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.hostname, url.port), timeout=1)


# ---- B31 Reason Strings


def refusals(server: Server, name: str = "no", **connect: Any) -> dict[str, wire.Packet]:
    """One refusal of each kind that can carry a Reason String, about a ClientID, topic or filter *name*."""
    client = server.connect("c", **connect)
    client.send(wire.pubrec(77), wire.pubrel(78))
    found = [client.expect("PUBREL", reason_code=0x92), client.expect("PUBCOMP", reason_code=0x92)]
    found += [client.subscribe(name, granted=[0x87]), client.unsubscribe(name, reasons=[0x87])]
    for qos in (1, 2):
        client.send(wire.publish(name, b"x", qos=qos))
        found.append(client.expect("PUBACK" if qos == 1 else "PUBREC", reason_code=0x87))
    client.send(wire.subscribe(9))
    last = client.expect_close(PROTOCOL_ERROR)
    client = server.client()
    client.send(wire.connect(name, properties=connect))
    connack = client.expect_close(0x8A)
    assert last is not None and connack is not None
    return {packet.name: packet for packet in [*found, last, connack]}


def reason_strings(found: dict[str, wire.Packet]) -> dict[str, str]:
    texts = {name: packet.properties.get("reason_string") for name, packet in found.items()}
    return {name: text for name, text in texts.items() if text is not None}


ALL = {"PUBREL", "PUBCOMP", "SUBACK", "UNSUBACK", "PUBACK", "PUBREC", "DISCONNECT", "CONNACK"}


def refusing(serve: Serve, *names: str, reason_string: str | None = None, **overrides: Any) -> Server:
    no = dict.fromkeys(names, 0x87)
    policy = Policy(publish=no, subscribe=no, unsubscribe=no, connect=dict.fromkeys(names, 0x8A),
                    reason_string=reason_string)  # fmt: skip
    return serve(hooks=[policy], **overrides)


def test_b31__short_and_fixed_and_without_internals(serve: Serve) -> None:
    server = refusing(serve, "secret/topic", "other")
    texts = reason_strings(refusals(server, "secret/topic"))
    assert texts.keys() == ALL
    assert texts == reason_strings(refusals(server, "other"))
    for text in texts.values():
        assert text.isascii() and 3 <= len(text) <= 60
        assert not {"secret", "topic", "policy", "hook"} & set(text.lower().replace("/", " ").split())


def test_b31__nothing_of_an_exception_leaks(serve: Serve) -> None:
    server = serve(hooks=[Failing("boom")])
    server.expect_errors()
    client = server.connect("c")
    found = [client.subscribe("boom", granted=[0x83]), client.publish("boom", b"x", qos=1, reason=0x83)]
    client = server.client()
    client.send(wire.connect("boom"))
    found.append(client.expect_close(0x83))
    texts = [packet.properties["reason_string"] for packet in found if packet is not None]
    assert len(set(texts)) == 1 and not {"boom", "Failing", "RuntimeError", "purpose"} & set(texts[0].split())


def test_b31__success_has_none(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.subscribe(1, ("t", 2)), wire.publish("u", b"x", qos=1), wire.unsubscribe(2, "t"))
    client.send(wire.publish("u", b"x", qos=2), wire.pubrel(1))
    found = [client.connack, *client.drain()]
    assert len(found) == 6
    assert not [one for one in found if one is None or "reason_string" in one.properties]


def test_b31__none_if_the_client_wants_none(serve: Serve) -> None:
    found = reason_strings(refusals(refusing(serve, "no"), request_problem_information=0))
    assert found.keys() == {"CONNACK", "DISCONNECT"}
    found = reason_strings(refusals(refusing(serve, "no"), request_problem_information=1))
    assert found.keys() == ALL


def test_b31__none_above_the_maximum_packet_size(serve: Serve) -> None:
    found = refusals(refusing(serve, "no", reason_string="x" * 60), maximum_packet_size=20)
    assert reason_strings(found) == {}


def test_b31__none_when_switched_off(serve: Serve) -> None:
    found = refusals(refusing(serve, "no", reason_string="why", reason_strings=False))
    assert reason_strings(found) == {}


def test_b31__none_in_auth_when_switched_off(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2, reason_string="why")], reason_strings=False)
    client = server.client()
    client.send(wire.connect("c", properties=METHOD))
    client.expect("AUTH", reason_code=CONTINUE, reason_string=None)
    client.send(auth(CONTINUE, b"wrong"))
    client.expect_close(0x87, reason_string=None)


def test_b31__the_text_of_a_hook(serve: Serve) -> None:
    found = reason_strings(refusals(refusing(serve, "no", reason_string="Not on Sundays.")))
    mine = {"PUBACK", "PUBREC", "SUBACK", "UNSUBACK", "CONNACK"}
    assert {name for name, text in found.items() if text == "Not on Sundays."} == mine
