"""MQTT 5.0 sections 4.9 and 4.13: flow control, handling errors."""

from __future__ import annotations

import select
import time
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import MALFORMED, PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import identifier, publish_numbers
from tests.conformance.hooks import EnhancedAuth, Policy
from tests.conformance.refusals import REFUSING_CODES, refusals
from tests.conformance.server import Server
from tests.conformance.sessions import again, resume, subscribed
from tests.conformance.transports import Tcp

# --------------------------------------------------------------------------- 4.9: flow control


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("asked", "setting", "quota"),
    [(1, 1024, 1), (7, 1024, 7), (None, 1024, 1024), (65535, 1024, 1024), (None, 3, 3), (9, 3, 3)],
)
def test_mqtt5_4_9_0_1__initial_send_quota(
    serve: Serve, qos: int, asked: int | None, setting: int, quota: int
) -> None:
    server = serve(outbound_receive_maximum=setting)
    client = subscribed(server, qos=qos, **{} if asked is None else {"receive_maximum": asked})
    publish_numbers(server, quota + 5, qos)
    client.expect_messages(*(f"{n}" for n in range(quota)), qos=qos)


def test_mqtt5_4_9_0_1__receive_maximum_0(server: Server) -> None:
    server.expect_refused(wire.connect("c", properties={"receive_maximum": 0}), codes=0x82)


def test_mqtt5_4_9_0_2__one_puback_lets_one_publish_go(server: Server) -> None:
    client = subscribed(server, qos=1, receive_maximum=2)
    publish_numbers(server, 5)
    waiting = client.expect_messages("0", "1")
    for n in range(2, 5):
        client.ack(waiting.pop(0))
        waiting += client.expect_messages(f"{n}", dup=False)
    for packet in waiting:
        client.ack(packet)
    client.expect_nothing()


def test_mqtt5_4_9_0_2__qos_2_holds_its_slot_until_pubcomp(server: Server) -> None:
    client = subscribed(server, qos=2, receive_maximum=2)
    publish_numbers(server, 5, qos=2)
    first, second = (identifier(packet) for packet in client.expect_messages("0", "1"))
    client.send(wire.pubrec(first))
    client.expect("PUBREL", packet_id=first)
    client.expect_nothing()  # PUBREC 0x00 frees nothing
    client.send(wire.pubcomp(first))
    client.expect_messages("2")
    client.send(wire.pubrec(second, 0x80))  # a refusal does
    client.expect_messages("3")
    client.expect_nothing()


def test_mqtt5_4_9_0_2__acknowledgements_for_nothing_add_no_quota(server: Server) -> None:
    client = subscribed(server, qos=1, receive_maximum=2)
    client.send(*(wire.puback(n) + wire.pubcomp(n) for n in (1, 2, 3, 100)))
    client.expect_nothing()
    publish_numbers(server, 5)
    first, _ = client.expect_messages("0", "1")
    client.send(wire.puback(identifier(first)), wire.puback(identifier(first)))
    client.expect_messages("2")


def test_mqtt5_4_9_0_2__qos_0_passes(server: Server) -> None:
    client = server.connect("c", receive_maximum=1)
    client.subscribe("t", ("q", 1), ("q/2", 2))
    publisher = server.connect("p")
    for n in range(3):
        publisher.publish("q", f"{n}", 1)
        publisher.publish("q/2", f"{n}", 2)
        publisher.publish("t", f"{n}")
    client.expect_messages(("q", "0"), ("t", "0"), ("t", "1"), ("t", "2"))


@pytest.mark.parametrize("receive_maximum", [1, 2, 3, 10])
def test_mqtt5_4_9_0_2__resent_packets_count(server: Server, receive_maximum: int) -> None:
    client = subscribed(server, qos=1, receive_maximum=3)
    publish_numbers(server, 6)
    client.expect_messages("0", "1", "2")
    client = again(client, server, receive_maximum=receive_maximum)
    waiting = client.expect_messages(*(f"{n}" for n in range(min(receive_maximum, 6))))
    for n in range(receive_maximum, 6):
        client.ack(waiting.pop(0))
        waiting += client.expect_messages(f"{n}", dup=n < 3)


def test_mqtt5_4_9_0_2__a_resent_pubrel_takes_no_slot(server: Server) -> None:
    client = subscribed(server, qos=2, receive_maximum=2)
    publish_numbers(server, 4, qos=2)
    for packet in client.expect_messages("0", "1"):
        client.send(wire.pubrec(identifier(packet)))
        client.expect("PUBREL", packet_id=packet.packet_id)
    client = again(client, server, receive_maximum=1)
    pubrels = [client.expect("PUBREL"), client.expect("PUBREL")]
    client.expect_messages("2", dup=False)
    for pubrel in pubrels:
        client.ack(pubrel)
    client.expect_nothing()  # they gave nothing back that they had not taken


def expect_answers(client: Raw) -> None:
    """Every request that is no matter of the send quota is answered at once, in order."""
    client.send(
        wire.pingreq(), wire.subscribe(10, ("other", 1)), wire.publish("x", qos=1, packet_id=11),
        wire.publish("x", qos=2, packet_id=12), wire.pubrel(12), wire.unsubscribe(13, "other"),
        wire.pubrec(999), wire.pubrel(999), wire.pingreq(),
    )  # fmt: skip
    client.expect("PINGRESP")
    client.expect("SUBACK", packet_id=10, reason_codes=[1])
    client.expect("PUBACK", packet_id=11)
    client.expect("PUBREC", packet_id=12)
    client.expect("PUBCOMP", packet_id=12, reason_code=0)
    client.expect("UNSUBACK", packet_id=13, reason_codes=[0])
    client.expect("PUBREL", packet_id=999, reason_code=0x92)
    client.expect("PUBCOMP", packet_id=999, reason_code=0x92)
    client.expect("PINGRESP")


def test_mqtt5_4_9_0_3__all_else_goes_on_at_quota_zero(server: Server) -> None:
    client = subscribed(server, qos=2, receive_maximum=1)
    publish_numbers(server, 3, qos=2)
    (packet,) = client.expect_messages("0")
    expect_answers(client)
    client.send(wire.pubrec(identifier(packet)))
    client.expect("PUBREL", packet_id=packet.packet_id)
    expect_answers(client)
    client.send(wire.disconnect(0))
    client.expect_close()


# --------------------------------------------------------------------------- 4.13.1: each breach closes

SHARED = "$share/g/t"

Breaches = list[tuple[int, bytes]]


def several(code: int, *packets: bytes | str) -> Breaches:
    """*packets* that all breach with *code*; text is hexadecimal."""
    return [(code, bytes.fromhex(one) if isinstance(one, str) else one) for one in packets]


def with_property(identifier: int, value: Any, **publish: Any) -> bytes:
    return wire.publish(publish.pop("topic_name", "t"), properties=[(identifier, value)], **publish)


BREACHES: dict[str, Breaches] = {
    "1.5.4-1": several(MALFORMED, wire.publish(b"\xc0\x80"), wire.subscribe(1, b"\xed\xa0\x80"),
                       wire.unsubscribe(1, b"\xff"), with_property(0x03, b"\xf5\x80\x80\x80")),
    "1.5.4-2": several(MALFORMED, wire.publish(b"a\0"), wire.subscribe(1, b"a\0")),
    "1.5.5-1": several(MALFORMED, "C0 80 00", "30 05 00 01 74 80 00", "C0 FF FF FF FF 01",
                       wire.subscribe(1, "t", properties=[(0x0B, b"\x81\x00")])),
    "1.5.7-1": several(MALFORMED, with_property(0x26, (b"\xff", "v")), with_property(0x26, ("k", b"\xff"))),
    "2.1.3-1": several(MALFORMED, "41 02 00 01", "51 02 00 01", "60 02 00 01", "71 02 00 01", "C1 00",
                       "E1 00", "F1 00", "00 00", wire.subscribe(1, "t", first=0x80),
                       wire.unsubscribe(1, "t", first=0xA0)),
    "2.1.3-1 types": several(PROTOCOL_ERROR, "20 03 00 00 00", "90 04 00 01 00 00", "B0 04 00 01 00 00",
                             "D0 00"),
    "2.2.1-3": several(PROTOCOL_ERROR, wire.subscribe(0, "t"), wire.unsubscribe(0, "t"),
                       wire.publish("t", qos=1, packet_id=0), wire.publish("t", qos=2, packet_id=0)),
    "2.2.2-1": several(MALFORMED, "30 03 00 01 74", "30 05 00 01 74 09 00", "82 02 00 01", "A2 02 00 01"),
    "3.1.0-2": several(PROTOCOL_ERROR, wire.connect("again"), wire.connect("again", version=4)),
    "3.2.2-17": several(0x94, with_property(0x23, 0), with_property(0x23, 65)),
    "3.3.1-2": several(MALFORMED, wire.publish("t", first=0x38), wire.publish("t", first=0x39)),
    "3.3.1-4": several(MALFORMED, wire.publish("t", first=0x36), wire.publish("t", first=0x3E, packet_id=1)),
    "3.3.2-1": several(MALFORMED, wire.publish(b"\xff"), "30 03 00 09 74", "30 00"),
    "3.3.2-2": several(0x90, wire.publish("a/+"), wire.publish("#", qos=1), wire.publish("a+b", qos=2)),
    "3.3.2-4": several(PROTOCOL_ERROR, with_property(0x01, 2)),
    "3.3.2-13": several(MALFORMED, with_property(0x08, b"\xff")),
    "3.3.2-14": several(PROTOCOL_ERROR, with_property(0x08, "r/+"), with_property(0x08, "#")),
    "3.3.4-6": several(PROTOCOL_ERROR, with_property(0x0B, 1), with_property(0x0B, 0)),
    "3.4.2-1": several(PROTOCOL_ERROR, wire.puback(1, 0x01), wire.puback(1, 0x92), wire.puback(1, 0xFF)),
    "3.5.2-1": several(PROTOCOL_ERROR, wire.pubrec(1, 0x01), wire.pubrec(1, 0x92)),
    "3.6.2-1": several(PROTOCOL_ERROR, wire.pubrel(1, 0x80), wire.pubrel(1, 0x91)),
    "3.7.2-1": several(PROTOCOL_ERROR, wire.pubcomp(1, 0x80)),
    "3.8.3-2": several(PROTOCOL_ERROR, "82 03 00 01 00") + several(MALFORMED, "82 06 00 01 00 00 01 74"),
    "3.8.3-4": several(PROTOCOL_ERROR, wire.subscribe(1, (SHARED, 4))),
    "3.8.3-5": several(MALFORMED, *(wire.subscribe(1, ("t", bits)) for bits in (0x40, 0x80, 0xC0))),
    "3.10.3-1": several(MALFORMED, wire.unsubscribe(1, "t", tail=b"\0")),
    "3.10.3-2": several(PROTOCOL_ERROR, "A2 03 00 01 00"),
    "3.12.4-1": several(MALFORMED, "C0 01 00"),
    "3.14.2-1": several(PROTOCOL_ERROR, *(wire.disconnect(code) for code in (0x01, 0x05, 0x84, 0x87, 0x8E))),
    "4.7.1-1": several(0x8F, wire.subscribe(1, "a#"), wire.unsubscribe(1, "#/a")),
    "4.7.1-2": several(0x8F, wire.subscribe(1, "a+"), wire.unsubscribe(1, "++")),
    "4.7.3-1": several(0x8F, wire.subscribe(1, ""), wire.unsubscribe(1, "")),
    "4.8.2-2": several(0x8F, wire.subscribe(1, "$share/g"), wire.subscribe(1, "$share/+/t")),
    "4.12.0-7": several(PROTOCOL_ERROR, wire.auth(0x19, [(0x15, "m")]), wire.auth(0x18, [(0x15, "m")])),
    "X5-01": several(MALFORMED, with_property(0x11, 1), with_property(0x7F, b""), "30 06 00 01 74 02 A6 00"),
    "X5-02": several(MALFORMED, "30 06 00 01 74 02 02 00", wire.puback(1, 0, b"\x05\x1f"),
                     wire.subscribe(1, "t", properties=b"\x02\x26\x00")),
    "X5-03": several(PROTOCOL_ERROR, wire.publish("t", properties=[(0x03, "a"), (0x03, "a")]),
                     wire.puback(1, 0, [(0x1F, "a"), (0x1F, "b")])),
    "X5-11": several(PROTOCOL_ERROR, wire.publish("")),
    "X5-12": several(PROTOCOL_ERROR, with_property(0x23, 1, topic_name="")),
    "X5-15": several(PROTOCOL_ERROR, wire.subscribe(1, "t", properties=[(0x0B, 0)])),
    "X5-16": several(PROTOCOL_ERROR, wire.subscribe(1, "t", properties=[(0x0B, 1), (0x0B, 2)])),
    "X5-17": several(PROTOCOL_ERROR, wire.subscribe(1, ("t", 3))),
    "X5-18": several(PROTOCOL_ERROR, wire.subscribe(1, ("t", 0x30))),
    "X5-20": several(PROTOCOL_ERROR, wire.disconnect(0, [(0x11, 1)])),
    "X5-22": several(PROTOCOL_ERROR, "F0 00", "F0 02 18 00"),
    "X5-26": several(MALFORMED, "40 00", "40 01 00", "E0 03 00 00 00")
             + several(PROTOCOL_ERROR, "40 02 00 00", "62 02 00 00"),
}  # fmt: skip

# What is a breach only with a setting: id -> (settings, code, packets in one stream)
SWITCHED: dict[str, tuple[dict[str, Any], int, list[bytes]]] = {
    "3.2.2-11": ({"maximum_qos": 0}, 0x9B, [wire.publish("t", qos=1)]),
    "3.2.2-14": ({"retain_available": False}, 0x9A, [wire.publish("t", retain=True)]),
    "3.2.2-15": ({"maximum_packet_size": 1000}, 0x95, [wire.publish("t", b"x" * 995)]),
    "3.2.2-18": ({"topic_alias_maximum": 0}, 0x94, [with_property(0x23, 1)]),
    "3.3.4-7": (
        {"receive_maximum": 2}, 0x93, [wire.publish("t", qos=2, packet_id=n) for n in (1, 2, 3)]
    ),
    "X5-19 wildcard": ({"wildcard_subscription_available": False}, 0xA2, [wire.subscribe(1, "#")]),
    "X5-19 identifier": (
        {"subscription_identifier_available": False}, 0xA1,
        [wire.subscribe(1, "t", properties={"subscription_identifier": 1})],
    ),
    "X5-19 shared": ({"shared_subscription_available": False}, 0x9E, [wire.subscribe(1, SHARED)]),
    "X5-39": (
        {"validate_payload_format": True}, 0x99, [wire.publish("t", b"\xff", properties=[(0x01, 1)])]
    ),
}  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES)
def test_mqtt5_4_13_1_1__every_breach_closes(server: Server, breach: str) -> None:
    for code, raw in BREACHES[breach]:
        server.expect_breach(raw, codes=code)
    assert server.retained() == []


@pytest.mark.parametrize("breach", SWITCHED)
def test_mqtt5_4_13_1_1__breaches_of_settings(serve: Serve, breach: str) -> None:
    settings, code, packets = SWITCHED[breach]
    server = serve(**settings)
    bystander = server.connect("bystander")
    bystander.subscribe("t", "w")
    client = server.connect("c", will=wire.will("w", b"will"))
    client.send(*packets)
    client.expect_close(code, skip=["PUBREC"])
    bystander.expect_messages(("w", "will"))


@pytest.mark.parametrize("name", refusals())
def test_mqtt5_4_13_1_1__refused_connects(serve: Serve, name: str) -> None:
    refusal = refusals()[name]
    server = serve(hooks=refusal.hooks(), **refusal.settings)
    client = server.client()
    client.send(refusal.raw, wire.publish("t", b"x", retain=True))
    client.expect_close(refusal.code)


# --------------------------------------------------------------------------- 4.13.2: sent or not


@pytest.mark.parametrize("code", REFUSING_CODES)
def test_mqtt5_4_13_2_1__every_code_of_connack_closes(serve: Serve, code: int) -> None:
    server = serve(hooks=[Policy(connect={"c": code})])
    client = server.client()
    client.send(wire.connect("c"), wire.subscribe(1, "t"))
    client.expect_close(code, session_present=False)


@pytest.mark.parametrize("code", sorted(wire.SERVER_REASON_CODES[wire.DISCONNECT] - {0}))
def test_mqtt5_4_13_2_1__every_code_of_disconnect_closes(server: Server, code: int) -> None:
    client = server.connect("c")
    server.run(server.broker.disconnect("c", code))
    client.expect_close(code)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_mqtt5_4_13_2_1__closes_though_connack_does_not_fit(server: Server, limit: int) -> None:
    """No CONNACK of 5.0 is that short, so none is sent; one that carries nothing has five bytes."""
    for raw in (
        wire.connect("c", properties={"maximum_packet_size": limit}),
        wire.connect("c", properties={"maximum_packet_size": limit, "authentication_method": "X"}),
    ):
        client = server.client()
        client.send(raw)
        client.expect_close()


@pytest.mark.parametrize("client_closes", [False, True])
def test_mqtt5_4_13_2_1__closes_whatever_the_client_does(server: Server, client_closes: bool) -> None:
    """A client that goes on sending is not heard; one that leaves with its breach is gone all the same."""
    watcher = server.watch("#")
    client = server.connect("c", will=wire.will("w", b"will"))
    client.send(bytes.fromhex("C1 00"), *[wire.publish("t", b"no", retain=True)] * 10)
    if client_closes:
        client.drop()
    else:
        client.expect_close(MALFORMED)
    watcher.expect_messages(("w", "will"))
    assert server.retained() == []


def unread(server: Server) -> Raw:
    """A client whose socket takes no more: 10 MiB wait for it, and it reads nothing."""
    client = server.connect("slow", will=wire.will("w", b"will"))
    client.subscribe("big")

    async def fill() -> None:
        for _ in range(10):
            await server.broker.publish("big", bytes(1 << 20))

    server.run(fill())
    return client


def reset_after(sock: Any, timeout: float) -> float:
    """Seconds until the peer has closed, though nothing is read; AssertionError after *timeout*."""
    start, poll = time.monotonic(), select.poll()
    poll.register(sock, 0)  # errors and hang-ups alone
    while time.monotonic() - start < timeout:
        try:
            sock.send(wire.pingreq())
        except OSError:
            break
        if poll.poll(20):
            break
    else:
        raise AssertionError(f"the peer has not closed within {timeout} s")
    return time.monotonic() - start


@pytest.mark.tcp_only("it looks at the socket itself, and waits for the linger time of a second")
def test_mqtt5_4_13_2_1__closes_a_client_that_does_not_read(server: Server) -> None:
    watcher = server.watch("w")
    client = unread(server)
    client.send(bytes.fromhex("C1 00"))
    watcher.expect("PUBLISH", topic_name="w", payload="will")  # the end does not wait for the socket
    assert isinstance(client.transport, Tcp)
    assert reset_after(client.transport.sock, timeout=2.0) < 1.5
    client.closed = True
    watcher.expect_nothing()


def test_mqtt5_4_13_2_1__session_is_kept(server: Server) -> None:
    """A close for an error ends the connection, and the session only if its interval says so."""
    client = subscribed(server, qos=1)
    client.send(bytes.fromhex("C1 00"))
    client.expect_close(MALFORMED)
    client.drop()
    publish_numbers(server, 1)
    resume(server).expect_messages("0")


def test_mqtt5_4_13_2_1__failed_re_authentication(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth()])
    client = server.connect("c", authentication_method="X-TEST", authentication_data=b"proof")
    client.send(wire.auth(0x19, {"authentication_method": "X-TEST", "authentication_data": b"bad"}))
    client.expect_close(0x87)


def test_mqtt5_4_13_2_1__failures_in_other_packets_do_not_close(serve: Serve) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87}, subscribe={"no": 0x87}, unsubscribe={"no": 0x87})])
    client = server.connect("c")
    for qos in (1, 2):
        client.publish("no", b"x", qos, reason=0x87)
    client.subscribe("no", granted=[0x87])
    client.unsubscribe("no", reasons=[0x87])
    client.release(9, reason=0x92)
    client.subscribe("t", qos=2)
    publish_numbers(server, 1, qos=1)
    client.ack(client.expect("PUBLISH"), 0x80)
    publish_numbers(server, 1, qos=2)
    client.ack(client.expect("PUBLISH"), 0x99)
    client.send(wire.pubcomp(9, 0x92), wire.pubrel(9, 0x92))
    client.expect("PUBCOMP", packet_id=9, reason_code=0x92)
    client.expect_nothing()
