"""Lines of PUBLISH packets as a client sent them: what the fast lane took, and nobody has taken apart yet."""

from __future__ import annotations

from binascii import b2a_base64, crc32
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from broker.hook.log.line import FLAGS, properties_text
from broker.packet.properties import Place, read_properties

KNOWN = 10_000  # topics, and property blocks, of which the text is remembered
LONGEST = 256  # bytes of one that is
PUBLISH = 0x30


class Runs:
    """Makes the lines of runs; *most* bytes are kept of a payload, 0: all.

    A run is a record with the number of its messages where others have their topic, and the packets where
    they have the payload: (at, count, five, publisher, packets, None, None, None, weight). *five* is whether
    they are of MQTT 5. Other packets may be between them.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._topics: dict[bytes, str] = {}
        self._blocks: dict[bytes, str] = {}

    def lines(self, offset: int, record: tuple[Any, ...]) -> list[bytes]:
        """The lines of all messages of *record*, from *offset* on.

        In place, as the lane reads them: 1.0 us a message; packets taken apart by the codec and
        `format_message` 2.9 (QoS 0, 81 bytes; CPython 3.11, 2 cores).
        """
        at, _, five, publisher, data = record[:5]
        lines: list[bytes] = []
        begin, before = f',"ts":{at},"t":', f'{publisher.before},"p":"'
        topics, place, end = self._topics, 0, len(data)
        while place < end:
            first, length, start = data[place], data[place + 1], place + 2
            if length > 0x7F:
                length, start = length & 0x7F | data[place + 2] << 7, place + 3
            place = start + length
            if first & 0xF0 != PUBLISH:
                continue
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            topic = data[start + 2 : topic_end]
            payload_at = topic_end + 2 if first & 0x06 else topic_end
            text, rest = topics.get(topic) or self._topic(topic), publisher.after
            if five:
                block_at, payload_at = payload_at, payload_at + 1 + data[payload_at]
                if payload_at > block_at + 1:
                    rest += self._properties(data[block_at:payload_at])
            payload = data[payload_at:place]
            if self._most and len(payload) > self._most:
                payload, rest = payload[: self._most], f',"ps":{len(payload)}{rest}'
            body = (
                f'{{"o":{offset}{begin}{text}{FLAGS_OF[first & 15]}{before}'
                f'{b2a_base64(payload, newline=False).decode("ascii")}"{rest}'
            ).encode("ascii")
            lines.append(b'%b,"k":"%08x"}\n' % (body, crc32(body)))
            offset += 1
        return lines

    def _topic(self, topic: bytes) -> str:
        text = quoted(topic.decode())
        if len(topic) <= LONGEST:
            if len(self._topics) >= KNOWN:
                self._topics.clear()
            self._topics[topic] = text
        return text

    def _properties(self, block: bytes) -> str:
        text = self._blocks.get(block)
        if text is None:
            text = properties_text(read_properties(block, 0, len(block), Place.PUBLISH, False)[0])
            if len(self._blocks) >= KNOWN:
                self._blocks.clear()
            self._blocks[block] = text
        return text


# By the low four bits of the first byte: DUP, QoS, RETAIN; the lane takes no DUP.
FLAGS_OF = tuple(FLAGS[(bits >> 1 & 3) << 2 | (bits & 1) << 1 | bits >> 3] for bits in range(16))
