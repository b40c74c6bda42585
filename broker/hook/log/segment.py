"""Segment: one file of the log while it is written, and how it is published by one rename."""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.hook.log.names import (
    FILE_MODE,
    FOLDER_MODE,
    HOUR,
    ClosedSegment,
    OpenSegment,
    hour_folder,
    open_folder,
    open_segment,
)

log = logging.getLogger("broker.log")

GZIP = 16 + zlib.MAX_WBITS
PART = ".gz.part"  # what of an open segment is compressed already
READ = 1 << 20  # bytes read at once
AT_ONCE = 64 * 1024  # bytes that are worth to be compressed


class Disk:
    """The calls that may fail, so that a test can make them fail."""

    write = staticmethod(os.write)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fdatasync)
    rename = staticmethod(os.rename)


class Segment:
    """An open file of whole lines, of records of one hour.

    Every method may raise OSError. After one of `append` the file ends with the last line that was whole
    before, or is cut there before anything else is done with it; after one of `sync` it must be given up:
    `abandon`.
    """

    __slots__ = (
        "_compressed", "_compressed_to", "_compressor",
        "_disk",
        "_file",
        "_part",
        "_to_compress",
        "_torn",
        "crc",
        "first",
        "hour",
        "kind",
        "name",
        "next",
        "path",
        "root",
        "size",
        "synced",
        "synced_crc",
        "synced_next",
    )  # fmt: skip

    def __init__(
        self, root: Path, kind: str, name: OpenSegment, at: int, gz: bool = False, disk: type[Disk] = Disk
    ) -> None:
        """Make the file of *name* for the hour of *at*, in microseconds since 1970."""
        folder = open_folder(root, kind)
        make_folder(folder)
        self.root, self.kind, self.name, self.path = root, kind, name, folder / name.name
        self.first = self.next = self.synced_next = name.first
        self.hour = at // HOUR
        self.size = self.synced = 0  # bytes
        self.crc = self.synced_crc = 0
        self._disk = disk
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        self._compressor: Any = zlib.compressobj(1, zlib.DEFLATED, GZIP) if gz else None
        self._part: int | None = None
        self._compressed = False
        self._torn = False  # there may be a piece of a line behind `size`
        self._compressed_to = 0  # bytes of the file
        self._to_compress: list[bytes] = []
        with suppress(OSError):  # the line itself is what counts; its name is synced once more at the end
            sync_folder(folder)

    def append(self, data: bytes, count: int) -> None:
        """Write *data*, *count* whole lines."""
        self._cut()
        view, written = memoryview(data), 0
        try:
            while written < len(data):
                written += self._disk.write(self._file, view[written:])
        except OSError:
            self._torn = True
            with suppress(OSError):
                self._cut()
            raise
        self.size += len(data)
        self.crc = zlib.crc32(data, self.crc)
        self.next += count
        if self._compressor is not None:
            self._to_compress.append(data)

    def _cut(self) -> None:
        if self._torn:
            self._disk.truncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            self._torn = False

    def sync(self) -> None:
        """What was written is on the disk when this returns."""
        if self.synced < self.size:
            self._disk.sync(self._file)
            self.synced, self.synced_next, self.synced_crc = self.size, self.next, self.crc

    def compress(self, least: int = AT_ONCE) -> None:
        """Compress what was written since the last time, if that is *least* bytes: the end waits for less."""
        if self.size - self._compressed_to < least or self._compressor is None:
            return
        waiting, self._to_compress, self._compressed_to = self._to_compress, [], self.size
        try:
            if self._part is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._part = os.open(self._part_path, flags, FILE_MODE)
            for data in waiting:
                self._write_part(self._compressor.compress(data))
        except OSError as error:
            self._give_up_compression(error)

    def close(self) -> Path | None:
        """Sync it and move it into `closed/`; gives its new place. None: it was empty, and is removed.

        After an OSError of anything but the sync it may be called again.
        """
        self._cut()
        self.sync()
        if self.size and not self._compressed:
            self._compressed = self._finish_compression()
        place = self._publish(self._compressed, self.next - 1, self.crc)
        os.close(self._file)
        return place

    def abandon(self, cut: bool) -> Path | None:
        """The file could not be synced: publish what of it can be read back.

        A sync that failed is never tried again: the pages that it should have written may count as clean
        now. *cut* says that whatever came after the last sync will be written anew, into another file.
        """
        if not cut:
            self.synced, self.synced_next, self.synced_crc = self.size, self.next, self.crc
        os.close(self._file)
        if self._part is not None:
            os.close(self._part)
            self._part = None
        with suppress(FileNotFoundError):
            os.unlink(self._part_path)
        os.truncate(self.path, self.synced)
        if self.synced and crc_of_file(self.path) != self.synced_crc:
            log.error("%s cannot be read back as it was written: left where it is", self.path)
            return None
        self.size = self.synced
        return self._publish(False, self.synced_next - 1, self.synced_crc)

    def _publish(self, gz: bool, last: int, crc: int) -> Path | None:
        if not self.size:
            self.path.unlink(missing_ok=True)
            return None
        closed = ClosedSegment(self.name.node, self.name.epoch, self.first, last, crc, gz)
        source = self._part_path if gz else self.path
        return publish(self.root, self.kind, source, closed, self.hour * HOUR, self._disk.rename, self.path)

    @property
    def _part_path(self) -> Path:
        return self.path.with_name(self.path.name + PART)

    def _write_part(self, data: bytes) -> None:
        view, part = memoryview(data), self._part
        while view and part is not None:
            view = view[self._disk.write(part, view) :]

    def _finish_compression(self) -> bool:
        """Whether there is a whole compressed file now, on the disk."""
        self.compress(1)
        if self._compressor is None or self._part is None:
            return False
        try:
            self._write_part(self._compressor.flush())
            self._disk.sync(self._part)
        except OSError as error:
            self._give_up_compression(error)
            return False
        os.close(self._part)
        return True

    def _give_up_compression(self, error: OSError) -> None:
        """The plain file serves as well."""
        log.warning("%s stays as it is, without compression: %s", self.path, error)
        self._compressor = None
        self._to_compress = []
        if self._part is not None:
            os.close(self._part)
            self._part = None
        with suppress(OSError):
            os.unlink(self._part_path)


def publish(
    root: Path,
    kind: str,
    source: Path,
    closed: ClosedSegment,
    at: int,
    rename: Callable[[Path, Path], None] = os.rename,
    opened: Path | None = None,
) -> Path:
    """Move *source*, whole and synced, to where *closed* belongs; *opened*, if another file, is removed.

    May be called again after an OSError.
    """
    folder = hour_folder(root, kind, at)
    place = folder / closed.name
    make_folder(folder)
    if source.exists() or not place.exists():
        rename(source, place)
    sync_folder(folder)
    if opened is not None and opened != source:
        opened.unlink(missing_ok=True)
    sync_folder(open_folder(root, kind))
    return place


def make_folder(folder: Path) -> None:
    """Make *folder* and those above it, each of them synced into the one above."""
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(FOLDER_MODE)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in *folder* is on the disk when this returns."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def crc_of_file(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while data := file.read(READ):
            crc = zlib.crc32(data, crc)
    return crc


def leftovers(folder: Path, node: str) -> list[tuple[Path, OpenSegment]]:
    """The segments of *node* in *folder* that nobody closed, the oldest first."""
    found = [(path, open_segment(path.name)) for path in sorted(folder.glob(f"{node}.*"))]
    return [(path, name) for path, name in found if name is not None and name.node == node]


def open_lines(path: Path) -> Iterator[bytes]:
    """The lines of a segment, compressed or not, newlines included."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        yield from file
