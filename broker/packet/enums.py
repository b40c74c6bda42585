"""The small closed sets of the protocol."""

from __future__ import annotations

from enum import IntEnum


class PacketType(IntEnum):
    """Bits 7-4 of the first byte [MQTT5 2.1.2]."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class QoS(IntEnum):
    """How often a message may arrive [MQTT5 4.3]."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2


class Version(IntEnum):
    """The Protocol Level in CONNECT [MQTT5 3.1.2.2]."""

    MQTT_3_1 = 3
    MQTT_3_1_1 = 4
    MQTT_5 = 5
