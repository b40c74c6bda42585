"""mosquitto-clients against the daemon, as a newcomer would use both."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.certificates import Certificates
from tests.end_to_end.mosquitto import READY, Place, Subscriber, pub, sub
from tests.end_to_end.process import FREE, Daemon, daemon
from tests.end_to_end.running import WAIT

VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
LARGE = 3 << 20  # bytes of the largest message here


@pytest.fixture(scope="module")
def places(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Place]]:
    """One daemon for all; at the end it stops cleanly and has logged no error."""
    path = tmp_path_factory.mktemp("mosquitto") / "s"
    settings = [
        *("--listen", "tls://127.0.0.1:0", "--listen", f"unix:{path}"),
        *("--set", f"tls.certificate={certificates.server}"),
        *("--set", f"limits.maximum_packet_size={LARGE + 1000}"),
        *("--set", "limits.session_expiry_interval=4294967295"),
        *("--set", "capacity.sys_interval=0.1"),
    ]
    with daemon(*FREE, *settings) as process:
        tcp, tls = (urlsplit(url_of(process)).port for _ in range(2))
        found = {
            "tcp": ["-h", "127.0.0.1", "-p", str(tcp)],
            "tls": ["-h", "127.0.0.1", "-p", str(tls), "--cafile", certificates.ca],
            "unix": ["--unix", str(path)],
        }
        pub(found["tcp"], READY, "-r", message="ready")
        yield found
        process.process.terminate()
        status, _, errors = process.end()
        assert status == 0
        assert not re.search(r"Traceback|ERROR|WARNING", errors)


def url_of(process: Daemon) -> str:
    return process.until(process.out, r"^listening on ([^ ]+)")[1]


@pytest.fixture
def place(places: dict[str, Place]) -> Place:
    return places["tcp"]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test alone: the daemon serves them all."""
    return "t/" + re.sub(r"\W", "-", request.node.name)


@pytest.mark.parametrize("transport", ["tcp", "tls", "unix"])
@VERSIONS
def test_messages_at_every_qos(places: dict[str, Place], topic: str, transport: str, version: str) -> None:
    here = places[transport]
    with Subscriber(here, "-V", version, "-q", "2", "-t", f"{topic}/+") as subscriber:
        for qos in "012":
            pub(here, f"{topic}/{qos}", "-V", version, "-q", qos, message=f"Grüße {qos}")
        found = subscriber.take(3)
        assert [(m["topic"], m["payload"], m["qos"], m["retain"]) for m in found] == [
            (f"{topic}/{qos}", f"Grüße {qos}", qos, 0) for qos in range(3)
        ]
        assert subscriber.end() == []


def test_every_version_hears_every_other(place: Place, topic: str) -> None:
    versions = ["mqttv31", "mqttv311", "mqttv5"]
    for listens, speaks in product(versions, versions):
        with Subscriber(place, "-V", listens, "-q", "1", "-t", topic) as subscriber:
            pub(place, topic, "-V", speaks, "-q", "2", message=f"{speaks} to {listens}")
            found = subscriber.take()[0]
            assert (found["payload"], found["qos"]) == (f"{speaks} to {listens}", 1)


@VERSIONS
def test_retained_messages(place: Place, topic: str, version: str) -> None:
    flags = ("-V", version, "-q", "1")
    pub(place, f"{topic}/a", *flags, "-r", message="kept")
    pub(place, f"{topic}/b", *flags, "-r", message="deleted")
    pub(place, f"{topic}/b", *flags, "-r", "-n")
    with Subscriber(place, *flags, "-t", f"{topic}/#") as subscriber:
        pub(place, f"{topic}/c", *flags, message="live")
        messages = subscriber.take(2) + subscriber.end()
    found = {(message["payload"], message["retain"]) for message in messages}
    assert ("live", 0) in found
    assert "deleted" not in {payload for payload, _ in found}
    assert [m["payload"] for m in sub(place, "-V", version, "-t", f"{topic}/#", "-C", "1")] == ["kept"]


@VERSIONS
def test_a_will(place: Place, topic: str, version: str) -> None:
    """Told to end, mosquitto_sub with a will says 0x04 in MQTT 5: disconnect with Will Message."""
    will = ("--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-qos", "2", "--will-retain")
    with Subscriber(place, "-V", version, "-q", "2", "-t", f"{topic}/#") as watcher:
        for number, leave in enumerate((Subscriber.end, Subscriber.kill)):
            with Subscriber(place, "-V", version, *will) as leaving:
                leave(leaving)
            if number or version == "mqttv5":
                message = watcher.take()[0]
                assert (message["topic"], message["payload"], message["qos"]) == (f"{topic}/will", "gone", 2)
        assert watcher.end() == []
    late = sub(place, "-V", version, "-t", f"{topic}/#", "-C", "1")
    assert [(message["payload"], message["retain"]) for message in late] == [("gone", 1)]


@pytest.mark.parametrize("dies", [False, True], ids=["leaves", "dies"])
@VERSIONS
def test_a_persistent_session(place: Place, topic: str, version: str, dies: bool) -> None:
    client_id = topic[-23:]
    flags = ("-V", version, "-c", "-i", client_id, "-q", "1", "-t", topic)
    if dies:
        with Subscriber(place, *flags) as subscriber:
            subscriber.kill()
    else:
        assert sub(place, *flags, "-E") == []
    lines = "".join(f"{number}\n" for number in range(100))
    command = ["mosquitto_pub", *place, "-V", version, "-q", "2", "-t", topic, "-l"]
    subprocess.run(command, input=lines, text=True, timeout=WAIT, check=True)
    found = sub(place, *flags, "-C", "100")
    assert [int(message["payload"]) for message in found] == list(range(100))
    assert {message["qos"] for message in found} == {1}


def test_sys(place: Place) -> None:
    values = {m["topic"]: m["payload"] for m in sub(place, "-t", "$SYS/broker/#", "-C", "12")}
    assert re.fullmatch(
        r"pybroker \d+\.\d+.*", sub(place, "-t", "$SYS/broker/version", "-C", "1")[0]["payload"]
    )
    assert int(sub(place, "-t", "$SYS/broker/clients/connected", "-C", "1")[0]["payload"]) >= 1
    assert all(topic_name.startswith("$SYS/broker/") for topic_name in values)
    first, later = sub(place, "-t", "$SYS/broker/publish/messages/sent", "-C", "2")  # comes at an interval
    assert int(later["payload"]) > int(first["payload"])


def test_wildcards_do_not_show_sys(place: Place) -> None:
    with Subscriber(place, "-t", "#", "-t", "+/broker/+") as subscriber:
        assert len(sub(place, "-t", "$SYS/broker/uptime", "-C", "3")) == 3  # comes at an interval
        found = subscriber.take() + subscriber.end()
        assert not [message for message in found if message["topic"].startswith("$")]


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_a_shared_subscription(place: Place, topic: str, version: str) -> None:
    flags = ("-V", version, "-q", "1", "-t", f"$share/workers/{topic}")
    command = ["mosquitto_pub", *place, "-q", "1", "-t", topic, "-l"]
    with Subscriber(place, *flags) as one, Subscriber(place, *flags) as two:
        lines = "".join(f"{number}\n" for number in range(40))
        subprocess.run(command, input=lines, text=True, timeout=WAIT, check=True)
        done = one.payloads(20), two.payloads(20)
        assert sorted(map(int, done[0] + done[1])) == list(range(40))
        assert one.end() == []
        subprocess.run(command, input="40\n41\n", text=True, timeout=WAIT, check=True)
        assert two.payloads(2) == ["40", "41"]
        assert two.end() == []


def test_properties(place: Place, topic: str) -> None:
    given = {
        "content-type": "text/plain",
        "correlation-data": "42",
        "message-expiry-interval": "1000",
        "payload-format-indicator": "1",
        "response-topic": f"{topic}/answers",
    }
    flags = [flag for name, value in given.items() for flag in ("-D", "publish", name, value)]
    flags += ["-D", "publish", "user-property", "k", "v", "-D", "publish", "topic-alias", "3"]
    flags += ["-D", "connect", "user-property", "a", "b", "-D", "connect", "receive-maximum", "10"]
    with Subscriber(
        *(place, "-V", "mqttv5", "-q", "1", "-t", topic),
        *("-D", "subscribe", "subscription-identifier", "77", "-D", "connect", "topic-alias-maximum", "5"),
    ) as subscriber:
        pub(place, topic, "-V", "mqttv5", "-q", "1", *flags, message="hello")
        found = subscriber.take()[0]["properties"]
        left = int(found.pop("message-expiry-interval"))
        assert 1000 - WAIT <= left <= int(given.pop("message-expiry-interval"))
        assert {name: str(found[name]) for name in given} == given
        assert found["user-properties"] == {"k": "v"}
        assert found["subscription-identifier"] == 77


def test_reason_codes(place: Place, topic: str) -> None:
    nobody = pub(place, topic, "-V", "mqttv5", "-q", "1", "-d", message="x")
    assert "received PUBACK (Mid: 1, RC:16)" in nobody
    forbidden = pub(place, f"$SYS/{topic}", "-V", "mqttv5", "-q", "1", "-d", message="x")
    assert "received PUBACK (Mid: 1, RC:144)" in forbidden


@pytest.mark.parametrize("qos", "012")
def test_a_large_payload_from_a_file(place: Place, topic: str, tmp_path: Path, qos: str) -> None:
    payload = os.urandom(LARGE - len(topic))
    (tmp_path / "payload").write_bytes(payload)
    pub(place, topic, "-V", "mqttv5", "-q", qos, "-r", "-f", str(tmp_path / "payload"))
    command = ["mosquitto_sub", *place, "-q", qos, "-t", topic, "-C", "1", "-N"]
    done = subprocess.run(command, timeout=WAIT, check=True, stdout=subprocess.PIPE)
    assert done.stdout == payload
    pub(place, topic, "-q", "1", "-r", "-n")


@VERSIONS
def test_refused_without_a_password(version: str) -> None:
    with daemon(*FREE, "--set", "protocol.anonymous=never") as process:
        command = ["mosquitto_pub", "-p", str(process.port()), "-V", version, "-t", "a", "-m", "x"]
        done = subprocess.run(command, timeout=WAIT, capture_output=True, text=True)
        assert done.returncode != 0
        assert "not authori" in done.stderr.lower()


def test_tls_refuses_without_the_authority(places: dict[str, Place], certificates: Certificates) -> None:
    own = [*places["tls"][:-1], certificates.stranger]
    done = subprocess.run(
        ["mosquitto_pub", *own, "-t", "a", "-m", "x"], timeout=WAIT, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "certificate" in done.stderr.lower() or "tls" in done.stderr.lower()
