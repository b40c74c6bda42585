"""Listen addresses."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from broker.transport.listen import Address, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("tcp://0.0.0.0:1883", Address(scheme="tcp", host="0.0.0.0", port=1883)),
        ("tcp://127.0.0.1", Address(scheme="tcp", host="127.0.0.1", port=1883)),
        ("tcp://127.0.0.1:0", Address(scheme="tcp", host="127.0.0.1", port=0)),
        ("tcp://*:1884", Address(scheme="tcp", host="", port=1884)),
        ("tcp://:1884", Address(scheme="tcp", host="", port=1884)),
        ("tcp://*", Address(scheme="tcp", host="", port=1883)),
        ("tcp://[::1]:1883", Address(scheme="tcp", host="::1", port=1883)),
        ("tcp://[::]", Address(scheme="tcp", host="::", port=1883)),
        ("tcp://localhost:1883/", Address(scheme="tcp", host="localhost", port=1883, path="/")),
        ("TCP://LocalHost:1", Address(scheme="tcp", host="localhost", port=1)),
        ("tls://example.org", Address(scheme="tls", host="example.org", port=8883)),
        ("ws://0.0.0.0", Address(scheme="ws", host="0.0.0.0", port=8083)),
        ("ws://host:80/mqtt", Address(scheme="ws", host="host", port=80, path="/mqtt")),
        ("wss://host/a/b", Address(scheme="wss", host="host", port=8084, path="/a/b")),
        ("unix:/run/pybroker.sock", Address(scheme="unix", path="/run/pybroker.sock")),
        ("unix:///run/pybroker.sock", Address(scheme="unix", path="/run/pybroker.sock")),
        ("unix:here.sock", Address(scheme="unix", path="here.sock")),
    ],
)
def test_good_addresses(url: str, address: Address) -> None:
    assert parse_address(url) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("url", "way_out"),
    [
        ("", "must begin with tcp://"),
        ("1883", "must begin with tcp://"),
        ("localhost:1883", "must begin with tcp://"),
        ("tcp:127.0.0.1:1883", "must begin with tcp://"),
        ("mqtt://127.0.0.1", "must begin with tcp://"),
        ("http://127.0.0.1", "must begin with tcp://"),
        ("tcp://::1:1883", "brackets"),
        ("tcp://[::1:1883", "brackets"),
        ("tcp://host:port", "brackets"),
        ("tcp://host:65536", "out of range"),
        ("tcp://host:-1", "brackets"),
        ("tcp://user@host", "before @"),
        ("tcp://user:secret@host", "before @"),
        ("tcp://host/path", "only ws:// and wss:// have a path"),
        ("ws://host/mqtt?a=b", "no ?"),
        ("ws://host/mqtt#a", "no #"),
        ("tcp://ho st:1883", "white space"),
        ("unix:", "path of a socket file"),
        ("unix://run/broker.sock", "path of a socket file"),
        ("unix:/run/", "path of a socket file"),
        ("unix:/" + "a" * 107, "at most 107 bytes"),
    ],
)
def test_bad_addresses(url: str, way_out: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(url)
    assert repr(url) in str(caught.value)
    assert way_out in str(caught.value)


@pytest.mark.parametrize(
    ("url", "encrypted", "websocket"),
    [
        ("tcp://h", False, False),
        ("tls://h", True, False),
        ("ws://h", False, True),
        ("wss://h", True, True),
        ("unix:/s", False, False),
    ],
)
def test_what_a_scheme_means(url: str, encrypted: bool, websocket: bool) -> None:
    address = parse_address(url)
    assert (address.encrypted, address.websocket) == (encrypted, websocket)
