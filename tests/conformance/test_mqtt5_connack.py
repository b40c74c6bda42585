"""MQTT 5.0, section 3.2: CONNACK."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.authentication import METHOD
from tests.conformance.client import Raw
from tests.conformance.codes import PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import ConnackProperties, EnhancedAuth, Policy
from tests.conformance.refusals import CONNACK_CODES, REFUSING_CODES, Refusal, refusals
from tests.conformance.server import Server

EVERY_REFUSAL = [pytest.param(one, id=name) for name, one in refusals().items()]
KEPT = {"session_expiry_interval": 60}


def refused(serve: Serve, refusal: Refusal) -> wire.Packet:
    """The CONNACK that *refusal* gets; the server closes after it."""
    client = serve(hooks=refusal.hooks(), **refusal.settings).client()
    client.send(refusal.raw)
    connack = client.expect_close(refusal.code)
    assert connack is not None
    return connack


# ---- 3.2: when it comes


def test_mqtt5_3_2_0_1__connack_before_what_waited(server: Server) -> None:
    publisher = server.connect("p")
    publisher.publish("r", b"retained", retain=True)
    client = server.connect("c", **KEPT)
    client.subscribe("#", qos=2, retain_handling=2)
    client.drop()
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=2)
    again = server.client()
    again.send(wire.connect("c", clean_start=False), wire.subscribe(1, "r"))
    again.expect("CONNACK", session_present=True)
    again.expect("PUBLISH", payload="1")
    again.expect("PUBLISH", payload="2")
    again.expect("SUBACK")
    again.expect("PUBLISH", payload="retained")


def test_mqtt5_3_2_0_1__connack_before_answers(server: Server) -> None:
    client = server.client()
    client.send(wire.connect("c"), wire.pingreq(), wire.subscribe(1, "t"), wire.publish("t", b"x"))
    for kind in ("CONNACK", "PINGRESP", "SUBACK", "PUBLISH"):
        client.expect(kind)


def test_mqtt5_3_2_0_1__auth_may_come_before_connack(serve: Serve) -> None:
    client = serve(hooks=[EnhancedAuth(steps=2)]).client()
    client.send(wire.connect("c", properties=METHOD))
    client.expect("AUTH", reason_code=0x18)
    client.send(wire.auth(0x18, {**METHOD, "authentication_data": b"proof"}), wire.pingreq())
    client.expect("CONNACK", reason_code=0)
    client.expect("PINGRESP")


def test_mqtt5_3_2_0_2__none_for_a_second_connect(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.connect("c"), wire.connect("d"), wire.pingreq())
    client.expect_close(PROTOCOL_ERROR)


def test_mqtt5_3_2_0_2__none_for_a_re_authentication(serve: Serve) -> None:
    client = serve(hooks=[EnhancedAuth(steps=1)]).client()
    proof = {**METHOD, "authentication_data": b"proof"}
    client.connect("c", **proof)
    for _ in range(3):
        client.send(wire.auth(0x19, proof))
        client.expect("AUTH", reason_code=0)
        client.expect_nothing()


def test_mqtt5_3_2_0_2__none_in_a_long_session(server: Server) -> None:
    client = server.connect("c", keep_alive=60)
    for number in range(10):
        client.subscribe("t", qos=2)
        client.send(wire.publish("t", b"x", qos=number % 2, packet_id=number + 100 if number % 2 else None))
        client.unsubscribe("t")
        server.advance(30)
        kinds = {packet.name for packet in client.drain()}
        assert "PUBLISH" in kinds and "CONNACK" not in kinds


# ---- 3.2.2.1: Connect Acknowledge Flags


def test_mqtt5_3_2_2_1__flags_of_an_accepting_connack(server: Server) -> None:
    for client_id, clean_start, flags in (("c", True, 0), ("c", False, 1), ("c", True, 0), ("", False, 0)):
        client = server.client()
        connack = client.connect(client_id, clean_start=clean_start, **KEPT)
        assert connack.raw[2:4] == bytes([flags, 0])


@pytest.mark.parametrize("refusal", EVERY_REFUSAL)
def test_mqtt5_3_2_2_1__flags_of_a_refusing_connack(serve: Serve, refusal: Refusal) -> None:
    assert refused(serve, refusal).raw[2:4] == bytes([0, refusal.code])


def test_mqtt5_3_2_2_2__clean_start_1(server: Server) -> None:
    for _ in range(3):
        client = server.client()
        assert client.connect("c", clean_start=True, **KEPT).raw[2:4] == b"\x00\x00"
        client.subscribe("t")
        client.drop()
    server.connect("c", clean_start=True, session_present=False, **KEPT)
    server.connect("c", clean_start=True, session_present=False, **KEPT).expect_nothing()


def test_mqtt5_3_2_2_3__no_state(server: Server) -> None:
    server.connect("c", clean_start=False, session_present=False).expect_nothing()


@pytest.mark.parametrize("filters", [(), ("t",)])
def test_mqtt5_3_2_2_3__live_state(server: Server, filters: tuple[str, ...]) -> None:
    client = server.connect("c", **KEPT)
    if filters:
        client.subscribe(*filters)
    client.drop()
    again = server.client()
    assert again.connect("c", clean_start=False, **KEPT).raw[2:4] == b"\x01\x00"
    server.connect("c", clean_start=False, session_present=True).expect_nothing()


def test_mqtt5_3_2_2_3__expired_state(server: Server) -> None:
    server.connect("c", **KEPT).drop()
    server.advance(59.9)
    server.connect("c", clean_start=False, session_present=True, **KEPT).drop()
    server.advance(60.1)
    server.connect("c", clean_start=False, session_present=False).expect_nothing()


@pytest.mark.parametrize("taken_over", [True, False])
@pytest.mark.parametrize("properties", [{}, {"session_expiry_interval": 0}])
def test_mqtt5_3_2_2_3__old_interval_0(server: Server, properties: dict[str, int], taken_over: bool) -> None:
    old = server.connect("c", **properties)
    if not taken_over:
        old.drop()
    server.connect("c", clean_start=False, session_present=False).expect_nothing()


def test_mqtt5_3_2_2_6__a_refusal_has_session_present_0(serve: Serve) -> None:
    server = serve(hooks=[Policy(credentials={"u": b"p"})])
    server.connect("c", user_name="u", password=b"p", **KEPT).drop()
    client = server.client()
    client.send(wire.connect("c", clean_start=False, user_name="u", password=b"wrong"))
    refusal = client.expect_close(0x86, session_present=False)
    assert refusal is not None and refusal.raw[2:4] == b"\x00\x86"
    server.connect("c", clean_start=False, user_name="u", password=b"p", session_present=True)


# ---- 3.2.2.2: Reason Code


@pytest.mark.parametrize("refusal", EVERY_REFUSAL)
def test_mqtt5_3_2_2_7__closed_after_a_refusal(serve: Serve, refusal: Refusal) -> None:
    assert refused(serve, refusal).reason_code == refusal.code


def test_mqtt5_3_2_2_7__closed_after_a_hooks_refusal(serve: Serve) -> None:
    server = serve(hooks=[Policy(connect={f"{code:02x}": code for code in REFUSING_CODES})])
    for code in REFUSING_CODES:
        server.expect_refused(wire.connect(f"{code:02x}"), wire.pingreq(), codes=code)


def test_mqtt5_3_2_2_7__closed_when_all_connections_are_taken(serve: Serve) -> None:
    server = serve(maximum_connections=1)
    first, second = server.connect("c"), server.client()
    second.send(wire.connect("d"))
    second.expect_close(0x97)
    first.expect_nothing()


STRANGE = [0x00, 0x01, 0x04, 0x10, 0x19, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x91, 0x95), 0x96, 0x98, 0x9E,
           0xA0, 0xA1, 0xA2]  # fmt: skip


def test_mqtt5_3_2_2_8__any_other_code_of_a_hook_becomes_0x80(serve: Serve) -> None:
    assert not CONNACK_CODES & set(STRANGE) - {0x00}
    server = serve(hooks=[Policy(connect={f"{code:02x}": code for code in STRANGE})])
    for code in STRANGE:
        server.expect_refused(wire.connect(f"{code:02x}"), codes=0x80)


@pytest.mark.parametrize("refusal", EVERY_REFUSAL)
def test_mqtt5_3_2_2_8__codes_are_listed(serve: Serve, refusal: Refusal) -> None:
    assert refused(serve, refusal).reason_code in CONNACK_CODES


# ---- 3.2.2.3.4: Maximum QoS


def announced(server: Server, name: str, **kwargs: object) -> object:
    """The value of one CONNACK property, None if it is not there."""
    client = server.client()
    connack = client.connect("announced", **kwargs)
    client.expect_nothing()
    return connack.properties.get(name)


@pytest.mark.parametrize(("limit", "value"), [(0, 0), (1, 1), (2, None)])
def test_mqtt5_3_2_2_9__maximum_qos_is_told(serve: Serve, limit: int, value: int | None) -> None:
    client = serve(maximum_qos=limit).client()
    connack = client.connect("c")
    assert connack.properties.get("maximum_qos") == value
    assert (bytes([0x24, limit]) in connack.raw) == (value is not None)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_mqtt5_3_2_2_10__subscribe_at_any_qos(serve: Serve, limit: int) -> None:
    server = serve(maximum_qos=limit)
    client = server.connect("c")
    for qos in (0, 1, 2):
        client.subscribe("t", qos=qos, granted=[min(qos, limit)])
    server.connect("p").publish("t", b"x", qos=limit)
    client.expect("PUBLISH", qos=limit)
    client.expect_nothing()


@pytest.mark.parametrize(("limit", "qos"), [(0, 1), (0, 2), (1, 2)])
def test_mqtt5_3_2_2_11__publish_above_maximum_qos(serve: Serve, limit: int, qos: int) -> None:
    server = serve(maximum_qos=limit)
    server.expect_breach(wire.publish("t", b"x", qos=qos, retain=True), codes=0x9B)
    assert server.retained() == []
    server.connect("c").publish("t", b"x", qos=limit, reason=0)


@pytest.mark.parametrize(("limit", "qos"), [(0, 1), (0, 2), (1, 2)])
def test_mqtt5_3_2_2_12__will_above_maximum_qos(serve: Serve, limit: int, qos: int) -> None:
    server = serve(maximum_qos=limit)
    server.expect_refused(wire.connect("c", will=wire.will("w", b"x", qos=qos)), codes=0x9B)
    server.connect("c", will=wire.will("w", b"x", qos=limit)).expect_nothing()


# ---- 3.2.2.3.5: Retain Available


def test_mqtt5_3_2_2_13__will_retain_where_retain_is_off(serve: Serve) -> None:
    server = serve(retain_available=False)
    for qos in (0, 1, 2):
        will = wire.will("w", b"x", qos=qos, retain=True)
        server.expect_refused(wire.connect("c", will=will), codes=0x9A)
    server.connect("c", will=wire.will("w", b"x")).expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_3_2_2_14__publish_retained_where_retain_is_off(serve: Serve, qos: int) -> None:
    server = serve(retain_available=False)
    connack = server.client().connect("c")
    assert connack.properties["retain_available"] == 0 and b"\x25\x00" in connack.raw
    for payload in (b"x", b""):
        server.expect_breach(wire.publish("t", payload, qos=qos, retain=True), codes=0x9A)
    assert server.retained() == []


def test_mqtt5_3_2_2_14__on(server: Server) -> None:
    assert announced(server, "retain_available") is None


# ---- 3.2.2.3.6: Maximum Packet Size


def test_mqtt5_3_2_2_15__a_packet_of_the_maximum_size(serve: Serve) -> None:
    server = serve(maximum_packet_size=1000)
    client = server.connect("c")
    assert client.connack is not None and client.connack.properties["maximum_packet_size"] == 1000
    watcher = server.watch()
    for qos in (0, 1, 2):
        client.send(wire.publish_of(1000, qos=qos))
        client.drain()
        if qos == 2:
            client.release(1)
    watcher.expect_messages(
        *[
            wire.publish_of(1000)[-993:],
            wire.publish_of(1000, qos=1)[-991:],
            wire.publish_of(1000, qos=2)[-991:],
        ]
    )


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_3_2_2_15__one_byte_more(serve: Serve, qos: int) -> None:
    server = serve(maximum_packet_size=1000)
    server.expect_breach(wire.publish_of(1001, qos=qos), wire.publish("t", b"x"), codes=0x95)


@pytest.mark.parametrize("first", [0x30, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xE0, 0xF0])
def test_mqtt5_3_2_2_15__refused_by_the_fixed_header(serve: Serve, first: int) -> None:
    server = serve(maximum_packet_size=1000)
    for length in (998, 268_435_455):  # with 3 bytes of header 1001
        server.expect_breach(bytes([first]) + wire.varint(length), codes=0x95)


def test_mqtt5_3_2_2_15__a_large_connect(serve: Serve) -> None:
    server = serve(maximum_packet_size=1000)
    spare = 1000 - len(wire.connect("c" * 200, user_name=""))
    raw = wire.connect("c" * 200, user_name="u" * spare)
    assert len(raw) == 1000
    client = server.client()
    client.send(raw)
    client.expect("CONNACK", reason_code=0)
    server.expect_refused(wire.connect("c" * 200, user_name="u" * (spare + 1)), codes=0x95)
    server.expect_refused(wire.connect("c" * 200, user_name="u" * (spare + 1))[:10], codes=0x95)


# ---- 3.2.2.3.7: Assigned Client Identifier


@pytest.mark.tcp_only("a thousand connections say nothing about transports; MQTT-3.1.3-6 has a hundred")
def test_mqtt5_3_2_2_16__assigned_ids_are_unique(server: Server) -> None:
    chosen = {f"chosen{number}" for number in range(10)}
    for client_id in chosen:
        client = server.client()
        client.send(wire.connect(client_id))
        client.expect("CONNACK", reason_code=0, assigned_client_identifier=None)
    assigned = []
    for _ in range(1000):
        client = server.client()
        connack = client.connect("", **KEPT)
        assigned.append(connack.properties["assigned_client_identifier"])
        client.drop(wait=False)
    assert len(set(assigned)) == 1000 and not chosen & set(assigned)


# ---- 3.2.2.3.8: Topic Alias Maximum


@pytest.mark.parametrize("limit", [1, 10, 65534])
def test_mqtt5_3_2_2_17__alias_above_the_maximum(serve: Serve, limit: int) -> None:
    server = serve(topic_alias_maximum=limit)
    assert announced(server, "topic_alias_maximum") == limit
    for qos in (0, 1, 2):
        raw = wire.publish("t", b"x", qos=qos, retain=True, properties={"topic_alias": limit + 1})
        server.expect_breach(raw, codes=0x94)
    assert server.retained() == []
    server.connect("c").publish("t", b"x", qos=1, topic_alias=limit)


@pytest.mark.parametrize("alias", [1, 2, 65535])
def test_mqtt5_3_2_2_18__aliases_switched_off(serve: Serve, alias: int) -> None:
    server = serve(topic_alias_maximum=0)
    assert announced(server, "topic_alias_maximum") in (None, 0)
    for qos in (0, 1, 2):
        raw = wire.publish("t", b"x", qos=qos, retain=True, properties={"topic_alias": alias})
        server.expect_breach(raw, codes=0x94)
    assert server.retained() == []


# ---- 3.2.2.3.9 and 3.2.2.3.10: Reason String and User Property


@pytest.mark.parametrize("name", refusals())
def test_mqtt5_3_2_2_19__reason_string_only_if_it_fits(serve: Serve, name: str) -> None:
    for limit in (20, 1000):
        connack = refused(serve, refusals(properties=[(0x27, limit)])[name])
        assert len(connack.raw) <= limit
        told = "reason_string" in connack.properties
        # A CONNECT that is no CONNECT by the format need not be read as far as the limit.
        assert told == (limit == 1000) or (not told and connack.reason_code in (0x81, 0x82, 0x95))


def test_mqtt5_3_2_2_19__off(serve: Serve) -> None:
    server = serve(hooks=[Policy(connect={"c": 0x87}, reason_string="No.")], reason_strings=False)
    client = server.client()
    client.send(wire.connect("c"))
    client.expect_close(0x87, reason_string=None)


@pytest.mark.parametrize(("limit", "told"), [(100, False), (1000, True), (None, True)])
def test_mqtt5_3_2_2_20__user_property_only_if_it_fits(serve: Serve, limit: int | None, told: bool) -> None:
    pair = ("k", "v" * 200)
    server = serve(hooks=[ConnackProperties(pair), Policy(users={"u": 0x87}, user_properties=[pair])])
    properties = {} if limit is None else {"maximum_packet_size": limit}
    accepted, client = server.client(), server.client()
    accepted.send(wire.connect("c", properties=properties))
    accepted.expect("CONNACK", reason_code=0, user_property=[pair] if told else None)
    client.send(wire.connect("d", user_name="u", properties=properties))
    client.expect_close(0x87, user_property=[pair] if told else None)


def test_mqtt5_3_2_2_20__off(server: Server) -> None:
    assert announced(server, "user_property") is None


# ---- 3.2.2.3.14: Server Keep Alive


def closes_at(server: Server, seconds: float, asked: int) -> tuple[Raw, Raw]:
    """Two clients: one that pings shortly before *seconds* and one that is closed shortly after."""
    early, silent = (server.connect(name, keep_alive=asked) for name in ("early", "silent"))
    server.advance(seconds - 0.1)
    early.expect_nothing()
    server.advance(0.2)
    silent.expect_close(0x8D)
    early.expect_nothing()
    return early, silent


@pytest.mark.parametrize("asked", [60, 0])
def test_mqtt5_3_2_2_21__the_announced_keep_alive_is_used(serve: Serve, asked: int) -> None:
    for client in closes_at(serve(server_keep_alive=2), 3, asked):
        assert client.connack is not None and client.connack.properties["server_keep_alive"] == 2


@pytest.mark.parametrize("limit", [0, 10])
def test_mqtt5_3_2_2_22__the_clients_keep_alive_is_used(serve: Serve, limit: int) -> None:
    for client in closes_at(serve(server_keep_alive=limit), 3, 2):
        assert client.connack is not None and "server_keep_alive" not in client.connack.properties


def test_mqtt5_3_2_2_22__keep_alive_0(server: Server) -> None:
    assert announced(server, "server_keep_alive", keep_alive=0) is None
    client = server.connect("c", keep_alive=0)
    server.advance(1_000_000)
    client.expect_nothing()
