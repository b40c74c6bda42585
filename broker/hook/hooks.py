"""Hooks: the dispatch lists, made once, and the five dispatch patterns."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import chain
from types import CoroutineType
from typing import Any, TypeVar

from broker.errors import AcknowledgeOnly, BadAuthenticationMethod, MqttError, StoreError
from broker.hook.base import EVENTS, AuthStep, BrokerApi, ClientInfo, Hold, HookBase, Origin, SessionState
from broker.hook.begun import Begun, Later, awaiting, first_step
from broker.hook.sound import (
    Method,
    Verdicts,
    both,
    expect,
    failed,
    fields_of,
    is_unchanged,
    parts_of,
    refusal_of,
    rubbish,
    settled,
    sound_hold,
    sound_message,
    sound_step,
)
from broker.packet.message import Message
from broker.packet.packets import Connect, SubscribeRequest

log = logging.getLogger("broker.hook")

T = TypeVar("T")


def overriders(hooks: Sequence[HookBase], event: str) -> tuple[Method, ...]:
    """The bound methods of the hooks that provide *event*, in the order the hooks were given."""
    return tuple(
        Method(hook.id or type(hook).__name__, event, getattr(hook, event), event == "on_publish_received")
        for hook in hooks
        if event in hook.provides
    )


class Hooks:
    """All hooks of one broker.

    Authorising events fail closed: an exception that is no MqttError, and a coroutine that takes
    longer than *timeout* seconds, refuse with 0x83. In notifying events they are logged.
    """

    def __init__(self, hooks: Sequence[HookBase] = (), timeout: float = 10.0) -> None:
        self._hooks = tuple(hooks)
        self._timeout = timeout
        self.in_place = False  # the loop itself runs what calls us, and no task
        lists = {event: overriders(self._hooks, event) for event in EVENTS}
        self._on_connect = lists["on_connect"]
        self._on_auth = lists["on_auth"]
        self._on_connected = lists["on_connected"]
        self._on_disconnect = lists["on_disconnect"]
        self._on_subscribe = lists["on_subscribe"]
        self._on_unsubscribe = lists["on_unsubscribe"]
        self._on_publish = lists["on_publish"]
        self._on_message = lists["on_publish"] + lists["on_publish_received"]
        self._transforms = bool(lists["on_publish_received"])
        self._on_accepted = lists["on_accepted"]
        # For each of them, what the hooks before it are told of its refusal.
        self._taken_back_before = tuple(
            overriders(self._hooks[:at], "on_taken_back")
            for at, hook in enumerate(self._hooks)
            if "on_accepted" in hook.provides
        )
        self._on_taken_back = lists["on_taken_back"]
        self._on_publish_deliver = lists["on_publish_deliver"]
        self._can_read = lists["can_read"]
        self._on_session_created = lists["on_session_created"]
        self._on_session_resumed = lists["on_session_resumed"]
        self._on_session_ended = lists["on_session_ended"]
        self._store_retained = lists["store_retained"]
        self._get_retained = lists["get_retained"]
        self._on_dropped = lists["on_dropped"]
        self._on_store_failed = lists["on_store_failed"]
        self._on_store_recovered = lists["on_store_recovered"]
        self._on_taken = lists["on_taken"]
        self._on_taken_run = lists["on_taken_run"]
        self._on_delivered = lists["on_delivered"]
        self._on_acknowledged = lists["on_acknowledged"]
        self._on_connack = lists["on_connack"]
        self._on_session = lists["on_session"]
        self._on_subscribed = lists["on_subscribed"]
        self._on_unsubscribed = lists["on_unsubscribed"]
        self._sys_values = lists["sys_values"]
        self._last_held: asyncio.Future[None] | None = None  # what the last acknowledgement waits for
        self._still_held = lists["still_held"]
        may_publish = lists["may_publish"]
        self.verdicts = Verdicts(may_publish) if may_publish else None
        self._count(lists)

    def _count(self, lists: dict[str, tuple[Method, ...]]) -> None:
        """What the hot paths ask before they call anything."""
        self.need_task = any(inspect.iscoroutinefunction(each.call) for each in chain(*lists.values()))
        self.hears_ends = bool(self._on_session_ended)
        self.greets = bool(self._on_session_created or self._on_session_resumed or self._on_connected)
        self.look = bool(self._hooks)  # whether anybody may look at a ClientInfo
        self.hears_disconnects = bool(self._on_disconnect)
        self.authenticates = bool(self._on_connect)
        self.accepts = bool(self._on_accepted)
        self.inspects_publish = bool(self._on_message or self._on_accepted)
        self.judges_publish = self.inspects_publish or self.verdicts is not None
        self.inspects_delivery = bool(self._on_publish_deliver or self._can_read)
        self.changes_delivery = bool(self._on_publish_deliver)
        self.checks_delivery = bool(self._can_read)
        self.keeps_retained = bool(self._store_retained or self._get_retained)
        self.stores_retained = bool(self._store_retained)
        self.hears_taken = bool(self._on_taken)
        self.hears_delivered = bool(self._on_delivered)
        self.hears_subscribed = bool(self._on_subscribed)
        self.hears_acknowledged = bool(self._on_acknowledged)
        self.hears_runs = bool(self._on_taken_run)
        # Somebody wants to know of single messages: no run of them may be handled at once.
        single = any({"on_taken", "on_taken_run"} & hook.provides == {"on_taken"} for hook in self._hooks)
        self.holds = any(hook.holds for hook in self._hooks if "on_taken" in hook.provides)
        self.follows_messages = single or self.hears_delivered or self.hears_acknowledged

    async def init(self, broker: BrokerApi) -> None:
        """Start every hook, in order. If one raises, those before it are stopped and the error goes on."""
        started: list[HookBase] = []
        try:
            for hook in self._hooks:
                await _maybe_await(hook.init(broker))
                started.append(hook)
        except BaseException:
            await self._stop(started)
            raise

    async def stop(self) -> None:
        """Stop every hook, last first; errors are logged."""
        await self._stop(list(self._hooks))

    async def _stop(self, hooks: list[HookBase]) -> None:
        for hook in reversed(hooks):
            await self._tell((Method(hook.id or type(hook).__name__, "stop", hook.stop),))

    # ---- a message that is published: fail fast, then a transform chain

    def inspect_publish(self, client: ClientInfo, message: Message) -> Message | Awaitable[Message]:
        """`on_publish` of all hooks and then `on_publish_received`: the message that comes out.

        It is *message* itself only if nobody has changed it. An awaitable of it only if a hook has to wait; a
        MqttError refuses. Two coroutines that do not wait took 9.4 us a message when each got a task's
        time-out and a check of all that it gave back, two plain functions 3.9; with this 2.1 and 1.1 (QoS 0;
        CPython 3.11, 2 cores).
        """
        before, methods, in_place = fields_of(message), iter(self._on_message), self.in_place
        given, changed = message, False
        for method in methods:
            try:
                result = method.call(client, message)
                if in_place or type(result) is not CoroutineType:
                    result = self._begun(result)
                else:
                    try:
                        result = Begun(result, result.send(None))
                    except StopIteration as done:
                        result = done.value
            except MqttError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # nobody cancels a plain call
                raise refusal_of(method) from error
            if type(result) is Begun:
                return Later(result, self._inspect_later(methods, method, result, client, message))
            if method.transforms and not (result is message and is_unchanged(message, before)):
                message, changed = sound_message(method, result), True
                before = fields_of(message)
        if not self._transforms and not is_unchanged(message, before):
            changed = True  # who only allows or refuses should not do that; what it did counts
        if not changed:
            return message
        message = settled(message)
        return message.with_() if message is given else message

    async def _inspect_later(
        self, methods: Iterator[Method], method: Method, begun: Begun, client: ClientInfo, message: Message
    ) -> Message:
        """The rest of `inspect_publish`: *method* has begun and waits."""
        result = await self._decide_begun(method, begun)
        message = sound_message(method, result) if method.transforms else message
        for method in methods:
            result = await self._decide(method, client, message)
            message = sound_message(method, result) if method.transforms else message
        return settled(message)

    # ---- fail fast

    async def on_connect(self, client: ClientInfo, packet: Connect) -> None:
        for method in self._on_connect:
            await self._decide(method, client, packet)

    async def on_publish(self, client: ClientInfo, message: Message) -> None:
        """May it be published, without a word to `on_publish_received`: a will that is not due yet."""
        if self.verdicts is not None:
            self.verdicts.ask(client, message.topic_name)
        for method in self._on_publish:
            await self._decide(method, client, message)

    def on_accepted(self, client: ClientInfo, message: Message) -> None:
        """Those that were told before the one that refuses are told of that."""
        for method, before in zip(self._on_accepted, self._taken_back_before, strict=True):
            try:
                _call_now(method, client, message)
            except AcknowledgeOnly:
                raise
            except (Exception, asyncio.CancelledError) as error:
                _tell_now(before, client, message)
                if isinstance(error, MqttError):
                    raise
                raise refusal_of(method) from error

    async def on_unsubscribe(self, client: ClientInfo, topic_filter: str) -> None:
        for method in self._on_unsubscribe:
            await self._decide(method, client, topic_filter)

    # ---- transform chain

    async def on_subscribe(self, client: ClientInfo, request: SubscribeRequest) -> SubscribeRequest:
        for method in self._on_subscribe:
            request = expect(SubscribeRequest, method, await self._decide(method, client, request))
            numbers = request.qos in (0, 1, 2) and request.retain_handling in (0, 1, 2)
            if not numbers or not isinstance(request.topic_filter, str):
                raise rubbish(method, request, "SubscribeRequest")
        return request

    def on_publish_deliver(self, client_id: str, message: Message) -> Message | None:
        """None: a hook failed, and this delivery is to be dropped."""
        for method in self._on_publish_deliver:
            try:
                changed = method.call(client_id, message)
                message = message if changed is message else sound_message(method, changed)
            except (Exception, asyncio.CancelledError):  # nobody cancels a plain call
                failed(method)
                return None
        return message

    # ---- all must pass

    def can_read(self, client_id: str, topic_name: str) -> bool:
        """An exception counts as no."""
        for method in self._can_read:
            try:
                if method.call(client_id, topic_name) is not True:
                    return False
            except (Exception, asyncio.CancelledError):
                failed(method)
                return False
        return True

    # ---- first provider

    async def on_auth(self, client: ClientInfo, method: str, data: bytes | None) -> AuthStep:
        """Raises BadAuthenticationMethod when no hook knows *method*."""
        for provider in self._on_auth:
            step = await self._decide(provider, client, method, data)
            if step is not None:
                return sound_step(provider, expect(AuthStep, provider, step))
        raise BadAuthenticationMethod(f"no hook handles authentication method {method!r}")

    async def store_retained(self, message: Message) -> None:
        await self._decide(self._store_retained[0], message)

    async def get_retained(self, topic_filter: str) -> Iterable[Message]:
        """Nothing when the provider fails."""
        if not self._get_retained:
            return ()
        provider = self._get_retained[0]
        try:
            return [sound_message(provider, message) for message in await self._call(provider, topic_filter)]
        except Exception:
            failed(provider)
            return ()

    # ---- notify all

    async def on_connected(self, client: ClientInfo) -> None:
        await self._tell(self._on_connected, client)

    async def on_disconnect(self, client: ClientInfo, reason: int, text: str) -> None:
        await self._tell(self._on_disconnect, client, reason, text)

    async def on_session_created(self, client_id: str) -> None:
        await self._tell(self._on_session_created, client_id)

    async def on_session_resumed(self, client_id: str) -> None:
        await self._tell(self._on_session_resumed, client_id)

    async def on_session_ended(self, client_id: str) -> None:
        await self._tell(self._on_session_ended, client_id)

    def on_dropped(self, client_id: str, message: Message | None, reason: str) -> None:
        _tell_now(self._on_dropped, client_id, message, reason)

    def on_taken_back(self, client: ClientInfo, message: Message) -> None:
        _tell_now(self._on_taken_back, client, message)

    def on_taken(self, client: ClientInfo | None, message: Message, dup: bool, origin: Origin) -> Hold | None:
        """Fail fast: a MqttError refuses *message*, and so does a failure."""
        held: Hold | None = None
        for method in self._on_taken:
            try:
                found = method.call(client, message, dup, origin)
            except MqttError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                raise refusal_of(method) from error
            if found is not None:
                found = sound_hold(method, found)
                held = found if held is None else Hold(*map(both, parts_of(held), parts_of(found)))
        if held is not None and held.acknowledgement is not None:
            self._last_held = held.acknowledgement
        return held

    def note_taken(self, client: ClientInfo | None, message: Message, origin: Origin) -> None:
        """As `on_taken`, for a message that nobody can be told a refusal of."""
        try:
            self.on_taken(client, message, False, origin)
        except MqttError as error:
            log.warning("a message to %r is routed all the same: %s", message.topic_name, error)

    def still_held(self) -> asyncio.Future[None] | None:
        """What must be done before anybody speaks of earlier messages; None: nothing, all is well."""
        held = self._last_held
        if held is not None and held.done():
            held = self._last_held = None
        for method in self._still_held:
            try:
                found = sound_hold(method, Hold(method.call())).acknowledgement
            except Exception:
                failed(method)
            else:
                held = both(held, found)
        return held

    def on_taken_run(self, client: ClientInfo, packets: bytes, count: int) -> None:
        _tell_now(self._on_taken_run, client, packets, count)

    def on_delivered(self, client_id: str, message: Message, qos: int) -> None:
        _tell_now(self._on_delivered, client_id, message, qos)

    def on_acknowledged(self, client_id: str, message: Message, qos: int, reason: int) -> None:
        _tell_now(self._on_acknowledged, client_id, message, qos, reason)

    def on_connack(self, client: ClientInfo, reason: int, session_present: bool) -> None:
        _tell_now(self._on_connack, client, reason, session_present)

    def on_session(self, client_id: str, state: SessionState, waiting: int) -> None:
        _tell_now(self._on_session, client_id, state, waiting)

    def on_subscribed(
        self, client: ClientInfo, request: SubscribeRequest, reason: int, identifier: int
    ) -> None:
        _tell_now(self._on_subscribed, client, request, reason, identifier)

    def on_unsubscribed(self, client: ClientInfo, topic_filter: str, reason: int) -> None:
        _tell_now(self._on_unsubscribed, client, topic_filter, reason)

    def sys_values(self) -> dict[str, int | str]:
        """Of all hooks; those of one that fails are left out."""
        values: dict[str, int | str] = {}
        for method in self._sys_values:
            try:
                values |= {str(name): value for name, value in method.call().items()}
            except (Exception, asyncio.CancelledError):
                failed(method)
        return values

    def on_store_failed(self, failure: StoreError) -> None:
        _tell_now(self._on_store_failed, failure)

    def on_store_recovered(self) -> None:
        _tell_now(self._on_store_recovered)

    # ---- how a method is called

    def _begin(self, method: Method, *args: Any) -> Any:
        """Call *method*, and run a coroutine up to its first wait: the result, or a Begun for `_wait`.

        What does not wait needs no time-out, and of all that is cancelled nobody but itself can have asked.
        A coroutine may use what needs a task (asyncio.timeout, say): in place it begins a turn later, in one.
        """
        try:
            return self._begun(method.call(*args))
        except asyncio.CancelledError as error:
            raise RuntimeError("the hook was cancelled from inside") from error

    def _begun(self, result: Any) -> Any:
        """What a method gave, or what came of its coroutine; see `_begin`."""
        if result is None or isinstance(result, Message):
            return result
        if not isinstance(result, CoroutineType):
            if not inspect.isawaitable(result):
                return result
            result = awaiting(result)
        return Begun(result, None) if self.in_place else first_step(result)

    async def _wait(self, begun: Begun) -> Any:
        """The result of *begun*, if that does not take longer than the time-out.

        Cancellation is ours alone: a hook that swallows it does not keep its client alive, and a hook
        that lets one escape which nobody asked for (of a task of its own, say) has failed.
        """
        if self.in_place:
            try:
                await asyncio.sleep(0)
            except BaseException:
                begun.close()
                raise
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(self._timeout):
                result = await begun
        except asyncio.CancelledError as error:
            if task is None or task.cancelling() > before:
                raise
            raise RuntimeError("the hook was cancelled from inside") from error
        except Exception as error:
            if task is not None and task.cancelling() > before:
                raise asyncio.CancelledError from error
            raise
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
        return result

    async def _call(self, method: Method, *args: Any) -> Any:
        result = self._begin(method, *args)
        return await self._wait(result) if isinstance(result, Begun) else result

    async def _decide(self, method: Method, *args: Any) -> Any:
        try:
            return await self._call(method, *args)
        except MqttError:
            raise
        except Exception as error:
            raise refusal_of(method) from error

    async def _decide_begun(self, method: Method, begun: Begun) -> Any:
        try:
            return await self._wait(begun)
        except MqttError:
            raise
        except Exception as error:
            raise refusal_of(method) from error

    async def _tell(self, methods: tuple[Method, ...], *args: Any) -> None:
        for method in methods:
            try:
                await self._call(method, *args)
            except Exception:
                failed(method)


def _call_now(method: Method, *args: Any) -> None:
    if inspect.iscoroutine(result := method.call(*args)):
        result.close()
        raise TypeError(f"{method.event} is told by a plain call, and waits for nothing")


def _tell_now(methods: tuple[Method, ...], *args: Any) -> None:
    for method in methods:
        try:
            _call_now(method, *args)
        except (Exception, asyncio.CancelledError):
            failed(method)


async def _maybe_await(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
