"""B10: what is unfinished when a connection ends, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import QUOTA_EXCEEDED
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import identifier, numbers, publish_numbers
from tests.conformance.hooks import Policy
from tests.conformance.marks import both_qos
from tests.conformance.server import Server
from tests.conformance.sessions import again, resume, subscribed


@both_qos
@pytest.mark.parametrize("reason", [0x00, 0x10, 0x80, 0x97])
def test_b10__done_at_the_acknowledgement(server: Server, qos: int, reason: int) -> None:
    client = subscribed(server, qos=qos)
    publish_numbers(server, 1, qos)
    client.ack(client.expect("PUBLISH"), reason)
    client.fence()
    again(client, server).expect_nothing()


def test_b10__states_of_a_resumed_session(server: Server) -> None:
    """sent, released and never sent; a PUBREC of 0x80 and a PUBCOMP had ended two more."""
    client = subscribed(server, qos=2, receive_maximum=5)
    publish_numbers(server, 7, qos=2)
    sent, released, refused, done, last = client.expect_messages(*numbers(0, 1, 2, 3, 4))
    client.drop()
    client = resume(server, receive_maximum=5)
    client.expect_messages(*numbers(0, 1, 2, 3, 4), dup=True)
    client.send(wire.pubrec(identifier(released)))
    client.expect("PUBREL", packet_id=released.packet_id)
    client.send(wire.pubrec(identifier(refused), 0x80))
    client.expect("PUBLISH", payload="5")
    client.send(wire.pubrec(identifier(done)))
    client.expect("PUBREL", packet_id=done.packet_id)
    client.send(wire.pubcomp(identifier(done)))
    client.expect("PUBLISH", payload="6")
    client.drop()
    publish_numbers(server, 1, qos=2, start=7)
    client = resume(server)
    client.expect("PUBLISH", payload="0", dup=True, packet_id=sent.packet_id)
    client.expect("PUBREL", packet_id=released.packet_id)
    client.expect("PUBLISH", payload="4", dup=True, packet_id=last.packet_id)
    client.expect_messages("5", "6", "7")


@both_qos
def test_b10__resends_wait_for_the_new_receive_maximum(server: Server, qos: int) -> None:
    client = subscribed(server, qos=qos, receive_maximum=3)
    publish_numbers(server, 5, qos)
    client.expect_messages(*numbers(0, 1, 2))
    client = again(client, server, receive_maximum=1)
    publish_numbers(server, 1, qos, start=5)  # new messages wait for all resends
    server.connect("p").publish("t", b"qos 0")  # but for QoS 0
    waiting = client.expect_messages("0", "qos 0")[:1]
    for n in range(1, 6):
        client.ack(waiting.pop())
        waiting = client.expect_messages(f"{n}", dup=n < 3)


@both_qos
def test_b10__newer_subscription_identifiers_and_never_older(server: Server, qos: int) -> None:
    client = server.connect("s", session_expiry_interval=60, receive_maximum=1)
    client.subscribe("t", qos=qos, subscription_identifier=1)
    publish_numbers(server, 2, qos)
    seen = [client.expect("PUBLISH", payload="0", subscription_identifier=[1])]
    client.subscribe("t", qos=qos, subscription_identifier=2)
    for _ in range(3):
        client = again(client, server, receive_maximum=1)
        seen.append(client.expect("PUBLISH", payload="0", dup=True))
    found = [packet.properties["subscription_identifier"] for packet in seen]
    assert found == sorted(found) and found[-1] in ([1], [2])
    client.ack(seen[-1])
    client.expect("PUBLISH", payload="1", dup=False, subscription_identifier=([1], [2]))


@both_qos
def test_b10__topic_in_full_on_first_use(server: Server, qos: int) -> None:
    client = server.connect("s", session_expiry_interval=60, topic_alias_maximum=5)
    client.subscribe("t", qos=qos)
    publish_numbers(server, 2, qos)
    client.expect("PUBLISH", sent_topic_name="t", topic_alias=1)
    client.expect("PUBLISH", sent_topic_name="", topic_alias=1)
    client = again(client, server, topic_alias_maximum=5)
    client.expect("PUBLISH", payload="0", sent_topic_name="t", dup=True)
    client.expect("PUBLISH", payload="1", topic_name="t", dup=True)
    again(client, server).expect_messages("0", "1", dup=True, topic_alias=None, sent_topic_name="t")


@both_qos
def test_b10__expiry_is_not_applied_to_a_resend(server: Server, qos: int) -> None:
    client = subscribed(server, qos=qos)
    server.connect("p").publish("t", b"x", qos, message_expiry_interval=10)
    client.expect("PUBLISH", message_expiry_interval=10)
    client.drop()
    for seconds, left in ((4, 6), (3.5, 3), (20, 0)):
        server.advance(seconds)
        client = resume(server)
        client.expect("PUBLISH", payload="x", dup=True, message_expiry_interval=left)
        client.drop()


@both_qos
def test_b10__expiry_is_not_applied_to_a_resend_that_waits(server: Server, qos: int) -> None:
    """What was never sent does expire meanwhile."""
    client = subscribed(server, qos=qos, receive_maximum=2)
    publisher = server.connect("p")
    for n in range(4):
        publisher.publish("t", f"{n}", qos, message_expiry_interval=10)
    client.expect_messages("0", "1")
    client = again(client, server, receive_maximum=1)
    first = client.expect("PUBLISH", payload="0", dup=True)
    server.advance(20)
    client.ack(first)
    client.ack(client.expect("PUBLISH", payload="1", dup=True, message_expiry_interval=0))
    client.expect_nothing()


@both_qos
def test_b10__resend_that_is_too_large_now(server: Server, qos: int) -> None:
    client = subscribed(server, qos=qos)
    server.connect("p").publish("t", b"x" * 100, qos)
    size = len(client.expect("PUBLISH").raw)
    publish_numbers(server, 1, qos)
    client.expect("PUBLISH", payload="0")
    client = again(client, server, maximum_packet_size=size)
    client.expect_messages("x" * 100, "0", dup=True)
    client = again(client, server, maximum_packet_size=size - 1, receive_maximum=1)
    client.ack(client.expect("PUBLISH", payload="0", dup=True))  # no slot is lost either
    again(client, server).expect_nothing()


@both_qos
@pytest.mark.parametrize("granted", [None, 0])
def test_b10__completed_at_its_qos(server: Server, qos: int, granted: int | None) -> None:
    """The subscription is gone, or was made anew with QoS 0."""
    client = subscribed(server, qos=qos, receive_maximum=1)
    publish_numbers(server, 2, qos)
    client.expect("PUBLISH", payload="0", qos=qos)
    if granted is None:
        client.unsubscribe("t")
    else:
        client.subscribe("t", qos=granted)
    client = again(client, server, receive_maximum=1)
    client.ack(client.expect("PUBLISH", payload="0", qos=qos, dup=True))
    client.expect("PUBLISH", payload="1", qos=qos, dup=False)


def held(server: Server, payload: bytes = b"held", **publish: Any) -> Raw:
    """Client "p", whose QoS 2 message with identifier 9 waits for PUBREL."""
    client = server.connect("p", session_expiry_interval=60)
    client.send(wire.publish("t", payload, qos=2, packet_id=9, **publish))
    client.expect("PUBREC", packet_id=9, reason_code={0x00, 0x10})
    return client


@pytest.mark.parametrize("leave", [Raw.drop, Raw.reset, Raw.disconnect, None])
def test_b10__inbound_identifiers_survive(server: Server, leave: Callable[[Raw], None] | None) -> None:
    watcher = server.watch("t")
    client = held(server)
    if leave is not None:
        leave(client)
    again_there = resume(server, "p")  # without a way to leave: a takeover
    again_there.send(wire.publish("t", b"held", qos=2, packet_id=9, dup=True))
    again_there.expect("PUBREC", packet_id=9, reason_code=0)
    again_there.release(9, reason=0x00)
    watcher.expect_messages("held")


def test_b10__inbound_state_goes_with_the_session(server: Server) -> None:
    watcher = server.watch("t")
    held(server).drop()
    client = server.connect("p", session_present=False)
    client.release(9, reason=0x92)
    client.disconnect()
    held(server).drop()
    server.advance(61)
    server.connect("p", clean_start=False, session_present=False).release(9, reason=0x92)
    watcher.expect_nothing()


def test_b10__routed_on_pubrel(server: Server) -> None:
    """Nothing is seen of it before PUBREL; with PUBCOMP it is in every session and in the store."""
    offline = server.connect("off", session_expiry_interval=60)
    offline.subscribe("t", qos=2)
    offline.drop()
    watcher = server.watch("t")
    client = held(server, retain=True)
    watcher.expect_nothing()
    assert server.retained() == []
    client.send(wire.pubrel(9))
    client.expect("PUBCOMP", packet_id=9, reason_code=0)
    assert server.retained() == [("t", b"held")]
    watcher.expect_messages("held", qos=2)
    resume(server, "off").expect_messages("held", qos=2)


def test_b10__subscribed_between_publish_and_pubrel(server: Server) -> None:
    client = held(server)
    watcher = server.watch("t")
    client.release(9)
    watcher.expect_messages("held")


def test_b10__refusals_are_in_pubrec(serve: Serve) -> None:
    """Authorized at PUBLISH; what is refused is not held."""
    policy = Policy(publish={"no": 0x87})
    server = serve(hooks=[policy], maximum_retained_messages=1)
    client = held(server)
    client.send(wire.publish("no", b"x", qos=2, packet_id=1))
    client.expect("PUBREC", packet_id=1, reason_code=0x87)
    server.connect("q").publish("kept", b"x", retain=True)
    client.send(wire.publish("more", b"x", qos=2, packet_id=2, retain=True))
    client.expect("PUBREC", packet_id=2, reason_code=QUOTA_EXCEEDED)
    for packet_id in (1, 2):
        client.release(packet_id, reason=0x92)
    policy.tables["publish"] = {"t": 0x87}  # too late
    client.release(9, reason=0x00)


def test_b10__held_messages_count(serve: Serve) -> None:
    server = serve(receive_maximum=2, maximum_bytes=31_000)
    client = server.connect("p", session_expiry_interval=60)
    for packet_id in (1, 2):
        client.send(wire.publish("t", b"x" * 10_000, qos=2, packet_id=packet_id))
        client.expect("PUBREC", packet_id=packet_id, reason_code=0x10)
    client.send(wire.publish("t", b"x", qos=2, packet_id=3))
    client.expect_close(0x93)
    client = again(client, server)
    client.send(wire.publish("t", b"x" * 10_000, qos=2, packet_id=3))  # 20,000 bytes are held already
    client.expect("PUBREC", packet_id=3, reason_code=QUOTA_EXCEEDED)
    client.release(1)
    client.publish("t", b"x" * 10_000, 2, packet_id=3, reason=0x10)
    client.release(2)
    client.disconnect(0, {"session_expiry_interval": 0})
    server.connect("p").publish("t", b"x" * 25_000, 2, reason=0x10)


def test_b10__held_messages_keep_their_expiry_clock(server: Server) -> None:
    watcher = server.watch("t")
    for seconds, left in ((0, 5), (2, 3), (6, None)):
        client = held(server, properties={"message_expiry_interval": 5})
        server.advance(seconds)
        client.release(9)
        if left is None:
            watcher.expect_nothing()
        else:
            watcher.expect("PUBLISH", payload="held", message_expiry_interval=left)


def test_b10__resends_of_a_connected_3_1_1_client(server: Server) -> None:
    watcher = server.watch("t")
    client = server.connect("c", 4)
    for dup in (False, True):
        client.send(wire.publish("t", b"1", qos=1, packet_id=5, dup=dup, version=4))
        client.expect("PUBACK", packet_id=5)
        client.send(wire.publish("t", b"2", qos=2, packet_id=6, dup=dup, version=4))
        client.expect("PUBREC", packet_id=6)
    for _ in range(2):
        client.send(wire.pubrel(6, version=4))
        client.expect("PUBCOMP", packet_id=6)
    watcher.expect_messages("1", "1", "2")


@both_qos
def test_b10__a_3_1_1_session(server: Server, qos: int) -> None:
    client = subscribed(server, qos=qos, version=4)
    publish_numbers(server, 2, qos)
    first, second = client.expect_messages("0", "1", dup=False)
    client.ack(first)
    client.drop()
    publish_numbers(server, 1, qos, start=2)
    client = server.connect("s", 4, clean_start=False, session_present=True)
    found = client.expect_messages("1", "2")
    assert [packet.dup for packet in found] == [True, False]
    assert found[0].packet_id == second.packet_id
