"""SQLite's file format, read without SQLite: what is left when SQLite gives up [sqlite.org/fileformat2.html].

Nothing here believes the file: what does not fit is a BadPage, and costs no more than what it stands on.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

MAGIC = b"SQLite format 3\0"
CONSTANT = b"\x40\x20\x20"  # bytes 21 to 23
PAGE = 4096  # bytes of a page, when nothing tells
LEAF, INTERIOR, INDEX_LEAF = 0x0D, 0x05, 0x0A  # kinds of pages
LOWEST, HIGHEST = -(1 << 63) - 1, (1 << 63) - 1  # identifiers are above and up to
DEEPEST = 20  # levels of a tree, at most: SQLite has the same bound

NUMBER = struct.Struct(">I")
FRAME = struct.Struct(">6I")  # page, pages after the commit or 0, two salts, two checksums
WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # serial type -> bytes of an integer
CONSTANTS = {0: None, 8: 0, 9: 1}  # serial type -> value


class BadPage(ValueError):
    """What stands there is not what SQLite writes."""


class Pages:
    """The pages of a database, numbered from 1, as the last complete commit in its WAL left them.

    Reads only, and each page when it is asked for. To be closed.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._file = open(path, "rb")  # noqa: SIM115 (closed by `close`)
        self._wal = open(path + "-wal", "rb") if os.path.exists(path + "-wal") else None  # noqa: SIM115
        self._newer: dict[int, int] = {}  # page -> where in the WAL it stands
        self.left_out = 0  # frames of the WAL behind its last complete commit
        there = os.fstat(self._file.fileno()).st_size
        header = read(self._file, 100, 0)
        told, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
        told = 65536 if told == 1 else told
        self.size = told if told >= 512 and told * pages == there else PAGE
        self.count = self._read_wal() or -(-there // self.size)
        self.usable, self.missing = self.size, 0
        self.header = b""  # there is none, or it is destroyed
        with contextlib.suppress(BadPage):
            header = self.page(1)[:100]
            self.header = header if header.startswith(MAGIC) and header[21:24] == CONSTANT else b""
        if self.header:
            self.usable -= self.header[20]
            pages = NUMBER.unpack_from(self.header, 28)[0]
            self.missing = 0 if self._newer else max(0, pages - self.count)  # the end of the file is cut off

    def close(self) -> None:
        self._file.close()
        if self._wal is not None:
            self._wal.close()

    def page(self, number: int) -> bytes:
        """All of it, with zeros where the file ends. Raises BadPage if it cannot be read."""
        if not 0 < number <= self.count:
            raise BadPage(f"there is no page {number}")
        file, at = self._file, (number - 1) * self.size
        if self._wal is not None and number in self._newer:
            file, at = self._wal, self._newer[number]
        page = read(file, self.size, at)
        if not page:
            raise BadPage("it is not there, or the disk cannot read it")
        return page.ljust(self.size, b"\0")

    # ---- the WAL

    def _read_wal(self) -> int:
        """Find the newest version of each page that was committed; gives the number of pages then, or 0."""
        header = read(self._wal, 32, 0)
        order = {b"\x37\x7f\x06\x82": "<", b"\x37\x7f\x06\x83": ">"}.get(header[:4])
        size = int.from_bytes(header[8:12], "big")
        if order is None or size.bit_count() != 1 or not 512 <= size <= 65536:
            return 0
        sums = checksum(header[:24], order, (0, 0))
        if struct.pack(">2I", *sums) != header[24:]:
            return 0
        self.size, at, count, whole = size, 32, 0, True
        pending: dict[int, int] = {}
        while len(frame := read(self._wal, FRAME.size + size, at)) == FRAME.size + size:
            if frame[8:16] != header[16:24]:  # of the WAL that was here before
                break
            number, pages, _, _, *stored = FRAME.unpack_from(frame)
            sums = checksum(frame[:8] + frame[FRAME.size :], order, sums) if whole else sums
            whole = whole and sums == tuple(stored)
            self.left_out += 1
            pending[number] = at + FRAME.size
            if whole and pages:
                self._newer |= pending
                count, self.left_out = pages, 0
                pending.clear()
            at += len(frame)
        return count


def read(file: IO[bytes] | None, size: int, at: int) -> bytes:
    """Empty when the disk cannot read it, too."""
    try:
        return b"" if file is None else os.pread(file.fileno(), size, at)
    except OSError:
        return b""


def checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """That of a WAL, going on from *sums*."""
    one, two = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for word in words:
        one = (one + word + two) & 0xFFFFFFFF
        two = (two + next(words) + one) & 0xFFFFFFFF
    return one, two


# ---- what stands on a page


class Entry(NamedTuple):
    """A row as it stands on a leaf page; of an index, the identifier is 0."""

    id: int
    cells: list[Any]
    more: set[int]  # pages on which it goes on


class Gap(NamedTuple):
    """A page of a tree that cannot be read: of rows above *low* up to *high*, some or all are not found.

    *depth* is 0 at the root.
    """

    page: int
    low: int
    high: int
    depth: int
    why: str


class Tree:
    """The rows of one table, and what cannot be reached of them.

    *used* is shared by all trees of a file: a page belongs to one of them.
    """

    def __init__(self, pages: Pages, used: set[int], root: int, width: int) -> None:
        """A row has *width* cells."""
        self._pages, self._used, self._width = pages, used, width
        self.root = root
        self.gaps: list[Gap] = []
        self.depth = -1  # of the leaves, all of which are equally deep; -1: none was found

    def rows(self) -> Iterator[Entry]:
        """In the order of their identifiers."""
        waiting = [(self.root, LOWEST, HIGHEST, 0)]
        while waiting:
            number, low, high, depth = waiting.pop()
            try:
                below = self._below(number, low, high, depth)
            except (BadPage, IndexError, struct.error) as error:
                self.gaps.append(Gap(number, low, high, depth, str(error)))
                continue
            waiting += reversed(below)
            if below:
                self._used.add(number)
            else:
                yield from self._leaf(number, low, high, depth)

    def _leaf(self, number: int, low: int, high: int, depth: int) -> list[Entry]:
        bad: list[str] = []
        found = []
        for entry in entries(self._pages, number, self._used, bad):
            if len(entry.cells) == self._width:
                found.append(entry)
            else:
                bad.append(f"a row of {len(entry.cells)} columns instead of {self._width}")
        # Of a page that is led to wrongly nothing is taken: where it belongs, if anywhere, others tell.
        wrong = [entry.id for entry in found if not low < entry.id <= high]
        if wrong:
            bad.append(f"row {wrong[0]} does not belong there")
            low, high = min(low, min(wrong) - 1), max(high, *wrong)
        if bad:
            self.gaps.append(Gap(number, low, high, depth, bad[-1]))
        if wrong or (bad and not found):
            return []
        self._used.add(number)
        self._used.update(*(entry.more for entry in found))
        self.depth = depth
        return found

    def _below(self, number: int, low: int, high: int, depth: int) -> list[tuple[int, int, int, int]]:
        """The pages below an interior one with the borders of their identifiers; none below a leaf."""
        if number in self._used:
            raise BadPage("it is used twice")
        page, at = self._pages.page(number), start(number)
        if page[at] == LEAF:
            return []
        if page[at] != INTERIOR or depth == DEEPEST:
            raise BadPage(f"it begins with 0x{page[at]:02x}")
        found, size = [], 0
        for place in places(page, at, 12):
            key, end = varint(page, place + 4)
            if not low < key <= high:
                raise BadPage(f"identifier {key} does not belong there")
            found.append((NUMBER.unpack_from(page, place)[0], low, key, depth + 1))
            low = key
            size += end - place
        check_room(page, at, size, self._pages.usable)
        return [*found, (NUMBER.unpack_from(page, at + 8)[0], low, high, depth + 1)]


def start(number: int) -> int:
    """Where page *number* begins: the first one has the header of the file before."""
    return 100 if number == 1 else 0


def places(page: bytes, at: int, header: int) -> list[int]:
    """Where the cells of *page* stand. Raises BadPage."""
    count = int.from_bytes(page[at + 3 : at + 5], "big")
    first = at + header + 2 * count
    if first > len(page):
        raise BadPage(f"it has no room for {count} cells")
    found = struct.unpack_from(f">{count}H", page, at + header)
    # What points to nowhere fails where it is read.
    return [place if first <= place <= len(page) - 4 else len(page) for place in found]


def check_room(page: bytes, at: int, size: int, usable: int) -> None:
    """Raise BadPage unless what is taken, cells of *size* bytes, and what is free make up all of *page*."""
    block, _, content, scraps = struct.unpack_from(">3HB", page, at + 1)
    size += (content or 65536) + scraps
    while block:
        before, (block, length) = block, struct.unpack_from(">2H", page, block)
        size += length
        if block and block <= before:
            raise BadPage("its free room is not in order")
    if size != usable:
        raise BadPage(f"{size} of {usable} bytes of it are there")


def entries(pages: Pages, number: int, used: set[int], bad: list[str]) -> Iterator[Entry]:
    """What stands on a leaf page; why something on it cannot be read is added to *bad*.

    No row goes on on a page that is in *used*, or on one of another row of the same page.
    """
    page, at = pages.page(number), start(number)
    index = page[at] == INDEX_LEAF
    most = (pages.usable - 12) * 64 // 255 - 23 if index else pages.usable - 35
    try:
        found = places(page, at, 8)
    except BadPage as error:
        bad.append(str(error))
        return
    taken, mine = 0, set[int]()
    for place in found:
        try:
            size, after = varint(page, place)
            identifier, after = (0, after) if index else varint(page, after)
            data, more, here = payload(pages, page[after:], size, most, used, mine)
            cells = record(data)
        except (ValueError, IndexError, struct.error) as error:
            bad.append(str(error))
            continue
        mine |= more
        taken += max(4, after - place + here)
        yield Entry(identifier, cells, more)
    try:
        check_room(page, at, taken, pages.usable)
    except (BadPage, struct.error) as error:
        bad.append(str(error))


def payload(
    pages: Pages, here: bytes, size: int, most: int, *used: set[int]
) -> tuple[bytes, set[int], int]:
    """*size* bytes that begin *here*, the pages on which they go on, and how many bytes of *here* it takes.

    At most *most* stand here.
    """
    if not 0 <= size <= pages.count * pages.size:
        raise BadPage(f"a row of {size} bytes")
    if size <= most:
        return here[:size], set(), size
    room, least = pages.usable - 4, (pages.usable - 12) * 32 // 255 - 23
    local = least + (size - least) % room
    local = least if local > most else local
    parts, more, left = [here[:local]], set[int](), size - local
    number = NUMBER.unpack_from(here, local)[0]
    while left > 0:
        if any(number in each for each in (more, *used)):
            raise BadPage(f"page {number}, on which a row goes on, is used twice")
        page = pages.page(number)
        more.add(number)
        parts.append(page[4 : 4 + min(left, room)])
        left -= room
        number = NUMBER.unpack_from(page)[0]
    if number:
        raise BadPage("a row goes on behind its end")
    return b"".join(parts), more, local + NUMBER.size


def record(data: bytes) -> list[Any]:
    """The values of a row. Raises ValueError, IndexError or struct.error."""
    end, at = varint(data, 0)
    kinds = []
    while at < end:
        kind, at = varint(data, at)
        kinds.append(kind)
    if at != end:
        raise BadPage("a row that is cut off")
    values: list[Any] = []
    for kind in kinds:
        size = WIDTHS.get(kind, 8 if kind == 7 else max(0, kind - 12) // 2)
        part, at = data[at : at + size], at + size
        if kind in CONSTANTS:
            values.append(CONSTANTS[kind])
        elif kind in WIDTHS:
            values.append(int.from_bytes(part, "big", signed=True))
        elif kind == 7:
            values.append(struct.unpack(">d", part)[0])
        elif kind >= 12:
            values.append(part.decode() if kind % 2 else part)
        else:
            raise BadPage(f"a value of type {kind}")
    if at != len(data):
        raise BadPage("a row of another length")
    return values


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes, and the offset after it. Raises IndexError."""
    value = 0
    for i in range(at, at + 8):
        value = value << 7 | data[i] & 0x7F
        if data[i] < 0x80:
            return value, i + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def free_pages(pages: Pages) -> set[int]:
    """Those that hold nothing any more, as far as the list of them can be read."""
    found: set[int] = set()
    number = NUMBER.unpack_from(pages.header, 32)[0] if pages.header else 0
    while 0 < number <= pages.count and number not in found:
        found.add(number)
        try:
            page = pages.page(number)
        except BadPage:
            break
        number, count = struct.unpack_from(">2I", page)
        if count <= pages.usable // 4 - 2:
            found.update(struct.unpack_from(f">{count}I", page, 8))
    return found
