"""A disk that is full, fails or hangs under a running daemon: what is refused, what goes on, what is kept."""

from __future__ import annotations

import errno
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conformance import wire
from tests.faults.scene import WAIT, Scene, Sender, rest, text, until
from tests.faults.shim import HELD, Disk

BACK = 10.0  # seconds in which the store is in use again; it tries every second
SIZE = 4000  # bytes of a message: it fits into no room that happens to be left
STATE = "$SYS/broker/store/state"


class Trouble(Scene):
    """A scene on a disk that can fail."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.folder, "capacity.sys_interval=0.2", environ=disk.environ())
        self.disk = disk
        self.start()

    def sender(self, topic_name: str = "t") -> Sender:
        return Sender(self.client(f"sender of {topic_name}"), topic_name, SIZE)

    def crash(self) -> None:
        """The next one has a disk that works."""
        self.disk.free()
        super().crash()

    def close(self) -> None:
        self.disk.free()
        super().close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Trouble]:
    (tmp_path / "disk").mkdir()
    with Disk(tmp_path / "disk") as disk, closing(Trouble(disk)) as scene:
        yield scene


def fill(disk: Disk) -> None:
    disk.fill()


def break_writes(disk: Disk) -> None:
    disk.write_error = errno.EIO


def break_syncs(disk: Disk) -> None:
    disk.sync_error = errno.EIO


faults = pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(fill, 0x97, id="full"),
        pytest.param(break_writes, 0x83, id="writes fail"),
        pytest.param(break_syncs, 0x83, id="syncs fail"),
    ],
)
Fault = Callable[[Disk], None]


@faults
def test_what_needs_the_store_is_refused_and_taken_again_later(
    scene: Trouble, fault: Fault, code: int
) -> None:
    scene.session("holder", "t/#")
    senders = {qos: scene.sender(f"t/{qos}") for qos in (1, 2)}
    for qos, sender in senders.items():
        assert [sender.send(qos) for _ in range(3)] == [0, 0, 0]
    fault(scene.disk)
    for qos, sender in senders.items():
        sender.until(code, qos)
        assert sender.send(qos) == code
    scene.disk.free()
    for qos, sender in senders.items():
        sender.until(0, qos, BACK)
    scene.crash()
    found = scene.holder()
    for sender in senders.values():
        assert [name for name in found if name.startswith(sender.topic_name)] == sender.taken


@faults
def test_a_client_of_3_1_1_is_closed_without_an_acknowledgement(
    scene: Trouble, fault: Fault, code: int
) -> None:
    scene.session("holder", "t")
    sender, old = scene.sender(), scene.client("old", version=4)
    fault(scene.disk)
    sender.until(code)
    old.send(wire.publish("t", b"from 3.1.1", qos=1, packet_id=1, version=4))
    old.expect_close(timeout=WAIT)
    scene.disk.free()
    sender.until(0, within=BACK)
    assert scene.holder() == sender.taken


@faults
def test_a_retained_message_that_is_refused_leaves_the_one_before(
    scene: Trouble, fault: Fault, code: int
) -> None:
    sender = scene.sender("shelf")
    assert sender.send(retain=True) == 0
    fault(scene.disk)
    before = scene.disk.refused
    sender.until(code, retain=True)
    # What failed in its sync is in the file, until the next try takes its place, which comes at once.
    until(lambda: scene.disk.refused >= before + 2, "the next try")

    def retained() -> str:
        reader = scene.client("reader")
        reader.subscribe("shelf")
        return text(reader.expect("PUBLISH", retain=True).payload)

    assert retained() == sender.taken[-1]
    scene.crash()
    assert retained() == sender.taken[-1]


@faults
def test_what_needs_no_store_goes_on(scene: Trouble, fault: Fault, code: int) -> None:
    scene.session("holder", "t")
    bystander, sender = scene.client("bystander"), scene.sender()
    bystander.subscribe("live", qos=2)
    fault(scene.disk)
    sender.until(code)
    for qos in (0, 1, 2):
        sender.client.publish("live", f"at {qos}", qos)
    assert rest(bystander) == ["at 0", "at 1", "at 2"]
    newcomer = scene.client("newcomer")
    newcomer.subscribe("live")
    sender.client.publish("live", "more")
    assert rest(newcomer) == ["more"]


@faults
def test_a_queue_can_be_read(scene: Trouble, fault: Fault, code: int) -> None:
    scene.session("holder", "t", qos=1)
    sender = scene.sender()
    for _ in range(5):
        assert sender.send() == 0
    fault(scene.disk)
    sender.until(code)
    assert scene.holder() == sender.taken
    read = len(sender.taken)
    scene.disk.free()
    sender.until(0, within=BACK)
    scene.crash()
    assert scene.holder() == sender.taken[read:]


@faults
def test_the_state_can_be_seen(scene: Trouble, fault: Fault, code: int) -> None:
    scene.session("holder", "t")
    watcher, sender = scene.client("watcher"), scene.sender()
    watcher.subscribe(STATE)

    def state() -> str:
        return text(watcher.expect("PUBLISH", timeout=WAIT).payload)

    until(lambda: state() == "ok", "all is well")
    fault(scene.disk)
    sender.until(code)
    wrong = "disk is full" if code == 0x97 else "disk I/O error|Input/output error"
    until(lambda: re.fullmatch(f"failed: .*({wrong})", state()), "the state says what is wrong")
    assert re.search(wrong, scene.broker.log())
    scene.disk.free()
    until(lambda: state() == "ok", "all is well again", BACK)
    until(lambda: "can be written again" in scene.broker.log(), "the log says so")


@faults
def test_sessions_and_subscriptions_are_stored_or_refused(scene: Trouble, fault: Fault, code: int) -> None:
    scene.session("holder", "t")
    sender, known = scene.sender(), scene.client("known", keep=3600)
    fault(scene.disk)
    sender.until(code)
    known.subscribe("t", qos=1, granted=[code])
    scene.client("newcomer", keep=3600, reason=code)
    scene.client("guest").subscribe("t", qos=1)
    scene.disk.free()
    sender.until(0, within=BACK)
    scene.crash()
    scene.client("newcomer", keep=3600, session_present=False)
    known = scene.client("known", keep=3600, session_present=True)
    Sender(scene.client("sender"), "t").send()
    assert known.drain() == [], "a subscription that was refused is none"


@faults
def test_qos_2_that_has_begun_is_finished_later(scene: Trouble, fault: Fault, code: int) -> None:
    scene.session("holder", "t")
    sender, other = scene.client("sender", keep=3600), scene.sender()
    for packet_id in (1, 2):
        sender.send(wire.publish("t", f"held {packet_id}".encode(), qos=2, packet_id=packet_id))
        sender.expect("PUBREC", timeout=WAIT, reason_code=0)
    fault(scene.disk)
    other.until(code)
    sender.send(wire.pubrel(1), wire.pubrel(1), wire.pubrel(2))
    assert sender.drain() == [], "PUBCOMP is a promise as well"
    scene.disk.free()
    assert {sender.expect("PUBCOMP", timeout=BACK).packet_id for _ in range(3)} == {1, 2}
    scene.crash()
    assert [name for name in scene.holder() if name.startswith("held")] == ["held 1", "held 2"]


@faults
def test_a_stop_loses_nothing(scene: Trouble, fault: Fault, code: int) -> None:
    scene.session("holder", "t")
    sender = scene.sender()
    for _ in range(3):
        assert sender.send() == 0
    fault(scene.disk)
    sender.until(code)
    assert scene.broker.stop() in (0, 1)
    scene.disk.free()
    scene.start()
    assert scene.holder() == sender.taken


@faults
def test_a_start_says_what_is_wrong(scene: Trouble, fault: Fault, code: int) -> None:
    scene.session("holder", "t")
    assert scene.sender().send() == 0
    scene.broker.kill()
    fault(scene.disk)
    if code == 0x97:  # what a start has to write takes the place of what the last one wrote
        scene.start()
        scene.broker.kill()
    else:
        with pytest.raises(AssertionError, match=r"I/O error|Input/output error") as failure:
            scene.start()
        assert "Traceback" not in str(failure.value)
    scene.disk.free()
    scene.start()
    assert scene.holder() == ["t 1"]


def test_a_sync_that_hangs_holds_acknowledgements_and_nothing_else(scene: Trouble) -> None:
    scene.session("holder", "t")
    bystander, sender = scene.client("bystander", keep_alive=5), scene.client("sender")
    bystander.subscribe("live")
    scene.disk.sync_delay = HELD
    sender.send(wire.publish("t", b"1", qos=1, packet_id=1), wire.publish("t", b"2", qos=2, packet_id=2))
    for number in range(20):
        sender.publish("live", str(number))
        assert text(bystander.expect("PUBLISH", timeout=WAIT).payload) == str(number)
    bystander.ping()
    assert list(sender.inbox) == []
    scene.disk.sync_delay = 0
    assert [sender.recv(WAIT).name for _ in range(2)] == ["PUBACK", "PUBREC"]


# ---- a disk that others fill

ROOM = 1 << 20  # bytes


class Mounted:
    """A file system of its own, with ROOM."""

    def __init__(self, place: Path) -> None:
        self.place = place
        command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(place)]
        subprocess.run(command, check=True, capture_output=True)

    def fill(self, disk: Disk, ballast: Path) -> None:
        """*ballast* takes all the room that is left."""
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.place)], check=True)


class Counted:
    """A folder of which the shim says that it has ROOM."""

    def __init__(self, place: Path) -> None:
        pass

    def fill(self, disk: Disk, ballast: Path) -> None:
        disk.quota = ROOM
        ballast.write_bytes(bytes(ROOM - disk.used()))

    def close(self) -> None:
        pass


def can_mount() -> bool:
    try:
        with tempfile.TemporaryDirectory() as place:
            Mounted(Path(place)).close()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@pytest.mark.parametrize("kind", [Counted, Mounted] if can_mount() else [Counted])
def test_a_file_system_that_others_fill(kind: type[Mounted] | type[Counted], tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    ballast = small / "ballast"
    with closing(kind(small)) as room, Disk(small) as disk, closing(Trouble(disk)) as scene:
        scene.session("holder", "t/#")
        sender = scene.sender("t/1")
        room.fill(disk, ballast)
        sender.until(0x97)
        ballast.unlink()
        sender.until(0, within=BACK)
        scene.crash()
        assert scene.holder() == sender.taken
