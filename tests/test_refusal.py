"""What a peer hears of an error, by code and version [MQTT5 3.2.2.2, 3.14.2.1; MQTT3 3.2.2.3]."""

from __future__ import annotations

import pytest

from broker import errors
from broker.config import Protocol
from broker.errors import (
    AcknowledgeOnly,
    DisconnectedByClient,
    MqttError,
    ReasonCode,
    StoreError,
    StoreUnavailable,
    StreamEnded,
    UnknownProtocol,
    UnsupportedProtocolVersion,
)
from broker.packet.enums import Version
from broker.packet.packets import Connack, Disconnect
from broker.packet.reader import PacketReader
from broker.refusal import connack_refusal, disconnect, explain

V31, V311, V5 = Version.MQTT_3_1, Version.MQTT_3_1_1, Version.MQTT_5
QUIET = Protocol(reason_strings=False)
FAILURES = [code for code in ReasonCode if code >= 0x80]

# Reason Code: what CONNACK says of it in 5.0 and in 3.x, and DISCONNECT in 5.0. "" is nothing: closed.
TABLE = [
    (0x80, "20 03 00 80 00", "", "e0 01 80"),
    (0x81, "20 03 00 81 00", "", "e0 01 81"),
    (0x82, "20 03 00 82 00", "", "e0 01 82"),
    (0x83, "20 03 00 83 00", "", "e0 01 83"),
    (0x84, "20 03 00 84 00", "20 02 00 01", "e0 01 80"),
    (0x85, "20 03 00 85 00", "20 02 00 02", "e0 01 80"),
    (0x86, "20 03 00 86 00", "20 02 00 04", "e0 01 80"),
    (0x87, "20 03 00 87 00", "20 02 00 05", "e0 01 87"),
    (0x88, "20 03 00 88 00", "20 02 00 03", "e0 01 80"),
    (0x89, "20 03 00 89 00", "20 02 00 03", "e0 01 89"),
    (0x8A, "20 03 00 8a 00", "20 02 00 05", "e0 01 80"),
    (0x8B, "20 03 00 80 00", "", "e0 01 8b"),
    (0x8C, "20 03 00 8c 00", "", "e0 01 80"),
    (0x8D, "20 03 00 80 00", "", "e0 01 8d"),
    (0x8E, "20 03 00 80 00", "", "e0 01 8e"),
    (0x8F, "20 03 00 80 00", "", "e0 01 8f"),
    (0x90, "20 03 00 90 00", "", "e0 01 90"),
    (0x91, "20 03 00 80 00", "", "e0 01 80"),
    (0x92, "20 03 00 80 00", "", "e0 01 80"),
    (0x93, "20 03 00 80 00", "", "e0 01 93"),
    (0x94, "20 03 00 80 00", "", "e0 01 94"),
    (0x95, "20 03 00 95 00", "", "e0 01 95"),
    (0x96, "20 03 00 80 00", "", "e0 01 96"),
    (0x97, "20 03 00 97 00", "20 02 00 03", "e0 01 97"),
    (0x98, "20 03 00 80 00", "", "e0 01 98"),
    (0x99, "20 03 00 99 00", "", "e0 01 99"),
    (0x9A, "20 03 00 9a 00", "", "e0 01 9a"),
    (0x9B, "20 03 00 9b 00", "", "e0 01 9b"),
    (0x9C, "20 03 00 9c 00", "20 02 00 03", "e0 01 9c"),
    (0x9D, "20 03 00 9d 00", "20 02 00 03", "e0 01 9d"),
    (0x9E, "20 03 00 80 00", "", "e0 01 9e"),
    (0x9F, "20 03 00 9f 00", "", "e0 01 9f"),
    (0xA0, "20 03 00 80 00", "", "e0 01 a0"),
    (0xA1, "20 03 00 80 00", "", "e0 01 a1"),
    (0xA2, "20 03 00 80 00", "", "e0 01 a2"),
]


def raw(data: bytes | None) -> str:
    return "" if data is None else data.hex(" ")


def test_the_table_has_every_failure() -> None:
    assert [row[0] for row in TABLE] == FAILURES


@pytest.mark.parametrize(("code", "in_5", "in_3", "leaving"), TABLE)
def test_the_bytes(code: int, in_5: str, in_3: str, leaving: str) -> None:
    error = MqttError("for our own log", code)
    assert raw(connack_refusal(error, V5, None, QUIET)) == in_5
    assert raw(connack_refusal(error, V311, None, QUIET)) == in_3
    assert raw(connack_refusal(error, V31, None, QUIET)) == in_3
    assert raw(disconnect(error, None, QUIET)) == leaving
    assert connack_refusal(error, None, None, QUIET) is None, "without a CONNECT there is no CONNACK"


@pytest.mark.parametrize("code", FAILURES)
def test_the_reason_string_is_a_fixed_sentence_and_never_the_text_of_the_log(code: int) -> None:
    error = MqttError("secret: hunter2", code)
    expected = ReasonCode(code).name.replace("_", " ").capitalize()
    for data in (connack_refusal(error, V5, None, Protocol()), disconnect(error, None, Protocol())):
        assert data is not None and b"hunter2" not in data
        assert said(data).properties == {"reason_string": expected}
    for version in (V31, V311):
        assert len(connack_refusal(error, version, None, Protocol()) or b"") in (0, 4)


def test_a_success_in_disconnect_has_no_reason_string() -> None:
    assert raw(disconnect(MqttError("", 0x00), None, Protocol())) == "e0 00"
    assert raw(connack_refusal(MqttError("", 0x00), V5, None, Protocol())) == "20 03 00 80 00", (
        "it is a refusal"
    )


def test_what_a_hook_says_goes_along() -> None:
    error = MqttError("log", 0x87, reason_string="ask Ada", user_properties=[("a", "1"), ("a", "2")])
    properties = {"reason_string": "ask Ada", "user_property": [("a", "1"), ("a", "2")]}
    assert explain(error, Protocol()) == properties
    assert explain(error, QUIET) == {"user_property": properties["user_property"]}
    assert said(connack_refusal(error, V5, None, Protocol())) == Connack(False, 0x87, properties)
    assert said(disconnect(error, None, Protocol())) == Disconnect(0x87, properties)
    assert raw(connack_refusal(error, V311, None, Protocol())) == "20 02 00 05"


@pytest.mark.parametrize("code", FAILURES)
def test_a_server_reference_goes_with_the_two_codes_that_may_have_one(code: int) -> None:
    error = MqttError("", code, server_reference="there:1883")
    for packet in (said(connack_refusal(error, V5, None, QUIET)), said(disconnect(error, None, QUIET))):
        expected = {"server_reference": "there:1883"} if code in (0x9C, 0x9D) else {}
        assert packet.properties == expected


def said(data: bytes | None) -> Connack | Disconnect:
    assert data is not None
    [packet] = PacketReader(from_client=False).feed(data)
    assert isinstance(packet, Connack | Disconnect)
    return packet


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (None, {"reason_string", "user_property"}),
        (40, {"reason_string", "user_property"}),
        (5, set()),  # the shortest CONNACK there is
    ],
)
def test_it_fits_the_clients_maximum_packet_size(limit: int | None, left: set[str]) -> None:
    error = MqttError("", 0x87, reason_string="because", user_properties=[("key", "value")])
    data = connack_refusal(error, V5, limit, Protocol())
    assert data is not None and (limit is None or len(data) <= limit)
    assert set(said(data).properties) == left


@pytest.mark.parametrize("limit", range(1, 60))
def test_nothing_above_the_limit_ever_leaves(limit: int) -> None:
    error = MqttError("", 0x9C, reason_string="r" * 9, user_properties=[("k", "v")], server_reference="s" * 9)
    for data, shortest in (
        (connack_refusal(error, V5, limit, Protocol()), 5),
        (disconnect(error, limit, Protocol()), 3),
    ):
        assert (data is None) is (limit < shortest)
        assert data is None or len(data) <= limit


@pytest.mark.parametrize(
    ("level", "five", "expected"),
    [
        (0, True, "20 02 00 01"),
        (3, True, "20 02 00 01"),
        (4, True, "20 02 00 01"),
        (5, True, "20 03 00 84 00"),
        (6, True, "20 03 00 84 00"),
        (127, True, "20 03 00 84 00"),
        (0x83, True, "20 02 00 01"),  # a bridge's bit does not count
        (0x84, True, "20 02 00 01"),
        (0x85, True, "20 03 00 84 00"),
        (3, False, "20 02 00 01"),
        (5, False, "20 03 00 84 00"),  # in its own form, although it is switched off
        (6, False, "20 02 00 01"),  # the newest form that is served
    ],
)
def test_a_version_that_is_not_served(level: int, five: bool, expected: str) -> None:
    error = UnsupportedProtocolVersion("", level)
    for version in (None, V311, V5):
        assert raw(connack_refusal(error, version, 5, Protocol(mqtt_5=five))) == expected


def test_another_protocol_hears_nothing() -> None:
    for version in (None, V311, V5):
        assert connack_refusal(UnknownProtocol(), version, None, Protocol()) is None


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("code", FAILURES)
def test_silent_refusal_is_silent_about_credentials_alone(code: int, version: Version) -> None:
    silent = Protocol(silent_refusal=True)
    answer = connack_refusal(MqttError("", code), version, None, silent)
    if code in (0x86, 0x87):
        assert answer is None
    else:
        assert answer == connack_refusal(MqttError("", code), version, None, Protocol())


WHAT_HAPPENED = (AcknowledgeOnly, DisconnectedByClient, StreamEnded)  # for us: no peer is told of these


def test_every_error_class_has_its_code() -> None:
    """The class names are the names of the codes, so that nobody has to look one up."""
    for name, kind in vars(errors).items():
        if (
            isinstance(kind, type)
            and issubclass(kind, MqttError)
            and kind not in (MqttError, UnknownProtocol, StoreUnavailable, *WHAT_HAPPENED)
        ):
            words = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name).strip(
                "_"
            )
            assert kind.reason.name == words
    assert StoreUnavailable(StoreError("", full=True)).reason == 0x97
    assert StoreUnavailable(StoreError("")).reason == 0x83
    assert MqttError().reason == 0x80
    assert str(MqttError("", 0x97)) == "Quota exceeded"
    assert str(MqttError("text", 0x97)) == "text"
    with pytest.raises(ValueError, match="255"):
        MqttError("", 0xFF)
