"""pybroker: an MQTT 3.1.1 and 5.0 broker in plain Python."""

from broker.broker import Broker
from broker.config import VERSION as __version__
from broker.config import Capacity, Config, Limits, Log, Protocol, Tls, WebSocket
from broker.errors import (
    AcknowledgeOnly,
    BadUserNameOrPassword,
    BrokerError,
    ConfigError,
    MqttError,
    NotAuthorized,
    QuotaExceeded,
    ReasonCode,
    TopicFilterInvalid,
    TopicNameInvalid,
)
from broker.gateway.local import LocalSubscription
from broker.hook.base import AuthStep, ClientInfo, HookBase
from broker.hook.dedup import Dedup
from broker.hook.export import MessageLog
from broker.packet.enums import QoS, Version
from broker.packet.message import Message
from broker.packet.packets import Connect, SubscribeRequest

__all__ = [
    "AcknowledgeOnly",
    "AuthStep",
    "BadUserNameOrPassword",
    "Broker",
    "BrokerError",
    "Capacity",
    "ClientInfo",
    "Config",
    "ConfigError",
    "Connect",
    "Dedup",
    "HookBase",
    "Limits",
    "LocalSubscription",
    "Log",
    "Message",
    "MessageLog",
    "MqttError",
    "NotAuthorized",
    "Protocol",
    "QoS",
    "QuotaExceeded",
    "ReasonCode",
    "SubscribeRequest",
    "Tls",
    "TopicFilterInvalid",
    "TopicNameInvalid",
    "Version",
    "WebSocket",
    "__version__",
]
