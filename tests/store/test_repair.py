"""verify, dump and compact, and what all four commands have in common: locks, files that are none."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import StoreError
from broker.store import repair
from broker.store.base import Batch, Row, Table
from broker.store.repair import RULES, compact, dump, salvage, verify
from broker.store.schema import names
from broker.store.sqlite import SqliteStore
from tests.store.contents import (
    FIXED,
    NOTED,
    PROPERTIES,
    as_found,
    change,
    found_in,
    random_rows,
    snapshot,
    spoil,
    without,
    write_store,
)

pytestmark = pytest.mark.usefixtures("no_wait")
COMMANDS: dict[str, Callable[[Path], object]] = {
    "verify": lambda path: verify(str(path)),
    "dump": lambda path: list(dump(str(path))),
    "compact": lambda path: compact(str(path)),
    "salvage": lambda path: salvage(str(path), f"{path}.new"),
}
every_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


# ---- all of them


@every_command
def test_no_such_file(tmp_path: Path, command: Callable[[Path], object]) -> None:
    with pytest.raises(StoreError, match="nothing here: there is no such file"):
        command(tmp_path / "nothing here")
    assert os.listdir(tmp_path) == []


@every_command
def test_a_database_of_somebody_else(tmp_path: Path, command: Callable[[Path], object]) -> None:
    path = tmp_path / "broker.db"
    change(path, "CREATE TABLE precious (data)", "INSERT INTO precious VALUES (1)")
    before = snapshot(path)
    with pytest.raises(StoreError, match=r"broker\.db: an SQLite file, but no store of pybroker"):
        command(path)
    assert snapshot(path) == before


@every_command
def test_no_database(tmp_path: Path, command: Callable[[Path], object]) -> None:
    path = tmp_path / "broker.db"
    path.write_bytes(b"a text that is no database. " * 1000)
    before = snapshot(path)
    if command is COMMANDS["salvage"]:
        done = salvage(str(path), f"{path}.new")
        assert set(done.copied.values()) == {0} and done.lost
        os.unlink(f"{path}.new")
    else:
        with pytest.raises(StoreError, match=r"broker\.db: damaged"):
            command(path)
    assert snapshot(path) == before


@pytest.mark.parametrize("name", ["verify", "dump"])
def test_beside_a_store_that_is_open(fixed: Path, name: str) -> None:
    """What is committed is seen, nothing is changed, and the other goes on."""
    store = SqliteStore(str(fixed))
    store.open()
    rows = {60: Row(("later", 0, 0, "", None), (b"", b""))}
    store.write(Batch(1, rows={Table.MESSAGE: rows, Table.RETAINED: {61: Row((60,))}}))
    before = snapshot(fixed)
    lock = Path(f"{fixed}-lock").read_bytes()
    said = COMMANDS[name](fixed)
    text = str(said.facts) if isinstance(said, repair.Verdict) else str(said)
    assert ("message: 7 rows" if name == "verify" else '"later"') in text
    after = snapshot(fixed)
    assert {name: data for name, data in after.items() if "-shm" not in name} == {
        name: data for name, data in before.items() if "-shm" not in name
    }
    assert Path(f"{fixed}-lock").read_bytes() == lock
    with pytest.raises(StoreError, match="in use by process"):
        SqliteStore(str(fixed)).open()
    store.write(Batch(2, rows={Table.RETAINED: {61: None}, Table.MESSAGE: {60: None}}))
    store.close()
    assert found_in(fixed) == as_found(FIXED)


@pytest.mark.parametrize("name", ["compact", "salvage"])
def test_only_when_nobody_has_it_open(fixed: Path, name: str) -> None:
    store = SqliteStore(str(fixed))
    store.open()
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}; stop it"):
        COMMANDS[name](fixed)
    assert not Path(f"{fixed}.new").exists()
    store.close()
    COMMANDS[name](fixed)
    SqliteStore(str(fixed)).open()  # it gave the lock back


@pytest.mark.parametrize("name", ["verify", "dump", "salvage"])
def test_a_closed_store_is_not_touched(fixed: Path, name: str) -> None:
    before = snapshot(fixed), os.stat(fixed).st_mtime_ns
    COMMANDS[name](fixed)
    Path(f"{fixed}.new").unlink(missing_ok=True)
    assert (snapshot(fixed), os.stat(fixed).st_mtime_ns) == before
    assert set(before[0]) == {"broker.db"}


@pytest.mark.parametrize("name", ["verify", "dump"])
def test_in_a_folder_that_may_not_be_written(fixed: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is mounted to be read: a database without a WAL needs nothing beside it."""
    os.unlink(f"{fixed}-lock")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    COMMANDS[name](fixed)
    assert os.listdir(fixed.parent) == ["broker.db"]


@pytest.mark.parametrize("name", ["verify", "dump"])
def test_a_store_that_changes_while_it_is_read_as_a_closed_one(
    fixed: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "meta", lambda db: (os.utime(fixed, (1, 1)), {})[1])
    with pytest.raises(StoreError, match="changed it meanwhile; try again"):
        COMMANDS[name](fixed)


# ---- verify


def test_a_good_store(fixed: Path) -> None:
    verdict = verify(str(fixed))
    assert verdict.problems == []
    made = verdict.facts.pop(1)
    assert made.startswith("made 20") and made.endswith(" UTC")
    assert verdict.facts == [
        "format 2",
        "last written 2023-11-14 22:15:00 UTC",
        "closed properly",
        "session: 3 rows",
        "subscription: 4 rows",
        "message: 6 rows",
        "delivery: 4 rows",
        "held: 1 rows",
        "retained: 2 rows",
        "note: 2 rows",
        "run: 2 rows",
        "part: 3 rows",
    ]


def test_one_that_was_not_closed(fixed: Path) -> None:
    store = SqliteStore(str(fixed))
    store.open()
    assert "in use, or not closed properly" in verify(str(fixed)).facts
    store.close()


BROKEN = {
    "DELETE FROM session WHERE id = 1": [
        "subscription 4 belongs to no session",
        "subscription 5 belongs to no session",
        "subscription 7 belongs to no session",
        "delivery 30 belongs to no session",
        "delivery 31 belongs to no session",
        "delivery 32 belongs to no session",
        "delivery 33 belongs to no session",
    ],
    "DELETE FROM session WHERE id = 2": [
        "subscription 6 belongs to no session",
        "held 40 belongs to no session",
        *(f"part {number} belongs to no session" for number in (80, 81, 82)),
        "message 20 is held by nothing",
    ],
    "DELETE FROM message WHERE id = 24": [
        "delivery 32 has no message",
        "held 40 has no message",
        "retained 50 has no message",
    ],
    "DELETE FROM message WHERE id = 20": ["session 2 has a will without a message"],
    "UPDATE session SET will = NULL, will_due = NULL WHERE id = 3": [
        "session 3 is no session and has no will",
        "message 21 is held by nothing",
    ],
    "UPDATE session SET client_id = 'reader'": [
        "session 1 has the client_id of a later one",
        "session 2 has the client_id of a later one",
    ],
    "UPDATE subscription SET topic_filter = '#', share_name = '', session = 1 WHERE id IN (4, 6)": [
        "subscription 4 is there twice"
    ],
    "UPDATE delivery SET packet_id = 2, state = 2, qos = 2 WHERE id >= 32": [
        "delivery 31 has the packet identifier of a later one",
        "delivery 32 has the packet identifier of a later one",
    ],
    "INSERT INTO held SELECT 41, session, packet_id, message FROM held": [
        "held 40 has the packet identifier of a later one"
    ],
    "UPDATE message SET topic_name = 'house/attic/temperature' WHERE id = 24": [
        "retained 50 has the topic of a later one"
    ],
    "UPDATE note SET key = 'grüße/'": ["note 60 has the key of a later one"],
    "DELETE FROM run WHERE id = 70": [
        "part 80 has no run with so many messages",
        "part 81 has no run with so many messages",
    ],
    "UPDATE part SET count = 3 WHERE id = 82": ["part 82 has no run with so many messages"],
    "UPDATE part SET packet_id = 8, count = 2 WHERE id = 82": [
        "part 80 has the packet identifier of another delivery"
    ],
    "UPDATE delivery SET session = 2, packet_id = 9, state = 1 WHERE id = 33": [
        "part 80 has the packet identifier of another delivery"
    ],
    "DELETE FROM part WHERE id = 82": ["run 71 is held by nothing"],
    "DELETE FROM delivery WHERE id = 31": ["message 23 is held by nothing"],
}


@pytest.mark.parametrize("statement", BROKEN)
def test_rows_that_do_not_belong_together(fixed: Path, new: Path, statement: str) -> None:
    """They are found, and a salvage leaves them out and says so."""
    change(fixed, statement)
    assert verify(str(fixed)).problems == BROKEN[statement]
    done = salvage(str(fixed), str(new))
    for rule in RULES:
        if any(problem.endswith(rule.says) for problem in BROKEN[statement]):
            assert any(rule.says in lost for lost in done.lost), rule
    assert verify(str(new)).problems == []
    assert found_in(new).keys() <= found_in(fixed).keys()


def test_every_rule_is_tried() -> None:
    assert all(any(rule.says in str(problems) for problems in BROKEN.values()) for rule in RULES)


def test_wills_in_a_store_without_messages(tmp_path: Path) -> None:
    row = Row(("a", None, 5, 100, 1, 0, None, None, 0, None))
    write_store(tmp_path / "broker.db", {Table.SESSION: {1: row}})
    assert verify(str(tmp_path / "broker.db")).problems == []


def test_a_will_that_is_lost_does_not_take_the_session_along(fixed: Path, new: Path) -> None:
    change(fixed, "DELETE FROM message WHERE id IN (20, 21)")
    salvage(str(fixed), str(new))
    expected = as_found(FIXED)
    del expected["message", 20], expected["message", 21], expected["session", 3]
    expected["session", 2] = (*expected["session", 2][:8], None, 0, None)
    assert found_in(new) == expected


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE session SET client_id = NULL WHERE id = 1", "session 1: client_id is no TEXT"),
        ("UPDATE session SET version = 6 WHERE id = 1", "session 1: version is 6"),
        ("UPDATE message SET payload = 'text' WHERE id = 22", "message 22: payload is no BLOB"),
        ("UPDATE message SET properties = x'ff' WHERE id = 22", "message 22: "),
        ("UPDATE message SET topic_name = 'a/#' WHERE id = 22", "message 22: a wildcard in a Topic Name"),
        ("UPDATE message SET expires_at = 9e999 WHERE id = 22", "message 22: expires_at is inf"),
        ("UPDATE subscription SET topic_filter = 'a#' WHERE id = 4", "subscription 4: a # that is not"),
        ("UPDATE delivery SET identifiers = '1,,2' WHERE id = 30", "delivery 30: identifiers is no list"),
        ("UPDATE delivery SET state = 9 WHERE id = 30", "delivery 30: state is 9"),
        ("UPDATE held SET packet_id = 65536", "held 40: packet_id is 65536"),
        ("UPDATE meta SET value = 'noon' WHERE key = 'time'", "meta time is no time"),
    ],
)
def test_rows_that_make_no_sense(fixed: Path, new: Path, statement: str, words: str) -> None:
    change(fixed, statement)
    problems = verify(str(fixed)).problems
    assert len(problems) == 1 and problems[0].startswith(words)
    done = salvage(str(fixed), str(new))
    assert words.startswith("meta") or f"{words.split()[0]}: 1 rows that make no sense" in done.lost
    assert verify(str(new)).problems == []


def test_many_problems_are_not_all_told(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    rows = {number: Row(("a", 1, 0, "", None), (b"", b"")) for number in range(1, 200)}
    write_store(path, {Table.MESSAGE: rows})
    assert len(verify(str(path)).problems) == repair.MOST + 1


# ---- dump


def test_a_dump_has_everything(fixed: Path) -> None:
    lines = [json.loads(line) for line in dump(str(fixed))]
    noted = {line["key"]: line["value"] for line in lines if line["table"] == "meta"}
    assert noted.keys() == {"created", "clean", "program", "time", "wall"}
    assert (noted["time"], noted["wall"], noted["clean"]) == (*NOTED, 1)
    found = {}
    for line in lines[len(noted) :]:
        table, number = Table[line.pop("table").upper()], line.pop("id")
        assert tuple(line) == names(table)
        found[table.name.lower(), number] = (number, *map(binary, line, line.values()))
    assert found == as_found(FIXED)
    assert [key[0] for key in found] == [key[0] for key in as_found(FIXED)], "in the order of the document"


def binary(column: str, value: object) -> object:
    if column not in ("payload", "properties", "value", "packets"):
        return value
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else str(value).encode()


def test_blobs_that_are_texts_are_texts(fixed: Path) -> None:
    by_id = {line["id"]: line for line in map(json.loads, dump(str(fixed))) if line["table"] == "message"}
    assert by_id[24]["payload"] == "warm ☀"
    assert by_id[25]["payload"] == by_id[25]["properties"] == ""
    assert by_id[23]["payload"] == {"base64": base64.b64encode(bytes(range(256)) * 40).decode()}
    assert by_id[22]["properties"] == PROPERTIES.decode()


def test_a_dump_is_lines_for_any_terminal(fixed: Path) -> None:
    change(fixed, "UPDATE message SET payload = CAST(char(27, 10, 13, 127, 155, 8232) AS BLOB) WHERE id = 25")
    for line in dump(str(fixed)):
        assert line.isascii() and line.isprintable()


def test_a_dump_does_not_hold_everything_in_memory(fixed: Path) -> None:
    """The first lines are there before the last rows are read."""
    change(fixed, "UPDATE retained SET message = 'x'", "DELETE FROM session")
    lines = dump(str(fixed))
    assert json.loads(next(lines))["table"] == "meta"
    lines.close()


def test_a_dump_shows_one_moment(fixed: Path) -> None:
    store = SqliteStore(str(fixed))
    store.open()
    lines = dump(str(fixed))
    first = json.loads(next(lines))
    store.write(Batch(1, rows={Table.RETAINED: {50: None, 51: None}, Table.HELD: {40: None}}))
    tables = [first["table"], *(json.loads(line)["table"] for line in lines)]
    assert (tables.count("retained"), tables.count("held")) == (2, 1)
    store.close()


# ---- compact


def test_what_is_free_goes_back_to_the_disk(tmp_path: Path) -> None:
    path, rows = tmp_path / "broker.db", random_rows(random.Random(1))
    gone = sorted(rows[Table.MESSAGE])[:200]
    write_store(path, rows, without(rows, gone))
    expected = found_in(path)
    assert len(expected) > 200
    assert os.path.getsize(path) > 1_000_000
    before, after = compact(str(path))
    assert after == os.path.getsize(path) < before / 2
    assert found_in(path) == expected
    assert verify(str(path)).problems == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = SqliteStore(str(path))
    assert store.open() == NOTED
    store.close()


def test_the_tables_stay_where_they_are_looked_for(tmp_path: Path, new: Path) -> None:
    """Salvage knows where they are made; a store that was compacted has them there as well."""
    path, rows = tmp_path / "broker.db", random_rows(random.Random(2))
    write_store(path, rows, without(rows, sorted(rows[Table.MESSAGE])[:100]))
    compact(str(path))
    expected = found_in(path)
    spoil(path, 1, random.Random(3))
    salvage(str(path), str(new))
    assert found_in(new) == expected


def test_a_store_that_was_not_closed_is_compacted_with_its_wal(fixed: Path, tmp_path: Path) -> None:
    store = SqliteStore(str(fixed))
    store.open()
    rows = {60: Row(("later", 0, 0, "", None), (b"x" * 100_000, b""))}
    store.write(Batch(1, rows={Table.MESSAGE: rows, Table.RETAINED: {61: Row((60,))}}))
    left = tmp_path / "killed"
    left.mkdir()
    for file in fixed.parent.glob("broker.db*"):
        shutil.copy(file, left)
    store.close()
    before, after = compact(str(left / "broker.db"))
    assert before > after > 100_000
    assert found_in(left / "broker.db") == found_in(fixed)
    assert "in use, or not closed properly" in verify(str(left / "broker.db")).facts


def test_a_damaged_store_is_not_compacted(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    write_store(path, random_rows(random.Random(1)))
    spoil(path, 12, random.Random(1))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"damaged .*salvage"):
        compact(str(path))
    assert path.read_bytes() == before
