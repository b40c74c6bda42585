"""Listen addresses: what `tcp://0.0.0.0:1883` and its like say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from broker.errors import ConfigError

# The registered ports of MQTT. None is registered for MQTT over WebSocket: these two are customary.
DEFAULT_PORTS = {"tcp": 1883, "tls": 8883, "ws": 8083, "wss": 8084}
UNIX_PATH_MAXIMUM = 107  # bytes, what fits into sockaddr_un


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A listen address taken apart. *host* is empty for all interfaces of both families."""

    scheme: str  # tcp, tls, ws, wss or unix
    host: str = ""
    port: int = 0
    path: str = ""  # of the socket file, or of the URL for WebSocket

    @property
    def encrypted(self) -> bool:
        return self.scheme in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        """The URL; `parse_address` reads it again."""
        if self.scheme == "unix":
            return f"unix:{self.path}"
        return f"{self.scheme}://{host_port(self.host or '*', self.port)}{self.path}"


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def parse_address(url: str) -> Address:
    """The Address in *url*: `tcp://`, `tls://`, `ws://`, `wss://` or `unix:/path`.

    A missing port is 1883, 8883, 8083 or 8084. Port 0 is any free one. A host that is missing or
    `*` is every interface, IPv4 and IPv6. Raises ConfigError.
    """
    if url.startswith("unix:"):
        return _parse_unix(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _bad(url, f"{error}; IPv6 goes into brackets, as in tcp://[::1]:1883") from None
    if parts.scheme not in DEFAULT_PORTS or "://" not in url:
        raise _bad(url, "it must begin with tcp://, tls://, ws://, wss:// or unix:")
    _check_parts(url, parts)
    host = parts.hostname or ""
    return Address(
        scheme=parts.scheme,
        host="" if host == "*" else host,
        port=DEFAULT_PORTS[parts.scheme] if port is None else port,
        path=parts.path,
    )


def _parse_unix(url: str) -> Address:
    path = url.removeprefix("unix:")
    if path.startswith("///"):
        path = path[2:]
    if not path or path.startswith("//") or path.endswith("/") or "\0" in path:
        raise _bad(url, "give the path of a socket file, as in unix:/run/pybroker.sock")
    if len(os.fsencode(path)) > UNIX_PATH_MAXIMUM:
        raise _bad(url, f"the path of a socket file has at most {UNIX_PATH_MAXIMUM} bytes")
    return Address(scheme="unix", path=path)


def _check_parts(url: str, parts: SplitResult) -> None:
    if parts.username is not None or parts.password is not None:
        raise _bad(url, "a listen address has no user name or password; leave out what is before @")
    if parts.query or parts.fragment:
        raise _bad(url, "a listen address has no ? and no #")
    if parts.path not in ("", "/") and parts.scheme in ("tcp", "tls"):
        raise _bad(url, "only ws:// and wss:// have a path; leave it out")
    if any(character.isspace() for character in url):
        raise _bad(url, "take out the white space")


def _bad(url: str, why: str) -> ConfigError:
    return ConfigError(f"listen address {url!r} cannot be used: {why}")
