"""Rows of the log -> Parquet files with the columns of bronze, in the worker that read them.

So they do not travel through the JVM, which would take four times the CPU for the same file. The task yields
what it wrote instead: see `FOUND`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.log.rows import arrow_schema
from spark.schema import DATA_LOSS, GAP, PARTITIONS, QUARANTINE_LINES, Column, bronze_columns

if TYPE_CHECKING:  # workers import it where they write
    import pyarrow as pa

# What a task yields: a row for each thing that stands where records should be, with `bad` as the source has
# it, and one with `rows`, and with `file` unless there were none.
FOUND = (
    Column("", "file", "string"),  # a name in the folder that was given
    Column("", "rows", "bigint"),
    Column("", "bad_lines", "bigint"),
    Column("", "gaps", "bigint"),
    Column("", "newest", "bigint"),  # microseconds since 1970
    *(column for column in QUARANTINE_LINES if column.name not in {"kind", "ingested_at"}),
)
QUARANTINED = [column.name for column in FOUND if column in QUARANTINE_LINES]
RISING = ("offset", "received_at")  # differences of neighbours take less room than a dictionary


def written(
    batches: Iterable[pa.RecordBatch], kind: str, folder: str, ingested_at: int | None
) -> Iterator[pa.RecordBatch]:
    """One piece of the log, as `FOUND` has it; *ingested_at*, microseconds since 1970.

    Keeps the rows of the piece in memory, to sort them. The file is synced. Without *ingested_at* nothing is
    written, and only what is bad is yielded.
    """
    import pyarrow as pa
    from pyarrow import compute

    good: list[pa.RecordBatch] = []
    bad_lines = gaps = 0
    for batch in batches:
        if batch.column("bad").null_count == batch.num_rows:
            good.append(batch)
            continue
        reasons = batch.column("bad").to_pylist()
        here = sum(reason.startswith((GAP, DATA_LOSS)) for reason in reasons)
        gaps, bad_lines = gaps + here, bad_lines + len(reasons) - here
        yield found(len(reasons), {name: batch.column(name) for name in QUARANTINED})
    if ingested_at is None:
        return
    said: dict[str, Any] = {"rows": 0, "bad_lines": bad_lines, "gaps": gaps}
    if good:
        table = pa.Table.from_batches(good)
        said |= {name: good[0].column(name)[0].as_py() for name in PARTITIONS}
        said |= {"rows": table.num_rows, "newest": compute.max(table.column("received_at")).value}
        said["file"] = write(to_bronze(table, kind, ingested_at), Path(folder))
    yield found(1, {name: [value] for name, value in said.items()})


def found(count: int, columns: Mapping[str, Sequence[Any] | pa.Array]) -> pa.RecordBatch:
    """*columns*, and nulls in the others of FOUND."""
    import pyarrow as pa

    schema, nothing = arrow_schema(FOUND), [None] * count
    arrays = [pa.array(columns.get(field.name, nothing), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_bronze(rows: pa.Table, kind: str, ingested_at: int) -> pa.Table:
    """The log as it was, and what is cheap to know; sorted by topic, so that statistics prune pages.

    `spark.ingest.to_bronze` is its twin for the JVM.
    """
    import pyarrow as pa
    from pyarrow import compute

    if kind == "messages":
        order = compute.sort_indices(rows, [("topic", "ascending")])  # stable: by offset within a topic
        rows = rows.take(order)
        size = compute.binary_length(rows.column("payload"))
        rows = rows.append_column("levels", compute.split_pattern(rows.column("topic"), "/"))
        rows = rows.append_column("size", compute.coalesce(rows.column("payload_size"), size))
    now = pa.repeat(pa.scalar(ingested_at, pa.timestamp("us", "UTC")), rows.num_rows)
    columns = [column for column in bronze_columns(kind) if column.name not in PARTITIONS]
    return rows.append_column("ingested_at", now).select([column.name for column in columns])


def write(table: pa.Table, folder: Path) -> str:
    """The name of the new file in *folder*."""
    from pyarrow import parquet

    name = f"part-{uuid.uuid4()}.parquet"
    few = [column for column in table.schema.names if column not in RISING]
    with open(folder / name, "xb") as file:
        parquet.write_table(
            table,
            file,
            compression="zstd",
            compression_level=3,
            use_dictionary=[*few, "levels.list.element"],
            column_encoding=dict.fromkeys(RISING, "DELTA_BINARY_PACKED"),
            write_page_index=True,
            store_schema=False,
        )
        file.flush()
        os.fsync(file.fileno())
    return name
