"""The wall clock jumps, while the daemon runs and while it does not: only time that has passed counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conformance.client import Raw
from tests.faults.scene import Scene, rest, text, until

LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
YEAR = 365 * 24 * 3600
TO_1970 = -57 * YEAR  # some time in the seventies
HOUR = 3600
PASSING = 60  # seconds that a test may take, at most
SWEEPS = 2.5  # seconds in which the library has read the new time, and the broker looked at all deadlines


class Watch(Scene):
    """A scene whose wall clock is set by the test; its monotonic clock is not."""

    def __init__(self, place: Path) -> None:
        assert LIBRARY is not None, "the tests need libfaketime: run tests/install.sh"
        self.file = place / "clock"
        self.ahead = 0
        environ = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        super().__init__(place, environ=environ)
        self.set(0)
        self.start()

    def set(self, ahead: int) -> None:
        """The wall clock is now *ahead* seconds ahead, or behind if that is below 0."""
        self.ahead = ahead
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{ahead:+d}s\n")
        fresh.replace(self.file)

    def lay_out(self) -> None:
        """Sessions, messages, retained messages that end in an hour, and some that end in ten."""
        self.session("hour", "t", keep=HOUR)
        self.session("holder", "t", keep=10 * HOUR)
        sender = self.client("sender")
        for name, expiry in (("hour", HOUR), ("long", 10 * HOUR)):
            sender.publish("t", name, 1, message_expiry_interval=expiry)
            sender.publish(f"shelf/{name}", name, 1, retain=True, message_expiry_interval=expiry)
        sender.disconnect()

    def expiries(self, client: Raw, passed: int) -> set[str]:
        """What arrives; each says how much of its life is left when *passed* seconds are over."""
        client.auto_ack = True
        found = client.drain()
        for packet in found:
            whole = HOUR if text(packet.payload) == "hour" else 10 * HOUR
            left = packet.properties["message_expiry_interval"]
            assert whole - passed - PASSING <= left <= whole - passed, packet
        return {text(packet.payload) for packet in found}

    def retained(self, passed: int) -> set[str]:
        reader = self.client("reader")
        reader.subscribe("shelf/#")
        return self.expiries(reader, passed)

    def all_is_there(self, passed: int = 0) -> None:
        for name, keep in (("hour", HOUR), ("holder", 10 * HOUR)):
            client = self.client(name, keep=keep, session_present=True)
            assert self.expiries(client, passed) == {"hour", "long"}
        assert self.retained(passed) == {"hour", "long"}


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with closing(Watch(tmp_path)) as watch:
        yield watch


def test_jumps_while_it_runs_change_nothing(watch: Watch) -> None:
    watch.lay_out()
    for ahead in (YEAR, TO_1970, 0):
        watch.set(ahead)
        time.sleep(SWEEPS)
        watch.client("anybody").drop(wait=False)
        year = time.gmtime(time.time() + ahead).tm_year
        until(lambda year=year: f"{year}-" in watch.broker.log(), f"the log, which has dates, is of {year}")
    watch.all_is_there()


@pytest.mark.parametrize(
    ("ahead", "end"),
    [
        pytest.param(YEAR, "stop", id="ahead and stop"),
        pytest.param(YEAR, "kill", id="ahead and kill"),
        pytest.param(TO_1970, "kill", id="back and kill"),
    ],
)
def test_nor_do_they_if_it_ends_then(watch: Watch, ahead: int, end: str) -> None:
    """Nobody does anything in between that would be stored."""
    watch.lay_out()
    watch.set(ahead)
    time.sleep(SWEEPS)
    getattr(watch.broker, end)()
    watch.start()
    watch.all_is_there()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_time_that_it_was_down_counts(watch: Watch, end: str) -> None:
    watch.lay_out()
    getattr(watch.broker, end)()
    watch.set(2 * HOUR)
    watch.start()
    watch.client("hour", keep=HOUR, session_present=False).disconnect()
    holder = watch.client("holder", keep=10 * HOUR, session_present=True)
    assert watch.expiries(holder, 2 * HOUR) == {"long"}
    assert watch.retained(2 * HOUR) == {"long"}


def test_a_clock_that_went_back_meanwhile_counts_as_no_time(watch: Watch) -> None:
    watch.lay_out()
    watch.broker.kill()
    watch.set(TO_1970)
    watch.start()
    watch.all_is_there()
    watch.set(0)  # and is set right when the daemon runs
    time.sleep(SWEEPS)
    sender = watch.client("sender")
    sender.publish("t", "hour", 1, message_expiry_interval=HOUR)
    holder = watch.client("holder", keep=10 * HOUR, session_present=True)
    assert "hour" in rest(holder)
