"""The checker can fail: for every rule there is a history that breaks it, and one beside it that keeps it."""

from __future__ import annotations

import pytest

from tests.faults.checker import RULES, check
from tests.faults.history import (
    Acknowledged,
    Arrived,
    Breach,
    Connected,
    Connecting,
    Drained,
    Event,
    Found,
    Freed,
    Gone,
    Killed,
    Leaving,
    Looking,
    Published,
    Started,
    Subscribed,
    Subscribing,
    Tag,
    Unsubscribed,
    Unsubscribing,
)

ONE, TWO, THREE = (Tag("pub", "t/a", number) for number in (1, 2, 3))
CLEAR = Tag("pub", "t/a", 2)
HOUR = 3600


def joined(
    client: str = "sub", present: bool = False, *, clean: bool = False, at: float = 0.0, expiry: float = HOUR
) -> list[Event]:
    return [Connecting(client, clean, expiry, at), Connected(client, present)]


def subscribed(client: str = "sub", topic_filter: str = "t/#") -> list[Event]:
    return [Subscribing(client, topic_filter), Subscribed(client, topic_filter)]


def sent(tag: Tag = ONE, qos: int = 1, **fields: bool) -> Published:
    return Published("pub", tag, qos, tag.number, **fields)


def acked(tag: Tag = ONE, kind: str = "PUBACK", code: int = 0) -> Acknowledged:
    return Acknowledged("pub", tag, kind, tag.number, code)


def completed(tag: Tag = ONE) -> list[Event]:
    return [acked(tag, "PUBREC"), acked(tag, "PUBCOMP")]


def came(tag: Tag = ONE, qos: int = 1, packet_id: int = 1, client: str = "sub", **fields: bool) -> Arrived:
    return Arrived(client, tag, qos, packet_id, **fields)


def gone(client: str = "sub", at: float = 0.0) -> Gone:
    return Gone(client, at)


def back(client: str = "sub", present: bool = True, at: float = 0.0) -> list[Event]:
    """The connection was lost, and is there again."""
    return [gone(client, at), *joined(client, present, at=at)]


def found(tag: Tag | None) -> Found:
    return Found("look", "t/a", tag)


LOOK = Looking("look", "t/a")
END = Drained("all")
CRASH = Killed("broker", 6.0)
START = [*joined("pub"), *joined(), *subscribed()]
UNSUBSCRIBED = [Unsubscribing("sub", "t/#"), Unsubscribed("sub", "t/#")]
SHARED = "$share/g/t/#"
GROUP = [*joined("pub"), *joined("a"), *joined("b"), *subscribed("a", SHARED), *subscribed("b", SHARED)]

# rule -> histories that break it and nothing else
BAD: dict[str, dict[str, list[Event]]] = {
    "nothing_acknowledged_is_lost": {
        "QoS 1": [*START, sent(), acked(), END],
        "QoS 2": [*START, sent(qos=2), *completed(), END],
        "one of two": [*START, sent(), sent(TWO), acked(), acked(TWO), came(), END],
        "after a crash": [*START, sent(), acked(), CRASH, *back("pub"), *back(), END],
        "to nobody of a group": [*GROUP, sent(), acked(), END],
    },
    "acknowledged_flows_end": {
        "no PUBACK": [*START, sent(), came(), END],
        "no PUBCOMP": [*START, sent(qos=2), acked(kind="PUBREC"), came(qos=2), END],
        "refused": [*START, sent(), acked(code=0x97), END],
    },
    "exactly_once": {
        "twice": [
            *START, sent(qos=2), came(qos=2), Freed("sub", 1), *completed(), came(qos=2, packet_id=2), END,
        ],
        "once for each member": [
            *GROUP, sent(qos=2), came(qos=2, client="a"), came(qos=2, client="b"), *completed(), END,
        ],
    },
    "nothing_is_invented": {
        "before it was published": [*START, came(), sent(), acked(), END],
        "QoS 2 of QoS 1": [*START, sent(), acked(), came(qos=2), END],
    },
    "order_is_kept": {
        "two before one": [
            *START, sent(), sent(TWO), acked(), acked(TWO), came(TWO), came(ONE, packet_id=2), END,
        ],
        "two before one, and not only because both were sent again": [
            *START, sent(THREE), came(THREE), CRASH, *back("pub"), *back(), sent(ONE, dup=True),
            sent(TWO, dup=True), came(TWO, packet_id=2), came(ONE, packet_id=3), acked(), acked(TWO), END,
        ],
        "one was sent again, to who had subscribed before its first sending": [
            *START, sent(), sent(TWO), came(TWO), CRASH, *back("pub"), *back(), sent(ONE, dup=True),
            sent(TWO, dup=True), came(ONE, packet_id=2), acked(), acked(TWO), END,
        ],
        "a gap that comes later": [
            *START, *(sent(tag) for tag in (ONE, TWO, THREE)), *(acked(tag) for tag in (ONE, TWO, THREE)),
            came(), came(THREE, packet_id=2), came(TWO, packet_id=3), END,
        ],
    },
    "repetitions_have_a_reason": {
        "twice on one connection": [*START, sent(), acked(), came(), came(packet_id=2), END],
        "without DUP": [*START, sent(), acked(), came(), *back(), came(), END],
        "another identifier": [*START, sent(), acked(), came(), *back(), came(packet_id=2, dup=True), END],
    },
    "dup_only_where_allowed": {
        "new session": [*START, sent(), acked(), came(dup=True), END],
        "published on this connection": [*START, *back(), sent(), acked(), came(dup=True), END],
        "QoS 0": [*START, sent(qos=0), *back(), came(qos=0, packet_id=0, dup=True), END],
    },
    "identifiers_stay": {
        "of another message": [
            *START, sent(qos=2), *completed(), sent(TWO, qos=2), *completed(TWO),
            came(qos=2), came(TWO, qos=2, again=True), came(TWO, qos=2, packet_id=2), END,
        ],
        "without DUP": [
            *START, sent(qos=2), *completed(), came(qos=2), *back(), came(qos=2, again=True), END,
        ],
    },
    "acknowledgements_fit": {
        "nothing waits": [*START, Acknowledged("pub", None, "PUBACK", 7), END],
        "a breach": [*START, Breach("sub", "PUBLISH with QoS 3"), END],
    },
    "what_is_unsubscribed_stays_away": {
        "after UNSUBACK": [
            *START, *UNSUBSCRIBED, sent(), acked(), came(), END,
        ],
        "after a crash": [
            *START, *UNSUBSCRIBED, CRASH, *back(),
            sent(), acked(), came(), END,
        ],
        "of a session that is over": [*START, gone(), *joined(clean=True), sent(), acked(), came(), END],
        "another filter": [
            *joined("pub"), *joined(), *subscribed("sub", "u/#"), sent(), acked(), came(), END,
        ],
    },
    "session_present_says_the_truth": {
        "lost": [*joined(), *back(present=False)],
        "lost in a crash": [*joined(), CRASH, *back(present=False)],
        "never was": [*joined(present=True)],
        "clean start": [*joined(), gone(), *joined(present=True, clean=True)],
        "outlived itself": [*joined(expiry=1.0), gone(at=5.0), *joined(present=True, at=9.0)],
        "outlived itself over a crash": [
            *joined(expiry=1.0), gone(at=5.0), CRASH, Started("broker", 7.0), *joined(present=True, at=10.5),
        ],
        "gone too early": [*joined(expiry=9.0), gone(at=5.0), *joined(present=False, at=9.0)],
        "ended with its connection": [*joined(expiry=0.0), *back(present=True)],
    },
    "retained_is_the_last_or_later": {
        "older": [sent(retain=True), acked(), sent(TWO, retain=True), acked(TWO), LOOK, found(ONE)],
        "nothing": [sent(retain=True), acked(), LOOK, found(None)],
        "deleted": [
            sent(retain=True), acked(), sent(CLEAR, retain=True, clears=True), acked(CLEAR),
            LOOK, found(ONE),
        ],
        "never sent": [sent(retain=True), acked(), LOOK, found(THREE)],
    },
}  # fmt: skip

GOOD: dict[str, list[Event]] = {
    "QoS 1": [*START, sent(), acked(), came(), END],
    "QoS 2": [*START, sent(qos=2), *completed(), came(qos=2), Freed("sub", 1), END],
    "not acknowledged and not sent again": [*START, sent(), gone("pub"), *joined("pub", clean=True), END],
    "sent again after a crash": [
        *START, sent(), came(), CRASH, *back("pub"), *back(), sent(dup=True), came(packet_id=2), acked(), END,
    ],
    "sent again, and one that had come meanwhile got a later one first": [
        *START, *UNSUBSCRIBED, sent(), *subscribed(), sent(TWO), came(TWO), CRASH, *back("pub"), *back(),
        sent(dup=True), sent(TWO, dup=True), came(packet_id=2), came(TWO, packet_id=3), acked(), acked(TWO),
        END,
    ],
    "an identifier of a session that a CONNECT without an answer has ended": [
        *START, sent(qos=2), *completed(), came(qos=2), gone(), Connecting("sub", True, HOUR, 0.0), gone(),
        *joined(present=True), *subscribed(), sent(TWO, qos=2), *completed(TWO), came(TWO, qos=2), END,
    ],
    "delivered again": [*START, sent(), acked(), came(), *back(), came(dup=True), END],
    "delivered again, the broker having forgotten the first time": [
        *START, sent(), acked(), came(), CRASH, *back(), came(packet_id=2), END,
    ],
    "QoS 2 delivered again": [
        *START, sent(qos=2), *completed(), came(qos=2), *back(), came(qos=2, dup=True, again=True), END,
    ],
    "queued while away": [*START, gone(), sent(), acked(), *joined(present=True), came(), END],
    "only what comes after SUBACK": [*joined("pub"), *joined(), sent(), acked(), *subscribed(), END],
    "unsubscribed before it came": [*START, sent(), acked(), *UNSUBSCRIBED, END],
    "came although unsubscribed since": [
        *START, sent(), *UNSUBSCRIBED, acked(), came(), END,
    ],
    "one member of a group": [*GROUP, sent(qos=2), *completed(), came(qos=2, client="b"), END],
    "a new session knows nothing": [*START, sent(), acked(), gone(), *joined(clean=True), END],
    "session that ended": [*joined(expiry=1.0), gone(at=5.0), *joined(present=False, at=9.0)],
    "to the broker it left when that started": [
        *joined(expiry=1.0), CRASH, gone(at=6.0), Started("broker", 8.0), *joined(present=True, at=9.5),
    ],
    "killed before that was stored": [
        *joined(expiry=1.0), CRASH, gone(at=6.0), Started("broker", 6.1), Killed("broker", 6.2),
        Started("broker", 9.0), *joined(present=True, at=10.5),
    ],
    "CONNECT without an answer": [Connecting("sub", False, HOUR, 0.0), gone(), *joined(present=True)],
    "DISCONNECT with expiry 0, lost in a crash": [*joined(), Leaving("sub", 0), *back(present=True)],
    "DISCONNECT with expiry 0": [*joined(), Leaving("sub", 0), *back(present=False)],
    "retained: a later one": [sent(retain=True), acked(), sent(TWO, retain=True), LOOK, found(TWO)],
    "retained: deleted later": [
        sent(retain=True), acked(), sent(CLEAR, retain=True, clears=True), LOOK, found(None),
    ],
    "retained: acknowledged after the look": [LOOK, sent(retain=True), acked(), found(None)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "history"),
    [
        pytest.param(name, history, id=f"{name}: {what}")
        for name, histories in BAD.items()
        for what, history in histories.items()
    ],
)
def test_a_breach_is_found(name: str, history: list[Event]) -> None:
    found = check(history)
    assert any(breach.startswith(f"{name}: ") for breach in found), found


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_what_is_right_is_left_alone(history: list[Event]) -> None:
    assert check(history) == []


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert set(BAD) == {rule.__name__ for rule in RULES}
