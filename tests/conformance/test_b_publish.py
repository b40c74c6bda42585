"""Behaviours around PUBLISH: identifiers, overlaps, retained messages, expiry, aliases, `$`, answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy, Slow
from tests.conformance.server import Codes, Server
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
@pytest.mark.parametrize(
    ("build", "answer", "refusal"),
    [
        (partial(wire.publish, "t", b"y", qos=1, packet_id=5), "PUBACK", {"reason_code": 0x91}),
        (partial(wire.subscribe, 5, "a", "b"), "SUBACK", {"reason_codes": [0x91, 0x91]}),
        (partial(wire.unsubscribe, 5, "a", "b"), "UNSUBACK", {"reason_codes": [0x91, 0x91]}),
    ],
    ids=["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_b09__identifier_held_by_qos_2(
    server: Server, version: int, build: Callable[..., bytes], answer: str, refusal: dict[str, Any]
) -> None:
    watcher, client = server.watch(), server.connect("p", version)
    client.send(wire.publish("t", b"x", qos=2, packet_id=5, version=version))
    client.expect("PUBREC", packet_id=5)
    client.send(build(version=version))
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


@pytest.mark.parametrize(("version", "rap"), [(4, False), (5, False), (5, True)])
def test_b14__retain_of_live_and_queued_copies(server: Server, version: int, rap: bool) -> None:
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
            server.late("t", granted, version).expect_messages("x", qos=min(stored, granted), retain=True)


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
    server.late().expect("PUBLISH", properties={**kept, "message_expiry_interval": 50})
    server.late(version=4).expect("PUBLISH", payload="x", retain=True, properties={})


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
    orders = [[packet.topic_name for packet in server.late().drain()] for _ in range(3)]
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
        assert server.sys_value("dropped/refused") == "1"
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
    server.late("t/#", version=version, qos=0).expect_messages(("t/stays", "x"), ("t/yes", "x"))
    server.late("t/+", granted=[0x87], qos=0).expect_nothing()


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


def fill(server: Server, count: int, qos: int = 0) -> None:
    """Retains *count* messages "old" on t/0, t/1, ..."""

    async def publish() -> None:
        for at in range(count):
            await server.broker.publish(f"t/{at}", b"old", qos=qos, retain=True)

    server.run(publish())


@both_versions
def test_b14__many_arrive_once_and_in_time(server: Server, version: int) -> None:
    """More than go out in one slice: none is lost, and none that is old comes after what replaced it."""
    fill(server, 1000)
    client, other = server.connect("s", version), server.connect("p")
    client.send(wire.subscribe(1, ("t/#", 1), version=version))
    other.publish("t/999", b"new", 1, retain=True)
    client.expect("SUBACK", packet_id=1)
    packets: list[Packet] = []
    while len({packet.topic_name for packet in packets}) < 1000:
        packets.append(client.recv())
    packets += client.drain()
    last = [packet.payload for packet in packets if packet.topic_name == "t/999"]
    assert len(packets) == 999 + len(last) and last in ([b"new"], [b"old", b"new"])


@pytest.mark.tcp_only("both packets must come in one segment")
def test_b14__many_are_sent_in_slices(server: Server) -> None:
    """The next packet is answered before all of them have been sent."""
    fill(server, 1000)
    client = server.connect("s")
    client.send(wire.subscribe(1, "t/#"), wire.pingreq())
    client.expect("SUBACK")
    names = [client.recv().name for _ in range(1001)]
    assert names.count("PUBLISH") == 1000 and names.index("PINGRESP") < 1000


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


@pytest.mark.parametrize(("waited", "left"), [(4.9, ["t/5", "t/ever"]), (5, ["t/ever"]), (500, ["t/ever"])])
def test_b16__deadline_is_arrival_plus_interval(server: Server, waited: float, left: list[str]) -> None:
    """Dropped at the deadline and not before, in a queue and as retained message; absent means never."""
    subscribed(server, "t/#").drop()
    publisher = server.connect("p")
    publisher.publish("t/5", b"x", 1, retain=True, message_expiry_interval=5)
    publisher.publish("t/ever", b"x", 2, retain=True)
    server.advance(waited)
    assert [name for name, _ in server.retained()] == left
    resumed(server).expect_messages(*((name, "x") for name in left))


@pytest.mark.parametrize(("asked", "in_force"), [(None, 10), (100, 10), (5, 5), (0, 0)])
def test_b16__cap(serve: Serve, asked: int | None, in_force: int) -> None:
    """`message_expiry_interval` of the settings is the longest life of a message; it is off by default."""
    server = serve(message_expiry_interval=10)
    watcher, publisher = server.watch(), server.connect("p")
    named = {} if asked is None else {"message_expiry_interval": asked}
    publisher.publish("t", b"x", retain=True, **named)
    watcher.expect("PUBLISH", message_expiry_interval=in_force)
    server.advance(in_force)
    assert server.retained() == []


def test_b16__no_cap_by_default(server: Server) -> None:
    watcher = server.watch()
    server.connect("p").publish("t", b"x", message_expiry_interval=4294967295)
    watcher.expect("PUBLISH", message_expiry_interval=4294967295)


@both_versions
@pytest.mark.parametrize("qos", [1, 2])
def test_b16__waiting_for_the_window(serve: Serve, version: int, qos: int) -> None:
    server = serve(outbound_receive_maximum=1)
    client, publisher = subscribed(server, "t", qos=qos, version=version), server.connect("p")
    for payload, interval in (("first", 60), ("expired", 5), ("last", 60)):
        publisher.publish("t", payload, qos, message_expiry_interval=interval)
    blocking = client.expect("PUBLISH", payload="first")
    server.advance(5)
    client.ack(blocking)
    client.expect_messages("last", message_expiry_interval=55 if version == 5 else None)


def test_b16__waiting_for_a_shared_member(server: Server) -> None:
    subscribed(server, "$share/g/t").drop()
    publisher = server.connect("p")
    for interval in (5, 60):
        publisher.publish("t", f"{interval}", 1, message_expiry_interval=interval)
    server.advance(6)
    resumed(server).expect_messages("60", message_expiry_interval=54)


@both_versions
@pytest.mark.parametrize("qos", [1, 2])
def test_b16__not_dropped_once_sent(server: Server, version: int, qos: int) -> None:
    """Before PUBACK or PUBREC and over a reconnect; no flow is broken off."""
    client = subscribed(server, "t", qos=qos, version=version)
    server.connect("p").publish("t", b"x", qos, message_expiry_interval=5)
    sent = client.expect("PUBLISH", payload="x", dup=False)
    server.advance(6)
    client.drop()
    client = resumed(server, version=version)
    again = client.expect("PUBLISH", payload="x", dup=True, packet_id=sent.packet_id)
    server.advance(6)
    client.ack(again)
    client.expect_nothing()


def test_b16__a_flow_goes_on(server: Server) -> None:
    """QoS 2 past its interval: between PUBREC and PUBCOMP toward a subscriber, and held for a publisher."""
    client, publisher = subscribed(server, "t"), server.connect("p")
    publisher.publish("t", b"x", 2, message_expiry_interval=5)
    packet_id = client.expect("PUBLISH").packet_id or 0
    client.send(wire.pubrec(packet_id))
    client.expect("PUBREL", packet_id=packet_id)
    publisher.send(wire.publish("t", b"y", qos=2, packet_id=9, properties={"message_expiry_interval": 5}))
    publisher.expect("PUBREC", packet_id=9, reason_code=0x00)
    server.advance(6)
    client.drop()
    client = resumed(server)
    client.expect("PUBREL", packet_id=packet_id, reason_code=0x00)
    client.send(wire.pubcomp(packet_id))
    publisher.release(9, 0x00)
    server.late().expect_nothing()


@pytest.mark.parametrize(("waited", "sent"), [(0, 60), (0.5, 60), (1, 59), (1.5, 59), (59.5, 1)])
def test_b16__interval_that_is_sent(server: Server, waited: float, sent: int) -> None:
    """Received minus whole seconds waited, what is left rounded up: queued and retained."""
    subscribed(server, "t", qos=1).drop()
    server.connect("p").publish("t", b"x", 1, retain=True, message_expiry_interval=60)
    server.advance(waited)
    resumed(server).expect("PUBLISH", message_expiry_interval=sent)
    server.late("t").expect("PUBLISH", retain=True, message_expiry_interval=sent)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b16__interval_0(server: Server, qos: int) -> None:
    """At once or never: not behind a full window, not for a session without a connection."""
    free, blocked = subscribed(server, "t", "free"), subscribed(server, "t", "blocked", receive_maximum=1)
    offline, publisher = subscribed(server, "t", "offline"), server.connect("p")
    publisher.publish("t", b"blocks", 1)
    free.ack(free.expect("PUBLISH"))
    first = blocked.expect("PUBLISH", payload="blocks")
    offline.ack(offline.expect("PUBLISH"))
    offline.drop()
    publisher.publish("t", b"0", qos, reason=0x00, message_expiry_interval=0)
    free.expect_messages("0", qos=qos, message_expiry_interval=0)
    if qos == 0:  # needs no slot
        blocked.expect("PUBLISH", payload="0", message_expiry_interval=0)
    blocked.ack(first)
    blocked.expect_nothing()
    resumed(server, "offline").expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b16__interval_0_retained(server: Server, qos: int) -> None:
    """It deletes the old one and leaves none."""
    watcher, publisher = server.watch(), server.connect("p")
    publisher.publish("t", b"old", 1, retain=True)
    publisher.publish("t", b"new", qos, retain=True, reason=0x00, message_expiry_interval=0)
    watcher.expect_messages("old", "new", retain=True)
    assert server.sys_value("retained messages/count") == "0"
    assert server.retained() == []


def test_b16__expired_retained_messages_are_never_sent(server: Server) -> None:
    """Found out when somebody asks, before any sweep; and by a sweep when nobody does."""
    publisher = server.connect("p")
    for name in ("a", "b"):
        publisher.publish(name, b"x", retain=True, message_expiry_interval=5 if name == "a" else 10)
    server.clock.now += 6  # no sweep
    assert server.retained() == [("b", b"x")]
    server.advance(1)
    assert server.sys_value("retained messages/count") == "1"
    server.advance(4)
    assert server.sys_value("retained messages/count") == "0"


@pytest.mark.parametrize("waited", [4, 6])
def test_b16__to_3_1_1(server: Server, waited: int) -> None:
    """The same deadlines; the property is not sent."""
    subscribed(server, "t", qos=1, version=4).drop()
    server.connect("p").publish("t", b"x", 1, retain=True, message_expiry_interval=5)
    server.advance(waited)
    wanted = ["x"] * (waited < 5)
    resumed(server, version=4).expect_messages(*wanted, properties={})
    server.late(version=4).expect_messages(*wanted, properties={})


def test_b16__a_will_lives_from_its_publication(server: Server) -> None:
    subscribed(server, "t", qos=1).drop()
    watcher = server.watch("t")
    will = wire.will("t", b"x", 1, retain=True, will_delay_interval=20, message_expiry_interval=10)
    server.connect("w", will=will, session_expiry_interval=600).drop()
    server.advance(21, step=0.5)
    watcher.expect("PUBLISH", payload="x", message_expiry_interval=10)
    server.advance(8)
    client = resumed(server)
    client.expect("PUBLISH", payload="x", message_expiry_interval={1, 2})
    assert server.retained() == [("t", b"x")]
    server.advance(2)
    assert server.retained() == []


# =========================================================================== B17 topic aliases


def alias(number: int) -> dict[str, int]:
    return {"topic_alias": number}


def test_b17__announced(serve: Serve) -> None:
    client = serve().connect("c")
    assert client.connack is not None and 32 <= client.connack.properties["topic_alias_maximum"] <= 65535
    client = serve(topic_alias_maximum=7).connect("c")
    assert client.connack is not None and client.connack.properties["topic_alias_maximum"] == 7


def test_b17__each_direction_has_its_own(server: Server) -> None:
    client, other = server.connect("c", topic_alias_maximum=5), server.connect("o")
    client.subscribe("in")
    other.subscribe("out")
    client.publish("out", b"1", properties=alias(1))
    other.publish("in", b"2")
    client.expect("PUBLISH", sent_topic_name="in", topic_alias=1)
    client.publish("", b"3", properties=alias(1))
    other.publish("in", b"4")
    client.expect("PUBLISH", topic_name="in", sent_topic_name="", topic_alias=1, payload="4")
    other.expect_messages(("out", "1"), ("out", "3"), topic_alias=None)


def test_b17__each_connection_has_its_own(server: Server) -> None:
    watcher, clients = server.watch(), [server.connect(f"c{at}") for at in range(2)]
    for at, client in enumerate(clients):
        client.publish(f"t/{at}", b"x", properties=alias(1))
    for client in clients:
        client.publish("", b"x", properties=alias(1))
    watcher.expect_messages(("t/0", "x"), ("t/1", "x"), ("t/0", "x"), ("t/1", "x"))
    clients[0].drop()
    again = server.connect("c0")
    again.send(wire.publish("", b"x", properties=alias(1)))
    again.expect_close(0x82)


def test_b17__never_stored_with_a_message(server: Server) -> None:
    subscribed(server, "t", qos=1).drop()
    publisher = server.connect("p")
    for name in ("t", ""):
        publisher.publish(name, b"x", 1, retain=True, properties=alias(9))
    resumed(server).expect_messages(("t", "x"), ("t", "x"), topic_alias=None)
    server.late().expect_messages(("t", "x"), topic_alias=None)


@pytest.mark.parametrize(
    ("topic_name", "number", "codes"),
    [
        ("", 65535, 0x94),  # the range comes before the mapping
        ("no", 65535, 0x94),  # and before the authorization
        ("a/+", 0, (0x90, 0x94)),  # both break a rule of the value alone
        ("a/+", 65535, (0x90, 0x94)),
        ("", 3, 0x82),
        ("a/+", 3, 0x90),
    ],
)
def test_b17__order_of_inbound_checks(serve: Serve, topic_name: str, number: int, codes: Codes) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    raw = wire.publish(topic_name, b"x", qos=1, packet_id=1, properties=alias(number))
    server.expect_breach(raw, codes=codes)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b17__set_by_a_refused_publish(serve: Serve, qos: int) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    client = server.connect("c")
    for name in ("no", "", "$reserved", ""):
        refused = 0x90 if name == "$reserved" else 0x87
        client.publish(name, b"x", qos, properties=alias(1), reason=refused if name else (0x87, 0x90))
    client.expect_nothing()


def test_b17__set_by_a_repeat(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c")
    for topic_name, number in (("a", 1), ("b", 2), ("", 2)):
        client.send(wire.publish(topic_name, b"x", qos=2, packet_id=5, properties=alias(number)))
        client.expect("PUBREC", packet_id=5, reason_code=0x00)
    client.release(5)
    for number in (1, 2):
        client.publish("", b"y", 1, properties=alias(number))
    watcher.expect_messages(("a", "x"), ("a", "y"), ("b", "y"))


@pytest.mark.parametrize(("client_maximum", "setting", "limit"), [(2, 64, 2), (10, 3, 3), (65535, 64, 64)])
def test_b17__outbound_limit(serve: Serve, client_maximum: int, setting: int, limit: int) -> None:
    """The lower of the client's maximum and the setting; first use with the topic, later ones without."""
    server = serve(outbound_topic_alias_maximum=setting)
    client = server.connect("s", topic_alias_maximum=client_maximum)
    client.subscribe("#")
    publisher = server.connect("p")
    topics = [f"t/{at}" for at in range(limit)]
    for first in (True, False, False):
        publisher.send(*(wire.publish(name, b"x") for name in topics))
        publisher.fence()
        found = client.expect_messages(*((name, "x") for name in topics))
        assert [packet.sent_topic_name for packet in found] == (topics if first else [""] * limit)
        assert {packet.properties["topic_alias"] for packet in found} == set(range(1, limit + 1))


def test_b17__least_recently_used_is_mapped_anew(server: Server) -> None:
    client = server.connect("s", topic_alias_maximum=2)
    client.subscribe("#", qos=2)
    publisher, aliases = server.connect("p"), []
    for name, with_topic in (("a", 1), ("b", 1), ("a", 0), ("c", 1), ("a", 0), ("b", 1), ("a", 0), ("c", 1)):
        publisher.publish(name, b"x", 1)
        packet = client.expect("PUBLISH", topic_name=name, sent_topic_name=name if with_topic else "")
        client.ack(packet)
        aliases.append(packet.properties["topic_alias"])
    assert aliases[0] == aliases[2] == aliases[4] == aliases[6]
    assert set(aliases[1::2]) == {3 - aliases[0]}


@pytest.mark.parametrize("clean_start", [True, False])
def test_b17__full_topic_after_a_reconnect(server: Server, clean_start: bool) -> None:
    client, publisher = subscribed(server, "#", topic_alias_maximum=9), server.connect("p")
    publisher.publish("a", b"1", 1)
    publisher.publish("a", b"2", 1)
    client.expect("PUBLISH", sent_topic_name="a")
    client.expect("PUBLISH", sent_topic_name="", topic_name="a")
    client.drop()
    client = server.connect("s", clean_start=clean_start, topic_alias_maximum=9)
    if clean_start:
        client.subscribe("#")
        publisher.publish("a", b"1")
        publisher.publish("a", b"2")
    found = client.expect_messages(("a", "1"), ("a", "2"))
    assert [packet.sent_topic_name for packet in found] == ["a", ""]


def test_b17__a_dropped_packet_defines_nothing(server: Server) -> None:
    """Too large for the client, or expired: the next one brings the topic."""
    client = subscribed(server, "#", maximum_packet_size=60, topic_alias_maximum=9, receive_maximum=1)
    publisher = server.connect("p")
    for qos in (0, 1):
        publisher.publish(f"large/{qos}", b"x" * 60, qos)
        for sent in (f"large/{qos}", ""):
            publisher.publish(f"large/{qos}", b"small", qos)
            packet = client.expect("PUBLISH", payload="small", sent_topic_name=sent)
            if qos:
                client.ack(packet)
    publisher.publish("blocks", b"x", 1)
    publisher.publish("expires", b"x", 1, message_expiry_interval=5)
    blocking = client.expect("PUBLISH", topic_name="blocks")
    server.advance(6)
    client.ack(blocking)
    publisher.publish("expires", b"x", 1)
    client.expect("PUBLISH", sent_topic_name="expires")


def test_b17__size_of_a_packet_with_an_alias_only(server: Server) -> None:
    """Too large with its topic, small enough without: it comes once the alias is known, not before."""
    name = "long/" * 10
    client = subscribed(server, "#", maximum_packet_size=70, topic_alias_maximum=9)
    publisher = server.connect("p")
    publisher.publish(name, b"x" * 60)
    publisher.publish(name, b"defines")
    publisher.publish(name, b"x" * 60)
    client.expect("PUBLISH", sent_topic_name=name, payload="defines")
    packet = client.expect("PUBLISH", topic_name=name, sent_topic_name="", payload=b"x" * 60)
    assert len(packet.raw) == 2 + 2 + 4 + 60
    client.expect_nothing()


# =========================================================================== B18 subscription identifiers


def test_b18__part_of_the_session(server: Server) -> None:
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t/a", "t/b", qos=1, subscription_identifier=5)  # one for all filters
    publisher = server.connect("p")
    for name in ("t/a", "t/b"):
        publisher.publish(name, b"live", 1)
        client.ack(client.expect("PUBLISH", subscription_identifier=[5]))
    client.drop()
    publisher.publish("t/a", b"queued", 1)
    client = resumed(server)
    client.ack(client.expect("PUBLISH", payload="queued", subscription_identifier=[5]))
    publisher.publish("t/b", b"live again", 1)
    client.expect("PUBLISH", payload="live again", subscription_identifier=[5])


def test_b18__in_retained_copies(server: Server) -> None:
    server.connect("p").publish("t", b"x", 1, retain=True)
    client = server.connect("s")
    for qos in (0, 1):
        client.subscribe("t", qos=qos, subscription_identifier=5 + qos)
        client.expect_messages("x", subscription_identifier=[5 + qos])


@pytest.mark.parametrize("how", ["window", "offline"])
def test_b18__a_queued_copy_never_mixes(server: Server, how: str) -> None:
    """It has the identifiers of the time it was queued, or of the time it is sent."""
    client = server.connect("s", receive_maximum=1, session_expiry_interval=60)
    client.subscribe("t", qos=1, subscription_identifier=1)
    client.subscribe("#", qos=1, subscription_identifier=2)
    publisher = server.connect("p")
    publisher.publish("t", b"first", 1)
    first = client.expect("PUBLISH", payload="first")
    publisher.publish("t", b"queued", 1)
    client.subscribe("t", qos=1, subscription_identifier=3)
    client.unsubscribe("#")
    if how == "window":
        client.ack(first)
    else:
        client.drop()
        client = resumed(server)
        client.expect("PUBLISH", payload="first", dup=True)
    packet = client.expect("PUBLISH", payload="queued")
    assert sorted(identifiers(packet)) in ([1, 2], [3])


@pytest.mark.parametrize("how", ["unsubscribe", "without", "another", "new session"])
def test_b18__removed(server: Server, how: str) -> None:
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t", subscription_identifier=5)
    if how == "unsubscribe":
        client.unsubscribe("t")
    elif how == "another":
        client.subscribe("t", subscription_identifier=6)
    elif how == "new session":
        client.drop()
        client = server.connect("s", clean_start=True)
    if how != "another":
        client.subscribe("t")
    server.connect("p").publish("t", b"x")
    packet = client.expect("PUBLISH")
    assert identifiers(packet) == ([6] if how == "another" else [])
    client.expect_nothing()


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (1, "01"), (127, "7F"), (128, "80 01"), (16_383, "FF 7F"), (16_384, "80 80 01"),
        (2_097_151, "FF FF 7F"), (2_097_152, "80 80 80 01"), (268_435_455, "FF FF FF 7F"),
    ],
)  # fmt: skip
def test_b18__encoded_in_the_fewest_bytes(server: Server, value: int, raw: str) -> None:
    client = server.connect("s")
    client.subscribe("t", subscription_identifier=value)
    server.connect("p").publish("t", b"")
    body = b"\x0b" + bytes.fromhex(raw)
    packet = client.expect("PUBLISH", subscription_identifier=[value])
    assert packet.raw == b"\x30" + bytes([4 + len(body)]) + b"\0\x01t" + bytes([len(body)]) + body


def test_b18__in_the_order_of_subscription(server: Server) -> None:
    client = server.connect("s")
    for identifier, topic_filter in ((9, "+/a"), (3, "t/a"), (7, "#"), (3, "t/+")):
        client.subscribe(topic_filter, subscription_identifier=identifier)
    server.connect("p").publish("t/a", b"x")
    client.expect("PUBLISH", subscription_identifier=[9, 3, 7, 3])


# =========================================================================== B20 topics that begin with $

RESERVED = ["$SYS/broker/x", "$SYS", "$share/g/t", "$other/t", "$", "$app", "$apple/t"]


@both_versions
@pytest.mark.parametrize("topic_name", RESERVED)
def test_b20__clients_do_not_publish_there(serve: Serve, version: int, topic_name: str) -> None:
    server = serve(dollar_topics=("$app/",))
    filters = ["$other/#", "$SYS/broker/x", "$SYS", "$", "$app", "$apple/#"]
    watcher = server.connect("watcher")
    watcher.subscribe(*filters, "#")
    client = server.connect("p", version)
    for qos in (0, 1, 2):
        client.publish(topic_name, b"x", qos, retain=True, reason=0x90)
    client.expect_nothing()
    watcher.expect_nothing()
    for topic_filter in filters:
        assert server.retained(topic_filter) == []


@both_versions
@pytest.mark.parametrize("topic_name", RESERVED)
def test_b20__wills(serve: Serve, version: int, topic_name: str) -> None:
    server = serve(dollar_topics=("$app/",))
    raw = wire.connect("c", version=version, will=wire.will(topic_name, b"x", 1, retain=True))
    server.expect_refused(raw, codes=0x90 if version == 5 else (), version=version)


@both_versions
def test_b20__allow_list(serve: Serve, version: int) -> None:
    server = serve(dollar_topics=("$app/", "$dev/x/"))
    watcher = server.watch("$app/#")
    client = server.connect("p", version, will=wire.will("$app/will", b"w"))
    for qos in (0, 1, 2):
        client.publish("$app/t", b"x", qos, reason=0x00, retain=True)
    client.publish("$dev/x/t", b"x", 1, reason=0x10)
    client.publish("$dev/y/t", b"x", 1, reason=0x90)
    client.drop()
    watcher.expect_messages(*[("$app/t", "x")] * 3, ("$app/will", "w"))
    assert server.retained("$app/#") == [("$app/t", b"x")]


@pytest.mark.parametrize("prefix", ["", "$share/g/"])
@pytest.mark.parametrize(
    ("topic_filter", "topic_name", "found"),
    [
        ("#", "$app/a", False),
        ("+/a", "$app/a", False),
        ("+/#", "$app/a", False),
        ("$app/#", "$app/a", True),
        ("$app/+", "$app/a", True),
        ("$app/a", "$app/a", True),
        ("#", "a/$x", True),
        ("a/+", "a/$x", True),
        ("+/$x", "a/$x", True),
        ("a/$x", "a/$x", True),
        ("+/+", "/$x", True),
    ],
)
def test_b20__matching(serve: Serve, prefix: str, topic_filter: str, topic_name: str, found: bool) -> None:
    server = serve(dollar_topics=("$app/",))
    client = server.connect("s")
    client.subscribe(prefix + topic_filter)
    server.connect("p").publish(topic_name, b"x", 1, reason=0x00 if found else 0x10)
    client.expect_messages(*[(topic_name, "x")] * found)


SYS_NAMES = ["version", "uptime", "clients/connected", "messages/received", "messages/sent",
             "publish/messages/dropped", "subscriptions/count", "retained messages/count"]  # fmt: skip


@both_versions
@pytest.mark.parametrize("topic_filter", ["$SYS/#", "$SYS/broker/#"])
def test_b20__sys_values_on_subscribe(server: Server, version: int, topic_filter: str) -> None:
    client = server.connect("s", version)
    client.subscribe(topic_filter)
    values = {packet.topic_name: packet for packet in client.drain()}
    for name in SYS_NAMES:
        assert values[SYS + name].retain and values[SYS + name].payload
    assert values[f"{SYS}clients/connected"].payload == b"1"
    client.subscribe("#", "+/+/+", "+/#")
    client.expect_nothing()


def test_b20__sys_values_by_interval(serve: Serve) -> None:
    """Live with RETAIN 0, though the subscriber would be told."""
    server = serve(sys_interval=10.0)
    client = server.connect("s")
    client.subscribe("$SYS/broker/+", retain_as_published=True, retain_handling=2)
    client.expect_nothing()
    for waited in (11, 10):
        server.advance(waited)
        values = {packet.topic_name: packet for packet in client.drain()}
        assert int(values[f"{SYS}uptime"].payload or b"") >= 11
        assert not any(packet.retain for packet in values.values())


# =========================================================================== B23 request and response


@both_versions
def test_b23__forwarded_untouched(serve: Serve, version: int) -> None:
    """Whether the Response Topic exists, or the requester may publish there, is not looked at."""
    server = serve(hooks=[Policy(publish={"no": 0x87}, subscribe={"no": 0x87}, unreadable={"no"})])
    client = server.connect("s", version)
    client.subscribe("t", qos=1)
    requester = server.connect("q")
    for response_topic in ("nowhere", "no", "$SYS/x", "$share/g/t", "a//b/"):
        asked = {"response_topic": response_topic, "correlation_data": b"\0\xff"}
        requester.publish("t", b"x", 1, **asked)
        client.expect("PUBLISH", payload="x", properties=asked if version == 5 else {})
    client.expect_nothing()


def test_b23__response_information(serve: Serve) -> None:
    server = serve(response_information="resp/{client_id}/")
    for asked, wanted in ((None, None), (0, None), (1, "resp/c/"), (1, "resp/c/")):  # stable, too
        named = {} if asked is None else {"request_response_information": asked}
        client = server.connect("c", clean_start=False, session_expiry_interval=60, **named)
        assert client.connack is not None
        assert client.connack.properties.get("response_information") == wanted
        client.drop()
    client = server.connect("", request_response_information=1)
    assert client.connack is not None
    assert client.connack.properties["response_information"] == f"resp/{client.client_id}/"


def test_b23__no_response_information_without_a_template(server: Server) -> None:
    client = server.connect("c", request_response_information=1)
    assert client.connack is not None and "response_information" not in client.connack.properties


def test_b23__a_whole_exchange(serve: Serve) -> None:
    """The requester is authorized for the topics below its Response Information."""
    server = serve(response_information="resp/{client_id}/")
    requester = server.connect("q", request_response_information=1)
    assert requester.connack is not None
    topic_name = requester.connack.properties["response_information"] + "1"
    requester.subscribe(topic_name, qos=1)
    responder = server.connect("r")
    responder.subscribe("ask", qos=1)
    requester.publish("ask", b"?", 1, reason=0x00, response_topic=topic_name, correlation_data=b"7")
    asked = responder.expect("PUBLISH", payload="?").properties
    responder.publish(
        asked["response_topic"], b"!", 1, reason=0x00, correlation_data=asked["correlation_data"]
    )
    requester.expect("PUBLISH", topic_name=topic_name, payload="!", correlation_data=b"7")


@pytest.mark.parametrize("qos", [1, 2])
def test_b23__no_matching_subscribers(server: Server, qos: int) -> None:
    requester = server.connect("q")
    requester.publish("ask", b"?", qos, reason=0x10, response_topic="r")
    responder = server.connect("r")
    responder.subscribe("ask")
    requester.publish("ask", b"?", qos, reason=0x00, response_topic="r")
    responder.unsubscribe("ask")
    requester.publish("ask", b"?", qos, reason=0x10, response_topic="r")


# =========================================================================== B34 answers to PUBLISH


@pytest.mark.parametrize(
    ("topic_name", "retain", "code"),
    [("no", False, 0x87), ("no", True, 0x87), ("too many", True, 0x97), ("$reserved", False, 0x90)],
)
@pytest.mark.parametrize("qos", [1, 2])
def test_b34__checked_before_it_is_owned(
    serve: Serve, qos: int, topic_name: str, retain: bool, code: int
) -> None:
    """Authorization and quota are in PUBACK and PUBREC; what was refused is not delivered later either."""
    server = serve(hooks=[Policy(publish={"no": 0x87})], maximum_retained_messages=1)
    client = server.connect("p")
    client.publish("kept", b"x", retain=True)
    watcher = server.watch()
    watcher.drain()
    client.publish(topic_name, b"x", qos, retain=retain, packet_id=5, reason=code)
    client.release(5, 0x92)  # the flow is over
    client.expect_nothing()
    watcher.expect_nothing()
    assert server.retained() == [("kept", b"x")]


def test_b34__what_is_owned_is_stored(serve: Serve) -> None:
    """A QoS 2 message that was accepted is retained at PUBREL, even if others took the last place since."""
    server = serve(maximum_retained_messages=1)
    client = server.connect("p")
    for packet_id in (1, 2):
        client.send(wire.publish(f"t/{packet_id}", b"x", qos=2, packet_id=packet_id, retain=True))
        client.expect("PUBREC", packet_id=packet_id, reason_code=0x10)
    client.publish("t/3", b"x", 1, retain=True, packet_id=3, reason=0x10)
    client.release(1)
    client.release(2)
    for qos in (1, 2):
        client.publish("t/4", b"x", qos, retain=True, reason=0x97)
    assert server.retained() == [("t/1", b"x"), ("t/2", b"x"), ("t/3", b"x")]


@pytest.mark.parametrize("qos", [1, 2])
def test_b34__owned(server: Server, qos: int) -> None:
    """What was acknowledged reaches every session, whatever becomes of the publisher."""
    subscribed(server, "t", "offline").drop()
    online, client = subscribed(server, "t", "online"), server.connect("p")
    client.send(wire.publish("t", b"x", qos=qos, packet_id=1))
    client.expect("PUBACK" if qos == 1 else "PUBREC", reason_code=0x00)
    if qos == 2:
        client.send(wire.pubrel(1))
        client.expect("PUBCOMP", reason_code=0x00)
    client.reset()
    online.expect_messages("x", qos=qos)
    resumed(server, "offline").expect_messages("x", qos=qos)


@pytest.mark.parametrize("qos", [1, 2])
def test_b34__subscribers_do_not_gate_publishers(server: Server, qos: int) -> None:
    """One does not acknowledge, one has its window full, one is not there."""
    silent = subscribed(server, "t", "silent")
    full = subscribed(server, "t", "full", receive_maximum=1)
    subscribed(server, "t", "offline").drop()
    publisher = server.connect("p")
    for at in range(3):
        publisher.publish("t", f"{at}", qos, reason=0x00)
    silent.expect_messages("0", "1", "2")
    full.expect_messages("0")
    resumed(server, "offline").expect_messages("0", "1", "2")


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("topic_filter", ["t", "+", "#", "$share/g/t", "$share/g/+"])
def test_b34__no_matching_subscribers(server: Server, topic_filter: str, online: bool, qos: int) -> None:
    """0x10 only if no subscription matched: shared or not, with or without a connection."""
    publisher = server.connect("p")
    publisher.publish("t", b"x", qos, reason=0x10)
    client = subscribed(server, topic_filter)
    if not online:
        client.drop()
    publisher.publish("t", b"x", qos, reason=0x00)
    publisher.publish("u/u", b"x", qos, reason=0x00 if topic_filter == "#" else 0x10)
    publisher.publish("t", b"x", qos, reason=0x00, retain=True)


@pytest.mark.parametrize("qos", [1, 2])
def test_b34__no_matching_subscribers_after_the_session(server: Server, qos: int) -> None:
    client, publisher = subscribed(server, "t"), server.connect("p")
    client.drop()
    publisher.publish("t", b"x", qos, reason=0x00)
    server.advance(601)
    publisher.publish("t", b"x", qos, reason=0x10, retain=True)
    assert server.retained() == [("t", b"x")]


def test_b34__refused_qos_2_is_over(serve: Serve) -> None:
    """PUBREL that comes anyway: PUBCOMP 0x92. The identifier is free at once."""
    server = serve(hooks=[Policy(publish={"no": 0x87})])
    watcher, client = server.watch(), server.connect("p")
    client.publish("no", b"x", 2, packet_id=5, reason=0x87)
    client.subscribe("u", packet_id=5)
    client.publish("t", b"y", 1, packet_id=5)
    client.release(5, 0x92)
    client.publish("t", b"z", 2, packet_id=5)
    watcher.expect_messages("y", "z")
