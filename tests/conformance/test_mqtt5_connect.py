"""MQTT 5.0, section 3.1: CONNECT, all but the will."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Policy, Seen
from tests.conformance.server import Server

MALFORMED, PROTOCOL_ERROR, NOT_SUPPORTED = 0x81, 0x82, 0x84
REFUSED_3X = bytes.fromhex("20 02 00 01")
REFUSED_5 = bytes.fromhex("20 03 00 84 00")


def resume(server: Server, client_id: str = "c", present: bool = True, **kwargs: object) -> Raw:
    """The client again, with Clean Start 0."""
    return server.connect(client_id, clean_start=False, session_present=present, **kwargs)


# ---- 3.1: the first packet, and the only CONNECT

NOT_A_CONNECT = {
    "PINGREQ": wire.pingreq(),
    "PUBLISH": wire.publish("t", b"x"),
    "PUBLISH, retained": wire.publish("t", b"x", qos=1, retain=True),
    "PUBACK": wire.puback(1),
    "PUBREL": wire.pubrel(1),
    "SUBSCRIBE": wire.subscribe(1, "t"),
    "UNSUBSCRIBE": wire.unsubscribe(1, "t"),
    "DISCONNECT": wire.disconnect(),
    "DISCONNECT with a code": wire.disconnect(0x04),
    "AUTH": wire.auth(0x18, {"authentication_method": "X-TEST"}),
    "CONNACK": bytes.fromhex("20 03 00 00 00"),
    "zeros": bytes(16),
    "ones": b"\xff" * 16,
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16 03 01 00 05 01 00 00 01 00"),
    "text": b"hello\n",
}


@pytest.mark.parametrize("raw", NOT_A_CONNECT.values(), ids=NOT_A_CONNECT)
def test_mqtt5_3_1_0_1__anything_before_connect_closes_silently(server: Server, raw: bytes) -> None:
    server.expect_refused(raw)
    server.expect_refused(raw, wire.connect("c", will=wire.will("w", b"x")), wire.publish("t", b"x"))
    assert server.retained() == []


def test_mqtt5_3_1_0_2__second_connect(server: Server) -> None:
    server.expect_breach(wire.connect("other"), codes=PROTOCOL_ERROR)
    server.expect_breach(wire.connect("other"), wire.publish("t", b"x"), codes=PROTOCOL_ERROR)
    server.expect_breach(wire.connect("other", version=4), codes=PROTOCOL_ERROR)


def test_mqtt5_3_1_0_2__two_connects_in_one_segment(server: Server) -> None:
    watcher, client = server.watch(), server.client()
    raw = wire.connect("c", will=wire.will("w", b"gone"))
    client.send(raw, raw)
    client.expect("CONNACK", reason_code=0)
    client.expect_close(PROTOCOL_ERROR)
    watcher.expect_messages(("w", b"gone"))


# ---- 3.1.2: variable header


@pytest.mark.parametrize("name", ["mqtt", "MQTX", "", "MQT", "MQTT5", "MQisdp"])
def test_mqtt5_3_1_2_1__unknown_protocol_name(server: Server, name: str) -> None:
    server.expect_refused(wire.connect("c", protocol_name=name), wire.publish("t", b"x"))


def test_mqtt5_3_1_2_1__name_of_another_version(server: Server) -> None:
    client = server.client()
    client.send(wire.connect("c", protocol_name="MQIsdp"), wire.pingreq())
    refusal = client.expect_close(NOT_SUPPORTED)
    assert refusal is not None and refusal.raw == REFUSED_5


@pytest.mark.parametrize("level", [6, 99, 255])
def test_mqtt5_3_1_2_2__future_versions(server: Server, level: int) -> None:
    client = server.client()
    client.send(wire.connect("c", level=level))
    refusal = client.expect_close(NOT_SUPPORTED)
    assert refusal is not None and refusal.raw == REFUSED_5


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_mqtt5_3_1_2_2__versions_that_never_were(server: Server, level: int) -> None:
    client = server.client(version=4)
    client.send(wire.connect("c", version=4, level=level))
    refusal = client.expect_close(1)
    assert refusal is not None and refusal.raw == REFUSED_3X


@pytest.mark.parametrize(("version", "setting"), [(3, "mqtt_3_1"), (4, "mqtt_3_1_1"), (5, "mqtt_5")])
def test_mqtt5_3_1_2_2__older_versions_are_served_or_switched_off(
    serve: Serve, version: int, setting: str
) -> None:
    served = serve().client(version)
    connack = served.connect("c")
    assert version == 5 or connack.raw == bytes.fromhex("20 02 00 00")
    served.expect_nothing()
    client = serve(**{setting: False}).client(version)
    client.send(wire.connect("c", version=version))
    refusal = client.expect_close(NOT_SUPPORTED if version == 5 else 1)
    assert refusal is not None and refusal.raw == (REFUSED_5 if version == 5 else REFUSED_3X)


@pytest.mark.parametrize("flags", [0x01, 0x03, 0x81, 0xC3, 0x07, 0xEF])
def test_mqtt5_3_1_2_3__reserved_flag(server: Server, flags: int) -> None:
    will = wire.will("w", b"x", qos=flags >> 3 & 3, retain=bool(flags & 0x20)) if flags & 4 else None
    name, password = "u" if flags & 0x80 else None, b"p" if flags & 0x40 else None
    raw = wire.connect("c", will=will, user_name=name, password=password, flags=flags)
    server.expect_refused(raw, codes=MALFORMED)


# ---- Clean Start


def half_done(server: Server) -> tuple[Raw, Raw, int, int]:
    """A dropped session of "c" with one of each: subscription, half-done flows, queued messages.

    Gives its publisher, a watcher of topic "in", and the identifiers of what was sent to it and what
    it has had a PUBREL for. Its own QoS 2 PUBLISH to "in" has identifier 9.
    """
    watcher, publisher = server.watch("in"), server.connect("p")
    client = server.connect("c", session_expiry_interval=300)
    options = wire.options(2, no_local=True, retain_as_published=True)
    client.subscribe(("s/#", options), subscription_identifier=7)
    publisher.publish("s/sent", b"sent", qos=2)
    publisher.publish("s/released", b"released", qos=2)
    sent = client.expect("PUBLISH", payload="sent", qos=2)
    released = client.expect("PUBLISH", payload="released", qos=2)
    client.send(wire.pubrec(released.packet_id))
    client.expect("PUBREL", packet_id=released.packet_id)
    client.send(wire.publish("in", b"old", qos=2, packet_id=9))
    client.expect("PUBREC", packet_id=9, reason_code=0)
    client.drop()
    publisher.publish("s/queued", b"q1", qos=1, reason=0)
    publisher.publish("s/queued", b"q2", qos=1, reason=0)
    return publisher, watcher, sent.packet_id, released.packet_id


def test_mqtt5_3_1_2_4__clean_start_1_discards_everything(server: Server) -> None:
    publisher, watcher, _, _ = half_done(server)
    client = server.connect("c", clean_start=True, session_expiry_interval=300, session_present=False)
    client.expect_nothing()
    publisher.publish("s/sent", b"x", qos=1, reason=0x10)
    client.expect_nothing()
    client.release(9, reason=0x92)
    client.publish("in", b"new", qos=2, packet_id=9, reason=0)
    watcher.expect_messages(b"new")


def test_mqtt5_3_1_2_5__clean_start_0_resumes_everything(server: Server) -> None:
    publisher, watcher, sent, released = half_done(server)
    client = resume(server, session_expiry_interval=300)
    first = client.expect("PUBLISH", payload="sent", qos=2, dup=True, packet_id=sent)
    second = client.expect("PUBREL", packet_id=released)
    queued = [client.expect("PUBLISH", payload=text, qos=1, dup=False) for text in ("q1", "q2")]
    client.expect_nothing()
    for packet in (first, second, *queued):
        client.ack(packet)
        assert packet is second or packet.properties["subscription_identifier"] == [7]

    client.send(wire.publish("in", b"old", qos=2, packet_id=9, dup=True))
    client.expect("PUBREC", packet_id=9, reason_code=0)
    client.release(9)
    watcher.expect_messages(b"old")

    publisher.publish("s/live", b"live", qos=2, retain=True)
    client.expect("PUBLISH", payload="live", qos=2, retain=True, dup=False, subscription_identifier=[7])
    client.publish("s/own", b"no local", qos=1)
    client.expect_nothing()


def test_mqtt5_3_1_2_6__clean_start_0_creates_a_session(server: Server) -> None:
    first = server.connect("c", clean_start=False, session_expiry_interval=300, session_present=False)
    first.drop()
    resume(server).expect_nothing()


# ---- User Name and Password


def test_mqtt5_3_1_2_16__user_name_without_its_flag(server: Server) -> None:
    tail = wire.string("u")
    server.expect_refused(wire.connect("c", tail=tail), codes=MALFORMED)
    server.expect_refused(wire.connect("c", will=wire.will("w"), tail=tail), codes=MALFORMED)
    both = wire.connect_payload("c", None, "u", b"p")
    server.expect_refused(wire.connect(flags=0x42, payload=both), codes=MALFORMED)


def test_mqtt5_3_1_2_17__user_name_flag_without_a_user_name(server: Server) -> None:
    for flags in (0x82, 0xC2):
        server.expect_refused(wire.connect("c", flags=flags), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x82, tail=b"\x00"), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x82, tail=b"\x00\x02u"), codes=MALFORMED)


@pytest.mark.parametrize("name", ["", "u", "ü/+ 1"])
def test_mqtt5_3_1_2_17__user_name_reaches_the_authenticator(serve: Serve, name: str) -> None:
    seen = Seen()
    server = serve(hooks=[seen])
    server.connect("c", user_name=name, password=b"").expect_nothing()
    server.connect("d", user_name=name).expect_nothing()
    server.connect("e").expect_nothing()
    found = [(packet.user_name, packet.password) for packet in seen.connects]
    assert found == [(name, b""), (name, None), (None, None)]


def test_mqtt5_3_1_2_18__password_without_its_flag(server: Server) -> None:
    tail = wire.binary(b"p")
    server.expect_refused(wire.connect("c", user_name="u", tail=tail), codes=MALFORMED)
    server.expect_refused(wire.connect("c", tail=tail), codes=MALFORMED)


def test_mqtt5_3_1_2_19__password_flag_without_a_password(server: Server) -> None:
    server.expect_refused(wire.connect("c", user_name="u", flags=0xC2), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x42), codes=MALFORMED)
    server.expect_refused(wire.connect("c", flags=0x42, tail=b"\x00\x02p"), codes=MALFORMED)


@pytest.mark.parametrize("password", [b"", b"p", b"\x00\xff\xfe\xc0\x80", bytes(range(256)) * 255])
def test_mqtt5_3_1_2_19__password_alone_and_as_bytes(serve: Serve, password: bytes) -> None:
    seen = Seen()
    client = serve(hooks=[seen]).connect("c", password=password)
    client.expect_nothing()
    assert (seen.connects[0].user_name, seen.connects[0].password) == (None, password)


# ---- Keep Alive


@pytest.mark.parametrize("asked", [60, 3, 0])
def test_mqtt5_3_1_2_21__server_keep_alive_governs(serve: Serve, asked: int) -> None:
    server = serve(server_keep_alive=2)
    early, silent = (server.connect(name, keep_alive=asked) for name in ("early", "silent"))
    for client in (early, silent):
        assert client.connack is not None and client.connack.properties["server_keep_alive"] == 2
    server.advance(2.9)
    early.expect_nothing()
    server.advance(0.2)
    silent.expect_close(0x8D)
    early.expect_nothing()


def test_mqtt5_3_1_2_21__off(serve: Serve) -> None:
    for server, asked in ((serve(), 60), (serve(server_keep_alive=2), 2), (serve(server_keep_alive=2), 1)):
        client = server.connect("c", keep_alive=asked)
        assert client.connack is not None and "server_keep_alive" not in client.connack.properties
        server.advance(1.5 * asked - 0.1)
        client.expect_nothing()


def test_mqtt5_3_1_2_22__silence_closes_after_one_and_a_half(server: Server) -> None:
    watcher = server.watch()
    early, silent = (
        server.connect(name, keep_alive=2, will=wire.will(f"w/{name}", b"gone")) for name in ("early", "late")
    )
    server.advance(2.9)
    early.expect_nothing()
    server.advance(0.2)
    silent.expect_close(0x8D)
    watcher.expect_messages(("w/late", b"gone"))
    early.expect_nothing()


REARMS = {
    "PINGREQ": wire.pingreq(),
    "PUBLISH 0": wire.publish("t", b"x"),
    "PUBLISH 1": wire.publish("t", b"x", qos=1),
    "PUBLISH 2": wire.publish("t", b"x", qos=2),
    "PUBACK": wire.puback(1),
    "PUBREC": wire.pubrec(77),
    "PUBREL": wire.pubrel(77),
    "PUBCOMP": wire.pubcomp(77),
    "SUBSCRIBE": wire.subscribe(3, "x"),
    "UNSUBSCRIBE": wire.unsubscribe(3, "x"),
}


def test_mqtt5_3_1_2_22__any_complete_packet_re_arms(server: Server) -> None:
    clients = {name: server.connect(name, keep_alive=2) for name in (*REARMS, "silent")}
    clients["PUBACK"].subscribe("to/ack", qos=1)
    server.connect("p").publish("to/ack", b"x", qos=1)
    server.advance(2)
    for name, raw in REARMS.items():
        server.push(clients[name], raw)
    clients["PINGREQ"].expect("PINGRESP")
    server.advance(1.5)
    clients.pop("silent").expect_close(0x8D)
    for client in clients.values():
        client.drain()
    server.advance(3.1)
    for client in clients.values():
        client.expect_close(0x8D)


def test_mqtt5_3_1_2_22__traffic_to_the_client_does_not_re_arm(server: Server) -> None:
    client, publisher = server.connect("c", keep_alive=2), server.connect("p")
    client.subscribe("t", qos=1)
    server.advance(2)
    publisher.publish("t", b"x")
    publisher.publish("t", b"x", qos=1)
    client.expect("PUBLISH", qos=0)
    client.expect("PUBLISH", qos=1)
    server.advance(1.1)
    client.expect_close(0x8D)


def test_mqtt5_3_1_2_22__half_a_packet_does_not_re_arm(server: Server) -> None:
    client = server.connect("c", keep_alive=2)
    server.advance(2)
    server.push(client, wire.publish("t", b"half")[:6])
    server.advance(1.1)
    client.expect_close(0x8D)


def test_mqtt5_3_1_2_22__keep_alive_0_never_closes(server: Server) -> None:
    client = server.connect("c", keep_alive=0)
    for seconds in (10, 100_000):
        server.advance(seconds)
        client.expect_nothing()


# ---- properties


def test_mqtt5_3_1_2_23__session_outlives_its_connection(server: Server) -> None:
    client = server.connect("c", session_expiry_interval=60)
    client.subscribe("t", qos=2)
    client.drop()
    publisher = server.connect("p")
    publisher.publish("t", b"1", qos=1, reason=0)
    publisher.publish("t", b"2", qos=2, reason=0)
    server.advance(59)
    again = resume(server)
    again.expect("PUBLISH", payload="1", qos=1)
    again.expect("PUBLISH", payload="2", qos=2)
    again.expect_nothing()


def test_mqtt5_3_1_2_23__no_timer_for_the_largest_interval(serve: Serve) -> None:
    server = serve(session_expiry_interval=0xFFFFFFFF)
    client = server.connect("c", session_expiry_interval=0xFFFFFFFF)
    client.subscribe("t", qos=1)
    client.drop()
    server.advance(200 * 365 * 86400)
    server.connect("p").publish("t", b"x", qos=1, reason=0)
    resume(server).expect("PUBLISH", payload="x", qos=1)


def payload_for(size: int, qos: int) -> bytes:
    """The payload that makes a PUBLISH to a one-letter topic *size* bytes long."""
    return b"x" * (size - len(wire.publish("t", qos=qos)))


@pytest.mark.parametrize("way", ["live", "retained", "queued"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt5_3_1_2_24__publish_at_the_limit_and_above(serve: Serve, qos: int, way: str) -> None:
    server = serve(queue_qos_0=True)
    client = server.connect("c", maximum_packet_size=100, session_expiry_interval=60)
    publisher, fits, large = server.connect("p"), payload_for(100, qos), payload_for(101, qos)
    if way != "retained":
        client.subscribe("+", qos=2)
    if way == "queued":
        client.drop()
    for topic_name, payload in (("a", large), ("b", fits), ("d", large)):
        publisher.publish(topic_name, payload, qos, retain=way == "retained")
    if way == "retained":
        client.subscribe("+", qos=2)
    if way == "queued":
        client = resume(server, maximum_packet_size=100)
    [packet] = client.expect_messages(("b", fits), qos=qos)
    assert len(packet.raw) == 100
    client.expect_nothing()


@pytest.mark.parametrize("limit", [1, 4, 15, 16, 17, 100])
def test_mqtt5_3_1_2_24__connack_fits_or_is_not_sent(server: Server, limit: int) -> None:
    client = server.client()
    client.send(wire.connect("c", properties={"maximum_packet_size": limit}))
    if limit < 16:  # what the default CONNACK has to say takes 16 bytes
        client.expect_close()
    else:
        assert len(client.expect("CONNACK", reason_code=0).raw) == 16
        client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt5_3_1_2_25__oversize_counts_as_sent(server: Server, qos: int) -> None:
    limits = {"receive_maximum": 1, "maximum_packet_size": 100}
    client = server.connect("c", session_expiry_interval=60, **limits)
    client.subscribe("t", qos=2)
    publisher = server.connect("p")
    publisher.publish("t", b"x" * 200, qos, reason=0)
    publisher.publish("t", b"small", qos, reason=0)
    client.ack(client.expect("PUBLISH", payload="small", qos=qos))
    client.expect_nothing()
    client.drop()
    resume(server, maximum_packet_size=1000).expect_nothing()


def alternating(server: Server, limit: int) -> list[wire.Packet]:
    """What a client with Topic Alias Maximum *limit* gets of messages to five topics in turn."""
    client, publisher = server.connect("c", topic_alias_maximum=limit), server.connect("p")
    client.subscribe("t/#")
    for number in 2 * (0, 0, 1, 2, 2, 3, 4, 4):
        publisher.publish(f"t/{number}", f"t/{number}")
    return client.drain()


def test_mqtt5_3_1_2_26__aliases_stay_within_the_maximum(server: Server) -> None:
    found = alternating(server, 2)
    assert [packet.topic_name for packet in found] == [packet.payload.decode() for packet in found]
    assert len(found) == 16 and {packet.properties.get("topic_alias") for packet in found} <= {1, 2, None}
    assert {packet.properties["topic_alias"] for packet in found if not packet.sent_topic_name} == {1, 2}


def test_mqtt5_3_1_2_26__off(serve: Serve) -> None:
    found = alternating(serve(outbound_topic_alias_maximum=0), 2)
    assert len(found) == 16 and all("topic_alias" not in packet.properties for packet in found)


@pytest.mark.parametrize("properties", [{}, {"topic_alias_maximum": 0}])
def test_mqtt5_3_1_2_27__no_alias_where_none_is_allowed(server: Server, properties: dict[str, int]) -> None:
    client, publisher = server.connect("c", **properties), server.connect("p")
    client.subscribe("t", qos=2)
    for number in range(10):
        publisher.publish("" if number else "t", b"x", qos=number % 3, topic_alias=5)
    for number in range(10):
        client.expect("PUBLISH", sent_topic_name="t", topic_alias=None, qos=number % 3)


def test_mqtt5_3_1_2_28__response_information_only_on_request(serve: Serve) -> None:
    server = serve(response_information="resp/{client_id}/")
    for asked, wanted in ((None, None), (0, None), (1, "resp/c/")):
        properties = {} if asked is None else {"request_response_information": asked}
        client = server.client()
        client.send(wire.connect("c", properties=properties))
        client.expect("CONNACK", reason_code=0, response_information=wanted)
        client.disconnect()


def test_mqtt5_3_1_2_28__off(server: Server) -> None:
    client = server.client()
    client.send(wire.connect("c", properties={"request_response_information": 1}))
    client.expect("CONNACK", reason_code=0, response_information=None)


PROBLEMS = [
    (wire.subscribe(1, "no"), "SUBACK", 0x87),
    (wire.unsubscribe(2, "nothing"), "UNSUBACK", 0x11),
    (wire.unsubscribe(3, "stay"), "UNSUBACK", 0x87),
    (wire.publish("no", qos=1, packet_id=4), "PUBACK", 0x87),
    (wire.publish("no", qos=2, packet_id=5), "PUBREC", 0x87),
    (wire.pubrel(6), "PUBCOMP", 0x92),
    (wire.pubrec(7), "PUBREL", 0x92),
]


def problems(serve: Serve, **properties: int) -> list[dict[str, object]]:
    """The properties of each answer of PROBLEMS; the hook gives a Reason String and a User Property."""
    hook = Policy(publish={"no": 0x87}, subscribe={"no": 0x87}, unsubscribe={"stay": 0x87},
                  reason_string="No.", user_properties=[("k", "v")])  # fmt: skip
    server = serve(hooks=[hook])
    client = server.connect("c", **properties)
    found = []
    for raw, kind, code in PROBLEMS:
        client.send(raw)
        packet = client.expect(kind)
        assert code in (packet.reason_code, *packet.reason_codes)
        found.append(packet.properties)
    client.subscribe("t")
    server.connect("p").publish("t", b"x", user_property=[("a", "b")])
    client.expect("PUBLISH", user_property=[("a", "b")])
    return found


def test_mqtt5_3_1_2_29__no_problem_information(serve: Serve) -> None:
    assert problems(serve, request_problem_information=0) == [{}] * len(PROBLEMS)


def test_mqtt5_3_1_2_29__problem_information(serve: Serve) -> None:
    told = {"reason_string": "No.", "user_property": [("k", "v")]}
    for properties in ({}, {"request_problem_information": 1}):
        found = problems(serve, **properties)
        by_hook = [code == 0x87 for _, _, code in PROBLEMS]
        assert [one for one, hooked in zip(found, by_hook, strict=True) if hooked] == [told] * 4


def test_mqtt5_3_1_2_29__connack_and_disconnect_are_free(serve: Serve) -> None:
    server = serve(hooks=[Policy(connect={"no": 0x87}, reason_string="No.", user_properties=[("k", "v")])])
    properties = {"request_problem_information": 0}
    client = server.client()
    client.send(wire.connect("no", properties=properties))
    client.expect_close(0x87, reason_string="No.", user_property=[("k", "v")])
    client = server.connect("c", **properties)
    client.send(wire.publish("", b"x"))
    answer = client.expect_close(PROTOCOL_ERROR)
    assert answer is not None and answer.properties["reason_string"]


# ---- enhanced authentication

METHOD = {"authentication_method": "X-TEST"}


@pytest.mark.parametrize(
    "raw",
    [
        wire.publish("t", b"x"),
        wire.publish("t", b"x", qos=1, retain=True),
        wire.subscribe(1, "t"),
        wire.unsubscribe(1, "t"),
        wire.pingreq(),
        wire.puback(1),
        wire.connect("c", properties=METHOD),
    ],
)
def test_mqtt5_3_1_2_30__only_auth_and_disconnect_before_connack(serve: Serve, raw: bytes) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2)])
    watcher, client = server.watch(), server.client()
    properties = {**METHOD, "session_expiry_interval": 60}
    client.send(wire.connect("c", will=wire.will("w", b"x"), properties=properties))
    client.expect("AUTH", reason_code=0x18)
    client.send(raw)
    client.expect_close(PROTOCOL_ERROR)
    watcher.expect_nothing()
    assert server.retained() == []
    resume(server, present=False)


def test_mqtt5_3_1_2_30__auth_and_disconnect(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2)])
    watcher = server.watch()
    for raw in (wire.auth(0x18, {**METHOD, "authentication_data": b"proof"}), wire.disconnect()):
        client = server.client()
        client.send(wire.connect("c", will=wire.will("w", b"x"), properties=METHOD))
        client.expect("AUTH", reason_code=0x18)
        client.send(raw)
        if raw[0] == 0xF0:
            client.expect("CONNACK", reason_code=0)
            client.disconnect()
        else:
            client.expect_close()
    watcher.expect_nothing()


def test_mqtt5_3_1_2_30__off(server: Server) -> None:
    server.expect_refused(wire.connect("c", properties=METHOD), wire.pingreq(), codes=0x8C)


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
        resume(server, name).expect_messages(str(number), qos=1)


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
    again = resume(server, name)
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
    resume(server, present=False).expect_nothing()


def test_mqtt5_3_1_4_1__a_connect_that_ends_early(server: Server) -> None:
    will = wire.will("w", b"x", will_delay_interval=1)
    body = wire.connect("c", will=will, user_name="u", password=b"p", properties=SEI)[2:]
    for size in range(len(body)):
        known = size > 6  # protocol name and level are there: the answer can be in 5.0
        server.expect_refused(wire.packet(0x10, body[:size]), codes=MALFORMED if known else ())
    resume(server, present=False).expect_nothing()


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
    resume(server, "asleep", **good).expect("PUBLISH", payload="x")
    resume(server, "new", present=False, **good)


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
