"""`Raw`: a synchronous client that sends any bytes, and lets no breach by the server pass.

Every packet that arrives goes through `wire.parse` and `Inspector`. Three groups of methods:

    send                                           bytes, as they are
    expect, expect_close, expect_nothing, recv,    what comes over the wire, in exact order
    expect_messages, drain, fence
    connect, subscribe, unsubscribe, publish,      one exchange, its answer checked; packets that come
    ack, ping, disconnect                          in between wait in `inbox` for the next expect
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tests.conformance import wire
from tests.conformance.transports import Tcp, WebSocket
from tests.conformance.wire import Packet, PropertySpec, Will

TIMEOUT = 10.0  # seconds that a packet may take: much, for the machine may be busy
CLOSE_WITHIN = 1.0  # seconds that a close may take
ACCEPTED = (0x00, 0x10)  # Reason Codes of a PUBLISH that was taken
UNSET: Any = object()


class Inspector:
    """Rules that hold across the packets of one connection, both directions seen."""

    def __init__(self) -> None:
        self._sent = b""
        self._readable = True  # False once something was sent that is no packet
        self.asked: dict[str, Any] | None = None  # CONNECT properties, once CONNECT was sent
        self.connack: Packet | None = None
        self.last: Packet | None = None
        self.aliases: dict[int, str] = {}
        self.in_use: dict[int, int] = {}  # packet_id -> QoS of a PUBLISH that is not yet acknowledged
        self.releasing: set[int] = set()

    # ---- what the client sent, read leniently: it may be broken on purpose

    def sent(self, data: bytes) -> None:
        self._sent += data
        while self._readable:
            try:
                found = wire.split(self._sent)
            except AssertionError:
                found = None
                self._readable = False
            if found is None:
                return
            raw, self._sent = found
            try:
                self._note(raw)
            except (AssertionError, IndexError, KeyError):
                continue

    def _note(self, raw: bytes) -> None:
        kind, cursor = raw[0] >> 4, wire._Cursor(raw[1:], "sent")
        cursor.varint()
        body = cursor.take(cursor.left())
        if kind == wire.CONNECT and self.asked is None:
            self.asked = {}
            self.asked = connect_properties(raw)
        if kind not in (wire.PUBACK, wire.PUBREC, wire.PUBCOMP):
            return
        packet_id, failed = int.from_bytes(body[:2], "big"), len(body) > 2 and body[2] >= 0x80
        if kind == wire.PUBCOMP:
            self.releasing.discard(packet_id)
        if kind != wire.PUBREC or failed:
            self.in_use.pop(packet_id, None)

    # ---- what the server sent

    def received(self, packet: Packet) -> None:
        asked = self.asked or {}
        before = (wire.CONNACK, wire.AUTH)
        assert self.connack is not None or packet.type in before, f"{packet} came before CONNACK"
        assert self.last is None or self.last.type != wire.DISCONNECT, f"{packet} came after {self.last}"
        self.last = packet
        limit = asked.get("maximum_packet_size", len(packet.raw))
        assert len(packet.raw) <= limit, f"{packet} has {len(packet.raw)} bytes, the client takes {limit}"
        if asked.get("request_problem_information") == 0:
            extra = {"reason_string", "user_property"} & set(packet.properties)
            free = packet.type in (wire.PUBLISH, wire.CONNACK, wire.DISCONNECT)
            assert free or not extra, f"{packet} came though Request Problem Information is 0"
        check = {wire.CONNACK: self._connack, wire.PUBLISH: self._publish, wire.PUBREL: self._pubrel}
        check.get(packet.type, lambda packet, asked: None)(packet, asked)
        if packet.type == wire.AUTH:
            self._method(packet, asked)

    def _connack(self, packet: Packet, asked: dict[str, Any]) -> None:
        assert self.connack is None, f"a second CONNACK: {packet}"
        self.connack = packet
        self._method(packet, asked)
        if not asked.get("request_response_information"):
            assert "response_information" not in packet.properties, f"{packet}: nobody asked for it"

    def _method(self, packet: Packet, asked: dict[str, Any]) -> None:
        method = packet.properties.get("authentication_method")
        assert method is None or method == asked.get("authentication_method"), f"{packet}: another method"
        accepted = packet.type == wire.AUTH or packet.reason_code == 0
        assert not accepted or method == asked.get("authentication_method"), f"{packet}: no method"

    def _publish(self, packet: Packet, asked: dict[str, Any]) -> None:
        packet.sent_topic_name = packet.topic_name
        alias = packet.properties.get("topic_alias")
        if alias is not None:
            limit = asked.get("topic_alias_maximum", 0)
            assert alias <= limit, f"{packet}: the client's Topic Alias Maximum is {limit}"
            if packet.topic_name:
                self.aliases[alias] = packet.topic_name
            assert alias in self.aliases, f"{packet}: the alias has no topic yet"
            packet.topic_name = self.aliases[alias]
        if not packet.qos:
            return
        assert packet.packet_id is not None
        assert packet.packet_id not in self.in_use, f"{packet}: the identifier is in use, or this is a resend"
        assert packet.packet_id not in self.releasing, f"{packet}: the identifier waits for PUBCOMP"
        self.in_use[packet.packet_id] = packet.qos
        limit = asked.get("receive_maximum", 65535)
        assert len(self.in_use) <= limit, (
            f"{packet}: {len(self.in_use)} in flight, Receive Maximum is {limit}"
        )

    def _pubrel(self, packet: Packet, asked: dict[str, Any]) -> None:
        if packet.reason_code == 0 and packet.packet_id is not None:
            self.releasing.add(packet.packet_id)


def connect_properties(raw: bytes) -> dict[str, Any]:
    """The CONNECT properties of *raw*, {} below 5.0."""
    cursor = wire._Cursor(raw[1:], "CONNECT")
    cursor.varint()
    cursor.binary()
    level = cursor.byte()
    cursor.take(3)
    return wire.read_properties(cursor, wire.CONNECT) if level == 5 else {}


class Raw:
    """One test client; see the module docstring. Made by `Server.client`, closed by the harness."""

    def __init__(self, transport: Tcp, version: int = 5, on_gone: Callable[[Raw], None] | None = None,
                 settle: Callable[[], None] | None = None) -> None:  # fmt: skip
        self.transport, self.version = transport, version
        self.port = transport.local
        self.client_id = ""
        self.connack: Packet | None = None
        self.auto_ack = False  # acknowledge every PUBLISH as it is read; its PUBREL is not shown
        self.inbox: deque[Packet] = deque()
        self.inspector = Inspector()
        self.closed = False  # this side closed
        self._on_gone, self._settle = on_gone, settle
        self._buffer = b""
        self._eof = False
        self._packet_id = 0
        self._hidden: set[int] = set()  # QoS 2 identifiers that auto_ack carries through

    @property
    def accepted(self) -> bool:
        """CONNACK 0x00 was read, by whichever method."""
        connack = self.inspector.connack
        return connack is not None and connack.reason_code == 0

    # ------------------------------------------------------------------ bytes

    def send(self, *chunks: bytes) -> None:
        """All *chunks* as one segment (as far as the transport allows)."""
        data = b"".join(chunks)
        self.inspector.sent(data)
        self.transport.send(data)

    def _pump(self, deadline: float) -> Packet | None:
        """The next packet from the socket, None at its end; TimeoutError at *deadline*."""
        while (packet := self._from_buffer()) is None:
            if self._eof:
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            chunk = self.transport.recv(left)
            self._eof = not chunk
            self._buffer += chunk
            assert chunk or not self._buffer, (
                f"the stream ended inside a packet: {self._buffer[:60].hex(' ')}"
            )
        return packet

    def _from_buffer(self) -> Packet | None:
        while (found := wire.split(self._buffer)) is not None:
            raw, self._buffer = found
            packet = wire.parse(raw, self.version)
            self.inspector.received(packet)
            if not (self.auto_ack and self._acknowledge(packet)):
                return packet
        return None

    def _acknowledge(self, packet: Packet) -> bool:
        """Answers for `auto_ack`; True if the packet is of no interest to the test."""
        if packet.type == wire.PUBLISH and packet.qos:
            self.send(wire.ack(0x40 if packet.qos == 1 else 0x50, packet.packet_id or 0))
            if packet.qos == 2:
                self._hidden.add(packet.packet_id or 0)
        elif packet.type == wire.PUBREL and packet.packet_id in self._hidden:
            self._hidden.discard(packet.packet_id)
            self.send(wire.pubcomp(packet.packet_id))
            return True
        return False

    def next_id(self) -> int:
        """A packet identifier that the shortcuts have not used on this connection."""
        self._packet_id = self._packet_id % 65535 + 1
        return self._packet_id

    # ------------------------------------------------------------------ what comes over the wire

    def recv(self, timeout: float = TIMEOUT) -> Packet:
        """The next packet; AssertionError if the server closed or is silent."""
        if self.inbox:
            return self.inbox.popleft()
        try:
            packet = self._pump(time.monotonic() + timeout)
        except TimeoutError:
            raise AssertionError(f"nothing came within {timeout} s; last was {self.inspector.last}") from None
        assert packet is not None, f"the server closed; last was {self.inspector.last}"
        return packet

    def expect(self, kind: str, *, timeout: float = TIMEOUT, **fields: Any) -> Packet:
        """The very next packet has this type and these fields.

        A field is an attribute of `wire.Packet` or the name of a property (None: it is absent).
        A set, tuple or range names several allowed values; a str payload is encoded.
        """
        packet = self.recv(timeout)
        assert packet.name == kind, f"expected {kind} {fields}, got {packet}"
        for name, wanted in fields.items():
            check_field(packet, name, wanted)
        return packet

    def expect_close(self, *codes: int | None, timeout: float = CLOSE_WITHIN, skip: Iterable[str] = (),
                     **fields: Any) -> Packet | None:  # fmt: skip
        """The server closes within *timeout*, and says no more than it should before.

        5.0: the one packet before the end is DISCONNECT (CONNACK if none was accepted) with one of
        *codes* and *fields*; None among them allows silence, no codes at all demand it.
        3.x: CONNACK with one of *codes* before acceptance; codes are void after it, and nothing comes.
        *skip* names packet types that may come before. Returns when the server has done what goes with the
        end at once: a will without a delay is published.
        """
        deadline, found = time.monotonic() + timeout, self._until_end(timeout)
        assert time.monotonic() <= deadline + 0.5, f"the close took longer than {timeout} s"
        if self._settle is not None:
            self._settle()
        found = [packet for packet in found if packet.name not in skip]
        if self.version < 5 and self._accepted_before(found):
            codes = ()
        if not found:
            assert not codes or None in codes, f"closed without a packet, expected {_hex(codes)}"
            return None
        kind = "DISCONNECT" if self._accepted_before(found) else "CONNACK"
        assert len(found) == 1, f"more than one packet before the close: {found}"
        assert codes, f"expected a silent close, got {found[0]}"
        assert found[0].name == kind, f"expected {kind} {_hex(codes)}, got {found[0]}"
        assert found[0].reason_code in codes, f"expected {kind} {_hex(codes)}, got {found[0]}"
        for name, wanted in fields.items():
            check_field(found[0], name, wanted)
        return found[0]

    def _accepted_before(self, found: list[Packet]) -> bool:
        return self.accepted and not any(packet.type == wire.CONNACK for packet in found)

    def _until_end(self, timeout: float) -> list[Packet]:
        found, deadline = list(self.inbox), time.monotonic() + timeout
        self.inbox.clear()
        try:
            while (packet := self._pump(deadline)) is not None:
                found.append(packet)
        except TimeoutError:
            raise AssertionError(f"the server did not close within {timeout} s; it sent {found}") from None
        if isinstance(self.transport, WebSocket):
            assert self.transport.close_code in (None, 1000), f"WebSocket close {self.transport.close_code}"
        return found

    def expect_nothing(self) -> None:
        """No packet came and none comes before the answer to a PINGREQ (which re-arms Keep Alive)."""
        assert not self.inbox, f"expected nothing, got {list(self.inbox)}"
        self.send(wire.pingreq())
        self.expect("PINGRESP")

    def drain(self) -> list[Packet]:
        """Every packet that came before the answer to a PINGREQ sent now."""
        self.fence()
        found = list(self.inbox)
        self.inbox.clear()
        return found

    def expect_messages(
        self, *payloads: bytes | str | tuple[str, bytes | str], **fields: Any
    ) -> list[Packet]:
        """`drain` gives exactly these PUBLISH packets in this order: payloads or (topic, payload)."""
        found = self.drain()
        assert all(packet.type == wire.PUBLISH for packet in found), f"not all are PUBLISH: {found}"
        pairs = any(isinstance(one, tuple) for one in payloads)
        got = [(packet.topic_name, packet.payload) if pairs else packet.payload for packet in found]
        wanted = [(one[0], _bytes(one[1])) if isinstance(one, tuple) else _bytes(one) for one in payloads]
        assert got == wanted, f"expected {wanted}, got {got}"
        for packet in found:
            for name, value in fields.items():
                check_field(packet, name, value)
        return found

    def fence(self) -> None:
        """The server has worked off what was sent so far; what it sent meanwhile waits in `inbox`."""
        self.send(wire.pingreq())
        self._await("PINGRESP")

    def _await(self, kind: str, packet_id: int | None = None) -> Packet:
        """The next packet of *kind* (and identifier) from the socket; others go to `inbox`."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                packet = self._pump(deadline)
            except TimeoutError:
                raise AssertionError(f"no {kind} within {TIMEOUT} s; waiting: {list(self.inbox)}") from None
            assert packet is not None, f"the server closed instead of {kind}; last was {self.inspector.last}"
            if packet.name == kind and packet_id in (None, packet.packet_id):
                return packet
            self.inbox.append(packet)

    # ------------------------------------------------------------------ exchanges

    def connect(self, client_id: str = "client", *, version: int | None = None, clean_start: bool = True,
                keep_alive: int = 0, will: Will | None = None, user_name: str | None = None,
                password: bytes | None = None, session_present: bool | None = None, reason: int = 0,
                properties: PropertySpec = (), **named: Any) -> Packet:  # fmt: skip
        """CONNECT and its CONNACK with *reason* (and *session_present*); properties by name or raw."""
        self.version = version or self.version
        self.client_id = client_id
        self.send(
            wire.connect(
                client_id, version=self.version, clean_start=clean_start, keep_alive=keep_alive, will=will,
                user_name=user_name, password=password, properties=named or properties,
            )
        )  # fmt: skip
        self.connack = self.expect("CONNACK", reason_code=reason)
        if session_present is not None:
            assert self.connack.session_present == session_present, f"Session Present: {self.connack}"
        self.client_id = self.connack.properties.get("assigned_client_identifier", client_id)
        return self.connack

    def connect5(self, client_id: str = "client", **kwargs: Any) -> Packet:
        return self.connect(client_id, version=5, **kwargs)

    def connect311(self, client_id: str = "client", **kwargs: Any) -> Packet:
        return self.connect(client_id, version=4, **kwargs)

    def subscribe(self, *filters: wire.Filter, qos: int = 0, no_local: bool = False,
                  retain_as_published: bool = False, retain_handling: int = 0, packet_id: int | None = None,
                  granted: list[int] | None = None, properties: PropertySpec = (),
                  **named: Any) -> Packet:  # fmt: skip
        """SUBSCRIBE and its SUBACK with the codes *granted* (default: what was asked for).

        A filter is a string that takes the options of the call, or (string, options byte).
        """
        byte = wire.options(qos, no_local, retain_as_published, retain_handling)
        asked = [one if isinstance(one, tuple) else (one, byte) for one in filters]
        packet_id = packet_id or self.next_id()
        self.send(wire.subscribe(packet_id, *asked, properties=named or properties, version=self.version))
        suback = self._await("SUBACK", packet_id)
        wanted = [options & 3 for _, options in asked] if granted is None else granted
        assert suback.reason_codes == wanted, f"SUBACK {_hex(suback.reason_codes)}, expected {_hex(wanted)}"
        return suback

    def unsubscribe(self, *filters: str, packet_id: int | None = None, reasons: list[int] | None = None,
                    properties: PropertySpec = (), **named: Any) -> Packet:  # fmt: skip
        """UNSUBSCRIBE and its UNSUBACK with *reasons* (default: 0x00 for each)."""
        packet_id = packet_id or self.next_id()
        self.send(wire.unsubscribe(packet_id, *filters, properties=named or properties, version=self.version))
        unsuback = self._await("UNSUBACK", packet_id)
        if self.version == 5:
            wanted = [0] * len(filters) if reasons is None else reasons
            assert unsuback.reason_codes == wanted, f"{unsuback}, expected {_hex(wanted)}"
        return unsuback

    def publish(self, topic_name: str, payload: bytes | str = b"", qos: int = 0, *, retain: bool = False,
                dup: bool = False, packet_id: int | None = None, reason: int | Iterable[int] = ACCEPTED,
                properties: PropertySpec = (), **named: Any) -> Packet | None:  # fmt: skip
        """PUBLISH and its whole acknowledgement flow; returns PUBACK or PUBREC, None at QoS 0.

        QoS 0 ends with a fence, so that in every case the message is routed when this returns.
        *reason* is the code (or codes) of PUBACK or PUBREC; from 0x80 on the flow ends there.
        """
        packet_id = (packet_id or self.next_id()) if qos else None
        self.send(
            wire.publish(
                topic_name, _bytes(payload), qos=qos, packet_id=packet_id, retain=retain, dup=dup,
                properties=named or properties, version=self.version,
            )
        )  # fmt: skip
        if not qos:
            self.fence()
            return None
        answer = self._await("PUBACK" if qos == 1 else "PUBREC", packet_id)
        codes = (reason,) if isinstance(reason, int) else tuple(reason)
        assert self.version < 5 or answer.reason_code in codes, f"{answer}, expected {_hex(codes)}"
        if qos == 2 and answer.reason_code is not None and answer.reason_code < 0x80:
            self.release(packet_id)
        return answer

    def release(self, packet_id: int | None, reason: int = 0) -> Packet:
        """PUBREL and its PUBCOMP with *reason*: the second half of a QoS 2 PUBLISH."""
        self.send(wire.pubrel(packet_id or 0, version=self.version))
        pubcomp = self._await("PUBCOMP", packet_id)
        assert pubcomp.reason_code == reason, f"{pubcomp}, expected {reason:#04x}"
        return pubcomp

    def ack(self, packet: Packet, reason: int | None = None) -> None:
        """Acknowledges a PUBLISH (QoS 2: the whole flow, PUBREL expected) or a PUBREL."""
        assert packet.packet_id is not None, f"nothing to acknowledge: {packet}"
        if packet.type == wire.PUBREL:
            self.send(wire.pubcomp(packet.packet_id, reason, version=self.version))
            return
        first = 0x40 if packet.qos == 1 else 0x50
        self.send(wire.ack(first, packet.packet_id, reason, version=self.version))
        if packet.qos == 2 and (reason or 0) < 0x80:
            self._await("PUBREL", packet.packet_id)
            self.send(wire.pubcomp(packet.packet_id, version=self.version))

    def ping(self) -> None:
        """PINGREQ, and PINGRESP as the very next packet."""
        self.expect_nothing()

    # ------------------------------------------------------------------ ways to leave

    def disconnect(self, reason: int | None = None, properties: PropertySpec | None = None) -> None:
        """DISCONNECT, the server's silent close, and the end of the session's connection in the broker."""
        self.send(wire.disconnect(reason, properties))
        self.expect_close()
        self._leave(self.transport.close)

    def drop(self, wait: bool = True) -> None:
        """Closes the socket without DISCONNECT (FIN); *wait* until the broker has dealt with it."""
        self._leave(self.transport.close, wait)

    def reset(self, wait: bool = True) -> None:
        """The same with RST."""
        self._leave(self.transport.reset, wait)

    def _leave(self, way: Callable[[], None], wait: bool = True) -> None:
        if self.closed:
            return
        self.closed = True
        way()
        if wait and self._on_gone is not None:
            self._on_gone(self)

    def close(self) -> None:
        """At the end of the test, without waiting."""
        self._leave(self.transport.close, wait=False)


def check_field(packet: Packet, name: str, wanted: Any) -> None:
    """One field or property of *packet*; several allowed values as a set, tuple, frozenset or range."""
    known = name in vars(packet) and name != "properties"
    assert known or name in wire.IDENTIFIERS or name == "properties", f"{name} is no field and no property"
    got = getattr(packet, name) if known or name == "properties" else packet.properties.get(name)
    wanted = wanted.encode() if name == "payload" and isinstance(wanted, str) else wanted
    several = isinstance(wanted, (set, frozenset, range, tuple))
    assert got in wanted if several else got == wanted, f"{name} is {got!r}, expected {wanted!r}: {packet}"


def _bytes(payload: bytes | str) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload


def _hex(codes: Iterable[int | None]) -> str:
    return "[" + " ".join("silence" if code is None else f"0x{code:02X}" for code in codes) + "]"
