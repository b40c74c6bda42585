"""Enhanced authentication, before CONNACK and again later [MQTT5 4.12]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from broker.client import Client, Phase
from broker.core import Core
from broker.errors import (
    BadAuthenticationMethod,
    ImplementationSpecificError,
    NotAuthorized,
    ProtocolError,
    ReasonCode,
)
from broker.handle.disconnect import count_user
from broker.handle.subscribe import check_subscriptions_again
from broker.hook.base import AuthStep
from broker.packet.enums import Version
from broker.packet.packets import Auth, Connect, Properties
from broker.packet.wire import string_bytes

Accept = Callable[[Core, Client, Connect, dict[str, Any]], Awaitable[None] | None]


@dataclass(slots=True)
class Exchange:
    """An exchange on its way. *packet* began it, None when re-authenticating; *accept* comes after it.

    *claimed* is the User Name that the hook gives a connection which authenticates again: until the
    exchange has succeeded it goes on under the old one.
    """

    method: str
    packet: Connect | None = None
    accept: Accept | None = None
    claimed: str | None = None


async def begin_authentication(core: Core, client: Client, packet: Connect, accept: Accept) -> None:
    """CONNECT names an Authentication Method: go on by AUTH packets until the hook is content."""
    client.phase = Phase.AUTHENTICATING
    method = packet.properties["authentication_method"]
    client.own().exchange = Exchange(method, packet, accept)
    await _step(core, client, packet.properties)


async def handle_auth(core: Core, client: Client, packet: Auth) -> None:
    """AUTH from a client [MQTT5 3.15, 4.12]: the next step, or the wish to authenticate again."""
    method = client.info.authentication_method
    if client.version is not Version.MQTT_5 or method is None:
        raise ProtocolError("AUTH without an Authentication Method in CONNECT")
    before_connack = client.phase is Phase.AUTHENTICATING
    if packet.properties.get("authentication_method") != method:
        other = BadAuthenticationMethod if before_connack else ProtocolError
        raise other("AUTH with another Authentication Method than CONNECT")
    if client.extra.exchange is None:
        if packet.reason_code != ReasonCode.RE_AUTHENTICATE:
            raise ProtocolError("AUTH out of turn")
        client.own().exchange = Exchange(method)
    elif packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:
        raise ProtocolError(f"AUTH 0x{packet.reason_code:02X} during an exchange")
    await _step(core, client, packet.properties)


async def _step(core: Core, client: Client, properties: Properties) -> None:
    exchange = client.extra.exchange
    assert isinstance(exchange, Exchange)
    step = await _ask(core, client, exchange, properties.get("authentication_data"))
    answer = _answer(core, client, exchange.method, step)
    if not step.done:
        client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer))
        return
    client.own().exchange = None
    if exchange.packet is not None and exchange.accept is not None:
        waits = exchange.accept(core, client, exchange.packet, _for_connack(answer))
        if waits is not None:
            await waits
    else:
        await _re_authenticated(core, client, exchange.claimed)
        client.send(Auth(ReasonCode.SUCCESS, answer))


async def _ask(core: Core, client: Client, exchange: Exchange, data: bytes | None) -> AuthStep:
    """The hook's answer. A User Name that it sets while re-authenticating is kept apart for now."""
    info, user_name = client.info, client.info.user_name
    try:
        return await core.hooks.on_auth(info, exchange.method, data)
    finally:
        if exchange.packet is None and info.user_name != user_name:
            info.user_name, exchange.claimed = user_name, info.user_name


async def _re_authenticated(core: Core, client: Client, claimed: str | None) -> None:
    """The client has proved itself again, perhaps as another user: see to what that changes [B24]."""
    protocol = core.config.protocol
    if claimed is not None:
        if protocol.re_authentication == "same_user":
            raise NotAuthorized(f"re-authentication as another user, {claimed!r}")
        check_user_name(claimed)
        client.info.user_name = claimed
        count_user(core, client, claimed)
        if client.session is not None:
            client.session.user_name = claimed
            client.session.note()
    if protocol.re_check_subscriptions:
        await check_subscriptions_again(core, client)


def check_user_name(user_name: object) -> None:
    """One that a hook gave must be a string that CONNECT could have brought: it is kept with the session."""
    try:
        if user_name is not None:
            string_bytes(cast(str, user_name))
    except (AttributeError, ValueError) as error:
        raise ImplementationSpecificError(f"a hook gave a User Name that is none: {user_name!r}") from error


def _answer(core: Core, client: Client, method: str, step: AuthStep) -> dict[str, Any]:
    answer: dict[str, Any] = {"authentication_method": method}
    if step.data is not None:
        answer["authentication_data"] = step.data
    if client.asked.problem_information:
        if step.reason_string is not None and core.config.protocol.reason_strings:
            answer["reason_string"] = step.reason_string
        if step.user_properties:
            answer["user_property"] = list(step.user_properties)
    return answer


def _for_connack(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "reason_string"}
