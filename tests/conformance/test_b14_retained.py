"""B14: retained messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy, Slow
from tests.conformance.marks import both_versions
from tests.conformance.server import Server
from tests.conformance.sessions import resume, subscribed
from tests.conformance.wire import Packet


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
    client = resume(server)
    client.subscribe(topic_filter, **options)
    client.expect_messages(*["x"] * again, retain=True)


def test_b14__sent_by_subscribe_to_3_1_1(server: Server) -> None:
    server.connect("p").publish("t", b"x", 1, retain=True)
    client = subscribed(server, "t", version=4)
    client.ack(client.expect("PUBLISH", payload="x", retain=True))
    client.subscribe("t", qos=0)
    client.expect("PUBLISH", payload="x", retain=True)
    client.drop()
    client = resume(server, version=4)
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
    client = resume(server, version=version)
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
    found[1:] = resume(server).drain()
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
