"""What a row may hold: one flipped bit makes a text of a number, and SQLite does not look at cells."""

from __future__ import annotations

from typing import Any

import pytest

from broker.packet.message import Message
from broker.store.base import Row, Table
from broker.store.rows import LAST_ID, fault, message_of, message_row
from broker.store.schema import names

SOUND: dict[Table, Row] = {
    Table.SESSION: Row(("c", "user", 5, 1000, 1, 0, 2000.0, 3, 10, None)),
    Table.SUBSCRIPTION: Row((1, "$share/g/a/#", 2, 0, 1, 2, 7, "g")),
    Table.MESSAGE: message_row(Message("a", b"x", 1, True, {"content_type": "t"}, "c", 3000.0), 0.0),
    Table.DELIVERY: Row((1, 2, 2, 0, 1, "7,268435455", "$share/g/a/#", 9, 3)),
    Table.HELD: Row((1, 9, 2)),
    Table.RETAINED: Row((2,)),
    Table.NOTE: Row(("dedup/x",), (b"1 2 3",)),
    Table.RUN: Row((2, "c", 0, 8, 5), (bytes.fromhex("3206000172000161 3206000172000262"),)),
    Table.PART: Row((1, 2, 7, 3, 9)),
}


def changed(table: Table, column: str, value: Any) -> Row:
    """The sound row of *table* with another value in one cell."""
    row, at = SOUND[table], names(table).index(column)
    cells = [*row.blobs, *row.values]
    cells[at] = value
    return Row(tuple(cells[len(row.blobs) :]), tuple(cells[: len(row.blobs)]))


@pytest.mark.parametrize("table", Table)
def test_a_row_that_a_broker_wrote(table: Table) -> None:
    assert fault(table, 1, SOUND[table]) == ""
    assert fault(table, LAST_ID, SOUND[table]) == ""


@pytest.mark.parametrize("table", Table)
@pytest.mark.parametrize("number", [0, -1, LAST_ID + 1, (1 << 63) - 1])
def test_an_identifier_that_leaves_no_room_for_others(table: Table, number: int) -> None:
    assert "identifier" in fault(table, number, SOUND[table])


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table in Table for column in names(table)], ids=str
)
def test_every_cell_has_one_type(table: Table, column: str) -> None:
    right = dict(zip(names(table), (*SOUND[table].blobs, *SOUND[table].values), strict=True))[column]
    for wrong in ("x\0y", b"\xff", 1 << 63, -1, 0.5, float("inf"), float("nan")):
        if type(wrong) is not type(right) or isinstance(wrong, int | float):
            sound = column in ("ends_at", "will_due", "expires_at") and wrong == 0.5
            assert bool(fault(table, 1, changed(table, column, wrong))) is not sound, wrong


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        pytest.param(Table.MESSAGE, "payload", None, id="payload NULL"),
        pytest.param(Table.MESSAGE, "payload", "text", id="payload TEXT"),
        pytest.param(Table.MESSAGE, "properties", b"\x02\x00", id="properties cut off"),
        pytest.param(Table.MESSAGE, "topic_name", "a/#", id="a wildcard in a name"),
        pytest.param(Table.MESSAGE, "topic_name", "", id="no name"),
        pytest.param(Table.MESSAGE, "qos", None, id="qos NULL"),
        pytest.param(Table.SESSION, "version", 6, id="no version"),
        pytest.param(Table.SUBSCRIPTION, "topic_filter", "a#", id="no filter"),
        pytest.param(Table.SUBSCRIPTION, "topic_filter", "$share/h/a/#", id="the filter of another share"),
        pytest.param(Table.SUBSCRIPTION, "identifier", 268_435_456, id="identifier too large"),
        pytest.param(Table.DELIVERY, "identifiers", "0", id="identifier 0"),
        pytest.param(Table.NOTE, "key", "nobody", id="a note of nobody"),
        pytest.param(Table.NOTE, "value", None, id="value NULL"),
        pytest.param(Table.DELIVERY, "identifiers", "268435456", id="identifiers too large"),
        pytest.param(Table.DELIVERY, "identifiers", "1,", id="identifiers cut off"),
        pytest.param(Table.DELIVERY, "state", 1, id="waits for PUBACK at QoS 2"),
        pytest.param(Table.DELIVERY, "state", 4, id="done"),
        pytest.param(Table.DELIVERY, "packet_id", 0, id="sent without an identifier"),
        pytest.param(Table.DELIVERY, "share", "a", id="share without a name"),
        pytest.param(Table.HELD, "packet_id", 65536, id="packet identifier too large"),
    ],
)
def test_what_no_broker_has_written(table: Table, column: str, value: Any) -> None:
    assert fault(table, 1, changed(table, column, value))


def test_a_message_comes_back_as_it_was() -> None:
    message = Message("a", b"x", 1, True, {"content_type": "t", "user_property": [("k", "v")]}, "c", 3000.0)
    assert message_of(message_row(message, 7.0), 7.0) == message
