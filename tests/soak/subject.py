"""The broker that is watched, as a process of its own that answers how large it is.

    python -m tests.soak.subject STORE

writes its port, then one line of JSON for each line "census" that it reads; the end of its input is its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from urllib.parse import urlsplit

from broker import Broker
from broker.config import load
from tests.soak.census import census, objects, process, rows

LIFE = 2  # seconds that a session without a connection lives at most
SETS = (
    f"limits.session_expiry_interval={LIFE}",
    f"limits.session_expiry_interval_3x={LIFE}",
    "limits.connect_timeout=2",
    "limits.maximum_queued_messages=200",
    "store.fsync=normal",
    "capacity.sys_interval=1",
)


def sizes(broker: Broker, store: str) -> dict[str, int]:
    found = objects() + census(broker) + process()
    found["budget"] = broker._core.budget.used
    if store != ":memory:":
        found += rows(store)
    return dict(found)


async def main(store: str) -> None:
    config = load(sets=[f"store.path={store}", *SETS], listen=["tcp://127.0.0.1:0", "ws://127.0.0.1:0/mqtt"])
    async with Broker(config) as broker:
        print(json.dumps([urlsplit(url).port for url in broker.addresses]), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            assert line == "census\n", line
            await broker.sweep()
            print(json.dumps(sizes(broker, store)), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(sys.argv[1]))
