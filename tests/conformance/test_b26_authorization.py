"""B26: refused by authorization."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import NotAuthorized
from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Dropped, Policy
from tests.conformance.marks import either_version, every_qos
from tests.conformance.server import Server
from tests.conformance.wire import publish


def guarded(serve: Serve, **settings: Any) -> tuple[Server, Dropped]:
    """A broker where nobody may publish to "no", subscribe to "no/#" or give up "stay"."""
    dropped = Dropped()
    policy = Policy(publish={"no": 0x87}, subscribe={"no/#": 0x87}, unsubscribe={"stay": 0x87})
    return serve(hooks=[policy, dropped], **settings), dropped


@either_version
@every_qos
@pytest.mark.parametrize("payload", [b"x", b""], ids=["store", "delete"])
def test_b26__publish(serve: Serve, version: int, qos: int, payload: bytes) -> None:
    """Dropped and counted, never routed or retained; a delete deletes nothing."""
    server, dropped = guarded(serve)
    server.run(server.broker.publish("no", b"kept", retain=True))
    watcher, client = server.watch("+"), server.connect("c", version)
    watcher.expect("PUBLISH", topic_name="no", payload="kept", retain=True)
    answer = client.publish("no", payload, qos=qos, retain=True, packet_id=9, reason=0x87)
    if version == 4 and answer is not None:
        assert answer.raw == bytes([0x40 if qos == 1 else 0x50, 2, 0, 9])
    client.expect_nothing()
    watcher.expect_nothing()
    assert dropped.events == [("c", "refused")]
    assert server.retained() == [("no", b"kept")]
    client.publish("yes", b"x", qos=qos, packet_id=9)
    watcher.expect_messages(("yes", "x"), qos=qos)


def test_b26__pubrec_ends_the_flow(serve: Serve) -> None:
    server, _ = guarded(serve)
    client = server.connect("c")
    client.publish("no", b"x", qos=2, packet_id=9, reason=0x87)
    client.release(9, reason=0x92)


@pytest.mark.parametrize(
    ("version", "qos", "settings"),
    [
        (5, 0, {"refused_publish_qos_0": "disconnect"}),
        (4, 0, {"refused_publish_3x": "close"}),
        (4, 1, {"refused_publish_3x": "close"}),
        (4, 2, {"refused_publish_3x": "close"}),
    ],
)
def test_b26__publish_closes_by_setting(
    serve: Serve, version: int, qos: int, settings: dict[str, str]
) -> None:
    server, _ = guarded(serve, **settings)
    raw = publish("no", b"x", qos=qos, retain=True, version=version)
    server.expect_breach(raw, codes=0x87, version=version)
    assert server.retained() == []


@pytest.mark.parametrize(
    "settings", [{"refused_publish_qos_0": "disconnect"}, {"refused_publish_3x": "close"}]
)
def test_b26__settings_that_do_not_concern_it(serve: Serve, settings: dict[str, str]) -> None:
    """5.0 has codes for QoS 1 and 2."""
    server, _ = guarded(serve, **settings)
    client = server.connect("c")
    client.publish("no", b"x", qos=1, reason=0x87)
    client.publish("no", b"x", qos=2, reason=0x87)
    client.expect_nothing()


@either_version
def test_b26__subscribe(serve: Serve, version: int) -> None:
    server, _ = guarded(serve)
    client, refused = server.connect("c", version), 0x87 if version == 5 else 0x80
    client.subscribe(("a", 1), ("no/#", 1), ("b", 2), granted=[1, refused, 2])
    server.connect("p").publish("no/x", b"x", qos=1, reason=0x10)
    client.expect_nothing()


@either_version
def test_b26__unsubscribe(serve: Serve, version: int) -> None:
    """5.0 hears 0x87 and keeps it; 3.1.1 cannot be told, and the subscription goes."""
    server, _ = guarded(serve)
    client, publisher = server.connect("c", version), server.connect("p", 4)
    client.subscribe("stay", "go", qos=1)
    client.unsubscribe("stay", "go", reasons=[0x87, 0x00])
    publisher.publish("stay", b"x", qos=1)
    publisher.publish("go", b"x", qos=1)
    client.expect_messages(*([b"x"] if version == 5 else []))


class NoWills(HookBase):
    """Refuses a CONNECT whose will goes to "no"."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        if packet.will is not None and packet.will.topic_name == "no":
            raise NotAuthorized


@either_version
def test_b26__will_at_connect(serve: Serve, version: int) -> None:
    server = serve(hooks=[NoWills()])
    raw = wire.connect("c", version=version, will=wire.will("no", b"x"))
    server.expect_refused(raw, codes=0x87 if version == 5 else 5, version=version)


@either_version
def test_b26__will_at_publish_time(serve: Serve, version: int) -> None:
    server, dropped = guarded(serve)
    watcher = server.watch()
    server.connect("c", version, will=wire.will("no", b"x", qos=1, retain=True)).drop()
    server.connect("d", version, will=wire.will("yes", b"x")).drop()
    watcher.expect_messages(("yes", "x"))
    assert server.retained() == []
    assert [client_id for client_id, _ in dropped.events] == ["c"]


@every_qos
def test_b26__alias_is_set_all_the_same(serve: Serve, qos: int) -> None:
    policy = Policy(publish={"no": 0x87})
    server = serve(hooks=[policy])
    watcher, client = server.watch(), server.connect("c")
    client.publish("no", b"1", qos=qos, reason=0x87, topic_alias=3)
    client.publish("", b"2", qos=qos, reason=0x87, topic_alias=3)
    policy.tables["publish"] = {}
    client.publish("", b"3", qos=qos, topic_alias=3)
    watcher.expect_messages(("no", "3"))


@either_version
def test_b26__wider_than_the_rights(serve: Serve, version: int) -> None:
    """Granted, and each delivery filtered: live, queued and retained."""
    server = serve(hooks=[Policy(unreadable={"secret"})])
    publisher = server.connect("p", 4)
    session = {} if version == 4 else {"session_expiry_interval": 600}
    client = server.connect("c", version, clean_start=False, **session)
    for topic in ("secret", "open"):
        publisher.publish(topic, b"kept", qos=1, retain=True)
    client.subscribe("#", qos=1)
    client.ack(*client.expect_messages(("open", "kept"), retain=True))
    for topic in ("secret", "open"):
        publisher.publish(topic, b"live", qos=1)
    client.ack(*client.expect_messages(("open", "live")))
    client.drop()
    for topic in ("secret", "open"):
        publisher.publish(topic, b"queued", qos=1)
    again = server.connect("c", version, clean_start=False, session_present=True)
    again.expect_messages(("open", "queued"))
    again.subscribe("secret", qos=1)
    again.expect_nothing()


@either_version
def test_b26__denied_filter(serve: Serve, version: int) -> None:
    """Refused only where the filter as such is: "no/#" is, "#" and "no/x" are not."""
    server, _ = guarded(serve)
    client, refused = server.connect("c", version), 0x87 if version == 5 else 0x80
    client.subscribe("#", "no/#", "no/x", granted=[0, refused, 0])
    server.connect("p").publish("no/x", b"x")
    client.expect_messages(b"x")


@pytest.mark.parametrize(("version", "codes"), [(5, (0x87,)), (4, (5,))])
def test_b26__a_will_authorized_at_connect(serve: Serve, version: int, codes: tuple[int, ...]) -> None:
    server = serve(hooks=[Policy(publish={"no": 0x87})], authorize_will="connect")
    connect = wire.connect("c", version=version, will=wire.will("no", b"x"))
    server.expect_refused(connect, codes=codes, version=version)
    allowed = server.connect("c", version=version, will=wire.will("yes", b"x"))
    allowed.expect_nothing()
