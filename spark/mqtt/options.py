"""Where the broker is and how to get in: options by name, checked, with the secret kept out of sight."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SWITCH = {"true": True, "false": False}


@dataclass(frozen=True)
class Address:
    """One broker. Its `repr` says nothing that must not be known; it can be pickled."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: 1883, with TLS 8883
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None  # read where the connection is made; without its last newline
    tls: bool = False
    ca: str | None = None  # PEM of the authorities; None: those of the system
    cert: str | None = None  # PEM of the client's chain
    key: str | None = None  # PEM; None: in the cert file
    timeout: float = 30.0  # seconds for a connection, and for every answer

    def secret(self) -> bytes | None:
        """The password. Raises OSError for a file that cannot be read."""
        if self.password_file is not None:
            return Path(self.password_file).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
        return None if self.password is None else self.password.encode()

    def context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises OSError, which names the file, for one that cannot be used."""
        if not self.tls:
            return None
        for path in filter(None, (self.ca, self.cert, self.key)):
            Path(path).open("rb").close()  # the error of ssl has no name in it
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as error:
            raise OSError(f"{self.ca} is no PEM file of authorities: {error}") from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except ssl.SSLError as error:
                raise OSError(f"{self.cert} has no certificate and key that fit: {error}") from None
        return context

    @property
    def actual_port(self) -> int:
        return self.port or (8883 if self.tls else 1883)

    def __str__(self) -> str:
        return f"{self.host}:{self.actual_port}"


def switch(text: str) -> bool:
    return SWITCH[text.lower()]


def between(low: float, high: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(f"from {low} to {high}")
        return value

    return number


# Option -> (field of Address, how its text is read).
OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "host": ("host", str),
    "port": ("port", between(1, 65535)),
    "username": ("username", str),
    "password": ("password", str),
    "passwordFile": ("password_file", str),
    "tls": ("tls", switch),
    "ca": ("ca", str),
    "cert": ("cert", str),
    "key": ("key", str),
    "timeout": ("timeout", between(0.1, 3600, float)),
}


def read_options(
    options: Mapping[str, str],
    more: Mapping[str, tuple[str, Callable[[str], Any]]] | None = None,
    *,
    also: Collection[str] = (),
) -> tuple[Address, dict[str, Any]]:
    """The address in *options*, and by field the values of what *more* knows; *also* are left alone.

    Names are taken in any case, as Spark does. Raises ValueError, which names the option, never a password.
    """
    more = more or {}
    known = {name.lower(): name for name in (*OPTIONS, *more)}
    ignored = {name.lower() for name in also}
    found: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for given, text in options.items():
        if given.lower() in ignored:
            continue
        name = known.get(given.lower())
        if name is None:
            nearest = difflib.get_close_matches(given, known.values(), 1, cutoff=0.0)[0]
            raise ValueError(f"there is no option {given}; the nearest is {nearest}")
        place, read = OPTIONS.get(name) or more[name]
        try:
            (found if name in OPTIONS else others)[place] = read(text)
        except (ValueError, KeyError) as error:
            shown = "" if name == "password" else f" {text!r}"
            raise ValueError(f"option {name}{shown} cannot be used: {error}") from None
    address = Address(**found)
    if (address.ca or address.cert or address.key) and not address.tls:
        raise ValueError("ca, cert and key are for tls=true")
    if address.password is not None and address.password_file is not None:
        raise ValueError("password or passwordFile, not both")
    if address.username is None and (address.password or address.password_file):
        raise ValueError("a password needs a username")
    return address, others
