"""What the fast lane took makes the same lines as what came message by message."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import Capacity, Config, MessageLog, Version
from broker.hook.log import runs as module
from broker.hook.log.line import MessageRecord, Publisher, format_message, sound
from broker.hook.log.runs import Runs
from broker.packet.codec import encode
from broker.packet.packets import Pingreq, Pingresp, Puback, Publish
from tests.hook.conftest import MEMORY
from tests.hook.log.files import read_log, trouble
from tests.hook.log.test_line import properties
from tests.peer import Peer, memory_broker, run_async

WHO = Publisher("c", 1, 5, "ada")
topics = st.sampled_from(["t", "a/b", "\u00fc/\U0001f600", "x" * 300])
publishes = st.builds(
    lambda topic, payload, qos, retain, packet_id, found: Publish(
        topic, payload, qos, retain, packet_id=packet_id if qos else 0, properties=found
    ),
    topics,
    st.binary(max_size=300),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 65535),
    st.just({}) | properties.filter(lambda found: len(json.dumps(found, default=str)) < 60),
)
others = st.sampled_from([Pingreq(), Puback(7)])


@settings(deadline=None)
@given(st.lists(publishes | others, min_size=1, max_size=8), st.booleans(), st.sampled_from([0, 5]))
def test_a_run_is_the_lines_of_its_messages(packets: list[Any], five: bool, most: int) -> None:
    version = Version.MQTT_5 if five else Version.MQTT_3_1_1
    found = [packet for packet in packets if isinstance(packet, Publish)]
    if not five:
        for packet in found:
            packet.properties = {}
    data = b"".join(encode(packet, version) for packet in packets)
    lines = Runs(most).lines(5, (77, len(found), five, WHO, data, None, None, None, 0))
    expected = []
    for n, packet in enumerate(found, 5):
        cut = len(packet.payload) if most and len(packet.payload) > most else None
        payload = packet.payload[:most] if most else packet.payload
        flags = packet.qos << 2 | packet.retain << 1
        record = MessageRecord(77, packet.topic_name, flags, WHO, payload, cut, packet.properties)
        expected.append(format_message(n, record))
    assert lines == expected
    assert all(sound(line) for line in lines)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN", 10)
    made = Runs()
    for n in range(100):
        packet = Publish(f"t/{n}", properties={"content_type": f"{n}"})
        made.lines(0, (0, 1, True, WHO, encode(packet, Version.MQTT_5), None, None, None, 0))
        assert len(made._topics) <= 10 and len(made._blocks) <= 10


async def logged(
    folder: Path, fast: bool, packets: list[Publish], version: Version, at_once: int
) -> list[Any]:
    """The lines of a conversation, and of who has left."""
    config = Config(capacity=Capacity(fast_lane=fast))
    hook = MessageLog(folder, compress=False, wall=lambda: 1_700_000_000.0)
    async with memory_broker(config, hooks=[hook]) as broker:
        watcher, peer = Peer(broker), Peer(broker, version)
        await watcher.connect("w")
        await watcher.subscribe("#", qos=1)
        await peer.connect("c", user_name="ada")
        for at in range(0, len(packets), at_once):
            peer.send(*packets[at : at + at_once], Pingreq())
            while not isinstance(found := await peer.recv(), Pingresp):
                assert found is not None, "the broker has ended the connection"
    taken = hook._messages.next
    lines = read_log(folder, "messages")
    assert taken == len(lines) == len(packets)
    ends = [
        line for line in read_log(folder, "events") if line.get("ev") == "disconnect" and line["c"] == "c"
    ]
    return [[line.pop("k") and line for line in lines], ends[0]["in"], ends[0]["bin"]]


@settings(max_examples=10, deadline=None)
@given(st.lists(publishes, min_size=1, max_size=20), st.booleans(), st.integers(1, 7))
def test_both_lanes_write_the_same_log(packets: list[Publish], five: bool, at_once: int) -> None:
    version = Version.MQTT_5 if five else Version.MQTT_3_1_1
    for n, packet in enumerate(packets, 1):
        packet.packet_id = n if packet.qos else 0
        if not five:
            packet.properties = {}
        known = packet.properties.keys() & {"correlation_data", "payload_format_indicator"}
        packet.properties = {name: packet.properties[name] for name in known}  # texts may be refused
        if five and n % 3 == 0:
            packet.properties |= {"content_type": "text", "user_property": [("a", "1"), ("a", f"{n}")]}
    with tempfile.TemporaryDirectory(dir=MEMORY) as one, tempfile.TemporaryDirectory(dir=MEMORY) as other:
        found = [
            asyncio.run(logged(Path(folder), fast, packets, version, at_once))
            for folder, fast in ((one, True), (other, False))
        ]
    for lines, *_ in found:
        for line in lines:
            assert line.pop("ts") == 1_700_000_000_000_000
    assert found[0] == found[1]


@run_async
async def test_a_run_without_room_is_a_gap(tmp_path: Path) -> None:
    disk = trouble()
    hook = MessageLog(tmp_path, compress=False, disk=disk, maximum_records=10)
    config = Config(capacity=Capacity(fast_lane=True))
    async with memory_broker(config, hooks=[hook]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.expect_nothing()
        disk.held.clear()
        for _ in range(20):
            peer.send(*[Publish("t", b"x")] * 8)
            await peer.expect_nothing()
        assert hook._messages.dropped >= 100
        disk.held.set()
    found = read_log(tmp_path, "messages")
    assert sum(line.get("gap", 1) for line in found) == 160
