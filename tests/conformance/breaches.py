"""Breaches in the middle of a session, and what is left of it."""

from __future__ import annotations

from tests.conformance.server import Server


def without_effect(server: Server, raw: bytes, code: int, *topics: str) -> None:
    """*raw* closes with *code*, and none of *topics* is subscribed in the session that is left."""
    client = server.connect("c", session_expiry_interval=60)
    client.send(raw)
    client.expect_close(code)
    client.drop()
    again = server.connect("c", clean_start=False, session_present=True)
    publisher = server.connect("p")
    for topic_name in topics:
        publisher.publish(topic_name, b"x", qos=1, reason=0x10)
    again.expect_nothing()
