"""B31: Reason Strings."""

from __future__ import annotations

from typing import Any

from tests.conformance import wire
from tests.conformance.authentication import CONTINUE, METHOD, auth
from tests.conformance.codes import PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Failing, Policy
from tests.conformance.server import Server


def refusals(server: Server, name: str = "no", **connect: Any) -> dict[str, wire.Packet]:
    """One refusal of each kind that can carry a Reason String, about a ClientID, topic or filter *name*."""
    client = server.connect("c", **connect)
    client.send(wire.pubrec(77), wire.pubrel(78))
    found = [client.expect("PUBREL", reason_code=0x92), client.expect("PUBCOMP", reason_code=0x92)]
    found += [client.subscribe(name, granted=[0x87]), client.unsubscribe(name, reasons=[0x87])]
    for qos in (1, 2):
        client.send(wire.publish(name, b"x", qos=qos))
        found.append(client.expect("PUBACK" if qos == 1 else "PUBREC", reason_code=0x87))
    client.send(wire.subscribe(9))
    last = client.expect_close(PROTOCOL_ERROR)
    client = server.client()
    client.send(wire.connect(name, properties=connect))
    connack = client.expect_close(0x8A)
    assert last is not None and connack is not None
    return {packet.name: packet for packet in [*found, last, connack]}


def reason_strings(found: dict[str, wire.Packet]) -> dict[str, str]:
    texts = {name: packet.properties.get("reason_string") for name, packet in found.items()}
    return {name: text for name, text in texts.items() if text is not None}


ALL = {"PUBREL", "PUBCOMP", "SUBACK", "UNSUBACK", "PUBACK", "PUBREC", "DISCONNECT", "CONNACK"}


def refusing(serve: Serve, *names: str, reason_string: str | None = None, **overrides: Any) -> Server:
    no = dict.fromkeys(names, 0x87)
    policy = Policy(publish=no, subscribe=no, unsubscribe=no, connect=dict.fromkeys(names, 0x8A),
                    reason_string=reason_string)  # fmt: skip
    return serve(hooks=[policy], **overrides)


def test_b31__short_and_fixed_and_without_internals(serve: Serve) -> None:
    server = refusing(serve, "secret/topic", "other")
    texts = reason_strings(refusals(server, "secret/topic"))
    assert texts.keys() == ALL
    assert texts == reason_strings(refusals(server, "other"))
    for text in texts.values():
        assert text.isascii() and 3 <= len(text) <= 60
        assert not {"secret", "topic", "policy", "hook"} & set(text.lower().replace("/", " ").split())


def test_b31__nothing_of_an_exception_leaks(serve: Serve) -> None:
    server = serve(hooks=[Failing("boom")])
    server.expect_errors()
    client = server.connect("c")
    found = [client.subscribe("boom", granted=[0x83]), client.publish("boom", b"x", qos=1, reason=0x83)]
    client = server.client()
    client.send(wire.connect("boom"))
    found.append(client.expect_close(0x83))
    texts = [packet.properties["reason_string"] for packet in found if packet is not None]
    assert len(set(texts)) == 1 and not {"boom", "Failing", "RuntimeError", "purpose"} & set(texts[0].split())


def test_b31__success_has_none(server: Server) -> None:
    client = server.connect("c")
    client.send(wire.subscribe(1, ("t", 2)), wire.publish("u", b"x", qos=1), wire.unsubscribe(2, "t"))
    client.send(wire.publish("u", b"x", qos=2), wire.pubrel(1))
    found = [client.connack, *client.drain()]
    assert len(found) == 6
    assert not [one for one in found if one is None or "reason_string" in one.properties]


def test_b31__none_if_the_client_wants_none(serve: Serve) -> None:
    found = reason_strings(refusals(refusing(serve, "no"), request_problem_information=0))
    assert found.keys() == {"CONNACK", "DISCONNECT"}
    found = reason_strings(refusals(refusing(serve, "no"), request_problem_information=1))
    assert found.keys() == ALL


def test_b31__none_above_the_maximum_packet_size(serve: Serve) -> None:
    found = refusals(refusing(serve, "no", reason_string="x" * 60), maximum_packet_size=20)
    assert reason_strings(found) == {}


def test_b31__none_when_switched_off(serve: Serve) -> None:
    found = refusals(refusing(serve, "no", reason_string="why", reason_strings=False))
    assert reason_strings(found) == {}


def test_b31__none_in_auth_when_switched_off(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=2, reason_string="why")], reason_strings=False)
    client = server.client()
    client.send(wire.connect("c", properties=METHOD))
    client.expect("AUTH", reason_code=CONTINUE, reason_string=None)
    client.send(auth(CONTINUE, b"wrong"))
    client.expect_close(0x87, reason_string=None)


def test_b31__the_text_of_a_hook(serve: Serve) -> None:
    found = reason_strings(refusals(refusing(serve, "no", reason_string="Not on Sundays.")))
    mine = {"PUBACK", "PUBREC", "SUBACK", "UNSUBACK", "CONNACK"}
    assert {name for name, text in found.items() if text == "Not on Sundays."} == mine
