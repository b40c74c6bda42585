"""The fast lane where hooks say who may publish where: what it takes, and what they may do when it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker import ClientInfo, HookBase, MqttError, Version
from broker.gateway.local import LocalSubscription
from broker.hook.sound import LONGEST, MOST
from broker.lane.lane import ASKED
from broker.lane.lane import MOST as WORK
from broker.packet.codec import encode
from broker.packet.packets import Publish
from broker.packet.reader import PacketReader
from broker.session.alias import InboundAliases
from tests.hook.made import boom, hook
from tests.lane.by_hand import V5, by_hand, joined, publishes, take, topics
from tests.peer import Peer, memory_broker, run_async
from tests.wire import turns

RETAINED_T, RETAINED_U = b"\x31\x05\0\1t\0r", b"\x31\x05\0\1u\0r"


class Rules(HookBase):
    """Writes down what it is asked; *then* it does something, by topic."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.asked: list[str] = []
        self.then: dict[str, Callable[[], Any]] = {}

    def may_publish(self, client: ClientInfo, topic_name: str) -> bool:
        self.asked.append(topic_name)
        if topic_name in self.then:
            self.then[topic_name]()
        return topic_name not in self.refused


def kinds(*names: str) -> list[bytes]:
    """PUBLISH packets to *names*, by QoS 0, 1, 2 and with RETAIN."""
    retained = b"".join(encode(Publish(name, b"r", retain=True), V5) for name in names)
    return [publishes(*names), publishes(*names, qos=1), publishes(*names, qos=2), retained]


def test_nobody_asks_where_no_hook_is() -> None:
    broker = memory_broker(by_hand(), hooks=[HookBase()])
    hooks = broker._core.hooks
    assert hooks.verdicts is None and not hooks.judges_publish
    broker = memory_broker(by_hand(), hooks=[Rules()])
    hooks = broker._core.hooks
    assert hooks.verdicts is not None and hooks.judges_publish and not hooks.inspects_publish


@pytest.mark.parametrize("kind", range(4))
@run_async
async def test_what_is_allowed_is_taken_and_asked_about_once(kind: int) -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        wire = await joined(broker, "s", "t", "u", qos=1)
        await joined(broker, "p")
        for name in "tutu":
            broker._core.tree.match(name)
        first, others = kinds("t", "u", "u", "t")[kind], kinds("u", "t")[kind]
        assert take(broker, "p", first) == b"" and rules.asked == ["t", "u"]
        if kind != 2:
            assert take(broker, "p", others) == b""
            await turns()
            assert topics(wire) == ["t", "u", "u", "t", "u", "t"]
        assert take(broker, "p", publishes("t")) == b"" and rules.asked == ["t", "u"]


@pytest.mark.parametrize("kind", range(4))
@run_async
async def test_what_is_refused_is_left_from_there_on(kind: int) -> None:
    rules = Rules("u")
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        wire = await joined(broker, "s", "t", "u", qos=1)
        await joined(broker, "p")
        for name in "tutu":
            broker._core.tree.match(name)
        one, both = kinds("t")[kind], kinds("t", "u", "t")[kind]
        for _ in range(2):
            assert take(broker, "p", both) == both[len(one) :]
            if kind == 2:
                break
            await turns()
            assert topics(wire) == ["t"]
        assert take(broker, "p", kinds("u")[kind]) == kinds("u")[kind], "alone, too"
        assert set(rules.asked[1:]) == {"u"}


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("what", [boom, lambda *args: None, lambda *args: 1, "late"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
@run_async
async def test_a_hook_that_fails_is_a_refusal(kind: int, what: Any) -> None:
    async def late(*args: Any) -> bool:
        return True

    made = hook(may_publish=late if what == "late" else what)
    async with memory_broker(by_hand(), hooks=[made]) as broker:
        await joined(broker, "s", "t", qos=1)
        await joined(broker, "p")
        for _ in range(2):
            broker._core.tree.match("t")
        for _ in range(3):
            assert take(broker, "p", kinds("t")[kind]) == kinds("t")[kind]
        assert "p" in broker.clients


@run_async
async def test_each_connection_is_asked_about() -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        await joined(broker, "s", "t", qos=1)
        for number, name in enumerate("pqr"):
            await joined(broker, name)
            rules.refused = ("t",) if name == "r" else ()
            for _ in range(2):
                for data in (publishes("t"), publishes("t", qos=1), RETAINED_T):
                    assert take(broker, name, data) == (data if name == "r" else b"")
            assert rules.asked[:2] == ["t", "t"][: number + 1]


@pytest.mark.parametrize("kind", range(4))
@run_async
async def test_what_one_may_is_not_what_another_may(kind: int) -> None:
    """The topic is known, and who hears it: that says nothing of who may publish there."""
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        await joined(broker, "s", "t", qos=1)
        await joined(broker, "p")
        await joined(broker, "q")
        for _ in range(2):
            broker._core.tree.match("t")
        for _ in range(2 - kind // 2):
            assert take(broker, "p", kinds("t")[kind]) == b""
        rules.refused = ("t",)
        for data in (kinds("t")[kind], kinds("t", "t", "t")[kind]):
            assert take(broker, "q", data) == data


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_nobody_is_asked_twice_for_a_thousand_messages(qos: int) -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        await joined(broker, "s", "t", "u")
        await joined(broker, "p")
        for number in range(1000):
            data = publishes("t", "u", "u") if number % 2 else publishes("t", qos=qos)
            assert take(broker, "p", data) == b""
        assert rules.asked == ["t", "u"]


@run_async
async def test_a_topic_that_nobody_accepts_is_not_asked_about() -> None:
    rules = Rules()
    async with memory_broker(by_hand(maximum_topic_levels=2), hooks=[rules]) as broker:
        await joined(broker, "s", "#")
        await joined(broker, "p")
        for raw in (b"$t", b"+", b"a/b/c", b"", b"\xff", b"t\0"):
            data = b"\x30" + bytes((len(raw) + 4,)) + b"\0" + bytes((len(raw),)) + raw + b"\0x"
            assert take(broker, "p", data) == data
        assert take(broker, "p", b"\x30\x02\0\5hello") == b"\x30\x02\0\5hello"
        assert rules.asked == []


@run_async
async def test_a_repeated_publish_is_not_asked_about() -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        for _ in range(2):
            broker._core.tree.match("t")
        assert take(broker, "p", publishes("t", qos=2)) == b"" and rules.asked == ["t"]
        broker.ask_again("p")
        assert take(broker, "p", publishes("t", qos=2)) == publishes("t", qos=2) and rules.asked == ["t"]


@run_async
async def test_a_long_name_is_the_readable_lane_s() -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        await joined(broker, "s", "#")
        await joined(broker, "p")
        long = publishes("l" * (LONGEST + 1))
        assert take(broker, "p", long + publishes("t")) == long + publishes("t")
        assert take(broker, "p", publishes("l" * LONGEST)) == b""


@run_async
async def test_when_too_much_is_remembered_all_are_asked_about_anew() -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        await joined(broker, "s", "#")
        await joined(broker, "p")
        await joined(broker, "q")
        assert take(broker, "q", publishes("t")) == b""
        data, verdicts = [publishes(f"t/{number}") for number in range(MOST)], broker._core.hooks.verdicts
        assert verdicts is not None
        for number, packet in enumerate(data):
            assert take(broker, "p", packet) == b"", number
        assert len(verdicts) == 1 and len(rules.asked) == MOST + 1
        assert take(broker, "q", publishes("t")) == b"" and len(rules.asked) == MOST + 2
        assert take(broker, "p", data[-1]) == b"" and len(rules.asked) == MOST + 2


@run_async
async def test_a_read_of_new_topics_has_its_time() -> None:
    """Hooks are asked a bounded number of times for one read; then others have a turn."""
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        await joined(broker, "p")
        names = [f"t/{number}" for number in range(2 * WORK // ASKED)]
        left = take(broker, "p", publishes(*names))
        assert 0 < len(left) < len(publishes(*names))
        assert WORK // ASKED // 2 < len(rules.asked) <= WORK // ASKED + 1
        assert len(rules.asked) == len(set(rules.asked))


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_an_alias_is_its_name(qos: int) -> None:
    rules = Rules("no")
    async with memory_broker(by_hand(topic_alias_maximum=5), hooks=[rules]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        client = broker.clients["p"]
        client.own().aliases = InboundAliases(10, broker._core.budget)
        client.extra.aliases.names[1], client.extra.aliases.names[2] = "yes", "no"

        def packet(alias: int) -> bytes:
            made = Publish("", b"x", qos, packet_id=7 * qos, properties={"topic_alias": alias})
            return encode(made, V5)

        named = publishes("no", qos=qos).replace(b"\0\1\0x", b"\0\7\0x")
        assert take(broker, "p", packet(1) + packet(1) + packet(2)) == named
        await turns()
        assert topics(wire) == ["yes", "yes"] and set(rules.asked) == {"yes", "no"}


# ---- what hooks may do while they are asked


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_a_hook_that_ends_the_publisher(qos: int) -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        client, used = broker.clients["p"], broker._core.budget.used
        rules.then["u"] = lambda: client.end(MqttError("enough"))
        data = publishes("t", "u", "t", qos=qos)
        left = take(broker, "p", data + publishes("t")[:3])
        assert left == data[len(publishes("t", qos=qos)) :] + publishes("t")[:3]
        assert client.partial == 0 and not client.extra.partial_counted and rules.asked == ["t", "u"]
        await turns()
        assert topics(wire) == ["t"] and "p" not in broker.clients
        assert broker._core.budget.used < used


@pytest.mark.parametrize("kind", [0, 1, 3])
@run_async
async def test_a_hook_that_ends_a_subscriber(kind: int) -> None:
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        gone, stays = await joined(broker, "g", "#", qos=1), await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        rules.then["u"] = lambda: broker.clients["g"].end(MqttError("enough"))
        assert take(broker, "p", kinds("t", "t", "u", "t")[kind]) == b""
        await turns()
        assert topics(stays) == ["t", "t", "u", "t"] and topics(gone) == ["t", "t"]
        assert take(broker, "p", kinds("u")[kind]) == b""
        await turns()
        assert topics(stays) == ["u"]


@pytest.mark.parametrize("kind", [0, 1, 3])
@run_async
async def test_a_hook_that_subscribes_hears_what_it_was_asked_about(kind: int) -> None:
    """What was handed over before is not for it; what comes behind is, from that packet on."""
    rules, made = Rules(), []
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        peer = Peer(broker)
        await peer.connect("p")
        rules.then["u"] = lambda: made.append(broker.subscribe("#", retained=False))
        peer.send_raw(kinds("t", "u", "t")[kind])
        await turns(20)
        assert topics(wire) == ["t", "u", "t"] and rules.asked == ["t", "u"]
        local: LocalSubscription = made[0]
        messages = aiter(local)
        assert [(await anext(messages)).topic_name for _ in range(2)] == ["u", "t"]
        rules.then = {"v": local.close}
        peer.send_raw(kinds("t", "v", "t")[kind])
        await turns(20)
        assert topics(wire) == ["t", "v", "t"]


@pytest.mark.parametrize("kind", [0, 1, 3])
@run_async
async def test_who_hears_a_topic_is_found_anew_after_a_hook_was_asked(kind: int) -> None:
    rules, made = Rules(), []
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        rules.then["u"] = lambda: made.append(broker.subscribe("t", retained=False))
        assert take(broker, "p", kinds("t", "t")[kind]) == b"", "who hears t is known"
        data = kinds("t", "u", "t")[kind]
        assert take(broker, "p", data) == data[-len(kinds("t")[kind]) :], "of whom it is too much to ask"
        await turns()
        assert topics(wire) == ["t", "t", "t", "u"]


@pytest.mark.parametrize("whom", [None, "p", "q"])
@pytest.mark.parametrize("kind", [0, 1, 3])
@run_async
async def test_a_hook_that_has_all_asked_again(kind: int, whom: str | None) -> None:
    """Each message is served once, in order, whoever serves it."""
    rules = Rules()
    async with memory_broker(by_hand(), hooks=[rules]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("p")
        await other.connect("q")
        rules.then["u"] = lambda: broker.ask_again(whom)
        for _ in range(3):
            peer.send_raw(kinds("t", "u", "t", "v", "u")[kind])
            await turns(20)
            assert topics(wire) == ["t", "u", "t", "v", "u"]
        rules.refused = ("t",)
        broker.ask_again()
        peer.send_raw(kinds("u", "t", "v", "u")[kind])
        await turns(20)
        assert topics(wire) == ["u", "v", "u"]


@run_async
async def test_who_is_told_of_runs_hears_of_what_was_allowed() -> None:
    """`on_taken_run` beside it: each message once, in order, in runs or alone."""
    rules, told = Rules("no"), []

    def run(client: ClientInfo, packets: bytes, count: int) -> None:
        reader = PacketReader()
        reader.version = Version.MQTT_5
        found = [packet.topic_name for packet in reader.feed(packets) if isinstance(packet, Publish)]
        assert len(found) == count
        told.extend(found)

    log = type(
        "Log",
        (HookBase,),
        {
            "holds": False,
            "on_taken": lambda self, client, message, dup, origin: told.append(message.topic_name),
            "on_taken_run": lambda self, *args: run(*args),
        },
    )()
    async with memory_broker(by_hand(), hooks=[rules, log]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        peer = Peer(broker)
        await peer.connect("p")
        for qos in (0, 1):
            peer.send_raw(publishes("t", "u", "no", "t", "v", "no", qos=qos) + publishes("t", "t"))
            await turns(20)
            assert told == topics(wire) == ["t", "u", "t", "v", "t", "t"]
            for names in ("t", "ttttt", "ttttttu", "tttttn", "u" * 300):  # of one kind, and not to the end
                told.clear()
                before = broker.clients["p"].info.publish_received
                peer.send_raw(publishes(*names, qos=qos))
                await turns(20)
                assert told == topics(wire) == list(names)
                assert broker.clients["p"].info.publish_received == before + len(names)
            told.clear()
