"""Hypothesis strategies for everything in `broker.packet`: legal values, small enough to be quick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from broker.packet.enums import Version
from broker.packet.message import Message
from broker.packet.packets import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from broker.packet.properties import PROPERTIES, Place
from broker.packet.wire import BINARY, STRING, STRING_PAIR, UINT8, UINT16, UINT32, VARINT

PUBLISH_CODES = (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
RELEASE_CODES = (0x00, 0x92)
CONNACK_REFUSALS = (*range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
SUBACK_CODES = (0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
UNSUBACK_CODES = (0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)
CLIENT_LEAVE_CODES = (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))
SERVER_LEAVE_CODES = (
    *(0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90),
    *range(0x93, 0xA3),
)
FLAGS = {
    "payload_format_indicator",
    "request_problem_information",
    "request_response_information",
    "maximum_qos",
    "retain_available",
    "wildcard_subscription_available",
    "subscription_identifier_available",
    "shared_subscription_available",
}
FROM_ONE = {"receive_maximum", "maximum_packet_size", "subscription_identifier", "topic_alias"}

versions = st.sampled_from(Version)
qos_levels = st.integers(0, 2)
packet_ids = st.integers(1, 65535)
payloads = st.binary(max_size=200)


def _allowed(text: str) -> bool:
    return not any(
        ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or 0xFDD0 <= ord(c) <= 0xFDEF or ord(c) & 0xFFFE == 0xFFFE
        for c in text
    )


strings = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20).filter(_allowed)
topic_filters = st.lists(strings | st.sampled_from(["+", "#", "a", ""]), min_size=1, max_size=4).map("/".join)
topic_names = (
    st.lists(strings | st.sampled_from(["a", "b", ""]), min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda name: name and "+" not in name and "#" not in name)
)

_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    UINT8: st.integers(0, 255),
    UINT16: st.integers(0, 65535),
    UINT32: st.integers(0, 0xFFFFFFFF),
    VARINT: st.integers(0, 268_435_455),
    STRING: strings,
    BINARY: st.binary(max_size=40),
    STRING_PAIR: st.tuples(strings, strings),
}


def _value(name: str, data_type: Any) -> st.SearchStrategy[Any]:
    if name in FLAGS:
        return st.integers(0, 1)
    if name == "response_topic":
        return topic_names
    values = _VALUES[data_type]
    return values.filter(bool) if name in FROM_ONE else values


def properties(place: Place, *, without: frozenset[str] = frozenset()) -> st.SearchStrategy[Any]:
    """Legal properties of *place*; Authentication Data never without its method."""
    choices = {}
    for row in PROPERTIES:
        if place not in row.where or row.name in without:
            continue
        value = _value(row.name, row.type)
        choices[row.name] = st.lists(value, min_size=1, max_size=3) if place in row.repeats else value

    def coherent(found: dict[str, Any]) -> Any:
        if "authentication_method" not in found:
            found.pop("authentication_data", None)
        return found or NO_PROPERTIES

    return st.fixed_dictionaries({}, optional=choices).map(coherent)


def _only_5(version: Version, place: Place, **more: Any) -> st.SearchStrategy[Any]:
    return properties(place, **more) if version == Version.MQTT_5 else st.just(NO_PROPERTIES)


def wills(version: Version) -> st.SearchStrategy[Will]:
    return st.builds(Will, topic_names, payloads, qos_levels, st.booleans(), _only_5(version, Place.WILL))


def connects(version: Version) -> st.SearchStrategy[Connect]:
    def credentials(packet: Connect) -> bool:
        return version == Version.MQTT_5 or packet.user_name is not None or packet.password is None

    return st.builds(
        Connect,
        client_id=strings,
        version=st.just(version),
        clean_start=st.booleans(),
        keep_alive=st.integers(0, 65535),
        user_name=st.none() | strings,
        password=st.none() | payloads,
        will=st.none() | wills(version),
        properties=_only_5(version, Place.CONNECT),
        bridge=st.booleans() if version < Version.MQTT_5 else st.just(False),
    ).filter(credentials)


def connacks(version: Version) -> st.SearchStrategy[Connack]:
    refusals = st.sampled_from(CONNACK_REFUSALS) if version == Version.MQTT_5 else st.integers(1, 5)
    present = st.booleans() if version > Version.MQTT_3_1 else st.just(False)
    props = _only_5(version, Place.CONNACK)
    return st.builds(Connack, present, st.just(0), props) | st.builds(
        Connack, st.just(False), refusals, props
    )


def publishes(version: Version, from_client: bool = True) -> st.SearchStrategy[Publish]:
    def coherent(packet: Publish) -> Publish:
        if packet.qos == 0:
            packet.packet_id, packet.dup = 0, False
        if "topic_alias" not in packet.properties and not packet.topic_name:
            packet.topic_name = "a"
        return packet

    hidden = frozenset({"subscription_identifier"} if from_client else ())
    return st.builds(
        Publish,
        topic_names | st.just(""),
        payloads,
        qos_levels,
        st.booleans(),
        st.booleans(),
        packet_ids,
        _only_5(version, Place.PUBLISH, without=hidden),
    ).map(coherent)


def acks(version: Version, packet: Callable[..., Any], place: Place, codes: Any) -> st.SearchStrategy[Any]:
    reason_codes = st.sampled_from(codes) if version == Version.MQTT_5 else st.just(0)
    return st.builds(packet, packet_ids, reason_codes, _only_5(version, place))


def subscribes(version: Version) -> st.SearchStrategy[Subscribe]:
    flag = st.booleans() if version == Version.MQTT_5 else st.just(False)
    handling = st.integers(0, 2) if version == Version.MQTT_5 else st.just(0)
    request = st.builds(SubscribeRequest, topic_filters, qos_levels, flag, flag, handling)
    requests = st.lists(request, min_size=1, max_size=4)
    return st.builds(Subscribe, packet_ids, requests, _only_5(version, Place.SUBSCRIBE))


def unsubscribes(version: Version) -> st.SearchStrategy[Unsubscribe]:
    filters = st.lists(topic_filters, min_size=1, max_size=4)
    return st.builds(Unsubscribe, packet_ids, filters, _only_5(version, Place.UNSUBSCRIBE))


def subacks(version: Version) -> st.SearchStrategy[Suback]:
    codes = SUBACK_CODES if version == Version.MQTT_5 else (0, 1, 2, 0x80)
    listed = st.lists(st.sampled_from(codes), min_size=1, max_size=5)
    return st.builds(Suback, packet_ids, listed, _only_5(version, Place.SUBACK))


def unsubacks(version: Version) -> st.SearchStrategy[Unsuback]:
    if version < Version.MQTT_5:
        return st.builds(Unsuback, packet_ids, st.just([]))
    listed = st.lists(st.sampled_from(UNSUBACK_CODES), min_size=1, max_size=5)
    return st.builds(Unsuback, packet_ids, listed, properties(Place.UNSUBACK))


def disconnects(version: Version, from_client: bool = True) -> st.SearchStrategy[Disconnect]:
    if version < Version.MQTT_5:
        return st.just(Disconnect())
    codes = CLIENT_LEAVE_CODES if from_client else SERVER_LEAVE_CODES
    return st.builds(Disconnect, st.sampled_from(codes), properties(Place.DISCONNECT))


def auths() -> st.SearchStrategy[Auth]:
    named = st.tuples(properties(Place.AUTH), strings).map(
        lambda pair: {**pair[0], "authentication_method": pair[1]}
    )
    return st.builds(Auth, st.sampled_from((0x00, 0x18, 0x19)), named)


def _both_ways(version: Version, from_client: bool) -> list[st.SearchStrategy[Any]]:
    shared: list[st.SearchStrategy[Any]] = [
        publishes(version, from_client),
        acks(version, Puback, Place.PUBACK, PUBLISH_CODES),
        acks(version, Pubrec, Place.PUBREC, PUBLISH_CODES),
        acks(version, Pubrel, Place.PUBREL, RELEASE_CODES),
        acks(version, Pubcomp, Place.PUBCOMP, RELEASE_CODES),
    ]
    if version == Version.MQTT_5:
        shared.append(auths())
    if from_client or version == Version.MQTT_5:
        shared.append(disconnects(version, from_client))
    return shared


def client_packets(version: Version, *, connect: bool = True) -> st.SearchStrategy[Any]:
    """Anything a client may send; with *connect* False only what may follow its CONNECT."""
    own = [subscribes(version), unsubscribes(version), st.just(Pingreq())]
    if connect:
        own.append(connects(version))
    return st.one_of(*own, *_both_ways(version, True))


def server_packets(version: Version) -> st.SearchStrategy[Any]:
    own = [connacks(version), subacks(version), unsubacks(version), st.just(Pingresp())]
    return st.one_of(*own, *_both_ways(version, False))


def messages() -> st.SearchStrategy[Message]:
    """Messages with properties that travel."""
    hidden = frozenset({"topic_alias", "subscription_identifier"})
    return st.builds(
        Message,
        topic_names,
        payloads,
        qos_levels,
        st.booleans(),
        properties(Place.PUBLISH, without=hidden),
        client_id=strings,
    )
