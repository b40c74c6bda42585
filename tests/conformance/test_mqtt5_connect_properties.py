"""MQTT 5.0, section 3.1.2.11: the properties of CONNECT."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.authentication import METHOD
from tests.conformance.codes import PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Policy
from tests.conformance.server import Server
from tests.conformance.sessions import returned


def test_mqtt5_3_1_2_23__session_outlives_its_connection(server: Server) -> None:
    client = server.connect("c", session_expiry_interval=60)
    client.subscribe("t", qos=2)
    client.drop()
    publisher = server.connect("p")
    publisher.publish("t", b"1", qos=1, reason=0)
    publisher.publish("t", b"2", qos=2, reason=0)
    server.advance(59)
    again = returned(server)
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
    returned(server).expect("PUBLISH", payload="x", qos=1)


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
        client = returned(server, maximum_packet_size=100)
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
    returned(server, maximum_packet_size=1000).expect_nothing()


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
    returned(server, present=False)


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
