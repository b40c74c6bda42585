"""Strings that are no UTF-8, the packets that can hold a string, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance import wire
from tests.conformance.codes import MALFORMED
from tests.conformance.server import Server

BOM = "\ufeff"

ILL_FORMED = {
    "overlong": b"\xc0\x80",
    "surrogate": b"\xed\xa0\x80",
    "no start byte": b"\xff",
    "beyond U+10FFFF": b"\xf5\x80\x80\x80",
    "truncated": b"a\xe2\x82",
}
BAD_UTF_8 = [b"\xff", b"\x00", b"a\x00b", b"\xc0\x80", b"\xed\xa0\x80", b"t\xe2\x82"]


def connects_with(text: bytes, version: int = 5) -> Iterator[bytes]:
    """A CONNECT for each string field of it, with *text* there."""
    yield wire.connect(text, version=version)
    yield wire.connect("c", user_name=text, version=version)
    yield wire.connect("c", will=wire.will(text), version=version)
    if version == 5:
        yield wire.connect("c", will=wire.will("w", response_topic=text))
        yield wire.connect("c", will=wire.will("w", content_type=text))
        yield wire.connect("c", properties=[(0x15, text)])


def packets_with(text: bytes, version: int = 5) -> Iterator[bytes]:
    """A packet for each string field of those that follow CONNECT, with *text* there."""
    yield wire.publish(text, b"x", version=version)
    yield wire.publish(text, b"x", qos=1, retain=True, version=version)
    yield wire.subscribe(1, text, version=version)
    yield wire.unsubscribe(1, text, version=version)
    if version == 5:
        yield wire.publish("t", b"x", properties=[(0x08, text)])
        yield wire.publish("t", b"x", properties=[(0x03, text)])
        yield wire.publish("t", b"x", qos=1, properties=[(0x26, (text, "v"))])
        yield wire.publish("t", b"x", qos=2, retain=True, properties=[(0x26, ("k", text))])
        yield wire.puback(1, 0x80, [(0x1F, text)])
        yield wire.disconnect(0x80, [(0x1F, text)])


def expect_text_refused(server: Server, text: bytes, version: int = 5) -> None:
    """*text* makes every packet malformed that holds it, and nothing is retained."""
    for raw in connects_with(text, version):
        server.expect_refused(raw, codes=MALFORMED if version == 5 else (), version=version)
    for raw in packets_with(text, version):
        server.expect_breach(raw, codes=MALFORMED, version=version)
    assert server.retained() == []
