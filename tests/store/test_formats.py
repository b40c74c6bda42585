"""Stores of every format that there ever was can be opened; how one format becomes the next."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import StoreError
from broker.packet.enums import Version
from broker.packet.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from broker.store import repair, rows, schema, sqlite
from broker.store.base import Row, Table
from broker.store.schema import FORMAT, MIGRATIONS
from broker.store.sqlite import SqliteStore
from tests.peer import Peer, memory_broker, run_async
from tests.store.contents import (
    FIXED,
    FORMATS,
    NOTED,
    PROPERTIES,
    as_found,
    fixed_of,
    found_in,
    write_fixed,
)

EVERY, NEXT = range(1, FORMAT + 1), FORMAT + 1


@pytest.fixture(params=EVERY)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a store that the first version with its format wrote."""
    return Path(shutil.copy(FORMATS / f"{request.param}.db", tmp_path / f"{request.param}.db"))


def written_in(old: Path) -> int:
    """The format in which it was written."""
    return int(old.stem)


def test_each_format_has_a_file_and_a_way_to_the_next() -> None:
    assert {file.name for file in FORMATS.glob("*.db")} == {f"{number}.db" for number in EVERY}
    assert set(MIGRATIONS) == set(EVERY) - {1}
    assert all(MIGRATIONS.values()), "a step does something"
    for number in EVERY:
        with closing(sqlite3.connect(f"file:{FORMATS}/{number}.db?mode=ro&immutable=1", uri=True)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (number,)


def test_its_rows_are_those_that_were_written(old: Path) -> None:
    store = SqliteStore(str(old))
    assert store.open() == NOTED
    assert {table: dict(store.read(table)) for table in Table} == fixed_of(written_in(old))
    store.close()
    assert repair.verify(str(old)).problems == []


def test_commands_that_only_look_leave_it_as_old_as_it_is(old: Path, tmp_path: Path) -> None:
    before, new = old.read_bytes(), tmp_path / "new.db"
    verdict = repair.verify(str(old))
    assert verdict.problems == []
    assert f"format {written_in(old)}" in verdict.facts
    told = {line.partition(":")[0] for line in verdict.facts if line.endswith(" rows")}
    rows = fixed_of(written_in(old))
    assert told == {table.name.lower() for table in schema.tables_of(written_in(old))}
    dumped = [line for line in repair.dump(str(old)) if '"table": "meta"' not in line]
    assert len(dumped) == sum(map(len, rows.values()))
    done = repair.salvage(str(old), str(new))
    assert done.lost == done.notes == []
    assert found_in(new) == as_found(rows)
    assert old.read_bytes() == before


def test_a_new_store_is_the_same_as_an_old_one_now(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    write_fixed(new)
    for opened in (SqliteStore(str(old)), SqliteStore(str(new))):
        opened.open()
        opened.close()
    schemas = []
    for path in (old, new):
        with closing(sqlite3.connect(path)) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema ORDER BY name")]
            schemas.append({name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in tables})
            schemas.append(db.execute("PRAGMA application_id").fetchone())
            schemas.append(db.execute("PRAGMA user_version").fetchone())
    assert schemas[:3] == schemas[3:]


@run_async
async def test_a_broker_goes_on_with_it(old: Path) -> None:
    async with memory_broker(store=old) as broker:
        reader = Peer(broker)
        connack = await reader.connect("reader", clean_start=False, user_name="ada")
        assert connack.session_present
        sent = [await reader.expect(Publish), await reader.expect(Publish)]
        assert [(each.topic_name, each.qos, each.packet_id, each.dup) for each in sent] == [
            ("house/attic/temperature", 1, 1, True),
            ("jobs/1", 2, 2, True),
        ]
        assert sent[0].payload == b"19.5"
        assert sent[0].properties["content_type"] == "text/plain"
        assert sent[0].properties["user_property"] == [("k", "v")]
        assert sent[0].properties["subscription_identifier"] == [17]
        assert sent[1].payload == bytes(range(256)) * 40
        assert (await reader.expect(Pubrel)).packet_id == 3
        queued = await reader.expect(Publish)
        assert (queued.topic_name, queued.payload, queued.dup) == ("house/empty", b"", False)
        assert queued.properties["subscription_identifier"] == [17, 17]
        reader.send(Puback(1), Pubrec(2), Pubcomp(3), Puback(queued.packet_id))
        assert (await reader.expect(Pubrel)).packet_id == 2

        vier = Peer(broker, Version.MQTT_3_1_1)
        assert (await vier.connect("vier", clean_start=False)).session_present
        if written_in(old) > 1:
            runs = [await vier.expect(Publish) for _ in range(4)]
            assert [(each.topic_name, each.payload, each.dup) for each in runs] == [
                *(("r", b"b", True), ("r", b"c", False), ("ü", b"x", False), ("r", b"y", False)),
            ]
            assert runs[0].packet_id == 9
            vier.send(*(Puback(each.packet_id) for each in runs))
        vier.send(Pubrel(65_535))
        kinds = [type(await vier.recv()) for _ in range(2)]
        assert sorted(kind.__name__ for kind in kinds) == ["Pubcomp", "Publish"]  # it was held

        anybody = Peer(broker)
        await anybody.connect("anybody")
        await anybody.subscribe("#")
        retained = [await anybody.expect(Publish) for _ in range(3)]
        assert {each.topic_name: each.payload for each in retained} == {
            "house/attic/temperature": b"19.5",
            "grüße/🌡": "warm ☀".encode(),
            "wills/vier": b"gone",  # was connected when the broker went
        }


# ---- to a format that does not exist yet

STEPS = (
    "ALTER TABLE retained ADD COLUMN taken REAL",
    "UPDATE retained SET taken = id * 2.0",
    "CREATE TABLE added (id INTEGER PRIMARY KEY, one, two, three, four)",
)


def next_format(monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...] = STEPS) -> None:
    blobs, values = schema.COLUMNS[Table.RETAINED]
    monkeypatch.setitem(schema.COLUMNS, Table.RETAINED, (blobs, (*values, "taken REAL")))
    monkeypatch.setattr(sqlite, "FORMAT", NEXT)
    monkeypatch.setitem(MIGRATIONS, NEXT, steps)


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """A store in the format of today."""
    return Path(shutil.copy(FORMATS / f"{FORMAT}.db", tmp_path / "store.db"))


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_the_next_format(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_format(monkeypatch)
    for _ in range(2):  # the second time there is nothing to be done
        store = SqliteStore(str(newest))
        store.open()
        rows = dict(store.read(Table.RETAINED))
        store.close()
        fixed = FIXED[Table.RETAINED].items()
        assert rows == {number: Row((*row.values, number * 2.0)) for number, row in fixed}
    assert version_of(newest) == NEXT
    monkeypatch.undo()
    with pytest.raises(StoreError) as caught:
        SqliteStore(str(newest)).open()
    said = f"{newest}: written by a newer pybroker (store format {NEXT}, this one knows {FORMAT})"
    assert said in str(caught.value)
    assert "store.path" in str(caught.value)
    assert version_of(newest) == NEXT


@pytest.mark.parametrize("before", range(len(STEPS) + 1))
def test_a_migration_that_breaks_off_leaves_what_was(
    newest: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """At each place between its statements."""
    next_format(monkeypatch, (*STEPS[:before], "NO STATEMENT", *STEPS[before:]))
    with pytest.raises(StoreError, match=re.escape(str(newest))):
        SqliteStore(str(newest)).open()
    monkeypatch.undo()
    assert version_of(newest) == FORMAT
    assert found_in(newest) == as_found(FIXED)
    store = SqliteStore(str(newest))
    store.open()
    store.close()


def test_a_kill_in_a_migration_leaves_what_was(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the files are at each moment of it: a commit that is not complete is none."""
    next_format(monkeypatch)
    snapshots: list[Path] = []

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            done = super().execute(sql, *parameters)  # type: ignore[arg-type]
            if self.in_transaction or sql == "COMMIT":
                folder = newest.parent / str(len(snapshots))
                folder.mkdir()
                for file in newest.parent.glob("store.db*"):
                    shutil.copy(file, folder)
                snapshots.append(folder / newest.name)
            return done

    monkeypatch.setattr(
        sqlite, "connect",
        lambda path, mode="rwc": sqlite3.connect(f"file:{path}?mode={mode}", uri=True, isolation_level=None,
                                                 factory=Watched),
    )  # fmt: skip
    store = SqliteStore(str(newest))
    store.open()
    store.close()
    monkeypatch.undo()
    assert len(snapshots) == len(STEPS) + 3  # and BEGIN, PRAGMA user_version, COMMIT
    assert [version_of(path) for path in snapshots] == [FORMAT] * (len(STEPS) + 2) + [NEXT]
    for path in snapshots[:-1]:
        assert found_in(path) == as_found(FIXED)


@pytest.mark.parametrize("number", [NEXT, 999, 2**31 - 1])
def test_a_newer_format_is_refused(newest: Path, number: int) -> None:
    with closing(sqlite3.connect(newest)) as db:
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("DROP TABLE session")  # nothing is tried with it
        db.commit()
    before = newest.read_bytes()
    commands = {
        "open": lambda: SqliteStore(str(newest)).open(),
        "verify": lambda: repair.verify(str(newest)),
        "dump": lambda: list(repair.dump(str(newest))),
        "compact": lambda: repair.compact(str(newest)),
        "salvage": lambda: repair.salvage(str(newest), f"{newest}.new"),
    }
    for name, command in commands.items():
        with pytest.raises(StoreError, match=f"{newest}.* newer pybroker") as caught:
            command()
        assert str(number) in str(caught.value), name
    assert newest.read_bytes() == before
    assert not Path(f"{newest}.new").exists()


@pytest.mark.parametrize("number", [0, -1])
def test_a_format_that_never_was_is_damage(newest: Path, number: int) -> None:
    with closing(sqlite3.connect(newest)) as db:
        db.execute(f"PRAGMA user_version = {number}")
    with pytest.raises(StoreError, match=r"damaged .*salvage"):
        SqliteStore(str(newest)).open()


def test_properties_are_those_of_a_publish() -> None:
    """What FIXED says in hexadecimal."""
    message = rows.message_of(FIXED[Table.MESSAGE][22], 0.0)
    assert rows.message_row(message, 0.0).blobs[1] == PROPERTIES
