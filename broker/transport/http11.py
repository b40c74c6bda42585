"""HTTP/1.1 request heads and responses. No I/O [RFC 9110, RFC 9112]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from broker.errors import BrokerError

MAXIMUM_HEADERS = 100
MAXIMUM_LINE = 8192  # bytes

# Strict on purpose: what two programs can read in two ways is how requests are smuggled.
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_JUNK = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r[^\n]|(?<!\r)\n")
_ABSOLUTE = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_LINE_BREAK = re.compile(r"[\r\n\0]")


class HttpError(BrokerError):
    """A request that is answered with *status* and not served; the text goes to the peer."""

    def __init__(self, status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = tuple(headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request head. Header names are in lower case; *path* is as it came, not percent-decoded."""

    method: str
    target: str
    path: str
    query: str = ""
    version: tuple[int, int] = (1, 1)
    headers: Mapping[str, list[str]] = field(default_factory=dict)

    def tokens(self, name: str) -> list[str]:
        """The comma-separated values of all headers of this name, in order."""
        values = ",".join(self.headers.get(name, ())).split(",")
        return [value for value in map(str.strip, values) if value]

    def only(self, name: str) -> str | None:
        """The value of a header that may appear once; None without it. Raises HttpError 400."""
        values = self.headers.get(name, [])
        if len(values) > 1:
            raise HttpError(400, f"{name} appears twice")
        return values[0] if values else None


class HeadReader:
    """Chunks in, one Request out. Owns the bytes of the head; *rest* is what followed it."""

    def __init__(self, maximum_size: int, maximum_headers: int = MAXIMUM_HEADERS) -> None:
        """*maximum_size* is in bytes, over the whole head."""
        self.rest = b""
        self._buffer = bytearray()
        self._maximum_size = maximum_size
        self._maximum_headers = maximum_headers

    def feed(self, data: bytes) -> Request | None:
        """The Request once its head is whole. Raises HttpError, as early as the bytes allow."""
        buffer, seen = self._buffer, len(self._buffer)
        buffer += data
        end = buffer.find(b"\r\n\r\n", max(0, seen - 3))
        limit = len(buffer) if end < 0 else end
        unsure = 0 if end >= 0 else 3  # bytes, which may be of the CR LF CR LF that ends it
        if limit - unsure > self._maximum_size:
            raise HttpError(431, f"the request head is larger than {self._maximum_size} bytes")
        if _JUNK.search(buffer, max(0, seen - 1), limit):
            raise HttpError(400, "this port expects HTTP/1.1 with CR LF at the end of every line")
        if limit > MAXIMUM_LINE and buffer.find(b"\r", 0, MAXIMUM_LINE + 1) < 0:
            raise HttpError(414, "the request line is too long")
        if end < 0:
            return None
        self.rest = bytes(buffer[end + 4 :])
        return parse_head(bytes(buffer[:end]), self._maximum_headers)


def parse_head(head: bytes, maximum_headers: int = MAXIMUM_HEADERS) -> Request:
    """The Request in the lines of *head*, without its last line ends. Raises HttpError."""
    first, *lines = head.split(b"\r\n")
    if len(lines) > maximum_headers:
        raise HttpError(431, f"there are more than {maximum_headers} headers")
    if len(first) > MAXIMUM_LINE:
        raise HttpError(414, "the request line is too long")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise HttpError(400, "the request line is not METHOD, target and HTTP/1.1")
    method, target = match[1].decode("ascii"), match[2].decode("ascii")
    version = int(match[3]), int(match[4])
    if version[0] != 1:
        raise HttpError(505, "only HTTP/1.1 is spoken here")
    path, query = _split_target(target)
    request = Request(
        method=method, target=target, path=path, query=query, version=version, headers=_headers(lines)
    )
    _check_framing(request)
    return request


def _split_target(target: str) -> tuple[str, str]:
    """Path and query of an origin-form or absolute-form target; other forms have a path without `/`."""
    if "#" in target:
        raise HttpError(400, "the request target has a fragment")
    origin = _ABSOLUTE.match(target)
    if origin is not None:
        target = target[origin.end() :]
        target = target if target.startswith("/") else "/" + target
    path, _, query = target.partition("?")
    return path, query


def _headers(lines: list[bytes]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for line in lines:
        if len(line) > MAXIMUM_LINE:
            raise HttpError(431, f"a header line is longer than {MAXIMUM_LINE} bytes")
        match = _HEADER.fullmatch(line)
        if match is None:  # also a line that continues another one, and a blank before the colon
            raise HttpError(400, "a header line is not name: value")
        headers.setdefault(match[1].decode("ascii").lower(), []).append(match[2].decode("latin-1"))
    return headers


def _check_framing(request: Request) -> None:
    """Host [RFC 9112 3.2] and the two ways to say how long a body is [RFC 9112 6.3]."""
    host = request.only("host")
    if not host and request.version >= (1, 1):
        raise HttpError(400, "Host is missing")
    length = request.only("content-length")
    if length is not None and not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise HttpError(400, "Content-Length is not a number")
    if length is not None and "transfer-encoding" in request.headers:
        raise HttpError(400, "Content-Length and Transfer-Encoding exclude each other")


def response(
    status: int,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    head_only: bool = False,
) -> bytes:
    """A whole response. Content-Length is added but for 1xx and 204; *head_only* answers HEAD.

    Raises ValueError for a line break in a header.
    """
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if status >= 200 and status != 204:
        lines.append(f"Content-Length: {len(body)}")
    if any(_LINE_BREAK.search(line) for line in lines):
        raise ValueError("a header has a line break in it")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if head_only else head + body
