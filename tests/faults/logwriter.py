"""A broker with a message log, and clients that publish until somebody ends the process.

    python -m tests.faults.logwriter FOLDER RUN

Each PUBACK and PUBREC that has arrived is one line on standard output: the payload that it was for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from broker import MessageLog
from broker.packet.packets import Puback, Publish, Pubrec, Pubrel
from tests.peer import Peer, memory_broker

CLIENTS = 4
WINDOW = 20


async def publish(peer: Peer, name: str) -> None:
    """QoS 1 and 2 by turns, WINDOW of them on their way at any time."""
    await peer.connect(name)
    waiting: dict[int, str] = {}
    sent = 0
    while True:
        while len(waiting) < WINDOW:
            packet_id, sent = sent % 60_000 + 1, sent + 1
            waiting[packet_id] = f"{name}/{sent}"
            peer.send(Publish("t", waiting[packet_id].encode(), 1 + sent % 2, packet_id=packet_id))
        answer = await peer.recv()
        if isinstance(answer, Puback | Pubrec):
            assert answer.reason_code < 0x80
            os.write(1, waiting.pop(answer.packet_id).encode() + b"\n")
        if isinstance(answer, Pubrec):
            peer.send(Pubrel(answer.packet_id))


async def main(folder: Path, run: str) -> None:
    hook = MessageLog(folder, fsync="ack", segment_bytes=50_000, compress=len(run) % 2 == 0)
    async with memory_broker(hooks=[hook]) as broker:
        await asyncio.gather(*(publish(Peer(broker), f"{run}/{n}") for n in range(CLIENTS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
