"""A store alone on a disk that records: `python -m tests.faults.commits PATH SEED`.

Batches of all levels put and delete rows. When one is committed that survives power loss, it is noted of each
row since the last one that it is there (+) or gone (-), and before a batch that both may be true now (~).
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from broker.errors import StoreError
from broker.store.base import Batch, Fsync, Row, StoreClock, Table
from broker.store.sqlite import SqliteStore
from tests.faults.recording import NOTES

BATCHES = 250
OPEN = "open"  # the note of a store that has been opened
AGAIN = 0.01  # seconds until a batch that failed is tried again


def main(path: str, seed: int) -> None:
    """Ends like a process that is killed."""
    rng = random.Random(seed)
    notes = os.open(path + NOTES, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    store = opened(path)
    os.write(notes, f"{OPEN}\n".encode())
    there = sorted(number for number, _ in store.read(Table.MESSAGE))
    done: list[str] = []
    for number in range(1, BATCHES + 1):
        batch = Batch(number, rng.choice((Fsync.NORMAL, Fsync.ALWAYS)))
        batch.rows[Table.MESSAGE] = rows = dict[int, Row | None]()
        for _ in range(rng.randrange(1, 4)):
            new = max(there, default=0) + 1
            there.append(new)
            rows[new] = row(new, rng.choice((10, 600, 9000)))
            done.append(f"+{new}")
        if len(there) > 1 and rng.random() < 0.5:
            old = there.pop(rng.randrange(len(there) - 1))
            rows[old] = None
            done.append(f"-{old}")
        batch.clock = StoreClock(number, number) if number % 20 == 0 else None
        os.write(notes, (" ".join(f"~{each}" for each in rows) + "\n").encode())
        write(store, batch)
        if batch.fsync is Fsync.ALWAYS:
            os.write(notes, (" ".join(done) + "\n").encode())
            done.clear()
    os._exit(0)


def row(number: int, size: int) -> Row:
    return Row((f"t/{number}", 1, 0, "client", None), (bytes([number % 256]) * size, b""))


def opened(path: str) -> SqliteStore:
    store = SqliteStore(path, Fsync.NORMAL)
    while True:
        try:
            store.open()
        except StoreError:
            time.sleep(AGAIN)
        else:
            return store


def write(store: SqliteStore, batch: Batch) -> None:
    while True:
        try:
            return store.write(batch)
        except StoreError:
            time.sleep(AGAIN)


def breaches(folder: Path, notes: list[str]) -> list[str]:
    """What a store in *folder* lacks, or has too much, of what was noted."""
    last: dict[int, str] = {}
    for line in notes:
        last |= {int(word[1:]): word[0] for word in line.split() if word != OPEN}
    store = SqliteStore(str(folder / "broker.db"))
    try:
        store.open()
        found = dict(store.read(Table.MESSAGE))
        store.close()
    except StoreError as error:
        return [str(error)]
    lost = [number for number, sign in last.items() if sign == "+" and number not in found]
    back = [number for number, sign in last.items() if sign == "-" and number in found]
    wrong = [number for number, each in found.items() if each != row(number, len(each.blobs[0]))]
    told = (("lost", lost), ("back again", back), ("not what was written", wrong))
    return [f"{what}: {numbers}" for what, numbers in told if numbers]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
