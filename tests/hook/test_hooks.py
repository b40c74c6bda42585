"""Hooks.inspect_publish without a broker: no coroutine where none is needed, and nothing slips through."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import HookBase, Message, NotAuthorized, ReasonCode
from broker.errors import ImplementationSpecificError, MqttError
from broker.hook.base import ClientInfo
from broker.hook.hooks import Begun, Hooks
from broker.packet.enums import Version
from broker.packet.properties import PropertyBlocks, copied
from tests.hook.made import hook
from tests.peer import run_async

WHO = ClientInfo("c")
BLOCK = PropertyBlocks()[bytes.fromhex("0101 26 0001 61 0001 62")]


def inspected(message: Message, *hooks: HookBase) -> Message:
    """What *hooks*, none of which waits, make of *message*. There is no event loop: none is needed."""
    found = Hooks(hooks).inspect_publish(WHO, message)
    assert isinstance(found, Message)
    return found


def with_properties() -> Message:
    message = Message("t", b"x", properties=copied(BLOCK))
    message.block = BLOCK
    return message


async def passes(client: ClientInfo, message: Message) -> Message:
    return message


async def waits(client: ClientInfo, message: Message) -> Message:
    await asyncio.sleep(0)
    return message


async def renames(client: ClientInfo, message: Message) -> Message:
    return message.with_(topic_name=message.topic_name + "/r")


@pytest.mark.parametrize("answer", [None, True, "text", 5], ids=str)
def test_whatever_on_publish_returns_it_allows(answer: Any) -> None:
    message = Message("t", b"x")
    assert inspected(message, hook(on_publish=lambda *_: answer)) is message


@pytest.mark.parametrize("changes", [passes, renames])
def test_a_coroutine_that_does_not_wait_needs_no_loop(changes: Any) -> None:
    message = Message("t", b"x")
    found = inspected(message, hook(on_publish=passes, on_publish_received=changes))
    assert (found is message) == (changes is passes)


@pytest.mark.parametrize("second", [lambda *_: asyncio.sleep(0, None), waits])
@run_async
async def test_who_waits_is_waited_for_and_the_order_holds(second: Any) -> None:
    calls: list[str] = []

    def note(name: str) -> Callable[..., Any]:
        return lambda who, message: calls.append(f"{name} {message.topic_name}")

    def renamed(who: ClientInfo, message: Message) -> Message:
        calls.append(f"received {message.topic_name}")
        return message.with_(topic_name=message.topic_name + "/x")

    hooks = [hook(on_publish=note("a"), on_publish_received=renamed), hook(on_publish=second)]
    hooks += [hook(on_publish=note("c")), hook(on_publish_received=renames)]
    found = Hooks(hooks).inspect_publish(WHO, Message("t"))
    assert not isinstance(found, Message)
    assert calls == ["a t"]
    assert (await found).topic_name == "t/x/r"
    assert calls == ["a t", "c t", "received t"]


@pytest.mark.parametrize("event", ["on_publish", "on_publish_received"])
@pytest.mark.parametrize("error", [StopIteration, RuntimeError, asyncio.CancelledError, ZeroDivisionError])
@pytest.mark.parametrize("kind", ["plain", "coroutine", "later"])
@run_async
async def test_whatever_is_raised_refuses(event: str, error: type[BaseException], kind: str) -> None:
    def plain(*args: Any) -> Any:
        raise error

    async def coroutine(*args: Any) -> Any:
        raise error

    async def later(*args: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    method = {"plain": plain, "coroutine": coroutine, "later": later}[kind]
    with pytest.raises(ImplementationSpecificError) as caught:
        found = Hooks([hook(**{event: method})]).inspect_publish(WHO, Message("t"))
        assert kind == "later" and not isinstance(found, Message)
        await found
    assert caught.value.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@pytest.mark.parametrize("late", [False, True])
@run_async
async def test_a_refusal_is_the_hooks_own(late: bool) -> None:
    async def refuse(*args: Any) -> None:
        if late:
            await asyncio.sleep(0)
        raise NotAuthorized("no")

    def never(*args: Any) -> None:
        raise AssertionError("asked after a refusal")

    with pytest.raises(NotAuthorized):
        found = Hooks([hook(on_publish=refuse), hook(on_publish=never)]).inspect_publish(WHO, Message("t"))
        assert not isinstance(found, Message)
        await found


IN_PLACE: dict[str, Any] = {
    "topic_name": "a/#",
    "payload": bytearray(b"x"),
    "qos": 3,
    "retain": "yes",
    "client_id": None,
    "expires_at": "soon",
    "properties": {"content_type": 5},
}


@pytest.mark.parametrize(("field", "value"), IN_PLACE.items())
@pytest.mark.parametrize("when", ["on_publish", "on_publish_received"])
@pytest.mark.parametrize("first", [None, waits])
@run_async
async def test_what_is_changed_in_place_is_looked_at(field: str, value: Any, when: str, first: Any) -> None:
    def change(who: ClientInfo, message: Message) -> Message:
        setattr(message, field, value)
        return message

    hooks = [hook(on_publish=first)] if first is not None else []
    hooks += [hook(**{when: change}), hook(on_publish_received=passes)]
    for message in (Message("t", b"x"), with_properties()):
        with pytest.raises(MqttError) as caught:
            found = Hooks(hooks).inspect_publish(WHO, message)
            assert not isinstance(found, Message)
            await found
        wanted = ReasonCode.TOPIC_NAME_INVALID if field == "topic_name" else 0x83
        assert caught.value.reason == wanted


def content_type(message: Message) -> None:
    properties: Any = message.properties
    properties["content_type"] = "new"


def another_pair(message: Message) -> None:
    message.properties["user_property"].append(("c", "d"))


def other_properties(message: Message) -> None:
    message.properties = {"content_type": "new"}


@pytest.mark.parametrize("event", ["on_publish", "on_publish_received"])
@pytest.mark.parametrize("change", [content_type, another_pair, other_properties])
def test_properties_that_are_changed_in_place_are_sent(event: str, change: Callable[..., None]) -> None:
    def changes(who: ClientInfo, message: Message) -> Message:
        change(message)
        return message

    message = inspected(with_properties(), hook(**{event: changes}))
    fresh = Message("t", b"x", properties=message.properties)
    assert message.frame(Version.MQTT_5, 0, False) == fresh.frame(Version.MQTT_5, 0, False)
    assert message.size == fresh.size
    assert copied(BLOCK) == {"payload_format_indicator": 1, "user_property": [("a", "b")]}


def test_a_message_that_nobody_changed_keeps_its_block() -> None:
    message = inspected(with_properties(), hook(on_publish=passes), hook(on_publish_received=passes))
    assert message.block is BLOCK


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@run_async
async def test_an_answer_that_nobody_waits_for_is_closed(in_place: bool) -> None:
    seen: list[str] = []

    async def look(who: ClientInfo, message: Message) -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(0)
        finally:
            seen.append("ended")

    hooks = Hooks([hook(on_publish=look)])
    hooks.in_place = in_place
    found: Any = hooks.inspect_publish(WHO, Message("t", b"x"))
    found.close()
    del found
    gc.collect()
    assert seen == ([] if in_place else ["begun", "ended"])


@pytest.mark.parametrize("event", ["on_publish", "on_publish_received"])
@pytest.mark.parametrize("field", ["payload", "topic_name", "properties"])
def test_the_same_message_comes_out_only_if_nobody_changed_it(event: str, field: str) -> None:
    value: Any = {"payload": b"new", "topic_name": "new", "properties": {"content_type": "new"}}[field]

    def change(who: ClientInfo, message: Message) -> Message:
        setattr(message, field, value)
        return message

    for others in ([], [hook(on_publish_received=passes)]):
        message = Message("t", b"x")
        found = inspected(message, hook(**{event: change}), *others)
        assert found is not message and getattr(found, field) == value
        message = Message("t", b"x")
        assert inspected(message, hook(on_publish=passes), *others) is message


# ---- Begun


class Wait:
    """Something to wait for that tells what it is sent."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __await__(self) -> Generator[int, Any, Any]:
        return (yield self.number)


async def converses(steps: int, stubborn: bool) -> list[Any]:
    """Waits *steps* times and notes what comes of it."""
    heard: list[Any] = []
    for number in range(steps):
        try:
            heard.append(await Wait(number))
        except ValueError as error:
            heard.append(str(error))
            if not stubborn:
                raise KeyError(tuple(heard)) from None
    return heard


def conversation(coroutine: Any, begun: bool, said: list[Any]) -> list[Any]:
    """All that an event loop would see of `await coroutine`."""
    seen: list[Any] = []
    try:
        if begun:
            waits_for = coroutine.send(None)
            generator = Begun(coroutine, waits_for).__await__()
        else:
            generator = coroutine.__await__()
        seen.append(next(generator))
        for word in said:
            thrown = isinstance(word, ValueError)
            seen.append(generator.throw(word) if thrown else generator.send(word))
        generator.close()
        seen.append("closed")
    except (StopIteration, KeyError) as error:
        seen += [type(error), *error.args]
    return seen


@given(
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.integers() | st.just(None) | st.builds(ValueError), max_size=6),
)
def test_begun_goes_on_as_await_would(steps: int, stubborn: bool, said: list[Any]) -> None:
    one = conversation(converses(steps, stubborn), False, said)
    assert conversation(converses(steps, stubborn), True, said) == one
