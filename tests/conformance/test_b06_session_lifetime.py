"""B06: how long a session lives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.sessions import NEVER, kept, returned


def ends_after(server: Server, seconds: float, leave: Callable[[], None], version: int = 5) -> None:
    """*leave* makes the session of "c" and leaves it; it ends after *seconds*, and not earlier."""
    for waited, present in ((seconds - 0.1, True), (seconds + 0.1, False)):
        leave()
        server.advance(waited)
        last = returned(server, version=version, present=present)
        last.expect_nothing()
        last.disconnect()
        server.connect("c", version).disconnect()


@pytest.mark.parametrize(("asked", "held"), [(99, 99), (100, 100), (101, 100), (NEVER, 100)])
def test_b06__the_interval_is_capped_and_told_if_changed(serve: Serve, asked: int, held: int) -> None:
    server = serve(session_expiry_interval=100)

    def leave() -> None:
        client = server.client()
        connack = client.connect("c", session_expiry_interval=asked)
        assert connack.properties.get("session_expiry_interval") == (None if asked == held else held)
        client.drop()

    ends_after(server, held, leave)


@pytest.mark.parametrize(("last", "held"), [(20, 20), (200, 100), (NEVER, 100)])
@pytest.mark.parametrize("code", [0x00, 0x04, 0x80])
def test_b06__disconnect_changes_the_interval(serve: Serve, last: int, held: int, code: int) -> None:
    server = serve(session_expiry_interval=100)

    def leave() -> None:
        client = server.connect("c", session_expiry_interval=50)
        client.disconnect(code, {"session_expiry_interval": last})

    ends_after(server, held, leave)


def test_b06__disconnect_ends_the_session_with_0(server: Server) -> None:
    client = server.connect("c", session_expiry_interval=50)
    client.disconnect(0x00, {"session_expiry_interval": 0})
    returned(server, present=False).expect_nothing()


@pytest.mark.parametrize(("old", "new"), [(50, 20), (20, 50), (50, 50)])
@pytest.mark.parametrize("taken_over", [True, False])
def test_b06__the_new_connects_interval_replaces_the_old_one(
    server: Server, old: int, new: int, taken_over: bool
) -> None:
    def leave() -> None:
        first = server.connect("c", session_expiry_interval=old)
        first.expect_nothing() if taken_over else first.drop()
        returned(server, session_expiry_interval=new).drop()

    ends_after(server, new, leave)


def test_b06__the_new_connect_without_an_interval_ends_it(server: Server) -> None:
    server.connect("c", session_expiry_interval=50).drop()
    returned(server).drop()
    returned(server, present=False).expect_nothing()


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("interval", [0, 30])
def test_b06__interval_of_3x_sessions(serve: Serve, version: int, interval: int) -> None:
    server = serve(session_expiry_interval_3x=interval)
    client = server.connect("c", version, clean_start=False)
    client.subscribe("t", qos=1)
    client.drop()
    if interval:
        server.advance(interval - 0.1)
        server.connect("p").publish("t", b"x", qos=1, reason=0)
        server.advance(0.2)
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    returned(server, version=4, present=False).expect_nothing()


@pytest.mark.parametrize("version", [3, 4])
def test_b06__clean_session_1_ends_with_its_connection(server: Server, version: int) -> None:
    client = server.connect("c", version)
    client.subscribe("t", qos=1)
    client.drop()
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    returned(server, version=4, present=False).expect_nothing()


def test_b06__the_default_of_3x_is_the_cap(server: Server) -> None:
    ends_after(server, 7 * 86400, lambda: server.connect("c", 4, clean_start=False).drop(), version=4)


def test_b06__the_clock_starts_when_the_connection_closes(server: Server) -> None:
    def leave() -> None:
        client = server.connect("c", session_expiry_interval=30)
        server.advance(1000, step=100)
        client.expect_nothing()
        client.drop()

    ends_after(server, 30, leave)


def test_b06__a_deadline_counts_before_anyone_looks_at_it(server: Server) -> None:
    client = server.connect("c", session_expiry_interval=30)
    client.subscribe("t", qos=1)
    client.drop()
    server.clock.now += 30.1  # no look at deadlines
    returned(server, present=False).expect_nothing()
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)


def test_b06__at_expiry_all_is_gone_but_retained_messages(server: Server) -> None:
    watcher, publisher = server.watch("w/#"), server.connect("p")
    will = wire.will("w/a", b"gone", will_delay_interval=1000)
    client = server.connect("c", session_expiry_interval=30, will=will)
    client.subscribe("s/#", qos=2)
    client.publish("kept", b"retained", qos=1, retain=True)
    client.send(wire.publish("w/in", b"held", qos=2, packet_id=9))
    client.expect("PUBREC", packet_id=9)
    publisher.publish("s/sent", b"1", qos=2)
    client.expect("PUBLISH", payload="1")
    client.drop()
    publisher.publish("s/queued", b"2", qos=1, reason=0)
    server.advance(30.1)
    watcher.expect_messages(("w/a", b"gone"))
    publisher.publish("s/later", b"3", qos=1, reason=0x10)
    again = returned(server, present=False)
    again.expect_nothing()
    again.release(9, reason=0x92)
    publisher.publish("s/later", b"4", qos=1, reason=0x10)
    again.expect_nothing()
    watcher.expect_nothing()
    assert server.retained() == [("kept", b"retained")]


def test_b06__at_expiry_shared_messages_go_to_another_member(server: Server) -> None:
    client, publisher = server.connect("c", session_expiry_interval=30), server.connect("p")
    client.subscribe("$share/g/t", qos=1)
    publisher.publish("t", b"1", qos=1)
    client.expect("PUBLISH", payload="1")
    other = server.connect("d")
    other.subscribe("$share/g/t", qos=1)
    client.drop()
    server.advance(29.9)
    other.expect_nothing()
    server.advance(0.2)
    other.expect_messages(b"1", qos=1, dup=False)


@pytest.mark.parametrize("properties", [{}, {"session_expiry_interval": 0}])
def test_b06__interval_0_ends_at_close(server: Server, properties: dict[str, int]) -> None:
    client = server.connect("c", **properties)
    client.subscribe("t", qos=1)
    client.drop()
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    returned(server, present=False).expect_nothing()


def test_b06__clean_start_1_starts_empty_and_is_kept(server: Server) -> None:
    for number in range(2):
        client = server.connect("c", clean_start=True, session_expiry_interval=60, session_present=False)
        client.expect_nothing()
        client.subscribe(f"t/{number}", qos=1)
        client.drop()
        server.connect("p").publish(f"t/{number}", str(number), qos=1, reason=0)
    returned(server).expect_messages(b"1")


@pytest.mark.parametrize(("old", "new"), [(5, 5), (4, 4), (5, 4), (4, 5), (3, 4)])
def test_b06__an_empty_session_is_present(server: Server, old: int, new: int) -> None:
    server.connect("c", old, **kept(old)).drop()
    returned(server, version=new).expect_nothing()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b06__removed_by_the_operator(server: Server, version: int) -> None:
    client = server.connect("c", version)
    assert server.run(server.broker.disconnect("c"))
    client.expect_close(0x98)
    returned(server, version=4, present=False).expect_nothing()


@pytest.mark.parametrize("connected", [True, False])
def test_b06__a_session_removed_by_the_program(server: Server, connected: bool) -> None:
    watcher = server.watch("w")
    client = server.connect(
        "c", session_expiry_interval=60, will=wire.will("w", b"gone", will_delay_interval=9)
    )
    client.subscribe("t", qos=1)
    if not connected:
        client.drop()
    assert server.run(server.broker.delete_session("c"))
    if connected:
        client.expect_close(0x98)
    watcher.expect("PUBLISH", payload="gone")
    assert not server.run(server.broker.delete_session("c"))
    again = server.connect("c", clean_start=False, session_present=False)
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    again.expect_nothing()
