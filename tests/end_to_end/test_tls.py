"""TLS and client certificates, with paho-mqtt and mosquitto-clients at the other end."""

from __future__ import annotations

import socket
import ssl
import subprocess

import pytest

from broker import HookBase
from tests.end_to_end.certificates import Certificates
from tests.end_to_end.conftest import Serve
from tests.end_to_end.paho import TRANSPORTS, Paho, connected
from tests.end_to_end.running import WAIT, Recorder, Running, take

SCHEMES = pytest.mark.parametrize("scheme", ["tls", "wss"])


class Seen(HookBase):
    """Keeps what the broker tells hooks about the peer."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def on_connect(self, client: object, packet: object) -> None:
        subject = dict(pair for part in (client.certificate or {}).get("subject", ()) for pair in part)
        self.subjects.append(f"{client.transport}: {subject.get('commonName')}")


def no_connack(running: Running, scheme: str, context: ssl.SSLContext | None) -> None:
    """A client that tries so is cut off before it is a client."""
    client = Paho("nobody", transport=TRANSPORTS[scheme])
    if context is not None:
        client.client.tls_set_context(context)
    try:
        client.client.connect("127.0.0.1", running.port(scheme))
    except OSError:  # already in the handshake; with TLS 1.3 the client learns it later
        pass
    else:
        client.client.loop_start()
        take(client.ends, 1)
    client.client.loop_stop()
    assert client.connacks.empty()
    assert not running.broker.clients


@SCHEMES
def test_a_client_certificate_can_be_required(serve: Serve, certificates: Certificates, scheme: str) -> None:
    seen = Seen()
    running = serve(scheme, tls=certificates.tls("required"), hooks=[seen])
    no_connack(running, scheme, certificates.context())
    no_connack(running, scheme, certificates.context(certificates.stranger))
    with connected(
        running, "me", scheme=scheme, certificates=certificates, identity=certificates.client
    ) as client:
        client.subscribe("a")
        client.publish("a", b"trusted", 2)
        assert client.payloads(1) == [b"trusted"]
    assert seen.subjects == [f"{scheme}: a client"]


@SCHEMES
def test_a_client_certificate_can_be_optional(serve: Serve, certificates: Certificates, scheme: str) -> None:
    seen = Seen()
    running = serve(scheme, tls=certificates.tls("optional"), hooks=[seen])
    no_connack(running, scheme, certificates.context(certificates.stranger))
    for identity in (certificates.client, None):
        with connected(running, "me", scheme=scheme, certificates=certificates, identity=identity) as client:
            assert client.subscribe("a", 1) == 1
    assert seen.subjects == [f"{scheme}: a client", f"{scheme}: None"]


@pytest.mark.parametrize(
    ("setting", "user_name"),
    [("common_name", "a client"), ("san", "client@example.org"), ("connect", None)],
)
def test_a_certificate_gives_the_user_name(
    serve: Serve, certificates: Certificates, setting: str, user_name: str | None
) -> None:
    running = serve("tls", tls=certificates.tls("required", user_name=setting), anonymous="never")
    with connected(
        running, "me", scheme="tls", certificates=certificates, identity=certificates.client
    ) as client:
        assert client.subscribe("a", 1) == 1
        assert running.broker.clients["me"].info.user_name == user_name


def test_without_a_certificate_there_is_no_user_name(serve: Serve, certificates: Certificates) -> None:
    """Else anybody could claim a name that others prove."""
    running = serve("tls", tls=certificates.tls("optional", user_name="common_name"))
    with connected(running, "me", scheme="tls", certificates=certificates, user_name="a client") as client:
        assert client.subscribe("a", 1) == 1
        assert running.broker.clients["me"].info.user_name is None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls(serve: Serve, certificates: Certificates, version: ssl.TLSVersion) -> None:
    running = serve("tls")
    context = certificates.context()
    context.minimum_version = context.maximum_version = version
    client = Paho("me")
    client.client.tls_set_context(context)
    assert client.connect("127.0.0.1", running.port("tls")).reason == 0
    assert client.client.socket().version() == version.name.replace("_", ".")
    client.close()


@SCHEMES
def test_neither_silence_nor_plain_text_keeps_others_out(
    serve: Serve, certificates: Certificates, scheme: str
) -> None:
    """A peer that never begins its handshake, and one that does not speak TLS at all."""
    running = serve(scheme)
    with socket.create_connection(("127.0.0.1", running.port(scheme)), WAIT):
        no_connack(running, scheme, None)
        with connected(running, "me", scheme=scheme, certificates=certificates) as client:
            client.nothing_more()


@pytest.mark.parametrize("shown", [True, False], ids=["with", "without"])
def test_mosquitto_with_a_certificate(serve: Serve, certificates: Certificates, shown: bool) -> None:
    recorder = Recorder()
    running = serve("tls", tls=certificates.tls("required"), hooks=[recorder])
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(running.port("tls"))]
    command += ["--cafile", certificates.ca, "-t", "a", "-m", "x", "-q", "1"]
    if shown:
        command += ["--cert", certificates.client, "--key", certificates.client]
    done = subprocess.run(command, timeout=WAIT, capture_output=True, text=True)
    assert (done.returncode == 0) is shown, done.stderr
    assert recorder.published == ([b"x"] if shown else [])
