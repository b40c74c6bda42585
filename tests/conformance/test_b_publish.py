"""Behaviours around PUBLISH: identifiers, overlaps, retained messages, expiry, aliases, `$` topics, answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy, Slow
from tests.conformance.server import Server
from tests.conformance.wire import Packet

SYS = "$SYS/broker/"
both_versions = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])


def subscribed(
    server: Server, topic_filter: str, client_id: str = "s", qos: int = 2, version: int = 5, **named: Any
) -> Raw:
    """A client with one subscription and a session that lasts; *named* are properties of CONNECT."""
    if version == 5:
        named = {"session_expiry_interval": 600, **named}
    client = server.connect(client_id, version, clean_start=version == 5, **named)
    client.subscribe(topic_filter, qos=qos)
    return client


def resumed(server: Server, client_id: str = "s", version: int = 5, **named: Any) -> Raw:
    if version == 5:
        named = {"session_expiry_interval": 600, **named}
    return server.connect(client_id, version, clean_start=False, session_present=True, **named)


def late(server: Server, topic_filter: str = "#", qos: int = 2, version: int = 5, **options: Any) -> Raw:
    """A new client that has just subscribed, so that retained messages are the next it gets."""
    client = server.connect(f"late-{len(server.clients)}", version)
    client.subscribe(topic_filter, qos=qos, **options)
    return client


def identifiers(packet: Packet) -> list[int]:
    return packet.properties.get("subscription_identifier", [])  # type: ignore[no-any-return]


# =========================================================================== B09 packet identifiers


def test_b09__two_spaces(server: Server) -> None:
    """An identifier of the client and the same one of the server have nothing to do with each other."""
    client = subscribed(server, "t")
    client.send(wire.publish("own", b"x", qos=2, packet_id=1))  # held
    client.expect("PUBREC", packet_id=1)
    server.connect("p").publish("t", b"x", 2)
    client.expect("PUBLISH", packet_id=1, qos=2)  # in flight
    client.send(wire.pubrec(1), wire.pubrel(1), wire.subscribe(1, "other"), wire.pubcomp(1))
    client.expect("PUBREL", packet_id=1, reason_code=0x00)
    client.expect("PUBCOMP", packet_id=1, reason_code=0x00)
    client.expect("SUBACK", packet_id=1, reason_codes=[0])
    client.expect_nothing()


def test_b09__next_after_the_last(server: Server) -> None:
    client, publisher = subscribed(server, "t", qos=1), server.connect("p")
    for packet_id in range(1, 6):  # not the smallest free one
        publisher.publish("t", b"x", 1)
        client.ack(client.expect("PUBLISH", packet_id=packet_id))


@pytest.mark.tcp_only("65535 messages need no other transport")
def test_b09__all_65535_in_use(serve: Serve) -> None:
    """They wrap to 1, those in flight are passed over, and with none left sending stops and goes on later."""
    server = serve(outbound_receive_maximum=65535, maximum_queued_messages=70_000)
    client = subscribed(server, "t", qos=1)

    async def publish(count: int) -> None:
        for at in range(count):
            await server.broker.publish("t", b"", qos=1)
            if at % 100 == 0:
                await asyncio.sleep(0)

    server.run(publish(65535 + 2), timeout=60)
    size = len(wire.publish("t", qos=1))
    data = b""
    while len(data) < 65535 * size:  # too many to parse one by one
        data += client.transport.recv(2)
    assert data == b"".join(wire.publish("t", qos=1, packet_id=one) for one in range(1, 65536))
    client.expect_nothing()
    client.send(wire.puback(7))
    client.expect("PUBLISH", packet_id=7)
    client.expect_nothing()
    client.send(wire.puback(3), wire.puback(5))
    client.expect("PUBLISH", packet_id=3)
    server.run(publish(1))
    client.expect("PUBLISH", packet_id=5)


@pytest.mark.parametrize(
    ("qos", "answers"),
    [
        (1, [wire.puback(1)]),
        (1, [wire.puback(1, 0x87)]),
        (2, [wire.pubrec(1), wire.pubcomp(1)]),
        (2, [wire.pubrec(1, 0x87)]),
    ],
)
def test_b09__in_flight_until(server: Server, qos: int, answers: list[bytes]) -> None:
    """Until the last of *answers* the message comes again after a reconnect; then it does not."""
    client = subscribed(server, "t", qos=qos)
    server.connect("p").publish("t", b"x", qos)
    client.expect("PUBLISH", packet_id=1, qos=qos, dup=False)
    client.drop()
    for raw in answers:
        client = resumed(server)
        client.expect("PUBREL" if raw[0] == 0x70 else "PUBLISH", packet_id=1)
        client.send(raw)
        client.drain()
        client.drop()
    resumed(server).expect_nothing()


def test_b09__too_large_frees_its_identifier(server: Server) -> None:
    """Neither identifier nor slot is held by a message that was dropped before it was sent."""
    client = subscribed(server, "t", maximum_packet_size=50, receive_maximum=1)
    publisher = server.connect("p")
    for qos in (1, 2):
        publisher.publish("t", b"x" * 60, qos, reason=0x00)
        publisher.publish("t", b"small", qos)
        client.ack(client.expect("PUBLISH", payload="small", qos=qos))
    client.drop()
    resumed(server).expect_nothing()


def test_b09__identifiers_survive_reconnects(server: Server) -> None:
    client, publisher = subscribed(server, "t"), server.connect("p")
    for at in range(3):
        publisher.publish("t", f"{at}", 1 + at % 2)
    client.expect_messages("0", "1", "2")
    client.send(wire.publish("own", b"x", qos=2, packet_id=9))
    client.expect("PUBREC")
    client.drop()
    client = resumed(server)
    for packet_id in (1, 2, 3):
        client.expect("PUBLISH", packet_id=packet_id, dup=True)
    publisher.publish("t", b"3", 1)
    client.expect("PUBLISH", packet_id=4, dup=False)
    client.release(9, 0x00)


def test_b09__clean_start_frees_identifiers(server: Server) -> None:
    client = subscribed(server, "t")
    server.connect("p").publish("t", b"x", 1)
    client.expect("PUBLISH", packet_id=1)
    client.send(wire.publish("t", b"x", qos=2, packet_id=9))
    client.expect("PUBREC")
    client.drop()
    client = subscribed(server, "t")
    client.expect_nothing()
    client.release(9, 0x92)
    client.subscribe("u", packet_id=9)
    server.connect("p").publish("t", b"y", 1)
    client.expect("PUBLISH", packet_id=1, dup=False, payload="y")


@both_versions
def test_b09__no_memory_of_inbound_qos_1(server: Server, version: int) -> None:
    watcher, client = server.watch(), server.connect("p", version)
    for dup in (False, False, True):
        client.publish("t", b"x", 1, packet_id=5, dup=dup)
    watcher.expect_messages(*["x"] * 3)


@both_versions
def test_b09__a_repeated_qos_2_identifier_is_a_resend(server: Server, version: int) -> None:
    """Whatever DUP, topic and payload say; after PUBREL the identifier is new."""
    watcher, client = server.watch(), server.connect("p", version)
    for topic_name, payload, dup in (("t", b"x", False), ("t", b"x", True), ("u", b"y", False)):
        client.send(wire.publish(topic_name, payload, qos=2, packet_id=5, dup=dup, version=version))
        client.expect("PUBREC", packet_id=5, reason_code=0x00)
    watcher.expect_nothing()
    client.release(5)
    client.publish("t", b"z", 2, packet_id=5, dup=True)
    watcher.expect_messages(("t", "x"), ("t", "z"))


@both_versions
@pytest.mark.parametrize("kind", ["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"])
def test_b09__identifier_held_by_qos_2(server: Server, version: int, kind: str) -> None:
    watcher, client = server.watch(), server.connect("p", version)
    client.send(wire.publish("t", b"x", qos=2, packet_id=5, version=version))
    client.expect("PUBREC", packet_id=5)
    raw, answer, refusal = {
        "PUBLISH": (
            wire.publish("t", b"y", qos=1, packet_id=5, version=version), "PUBACK", {"reason_code": 0x91}
        ),
        "SUBSCRIBE": (
            wire.subscribe(5, "a", "b", version=version), "SUBACK", {"reason_codes": [0x91, 0x91]}
        ),
        "UNSUBSCRIBE": (
            wire.unsubscribe(5, "a", "b", version=version), "UNSUBACK", {"reason_codes": [0x91, 0x91]}
        ),
    }[kind]  # fmt: skip
    client.send(raw)
    if version == 4:
        client.expect_close()
        watcher.expect_nothing()
        return
    client.expect(answer, packet_id=5, **refusal)
    client.release(5)
    watcher.expect_messages("x")
    server.connect("q").publish("a", b"not subscribed")
    client.expect_nothing()


# =========================================================================== B13 overlapping subscriptions


@both_versions
def test_b13__one_copy_at_the_highest_qos(server: Server, version: int) -> None:
    """QoS is the lower of the published and the highest granted; identifiers of all, repeats included."""
    client, publisher = server.connect("s", version), server.connect("p")
    for topic_filter, qos, identifier in (("t/#", 0, 3), ("t/a", 1, 5), ("+/a", 1, 3)):
        named = {"subscription_identifier": identifier} if version == 5 else {}
        client.subscribe(topic_filter, qos=qos, **named)
    for qos in (0, 1, 2):
        publisher.publish("t/a", f"{qos}", qos, retain=True)
        packet = client.expect("PUBLISH", payload=f"{qos}", qos=min(qos, 1), retain=False)
        assert sorted(identifiers(packet)) == ([3, 3, 5] if version == 5 else [])
    client.expect_nothing()


@pytest.mark.parametrize("with_rap", ["t/#", "t/a"])
def test_b13__retain_as_published_of_any(server: Server, with_rap: str) -> None:
    client = server.connect("s")
    for topic_filter in ("t/#", "t/a"):
        client.subscribe(topic_filter, qos=1, retain_as_published=topic_filter == with_rap)
    publisher = server.connect("p")
    for retain in (True, False):
        publisher.publish("t/a", b"x", 1, retain=retain)
        client.expect("PUBLISH", retain=retain)
        client.expect_nothing()


def test_b13__no_local_takes_its_subscription_out(server: Server) -> None:
    """QoS, RETAIN and identifiers come from what No Local leaves; if it leaves nothing, nothing comes."""
    client = server.connect("s")
    client.subscribe("t/#", qos=2, no_local=True, retain_as_published=True, subscription_identifier=1)
    client.subscribe("t/a", qos=1, subscription_identifier=2)
    client.publish("t/a", b"own", 2, retain=True)
    client.ack(client.expect("PUBLISH", payload="own", qos=1, retain=False, subscription_identifier=[2]))
    client.publish("t/b", b"own", 2, reason=(0x00, 0x10))
    client.expect_nothing()
    server.connect("p").publish("t/a", b"other", 2, retain=True)
    client.expect("PUBLISH", payload="other", qos=2, retain=True, subscription_identifier=[1, 2])
    client.expect_nothing()


@both_versions
def test_b13__shared_matches_are_separate(server: Server, version: int) -> None:
    client = server.connect("s", version)
    filters = ("t/a", "t/+", "$share/g/t/a", "$share/h/t/a", "$share/g/t/+")
    for at, topic_filter in enumerate(filters, 1):
        named = {"subscription_identifier": at} if version == 5 else {}
        client.subscribe(topic_filter, **named)
    server.connect("p").publish("t/a", b"x")
    found = client.expect_messages(*["x"] * 4)
    wanted = [[1, 2], [3], [4], [5]] if version == 5 else [[]] * 4
    assert sorted(sorted(identifiers(packet)) for packet in found) == wanted


@both_versions
def test_b13__retained_messages_per_filter(server: Server, version: int) -> None:
    server.connect("p").publish("t/a", b"x", 1, retain=True)
    client = server.connect("s", version)
    named = {"subscription_identifier": 9} if version == 5 else {}
    client.subscribe(("t/#", 0), ("t/a", 1), **named)
    found = client.expect_messages("x", "x", retain=True)
    assert sorted(packet.qos or 0 for packet in found) == [0, 1]
    assert [identifiers(packet) for packet in found] == [[9] if version == 5 else []] * 2


# =========================================================================== B14 retained messages


@pytest.mark.parametrize(
    ("topic_filter", "handling", "new", "again"),
    [
        ("t", 0, True, True),
        ("t", 1, True, False),
        ("t", 2, False, False),
        ("$share/g/t", 0, False, False),
        ("$share/g/t", 1, False, False),
        ("$share/g/t", 2, False, False),
    ],
)
@pytest.mark.parametrize("rap", [False, True])
def test_b14__sent_by_subscribe(
    server: Server, topic_filter: str, handling: int, new: bool, again: bool, rap: bool
) -> None:
    """A resumed session counts as "again" too; RETAIN of these copies is 1 whatever RAP says."""
    options = {"retain_handling": handling, "retain_as_published": rap}
    server.connect("p").publish("t", b"x", 1, retain=True)
    client = server.connect("s", session_expiry_interval=60)
    for wanted in (new, again):
        client.subscribe(topic_filter, **options)
        client.expect_messages(*["x"] * wanted, retain=True)
    client.drop()
    client = resumed(server)
    client.subscribe(topic_filter, **options)
    client.expect_messages(*["x"] * again, retain=True)


def test_b14__sent_by_subscribe_to_3_1_1(server: Server) -> None:
    server.connect("p").publish("t", b"x", 1, retain=True)
    client = subscribed(server, "t", version=4)
    client.ack(client.expect("PUBLISH", payload="x", retain=True))
    client.subscribe("t", qos=0)
    client.expect("PUBLISH", payload="x", retain=True)
    client.drop()
    client = resumed(server, version=4)
    client.subscribe("t", qos=0)
    client.expect_messages("x", retain=True)


@both_versions
@pytest.mark.parametrize("rap", [False, True])
def test_b14__retain_of_live_and_queued_copies(server: Server, version: int, rap: bool) -> None:
    if version == 4 and rap:  # 3.1.1 has no such option: always 0
        rap = False
    named: dict[str, Any] = {"session_expiry_interval": 60} if version == 5 else {}
    client = server.connect("s", version, clean_start=False, **named)
    client.subscribe("t", qos=1, retain_as_published=rap)
    publisher = server.connect("p")
    for retain in (True, False):
        publisher.publish("t", b"live", 1, retain=retain)
        client.ack(client.expect("PUBLISH", payload="live", retain=retain and rap))
    client.drop()
    for retain in (True, False):
        publisher.publish("t", b"queued", 1, retain=retain)
    client = resumed(server, version=version)
    for retain in (True, False):
        client.expect("PUBLISH", payload="queued", retain=retain and rap)


def test_b14__a_refused_filter_brings_nothing(serve: Serve) -> None:
    server = serve(hooks=[Policy(subscribe={"no/#": 0x87})])
    publisher = server.connect("p")
    for topic_name in ("no/a", "yes"):
        publisher.publish(topic_name, b"x", retain=True)
    client = server.connect("s")
    client.subscribe("no/#", "yes", granted=[0x87, 0])
    client.expect_messages(("yes", "x"))
    client = server.connect("s3", 4)
    client.subscribe("no/#", "yes", granted=[0x80, 0])
    client.expect_messages(("yes", "x"))


@both_versions
def test_b14__lower_qos_of_stored_and_granted(server: Server, version: int) -> None:
    publisher = server.connect("p")
    for stored in (0, 1, 2):
        publisher.publish("t", b"x", stored, retain=True)
        for granted in (0, 1, 2):
            late(server, "t", granted, version).expect_messages("x", qos=min(stored, granted), retain=True)


def test_b14__window_and_queue(server: Server) -> None:
    """Retained copies of QoS 1 and 2 wait for slots like others, and for the next connection."""
    publisher = server.connect("p")
    for at in range(5):
        publisher.publish(f"t/{at}", f"{at}", 1, retain=True)
    client = server.connect("s", receive_maximum=2, session_expiry_interval=60)
    client.subscribe("t/#", qos=1)
    found = client.drain()
    assert len(found) == 2
    client.ack(found[0])
    found += client.drain()
    assert len(found) == 3
    client.drop()
    found[1:] = resumed(server).drain()
    assert sorted(packet.payload or b"" for packet in found) == [b"0", b"1", b"2", b"3", b"4"]
    assert all(packet.retain for packet in found)
    assert [packet.dup for packet in found] == [False, True, True, False, False]


def test_b14__properties_of_the_original(server: Server) -> None:
    kept = {
        "payload_format_indicator": 1, "content_type": "c", "response_topic": "r", "correlation_data": b"\0",
        "user_property": [("b", "1"), ("a", "2")],
    }  # fmt: skip
    server.connect("p").publish("t", b"x", 1, retain=True, message_expiry_interval=60, topic_alias=1, **kept)
    server.advance(10)
    late(server).expect("PUBLISH", properties={**kept, "message_expiry_interval": 50})
    late(server, version=4).expect("PUBLISH", payload="x", retain=True, properties={})


def test_b14__snapshot_and_subscription_are_one_step(server: Server) -> None:
    """Nothing is lost, and nothing old comes after something newer, however the two clients race."""
    publisher = server.connect("p")
    for at in range(30):
        topic_name = f"t/{at}"
        publisher.publish(topic_name, b"1", retain=True)
        client = server.connect(f"s-{at}")
        client.send(wire.subscribe(1, (topic_name, wire.options(1))))
        publisher.send(*(wire.publish(topic_name, b"%d" % n, retain=True) for n in range(2, 6)))
        publisher.fence()
        suback, *found = client.drain()
        numbers = [int(packet.payload or b"") for packet in found]
        assert suback.name == "SUBACK" and [packet.retain for packet in found] == [True] + [False] * (
            len(found) - 1
        )
        assert numbers == list(range(numbers[0], 6))


def test_b14__snapshot_after_a_slow_authorization(serve: Serve) -> None:
    """What is published while the SUBSCRIBE waits comes once, as retained message."""
    server = serve(hooks=[Slow("slow")])
    publisher = server.connect("p")
    publisher.publish("slow/t", b"old", retain=True)
    client = server.connect("s")
    client.send(wire.subscribe(1, "slow/#"))
    publisher.publish("slow/t", b"new", retain=True)
    client.expect("SUBACK")
    newest = client.drain()[-1]
    assert newest.payload == b"new"
    publisher.publish("slow/t", b"newer", retain=True)
    client.expect_messages("newer", retain=False)


def test_b14__order_between_topics_is_stable(server: Server) -> None:
    publisher = server.connect("p")
    for name in ("t/c", "t/a", "u/a", "t/b", "a"):
        publisher.publish(name, b"x", retain=True)
    orders = [[packet.topic_name for packet in late(server).drain()] for _ in range(3)]
    assert len(orders[0]) == 5 and orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("publisher_version", [4, 5])
def test_b14__empty_payload_deletes(server: Server, publisher_version: int) -> None:
    """It is forwarded live, with RETAIN 1 for RAP 1, and never stored, even with properties."""
    publisher = server.connect("p", publisher_version)
    live = {rap: server.connect(f"live-{rap}") for rap in (False, True)}
    for rap, client in live.items():
        client.subscribe("t", retain_as_published=rap)
    named = {"message_expiry_interval": 60, "content_type": "c"} if publisher_version == 5 else {}
    for payload in (b"x", b"", b""):
        publisher.publish("t", payload, 1, retain=True, **named)
        for rap, client in live.items():
            client.expect("PUBLISH", payload=payload, retain=rap)
    assert server.retained() == []


def test_b14__qos_0_is_stored(server: Server) -> None:
    server.connect("p").publish("t", b"x", 0, retain=True)
    assert server.retained() == [("t", b"x")]


def test_b14__replaced_by_exact_topic_only(server: Server) -> None:
    names = ["t", "T", "t/", "/t", "t//", "t ", "\u00e9", "e\u0301", "\ufefft"]
    publisher = server.connect("p")
    for at, name in enumerate(names):
        publisher.publish(name, b"%d" % at, retain=True)
    assert server.retained() == sorted((name, b"%d" % at) for at, name in enumerate(names))
    for name in names:
        publisher.publish(name, b"new", retain=True)
    assert server.retained() == sorted((name, b"new") for name in names)


def test_b14__own_retained_message_and_no_local(server: Server) -> None:
    """The publisher's ClientID is stored, so a No Local SUBSCRIBE does not bring what is its own."""
    server.connect("a").publish("t/a", b"a", 1, retain=True)
    server.connect("b").publish("t/b", b"b", 1, retain=True)
    client = server.connect("a")
    client.subscribe("t/#", no_local=True)
    client.expect_messages(("t/b", "b"))
    client.subscribe("t/#", no_local=False)
    assert len(client.drain()) == 2


@pytest.mark.parametrize("limit", [{"maximum_retained_messages": 1}, {"maximum_retained_bytes": 30}])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b14__above_the_limit(serve: Serve, qos: int, limit: dict[str, int]) -> None:
    """Refused and not routed; QoS 0 is dropped and counted; replacing and deleting goes on."""
    server = serve(**limit)
    publisher, watcher = server.connect("p"), server.watch("t/#")
    publisher.publish("t/1", b"x" * 10, 1, retain=True)
    watcher.drain()
    publisher.publish("t/2", b"x" * 20, qos, retain=True, reason=0x97)
    watcher.expect_nothing()
    if qos == 0:
        assert late(server, f"{SYS}dropped/refused").expect("PUBLISH").payload == b"1"
    publisher.publish("t/1", b"y" * 10, qos, retain=True)
    publisher.publish("t/1", b"", qos, retain=True)
    publisher.publish("t/3", b"", qos, retain=True)
    publisher.publish("t/2", b"z", qos, retain=True)
    watcher.expect_messages(("t/1", "y" * 10), ("t/1", ""), ("t/3", ""), ("t/2", "z"))
    assert server.retained("t/#") == [("t/2", b"z")]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b14__above_the_limit_in_3_1_1(serve: Serve, qos: int) -> None:
    """A transient error that cannot be told: the connection closes."""
    server = serve(maximum_retained_messages=1)
    server.connect("p").publish("t/1", b"x", retain=True)
    publisher, watcher = server.connect("p3", 4), server.watch("t/2")
    publisher.publish("t/1", b"y", qos, retain=True)
    publisher.send(wire.publish("t/2", b"x", qos=qos, retain=True, version=4))
    publisher.expect_close()
    watcher.expect_nothing()
    assert server.retained("t/#") == [("t/1", b"y")]
    server.connect("p3", 4).publish("t/1", b"", qos, retain=True)
    assert server.retained("t/#") == []


@both_versions
def test_b14__rights(serve: Serve, version: int) -> None:
    """To publish when it is stored or deleted, to subscribe at SUBSCRIBE, to read for each topic."""
    policy = Policy(publish={"t/no": 0x87, "t/stays": 0x87}, subscribe={"t/+": 0x87}, unreadable={"t/secret"})
    server = serve(hooks=[policy])
    server.run(server.broker.publish("t/stays", b"x", retain=True))
    publisher = server.connect("p", version)
    for name in ("t/no", "t/secret", "t/yes"):
        publisher.publish(name, b"x", 1, retain=True, reason=0x87 if name == "t/no" else 0x10)
    publisher.publish("t/stays", b"", 1, retain=True, reason=0x87)
    late(server, "t/#", version=version, qos=0).expect_messages(("t/stays", "x"), ("t/yes", "x"))
    late(server, "t/+", granted=[0x87], qos=0).expect_nothing()
    assert policy.unreadable


def test_b14__dollar_topics_and_wildcards(serve: Serve) -> None:
    server = serve(dollar_topics=("$app/",))
    publisher = server.connect("p")
    for name in ("$app/t", "a/$app"):
        publisher.publish(name, b"x", retain=True)
    for topic_filter in ("#", "+/t", "+/#"):
        assert ("$app/t", b"x") not in server.retained(topic_filter)
    assert server.retained("#") == [("a/$app", b"x")]
    for topic_filter in ("$app/#", "$app/+", "$app/t"):
        assert server.retained(topic_filter) == [("$app/t", b"x")]


@both_versions
def test_b14__many_are_sent_in_slices(server: Server, version: int) -> None:
    """2000 messages: other clients are served meanwhile, all arrive once, and none is older than a live one."""

    async def fill() -> None:
        for at in range(2000):
            await server.broker.publish(f"t/{at}", b"old" * 20, retain=True)

    server.run(fill())
    client, other = server.connect("s", version), server.connect("p")
    client.send(wire.subscribe(1, "t/#", version=version))
    other.publish("t/1999", b"new", retain=True)
    other.ping()
    server.wait_until(lambda: client.drain_until("SUBACK"), "") if False else None
    packets: list[Packet] = []
    while len({packet.topic_name for packet in packets if packet.name == "PUBLISH"}) < 2000:
        packets.append(client.recv())
    assert packets[0].name == "SUBACK"
    packets += client.drain()
    last = [packet.payload for packet in packets if packet.topic_name == "t/1999"]
    assert last[-1] == b"new" and len(packets) == 2000 + len(last)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b14__retain_off(serve: Serve, qos: int) -> None:
    server = serve(retain_available=False)
    watcher = server.watch()
    server.connect("p3", 4).publish("t", b"x", qos, retain=True)
    watcher.expect_messages("x", retain=False)
    assert server.retained() == []
    server.expect_breach(wire.publish("t", b"x", qos=qos, retain=True), codes=0x9A)
    assert server.retained() == []


# =========================================================================== B16 message expiry


def test_b16__deadline_is_arrival_plus_interval(server: Server) -> None:
    """Dropped at the deadline and not before, in a queue and as retained message; absent means never."""
    subscribed(server, "t/#").drop()
    publisher = server.connect("p")
    publisher.publish("t/5", b"x", 1, retain=True, message_expiry_interval=5)
    publisher.publish("t/never", b"x", 1, retain=True)
    for waited, left in ((4.9, ["t/5", "t/never"]), (0.2, ["t/never"]), (500, ["t/never"])):
        server.advance(waited)
        assert [name for name, _ in server.retained()] == left
        client = resumed(server)
        assert [packet.topic_name for packet in client.drain()] == left
        client.drop()
        if waited == 4.9:  # sent now, so it is no longer dropped: begin anew
            subscribed(server, "t/#").disconnect(0, {"session_expiry_interval": 0})
            subscribed(server, "none").drop()
            client = subscribed(server, "t/#", qos=0)
            client.drain()
            client.subscribe("t/#", qos=1, retain_handling=2)
            client.drop()
            publisher.publish("t/never", b"x", 1, retain=True)
