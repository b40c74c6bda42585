"""One slotted dataclass per packet type. They carry, they do not work.

Fields that only MQTT 5.0 has keep their default in 3.1.1. `properties` maps the names of
`properties.py` to values: repeatable ones (`user_property`, and `subscription_identifier` of a
PUBLISH) to a list, all others to one value. Never change a mapping that was handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from broker.packet.enums import Version

Properties = Mapping[str, Any]


class _NoProperties(dict[str, Any]):
    """The empty mapping all packets share: it stays empty, and can be a default for it has a hash."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:  # compiled, it does not come from dict where __hash__ is given
        return isinstance(other, dict) and not other

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise TypeError("NO_PROPERTIES stays empty")

    def update(self, *others: Any, **more: Any) -> NoReturn:
        raise TypeError("NO_PROPERTIES stays empty")

    def setdefault(self, name: str, default: Any = None) -> NoReturn:
        raise TypeError("NO_PROPERTIES stays empty")

    def __ior__(self, other: Any) -> NoReturn:  # type: ignore[misc]
        raise TypeError("NO_PROPERTIES stays empty")


NO_PROPERTIES: Final[Properties] = _NoProperties()


@dataclass(slots=True, eq=False)
class PropertyBlock:
    """The property block of a PUBLISH, read once for all that bring the same bytes: nobody changes one.

    *wire* is what travels of it, without Property Length and Message Expiry Interval, *travels* the mapping
    of what travels, and *head* all of it that is sent, but for the four bytes of the interval at the end.
    *is_plain*: there is nothing to look at, no Topic Alias, no Subscription Identifier, no User Property, and
    the payload is not said to be text. *size* is about the bytes of memory it takes; -1: not counted yet.
    """

    properties: Properties  # as received
    travels: Properties
    wire: bytes
    head: bytes
    expiry: int | None  # Message Expiry Interval, seconds
    topic_alias: int  # 0: none
    user_properties: int  # how many
    is_plain: bool
    size: int = -1


@dataclass(slots=True)
class Will:
    """The Will Message as CONNECT carries it [MQTT5 3.1.2.5]."""

    topic_name: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Connect:
    """CONNECT [MQTT5 3.1]. *bridge* is bit 0x80 of a 3.x Protocol Level."""

    client_id: str = ""
    version: Version = Version.MQTT_5
    clean_start: bool = True
    keep_alive: int = 0
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    bridge: bool = False


@dataclass(slots=True)
class Connack:
    """CONNACK [MQTT5 3.2]. *reason_code* is the Return Code 0..5 in 3.x, a Reason Code in 5.0."""

    session_present: bool = False
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True, init=False)
class Publish:
    """PUBLISH [MQTT5 3.3]. An empty *topic_name* stands for a Topic Alias. *packet_id* is 0 at QoS 0.

    One that was received has its properties as *block* too, if there are any.
    """

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties
    block: PropertyBlock | None = field(repr=False, compare=False)

    # By hand, as in all that is made for each message: benchmarks/codec.py compiled, decoding 370 -> 160 ns.
    def __init__(
        self,
        topic_name: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
        block: PropertyBlock | None = None,
    ) -> None:
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties
        self.block = block


@dataclass(slots=True)
class Puback:
    """PUBACK [MQTT5 3.4]."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrec:
    """PUBREC [MQTT5 3.5]."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrel:
    """PUBREL [MQTT5 3.6]."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubcomp:
    """PUBCOMP [MQTT5 3.7]."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class SubscribeRequest:
    """One Topic Filter with its Subscription Options [MQTT5 3.8.3.1]."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE [MQTT5 3.8]."""

    packet_id: int
    requests: list[SubscribeRequest]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Suback:
    """SUBACK [MQTT5 3.9], one Reason Code per filter, in order."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE [MQTT5 3.10]."""

    packet_id: int
    topic_filters: list[str]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK [MQTT5 3.11]; 3.x has no *reason_codes* on the wire."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pingreq:
    """PINGREQ [MQTT5 3.12]."""


@dataclass(slots=True)
class Pingresp:
    """PINGRESP [MQTT5 3.13]."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT [MQTT5 3.14]."""

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Auth:
    """AUTH [MQTT5 3.15]."""

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
