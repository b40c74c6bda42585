"""B07: wills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.server import Server
from tests.conformance.sessions import NEVER, returned
from tests.conformance.wills import breach, dying, expect_will, kick, leave, silence

ABNORMAL_3X: dict[str, Callable[[Server, Raw], None]] = {
    "FIN": lambda server, client: client.drop(),
    "RST": lambda server, client: client.reset(),
    "Keep Alive": silence,
    "error": breach,
    "kick": kick,
}
ABNORMAL = {**ABNORMAL_3X, "DISCONNECT 0x04": leave(0x04), "DISCONNECT 0x80": leave(0x80),
            "DISCONNECT 0x99": leave(0x99)}  # fmt: skip
DUE = [(0, 0, 0), (0, 50, 0), (5, 0, 0), (5, 50, 5), (50, 50, 50), (50, 5, 5), (5, NEVER, 5)]


@pytest.mark.parametrize("end", ABNORMAL.values(), ids=ABNORMAL)
@pytest.mark.parametrize(("delay", "interval", "after"), DUE)
def test_b07__abnormal_end(
    server: Server, end: Callable[[Server, Raw], None], delay: int, interval: int, after: int
) -> None:
    watcher = server.watch()
    end(server, dying(server, 5, delay, interval))
    expect_will(server, watcher, after)


@pytest.mark.parametrize(("delay", "interval", "after"), DUE)
@pytest.mark.parametrize("code", [None, 0x00])
def test_b07__disconnect_0_deletes(
    server: Server, delay: int, interval: int, after: int, code: int | None
) -> None:
    watcher = server.watch()
    dying(server, 5, delay, interval).disconnect(code)
    expect_will(server, watcher, None)


RETURNS = [  # delay, interval, waited, Clean Start, will
    (5, 50, 4.9, False, None),
    (50, 50, 49.9, False, None),
    (50, 5, 4.9, False, None),
    (5, 50, 4.9, True, 0),
    (50, 5, 4.9, True, 0),
    (50, 50, 0, True, 0),
]


@pytest.mark.parametrize("end", ABNORMAL.values(), ids=ABNORMAL)
@pytest.mark.parametrize(("delay", "interval", "waited", "clean_start", "after"), RETURNS)
def test_b07__a_new_connection_in_time(
    server: Server, end: Callable[[Server, Raw], None], delay: int, interval: int, waited: float,
    clean_start: bool, after: int | None,
) -> None:  # fmt: skip
    watcher = server.watch()
    end(server, dying(server, 5, delay, interval))
    server.advance(waited) if waited else None
    watcher.expect_nothing()
    server.connect("c", clean_start=clean_start, session_present=not clean_start)
    expect_will(server, watcher, after)


def test_b07__a_will_that_is_due_is_not_cancelled(server: Server) -> None:
    watcher = server.watch()
    dying(server, 5, delay=5, interval=50).drop()
    server.clock.now += 5.1  # no look at deadlines
    returned(server).expect_nothing()
    expect_will(server, watcher, 0)


TAKEOVERS = [  # Clean Start, delay, interval, will
    (False, 0, 50, 0),
    (False, 5, 50, None),
    (False, 50, 5, None),
    (False, 0, 0, 0),
    (False, 5, 0, 0),
    (True, 0, 0, 0),
    (True, 5, 0, 0),
    (True, 0, 50, 0),
    (True, 5, 50, 0),
]


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize(("clean_start", "delay", "interval", "after"), TAKEOVERS)
def test_b07__takeover(
    server: Server, clean_start: bool, delay: int, interval: int, after: int | None, new: int
) -> None:
    watcher, old = server.watch(), dying(server, 5, delay, interval)
    present = None if new == 3 else interval > 0 and not clean_start
    newcomer = server.connect("c", new, clean_start=clean_start, session_present=present)
    old.expect_close(0x8E)
    expect_will(server, watcher, after)
    newcomer.drop()
    expect_will(server, watcher, None)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("interval", [0, 1])
def test_b07__3x_has_no_delay(server: Server, version: int, interval: int) -> None:
    watcher = server.watch()
    for end in ABNORMAL_3X.values():
        end(server, dying(server, version, interval=interval))
        expect_will(server, watcher, 0)
    dying(server, version, interval=interval).disconnect()
    expect_will(server, watcher, None)


@pytest.mark.parametrize("old", [3, 4])
@pytest.mark.parametrize("interval", [0, 1])
@pytest.mark.parametrize("clean_start", [True, False])
def test_b07__3x_takeover(server: Server, old: int, interval: int, clean_start: bool) -> None:
    watcher, client = server.watch(), dying(server, old, interval=interval)
    server.connect("c", clean_start=clean_start, session_present=interval > 0 and not clean_start)
    client.expect_close()
    expect_will(server, watcher, 0)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean_start", [True, False])
def test_b07__a_new_session_does_not_get_its_own_old_will(
    server: Server, version: int, clean_start: bool
) -> None:
    watcher, old = server.watch(), dying(server, version, interval=0)
    new = server.client(version)
    raw = wire.connect("c", version=version, clean_start=clean_start)
    new.send(raw, wire.subscribe(1, "w", version=version), wire.publish("other", b"x", version=version))
    new.expect("CONNACK", reason_code=0, session_present=False)
    new.expect("SUBACK", packet_id=1)
    new.expect_nothing()
    old.expect_close(0x8E)
    watcher.expect_messages(("w", b"gone"), ("other", b"x"))


@pytest.mark.parametrize("no_local", [True, False])
def test_b07__a_resumed_session_gets_it_unless_no_local(server: Server, no_local: bool) -> None:
    will = wire.will("w", b"gone", qos=1)
    old = server.connect("c", session_expiry_interval=60, will=will)
    old.subscribe("w", qos=1, no_local=no_local)
    new = returned(server)
    old.expect_close(0x8E)
    new.expect_messages(*[b"gone"] * (not no_local), qos=1, dup=False)


def test_b07__its_owner_may_not_publish_there(serve: Serve) -> None:
    server = serve(hooks=[Policy(publish={"w": 0x87})])
    watcher = server.watch()
    will = wire.will("w", b"gone", qos=1, retain=True)
    server.connect("c", will=will).drop()
    server.connect("d", 4, will=will).drop()
    watcher.expect_nothing()
    assert server.retained() == []


def test_b07__retained_rules_and_overlap(server: Server) -> None:
    client = server.connect("s")
    client.subscribe("w/#", "w/+", "#", qos=2, subscription_identifier=3)
    client.subscribe(("w/a", wire.options(1, retain_as_published=True)), subscription_identifier=4)
    server.connect("c", will=wire.will("w/a", b"gone", qos=1, retain=True)).drop()
    [packet] = client.expect_messages(b"gone", qos=1, retain=True)
    assert sorted(packet.properties["subscription_identifier"]) == [3, 3, 3, 4]
    assert server.retained("w/#") == [("w/a", b"gone")]
    server.connect("c", will=wire.will("w/a", b"", retain=True)).drop()
    client.expect_messages(b"", retain=True)
    assert server.retained("w/#") == []


def test_b07__expiry_counts_from_publication(server: Server) -> None:
    watcher = server.watch()
    will = wire.will("w", b"gone", qos=1, retain=True, will_delay_interval=50, message_expiry_interval=10)
    server.connect("c", will=will, session_expiry_interval=100).drop()
    sleeper = server.connect("s", session_expiry_interval=1000)
    sleeper.subscribe("w", qos=1)
    sleeper.drop()
    server.advance(50)
    watcher.expect("PUBLISH", payload="gone", message_expiry_interval=10)
    server.advance(4)
    returned(server, "s", session_expiry_interval=1000).expect("PUBLISH", message_expiry_interval=6)
    server.advance(5.9)
    assert server.retained() == [("w", b"gone")]
    server.advance(0.2)
    assert server.retained() == []


def test_b07__will_delay_interval_is_not_forwarded(server: Server) -> None:
    watcher = server.watch()
    will = wire.will("w", b"gone", will_delay_interval=1, content_type="x", user_property=[("a", "b")])
    server.connect("c", will=will, session_expiry_interval=60).drop()
    server.advance(1)
    watcher.expect("PUBLISH", properties={"content_type": "x", "user_property": [("a", "b")]})


BAD_WILLS = [
    (wire.will("w/+"), {}, 0x90),
    (wire.will(""), {}, 0x90),
    (wire.will("$SYS/w"), {}, 0x90),
    (wire.will("$other/w"), {}, 0x90),
    (wire.will("a/b/c"), {"maximum_topic_levels": 2}, 0x90),
    (wire.will("w", qos=1), {"maximum_qos": 0}, 0x9B),
    (wire.will("w", retain=True), {"retain_available": False}, 0x9A),
]


@pytest.mark.parametrize(("will", "settings", "code"), BAD_WILLS)
def test_b07__checked_at_connect(serve: Serve, will: wire.Will, settings: dict[str, Any], code: int) -> None:
    server = serve(**settings)
    server.expect_refused(wire.connect("c", will=will), codes=code)
    server.expect_refused(wire.connect("c", will=will, version=4), version=4)


@pytest.mark.parametrize(
    ("interval", "delay", "published"), [(0, 0, True), (0, 5, True), (60, 0, True), (60, 5, False)]
)
def test_b07__shutdown(serve: Serve, interval: int, delay: int, published: bool) -> None:
    server, heard = serve(grace_time=0.05), list[bytes]()
    client = dying(server, 5, delay, interval)
    server.run(_stop_and_listen(server, heard))
    client.expect_close(0x8B)
    assert heard == [b"gone"] * published


async def _stop_and_listen(server: Server, heard: list[bytes]) -> None:
    """Stops the broker; *heard* is what a subscriber within the program gets while it stops."""
    subscription = server.broker.subscribe("w")
    await server.broker.stop()
    try:
        while True:
            heard.append((await asyncio.wait_for(anext(aiter(subscription)), 0.02)).payload)
    except (TimeoutError, StopAsyncIteration):
        return


def test_b07__each_connect_replaces_the_stored_will(server: Server) -> None:
    watcher = server.watch()
    kwargs = {"session_expiry_interval": 60, "clean_start": False}
    for payload in (b"1", b"2"):
        old = server.connect("c", will=wire.will("w", payload, will_delay_interval=5), **kwargs)
    old.drop()
    server.advance(5)
    watcher.expect_messages(b"2")
    server.connect("c", will=wire.will("w", b"3", will_delay_interval=5), **kwargs).drop()
    server.connect("c", **kwargs).drop()
    server.advance(100)
    watcher.expect_nothing()
