"""B05: takeover."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.hooks import Gate, Policy
from tests.conformance.server import Server
from tests.conformance.sessions import kept, returned


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize("old", [3, 4, 5])
def test_b05__the_old_connection_is_closed(server: Server, old: int, new: int) -> None:
    first = server.connect("c", old)
    second = server.connect("c", new)
    first.expect_close(0x8E)
    second.expect_nothing()


def test_b05__only_after_authentication(serve: Serve) -> None:
    gate = Gate("c")
    server = serve(hooks=[Policy(users={"u": 0x86}), gate])
    server.run(gate.open())
    old = server.connect("c")
    server.run(_close(gate))
    refused, slow = server.client(), server.client()
    refused.send(wire.connect("c", user_name="u"))
    refused.expect_close(0x86)
    server.hold(gate, slow, wire.connect("c"))
    old.expect_nothing()
    server.run(gate.open())
    old.expect_close(0x8E)
    slow.expect("CONNACK", reason_code=0)


async def _close(gate: Gate) -> None:
    gate.opened.clear()


def test_b05__the_old_connection_processes_nothing_more(serve: Serve) -> None:
    gate = Gate("gate")
    server = serve(hooks=[gate])
    watcher, old = server.watch("after"), server.connect("c", session_expiry_interval=60)
    old.publish("after", b"acknowledged", qos=1, reason=0)
    chunks = [
        wire.publish("gate", qos=1, packet_id=5),
        wire.publish("after", b"x"),
        wire.subscribe(9, "after"),
    ]
    server.hold(gate, old, *chunks)
    returned(server).expect_nothing()
    old.expect_close(0x8E)
    server.run(gate.open())
    server.settle()
    watcher.expect_messages(b"acknowledged")


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize("old", [3, 4, 5])
def test_b05__state_moves_across_versions(server: Server, old: int, new: int) -> None:
    watcher, publisher = server.watch("in"), server.connect("p")
    first = (
        server.connect("c", old, receive_maximum=3, **kept(5))
        if old == 5
        else server.connect("c", old, **kept(4))
    )
    first.subscribe("s/#", qos=2)
    first.send(wire.publish("in", b"held", qos=2, packet_id=9, version=old))
    first.expect("PUBREC", packet_id=9)
    for number, qos in enumerate((1, 2, 2, 1, 1)):
        publisher.publish("s/t", str(number), qos=qos, reason=0)
    sent = [first.expect("PUBLISH", payload=str(number), dup=False) for number in range(3 if old == 5 else 5)]
    first.send(wire.pubrec(sent[2].packet_id, version=old))
    first.expect("PUBREL", packet_id=sent[2].packet_id)

    second = returned(server, version=new, **kept(5) if new == 5 else {})
    first.expect_close(0x8E)
    identifiers = [packet.packet_id for packet in sent]
    again = []
    for number in (0, 1):
        fields = {"payload": str(number), "qos": number + 1, "packet_id": identifiers[number]}
        again.append(second.expect("PUBLISH", dup=True, **fields))
    again.append(second.expect("PUBREL", packet_id=identifiers[2]))
    for number in (3, 4):
        again.append(second.expect("PUBLISH", payload=str(number), qos=1, dup=number < len(sent)))
    second.expect_nothing()
    for packet in again:
        second.ack(packet)
    second.release(9)
    watcher.expect_messages(b"held")
    publisher.publish("s/t", b"live", qos=1, reason=0)
    second.expect("PUBLISH", payload="live")


@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize("old", [3, 4, 5])
@pytest.mark.parametrize("clean_start", [True, False])
def test_b05__a_session_that_ends_with_its_connection_is_not_taken_over(
    server: Server, old: int, new: int, clean_start: bool
) -> None:
    watcher = server.watch("w")
    first = server.connect("c", old, will=wire.will("w", b"gone"))
    first.subscribe("t", qos=1)
    second = server.connect("c", new, clean_start=clean_start, session_present=False)
    first.expect_close(0x8E)
    watcher.expect_messages(b"gone")
    server.connect("p").publish("t", b"x", qos=1, reason=0x10)
    second.expect_nothing()


@pytest.mark.parametrize(("version", "code"), [(5, 0x87), (4, 5), (3, 5)])
@pytest.mark.parametrize("connected", [True, False])
def test_b05__another_user_is_refused(server: Server, version: int, code: int, connected: bool) -> None:
    old = server.connect("c", user_name="u", session_expiry_interval=60)
    if not connected:
        old.drop()
    for name in ("other", "U", None):
        client = server.client(version)
        client.send(wire.connect("c", version=version, clean_start=False, user_name=name))
        client.expect_close(code)
    if connected:
        old.expect_nothing()
    returned(server, user_name="u").expect_nothing()


@pytest.mark.parametrize("connected", [True, False])
def test_b05__another_user_by_setting(serve: Serve, connected: bool) -> None:
    server = serve(takeover="any")
    old = server.connect("c", user_name="u", session_expiry_interval=60)
    if not connected:
        old.drop()
    returned(server, user_name="other").expect_nothing()
    if connected:
        old.expect_close(0x8E)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_b05__connections_that_fight_over_one_client_id_are_slowed(
    serve: Serve, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    server = serve(maximum_takeovers=3, takeover_period=60)
    holder = server.connect("c")
    for _ in range(3):
        before, holder = holder, server.connect("c")
        before.expect_close(0x8E)
    for _ in range(5):
        newcomer = server.client(version)
        newcomer.send(wire.connect("c", version=version))
        newcomer.expect_close(*[0x9F] if version == 5 else [None])
    holder.expect_nothing()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1 and told[0].count("127.0.0.1:") == 2, told
    server.connect("other").expect_nothing()
    server.advance(20.1)
    server.connect("c")
    holder.expect_close(0x8E)


def test_b05__a_client_id_that_nobody_holds_is_free_even_in_a_storm(serve: Serve) -> None:
    server = serve(maximum_takeovers=1, takeover_period=60)
    server.connect("c")
    server.connect("c").drop()
    server.connect("c").expect_nothing()


def test_b05__fights_over_a_client_id_by_setting(serve: Serve) -> None:
    server = serve(maximum_takeovers=0)
    for _ in range(40):
        holder = server.connect("c")
    server.connect("c")
    holder.expect_close(0x8E)


def test_b05__another_users_attempts_are_no_takeovers(serve: Serve) -> None:
    server = serve(maximum_takeovers=1)
    server.connect("c", user_name="u")
    for _ in range(5):
        stranger = server.client()
        stranger.send(wire.connect("c", user_name="other"))
        stranger.expect_close(0x87)
    server.connect("c", user_name="u")
