"""What a peer hears of an error: the one place that turns a MqttError into CONNACK, DISCONNECT or text."""

from __future__ import annotations

import logging
from typing import Any, Final

from broker.config import Protocol
from broker.errors import (
    MqttError,
    ReasonCode,
    UnknownProtocol,
    UnsupportedProtocolVersion,
)
from broker.packet.codec import fit
from broker.packet.enums import Version
from broker.packet.packets import Connack, Disconnect
from broker.packet.properties import Place, property_block

log = logging.getLogger("broker.hook")

# Return Codes of CONNACK in 3.x [MQTT3 3.2.2.3]; a Reason Code that is not here closes without one.
RETURN_CODES: Final = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.SERVER_MOVED: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}

# What each packet may say [MQTT5 3.2.2.2, 3.14.2.1]; any other code becomes Unspecified error.
CONNACK_CODES: Final = frozenset({*range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F})
DISCONNECT_CODES: Final = frozenset(
    {0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)}
)
CREDENTIALS: Final = frozenset({ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED})
WITH_REFERENCE: Final = frozenset({ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED})


def explain(error: MqttError, protocol: Protocol) -> dict[str, Any]:
    """Reason String and User Properties that go with *error*."""
    properties: dict[str, Any] = {}
    if protocol.reason_strings and error.reason >= 0x80:
        text = error.reason_string or error.reason.name.replace("_", " ").capitalize()
        properties["reason_string"] = text
    if error.user_properties:
        properties["user_property"] = list(error.user_properties)
    return sendable(properties, Place.CONNACK)


def sendable(properties: dict[str, Any], place: Place) -> dict[str, Any]:
    """*properties*, which a program gave, without those that no packet can carry."""
    found = {}
    for name, value in properties.items():
        try:
            property_block({name: value}, place)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            log.error("%s %.200r cannot be sent: %s", name, value, error)
        else:
            found[name] = value
    return found


def connack_refusal(
    error: MqttError, version: Version | None, limit: int | None, protocol: Protocol
) -> bytes | None:
    """The CONNACK that refuses with *error*; None where the standard has no answer but to close.

    *version* is None while no CONNECT was understood; *limit* is the client's Maximum Packet Size.
    """
    if isinstance(error, UnknownProtocol):
        return None
    if isinstance(error, UnsupportedProtocolVersion):
        return _unsupported(error.level & 0x7F, protocol)
    if error.reason in CREDENTIALS and protocol.silent_refusal:
        return None
    if version is None:  # no CONNECT came [MQTT-3.1.0-1]
        return None
    if version < Version.MQTT_5:
        code = RETURN_CODES.get(error.reason)
        return fit(Connack(False, code), version, None) if code is not None else None
    reason, properties = _reason(error, CONNACK_CODES, protocol)
    return fit(Connack(False, reason, properties), version, limit)


def _unsupported(level: int, protocol: Protocol) -> bytes:
    """In the form of that version, or of the newest one served for versions that are not known [B03]."""
    newest = Version.MQTT_5 if protocol.mqtt_5 else Version.MQTT_3_1_1
    in_form_3 = level < Version.MQTT_5 or (level > Version.MQTT_5 and newest < Version.MQTT_5)
    return b"\x20\x02\x00\x01" if in_form_3 else b"\x20\x03\x00\x84\x00"


def disconnect(error: MqttError, limit: int | None, protocol: Protocol) -> bytes | None:
    """The DISCONNECT that tells a 5.0 client of *error*; None if not even that fits its *limit*."""
    reason, properties = _reason(error, DISCONNECT_CODES, protocol)
    return fit(Disconnect(reason, properties), Version.MQTT_5, limit)


def _reason(
    error: MqttError, allowed: frozenset[int], protocol: Protocol
) -> tuple[ReasonCode, dict[str, Any]]:
    reason = error.reason if error.reason in allowed else ReasonCode.UNSPECIFIED_ERROR
    properties = explain(error, protocol)
    if error.server_reference and reason in WITH_REFERENCE:
        properties |= sendable({"server_reference": error.server_reference}, Place.CONNACK)
    return reason, properties
