"""CONNECT packets of 3.1.1: those that are closed without a byte, and the answers to the others."""

from __future__ import annotations

from typing import Any

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.server import Server
from tests.conformance.sessions import subscribed

SERVED, RESUMED = bytes.fromhex("20 02 00 00"), bytes.fromhex("20 02 01 00")
WILL = wire.will("w/t", b"gone", qos=1)
FF = b"\xff"


def connect(client_id: str | bytes = "c", **kwargs: Any) -> bytes:
    """A CONNECT of 3.1.1."""
    return wire.connect(client_id, version=4, **kwargs)


def fields(*values: str | bytes) -> bytes:
    """A CONNECT payload of length-prefixed fields."""
    return b"".join(wire.string(value) for value in values)


# CONNECT packets that are closed without a byte, by what is wrong with them.
BROKEN: dict[str, list[bytes]] = {
    "reserved flag": [connect(flags=flags) for flags in (0x03, 0x01)],
    "no will topic": [connect(flags=0x06, payload=fields("c"))],
    "no will message": [connect(flags=0x06, payload=fields("c", "w"))],
    "will message cut off": [connect(flags=0x06, payload=fields("c", "w") + b"\0\5ab")],
    "will fields without a will": [connect(tail=fields("w", "gone"))],
    "will qos without a will": [connect(flags=flags) for flags in (0x08, 0x10, 0x18, 0x0A, 0x12, 0x1A)],
    "will retain without a will": [connect(flags=flags) for flags in (0x20, 0x22)],
    "will qos 3": [connect(flags=flags, payload=fields("c", "w", "")) for flags in (0x1E, 0x1C, 0x3E)],
    "user name without its flag": [connect(tail=fields("u"))],
    "no user name": [connect(flags=0x82, payload=fields("c"))],
    "password without its flag": [connect(user_name="u", tail=fields("p"))],
    "no password": [connect(flags=0xC2, payload=fields("c", "u"))],
    "password without user name": [connect(flags=flags, payload=fields("c", "p")) for flags in (0x42, 0x40)],
    "no client identifier": [connect(payload=b""), connect(payload=b"\0"), connect(payload=b"\0\2c")],
    "client identifier": [connect(FF)],
    "will topic": [connect(will=wire.will(topic)) for topic in (FF, "", "w/+", "w/#", "#", "w+")],
    "user name": [connect(user_name=FF)],
    "order": [
        connect(flags=0x06, payload=fields("c", FF, "w")),
        connect(flags=0x06, payload=fields(FF, "c", "w")),
        connect(flags=0xC2, payload=fields("c", FF, "u")),
    ],
    "trailing byte": [connect(tail=b"\0"), connect(will=WILL, user_name="u", password=b"p", tail=b"\0\0")],
}


def refuse_all(server: Server, *kinds: str) -> None:
    """Close, no CONNACK, nothing routed, for each packet of *kinds*."""
    for kind in kinds:
        for packet in BROKEN[kind]:
            server.expect_refused(packet, version=4)


def expect_answer(server: Server, raw: bytes, answer: str, *after: bytes) -> None:
    """*raw* is answered with these very bytes, and the connection is closed."""
    wanted = bytes.fromhex(answer)
    client = server.client(5 if len(wanted) == 5 else 4)
    client.send(raw, *after)
    found = client.expect_close(wanted[3])
    assert found is not None and found.raw == wanted, f"{raw.hex(' ')} -> {found}"


def expect_raw(client: Raw, wanted: bytes) -> None:
    assert client.recv().raw == wanted


def keep(server: Server, client_id: str = "s", topic_filter: str = "t") -> None:
    """A CleanSession 0 session with one QoS 2 subscription, whose client is away."""
    subscribed(server, topic_filter, client_id=client_id, version=4, session_present=False).disconnect()
