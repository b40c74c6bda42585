"""Builds `shim.c`, and says to the processes that run under it what their disk does.

with Disk(folder) as disk:
    process = Popen(..., env=os.environ | disk.environ())
    disk.quota = disk.used() + 4096
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("shim.c")
HELD = -1  # as a delay: a sync that does not end
FREE = -1  # as a quota: no limit
NUMBER = struct.Struct("=q")


@cache
def built() -> tempfile.TemporaryDirectory[str]:
    """The folder of the shim, made once in a process and gone with it."""
    folder = tempfile.TemporaryDirectory(prefix="shim-")
    compiler = shutil.which("cc")
    assert compiler, "the tests need a C compiler: run tests/install.sh"
    flags = ("-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-ldl")
    subprocess.run([compiler, SOURCE, *flags, "-o", f"{folder.name}/shim.so"], check=True)
    return folder


class Number:
    """One field of `struct control`, as an attribute."""

    def __init__(self, place: int) -> None:
        self.at = place * NUMBER.size

    def __get__(self, disk: Disk, kind: Any = None) -> int:
        return int(NUMBER.unpack_from(disk.control, self.at)[0])

    def __set__(self, disk: Disk, value: int) -> None:
        NUMBER.pack_into(disk.control, self.at, value)


class Disk:
    """What *folder*, which must exist, is kept on, for every process with `environ` in its environment."""

    quota = Number(0)  # bytes that the folder may have, or FREE
    write_error = Number(1)  # errno of every write; 0: none
    sync_error = Number(2)  # errno of every sync; 0: none
    sync_delay = Number(3)  # milliseconds that a sync takes, or HELD
    refused = Number(4)  # operations that failed because of the above
    syncs = Number(5)  # syncs that have begun

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.place = tempfile.TemporaryDirectory(prefix="disk-")
        self.recording = Path(self.place.name, "recording")
        self.control_path = Path(self.place.name, "control")
        self.control_path.write_bytes(bytes(6 * NUMBER.size))
        with self.control_path.open("r+b") as file:
            self.control = mmap.mmap(file.fileno(), 0)
        self.quota = FREE

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *failure: object) -> None:
        self.control.close()
        self.place.cleanup()

    def environ(self, record: bool = False) -> dict[str, str]:
        """The variables that put a process on this disk; with *record* into `recording`, all it does."""
        return {
            "LD_PRELOAD": f"{built().name}/shim.so",
            "FAULTS_FOLDER": str(self.folder),
            "FAULTS_CONTROL": str(self.control_path),
        } | ({"FAULTS_RECORD": str(self.recording)} if record else {})

    def used(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def fill(self) -> None:
        """From now on there is no room but what the files have."""
        self.quota = self.used()

    def free(self) -> None:
        """All is well again."""
        self.quota, self.write_error, self.sync_error, self.sync_delay = FREE, 0, 0, 0
