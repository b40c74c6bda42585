"""Line: one connection to a broker, MQTT over a blocking socket, with the codec of `broker.packet`."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from types import TracebackType
from typing import Any, TypeVar

from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
)
from broker.packet.reader import PacketReader
from spark.mqtt.options import Address

CHUNK = 1 << 16  # bytes that are read or written at a time
V5 = Version.MQTT_5
UNSUPPORTED = (0x01, 0x84)  # CONNACK: of a 3.1.1 broker, of a 5.0 one

P = TypeVar("P", bound=Packet)


class Gone(ConnectionError):
    """The broker is not there (any more), or says no: why, in a sentence without secrets."""


class Refused(Gone):
    """The broker refused something with a Reason Code, which is *code*."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Line:
    """A client of one broker. Blocks; for one thread. A context manager that says goodbye.

    Every wait ends after `address.timeout` seconds. Raises Gone, and OSError for what the system says.
    """

    def __init__(self, address: Address, version: Version = V5) -> None:
        self.address = address
        self.version = version
        self._socket: Any = None
        self._reader = PacketReader(from_client=False)
        self._received: deque[Packet] = deque()
        self._last_sent = 0.0
        self._ping_after = float("inf")  # seconds of silence
        self._pinged = float("inf")  # when, as long as there is no answer
        self.receive_maximum = 65_535  # PUBLISH that may wait for an acknowledgement
        self.maximum_packet_size: int | None = None  # bytes; None: no limit
        self.session_present = False

    def connect(
        self, client_id: str, *, clean_start: bool = True, keep_alive: int = 0, **properties: Any
    ) -> Connack:
        """Open the connection and send CONNECT; *keep_alive* in seconds, 3.1.1 has no *properties*.

        Raises Gone, Refused, OSError.
        """
        address = self.address
        try:
            plain = socket.create_connection((address.host, address.actual_port), address.timeout)
        except OSError as error:
            raise Gone(f"there is no broker at {address}: {error.strerror or error}") from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain
        if (context := address.context()) is not None:
            self._socket = context.wrap_socket(plain, server_hostname=address.host)
        self._reader = PacketReader(from_client=False)
        self._reader.version = self.version
        self._received.clear()
        self._pinged = float("inf")
        self._ping_after = keep_alive / 2 or float("inf")
        self.send(
            Connect(
                client_id,
                self.version,
                clean_start=clean_start,
                keep_alive=keep_alive,
                user_name=address.username,
                password=address.secret(),
                properties=properties,
            )
        )
        connack = self.expect(Connack)
        if connack.reason_code:
            text = f"the broker at {address} refused the connection{because(connack)}"
            wanted = "5.0" if self.version is V5 else "3.1.1"
            hint = f"; it has to speak MQTT {wanted}" if connack.reason_code in UNSUPPORTED else ""
            raise Refused(text + hint, connack.reason_code)
        self._note_limits(connack)
        return connack

    def _note_limits(self, connack: Connack) -> None:
        said = connack.properties
        self.session_present = connack.session_present
        self.receive_maximum = said.get("receive_maximum", 65_535)
        self.maximum_packet_size = said.get("maximum_packet_size")
        if keep_alive := said.get("server_keep_alive"):
            self._ping_after = keep_alive / 2

    # ---- packets

    def send(self, packet: Packet) -> None:
        self.send_bytes(encode(packet, self.version))

    def send_bytes(self, data: bytes | bytearray) -> None:
        """Whole packets. Raises Gone."""
        self._last_sent = time.monotonic()
        try:
            self._socket.sendall(data)
        except OSError as error:
            self._tell_last_words()
            raise Gone(f"the broker at {self.address} closed the connection: {error}") from None

    def recv(self, timeout: float | None = None) -> Packet | None:
        """The next packet; None if none comes within *timeout* seconds.

        Silence of `address.timeout` seconds after a PINGREQ, or without *timeout* at all, raises Gone.
        """
        patience = self.address.timeout
        while not self._received:
            if not self._read(patience if timeout is None else timeout):
                if timeout is None or time.monotonic() - self._pinged >= patience:
                    raise Gone(f"the broker at {self.address} has not answered for {patience:g} s")
                return None
        packet = self._received.popleft()
        if isinstance(packet, Disconnect):
            raise self._ended(packet)
        return packet

    def expect(self, kind: type[P]) -> P:
        """The next packet, which must be of *kind*. Raises Gone."""
        packet = self.recv()
        if not isinstance(packet, kind):
            found = type(packet).__name__
            raise Gone(f"the broker at {self.address} sent {found} in place of {kind.__name__}")
        return packet

    def keep_alive(self) -> None:
        """Say that we are there, if that is due; for who reads nothing meanwhile."""
        if time.monotonic() - self._last_sent >= self._ping_after:
            self.send(Pingreq())

    @property
    def waiting(self) -> bool:
        """Whether a packet is here already."""
        return bool(self._received)

    def _read(self, timeout: float) -> bool:
        """Read what there is; False if nothing came in *timeout* seconds. Keeps the connection alive."""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            due = self._last_sent + self._ping_after - time.monotonic()
            if due <= 0:
                self.send(Pingreq())
                self._pinged = min(self._pinged, self._last_sent)
                continue
            self._socket.settimeout(max(min(left, due), 0.000001))
            try:
                data = self._socket.recv(CHUNK)
            except TimeoutError:
                if time.monotonic() >= until:
                    return False
                continue
            except OSError as error:
                raise Gone(f"the connection to {self.address} broke: {error}") from None
            finally:
                self._socket.settimeout(self.address.timeout)
            if not data:
                raise Gone(f"the broker at {self.address} closed the connection")
            self._pinged = float("inf")
            self._received += self._reader.feed(data)
            if self._reader.error is not None:
                raise Gone(f"what the broker at {self.address} sent is no MQTT: {self._reader.error}")
            return True

    def _tell_last_words(self) -> None:
        """A broker that closes says why before: that is the better error. Raises Refused, or nothing."""
        with contextlib.suppress(Gone, OSError):
            while self._read(1.0):
                pass
        for packet in self._received:
            if isinstance(packet, Disconnect):
                raise self._ended(packet) from None
            if isinstance(packet, Puback) and packet.reason_code >= 0x80:
                text = f"the broker at {self.address} refused a message{because(packet)}"
                raise Refused(text, packet.reason_code) from None

    def _ended(self, packet: Disconnect) -> Refused:
        text = f"the broker at {self.address} ended the connection{because(packet)}"
        return Refused(text, packet.reason_code)

    # ---- the end

    def close(self) -> None:
        """Say goodbye, if anybody listens."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(encode(Disconnect(), self.version))
            self.abort()

    def abort(self) -> None:
        """Close without a word."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if kind is None else self.abort()


class Window:
    """Messages on their way: at most *size* of QoS 1 without a PUBACK, which come in their order.

    `publish` waits for room, `settle` for the rest. Both raise Refused at the first negative Reason Code.
    """

    def __init__(self, line: Line, size: int) -> None:
        self._line = line
        self._size = min(size, line.receive_maximum)
        self._sent: deque[tuple[int, str]] = deque()  # identifier and topic
        self._last = 0
        self._out = bytearray()
        self.acknowledged = 0

    def publish(
        self, topic_name: str, payload: bytes, qos: int, retain: bool, properties: dict[str, Any]
    ) -> None:
        """Raises ValueError for a message that no PUBLISH can carry."""
        packet_id = 0
        if qos:
            if len(self._sent) >= self._size:
                self._take(len(self._sent) - self._size + 1)
            packet_id = self._last = self._last % 65_535 + 1
        packet = Publish(topic_name, payload, qos, retain, packet_id=packet_id, properties=properties)
        try:
            data = encode(packet, V5)
        except ValueError as error:
            raise ValueError(f"a message to {topic_name!r:.200} cannot be sent: {error}") from None
        most = self._line.maximum_packet_size
        if most is not None and len(data) > most:
            raise ValueError(f"a message to {topic_name!r} has {len(data)} bytes, the broker takes {most}")
        if qos:
            self._sent.append((packet_id, topic_name))
        self._out += data
        if len(self._out) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        if self._out:
            data, self._out = self._out, bytearray()
            self._line.send_bytes(data)
        while self._line.waiting:
            self._note(self._line.recv())

    def settle(self) -> None:
        """Everything is acknowledged when this returns."""
        self.flush()
        self._take(len(self._sent))

    def _take(self, count: int) -> None:
        if self._out and count:
            data, self._out = self._out, bytearray()
            self._line.send_bytes(data)
        upto = self.acknowledged + count
        while self.acknowledged < upto:
            self._note(self._line.recv())

    def _note(self, packet: Packet | None) -> None:
        if not isinstance(packet, Puback):
            return  # PINGRESP
        packet_id, topic_name = self._sent.popleft() if self._sent else (0, "")
        if packet.packet_id != packet_id:
            raise Gone(f"a PUBACK for {packet.packet_id} where {packet_id} is due")
        if packet.reason_code >= 0x80:
            text = f"the broker refused a message to {topic_name!r}{because(packet)}"
            raise Refused(text, packet.reason_code)
        self.acknowledged += 1


def because(packet: Any) -> str:
    """Reason Code and Reason String, as the end of a sentence."""
    text = packet.properties.get("reason_string", "")
    return f" with 0x{packet.reason_code:02X}" + (f": {text}" if text else "")
