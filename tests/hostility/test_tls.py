"""The TLS port and those who do not speak TLS, or not to the end."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl

import pytest

from tests.conformance import wire
from tests.end_to_end.certificates import Certificates
from tests.hostility.line import Line
from tests.hostility.scene import MIB, Scene, scene


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def hello(certificates: Certificates) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO, bytes]:
    """The client's side of a handshake, and its first bytes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return client, incoming, outgoing, outgoing.read()


def junk(certificates: Certificates) -> dict[str, bytes]:
    """What comes to the port in the place of a handshake."""
    first = hello(certificates)[3]
    noise = random.Random(1)
    return {
        "MQTT": wire.connect("c"),
        "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "noise": noise.randbytes(20_000),
        "a long record": b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
        "SSL 2": b"\x80\x2e\x01\x00\x02" + b"\x00" * 60,
        "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
        "data before the handshake": b"\x17\x03\x03\x00\x10" + b"x" * 16,
        "a hello that is broken": first[:20] + noise.randbytes(len(first) - 20),
        "a hello twice": first + first,
        "a hello in pieces that never ends": b"\x16\x03\x01\x00\x04\x01\x00\xff\xff" * 3,
    }


def test_junk_for_the_tls_port(certificates: Certificates) -> None:
    with tls_scene(certificates, tls__handshake_timeout=2) as s:
        for name, raw in junk(certificates).items():
            lines = [s.line(scheme="tls") for _ in range(20)]
            for line in lines:
                line.push(raw)
            for line in lines:
                line.sock.shutdown(1)
                found = line.rest()
                assert not found or found[0] in (0x15, 0x16), f"{name}: {found[:20]!r}"
                line.close()
        check_peace(s, certificates)


def test_handshakes_that_stop_half_way(certificates: Certificates) -> None:
    """After nothing, half a hello, a hello, and all but the last message: one time-out for all."""
    with tls_scene(certificates, tls__handshake_timeout=1.5) as s:
        lines = [s.line(scheme="tls") for _ in range(400)]
        for number, line in enumerate(lines):
            first = hello(certificates)[3]
            line.push((b"", first[:100], first)[number % 3])
        for line in lines:
            line.rest()
        s.wait_until(lambda: s.descriptors() < 40, "their descriptors come back")
        assert s.peak() < s.at_rest + 400 * 80_000 + 10 * MIB
        check_peace(s, certificates)


def test_connections_that_end_abruptly(certificates: Certificates) -> None:
    """With a reset, in the middle of a record, with a broken record, without close_notify."""
    context = certificates.context()
    with tls_scene(certificates) as s:
        for number in range(200):
            line = s.line(scheme="tls").tls(context).connect(f"abrupt-{number}", keep_alive=60)
            with socket.socket(fileno=line.sock.detach()) as bare:
                if number % 4 == 1:
                    bare.send(b"\x17\x03\x03\x40\x00" + b"x" * 100)
                elif number % 4 == 2:
                    bare.send(b"\x17\x03\x03\x00\x20" + b"x" * 32)
                elif number % 4 == 3:
                    bare.shutdown(1)
        check_peace(s, certificates)


def tls_scene(certificates: Certificates, **settings: object) -> contextlib.AbstractContextManager[Scene]:
    return scene(schemes=("tcp", "tls"), tls__certificate=certificates.server, **settings)


def check_peace(s: Scene, certificates: Certificates) -> None:
    s.wait_until(lambda: s.sys()["clients/total"] <= 3, "the end of all")
    s.wait_until(lambda: s.descriptors() < 40, "their descriptors come back")
    Line(s.ports["tls"]).tls(certificates.context()).connect("afterwards").close()
