"""The tables of a durable store; docs/store-format.md tells the same in prose."""

from __future__ import annotations

from broker.store.base import Table

APPLICATION_ID = 0x50794272  # "PyBr"
FORMAT = 1  # PRAGMA user_version

# The BLOBs of a table first, then its plain columns. Every table has another number of columns, so that
# a page can be told to its table when the tree above it is lost.
COLUMNS: dict[Table, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Table.SESSION: (
        (),
        (
            *("client_id TEXT", "user_name TEXT", "version INTEGER", "expiry_interval INTEGER"),
            *("whole INTEGER", "connected INTEGER", "ends_at REAL"),
            *("will INTEGER", "will_delay INTEGER", "will_due REAL"),
        ),
    ),
    Table.SUBSCRIPTION: (
        (),
        (
            *("session INTEGER", "topic_filter TEXT", "qos INTEGER", "no_local INTEGER"),
            *("retain_as_published INTEGER", "retain_handling INTEGER", "identifier INTEGER"),
            "share_name TEXT",
        ),
    ),
    Table.MESSAGE: (
        ("payload BLOB", "properties BLOB"),
        ("topic_name TEXT", "qos INTEGER", "retain INTEGER", "client_id TEXT", "expires_at REAL"),
    ),
    Table.DELIVERY: (
        (),
        (
            *("session INTEGER", "message INTEGER", "qos INTEGER", "retain INTEGER", "requested INTEGER"),
            *("identifiers TEXT", "share TEXT", "packet_id INTEGER", "state INTEGER"),
        ),
    ),
    Table.HELD: ((), ("session INTEGER", "packet_id INTEGER", "message INTEGER")),
    Table.RETAINED: ((), ("message INTEGER",)),
}

META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID"


def names(table: Table) -> tuple[str, ...]:
    """The columns of *table*, without its `id`."""
    blobs, plain = COLUMNS[table]
    return tuple(column.split()[0] for column in (*blobs, *plain))


def create_statements() -> list[str]:
    """What makes an empty store of this format."""
    made = [
        f"CREATE TABLE {table.name.lower()} (id INTEGER PRIMARY KEY, {', '.join((*blobs, *plain))})"
        for table, (blobs, plain) in COLUMNS.items()
    ]
    return [META, *made, f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT}"]


# Format -> the statements that make it of the format before.
MIGRATIONS: dict[int, tuple[str, ...]] = {}
