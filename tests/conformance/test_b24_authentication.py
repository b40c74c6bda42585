"""B24: enhanced authentication."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import MqttError
from broker.hook.base import AuthStep, ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.authentication import AGAIN, CONTINUE, METHOD, admitted, auth, challenged
from tests.conformance.client import Raw
from tests.conformance.codes import PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Policy
from tests.conformance.server import Server


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
