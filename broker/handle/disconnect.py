"""Every way to leave; wills; the end of sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any

from broker.client import Client
from broker.core import Core
from broker.errors import DisconnectedByClient, MqttError, ProtocolError, ReasonCode, StreamEnded
from broker.handle.publish import inspected, set_expiry
from broker.hook.base import ClientInfo, SessionState
from broker.packet.message import Message
from broker.packet.packets import Disconnect
from broker.session.session import Session
from broker.session.terms import NEVER, PendingWill, will_due

log = logging.getLogger("broker.client")


def handle_disconnect(core: Core, client: Client, packet: Disconnect) -> None:
    """DISCONNECT from a client [MQTT5 3.14.4]: only 0x00 deletes the will."""
    session = client.session
    interval = packet.properties.get("session_expiry_interval")
    if interval is not None and session is not None:
        if interval and not client.asked.expiry_interval:
            raise ProtocolError("DISCONNECT sets a Session Expiry Interval that CONNECT left at 0")
        session.expiry_interval = min(interval, core.config.limits.session_expiry_interval)
    text = "DISCONNECT by the client"
    if packet.properties:
        said = [packet.properties.get("reason_string"), packet.properties.get("user_property")]
        text = " ".join(str(part) for part in [text, *said] if part)
    client.ending = DisconnectedByClient(text, packet.reason_code)
    client.finish()


async def serve_client(core: Core, client: Client, data: bytes) -> bool:
    """Read *data* and what else there is: True. At the end of the connection also remove the last trace
    of it: False.
    """
    stays = False
    try:
        stays = await client.run(data)
    finally:
        if not stays:
            await finish(_see_off(core, client))
    return stays


def say_goodbye(core: Core, client: Client) -> Awaitable[None] | None:
    """*client*, which nobody serves, has sent DISCONNECT and nothing else: as `serve_client` does it."""
    handle_disconnect(core, client, Disconnect())
    client.end_reading()
    return _see_off(core, client)


async def finish(waits: Awaitable[None] | None) -> None:
    """What a call gave that may have to wait."""
    if waits is not None:
        await waits


def _see_off(core: Core, client: Client) -> Awaitable[None] | None:
    session = client.session
    if session is not None:
        takes_time = _takes_time(core, client, session) or core.hooks.hears_disconnects
        if takes_time or not core.turns.is_free(session.client_id):
            return _see_off_in_turn(core, client, session)
        _let_go(core, client, session)
    _log_end(core, client)
    return None


async def _see_off_in_turn(core: Core, client: Client, session: Session) -> None:
    if core.clients.get(session.client_id) is client and client.extra.leaving is None:
        async with core.turns.of(session.client_id):
            await leave(core, client)
    else:  # a takeover has begun it, in its turn
        await leave(core, client)
    if client.extra.greeting is not None:
        await client.extra.greeting
    ending = _log_end(core, client)
    if core.hooks.hears_disconnects:
        await core.hooks.on_disconnect(client.info, ending.reason, str(ending))


def _log_end(core: Core, client: Client) -> MqttError:
    """Say how the connection of *client* ended; gives that."""
    ending = client.ending or MqttError("connection ended", ReasonCode.NORMAL_DISCONNECTION)
    if log.isEnabledFor(logging.INFO):
        address, client_id = client.peer.address, client.client_id
        if client.session is None:
            log.info("refused %s %r: %s", address, client_id, ending)
        else:
            log.info("disconnected %r from %s: %s (0x%02X)", client_id, address, ending, ending.reason)
    if core.hooks.look:
        _sum_up(client, ending)
        if client.session is None and (client.info.ended_by != "network" or client.client_id):
            core.hooks.on_connack(client.info, ending.reason, False)
    return ending


def _takes_time(core: Core, client: Client, session: Session) -> bool:
    """Whether to leave *session* may wait: for hooks, or for a will, which they are asked about."""
    extra, hooks = client.extra, core.hooks
    told = extra.greeting or extra.leaving or hooks.hears_ends
    return bool(told or (session.will is not None and not client.normal))


def _sum_up(client: Client, ending: MqttError) -> None:
    """What hooks are told of a connection that is over."""
    info = client.info
    if isinstance(ending, DisconnectedByClient):
        info.ended_by = "client"
    else:
        info.ended_by = "network" if isinstance(ending, StreamEnded) else "server"


async def leave(core: Core, client: Client) -> None:
    """The connection of *client* does not hold its session any more: will, deadlines, shared messages.

    Done once for each connection, in the turn of its ClientID, whoever comes first: its own task, or the
    one that takes the session over. It goes on by itself if that one is cancelled meanwhile.
    """
    session, extra = client.session, client.extra
    if session is None:
        return
    leaving = extra.leaving
    if leaving is None:
        if not _takes_time(core, client, session):
            _let_go(core, client, session)
            return
        leaving = client.own().leaving = asyncio.create_task(_leave(core, client, session))
        core.leaving.add(leaving)
        leaving.add_done_callback(core.leaving.discard)
    await asyncio.shield(leaving)


async def _leave(core: Core, client: Client, session: Session) -> None:
    await finish(_let_go(core, client, session))


def _let_go(core: Core, client: Client, session: Session) -> Awaitable[None] | None:
    """A late teardown leaves alone what belongs to its successor. Waits only if it `_takes_time`."""
    if core.clients.get(session.client_id) is client:
        del core.clients[session.client_id]
    count_user(core, client, None)
    left_at = core.clock()
    if not session.detach(client):
        return None
    if client.extra.greeting is not None:
        return _settle_later(core, client, session, left_at, client.extra.greeting)
    return _settle(core, client, session, left_at)


async def _settle_later(
    core: Core, client: Client, session: Session, left_at: float, greeting: asyncio.Task[None]
) -> None:
    await asyncio.wait([greeting])  # hooks hear of a beginning before its end
    await finish(_settle(core, client, session, left_at))


def _settle(core: Core, client: Client, session: Session, left_at: float) -> Awaitable[None] | None:
    if client.normal:
        session.set_will(None)
    if session.expiry_interval == 0:
        return end_session(core, session)
    return _keep_session(core, session, left_at)


def count_user(core: Core, client: Client, user_name: str | None) -> None:
    """*client* counts as one of *user_name* from now on; None: of nobody."""
    before, client.counted_user = client.counted_user, user_name
    if user_name is not None:
        core.users[user_name] += 1
    if before is not None:
        core.users[before] -= 1
        if not core.users[before]:
            del core.users[before]


def _keep_session(core: Core, session: Session, left_at: float) -> Awaitable[None] | None:
    session.rest()
    session.ends_at = session.ends_after(left_at)
    if session.will is not None:
        session.will_due = will_due(session.will, left_at, session.ends_at)
    session.note()
    core.sessions.note_deadlines(session)
    sent = session.take_unacknowledged() if core.config.protocol.shared_unacknowledged == "move" else []
    core.router.hand_on(session, [*sent, *session.take_shared()])
    if session.will is not None and session.will_due <= core.clock():
        return publish_will(core, session)
    return None


def end_session(core: Core, session: Session, state: SessionState = "ended") -> Awaitable[None] | None:
    """Everything about *session* is over [MQTT5 4.1]: its will is published if it is still pending.

    In the turn of its ClientID. Shared messages that were not acknowledged go to other members, but for
    QoS 2 that was sent [4.8.2]. Waits if there is a will or a hook to be told.
    """
    if not core.sessions.delete(session):
        return None  # somebody else has seen to it
    core.hooks.on_session(session.client_id, state, len(session.queue))
    if not session.is_bare:
        core.tree.unsubscribe_all(session, tuple(session.subscriptions))
        core.router.hand_on(session, [*session.take_unacknowledged(), *session.take_shared()])
    session.clear()
    session.note()  # nothing but the will is left, while hooks are asked about it
    core.journal.promise(-1)  # a CONNACK may wait for it, after hooks that wait
    if session.will is None and not core.hooks.hears_ends:
        session.will_due = NEVER
        return None
    return _after_end(core, session)


async def _after_end(core: Core, session: Session) -> None:
    await publish_will(core, session)
    session.note()  # the last of it: a crash before this publishes the will once more, never not at all
    await core.hooks.on_session_ended(session.client_id)


async def publish_will(core: Core, session: Session) -> None:
    """Publish the pending will of *session*, at most once, if its owner may publish there [MQTT-3.1.2-8]."""
    info = session.info
    will, session.will_due = session.set_will(None), NEVER
    if will is None:
        return
    message = _fresh(core, will)
    try:
        if core.hooks.judges_publish and isinstance(info, ClientInfo):
            message = await inspected(core, info, message)
    except MqttError as refusal:
        log.warning("will of %r to %r refused: %s", session.client_id, message.topic_name, refusal)
        core.dropped(session.client_id, message, "will_refused")
    else:
        if core.hooks.hears_taken:
            core.hooks.note_taken(info if isinstance(info, ClientInfo) else None, message, "will")
        await core.router.publish_owned(message)
    session.note()


def _fresh(core: Core, will: PendingWill) -> Message:
    """The will's message; its expiry counts from now [B16]."""
    message = will.message.with_()
    set_expiry(message, core.config.limits.message_expiry_interval, core.clock())
    return message


async def after_restart(core: Core, connected: Iterable[Session]) -> None:
    """The sessions that were *connected* when the broker ended without a stop: their clients left just now.

    Those that end with their connection publish their will; delays are counted from now.
    """
    now = core.clock()
    for session in core.sessions:
        if session.will is not None:  # hooks are asked who publishes it
            session.info = ClientInfo(session.client_id, session.version, session.user_name)
    for session in connected:
        async with core.turns.of(session.client_id):
            if session.state is None:
                await finish(end_session(core, session))
            else:
                await finish(_keep_session(core, session, now))


def due_work(core: Core, now: float) -> list[Coroutine[Any, Any, None]]:
    """What is due by *now*: wills to publish and sessions to end. Each may wait for hooks of its own."""
    wills = [_publish_due_will(core, session, now) for session in core.sessions.due_wills(now)]
    ends = [_end_due_session(core, session, now) for session in core.sessions.clean_expired(now)]
    return [*wills, *ends]


async def _publish_due_will(core: Core, session: Session, now: float) -> None:
    async with core.turns.of(session.client_id):
        if session.will_due <= now:  # else its client came back just now
            await publish_will(core, session)


async def _end_due_session(core: Core, session: Session, now: float) -> None:
    async with core.turns.of(session.client_id):
        if session.ends_at <= now:
            await finish(end_session(core, session, "expired"))
