"""Property blocks that travel, as the readable lane would send them on."""

from __future__ import annotations

from typing import Final

from broker.config import Config
from broker.errors import MqttError
from broker.packet.dialect import MQTT_5, dialect_of
from broker.packet.wire import TopicNames

SHORTEST: Final = 128  # bytes: the first length of a block that takes two bytes
MAXIMUM: Final = 4096  # blocks that are remembered


class Blocks(dict[bytes, bytes]):
    """Property block of a PUBLISH, length included -> the same with Message Expiry Interval at its end.

    b"" for one that is not for this lane: with an alias or an identifier, that expires at once, whose
    payload must be looked at, or that is none at all. Bounded: emptied at MAXIMUM.
    """

    def __init__(self, config: Config, names: TopicNames) -> None:
        super().__init__()
        self._aliased: dict[bytes, tuple[int, bytes]] = {}
        self._known = dialect_of(MQTT_5, names.strict, True, names).blocks
        self._most_user_properties = config.limits.maximum_user_properties
        self._looks_at_payload = config.protocol.validate_payload_format

    def __missing__(self, raw: bytes) -> bytes:
        if len(self) >= MAXIMUM:
            self.clear()
            self._aliased.clear()
        block = self[raw] = self._settle(raw)
        return block

    def alias_in(self, raw: bytes) -> tuple[int, bytes]:
        """The Topic Alias in *raw* and what is sent of the block; 0: there is none, or it is not for us."""
        self[raw]
        return self._aliased.get(raw, (0, b""))

    def _settle(self, raw: bytes) -> bytes:
        if raw[0] >= SHORTEST:
            return b""
        try:
            block = self._known[raw[1:]]
        except MqttError:
            return b""
        if block.expiry == 0 or "subscription_identifier" in block.properties:
            return b""
        if block.user_properties > self._most_user_properties:
            return b""
        if self._looks_at_payload and block.properties.get("payload_format_indicator") == 1:
            return b""
        sent = block.head if block.expiry is None else block.head + block.expiry.to_bytes(4, "big")
        if block.topic_alias:
            self._aliased[raw] = block.topic_alias, sent
            return b""
        return sent
