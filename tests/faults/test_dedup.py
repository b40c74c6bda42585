"""A broker with `dedup` that is killed with SIGKILL while a producer sends: every message is there once.

The producer does what a task of Spark does: it begins its batch again from the first message, until all are
acknowledged. The reader is a persistent session that is away, so that what waits for it in the store is
what was routed, no more and no less.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import wire
from tests.faults.daemon import WAIT, Restartable, restartable
from tests.faults.killer import LOG_TAKES, PLACES, TAKES, VARIABLE, reachable
from tests.hook.log.files import read_log

SETTINGS = (
    *("dedup.enabled=true", "capacity.sys_interval=0", "store.fsync=normal"),
    *("limits.maximum_queued_messages=100000",),
)
PLACES_OF_A_PUBLISH = (
    *("PUBLISH arrives", "append note", "append message", "append delivery", "route", "close batch"),
    *("commit", "release", "PUBACK leaves"),
)
POINTS = [
    point
    for place in PLACES_OF_A_PUBLISH
    for when in ("before", "after")
    if reachable(point := f"{place}: {when}")
]
POINTS_OF_QOS_2 = [
    f"{place}: {when}" for place in ("append held", "commit", "release") for when in ("before", "after")
]


class Line:
    """A client over a blocking socket. Raises OSError when the broker is gone."""

    def __init__(self, port: int, client_id: str, clean_start: bool = True) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), WAIT)
        self._buffer = b""
        expiry = {"session_expiry_interval": 1000, "receive_maximum": 65535}
        self.send(wire.connect(client_id, clean_start=clean_start, properties={} if clean_start else expiry))
        assert self.recv().type == wire.CONNACK

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def recv(self) -> wire.Packet:
        while (found := wire.split(self._buffer)) is None:
            data = self._sock.recv(65536)
            if not data:
                raise ConnectionResetError("the broker is gone")
            self._buffer += data
        raw, self._buffer = found
        return wire.parse(raw, 5)

    def close(self) -> None:
        self._sock.close()


@contextlib.contextmanager
def line(port: int, client_id: str, clean_start: bool = True) -> Iterator[Line]:
    with contextlib.closing(Line(port, client_id, clean_start)) as opened:
        yield opened


def produced(n: int, batch: int) -> bytes:
    mark = [(0x26, ("producer", f"query/0:{batch}:{n}"))]
    return wire.publish("t", b"%d:%d" % (batch, n), qos=1, packet_id=n % 60_000 + 1, properties=mark)


def send_batch(port: int, batch: int, size: int, window: int = 64) -> None:
    """One try of a task. Raises OSError if the broker went meanwhile; a refusal fails the test."""
    with line(port, "producer") as producer:
        waits = 0
        for n in range(size):
            producer.send(produced(n, batch))
            waits += 1
            while waits >= window or (n == size - 1 and waits):
                puback = producer.recv()
                assert puback.type == wire.PUBACK and not puback.reason_code, puback
                waits -= 1


def read_all(port: int) -> list[bytes]:
    """All that waits in the reader's session: until nothing comes before the answer to a PINGREQ."""
    found: list[bytes] = []
    with line(port, "reader", clean_start=False) as reader:
        more = True
        while more:
            reader.send(wire.pingreq())
            more = False
            while (packet := reader.recv()).type != wire.PINGRESP:
                assert packet.type == wire.PUBLISH, packet
                more = True
                found.append(packet.payload)
                reader.send(wire.puback(packet.packet_id or 0))
    return found


def subscribe(port: int) -> None:
    with line(port, "reader", clean_start=False) as reader:
        reader.send(wire.subscribe(1, ("t", 1)))
        assert reader.recv().type == wire.SUBACK


SENT = [b"0:%d" % n for n in range(3)] + [b"1:%d" % n for n in range(20)]


def send_over_a_kill(broker: Restartable) -> None:
    """Two batches, SENT; the broker dies in the second one, is started again, and gets that once more."""
    subscribe(broker.port)
    send_batch(broker.port, 0, 3)
    os.kill(broker.pid, signal.SIGUSR1)
    broker.says("armed")
    with contextlib.suppress(OSError):
        send_batch(broker.port, 1, 20)
    assert broker.ended() == -signal.SIGKILL
    broker.start()
    send_batch(broker.port, 1, 20)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_step(point: str, tmp_path: Path) -> None:
    with contextlib.closing(Restartable(tmp_path / "broker.db", SETTINGS)) as broker:
        broker.start(module="tests.faults.killer", **{VARIABLE: point, TAKES: "0.02"})
        send_over_a_kill(broker)
        send_batch(broker.port, 0, 3)  # all of it are copies
        assert read_all(broker.port) == SENT
    assert not broker.complaints, broker.complaints


def test_the_places_are_known() -> None:
    assert set(PLACES_OF_A_PUBLISH) <= set(PLACES)


def test_dedup_kill9(tmp_path: Path) -> None:
    """Killed at random, several times in each batch."""
    rng, sizes, kills = random.Random(5), [800, 500, 900], 0
    with restartable(tmp_path / "broker.db", *SETTINGS) as broker:
        broker.start()
        subscribe(broker.port)
        for batch, size in enumerate(sizes):
            for _ in range(3):
                timer = threading.Timer(rng.uniform(0.01, 0.25), os.kill, (broker.pid, signal.SIGKILL))
                timer.start()
                with contextlib.suppress(OSError):
                    send_batch(broker.port, batch, size)
                timer.join()
                assert broker.ended() == -signal.SIGKILL
                kills += 1
                broker.start()
            send_batch(broker.port, batch, size)
        found = read_all(broker.port)
        assert found == [b"%d:%d" % (batch, n) for batch, size in enumerate(sizes) for n in range(size)]
    assert kills == 9


# ---- with a message log: what the mark acknowledges has its line


def logged_times(folder: Path) -> Counter[bytes]:
    """How often each payload is in the log."""
    return Counter(base64.b64decode(line["p"]) for line in read_log(folder, "messages") if "p" in line)


def with_log(folder: Path, point: str, tmp_path: Path) -> Restartable:
    """A broker with a message log that takes its time, killed at *point* once it is armed."""
    log = (f"message_log.path={folder}", "message_log.fsync=ack", "message_log.compress=no")
    broker = Restartable(tmp_path / "broker.db", (*SETTINGS, *log))
    broker.start(module="tests.faults.killer", **{VARIABLE: point, LOG_TAKES: "0.1"})
    return broker


@pytest.mark.parametrize("point", POINTS)
def test_an_acknowledged_message_is_in_the_log(point: str, tmp_path: Path) -> None:
    with contextlib.closing(with_log(tmp_path / "log", point, tmp_path)) as broker:
        send_over_a_kill(broker)
        assert read_all(broker.port) == SENT
        broker.stop()
        assert set(logged_times(tmp_path / "log")) == set(SENT)
    assert not broker.complaints, broker.complaints


@pytest.mark.parametrize("point", [p for p in POINTS_OF_QOS_2 if reachable(p)])
def test_a_pubrec_speaks_of_a_message_that_is_in_the_log(point: str, tmp_path: Path) -> None:
    """If its identifier is in the store the PUBLISH that is repeated gets its PUBREC, and no other line."""
    packets = [wire.publish("t", b"%d" % n, qos=2, packet_id=n) for n in range(1, 6)]
    with contextlib.closing(with_log(tmp_path / "log", point, tmp_path)) as broker:
        with contextlib.suppress(OSError), line(broker.port, "publisher", clean_start=False) as publisher:
            os.kill(broker.pid, signal.SIGUSR1)
            broker.says("armed")
            for packet in packets:
                publisher.send(packet)
            publisher.recv()
        assert broker.ended() == -signal.SIGKILL
        broker.start()
        with line(broker.port, "publisher", clean_start=False) as publisher:
            for packet in packets:
                publisher.send(bytes([packet[0] | 8]) + packet[1:])
            for n in range(1, 6):
                pubrec = publisher.recv()
                assert (pubrec.type, pubrec.packet_id) == (wire.PUBREC, n)
                assert (pubrec.reason_code or 0) < 0x80
        broker.stop()
        assert set(logged_times(tmp_path / "log")) == {b"%d" % n for n in range(1, 6)}
    assert not broker.complaints, broker.complaints
