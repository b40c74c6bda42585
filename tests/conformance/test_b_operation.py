"""Behaviours of a broker at work: reconnects, flow, order, sizes, WebSocket, TLS, limits, restart."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from broker.config import Config, Tls
from broker.errors import NotAuthorized
from broker.hook.base import ClientInfo, HookBase
from broker.transport.address import parse_address
from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import ConnackProperties, Dropped, Policy, Slow
from tests.conformance.server import Server
from tests.conformance.test_mqtt5_flow_errors import publish_numbers
from tests.conformance.test_mqtt5_qos import again, identifier, resume, subscriber_of
from tests.conformance.test_mqtt5_websocket import (
    data_frames,
    expect_web_close,
    in_binary,
    names_in,
    next_frame,
    send_frames,
    upgraded,
    web_client,
)
from tests.conformance.transports import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, WebSocket

QOS = pytest.mark.parametrize("qos", [1, 2])
QUOTA_EXCEEDED, TOO_LARGE = 0x97, 0x95


def numbers(*values: int) -> list[str]:
    return [f"{value}" for value in values]


def subscriber_3(server: Server, qos: int) -> Raw:
    """The 3.1.1 twin of `subscriber_of`."""
    client = server.connect("s", 4, clean_start=False)
    client.subscribe("t", qos=qos)
    return client


def sys_value(server: Server, name: str) -> str:
    """What a new subscriber is told of one value of `$SYS`; "" if nothing."""
    found = server.retained(f"$SYS/broker/{name}") or [("", b"")]
    return found[0][1].decode()


# =========================================================================== B10: QoS state over reconnect


@QOS
@pytest.mark.parametrize("reason", [0x00, 0x10, 0x80, 0x97])
def test_b10__done_at_the_acknowledgement(server: Server, qos: int, reason: int) -> None:
    client = subscriber_of(server, qos)
    publish_numbers(server, 1, qos)
    client.ack(client.expect("PUBLISH"), reason)
    client.fence()
    again(client, server).expect_nothing()


def test_b10__states_of_a_resumed_session(server: Server) -> None:
    """sent, released and never sent; a PUBREC of 0x80 and a PUBCOMP had ended two more."""
    client = subscriber_of(server, 2, receive_maximum=5)
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


@QOS
def test_b10__resends_wait_for_the_new_receive_maximum(server: Server, qos: int) -> None:
    client = subscriber_of(server, qos, receive_maximum=3)
    publish_numbers(server, 5, qos)
    client.expect_messages(*numbers(0, 1, 2))
    client = again(client, server, receive_maximum=1)
    publish_numbers(server, 1, qos, start=5)  # new messages wait for all resends
    server.connect("p").publish("t", b"qos 0")  # but for QoS 0
    waiting = client.expect_messages("0", "qos 0")[:1]
    for n in range(1, 6):
        client.ack(waiting.pop())
        waiting = client.expect_messages(f"{n}", dup=n < 3)


@QOS
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


@QOS
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


@QOS
def test_b10__expiry_is_not_applied_to_a_resend(server: Server, qos: int) -> None:
    client = subscriber_of(server, qos)
    server.connect("p").publish("t", b"x", qos, message_expiry_interval=10)
    client.expect("PUBLISH", message_expiry_interval=10)
    client.drop()
    for seconds, left in ((4, 6), (3.5, 3), (20, 0)):
        server.advance(seconds)
        client = resume(server)
        client.expect("PUBLISH", payload="x", dup=True, message_expiry_interval=left)
        client.drop()


@QOS
def test_b10__expiry_is_not_applied_to_a_resend_that_waits(server: Server, qos: int) -> None:
    """What was never sent does expire meanwhile."""
    client = subscriber_of(server, qos, receive_maximum=2)
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


@QOS
def test_b10__resend_that_is_too_large_now(server: Server, qos: int) -> None:
    client = subscriber_of(server, qos)
    server.connect("p").publish("t", b"x" * 100, qos)
    size = len(client.expect("PUBLISH").raw)
    publish_numbers(server, 1, qos)
    client.expect("PUBLISH", payload="0")
    client = again(client, server, maximum_packet_size=size)
    client.expect_messages("x" * 100, "0", dup=True)
    client = again(client, server, maximum_packet_size=size - 1, receive_maximum=1)
    client.ack(client.expect("PUBLISH", payload="0", dup=True))  # no slot is lost either
    again(client, server).expect_nothing()


@QOS
@pytest.mark.parametrize("granted", [None, 0])
def test_b10__completed_at_its_qos(server: Server, qos: int, granted: int | None) -> None:
    """The subscription is gone, or was made anew with QoS 0."""
    client = subscriber_of(server, qos, receive_maximum=1)
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
    server = serve(receive_maximum=2, maximum_bytes=30_000)
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


@QOS
def test_b10__a_3_1_1_session(server: Server, qos: int) -> None:
    client = subscriber_3(server, qos)
    publish_numbers(server, 2, qos)
    first, second = client.expect_messages("0", "1", dup=False)
    client.ack(first)
    client.drop()
    publish_numbers(server, 1, qos, start=2)
    client = server.connect("s", 4, clean_start=False, session_present=True)
    found = client.expect_messages("1", "2")
    assert [packet.dup for packet in found] == [True, False]
    assert found[0].packet_id == second.packet_id


# =========================================================================== B11: flow control and queues


@QOS
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("asked", "setting"), [(2, 10), (10, 2), (None, 2)])
def test_b11__outbound_window(serve: Serve, qos: int, version: int, asked: int | None, setting: int) -> None:
    server = serve(outbound_receive_maximum=2 if version == 4 else setting)
    if version == 4:
        client = subscriber_3(server, qos)
    else:
        client = subscriber_of(server, qos, **{} if asked is None else {"receive_maximum": asked})
    publish_numbers(server, 6, qos)
    waiting = client.expect_messages(*numbers(0, 1), qos=qos)
    for n in range(2, 6):
        client.ack(waiting.pop(0))
        waiting += client.expect_messages(f"{n}")


@pytest.mark.parametrize("version", [4, 5])
def test_b11__what_counts(serve: Serve, version: int) -> None:
    """QoS 1 until PUBACK, QoS 2 until PUBCOMP, and no acknowledgement adds to the initial value."""
    server = serve(outbound_receive_maximum=2)
    client = subscriber_3(server, 2) if version == 4 else subscriber_of(server, 2)
    publisher = server.connect("p")
    for n in range(6):
        publisher.publish("t", f"{n}", 1 + n % 2)
    first, second = client.expect_messages(*numbers(0, 1))
    client.send(wire.pubrec(identifier(second), version=version))
    client.expect("PUBREL", packet_id=second.packet_id)
    client.expect_nothing()
    for _ in range(3):  # two of them for nothing
        client.send(wire.pubcomp(identifier(second), version=version))
    third = client.expect("PUBLISH", payload="2")
    client.expect_nothing()
    client.send(wire.puback(identifier(first), version=version))
    client.expect("PUBLISH", payload="3")
    client.expect_nothing()
    client.ack(third)
    client.expect_messages("4")


def test_b11__qos_0_passes_by_a_full_window(server: Server) -> None:
    client = subscriber_of(server, 2, receive_maximum=1)
    client.subscribe("q")
    publisher = server.connect("p")
    for n, qos in enumerate((1, 2, 0, 1, 0, 2, 0)):
        publisher.publish("t", f"{n}", qos)
        publisher.publish("q", f"q{n}", qos)
    waiting = client.expect_messages("0", "q0", "q1", "2", "q2", "q3", "4", "q4", "q5", "6", "q6")
    packet = waiting[0]
    for n in (1, 3, 5):
        client.ack(packet)
        (packet,) = client.expect_messages(f"{n}")


def test_b11__pubrel_does_not_wait_behind_a_resend(server: Server) -> None:
    """Three unfinished deliveries, of which the last waits for PUBCOMP; the new quota is one."""
    client = subscriber_of(server, 2, receive_maximum=3)
    publish_numbers(server, 3, qos=2)
    last = client.expect_messages(*numbers(0, 1, 2))[2]
    client.send(wire.pubrec(identifier(last)))
    client.expect("PUBREL", packet_id=last.packet_id)
    client = again(client, server, receive_maximum=1)
    found = client.drain()
    assert sorted(packet.name for packet in found) == ["PUBLISH", "PUBREL"]
    assert [packet.payload for packet in found if packet.name == "PUBLISH"] == [b"0"]


@pytest.mark.parametrize("maximum", [1, 1000, 65535])
def test_b11__receive_maximum_is_announced(serve: Serve, maximum: int) -> None:
    server = serve(receive_maximum=maximum)
    client = server.client()
    client.send(wire.connect("c"))
    client.expect("CONNACK", receive_maximum=None if maximum == 65535 else maximum)


def test_b11__counted_before_authorization(serve: Serve) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})], receive_maximum=2)
    client = server.connect("c")
    for n in range(5):  # a refused one gives its slot back
        client.send(wire.publish("no", b"x", qos=2, packet_id=n + 1))
        client.expect("PUBREC", reason_code=0x87)
    for packet_id, code in ((1, 0x10), (2, 0x10), (1, 0), (2, 0)):  # a repeated one has its slot already
        client.send(wire.publish("t", b"x", qos=2, packet_id=packet_id))
        client.expect("PUBREC", packet_id=packet_id, reason_code=code)
    client.send(wire.publish("t", b"x"))
    client.release(1)
    client.send(*(wire.publish("t", b"x", qos=1, packet_id=n) for n in (1, 2, 3)))
    for n in (1, 2, 3):  # QoS 1 is answered before the next packet is read
        client.expect("PUBACK", packet_id=n)
    client.send(wire.publish("t", b"x", qos=2, packet_id=4))
    client.expect("PUBREC", packet_id=4, reason_code=0x10)
    client.send(wire.publish("no", b"x", qos=2, packet_id=5))
    client.expect_close(0x93)


def test_b11__3_1_1_clients_are_not_closed_for_it(serve: Serve) -> None:
    """They know no Receive Maximum. One packet is handled at a time; PUBREL must get through, so reading
    goes on, and what is held is bounded by the identifiers and by the byte budget of the broker."""
    watcher_of = serve(receive_maximum=2)
    watcher = watcher_of.watch("t")
    client = watcher_of.connect("c", 4)
    client.send(*(wire.publish("t", b"%d" % n, qos=2, packet_id=n, version=4) for n in range(1, 11)))
    for n in range(1, 11):
        client.expect("PUBREC", packet_id=n)
    for n in range(1, 11):
        client.release(n)
    watcher.expect_messages(*numbers(*range(1, 11)))


def offline(server: Server, *filters: wire.Filter, qos: int = 2, client_id: str = "s") -> None:
    """A session that waits for its client."""
    client = server.connect(client_id, session_expiry_interval=60)
    client.subscribe(*(filters or ("t",)), qos=qos)
    client.drop()


@pytest.mark.parametrize(
    ("setting", "kept"), [("drop_newest", (0, 1, 2)), ("drop_oldest", (3, 4, 5)), ("disconnect", (0, 1, 2))]
)
def test_b11__full_queue_of_a_session(serve: Serve, setting: str, kept: tuple[int, ...]) -> None:
    dropped = Dropped()
    server = serve(hooks=[dropped], maximum_queued_messages=3, queue_full=setting)
    offline(server)
    offline(server, client_id="other")
    publisher = server.connect("p")
    for n in range(6):
        publisher.publish("t", f"{n}", 1 + n % 2, reason=0x00)  # never held back, and never refused
    resume(server).expect_messages(*numbers(*kept), dup=False)
    resume(server, "other").expect_messages(*numbers(*kept))
    assert dropped.events.count(("s", "queue_full")) == dropped.events.count(("other", "queue_full")) == 3
    assert sys_value(server, "dropped/queue_full") == "6"


@pytest.mark.parametrize("setting", ["drop_newest", "drop_oldest", "disconnect"])
def test_b11__full_queue_of_a_connected_client(serve: Serve, setting: str) -> None:
    server = serve(maximum_queued_messages=3, queue_full=setting)
    client = subscriber_of(server, 1, receive_maximum=1)
    publisher = server.connect("p")
    for n in range(6):
        publisher.publish("t", f"{n}", 1, reason=0x00)
    server.advance(0.1)
    if setting == "disconnect":
        client.expect_close(QUOTA_EXCEEDED, skip=["PUBLISH"])
        return
    (packet,) = client.expect_messages("0")
    for n in (1, 2, 3) if setting == "drop_newest" else (3, 4, 5):
        client.ack(packet)
        packet = client.expect("PUBLISH", payload=f"{n}")
    client.ack(packet)
    client.expect_nothing()


def test_b11__queue_limit_in_bytes(serve: Serve) -> None:
    server = serve(maximum_queued_bytes=30_000)  # each message counts with some 300 bytes more
    offline(server)
    publisher = server.connect("p")
    for n, size in enumerate((10_000, 10_000, 15_000, 8_000, 1)):
        publisher.publish("t", f"{n}" * size, 1, reason=0x00)
    resume(server).expect_messages("0" * 10_000, "1" * 10_000, "3" * 8_000, "4")


def test_b11__qos_0_is_dropped_first(serve: Serve) -> None:
    server = serve(maximum_queued_messages=3, queue_qos_0=True)
    offline(server)
    publisher = server.connect("p")
    for n, qos in enumerate((0, 1, 0, 1, 0, 2, 1)):
        publisher.publish("t", f"{n}", qos)
    resume(server).expect_messages(*numbers(1, 3, 5))


@pytest.mark.parametrize("setting", [False, True])
def test_b11__qos_0_for_an_offline_session(serve: Serve, setting: bool) -> None:
    server = serve(queue_qos_0=setting)
    offline(server)
    offline(server, client_id="low", qos=0)
    publisher = server.connect("p")
    publisher.publish("t", b"0", 0)
    publisher.publish("t", b"1", 1, reason=0)
    resume(server).expect_messages(*numbers(*((0, 1) if setting else (1,))))
    resume(server, "low").expect_messages(*numbers(*((0, 1) if setting else ())), qos=0)


BIG = 256 * 1024


def slow_reader(server: Server, count: int = 64) -> Raw:
    """A client that reads nothing while *count* messages of a quarter MiB, numbered, come for it."""
    client = server.connect("slow", will=wire.will("w", b"will"))
    client.subscribe("big", ("t", 1))

    async def fill() -> None:
        for n in range(count):
            await server.broker.publish("big", (b"%04d" % n) + bytes(BIG - 4))

    server.run(fill())
    return client


def test_b11__qos_0_to_a_slow_socket(serve: Serve) -> None:
    """What its socket does not take is dropped and counted; others get all of it, and it stays connected."""
    dropped = Dropped()
    server = serve(hooks=[dropped], maximum_outbound_bytes=BIG)
    quick = server.connect("quick")
    quick.subscribe("small")
    client = slow_reader(server)
    publisher = server.connect("p")
    for n in range(20):
        publisher.publish("small", f"{n}", 1, reason=0)
    quick.expect_messages(*numbers(*range(20)))
    found = [int((packet.payload or b"")[:4]) for packet in client.drain()]
    assert found == sorted(set(found)) and found[0] == 0 and len(found) < 64
    assert dropped.events == [("slow", "outbound_full")] * (64 - len(found))
    server.run(server.broker.publish("big", b"at last"))
    client.expect("PUBLISH", payload="at last")


@pytest.mark.tcp_only("it waits for the network stack, whose buffers are the same below all transports")
def test_b11__qos_1_waits_for_a_slow_socket(serve: Serve) -> None:
    """Nothing of QoS 1 is dropped for it; what was sent behind a full socket comes when it is read."""
    server = serve(maximum_outbound_bytes=BIG)
    client = slow_reader(server)
    publish_numbers(server, 300)
    found = client.drain()
    mine = [packet for packet in found if packet.topic_name == "t"]
    for packet in mine:
        client.ack(packet)
    mine += client.drain()
    assert [packet.payload for packet in mine] == [b"%d" % n for n in range(300)]


@pytest.mark.tcp_only("it looks at the socket itself")
def test_b11__a_socket_that_takes_nothing_is_closed(serve: Serve) -> None:
    server = serve(send_timeout=20)
    watcher = server.watch("w")
    client = slow_reader(server)
    server.advance(19, step=1)
    watcher.expect_nothing()
    server.advance(2, step=1)
    watcher.expect("PUBLISH", payload="will")
    server.wait_until(lambda: "slow" not in server.broker.clients, "the end of the slow client")
    assert b"\xe0" not in read_to_the_end(client)[-100:]  # a network failure: no DISCONNECT


def read_to_the_end(client: Raw) -> bytes:
    found = b""
    while chunk := client.transport.recv(1.0):
        found += chunk
    return found


@QOS
def test_b11__a_slow_subscriber_slows_nobody(server: Server, qos: int) -> None:
    slow = server.connect("slow", receive_maximum=1)
    slow.subscribe("t", qos=qos)
    quick = server.connect("quick")
    quick.subscribe("t", qos=qos)
    quick.auto_ack = True
    publisher = server.connect("p")
    for n in range(50):
        publisher.publish("t", f"{n}", qos, reason=0)
    quick.expect_messages(*numbers(*range(50)))
    slow.expect_messages("0")


# =========================================================================== B12: order


def test_b12__one_fifo_for_qos_1_and_2(server: Server) -> None:
    qos = [1, 2, 2, 1, 1, 2, 1, 2]
    client = subscriber_of(server, 2, receive_maximum=1)
    publisher = server.connect("p")
    for n, one in enumerate(qos):
        publisher.publish("t", f"{n}", one)
    for n, one in enumerate(qos):
        client.ack(client.expect("PUBLISH", payload=f"{n}", qos=one))
    client.drop()
    for n, one in enumerate(qos):
        publisher.publish("t", f"{n}", one)
    found = resume(server).expect_messages(*numbers(*range(8)))
    assert [packet.qos for packet in found] == qos


def test_b12__qos_0_keeps_its_order(serve: Serve) -> None:
    server = serve(queue_qos_0=True)
    client = subscriber_of(server, 2, receive_maximum=1)
    publisher = server.connect("p")
    for n in range(20):
        publisher.publish("t", f"{n}", n % 2)
    client.expect_messages("0", "1", *numbers(*range(2, 20, 2)))
    client.drop()
    for n in range(20, 30):
        publisher.publish("t", f"{n}", 0)
    client = resume(server)
    payloads = [int(packet.payload or b"") for packet in client.drain()]
    assert [n for n in payloads if n % 2 == 0 or n >= 20] == list(range(20, 30))


def test_b12__live_qos_0_stays_behind_queued_qos_0(serve: Serve) -> None:
    server = serve(queue_qos_0=True)
    offline(server)
    publisher = server.connect("p")
    for payload, qos in (("1", 1), ("2", 1), ("old", 0)):
        publisher.publish("t", payload, qos)
    client = resume(server, receive_maximum=1)
    publisher.publish("t", b"new", 0)
    found: list[wire.Packet] = []
    while batch := client.drain():
        found += batch
        for packet in batch:
            if packet.qos:
                client.ack(packet)
    assert [packet.payload for packet in found if packet.qos == 0] == [b"old", b"new"]
    assert [packet.payload for packet in found if packet.qos == 1] == [b"1", b"2"]


def test_b12__answers_in_the_order_of_the_requests(serve: Serve) -> None:
    server = serve(hooks=[Slow(seconds=0.005)])
    client = server.connect("c")
    client.send(
        wire.publish("slow/1", qos=1, packet_id=1), wire.publish("t", qos=2, packet_id=2),
        wire.subscribe(3, "slow/2"), wire.subscribe(4, "t2"), wire.publish("slow/3", qos=2, packet_id=5),
        wire.pubrel(2), wire.pingreq(), wire.unsubscribe(6, "slow/2"), wire.publish("t", qos=1, packet_id=7),
        wire.unsubscribe(8, "t2"), wire.pubrel(5), wire.pingreq(),
    )  # fmt: skip
    for name, packet_id in (
        ("PUBACK", 1), ("PUBREC", 2), ("SUBACK", 3), ("SUBACK", 4), ("PUBREC", 5), ("PUBCOMP", 2),
        ("PINGRESP", None), ("UNSUBACK", 6), ("PUBACK", 7), ("UNSUBACK", 8), ("PUBCOMP", 5),
        ("PINGRESP", None),
    ):  # fmt: skip
        client.expect(name, packet_id=packet_id)


def test_b12__routed_in_the_order_received(serve: Serve) -> None:
    """QoS 0 and 1 as they come, even behind a slow authorization; QoS 2 in the order of the PUBRELs."""
    server = serve(hooks=[Slow(seconds=0.005)])
    watcher = server.watch("#")
    client = server.connect("c")
    client.send(
        wire.publish("slow", b"1"), wire.publish("t", b"a", qos=2, packet_id=1), wire.publish("t", b"2"),
        wire.publish("slow", b"b", qos=2, packet_id=2), wire.publish("slow", b"3", qos=1, packet_id=3),
        wire.publish("t", b"4"), wire.pubrel(2), wire.publish("t", b"5", qos=1, packet_id=4), wire.pubrel(1),
    )  # fmt: skip
    client.drain()
    watcher.expect_messages("1", "2", "3", "4", "b", "5", "a")


def test_b12__subscription_is_live_from_suback_on(server: Server) -> None:
    """One stream: each packet is done before the next one of its connection."""
    client = server.connect("c")
    client.send(
        wire.publish("t", b"too early", qos=1, packet_id=1), wire.subscribe(2, ("t", 0)),
        wire.publish("t", b"just right", qos=1, packet_id=3), wire.unsubscribe(4, "t"),
        wire.publish("t", b"too late", qos=1, packet_id=5),
    )  # fmt: skip
    client.expect("PUBACK", packet_id=1, reason_code=0x10)
    client.expect("SUBACK", packet_id=2)
    found = [client.recv(), client.recv()]
    assert sorted(one.name for one in found) == ["PUBACK", "PUBLISH"]
    assert [one.payload for one in found if one.name == "PUBLISH"] == [b"just right"]
    client.expect("UNSUBACK", packet_id=4)
    client.expect("PUBACK", packet_id=5, reason_code=0x10)
    client.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b12__suback_then_retained_then_live(server: Server, qos: int) -> None:
    publisher = server.connect("p")
    for n in range(10):
        publisher.publish(f"t/{n}", b"kept", retain=True, qos=1)
    client = server.connect("c")
    client.send(wire.subscribe(1, ("t/+", qos)), wire.publish("t/5", b"live", qos=1, packet_id=2))
    client.expect("SUBACK", packet_id=1)
    found = [packet for packet in client.drain() if packet.name == "PUBLISH"]
    assert [packet.payload for packet in found] == [b"kept"] * 10 + [b"live"]
    assert [packet.retain for packet in found] == [True] * 10 + [False]


# =========================================================================== B19: Maximum Packet Size


def sized(size: int, topic_name: str = "t", **publish: Any) -> bytes:
    """A PUBLISH of *size* bytes in all."""
    raw = wire.publish(topic_name, b"", **publish)
    payload = size - len(raw) - (1 if size > 129 else 0)
    raw = wire.publish(topic_name, b"x" * payload, **publish)
    assert len(raw) == size
    return raw


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b19__inbound_limit(serve: Serve, version: int, qos: int) -> None:
    """All bytes count; equal is fine, one more is not."""
    server = serve(maximum_packet_size=1000)
    client = server.connect("c", version)
    client.send(sized(1000, qos=qos, version=version))
    if qos:
        client.expect("PUBACK" if qos == 1 else "PUBREC", packet_id=1)
    client.expect_nothing()
    server.expect_breach(sized(1001, qos=qos, version=version), codes=TOO_LARGE, version=version)


@pytest.mark.parametrize("version", [4, 5])
def test_b19__decided_from_the_fixed_header(server: Server, version: int) -> None:
    """Whatever the packet would have been, its bytes need not come."""
    for first in (0x30, 0x82, 0xA2, 0x40, 0xE0):
        for length in (1 << 20, 268_435_455):
            server.expect_breach(bytes([first]) + wire.varint(length), codes=TOO_LARGE, version=version)


@pytest.mark.parametrize("limit", [64, 1 << 20, 268_435_459, 268_435_460])
def test_b19__announced_below_the_maximum_of_the_protocol(serve: Serve, limit: int) -> None:
    server = serve(maximum_packet_size=limit)
    client = server.client()
    client.send(wire.connect("c"))
    client.expect("CONNACK", maximum_packet_size={limit, None} if limit == 268_435_460 else limit)


OUTBOUND: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # CONNECT, SUBSCRIBE and PUBLISH properties
    "plain": ({}, {}, {}),
    "identifiers": ({}, {"subscription_identifier": 268_435_455}, {}),
    "properties": (
        {},
        {},
        {"user_property": [("k", "v")] * 5, "content_type": "c", "correlation_data": b"d"},
    ),
    "expiry": ({}, {}, {"message_expiry_interval": 100}),
}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("case", OUTBOUND)
def test_b19__outbound_limit(serve: Serve, qos: int, case: str) -> None:
    """The size that counts is the real one. Too large: dropped for this client alone, and no word of it."""
    dropped = Dropped()
    server = serve(hooks=[dropped])
    connect, subscribe, publish = OUTBOUND[case]
    measure = server.connect("measure", **connect)
    measure.subscribe("t", qos=2, **subscribe)
    publisher = server.connect("p")
    publisher.publish("t", b"x" * 100, qos, **publish)
    size = len(measure.expect("PUBLISH").raw)
    measure.auto_ack = True
    client = server.connect("c", maximum_packet_size=size, **connect)
    client.subscribe("t", qos=2, **subscribe)
    client.auto_ack = True
    for n, more in enumerate((0, 1, 50, 0)):
        publisher.publish("t", b"%d" % n + b"x" * (99 + more), qos, reason=0, **publish)
    found = client.expect_messages("0" + "x" * 99, "3" + "x" * 99, qos=qos)
    assert len(found[0].raw) == len(found[1].raw) == size
    assert len(measure.drain()) == 4
    assert dropped.events == [("c", "packet_too_large")] * 2
    assert sys_value(server, "dropped/packet_too_large") == "2"


@QOS
@pytest.mark.parametrize("way", ["live", "queued", "retained"])
def test_b19__too_large_frees_identifier_and_slot(server: Server, qos: int, way: str) -> None:
    publisher = server.connect("p")
    if way == "queued":
        offline(server, "t/#", qos=qos)
    for n, payload in enumerate((b"x" * 200, b"1", b"x" * 200, b"3")):
        if way != "live":
            publisher.publish(f"t/{n}", payload, qos, retain=way == "retained")
    client = server.connect(
        "s", clean_start=False, session_expiry_interval=60, maximum_packet_size=100, receive_maximum=1
    )
    if way != "queued":
        client.subscribe("t/#", qos=qos)
    for n, payload in enumerate((b"x" * 200, b"1", b"x" * 200, b"3")):
        if way == "live":
            publisher.publish(f"t/{n}", payload, qos)
    for payload in "13":
        client.ack(client.expect("PUBLISH", payload=payload, packet_id={1, 2, 3, 4}))
    client.expect_nothing()
    again(client, server).expect_nothing()  # it counts as completely sent


@pytest.mark.parametrize("qos", [0, 1])
def test_b19__with_an_alias(server: Server, qos: int) -> None:
    """An alias makes the first packet longer and the later ones shorter; it is never why one is dropped."""
    topic = "t" * 50
    publisher = server.connect("p")
    limit = len(wire.publish(topic, b"x" * 30, qos=qos))
    client = server.connect("c", maximum_packet_size=limit, topic_alias_maximum=1)
    client.subscribe(topic, qos=qos)
    for size, alias, sent in (
        (200, None, None),  # too large, and no definition
        (30, None, topic),  # fits without an alias
        (27, 1, topic),  # with one
        (30, 1, ""),
        (77, 1, ""),  # with the alias alone
        (78, None, None),
    ):
        publisher.publish(topic, b"x" * size, qos, reason=0)
        found = client.drain()
        assert len(found) == (sent is not None), size
        for packet in found:
            assert (packet.sent_topic_name, packet.properties.get("topic_alias")) == (sent, alias)
            assert packet.payload == b"x" * size


def lengthy(**tables: dict[str, int]) -> Policy:
    """Refuses with a Reason String and a User Property, each of about 50 bytes."""
    return Policy(reason_string="r" * 50, user_properties=[("k" * 25, "v" * 25)], **tables)


ACKS: dict[str, tuple[Policy, bytes]] = {
    "PUBACK": (lengthy(publish={"no": 0x87}), wire.publish("no", b"x", qos=1)),
    "PUBREC": (lengthy(publish={"no": 0x87}), wire.publish("no", b"x", qos=2)),
    "SUBACK": (lengthy(subscribe={"no": 0x87}), wire.subscribe(1, "yes", "no")),
    "UNSUBACK": (lengthy(unsubscribe={"no": 0x87}), wire.unsubscribe(1, "yes", "no")),
}


@pytest.mark.parametrize("name", ACKS)
def test_b19__acknowledgement_too_large(serve: Serve, name: str) -> None:
    """First the Reason String goes, then the User Properties; never the acknowledgement itself."""
    policy, request = ACKS[name]
    server = serve(hooks=[policy])
    client = server.connect("c")
    client.send(request)
    size = len(client.expect(name, reason_string="r" * 50, user_property=[("k" * 25, "v" * 25)]).raw)
    without = size - 53
    for limit, reason_string, user_property in (
        (size, "r" * 50, [("k" * 25, "v" * 25)]),
        (size - 1, None, [("k" * 25, "v" * 25)]),
        (without, None, [("k" * 25, "v" * 25)]),
        (without - 1, None, None),
    ):
        client = server.connect("c", maximum_packet_size=limit)
        client.send(request)
        client.expect(name, reason_string=reason_string, user_property=user_property)
        client.expect_nothing()


def test_b19__reason_strings_of_the_server_itself(server: Server) -> None:
    for limit, told in ((1000, True), (20, False)):
        client = server.connect("c", maximum_packet_size=limit)
        client.send(wire.pubrel(9), wire.pubrec(9), bytes.fromhex("C1 00"))
        for name in ("PUBCOMP", "PUBREL", "DISCONNECT"):
            found = client.expect(name, reason_code=0x81 if name == "DISCONNECT" else 0x92)
            assert ("reason_string" in found.properties) == told, found
        client.drop()


@pytest.mark.parametrize("name", ["SUBACK", "UNSUBACK"])
def test_b19__too_many_filters_for_the_answer(server: Server, name: str) -> None:
    """SUBACK and UNSUBACK cannot be left out: DISCONNECT 0x95. The answer to n filters has n + 5 bytes."""
    build = wire.subscribe if name == "SUBACK" else wire.unsubscribe
    client = server.connect("c", maximum_packet_size=50)
    client.send(build(1, *(f"f{n}" for n in range(45))))
    assert len(client.expect(name).raw) == 50
    client.send(build(1, *(f"f{n}" for n in range(46))))
    client.expect_close(TOO_LARGE)


def test_b19__connack_that_does_not_fit(serve: Serve) -> None:
    server = serve(hooks=[ConnackProperties(("k" * 25, "v" * 25))])
    client = server.connect("c")
    assert client.connack is not None
    size = len(client.connack.raw)
    client.disconnect()
    smallest = size - 55
    for limit, optional in ((size, True), (size - 1, False), (smallest, False)):
        client = server.client()
        client.send(wire.connect("c", properties={"maximum_packet_size": limit}))
        client.expect("CONNACK", user_property=[("k" * 25, "v" * 25)] if optional else None)
        client.disconnect()
    server.expect_refused(wire.connect("c", properties={"maximum_packet_size": smallest - 1}))


@pytest.mark.parametrize("qos", [0, 1])
def test_b19__shared_messages_go_where_they_fit(server: Server, qos: int) -> None:
    """Of two members one takes small packets alone. Nothing is lost around its limit."""
    small = server.connect("small", maximum_packet_size=150)
    large = server.connect("large")
    topic = "é" * 20
    for client in (small, large):
        client.subscribe(f"$share/g/{topic}", qos=qos, subscription_identifier=268_435_455)
        client.auto_ack = True
    publisher = server.connect("p")
    for size in range(60, 110):
        for _ in range(2):
            publisher.publish(topic, b"x" * size, qos, user_property=[("é", "ü")] * 2)
    got = [len(packet.payload or b"") for client in (small, large) for packet in client.drain()]
    assert sorted(got) == sorted([*range(60, 110)] * 2)


# =========================================================================== B28: WebSocket

web_only = pytest.mark.tcp_only("it brings its own WebSocket connections")
ANY_PATH = ("ws://127.0.0.1:0", "tcp://127.0.0.1:0")


def web_connected(server: Server, **connect: Any) -> tuple[Raw, WebSocket]:
    client, websocket = web_client(server)
    client.connect("c", will=wire.will("w", b"will"), **connect)
    return client, websocket


@web_only
def test_b28__any_path_unless_one_is_set(serve: Serve) -> None:
    for listen, path, status in (
        (ANY_PATH, "/mqtt", 101), (ANY_PATH, "/", 101), (ANY_PATH, "/any/where", 101),
        (("ws://127.0.0.1:0/mqtt",), "/mqtt", 101), (("ws://127.0.0.1:0/mqtt",), "/mqtt?x=1", 101),
        (("ws://127.0.0.1:0/mqtt",), "/", 404), (("ws://127.0.0.1:0/mqtt",), "/mqtt/", 404),
    ):  # fmt: skip
        client, websocket = web_client(serve(listen=listen), upgrade=False)
        assert websocket.upgrade("mqtt", path) == status, path
        if status == 101:
            client.connect("c")
            client.expect_nothing()


@web_only
@pytest.mark.parametrize(
    ("offered", "chosen"),
    [("mqtt", "mqtt"), ("mqttv3.1", "mqttv3.1"), ("mqttv3.1, mqtt", "mqtt"), ("mqtt, mqttv3.1", "mqtt"),
     ("foo, mqttv3.1", "mqttv3.1")],
)  # fmt: skip
def test_b28__mqttv3_1_alone_is_accepted(server: Server, offered: str, chosen: str) -> None:
    client, websocket, status = upgraded(server, offered)
    assert (status, websocket.header("Sec-WebSocket-Protocol")) == (101, [chosen])
    client.connect("c", version=3 if chosen == "mqttv3.1" else 5)
    client.expect_nothing()


@web_only
@pytest.mark.parametrize(
    ("lenient", "offered", "status"),
    [(False, None, 400), (False, "foo", 400), (True, None, 101), (True, "foo", 101), (True, "mqtt", 101)],
)
def test_b28__no_subprotocol(serve: Serve, lenient: bool, offered: str | None, status: int) -> None:
    client, websocket, got = upgraded(serve(require_subprotocol=not lenient), offered)
    assert got == status
    assert websocket.header("Sec-WebSocket-Protocol") == (["mqtt"] if offered == "mqtt" else [])
    if status == 101:
        client.connect("c")
        client.expect_nothing()


@web_only
def test_b28__text_closes_with_1003_and_the_will_is_published(server: Server) -> None:
    watcher = server.watch("w")
    client, websocket = web_connected(server)
    send_frames(client, (TEXT, wire.pingreq(), True))
    expect_web_close(websocket, 1003)
    watcher.expect("PUBLISH", payload="will")


@web_only
def test_b28__fragments_with_control_frames_between(server: Server) -> None:
    client, websocket = web_connected(server)
    raw = wire.publish("t", b"x" * 300, qos=1, packet_id=7)
    send_frames(
        client, (BINARY, b"", True), (BINARY, b"", False), (PING, b"1", True), (CONTINUATION, raw[:2], False),
        (PONG, b"", True), (CONTINUATION, b"", False), (PING, b"2", True), (CONTINUATION, raw[2:], True),
        (BINARY, b"", True),
    )  # fmt: skip
    assert [next_frame(websocket), next_frame(websocket)] == [(PONG, b"1"), (PONG, b"2")]
    client.expect("PUBACK", packet_id=7)
    client.expect_nothing()


BAD_FRAMES: dict[str, dict[str, Any]] = {
    "unmasked": {"opcode": BINARY, "mask": False},
    "reserved bit 1": {"opcode": BINARY, "rsv": 4},  # permessage-deflate, which was not agreed on
    "reserved bit 3": {"opcode": BINARY, "rsv": 1},
    "reserved opcode": {"opcode": 3},
    "reserved control opcode": {"opcode": 11},
    "fragmented ping": {"opcode": PING, "fin": False},
    "long ping": {"opcode": PING, "payload": b"x" * 126},
    "continuation of nothing": {"opcode": CONTINUATION},
    "close code 1005": {"opcode": CLOSE, "payload": b"\x03\xed"},
    "close of one byte": {"opcode": CLOSE, "payload": b"\x03"},
}


@web_only
@pytest.mark.parametrize("name", BAD_FRAMES)
def test_b28__breaches_of_the_framing_close_with_1002(server: Server, name: str) -> None:
    watcher = server.watch("w")
    _, websocket = web_connected(server)
    websocket.send_frame(**{"payload": wire.pingreq(), **BAD_FRAMES[name]})
    expect_web_close(websocket, 1002)
    watcher.expect("PUBLISH", payload="will")


@web_only
def test_b28__the_stream_has_no_borders(server: Server) -> None:
    """A frame may end in one packet and hold three more, whatever their sizes."""
    client, _ = web_connected(server)
    stream = b"".join(wire.publish("t", b"x" * n, qos=1, packet_id=n) for n in range(1, 60))
    in_binary(client, *(stream[at : at + 97] for at in range(0, len(stream), 97)))
    for n in range(1, 60):
        client.expect("PUBACK", packet_id=n)


@web_only
@pytest.mark.parametrize("fragments", [1, 4])
def test_b28__size_of_a_message(serve: Serve, fragments: int) -> None:
    """The limit of MQTT plus 1024 bytes; above it the Close comes before the bytes do."""
    server = serve(maximum_packet_size=2000)
    watcher = server.watch("w")
    pings = wire.pingreq() * (3024 // 2)
    client, websocket = web_connected(server)
    send_frames(client, (BINARY, pings, True))
    for _ in range(3024 // 2):
        client.expect("PINGRESP")
    for n in range(fragments - 1):
        send_frames(client, (CONTINUATION if n else BINARY, pings[:756], False))
    opcode = BINARY if fragments == 1 else CONTINUATION
    last = websocket.frame(opcode, bytes(3025 - (fragments - 1) * 756))
    websocket.send_bytes(last[:8])  # its header alone
    frames = data_frames(websocket)
    assert websocket.close_code == 1009
    assert {name for _, payload in frames for name in names_in(payload)} <= {"PINGRESP"}
    watcher.expect("PUBLISH", payload="will")


@web_only
def test_b28__no_compression(server: Server) -> None:
    client, websocket, status = upgraded(
        server, "mqtt", Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"
    )
    assert status == 101 and websocket.header("Sec-WebSocket-Extensions") == []
    client.connect("c")
    client.expect_nothing()


@web_only
def test_b28__several_packets_in_a_frame_of_the_server(server: Server) -> None:
    """Each frame holds whole packets; a burst needs fewer frames than packets."""
    client, websocket = web_connected(server)
    client.subscribe("t", qos=1)
    publish_numbers(server, 100)
    client.send(wire.disconnect(0))
    frames = data_frames(websocket)
    names = [name for _, payload in frames for name in names_in(payload)]
    assert names == ["PUBLISH"] * 100
    assert {opcode for opcode, _ in frames} == {BINARY} and len(frames) < 50


@web_only
def test_b28__close_1000_after_disconnect(server: Server) -> None:
    watcher = server.watch("w")
    client, websocket = web_connected(server)
    client.send(wire.disconnect(0))
    expect_web_close(websocket, 1000)
    watcher.expect_nothing()
    client, websocket = web_connected(server)
    client.send(bytes.fromhex("C1 00"))
    found = next_frame(websocket)
    assert found is not None and found[0] == BINARY and names_in(found[1]) == ["DISCONNECT"]
    expect_web_close(websocket, 1000)
    watcher.expect("PUBLISH", payload="will")


@web_only
@pytest.mark.parametrize("way", ["close frame", "close frame without code", "fin", "rst"])
def test_b28__an_end_without_disconnect_is_abnormal(server: Server, way: str) -> None:
    watcher = server.watch("w")
    client, websocket = web_connected(server)
    if way.startswith("close"):
        payload = b"\x03\xe8" if way == "close frame" else b""
        websocket.send_frame(CLOSE, payload)
        assert next_frame(websocket) == (CLOSE, payload)
        assert next_frame(websocket) is None
    else:
        (client.drop if way == "fin" else client.reset)()
    watcher.expect("PUBLISH", payload="will")


@web_only
@pytest.mark.parametrize("mqtt", [False, True])
def test_b28__websocket_pings_are_no_sign_of_life(server: Server, mqtt: bool) -> None:
    client, websocket = web_connected(server, keep_alive=2)
    for n in range(3):
        server.advance(1.4)
        if mqtt:
            client.expect_nothing()
        elif n < 2:
            websocket.send_frame(PING, b"alive")
            assert next_frame(websocket) == (PONG, b"alive")
    if mqtt:
        client.expect_nothing()
    else:
        client.expect_close(0x8D)


@web_only
def test_b28__origin_check(serve: Serve) -> None:
    origins = ("https://good.example", "http://localhost:8080")
    for allowed, origin, status in (
        ((), "https://bad.example", 101), (origins, "https://good.example", 101), (origins, None, 101),
        (origins, "http://localhost:8080", 101), (origins, "https://bad.example", 403),
        (origins, "http://good.example", 403), (origins, "https://good.example.bad.example", 403),
        (origins, "null", 403),
    ):  # fmt: skip
        client, _, got = upgraded(
            serve(origins=allowed), "mqtt", **{} if origin is None else {"Origin": origin}
        )
        assert got == status, (allowed, origin)
        if status == 101:
            client.connect("c")
            client.expect_nothing()


@web_only
def test_b28__headers_of_a_proxy_are_not_believed(serve: Serve) -> None:
    """Who says to come from elsewhere counts for the address that the socket has."""
    server = serve(maximum_connections_per_address=1)
    first, _, _ = upgraded(server, "mqtt", X_Forwarded_For="192.0.2.1", Authorization="Basic dTpw")
    first.connect("a")
    second, _, status = upgraded(server, "mqtt", X_Forwarded_For="192.0.2.2", Forwarded="for=192.0.2.2")
    assert status == 101
    second.send(wire.connect("b"))
    second.expect_close()
    first.expect_nothing()


# =========================================================================== B29: TLS

tls_only = pytest.mark.tcp_only("it brings its own TLS listener")


@dataclass
class Authority:
    """A certificate authority, and the files of a server that it vouches for."""

    ca: trustme.CA
    folder: Path

    def server_side(self, **more: Any) -> dict[str, Any]:
        """The settings of a broker with a TLS listener first."""
        tls = Tls(certificate=str(self.folder / "server.pem"), **more)
        return {"config": Config(listen=("tls://127.0.0.1:0", "tcp://127.0.0.1:0"), tls=tls)}

    def client_side(self, name: str | None = None, authority: trustme.CA | None = None) -> ssl.SSLContext:
        """A client's context; with *name* it shows a certificate with that Common Name."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if name is not None:
            (authority or self.ca).issue_cert(f"{name}.example", common_name=name).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(trustme.CA(), tmp_path_factory.mktemp("tls"))
    server = made.ca.issue_cert("localhost")
    server.private_key_and_cert_chain_pem.write_to_path(made.folder / "server.pem")
    made.ca.cert_pem.write_to_path(made.folder / "ca.pem")
    return made


def tls_client(server: Server, context: ssl.SSLContext, **kwargs: Any) -> Raw:
    return server.client(transport="tcp", address=server.address("tls"), context=context, **kwargs)


def test_b29__registered_ports(server: Server) -> None:
    """Addresses without a port; a test binds none of them."""
    assert [parse_address(f"{scheme}://host").port for scheme in ("tcp", "tls")] == [1883, 8883]
    assert Config().listen == ("tcp://127.0.0.1:1883",)
    server.connect("c").expect_nothing()


@tls_only
@pytest.mark.parametrize("offered", [["mqtt"], ["http/1.1", "mqtt"], None, ["http/1.1"]])
def test_b29__alpn(serve: Serve, authority: Authority, offered: list[str] | None) -> None:
    server = serve(**authority.server_side())
    context = authority.client_side()
    if offered is not None:
        context.set_alpn_protocols(offered)
    client = tls_client(server, context)
    assert client.transport.sock.selected_alpn_protocol() == (
        "mqtt" if offered and "mqtt" in offered else None
    )
    client.connect("c")
    client.expect_nothing()


def leave_tls(client: Raw, way: str) -> None:
    """Ends the stream of a TLS client in one of the ways in which it can end."""
    sock = client.transport.sock
    assert isinstance(sock, ssl.SSLSocket)
    if way == "close_notify":
        sock.settimeout(1)
        sock.unwrap().close()
        client.closed = True
    elif way == "alert":
        raw = socket.socket(fileno=sock.detach())
        raw.sendall(bytes.fromhex("15 03 03 00 02 02 28"))  # a record that is no record of this connection
        raw.close()
        client.closed = True
    else:
        {"fin": client.drop, "rst": client.reset, "disconnect": client.disconnect}[way]()


@tls_only
@pytest.mark.parametrize("way", ["close_notify", "alert", "fin", "rst", "disconnect"])
def test_b29__an_end_without_disconnect_is_abnormal(serve: Serve, authority: Authority, way: str) -> None:
    server = serve(**authority.server_side())
    watcher = server.watch("w")
    client = tls_client(server, authority.client_side())
    client.connect("c", will=wire.will("w", b"will"))
    leave_tls(client, way)
    if way == "disconnect":
        watcher.expect_nothing()
    else:
        watcher.expect("PUBLISH", payload="will")


class CommonNames(HookBase):
    """The Common Name of the certificate is the user name; "guest" for none. "mallory" may not come in."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        subject = dict(pair for group in (client.certificate or {}).get("subject", ()) for pair in group)
        client.user_name = subject.get("commonName", "guest")
        client.user_properties.append(("user", client.user_name))
        if client.user_name == "mallory":
            raise NotAuthorized


@tls_only
@pytest.mark.parametrize(
    ("mode", "name", "reason"),
    [("none", None, 0), ("optional", None, 0), ("optional", "alice", 0), ("required", "alice", 0),
     ("required", "mallory", 0x87), ("none", "alice", 0)],
)  # fmt: skip
def test_b29__user_name_of_a_client_certificate(
    serve: Serve, authority: Authority, mode: str, name: str | None, reason: int
) -> None:
    """A verified certificate is given to the hooks, which may take the user name from it."""
    more = {} if mode == "none" else {"client_ca": str(authority.folder / "ca.pem")}
    server = serve(hooks=[CommonNames()], **authority.server_side(client_certificates=mode, **more))
    client = tls_client(server, authority.client_side(name))
    connack = client.connect("c", reason=reason)
    user = "guest" if mode == "none" or name is None else name
    assert reason or connack.properties["user_property"] == [("user", user)]


@tls_only
@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
def test_b29__required_certificate(serve: Serve, authority: Authority, shown: str) -> None:
    server = serve(
        **authority.server_side(client_certificates="required", client_ca=str(authority.folder / "ca.pem"))
    )
    context = authority.client_side(*(("eve", trustme.CA()) if shown != "nothing" else ()))
    try:
        client = tls_client(server, context)
        client.send(wire.connect("c"))
        got = client.transport.recv(1.0)
    except ssl.SSLError:
        got = b""
    assert got == b""
    alice = tls_client(server, authority.client_side("alice"))
    alice.connect("c", session_present=False)


@tls_only
def test_b29__handshake_timeout(serve: Serve, authority: Authority) -> None:
    """Those who say nothing hold up nobody, and are closed without a word of MQTT."""
    server = serve(**authority.server_side(handshake_timeout=0.3))
    port, context = int(server.address("tls").rpartition(":")[2]), authority.client_side()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    silent[0].sendall(b"\x16\x03\x01")  # the beginning of a record
    start = time.monotonic()
    tls_client(server, context).connect("c")
    assert time.monotonic() - start < 0.3
    for sock in silent:
        sock.settimeout(2)
        with sock:
            assert sock.recv(1000) == b""
    assert time.monotonic() - start > 0.2


# =========================================================================== B32: limits and defence


def refused_connect(server: Server, client_id: str, *codes: int, version: int = 5, **connect: Any) -> None:
    client = server.client(version)
    client.send(wire.connect(client_id, version=version, **connect))
    client.expect_close(*codes)
    client.close()


def test_b32__connections_in_all(serve: Serve) -> None:
    server = serve(maximum_connections=2)
    first, second = server.connect("a"), server.connect("b")
    refused_connect(server, "c", QUOTA_EXCEEDED)
    refused_connect(server, "c", 3, version=4)
    again_there = server.connect("b")  # a takeover is no connection more
    second.expect_close(0x8E)
    first.disconnect()
    server.connect("c").expect_nothing()
    again_there.expect_nothing()


def test_b32__connections_per_address(serve: Serve) -> None:
    server = serve(maximum_connections_per_address=2)
    first, second = server.connect("a"), server.connect("b")
    third = server.client(transport="tcp")
    third.send(wire.connect("c"))
    third.expect_close()
    first.disconnect()
    server.wait_until(lambda: len(server.broker.clients) == 1)
    server.connect("c").expect_nothing()
    second.expect_nothing()


def test_b32__connections_per_user(serve: Serve) -> None:
    server = serve(maximum_connections_per_user=2)
    first, _ = (server.connect(name, user_name="u") for name in "ab")
    refused_connect(server, "c", QUOTA_EXCEEDED, user_name="u")
    refused_connect(server, "c", 3, version=4, user_name="u")
    server.connect("d", user_name="other").expect_nothing()
    for name in "efg":
        server.connect(name).expect_nothing()
    server.connect("b", user_name="u").expect_nothing()
    first.drop()
    server.connect("c", user_name="u").expect_nothing()
    refused_connect(server, "a", QUOTA_EXCEEDED, user_name="u")


def test_b32__connect_rate(serve: Serve) -> None:
    server = serve(maximum_connect_rate=3)
    for n in range(3):
        server.connect(f"{n}").expect_nothing()
    refused_connect(server, "no", 0x9F)
    refused_connect(server, "no", version=4)
    server.advance(1)
    for n in range(3):
        server.connect(f"again {n}").expect_nothing()
    refused_connect(server, "no", 0x9F)
    server.advance(0.4)
    server.connect("one more").expect_nothing()
    refused_connect(server, "no", 0x9F)


def test_b32__packet_size(server: Server) -> None:
    """1 MiB by default."""
    client = server.connect("c")
    assert client.connack is not None
    assert client.connack.properties["maximum_packet_size"] == 1 << 20
    raw = wire.publish("t", bytes((1 << 20) - 8))
    assert len(raw) == 1 << 20
    client.send(raw)
    client.expect_nothing()
    server.expect_breach(wire.publish("t", bytes((1 << 20) - 7)), codes=TOO_LARGE)


def test_b32__subscriptions_per_session(serve: Serve) -> None:
    server = serve(maximum_subscriptions=3)
    for version, code in ((5, QUOTA_EXCEEDED), (4, 0x80)):
        client = server.connect(f"c{version}", version)
        client.subscribe("1", "2")
        client.subscribe("2", "3", "4", "5", granted=[0, 0, code, code])
        client.unsubscribe("1")
        client.subscribe("4", "3", granted=[0, 0])


def test_b32__filters_in_one_packet(serve: Serve) -> None:
    server = serve(maximum_filters=3)
    client = server.connect("c")
    client.subscribe("1", "2", "3")
    client.subscribe("4", "5", "6", "7", granted=[QUOTA_EXCEEDED] * 4)
    client.unsubscribe("1", "2", "3", "4", reasons=[0x80] * 4)  # UNSUBACK knows no 0x97
    server.connect("p").publish("2", b"x", 1, reason=0)
    client.expect("PUBLISH", topic_name="2")


def test_b32__retained_messages(serve: Serve) -> None:
    server = serve(maximum_retained_messages=2, maximum_retained_bytes=1000)
    client = server.connect("c")
    for topic, size, code in (
        ("a", 10, 0x10), ("b", 2000, QUOTA_EXCEEDED), ("b", 10, 0x10), ("c", 10, QUOTA_EXCEEDED),
        ("b", 900, 0x10), ("a", 100, QUOTA_EXCEEDED), ("b", 0, 0x10), ("c", 10, 0x10),
    ):  # fmt: skip
        for qos in (1, 2):
            client.publish(topic, b"x" * size, qos, retain=True, reason=code)
    client.publish("d", b"x", 0, retain=True)
    assert [topic for topic, _ in server.retained()] == ["a", "c"]


def test_b32__topic_levels(serve: Serve) -> None:
    server = serve(maximum_topic_levels=3)
    client = server.connect("c")
    client.subscribe("a/+/#", "a/b/c/d", "$share/g/a/b/c", "$share/g/a/b/c/d", granted=[0, 0x8F, 0, 0x8F])
    for qos in (1, 2):
        client.publish("x/y/z", b"", qos, reason=0x10)
        client.publish("x/y/z/", b"", qos, reason=0x90)
    client.publish("x/y/z/", b"kept", 0, retain=True)
    assert server.retained() == []
    refused_connect(server, "w", 0x90, will=wire.will("x/y/z/"))


def test_b32__topic_and_client_id_lengths(serve: Serve) -> None:
    server = serve(maximum_topic_bytes=10, maximum_client_id_bytes=23)
    client = server.connect("c" * 23)
    client.publish("é" * 5, b"", 1, reason=0x10)
    client.publish("é" * 6, b"", 1, reason=0x90)
    client.subscribe("é" * 5, "é" * 6, granted=[0, 0x8F])
    refused_connect(server, "c" * 24, 0x85)


def test_b32__topic_aliases(serve: Serve) -> None:
    server = serve(topic_alias_maximum=2)
    client = server.connect("c")
    assert client.connack is not None
    assert client.connack.properties["topic_alias_maximum"] == 2
    client.publish("t", b"x", topic_alias=2)
    server.expect_breach(wire.publish("t", b"x", properties={"topic_alias": 3}), codes=0x94)


def test_b32__user_properties(serve: Serve) -> None:
    server = serve(maximum_user_properties=3)
    pairs = {"user_property": [("k", "v")] * 3}
    many = [(0x26, ("k", "v"))] * 4
    client = server.connect("c", **pairs)
    client.publish("t", b"x", 1, **pairs)
    client.subscribe("t", **pairs)
    client.unsubscribe("t", **pairs)
    for raw in (
        wire.publish("t", b"x", properties=many), wire.subscribe(1, "t", properties=many),
        wire.unsubscribe(1, "t", properties=many),
    ):  # fmt: skip
        server.expect_breach(raw, codes=QUOTA_EXCEEDED)
    refused_connect(server, "x", QUOTA_EXCEEDED, properties=many)


def test_b32__sessions_and_bytes(serve: Serve) -> None:
    server = serve(maximum_sessions=3, maximum_bytes=80_000)
    for name in "ab":
        offline(server, client_id=name)
    client = server.connect("c")
    refused_connect(server, "d", QUOTA_EXCEEDED)
    refused_connect(server, "d", 3, version=4)
    for _ in range(10):  # twice 10 kB each; a session takes some 3 kB, a message some 300 bytes more
        client.publish("t", b"x" * 10_000, 1, reason=0)
    client.disconnect()
    assert len(resume(server, "a").drain()) + len(resume(server, "b").drain()) == 6


def test_b32__write_buffer(serve: Serve) -> None:
    """What waits for a socket that takes nothing is bounded, in bytes and in packets."""
    for setting in ({"maximum_outbound_bytes": BIG}, {"maximum_outbound_packets": 2}):
        dropped = Dropped()
        server = serve(hooks=[dropped], **setting)
        client = slow_reader(server)
        assert ("slow", "outbound_full") in dropped.events
        assert int(sys_value(server, "dropped/outbound_full")) == len(dropped.events)
        assert len(client.drain()) + len(dropped.events) == 64


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("begun", [b"\x30", b"\x30\x80", b"\x30\x0a\x00\x01t", b"\xc0"])
def test_b32__a_packet_must_be_whole_in_time(server: Server, version: int, begun: bytes) -> None:
    """30 s, also when more bytes of it come and nothing is wrong with them."""
    client = server.connect("c", version)
    client.send(wire.pingreq(), begun)
    client.expect("PINGRESP")
    server.advance(29)
    client.send(b"\x00" if begun[-1:] == b"t" else b"")
    server.settle()
    server.advance(2)
    client.expect_close(0x82)


def test_b32__unfinished_packet_and_keep_alive(server: Server) -> None:
    """1.5 times Keep Alive comes first: bytes of an unfinished packet do not count as life."""
    client = server.connect("c", keep_alive=4)
    client.send(b"\x30\x0a")
    server.advance(5)
    client.send(b"\x00")
    server.settle()
    server.advance(1.5)
    client.expect_close(0x8D)


def test_b32__slow_but_whole_packets_are_fine(server: Server) -> None:
    client = server.connect("c")
    client.subscribe("t")
    for _ in range(4):
        for byte in wire.publish("t", b"x"):
            client.send(bytes([byte]))
            server.settle()
            server.advance(3)
    client.expect_messages("x", "x", "x", "x")


def many(count: int, what: str = "{}") -> Iterator[str]:
    return (what.format(n) for n in range(count))


COSTLY: dict[str, tuple[Callable[[], bytes], dict[str, Any] | int | None]] = {
    # a packet within the limits of MQTT, and the answer: its fields, a code of DISCONNECT, or none
    "levels": (lambda: wire.publish("/" * 65535), None),
    "levels of a filter": (lambda: wire.subscribe(1, "+/" * 32767), {"reason_codes": [0x8F]}),
    "filters": (lambda: wire.subscribe(1, *many(10_000)), {"reason_codes": [QUOTA_EXCEEDED] * 10_000}),
    "more filters": (lambda: wire.subscribe(1, *many(80_000, "{}/+/#")), QUOTA_EXCEEDED),
    "one filter": (lambda: wire.subscribe(1, *many(150_000, "a/#")), QUOTA_EXCEEDED),
    "unsubscribe": (lambda: wire.unsubscribe(1, *many(10_000)), {"reason_codes": [0x80] * 10_000}),
    "more to unsubscribe": (lambda: wire.unsubscribe(1, *many(120_000)), QUOTA_EXCEEDED),
    "user properties": (
        lambda: wire.publish("t", properties=[(0x26, ("", ""))] * 200_000), QUOTA_EXCEEDED
    ),
    "identifiers": (lambda: wire.publish("t", properties=[(0x0B, 1)] * 400_000), QUOTA_EXCEEDED),
    "large properties": (lambda: wire.puback(9, 0, [(0x26, ("k" * 60_000, "v" * 60_000))] * 8), None),
    "code points": (lambda: wire.publish("t", properties=[(0x03, "\u0001" * 65_000)]), 0x81),
    "tiny packets": (lambda: wire.publish("t") * 20_000, None),
}  # fmt: skip


@pytest.mark.tcp_only("it measures time")
@pytest.mark.parametrize("name", COSTLY)
def test_b32__no_packet_costs_much(server: Server, name: str) -> None:
    """All of the broker and of this client together take less than a second of the processor for it."""
    make, answer = COSTLY[name]
    packet, client = make(), server.connect("c")
    start = time.process_time()
    client.send(packet, wire.pingreq())
    if isinstance(answer, int):
        client.expect_close(answer)
    else:
        if answer is not None:
            client.expect("SUBACK" if packet[0] == 0x82 else "UNSUBACK", **answer)
        client.expect("PINGRESP")
    assert time.process_time() - start < 1.0


@pytest.mark.tcp_only("it measures time")
def test_b32__matching_does_not_explode(serve: Serve) -> None:
    """Deep topics against every mixture of + and # that matches them."""
    server = serve(maximum_topic_levels=65535)
    client = server.connect("c")
    levels = 14
    mixed = [
        "/".join("+" if n >> bit & 1 else "a" for bit in range(levels)) for n in range(0, 1 << levels, 19)
    ]
    client.subscribe(*mixed)
    client.subscribe("+/" * 30_000 + "#", "a/" * 30_000 + "+")
    publisher = server.connect("p")
    start = time.process_time()
    publisher.publish("/".join("a" * levels), b"x", 1, reason=0)
    publisher.publish("a/" * 30_000 + "b", b"x", 1, reason=0)
    publisher.publish("/" * 30_001, b"x", 1, reason=0)
    assert time.process_time() - start < 1.0
    assert len(client.drain()) == 3


@pytest.mark.parametrize(
    "raw", ["30 FF FF FF 7F", "82 FF FF FF 7F 00 01 FF FF FF 7F", "10 FF FF FF 7F 00 04"]
)
def test_b32__lengths_are_checked_before_anything_is_held(server: Server, raw: str) -> None:
    """256 MiB are announced; the answer is there before the second byte of the body."""
    if raw.startswith("10"):
        server.expect_refused(bytes.fromhex(raw) + b"MQTT\x05", codes=TOO_LARGE)
    else:
        server.expect_breach(bytes.fromhex(raw), codes=TOO_LARGE)


def test_b32__inner_lengths_are_checked(server: Server) -> None:
    """A string or property list that says to be longer than its packet."""
    for raw in ("30 05 FF FF 74 00 00", "30 07 00 01 74 FF FF FF 7F", "82 06 00 01 FF FF FF 7F"):
        server.expect_breach(bytes.fromhex(raw), codes=0x81)


def test_b32__everything_counted_is_in_the_metrics(serve: Serve) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87}, connect={"banned": 0x8A})], maximum_queued_messages=1)
    offline(server)
    client = server.connect("c", maximum_packet_size=100)
    client.subscribe("big")
    publisher = server.connect("p")
    refused_connect(server, "banned", 0x8A)
    for topic, qos, payload in (
        ("no", 1, "x"), ("t", 1, "queued"), ("t", 1, "queue_full"), ("big", 0, "x" * 200), ("t", 0, "offline")
    ):  # fmt: skip
        publisher.publish(topic, payload, qos, retain=topic == "t", reason=(0, 0x10, 0x87))
    for name, value in {
        "dropped/refused": "1", "dropped/queue_full": "1", "dropped/packet_too_large": "1",
        "dropped/offline": "1", "publish/messages/dropped": "4", "retained messages/count": "1",
        "connections/refused": "1", "clients/disconnected": "1", "publish/messages/received": "5",
    }.items():  # fmt: skip
        assert sys_value(server, name) == value, name
    for name in (
        "bytes/received", "bytes/sent", "messages/received", "messages/sent", "connections/total",
        "clients/connected", "clients/total", "subscriptions/count", "store/messages/bytes",
    ):  # fmt: skip
        assert int(sys_value(server, name)) > 0, name


# =========================================================================== B33: restart


def test_b33__without_persistence_sessions_are_lost(serve: Serve) -> None:
    """There is no durability yet: after a restart no session, no queued or held message and no retained
    message is there, and Session Present 0 tells every client so."""
    server = serve(grace_time=0.05)
    offline(server)
    publisher = server.connect("p", session_expiry_interval=60)
    publisher.publish("t", b"queued", 1, retain=True, reason=0)
    publisher.send(wire.publish("t", b"held", qos=2, packet_id=9))
    publisher.expect("PUBREC", packet_id=9)
    connected = server.connect("3.1.1", 4, clean_start=False)
    connected.subscribe("t", qos=1)
    server.restart()
    publisher.expect_close(0x8B)
    connected.expect_close(skip=["PUBLISH"])
    assert server.retained() == []
    client = server.connect("s", clean_start=False, session_present=False, session_expiry_interval=60)
    publisher = server.connect("p", clean_start=False, session_present=False)
    old = server.connect("3.1.1", 4, clean_start=False, session_present=False)
    publisher.release(9, reason=0x92)
    publisher.publish("t", b"nobody is subscribed", 1, reason=0x10)
    for one in (client, publisher, old):
        one.expect_nothing()


def test_b33__the_session_after_it_works(server: Server) -> None:
    """What a client does when it is told: it subscribes again, and its session is kept from then on."""
    offline(server)
    server.restart()
    client = server.connect("s", clean_start=False, session_present=False, session_expiry_interval=60)
    client.subscribe("t", qos=1)
    client.drop()
    publish_numbers(server, 1)
    client = resume(server)
    client.ack(client.expect("PUBLISH", payload="0", packet_id=1))
    client.expect_nothing()
