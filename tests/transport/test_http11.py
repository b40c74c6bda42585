"""HTTP/1.1 heads: what is read, what is refused and with which status."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transport.http11 import HeadReader, HttpError, Request, response

HEAD = b"GET /mqtt?a=b HTTP/1.1\r\nHost: x\r\nA: 1\r\na:\t2 \r\nEmpty:\r\n\r\n"


def read(raw: bytes, maximum: int = 16384, headers: int = 100) -> Request | None:
    return HeadReader(maximum, headers).feed(raw)


def test_a_request() -> None:
    reader = HeadReader(16384)
    assert reader.feed(HEAD + b"\x82\x00rest") == Request(
        method="GET",
        target="/mqtt?a=b",
        path="/mqtt",
        query="a=b",
        version=(1, 1),
        headers={"host": ["x"], "a": ["1", "2"], "empty": [""]},
    )
    assert reader.rest == b"\x82\x00rest"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/a%20b", "/a%20b", ""),
        ("/a?b?c", "/a", "b?c"),
        ("//double", "//double", ""),
        ("http://host/path?q", "/path", "q"),
        ("HTTP://host:80", "/", ""),
        ("https://host?q", "/", "q"),
        ("*", "*", ""),
        ("host:443", "host:443", ""),
    ],
)
def test_targets(target: str, path: str, query: str) -> None:
    request = read(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert request is not None
    assert (request.target, request.path, request.query) == (target, path, query)


def test_tokens_are_taken_from_all_headers_of_the_name() -> None:
    request = read(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: a, b\r\nUPGRADE: ,c,, \r\n\r\n")
    assert request is not None
    assert request.tokens("upgrade") == ["a", "b", "c"]
    assert request.tokens("missing") == []
    assert request.only("missing") is None
    with pytest.raises(HttpError) as caught:
        request.only("upgrade")
    assert caught.value.status == 400


def lines(*more: str, first: str = "GET / HTTP/1.1", host: str = "Host: x") -> bytes:
    return "\r\n".join(line for line in (first, host, *more, "", "") if line is not None).encode("latin-1")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(b"\x10\x0e\x00\x04MQTT", 400, id="an MQTT packet"),
        pytest.param(b"\x16\x03\x01", 400, id="a TLS hello"),
        pytest.param(b"GET / HTTP/1.1\n", 400, id="bare LF after the request line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\n\r\n", 400, id="bare LF after a header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\rY: z\r\n\r\n", 400, id="bare CR"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\r\n\r\n", 400, id="CR CR LF"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: \0x\r\n\r\n", 400, id="NUL"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: \x7fx\r\n\r\n", 400, id="DEL"),
        pytest.param(b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="empty line first"),
        pytest.param(b"\r\n\r\n", 400, id="nothing"),
        pytest.param(lines(first="GET /"), 400, id="HTTP/0.9"),
        pytest.param(lines(first="GET  / HTTP/1.1"), 400, id="two blanks"),
        pytest.param(lines(first="GET / HTTP/1.1 "), 400, id="blank at the end"),
        pytest.param(lines(first=" GET / HTTP/1.1"), 400, id="blank in front"),
        pytest.param(lines(first="GET\t/\tHTTP/1.1"), 400, id="tabs"),
        pytest.param(lines(first="G(T / HTTP/1.1"), 400, id="method is no token"),
        pytest.param(lines(first="GET /é HTTP/1.1"), 400, id="target is not ASCII"),
        pytest.param(lines(first="GET /#a HTTP/1.1"), 400, id="target with a fragment"),
        pytest.param(lines(first="GET / http/1.1"), 400, id="name in lower case"),
        pytest.param(lines(first="GET / HTTP/11"), 400, id="no minor version"),
        pytest.param(lines(first="GET / HTTP/2.0"), 505, id="HTTP/2"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2 preface"),
        pytest.param(lines(first="GET / HTTP/0.9"), 505, id="HTTP/0.9 with a number"),
        pytest.param(lines("A : b"), 400, id="blank before the colon"),
        pytest.param(lines("A: b", " c"), 400, id="a continued line"),
        pytest.param(lines("A: b", "\tc"), 400, id="a continued line, tab"),
        pytest.param(lines(": b"), 400, id="no name"),
        pytest.param(lines("A"), 400, id="no colon"),
        pytest.param(lines("Ä: b"), 400, id="name is not ASCII"),
        pytest.param(lines(host="A: b"), 400, id="no Host [RFC 9112 3.2]"),
        pytest.param(lines(host="Host:"), 400, id="empty Host"),
        pytest.param(lines("Host: x"), 400, id="two Hosts"),
        pytest.param(lines("Content-Length: 1", "Content-Length: 1"), 400, id="two lengths"),
        pytest.param(lines("Content-Length: 1, 1"), 400, id="a list of lengths"),
        pytest.param(lines("Content-Length: +1"), 400, id="length with a sign"),
        pytest.param(lines("Content-Length: ²"), 400, id="length with a superscript digit"),
        pytest.param(lines("Content-Length: 1_0"), 400, id="length with an underscore"),
        pytest.param(lines("Content-Length: " + "9" * 19), 400, id="length beyond all reason"),
        pytest.param(lines("Content-Length: 0", "Transfer-Encoding: chunked"), 400, id="both framings"),
        pytest.param(lines(first="GET /" + "a" * 9000 + " HTTP/1.1"), 414, id="long target"),
        pytest.param(b"GET /" + b"a" * 9000, 414, id="long target, not finished"),
        pytest.param(lines("A: " + "b" * 9000), 431, id="long header"),
        pytest.param(lines(*["A: b"] * 100), 431, id="101 headers"),
        pytest.param(lines(*["A: " + "b" * 8000] * 3), 431, id="large head"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000, 431, id="large head, not finished"),
    ],
)
def test_refusals(raw: bytes, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        read(raw)
    assert caught.value.status == status
    reader = HeadReader(16384)
    with pytest.raises(HttpError) as again:
        for index in range(len(raw)):
            reader.feed(raw[index : index + 1])
    assert again.value.status == status


@pytest.mark.parametrize("cut", range(61, 68))
def test_a_head_of_the_largest_size_passes_wherever_it_is_cut(cut: int) -> None:
    """Also within its last CR LF CR LF, which does not count."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\nA: ".ljust(64, b"x")
    reader = HeadReader(64)
    assert reader.feed((head + b"\r\n\r\nrest")[:cut]) is None
    assert reader.feed((head + b"\r\n\r\nrest")[cut:]) is not None
    assert reader.rest == b"rest"
    longer = HeadReader(63)
    with pytest.raises(HttpError) as caught:
        for piece in (head[:cut], head[cut:], b"\r\n\r\n"):
            longer.feed(piece)
    assert caught.value.status == 431


@pytest.mark.parametrize("first", ["GET / HTTP/1.1\r", "GET / HTTP/1.1\r\nA: b\r"])
def test_a_bare_cr_between_chunks_is_refused_at_once(first: str) -> None:
    reader = HeadReader(16384)
    assert reader.feed(first.encode()) is None
    with pytest.raises(HttpError):
        reader.feed(b"X")


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(lines(*["A: b"] * 99), id="100 headers"),
        pytest.param(lines(first="GET / HTTP/1.0", host="A: b"), id="HTTP/1.0 without Host"),
        pytest.param(lines("Content-Length: 0"), id="empty body"),
        pytest.param(lines("A: \xe9\xff"), id="Latin-1 value"),
        pytest.param(lines("A: b\tc  d"), id="blanks inside a value"),
        pytest.param(lines("A:" + " " * 8000 + "b"), id="many blanks"),
    ],
)
def test_accepted(raw: bytes) -> None:
    assert read(raw) is not None


@given(st.lists(st.integers(0, len(HEAD))))
def test_chunk_borders_do_not_matter(cuts: list[int]) -> None:
    borders = sorted({0, *cuts, len(HEAD)})
    reader = HeadReader(16384)
    found = [reader.feed(HEAD[a:b]) for a, b in pairwise(borders)]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == read(HEAD)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"GET / HTTP/1.1\r\n" + tail))
def test_any_bytes_give_a_request_nothing_or_a_status(raw: bytes) -> None:
    try:
        request = read(raw)
    except HttpError as error:
        assert error.status in (400, 414, 431, 505)
    else:
        assert (request is None) == (b"\r\n\r\n" not in raw)


@pytest.mark.parametrize(
    ("given_response", "raw"),
    [
        (response(101, [("A", "b")]), b"HTTP/1.1 101 Switching Protocols\r\nA: b\r\n\r\n"),
        (response(200, body=b"hi"), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
        (response(204), b"HTTP/1.1 204 No Content\r\n\r\n"),
        (response(404, body=b"x", head_only=True), b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\n"),
    ],
)
def test_responses(given_response: bytes, raw: bytes) -> None:
    assert given_response == raw


@pytest.mark.parametrize("value", ["a\r\nb", "a\n", "\0"])
def test_no_line_break_gets_into_a_response(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        response(200, [("A", value)])
