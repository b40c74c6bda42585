"""What hooks give back is checked here, and what to do with one that failed.

Where they let a client publish is remembered here, too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, NamedTuple, TypeVar

from broker.errors import ImplementationSpecificError, MqttError, NotAuthorized
from broker.hook.base import AuthStep, ClientInfo, Hold
from broker.packet.message import ENCODED_TOPICS, Message
from broker.packet.properties import Place, property_block
from broker.topic.name import check_topic_name

log = logging.getLogger("broker.hook")

T = TypeVar("T")
Future = asyncio.Future[None]

MOST: Final = 16_384  # Topic Names that are remembered, of all connections together; then all is asked anew
LONGEST: Final = 256  # bytes of such a name
NONE: Final[set[bytes]] = set()  # nobody changes it


class Method(NamedTuple):
    """One hook's override of one event."""

    hook: str
    event: str
    call: Callable[..., Any]
    transforms: bool = False  # what it gives takes the place of the message


def failed(method: Method) -> None:
    log.exception("hook %s failed in %s", method.hook, method.event)


def refusal_of(method: Method) -> ImplementationSpecificError:
    """What a hook that failed just now refuses with."""
    failed(method)
    return ImplementationSpecificError(f"hook {method.hook} failed in {method.event}")


def rubbish(method: Method, value: Any, wanted: str) -> ImplementationSpecificError:
    log.error("hook %s: %s returned %.200r, which is no sound %s", method.hook, method.event, value, wanted)
    return ImplementationSpecificError(f"hook {method.hook} returned no sound {wanted}")


def expect(kind: type[T], method: Method, value: Any) -> T:
    """A hook that forgets to return its value must not become an empty message."""
    if isinstance(value, kind):
        return value
    raise rubbish(method, value, kind.__name__)


def sound_message(method: Method, value: Any) -> Message:
    """A Message that can be sent: what a hook made goes to clients that never heard of the hook.

    Its Topic Name is refused as a client's would be, with 0x90.
    """
    message = expect(Message, method, value)
    payload: Any = message.payload
    qos: Any = message.qos
    retain: Any = message.retain
    expires_at: Any = message.expires_at
    try:
        sound = isinstance(payload, bytes) and isinstance(qos, int) and qos in (0, 1, 2)
        sound = sound and isinstance(retain, int) and retain in (0, 1)
        sound = sound and isinstance(message.client_id, str)
        sound = sound and (expires_at is None or isfinite(expires_at))
        message.client_id.encode()
        property_block(message.properties, Place.PUBLISH)
        check_topic_name(message.topic_name)
    except (AttributeError, TypeError, ValueError, KeyError, OverflowError) as error:
        raise rubbish(method, value, "Message") from error
    if not sound:
        raise rubbish(method, value, "Message")
    message.changed()
    return message


def fields_of(message: Message) -> tuple[Any, ...]:
    """What `is_unchanged` compares."""
    return (
        message.topic_name,
        message.payload,
        message.qos,
        message.retain,
        message.client_id,
        message.expires_at,
    )


def is_unchanged(message: Message, before: tuple[Any, ...]) -> bool:
    """Whether a sound *message* of which *before* was said is so still: nobody changed it in place."""
    topic_name, payload, qos, retain, client_id, expires_at = before
    return (
        message.topic_name is topic_name
        and message.payload is payload
        and message.qos is qos
        and message.retain is retain
        and message.client_id is client_id
        and message.expires_at is expires_at
        and (not message.properties if message.block is None else _is_current(message))
    )


def _is_current(message: Message) -> bool:
    """Whether its block is still what its properties are on the wire."""
    return message.block is not None and message.properties == message.block.travels


def settled(message: Message) -> Message:
    """*message*, ready for the wire, whatever hooks did to its properties."""
    if message.block is not None and not _is_current(message):
        message.block = None
    return message


def sound_step(method: Method, step: AuthStep) -> AuthStep:
    said: dict[str, Any] = {"authentication_data": step.data, "reason_string": step.reason_string}
    said["user_property"] = list(step.user_properties) or None
    try:
        property_block({name: value for name, value in said.items() if value is not None}, Place.AUTH)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise rubbish(method, step, "AuthStep") from error
    return step


def sound_hold(method: Method, hold: Any) -> Hold:
    if asyncio.iscoroutine(hold):
        hold.close()
    parts = parts_of(expect(Hold, method, hold))
    if not all(part is None or asyncio.isfuture(part) for part in parts):
        raise rubbish(method, hold, "Hold")
    return hold  # type: ignore[no-any-return]


def parts_of(hold: Hold) -> tuple[asyncio.Future[None] | None, asyncio.Future[None] | None]:
    return hold.acknowledgement, hold.reading


def both(one: asyncio.Future[None] | None, other: asyncio.Future[None] | None) -> asyncio.Future[None] | None:
    if one is None or other is None:
        return one or other
    both: Any = asyncio.gather(one, other)
    return both  # type: ignore[no-any-return]


def failure_of(until: Future) -> MqttError | None:
    """Why *until*, which is done, has failed; None: it has not."""
    failure = None if until.cancelled() else until.exception()
    if failure is None and not until.cancelled():
        return None
    return failure if isinstance(failure, MqttError) else ImplementationSpecificError(f"not done: {failure}")


class Verdicts:
    """What hooks have allowed, by connection. A refusal is asked for again each time.

    The fast lane looks into the sets itself: they have the Topic Names as they stand in packets, with their
    two bytes of length. What is forgotten is taken out of the sets, so that whoever holds one sees it.
    """

    __slots__ = ("_allowed", "_count", "_forgotten", "_methods")

    def __init__(self, methods: tuple[Method, ...]) -> None:
        """*methods* are the `may_publish` of all hooks that have one."""
        self._methods = methods
        self._allowed: dict[ClientInfo, set[bytes]] = {}  # none of them is empty
        self._count = 0  # of names
        self._forgotten = 0  # how often something was

    def __len__(self) -> int:
        """How many Topic Names are remembered."""
        return self._count

    def of(self, client: ClientInfo) -> set[bytes]:
        """Where *client* may publish without asking anybody."""
        return self._allowed.get(client, NONE)

    def check(self, client: ClientInfo, topic_name: str) -> None:
        """Raises MqttError unless *client* may publish to *topic_name*: asked of the hooks the first time."""
        topic = ENCODED_TOPICS[topic_name]
        if topic in self._allowed.get(client, NONE):
            return
        before = self._forgotten
        self.ask(client, topic_name)
        # What was forgotten meanwhile may be what the first hook has said.
        if before == self._forgotten and len(topic) <= LONGEST + 2:
            self._remember(client, topic)

    def ask(self, client: ClientInfo, topic_name: str) -> None:
        """The same, asked of all hooks whatever was said before, and not remembered."""
        for method in self._methods:
            try:
                found = method.call(client, topic_name)
                if inspect.iscoroutine(found):
                    found.close()
                    raise TypeError(f"{method.event} is asked by a plain call, and waits for nothing")
            except MqttError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # nobody cancels a plain call
                raise refusal_of(method) from error
            if found is False:
                raise NotAuthorized(f"{client.client_id} may not publish to {topic_name}")
            if found is not True:
                raise rubbish(method, found, "bool")

    def _remember(self, client: ClientInfo, topic: bytes) -> None:
        if self._count >= MOST:
            self.forget_all()
        topics = self._allowed.get(client)
        if topics is None:
            topics = self._allowed[client] = set()
        self._count -= len(topics)
        topics.add(topic)
        self._count += len(topics)

    def forget(self, client: ClientInfo) -> None:
        """*client* is gone, or what it may do has changed."""
        self._forgotten += 1
        topics = self._allowed.pop(client, NONE)
        self._count -= len(topics)
        if topics:
            topics.clear()

    def forget_all(self) -> None:
        """What anybody may do has changed, or too much is remembered."""
        self._forgotten += 1
        for topics in self._allowed.values():
            topics.clear()
        self._allowed.clear()
        self._count = 0
