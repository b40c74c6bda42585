"""The generator of samples, without a JVM: the same for the same seed, with everything that it promises."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from broker import Broker, ClientInfo, HookBase, Message
from broker.hook.log.line import EventRecord, MessageRecord, format_message, sound
from broker.hook.log.names import closed_segment, closed_segments
from spark.silver.sparkplug import decode
from spark.tools import samples
from spark.tools.samples import Options, messages, records
from tests.broker_scenes import port_of

FEW = Options(messages=4_000, devices=40, storms=2, changes_at=3_000)


@pytest.fixture(scope="module")
def few() -> list[MessageRecord | EventRecord]:
    return list(records(FEW))


def lines(options: Options) -> list[bytes]:
    return [format_message(offset, record) for offset, record in enumerate(messages(options))]


def test_the_same_seed_says_the_same() -> None:
    one = Options(messages=500, devices=20)
    assert lines(one) == lines(one)
    assert lines(one) != lines(Options(messages=500, devices=20, seed=2))


def test_families_are_mixed_as_promised(few: list[MessageRecord | EventRecord]) -> None:
    said = [record.topic_name for record in few if isinstance(record, MessageRecord)]
    roots = Counter(topic.partition("/")[0] for topic in said)
    shares = {root: count / roots.total() for root, count in roots.items()}
    wanted = {"zigbee2mqtt": 0.45, "tele": 0.20, "homeassistant": 0.15, "spBv1.0": 0.12, "fleet": 0.08}
    assert shares == pytest.approx(wanted, abs=0.03)


def test_one_device_is_much_louder_than_the_rest(few: list[MessageRecord | EventRecord]) -> None:
    said = Counter(record.topic_name for record in few if isinstance(record, MessageRecord))
    of_zigbee = sorted((n for topic, n in said.items() if topic.startswith("zigbee2mqtt/")), reverse=True)
    assert of_zigbee[0] > 10 * of_zigbee[len(of_zigbee) // 2]


def test_payloads_are_broken_late_and_doubled(few: list[MessageRecord | EventRecord]) -> None:
    broken = late = future = 0
    for record in few:
        if not isinstance(record, MessageRecord) or not record.topic_name.startswith("fleet/"):
            continue
        try:
            wait = record.at - json.loads(record.payload)["ts"] * 1000
        except (ValueError, KeyError, TypeError, RecursionError):
            broken += 1
            continue
        late += wait > 30_000_000
        future += wait < -30_000_000
    assert 0 < broken < 30
    assert late > 0
    doubled = sum(record.flags & 1 for record in few if isinstance(record, MessageRecord))
    assert doubled > 0


def test_the_schema_changes_at_its_message(few: list[MessageRecord | EventRecord]) -> None:
    flat = [
        record.payload
        for record in few
        if isinstance(record, MessageRecord) and record.topic_name.startswith("zigbee2mqtt/")
    ]
    changed = [at for at, payload in enumerate(flat) if b'"firmware"' in payload]
    assert len(flat) * 0.6 < changed[0] < len(flat) * 0.85


def test_a_storm_takes_all_connections_and_gives_new_ones(few: list[MessageRecord | EventRecord]) -> None:
    events = [record for record in few if isinstance(record, EventRecord)]
    left = Counter(record.event for record in events)
    clients = {record.publisher.client_id for record in events if record.event == "disconnect"}
    assert left["disconnect"] == FEW.storms * len(clients)
    accepted = [dict(record.fields) for record in events if record.event == "connect"]
    assert sum(fields["rc"] == 0 for fields in accepted) == (FEW.storms + 1) * len(clients)
    numbers = [record.publisher.connection for record in events if record.event == "connect"]
    assert len(set(numbers)) == len(numbers)


def test_edge_nodes_are_born_count_and_die(few: list[MessageRecord | EventRecord]) -> None:
    seqs: dict[str, int] = {}
    kinds: Counter[str] = Counter()
    for record in few:
        if not isinstance(record, MessageRecord) or not record.topic_name.startswith("spBv1.0/"):
            continue
        kind, edge = record.topic_name.split("/")[2:4]
        kinds[kind] += 1
        try:
            seq = decode(record.payload).seq
        except ValueError:
            seq = None
        if seq is None or kind == "NDEATH":
            seqs.pop(edge, None)
            continue
        assert kind == "NBIRTH" or edge not in seqs or seq == (seqs[edge] + 1) % 256
        seqs[edge] = seq
    assert set(kinds) == {"NBIRTH", "DBIRTH", "DDATA", "NDEATH"}


@pytest.mark.parametrize("gz", [False, True])
def test_a_log_by_the_layout(tmp_path: Path, gz: bool) -> None:
    arguments = ["--log", str(tmp_path), "--messages", "600", "--devices", "10", "--duration", "7200"]
    assert samples.main([*arguments, *(["--gzip"] if gz else [])]) == 0
    for kind in ("messages", "events"):
        found = [(path, segment) for path, segment in closed_segments(tmp_path, kind)]
        assert len({path.parent for path, _ in found}) >= 2  # of more than one hour
        wanted = 0
        for path, segment in sorted(found, key=lambda each: each[1].first):
            data = gzip.decompress(path.read_bytes()) if gz else path.read_bytes()
            assert segment == closed_segment(path.name)
            rows = data.splitlines(keepends=True)
            assert all(map(sound, rows))
            assert (segment.first, segment.last) == (wanted, wanted + len(rows) - 1)
            wanted += len(rows)


class Heard(HookBase):
    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
        self.messages.append(message)
        return message


def test_published_to_a_broker() -> None:
    few, heard = Options(messages=120, devices=10, storms=0), Heard()

    async def run() -> None:
        async with Broker(listen=["tcp://127.0.0.1:0"], hooks=[heard]) as broker:
            port = port_of(broker)
            sent = await asyncio.to_thread(samples.publish, few, "127.0.0.1", port, 5_000)
            assert sent == sum(1 for _ in messages(few))

    asyncio.run(run())
    wanted = Counter((record.topic_name, record.payload) for record in messages(few) if record.flags >> 2)
    found = Counter((each.topic_name, bytes(each.payload)) for each in heard.messages if each.qos)
    assert found == wanted


@pytest.mark.parametrize("arguments", [[], ["--broker", "nowhere"], ["--log", "x", "--messages", "many"]])
def test_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        samples.main(arguments)
    assert error.value.code == 2
