"""A start after a crash: what was sound is published, the rest is kept aside, and nobody else writes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.hook.log.line import MessageRecord, Publisher, format_message
from broker.hook.log.names import OpenSegment, closed_segments, open_folder
from broker.hook.log.recorder import Recorder, RecorderTerms
from broker.hook.log.recover import lock, prepare, recover, take_epoch
from broker.hook.log.segment import PART, Segment, open_lines, publish
from tests.hook.log.files import line_of, offsets, read_log, trouble, until, write_segments

AT = 1_700_000_000_000_000
WHO = Publisher("c", 1, 5)
OPEN = OpenSegment("n", 7, 3)


def record(n: int) -> MessageRecord:
    return MessageRecord(AT + n, f"t/{n}", 4, WHO, b"x" * (n % 50))


def lines(count: int, first: int = 3) -> list[bytes]:
    return [line_of("messages", n, record(n)) for n in range(first, first + count)]


def left_open(root: Path, data: bytes, name: OpenSegment = OPEN) -> Path:
    """A file that its writer left behind."""
    prepare(root, "n")
    path = open_folder(root, "messages") / name.name
    path.write_bytes(data)
    return path


def torn(root: Path) -> list[bytes]:
    folder = root / "v1" / "torn"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


garbage = st.one_of(
    st.just(b""),
    st.binary(min_size=1, max_size=200),
    st.just(bytes(5000)),
    st.just(b"\n"),
    st.just(b'{"o":7,"ts":1}\n'),
    st.sampled_from(lines(1, 50)),  # sound, and not the next one
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8), st.integers(0, 200), garbage, st.booleans())
def test_the_longest_sound_prefix_is_published(whole: int, part: int, tail: bytes, gz: bool) -> None:
    written = lines(9)
    data = b"".join(written[:whole]) + written[whole][: min(part, len(written[whole]) - 1)] + tail
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        path = left_open(root, data)
        (found,) = recover(root, "n", gz)
        assert not path.exists()
        published = [line for path, _ in closed_segments(root, "messages") for line in open_lines(path)]
        assert b"".join([*published, *torn(root)]) == data
        assert found.records >= whole and (found.records == whole or tail)
        assert offsets(root) == list(range(3, 3 + found.records))
        assert recover(root, "n", gz) == []


def test_a_bit_that_flipped_keeps_what_is_behind_it_for_a_person(tmp_path: Path) -> None:
    written = lines(5)
    rotten = written[2].replace(b"t/5", b"t/6")
    left_open(tmp_path, b"".join([*written[:2], rotten, *written[3:]]))
    recover(tmp_path, "n", False)
    assert offsets(tmp_path) == [3, 4]
    assert torn(tmp_path) == [rotten + b"".join(written[3:])]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    path = left_open(tmp_path, b"".join(lines(2)), OpenSegment("other", 7, 3))
    foreign = path.with_name("notes.txt")
    foreign.write_text("x")
    assert recover(tmp_path, "n", False) == []
    assert path.exists() and foreign.exists()


def test_half_of_a_compressed_file_is_made_anew(tmp_path: Path) -> None:
    path = left_open(tmp_path, b"".join(lines(2)))
    path.with_name(path.name + PART).write_bytes(b"half of it")
    recover(tmp_path, "n", True)
    assert offsets(tmp_path) == [3, 4]
    assert list(open_folder(tmp_path, "messages").iterdir()) == []


@pytest.mark.parametrize("gz", [False, True])
def test_killed_between_the_rename_and_the_removal(tmp_path: Path, gz: bool) -> None:
    (place,) = write_segments(
        tmp_path, "messages", [record(n) for n in range(3, 6)], node="n", epoch=7, first=3, gz=gz
    )
    left_open(tmp_path, b"".join(lines(3)))
    recover(tmp_path, "n", not gz)
    assert [path for path, _ in closed_segments(tmp_path, "messages")] == [place]
    assert list(open_folder(tmp_path, "messages").iterdir()) == []


def test_a_recovery_that_is_killed_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step is the last one."""
    data = b"".join(lines(4)) + b"torn"
    calls, died = ["fsync", "rename", "unlink"], set[str]()
    for gz in (False, True):
        for name in calls:
            for number in range(6):
                root = tmp_path / f"{gz}{name}{number}"
                left_open(root, data)
                with monkeypatch.context() as patch:
                    die = dying(getattr(os, name), number)
                    patch.setattr(os, name, die)
                    if name == "rename":
                        patch.setattr("broker.hook.log.recover.publish", partial(publish, rename=die))
                    try:
                        recover(root, "n", gz)
                    except KeyboardInterrupt:
                        died.add(name)
                recover(root, "n", gz)
                assert offsets(root) == [3, 4, 5, 6]
                assert torn(root) == [b"torn"]
    assert died == {*calls}


def dying(call: Any, number: int) -> Any:
    left = [number]

    def die(*args: Any, **kwargs: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return call(*args, **kwargs)

    return die


# ---- who writes, and the epoch


def test_log_two_writers(tmp_path: Path) -> None:
    first = lock(tmp_path, "n")
    with pytest.raises(ConfigError, match="another broker writes it as node 'n'"):
        lock(tmp_path, "n")
    os.close(lock(tmp_path, "other"))
    os.close(first)
    os.close(lock(tmp_path, "n"))


def test_a_file_system_without_locks_is_not_another_broker(tmp_path: Path) -> None:
    without = mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available"))
    with without, pytest.raises(OSError, match="No locks available"):
        lock(tmp_path, "n")


def test_a_log_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    with pytest.raises(ConfigError, match="has v2"):
        lock(tmp_path, "n")


def test_epochs_grow_whatever_the_clock_does(tmp_path: Path) -> None:
    prepare(tmp_path, "n")
    epochs = [take_epoch(tmp_path, "n", now) for now in (1000.9, 1000, 500, 2000, 0)]
    assert epochs == [1000, 1001, 1002, 2000, 2001]
    assert take_epoch(tmp_path, "other", 5) == 5
    (tmp_path / "v1" / "epoch.n").write_text("rubbish")
    assert take_epoch(tmp_path, "n", 3000) == 3000
    left_open(tmp_path, b"", OpenSegment("n", 5000, 0))
    (tmp_path / "v1" / "epoch.n").unlink()
    assert take_epoch(tmp_path, "n", 10) == 5001


def test_a_wiped_folder_has_a_higher_epoch(tmp_path: Path) -> None:
    prepare(tmp_path, "n")
    before = [take_epoch(tmp_path, "n", 1000 + n) for n in range(3)][-1]
    shutil.rmtree(tmp_path / "v1")
    prepare(tmp_path, "n")
    assert take_epoch(tmp_path, "n", 1010) > before


# ---- power loss


@pytest.mark.parametrize("seed", range(12))
def test_power_loss_takes_nothing_that_was_synced(tmp_path: Path, seed: int) -> None:
    """At some moment all is copied, and of each open file what no sync covered becomes anything at all."""
    rng, disk = random.Random(seed), trouble()
    root, copy = tmp_path / "log", tmp_path / "copy"
    prepare(root, "n")
    terms = RecorderTerms(
        root=root, kind="messages", node="n", epoch=7, format=format_message, disk=disk,
        fsync=rng.choice(["ack", "interval"]), fsync_interval=0.001, segment_bytes=5000, gz=bool(seed % 2),
    )  # fmt: skip
    made = Recorder(terms)
    made.start()
    for n in range(rng.randrange(200, 2000)):
        offset = made.put(record(n))
        if terms.fsync == "ack" and rng.random() < 0.05:
            made.want(offset + 1)
            until(lambda wanted=offset: made.synced > wanted)
    synced = made.synced
    safe = dict(disk.synced)
    shutil.copytree(root, copy)
    made.stop(AT)
    assert made.join(10)
    for path in open_folder(copy, "messages").iterdir():
        lose(path, safe.get(str(open_folder(root, "messages") / path.name), 0), rng)
    recover(copy, "n", bool(seed % 2))
    found = offsets(copy)
    assert found == list(range(len(found)))
    assert len(found) >= synced
    topics = [line["t"] for line in read_log(copy, "messages")]
    assert sorted(topics, key=lambda topic: int(topic[2:])) == [f"t/{n}" for n in range(len(found))]


def lose(path: Path, safe: int, rng: random.Random) -> None:
    """*path* as it may be found: sectors behind the first *safe* bytes were written or not, in any order."""
    data = bytearray(path.read_bytes())
    end = rng.randrange(safe, len(data) + 1) if len(data) > safe else len(data)
    for at in range(safe, end, 512):
        if rng.random() < 0.3:
            data[at : at + 512] = bytes(min(512, len(data) - at))
    path.write_bytes(data[:end] + rng.choice([b"", bytes(700), rng.randbytes(90)]))


def test_the_power_may_go_between_the_rename_and_its_sync(tmp_path: Path) -> None:
    """Then the file has its old name, its new one, or both: the same in the end."""
    (place,) = write_segments(tmp_path, "messages", [record(n) for n in range(3)], node="n", epoch=7)
    raw = place.read_bytes()
    for old, new in ((True, False), (False, True), (True, True)):
        root = tmp_path / f"{old}{new}"
        path = left_open(root, raw, OpenSegment("n", 7, 0))
        if not old:
            path.unlink()
        if new:
            folder = root / place.parent.relative_to(tmp_path)
            folder.mkdir(parents=True)
            (folder / place.name).write_bytes(raw)
        recover(root, "n", True)
        assert offsets(root) == [0, 1, 2]


def test_a_segment_that_is_open_needs_no_room_but_its_own(tmp_path: Path) -> None:
    segment = Segment(tmp_path, "messages", OPEN, AT)
    segment.append(b"".join(lines(2)), 2)
    assert segment.next == 5
    assert segment.close() is not None
