"""A client whose every move is drawn from bytes, and who checks what the broker answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from broker import Broker
from broker.packet import packets as mqtt
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import NO_PROPERTIES, Packet, Properties
from broker.packet.reader import PacketReader
from tests.fuzz.pieces import Draw

V3, V4, V5 = Version
CLIENT_IDS = ("c0", "c1", "c2", "")
TOPICS = ("a", "b", "a/b", "a/b/c", "/", "ü/ñ", "$SYS/x", "no", "a/#", "")
FILTERS = (*TOPICS, "#", "+", "a/+", "+/b", "$SYS/#", "$share/g/a", "$share/g/#", "$share/h/a/#", "$share/g")
EXPIRIES = (0, 1, 10, 1000, 0xFFFFFFFF)
ACKS: tuple[Callable[[int, int], Packet], ...] = (mqtt.Puback, mqtt.Pubrec, mqtt.Pubrel, mqtt.Pubcomp)
REFUSED = (0, 0, 0, 0x10, 0x80, 0x92, 0x97)


class Rogue:
    """One connection after another. It reads and answers what it is sent, unless it chose not to."""

    _greeted: bool  # CONNACK has come
    _over: bool  # nothing may come any more
    _most: int | None  # bytes of a packet to us

    def __init__(self, broker: Broker) -> None:
        self.moved(broker)

    def moved(self, broker: Broker) -> None:
        """The broker has a new listener."""
        self._listener: Any = broker.listeners[0]
        self.connection: Any = None
        self._start(V5, 0)

    # ---- reading

    def read(self) -> None:
        """Check, and perhaps answer, all that has come."""
        while self.connection is not None and self.reads and self.connection._incoming.chunks:
            data = self.connection._incoming._unqueue()
            for packet in self._reader.feed(data) if self._known else ():
                self._check(packet)
                if self.answers:
                    self._answer(packet)
            assert self._reader.error is None, f"cannot be read: {self._reader.error!r}"

    def _check(self, packet: Packet) -> None:
        assert not self._over, f"{packet} after the end"
        first = isinstance(packet, mqtt.Connack | mqtt.Auth) and not self._greeted
        assert first or self._greeted, f"{packet} before CONNACK"
        assert self._greeted or isinstance(packet, mqtt.Auth | mqtt.Connack)
        assert not (isinstance(packet, mqtt.Connack) and self._greeted), "a second CONNACK"
        assert self._most is None or len(encode(packet, self.version)) <= self._most, "more than it can take"
        if isinstance(packet, mqtt.Connack):
            self._greeted, self._over = True, packet.reason_code != 0
        elif isinstance(packet, mqtt.Disconnect):
            self._over = True
        elif isinstance(packet, mqtt.Publish) and packet.qos:
            self._open.add(packet.packet_id)
            assert not self._tame or len(self._open) <= self._window, "more than Receive Maximum"

    def _answer(self, packet: Packet) -> None:
        if isinstance(packet, mqtt.Publish) and packet.qos:
            self.send(mqtt.Puback(packet.packet_id) if packet.qos == 1 else mqtt.Pubrec(packet.packet_id))
        elif isinstance(packet, mqtt.Pubrel):
            self.send(mqtt.Pubcomp(packet.packet_id))
        elif isinstance(packet, mqtt.Pubrec) and packet.reason_code < 0x80:
            self.send(mqtt.Pubrel(packet.packet_id))
        elif isinstance(packet, mqtt.Auth) and packet.reason_code == 0x18:
            self.send(mqtt.Auth(0x18, {**packet.properties, "authentication_data": b"done"}))

    # ---- writing

    def send(self, packet: Packet) -> None:
        """Send what can be sent; the rest is left to `spoil`."""
        with suppress(ValueError, KeyError):
            self.write(encode(packet, self.version))
            if isinstance(packet, mqtt.Puback | mqtt.Pubcomp) or (
                isinstance(packet, mqtt.Pubrec) and packet.reason_code >= 0x80
            ):
                self._open.discard(packet.packet_id)

    def write(self, data: bytes) -> None:
        if self.connection is not None:
            self.connection.write(data)

    def connect(self, draw: Draw) -> None:
        self.leave(draw.byte())
        self._begin(draw)
        packet = connect(draw, self.version)
        self._window = packet.properties.get("receive_maximum", 65535)
        self._most = packet.properties.get("maximum_packet_size")
        self.send(packet)

    def _begin(self, draw: Draw) -> None:
        manners = draw.byte()
        self.connection = self._listener.connect()
        self._start((V5, V4, V5, V3)[manners >> 2 & 3], manners)

    def _start(self, version: Version, manners: int) -> None:
        """What is known of a connection that has just begun."""
        self.reads, self.answers = manners & 1 == 0, manners & 2 == 0
        self._reader = PacketReader(from_client=False, strict=False)
        self.version = self._reader.version = version
        self._known = self._tame = True  # the broker speaks our version; we acknowledge only what we tell
        self._greeted = self._over = False
        self._window, self._open, self._most = 65535, set[int](), None

    def publish(self, draw: Draw) -> None:
        times, packet = draw.one_of((1, 1, 1, 20)), publish(draw, self.version)
        for _ in range(times):
            self.send(packet)

    def subscribe(self, draw: Draw) -> None:
        self.send(subscribe(draw, self.version))

    def acknowledge(self, draw: Draw) -> None:
        packet = acknowledgement(draw, self.version)
        # What was not read yet may have been sent: then there is room for one more than we know.
        self._tame = self._tame and packet.packet_id in self._open
        self.send(packet)

    def other(self, draw: Draw) -> None:
        self.send(other(draw, self.version))

    def raw(self, draw: Draw) -> None:
        """Bytes that nobody made into packets; a connection that begins so may speak any version."""
        if self.connection is None:
            self._begin(draw)
        self._lose_track()
        self.write(draw.rest())

    def spoil(self, draw: Draw) -> None:
        """A packet with a byte changed, left out or put in, cut off, or sent in two pieces."""
        how, at, value = draw.byte(), draw.uint16(), draw.byte()
        if self.connection is None:
            self._begin(draw)
        packet = draw.one_of(MAKERS)(draw, self.version)
        with suppress(ValueError, KeyError):
            data = bytearray(encode(packet, self.version))
            at %= len(data)
            if how % 5 == 4:
                self.write(bytes(data[:at]))
                self.write(bytes(data[at:]))
                return
            self._lose_track()
            (data.__setitem__, data.insert, lambda at, _: data.pop(at), _cut(data))[how % 5](at, value)
            self.write(bytes(data))

    def _lose_track(self) -> None:
        self._tame = False
        if not self._greeted:
            self._known = False

    def leave(self, how: int) -> None:
        if self.connection is not None:
            (self.connection.abort if how & 1 else self.connection.close)()
        self.connection = None

    def go(self, draw: Draw) -> None:
        self.leave(draw.byte())

    def behave(self, draw: Draw) -> None:
        """Stop or begin to read and to answer."""
        manners = draw.byte()
        self.reads, self.answers = manners & 1 == 0, manners & 2 == 0


def _cut(data: bytearray) -> Callable[[int, int], None]:
    def cut(at: int, _: int) -> None:
        del data[at:]

    return cut


# ---- packets


def _packet_id(draw: Draw) -> int:
    value = draw.byte()
    return value % 8 + 1 if value < 240 else draw.uint16() or 1


def _optional(draw: Draw, version: Version, *choices: tuple[str, Any]) -> Properties:
    """One byte says which of up to eight *choices* are there; none in 3.x."""
    bits = draw.byte()
    found = {name: value for bit, (name, value) in enumerate(choices) if bits >> bit & 1}
    return found if version is V5 and found else NO_PROPERTIES


def connect(draw: Draw, version: Version) -> mqtt.Connect:
    bits = draw.byte()
    packet = mqtt.Connect(draw.one_of(CLIENT_IDS), version, bits & 1 == 0, draw.one_of((0, 1, 60)))
    packet.user_name = ("user", "other")[bits >> 2 & 1] if bits & 2 else None
    packet.password = b"secret" if bits & 8 else None
    packet.bridge = version is not V5 and bits & 16 > 0
    packet.will = will(draw, version) if bits & 32 else None
    packet.properties = _optional(
        *(draw, version),
        ("session_expiry_interval", draw.one_of(EXPIRIES)),
        ("receive_maximum", draw.one_of((1, 2, 100))),
        ("maximum_packet_size", draw.one_of((5, 20, 100, 1000))),
        ("topic_alias_maximum", draw.byte()),
        ("request_problem_information", 0),
        ("authentication_method", "method"),
        ("user_property", [("k", "v")] * draw.byte()),
        ("request_response_information", 1),
    )
    return packet


def will(draw: Draw, version: Version) -> mqtt.Will:
    bits, topic_name = draw.byte(), draw.one_of(TOPICS)
    properties = _optional(
        *(draw, version),
        ("will_delay_interval", draw.one_of((0, 5, 500))),
        ("message_expiry_interval", draw.one_of(EXPIRIES)),
        ("payload_format_indicator", 1),
    )
    return mqtt.Will(topic_name, b"will\xff" if bits & 8 else b"", bits % 3, bits & 4 > 0, properties)


def publish(draw: Draw, version: Version) -> mqtt.Publish:
    bits, topic_name = draw.byte(), draw.one_of(TOPICS)
    properties = _optional(
        *(draw, version),
        ("message_expiry_interval", draw.one_of(EXPIRIES)),
        ("topic_alias", draw.one_of((1, 2, 64, 65))),
        ("payload_format_indicator", 1),
        ("response_topic", "a/b"),
        ("user_property", [("k", "v")] * draw.byte()),
        ("content_type", "text"),
    )
    qos = bits % 3
    payload = b"x" * draw.one_of((0, 1, 10, 100, 2000, 20_000))
    packet_id, dup = (_packet_id(draw), bits & 16 > 0) if qos else (0, False)
    return mqtt.Publish(topic_name, payload, qos, bits & 8 > 0, dup, packet_id, properties)


def subscribe(draw: Draw, version: Version) -> mqtt.Subscribe | mqtt.Unsubscribe:
    leaving, packet_id, requests = draw.chance(3), _packet_id(draw), list[mqtt.SubscribeRequest]()
    properties = _optional(draw, version, ("subscription_identifier", 1 + draw.byte()))
    while not requests or (draw.left and len(requests) < 8):
        topic_filter, bits = draw.one_of(FILTERS), draw.byte()
        five = version is V5
        handling = bits // 3 % 3 if five else 0
        requests.append(
            mqtt.SubscribeRequest(
                topic_filter, bits % 3, five and bits & 32 > 0, five and bits & 64 > 0, handling
            )
        )
    if leaving:
        return mqtt.Unsubscribe(packet_id, [request.topic_filter for request in requests])
    return mqtt.Subscribe(packet_id, requests, properties)


def acknowledgement(draw: Draw, version: Version) -> Packet:
    kind, packet_id, code = draw.byte() % len(ACKS), _packet_id(draw), draw.one_of(REFUSED)
    return ACKS[kind](packet_id, code if version is V5 else 0)


def other(draw: Draw, version: Version) -> Packet:
    """Leaving, re-authentication, pings, and what only a server may send."""
    expiry = draw.one_of(EXPIRIES)
    method = draw.one_of(("method", "other"))
    authentication: Properties = {"authentication_method": method, "authentication_data": draw.take(4)}
    choices: tuple[Packet, ...] = (
        *(mqtt.Pingreq(), mqtt.Disconnect(), mqtt.Disconnect(4), mqtt.Disconnect(0x81)),
        mqtt.Disconnect(0, {"session_expiry_interval": expiry}),
        *(mqtt.Auth(0x19, authentication), mqtt.Auth(0x18, authentication), mqtt.Connect("c0", version)),
        *(mqtt.Connack(), mqtt.Suback(1, [0]), mqtt.Unsuback(1, [0]), mqtt.Pingresp()),
    )
    return draw.one_of(choices)


MAKERS: tuple[Callable[[Draw, Version], Packet], ...] = (connect, publish, subscribe, acknowledgement, other)
