"""Reads of one packet, or of packets that are alike: the shortest way is the same way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import Broker
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Publish, Subscribe, SubscribeRequest
from tests.lane.test_lane import by_hand, joined, take
from tests.lane.twins import compare
from tests.peer import memory_broker, run_async
from tests.wire import turns

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5
TOPICS = ("a", "c", "é/ü")
REFUSED = ((), ("a",), ("é/ü", "c"), TOPICS)  # by a hook


@st.composite
def reads(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What arrives at once: some packets that are alike, and perhaps something else behind them."""
    events: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(2, 8))):
        alike = {
            "topic": draw(st.sampled_from(TOPICS)),
            "size": draw(st.sampled_from((0, 3, 126, 130))),
            "qos": draw(st.sampled_from((0, 1, 1))),
            "count": draw(st.sampled_from((1, 1, 2, 9, 30, 70))),
            "retain": False, "dup": False, "properties": {},
        }  # fmt: skip
        changes = {"size": 4, "topic": "d/e/f", "qos": 2, "retain": True, "properties": {"content_type": "x"}}
        tails = [alike | {"count": 1, name: changed} for name, changed in changes.items()]
        tail = draw(st.sampled_from((None, None, None, *tails)))
        cut = draw(st.sampled_from(((), (), (1,), (5,), (200,))))
        first = draw(st.sampled_from((1, 1, 65_500)))
        messages = [alike] if tail is None else [alike, tail]
        burst = {"do": "burst", "who": draw(st.integers(0, 1)), "messages": messages, "mixed": False}
        events += [burst | {"cuts": cut, "first": first}] * draw(st.integers(1, 3))
        if draw(st.booleans()):
            events.append({"do": "acknowledge", "who": 2, "count": 1000, "order": "same"})
        if draw(st.integers(0, 5)) == 0:
            events.append({"do": draw(st.sampled_from(("drop", "wait"))), "who": 2})
        if draw(st.integers(0, 3)) == 0:  # what the one publisher may is not what the other may, perhaps
            change = {"do": "change", "who": draw(st.integers(0, 1)), "all": draw(st.booleans())}
            again = burst | {"cuts": (), "first": first, "messages": [alike]}
            events += [change | {"refused": draw(st.sampled_from(REFUSED))}, again]
    return events


@settings(max_examples=200, deadline=None)
@given(
    reads(), st.lists(st.integers(0, 2), min_size=3, max_size=3), st.sampled_from((1, 5, 65535)),
    st.booleans(), st.booleans(), st.sampled_from((None, *REFUSED)),
)  # fmt: skip
@run_async
async def test_with_the_lane_and_without(
    events: list[dict[str, Any]],
    hear: list[int],
    window: int,
    clean: bool,
    five: bool,
    refused: tuple[str, ...] | None,
) -> None:
    """The third client, which hears all, has little room perhaps, and goes perhaps."""
    third = {"do": "connect", "who": 2, "version": V5 if five else V3, "clean": clean, "window": window}
    hears = {"do": "subscribe", "who": 2, "filter": "#", "qos": hear[2], "no_local": False, "identifier": 0}
    conversation = iter([third, hears, *events])
    await compare(lambda _: next(conversation, None), hear[:2], {}, "merge", {}, refused)


def packets(qos: int, count: int, version: Version, topic: str = "t") -> bytes:
    sent = (Publish(topic, b"x", qos, packet_id=qos * (number + 1)) for number in range(count))
    return b"".join(encode(packet, version) for packet in sent)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 10, 300])
@run_async
async def test_a_read_that_is_one_run_needs_nothing_else(
    qos: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t", qos=1)
        await joined(broker, "p")
        lane = broker._connections._terms.lane.__self__  # type: ignore[attr-defined]
        for _ in range(2):  # it is remembered from the second time on
            assert take(broker, "p", packets(qos, 1, V5)) == b""
        monkeypatch.setattr(type(lane), "_take", lambda *_: pytest.fail("the long way"))
        assert take(broker, "p", packets(qos, count, V5)) == b""
        assert broker.stats.publish_received == broker.stats.publish_sent == count + 2
        assert broker.stats.messages_received >= count + 2


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_what_is_out_of_date_is_looked_up_again(qos: int) -> None:
    async with memory_broker(by_hand()) as broker:
        one = await joined(broker, "one", "t", qos=1)
        await joined(broker, "p")
        assert take(broker, "p", packets(qos, 1, V5)) == b""
        other = await joined(broker, "other", "t", qos=1)
        assert take(broker, "p", packets(qos, 2, V5)) == b""
        assert broker.stats.publish_sent == 1 + 2 * 2
        assert not one.closed and not other.closed


@run_async
async def test_identifier_0_behind_others_is_left() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t", qos=1)
        await joined(broker, "p")
        assert take(broker, "p", packets(1, 1, V5)) == b""
        wrong = packets(1, 1, V5).replace(b"\0\1\0x", b"\0\0\0x")
        assert take(broker, "p", packets(1, 1, V5) + wrong) == wrong
        assert take(broker, "p", wrong) == wrong


# ---- what the shortest way must not do


async def known(broker: Broker, qos: int) -> None:
    """Somebody has subscribed, and the topic is known."""
    await joined(broker, "s", "t", qos=1)
    await joined(broker, "p")
    broker._core.tree.match("t")
    assert take(broker, "p", packets(qos, 1, V5)) == b""


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_one_more_subscription_of_somebody_who_is_there(qos: int) -> None:
    async with memory_broker(by_hand()) as broker:
        other = await joined(broker, "other")
        await known(broker, qos)
        other.incoming.put_nowait(encode(Subscribe(1, [SubscribeRequest("t", 1)]), V5))
        await turns(10)
        assert take(broker, "p", packets(qos, 2, V5)) == b""
        assert broker.stats.publish_sent == 1 + 2 * 2


@run_async
async def test_no_more_are_sent_than_there_is_room_for() -> None:
    async with memory_broker(by_hand(outbound_receive_maximum=5)) as broker:
        await known(broker, 1)
        nine = packets(1, 9, V5)
        assert take(broker, "p", nine) == nine[len(nine) // 9 * 4 :]


@run_async
async def test_properties_behind_packets_without_any_are_looked_at() -> None:
    """The same length and the same beginning, but it has expired."""
    async with memory_broker(by_hand()) as broker:
        for qos in (0, 1):
            await known(broker, qos)
            plain = Publish("t", b"\2\0\0\0\0x", qos, packet_id=qos)
            late = Publish("t", b"x", qos, packet_id=2 * qos, properties={"message_expiry_interval": 0})
            raw = encode(late, V5)
            assert len(raw) == len(encode(plain, V5))
            assert take(broker, "p", encode(plain, V5) * 2 + raw) == raw


@run_async
async def test_qos_0_waits_behind_what_is_queued() -> None:
    async with memory_broker(by_hand()) as broker:
        await known(broker, 0)
        broker.clients["s"].session.queued_qos_0 = 1  # type: ignore[union-attr]
        assert take(broker, "p", packets(0, 2, V5)) == packets(0, 2, V5)
        broker.clients["s"].session.queued_qos_0 = 0  # type: ignore[union-attr]


@run_async
async def test_qos_1_waits_while_qos_2_holds_identifiers() -> None:
    async with memory_broker(by_hand()) as broker:
        await known(broker, 1)
        assert take(broker, "p", encode(Publish("t", b"x", 2, packet_id=7), V5)) == b""
        assert take(broker, "p", packets(1, 1, V5)) == packets(1, 1, V5)
