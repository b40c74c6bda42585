"""The will that CONNECT carries, and when it is due [MQTT5 3.1.2.5, 3.1.3.2.2, B07]."""

from __future__ import annotations

import pytest

from broker.packet.packets import NO_PROPERTIES, Connect, Will
from broker.session.terms import NEVER, PendingWill, will_due, will_of
from tests.session.make import message


def test_no_will() -> None:
    assert will_of(Connect("c")) is None


def test_the_message_is_the_clients_and_the_delay_stays_behind() -> None:
    properties = {"will_delay_interval": 30, "content_type": "text/plain", "message_expiry_interval": 5}
    will = will_of(Connect("c", will=Will("t", b"bye", 2, True, properties)))
    assert will is not None
    made = will.message
    assert (made.topic_name, made.payload, made.qos, made.retain, made.client_id) == (
        "t",
        b"bye",
        2,
        True,
        "c",
    )
    assert made.properties == {"content_type": "text/plain", "message_expiry_interval": 5}
    assert made.expires_at is None, "its life begins when it is published [B16]"
    assert will.delay == 30
    assert properties["will_delay_interval"] == 30, "the packet is as it was"


@pytest.mark.parametrize("properties", [{}, {"will_delay_interval": 7}])
def test_without_other_properties_there_are_none(properties: dict[str, int]) -> None:
    will = will_of(Connect("c", will=Will("t", b"", properties=properties)))
    assert will is not None
    assert will.message.properties is NO_PROPERTIES
    assert will.delay == properties.get("will_delay_interval", 0)


@pytest.mark.parametrize(
    ("delay", "left_at", "ends_at", "due"),
    [
        (0, 100, 100, 100),  # the session ends with its connection
        (0, 100, 400, 100),
        (0, 100, NEVER, 100),
        (30, 100, 100, 100),  # the end of the session comes first
        (30, 100, 110, 110),
        (30, 100, 130, 130),
        (30, 100, 131, 130),
        (30, 100, NEVER, 130),
        (0xFFFFFFFF, 100, NEVER, 100 + 0xFFFFFFFF),
    ],
)
def test_when_it_is_due(delay: int, left_at: float, ends_at: float, due: float) -> None:
    assert will_due(PendingWill(message(), delay), left_at, ends_at) == due
