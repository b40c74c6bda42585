"""MQTT 5.0 sections 4.1 to 4.4: session state, network connections, QoS flows, message delivery retry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config import Store
from tests.conformance import wire
from tests.conformance.certificates import Authority
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import identifier, wind
from tests.conformance.hooks import Policy
from tests.conformance.script import SCRIPT, expect_answers
from tests.conformance.server import Server
from tests.conformance.sessions import LASTING, again, resume, subscribed
from tests.conformance.wire import Packet

# --------------------------------------------------------------------------- 4.1: session state


def test_mqtt5_4_1_0_1__state_is_kept_while_connected(server: Server) -> None:
    client = server.connect("c", session_expiry_interval=1)
    client.subscribe("t", ("u/+", 2))
    client.send(wire.publish("u/own", b"half done", qos=2, packet_id=9))
    client.expect("PUBREC", packet_id=9, reason_code=0)
    publisher = server.connect("p")
    publisher.publish("u/1", b"unacknowledged", 2)
    delivered = client.expect("PUBLISH", payload="unacknowledged", qos=2)
    server.advance(3, step=0.5)  # three times the interval
    client.send(wire.pubrec(identifier(delivered)))
    client.expect("PUBREL", packet_id=delivered.packet_id, reason_code=0)
    client.release(9)
    client.expect("PUBLISH", topic_name="u/own", payload="half done", qos=2)
    publisher.publish("t", b"still subscribed")
    client.expect("PUBLISH", payload="still subscribed")
    client.drop()
    client = server.connect("c", clean_start=False, session_present=True)
    client.expect("PUBREL", packet_id=delivered.packet_id)
    client.expect("PUBLISH", payload="half done", dup=True)
    publisher.publish("t", b"subscribed after all")
    client.expect("PUBLISH", payload="subscribed after all")


def test_mqtt5_4_1_0_2__state_goes_with_the_interval(server: Server) -> None:
    subscribed(server, qos=1, session_expiry_interval=1).drop()
    publisher = server.connect("p")
    publisher.publish("t", b"queued", 1, reason=0)
    server.advance(2)
    client = server.connect("s", clean_start=False, session_present=False)
    publisher.publish("t", b"live", 1, reason=0x10)
    client.expect_nothing()


@pytest.mark.parametrize(
    ("interval", "seconds", "present"), [(0, 0, False), (5, 4, True), (5, 6, False), (None, 59, True)]
)
def test_mqtt5_4_1_0_2__disconnect_changes_the_interval(
    server: Server, interval: int | None, seconds: float, present: bool
) -> None:
    client = subscribed(server, qos=1, session_expiry_interval=60)
    client.disconnect(0, None if interval is None else {"session_expiry_interval": interval})
    server.advance(seconds)
    publisher = server.connect("p")
    publisher.publish("t", b"queued", 1, reason=0 if present else 0x10)
    client = server.connect("s", clean_start=False, session_present=present)
    client.expect_messages(*[b"queued"] * present)


# --------------------------------------------------------------------------- 4.2: network connections


def test_mqtt5_4_2_0_1__split_at_every_border(server: Server) -> None:
    stream = b"".join(SCRIPT)
    for at in range(1, len(stream)):
        client = server.client()
        client.send(stream[:at])
        server.settle()
        client.send(stream[at:])
        expect_answers(client)
        client.close()


def test_mqtt5_4_2_0_1__coalesced_and_alone(server: Server) -> None:
    for chunks in ((b"".join(SCRIPT),), SCRIPT):
        client = server.client()
        for chunk in chunks:
            client.send(chunk)
            server.settle()
        expect_answers(client)
        client.close()


@pytest.mark.tcp_only("it brings its own listeners")
def test_mqtt5_4_2_0_1__tcp_tls_and_websocket(serve: Serve, authority: Authority) -> None:
    schemes = ["tcp", "tls", "ws", "wss"]
    server, trust = serve(authority.config(*schemes)), authority.client_side()
    for scheme in schemes:
        client = server.client(
            transport="websocket" if scheme.startswith("ws") else "tcp",
            address=server.address(scheme),
            context=trust if scheme in ("tls", "wss") else None,
        )
        client.send(*SCRIPT)
        expect_answers(client)
        client.close()


# --------------------------------------------------------------------------- 4.3.1: QoS 0


def test_mqtt5_4_3_1_1__first_byte_of_every_qos_0_delivery(server: Server) -> None:
    publisher = server.connect("p", will=wire.will("will", b"will", qos=2, retain=True))
    client = server.connect("s", session_expiry_interval=LASTING)
    client.subscribe("#")
    for qos in (0, 1, 2):
        publisher.publish("live", f"live {qos}", qos, dup=qos > 0)
        publisher.publish("kept", f"kept {qos}", qos, dup=qos > 0, retain=True)
    publisher.drop()
    client.expect_messages(
        *("live 0", "kept 0", "live 1", "kept 1", "live 2", "kept 2", "will"), first=0x30, qos=0
    )
    keeping = server.connect("k")
    keeping.subscribe("#", retain_as_published=True)
    found = keeping.expect_messages(*sorted(["kept 2", "will"]), first=0x31, packet_id=None)
    assert {packet.dup for packet in found} == {False}
    again(client, server).expect_nothing()


# --------------------------------------------------------------------------- 4.3.2, 4.3.3: it sends


def check_unused_identifiers(server: Server, qos: int) -> None:
    """50 unacknowledged messages have 50 identifiers; two that are held are passed over at the wrap."""
    client = subscribed(server, qos=qos)
    publisher = server.connect("p")
    for n in range(50):
        publisher.publish("t", f"{n}", qos)
    found = client.expect_messages(*(f"{n}" for n in range(50)), qos=qos)
    identifiers = [identifier(packet) for packet in found]
    assert identifiers == list(range(1, 51))
    for packet in found[2:]:
        client.ack(packet)
    client.fence()
    wind(server, "s", 65533)
    for n in range(4):
        publisher.publish("t", f"{n}", qos)
    found = client.expect_messages("0", "1", "2", "3", qos=qos, dup=False)
    assert [packet.packet_id for packet in found] == [65534, 65535, 3, 4]


def test_mqtt5_4_3_2_1__unused_identifiers_at_qos_1(server: Server) -> None:
    check_unused_identifiers(server, 1)


def test_mqtt5_4_3_3_1__unused_identifiers_at_qos_2(server: Server) -> None:
    check_unused_identifiers(server, 2)


@pytest.mark.parametrize(
    ("answers", "freed"),
    [
        ([], False),
        ([wire.pubrec(1)], False),
        ([wire.pubrec(1, 0x10)], False),
        ([wire.pubrec(1), wire.pubcomp(1)], True),
        ([wire.pubrec(1, 0x80)], True),
        ([wire.pubrec(1, 0x97)], True),
    ],
)
def test_mqtt5_4_3_3_1__free_after_pubcomp_or_a_refusal(
    server: Server, answers: list[bytes], freed: bool
) -> None:
    client = subscribed(server, qos=2)
    publisher = server.connect("p")
    publisher.publish("t", b"first", 2)
    client.expect("PUBLISH", packet_id=1)
    for answer in answers:
        client.send(answer)
        client.drain()
    wind(server, "s", 65535)
    publisher.publish("t", b"second", 2)
    client.expect("PUBLISH", payload="second", packet_id=1 if freed else 2, dup=False)


def check_first_byte(server: Server, qos: int) -> None:
    """Live, downgraded, retained and queued: never DUP, whatever the publisher set."""
    client = server.connect("s", session_expiry_interval=LASTING)
    client.subscribe("#", qos=qos, retain_as_published=True)
    publisher = server.connect("p")
    for sent in range(qos, 3):
        for dup in (False, True):
            publisher.publish("t", f"{sent}{dup}", sent, dup=dup)
            client.expect("PUBLISH", payload=f"{sent}{dup}", first=0x30 | qos << 1)
            publisher.publish("r", f"{sent}{dup}", sent, dup=dup, retain=True)
            client.expect("PUBLISH", payload=f"{sent}{dup}", first=0x31 | qos << 1)
    late = server.connect("late", session_expiry_interval=LASTING)
    late.subscribe("#", qos=qos)
    late.ack(late.expect("PUBLISH", topic_name="r", first=0x31 | qos << 1))
    late.drop()
    publisher.publish("t", b"queued", 2, dup=True)
    resume(server, "late").expect("PUBLISH", payload="queued", first=0x30 | qos << 1)


def test_mqtt5_4_3_2_2__first_byte_at_qos_1(server: Server) -> None:
    check_first_byte(server, 1)


def test_mqtt5_4_3_3_2__first_byte_at_qos_2(server: Server) -> None:
    check_first_byte(server, 2)


def delivery(server: Server, qos: int, payload: str = "x") -> tuple[Raw, Packet]:
    """Client "s" and the PUBLISH that it has just been sent and not answered."""
    client = subscribed(server, qos=qos)
    server.connect("p").publish("t", payload, qos)
    return client, client.expect("PUBLISH", payload=payload, qos=qos, dup=False)


def expect_resend(client: Raw, packet: Packet) -> Packet:
    """The same message with the same identifier, DUP 1, and nothing else."""
    found = client.expect(
        "PUBLISH", packet_id=packet.packet_id, payload=packet.payload, qos=packet.qos, dup=True,
        first=packet.first | 8,
    )  # fmt: skip
    client.expect_nothing()
    return found


def test_mqtt5_4_3_2_3__unacknowledged_until_puback(server: Server) -> None:
    client, packet = delivery(server, 1)
    client = again(client, server)
    client.ack(expect_resend(client, packet))
    again(client, server).expect_nothing()


def test_mqtt5_4_3_2_3__puback_for_qos_2_is_a_breach(server: Server) -> None:
    client, packet = delivery(server, 2)
    client.send(wire.puback(identifier(packet)))
    client.expect_close(0x82)
    client = again(client, server)
    client.ack(expect_resend(client, packet))
    client.expect_nothing()


def test_mqtt5_4_3_3_3__unacknowledged_until_pubrec(server: Server) -> None:
    client, packet = delivery(server, 2)
    for _ in range(2):
        client = again(client, server)
        expect_resend(client, packet)
    client.send(wire.pubrec(identifier(packet)))
    client.expect("PUBREL", packet_id=packet.packet_id)


@pytest.mark.parametrize("reason", [None, 0x00, 0x10])
def test_mqtt5_4_3_3_4__pubrel_follows_pubrec(server: Server, reason: int | None) -> None:
    client, packet = delivery(server, 2)
    for _ in range(2):  # the second is a repetition
        client.send(wire.pubrec(identifier(packet), reason))
        client.expect("PUBREL", packet_id=packet.packet_id, reason_code=0, first=0x62)
    client.send(wire.pubcomp(identifier(packet)))
    client.expect_nothing()


@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99])
def test_mqtt5_4_3_3_4__no_pubrel_after_a_refusal(server: Server, reason: int) -> None:
    client = subscribed(server, qos=2, receive_maximum=1)
    publisher = server.connect("p")
    publisher.publish("t", b"1", 2)
    publisher.publish("t", b"2", 2)
    client.send(wire.pubrec(identifier(client.expect("PUBLISH", payload="1")), reason))
    client.expect("PUBLISH", payload="2")  # the quota is free
    client.expect_nothing()
    client.send(wire.pubrec(1))  # and so is the identifier
    client.expect("PUBREL", packet_id=1, reason_code=0x92)


def released(server: Server) -> tuple[Raw, Packet]:
    """A QoS 2 delivery whose PUBREL was sent, and that waits for PUBCOMP."""
    client, packet = delivery(server, 2)
    client.send(wire.pubrec(identifier(packet)))
    client.expect("PUBREL", packet_id=packet.packet_id)
    return client, packet


def test_mqtt5_4_3_3_5__pubrel_unacknowledged_until_pubcomp(server: Server) -> None:
    client, packet = released(server)
    for _ in range(2):
        client = again(client, server)
        client.expect("PUBREL", packet_id=packet.packet_id, reason_code=0, first=0x62)
        client.expect_nothing()
    client.send(wire.pubcomp(identifier(packet)))
    again(client, server).expect_nothing()


def test_mqtt5_4_3_3_6__publish_is_not_resent_after_pubrec(server: Server) -> None:
    client, packet = released(server)
    for _ in range(3):
        client = again(client, server)
        assert [one.name for one in client.drain()] == ["PUBREL"]
    client.send(wire.pubrec(identifier(packet)))
    client.expect("PUBREL", packet_id=packet.packet_id, reason_code=0)
    client.send(wire.pubcomp(identifier(packet)))
    client.expect_nothing()


def expiring_delivery(server: Server) -> tuple[Raw, Packet]:
    client = subscribed(server, qos=2)
    server.connect("p").publish("t", b"x", 2, message_expiry_interval=1)
    return client, client.expect("PUBLISH", payload="x", message_expiry_interval=1)


def test_mqtt5_4_3_3_7__no_expiry_once_sent(server: Server) -> None:
    client, packet = expiring_delivery(server)
    client.drop()
    server.advance(3)
    client = resume(server)
    found = expect_resend(client, packet)
    assert found.properties == {"message_expiry_interval": 0}
    client.ack(found)
    again(client, server).expect_nothing()


def test_mqtt5_4_3_3_7__no_expiry_once_sent_while_connected(server: Server) -> None:
    client, packet = expiring_delivery(server)
    server.advance(3)
    client.ack(packet)
    client.expect_nothing()


# --------------------------------------------------------------------------- 4.3.2, 4.3.3: it receives


def check_owned_when_acknowledged(server: Server, qos: int) -> None:
    """The answer has been read, and the publisher's connection is gone in the next moment."""
    subscribed(server, qos=qos).drop()
    publisher = server.connect("p", session_expiry_interval=LASTING)
    publisher.send(wire.publish("t", b"owned", qos=qos, packet_id=0x1234))
    publisher.expect("PUBACK" if qos == 1 else "PUBREC", packet_id=0x1234, reason_code=0)
    publisher.reset()
    if qos == 2:
        resume(server, "p").release(0x1234)
    resume(server).expect("PUBLISH", payload="owned", qos=qos, dup=False)


def check_owned_beyond_the_process(serve: Serve, tmp_path: Path, qos: int) -> None:
    """With a store what was acknowledged is there after a restart (after kill -9: tests/faults)."""
    server = serve(store=Store(path=str(tmp_path / "broker.db")), grace_time=0.05)
    subscribed(server, qos=qos).drop()
    publisher = server.connect("p", session_expiry_interval=LASTING)
    publisher.send(wire.publish("t", b"owned", qos=qos, packet_id=0x1234))
    publisher.expect("PUBACK" if qos == 1 else "PUBREC", packet_id=0x1234, reason_code=0)
    publisher.reset()
    server.restart()
    if qos == 2:
        resume(server, "p").release(0x1234)
    resume(server).expect("PUBLISH", payload="owned", qos=qos, dup=False)


def test_mqtt5_4_3_2_4__puback_means_stored(serve: Serve, tmp_path: Path) -> None:
    check_owned_beyond_the_process(serve, tmp_path, 1)


def test_mqtt5_4_3_3_8__pubrec_means_stored(serve: Serve, tmp_path: Path) -> None:
    check_owned_beyond_the_process(serve, tmp_path, 2)


def test_mqtt5_4_3_2_4__puback_means_owned(server: Server) -> None:
    check_owned_when_acknowledged(server, 1)


def test_mqtt5_4_3_3_8__pubrec_means_owned(server: Server) -> None:
    check_owned_when_acknowledged(server, 2)


def test_mqtt5_4_3_2_5__after_puback_a_new_message(server: Server) -> None:
    watcher = server.watch("t", qos=1)
    publisher = server.connect("p")
    for n, dup in enumerate((False, True, True)):
        publisher.send(wire.publish("t", b"%d" % n, qos=1, packet_id=7, dup=dup))
        publisher.expect("PUBACK", packet_id=7, reason_code=0)
    watcher.expect_messages("0", "1", "2", qos=1, dup=False)


def test_mqtt5_4_3_3_9__after_a_refusal_a_new_message(serve: Serve) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    watcher = server.watch("#")
    publisher = server.connect("p")
    publisher.send(wire.publish("no", b"1", qos=2, packet_id=9))
    publisher.expect("PUBREC", packet_id=9, reason_code=0x87)
    publisher.send(wire.pubrel(9))
    publisher.expect("PUBCOMP", packet_id=9, reason_code=0x92)
    publisher.send(wire.publish("no", b"2", qos=2, packet_id=9))
    publisher.expect("PUBREC", packet_id=9, reason_code=0x87)
    publisher.publish("yes", b"3", 2, packet_id=9, reason=0)
    watcher.expect_messages(("yes", "3"), qos=2)


def test_mqtt5_4_3_3_10__pubrec_again_and_one_delivery(server: Server) -> None:
    watcher = server.watch("t")
    publisher = server.connect("p", session_expiry_interval=LASTING)
    for dup in (False, True, True):
        publisher.send(wire.publish("t", b"once", qos=2, packet_id=9, dup=dup))
        publisher.expect("PUBREC", packet_id=9, reason_code=0)
    publisher = again(publisher, server)
    publisher.send(wire.publish("t", b"once", qos=2, packet_id=9, dup=True))
    publisher.expect("PUBREC", packet_id=9, reason_code=0)
    watcher.expect_nothing()
    publisher.release(9)
    watcher.expect_messages("once", qos=2)


def test_mqtt5_4_3_3_11__pubcomp_follows_pubrel(server: Server) -> None:
    publisher = server.connect("p", session_expiry_interval=LASTING)
    for n in range(2):
        publisher.send(wire.publish("t", b"x", qos=2, packet_id=9))
        publisher.expect("PUBREC", packet_id=9)
        publisher = again(publisher, server) if n else publisher
        for reason in (0, 0x92):
            publisher.send(wire.pubrel(9))
            publisher.expect("PUBCOMP", packet_id=9, reason_code=reason)
    again(publisher, server).release(9, reason=0x92)


def test_mqtt5_4_3_3_12__after_pubcomp_a_new_message(server: Server) -> None:
    watcher = server.watch("t")
    publisher = server.connect("p")
    publisher.publish("t", b"1", 2, packet_id=9)
    publisher.publish("t", b"2", 2, packet_id=9, dup=True)
    watcher.expect_messages("1", "2", qos=2)


def test_mqtt5_4_3_3_13__the_flow_goes_on_after_expiry(server: Server) -> None:
    watcher = server.watch("t")
    publisher = server.connect("p")
    publisher.send(wire.publish("t", b"x", qos=2, packet_id=9, properties={"message_expiry_interval": 1}))
    publisher.expect("PUBREC", packet_id=9, reason_code=0)
    server.advance(3)
    publisher.send(wire.publish("t", b"x", qos=2, packet_id=9, properties={"message_expiry_interval": 1}))
    publisher.expect("PUBREC", packet_id=9, reason_code=0)
    publisher.release(9)
    watcher.expect_nothing()  # the message itself has expired: MQTT-3.3.2-5


# --------------------------------------------------------------------------- 4.4: message delivery retry


def test_mqtt5_4_4_0_1__no_resend_while_connected(server: Server) -> None:
    client, _ = delivery(server, 1)
    server.connect("p").publish("t", b"2", 1)
    client.expect("PUBLISH", payload="2", dup=False)
    server.advance(30, step=1)
    client.expect_nothing()


def test_mqtt5_4_4_0_1__resend_in_order_before_new_messages(server: Server) -> None:
    client = subscribed(server, qos=2)
    publisher = server.connect("p")
    for n, qos in enumerate((1, 2, 2, 1, 2)):
        publisher.publish("t", f"{n}", qos)
    sent = client.expect_messages("0", "1", "2", "3", "4")
    client.send(wire.pubrec(identifier(sent[2])))
    client.expect("PUBREL", packet_id=sent[2].packet_id)
    client.drop()
    publisher.publish("t", b"new 1", 1)
    publisher.publish("t", b"new 2", 2)
    client = resume(server)
    for n, qos in enumerate((1, 2, 0, 1, 2)):
        if qos:
            client.expect("PUBLISH", payload=f"{n}", qos=qos, packet_id=sent[n].packet_id, dup=True)
        else:
            client.expect("PUBREL", packet_id=sent[n].packet_id)
    client.expect("PUBLISH", payload="new 1", qos=1, dup=False)
    client.expect("PUBLISH", payload="new 2", qos=2, dup=False)
    client.expect_nothing()


def test_mqtt5_4_4_0_1__not_in_a_new_session(server: Server) -> None:
    client, _ = delivery(server, 2)
    client.drop()
    server.connect("s", session_present=False).expect_nothing()


def test_mqtt5_4_4_0_1__the_client_resends(server: Server) -> None:
    watcher = server.watch("t")
    publisher = server.connect("p", session_expiry_interval=LASTING)
    for _ in range(3):
        publisher.send(wire.publish("t", b"x", qos=2, packet_id=5, dup=True))
        publisher.expect("PUBREC", packet_id=5, reason_code=0)
        publisher = again(publisher, server)
    publisher.release(5)
    publisher = again(publisher, server)
    publisher.release(5, reason=0x92)
    watcher.expect_messages("x", qos=2)


@pytest.mark.parametrize(
    ("qos", "answer", "reason"),
    [(1, wire.puback, 0x80), (1, wire.puback, 0x97), (2, wire.pubrec, 0x97), (2, wire.pubrec, 0x80)],
)
def test_mqtt5_4_4_0_2__a_refusal_acknowledges(
    server: Server, qos: int, answer: Callable[[int, int], bytes], reason: int
) -> None:
    client, packet = delivery(server, qos)
    client.send(answer(identifier(packet), reason))
    client.expect_nothing()
    again(client, server).expect_nothing()
