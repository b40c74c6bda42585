"""MQTT 5.0 section 3.3.2.3: the properties of PUBLISH, whichever way a message takes."""

from __future__ import annotations

from typing import Any

import pytest

from broker.hook.base import HookBase
from broker.packet.message import Message
from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.wire import Packet, PropertySpec

WAYS = ("live", "queued", "retained", "will", "shared")
every_way = pytest.mark.parametrize("way", WAYS)


def send(server: Server, way: str, properties: PropertySpec, payload: bytes = b"x") -> None:
    """Publishes to the topic *way*; for "will" a client with that will vanishes."""
    if way == "will":
        server.connect("gone", will=wire.will(way, payload, 1, properties=properties)).drop()
        return
    publisher = server.connect("p")
    publisher.publish(way, payload, 1, retain=way == "retained", properties=properties)
    publisher.disconnect()


def receive(server: Server, way: str, properties: PropertySpec, payload: bytes = b"x") -> Packet:
    """What a subscriber gets of a message that is delivered live, from its queue, as retained message,
    as a will, or through a shared subscription."""
    subscriber = server.connect("s", session_expiry_interval=60)
    if way != "retained":
        subscriber.subscribe("$share/g/" + way if way == "shared" else way, qos=1)
    if way == "queued":
        subscriber.drop()
    send(server, way, properties, payload)
    if way == "queued":
        subscriber = server.connect("s", clean_start=False, session_present=True)
    if way == "retained":
        subscriber.subscribe(way, qos=1)
    packet = subscriber.expect("PUBLISH", topic_name=way, payload=payload, retain=way == "retained")
    subscriber.disconnect(0, {"session_expiry_interval": 0} if way != "queued" else None)
    return packet


def unaltered(server: Server, way: str, name: str, *values: Any) -> None:
    """Each value of the property arrives as it was sent, and nothing else with it; absent stays absent."""
    for value in values:
        properties = {name: value} if value is not None else {}
        assert receive(server, way, properties).properties == properties


def refused(server: Server, codes: int, identifier: int, *values: bytes) -> None:
    """PUBLISH at every QoS, RETAIN set, and a will are refused with each raw value of a string property."""
    for value in values:
        properties = [(identifier, value)]
        for qos in (0, 1, 2):
            raw = wire.publish("t", b"x", qos=qos, retain=True, properties=properties)
            server.expect_breach(raw, codes=codes)
        will = wire.will("t", b"x", retain=True, properties=properties)
        server.expect_refused(wire.connect("c", will=will), codes=codes)
    assert server.retained() == []


# --------------------------------------------------------------------------- Payload Format Indicator


@every_way
def test_mqtt5_3_3_2_4__payload_format_indicator_unaltered(server: Server, way: str) -> None:
    unaltered(server, way, "payload_format_indicator", 0, 1, None)


@pytest.mark.parametrize("value", [2, 255])
def test_mqtt5_3_3_2_4__payload_format_indicator_of_2(server: Server, value: int) -> None:
    for qos in (0, 1, 2):
        raw = wire.publish("t", b"x", qos=qos, retain=True, properties={"payload_format_indicator": value})
        server.expect_breach(raw, codes=0x82)
    assert server.retained() == []


# --------------------------------------------------------------------------- Message Expiry Interval


def test_mqtt5_3_3_2_5__expired_in_the_queue(server: Server) -> None:
    subscriber = server.connect("s", session_expiry_interval=60)
    subscriber.subscribe("t", qos=1)
    subscriber.drop()
    publisher = server.connect("p")
    for interval in (1, 60):
        publisher.publish("t", f"{interval}", 1, message_expiry_interval=interval)
    server.advance(2)
    server.connect("s", clean_start=False, session_present=True).expect_messages("60")


def test_mqtt5_3_3_2_5__expired_while_retained(server: Server) -> None:
    server.connect("p").publish("t", b"x", retain=True, message_expiry_interval=1)
    assert server.retained() == [("t", b"x")]
    server.advance(2)
    assert server.retained() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt5_3_3_2_5__expired_behind_receive_maximum(server: Server, qos: int) -> None:
    subscriber = server.connect("s", receive_maximum=1)
    subscriber.subscribe("t", qos=qos)
    publisher = server.connect("p")
    for payload, named in (("first", {}), ("expired", {"message_expiry_interval": 1}), ("last", {})):
        publisher.publish("t", payload, qos, **named)
    blocking = subscriber.expect("PUBLISH", payload="first")
    server.advance(2)
    subscriber.ack(blocking)
    subscriber.expect_messages("last")


@pytest.mark.parametrize("waited", [0, 2, 3])
def test_mqtt5_3_3_2_6__waiting_is_subtracted(server: Server, waited: int) -> None:
    """In the queue of a session and as retained message: 60 becomes what is left, never more."""
    subscriber = server.connect("s", session_expiry_interval=60)
    subscriber.subscribe("t", qos=1)
    subscriber.drop()
    server.connect("p").publish("t", b"x", 1, retain=True, message_expiry_interval=60)
    server.advance(waited)
    again = server.connect("s", clean_start=False)
    late = server.connect("late")
    late.subscribe("t")
    for client in (again, late):
        client.expect("PUBLISH", message_expiry_interval=range(59 - waited, 61 - waited))


def test_mqtt5_3_3_2_6__at_once(server: Server) -> None:
    subscriber = server.connect("s")
    subscriber.subscribe("t")
    publisher = server.connect("p")
    publisher.publish("t", message_expiry_interval=60)
    subscriber.expect("PUBLISH", message_expiry_interval={59, 60})


@every_way
def test_mqtt5_3_3_2_6__absent_stays_absent(server: Server, way: str) -> None:
    assert "message_expiry_interval" not in receive(server, way, {}).properties


# --------------------------------------------------------------------------- Topic Alias


def test_mqtt5_3_3_2_7__inbound_aliases_end_with_the_connection(server: Server) -> None:
    watcher = server.watch()
    client = server.connect("c", session_expiry_interval=60)
    client.publish("t", b"1", properties=wire.alias(1))
    client.publish("", b"2", properties=wire.alias(1))
    watcher.expect_messages(("t", "1"), ("t", "2"))
    client.drop()
    again = server.connect("c", clean_start=False, session_present=True)
    again.send(wire.publish("", b"3", properties=wire.alias(1)))
    again.expect_close(0x82)
    watcher.expect_nothing()


def test_mqtt5_3_3_2_7__outbound_aliases_end_with_the_connection(server: Server) -> None:
    publisher = server.connect("p")
    for clean_start in (True, False):
        client = server.connect("s", clean_start=clean_start, topic_alias_maximum=1,
                                session_expiry_interval=60)  # fmt: skip
        client.subscribe("t")
        for sent in ("t", ""):
            publisher.publish("t", b"x")
            client.expect("PUBLISH", topic_name="t", sent_topic_name=sent, topic_alias=1)
        client.drop()


@pytest.mark.parametrize("topic_name", ["t", ""])
def test_mqtt5_3_3_2_8__alias_0(server: Server, topic_name: str) -> None:
    for qos in (0, 1, 2):
        raw = wire.publish(topic_name, b"x", qos=qos, retain=True, properties=wire.alias(0))
        server.expect_breach(raw, codes=0x94)
    assert server.retained() == []


def test_mqtt5_3_3_2_8__server_sends_no_alias_0(server: Server) -> None:
    assert {packet.properties["topic_alias"] for packet in many_topics(server, 2)} == {1, 2}


@pytest.mark.parametrize("maximum", [1, 64, 65534])
def test_mqtt5_3_3_2_9__alias_above_the_maximum(serve: Serve, maximum: int) -> None:
    server = serve(topic_alias_maximum=maximum)
    client = server.connect("c")
    assert client.connack is not None and client.connack.properties["topic_alias_maximum"] == maximum
    for number in (maximum + 1, 65535):
        for qos in (0, 1, 2):
            raw = wire.publish("t", b"x", qos=qos, retain=True, properties=wire.alias(number))
            server.expect_breach(raw, codes=0x94)
    assert server.retained() == []


def test_mqtt5_3_3_2_9__no_aliases_at_all(serve: Serve) -> None:
    server = serve(topic_alias_maximum=0)
    client = server.connect("c")
    assert client.connack is not None and "topic_alias_maximum" not in client.connack.properties
    for number in (1, 65535):
        server.expect_breach(wire.publish("t", b"x", properties=wire.alias(number)), codes=0x94)


def many_topics(server: Server, maximum: int) -> list[Packet]:
    """PUBLISH packets of five topics, each three times, to a client with this Topic Alias Maximum."""
    client = server.connect("s", topic_alias_maximum=maximum)
    client.subscribe("#", qos=1)
    publisher = server.connect("p")
    topics = [f"topic/{at % 5}" for at in range(15)]
    for at, topic_name in enumerate(topics):
        publisher.publish(topic_name, topic_name, at % 2)
    return client.expect_messages(*((topic_name, topic_name) for topic_name in topics))


@pytest.mark.parametrize("maximum", [1, 2, 65535])
def test_mqtt5_3_3_2_11__outbound_aliases_within_the_maximum(serve: Serve, maximum: int) -> None:
    """The client resolves every alias; payloads say which topic it must be."""
    packets = many_topics(serve(outbound_topic_alias_maximum=65535), maximum)
    assert {packet.properties["topic_alias"] for packet in packets} == set(range(1, min(maximum, 5) + 1))
    assert any(not packet.sent_topic_name for packet in packets) == (maximum >= 5)


def test_mqtt5_3_3_2_11__outbound_aliases_off(serve: Serve) -> None:
    for maximum in (0, 65535):
        packets = many_topics(serve(outbound_topic_alias_maximum=0 if maximum else 65535), maximum)
        assert not any("topic_alias" in packet.properties for packet in packets)


@pytest.mark.parametrize("maximum", [1, 64])
def test_mqtt5_3_3_2_12__every_alias_can_be_set_and_set_anew(serve: Serve, maximum: int) -> None:
    server = serve(topic_alias_maximum=maximum)
    numbers = range(1, maximum + 1)
    through_aliases(server, {number: f"first/{number}" for number in numbers}, maximum)
    through_aliases(server, {number: f"first/{maximum + 1 - number}" for number in numbers}, maximum)


def test_mqtt5_3_3_2_12__the_ends_of_65535_aliases(serve: Serve) -> None:
    through_aliases(serve(topic_alias_maximum=65535), {1: "a", 255: "b", 256: "c", 65535: "d"}, 65535)


def through_aliases(server: Server, topics: dict[int, str], maximum: int) -> None:
    """Sets each alias, uses each, sets each to another topic, and uses each again."""
    watcher, publisher = server.watch("#", f"w-{len(server.clients)}"), server.connect("p")
    assert publisher.connack is not None and publisher.connack.properties["topic_alias_maximum"] == maximum
    for prefix in ("", "again/"):
        for number, topic_name in topics.items():
            publisher.send(wire.publish(prefix + topic_name, b"set", properties=wire.alias(number)))
        for number in topics:
            publisher.send(wire.publish("", b"used", properties=wire.alias(number)))
        publisher.fence()
        watcher.expect_messages(
            *((prefix + one, "set") for one in topics.values()),
            *((prefix + one, "used") for one in topics.values()),
        )


# --------------------------------------------------------------------------- Response Topic


def test_mqtt5_3_3_2_13__response_topic_is_utf_8(server: Server) -> None:
    refused(server, 0x81, 0x08, b"\xff", b"r\xed\xa0\x80", b"\0")


def test_mqtt5_3_3_2_14__response_topic_without_wildcards(server: Server) -> None:
    refused(server, 0x82, 0x08, b"r/+", b"#", b"+", b"r/#", b"r+")


def test_mqtt5_3_3_2_14__response_topic_of_no_length(server: Server) -> None:
    refused(server, 0x82, 0x08, b"")


@every_way
def test_mqtt5_3_3_2_15__response_topic_unaltered(server: Server, way: str) -> None:
    unaltered(server, way, "response_topic", "r", "/r//ü/", "$SYS/r", "\ufeffr", None)


# --------------------------------------------------------------------------- Correlation Data


@every_way
def test_mqtt5_3_3_2_16__correlation_data_unaltered(server: Server, way: str) -> None:
    long = bytes(range(256)) * 255 + bytes(range(255))
    assert len(long) == 65535
    unaltered(server, way, "correlation_data", b"", b"\0", b"\xff", b"\0\xff\0", long, None)


# --------------------------------------------------------------------------- User Property


@every_way
def test_mqtt5_3_3_2_17__user_properties_unaltered(server: Server, way: str) -> None:
    fifty = [(f"k{at % 7}" if at % 11 else "", f"v{at}" if at % 5 else "") for at in range(50)]
    unaltered(server, way, "user_property", fifty, [("", "")], [("ü", "\U0001f600")] * 2, None)


ORDERED = {"user_property": [("b", "1"), ("a", "2"), ("b", "3"), ("a", "1")]}


@every_way
def test_mqtt5_3_3_2_18__user_properties_in_order(server: Server, way: str) -> None:
    assert receive(server, way, ORDERED).properties == ORDERED


class Shelf(HookBase):
    """Retained messages outside the broker, where they outlive it."""

    def __init__(self) -> None:
        self.kept: dict[str, Message] = {}

    async def store_retained(self, message: Message) -> None:
        self.kept[message.topic_name] = message

    async def get_retained(self, topic_filter: str) -> list[Message]:
        return [self.kept[topic_filter]]


def test_mqtt5_3_3_2_18__user_properties_in_order_after_a_restart(serve: Serve) -> None:
    shelf = Shelf()
    send(serve(hooks=[shelf]), "retained", ORDERED)
    subscriber = serve(hooks=[shelf]).connect("s")
    subscriber.subscribe("retained")
    subscriber.expect("PUBLISH", retain=True, properties=ORDERED)


# --------------------------------------------------------------------------- Content Type


def test_mqtt5_3_3_2_19__content_type_is_utf_8(server: Server) -> None:
    refused(server, 0x81, 0x03, b"\xff", b"\xc0\x80", b"t\0")


@every_way
def test_mqtt5_3_3_2_20__content_type_unaltered(server: Server, way: str) -> None:
    unaltered(server, way, "content_type", "", "text/plain", "\ufeff größer € \U0001f600", None)


@every_way
def test_mqtt5_3_3_2_20__all_properties_together(server: Server, way: str) -> None:
    everything = {
        "payload_format_indicator": 1, "message_expiry_interval": 60, "content_type": "c",
        "response_topic": "r", "correlation_data": b"\0d", **ORDERED,
    }  # fmt: skip
    assert receive(server, way, everything).properties == everything
