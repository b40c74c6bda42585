"""The Will Message and its Will Delay Interval [MQTT5 3.1.2.5, 3.1.3.2.2]."""

from __future__ import annotations

import math
from dataclasses import dataclass

from broker.packet.message import Message, travelling
from broker.packet.packets import Connect

NEVER = float("inf")


@dataclass(slots=True)
class PendingWill:
    """A will that is stored with a session. *delay* is in seconds; 0 for 3.x."""

    message: Message
    delay: int = 0


def will_of(packet: Connect) -> PendingWill | None:
    """The will that *packet* carries. Its message expiry starts at publication, not here."""
    will = packet.will
    if will is None:
        return None
    delay = will.properties.get("will_delay_interval", 0)
    message = Message(
        topic_name=will.topic_name,
        payload=will.payload,
        qos=will.qos,
        retain=will.retain,
        properties=travelling(will.properties),
        client_id=packet.client_id,
    )
    return PendingWill(message, delay)


def will_due(will: PendingWill, left_at: float, session_ends_at: float) -> float:
    """When the will is to be published: after its delay, or with the session if that ends earlier."""
    return min(left_at + will.delay, session_ends_at)


def remaining(expires_at: float, now: float) -> int:
    """Seconds of a Message Expiry Interval that are left, rounded up, never below 0 [MQTT5 3.3.2.3.3]."""
    return max(0, math.ceil(expires_at - now))
