"""Dedup: a message that a producer sends again is acknowledged and not routed again."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from broker import (
    AcknowledgeOnly,
    BadUserNameOrPassword,
    Capacity,
    ClientInfo,
    Config,
    Dedup,
    HookBase,
    Message,
    NotAuthorized,
    QuotaExceeded,
    ReasonCode,
)
from broker.config import Dedup as Settings
from broker.errors import ImplementationSpecificError
from broker.hook.dedup import claim_of, mark_of
from broker.packet.packets import Puback, Publish
from tests.durable import broken_disk, recovered
from tests.peer import Peer, memory_broker, run_async

REFUSED = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
ADA = ClientInfo("a", user_name="ada")


def message(claim: str, *more: tuple[str, str]) -> Message:
    return Message("t", b"", 1, properties={"user_property": [("producer", claim), *more]})


def claims(claim: str) -> dict[str, Any]:
    return {"properties": {"user_property": [("producer", claim)]}}


def answer(dedup: Dedup, claim: str, client: ClientInfo = ADA) -> str:
    try:
        dedup.on_accepted(client, message(claim))
    except AcknowledgeOnly:
        return "copy"
    except ImplementationSpecificError as refusal:
        return str(refusal)
    return "routed"


# ---- the rule


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        ("q/0:1:2", ("q/0", 1, 2)),
        ("a b/c/17:0:0", ("a b/c/17", 0, 0)),
        (f"{'x' * 256}/0:{'9' * 18}:1", (f"{'x' * 256}/0", 10**18 - 1, 1)),
        ("grüße\n/0:1:2", ("grüße\n/0", 1, 2)),
        *((text, None) for text in ("", "acme", "q/0", "q/0:1", "q:1:2", "q/x:1:2", "q/0:-1:2", "q/0:1:2:3")),
        *(
            (text, None)
            for text in ("/0:1:2", "q/0:1:٢", "q/0:1:2 ", f"{'x' * 257}/0:1:2", f"q/0:{10**18}:1")
        ),
    ],
)
def test_what_a_claim_looks_like(claim: str, found: Any) -> None:
    assert claim_of(message(claim)) == found


def test_two_claims_in_one_message_are_none() -> None:
    with pytest.raises(ImplementationSpecificError, match="2 user properties producer") as caught:
        Dedup().on_accepted(ADA, message("q/0:1:0", ("producer", "q/0:1:1")))
    assert caught.value.reason_string == "2 user properties producer"


def test_copies_news_and_gaps() -> None:
    dedup = Dedup()
    missing = "q/0:{} must come before {}; begin the batch again".format
    script = (
        ("q/0:5:1", missing("5:0", 1)),  # nobody knows q/0
        ("q/0:5:0", "routed"),
        ("q/0:5:1", "routed"),
        ("q/0:4:9", "copy"),
        ("q/0:5:3", missing("5:2", 3)),
        ("q/1:5:0", "routed"),  # another partition
        ("q/0:7:1", missing("7:0", 1)),
        ("q/0:7:0", "routed"),  # batch 6 had no rows
        ("q/0:5:2", "copy"),
    )
    for claim, said in script:
        assert answer(dedup, claim) == said, claim
    assert (dedup.routed, dedup.duplicates, dedup.gaps, len(dedup)) == (4, 2, 3, 2)


def test_whatever_is_refused_and_repeated_every_message_is_routed_once() -> None:
    """Messages are taken back at random while those behind them come; the producer begins its batch again."""
    for seed in range(30):
        rng = random.Random(seed)
        dedup = Dedup()
        routed: list[tuple[int, int]] = []
        for batch in range(3):
            size, tries = rng.randrange(1, 20), 0
            while True:
                tries += 1
                failed = False
                for n in range(size):
                    said = answer(dedup, f"q/0:{batch}:{n}")
                    if said == "routed" and rng.random() < 0.1 and tries < 20:
                        dedup.on_taken_back(ADA, message(f"q/0:{batch}:{n}"))
                        failed = True  # but the producer sends what it had begun to
                    elif said == "routed":
                        routed.append((batch, n))
                    else:
                        failed |= said != "copy"
                    if failed and rng.random() < 0.3:
                        break
                if not failed:
                    assert routed[-size:] == [(batch, n) for n in range(size)]
                    break
        assert len(routed) == len(set(routed)), seed


def test_a_producer_belongs_to_its_user() -> None:
    """Nobody makes another one's messages copies by running ahead."""
    dedup = Dedup()
    eve, nobody = ClientInfo("e", user_name="eve"), ClientInfo("n")
    assert answer(dedup, "q/0:999999:0", eve) == "routed"
    assert answer(dedup, "q/0:999999:0", nobody) == "routed"
    assert answer(dedup, "q/0:1:0") == "routed"
    assert answer(dedup, "q/0:1:0", ClientInfo("elsewhere", user_name="ada")) == "copy"


def test_what_is_of_another_shape_is_left_alone_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dedup = Dedup()
    for _ in range(2):
        assert answer(dedup, "acme") == "routed"
    dedup.on_accepted(ADA, Message("t", properties={"user_property": [("other", "q/0:1:2")]}))
    assert (dedup.ignored, dedup.routed, len(dedup)) == (2, 0, 0)
    assert caplog.text.count("'acme' of 'a' is no producer") == 1


def test_the_oldest_is_forgotten_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    dedup = Dedup(maximum_producers=3)
    for producer in "abc":
        assert answer(dedup, f"{producer}/0:1:0") == "routed"
    answer(dedup, "a/0:1:1")
    answer(dedup, "d/0:1:0")  # b is the oldest
    assert (dedup.forgotten, len(dedup)) == (1, 3)
    assert [answer(dedup, f"{producer}/0:1:0") for producer in "acd"] == ["copy"] * 3
    assert answer(dedup, "b/0:1:0") == "routed"
    assert "more than 3 producers" in caplog.text


def test_who_makes_many_producers_pays_for_it_alone() -> None:
    dedup = Dedup(maximum_producers=10)
    for number in range(3):
        answer(dedup, f"q/{number}:1:0")
    for number in range(100):
        answer(dedup, f"x/{number}:1:0", ClientInfo("e", user_name="eve"))
    assert [answer(dedup, f"q/{number}:1:0") for number in range(3)] == ["copy"] * 3
    for number in range(100):  # more users than there is room for
        answer(dedup, "x/0:1:0", ClientInfo("e", user_name=f"user-{number}"))
    assert len(dedup) == 10
    assert answer(dedup, "x/0:1:0", ClientInfo("e", user_name="user-99")) == "copy"


def send(dedup: Dedup, claim: str, payload: str, topic_name: str = "t") -> str:
    made = message(claim)
    made.payload, made.topic_name = payload.encode(), topic_name
    try:
        dedup.on_accepted(ADA, made)
    except AcknowledgeOnly:
        return "copy"
    except ImplementationSpecificError:
        return "refused"
    return "routed"


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("sent", [1, 2, 3, 50, 64, 99])
@pytest.mark.parametrize("first_other", [0, 1, 5, 40])
def test_a_batch_that_comes_again_must_be_the_same(sent: int, first_other: int, restart: bool) -> None:
    """Or the first message that is new is refused, at the latest: by then nothing is lost yet."""
    dedup = Dedup()
    for n in range(sent):
        assert send(dedup, f"q/0:1:{n}", f"row {n}") == "routed"
    if restart:
        dedup._users["ada"]["q/0"] = mark_of(dedup._users["ada"]["q/0"].note())
    rows = [f"row {n}" if n < first_other else f"row {n + 1}" for n in range(100)]
    said = [send(dedup, f"q/0:1:{n}", row) for n, row in enumerate(rows)]
    if first_other >= sent:
        assert said == ["copy"] * sent + ["routed"] * (100 - sent)
    else:
        assert "refused" in said[first_other:sent], "before anything new is routed"
        at = said.index("refused")
        assert set(said[at:]) == {"refused"}
        assert dedup.changed == 100 - at
    assert [send(dedup, f"q/0:1:{n}", f"row {n}") for n in range(sent)] == ["copy"] * sent


def test_another_topic_is_another_message() -> None:
    dedup = Dedup()
    assert send(dedup, "q/0:1:0", "x") == "routed"
    assert send(dedup, "q/0:1:0", "x", "other") == "refused"


def test_copies_from_the_middle_are_not_compared() -> None:
    """A client that repeats what was not acknowledged, and no batch."""
    dedup = Dedup()
    for n in range(4):
        send(dedup, f"q/0:1:{n}", str(n))
    assert [send(dedup, f"q/0:1:{n}", "other") for n in (1, 2, 3)] == ["copy"] * 3
    assert send(dedup, "q/0:0:0", "other") == "copy", "of an old batch nothing is known"
    assert [send(dedup, f"q/0:1:{n}", str(n)) for n in range(5)] == ["copy"] * 4 + ["routed"]


def test_two_tries_at_once_are_not_compared() -> None:
    dedup = Dedup()
    for n in (0, 1, 2, 3):
        send(dedup, f"q/0:1:{n}", str(n))
    said = [send(dedup, f"q/0:1:{n}", str(n)) for n in (0, 0, 1, 1, 2, 2, 3, 3, 4, 4)]
    assert said == ["copy"] * 8 + ["routed", "copy"]


def test_what_was_taken_back_is_not_compared_with() -> None:
    dedup = Dedup()
    for n in range(6):
        send(dedup, f"q/0:1:{n}", str(n))
    for n in range(2, 6):
        dedup.on_taken_back(ADA, message(f"q/0:1:{n}"))
    rows = ["0", "1", *"other rows"]
    assert [send(dedup, f"q/0:1:{n}", row) for n, row in enumerate(rows)] == ["copy"] * 2 + ["routed"] * 10
    assert [send(dedup, f"q/0:1:{n}", row) for n, row in enumerate(rows)] == ["copy"] * 12
    assert send(dedup, "q/0:1:0", "x") == "refused"


# ---- in a broker


class Gate(HookBase):
    """Users by their names; topics that begin with `no` are forbidden, those with `full` are full."""

    def on_connect(self, client: ClientInfo, packet: Any) -> None:  # type: ignore[override]
        if client.user_name is None:
            raise BadUserNameOrPassword

    def on_publish(self, client: ClientInfo, message: Message) -> None:  # type: ignore[override]
        if message.topic_name.startswith("no"):
            raise NotAuthorized


async def pair(broker: Any) -> tuple[Peer, Peer]:
    """A producer, and somebody who reads everything and is remembered."""
    producer, reader = Peer(broker), Peer(broker)
    await producer.connect("p", user_name="ada")
    await reader.connect("r", user_name="ada", properties={"session_expiry_interval": 60})
    await reader.subscribe("#", qos=1)
    return producer, reader


@pytest.mark.parametrize("qos", [1, 2])
@run_async
async def test_a_copy_is_acknowledged_and_goes_nowhere(qos: int) -> None:
    dedup = Dedup()
    async with memory_broker(hooks=[Gate(), dedup]) as broker:
        producer, reader = await pair(broker)
        for n in (0, 1, 0, 1):
            payload = str(n).encode()
            code = await producer.publish(
                "t", payload, qos, packet_id=n + 1, retain=True, **claims(f"q/0:1:{n}")
            )
            assert code == 0
        found = [await reader.expect(Publish) for _ in range(2)]
        assert [each.payload for each in found] == [b"0", b"1"]
        await reader.expect_nothing()
        assert broker.stats.dropped == {"not_routed": 2}
        late = Peer(broker)
        await late.connect("late", user_name="ada")
        await late.subscribe("t")
        assert (await late.expect(Publish)).payload == b"1", "an old copy does not replace what is retained"
    assert (dedup.routed, dedup.duplicates) == (2, 2)


@run_async
async def test_only_what_is_allowed_counts() -> None:
    """A message that may not be published leaves no mark; repeated where it may, it is routed."""
    async with memory_broker(hooks=[Gate(), Dedup()]) as broker:
        producer, reader = await pair(broker)
        assert await producer.publish("no/t", b"", 1, **claims("q/0:1:0")) == ReasonCode.NOT_AUTHORIZED
        assert await producer.publish("t", b"", 1, **claims("q/0:1:1")) == REFUSED
        assert await producer.publish("t", b"", 1, **claims("q/0:1:0")) == 0
        await reader.expect(Publish)


@run_async
async def test_what_a_limit_refuses_is_not_lost_behind_the_mark() -> None:
    config = Config(capacity=Capacity(maximum_retained_bytes=60))
    async with memory_broker(config, hooks=[Dedup()]) as broker:
        producer, reader = await pair(broker)
        many = b"x" * 100
        sent = [Publish("t", many, 1, True, packet_id=1, **claims("q/0:1:0"))]
        sent += [Publish("t", b"%d" % n, 1, packet_id=n + 1, **claims(f"q/0:1:{n}")) for n in (1, 2)]
        producer.send(*sent)
        codes = [(await producer.expect(Puback)).reason_code for _ in sent]
        assert codes == [ReasonCode.QUOTA_EXCEEDED, REFUSED, REFUSED]
        await reader.expect_nothing()
        assert await producer.publish("t", many, 1, **claims("q/0:1:0")) == 0
        assert (await reader.expect(Publish)).payload == many


@run_async
async def test_a_refusal_says_what_is_missing() -> None:
    async with memory_broker(hooks=[Dedup()]) as broker:
        producer, _ = await pair(broker)
        producer.send(Publish("t", b"", 1, packet_id=1, **claims("q/0:1:4")))
        puback = await producer.expect(Puback)
        assert puback.reason_code == REFUSED
        assert puback.properties["reason_string"] == "q/0:1:0 must come before 4; begin the batch again"


@run_async
async def test_marks_outlive_the_broker(tmp_path: Path) -> None:
    config = Config(dedup=Settings(enabled=True, maximum_producers=3))
    path = tmp_path / "broker.db"
    async with memory_broker(config, store=path) as broker:
        producer, _ = await pair(broker)
        for claim in ("a/0:1:0", "b/0:1:0", "c/0:1:0", "a/0:2:0", "a/0:2:1"):
            assert await producer.publish("t", b"", 1, **claims(claim)) == 0
        broker.notes("dedup").put("rubbish", b"1 2 3")
        broker.notes("dedup").put('["ada", "x/0"]', b"1 2")
    dedup = Dedup(3)
    async with memory_broker(hooks=[dedup], store=path) as broker:
        producer, _ = await pair(broker)
        assert len(dedup) == len(broker.notes("dedup").items()) == 3
        for claim in ("a/0:2:1", "c/0:1:0"):
            assert await producer.publish("t", b"", 1, **claims(claim)) == 0
        assert dedup.duplicates == 2
        await producer.publish("t", b"", 1, **claims("d/0:0:0"))  # b is the oldest still
        keys = [key for key, _ in broker.notes("dedup").items()]
        assert keys == ['["ada", "a/0"]', '["ada", "c/0"]', '["ada", "d/0"]']


@run_async
async def test_a_store_that_fails_takes_the_mark_back(tmp_path: Path) -> None:
    """What was refused is repeated and routed, whatever was on its way behind it."""
    async with memory_broker(hooks=[Dedup()], store=tmp_path / "broker.db") as broker:
        producer, reader = await pair(broker)
        assert await producer.publish("t", b"0", 1, **claims("q/0:1:0")) == 0
        assert (await reader.expect(Publish)).payload == b"0"
        reader.drop()
        with broken_disk(broker):
            for n in range(1, 6):
                producer.send(Publish("t", b"%d" % n, 1, packet_id=n, **claims(f"q/0:1:{n}")))
            refused = [(await producer.expect(Puback)).reason_code for n in range(1, 6)]
            assert set(refused) <= {REFUSED, ReasonCode.QUOTA_EXCEEDED}
        await recovered(broker)
        codes = [await producer.publish("t", b"%d" % n, 1, **claims(f"q/0:1:{n}")) for n in range(6)]
        assert codes == [0] * 6
        again = Peer(broker)
        await again.connect(
            "r", user_name="ada", clean_start=False, properties={"session_expiry_interval": 60}
        )
        again.send(Puback(1))  # of the first one
        payloads: list[bytes] = []
        while len(payloads) < 5:
            packet = await again.expect(Publish)
            again.send(Puback(packet.packet_id))
            payloads += [] if packet.payload == b"0" else [packet.payload]
        assert payloads == [b"1", b"2", b"3", b"4", b"5"]
        await again.expect_nothing()


@run_async
async def test_retained_by_a_hook_that_refuses() -> None:
    class Full(HookBase):
        async def store_retained(self, message: Message) -> None:
            if message.payload == b"full":
                raise QuotaExceeded

    async with memory_broker(hooks=[Full(), Dedup()]) as broker:
        producer, _ = await pair(broker)
        assert await producer.publish("t", b"full", 1, retain=True, **claims("q/0:1:0")) == 0x97
        assert await producer.publish("t", b"", 1, retain=True, **claims("q/0:1:1")) == REFUSED
        assert await producer.publish("t", b"", 1, retain=True, **claims("q/0:1:0")) == 0


def test_the_setting_makes_the_hook(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    assert memory_broker()._core.hooks.accepts is False
    broker = memory_broker(Config(dedup=Settings(enabled=True, maximum_producers=7)))
    (hook,) = broker._core.hooks._hooks
    assert isinstance(hook, Dedup)
    assert hook.maximum_producers == 7
