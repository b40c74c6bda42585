"""CONNECT and DISCONNECT for which every decision is made already, taken from their bytes.

What the read loop, the codec and connect.py do for each packet, this does for the plainest ones: a CONNECT
with Clean Start and a ClientID that nobody has, alone in its read, and nothing else in it; a DISCONNECT
without anything. All else is left to them, and so is everything while there are hooks. Without this file the
broker does the same, slower: tests/handle/test_express.py compares them. A connection from accept to close
takes 94 us of CPU time without all of this, 58 with it, 28 of them in the kernel (mqttload connect, mosquitto
44 in the same run; CPython 3.11, 2 cores, busy).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.client import GOODBYE, Client, Phase
from broker.core import Core
from broker.errors import ImplementationSpecificError
from broker.handle.connect import announced, log_connected
from broker.hook.identity import Asked, asked
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Connack

log = logging.getLogger("broker.client")

KEEP_ALIVES = 256  # different ones that are remembered
SHORTEST, LONGEST = 15, 127  # bytes of such a CONNECT: its length takes one
# From the Protocol Name to the Connect Flags, which say Clean Start and nothing else.
BEGINNINGS = {b"\0\4MQTT\4\2": Version.MQTT_3_1_1, b"\0\4MQTT\5\2": Version.MQTT_5}


class Express:
    """One for all clients of a broker. *goodbye* is given those that have said DISCONNECT."""

    def __init__(self, core: Core, goodbye: Callable[[Client], None]) -> None:
        config, limits = core.config, core.config.limits
        self._core = core
        self._goodbye = goodbye
        self._asked: dict[int, Asked] = {}  # by Keep Alive
        self._versions = {
            beginning: version
            for beginning, version in BEGINNINGS.items()
            if (config.protocol.mqtt_5 if version is Version.MQTT_5 else config.protocol.mqtt_3_1_1)
        }
        self._connack = {
            version: encode(Connack(False, 0, announced(limits)), version) for version in BEGINNINGS.values()
        }
        self._most = limits.maximum_client_id_bytes
        self._window = min(65535, limits.outbound_receive_maximum)
        # Whatever would have to look at it.
        looks = core.hooks.look or limits.server_keep_alive or config.tls.user_name != "connect"
        self.open = not (looks or limits.maximum_packet_size < LONGEST)

    def take(self, client: Client, data: bytes) -> bool:
        """Serve *data*, all that *client* has sent, if it is one of ours; whether it was."""
        if client.reader is not None:  # the beginning of a packet is there
            return False
        try:
            if data == GOODBYE:
                return self._take_disconnect(client)
            return client.phase is Phase.NEW and self._take_connect(client, data)
        except Exception:  # as the read loop does
            log.exception("client %r from %s: unexpected error", client.client_id, client.peer.address)
            client.own_reader().version = client.version  # what CONNECT said
            client.fail(ImplementationSpecificError("unexpected error in the express lane"))
        return True

    def _take_disconnect(self, client: Client) -> bool:
        if client.phase is not Phase.CONNECTED:
            return False
        self._count(client, 2)
        self._goodbye(client)
        return True

    def _count(self, client: Client, size: int) -> None:
        client.count_received(size)
        stats = self._core.stats
        stats.bytes_received += size
        stats.messages_received += 1

    def _take_connect(self, client: Client, data: bytes) -> bool:
        version = self._versions.get(data[2:10])
        size = len(data)
        if version is None or data[0] != 0x10 or size > LONGEST or data[1] != size - 2 or size < SHORTEST:
            return False
        five = version is Version.MQTT_5
        raw = data[14 + five :]
        if (five and data[12]) or data[12 + five] or data[13 + five] != len(raw):
            return False
        if not 0 < len(raw) <= self._most or not raw.isascii():
            return False
        client_id = raw.decode()
        if not client_id.isprintable() or not self._may_come(client, client_id):
            return False
        self._count(client, size)
        client.version = version
        client.client_id = client_id
        keep_alive = data[10] << 8 | data[11]
        client.asked = self._asked.get(keep_alive) or self._ask(keep_alive)
        self._start(client, client_id)
        return True

    def _ask(self, keep_alive: int) -> Asked:
        if len(self._asked) >= KEEP_ALIVES:
            self._asked.clear()
        self._asked[keep_alive] = asked(keep_alive=keep_alive)
        return self._asked[keep_alive]

    def _may_come(self, client: Client, client_id: str) -> bool:
        """Whether nothing is to be decided about it: there is room, and nobody has the ClientID."""
        core, protocol, capacity = self._core, self._core.config.protocol, self._core.config.capacity
        if client_id in core.clients or core.sessions.get(client_id) is not None:
            return False
        if not core.turns.is_free(client_id) or core.budget.scarce:
            return False
        clients, sessions = len(core.clients), len(core.sessions)
        if clients >= capacity.maximum_connections or sessions >= capacity.maximum_sessions:
            return False
        if protocol.anonymous != "everywhere":
            peer = client.peer
            if peer.certificate is None and (protocol.anonymous == "never" or not peer.local):
                return False
        return core.connect_rate.allow(core.clock())

    def _start(self, client: Client, client_id: str) -> None:
        """As `_start` in connect.py, for a session that is new and ends with its connection."""
        core = self._core
        session = core.sessions.create(client_id)
        session.charge(core.sessions.cost(client_id, None))
        session.version = client.version
        client.session = session
        session.attach(client, self._window)
        core.clients[client_id] = client
        client.phase = Phase.CONNECTED
        client.accepted()
        core.stats.messages_sent += 1
        client.write(self._connack[client.version])  # nothing comes before it, and nothing with it
        log_connected(client, False)
        client.heard()
