"""mosquitto_pub and mosquitto_sub as processes."""

from __future__ import annotations

import json
import subprocess
import threading
from queue import Queue
from types import TracebackType
from typing import Any

from tests.end_to_end.running import WAIT, take

READY = "mosquitto/ready"  # a topic with a retained message at QoS 0: who got it has its SUBACK
Place = list[str]  # the flags that say where the broker is


def pub(place: Place, topic_name: str, *flags: str, message: str | None = None) -> str:
    """Publish and return what was printed; fails unless the exit status is 0."""
    body = () if message is None else ("-m", message)
    command = ["mosquitto_pub", *place, "-t", topic_name, *flags, *body]
    done = subprocess.run(command, timeout=WAIT, capture_output=True, text=True)
    assert done.returncode == 0, (command, done)
    return done.stdout


def sub(place: Place, *flags: str) -> list[dict[str, Any]]:
    """Run mosquitto_sub to its end (so *flags* must have one) and return its messages."""
    command = ["mosquitto_sub", *place, "-F", "%j", "-W", str(int(WAIT)), *flags]
    done = subprocess.run(command, timeout=2 * WAIT, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr, done.stdout[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


class Subscriber:
    """mosquitto_sub until the `with` block ends; its subscriptions are live when the block begins."""

    def __init__(self, place: Place, *flags: str) -> None:
        self.messages: Queue[dict[str, Any]] = Queue()
        command = ["mosquitto_sub", *place, "-F", "%j", "-t", READY, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        for line in self.process.stdout:
            self.messages.put(json.loads(line))

    def __enter__(self) -> Subscriber:
        self.thread.start()
        while self.take()[0]["topic"] != READY:
            pass  # a retained message of a filter that is given before
        return self

    def take(self, count: int = 1) -> list[dict[str, Any]]:
        return take(self.messages, count)

    def payloads(self, count: int) -> list[str]:
        return [message["payload"] for message in self.take(count)]

    def end(self) -> list[dict[str, Any]]:
        """Let it disconnect; the messages that are left."""
        self.process.terminate()
        return self._rest()

    def kill(self) -> list[dict[str, Any]]:
        """End it without DISCONNECT; the messages that are left."""
        self.process.kill()
        return self._rest()

    def _rest(self) -> list[dict[str, Any]]:
        self.process.wait(WAIT)
        self.thread.join(WAIT)
        self.process.stdout.close()
        return list(self.messages.queue)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
