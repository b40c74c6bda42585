"""TLS: an SSLContext from files, and a Connection made of TLS records."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from broker.errors import ConfigError
from broker.transport.base import CHUNK, Octets, RawConnection, Reader

RECORD = 16 * 1024  # bytes, the most that one TLS record carries
OPENSSL = 20_000  # bytes that one connection takes there, about

_MINIMUM = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_CERTIFICATES = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(
    certfile: str | Path,
    keyfile: str | Path,
    *,
    password: str | None = None,
    client_ca: str | Path | None = None,
    client_certificates: Literal["none", "optional", "required"] = "none",
    minimum: Literal["1.2", "1.3"] = "1.2",
    ciphers: str | None = None,
    alpn: Sequence[str] = ("mqtt",),
) -> ssl.SSLContext:
    """A server's context from PEM files. *ciphers* is an OpenSSL list and does not touch TLS 1.3.

    A client that offers no protocol of *alpn* is served all the same. Raises ConfigError that
    names the file and what is wrong with it.
    """
    if minimum not in _MINIMUM:
        raise ConfigError(f"TLS: minimum {minimum!r} is unknown; choose 1.2 or 1.3")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _MINIMUM[minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if ciphers is not None:
        _set_ciphers(context, ciphers)
    _load_chain(context, Path(certfile), Path(keyfile), password)
    _ask_for_certificates(context, client_ca, client_certificates)
    return context


def _set_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise ConfigError(f"TLS: OpenSSL knows no cipher in {ciphers!r}; see `openssl ciphers`") from None


def _load_chain(context: ssl.SSLContext, certfile: Path, keyfile: Path, password: str | None) -> None:
    _check_pem(certfile, "certificate", b"CERTIFICATE-----")
    key = _check_pem(keyfile, "key", b"PRIVATE KEY-----")
    if password is None and b"ENCRYPTED" in key:
        raise ConfigError(f"TLS: key {keyfile} is encrypted; set its password")
    try:
        context.load_cert_chain(certfile, keyfile, lambda: password or "")
    except ssl.SSLError as error:
        raise ConfigError(_chain_problem(error, certfile, keyfile, password)) from error


def _chain_problem(error: ssl.SSLError, certfile: Path, keyfile: Path, password: str | None) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"TLS: key {keyfile} does not belong to certificate {certfile}"
    hint = "; is the password right?" if password is not None else ""
    return f"TLS: certificate {certfile} with key {keyfile} cannot be loaded: {error.reason or error}{hint}"


def _check_pem(path: Path, what: str, label: bytes) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS: {what} {path} cannot be read: {error.strerror}") from error
    if label not in content:
        raise ConfigError(f"TLS: {what} {path} is no PEM file with a {label.strip(b'-').decode()} in it")
    return content


def _ask_for_certificates(context: ssl.SSLContext, client_ca: str | Path | None, mode: str) -> None:
    if mode not in _CLIENT_CERTIFICATES:
        raise ConfigError(f"TLS: client_certificates {mode!r} is unknown; choose none, optional or required")
    if (client_ca is None) != (mode == "none"):
        raise ConfigError(
            f"TLS: client_certificates is {mode!r} and client_ca is {client_ca!r}; "
            "'optional' and 'required' need a client_ca, 'none' must not have one"
        )
    context.verify_mode = _CLIENT_CERTIFICATES[mode]
    if client_ca is None:
        return
    _check_pem(Path(client_ca), "client_ca", b"CERTIFICATE-----")
    try:
        context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        raise ConfigError(f"TLS: client_ca {client_ca} cannot be loaded: {error.reason or error}") from error


async def handshake(raw: RawConnection, context: ssl.SSLContext, seconds: float) -> TlsConnection:
    """TLS over *raw*, as its server. Raises ssl.SSLError, ConnectionError or TimeoutError."""
    connection = TlsConnection(raw, context)
    try:
        async with asyncio.timeout(seconds):
            await connection.handshake()
    except TimeoutError:
        raise TimeoutError(f"no TLS handshake within {seconds:g} s") from None
    return connection


class TlsConnection:
    """TLS records over a connection, which it owns. Closing sends close_notify, then ends TCP.

    Not asyncio's own TLS: that one ends a connection with unread input by a reset, which can
    destroy what was written last.
    """

    __slots__ = (
        "_closing", "_ended", "_failure", "_incoming", "_left", "_outgoing", "_raw", "_reader", "_tls",
        "peer",
    )  # fmt: skip

    serving = True  # as a Reader: what it was given may still be here

    def __init__(self, raw: RawConnection, context: ssl.SSLContext) -> None:
        self.peer = raw.peer
        self._raw = raw
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ended = False  # the peer sent close_notify
        self._closing = False
        self._reader: Reader | None = None
        self._left = b""  # what the Reader left of what was decrypted
        self._failure: ssl.SSLError | None = None  # what `read` has to tell

    @property
    def cost(self) -> int:
        """See Connection."""
        return self._raw.cost + OPENSSL

    async def handshake(self) -> None:
        """Raises ssl.SSLError (the alert has left) or ConnectionError."""
        while not self._try_handshake():
            data = await self._raw.read()
            if not data:
                raise ConnectionError("the peer left during the TLS handshake")
            self._incoming.write(data)
        self.peer = self._raw.peer._replace(certificate=self._tls.getpeercert() or None)

    def _try_handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._flush()
        return True

    async def read(self) -> bytes:
        while not self._closing:
            data, self._left = self._left or self._decrypt(), b""
            if data or self._ended:
                return data
            if self._closing:
                break
            chunk = await self._raw.read()
            if not chunk and not self._left:
                break
            self._incoming.write(chunk)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise ConnectionError(f"TLS failed: {failure.reason or failure}") from failure
        return b""

    def attach(self, reader: Reader | None) -> None:
        self._reader = reader
        self._raw.attach(None if reader is None else self)

    def has_unread(self) -> bool:
        inside = self._incoming.pending or self._tls.pending()  # perhaps not yet a whole record
        return bool(self._left or inside) or self._ended or self._closing or self._raw.has_unread()

    def left(self) -> None:
        if self._reader is not None:
            self._reader.left()

    def take(self, chunk: bytes) -> bytes:
        """What the raw connection has: decrypt it here, and wake `read` only if something is left for it."""
        if self._left:
            return chunk
        self._incoming.write(chunk)
        while not self._closing and (plain := self._decrypt()):
            self._left = plain if self._reader is None else self._reader.take(plain)
            if self._left:
                break
        if self._left or self._ended:
            self._raw.wake()
        return b""

    def wake(self) -> None:
        self._raw.wake()

    def write(self, data: Octets) -> None:
        if self._closing:
            return
        try:
            for at in range(0, len(data), CHUNK):
                self._tls.write(data[at : at + CHUNK])
                self._flush()
        except ssl.SSLError:  # only after an earlier failure, which read() tells
            self.abort()

    def pending(self) -> int:
        """Bytes with TLS around them."""
        return self._raw.pending()

    async def drain(self) -> None:
        await self._raw.drain()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):  # it wants the peer's close_notify; ours is ready to leave
            pass
        self._flush()
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        self._raw.abort()

    async def wait_closed(self) -> None:
        await self._raw.wait_closed()

    def divert(self, sink: Callable[[bytes], None]) -> None:
        def receive(data: bytes) -> None:
            self._incoming.write(data)
            while not self._closing and (plain := self._decrypt()):
                sink(plain)
            if self._ended:
                self.close()

        self._raw.divert(receive)
        receive(b"")  # what came earlier in one chunk with what was read

    def _decrypt(self) -> bytes:
        """What can be decrypted now, at most CHUNK bytes. Closes at a failure, after what was before it."""
        parts: list[bytes] = []
        room, incoming, tls = CHUNK, self._incoming, self._tls
        try:
            while room >= RECORD and self._failure is None:
                if not incoming.pending and not tls.pending():
                    break  # the exception that would tell costs more than a record
                part = tls.read(RECORD)
                if not part:
                    self._ended = True
                    break
                parts.append(part)
                room -= len(part)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        except ssl.SSLError as error:
            self._failure = error
        if self._failure is not None and not parts:
            self.close()  # the alert is in the outgoing bytes
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())
