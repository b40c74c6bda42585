"""B20: topics that begin with $."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.marks import both_versions
from tests.conformance.server import Server

SYS = "$SYS/broker/"

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
