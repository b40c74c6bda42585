"""Rows: a Message as one, and what a row may hold at all."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

from broker.errors import MqttError
from broker.packet.enums import Version
from broker.packet.message import Message, bounds
from broker.packet.packets import NO_PROPERTIES, Publish
from broker.packet.properties import Place, property_block, read_properties
from broker.packet.reader import PacketReader
from broker.packet.wire import varint_bytes
from broker.store.base import Encode, Row, Table
from broker.store.schema import COLUMNS
from broker.topic.name import check_topic_filter, check_topic_name, split_share

log = logging.getLogger("broker.store")

new_row = tuple.__new__  # of Row and its two parts: half the time of calling Row

LAST_ID = 1 << 62  # identifiers of rows grow by one, and never come near to this

TYPES: dict[str, type] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}
MAY_BE_NULL = {"user_name", "ends_at", "will", "will_due", "expires_at"}
FLAG, ID = (0, 1), (1, LAST_ID)
MOST_PACKETS = 65535  # in a run
RANGES: dict[str, tuple[int, int]] = {
    "version": (3, 5),
    "qos": (0, 2),
    "state": (0, 3),
    "retain_handling": (0, 2),
    "packet_id": (0, 65535),
    "identifier": (0, 268_435_455),
    "expiry_interval": (0, 0xFFFFFFFF),
    "will_delay": (0, 0xFFFFFFFF),
    **dict.fromkeys(("whole", "connected", "no_local", "retain_as_published", "retain", "requested"), FLAG),
    **dict.fromkeys(("session", "message", "will", "run"), ID),
    "five": FLAG,
    "size": (0, 268_435_460),
    "place": (0, 65542),
    "first": (0, MOST_PACKETS - 1),
    "count": (1, MOST_PACKETS),
}
STATES = {(0, 0), (1, 0), (2, 0), (1, 1), (2, 2), (2, 3)}  # QoS and State of a delivery


def made(changes: dict[int, tuple[Encode, Any] | None]) -> dict[int, Row | None]:
    """The rows to be written, or None to delete. One that cannot be made keeps no other from the file."""
    rows: dict[int, Row | None] = {}
    for number, change in changes.items():
        row = None
        if change is not None:
            try:
                row = change[0](change[1])
            except Exception:  # of something that a hook gave, say
                log.exception("a row cannot be stored: %.500r", change)
        rows[number] = row
    return rows


def message_row(message: Message, offset: float) -> Row:
    """*offset* is what the store's clock is ahead of the broker's, in seconds."""
    properties = property_block(message.properties, Place.PUBLISH) if message.properties else b""
    expires_at = message.expires_at
    if expires_at is not None:
        expires_at += offset
    retain = 1 if message.retain else 0
    values = (message.topic_name, message.qos, retain, message.client_id, expires_at)
    return new_row(Row, (values, (message.payload, properties)))


def message_of(row: Row, offset: float) -> Message:
    """What `message_row` wrote. Raises MqttError or ValueError for a row that is none."""
    topic_name, qos, retain, client_id, expires_at = row.values
    payload, block = row.blobs
    properties: Any = NO_PROPERTIES
    if block:
        data = varint_bytes(len(block)) + block
        properties, _ = read_properties(data, 0, len(data), Place.PUBLISH, strict=False)
    message = Message(topic_name, payload, qos, bool(retain), properties, client_id)
    if expires_at is not None:
        message.expires_at = expires_at - offset
    return message


def fault(table: Table, number: int, row: Row) -> str:
    """Why the broker could make nothing of *row*; empty if it can.

    One flipped bit makes another type or range of a cell, and SQLite's own check does not look at those.
    """
    if not ID[0] <= number <= ID[1]:
        return f"the identifier is {number}"
    blobs, plain = COLUMNS[table]
    for column, value in zip((*blobs, *plain), (*row.blobs, *row.values), strict=True):
        name, kind = column.split()
        if says := _cell_fault(name, kind, value):
            return says
    try:
        if table is Table.MESSAGE:
            check_topic_name(message_of(row, 0.0).topic_name)
        elif table is Table.RUN:
            return _run_fault(row)
        elif table is Table.PART:
            return _part_fault(row)
        elif table is Table.NOTE:
            return "" if row.values[0].partition("/")[1] else "key names no owner"
        elif table is Table.SUBSCRIPTION:
            check_topic_filter(row.values[1])
            return "" if split_share(row.values[1])[0] == row.values[7] else "share_name is not the filter's"
    except (MqttError, ValueError) as error:
        return str(error)
    return _delivery_fault(row) if table is Table.DELIVERY else ""


def _cell_fault(name: str, kind: str, value: Any) -> str:
    if value is None and name in MAY_BE_NULL:
        return ""
    if type(value) is not TYPES[kind]:
        return f"{name} is no {kind}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} is {value}"
    if isinstance(value, int):
        low, high = RANGES[name]
        if not low <= value <= high:
            return f"{name} is {value}"
    return ""


def _delivery_fault(row: Row) -> str:
    _, _, qos, _, _, identifiers, share, packet_id, state = row.values
    if not re.fullmatch(r"([1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*)?", identifiers):
        return "identifiers is no list of Subscription Identifiers"
    if any(int(part) > RANGES["identifier"][1] for part in identifiers.split(",") if part):
        return "identifiers has one that is too large"
    if (qos, state) not in STATES or (packet_id > 0) != (state > 0):
        return f"QoS {qos}, state {state} and packet identifier {packet_id} do not go together"
    if share:
        try:
            check_topic_filter(share)
        except MqttError as error:
            return str(error)
    return "" if not share or split_share(share)[0] else "share is no shared filter"


def _run_fault(row: Row) -> str:
    """Its packets are what a client may send of QoS 1, without a flag or a property."""
    (packets,), (count, _, five, size, place) = row.blobs, row.values
    reader = PacketReader(strict=False, from_client=False)
    reader.version = Version.MQTT_5 if five else Version.MQTT_3_1_1
    number = 0
    for packet in reader.feed(packets):
        if not isinstance(packet, Publish) or (packet.qos, packet.dup, packet.retain) != (1, False, False):
            return f"packet {number} is no plain PUBLISH of QoS 1"
        if packet.properties:
            return f"packet {number} has properties"
        check_topic_name(packet.topic_name)
        number += 1
    if reader.error is not None or reader.partial or number != count:
        return f"there are {number} whole packets of {count}"
    if size or place:
        start, end = bounds(packets, 0)
        topic_end = start + 2 + int.from_bytes(packets[start : start + 2], "big")
        alike = all(packets[at : at + place] == packets[:place] for at in range(0, len(packets), size or 1))
        if (size, place, size * count) != (end, topic_end, len(packets)) or not alike:
            return f"its packets are not all of {size} bytes, with an identifier at {place}"
    return ""


def _part_fault(row: Row) -> str:
    _, _, first, count, packet_id = row.values
    if first + count > MOST_PACKETS or packet_id + count > MOST_PACKETS + 1:
        return f"{count} messages from {first}, with packet identifiers from {packet_id}, are too many"
    return ""
