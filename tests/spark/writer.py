"""`python -m tests.spark.writer LOG COUNT`: writes a log as the broker does, and may be killed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from broker.hook.log.line import format_message
from broker.hook.log.recorder import Recorder, RecorderTerms
from broker.hook.log.recover import lock, prepare, recover, take_epoch
from tests.spark.logs import NODE, records

EVERY = 100  # messages


def main(root: Path, count: int) -> None:
    kept = lock(root, NODE)
    prepare(root, NODE)
    recover(root, NODE, gz=True)
    epoch = take_epoch(root, NODE, time.time())
    what = {"kind": "messages", "node": NODE, "epoch": epoch, "format": format_message}
    recorder = Recorder(RecorderTerms(root=root, **what, gz=True, segment_seconds=1.0))
    recorder.start()
    for first in range(0, count, EVERY):
        for record in records(EVERY, first, at=int(time.time() * 1e6)):
            recorder.put(record, len(record.payload))
        print(json.dumps({"epoch": epoch, "put": first + EVERY}), flush=True)
        time.sleep(EVERY / 2000)
    recorder.stop(int(time.time() * 1e6))
    assert recorder.join(30) and kept


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
