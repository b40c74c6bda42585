"""Reason Codes, and every exception that carries one [MQTT5 2.4]."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class ReasonCode(IntEnum):
    """The one byte that says how an operation ended [MQTT5 2.4]; 0x80 and above are failures."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class BrokerError(Exception):
    """Every error this package raises on purpose."""


class ConfigError(BrokerError):
    """A setting that cannot be used; the message names the key, its source and the way out."""


class StoreError(BrokerError):
    """A store that cannot be opened, read or written; the message names the file and the way out.

    *full* says that only room is missing: what it refused may succeed later.
    """

    def __init__(self, text: str, *, full: bool = False) -> None:
        super().__init__(text)
        self.full = full


class MqttError(BrokerError):
    """An error that a peer hears as a Reason Code.

    `str(error)` is for our own log. What the peer may read is *reason_string* (a short, fixed
    sentence, or None), *user_properties* and, with 0x9C and 0x9D, *server_reference*.
    """

    reason: ReasonCode = ReasonCode.UNSPECIFIED_ERROR

    def __init__(
        self,
        text: str = "",
        reason: ReasonCode | int | None = None,
        *,
        reason_string: str | None = None,
        user_properties: Sequence[tuple[str, str]] = (),
        server_reference: str | None = None,
    ) -> None:
        if reason is not None:
            self.reason = ReasonCode(reason)
        super().__init__(text or self.reason.name.replace("_", " ").capitalize())
        self.reason_string = reason_string
        self.user_properties = tuple(user_properties)
        self.server_reference = server_reference


class MalformedPacket(MqttError):
    """Bytes that are no packet [MQTT5 4.13]."""

    reason = ReasonCode.MALFORMED_PACKET


class ProtocolError(MqttError):
    """A packet that parses and is not allowed here [MQTT5 4.13]."""

    reason = ReasonCode.PROTOCOL_ERROR


class UnknownProtocol(MqttError):
    """A CONNECT whose Protocol Name is not ours: the connection is closed without a byte."""

    reason = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


class UnsupportedProtocolVersion(MqttError):
    """A CONNECT for a version that is not served; *level* decides the form of the CONNACK."""

    reason = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION

    def __init__(self, text: str, level: int) -> None:
        super().__init__(text)
        self.level = level


class ClientIdentifierNotValid(MqttError):
    reason = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


class BadUserNameOrPassword(MqttError):
    reason = ReasonCode.BAD_USER_NAME_OR_PASSWORD


class NotAuthorized(MqttError):
    reason = ReasonCode.NOT_AUTHORIZED


class BadAuthenticationMethod(MqttError):
    reason = ReasonCode.BAD_AUTHENTICATION_METHOD


class TopicNameInvalid(MqttError):
    """A Topic Name that breaks section 4.7, or that is not accepted here."""

    reason = ReasonCode.TOPIC_NAME_INVALID


class TopicFilterInvalid(MqttError):
    """A Topic Filter that breaks section 4.7 or 4.8.2, or that is not accepted here."""

    reason = ReasonCode.TOPIC_FILTER_INVALID


class ReceiveMaximumExceeded(MqttError):
    reason = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


class TopicAliasInvalid(MqttError):
    reason = ReasonCode.TOPIC_ALIAS_INVALID


class PacketTooLarge(MqttError):
    reason = ReasonCode.PACKET_TOO_LARGE


class QuotaExceeded(MqttError):
    reason = ReasonCode.QUOTA_EXCEEDED


class PayloadFormatInvalid(MqttError):
    reason = ReasonCode.PAYLOAD_FORMAT_INVALID


class RetainNotSupported(MqttError):
    reason = ReasonCode.RETAIN_NOT_SUPPORTED


class QosNotSupported(MqttError):
    reason = ReasonCode.QOS_NOT_SUPPORTED


class SharedSubscriptionsNotSupported(MqttError):
    reason = ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED


class SubscriptionIdentifiersNotSupported(MqttError):
    reason = ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED


class WildcardSubscriptionsNotSupported(MqttError):
    reason = ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED


class ImplementationSpecificError(MqttError):
    """A valid packet that this broker could not process: a hook or a store failed."""

    reason = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class StoreUnavailable(MqttError):
    """What should have been stored was not: 0x97 when the disk is full, else 0x83."""

    def __init__(self, failure: StoreError) -> None:
        full = failure.full
        super().__init__(
            str(failure),
            ReasonCode.QUOTA_EXCEEDED if full else ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
            reason_string="the store is full" if full else "the store cannot be written",
        )


class AcknowledgeOnly(ImplementationSpecificError):
    """A hook's word on a PUBLISH: acknowledge it as if it had been routed, and do nothing else with it."""


class PacketIdentifierInUse(MqttError):
    reason = ReasonCode.PACKET_IDENTIFIER_IN_USE


class SessionTakenOver(MqttError):
    reason = ReasonCode.SESSION_TAKEN_OVER


class KeepAliveTimeout(MqttError):
    reason = ReasonCode.KEEP_ALIVE_TIMEOUT


class StreamEnded(MqttError):
    """The stream has ended without DISCONNECT."""


class DisconnectedByClient(MqttError):
    """The client said DISCONNECT, with this Reason Code."""


class ServerShuttingDown(MqttError):
    reason = ReasonCode.SERVER_SHUTTING_DOWN
