"""B21: strings, Topic Names and Topic Filters."""

from __future__ import annotations

import time

import pytest

from tests.conformance import wire
from tests.conformance.authentication import METHOD
from tests.conformance.codes import MALFORMED
from tests.conformance.conftest import Serve
from tests.conformance.hooks import EnhancedAuth, Password
from tests.conformance.server import Server
from tests.conformance.texts import expect_text_refused

BAD_SHARES = ["$share", "$share/", "$share/g", "$share/g/", "$share//t", "$share/g+/t", "$share/#/t"]

MALFORMED_TEXT = {
    "overlong": b"\xc0\x80",
    "overlong slash": b"\xe0\x80\xaf",
    "first surrogate": b"\xed\xa0\x80",
    "last surrogate": b"\xed\xbf\xbf",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "truncated": b"a\xe2\x82",
    "U+0000": b"a\x00",
}
CONTROLS = [*range(0x01, 0x20), *range(0x7F, 0xA0)]
NON_CHARACTERS = [*range(0xFDD0, 0xFDF0), *(n << 16 | low for n in range(17) for low in (0xFFFE, 0xFFFF))]
DISALLOWED = [*CONTROLS, *NON_CHARACTERS]
NEIGHBOURS = [0x20, 0x7E, 0xA0, 0xFDCF, 0xFDF0, 0xFFFD, 0x1FFFD, 0x10FFFD, 0xFEFF, 0xAD, 0xE000, 0x1F600]


def closes(server: Server, raw: bytes, code: int, version: int = 5) -> None:
    client = server.connect("c", version)
    client.send(raw)
    client.expect_close(code)
    client.close()


@pytest.mark.parametrize("policy", ["reject", "accept"])
@pytest.mark.parametrize("text", MALFORMED_TEXT.values(), ids=MALFORMED_TEXT.keys())
def test_b21__ill_formed_utf_8_is_malformed_whatever_the_setting(
    serve: Serve, text: bytes, policy: str
) -> None:
    server = serve(disallowed_code_points=policy)
    for version in (5, 4):
        expect_text_refused(server, text, version)


@pytest.mark.parametrize("text", ["\ufeff", "\ufefft", "t\ufeff", "a/\ufeff/b"])
def test_b21__u_feff_is_kept(server: Server, text: str) -> None:
    client = server.connect(text)
    client.subscribe(text, "t", text.replace("\ufeff", "") or "x")
    client.publish(text, b"x", user_property=[(text, text)], content_type=text, response_topic=text)
    client.expect(
        "PUBLISH", topic_name=text, user_property=[(text, text)], content_type=text, response_topic=text
    )
    client.expect_nothing()


@pytest.mark.parametrize("version", [5, 4])
def test_b21__every_disallowed_code_point_is_rejected(server: Server, version: int) -> None:
    assert len(set(NON_CHARACTERS)) == 66
    for point in DISALLOWED:
        closes(server, wire.publish(f"a{chr(point)}", b"x", version=version), MALFORMED, version)
    assert server.retained() == []


@pytest.mark.parametrize("point", [0x01, 0x1F, 0x7F, 0x9F, 0xFDD0, 0xFFFF, 0x10FFFF])
def test_b21__one_answer_for_all_strings(server: Server, point: int) -> None:
    text = f"a{chr(point)}b".encode()
    for version in (5, 4):
        expect_text_refused(server, text, version)


@pytest.mark.parametrize("version", [5, 4])
def test_b21__every_other_code_point_is_accepted(server: Server, version: int) -> None:
    expect_all(server, NEIGHBOURS, version)


@pytest.mark.parametrize("version", [5, 4])
def test_b21__all_are_accepted_by_setting(serve: Serve, version: int) -> None:
    expect_all(serve(disallowed_code_points="accept"), DISALLOWED, version)


def expect_all(server: Server, points: list[int], version: int) -> None:
    """Each of *points* passes, in a ClientID, a filter, a topic and (5.0) the other strings."""
    text = "".join(map(chr, points))
    client = server.connect(text, version)
    client.subscribe(f"{text}/#", "a/+")
    client.send(*(wire.publish(f"a/{chr(point)}", b"x", version=version) for point in points))
    client.expect_messages(*((f"a/{chr(point)}", b"x") for point in points))
    named = {"user_property": [(text, text)], "content_type": text, "response_topic": text}
    named = named if version == 5 else {}
    client.publish(f"{text}/t", b"x", **named)
    client.expect("PUBLISH", topic_name=f"{text}/t", **named)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\u00e9", "e\u0301"),
        ("\u212b", "\u00c5"),
        ("\u01c4", "\u01c6"),
        ("\u00df", "ss"),
        ("A", "a"),
        ("t", "t "),
        ("t", " t"),
    ],
)
def test_b21__no_normalization_and_no_case_folding(server: Server, one: str, other: str) -> None:
    client, twin = server.connect(one), server.connect(other)  # two ClientIDs: no takeover
    client.subscribe(one, subscription_identifier=1)
    client.unsubscribe(other, reasons=[0x11])
    twin.publish(one, b"one", retain=True)
    twin.publish(other, b"other", retain=True)
    client.expect("PUBLISH", topic_name=one, payload="one")
    client.expect_nothing()
    assert server.retained() == sorted([(one, b"one"), (other, b"other")])


BYTES = bytes(range(256)) + b"\xff\xfe\xc0\x80"


def test_b21__payload_and_correlation_data_are_bytes(server: Server) -> None:
    client = server.connect("c", will=wire.will("w", BYTES, correlation_data=BYTES))
    watcher = server.watch()
    client.publish("t", BYTES, correlation_data=BYTES)
    watcher.expect("PUBLISH", topic_name="t", payload=BYTES, correlation_data=BYTES)
    client.drop()
    watcher.expect("PUBLISH", topic_name="w", payload=BYTES, correlation_data=BYTES)


@pytest.mark.parametrize("version", [5, 4, 3])
def test_b21__password_is_bytes(serve: Serve, version: int) -> None:
    server = serve(hooks=[Password("u", BYTES)])
    server.connect("c", version, user_name="u", password=BYTES).expect_nothing()
    client = server.client(version)
    client.send(wire.connect("c", version=version, user_name="u", password=BYTES[:-1]))
    client.expect_close(0x86 if version == 5 else 4)


def test_b21__authentication_data_is_bytes(serve: Serve) -> None:
    method = EnhancedAuth(steps=2)
    client = serve(hooks=[method]).client()
    client.send(wire.connect("c", properties=METHOD | {"authentication_data": BYTES}))
    client.expect("AUTH", reason_code=0x18)
    assert method.steps_seen == [BYTES]


BAD_NAMES = ["#", "+", "a/#", "a/+/b", "a+", "#/a"]
BAD_FILTERS = ["", "a#", "a/#/b", "#/", "a+", "+a", "a/b+/c", "a/##", "++", *BAD_SHARES, "$share/g/a#"]


@pytest.mark.parametrize("version", [5, 4])
def test_b21__topic_name_that_breaks_the_grammar(server: Server, version: int) -> None:
    for topic_name in BAD_NAMES:
        for qos in range(3):
            raw = wire.publish(topic_name, b"x", qos=qos, retain=True, version=version)
            server.expect_breach(raw, codes=0x90, version=version)
    assert server.retained() == []


@pytest.mark.parametrize("version", [5, 4])
def test_b21__topic_filter_that_breaks_the_grammar(server: Server, version: int) -> None:
    for topic_filter in BAD_FILTERS:
        for raw in (
            wire.subscribe(1, "t", topic_filter, version=version),
            wire.unsubscribe(1, "t", topic_filter, version=version),
        ):
            server.expect_breach(raw, codes=0x8F, version=version)


def deep(levels: int, level: str = "a") -> str:
    return "/".join([level] * levels)


@pytest.mark.parametrize("most", [128, 3])
def test_b21__too_many_levels(serve: Serve, most: int) -> None:
    server = serve() if most == 128 else serve(maximum_topic_levels=most)
    client = server.connect("c")
    client.subscribe(deep(most), deep(most, "+"), deep(most - 1) + "/#", "$share/g/" + deep(most), qos=1)
    client.subscribe("t", deep(most + 1), deep(most) + "/#", "$share/g/" + deep(most + 1), qos=1,
                     granted=[1, 0x8F, 0x8F, 0x8F])  # fmt: skip
    for qos, code in ((1, 0x90), (2, 0x90)):
        client.publish(deep(most + 1), b"x", qos=qos, reason=code, retain=True)
    client.publish(deep(most + 1), b"x", qos=0, retain=True)
    client.expect_nothing()
    client.publish(deep(most), b"y", qos=1, reason=0x00)
    client.expect_messages(b"y", b"y")  # one for the three, one for the group
    assert server.retained() == []


def test_b21__too_many_levels_in_3_1_1(server: Server) -> None:
    watcher, client = server.watch(), server.connect("c", 4)
    for qos in range(3):
        client.publish(deep(129), b"x", qos=qos, retain=True)
    client.subscribe("t", deep(129), "$share/g/" + deep(129), qos=1, granted=[1, 0x80, 0x80])
    watcher.expect_nothing()
    client.publish(deep(128), b"y", qos=1)
    watcher.expect_messages(b"y")
    assert server.retained() == []


def test_b21__matching_time_does_not_explode(serve: Serve) -> None:
    """Of the processor, for the broker and its clients together: the machine may be busy."""
    server = serve(maximum_topic_levels=65535)
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe(deep(32768, "+"), subscription_identifier=1)
    client.subscribe(deep(30000, "+") + "/#", subscription_identifier=2)
    client.subscribe("/" * 65534 + "+", subscription_identifier=3)
    branches = ("/".join("+a"[n >> bit & 1] for bit in range(8)) for n in range(256))
    filters = [f"{branch}/{deep(50, '+')}/x" for branch in branches]
    client.subscribe(*filters)
    start = time.process_time()
    publisher.publish("/" * 65534)
    client.expect("PUBLISH", subscription_identifier=[2, 3])
    publisher.publish("/" * 32767)
    client.expect("PUBLISH", subscription_identifier=[1, 2])
    publisher.publish(deep(32768), b"", retain=True)
    client.expect("PUBLISH", subscription_identifier=[1, 2])
    publisher.publish(deep(58) + "/y", b"x", qos=1, reason=0x10)
    client.expect_nothing()
    assert time.process_time() - start < 1.5


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("a//b", ["a//b"], ["a/b", "a/x/b", "/a//b"]),
        ("/a", ["/a"], ["a", "a/", "//a"]),
        ("a/", ["a/"], ["a", "/a", "a//"]),
        ("/", ["/"], ["//", "a"]),
        ("a/+/b", ["a//b", "a/x/b"], ["a/b", "a///b"]),
        ("+", ["a", "x"], ["/", "/a", "a/"]),
        ("+/+", ["/", "/a", "a/", "a/b"], ["a", "//"]),
        ("a/+", ["a/", "a/b"], ["a", "a//"]),
        ("a/#", ["a", "a/", "a//", "a/b/c"], ["/a", "ab", "b"]),
        ("/#", ["/", "/a", "//"], ["a", "a/"]),
        ("+/#", ["a", "/", "a/b", "/a"], []),
    ],
)
def test_b21__empty_levels_are_levels(
    server: Server, topic_filter: str, matching: list[str], others: list[str]
) -> None:
    client, publisher = server.connect("c"), server.connect("p")
    client.subscribe(topic_filter)
    for topic_name in [*matching, *others]:
        publisher.publish(topic_name, topic_name.encode(), retain=True)
    client.expect_messages(*((one, one.encode()) for one in matching))
    again = server.connect("d")
    again.subscribe(topic_filter)
    assert sorted(packet.topic_name or "" for packet in again.drain()) == sorted(matching)
