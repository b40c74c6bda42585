"""One exchange of most kinds, as bytes, with answers that no cut of the stream changes."""

from __future__ import annotations

from tests.conformance import wire
from tests.conformance.client import Raw

SCRIPT = (
    wire.connect("c"),
    wire.subscribe(1, ("t", 1)),
    wire.publish("t", b"1", qos=1, packet_id=2),
    wire.publish("t", b"2", qos=2, packet_id=3),
    wire.pubrel(3),
    wire.pingreq(),
)
ANSWERS = ["CONNACK", "SUBACK", "PUBLISH 1", "PUBACK", "PUBREC", "PUBLISH 2", "PUBCOMP", "PINGRESP"]


def expect_answers(client: Raw) -> None:
    found = [client.recv() for _ in ANSWERS]
    assert [(one.name + " " + (one.payload or b"").decode()).strip() for one in found] == ANSWERS
