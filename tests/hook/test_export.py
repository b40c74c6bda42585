"""MessageLog within a broker: what it logs, what waits for the disk, and what happens when that is slow."""

from __future__ import annotations

import asyncio
import base64
import errno
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker import Broker, ConfigError, Dedup, HookBase, MessageLog, QuotaExceeded, ReasonCode, Version
from broker.config import load
from broker.hook import export
from broker.hook.log import recorder as recorders
from broker.hook.log.line import MessageRecord
from broker.hook.log.names import open_folder
from broker.hook.log.recover import lock, recover
from broker.hook.log.segment import open_lines
from broker.packet.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from broker.store import journal as journals
from tests.durable import until
from tests.hook.log.files import Trouble, offsets, read_log, trouble
from tests.peer import Peer, memory_broker, run_async, settle

KEYS = ("t", "q", "r", "d")


@asynccontextmanager
async def logging_broker(
    path: Path, *hooks: Any, store: Path | None = None, **settings: Any
) -> AsyncIterator[tuple[Broker, MessageLog]]:
    """A broker with a log that tries again at once; `disk` and so on are the log's."""
    made = MessageLog(path, **{"compress": False, "fsync_interval": 0.001} | settings)
    with mock.patch.object(recorders, "RETRY", 0.002), mock.patch.object(recorders, "LINGER", 0.001):
        async with memory_broker(hooks=[*hooks, made], store=store) as broker:
            yield broker, made


def messages(path: Path) -> list[dict[str, Any]]:
    return read_log(path, "messages")


def events(path: Path, *kinds: str) -> list[dict[str, Any]]:
    """Without what differs from run to run; of *kinds*, or all but the log's own."""
    found = []
    for line in read_log(path, "events"):
        if line.get("ev") in kinds or (not kinds and line.get("ev") != "log"):
            found.append(
                {key: value for key, value in line.items() if key not in ("o", "ts", "k", "a", "dur")}
            )
    return found


# ---- messages


@run_async
async def test_a_message_of_each_kind(tmp_path: Path) -> None:
    async with logging_broker(tmp_path) as (broker, log):
        peer = Peer(broker)
        await peer.connect("c", user_name="ada")
        properties = {"content_type": "x", "user_property": [("a", "1"), ("a", "2")], "topic_alias": 3}
        peer.send(
            Publish("a/b", b"0", properties=properties), Publish("", b"alias", properties={"topic_alias": 3})
        )
        assert await peer.publish("q1", b"\x00\xff", qos=1, retain=True) == 0x10
        assert await peer.publish("q2", b"2", qos=2, packet_id=2) == 0x10
        await peer.expect_nothing()
    found = messages(tmp_path)
    assert [[line[key] for key in KEYS] for line in found] == [
        ["a/b", 0, 0, 0],
        ["a/b", 0, 0, 0],
        ["q1", 1, 1, 0],
        ["q2", 2, 0, 0],
    ]
    assert [base64.b64decode(line["p"]) for line in found] == [b"0", b"alias", b"\x00\xff", b"2"]
    assert {(line["c"], line["cn"], line["v"], line["u"]) for line in found} == {("c", 1, 5, "ada")}
    assert found[0]["ct"] == "x"
    assert found[0]["up"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    assert log.synced == (log.epoch, 3)
    assert log.sys_values()["log/messages/written"] == 4


@run_async
async def test_what_was_refused_is_not_logged_and_qos_2_is_logged_once(tmp_path: Path) -> None:
    class Refuses(HookBase):
        def on_publish(self, client: Any, message: Any) -> None:  # type: ignore[override]
            if message.topic_name == "no":
                raise QuotaExceeded("no")

    async with logging_broker(tmp_path, Refuses()) as (broker, _):
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("no", qos=1) == ReasonCode.QUOTA_EXCEEDED
        peer.send(
            Publish("once", b"", 2, packet_id=5), Publish("once", b"", 2, dup=True, packet_id=5), Pubrel(5)
        )
        for kind in (Pubrec, Pubrec, Pubcomp):
            await peer.expect(kind)
        peer.send(Publish("again", b"", 1, dup=True, packet_id=6))
        await peer.expect(Puback)
    assert [(line["t"], line["d"]) for line in messages(tmp_path)] == [("once", 0), ("again", 1)]


@pytest.mark.parametrize("also", [(), ("wills",), ("program",), ("sys",), ("wills", "program", "sys")])
@run_async
async def test_wills_the_program_and_sys_are_opt_in(tmp_path: Path, also: tuple[str, ...]) -> None:
    async with logging_broker(tmp_path, also=also) as (broker, _):
        peer = Peer(broker)
        await peer.connect("c", will=Will("will", b"w"))
        peer.drop()
        await settle(broker, "c")
        await broker.publish("program", b"p")
        broker._publish_sys()
    found = messages(tmp_path)
    kinds = {"wills": "will", "program": "program"}
    assert [line["t"] for line in found if "$SYS" not in line["t"]] == [kinds[w] for w in also if w in kinds]
    assert any(line["t"].startswith("$SYS/") for line in found) is ("sys" in also)
    assert all(("c" in line) is (line["t"] == "will") for line in found)


@run_async
async def test_filters_cuts_and_redaction(tmp_path: Path) -> None:
    def redact(record: MessageRecord) -> MessageRecord | None:
        if record.topic_name == "in/secret":
            return None
        return record._replace(payload=record.payload.replace(b"4711", b"****"))

    settings: dict[str, Any] = {"topics": ("in/#", "also/+"), "topics_out": ("in/noise",), "max_payload": 8}
    async with logging_broker(tmp_path, redact=redact, **settings) as (broker, _):
        peer = Peer(broker)
        await peer.connect("c")
        for topic_name in ("in/a", "in/noise", "out", "also/b", "also/b/c", "in/secret", "in/a"):
            peer.send(Publish(topic_name, b"no 4711 and more"))
        await peer.expect_nothing()
    found = messages(tmp_path)
    assert [line["t"] for line in found] == ["in/a", "also/b", "in/a"]
    assert {(line["p"], line["ps"]) for line in found} == {(base64.b64encode(b"no **** ").decode(), 16)}
    assert offsets(tmp_path) == [0, 1, 2]


@run_async
async def test_a_redaction_that_gives_rubbish_refuses_its_message_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def redact(record: MessageRecord) -> Any:
        rubbish = {"str": record._replace(payload="text"), "short": record[:3], "bool": True}  # type: ignore[arg-type]
        return rubbish.get(record.topic_name, record)

    async with logging_broker(tmp_path, redact=redact) as (broker, log):
        peer = Peer(broker)
        await peer.connect("c")
        for topic_name in ("str", "short", "bool"):
            assert await peer.publish(topic_name, b"x", qos=1) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            assert "message_log failed in on_taken" in caplog.text
            caplog.clear()
        assert await peer.publish("t", b"x", qos=1) == 0x10
        await until(lambda: log._messages.written == 1)
    assert [line["t"] for line in messages(tmp_path)] == ["t"]


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"message_log\.node"):
        MessageLog(tmp_path, node="a b")
    with pytest.raises(ConfigError, match=r"message_log\.topics: 'a/#/b'"):
        MessageLog(tmp_path, topics=("a/#/b",))
    with pytest.raises(ConfigError, match=r"message_log\.also"):
        MessageLog(tmp_path, also=("everything",))


@run_async
async def test_the_settings_of_a_file_make_one(tmp_path: Path) -> None:
    config = load(None, {}, [f"message_log.path={tmp_path}", "message_log.compress=no"])
    async with memory_broker(config) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.publish("t", b"x", qos=1)
        await peer.subscribe("$SYS/broker/log/#")
        found = {(await peer.expect(Publish)).topic_name for _ in range(22)}
        assert "$SYS/broker/log/messages/written" in found and "$SYS/broker/log/state" in found
    assert [line["t"] for line in messages(tmp_path)] == ["t"]


@run_async
async def test_a_path_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match=r"message_log\.path: \S+/file\S*: Not a directory"):
        async with logging_broker(tmp_path / "file" / "log"):
            pass


@run_async
async def test_log_two_writers_in_one_program(tmp_path: Path) -> None:
    async with logging_broker(tmp_path):
        with pytest.raises(ConfigError, match="another broker writes it"):
            async with logging_broker(tmp_path):
                pass
        async with logging_broker(tmp_path, node="other"):
            pass
    async with logging_broker(tmp_path):
        pass


@run_async
async def test_no_password_is_in_any_file_and_nobody_else_may_read_them(tmp_path: Path) -> None:
    root = tmp_path / "log"
    async with logging_broker(root) as (broker, log):
        for method in ({}, {"authentication_method": "M", "authentication_data": b"s3cret"}):
            peer = Peer(broker)
            peer.send(Connect("c", user_name="ada", password=b"s3cret", properties=method))
            assert isinstance(await peer.recv(), Connack)
        await until(lambda: log._events.waiting == 0)
        (open_file,) = open_folder(root, "events").iterdir()
        with open_file.open("ab") as file:  # as a crash would leave it
            file.write(b"torn")
        shutil.copytree(root, tmp_path / "crashed")
    for place in (root, tmp_path / "crashed"):
        recover(place, "broker", True)
        paths = [*place.rglob("*")]
        assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o640}
        assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o750}
        whole = b"".join(
            b"".join(open_lines(path)) if path.suffix == ".gz" else path.read_bytes()
            for path in paths
            if path.is_file()
        )
        assert b'"u":"ada"' in whole
        assert b"s3cret" not in whole and base64.b64encode(b"s3cret")[:7] not in whole


@run_async
async def test_each_start_is_an_epoch(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        async with logging_broker(tmp_path, wall=lambda: 1_700_000_000.0) as (_broker, log):
            epochs.append(log.epoch)
    assert epochs == [1_700_000_000, 1_700_000_001, 1_700_000_002]


# ---- events


@run_async
async def test_the_events_of_a_life(tmp_path: Path) -> None:
    async with logging_broker(tmp_path, deliveries="all") as (broker, _):
        peer, other = Peer(broker), Peer(broker, Version.MQTT_3_1_1)
        kept = {"session_expiry_interval": 60}
        await peer.connect("c", user_name="ada", keep_alive=30, clean_start=False, properties=kept)
        request = SubscribeRequest("t/+", 1, True, True, 2)
        peer.send(
            Subscribe(1, [request, SubscribeRequest("$share/g/t/#", 2)], {"subscription_identifier": 9})
        )
        await peer.expect(Suback)
        await other.connect("o")
        assert await other.publish("t/1", b"12345", qos=1) == 0
        for _ in range(2):
            delivered = await peer.expect(Publish)
            peer.send(Puback(delivered.packet_id))
        peer.send(Unsubscribe(2, ["t/+"]))
        await peer.expect(Unsuback)
        peer.send(Disconnect(0x04))
        await settle(broker, "c")
        other.drop()
        await settle(broker, "o")
    c = {"c": "c", "cn": 1, "v": 5, "u": "ada"}
    o = {"c": "o", "cn": 2, "v": 4}
    found = events(tmp_path)
    for line in found:
        line.pop("lat", None)
    ends = [line for line in found if line["ev"] == "disconnect"]
    assert [(e["c"], e["by"], e["rc"], e["in"], e["out"]) for e in ends] == [
        ("c", "client", 4, 0, 2),
        ("o", "network", 0x80, 1, 0),
    ]
    assert all(end["bin"] > 20 and end["bout"] > 4 for end in ends)
    who = {"l": "memory:", "sp": 0, "rc": 0}
    assert [line for line in found if line["ev"] != "disconnect"] == [
        {"ev": "connect", **c, "ka": 30, "sei": 60, "cs": 0, **who},
        {"ev": "session", **c, "st": "created", "pend": 0},
        {"ev": "subscribe", **c, "f": "t/+", "q": 1, "rc": 1, "nl": 1, "rap": 1, "rh": 2, "sid": 9},
        {"ev": "subscribe", **c, "f": "$share/g/t/#", "q": 2, "rc": 2, "nl": 0, "rap": 0, "rh": 0, "sid": 9},
        {"ev": "connect", **o, "ka": 0, "sei": 0, "cs": 1, **who},
        {"ev": "session", **o, "st": "created", "pend": 0},
        {"ev": "delivered", **c, "mo": 0, "q": 1},
        {"ev": "delivered", **c, "mo": 0, "q": 1},
        {"ev": "acked", **c, "mo": 0, "q": 1},
        {"ev": "acked", **c, "mo": 0, "q": 1},
        {"ev": "unsubscribe", **c, "f": "t/+", "rc": 0},
        {"ev": "session", **o, "st": "ended", "pend": 0},
    ]


@run_async
async def test_who_was_refused_taken_over_or_shut_out(tmp_path: Path) -> None:
    async with logging_broker(tmp_path) as (broker, _):
        bad, first, second, stays = (Peer(broker) for _ in range(4))
        bad.send(Connect("bad", properties={"authentication_method": "M"}))
        while await bad.recv() is not None:
            pass
        await first.connect("c")
        await second.connect("c")
        await settle(broker, "bad")
        await stays.connect("stays")
    refused = [line for line in events(tmp_path, "connect") if line["rc"]]
    assert [(line["c"], line["rc"]) for line in refused] == [("bad", 0x8C)]
    ends = {(line["c"], line["cn"], line["by"]) for line in events(tmp_path, "disconnect")}
    assert ends == {("c", 2, "takeover"), ("c", 3, "shutdown"), ("stays", 4, "shutdown")}
    states = [line["st"] for line in events(tmp_path, "session") if line["c"] == "c"]
    assert states[:2] == ["created", "taken_over"]


@pytest.mark.parametrize(
    ("deliveries", "seen"),
    [
        ("none", set()),
        ("dropped", {"dropped"}),
        ("acked", {"acked", "dropped"}),
        ("all", {"delivered", "acked", "dropped"}),
    ],
)
@run_async
async def test_deliveries_are_as_many_as_asked_for(tmp_path: Path, deliveries: str, seen: set[str]) -> None:
    async with logging_broker(tmp_path, deliveries=deliveries, sample=3) as (broker, _):
        peer = Peer(broker)
        await peer.connect("c", properties={"maximum_packet_size": 60})
        await peer.subscribe("t", qos=1)
        for n in range(12):
            peer.send(Publish("t", b"x" * 100 if n % 2 else b"", 1, packet_id=n + 1))
            while not isinstance(await peer.recv(), Puback):
                pass
        peer.send(*[Puback(n) for n in range(1, 13)])
        await settle_events(peer)
    found = events(tmp_path, "delivered", "acked", "dropped")
    assert {line["ev"] for line in found} == seen
    every = deliveries == "dropped"
    assert all(every or line["mo"] % 3 == 0 for line in found)
    drops = [line for line in found if line["ev"] == "dropped"]
    assert len(drops) == {"none": 0, "dropped": 6}.get(deliveries, 2)
    assert all(line["why"] == "packet_too_large" and line["lat"] >= 0 for line in drops)


async def settle_events(peer: Peer) -> None:
    """Whatever the peer sent has been handled."""
    peer.send(Pingreq())
    while not isinstance(await peer.recv(), Pingresp):
        pass


# ---- acknowledgements that wait for the disk


@run_async
async def test_an_acknowledgement_comes_after_its_sync(tmp_path: Path) -> None:
    disk = trouble()
    async with logging_broker(tmp_path, disk=disk, fsync="ack") as (broker, log):
        peer = Peer(broker)
        await peer.connect("c")
        disk.held.clear()
        peer.send(*[Publish("t", b"x", qos, packet_id=n + 1) for n, qos in enumerate((1, 2, 1, 1, 2))])
        await peer.expect_nothing()
        assert log.synced[1] == -1
        disk.held.set()
        for n, kind in enumerate((Puback, Pubrec, Puback, Puback, Pubrec)):
            assert (await peer.expect(kind)).packet_id == n + 1
        assert log.synced[1] == 4
        safe = sum(size for path, size in disk.synced.items() if "kind=messages" in path)
        (path,) = open_folder(tmp_path, "messages").iterdir()
        assert safe == path.stat().st_size
        assert await broker.publish("program", b"", qos=1) == 0x10
    assert offsets(tmp_path) == list(range(5))


@run_async
async def test_many_publishers_share_a_sync(tmp_path: Path) -> None:
    disk = trouble()
    async with logging_broker(tmp_path, disk=disk, fsync="ack") as (broker, log):
        peers = [Peer(broker) for _ in range(20)]
        for n, peer in enumerate(peers):
            await peer.connect(f"c{n}")
        syncs = []
        real = disk.sync

        def count(file: int) -> None:
            syncs.append(file)
            real(file)

        disk.sync = count  # type: ignore[method-assign, assignment]
        disk.held.clear()
        for peer in peers:
            peer.send(*[Publish("t", b"", 1, packet_id=n + 1) for n in range(50)])
        await until(lambda: log._messages.next == 1000)
        disk.held.set()
        for peer in peers:
            for n in range(50):
                assert (await peer.expect(Puback)).packet_id == n + 1
        assert len(syncs) < 100


@pytest.mark.parametrize(("error", "code"), [(errno.ENOSPC, 0x97), (errno.EIO, 0x83)])
@run_async
async def test_a_disk_that_takes_nothing_gives_no_acknowledgement(
    tmp_path: Path, error: int, code: int
) -> None:
    disk = trouble()
    async with logging_broker(tmp_path, disk=disk, fsync="ack") as (broker, log):
        peer, old, watcher = Peer(broker), Peer(broker, Version.MQTT_3_1_1), Peer(broker)
        await peer.connect("c")
        await old.connect("o")
        await watcher.connect("w")
        await watcher.subscribe("#")
        disk.write_error = error
        assert await peer.publish("held", b"", qos=1) == code, "it is refused when the disk says so"
        await until(lambda: log.failure is not None)
        assert await peer.publish("refused", b"", qos=1, packet_id=2) == code
        assert await peer.publish("refused", b"", qos=2, packet_id=3) == code
        old.send(Publish("refused", b"", 1, packet_id=1))
        await old.expect_end()
        peer.send(Publish("qos 0", b""))
        disk.write_error = 0
        await until(lambda: log.failure is None)
        assert await peer.publish("again", b"", qos=1, packet_id=4) == 0
        topics = [(await watcher.expect(Publish)).topic_name for _ in range(3)]
        assert topics == ["held", "qos 0", "again"]
    assert [line["t"] for line in messages(tmp_path)] == ["held", "qos 0", "again"]
    spoken = [line["st"] for line in events(tmp_path, "log") if "messages" in line.get("why", "messages")]
    assert spoken == ["opened", "degraded", "resumed"]


@run_async
async def test_a_copy_is_acknowledged_when_the_disk_is_well_again(tmp_path: Path) -> None:
    """Nobody else has to publish for that."""
    disk = trouble()
    async with logging_broker(tmp_path, Dedup(), disk=disk, fsync="ack") as (broker, log):
        producer = Peer(broker)
        await producer.connect("c")

        async def publish(n: int) -> int:
            claim = {"user_property": [("producer", f"q/0:1:{n}")]}
            return await producer.publish("t", b"%d" % n, qos=1, properties=claim)

        assert await publish(0) == 0x10
        disk.write_error = errno.ENOSPC
        assert await publish(1) == ReasonCode.QUOTA_EXCEEDED
        assert await publish(0) == ReasonCode.QUOTA_EXCEEDED, "what is said of it may not be true"
        disk.write_error = 0
        await until(lambda: log.failure is None)
        assert await publish(0) == 0
        assert await publish(1) == 0x10
    assert [base64.b64decode(line["p"]) for line in messages(tmp_path)] == [b"0", b"1", b"1"]


@run_async
async def test_a_mark_is_not_stored_before_its_message_is_in_the_log(tmp_path: Path) -> None:
    """Whoever sent it may be gone when the disk refuses it."""
    disk = trouble()
    store = tmp_path / "broker.db"
    with mock.patch.object(journals, "RETRY", 0.005):
        async with logging_broker(tmp_path / "log", Dedup(), store=store, disk=disk, fsync="ack") as (
            broker,
            log,
        ):
            producer = Peer(broker)
            await producer.connect("c")
            disk.held.clear()
            claim = {"user_property": [("producer", "q/0:1:0")]}
            producer.send(Publish("t", b"", 1, packet_id=1, properties=claim))
            await until(lambda: log._messages.next == 1)
            producer.drop()
            await settle(broker, "c")
            disk.write_error = errno.ENOSPC
            disk.held.set()
            await until(lambda: broker._core.journal.failures > 2)
            assert notes_in(store) == []
            disk.write_error = 0
            await until(lambda: broker._core.journal.failure is None)
            await until(lambda: len(notes_in(store)) == 1)
            assert log.synced[1] == 0


def notes_in(store: Path) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as file:
        return file.execute("SELECT * FROM note").fetchall()


@run_async
async def test_a_disk_that_hangs_keeps_the_folder_from_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = trouble()
    with mock.patch.object(export, "STOP", 0.02):
        async with logging_broker(tmp_path, disk=disk) as (broker, log):
            disk.held.clear()
            peer = Peer(broker)
            await peer.connect("c")
            assert await peer.publish("t", qos=1) == 0x10
    assert "what waits is lost" in caplog.text
    with pytest.raises(ConfigError, match="another broker writes it"):
        lock(tmp_path, "broker")
    disk.held.set()
    assert log._messages.join(10) and log._events.join(10)


# ---- a queue that is full


@run_async
async def test_log_overflow_marks_gap_in_a_broker(tmp_path: Path) -> None:
    disk = trouble()
    async with logging_broker(tmp_path, disk=disk, maximum_records=10) as (broker, log):
        peer = Peer(broker)
        await peer.connect("c")
        disk.held.clear()
        await peer.publish("first", qos=1)
        await until(lambda: log._messages.taken == 1)
        for n in range(100):
            assert await peer.publish(f"t/{n}", qos=1) == 0x10
        assert log._messages.dropped > 50
        disk.held.set()
        await until(lambda: not log._messages.full)
        await peer.publish("after", qos=1)
    found = messages(tmp_path)
    (gap,) = [line["gap"] for line in found if "gap" in line]
    assert gap + sum("t" in line for line in found) == 102
    assert offsets(tmp_path) == list(range(len(found)))


@run_async
async def test_with_ack_what_cannot_be_taken_is_refused_and_leaves_no_gap(tmp_path: Path) -> None:
    disk = trouble()
    async with logging_broker(tmp_path, disk=disk, maximum_records=10, fsync="ack") as (broker, _):
        peer = Peer(broker)
        await peer.connect("c")
        disk.held.clear()
        peer.send(*[Publish(f"t/{n}", b"", 1, packet_id=n + 1) for n in range(100)])
        await until(lambda: peer_answers(broker) == 100)
        disk.held.set()
        codes = [(await peer.expect(Puback)).reason_code for _ in range(100)]
        assert set(codes) == {0x10, ReasonCode.QUOTA_EXCEEDED}
    logged = [line["t"] for line in messages(tmp_path)]
    assert logged == [f"t/{n}" for n, code in enumerate(codes) if code == 0x10]


def peer_answers(broker: Broker) -> int:
    """Acknowledgements in the gate of the one client."""
    return len(broker.clients["c"].gate or ())


@pytest.mark.parametrize("fsync", ["interval", "ack"])
@run_async
async def test_block_stops_reading_and_loses_nothing(tmp_path: Path, fsync: str) -> None:
    disk = trouble()
    async with logging_broker(tmp_path, disk=disk, maximum_records=10, overflow="block", fsync=fsync) as (
        broker,
        log,
    ):
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c")
        await other.connect("other")
        disk.held.clear()
        peer.send(*[Publish(f"t/{n}", b"", n % 2, packet_id=n % 2 and n) for n in range(1000)])
        await until(lambda: log._room is not None)
        for _ in range(100):
            await asyncio.sleep(0)
        assert log._messages.next < 100, "the rest is not read"
        await other.expect_nothing()
        disk.held.set()
        for _ in range(500):
            await peer.expect(Puback)
        await until(lambda: log._messages.next == 1000)
    assert [line["t"] for line in messages(tmp_path)] == [f"t/{n}" for n in range(1000)]
    assert log._messages.dropped == 0


@run_async
async def test_a_client_that_is_not_read_can_be_ended(tmp_path: Path) -> None:
    disk = trouble()
    async with logging_broker(tmp_path, disk=disk, maximum_records=5, overflow="block") as (broker, log):
        peer = Peer(broker)
        await peer.connect("c")
        disk.held.clear()
        peer.send(*[Publish("t", b"") for _ in range(100)])
        await until(lambda: log._room is not None)
        assert await broker.disconnect("c")
        assert log._room is not None and not log._room.cancelled()
        disk.held.set()


def test_trouble_has_no_effect_on_others() -> None:
    assert Trouble.write_error == 0
