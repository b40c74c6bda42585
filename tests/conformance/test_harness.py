"""The guard is guarded: what the harness must refuse in a server's packets, and lets pass."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.hooks import Failing
from tests.conformance.server import LoopThread, Server, configure
from tests.conformance.transports import Tcp

BREACHES_5 = [
    ("20 03 02 00 00", "acknowledge flags"),
    ("20 03 01 86 00", "session present in a refusal"),
    ("20 03 00 01 00", "reason code"),
    ("20 03 00 84", "ends too early"),
    ("20 04 00 00 00 00", "left over"),
    ("21 03 00 00 00", "flags"),
    ("20 05 00 00 02 24 02", "maximum qos 2"),
    ("20 06 00 00 03 21 00 00", "receive maximum 0"),
    ("20 07 00 00 04 24 01 24 01", "property twice"),
    ("20 05 00 00 02 17 01", "property of another packet"),
    ("20 05 00 00 02 7F 01", "unknown property"),
    ("36 06 00 01 74 00 01 00", "qos 3"),
    ("38 04 00 01 74 00", "dup at qos 0"),
    ("32 06 00 01 74 00 00 00", "identifier 0"),
    ("30 04 00 01 2B 00", "wildcard in a topic"),
    ("30 03 00 00 00", "no topic and no alias"),
    ("30 04 00 01 FF 00", "not utf-8"),
    ("30 04 00 01 00 00", "U+0000"),
    ("30 07 00 01 74 03 23 00 00", "alias 0"),
    ("40 03 00 01 92", "reason code of another packet"),
    ("60 02 00 01", "pubrel flags"),
    ("90 03 00 01 00", "no reason code"),
    ("90 04 00 01 00 03", "qos 3 granted"),
    ("D0 01 00", "body of pingresp"),
    ("E0 01 04", "client's reason code"),
    ("E0 01 8C", "not in table 3-10"),
    ("E0 07 00 05 11 00 00 00 01", "session expiry from the server"),
    ("F0 02 18 00", "no method"),
    ("C0 00", "client's packet"),
    ("00 00", "type 0"),
]
BREACHES_4 = [
    ("20 03 00 00 00", "5.0 form"),
    ("20 02 00 06", "return code"),
    ("40 03 00 01 00", "length"),
    ("90 03 00 01 87", "return code"),
    ("B0 03 00 01 00", "length"),
    ("E0 00", "disconnect to 3.1.1"),
    ("F0 00", "auth to 3.1.1"),
]
GOOD = [
    ("20 03 00 00 00", 5, "CONNACK"),
    ("20 02 01 00", 4, "CONNACK"),
    ("33 08 00 01 74 00 05 00 68 69", 5, "PUBLISH"),
    ("40 02 00 01", 5, "PUBACK"),
    ("40 03 00 01 10", 5, "PUBACK"),
    ("50 04 00 01 87 00", 5, "PUBREC"),
    ("62 02 00 01", 4, "PUBREL"),
    ("90 05 00 01 00 02 87", 5, "SUBACK"),
    ("B0 02 00 01", 4, "UNSUBACK"),
    ("E0 00", 5, "DISCONNECT"),
    ("E0 02 8E 00", 5, "DISCONNECT"),
]


@pytest.mark.parametrize(
    ("raw", "version"),
    [pytest.param(raw, 5, id=f"5: {what}") for raw, what in BREACHES_5]
    + [pytest.param(raw, 4, id=f"4: {what}") for raw, what in BREACHES_4],
)
def test_a_breach_is_noticed(raw: str, version: int) -> None:
    with pytest.raises(AssertionError):
        wire.parse(bytes.fromhex(raw), version)


@pytest.mark.parametrize(("raw", "version", "name"), GOOD)
def test_what_is_right_passes(raw: str, version: int, name: str) -> None:
    assert wire.parse(bytes.fromhex(raw), version).name == name


@pytest.mark.parametrize("raw", ["30 80 00", "30 FF FF FF FF 01", "30 80 80 80 80 00"])
def test_a_wrong_remaining_length_is_noticed(raw: str) -> None:
    with pytest.raises(AssertionError):
        wire.split(bytes.fromhex(raw))


@given(st.integers(0, 268_435_455), st.integers(0, 4))
def test_varint(value: int, width: int) -> None:
    raw = wire.varint(value, width)
    assert sum((byte & 0x7F) << 7 * at for at, byte in enumerate(raw)) == value
    assert all(byte & 0x80 for byte in raw[:-1]) and not raw[-1] & 0x80
    assert len(raw) == max(width, next(n for n in range(1, 5) if value < 128**n))


@given(st.binary(max_size=40), st.sampled_from([3, 4, 5]))
def test_any_bytes_parse_or_are_an_assertion(raw: bytes, version: int) -> None:
    try:
        found = wire.split(raw)
        if found is not None:
            wire.parse(found[0], version)
    except AssertionError:
        return


class Script:
    """A socket server that answers the first bytes it gets with a script, then closes or waits."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.peers: list[socket.socket] = []
        self.threads: list[threading.Thread] = []

    def answer(self, raw: str, close: bool = True) -> Raw:
        thread = threading.Thread(target=self._serve, args=(bytes.fromhex(raw), close), daemon=True)
        thread.start()
        self.threads.append(thread)
        return Raw(Tcp(self.address, rng=random.Random(1)))

    def _serve(self, raw: bytes, close: bool) -> None:
        peer, _ = self.listener.accept()
        self.peers.append(peer)
        peer.recv(1000)
        peer.sendall(raw)
        if close:
            peer.shutdown(socket.SHUT_WR)


@pytest.fixture
def script() -> Iterator[Script]:
    one = Script()
    yield one
    for thread in one.threads:
        thread.join(2)
    for sock in [one.listener, *one.peers]:
        sock.close()


@pytest.mark.parametrize(
    ("raw", "close", "codes"),
    [
        pytest.param("20 03 00 00 00 E0 01 81", True, (0x82,), id="another code"),
        pytest.param("20 03 00 00 00 E0 01 82", False, (0x82,), id="no close"),
        pytest.param("20 03 00 00 00 E0 01 82 D0 00", True, (0x82,), id="a packet after DISCONNECT"),
        pytest.param("20 03 00 00 00 D0 00 E0 01 82", True, (0x82,), id="a packet before DISCONNECT"),
        pytest.param("20 03 00 00 00", True, (0x82,), id="silence"),
        pytest.param("20 03 00 00 00 E0 01 82", True, (), id="no silence"),
        pytest.param("20 03 00 00 00 E0 01", True, (0x82,), id="cut off"),
    ],
)
def test_expect_close_is_strict(script: Script, raw: str, close: bool, codes: tuple[int, ...]) -> None:
    client = script.answer(raw, close)
    client.connect("c")
    with pytest.raises(AssertionError):
        client.expect_close(*codes, timeout=0.3)
    client.close()


@pytest.mark.parametrize(
    ("raw", "codes"),
    [
        ("20 03 00 00 00 E0 01 82", (0x81, 0x82)),
        ("20 03 00 00 00", ()),
        ("20 03 00 00 00", (0x82, None)),
    ],
)
def test_expect_close_accepts(script: Script, raw: str, codes: tuple[int | None, ...]) -> None:
    client = script.answer(raw)
    client.connect("c")
    client.expect_close(*codes)
    client.close()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param("D0 00", id="before CONNACK"),
        pytest.param("20 03 00 00 00 20 03 00 00 00", id="a second CONNACK"),
        pytest.param("20 03 00 00 00 30 07 00 01 74 03 23 00 01", id="an alias nobody allowed"),
        pytest.param(
            "20 03 00 00 00 32 06 00 01 74 00 01 00 32 06 00 01 74 00 01 00", id="an identifier in use"
        ),
        pytest.param("20 03 00 00 00 32 06 00 01 74 00 01 00 32 06 00 01 74 00 02 00", id="Receive Maximum"),
        pytest.param("20 03 00 00 00 30 22 00 01 74 00" + " 78" * 30, id="Maximum Packet Size"),
        pytest.param("20 03 00 00 00 40 09 00 01 87 05 1F 00 02 6E 6F", id="a Reason String not asked for"),
    ],
)
def test_the_inspector_looks_at_the_whole_connection(script: Script, raw: str) -> None:
    client = script.answer(raw)
    client.send(
        wire.connect(
            "c",
            properties={"receive_maximum": 1, "maximum_packet_size": 30, "request_problem_information": 0},
        )
    )
    with pytest.raises(AssertionError) as caught:
        for _ in range(3):
            client.recv(0.3)
    assert "nothing came" not in str(caught.value) and "server closed" not in str(caught.value)
    client.close()


def _server(thread: LoopThread) -> Server:
    return Server(thread, "tcp", random.Random(1), configure(None, {}), [Failing()])


def test_an_error_in_the_log_fails_the_test(loop_thread: LoopThread) -> None:
    server = _server(loop_thread)
    server.connect("c").publish("boom", b"x", qos=1, reason=0x83)
    with pytest.raises(AssertionError, match="on purpose"):
        server.close()


def test_an_error_that_does_not_come_fails_the_test(loop_thread: LoopThread) -> None:
    server = _server(loop_thread)
    server.expect_errors()
    with pytest.raises(AssertionError, match="wanted an error"):
        server.close()


def test_a_breach_that_is_no_breach_fails_the_test(loop_thread: LoopThread) -> None:
    server = _server(loop_thread)
    with pytest.raises(AssertionError):
        server.expect_breach(wire.pingreq(), codes=0x81)
    with pytest.raises(AssertionError):
        server.expect_breach(wire.subscribe(0, "t"), codes=0x81)
    server.close()


def test_an_unknown_setting_is_an_error() -> None:
    with pytest.raises(AssertionError, match="receive_maximum"):
        configure(None, {"recieve_maximum": 5})


def test_time_moves_when_the_test_says_so(loop_thread: LoopThread) -> None:
    server = _server(loop_thread)
    client = server.connect("c", keep_alive=2)
    server.advance(2.9, step=0.5)
    client.ping()
    server.advance(2.9)
    server.advance(0.2)
    client.expect_close(0x8D)
    server.close()
