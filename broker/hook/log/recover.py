"""What a start finds: who writes, the next epoch, and files that nobody closed."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from broker.errors import ConfigError
from broker.hook.log.line import offset_of, sound
from broker.hook.log.names import (
    FILE_MODE,
    KINDS,
    ClosedSegment,
    OpenSegment,
    closed_folder,
    hour_folder,
    open_folder,
)
from broker.hook.log.segment import GZIP, PART, READ, leftovers, make_folder, publish, sync_folder

log = logging.getLogger("broker.log")

VERSION = "v1"


def lock(root: Path, node: str) -> int:
    """Be the one who writes the log of *node* below *root*, until the file given is closed.

    Raises ConfigError if somebody else is, or if there are logs of other versions alone.
    """
    others = [path.name for path in root.glob("v*") if path.name != VERSION] if root.is_dir() else []
    if others and not (root / VERSION).is_dir():
        raise ConfigError(f"message log {root}: has {', '.join(others)}, and this broker writes {VERSION}")
    make_folder(root / VERSION)
    file = os.open(root / VERSION / f"lock.{node}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if not isinstance(error, BlockingIOError):
            raise  # a file system without locks, say
        raise ConfigError(
            f"message log {root}: another broker writes it as node {node!r}: give this one another "
            "message_log.node or another message_log.path"
        ) from None
    return file


def take_epoch(root: Path, node: str, now: float) -> int:
    """The epoch that begins now, on the disk: higher than the last one, and than the seconds in *now*'s past.

    The clock in it keeps it above those of a folder that was wiped. May raise OSError.
    """
    path = root / VERSION / f"epoch.{node}"
    try:
        last = int(path.read_text())
    except FileNotFoundError:
        last = 0
    except ValueError:
        last = 0
        log.error("%s holds no number: the clock gives the epoch", path)
    seen = (name.epoch for kind in KINDS for _, name in leftovers(open_folder(root, kind), node))
    epoch = max(last + 1, max(seen, default=0) + 1, int(now))
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(f"{epoch}\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
    sync_folder(path.parent)
    return epoch


class Recovered(NamedTuple):
    """What became of one file that nobody had closed."""

    kind: str
    name: OpenSegment
    records: int
    torn: int  # bytes that were cut off


def recover(root: Path, node: str, gz: bool) -> list[Recovered]:
    """Close every file of *node* that its writer left open: the longest sound part of each is published.

    Each line of that passes its checksum and continues the offsets; the rest goes to `torn/`. Nothing that
    was synced is ever cut. May raise OSError; it can be begun anew at any point.
    """
    found = []
    for kind in KINDS:
        folder = open_folder(root, kind)
        make_folder(folder)
        for part in folder.glob(f"{node}.*{PART}"):
            part.unlink()
        for path, name in leftovers(folder, node):
            found.append(_recover(root, kind, path, name, gz))
    return found


class Prefix(NamedTuple):
    """The sound lines at the beginning of a file."""

    size: int  # bytes
    records: int
    crc: int
    at: int  # of the first


def sound_part(file: BinaryIO, first: int) -> Prefix:
    """How far *file* is sound, from offset *first* on."""
    size = count = crc = at = 0
    for line in file:
        if not sound(line) or offset_of(line) != first + count:
            break
        if not count:
            at = json.loads(line)["ts"]
        crc = zlib.crc32(line, crc)
        size += len(line)
        count += 1
    return Prefix(size, count, crc, at)


def _recover(root: Path, kind: str, path: Path, name: OpenSegment, gz: bool) -> Recovered:
    with path.open("rb") as file:
        prefix = sound_part(file, name.first)
    torn = path.stat().st_size - prefix.size
    if torn:
        _keep_torn(root, kind, path, prefix.size)
    if not prefix.records:
        path.unlink()
        sync_folder(path.parent)
        return Recovered(kind, name, 0, torn)
    with path.open("r+b") as file:
        file.truncate(prefix.size)
        os.fsync(file.fileno())
    last = name.first + prefix.records - 1
    closed = ClosedSegment(name.node, name.epoch, name.first, last, prefix.crc)
    compressed = closed._replace(gz=True)
    folder = hour_folder(root, kind, prefix.at)
    if (folder / compressed.name).exists() or (folder / closed.name).exists():
        path.unlink()  # its writer was ended between the rename and this
        sync_folder(path.parent)
    elif gz:
        part = path.with_name(path.name + PART)
        compress_file(path, part)
        publish(root, kind, part, compressed, prefix.at, opened=path)
    else:
        publish(root, kind, path, closed, prefix.at)
    return Recovered(kind, name, prefix.records, torn)


def _keep_torn(root: Path, kind: str, path: Path, start: int) -> None:
    """The bytes of *path* from *start* on, kept for a person to look at."""
    folder = root / VERSION / "torn"
    make_folder(folder)
    kept = folder / f"{kind}.{path.name}.{start}"
    with path.open("rb") as file, open(kept, "wb", opener=_private) as copy:
        file.seek(start)
        while data := file.read(READ):
            copy.write(data)
        copy.flush()
        os.fsync(copy.fileno())
    sync_folder(folder)
    log.warning("%s: the end was torn: %d bytes are in %s now", path, kept.stat().st_size, kept)


def compress_file(source: Path, target: Path) -> None:
    """*target* is *source* compressed, on the disk."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, GZIP)
    with source.open("rb") as file, open(target, "wb", opener=_private) as copy:
        while data := file.read(READ):
            copy.write(compressor.compress(data))
        copy.write(compressor.flush())
        copy.flush()
        os.fsync(copy.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def prepare(root: Path, node: str) -> None:
    """Make the folders that readers look at."""
    for kind in KINDS:
        make_folder(open_folder(root, kind))
        make_folder(closed_folder(root, kind))
    make_folder(root / VERSION / "consumers")
