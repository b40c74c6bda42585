"""`python -m spark.tools.record`: the message log of a broker that is not ours.

A small client with a fixed ClientID and a session that stays: the broker keeps for it what comes while it is
away. It writes the log that docs/message-log.md describes, and sends PUBACK only when the line is on the
disk: nothing acknowledged is lost, whatever is killed and whenever. What was written and not acknowledged yet
when it was killed comes again and is in the log twice, with DUP set; the audit of spark.report counts it.

Who published is not known here: client_id, connection and username stay empty. What a broker drops for a
session that is away too long, or when a queue of its own is full, nobody can see either. Once in ten seconds,
and at the end, a line of JSON on stdout: recorded, repeated (with DUP), acknowledged, synced [epoch, offset].

Exit codes: 0 ended by SIGTERM or SIGINT, or after --idle seconds without a message; 2 usage; 3 the broker or
the folder refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from broker.hook.log.line import NOBODY, MessageRecord, format_message
from broker.hook.log.names import NODE
from broker.hook.log.recorder import Recorder, RecorderTerms
from broker.hook.log.recover import lock, prepare, recover, take_epoch
from broker.packet.enums import Version
from broker.packet.packets import Puback, Publish, Suback, Subscribe, SubscribeRequest
from spark.mqtt.line import Gone, Line, Refused
from spark.mqtt.options import Address, between

USAGE, UNREADABLE = 2, 3  # exit codes, as in the jobs
RECEIVE_MAXIMUM = 1000  # messages that the broker sends ahead of our PUBACK
OVERHEAD = 200  # bytes that a record takes besides its payload, about
KEEP_ALIVE = 30  # seconds
TELL = 10.0  # seconds between two lines on stdout
SLOWEST = 30.0  # seconds between two tries to connect
VERSIONS = {"5": Version.MQTT_5, "3.1.1": Version.MQTT_3_1_1}
# CONNACK and DISCONNECT: no use trying again. 0x8E is another client under our ClientID, and would be again.
NEVER_BETTER = (0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x8E, 1, 2, 4, 5)


class Tape:
    """The log that is written: records in, and when they are on the disk."""

    def __init__(self, root: Path, node: str, gz: bool, segment_seconds: float) -> None:
        """Recovers what a killed one left, and begins an epoch. Raises ConfigError, OSError."""
        self._lock = lock(root, node)
        prepare(root, node)
        recover(root, node, gz)
        self.epoch = take_epoch(root, node, time.time())
        self._synced = threading.Event()
        terms = RecorderTerms(
            root=root,
            kind="messages",
            node=node,
            epoch=self.epoch,
            format=format_message,
            fsync="ack",
            gz=gz,
            segment_seconds=segment_seconds,
            synced=lambda offset: self._synced.set(),
            state=self._say,
        )
        self._recorder = Recorder(terms)
        self._recorder.start()

    def _say(self, error: OSError | None) -> None:
        said = f"cannot write: {error}; nothing is acknowledged meanwhile" if error else "can write again"
        print(f"spark.tools.record: {said}", file=sys.stderr, flush=True)

    def put(self, packet: Publish) -> int:
        """Its offset."""
        flags = packet.qos << 2 | packet.retain << 1 | packet.dup
        record = MessageRecord(
            time.time_ns() // 1000,
            packet.topic_name,
            flags,
            NOBODY,
            packet.payload,
            properties=packet.properties or None,
            weight=len(packet.payload) + len(packet.topic_name) + OVERHEAD,
        )
        return self._recorder.put(record)

    @property
    def full(self) -> bool:
        return self._recorder.full

    @property
    def synced(self) -> int:
        """Every record before this offset is on the disk."""
        return self._recorder.synced

    def wait(self, offset: int, seconds: float) -> bool:
        """Whether every record before *offset* is on the disk, after at most *seconds*."""
        self._synced.clear()
        self._recorder.want(offset)
        if self._recorder.synced < offset:
            self._synced.wait(seconds)
        return self._recorder.synced >= offset

    def close(self) -> None:
        self._recorder.stop(time.time_ns() // 1000)
        self._recorder.join(30)
        os.close(self._lock)


class Client:
    """Takes what the broker sends to the tape, and acknowledges what is on the disk."""

    def __init__(self, tape: Tape, line: Line, chosen: argparse.Namespace) -> None:
        self.tape, self.line, self.chosen = tape, line, chosen
        self.ending = False  # set by a handler of signals, where no lock may be taken
        self.recorded = self.repeated = self.acknowledged = 0
        self._unacknowledged: deque[tuple[int, int]] = deque()  # offset and Packet Identifier
        self._heard_at = self._told_at = time.monotonic()
        self._was_here = False

    def run(self) -> int:
        """Until it is asked to end; connects as often as needed. The exit code."""
        pause = 1.0
        while not self.ending:
            try:
                self._connect()
                pause = 1.0
                self._read()
            except (Gone, OSError) as error:
                print(f"spark.tools.record: {error}", file=sys.stderr, flush=True)
                self.line.abort()
                if isinstance(error, Refused) and error.code in NEVER_BETTER:
                    return UNREADABLE
                until = time.monotonic() + pause
                while not self.ending and time.monotonic() < until:
                    time.sleep(0.1)
                pause = min(2 * pause, SLOWEST)
        self.line.close()
        return 0

    def _connect(self) -> None:
        self._unacknowledged.clear()  # they come again
        chosen, properties = self.chosen, {}
        if self.line.version is Version.MQTT_5:
            properties = {"session_expiry_interval": chosen.session, "receive_maximum": RECEIVE_MAXIMUM}
        name = chosen.client_id or f"recorder-{chosen.node}"
        self.line.connect(name, clean_start=False, keep_alive=KEEP_ALIVE, **properties)
        if self._was_here and not self.line.session_present:
            text = "the broker has forgotten the session: messages of the time between may be missing"
            print(f"spark.tools.record: {text}", file=sys.stderr, flush=True)
        self._was_here = True
        five = {"retain_as_published": True, "retain_handling": 1} if properties else {}
        self.line.send(Subscribe(1, [SubscribeRequest(each, 1, **five) for each in chosen.filter]))  # type: ignore[arg-type]

    def _read(self) -> None:
        while not self.ending:
            packet = self.line.recv(0.2)
            self._take(packet)
            while self.line.waiting and not self.tape.full:
                self._take(self.line.recv())
            self._acknowledge()
            self._look_at_clock()

    def _take(self, packet: Any) -> None:
        if isinstance(packet, Publish):
            self._heard_at = time.monotonic()
            self.recorded += 1
            self.repeated += packet.dup
            offset = self.tape.put(packet)
            if packet.qos:
                self._unacknowledged.append((offset, packet.packet_id))
        elif isinstance(packet, Suback):
            refused = [
                each
                for each, code in zip(self.chosen.filter, packet.reason_codes, strict=True)
                if code >= 0x80
            ]
            if refused:
                raise Refused(f"the broker refused the filter {refused[0]}", 0x87)

    def _acknowledge(self) -> None:
        """Wait for the disk, and say so. As long as that takes nothing more is read."""
        while self._unacknowledged or self.tape.full:
            last = self._unacknowledged[-1][0] + 1 if self._unacknowledged else self.tape.synced + 1
            done = self.tape.wait(last, 1.0)
            while self._unacknowledged and self._unacknowledged[0][0] < self.tape.synced:
                _, packet_id = self._unacknowledged.popleft()
                self.line.send(Puback(packet_id))
                self.acknowledged += 1
            if not done:
                self.line.keep_alive()
                if self.ending:
                    return

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if self.chosen.idle is not None and now - self._heard_at >= self.chosen.idle:
            self.ending = True
        if now - self._told_at >= TELL:
            self._told_at = now
            self.tell()

    def tell(self) -> None:
        said = {"recorded": self.recorded, "repeated": self.repeated, "acknowledged": self.acknowledged}
        print(json.dumps({**said, "synced": [self.tape.epoch, self.tape.synced - 1]}), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    try:
        address = address_of(chosen)
        check(chosen)
    except ValueError as error:
        print(f"spark.tools.record: {error}", file=sys.stderr)
        return USAGE
    try:
        address.context(), address.secret()  # now, not when the broker is there at last
        tape = Tape(chosen.log, chosen.node, chosen.compress, chosen.segment_seconds)
    except (ConfigError, OSError) as error:
        print(f"spark.tools.record: {error}", file=sys.stderr)
        return UNREADABLE
    client = Client(tape, Line(address, VERSIONS[chosen.protocol]), chosen)

    def end(*_: object) -> None:
        client.ending = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    code = client.run()
    tape.close()
    client.tell()
    return code


def check(chosen: argparse.Namespace) -> None:
    """Raises ValueError for what no log and no CONNECT can have."""
    if not re.fullmatch(NODE, chosen.node):
        raise ValueError(f"--node {chosen.node!r}: 1 to 64 letters, digits, - and _, or no reader finds it")
    if not 1 <= chosen.session <= 0xFFFF_FFFF:
        raise ValueError(f"--session {chosen.session}: seconds, from 1 to {0xFFFF_FFFF}")
    if not chosen.segment_seconds > 0:
        raise ValueError(f"--segment-seconds {chosen.segment_seconds:g}: more than 0")


def address_of(chosen: argparse.Namespace) -> Address:
    """Raises ValueError."""
    host, colon, port = chosen.broker.rpartition(":")
    if not colon or host.endswith(":"):
        host, port = chosen.broker, "0"
    if not re.fullmatch(r"\d{1,5}", port) or not host or "/" in host:
        raise ValueError(f"--broker {chosen.broker!r}: HOST or HOST:PORT, such as broker.example:1883")
    if chosen.password_file and not chosen.username:
        raise ValueError("--password-file needs --username")
    password = os.environ.get("MQTT_PASSWORD")
    return Address(
        host.strip("[]"),
        between(0, 65_535)(port),
        chosen.username,
        None if chosen.password_file or not chosen.username else password,
        chosen.password_file,
        chosen.tls or bool(chosen.ca or chosen.cert),
        chosen.ca,
        chosen.cert,
        chosen.key,
    )


def parser() -> argparse.ArgumentParser:
    text = "Write the message log of a broker that is not ours."
    made = argparse.ArgumentParser(prog="spark.tools.record", description=text)
    add = made.add_argument
    add("--broker", required=True, metavar="HOST[:PORT]", help="1883, or with --tls 8883")
    add("--filter", action="append", required=True, metavar="F", help="Topic Filter; may be given again")
    add("--log", type=Path, required=True, metavar="DIR", help="folder of the log")
    add("--node", default="recorder", help="name of this writer in the log; default: %(default)s")
    add("--client-id", help="default: recorder-NODE; keep it, it names the session")
    add("--session", type=int, default=604_800, metavar="SECONDS", help="it is kept; default: a week")
    add("--protocol", choices=VERSIONS, default="5")
    add("--username")
    add("--password-file", metavar="FILE", help="or in the variable MQTT_PASSWORD")
    add("--tls", action="store_true")
    add("--ca", metavar="PEM", help="default: the authorities of the system")
    add("--cert", metavar="PEM", help="of the client, with --key or its key inside")
    add("--key", metavar="PEM")
    add("--compress", action="store_true", help="gzip segments when they are closed")
    add("--segment-seconds", type=float, default=60.0, metavar="SECONDS", help="default: %(default)g")
    add("--idle", type=float, metavar="SECONDS", help="end after so much silence")
    return made


if __name__ == "__main__":
    sys.exit(main())
