"""MQTT.js over TCP and WebSocket: js/client.mjs does, these tests expect."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.certificates import Certificates
from tests.end_to_end.conftest import Serve
from tests.end_to_end.paho import connected
from tests.end_to_end.running import WAIT, Recorder, Running

SCRIPT = Path(__file__).parent / "js" / "client.mjs"
NAMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}  # how MQTT.js calls the schemes

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["mqtt 3.1.1", "mqtt 5"])
SCHEMES = pytest.mark.parametrize("scheme", ["tcp", "ws"])


@contextmanager
def script(
    running: Running, scenario: str, version: int, scheme: str, port: int = 0, ca: str | None = None
) -> Iterator[subprocess.Popen[str]]:
    address = urlsplit(running.url(scheme))
    url = f"{NAMES[scheme]}://127.0.0.1:{port or address.port}{address.path}"
    command = ["node", str(SCRIPT), url, scenario, str(version), *([ca] if ca else [])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def result(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=2 * WAIT)
    assert process.returncode == 0, errors
    return json.loads(out)


def run(running: Running, scenario: str, version: int, scheme: str = "tcp", ca: str | None = None) -> Any:
    with script(running, scenario, version, scheme, ca=ca) as process:
        return result(process)


@pytest.mark.parametrize("version", [3, 4, 5], ids=["mqtt 3.1", "mqtt 3.1.1", "mqtt 5"])
@pytest.mark.parametrize("scheme", NAMES)
def test_messages_go_both_ways(serve: Serve, certificates: Certificates, version: int, scheme: str) -> None:
    got = run(serve(scheme), "messages", version, scheme, certificates.ca)
    assert got["granted"] == [0, 1, 2]
    assert [(m["topic"], m["size"], m["qos"]) for m in got["found"]] == [
        (f"q/{granted}/{qos}", 100_000, min(granted, qos)) for granted in range(3) for qos in range(3)
    ]
    assert not any(m["retain"] or m["dup"] for m in got["found"])


@VERSIONS
@SCHEMES
def test_retained_messages(serve: Serve, version: int, scheme: str) -> None:
    found = run(serve(scheme), "retained", version, scheme)
    assert [(m["topic"], m["text"], m["retain"]) for m in found] == [
        ("state/a", "new", True),
        ("state/c", "live", False),
    ]


@VERSIONS
@SCHEMES
def test_a_session_keeps_what_it_missed(serve: Serve, version: int, scheme: str) -> None:
    got = run(serve(scheme), "session", version, scheme)
    assert got["present"] is True
    assert [int(m["text"]) for m in got["found"]] == list(range(20))


@VERSIONS
@SCHEMES
def test_a_will(serve: Serve, version: int, scheme: str) -> None:
    found = run(serve(scheme), "will", version, scheme)
    assert [(m["topic"], m["text"], m["qos"]) for m in found] == [("will/lost", "gone", 2)]


@SCHEMES
def test_properties(serve: Serve, scheme: str) -> None:
    found = run(serve(scheme), "properties", 5, scheme)
    assert [(m["text"], m["qos"]) for m in found] == [("{}", 1), ("{}", 1), ("{}", 0)]
    first = found[0]["properties"]
    assert 1000 - WAIT <= first.pop("messageExpiryInterval") <= 1000
    assert {m["topic"] for m in found} == {"a/b"}
    assert [m["properties"].pop("topicAlias", None) for m in found] == [1, 1, 1]
    assert first == {
        "contentType": "json",
        "correlationData": "42",
        "payloadFormatIndicator": True,
        "responseTopic": "answers",
        "userProperties": {"k": ["v", "w"]},
        "subscriptionIdentifier": 268435455,
    }
    assert [m["properties"] for m in found[1:]] == [{"subscriptionIdentifier": 268435455}] * 2


def test_reason_codes(serve: Serve) -> None:
    got = run(serve(), "refusals", 5)
    assert got == {"acks": [["puback", 0x90], ["pubrec", 0x90], ["puback", 0x10]], "errors": [0x90, 0x90]}


@VERSIONS
def test_a_publisher_that_loses_the_answers(serve: Serve, version: int) -> None:
    """It comes back by itself and sends again: QoS 2 exactly once."""
    recorder = Recorder()
    running = serve(hooks=[recorder])
    relay = running.relay()
    with (
        connected(running, "watcher") as watcher,
        script(running, "interrupted", version, "tcp", relay.port) as process,
    ):
        watcher.subscribe("a")
        assert process.stderr.readline() == "connected\n"
        relay.muted.add("answers")
        process.stdin.write("go\n")
        process.stdin.flush()
        running.wait_until(lambda: len(recorder.published) == 15, "all of them, taken in")
        relay.cut()
        assert result(process) == "all published"
        assert [int(payload) for payload in watcher.payloads(15)] == list(range(15))
        watcher.nothing_more()


@VERSIONS
def test_a_subscriber_whose_acknowledgements_get_lost(serve: Serve, version: int) -> None:
    running = serve()
    relay = running.relay()
    with script(running, "listening", version, "tcp", relay.port) as process:
        assert process.stderr.readline() == "subscribed\n"
        relay.muted.add("acks")
        for number in range(15):
            running.publish("a", str(number), qos=1)
        assert process.stderr.readline() == "received\n"
        relay.cut()
        found = result(process)
    assert [int(m["text"]) for m in found] == [*range(15), *range(15)]
    assert [m["dup"] for m in found] == [False] * 15 + [True] * 15


def test_pings_keep_a_connection(serve: Serve) -> None:
    recorder = Recorder()
    running = serve("ws", hooks=[recorder])
    assert run(running, "pings", 5, "ws") is True
    running.wait_until(lambda: recorder.ended, "the hook that is told of its end")
    assert recorder.ended == [("me", 0)]
