"""The fast lane where hooks look at each message: what it takes, and what they may do meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from broker import Broker, ClientInfo, HookBase, Message, MqttError, NotAuthorized
from broker.gateway.local import LocalSubscription
from broker.lane import asked
from broker.packet.codec import encode
from broker.packet.packets import Puback, Publish
from tests.hook.made import boom, hook
from tests.lane.by_hand import V5, by_hand, joined, packets, publishes, take, topics
from tests.peer import Peer, memory_broker, run_async
from tests.wire import turns


class Looks(HookBase):
    """Writes down what it is shown; *then* it does something, by topic, and gives what comes of it."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.then: dict[str, Callable[[Message], Any]] = {}

    def on_publish_received(self, client: ClientInfo, message: Message) -> Any:  # type: ignore[override]
        self.shown.append(message.topic_name)
        then = self.then.get(message.topic_name)
        return message if then is None else then(message)


class Waits(Looks):
    """The same by a coroutine."""

    async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
        found: Message = super().on_publish_received(client, message)
        return found


def judged(broker: Broker) -> asked.Judged:
    found = broker._connections.settle.__self__  # type: ignore[attr-defined]
    assert isinstance(found, asked.Judged)
    return found


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_what_is_let_pass_is_taken(qos: int) -> None:
    looks = Looks()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        sender = await joined(broker, "p")
        for number in range(2):
            assert take(broker, "p", publishes(*"tuttv", qos=qos)) == b"" and looks.shown == [*"tuttv"]
            await turns()
            assert topics(wire) == [*"tuttv"]
            assert len([each for each in packets(sender) if isinstance(each, Puback)]) == 5 * qos
            assert broker.clients["p"].info.publish_received == 5 * (number + 1)
            looks.shown.clear()
        assert broker.stats.publish_received == broker.stats.publish_sent == 10


LEFT: dict[str, bytes] = {
    "QoS 2": publishes("t", qos=2),
    "RETAIN": b"\x31\x05\0\1t\0r",
    "DUP": encode(Publish("t", b"x", 1, False, True, 1), V5),
    "identifier 0": b"\x32\x07\0\1t\0\0\0x",
    "properties": encode(Publish("t", b"x", properties={"content_type": "x"}), V5),
    "a topic that is none": b"\x30\x05\0\1+\0x",
    "no topic": b"\x30\x04\0\0\0x",
    "the server's topic": publishes("$t"),
    "a length that is too long": b"\x30\x85\0\0\1t\0x",
    "a topic that is longer than the packet": b"\x30\x05\0\7t\0x",
    "PINGRESP": b"\xd0\0",
}


@pytest.mark.parametrize("what", LEFT)
@run_async
async def test_nobody_is_asked_about_what_is_left(what: str) -> None:
    looks = Looks()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        data = LEFT[what] + publishes("t")
        assert take(broker, "p", publishes("t", "u") + data) == data and looks.shown == ["t", "u"]
        await turns()
        assert topics(wire) == ["t", "u"]


@run_async
async def test_other_packets_between_them_are_served_in_their_turn() -> None:
    looks = Looks()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "p", "#", qos=1)
        data = publishes("t") + b"\xc0\0" + publishes("u", "v", qos=1) + b"\xc0\0" + publishes("w")
        assert take(broker, "p", data + data[:5]) == b"" and looks.shown == ["t", "u", "v", "w"]
        assert broker.clients["p"].partial == 5
        await turns()
        kinds = [type(each).__name__ for each in packets(wire)]
        assert kinds.count("Pingresp") == 2 and kinds.count("Publish") == 4


@run_async
async def test_a_coroutine_is_asked_in_a_task() -> None:
    """It may use what needs one."""
    looks = Waits()
    tasks = []
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#")
        sender = await joined(broker, "p")
        looks.then["t"] = lambda message: tasks.append(asyncio.current_task()) or message
        data = publishes("t", "u", "t")
        assert take(broker, "p", data) == data and looks.shown == [], "this task is not the client's own"
        assert not broker.clients["p"].extra.judged
        broker._connections._terms.dispatch = boom  # type: ignore[assignment]
        sender.incoming.put_nowait(data)
        await turns(20)
        assert looks.shown == topics(wire) == ["t", "u", "t"] and None not in tasks and len(tasks) == 2


@run_async
async def test_plain_hooks_are_asked_in_place() -> None:
    """What one begins that has to wait begins in a task, all the same."""
    looks = Looks()

    async def later(message: Message) -> Message:
        async with asyncio.timeout(1):
            await asyncio.sleep(0)
        return message.with_(topic_name="later")

    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#")
        await joined(broker, "p")
        looks.then["u"] = later
        data, left = publishes("t", "u", "v"), asyncio.get_running_loop().create_future()
        client = broker.clients["p"]
        asyncio.get_running_loop().call_soon(lambda: left.set_result(client.take(data)))
        assert await left == b"" and looks.shown == ["t", "u"], "and v when u is done"
        await turns(20)
        assert topics(wire) == ["t", "later", "v"] and looks.shown == ["t", "u", "v"]
        assert not broker._core.hooks.in_place


@run_async
async def test_others_have_a_turn_when_hooks_take_long() -> None:
    looks = Looks()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#")
        sender = await joined(broker, "p")
        now = [0.0]

        def spend(message: Message) -> Message:
            now[0] += asked.ASKING / 2
            return message

        looks.then["t"] = spend
        judged(broker).now = lambda: now[0]
        data = publishes(*"ttttt")
        assert take(broker, "p", data) == data[3 * len(data) // 5 :] and looks.shown == [*"ttt"]
        sender.incoming.put_nowait(data)
        await turns(20)
        assert topics(wire) == [*"tttttttt"] and looks.shown == [*"tttttttt"]


def in_place(message: Message) -> Message:
    message.payload = b"new"
    return message


def marked(message: Message) -> Message:
    message.mark = 1
    return message


def refuse(message: Message) -> Message:
    raise NotAuthorized("no")


ENDS: dict[str, tuple[Callable[[Message], Any], list[str]]] = {
    "another message": (lambda message: message.with_(topic_name="w"), ["t", "w", "v"]),
    "in place": (in_place, ["t", "u", "v"]),
    "a mark": (marked, ["t", "u", "v"]),
    "refused": (refuse, ["t", "v"]),
    "failed": (boom, ["t", "v"]),
    "rubbish": (lambda message: None, ["t", "v"]),
}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("what", ENDS)
@run_async
async def test_what_was_said_of_a_message_counts_whoever_serves_it(what: str, qos: int) -> None:
    """It is left, and nobody is asked again."""
    then, expected = ENDS[what]
    looks = Looks()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        sender = await joined(broker, "p")
        looks.then["u"] = then
        data = publishes("t", "u", "v", qos=qos)
        assert take(broker, "p", data) == data[len(publishes("t", qos=qos)) :] and looks.shown == ["t", "u"]
        broker.clients["p"].forget_judged()
        looks.shown.clear()
        await turns()
        wire.sent(), sender.sent()
        sender.incoming.put_nowait(data)
        await turns(20)
        assert looks.shown == ["t", "u", "v"]
        found = [packet for packet in packets(wire) if isinstance(packet, Publish)]
        assert [packet.topic_name for packet in found] == expected
        assert what != "in place" or found[1].payload == b"new"
        answers = [packet.reason_code for packet in packets(sender) if isinstance(packet, Puback)]
        assert answers == ([0, 0 if len(expected) == 3 else answers[1], 0] if qos else [])
        assert not broker.clients["p"].extra.judged


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@run_async
async def test_what_was_to_begin_for_a_client_that_goes_never_does() -> None:
    looks, begun = Looks(), list[str]()

    async def later(message: Message) -> Message:
        begun.append(message.topic_name)
        return message

    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        await joined(broker, "s", "#")
        await joined(broker, "p")
        looks.then["u"] = later
        data, client = publishes("t", "u"), broker.clients["p"]
        assert take(broker, "p", data) == publishes("u")
        assert client.extra.judged
        client.abort(MqttError("gone"))
        client.left()
        await turns(20)
        gc.collect()
        assert not client.extra.judged and not begun


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_what_cannot_be_taken_is_not_asked_about_again(qos: int) -> None:
    """Who subscribes has no room, say: the readable lane has the messages, in their order."""
    looks = Looks()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        local = broker.subscribe("#")  # this lane knows sessions only
        peer = Peer(broker)
        await peer.connect("p")
        peer.send_raw(publishes(*"tuv", qos=qos))
        await turns(20)
        assert looks.shown == [*"tuv"]
        found = aiter(local)
        assert [(await anext(found)).topic_name for _ in range(3)] == [*"tuv"]
        data = publishes(*"tuv", qos=qos)
        assert take(broker, "p", data) == data and len(looks.shown) == 3 * (1 + qos), "of QoS 0 that is known"


@pytest.mark.parametrize("last_word", ["on_accepted", "on_taken"])
@run_async
async def test_who_has_the_last_word_is_asked_by_the_handler(last_word: str) -> None:
    hooks = [Looks(), hook(**{last_word: lambda *args: None, "on_taken_run": lambda *args: None})]
    async with memory_broker(by_hand(), hooks=hooks) as broker:
        await joined(broker, "s", "#")
        await joined(broker, "p")
        assert not judged(broker).open
        assert take(broker, "p", publishes("t")) == publishes("t") and hooks[0].shown == []  # type: ignore[attr-defined]


# ---- a hook that does something else than to look


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_what_a_hook_publishes_comes_behind_what_was_let_pass_before(qos: int) -> None:
    class Publishes(Looks):
        async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
            if message.topic_name == "u":
                await broker.publish("by a hook")
            self.shown.append(message.topic_name)
            return message

    async with memory_broker(by_hand(), hooks=[Publishes()]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        sender = await joined(broker, "p")
        sender.incoming.put_nowait(publishes(*"tuvut", qos=qos))
        await turns(20)
        assert topics(wire) == ["t", "by a hook", "u", "v", "by a hook", "u", "t"]


@run_async
async def test_a_hook_sees_what_became_of_those_before() -> None:
    looks, seen = Looks(), list[tuple[int, int]]()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        await joined(broker, "s", "#")
        await joined(broker, "p")
        looks.then["u"] = lambda message: (
            seen.append((broker.stats.publish_sent, len(broker.clients))) or message
        )
        assert take(broker, "p", publishes(*"ttuttuu")) == b""
        assert seen == [(2, 2), (5, 2), (6, 2)]


@run_async
async def test_a_hook_that_subscribes_hears_the_message_itself_and_what_comes_behind() -> None:
    looks, made = Looks(), list[LocalSubscription]()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#")
        peer = Peer(broker)
        await peer.connect("p")
        peer.send_raw(publishes("t", "u"))  # who hears them is known
        await turns(20)
        assert topics(wire) == ["t", "u"]
        looks.then["u"] = lambda message: made.append(broker.subscribe("#", retained=False)) or message
        peer.send_raw(publishes(*"tutt"))
        await turns(20)
        found = aiter(made[0])
        assert [(await anext(found)).topic_name for _ in range(3)] == ["u", "t", "t"]
        assert topics(wire) == [*"tutt"]
        looks.then = {"v": lambda message: made[0].close() or message}  # type: ignore[func-returns-value]
        peer.send_raw(publishes(*"tvt"))
        await turns(20)
        assert topics(wire) == [*"tvt"]


@pytest.mark.parametrize("whom", ["p", "s"])
@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_a_hook_that_ends_a_connection(whom: str, qos: int) -> None:
    """What was let pass before is delivered, and the message itself; then nothing of who is gone."""

    class Ends(Looks):
        async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
            self.shown.append(message.topic_name)
            if message.topic_name == "u":
                await broker.disconnect(whom)
            return message

    ends = Ends()
    async with memory_broker(by_hand(), hooks=[ends]) as broker:
        wire = await joined(broker, "s", "#", qos=1)
        stays = await joined(broker, "r", "#", qos=1)
        sender = await joined(broker, "p")
        sender.incoming.put_nowait(publishes(*"tutt", qos=qos))
        await turns(30)
        expected = ["t", "u"] if whom == "p" else [*"tutt"]
        assert topics(stays) == ends.shown == expected
        assert topics(wire) == (["t", "u"] if whom == "p" else ["t"])
        assert whom not in broker.clients


@run_async
async def test_a_hook_that_has_another_client_served_meanwhile() -> None:
    """It is read by the readable lane, behind what was let pass before."""
    looks = Looks()
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        wire = await joined(broker, "s", "#")
        await joined(broker, "p")
        other = await joined(broker, "q")
        looks.then["u"] = lambda message: other.incoming.put_nowait(publishes("q")) or message  # type: ignore[func-returns-value]
        assert take(broker, "p", publishes(*"tut")) == b""
        await turns()
        assert topics(wire) == ["t", "q", "u", "t"]


@run_async
async def test_a_mark_stays_with_the_message() -> None:
    looks = Looks()
    looks.then["t"] = marked
    async with memory_broker(by_hand(), hooks=[looks]) as broker:
        local = broker.subscribe("#")
        peer = Peer(broker)
        await peer.connect("p")
        peer.send_raw(publishes(*"ut"))
        found = aiter(local)
        assert [(await anext(found)).mark for _ in range(2)] == [None, 1]


@pytest.mark.parametrize("qos", [0, 1])
@run_async
async def test_who_hears_of_runs_beside_it_hears_of_what_was_let_pass(qos: int) -> None:
    looks, told = Looks(), list[int]()
    log = hook(
        on_taken=lambda *args: told.append(1), on_taken_run=lambda client, data, count: told.append(count)
    )
    log.holds = False
    async with memory_broker(by_hand(), hooks=[looks, log]) as broker:
        await joined(broker, "s", "#", qos=1)
        await joined(broker, "p")
        assert take(broker, "p", publishes(*"tut", qos=qos)) == b"" and told == [3]
        assert broker.clients["p"].info.publish_received == 3
