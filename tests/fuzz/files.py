"""A store file that anything has happened to: it is refused by name, or opens, and then all goes on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from broker import Broker, Capacity, Config, Protocol
from broker.errors import StoreError
from broker.packet import packets as mqtt
from broker.packet.message import Message
from broker.store.base import Table
from broker.store.rows import message_row
from broker.store.schema import COLUMNS, create_statements, names
from broker.store.sqlite import SqliteStore
from tests.fuzz.conversations import Listening
from tests.fuzz.pieces import Draw, record, split_records
from tests.fuzz.target import Target
from tests.peer import Clock, Peer, memory_broker
from tests.wire import turns, until

MOST = 12  # changes to one file
PAGE = 512  # bytes
MEMORY = Path("/dev/shm")  # a file system without a disk, where there is one
TABLES = (*(table.name.lower() for table in Table), "meta", "sqlite_schema")
KEPT = {"session_expiry_interval": 1000}
STATEMENTS = (
    *("DROP TABLE held", "DROP TABLE meta", "DELETE FROM session", "DELETE FROM message", "VACUUM"),
    *("ALTER TABLE session RENAME TO sessions", "ALTER TABLE message DROP COLUMN payload"),
    *("ALTER TABLE held ADD COLUMN more", "CREATE VIEW change AS SELECT 1", "CREATE TABLE other (x)"),
    *(
        "CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT RAISE(ABORT, 'no'); END",
        "PRAGMA user_version = 2",
    ),
    *("PRAGMA user_version = 0", "PRAGMA application_id = 1", "PRAGMA application_id = 0"),
    *(
        "PRAGMA encoding = 'UTF-16'",
        "PRAGMA auto_vacuum = 1",
        "DELETE FROM meta",
        "PRAGMA journal_mode = WAL",
    ),
    *("CREATE UNIQUE INDEX i ON delivery (qos)", "INSERT INTO session (client_id) VALUES ('c0')"),
)


# ---- a file with something of everything in it


def _rows() -> Iterator[tuple[Table, int, tuple[Any, ...]]]:
    yield Table.SESSION, 1, ("c0", None, 5, 1000, 1, 0, 2000.0, 5, 10, 1500.0)
    yield Table.SESSION, 2, ("c1", "user", 4, 0xFFFFFFFF, 1, 1, None, None, 0, None)
    yield Table.SESSION, 3, ("gone", None, 5, 0, 0, 1, None, 6, 0, None)
    for number, topic_filter in enumerate(("a/#", "t", "$share/g/t"), 10):
        share = "g" if topic_filter.startswith("$") else ""
        yield (
            Table.SUBSCRIPTION,
            number,
            (1 + number % 2, topic_filter, number % 3, 0, 1, 0, number % 2, share),
        )
    properties = {"content_type": "text", "user_property": [("k", "v")]}
    messages = [Message("a/b", b"x" * 40, 1, True, properties, "c1", 3000.0), Message("t", b"", 2)]
    messages += [
        Message("w", b"will", 1, True, client_id="c0"),
        Message("w/2", b"will", 0),
        Message("r", b"r", 0),
    ]
    for number, message in enumerate(messages, 3):
        row = message_row(message, 0.0)
        yield Table.MESSAGE, number, (*row.blobs, *row.values)
    yield Table.DELIVERY, 20, (1, 3, 1, 0, 0, "", "", 0, 0)
    yield Table.DELIVERY, 21, (2, 3, 1, 1, 1, "7,8", "", 1, 1)
    yield Table.DELIVERY, 22, (2, 4, 2, 0, 0, "", "$share/g/t", 2, 2)
    yield Table.DELIVERY, 23, (2, 4, 2, 0, 0, "", "", 3, 3)
    yield Table.HELD, 30, (2, 9, 4)
    yield Table.RETAINED, 31, (3,)
    yield Table.RETAINED, 32, (7,)


@functools.cache
def base() -> bytes:
    """The bytes of a sound store with small pages."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {PAGE}")
        for statement in create_statements():
            db.execute(statement)
        for table, number, cells in _rows():
            columns = ", ".join(("id", *names(table)))
            marks = ", ".join("?" * (1 + len(cells)))
            db.execute(f"INSERT INTO {table.name.lower()} ({columns}) VALUES ({marks})", (number, *cells))
        db.execute("INSERT INTO meta VALUES ('clean', 1), ('time', 1000.0), ('wall', 1000.0)")
        return db.serialize()


# ---- what happens to it


class Damage:
    """Changes to the file, as bytes or by SQLite; what SQLite refuses is left as it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(base())

    def overwrite(self, draw: Draw) -> None:
        at, data = draw.uint16(), bytearray(self.path.read_bytes())
        new = draw.rest()
        if data:
            at %= len(data)
            data[at : at + len(new)] = new
            self.path.write_bytes(data)

    def cut(self, draw: Draw) -> None:
        self.path.write_bytes(self.path.read_bytes()[: draw.uint16()])

    def copy_page(self, draw: Draw) -> None:
        data = bytearray(self.path.read_bytes())
        count = len(data) // PAGE
        if count:
            source, target = (draw.byte() % count * PAGE for _ in range(2))
            data[target : target + PAGE] = data[source : source + PAGE]
            self.path.write_bytes(data)

    def replace(self, draw: Draw) -> None:
        self.path.write_bytes(draw.rest())

    def beside(self, draw: Draw) -> None:
        """What stands in a file with a name that SQLite uses for its own."""
        name = draw.one_of(("-wal", "-journal", "-shm", "-lock"))
        self.path.with_name(self.path.name + name).write_bytes(draw.rest())

    def set_cell(self, draw: Draw) -> None:
        table, row = Table(1 + draw.byte() % len(Table)), draw.byte() % 5
        column = draw.one_of(("id", *names(table)))
        name = table.name.lower()
        self.sql(f"UPDATE {name} SET {column} = ? WHERE id IN (SELECT id FROM {name} LIMIT 1 OFFSET ?)",
                 value(draw), row)  # fmt: skip

    def add_row(self, draw: Draw) -> None:
        table, number = Table(1 + draw.byte() % len(Table)), draw.byte()
        cells = [value(draw) for _ in names(table)]
        marks = ", ".join("?" * (1 + len(cells)))
        self.sql(f"REPLACE INTO {table.name.lower()} VALUES ({marks})", number, *cells)

    def remove_row(self, draw: Draw) -> None:
        table, row = draw.one_of(TABLES), draw.byte() % 8
        self.sql(f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT 1 OFFSET ?)", row)

    def set_meta(self, draw: Draw) -> None:
        self.sql(
            "REPLACE INTO meta VALUES (?, ?)",
            draw.one_of(("clean", "time", "wall", "program", "x")),
            value(draw),
        )

    def state(self, draw: Draw) -> None:
        self.sql(draw.one_of(STATEMENTS))

    def rewrite_schema(self, draw: Draw) -> None:
        """What SQLite remembers of a table, in other words."""
        table, sql = draw.one_of(TABLES), draw.rest()
        self.sql(f"UPDATE sqlite_schema SET sql = CAST(? AS TEXT) WHERE name = '{table}'", sql)

    def sql(self, statement: str, *parameters: Any) -> None:
        with (
            contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError),
            contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=0)) as db,
        ):
            db.execute("PRAGMA writable_schema = ON")
            db.execute("PRAGMA synchronous = OFF")
            db.execute(statement, parameters)


KINDS: tuple[Callable[[Damage, Draw], None], ...] = (
    *(Damage.set_cell, Damage.set_cell, Damage.set_cell, Damage.add_row, Damage.overwrite, Damage.overwrite),
    *(Damage.remove_row, Damage.set_meta, Damage.state, Damage.cut, Damage.copy_page, Damage.replace),
    *(Damage.beside, Damage.rewrite_schema),
)


def value(draw: Draw) -> Any:
    """Anything that a cell can hold."""
    numbers = (0, 1, 2, 3, 4, 5, 7, 255, 65536, -1, 1 << 40, (1 << 63) - 1, -(1 << 63))
    kind = draw.byte() % 7
    if kind == 0:
        return None
    if kind == 1:
        return draw.one_of(numbers)
    if kind == 2:
        return draw.byte()
    if kind == 3:
        return draw.one_of(
            (0.5, -1.0, 1e300, float("inf"), 1500.0, struct.unpack("d", b"\0\0\0\0\0\0\0\x80")[0])
        )
    if kind == 4:
        return draw.one_of(("", "a", "#", "$share/g/a", "1,2", ",", "x" * 70_000, "\0", "é", "t"))
    if kind == 5:
        return draw.take(draw.byte() % 32).decode("utf-8", "replace")
    return draw.take(draw.byte() % 64)


# ---- and then


def run(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder, "broker.db")
        damage = Damage(path)
        for head, body in split_records(data)[:MOST]:
            KINDS[head[0] % len(KINDS)](damage, Draw(body))
        read_all(path)
        with Listening() as listening:
            try:
                asyncio.run(live(path))
            finally:
                assert not listening.failures, "\n".join(listening.failures)


def read_all(path: Path) -> None:
    """Open a copy and read it: as the program does, without a broker."""
    copy = path.with_name("copy.db")
    for name in ("", "-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            copy.with_name(copy.name + name).write_bytes(path.with_name(path.name + name).read_bytes())
    store = SqliteStore(str(copy))
    try:
        noted = store.open()
        assert noted is None or len(noted) == 2
        for table in Table:
            for number, row in store.read(table):
                blobs, plain = COLUMNS[table]
                assert isinstance(number, int) and (len(row.blobs), len(row.values)) == (
                    len(blobs),
                    len(plain),
                )
    except StoreError as error:
        assert str(copy) in str(error), "a refusal that does not name the file"
    with contextlib.suppress(StoreError):
        store.close()


async def live(path: Path) -> None:
    """Twice: what the first broker made of the file the second one can read."""
    clock, wall = Clock(), Clock(1100.0)
    settings = Config(capacity=Capacity(sweep_interval=0, grace_time=0.01), protocol=Protocol(takeover="any"))
    for again in (False, True):
        broker = memory_broker(settings, store=str(path), clock=clock, wall=wall)
        try:
            await broker.start()
        except StoreError as error:
            assert str(path) in str(error), "a refusal that does not name the file"
            return
        try:
            await serve(broker, clock, again)
            if again:
                await clear(broker)
        finally:
            await broker.stop()
    await turns()
    with contextlib.closing(sqlite3.connect(path)) as db:
        left = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES[: len(Table)]}
    assert not any(left.values()), f"rows that nobody deletes: {left}"


async def serve(broker: Broker, clock: Clock, again: bool) -> None:
    """Who was there comes back, and two others only want their service, whatever the file brings along."""
    others = [Peer(broker), Peer(broker)]
    for client_id, peer in zip(("bystander/one", "bystander/two"), others, strict=True):
        await peer.connect(client_id, properties=KEPT, clean_start=not again)
    others[0].send(mqtt.Subscribe(1, [mqtt.SubscribeRequest("bystander/topic", 1)]))
    await peer_round(others[0])
    for client_id in ("c0", "c1"):
        peer = Peer(broker)
        peer.send(mqtt.Connect(client_id, clean_start=False, properties=KEPT))
        peer.send(mqtt.Subscribe(1, [mqtt.SubscribeRequest("#", 2), mqtt.SubscribeRequest("+/+", 1)]))
        await peer_round(peer)
        peer.drop()
    for seconds in (1.0, 600.0, 1e6):
        clock.now += seconds
        for peer in others:
            await peer_ping(peer)
        await broker.sweep()
        code = await others[1].publish("bystander/topic", b"%d" % seconds, qos=1, retain=True)
        assert code == 0, "the bystander is refused"
        got = await others[0].expect(mqtt.Publish)
        assert got.payload == b"%d" % seconds
        others[0].send(mqtt.Puback(got.packet_id))
    for peer in others:
        peer.drop()
    await until(lambda: not broker._connections, "connections stay")


async def clear(broker: Broker) -> None:
    """End every session and delete what is retained: then nothing is left."""
    core = broker._core
    for session in core.sessions:
        await broker.delete_session(session.client_id)
    retained: Any = core.retained
    for topic_name in [*retained._index]:
        retained.delete(topic_name)
    assert (core.tree.count, [*core.sessions], core.budget.used) == (0, [], 0), "something stays"


async def peer_round(peer: Peer) -> None:
    """Take what comes until a ping is answered; acknowledge it."""
    peer.send(mqtt.Pingreq())
    while not isinstance(packet := await peer.recv(), mqtt.Pingresp):
        assert packet is not None, "the connection ends"
        if isinstance(packet, mqtt.Publish) and packet.qos:
            peer.send(mqtt.Puback(packet.packet_id) if packet.qos == 1 else mqtt.Pubrec(packet.packet_id))
        elif isinstance(packet, mqtt.Pubrel):
            peer.send(mqtt.Pubcomp(packet.packet_id))


async def peer_ping(peer: Peer) -> None:
    peer.send(mqtt.Pingreq())
    await peer.expect(mqtt.Pingresp)


def seeds() -> Iterator[bytes]:
    yield b""
    for table in range(len(Table)):
        for column in range(11):
            for kind in (b"\0", b"\1\x0c", b"\3\3", b"\4\6", b"\6\4abcd", b"\4\0"):
                if (table + column) % 3 == 0:
                    yield record(0, bytes((table, column % 3, column)) + kind)
    for number in range(len(STATEMENTS)):
        yield record(8, bytes((number,))) + record(7, b"\0\1\0")
    for key in range(5):
        yield record(7, bytes((key, 4, 1))) + record(7, bytes((key, 3, 2)))
    for table in range(len(TABLES)):
        yield record(6, bytes((table, 1)))
        yield record(13, bytes((table,)) + b"CREATE TABLE x (y)")
        yield record(3, bytes((table % 6, 40)) + b"\1\1" * 10)
    for size in (0, 100, 512, 1000, 4096, 9000):
        yield record(9, size.to_bytes(2, "big"))
        yield record(7, b"\0\1\0") + record(4, size.to_bytes(2, "big") + b"\xff\0\xff")
    for page in range(20):
        yield record(10, bytes((page, page + 1)))
    yield record(11, b"SQLite format 3\0") + record(12, b"\0" + bytes(32))
    yield record(11) + record(12, b"\1\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")


TARGET = Target(
    name="files",
    run=run,
    seeds=seeds,
    covers=("store.sqlite", "store.schema", "session.restore", "store.memory"),
    longest=600,
    frugal=True,
    words=[b"CREATE TABLE ", b"INTEGER PRIMARY KEY", b"SQLite format 3\0"],
)
