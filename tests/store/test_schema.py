"""The tables, a Message as a row, and that the document says the same as the program."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import MqttError
from broker.packet.message import Message
from broker.packet.properties import PROPERTIES, Place
from broker.session.delivery import State
from broker.store import schema
from broker.store.base import Row, Table
from broker.store.rows import message_of, message_row
from broker.store.schema import COLUMNS, create_statements, names

DOCUMENT = (Path(__file__).parents[2] / "docs" / "store-format.md").read_text()


def declared(table: Table) -> list[tuple[str, str]]:
    blobs, plain = COLUMNS[table]
    return [("id", "INTEGER"), *((name, kind) for name, kind in map(str.split, (*blobs, *plain)))]


# ---- tables


def test_every_table_has_another_number_of_columns() -> None:
    """One more than SQLite's own table, too, which begins on page 1 and has 5."""
    widths = [len(declared(table)) for table in Table] + [5]
    assert len(set(widths)) == len(widths)


@pytest.mark.parametrize("table", Table)
def test_blobs_come_first(table: Table) -> None:
    blobs, plain = COLUMNS[table]
    assert all(column.endswith(" BLOB") for column in blobs)
    assert not any(column.endswith(" BLOB") for column in plain)


def test_the_statements_make_them() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in create_statements():
            db.execute(statement)
        made = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        assert made == {"meta", *(table.name.lower() for table in Table)}, "no index either"
        for table in Table:
            info = db.execute(f"PRAGMA table_info({table.name.lower()})").fetchall()
            assert [(name, kind) for _, name, kind, *_ in info] == declared(table)
            assert names(table) == tuple(name for name, _ in declared(table)[1:])


# ---- messages

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
values = {
    "payload_format_indicator": st.integers(0, 1),
    "message_expiry_interval": st.integers(0, 0xFFFFFFFF),
    "content_type": texts,
    "response_topic": st.just("answers/here"),
    "correlation_data": st.binary(max_size=20),
    "user_property": st.lists(st.tuples(texts, texts), min_size=1, max_size=3),
}
messages = st.builds(
    Message,
    texts.filter(bool),
    st.binary(max_size=100),
    st.integers(0, 2),
    st.booleans(),
    st.fixed_dictionaries({}, optional=values),
    texts,
    st.none() | st.integers(0, 1 << 40).map(lambda eighths: eighths / 8),
)


def test_all_properties_that_travel_are_tried() -> None:
    travelling = {row.name for row in PROPERTIES if Place.PUBLISH in row.where}
    assert travelling == {*values, "topic_alias", "subscription_identifier"}


@given(messages, st.integers(-1 << 40, 1 << 40).map(lambda eighths: eighths / 8))
def test_a_message_comes_back_as_it_was(message: Message, offset: float) -> None:
    row = message_row(message, offset)
    assert message_of(row, offset) == message
    assert len(row.blobs) == 2 and len(row.values) == 5
    if message.expires_at is not None:
        assert row.values[-1] == message.expires_at + offset


@pytest.mark.parametrize("block", ["ff", "11 00000001", "03 00ff 61", "01 02 01 03"])
def test_properties_that_make_no_sense(block: str) -> None:
    row = Row(("a", 0, 0, "", None), (b"", bytes.fromhex(block)))
    with pytest.raises((MqttError, ValueError)):
        message_of(row, 0.0)


# ---- the document


def tables_in(text: str) -> dict[str, list[list[str]]]:
    """Heading -> rows of the table below it."""
    found = {}
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
        heading = part.partition("\n")[0].strip("`")
        found[heading] = [[cell.strip("| ") for cell in line] for line in lines[2:]]
    return found


@pytest.mark.parametrize("table", Table)
def test_the_document_has_its_columns(table: Table) -> None:
    rows = tables_in(DOCUMENT)[table.name.lower()]
    assert [(row[0].strip("`"), row[1]) for row in rows] == declared(table)
    assert all(len(row) == 3 and row[2] for row in rows[1:])


def test_the_document_has_the_marks_of_a_file() -> None:
    assert f"Version {schema.FORMAT}." in DOCUMENT
    assert f"`PRAGMA application_id` is {schema.APPLICATION_ID:#x}" in DOCUMENT
    assert f"version of the format, {schema.FORMAT}." in DOCUMENT


def test_the_document_has_the_keys_of_meta() -> None:
    keys = {key for row in tables_in(DOCUMENT)["meta"] for key in re.findall(r"`(\w+)`", row[0])}
    folder = Path(schema.__file__).parent
    program = (folder / "sqlite.py").read_text() + (folder / "schema.py").read_text()
    assert keys == {"created", "program", "clean", "time", "wall", "probe"}
    assert all(f"'{key}'" in program or f'"{key}"' in program for key in keys)


def test_the_document_has_the_states() -> None:
    (row,) = [row for row in tables_in(DOCUMENT)["delivery"] if row[0] == "`state`"]
    told = {int(number): words for number, words in re.findall(r"(\d) ([a-zA-Z ]+)", row[2])}
    assert {number: words.split()[-1].upper() for number, words in told.items()} == {
        state.value: state.name.removeprefix("WAIT_") for state in State if state is not State.DONE
    }
