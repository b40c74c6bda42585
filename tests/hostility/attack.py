"""What several attacks do: read slowly, publish at full speed, send without an end."""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from tests.conformance import wire
from tests.hostility.line import Line

SMALL = 4096  # bytes of a receive buffer, so that the broker's side of it blocks early


@contextlib.contextmanager
def reading(lines: Iterable[Line], size: int = 65536, pause: float = 0.0) -> Iterator[None]:
    """Meanwhile a thread reads up to *size* bytes from each that has some, then pauses, again and again."""
    over = threading.Event()
    with selectors.DefaultSelector() as ready:
        for line in lines:
            line.sock.setblocking(False)
            ready.register(line.sock, selectors.EVENT_READ)
        thread = threading.Thread(target=_read, args=(ready, over, size, pause), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _read(ready: selectors.BaseSelector, over: threading.Event, size: int, pause: float) -> None:
    while not over.is_set():
        for key, _ in ready.select(0.1):
            try:
                data = key.fileobj.recv(size)  # type: ignore[union-attr]
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                ready.unregister(key.fileobj)
        time.sleep(pause)


def at_once(work: Callable[[int], None], count: int) -> None:
    """*work* in *count* threads at the same time; fails when one of them does."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures


def repeat(line: Line, data: bytes, seconds: float) -> int:
    """Send *data* again and again, however much the broker takes; how often all of it went out."""
    ends, count = time.monotonic() + seconds, 0
    line.sock.settimeout(0.2)
    while time.monotonic() < ends:
        try:
            line.sock.sendall(data)
        except TimeoutError:
            continue  # it takes no more: what follows is no packet any more, and need not be
        except OSError:
            break
        count += 1
    return count


def publish_all(line: Line, packets: Iterable[bytes], window: int = 500) -> list[int]:
    """Send QoS 1 PUBLISH packets, *window* at a time; the Reason Codes of their acknowledgements."""
    codes: list[int] = []
    waiting = 0
    batch: list[bytes] = []
    for packet in packets:
        batch.append(packet)
        if len(batch) == window:
            line.send(*batch)
            waiting, batch = len(batch), []
            codes += [line.expect("PUBACK").reason_code or 0 for _ in range(waiting)]
    line.send(*batch)
    return codes + [line.expect("PUBACK").reason_code or 0 for _ in range(len(batch))]


def flood(
    line: Line, topic_name: str, payload: bytes, seconds: float, qos: int = 0, window: int = 200
) -> int:
    """Publish as fast as the broker takes it; how many, all of which it has taken."""
    ends, sent = time.monotonic() + seconds, 0
    batch = [
        wire.publish(topic_name, payload, qos=qos, packet_id=n if qos else None, version=line.version)
        for n in range(1, window + 1)
    ]
    while time.monotonic() < ends:
        line.send(*batch)
        sent += window
        if qos:
            for _ in range(window):
                assert line.expect("PUBACK").reason_code in (0, 0x10)
    line.fence()
    return sent
