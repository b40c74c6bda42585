"""A broker that logs every message, and a look at what it has written.

    python examples/message_log.py
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker import Broker, MessageLog


def lines(log: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Every record of *kind* in closed segments."""
    for path in sorted((log / "v1" / "closed" / f"kind={kind}").glob("date=*/hour=*/*.jsonl.gz")):
        with gzip.open(path, "rb") as file:
            yield from map(json.loads, file)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        hook = MessageLog(folder, fsync="ack", also=("program",))
        async with Broker(listen="tcp://127.0.0.1:0", hooks=[hook]) as broker:
            for degrees in (21.5, 21.6):
                # With fsync="ack" it is on the disk when this returns.
                await broker.publish("home/kitchen/temperature", str(degrees), qos=1)
            print("on the disk: up to (epoch, offset)", hook.synced)
        for line in lines(Path(folder), "messages"):
            print(line["o"], line["t"], base64.b64decode(line["p"]).decode())
        for line in lines(Path(folder), "events"):
            print(line["o"], line["ev"], line.get("st", ""))


if __name__ == "__main__":
    asyncio.run(main())
