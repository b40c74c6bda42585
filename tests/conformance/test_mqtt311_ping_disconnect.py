"""MQTT 3.1.1, sections 3.12 and 3.14: PINGREQ and DISCONNECT."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.connects_311 import WILL, expect_raw
from tests.conformance.server import Server

# ------------------------------------------------------------------------------- 3.12 PINGREQ


def test_mqtt311_3_12_4_1__pingresp(server: Server) -> None:
    client = server.connect("c", 4)
    client.send(bytes.fromhex("C0 00"))
    expect_raw(client, bytes.fromhex("D0 00"))
    client.send(*[wire.pingreq()] * 100)
    for _ in range(100):
        client.expect("PINGRESP")
    client.expect_nothing()


@pytest.mark.parametrize("raw", ["C0 01 00", "C0 02 00 01"])
def test_mqtt311_3_12_4_1__with_a_body(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=(), version=4)


# ------------------------------------------------------------------------------- 3.14 DISCONNECT


@pytest.mark.parametrize("raw", ["E1 00", "E2 00", "E4 00", "E8 00", "EF 00", "E0 01 00", "E0 02 00 00"])
def test_mqtt311_3_14_1_1__reserved_bits_or_a_body(server: Server, raw: str) -> None:
    server.expect_breach(bytes.fromhex(raw), codes=(), version=4)


def test_mqtt311_3_14_4_2__nothing_after(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c", 4, will=WILL)
    late = [
        wire.publish("t", b"late", version=4),
        wire.publish("t", b"late", qos=1, retain=True, version=4),
        wire.pingreq(),
    ]
    client.send(wire.disconnect(), *late)
    client.expect_close()
    watcher.expect_nothing()
    assert server.retained() == []


def test_mqtt311_3_14_4_3__will_is_discarded(server: Server) -> None:
    watcher = server.watch()
    for clean in (True, False):
        client = server.connect("c", 4, clean_start=clean, will=WILL)
        client.send(bytes.fromhex("E0 00"))
        client.expect_close()
        client.drop()
    server.advance(100)
    watcher.expect_nothing()
