"""B11: flow control, full queues, slow readers."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import QUOTA_EXCEEDED
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import BIG, identifier, numbers, publish_numbers, slow_reader
from tests.conformance.hooks import Dropped, Policy
from tests.conformance.marks import both_qos
from tests.conformance.server import Server
from tests.conformance.sessions import again, offline, resume, subscribed


@both_qos
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("asked", "setting"), [(2, 10), (10, 2), (None, 2)])
def test_b11__outbound_window(serve: Serve, qos: int, version: int, asked: int | None, setting: int) -> None:
    server = serve(outbound_receive_maximum=2 if version == 4 else setting)
    named = {} if asked is None else {"receive_maximum": asked}
    client = subscribed(server, qos=qos, version=version, **named)
    publish_numbers(server, 6, qos)
    waiting = client.expect_messages(*numbers(0, 1), qos=qos)
    for n in range(2, 6):
        client.ack(waiting.pop(0))
        waiting += client.expect_messages(f"{n}")


@pytest.mark.parametrize("version", [4, 5])
def test_b11__what_counts(serve: Serve, version: int) -> None:
    """QoS 1 until PUBACK, QoS 2 until PUBCOMP, and no acknowledgement adds to the initial value."""
    server = serve(outbound_receive_maximum=2)
    client = subscribed(server, qos=2, version=version)
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
    client = subscribed(server, qos=2, receive_maximum=1)
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
    client = subscribed(server, qos=2, receive_maximum=3)
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
    assert server.sys_value("dropped/queue_full") == "6"


@pytest.mark.parametrize("setting", ["drop_newest", "drop_oldest", "disconnect"])
def test_b11__full_queue_of_a_connected_client(serve: Serve, setting: str) -> None:
    server = serve(maximum_queued_messages=3, queue_full=setting)
    client = subscribed(server, qos=1, receive_maximum=1)
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


@both_qos
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
