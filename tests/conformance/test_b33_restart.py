"""B33: restart."""

from __future__ import annotations

from pathlib import Path

from broker.config import Store
from tests.conformance import wire
from tests.conformance.conftest import Serve
from tests.conformance.deliveries import publish_numbers
from tests.conformance.server import Server
from tests.conformance.sessions import offline, resume


def test_b33__without_persistence_sessions_are_lost(serve: Serve) -> None:
    """Nowhere to keep them, the embedded default: after a restart no session, no queued or held message and
    no retained message is there, and Session Present 0 tells every client so."""
    server = serve(grace_time=0.05)
    offline(server)
    publisher = server.connect("p", session_expiry_interval=60)
    publisher.publish("t", b"queued", 1, retain=True, reason=0)
    publisher.send(wire.publish("t", b"held", qos=2, packet_id=9))
    publisher.expect("PUBREC", packet_id=9)
    connected = server.connect("3.1.1", 4, clean_start=False)
    connected.subscribe("t", qos=1)
    server.restart()
    publisher.expect_close(0x8B)
    connected.expect_close(skip=["PUBLISH"])
    assert server.retained() == []
    client = server.connect("s", clean_start=False, session_present=False, session_expiry_interval=60)
    publisher = server.connect("p", clean_start=False, session_present=False)
    old = server.connect("3.1.1", 4, clean_start=False, session_present=False)
    publisher.release(9, reason=0x92)
    publisher.publish("t", b"nobody is subscribed", 1, reason=0x10)
    for one in (client, publisher, old):
        one.expect_nothing()


def test_b33__the_session_after_it_works(server: Server) -> None:
    """What a client does when it is told: it subscribes again, and its session is kept from then on."""
    offline(server)
    server.restart()
    client = server.connect("s", clean_start=False, session_present=False, session_expiry_interval=60)
    client.subscribe("t", qos=1)
    client.drop()
    publish_numbers(server, 1)
    client = resume(server)
    client.ack(client.expect("PUBLISH", payload="0", packet_id=1))
    client.expect_nothing()


def test_b33__with_a_store_everything_goes_on(serve: Serve, tmp_path: Path) -> None:
    """As after a network cut: Session Present 1, DUP, PUBREL, held and queued messages, what is retained."""
    server = serve(store=Store(path=str(tmp_path / "broker.db")), grace_time=0.05)
    client = server.connect("s", session_expiry_interval=60)
    client.subscribe("t", qos=2)
    publisher = server.connect("p", session_expiry_interval=60)
    publisher.publish("t", b"1", 1, retain=True, reason=0)
    client.expect("PUBLISH", payload="1", packet_id=1, dup=False)
    publisher.send(wire.publish("t", b"2", qos=2, packet_id=9))
    publisher.expect("PUBREC", packet_id=9)
    client.drop()
    publish_numbers(server, 1)
    server.restart()
    publisher.expect_close(0x8B)
    assert server.retained() == [("t", b"1")]
    client = resume(server)
    client.expect("PUBLISH", payload="1", packet_id=1, dup=True)
    client.expect("PUBLISH", payload="0", dup=False)
    publisher = server.connect("p", clean_start=False, session_present=True)
    publisher.release(9, reason=0)
    client.expect("PUBLISH", payload="2", qos=2, dup=False)
    client.expect_nothing()
