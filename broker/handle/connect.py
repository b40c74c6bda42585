"""CONNECT, and session takeover [MQTT5 3.1.4]."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from broker.client import Client, Phase
from broker.config import Limits
from broker.core import Core
from broker.errors import (
    ClientIdentifierNotValid,
    ImplementationSpecificError,
    MqttError,
    NotAuthorized,
    PayloadFormatInvalid,
    ProtocolError,
    QosNotSupported,
    QuotaExceeded,
    ReasonCode,
    RetainNotSupported,
    SessionTakenOver,
    UnsupportedProtocolVersion,
)
from broker.handle.auth import begin_authentication, check_user_name
from broker.handle.disconnect import count_user, end_session, finish, leave, publish_will
from broker.handle.publish import check_publish_topic, check_user_properties, is_utf8
from broker.hook.identity import Asked, asked
from broker.packet.enums import Version
from broker.packet.packets import Connack, Connect, Properties, Will
from broker.packet.properties import Place, property_block
from broker.packet.reader import MAXIMUM_PACKET_SIZE
from broker.refusal import sendable
from broker.session.alias import OutboundAliases
from broker.session.record import record_session
from broker.session.session import Session
from broker.session.terms import PendingWill, will_of
from broker.topic.name import check_topic_name

log = logging.getLogger("broker.client")

ASSIGNED = "assigned_client_identifier"


def handle_connect(core: Core, client: Client, packet: Connect) -> Awaitable[None] | None:
    """CONNECT: check, authenticate, take over, answer. A MqttError on the way refuses [MQTT5 3.1.4].

    An awaitable only where something has to wait: a hook, or the turn or the end of somebody before.
    """
    if client.phase is not Phase.NEW:
        raise ProtocolError("second CONNECT")
    if not core.connect_rate.allow(core.clock()):
        raise MqttError("too many CONNECT packets a second", ReasonCode.CONNECTION_RATE_EXCEEDED)
    _check_version(core, packet)
    client.version = packet.version
    client.asked = _asked(core, packet, packet.keep_alive)
    _check_connect(core, packet)
    _introduce(core, client, packet)
    if "authentication_method" in packet.properties:
        return begin_authentication(core, client, packet, accept)
    return accept(core, client, packet, {})


def _check_version(core: Core, packet: Connect) -> None:
    protocol, version = core.config.protocol, packet.version
    if version is Version.MQTT_5:
        served = protocol.mqtt_5
    else:
        served = protocol.mqtt_3_1_1 if version is Version.MQTT_3_1_1 else protocol.mqtt_3_1
    if not served or (packet.bridge and not protocol.bridge_bit):
        raise UnsupportedProtocolVersion(f"{packet.version.name} is switched off", packet.version)


def _check_connect(core: Core, packet: Connect) -> None:
    limits = core.config.limits
    check_user_properties(core, packet.properties)
    if len(packet.client_id.encode()) > limits.maximum_client_id_bytes:
        raise ClientIdentifierNotValid(f"longer than {limits.maximum_client_id_bytes} bytes")
    if not packet.client_id and not _may_assign(core, packet):
        raise ClientIdentifierNotValid("a zero-length ClientID is not accepted here")
    if packet.will is not None:
        _check_will(core, packet.will)


def _may_assign(core: Core, packet: Connect) -> bool:
    if not core.config.limits.zero_length_client_id or packet.version is Version.MQTT_3_1:
        return False
    return packet.clean_start or packet.version is Version.MQTT_5


def _check_will(core: Core, will: Will) -> None:
    limits, protocol = core.config.limits, core.config.protocol
    check_topic_name(will.topic_name)
    check_publish_topic(core, will.topic_name)
    check_user_properties(core, will.properties)
    if will.qos > limits.maximum_qos:
        raise QosNotSupported(f"Will QoS {will.qos}")
    if will.retain and not limits.retain_available:
        raise RetainNotSupported("Will Retain")
    checks = protocol.validate_payload_format and will.properties.get("payload_format_indicator") == 1
    if checks and not is_utf8(will.payload):
        raise PayloadFormatInvalid("the will's payload is not UTF-8")


def _introduce(core: Core, client: Client, packet: Connect) -> None:
    if core.config.tls.user_name != "connect":  # then nothing else gives a name
        packet.user_name = certificate_name(client.peer.certificate or {}, core.config.tls.user_name)
    client.client_id = packet.client_id
    client.user_name = packet.user_name
    method = packet.properties.get("authentication_method")
    if core.hooks.look or method is not None:
        info = client.info
        info.version, info.clean_start = packet.version, packet.clean_start
        info.keep_alive = packet.keep_alive
        info.password = packet.password
        info.authentication_method = method
        info.session_expiry_interval = _expiry_asked(core, packet)


def certificate_name(certificate: dict[str, Any], source: str) -> str | None:
    """The Common Name of a verified certificate, or its first Subject Alternative Name; None without [B29].

    *certificate* is in the form of `SSLSocket.getpeercert()`.
    """
    if source == "san":
        values = (value for _, value in certificate.get("subjectAltName", ()))
        return next((value for value in values if isinstance(value, str)), None)
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[-1] if names else None


def accept(
    core: Core, client: Client, packet: Connect, announcements: dict[str, Any]
) -> Awaitable[None] | None:
    """The peer is who it says: authorize it and give it its session. May have to wait.

    *announcements* go into the CONNACK as they are: the last word of enhanced authentication.
    """
    hooks, asks = core.hooks, core.config.protocol.authorize_will == "connect" and packet.will is not None
    if hooks.authenticates or (asks and hooks.judges_publish):
        return _authorize(core, client, packet, announcements)
    check_user_name(client.user_name)
    _check_anonymous(core, client, packet)
    return _admit(core, client, packet, packet.client_id, announcements)


async def _authorize(core: Core, client: Client, packet: Connect, announcements: dict[str, Any]) -> None:
    """Ask the hooks, and go on."""
    asked_for = packet.client_id
    await core.hooks.on_connect(client.info, packet)
    check_user_name(client.user_name)
    _check_anonymous(core, client, packet)
    if packet.will is not None and core.config.protocol.authorize_will == "connect":
        await _authorize_will(core, client, packet)
    waits = _admit(core, client, packet, asked_for, announcements)
    if waits is not None:
        await waits


def _admit(
    core: Core, client: Client, packet: Connect, asked_for: str, announcements: dict[str, Any]
) -> Awaitable[None] | None:
    """Nobody has anything against it. *asked_for* is the ClientID of its CONNECT, which hooks may change."""
    _check_room(core, client, packet)
    if not packet.client_id:
        packet.client_id = core.sessions.new_client_id()
    if packet.client_id != asked_for:
        _check_given(packet.client_id)
        client.client_id = packet.client_id
        announcements[ASSIGNED] = packet.client_id
    will = None if packet.will is None else _will(core, packet)
    if not core.turns.is_free(packet.client_id) or _comes_after(core, packet):
        return _admit_in_turn(core, client, packet, will, announcements)
    changes = core.journal.changes
    _check_store(core, packet)
    session, present = _session_for(core, client, packet, core.sessions.get(packet.client_id))
    _start(core, client, packet, session, present, will, announcements, changes)
    return _begin_greeting(core, client, present, None) if core.hooks.greets else None


def _comes_after(core: Core, packet: Connect) -> bool:
    """Whether somebody has to be seen off before: a connection with this ClientID, a session or its will."""
    if packet.client_id in core.clients:
        return True
    session = core.sessions.get(packet.client_id)
    if session is None:
        return False
    return packet.clean_start or min(session.will_due, session.ends_at) <= core.clock()


async def _admit_in_turn(
    core: Core, client: Client, packet: Connect, will: PendingWill | None, announcements: dict[str, Any]
) -> None:
    async with core.turns.of(packet.client_id):
        changes = core.journal.changes
        _check_store(core, packet)
        before = await _take_over(core, client, packet)
        left = await _session_left(core, client, packet)
        _check_room(core, client, packet)  # again, after all that may wait
        session, present = _session_for(core, client, packet, left)
        _start(core, client, packet, session, present, will, announcements, changes)
    if core.hooks.greets:
        await _begin_greeting(core, client, present, before)


def _begin_greeting(
    core: Core, client: Client, present: bool, before: asyncio.Task[None] | None
) -> Awaitable[None]:
    """A takeover ends this connection, but not what the hooks are owed about it."""
    greeting = client.own().greeting = asyncio.create_task(_greet(core, client, present, before))
    return asyncio.shield(greeting)


async def _greet(core: Core, client: Client, present: bool, before: asyncio.Task[None] | None) -> None:
    """Tell the hooks; what they are still being told of the connection *before* comes first."""
    if before is not None:
        await before
    if present:
        await core.hooks.on_session_resumed(client.client_id)
    else:
        await core.hooks.on_session_created(client.client_id)
    await core.hooks.on_connected(client.info)


def _check_given(client_id: object) -> None:
    """A ClientID that a hook gave must be one that CONNACK can carry."""
    if not isinstance(client_id, str) or not client_id or not sendable({ASSIGNED: client_id}, Place.CONNACK):
        raise ImplementationSpecificError(f"a hook gave a ClientID that is none: {client_id!r}")


def _will(core: Core, packet: Connect) -> PendingWill | None:
    """The will of *packet*, which a hook may have changed; QuotaExceeded when there is no room for it."""
    try:
        will = will_of(packet)
        if will is not None:
            check_topic_name(will.message.topic_name)
            property_block(will.message.properties, Place.PUBLISH)
            property_block({"will_delay_interval": will.delay}, Place.WILL)
            payload: Any = will.message.payload
            if not isinstance(payload, bytes) or will.message.qos not in (0, 1, 2):
                raise ValueError("its payload is no bytes, or its QoS is none")
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise ImplementationSpecificError(f"a hook left no sound will: {error}") from error
    if will is not None and not core.budget.has(will.message.size):
        raise QuotaExceeded("the byte budget of the broker is spent")
    return will


async def _authorize_will(core: Core, client: Client, packet: Connect) -> None:
    """A will that could not be published now refuses the connection [B26]; it is asked about again later."""
    will = will_of(packet)
    assert will is not None
    await core.hooks.on_publish(client.info, will.message)


def _check_anonymous(core: Core, client: Client, packet: Connect) -> None:
    """Where nobody authenticates, the setting says who may come in without; a certificate is a name."""
    anonymous = core.config.protocol.anonymous
    if anonymous == "everywhere" or core.hooks.authenticates or "authentication_method" in packet.properties:
        return
    peer = client.peer
    if peer.certificate is None and (anonymous == "never" or not peer.local):
        raise NotAuthorized("anonymous clients are not accepted here (setting protocol.anonymous)")


def _check_room(core: Core, client: Client, packet: Connect) -> None:
    """One more client, unless it takes the place of one that is here."""
    capacity, user_name = core.config.capacity, client.user_name
    if packet.client_id in core.clients:
        return
    if len(core.clients) >= capacity.maximum_connections:
        raise QuotaExceeded(f"{len(core.clients)} clients are connected")
    most = capacity.maximum_connections_per_user
    if most and user_name is not None and core.users[user_name] >= most:
        raise QuotaExceeded(f"{most} clients of user {user_name!r} are connected")


async def _take_over(core: Core, client: Client, packet: Connect) -> asyncio.Task[None] | None:
    """End the connection that holds this ClientID, and see to its will before we go on [MQTT-3.1.4-3].

    Gives what hooks are still being told of it.
    """
    old = core.clients.get(packet.client_id)
    if old is None:
        return None
    same_user = old.user_name == client.user_name
    if not same_user and core.config.protocol.takeover == "same_user":
        raise NotAuthorized("the ClientID is in use by another user")
    _check_storm(core, client, old)
    address = client.peer.address
    log.info("session %r: %s takes over from %s", packet.client_id, address, old.peer.address)
    if old.session is not None:
        core.hooks.on_session(packet.client_id, "taken_over", len(old.session.queue))
    old.end(SessionTakenOver(f"taken over by {address}"))
    await leave(core, old)
    return old.extra.greeting


def _check_storm(core: Core, client: Client, old: Client) -> None:
    """Who fights over a ClientID is slowed: newcomers are refused, the connection that is there stays."""
    takeovers = core.takeovers
    if takeovers.allow(old.client_id, core.clock()):
        return
    if takeovers.first_refusal(old.client_id):
        log.warning(
            "session %r: %s and %s take it over from each other, %d times in %g s; newcomers have to wait",
            old.client_id,
            old.peer.address,
            client.peer.address,
            takeovers.most,
            takeovers.seconds,
        )
    raise MqttError("too many takeovers of this ClientID", ReasonCode.CONNECTION_RATE_EXCEEDED)


def _check_store(core: Core, packet: Connect) -> None:
    """While the store cannot be written: no session is made or wiped that should outlive its connection.

    What CONNACK says would not be true after a crash. Sessions that are stored can be resumed.
    """
    if core.journal.failure is None:
        return
    session = core.sessions.get(packet.client_id)
    stored = session is not None and session.recorder is not None and session.recorder.stored
    lasts = min(_expiry_asked(core, packet), core.config.limits.session_expiry_interval) > 0
    if (stored and packet.clean_start) or (lasts and not stored):
        core.journal.check()


async def _session_left(core: Core, client: Client, packet: Connect) -> Session | None:
    """The session that is there, unless it is over or to be so: then it is ended [MQTT5 3.1.2.4]."""
    session = core.sessions.get(packet.client_id)
    if session is None:
        return None
    if session.will_due <= core.clock():
        await publish_will(core, session)  # due before the next look at deadlines
    over = session.ends_at <= core.clock()
    if over or packet.clean_start:
        if not over:
            _check_owner(core, session, client)
        await finish(end_session(core, session, "expired" if over else "ended"))
        return None
    return session


def _session_for(
    core: Core, client: Client, packet: Connect, session: Session | None
) -> tuple[Session, bool]:
    """The session to go on with, and whether it was there before: *session*, or a new one."""
    sessions = core.sessions
    if session is not None:
        _check_owner(core, session, client)
        return session, True
    if len(sessions) >= core.config.capacity.maximum_sessions:
        raise QuotaExceeded(f"{len(sessions)} sessions exist")
    if core.budget.scarce:
        raise QuotaExceeded("the byte budget of the broker is nearly spent")
    session = sessions.create(packet.client_id)
    session.charge(sessions.cost(packet.client_id, packet.user_name))
    return session, False


def _check_owner(core: Core, session: Session, client: Client) -> None:
    if core.config.protocol.takeover == "same_user" and session.user_name != client.user_name:
        raise NotAuthorized("the session belongs to another user")


def _start(
    core: Core,
    client: Client,
    packet: Connect,
    session: Session,
    present: bool,
    will: PendingWill | None,
    announcements: dict[str, Any],
    changes: int,
) -> None:
    """From here on the session is ours: CONNACK, then what is unfinished, then what waits. Never waits.

    What has changed in the store since *changes* must be committed before CONNACK leaves; while it cannot be
    written, sessions are served from memory all the same.
    """
    limits = core.config.limits
    properties = packet.properties
    session.expiry_interval = min(_expiry_asked(core, packet), limits.session_expiry_interval)
    session.set_will(will)
    if core.hooks.look:
        session.info = None if will is None else client.info
        client.info.session_expiry_interval = session.expiry_interval
    session.user_name = client.user_name
    session.version = client.version
    record_session(session, core.journal)
    client.session = session
    keep_alive = _keep_alive(core, packet)
    if keep_alive != packet.keep_alive:
        client.info  # noqa: B018  made now, since it says what the client asked for
    else:
        keep_alive = client.asked.keep_alive
    client.asked = _asked(core, packet, keep_alive)  # again: a hook may have changed the packet
    _note_limits(core, client, properties)
    window = min(properties.get("receive_maximum", 65535), limits.outbound_receive_maximum)
    session.attach(client, window)
    core.clients[session.client_id] = client
    count_user(core, client, client.user_name)
    client.phase = Phase.CONNECTED
    client.accepted()
    if packet.version is Version.MQTT_5:
        announcements.update(_announce(core, client, packet, session))
    if core.journal.failure is None:
        client.cork(core.journal.promise(changes))
    client.send(Connack(present and packet.version is not Version.MQTT_3_1, 0, announcements))
    log_connected(client, present)
    if core.hooks.look:
        core.hooks.on_connack(client.info, 0, present)
        core.hooks.on_session(session.client_id, "resumed" if present else "created", len(session.queue))
    session.pump()


def log_connected(client: Client, present: bool) -> None:
    if log.isEnabledFor(logging.INFO):
        address, how = client.peer.address, "resumed" if present else "new session"
        log.info("connected %r from %s (%s, %s)", client.client_id, address, client.version.name, how)


def _note_limits(core: Core, client: Client, properties: Properties) -> None:
    """What the client can take [MQTT5 3.1.2.11]."""
    limits = core.config.limits
    allowed = min(properties.get("topic_alias_maximum", 0), limits.outbound_topic_alias_maximum)
    if allowed:
        client.own().outbound_aliases = OutboundAliases(allowed)


def _asked(core: Core, packet: Connect, keep_alive: int) -> Asked:
    properties = packet.properties
    return asked(
        packet.clean_start, keep_alive, _expiry_asked(core, packet), properties.get("maximum_packet_size"),
        bool(properties.get("request_problem_information", 1)), packet.bridge,
    )  # fmt: skip


def _expiry_asked(core: Core, packet: Connect) -> int:
    if packet.version is Version.MQTT_5:
        interval: int = packet.properties.get("session_expiry_interval", 0)
        return interval
    return 0 if packet.clean_start else core.config.limits.session_expiry_interval_3x


def _keep_alive(core: Core, packet: Connect) -> int:
    """Seconds in force: the client's, unless it is above what we allow [MQTT5 3.2.2.3.14]."""
    limits = core.config.limits
    most = limits.server_keep_alive
    told = packet.version is Version.MQTT_5 or limits.server_keep_alive_3x
    if most and told and not 0 < packet.keep_alive <= most:
        return most
    return packet.keep_alive


def announced(limits: Limits) -> dict[str, Any]:
    """What each CONNACK of 5.0 says of *limits*: what differs from the standard's default [MQTT5 3.2.2.3]."""
    found: dict[str, Any] = {}
    if limits.receive_maximum < 65535:
        found["receive_maximum"] = limits.receive_maximum
    if limits.maximum_qos < 2:
        found["maximum_qos"] = limits.maximum_qos
    if limits.maximum_packet_size < MAXIMUM_PACKET_SIZE:
        found["maximum_packet_size"] = limits.maximum_packet_size
    if limits.topic_alias_maximum:
        found["topic_alias_maximum"] = limits.topic_alias_maximum
    for feature in (
        "retain_available",
        "wildcard_subscription_available",
        "subscription_identifier_available",
        "shared_subscription_available",
    ):
        if not getattr(limits, feature):
            found[feature] = 0
    return found


def _announce(core: Core, client: Client, packet: Connect, session: Session) -> dict[str, Any]:
    """The CONNACK properties for *client*."""
    found = announced(core.config.limits)
    said: dict[str, Any] = {}  # by hooks and settings: may be more than a packet can carry
    if session.expiry_interval != client.asked.expiry_interval:
        found["session_expiry_interval"] = session.expiry_interval
    if client.asked.keep_alive != packet.keep_alive:
        found["server_keep_alive"] = client.asked.keep_alive
    template = core.config.protocol.response_information
    if template and packet.properties.get("request_response_information"):
        said["response_information"] = template.replace("{client_id}", client.client_id)
    asks = core.hooks.authenticates or "authentication_method" in packet.properties
    if asks and client.info.user_properties:
        said["user_property"] = list(client.info.user_properties)
    return found | sendable(said, Place.CONNACK)
