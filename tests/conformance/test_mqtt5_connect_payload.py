"""MQTT 5.0, sections 3.1.3 and 3.1.4: the payload of CONNECT, and what follows it."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy, Seen
from tests.conformance.server import Server
from tests.conformance.sessions import returned

# ---- 3.1.3: payload


def test_mqtt5_3_1_3_1__all_fields_in_order(serve: Serve) -> None:
    seen = Seen()
    server = serve(hooks=[seen])
    watcher = server.watch()
    will = wire.will("w/t", b"gone", qos=1, content_type="text", user_property=[("k", "v")])
    server.connect("c", will=will, user_name="user", password=b"pass").drop()
    packet = seen.connects[-1]
    assert (packet.client_id, packet.user_name, packet.password) == ("c", "user", b"pass")
    watcher.expect("PUBLISH", topic_name="w/t", payload="gone", qos=1, content_type="text",
                   user_property=[("k", "v")])  # fmt: skip


def test_mqtt5_3_1_3_1__fields_in_another_order(server: Server) -> None:
    client_id, name, password = wire.string("c"), wire.string("user"), wire.binary(b"\xff\xfe")
    block = wire.encode_properties({"will_delay_interval": 1})
    topic, payload = wire.string("topic"), wire.binary(b"gone")
    for fields in (
        [block, topic, payload, client_id, name, password],
        [client_id, topic, payload, block, name, password],
        [client_id, block, password, name, topic, payload],
        [client_id, block, topic, payload, password, name],
        [name, client_id, topic, block, payload, password],
    ):
        server.expect_refused(wire.connect(flags=0xC6, payload=b"".join(fields)), codes=MALFORMED)


def test_mqtt5_3_1_3_2__the_client_id_tells_sessions_apart(server: Server) -> None:
    names = ["c", "C", "c1", "c2", "c ", " c", "é", "e\u0301"]
    for name in names:
        client = server.connect(name, session_expiry_interval=60, clean_start=False, session_present=False)
        client.subscribe(f"to/{names.index(name)}", qos=1)
        client.drop()
    publisher = server.connect("p")
    for number in range(len(names)):
        publisher.publish(f"to/{number}", str(number), qos=1, reason=0)
    for number, name in enumerate(names):
        returned(server, name).expect_messages(str(number), qos=1)


def test_mqtt5_3_1_3_2__from_another_address(server: Server) -> None:
    for number, transport in enumerate(("tcp", "websocket", "tcp")):
        client = server.client(transport=transport)
        client.connect("c", clean_start=False, session_expiry_interval=60, session_present=number > 0)
        client.expect_nothing()
        client.drop()


def test_mqtt5_3_1_3_3__the_client_id_is_there(server: Server) -> None:
    for payload in (b"", b"\x00", b"\x00\x02c", b"\xff\xffc", b"\x01\x00" + b"c" * 255):
        server.expect_refused(wire.connect(payload=payload), codes=MALFORMED)


def test_mqtt5_3_1_3_4__the_client_id_is_utf_8(server: Server) -> None:
    for client_id in (b"\xff\xfe", b"a\x00b", b"\x00", b"\xc0\x80", b"\xed\xa0\x80", b"a\xe2\x82"):
        server.expect_refused(wire.connect(client_id), codes=MALFORMED)


PLAIN = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_mqtt5_3_1_3_5__plain_client_ids(server: Server) -> None:
    for client_id in (*PLAIN, PLAIN[:23], PLAIN[-23:]):
        client = server.client()
        client.send(wire.connect(client_id))
        client.expect("CONNACK", reason_code=0, assigned_client_identifier=None)


def test_mqtt5_3_1_3_6__an_empty_client_id_is_assigned_a_unique_one(server: Server) -> None:
    found = set()
    for number in range(100):
        client = server.client()
        client.connect("", clean_start=number % 2 == 0, session_expiry_interval=60, session_present=False)
        assert client.client_id != ""
        found.add(client.client_id)
    assert len(found) == 100


@pytest.mark.parametrize("clean_start", [True, False])
def test_mqtt5_3_1_3_6__off(serve: Serve, clean_start: bool) -> None:
    server = serve(zero_length_client_id=False)
    server.expect_refused(wire.connect("", clean_start=clean_start), codes=0x85)


def test_mqtt5_3_1_3_7__the_assigned_id_is_the_clients(server: Server) -> None:
    client = server.connect("", session_expiry_interval=60)
    name = client.client_id
    client.subscribe("t", qos=1)
    client.drop()
    server.connect("p").publish("t", b"x", qos=1, reason=0)
    again = returned(server, name)
    again.expect("PUBLISH", payload="x")
    server.connect(name, session_present=False).expect_nothing()
    again.expect_close(0x8E)


def test_mqtt5_3_1_3_8__a_refused_client_id(serve: Serve) -> None:
    server = serve(hooks=[Policy(connect={"bad": 0x85})], maximum_client_id_bytes=23)
    for client_id in ("bad", "x" * 24, "é" * 12):
        client = server.client()
        client.send(wire.connect(client_id, clean_start=False))
        client.expect_close(0x85, session_present=False)
    server.connect("x" * 23).expect_nothing()
    client = serve(zero_length_client_id=False).client()
    client.send(wire.connect(""))
    client.expect_close(0x85, session_present=False)


def test_mqtt5_3_1_3_12__the_user_name_is_utf_8(server: Server) -> None:
    for name in (b"\xff", b"a\x00", b"\xc0\x80", b"\xed\xa0\x80"):
        server.expect_refused(wire.connect("c", user_name=name, password=b"p"), codes=MALFORMED)


# ---- 3.1.4: actions

SEI = [(0x11, 60)]
BROKEN = {
    "trailing bytes": (wire.connect("c", properties=SEI, tail=b"\x00"), MALFORMED),
    "unknown property": (wire.connect("c", properties=[*SEI, (0x7F, b"\x00")]), MALFORMED),
    "property of another packet": (wire.connect("c", properties=[*SEI, (0x23, 1)]), MALFORMED),
    "duplicate property": (wire.connect("c", properties=[*SEI, *SEI]), PROTOCOL_ERROR),
    "Receive Maximum 0": (wire.connect("c", properties=[*SEI, (0x21, 0)]), PROTOCOL_ERROR),
    "Maximum Packet Size 0": (wire.connect("c", properties=[*SEI, (0x27, 0)]), PROTOCOL_ERROR),
    "data without method": (wire.connect("c", properties=[*SEI, (0x16, b"x")]), PROTOCOL_ERROR),
    "flags of the fixed header": (wire.connect("c", properties=SEI, first=0x12), MALFORMED),
}


@pytest.mark.parametrize(("raw", "code"), BROKEN.values(), ids=BROKEN)
def test_mqtt5_3_1_4_1__a_connect_that_breaks_a_rule(server: Server, raw: bytes, code: int) -> None:
    server.expect_refused(raw, codes=code)
    returned(server, present=False).expect_nothing()


def test_mqtt5_3_1_4_1__a_connect_that_ends_early(server: Server) -> None:
    will = wire.will("w", b"x", will_delay_interval=1)
    body = wire.connect("c", will=will, user_name="u", password=b"p", properties=SEI)[2:]
    for size in range(len(body)):
        known = size > 6  # protocol name and level are there: the answer can be in 5.0
        server.expect_refused(wire.packet(0x10, body[:size]), codes=MALFORMED if known else ())
    returned(server, present=False).expect_nothing()


REFUSED_USERS = {"policy": 0x87, "banned": 0x8A}
PASSWORDS = {"u": b"p", "policy": b"p", "banned": b"p"}
REFUSED_PAIRS = [
    ("u", b"wrong", 0x86),
    ("nobody", b"p", 0x86),
    ("policy", b"p", 0x87),
    ("banned", b"p", 0x8A),
]


def guarded(serve: Serve) -> Server:
    return serve(hooks=[Policy(credentials=PASSWORDS, users=REFUSED_USERS)])


@pytest.mark.parametrize(("name", "password", "code"), REFUSED_PAIRS)
def test_mqtt5_3_1_4_2__refused_by_credentials_or_policy(
    serve: Serve, name: str, password: bytes, code: int
) -> None:
    server, good = guarded(serve), {"user_name": "u", "password": b"p"}
    live = server.connect("live", session_expiry_interval=60, **good)
    live.subscribe("t", qos=1)
    asleep = server.connect("asleep", session_expiry_interval=60, **good)
    asleep.subscribe("t", qos=1)
    asleep.drop()
    for client_id in ("live", "asleep", "new"):
        for clean_start in (True, False):
            client = server.client()
            raw = wire.connect(client_id, clean_start=clean_start, user_name=name, password=password)
            client.send(raw)
            client.expect_close(code)
    live.expect_nothing()
    live.publish("t", b"x", qos=1, reason=0)
    live.expect("PUBLISH", payload="x")
    returned(server, "asleep", **good).expect("PUBLISH", payload="x")
    returned(server, "new", present=False, **good)


@pytest.mark.parametrize("version", [5, 4])
@pytest.mark.parametrize("clean_start", [True, False])
def test_mqtt5_3_1_4_3__takeover(server: Server, version: int, clean_start: bool) -> None:
    old = server.connect("c", version)
    new = server.connect("c", clean_start=clean_start)
    old.expect_close(0x8E)
    new.subscribe("t")
    new.publish("t", b"x")
    new.expect("PUBLISH", payload="x")
    new.expect_nothing()


def test_mqtt5_3_1_4_3__a_refused_connect_does_not_take_over(serve: Serve) -> None:
    server = guarded(serve)
    old = server.connect("c", user_name="u", password=b"p")
    for name, password, code in REFUSED_PAIRS:
        client = server.client()
        client.send(wire.connect("c", user_name=name, password=password))
        client.expect_close(code)
        old.expect_nothing()


@pytest.mark.parametrize("interval", [0, 60])
@pytest.mark.parametrize("clean_start", [True, False])
def test_mqtt5_3_1_4_4__clean_start_at_takeover(server: Server, interval: int, clean_start: bool) -> None:
    old = server.connect("c", session_expiry_interval=interval)
    old.subscribe("t", qos=1)
    kept = interval > 0 and not clean_start
    new = server.connect("c", clean_start=clean_start, session_present=kept)
    old.expect_close(0x8E)
    server.connect("p").publish("t", b"x", qos=1, reason=0 if kept else 0x10)
    new.expect_messages(*[b"x"] * kept)


def test_mqtt5_3_1_4_5__an_accepted_connect_is_answered(server: Server) -> None:
    for raw in (wire.connect(""), bytes.fromhex("10 0E 00 04 4D 51 54 54 05 00 00 00 00 00 01 63")):
        client = server.client()
        client.send(raw)
        connack = client.expect("CONNACK", timeout=1.0, reason_code=0)
        assert connack.raw[0] == 0x20 and connack.raw[2:4] == b"\x00\x00"


AFTER_CONNECT = (wire.subscribe(1, "t"), wire.publish("t", b"x"), wire.publish("r", b"x", retain=True),
                 wire.disconnect())  # fmt: skip


def test_mqtt5_3_1_4_6__nothing_is_processed_after_a_refusal(serve: Serve) -> None:
    server = serve(hooks=[Policy(users={"u": 0x86})])
    watcher, client = server.watch(), server.client()
    client.send(wire.connect("c", user_name="u", password=b"bad"), *AFTER_CONNECT)
    client.expect_close(0x86)
    watcher.expect_nothing()
    assert server.retained() == []


def test_mqtt5_3_1_4_6__everything_is_processed_after_connack(server: Server) -> None:
    watcher, client = server.watch(), server.client()
    client.send(wire.connect("c", will=wire.will("w", b"x")), *AFTER_CONNECT)
    client.expect("CONNACK", reason_code=0)
    client.expect("SUBACK", packet_id=1, reason_codes=[0])
    client.expect("PUBLISH", payload="x")
    client.expect_close()
    watcher.expect_messages(("t", b"x"), ("r", b"x"))
    assert server.retained() == [("r", b"x")]
